"""Writes the pictures of README.md from recordings of a terminal: `python tests/generate_pictures.py`.

docs/recordings/NAME.cast (asciicast 3) is what really happened; docs/NAME.svg is drawn from it, cell by cell
as the product's own emulator has them, so the same recording gives the same picture. `--record` plays the
scenes again, in a home of its own (`make pictures`).
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from waypoint.terminal.cells import Line
from waypoint.terminal.screen import Screen

DOCS = Path(__file__).parents[1] / "docs"
RECORDINGS = DOCS / "recordings"
COLUMNS, SHOWN_ROWS, ALL_ROWS = 100, 28, 200
_STORY = """
set -eu
exec >/dev/null
waypoint new shop --net none
w() { waypoint exec -s shop "$1"; }
w 'mkdir -p /srv/shop && cd /srv/shop && git init -q -b main'
w 'git config user.name Ann && git config user.email ann@example.com'
w 'printf "def total(items):\\n    return sum(items)\\n" > cart.py'
w 'printf "from cart import total\\n\\nassert total([2, 3]) == 5\\n" > test_cart.py'
w 'git add . && git commit -qm "A cart"'
w 'python3 -m http.server 8000 >/dev/null 2>&1 &'
waypoint checkpoint -s shop 'a cart, and its server is up' --name start --verify 'python3 test_cart.py'
w 'printf "def total(items, discount=0):\\n    return sum(items) - discount\\n" > cart.py'
w 'git commit -qam "A discount"; export SHOP_ENV=staging'
waypoint checkpoint -s shop 'with a discount' --verify 'python3 test_cart.py'
waypoint fork -s shop start --name try-floats
waypoint exec -s try-floats 'printf "from math import fsum as total\\n" > cart.py'
waypoint checkpoint -s try-floats 'sums of floats' --verify 'python3 test_cart.py'
w 'sed -i s/sum/max/ cart.py; rm -rf .git; kill %1; unset SHOP_ENV'
waypoint checkpoint -s shop 'a faster total' --verify 'python3 test_cart.py' || true
until waypoint --no-color log -s shop | grep -q 'exit 1'; do sleep 0.2; done
"""


class Scene(NamedTuple):
    """What is recorded: the commands that are seen, and what is done before, unseen."""

    title: str
    commands: tuple[str, ...]
    is_animated: bool
    before: str = ""


SCENES = {
    "demo": Scene(
        "waypoint demo",
        ("waypoint demo",),
        is_animated=True,
        before="waypoint demo --fast >/dev/null",  # the first session of a home takes longer
    ),
    "log": Scene(
        "waypoint log, and what a restore would do",
        ("waypoint log -s shop", "waypoint preview -s shop good", "waypoint restore -s shop good --yes"),
        is_animated=False,
        before=_STORY,
    ),
}

# ---- recording -----------------------------------------------------------------------------------


def record(name: str, environment: dict[str, str]) -> None:
    """Plays a scene on a terminal and keeps what that shows."""
    scene = SCENES[name]
    subprocess.run(["bash", "-c", scene.before], env=environment, check=True)
    size = {"cols": COLUMNS, "rows": SHOWN_ROWS, "type": "xterm-256color"}
    lines: list[str] = [json.dumps({"version": 3, "term": size, "title": scene.title})]
    last = time.monotonic()

    def note(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        lines.append(json.dumps([round(now - last, 3), "o", text], ensure_ascii=False))
        last = now

    for command in scene.commands:
        note(f"\x1b[2m$\x1b[m \x1b[1m{command}\x1b[m\r\n")
        pid, terminal = pty.fork()
        if pid == 0:
            size_it = f"stty cols {COLUMNS} rows {ALL_ROWS}; exec {command}"
            os.execvpe("bash", ["bash", "-c", size_it], environment)
        for text in _output(terminal):
            note(text)
        assert os.waitpid(pid, 0)[1] == 0, command
        note("\r\n")
    RECORDINGS.mkdir(exist_ok=True)
    (RECORDINGS / f"{name}.cast").write_text("\n".join(lines) + "\n")


def _output(terminal: int) -> Iterator[str]:
    held = b""
    while True:
        try:
            data = held + os.read(terminal, 1 << 16)
        except OSError:  # the program has ended
            os.close(terminal)
            return
        text = data.decode(errors="ignore")
        held = data[len(text.encode()) :]
        yield text


def record_all() -> None:
    """In a home that is gone afterwards, with a `waypoint` that can be called by name."""
    folder = tempfile.mkdtemp(prefix="waypoint-pictures-", dir="/var/tmp")
    program = Path(folder) / "bin" / "waypoint"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m waypoint "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "WAYPOINT_HOME": f"{folder}/home",
        "TERM": "xterm-256color",
    }
    try:
        for name in SCENES:
            record(name, environment)
    finally:
        # The folder is removed only when the pool in it is closed.
        subprocess.run([program, "uninstall", "--yes"], env=environment, check=True)
        shutil.rmtree(folder)


# ---- drawing -------------------------------------------------------------------------------------

_CELL, _ROW, _BASE, _MARGIN, _BAR = 8.4, 19, 14, 16, 30
_PALETTE = (
    *("1b1f27", "e06c75", "98c379", "e5c07b", "61afef", "c678dd", "56b6c2", "d7dae0"),
    *("7f848e", "ff7b86", "b5e890", "ffd787", "8cc8ff", "e39af7", "7fdbe8", "ffffff"),
)
_STYLE = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
    "fill:#d7dae0}.b{font-weight:700}.d{fill-opacity:.6}"
)
_HOLD_SECONDS = 6.0
_LONGEST_SECONDS = 1.5
"""A longer silence of a recording is shortened to this."""


class _Row(NamedTuple):
    line: Line
    since: float


def draw(name: str) -> str:
    """The picture of a recording."""
    scene, (rows, seconds) = SCENES[name], _play((RECORDINGS / f"{name}.cast").read_text())
    height = min(len(rows), SHOWN_ROWS) if scene.is_animated else len(rows)
    size = (2 * _MARGIN + COLUMNS * _CELL, _BAR + _MARGIN + height * _ROW)
    total = seconds + _HOLD_SECONDS
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}">',
        f"<title>{escape(scene.title)}</title>",
        "<style>",
        _STYLE,
        *(_animation(rows, height, total) if scene.is_animated else ()),
        "</style>",
        f'<rect width="{size[0]:.0f}" height="{size[1]:.0f}" rx="8" fill="#1b1f27"/>',
        *(f'<circle cx="{18 + 16 * at}" cy="16" r="5" fill="#3e4451"/>' for at in range(3)),
        f'<text x="{size[0] / 2:.0f}" y="21" text-anchor="middle" class="d">{escape(scene.title)}</text>',
        f'<svg y="{_BAR}" height="{height * _ROW}"><g class="s">',
        *(_text(row.line, number) for number, row in enumerate(rows)),
        "</g></svg>",
        "</svg>",
    ]
    return "\n".join(filter(None, out)) + "\n"


def _play(cast: str) -> tuple[list[_Row], float]:
    """What the terminal shows at the end, and since when each row shows it."""
    screen, now = Screen(ALL_ROWS, COLUMNS), 0.0
    shown: dict[int, tuple[str, float]] = {}
    for line in cast.splitlines()[1:]:
        interval, code, data = json.loads(line)
        now += min(interval, _LONGEST_SECONDS)
        assert code == "o", code
        screen.feed(data.encode())
        for number, text in enumerate(screen.text().split("\n")):
            if shown.get(number, ("", 0.0))[0] != text:
                shown[number] = (text, now)
    last = max(number for number, (text, _) in shown.items() if text)
    rows = [
        _Row(line, shown.get(number, ("", 0.0))[1]) for number, line in enumerate(screen.cells()[: last + 1])
    ]
    return rows, now


def _animation(rows: list[_Row], height: int, total: float) -> Iterator[str]:
    """Each row appears when it did; the rows move up when there is no more room. Who wants no movement sees
    the first rows."""
    rules, moved = [], []
    for number, row in enumerate(rows):
        if not row.line.text():
            continue
        at = 100 * row.since / total
        rules.append(f"@keyframes k{number}{{0%{{visibility:hidden}}{at:.2f}%{{visibility:visible}}}}")
        rules.append(f".k{number}{{animation:k{number} {total:.1f}s step-end infinite}}")
        if number >= height:
            moved.append(f"{at:.2f}%{{transform:translateY(-{(number - height + 1) * _ROW}px)}}")
    yield "@media (prefers-reduced-motion:no-preference){"
    yield from rules
    yield f"@keyframes s{{0%{{transform:none}}{''.join(moved)}}}"
    yield f".s{{animation:s {total:.1f}s step-end infinite}}"
    yield "}"


def _text(line: Line, number: int) -> str:
    """A row. What stands apart is placed by itself, so that no font and no viewer moves it."""
    spans, column = [], 0
    for pen, run in groupby(zip(line.chars, line.pens, strict=True), key=lambda cell: cell[1]):
        text = "".join(
            char or "\0" for char, _ in run
        )  # the second half of a wide character takes a cell too
        for words in re.finditer(r"\S+(?: \S+)*", text):
            x = _MARGIN + (column + words.start()) * _CELL
            spans.append(f'<tspan x="{x:.1f}"{_look(pen)}>{escape(words[0].replace(chr(0), ""))}</tspan>')
        column += len(text)
    if not spans:
        return ""
    return f'<text y="{number * _ROW + _BASE}" class="k{number}">{"".join(spans)}</text>'


def _look(pen: str) -> str:
    """The attributes of text that is written with a pen."""
    codes = re.split("[;:]", pen)
    classes = [name for code, name in (("1", "b"), ("2", "d")) if code in codes]
    look = f' class="{" ".join(classes)}"' if classes else ""
    for code in map(int, filter(None, codes)):
        if 30 <= code <= 37 or 90 <= code <= 97:
            look += f' fill="#{_PALETTE[code - 30 if code < 90 else code - 82]}"'
    return look


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record_all()
    for scene_name in SCENES:
        (DOCS / f"{scene_name}.svg").write_text(draw(scene_name))
