"""Faults on the real thing: daemon, keepers, CRIU, btrfs; one at a fault point of a verb, then everything is
looked at from outside.

A case is a verb, a point that it reaches, and what happens there (tests/torture/tester.py). The session
`work` and its two points were acknowledged before the verb. Each of them holds a number in three places: a
file, a variable of the shell, the memory of another process. `examine` asks for these numbers, runs `check`,
and lists what is left over on the machine. A session that was brought back from files alone has a fresh
shell, and holds its number in the file only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from tests import roots
from tests.leaks import Watch
from tests.torture.result import Part
from tests.torture.tester import ERRORS, WITH_CRIU, RealKind, Tester

import waypoint
from waypoint import errors
from waypoint.api import machine, points, ports, sessions
from waypoint.box.box import keepers
from waypoint.client.connection import rebuild_database
from waypoint.home import Home
from waypoint.kernel import faults
from waypoint.kernel.pool.lifecycle import close_pool
from waypoint.kernel.pool.protocol import SCRATCH, opened
from waypoint.kernel.pool.subvolume import set_readonly
from waypoint.kernel.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, unshare

KINDS: tuple[RealKind, ...] = get_args(RealKind)
_VERB_SECONDS = 60.0
_MOST_HOMES_IN_VAIN = 3
"""So many homes one after the other in which no case could be tried: then a worker gives up."""
_LAST_CASE_SECONDS = 600.0
"""How long a worker may go on with its last case when the time is over."""
_GRACE_SECONDS = 30.0
"""What is cleared away after an answer takes its time on a busy machine; what is left for good is found."""
_SETUP = "coproc MEMORY { m=0; while read -r q; do case $q in set*) m=${q#set };; esac; echo $m; done; }"


class Wrong(Exception):
    """Raised when something is not as it must be."""


@dataclass(frozen=True)
class Verb:
    """A verb of the campaign. `work` holds 3; its points `one` and `two` hold 1 and 2."""

    name: str
    run: Callable[[Stage], object]
    prepare: Callable[[Stage], object] = lambda _: None
    becomes: tuple[str, ...] = ("3",)
    """What `work` may hold afterwards (`get_number`)."""
    may_end: bool = False
    """Whether the session `work` may have ended by it."""
    waits_for: str = ""
    """A point that is reached in the background after the answer."""
    again: Callable[[Stage], object] = lambda _: None
    """What a user does when it has failed, before anything else can be asked."""
    proof: Callable[[Stage], object] = lambda _: None
    """Asked when all is over, whatever happened: what the verb makes can be had."""


class Stage:
    """A home with the session `work`, a client, and the tester."""

    def __init__(self, home: Home, client: waypoint.Client, tester: Tester) -> None:
        self.home, self.client, self.tester = home, client, tester
        self.outside = home.path.with_name(f"{home.path.name}-outside")
        self.outside.mkdir(exist_ok=True)
        self.watch = Watch(home.path)
        self.watch.add_home(home)

    @property
    def work(self) -> waypoint.Session:
        return self.client.session("work")

    def begin(self) -> None:
        """A fresh session, of which forks are made."""
        seed = self.client.new("seed")
        seed.run(_SETUP)
        seed.checkpoint(name="start")
        seed.stop(discard=True)  # the first keeper is that of `work`

    def reset(self) -> None:
        """`work` as every case finds it."""
        there = [session.name for session in self.client.sessions() if session.name != "seed"]
        if there:
            self.client.ask(sessions.Rm(sessions=tuple(there)))
        self.client.session("seed").fork(ref="start", name="work")
        for number, name in (("1", "one"), ("2", "two"), ("3", "")):
            set_number(self.work, number)
            if name:
                self.work.checkpoint(name=name)

    # ---- what must hold ----------------------------------------------------------------------

    def examine(self, verb: Verb, *, gone: bool) -> None:
        """Everything is as it must be. `gone`: a fault may have ended processes of the session."""
        names = {session.name: session.info for session in self.client.sessions()}
        if "work" not in names:
            raise Wrong("the session is lost")
        there = {point.id: point for point in self.client.checkpoints()}
        for name in ("one", "two"):
            if name not in [point.info.name for point in self.work.log()]:
                raise Wrong(f"the acknowledged point {name} is lost")
        wanted = verb.becomes
        if names["work"].state != "live" or (gone and self._has_just_died()):
            if not (gone or verb.may_end):
                raise Wrong(f"the session is {names['work'].state}")
            self.work.restore("@", safety=False)
            wanted = _held(there[str(self.work.info.head)], verb)
        found = get_number(self.work)
        if found not in wanted:
            raise Wrong(f"the session holds {found}, and not {' or '.join(wanted)}")
        if found.startswith(","):
            self.work.run(_SETUP)
        for point in self.work.log():
            (fork,) = point.fork(name="look")
            found = get_number(fork)
            self.client.ask(sessions.Rm(sessions=("look",)))
            if found not in _held(point, verb):
                raise Wrong(f"the point {point.info.label} ({point.info.intent}) holds {found}")

    def _has_just_died(self) -> bool:
        """Whether the session died a moment ago: the daemon may still call it live until it is asked."""
        try:
            self.work.run("true")
        except waypoint.SessionDead:
            return True
        return False

    def go_on(self) -> None:
        """The next verbs work."""
        set_number(self.work, "4")
        point = self.work.checkpoint("go on")
        set_number(self.work, "5")
        self.work.restore(point)
        if (number := get_number(self.work)) != "4":
            raise Wrong(f"the next point holds {number}")

    def check(self) -> None:
        """Nothing is left over, and `check` is clean. What could not be deleted has been tried again."""
        if left := self.left_over():
            raise Wrong(f"left over: {left}")
        checked = self.client.ask(machine.Check())
        if checked.violations:
            raise Wrong(f"check: {checked.violations}")

    def left_over(self) -> list[str]:
        """What is on this machine and belongs to no session."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            left = [
                entry
                for entry in self.watch.look()
                if not entry.startswith(("thread ", "descriptor ", "process ", "session "))
            ]
            boxes = {path.name for path in self.home.sessions.iterdir()}
            standing = set(keepers(self.home))
            left += [f"box {box} without a volume" for box in standing - boxes]
            left += [f"in staging: {path.name}" for path in self.home.staging.iterdir()]
            rows = {point.id for point in self.client.checkpoints()}
            folders = {path.name for path in self.home.checkpoints.iterdir()}
            left += [f"folder {name}" for name in folders - rows]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)


