"""The figures of a run as one SVG picture of six charts.

The charts are first laid out as plain shapes (`picture`), which the tests can check, then written (`svg`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from waypoint.bench.results import OURS, TARGETS, TREE, Report, Window

WIDTH, HEIGHT = 1320, 860
_COLUMNS = 3
_INK, _FAINT, _GRID, _PAPER = "#24292f", "#6e7781", "#e4e8ec", "#ffffff"
_COLOURS = ("#0b62c4", "#d9480f", "#2b8a3e", "#862e9c", "#b8860b", "#495057")
_OURS_COLOUR = _COLOURS[0]
_MAX_LABELLED = 8
"""With more x values than this, the x axis is linear and only some of its values are labelled."""


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
    """The baseline."""
    text: str
    size: float = 12
    colour: str = _INK
    anchor: str = "start"
    """`start`, `middle` or `end`: which part of the text is at x."""
    bold: bool = False


Shape = Line | Box | Dot | Text


class Series(NamedTuple):
    """One line of a chart, or one colour of its bars."""

    name: str
    values: tuple[tuple[float, float], ...]
    dots: bool = True


class Frame(NamedTuple):
    """The rectangle of a chart on the picture."""

    x: float
    y: float
    width: float
    height: float


# ---- scales ----------------------------------------------------------------------------------------

_FEW_DECADES = 2.2


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in a logarithmic range: powers of ten and, in a short range, also 2 and 5 times those."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1.0, 2.0, 5.0) if math.log10(high / low) < _FEW_DECADES else (1.0,)
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def short(value: float) -> str:
    """`0.5`, `20`, `1k`, `100k`; `1024` is not shortened."""
    if value >= 1000 and value % 100 == 0:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def _log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Maps values to coordinates, logarithmically."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * math.log(max(value, low) / low) / span


def _linear_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: some margin subtitle and above, and at least a factor of ten."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive) / 1.25, max(positive) * 1.35
    return (low, high) if high / low >= 10 else (low / math.sqrt(10), high * math.sqrt(10))


# ---- charts ----------------------------------------------------------------------------------------


def _title(frame: Frame, title: str, subtitle: str) -> list[Shape]:
    return [
        Text(frame.x, frame.y + 14, title, 14, bold=True),
        Text(frame.x, frame.y + 31, subtitle, 11, _FAINT),
    ]


def lines_chart(
    frame: Frame, title: str, subtitle: str, series: Sequence[Series], unit: str, mark: float | None = None
) -> list[Shape]:
    """Lines on logarithmic axes, each with its name at its end. `mark`: the level of a target."""
    shapes = _title(frame, title, subtitle)
    series = [line for line in series if line.values]
    if not series:
        return [*shapes, Text(frame.x, frame.y + 60, "not measured", 12, _FAINT)]
    left, right = frame.x + 40, frame.x + frame.width - 96
    top, bottom = frame.y + 46, frame.y + frame.height - 34
    levels = [y for line in series for _, y in line.values] + ([mark] if mark else [])
    xs = [x for line in series for x, _ in line.values]
    low, high = _bounds(levels)
    place_y = _log_scale(low, high, bottom, top)
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) * 10
    linear = len(set(xs)) > _MAX_LABELLED
    place_x = (_linear_scale if linear else _log_scale)(first, last, left + 8, right)
    for level in ticks(low, high):
        shapes.append(Line(((left, place_y(level)), (right, place_y(level))), _GRID))
        shapes.append(Text(left - 6, place_y(level) + 4, short(level), 10.5, _FAINT, "end"))
    for x in [first, *(round(last * part / 4) for part in (1, 2, 3)), last] if linear else sorted(set(xs)):
        shapes.append(Text(place_x(x), bottom + 16, short(x), 10.5, _FAINT, "middle"))
    shapes.append(Text((left + right) / 2, bottom + 30, unit, 10.5, _FAINT, "middle"))
    if mark:
        shapes.append(Line(((left, place_y(mark)), (right, place_y(mark))), _FAINT, 1.2, dashed=True))
    ends = [(place_y(mark), f"to reach: {short(mark)}", _FAINT)] if mark else []
    for at, line in enumerate(series):
        colour = _COLOURS[at % len(_COLOURS)]
        points = tuple((place_x(x), place_y(y)) for x, y in line.values)
        if line.dots:
            shapes += [Dot(x, y, 3.2, colour) for x, y in points]
            shapes.append(Line(points, colour, 2))
        else:
            shapes += [Dot(x, y, 1.3, colour) for x, y in points]
        ends.append((points[-1][1], line.name, colour))
    shapes += [Text(right + 10, y + 4, name, 11, colour) for y, name, colour in _spread_labels(ends)]
    return shapes


def _spread_labels(
    labels: Sequence[tuple[float, str, str]], distance: float = 14
) -> list[tuple[float, str, str]]:
    """Labels (y, name, colour) from top to bottom, moved down where they would overlap."""
    result: list[tuple[float, str, str]] = []
    for y, name, colour in sorted(labels):
        at = max(y, result[-1][0] + distance) if result else y
        result.append((at, name, colour))
    return result


def bars_chart(
    frame: Frame, title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[tuple[str, float]]]]
) -> list[Shape]:
    """Bars with their numbers, in groups, on a logarithmic scale."""
    shapes = _title(frame, title, subtitle)
    values = [value for _, bars in groups for _, value in bars]
    if not values:
        return [*shapes, Text(frame.x, frame.y + 60, "not measured", 12, _FAINT)]
    left, right = frame.x + 88, frame.x + frame.width - 70
    low, high = min(values) / 2, max(values)
    place = _log_scale(low, high, left, right)
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
            label = f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
            shapes.append(Text(max(left + 2, place(value)) + 6, y + height / 2 + 4, label, 11, _FAINT))
            y += room
    return shapes


# ---- the picture -----------------------------------------------------------------------------------


def _series(
    report: Report, name: str, workload: str, what: str, window: Window, *, ending: str, singular: str = ""
) -> Series:
    """The figures of all cases named `NUMBER ending`, over that number. `singular`: the name of the case
    with the number 1, if it ends differently."""
    values = []
    for figure in report.figures:
        if (figure.workload, figure.what, figure.window, figure.who) != (workload, what, window, OURS):
            continue
        number, _, rest = figure.case.partition(" ")
        if number.replace(",", "").isdigit() and (rest == ending or figure.case == singular):
            values.append((float(number.replace(",", "")), max(figure.p50, 0.01)))
    return Series(name, tuple(sorted(values)))


def _target_ms(label_part: str) -> float | None:
    return next((target.reach for target in TARGETS if label_part in target.label), None)


def _tree_bars(report: Report) -> list[Shape]:
    frame = _frame(2)
    names = list(dict.fromkeys(figure.who for figure in report.figures if figure.workload == "peers"))
    compared: tuple[tuple[str, str, Window], ...] = (
        ("checkpoint: pause", "checkpoint", "pause"),
        ("checkpoint: until the next command", "checkpoint", "until"),
        ("rollback: until the next command", "rollback", "until"),
    )
    groups = []
    for title, what, window in compared:
        figures = [report.find("peers", "tree", what, window, who) for who in names]
        bars = [(figure.who, figure.p50) for figure in figures if figure]
        if bars:
            groups.append((title, bars))
    subtitle = "what the others do not restore is in the report"
    return bars_chart(frame, "The same work with other tools", subtitle, groups)


def _depth_dots(report: Report) -> list[Shape]:
    values: list[tuple[float, float]] = []
    for case in ("first", "in between, in a hurry", "last"):
        figure = report.find("depth", case, "checkpoint", "pause")
        samples = figure.samples if figure else ()
        values += [(len(values) + at + 1.0, max(sample, 0.01)) for at, sample in enumerate(samples)]
    series = [Series("pause", tuple(values), dots=False)] if values else []
    subtitle = "pause of each checkpoint in one line of history"
    return lines_chart(_frame(4), "Depth", subtitle, series, "checkpoint number", _target_ms("pause seen"))


def _frame(number: int) -> Frame:
    """The rectangle of the n-th chart, row by row."""
    wide, high = (WIDTH - 80) / _COLUMNS, (HEIGHT - 90) / 2
    return Frame(40 + (number % _COLUMNS) * wide, 80 + (number // _COLUMNS) * high, wide - 26, high - 20)


def picture(report: Report) -> list[Shape]:
    """All charts of a run, as shapes."""
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
    subtitle = "checkpoint, by how much was written since the last one"
    shapes += lines_chart(_frame(0), "Pause and memory", subtitle, dirty, "MB in one process")
    back = [
        _series(report, "spare", "memory", "rollback, spare", "until", ending="MB"),
        _series(report, "cold", "memory", "rollback, cold", "until", ending="MB"),
    ]
    subtitle = "until the next command has run"
    shapes += lines_chart(_frame(1), "Rollback and memory", subtitle, back, "MB in one process", 5)
    shapes += _tree_bars(report)
    forks = [
        _series(report, "all verified", "fan-out", "fork", "until", ending="forks", singular="1 fork"),
        _series(report, "api", "fan-out", "fork", "api", ending="forks", singular="1 fork"),
    ]
    shapes += lines_chart(_frame(3), "Fan-out", f"live forks of {TREE}", forks, "forks")
    shapes += _depth_dots(report)
    many = [
        _series(report, "pause", "files", "checkpoint", "pause", ending="files"),
        _series(report, "checkpoint", "files", "checkpoint", "api", ending="files"),
        _series(report, "diff", "files", "diff", "api", ending="files"),
    ]
    subtitle = "10 changed between two points"
    shapes += lines_chart(_frame(5), "Files", subtitle, many, "files in the session")
    return shapes


# ---- writing ---------------------------------------------------------------------------------------


def svg(shapes: Sequence[Shape]) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="Helvetica, Arial, sans-serif"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>']
    for shape in shapes:
        match shape:
            case Line():
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
                dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
                lines.append(
                    f'<polyline points="{points}" fill="none" stroke="{shape.colour}"'
                    f' stroke-width="{shape.width}"{dashes}/>'
                )
            case Box():
                lines.append(
                    f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}"'
                    f' height="{shape.height:.1f}" fill="{shape.colour}"/>'
                )
            case Dot():
                place = f'cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.radius}"'
                lines.append(f'<circle {place} fill="{shape.colour}"/>')
            case Text():
                weight = ' font-weight="bold"' if shape.bold else ""
                lines.append(
                    f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}"'
                    f' fill="{shape.colour}" text-anchor="{shape.anchor}"{weight}>{escape(shape.text)}</text>'
                )
    return "\n".join([*lines, "</svg>"]) + "\n"


def write(report: Report, folder: Path, name: str = "bench") -> Path:
    """Writes the charts as one SVG file; returns its path."""
    path = folder / f"{name}.svg"
    path.write_text(svg(picture(report)))
    return path
