"""What a Dockerfile says, as steps that can be carried out one after the other.

The plain part of the language: FROM (once), ARG, ENV, LABEL, USER, WORKDIR, SHELL, EXPOSE, CMD, ENTRYPOINT,
RUN, and COPY and ADD of local files. Everything else is refused with the number of its line: a base that was
built without a part of its file would be another base than the one its author means.

`read` is pure. core/dockerfiles.py carries the steps out.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from waypoint.errors import UsageError
from waypoint.model import ImageConfig

MAX_BYTES = 1 << 20
SCRATCH = "scratch"
"""`FROM scratch`: no files at all."""
_START_BYTES = 64 << 10
DEFAULT_SHELL: tuple[str, ...] = ("/bin/sh", "-c")

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z]+)\s*=\s*(.*)")
_FIRST_WORD = re.compile(r"\s*(?:FROM|ARG)\s", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HERE_DOCUMENT = re.compile(r"(?:^|\s)\d*<<-?\s*[\"']?[A-Za-z_]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REMOTE = re.compile(r"https?://|git://|ssh://|git@|ftp://", re.IGNORECASE)
_NOT_DONE = {
    "HEALTHCHECK": "sessions have no health checks",
    "ONBUILD": "no later build runs it",
    "STOPSIGNAL": "nothing here stops the programs of an image",
    "VOLUME": "a session keeps all of its files",
}


@dataclass(frozen=True)
class Run:
    """A command to be run."""

    argv: tuple[str, ...]
    shown: str
    """As it stands in the file."""
    env: dict[str, str]
    """The variables of the image so far, and the arguments of the build."""
    user: str
    workdir: str


@dataclass(frozen=True)
class Copy:
    """Files of the context to be copied."""

    sources: tuple[str, ...]
    target: str
    """Absolute; it ends in `/` when it has to be a folder."""
    owner: str
    """`USER:GROUP`; empty: root."""
    mode: int | None
    unpack: bool
    """Whether archives are unpacked there."""


@dataclass(frozen=True)
class MakeFolder:
    """A folder that has to exist."""

    path: str


@dataclass(frozen=True)
class Step:
    """One thing to do, and where the file says it."""

    line: int
    text: str
    action: Run | Copy | MakeFolder


@dataclass(frozen=True)
class Recipe:
    """A whole file."""

    origin: str
    """What it begins with: `scratch`, the name of a base, a folder, or an image of a registry."""
    line: int
    """Where it says so."""
    steps: tuple[Step, ...]
    image: ImageConfig
    """What the file and its origin say about programs."""


@dataclass(frozen=True)
class _Instruction:
    line: int
    keyword: str
    flags: dict[str, str]
    rest: str
    text: str


def is_one(file: Path) -> bool:
    """Whether a file is a Dockerfile, by its content."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return starts_one(opened.read(_START_BYTES))


def starts_one(start: bytes) -> bool:
    """Whether a file that starts like this is a Dockerfile: its first instruction is FROM or ARG."""
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:  # else only its last character was cut
            return False
        text = start[: error.start].decode()
    lines = (line for line in text.lstrip("\ufeff").splitlines() if line.strip())
    first = next((line for line in lines if not line.lstrip().startswith("#")), "")
    return "\0" not in text and bool(_FIRST_WORD.match(first))


def origin_of(text: str, name: str, arguments: Mapping[str, str]) -> tuple[str, int]:
    """What the file begins with, and the line that says so, whatever else it holds."""
    reader = _Reader(name, arguments)
    for instruction in _instructions(text, name):
        if instruction.keyword == "ARG":
            reader.arg(instruction)
        elif instruction.keyword == "FROM":
            reader.from_(instruction)
            break
    if not reader.origin:
        raise _refusal(name, 1, "it has no FROM")
    return reader.origin, reader.line


def read(text: str, name: str, arguments: Mapping[str, str], inherited: ImageConfig) -> Recipe:
    """The steps of a file. `arguments`: values for its ARGs. `inherited`: what its origin says about
    programs."""
    reader = _Reader(name, arguments, inherited)
    for instruction in _instructions(text, name):
        reader.take(instruction)
    if not reader.origin:
        raise _refusal(name, 1, "it has no FROM")
    if unused := sorted(arguments.keys() - reader.declared):
        raise UsageError(
            f"{name} has no ARG {unused[0]}", hint="leave that argument out, or declare it in the file"
        )
    return Recipe(reader.origin, reader.line, tuple(reader.steps), reader.image())


