"""How a run is told: a table for the terminal, and the same in markdown. Nothing here prints.

Numbers come as `p50 p95 max`; a ratio is how many times as long as ours somebody else's p50 is.
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
    """What, how much is to be reached, what was, and whether that is enough."""
    rows = []
    for target in targets:
        found = target.figure(report)
        sign, unit = ("≥", "") if target.unit == "count" else ("≤", " ms")
        mark = {True: "✔", False: "✖", None: "–"}[target.reached(report)]
        told = "not measured" if found is None else f"{number(found.p50, target.unit)}{unit}"
        rows.append((target.label, f"{sign} {target.reach:,g}{unit}", told, mark))
    return rows


def operation_rows(report: Report, workload: str) -> Iterator[tuple[str, str, Sequence[str], int]]:
    """Case, operation, one cell per window, rounds. Figures without a window are not among them."""
    seen = set()
    for one in report.figures:
        if one.workload != workload or not one.window or one.who != OURS or (one.case, one.what) in seen:
            continue
        seen.add((one.case, one.what))
        found = [report.find(workload, one.case, one.what, window) for window, _ in WINDOWS]
        rounds = max(figure.rounds for figure in found if figure)
        yield one.case, one.what, [spread(figure) for figure in found], rounds


def plain_rows(report: Report, workload: str) -> Iterator[tuple[str, str, str]]:
    """What has no window: counts, sizes, whole times; and yardsticks that are not ours."""
    for one in report.figures:
        if one.workload == workload and (not one.window or (one.who != OURS and workload != "peers")):
            unit = " ms" if one.unit == "ms" else ""
            yield one.case, one.what, f"{number(one.p50, one.unit)}{unit}"


def peer_rows(report: Report, case: str) -> list[list[str]]:
    """Who, then figure and ratio for each thing that is compared."""
    names = dict.fromkeys(one.who for one in report.figures if one.workload == "peers" and one.case == case)
    rows = []
    for who in names:
        row = [who]
        for what, window, _ in _COMPARED:
            theirs = report.find("peers", case, what, window, who)
            ours = report.find("peers", case, what, window)
            told = "–" if theirs is None else number(theirs.p50)
            row += [told, "" if who == OURS else ratio(theirs, ours)]
        rows.append(row)
    return rows


def _columns(rows: Sequence[Sequence[str]], gap: str = "   ") -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _workloads(report: Report) -> list[str]:
    return list(dict.fromkeys(one.workload for one in report.figures))


def machine_lines(report: Report) -> list[str]:
    machine = report.machine
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    memory = f"the first touch of memory costs {machine.floor_ms_per_mb} ms/MB here"
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
            "numbers to reach",
            *(f"  {line}" for line in _columns([list(row) for row in measured])),
        ]
    lines += [f"skipped {one.what}: {one.why}" for one in report.skipped]
    lines += [f"FAILED {one.what}: {one.why}" for one in report.failed]
    return "\n".join(lines)


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]


def target_table(report: Report) -> list[str]:
    """The numbers to reach, in markdown."""
    rows = [(*row, target.elsewhere) for row, target in zip(target_rows(report), TARGETS, strict=True)]
    return _markdown_table(("what (p50)", "reach", "reached", "", "best known elsewhere"), rows)


def peer_tables(report: Report) -> list[str]:
    lines = []
    for case in report.cases("peers"):
        head = ["", *(cell for _, _, title in _COMPARED for cell in (f"{title} (ms)", "ratio"))]
        lines += ["", f"**{case}**", "", *_markdown_table(head, peer_rows(report, case))]
    covered = _markdown_table(("", "what it brings back"), report.covers.items())
    return [*lines, "", *covered] if lines else []


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
    """A whole report."""
    lines = ["# What Waypoint costs", "", *(f"{line}  " for line in machine_lines(report))]
    if picture:
        lines += ["", f"![The figures as charts]({picture})"]
    lines += ["", "## Numbers to reach", "", *target_table(report)]
    if peers := peer_tables(report):
        lines += ["", "## The same work, done by others", *peers]
    lines += ["", "## All figures", "", "Milliseconds.", *workload_tables(report)]
    if report.failed:
        lines += ["", "## Failed", "", *(f"- {one.what}: {one.why}" for one in report.failed)]
    if report.skipped:
        lines += ["", "## Skipped", "", *(f"- {one.what}: {one.why}" for one in report.skipped)]
    return "\n".join(lines) + "\n"


def write(report: Report, folder: Path) -> list[Path]:
    """Writes everything about a run; returns what was written."""
    from waypoint.bench import charts

    drawn = charts.write(report, folder)
    data, told = folder / "bench.json", folder / "bench.md"
    data.write_bytes(report.encode())
    told.write_text(markdown(report, drawn[-1].name))
    return [data, told, *drawn]
