"""Diffs as text: that they say what changed, that others can read them, and that a terminal survives them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.api.difference import Change
from waypoint.history.changes import compare_views
from waypoint.history.diff import FilePatch, Limits, blocks, patch, unified
from waypoint.history.view import PointView
from waypoint.kernel.pool.deltas import by_walk

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"\n", b"\r\n"]), max_size=40)


def apply(old: list[bytes], hunks: bytes) -> list[bytes]:
    """What `patch` does, in a few lines."""
    result: list[bytes] = []
    at = 0
    for hunk in re.split(rb"^@@ ", hunks, flags=re.MULTILINE)[1:]:
        head, _, body = hunk.partition(b"\n")
        found = re.match(rb"-(\d+)(?:,(\d+))? ", head)
        assert found
        count = int(found[2]) if found[2] is not None else 1
        start = int(found[1]) - (1 if count else 0)
        result += old[at:start]
        at = start
        for line in body.split(b"\n")[:-1]:
            sign, text = line[:1], line[1:] + b"\n"
            if sign == b"\\":
                result[-1] = result[-1].rstrip(b"\n") if result else b""
                continue
            if sign in b" -":
                assert old[at].rstrip(b"\n") == text.rstrip(b"\n")
                at += 1
            if sign in b" +":
                result.append(text)
    return result + old[at:]


@given(LINES, LINES, st.integers(0, 4))
def test_hunks_turn_the_one_into_the_other(old: list[bytes], new: list[bytes], context: int) -> None:
    assert apply(old, b"".join(unified(old, new, context))) == new


def test_equal_files_have_no_hunks() -> None:
    assert list(unified([b"a\n"], [b"a\n"])) == []
    assert list(unified([], [])) == []


def test_a_file_with_too_many_lines_is_replaced_in_one_piece() -> None:
    old = [f"{number}\n".encode() for number in range(5000)]
    new = [f"{number}!\n".encode() for number in range(5000)]
    assert blocks([b"x\n", *old], [b"x\n", *new]) == [(True, 0, 1, 0, 1), (False, 1, 5001, 1, 5001)]


def test_a_missing_newline_at_the_end_is_said() -> None:
    assert b"".join(unified([b"a\n"], [b"a"])) == b"@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n"


# ---- whole patches ------------------------------------------------------------------------------


class Layers:
    """Two points over a base, made by hand."""

    def __init__(self, root: Path) -> None:
        self.base, self.old, self.new = root / "base", root / "old", root / "new"
        self.base.mkdir()
        for volume in (self.old, self.new):
            for folder in ("upper", "mounts", "shm"):
                (volume / folder).mkdir(parents=True)

    def write(self, volume: Path, path: str, content: bytes, mode: int = 0o644) -> None:
        where = volume / "upper" / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content)
        where.chmod(mode)

    def both(self, path: str, old: bytes, new: bytes) -> None:
        self.write(self.old, path, old)
        self.write(self.new, path, new)

    def patches(self, *paths: str, limits: Limits | None = None) -> list[FilePatch]:
        old, new = PointView(self.old, self.base), PointView(self.new, self.base)
        changes = compare_views(old, new, by_walk(self.old, self.new))
        return list(patch(old, new, changes, paths, limits))


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    """Empty layers."""
    return Layers(tmp_path)


def test_a_patch_looks_like_one_of_git(layers: Layers) -> None:
    layers.both("app/a.py", b"one\ntwo\nthree\n", b"one\n2\nthree\n")
    layers.write(layers.new, "app/new file", b"hello\n", 0o755)
    layers.write(layers.old, "app/old", b"bye\n")
    text = {found.path: found.text for found in layers.patches("/app")}
    assert list(text) == ["/app/a.py", "/app/new file", "/app/old"]
    assert text["/app/a.py"] == (
        "diff --git a/app/a.py b/app/a.py\n--- a/app/a.py\n+++ b/app/a.py\n"
        "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert text["/app/new file"] == (
        "diff --git a/app/new file b/app/new file\nnew file mode 100755\n"
        "--- /dev/null\n+++ b/app/new file\t\n@@ -0,0 +1 @@\n+hello\n"
    )
    assert text["/app/old"] == (
        "diff --git a/app/old b/app/old\ndeleted file mode 100644\n"
        "--- a/app/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
    )
    assert [found.path for found in layers.patches("/app/old", "/app/a.py/")] == ["/app/a.py", "/app/old"]
    assert layers.patches("/ap") == []


def test_modes_and_links_and_types(layers: Layers) -> None:
    layers.both("mode", b"same\n", b"same\n")
    (layers.new / "upper" / "mode").chmod(0o755)
    for volume, target in ((layers.old, "one"), (layers.new, "two")):
        (volume / "upper" / "link").symlink_to(target)
    layers.write(layers.old, "kind", b"a file\n")
    (layers.new / "upper" / "kind").symlink_to("elsewhere")
    text = {found.path: found.text for found in layers.patches()}
    assert text["/mode"] == "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n"
    assert "-one\n\\ No newline at end of file\n+two\n\\ No newline" in text["/link"]
    assert text["/kind"].count("diff --git") == 2
    assert "deleted file mode 100644" in text["/kind"]
    assert "new file mode 120777" in text["/kind"]


def test_binary_and_large_files_are_summed_up(layers: Layers) -> None:
    layers.both("binary", b"\0one", b"\0two")
    layers.both("large", b"x\n" * 100, b"y\n" * 100)
    found = {one.path: one for one in layers.patches(limits=Limits(file_bytes=100))}
    assert found["/binary"].left_out == "binary"
    assert found["/large"].left_out == "large"
    assert found["/large"].text.endswith("Binary files a/large and b/large differ\n")


def test_nothing_in_a_file_reaches_the_terminal_as_a_command(layers: Layers) -> None:
    layers.both("f", b"plain\n", b"\x1b]0;title\x07\rover\xff\xe2\x80\xae\tend \xc3\xa9\n")
    [found] = layers.patches()
    assert "+\\x1b]0;title\\x07\\rover\\xff\\u202e\tend é\n" in found.text
    assert b"\x1b]0;title" in found.body


def test_too_much_is_cut_and_said(layers: Layers) -> None:
    for number in range(20):
        layers.both(f"f{number:02}", b"old\n" * 50, b"new\n" * 50)
    found = layers.patches(limits=Limits(total_bytes=1000))
    assert found[-1].left_out == "limit"
    assert found[-1].text == f"# {20 - len(found) + 1} more changes are left out\n"


def test_odd_names_are_quoted(layers: Layers) -> None:
    layers.write(layers.new, 'a"b\nc', b"x\n")
    layers.write(layers.new, "größe", b"x\n")
    one, other = layers.patches()
    assert one.text.startswith('diff --git "a/a\\"b\\012c" "b/a\\"b\\012c"\n')
    assert other.text.startswith("diff --git a/größe b/größe\n")


def test_what_a_patch_cannot_say_is_a_remark() -> None:
    from waypoint.history.diff import _remarks

    gone = Change(path="/d", kind="deleted", entry="folder", files=12000, at_least=True)
    assert list(_remarks(gone)) == ["folder /d deleted with at least 12,000 files"]
    owner = Change(
        path="/f", kind="modified", entry="file", what=("owner",), owner_before="0:0", owner_after="5:6"
    )
    assert list(_remarks(owner)) == ["/f: owner 0:0 to 5:6"]
    pipe = Change(path="/p", kind="created", entry="fifo")
    assert list(_remarks(pipe)) == ["fifo /p created"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_applies_what_was_written(layers: Layers, tmp_path: Path) -> None:
    layers.both(
        "app/a.py", b"".join(b"%d\n" % n for n in range(100)), b"".join(b"%d\n" % (n * 1) for n in range(50))
    )
    layers.both("app/sp ace", b"no newline", b"newline\n")
    layers.both("app/mode", b"#!/bin/sh\n", b"#!/bin/sh\n")
    (layers.new / "upper" / "app" / "mode").chmod(0o755)
    layers.write(layers.old, "app/gone", b"gone\n")
    layers.write(layers.new, "app/deep/er/new", b"new\n")
    layers.write(layers.new, 'app/q"uote\t', b"odd\n")
    layers.write(layers.new, "app/empty", b"")
    (layers.new / "upper" / "app" / "link").symlink_to("a.py")
    tree = tmp_path / "tree"
    shutil.copytree(layers.old / "upper", tree)
    body = b"".join(found.body for found in layers.patches())
    subprocess.run(
        ["git", "apply", "-p1", "-"], input=body, cwd=tree, check=True, env={"GIT_DIR": "/nowhere"}
    )
    difference = subprocess.run(
        ["diff", "-r", "--no-dereference", str(tree), str(layers.new / "upper")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert difference.stdout == ""
    assert (tree / "app" / "mode").stat().st_mode & 0o100
