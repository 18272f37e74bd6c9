"""Parses a command line as bash would, without running anything.

The result is every command that the line may run: after `&&`, in pipes and `$(…)`, in loops, functions and
here-documents. (Commands inside other commands, such as `sudo …`, are found by wrappers.py.) What the parser
cannot determine is listed in `unseen`: a command that is in a variable, a quote that does not end. The parser
never guesses, because a wrong guess could call a dangerous command safe.

Conditions are not evaluated: all branches count. The body of a function counts where it is defined. The time
is linear in the length of the text. Depth and length are bounded: any input is accepted, none raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_CHARACTERS = 1 << 16
_MAX_DEPTH = 40
_MAX_COMMANDS = 2000


class Word(NamedTuple):
    """One word of a command, quotes and escapes resolved."""

    text: str
    """As the program would see it. An expansion that only a running shell can compute stays as written:
    `$HOST`."""
    dynamic: bool = False
    """Whether it contains such an expansion."""
    unquoted: bool = True
    """Whether no part of it was quoted. Only then can it be a reserved word."""


@dataclass
class Command:
    """One simple command with its words, variables and redirections."""

    words: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    """Variables that are set for it, or in the shell if it has no words."""
    writes: list[Word] = field(default_factory=list)
    """Files that its output is redirected to."""
    stdin: Word | None = None
    """The text of its standard input, if it is in the line: a here-document, a here-string."""
    reads_file: bool = False
    """Whether its standard input is a file."""
    piped: bool = False
    """Whether its standard input is the output of the command before it."""
    before: Command | None = None
    """That command, if it is a single one."""


class Unseen:
    """Collects what could not be determined, without repetitions and bounded."""

    _MAX = 20

    def __init__(self) -> None:
        self.unseen: list[str] = []

    def add_unseen(self, what: str) -> None:
        if what not in self.unseen and len(self.unseen) < self._MAX:
            self.unseen.append(what)


class ParsedLine(Unseen):
    """The commands of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Command] = []
        self.functions: set[str] = set()
        """Functions that the line defines. The commands in their bodies are among `commands`."""
        self.values: dict[str, str] = {}
        """Variables that the line sets once, to a known value."""


def parse(line: str) -> ParsedLine:
    """The commands of a line."""
    result = ParsedLine()
    if len(line) > MAX_CHARACTERS:
        result.add_unseen(f"all after the first {MAX_CHARACTERS:,} characters")
        line = line[:MAX_CHARACTERS]
    _Parser(line, result).parse()
    return result


def parse_expansions(text: str) -> ParsedLine:
    """The commands in `$(…)` of a text in which only expansions count, such as a prompt."""
    result = ParsedLine()
    _Parser("", result)._expansions(text[:MAX_CHARACTERS])
    return result


_PLAIN = re.compile(r"[^\s'\"\\$`|&;()<>{},*?\[]+")
_IN_QUOTES = re.compile(r'[^"\\$`]+')
_IN_BRACES = re.compile(r"[^}\"'\\$`]+")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_REDIRECTION = re.compile(r"(\d+|\{\w+\})?(<<<|<<-|<<|<>|<&|>>|>&|>\||<|>)|(&>>|&>)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;|&]")
_ONE_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_TIME_OPTION = re.compile(r"[ \t]+-p(?=\s)")
_BRACKETS = re.compile(r"[()]")
_ANSI = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.))",
    re.DOTALL,
)
_ANSI_LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))

_SKIPPED = frozenset({
    "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "!", "{", "}", "time", "coproc",
    "esac",
})  # fmt: skip
"""Reserved words that a command may follow. All branches count, so nothing more has to be known of them."""

_RESERVED = _SKIPPED | {"for", "select", "case", "function", "[["}

# Private characters that stand for an unquoted brace or comma until the word is complete.
_OPEN, _CLOSE, _COMMA = "\ue000", "\ue001", "\ue002"
_MARKS = str.maketrans({_OPEN: "{", _CLOSE: "}", _COMMA: ","})
_MAX_BRACED = 64


def _ansi(text: str) -> str:
    """The text that `$'…'` stands for."""

    def decode(match: re.Match[str]) -> str:
        letter, octal, two, four, eight, control = match.groups()
        if letter:
            return _ANSI_LETTERS[letter]
        if control:
            return chr(ord(control) & 0x1F)
        code = int(octal, 8) if octal else int(two or four or eight, 16)
        return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _ANSI.sub(decode, text)


