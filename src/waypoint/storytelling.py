"""The verbs that tell: show, status, diff, preview, verify, bisect, and the words added to points."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from waypoint.errors import NotFound, UsageError
from waypoint.history import refs
from waypoint.history.secrets import Redactor
from waypoint.history.store import iso
from waypoint.model import Checkpoint
from waypoint.service import Connection, verb
from waypoint.story import line_between

if TYPE_CHECKING:
    from waypoint.daemon import Daemon


@verb
def show(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """One point: its card, its verdicts, its notes."""
    point = daemon.sessions.point(daemon.sessions.find(args.get("session")), args["ref"])
    if args.get("again"):
        daemon.story.write_later(point.id)
    card = daemon.story.card(point)
    return {
        "checkpoint": daemon.sessions.store.checkpoint(point.id),
        "card": card,
        "verdicts": daemon.sessions.store.verdicts(point.id),
        "notes": daemon.sessions.store.notes(point.id),
    }


@verb
def diff(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Two points; the second is now when not given. With `patch`: the text of what changed in files."""
    row = daemon.sessions.find(args.get("session"))
    story = daemon.story
    with story.moment(row, args.get("a") or "@") as old, story.moment(row, args.get("b")) as new:
        found = story.difference(old, new)
        result = {"from": old.point or old.label, "to": new.point or new.label, "difference": found}
        if args.get("patch"):
            from waypoint.history.patches import patch

            redactor = Redactor.knowing({**old.facts.shell.exported, **new.facts.shell.exported})
            pieces = patch(old.view, new.view, found.files, args.get("paths") or ())
            result["patch"] = redactor.redact_patch("".join(pieces)).text
        return result


@verb
def status(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Where a session stands: its last point, and what has changed since."""
    row = daemon.sessions.find(args.get("session"))
    described = daemon.sessions.describe(row)
    head = daemon.sessions.store.checkpoint(row.head) if row.head else None
    found = None
    if described.state == "live":
        with daemon.story.moment(row, row.head or "base") as old, daemon.story.moment(row, None) as now:
            found = daemon.story.difference(old, now)
    return {"session": described, "head": head, "difference": found}


@verb
def preview(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """What a restore would do. The plan's id can be given to `restore`."""
    return {"plan": daemon.story.plan(daemon.sessions.find(args.get("session")), args["ref"])}


@verb
def verify(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """A command in a throwaway fork of a point; the verdict is kept with it."""
    point = daemon.sessions.point(daemon.sessions.find(args.get("session")), args["ref"])
    timeout = float(args.get("timeout") or 600)
    number = daemon.trials.verify(point, args["command"], timeout=timeout)
    found = daemon.trials.wait(point, number) if args.get("wait", True) else None
    return {"checkpoint": daemon.sessions.store.checkpoint(point.id), "verdict": found}


@verb
def tag(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Another name for a point, or (with `delete`) one taken away."""
    row = daemon.sessions.find(args.get("session"))
    name = refs.check_name(args["name"], "checkpoint")
    store = daemon.sessions.store
    if args.get("delete"):
        if not store.set_tag(row.id, name, None):
            raise NotFound(f"session {row.name!r} has no tag {name!r}")
        return {"tag": name}
    if store.name_taken(row.id, name):
        raise UsageError(f"{name!r} is the name of a checkpoint", hint="choose another tag")
    point = daemon.sessions.point(row, args["ref"])
    store.set_tag(row.id, name, point.id)
    return {"tag": name, "checkpoint": store.checkpoint(point.id)}


@verb
def note(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Words added to a point later, marked as such."""
    if not args["text"].strip():
        raise UsageError("a note needs words")
    point = daemon.sessions.point(daemon.sessions.find(args.get("session")), args["ref"])
    daemon.sessions.store.add_note(point.id, args["text"])
    return {"checkpoint": point, "notes": daemon.sessions.store.notes(point.id)}


@verb
def ops(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Everything that moved a session, oldest first."""
    row = daemon.sessions.find(args.get("session"))
    done = daemon.sessions.store.operations(row.id)
    return {
        "operations": [
            {
                "id": op.id,
                "at": iso(op.at),
                "verb": op.verb,
                "target": op.target,
                "before": op.before,
                "undone": op.undone,
            }
            for op in done
        ]
    }


@verb
def auto(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Points after each command that changed something: on or off."""
    row = daemon.sessions.find(args.get("session"))
    daemon.sessions.store.set_auto(row.id, auto=bool(args["on"]))
    return {"session": daemon.sessions.describe(daemon.sessions.find(row.id))}


@verb
def redo(daemon: Daemon, _: Connection, args: dict[str, Any]) -> Any:
    """Takes the last undo back."""
    return daemon.sessions.redo(daemon.sessions.find(args.get("session")))


@verb
def bisect(daemon: Daemon, connection: Connection, args: dict[str, Any]) -> Any:
    """The first point at which a command fails, between one where it passes and one where it does not.

    Verified in throwaway forks, two at a time: each round asks about two points and keeps a third.
    """
    row = daemon.sessions.find(args.get("session"))
    sessions = daemon.sessions
    good, bad = sessions.point(row, args["good"]), sessions.point(row, args["bad"])
    line = [point for point in line_between(sessions.store.checkpoints(), good, bad) if not point.files_only]
    command, timeout = args["command"], float(args.get("timeout") or 600)

    def works(points: Sequence[Checkpoint]) -> list[bool]:
        with ThreadPoolExecutor(max_workers=2) as workers:
            return list(workers.map(lambda point: _works(daemon, point, command, timeout), points))

    good_works, bad_works = works((good, bad))
    if not good_works or bad_works:
        which, word = (good, "fails") if not good_works else (bad, "passes")
        raise UsageError(
            f"the command {word} at {which.name or which.label}", hint="it must pass at GOOD and fail at BAD"
        )
    last_good, steps = good, []
    while len(line) > 1:
        middle = sorted({(len(line) - 1) // 3, (len(line) - 1) * 2 // 3} - {len(line) - 1})
        asked = [line[number] for number in middle]
        answers = works(asked)
        for point, passed in zip(asked, answers, strict=True):
            steps.append({"checkpoint": point.id, "label": point.label, "passed": passed})
            connection.event({"tried": steps[-1]})
        if answers == [False, True]:
            raise UsageError(
                f"it fails at {asked[0].label} and passes again at {asked[1].label}",
                hint="there is more than one culprit: choose a shorter stretch",
            )
        first_bad = middle[answers.index(False)] if False in answers else len(line) - 1
        last_pass = middle[max(n for n, passed in enumerate(answers) if passed)] if True in answers else -1
        if last_pass >= 0:
            last_good = line[last_pass]
        line = line[last_pass + 1 : first_bad + 1]
    culprit = line[0]
    with daemon.story.moment(row, last_good.id) as old, daemon.story.moment(row, culprit.id) as new:
        found = daemon.story.difference(old, new)
    return {
        "culprit": culprit,
        "last_good": last_good,
        "card": daemon.story.card(culprit),
        "difference": found,
        "steps": steps,
    }


def _works(daemon: Daemon, point: Checkpoint, command: str, timeout: float) -> bool:
    number = daemon.trials.verify(point, command, timeout=timeout)
    found = daemon.trials.wait(point, number)
    if found.state == "error":
        raise UsageError(f"{point.label} could not be tried: {found.output}")
    return found.state == "passed"
