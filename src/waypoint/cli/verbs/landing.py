"""The verbs that carry files: apply, export, cp, and `restore --files`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from waypoint import errors
from waypoint.cli import render

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint
    from waypoint.client.session import Session

_SHOWN = 40
_SIGNS = {"create": "+", "update": "~", "mode": "~", "delete": "-"}
_WHERE = re.compile(r"(?P<session>[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@(?P<ref>[^/]+))?:(?P<path>.*)", re.DOTALL)


def _session(console: Console) -> Session:
    from waypoint.client.session import Session

    found = console.session
    if found is None:
        found = console.client.call("session", {"session": None})["session"]["name"]
    return Session(console.client, found)


# Landing ----------------------------------------------------------------------------------------------


def apply(console: Console) -> int:
    given = console.arguments
    session = _session(console)
    how: dict[str, Any] = {
        "source": given.source,
        "ref": given.ref,
        "since": given.since,
        "delete": given.delete,
        "force": given.force,
    }
    if not (given.yes or given.dry_run or console.can_ask):
        console.confirm("", refused="landing")
    if given.dry_run or not given.yes:
        with console.progress("looking"):
            plan = msgspec.to_builtins(session.apply(given.to, given.paths, dry_run=True, **how))
        if given.dry_run:
            console.result({"landing": plan}, _plan(plan, console.paint))
            return 0
        console.aside(_plan(plan, console.paint_aside))
        if plan["items"] and (given.force or not plan["conflicts"]):
            console.confirm(f"Land {_count(plan)}?", refused="landing")
    with console.progress("landing"):
        done = msgspec.to_builtins(session.apply(given.to, given.paths, dry_run=False, **how))
    console.result({"landing": done}, _done(done))
    return _leftover(console, done)


def _leftover(console: Console, done: Mapping[str, Any]) -> int:
    """What could not be forced, in words. Returns the exit status."""
    stuck = [conflict for conflict in done["conflicts"] if not conflict["forcible"]]
    for conflict in stuck:
        console.say(f"{render.shown(conflict['path'])} was left: {conflict['why']}")
    return 1 if stuck else 0


def _plan(plan: Mapping[str, Any], paint: Paint) -> str:
    """A landing before it is done, line by line."""
    lines = []
    if plan["source"] != plan["target"]:
        lines.append(f"{render.shown(plan['source'])} → {paint.bold(render.shown(plan['target']))}")
    lines += [_item(item, plan["target"], paint) for item in plan["items"][:_SHOWN]]
    if len(plan["items"]) > _SHOWN:
        lines.append(f"  … {len(plan['items']) - _SHOWN:,} more")
    for conflict in plan["conflicts"][:_SHOWN]:
        where = _below(conflict["path"], plan["target"])
        lines.append(f"  {paint.bad('!')} {where}  {paint.warn(render.shown(conflict['why']))}")
    if len(plan["conflicts"]) > _SHOWN:
        lines.append(f"  … {len(plan['conflicts']) - _SHOWN:,} more conflicts")
    lines += _left_out(plan["left_out"], paint)
    if not plan["items"] and not plan["conflicts"]:
        lines.append("  nothing to do")
    return "\n".join(lines)


def _item(item: Mapping[str, Any], target: str, paint: Paint) -> str:
    sign = {"create": paint.good, "delete": paint.bad}.get(item["action"], paint.warn)(_SIGNS[item["action"]])
    name = _below(item["path"], target) + ("/" if item["entry"] == "folder" else "")
    said = [render.size(item["size_bytes"])] if item["size_bytes"] else []
    said += [what for what in item["what"] if what != "content"]
    return f"  {sign} {name}  {paint.dim(', '.join(said))}".rstrip()


def _below(path: str, target: str) -> str:
    return render.shown(path.removeprefix(target.rstrip("/")).lstrip("/") or path)


def _left_out(left_out: Sequence[Mapping[str, Any]], paint: Paint) -> list[str]:
    """What does not come along, the same reasons together."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one["why"], []).append(render.shown(one["path"]))
    lines = []
    for why, paths in by_reason.items():
        names = ", ".join(paths[:3]) + (f", … {len(paths) - 3:,} more" if len(paths) > 3 else "")
        lines.append(f"  {paint.dim('left out:')} {names}  {paint.dim(render.shown(why))}")
    return lines


def _count(landing: Mapping[str, Any]) -> str:
    """`7 new, 3 changed, 1 deleted, 12 KB`; folders aside."""
    items = [item for item in landing["items"] if item["entry"] != "folder"]
    numbers = (
        (sum(item["action"] == "create" for item in items), "new"),
        (sum(item["action"] in ("update", "mode") for item in items), "changed"),
        (sum(item["action"] == "delete" for item in items), "deleted"),
    )
    said = [f"{number:,} {word}" for number, word in numbers if number]
    if folders := len(landing["items"]) - len(items):
        said.append(render.plural(folders, "folder"))
    if written := sum(item["size_bytes"] for item in items):
        said.append(render.size(written))
    return ", ".join(said)


def _done(done: Mapping[str, Any]) -> str:
    if not done["items"]:
        same = f" ({done['unchanged']:,} are there already)" if done["unchanged"] else ""
        return f"nothing to do{same}"
    return f"landed in {render.shown(done['target'])}: {_count(done)}"


# Files of a point -------------------------------------------------------------------------------------


