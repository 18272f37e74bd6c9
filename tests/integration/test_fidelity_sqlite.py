"""SQLite loses nothing that it has committed, although a restore gives its files another device number."""

from __future__ import annotations

import waypoint

SERVER = """
import os, signal, sqlite3, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
path, mode, ballast = sys.argv[1], sys.argv[2], bytearray(int(sys.argv[3]))
for at in range(0, len(ballast), 4096):
    ballast[at] = 1
kept = sqlite3.connect(path, isolation_level=None)
kept.execute(f"pragma journal_mode={mode}")
kept.execute("create table t(a)")
while True:
    kept.execute("insert into t values (1)")
    open(path + "-ready", "w").close()
    signal.sigwait({signal.SIGUSR1})
    kept.execute("begin immediate")
    kept.execute("insert into t values (2)")
    # Opened and closed, as a library or a thread does it while another one has a connection of its own.
    other = sqlite3.connect(path)
    other.execute("select count(*) from t").fetchall()
    other.close()
    # The lock of the transaction is still there: a process beside it has to wait.
    beside = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute('insert into t values (3)')"
    if os.spawnv(os.P_WAIT, sys.executable, ["python3", "-c", beside, path]) == 0:
        os._exit(1)
    kept.execute("commit")
    for _ in range(9):
        kept.execute("insert into t values (2)")
"""
COUNT = (
    "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('select count(*) from t').fetchone()[0])"
)
DATABASES = {"wal": 0, "delete": 0, "large": 32 << 20}


def rows(session: waypoint.Session, name: str) -> int:
    """How many rows another process sees."""
    return int(session.run(f'/usr/bin/python3 -c "{COUNT}" /srv/{name}').check().output)


def write_more(session: waypoint.Session) -> None:
    """Each server opens and closes its database once more, and writes eleven rows."""
    for name in DATABASES:
        before = rows(session, name)
        session.run(f"rm /srv/{name}-ready; kill -USR1 ${name}").check()
        session.run(
            f"until [ -e /srv/{name}-ready ]; do kill -0 ${name} || break; sleep 0.01; done", timeout=20
        )
        assert rows(session, name) == before + 11
        deleted = session.run(f"ls -l /proc/${name}/fd | grep deleted").output
        assert not deleted, f"what it writes now is lost: {deleted}"
    before = rows(session, "shell")
    session.run(
        "printf \"attach '/srv/shell' as once_more; select count(*) from once_more.t; detach once_more;"
        ' insert into t values (2); insert into t values (2);\\n.shell touch /srv/shell-ready\\n" >&7'
    ).check()
    session.run(
        "until [ -e /srv/shell-ready ]; do kill -0 $shell || break; sleep 0.01; done; rm /srv/shell-ready"
    )
    assert rows(session, "shell") == before + 2
    assert not session.run("ls -l /proc/$shell/fd | grep deleted").output


def test_rows_committed_after_a_second_connection_was_closed_are_not_lost(fresh: waypoint.Session) -> None:
    """Write-ahead log and rollback journal, Python and the shell of SQLite, memory that is tracked; after a
    restore, after a restore of what was restored, in a fork, and in the session that went on."""
    fresh.run("cat > /srv/server.py", stdin=SERVER).check()
    for name, size in DATABASES.items():
        mode = "delete" if name == "delete" else "wal"
        fresh.run(f"/usr/bin/python3 /srv/server.py /srv/{name} {mode} {size} & {name}=$!").check()
        fresh.run(f"until [ -e /srv/{name}-ready ]; do sleep 0.01; done", timeout=20).check()
    fresh.run("mkfifo /srv/fifo; sqlite3 /srv/shell < /srv/fifo & shell=$!; exec 7> /srv/fifo").check()
    fresh.run(
        "printf 'pragma journal_mode=wal; create table t(a); insert into t values (1);\\n"
        ".shell touch /srv/shell-ready\\n' >&7"
    ).check()
    fresh.run("until [ -e /srv/shell-ready ]; do sleep 0.01; done; rm /srv/shell-ready", timeout=20).check()
    point = fresh.checkpoint()
    assert not [line for line in point.info.coverage if "st_dev" in line], "all are known"
    write_more(fresh)
    fresh.restore(point)
    write_more(fresh)
    later = fresh.checkpoint()
    fresh.restore(later)
    write_more(fresh)
    copy = later.fork(name="copy")[0]
    write_more(copy)
    write_more(fresh)


def test_a_database_of_a_program_that_is_not_understood_is_named_in_the_coverage(
    fresh: waypoint.Session,
) -> None:
    program = (
        "import sqlite3, time\n"
        "made = sqlite3.connect('/srv/db')\n"
        "made.execute('create table t(a)')\n"
        "made.close()\n"
        "file = open('/srv/db', 'r+b')\n"  # without SQLite: there is no record of it
        "open('/srv/ready', 'w').close()\n"
        "time.sleep(1000)\n"
    )
    fresh.run("cat > /srv/program.py", stdin=program)
    fresh.run("/usr/bin/python3 /srv/program.py & program=$!")
    fresh.run("until [ -e /srv/ready ]; do sleep 0.01; done", timeout=20).check()
    lines = [line for line in fresh.checkpoint().info.coverage if "st_dev" in line]
    assert len(lines) == 1, lines
    assert "program.py" in lines[0]
    assert "/srv/db" in lines[0]
    fresh.run("kill $program; wait")
    assert not any("st_dev" in line for line in fresh.checkpoint().info.coverage)
