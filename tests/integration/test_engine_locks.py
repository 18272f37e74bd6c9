"""File locks come back with the processes that held them, on mapped files too, where CRIU loses them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import waypoint
from waypoint import errors, model

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Holds locks in the way it is asked to, says so, and stays. Each way is one that CRIU treats differently.
HOLDER = """
import fcntl, mmap, os, sqlite3, struct, sys, threading, time

def opened(name, flags=os.O_RDWR | os.O_CREAT):
    fd = os.open("/tmp/locks/" + name, flags, 0o666)
    if flags & os.O_RDWR:
        os.ftruncate(fd, 8192)
    return fd

def lock(fd, how, start=0, length=0):
    fcntl.lockf(fd, how | fcntl.LOCK_NB, length, start)

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
kept = []

def unmapped():
    fd = opened("f")
    lock(fd, EXCLUSIVE, 10, 20); lock(fd, SHARED, 100, 5); lock(fd, EXCLUSIVE, 1 << 40)

def mapped_shared():
    fd = opened("f")
    kept.append(mmap.mmap(fd, 4096))
    lock(fd, EXCLUSIVE, 5, 1); lock(fd, SHARED, 7, 2)

def mapped_private():
    fd = opened("f")
    kept.append(mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, READ_WRITE))
    lock(fd, EXCLUSIVE)

def mapped_read_only():
    fd = opened("f")
    kept.append(mmap.mmap(fd, 4096, prot=mmap.PROT_READ))
    lock(fd, SHARED, 1000)

def mapped_through_another_descriptor():
    fd, other = opened("f"), opened("f", os.O_RDONLY)
    kept.append(mmap.mmap(other, 4096, prot=mmap.PROT_READ))
    lock(fd, EXCLUSIVE, 3, 4)

def by_a_thread():
    fd = opened("f")
    kept.append(mmap.mmap(fd, 4096))
    done = threading.Event()
    def work():
        lock(fd, EXCLUSIVE, 9, 9)
        done.set()
        time.sleep(1000)
    for target in (lambda: time.sleep(1000), work):
        threading.Thread(target=target, daemon=True).start()
    done.wait()

def by_two_processes():
    fd = opened("f")
    kept.append(mmap.mmap(fd, 4096))
    lock(fd, SHARED, 0, 10); lock(fd, EXCLUSIVE, 20, 10)
    ready = os.pipe()
    if os.fork() == 0:
        fd = opened("f")
        kept.append(mmap.mmap(fd, 4096))
        lock(fd, SHARED, 0, 10); lock(fd, EXCLUSIVE, 40, 10)
        os.write(ready[1], b"!")
        time.sleep(1000)
    os.read(ready[0], 1)

def through_an_inherited_descriptor():
    fd, ready = opened("f"), os.pipe()
    if os.fork() == 0:
        lock(fd, EXCLUSIVE, 50, 1)
        os.write(ready[1], b"!")
        time.sleep(1000)
    os.read(ready[0], 1)

def of_the_open_file():
    ofd_setlk = 37
    fcntl.fcntl(opened("f"), ofd_setlk, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 1, 2, 0))
    fcntl.flock(opened("g"), fcntl.LOCK_EX)

os.makedirs("/tmp/locks", exist_ok=True)
globals()[sys.argv[1]]()
open("/tmp/locks/ready", "w").close()
while True:
    time.sleep(1000)
