"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from waypoint.kernel import atomic


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_gets_its_content_and_nothing_else_is_left(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "file"
    atomic.write(path, "first", durable=durable)
    atomic.write(path, b"second", durable=durable)
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), atomic.replaced(path) as file:
        file.writelines((b"new", None))  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_name_has_the_old_content_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with atomic.replaced(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_permissions_are_kept_unless_others_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    atomic.write(path, "new")
    assert path.stat().st_mode & 0o7777 == 0o640
    atomic.write(path, "newer", mode=0o600)
    assert path.stat().st_mode & 0o7777 == 0o600


def test_a_link_is_replaced_and_what_it_leads_to_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    link = tmp_path / "link"
    link.symlink_to("other")
    atomic.write(link, "mine")
    assert not link.is_symlink()
    assert (tmp_path / "other").read_text() == "other"


def test_in_a_folder_that_is_not_there_the_error_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        atomic.write(tmp_path / "none" / "file", "x")
    assert str(tmp_path / "none") in str(caught.value.filename)
