"""Which points may be forgotten: policies, and nothing else. Pure; what is forgotten goes elsewhere.

A policy says what to keep. A point goes only when no rule keeps it, it is of the kinds the policy is about,
it is old enough, and nothing protects it. Rules count within each session: its last N, and the last point of
each of the newest N hours, days and weeks in which there are any. A policy without a rule is refused, since
"keep nothing" is not what somebody meant who said nothing.

Points do not need each other: every one holds its files and its memory whole, and the pool knows no chains
(docs/storage.md). Having children is therefore no reason to stay; the line of history closes over the gap.
What does protect a point is that somebody stands on it or would go back to it, and that is for the caller to
say: `protected`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from waypoint.errors import UsageError
from waypoint.model import Checkpoint, Kind, Record

AUTOMATIC: tuple[Kind, ...] = ("auto", "safety")
"""What Waypoint took by itself, and may thin by itself when room is needed."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def parse_duration(text: str) -> float:
    """`90m`, `2h`, `3d`, `1w`, `1d12h`: seconds."""
    if not _DURATION.fullmatch(text):
        raise UsageError(f"{text!r} is no length of time", hint="write 90m, 2h, 3d, 1w or 1d12h")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def duration_words(seconds: float) -> str:
    """The other way round, in the largest unit that fits."""
    for unit, length in reversed(_UNITS.items()):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


class Policy(Record, frozen=True):
    """What to keep. `older_than`, in seconds: nothing younger goes, whatever the rules say."""

    keep_last: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    older_than: float | None = None
    kinds: tuple[Kind, ...] = ()
    """The kinds of points it is about; empty for all."""
    keep_good: bool = True
    """Whatever was verified last and passed."""
    keep_named: bool = True
    """Whatever has a name or a tag."""

    def check(self) -> None:
        """Raises UsageError for one that says nothing, or nonsense."""
        counts = (self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("a number of points to keep is 1 at least")
        if self.older_than is not None and self.older_than < 0:
            raise UsageError("an age is no less than 0")
        if all(count is None for count in counts) and self.older_than is None:
            raise UsageError(
                "what is to be kept? A policy without a rule would forget everything",
                hint="give --keep-last, --keep-hourly, --keep-daily, --keep-weekly or --older-than,"
                " or the points to forget",
            )


class Kept(Record, frozen=True):
    """A point that stays, and why."""

    id: str
    reasons: tuple[str, ...]


class Decision(Record, frozen=True):
    """What a policy comes to. Together the two are all the points it was asked about."""

    forget: tuple[str, ...]
    """Oldest first."""
    keep: tuple[Kept, ...]


def choose(
    points: Sequence[Checkpoint], policy: Policy, *, protected: Mapping[str, str], now: datetime
) -> Decision:
    """What goes and what stays. `protected`: points that must stay, each with the reason; `now`: with the
    time zone in which hours, days and weeks are meant."""
    policy.check()
    reasons: dict[str, list[str]] = {point.id: [] for point in points}
    moments = {point.id: datetime.fromisoformat(point.created_at).astimezone(now.tzinfo) for point in points}
    ordered = sorted(points, key=lambda point: moments[point.id])
    about = [point for point in ordered if not policy.kinds or point.kind in policy.kinds]
    for session in {point.session for point in about}:
        newest_first = [(one.id, moments[one.id]) for one in reversed(about) if one.session == session]
        for kept, why in _by_rules(newest_first, policy):
            reasons[kept].append(why)
    concerned = {point.id for point in about}
    for point in ordered:
        found = reasons[point.id]
        found += holds(point, policy)
        if point.id in protected:
            found.append(protected[point.id])
        if point.id not in concerned:
            found.append(f"taken as {point.kind}, which the policy is not about")
        elif policy.older_than is not None and (now - moments[point.id]).total_seconds() < policy.older_than:
            found.append(f"younger than {duration_words(policy.older_than)}")
    return Decision(
        forget=tuple(point.id for point in ordered if not reasons[point.id]),
        keep=tuple(
            Kept(id=point.id, reasons=tuple(reasons[point.id])) for point in ordered if reasons[point.id]
        ),
    )


def holds(point: Checkpoint, policy: Policy) -> list[str]:
    """Why a point stays for what is written on it."""
    found = []
    if point.pinned:
        found.append("pinned")
    if policy.keep_named:
        found += [f"named {point.name}"] if point.name else []
        found += [f"tagged {tag}" for tag in point.tags]
    if policy.keep_good and point.verdict and point.verdict.state == "passed":
        found.append("verified good")
    return found


def _by_rules(newest_first: Sequence[tuple[str, datetime]], policy: Policy) -> Iterable[tuple[str, str]]:
    for kept, _ in newest_first[: policy.keep_last or 0]:
        yield kept, f"one of the last {policy.keep_last}"
    for count, bucket, word in (
        (policy.keep_hourly, _hour, "hour"),
        (policy.keep_daily, _day, "day"),
        (policy.keep_weekly, _week, "week"),
    ):
        for kept in _last_of_each(newest_first, bucket, count or 0):
            yield kept, f"the last of its {word}"


def _hour(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month, moment.day, moment.hour


def _day(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month, moment.day


def _week(moment: datetime) -> tuple[int, ...]:
    return moment.isocalendar()[:2]


def _last_of_each(
    newest_first: Sequence[tuple[str, datetime]], bucket: Callable[[datetime], tuple[int, ...]], count: int
) -> list[str]:
    """The newest of each of the newest `count` buckets that have any."""
    found: dict[tuple[int, ...], str] = {}
    for point, moment in newest_first:
        if bucket(moment) not in found:
            if len(found) == count:
                break
            found[bucket(moment)] = point
    return list(found.values())
