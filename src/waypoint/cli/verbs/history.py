"""The history of a session: its points, one point, the present, the difference of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from waypoint.api.history import Compare, Diff, Log, Show, Status
from waypoint.cli import render
from waypoint.cli.console import text_size
from waypoint.cli.spec import REF, SESSION, SESSION_FIRST, argument, count, flag, positive, verb
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.cli.console import Console

_DIFFERENT = 1
_CARD_LINES = 40
"""How many lines of each section of a card are shown, without --all."""


@verb(
    "log",
    "show the points of a session, the last one first",
    SESSION,
    flag("--all", help="of all sessions, with every point that Waypoint took automatically"),
    flag("--graph", help="with all points of the sessions that were forked from this one"),
    argument(
        "--since", metavar="WHEN", help="only newer points: 10:27, 2h, 3d, 2026-11-16, '2026-11-16 10:27'"
    ),
    argument("-n", "--number", metavar="N", type=count, help="only the last N"),
    examples=("waypoint log", "waypoint log -s work -n 5 --since 2h", "waypoint log --all --json"),
    about="@ is the present, ● the point a session is at, ✗ a point that failed its verification. An"
    " intent is shown as it was given; `$ …` is the last command and `commit …` the last commit, for"
    " points without an intent. With --json the oldest point comes first.",
)
def log(console: Console) -> int:
    from waypoint.cli.timeline import Timeline

    arguments = console.arguments
    request = Log(
        session=console.session,
        all=arguments.all,
        family="whole" if arguments.graph else None if console.json else "tips",
        since=arguments.since,
    )
    log = console.send(request, "reading the history")
    if console.json:
        if arguments.number:
            log = msgspec.structs.replace(log, checkpoints=log.checkpoints[-arguments.number :])
        console.result(log, None)
        return 0
    status = None if arguments.all else _status(console)
    width = text_size().columns
    data = msgspec.to_builtins(log)
    timeline = Timeline(data, status, console.paint, width, unfold=arguments.all, limit=arguments.number)
    console.show(data, timeline.text())
    if not log.checkpoints:
        console.hint("there are no points yet: `waypoint checkpoint` takes one")
    return 0


@verb(
    "show",
    "show one point: its intent, what changed, its verdicts and notes",
    SESSION,
    REF,
    flag("--all", help="every change, however many there are"),
    flag("--again", help="compute the card again"),
    examples=("waypoint show @", "waypoint show -s work up --all"),
    about="Each part is marked with its source: derived from the snapshots, observed by Waypoint, or"
    " claimed by a person or an agent.",
)
def show(console: Console) -> int:
    arguments = console.arguments
    request = Show(session=console.session, ref=arguments.ref, again=arguments.again)
    doing = "computing the card" if arguments.again else "waiting for the daemon"
    card = views.Card(msgspec.to_builtins(console.send(request, doing)))
    console.show(card.data, render.styled(card.lines(None if arguments.all else _CARD_LINES), console.paint))
    if card.gaps:
        console.hint(f"waypoint show {arguments.ref} --again   computes the card again")
    return 0


@verb(
    "status",
    "show where a session is, and what has changed since its last point",
    *SESSION_FIRST,
    examples=("waypoint status", "waypoint status work"),
)
def status(console: Console) -> int:
    status = _status(console)
    console.show(status.data, render.styled(status.lines(), console.paint))
    return 0


def _status(console: Console) -> views.Status:
    return views.Status(msgspec.to_builtins(console.send(Status(session=console.session), "comparing")))


# Differences ----------------------------------------------------------------------------------------------

_SECTIONS = {
    "files": ("files",),
    "packages": ("packages",),
    "processes": ("processes", "ports"),
    "shell": ("shell",),
}
"""Option → the sections of a difference that it selects."""


@verb(
    "diff",
    "show what changed between two points, or between a point and now",
    SESSION,
    argument(
        "words",
        metavar="REF|PATH",
        nargs="*",
        help="a point (default: @), another (default: now), then paths: these start with / or . or stand"
        " after --",
    ),
    flag("--files", help="only files"),
    flag("--packages", help="only packages"),
    flag("--processes", help="only processes and ports"),
    flag("--shell", help="only the shell: folder, variables, functions"),
    flag("--stat", help="totals instead of lists"),
    flag("--patch", help="the changes of text files as a unified diff"),
    examples=(
        "waypoint diff c2 c5",
        "waypoint diff @ --stat",
        "waypoint diff c2 c5 /srv/app --patch",
        "waypoint diff base -- src",
    ),
    about="The difference is derived from the snapshots, for files that git knows and for all others. Exit"
    " status 1 if something changed, else 0. `now` and `base` (what the session started from) are points"
    " too.",
)
def diff(console: Console) -> int:
    arguments = console.arguments
    refs, paths = split_refs_and_paths(arguments.words)
    only = [section for option, names in _SECTIONS.items() if getattr(arguments, option) for section in names]
    request = Diff(
        session=console.session,
        a=refs[0] if refs else None,
        b=refs[1] if len(refs) > 1 else None,
        paths=tuple(paths),
        only=("files",) if arguments.patch and not only else tuple(only),
        patch=arguments.patch,
    )
    difference = views.Diff(msgspec.to_builtins(console.send(request, "comparing")))
    if difference.patch is not None:
        console.show(difference.data, _colour_patch(difference.patch, console.paint))
        _report_gaps(console, difference)
    else:
        lines = difference.stat() if arguments.stat else difference.lines()
        console.show(difference.data, render.styled(lines, console.paint))
    return _DIFFERENT if difference else 0


def split_refs_and_paths(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A path starts with / or with a dot, or stands after two refs or after `--`."""
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


