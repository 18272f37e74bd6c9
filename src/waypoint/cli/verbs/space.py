"""Disk space: which points are kept, which are forgotten, what each costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint.cli import render
from waypoint.cli.spec import REF, SESSION, YES, Argument, argument, count, flag, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint

_AUTOMATIC = ["auto", "safety"]
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


@verb("unpin", "remove that protection", SESSION, REF, examples=("waypoint unpin -s work up",))
def unpin(console: Console) -> int:
    return _set_pin(console, off=True)


def _set_pin(console: Console, *, off: bool) -> int:
    request = {"session": console.session, "ref": console.arguments.ref, "off": off}
    reply = console.call("pin", request, "waiting for the daemon")
    title = render.point_title(reply["checkpoint"], console.paint)
    console.result(reply, f"{title} is {'no longer pinned' if off else 'pinned'}")
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
    request = {
        "session": console.session,
        "all": arguments.all,
        "refs": arguments.refs,
        "force": arguments.force,
        "policy": _policy(arguments),
    }
    if arguments.dry_run or not arguments.yes:
        # Also when the user cannot be asked: an error in the request is reported before a missing --yes.
        plan = console.call("forget", {**request, "dry_run": True}, "comparing")
        if arguments.dry_run:
            console.result(plan, _forecast(plan, console.paint))
            return 0
        console.require_confirmation("forgetting points")
        points = plan["forgotten"]
        if not points:
            console.result(plan, "nothing to forget")
            return 0
        console.aside(_listing(points, console.stderr_paint))
        request["only"] = [point["id"] for point in points]
        console.confirm(
            f"Forget {render.plural(len(points), 'point')}{_gain(plan)}?", action="forgetting points"
        )
    reply = console.call("forget", request, "forgetting points")
    number = len(reply["forgotten"])
    text = f"forgot {render.plural(number, 'point')}{_gain(reply)}" if number else "nothing to forget"
    console.result(reply, text)
    return 0


def _policy(arguments: argparse.Namespace) -> dict[str, Any]:
    """The rules that were given as options."""
    rules = {
        "keep_last": arguments.keep_last,
        "keep_hourly": arguments.keep_hourly,
        "keep_daily": arguments.keep_daily,
        "keep_weekly": arguments.keep_weekly,
        "older_than": arguments.older_than,
        "kinds": _AUTOMATIC if arguments.auto_only else None,
        "keep_good": False if arguments.no_keep_good else None,
        "keep_named": False if arguments.no_keep_named else None,
    }
    return {name: value for name, value in rules.items() if value is not None}


def _gain(reply: Mapping[str, Any]) -> str:
    about = "" if reply["exact"] else "about "
    return f", which frees {about}{render.size(reply['frees_bytes'])}" if reply["frees_bytes"] else ""


def _name(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def _listing(points: Sequence[Mapping[str, Any]], paint: Paint) -> str:
    lines = []
    for point in points[:_MOST_LINES]:
        title = render.point_title({**point, "label": _name(point)}, paint)
        lines.append(f"  {title}  {paint.dim(render.age(point['created_at']))}")
    if len(points) > _MOST_LINES:
        lines.append(paint.dim(f"  … {len(points) - _MOST_LINES} more"))
    return "\n".join(lines)


def _forecast(plan: Mapping[str, Any], paint: Paint) -> str:
    """Which points are kept, and why; which would be forgotten."""
    parts = []
    if plan["kept"]:
        rows = [(_name(point), "; ".join(point["reasons"])) for point in plan["kept"]]
        parts.append(render.table(("KEPT", "BECAUSE"), rows, paint))
    points = plan["forgotten"]
    if not points:
        return "\n".join([*parts, "nothing would be forgotten"])
    taken = [
        (_name(point), render.age(point["created_at"]), point["intent"] or point["kind"]) for point in points
    ]
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
        plan = console.call("prune", {"auto": True, "dry_run": True}, "comparing")
        if points := plan["forgotten"]:
            if not arguments.yes and console.can_ask:
                console.aside(_listing(points, console.stderr_paint))
            number = render.plural(len(points), "automatic point")
            console.confirm(f"Forget {number}?", action="forgetting points")
    request = {"auto": arguments.auto, "dry_run": arguments.dry_run}
    reply = console.call("prune", request, "freeing space")
    would = "would be " if arguments.dry_run else ""
    lines = [f"{would}removed: {path}" for path in reply["removed"]]
    if reply["forgotten"]:
        lines.append(f"{would}forgotten: {', '.join(_name(point) for point in reply['forgotten'])}")
    lines.append(f"{render.size(reply['freed_bytes'])} {would}freed")
    console.result(reply, "\n".join([*lines, _pool_line(reply["pool"])]))
    return 0


@verb(
    "du",
    "show what each point costs: the space that forgetting it alone would free",
    argument("-s", "--session", metavar="SESSION", help="only of this session"),
    examples=("waypoint du", "waypoint du -s work --json"),
)
def du(console: Console) -> int:
    reply = console.call("du", {"session": console.arguments.session}, "measuring")
    lines = [_costs(reply["checkpoints"], console.paint), ""] if reply["checkpoints"] else []
    lines += [
        f"{_cost(session):>8}  {session['session']}, since its last point" for session in reply["sessions"]
    ]
    lines += [f"{render.size(base['size_bytes']):>8}  base {base['name']}" for base in reply["bases"]]
    lines.append(f"{render.size(reply['other_bytes']):>8}  shared by several, or not listed")
    console.result(reply, "\n".join([*lines, _pool_line(reply["pool"])]))
    return 0


def _costs(points: Sequence[Mapping[str, Any]], paint: Paint) -> str:
    kinds = {"auto": "automatic", "safety": "before a restore", "park": "parked"}
    rows = []
    for point in points:
        marks = (point["name"], "pinned" if point["pinned"] else "", kinds.get(point["kind"]))
        rows.append(
            (
                _name(point),
                render.age(point["created_at"]),
                _cost(point),
                render.size(point["files_bytes"]),
                render.size(point["processes_bytes"]),
                " · ".join(mark for mark in marks if mark),
            )
        )
    return render.table(("POINT", "TAKEN", "COSTS", "FILES", "PROCESSES", ""), rows, paint)


def _cost(entry: Mapping[str, Any]) -> str:
    return f"{'' if entry['exact'] else '~'}{render.size(entry['unique_bytes'])}"


def _pool_line(pool: Mapping[str, Any]) -> str:
    used, free = render.size(pool["used_bytes"]), render.size(pool["free_bytes"])
    return f"pool: {used} used ({pool['percent']:.0f}%), {free} free"
