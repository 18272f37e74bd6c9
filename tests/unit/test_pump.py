"""One thread reads all terminals: one of them cannot keep the others waiting."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from tests.waiting import until

from waypoint.terminal.pump import Pump

pytestmark = pytest.mark.leaks("the thread of a pump ends with its process")


def test_a_terminal_that_rests_is_read_again_and_others_have_their_turn() -> None:
    pump, (busy, busy_end), (calm, calm_end) = Pump(), os.pipe(), os.pipe()
    reads: list[float] = []
    heard: list[bytes] = []

    def read_busy() -> None:  # there is always more
        reads.append(time.monotonic())
        pump.rest(busy, 0.05)

    os.write(busy_end, b"x")
    pump.add(busy, read_busy)
    pump.add(calm, lambda: heard.append(os.read(calm, 10)))
    until(lambda: len(reads) >= 4)
    os.write(calm_end, b"here")
    until(lambda: heard == [b"here"])
    pump.remove(busy)
    assert min(later - before for before, later in itertools.pairwise(reads)) >= 0.04
    time.sleep(0.12)  # a rest that is over brings nothing back
    seen = len(reads)
    time.sleep(0.12)
    assert len(reads) == seen
    pump.remove(calm)
    for fd in (busy, busy_end, calm, calm_end):
        os.close(fd)


def test_what_waits_for_a_calm_moment_waits_for_a_rest_as_well() -> None:
    pump, (reader, writer) = Pump(), os.pipe()
    events: list[str] = []

    def read() -> None:
        events.append("read")
        if len(events) < 3:
            pump.run_when_idle(reader, lambda: events.append("idle"))
            pump.rest(reader, 0.02)
        else:
            os.read(reader, 1)

    os.write(writer, b"x")
    pump.add(reader, read)
    until(lambda: "idle" in events)
    pump.remove(reader)
    assert events == ["read", "read", "read", "idle"]
    os.close(reader)
    os.close(writer)
