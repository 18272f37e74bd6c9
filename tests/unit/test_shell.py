"""The marks of a session's shell, and what is typed to run a command in it."""

from __future__ import annotations

import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.errors import UsageError
from waypoint.terminal.shell import Mark, MarkKind, MarkReader, history_command, keys_for

STREAM = (
    b"before \x1b]133;C;k=key;r=run1;l=3\x07out;put\r\n"
    b"\x1b]133;E;k=key;n=0;c=  12  echo ;k=x;p=y\x07"
    b"\x1b]133;D;7;k=key;r=run1;p=/a;c=b\x07\x1b]133;A;k=key\x07# \x1b]133;B;k=key;s=7;r=\x07"
    b"\x1b]133;Z;k=key\x07 no mark \x1b]133;"
)


def read(*pieces: bytes) -> tuple[bytes, list[Mark]]:
    reader, text, marks = MarkReader(), b"", []
    for piece in pieces:
        for part in reader.feed(piece):
            if isinstance(part, bytes):
                text += part
            else:
                marks.append(part)
    return text, marks


def test_marks_are_taken_out_of_the_output() -> None:
    text, marks = read(STREAM)
    assert text == b"before out;put\r\n# \x1b]133;Z;k=key\x07 no mark "
    assert [mark.kind for mark in marks] == [
        MarkKind.COMMAND_BEGIN,
        MarkKind.TYPED_LINE,
        MarkKind.COMMAND_END,
        MarkKind.PROMPT_NEXT,
        MarkKind.PROMPT,
    ]
    begin, typed, end, _, prompt = marks
    assert (begin.key, begin.run_id, begin.stashed) == ("key", "run1", True)
    assert (typed.key, typed.is_new_line, history_command(typed)) == ("key", False, "echo ;k=x;p=y")
    assert (end.exit_code, end.run_id, end.text) == (7, "run1", "/a;c=b")
    assert (prompt.exit_code, prompt.run_id) == (7, "")


@given(st.lists(st.integers(0, len(STREAM))))
def test_the_result_does_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    assert read(*pieces) == read(STREAM)


def test_a_mark_without_an_end_does_not_hold_output_back_for_ever() -> None:
    text, marks = read(b"\x1b]133;C;" + b"x" * (64 << 10))
    assert (len(text), marks) == (8 + (64 << 10), [])


@pytest.mark.parametrize("command", ["echo 'a\\b' \"$x\"", "printf '\\n!!\té\x01'", "a\nb"])
def test_a_command_is_typed_as_one_word_without_control_characters(command: str) -> None:
    keys = keys_for("run1", command, b"in\0put\\", on_terminal=False, silent=False)
    line = keys.removeprefix(b"\x18\x1ds\x18\x1dp").removesuffix(b"\x1b[201~\r")
    assert line.decode().isprintable()
    script = f'__waypoint_begin() {{ printf %s "$2"; exit; }}\n{line.decode()}'
    assert subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout == command.encode()


def test_what_is_too_long_to_be_typed_is_refused() -> None:
    with pytest.raises(UsageError, match="too much"):
        keys_for("run1", "x", b"y" * (1 << 20), on_terminal=False, silent=False)
