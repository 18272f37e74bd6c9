"""Finds the commands that are hidden in others: `bash -c`, `sudo`, `xargs`, `find -exec`, `ssh HOST …`,
`python -c`.

A wrapper is a program that runs what it is given. Each is looked through until commands are left that do
something themselves; those are the parts of a line, and a policy judges them one by one. A wrapper whose
contents cannot be seen (a script file, a variable, what comes through a pipe) is named in `unseen`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waypoint.policy import inline as scripts
from waypoint.policy.bash import Reading, Simple, Word, read

_MOST_DEPTH = 12
_MOST_PARTS = 500


class Part(NamedTuple):
    """One command that does something itself."""

    words: tuple[Word, ...]
    """None when there are only variables and redirections."""
    place: str = ""
    """Where it runs, when not in the session: `machine web1`, `container db`."""
    stdin: Word | None = None
    writes: tuple[Word, ...] = ()
    sets: tuple[tuple[str, Word], ...] = ()
    """Variables that are set for it, in the same line too."""
    fed: bool = False
    """Whether it is given something to read, be it seen or not."""
    shadowed: bool = False
    """Whether the line has a function of that name: what that does has been read where it is defined, but
    whether it is defined by then only the shell knows."""

    @property
    def program(self) -> str:
        return program_of(self.words[0].text) if self.words else ""


class Inspection:
    """What a line may do, and what of it cannot be seen."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.unseen: list[str] = []

    def cannot_see(self, why: str) -> None:
        if why not in self.unseen and len(self.unseen) < 20:
            self.unseen.append(why)


def inspect(line: str, stdin: str | None = None) -> Inspection:
    """A line that a shell will be given, and what it is given to read."""
    found = Inspection()
    _Inspector(found).line(line, None if stdin is None else Word(stdin, bare=False))
    return found


def inspect_words(argv: Sequence[str]) -> Inspection:
    """A program with its arguments, started without a shell."""
    found = Inspection()
    _Inspector(found).simple(Simple(words=[Word(text, bare=False) for text in argv]))
    return found


_BIN = re.compile(r"(?:^|/)\.?s?bin/[^/]+$")


def program_of(text: str) -> str:
    """The name by which a program is known; a path that is not one of programs is a name of its own."""
    if "/" in text and not _BIN.search(text):
        return text
    name = posixpath.basename(text)
    if found := re.fullmatch(r"(python|pip|pypy|perl|ruby|node|php|lua)\d[\d.]*", name):
        return "python" if found[1] == "pypy" else found[1]
    return name


# ---- options -------------------------------------------------------------------------------------


def skip_options(words: Sequence[Word], values: frozenset[str], at: int = 1) -> int:
    """Where the options end. `values`: those whose value may be a word of its own."""
    while at < len(words):
        text = words[at].text
        if text == "--":
            return at + 1
        if not text.startswith("-") or text == "-":
            return at
        # `-u root`, but `-uroot` and `--user=root` are one word.
        at += 2 if text in values else 1
    return at


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


class _Wrapper(NamedTuple):
    """A program that runs the words it is given after its options."""

    values: frozenset[str] = frozenset()
    arguments: int = 0
    """How many words of its own come before the command."""
    variables: bool = False
    """Whether `NAME=value` may come before the command."""
    itself: bool = False
    """Whether it does something besides."""