def _refusal(name: str, line: int, why: str, hint: str = "") -> UsageError:
    return UsageError(
        f"{name}, line {line}: {why}",
        hint=hint or "`buildah` or `podman`, if one is installed, builds files with all of the language",
        line=line,
    )


# ---- lines --------------------------------------------------------------------------------------


def _instructions(text: str, name: str) -> Iterator[_Instruction]:
    """The instructions, without comments, each in one line."""
    directives = True
    pending, begun = "", 0
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        stripped = line.strip()
        if directives and (found := _DIRECTIVE.fullmatch(stripped)):
            if found[1].lower() == "escape" and found[2].strip() != "\\":
                raise _refusal(name, number, f"the escape character {found[2].strip()!r} is not supported")
            continue
        directives = False
        if not stripped or stripped.startswith("#"):
            continue
        begun = begun or number
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1]
            continue
        yield _instruction(name, begun, (pending + line).strip())
        pending, begun = "", 0
    if pending.strip():
        yield _instruction(name, begun, pending.strip())


def _instruction(name: str, line: int, text: str) -> _Instruction:
    keyword, _, rest = re.sub(r"^(\S+)\s*", r"\1 ", text).partition(" ")
    keyword, rest = keyword.upper(), rest.strip()
    if "\0" in text:
        raise _refusal(name, line, "it has a NUL byte", "give the file as its author wrote it")
    if keyword in ("RUN", "COPY", "ADD") and not rest.startswith("[") and _HERE_DOCUMENT.search(rest):
        raise _refusal(name, line, "here-documents (<<) are not supported")
    flags: dict[str, str] = {}
    if keyword in ("FROM", "RUN", "COPY", "ADD"):
        while found := _FLAG.match(rest):
            flags[found[1]] = found[2] or ""
            rest = rest[found.end() :]
    if not rest:
        raise _refusal(name, line, f"{keyword} of nothing")
    return _Instruction(line, keyword, flags, rest, re.sub(r"\s+", " ", text))


# ---- instructions -------------------------------------------------------------------------------


