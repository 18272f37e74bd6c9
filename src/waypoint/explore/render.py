"""A search as text, Graphviz, a page of HTML, and its progress as one line. Pure.

Labels and reasons come from candidates, which are not trusted: control characters are made visible, and in
HTML and Graphviz everything is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from waypoint.explore.budget import Budget
from waypoint.explore.tree import ROOT, Node, Tree
from waypoint.text.units import cut, milliseconds, plural, shown

_LABEL_WIDTH = 44
_WHY_WIDTH = 60
_STATUS = {
    "asked": "not told of",
    "done": "done",
    "failed": "failed",
    "timeout": "timed out",
    "over_budget": "over budget",
}
_COLOURS = {
    "asked": "#888888",
    "done": "#2b6cb0",
    "failed": "#c05621",
    "timeout": "#c05621",
    "over_budget": "#c05621",
}
_WINNER_COLOUR = "#2f855a"


def score_of(node: Node) -> str:
    """`0.5`; what became of it where there is no score."""
    return f"{node.score:.4g}" if node.score is not None else _STATUS[node.status]


def _remarks(tree: Tree, node: Node) -> str:
    parts = []
    if tree.best is not None and tree.best.id == node.id:
        parts.append("best")
    if wins := tree.wins(node.id):
        parts.append(f"{plural(wins, 'win')}")
    if (same := tree.duplicate_of(node.id)) is not None:
        parts.append(f"same as {_name(same)}")
    elif (alike := tree.looks_like(node.id)) is not None:
        parts.append(f"looks like {_name(alike)}")
    if node.outcome and node.outcome.held:
        parts.append(f"holds {plural(len(node.outcome.held), 'command')}")
    if node.outcome and node.outcome.why:
        parts.append(cut(shown(node.outcome.why), _WHY_WIDTH))
    return " · ".join(parts)


def _name(number: int) -> str:
    return "the start" if number == ROOT else f"#{number}"


def _cells(tree: Tree, node: Node) -> list[str]:
    outcome = node.outcome
    return [
        f"#{node.id}",
        _name(node.parent or ROOT),
        score_of(node),
        milliseconds(outcome.seconds * 1000) if outcome else "",
        f"{outcome.cost:.4g}" if outcome and outcome.cost else "",
        "" if outcome is None or outcome.files is None else str(outcome.files),
        cut(shown(node.label), _LABEL_WIDTH),
        _remarks(tree, node),
    ]


_HEADINGS = ("node", "from", "score", "time", "cost", "files", "candidate", "")


def table(tree: Tree) -> str:
    """A row for each node, the best first."""
    rows = [list(_HEADINGS), *(_cells(tree, node) for node in _in_order(tree))]
    used = [column for column in range(len(_HEADINGS)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    lines = ["  ".join(row[column].ljust(widths[column]) for column in used).rstrip() for row in rows]
    return "\n".join(lines)


def graph(tree: Tree) -> str:
    """A line for each node, below its parent."""
    lines = [tree[ROOT].label]

    def draw(number: int, before: str) -> None:
        children = tree.children(number)
        for child in children:
            last = child is children[-1]
            facts = f"#{child.id} {score_of(child)}  {cut(shown(child.label), _LABEL_WIDTH)}"
            remarks = _remarks(tree, child)
            lines.append(f"{before}{'└─' if last else '├─'} {facts}{f'  ({remarks})' if remarks else ''}")
            draw(child.id, before + ("   " if last else "│  "))

    draw(ROOT, "")
    return "\n".join(lines)


def progress(tree: Tree, budget: Budget, running: int) -> str:
    """What is running, the best so far, what is left."""
    best = tree.best
    parts = [
        f"{running} running",
        f"best {score_of(best)} (#{best.id})" if best else "none done yet",
        f"left: {left}" if (left := budget.left(tree)) else plural(len(tree), "node"),
    ]
    return " · ".join(parts)


def _colour(tree: Tree, node: Node) -> str:
    return _WINNER_COLOUR if tree.best is not None and tree.best.id == node.id else _COLOURS[node.status]


def dot(tree: Tree, name: str) -> str:
    """For Graphviz: `dot -Tsvg`."""

    def quoted(text: str) -> str:
        escaped = shown(text).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    lines = [f"digraph {quoted(name)} {{", "  node [shape=box, fontname=sans];"]
    lines.append(f"  n{ROOT} [label={quoted(tree[ROOT].label)}];")
    for node in tree.nodes[1:]:
        words = f"#{node.id} {score_of(node)}: {cut(node.label, _LABEL_WIDTH)}"
        lines.append(f'  n{node.id} [label={quoted(words)}, color="{_colour(tree, node)}"];')
        lines.append(f"  n{node.parent} -> n{node.id};")
        if (same := tree.duplicate_of(node.id)) is not None:
            lines.append(f"  n{node.id} -> n{same} [style=dotted, constraint=false];")
    return "\n".join([*lines, "}"]) + "\n"


_STYLE = """body{font:14px/1.5 sans-serif;margin:2em;color:#222}
ul{list-style:none;border-left:1px solid #ccc;margin:0 0 0 .6em;padding-left:1em}
summary{cursor:pointer}code{font-size:13px}.why{color:#777}b{display:inline-block;min-width:5em}
table{border-collapse:collapse;margin-top:2em}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid
#eee}"""


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name}</title><style>{style}</style>
<h1>{name}</h1><p>{facts}</p><p>{start}</p>{tree}<table>{rows}</table></html>
"""


def html(tree: Tree, name: str, stopped: str | None) -> str:
    """A page that loads nothing: the tree, and the table below it."""

    def item(node: Node) -> str:
        remarks = _remarks(tree, node)
        words = (
            f'<b style="color:{_colour(tree, node)}">#{node.id} {escape(score_of(node))}</b> '
            f"<code>{escape(shown(node.label))}</code>"
            f"{f' <span class=why>{escape(remarks)}</span>' if remarks else ''}"
        )
        return f"<li>{words}{below(node.id)}</li>"

    def below(number: int) -> str:
        children = tree.children(number)
        return f"<ul>{''.join(item(child) for child in children)}</ul>" if children else ""

    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    rows = [row(_HEADINGS, "th"), *(row(_cells(tree, node), "td") for node in _in_order(tree))]
    facts = " · ".join(
        filter(
            None,
            [plural(len(tree), "node"), milliseconds(tree.seconds * 1000), shown(stopped) if stopped else ""],
        )
    )
    return _PAGE.format(
        style=_STYLE,
        name=escape(shown(name)),
        facts=escape(facts),
        start=escape(tree[ROOT].label),
        tree=below(ROOT),
        rows="".join(rows),
    )


def _in_order(tree: Tree) -> list[Node]:
    """The best first, then those that cannot win."""
    ranked = tree.ranking()
    known = {node.id for node in ranked}
    return [*ranked, *(node for node in tree.nodes[1:] if node.id not in known)]
