"""Forgetting, measuring and running out of room, in a real pool."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.leaks import Watch
from tests.waiting import until

import waypoint
from waypoint.errors import NoSpace, NotFound, UsageError
from waypoint.home import Home
from waypoint.kernel import copytree
from waypoint.kernel.pool import deltas, extents
from waypoint.kernel.pool.extents import Growth
from waypoint.kernel.pool.lifecycle import close_pool, open_pool
from waypoint.kernel.pool.protocol import Pool

MIB = 1 << 20


def call(verb: str, **args: Any) -> Any:
    return waypoint.Client().call(verb, args)


def random_file(session: waypoint.Session, path: str, size_mib: int) -> None:
    """What no compression makes smaller."""
    session.run(f"dd if=/dev/urandom of={path} bs=1M count={size_mib} status=none").check()


def labels(points: list[Any]) -> list[str]:
    return [point["label"] for point in points]


def cost_of(point: waypoint.Checkpoint) -> dict[str, Any]:
    found = call("du", session=point.info.session)["checkpoints"]
    return next(cost for cost in found if cost["id"] == point.id)


# ---- what comes back -----------------------------------------------------------------------------


def test_what_du_says_is_what_comes_back(session: waypoint.Session) -> None:
    random_file(session, "/tmp/large", 40)
    random_file(session, "/tmp/stays", 20)
    first = session.checkpoint("with the large file")
    session.run("rm /tmp/large").check()
    session.checkpoint("without it")
    cost = cost_of(first)
    assert cost["exact"]
    assert 40 * MIB <= cost["files_bytes"] < 42 * MIB, "the other file is shared with the second point"
    assert 0 < cost["processes_bytes"] <= first.info.size_bytes
    assert cost["unique_bytes"] == cost["files_bytes"] + cost["processes_bytes"]
    before = call("prune")["pool"]["used_bytes"]
    first.forget()
    after = call("prune")["pool"]["used_bytes"]
    assert abs(before - after - cost["unique_bytes"]) < MIB


def test_points_together_give_back_what_only_they_share(session: waypoint.Session) -> None:
    random_file(session, "/tmp/large", 16)
    first, second = session.checkpoint("one"), session.checkpoint("two")
    session.run("rm /tmp/large").check()
    session.checkpoint("three")
    assert cost_of(first)["files_bytes"] < MIB
    assert cost_of(second)["files_bytes"] < MIB
    both = call("forget", session="t", refs=[first.id, second.id], dry_run=True)
    assert 16 * MIB < both["frees_bytes"] < 20 * MIB
    assert both["dry_run"]
    assert len(session.checkpoints()) == 3


def test_what_a_fork_still_has_does_not_come_back(session: waypoint.Session) -> None:
    random_file(session, "/tmp/large", 16)
    first = session.checkpoint("one")
    (fork,) = first.fork(name="other")
    session.run("rm /tmp/large").check()
    session.checkpoint("two")
    assert cost_of(first)["files_bytes"] < MIB
    use = {one["session"]: one["unique_bytes"] for one in call("du")["sessions"]}
    assert use["other"] < MIB
    random_file(fork, "/tmp/new", 8)
    use = {one["session"]: one["unique_bytes"] for one in call("du")["sessions"]}
    assert 8 * MIB <= use["other"] < 10 * MIB
    fork.remove()
    call("prune")
    assert cost_of(first)["files_bytes"] >= 16 * MIB


def test_all_that_du_lists_adds_up(session: waypoint.Session) -> None:
    session.checkpoint("one")
    session.checkpoint("two")
    found = call("du")
    parts = [cost["unique_bytes"] for cost in (*found["checkpoints"], *found["sessions"])]
    parts += [base["size_bytes"] for base in found["bases"]]
    assert sum(parts) + found["other_bytes"] == found["pool"]["used_bytes"]
    assert 0 <= found["pool"]["percent"] < 80


# ---- the others ----------------------------------------------------------------------------------


def test_any_point_can_go_and_the_others_stay_whole(session: waypoint.Session) -> None:
    points = []
    for number in range(1, 11):
        session.run(f"mark={number}; echo {number} > /tmp/note; echo {number} > /tmp/file-{number}").check()
        points.append(session.checkpoint(str(number)))
    for number in (1, 2, 5, 7, 9):
        points[number - 1].forget()
    left = session.checkpoints()
    assert [point.info.label for point in left] == ["c3", "c4", "c6", "c8", "c10"]
    assert [point.info.parent for point in left] == [None, *(point.id for point in left[:-1])]
    for point in left:
        session.restore(point, safety=False)
        taken = point.info.intent
        seen = session.run("echo $mark $(cat /tmp/note) $(ls /tmp/file-* | wc -l)").output
        assert seen == f"{taken} {taken} {taken}\n"


def test_what_is_forgotten_is_gone(session: waypoint.Session, home: Home) -> None:
    first = session.checkpoint("one", name="first")
    session.checkpoint("two")
    first.forget(force=True)
    until(lambda: not (home.checkpoints / first.id).exists())
    with pytest.raises(NotFound):
        session.restore("first")
    assert session.checkpoint("three", name="first").name == "first", "the name is free again"


def test_a_point_that_is_being_compared_goes_afterwards(session: waypoint.Session, home: Home) -> None:
    first, second = session.checkpoint("one"), session.checkpoint("two")
    session.checkpoint("three")
    files = [home.checkpoints / point.id / "files" for point in (first, second)]
    fds = [os.open(tree, os.O_RDONLY | os.O_DIRECTORY) for tree in files]
    stream = deltas._SendStream(*fds)
    try:
        second.forget()
        assert [point.info.label for point in session.checkpoints()] == ["c1", "c3"]
    finally:
        while stream.read():
            pass
        stream.close()
        for fd in fds:
            os.close(fd)
    call("prune")
    assert not files[1].parent.exists()


# ---- what stays ----------------------------------------------------------------------------------


def test_where_a_session_stands_cannot_be_forgotten(session: waypoint.Session) -> None:
    head = session.checkpoint("one")
    with pytest.raises(UsageError, match="session 't' stands on it"):
        head.forget(force=True)


def test_what_a_session_was_forked_from_cannot_be_forgotten(session: waypoint.Session) -> None:
    first = session.checkpoint("one")
    session.checkpoint("two")
    (fork,) = first.fork(name="other")
    fork.checkpoint("its own")
    with pytest.raises(UsageError, match="session 'other' was forked from it"):
        first.forget()
    fork.remove()
    first.forget()


def test_what_undo_and_redo_go_back_to_cannot_be_forgotten(session: waypoint.Session) -> None:
    first = session.checkpoint("one")
    session.run("echo precious > /tmp/precious").check()
    safety = session.restore(first).safety
    assert safety
    session.checkpoint("three")
    with pytest.raises(UsageError, match="undo"):
        call("forget", session="t", refs=[safety.id])
    assert call("forget", session="t", policy={"older_than": 0})["forgotten"][0]["label"] == "c1"
    undone = session.undo()
    assert session.run("cat /tmp/precious").output == "precious\n"
    assert undone.safety
    with pytest.raises(UsageError, match="redo"):
        call("forget", session="t", refs=[undone.safety.id])


def test_what_is_being_verified_cannot_be_forgotten(session: waypoint.Session) -> None:
    first = session.checkpoint("one")
    session.checkpoint("two")
    call("verify", session="t", ref=first.id, command="sleep 3", wait=False)
    with pytest.raises(UsageError, match="being verified"):
        first.forget()
    deadline = time.monotonic() + 20
    while session.checkpoints()[0].info.verdict is None and time.monotonic() < deadline:
        time.sleep(0.1)
    while (verdict := session.checkpoints()[0].info.verdict) and verdict.state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.forget()


def test_named_and_pinned_points_go_only_by_force(session: waypoint.Session) -> None:
    named, pinned = session.checkpoint("one", name="up"), session.checkpoint("two")
    pinned.pin()
    assert pinned.info.pinned
    session.checkpoint("three")
    with pytest.raises(UsageError, match="named up"):
        named.forget()
    with pytest.raises(UsageError, match="pinned"):
        pinned.forget()
    assert call("forget", session="t", policy={"older_than": 0, "keep_named": True})["forgotten"] == []
    pinned.unpin()
    pinned.forget()
    named.forget(force=True)
    assert len(session.checkpoints()) == 1


def test_several_points_go_together_or_not_at_all(session: waypoint.Session) -> None:
    points = [session.checkpoint(str(number)) for number in range(3)]
    with pytest.raises(UsageError, match="c3 cannot be forgotten"):
        call("forget", session="t", refs=[point.id for point in points])
    assert len(session.checkpoints()) == 3


# ---- policies ------------------------------------------------------------------------------------


def test_a_policy_is_carried_out(session: waypoint.Session, home: Home) -> None:
    points = [session.checkpoint(str(number)) for number in range(1, 6)]
    forecast = call("forget", session="t", policy={"keep_last": 2}, dry_run=True)
    assert labels(forecast["forgotten"]) == ["c1", "c2", "c3"]
    assert labels(forecast["kept"]) == ["c4", "c5"]
    assert len(session.checkpoints()) == 5
    only = [points[0].id, points[4].id]
    done = call("forget", session="t", policy={"keep_last": 2}, only=only)
    assert labels(done["forgotten"]) == ["c1"], "nothing goes that was not shown"
    done = call("forget", session="t", policy={"keep_last": 2})
    assert labels(done["forgotten"]) == ["c2", "c3"]
    assert labels(call("forget", session="t", policy={"keep_last": 2})["forgotten"]) == []
    kept = {point.id for point in points[3:]}
    until(lambda: {path.name for path in home.checkpoints.iterdir()} == kept)


def test_a_policy_without_a_rule_forgets_nothing(session: waypoint.Session) -> None:
    session.checkpoint("one")
    session.checkpoint("two")
    with pytest.raises(UsageError, match="would forget everything"):
        call("forget", session="t")
    with pytest.raises(UsageError, match="not a duration"):
        call("forget", session="t", policy={"older_than": "yesterday"})
    assert call("forget", session="t", policy={"older_than": "1w"})["forgotten"] == []
    assert len(session.checkpoints()) == 2


# ---- the command line ----------------------------------------------------------------------------


def test_the_verbs_about_room(wp: Callable[..., Any]) -> None:
    wp("new", "t", check=True)
    for number in range(1, 7):
        wp("checkpoint", "-s", "t", str(number), check=True)
    assert "c1" in wp("pin", "-s", "t", "c1", check=True).out
    assert wp("pin", "-s", "t", "c2", "--json", check=True).json["checkpoint"]["pinned"]
    wp("unpin", "-s", "t", "c2", check=True)
    asked = wp("forget", "-s", "t", "--keep-last", "3")
    assert asked.code == 3
    assert "--yes" in asked.err
    forecast = wp("forget", "-s", "t", "--keep-last", "3", "--dry-run", check=True).out
    assert "t:c1  pinned" in forecast
    assert "2 points would be forgotten" in forecast
    found = wp("forget", "-s", "t", "--keep-last", "3", "--yes", "--json", check=True).json
    assert labels(found["forgotten"]) == ["c2", "c3"]
    assert wp("forget", "t:c4", "--yes", check=True).out.startswith("forgot 1 point")
    refused = wp("forget", "-s", "t", "c1", "c5", "--yes", "--json")
    assert refused.code == 2
    assert "pinned" in refused.json["error"]["message"]
    assert wp("forget", "-s", "t", "--auto-only", "--yes").code == 2
    assert wp("forget", "-s", "t", "c5", "--keep-last", "1", "--yes").code == 2
    listed = wp("du", check=True).out
    assert "t:c1" in listed
    assert "pinned" in listed
    assert "pool: " in listed
    assert labels(wp("du", "-s", "t", "--json", check=True).json["checkpoints"]) == ["c1", "c5", "c6"]
    assert "freed" in wp("prune", check=True).out
    assert wp("prune", "--auto", "--dry-run", "--json", check=True).json["forgotten"] == []
    status = wp("daemon", "status", "--json", check=True).json
    assert status["warnings"] == []


# ---- a pool that fills up ------------------------------------------------------------------------


@pytest.fixture
def small(engine: Path, home: Home, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose pool is as small as one can be made to be useful."""
    folder = tempfile.mkdtemp(prefix="waypoint-small-", dir="/var/tmp")
    watch.add_home(Home(Path(folder)))
    with monkeypatch.context() as environment:
        environment.setenv("WAYPOINT_POOL_SIZE", "400M")
        waypoint.Client(folder).call("ping")
    yield Home(Path(folder))
    waypoint.Client(folder).call("daemon_stop", {"sessions": True})
    deadline = time.monotonic() + 5
    while not close_pool(Path(folder)):  # a box that was just ended may still be letting go of it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert watch.remains(Home(Path(folder))) == []
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_pool_that_fills_up(small: Home) -> None:
    client = waypoint.Client(small.path)
    assert client.call("daemon_status")["pool"]["total_bytes"] == 400 * MIB
    session = waypoint.session("t", home=small.path)

    def checkpoint() -> Any:
        return client.call("checkpoint", {"session": "t", "intent": "mine"})

    def percent() -> float:
        return float(client.call("du")["pool"]["percent"])

    def fill_to(wanted: float) -> None:
        pool = client.call("du")["pool"]
        missing = (pool["used_bytes"] + pool["free_bytes"]) * wanted / 100 - pool["used_bytes"]
        random_file(session, f"/tmp/mine-{wanted}", int(missing / MIB) + 1)

    def settled() -> list[Any]:
        """The points, once nothing more goes in the background."""
        time.sleep(1.5)
        client.call("prune")
        return list(client.call("log", {"session": "t"})["checkpoints"])

    assert checkpoint()["warnings"] == []
    # Points that Waypoint takes by itself, each with 10 MiB of its own.
    for _ in range(12):
        random_file(session, "/tmp/changing", 10)
        session.restore("c1")
    kept = settled()
    assert len([point for point in kept if point["kind"] == "safety"]) == 12, "there is room for all of them"

    fill_to(81)
    (warning,) = checkpoint()["warnings"]
    assert "% full" in warning
    assert "forgetting old points" in warning
    assert client.call("daemon_status")["warnings"] == [warning]
    mine = [point["label"] for point in settled() if point["kind"] == "manual"]

    # Fuller still: old automatic points go, the newest five and what people took stay.
    fill_to(91)
    told = checkpoint()["warnings"]
    left = settled()
    automatic = [point["label"] for point in left if point["kind"] == "safety"]
    assert 5 <= len(automatic) < 12
    assert automatic == [point["label"] for point in kept if point["kind"] == "safety"][-len(automatic) :]
    assert set(mine) < {point["label"] for point in left}
    told += client.call("daemon_status")["warnings"]
    assert any("automatic points were forgotten" in warning for warning in told)
    assert percent() < 90

    # A process too large for what is left: refused before it is touched.
    program = "import os, time; x = os.urandom(300 << 20); open('/tmp/ready', 'w').close(); time.sleep(1000)"
    session.run(f'python3 -c "{program}" & until [ -e /tmp/ready ]; do sleep 0.05; done').check()
    with pytest.raises(NoSpace, match="the session goes on untouched") as refused:
        checkpoint()
    assert "s.forget(" in refused.value.hint
    assert refused.value.details["need_bytes"] > refused.value.details["free_bytes"]
    until(lambda: not list(small.staging.iterdir()))  # files of the base are kept in the background
    automatic = [point for point in settled() if point["kind"] == "safety"]
    assert len(automatic) == 5, "all that could go went before it was refused"
    assert session.run("jobs -r | wc -l; echo fine").output == "1\nfine\n"

    # With the process gone and room made, everything works again.
    session.run("kill %1; wait; rm /tmp/mine-*")
    client.call("forget", {"session": "t", "policy": {"keep_last": 1}})
    client.call("prune", {"auto": True})
    assert checkpoint()["warnings"] == []


