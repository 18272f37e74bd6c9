"""Secrets are not shown: not in cards, logs, diffs, nor JSON.

Two things give one away. Its shape: issuers give their keys prefixes for exactly this purpose. Or its place:
after a name such as `API_TOKEN`, in a header, in a URL, behind `--password`. What looks like one is replaced
by `[redacted]`; the name stays, and of the value at most the prefix that says whose it was.

This hides values from those who look over a shoulder or read a shared log. It is no boundary: who may read
the checkpoint itself can read all of it.

Commit ids, digests, UUIDs, versions and paths are left alone unless they stand where only a secret would.
All of it takes time linear in the text: quantifiers are possessive or bounded, and nothing is looked at more
than a few times.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from waypoint.model import Record

MASK: Final = "[redacted]"


class Redacted(Record, frozen=True):
    """A text that can be shown, and how many values were taken out of it."""

    text: str
    count: int


# Names

_HINT = re.compile(r"pass|pwd|token|secret|key|auth|cookie|cred|dsn|jwt|otp|signature|connection")
"""In every name that can be one of a secret, in small letters; so cheap a test that it comes first."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_STRONG = frozenset({
    "password", "passwords", "passwd", "passphrase", "passcode", "secret", "secrets", "credential",
    "credentials", "authorization", "apikey", "apikeys", "apitoken", "accesskey", "privatekey",
    "authkey", "refreshtoken", "userpass", "dbpass",
})  # fmt: skip
_STRONG_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "apikey",
    "secretkey",
    "authtoken",
    "accesstoken",
)
_STRONG_KEYS = frozenset({
    "api", "access", "secret", "private", "encryption", "signing", "master", "auth", "account", "deploy",
    "service", "license",
})  # fmt: skip
_STRONG_TOKENS = frozenset({
    "auth", "access", "refresh", "bearer", "api", "bot", "session", "id", "deploy", "personal",
    "security",
})  # fmt: skip
_WEAK = frozenset(
    {"token", "tokens", "auth", "cookie", "cookies", "pass", "pwd", "dsn", "jwt", "otp", "signature"}
)
_OPEN_KEYS = frozenset({
    "public", "pub", "primary", "foreign", "sort", "partition", "row", "cache", "hot", "map", "object",
    "index", "group", "gpg", "pgp", "host", "known", "field", "lookup", "range", "hash", "unique",
})  # fmt: skip
"""Words that make the key after them one that everybody may see."""
_ABOUT = frozenset({
    "path", "paths", "file", "files", "filename", "dir", "directory", "folder", "location", "name",
    "names", "type", "kind", "url", "uri", "endpoint", "host", "hostname", "domain", "port", "issuer",
    "ttl", "expiry", "expires", "expiration", "lifetime", "age", "timeout", "length", "len", "size",
    "count", "counts", "limit", "limits", "budget", "usage", "used", "enabled", "disabled", "required",
    "method", "methods", "mode", "algorithm", "alg", "format", "policy", "provider", "backend", "scheme",
    "schema", "prefix", "suffix", "sock", "socket", "pid", "agent", "field", "fields", "header", "param",
    "env", "var", "version", "class", "hint", "prompt", "changed", "status", "strength", "manager",
    "store", "ring", "fingerprint", "digest", "cost", "rounds", "per", "window", "max", "min", "id",
    "ids", "stdin", "command", "cmd", "callback", "helper", "from", "ref", "error",
})  # fmt: skip
"""Last words that say a name is about a secret and is not one."""
_AMOUNTS = frozenset(
    {"max", "min", "num", "total", "count", "input", "output", "prompt", "completion", "cached"}
)


@lru_cache(maxsize=4096)
def _grade(name: str) -> int:
    """2: what follows is a secret. 1: it is, if it looks like one. 0: nothing to hide."""
    words = [word.lower() for word in _WORDS.findall(name[:200])]
    while words and words[-1].isdecimal():
        words.pop()
    if not words:
        return 0
    if words[-3:] == ["access", "key", "id"]:
        return 2
    if words[-1] in _ABOUT or words in (["pwd"], ["oldpwd"], ["old", "pwd"]):
        return 0
    if words[-1] in {"tokens", "token"} and not _AMOUNTS.isdisjoint(words[:-1]):
        return 0
    if any(word in _STRONG or word.endswith(_STRONG_ENDINGS) for word in words):
        return 2
    for before, word in pairwise(words):
        if before in _STRONG_KEYS and word in {"key", "keys"}:
            return 2
        if (before in _STRONG_TOKENS and word == "token") or (before, word) == ("connection", "string"):
            return 2
    # `auth_backend`, `cookie_banner`: the word has to be what the name ends in, or nearly (`AUTH_V2`).
    ends = words[-1] in _WEAK or (len(words) > 1 and words[-2] in _WEAK and len(words[-1]) <= 4)
    return int(ends or (words[-1] in {"key", "keys"} and _OPEN_KEYS.isdisjoint(words)))


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _grade(name) > 0


