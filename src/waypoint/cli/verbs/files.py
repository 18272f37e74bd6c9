"""Files between a session and this machine: apply, export, cp."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from waypoint import errors
from waypoint.api.files import Applied, CopyDone, Exported
from waypoint.api.traces import ExportTrace
from waypoint.cli import render
from waypoint.cli.spec import SESSION, YES, Argument, argument, flag, verb
from waypoint.client.payloads import complete_file

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.render import Paint
    from waypoint.model import Landed, Landing, LeftOut

_MOST_LINES = 40
_SIGNS = {"create": "+", "update": "~", "mode": "~", "delete": "-"}
_LOCATION = re.compile(
    r"(?P<session>[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@(?P<ref>[^/]+))?:(?P<path>.*)", re.DOTALL
)


def _selection(from_help: str) -> tuple[Argument, ...]:
    """Which changes of a session are meant."""
    return (
        argument(
            "paths", metavar="PATH", nargs="*", help="only what is at or below these paths of the session"
        ),
        argument("--from", metavar="DIR", dest="source", help=from_help),
        argument("-r", "--ref", metavar="REF", help="the changes up to this point (default: up to now)"),
        argument("--since", metavar="REF", help="the changes from this point on (default: from the base on)"),
    )


# apply ----------------------------------------------------------------------------------------------------


@verb(
    "apply",
    "copy what has changed in a session to a folder of this machine",
    SESSION,
    argument("--to", metavar="DIR", required=True, help="a folder of this machine"),
    *_selection("the folder of the session that corresponds to DIR"),
    flag("--delete", help="delete here what was deleted in the session"),
    flag("--force", help="replace files that have changed here in the meantime"),
    flag(
        "--allow-executed", help="also what this machine runs by itself: git hooks, shell start files, units"
    ),
    flag("--dry-run", help="only show what would be done"),
    YES,
    examples=(
        "waypoint apply --to /srv/app /app",
        "waypoint apply --to ~/project --from /app src tests --dry-run",
        "waypoint apply --to / --ref good --yes",
    ),
    about="The folder of the session is --from, else the one absolute PATH, else the folder its shell is"
    " in; with --to / paths stay the same. Files are replaced one by one, each in one step. A file that"
    " has changed here since the session started is a conflict: then nothing is copied, unless --force is"
    " given. So is a file that this machine would run by itself or take commands from (a git hook, .envrc,"
    " .bashrc, authorized_keys, a unit): read it, then give --allow-executed. Of a file that exists here only"
    " what changed is copied; new files keep owner, mode and attributes. Repeating it does nothing more.",
)
def apply(console: Console) -> int:
    arguments = console.arguments
    session = console.open_session()
    options: dict[str, Any] = {
        "source": arguments.source,
        "ref": arguments.ref,
        "since": arguments.since,
        "delete": arguments.delete,
        "force": arguments.force,
        "allow_executed": arguments.allow_executed,
    }
    if not arguments.dry_run:
        console.require_confirmation("applying changes")
    if arguments.dry_run or not arguments.yes:
        with console.progress("comparing"):
            plan = session.apply(arguments.to, arguments.paths, dry_run=True, **options)
        if arguments.dry_run:
            console.result(Applied(landing=plan), landing_plan(plan, console.paint))
            return 0
        console.aside(landing_plan(plan, console.stderr_paint))
        if plan.items and (arguments.force or not plan.conflicts):
            console.confirm(f"Apply {landing_count(plan)}?", action="applying changes")
    with console.progress("applying") as update:
        done = session.apply(
            arguments.to,
            arguments.paths,
            dry_run=False,
            on_progress=lambda far: update(f"applying: {far}"),
            **options,
        )
    console.result(Applied(landing=done), applied(done))
    unsolved = [conflict for conflict in done.conflicts if not conflict.forcible]
    for conflict in unsolved:
        console.say(f"{render.shown(conflict.path)} was not replaced: {conflict.why}")
    return 1 if unsolved else 0


def applied(done: Landing) -> str:
    if not done.items:
        same = f" ({render.plural(done.unchanged, 'file')} already the same)" if done.unchanged else ""
        return f"nothing to do{same}"
    return f"applied to {render.shown(done.target)}: {landing_count(done)}"


# How a landing looks: the files that apply and `restore --files` write --------------------------------------


def landing_plan(plan: Landing, paint: Paint) -> str:
    """What a landing would do, with its conflicts and what it leaves out."""
    lines = []
    if plan.source != plan.target:
        lines.append(f"{render.shown(plan.source)} → {paint.bold(render.shown(plan.target))}")
    lines += [_item(item, plan.target, paint) for item in plan.items[:_MOST_LINES]]
    lines += _more(plan.items)
    for conflict in plan.conflicts[:_MOST_LINES]:
        path = _relative(conflict.path, plan.target)
        lines.append(f"  {paint.bad('!')} {path}  {paint.warn(render.shown(conflict.why))}")
    lines += _more(plan.conflicts, " conflicts")
    lines += _left_out(plan.left_out, paint)
    if not plan.items and not plan.conflicts:
        lines.append("  nothing to do")
    return "\n".join(lines)


def _item(item: Landed, target: str, paint: Paint) -> str:
    sign = {"create": paint.good, "delete": paint.bad}.get(item.action, paint.warn)(_SIGNS[item.action])
    name = _relative(item.path, target) + ("/" if item.entry == "folder" else "")
    details = [render.size(item.size_bytes)] if item.size_bytes else []
    details += [what for what in item.what if what != "content"]
    return f"  {sign} {name}  {paint.dim(', '.join(details))}".rstrip()


def _relative(path: str, target: str) -> str:
    return render.shown(path.removeprefix(target.rstrip("/")).lstrip("/") or path)


def _more(items: Sequence[Any], what: str = "") -> list[str]:
    return [f"  … {len(items) - _MOST_LINES:,} more{what}"] if len(items) > _MOST_LINES else []


def _left_out(left_out: Sequence[LeftOut], paint: Paint) -> list[str]:
    """What is not copied, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in left_out:
        by_reason.setdefault(entry.why, []).append(render.shown(entry.path))
    lines = []
    for why, paths in by_reason.items():
        names = ", ".join(paths[:3]) + (f", … {len(paths) - 3:,} more" if len(paths) > 3 else "")
        lines.append(f"  {paint.dim('left out:')} {names}  {paint.dim(render.shown(why))}")
    return lines


