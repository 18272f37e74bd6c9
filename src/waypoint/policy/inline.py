"""Scripts in an argument: `python -c`, `node -e`, `perl -e`.

A script can do anything. So it counts as understood only if everything it uses is on a list of modules and
names that act in the session alone. Commands that it runs are returned if they are literal texts in it;
everything else is listed in `unseen`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

_MAX_CHARACTERS = 20_000

CODE_OPTIONS: dict[str, re.Pattern[str]] = {
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
"""The option before the script; a second group is the script itself, attached to its option."""


@dataclass
class Script:
    """What a script runs."""

    lines: list[str] = field(default_factory=list)
    """Command lines that it passes to a shell."""
    programs: list[list[str]] = field(default_factory=list)
    """Programs that it starts, with their arguments. HTTP requests are listed as commands of `curl`."""
    unseen: list[str] = field(default_factory=list)


def inspect(language: str, code: str) -> Script:
    """Inspects a script without running it."""
    script = Script()
    if len(code) > _MAX_CHARACTERS:
        script.unseen.append(f"what a long script for {language} does")
    elif language == "python":
        _python(code, script)
    elif language in ("node", "bun", "deno"):
        _javascript(code, script)
    elif language == "perl":
        _perl(code, script)
    else:
        _other(language, code, script)
    return script


# ---- Python --------------------------------------------------------------------------------------

_LOCAL_MODULES = frozenset({
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
"""Modules that act in the session alone."""
_LINE_CALLS = frozenset({"system", "popen", "getoutput", "getstatusoutput"})
_ARGV_CALLS = frozenset({"run", "call", "check_call", "check_output", "Popen", "create_subprocess_exec"})
_EXEC_CALLS = re.compile(r"(exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|fork|forkpty|startfile)$")
_DYNAMIC_NAMES = frozenset(
    {"exec", "eval", "compile", "__import__", "getattr", "globals", "vars", "breakpoint"}
)
_REQUEST_CALLS = frozenset(
    {"post", "put", "patch", "delete", "request", "get", "head", "options", "urlopen", "urlretrieve"}
)
_REQUEST_MODULES = frozenset({"requests", "httpx", "urllib", "aiohttp"})
_REQUEST_OBJECTS = frozenset({"request", "session", "s", "client"})


def _python(code: str, script: Script) -> None:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        script.unseen.append("a script for python that cannot be read")
        return
    try:
        nodes = list(ast.walk(tree))
    except RecursionError:
        script.unseen.append("what a deeply nested script for python does")
        return
    names = _Names(script)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.add_import(node)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Call):
            _python_call(node, names, script)
        elif (isinstance(node, ast.Name) and node.id in _DYNAMIC_NAMES) or (
            isinstance(node, ast.Name) and node.id in names.functions and id(node) not in called
        ):
            script.unseen.append(f"what {node.id} does in a script for python")
        elif isinstance(node, ast.Attribute) and (
            node.attr in ("modules", "import_module", "eval", "exec")
            or node.attr.startswith("__")
            or (_starts_program(node.attr) and id(node) not in called)
        ):
            script.unseen.append(f"what .{node.attr} does in a script for python")
    if names.outside_module and not (script.lines or script.programs or script.unseen):
        script.unseen.append(f"what {names.outside_module} does in a script for python")


def _starts_program(name: str) -> bool:
    is_popen = name in ("Popen", "check_call", "check_output")
    return is_popen or name in _LINE_CALLS or bool(_EXEC_CALLS.match(name))


class _Names:
    """What the names of a script refer to."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.modules: dict[str, str] = {}
        self.functions: dict[str, tuple[str, str]] = {}
        self.outside_module = ""
        """An imported module that can act outside the session."""

    def add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        is_import = isinstance(node, ast.Import)
        module = "" if isinstance(node, ast.Import) else node.module or "."
        for name in [alias.name for alias in node.names] if is_import else [module]:
            top = name.partition(".")[0]
            if top == "subprocess" or top in _REQUEST_MODULES:
                self.outside_module = top
            elif top not in _LOCAL_MODULES:
                self._script.unseen.append(f"what the module {name} does")
        for alias in node.names:
            if is_import:
                self.modules[alias.asname or alias.name.partition(".")[0]] = alias.name
            elif alias.name == "*":
                self._script.unseen.append(f"what all of {module} does")
            elif _starts_program(alias.name) or module.partition(".")[0] in ("subprocess", *_REQUEST_MODULES):
                self.functions[alias.asname or alias.name] = (module, alias.name)

    def resolve(self, function: ast.expr) -> tuple[str, str]:
        """The module (or what is before the dot) and the name of a function."""
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


