"""Going back to a point, and taking that back: preview, restore, undo, redo, and their record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import errors
from waypoint.api import hints
from waypoint.api.history import Ops, Preview
from waypoint.api.points import Redo, Restore, Undo
from waypoint.cli import render
from waypoint.cli.spec import REF, SESSION, YES, argument, flag, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.model import Restored


@verb(
    "preview",
    "show what a restore would do: what it discards, what it brings back, what it cannot undo",
    SESSION,
    REF,
    flag("--files-only", help="as for `restore --files-only`"),
    examples=("waypoint preview c2", "waypoint preview -s work good --json"),
    about="The plan has an id: `waypoint restore --plan ID` does exactly what the plan says, and is"
    " refused if the session has changed since.",
)
def preview(console: Console) -> int:
    plan = _make_plan(console)
    console.show(plan.data, render.styled(plan.lines(wording=hints.in_command), console.paint))
    name = plan.data["plan"]["session"]
    console.hint(f"waypoint restore -s {name} --plan {plan.id}   does exactly this, or nothing")
    return 0


def _make_plan(console: Console) -> views.Plan:
    arguments = console.arguments
    request = Preview(session=console.session, ref=arguments.ref, files_only=arguments.files_only)
    return views.Plan(msgspec.to_builtins(console.send(request, "comparing")))


@verb(
    "restore",
    "go back to a point",
    SESSION,
    argument(
        "ref",
        metavar="REF",
        nargs="?",
        help="a point: its name, c5, its id, @, a time of day, good; not needed with --plan",
    ),
    YES,
    argument(
        "--plan",
        metavar="ID",
        help="do exactly what this plan of `waypoint preview` says, or nothing if the session has changed",
    ),
    flag("--no-safety", help="take no safety checkpoint first"),
    flag("--files-only", help="restore the files of that point, with a new shell"),
    argument(
        "--files",
        metavar="PATH",
        nargs="+",
        help="restore only these files and folders of the session; everything else stays as it is",
    ),
    flag("--delete", help="with --files: also delete what was created there since"),
    flag("--dry-run", help="with --files: only show what would be restored"),
    examples=(
        "waypoint restore -s work up",
        "waypoint restore @ --yes",
        "waypoint restore --plan 1f4b9c20",
        "waypoint restore c2 --files src config.yml",
    ),
    about="On a terminal it shows the plan and asks; otherwise it needs --yes or --plan. A safety"
    " checkpoint of the present is taken first, so that `waypoint undo` can come back. Attached clients"
    " stay attached. A restore that fails changes nothing.",
    json={"": "restore", "--files": "restore_files"},
)
def restore(console: Console) -> int:
    arguments = console.arguments
    if arguments.ref is None and (arguments.plan is None or arguments.files):
        raise errors.UsageError(
            "no point given", hint="waypoint restore REF; `waypoint log` lists the points"
        )
    if arguments.files:
        return _restore_files(console)
    if arguments.delete or arguments.dry_run:
        raise errors.UsageError("--delete and --dry-run need --files", hint="`waypoint restore -h`")
    if arguments.plan or arguments.yes:
        return _restore(console, arguments.plan)
    while console.can_ask and arguments.ref:
        plan = _make_plan(console)
        lines = plan.lines(safety=not arguments.no_safety, wording=hints.in_command)
        console.aside(render.styled(lines, console.stderr_paint))
        console.confirm("Restore?", action="restoring")
        try:
            return _restore(console, plan.id)
        except errors.PlanStale:
            console.say("the session has changed since; this is the new plan:")
    raise errors.ConfirmationNeeded(
        "restoring needs confirmation",
        hint="`waypoint preview` shows what it would do; --plan ID does exactly that, --yes does not ask",
    )


def _restore(console: Console, plan: str | None) -> int:
    arguments = console.arguments
    request = Restore(
        session=console.session,
        ref=arguments.ref,
        plan=plan,
        safety=not arguments.no_safety,
        files_only=arguments.files_only,
        actor=console.actor,
    )
    return _show_restored(console, console.send(request, "restoring"))


def _show_restored(console: Console, result: Restored) -> int:
    """Prints where the session is now."""
    paint, name = console.paint, result.session.name
    title = render.point_title(result.checkpoint, paint)
    ready = paint.dim(f"ready in {render.milliseconds(result.ready_ms)}")
    notes = "".join(f"\n{paint.warn('note')} {change}" for change in result.base_changes)
    console.result(result, f"{name} is at {title}  {ready}{notes}")
    if result.safety:
        console.hint(f"waypoint undo -s {name}   goes back to where it was ({result.safety.label})")
    return 0


@verb("undo", "take the last restore back", SESSION, examples=("waypoint undo -s work",))
def undo(console: Console) -> int:
    request = Undo(session=console.session, actor=console.actor)
    return _show_restored(console, console.send(request, "restoring"))


@verb("redo", "take the last undo back", SESSION, examples=("waypoint redo -s work",))
def redo(console: Console) -> int:
    request = Redo(session=console.session, actor=console.actor)
    return _show_restored(console, console.send(request, "restoring"))


@verb(
    "ops",
    "list what has moved a session: restores, undos, redos",
    SESSION,
    examples=("waypoint ops -s work",),
)
def ops(console: Console) -> int:
    result = console.send(Ops(session=console.session), "reading the history")
    rows = [
        (
            render.clock(operation.at),
            operation.verb,
            operation.to or "no point any more",
            operation.back_to or "none",
            "undone" if operation.undone else "",
        )
        for operation in reversed(result.operations)
    ]
    head = ("WHEN", "WHAT", "TO", "WAY BACK", "")
    console.show(result, render.table(head, rows, console.paint) if rows else "")
    if not rows:
        console.hint("nothing has moved this session yet")
    return 0


# Single files ---------------------------------------------------------------------------------------------


def _restore_files(console: Console) -> int:
    """`restore REF --files PATH…`."""
    from waypoint.cli.verbs.files import landing_count, landing_items, landing_plan

    arguments = console.arguments
    session = console.open_session()
    options: dict[str, Any] = {"delete": arguments.delete, "safety": not arguments.no_safety}
    if not arguments.dry_run:
        console.require_confirmation("restoring files")
    if arguments.dry_run or not arguments.yes:
        with console.progress("comparing"):
            plan = session.restore_files(arguments.ref, arguments.files, dry_run=True, **options)
        if arguments.dry_run:
            console.result(plan, landing_plan(plan.landing, console.paint))
            return 0
        console.aside(landing_plan(plan.landing, console.stderr_paint))
        if plan.landing.items:
            if not arguments.no_safety:
                console.aside("A safety checkpoint is taken first; `waypoint undo` comes back here.")
            console.confirm(f"Restore {landing_count(plan.landing)}?", action="restoring files")
    with console.progress("restoring files"):
        done = session.restore_files(arguments.ref, arguments.files, dry_run=False, **options)
    landing, label = done.landing, done.checkpoint.label
    lines = [f"as at {label}: {landing_count(landing)}", *landing_items(landing)]
    text = "\n".join(lines) if landing.items else f"nothing to do: they are as they were at {label}"
    console.result(done, text)
    if done.safety:
        console.hint(f"waypoint undo -s {session.name}   goes back to where it was ({done.safety.label})")
    return 0
