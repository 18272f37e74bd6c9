"""Whether everything that is stored is whole, and putting it in order."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from waypoint.api.machine import Check, Recover
from waypoint.cli import render
from waypoint.cli.spec import argument, flag, verb
from waypoint.errors import DatabaseDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waypoint.cli.console import Console
    from waypoint.model import Checked, Recovered, Remedy, Repair, Violation

_FOUND = 1
_REMEDIES: dict[Remedy, str] = {
    "recover": "`waypoint recover` repairs it",
    "foreign": "nothing of it is used; `waypoint recover --foreign` takes it over if you trust its origin",
    "forget": "it cannot be repaired; `waypoint restore --files-only` may bring back its files",
    "by-hand": "look at it, and move it away by hand",
    "none": "",
}


@verb(
    "check",
    "check that everything stored is whole, by the rules of docs/storage.md",
    argument("refs", metavar="REF", nargs="*", help="only these points, or the points of these sessions"),
    argument("-s", "--session", metavar="SESSION", help="only the points of this session"),
    flag("--deep", help="compare all memory and all files with the digests made with the points; takes time"),
    examples=("waypoint check", "waypoint check --deep", "waypoint check --deep work c5"),
    about="The exit status is 1 when something is found. A point that is not what was written is marked as"
    " damaged. Nothing else is changed: `waypoint recover` repairs.",
)
def check(console: Console) -> int:
    session, refs = console.arguments.session, list(console.arguments.refs)
    if session is None and refs:
        from waypoint.api.sessions import Ls

        names = {one.name for one in console.send(Ls(), "waiting for the daemon").sessions}
        if refs[0] in names:
            session = refs.pop(0)
    request = Check(session=session, refs=tuple(refs), deep=console.arguments.deep)
    result = console.send(request, "checking", on_event=lambda event: _show_progress(console, event))
    console.result(result, "\n".join(_checked(result, console.paint)))
    return _FOUND if result.violations else 0


def _show_progress(console: Console, event: dict[str, str]) -> None:
    if sys.stderr.isatty():
        console.step(event["progress"])


def _checked(result: Checked, paint: render.Paint) -> list[str]:
    lines = [line for violation in result.violations for line in _violation(violation, paint)]
    lines += [f"{paint.dim('repaired at the start:')} {line}" for line in _repairs(result.repaired)]
    points = render.plural(result.points, "point")
    how = "compared with its digests" if result.deep else "looked at"
    if result.undigested:
        lines.append(
            paint.dim(f"{result.undigested} of {points} have no digests yet: of them only sizes are compared")
        )
    if result.violations:
        number = render.plural(len(result.violations), "broken rule")
        lines.append(paint.bad(f"{number}; {points} {how}"))
    else:
        lines.append(paint.good(f"everything is whole; {points} {how}"))
    return lines


def _violation(violation: Violation, paint: render.Paint) -> list[str]:
    lines = [
        f"{paint.bad('✖')} rule {violation.rule}: {render.shown(violation.what)}",
        f"    {paint.dim(render.shown(violation.where))}",
    ]
    if remedy := _REMEDIES[violation.remedy]:
        lines.append(f"    {remedy}")
    return lines


def _repairs(repaired: Iterable[Repair]) -> list[str]:
    return [f"{render.shown(repair.what)} ({render.shown(repair.where)})" for repair in repaired]


@verb(
    "recover",
    "repair what can be repaired without guessing",
    flag(
        "--foreign",
        help="take over points and bases of other installations too: what is in them will run as root",
    ),
    examples=("waypoint recover", "waypoint recover --json"),
    about="Complete points without a row are adopted, remains are deleted, damaged points are marked. A"
    " database that cannot be read is rebuilt from the folders of the points; the damaged one is kept beside"
    " it. What could not be repaired is listed, and the exit status is then 1.",
)
def recover(console: Console) -> int:
    request, rebuilt = Recover(foreign=console.arguments.foreign), None
    try:
        result = _recover(console, request)
    except DatabaseDamaged as error:
        from waypoint.client.connection import rebuild_database

        console.say(error.message)
        with console.progress("rebuilding the database"):
            rebuilt = rebuild_database(console.home)
        result = _recover(console, request)
        repaired = (*rebuilt.repaired, *result.repaired)
        left = (*rebuilt.left, *result.left)
        result = msgspec.structs.replace(result, repaired=repaired, left=left, kept=rebuilt.kept)
    lines = [f"{console.paint.good('✔')} {line}" for line in _repairs(result.repaired)]
    lines += [line for violation in result.left for line in _violation(violation, console.paint)]
    if result.kept:
        lines.append(f"the database as it was is in {result.kept}")
    if not result.repaired and not result.left:
        lines.append(console.paint.good("there is nothing to repair"))
    console.result(result, "\n".join(lines))
    return _FOUND if result.left else 0


def _recover(console: Console, request: Recover) -> Recovered:
    return console.send(
        request, "checking and repairing", on_event=lambda event: _show_progress(console, event)
    )