_WRAPPERS: dict[str, _Wrapper] = {
    "sudo": _Wrapper(_set("-u -g -h -p -C -r -t -T -U -D -R --user --group --host --chdir"), variables=True),
    "doas": _Wrapper(_set("-u -C")),
    "env": _Wrapper(_set("-u -C --unset --chdir"), variables=True),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "nice": _Wrapper(_set("-n --adjustment")),
    "ionice": _Wrapper(_set("-c -n -p --class --classdata")),
    "chrt": _Wrapper(_set("-T -P -D"), arguments=1),
    "taskset": _Wrapper(arguments=1),
    "numactl": _Wrapper(_set("-C -N -m")),
    "stdbuf": _Wrapper(_set("-i -o -e --input --output --error")),
    "timeout": _Wrapper(_set("-s -k --signal --kill-after"), arguments=1),
    "time": _Wrapper(_set("-f -o --format --output")),
    "exec": _Wrapper(_set("-a")),
    "builtin": _Wrapper(),
    "unbuffer": _Wrapper(),
    "catchsegv": _Wrapper(),
    "strace": _Wrapper(_set("-o -e -p -s -a -E -u -P -S -I -O -b")),
    "ltrace": _Wrapper(_set("-o -e -p -s -a -u -n -l -x")),
    "valgrind": _Wrapper(),
    "chroot": _Wrapper(arguments=1),
    "fakeroot": _Wrapper(),
    "firejail": _Wrapper(),
    "proxychains": _Wrapper(_set("-f")),
    "proxychains4": _Wrapper(_set("-f")),
    "torsocks": _Wrapper(),
    "tsocks": _Wrapper(),
    "caffeinate": _Wrapper(_set("-t -w")),
    "systemd-run": _Wrapper(_set("-u -p -E --unit --property --setenv --slice")),
    "systemd-inhibit": _Wrapper(),
    "dbus-run-session": _Wrapper(),
    "xvfb-run": _Wrapper(_set("-s -n -e -f --server-args")),
    "dumb-init": _Wrapper(),
    "tini": _Wrapper(),
    "gosu": _Wrapper(arguments=1),
    "su-exec": _Wrapper(arguments=1),
    "setpriv": _Wrapper(),
    "nsenter": _Wrapper(_set("-t -S -G")),
    "unshare": _Wrapper(),
    "retry": _Wrapper(_set("-t -d")),
    "chronic": _Wrapper(),
    "ts": _Wrapper(),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "entr": _Wrapper(),
    "watchexec": _Wrapper(_set("-w -e -i -f --exts --watch --ignore")),
    "nodemon": _Wrapper(_set("-w -e -i --watch --ext --ignore"), itself=True),
    "dotenv": _Wrapper(_set("-f -e -c --file")),
    "npx": _Wrapper(_set("-p --package -c --call")),
    "bunx": _Wrapper(_set("-p --package")),
    "uvx": _Wrapper(_set("--from --with -p --python")),
    "pipx": _Wrapper(_set("--spec --python")),
}
"""`sudo`, `env` and their like. What they add or take away is not what a policy asks about."""

_RUN_WRAPPERS: dict[tuple[str, str], _Wrapper] = {
    ("poetry", "run"): _Wrapper(),
    ("pdm", "run"): _Wrapper(),
    ("pipenv", "run"): _Wrapper(),
    ("rye", "run"): _Wrapper(),
    ("hatch", "run"): _Wrapper(),
    ("uv", "run"): _Wrapper(
        _set("--with --python -p --group --extra --env-file --package --directory --project")
    ),
    ("conda", "run"): _Wrapper(_set("-n -p --name --prefix --cwd")),
    ("bundle", "exec"): _Wrapper(),
    ("pnpm", "exec"): _Wrapper(),
    ("pnpm", "dlx"): _Wrapper(),
    ("yarn", "exec"): _Wrapper(),
    ("yarn", "dlx"): _Wrapper(),
    ("npm", "exec"): _Wrapper(_set("-p --package -c --call")),
    ("npm", "x"): _Wrapper(_set("-p --package -c --call")),
    ("bun", "x"): _Wrapper(),
    ("uv", "tool"): _Wrapper(_set("--from --with"), arguments=1),
    ("pipx", "run"): _Wrapper(_set("--spec --python")),
    ("op", "run"): _Wrapper(_set("--env-file --account")),
    ("doppler", "run"): _Wrapper(_set("-p -c --project --config --command")),
    ("aws-vault", "exec"): _Wrapper(_set("-d --duration --region"), arguments=1),
    ("direnv", "exec"): _Wrapper(arguments=1),
    ("mise", "exec"): _Wrapper(),
    ("asdf", "exec"): _Wrapper(),
    ("dotenv", "run"): _Wrapper(),
    ("dotenvx", "run"): _Wrapper(_set("-f -e")),
    ("sem", "exec"): _Wrapper(),
}
"""Programs of which one verb runs a command."""

_RUNNERS = frozenset(name for name, _ in _RUN_WRAPPERS)
_RUNNER_VALUES = _set(
    "-C -f -e -n -p --directory --cwd --project --env-file --filter --prefix --profile --registry"
)

