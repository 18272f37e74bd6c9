"""What one box may take from the others and from the machine, without any option."""

from __future__ import annotations

import contextlib
import statistics
import time

from tests.redteam.attacks import PYTHON, Scene, attack, hostile, printed, timed
from tests.waiting import until

import waypoint
from waypoint.errors import WaypointError

_LINE = "A session without options cannot take the machine from the others"

FORK_BOMB = r"""
import os, time
os.write(1, b"ready\n")
while True:
    try:
        os.fork()
    except OSError:
        os.write(1, b"refused\n")
        time.sleep(1000)
"""

MEMORY_HOG = r"""
import mmap, os
os.write(1, b"ready\n")
kept = []
for _ in range(64):
    kept.append(mmap.mmap(-1, 32 << 20))
    for at in range(0, 32 << 20, 4096): kept[-1][at] = 1
    os.write(1, b"32 MiB\n")
os.write(1, b"all of it\n")
"""


DISK_FILLER = r"""
import os
written = 0
with open("/root/filler", "ab", 0) as file:
    while True:
        try: written += file.write(os.urandom(1 << 20))
        except OSError as error: break
for number in range(100000):
    try: open(f"/root/{number}", "w").write("x" * 512)
    except OSError: break
print(written)
"""

FILE_HOG = r"""
import os
os.write(1, b"ready\n")
for _ in range(8):
    if not os.fork():
        count = 0
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
                count += 1
        except OSError as error:
            os.write(1, f"refused after {count}: {error.errno}\n".encode())
        import time
        time.sleep(1000)
os.wait()
"""

INOTIFY_HOG = r"""
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
os.write(1, b"ready\n")
first = libc.inotify_init1(0)
count = 1
while libc.inotify_init1(0) >= 0: count += 1
os.write(1, f"{count} instances\n".encode())
os.mkdir("/root/watched")
watches = 0
while first >= 0 and watches < 100000:
    name = f"/root/watched/{watches}".encode()
    os.mkdir(name)
    if libc.inotify_add_watch(first, name, 0xFFF) < 0: break
    watches += 1
os.write(1, f"{watches} watches\n".encode())
time.sleep(1000)
"""


def _latency(session: waypoint.Session, times: int = 5) -> float:
    """How long a command of an honest session takes, in ms."""

    def once() -> float:
        started = time.perf_counter()
        session.run("true").check()
        return (time.perf_counter() - started) * 1000

    return statistics.median(once() for _ in range(times))


@attack("a fork bomb", _LINE, quick=True)
def fork_bomb(scene: Scene) -> str:
    session, honest = scene.limited("hostile"), scene.session("honest")
    limit = session.info.pids_limit
    assert limit, "there is no limit"
    fork = session
    for name, copy in scene.lives(session):
        assert copy.info.pids_limit == limit, f"{name}: the limit is {copy.info.pids_limit}"
        fork = copy
    hostile(fork, FORK_BOMB)
    until(lambda: b"refused" in printed(fork))
    taken = _latency(honest)
    point = fork.checkpoint("full of processes")
    assert point.info.processes <= limit
    assert fork.info.pids_limit == limit
    return (
        f"{point.info.processes} processes of {limit}, saved all the same; `true` beside it in {taken:.0f} ms"
    )


@attack("a memory hog", _LINE, quick=True)
def memory_hog(scene: Scene) -> str:
    session, honest = scene.limited("hostile"), scene.session("honest")
    limit = session.info.memory_limit_bytes
    assert limit, "there is no limit"
    for name, copy in scene.lives(session):
        assert copy.info.memory_limit_bytes == limit, f"{name}: {copy.info.memory_limit_bytes}"
        hostile(copy, MEMORY_HOG)
        until(lambda: not int(copy.run("pgrep -fc attack.py").output))  # noqa: B023 - called at once
        output = printed(copy)
        assert b"all of it" not in output, f"{name}: it got all of it"
        assert output.count(b"32 MiB") * (32 << 20) <= limit
        assert copy.run("echo alive").output == "alive\n"
    return f"ended at {limit >> 20} MiB; `true` beside it in {_latency(honest):.0f} ms"


@attack("a disk filler", _LINE, quick=True)
def disk_filler(scene: Scene) -> str:
    limit = 64 << 20
    session, honest = scene.session("hostile", disk_bytes=limit), scene.session("honest")
    before = session.checkpoint("empty")
    for name, copy in scene.lives(session):
        assert copy.info.disk_limit_bytes == limit, f"{name}: {copy.info.disk_limit_bytes}"
        copy.write_file("/root/attack.py", DISK_FILLER.encode())
        written = int(copy.run(f"{PYTHON} /root/attack.py", timeout=120).check().output)
        assert written <= limit, f"{name}: {written >> 20} MiB were written"
        assert honest.run("head -c 8M /dev/urandom >/root/honest && sync /root/honest").exit_code == 0
        with contextlib.suppress(WaypointError):
            copy.run("echo full >/root/more")
        full = copy.checkpoint("full")
        assert full.info.restorable != "failed"
        copy.run("rm /root/filler").check()
        copy.restore(full)
        copy.restore(before)
        copy.write_file("/root/after", b"x" * (4 << 20))
    taken = _latency(honest)
    return f"refused at {limit >> 20} MiB; `true` beside it in {taken:.0f} ms"


@attack("a hog of open files", _LINE, quick=True)
def file_hog(scene: Scene) -> str:
    session, honest = scene.session("hostile", pids=160, open_files=512), scene.session("honest")
    for name, copy in scene.lives(session):
        assert copy.info.open_files_limit == 512, f"{name}: {copy.info.open_files_limit}"
        hostile(copy, FILE_HOG)
        until(lambda: printed(copy).count(b"refused after") == 8)  # noqa: B023 - called at once
        _, error = timed(lambda: copy.checkpoint("full of files"))  # noqa: B023 - called at once
        assert error is None or "attack.py" in error.message, error
        counts = [int(line.split()[2].rstrip(b":")) for line in printed(copy).splitlines()[1:]]
        assert max(counts) <= 512, f"{name}: {max(counts)} files"
        copy.run("pkill -f attack.py")
        raised = copy.run(f"{PYTHON} -c 'import resource; resource.setrlimit(7, (4096, 4096))'")
        assert raised.exit_code, f"{name}: the limit can be raised"
    honest.run("exec 9</etc/passwd && exec 9<&-").check()
    return f"refused at 512 in each process; `true` beside it in {_latency(honest):.0f} ms"


@attack("an inotify flood", "What a session can take from others is in docs/limits.md")
def inotify_flood(scene: Scene) -> str:
    """Instances and watches are counted for root in all boxes together, which is told, not prevented. The
    other session and its verbs go on."""
    session, honest = scene.limited("hostile"), scene.session("honest")
    point = honest.checkpoint("before the flood")
    hostile(session, INOTIFY_HOG)
    until(lambda: b"watches" in printed(session), 120)
    taken = _latency(honest)
    honest.restore(point)
    point.fork(name="honest-fork")
    scene.made.append("honest-fork")
    honest.run("echo >/root/x && cat /root/x").check()
    found = printed(session).decode().splitlines()[1:]
    return f"{' and '.join(found)} taken; `true` beside it in {taken:.0f} ms, restore and fork work"
