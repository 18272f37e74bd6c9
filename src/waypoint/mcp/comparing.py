"""Several forks or points side by side: what each changed since they parted, its verdict, its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waypoint import errors
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.text import views
from waypoint.text.units import milliseconds, plural, size

_MOST_SECTION_LINES = 8


@dataclass
class Row:
    """One of those that are compared."""

    asked: str
    session: str
    point: dict[str, Any] | None
    """None for a session that has no point yet."""
    live: bool
    """Whether it is a session as it is now, rather than a point of one."""
    diff: views.Diff
    unique_bytes: int | None = None
    commands: int = 0
    """How many were run on the way there, and how long they took."""
    commands_ms: float = 0.0
    effects: int = 0
    """What was done outside on the way: nothing takes that back, whichever is chosen."""


@dataclass
class Comparison:
    """What `compare` found."""

    base: dict[str, Any] | None
    rows: list[Row]

    def data(self) -> dict[str, Any]:
        return {
            "base": _ref(self.base) if self.base else "base",
            "rows": [
                {
                    "asked": row.asked,
                    "session": row.session,
                    "point": _ref(row.point) if row.point else None,
                    "live": row.live,
                    "intent": views.title(row.point) if row.point else "",
                    "verdict": _verdict(row),
                    "changes": {
                        "summary": row.diff.summary,
                        "files": _counts(row.diff),
                        "sections": {one["name"]: one["summary"] for one in row.diff.sections},
                    },
                    "cost": {
                        "unique_bytes": row.unique_bytes,
                        "memory_bytes": row.point["size_bytes"] if row.point else None,
                        "processes": row.point["processes"] if row.point else None,
                        "commands": row.commands,
                        "commands_ms": round(row.commands_ms, 1),
                        "effects": row.effects,
                    },
                }
                for row in self.rows
            ],
        }

    def text(self) -> str:
        since = views.quoted(self.base) if self.base else "the base"
        lines = [f"Compared with {since}:"]
        for row in self.rows:
            verdict = row.point["verdict"] if row.point else None
            lines.append(f"{row.asked}  {views.verdict(verdict)}")
            cost = [f"costs {size(row.unique_bytes)}"] if row.unique_bytes is not None else []
            cost.append(f"{plural(row.commands, 'command')} in {milliseconds(row.commands_ms)}")
            if row.effects:
                cost.append(f"{plural(row.effects, 'effect')} outside")
            lines.append("    " + " · ".join((row.diff.summary or "nothing changed", *cost)))
            for section in row.diff.sections:
                told = [line["text"] for line in section["lines"][:_MOST_SECTION_LINES]]
                more = len(section["lines"]) - len(told)
                rest = f" … {more:,} more" if more else ""
                lines.append(f"    {section['name']}: {', '.join(told)}{rest}")
        return "\n".join(lines)


def compare(client: Client, asked: Sequence[str], base: str, verify: str, timeout: float) -> Comparison:
    """`asked`: names of sessions, as they are now, or refs of points."""
    sessions = {one["name"]: one for one in client.call("ls")["sessions"]}
    found: list[tuple[str, Session, Checkpoint | None, bool]] = []
    for word in asked:
        live = word in sessions
        if live:
            session = Session(client, word, "agent")
            head = sessions[word]["head"]
            changed = head is None or bool(session.status().diff)
            if verify and changed:
                point: Checkpoint | None = session.checkpoint("compared with others")
            else:
                point = session.point(head) if head else None
        else:
            name, colon, ref = word.rpartition(":")
            session = Session(client, name)
            point = session.point(ref if colon else word)
        found.append((word, session, point, live))
    if verify:
        for point in {point.id: point for _, _, point, _ in found if point}.values():
            point.verify(verify, timeout=timeout)
    everything = {point["id"]: point for point in client.call("log", {"all": True})["checkpoints"]}
    start = _base(client, base, [point.info.id for _, _, point, _ in found if point], everything)
    rows = []
    for word, session, point, live in found:
        whose = point.info.session if point and not live else session.name
        target = Session(client, whose)
        ref = start["id"] if start else "base"
        diff = target.diff(ref) if live else target.diff(ref, point)
        row = Row(word, whose, _data(client, point), live, diff)
        _add_doings(client, row, start)
        rows.append(row)
    _add_room(client, rows)
    return Comparison(start, rows)


def _base(
    client: Client, given: str, points: Sequence[str], everything: Mapping[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """The point that all are compared with: the given one, else the last that all have in common."""
    if given:
        name, _, ref = given.rpartition(":")
        return _data(client, Session(client, name).point(ref))
    lines = [_line(point, everything) for point in points]
    if not lines:
        return None
    common = set(lines[0]).intersection(*lines[1:])
    ancestors = lines[0][1:] if len(set(points)) == 1 else lines[0]
    return next((everything[one] for one in ancestors if one in common), None)


def _line(point: str, everything: Mapping[str, dict[str, Any]]) -> list[str]:
    """A point and those before it, back to the first."""
    line: list[str] = []
    here: str | None = point
    while here is not None and here in everything:
        line.append(here)
        here = everything[here]["parent"]
    return line


def _data(client: Client, point: Checkpoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    args = {"session": point.info.session, "ref": point.id}
    found: dict[str, Any] = client.call("show", args)["checkpoint"]
    return found


def _add_doings(client: Client, row: Row, start: Mapping[str, Any] | None) -> None:
    """What was done since they parted."""
    ref = None if row.live else (row.point or {}).get("id")
    args = {"session": row.session, "ref": ref, "kinds": ["command", "effect"]}
    for event in client.call("trace", {**args, "after": start["position"] if start else None})["events"]:
        if event["kind"] == "command":
            row.commands += 1
            row.commands_ms += event["body"].get("duration_ms") or 0.0
        elif event["body"].get("class") != "unknown":
            row.effects += 1


def _add_room(client: Client, rows: Sequence[Row]) -> None:
    """What would come back if that point, or what a session wrote since its last, were gone."""
    try:
        used = client.call("du", {})
    except errors.WaypointError:
        return  # what it costs is worth less than what it is
    points = {one["id"]: one["unique_bytes"] for one in used["checkpoints"]}
    volumes = {one["session"]: one["unique_bytes"] for one in used["sessions"]}
    for row in rows:
        own = points.get(row.point["id"]) if row.point and row.point["session"] == row.session else None
        volume = volumes.get(row.session) if row.live else None
        parts = [part for part in (own, volume) if part is not None]
        row.unique_bytes = sum(parts) if parts else None


def _ref(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def _verdict(row: Row) -> dict[str, Any] | None:
    found = row.point["verdict"] if row.point else None
    return {key: found[key] for key in ("state", "command", "exit_code")} if found else None


def _counts(diff: views.Diff) -> dict[str, int]:
    counts: dict[str, int] = {}
    for change in diff.files:
        counts[change["kind"]] = counts.get(change["kind"], 0) + 1
    return counts