class _HereDocument(NamedTuple):
    command: Command
    delimiter: str
    quoted: bool
    """Whether its delimiter is quoted: then nothing in it is expanded."""
    strips_tabs: bool


class _Parser:
    """One pass over one text. The position `at` only grows."""

    def __init__(self, text: str, result: ParsedLine, depth: int = 0) -> None:
        self.text, self.result, self.depth = text, result, depth
        self.at, self.end = 0, len(text)
        self.here_documents: list[_HereDocument] = []
        """Those whose text begins after the next newline."""

    def parse(self) -> None:
        while self.at < self.end:
            self._list("")

    # ---- lists -------------------------------------------------------------------------------

    def _too_deep(self) -> bool:
        """Whether the nesting limit is reached. If so, the rest of the text is skipped."""
        if self.depth < _MAX_DEPTH:
            return False
        self.result.add_unseen("what is nested too deeply")
        self.at = self.end
        return True

    def _nested_list(self, end: str) -> None:
        """A list inside a construct, up to and including the character that ends it."""
        if not self._too_deep():
            self.depth += 1
            self._list(end)
            self.depth -= 1

    def _list(self, end: str, *, in_case: bool = False) -> None:
        piped, before = False, None
        while True:
            self._skip_blanks(newlines=True)
            if self.at >= self.end:
                if end:
                    self._missing(f"a {end}")
                return
            if len(self.result.commands) >= _MAX_COMMANDS:
                self.result.add_unseen(f"all after the first {_MAX_COMMANDS:,} commands")
                self.at = self.end
                return
            letter = self.text[self.at]
            if letter == end:
                self.at += 1
                return
            if letter == ")":
                self.result.add_unseen("what an unmatched ) belongs to")
                self.at += 1
                continue
            if letter in ";|&" and not self.text.startswith("&>", self.at):
                operator = _OPERATOR.match(self.text, self.at)
                assert operator
                if in_case and operator[0].startswith(";") and len(operator[0]) > 1:
                    return
                self.at = operator.end()
                piped = operator[0] in ("|", "|&")
                if not piped:
                    before = None
                continue
            if letter == "(":
                self.at += 1
                if not (self.text.startswith("(", self.at) and self._arithmetic()):
                    self._nested_list(")")
                before = None
                continue
            command, more = self._command(in_case=in_case)
            if command is None:
                before = None
                if not more:
                    return
                continue
            command.piped, command.before = piped, before
            before, piped = command, False

    def _missing(self, what: str) -> None:
        self.result.add_unseen(f"what follows the end of the line: {what} is missing")

    def _skip_blanks(self, *, newlines: bool = False) -> None:
        while self.at < self.end:
            if blank := _BLANK.match(self.text, self.at):
                self.at = blank.end()
            elif self.text[self.at] == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"):
                line_end = self.text.find("\n", self.at)
                self.at = self.end if line_end < 0 else line_end
            elif newlines and self.text[self.at] == "\n":
                self.at += 1
                self._read_here_documents()
            else:
                return

    def _read_here_documents(self) -> None:
        documents, self.here_documents = self.here_documents, []
        for command, delimiter, quoted, strips_tabs in documents:
            lines = []
            while self.at < self.end:
                stop = self.text.find("\n", self.at)
                stop = self.end if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, self.end)
                line = line.lstrip("\t") if strips_tabs else line
                if line == delimiter:
                    break
                lines.append(line)
            else:
                self._missing(repr(delimiter))
            body = "".join(f"{line}\n" for line in lines)
            dynamic = not quoted and ("$" in body or "`" in body)
            if dynamic:
                self._expansions(body)
            command.stdin = Word(body, dynamic, unquoted=False)

    def _expansions(self, text: str) -> None:
        """Commands in a text that is expanded but not split: a here-document without quotes."""
        inner = self._nested_parser(text)
        while inner and inner.at < inner.end:
            inner._quoted([])  # up to a quotation mark, which means nothing there

    def _nested_parser(self, text: str) -> _Parser | None:
        if self._too_deep():
            return None
        return _Parser(text, self.result, self.depth + 1)

    # ---- commands ----------------------------------------------------------------------------

    def _command(self, *, in_case: bool) -> tuple[Command | None, bool]:
        """One command. (None, True) if there was only syntax; (None, False) if `esac` ended the list."""
        command = Command()
        while True:
            self._skip_blanks()
            if self.at >= self.end or self.text[self.at] in "\n;|)":
                break
            letter = self.text[self.at]
            if letter == "&" and not self.text.startswith("&>", self.at):
                break
            if letter in "<>" and self.text.startswith("(", self.at + 1):
                start, self.at = self.at, self.at + 2
                self._nested_list(")")
                command.words.append(Word(self.text[start : self.at], dynamic=True, unquoted=False))
                continue
            if redirection := _REDIRECTION.match(self.text, self.at):
                self._redirect(command, redirection)
                continue
            if letter == "(":
                self._parenthesis(command)
                if not command.words:
                    return None, True
                continue
            start = self.at
            words = self._word()
            if self.at == start:
                self.at += 1
                self.result.add_unseen(f"what {letter!r} means there")
                continue
            first = words[0]
            empty = not (command.words or command.writes or command.assignments)
            if empty and first.unquoted and len(words) == 1 and first.text in _RESERVED:
                if first.text == "esac" and in_case:
                    self.at = start
                    return None, False
                self._reserved(first.text)
                return None, True
            if not command.words and self._assignment(command, first, start):
                continue
            command.words += words
        if command.words or command.assignments or command.writes:
            self.result.commands.append(command)
            return command, True
        return None, True

    def _assignment(self, command: Command, word: Word, start: int) -> bool:
        """Whether the word that begins at `start` is an assignment; it is added then."""
        match = _ASSIGNMENT.match(self.text, start)
        if not match or not word.text.startswith(match[0]):
            return False
        name, value = match[1], word._replace(text=word.text[match.end() - start :])
        command.assignments.append((name, value))
        if value.dynamic or name in self.result.values:
            # Set twice, or to an unknown value: a parser cannot know which value it has later.
            self.result.values.pop(name, None)
        else:
            self.result.values[name] = value.text
        return True

    def _parenthesis(self, command: Command) -> None:
        """`name ()` is a function. Anything else is a syntax error in bash."""
        self.at += 1
        self._skip_blanks()
        if len(command.words) == 1 and self.text.startswith(")", self.at):
            self.at += 1
            self.result.functions.add(command.words.pop().text)
            return
        self.result.add_unseen("what a ( in the middle of a command means")

    def _reserved(self, word: str) -> None:
        if word == "time":
            if option := _TIME_OPTION.match(self.text, self.at):
                self.at = option.end()
        elif word == "function":
            self._skip_blanks()
            for name in self._word()[:1]:
                self.result.functions.add(name.text)
            self._skip_blanks()
            if self.text.startswith("(", self.at):
                self.at += 1
                self._skip_blanks()
                self.at += self.text.startswith(")", self.at)
        elif word in ("for", "select"):
            self._for()
        elif word == "case":
            self._case()
        elif word == "[[":
            self._condition()

    def _for(self) -> None:
        self._skip_blanks()
        if self.text.startswith("((", self.at):
            self.at += 1
            if not self._arithmetic():
                self.at += 1
            return
        for name in self._word()[:1]:
            # The loop sets the variable: an earlier value does not count.
            self.result.values.pop(name.text, None)
        while True:
            self._skip_blanks(newlines=False)
            if self.at >= self.end or self.text[self.at] in "\n;|&()<>":
                return
            start = self.at
            words = self._word()
            if self.at == start:
                return
            if words and words[0].unquoted and words[0].text == "do":
                return

    def _case(self) -> None:
        self._skip_blanks()
        self._word()
        self._skip_blanks(newlines=True)
        self._word()  # in
        if self._too_deep():
            return
        while True:
            self._skip_blanks(newlines=True)
            if self.at >= self.end:
                self._missing("an esac")
                return
            start = self.at
            if self.text[self.at] == "(":
                self.at += 1
            words = self._pattern()
            if words == ["esac"]:
                return
            self.depth += 1
            self._list("", in_case=True)
            self.depth -= 1
            if operator := _OPERATOR.match(self.text, self.at):
                self.at = operator.end()
            if self.at == start:
                self.at += 1

    def _pattern(self) -> list[str]:
        """The words up to the ) of a pattern of `case`, or its `esac`."""
        words: list[str] = []
        while self.at < self.end:
            self._skip_blanks(newlines=True)
            if self.text.startswith(")", self.at):
                self.at += 1
                return words
            start = self.at
            words += [word.text for word in self._word()]
            if words == ["esac"]:
                return words
            if self.at == start:
                self.at += 1
        return words

    def _condition(self) -> None:
        """`[[ … ]]`: only the substitutions in it run commands."""
        while self.at < self.end:
            self._skip_blanks(newlines=True)
            start = self.at
            if any(word.unquoted and word.text == "]]" for word in self._word()):
                return
            if self.at == start:
                self.at += 1
        self._missing("a ]]")

    def _arithmetic(self) -> bool:
        """At the second of two parentheses. If it is not arithmetic: returns False and reads nothing."""
        level = 1
        for bracket in _BRACKETS.finditer(self.text, self.at):
            level += 1 if bracket[0] == "(" else -1
            if level == 0:
                stop = bracket.end()
                # The two closing ones have to be adjacent, otherwise these are two subshells.
                if self.text[stop - 2] != ")":
                    return False
                inside, self.at = self.text[self.at + 1 : stop - 2], stop
                if "$" in inside or "`" in inside:
                    self._expansions(inside)
                return True
        return False

    def _redirect(self, command: Command, match: re.Match[str]) -> None:
        operator = match[2] or match[3]
        self.at = match.end()
        self._skip_blanks()
        if operator in ("<<", "<<-"):
            start = self.at
            words = self._word()
            raw = self.text[start : self.at]
            delimiter = words[0].text if words else ""
            quoted = any(quote in raw for quote in "'\"\\")
            self.here_documents.append(_HereDocument(command, delimiter, quoted, operator == "<<-"))
            return
        words = self._word() if not self._substitution() else [Word("", dynamic=True, unquoted=False)]
        if not words:
            self.result.add_unseen("where a redirection leads")
            return
        if operator == "<<<":
            command.stdin = words[0]._replace(text=words[0].text + "\n")
        elif operator == "<":
            command.stdin, command.reads_file = None, True
            command.writes += [word for word in words[:1] if word.text.startswith(("/dev/tcp/", "/dev/udp/"))]
        elif not (operator in (">&", "<&") and re.fullmatch(r"\d*-?", words[0].text)):
            command.writes += words[:1]

    def _substitution(self) -> bool:
        """`<(…)` or `>(…)` where a word is expected."""
        if not (self.text[self.at : self.at + 1] in ("<", ">") and self.text.startswith("(", self.at + 1)):
            return False
        self.at += 2
        self._nested_list(")")
        return True

    # ---- words -------------------------------------------------------------------------------

    def _word(self) -> list[Word]:
        """The next word, or the words that its braces expand to. Empty if there is no word."""
        out: list[str] = []
        dynamic, unquoted, start = False, True, self.at
        while self.at < self.end:
            if plain := _PLAIN.match(self.text, self.at):
                out.append(plain[0])
                self.at = plain.end()
                continue
            letter = self.text[self.at]
            if letter == "'":
                stop = self.text.find("'", self.at + 1)
                if stop < 0:
                    self._missing("a '")
                    stop = self.end
                out.append(self.text[self.at + 1 : stop])
                self.at, unquoted = min(stop + 1, self.end), False
            elif letter == '"':
                self.at += 1
                dynamic |= self._quoted(out)
                unquoted = False
            elif letter == "\\":
                if not self.text.startswith("\n", self.at + 1):
                    out.append(self.text[self.at + 1 : self.at + 2])
                    unquoted = False
                self.at = min(self.at + 2, self.end)
            elif letter in "$`":
                expanded, quoted = self._expansion(out)
                dynamic |= expanded
                unquoted = unquoted and not quoted
            elif letter in "{},":
                out.append({"{": _OPEN, "}": _CLOSE, ",": _COMMA}[letter])
                self.at += 1
            elif letter in "*?[":
                out.append(letter)
                self.at += 1
            elif letter == "(" and _ASSIGNMENT.fullmatch(self.text, start, self.at):
                self._array()
                dynamic = True
            else:
                break
        if self.at == start:
            return []
        return _braced("".join(out), dynamic=dynamic, unquoted=unquoted)

    def _array(self) -> None:
        """`name=(…)`: words, in which only substitutions run commands."""
        self.at += 1
        if self._too_deep():
            return
        self.depth += 1
        while self.at < self.end:
            self._skip_blanks(newlines=True)
            if self.text.startswith(")", self.at):
                self.at += 1
                self.depth -= 1
                return
            start = self.at
            self._word()
            if self.at == start:
                self.at += 1
        self.depth -= 1
        self._missing("a )")

    def _quoted(self, out: list[str]) -> bool:
        """Up to and including the closing double quote. Returns whether it contains an expansion."""
        dynamic = False
        while self.at < self.end:
            if plain := _IN_QUOTES.match(self.text, self.at):
                out.append(plain[0])
                self.at = plain.end()
                continue
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return dynamic
            if letter == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    out.append(following if following and following in '"\\$`' else "\\" + following)
                self.at = min(self.at + 2, self.end)
            else:
                dynamic |= self._expansion(out, quoted=True)[0]
        if self.depth == 0:
            self._missing('a "')
        return dynamic

    def _expansion(self, out: list[str], *, quoted: bool = False) -> tuple[bool, bool]:
        """At a `$` or a backquote. Returns whether only a running shell can compute it, and whether it is
        a form of quotes."""
        text, start = self.text, self.at
        if text[start] == "`":
            self._backquoted()
            out.append(text[start : self.at])
            return True, False
        following = text[start + 1 : start + 2]
        if following == "'" and not quoted:
            stop = start + 2
            while stop < self.end and text[stop] != "'":
                stop += 2 if text[stop] == "\\" else 1
            if stop >= self.end:
                self._missing("a '")
            out.append(_ansi(text[start + 2 : stop]))
            self.at = min(stop + 1, self.end)
            return False, True
        if following == '"' and not quoted:
            self.at += 2
            return self._quoted(out), True
        if following == "(":
            self.at += 2
            if not (text.startswith("(", self.at) and self._arithmetic()):
                self._nested_list(")")
        elif following == "{":
            self.at += 2
            if not self._too_deep():
                self.depth += 1
                self._parameter()
                self.depth -= 1
        elif name := _NAME.match(text, start + 1):
            self.at = name.end()
        else:
            self.at += 1
            out.append("$")
            return False, False
        raw = text[start : self.at]
        variable = _ONE_NAME.fullmatch(raw)
        out.append(self.result.values.get(variable[1] or variable[2], raw) if variable else raw)
        return True, False

    def _parameter(self) -> None:
        """`${…}` up to its end. Substitutions in it run commands."""
        while self.at < self.end:
            if plain := _IN_BRACES.match(self.text, self.at):
                self.at = plain.end()
                continue
            letter = self.text[self.at]
            if letter == "}":
                self.at += 1
                return
            if letter in "$`":
                self._expansion([])
            elif letter == '"':
                self.at += 1
                self._quoted([])
            elif letter == "'":
                stop = self.text.find("'", self.at + 1)
                self.at = self.end if stop < 0 else stop + 1
            else:
                self.at = min(self.at + 2, self.end)
        self._missing("a }")

    def _backquoted(self) -> None:
        start = self.at + 1
        stop = start
        while stop < self.end and self.text[stop] != "`":
            stop += 2 if self.text[stop] == "\\" else 1
        if stop >= self.end:
            self._missing("a `")
        inner = self._nested_parser(re.sub(r"\\([`$\\])", r"\1", self.text[start:stop]))
        if inner:
            inner.parse()
        self.at = min(stop + 1, self.end)


