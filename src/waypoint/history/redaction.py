"""Redaction: secrets are replaced before anything is stored in a card or shown in a log, a diff or JSON.

Two things identify a secret. Its shape: issuers give their keys prefixes for exactly this purpose. Or its
place: after a name such as `API_TOKEN`, in a header, in a URL, behind `--password`. It is replaced by
`[redacted]`; the name stays, and of the value at most the prefix that says whose key it was. The shapes and
the words of names are data: shapes.toml.

This hides values from a person who looks over a shoulder or reads a shared log. It is no security boundary: a
process that may read the checkpoint can read all of it.

Commit ids, digests, UUIDs, versions and paths stay unless they stand where only a secret would. The time is
linear in the text: quantifiers are possessive or bounded, and nothing is looked at more than a few times.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from waypoint.model import Record, from_toml

MASK: Final = "[redacted]"


class Redacted(Record, frozen=True):
    """A text that can be shown, and how many values were replaced in it."""

    text: str
    count: int


# ---- the data -----------------------------------------------------------------------------------


class _Shape(msgspec.Struct, frozen=True):
    hints: tuple[str, ...]
    prefix: str
    rest: str


class _Argument(msgspec.Struct, frozen=True):
    program: str
    argument: str


class _Input(msgspec.Struct, frozen=True):
    hints: tuple[str, ...]
    before: str
    secret: str


class _Names(msgspec.Struct, frozen=True):
    strong: frozenset[str]
    strong_endings: tuple[str, ...]
    secret_keys: frozenset[str]
    secret_tokens: frozenset[str]
    weak: frozenset[str]
    open_keys: frozenset[str]
    about: frozenset[str]
    amounts: frozenset[str]


class _Values(msgspec.Struct, frozen=True):
    trivial: frozenset[str]
    prose: frozenset[str]


class _Files(msgspec.Struct, frozen=True):
    names: frozenset[str]
    endings: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """shapes.toml, where the fields are explained."""

    shapes: tuple[_Shape, ...]
    arguments: tuple[_Argument, ...]
    inputs: tuple[_Input, ...]
    names: _Names
    values: _Values
    files: _Files


_WORD = r"""(?:[^\s'"|;&]++|'[^'\n]*+'|"[^"\n]*+")"""


class _Shapes:
    """The data of shapes.toml with its patterns compiled."""

    def __init__(self, file: _File) -> None:
        self.names, self.values, self.files = file.names, file.values, file.files
        hints = [re.escape(hint) for shape in file.shapes for hint in shape.hints]
        self.any_hint = re.compile("|".join(hints))
        self.patterns = [
            (shape.hints, re.compile(rf"(?<![A-Za-z0-9_-])({shape.prefix}){shape.rest}"))
            for shape in file.shapes
        ]
        prefixes = "|".join(shape.prefix for shape in file.shapes)
        self.masked = re.compile(rf"(?:{prefixes})?\[redacted\][)\]}}.:]*")
        """A value that was redacted before."""
        self.any_program = re.compile("|".join(entry.program for entry in file.arguments))
        self.arguments = [
            (
                re.compile(rf"\b(?:{entry.program})\b"),
                re.compile(rf"(?<=[ \t]){entry.argument}".replace("WORD", _WORD)),
            )
            for entry in file.arguments
        ]

        self.inputs = [
            (entry.hints, re.compile(rf"({entry.before})({entry.secret})")) for entry in file.inputs
        ]


@cache
def _shapes() -> _Shapes:
    """Read when the first text is redacted: most processes that import this module redact nothing."""
    text = (Path(__file__).parent / "shapes.toml").read_bytes()
    return _Shapes(from_toml(text, _File))


# ---- names --------------------------------------------------------------------------------------

_HINT = re.compile(
    r"pass|pwd|token|secret|key|auth|cookie|cred|dsn|jwt|otp|signature|connection|_pat(?![a-z])"
)
"""Every name of a secret contains one of these in lower case. The test is cheap, so it comes first."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(maxsize=4096)
def name_grade(name: str) -> int:
    """2: the value after this name is a secret. 1: it is one if it looks like one. 0: it is none."""
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    while words and words[-1].isdecimal():
        words.pop()
    if not words:
        return 0
    if words[-3:] == ["access", "key", "id"]:
        return 2
    names = _shapes().names
    if words[-1] in names.about or words in (["pwd"], ["oldpwd"], ["old", "pwd"]):
        return 0
    if words[-1] in {"tokens", "token"} and not names.amounts.isdisjoint(words[:-1]):
        return 0
    if any(word in names.strong or word.endswith(names.strong_endings) for word in words):
        return 2
    for before, word in pairwise(words):
        if before in names.secret_keys and word in {"key", "keys"}:
            return 2
        if (before in names.secret_tokens and word == "token") or (before, word) == ("connection", "string"):
            return 2
    # `auth_backend`, `cookie_banner`: the name has to end in the word, or nearly (`AUTH_V2`).
    ends = words[-1] in names.weak or (len(words) > 1 and words[-2] in names.weak and len(words[-1]) <= 4)
    return int(ends or (words[-1] in {"key", "keys"} and names.open_keys.isdisjoint(words)))


# ---- values -------------------------------------------------------------------------------------

_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY_LINES = re.compile(r"(?:(?:\\[rn]|\s){0,4}+[-+> |]{0,2}[A-Za-z0-9+/=]{20,}+)++")
_KEY_MATERIAL = re.compile(r"[A-Za-z0-9+/=]{20}")
_LONGEST_PRIVATE_KEY = 64 * 1024

_REFERENCE = re.compile(
    r"\$\{?\{?[\w. :?-]+\}?\}?|\$\([^)]*\)|%\w+%|%[sdr]|<[^<>]*>|\{\{[^{}]*\}\}|(?:\{[^{}]*\}[^\w{}]?)+"
    r"|[*•]{3,}|[xX]{3,}|[\W_]{1,3}"
    r"|(?:self|this|os|process|args|config|settings|options|request|req|env|ctx|params)[.\[][\w.\[\]]*"
)
"""Says where the secret is, or that there is one; it does not contain the secret."""
_CODE = re.compile(r"[A-Za-z_][\w.]*+[(\[]|[(\[{]")
_IDENTIFIER = re.compile(r"[A-Za-z_.]+[)\]}:]*")
_PATH = re.compile(
    r"(?:~|\.\.?)/.*|/(?:etc|home|root|usr|var|run|tmp|opt|srv|app|mnt|data|dev|proc|secrets?|workspace|Users)"
    r"(?:/.*)?|[A-Za-z]:\\.*|file:.*"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+|(?:sha\d+|md5|blake2b?)[-:=]\S+")
_VERSION = re.compile(r"[v=^~><]{0,3}(?:\d+[:!])?\d+\.\w+(?:[-+~:.]\w+)*")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?|\d\d?:\d\d(?::\d\d.*)?")
_WORDY = re.compile(
    r"(?:[A-Z]?[a-z]+\d?|[A-Z]+\d?|\d+)(?:[_./=:@-]+(?:[A-Z]?[a-z]+\d?|[A-Z]+\d?|\d+))*|0x[0-9a-fA-F]+"
)


def _is_harmless(value: str) -> bool:
    """No secret: a constant, a reference to where the secret is, or redacted already."""
    if len(value) > 200:
        return False
    shapes = _shapes()
    if value.lower() in shapes.values.trivial:
        return True
    return bool(_REFERENCE.fullmatch(value) or shapes.masked.fullmatch(value))


def _looks_random(value: str) -> bool:
    """Long, mixed and without pattern: generated, so that it cannot be guessed."""
    sample = value[:256]
    if len(sample) < 20 or _PATH.match(sample) or sample.count("/") > 4 or _WORDY.fullmatch(sample):
        return False
    counts = Counter(sample)
    bits = -sum(n / len(sample) * math.log2(n / len(sample)) for n in counts.values())
    digits = sum(n for letter, n in counts.items() if letter.isdecimal())
    letters = sum(n for letter, n in counts.items() if letter.isalpha())
    mixed = (digits >= 2 and letters >= 4) or _has_mixed_case(sample)
    return mixed and bits >= (3.0 if _HEX.fullmatch(sample) else 3.5)


def _is_worth(value: str) -> bool:
    """Long enough to be looked for in another text, where it may stand as a plain word."""
    return len(value) >= 4 and MASK not in value and not _is_harmless(value)


_OPAQUE = re.compile(r"[A-Za-z0-9_+/=-]{12,}")


def _is_opaque(value: str) -> bool:
    """Generated, and one word without a character that means something to a shell or in an address."""
    pieces = value.split(".") if value.startswith("eyJ") else [value]
    for piece in pieces:
        digits, letters = (sum(map(kind, piece)) for kind in (str.isdecimal, str.isalpha))
        counts = Counter(piece)
        bits = -sum(n / len(piece) * math.log2(n / len(piece)) for n in counts.values())
        if not _OPAQUE.fullmatch(piece) or _PATH.match(piece) or _WORDY.fullmatch(piece):
            return False
        if digits < 2 or letters < 4 or bits < 3.0:
            return False
    return True


def _has_mixed_case(value: str) -> bool:
    """Capitals in places where no word begins."""
    cases = [letter.isupper() for letter in value if letter.isalpha()]
    return len(cases) >= 16 and sum(before != after for before, after in pairwise(cases)) >= len(cases) / 3


def _looks_secret(name: str, value: str) -> bool:
    """Whether the value of a weak name is a secret: `token=4f9b…` is, `key=up` is not."""
    value = value[:256]
    if len(value) < 8 or any(letter.isspace() for letter in value) or _PATH.match(value) or "://" in value:
        return False
    if any(pattern.fullmatch(value) for pattern in (_VERSION, _DATE, _REFERENCE, _shapes().masked)):
        return False
    if name.lower().endswith(("key", "keys")):
        return _looks_random(value) and not (_HEX.fullmatch(value) or _UUID.fullmatch(value))
    digits = sum(letter.isdecimal() for letter in value)
    if not digits:
        return _has_mixed_case(value)
    return digits < len(value) and (len(value) >= 16 or not _WORDY.fullmatch(value))


def _is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is a secret."""
    grade = name_grade(name)
    if not grade or _is_harmless(value):
        return False
    if grade == 1 and value.isdecimal() and len(value) < 10:
        return False
    if grade == 1 and "://" in value and ("@" not in value or MASK in value):
        return False
    return not _may_be_path(name, value)


def _may_be_path(name: str, value: str) -> bool:
    """Keys and tokens are often kept in files, and variables say in which. Passwords are not."""
    in_files = name.lower().rstrip("s").endswith(("key", "token", "credential", "auth", "cookie"))
    return in_files and _PATH.fullmatch(value) is not None and not any(map(_looks_random, value.split("/")))


def _is_sentence(name: str, value: str) -> bool:
    """`password: "Enter your password"` is the label of a form."""
    if not any(letter.isspace() for letter in value.strip()):
        return False
    return value[:1].isupper() or value.rstrip()[-1:] in ".?!:" or name.lower() in value.lower()


def _is_secret_string(name: str, value: str) -> bool:
    """Whether a quoted string after a name is a secret."""
    grade = name_grade(name)
    if not grade or _is_harmless(value):
        return False
    if name.isupper():
        return _is_secret_variable(name, value) and not (grade == 1 and _VERSION.fullmatch(value))
    if grade == 2:
        return not (_VERSION.fullmatch(value) or _is_sentence(name, value) or _may_be_path(name, value))
    return _looks_secret(name, value)


# ---- places -------------------------------------------------------------------------------------

_URL_PASSWORD = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}+://[^\s/:@?#\"'`<>]*+:)([^\s/?#\"'`<>]+)@"
)
_URL_USER = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}+://)([^\s/:@?#\"'`<>]{16,}+)@")
_SCHEME = re.compile(r"(?<![\w-])([Bb]earer|BEARER|[Bb]asic)([ \t]{1,4}+)([\w.~+/=-]{8,}+)")
_HEADER = re.compile(
    r"((?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie)[\"']?[ \t]{0,2}+:[ \t]{0,4}+[\"']?)"
    r"([^\"'\r\n]{4,8192}+)",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(
    r"(bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256)[ \t]+(\S.*)", re.IGNORECASE
)
_ELEMENT = re.compile(r"(<([A-Za-z][\w.-]{0,60}+)>)([^<>\r\n]{1,4096}+)(?=</)")
_NEAR = re.compile(
    r"((?<![a-z])(?:token|secret|password|passphrase|passcode|credentials?"
    r"|(?:api|access|secret|private|signing)[ _-]?key)(?![a-z])"
    r"[^\n\w]{0,3}(?:[a-z]{1,10}[ :=]{1,3}){0,3}[^\w\n/]{0,6})([A-Za-z0-9_+/=.-]{20,}+)",
    re.IGNORECASE,
)

_ASSIGNED = re.compile(
    r"(?<![\w.$-])(?P<name>[A-Za-z_][\w.-]*+)\\?[\"']?\]?"
    r"(?P<sign>[ \t]{0,2}:[ \t]{0,2}[A-Za-z_][\w.\[\]|]{0,40}+[ \t]{1,2}=[ \t]{1,2}(?=[\"'])"
    r"|[ \t]{0,8}+(?:=>|:=|==?|:)[ \t]{0,8}+)"
)
_FLAG = re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*+)(?P<sign>=|[ \t]{1,4}+)")
_ENV_LINE = re.compile(
    r"^[ +-]?[ \t]*+(?:export[ \t]++)?(?P<name>[A-Za-z_][\w.-]*+)(?P<sign>[ \t]*+[=:][ \t]*+)", re.MULTILINE
)
_VALUE = re.compile(
    r"""\\"(?P<escaped>[^"\\\r\n]*+)(?=\\")"""
    r"""|"(?P<double>(?:[^"\\\r\n]|\\.)*+)"?"""
    r"""|'(?P<single>[^'\r\n]*+)'?"""
    r"""|(?P<bare>[^\s"'`,;&|<>]++)"""
)
_ENV_VALUE = re.compile(
    r"""[ \t]*+(?:"(?P<double>(?:[^"\\\r\n]|\\.)*+)"?|'(?P<single>[^'\r\n]*+)'?|(?P<line>[^\s"'][^\r\n]*+))"""
)
_NESTED = 16
"""How many names are looked at in one unbroken run of characters: no format has `key=key=key=…`."""