_SHELLS = _set("bash sh dash zsh ksh mksh ash rbash fish busybox-sh")
_INTERPRETERS = _set("python perl ruby node php lua deno bun osascript Rscript tclsh")
_MODULES = _set(
    "pip venv http.server json.tool pytest unittest twine build compileall timeit zipfile tarfile black "
    "ruff mypy isort flake8 pylint flit poetry ensurepip py_compile this calendar platform site sysconfig "
    "base64 gzip pdb cProfile trace uv hatch pipx coverage"
)
"""Modules that `python -m` runs and that are judged by their own name."""
_COMMAND_VARIABLES = _set(
    "PROMPT_COMMAND BASH_ENV ENV GIT_SSH_COMMAND GIT_SSH GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER "
    "GIT_ASKPASS GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND PAGER EDITOR VISUAL MANPAGER LESSOPEN SSH_ASKPASS "
    "SUDO_ASKPASS BROWSER RSYNC_RSH CVS_RSH FCEDIT"
)
"""Variables whose value another program runs."""
_SSH_VALUES = _set("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w")
_XARGS_VALUES = _set(
    "-a -d -E -e -I -i -L -l -n -P -s --arg-file --delimiter --replace --max-lines --max-args --max-procs "
    "--max-chars"
)
_PARALLEL_VALUES = _set(
    "-j -a -I -N -n -L -S -C --jobs --arg-file --colsep --delay --timeout --retries --joblog --sshlogin"
)
_CONTAINER_VALUES = _set(
    "-e -u -w -v -p -l -h -m -c -a --env --user --workdir --name --volume --publish --network --net "
    "--mount --label --entrypoint --env-file --platform --memory --cpus --gpus --hostname --add-host "
    "--restart --ulimit --device --cap-add --cap-drop --security-opt --tmpfs --log-driver --pid --ipc "
    "--index --pull --runtime --shm-size --dns --link --expose --health-cmd --stop-signal --detach-keys "
    "-n --namespace --container --context -f --file --project-name --profile --project-directory "
    "--kubeconfig -s --server --cluster"
)
_LATER = "\u2026"
"""Stands for words that a wrapper adds when it runs."""


