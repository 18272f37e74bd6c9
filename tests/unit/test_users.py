"""Users of a box are read from files of the session, which may say anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from waypoint.box.users import find_user
from waypoint.errors import NotFound, UsageError
from waypoint.kernel.placement import Folder

PASSWD = """root:x:0:0:root:/root:/bin/bash
alice:x:1000:1000:Alice:/home/alice:/bin/bash
huge:x:99999999999999999999:1:x:/:/bin/sh
nobody-at-all:x:4294967295:4294967295:x:/:/bin/sh
negative:x:-1:-1:x:/:/bin/sh
many:x:1001:1001:x:/:/bin/sh
short:x:1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(PASSWD)
    groups = "".join(f"g{number}:x:{number + 5000}:many\n" for number in range(65536))
    (tmp_path / "etc" / "group").write_text(f"wheel:x:10:alice\nodd:x:{10**30}:alice\nbroken\n{groups}")
    return tmp_path


def test_a_user_has_the_groups_that_name_it(root: Path) -> None:
    with Folder.open(root) as folder:
        assert find_user(folder, "alice")[:4] == ("alice", 1000, 1000, (1000, 10))
        assert find_user(folder, "1000:7").groups == (7,)


@pytest.mark.parametrize("name", ["huge", "nobody-at-all", "negative", "short"])
def test_an_entry_with_numbers_that_no_user_has_is_none(root: Path, name: str) -> None:
    with Folder.open(root) as folder, pytest.raises(NotFound):
        find_user(folder, name)


@pytest.mark.parametrize("text", ["99999999999999999999", "4294967295", "alice:99999999999", "a:b:c", ":"])
def test_a_text_that_names_no_user_is_refused(root: Path, text: str) -> None:
    with Folder.open(root) as folder, pytest.raises(UsageError):
        find_user(folder, text)


def test_more_groups_than_a_process_can_have_are_refused(root: Path) -> None:
    with Folder.open(root) as folder, pytest.raises(UsageError, match="65,536 groups"):
        find_user(folder, "many")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link"])
def test_a_file_that_is_none_has_no_users(root: Path, kind: str) -> None:
    path = root / "etc" / "passwd"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/proc/self/root/etc/passwd")
    with Folder.open(root) as folder, pytest.raises(NotFound):
        find_user(folder, "alice")