class Redactor:
    """Replaces secrets in what is about to be shown.

    `values` are secrets that are known, for example from a session's variables: they are replaced wherever
    they appear. A redactor is immutable, so many threads can share one.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {
            value for value in values if len(value) >= 8 and not value.isalpha() and not _is_harmless(value)
        }
        longest_first = sorted(known, key=len, reverse=True)[:200]
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    @classmethod
    def for_variables(cls, variables: Mapping[str, str]) -> Redactor:
        """A redactor that knows the secrets among these variables."""
        return cls(value for name, value in variables.items() if _is_secret_variable(name, value))

    def redact(self, text: str) -> Redacted:
        """The text without its secrets."""
        count = 0
        for _ in range(4):  # a replacement may make another secret visible
            text, replaced = self._pass(text)
            count += replaced
            if not replaced:
                break
        return Redacted(text=text, count=count)

    def _pass(self, text: str) -> tuple[str, int]:
        edit = self._edit(text)
        return edit.text, edit.count

    def _edit(self, text: str) -> _Edit:
        edit, shapes = _Edit(text), _shapes()
        if self._known is not None:
            edit.replace(self._known, lambda _: MASK)
        if "-----BEGIN " in edit.text:
            edit.private_keys()
        if shapes.any_hint.search(edit.text):
            for hints, pattern in shapes.patterns:
                if any(hint in edit.text for hint in hints):
                    edit.replace(pattern, lambda match: f"{match[1]}{MASK}")
        if "://" in edit.text and "@" in edit.text:
            edit.replace(_URL_PASSWORD, _url_password)
            edit.replace(_URL_USER, _url_user)
        if "earer" in edit.text or "EARER" in edit.text or "asic" in edit.text:
            edit.replace(_SCHEME, _scheme)
        if shapes.any_program.search(edit.text):
            edit.commands()
        for hints, pattern in shapes.inputs:
            if any(hint in edit.text for hint in hints):
                edit.replace(pattern, _input)
        if _HINT.search(edit.text.lower()):
            edit.replace(_HEADER, _header)
            if "</" in edit.text:
                edit.replace(_ELEMENT, _element)
            edit.values(_FLAG, _flag)
            edit.values(_ASSIGNED, _assigned)
            edit.replace(_NEAR, _near)
        return edit

    def opaque_values(self, text: str) -> tuple[str, ...]:
        """Of the secrets of a command line, those that its reader need not see to know what it does:
        generated ones, in which the shell finds nothing to carry out. The longest come first.

        Where only a secret should stand (`--token=…`), a command, the name of a program or an address can
        stand too, so the place alone does not count."""
        found: list[str] = []
        for _ in range(4):
            edit = self._edit(text)
            found += edit.hidden
            if edit.text == text:
                break
            text = edit.text
        lines = {line.strip() for value in found for line in value.strip("'\"").splitlines()}
        return tuple(sorted(filter(_is_opaque, lines), key=len, reverse=True))

    def knowing(self, line: str) -> Redactor:
        """One that knows the secrets of a line as well. A part of the line says less about its words than the
        whole: `echo ann:hunter2` alone has no secret, and `echo ann:hunter2 | chpasswd` has one."""
        hidden = {value.strip("'\"") for value in self._edit(line).hidden}
        words = sorted(filter(_is_worth, hidden), key=len, reverse=True)
        if not words:
            return self
        known = [rf"(?<!\w){re.escape(word)}(?!\w)" for word in words]
        both = Redactor()
        both._known = re.compile("|".join([*known, *([self._known.pattern] if self._known else [])]))
        return both

    def redact_json(self, value: Any) -> tuple[Any, int]:
        """Anything made of dictionaries, lists and strings. Only strings are changed; keys stay."""
        return self._json(value, "")

    def _json(self, value: Any, name: str) -> tuple[Any, int]:
        if isinstance(value, str):
            clean = self.redact(value)
            if name and _is_secret_string(name, clean.text):
                return MASK, max(1, clean.count)
            return clean.text, clean.count
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list | tuple):
            pairs = [self._json(item, name) for item in value]
            items = [item for item, _ in pairs]
            return (items if isinstance(value, list) else tuple(items)), sum(count for _, count in pairs)
        return value, 0

    def _object(self, value: dict[Any, Any]) -> tuple[dict[Any, Any], int]:
        subject = next(
            (value[key] for key in ("name", "key", "variable") if isinstance(value.get(key), str)), ""
        )
        shown: dict[Any, Any] = {}
        count = 0
        for key, item in value.items():
            # {"name": "API_TOKEN", "value": …}: the name that matters stands beside the value, not above it.
            is_value = isinstance(item, str) and key in {"value", "before", "after", "old", "new"}
            is_value = is_value and "ecosystem" not in value  # a package may be called `passwd`
            shown[key], replaced = self._json(item, key if isinstance(key, str) else "")
            if is_value and _is_secret_variable(subject, shown[key]) and not _VERSION.fullmatch(item):
                shown[key], replaced = MASK, max(1, replaced)
            count += replaced
        return shown, count

    def redact_file(self, path: str, text: str) -> Redacted:
        """The content of a file, or hunks of a diff of it. Of `.env` files only the names stay; of files that
        are made to hold secrets nothing does."""
        if is_secret_file(path):
            edit = _Edit(text)
            edit.replace(_FILE_LINE, lambda match: None if match[2] == MASK else f"{match[1]}{MASK}")
            return Redacted(text=edit.text, count=edit.count)
        edit = _Edit(text)
        if _is_env_file(path):
            edit.values(_ENV_LINE, _env_line)
        rest = self.redact(edit.text)
        return Redacted(text=rest.text, count=rest.count + edit.count)

    def redact_patch(self, text: str) -> Redacted:
        """A unified diff of any number of files, each redacted according to its name."""
        pieces: list[str] = []
        count = done = 0
        path = ""
        for match in [*_PATCHED.finditer(text), None]:
            start = match.start() if match else len(text)
            body = self.redact_file(path, text[done:start])
            pieces.append(body.text)
            count += body.count
            if match:
                pieces.append(match[0])
                done = match.end()
                path = next(
                    (name for name in match.groups() if _is_env_file(name) or is_secret_file(name)), ""
                )
        return Redacted(text="".join(pieces), count=count)


# ---- files --------------------------------------------------------------------------------------

_PATCHED = re.compile(r"^--- ([^\t\r\n]*).*\n\+\+\+ ([^\t\r\n]*).*$", re.MULTILINE)
_FILE_LINE = re.compile(r"^([ +-]?)(?!@@ -\d|\\ No newline|[ \t]*+$)([^\r\n]++)", re.MULTILINE)


def is_secret_file(path: str) -> bool:
    """Whether a file is made to hold secrets, so that no line of it is shown."""
    name = path.rpartition("/")[2]
    files = _shapes().files
    return name in files.names or name.endswith(files.endings)


def _is_env_file(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in {".env", ".envrc", ".flaskenv"} or name.startswith(".env.") or name.endswith(".env")


# ---- the text while it is worked on -------------------------------------------------------------

_Span = tuple[int, int]


class _Value(NamedTuple):
    """The value after a name."""

    text: str
    quoted: bool
    closed: bool


class _Edit:
    """A text that is being redacted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0
        self.hidden: list[str] = []
        """What was replaced."""

    def replace(self, pattern: re.Pattern[str], decide: Callable[[re.Match[str]], str | None]) -> None:
        """Replaces every match by what `decide` returns; None leaves it as it is."""

        def replacement(match: re.Match[str]) -> str:
            text = decide(match)
            if text is None:
                return match[0]
            self.count += 1
            before, _, after = text.partition(MASK)
            self.hidden.append(match[0][len(before) : len(match[0]) - len(after)])
            return text

        self.text = pattern.sub(replacement, self.text)

    def _mask(self, spans: list[_Span]) -> None:
        pieces: list[str] = []
        done = 0
        for start, end in spans:
            pieces += (self.text[done:start], MASK)
            self.hidden.append(self.text[start:end])
            done = end
        if spans:
            self.text = "".join([*pieces, self.text[done:]])
            self.count += len(spans)

    def values(self, names: re.Pattern[str], decide: Callable[[re.Match[str], _Value], bool]) -> None:
        """Masks values after names. A value that stays is searched for names of its own."""
        spans: list[_Span] = []
        done = run = nested = 0
        for match in names.finditer(self.text):
            start = match.start()
            if start < done or (names is not _ENV_LINE and not _HINT.search(match["name"].lower())):
                continue
            nested = nested + 1 if start < run else 0
            pattern = _ENV_VALUE if names is _ENV_LINE else _VALUE
            after = pattern.match(self.text, match.end()) if nested <= _NESTED else None
            if after is None:
                continue
            group = after.lastgroup or ""
            closed = group == "escaped" or after.end() > after.end(group)
            value = _Value(after[group], quoted=group not in {"bare", "line"}, closed=closed)
            run = after.end()
            if decide(match, value):
                begin, end = after.span(group)
                if group == "bare":
                    end = begin + (len(value.text.rstrip(")]}.:")) or len(value.text))
                spans.append((begin, end))
                done = end
        self._mask(spans)

    def commands(self) -> None:
        """Passwords that are arguments by position or by a letter."""
        for program, argument in _shapes().arguments:
            if program.search(self.text):
                self.replace(argument, partial(_argument, program))

    def private_keys(self) -> None:
        """PEM blocks; also with line ends written as `\\n`, in diffs, and cut short."""
        pieces: list[str] = []
        done = ending = 0
        for match in _PRIVATE_KEY.finditer(self.text):
            start = match.end()
            if start < done:
                continue
            if 0 <= ending < start:
                ending = self.text.find("-----END ", start)
            if 0 <= ending <= start + _LONGEST_PRIVATE_KEY:
                end = ending
            else:
                lines = _PRIVATE_KEY_LINES.match(self.text, start)
                end = lines.end() if lines else start
            inner = self.text[start:end]
            margin = inner.rpartition("\n")[2] if "\n" in inner and end == ending else ""
            masked = f"\n{margin}{MASK}\n{margin}" if "\n" in inner else MASK
            if inner != masked and _KEY_MATERIAL.search(inner):
                pieces += (self.text[done:start], masked)
                self.hidden.append(inner)
                done = end
                self.count += 1
        if pieces:
            self.text = "".join([*pieces, self.text[done:]])