class _Inspector:
    def __init__(self, found: Inspection, depth: int = 0, place: str = "") -> None:
        self.found, self.depth, self.place = found, depth, place
        self.functions: set[str] = set()
        self.variables: list[tuple[str, Word]] = []
        """What the line has set so far, and exported."""

    def line(self, text: str, stdin: Word | None = None) -> None:
        reading = read(text)
        self.functions |= reading.functions
        for why in reading.unseen:
            self.found.cannot_see(why)
        for command in reading.commands:
            if stdin is not None and command.stdin is None and not command.piped:
                command.stdin = stdin
            self.simple(command)

    def deeper(self, place: str | None = None) -> _Inspector | None:
        if self.depth >= _MOST_DEPTH:
            self.found.cannot_see("what is wrapped too deep")
            return None
        inner = _Inspector(self.found, self.depth + 1, self.place if place is None else place)
        inner.functions, inner.variables = self.functions, self.variables
        return inner

    def _text(
        self, word: Word | None, what: str, *, place: str | None = None, stdin: Word | None = None
    ) -> None:
        """A text that a shell will run. `stdin`: what it is given to read."""
        if word is None:
            self.found.cannot_see(what)
            return
        if word.open:
            self.found.cannot_see(f"{what}: it holds {_expansion_in(word.text)}")
        if inner := self.deeper(place):
            inner.line(word.text, stdin)

    def _words(self, words: Sequence[Word], like: Simple, *, place: str | None = None) -> None:
        """Words that another program will run."""
        if words and (inner := self.deeper(place)):
            inner.simple(Simple(list(words), [], [], like.stdin, like.reads, like.piped, like.before))

    def _part(self, simple: Simple, words: Sequence[Word] | None = None) -> None:
        if len(self.found.parts) >= _MOST_PARTS:
            self.found.cannot_see(f"all after the first {_MOST_PARTS} commands")
            return
        stdin = simple.stdin or (_printed(simple.before) if simple.piped else None)
        chosen = tuple(simple.words if words is None else words)
        sets = (*self.variables, *simple.sets) if chosen else tuple(simple.sets)
        fed = stdin is not None or simple.piped or simple.reads
        shadowed = bool(chosen) and chosen[0].text in self.functions
        self.found.parts.append(Part(chosen, self.place, stdin, tuple(simple.writes), sets, fed, shadowed))

    # ---- one command -------------------------------------------------------------------------

    def simple(self, command: Simple) -> None:
        for name, value in command.sets:
            if name in _COMMAND_VARIABLES:
                self._text(value, f"what {name} is set to")
        if not command.words:
            self.variables += command.sets
            self._part(command)
            return
        first = command.words[0]
        if first.open:
            self.found.cannot_see(f"the command is {_expansion_in(first.text)}")
            # Where its value can be guessed it is looked at all the same: it may be worse than unknown.
            guessed = [Word(text, open=True) for text in first.text.split()]
            if guessed and not guessed[0].text.startswith(("$", "`")) and "$" not in guessed[0].text:
                self._words([guessed[0]._replace(open=False), *guessed[1:], *command.words[1:]], command)
            return
        if first.bare and re.search(r"[*?\[]", first.text) and first.text not in ("[", "[["):
            self.found.cannot_see(f"which command {first.text} is")
            return
        if command.sets or command.writes:
            self._part(Simple([], command.sets, command.writes))
        name = program_of(first.text)
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, name, command)
        elif name in _SHELLS:
            self._shell(name, command)
        elif name in _INTERPRETERS:
            self._interpreter(name, command)
        elif (at := _verb_at(name, command.words)) and (
            run := _RUN_WRAPPERS.get((name, command.words[at].text))
        ):
            self._wrapped(run, command, at=at + 1)
        elif wrapper := _WRAPPERS.get(name):
            self._wrapped(wrapper, command)
        else:
            self._part(command)

    def _wrapped(self, wrapper: _Wrapper, command: Simple, at: int = 1) -> None:
        words = command.words
        name = program_of(words[0].text)
        if name == "env":
            for index, word in enumerate(words[1:], 1):
                if word.text in ("-S", "--split-string") and index + 1 < len(words):
                    self._text(words[index + 1], "what env -S is given")
                    return
                if word.text.startswith(("-S", "--split-string=")):
                    split = word.text.partition("=")[2] if word.text.startswith("--") else word.text[2:]
                    self._text(word._replace(text=split), "what env -S is given")
                    return
        for index, word in enumerate(words[1:-1], 1):
            if name in ("npx", "npm") and word.text in ("-c", "--call"):
                self._text(words[index + 1], f"what {name} -c is given")
                return
        start = skip_options(words, wrapper.values, at)
        while wrapper.variables and start < len(words) and re.match(r"[A-Za-z_]\w*=", words[start].text):
            variable, _, value = words[start].text.partition("=")
            if variable in _COMMAND_VARIABLES:
                self._text(words[start]._replace(text=value), f"what {variable} is set to")
            self.variables.append((variable, words[start]._replace(text=value)))
            start += 1
        start += wrapper.arguments
        if start < len(words) and words[start].text == "--":
            start += 1
        rest = list(words[start:])
        if name in ("npx", "bunx", "uvx", "pipx") and rest:
            # `npx vercel@latest`: the package of a version is the program.
            rest = [rest[0]._replace(text=re.sub(r"(?<=.)@[\w.^~*-]+$", "", rest[0].text)), *rest[1:]]
        if not rest or wrapper.itself:
            self._part(command)
        if rest:
            self._words(rest, command)
        elif any(word.text in ("-s", "-i", "--shell", "--login") for word in words[1:]):
            self.found.cannot_see(f"what is typed into the shell of {name}")

    # ---- shells and interpreters -------------------------------------------------------------

    def _shell(self, name: str, command: Simple) -> None:
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
                self._text(rest[0] if rest else None, f"what {name} -c is given")
                return
            if text in ("--help", "--version"):
                self._part(command)
                return
            if re.fullmatch(r"-[a-zA-Z]*s", text):
                at = len(words)
                break
            at += 2 if text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
        if at < len(words) and words[at].text not in ("-", "/dev/stdin"):
            script = words[at].text
            self.found.cannot_see(f"what the script {script} does")
            return
        self._fed(name, command)

    def _fed(self, name: str, command: Simple) -> None:
        """A shell that runs what it reads."""
        given = command.stdin or (_printed(command.before) if command.piped else None)
        if given is not None:
            self._text(given, f"what {name} reads")
        elif command.piped and command.before is not None and command.before.words:
            self.found.cannot_see(f"what {program_of(command.before.words[0].text)} hands to {name}")
        else:
            self.found.cannot_see(f"what {name} reads")

    def _interpreter(self, name: str, command: Simple) -> None:
        words = command.words
        if (
            name in ("deno", "bun")
            and len(words) > 1
            and words[1].text != "eval"
            and not words[1].text.startswith("-")
        ):
            self._part(command)
            return
        for index, word in enumerate(words[1:], 1):
            text = word.text
            if (
                name == "python"
                and (text == "-m" or re.fullmatch(r"-[a-zA-Z]*m", text))
                and index + 1 < len(words)
            ):
                module = words[index + 1]
                if module.text in _MODULES:
                    self._words([module, *words[index + 2 :]], command)
                else:
                    self.found.cannot_see(f"what the module {module.text} does")
                return
            inline = scripts.INLINE[name].fullmatch(text) if name in scripts.INLINE else None
            if inline:
                own = text[inline.end(1) :] if inline.lastindex else ""
                code = (
                    word._replace(text=own) if own else words[index + 1] if index + 1 < len(words) else None
                )
                self._script(name, code)
                return
            if text in ("--version", "-V", "-v", "--help", "-h") and len(words) == 2:
                self._part(command)
                return
            if name != "python" and re.match(r"-[mMrR]\w|--(require|import|loader)|-r$", text):
                self.found.cannot_see(f"what {name} loads with {text}")
            if not text.startswith("-"):
                self.found.cannot_see(f"what the script {text} does")
                return
            if text == "-":
                break
        given = command.stdin or (_printed(command.before) if command.piped else None)
        self._script(name, given)

    def _script(self, name: str, code: Word | None) -> None:
        if code is None:
            self.found.cannot_see(f"what {name} reads")
            return
        if code.open:
            self.found.cannot_see(f"a script for {name} that holds {_expansion_in(code.text)}")
        seen = scripts.look(name, code.text)
        for why in seen.unseen:
            self.found.cannot_see(why)
        for line in seen.lines:
            self._text(Word(line, bare=False), f"what {name} runs")
        for argv in seen.programs:
            self._words([Word(text, bare=False) for text in argv], Simple())
        # What is left of it happens in the session.
        self._part(Simple([], [("", code)], []))

    # ---- those that need a look of their own ---------------------------------------------------

    def _eval(self, _: str, command: Simple) -> None:
        words = command.words[1:]
        text = " ".join(word.text for word in words)
        self._text(Word(text, any(word.open for word in words)), "what eval is given")

    def _export(self, name: str, command: Simple) -> None:
        self._part(command)
        for word in command.words[1:]:
            variable, equals, value = word.text.partition("=")
            if equals:
                self.variables.append((variable, word._replace(text=value)))
                if variable in _COMMAND_VARIABLES:
                    self._text(word._replace(text=value), f"what {variable} is set to")

    def _database(self, name: str, command: Simple) -> None:
        """Their command lines have a way out to the shell."""
        self._part(command)
        texts = [*command.words[1:], *([command.stdin] if command.stdin else [])]
        for word in texts:
            for found in _SHELL_OUT.finditer(word.text):
                self._text(word._replace(text=found[1]), f"what {name} hands to the shell")

    def _cron(self, name: str, command: Simple) -> None:
        self._part(command)
        if command.stdin or command.piped or command.reads or len(command.words) > 1:
            given = [word.text for word in command.words[1:]]
            if given not in (["-l"], ["-r"], ["-i"]):
                self.found.cannot_see("what cron will run")

    def _git(self, name: str, command: Simple) -> None:
        """git runs what its settings say, and a few of its verbs run what they are given."""
        words = command.words
        for index, word in enumerate(words[:-1]):
            key, _, value = words[index + 1].text.partition("=")
            if word.text == "-c" and _GIT_RUNS.match(key):
                self._text(words[index + 1]._replace(text=value.lstrip("!")), f"what {key} runs")
            elif word.text in ("--exec", "-x") and any(one.text == "rebase" for one in words):
                self._text(words[index + 1], "what git rebase runs")
            elif word.text == "run" and words[index - 1].text == "bisect":
                self._words(words[index + 1 :], Simple())
            elif word.text == "foreach" and words[index - 1].text == "submodule":
                rest = words[skip_options(words, frozenset(), index + 1) :]
                joined = Word(" ".join(one.text for one in rest), any(one.open for one in rest))
                self._text(joined, "what git submodule runs")
            elif re.match(r"--[a-z-]+-filter$", word.text):
                self._text(words[index + 1], "what git filter-branch runs")
        self._part(command)

    def _carrier(self, name: str, command: Simple) -> None:
        """Programs that start the one an option names."""
        for index, word in enumerate(command.words[1:], 1):
            text = word.text
            if text in ("-e", "--rsh", "-I", "--use-compress-program", "--to-command", "-P"):
                text = f"={command.words[index + 1].text}" if index + 1 < len(command.words) else ""
            elif not re.match(r"--(rsh|use-compress-program|to-command|checkpoint-action|pager)=", text):
                continue
            value = text.partition("=")[2].removeprefix("exec=")
            if value and _CARRIED[name].match(value) is None:
                self._text(word._replace(text=value), f"what {name} starts")
        self._part(command)

    def _source(self, name: str, command: Simple) -> None:
        target = command.words[1] if len(command.words) > 1 else None
        if target and re.search(r"(^|/)bin/activate(\.\w+)?$", target.text):
            self._part(command)
        else:
            self.found.cannot_see(f"what the script {target.text if target else '?'} does")

    def _alias(self, name: str, command: Simple) -> None:
        self._part(command)
        for word in command.words[1:]:
            _, equals, value = word.text.partition("=")
            if equals:
                self._text(word._replace(text=value), "what an alias stands for")

    def _trap(self, name: str, command: Simple) -> None:
        self._part(command)
        given = [word for word in command.words[1:] if not word.text.startswith("-")]
        if len(given) > 1 and given[0].text:
            self._text(given[0], "what a trap runs")

    def _command(self, name: str, command: Simple) -> None:
        if len(command.words) > 1 and command.words[1].text in ("-v", "-V"):
            self._part(command)
        else:
            self._words(command.words[skip_options(command.words, frozenset()) :], command)

    def _su(self, name: str, command: Simple) -> None:
        words = command.words
        for index, word in enumerate(words[1:], 1):
            if word.text in ("-c", "--command") and index + 1 < len(words):
                self._text(words[index + 1], f"what {name} -c is given")
                return
            if word.text.startswith("--command="):
                self._text(word._replace(text=word.text.partition("=")[2]), f"what {name} -c is given")
                return
        if "--" in [word.text for word in words]:
            at = [word.text for word in words].index("--")
            self._words(words[at + 1 :], command)
        elif name == "runuser" and len(words) > 3 and words[1].text == "-u":
            self._words(words[3:], command)
        else:
            self._fed(name, command)

    def _script_program(self, name: str, command: Simple) -> None:
        if any(word.text in ("-c", "--command") for word in command.words):
            self._su(name, command)
        else:
            self.found.cannot_see("what is typed into the shell of script")

    def _flock(self, name: str, command: Simple) -> None:
        words = command.words
        at = skip_options(words, _set("-w -E --timeout --conflict-exit-code"))
        if at + 1 < len(words) and words[at + 1].text in ("-c", "--command"):
            self._text(words[at + 2] if at + 2 < len(words) else None, "what flock -c is given")
        elif at + 1 < len(words):
            self._words(words[at + 1 :], command)
        else:
            self._part(command)

    def _joined(self, name: str, command: Simple) -> None:
        """watch and its like hand the joined words to a shell."""
        at = skip_options(command.words, _set("-n --interval -d -q --equexit"))
        rest = command.words[at:]
        if rest:
            text = Word(" ".join(word.text for word in rest), any(word.open for word in rest), bare=False)
            self._text(text, f"what {name} is given")
        else:
            self._part(command)

    def _xargs(self, name: str, command: Simple) -> None:
        at = skip_options(command.words, _XARGS_VALUES if name == "xargs" else _PARALLEL_VALUES)
        rest = [word for word in command.words[at:] if word.text not in (":::", "::::")]
        if name == "parallel":
            texts = [word.text for word in command.words]
            own = rest[: texts.index(":::") - at] if ":::" in texts[at:] else rest
            if len(own) == 1 or not own:
                # One word, or none at all: each line that it reads is a command line of its own.
                if own:
                    self._text(own[0], "what parallel is given")
                else:
                    for word in command.words[at:]:
                        if word.text not in (":::", "::::"):
                            self._text(word, "what parallel is given")
                    if not rest:
                        self._fed(name, command)
                return
            rest = own
        if not rest:
            self._part(command)
            return
        # What it reads comes as words behind these, or in place of {}.
        self._words(
            [
                *(word if "{}" not in word.text else word._replace(open=True) for word in rest),
                Word(_LATER, open=True),
            ],
            Simple(),
        )

    def _find(self, name: str, command: Simple) -> None:
        self._part(command)
        words, runs = command.words, _set("-exec -execdir -ok -okdir -x -X --exec --exec-batch")
        for index, word in enumerate(words):
            if word.text in runs:
                inner = []
                for one in words[index + 1 :]:
                    if one.text in (";", "+"):
                        break
                    inner.append(one._replace(open=True) if "{}" in one.text else one)
                self._words(inner, Simple())

    def _ssh(self, name: str, command: Simple) -> None:
        words = command.words
        at = skip_options(words, _SSH_VALUES)
        for index, word in enumerate(words[:at]):
            option = (
                words[index + 1].text
                if word.text == "-o" and index + 1 < at
                else word.text.removeprefix("-o")
            )
            if re.match(r"(?i)(proxy|local)command[ =]", option):
                self._text(Word(option.partition("=")[2], word.open), "what ssh starts")
        if at >= len(words):
            self._part(command)
            return
        host = words[at].text.removeprefix("ssh://").rpartition("@")[2].partition("/")[0]
        place = "" if is_local(host) else f"machine {host}"
        rest = words[skip_options(words, _SSH_VALUES, at + 1) :]
        if any(word.text in ("-N", "-f", "-fN", "-NT") for word in words[:at]) or name == "autossh":
            self._part(command)
        elif rest:
            text = Word(" ".join(word.text for word in rest), any(word.open for word in rest), bare=False)
            self._text(text, f"what runs on {host}", place=place, stdin=command.stdin)
        else:
            given = command.stdin or (_printed(command.before) if command.piped else None)
            self._text(given, f"what is typed on {host}", place=place)

    def _container(self, name: str, command: Simple) -> None:
        """docker and kubectl: what runs in a container is not in this session."""
        words = command.words
        at = skip_options(words, _CONTAINER_VALUES)
        verbs = [word.text for word in words[at : at + 2]]
        if verbs[:1] in (["compose"], ["container"]):
            at = skip_options(words, _CONTAINER_VALUES, at + 1)
            verbs = [word.text for word in words[at : at + 1]]
        verb = verbs[0] if verbs else ""
        if verb == "run" or verb not in ("exec", "run"):
            self._part(command)
        if verb not in ("exec", "run"):
            return
        target = skip_options(words, _CONTAINER_VALUES, at + 1)
        inner = target + 1
        if name in ("kubectl", "oc"):
            texts = [word.text for word in words]
            inner = texts.index("--") + 1 if "--" in texts else len(words)
        what = words[target].text if target < len(words) else "?"
        if name == "kubectl" and verb == "run":
            what = "pod"
        if inner < len(words):
            self._words(words[inner:], command, place=f"container {what}")
        elif verb == "exec":
            self.found.cannot_see(f"what is typed in the container {what}")

    def _tmux(self, name: str, command: Simple) -> None:
        self._part(command)
        words = [word.text for word in command.words]
        if "send-keys" in words or "send" in words:
            at = words.index("send-keys" if "send-keys" in words else "send")
            keys = command.words[skip_options(command.words, _set("-t -N"), at + 1) :]
            typed = " ".join(word.text for word in keys if word.text not in ("Enter", "C-m", "KPEnter"))
            self._text(Word(typed, any(word.open for word in keys)), "what is typed in a pane")
            return
        verbs = _set(
            "new-session new new-window neww split-window splitw respawn-pane run-shell run if-shell popup"
        )
        for index, text in enumerate(words):
            if text in verbs:
                values = _set(
                    "-t -s -n -c -e -x -y -F -l -p -d"
                    if text in ("run-shell", "run")
                    else "-t -s -n -c -e -x -y -F -l -p"
                )
                rest = command.words[skip_options(command.words, values, index + 1) :]
                if rest:
                    joined = Word(" ".join(word.text for word in rest), any(word.open for word in rest))
                    self._text(joined, "what runs in a pane")
                return

    def _screen(self, name: str, command: Simple) -> None:
        at = skip_options(command.words, _set("-S -t -c -s -T -e -h -p -X -L"))
        self._part(command)
        self._words(command.words[at:], command)

    def _awk(self, name: str, command: Simple) -> None:
        """awk can run commands and write files; most of the time it does neither."""
        at = skip_options(command.words, _set("-F -v -f --field-separator --assign --file"))
        programs = command.words[at : at + 1]
        if any(word.text in ("-f", "--file") for word in command.words[:at]):
            self.found.cannot_see("what an awk script does")
        for word in programs:
            if re.search(
                r"\bsystem\s*\(|\|\s*(getline|&?\s*\")|\"\s*\|\s*getline|\|&|@load|/inet/", word.text
            ):
                self.found.cannot_see("what awk runs")
                for hidden in re.findall(r"system\s*\(\s*\"((?:[^\"\\]|\\.)*)\"", word.text):
                    self._text(Word(hidden.replace('\\"', '"')), "what awk runs")
        self._part(command)

    def _sed(self, name: str, command: Simple) -> None:
        for word in command.words[1:]:
            if re.search(
                r"(^|[;{\s\d/$])e(\s+\S|$)|([/|#,!])[gpiIm0-9]*e[gpiIm0-9]*\s*(;|$)", word.text
            ) and (not word.text.startswith(("-", "/"))):
                self.found.cannot_see("what sed runs")
        self._part(command)

    def _editor(self, name: str, command: Simple) -> None:
        """vim -c '!cmd' and the like."""
        self._part(command)
        for index, word in enumerate(command.words[1:], 1):
            text = word.text
            if text in ("-c", "--cmd") and index + 1 < len(command.words):
                text = "+" + command.words[index + 1].text
            if not text.startswith("+"):
                continue
            if found := re.search(r"!\s*(.+)", text):
                self._text(word._replace(text=found[1]), f"what {name} runs")
            elif re.search(r"!|system|term|lua|py|perl|ruby|source|so\b|call|exe", text):
                self.found.cannot_see(f"what {name} runs")

    def _later(self, name: str, command: Simple) -> None:
        """at and batch: their commands are what they read."""
        listing = any(word.text in ("-l", "-r", "-d", "-c", "-V") for word in command.words[1:])
        self._part(command)
        if not listing:
            self._fed(name, command)


