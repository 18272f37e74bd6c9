"""A small part of `make fuzz`, always the same: malformed input ends in typed errors only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import campaign, readers, requests

from waypoint import errors
from waypoint.daemon.inside.doors import read_request
from waypoint.history.refs import resolve
from waypoint.policy.rules import Policy

CASES, SEED = 2500, 7


@pytest.mark.parametrize("target", list(readers.targets()), ids=lambda target: target.name)
def test_a_reader_refuses_what_it_cannot_read(target: readers.Target, tmp_path: Path) -> None:
    tally = campaign.run_target(target, CASES * target.weight // 250, SEED, tmp_path)
    assert not tally.findings, "\n".join(tally.findings)
    assert tally.cases > 10


@pytest.mark.leaks("a daemon inside the test process; its threads end with a process of its own")
def test_the_daemon_answers_every_request_with_a_result_or_a_typed_error(tmp_path: Path) -> None:
    with requests.daemon(tmp_path) as daemon:
        tallies = campaign.run(requests.targets(daemon), 500, SEED, tmp_path)
    assert not [finding for tally in tallies.values() for finding in tally.findings]
    assert {name: tally.cases for name, tally in tallies.items() if tally.cases < 100} == {}


def test_the_campaign_notices_a_reader_that_fails_or_hangs(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    def hang(*_: object) -> None:
        while True:
            pass

    for run, words in ((fail, "KeyError"), (hang, "did not return")):
        tally = campaign.run_target(readers.Target("broken", run), 1, SEED, tmp_path, limit_seconds=0.05)
        assert len(tally.findings) == 1
        assert words in tally.findings[0]


def test_a_ref_that_goes_back_very_far_is_answered_at_once() -> None:
    with pytest.raises(errors.NotFound):
        resolve("@~99999999999999999999", (), (), None, readers.NOW)
    with pytest.raises(errors.NotFound, match="further than the history"):
        resolve("@~999999999", readers.points(), readers.points(), readers.points()[-1].id, readers.NOW)


def test_an_option_that_lacks_its_value_is_no_reason_to_fail() -> None:
    assert Policy().judge("ssh -o").parts


def test_a_word_from_inside_may_be_any_bytes() -> None:
    packet = b"\0".join((b"1", b"0" * 32, b"ask", b"80", b"/root", b"task", b"add", b"\xff")) + b"\0"
    _, request = read_request(packet, 0)
    assert request.words == ("task", "add", "\udcff")
