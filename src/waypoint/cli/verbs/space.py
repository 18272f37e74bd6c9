"""Disk space: which points are kept, which are forgotten, what each costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from waypoint.api.machine import Du, Forget, Prune, Retention
from waypoint.api.points import Pin
from waypoint.cli import render
from waypoint.cli.spec import REF, SESSION, YES, Argument, argument, count, flag, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint
    from waypoint.model import Checkpoint, Cost, Forgotten, KeptPoint, PoolUse, VolumeUse

_MOST_LINES = 20


@verb(
    "pin",
    "protect a point from being forgotten",
    SESSION,
    REF,
    examples=("waypoint pin -s work up", "waypoint pin @"),
)
def pin(console: Console) -> int:
    return _set_pin(console, off=False)


@verb("unpin", "remove that protection", SESSION, REF, examples=("waypoint unpin -s work up",), json="pin")
def unpin(console: Console) -> int:
    return _set_pin(console, off=True)


def _set_pin(console: Console, *, off: bool) -> int:
    request = Pin(session=console.session, ref=console.arguments.ref, off=off)
    result = console.send(request, "waiting for the daemon")
    title = render.point_title(result.checkpoint, console.paint)
    console.result(result, f"{title} is {'no longer pinned' if off else 'pinned'}")
    return 0


# forget ---------------------------------------------------------------------------------------------------


def _keep(period: str, unit: str) -> Argument:
    text = f"keep the last point of each of the newest N {unit}"
    return argument(f"--keep-{period}", metavar="N", type=count, help=text)


@verb(
    "forget",
    "forget points: delete the named ones, or those that a policy does not keep",
    SESSION,
    argument(
        "refs", metavar="REF", nargs="*", help="the points; without them, the policy of the options decides"
    ),
    flag("--all", help="the points of all sessions"),
    argument("--keep-last", metavar="N", type=count, help="keep the last N of each session"),
    _keep("hourly", "hours"),
    _keep("daily", "days"),
    _keep("weekly", "weeks"),
    argument("--older-than", metavar="AGE", help="forget nothing that is newer: 90m, 2h, 3d, 1w"),
    flag("--auto-only", help="only points that Waypoint took automatically"),
    flag("--no-keep-good", help="also points that were verified"),
    flag("--no-keep-named", help="also points with a name or a tag"),
    flag("--force", help="with REF: although it is named or pinned"),
    flag("--dry-run", help="only show what would be forgotten and what would be kept, with the reasons"),
    YES,
    examples=(
        "waypoint forget -s work c3 c4",
        "waypoint forget --keep-last 10 --keep-daily 7",
        "waypoint forget --all --auto-only --older-than 2d --dry-run",
    ),
    about="Never forgotten: pinned points, points that a session is at or was forked from, points that"
    " `undo` needs, points that are being verified. Points do not depend on each other: forgetting one"
    " does not damage the others.",
)
def forget(console: Console) -> int:
    arguments = console.arguments
    request = Forget(
        session=console.session,
        refs=tuple(arguments.refs),
        policy=_retention(arguments),
        all=arguments.all,
        force=arguments.force,
    )
    if arguments.dry_run or not arguments.yes:
        # Also when the user cannot be asked: an error in the request is reported before a missing --yes.
        plan = console.send(msgspec.structs.replace(request, dry_run=True), "comparing")
        if arguments.dry_run:
            console.result(plan, _forecast(plan, console.paint))
            return 0
        console.require_confirmation("forgetting points")
        points = plan.forgotten
        if not points:
            console.result(plan, "nothing to forget")
            return 0
        console.aside(_listing(points, console.stderr_paint))
        request = msgspec.structs.replace(request, only=tuple(point.id for point in points))
        console.confirm(
            f"Forget {render.plural(len(points), 'point')}{_gain(plan)}?", action="forgetting points"
        )
    result = console.send(request, "forgetting points")
    number = len(result.forgotten)
    text = f"forgot {render.plural(number, 'point')}{_gain(result)}" if number else "nothing to forget"
    console.result(result, text)
    return 0


def _retention(arguments: argparse.Namespace) -> Retention | None:
    """The rules that were given as options."""
    rules = Retention(
        keep_last=arguments.keep_last,
        keep_hourly=arguments.keep_hourly,
        keep_daily=arguments.keep_daily,
        keep_weekly=arguments.keep_weekly,
        older_than=arguments.older_than,
        kinds=("auto", "safety") if arguments.auto_only else (),
        keep_good=not arguments.no_keep_good,
        keep_named=not arguments.no_keep_named,
    )
    return None if rules == Retention() else rules


def _gain(result: Forgotten) -> str:
    about = "" if result.exact else "about " if result.dry_run else "at least "
    return f", which frees {about}{render.size(result.frees_bytes)}" if result.frees_bytes else ""


def _name(point: Checkpoint | KeptPoint | Cost) -> str:
    return f"{point.session}:{point.label}"


def _listing(points: Sequence[Checkpoint], paint: Paint) -> str:
    lines = []
    for point in points[:_MOST_LINES]:
        title = render.point_title(msgspec.structs.replace(point, label=_name(point)), paint)
        lines.append(f"  {title}  {paint.dim(render.age(point.created_at))}")
    if len(points) > _MOST_LINES:
        lines.append(paint.dim(f"  … {len(points) - _MOST_LINES} more"))
    return "\n".join(lines)


def _forecast(plan: Forgotten, paint: Paint) -> str:
    """Which points are kept, and why; which would be forgotten."""
    parts = []
    if plan.kept:
        rows = [(_name(point), "; ".join(point.reasons)) for point in plan.kept]
        parts.append(render.table(("KEPT", "BECAUSE"), rows, paint))
    points = plan.forgotten
    if not points:
        return "\n".join([*parts, "nothing would be forgotten"])
    taken = [(_name(point), render.age(point.created_at), point.intent or point.kind) for point in points]
    parts.append(render.table(("FORGOTTEN", "TAKEN", "WHAT"), taken, paint))
    parts.append(f"{render.plural(len(points), 'point')} would be forgotten{_gain(plan)}")
    return "\n".join(parts)


# prune and du ---------------------------------------------------------------------------------------------


@verb(
    "prune",
    "free space now: remains of forgotten points and, with --auto, old automatic points",
    flag(
        "--auto", help="forget old points that Waypoint took automatically, except the last 5 of each session"
    ),
    flag("--dry-run", help="only show what would be done"),
    YES,
    examples=("waypoint prune", "waypoint prune --auto --yes"),
    about="When the pool is 90% full, old automatic points are forgotten automatically.",
)
def prune(console: Console) -> int:
    arguments = console.arguments
    if arguments.auto and not arguments.dry_run:
        plan = console.send(Prune(auto=True, dry_run=True), "comparing")
        if points := plan.forgotten:
            if not arguments.yes and console.can_ask:
                console.aside(_listing(points, console.stderr_paint))
            number = render.plural(len(points), "automatic point")
            console.confirm(f"Forget {number}?", action="forgetting points")
    result = console.send(Prune(auto=arguments.auto, dry_run=arguments.dry_run), "freeing space")
    would = "would be " if arguments.dry_run else ""
    lines = [f"{would}removed: {path}" for path in result.removed]
    if result.forgotten:
        lines.append(f"{would}forgotten: {', '.join(_name(point) for point in result.forgotten)}")
    lines.append(f"{render.size(result.freed_bytes)} {would}freed")
    console.result(result, "\n".join([*lines, _pool_line(result.pool)]))
    return 0


@verb(
    "du",
    "show what each point costs: the space that forgetting it alone would free",
    argument("-s", "--session", metavar="SESSION", help="only of this session"),
    examples=("waypoint du", "waypoint du -s work --json"),
)
def du(console: Console) -> int:
    result = console.send(Du(session=console.arguments.session), "measuring")
    lines = [_costs(result.checkpoints, console.paint), ""] if result.checkpoints else []
    lines += [f"{_cost(volume):>8}  {volume.session}, since its last point" for volume in result.sessions]
    lines += [f"{render.size(base.size_bytes):>8}  base {base.name}" for base in result.bases]
    lines.append(f"{render.size(result.other_bytes):>8}  shared by several, or not listed")
    console.result(result, "\n".join([*lines, _pool_line(result.pool)]))
    return 0


def _costs(points: Sequence[Cost], paint: Paint) -> str:
    kinds = {"auto": "automatic", "safety": "before a restore", "park": "parked"}
    rows = []
    for point in points:
        marks = (point.name, "pinned" if point.pinned else "", kinds.get(point.kind))
        rows.append(
            (
                _name(point),
                render.age(point.created_at),
                _cost(point),
                render.size(point.files_bytes),
                render.size(point.processes_bytes),
                " · ".join(mark for mark in marks if mark),
            )
        )
    return render.table(("POINT", "TAKEN", "COSTS", "FILES", "PROCESSES", ""), rows, paint)


def _cost(entry: Cost | VolumeUse) -> str:
    return f"{'' if entry.exact else '~'}{render.size(entry.unique_bytes)}"


def _pool_line(pool: PoolUse) -> str:
    used, free = render.size(pool.used_bytes), render.size(pool.free_bytes)
    return f"pool: {used} used ({pool.percent:.0f}%), {free} free"