_SHELL_OUT = re.compile(r"(?:\\!|(?:^|\n)\s*\.(?:shell|system)|(?:^|;|\n)\s*system)\s+(.+)")
_GIT_RUNS = re.compile(
    r"(?i)(alias\..*|core\.(sshcommand|editor|pager|fsmonitor|askpass|gitproxy)|sequence\.editor|pager\..*"
    r"|.*\.(cmd|command|helper|textconv|driver|process|clean|smudge))$"
)
_CARRIED = {
    "rsync": re.compile(r"(/usr/bin/)?ssh\b"),
    "man": re.compile(r"(less|more|cat|most|bat)\b"),
    "tar": re.compile(r"(gzip|pigz|xz|zstd|bzip2|lz4|dot|totals|echo|pbzip2|lzma)\b"),
}
"""What these start anyway."""

_Handler = Callable[[_Inspector, str, Simple], None]
_HANDLERS: dict[str, _Handler] = {
    "eval": _Inspector._eval,
    "git": _Inspector._git,
    **dict.fromkeys(("export", "declare", "typeset", "readonly"), _Inspector._export),
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3"), _Inspector._database),
    "crontab": _Inspector._cron,
    "man": _Inspector._carrier,
    "rsync": _Inspector._carrier,
    "tar": _Inspector._carrier,
    "source": _Inspector._source,
    ".": _Inspector._source,
    "alias": _Inspector._alias,
    "trap": _Inspector._trap,
    "command": _Inspector._command,
    "su": _Inspector._su,
    "runuser": _Inspector._su,
    "script": _Inspector._script_program,
    "flock": _Inspector._flock,
    "watch": _Inspector._joined,
    "xargs": _Inspector._xargs,
    "parallel": _Inspector._xargs,
    "find": _Inspector._find,
    "fd": _Inspector._find,
    "fdfind": _Inspector._find,
    "ssh": _Inspector._ssh,
    "autossh": _Inspector._ssh,
    "mosh": _Inspector._ssh,
    "docker": _Inspector._container,
    "podman": _Inspector._container,
    "nerdctl": _Inspector._container,
    "docker-compose": _Inspector._container,
    "kubectl": _Inspector._container,
    "oc": _Inspector._container,
    "tmux": _Inspector._tmux,
    "screen": _Inspector._screen,
    "awk": _Inspector._awk,
    "gawk": _Inspector._awk,
    "mawk": _Inspector._awk,
    "sed": _Inspector._sed,
    "vim": _Inspector._editor,
    "vi": _Inspector._editor,
    "nvim": _Inspector._editor,
    "ex": _Inspector._editor,
    "at": _Inspector._later,
    "batch": _Inspector._later,
}


