"""Finds the commands inside other commands: `bash -c`, `sudo`, `xargs`, `find -exec`, `ssh HOST …`,
`python -c`.

A wrapper is a program that runs a command it gets as arguments or as input. Wrappers are removed, layer by
layer, until commands remain that act themselves: the parts of a line, which a policy judges one by one. What
a wrapper runs but cannot be determined (a script file, a variable, the output of a pipe) is listed in
`unseen`. Most wrappers are data (wrappers.toml); those with a syntax of their own have a function here.
Commands of bash itself that run others are in shell_builtins.py, programs that start another one because an
option or a setting says so in starters.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from waypoint.policy import inline, shell_builtins, starters
from waypoint.policy.bash import Command, ParsedLine, Unseen, Word, parse, parse_expansions
from waypoint.policy.tables import tables
from waypoint.policy.words import (
    describe_expansion,
    is_local,
    join_words,
    option_value,
    program_of,
    skip_options,
    with_placeholders,
)

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
    Inspector(result).line(line, None if stdin is None else Word(stdin, unquoted=False))
    return result


def inspect_words(argv: Sequence[str]) -> Inspection:
    """Inspects a program with its arguments, started without a shell."""
    result = Inspection()
    Inspector(result).command(Command(words=[Word(text, unquoted=False) for text in argv]))
    return result


_ADDED_LATER = "\u2026"
"""Stands for words that a wrapper adds when it runs."""


class Inspector:
    """Adds the parts of commands at one place and one depth of wrapping to an inspection."""

    def __init__(self, result: Inspection, depth: int = 0, place: str = "") -> None:
        self.result, self.depth, self.place = result, depth, place
        self.functions: set[str] = set()
        self.variables: list[tuple[str, Word]] = []
        """Variables that the line has set so far."""

    def line(self, text: str, stdin: Word | None = None) -> None:
        self.parsed(parse(text), stdin)

    def parsed(self, parsed: ParsedLine, stdin: Word | None = None) -> None:
        self.functions |= parsed.functions
        for what in parsed.unseen:
            self.result.add_unseen(what)
        for command in parsed.commands:
            if stdin is not None and command.stdin is None and not command.piped:
                command.stdin = stdin
            self.command(command)

    def nested(self, place: str | None = None) -> Inspector | None:
        if self.depth >= _MAX_DEPTH:
            self.result.add_unseen("what is wrapped too deeply")
            return None
        inner = Inspector(self.result, self.depth + 1, self.place if place is None else place)
        inner.functions, inner.variables = self.functions, self.variables
        return inner

    def shell_text(
        self, word: Word | None, what: str, *, place: str | None = None, stdin: Word | None = None
    ) -> None:
        """A text that a shell runs. `what` describes it; `stdin`: the input of its commands."""
        if word is None:
            self.result.add_unseen(what)
            return
        if word.dynamic:
            self.result.add_unseen(f"{what}: it holds {describe_expansion(word.text)}")
        if inner := self.nested(place):
            inner.line(word.text, stdin)

    def inner_command(
        self, words: Sequence[Word], outer: Command | None = None, *, place: str | None = None
    ) -> None:
        """Words that the outer command runs, with its standard input if it passes that on."""
        if words and (inner := self.nested(place)):
            command = Command(list(words))
            if outer:
                command.stdin, command.reads_file = outer.stdin, outer.reads_file
                command.piped, command.before = outer.piped, outer.before
            inner.command(command)

    def add_part(self, command: Command) -> None:
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

    def command_variable(self, name: str, value: Word) -> None:
        """A variable is set: other programs may run its value, or load what it names."""
        names = tables().names
        if name in names.command_variables:
            self.shell_text(value, f"what {name} is set to")
        elif name in names.library_variables and value.text and not shell_builtins.is_tuning(value.text):
            self.result.add_unseen(f"what {name}={value.text} lets programs load")
        elif name in names.prompt_variables:
            self.expansions(value)

    def expansions(self, word: Word) -> None:
        """A text in which bash expands what is in `$(…)`, later or where quotes do not prevent it."""
        if re.search(r"\$\(|`|<\(", word.text) and (inner := self.nested()):
            inner.parsed(parse_expansions(word.text))

    # ---- one command -------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        for name, value in command.assignments:
            self.command_variable(name, value)
        if not command.words:
            self.variables += command.assignments
            for path in command.writes:
                if what := shell_builtins.unknown_file(path):
                    self.result.add_unseen(what)
            self.add_part(command)
            return
        first = command.words[0]
        if first.dynamic:
            self.result.add_unseen(f"the command is {describe_expansion(first.text)}")
            # If its value is known from earlier in the line, that is inspected too: it may be dangerous.
            words = [Word(text, dynamic=True) for text in first.text.split()]
            if words and "$" not in words[0].text and not words[0].text.startswith("`"):
                known = words[0]._replace(dynamic=False)
                self.inner_command([known, *words[1:], *command.words[1:]], command)
            return
        if first.unquoted and re.search(r"[*?\[]", first.text) and first.text not in ("[", "[["):
            self.result.add_unseen(f"which command {first.text} is")
            return
        if command.assignments or command.writes:
            self.add_part(Command([], command.assignments, command.writes))
        for path in command.writes:
            if what := shell_builtins.unknown_file(path):
                self.result.add_unseen(what)
        name = program_of(first.text)
        starters.inspect_options(self, name, command)
        if handler := _handlers().get(name):
            handler(self, name, command)
        else:
            self.add_part(command)

    def wrapper(self, name: str, command: Command) -> None:
        words, at = command.words, 1
        wrapper = tables().programs.get(name)
        if verbs := tables().verbs.get(name):
            verb_at = skip_options(words, tables().options["verbs"])
            if verb_at < len(words) and words[verb_at].text in verbs:
                wrapper, at = verbs[words[verb_at].text], verb_at + 1
        if wrapper is None:
            self.add_part(command)
            return
        start = skip_options(words, wrapper.values, at)
        for option in wrapper.line:
            if line := option_value(words[: start + 1], option):
                self.shell_text(line, f"what {name} {option} is given")
                return
        while wrapper.variables and start < len(words) and re.match(r"[A-Za-z_]\w*=", words[start].text):
            variable, _, text = words[start].text.partition("=")
            value = words[start]._replace(text=text)
            self.command_variable(variable, value)
            self.variables.append((variable, value))
            start += 1
        start += wrapper.arguments
        if start < len(words) and words[start].text == "--":
            start += 1
        rest = list(words[start:])
        if wrapper.versioned and rest:
            rest[0] = rest[0]._replace(text=re.sub(r"(?<=.)@[\w.^~*-]+$", "", rest[0].text))
        if not rest or wrapper.acts_itself:
            self.add_part(command)
        if rest:
            self.inner_command(rest, command)
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
                self.shell_text(rest[0] if rest else None, f"what {name} -c is given")
                return
            if text in ("--help", "--version"):
                self.add_part(command)
                return
            if re.fullmatch(r"-[a-zA-Z]*s", text):
                at = len(words)
                break
            at += 2 if text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
        if at < len(words) and words[at].text not in ("-", "/dev/stdin"):
            self.result.add_unseen(f"what the script {words[at].text} does")
            return
        self.shell_input(name, command)

    def shell_input(self, name: str, command: Command) -> None:
        """A shell that runs its standard input."""
        text = _input_of(command)
        if text is not None:
            self.shell_text(text, f"what {name} reads")
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
            self.add_part(command)
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
                    self.inner_command([module, *words[index + 2 :]], command)
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
                self.add_part(command)
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
            self.result.add_unseen(f"a script for {name} that holds {describe_expansion(code.text)}")
        script = inline.inspect(name, code.text)
        for what in script.unseen:
            self.result.add_unseen(what)
        for line in script.lines:
            self.shell_text(Word(line, unquoted=False), f"what {name} runs")
        for argv in script.programs:
            self.inner_command([Word(text, unquoted=False) for text in argv])
        # The rest of the script acts in the session.
        self.add_part(Command([], [("", code)], []))

    # ---- wrappers with a syntax of their own -------------------------------------------------

    def _cron(self, name: str, command: Command) -> None:
        self.add_part(command)
        if command.stdin or command.piped or command.reads_file or len(command.words) > 1:
            arguments = [word.text for word in command.words[1:]]
            if arguments not in (["-l"], ["-r"], ["-i"]):
                self.result.add_unseen("what cron will run")

    def _su(self, name: str, command: Command) -> None:
        words, texts = command.words, [word.text for word in command.words]
        for index, word in enumerate(words[1:], 1):
            if word.text in ("-c", "--command") and index + 1 < len(words):
                self.shell_text(words[index + 1], f"what {name} -c is given")
                return
            if word.text.startswith("--command="):
                self.shell_text(word._replace(text=word.text.partition("=")[2]), f"what {name} -c is given")
                return
        if "--" in texts:
            self.inner_command(words[texts.index("--") + 1 :], command)
        elif name == "runuser" and len(words) > 3 and words[1].text == "-u":
            self.inner_command(words[3:], command)
        else:
            self.shell_input(name, command)

    def _script_program(self, name: str, command: Command) -> None:
        if any(word.text in ("-c", "--command") for word in command.words):
            self._su(name, command)
        else:
            self.result.add_unseen("what is typed into the shell of script")

    def _flock(self, name: str, command: Command) -> None:
        words = command.words
        at = skip_options(words, tables().options["flock"])
        if at + 1 < len(words) and words[at + 1].text in ("-c", "--command"):
            self.shell_text(words[at + 2] if at + 2 < len(words) else None, "what flock -c is given")
        elif at + 1 < len(words):
            self.inner_command(words[at + 1 :], command)
        else:
            self.add_part(command)

    def _watch(self, name: str, command: Command) -> None:
        """watch joins its words and runs them in a shell."""
        rest = command.words[skip_options(command.words, tables().options["watch"]) :]
        if rest:
            self.shell_text(join_words(rest), f"what {name} is given")
        else:
            self.add_part(command)

    def _xargs(self, name: str, command: Command) -> None:
        at = skip_options(command.words, tables().options[name])
        rest = [word for word in command.words[at:] if word.text not in (":::", "::::")]
        if name == "parallel":
            texts = [word.text for word in command.words]
            own = rest[: texts.index(":::") - at] if ":::" in texts[at:] else rest
            if len(own) <= 1:
                # With one word that is a command line. With none each argument, or line of input, is one.
                for word in own or rest:
                    self.shell_text(word, "what parallel is given")
                if not rest:
                    self.shell_input(name, command)
                return
            rest = own
        if not rest:
            self.add_part(command)
            return
        # The words that it reads are added after these, or replace {}.
        self.inner_command([*with_placeholders(rest), Word(_ADDED_LATER, dynamic=True)])

    def _find(self, name: str, command: Command) -> None:
        self.add_part(command)
        words = command.words
        for index, word in enumerate(words):
            if word.text in tables().names.find_actions:
                rest = words[index + 1 :]
                end = next((at for at, other in enumerate(rest) if other.text in (";", "+")), len(rest))
                self.inner_command(with_placeholders(rest[:end]))

    def _ssh(self, name: str, command: Command) -> None:
        words, values = command.words, tables().options["ssh"]
        at = skip_options(words, values)
        if at >= len(words):
            self.add_part(command)
            return
        host = words[at].text.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]
        place = "" if is_local(host) else f"machine {host}"
        rest = words[skip_options(words, values, at + 1) :]
        given = _input_of(command)
        if place and (command.piped or command.reads_file) and (given is None or given.dynamic):
            self.add_part(command)  # what is not in the line goes to the other machine, whatever runs there
        if any(word.text in ("-N", "-f", "-fN", "-NT") for word in words[:at]) or name == "autossh":
            self.add_part(command)
        elif rest:
            self.shell_text(join_words(rest), f"what runs on {host}", place=place, stdin=command.stdin)
        else:
            self.shell_text(_input_of(command), f"what is typed on {host}", place=place)

    def _container(self, name: str, command: Command) -> None:
        """docker and kubectl: a command in a container does not run in this session."""
        words, values = command.words, tables().options["container"]
        at = skip_options(words, values)
        if at < len(words) and words[at].text in ("compose", "container"):
            at = skip_options(words, values, at + 1)
        verb = words[at].text if at < len(words) else ""
        if verb != "exec":
            self.add_part(command)
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
            self.inner_command(words[inner:], command, place=f"container {container}")
        elif verb == "exec":
            self.result.add_unseen(f"what is typed in the container {container}")

    def _tmux(self, name: str, command: Command) -> None:
        self.add_part(command)
        words = [word.text for word in command.words]
        if "send-keys" in words or "send" in words:
            at = words.index("send-keys" if "send-keys" in words else "send")
            keys = command.words[skip_options(command.words, frozenset(("-t", "-N")), at + 1) :]
            text = [word for word in keys if word.text not in ("Enter", "C-m", "KPEnter")]
            self.shell_text(join_words(text), "what is typed in a pane")
            return
        for index, verb in enumerate(words):
            if verb in tables().names.tmux_verbs:
                values = tables().options["tmux"] | ({"-d"} if verb in ("run-shell", "run") else set())
                rest = command.words[skip_options(command.words, values, index + 1) :]
                if rest:
                    self.shell_text(join_words(rest), "what runs in a pane")
                return

    def _screen(self, name: str, command: Command) -> None:
        self.add_part(command)
        # `-dmS name`: the last of several letters may take a value.
        words = [word for word in command.words if not re.fullmatch(r"-[dmDRrxUAaqwO]{2,}", word.text)]
        words = [
            word._replace(text=f"-{word.text[-1]}")
            if re.fullmatch(r"-[a-zA-Z]+[SsctTehpX]", word.text)
            else word
            for word in words
        ]
        at = skip_options(words, tables().options["screen"])
        self.inner_command(words[at:], command)

    def _at(self, name: str, command: Command) -> None:
        """at and batch run their standard input, later."""
        self.add_part(command)
        if not any(word.text in ("-l", "-r", "-d", "-c", "-V") for word in command.words[1:]):
            self.shell_input(name, command)


_Handler = Callable[[Inspector, str, Command], None]


@cache
def _handlers() -> dict[str, _Handler]:
    """The function for each program that runs other commands."""
    data = tables()
    return {
        **dict.fromkeys((*data.verbs, *data.programs), Inspector.wrapper),
        **dict.fromkeys(data.names.interpreters, Inspector._interpreter),
        **dict.fromkeys(data.names.shells, Inspector._shell),
        **_OWN_HANDLERS,
    }


_OWN_HANDLERS: dict[str, _Handler] = {
    program: handler
    for programs, handler in (
        ("eval", shell_builtins.inspect_eval),
        ("git", starters.inspect_git),
        ("crontab", Inspector._cron),
        ("source .", shell_builtins.inspect_source),
        ("alias", shell_builtins.inspect_alias),
        ("trap", shell_builtins.inspect_trap),
        ("command", shell_builtins.inspect_command),
        ("hash", shell_builtins.inspect_hash),
        ("mapfile readarray", shell_builtins.inspect_mapfile),
        ("bind", shell_builtins.inspect_bind),
        ("complete compgen", shell_builtins.inspect_complete),
        ("enable", shell_builtins.inspect_enable),
        ("fc", shell_builtins.inspect_fc),
        ("jobs", shell_builtins.inspect_jobs),
        ("let printf read unset test [ wait getopts local", shell_builtins.inspect_subscripts),
        ("su runuser", Inspector._su),
        ("script", Inspector._script_program),
        ("flock", Inspector._flock),
        ("watch", Inspector._watch),
        ("xargs parallel", Inspector._xargs),
        ("find fd fdfind", Inspector._find),
        ("ssh autossh mosh", Inspector._ssh),
        ("docker podman nerdctl docker-compose kubectl oc", Inspector._container),
        ("tmux", Inspector._tmux),
        ("screen", Inspector._screen),
        ("awk gawk mawk", starters.inspect_awk),
        ("sed", starters.inspect_sed),
        ("vim vi nvim ex view gvim", starters.inspect_vim),
        ("ed red", starters.inspect_ed),
        ("less more most", starters.inspect_pager),
        ("gdb lldb", starters.inspect_debugger),
        ("socat", starters.inspect_socat),
        ("strace ltrace", starters.inspect_strace),
        ("apt apt-get aptitude", starters.inspect_apt),
        ("ip", starters.inspect_ip),
        ("hyperfine", starters.inspect_hyperfine),
        ("expect", starters.inspect_expect),
        ("cmake", starters.inspect_cmake),
        ("dc", starters.inspect_dc),
        ("nix nix-shell", starters.inspect_nix),
        (starters.TERMINALS, starters.inspect_terminal),
        ("at batch", Inspector._at),
        ("export declare typeset readonly", shell_builtins.inspect_export),
        ("psql mysql mariadb sqlite3 duckdb", starters.inspect_database),
    )
    for program in programs.split()
}


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
