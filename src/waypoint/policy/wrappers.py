"""Finds the commands inside other commands: `bash -c`, `sudo`, `xargs`, `find -exec`, `ssh HOST …`,
`python -c`.

A wrapper is a program that runs a command it gets as arguments or as input. Wrappers are removed, layer by
layer, until commands remain that act themselves: the parts of a line, which a policy judges one by one. What
a wrapper runs but cannot be determined (a script file, a variable, the output of a pipe) is listed in
`unseen`. Most wrappers are data (wrappers.toml); those with a syntax of their own have a function here.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from waypoint.model import Record, from_plain
from waypoint.policy import inline
from waypoint.policy.bash import Command, Unseen, Word, parse

_MAX_DEPTH = 12
_MAX_PARTS = 500


class Part(NamedTuple):
    """One command that acts itself."""

    words: tuple[Word, ...]
    """Empty if there are only variables and redirections."""
    place: str = ""
    """Where it runs, if not in the session: `machine web1`, `container db`."""
    stdin: Word | None = None
    writes: tuple[Word, ...] = ()
    assignments: tuple[tuple[str, Word], ...] = ()
    """Variables that are set for it, also earlier in the line."""
    has_input: bool = False
    """Whether its standard input comes from the line, known or not."""
    shadowed: bool = False
    """Whether the line defines a function of that name. The body of the function is judged where it is
    defined; whether it is defined at this point only the shell knows."""

    @property
    def program(self) -> str:
        return program_of(self.words[0].text) if self.words else ""


class Inspection(Unseen):
    """The parts of a line, and what could not be determined."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Part] = []


def inspect(line: str, stdin: str | None = None) -> Inspection:
    """Inspects a line for a shell. `stdin`: the input of its commands, if known."""
    result = Inspection()
    _Inspector(result).line(line, None if stdin is None else Word(stdin, unquoted=False))
    return result


def inspect_words(argv: Sequence[str]) -> Inspection:
    """Inspects a program with its arguments, started without a shell."""
    result = Inspection()
    _Inspector(result).command(Command(words=[Word(text, unquoted=False) for text in argv]))
    return result


_BIN = re.compile(r"(?:^|/)\.?s?bin/[^/]+$")


def program_of(text: str) -> str:
    """The name of a program, without its version. A path outside of `bin` folders stays a path."""
    if "/" in text and not _BIN.search(text):
        return text
    name = posixpath.basename(text)
    if match := re.fullmatch(r"(python|pip|pypy|perl|ruby|node|php|lua)\d[\d.]*", name):
        return "python" if match[1] == "pypy" else match[1]
    return name


# ---- options -------------------------------------------------------------------------------------


def skip_options(words: Sequence[Word], values: frozenset[str], at: int = 1) -> int:
    """The index at which the options end. `values`: those that take their value as a separate word."""
    while at < len(words):
        text = words[at].text
        if text == "--":
            return at + 1
        if not text.startswith("-") or text == "-":
            return at
        # `-u root`, but `-uroot` and `--user=root` are one word.
        at += 2 if text in values else 1
    return min(at, len(words))  # the last option may lack its value


class Words(frozenset[str]):
    """A list of words that is one string in wrappers.toml."""


class Wrapper(Record, frozen=True, forbid_unknown_fields=True):
    """A program that runs the words after its options. wrappers.toml explains the fields."""

    values: Words = Words()
    arguments: int = 0
    variables: bool = False
    line: Words = Words()
    versioned: bool = False
    acts_itself: bool = False


class Names(Record, frozen=True, forbid_unknown_fields=True):
    shells: Words
    interpreters: Words
    modules: Words
    command_variables: Words
    tmux_verbs: Words
    find_actions: Words


class Tables(Record, frozen=True, forbid_unknown_fields=True):
    """The content of wrappers.toml."""

    programs: dict[str, Wrapper]
    verbs: dict[str, dict[str, Wrapper]]
    options: dict[str, Words]
    names: Names


@cache
def tables() -> Tables:
    """What is known about wrappers. It is read from the file once, when it is first needed."""
    data = tomllib.loads((Path(__file__).parent / "wrappers.toml").read_text())
    data["programs"] |= {name: {} for name in data.pop("plain").split()}
    return from_plain(data, Tables, dec_hook=lambda _, text: Words(text.split()))