def _held(point: waypoint.Checkpoint, verb: Verb) -> tuple[str, ...]:
    """What a point of `work` may hold."""
    numbers = {"one": ("1",), "two": ("2",)}.get(point.info.name or "", ("1", "2", "3", *verb.becomes))
    return tuple(f",{number}," for number in numbers) if point.info.files_only else numbers


def set_number(session: waypoint.Session, number: str) -> None:
    """The number in a file, in a variable of the shell, and in the memory of another process."""
    session.run(
        f"n={number}; echo {number} > /number; echo set {number} >&${{MEMORY[1]}}; read -r r <&${{MEMORY[0]}}"
    ).check()


def get_number(session: waypoint.Session) -> str:
    """The number that all three hold; all of them, separated by commas, where they differ: `,3,` has a fresh
    shell."""
    output = session.run(
        "{ r=; echo get >&${MEMORY[1]} && read -t 5 -r r <&${MEMORY[0]}; } 2>/dev/null;"
        " echo $n,$(cat /number),$r",
        timeout=30,
    ).output.strip()
    numbers = output.split(",")
    return numbers[0] if len({*numbers}) == 1 else output


# ---- verbs ---------------------------------------------------------------------------------------


def _tree(stage: Stage) -> Path:
    folder = stage.outside / "tree"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/true", folder / "bin" / "bash")
    return folder


def _remove_base(stage: Stage) -> None:
    with contextlib.suppress(errors.NotFound):
        stage.client.ask(machine.BaseRm(name="tree"))


def _import_base(stage: Stage) -> None:
    _remove_base(stage)
    stage.client.ask(machine.BaseImport(name="tree", file=str(_tree(stage))))


_DOCKERFILE = """
FROM small
RUN ["/bin/bash", "-c", "echo built > /built"]
COPY tree /tree
WORKDIR /tree
"""


