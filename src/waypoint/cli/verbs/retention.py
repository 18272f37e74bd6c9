"""The verbs about room: what is kept, what goes, what takes how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint.cli import render

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint

_AUTOMATIC = ["auto", "safety"]
_SHOWN = 20


def pin(console: Console) -> int:
    return _pin(console, off=False)


def unpin(console: Console) -> int:
    return _pin(console, off=True)


def _pin(console: Console, *, off: bool) -> int:
    args = {"session": console.session, "ref": console.arguments.ref, "off": off}
    found = console.call("pin", args, "asking the daemon")
    title = render.point_title(found["checkpoint"], console.paint)
    console.result(found, f"{title} is {'no longer pinned' if off else 'pinned'}")
    return 0


# Forgetting -------------------------------------------------------------------------------------------


def forget(console: Console) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "all": given.all,
        "refs": given.refs,
        "force": given.force,
        "policy": _policy(given),
    }
    if given.dry_run:
        found = console.call("forget", {**args, "dry_run": True}, "looking")
        console.result(found, _forecast(found, console.paint))
        return 0
    if not given.yes and console.can_ask:
        found = console.call("forget", {**args, "dry_run": True}, "looking")
        going = found["forgotten"]
        if not going:
            console.result(found, "nothing to forget")
            return 0
        console.aside(_listing(going, console.paint_aside))
        args["only"] = [point["id"] for point in going]
        console.confirm(f"Forget {render.plural(len(going), 'point')}{_gain(found)}?", refused="forgetting")
    else:
        if not given.yes:  # what makes no sense is said before anything is to be confirmed
            console.call("forget", {**args, "dry_run": True}, "looking")
        console.confirm("", refused="forgetting")
    found = console.call("forget", args, "forgetting")
    many = len(found["forgotten"])
    console.result(
        found, f"forgot {render.plural(many, 'point')}{_gain(found)}" if many else "nothing to forget"
    )
    return 0


def _policy(given: Any) -> dict[str, Any]:
    """What was said of a policy; nothing when points were given."""
    said = {
        "keep_last": given.keep_last,
        "keep_hourly": given.keep_hourly,
        "keep_daily": given.keep_daily,
        "keep_weekly": given.keep_weekly,
        "older_than": given.older_than,
        "kinds": _AUTOMATIC if given.auto_only else None,
        "keep_good": False if given.no_keep_good else None,
        "keep_named": False if given.no_keep_named else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _gain(found: Mapping[str, Any]) -> str:
    about = "" if found["exact"] else "about "
    return f": {about}{render.size(found['frees_bytes'])} come back" if found["frees_bytes"] else ""


def _name(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def _listing(points: Sequence[Mapping[str, Any]], paint: Paint) -> str:
    lines = []
    for point in points[:_SHOWN]:
        words = render.point_title({**point, "label": _name(point)}, paint)
        lines.append(f"  {words}  {paint.dim(render.age(point['created_at']))}")
    if len(points) > _SHOWN:
        lines.append(paint.dim(f"  … and {len(points) - _SHOWN} more"))
    return "\n".join(lines)


def _forecast(found: Mapping[str, Any], paint: Paint) -> str:
    """Every point with what would become of it."""
    lines = []
    if found["kept"]:
        rows = [(_name(point), "; ".join(point["reasons"])) for point in found["kept"]]
        lines.append(render.table(("STAYS", "BECAUSE"), rows, paint))
    going = found["forgotten"]
    if not going:
        return "\n".join((*lines, "nothing would go"))
    facts = [(_name(one), render.age(one["created_at"]), one["intent"] or one["kind"]) for one in going]
    lines.append(render.table(("GOES", "TAKEN", "WHAT"), facts, paint))
    lines.append(f"{render.plural(len(going), 'point')} would go{_gain(found)}")
    return "\n".join(lines)


def prune(console: Console) -> int:
    given = console.arguments
    args = {"auto": given.auto}
    if given.auto and not given.dry_run:
        found = console.call("prune", {**args, "dry_run": True}, "looking")
        going = found["forgotten"]
        if going:
            if not given.yes and console.can_ask:
                console.aside(_listing(going, console.paint_aside))
            many = render.plural(len(going), "automatic point")
            console.confirm(f"Forget {many}?", refused="forgetting points")
    found = console.call("prune", {**args, "dry_run": given.dry_run}, "making room")
    would = "would be " if given.dry_run else ""
    lines = [f"{would}removed: {path}" for path in found["removed"]]
    if found["forgotten"]:
        lines.append(f"{would}forgotten: {', '.join(_name(point) for point in found['forgotten'])}")
    lines.append(f"{render.size(found['freed_bytes'])} {'would come' if given.dry_run else 'came'} back")
    lines.append(_pool_line(found["pool"]))
    console.result(found, "\n".join(lines))
    return 0


# What takes how much ------------------------------------------------------------------------------------


def du(console: Console) -> int:
    found = console.call("du", {"session": console.arguments.session}, "measuring")
    paint = console.paint
    parts = []
    if found["checkpoints"]:
        parts.append(_costs(found["checkpoints"], paint))
        parts.append("")
    parts += [
        f"{_size(one['unique_bytes'], one['exact']):>8}  {one['session']}, since its last point"
        for one in found["sessions"]
    ]
    parts += [f"{render.size(one['size_bytes']):>8}  base {one['name']}" for one in found["bases"]]
    parts.append(f"{render.size(found['other_bytes']):>8}  shared by several, or not listed")
    parts.append(_pool_line(found["pool"]))
    console.result(found, "\n".join(parts))
    return 0


def _costs(costs: Sequence[Mapping[str, Any]], paint: Paint) -> str:
    rows = []
    for cost in costs:
        marks = [cost["name"] or "", "pinned" if cost["pinned"] else ""]
        marks.append(
            {"auto": "automatic", "safety": "before a restore", "park": "parked"}.get(cost["kind"], "")
        )
        rows.append(
            (
                _name(cost),
                render.age(cost["created_at"]),
                _size(cost["unique_bytes"], cost["exact"]),
                render.size(cost["files_bytes"]),
                render.size(cost["processes_bytes"]),
                " · ".join(filter(None, marks)),
            )
        )
    return render.table(("POINT", "TAKEN", "COSTS", "FILES", "PROCESSES", ""), rows, paint)


def _size(value: int, exact: bool) -> str:
    return render.size(value) if exact else f"~{render.size(value)}"


def _pool_line(pool: Mapping[str, Any]) -> str:
    used, free = render.size(pool["used_bytes"]), render.size(pool["free_bytes"])
    return f"pool: {used} used ({pool['percent']:.0f}%), {free} free"
