"""The trajectory: a tree of events, moved with its sessions, written in order."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waypoint.agent.trajectory import Stream, Trajectory
from waypoint.history.redaction import MASK, Redactor
from waypoint.model import BoxOptions, Checkpoint
from waypoint.store import Store
from waypoint.store.events import NewEvent, make_blob
from waypoint.store.points import AgentState, NewPoint


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    result = Store(tmp_path / "waypoint.db")
    yield result
    result.close()


@pytest.fixture
def trajectory(store: Store) -> Iterator[Trajectory]:
    result = Trajectory(store)
    yield result
    result.stop()


def add(store: Store, session: str = "a", head: str | None = None) -> str:
    store.sessions.add(session, session, BoxOptions(), box=f"box-{session}", head=head)
    return session


def say(store: Store, session: str, *texts: str) -> None:
    store.events.append(session, [NewEvent(kind="message", body={"text": text}) for text in texts])


def take(store: Store, session: str, point: str, state: AgentState | None = None) -> Checkpoint:
    return store.points.add(
        NewPoint(
            id=point,
            session=session,
            number=store.points.next_number(session),
            name=None,
            intent=point,
            kind="manual",
            parent=None,
            created_at=time.time(),
            pause_ms=1,
            total_ms=1,
            size_bytes=1,
            processes=1,
            files_only=False,
            coverage=(),
            state=state,
        )
    )


def texts_of(store: Store, position: int | None) -> list[str]:
    """A trajectory in short: texts, and what kinds of things happened between them."""
    return [event.body.get("text", event.kind) for event in store.events.trace(position)]


def tip(store: Store, session: str) -> int | None:
    row = store.sessions.find(session)
    assert row
    return row.tip


def test_a_point_pins_what_led_to_it(store: Store) -> None:
    add(store)
    say(store, "a", "one", "two")
    point = take(store, "a", "p")
    say(store, "a", "three")
    assert texts_of(store, point.position) == ["one", "two", "checkpoint"]
    assert texts_of(store, tip(store, "a")) == ["one", "two", "checkpoint", "three"]


def test_a_restore_goes_back_in_the_trajectory_and_the_rest_stays_readable(store: Store) -> None:
    add(store)
    say(store, "a", "one")
    point = take(store, "a", "p")
    say(store, "a", "a mistake")
    safety = take(store, "a", "safety")
    store.operations.record_move("a", "restore", box="b", target="p", before="safety")
    say(store, "a", "better")
    assert texts_of(store, tip(store, "a")) == ["one", "checkpoint", "restored", "better"]
    assert texts_of(store, safety.position) == ["one", "checkpoint", "a mistake", "checkpoint"]
    assert texts_of(store, point.position) == ["one", "checkpoint"]
    everything = [event.body.get("text", event.kind) for event in store.events.all("a")]
    assert everything == ["one", "checkpoint", "a mistake", "checkpoint", "restored", "better"]


def test_a_fork_begins_with_what_led_to_its_point(store: Store) -> None:
    add(store)
    say(store, "a", "one")
    take(store, "a", "p")
    say(store, "a", "two")
    add(store, "b", head="p")
    say(store, "b", "other")
    assert texts_of(store, tip(store, "b")) == ["one", "checkpoint", "forked", "other"]
    assert texts_of(store, tip(store, "a")) == ["one", "checkpoint", "two"]
    [one, *_, other] = store.events.trace(tip(store, "b"))
    assert (one.session, other.session) == ("a", "b")


def test_removing_a_session_leaves_what_a_fork_builds_on(store: Store) -> None:
    add(store)
    say(store, "a", "one")
    take(store, "a", "p")
    say(store, "a", "only mine")
    add(store, "b", head="p")
    store.sessions.remove("a")
    assert texts_of(store, tip(store, "b")) == ["one", "checkpoint", "forked"]
    assert [event.body.get("text", event.kind) for event in store.events.all("a")] == ["one", "checkpoint"]
    store.sessions.remove("b")
    assert store.events.all("a") == store.events.all("b") == []


def test_a_trace_can_be_limited_and_filtered(store: Store) -> None:
    add(store)
    say(store, "a", *(str(number) for number in range(10)))
    store.events.append("a", [NewEvent(kind="note", body={"text": "note"})])
    say(store, "a", "end")
    position = tip(store, "a")
    assert [event.body["text"] for event in store.events.trace(position, limit=3)] == ["9", "note", "end"]
    assert [event.body["text"] for event in store.events.trace(position, kinds=["note"], limit=3)] == ["note"]
    seen = store.events.trace(position)[-3].id
    assert [event.body["text"] for event in store.events.trace(position, after=seen)] == ["note", "end"]


def test_equal_blobs_are_stored_once_and_removed_with_their_last_use(store: Store, tmp_path: Path) -> None:
    add(store)
    large = make_blob(b"line of output\n" * 10_000)
    assert len(large.data) < 1000
    store.events.append("a", [NewEvent(kind="output", body={}, blob=large) for _ in range(3)])
    state = AgentState(kind="bytes", blob=make_blob(b"\0state"), version="1")
    take(store, "a", "p", state)
    assert store.events.blob(large.hash) == b"line of output\n" * 10_000
    assert store.points.agent_state("p") == ("bytes", b"\0state")
    assert store.events.sweep_blobs() == 0
    store.points.remove("p")
    assert store.events.sweep_blobs() == len(state.blob.data)
    store.sessions.remove("a")
    assert store.events.sweep_blobs() == len(large.data)
    with sqlite3.connect(tmp_path / "waypoint.db") as database:
        assert database.execute("SELECT count(*) FROM blobs").fetchone() == (0,)


def test_tasks_are_restored_and_forked_with_their_session(store: Store) -> None:
    add(store)
    done = [NewEvent(kind="task", body={})]
    store.sessions.set_tasks("a", b'["one"]', done)
    take(store, "a", "p")
    store.sessions.set_tasks("a", b'["one", "two"]', done)
    assert store.sessions.tasks("a") == b'["one", "two"]'
    assert store.points.tasks("p") == b'["one"]'
    add(store, "b", head="p")
    assert store.sessions.tasks("b") == b'["one"]'
    store.operations.record_move("a", "restore", box="x", target="p", before=None)
    assert store.sessions.tasks("a") == b'["one"]'


class Expected(NamedTuple):
    """What a session should contain: the model that the database is compared with."""

    line: tuple[str, ...]
    tasks: bytes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["say", "tasks", "take", "restore", "fork", "remove", "forget"]),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
@example([("take", 0, 0), ("take", 0, 0), ("fork", 0, 1), ("restore", 1, 0), ("remove", 0, 0)])
def test_after_any_operations_a_session_has_the_events_that_led_to_it(
    steps: list[tuple[str, int, int]],
) -> None:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "waypoint.db")
        _play(store, steps)
        store.close()


def _play(store: Store, steps: list[tuple[str, int, int]]) -> None:
    sessions = {add(store, "s0"): Expected((), b"[]")}
    points: dict[str, tuple[str, Expected]] = {}
    for number, (what, a, b) in enumerate(steps):
        name = list(sessions)[a % len(sessions)] if sessions else ""
        point = list(points)[b % len(points)] if points else ""
        known = sessions.get(name, Expected((), b"[]"))
        if what == "say" and name:
            say(store, name, f"m{number}")
            sessions[name] = known._replace(line=(*known.line, f"m{number}"))
        elif what == "tasks" and name:
            tasks = b'["%d"]' % number
            store.sessions.set_tasks(name, tasks, [NewEvent(kind="task", body={})])
            sessions[name] = Expected((*known.line, "task"), tasks)
        elif what == "take" and name:
            take(store, name, f"p{number}", AgentState(kind="bytes", blob=make_blob(b"%d" % (number % 3))))
            sessions[name] = known._replace(line=(*known.line, "checkpoint"))
            points[f"p{number}"] = (name, sessions[name])
        elif what == "restore" and name and point:
            store.operations.record_move(name, "restore", box=f"b{number}", target=point, before=None)
            then = points[point][1]
            sessions[name] = then._replace(line=(*then.line, "restored"))
        elif what == "fork" and point:
            then = points[point][1]
            sessions[add(store, f"s{number + 1}", head=point)] = then._replace(line=(*then.line, "forked"))
        elif what == "remove" and name:
            store.sessions.remove(name)
            del sessions[name]
            points = {point_id: entry for point_id, entry in points.items() if entry[0] != name}
        elif what == "forget" and point:
            store.points.remove(point)
            del points[point]
    for name, known in sessions.items():
        assert tuple(texts_of(store, tip(store, name))) == known.line
        assert store.sessions.tasks(name) == known.tasks
    for point, (_, then) in points.items():
        stored = store.points.find(point)
        assert stored
        assert tuple(texts_of(store, stored.position)) == then.line
        assert store.points.tasks(point) == then.tasks
        assert store.points.agent_state(point) == ("bytes", b"%d" % (int(point[1:]) % 3))
    store.events.sweep_blobs()
    _consistent(store)


def _consistent(store: Store) -> None:
    """The rules of docs/storage.md that are about events and blobs."""
    events = {row["id"]: row for row in store.database.rows("SELECT * FROM events")}
    for number, row in events.items():
        assert row["parent"] is None or (row["parent"] < number and row["parent"] in events)
    ends = [row["at"] for row in store.database.rows("SELECT tip AS at FROM sessions")]
    ends += [row["at"] for row in store.database.rows("SELECT position AS at FROM checkpoints")]
    reached: set[int] = set()
    for end in ends:
        while end is not None and end not in reached:
            reached.add(end)
            end = events[end]["parent"]  # noqa: PLW2901
    sessions = {row["id"] for row in store.database.rows("SELECT id FROM sessions")}
    assert all(number in reached or row["session"] in sessions for number, row in events.items())
    used = {row["agent_state"] for row in store.database.rows("SELECT agent_state FROM checkpoints")}
    assert {row["hash"] for row in store.database.rows("SELECT hash FROM blobs")} == used - {None}


# ---- streams -------------------------------------------------------------------------------------


def open_stream(trajectory: Trajectory, session: str = "a", *secrets: str) -> Stream:
    return trajectory.open(session, lambda: Redactor(secrets))


def test_record_returns_when_its_event_is_written_after_all_earlier_ones(
    store: Store, trajectory: Trajectory
) -> None:
    add(store)
    stream = open_stream(trajectory)
    stream.add("message", {"text": "before the session had a row"})
    trajectory.adopt(stream)
    for number in range(100):
        stream.add("message", {"text": str(number)})
    trajectory.record("a", "message", {"text": "recorded"})
    texts = texts_of(store, tip(store, "a"))
    assert texts == ["before the session had a row", *map(str, range(100)), "recorded"]


def test_events_after_the_freeze_come_after_the_point(store: Store, trajectory: Trajectory) -> None:
    add(store)
    stream = open_stream(trajectory)
    trajectory.adopt(stream)
    stream.add("message", {"text": "before"})
    stream.hold()
    stream.add("message", {"text": "after"})
    recording = threading.Thread(
        target=trajectory.record, args=("a", "message", {"text": "recorded meanwhile"})
    )
    recording.start()
    stream.flush()
    assert texts_of(store, tip(store, "a")) == ["before"]
    point = take(store, "a", "p")
    stream.release()
    recording.join(30)
    assert texts_of(store, point.position) == ["before", "checkpoint"]
    assert texts_of(store, tip(store, "a")) == ["before", "checkpoint", "after", "recorded meanwhile"]


def test_events_of_the_old_box_are_dropped_after_a_handover(store: Store, trajectory: Trajectory) -> None:
    add(store)
    old = open_stream(trajectory)
    trajectory.adopt(old)
    point = take(store, "a", "p")
    new = open_stream(trajectory)
    new.add("message", {"text": "the new box speaks"})
    old.add("message", {"text": "abandoned"})
    with trajectory.handover(new):
        old.add("message", {"text": "too late"})
        store.operations.record_move("a", "restore", box="b", target="p", before=None)
    trajectory.record("a", "message", {"text": "recorded"})
    old.close()
    assert texts_of(store, tip(store, "a")) == ["checkpoint", "restored", "the new box speaks", "recorded"]
    assert point.position
    abandoned = [event.body.get("text") for event in store.events.all("a") if event.parent == point.position]
    assert abandoned == ["abandoned", None]


def test_a_handover_that_fails_changes_nothing(store: Store, trajectory: Trajectory) -> None:
    add(store)
    old = open_stream(trajectory)
    trajectory.adopt(old)
    new = open_stream(trajectory)
    new.add("message", {"text": "never"})

    def fail() -> None:
        with trajectory.handover(new):
            old.add("message", {"text": "meanwhile"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    new.close()
    trajectory.record("a", "message", {"text": "recorded"})
    assert texts_of(store, tip(store, "a")) == ["meanwhile", "recorded"]


def test_secrets_are_removed_before_an_event_is_written(store: Store, trajectory: Trajectory) -> None:
    add(store)
    trajectory.adopt(open_stream(trajectory, "a", "correct-horse-1"))
    body = {"text": "it is correct-horse-1", "env": {"API_TOKEN": "k29dk20dk2m4"}}
    trajectory.record("a", "message", body, data=b"\xff correct-horse-1\n")
    [event] = store.events.trace(tip(store, "a"))
    assert event.body == {"text": f"it is {MASK}", "env": {"API_TOKEN": MASK}, "redacted": 3}
    assert event.blob
    assert store.events.blob(event.blob) == f"\udcff {MASK}\n".encode(errors="surrogateescape")


def test_the_key_of_an_effect_is_not_redacted_as_a_secret(store: Store, trajectory: Trajectory) -> None:
    add(store)
    trajectory.adopt(open_stream(trajectory, "a", "correct-horse-1"))
    trajectory.record("a", "effect", {"command": "git push", "key": "git-push:2e4650e524a5"})
    trajectory.record("a", "effect", {"command": "curl", "key": "order correct-horse-1"})
    push, request = store.events.trace(tip(store, "a"))
    assert push.body == {"command": "git push", "key": "git-push:2e4650e524a5"}
    assert request.body == {"command": "curl", "key": f"order {MASK}", "redacted": 1}


def test_the_last_events_of_a_box_are_written_without_its_secrets(
    store: Store, trajectory: Trajectory
) -> None:
    add(store)
    redactors = iter([Redactor(["correct-horse-1"]), None])
    stream = trajectory.open("a", lambda: next(redactors))
    trajectory.adopt(stream)
    trajectory.record("a", "message", {"text": "one"})
    stream.add("message", {"text": "the last words: correct-horse-1"})
    stream.close()
    assert texts_of(store, tip(store, "a")) == ["one", f"the last words: {MASK}"]


def test_an_event_of_a_session_that_does_not_run_is_recorded(store: Store, trajectory: Trajectory) -> None:
    add(store)
    assert trajectory.record("a", "note", {"text": "looked at it"}) == tip(store, "a")
    assert trajectory.record("gone", "note", {"text": "nobody"}) == 0
