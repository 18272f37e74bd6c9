"""Waiting for a descriptor, whatever its number; and for a keeper that never reports."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.box.box import _read_report
from waypoint.kernel.readiness import readable, writable

SOURCES = Path(__file__).parents[2] / "src" / "waypoint"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose descriptors select(2) does not know."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, limits[0]), limits[1]))
    low = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 2000) for fd in low)
    for fd in low:
        os.close(fd)
    yield high[0], high[1]
    for fd in high:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_descriptors_above_those_of_select_can_be_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert reader > 1023
    assert writable(writer, 0)
    assert not readable(reader, 0.01)
    os.write(writer, b"x")
    assert readable(reader, 0)


def test_nothing_waits_with_select() -> None:
    users = [path for path in SOURCES.rglob("*.py") if re.search(r"\bselect\.select\(", path.read_text())]
    # A process of the command line has few descriptors; the daemon has one for each box and client.
    assert {path.relative_to(SOURCES).parts[0] for path in users} <= {"cli"}


def test_a_keeper_that_never_reports_is_waited_for_no_longer_than_the_limit(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"pid 12\nrea")
    begun = time.monotonic()
    assert _read_report(reader, 0.05) == (12, "rea", False)
    assert time.monotonic() - begun >= 0.05


def test_the_report_of_a_keeper_ends_when_both_processes_have_closed_it() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"ready\npid 12\n")
    os.close(writer)
    assert _read_report(reader, 5) == (12, "ready", True)
    os.close(reader)
