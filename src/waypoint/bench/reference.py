"""`make bench-reference`: a full run for docs/performance.md, its pictures, and the ratios that
`make bench-check` compares with.

What people wrote in that file stays: only what is between the two marks is replaced.
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


def generated(found: Report, picture: str) -> str:
    """What the file says between the two marks."""
    lines = [
        "## Numbers to reach",
        "",
        *report.target_table(found),
        "",
        *(f"{line}  " for line in report.machine_lines(found)),
        "",
        f"![The figures as charts]({picture})",
        "",
        "## The same work, done by others",
        *report.peer_tables(found),
        "",
        "## All figures",
        "",
        "Milliseconds; `p50 p95 max` where there was more than one round.",
        *report.workload_tables(found),
    ]
    if found.skipped:
        lines += ["", "Skipped: " + "; ".join(f"{one.what} ({one.why})" for one in found.skipped) + "."]
    return "\n".join(lines)


def fill(text: str, inside: str) -> str:
    """The file with another middle."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise errors.UsageError(f"the file lacks the marks {BEGIN} and {END}", hint="put them back")
    return f"{before}{BEGIN}\n\n{inside}\n\n{END}{after}"


def main() -> int:
    def say(words: str) -> None:
        sys.stderr.write(f"  {words}\n")

    path = DOCS / f"{_NAME}.md"
    try:
        fill(path.read_text(), "")  # before minutes are spent
        found = runner.run(setup.engine_dir(locate().path), say=say)
        if found.failed:
            sys.stdout.write(f"{report.text(found)}\n")
            return 1
        drawn = charts.write(found, DOCS, _NAME)
        path.write_text(fill(path.read_text(), generated(found, drawn[-1].name)))
        quick = compare.measure([one.name for one in compare.RATIOS], say)
        compare.BASELINE.write_bytes(compare.record(quick))
    except errors.WaypointError as error:
        sys.stderr.write(f"waypoint: {error.message}\n  {error.hint}\n")
        return error.exit_status
    sys.stdout.write(f"{report.text(found)}\n")
    for written in (*drawn, path, compare.BASELINE):
        sys.stderr.write(f"  wrote {written}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