_ADDED_LATER = "\u2026"
"""Stands for words that a wrapper adds when it runs."""


class _Inspector:
    """Adds the parts of commands at one place and one depth of wrapping to an inspection."""

    def __init__(self, result: Inspection, depth: int = 0, place: str = "") -> None:
        self.result, self.depth, self.place = result, depth, place
        self.functions: set[str] = set()
        self.variables: list[tuple[str, Word]] = []
        """Variables that the line has set so far."""

    def line(self, text: str, stdin: Word | None = None) -> None:
        parsed = parse(text)
        self.functions |= parsed.functions
        for what in parsed.unseen:
            self.result.add_unseen(what)
        for command in parsed.commands:
            if stdin is not None and command.stdin is None and not command.piped:
                command.stdin = stdin
            self.command(command)

    def _nested(self, place: str | None = None) -> _Inspector | None:
        if self.depth >= _MAX_DEPTH:
            self.result.add_unseen("what is wrapped too deeply")
            return None
        inner = _Inspector(self.result, self.depth + 1, self.place if place is None else place)
        inner.functions, inner.variables = self.functions, self.variables
        return inner

    def _shell_text(
        self, word: Word | None, what: str, *, place: str | None = None, stdin: Word | None = None
    ) -> None:
        """A text that a shell runs. `what` describes it; `stdin`: the input of its commands."""
        if word is None:
            self.result.add_unseen(what)
            return
        if word.dynamic:
            self.result.add_unseen(f"{what}: it holds {_describe_expansion(word.text)}")
        if inner := self._nested(place):
            inner.line(word.text, stdin)

    def _inner_command(
        self, words: Sequence[Word], outer: Command | None = None, *, place: str | None = None
    ) -> None:
        """Words that the outer command runs, with its standard input if it passes that on."""
        if words and (inner := self._nested(place)):
            command = Command(list(words))
            if outer:
                command.stdin, command.reads_file = outer.stdin, outer.reads_file
                command.piped, command.before = outer.piped, outer.before
            inner.command(command)

    def _add_part(self, command: Command) -> None:
        if len(self.result.parts) >= _MAX_PARTS:
            self.result.add_unseen(f"all after the first {_MAX_PARTS} commands")
            return
        words, stdin = tuple(command.words), _input_of(command)
        own = tuple(command.assignments)
        self.result.parts.append(
            Part(
                words,
                self.place,
                stdin,
                tuple(command.writes),
                assignments=(*self.variables, *own) if words else own,
                has_input=stdin is not None or command.piped or command.reads_file,
                shadowed=bool(words) and words[0].text in self.functions,
            )
        )

    def _command_variable(self, name: str, value: Word) -> None:
        """A variable is set: its value is a command line if another program runs it."""
        if name in tables().names.command_variables:
            self._shell_text(value, f"what {name} is set to")

    # ---- one command -------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        for name, value in command.assignments:
            self._command_variable(name, value)
        if not command.words:
            self.variables += command.assignments
            self._add_part(command)
            return
        first = command.words[0]
        if first.dynamic:
            self.result.add_unseen(f"the command is {_describe_expansion(first.text)}")
            # If its value is known from earlier in the line, that is inspected too: it may be dangerous.
            words = [Word(text, dynamic=True) for text in first.text.split()]
            if words and "$" not in words[0].text and not words[0].text.startswith("`"):
                known = words[0]._replace(dynamic=False)
                self._inner_command([known, *words[1:], *command.words[1:]], command)
            return
        if first.unquoted and re.search(r"[*?\[]", first.text) and first.text not in ("[", "[["):
            self.result.add_unseen(f"which command {first.text} is")
            return
        if command.assignments or command.writes:
            self._add_part(Command([], command.assignments, command.writes))
        name = program_of(first.text)
        if handler := _handlers().get(name):
            handler(self, name, command)
        else:
            self._add_part(command)

    def _wrapper(self, name: str, command: Command) -> None:
        words, at = command.words, 1
        wrapper = tables().programs.get(name)
        if verbs := tables().verbs.get(name):
            verb_at = skip_options(words, tables().options["verbs"])
            if verb_at < len(words) and words[verb_at].text in verbs:
                wrapper, at = verbs[words[verb_at].text], verb_at + 1
        if wrapper is None:
            self._add_part(command)
            return
        start = skip_options(words, wrapper.values, at)
        for option in wrapper.line:
            if line := _option_value(words[: start + 1], option):
                self._shell_text(line, f"what {name} {option} is given")
                return
        while wrapper.variables and start < len(words) and re.match(r"[A-Za-z_]\w*=", words[start].text):
            variable, _, text = words[start].text.partition("=")
            value = words[start]._replace(text=text)
            self._command_variable(variable, value)
            self.variables.append((variable, value))
            start += 1
        start += wrapper.arguments
        if start < len(words) and words[start].text == "--":
            start += 1
        rest = list(words[start:])
        if wrapper.versioned and rest:
            rest[0] = rest[0]._replace(text=re.sub(r"(?<=.)@[\w.^~*-]+$", "", rest[0].text))
        if not rest or wrapper.acts_itself:
            self._add_part(command)
        if rest:
            self._inner_command(rest, command)
        elif any(word.text in ("-s", "-i", "--shell", "--login") for word in words[1:]):
            self.result.add_unseen(f"what is typed into the shell of {name}")

    # ---- shells and interpreters -------------------------------------------------------------

    def _shell(self, name: str, command: Command) -> None:
        words, at = command.words, 1
        while at < len(words) and (words[at].text.startswith(("-", "+")) and words[at].text != "-"):
            text = words[at].text
            if text == "--":
                at += 1
                break
            if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", text) or text == "--command":
                rest = words[at + 1 :]
                while rest and rest[0].text.startswith("-"):
                    rest = rest[1:]
                self._shell_text(rest[0] if rest else None, f"what {name} -c is given")
                return
            if text in ("--help", "--version"):
                self._add_part(command)
                return
            if re.fullmatch(r"-[a-zA-Z]*s", text):
                at = len(words)
                break
            at += 2 if text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
        if at < len(words) and words[at].text not in ("-", "/dev/stdin"):
            self.result.add_unseen(f"what the script {words[at].text} does")
            return
        self._shell_input(name, command)

    def _shell_input(self, name: str, command: Command) -> None:
        """A shell that runs its standard input."""
        text = _input_of(command)
        if text is not None:
            self._shell_text(text, f"what {name} reads")
        elif command.piped and command.before is not None and command.before.words:
            self.result.add_unseen(f"what {program_of(command.before.words[0].text)} hands to {name}")
        else:
            self.result.add_unseen(f"what {name} reads")

    def _interpreter(self, name: str, command: Command) -> None:
        words = command.words
        if (
            name in ("deno", "bun")
            and len(words) > 1
            and words[1].text != "eval"
            and not words[1].text.startswith("-")
        ):
            self._add_part(command)
            return
        for index, word in enumerate(words[1:], 1):
            text = word.text
            if (
                name == "python"
                and (text == "-m" or re.fullmatch(r"-[a-zA-Z]*m", text))
                and index + 1 < len(words)
            ):
                module = words[index + 1]
                if module.text in tables().names.modules:
                    self._inner_command([module, *words[index + 2 :]], command)
                else:
                    self.result.add_unseen(f"what the module {module.text} does")
                return
            option = inline.CODE_OPTIONS[name].fullmatch(text) if name in inline.CODE_OPTIONS else None
            if option:
                attached = text[option.end(1) :] if option.lastindex else ""
                following = words[index + 1] if index + 1 < len(words) else None
                self._script(name, word._replace(text=attached) if attached else following)
                return
            if text in ("--version", "-V", "-v", "--help", "-h") and len(words) == 2:
                self._add_part(command)
                return
            if name != "python" and re.match(r"-[mMrR]\w|--(require|import|loader)|-r$", text):
                self.result.add_unseen(f"what {name} loads with {text}")
            if not text.startswith("-"):
                self.result.add_unseen(f"what the script {text} does")
                return
            if text == "-":
                break
        self._script(name, _input_of(command))

    def _script(self, name: str, code: Word | None) -> None:
        if code is None:
            self.result.add_unseen(f"what {name} reads")
            return
        if code.dynamic:
            self.result.add_unseen(f"a script for {name} that holds {_describe_expansion(code.text)}")
        script = inline.inspect(name, code.text)
        for what in script.unseen:
            self.result.add_unseen(what)
        for line in script.lines:
            self._shell_text(Word(line, unquoted=False), f"what {name} runs")
        for argv in script.programs:
            self._inner_command([Word(text, unquoted=False) for text in argv])
        # The rest of the script acts in the session.
        self._add_part(Command([], [("", code)], []))

    # ---- wrappers with a syntax of their own -------------------------------------------------

    def _eval(self, _: str, command: Command) -> None:
        self._shell_text(_join_words(command.words[1:]), "what eval is given")

    def _export(self, name: str, command: Command) -> None:
        self._add_part(command)
        for word in command.words[1:]:
            variable, equals, value = word.text.partition("=")
            if equals:
                self.variables.append((variable, word._replace(text=value)))
                self._command_variable(variable, word._replace(text=value))

    def _database(self, name: str, command: Command) -> None:
        """Command lines of databases can run shell commands."""
        self._add_part(command)
        texts = [*command.words[1:], *([command.stdin] if command.stdin else [])]
        for word in texts:
            for match in _SHELL_ESCAPE.finditer(word.text):
                self._shell_text(word._replace(text=match[1]), f"what {name} hands to the shell")

    def _cron(self, name: str, command: Command) -> None:
        self._add_part(command)
        if command.stdin or command.piped or command.reads_file or len(command.words) > 1:
            arguments = [word.text for word in command.words[1:]]
            if arguments not in (["-l"], ["-r"], ["-i"]):
                self.result.add_unseen("what cron will run")

    def _git(self, name: str, command: Command) -> None:
        """Some settings of git name a command to run, and some verbs run their arguments."""
        words = command.words
        for index, word in enumerate(words[:-1]):
            key, _, value = words[index + 1].text.partition("=")
            if word.text == "-c" and _GIT_COMMAND_SETTINGS.match(key):
                self._shell_text(words[index + 1]._replace(text=value.lstrip("!")), f"what {key} runs")
            elif word.text in ("--exec", "-x") and any(other.text == "rebase" for other in words):
                self._shell_text(words[index + 1], "what git rebase runs")
            elif word.text == "run" and words[index - 1].text == "bisect":
                self._inner_command(words[index + 1 :])
            elif word.text == "foreach" and words[index - 1].text == "submodule":
                rest = words[skip_options(words, frozenset(), index + 1) :]
                self._shell_text(_join_words(rest), "what git submodule runs")
            elif re.match(r"--[a-z-]+-filter$", word.text):
                self._shell_text(words[index + 1], "what git filter-branch runs")
        self._add_part(command)

    def _helper_program(self, name: str, command: Command) -> None:
        """Programs that start another one, which an option names."""
        for index, word in enumerate(command.words[1:], 1):
            text = word.text
            if text in ("-e", "--rsh", "-I", "--use-compress-program", "--to-command", "-P"):
                text = f"={command.words[index + 1].text}" if index + 1 < len(command.words) else ""
            elif not re.match(r"--(rsh|use-compress-program|to-command|checkpoint-action|pager)=", text):
                continue
            value = text.partition("=")[2].removeprefix("exec=")
            if value and _USUAL_HELPERS[name].match(value) is None:
                self._shell_text(word._replace(text=value), f"what {name} starts")
        self._add_part(command)

    def _source(self, name: str, command: Command) -> None:
        target = command.words[1] if len(command.words) > 1 else None
        if target and re.search(r"(^|/)bin/activate(\.\w+)?$", target.text):
            self._add_part(command)
        else:
            self.result.add_unseen(f"what the script {target.text if target else '?'} does")

    def _alias(self, name: str, command: Command) -> None:
        self._add_part(command)
        for word in command.words[1:]:
            _, equals, value = word.text.partition("=")
            if equals:
                self._shell_text(word._replace(text=value), "what an alias stands for")

    def _trap(self, name: str, command: Command) -> None:
        self._add_part(command)
        arguments = [word for word in command.words[1:] if not word.text.startswith("-")]
        if len(arguments) > 1 and arguments[0].text:
            self._shell_text(arguments[0], "what a trap runs")

    def _command(self, name: str, command: Command) -> None:
        if len(command.words) > 1 and command.words[1].text in ("-v", "-V"):
            self._add_part(command)
        else:
            self._inner_command(command.words[skip_options(command.words, frozenset()) :], command)

    def _su(self, name: str, command: Command) -> None:
        words, texts = command.words, [word.text for word in command.words]
        for index, word in enumerate(words[1:], 1):
            if word.text in ("-c", "--command") and index + 1 < len(words):
                self._shell_text(words[index + 1], f"what {name} -c is given")
                return
            if word.text.startswith("--command="):
                self._shell_text(word._replace(text=word.text.partition("=")[2]), f"what {name} -c is given")
                return
        if "--" in texts:
            self._inner_command(words[texts.index("--") + 1 :], command)
        elif name == "runuser" and len(words) > 3 and words[1].text == "-u":
            self._inner_command(words[3:], command)
        else:
            self._shell_input(name, command)

    def _script_program(self, name: str, command: Command) -> None:
        if any(word.text in ("-c", "--command") for word in command.words):
            self._su(name, command)
        else:
            self.result.add_unseen("what is typed into the shell of script")

    def _flock(self, name: str, command: Command) -> None:
        words = command.words
        at = skip_options(words, tables().options["flock"])
        if at + 1 < len(words) and words[at + 1].text in ("-c", "--command"):
            self._shell_text(words[at + 2] if at + 2 < len(words) else None, "what flock -c is given")
        elif at + 1 < len(words):
            self._inner_command(words[at + 1 :], command)
        else:
            self._add_part(command)

    def _watch(self, name: str, command: Command) -> None:
        """watch joins its words and runs them in a shell."""
        rest = command.words[skip_options(command.words, tables().options["watch"]) :]
        if rest:
            self._shell_text(_join_words(rest), f"what {name} is given")
        else:
            self._add_part(command)

    def _xargs(self, name: str, command: Command) -> None:
        at = skip_options(command.words, tables().options[name])
        rest = [word for word in command.words[at:] if word.text not in (":::", "::::")]
        if name == "parallel":
            texts = [word.text for word in command.words]
            own = rest[: texts.index(":::") - at] if ":::" in texts[at:] else rest
            if len(own) <= 1:
                # With one word that is a command line. With none each argument, or line of input, is one.
                for word in own or rest:
                    self._shell_text(word, "what parallel is given")
                if not rest:
                    self._shell_input(name, command)
                return
            rest = own
        if not rest:
            self._add_part(command)
            return
        # The words that it reads are added after these, or replace {}.
        self._inner_command([*_with_placeholders(rest), Word(_ADDED_LATER, dynamic=True)])

    def _find(self, name: str, command: Command) -> None:
        self._add_part(command)
        words = command.words
        for index, word in enumerate(words):
            if word.text in tables().names.find_actions:
                rest = words[index + 1 :]
                end = next((at for at, other in enumerate(rest) if other.text in (";", "+")), len(rest))
                self._inner_command(_with_placeholders(rest[:end]))

    def _ssh(self, name: str, command: Command) -> None:
        words, values = command.words, tables().options["ssh"]
        at = skip_options(words, values)
        for index, word in enumerate(words[:at]):
            option = (
                words[index + 1].text
                if word.text == "-o" and index + 1 < at
                else word.text.removeprefix("-o")
            )
            if re.match(r"(?i)(proxy|local)command[ =]", option):
                self._shell_text(Word(option.partition("=")[2], word.dynamic), "what ssh starts")
        if at >= len(words):
            self._add_part(command)
            return
        host = words[at].text.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]
        place = "" if is_local(host) else f"machine {host}"
        rest = words[skip_options(words, values, at + 1) :]
        if any(word.text in ("-N", "-f", "-fN", "-NT") for word in words[:at]) or name == "autossh":
            self._add_part(command)
        elif rest:
            self._shell_text(_join_words(rest), f"what runs on {host}", place=place, stdin=command.stdin)
        else:
            self._shell_text(_input_of(command), f"what is typed on {host}", place=place)

    def _container(self, name: str, command: Command) -> None:
        """docker and kubectl: a command in a container does not run in this session."""
        words, values = command.words, tables().options["container"]
        at = skip_options(words, values)
        if at < len(words) and words[at].text in ("compose", "container"):
            at = skip_options(words, values, at + 1)
        verb = words[at].text if at < len(words) else ""
        if verb != "exec":
            self._add_part(command)
        if verb not in ("exec", "run"):
            return
        target = skip_options(words, values, at + 1)
        inner = target + 1
        if name in ("kubectl", "oc"):
            texts = [word.text for word in words]
            inner = texts.index("--") + 1 if "--" in texts else len(words)
        container = words[target].text if target < len(words) else "?"
        if name == "kubectl" and verb == "run":
            container = "pod"
        if inner < len(words):
            self._inner_command(words[inner:], command, place=f"container {container}")
        elif verb == "exec":
            self.result.add_unseen(f"what is typed in the container {container}")

    def _tmux(self, name: str, command: Command) -> None:
        self._add_part(command)
        words = [word.text for word in command.words]
        if "send-keys" in words or "send" in words:
            at = words.index("send-keys" if "send-keys" in words else "send")
            keys = command.words[skip_options(command.words, frozenset(("-t", "-N")), at + 1) :]
            text = [word for word in keys if word.text not in ("Enter", "C-m", "KPEnter")]
            self._shell_text(_join_words(text), "what is typed in a pane")
            return
        for index, verb in enumerate(words):
            if verb in tables().names.tmux_verbs:
                values = tables().options["tmux"] | ({"-d"} if verb in ("run-shell", "run") else set())
                rest = command.words[skip_options(command.words, values, index + 1) :]
                if rest:
                    self._shell_text(_join_words(rest), "what runs in a pane")
                return

    def _screen(self, name: str, command: Command) -> None:
        self._add_part(command)
        at = skip_options(command.words, tables().options["screen"])
        self._inner_command(command.words[at:], command)

    def _awk(self, name: str, command: Command) -> None:
        """awk can run commands and write files, but most awk programs do neither."""
        at = skip_options(command.words, tables().options["awk"])
        if any(word.text in ("-f", "--file") for word in command.words[:at]):
            self.result.add_unseen("what an awk script does")
        for word in command.words[at : at + 1]:
            if re.search(
                r"\bsystem\s*\(|\|\s*(getline|&?\s*\")|\"\s*\|\s*getline|\|&|@load|/inet/", word.text
            ):
                self.result.add_unseen("what awk runs")
                for line in re.findall(r"system\s*\(\s*\"((?:[^\"\\]|\\.)*)\"", word.text):
                    self._shell_text(Word(line.replace('\\"', '"')), "what awk runs")
        self._add_part(command)

    def _sed(self, name: str, command: Command) -> None:
        for word in command.words[1:]:
            if re.search(
                r"(^|[;{\s\d/$])e(\s+\S|$)|([/|#,!])[gpiIm0-9]*e[gpiIm0-9]*\s*(;|$)", word.text
            ) and (not word.text.startswith(("-", "/"))):
                self.result.add_unseen("what sed runs")
        self._add_part(command)

    def _editor(self, name: str, command: Command) -> None:
        """vim -c '!cmd' and the like."""
        self._add_part(command)
        for index, word in enumerate(command.words[1:], 1):
            text = word.text
            if text in ("-c", "--cmd") and index + 1 < len(command.words):
                text = "+" + command.words[index + 1].text
            if not text.startswith("+"):
                continue
            if match := re.search(r"!\s*(.+)", text):
                self._shell_text(word._replace(text=match[1]), f"what {name} runs")
            elif re.search(r"!|system|term|lua|py|perl|ruby|source|so\b|call|exe", text):
                self.result.add_unseen(f"what {name} runs")

    def _at(self, name: str, command: Command) -> None:
        """at and batch run their standard input, later."""
        self._add_part(command)
        if not any(word.text in ("-l", "-r", "-d", "-c", "-V") for word in command.words[1:]):
            self._shell_input(name, command)