def _prepare_build(stage: Stage) -> None:
    """A base for a Dockerfile to begin with, and neither its own base nor a step that was done before."""
    folder = stage.outside / "small"
    if not folder.exists():
        roots.make_root(folder, ["bash"])
        stage.client.ask(machine.BaseImport(name="small", file=str(folder)))
    with contextlib.suppress(errors.NotFound):
        stage.client.ask(machine.BaseRm(name="built"))


def _build(stage: Stage) -> waypoint.Base:
    _tree(stage)
    file = stage.outside / "Dockerfile"
    file.write_text(_DOCKERFILE)
    return stage.client.ask(machine.BaseImport(name="built", file=str(file))).base


def _prove_build(stage: Stage) -> None:
    """A base that exists is whole; one that does not can be made."""
    if "built" not in [base.name for base in stage.client.ask(machine.BaseLs()).bases]:
        _build(stage)
    files = stage.home.pool / "bases" / "built" / "files"
    if (files / "built").read_text() != "built\n" or not (files / "tree" / "bin" / "bash").exists():
        raise Wrong("the base of a Dockerfile is not whole")
    stage.client.ask(machine.BaseRm(name="built"))


def _damage_database(stage: Stage) -> None:
    """No daemon runs, and none can start."""
    stage.client.ask(machine.DaemonStop())
    with contextlib.closing(sqlite3.connect(stage.home.database)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with stage.home.database.open("r+b") as file:
        file.write(bytes(100))


def _damage_much(stage: Stage) -> None:
    """Something of each sort that `recover` puts in order while the daemon runs."""
    stage.work.checkpoint(name="three")
    _wait_for_digests(stage)
    one, two, three = (stage.work.point(name).info for name in ("one", "two", "three"))
    with opened(stage.home.checkpoints / one.id / "files") as tree:
        set_readonly(tree, readonly=False)
    (stage.home.checkpoints / two.id / "point.json").write_text("{")
    (stage.home.pool / SCRATCH / f"{1 << 22}.tree").mkdir()  # no process has a number as high as that
    with contextlib.closing(sqlite3.connect(stage.home.database)) as database, database:
        database.execute("UPDATE checkpoints SET damage = 'it was replaced' WHERE id = ?", (one.id,))
        database.execute("INSERT INTO tags SELECT id, 'lost', 'gone' FROM sessions WHERE name = 'work'")
        database.execute("UPDATE sessions SET head = ? WHERE head = ?", (three.parent, three.id))
        database.execute("DELETE FROM checkpoints WHERE id = ?", (three.id,))


def _wait_for_digests(stage: Stage) -> None:
    deadline = time.monotonic() + 20
    while not all(point.info.digested for point in stage.work.log()):
        if time.monotonic() > deadline:
            raise Wrong("not all points have digests")
        time.sleep(0.05)


def _recover(stage: Stage) -> None:
    if left := stage.client.recover().left:
        raise errors.MachineError(f"not repaired: {left}")


def _prove_recovered(stage: Stage) -> None:
    points = [point.info for point in stage.work.log()]
    if "three" not in [point.name for point in points] or any(point.damage for point in points):
        raise Wrong(f"not all points are back and whole: {points}")
    _wait_for_digests(stage)


def _rebuild_again(stage: Stage) -> None:
    try:
        stage.client.sessions()
    except errors.DatabaseDamaged:
        rebuild_database(stage.home)


def _forward(stage: Stage) -> None:
    stage.client.ask(ports.Forward(session="work", port=8080, local_port=0))


def _landing(stage: Stage) -> Path:
    folder = stage.outside / "landed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _go_to_winner(stage: Stage) -> None:
    (other,) = stage.work.fork(ref="two", name="other")
    other.checkpoint(name="winner")
    stage.work.restore("other:winner")


def _stop(stage: Stage) -> None:
    stage.client.ask(machine.DaemonStop())


def _lose_a_row(stage: Stage) -> None:
    """The row of a point is gone, as after a power cut, and a copy of it was being made: a box, a volume and
    a tree in staging are left. Then no daemon runs."""
    point = stage.work.checkpoint("to be adopted")
    stage.tester.plan("copy.held", "kill daemon")
    with contextlib.suppress(errors.WaypointError):
        point.fork(name="never")
    stage.tester.cancel()
    stage.tester.wait_gone()
    with contextlib.closing(sqlite3.connect(stage.home.database)) as database, database:
        database.execute("UPDATE sessions SET head = ? WHERE head = ?", (point.info.parent, point.id))
        database.execute("DELETE FROM checkpoints WHERE id = ?", (point.id,))


def _spare(stage: Stage) -> waypoint.Checkpoint:
    """A session with a spare of its point."""
    session = stage.client.new("spared", options=waypoint.BoxOptions(spares=1))
    point = session.checkpoint()
    deadline = time.monotonic() + 20
    while point.id not in stage.client.ask(machine.DaemonStatus()).spares and time.monotonic() < deadline:
        time.sleep(0.05)
    return point


def _tracked(stage: Stage) -> None:
    """Memory that is tracked, with a dump to compare with."""
    code = "import time; kept = bytearray(b'x') * (24 << 20); open('/ready', 'w').close(); time.sleep(10000)"
    stage.work.run(f'python3 -c "{code}" &')
    stage.work.run("until [ -e /ready ]; do sleep 0.01; done", timeout=30).check()
    stage.work.checkpoint("the first of tracked memory")


def _missing(stage: Stage) -> None:
    """The same memory, which has not come yet."""
    _tracked(stage)
    stage.work.restore("@", safety=False)


def _on_work(request: Callable[[waypoint.Session], object]) -> Callable[[Stage], object]:
    return lambda stage: request(stage.work)


VERBS = {
    verb.name: verb
    for verb in (
        Verb("new", lambda stage: stage.client.new("fresh")),
        Verb("exec", _on_work(lambda work: work.run("true"))),
        Verb("exec as another user", _on_work(lambda work: work.run("true", user="nobody"))),
        Verb("spawn", _on_work(lambda work: work.spawn(["/bin/true"]).communicate())),
        Verb("checkpoint", _on_work(lambda work: work.checkpoint("more"))),
        Verb("checkpoint of files", _on_work(lambda work: work.checkpoint(files_only=True))),
        Verb("durable checkpoint", _on_work(lambda work: work.checkpoint(durable=True))),
        Verb("checkpoint of tracked memory", _on_work(lambda work: work.checkpoint()), _tracked),
        Verb("restore without memory", _on_work(lambda work: work.restore("@", safety=False)), _tracked),
        Verb("checkpoint of missing memory", _on_work(lambda work: work.checkpoint()), _missing),
        Verb(
            "checkpoint with verification",
            lambda stage: stage.client.ask(points.Checkpoint(session="work", verify="true", wait=True)),
        ),
        Verb("restore", _on_work(lambda work: work.restore("one")), becomes=("1",)),
        Verb(
            "saving of a safety point",
            _on_work(lambda work: work.restore("one")),
            becomes=("1",),
            waits_for="pending.saved",
        ),
        Verb(
            "restore of files",
            _on_work(lambda work: work.restore("one", files_only=True)),
            becomes=(",1,",),
        ),
        Verb("restore with a spare", lambda stage: stage.client.session("spared").restore("@"), _spare),
        Verb(
            "a spare comes",
            lambda stage: stage.client.session("spared").checkpoint(),
            _spare,
            waits_for="spare.held",
        ),
        Verb("undo", _on_work(lambda work: work.undo()), _on_work(lambda work: work.restore("one"))),
        Verb(
            "redo",
            _on_work(lambda work: work.redo()),
            _on_work(lambda work: (work.restore("one"), work.undo())),
            becomes=("1",),
        ),
        Verb("fork", _on_work(lambda work: work.fork(ref="two"))),
        Verb("fork of several", _on_work(lambda work: work.fork(3, ref="two"))),
        Verb("park", _on_work(lambda work: work.park()), may_end=True),
        Verb(
            "resume of a parked session",
            _on_work(lambda work: work.restore("@")),
            _on_work(lambda work: work.park()),
            may_end=True,
        ),
        Verb(
            "rm",
            lambda stage: stage.client.ask(sessions.Rm(sessions=("other",))),
            _on_work(lambda work: work.fork(ref="two", name="other")),
        ),
        Verb(
            "rm of the session of the point that another stands on",
            lambda stage: stage.client.ask(sessions.Rm(sessions=("other",))),
            _go_to_winner,
            becomes=("2",),
        ),
        Verb(
            "naming of what was handed over",
            lambda stage: stage.client.ask(sessions.Rm(sessions=("other",))),
            _go_to_winner,
            becomes=("2",),
            waits_for="name.begun",
        ),
        Verb("stop", _on_work(lambda work: work.stop(discard=True)), may_end=True, becomes=("2", "3")),
        Verb(
            "forget",
            lambda stage: stage.client.ask(machine.Forget(session="work", refs=("extra",), force=True)),
            _on_work(lambda work: (work.checkpoint(name="extra"), work.checkpoint("after"))),
            waits_for="forget.deleted",
        ),
        Verb(
            "forward", lambda stage: stage.client.ask(ports.Forward(session="work", port=8080, local_port=0))
        ),
        Verb(
            "unforward",
            lambda stage: stage.client.ask(ports.Unforward(session="work")),
            _forward,
        ),
        Verb("prune", lambda stage: stage.client.ask(machine.Prune(auto=True))),
        Verb("tag", lambda stage: stage.client.ask(points.Tag(session="work", name="best", ref="one"))),
        Verb("record", _on_work(lambda work: work.record("note", "seen"))),
        Verb("task", _on_work(lambda work: work.tasks.add("a task"))),
        Verb(
            "apply",
            lambda stage: stage.work.apply(_landing(stage), source="/root"),
            _on_work(lambda work: work.run("mkdir -p /root/d; echo a > /root/d/a; echo b > /root/d/b")),
        ),
        Verb("copy in", lambda stage: stage.work.copy_in([_tree(stage)], "/root/tree")),
        Verb("copy out", lambda stage: stage.work.copy_out(["/number"], _landing(stage))),
        Verb("read_file", _on_work(lambda work: work.read_file("/number"))),
        Verb("write_file", _on_work(lambda work: work.write_file("/root/new/file", b"written"))),
        Verb("restore of single files", _on_work(lambda work: work.restore_files("one", ["/number"]))),
        Verb(
            "verify", lambda stage: stage.client.ask(points.Verify(session="work", ref="one", command="true"))
        ),
        Verb("sharing of images", _on_work(lambda work: work.checkpoint()), waits_for="share.started"),
        Verb(
            "base import",
            lambda stage: stage.client.ask(machine.BaseImport(name="tree", file=str(_tree(stage)))),
            _remove_base,
        ),
        Verb("base rm", _remove_base, _import_base),
        Verb("base import of a Dockerfile", _build, _prepare_build, proof=_prove_build),
        Verb("recover", _recover, _damage_much, again=_recover, proof=_prove_recovered),
        Verb(
            "recover of a damaged database",
            lambda stage: rebuild_database(stage.home),
            _damage_database,
            again=_rebuild_again,
        ),
        Verb("the start of a daemon", lambda stage: stage.client.sessions(), _stop),
        Verb("the start after a loss", lambda stage: stage.client.sessions(), _lose_a_row),
        Verb(
            "the end of everything",
            lambda stage: stage.client.ask(machine.DaemonStop(sessions=True)),
            may_end=True,
            becomes=("2", "3"),
        ),
    )
}
"""`restore of single files` brings back the file of `one`, so that the three numbers differ."""


# ---- a case --------------------------------------------------------------------------------------


def _perform(stage: Stage, verb: Verb) -> BaseException | None:
    """The error of a verb; Wrong when it does not end in time."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            verb.run(stage)
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            ended.append(error)

    thread = threading.Thread(target=run, name="verb", daemon=True)
    thread.start()
    thread.join(_VERB_SECONDS)
    if not ended:
        raise Wrong(f"it has not ended after {_VERB_SECONDS:.0f} s")
    if verb.waits_for:
        deadline = time.monotonic() + 15
        before = stage.tester.reached[verb.waits_for]
        while stage.tester.reached[verb.waits_for] == before and time.monotonic() < deadline:
            if stage.tester.happened.wait(0.05):
                break
    return ended[0]


def run_case(stage: Stage, verb: Verb, point: str, kind: RealKind) -> bool:
    """False when the fault did not happen: there was no such process, or the point was not reached."""
    stage.reset()
    verb.prepare(stage)
    stage.tester.plan(point, kind)
    try:
        error = _perform(stage, verb)
    finally:
        stage.tester.cancel()
        stage.tester.wait_gone()
    happened = stage.tester.happened.is_set()
    if error and not isinstance(error, errors.WaypointError):
        raise Wrong(f"the error is not typed: {type(error).__name__}: {error}")
    if isinstance(error, errors.InternalError):
        raise Wrong(f"the error is not typed: {error}")
    if error and not happened:
        raise Wrong(f"it fails without a fault: {error}")
    verb.again(stage)
    may_be_gone = happened and (kind.startswith("kill") and kind != "kill daemon")
    may_be_gone = may_be_gone or kind.startswith("hang")
    allowed = verb
    if error or kind == "kill daemon" or may_be_gone or verb.name == "restore of single files":
        becomes = (*verb.becomes, "3", "1") if verb.name in ("undo", "redo") else (*verb.becomes, "3")
        mixed = ("3,1,3",) if verb.name == "restore of single files" else ()
        allowed = dataclasses.replace(verb, becomes=(*becomes, *mixed))
    stage.examine(allowed, gone=may_be_gone)
    stage.go_on()
    verb.proof(stage)
    others = [session.name for session in stage.client.sessions() if session.name not in ("seed", "work")]
    if others:
        stage.client.ask(sessions.Rm(sessions=tuple(others)))
    stage.check()
    return happened


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These for every daemon that is started in here. Outside no daemon may find them: with WAYPOINT_FAULTS
    its time limits are short."""
    before = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@contextlib.contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    """A home for cases, in `folder`; nothing of it is left on the machine."""
    home = Home(folder / "home")
    home.path.mkdir(parents=True)
    variables = {
        "WAYPOINT_FAULTS": str(folder / "tester"),
        "WAYPOINT_HOME": str(home.path),
        "WAYPOINT_DEBUG_LOCKS": "1",
        "WAYPOINT_SPARES": "off",
        "WAYPOINT_PROVE": "off",
        "WAYPOINT_LAZY_BYTES": "16M",
        "PYTHONPATH": str(Path(waypoint.__file__).parents[1]),
    }
    with (
        _environment(variables),
        Tester(folder / "tester", home) as tester,
        contextlib.closing(waypoint.Client(home.path)) as client,
    ):
        try:
            yield Stage(home, client, tester)
        finally:
            tester.cancel()
            with contextlib.suppress(errors.WaypointError):
                client.ask(machine.DaemonStop(sessions=True))
            deadline = time.monotonic() + 20
            while not close_pool(home.path) and time.monotonic() < deadline:
                time.sleep(0.1)
            subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


def possible(point: str, kind: RealKind) -> bool:
    """Whether this can happen at a point at all."""
    if kind in ERRORS:
        return point not in faults.ONLY_DEATH
    return "CRIU" not in kind or point in WITH_CRIU


class _Violated(Exception):
    """Raised after a violation was counted."""


Case = tuple[str, str, RealKind]
"""The name of a verb, a point that it reaches, and what happens there."""


class RealCampaign:
    """Cases one after the other. After a violation the home is thrown away and another one is made."""

    def __init__(self, place: Path, seed: int, log: Callable[[str], None]) -> None:
        self._place, self._chance, self._log = place, random.Random(seed), log
        self._number = 0
        self.part = Part()
        self.reached: dict[str, list[str]] = {}
        """By point, the verbs that reach it."""

    def run(self, seconds: float, workers: int = 2) -> None:
        """At every point every kind of fault, in a verb that reaches it, until the time is over. Each worker
        has a home of its own: most of a case is waiting."""
        deadline = time.monotonic() + seconds
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            try:
                self.reached = pool.apply(survey, (self._place / "survey",))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self._outside_a_case("the survey", error)
                return
            if missing := ", ".join(sorted(faults.POINTS.keys() - self.reached.keys())):
                self.part.violations.append(f"points that no verb reaches: {missing}")
            cases = self._all()
            self._log(f"{len(self.reached)} points, {len(cases)} cases")
            shares = [
                (self._place / f"worker-{number}", cases[number::workers], deadline, self._log)
                for number in range(workers)
            ]
            running = [pool.apply_async(_run_share, share) for share in shares]
            for number, worker in enumerate(running):
                try:
                    self.part.join(worker.get(max(0.0, deadline - time.monotonic()) + _LAST_CASE_SECONDS))
                except multiprocessing.TimeoutError as error:  # it was killed, or hangs
                    self._outside_a_case(f"worker {number}, of which nothing is known", error)

    def run_cases(self, cases: Sequence[Case], deadline: float) -> None:
        """These, as far as the time allows."""
        left, in_vain = [*reversed(cases)], 0
        while left and time.monotonic() < deadline and in_vain < _MOST_HOMES_IN_VAIN:
            self._number += 1
            before = len(left)
            try:
                with stage_in(self._place / str(self._number)) as stage, contextlib.suppress(_Violated):
                    stage.begin()
                    while left and time.monotonic() < deadline:
                        name, point, kind = left.pop()
                        self._case(stage, VERBS[name], point, kind)
            except Exception as error:  # noqa: BLE001 - the results so far are kept, and the next home is made
                self._outside_a_case(f"home {self._number}", error)
            in_vain = in_vain + 1 if len(left) == before else 0
        if left and in_vain:
            self.part.violations.append(f"given up with {len(left)} cases left: no home can be made")

    def _outside_a_case(self, where: str, error: Exception) -> None:
        """What failed in making or clearing away a home is a violation too."""
        text = "".join(traceback.format_exception(error))
        self.part.add(where, (), (text,))
        self._log(f"VIOLATION {where}: {text}")

    def _all(self) -> list[Case]:
        """Round after round, each in random order: at every point one of the faults that can happen there."""
        rounds: list[list[Case]] = [[] for _ in KINDS]
        for point, verbs in self.reached.items():
            kinds = [kind for kind in KINDS if possible(point, kind)]
            self._chance.shuffle(kinds)
            for cases, kind in zip(rounds, kinds, strict=False):
                cases.append((self._chance.choice(verbs), point, kind))
        for cases in rounds:
            self._chance.shuffle(cases)
        return [case for cases in rounds for case in cases]

    def _case(self, stage: Stage, verb: Verb, point: str, kind: RealKind) -> None:
        name = f"{verb.name}/{point}/{kind}"
        try:
            happened = run_case(stage, verb, point, kind)
        except Exception as error:
            text = str(error) if isinstance(error, Wrong) else f"afterwards: {type(error).__name__}: {error}"
            self.part.add(name, (f"real: {kind}",), (text,))
            self._log(f"VIOLATION {name}: {text}")
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(stage.home.log, self._place / f"{name.replace('/', ',')}.log")
            raise _Violated from error
        if happened:
            self.part.add(name, (f"real: {kind}",), ())
            self._log(f"{name}: well")


def survey(folder: Path) -> dict[str, list[str]]:
    """By point, the verbs that reach it."""
    reached: dict[str, list[str]] = {}
    with stage_in(folder) as stage:
        stage.begin()
        for verb in VERBS.values():
            stage.reset()
            verb.prepare(stage)
            stage.tester.reached.clear()
            if error := _perform(stage, verb):
                raise Wrong(f"{verb.name} fails without a fault") from error
            for point in stage.tester.reached:
                reached.setdefault(point, []).append(verb.name)
    return reached


def _run_share(place: Path, cases: Sequence[Case], deadline: float, log: Callable[[str], None]) -> Part:
    """The cases of one worker, in a mount namespace of its own: no other box keeps its disks busy. Whatever
    fails, what the worker has found is returned."""
    campaign = RealCampaign(place, 0, log)
    try:
        unshare(CLONE_NEWNS)
        mount("none", "/", "", MS_REC | MS_PRIVATE, "")
        campaign.run_cases(cases, deadline)
    except Exception as error:  # noqa: BLE001 - it is reported, with what was found before
        campaign._outside_a_case(place.name, error)
    return campaign.part