def restore_files(console: Console) -> int:
    """`restore REF --files PATH…`."""
    given = console.arguments
    session = _session(console)
    how: dict[str, Any] = {"delete": given.delete, "safety": not given.no_safety}
    if not (given.yes or given.dry_run or console.can_ask):
        console.confirm("", refused="restoring files")
    if given.dry_run or not given.yes:
        with console.progress("looking"):
            plan = session.restore_files(given.ref, given.files, dry_run=True, **how)
        landing = msgspec.to_builtins(plan.landing)
        if given.dry_run:
            console.result(msgspec.to_builtins(plan), _plan(landing, console.paint))
            return 0
        console.aside(_plan(landing, console.paint_aside))
        if landing["items"]:
            if not given.no_safety:
                console.aside("A safety checkpoint is taken first; `waypoint undo` comes back here.")
            console.confirm(f"Bring back {_count(landing)}?", refused="restoring files")
    with console.progress("restoring files"):
        done = session.restore_files(given.ref, given.files, dry_run=False, **how)
    landing = msgspec.to_builtins(done.landing)
    console.result(msgspec.to_builtins(done), _restored(landing, done.checkpoint.label))
    if done.safety:
        console.hint(f"waypoint undo -s {session.name}   goes to where it was ({done.safety.label})")
    return 0


def _restored(landing: Mapping[str, Any], label: str) -> str:
    if not landing["items"]:
        return f"they are as they were at {label}"
    lines = [f"as at {label}: {_count(landing)}"]
    lines += [
        f"  {_SIGNS[item['action']]} {render.shown(item['path'])}" for item in landing["items"][:_SHOWN]
    ]
    if len(landing["items"]) > _SHOWN:
        lines.append(f"  … {len(landing['items']) - _SHOWN:,} more")
    return "\n".join(lines)


# Exporting --------------------------------------------------------------------------------------------


def export(console: Console) -> int:
    given = console.arguments
    to_stdout = given.output in (None, "-")
    if to_stdout and (console.json or sys.stdout.isatty()):
        raise errors.UsageError(
            "an export is for a file or a pipe",
            hint="say where with -o FILE; `waypoint diff --patch` is for reading",
        )
    if given.patch and given.whiteouts:
        raise errors.UsageError("--whiteouts is for a tar", hint="a patch says by itself what is gone")
    session = _session(console)
    how: dict[str, Any] = {
        "source": given.source,
        "ref": given.ref,
        "since": given.since,
        "patch": given.patch,
        "whiteouts": given.whiteouts,
    }
    with console.progress("exporting"):
        try:
            found = session.export(sys.stdout.buffer if to_stdout else given.output, given.paths, **how)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise errors.UsageError(
                f"cannot write {given.output}: {error.strerror}", hint="choose another place"
            ) from error
    told = msgspec.to_builtins(found)
    words = [f"{found.files:,} files"] + ([f"{found.deleted:,} deleted"] if found.deleted else [])
    said = f"{', '.join(words)}, {render.size(found.bytes)}"
    if to_stdout:
        console.say(said)
    else:
        console.result({"exported": told}, f"{given.output}: {said}")
    for line in _left_out(told["left_out"], console.paint_aside):
        console.aside(line)
    return 0


# Copying ----------------------------------------------------------------------------------------------


class Where(NamedTuple):
    """One end of a copy: in a session, at a point of one, or (`inside` false) on this machine."""

    inside: bool
    path: str
    session: str | None = None
    ref: str | None = None


def where(word: str) -> Where:
    """`SESSION:PATH`, `SESSION@REF:PATH`, `:PATH` for the usual session; everything else is of this machine,
    and so is whatever has a slash before its first colon."""
    found = _WHERE.fullmatch(word)
    if found is None or "/" in word[: found.start("path")]:
        return Where(False, word)
    return Where(True, found["path"] or ".", found["session"], found["ref"])


def cp(console: Console) -> int:
    from waypoint.client.session import Session

    given = console.arguments
    *sources, target = [where(word) for word in given.paths]
    if not sources:
        raise errors.UsageError("what is to be copied, and where?", hint="waypoint cp SRC… DST")
    insides = {(one.session, one.ref or given.ref) for one in sources if one.inside}
    outs = [one for one in sources if not one.inside]
    if target.inside == bool(insides) or (insides and outs):
        raise errors.UsageError(
            "one side has to be a session's, the other this machine's",
            hint="`waypoint cp work:/app/out .` or `waypoint cp data work:/app`; a file here that has a `:` "
            "in its name is ./NAME",
        )
    if len(insides) > 1:
        raise errors.UsageError("all of them have to be of one session and one point")
    (name, ref) = next(iter(insides)) if insides else (target.session, target.ref or given.ref)
    if target.inside and ref:
        raise errors.UsageError("a point does not change", hint="copy into the session itself: SESSION:PATH")
    session = Session(console.client, name) if name else _session(console)
    paths = [one.path for one in sources]
    with console.progress("copying"):
        if target.inside:
            done = session.copy_in(paths, target.path, follow=given.follow)
        else:
            done = session.copy_out(paths, target.path, ref=ref, follow=given.follow)
    told = msgspec.to_builtins(done)
    console.result({"copied": told}, None)
    if not console.json and sys.stdout.isatty():
        words = [render.plural(done.files, "file")]
        words += [render.plural(number, word) for number, word in _more(done) if number]
        console.aside(console.paint_aside.dim(f"  {', '.join(words)}, {render.size(done.bytes)}"))
    for line in _left_out(told["left_out"], console.paint_aside):
        console.aside(line)
    return 0


def _more(done: Any) -> tuple[tuple[int, str], ...]:
    return (done.folders, "folder"), (done.links, "link")
