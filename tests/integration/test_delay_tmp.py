"""What happens in the middle of a verb: a shell that ends, a CRIU that is killed, a box that dies."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import waypoint
from waypoint import errors
from waypoint.kernel import processes


@pytest.mark.parametrize("way", ["kill -9 $$", "exit"])
def test_a_shell_that_ends_during_a_checkpoint_leaves_a_point_that_reaches_a_prompt(
    fresh: waypoint.Session, way: str
) -> None:
    fresh.run("cd /tmp; sleep 1000 & echo $! > /tmp/sleeper")
    fresh.run(f"PROMPT_COMMAND+=('sleep 0.3; {way}')")  # a checkpoint waits for the prompt
    point = fresh.checkpoint("the shell ends meanwhile")
    assert fresh.run("echo the next shell").output == "the next shell\n"
    fresh.restore(point, safety=False)
    assert fresh.run("pwd; kill -0 $(cat /tmp/sleeper) && echo runs on").output == "/tmp\nruns on\n"
    (fork,) = point.fork(name="fork")
    assert fork.run("kill -0 $(cat /tmp/sleeper) && echo runs on").output == "runs on\n"


# ---- CRIU ----------------------------------------------------------------------------------------

HUNDRED_MB = (
    "import time; kept = bytearray(b'x') * (100 << 20); open('/tmp/ready', 'w').close(); time.sleep(1000)"
)


def find_criu(keeper: int, over: threading.Event) -> int:
    """The host pid of the CRIU that works in a box."""
    while not over.is_set():
        for host_pid in processes.host_pids(keeper):
            with contextlib.suppress(OSError), open(f"/proc/{host_pid}/comm") as file:
                if file.read().strip() == "ld.so":
                    return host_pid
    raise AssertionError("no CRIU came")


@contextlib.contextmanager
def criu_killed(keeper: int, after_seconds: float) -> Iterator[None]:
    """Kills the CRIU that comes during the block, so long after it came."""

    over = threading.Event()

    def kill() -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError):
            host_pid = find_criu(keeper, over)
            time.sleep(after_seconds)
            os.kill(host_pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hit_checkpoint(
    session: waypoint.Session, keeper: int, after_seconds: float
) -> errors.CannotCheckpoint | None:
    """The error of a checkpoint whose CRIU is killed; None when it was done before."""
    try:
        with criu_killed(keeper, after_seconds):
            session.checkpoint()
    except errors.CannotCheckpoint as error:
        return error
    return None


def test_what_a_killed_criu_took_along_is_named_in_the_error(fresh: waypoint.Session) -> None:
    for number in range(12):
        fresh.run(f"sleep {1000 + number} &")
    fresh.run(f'/usr/bin/python3 -c "{HUNDRED_MB}" &')
    fresh.run("until [ -e /tmp/ready ]; do sleep 0.01; done", timeout=20).check()
    keeper = fresh.info.pid
    assert keeper
    failures = 0
    time.sleep(0.3)  # what the prompt runs has ended
    for attempt in range(6):
        before = {one.pid: one.comm for one in processes.below(keeper) if one.state != "Z"}
        error = hit_checkpoint(fresh, keeper, 0.02 + 0.01 * attempt)
        if error is None:
            continue
        failures += 1
        time.sleep(0.3)
        told = {one["pid"] for one in error.details.get("gone", ())}
        if fresh.info.state != "live":
            assert told, "the session is gone and the error does not say so"
            break
        after = {one.pid for one in processes.below(keeper) if one.state != "Z"}
        gone = {pid for pid in before if pid not in after}
        assert gone == told, error.message
        assert not gone or "untouched" not in error.hint
        assert all(f"{pid} ({before[pid]})" in error.message for pid in gone)
    assert failures, "no dump was hit"


# ---- boxes ---------------------------------------------------------------------------------------


VERBS: dict[str, Callable[[waypoint.Session], object]] = {
    "checkpoint": lambda session: session.checkpoint(),
    "exec": lambda session: session.run("true"),
    "restore": lambda session: session.restore("@"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("after_seconds", [0.0, 0.015])
def test_a_box_that_dies_in_the_middle_of_a_verb_is_a_typed_error(
    fresh: waypoint.Session, verb: str, after_seconds: float
) -> None:
    fresh.checkpoint()
    keeper = fresh.info.pid
    assert keeper

    def kill() -> None:
        time.sleep(after_seconds)
        os.kill(keeper, signal.SIGKILL)

    def again() -> bool:
        VERBS[verb](fresh)
        return fresh.info.pid == keeper

    thread = threading.Thread(target=kill)
    thread.start()
    with contextlib.suppress(errors.SessionDead, errors.CannotCheckpoint):
        list(iter(again, False))  # a restore leaves the box, and brings back a session that died
    thread.join()


OTHER_VERBS: dict[str, Callable[[waypoint.Session], object]] = {
    "files only": lambda session: session.checkpoint(files_only=True),
    "fork": lambda session: session.fork(names=["copy"])[0].remove(),
    "spawn": lambda session: session.spawn(["true"]).communicate(),
    "another user": lambda session: session.run("true", user="nobody"),
    "write_file": lambda session: session.write_file("/srv/file", "text"),
    "read_file": lambda session: session.read_file("/etc/hostname"),
    "screen": lambda session: session.screen(),
    "type": lambda session: session.type("#\r"),
    "status": lambda session: session.status(),
    "diff": lambda session: session.diff("@"),
    "restore files": lambda session: session.restore_files("@", ["/srv"]),
    "park": lambda session: (session.park(), session.restore("@")),
}


def test_a_box_that_dies_in_the_middle_of_any_verb_is_a_typed_error(fresh: waypoint.Session) -> None:
    fresh.write_file("/srv/file", "text")
    fresh.checkpoint()
    wrong: dict[str, object] = {}
    for verb, ask in OTHER_VERBS.items():
        keeper = fresh.info.pid
        assert keeper
        kill = threading.Timer(0.03, os.kill, (keeper, signal.SIGKILL))
        kill.start()
        try:
            while fresh.info.pid == keeper:
                ask(fresh)
        except (errors.SessionDead, errors.CannotCheckpoint):
            pass
        except errors.WaypointError as error:
            wrong[verb] = error
        kill.join()
        with contextlib.suppress(errors.NotFound):
            waypoint.Client().session("copy").remove()
        fresh.restore("@", safety=False)
        assert fresh.run("cat /srv/file").output == "text"
    assert not wrong
