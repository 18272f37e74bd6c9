"""The figures as one picture: drawn once as plain shapes, then written as SVG and as PNG.

The SVG needs nothing. For the PNG the shapes are drawn with Pillow, which `requirements-bench.txt` pins and
`install_pillow` brings into the program's own environment when it is missing there.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from waypoint.bench.results import OURS, TARGETS, TREE, Figure, Report, Target, Window

WIDTH, HEIGHT = 1320, 860
_COLUMNS = 3
_INK, _FAINT, _GRID, _PAPER = "#24292f", "#6e7781", "#e4e8ec", "#ffffff"
_COLOURS = ("#0b62c4", "#d9480f", "#2b8a3e", "#862e9c", "#b8860b", "#495057")
_OURS_COLOUR = _COLOURS[0]
_MOST_NAMED = 8
"""Of more values than these not each is named on the axis, and they stand evenly."""


class Line(NamedTuple):
    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    dashed: bool = False


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    colour: str


class Dot(NamedTuple):
    x: float
    y: float
    radius: float
    colour: str


class Text(NamedTuple):
    x: float
    y: float
    """Of the baseline."""
    words: str
    size: float = 12
    colour: str = _INK
    anchor: str = "start"
    """`start`, `middle` or `end`: what of it is at x."""
    bold: bool = False


Shape = Line | Box | Dot | Text


class Series(NamedTuple):
    """One line of a chart, or one colour of its bars."""

    name: str
    values: tuple[tuple[float, float], ...]
    dots: bool = True


class Frame(NamedTuple):
    """The place of a chart on the picture."""

    x: float
    y: float
    width: float
    height: float


# ---- scales ----------------------------------------------------------------------------------------

_FEW_DECADES = 2.2


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in a logarithmic range: powers of ten and, where there are few, 2 and 5 of each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < _FEW_DECADES else (1.0,)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [one for one in found if low * 0.999 <= one <= high * 1.001]


def short(value: float) -> str:
    """`0.5`, `20`, `1k`, `100k`; `1024` stays what it is."""
    if value >= 1000 and value % 100 == 0:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A logarithmic scale from values to places."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * math.log(max(value, low) / low) / span


def _even_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """A little room below and above, at least a factor of ten in all."""
    kept = [value for value in values if value > 0] or [1.0]
    low, high = min(kept) / 1.25, max(kept) * 1.35
    return (low, high) if high / low >= 10 else (low / math.sqrt(10), high * math.sqrt(10))


# ---- charts ----------------------------------------------------------------------------------------


def _title(frame: Frame, title: str, below: str) -> list[Shape]:
    return [
        Text(frame.x, frame.y + 14, title, 14, bold=True),
        Text(frame.x, frame.y + 31, below, 11, _FAINT),
    ]


def lines_chart(
    frame: Frame, title: str, below: str, series: Sequence[Series], unit: str, mark: float | None = None
) -> list[Shape]:
    """Lines over a logarithmic plane, each with its name beside its end. `mark`: a level to reach."""
    shapes = _title(frame, title, below)
    series = [one for one in series if one.values]
    if not series:
        return [*shapes, Text(frame.x, frame.y + 60, "not measured", 12, _FAINT)]
    left, right = frame.x + 40, frame.x + frame.width - 96
    top, bottom = frame.y + 46, frame.y + frame.height - 34
    levels = [y for one in series for _, y in one.values] + ([mark] if mark else [])
    xs = [x for one in series for x, _ in one.values]
    low, high = _bounds(levels)
    place_y = _scale(low, high, bottom, top)
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) * 10
    even = len(set(xs)) > _MOST_NAMED
    place_x = (_even_scale if even else _scale)(first, last, left + 8, right)
    for level in ticks(low, high):
        shapes.append(Line(((left, place_y(level)), (right, place_y(level))), _GRID))
        shapes.append(Text(left - 6, place_y(level) + 4, short(level), 10.5, _FAINT, "end"))
    for x in [first, *(round(last * part / 4) for part in (1, 2, 3)), last] if even else sorted(set(xs)):
        shapes.append(Text(place_x(x), bottom + 16, short(x), 10.5, _FAINT, "middle"))
    shapes.append(Text((left + right) / 2, bottom + 30, unit, 10.5, _FAINT, "middle"))
    if mark:
        shapes.append(Line(((left, place_y(mark)), (right, place_y(mark))), _FAINT, 1.2, dashed=True))
    ends = [(place_y(mark), f"to reach: {short(mark)}", _FAINT)] if mark else []
    for at, one in enumerate(series):
        colour = _COLOURS[at % len(_COLOURS)]
        points = tuple((place_x(x), place_y(y)) for x, y in one.values)
        if one.dots:
            shapes += [Dot(x, y, 3.2, colour) for x, y in points]
            shapes.append(Line(points, colour, 2))
        else:
            shapes += [Dot(x, y, 1.3, colour) for x, y in points]
        ends.append((points[-1][1], one.name, colour))
    shapes += [Text(right + 10, y + 4, name, 11, colour) for y, name, colour in _apart(ends)]
    return shapes


def _apart(ends: Sequence[tuple[float, str, str]], room: float = 14) -> list[tuple[float, str, str]]:
    """Labels in their order, moved so that none is on top of another."""
    placed: list[tuple[float, str, str]] = []
    for y, name, colour in sorted(ends):
        at = max(y, placed[-1][0] + room) if placed else y
        placed.append((at, name, colour))
    return placed


def bars_chart(
    frame: Frame, title: str, below: str, groups: Sequence[tuple[str, Sequence[tuple[str, float]]]]
) -> list[Shape]:
    """Bars with their numbers, in groups, on a logarithmic scale."""
    shapes = _title(frame, title, below)
    values = [value for _, bars in groups for _, value in bars]
    if not values:
        return [*shapes, Text(frame.x, frame.y + 60, "not measured", 12, _FAINT)]
    left, right = frame.x + 88, frame.x + frame.width - 70
    low, high = min(values) / 2, max(values)
    place = _scale(low, high, left, right)
    count = sum(len(bars) for _, bars in groups)
    room = (frame.height - 56 - 20 * len(groups)) / max(count, 1)
    height, y = min(16.0, room - 3), frame.y + 46
    for name, bars in groups:
        shapes.append(Text(frame.x, y + 12, name, 11, _INK, bold=True))
        y += 20
        for who, value in bars:
            colour = _OURS_COLOUR if who.startswith(OURS) else "#adb5bd"
            shapes.append(Text(left - 6, y + height / 2 + 4, who, 11, _INK, "end"))
            shapes.append(Box(left, y, max(2.0, place(value) - left), height, colour))
            told = f"{value:.1f}" if value < 100 else f"{value:,.0f}"
            shapes.append(Text(max(left + 2, place(value)) + 6, y + height / 2 + 4, f"{told} ms", 11, _FAINT))
            y += room
    return shapes


# ---- the picture -----------------------------------------------------------------------------------


def _series(
    report: Report, name: str, workload: str, what: str, window: Window, *, ending: str, one: str = ""
) -> Series:
    """A figure of all cases whose name ends so, over the number that the name begins with. `one`: the name of
    the case of one, where it ends differently."""
    found = []
    for figure in report.figures:
        if (figure.workload, figure.what, figure.window, figure.who) != (workload, what, window, OURS):
            continue
        number, _, rest = figure.case.partition(" ")
        if number.replace(",", "").isdigit() and (rest == ending or figure.case == one):
            found.append((float(number.replace(",", "")), max(figure.p50, 0.01)))
    return Series(name, tuple(sorted(found)))


def _reach(label_part: str) -> float | None:
    found: Target | None = next((one for one in TARGETS if label_part in one.label), None)
    return found.reach if found else None


def _tree_bars(report: Report) -> list[Shape]:
    frame = _frame(2)
    names = list(dict.fromkeys(one.who for one in report.figures if one.workload == "peers"))
    wanted: tuple[tuple[str, str, Window], ...] = (
        ("checkpoint: pause", "checkpoint", "pause"),
        ("checkpoint: until the next command", "checkpoint", "until"),
        ("rollback: until the next command", "rollback", "until"),
    )
    groups = []
    for title, what, window in wanted:
        found: list[tuple[str, Figure | None]] = [
            (who, report.find("peers", "tree", what, window, who)) for who in names
        ]
        bars = [(who, one.p50) for who, one in found if one]
        if bars:
            groups.append((title, bars))
    below = "what the others do not bring back is in the report"
    return bars_chart(frame, "The same work, done by others", below, groups)


def _depth_dots(report: Report) -> list[Shape]:
    values: list[tuple[float, float]] = []
    for case in ("first", "in between, in a hurry", "last"):
        found = report.find("depth", case, "checkpoint", "pause")
        samples = found.samples if found else ()
        values += [(len(values) + at + 1.0, max(sample, 0.01)) for at, sample in enumerate(samples)]
    series = [Series("pause", tuple(values), dots=False)] if values else []
    below = "pause of each checkpoint in one line of history"
    return lines_chart(_frame(4), "Depth", below, series, "checkpoint number", _reach("pause seen"))


def _frame(place: int) -> Frame:
    wide, high = (WIDTH - 80) / _COLUMNS, (HEIGHT - 90) / 2
    return Frame(40 + (place % _COLUMNS) * wide, 80 + (place // _COLUMNS) * high, wide - 26, high - 20)


def picture(report: Report) -> list[Shape]:
    """All charts of a run."""
    machine = report.machine
    head = f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, {report.at[:10]}"
    shapes: list[Shape] = [
        Box(0, 0, WIDTH, HEIGHT, _PAPER),
        Text(40, 38, "What Waypoint costs", 20, bold=True),
        Text(40, 58, f"milliseconds, p50; {head}", 12, _FAINT),
    ]
    dirty = [
        _series(report, f"{share}% dirty", "memory", "checkpoint", "pause", ending=f"MB, {share}% dirty")
        for share in (0, 1, 10, 100)
    ]
    below = "checkpoint, by how much was written since the last one"
    shapes += lines_chart(_frame(0), "Pause and memory", below, dirty, "MB in one process")
    back = [
        _series(report, "spare", "memory", "rollback, spare", "until", ending="MB"),
        _series(report, "cold", "memory", "rollback, cold", "until", ending="MB"),
    ]
    below = "until the next command has run"
    shapes += lines_chart(_frame(1), "Rollback and memory", below, back, "MB in one process", 5)
    shapes += _tree_bars(report)
    forks = [
        _series(report, "all verified", "fan-out", "fork", "until", ending="forks", one="1 fork"),
        _series(report, "api", "fan-out", "fork", "api", ending="forks", one="1 fork"),
    ]
    shapes += lines_chart(_frame(3), "Fan-out", f"live forks of {TREE}", forks, "forks")
    shapes += _depth_dots(report)
    many = [
        _series(report, "pause", "files", "checkpoint", "pause", ending="files"),
        _series(report, "checkpoint", "files", "checkpoint", "api", ending="files"),
        _series(report, "diff", "files", "diff", "api", ending="files"),
    ]
    below = "10 changed between two points"
    shapes += lines_chart(_frame(5), "Files", below, many, "files in the session")
    return shapes


# ---- writing ---------------------------------------------------------------------------------------


def svg(shapes: Sequence[Shape]) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="Helvetica, Arial, sans-serif"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>']
    for one in shapes:
        match one:
            case Line():
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in one.points)
                dashes = ' stroke-dasharray="4 3"' if one.dashed else ""
                lines.append(
                    f'<polyline points="{points}" fill="none" stroke="{one.colour}"'
                    f' stroke-width="{one.width}"{dashes}/>'
                )
            case Box():
                lines.append(
                    f'<rect x="{one.x:.1f}" y="{one.y:.1f}" width="{one.width:.1f}" height="{one.height:.1f}"'
                    f' fill="{one.colour}"/>'
                )
            case Dot():
                lines.append(
                    f'<circle cx="{one.x:.1f}" cy="{one.y:.1f}" r="{one.radius}" fill="{one.colour}"/>'
                )
            case Text():
                weight = ' font-weight="bold"' if one.bold else ""
                lines.append(
                    f'<text x="{one.x:.1f}" y="{one.y:.1f}" font-size="{one.size}" fill="{one.colour}"'
                    f' text-anchor="{one.anchor}"{weight}>{escape(one.words)}</text>'
                )
    return "\n".join([*lines, "</svg>"]) + "\n"


REQUIREMENTS = Path(__file__).parents[3] / "requirements-bench.txt"


def can_draw_png() -> bool:
    return importlib.util.find_spec("PIL") is not None


def install_pillow() -> bool:
    """Brings Pillow into the program's own environment. False where that is not possible: the machine's
    Python is nobody's to change, and there may be no package index."""
    if can_draw_png():
        return True
    if sys.prefix == sys.base_prefix or not REQUIREMENTS.exists():
        return False
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--no-input", "--retries", "1"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "-r", str(REQUIREMENTS)], capture_output=True, check=False
    )
    importlib.invalidate_caches()
    return done.returncode == 0 and can_draw_png()


