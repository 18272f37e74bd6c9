"""Writes the synchronous SDK (client/) from the asynchronous one (aio/), and docs/sdk.md from both:
`python tests/generate_client.py`.

What is awaited there is called here. Connections and programs are written by hand on both sides, since
threads and tasks differ. A line `# sync: …` is part of the synchronous side only. tests/unit/test_sdk.py
checks that the files are up to date.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "waypoint"
MODULES = ("agent", "checkpoint", "client", "session")

_INSIDE = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_REPLACEMENTS = (
    (r"# sync: ", ""),
    (r"\basync (def|for|with)\b", r"\1"),
    (rf"\(await ({_INSIDE})\)(?=\.)", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b__a(iter|enter|exit)__\b", r"__\1__"),
    (r"\bwaypoint\.aio\b", "waypoint.client"),
)


def generate(module: str) -> str:
    """The text of a module of the synchronous SDK."""
    text = (PACKAGE / "aio" / f"{module}.py").read_text()
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    note = f"# Generated from aio/{module}.py: change that, then run `python tests/generate_client.py`.\n"
    target = PACKAGE / "client" / f"{module}.py"
    sorted_ = _ruff("check", "--select=I", "--fix", target=target, text=note + text)
    return _ruff("format", target=target, text=sorted_)


def _ruff(*words: str, target: Path, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *words, "--quiet", f"--stdin-filename={target}", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


# ---- the reference -------------------------------------------------------------------------------------

DOCUMENT = PACKAGE.parents[1] / "docs" / "sdk.md"
CLASSES = (
    "Session",
    "Checkpoint",
    "Tasks",
    "Restored",
    "Resumed",
    "Program",
    "Terminal",
    "Client",
    "Bases",
    "Daemon",
)
_INTRODUCTION = """# The SDK

Generated from the docstrings by `python tests/generate_client.py`.

```python
import waypoint

with waypoint.session("demo") as s:                 # starts it, or joins the running one
    s.run("cd /srv && echo one > note").check()
    point = s.checkpoint("one is written")
    s.run("echo two > note")
    print(point.diff())
    s.restore(point)                                # s.undo() comes back
    s.remove()                                      # without it the session stays
```

All examples of this page are run by the tests.

- Objects are names for things that live in the daemon. They may be used from several threads and processes
  at once. The first call starts the daemon.
- `waypoint.aio` has the same classes and methods for asyncio: `await` them
  (`best_of_three.py` in [examples](examples)).
- Everything is typed: a program that uses it passes `mypy --strict`. All types, and all errors, are exported
  from `waypoint`.
- An error has a `code` that programs can rely on, a `message`, and a `hint` that says what to do next. The
  codes are in [cli.md](cli.md).
- `Client.ask(request)` sends any request of `waypoint.api` and returns its typed result;
  `Client.call(verb, args)` does the same with plain values.
"""


def reference() -> str:
    """The text of docs/sdk.md."""
    waypoint = importlib.import_module("waypoint")
    parts = [_INTRODUCTION, "## Functions\n", _table({name: getattr(waypoint, name) for name in _FUNCTIONS})]
    for name in CLASSES:
        kind = getattr(waypoint, name)
        members = {
            member: value
            for base in reversed(kind.__mro__[:-1])
            if base.__module__.startswith("waypoint.client")
            for member, value in vars(base).items()
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        }
        parts += [f"## {name}\n\n{_first_sentences(kind.__doc__)}\n", _table(members)]
        parts += [_example(f"`{member}`", value.__doc__) for member, value in members.items()]
        parts.append(_example("", kind.__doc__))
    tree = inspect.getdoc(importlib.import_module("waypoint.errors")) or ""
    block = re.search(r"^    WaypointError\n(?:    .*\n)+", tree, re.MULTILINE)
    parts.append(f"## Errors\n\n```\n{inspect.cleandoc(block[0]) if block else ''}\n```\n")
    return "\n".join(filter(None, parts))


def _example(of: str, text: str | None) -> str:
    """The examples of a docstring as a block of the page. tests/integration/test_sdk.py runs the page."""
    found = doctest.DocTestParser().get_examples(inspect.cleandoc(text or ""))
    if not found:
        return ""
    shown = []
    for example in found:
        for number, line in enumerate(example.source.splitlines()):
            shown.append(f"{'...' if number else '>>>'} {line}".rstrip())
        shown += example.want.splitlines()
    heading = f"{of}:\n\n" if of else ""
    return f"{heading}```pycon\n" + "\n".join(shown) + "\n```\n"


_FUNCTIONS = ("session", "sessions", "migration")


def _table(members: Mapping[str, object]) -> str:
    rows = ["| | |", "|---|---|"]
    for name, member in members.items():
        call = name
        if not isinstance(member, property):
            assert callable(member)
            parameters = inspect.signature(member).parameters.values()
            shown = [_parameter(parameter) for parameter in parameters if parameter.name != "self"]
            call = f"{name}({', '.join(shown)})"
        rows.append(f"| `{call}` | {_first_sentences(member.__doc__)} |")
    return "\n".join(rows) + "\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"


def _first_sentences(text: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.cleandoc(text or "").split("\n\n")[0]).split()).replace("|", "\\|")


def main() -> None:
    for module in MODULES:
        (PACKAGE / "client" / f"{module}.py").write_text(generate(module))
    DOCUMENT.write_text(reference())


if __name__ == "__main__":
    main()
