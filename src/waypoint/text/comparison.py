"""Several candidates side by side: one row for each thing that any of them changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from waypoint.api.difference import CommandOutcome, Difference, SectionLine
from waypoint.api.history import ComparedRow
from waypoint.model import Effect
from waypoint.text.commands import is_telling, outcome_line
from waypoint.text.difference import SECTIONS, describe_difference
from waypoint.text.effects import effect_name

_PID = re.compile(r"\bpid \d+(?: → \d+)?(?: · )?")
"""The number of a process: that it is another one does not make two candidates different."""
_RENAMED = " → "


@dataclass(frozen=True)
class Column:
    """What is told of one candidate."""

    difference: Difference
    outcomes: Sequence[CommandOutcome]
    effects: Sequence[Effect]


_Key = tuple[str, str, int]
"""Section, text, and the how many-th line with that text it is."""


def side_by_side(columns: Sequence[Column], apart: Collection[str] | None) -> tuple[ComparedRow, ...]:
    """`apart`: paths at which not all candidates have the same; None: not known."""
    commands = dict.fromkeys(
        outcome.command for column in columns for outcome in column.outcomes if is_telling(outcome)
    )
    told = [_lines(column, commands) for column in columns]
    keys = {key: None for lines in told for key in lines}
    order = {name: place for place, name in enumerate(("commands", *SECTIONS))}

    def place(key: _Key) -> tuple[int, str]:
        """Files by path; of all else, what was told first is first."""
        section, text, _ = key
        return order.get(section, len(order)), text if section == "files" else ""

    rows = []
    for key in sorted(keys, key=place):
        section, text, _ = key
        cells = tuple(lines.get(key) for lines in told)
        same: bool | None = len({_essence(cell) for cell in cells}) == 1
        if section == "files" and same:
            same = None if apart is None else _is_alike(text, apart)
        rows.append(ComparedRow(section=section, text=text, cells=cells, same=same))
    return tuple(rows)


def _lines(column: Column, commands: Iterable[str]) -> dict[_Key, SectionLine]:
    seen: Counter[tuple[str, str]] = Counter()
    lines: dict[_Key, SectionLine] = {}

    def add(section: str, line: SectionLine) -> None:
        seen[section, line.text] += 1
        lines[section, line.text, seen[section, line.text]] = line

    ended = {outcome.command: outcome for outcome in column.outcomes}
    for command in commands:
        if outcome := ended.get(command):
            add("commands", outcome_line(outcome, runs=False))
    for section in describe_difference(column.difference):
        for line in section.lines:
            add(section.name, line)
    for effect in column.effects:
        ending = effect.state if effect.state != "done" else f"exit {effect.exit_code or 0}"
        add("outside", SectionLine(sign="→", text=effect_name(effect), detail=f"{effect.class_} · {ending}"))
    return lines


def _essence(cell: SectionLine | None) -> tuple[str, str] | None:
    return (cell.sign, _PID.sub("", cell.detail)) if cell else None


def _is_alike(text: str, apart: Collection[str]) -> bool:
    """Whether a path, or all that is below a folder, is the same in all candidates."""
    path = text.rpartition(_RENAMED)[2].rstrip("/")
    return path not in apart and not any(other.startswith(f"{path}/") for other in apart)
