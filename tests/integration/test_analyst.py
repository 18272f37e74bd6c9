"""Files of sessions are read by a process that can do nothing else, and hostile files cost it little."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.api.findings import DatabaseChange, RepositoryChange
from waypoint.core.analyst import Analyst
from waypoint.history.analyzers import analyze
from waypoint.history.view import METACOPY, OPAQUE, REDIRECT, WHITEOUT, PointView
from waypoint.home import Home
from waypoint.kernel import processes
from waypoint.kernel.copytree import remove_tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="privileges can only be given up by root")


@pytest.fixture
def analyst(tmp_path: Path) -> Iterator[Analyst]:
    found = Analyst(Home(tmp_path / "home"))
    yield found
    found.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """The layer of a point, as only root can read it."""
    (tmp_path / "base").mkdir()
    upper = tmp_path / "point" / "upper"
    upper.mkdir(parents=True, mode=0o700)
    os.chmod(tmp_path, 0o700)
    yield upper
    top = os.open(tmp_path, os.O_RDONLY)
    remove_tree(top, "point")  # pytest's own way ends at a thousand folders in each other
    os.close(top)


def views(files: Path) -> tuple[PointView, PointView]:
    base = files.parents[1] / "base"
    return PointView(None, base), PointView(files.parent, base)


ATTEMPTS = """
import os, socket, sys
from waypoint.kernel import sandbox
secret, target = sys.argv[1:]
sandbox.enter("wp-test", memory_bytes=1 << 29)
def tries(name, what):
    try:
        what()
    except MemoryError:
        print(name, "MemoryError")
    except OSError as error:
        print(name, error.strerror)
    else:
        print(name, "done")
