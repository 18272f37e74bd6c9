"""The screen against what a terminal is known to do, against tmux's own, and against itself.

The rules of single sequences are stated one by one. That they add up is shown with real programs on
a real pty: whatever they print, the screen looks as it does in a tmux pane of the same size, down to
the colours, and a pane that is sent `redraw()` in the middle ends up the same as one that saw it all.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import termios
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waypoint.terminal import emulator
from waypoint.terminal.cells import changed_pen
from waypoint.terminal.screen import DUMP_MAGIC, Screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Change = Callable[[dict[str, object]], object]


def screen_of(data: bytes | str, rows: int = 24, columns: int = 80) -> Screen:
    screen = Screen(rows, columns)
    screen.feed(data.encode() if isinstance(data, str) else data)
    return screen


def shown(data: bytes | str, rows: int = 4, columns: int = 10) -> list[str]:
    return screen_of(data, rows, columns).text().split("\n")


def state_of(screen: Screen) -> dict[str, object]:
    state: dict[str, object] = json.loads(zlib.decompress(screen.dump()[len(DUMP_MAGIC) :]))
    return state


def pen_at(screen: Screen, row: int, column: int) -> str:
    screen.text()
    return screen._lines[row].pens[column]


# One rule at a time


_CASES = [
    ("abc", ["abc"], (0, 3)),
    ("ab\r\ncd\r\n", ["ab", "cd"], (2, 0)),
    ("ab\ncd", ["ab", "  cd"], (1, 4)),
    ("ab\vcd\fe", ["ab", "  cd", "    e"], (2, 5)),
    ("abc\b\bX", ["aXc"], (0, 2)),
    ("\b\bX", ["X"], (0, 1)),
    ("a\tb", ["a       b"], (0, 9)),
    ("a\t\t\tb", ["a        b"], (0, 9)),
    ("a\0b\x07c\x7fd", ["abcd"], (0, 4)),
    ("1\r\n2\r\n3\r\n4\r\n5", ["2", "3", "4", "5"], (3, 1)),
    # wrapping
    ("0123456789", ["0123456789"], (0, 9)),
    ("0123456789\r\nx", ["0123456789", "x"], (1, 1)),
    ("0123456789x", ["0123456789", "x"], (1, 1)),
    ("0123456789\bx", ["01234567x9"], (0, 9)),
    ("0123456789\x1b[mx", ["0123456789", "x"], (1, 1)),
    ("0123456789\x1b[Kx", ["012345678x"], (0, 9)),
    ("0123456789\x1b[1;10Hx", ["012345678x"], (0, 9)),
    ("\x1b[?7l0123456789abc", ["012345678c"], (0, 9)),
    ("0123456789\x1b7\x1b[2;2H\x1b8x", ["0123456789", "x"], (1, 1)),
    ("\x1b[4;1H0123456789x", ["", "", "0123456789", "x"], (3, 1)),
    # moving
    ("\x1b[3;4Hx", ["", "", "   x"], (2, 4)),
    ("\x1b[3;4fx", ["", "", "   x"], (2, 4)),
    ("\x1b[99;99Hx", ["", "", "", "         x"], (3, 9)),
    ("\x1b[3;4H\x1b[Hx", ["x"], (0, 1)),
    ("\x1b[3;4H\x1b[A\x1b[2Dx", ["", " x"], (1, 2)),
    ("\x1b[B\x1b[2Cx", ["", "  x"], (1, 3)),
    ("ab\x1b[Ex\x1b[Fy", ["yb", "x"], (0, 1)),
    ("\x1b[3dx\x1b[5Gy\x1b[7`z", ["", "", "x   y z"], (2, 7)),
    ("\x1b[2ax\x1b[2ey", ["  x", "", "   y"], (2, 4)),
    ("\x1b[Ix\x1b[Zy", ["        y"], (0, 9)),
    ("\x1b[4GX\x1bH\r\ta\b\x1b[g\rb\tc", ["b  Xa   c"], (0, 9)),
    ("\x1b[3g\tx", ["         x"], (0, 9)),
    ("ab\x1b[sc\x1b[ud", ["abd"], (0, 3)),
    # erasing, inserting, deleting
    ("0123456789\x1b[4G\x1b[K", ["012"], (0, 3)),
    ("0123456789\x1b[4G\x1b[1K", ["    456789"], (0, 3)),
    ("0123456789\x1b[4G\x1b[2Kx", ["   x"], (0, 4)),
    ("a\r\nb\r\nc\x1b[2;1H\x1b[J", ["a"], (1, 0)),
    ("a\r\nb\r\nc\x1b[2;1H\x1b[1J", ["", "", "c"], (1, 0)),
    ("a\r\nb\r\nc\x1b[2;1H\x1b[2Jx", ["", "x"], (1, 1)),
    ("0123456789\x1b[4G\x1b[2X", ["012  56789"], (0, 3)),
    ("0123456789\x1b[4G\x1b[2P", ["01256789"], (0, 3)),
    ("0123456789\x1b[4G\x1b[2@", ["012  34567"], (0, 3)),
    ("0123456789\x1b[4G\x1b[99P", ["012"], (0, 3)),
    ("0123456789\x1b[4G\x1b[4hab\x1b[4lc", ["012abc4567"], (0, 6)),
    ("a\r\nb\r\nc\x1b[2;2H\x1b[Lx", ["a", "x", "b", "c"], (1, 1)),
    ("a\r\nb\r\nc\x1b[2;2H\x1b[Mx", ["a", "x"], (1, 1)),
    ("a\r\nb\r\nc\x1b[S", ["b", "c"], (2, 1)),
    ("a\r\nb\r\nc\x1b[T", ["", "a", "b", "c"], (2, 1)),
    ("a\x1b[3b", ["aaaa"], (0, 4)),
    ("a\r\x1b[3b", ["a"], (0, 0)),
    # the scroll region
    ("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[3;1H\nx", ["a", "c", "x", "d"], (2, 1)),
    ("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[2;1H\x1bMx", ["a", "x", "b", "d"], (1, 1)),
    ("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[?6h\x1b[9;2Hx", ["a", "b", "cx", "d"], (2, 2)),
    ("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[4;1H\nx", ["a", "b", "c", "x"], (3, 1)),
    ("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[1;1H\x1b[M", ["a", "b", "c", "d"], (0, 0)),
    ("a\r\nb\x1b[3;2rx", ["a", "bx"], (1, 2)),
    ("ab\x1bDc\x1bEd", ["ab", "  c", "d"], (2, 1)),
    # the rest
    ("ab\x1b[20h\ncd", ["ab", "cd"], (1, 2)),
    ("x\x1b#8", ["EEEEEEEEEE"] * 4, (0, 0)),
    ("abc\x1bcx", ["x"], (0, 1)),
    ("\x1b(0lqk\x1b(Bq", ["┌─┐q"], (0, 4)),
    ("\x1b)0q\x0eq\x0fq", ["q─q"], (0, 3)),
    (
        "a\x1b]8;;http://x\x1b\\b\x1bPq#0\x1b\\c\x1b_x\x1b\\d\x1b^x\x1b\\e\x1bXx\x1b\\f",
        ["abcdef"],
        (0, 6),
    ),
    ("a\x1b[3\x18mb\x1b[3\x1ab", ["amb" + "b"], (0, 4)),
    ("a\x1b[\r1Cb", ["ab"], (0, 2)),
    ("a\x1b[1\x1b[2Cb", ["a  b"], (0, 4)),
    ("a\x1b]0;t\x1b[2Cb", ["a  b"], (0, 4)),
    ("ab\x1b\r]2;t\x07c", ["cb"], (0, 1)),
    ("a\x1b[" + "1;" * 200 + "Cb\x1b[" + " " * 300 + "mc", ["abc"], (0, 3)),
    ("a\x1b[1?2zb\x1b[ 1mc\x1b%Gd\x1b   Fe", ["abcde"], (0, 5)),
]


@pytest.mark.parametrize(("sent", "expected", "cursor"), _CASES)
def test_a_sequence_does_what_it_does_on_xterm(
    sent: str, expected: list[str], cursor: tuple[int, int]
) -> None:
    screen = screen_of(sent, 4, 10)
    assert screen.text().split("\n") == expected
    assert screen.cursor == cursor


def test_wide_characters_take_two_cells_and_are_never_halved() -> None:
    assert shown("漢字x") == ["漢字x"]
    assert screen_of("漢字", 4, 10).cursor == (0, 4)
    assert shown("漢字\x1b[2Gx") == [" x字"]
    assert shown("漢字\x1b[3Gx") == ["漢x"]
    assert shown("漢字\x1b[2G\x1b[P") == [" 字"]
    assert shown("漢字\x1b[2G\x1b[@") == ["   字"]
    assert shown("x漢字\x1b[1G\x1b[2P") == [" 字"]
    assert shown("01234567漢\x1b[1G\x1b[@") == [" 01234567"]
    assert shown("012345678漢") == ["012345678", "漢"]
    assert shown("\x1b[?7l012345678漢") == ["012345678"]
    assert shown("漢" * 7, columns=5) == ["漢漢", "漢漢", "漢漢", "漢"]
    assert shown("漢x", columns=1) == ["x"]


def test_combining_characters_stay_with_the_one_before() -> None:
    assert shown("e\u0301x") == ["e\u0301x"]
    assert screen_of("e\u0301x").cursor == (0, 2)
    assert shown("012345678e\u0301x") == ["012345678e\u0301", "x"]
    assert shown("\x1b[?7l012345678e\u0301") == ["012345678e\u0301"]
    assert shown("漢\u0301x") == ["漢\u0301x"]
    assert shown("\u0301x") == ["x"]
    assert len(shown("a" + "\u0301" * 1000)[0]) == emulator.MAX_CELL_CHARS


def test_characters_taken_for_narrow_are_narrow() -> None:
    sure = [chr(code) for code in range(0x20, 0x11000) if not emulator._MAYBE_NOT_NARROW.match(chr(code))]
    assert len(sure) > 2000
    assert [char for char in sure if emulator._width(char) != 1] == []


@pytest.mark.parametrize(
    ("params", "pen"),
    [
        ("1;31", "1;31"),
        ("31;1", "1;31"),
        ("1;2;3;4;5;7;8;9", "1;2;3;4;5;7;8;9"),
        ("1;2;3;4;5;7;8;9;22;23;24;25;27;28;29", ""),
        ("91;102", "91;102"),
        ("31;42;39;49", ""),
        ("38;5;200;1", "1;38;5;200"),
        ("38:5:200", "38;5;200"),
        ("48;2;1;2;3", "48;2;1;2;3"),
        ("48:2:1:2:3", "48;2;1;2;3"),
        ("48:2::1:2:3", "48;2;1;2;3"),
        ("38;5;256", ""),
        ("38;5", ""),
        ("38;9;1", ""),
        ("4:3;58;5;9", "4:3;58:5:9"),
        ("4:3;58:2::1:2:3", "4:3;58:2::1:2:3"),
        ("4:3;4:0;4:9", ""),
        ("21;53", "21;53"),
        ("1;0", ""),
        ("1;", ""),
        ("999;1", "1"),
    ],
)
def test_sgr_makes_a_pen_in_canonical_form(params: str, pen: str) -> None:
    assert pen_at(screen_of(f"\x1b[{params}mx"), 0, 0) == pen
    assert changed_pen("", pen) == pen


def test_erased_cells_keep_the_background_and_nothing_else() -> None:
    screen = screen_of("\x1b[1;31;44mx\x1b[K\r\n\x1b[4L")
    assert pen_at(screen, 0, 0) == "1;31;44"
    assert pen_at(screen, 0, 5) == pen_at(screen, 2, 0) == "44"


def test_the_alternate_buffer_comes_blank_and_leaves_the_main_one_as_it_was() -> None:
    screen = screen_of("main\x1b[?1049h", 4, 10)
    assert (screen.alternate, screen.text()) == (True, "")
    screen.feed(b"\x1b[3;3Halt\x1b[?1049l")
    assert (screen.alternate, screen.text(), screen.cursor) == (False, "main", (0, 4))
    screen.feed(b"\x1b[?1049h")
    assert screen.text() == ""


def test_the_alternate_buffer_has_a_saved_cursor_of_its_own() -> None:
    screen = screen_of("ab\x1b7\x1b[?47h\x1b[3;3H\x1b7\x1b[H\x1b8", 4, 10)
    assert screen.cursor == (2, 2)
    screen.feed(b"\x1b[?47l\x1b8")
    assert screen.cursor == (0, 2)


def test_titles_are_set_and_put_away_and_brought_back() -> None:
    screen = screen_of(b"\x1b]0;one\x07")
    assert screen.title == "one"
    screen.feed(b"\x1b[22;0;0t\x1b]2;tw\xc3\xb6\x1b\\")
    assert screen.title == "twö"
    screen.feed(b"\x1b[23;0;0t\x1b]1;icon\x07\x1b]0;cut off\x18")
    assert screen.title == "one"
    screen.feed(b"\x1b]2;" + b"x" * 5000 + b"\x07")
    assert screen.title == "one"
    screen.feed(b"\x1b]2;a\x01b\x07")
    assert screen.title == "ab"


def test_what_scrolls_off_the_main_buffer_is_kept_to_a_limit() -> None:
    screen = Screen(4, 10)
    for number in range(1000):
        screen.feed(b"%d\r\n" % number)
    lines = screen.scrollback_text().split("\n")
    assert lines == [str(number) for number in range(497, 997)]
    assert screen.scrollback_text(2) == "995\n996"
    assert screen.scrollback_text(0) == ""
    screen.feed(b"\x1b[?1049h" + b"x\r\n" * 20 + b"\x1b[?1049l")
    assert screen.scrollback_text(1) == "996"
    screen.feed(b"\x1b[2;4r\x1b[4H\n\n")
    assert screen.scrollback_text(1) == "996"
    screen.feed(b"\x1b[3J")
    assert screen.scrollback_text() == ""


def test_resizing_keeps_the_line_of_the_cursor_and_the_text_that_fits() -> None:
    screen = screen_of("one\r\ntwo\r\nthree\r\nfour", 4, 10)
    screen.resize(2, 4)
    assert screen.text() == "thre\nfour"
    assert screen.cursor == (1, 3)
    assert screen.scrollback_text() == "one\ntwo"
    screen.resize(3, 20)
    assert screen.text() == "thre\nfour"
    screen.feed(b"\r\n\t\tx")
    assert screen.text() == "thre\nfour\n                x"
    screen.resize(0, 0)
    assert (screen.rows, screen.columns) == (1, 1)


def test_resizing_in_the_alternate_buffer_resizes_both() -> None:
    screen = screen_of("one\r\ntwo\r\nthree\r\n漢字\x1b[?1049h\x1b[4;1Halt", 4, 10)
    screen.resize(2, 3)
    assert screen.text() == "\nalt"
    screen.feed(b"\x1b[?1049l")
    assert screen.text() == "thr\n漢"
    assert screen.cursor == (1, 2)


def test_a_partly_read_sequence_goes_on_in_the_terminal_that_was_redrawn() -> None:
    for whole in (b"\x1b[1;31mred", b"\x1b]2;title\x07x", "漢".encode(), b"\x1bPq#0\x1b\\x", b"\x1b(0q"):
        for cut in range(1, len(whole)):
            terminal = screen_of(b"something else")
            terminal.feed(screen_of(whole[:cut]).redraw() + whole[cut:])
            assert state_of(terminal) == state_of(screen_of(whole)), cut


def test_redraw_does_not_rely_on_how_wide_the_terminal_takes_a_character_for() -> None:
    drawn = screen_of("漢x e\u0301y").redraw()
    assert "漢\x1b[3Gx e\u0301\x1b[6Gy".encode() in drawn


def test_leaving_takes_back_all_that_was_switched_on() -> None:
    screen = screen_of(
        "\x1b[2;20r\x1b[4h\x1b[3;5Hshell\x1b[?1049h\x1b[?6h\x1b[?7l\x1b[?1h\x1b[?25l\x1b[?1003h\x1b[?1006h"
        "\x1b[?1004h\x1b[?2004h\x1b[?5h\x1b[?12h\x1b=\x1b[4 q\x1b[20h\x1b[>4;2m\x1b[>5u\x1b[1;31m\x1b(0\x0e"
        "\x1b[3g\x1bHtext\x1b["
    )
    screen.feed(screen.leave())
    left, fresh = state_of(screen), state_of(screen_of("\x1b[3;5Hshell\x1b[4;1H"))
    del left["saved"], fresh["saved"]
    assert left == fresh
    assert screen.text() == "\n\n    shell"


# States that a screen can be in, each of which must get through everything

_STATES = [
    "",
    *(
        f"\x1b[?{mode}h"
        for mode in (*emulator.MIRRORED_MODES, *emulator.MOUSE_MODES, 6, 47, 1047, 1048, 1049)
    ),
    "\x1b[?7l",
    "\x1b[?7l0123456789",
    "\x1b[?25l",
    "\x1b[4h",
    "\x1b[20h",
    "\x1b=",
    "\x1b[3 q",
    "\x1b[>4;2m",
    "\x1b[>5u\x1b[>3u",
    "\x1b[>5u\x1b[?1049h\x1b[=3u",
    "\x1b]2;title\x07",
    "\x1b[3;6Hx\x1bH",
    "\x1b[3g",
    "\x1b[2;3r",
    "\x1b[2;3r\x1b[?6h\x1b[2;2H",
    "\x1b[?6h\x1b[2;2H\x1b7\x1b[?6l\x1b[2;3r",
    "\x1b(0q",
    "\x1b)0\x0eq",
    "\x1b(0\x1b7\x1b(B",
    "\x1b)0\x0e\x1b7\x0f\x1b[?47h",
    "\x1b[1;31;44mx\x1b[K\x1b[?1049h\x1b[3;3H",
    "\x1b[3;3H\x1b[7m\x1b7\x1b[H",
    "0123456789",
    "0123456789\x1b7\x1b[H",
    "01234567漢",
    "\x1b[?1049h\x1b[31m01234567漢\x1b7\x1b[H\x1b[m",
    "漢e\u0301\u0302x\U0001f600",
    "1\r\n2\r\n3\r\n4\r\n5",
    "\x1b]2;" + "x" * 5000,
    "\x1bPxyz",
    "\x1bPxyz\x1b",
    "\x1b[3",
    "x",
]


@pytest.mark.parametrize("made", [*_STATES, *(sent for sent, _, _ in _CASES)])
def test_a_state_gets_through_cuts_and_redraws_and_dumps(made: str) -> None:
    stream = made.encode()
    screen, by_bytes = screen_of(stream, 4, 10), Screen(4, 10)
    for byte in stream:
        by_bytes.feed(bytes([byte]))
        by_bytes = Screen.load(by_bytes.dump())
    assert state_of(by_bytes) == state_of(screen)
    assert Screen.load(screen.dump()).redraw() == screen.redraw()
    for cut in range(0, len(stream), 1 + len(stream) // 100):
        in_two = screen_of(stream[:cut], 4, 10)
        in_two.text()
        in_two.feed(stream[cut:])
        assert state_of(in_two) == state_of(screen), cut
    for before in _STATES:
        terminal = screen_of(before, 4, 10)
        terminal.feed(screen.redraw())
        assert drawable(terminal) == drawable(screen), before


def drawable(screen: Screen) -> dict[str, object]:
    """All that can be seen of a screen, or told by sending more to it."""
    state = state_of(screen)
    for hidden in ("scrollback", "titles", "last"):
        del state[hidden]
    if state["swallowing"] == "]":  # another string of that kind that will be ignored
        state["swallowing"], state["partial"] = "", "\x1b]9999;" + str(state["partial"])
    return state


# Whatever comes

_NUMBERS = st.sampled_from(["", "0", "1", "2", "3", "5", "7", "11", "12", "40", "99", "65536", "9" * 20])
_MODES = st.sampled_from(
    [1, 4, 5, 6, 7, 9, 12, 20, 25, 47, 66, 1000, 1002, 1003, 1004, 1006, 1047, 1048, 1049, 2004]
)
_TEXT = st.text(
    st.sampled_from("abc XYZ#~qx_äß─│漢字ねこ\u0301\u200d\ufe0f😀\u0085\xad\ufffd"), min_size=1, max_size=14
)
_CSI = st.builds(
    lambda private, numbers, final: f"\x1b[{private}{';'.join(numbers)}{final}",
    st.sampled_from(["", "", "", "", "", "?", ">", "=", "<"]),
    st.lists(_NUMBERS, max_size=3),
    st.sampled_from([*"ABCDEFGHIJKLMPSTXZ`abdefghlmnrstu@", " q", "!p", "$p"]),
)
_SGR = st.lists(
    st.sampled_from(["0", "1", "4", "7", "31", "44", "38;5;9", "48;2;1;2;3", "4:3", "58:5:1", "39", "22"]),
    max_size=3,
).map(lambda codes: f"\x1b[{';'.join(codes)}m")
_PIECES = st.one_of(
    _TEXT,
    _TEXT,
    st.sampled_from([*"\r\n\t\b\v\x0e\x0f\x18\x1a\x1b\x7f\0", "\r\n", "\r\n", "漢" * 9, "x" * 60]),
    st.sampled_from(
        [f"\x1b{final}" for final in [*"78DEMHc=>N\\Z", "(0", "(B", ")0", ")B", "#8", "%G", "   F"]]
    ),
    _CSI,
    _CSI,
    _SGR,
    st.builds("\x1b[?{}{}".format, _MODES, st.sampled_from("hl")),
    st.builds("\x1b[{};{}r".format, st.integers(0, 7), st.integers(0, 7)),
    st.builds("\x1b[{};{}H".format, st.integers(0, 8), st.integers(0, 14)),
    st.sampled_from(
        ["\x1b]2;title\x07", "\x1b]0;a\x1b\\", "\x1b]8;;x\x1b\\", "\x1bPq#\x1b\\", "\x1b_x", "\x1b]2;"]
    ),
).map(str.encode)
_STREAMS = st.lists(
    st.one_of(_PIECES, _PIECES, _PIECES, st.binary(max_size=4)), min_size=10, max_size=60
).map(b"".join)
_SIZES = st.tuples(st.integers(1, 6), st.integers(1, 13))


@settings(deadline=None)
@given(_STREAMS, _SIZES, st.randoms(use_true_random=False))
def test_it_makes_no_difference_how_the_stream_is_cut(
    stream: bytes, size: tuple[int, int], chance: random.Random
) -> None:
    at_once, by_bytes, by_chance = Screen(*size), Screen(*size), Screen(*size)
    at_once.feed(stream)
    for byte in stream:
        by_bytes.feed(bytes([byte]))
        if chance.random() < 0.2:
            by_bytes.text()
    rest = stream
    while rest:
        count = chance.randint(1, 20)
        by_chance.feed(rest[:count])
        rest = rest[count:]
    assert state_of(by_bytes) == state_of(at_once)
    assert state_of(by_chance) == state_of(at_once)


@settings(deadline=None)
@given(_STREAMS, _STREAMS, _SIZES)
def test_redraw_makes_any_terminal_the_same(stream: bytes, before: bytes, size: tuple[int, int]) -> None:
    screen, terminal = Screen(*size), Screen(*size)
    screen.feed(stream)
    terminal.feed(before)
    terminal.feed(screen.redraw())
    assert drawable(terminal) == drawable(screen)


@settings(deadline=None)
@given(_STREAMS, _STREAMS, _SIZES)
def test_a_screen_that_was_dumped_and_loaded_goes_on_as_the_first(
    stream: bytes, more: bytes, size: tuple[int, int]
) -> None:
    screen = Screen(*size)
    screen.feed(stream)
    loaded = Screen.load(screen.dump())
    assert state_of(loaded) == state_of(screen)
    assert loaded.redraw() == screen.redraw()
    screen.feed(more)
    loaded.feed(more)
    assert state_of(loaded) == state_of(screen)


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=300), _STREAMS), max_size=5), _SIZES, _SIZES)
def test_nothing_that_is_fed_is_an_error(
    chunks: list[bytes], size: tuple[int, int], later: tuple[int, int]
) -> None:
    screen = Screen(*size)
    for chunk in chunks:
        screen.feed(chunk)
        assert_sound(screen)
    screen.resize(*later)
    assert_sound(screen)
    for chunk in chunks:
        screen.feed(chunk)
        assert_sound(screen)
    screen.leave()
    assert state_of(Screen.load(screen.dump())) == state_of(screen)


def assert_sound(screen: Screen) -> None:
    row, column = screen.cursor
    assert 0 <= row < screen.rows
    assert 0 <= column < screen.columns
    assert not screen._wrap_next or column == screen.columns - 1
    for lines in (screen._lines, screen._main or screen._lines):
        assert len(lines) == screen.rows
        for line in lines:
            assert len(line.chars) == len(line.pens) == screen.columns
            widths = [emulator._width(char[0]) if char else 0 for char in line.chars]
            for here, after in zip([0, *widths], [*widths, 1], strict=True):
                assert (here == 2) == (after == 0)


_SCROLLING = st.one_of(
    _TEXT,
    _SGR,
    st.sampled_from(["\r\n"] * 6 + ["\n", "\r", "\t", "\b", "\v", "\x1b[K", "\x1b[1K", "x" * 40, "\x0e"]),
).map(str.encode)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_PIECES, max_size=6).map(b"".join),
    st.lists(_SCROLLING, min_size=30, max_size=150).map(b"".join),
    st.lists(_PIECES, max_size=6).map(b"".join),
    _SIZES,
)
def test_what_is_skipped_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch, first: bytes, scrolling: bytes, last: bytes, size: tuple[int, int]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(emulator, "SCROLLBACK_LINES", 3)
        fast, slow = (screen_of(first, *size) for _ in range(2))
        for screen in (fast, slow):
            screen.text()
            screen._scrollback = deque(maxlen=3)
        patch.setattr(slow, "_fast_forward", lambda stream, at: at)
        patch.setattr(slow, "_without_lost_lines", lambda run: run)
        for screen in (fast, slow):
            screen.feed(scrolling + last)
        assert state_of(fast) == state_of(slow)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    "before", ["", "z", "\x1b[9H", "01234", "\x1b[?1049hz", "\x1b[?7l", "\x1b[4h", "\x1b[35m"]
)
def test_skipping_is_exact_down_to_the_last_line(
    monkeypatch: pytest.MonkeyPatch, rows: int, before: str
) -> None:
    monkeypatch.setattr(emulator, "SCROLLBACK_LINES", 2)
    digits = "0123456789" * 9
    lines = [digits[-length:] if length else "" for length in (*range(12), 84, 85, 86)]
    lines += ["a\x1b[31mb", "a\x1b[1m\x1b[m\x1b[44mb", "a\x1b[1m\x1b[0mb", "a\x1b[0m\x1b[32m\x1b[1mb"]
    for line in lines:
        for end in ("\r\n", "\n"):
            for after in ("", "\x1b[3b", digits + "abcdef"):
                for count in range(14):
                    fast, slow = (screen_of("\x1b#8" + before, rows, 5) for _ in range(2))
                    for screen in (fast, slow):
                        screen.text()
                        screen._scrollback = deque(maxlen=2)
                    monkeypatch.setattr(slow, "_fast_forward", lambda stream, at: at)
                    monkeypatch.setattr(slow, "_without_lost_lines", lambda run: run)
                    for screen in (fast, slow):
                        screen.feed((line + end).encode() * count + after.encode())
                    assert state_of(fast) == state_of(slow), (line, end, after, count)


@pytest.mark.parametrize(
    "line", [b"y", b"x" * 79, b"x" * 1000, b"\x1b[31mred\x1b[m \x1b[44m", "漢字".encode() * 30]
)
@pytest.mark.parametrize("alternate", [False, True])
def test_most_of_a_long_output_is_skipped_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, line: bytes, alternate: bool
) -> None:
    fast, slow = (screen_of(b"before" + b"\x1b[?1049h" * alternate) for _ in range(2))
    monkeypatch.setattr(slow, "_fast_forward", lambda stream, at: at)
    stream = b"".join(b"%d %s\r\n" % (number, line) for number in range(3000)) + b"\x1b[7mafter"
    skipped: list[int] = []

    def counting(text: str, at: int) -> int:
        cut = emulator.Emulator._fast_forward(fast, text, at)
        skipped.append(cut - at)
        return cut

    monkeypatch.setattr(fast, "_fast_forward", counting)
    for screen in (fast, slow):
        screen.feed(stream)
    assert state_of(fast) == state_of(slow)
    assert max(skipped) > len(stream.decode()) // 2


def test_scrolling_output_waits_to_be_looked_at_and_all_else_does_not() -> None:
    screen = Screen()
    screen.feed(b"plain\r\n\x1b[31mred\x1b[")
    assert screen._waiting
    screen.feed(b"m")
    assert screen._waiting
    screen.feed(b"\x1b[H")
    assert not screen._waiting
    screen.feed(b"x" * (emulator.BATCH_BYTES - 1))
    assert screen._waiting
    screen.feed(b"x")
    assert not screen._waiting
    screen.feed(b"\t" * emulator.BATCH_CONTROLS)
    assert not screen._waiting


# What a dump may not be


def test_a_dump_holds_the_scrollback_and_is_small() -> None:
    screen = screen_of(
        b"".join(b"\x1b[32m%d\x1b[m some text in a line\r\n" % number for number in range(2000))
    )
    dump = screen.dump()
    assert len(dump) < 10_000
    assert Screen.load(dump).scrollback_text() == screen.scrollback_text() != ""


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_not_loaded(garbage: bytes) -> None:
    for data in (garbage, DUMP_MAGIC + garbage, DUMP_MAGIC + zlib.compress(garbage)):
        with pytest.raises(ValueError, match=r"."):
            Screen.load(data)


def put(key: str, value: object) -> Change:
    return lambda state: state.update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.pop("tabs"),
        put("size", [24, 100_000]),
        put("size", [0, 80]),
        put("size", [25, 80]),
        put("size", "24"),
        put("lines", [""]),
        put("lines", ["x" * 81] * 24),
        put("lines", ["\0"] * 24),
        put("lines", [["x", [5, "31", 99, "32"]]] * 24),
        put("lines", [["x", [1, "\x1b["]]] * 24),
        put("lines", [["x", [1]]] * 24),
        put("lines", [None] * 24),
        put("main", 5),
        put("scrollback", [1]),
        put("cursor", [24, 0, False]),
        put("cursor", [0, 0, True]),
        put("cursor", [0.5, 0, False]),
        put("pen", "31m"),
        put("saved", [0, 0]),
        put("saved", [0, 80, False, "", False, ["B", "B"], 0]),
        put("region", [5, 4]),
        put("tabs", [80]),
        put("charsets", ["B", "C"]),
        put("shift", 2),
        put("flags", {}),
        put("modes", [3]),
        put("mouse", 1001),
        put("title", None),
        put("swallowing", "x"),
        put("undecoded", "zz"),
    ],
)
def test_a_damaged_dump_is_not_loaded(change: Change) -> None:
    state = state_of(screen_of("some text"))
    assert Screen.load(DUMP_MAGIC + zlib.compress(json.dumps(state).encode())).text() == "some text"
    change(state)
    with pytest.raises(ValueError, match=r"."):
        Screen.load(DUMP_MAGIC + zlib.compress(json.dumps(state).encode()))


def test_a_dump_that_was_cut_off_is_not_loaded() -> None:
    dump = screen_of("some text").dump()
    for data in (dump[:-1], dump[:30], dump + b"x", dump.replace(b" 1\n", b" 2\n")):
        with pytest.raises(ValueError, match=r"."):
            Screen.load(data)


# Real programs, and tmux as the judge


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


class Pane:
    """A tmux pane of 24 x 80 that shows what it is sent, byte by byte."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sleep 1000")
        self._tmux("set-option", "-g", "status", "off")
        self._tmux("resize-window", "-x", "80", "-y", "24")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-S", str(self._folder / "tmux.sock"), *arguments]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        self._tmux("kill-server")

    def show(self, stream: bytes) -> tuple[Screen, tuple[int, int], bool]:
        """What the pane looks like after `stream`, the cursor, and whether the alternate buffer is on."""
        self._count += 1
        end = f"end-{self._count}"
        (self._folder / "stream").write_bytes(stream + f"\x18\x1b]2;{end}\x1b\\".encode())
        self._tmux("respawn-pane", "-k", f"stty raw -echo; cat {self._folder}/stream; exec sleep 1000")
        deadline = time.monotonic() + 20
        facts = [""]
        while facts[0] != end:
            assert time.monotonic() < deadline, facts
            facts = self._tmux(
                "display-message", "-p", "#{pane_title} #{cursor_y} #{cursor_x} #{alternate_on}"
            ).split()
        picture = self._tmux("capture-pane", "-p", "-e").rstrip("\n").replace("\n", "\r\n")
        cursor = int(facts[1]), min(int(facts[2]), 79)
        return screen_of("\x1b)0" + picture), cursor, facts[3] == "1"