_SHELL_ESCAPE = re.compile(r"(?:\\!|(?:^|\n)\s*\.(?:shell|system)|(?:^|;|\n)\s*system)\s+(.+)")
_GIT_COMMAND_SETTINGS = re.compile(
    r"(?i)(alias\..*|core\.(sshcommand|editor|pager|fsmonitor|askpass|gitproxy)|sequence\.editor|pager\..*"
    r"|.*\.(cmd|command|helper|textconv|driver|process|clean|smudge))$"
)
_USUAL_HELPERS = {
    "rsync": re.compile(r"(/usr/bin/)?ssh\b"),
    "man": re.compile(r"(less|more|cat|most|bat)\b"),
    "tar": re.compile(r"(gzip|pigz|xz|zstd|bzip2|lz4|dot|totals|echo|pbzip2|lzma)\b"),
}
"""Helper programs without an effect of their own."""

_Handler = Callable[[_Inspector, str, Command], None]


@cache
def _handlers() -> dict[str, _Handler]:
    """The function for each program that runs other commands."""
    data = tables()
    return {
        **dict.fromkeys((*data.verbs, *data.programs), _Inspector._wrapper),
        **dict.fromkeys(data.names.interpreters, _Inspector._interpreter),
        **dict.fromkeys(data.names.shells, _Inspector._shell),
        **_OWN_HANDLERS,
    }


