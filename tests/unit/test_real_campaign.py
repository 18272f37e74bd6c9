"""The campaign on the real thing (tests/torture/real.py) keeps its results when a home cannot be made."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.torture import real
from tests.torture.real import Case, RealCampaign
from tests.torture.result import Part

from waypoint.kernel import faults

CASES: tuple[Case, ...] = (
    ("restore", "copy.released", "EIO"),
    ("fork", "copy.box", "kill keeper"),
    ("park", "park.ended", "kill daemon"),
)


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens with each home, one after the other: it cannot be made, or not be cleared away, or all is
    well. The cases themselves are not run."""
    plan: list[str] = []

    @contextlib.contextmanager
    def stage_in(_: Path) -> Iterator[Any]:
        happens = plan.pop(0)
        if happens == "not made":
            raise OSError("the lock of all homes was not to be had")
        yield SimpleNamespace(begin=lambda: None)
        if happens == "not cleared":
            raise RuntimeError("what was killed does not go")

    monkeypatch.setattr(real, "stage_in", stage_in)
    monkeypatch.setattr(real, "run_case", lambda *_: True)
    return plan


def run(folder: Path) -> RealCampaign:
    campaign = RealCampaign(folder, 0, lambda _: None)
    campaign.run_cases(CASES, time.monotonic() + 60)
    return campaign


def test_an_error_outside_a_case_is_a_violation_and_the_next_home_is_made(
    tmp_path: Path, homes: list[str]
) -> None:
    homes += ["not made", "not made", "well"]
    part = run(tmp_path).part
    assert part.faults == {"real: EIO": 1, "real: kill keeper": 1, "real: kill daemon": 1}
    assert ["the lock of all homes was not to be had" in text for text in part.violations] == [True, True]


def test_a_worker_keeps_its_results_when_its_home_cannot_be_cleared_away(
    tmp_path: Path, homes: list[str]
) -> None:
    homes += ["not cleared"]
    part = run(tmp_path).part
    assert sum(part.faults.values()) == len(CASES)
    assert ["what was killed does not go" in text for text in part.violations] == [True]


def test_a_worker_gives_up_when_no_home_can_be_made(tmp_path: Path, homes: list[str]) -> None:
    homes += ["not made"] * 9
    part = run(tmp_path).part
    assert len(homes) == 6
    assert "given up with 3 cases left" in part.violations[-1]


def test_a_share_returns_what_it_has_found_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise PermissionError("no namespace of its own")

    monkeypatch.setattr(real, "unshare", fail)
    part = real._run_share(tmp_path / "worker-0", CASES, time.monotonic() + 60, lambda _: None)
    assert "no namespace of its own" in part.violations[0]


def survey(_: Path) -> dict[str, list[str]]:
    return {point: ["restore"] for point in faults.POINTS}


def end_or_find(place: Path, *_: object) -> Part:
    """The first worker is killed, the second one finds something."""
    if place.name == "worker-0":
        os.kill(os.getpid(), signal.SIGKILL)
    return Part(cases=7)


def test_a_worker_that_is_killed_is_a_violation_and_the_other_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "survey", survey)
    monkeypatch.setattr(real, "_run_share", end_or_find)
    monkeypatch.setattr(real, "_LAST_CASE_SECONDS", 2.0)
    campaign = RealCampaign(tmp_path, 0, print)
    campaign.run(0.0)
    assert campaign.part.cases == 8
    assert ["worker 0, of which nothing is known" in text for text in campaign.part.violations] == [True]