@pytest.fixture(scope="module")
def pane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pane]:
    pane = Pane(tmp_path_factory.mktemp("pane"))
    yield pane
    pane.close()


def assert_same_picture(pane: Pane, stream: bytes, screen: Screen) -> None:
    picture, cursor, alternate = pane.show(stream)
    assert screen.text() == picture.text()
    assert screen.cursor == cursor
    assert screen.alternate == alternate
    for ours, theirs in zip(screen._lines, picture._lines, strict=True):
        for char, pen, expected in zip(ours.chars, ours.pens, theirs.pens, strict=True):
            assert pen == expected or char == " ", ours.text()  # of blanks tmux does not tell all


def recorded(arguments: list[str], keys: list[bytes], folder: Path, locale: str = "C.UTF-8") -> list[bytes]:
    """What a program prints on a terminal of 24 x 80: at first, and after each of the keys."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "LC_ALL": locale,
    }
    environment["TMUX_TMPDIR"] = str(folder)
    command = ["setsid", "--ctty", *arguments]
    program = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder)
    os.close(slave)
    parts = []
    try:
        for key in [b"", *keys]:
            os.write(master, key)
            part = b""
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline and select.select([master], [], [], 0.1 if part else 0.5)[0]:
                try:
                    part += os.read(master, 65536)
                except OSError:
                    break
            parts.append(part)
    finally:
        program.kill()
        program.wait()
        os.close(master)
        if arguments[0] == "tmux":  # its server stays when the client is gone
            subprocess.run(["tmux", "kill-server"], env=environment, check=False, capture_output=True)
    return parts


_PROGRAMS = {
    "bash": (
        ["bash", "--norc"],
        [
            b"for i in $(seq 40); do echo line $i; done\r",
            b"echo " + b"x" * 100,
            b"\x01abc\x05",
            b"\x7f" * 30 + b"\r",
            b"ls --color=always -la /\r",
            b"\x12seq\r",
            b"clear\r",
            b"printf 'a\\tb\\n'\r",
        ],
    ),
    "vim": (
        ["vim", "--clean", "-n", "sample.py"],
        [
            b":syntax on\r",
            b"\x06",
            b"/return\r",
            b"\x02",
            b":set number list\r",
            "ohello wörld 漢字\x1b".encode(),
            b":vsplit\r",
            b"\x04",
            b":split\r",
            b"dd",
            b"\x17w\x05\x05\x19",
            b"V10j",
            b"\x1bgg=G",
            b":set nowrap\r",
            b"G",
            b":qa!\r",
        ],
    ),
    "tmux": (
        ["tmux", "-f", "/dev/null", "new-session", "bash --norc"],
        [
            b"ls -la --color=always /usr | cat\r",
            b"\x02%",
            b"echo hi\r",
            b'\x02"',
            b"seq 100\r",
            b"\x02[\x1b[A\x1b[A",
            b"q",
            b"\x02z",
            b"\x02z",
            b"\x02:kill-server\r",
        ],
    ),
    "less": (
        ["less", "-R", "sample.py"],
        [b" ", b"b", b"jjj", b"k", b"/return\r", b"n", b"G", b"g", b"20j", b"h", b"q", b"q"],
    ),
    "nano": (
        ["nano", "sample.py"],
        [b"hello", b"\x16", b"\x19", b"\x0b\x0b", b"\x07", b"\x18", b"\x18", b"n"],
    ),
    "htop": (["htop", "--delay", "100"], [b"t", b"\x1b[B", b"h", b"q", b"q"]),
}


@pytest.mark.parametrize(
    ("name", "locale"),
    [
        *(pytest.param(name, "C.UTF-8", marks=needs("tmux", name), id=name) for name in _PROGRAMS),
        pytest.param("tmux", "C", marks=needs("tmux"), id="tmux drawing lines as a VT100"),
    ],
)
def test_a_program_looks_as_it_does_in_tmux(name: str, locale: str, pane: Pane, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(
        "".join(f"def f{n}(x):\n    return 'ä' + {n} * x\n\n" for n in range(99))
    )
    arguments, keys = _PROGRAMS[name]
    parts = recorded(arguments, keys, tmp_path, locale)
    assert sum(map(len, parts)) > 1000
    screen = Screen()
    stream = b""
    for part in parts:
        screen.feed(part)
        stream += part
        assert_same_picture(pane, stream, screen)
    # A terminal that is redrawn in the middle, and then sees the rest, ends up the same.
    for middle in range(0, len(parts), 3):
        seen, rest = b"".join(parts[:middle]), b"".join(parts[middle:])
        assert_same_picture(
            pane, b"dirt\x1b[?1049h\x1b[3;7r\x1b[7m" + screen_of(seen).redraw() + rest, screen
        )


@needs("tmux")
def test_sequences_at_random_look_as_they_do_in_tmux(pane: Pane) -> None:
    """Those that tmux and xterm agree on; a fixed seed, for it is about the many combinations."""
    chance = random.Random(1)

    def piece() -> str:
        text = "".join(chance.choices("abcdefgXYZ 0123#", k=chance.choice([1, 5, 20, 79, 80, 81, 170])))
        number = chance.choice(["", "0", "1", "2", "3", "7", "30"])
        return chance.choice(
            [
                text + chance.choice(["z\r", "z\x1b[3;3H", "\x1b[B\r", "\x1b[A\r", "\x1b[G"]),
                f"\x1b[{chance.choice(['', '1', '4', '7', '31', '44', '38;5;9', '48;2;1;2;3', '0'])}m",
                chance.choice(["漢字", "é", "e\u0301", "─│"]) * chance.choice([1, 41]) + "\r\n",
                chance.choice(["\r\n", "\n", "\r", "\t", "\x1bM", "\x1bD", "\x1bE", "\x1bH"]),
                f"\x1b[{chance.randint(0, 26)};{chance.randint(0, 82)}H",
                f"\x1b[{number}{chance.choice('ABCDEFGdZST')}",
                f"\r\x1b[2K{text[:40]}\x1b[9G\x1b[{number}{chance.choice('XP@')}",
                f"\x1b[r\r\x1b[{chance.choice(['', '1', '3', '30'])}{chance.choice('LM')}",
                f"\x1b[{chance.choice(['', '0', '2'])}{chance.choice('JK')}",
                f"\x1b[{chance.randint(1, 10)};{chance.randint(12, 24)}r",
            ]
        )

    for _ in range(60):
        stream = "".join(piece() for _ in range(chance.randint(1, 50))).encode()
        assert_same_picture(pane, stream, screen_of(stream))


# ---- output that costs more than it says ---------------------------------------------------------

COSTLY = (b"\x1b[2J", b"\x1b#8", b"\x1b[?1049h\x1b[?1049l", b"\x1b[H\x1b[999L", "漢\x1b[65535b".encode())


@pytest.mark.parametrize("sequence", COSTLY)
def test_a_piece_of_output_takes_one_turn_and_looking_at_it_has_a_limit(
    sequence: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the largest size one of these takes milliseconds: a read of 64 KiB would take minutes."""
    monkeypatch.setattr(emulator, "LONGEST_SECONDS", 0.1)
    screen = Screen(1000, 1000)
    screen.feed(b"\x1b#8")
    screen.text()
    began = time.thread_time()
    screen.feed(sequence * (65536 // len(sequence)))
    turn = time.thread_time() - began
    assert screen.busy
    assert turn < 0.5
    screen.text()
    assert time.thread_time() - began < 1.5


@given(
    st.lists(st.sampled_from([*COSTLY, b"text", b"\r\n", b"\x1b[31m", b"\x1b[", b"3;4H", b"\x1b]0;t\x07"]))
)
def test_turns_change_nothing(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    at_once, in_turns = Screen(5, 10), Screen(5, 10)
    at_once.feed(stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "TURN_SECONDS", -1.0)  # one sequence in each
        in_turns.feed(stream)
        assert in_turns.dump() == at_once.dump()
