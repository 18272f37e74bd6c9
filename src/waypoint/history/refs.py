"""Names for points: how `up`, `c5`, `@~2`, `10:27` or `work:up` becomes a checkpoint.

Pure: given the checkpoints there are, which one is meant. In this order: `@` forms, a name, a label (`c5`),
an id or a unique prefix of one, a time of day (the last point at or before it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from waypoint.errors import InvalidName, NotFound, UsageError
from waypoint.history.retention import parse_duration
from waypoint.model import Checkpoint

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_LABEL = re.compile(r"c\d+")
_STEPS = re.compile(r"@(?:(-+)|~(\d+))?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SHORTEST_PREFIX = 4
RESERVED = frozenset({"good", "now", "base"})


def split(ref: str) -> tuple[str | None, str]:
    """The session that a ref names by itself, if it does, and the rest: `work:up`, or `work/up` as the log
    writes it. A time of day is no session."""
    for separator in (":", "/"):
        session, found, rest = ref.partition(separator)
        if found and not (separator == ":" and _CLOCK.fullmatch(ref)):
            return session, rest
    return None, ref


def check_name(name: str, what: str) -> str:
    """The name, or InvalidName saying what one may look like."""
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
    said = [f"{point.label} ({point.name})" if point.name else point.label for point in points[-12:]]
    more = f"… {len(points) - 12} older, " if len(points) > 12 else ""
    return f"there are: {more}{', '.join(said)}"


def _steps_back(head: str | None, steps: int, everything: dict[str, Checkpoint], ref: str) -> Checkpoint:
    point = everything.get(head or "")
    for _ in range(steps):
        point = everything.get(point.parent or "") if point else None
    if point is None:
        if head is None:
            raise NotFound(
                f"{ref}: this session has no checkpoints yet", hint="take one with `waypoint checkpoint`"
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


def moment(text: str, now: datetime) -> datetime:
    """A time that somebody means: `10:27`, `2h` (ago), `3d`, `2026-11-16`, `2026-11-16 10:27`."""
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        if hour < 24 and minute < 60 and second < 60:
            found = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return found if found <= now else found - timedelta(days=1)
    try:
        return now - timedelta(seconds=parse_duration(text.replace(" ", "")))
    except UsageError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time", hint="write 10:27, 2h (ago), 3d, 2026-11-16 or '2026-11-16 10:27'"
        ) from None
    return found if found.tzinfo else found.astimezone()


def _line(by_id: Mapping[str, Checkpoint], head: str | None) -> list[Checkpoint]:
    """The way back from where a session stands, through the sessions that it was forked from."""
    line: list[Checkpoint] = []
    point = by_id.get(head or "")
    while point and len(line) <= len(by_id):
        line.append(point)
        point = by_id.get(point.parent or "")
    return line


def _known(ref: str, points: Sequence[Checkpoint], line: Sequence[Checkpoint]) -> str:
    """What there is instead. A fork's log shows the points before it; their names are their session's."""
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
    """The last point that verified: on the way back from where the session stands, else of all its points."""
    line = _line({point.id: point for point in everything}, head)
    for one in (*line, *reversed(points)):
        if one.verdict and one.verdict.state == "passed":
            return one
    raise NotFound("no checkpoint has been verified as good", hint="`waypoint verify REF CMD` verifies one")


def resolve(
    ref: str, points: Sequence[Checkpoint], everything: Sequence[Checkpoint], head: str | None, now: datetime
) -> Checkpoint:
    """The checkpoint a ref means. `points`: the session's own, oldest first; `everything`: all there are (an
    id may be another session's); `head`: where the session stands; `now`: with its time zone."""
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
        found = [point for point in everything if point.id.startswith(ref)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{ref} could be {len(found)} checkpoints", hint="give more of the id")
    if clock := _CLOCK.fullmatch(ref):
        at = _at_clock(clock, points, now)
        if at is None:
            raise NotFound(f"there is no checkpoint at or before {ref}", hint=_listing(points))
        return at
    raise NotFound(f"there is no checkpoint {ref!r}", hint=_known(ref, points, _line(by_id, head)))
