"""`make bench-reference`: a full run for docs/performance.md, its charts, and the ratios that
`make bench-check` compares with.

Only the text between the two marks in that file is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

from waypoint import errors
from waypoint.bench import charts, compare, report, runner
from waypoint.bench.results import Report
from waypoint.home import locate
from waypoint.machine import setup

DOCS = Path(__file__).parents[3] / "docs"
BEGIN = "<!-- from here on written by `make bench-reference` -->"
END = "<!-- up to here -->"
_NAME = "performance"


def generated(result: Report, picture: str) -> str:
    """The text between the two marks."""
    lines = [
        "## Targets",
        "",
        *report.target_table(result),
        "",
        *(f"{line}  " for line in report.machine_lines(result)),
        "",
        f"![The figures as charts]({picture})",
        "",
        "## The same work with other tools",
        *report.peer_tables(result),
        "",
        "## All figures",
        "",
        "Milliseconds; `p50 p95 max` where there was more than one round.",
        *report.workload_tables(result),
    ]
    if result.skipped:
        lines += [
            "",
            "Skipped: " + "; ".join(f"{entry.what} ({entry.why})" for entry in result.skipped) + ".",
        ]
    return "\n".join(lines)


def fill(text: str, inside: str) -> str:
    """The file with the text between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise errors.UsageError(f"the file lacks the marks {BEGIN} and {END}", hint="put them back")
    return f"{before}{BEGIN}\n\n{inside}\n\n{END}{after}"


def main() -> int:
    def say(text: str) -> None:
        sys.stderr.write(f"  {text}\n")

    path = DOCS / f"{_NAME}.md"
    try:
        fill(path.read_text(), "")  # fails here if a mark is missing, not after minutes of measuring
        result = runner.run(setup.engine_dir(locate().path), say=say)
        if result.failed:
            sys.stdout.write(f"{report.text(result)}\n")
            return 1
        picture = charts.write(result, DOCS, _NAME)
        path.write_text(fill(path.read_text(), generated(result, picture.name)))
        quick = compare.measure([ratio.name for ratio in compare.RATIOS], say)
        compare.BASELINE.write_bytes(compare.record(quick))
    except errors.WaypointError as error:
        sys.stderr.write(f"waypoint: {error.message}\n  {error.hint}\n")
        return error.exit_status
    sys.stdout.write(f"{report.text(result)}\n")
    for written in (picture, path, compare.BASELINE):
        sys.stderr.write(f"  wrote {written}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
