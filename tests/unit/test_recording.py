"""A recording cuts what a terminal shows into events, and loses nothing of it."""

from __future__ import annotations

import pytest

from waypoint.model import Size
from waypoint.terminal.recording import Recording, TerminalEvent, TimedOutput, record

SIZE = Size(rows=24, columns=80)


@pytest.fixture
def events() -> list[TerminalEvent]:
    return []


@pytest.fixture
def recording(events: list[TerminalEvent]) -> Recording:
    return Recording(events.append, SIZE)


def prompt(recording: Recording) -> None:
    recording.begin_prompt()
    recording.show(b"# ")
    recording.end_prompt()


def test_a_command_with_its_prompt_and_its_output(recording: Recording, events: list[TerminalEvent]) -> None:
    prompt(recording)
    recording.note_typing()
    recording.show(b"ls\r\n")
    recording.begin_command("ls", "/srv", typed=False, actor="agent")
    recording.show(b"a\r\n")
    recording.show(b"b\r\n")
    recording.end_command(0)
    [event] = events
    assert (event.command, event.cwd, event.exit_code, event.actor, event.ended) == (
        "ls",
        "/srv",
        0,
        "agent",
        True,
    )
    assert (event.shown, event.output.data) == (b"# ls\r\n", b"a\r\nb\r\n")
    assert event.duration_ms is not None


def test_what_a_job_prints_at_the_prompt_is_an_event_of_its_own(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    prompt(recording)
    recording.show(b"done\r\n")
    recording.flush_background()
    recording.flush_background()
    recording.note_typing()
    recording.show(b"true\r\n")
    recording.begin_command("true", "/", typed=True)
    recording.end_command(0)
    assert [(event.shown, event.output.data, event.ended) for event in events] == [
        (b"# ", b"done\r\n", False),
        (b"true\r\n", b"", True),
    ]
    assert events[0].actor == "automatic"


def test_a_job_that_prints_all_the_time_makes_few_events_and_loses_nothing(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    prompt(recording)
    for number in range(200):
        recording.show(b"%d\r\n" % number)
        recording.flush_background(paused=True)
    assert len(events) == 20
    recording.flush_background()
    assert b"".join(event.output.data for event in events) == b"".join(b"%d\r\n" % n for n in range(200))


def test_the_echo_of_typing_is_not_output(recording: Recording, events: list[TerminalEvent]) -> None:
    recording.note_typing()  # ahead of the prompt
    prompt(recording)
    recording.show(b"l")
    recording.flush_background()
    recording.show(b"s\r\n")
    recording.begin_command(None, "/", typed=True)
    recording.end_command(0, "ls")
    [event] = events
    assert (event.command, event.typed, event.shown) == ("ls", True, b"# ls\r\n")


def test_a_prompt_that_is_drawn_again_is_not_output(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    prompt(recording)
    recording.show(b"\r# ")
    recording.end_prompt()
    recording.flush_background()
    assert not events


def test_a_command_that_began_before_the_recording_ends_with_the_output_that_was_recorded(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    prompt(recording)
    recording.show(b"over\r\n")
    recording.end_command(0, "make")
    recording.end_command(0)
    [event] = events
    assert (event.command, event.output.data, event.duration_ms) == ("make", b"over\r\n", None)


def test_a_flush_in_the_middle_of_a_command(recording: Recording, events: list[TerminalEvent]) -> None:
    prompt(recording)
    recording.begin_command("make", "/", typed=False)
    recording.show(b"one\r\n")
    recording.flush()
    recording.flush()
    recording.show(b"two\r\n")
    recording.end_command(2)
    assert [(event.command, event.ended, event.output.data) for event in events] == [
        ("make", False, b"one\r\n"),
        ("make", True, b"two\r\n"),
    ]
    assert record(events[0]).body["during"] == "make"


def test_a_flush_keeps_the_prompt_and_the_half_typed_line(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    prompt(recording)
    recording.note_typing()
    recording.show(b"ec")
    recording.flush()
    recording.show(b"ho\r\n")
    recording.begin_command(None, "/", typed=True)
    recording.end_command(0, "echo")
    assert [event.shown for event in events] == [b"# ec", b"ho\r\n"]
    body = record(events[0])
    assert body.kind == "output"
    assert "output" not in body.body


def test_endless_output_is_bounded_and_counts_what_is_left_out(
    recording: Recording, events: list[TerminalEvent]
) -> None:
    recording.begin_command("yes", "/", typed=False)
    for number in range(20_000):
        recording.show(b"%0126d\r\n" % number)
    recording.end_command(0)
    [event] = events
    assert len(event.output.data) < 1 << 20
    notice = f"[waypoint: {event.output.left_out:,} bytes left out here]\r\n".encode()
    start, middle, end = event.output.data.partition(notice)
    assert middle
    assert len(start) - 2 + len(end) + event.output.left_out == 20_000 * 128
    assert event.output.data.startswith(b"%0126d\r\n" % 0)
    assert event.output.data.endswith(b"%0126d\r\n" % 19_999)
    assert record(event).body["left_out"] == event.output.left_out


def ended_command(data: bytes, *marks: tuple[int, int]) -> TerminalEvent:
    output = TimedOutput(data=data, marks=marks)
    return TerminalEvent(at=1.0, shown=b"", output=output, size=SIZE, ended=True, command="x")


def test_output_has_the_line_ends_of_the_answer_of_exec() -> None:
    event = record(ended_command(b"one\r\ntwo\r\n", (0, 5), (300, 10)))
    assert event.kind == "command"
    assert event.body["output"] == "one\ntwo\n"
    assert event.body["timing"] == [(0, 4), (300, 8)]
    assert "raw" not in event.body
    assert event.data is None


@pytest.mark.parametrize("data", [b"\x1b[?1049hscreen\x1b[?1049l", b"no\nreturn\r\n", b"\x1b[?1049h\r\n"])
def test_what_a_program_drew_is_kept_as_it_was(data: bytes) -> None:
    event = record(ended_command(data, (0, 3)))
    assert event.body["raw"] is True
    assert event.body["output"].encode() == data


@pytest.mark.parametrize("data", [b"\xff\xfe", b"long\r\n" * 2000])
def test_output_that_is_long_or_not_text_is_stored_outside_the_event(data: bytes) -> None:
    event = record(ended_command(data))
    assert event.data == data.replace(b"\r\n", b"\n")
    assert event.body["output_bytes"] == len(event.data)
    assert "output" not in event.body