@pytest.mark.parametrize("size", ["lots", "12", "-1G"])
def test_a_size_that_is_none_is_refused(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("WAYPOINT_POOL_SIZE", size)
    with pytest.raises(UsageError):
        waypoint.Client(tmp_path / "home").call("ping")


# ---- measuring, without sessions -----------------------------------------------------------------


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    yield open_pool(tmp_path / "home", size_bytes=512 * MIB, kind="btrfs")
    assert close_pool(tmp_path / "home")


class Volume:
    """A tree that is written, and its points."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.path = pool, pool.root / "sessions" / "volume"
        pool.create(self.path)

    def write(self, name: str, size_mib: float) -> None:
        (self.path / name).write_bytes(os.urandom(int(size_mib * MIB)))

    def point(self, name: str) -> Path:
        folder = self.pool.root / "checkpoints" / name
        folder.mkdir()
        self.pool.snapshot(self.path, folder / "files", readonly=True)
        return folder / "files"


def data(pool: Pool, *trees: Growth) -> float:
    pool.sync()
    pool.reclaim()
    found = extents.freed(trees, seconds=10)
    assert found.exact
    return found.data_bytes / MIB


def test_only_what_nobody_else_has_is_counted(pool: Pool) -> None:
    volume = Volume(pool)
    volume.write("changes", 3)
    volume.write("stays", 2)
    first = volume.point("first")
    volume.write("changes", 4)
    volume.write("passing", 1)
    second = volume.point("second")
    (volume.path / "passing").unlink()
    third = volume.point("third")
    assert data(pool, Growth(first, None, (second,))) == 3
    assert data(pool, Growth(second, first, (third,))) == 1
    assert data(pool, Growth(third, second, (volume.path,))) == 0
    assert data(pool, Growth(first, None, (third,)), Growth(second, first, (third,))) == 4
    everything = (Growth(first), Growth(second, first), Growth(third, second), Growth(volume.path, third))
    assert data(pool, *everything) == 10
    assert data(pool, Growth(second)) == 1, "what is known of the others only saves time"


def test_a_clone_is_found_wherever_it_is(pool: Pool) -> None:
    volume = Volume(pool)
    volume.write("file", 3)
    first = volume.point("first")
    volume.write("file", 1)
    with open(first / "file", "rb") as source, open(volume.path / "clone", "wb") as target:
        assert copytree.clone_file(source.fileno(), target.fileno())
    second = volume.point("second")
    (volume.path / "clone").unlink()
    assert data(pool, Growth(first, None, (second,))) == 0
    assert data(pool, Growth(second, first, (volume.path,))) == 0
    pool.delete(first.parent)
    assert data(pool, Growth(second, None, (volume.path,))) == 3


def test_an_extent_goes_as_a_whole_or_not_at_all(pool: Pool) -> None:
    volume = Volume(pool)
    volume.write("file", 8)
    first = volume.point("first")
    os.truncate(volume.path / "file", 4096)
    # One block of the eight MiB is still in use: the rest stays with it.
    assert data(pool, Growth(first, None, (volume.path,))) < 8
    before = pool.usage().used_bytes
    expected = extents.freed([Growth(first, None, (volume.path,))]).total_bytes
    pool.delete(first.parent)
    pool.sync()
    pool.reclaim()
    assert abs(before - pool.usage().used_bytes - expected) < MIB / 4


def test_small_files_are_counted_where_they_live(pool: Pool) -> None:
    volume = Volume(pool)
    first = volume.point("first")
    for number in range(3000):
        (volume.path / f"small-{number}").write_bytes(b"x" * 1000)
    second = volume.point("second")
    for number in range(3000):
        (volume.path / f"small-{number}").unlink()
    third = volume.point("third")
    pool.sync()
    pool.reclaim()
    expected = extents.freed([Growth(second, first, (third,))]).total_bytes
    before = pool.usage().used_bytes
    pool.delete(second.parent)
    pool.sync()
    pool.reclaim()
    given_back = before - pool.usage().used_bytes
    assert given_back > 6 * MIB
    assert 0.7 * given_back < expected <= given_back


def test_without_time_it_is_an_estimate(pool: Pool) -> None:
    volume = Volume(pool)
    for number in range(200):
        volume.write(f"file-{number}", 0.05)
    first = volume.point("first")
    pool.sync()
    found = extents.freed([Growth(first), Growth(volume.path, first)], seconds=0)
    assert not found.exact
    assert 0.9 < found.data_bytes / (200 * 53248) < 1.1


def test_shared_blocks_are_told_apart_without_subvolumes(pool: Pool) -> None:
    folder = pool.root / "staging" / "folder"
    folder.mkdir()
    (folder / "one").write_bytes(os.urandom(2 * MIB))
    (folder / "other").write_bytes(os.urandom(MIB))
    pool.sync()
    assert extents.freed_by_walk([folder]).data_bytes == 3 * MIB
    shutil.copyfile(folder / "one", pool.root / "staging" / "copy")
    assert pool.dedupe(folder / "one", pool.root / "staging" / "copy") == 2 * MIB
    assert extents.freed_by_walk([folder]).data_bytes == MIB
    assert extents.freed_by_walk([pool.root / "nowhere"]) == extents.Space()