_SHARPNESS = 2
"""Pixels per unit in the PNG."""
_SHADES = 128
_SMOOTH = 2
"""Drawn so many times as large, and then made smaller: Pillow's own lines have edges like stairs."""


def png(shapes: Sequence[Shape], path: Path) -> None:
    """Needs Pillow."""
    from PIL import Image, ImageDraw, ImageFont

    factor = _SHARPNESS * _SMOOTH
    image = Image.new("RGB", (WIDTH * factor, HEIGHT * factor), _PAPER)
    draw = ImageDraw.Draw(image)
    for one in shapes:
        match one:
            case Line() if one.dashed:
                (x0, y), (x1, _) = one.points[0], one.points[-1]
                for start in range(round(x0), round(x1), 7):
                    end = min(start + 4, x1)
                    draw.line(
                        [(start * factor, y * factor), (end * factor, y * factor)],
                        fill=one.colour,
                        width=round(one.width * factor),
                    )
            case Line():
                points = [(x * factor, y * factor) for x, y in one.points]
                draw.line(points, fill=one.colour, width=round(one.width * factor), joint="curve")
            case Box():
                ends = (one.x, one.y, one.x + one.width, one.y + one.height)
                draw.rectangle([round(end * factor) for end in ends], fill=one.colour)
            case Dot():
                ends = (one.x - one.radius, one.y - one.radius, one.x + one.radius, one.y + one.radius)
                draw.ellipse([end * factor for end in ends], fill=one.colour)
            case Text():
                font = ImageFont.load_default(one.size * factor)
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[one.anchor]
                weight = factor // 3 if one.bold else 0
                draw.text(
                    (one.x * factor, one.y * factor),
                    one.words,
                    fill=one.colour,
                    font=font,
                    anchor=anchor,
                    stroke_width=weight,
                    stroke_fill=one.colour,
                )
    small = image.resize((WIDTH * _SHARPNESS, HEIGHT * _SHARPNESS), Image.Resampling.LANCZOS)
    small.quantize(_SHADES).save(path, optimize=True)


def write(report: Report, folder: Path, name: str = "bench") -> list[Path]:
    """Writes the picture; returns what was written. The PNG only where it can be drawn."""
    shapes = picture(report)
    drawn = folder / f"{name}.svg"
    drawn.write_text(svg(shapes))
    if not install_pillow():
        return [drawn]
    png(shapes, folder / f"{name}.png")
    return [drawn, folder / f"{name}.png"]
