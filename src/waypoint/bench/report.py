"""A run as tables: text for the terminal, and markdown. Nothing here prints.

Figures are shown as `p50 p95 max`. A ratio is another tool's p50 divided by Waypoint's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from waypoint.bench.results import OURS, TARGETS, Figure, Report, Target, Unit, Window
from waypoint.text.units import size

WINDOWS: tuple[tuple[Window, str], ...] = (("pause", "pause"), ("api", "api"), ("until", "until a command"))
_COMPARED: tuple[tuple[str, Window, str], ...] = (
    ("checkpoint", "pause", "checkpoint: pause"),
    ("checkpoint", "until", "checkpoint: until"),
    ("rollback", "until", "rollback: until"),
)


def number(value: float, unit: Unit = "ms") -> str:
    """`0.42`, `4.2`, `42`, `4,200`; `12 MB`."""
    if unit == "bytes":
        return size(int(value))
    if unit == "count":
        return f"{value:,.0f}"
    if value < 1:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def spread(figure: Figure | None) -> str:
    """`20.5  23.3  24.1`."""
    if figure is None:
        return "–"
    if figure.rounds == 1:
        return number(figure.p50, figure.unit)
    return "  ".join(number(value, figure.unit) for value in (figure.p50, figure.p95, figure.max))


def ratio(theirs: Figure | None, ours: Figure | None) -> str:
    """`×3.1`: theirs takes 3.1 times as long."""
    if theirs is None or ours is None or ours.p50 <= 0:
        return ""
    value = theirs.p50 / ours.p50
    return f"×{value:.2f}" if value < 1 else f"×{value:.1f}" if value < 10 else f"×{value:.0f}"


def target_rows(report: Report, targets: Sequence[Target] = TARGETS) -> list[tuple[str, str, str, str]]:
    """For each target: its label, the value to reach, the measured value, and a mark."""
    rows = []
    for target in targets:
        figure = target.figure(report)
        sign, unit = ("≥", "") if target.unit == "count" else ("≤", " ms")
        mark = {True: "✔", False: "✖", None: "–"}[target.reached(report)]
        measured = "not measured" if figure is None else f"{number(figure.p50, target.unit)}{unit}"
        rows.append((target.label, f"{sign} {target.reach:,g}{unit}", measured, mark))
    return rows


def operation_rows(report: Report, workload: str) -> Iterator[tuple[str, str, Sequence[str], int]]:
    """Case, operation, one cell per window, rounds. Figures without a window are left out."""
    operations = dict.fromkeys(
        (figure.case, figure.what)
        for figure in report.figures
        if figure.workload == workload and figure.window and figure.who == OURS
    )
    for case, what in operations:
        figures = [report.find(workload, case, what, window) for window, _ in WINDOWS]
        yield case, what, [spread(figure) for figure in figures], max(f.rounds for f in figures if f)


def plain_rows(report: Report, workload: str) -> Iterator[tuple[str, str, str]]:
    """Figures without a window (counts, sizes, total times), and those of programs used as a yardstick."""
    for figure in report.figures:
        if figure.workload == workload and (
            not figure.window or (figure.who != OURS and workload != "peers")
        ):
            unit = " ms" if figure.unit == "ms" else ""
            yield figure.case, figure.what, f"{number(figure.p50, figure.unit)}{unit}"


def peer_rows(report: Report, case: str) -> list[list[str]]:
    """One row per tool: its name, then value and ratio of each compared operation."""
    names = dict.fromkeys(
        figure.who for figure in report.figures if figure.workload == "peers" and figure.case == case
    )
    rows = []
    for who in names:
        row = [who]
        for what, window, _ in _COMPARED:
            theirs = report.find("peers", case, what, window, who)
            ours = report.find("peers", case, what, window)
            value = "–" if theirs is None else number(theirs.p50)
            row += [value, "" if who == OURS else ratio(theirs, ours)]
        rows.append(row)
    return rows


def _columns(rows: Sequence[Sequence[str]], gap: str = "   ") -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _workloads(report: Report) -> list[str]:
    return list(dict.fromkeys(figure.workload for figure in report.figures))


def machine_lines(report: Report) -> list[str]:
    machine = report.machine
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    memory = f"the first write to fresh memory costs {machine.floor_ms_per_mb} ms/MB here"
    system = f"{machine.system}, Linux {machine.kernel}"
    return [
        f"{machine.cpu}, {cores}, {size(machine.memory_bytes)}; {system}; {machine.disk}",
        ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
        f"load before the run {machine.load}; {memory}",
        f"{report.at}, {'quick run' if report.quick else 'full run'}, {report.seconds:.0f} s",
    ]


def text(report: Report) -> str:
    """For the terminal."""
    lines = machine_lines(report)
    for workload in _workloads(report):
        lines += ["", f"{workload}   (ms: p50 p95 max)"]
        if workload == "peers":
            for case in report.cases(workload):
                head = ["", *(cell for _, _, title in _COMPARED for cell in (title, "ratio"))]
                rows = [head, *peer_rows(report, case)]
                lines += [f"  {case}", *(f"    {line}" for line in _columns(rows))]
            lines += [f"    {who}: {covers}" for who, covers in report.covers.items()]
            continue
        rows = [
            [case, what, *cells, str(rounds)]
            for case, what, cells, rounds in operation_rows(report, workload)
        ]
        if rows:
            rows.insert(0, ["", "", *(title for _, title in WINDOWS), "rounds"])
            lines += [f"  {line}" for line in _columns(rows)]
        plain = [list(row) for row in plain_rows(report, workload)]
        if plain:
            lines += [f"  {line}" for line in _columns(plain)]
    measured = [row for row in target_rows(report) if row[3] != "–"]
    if measured:
        lines += [
            "",
            "targets",
            *(f"  {line}" for line in _columns([list(row) for row in measured])),
        ]
    lines += [f"skipped {entry.what}: {entry.why}" for entry in report.skipped]
    lines += [f"FAILED {entry.what}: {entry.why}" for entry in report.failed]
    return "\n".join(lines)


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]


def target_table(report: Report) -> list[str]:
    """The targets, in markdown."""
    rows = [(*row, target.elsewhere) for row, target in zip(target_rows(report), TARGETS, strict=True)]
    return _markdown_table(("what (p50)", "target", "measured", "", "best value published elsewhere"), rows)


def peer_tables(report: Report) -> list[str]:
    lines = []
    for case in report.cases("peers"):
        head = ["", *(cell for _, _, title in _COMPARED for cell in (f"{title} (ms)", "ratio"))]
        lines += ["", f"**{case}**", "", *_markdown_table(head, peer_rows(report, case))]
    covers = _markdown_table(("", "what it restores"), report.covers.items())
    return [*lines, "", *covers] if lines else []


def workload_tables(report: Report) -> list[str]:
    lines = []
    for workload in _workloads(report):
        if workload == "peers":
            continue
        lines += ["", f"### {workload}", ""]
        head = ("case", "what", *(f"{title}: p50 p95 max" for _, title in WINDOWS), "rounds")
        rows = [
            (case, what, *cells, str(rounds))
            for case, what, cells, rounds in operation_rows(report, workload)
        ]
        if rows:
            lines += _markdown_table(head, rows)
        plain = list(plain_rows(report, workload))
        if plain:
            lines += ["", *_markdown_table(("case", "what", "value"), plain)]
    return lines


def markdown(report: Report, picture: str | None = None) -> str:
    """The whole report."""
    lines = ["# What Waypoint costs", "", *(f"{line}  " for line in machine_lines(report))]
    if picture:
        lines += ["", f"![The figures as charts]({picture})"]
    lines += ["", "## Targets", "", *target_table(report)]
    if peers := peer_tables(report):
        lines += ["", "## The same work with other tools", *peers]
    lines += ["", "## All figures", "", "Milliseconds.", *workload_tables(report)]
    if report.failed:
        lines += ["", "## Failed", "", *(f"- {entry.what}: {entry.why}" for entry in report.failed)]
    if report.skipped:
        lines += ["", "## Skipped", "", *(f"- {entry.what}: {entry.why}" for entry in report.skipped)]
    return "\n".join(lines) + "\n"


def write(report: Report, folder: Path) -> list[Path]:
    """Writes a run as JSON, markdown and SVG; returns the paths."""
    from waypoint.bench import charts

    picture = charts.write(report, folder)
    data, page = folder / "bench.json", folder / "bench.md"
    data.write_bytes(report.encode())
    page.write_text(markdown(report, picture.name))
    return [data, page, picture]
