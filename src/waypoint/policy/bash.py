"""Reads a shell command line the way bash would, without running anything.

What comes out is every command that the line may run, as far as it can be seen: behind `&&`, pipes and
`$(…)`, in loops, functions, here-documents, and in what wrappers are given (unwrapping.py). What cannot be
seen is named in `unseen`: a command that is in a variable, a quote that does not end. A reader that guesses
would call dangerous things safe, so it never does.

This is no shell: conditions are not evaluated, all branches count. A function's body counts where it is
defined. Time is linear in the text, and depth and length are bounded: any input is read, none raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_CHARACTERS = 1 << 16
_MOST_DEPTH = 40
_MOST_COMMANDS = 2000


class Word(NamedTuple):
    """One word of a command, quotes and escapes resolved."""

    text: str
    """As the program would see it. What only a running shell could say stands as it was written: `$HOST`."""
    open: bool = False
    """Whether there is such a thing in it."""
    bare: bool = True
    """Whether nothing in it was quoted: only then can it be a reserved word."""


@dataclass
class Simple:
    """One command with its words, variables and redirections."""

    words: list[Word] = field(default_factory=list)
    sets: list[tuple[str, Word]] = field(default_factory=list)
    """Variables that are set for it, or by it if it has no words."""
    writes: list[Word] = field(default_factory=list)
    """Files that its output is redirected to."""
    stdin: Word | None = None
    """What it is given to read, where that can be seen: a here-document, a here-string."""
    reads: bool = False
    """Whether it reads a file instead."""
    piped: bool = False
    """Whether it reads what the command before it prints."""
    before: Simple | None = None
    """That command, where it is a single one."""


@dataclass
class Reading:
    """What was found in a line."""

    commands: list[Simple] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    """Names the line defines: what they do has been read where they are defined."""
    values: dict[str, str] = field(default_factory=dict)
    """Variables that the line sets to something that can be seen."""

    def cannot_see(self, why: str) -> None:
        if why not in self.unseen and len(self.unseen) < 20:
            self.unseen.append(why)


def read(line: str, into: Reading | None = None) -> Reading:
    """The commands of a line."""
    found = Reading() if into is None else into
    if len(line) > MOST_CHARACTERS:
        found.cannot_see(f"all after the first {MOST_CHARACTERS:,} characters")
        line = line[:MOST_CHARACTERS]
    _Reader(line, found).read()
    return found


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
"""Reserved words that another command may follow. All branches count, so they mean nothing more here."""

_RESERVED = _SKIPPED | {"for", "select", "case", "function", "[["}

# What stands for an unquoted brace or comma until the word is complete: letters that mean nothing.
_OPEN, _CLOSE, _COMMA = "\ue000", "\ue001", "\ue002"
_MARKS = str.maketrans({_OPEN: "{", _CLOSE: "}", _COMMA: ","})
_MOST_BRACED = 64


def _ansi(text: str) -> str:
    """What `$'…'` stands for."""

    def one(match: re.Match[str]) -> str:
        letter, octal, two, four, eight, control = match.groups()
        if letter:
            return _ANSI_LETTERS[letter]
        if control:
            return chr(ord(control) & 0x1F)
        code = int(octal, 8) if octal else int(two or four or eight, 16)
        return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

    return _ANSI.sub(one, text)


class _Reader:
    """One pass over one text. Positions only grow."""

    def __init__(self, text: str, found: Reading, depth: int = 0) -> None:
        self.text, self.found, self.depth = text, found, depth
        self.at, self.end = 0, len(text)
        self.waiting: list[tuple[Simple, str, bool, bool]] = []
        """Here-documents whose text comes after the next newline: delimiter, quoted, tabs stripped."""

    def read(self) -> None:
        while self.at < self.end:
            self._list("")

    # ---- lists -------------------------------------------------------------------------------

    def _too_deep(self) -> bool:
        """Whether there is no going deeper from here; nothing more is read then."""
        if self.depth < _MOST_DEPTH:
            return False
        self.found.cannot_see("what is nested too deep")
        self.at = self.end
        return True

    def _deeper(self, end: str) -> None:
        """A list within something: up to and with its end."""
        if not self._too_deep():
            self.depth += 1
            self._list(end)
            self.depth -= 1

    def _list(self, end: str, *, in_case: bool = False) -> None:
        piped, before = False, None
        while True:
            self._blank(newlines=True)
            if self.at >= self.end:
                if end:
                    self.found.cannot_see(f"what comes after the end of the line: a {end} is missing")
                return
            if len(self.found.commands) >= _MOST_COMMANDS:
                self.found.cannot_see(f"all after the first {_MOST_COMMANDS:,} commands")
                self.at = self.end
                return
            letter = self.text[self.at]
            if letter == end:
                self.at += 1
                return
            if letter == ")":
                self.found.cannot_see("what an unmatched ) belongs to")
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
                    self._deeper(")")
                before = None
                continue
            simple, more = self._simple(in_case=in_case)
            if simple is None:
                before = None
                if not more:
                    return
                continue
            simple.piped, simple.before = piped, before
            before, piped = simple, False

    def _blank(self, *, newlines: bool = False) -> None:
        while self.at < self.end:
            if blank := _BLANK.match(self.text, self.at):
                self.at = blank.end()
            elif self.text[self.at] == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"):
                line_end = self.text.find("\n", self.at)
                self.at = self.end if line_end < 0 else line_end
            elif newlines and self.text[self.at] == "\n":
                self.at += 1
                self._here_documents()
            else:
                return

    def _here_documents(self) -> None:
        waiting, self.waiting = self.waiting, []
        for simple, delimiter, quoted, strip in waiting:
            lines = []
            while self.at < self.end:
                stop = self.text.find("\n", self.at)
                stop = self.end if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, self.end)
                if (line.lstrip("\t") if strip else line) == delimiter:
                    break
                lines.append(line.lstrip("\t") if strip else line)
            else:
                self.found.cannot_see(f"what comes after the end of the line: {delimiter!r} is missing")
            body = "".join(f"{line}\n" for line in lines)
            is_open = not quoted and ("$" in body or "`" in body)
            if is_open:
                self._expansions(body)
            simple.stdin = Word(body, is_open, bare=False)

    def _expansions(self, text: str) -> None:
        """Commands in a text that is expanded but not split: a here-document without quotes."""
        inner = self._inner(text.replace('"', " "))
        if inner:
            inner._quoted([])

    def _inner(self, text: str) -> _Reader | None:
        if self._too_deep():
            return None
        return _Reader(text, self.found, self.depth + 1)

    # ---- commands ----------------------------------------------------------------------------

    def _simple(self, *, in_case: bool) -> tuple[Simple | None, bool]:
        """One command. (None, True) when there was only syntax; (None, False) when `esac` ended a list."""
        simple = Simple()
        while True:
            self._blank()
            if self.at >= self.end or self.text[self.at] in "\n;|)":
                break
            letter = self.text[self.at]
            if letter == "&" and not self.text.startswith("&>", self.at):
                break
            if letter in "<>" and self.text.startswith("(", self.at + 1):
                start, self.at = self.at, self.at + 2
                self._deeper(")")
                simple.words.append(Word(self.text[start : self.at], open=True, bare=False))
                continue
            if redirection := _REDIRECTION.match(self.text, self.at):
                self._redirect(simple, redirection)
                continue
            if letter == "(":
                self._parenthesis(simple)
                if not simple.words:
                    return None, True
                continue
            start = self.at
            words = self._word()
            if self.at == start:
                self.at += 1
                self.found.cannot_see(f"what {letter!r} means there")
                continue
            first = words[0]
            fresh = not (simple.words or simple.writes or simple.sets)
            if fresh and first.bare and len(words) == 1 and first.text in _RESERVED:
                if first.text == "esac" and in_case:
                    self.at = start
                    return None, False
                self._reserved(first.text)
                return None, True
            if not simple.words and self._assigns(simple, first, start):
                continue
            simple.words += words
        if simple.words or simple.sets or simple.writes:
            self.found.commands.append(simple)
            return simple, True
        return None, True

    def _assigns(self, simple: Simple, word: Word, start: int) -> bool:
        found = _ASSIGNMENT.match(self.text, start)
        if not found or not word.text.startswith(found[0]):
            return False
        name, value = found[1], word._replace(text=word.text[found.end() - start :])
        simple.sets.append((name, value))
        if value.open or name in self.found.values:
            # Set twice, or to something unknown: which of them counts is not for a reader to say.
            self.found.values.pop(name, None)
        else:
            self.found.values[name] = value.text
        return True

    def _parenthesis(self, simple: Simple) -> None:
        """`name ()` is a function. Anything else is a mistake that bash would refuse."""
        self.at += 1
        self._blank()
        if len(simple.words) == 1 and self.text.startswith(")", self.at):
            self.at += 1
            self.found.functions.add(simple.words.pop().text)
            return
        self.found.cannot_see("what a ( in the middle of a command means")

    def _reserved(self, word: str) -> None:
        if word == "time":
            if option := _TIME_OPTION.match(self.text, self.at):
                self.at = option.end()
        elif word == "function":
            self._blank()
            for name in self._word()[:1]:
                self.found.functions.add(name.text)
            self._blank()
            if self.text.startswith("(", self.at):
                self.at += 1
                self._blank()
                self.at += self.text.startswith(")", self.at)
        elif word in ("for", "select"):
            self._for()
        elif word == "case":
            self._case()
        elif word == "[[":
            self._condition()

    def _for(self) -> None:
        self._blank()
        if self.text.startswith("((", self.at):
            self.at += 1
            if not self._arithmetic():
                self.at += 1
            return
        for name in self._word()[:1]:
            # It takes values of its own: what was set before does not count.
            self.found.values.pop(name.text, None)
        while True:
            self._blank(newlines=False)
            if self.at >= self.end or self.text[self.at] in "\n;|&()<>":
                return
            start = self.at
            words = self._word()
            if self.at == start:
                return
            if words and words[0].bare and words[0].text == "do":
                return

    def _case(self) -> None:
        self._blank()
        self._word()
        self._blank(newlines=True)
        self._word()  # in
        if self._too_deep():
            return
        while True:
            self._blank(newlines=True)
            if self.at >= self.end:
                self.found.cannot_see("what comes after the end of the line: an esac is missing")
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
        """Up to the ) of a case's pattern, or its esac."""
        words: list[str] = []
        while self.at < self.end:
            self._blank(newlines=True)
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
        """`[[ … ]]`: nothing runs but what is substituted in it."""
        while self.at < self.end:
            self._blank(newlines=True)
            start = self.at
            if any(word.bare and word.text == "]]" for word in self._word()):
                return
            if self.at == start:
                self.at += 1
        self.found.cannot_see("what comes after the end of the line: a ]] is missing")

    def _arithmetic(self) -> bool:
        """At the second of two parentheses. False, and nothing read, when it is no arithmetic after all."""
        level = 1
        for bracket in _BRACKETS.finditer(self.text, self.at):
            level += 1 if bracket[0] == "(" else -1
            if level == 0:
                stop = bracket.end()
                # Two that close have to stand together, else these were two subshells.
                if self.text[stop - 2] != ")":
                    return False
                inside, self.at = self.text[self.at + 1 : stop - 2], stop
                if "$" in inside or "`" in inside:
                    self._expansions(inside)
                return True
        return False

    def _redirect(self, simple: Simple, match: re.Match[str]) -> None:
        operator = match[2] or match[3]
        self.at = match.end()
        self._blank()
        if operator in ("<<", "<<-"):
            start = self.at
            words = self._word()
            raw = self.text[start : self.at]
            delimiter = words[0].text if words else ""
            self.waiting.append((simple, delimiter, any(q in raw for q in "'\"\\"), operator == "<<-"))
            return
        words = self._word() if not self._substitution() else [Word("", open=True, bare=False)]
        if not words:
            self.found.cannot_see("where a redirection leads")
            return
        if operator == "<<<":
            simple.stdin = words[0]._replace(text=words[0].text + "\n")
        elif operator == "<":
            simple.stdin, simple.reads = None, True
            simple.writes += [word for word in words[:1] if word.text.startswith(("/dev/tcp/", "/dev/udp/"))]
        elif not (operator in (">&", "<&") and re.fullmatch(r"\d*-?", words[0].text)):
            simple.writes += words[:1]

    def _substitution(self) -> bool:
        """`<(…)` and `>(…)`, where a word is expected."""
        if not (self.text[self.at : self.at + 1] in ("<", ">") and self.text.startswith("(", self.at + 1)):
            return False
        self.at += 2
        self._deeper(")")
        return True

    # ---- words -------------------------------------------------------------------------------

    def _word(self) -> list[Word]:
        """The next word, or the words that its braces make of it. None when there is no word."""
        out: list[str] = []
        is_open, bare, start = False, True, self.at
        while self.at < self.end:
            if plain := _PLAIN.match(self.text, self.at):
                out.append(plain[0])
                self.at = plain.end()
                continue
            letter = self.text[self.at]
            if letter == "'":
                stop = self.text.find("'", self.at + 1)
                if stop < 0:
                    self.found.cannot_see("what comes after the end of the line: a ' is missing")
                    stop = self.end
                out.append(self.text[self.at + 1 : stop])
                self.at, bare = min(stop + 1, self.end), False
            elif letter == '"':
                self.at += 1
                is_open |= self._quoted(out)
                bare = False
            elif letter == "\\":
                if not self.text.startswith("\n", self.at + 1):
                    out.append(self.text[self.at + 1 : self.at + 2])
                    bare = False
                self.at = min(self.at + 2, self.end)
            elif letter in "$`":
                expanded, quoted = self._expansion(out)
                is_open |= expanded
                bare = bare and not quoted
            elif letter in "{},":
                out.append({"{": _OPEN, "}": _CLOSE, ",": _COMMA}[letter])
                self.at += 1
            elif letter in "*?[":
                out.append(letter)
                self.at += 1
            elif letter == "(" and _ASSIGNMENT.fullmatch(self.text, start, self.at):
                self._array()
                is_open = True
            else:
                break
        if self.at == start:
            return []
        return _braced("".join(out), is_open=is_open, bare=bare)

    def _array(self) -> None:
        """`name=(…)`: words, of which only what is substituted in them runs."""
        self.at += 1
        if self._too_deep():
            return
        self.depth += 1
        while self.at < self.end:
            self._blank(newlines=True)
            if self.text.startswith(")", self.at):
                self.at += 1
                self.depth -= 1
                return
            start = self.at
            self._word()
            if self.at == start:
                self.at += 1
        self.depth -= 1
        self.found.cannot_see("what comes after the end of the line: a ) is missing")

    def _quoted(self, out: list[str]) -> bool:
        """Up to and with the closing double quote; whether anything in it is expanded."""
        is_open = False
        while self.at < self.end:
            if plain := _IN_QUOTES.match(self.text, self.at):
                out.append(plain[0])
                self.at = plain.end()
                continue
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return is_open
            if letter == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    out.append(following if following and following in '"\\$`' else "\\" + following)
                self.at = min(self.at + 2, self.end)
            else:
                is_open |= self._expansion(out, quoted=True)[0]
        if self.depth == 0:
            self.found.cannot_see('what comes after the end of the line: a " is missing')
        return is_open

    def _expansion(self, out: list[str], *, quoted: bool = False) -> tuple[bool, bool]:
        """At a `$` or a backquote. Whether only a running shell knows what comes; whether it is quoted."""
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
                self.found.cannot_see("what comes after the end of the line: a ' is missing")
            out.append(_ansi(text[start + 2 : stop]))
            self.at = min(stop + 1, self.end)
            return False, True
        if following == '"' and not quoted:
            self.at += 2
            return self._quoted(out), True
        if following == "(":
            self.at += 2
            if not (text.startswith("(", self.at) and self._arithmetic()):
                self._deeper(")")
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
        one = _ONE_NAME.fullmatch(raw)
        out.append(self.found.values.get(one[1] or one[2], raw) if one else raw)
        return True, False

    def _parameter(self) -> None:
        """`${…}` up to its end. What is substituted in it runs."""
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
        self.found.cannot_see("what comes after the end of the line: a } is missing")

    def _backquoted(self) -> None:
        start = self.at + 1
        stop = start
        while stop < self.end and self.text[stop] != "`":
            stop += 2 if self.text[stop] == "\\" else 1
        if stop >= self.end:
            self.found.cannot_see("what comes after the end of the line: a ` is missing")
        inner = self._inner(re.sub(r"\\([`$\\])", r"\1", self.text[start:stop]))
        if inner:
            inner.read()
        self.at = min(stop + 1, self.end)