class _Reader:
    """Takes the instructions of one file in order."""

    def __init__(self, name: str, arguments: Mapping[str, str], inherited: ImageConfig | None = None) -> None:
        self._name, self._given = name, dict(arguments)
        self._instruction = _Instruction(1, "", {}, "", "")
        start = inherited or ImageConfig()
        self._env = dict(start.env)
        self._labels = dict(start.labels)
        self._user, self._workdir = start.user, start.workdir
        self._entrypoint, self._command = start.entrypoint, start.command
        self._ports = [*start.ports]
        self._shell = DEFAULT_SHELL
        self._globals: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self.declared: set[str] = set()
        self._own_command = False
        self.steps: list[Step] = []
        self.origin, self.line = "", 0

    def image(self) -> ImageConfig:
        return ImageConfig(
            env=self._env,
            user=self._user,
            workdir=self._workdir,
            entrypoint=self._entrypoint,
            command=self._command,
            ports=tuple(self._ports),
            labels=self._labels,
        )

    def take(self, instruction: _Instruction) -> None:
        self._instruction = instruction
        keyword = instruction.keyword
        if why := _NOT_DONE.get(keyword):
            self._refuse(f"{keyword} is not supported: {why}", "leave the line out")
        handler = _HANDLERS.get(keyword)
        if handler is None:
            self._refuse(f"there is no instruction {keyword[:40]!r}", "correct the line")
        if not self.origin and keyword not in ("FROM", "ARG"):
            self._refuse(f"{keyword} stands before FROM", "begin with FROM")
        handler(self, instruction)

    def _refuse(self, why: str, hint: str = "") -> NoReturn:
        raise _refusal(self._name, self._instruction.line, why, hint)

    def _add(self, action: Run | Copy | MakeFolder) -> None:
        self.steps.append(Step(self._instruction.line, self._instruction.text, action))

    # What a file begins with

    def from_(self, said: _Instruction) -> None:
        self._instruction = said
        if self.origin:
            self._refuse("a second FROM: builds of several stages are not supported")
        words = said.rest.split()
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            self._refuse("FROM takes one image, and a name after AS", "correct the line")
        if unknown := said.flags.keys() - {"platform"}:
            self._refuse(f"FROM --{min(unknown)} is not supported")
        self.platform = said.flags.get("platform", "")
        self.origin = self._expand(words[0], {**self._globals})
        self.line = said.line
        if not self.origin:
            self._refuse(f"{words[0]} is empty", "give its arguments values")

    def arg(self, said: _Instruction) -> None:
        self._instruction = said
        for word in _split(said.rest):
            name, equals, default = word.partition("=")
            if not _NAME.fullmatch(name):
                self._refuse(f"{name[:60]!r} is no name of an argument", "correct the line")
            self.declared.add(name)
            value = self._given.get(name)
            if not self.origin:
                if value is None and equals:
                    value = self._expand(default, self._globals)
                if value is not None:
                    self._globals[name] = value
                continue
            if value is None:
                value = self._expand(default, self._variables()) if equals else self._globals.get(name)
            if value is not None:
                self._arguments[name] = value

    # What programs start with

    def _env_(self, said: _Instruction) -> None:
        self._env |= self._pairs(said)

    def _label(self, said: _Instruction) -> None:
        self._labels |= self._pairs(said)

    def _maintainer(self, said: _Instruction) -> None:
        self._labels["maintainer"] = said.rest

    def _user_(self, said: _Instruction) -> None:
        self._user = self._expand(said.rest, self._variables())

    def _workdir_(self, said: _Instruction) -> None:
        path = posixpath.join(self._workdir or "/", self._expand(said.rest, self._variables()))
        self._workdir = "/" + posixpath.normpath(path).lstrip("/")
        self._add(MakeFolder(self._workdir))

    def _expose(self, said: _Instruction) -> None:
        for word in _split(said.rest):
            port = self._expand(word, self._variables())
            if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(/[a-z]+)?", port):
                self._refuse(f"{port[:60]!r} is no port", "correct the line")
            port = port if "/" in port else f"{port}/tcp"
            if port not in self._ports:
                self._ports.append(port)

    def _cmd(self, said: _Instruction) -> None:
        self._command = self._program(said.rest)
        self._own_command = True

    def _entry(self, said: _Instruction) -> None:
        self._entrypoint = self._program(said.rest)
        if not self._own_command:  # that of the origin was meant for another program
            self._command = ()

    def _shell_(self, said: _Instruction) -> None:
        words = _list(said.rest)
        if not words:
            self._refuse('SHELL takes a list: ["/bin/bash", "-c"]', "correct the line")
        self._shell = words

    def _program(self, rest: str) -> tuple[str, ...]:
        words = _list(rest)
        return (*self._shell, rest) if words is None else words

    # What is done

    def _run(self, said: _Instruction) -> None:
        if said.flags:
            self._refuse(f"RUN --{min(said.flags)} is not supported")
        argv = self._program(said.rest)
        if not argv:
            self._refuse("RUN of nothing", "correct the line")
        env = {**self._arguments, **self._env}
        self._add(Run(argv, said.rest, env, self._user, self._workdir or "/"))

    def _copy(self, said: _Instruction) -> None:
        keyword, flags = said.keyword, dict(said.flags)
        if "from" in flags:
            self._refuse(f"{keyword} --from is not supported: there is one stage only")
        flags.pop("link", None)  # changes how layers are made, not what they hold
        if unknown := flags.keys() - {"chown", "chmod"}:
            self._refuse(f"{keyword} --{min(unknown)} is not supported")
        words = _list(said.rest)
        variables = self._variables()
        paths = [self._expand(word, variables) for word in (_split(said.rest) if words is None else words)]
        if len(paths) < 2:
            self._refuse(f"{keyword} needs files and where they go", "correct the line")
        *sources, target = paths
        for source in sources:
            if _REMOTE.match(source):
                self._refuse(
                    f"{keyword} of {source} is not supported: nothing is fetched for a build",
                    "fetch it with RUN, or put the file beside the Dockerfile",
                )
        mode = self._expand(flags["chmod"], variables) if "chmod" in flags else ""
        if mode and not re.fullmatch(r"0?[0-7]{3,4}", mode):
            self._refuse(f"--chmod={mode} is not supported: it takes a number", "give it as 755")
        folder = "/" if target.endswith(("/", "/.")) or target in (".", "") or len(sources) > 1 else ""
        whole = posixpath.normpath(posixpath.join("/", self._workdir, target))
        self._add(
            Copy(
                sources=tuple(sources),
                target="/" + whole.strip("/") + (folder if whole.strip("/") else ""),
                owner=self._expand(flags.get("chown", ""), variables),
                mode=int(mode, 8) if mode else None,
                unpack=keyword == "ADD",
            )
        )

    # Words

    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self._env}

    def _pairs(self, said: _Instruction) -> dict[str, str]:
        words = _split(said.rest)
        variables = self._variables()  # one line does not see what it sets itself
        if "=" not in words[0]:
            name, _, value = said.rest.partition(" ")
            if not value.strip():
                self._refuse(f"{said.keyword} {name[:60]} has no value", "write NAME=VALUE")
            return {name: self._expand(value.strip(), variables)}
        pairs = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not (name and equals):
                self._refuse(f"{word[:60]!r} is not NAME=VALUE", "correct the line")
            pairs[self._expand(name, variables)] = self._expand(value, variables)
        return pairs

    def _expand(self, text: str, variables: Mapping[str, str]) -> str:
        try:
            return _Expansion(text, variables).whole()
        except ValueError as error:
            self._refuse(str(error), "correct the line")


