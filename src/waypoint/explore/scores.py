"""Scores: what an evaluation says, as a number. More is better."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from waypoint.errors import UsageError

if TYPE_CHECKING:
    from waypoint.explore.forks import Fork

Reading = Literal["auto", "exit", "number", "json"]
"""Where a command's score is. `exit`: 1 if it exits with 0, else 0. `number`: what it writes to descriptor 3.
`json`: the same, or the last line that it prints, as `{"score": 0.5, "cost": 2, "why": "…"}`. `auto`: what it
writes to descriptor 3, as JSON or as a number, and its exit status if that is nothing."""

MOST_WRITTEN_BYTES = 1 << 16


class NoScore(UsageError):
    """Raised when an evaluation gives something that is no number."""


@dataclass(frozen=True)
class Score:
    """What an evaluation says: a number, what it has cost to know, and a few words."""

    value: float
    cost: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Command:
    """An evaluation by a command line, run in a fork of what is to be scored."""

    command: str
    read: Reading = "auto"

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise UsageError("an evaluation needs a command")
        if self.read not in get_args(Reading):
            raise UsageError(f"a score is read as {', '.join(get_args(Reading))}, not {self.read!r}")


@dataclass(frozen=True)
class Pairwise:
    """A judge of two, for the strategy `tournament`. It is given a fork of each, and says which is better: a
    number above 0 or "left", below 0 or "right", 0 for neither."""

    judge: Callable[[Fork, Fork], float | str]


Evaluate = str | Command | Pairwise | Callable[["Fork"], Any] | None
"""How results are scored. None: a candidate that is a function returns its score, and a command that succeeds
has 1."""


def score_of(value: Any) -> Score:
    """What a function has returned, as a score."""
    match value:
        case Score():
            number: Any = value
        case Mapping():
            if "score" not in value:
                raise NoScore(f"there is no score in {_shown(value)}")
            number = Score(value["score"], value.get("cost", 0.0), str(value.get("why", "")))
        case _:
            number = Score(value)
    return Score(_finite(number.value), _finite(number.cost, "cost"), number.why)


def read_score(read: Reading, exit_code: int | None, output: str, written: bytes) -> Score:
    """What a command says. `written`: what it has written to descriptor 3."""
    text = written.decode(errors="replace").strip()
    if read == "exit" or (read == "auto" and not text):
        return Score(1.0 if exit_code == 0 else 0.0, why="" if exit_code == 0 else f"exit {exit_code}")
    if read == "json" or (read == "auto" and text.startswith("{")):
        line = text or next(iter(output.strip().splitlines()[-1:]), "")
        try:
            return score_of(json.loads(line))
        except ValueError as error:
            raise NoScore(f"this is no JSON: {_shown(line)}") from error
    if not text:
        raise NoScore("nothing was written to descriptor 3", hint="for example: echo 0.5 >&3")
    return Score(_finite(text))


def verdict_of(value: Any) -> float:
    """What a judge has said about two."""
    if isinstance(value, str) and value in ("left", "right"):
        return 1.0 if value == "left" else -1.0
    return _finite(value, "verdict")


def _finite(value: Any, what: str = "score") -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise NoScore(f"this {what} is no number: {_shown(value)}") from None
    if not math.isfinite(number):
        raise NoScore(f"this {what} is no number: {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= 80 else f"{text[:79]}…")
