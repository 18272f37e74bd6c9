"""Damage to what is stored is found, named and never restored. `make damage` has the long campaign."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import damage
from tests.integration.conftest import Output
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home

pytestmark = pytest.mark.timeout(3600)


def test_every_damage_of_a_point_is_found(
    session: waypoint.Session, home: Home, wp: Callable[..., Output]
) -> None:
    """And before CRIU sees anything, when it is in a small image."""
    seed = int(os.environ.get("WAYPOINT_SEED") or random.randrange(1 << 32))
    rounds = int(os.environ.get("WAYPOINT_DAMAGES") or 56)
    session.run("mkdir -p /srv/x && cd /srv/x && for i in 1 2 3; do echo $i > f$i; done")
    session.run("python3 -c 'import os,time; x = os.urandom(9 << 20); time.sleep(1e6)' & sleep 0.5")
    one = session.checkpoint("one", name="one")
    session.run("echo more > f4")
    two = session.checkpoint("two")
    until(lambda: all(point.info.digested for point in session.checkpoints()))
    client = waypoint.Client()
    points = [one.info, two.info]
    assert client.check(one.id, two.id, session="t", deep=True).violations == ()

    image = home.checkpoints / one.id / "images" / "pstree.img"
    whole = image.read_bytes()
    damage.flip(image, random.Random(seed))
    with pytest.raises(
        errors.PointDamaged, match=r"c1 of session 't' is damaged: images/pstree\.img is not what"
    ):
        one.fork()
    with pytest.raises(errors.PointDamaged):
        session.restore("one")
    assert session.run("echo on").output == "on\n", "the session runs on"
    info = session.point("one").info
    assert info.restorable == "failed"
    assert "pstree.img" in (info.damage or "")
    assert "damaged" in wp("show", "-s", "t", "one").out
    found = wp("check", "one", "-s", "t", "--json")
    assert (found.code, found.json["violations"][0]["rule"]) == (1, 5)
    image.write_bytes(whole)
    assert [one.what for one in client.recover().repaired] == [
        "c1 of session 't' is what was written: it is no longer marked"
    ]

    report = damage.stored(client, points, seed, rounds)
    print(report)
    assert not report.missed, f"{report.missed}\n{report}"
    client.recover()
    assert client.check(deep=True).violations == ()
    session.restore("one", safety=False)
    assert session.run("echo *").output == "f1 f2 f3\n"
    client.close()


def test_memory_is_compared_when_a_point_is_proven_and_a_damaged_database_is_rebuilt(
    small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(small_home)
    monkeypatch.setenv("WAYPOINT_SPARES", "off")
    monkeypatch.setenv("WAYPOINT_PROVE", "off")
    s = waypoint.session("t", home=small_home, net="none")
    s.run("echo kept > /srv/file; word=kept")
    point = s.checkpoint("one", name="one", durable=True)
    until(lambda: point.info.digested or s.point("one").info.digested)
    client = waypoint.Client(small_home)
    pid = s.info.pid

    # One bit of memory, while no daemon runs. The proof that the next one makes finds it.
    pages = max(
        (home.checkpoints / point.id / "images").glob("pages-*.img"), key=lambda path: path.stat().st_size
    )
    whole = pages.read_bytes()
    client.daemon.stop()
    damage.flip(pages, random.Random(1))
    monkeypatch.setenv("WAYPOINT_PROVE", "on")
    until(lambda: s.point("one").info.damage)
    assert pages.name in str(s.point("one").info.damage)
    pages.write_bytes(whole)
    assert "no longer marked" in client.recover().repaired[0].what

    # The header of the database. The daemon does not start, the session runs on, and nothing is lost.
    client.daemon.stop()
    with contextlib.closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log has the first page too
    data = bytearray(home.database.read_bytes())
    data[:16] = b"no database here"
    home.database.write_bytes(data)
    monkeypatch.setenv("WAYPOINT_HOME", str(small_home))
    refused = run("ls", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (6, "database_damaged")
    assert "waypoint recover" in refused.json["error"]["hint"]
    done = run("recover", "--json")
    assert done.code == 0, done.out
    assert (Path(done.json["kept"]) / "waypoint.db").read_bytes() == bytes(data)
    s = waypoint.session("t", home=small_home)
    assert (s.info.pid, s.info.state) == (pid, "live")
    assert s.run("cat /srv/file; echo $word").output == "kept\nkept\n"
    s.run("word=lost; rm /srv/file")
    s.restore("one")
    assert s.run("cat /srv/file; echo $word").output == "kept\nkept\n"
    assert client.check(deep=True).violations == ()
    client.close()


def run(*words: str) -> Output:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "waypoint", *words], capture_output=True, text=True, check=False
    )
    return Output(done)