def _braced(text: str, *, dynamic: bool, unquoted: bool) -> list[Word]:
    """`{git,push}` is two words. Braces without a comma or `..` are ordinary characters."""
    if _OPEN not in text:
        return [Word(text.translate(_MARKS) if _CLOSE in text or _COMMA in text else text, dynamic, unquoted)]
    parts, finished = [text], []
    while parts:
        part = parts.pop(0)
        close = part.find(_CLOSE)
        start = part.rfind(_OPEN, 0, close) if close >= 0 else -1
        if start < 0:
            finished.append(Word(part.translate(_MARKS), dynamic, unquoted))
            continue
        inside = part[start + 1 : close]
        if _COMMA not in inside and ".." not in inside:
            parts.insert(0, part[:start] + "{" + inside + "}" + part[close + 1 :])
        elif ".." in inside and _COMMA not in inside:
            parts.insert(0, part[:start] + "{" + inside + "}" + part[close + 1 :])
            dynamic = True
        else:
            choices = inside.split(_COMMA)
            if len(parts) + len(finished) + len(choices) > _MAX_BRACED:
                return [Word(text.translate(_MARKS), dynamic=True, unquoted=False)]
            parts = [part[:start] + choice + part[close + 1 :] for choice in choices] + parts
    return finished


def join(words: Sequence[Word]) -> str:
    """The words of a command as one line, quoted where needed: to show it, and as a key."""
    return " ".join(_quote(word.text) for word in words)


def _quote(text: str) -> str:
    if text and not re.search(r"[\s'\"|&;<>()]", text):
        return text
    return "'" + text.replace("'", "'\\''") + "'" if "'" not in text else '"' + text.replace('"', '\\"') + '"'