def landing_count(landing: Landing) -> str:
    """`7 new, 3 changed, 1 deleted, 12 KB`; folders are counted separately."""
    items = [item for item in landing.items if item.entry != "folder"]
    numbers = {
        "new": sum(item.action == "create" for item in items),
        "changed": sum(item.action in ("update", "mode") for item in items),
        "deleted": sum(item.action == "delete" for item in items),
    }
    parts = [f"{number:,} {word}" for word, number in numbers.items() if number]
    if folders := len(landing.items) - len(items):
        parts.append(render.plural(folders, "folder"))
    if size_bytes := sum(item.size_bytes for item in items):
        parts.append(render.size(size_bytes))
    return ", ".join(parts)


def landing_items(landing: Landing) -> list[str]:
    """What a landing has written, one line each."""
    items = landing.items
    lines = [f"  {_SIGNS[item.action]} {render.shown(item.path)}" for item in items[:_MOST_LINES]]
    return [*lines, *_more(items)]


# export ---------------------------------------------------------------------------------------------------


@verb(
    "export",
    "write what has changed in a session as a tar or a patch",
    SESSION,
    argument("-o", "--output", metavar="FILE", help="the file to write (default: stdout)"),
    *_selection("the folder of the session that names are relative to (default: /)"),
    flag("--patch", help="a patch for `git apply` instead of a tar"),
    flag("--whiteouts", help="deletions as in container images: .wh.NAME"),
    flag("--trace", help="what was done, as a file that `replay` can check: on this machine or another one"),
    examples=(
        "waypoint export -o work.tar",
        "waypoint export --patch --from /app -o fix.patch",
        "waypoint export --since c2 --ref c5 --whiteouts -o layer.tar",
        "waypoint export --trace --since c2 -o work.trace",
    ),
    about="In a tar the names of deleted files are in .waypoint-deleted, each followed by a zero byte. A"
    " trace holds the base's identity, the files of the starting point (--since), each command with its exit"
    " status and output, and the files and verdicts of each point. What looks like a secret is not in"
    " commands and outputs; the files of the starting point are as they are.",
    json={"": "export", "--trace": "export_trace"},
)
def export(console: Console) -> int:
    arguments = console.arguments
    to_stdout = arguments.output in (None, "-")
    if to_stdout and (console.json or sys.stdout.isatty()):
        raise errors.UsageError(
            "an export goes to a file or a pipe",
            hint="name the file with -o FILE; to read the changes, use `waypoint diff --patch`",
        )
    if arguments.trace:
        return _export_trace(console, to_stdout=to_stdout)
    if arguments.patch and arguments.whiteouts:
        raise errors.UsageError("--whiteouts is only for a tar", hint="a patch contains the deletions anyway")
    session = console.open_session()
    options: dict[str, Any] = {
        "source": arguments.source,
        "ref": arguments.ref,
        "since": arguments.since,
        "patch": arguments.patch,
        "whiteouts": arguments.whiteouts,
    }
    with console.progress("exporting") as update:
        try:
            exported = session.export(
                sys.stdout.buffer if to_stdout else arguments.output,
                arguments.paths,
                on_progress=lambda far: update(f"exporting: {far}"),
                **options,
            )
        except BrokenPipeError:
            raise
        except OSError as error:
            raise errors.UsageError(
                f"cannot write {arguments.output}: {error.strerror}", hint="choose another file"
            ) from error
    deleted = f", {exported.deleted:,} deleted" if exported.deleted else ""
    text = f"{exported.files:,} files{deleted}, {render.size(exported.bytes)}"
    if to_stdout:
        console.say(text)
    else:
        console.result(Exported(exported=exported), f"{arguments.output}: {text}")
    for line in _left_out(exported.left_out, console.stderr_paint):
        console.aside(line)
    return 0