# Shapes


class _Shape(NamedTuple):
    hints: tuple[str, ...]
    """What a text must contain for the pattern to be tried."""
    prefix: str
    """What may be shown."""
    rest: str


_SHAPES: Final = (
    _Shape(
        ("AKIA", "ASIA", "AGPA", "AIDA", "AROA"), r"A(?:KIA|SIA|GPA|IDA|ROA)", r"[A-Z0-9]{16}(?![A-Za-z0-9])"
    ),
    _Shape(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_", r"[A-Za-z0-9]{20,}+"),
    _Shape(("github_pat_",), r"github_pat_", r"\w{20,}+"),
    _Shape(("gl",), r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas)-", r"[\w.-]{16,}+"),
    _Shape(("xox", "xapp-"), r"(?:xox[a-z]-|xapp-)", r"[A-Za-z0-9-]{10,}+"),
    _Shape(("slack.com/",), r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[\w/+=-]{10,}+"),
    _Shape(("_live_", "_test_"), r"(?:sk|rk)_(?:live|test)_", r"[A-Za-z0-9]{10,}+"),
    _Shape(("whsec_",), r"whsec_", r"[A-Za-z0-9+/=]{16,}+"),
    _Shape(("sk-",), r"sk-(?:ant-|proj-|svcacct-|admin-|or-)?", r"(?=[\w-]{0,60}\d)[\w-]{20,}+"),
    _Shape(("AIza",), r"AIza", r"[\w-]{30,}+"),
    _Shape(("ya29.",), r"ya29\.", r"[\w.-]{20,}+"),
    _Shape(("GOCSPX-",), r"GOCSPX-", r"[\w-]{20,}+"),
    _Shape(("eyJ",), r"eyJ", r"[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+){0,3}+"),
    _Shape(("npm_",), r"npm_", r"[A-Za-z0-9]{30,}+"),
    _Shape(("pypi-",), r"pypi-", r"[\w-]{32,}+"),
    _Shape(("hf_",), r"hf_", r"[A-Za-z0-9]{30,}+"),
    _Shape(("dckr_",), r"dckr_[po]at_", r"[\w-]{20,}+"),
    _Shape(("_v1_",), r"do[op]_v1_", r"[0-9a-f]{32,}+"),
    _Shape(("SG.",), r"SG\.", r"[\w-]{16,}+\.[\w-]{16,}+"),
    _Shape(("shp",), r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{24,}+"),
    _Shape(("hvs.", "hvb."), r"hv[sb]\.", r"[\w-]{20,}+"),
    _Shape(("AGE-SECRET-KEY-",), r"AGE-SECRET-KEY-", r"[A-Z0-9]{20,}+"),
    _Shape(("lin_api_",), r"lin_api_", r"[A-Za-z0-9]{20,}+"),
)
_PATTERNS = tuple(
    (shape.hints, re.compile(rf"(?<![A-Za-z0-9_-])({shape.prefix}){shape.rest}")) for shape in _SHAPES
)
_ANY_SHAPE = re.compile("|".join(re.escape(hint) for shape in _SHAPES for hint in shape.hints))
_DONE = re.compile(rf"(?:{'|'.join(shape.prefix for shape in _SHAPES)})?\[redacted\][)\]}}.:]*")

_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY_LINES = re.compile(r"(?:(?:\\[rn]|\s){0,4}+[-+> |]{0,2}[A-Za-z0-9+/=]{20,}+)++")
_KEY_MATERIAL = re.compile(r"[A-Za-z0-9+/=]{20}")
_LONGEST_PRIVATE_KEY = 64 * 1024


# Values

_TRIVIAL = frozenset({
    "", "true", "false", "yes", "no", "on", "off", "none", "null", "nil", "undefined", "0", "1",
    "enabled", "disabled", "required", "optional", "default", "auto", "basic", "bearer", "string", "str",
    "int", "bool", "boolean", "bytes", "any", "object", "text",
})  # fmt: skip
_REFERENCE = re.compile(
    r"\$\{?\{?[\w. :?-]+\}?\}?|\$\([^)]*\)|%\w+%|%[sdr]|<[^<>]*>|\{\{[^{}]*\}\}|(?:\{[^{}]*\}[^\w{}]?)+"
    r"|[*•]{3,}|[xX]{3,}|[\W_]{1,3}"
    r"|(?:self|this|os|process|args|config|settings|options|request|req|env|ctx|params)[.\[][\w.\[\]]*"
)
"""Says where the secret is, or that there is one; it is not in there."""
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


def _nothing_in(value: str) -> bool:
    """No secret: a constant, a reference to where the secret is, or redacted already."""
    if len(value) > 200:
        return False
    return value.lower() in _TRIVIAL or bool(_REFERENCE.fullmatch(value) or _DONE.fullmatch(value))


def _random(value: str) -> bool:
    """Long, mixed and without pattern: made by a machine so that nobody can guess it."""
    sample = value[:256]
    if len(sample) < 20 or _PATH.match(sample) or sample.count("/") > 4 or _WORDY.fullmatch(sample):
        return False
    counts = Counter(sample)
    bits = -sum(n / len(sample) * math.log2(n / len(sample)) for n in counts.values())
    digits = sum(n for letter, n in counts.items() if letter.isdecimal())
    letters = sum(n for letter, n in counts.items() if letter.isalpha())
    mixed = (digits >= 2 and letters >= 4) or _scrambled(sample)
    return mixed and bits >= (3.0 if _HEX.fullmatch(sample) else 3.5)


def _scrambled(value: str) -> bool:
    """Capitals where no word begins."""
    cases = [letter.isupper() for letter in value if letter.isalpha()]
    return len(cases) >= 16 and sum(one != other for one, other in pairwise(cases)) >= len(cases) / 3


def _telling(name: str, value: str) -> bool:
    """Whether the value of a weak name is a secret: `token=4f9b…` is, `key=up` is not."""
    value = value[:256]
    if len(value) < 8 or any(letter.isspace() for letter in value) or _PATH.match(value) or "://" in value:
        return False
    if any(pattern.fullmatch(value) for pattern in (_VERSION, _DATE, _REFERENCE, _DONE)):
        return False
    if name.lower().endswith(("key", "keys")):
        return _random(value) and not (_HEX.fullmatch(value) or _UUID.fullmatch(value))
    digits = sum(letter.isdecimal() for letter in value)
    if not digits:
        return _scrambled(value)
    return digits < len(value) and (len(value) >= 16 or not _WORDY.fullmatch(value))


def _in_variable(name: str, value: str) -> bool:
    """Whether the value of an environment variable is a secret."""
    grade = _grade(name)
    if not grade or _nothing_in(value):
        return False
    if grade == 1 and value.isdecimal() and len(value) < 10:
        return False
    if grade == 1 and "://" in value and ("@" not in value or MASK in value):
        return False
    return not _may_be_path(name, value)


def _may_be_path(name: str, value: str) -> bool:
    """Keys and tokens are often kept in files, and variables say in which. Passwords are not."""
    kept = name.lower().rstrip("s").endswith(("key", "token", "credential", "auth", "cookie"))
    return kept and _PATH.fullmatch(value) is not None and not any(map(_random, value.split("/")))


def _is_sentence(name: str, value: str) -> bool:
    """`password: "Enter your password"` is what a form says."""
    if not any(letter.isspace() for letter in value.strip()):
        return False
    return value[:1].isupper() or value.rstrip()[-1:] in ".?!:" or name.lower() in value.lower()


def _named(name: str, value: str) -> bool:
    """Whether a quoted string after a name is a secret."""
    grade = _grade(name)
    if not grade or _nothing_in(value):
        return False
    if name.isupper():
        return _in_variable(name, value) and not (grade == 1 and _VERSION.fullmatch(value))
    if grade == 2:
        return not (_VERSION.fullmatch(value) or _is_sentence(name, value) or _may_be_path(name, value))
    return _telling(name, value)


# Places

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
"""How many names are looked at inside one unbroken run of characters: `key=key=key=…` is nobody's format."""

_NOT_AFTER_FLAGS = frozenset({
    "is", "and", "or", "to", "for", "the", "a", "an", "in", "as", "not", "must", "can", "was", "are",
    "if", "from", "with", "option", "options", "flag", "argument", "instead", "on",
})  # fmt: skip

_WORD = r"""(?:[^\s'"|;&]++|'[^'\n]*+'|"[^"\n]*+")"""
_COMMANDS: Final = (
    (r"mysql|mysql[a-z]{4,8}|mariadb|mariadb-[a-z]{3,8}|sshpass", rf"-p)({_WORD})"),
    (r"sshpass|login", rf"-p[ \t]{{1,2}})({_WORD})"),
    (r"redis-cli", rf"-a[ \t]{{1,2}})({_WORD})"),
    (r"curl", r"(?:-u|--user|-U|--proxy-user)[ \t=]{0,2}['\"]?[^\s:'\"]{1,100}:)([^\s'\"]++)"),
    (r"openssl", r"pass:)(\S++)"),
)
"""Programs, and the argument of theirs that is a password. The program has to be named before it."""
_ANY_PROGRAM = re.compile(r"mysql|mariadb|sshpass|login|redis-cli|curl|openssl")
_ARGUMENTS = tuple(
    (re.compile(rf"\b(?:{program})\b"), re.compile(rf"((?<=[ \t]){argument}"))
    for program, argument in _COMMANDS
)


class Redactor:
    """Takes secrets out of what is about to be shown.

    `values` are secrets known as such, say from a session's variables: they are taken out wherever they
    appear, whatever stands around them. Immutable, so one can serve many threads.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        worth = {
            value for value in values if len(value) >= 8 and not value.isalpha() and not _nothing_in(value)
        }
        longest_first = sorted(worth, key=len, reverse=True)[:200]
        self._known = re.compile("|".join(map(re.escape, longest_first))) if worth else None

    @classmethod
    def knowing(cls, variables: Mapping[str, str]) -> Redactor:
        """One that knows the secrets among these variables."""
        return cls(value for name, value in variables.items() if _in_variable(name, value))

    def redact(self, text: str) -> Redacted:
        """The text without its secrets."""
        count = 0
        for _ in range(4):  # what one pass took out may make something else plain
            text, found = self._pass(text)
            count += found
            if not found:
                break
        return Redacted(text=text, count=count)

    def _pass(self, text: str) -> tuple[str, int]:
        edit = _Edit(text)
        if self._known is not None:
            edit.replace(self._known, lambda _: MASK)
        if "-----BEGIN " in edit.text:
            edit.private_keys()
        if _ANY_SHAPE.search(edit.text):
            for hints, pattern in _PATTERNS:
                if any(hint in edit.text for hint in hints):
                    edit.replace(pattern, lambda match: f"{match[1]}{MASK}")
        if "://" in edit.text and "@" in edit.text:
            edit.replace(_URL_PASSWORD, _url_password)
            edit.replace(_URL_USER, _url_user)
        if "earer" in edit.text or "EARER" in edit.text or "asic" in edit.text:
            edit.replace(_SCHEME, _scheme)
        if _ANY_PROGRAM.search(edit.text):
            edit.commands()
        if _HINT.search(edit.text.lower()):
            edit.replace(_HEADER, _header)
            if "</" in edit.text:
                edit.replace(_ELEMENT, _element)
            edit.values(_FLAG, _flag)
            edit.values(_ASSIGNED, _assigned)
            edit.replace(_NEAR, _near)
        return edit.text, edit.count

    def redact_variables(self, variables: Mapping[str, str]) -> tuple[dict[str, str], int]:
        """Environment variables without the values that are secrets; the others are gone through as text."""
        shown: dict[str, str] = {}
        count = 0
        for name, value in variables.items():
            clean = self.redact(value)
            if _in_variable(name, clean.text):
                clean = Redacted(text=MASK, count=max(1, clean.count))
            shown[name] = clean.text
            count += clean.count
        return shown, count

    def redact_json(self, value: Any) -> tuple[Any, int]:
        """Anything made of dictionaries, lists and strings. Keys stay, and so does everything but strings."""
        return self._json(value, "")

    def _json(self, value: Any, name: str) -> tuple[Any, int]:
        if isinstance(value, str):
            clean = self.redact(value)
            if name and _named(name, clean.text):
                return MASK, max(1, clean.count)
            return clean.text, clean.count
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list | tuple):
            pairs = [self._json(item, name) for item in value]
            items = [item for item, _ in pairs]
            return (items if isinstance(value, list) else tuple(items)), sum(found for _, found in pairs)
        return value, 0

    def _object(self, value: dict[Any, Any]) -> tuple[dict[Any, Any], int]:
        subject = next(
            (value[key] for key in ("name", "key", "variable") if isinstance(value.get(key), str)), ""
        )
        shown: dict[Any, Any] = {}
        count = 0
        for key, item in value.items():
            # {"name": "API_TOKEN", "value": …}: the name that matters stands beside the value, not above it.
            beside = isinstance(item, str) and key in {"value", "before", "after", "old", "new"}
            beside = beside and "ecosystem" not in value  # a package may be called `passwd`
            shown[key], found = self._json(item, key if isinstance(key, str) else "")
            if beside and _in_variable(subject, shown[key]) and not _VERSION.fullmatch(item):
                shown[key], found = MASK, max(1, found)
            count += found
        return shown, count

    def redact_file(self, path: str, text: str) -> Redacted:
        """The content of a file, or hunks of a diff of it. Of `.env` files only the names stay, and of files
        made to hold secrets nothing does."""
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
        """A unified diff of any number of files, each by its name."""
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


# Files

_PATCHED = re.compile(r"^--- ([^\t\r\n]*).*\n\+\+\+ ([^\t\r\n]*).*$", re.MULTILINE)
_SECRET_FILES = frozenset({
    ".netrc", "_netrc", ".pgpass", ".git-credentials", ".htpasswd", ".vault-token", ".my.cnf", "id_rsa",
    "id_dsa", "id_ecdsa", "id_ed25519", "shadow", "gshadow",
})  # fmt: skip
_FILE_LINE = re.compile(r"^([ +-]?)(?!@@ -\d|\\ No newline|[ \t]*+$)([^\r\n]++)", re.MULTILINE)


def is_secret_file(path: str) -> bool:
    """Whether a file is made to hold secrets, so that no line of it is shown."""
    name = path.rpartition("/")[2]
    return name in _SECRET_FILES or name.endswith((".p12", ".pfx", ".jks", ".keystore", ".kdbx"))


def _is_guarded(path: str) -> bool:
    return is_secret_file(path) or _is_env_file(path)


def _is_env_file(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in {".env", ".envrc", ".flaskenv"} or name.startswith(".env.") or name.endswith(".env")


# The text while it is worked on

_Span = tuple[int, int]


class _Value(NamedTuple):
    """What stands after a name."""

    text: str
    quoted: bool
    closed: bool


class _Edit:
    """A text that is being redacted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0

    def replace(self, pattern: re.Pattern[str], decide: Callable[[re.Match[str]], str | None]) -> None:
        """Every match becomes what `decide` says; None leaves it as it is."""

        def one(match: re.Match[str]) -> str:
            decided = decide(match)
            if decided is None:
                return match[0]
            self.count += 1
            return decided

        self.text = pattern.sub(one, self.text)

    def _mask(self, spans: list[_Span]) -> None:
        pieces: list[str] = []
        done = 0
        for start, end in spans:
            pieces += (self.text[done:start], MASK)
            done = end
        if spans:
            self.text = "".join([*pieces, self.text[done:]])
            self.count += len(spans)

    def values(self, names: re.Pattern[str], decide: Callable[[re.Match[str], _Value], bool]) -> None:
        """Takes out values after names. A value that stays is searched for names of its own."""
        spans: list[_Span] = []
        done = run = nested = 0
        for match in names.finditer(self.text):
            start = match.start()
            if start < done or (names is not _ENV_LINE and not _HINT.search(match["name"].lower())):
                continue
            nested = nested + 1 if start < run else 0
            pattern = _ENV_VALUE if names is _ENV_LINE else _VALUE
            found = pattern.match(self.text, match.end()) if nested <= _NESTED else None
            if found is None:
                continue
            group = found.lastgroup or ""
            closed = group == "escaped" or found.end() > found.end(group)
            value = _Value(found[group], quoted=group not in {"bare", "line"}, closed=closed)
            run = found.end()
            if decide(match, value):
                begin, end = found.span(group)
                if group == "bare":
                    end = begin + (len(value.text.rstrip(")]}.:")) or len(value.text))
                spans.append((begin, end))
                done = end
        self._mask(spans)

    def commands(self) -> None:
        """Passwords that are arguments by position or by a letter."""
        for program, argument in _ARGUMENTS:
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
                done = end
                self.count += 1
        if pieces:
            self.text = "".join([*pieces, self.text[done:]])


# How one place is judged


def _url_password(match: re.Match[str]) -> str | None:
    return None if _nothing_in(match[2]) else f"{match[1]}{MASK}@"


def _url_user(match: re.Match[str]) -> str | None:
    return f"{match[1]}{MASK}@" if _random(match[2]) else None


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
        given = re.match(r"[^\s=;]{1,200}=\S", value)
        return f"{start}{MASK}" if given and not _nothing_in(value.partition("=")[2]) else None
    if found := _CREDENTIALS.match(value):
        return None if _nothing_in(found[2].strip()) else f"{start}{found[1]} {MASK}"
    word = value.strip()
    return f"{start}{MASK}" if _telling("authorization", word) else None


def _element(match: re.Match[str]) -> str | None:
    return f"{match[1]}{MASK}" if _named(match[2], match[3].strip()) else None


def _argument(program: re.Pattern[str], match: re.Match[str]) -> str | None:
    before = match.string[max(0, match.start() - 300) : match.start()]
    command = re.split(r"[\n|;&]", before)[-1]
    if not program.search(command) or _nothing_in(match[2].strip("'\"")):
        return None
    return f"{match[1]}{MASK}"


def _near(match: re.Match[str]) -> str | None:
    value = match[2]
    plain = _HEX.fullmatch(value[:256]) or _UUID.match(value) or not _random(value)
    return None if plain else f"{match[1]}{MASK}"


def _env_line(_: re.Match[str], value: _Value) -> bool:
    return not (_nothing_in(value.text) or (value.text.isdecimal() and len(value.text) <= 5))


def _flag(match: re.Match[str], value: _Value) -> bool:
    name, text = match["name"], value.text
    grade = _grade(name)
    if not grade or _nothing_in(text) or text.startswith(("-", "id=")) or _may_be_path(name, text):
        return False
    if not value.quoted and re.fullmatch(r"[A-Z_]+[\])]*|\[.*", text):
        return False  # `--token TOKEN` in a help text
    spaced = match["sign"] != "="
    if spaced and text.lower() in _NOT_AFTER_FLAGS:
        return False
    if grade == 1 and (spaced or name.lower().endswith(("key", "keys", "auth", "signature"))):
        return _telling(name, text)
    return not (grade == 1 and (text.isdecimal() or len(text) < 4 or "://" in text))


def _assigned(match: re.Match[str], value: _Value) -> bool:
    name, text = match["name"], value.text
    grade = _grade(name)
    if not grade or _nothing_in(text):
        return False
    if value.quoted:
        whole = value.closed or re.fullmatch(r"[\w.+/=-]{4,}", text) is not None
        return whole and _named(name, text)
    if name.isupper() and match["sign"] == "=":
        return _in_variable(name, text)
    if _CODE.match(text) or name.endswith(text):
        return False
    if grade == 1:
        return _telling(name, text)
    if _VERSION.fullmatch(text) or _may_be_path(name, text):
        return False
    if not _IDENTIFIER.fullmatch(text):
        return True
    return _stands_alone(match, text)


def _stands_alone(match: re.Match[str], text: str) -> bool:
    """Of a plain word: whether it is a setting's value, not a program's variable or a word of prose."""
    whole, start, end = match.string, match.start(), match.end() + len(text)
    sign = match["sign"]
    if "=" in sign and sign.strip() != sign:
        return False  # `password = given`: code, more often than not
    if "=" in sign:
        before = whole[max(0, start - 2) : start].strip()
        return not before.endswith(("(", ",")) and whole[end - 1 : end] != ")"
    line = whole[whole.rfind("\n", max(0, start - 100), start) + 1 : start]
    return line.strip(" \t-+\"'") == "" and whole[end : end + 1] in {"", "\n", "\r"}