_OWN_HANDLERS: dict[str, _Handler] = {
    program: handler
    for programs, handler in (
        ("eval", _Inspector._eval),
        ("git", _Inspector._git),
        ("crontab", _Inspector._cron),
        ("man rsync tar", _Inspector._helper_program),
        ("source .", _Inspector._source),
        ("alias", _Inspector._alias),
        ("trap", _Inspector._trap),
        ("command", _Inspector._command),
        ("su runuser", _Inspector._su),
        ("script", _Inspector._script_program),
        ("flock", _Inspector._flock),
        ("watch", _Inspector._watch),
        ("xargs parallel", _Inspector._xargs),
        ("find fd fdfind", _Inspector._find),
        ("ssh autossh mosh", _Inspector._ssh),
        ("docker podman nerdctl docker-compose kubectl oc", _Inspector._container),
        ("tmux", _Inspector._tmux),
        ("screen", _Inspector._screen),
        ("awk gawk mawk", _Inspector._awk),
        ("sed", _Inspector._sed),
        ("vim vi nvim ex", _Inspector._editor),
        ("at batch", _Inspector._at),
        ("export declare typeset readonly", _Inspector._export),
        ("psql mysql mariadb sqlite3", _Inspector._database),
    )
    for program in programs.split()
}


def _join_words(words: Sequence[Word]) -> Word:
    """Words as one text for a shell."""
    return Word(" ".join(word.text for word in words), any(word.dynamic for word in words), unquoted=False)


