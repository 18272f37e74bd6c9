"""Tasks: nested, in order, and what stands otherwise from one point to another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.agent import tasks
from waypoint.agent.tasks import Tasks
from waypoint.errors import NotFound, UsageError
from waypoint.model import Event, EventKind, TaskState
from waypoint.text.plan import describe_tasks
from waypoint.text.resume import SessionStatus, describe_event, write_prompt

NOW = "2026-11-16T10:00:00.000Z"


def planned(*titles: str) -> Tasks:
    found: Tasks = ()
    for title in titles:
        under, _, name = title.rpartition("/")
        found, _ = tasks.add(found, name, under or None)
    return found


def become(found: Tasks, given: str, state: TaskState) -> Tasks:
    return tasks.change(found, given, state, now=NOW)[0]


def test_tasks_stand_before_what_is_below_them() -> None:
    found = planned("a", "b", "1/a1", "1/a2", "1.1/deep", "b/b1")
    assert [(task.id, task.title) for task in found] == [
        ("1", "a"),
        ("1.1", "a1"),
        ("1.1.1", "deep"),
        ("1.2", "a2"),
        ("2", "b"),
        ("2.1", "b1"),
    ]
    assert tasks.load(tasks.dump(found)) == found


def test_a_task_is_found_by_number_or_by_the_title_that_only_it_has() -> None:
    found = planned("a", "b", "1/b")
    assert tasks.find(found, " 1.1 ").title == "b"
    assert tasks.find(found, "a").id == "1"
    with pytest.raises(UsageError, match="2 tasks are called 'b'"):
        tasks.find(found, "b")
    with pytest.raises(NotFound) as missing:
        tasks.find(found, "c")
    assert '1.1 "b"' in missing.value.hint


@pytest.mark.parametrize("title", ["", " \n ", "x" * 501])
def test_a_title_says_something_and_not_too_much(title: str) -> None:
    with pytest.raises(UsageError):
        tasks.add((), title)


def test_tasks_are_nested_at_most_ten_deep() -> None:
    found, parent = planned("1"), "1"
    for _ in range(9):
        found, made = tasks.add(found, "deeper", parent)
        parent = made.id
    with pytest.raises(UsageError, match="ten deep"):
        tasks.add(found, "too deep", parent)


def test_a_task_is_not_done_while_something_below_it_is_open() -> None:
    found = become(planned("a", "1/one", "1/two"), "1.1", "completed")
    with pytest.raises(UsageError, match=r'1\.2 "two" is open'):
        become(found, "1", "completed")
    found = become(become(found, "1.2", "skipped"), "1", "completed")
    assert tasks.next_open(found) is None


def test_what_is_begun_begins_what_it_is_a_part_of() -> None:
    found = become(planned("a", "1/one", "1.1/deep"), "1.1.1", "in_progress")
    assert {task.state for task in found} == {"in_progress"}
    again = become(become(found, "1.1.1", "failed"), "1.1.1", "in_progress")
    task = tasks.find(again, "1.1.1")
    assert (task.state, task.ended_at) == ("in_progress", None)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({}, "1.1"),
        ({"1.1": "completed"}, "1.2"),
        ({"1.1": "completed", "1.2": "failed"}, "1"),
        ({"2": "in_progress"}, "2"),
        ({"1.2": "in_progress"}, "1.2"),
        ({"1.2": "in_progress", "1.1": "in_progress"}, "1.1"),
        ({"1": "in_progress"}, "1.1"),
        ({"1.1": "skipped", "1.2": "skipped", "1": "skipped", "2": "completed"}, None),
    ],
)
def test_the_first_that_is_not_done(states: dict[str, TaskState], expected: str | None) -> None:
    found = planned("a", "b", "1/one", "1/two")
    for number, state in states.items():
        found = become(found, number, state)
    task = tasks.next_open(found)
    assert (task.id if task else None) == expected


def test_what_stands_otherwise_in_words() -> None:
    then = planned("add payments", "wire webhook", "docs")
    now = become(become(become(then, "1", "completed"), "2", "completed"), "3", "in_progress")
    now, _ = tasks.add(now, "more")
    assert list(describe_tasks(tasks.differences(now, then))) == [
        '2 completed → pending: "add payments", "wire webhook"',
        '1 in progress → pending: "docs"',
        '1 pending → not planned: "more"',
    ]
    assert tasks.differences(now, now) == ()


def test_the_prompt_says_what_is_done_and_what_comes_next() -> None:
    found = become(become(planned("a", "b", "2/part"), "1", "completed"), "2.1", "in_progress")
    task = tasks.next_open(found)
    text = write_prompt(
        SessionStatus(
            session="work",
            task=task,
            tasks=found,
            point=None,
            card=None,
            foreground="make all",
            effects=["git push"],
        )
    )
    assert "Its shell is busy: `make all` is still running." in text
    assert "Task 2.1 was begun and is not finished: part (part of 2 'b')" in text
    assert "Tasks, 1 of 3 completed [claimed]:\n✔ 1 a\n▸ 2 b\n  ▸ 2.1 part" in text
    assert "do not do it twice:\n- git push" in text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30))
def test_numbers_are_never_used_twice_and_children_follow_their_parents(
    steps: list[tuple[int, bool]],
) -> None:
    found: Tasks = ()
    for at, nested in steps:
        shallow = [task for task in found if task.id.count(".") < 8]
        parent = shallow[at % len(shallow)].id if nested and shallow else None
        found, _ = tasks.add(found, f"t{at}", parent)
    numbers = [[int(part) for part in task.id.split(".")] for task in found]
    assert len({task.id for task in found}) == len(found)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("kind", "body", "line"),
    [
        ("tool_call", {"name": "edit", "arguments": {"a": True}}, 'call edit {"a": true}'),
        ("tool_result", {"name": "edit", "content": "ok"}, "result of edit: ok"),
        ("tool_result", {"call": "1", "content": "ok"}, "result: ok"),
        ("tool_result", {"content": {"code": None}, "error": True}, 'error: {"code": null}'),
    ],
)
def test_what_tools_said_is_told_as_they_said_it(kind: EventKind, body: dict[str, Any], line: str) -> None:
    assert (
        describe_event(Event(id=1, session="work", parent=None, at=NOW, kind=kind, actor="agent", body=body))
        == line
    )
