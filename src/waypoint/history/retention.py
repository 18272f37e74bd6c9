"""Retention: which points a policy allows to forget. Pure; the caller deletes them.

A policy says what to keep. A point is forgotten only when no rule keeps it, it is of the kinds that the
policy concerns, it is old enough, and nothing protects it. Rules count within each session: its last N
points, and the last point of each of the newest N hours, days and weeks that have any. A policy without a
rule is refused: it would forget everything, which a user who gave no rule did not mean.

Points do not need each other: each one holds its files and its memory whole, and the pool knows no chains
(docs/storage.md). So a point with children may go; the line of history stays connected. `protected` are the
points that must stay, because a session stands on them or may go back to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from waypoint.api.hints import Arg, Hint
from waypoint.errors import UsageError
from waypoint.model import Checkpoint, Kind, Record

AUTOMATIC: tuple[Kind, ...] = ("auto", "safety")
"""The kinds of points that Waypoint takes by itself, and may forget by itself when space is needed."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_MOST_SECONDS = 5200 * 604800.0
"""A hundred years: a moment so long before or after now is still a date."""


def parse_duration(text: str) -> float:
    """`90m`, `2h`, `3d`, `1w`, `1d12h`: seconds."""
    if not _DURATION.fullmatch(text):
        raise UsageError(f"{text!r} is not a duration", hint="write 90m, 2h, 3d, 1w or 1d12h")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if seconds > _MOST_SECONDS:
        raise UsageError("a duration is at most a hundred years", hint="write 5200w or less")
    return seconds


def format_duration(seconds: float) -> str:
    """Seconds as a duration, in the largest unit that fits."""
    for unit, length in reversed(_UNITS.items()):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


class RetentionPolicy(Record, frozen=True):
    """What to keep. `older_than`, in seconds: nothing younger is forgotten, whatever the rules say."""

    keep_last: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    older_than: float | None = None
    kinds: tuple[Kind, ...] = ()
    """The kinds of points it concerns; empty for all."""
    keep_good: bool = True
    """Whether points stay whose last verification passed."""
    keep_named: bool = True
    """Whether points with a name or a tag stay."""

    def check(self) -> None:
        """Raises UsageError for a policy without a rule or with a senseless number."""
        counts = (self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("the number of points to keep must be at least 1")
        if self.older_than is not None and self.older_than < 0:
            raise UsageError("an age cannot be negative")
        if all(count is None for count in counts) and self.older_than is None:
            raise UsageError(
                "a policy without a rule would forget everything",
                hint=Hint("give a rule, such as ", Arg("forget", "keep_last"), ", or the points to forget"),
            )


class RetentionChoice(Record, frozen=True):
    """What a policy decides. Together the two fields are all points it was given."""

    forget: tuple[str, ...]
    """Oldest first."""
    keep: dict[str, tuple[str, ...]]
    """The points that stay, and the reasons of each."""


def apply_policy(
    points: Sequence[Checkpoint], policy: RetentionPolicy, *, protected: Mapping[str, str], now: datetime
) -> RetentionChoice:
    """What is forgotten and what stays. `protected`: points that must stay, each with the reason; `now` has
    the time zone in which hours, days and weeks are counted."""
    policy.check()
    reasons: dict[str, list[str]] = {point.id: [] for point in points}
    moments = {point.id: datetime.fromisoformat(point.created_at).astimezone(now.tzinfo) for point in points}
    ordered = sorted(points, key=lambda point: moments[point.id])
    of_kinds = [point for point in ordered if not policy.kinds or point.kind in policy.kinds]
    for session in {point.session for point in of_kinds}:
        newest_first = [
            (point.id, moments[point.id])
            for point in reversed(of_kinds)
            if point.session == session and point.restorable != "failed"  # it takes no other point's place
        ]
        for point_id, why in _by_rules(newest_first, policy):
            reasons[point_id].append(why)
    concerned = {point.id for point in of_kinds}
    for point in ordered:
        why_kept = reasons[point.id]
        why_kept += reasons_to_keep(point, policy)
        if point.id in protected:
            why_kept.append(protected[point.id])
        if point.id not in concerned:
            why_kept.append(f"taken as {point.kind}, which the policy is not about")
        elif policy.older_than is not None and (now - moments[point.id]).total_seconds() < policy.older_than:
            why_kept.append(f"younger than {format_duration(policy.older_than)}")
    return RetentionChoice(
        forget=tuple(point.id for point in ordered if not reasons[point.id]),
        keep={point.id: tuple(reasons[point.id]) for point in ordered if reasons[point.id]},
    )


def reasons_to_keep(point: Checkpoint, policy: RetentionPolicy) -> list[str]:
    """Why a point stays because of its own marks: pin, name, tags, verdict."""
    reasons = []
    if point.pinned:
        reasons.append("pinned")
    if policy.keep_named:
        reasons += [f"named {point.name}"] if point.name else []
        reasons += [f"tagged {tag}" for tag in point.tags]
    if policy.keep_good and point.verdict and point.verdict.state == "passed":
        reasons.append("verified good")
    return reasons


def _by_rules(
    newest_first: Sequence[tuple[str, datetime]], policy: RetentionPolicy
) -> Iterable[tuple[str, str]]:
    for point_id, _ in newest_first[: policy.keep_last or 0]:
        yield point_id, f"one of the last {policy.keep_last}"
    for count, bucket, word in (
        (policy.keep_hourly, _hour, "hour"),
        (policy.keep_daily, _day, "day"),
        (policy.keep_weekly, _week, "week"),
    ):
        for point_id in _last_of_each(newest_first, bucket, count or 0):
            yield point_id, f"the last of its {word}"


def _hour(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month, moment.day, moment.hour


def _day(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month, moment.day


def _week(moment: datetime) -> tuple[int, ...]:
    return moment.isocalendar()[:2]


def _last_of_each(
    newest_first: Sequence[tuple[str, datetime]], bucket: Callable[[datetime], tuple[int, ...]], count: int
) -> list[str]:
    """The newest point of each of the newest `count` buckets that have any."""
    last: dict[tuple[int, ...], str] = {}
    for point_id, moment in newest_first:
        if bucket(moment) not in last:
            if len(last) == count:
                break
            last[bucket(moment)] = point_id
    return list(last.values())
