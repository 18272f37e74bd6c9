"""What the benchmark makes of its samples: percentiles, tables, charts, comparisons."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint import errors
from waypoint.bench import charts, compare, reference, report, runner, workloads
from waypoint.bench.peers import OTHERS
from waypoint.bench.results import TARGETS, TREE, Figure, Machine, Report, Skipped, percentile
from waypoint.cli import spec, verbs

MACHINE = Machine(
    cpu="A CPU",
    cores=2,
    memory_bytes=8 << 30,
    kernel="6.18",
    system="Debian",
    disk="ext4 on /dev/vda",
    versions={"criu": "4.2"},
    load=0.1,
    floor_ms_per_mb=0.3,
)


def figure(path: str, *samples: float, who: str = "waypoint", unit: Any = "ms") -> Figure:
    workload, case, what, window = path.split("/")
    return Figure(
        workload=workload,
        case=case,
        what=what,
        window=window,  # type: ignore[arg-type]
        samples=samples,
        who=who,
        unit=unit,
    )


def make_report(*figures: Figure, **more: Any) -> Report:
    return Report(
        at="2026-01-02T03:04:05+00:00", quick=True, seconds=12.0, machine=MACHINE, figures=figures, **more
    )


SMALL = make_report(
    figure(f"tree/{TREE}/checkpoint/pause", 10, 20, 60),
    figure(f"tree/{TREE}/checkpoint/api", 40, 50, 90),
    figure("memory/16 MB, 1% dirty/checkpoint/pause", 8),
    figure("memory/1024 MB, 1% dirty/checkpoint/pause", 80),
    figure("fan-out/1 fork/fork/until", 40),
    figure("fan-out/16 forks/fork/until", 400),
    figure("fan-out/16 forks/memory per idle fork/", 3 << 20, unit="bytes"),
    figure("depth/first/checkpoint/pause", *range(1, 30)),
    figure("peers/tree/checkpoint/pause", 20),
    figure("peers/tree/rollback/until", 40),
    figure("peers/tree/rollback/until", 20, who="criu"),
    figure("peers/tree/rollback/until", 900, who="cp"),
    skipped=(Skipped(what="podman", why="podman is not installed"),),
    covers={"waypoint": "everything", "criu": "processes", "cp": "files"},
)


# ---- numbers ---------------------------------------------------------------------------------------


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.5) == 1.5
    assert percentile([7], 0.95) == 7
    assert percentile(range(101), 0.95) == 95
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_never_outside_its_samples(samples: list[float], share: float) -> None:
    assert min(samples) <= percentile(samples, share) <= max(samples)


def test_a_run_survives_being_written_and_read() -> None:
    assert Report.decode(SMALL.encode()) == SMALL


def test_json_has_the_percentiles_beside_the_rounds() -> None:
    import json

    first = json.loads(SMALL.encode())["figures"][0]
    assert (first["p50"], first["max"], first["rounds"]) == (20, 60, 3)
    assert first["p95"] == pytest.approx(56)


def test_a_number_to_reach_is_reached_missed_or_not_measured() -> None:
    judged = {target.label: target.reached(SMALL) for target in TARGETS}
    assert judged["checkpoint: pause seen by the processes"] is True
    assert judged["1 GB of memory, 1% of it written since: pause"] is False
    assert judged["socket round trip"] is None


def test_more_is_better_where_something_is_counted() -> None:
    enough = make_report(figure("depth/all/checkpoints/", 1000, unit="count"))
    target = next(target for target in TARGETS if target.unit == "count")
    assert target.reached(enough)
    assert not target.reached(make_report(figure("depth/all/checkpoints/", 58, unit="count")))


# ---- tables ----------------------------------------------------------------------------------------


def test_the_table_has_ratios_and_what_was_skipped() -> None:
    text = report.text(SMALL)
    assert "10.0" not in text.split("\ntargets\n")[0].split("checkpoint")[0]
    assert "20.0  56.0  60.0" in text
    assert "×0.50" in text  # CRIU alone takes half as long
    assert "×22" in text  # and copying much longer
    assert "skipped podman: podman is not installed" in text
    assert "3.0 MB" in text


def test_failed_workloads_are_reported() -> None:
    wrong = make_report(failed=(Skipped(what="tree", why="the shell is at 3"),))
    assert "FAILED tree: the shell is at 3" in report.text(wrong)
    assert "- tree: the shell is at 3" in report.markdown(wrong)


def test_markdown_has_whole_tables() -> None:
    page = report.markdown(SMALL, "bench.svg")
    assert "![The figures as charts](bench.svg)" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for above, below in itertools.pairwise(rows):
        if below.startswith("|---"):
            assert above.count("|") == below.count("|")
    assert "| checkpoint: pause seen by the processes | ≤ 20 ms | 20.0 ms | ✔ |" in page


# ---- charts ----------------------------------------------------------------------------------------


def test_the_svg_is_well_formed_and_nothing_leaves_it() -> None:
    shapes = charts.picture(SMALL)
    root = ET.fromstring(charts.svg(shapes))
    assert root.tag.endswith("svg")
    texts = [shape.text for shape in shapes if isinstance(shape, charts.Text)]
    assert "Fan-out" in texts
    assert "1% dirty" in texts
    for shape in shapes:
        places = shape.points if isinstance(shape, charts.Line) else ((shape.x, shape.y),)
        for x, y in places:
            assert 0 <= x <= charts.WIDTH
            assert 0 <= y <= charts.HEIGHT


def test_names_in_a_picture_cannot_break_it() -> None:
    odd = charts.svg([charts.Text(1, 1, "<a & b>")])
    assert [element.text for element in ET.fromstring(odd)] == ["<a & b>"]


def test_a_picture_of_nothing_says_so() -> None:
    texts = [shape.text for shape in charts.picture(make_report()) if isinstance(shape, charts.Text)]
    assert texts.count("not measured") == 6


def test_a_run_is_written_as_three_files(tmp_path: Path) -> None:
    written = report.write(SMALL, tmp_path)
    assert {path.name for path in written} == {"bench.json", "bench.md", "bench.svg"}
    assert all(path.stat().st_size > 500 for path in written)


@given(st.floats(1e-3, 1e5), st.floats(1.5, 1e6))
def test_ticks_are_inside_and_in_order(low: float, factor: float) -> None:
    ticks = charts.ticks(low, low * factor)
    assert ticks == sorted(ticks)
    assert all(low * 0.99 <= tick <= low * factor * 1.01 for tick in ticks)
    assert ticks or math.log10(factor) < 1


# ---- comparing -------------------------------------------------------------------------------------


def test_a_ratio_is_of_two_figures_of_one_run() -> None:
    ratios = compare.ratios(SMALL)
    assert ratios["rollback with a spare / CRIU's restore"] == 2.0
    assert ratios["16 forks / one"] == 10.0
    assert "checkpoint with 10,000 files / with 1,000" not in ratios


def test_much_slower_is_found_and_a_tenth_is_not() -> None:
    then = {"a": 1.0, "b": 1.0, "c": 0.4}
    outcomes = compare.compare({"a": 1.1, "b": compare.BOUND + 0.1, "c": 0.2}, then)
    assert [outcome.worse for outcome in outcomes] == [False, True, False]
    table = compare.table(outcomes)
    assert table.count("✖") == 1
    assert "✖ slower" in table.splitlines()[2]


def test_what_is_not_measured_any_more_is_no_success() -> None:
    (outcome,) = compare.compare({}, {"a": 1.0})
    assert outcome.lost
    assert "not measured" in compare.table([outcome])


def test_a_new_ratio_has_nothing_to_be_compared_with() -> None:
    (outcome,) = compare.compare({"a": 9.0}, {})
    assert not outcome.worse
    assert not outcome.lost


def test_measured_twice_the_better_counts() -> None:
    assert compare.best({"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 5.0}) == {"a": 2.0, "b": 1.0}


def test_only_the_workloads_of_a_ratio_are_measured() -> None:
    assert compare.workloads_of(["16 forks / one"]) == ["fan-out"]
    assert set(compare.workloads_of([ratio.name for ratio in compare.RATIOS])) <= set(workloads.WORKLOADS)


def test_the_recorded_ratios_are_those_that_are_measured() -> None:
    import msgspec

    baseline = msgspec.json.decode(compare.BASELINE.read_bytes(), type=compare.Baseline)
    assert set(baseline.ratios) == {ratio.name for ratio in compare.RATIOS}


# ---- the reference run -----------------------------------------------------------------------------


def test_filling_the_page_replaces_only_the_text_between_the_marks() -> None:
    page = f"before\n{reference.BEGIN}\nold\n{reference.END}\nafter\n"
    filled = reference.fill(page, "new")
    assert filled == f"before\n{reference.BEGIN}\n\nnew\n\n{reference.END}\nafter\n"
    assert reference.fill(filled, "new") == filled
    with pytest.raises(errors.UsageError):
        reference.fill("no marks", "new")


def test_the_page_has_its_marks() -> None:
    assert reference.fill(
        (reference.DOCS / "performance.md").read_text(), reference.generated(SMALL, "x.svg")
    )


# ---- arguments -------------------------------------------------------------------------------------


def test_unknown_names_are_refused_with_a_list_of_the_known() -> None:
    assert runner.select(["memory", "tree"], workloads.WORKLOADS, "workload") == ["tree", "memory"]
    assert runner.select([], workloads.WORKLOADS, "workload") == list(workloads.WORKLOADS)
    with pytest.raises(errors.NotFound) as refused:
        runner.select(["speed"], workloads.WORKLOADS, "workload")
    assert "fan-out" in refused.value.hint


def test_the_help_names_every_workload_and_every_peer() -> None:
    verb, _ = verbs.find(["bench"])
    help_text = spec.Parser(verb).format_help()
    for name in (*workloads.WORKLOADS, *OTHERS):
        assert name in help_text
