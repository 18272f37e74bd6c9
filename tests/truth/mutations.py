"""Falsifies true answers, one value at a time: a judge that does not notice is worth nothing.

Every value of every statement is falsified: a number becomes another one, a word gets a letter more, an entry
of a list is dropped. A value that no rule looks at has to be named in NOT_JUDGED, with the reason.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.player import Told, judge_told

_TIMES = 3
"""How often a value of one kind is falsified in a whole campaign."""

NOT_JUDGED = {
    "rss_bytes": "memory of a process changes from moment to moment",
    "memory_bytes": "the same for all processes",
    "redacted": "tests of secrets count what is taken out",
    "gaps": "a gap says why something is not told",
    "size_before": "of a database: the sum of its files, which the files' own lines tell",
    "size_after": "of a database: the same",
    "damage": "the words of SQLite",
    "damage_before": "the same",
    "contacts": "tests of the network count them",
    "not_compared": "says what may have changed without a sign",
    "commands": "tests of the cards count them",
}

Place = tuple[str | int, ...]


class Mutator:
    """Falsifies answers, and keeps count of what was falsified."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        """By kind of value: how often it was falsified."""
        self.unnoticed: list[str] = []

    def check(self, told: Told) -> None:
        """Falsifies what has not been falsified often enough yet, one value of the answer at a time."""
        parts, wanted = _judged_parts(told.what), []
        for place, name, falsehood in _falsehoods(told.answer, ()):
            if self.tried[name] < _TIMES and name.startswith(parts):
                self.tried[name] += 1
                wanted.append((place, name, falsehood))
        faults = len(_judged(told).faults) if wanted else 0
        for place, name, falsehood in wanted:
            answer = copy.deepcopy(told.answer)
            _put(answer, place, falsehood)
            if not _is_noticed(dataclasses.replace(told, answer=answer), faults):
                shown = f"without {_at(told.answer, place)!r}" if falsehood is _DROP else repr(falsehood)
                self.unnoticed.append(f"{told.what}: {name} at {place}: {shown}")


def _judged_parts(what: str) -> tuple[str, ...]:
    return {
        "card": ("card.difference", "card.summary", "sections.lines"),
        "plan": ("plan.lost", "plan.tasks", "plan.not_undone", "words"),
    }.get(what, ("difference", "summary", "sections.lines"))


def _is_noticed(told: Told, faults: int) -> bool:
    try:
        return len(_judged(told).faults) > faults
    except (LookupError, TypeError, ValueError):  # no such kind or sign: nothing that could be believed
        return True


def _judged(told: Told) -> Ledger:
    ledger = Ledger()
    judge_told(ledger, told)
    return ledger


_DROP = object()


def _falsehoods(value: Any, place: Place) -> Iterator[tuple[Place, str, Any]]:
    """Every value below a place: where it is, what kind it is of, and something else in its stead."""
    if place and place[-1] in NOT_JUDGED and (place[-1] not in _FILE_SIZES or "files" not in place):
        return
    name = ".".join(str(step) for step in place if isinstance(step, str))
    if isinstance(value, dict):
        kind = value.get("kind", "") if place and isinstance(place[-1], int) else ""
        for key, inner in value.items():
            for where, inner_name, falsehood in _falsehoods(inner, (*place, key)):
                yield where, inner_name.replace(name, f"{name}({kind})", 1) if kind else inner_name, falsehood
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield (*place, index), f"{name}[]", _DROP
            yield from _falsehoods(inner, (*place, index))
    elif isinstance(value, bool):
        yield place, name, not value
    elif isinstance(value, (int, float)):
        yield place, name, value + 1
    elif isinstance(value, str):
        yield place, name, f"{value}x"


_FILE_SIZES = ("size_before", "size_after")


def _at(answer: Any, place: Place) -> Any:
    for step in place:
        answer = answer[step]
    return answer


def _put(answer: Any, place: Place, value: Any) -> None:
    holder = _at(answer, place[:-1])
    if value is _DROP:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
