"""A handful of faults on the real thing; `make torture` has all of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.torture.real import Case, RealCampaign

CASES: tuple[Case, ...] = (
    ("checkpoint", "capture.published", "kill daemon"),
    ("checkpoint", "dump.written", "kill CRIU"),
    ("restore", "copy.released", "ENOSPC"),
    ("restore", "revive.held", "hang CRIU"),
    ("saving of a safety point", "pending.published", "kill daemon"),
    ("undo", "restore.moved", "kill daemon"),
    ("fork", "copy.box", "kill new keeper"),
    ("checkpoint of files", "capture.kept", "kill keeper"),
    ("the start of a daemon", "start.taken", "ETIMEDOUT"),
    ("the start of a daemon", "start.listed", "hang keeper"),
    ("park", "park.ended", "EIO"),
    ("park", "copy.box", "kill new keeper"),
    ("restore of files", "box.attached", "ETIMEDOUT"),
    ("base import of a Dockerfile", "build.carried_out", "kill daemon"),
    ("recover", "recover.sealed", "kill daemon"),
    ("rm of the session of the point that another stands on", "rm.ended", "kill daemon"),
    ("rm of the session of the point that another stands on", "rm.removed", "kill daemon"),
)


def test_a_fault_in_a_verb_loses_nothing_and_leaves_nothing(engine: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    campaign = RealCampaign(tmp_path, 0, print)
    campaign.run_cases(CASES, time.monotonic() + 1000)
    assert not campaign.part.violations
    assert campaign.part.cases == len(CASES), "every fault has happened"
    assert os.environ == before, "a daemon that is started later must not have its short time limits"
