"""The ids of a box in a user namespace, on both sides."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from waypoint.kernel import processes, userns


@pytest.mark.parametrize("inner", [0, 33, 65534, 70_000, userns.ID_COUNT - 1])
def test_an_id_is_the_same_after_the_way_out_and_back(inner: int) -> None:
    assert userns.to_inner(userns.to_host(inner)) == inner
    assert userns.to_host(inner) >= userns.FIRST_ID


@pytest.mark.parametrize("host", [0, 1000, userns.FIRST_ID - 1, userns.FIRST_ID + userns.ID_COUNT])
def test_an_id_outside_of_the_range_is_that_of_nobody(host: int) -> None:
    assert userns.to_inner(host) == userns.NOBODY
    assert userns.to_host(userns.ID_COUNT) == userns.to_host(userns.NOBODY)


def test_only_the_named_entries_of_an_access_control_list_have_ids() -> None:
    nameless = 0xFFFFFFFF
    entries = ((1, 6, nameless), (2, 4, 33), (4, 6, nameless), (8, 5, 0), (0x10, 6, nameless))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    outside = userns.attribute_to_host("system.posix_acl_access", value)
    ids = [number for *_, number in struct.iter_unpack("<HHI", outside[4:])]
    assert ids == [nameless, userns.FIRST_ID + 33, nameless, userns.FIRST_ID, nameless]
    assert userns.attribute_to_inner("system.posix_acl_access", outside) == value
    assert userns.attribute_to_host("user.note", value) == value


def test_this_process_is_in_no_box() -> None:
    assert userns.is_own("self")
    assert not userns.is_of_box(os.getpid())
    status = processes.read_status(os.getpid())
    assert processes.inner_ids(os.getpid(), status, "Uid") == [*os.getresuid(), os.geteuid()]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_cannot_be_shown_is_told_with_the_reason(tmp_path: Path) -> None:
    assert userns.why_not(tmp_path) is None
    assert userns.why_not(Path("/proc/self")) == os.strerror(22)
