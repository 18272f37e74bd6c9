"""The verbs of the campaign below root, and what must hold after each, whatever happened during it.

`judge` looks at the disk and at the daemon with eyes of its own: it knows what clients were told before the
verb (`Known`), and what the verb means to change.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from tests.fakes import FakeBox, World

from waypoint.api import agent, effects, files, machine, points, sessions
from waypoint.api.request import Request, StatePayload
from waypoint.api.requests import verb_of
from waypoint.core import background, check, pointfile, remains
from waypoint.core.spares import Wanted
from waypoint.daemon.connection import Peer
from waypoint.daemon.verbs import handler_of
from waypoint.errors import MachineError, WaypointError
from waypoint.kernel.pool.protocol import SCRATCH
from waypoint.model import Checkpoint, Record
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal

PRESENT = "the present"


class Content(Record, frozen=True):
    """What a session or a point holds: a file, and the memory of its processes (None: files only)."""

    note: str
    memory: str | None


class Known(Record, frozen=True):
    """What clients were told before the verb."""

    points: dict[str, Content]
    """By id: acknowledged points."""
    names: dict[str, str]
    """The ids of named points."""
    sessions: dict[str, str]
    """By name: the ids of the sessions."""
    present: Content
    """What the session `work` holds."""


class _Client:
    """The connection of a client that only listens."""

    peer = Peer(os.getpid(), os.geteuid(), frozenset())

    def event(self, body: Any) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


def ask(world: World, request: Request[Any]) -> Any:
    """What the daemon does for a request."""
    return handler_of(verb_of(type(request)))(world.app, _Client(), request)


def without_processes() -> None:
    """A fake box has none: its foreground group is not looked for."""
    Terminal._foreground_group = lambda _: None  # type: ignore[method-assign,assignment]
    logging.disable(logging.CRITICAL)  # thousands of failures are expected
    background.AFTER_AN_ANSWER = background.Patience(0.001, 0.3)  # no client waits for anything else
    check._SURE_SECONDS = 0.0  # no point is being taken beside a check


@dataclass(frozen=True)
class Verb:
    """A verb and what it is about."""

    name: str
    run: Callable[[World], object]
    prepare: Callable[[World], object] = lambda _: None
    """What has to be on the disk before it."""
    arrange: Callable[[World], object] = lambda _: None
    """What the daemon has to do before it."""
    again: Callable[[World], object] = lambda _: None
    """What a user does afterwards, whatever happened, before anything is looked at."""
    becomes: str = PRESENT
    """What `work` holds after it: the present, or the content of the point of this name."""
    leaves: str = PRESENT
    """What `work` may hold as well when it has failed half-way."""
    ends: bool = False
    """Whether it ends the session `work`, so that it need not run on when the verb fails."""
    ends_others: tuple[str, ...] = ()
    """The names of other sessions that it ends."""
    removes: tuple[str, ...] = ()
    """The names of points that it removes."""
    removes_session: bool = False
    at_start: bool = False
    """Whether it is the start of a daemon."""
    sound: bool = False
    """Whether a check finds nothing also where things may be left over that a daemon clears away."""


# ---- the home before the verb ---------------------------------------------------------------------


def row_of(world: World, name: str = "work") -> SessionRow:
    return world.app.registry.find(name)


def _note(world: World, row: SessionRow) -> Path:
    return world.home.sessions / str(row.box) / "upper" / "note"


def _box(world: World, row: SessionRow) -> FakeBox:
    return world.builder.boxes[str(row.box)]


def set_content(world: World, content: Content) -> None:
    row = row_of(world)
    _note(world, row).write_text(content.note)
    _box(world, row).memory = content.memory or ""


def content_of(world: World, row: SessionRow) -> Content:
    return Content(_note(world, row).read_text(), _box(world, row).memory)


def begin(world: World, verb: Verb) -> Known:
    """A session with three points, the last of which it stands on, and a present that is in none."""
    world.options = msgspec.structs.replace(world.options, net="none")  # its tree may wait to be saved
    world.app.sessions.new("work", world.options, world_size())
    known: dict[str, Content] = {}
    names: dict[str, str] = {}
    for name, files_only in (("one", False), ("two", False), ("bare", True), ("three", False)):
        content = Content(f"note {name}", f"memory {name}")
        set_content(world, content)
        point = ask(world, points.Checkpoint(session="work", name=name, files_only=files_only)).checkpoint
        known[point.id] = msgspec.structs.replace(content, memory=None) if files_only else content
        names[name] = point.id
    present = Content("note now", "memory now")
    set_content(world, present)
    # No work for a point is under way when its row is lost: with the power the daemon is gone too.
    world.settle()
    verb.prepare(world)
    world.settle()
    row = row_of(world)
    if row.state == "live":
        present = content_of(world, row)
    for point in world.app.store.points.all():
        if point.id not in known:
            known[point.id] = held(world, point)
    world.settle()
    rows = {row.name: row.id for row in world.app.store.sessions.all()}
    return Known(known, names, rows, present)


def world_size() -> Any:
    from waypoint.model import Size

    return Size()


def held(world: World, point: Checkpoint) -> Content:
    """What the folder of a point holds."""
    folder = world.home.checkpoints / point.id
    note = (folder / "files" / "upper" / "note").read_text()
    return Content(note, None if point.files_only else (folder / "images" / "core.img").read_text())


# ---- verbs ---------------------------------------------------------------------------------------


def _request(request: Request[Any]) -> Callable[[World], object]:
    return lambda world: ask(world, request)


def _with_spare(world: World) -> None:
    """A spare of `one` is held."""
    point = world.app.registry.point(row_of(world), "one")
    world.app.spares.want(row_of(world).id, [Wanted(point.id, 1)])
    world.app.spares.drop(())
    while world.app.spares.held() != [point.id]:
        world.settle()


def _restore_and_undo(world: World) -> None:
    """The daemon is busy: the safety point of this restore is not saved before the undo comes."""
    with world.app.background.foreground():
        ask(world, points.Restore(session="work", ref="one"))
        ask(world, points.Undo(session="work"))


def _spare(world: World) -> None:
    app = world.app
    app.copies.end_spare(app.copies.make_spare(app.registry.point(row_of(world), "one").id))


def _trial(world: World) -> None:
    app = world.app
    with app.copies.throwaway(app.registry.point(row_of(world), "one")):
        pass


def _park(world: World) -> None:
    ask(world, sessions.Park(session="work"))


def _go_to_winner(world: World) -> None:
    """The session stands on a point of its fork."""
    ask(world, points.Fork(session="work", ref="two"))
    ask(world, points.Checkpoint(session="work-1", name="winner"))
    ask(world, points.Restore(session="work", ref="work-1:winner"))


def _die(world: World) -> None:
    """The box has died, and this was noticed."""
    live = world.app.registry.live(row_of(world))
    live.box.signal_end()
    world.app.boxes.record_death(live)


def _folder(world: World) -> Path:
    folder = world.home.path / "tree"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "bash").write_text("a shell")
    return folder


def _tar(world: World) -> Path:
    path = world.home.path / "tree.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("bin/bash")
        info.size, info.mode = 7, 0o755
        tar.addfile(info, io.BytesIO(b"a shell"))
    return path


def _lose_rows(world: World) -> None:
    """What a power cut may leave: a point without a row, a row without a folder, a folder half made."""
    row = row_of(world)
    world.app.store.database.execute(
        "UPDATE sessions SET head = (SELECT parent FROM checkpoints WHERE id = head) WHERE id = ?", row.id
    )
    world.app.store.database.execute("DELETE FROM checkpoints WHERE name = 'three'")


def _damage_much(world: World) -> None:
    """Something of each sort that `recover` puts in order while a daemon runs."""
    app, home = world.app, world.home
    there = {point.name: point.id for point in app.store.points.all()}
    for point_id in there.values():
        app.digests.make(point_id)
    world.pool.unseal(home.checkpoints / there["one"] / "files")
    (home.checkpoints / there["two"] / pointfile.POINT_FILE).write_text("{")
    app.store.points.set_damage(there["bare"], "it differed, and was replaced")
    app.store.database.execute("UPDATE sessions SET forked_from = 'gone'")
    (home.pool / SCRATCH / f"{_NO_PID}.tree").mkdir(parents=True)
    _lose_rows(world)
    remains._ABANDONED_SECONDS = -1  # this was left long ago
    for folder in (home.staging / "half", home.sessions / _GONE, home.beginnings / _GONE):
        folder.mkdir()


def _recover(world: World) -> None:
    if left := ask(world, machine.Recover()).left:
        raise MachineError(f"not repaired: {left}")


_NO_PID = 1 << 22
"""No process has a number as high as that."""
_GONE = "0123456789ab"
"""An id that no row has."""


def _leave_remains(world: World) -> None:
    for folder in (world.home.staging / "half", world.home.checkpoints / _GONE):
        folder.mkdir()
        (folder / "files").mkdir()
    (world.home.sessions / _GONE).mkdir()
    (world.home.beginnings / _GONE).mkdir()
    (world.builder._folder / _GONE).write_text("a box that no session owns")


def _fail_to_delete(world: World) -> None:
    """What could not be deleted when its time had come is left to `prune`."""
    for path in (world.home.staging / "half", world.home.sessions / _GONE):
        path.mkdir()
        world.app.remains._leftovers.add(path)


def _everything_at_start(world: World) -> None:
    world.app.space.forget_points([world.app.registry.point(row_of(world), "one")], force=True)
    world.app.store.database.execute("INSERT INTO forgotten VALUES ('gone', 0)")
    _lose_rows(world)
    _leave_remains(world)


VERBS = {
    verb.name: verb
    for verb in (
        Verb("new", lambda world: ask(world, sessions.New(options=world.options))),
        Verb("checkpoint", _request(points.Checkpoint(session="work", intent="more"))),
        Verb(
            "checkpoint with agent state",
            _request(
                points.Checkpoint(session="work", name="state", agent_state=StatePayload(text='{"step": 1}'))
            ),
        ),
        Verb("checkpoint of files", _request(points.Checkpoint(session="work", files_only=True))),
        Verb("durable checkpoint", _request(points.Checkpoint(session="work", durable=True))),
        Verb("restore", _request(points.Restore(session="work", ref="one")), becomes="one"),
        Verb(
            "restore without safety",
            _request(points.Restore(session="work", ref="one", safety=False)),
            becomes="one",
        ),
        Verb(
            "restore of files",
            _request(points.Restore(session="work", ref="one", files_only=True)),
            becomes="one",
        ),
        Verb("restore to files", _request(points.Restore(session="work", ref="bare")), becomes="bare"),
        Verb(
            "restore with a spare",
            _request(points.Restore(session="work", ref="one")),
            arrange=_with_spare,
            becomes="one",
        ),
        Verb(
            "resume of a parked session",
            _request(points.Restore(session="work", ref="@")),
            prepare=_park,
            ends=True,
        ),
        Verb(
            "restore of a dead session",
            _request(points.Restore(session="work", ref="three")),
            prepare=_die,
            becomes="three",
            ends=True,
        ),
        Verb(
            "undo",
            _request(points.Undo(session="work")),
            prepare=_request(points.Restore(session="work", ref="one")),
            becomes="before one",
        ),
        Verb(
            "restore and undo at once",
            _restore_and_undo,
            leaves="one",
        ),
        Verb(
            "restore of what cannot wait to be saved",
            _request(points.Restore(session="work", ref="one")),
            arrange=lambda world: setattr(world.engine, "savable", False),
            becomes="one",
        ),
        Verb(
            "redo",
            _request(points.Redo(session="work")),
            prepare=lambda world: (
                ask(world, points.Restore(session="work", ref="one")),
                ask(world, points.Undo(session="work")),
            ),
            becomes="one",
        ),
        Verb("fork", _request(points.Fork(session="work", ref="two"))),
        Verb("fork of several", _request(points.Fork(session="work", ref="two", n=3, name="several"))),
        Verb(
            "fork with a spare",
            _request(points.Fork(session="work", ref="one", n=2)),
            arrange=_with_spare,
        ),
        Verb("park", _park, ends=True),
        Verb(
            "rm",
            _request(sessions.Rm(sessions=("work",))),
            ends=True,
            removes=("one", "two", "bare", "three"),
            removes_session=True,
        ),
        Verb(
            "rm of a parked session",
            _request(sessions.Rm(sessions=("work",))),
            prepare=_park,
            ends=True,
            removes=("one", "two", "bare", "three", "parked"),
            removes_session=True,
        ),
        Verb(
            "rm of a fork",
            _request(sessions.Rm(sessions=("work-1",))),
            prepare=_request(points.Fork(session="work", ref="two")),
            ends_others=("work-1",),
        ),
        Verb(
            "rm of a fork whose point the session stands on",
            _request(sessions.Rm(sessions=("work-1",))),
            prepare=_go_to_winner,
            ends_others=("work-1",),
        ),
        Verb(
            "stop",
            _request(sessions.Stop(session="work", discard=True)),
            becomes="three",
            ends=True,
        ),
        Verb(
            "forget",
            _request(machine.Forget(session="work", refs=("one", "bare"), force=True)),
            removes=("one", "bare"),
        ),
        Verb(
            "forget by policy",
            _request(machine.Forget(session="work", policy=machine.Retention(keep_last=1, keep_named=False))),
            removes=("one", "two", "bare"),
        ),
        Verb("prune", _request(machine.Prune()), arrange=_fail_to_delete),
        Verb("tag", _request(points.Tag(session="work", name="good-one", ref="one"))),
        Verb(
            "tag goes",
            _request(points.Tag(session="work", name="good-one", delete=True)),
            prepare=_request(points.Tag(session="work", name="good-one", ref="one")),
        ),
        Verb("note", _request(points.Note(session="work", ref="one", text="it works"))),
        Verb("pin", _request(points.Pin(session="work", ref="one"))),
        Verb("auto", _request(sessions.Auto(session="work", on=True))),
        Verb("record", _request(agent.Record(session="work", what="note", content="seen"))),
        Verb("task_add", _request(agent.TaskAdd(session="work", titles=("a", "b")))),
        Verb(
            "task_set",
            _request(agent.TaskSet(session="work", task="1", state="completed", checkpoint=True)),
            prepare=_request(agent.TaskAdd(session="work", titles=("a", "b"))),
        ),
        Verb(
            "policy_set",
            _request(effects.PolicySet(session="work", text='[[rule]]\ncommand = "rm"\ndecision = "ask"\n')),
        ),
        Verb(
            "apply",
            lambda world: ask(
                world, files.Apply(session="work", source="/", to=str(_target(world)), paths=("/note",))
            ),
        ),
        Verb(
            "base import of a folder",
            lambda world: ask(world, machine.BaseImport(name="tree", file=str(_folder(world)))),
        ),
        Verb(
            "base import of an archive",
            lambda world: ask(world, machine.BaseImport(name="tree", file=str(_tar(world)))),
        ),
        Verb(
            "base rm",
            _request(machine.BaseRm(name="tree")),
            prepare=lambda world: ask(world, machine.BaseImport(name="tree", file=str(_folder(world)))),
        ),
        Verb("recover", _recover, arrange=_damage_much, again=_recover, sound=True),
        Verb("a spare comes and goes", _spare),
        Verb("a trial", _trial),
        Verb(
            "a proof", lambda world: world.app.copies.prove(world.app.registry.point(row_of(world), "one").id)
        ),
        Verb("the end of all boxes", lambda world: world.app.sessions.stop_all(), ends=True),
        Verb("the start of a daemon", lambda _: None, at_start=True),
        Verb(
            "the start after a power cut",
            lambda _: None,
            prepare=_everything_at_start,
            removes=("one",),
            at_start=True,
        ),
    )
}


def _target(world: World) -> Path:
    folder = world.home.path / "landed"
    folder.mkdir(exist_ok=True)
    return folder


# ---- what must hold ------------------------------------------------------------------------------

Done = WaypointError | Literal["killed"] | None


def judge(world: World, verb: Verb, known: Known, done: Done, *, undone_whole: bool) -> list[str]:
    """What is not as it must be after a verb that ended with an error, with the death of the daemon, or well.
    `undone_whole`: nothing at all is left over; else a daemon that starts may have to clear away."""
    for session_id in [*world.app.registry.left_alone]:
        with contextlib.suppress(WaypointError):
            world.app.registry.require_own(session_id)  # waits until its box is taken over
    world.settle()
    world.app.remains.retry()
    found = [*_judge_points(world, verb, known, done), *_judge_session(world, verb, known, done)]
    if undone_whole:
        found += _judge_remains(world)
    if undone_whole or verb.sound:
        found += [f"check: {violation}" for violation in world.app.check.run(deep=True).violations]
        found += [f"damaged: {point.damage}" for point in world.app.store.points.all() if point.damage]
    if isinstance(done, WaypointError) and done.code == "internal":
        found.append(f"the error is not typed: {done}")
    return found


def _judge_points(world: World, verb: Verb, known: Known, done: Done) -> Iterator[str]:
    """Acknowledged points hold what they held; others are whole or gone."""
    there = {point.id: point for point in world.app.store.points.all()}
    may_go = {known.names.get(name) for name in verb.removes}
    names = {point_id: name for name, point_id in known.names.items()}
    if verb.removes_session:
        may_go |= {*known.points}
    for point_id, content in known.points.items():
        name = names.get(point_id, point_id)
        if point_id not in there:
            if point_id not in may_go:
                yield f"the acknowledged point {name} is lost"
        elif done is None and point_id in may_go and not verb.at_start:
            yield f"the point {name} was to be removed and is still there"
        elif problem := _damage(world, there[point_id], content):
            yield f"the acknowledged point {name}: {problem}"
    for point_id, point in there.items():
        if point_id in known.points:
            continue
        may_hold = {known.present, _content(known, verb.leaves)}
        if point.files_only:
            may_hold = {msgspec.structs.replace(content, memory=None) for content in may_hold}
        problems = [_damage(world, point, content) for content in may_hold]
        if all(problems):
            problem = problems[0]
            yield f"a point that was being made ({point.intent}): {problem}"


def _content(known: Known, name: str) -> Content:
    return known.points.get(known.names.get(name, ""), known.present)


def _damage(world: World, point: Checkpoint, content: Content) -> str | None:
    folder = world.home.checkpoints / point.id
    if damage := pointfile.damage(folder, files_only=point.files_only):
        return damage
    try:
        found = held(world, point)
    except OSError as error:
        return str(error)
    return None if found == content else f"it holds {found} and held {content}"


def _judge_session(world: World, verb: Verb, known: Known, done: Done) -> Iterator[str]:
    """The session lives or can be restored, and holds the present or what the verb was to bring."""
    for name, session_id in known.sessions.items():
        row = world.app.store.sessions.find(session_id)
        ends = verb.ends or name in verb.ends_others
        if row is None and not (verb.removes_session or name in verb.ends_others):
            yield f"the session {name} is lost"
        elif row and world.app.registry.describe(row).state != "live":
            if not ends:
                yield f"the session {name} does not run any more"
            elif row.head is None and known.points and not verb.removes_session:
                yield f"the session {name} does not run and has no point to go back to"
    row = world.app.store.sessions.find("work")
    if row is None or world.app.registry.describe(row).state != "live":
        return
    found = content_of(world, row)
    target, half_way = _content(known, verb.becomes), _content(known, verb.leaves)
    if verb.becomes == "before one":
        target = next(content for name, content in known.points.items() if name not in known.names.values())
    anew = Content(target.note, "a process tree")  # the files alone, with a fresh shell
    becomes = {target, anew} if verb.name in ("restore of files", "restore to files") else {target}
    if done is None:
        allowed = becomes
    elif done == "killed" or verb.ends or verb.leaves != PRESENT:
        allowed = {known.present, half_way, *becomes}
    else:
        allowed = {known.present}
    if found not in allowed:
        yield f"the session holds {found}, and not {' or '.join(map(str, allowed))}"


def _judge_remains(world: World) -> Iterator[str]:
    """Every row has its data, all data has a row, every live session runs, and nothing else does."""
    app, home = world.app, world.home

    def compare(what: str, found: Any, wanted: Any) -> Iterator[str]:
        if found != wanted:
            yield f"{what}: left over {found - wanted}, missing {wanted - found}"

    rows = app.store.sessions.all()
    ids = {point.id for point in app.store.points.all()}
    yield from compare("points", {path.name for path in home.checkpoints.iterdir()}, ids)
    yield from compare("staging", {path.name for path in home.staging.iterdir()}, set())
    boxes = {row.box for row in rows if row.box}
    while app.spares._making:  # its box is not held yet
        time.sleep(0.005)
    spares = {spare.spare.live.box.id for spare in app.spares._held.values()}
    yield from compare("volumes", {path.name for path in home.sessions.iterdir()} - spares, boxes)
    beginnings = {row.beginning for row in rows}
    yield from compare("beginnings", {path.name for path in home.beginnings.iterdir()}, beginnings)
    live_rows = [row for row in rows if app.registry.describe(row).state == "live"]
    lives = {row.box for row in live_rows}
    yield from compare("boxes", set(world.builder.standing()) - spares, lives)
    yield from compare("live sessions", {live.box.id for live in app.registry.lives()}, lives)
    for row in live_rows:
        if (live := app.registry.live(row)).terminal.closed or live.ended.is_set():
            yield f"the session {row.name} is called live and its terminal is closed"
    pictures = {path.stem for path in home.run.glob("*.terminal")}
    yield from compare("terminals", pictures - lives - spares, set())
    heads = {row.head for row in rows if row.head}
    yield from compare("heads without a point", heads - ids, set())
    for path in (home.pool / "bases").glob("*"):
        if not (path / "base.json").exists() or not (path / "files" / "bin" / "bash").exists():
            yield f"the base {path.name} is not whole"


def go_on(world: World, known: Known) -> list[str]:
    """The next verbs work: a restore if it is needed, a point, a fork, the way back."""
    app = world.app
    row = app.store.sessions.find("work")
    if row is None:
        return []
    if app.registry.describe(row).state != "live":
        ask(world, points.Restore(session="work", ref="@"))
    content = content_of(world, row_of(world))
    point = ask(world, points.Checkpoint(session="work", intent="go on")).checkpoint
    found = [f"the next point: {problem}" for problem in [_damage(world, point, content)] if problem]
    (fork,) = ask(world, points.Fork(session="work", ref=point.id)).sessions
    if content_of(world, row_of(world, fork.name)) != content:
        found.append("a fork of the next point does not hold what it held")
    ask(world, sessions.Rm(sessions=(fork.name,)))
    survivors = {point.id for point in app.store.points.all()}
    for point_id, content in known.points.items():
        if point_id in survivors and content.memory is not None:
            ask(world, points.Restore(session="work", ref=point_id, safety=False))
            if content_of(world, row_of(world)) != content:
                found.append(f"{point_id} was restored and does not hold what it held")
            break
    world.settle()
    app.remains.retry()
    return [*found, *_judge_remains(world)]
