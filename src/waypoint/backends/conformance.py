"""The tests that each backend passes for what it claims. For those who write one:

    # test_mine.py
    import pytest
    from waypoint import backends
    from waypoint.backends.conformance import *

    @pytest.fixture(scope="module")
    def environment():
        with backends.open("mine") as environment:
            yield environment

The fixture gives a running environment, of any scope: each test works in a folder of its own and takes the
points it needs. What is not claimed in `capabilities` is tested too: that it is refused, or said to be lost.
The environment needs bash, sleep, mkdir, cat, rm, chmod, ln and mkfifo.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from waypoint import errors
from waypoint.backends.environment import KEPT, Environment, Point

__all__ = [
    "test_a_command_that_hangs_is_ended",
    "test_a_fork_can_go_back_to_the_point_that_it_grew_from",
    "test_a_name_is_taken_once",
    "test_a_parked_environment_does_not_run_and_comes_back",
    "test_a_point_keeps_the_files",
    "test_a_restore_keeps_the_name",
    "test_a_stopped_fork_ends_alone",
    "test_an_unknown_point_changes_nothing",
    "test_commands_run",
    "test_errors_of_commands_are_typed",
    "test_files_and_folders_go_in_and_out",
    "test_forks_are_independent",
    "test_it_says_what_it_keeps",
    "test_memory_is_kept_or_said_to_be_lost",
    "test_paths_that_do_not_exist_are_refused",
    "test_processes_are_kept_or_said_to_be_lost",
    "test_the_difference_between_points",
    "test_the_shell_lasts_if_that_is_claimed",
    "test_what_is_left_in_the_background_is_not_waited_for",
    "test_what_is_not_kept_is_refused",
]


# ---- what it says --------------------------------------------------------------------------------


def test_it_says_what_it_keeps(environment: Environment) -> None:
    can = environment.capabilities
    assert can.keeps <= set(KEPT)
    assert can.files, "a point without files is none"
    assert can.processes or not can.memory, "memory without its process"
    assert can.shell or not can.terminal, "a terminal that is kept is one in which commands run"
    point = environment.checkpoint()
    assert point.keeps >= can.keeps, "each point keeps what is claimed"
    assert point.id in [one.id for one in environment.points()]


def test_what_is_not_kept_is_refused(environment: Environment) -> None:
    kept = environment.checkpoint(needs=environment.capabilities.keeps)
    before = len(environment.points())
    for word in set(KEPT) - kept.keeps:
        refused = _raises(errors.NotKept, partial(environment.checkpoint, needs=[word]))
        assert refused.details["missing"] == [word]
        _raises(errors.NotKept, partial(environment.restore, kept, needs=[word]))
    _raises(errors.UsageError, lambda: environment.checkpoint(needs=["nonsense"]))  # type: ignore[list-item]
    assert len(environment.points()) == before, "nothing is taken when it is refused"


# ---- commands ------------------------------------------------------------------------------------


def test_commands_run(environment: Environment) -> None:
    with _folder(environment) as folder:
        result = environment.run("echo to stdout; echo to stderr >&2; (exit 3)")
        assert (result.exit_code, result.ok, result.timed_out) == (3, False, False)
        assert {"to stdout", "to stderr"} <= {*result.output.splitlines()}
        line = environment.run(
            'read word; echo "$word $WHAT $PWD"', stdin=b"read\n", env={"WHAT": "a b"}, cwd=folder
        )
        assert (line.output.strip(), line.ok) == (f"read a b {folder}", True)


def test_errors_of_commands_are_typed(environment: Environment) -> None:
    failed = _raises(errors.CommandFailed, lambda: environment.run("(exit 4)").check())
    assert failed.details["exit_code"] == 4
    assert environment.run("no-such-command-anywhere").exit_code == 127
    _raises(errors.NotFound, lambda: environment.run("true", cwd="/no/such/folder"))


def test_a_command_that_hangs_is_ended(environment: Environment) -> None:
    result = environment.run("sleep 1000", timeout=0.3)
    assert result.timed_out
    assert not result.ok
    _raises(errors.TimedOut, result.check)
    assert environment.run("echo again").output.strip() == "again"


def test_what_is_left_in_the_background_is_not_waited_for(environment: Environment) -> None:
    result = environment.run("sleep 1000 & echo $!", timeout=30).check()
    assert result.seconds < 20
    environment.run(f"kill {_number(result.output)}").check()


def test_the_shell_lasts_if_that_is_claimed(environment: Environment) -> None:
    can = environment.capabilities
    with _folder(environment) as folder:
        before = environment.run("pwd").output
        environment.run(f"cd {folder}; kept=first").check()
        seen = environment.run('echo "$PWD $kept"').output.strip()
        assert seen == (f"{folder} first" if can.shell else before.strip())
        if can.terminal:
            point = environment.checkpoint(needs=["terminal"])
            environment.run("cd /; kept=second").check()
            environment.restore(point, needs=["terminal"])
            assert environment.run('echo "$PWD $kept"').output.strip() == f"{folder} first"
        environment.run(f"cd {before.strip()}")


# ---- files ---------------------------------------------------------------------------------------


def test_files_and_folders_go_in_and_out(environment: Environment, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "data").write_bytes(bytes(range(256)))
    (source / "run.sh").write_text("echo run\n")
    (source / "run.sh").chmod(0o750)
    (source / "link").symlink_to("/etc/hostname")
    with _folder(environment) as folder:
        environment.put(source, f"{folder}/new/place")
        environment.put(source / "run.sh", f"{folder}/new/single")
        listed = environment.run(
            f"cd {folder}/new && bash place/run.sh && cat single && ls place", cwd="/"
        ).check()
        assert listed.output.split() == ["run", "echo", "run", "inner", "link", "run.sh"]
        environment.run(
            f"echo more > {folder}/new/place/more; echo changed > {folder}/new/place/run.sh"
        ).check()
        environment.put(source, f"{folder}/new/place")  # a folder that exists gets the content
        environment.get(f"{folder}/new/place", tmp_path / "back")
        assert (tmp_path / "back/inner/data").read_bytes() == bytes(range(256))
        assert (tmp_path / "back/run.sh").read_text() == "echo run\n"
        assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o750
        assert (tmp_path / "back/link").readlink() == Path("/etc/hostname")
        assert (tmp_path / "back/more").read_text() == "more\n"
        environment.get(f"{folder}/new/single", tmp_path / "deep/single")
        assert (tmp_path / "deep/single").read_text() == "echo run\n"
        (tmp_path / "back/here").write_text("stays")
        environment.get(f"{folder}/new/place", tmp_path / "back")
        assert (tmp_path / "back/here").read_text() == "stays"


def test_paths_that_do_not_exist_are_refused(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with _folder(environment) as folder:
        _raises(errors.NotFound, lambda: environment.put(tmp_path / "missing", f"{folder}/x"))
        _raises(errors.NotFound, lambda: environment.get(f"{folder}/missing", tmp_path / "x"))
        assert not (tmp_path / "x").exists()
        _raises(errors.UsageError, lambda: environment.put(tmp_path / "file", "not/absolute"))
        _raises(errors.UsageError, lambda: environment.put(tmp_path / "file", folder))  # a file over a folder


# ---- points --------------------------------------------------------------------------------------


def test_a_point_keeps_the_files(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(
            f"cd {folder} && echo one > changed && echo here > deleted && mkdir gone && ln -s a link"
        ).check()
        environment.run(f"chmod 640 {folder}/changed").check()
        point = environment.checkpoint(f"files-{os.path.basename(folder)}")
        environment.run(
            f"cd {folder} && echo two > changed && chmod 600 changed; rm -r deleted gone link; echo x > added"
        ).check()
        restored = environment.restore(point)
        assert restored.point.id == point.id
        seen = (
            environment.run(f"cd {folder} && cat changed deleted && echo * && ls -ld changed").check().output
        )
        assert seen.split()[:6] == ["one", "here", "changed", "deleted", "gone", "link"]
        assert "-rw-r-----" in seen
        environment.run(f"echo three > {folder}/changed").check()
        environment.restore(point.name)  # by its name
        assert environment.run(f"cat {folder}/changed").output.strip() == "one"
        environment.run(f"echo four > {folder}/changed").check()
        environment.restore()  # to the one it stands on
        assert environment.run(f"cat {folder}/changed").output.strip() == "one"


def test_a_restore_keeps_the_name(environment: Environment) -> None:
    if environment.capabilities.in_place:
        name, point = environment.name, environment.checkpoint()
        environment.restore(point)
        assert environment.name == name


def test_an_unknown_point_changes_nothing(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"echo here > {folder}/file").check()
        _raises(errors.NotFound, lambda: environment.restore("no-such-point"))
        _raises(errors.NotFound, lambda: environment.fork("no-such-point"))
        _raises(errors.NotFound, lambda: environment.diff("no-such-point"))
        _raises(errors.UsageError, lambda: environment.fork(n=0))
        assert environment.run(f"cat {folder}/file").output.strip() == "here"


def test_a_name_is_taken_once(environment: Environment) -> None:
    name = f"only-{secrets.token_hex(3)}"
    environment.checkpoint(name)
    _raises(errors.AlreadyExists, lambda: environment.checkpoint(name))
    assert [point.name for point in environment.points()].count(name) == 1


def test_processes_are_kept_or_said_to_be_lost(environment: Environment) -> None:
    pid = _number(environment.run("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").check().output)
    point = environment.checkpoint()
    environment.run(f"kill -KILL {pid}").check()
    restored = environment.restore(point)
    if environment.capabilities.processes:
        assert environment.run(f"kill -0 {pid}").ok, "the same program, under the same number"
        environment.run(f"kill -KILL {pid}").check()
    else:
        assert restored.lost or restored.replayed, "what is not brought back is said"


def test_memory_is_kept_or_said_to_be_lost(environment: Environment) -> None:
    counter = 'n=0; while read -r _ <ask; do n=$((n+1)); echo "$n" >answer; done'
    with _folder(environment) as folder:
        environment.run(f"cd {folder} && mkfifo ask answer").check()
        start = f"cd {folder}; bash -c {shlex.quote(counter)} </dev/null >/dev/null 2>&1 & echo $!"
        pid = _number(environment.run(start).check().output)

        def count() -> str:
            line = f"cd {folder} && echo go >ask && read -r n <answer && echo $n"
            return environment.run(line, timeout=30).check().output.strip()

        assert [count(), count()] == ["1", "2"]
        point = environment.checkpoint()
        assert count() == "3"
        restored = environment.restore(point)
        if environment.capabilities.memory:
            assert count() == "3", "it counts on from the point"
            environment.run(f"kill {pid}").check()
        else:
            assert restored.lost or restored.replayed, "what is not brought back is said"


def test_a_parked_environment_does_not_run_and_comes_back(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"echo parked > {folder}/file").check()
        point = environment.park()
        _raises(errors.SessionDead, lambda: environment.run("true"))
        environment.restore(point)
        assert environment.run(f"cat {folder}/file").output.strip() == "parked"


def test_the_difference_between_points(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"cd {folder} && echo 1 > changed && echo 1 > removed && echo 1 > same").check()
        first = environment.checkpoint()
        environment.run(
            f"cd {folder} && echo 22 > changed && rm removed && mkdir added && echo 1 > added/file"
        ).check()
        second = environment.checkpoint()
        environment.run(f"echo 1 > {folder}/later").check()
        for difference in (environment.diff(first, second), environment.diff(first)):
            assert [path for path in difference.changed if path.startswith(f"{folder}/")] == [
                f"{folder}/changed"
            ]
            assert f"{folder}/removed" in difference.removed
            assert f"{folder}/added" in difference.added
        assert f"{folder}/later" in environment.diff(second).added
        assert f"{folder}/later" not in environment.diff(first, second).added


# ---- forks ---------------------------------------------------------------------------------------


def test_forks_are_independent(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"echo before > {folder}/file").check()
        point = environment.checkpoint()
        environment.run(f"echo parent > {folder}/file").check()
        with _forks(environment, point, 2) as (left, right):
            assert len({environment.name, left.name, right.name}) == 3
            if environment.capabilities.live_forks:
                with ThreadPoolExecutor(2) as pool:
                    wrote = pool.map(
                        lambda fork: fork.run(f"echo {fork.name} >> {folder}/file"), (left, right)
                    )
                    assert all(one.ok for one in wrote)
            else:
                for fork in (left, right):
                    fork.run(f"echo {fork.name} >> {folder}/file").check()
            for fork in (left, right):
                assert fork.run(f"cat {folder}/file").output.split() == ["before", fork.name]
        assert environment.run(f"cat {folder}/file").output.strip() == "parent"


def test_a_fork_can_go_back_to_the_point_that_it_grew_from(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"echo now > {folder}/file").check()
        with _forks(environment, None, 1) as (fork,):  # without a point: from now
            assert fork.run(f"cat {folder}/file").output.strip() == "now"
            fork.run(f"echo later > {folder}/file").check()
            own = fork.checkpoint("own")
            fork.run(f"rm {folder}/file").check()
            fork.restore(own)
            assert fork.run(f"cat {folder}/file").output.strip() == "later"


def test_a_stopped_fork_ends_alone(environment: Environment) -> None:
    with _folder(environment) as folder:
        environment.run(f"echo here > {folder}/file").check()
        point = environment.checkpoint()
        (fork,) = environment.fork(point)
        fork.stop()
        fork.stop()
        _raises(errors.WaypointError, lambda: fork.run("true"))
        environment.restore(point)
        assert environment.run(f"cat {folder}/file").output.strip() == "here"


# ---- what the tests share ------------------------------------------------------------------------


@contextlib.contextmanager
def _folder(environment: Environment) -> Iterator[str]:
    """A folder of the environment that belongs to one test."""
    folder = f"/var/conformance-{secrets.token_hex(4)}"
    environment.run(f"mkdir -p {folder}").check()
    yield folder
    environment.run(f"rm -rf {folder}")


@contextlib.contextmanager
def _forks(environment: Environment, point: Point | None, n: int) -> Iterator[list[Environment]]:
    forks = environment.fork(point, n)
    try:
        assert len(forks) == n
        yield forks
    finally:
        for fork in forks:
            fork.stop()


def _number(output: str) -> int:
    """The process number that a command has printed last."""
    return int(output.rsplit(maxsplit=1)[-1])


def _raises(kind: type[errors.WaypointError], act: Callable[[], object]) -> errors.WaypointError:
    """The error of that kind, which has to be raised, with words that say what is wrong."""
    raised = None
    try:
        act()
    except kind as error:
        raised = error
    assert raised is not None, f"{kind.__name__} was not raised"
    assert raised.message
    return raised
