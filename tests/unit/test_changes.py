"""Changes without a kernel: how they are counted, folded, named and sent."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from waypoint.api.difference import Change, ChangeKind, Changes
from waypoint.errors import UsageError
from waypoint.history.changes import Fold, box_path, compare_views, fold_noisy, is_noise, noisy_folder, total
from waypoint.history.view import PointView
from waypoint.kernel.copytree import remove_tree
from waypoint.kernel.pool.deltas import by_walk
from waypoint.text.findings import summarize_files


def change(path: str, kind: ChangeKind = "created", size: int = 10, **more: object) -> Change:
    found = Change(
        path=path, kind=kind, entry="file", size_after=size, what=("content",) if kind == "modified" else ()
    )
    return msgspec.structs.replace(found, **more)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/app/main.py", None),
        ("/app/node_modules/x/node_modules/y.js", "/app/node_modules"),
        ("/root/.cache/pip/http/a", "/root/.cache"),
        ("/app/.git/objects/ab/cdef", "/app/.git/objects"),
        ("/app/.git/HEAD", None),
        ("/app/.venv/lib/python3.11/site-packages/flask/__init__.py", "/app/.venv/lib"),
        ("/usr/lib/python3/dist-packages/x.py", "/usr/lib/python3/dist-packages"),
        ("/var/cache/apt/pkgcache.bin", "/var/cache"),
        ("/srv/var/cache/x", None),
        ("/app/node_modules", None),
        ("/x/__pycache__/a.pyc", "/x/__pycache__"),
        ("/", None),
    ],
)
def test_noisy_folders_are_known_by_their_names(path: str, folder: str | None) -> None:
    assert noisy_folder(path) == folder


def test_a_noisy_folder_is_in_itself_and_a_file_of_that_name_is_not() -> None:
    assert noisy_folder("/app/node_modules", is_folder=True) == "/app/node_modules"
    assert noisy_folder("/node_modules", is_folder=True) == "/node_modules"


def test_noisy_folders_are_folded_with_their_sums() -> None:
    changes = Changes(
        changes=(
            change("/app/a.py", "modified"),
            change("/app/node_modules", entry="folder", size_after=None),
            *(change(f"/app/node_modules/{number}.js") for number in range(1842)),
            change("/app/node_modules/1.js", "modified", 5),
            change("/app/node_modules/old", "deleted"),
        )
    )
    folded = fold_noisy(changes)
    assert [one.path for one in folded.changes] == ["/app/a.py"]
    assert folded.folds == (Fold(path="/app/node_modules", created=1842, modified=1, deleted=1, bytes=18425),)
    assert summarize_files(changes) == "~1 file, +1,842 ~1 -1 in node_modules"


def test_headlines_say_how_many_files() -> None:
    def words(*found: Change) -> str:
        return summarize_files(Changes(changes=found))

    folder = change("/d", entry="folder")
    assert words() == ""
    assert words(change("/a")) == "+1 file"
    assert words(change("/a"), change("/b"), change("/c", "modified")) == "+2 ~1 files"
    assert words(change("/d", "renamed", entry="folder")) == "→1 file"
    assert words(folder) == "1 folder"
    assert words(folder, change("/d/f")) == "+1 file"
    assert words(change("/d", "deleted", entry="folder", files=12000)) == "-12,000 files"
    assert words(change("/n/node_modules/a")) == "+1 file (node_modules)"
    assert words(change("/n/node_modules/a"), change("/x/.cache/b")) == "+2 files (node_modules, .cache)"


def test_a_summary_counts_files_not_folders() -> None:
    summary = total(
        Changes(
            changes=(
                change("/d", entry="folder", size_after=None),
                change("/d/f", size=100),
                change("/e", "deleted", entry="folder", files=7, files_bytes=70, at_least=True),
                change("/m", "modified", 50),
                change("/mode", "modified", 50, what=("mode",)),
                change("/r", "renamed", old_path="/q"),
            )
        )
    )
    assert (summary.created, summary.modified, summary.deleted, summary.renamed) == (1, 2, 7, 1)
    assert summary.folders == 2
    assert summary.bytes_written == 150
    assert summary.at_least


def test_volumes_are_seen_at_their_places_in_the_box() -> None:
    assert box_path("upper") == "/"
    assert box_path("upper/etc/x") == "/etc/x"
    assert box_path("shm/segment") == "/dev/shm/segment"
    assert box_path("mounts/%2Fhome/me") == "/home/me"
    assert box_path("mounts/%2Fhome") == "/home"
    assert box_path("mounts/%2Fdata%2Fa%20b/x") == "/data/a b/x"
    assert box_path("mounts") is None
    assert box_path("work-1/base") is None
    assert is_noise("work-abc")
    assert not is_noise("upper")


def test_changes_travel_as_json() -> None:
    changes = Changes(changes=(change("/a"), change("/b", "renamed", old_path="/c")))
    assert msgspec.json.decode(msgspec.json.encode(changes), type=Changes) == changes
    assert bool(changes)
    assert len(changes) == 2
    assert not Changes()


# ---- layers made by hand ------------------------------------------------------------------------


def volume(path: Path, files: dict[str, str]) -> Path:
    for folder in ("upper", "mounts", "shm"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / "upper" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "upper" / name).write_text(text)
    return path


def test_layers_on_any_disk_are_compared(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "hosts").write_text("localhost\n")
    (base / "etc" / "same").write_text("same\n")
    old = volume(
        tmp_path / "old", {"etc/hosts": "localhost\nbox\n", "app/main.py": "1\n", "app/old.py": "x\n"}
    )
    new = volume(tmp_path / "new", {"etc/same": "same\n", "app/main.py": "2\n", "app/new.py": "y\n"})
    found = compare_views(PointView(old, base), PointView(new, base), by_walk(old, new))
    assert [(one.kind, one.path, one.what) for one in found] == [
        ("modified", "/app/main.py", ("content",)),
        ("created", "/app/new.py", ()),
        ("deleted", "/app/old.py", ()),
        ("modified", "/etc/hosts", ("content",)),
    ]
    assert [one.path for one in compare_views(None, PointView(new, base))] == [
        "/app",
        "/app/main.py",
        "/app/new.py",
    ]
    with pytest.raises(UsageError):
        compare_views(PointView(old, tmp_path), PointView(new, base))


def test_a_moved_file_is_known_by_its_content_and_time_where_inodes_tell_nothing(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    old = volume(tmp_path / "old", {"a/one": "content\n", "a/two": "content\n", "a/empty": ""})
    new = volume(tmp_path / "new", {"b/one": "content\n", "b/two": "content\n", "b/empty": ""})
    for path in (old / "upper" / "a" / "one", new / "upper" / "b" / "one"):
        os.utime(path, ns=(1, 1))
    found = compare_views(PointView(old, base), PointView(new, base), by_walk(old, new))
    assert [(one.kind, one.old_path, one.path) for one in found if one.entry == "file"] == [
        ("deleted", None, "/a/empty"),
        ("deleted", None, "/a/two"),
        ("created", None, "/b/empty"),
        ("renamed", "/a/one", "/b/one"),
        ("created", None, "/b/two"),
    ]


def test_what_is_hidden_does_not_change(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    new = volume(tmp_path / "new", {"secret/x": "1", "proc/x": "1", "dev/x": "1", "seen": "1"})
    found = compare_views(None, PointView(new, base, hide=["/secret"]))
    assert [one.path for one in found] == ["/seen"]


def test_a_very_deep_tree_is_no_problem(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    new = volume(tmp_path / "new", {})
    deep = str(new / "upper")
    for _ in range(1200):
        deep += "/d"
        os.mkdir(deep)
    try:
        assert len(compare_views(None, PointView(new, base))) == 1200
    finally:
        parent = os.open(tmp_path, os.O_RDONLY)
        remove_tree(parent, "new")
        os.close(parent)
