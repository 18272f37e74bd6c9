"""Helpers that copy or track memory and never come to an end: no verb waits for them for ever."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from waypoint.engine import memory
from waypoint.engine.images import Message, encode
from waypoint.engine.lazy import may_come_later
from waypoint.engine.memory import IncompleteImages, Memory
from waypoint.kernel import processes

HANGS_SECONDS = 1.5


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Memory whose helpers hang."""
    monkeypatch.setattr(memory, "_HELPER_SECONDS", 0.2)
    monkeypatch.setattr(memory, "_SLOWEST_BYTES_PER_SECOND", 1 << 40)
    (tmp_path / "bin").mkdir()
    for name in ("precopy", "flatten", "track"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec sleep {HANGS_SECONDS}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return Memory(tmp_path)


def test_a_helper_that_copies_ahead_and_hangs_is_given_up(hanging: Memory, tmp_path: Path) -> None:
    own = processes.read(os.getpid())
    assert own
    hanging._tracked = {memory._Task(own.host_pid, 0): os.open("/dev/null", os.O_RDONLY)}
    began = time.monotonic()
    assert hanging.precopy(tmp_path) == 0
    assert time.monotonic() - began < HANGS_SECONDS
    assert hanging.take_baseline() is None, "the dump copies everything"
    hanging.close()


def test_a_helper_that_completes_images_and_hangs_fails_the_dump(hanging: Memory, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("images", "parent", "target")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(IncompleteImages, match="timed out"):
        hanging.complete_images(*folders)


def test_a_helper_that_tracks_and_hangs_is_not_waited_for(hanging: Memory) -> None:
    began = time.monotonic()
    assert hanging._open([memory._Task(os.getpid(), 0)]) == {}
    assert time.monotonic() - began < HANGS_SECONDS
    for thread in threading.enumerate():
        if thread.name == "track":
            thread.join(10)


def _write_process(images: Path, pid: int, start: int, size_bytes: int) -> None:
    """As much of a process's images as tells how much memory it has, and where."""
    area: Message = {1: start, 2: start + size_bytes}
    messages: dict[str, Message] = {f"pagemap-{pid}.img": {1: pid}, f"mm-{pid}.img": {14: [area]}}
    for name, message in messages.items():
        body = encode(message)
        (images / name).write_bytes(bytes(8) + len(body).to_bytes(4, "little") + body)
    with open(images / f"pages-{pid}.img", "wb") as pages:
        pages.truncate(size_bytes)


def test_memory_comes_later_when_there_is_much_and_forks_do_not_share_it(tmp_path: Path) -> None:
    _write_process(tmp_path, 7, 0x7000_0000_0000, 80 << 20)
    assert may_come_later(tmp_path, 64 << 20)
    assert not may_come_later(tmp_path, 128 << 20), "it is less than that"
    _write_process(tmp_path, 8, 0x7100_0000_0000, 80 << 20)
    assert may_come_later(tmp_path, 64 << 20)
    _write_process(tmp_path, 9, 0x7000_0000_0000, 80 << 20)
    assert not may_come_later(tmp_path, 64 << 20), "the pages of a fork would be copied"