tries("read", lambda: open(secret).read())
tries("write", lambda: open(secret, "a"))
tries("make", lambda: open(target, "w"))
tries("chmod", lambda: os.chmod(secret, 0o777))
tries("socket", socket.socket)
tries("unix", lambda: socket.socketpair())
tries("fork", os.fork)
tries("exec", lambda: os.execv("/bin/true", ["true"]))
tries("kill", lambda: os.kill(os.getppid(), 0))
tries("memory", lambda: bytearray(1 << 30))
tries("root", lambda: os.setuid(0))
tries("proc", lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1))
rows = [line.split() for line in open("/proc/self/status")]
print(os.getuid(), [row[1] for row in rows if row[0] in ("CapEff:", "NoNewPrivs:", "Seccomp:")])
"""


def test_it_reads_and_can_do_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    words = [sys.executable, "-c", ATTEMPTS, str(secret), str(tmp_path / "made")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    rows = done.stdout.splitlines()
    assert rows[0] == "read done", done.stderr
    assert [row for row in rows[1:-1] if row.endswith(" done")] == []
    assert {"memory MemoryError", "fork Operation not permitted", "exec Operation not permitted"} <= set(rows)
    assert rows[-1] == "65534 ['0000000000000004', '1', '2']"


def test_it_finds_what_the_daemon_would_find_and_stays_for_the_next(analyst: Analyst, files: Path) -> None:
    with sqlite3.connect(files / "shop.db") as database:
        database.execute("CREATE TABLE users (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO users VALUES (?)", [(number,) for number in range(9)])
    database.close()
    (files / "shop.db").chmod(0o600)
    old, new = views(files)
    found = analyst.analyze(old, new, ["/shop.db"])
    assert isinstance(found.findings[0], DatabaseChange)
    assert found == analyze(*views(files), ["/shop.db"])
    before = [process.host_pid for process in processes.below(os.getpid())]
    start = time.monotonic()
    assert analyst.analyze(old, new, ["/shop.db"]) == found
    assert time.monotonic() - start < 5
    assert [process.host_pid for process in processes.below(os.getpid())] == before, "the same process"
    assert analyst.analyze(old, new, []).findings == ()


def test_it_sees_the_folders_of_the_base_where_the_session_put_them(analyst: Analyst, files: Path) -> None:
    """The marks of a layer (renamed, emptied, metadata only) cannot be read without privileges."""
    base = files.parents[1] / "base"
    for name in ("lib/parts/one", "lib/parts/deep/two", "srv/old/gone", "srv/plain"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("of the base\n")
    for folder, mark, value in (
        ("srv/x/parts", REDIRECT, b"/lib/parts"),
        ("srv/x/parts/deeper", REDIRECT, b"deep"),
        ("srv/old", OPAQUE, b"y"),
        ("srv/marked", OPAQUE, b"x"),
    ):
        (files / folder).mkdir(parents=True)
        os.setxattr(files / folder, mark, value)
    for name in ("marked/absent", "plain"):
        (files / "srv" / name).touch()
    os.setxattr(files / "srv/marked/absent", WHITEOUT, b"y")
    os.setxattr(files / "srv/plain", METACOPY, b"")
    os.truncate(files / "srv/plain", (base / "srv/plain").stat().st_size)
    os.mknod(files / "srv/x/parts/deep", stat.S_IFCHR, 0)  # it is at another name now
    subprocess.run(["git", "init", "-q", files / "srv"], check=True)
    subprocess.run(["git", "-C", files / "srv", "add", "plain"], check=True)
    os.utime(
        files / "srv/plain", (1, 1)
    )  # content decides, which is in the base: not the zeros that were added
    old, new = views(files)
    touched = ["/srv/.git/HEAD", "/srv/old/gone", "/srv/marked/absent", "/srv/plain"]
    found = analyst.analyze(old, new, touched, folders=["/srv/x/parts"])
    assert found == analyze(*views(files), touched, folders=["/srv/x/parts"])
    assert found.gaps == ()
    (change,) = found.findings
    assert isinstance(change, RepositoryChange)
    assert change.untracked_paths == ("x/parts/deeper/two", "x/parts/one")
    assert change.modified_paths == ("plain",)


def test_hostile_files_cost_a_gap_and_not_the_daemon(analyst: Analyst, files: Path) -> None:
    """A database that is a FIFO, 1 TB of nothing, a query without end; an object of git that unpacks to
    256 MB; 3,000 folders in each other; 20,000 names."""
    os.mkfifo(files / "fifo.db")
    with open(files / "sparse.db", "wb") as file:
        file.write(b"SQLite format 3\0")
        file.truncate(1 << 40)
    with sqlite3.connect(files / "slow.db") as database:
        database.execute("CREATE TABLE t (x)")
        database.execute(
            "CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            " SELECT max(x) FROM n"
        )
    database.close()
    objects = files / "repo/.git/objects/ab"
    objects.mkdir(parents=True)
    (files / "repo/.git/HEAD").write_text("ref: refs/heads/main\n")
    (files / "repo/.git/refs/heads").mkdir(parents=True)
    (files / "repo/.git/refs/heads/main").write_text(f"{'ab' + 'c' * 38}\n")
    packer = zlib.compressobj(9)
    with open(objects / ("c" * 38), "wb") as file:
        file.write(packer.compress(b"commit 268435456\0"))
        file.writelines(packer.compress(bytes(1 << 26)) for _ in range(4))
        file.write(packer.flush())
    at = os.open(files, os.O_RDONLY)
    os.mkdir("deep", dir_fd=at)
    for _ in range(3000):
        deeper = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
        os.mkdir("deep", dir_fd=at)
    os.close(at)
    (files / "many").mkdir()
    for number in range(20_000):
        (files / "many" / str(number)).touch()
    old, new = views(files)
    touched = ["/fifo.db", "/sparse.db", "/slow.db", "/repo/.git/HEAD", "/repo/.git/refs/heads/main"]
    start = time.monotonic()
    found = analyst.analyze(old, new, touched, folders=["/deep", "/many", "/repo"])
    assert time.monotonic() - start < 60
    assert found.gaps


def test_one_that_ends_is_replaced(analyst: Analyst, files: Path) -> None:
    (files / "x.db").write_bytes(b"SQLite format 3\0" + bytes(496))
    old, new = views(files)
    analyst.analyze(old, new, ["/x.db"])
    for process in processes.below(os.getpid()):
        if process.comm == "wp-analyst":
            os.kill(process.host_pid, 9)
    assert not any("ended" in gap.reason for gap in analyst.analyze(old, new, ["/x.db"]).gaps)


@pytest.mark.parametrize("reads", [True, False])
def test_one_that_asks_without_end_is_ended(
    analyst: Analyst, files: Path, monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    """Each question is for a path that no layer has, or that nothing can have."""
    program = files.parents[1] / "program"
    program.write_text(
        f"#!{sys.executable}\n"
        "import itertools, os\n"
        "paths = itertools.cycle((b'/x', b'/a\\0b'))\n"
        "for number, path in enumerate(paths):\n"
        "    os.write(1, b'q' + len(path).to_bytes(4, 'little') + path)\n"
        f"    if {reads} and number > 2000:\n"  # there is always a question to be answered
        "        os.read(0, 9)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("waypoint.core.analyst.sys.executable", str(program))
    monkeypatch.setattr("waypoint.core.analyst._SECONDS", 0.5)
    found = analyst.analyze(*views(files), ["/x.db"])
    assert [gap.reason for gap in found.gaps] == [
        "the process that reads them ended: it was not done after 30 s"
    ]
    assert not any(process.comm == program.name for process in processes.below(os.getpid()))
