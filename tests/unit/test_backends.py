"""The interface of backends: choosing one, what is refused, and replay over an environment that is a dict."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from waypoint import backends, errors
from waypoint.backends import Capabilities, Difference, Environment, Kept, Point, Restored, RunResult, replay
from waypoint.backends.environment import Lineage, check_name_free, new_name


class Notes(Environment):
    """Keeps words. A command is `NAME=VALUE`, `count` (adds 1), or a number: the exit code."""

    backend = "notes"
    outside = "push"

    def __init__(self, state: dict[str, str], lineage: Lineage, kept: dict[str, dict[str, str]]) -> None:
        self.name = new_name("notes")
        self.state, self.lineage, self.kept = state, lineage, kept
        self.ran: list[str] = []
        self.stopped = False

    @classmethod
    def start(cls, **options: Any) -> Self:
        return cls({}, Lineage(), {})

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(processes=True, in_place=True, live_forks=True)

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> RunResult:
        self.ran.append(command)
        name, _, value = command.partition("=")
        code = 0
        if command == "count":
            self.state["count"] = str(int(self.state.get("count", "0")) + 1)
        elif command == "hang":
            return RunResult(command, 124, "", timeout or 0.0, timed_out=True)
        elif command.startswith("once"):  # works only the first time
            code = len([one for one in CALLED if one == command])
            CALLED.append(command)
        elif value:
            self.state[name] = value
        return RunResult(command, code, "", 1.0)

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        self.state[target] = Path(source).read_text()

    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        Path(target).write_text(self.state[source])

    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        check_name_free(name, self.lineage.points)
        point = Point(new_name("n"), self.name, name, self.lineage.head, self.capabilities.keeps)
        self.kept[point.id] = copy.deepcopy(self.state)
        return self.lineage.add(point)

    def points(self) -> list[Point]:
        return [*self.lineage.points]

    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        found = self.lineage.find(point)
        self.state = copy.deepcopy(self.kept[found.id])
        return Restored(found)

    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        found = self.lineage.find(point)
        return [
            type(self)(copy.deepcopy(self.kept[found.id]), self.lineage.until(found), self.kept)
            for _ in range(n)
        ]

    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        before = self.kept[self.lineage.find(old).id]
        after = self.state if new is None else self.kept[self.lineage.find(new).id]
        return Difference(tuple(after.keys() - before.keys()), (), tuple(before.keys() - after.keys()))

    def park(self) -> Point:
        return self.checkpoint()

    def stop(self) -> None:
        self.stopped = True

    def acts_outside(self, command: str) -> bool | None:
        return command == self.outside


CALLED: list[str] = []


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Notes]:
    """An installed package that brings a backend."""
    CALLED.clear()
    info = tmp_path / "notes-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{backends.GROUP}]\nnotes = {__name__}:Notes\nlive = {__name__}:Notes\nbroken = no_such_module:X\n"
        f"number = {__name__}:CALLED\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return Notes


def over_notes(decider: Any) -> Any:
    return backends.open("replay", over="notes", decider=decider)


# ---- choosing one --------------------------------------------------------------------------------


def test_a_backend_of_another_package_is_one_word_too(notes: type[Notes]) -> None:
    assert type(backends.open("notes")) is notes
    assert backends.names() == ["live", "files", "podman", "replay", "broken", "notes", "number"]
    assert backends.find("live").__module__ == "waypoint.backends.live", (
        "no package replaces one of Waypoint's"
    )


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("nonsense", errors.NotFound, "there are live, files, podman, replay"),
        ("broken", errors.MissingFeature, "no_such_module"),
        ("number", errors.UsageError, "subclass"),
    ],
)
def test_what_is_no_backend_is_refused(
    notes: type[Notes], name: str, kind: type[errors.WaypointError], words: str
) -> None:
    with pytest.raises(kind) as refused:
        backends.open(name)
    assert words in f"{refused.value.message} {refused.value.hint}"


def test_a_backend_that_does_not_keep_what_is_needed_is_not_left_running(
    notes: type[Notes], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Notes] = []

    def start(kind: type[Notes], /, **options: Any) -> Notes:
        started.append(kind({}, Lineage(), {}))
        return started[0]

    monkeypatch.setattr(notes, "start", classmethod(start))
    with pytest.raises(errors.NotKept, match="notes does not keep memory") as refused:
        backends.open("notes", needs={"files", "memory"})
    assert refused.value.details == {"missing": ["memory"]}
    assert started[0].stopped
    with pytest.raises(errors.UsageError, match="'colour' is nothing that a point can hold"):
        backends.open("notes", needs={"colour"})  # type: ignore[arg-type]


def test_podman_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.MissingFeature, match="podman is not installed") as refused:
        backends.open("podman")
    assert "apt-get install podman" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("files", {"base": "/no/such/folder"}, errors.NotFound),
        ("files", {"colour": "red"}, errors.UsageError),
        ("files", {"store": "/var/tmp/a,b"}, errors.UsageError),
        ("podman", {"colour": "red"}, errors.UsageError),
        ("podman", {"image": "one", "base": "/"}, errors.UsageError),
        ("replay", {"over": "replay"}, errors.UsageError),
        ("replay", {"over": "nonsense"}, errors.NotFound),
        ("replay", {"over": "files", "decider": "sometimes"}, errors.UsageError),
        ("replay", {"over": "files", "decider": -1}, errors.UsageError),
    ],
)
def test_options_that_make_no_sense(
    name: str, options: dict[str, Any], kind: type[errors.WaypointError]
) -> None:
    with pytest.raises(kind) as refused:
        backends.open(name, **options)
    assert type(refused.value) is kind


# ---- replay --------------------------------------------------------------------------------------


def test_a_virtual_point_is_made_again_from_the_nearest_physical_one(notes: type[Notes]) -> None:
    environment = over_notes("virtual")
    first = environment.checkpoint("first")
    assert not first.virtual, "there has to be one from which to start"
    environment.run("a=1")
    second = environment.checkpoint("second")
    environment.run("count")
    third = environment.checkpoint("third")
    assert (second.virtual, third.virtual, third.parent) == (True, True, second.id)
    environment.run("a=2")
    restored = environment.restore("third")
    assert restored.replayed == ("a=1", "count")
    assert environment.over.state == {"a": "1", "count": "1"}
    environment.run("count")  # what follows belongs to the point that it stands on
    environment.checkpoint("fourth")
    environment.restore("first")
    assert environment.over.state == {}
    environment.restore("fourth")
    assert environment.over.state == {"a": "1", "count": "2"}


def test_the_decider_chooses(notes: type[Notes]) -> None:
    seen: list[replay.Moment] = []

    def every_second(moment: replay.Moment) -> bool:
        seen.append(moment)
        return moment.commands >= 2

    environment = over_notes(every_second)
    kinds = [environment.checkpoint().virtual]
    for _ in range(3):
        environment.run("count")
        kinds.append(environment.checkpoint().virtual)
    assert kinds == [False, True, False, True]
    assert [(moment.commands, moment.seconds) for moment in seen] == [(1, 1.0), (2, 2.0), (1, 1.0)]
    by_time = over_notes(2)
    by_time.checkpoint()
    by_time.run("count")
    assert by_time.checkpoint().virtual
    by_time.run("count")
    assert not by_time.checkpoint().virtual
    assert over_notes("physical").capabilities == notes.start().capabilities
    assert over_notes("virtual").capabilities.keeps == {"files"}


@pytest.mark.parametrize("act", ["push", "hang", "put"])
def test_what_cannot_be_run_again_makes_the_next_point_physical(notes: type[Notes], act: str) -> None:
    environment = over_notes("virtual")
    environment.checkpoint()
    environment.run("a=1")
    if act == "put":
        environment.put(__file__, "/x")
    else:
        environment.run(act)
    point = environment.checkpoint()
    assert not point.virtual
    environment.run("b=2")
    assert environment.checkpoint().virtual, "from there on commands can be run again"
    environment.over.ran.clear()
    environment.restore()
    assert environment.over.ran == ["b=2"]


def test_a_command_that_ends_in_another_way_fails_the_restore_and_changes_nothing(notes: type[Notes]) -> None:
    environment = over_notes("virtual")
    environment.checkpoint()
    environment.run("once")
    made = environment.checkpoint("made")
    environment.run("a=now")
    with pytest.raises(errors.CannotRestore, match="`once` exited with 1, and with 0 before"):
        environment.restore(made)
    assert environment.over.state == {"a": "now"}
    with pytest.raises(errors.CannotRestore):
        environment.fork(made)
    environment.checkpoint("later")
    assert environment.points()[-1].parent == made.id, "it stands where it stood"


def test_forks_and_differences_of_virtual_points(notes: type[Notes]) -> None:
    environment = over_notes("virtual")
    environment.checkpoint("empty")
    environment.run("a=1")
    environment.checkpoint("one")
    environment.run("b=1")
    left, right = environment.fork("one", 2)
    left.run("c=1")
    assert (left.over.state, right.over.state) == ({"a": "1", "c": "1"}, {"a": "1"})
    left.restore("one")
    assert left.over.state == {"a": "1"}
    assert environment.diff("one").added == ("b",)
    environment.checkpoint("two")
    assert environment.diff("one", "two").added == ("b",)
    assert environment.diff("empty").added in {("a", "b"), ("b", "a")}
    assert environment.over.state == {"a": "1", "b": "1"}, "nothing of it has changed the environment"


def test_what_is_needed_is_kept_by_a_physical_point(notes: type[Notes]) -> None:
    environment = over_notes("virtual")
    environment.checkpoint()
    environment.run("a=1")
    assert environment.checkpoint(needs={"files"}).virtual
    point = environment.checkpoint(needs={"processes"})
    assert (point.virtual, point.keeps) == (False, {"files", "processes"})
    with pytest.raises(errors.NotKept):
        environment.checkpoint(needs={"memory"})
    environment.run("a=2")
    light = environment.checkpoint()
    with pytest.raises(errors.NotKept, match="does not keep processes"):
        environment.restore(light, needs={"processes"})
