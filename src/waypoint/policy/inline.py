"""Scripts given inline: `python -c`, `node -e`, `perl -e`.

A program can hide anything, so a script counts as seen only when all it uses is on a short list of things
that stay in the session. Commands that it runs are brought out where they stand in it as plain texts;
everything else is named as unseen.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

_MOST_CHARACTERS = 20_000

INLINE: dict[str, re.Pattern[str]] = {
    "python": re.compile(r"(-[a-zA-Z]*c)(.+)?", re.DOTALL),
    "perl": re.compile(r"-[a-zA-Z0-9]*[eE]"),
    "ruby": re.compile(r"-[a-zA-Z0-9]*e"),
    "node": re.compile(r"-e|-p|-pe|--eval|--print"),
    "php": re.compile(r"-r|--run"),
    "lua": re.compile(r"-e"),
    "bun": re.compile(r"-e|-p|--eval|--print"),
    "deno": re.compile(r"eval"),
    "osascript": re.compile(r"-e"),
    "Rscript": re.compile(r"-e"),
    "tclsh": re.compile(r"-c"),
}
"""The option after which the script comes; a second group is the script itself."""


@dataclass
class Seen:
    """What a script does."""

    lines: list[str] = field(default_factory=list)
    """Command lines that it gives to a shell."""
    programs: list[list[str]] = field(default_factory=list)
    """Programs that it starts, with their arguments. Requests stand here as `curl` would make them."""
    unseen: list[str] = field(default_factory=list)


def look(language: str, code: str) -> Seen:
    """Looks into a script. Nothing of it is run."""
    found = Seen()
    if len(code) > _MOST_CHARACTERS:
        found.unseen.append(f"what a long script for {language} does")
    elif language == "python":
        _python(code, found)
    elif language in ("node", "bun", "deno"):
        _javascript(code, found)
    elif language == "perl":
        _perl(code, found)
    else:
        _other(language, code, found)
    return found


# ---- Python --------------------------------------------------------------------------------------

_QUIET = frozenset({
    "abc", "argparse", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "codecs",
    "collections", "colorsys", "configparser", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "decimal", "difflib", "dis", "enum", "errno", "filecmp", "fnmatch", "fractions", "functools", "gc",
    "getpass", "glob", "gzip", "hashlib", "heapq", "hmac", "html", "inspect", "io", "itertools", "json",
    "keyword", "linecache", "locale", "logging", "lzma", "math", "mimetypes", "numbers", "operator",
    "os", "pathlib", "platform", "pprint", "pwd", "random", "re", "resource", "secrets", "shutil",
    "signal", "sqlite3", "stat", "statistics", "string", "struct", "sys", "sysconfig", "tarfile",
    "tempfile", "textwrap", "threading", "time", "tokenize", "tomllib", "traceback", "types",
    "typing", "unicodedata", "uuid", "warnings", "xml", "zipfile", "zlib", "zoneinfo", "__future__",
    "numpy", "msgspec",
})  # fmt: skip
"""Modules that do not reach out of the session by themselves."""
_RUNS_LINE = frozenset({"system", "popen", "getoutput", "getstatusoutput"})
_RUNS_ARGV = frozenset({"run", "call", "check_call", "check_output", "Popen", "create_subprocess_exec"})
_REPLACES = re.compile(r"(exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|fork|forkpty|startfile)$")
_DARK = frozenset({"exec", "eval", "compile", "__import__", "getattr", "globals", "vars", "breakpoint"})
_METHODS = frozenset(
    {"post", "put", "patch", "delete", "request", "get", "head", "options", "urlopen", "urlretrieve"}
)
_REQUESTS = frozenset({"requests", "httpx", "urllib", "aiohttp"})


def _python(code: str, found: Seen) -> None:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found.unseen.append("a script for python that cannot be read")
        return
    try:
        nodes = list(ast.walk(tree))
    except RecursionError:
        found.unseen.append("what a deeply nested script for python does")
        return
    names = _Names(found)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.learn(node)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Call):
            _python_call(node, names, found)
        elif (isinstance(node, ast.Name) and node.id in _DARK) or (
            isinstance(node, ast.Name) and node.id in names.functions and id(node) not in called
        ):
            found.unseen.append(f"what {node.id} does in a script for python")
        elif isinstance(node, ast.Attribute) and (
            node.attr in ("modules", "import_module", "eval", "exec")
            or node.attr.startswith("__")
            or (_runs(node.attr) and id(node) not in called)
        ):
            found.unseen.append(f"what .{node.attr} does in a script for python")
    if names.reaches_out and not (found.lines or found.programs or found.unseen):
        found.unseen.append(f"what {names.reaches_out} does in a script for python")


def _runs(name: str) -> bool:
    return (
        name in _RUNS_LINE or name in ("Popen", "check_call", "check_output") or bool(_REPLACES.match(name))
    )


class _Names:
    """What the names of a script stand for."""

    def __init__(self, found: Seen) -> None:
        self._found = found
        self.modules: dict[str, str] = {}
        self.functions: dict[str, tuple[str, str]] = {}
        self.reaches_out = ""
        """A module that was imported and can act on the outside."""

    def learn(self, node: ast.Import | ast.ImportFrom) -> None:
        whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        for name in whole:
            top = name.partition(".")[0]
            if top == "subprocess" or top in _REQUESTS:
                self.reaches_out = top
            elif top not in _QUIET:
                self._found.unseen.append(f"what the module {name} does")
        for alias in node.names:
            if isinstance(node, ast.Import):
                self.modules[alias.asname or alias.name.partition(".")[0]] = alias.name
            elif alias.name == "*":
                self._found.unseen.append(f"what all of {node.module} does")
            elif _runs(alias.name) or (node.module or "").partition(".")[0] in ("subprocess", *_REQUESTS):
                self.functions[alias.asname or alias.name] = (node.module or "", alias.name)

    def resolve(self, function: ast.expr) -> tuple[str, str]:
        """Module (or what stands before the dot) and name of what is called."""
        if isinstance(function, ast.Name):
            return self.functions.get(function.id, ("", function.id))
        if not isinstance(function, ast.Attribute):
            return "", ""
        owner = function.value
        if isinstance(owner, ast.Name):
            return self.modules.get(owner.id, owner.id), function.attr
        return (owner.attr if isinstance(owner, ast.Attribute) else ""), function.attr


def _literal(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _python_call(node: ast.Call, names: _Names, found: Seen) -> None:
    whose, name = names.resolve(node.func)
    top = whose.partition(".")[0]
    first = _literal(node.args[0]) if node.args else None
    if name in _RUNS_LINE:
        if isinstance(first, str):
            found.lines.append(first)
        else:
            found.unseen.append("what a script for python runs")
    elif name in _RUNS_ARGV and top in ("subprocess", "asyncio"):
        if isinstance(first, str):
            found.lines.append(first)
        elif isinstance(first, list | tuple) and first and all(isinstance(word, str) for word in first):
            found.programs.append(list(first))
        else:
            found.unseen.append("what a script for python runs")
    elif _REPLACES.match(name) and top in ("os", "pty", ""):
        words = [_literal(argument) for argument in node.args]
        argv = words[1] if name.startswith("execv") and len(words) > 1 else words[1:]
        if isinstance(argv, list | tuple) and argv and all(isinstance(word, str) for word in argv):
            found.programs.append(list(argv))
        else:
            found.unseen.append("what a script for python runs")
    elif name in _METHODS and (top in _REQUESTS or whose in ("request", "session", "s", "client")):
        _request(node, name, first, found)


def _request(node: ast.Call, name: str, first: Any, found: Seen) -> None:
    method, url = name.upper(), first
    if name == "request":
        method, url = str(first).upper(), _literal(node.args[1]) if len(node.args) > 1 else None
    if name in ("urlopen", "urlretrieve"):
        data = next((one.value for one in node.keywords if one.arg == "data"), None)
        method = "GET" if data is None and len(node.args) < 2 else "POST"
        if not isinstance(url, str):
            found.unseen.append("a request that a script for python makes")
    found.programs.append(["curl", "-X", method, url if isinstance(url, str) else "$URL"])


# ---- others --------------------------------------------------------------------------------------

_JS_QUIET = frozenset({
    "abs", "argv", "assert", "async", "await", "break", "case", "catch", "ceil", "class", "concat",
    "console", "const", "constructor", "continue", "cwd", "data", "date", "Date", "default", "delete",
    "do", "e", "else", "encoding", "endsWith", "entries", "env", "err", "error", "Error", "every",
    "existsSync", "exit", "false", "file", "filter", "find", "finally", "flat", "floor", "for",
    "forEach", "from", "fs", "function", "get", "has", "i", "if", "in", "includes", "indexOf",
    "instanceof", "isArray", "item", "j", "join", "json", "JSON", "k", "key", "keys", "l", "length",
    "let", "line", "lines", "log", "map", "Map", "match", "Math", "max", "min", "mkdirSync", "n",
    "name", "new", "node", "null", "Number", "o", "Object", "of", "out", "p", "parse", "parseFloat",
    "parseInt", "path", "platform", "pop", "process", "promises", "push", "r", "random", "read",
    "readdirSync", "readFileSync", "reduce", "Reflect", "RegExp", "replace", "require", "res",
    "resolve", "result", "return", "reverse", "round", "row", "s", "set", "Set", "shift", "size",
    "slice", "some", "sort", "splice", "split", "startsWith", "statSync", "stderr", "stdin", "stdout",
    "String", "stringify", "substring", "sum", "switch", "t", "test", "text", "then", "this", "throw",
    "toFixed", "toISOString", "toLowerCase", "toString", "toUpperCase", "trim", "true", "try", "typeof",
    "undefined", "unlinkSync", "utf8", "utf", "v", "value", "values", "var", "version", "versions",
    "void", "while", "write", "writeFileSync", "x", "y",
})  # fmt: skip
_JS_STRING = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\$]|\\.)*)`")
_JS_RUNS = re.compile(
    r"\b(?:exec|execSync|spawn|spawnSync|execFile|execFileSync|\$)\s*\(?\s*"
    r"(?:'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\$]|\\.)*)`)(\s*,\s*\[([^\]]*)\])?"
)
_JS_FETCH = re.compile(
    r"\b(?:fetch|axios(?:\.\w+)?|got(?:\.\w+)?)\s*\(\s*(?:'([^']*)'|\"([^\"]*)\"|`([^`$]*)`)(.*)", re.DOTALL
)


def _javascript(code: str, found: Seen) -> None:
    for one in _JS_RUNS.finditer(code):
        words = [one[1] or one[2] or one[3] or ""]
        words += [a or b or c for a, b, c in _JS_STRING.findall(one[5] or "")]
        if one[4]:
            found.programs.append(words)
        else:
            found.lines.append(words[0])
    for one in _JS_FETCH.finditer(code):
        method = re.search(r"method['\"]?\s*:\s*['\"](\w+)", one[4]) or re.match(
            r"\w+\.(post|put|patch|delete)", one[0]
        )
        found.programs.append(
            ["curl", "-X", method[1].upper() if method else "GET", one[1] or one[2] or one[3] or ""]
        )
    rest = _JS_STRING.sub(" ", code)
    modules = set(re.findall(r"(?:require\s*\(\s*|from\s+|import\s*\(?\s*)['\"]([^'\"]+)", code))
    names = set(re.findall(r"[A-Za-z_$][\w$]*", rest))
    if not modules <= {
        "fs",
        "path",
        "os",
        "util",
        "assert",
        "node:fs",
        "node:path",
        "node:os",
        "node:util",
        "crypto",
    }:
        found.unseen.append(f"what the module {min(modules)} does")
    elif names - _JS_QUIET or re.search(r"\[\s*['\"`]|\\u|\\x", code):
        found.unseen.append("what a script for node does")


_PERL_DARK = re.compile(
    r"`|\b(system|exec|qx|open|socket|connect|require|use|eval|do|fork|syscall|kill|sendmail|LWP|IO::)\b"
    r"|/[a-z]*e[a-z]*\s*(;|$)"
)
_CALL = re.compile(
    r"\b(?:system|exec|shell_exec|passthru|popen|qx|os\.execute)\s*[\(\{\[ ]\s*"
    r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([^)}\]]*))"
)
_BACKQUOTED = re.compile(r"`((?:[^`\\]|\\.)*)`")


def _commands_in(code: str, found: Seen) -> None:
    for one in _CALL.finditer(code):
        line = one[1] or one[2] or (one[3] if one[0].startswith("qx") else "")
        if line:
            found.lines.append(line)
    found.lines += [one[1] for one in _BACKQUOTED.finditer(code)]


def _perl(code: str, found: Seen) -> None:
    _commands_in(code, found)
    if _PERL_DARK.search(code):
        found.unseen.append("what a script for perl does")


def _other(language: str, code: str, found: Seen) -> None:
    _commands_in(code, found)
    plain = re.fullmatch(r"\s*(puts|print|p|echo|cat)\b[\s(]*([\w\s.+*/%,:\"'-]*)\)?\s*;?\s*", code)
    if not plain or "`" in code:
        found.unseen.append(f"what a script for {language} does")
