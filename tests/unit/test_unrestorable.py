"""Which sessions CRIU can bring back, by the shape of the tree."""

from __future__ import annotations

import pytest

from waypoint.engine.unrestorable import without_leader
from waypoint.kernel.processes import Process

KEEPER, ANCHOR = 1, 2


def process(pid: int, parent: int, session: int) -> Process:
    return Process(
        host_pid=pid,
        pid=pid,
        parent_host_pid=parent,
        group=session,
        session=session,
        namespaces=2,
        state="S",
        comm="x",
        terminal=None,
        uid=0,
        rss_bytes=0,
    )


@pytest.mark.parametrize(
    ("tree", "stranded"),
    [
        pytest.param([(3, ANCHOR, KEEPER), (4, 3, KEEPER), (5, 4, 5), (6, 5, 5)], [], id="ordinary"),
        pytest.param([(3, ANCHOR, 77), (4, 3, 77)], [], id="daemon of the anchor, leader ended"),
        pytest.param([(3, ANCHOR, 77), (4, 3, 4), (5, 4, 77)], [], id="below such a daemon"),
        pytest.param([(3, ANCHOR, 3), (4, 3, 4), (5, 4, 3)], [], id="started before setsid, leader above"),
        pytest.param([(3, ANCHOR, KEEPER), (4, 3, 4), (5, 4, KEEPER)], [], id="started before setsid"),
        pytest.param([(3, ANCHOR, KEEPER), (4, 3, 77)], [], id="daemon of a subreaper, leader ended"),
        pytest.param([(3, ANCHOR, 3), (4, 3, 77), (5, 3, 77), (6, 5, 77)], [], id="several of one daemon"),
        pytest.param([(3, ANCHOR, 3), (4, 3, 4), (5, 3, 4)], [], id="leader beside it"),
        pytest.param([(3, ANCHOR, 3), (4, 3, 77), (5, 3, 5), (6, 5, 77)], [4, 6], id="two parents"),
        pytest.param([(3, ANCHOR, 77), (4, ANCHOR, 4), (5, 4, 77)], [5], id="one of them below the anchor"),
        pytest.param([(3, ANCHOR, 3), (4, 3, 4), (5, ANCHOR, 5), (6, 5, 4)], [6], id="leader elsewhere"),
        pytest.param(
            [(7, ANCHOR, 7), (3, 7, 3), (4, 3, 4), (5, 4, 7), (6, 4, 3)], [6], id="born in two sessions"
        ),
    ],
)
def test_whose_leader_is_missing(tree: list[tuple[int, int, int]], stranded: list[int]) -> None:
    anchor = process(ANCHOR, KEEPER, KEEPER)
    members = [process(*numbers) for numbers in tree]
    assert [one.pid for one, _ in without_leader(anchor, members)] == stranded
