"""Plans: what a restore would do, computed before anybody agrees to it.

From the live state against the target. What is lost is in the safety checkpoint, and what no restore undoes
is said. A plan has a number; a restore that names it is refused when the ground has moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.api.difference import Contact, Difference, RestorePlan
from waypoint.model import Checkpoint, TaskChange


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
) -> RestorePlan:
    """The plan from its parts."""
    return RestorePlan(
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
