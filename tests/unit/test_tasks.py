"""Tasks: nesting, order, and what differs between two points."""

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


def plan(*titles: str) -> Tasks:
    result: Tasks = ()
    for title in titles:
        under, _, name = title.rpartition("/")
        result, _ = tasks.add(result, name, under or None)
    return result


def change(before: Tasks, name: str, state: TaskState) -> Tasks:
    return tasks.change(before, name, state, now=NOW)[0]


def test_tasks_come_before_their_subtasks() -> None:
    result = plan("a", "b", "1/a1", "1/a2", "1.1/deep", "b/b1")
    assert [(task.id, task.title) for task in result] == [
        ("1", "a"),
        ("1.1", "a1"),
        ("1.1.1", "deep"),
        ("1.2", "a2"),
        ("2", "b"),
        ("2.1", "b1"),
    ]
    assert tasks.load(tasks.dump(result)) == result


def test_a_task_is_found_by_number_or_by_a_unique_title() -> None:
    result = plan("a", "b", "1/b")
    assert tasks.find(result, " 1.1 ").title == "b"
    assert tasks.find(result, "a").id == "1"
    with pytest.raises(UsageError, match="2 tasks are called 'b'"):
        tasks.find(result, "b")
    with pytest.raises(NotFound) as missing:
        tasks.find(result, "c")
    assert '1.1 "b"' in missing.value.hint


@pytest.mark.parametrize("title", ["", " \n ", "x" * 501])
def test_a_title_is_neither_empty_nor_too_long(title: str) -> None:
    with pytest.raises(UsageError):
        tasks.add((), title)


def test_tasks_are_nested_at_most_ten_deep() -> None:
    result, parent = plan("1"), "1"
    for _ in range(9):
        result, subtask = tasks.add(result, "deeper", parent)
        parent = subtask.id
    with pytest.raises(UsageError, match="ten levels deep"):
        tasks.add(result, "too deep", parent)


def test_a_task_is_not_done_while_a_subtask_is_open() -> None:
    result = change(plan("a", "1/one", "1/two"), "1.1", "completed")
    with pytest.raises(UsageError, match=r'1\.2 "two" is open'):
        change(result, "1", "completed")
    result = change(change(result, "1.2", "skipped"), "1", "completed")
    assert tasks.next_open(result) is None


def test_starting_a_task_starts_its_parents() -> None:
    result = change(plan("a", "1/one", "1.1/deep"), "1.1.1", "in_progress")
    assert {task.state for task in result} == {"in_progress"}
    again = change(change(result, "1.1.1", "failed"), "1.1.1", "in_progress")
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
def test_the_next_open_task(states: dict[str, TaskState], expected: str | None) -> None:
    result = plan("a", "b", "1/one", "1/two")
    for number, state in states.items():
        result = change(result, number, state)
    task = tasks.next_open(result)
    assert (task.id if task else None) == expected


def test_differences_in_words() -> None:
    then = plan("add payments", "wire webhook", "docs")
    now = change(change(change(then, "1", "completed"), "2", "completed"), "3", "in_progress")
    now, _ = tasks.add(now, "more")
    assert list(describe_tasks(tasks.differences(now, then))) == [
        '2 completed → pending: "add payments", "wire webhook"',
        '1 in progress → pending: "docs"',
        '1 pending → not planned: "more"',
    ]
    assert tasks.differences(now, now) == ()


def test_the_prompt_says_what_is_done_and_what_comes_next() -> None:
    result = change(change(plan("a", "b", "2/part"), "1", "completed"), "2.1", "in_progress")
    task = tasks.next_open(result)
    text = write_prompt(
        SessionStatus(
            session="work",
            task=task,
            tasks=result,
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
    result: Tasks = ()
    for at, nested in steps:
        shallow = [task for task in result if task.id.count(".") < 8]
        parent = shallow[at % len(shallow)].id if nested and shallow else None
        result, _ = tasks.add(result, f"t{at}", parent)
    numbers = [[int(part) for part in task.id.split(".")] for task in result]
    assert len({task.id for task in result}) == len(result)
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
def test_calls_and_results_of_tools_are_described(kind: EventKind, body: dict[str, Any], line: str) -> None:
    assert (
        describe_event(Event(id=1, session="work", parent=None, at=NOW, kind=kind, actor="agent", body=body))
        == line
    )
