"""`waypoint log` as text: the points of a session and its forks, newest first, with lines of descent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint.cli import render
from waypoint.cli.graph import Dot, place
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.render import Paint
    from waypoint.client.connection import Transport

_NARROW = 60
"""On a terminal with fewer columns only the sign of a verdict is shown."""
_AUTOMATIC = ("auto", "safety")

Point = Mapping[str, Any]


class _Entry(NamedTuple):
    """One row: a point, several points that are folded into one row, or (no points) the present."""

    dot: Dot
    points: tuple[Point, ...]
    folded: bool = False


def read_timeline(
    transport: Transport, session: str, paint: Paint, width: int, *, limit: int | None = None
) -> Timeline:
    """The timeline of a session, up to the present."""
    import msgspec

    from waypoint.api.history import Log, Status

    log = msgspec.to_builtins(transport.ask(Log(session=session, family="tips")))
    status = views.Status(msgspec.to_builtins(transport.ask(Status(session=session))))
    return Timeline(log, status, paint, width, limit=limit)


class Timeline:
    """The rows of a log, as text.

    `status` is the present of the session; None for a log of all sessions. Points that Waypoint took
    automatically are folded into one row, unless a session is at them or they have a name, a tag, a pin or a
    verdict.
    """

    def __init__(
        self,
        log: Mapping[str, Any],
        status: views.Status | None,
        paint: Paint,
        width: int,
        *,
        unfold: bool = False,
        limit: int | None = None,
        now: datetime | None = None,
    ) -> None:
        self._paint, self._width, self._now = paint, width, now
        self._status = status
        self._own = status.data["session"]["name"] if status else None
        self._good: dict[str, list[str]] = {}
        for name, point in log["good"].items():
            self._good.setdefault(point, []).append(name)
        self._heads: dict[str, list[str]] = {}
        for session in log["sessions"]:
            self._heads.setdefault(session["head"] or "", []).append(session["name"])
        entries = list(self._entries(log["checkpoints"], unfold=unfold))
        self._hidden = max(0, len(entries) - limit) if limit else 0
        self._rows = entries[:limit]

    def text(self) -> str:
        now = [] if self._status is None else [_Entry(Dot("@", self._status.data["session"]["head"]), ())]
        rows = [*now, *self._rows]
        self._measure(rows)
        lines: list[str] = []
        dim = self._paint.dim
        for entry, placed in zip(rows, place([row.dot for row in rows]), strict=True):
            sign, *texts = self._texts(entry, self._width - placed.width - 2)
            lines.append(f"{dim(placed.left)}{sign}{dim(placed.right)}  {texts[0]}".rstrip())
            lines += [f"{dim(placed.below)}  {text}".rstrip() for text in texts[1:]]
            lines += [dim(join) for join in placed.joins]
        if self._hidden:
            lines.append(dim(f"… {self._hidden:,} older"))
        return "\n".join(lines)

    # ---- the rows ----------------------------------------------------------------------------

    def _entries(self, points: Sequence[Point], *, unfold: bool) -> Iterator[_Entry]:
        """Newest first."""
        folds: dict[str, str] = {}
        members: dict[str, list[Point]] = {}
        by_id = {point["id"]: point for point in points}
        for point in points:
            if unfold or not self._is_foldable(point):
                continue
            parent = by_id.get(point["parent"] or "")
            joins = parent is not None and parent["session"] == point["session"]
            fold = str(folds.get(point["parent"], point["id"]) if joins else point["id"])
            folds[point["id"]] = fold
            members.setdefault(fold, []).append(point)
        for point in reversed(points):
            dot = Dot(point["id"], folds.get(point["parent"], point["parent"]))
            if point["id"] not in folds:
                yield _Entry(dot, (point,))
            elif point["id"] in members:
                yield _Entry(dot, tuple(members[point["id"]]), folded=True)

    def _is_foldable(self, point: Point) -> bool:
        is_labelled = point["name"] or point["tags"] or point["pinned"] or point["verdict"]
        is_labelled = is_labelled or point.get("restorable") == "failed" or point.get("problem")
        return point["kind"] in _AUTOMATIC and not is_labelled and point["id"] not in self._heads

    # ---- the text of a row -------------------------------------------------------------------

    def _measure(self, rows: Sequence[_Entry]) -> None:
        points = [entry.points[0] for entry in rows if len(entry.points) == 1 and not entry.folded]
        own = [self._label(point) for point in points if self._is_own(point)]
        self._label_width = max((len(label) for label in own), default=2)
        self._time_width = max((len(self._when(point)) for point in points), default=5)
        self._marks_width = max((render.width(self._marks(point)) + 2 for point in points), default=2)
        if not any(point["verdict"] for point in points):
            self._verdict_width = 0  # a column that says nothing of any point leaves its room to the intents
            return
        room = self._width * 2 // 5
        self._short = any(render.width(views.verdicts(point)) > room for point in points)
        verdicts = [render.width(self._verdict(point)) for point in points]
        self._verdict_width = min(max(verdicts, default=0), room)
        if self._width < _NARROW:
            self._verdict_width = 1

    def _is_own(self, point: Point) -> bool:
        return self._own is None or point["session"] == self._own

    def _label(self, point: Point) -> str:
        return str(
            point["label"] if point["session"] == self._own else f"{point['session']}/{point['label']}"
        )

    def _when(self, point: Point) -> str:
        return render.clock(point["created_at"], self._now)

    def _verdict(self, point: Point) -> str:
        return views.verdicts(point, short=self._short)

    def _texts(self, entry: _Entry, room: int) -> list[str]:
        """The sign, then the lines of text."""
        paint = self._paint
        indent = self._label_width + self._time_width + 4
        if not entry.points:
            assert self._status
            words = self._status.now(render.cut, room - indent)
            return [paint.bold("@"), f"{paint.bold('now'.ljust(indent))}{words}"]
        if entry.folded:
            labels = [self._label(point) for point in entry.points]
            names = ", ".join(labels) if len(labels) <= 3 else f"{labels[0]} to {labels[-1]}"
            titles = _with_repeats([views.title(point) for point in entry.points])
            words = f"… {len(labels)} automatic ({names})  {titles}"
            return [paint.dim("○"), paint.dim(render.cut(words.rstrip(), room))]
        [point] = entry.points
        lines = [self._sign(point), self._first_line(point, room)]
        indent += max(0, len(self._label(point)) - self._label_width)
        if point.get("restorable") == "failed":
            words = f"cannot be restored: {render.shown(point['restore_error'] or '')}"
            lines.append(" " * indent + paint.bad(render.cut(words, room - indent)))
        if point.get("problem"):
            words = f"not saved: {render.shown(point['problem'])}"
            lines.append(" " * indent + paint.bad(render.cut(words, room - indent)))
        elif point.get("pending"):
            lines.append(" " * indent + paint.dim("being saved"))
        summary = render.shown(point["summary"] or "")
        if summary:
            lines.append(" " * indent + paint.dim(render.cut(summary, room - indent)))
        return lines

    def _sign(self, point: Point) -> str:
        failed = point["verdict"] and point["verdict"]["state"] == "failed"
        failed = failed or point.get("restorable") == "failed" or point.get("problem")
        if point["id"] in self._heads:
            return self._paint.bad("●") if failed else self._paint.good("●")
        return self._paint.bad("✗") if failed else "○"

    def _first_line(self, point: Point, room: int) -> str:
        paint = self._paint
        label = self._label(point).ljust(self._label_width if self._is_own(point) else 0)
        when = self._when(point).rjust(self._time_width)
        marks = self._marks(point)
        verdict = self._verdict(point) if self._verdict_width else ""
        verdict = verdict[:1] if self._width < _NARROW else render.cut(verdict, self._verdict_width)
        # The verdicts stand in one column, however wide the graph before a point is.
        left_width = room - self._verdict_width - self._marks_width
        name = f"{point['name']}  " if point["name"] else ""
        tags = "".join(f"  #{tag}" for tag in point["tags"]) + ("  pinned" if point["pinned"] else "")
        words = views.title(point) or ("" if name else "no intent")
        start = len(label) + len(when) + 4
        words = render.cut(words, max(8, left_width - start - len(name) - len(tags) - 2))
        length = start + len(name) + render.width(words) + len(tags)
        is_dim = point["kind"] in (*_AUTOMATIC, "park") or not point["intent"]
        title = f"{paint.name(name)}{paint.dim(words) if is_dim else words}{paint.name(tags)}"
        painted = getattr(paint, views.verdict_manner(point["verdict"]))(verdict)
        line = f"{paint.bold(label)}  {when}  {title}{' ' * max(2, left_width - length)}{painted}"
        return (
            f"{line}{' ' * (self._verdict_width - render.width(verdict))}  {paint.good(marks)}"
            if marks
            else line
        )

    def _marks(self, point: Point) -> str:
        good = self._good.get(point["id"], [])
        if self._own:
            return "← good" if good else ""
        marks = [name for name in self._heads.get(point["id"], ()) if name != point["session"]]
        marks += ["good" if name == point["session"] else f"good of {name}" for name in good]
        return f"← {', '.join(marks)}" if marks else ""


def _with_repeats(titles: Sequence[str]) -> str:
    """`$ make ×3, $ pytest`: what stands several times in a row stands once."""
    groups = [(title, len(list(same))) for title, same in groupby(titles)]
    return ", ".join(title + (f" ×{times}" if times > 1 else "") for title, times in groups if title)
