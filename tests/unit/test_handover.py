"""A point that another session needs outlives its own session, with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import World

from waypoint import errors
from waypoint.core import pointfile
from waypoint.core.capture import Wish
from waypoint.history.handover import Owner, plan
from waypoint.model import BoxOptions, Checkpoint, Size
from waypoint.store.contacts import TrafficCount
from waypoint.store.sessions import SessionRow
from waypoint.terminal.terminal import Terminal


def point(name: str, session: str, parent: str | None = None, called: str | None = None) -> Checkpoint:
    return Checkpoint(
        id=name,
        name=called,
        intent="",
        session=session,
        label="c1",
        parent=parent,
        created_at="2026-11-16T10:00:00Z",
        kind="manual",
        pause_ms=0,
        total_ms=0,
        size_bytes=0,
        processes=0,
    )


def owner(name: str, head: str | None, forked_from: str | None = None, **more: object) -> Owner:
    fields = {"options": BoxOptions(), "beginning": "b", "next_number": 5, "tags": {}} | more
    return Owner(id=f"{name}-id", name=name, head=head, forked_from=forked_from, **fields)  # type: ignore[arg-type]


def test_the_line_that_leads_to_where_another_session_stands_is_handed_over() -> None:
    points = [
        point("a", "m"),
        point("b", "f", "a"),
        point("c", "f", "b"),
        point("side", "f", "b"),
        point("later", "f", "c"),
    ]
    found = plan([owner("m", "c"), owner("f", "later", "a")], points, {"f-id"})
    assert [(one.point.id, one.session, one.number, one.why) for one in found] == [
        ("b", "m", 5, "it has led to where m is"),
        ("c", "m", 6, "m stands on it"),
    ]


def test_what_a_session_was_forked_from_or_has_grown_from_or_tagged_is_handed_over() -> None:
    points = [point("a", "m"), point("b", "m"), point("c", "m"), point("d", "m"), point("x", "f", "b")]
    found = plan([owner("m", "d"), owner("f", None, "a", tags={"kept": "c"})], points, {"m-id"})
    assert {one.point.id: one.why for one in found} == {
        "a": "f was forked from it",
        "b": "f:c1 grew from it",
        "c": "f calls it kept",
    }


def test_nothing_is_handed_over_to_a_session_that_goes_too() -> None:
    points = [point("a", "m"), point("b", "f", "a")]
    owners = [owner("m", "b"), owner("f", "b", "a"), owner("other", None)]
    assert plan(owners, points, {"m-id", "f-id"}) == []


def test_a_point_goes_to_the_session_whose_boxes_are_like_its_own() -> None:
    owners = [
        owner("old", "a", options=BoxOptions(net="none")),
        owner("new", "a"),
        owner("f", "a"),
    ]
    (found,) = plan(owners, [point("a", "f")], {"f-id"})
    assert found.session == "new"


def test_a_name_that_is_taken_says_where_it_came_from() -> None:
    points = [
        point("mine", "m", called="winner"),
        point("w", "f", called="winner"),
        point("x", "f", "w", called="f.winner"),
        point("t", "f", "x", called="tagged"),
    ]
    tags = {"tagged": "t", "best": "mine"}
    owners = [owner("m", "t", tags=tags), owner("f", "t", tags={"best": "w", "new": "w"})]
    found = plan(owners, points, {"f-id"})
    assert [one.name for one in found] == ["f.winner", "f.f.winner", "tagged"]
    assert [(tag.name, tag.becomes) for tag in found[0].tags] == [("best", "f.best"), ("new", "new")]


# ---- in a home -----------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(Terminal, "_foreground_group", lambda _: None)  # there is no process in it
    made = World(tmp_path)
    yield made
    made.close()


pytestmark = pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")


def row(world: World, name: str) -> SessionRow:
    return world.app.registry.find(name)


@pytest.fixture
def best_of_n(world: World) -> Checkpoint:
    """`m` was forked, and stands on the winner of its fork `m-1`, which has gone on."""
    app = world.app
    app.sessions.new("m", world.options, Size())
    app.capture.checkpoint(row(world, "m"), Wish("one", name="one"))
    app.fork.grow(row(world, "m"), "one")
    app.capture.checkpoint(row(world, "m-1"), Wish("on the way"))
    winner = app.capture.checkpoint(row(world, "m-1"), Wish("won", name="winner"))
    app.capture.checkpoint(row(world, "m-1"), Wish("after it"))
    app.store.points.set_tag(row(world, "m-1").id, "best", winner.id)
    app.store.points.add_note(winner.id, "look at this")
    app.store.points.finish_verdict(
        app.store.points.add_verdict(winner.id, "true"), "passed", exit_code=0, duration_ms=1, output=""
    )
    count = TrafficCount(
        address="192.0.2.1", protocol="tcp", port=80, bytes_out=1, bytes_in=1, first_at=1, last_at=1
    )
    app.store.contacts.count(row(world, "m-1").id, str(row(world, "m-1").box), [count], 2)
    app.store.contacts.assign(row(world, "m-1").id, winner.id)
    app.digests.make(winner.id)
    app.restore.to(row(world, "m"), "m-1:winner")
    world.settle()
    return app.registry.point(row(world, "m"), "m-1:winner")


def test_the_winner_stays_with_all_that_belongs_to_it(world: World, best_of_n: Checkpoint) -> None:
    app = world.app
    card = app.store.points.card(best_of_n.id)
    effects = len(app.journal.trace(row(world, "m")))
    done = app.removals.remove([row(world, "m-1")])
    assert [(one.was, one.checkpoint.session, one.checkpoint.label) for one in done.handed_over] == [
        ("m-1:c1", "m", "c3"),
        ("m-1:c2", "m", "c4"),
    ]
    assert done.forgotten == 1
    world.settle()
    m = row(world, "m")
    now = app.registry.point(m, "winner")
    assert now.id == m.head == app.registry.point(m, "best").id == app.registry.point(m, "@").id
    assert (now.verdict, now.restorable, now.digested) == (
        best_of_n.verdict,
        best_of_n.restorable,
        best_of_n.digested,
    )
    assert app.store.points.card(now.id) == card
    assert [note.text for note in app.store.points.notes(now.id)] == ["look at this", "was m-1:c2"]
    assert app.registry.point(m, "@~2").name == "one", "what led to it is as it was"
    assert len(app.journal.trace(m)) == effects
    assert [contact.address for contact in app.store.contacts.of_points([now.id])] == ["192.0.2.1"]
    content = pointfile.read(world.home.checkpoints / now.id)
    assert content
    assert (content.session.name, content.point.number, content.point.session) == ("m", 4, m.id)
    assert app.check.run(deep=True).violations == ()
    app.restore.to(m, "winner")
    (fork,) = app.fork.grow(m, "winner")
    assert row(world, fork.id).head == now.id
    world.settle()
    assert {path.name for path in world.home.checkpoints.iterdir()} == app.store.points.ids()


def test_the_origin_can_go_too_and_what_led_to_its_fork_stays(world: World, best_of_n: Checkpoint) -> None:
    app = world.app
    app.removals.remove([row(world, "m")])
    world.settle()
    fork = row(world, "m-1")
    assert fork.forked_from == app.registry.point(fork, "one").id
    assert app.registry.point(fork, "one").session == "m-1"
    assert app.check.run(deep=True).violations == ()
    app.removals.remove([fork])
    world.settle()
    assert app.store.points.ids() == set()
    assert list(world.home.beginnings.iterdir()) == []


def test_a_plan_says_the_same_and_changes_nothing(world: World, best_of_n: Checkpoint) -> None:
    rows = [row(world, "m-1")]
    planned = world.app.removals.plan(rows)
    assert row(world, "m-1").state == "live"
    assert world.app.removals.remove(rows) == planned
    assert world.app.removals.plan([row(world, "m")]).handed_over == ()


def test_a_daemon_that_dies_after_it_leaves_the_next_one_to_name_the_folders(
    world: World, best_of_n: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.app.digests, "write_point_file", lambda _: None)
    world.app.removals.remove([row(world, "m-1")])
    world.settle()
    assert world.app.check.run().violations == (), "what is still to be done breaks no rule"
    world.lose_daemon()
    world.start()
    world.settle()
    content = pointfile.read(world.home.checkpoints / best_of_n.id)
    assert content
    assert content.session.name == "m"
    assert world.app.store.points.handed_over() == []
    assert world.app.check.run(deep=True).violations == ()


def test_a_name_of_another_session_is_found_when_it_is_the_only_one(world: World) -> None:
    app = world.app
    app.sessions.new("m", world.options, Size())
    app.capture.checkpoint(row(world, "m"), Wish("one", name="one"))
    app.fork.grow(row(world, "m"), "one", 2)
    app.capture.checkpoint(row(world, "m-1"), Wish("won", name="winner"))
    assert app.registry.point(row(world, "m"), "winner").session == "m-1"
    assert app.registry.find_for(None, "winner").name == "m-1"
    app.capture.checkpoint(row(world, "m-2"), Wish("won too", name="winner"))
    assert app.registry.point(row(world, "m-2"), "winner").session == "m-2", "the own one comes first"
    with pytest.raises(errors.UsageError, match="2 checkpoints") as caught:
        app.registry.point(row(world, "m"), "winner")
    assert "m-1:winner, m-2:winner" in caught.value.hint


def test_a_session_is_stopped_at_its_last_point_and_says_what_would_be_lost(world: World) -> None:
    app = world.app
    app.sessions.new("m", world.options, Size())
    with pytest.raises(errors.UsageError, match="no point"):
        app.sessions.stop(row(world, "m"), discard=True)
    app.capture.checkpoint(row(world, "m"), Wish("one", name="one"))
    (world.home.sessions / str(row(world, "m").box) / "upper" / "lost").write_text("lost")
    with pytest.raises(errors.ConfirmationNeeded, match="since c1"):
        app.sessions.stop(row(world, "m"))
    assert row(world, "m").state == "live"
    session, point = app.sessions.stop(row(world, "m"), discard=True)
    assert (session.state, point.name) == ("stopped", "one")
    world.settle()
    assert list(world.home.sessions.iterdir()) == []
    with pytest.raises(errors.SessionDead, match="is stopped"):
        app.registry.live(row(world, "m"))
    world.lose_daemon()
    world.start()
    assert world.app.registry.describe(row(world, "m")).state == "stopped"
    world.app.restore.to(row(world, "m"), "@")
    assert not (world.home.sessions / str(row(world, "m").box) / "upper" / "lost").exists()
    assert world.app.sessions.stop(row(world, "m"))[0].state == "stopped", "nothing has changed since"
