"""Refs: how `up`, `c5`, `@~2`, `10:27` or `work:up` names a checkpoint.

Pure functions of the checkpoints that exist. A ref is tried in this order: `@` forms, a name, a label (`c5`),
an id or a unique prefix of one, a time of day (the last point at or before it), a name that only one point of
all sessions has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from waypoint.api.hints import Do, Hint
from waypoint.errors import InvalidName, NotFound, UsageError
from waypoint.history.lineage import ancestors
from waypoint.history.retention import parse_duration
from waypoint.model import Checkpoint

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_LABEL = re.compile(r"c\d+")
_NUMBERED = re.compile(r"c[1-9]\d{0,8}")
_STEPS = re.compile(r"@(?:(-+)|~([0-9]{1,9}))?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SHORTEST_PREFIX = 4
RESERVED = frozenset({"good", "now", "base"})


def split(ref: str) -> tuple[str | None, str]:
    """The session that a ref names, if it names one, and the rest: `work:up`, or `work/up` as the log writes
    it. A time of day is not a session."""
    for separator in (":", "/"):
        session, separated, rest = ref.partition(separator)
        if separated and not (separator == ":" and _CLOCK.fullmatch(ref)):
            return session, rest
    return None, ref


def label_number(ref: str) -> int | None:
    """The 5 of `c5`. Nothing else can be meant by it: no point has such a name."""
    return int(ref[1:]) if _NUMBERED.fullmatch(ref) else None


def check_name(name: str, what: str) -> str:
    """Returns the name; raises InvalidName if it is not allowed."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a {what}",
            hint="letters, digits, '_', '-' and '.', at most 64, not starting with '-' or '.'",
        )
    if what == "checkpoint" and (_LABEL.fullmatch(name) or name in RESERVED):
        raise InvalidName(f"{name!r} means something else as a ref", hint="choose another name")
    return name


def _listing(points: Sequence[Checkpoint]) -> str:
    if not points:
        return "this session has no checkpoints yet"
    labels = [f"{point.label} ({point.name})" if point.name else point.label for point in points[-12:]]
    more = f"… {len(points) - 12} older, " if len(points) > 12 else ""
    return f"there are: {more}{', '.join(labels)}"


def _steps_back(head: str | None, steps: int, everything: dict[str, Checkpoint], ref: str) -> Checkpoint:
    point = everything.get(head or "")
    while point and steps:
        point, steps = everything.get(point.parent or ""), steps - 1
    if point is None:
        if head is None:
            raise NotFound(
                f"{ref}: this session has no checkpoints yet", hint=Hint(Do("checkpoint"), " takes one")
            )
        raise NotFound(f"{ref} goes back further than the history does")
    return point


def _at_clock(match: re.Match[str], points: Sequence[Checkpoint], now: datetime) -> Checkpoint | None:
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 59)
    if hour > 23 or minute > 59 or second > 59:
        return None
    moment = now.replace(hour=hour, minute=minute, second=second, microsecond=999_999)
    if moment - timedelta(minutes=1) > now:
        moment -= timedelta(days=1)
    earlier = [point for point in points if datetime.fromisoformat(point.created_at) <= moment]
    return earlier[-1] if earlier else None


def parse_moment(text: str, now: datetime) -> datetime:
    """A time as a user writes it: `10:27`, `2h` (ago), `3d`, `2026-11-16`, `2026-11-16 10:27`."""
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        if hour < 24 and minute < 60 and second < 60:
            moment = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return moment if moment <= now else moment - timedelta(days=1)
    with contextlib.suppress(UsageError):
        return now - timedelta(seconds=parse_duration(text.replace(" ", "")))
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):  # the first and the last day of the calendar have no local time
        raise UsageError(
            f"{text!r} is not a time", hint="write 10:27, 2h (ago), 3d, 2026-11-16 or '2026-11-16 10:27'"
        ) from None


def _alternatives(ref: str, points: Sequence[Checkpoint], line: Sequence[Checkpoint]) -> str:
    """What exists instead. A fork's log shows the points before it, but their names belong to their
    session."""
    own = {point.id for point in points}
    before = [point for point in line if point.id not in own]
    for point in before:
        if ref in (point.name, point.label, *point.tags):
            return f"{point.session}:{ref} is one, of the session this was forked from"
    if not points and before:
        first = before[0]
        return (
            f"this session has none of its own yet; it began at {first.session}:{first.name or first.label}"
        )
    return _listing(points)


def _last_good(
    points: Sequence[Checkpoint], everything: Sequence[Checkpoint], head: str | None
) -> Checkpoint:
    """The last verified point: on the line that leads to the session's head, else of all its points."""
    for point in (*ancestors(everything, head), *reversed(points)):
        if point.verdict and point.verdict.state == "passed" and not point.damage:
            return point
    raise NotFound(
        "no checkpoint has been verified as good", hint=Hint(Do("verify", "ref", "command"), " verifies one")
    )


def resolve(
    ref: str, points: Sequence[Checkpoint], everything: Sequence[Checkpoint], head: str | None, now: datetime
) -> Checkpoint:
    """The checkpoint that a ref names. `points`: the session's own, oldest first; `everything`: all that
    exist (an id may be another session's); `head`: the point that the session stands on; `now`: with its time
    zone."""
    by_id = {point.id: point for point in everything}
    if ref == "good":
        return _last_good(points, everything, head)
    if steps := _STEPS.fullmatch(ref):
        return _steps_back(head, len(steps[1] or "") or int(steps[2] or 0), by_id, ref)
    for point in points:
        if ref in (point.name, point.label, *point.tags):
            return point
    if ref in by_id:
        return by_id[ref]
    if len(ref) >= _SHORTEST_PREFIX and re.fullmatch(r"[0-9a-f]+", ref):
        matches = [point for point in everything if point.id.startswith(ref)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(f"{ref} could be {len(matches)} checkpoints", hint="give more of the id")
    if clock := _CLOCK.fullmatch(ref):
        earlier = _at_clock(clock, points, now)
        if earlier is None:
            raise NotFound(f"there is no checkpoint at or before {ref}", hint=_listing(points))
        return earlier
    if anywhere := named_anywhere(ref, everything):
        return anywhere
    raise NotFound(
        f"there is no checkpoint {ref!r}", hint=_alternatives(ref, points, ancestors(everything, head))
    )


def named_anywhere(ref: str, everything: Sequence[Checkpoint]) -> Checkpoint | None:
    """The only point of all sessions that has this id, name or tag; UsageError naming them if there are
    more."""
    named = [point for point in everything if ref in (point.id, point.name, *point.tags)]
    if len(named) > 1:
        places = [f"{point.session}:{ref if ref == point.name else point.label}" for point in named]
        raise UsageError(f"{ref} could be {len(named)} checkpoints", hint=f"there are: {', '.join(places)}")
    return named[0] if named else None
