"""Plans: what a restore would do, computed before anybody agrees to it.

From the live state against the target. What is lost is in the safety checkpoint, and what no restore undoes
is said. A plan has a number; a restore that names it is refused when the ground has moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.history.cards import Difference
from waypoint.history.contacts import Contact
from waypoint.model import Checkpoint, Record, TaskChange


class Plan(Record, frozen=True):
    """What going from now to `target` means."""

    id: str
    session: str
    target: Checkpoint
    head: Checkpoint | None
    lost: Difference
    """From the target to now: what was created or changed will be gone, what was deleted comes back."""
    uncheckpointed: Difference
    """From the last checkpoint to now: what only the safety checkpoint will hold."""
    tasks: tuple[TaskChange, ...] = ()
    """Tasks that stand otherwise at the target: `before` is now."""
    not_undone: tuple[str, ...] = ()
    """What was done outside since the target."""
    unseen: tuple[str, ...] = ()
    """Commands since then that could not be looked into: they may have acted outside."""
    not_covered: tuple[str, ...] = ()
    contacts: tuple[Contact, ...] = ()
    """What the session has talked to since the target was taken; in `not_undone`, too, in words."""


def write_plan(
    plan_id: str,
    *,
    session: str,
    target: Checkpoint,
    head: Checkpoint | None,
    lost: Difference,
    uncheckpointed: Difference,
    coverage: Sequence[str],
    tasks: Sequence[TaskChange] = (),
    contacts: Sequence[Contact] = (),
    not_undone: Sequence[str] = (),
    unseen: Sequence[str] = (),
) -> Plan:
    """The plan from its parts."""
    return Plan(
        id=plan_id,
        session=session,
        target=target,
        head=head,
        lost=lost,
        uncheckpointed=uncheckpointed,
        tasks=tuple(tasks),
        not_undone=tuple(not_undone),
        contacts=tuple(contacts),
        unseen=tuple(unseen),
        not_covered=tuple(dict.fromkeys((*coverage, *target.coverage))),
    )
