"""Stories as data: what is done, and where a point is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EffectClass = Literal["external-reversible", "irreversible"]


@dataclass(frozen=True)
class Act:
    """One thing that an agent writes down."""

    verb: Literal["plan", "start", "done", "fail", "skip", "claim", "say", "call", "result"]
    """The first five are about a task; `claim`: an effect outside; the others go into the trajectory."""
    words: str


@dataclass(frozen=True)
class Step:
    """One thing that is done in the session. A point is taken after it."""

    command: str = ""
    """Runs in the session's shell."""
    types: str = ""
    """Lines that are typed into the session's terminal after it. The last one makes the file `/tmp/typed`."""
    nested: bool = False
    """Whether a shell inside the session's own waits for commands after it: nothing else can run then."""
    name: str = ""
    """What the point is called: later steps go back to it by this name."""
    restore: str = ""
    """First the session is taken back to the point of this name."""
    fork: str = ""
    """First the story goes on in a fork of the point of this name."""
    undo: bool = False
    """First the last restore is taken back."""
    fails: bool = False
    """Whether the command may end with another status than 0."""
    intent: str | None = None
    """None: the command itself."""
    outside: EffectClass | None = None
    """Of a command that acts outside: in which way. No restore takes it back."""
    acts: tuple[Act, ...] = ()
    """What the agent writes down after the command."""


@dataclass(frozen=True)
class Story:
    """A named list of steps. `needs`: programs without which it cannot be played."""

    name: str
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    seed: int | None = None
    """Of a random story: what repeats it."""


def story(name: str, *steps: str | Step, needs: tuple[str, ...] = ()) -> Story:
    """A story; a step that is a command alone can be written as such."""
    whole = tuple(Step(step) if isinstance(step, str) else step for step in steps)
    return Story(name, whole, needs)