def _report_gaps(console: Console, difference: views.Diff) -> None:
    """Says on stderr what is missing in a patch, because programs read the patch itself."""
    if console.json:
        return
    for gap in difference.gaps:
        console.say(render.shown(gap))
    if redacted := difference.data["patch_redacted"]:
        console.say(f"{render.plural(redacted, 'value')} redacted: this patch cannot be applied")


def _colour_patch(patch: str, paint: render.Paint) -> str:
    lines = patch.rstrip("\n").split("\n")
    return "\n".join(_colour_patch_line(line, paint) for line in lines) if paint.on else "\n".join(lines)


def _colour_patch_line(line: str, paint: render.Paint) -> str:
    if line.startswith(("+++", "---", "diff ", "#")):
        return paint.bold(line)
    colour = {"+": paint.good, "-": paint.bad, "@": paint.name}.get(line[:1])
    return colour(line) if colour else line


# Candidates -----------------------------------------------------------------------------------------------


@verb(
    "compare",
    "show several sessions or points side by side, to choose one of them",
    SESSION,
    argument("--base", metavar="REF", help="compare with this point (default: the last one they share)"),
    argument("--verify", metavar="CMD", help="run a command in a throwaway fork of each first"),
    argument("--timeout", metavar="SEC", type=positive, help="the longest it may take (default: 600)"),
    flag("--all", help="also what all of them have alike, and every row"),
    argument(
        "candidates",
        metavar="SESSION|REF",
        nargs="+",
        help="two or more: a session (as it is now), SESSION:REF, a point of SESSION, or now",
    ),
    examples=(
        "waypoint compare try-1 try-2 try-3",
        "waypoint compare -s work c2 c5 now",
        "waypoint compare try-1 try-2 --verify 'pytest -q'",
    ),
    about="Each column says what a candidate did since they parted: verdicts, how its last command ended,"
    " files, packages, processes, what it did outside, how long its commands took. Below is a row for each"
    " thing that is not the same in all of them: `≠` where what was done looks alike and is not, `?` where it"
    " is not known. With --verify a session that has changed since its last point gets one first.",
)
def compare(console: Console) -> int:
    arguments = console.arguments
    request = Compare(
        candidates=tuple(arguments.candidates),
        session=console.session,
        base=arguments.base,
        verify=arguments.verify,
        timeout=arguments.timeout,
        actor=console.actor,
    )
    comparison = views.Comparison(msgspec.to_builtins(console.send(request, "comparing")))
    lines = comparison.lines(text_size().columns, everything=arguments.all)
    console.show(comparison.data, render.styled(lines, console.paint))
    return 0