"""

WAYS = (
    "unmapped",
    "mapped_shared",
    "mapped_private",
    "mapped_read_only",
    "mapped_through_another_descriptor",
    "by_a_thread",
    "by_two_processes",
    "through_an_inherited_descriptor",
    "of_the_open_file",
)


def locks(session: waypoint.Session) -> list[list[str]]:
    """The locks on the files in /tmp/locks, as /proc/locks of the box tells them."""
    said = session.run("stat -c '%Hd %Ld %i %n' /tmp/locks/*; echo; cat /proc/locks").check().output
    files, _, table = said.partition("\n\n")
    names = {}
    for line in files.splitlines():
        major, minor, inode, path = line.split(" ")
        names[f"{int(major):02x}:{int(minor):02x}:{inode}"] = path
    found = []
    for line in table.splitlines():
        _, kind, _, how, pid, place, start, end = line.split()
        if name := names.get(place):
            found.append([kind, how, pid, name, start, end])
    return sorted(found)


@pytest.mark.parametrize("way", WAYS)
def test_a_fork_holds_the_same_locks(session: waypoint.Session, way: str) -> None:
    session.run("cat > /tmp/holder.py", stdin=HOLDER).check()
    session.run(f"python3 /tmp/holder.py {way} & until [ -e /tmp/locks/ready ]; do :; done").check()
    before = locks(session)
    assert before
    (fork,) = session.checkpoint().fork()
    assert locks(fork) == before
    assert locks(session) == before


SQLITE = """
import sqlite3, sys, time
db = sqlite3.connect("/tmp/db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table if not exists t(x)")
db.execute("begin immediate")
db.execute("insert into t values ('first')")
open("/tmp/ready", "w").close()
sys.stdin.readline()
db.execute("commit")
open("/tmp/committed", "w").close()
time.sleep(1000)
"""

SECOND_WRITER = (
    "python3 -c \"import sqlite3; db = sqlite3.connect('/tmp/db', timeout=0.1);"
    " db.execute('insert into t values (2)'); db.commit(); print('admitted')\" 2>&1 | tail -1"
)


def test_a_second_sqlite_writer_is_refused_after_a_restore(session: waypoint.Session) -> None:
    session.run("mkfifo /tmp/go; cat > /tmp/sqlite.py", stdin=SQLITE).check()
    session.run("python3 /tmp/sqlite.py <>/tmp/go & until [ -e /tmp/ready ]; do :; done").check()
    assert "database is locked" in session.run(SECOND_WRITER).output
    session.restore(session.checkpoint())
    assert "database is locked" in session.run(SECOND_WRITER).output
    session.run("echo > /tmp/go; until [ -e /tmp/committed ]; do :; done", timeout=20).check()
    assert session.run(SECOND_WRITER).output == "admitted\n"
    rows = "import sqlite3; print(sqlite3.connect('/tmp/db').execute('select count(*) from t').fetchone()[0])"
    assert session.run(f'python3 -c "{rows}"').output == "2\n"


@pytest.mark.parametrize("call", ["fcntl.lockf(f, fcntl.LOCK_EX, 1, 5)", "fcntl.flock(f, fcntl.LOCK_EX)"])
def test_a_fork_whose_lock_the_session_holds_is_refused_and_not_waited_for(
    sessions: Callable[..., waypoint.Session], tmp_path: Path, call: str
) -> None:
    (tmp_path / "file").write_text("shared")
    session = sessions("t", binds=[model.Bind(host=str(tmp_path), box="/mnt/shared")])
    holder = (
        f"import fcntl, time; f = open('/mnt/shared/file', 'r+'); {call}; print(flush=True); time.sleep(1000)"
    )
    session.run(f'python3 -c "{holder}" > /tmp/said & until [ -s /tmp/said ]; do :; done').check()
    point = session.checkpoint()
    with pytest.raises(errors.CannotRestore):
        point.fork()
    assert session.run("jobs -r | wc -l").output == "1\n"


# ---- relock alone, on an ordinary process ------------------------------------------------------------

SLEEPER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
print(fd, flush=True)
started = time.monotonic()
time.sleep(0.5)
print(time.monotonic() - started >= 0.5, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    file = tmp_path / "file"
    file.write_text("content")
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield process, file, int(process.stdout.readline())
        process.kill()


def relock(engine: Path, *words: str) -> str:
    """What relock answers, on descriptor 3."""
    program = str(engine / "bin" / "relock")
    return subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" 3>&1', program, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=20,
    ).stdout


def holds(file: Path) -> bool:
    with file.open("r+") as other:
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)
        except BlockingIOError:
            return True
        return False


def test_relock_takes_a_lock_inside_a_sleeping_process(
    engine: Path, sleeper: tuple[subprocess.Popen[str], Path, int]
) -> None:
    process, file, fd = sleeper
    time.sleep(0.1)
    assert not holds(file)
    assert relock(engine, f"{process.pid}:{fd}:{fcntl.F_WRLCK}:5:1") == "ok\n"
    assert holds(file)
    assert process.stdout
    assert process.stdout.readline() == "True\n", "its sleep was cut short"
    assert process.poll() is None


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("{pid}:99:1:0:0", "Bad file descriptor"),
        ("{pid}:{fd}:7:0:0", "Invalid argument"),
        ("4194303:3:1:0:0", "cannot be traced"),
        ("nonsense", "not a lock"),
    ],
)
def test_relock_that_cannot_says_why_and_leaves_the_process_as_it_was(
    engine: Path, sleeper: tuple[subprocess.Popen[str], Path, int], word: str, reason: str
) -> None:
    process, file, fd = sleeper
    time.sleep(0.1)
    assert reason in relock(engine, word.format(pid=process.pid, fd=fd))
    assert not holds(file)
    assert process.stdout
    assert process.stdout.readline() == "True\n", "its sleep was cut short"
    assert process.poll() is None
