"""The results of a campaign, written into a page of docs/ between two marks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown. Whole numbers get separators."""

    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in cells)} |"

    return "\n".join(map(line, (head, ["---"] * len(head), *rows)))


def replace_section(page: str, name: str, text: str) -> None:
    """Writes the text between `<!-- name -->` and `<!-- end of name -->` of a page."""
    path = DOCS / page
    content = path.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    assert begin in content, f"{path} has no mark {begin!r}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{begin}{text}\n{end}", content, count=1))
