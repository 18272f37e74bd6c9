"""The verbs that hold two points against each other: diff, preview, restore, bisect."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render
from waypoint.cli.verbs.sessions import restored
from waypoint.cli.verbs.timeline import command_of
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console

DIFFERENT = 1


# Two points ---------------------------------------------------------------------------------------------


def diff(console: Console) -> int:
    given = console.arguments
    refs, paths = split_words(given.words)
    only = [name for name in ("files", "packages", "processes", "shell") if getattr(given, name)]
    if "processes" in only:
        only.append("ports")
    args = {
        "session": console.session,
        "a": refs[0] if refs else None,
        "b": refs[1] if len(refs) > 1 else None,
        "paths": paths,
        "only": ["files"] if given.patch and not only else only,
        "patch": given.patch,
    }
    found = console.call("diff", args, "comparing")
    told = views.Diff(found)
    if told.patch is not None:
        console.show(found, _painted_patch(console, told.patch))
        _aside(console, told)
    elif given.stat:
        console.show(found, render.styled(told.stat(), console.paint))
    else:
        console.show(found, render.styled(told.lines(), console.paint))
    return DIFFERENT if told else 0


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Refs and paths. A path starts with / or with a dot, or stands after two refs or after `--`."""
    refs: list[str] = []
    paths: list[str] = []
    for number, word in enumerate(words):
        if word == "--":
            return refs, [*paths, *words[number + 1 :]]
        if len(refs) == 2 or paths or word.startswith(("/", ".")):
            paths.append(word)
        else:
            refs.append(word)
    return refs, paths


def _aside(console: Console, told: views.Diff) -> None:
    """What is missing, beside a patch that is read by programs."""
    if not console.json:
        for gap in told.gaps:
            console.say(render.shown(gap))
        if hidden := told.data["patch_redacted"]:
            console.say(f"{render.plural(hidden, 'value')} redacted: it cannot be applied as it is")


def _painted_patch(console: Console, patch: str) -> str:
    paint = console.paint
    if not paint.on:
        return patch.rstrip("\n")

    def line(text: str) -> str:
        if text.startswith(("+++", "---", "diff ", "#")):
            return paint.bold(text)
        manner = {"+": paint.good, "-": paint.bad, "@": paint.name}.get(text[:1])
        return manner(text) if manner else text

    return "\n".join(line(text) for text in patch.rstrip("\n").split("\n"))


# Going back ---------------------------------------------------------------------------------------------


def preview(console: Console) -> int:
    plan = views.Plan(_plan(console))
    console.show(plan.data, render.styled(plan.lines(), console.paint))
    name = plan.data["plan"]["session"]
    console.hint(f"waypoint restore -s {name} --plan {plan.id}   does exactly this, or nothing")
    return 0


def _plan(console: Console) -> Mapping[str, Any]:
    given = console.arguments
    args = {"session": console.session, "ref": given.ref, "files_only": given.files_only}
    found: Mapping[str, Any] = console.call("preview", args, "looking at what would change")
    return found


def restore(console: Console) -> int:
    given = console.arguments
    if given.ref is None and (given.plan is None or given.files):
        raise errors.UsageError("where to?", hint="waypoint restore REF; `waypoint log` lists the points")
    if given.files:
        from waypoint.cli.verbs.landing import restore_files

        return restore_files(console)
    if given.delete or given.dry_run:
        raise errors.UsageError("--delete and --dry-run go with --files", hint="`waypoint restore -h`")
    if given.plan or given.yes:
        return _go(console, given.plan)
    while console.can_ask and given.ref:
        plan = views.Plan(_plan(console))
        console.aside(render.styled(plan.lines(safety=not given.no_safety), console.paint_aside))
        console.confirm("Restore?", refused="restoring")
        try:
            return _go(console, plan.id)
        except errors.GroundMoved:
            console.say("something has changed in the meantime; look again:")
    raise errors.ConfirmationNeeded(
        "restoring needs to be confirmed",
        hint="`waypoint preview` says what it would do; --plan ID does exactly that, --yes whatever it is",
    )


def _go(console: Console, plan: str | None) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "ref": given.ref,
        "plan": plan,
        "safety": not given.no_safety,
        "files_only": given.files_only,
    }
    return restored(console, console.call("restore", args, "restoring"))


# Looking for the point that broke something --------------------------------------------------------------


def bisect(console: Console) -> int:
    given = console.arguments
    args = {
        "session": console.session,
        "good": given.good,
        "bad": given.bad,
        "command": command_of(given.command),
        "timeout": given.timeout,
    }
    paint = console.paint_aside

    def tried(event: Mapping[str, Any]) -> None:
        step = event["tried"]
        sign = paint.good("✔") if step["passed"] else paint.bad("✖")
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        console.aside(f"{sign} {step['label']}  {render.cut(views.title(step), 60)}".rstrip())

    hear = None if console.json else tried
    with console.progress("trying points in forks"):
        found = console.client.call("bisect", args, on_event=hear)
    console.show(found, render.styled(views.Bisection(found).lines(), console.paint))
    return 0
