"""The verbs that look at the history of a session: log, show, status, ops, and the words added to points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint import errors
from waypoint.cli import render
from waypoint.cli.graph import Dot, place
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint

FAILED = 1
"""The exit status of a verb that was asked whether something works, and it does not."""

_NARROW = 60
"""On a terminal that is narrower only the sign of a verdict is shown."""

Point = Mapping[str, Any]


# The log ----------------------------------------------------------------------------------------------


def log(console: Console) -> int:
    given = console.arguments
    args: dict[str, Any] = {"session": console.session, "all": given.all, "since": given.since}
    if given.graph or not console.json:
        args["family"] = "whole" if given.graph else "tips"
    found = console.call("log", args, "reading the history")
    if console.json:
        if given.number:
            found = {**found, "checkpoints": found["checkpoints"][-given.number :]}
        console.result(found, None)
        return 0
    status = None
    if not given.all:
        status = views.Status(console.call("status", {"session": console.session}, "looking at the present"))
    shown = Timeline(found, status, console.paint, console.width, unfold=given.all, most=given.number)
    console.show(found, shown.text())
    if not found["checkpoints"]:
        console.hint("there are no points yet: `waypoint checkpoint` takes one")
    return 0


class _Entry(NamedTuple):
    """One row: a point, several that are folded into one row, or the present (neither)."""

    dot: Dot
    points: tuple[Point, ...]
    folded: bool = False


class Timeline:
    """`waypoint log` for people: the last point first, with the lines of descent.

    `status`: the present of the session the log is of; None for a log of all. Points that Waypoint took by
    itself are folded into one row, unless somebody stands on them or has said something about them.
    """

    def __init__(
        self,
        found: Mapping[str, Any],
        status: views.Status | None,
        paint: Paint,
        width: int,
        *,
        unfold: bool = False,
        most: int | None = None,
        now: datetime | None = None,
    ) -> None:
        self._paint, self._width, self._now = paint, width, now
        self._status = status
        self._own = status.data["session"]["name"] if status else None
        self._good: dict[str, list[str]] = {}
        for name, point in found["good"].items():
            self._good.setdefault(point, []).append(name)
        self._heads: dict[str, list[str]] = {}
        for session in found["sessions"]:
            self._heads.setdefault(session["head"] or "", []).append(session["name"])
        entries = list(self._entries(found["checkpoints"], unfold=unfold))
        self._left = max(0, len(entries) - most) if most else 0
        self._rows = entries[:most]

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
        if self._left:
            lines.append(dim(f"… {self._left:,} older"))
        return "\n".join(lines)

    # ---- which rows there are ----------------------------------------------------------------

    def _entries(self, points: Sequence[Point], *, unfold: bool) -> Iterator[_Entry]:
        """Newest first."""
        folds: dict[str, str] = {}
        members: dict[str, list[Point]] = {}
        by_id = {point["id"]: point for point in points}
        for point in points:
            if unfold or not self._is_quiet(point):
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

    def _is_quiet(self, point: Point) -> bool:
        said = point["name"] or point["tags"] or point["pinned"] or point["verdict"]
        return point["kind"] in ("auto", "safety") and not said and point["id"] not in self._heads

    # ---- how they look -----------------------------------------------------------------------

    def _measure(self, rows: Sequence[_Entry]) -> None:
        points = [entry.points[0] for entry in rows if len(entry.points) == 1 and not entry.folded]
        own = [self._label(point) for point in points if self._is_own(point)]
        self._label_width = max((len(label) for label in own), default=2)
        self._time_width = max((len(self._when(point)) for point in points), default=5)
        most = self._width * 2 // 5
        self._short = any(render.wide(views.verdict(point["verdict"])) > most for point in points)
        verdicts = [render.wide(self._verdict(point)) for point in points]
        self._verdict_width = min(max(verdicts, default=0), most)
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
        return views.verdict(point["verdict"], short=self._short)

    def _texts(self, entry: _Entry, room: int) -> list[str]:
        """The sign, then the text of each line."""
        paint = self._paint
        indent = self._label_width + self._time_width + 4
        if not entry.points:
            assert self._status
            words = self._status.now(render.cut, room - indent)
            return [paint.bold("@"), f"{paint.bold('now'.ljust(indent))}{words}"]
        if entry.folded:
            labels = [self._label(point) for point in entry.points]
            which = ", ".join(labels) if len(labels) <= 3 else f"{labels[0]} to {labels[-1]}"
            return [paint.dim("○"), paint.dim(render.cut(f"… {len(labels)} automatic ({which})", room))]
        [point] = entry.points
        lines = [self._sign(point), self._first_line(point, room)]
        indent += max(0, len(self._label(point)) - self._label_width)
        summary = render.shown(point["summary"] or "")
        if summary and summary != "nothing changed":
            lines.append(" " * indent + paint.dim(render.cut(summary, room - indent)))
        return lines

    def _sign(self, point: Point) -> str:
        failed = point["verdict"] and point["verdict"]["state"] == "failed"
        if point["id"] in self._heads:
            return self._paint.bad("●") if failed else self._paint.good("●")
        return self._paint.bad("✗") if failed else "○"

    def _first_line(self, point: Point, room: int) -> str:
        paint = self._paint
        label = self._label(point).ljust(self._label_width if self._is_own(point) else 0)
        when = self._when(point).rjust(self._time_width)
        marks = self._marks(point)
        verdict = self._verdict(point)
        verdict = verdict[:1] if self._width < _NARROW else render.cut(verdict, self._verdict_width)
        # The verdicts stand in one column, whatever is drawn before the points.
        left_width = self._width - self._verdict_width - max(9, render.wide(marks) + 2) - (self._width - room)
        name = f"{point['name']}  " if point["name"] else ""
        tags = "".join(f"  #{tag}" for tag in point["tags"]) + ("  pinned" if point["pinned"] else "")
        words = views.title(point) or ("" if name else "no words given")
        start = len(label) + len(when) + 4
        words = render.cut(words, max(8, left_width - start - len(name) - len(tags) - 2))
        length = start + len(name) + render.wide(words) + len(tags)
        quiet = point["kind"] in ("auto", "safety", "park") or not point["intent"]
        title = f"{paint.name(name)}{paint.dim(words) if quiet else words}{paint.name(tags)}"
        painted = getattr(paint, views.verdict_manner(point["verdict"]))(verdict)
        line = f"{paint.bold(label)}  {when}  {title}{' ' * max(2, left_width - length)}{painted}"
        return (
            f"{line}{' ' * (self._verdict_width - render.wide(verdict))}  {paint.good(marks)}"
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


# One point, and the present -----------------------------------------------------------------------------


def show(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "ref": given.ref, "again": given.again}
    found = console.call("show", args, "computing the card" if given.again else "asking the daemon")
    card = views.Card(found)
    most = None if given.all else 40
    console.show(found, render.styled(card.lines(most), console.paint))
    if card.gaps:
        console.hint(f"waypoint show {given.ref} --again   computes the card again")
    return 0


def status(console: Console) -> int:
    found = console.call("status", {"session": console.session}, "looking at the present")
    console.show(found, render.styled(views.Status(found).lines(), console.paint))
    return 0


def ops(console: Console) -> int:
    found = console.call("ops", {"session": console.session}, "reading the history")
    rows = [
        (
            render.clock(one["at"]),
            one["verb"],
            one["to"] or "a point that is gone",
            one["back_to"] or "nothing was kept",
            "taken back" if one["undone"] else "",
        )
        for one in reversed(found["operations"])
    ]
    head = ("WHEN", "WHAT", "TO", "WAY BACK", "")
    console.show(found, render.table(head, rows, console.paint) if rows else "")
    if not rows:
        console.hint("nothing has moved this session yet")
    return 0


# Words added to points ----------------------------------------------------------------------------------


def tag(console: Console) -> int:
    given = console.arguments
    if given.name is None:
        return _tags(console)
    args = {"session": console.session, "name": given.name, "ref": given.ref, "delete": given.delete}
    if given.delete and given.ref:
        raise errors.UsageError("a tag is taken away by its name alone", hint="waypoint tag -d NAME")
    found = console.call("tag", args, "asking the daemon")
    paint = console.paint
    if given.delete:
        console.result(found, f"{paint.name(found['tag'])} is gone")
    else:
        title = render.point_title(found["checkpoint"], paint)
        console.result(found, f"{paint.name(found['tag'])} is {title}")
    return 0


def _tags(console: Console) -> int:
    if console.arguments.delete:
        raise errors.UsageError("which tag?", hint="waypoint tag -d NAME")
    found = console.call("tags", {"session": console.session}, "asking the daemon")
    rows = [(one["tag"], render.point_title(one["checkpoint"], console.paint)) for one in found["tags"]]
    width = max((len(name) for name, _ in rows), default=0)
    console.result(
        found, "\n".join(f"{console.paint.name(name.ljust(width))}  {what}" for name, what in rows)
    )
    return 0


def note(console: Console) -> int:
    given = console.arguments
    args = {"session": console.session, "ref": given.ref, "text": " ".join(given.text)}
    found = console.call("note", args, "asking the daemon")
    console.result(found, f"noted with {render.point_title(found['checkpoint'], console.paint)}")
    return 0


# Verdicts -----------------------------------------------------------------------------------------------


def verify(console: Console) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "ref": given.ref,
        "command": command_of(given.command),
        "timeout": given.timeout,
        "wait": not given.no_wait,
    }
    found = console.call("verify", args, f"verifying {given.ref} in a fork")
    console.result(found, f"{render.point_title(found['checkpoint'], console.paint)}")
    return tell_verdict(console, found)


def command_of(words: Sequence[str]) -> str:
    """The command line that the words after the verb are; joined as ssh does."""
    rest = words[1:] if words[:1] == ["--"] else words
    if not rest:
        raise errors.UsageError("which command?", hint="one that exits with 0 when all is well")
    return " ".join(rest)


def tell_verdict(console: Console, found: Mapping[str, Any]) -> int:
    """What came of a verification, below the point that it is about. Returns the exit status."""
    verdict = found.get("verdict")
    if verdict is None:
        label = found["checkpoint"]["label"]
        if not console.json:
            console.hint(f"waypoint show {label}   has the verdict when it is there")
        return 0
    if not console.json:
        paint = getattr(console.paint, views.verdict_manner(verdict))
        print(f"  {paint(views.verdict(verdict))}")
        if verdict["state"] != "passed":
            for line in verdict["output"].rstrip().splitlines()[-20:]:
                print(console.paint.dim(f"    {render.shown(line)}"))
    return 0 if verdict["state"] == "passed" else FAILED