def _verb_at(name: str, words: Sequence[Word]) -> int:
    """Where the verb of a program stands of which one verb runs a command; 0 when there is none."""
    if name not in _RUNNERS:
        return 0
    at = skip_options(words, _RUNNER_VALUES)
    return at if at < len(words) else 0


def _printed(command: Simple | None) -> Word | None:
    """What a command prints, where that stands in its words: `echo`, `printf`, `cat <<EOF`."""
    if command is None or not command.words or command.writes:
        return None
    name, words = program_of(command.words[0].text), command.words[1:]
    is_open = any(word.open for word in words)
    if name == "cat" and (not words or [word.text for word in words] == ["-"]):
        return command.stdin or (_printed(command.before) if command.piped else None)
    if name == "echo":
        while words and re.fullmatch(r"-[neE]+", words[0].text):
            words = words[1:]
        text = " ".join(word.text for word in words)
        return Word(text + "\n", is_open or "\\" in text, bare=False)
    if name == "printf" and words and "%" not in words[0].text:
        text = words[0].text
        return Word(text.replace("\\n", "\n").replace("\\t", "\t"), is_open or "\\x" in text, bare=False)
    if name == "printf" and len(words) == 2 and words[0].text in ("%s", "%s\\n", "%s\n"):
        return words[1]
    return None


def _expansion_in(text: str) -> str:
    """What about a word is open, in short."""
    if found := re.search(r"\$\{?[A-Za-z_@*#?!0-9]\w*\}?", text):
        return f"the variable {found[0]}"
    return "what another command prints" if re.search(r"\$\(|`", text) else "in a variable"


_LOCAL = re.compile(
    r"(?i)(localhost|.*\.localhost|localhost\.localdomain|ip6-localhost|127(\.\d+){1,3}|0\.0\.0\.0|::1|\[::1\]|0)$"
)


def is_local(host: str) -> bool:
    """Whether a host is the session itself."""
    return bool(_LOCAL.match(host.strip("[]") if host.startswith("[") else host))


__all__ = [
    "Inspection",
    "Part",
    "Reading",
    "inspect",
    "inspect_words",
    "is_local",
    "program_of",
    "skip_options",
]