# ---- decisions about one place ------------------------------------------------------------------


def _url_password(match: re.Match[str]) -> str | None:
    return None if _is_harmless(match[2]) else f"{match[1]}{MASK}@"


def _url_user(match: re.Match[str]) -> str | None:
    return f"{match[1]}{MASK}@" if _looks_random(match[2]) else None


def _scheme(match: re.Match[str]) -> str | None:
    word, space, value = match.groups()
    if word.lower() == "basic":
        try:
            hidden = b":" in base64.b64decode(value[:4096], validate=True)
        except binascii.Error:
            hidden = False
    else:
        hidden = any(letter.isdecimal() for letter in value[:256]) and not _VERSION.fullmatch(value[:256])
    return f"{word}{space}{MASK}" if hidden else None


def _header(match: re.Match[str]) -> str | None:
    start, value = match.groups()
    if "cookie" in start.lower():
        is_set = re.match(r"[^\s=;]{1,200}=\S", value)
        return f"{start}{MASK}" if is_set and not _is_harmless(value.partition("=")[2]) else None
    if credentials := _CREDENTIALS.match(value):
        return None if _is_harmless(credentials[2].strip()) else f"{start}{credentials[1]} {MASK}"
    word = value.strip()
    return f"{start}{MASK}" if _looks_secret("authorization", word) else None