def _braced(text: str, *, is_open: bool, bare: bool) -> list[Word]:
    """`{git,push}` is two words. Braces without a comma or `..` are letters."""
    if _OPEN not in text:
        return [Word(text.translate(_MARKS) if _CLOSE in text or _COMMA in text else text, is_open, bare)]
    parts, finished = [text], []
    while parts:
        one = parts.pop(0)
        close = one.find(_CLOSE)
        start = one.rfind(_OPEN, 0, close) if close >= 0 else -1
        if start < 0:
            finished.append(Word(one.translate(_MARKS), is_open, bare))
            continue
        inside = one[start + 1 : close]
        if _COMMA not in inside and ".." not in inside:
            parts.insert(0, one[:start] + "{" + inside + "}" + one[close + 1 :])
        elif ".." in inside and _COMMA not in inside:
            parts.insert(0, one[:start] + "{" + inside + "}" + one[close + 1 :])
            is_open = True
        else:
            choices = inside.split(_COMMA)
            if len(parts) + len(finished) + len(choices) > _MOST_BRACED:
                return [Word(text.translate(_MARKS), open=True, bare=False)]
            parts = [one[:start] + choice + one[close + 1 :] for choice in choices] + parts
    return finished


def plain(words: Sequence[Word]) -> str:
    """The words of a command as one line, for people and for keys."""
    return " ".join(_shown(word.text) for word in words)


def _shown(text: str) -> str:
    if text and not re.search(r"[\s'\"|&;<>()]", text):
        return text
    return "'" + text.replace("'", "'\\''") + "'" if "'" not in text else '"' + text.replace('"', '\\"') + '"'
