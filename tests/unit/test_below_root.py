"""A small part of the campaign below root, of which `make torture` runs all. The seed is printed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.fakes import World
from tests.torture import scene
from tests.torture.below_root import Campaign, Case, Extent

SEED = int(os.environ.get("WAYPOINT_SEED") or random.SystemRandom().randrange(1, 1 << 30))
VERBS = 4


def test_whatever_fails_or_dies_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    print(f"WAYPOINT_SEED={SEED}")
    with Campaign(tmp_path, SEED, workers=2) as campaign:
        for verb in random.Random(SEED).sample(list(scene.VERBS), VERBS):
            campaign.run_verb(verb, Extent(singles=4, pairs=1, deaths=1))
    assert sum(len(outcome.happened) for outcome in campaign.outcomes.values()) >= 4 * VERBS
    wrong = {name: outcome.violations for name, outcome in campaign.outcomes.items() if outcome.violations}
    assert not wrong, "python -m tests.torture --case NAME runs one again"


def test_a_lost_point_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign would notice: here a verb deletes what was acknowledged, and leaves a folder behind."""

    def break_it(world: World) -> None:
        (point, *_) = world.app.store.points.all()
        world.app.store.points.remove(point.id)

    verb = scene.Verb("broken", break_it)
    monkeypatch.setitem(scene.VERBS, "broken", verb)
    with Campaign(tmp_path, SEED, workers=1) as campaign:
        campaign.run_verb("broken", Extent(singles=0, pairs=0, deaths=0))
    violations = campaign.outcomes[Case("broken").name].violations
    assert any("the acknowledged point one is lost" in violation for violation in violations)
    assert any("points: left over" in violation for violation in violations)


def test_a_case_has_a_name_by_which_it_can_be_run_again() -> None:
    name = "fork/store.begun#1:EIO,pool.delete#2:kill/start.taken#1:kill"
    assert Case.parse(name).name == name
