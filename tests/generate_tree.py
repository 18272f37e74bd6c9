"""Writes the tree of docs/architecture.md from the folders: `python tests/generate_tree.py`."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "waypoint"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = "<!-- tree -->\n```\n", "```\n<!-- end of tree -->"
TOP_DOWN = (
    *("cli", "mcp", "hooks", "bench", "adapters", "backends", "explore", "client", "aio", "daemon", "core"),
    *(
        "text",
        "agent",
        "policy",
        "store",
        "history",
        "machine",
        "engine",
        "bases",
        "terminal",
        "box",
        "kernel",
    ),
    "api",
)
"""The rooms from the faces to the ground. tests/unit/test_layers.py has the layers."""
_WIDTH = 112


def tree() -> str:
    """One paragraph for each room: what it is for, then its modules."""
    return "\n".join(_room(SOURCE / name, 0) for name in TOP_DOWN) + "\n"


def _room(folder: Path, depth: int) -> str:
    title = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split("\n\n")[0]
    indent = "    " * depth
    lines = _folded(f"{indent}{folder.name}/".ljust(16), " ".join(title.split()))
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    if modules:
        lines += _folded(" " * 16, " ".join(modules))
    rooms = [path for path in sorted(folder.iterdir()) if (path / "__init__.py").exists()]
    return "\n".join([*lines, *(_room(path, depth + 1) for path in rooms)])


def _folded(head: str, text: str) -> list[str]:
    lines, line = [], head
    for word in text.split():
        if len(line) + len(word) + 1 > _WIDTH:
            lines.append(line.rstrip())
            line = " " * 16
        line += word + " "
    return [*lines, line.rstrip()]


def page() -> str:
    """The page with the present tree in it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + tree() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