def _element(match: re.Match[str]) -> str | None:
    return f"{match[1]}{MASK}" if _is_secret_string(match[2], match[3].strip()) else None


def _argument(program: re.Pattern[str], match: re.Match[str]) -> str | None:
    before = match.string[max(0, match.start() - 300) : match.start()]
    command = re.split(r"[\n|;&]", before)[-1]
    if not program.search(command) or _is_harmless(match[2].strip("'\"")):
        return None
    return f"{match[1]}{MASK}"


def _input(match: re.Match[str]) -> str | None:
    return None if _is_harmless(match[2]) else f"{match[1]}{MASK}"


def _near(match: re.Match[str]) -> str | None:
    value = match[2]
    plain = _HEX.fullmatch(value[:256]) or _UUID.match(value) or not _looks_random(value)
    return None if plain else f"{match[1]}{MASK}"


def _env_line(_: re.Match[str], value: _Value) -> bool:
    return not (_is_harmless(value.text) or (value.text.isdecimal() and len(value.text) <= 5))


def _flag(match: re.Match[str], value: _Value) -> bool:
    name, text = match["name"], value.text
    grade = name_grade(name)
    if not grade or _is_harmless(text) or text.startswith(("-", "id=")) or _may_be_path(name, text):
        return False
    if not value.quoted and re.fullmatch(r"[A-Z_]+[\])]*|\[.*", text):
        return False  # `--token TOKEN` in a help text
    spaced = match["sign"] != "="
    if spaced and text.lower() in _shapes().values.prose:
        return False
    if grade == 1 and (spaced or name.lower().endswith(("key", "keys", "auth", "signature"))):
        return _looks_secret(name, text)
    return not (grade == 1 and (text.isdecimal() or len(text) < 4 or "://" in text))