def _export_trace(console: Console, *, to_stdout: bool) -> int:
    arguments = console.arguments
    if arguments.patch or arguments.whiteouts or arguments.paths or arguments.source:
        raise errors.UsageError(
            "a trace holds all of it", hint="leave out PATH, --from, --patch, --whiteouts"
        )
    request = ExportTrace(session=console.session, start=arguments.since, ref=arguments.ref)
    with console.progress("exporting"):
        try:
            with complete_file(sys.stdout.buffer if to_stdout else arguments.output) as out:
                exported = console.transport.ask(request, on_data=out.write)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise errors.UsageError(
                f"cannot write {arguments.output}: {error.strerror}", hint="choose another file"
            ) from error
    text = f"{exported.steps:,} steps, {render.size(exported.bytes)}, trace {exported.trace[:16]}"
    if to_stdout:
        console.say(text)
    else:
        console.result(exported, f"{arguments.output}: {text}")
    return 0


# cp -------------------------------------------------------------------------------------------------------


class Location(NamedTuple):
    """One end of a copy: a path of this machine, of a session or of a point."""

    in_session: bool
    path: str
    session: str | None = None
    ref: str | None = None


def parse_location(word: str) -> Location:
    """`SESSION:PATH`, `SESSION@REF:PATH`, `:PATH` for the default session. Everything else is a path of this
    machine, and so is a word with a slash before its first colon."""
    match = _LOCATION.fullmatch(word)
    if match is None or "/" in word[: match.start("path")]:
        return Location(False, word)
    return Location(True, match["path"] or ".", match["session"], match["ref"])


@verb(
    "cp",
    "copy files and folders into a session or out of it",
    SESSION,
    argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="SRC… DST: a path of this machine, or SESSION:PATH, SESSION@REF:PATH, :PATH",
    ),
    argument(
        "-r", "--ref", metavar="REF", help="copy from this point (default: from the session as it is now)"
    ),
    flag("-L", "--follow", help="for a SRC that is a link, copy what it points to"),
    examples=(
        "waypoint cp data.csv work:/app",
        "waypoint cp work:/app/out .",
        "waypoint cp work@c3:/etc/hosts hosts-then",
    ),
    about="Like `cp -a`: into DST if that is a folder, else to DST; owner, mode, times, attributes and"
    " links are kept; SRC/. copies the content of SRC. Relative paths of a session start at the folder its"
    " shell is in. For a local name that contains a `:`, write ./NAME.",
    json="copy_out",
)
def cp(console: Console) -> int:
    arguments = console.arguments
    *sources, target = [parse_location(word) for word in arguments.paths]
    name, ref = _session_side(sources, target, arguments)
    session = console.open_session(name)
    paths = [source.path for source in sources]
    with console.progress("copying") as update:

        def on_progress(far: str) -> None:
            update(f"copying: {far}")

        if target.in_session:
            copied = session.copy_in(paths, target.path, follow=arguments.follow, on_progress=on_progress)
        else:
            copied = session.copy_out(
                paths, target.path, ref=ref, follow=arguments.follow, on_progress=on_progress
            )
    console.result(CopyDone(copied=copied), None)
    if not console.json and sys.stdout.isatty():
        numbers = {"file": copied.files, "folder": copied.folders, "link": copied.links}
        parts = [render.plural(number, word) for word, number in numbers.items() if number or word == "file"]
        console.step(f"{', '.join(parts)}, {render.size(copied.bytes)}")
    for line in _left_out(copied.left_out, console.stderr_paint):
        console.aside(line)
    return 0


def _session_side(
    sources: Sequence[Location], target: Location, arguments: argparse.Namespace
) -> tuple[str | None, str | None]:
    """The session and the point of the side that is in a session."""
    if not sources:
        raise errors.UsageError("a copy needs a source and a target", hint="waypoint cp SRC… DST")
    origins = {(source.session, source.ref or arguments.ref) for source in sources if source.in_session}
    has_local_source = any(not source.in_session for source in sources)
    if target.in_session == bool(origins) or (origins and has_local_source):
        raise errors.UsageError(
            "one side must be in a session, the other on this machine",
            hint="`waypoint cp work:/app/out .` or `waypoint cp data work:/app`; for a local name that"
            " contains a `:`, write ./NAME",
        )
    if len(origins) > 1:
        raise errors.UsageError("all sources must be in the same session and at the same point")
    name, ref = next(iter(origins)) if origins else (target.session, target.ref or arguments.ref)
    if target.in_session and ref:
        raise errors.UsageError(
            "a point cannot be changed", hint="copy into the session itself: SESSION:PATH"
        )
    return name, ref