def _python_call(node: ast.Call, names: _Names, script: Script) -> None:
    owner, name = names.resolve(node.func)
    top = owner.partition(".")[0]
    first = _literal(node.args[0]) if node.args else None
    if name in _LINE_CALLS:
        if isinstance(first, str):
            script.lines.append(first)
        else:
            script.unseen.append("what a script for python runs")
    elif name in _ARGV_CALLS and top in ("subprocess", "asyncio"):
        if isinstance(first, str):
            script.lines.append(first)
        elif isinstance(first, list | tuple) and first and all(isinstance(word, str) for word in first):
            script.programs.append(list(first))
        else:
            script.unseen.append("what a script for python runs")
    elif _EXEC_CALLS.match(name) and top in ("os", "pty", ""):
        words = [_literal(argument) for argument in node.args]
        argv = words[1] if name.startswith("execv") and len(words) > 1 else words[1:]
        if isinstance(argv, list | tuple) and argv and all(isinstance(word, str) for word in argv):
            script.programs.append(list(argv))
        else:
            script.unseen.append("what a script for python runs")
    elif name in _REQUEST_CALLS and (top in _REQUEST_MODULES or owner in _REQUEST_OBJECTS):
        _request(node, name, first, script)


def _request(node: ast.Call, name: str, first: Any, script: Script) -> None:
    method, url = name.upper(), first
    if name == "request":
        method, url = str(first).upper(), _literal(node.args[1]) if len(node.args) > 1 else None
    if name in ("urlopen", "urlretrieve"):
        data = next((keyword.value for keyword in node.keywords if keyword.arg == "data"), None)
        method = "GET" if data is None and len(node.args) < 2 else "POST"
        if not isinstance(url, str):
            script.unseen.append("a request that a script for python makes")
    script.programs.append(["curl", "-X", method, url if isinstance(url, str) else "$URL"])


# ---- other languages -----------------------------------------------------------------------------

_JS_LOCAL_NAMES = frozenset({
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
_JS_LOCAL_MODULES = frozenset({
    "fs", "path", "os", "util", "assert", "node:fs", "node:path", "node:os", "node:util", "crypto",
})  # fmt: skip
_JS_STRING = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\$]|\\.)*)`")
_JS_RUN_CALL = re.compile(
    r"\b(?:exec|execSync|spawn|spawnSync|execFile|execFileSync|\$)\s*\(?\s*"
    r"(?:'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\$]|\\.)*)`)(\s*,\s*\[([^\]]*)\])?"
)
_JS_FETCH = re.compile(
    r"\b(?:fetch|axios(?:\.\w+)?|got(?:\.\w+)?)\s*\(\s*(?:'([^']*)'|\"([^\"]*)\"|`([^`$]*)`)(.*)", re.DOTALL
)


def _javascript(code: str, script: Script) -> None:
    for match in _JS_RUN_CALL.finditer(code):
        words = [match[1] or match[2] or match[3] or ""]
        words += [a or b or c for a, b, c in _JS_STRING.findall(match[5] or "")]
        if match[4]:
            script.programs.append(words)
        else:
            script.lines.append(words[0])
    for match in _JS_FETCH.finditer(code):
        method = re.search(r"method['\"]?\s*:\s*['\"](\w+)", match[4]) or re.match(
            r"\w+\.(post|put|patch|delete)", match[0]
        )
        script.programs.append(
            ["curl", "-X", method[1].upper() if method else "GET", match[1] or match[2] or match[3] or ""]
        )
    rest = _JS_STRING.sub(" ", code)
    modules = set(re.findall(r"(?:require\s*\(\s*|from\s+|import\s*\(?\s*)['\"]([^'\"]+)", code))
    names = set(re.findall(r"[A-Za-z_$][\w$]*", rest))
    if not modules <= _JS_LOCAL_MODULES:
        script.unseen.append(f"what the module {min(modules)} does")
    elif names - _JS_LOCAL_NAMES or re.search(r"\[\s*['\"`]|\\u|\\x", code):
        script.unseen.append("what a script for node does")


_PERL_EFFECTS = re.compile(
    r"`|\b(system|exec|qx|open|socket|connect|require|use|eval|do|fork|syscall|kill|sendmail|LWP|IO::)\b"
    r"|/[a-z]*e[a-z]*\s*(;|$)"
)
_CALL = re.compile(
    r"\b(?:system|exec|shell_exec|passthru|popen|qx|os\.execute)\s*[\(\{\[ ]\s*"
    r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|([^)}\]]*))"
)
_BACKQUOTED = re.compile(r"`((?:[^`\\]|\\.)*)`")


def _commands_in(code: str, script: Script) -> None:
    for match in _CALL.finditer(code):
        line = match[1] or match[2] or (match[3] if match[0].startswith("qx") else "")
        if line:
            script.lines.append(line)
    script.lines += _BACKQUOTED.findall(code)


def _perl(code: str, script: Script) -> None:
    _commands_in(code, script)
    if _PERL_EFFECTS.search(code):
        script.unseen.append("what a script for perl does")


def _other(language: str, code: str, script: Script) -> None:
    _commands_in(code, script)
    only_prints = re.fullmatch(r"\s*(puts|print|p|echo|cat)\b[\s(]*([\w\s.+*/%,:\"'-]*)\)?\s*;?\s*", code)
    if not only_prints or "`" in code:
        script.unseen.append(f"what a script for {language} does")
