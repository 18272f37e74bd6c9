"""Fault points: each stands once in the source, and does what the test that controls it says."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.kernel import faults

SOURCE = Path(__file__).parents[2] / "src" / "waypoint"


@pytest.fixture(autouse=True)
def without_control() -> Iterator[None]:
    yield
    faults.control(None)


def test_every_point_is_listed_and_stands_once_in_the_source() -> None:
    used: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        if path.name != "faults.py":
            used.update(re.findall(r"faults\.reach(?:\(|, )(.*?)\)", path.read_text()))
    assert used == Counter(f'"{name}"' for name in faults.POINTS)
    assert len(faults.POINTS) >= 60
    assert faults.POINTS.keys() >= faults.ONLY_DEATH


def test_without_a_controller_nothing_happens() -> None:
    faults.reach("capture.stored")
    assert faults.limit(60.0) == 60.0


def test_a_process_that_listens_decides_what_happens(tmp_path: Path) -> None:
    path = str(tmp_path / "tester")
    answers = {b"store.begun": b"", b"store.written": str(errno.ENOSPC).encode()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            for _ in answers:
                asking, _ = listener.accept()
                with asking:
                    asking.send(answers[asking.recv(64)] or b"0")

        thread = threading.Thread(target=serve)
        thread.start()
        faults.control(faults.ask(path))
        faults.reach("store.begun")
        with pytest.raises(OSError, match=r"store\.written") as raised:
            faults.reach("store.written")
        thread.join()
    assert raised.value.errno == errno.ENOSPC
    faults.reach("store.written")  # the process is gone
    assert faults.limit(60.0) < 60.0
