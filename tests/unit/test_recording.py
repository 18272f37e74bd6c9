"""A recording cuts what a terminal shows into what happened, and loses nothing of it."""

from __future__ import annotations

import pytest

from waypoint.model import Size
from waypoint.terminal.recording import Happened, Printed, Recording, tell

SIZE = Size(rows=24, columns=80)


@pytest.fixture
def happened() -> list[Happened]:
    return []


@pytest.fixture
def recording(happened: list[Happened]) -> Recording:
    return Recording(happened.append, SIZE)


def prompt(recording: Recording) -> None:
    recording.prompting()
    recording.show(b"# ")
    recording.prompt()


def test_a_command_with_its_prompt_and_its_output(recording: Recording, happened: list[Happened]) -> None:
    prompt(recording)
    recording.typing()
    recording.show(b"ls\r\n")
    recording.began("ls", "/srv", typed=False, actor="agent")
    recording.show(b"a\r\n")
    recording.show(b"b\r\n")
    recording.ended(0)
    [one] = happened
    assert (one.command, one.cwd, one.exit_code, one.actor, one.ended) == ("ls", "/srv", 0, "agent", True)
    assert (one.shown, one.output.data) == (b"# ls\r\n", b"a\r\nb\r\n")
    assert one.duration_ms is not None


def test_what_a_job_prints_at_the_prompt_happened_by_itself(
    recording: Recording, happened: list[Happened]
) -> None:
    prompt(recording)
    recording.show(b"done\r\n")
    recording.between()
    recording.between()
    recording.typing()
    recording.show(b"true\r\n")
    recording.began("true", "/", typed=True)
    recording.ended(0)
    assert [(one.shown, one.output.data, one.ended) for one in happened] == [
        (b"# ", b"done\r\n", False),
        (b"true\r\n", b"", True),
    ]
    assert happened[0].actor == "automatic"


def test_a_job_that_prints_all_the_time_is_heard_now_and_then_and_wholly(
    recording: Recording, happened: list[Happened]
) -> None:
    prompt(recording)
    for number in range(200):
        recording.show(b"%d\r\n" % number)
        recording.between(quiet=True)
    assert len(happened) == 20
    recording.between()
    assert b"".join(one.output.data for one in happened) == b"".join(b"%d\r\n" % n for n in range(200))


def test_what_somebody_types_is_no_output(recording: Recording, happened: list[Happened]) -> None:
    recording.typing()  # ahead of the prompt
    prompt(recording)
    recording.show(b"l")
    recording.between()
    recording.show(b"s\r\n")
    recording.began(None, "/", typed=True)
    recording.ended(0, "ls")
    [one] = happened
    assert (one.command, one.typed, one.shown) == ("ls", True, b"# ls\r\n")


def test_a_prompt_that_is_drawn_again_is_no_output(recording: Recording, happened: list[Happened]) -> None:
    prompt(recording)
    recording.show(b"\r# ")
    recording.prompt()
    recording.between()
    assert not happened


def test_a_command_that_began_unseen_ends_with_what_was_seen_of_it(
    recording: Recording, happened: list[Happened]
) -> None:
    prompt(recording)
    recording.show(b"over\r\n")
    recording.ended(0, "make")
    recording.ended(0)
    [one] = happened
    assert (one.command, one.output.data, one.duration_ms) == ("make", b"over\r\n", None)


def test_a_cut_in_the_middle_of_a_command(recording: Recording, happened: list[Happened]) -> None:
    prompt(recording)
    recording.began("make", "/", typed=False)
    recording.show(b"one\r\n")
    recording.cut()
    recording.cut()
    recording.show(b"two\r\n")
    recording.ended(2)
    assert [(one.command, one.ended, one.output.data) for one in happened] == [
        ("make", False, b"one\r\n"),
        ("make", True, b"two\r\n"),
    ]
    assert tell(happened[0]).body["during"] == "make"


def test_a_cut_keeps_the_prompt_and_the_half_typed_line(
    recording: Recording, happened: list[Happened]
) -> None:
    prompt(recording)
    recording.typing()
    recording.show(b"ec")
    recording.cut()
    recording.show(b"ho\r\n")
    recording.began(None, "/", typed=True)
    recording.ended(0, "echo")
    assert [one.shown for one in happened] == [b"# ec", b"ho\r\n"]
    told = tell(happened[0])
    assert told.kind == "output"
    assert "output" not in told.body


def test_endless_output_is_bounded_and_says_so(recording: Recording, happened: list[Happened]) -> None:
    recording.began("yes", "/", typed=False)
    for number in range(20_000):
        recording.show(b"%0126d\r\n" % number)
    recording.ended(0)
    [one] = happened
    assert len(one.output.data) < 1 << 20
    notice = f"[waypoint: {one.output.left_out:,} bytes left out here]\r\n".encode()
    start, found, end = one.output.data.partition(notice)
    assert found
    assert len(start) - 2 + len(end) + one.output.left_out == 20_000 * 128
    assert one.output.data.startswith(b"%0126d\r\n" % 0)
    assert one.output.data.endswith(b"%0126d\r\n" % 19_999)
    assert tell(one).body["left_out"] == one.output.left_out


def told(data: bytes, *marks: tuple[int, int]) -> Happened:
    output = Printed(data=data, marks=marks)
    return Happened(at=1.0, shown=b"", output=output, size=SIZE, ended=True, command="x")


def test_output_is_told_like_the_answer_of_exec() -> None:
    one = tell(told(b"one\r\ntwo\r\n", (0, 5), (300, 10)))
    assert one.kind == "command"
    assert one.body["output"] == "one\ntwo\n"
    assert one.body["timing"] == [(0, 4), (300, 8)]
    assert "raw" not in one.body
    assert one.data is None


@pytest.mark.parametrize("data", [b"\x1b[?1049hscreen\x1b[?1049l", b"no\nreturn\r\n", b"\x1b[?1049h\r\n"])
def test_what_a_program_drew_is_kept_as_it_was(data: bytes) -> None:
    one = tell(told(data, (0, 3)))
    assert one.body["raw"] is True
    assert one.body["output"].encode() == data


@pytest.mark.parametrize("data", [b"\xff\xfe", b"long\r\n" * 2000])
def test_what_is_long_or_no_text_is_kept_apart(data: bytes) -> None:
    one = tell(told(data))
    assert one.data == data.replace(b"\r\n", b"\n")
    assert one.body["output_bytes"] == len(one.data)
    assert "output" not in one.body
