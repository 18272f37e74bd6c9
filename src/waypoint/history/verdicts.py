"""Verdicts: what the end of a command says about a point, and what several commands say together.

Only a command that passed or failed says something. One that ran out of time, or that ended with 125 (as for
`git bisect run`: it cannot tell), and one that could not be tried say nothing about the point.

For each command the last time that it passed or failed counts. A point is good when a command passed there
and none failed: that another command passes later does not take a failure back.
"""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.model import Verdict, VerdictState

CANNOT_TELL = 125
_SAYS_SOMETHING = ("passed", "failed")


def state_of(exit_code: int | None, *, timed_out: bool) -> VerdictState:
    """What the end of a command means."""
    if timed_out:
        return "timeout"
    if exit_code == CANNOT_TELL:
        return "unclear"
    return "passed" if exit_code == 0 else "failed"


def standing(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """One verdict for each command that was tried at a point, oldest first."""
    by_command: dict[str, Verdict] = {}
    for verdict in verdicts:
        before = by_command.get(verdict.command)
        if verdict.state in _SAYS_SOMETHING or before is None or before.state not in _SAYS_SOMETHING:
            by_command[verdict.command] = verdict
    return tuple(sorted(by_command.values(), key=lambda verdict: verdict.id))


def deciding(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Of the standing ones the one that stands for the point: a failure before everything else."""
    for state in ("failed", "passed"):
        for verdict in reversed(verdicts):
            if verdict.state == state:
                return verdict
    return verdicts[-1] if verdicts else None
