"""What an agent tells in a hook, whichever agent it is, and what it can be answered."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

Event = Literal["start", "prompt", "before", "after", "stop", "other"]
Ruling = Literal["allow", "ask", "deny"]


class Happening(NamedTuple):
    """One thing that an agent tells."""

    event: Event
    conversation: str = ""
    """The agent's own name for what it is in the middle of."""
    words: str = ""
    """What the user said, or (at a stop) what the agent said last."""
    tool: str = ""
    input: dict[str, Any] = {}  # noqa: RUF012 - never changed
    result: Any = None
    call: str = ""
    """The agent's name for this call of a tool."""
    command: str | None = None
    """The command line, where the tool is a shell."""
    own: bool = False
    """Whether the tool is one of Waypoint's own: what it did is on record already."""


class Agent(Protocol):
    """What is particular about an agent."""

    name: str
    """As in `waypoint hook NAME`."""
    title: str
    own_folders: tuple[str, ...]
    """Below the home folder: what it writes about itself there is no change of the session."""

    def read(self, told: dict[str, Any]) -> Happening:
        """What it tells, in common words."""

    def rule(self, ruling: Ruling, reason: str) -> dict[str, Any] | None:
        """The answer to a "before" that makes it allow, ask its user, or deny; None to say nothing."""

    def tell(self, words: str) -> dict[str, Any] | None:
        """The answer to a "start" that puts words before the model; None to say nothing."""


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