def _with_placeholders(words: Sequence[Word]) -> list[Word]:
    """The words of an inner command, in which the wrapper replaces {}."""
    return [word._replace(dynamic=True) if "{}" in word.text else word for word in words]


def _option_value(words: Sequence[Word], option: str) -> Word | None:
    """The value of an option, as the next word or attached to it."""
    attached = f"{option}=" if option.startswith("--") else option
    for index, word in enumerate(words):
        if word.text == option and index + 1 < len(words):
            return words[index + 1]
        if word.text.startswith(attached) and word.text != option:
            return word._replace(text=word.text.removeprefix(attached))
    return None


def _input_of(command: Command) -> Word | None:
    """The text of a command's standard input, if it is in the line."""
    return command.stdin or (_output_of(command.before) if command.piped else None)


def _output_of(command: Command | None) -> Word | None:
    """The output of a command, if it is in its words: `echo`, `printf`, `cat <<EOF`."""
    if command is None or not command.words or command.writes:
        return None
    name, words = program_of(command.words[0].text), command.words[1:]
    dynamic = any(word.dynamic for word in words)
    if name == "cat" and (not words or [word.text for word in words] == ["-"]):
        return _input_of(command)
    if name == "echo":
        while words and re.fullmatch(r"-[neE]+", words[0].text):
            words = words[1:]
        text = " ".join(word.text for word in words)
        return Word(text + "\n", dynamic or "\\" in text, unquoted=False)
    if name == "printf" and words and "%" not in words[0].text:
        text = words[0].text
        return Word(text.replace("\\n", "\n").replace("\\t", "\t"), dynamic or "\\x" in text, unquoted=False)
    if name == "printf" and len(words) == 2 and words[0].text in ("%s", "%s\\n", "%s\n"):
        return words[1]
    return None


def _describe_expansion(text: str) -> str:
    """Names the expansion in a dynamic word."""
    if match := re.search(r"\$\{?[A-Za-z_@*#?!0-9]\w*\}?", text):
        return f"the variable {match[0]}"
    return "what another command prints" if re.search(r"\$\(|`", text) else "in a variable"


_LOCAL = re.compile(
    r"(?i)(localhost|.*\.localhost|localhost\.localdomain|ip6-localhost|127(\.\d+){1,3}|0\.0\.0\.0|::1|\[::1\]|0)$"
)


def is_local(host: str) -> bool:
    """Whether a host is the session itself."""
    return bool(_LOCAL.match(host.strip("[]") if host.startswith("[") else host))
