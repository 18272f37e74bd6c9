"""What is tried: command lines, a function on a live fork, or an agent with several attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint.errors import UsageError
from waypoint.explore.tree import Node, Proposal

if TYPE_CHECKING:
    from waypoint.explore.forks import Fork

_LONGEST_LABEL = 60
MOST_CANDIDATES = 10_000


class Place(NamedTuple):
    """Where a search may go on: what a function that proposes candidates is given."""

    node: Node
    path: tuple[str, ...]
    """The labels of what led here, oldest first."""


@dataclass
class Attempt:
    """What an agent is told about its attempt, and what it tells of it."""

    number: int
    """Which of the attempts at this place it is, from 1 on."""
    place: Place
    cost: float = 0.0

    def spend(self, cost: float) -> None:
        """Adds to what this attempt costs."""
        self.cost += cost


@dataclass(frozen=True)
class Agent:
    """Something that does not do the same each time. `work`: a command line, or a function of the live fork
    and the `Attempt`. A command finds the number of the attempt in WAYPOINT_ATTEMPT. `attempts`: how many at
    each place."""

    work: str | Callable[[Fork, Attempt], Any]
    attempts: int = 4
    name: str = ""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"an agent has at least one attempt, not {self.attempts!r}")


Work = str | Sequence[str] | Callable[["Fork"], Any] | Agent
"""One thing to try. Several lines are run one after the other in the shell, until one fails."""
Propose = Work | Iterable[Work] | Callable[[Place], Iterable[Work] | Agent]
"""What to try at every place: a list of it (a command alone is a list of one), or a function of the place."""


@dataclass(frozen=True)
class Candidate:
    """One thing to try, as the journal has it and as it is run."""

    proposal: Proposal
    work: Callable[..., Any] | None = field(default=None, compare=False)
    """The function, of one that is no command."""
    number: int = 1
    """Which attempt of an agent it is."""


def proposed_by(propose: Propose, place: Place) -> list[Candidate]:
    """What may be tried at a place."""
    if isinstance(propose, str | Agent):
        works: Iterable[Work] = [propose]
    elif callable(propose):
        answer: Any = propose(place)  # type: ignore[arg-type] # a function among works is in a list
        works = [answer] if isinstance(answer, str | Agent) else answer or []
    else:
        works = propose
    try:
        found = [candidate for work in works for candidate in candidates_of(work)]
    except TypeError as error:
        raise UsageError(f"these are no candidates: {works!r}", hint=_HINT) from error
    if len(found) > MOST_CANDIDATES:
        raise UsageError(f"{len(found):,} candidates at one place", hint=f"at most {MOST_CANDIDATES:,}")
    return found


_HINT = "give command lines, lists of command lines, functions of a session, or an `Agent`"


def candidates_of(work: Work) -> list[Candidate]:
    """One thing to try, as candidates: of an agent, one for each attempt."""
    if isinstance(work, Agent):
        steps = (work.work,) if isinstance(work.work, str) else None
        name = work.name or label_of(work.work)
        return [
            Candidate(
                Proposal(label=f"{name} #{number}", steps=steps, agent=True),
                None if isinstance(work.work, str) else work.work,
                number,
            )
            for number in range(1, work.attempts + 1)
        ]
    if callable(work):
        return [Candidate(Proposal(label=label_of(work)), work)]
    lines: tuple[Any, ...] = (work,) if isinstance(work, str) else tuple(work)
    if not lines or not all(isinstance(line, str) and line.strip() for line in lines):
        raise UsageError(f"this is no candidate: {work!r}", hint=_HINT)
    return [Candidate(Proposal(label=label_of("; ".join(lines)), steps=lines))]


def label_of(work: str | Callable[..., Any]) -> str:
    """A few words for it."""
    text = work if isinstance(work, str) else getattr(work, "__name__", type(work).__name__)
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_LABEL else f"{words[: _LONGEST_LABEL - 1]}…"