def _assigned(match: re.Match[str], value: _Value) -> bool:
    name, text = match["name"], value.text
    grade = name_grade(name)
    if not grade or _is_harmless(text):
        return False
    if value.quoted:
        whole = value.closed or re.fullmatch(r"[\w.+/=-]{4,}", text) is not None
        return whole and _is_secret_string(name, text)
    if name.isupper() and match["sign"] == "=":
        return _is_secret_variable(name, text)
    if _CODE.match(text) or name.endswith(text):
        return False
    if grade == 1:
        return _looks_secret(name, text)
    if _VERSION.fullmatch(text) or _may_be_path(name, text):
        return False
    if not _IDENTIFIER.fullmatch(text):
        return True
    return _stands_alone(match, text)


def _stands_alone(match: re.Match[str], text: str) -> bool:
    """Whether a plain word is the value of a setting, not a variable of a program or a word of prose."""
    whole, start, end = match.string, match.start(), match.end() + len(text)
    sign = match["sign"]
    if "=" in sign and sign.strip() != sign:
        return False  # `password = value`: in most cases program code
    if "=" in sign:
        before = whole[max(0, start - 2) : start].strip()
        return not before.endswith(("(", ",")) and whole[end - 1 : end] != ")"
    line = whole[whole.rfind("\n", max(0, start - 100), start) + 1 : start]
    return line.strip(" \t-+\"'") == "" and whole[end : end + 1] in {"", "\n", "\r"}