_HANDLERS: dict[str, Callable[[_Reader, _Instruction], None]] = {
    "FROM": _Reader.from_,
    "ARG": _Reader.arg,
    "ENV": _Reader._env_,
    "LABEL": _Reader._label,
    "MAINTAINER": _Reader._maintainer,
    "USER": _Reader._user_,
    "WORKDIR": _Reader._workdir_,
    "EXPOSE": _Reader._expose,
    "CMD": _Reader._cmd,
    "ENTRYPOINT": _Reader._entry,
    "SHELL": _Reader._shell_,
    "RUN": _Reader._run,
    "COPY": _Reader._copy,
    "ADD": _Reader._copy,
}


# ---- words --------------------------------------------------------------------------------------


def _list(rest: str) -> tuple[str, ...] | None:
    """The words of a JSON list; None when it is none, and the line is for a shell."""
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    return tuple(words)


def _split(text: str) -> list[str]:
    """The words of a line, with their quotes."""
    return re.findall(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s])+""", text)


@dataclass
class _Expansion:
    """One text: quotes and backslashes are taken away, variables replaced."""

    text: str
    variables: Mapping[str, str]
    at: int = field(default=0)

    def whole(self) -> str:
        done = self._until("")
        if "\0" in done:
            raise ValueError("a value with a NUL byte")
        return done

    def _until(self, end: str) -> str:
        """Up to one of these characters, which is left."""
        pieces: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in end:
            char = self.text[self.at]
            self.at += 1
            if char == "'":
                close = self.text.find("'", self.at)
                if close < 0:
                    raise ValueError("a quote that is not closed")
                pieces.append(self.text[self.at : close])
                self.at = close + 1
            elif char == '"':
                pieces.append(self._quoted())
            elif char == "\\":
                pieces.append(self.text[self.at : self.at + 1])
                self.at += 1
            elif char == "$":
                pieces.append(self._variable())
            else:
                pieces.append(char)
        return "".join(pieces)

    def _quoted(self) -> str:
        pieces: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == '"':
                return "".join(pieces)
            if char == "\\" and self.text[self.at : self.at + 1] in ('"', "$", "\\"):
                pieces.append(self.text[self.at])
                self.at += 1
            elif char == "$":
                pieces.append(self._variable())
            else:
                pieces.append(char)
        raise ValueError("a quote that is not closed")

    def _variable(self) -> str:
        if self.text[self.at : self.at + 1] == "{":
            self.at += 1
            return self._in_braces()
        found = _NAME.match(self.text, self.at)
        if not found:
            return "$"
        self.at = found.end()
        return self.variables.get(found[0], "")

    def _in_braces(self) -> str:
        found = _NAME.match(self.text, self.at)
        if not found:
            raise ValueError("${ without a name")
        self.at = found.end()
        value = self.variables.get(found[0])
        operator = re.compile(r":?[-+?]").match(self.text, self.at)
        word = None
        if operator:
            self.at = operator.end()
            word = self._until("}")
        if self.text[self.at : self.at + 1] != "}":
            raise ValueError(f"${{{found[0]}… is not supported")
        self.at += 1
        if operator is None or word is None:
            return value or ""
        is_set = value is not None and (value != "" or not operator[0].startswith(":"))
        if operator[0].endswith("+"):
            return word if is_set else ""
        if is_set:
            return value or ""
        if operator[0].endswith("?"):
            raise ValueError(f"{found[0]} is not set{f': {word}' if word else ''}")
        return word


# ---- what a context leaves out ------------------------------------------------------------------


class Ignored:
    """The patterns of a `.dockerignore`."""

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[_Pattern, bool]] = []
        for line in text.splitlines():
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            keeps = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.lstrip("!").strip()).strip("/")
            if pattern not in ("", "."):
                self._rules.append((_Pattern(pattern), keeps))

    def hides(self, path: str) -> bool:
        """Whether a path of the context is left out. The last rule that fits decides."""
        hidden = False
        for pattern, keeps in self._rules:
            if hidden == keeps and pattern.fits(path, or_below=True):
                hidden = not keeps
        return hidden


class _Pattern:
    """A pattern of Go's `filepath.Match` with `**`. A hostile one may be made to take long, so it is no
    regular expression: it takes as many steps as pattern and path are long, multiplied."""

    def __init__(self, pattern: str) -> None:
        self._steps: list[tuple[str, str]] = []
        """`is`: this character; `one`: any but a slash; `in`, `not in`: of a set; `any`: any number of those
        but a slash; `all`: of any; `folders`: the two steps behind it may be left out."""
        at = 0
        while at < len(pattern):
            char = pattern[at]
            if pattern.startswith("**/", at):
                self._steps += [("folders", ""), ("all", ""), ("is", "/")]
                at += 3
            elif pattern.startswith("**", at):
                self._steps.append(("all", ""))
                at += 2
            elif char == "[" and (close := pattern.find("]", at + 2)) > 0:
                inside = pattern[at + 1 : close]
                kind = "not in" if inside.startswith("^") else "in"
                self._steps.append((kind, inside.removeprefix("^")))
                at = close + 1
            elif char == "\\" and at + 1 < len(pattern):
                self._steps.append(("is", pattern[at + 1]))
                at += 2
            else:
                self._steps.append(({"*": "any", "?": "one"}.get(char, "is"), char))
                at += 1

    def fits(self, path: str, *, or_below: bool = False) -> bool:
        """Whether a path fits. `or_below`: or a folder above it."""
        end = len(self._steps)
        reached = self._further({0})
        for char in path:
            if or_below and char == "/" and end in reached:
                return True
            reached = self._further(
                {
                    at if kind in ("any", "all") else at + 1
                    for at in reached
                    if at < end and _takes(kind := self._steps[at][0], self._steps[at][1], char)
                }
            )
        return end in reached

    def _further(self, reached: set[int]) -> set[int]:
        """With the steps that can be reached without a character."""
        waiting = list(reached)
        while waiting:
            at = waiting.pop()
            kind = self._steps[at][0] if at < len(self._steps) else ""
            more = {"any": (at + 1,), "all": (at + 1,), "folders": (at + 1, at + 3)}.get(kind, ())
            waiting += [step for step in more if step not in reached]
            reached.update(more)
        return reached


def _takes(kind: str, what: str, char: str) -> bool:
    """Whether a step of a pattern fits a character."""
    match kind:
        case "is":
            return char == what
        case "all":
            return True
        case "any" | "one":
            return char != "/"
        case "in" | "not in":
            return (kind == "in") == _is_in(what, char)
    return False


def _is_in(characters: str, char: str) -> bool:
    """Whether a character is in a set: `a-z_`."""
    at = 0
    while at < len(characters):
        if at + 2 < len(characters) and characters[at + 1] == "-":
            if characters[at] <= char <= characters[at + 2]:
                return True
            at += 3
        else:
            if char == characters[at]:
                return True
            at += 1
    return False


def matches(name: str, pattern: str) -> bool:
    """Whether a name in a folder fits one step of a pattern of COPY."""
    return _Pattern(pattern).fits(name)


def has_wildcards(step: str) -> bool:
    return any(char in step for char in "*?[")
