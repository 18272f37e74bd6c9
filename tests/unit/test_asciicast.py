"""The history of a terminal as an asciicast."""

from __future__ import annotations

import base64
import json
from typing import Any

from waypoint.agent.asciicast import cast
from waypoint.model import Event, EventKind


def event(kind: EventKind, at: float, **body: Any) -> Event:
    moment = f"2026-11-16T10:00:{at:06.3f}Z"
    return Event(id=1, session="t", parent=None, at=moment, kind=kind, actor="person", body=body)


def lines(*events: Event) -> list[Any]:
    return [json.loads(line) for line in cast(events, title="t")]


def test_the_header_says_when_it_began_and_how_large_it_was() -> None:
    head, *_ = lines(event("command", 10, output="x\n", duration_ms=4000, size=[100, 30]))
    assert head["version"] == 3
    assert head["term"] == {"cols": 100, "rows": 30, "type": "xterm-256color"}
    assert head["timestamp"] % 60 == 6


def test_times_are_since_the_line_before() -> None:
    _, *rest = lines(
        event(
            "command",
            10,
            shown="# make\r\n",
            output="one\ntwo\n",
            duration_ms=3000,
            age_ms=2500,
            timing=[[0, 4], [2000, 8]],
            size=[80, 24],
        ),
        event("checkpoint", 10.25, label="c1", name="up", intent="it is up"),
    )
    assert rest == [
        [0.0, "o", "# make\r\n"],
        [0.5, "o", "one\r\n"],
        [2.0, "o", "two\r\n"],
        [0.75, "m", "c1 up it is up"],
    ]


def test_intervals_are_never_negative() -> None:
    _, *rest = lines(
        event("output", 10, output="late\n", size=[80, 24]),
        event("command", 10.1, shown="# vim", output="", duration_ms=9000, size=[80, 24]),
        event("checkpoint", 11, label="c1"),
    )
    assert [interval for interval, *_ in rest] == [0.0, 0.0, 1.0]


def test_a_new_size_comes_before_the_output_in_it() -> None:
    _, *rest = lines(
        event("output", 1, output="a\n", size=[80, 24]), event("output", 2, output="b\n", size=[120, 40])
    )
    assert [(code, data) for _, code, data in rest] == [("o", "a\r\n"), ("r", "120x40"), ("o", "b\r\n")]


def test_characters_are_not_split_and_invalid_bytes_are_replaced() -> None:
    data = "é".encode()
    _, *rest = lines(
        event("output", 1, output="é", timing=[[0, 1], [50, 2]], raw=True, size=[80, 24]),
        event("output", 2, output="?", base64=base64.b64encode(b"\xff" + data).decode(), size=[80, 24]),
    )
    assert [text for _, _, text in rest] == ["é", "\ufffdé"]


def test_redacted_output_comes_at_once() -> None:
    body = {"output": "[redacted]\nx\n", "timing": [[0, 3], [900, 5]], "redacted": 1, "size": [80, 24]}
    _, *rest = lines(event("command", 2, duration_ms=1000, **body))
    assert [text for _, _, text in rest] == ["[redacted]\r\nx\r\n"]


def test_a_program_beside_the_shell_is_left_out() -> None:
    assert len(lines(event("command", 2, output="x\n", beside=True))) == 1


def test_without_events_there_is_a_header() -> None:
    [head] = lines()
    assert head["version"] == 3
