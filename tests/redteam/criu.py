"""What stands between a session and its points: CRIU, which runs inside the box."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from tests.redteam.attacks import Scene, attack, hostile, printed, timed

import waypoint
from waypoint.engine import unrestorable
from waypoint.kernel import processes

# Every process that comes after it, again and again.
DISTURBER = r"""
import os, resource, signal, sys
known = {name for name in os.listdir("/proc") if name.isdigit()} | {str(os.getpid())}
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]

def stop(pid): os.kill(pid, signal.SIGSTOP)
def kill(pid): os.kill(pid, signal.SIGKILL)
def limit(pid):
    for kind in LIMITS: resource.prlimit(pid, kind, (0, 0))
def starve(pid):
    with open(f"/proc/{pid}/oom_score_adj", "w") as file: file.write("1000")
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
held = []
def look(pid):
    held.append(os.open(f"/proc/{pid}/stat", os.O_RDONLY))
    if len(held) > 200: os.close(held.pop(0))
def trace(pid):
    import ctypes
    with open(f"/proc/{pid}/comm", "rb") as file: comm = file.read()
    if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0: os.write(1, b"traced " + comm)

act = globals()[sys.argv[1]]
os.write(1, b"ready\n")
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and name not in known:
            try: act(int(name))
            except OSError: pass
"""
_BOUND_SECONDS = 40.0
"""For a verb in a box that attacks it, on a machine where other tests run."""


def _disturbed(scene: Scene, how: str, *, may_refuse: str = "no refusal") -> str:
    """`may_refuse`: part of the error with which a checkpoint may be refused in time."""
    session = scene.session("hostile")
    hostile(session, DISTURBER, how)
    longest = 0.0
    for _ in range(2):
        taken, error = timed(lambda: session.checkpoint("under attack"))
        longest = max(longest, taken)
        assert error is None or may_refuse in error.message, f"{how}: no checkpoint: {error}"
        if error is None:
            taken, error = timed(lambda: session.restore("@"))
            longest = max(longest, taken)
            assert error is None or may_refuse in error.message, f"{how}: no restore: {error}"
    fork = f"{session.name}-fork"
    scene.made.append(fork)  # the attack goes on in it
    taken, error = timed(lambda: session.fork(name=fork)[0].checkpoint("in a fork"))
    assert error is None or may_refuse in error.message, f"{how}: no fork: {error}"
    longest = max(longest, taken)
    assert longest < _BOUND_SECONDS, f"{how}: a verb took {longest:.1f} s"
    assert not [comm for comm in (b"ld.so", b"criu", b"waypoint-") if b"traced " + comm in printed(session)]
    taken, error = timed(lambda: waypoint.Client().call("rm", {"sessions": [session.name]}))
    assert error is None, error
    assert taken < _BOUND_SECONDS, f"rm took {taken:.1f} s"
    return f"{longest:.1f} s at most"


@attack(
    "SIGSTOP to every new process",
    "A box cannot reach CRIU: checkpoint, restore and rm work and end in time",
    quick=True,
)
def stop_criu(scene: Scene) -> str:
    return _disturbed(scene, "stop")


@attack("SIGKILL to every new process", "A box cannot reach CRIU", quick=True)
def kill_criu(scene: Scene) -> str:
    return _disturbed(scene, "kill")


@attack("limits of every new process set to 0", "A box cannot reach CRIU", quick=True)
def limit_criu(scene: Scene) -> str:
    return _disturbed(scene, "limit")


@attack("every new process made idle and first to be killed", "A box cannot reach CRIU")
def starve_criu(scene: Scene) -> str:
    return _disturbed(scene, "starve", may_refuse=unrestorable.OF_ANOTHER)


@attack("ptrace on every new process", "A box cannot reach CRIU")
def trace_criu(scene: Scene) -> str:
    return _disturbed(scene, "trace", may_refuse=unrestorable.TRACED)


@attack("files of every new process in /proc held open", "A point that is acknowledged can be restored")
def look_at_criu(scene: Scene) -> str:
    return _disturbed(scene, "look", may_refuse=unrestorable.OF_ANOTHER)


FLOOD = r"""
import os, signal, socket
anchor = next(int(name) for name in os.listdir("/proc") if name.isdigit()
              and open(f"/proc/{name}/comm").read() == "waypoint-anchor\n")
os.write(1, b"ready\n")
while True:
    os.kill(anchor, signal.SIGSTOP)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(0.01)
    try: connection.connect("/dev/waypoint.sock")
    except OSError: pass
    connection.close()
"""


@attack("the anchor stopped, its socket flooded", "Pid 1 of a box waits for nothing without a limit")
def stop_anchor(scene: Scene) -> str:
    session = scene.session("hostile")
    hostile(session, FLOOD)
    taken, _ = timed(lambda: session.spawn(["/bin/true"]))
    assert taken < _BOUND_SECONDS, f"a program was started, or refused, after {taken:.1f} s"
    removal, error = timed(lambda: waypoint.Client().call("rm", {"sessions": [session.name]}))
    assert error is None, error
    assert removal < _BOUND_SECONDS, f"rm took {removal:.1f} s"
    return f"{taken:.1f} s to start a program, {removal:.1f} s to remove the session"


@attack("rm while a checkpoint hangs", "The end of a session waits for no other verb", quick=True)
def remove_while_busy(scene: Scene) -> str:
    return _ended_while_busy(scene, "rm", {"sessions": ["hostile"]})


@attack("the end of the daemon while a checkpoint hangs", "The end of a session waits for no other verb")
def stop_while_busy(scene: Scene) -> str:
    return _ended_while_busy(scene, "daemon_stop", {"sessions": True})


def _ended_while_busy(scene: Scene, verb: str, arguments: dict[str, object]) -> str:
    """CRIU is stopped from the host, where nothing in the box could have reached it."""
    session = scene.session("hostile")
    keeper = session.info.pid
    assert keeper
    stopped = threading.Event()

    def stop_criu() -> None:
        while not stopped.is_set():
            for process in processes.below(keeper):
                if process.comm == "ld.so":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.host_pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop_criu)
    stopper.start()
    try:
        checkpoint = threading.Thread(target=lambda: timed(lambda: session.checkpoint("hangs")))
        checkpoint.start()
        checkpoint.join(1.5)
        taken, error = timed(lambda: waypoint.Client().call(verb, arguments))
    finally:
        stopped.set()
        stopper.join()
    checkpoint.join(_BOUND_SECONDS)
    assert error is None, error
    assert taken < 15, f"{verb} took {taken:.1f} s"
    return f"{verb} in {taken:.1f} s"
