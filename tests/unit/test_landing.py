"""Landing without a session: how files get their place, what a plan says, what a tar and a patch hold.

Layers are made here by hand, as an overlay would have made them: a base folder, and above it files, whiteouts
and opaque folders.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from waypoint.cli import render
from waypoint.cli.verbs.files import Location, landing_plan, parse_location
from waypoint.core.transfer import carry_out
from waypoint.history import export, landing
from waypoint.history.changes import compare_views
from waypoint.history.landing import LandingPlan, LandingRules, Selection, portable_attributes
from waypoint.history.view import OPAQUE, REDIRECT, PointView
from waypoint.kernel.placement import ANYTHING, Folder, Metadata, PlaceChanged
from waypoint.model import Conflict, Landed, Landing, LeftOut

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="whiteouts and owners need root")

LATER = int(time.time() + 3600) * 1_000_000_000
PLAIN = render.Paint(on=False)


# ---- putting files in place ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "here").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "new").write_text("new")
    with Folder.open(tmp_path / "here", durable=True) as found:
        yield found
    left = list((tmp_path / "here").rglob(".waypoint-*"))
    assert not left, "something passing has stayed"


def test_a_file_gets_its_place_with_all_that_it_is(folder: Folder, tmp_path: Path) -> None:
    folder.put_folder("sub", Metadata(0o750, (3, 4)))
    metadata = Metadata(0o4751, (1, 2), {"user.color": b"red"}, 10**9)
    status = folder.put_file("sub/a", str(tmp_path / "new"), metadata, instead_of=None)
    there = tmp_path / "here" / "sub" / "a"
    assert there.read_text() == "new"
    about = there.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o4751, 1, 2)
    assert about.st_mtime_ns == 10**9
    assert os.getxattr(there, "user.color") == b"red"
    assert os.path.samestat(status, about)
    above = there.parent.stat()
    assert (stat.S_IMODE(above.st_mode), above.st_uid, above.st_gid) == (0o750, 3, 4)
    folder.flush()


def test_no_link_on_the_way_is_followed(folder: Folder, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "inside").mkdir()
    (here / "out").symlink_to(tmp_path / "outside")
    (here / "up").symlink_to("../outside")
    (here / "round").symlink_to("inside")
    (here / "magic").symlink_to(f"/proc/self/fd/{folder.fd}")
    for name in ("out", "up", "round", "magic"):
        for act in (
            lambda path: folder.put_file(path, str(tmp_path / "new"), Metadata()),
            lambda path: folder.put_folder(path, Metadata()),
            lambda path: folder.put_link(path, "x", Metadata()),
            lambda path: folder.set_metadata(path, Metadata(mode=0o777)),
            folder.remove,
            folder.look,
        ):
            with pytest.raises(OSError, match="symbolic links") as caught:
                act(f"{name}/precious")
            assert caught.value.errno == errno.ELOOP
    for path in ("../outside/precious", "/etc/passwd"):
        with pytest.raises(OSError, match="cross-device"):
            folder.put_file(path, str(tmp_path / "new"), Metadata())
    for path in ("..", ".", "", "inside/..", "a\0b"):
        with pytest.raises(OSError, match="Invalid"):
            folder.put_file(path, str(tmp_path / "new"), Metadata())
    assert (tmp_path / "outside" / "precious").read_text() == "precious"
    assert os.listdir(tmp_path / "outside") == ["precious"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(
    folder: Folder, tmp_path: Path
) -> None:
    target = tmp_path / "outside" / "precious"
    (tmp_path / "here" / "a").symlink_to(target)
    folder.set_metadata("a", Metadata(mode=0o777, owner=(5, 6), mtime_ns=7))
    assert (target.stat().st_uid, stat.S_IMODE(target.stat().st_mode)) == (0, 0o644)
    assert (tmp_path / "here" / "a").lstat().st_uid == 5
    folder.put_file("a", str(tmp_path / "new"), Metadata(mode=0o600))
    assert not (tmp_path / "here" / "a").is_symlink()
    assert target.read_text() == "precious"


def test_a_place_that_is_not_as_expected_is_left_alone(folder: Folder, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "a").write_text("mine")
    seen = folder.look("a")
    with pytest.raises(PlaceChanged):
        folder.put_file("a", str(tmp_path / "new"), Metadata(), instead_of=None)
    (here / "a").write_text("mine, changed")
    for act in (
        lambda: folder.put_file("a", str(tmp_path / "new"), Metadata(), instead_of=seen),
        lambda: folder.remove("a", instead_of=seen),
        lambda: folder.set_metadata("a", Metadata(mode=0o600), instead_of=seen),
    ):
        with pytest.raises(PlaceChanged):
            act()
    assert (here / "a").read_text() == "mine, changed"
    folder.put_file("a", str(tmp_path / "new"), Metadata(), instead_of=folder.look("a"))
    assert (here / "a").read_text() == "new"


def test_a_folder_goes_only_when_it_is_meant(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "here" / "a").mkdir()
    (tmp_path / "here" / "a" / "work").write_text("work")
    with pytest.raises(IsADirectoryError):
        folder.put_file("a", str(tmp_path / "new"), Metadata())
    folder.put_folder("a", Metadata(mode=0o711), instead_of=ANYTHING)
    assert (tmp_path / "here" / "a" / "work").read_text() == "work"
    assert folder.remove("a") is False
    folder.put_file("a", str(tmp_path / "new"), Metadata(), instead_of=folder.look("a"))
    assert (tmp_path / "here" / "a").read_text() == "new"


def test_a_folder_takes_the_place_of_a_link(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "here" / "a").symlink_to(tmp_path / "outside")
    folder.put_folder("a", Metadata(mode=0o755), instead_of=folder.look("a"))
    folder.put_file("a/precious", str(tmp_path / "new"), Metadata())
    assert (tmp_path / "outside" / "precious").read_text() == "precious"
    assert (tmp_path / "here" / "a" / "precious").read_text() == "new"


def test_what_fails_leaves_nothing_behind(folder: Folder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        folder.put_file("a", str(tmp_path / "pipe"), Metadata())
    with pytest.raises(FileNotFoundError):
        folder.put_file("a", str(tmp_path / "absent"), Metadata())
    with pytest.raises(FileNotFoundError):
        folder.put_file("no/such/a", str(tmp_path / "new"), Metadata())
    with pytest.raises(FileNotFoundError):
        folder.put_name("a", "nothing")
    assert os.listdir(tmp_path / "here") == []


def test_a_path_is_followed_inside_a_root_and_never_out_of_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "passwd").write_text("the box's")
    (root / "away").symlink_to("/etc")
    (root / "up").symlink_to("../../../../../etc")
    (root / "name").symlink_to("/etc/new")
    (root / "loop").symlink_to("loop")
    with Folder.open(root) as held:
        for path in ("/away", "up", "/up/../up", "../../etc"):
            with held.enter(path) as found:
                assert found.names("") == ["passwd"]
        above, name = held.destination("/name")
        with above:
            assert name == "new"
            assert above.names("") == ["passwd"]
        with pytest.raises(OSError, match="symbolic links"):
            held.destination("/loop")


def test_a_tree_is_walked_without_leaving_it(tmp_path: Path) -> None:
    (tmp_path / "t" / "b").mkdir(parents=True)
    (tmp_path / "t" / "a").write_text("a")
    (tmp_path / "t" / "b" / "c").symlink_to("/etc")
    with Folder.open(tmp_path) as held:
        assert [(node.path, node.entry.kind) for node in held.walk("t")] == [
            ("", "folder"),
            ("a", "file"),
            ("b", "folder"),
            ("b/c", "link"),
        ]
    with Folder.open(tmp_path / "t") as held:
        assert [node.path for node in held.walk("")] == ["", "a", "b", "b/c"]


# ---- plans --------------------------------------------------------------------------------------


class World:
    """A base, a layer over it, and a folder to land on."""

    def __init__(self, at: Path) -> None:
        self.base, self.volume, self.target = at / "base", at / "volume", at / "target"
        self.upper = self.volume / "upper"
        self.hide: list[str] = []
        for path in (self.base / "app", self.upper, self.volume / "shm", self.target):
            path.mkdir(parents=True)

    def write(self, path: str, content: str | bytes = "x", mode: int = 0o644) -> Path:
        """A file of the layer."""
        there = self.upper / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content.encode() if isinstance(content, str) else content)
        there.chmod(mode)
        return there

    def below(self, path: str, content: str | bytes = "x") -> Path:
        """A file of the base, and the same one to land on."""
        there = self.base / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content.encode() if isinstance(content, str) else content)
        here = self.target / os.path.relpath(path, "/app")
        here.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(there, here)
        return there

    def delete(self, path: str) -> None:
        there = self.upper / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(there, stat.S_IFCHR, os.makedev(0, 0))

    def selection(self, *paths: str, source: str = "/app") -> tuple[Selection, PointView, PointView]:
        new = PointView(self.volume, self.base, hide=self.hide)
        return landing.select(compare_views(None, new), new, source, paths), PointView.bare(new), new

    def plan(
        self, *paths: str, source: str = "/app", target: Path | None = None, **rules: Any
    ) -> LandingPlan:
        selection, old, new = self.selection(*paths, source=source)
        with Folder.open(target or self.target) as ground:
            return landing.plan_landing(selection, old, new, ground, "/t", LandingRules(named=paths, **rules))

    def land(
        self, *paths: str, source: str = "/app", target: Path | None = None, **rules: Any
    ) -> LandingPlan:
        selection, old, new = self.selection(*paths, source=source)
        with Folder.open(target or self.target) as ground:
            made = landing.plan_landing(selection, old, new, ground, "/t", LandingRules(named=paths, **rules))
            assert not made.landing.conflicts, made.landing.conflicts
            for _ in carry_out(made.steps, new, ground, times=False, insist=True):
                pass
        return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def actions(plan: LandingPlan) -> dict[str, str]:
    return {item.path.removeprefix("/t/"): item.action for item in plan.landing.items}


def conflicts(plan: LandingPlan) -> dict[str, bool]:
    return {one.path.removeprefix("/t/"): one.forcible for one in plan.landing.conflicts}


def left_out(plan: LandingPlan) -> set[str]:
    return {one.path for one in plan.landing.left_out}


def test_what_is_new_and_what_is_changed_lands_and_nothing_else(world: World) -> None:
    world.below("/app/same", "same")
    world.below("/app/changed", "old")
    world.write("/app/changed", "new")
    world.write("/app/sub/made", "made")
    world.write("/elsewhere", "not below it")
    (world.target / "own").write_text("of this machine")
    plan = world.land()
    assert actions(plan) == {"changed": "update", "sub": "create", "sub/made": "create"}
    assert (world.target / "changed").read_text() == "new"
    assert (world.target / "sub" / "made").read_text() == "made"
    assert sorted(os.listdir(world.target)) == ["changed", "own", "same", "sub"]
    again = world.plan()
    assert not again.steps
    assert again.landing.unchanged == 3


def test_an_update_keeps_the_owner_and_the_mode_of_the_file_here(world: World) -> None:
    world.below("/app/f", "old")
    os.chown(world.target / "f", 1000, 1000)
    (world.target / "f").chmod(0o664)
    os.setxattr(world.target / "f", "user.mine", b"1")
    world.write("/app/f", "new")
    world.land()
    about = (world.target / "f").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (1000, 1000, 0o664)
    assert os.getxattr(world.target / "f", "user.mine") == b"1"
    assert (world.target / "f").read_text() == "new"


def test_a_new_file_keeps_its_own(world: World) -> None:
    there = world.write("/app/f", "new", mode=0o640)
    os.chown(there, 33, 34)
    os.setxattr(there, "user.color", b"red")
    world.land()
    about = (world.target / "f").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (33, 34, 0o640)
    assert os.getxattr(world.target / "f", "user.color") == b"red"


def test_a_mode_alone_is_brought_without_the_content(world: World) -> None:
    world.below("/app/run", "#!/bin/sh\n")
    (world.target / "run").write_text("#!/bin/sh\necho changed here\n")
    world.write("/app/run", "#!/bin/sh\n", mode=0o755)
    plan = world.land()
    assert actions(plan) == {"run": "mode"}
    assert (world.target / "run").read_text() == "#!/bin/sh\necho changed here\n"
    assert stat.S_IMODE((world.target / "run").stat().st_mode) == 0o755
    assert not world.plan().steps


def test_what_is_landed_is_young(world: World) -> None:
    there = world.write("/app/f")
    os.utime(there, (1, 1))
    began = time.time() - 5
    world.land()
    assert (world.target / "f").stat().st_mtime > began, "what is built from it has to be built again"


def test_a_file_that_changed_here_is_a_conflict(world: World) -> None:
    world.below("/app/f", "old")
    world.write("/app/f", "new")
    (world.target / "f").write_text("work of somebody else")
    world.write("/app/made", "by the session")
    (world.target / "made").write_text("by somebody here")
    plan = world.plan()
    assert conflicts(plan) == {"f": True, "made": True}
    assert {one.why for one in plan.landing.conflicts} == {
        "changed here since the session began",
        "made here too, and not the same",
    }


def test_what_was_landed_before_is_no_conflict(world: World) -> None:
    world.write("/app/f", "one")
    world.land()
    landed = (world.target / "f").stat().st_ino
    world.write("/app/f", "two")
    assert conflicts(world.plan()) == {"f": True}
    world.land(landed=lambda _, status: status.st_ino == landed)
    assert (world.target / "f").read_text() == "two"


def test_what_is_gone_here_is_no_conflict(world: World) -> None:
    world.below("/app/deep/f", "old")
    shutil.rmtree(world.target / "deep")
    world.write("/app/deep/f", "new")
    assert actions(world.land()) == {"deep": "create", "deep/f": "create"}


def test_where_the_base_is_the_folder_itself_its_age_decides(world: World) -> None:
    world.below("/app/f", "old")
    world.write("/app/f", "new")
    place = world.base / "app"
    assert conflicts(world.plan(target=place, since_ns=1)) == {"f": True}
    assert conflicts(world.plan(target=place, since_ns=LATER)) == {}
    world.land(target=place, since_ns=LATER)
    assert (place / "f").read_text() == "new"
    assert not world.plan(target=place, since_ns=1).steps, "what has landed there is no change any more"


def test_deletions_land_only_when_asked_for(world: World) -> None:
    world.below("/app/f", "old")
    world.below("/app/d/one", "1")
    world.below("/app/d/e/two", "2")
    world.delete("/app/f")
    world.delete("/app/d")
    plan = world.plan()
    assert not plan.steps
    assert left_out(plan) == {"/app/f", "/app/d"}
    plan = world.land(delete=True)
    assert actions(plan) == dict.fromkeys(("f", "d", "d/one", "d/e", "d/e/two"), "delete")
    assert os.listdir(world.target) == []
    assert not world.plan(delete=True).steps


def test_a_deletion_spares_what_the_session_never_saw(world: World) -> None:
    world.below("/app/d/one", "1")
    world.below("/app/f", "old")
    (world.target / "f").write_text("changed here")
    (world.target / "d" / "mine").write_text("made here")
    world.delete("/app/d")
    world.delete("/app/f")
    assert conflicts(world.plan(delete=True)) == {"d/mine": True, "f": True}


def test_what_was_hidden_from_a_session_neither_changes_nor_goes(world: World) -> None:
    """Another Waypoint home: the session's layer has an empty folder over it, and that is gone by now."""
    world.below("/app/parent/home/waypoint.db", "precious")
    world.below("/app/other/file", "x")
    world.delete("/app/parent/home")
    world.write("/app/new")
    world.hide = ["/app/parent/home"]
    found = compare_views(None, PointView(world.volume, world.base, hide=world.hide))
    assert [change.path for change in found if change.entry == "file"] == ["/app/new"]
    assert actions(world.land(delete=True)) == {"new": "create"}
    # The folder around it was deleted before it was there.
    shutil.rmtree(world.upper / "app/parent")
    world.delete("/app/parent")
    world.delete("/app/other")
    plan = world.plan(delete=True, since_ns=time.time_ns() + 10**12)
    assert conflicts(plan) == {"parent": False}
    assert actions(plan) == dict.fromkeys(("other", "other/file"), "delete")
    selection, _, new = world.selection()
    told = export.write_tar(selection, new, io.BytesIO().write, whiteouts=False)
    assert (told.deleted, [one.path for one in told.left_out]) == (1, ["/app/parent"])


def test_a_link_on_the_way_is_a_conflict_that_cannot_be_forced(world: World, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (world.base / "app" / "data").mkdir()
    (world.target / "data").symlink_to(tmp_path / "elsewhere")
    world.write("/app/data/f", "new")
    plan = world.plan()
    assert conflicts(plan) == {"data/f": False}
    assert not plan.steps
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_link_that_came_out_of_a_session_leads_no_later_landing_astray(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root")
    link = world.upper / "app" / "door"
    link.parent.mkdir(parents=True)
    link.symlink_to("../etc")
    world.land()
    assert os.readlink(world.target / "door") == "../etc"
    link.unlink()
    world.write("/app/door/passwd", "evil")
    plan = world.plan(delete=True)
    assert conflicts(plan) == {"door": True}, "nobody knows this link any more"
    world.land(delete=True, landed=lambda _path, _status: True)
    assert (tmp_path / "etc" / "passwd").read_text() == "root"
    assert (world.target / "door" / "passwd").read_text() == "evil"


def test_a_file_where_a_folder_is_needs_to_be_allowed_to_delete(world: World) -> None:
    world.below("/app/d/one", "1")
    world.write("/app/d", "now a file")
    assert conflicts(world.plan()) == {"d": False}
    world.land(delete=True)
    assert (world.target / "d").read_text() == "now a file"


def test_a_folder_where_a_file_was(world: World) -> None:
    world.below("/app/f", "old")
    world.write("/app/f/inside", "new")
    os.setxattr(world.upper / "app" / "f", OPAQUE, b"y")
    plan = world.land()
    assert actions(plan) == {"f": "update", "f/inside": "create"}
    assert (world.target / "f" / "inside").read_text() == "new"
    assert not world.plan().steps


def test_a_renamed_folder_of_the_base_comes_whole(world: World) -> None:
    world.below("/app/old/one", "1")
    world.below("/app/old/sub/two", "2")
    moved = world.upper / "app" / "new"
    moved.mkdir(parents=True)
    os.setxattr(moved, REDIRECT, b"old")
    world.delete("/app/old")
    assert left_out(world.plan()) == {"/app/old"}
    world.land(delete=True)
    assert (world.target / "new" / "sub" / "two").read_text() == "2"
    assert os.listdir(world.target) == ["new"]


def test_what_is_no_file_does_not_land(world: World) -> None:
    (world.upper / "app").mkdir()
    os.mkfifo(world.upper / "app" / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(world.upper / "app" / "socket"))
    os.mknod(world.upper / "app" / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    plan = world.land()
    assert left_out(plan) == {"/app/pipe", "/app/socket", "/app/disk"}
    assert os.listdir(world.target) == []


def test_waypoints_own_files_land_only_when_named(world: World) -> None:
    (world.base / "etc").mkdir()
    world.write("/etc/resolv.conf", "nameserver 10.0.0.1\n")
    world.write("/etc/made", "by the session")
    (world.volume / "shm" / "shared").write_text("memory")
    plan = world.plan(source="/")
    assert left_out(plan) == {"/etc/resolv.conf", "/dev/shm/shared"}
    assert set(actions(plan)) == {"etc", "etc/made"}
    assert set(actions(world.plan("/etc/resolv.conf", source="/"))) == {"etc", "etc/resolv.conf"}


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_program_that_lends_rights_does_not_land_unseen(world: World, mode: int) -> None:
    world.write("/app/su", "#!/bin/sh\n", mode=mode)
    assert conflicts(world.plan()) == {"su": True}


def test_a_program_with_capabilities_does_not_land_unseen(world: World) -> None:
    there = world.write("/app/ping")
    granted = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(there, "security.capability", granted)
    assert conflicts(world.plan()) == {"ping": True}


def test_new_content_for_a_program_that_lends_rights_here_is_a_conflict_too(world: World) -> None:
    world.below("/app/su", "old")
    (world.target / "su").chmod(0o4755)
    world.write("/app/su", "evil")
    assert conflicts(world.plan()) == {"su": True}


def test_what_the_host_runs_by_itself_does_not_land_unseen(world: World) -> None:
    world.write("/app/.git/hooks/pre-commit", "#!/bin/sh\n", mode=0o755)
    world.write("/app/.envrc")
    world.write("/app/main.py")
    world.write("/app/.git/config", "[core]\n\tbare = false\n")
    plan = world.plan()
    assert conflicts(plan) == {".git/hooks/pre-commit": False, ".envrc": False}
    assert all(conflict.executed for conflict in plan.landing.conflicts)
    # What is not allowed stays where it is, also if everything else is forced.
    assert set(actions(plan)) == {"main.py", ".git", ".git/hooks", ".git/config"}
    world.land(allow_executed=True)
    assert (world.target / ".envrc").exists()
    assert not conflicts(world.plan())


def test_a_hook_that_is_made_executable_is_a_conflict(world: World) -> None:
    world.below("/app/.git/hooks/pre-commit", "#!/bin/sh\n")
    world.write("/app/.git/hooks/pre-commit", "#!/bin/sh\n", mode=0o755)
    assert conflicts(world.plan()) == {".git/hooks/pre-commit": False}


def test_the_hooks_of_a_bare_repository_are_found(world: World) -> None:
    for name in ("HEAD", "objects/x"):
        world.below(f"/app/x.git/{name}")
    world.write("/app/x.git/hooks/update", "#!/bin/sh\n", mode=0o755)
    assert conflicts(world.plan()) == {"x.git/hooks/update": False}


def test_a_folder_that_is_named_by_a_link_is_known_by_its_real_path(world: World) -> None:
    world.write("/app/x.service")
    assert conflicts(world.plan(real_target="/etc/systemd/system")) == {"x.service": False}


def test_only_what_was_named_lands(world: World) -> None:
    world.write("/app/src/one")
    world.write("/app/srcs")
    world.write("/app/tests/two")
    assert set(actions(world.plan("/app/src"))) == {"src", "src/one"}


def test_hard_links_stay_linked(world: World) -> None:
    one = world.write("/app/one", "shared")
    os.link(one, world.upper / "app" / "two")
    world.land()
    assert (world.target / "one").stat().st_ino == (world.target / "two").stat().st_ino
    assert not world.plan().steps


def test_odd_names(world: World) -> None:
    names = ["Grüße", "日本", "with space", "new\nline", "-rf", "*", "\udcff\udcfe", "a:b", "'\"\\"]
    for name in names:
        world.write(f"/app/{name}", name.encode(errors="surrogateescape"))
    plan = world.land()
    assert sorted(os.listdir(world.target)) == sorted(names)
    for name in names:
        assert (world.target / name).read_bytes() == name.encode(errors="surrogateescape")
    for item in plan.landing.items:
        item.path.encode()  # what travels is text
    assert not world.plan().steps


def test_a_large_file_is_compared_to_its_end(world: World) -> None:
    there = world.write("/app/big", "")
    os.truncate(there, 300 << 20)
    world.land()
    assert (world.target / "big").stat().st_blocks < 1000, "holes stay holes"
    assert not world.plan().steps
    with open(there, "r+b") as file:
        file.seek(299 << 20)
        file.write(b"x")
    assert conflicts(world.plan()) == {"big": True}


def test_what_appears_while_landing_is_not_overwritten(world: World) -> None:
    world.write("/app/f", "by the session")
    selection, old, new = world.selection()
    with Folder.open(world.target) as ground:
        plan = landing.plan_landing(selection, old, new, ground, "/t", LandingRules())
        (world.target / "f").write_text("just made here")
        with pytest.raises(PlaceChanged):
            list(carry_out(plan.steps, new, ground, times=False, insist=True))
    assert (world.target / "f").read_text() == "just made here"


# ---- everything at once -------------------------------------------------------------------------

Tree = Mapping[str, tuple[str, Any]]
"""Path: kind ("file", "link", "folder") and content."""

_names = st.sampled_from(["a", "b", "c"])
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_things = st.one_of(
    st.tuples(st.just("file"), st.sampled_from([b"", b"one\n", b"two\n", b"\0\1", b"no newline"])),
    st.tuples(st.just("link"), st.sampled_from(["a", "../b", "/etc", "nowhere"])),
    st.tuples(st.just("folder"), st.just(None)),
)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for path, thing in draw(st.lists(st.tuples(_paths, _things), max_size=8)):
        parts = path.split("/")
        above = ["/".join(parts[:end]) for end in range(1, len(parts))]
        if any(found.get(one, ("folder",))[0] != "folder" for one in above):
            continue
        if thing[0] != "folder" and any(other.startswith(f"{path}/") for other in found):
            continue
        found |= dict.fromkeys(above, ("folder", None))
        found[path] = thing
    return found


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path)


def filled(tree: Tree) -> Tree:
    """Without folders that hold nothing: git knows none."""
    return {
        path: thing
        for path, thing in tree.items()
        if thing[0] != "folder"
        or any(one.startswith(f"{path}/") and what[0] != "folder" for one, what in tree.items())
    }


def build(root: Path, tree: Tree) -> None:
    for path in sorted(tree):
        make(root / path, tree[path])


def make(path: Path, thing: tuple[str, Any]) -> None:
    kind, content = thing
    if kind == "folder":
        path.mkdir(exist_ok=True)
    elif kind == "link":
        path.symlink_to(content)
    else:
        path.write_bytes(content)


def layer(upper: Path, old: Tree, new: Tree) -> None:
    """What an overlay would have in its upper folder after the one became the other."""
    for path in sorted({*old, *new}):
        was, now = old.get(path), new.get(path)
        if was == now:
            continue
        above = os.path.dirname(path)
        merged = all(
            old.get(one, ("",))[0] == new.get(one, ("",))[0] == "folder"
            for one in ("/".join(above.split("/")[:end]) for end in range(1, len(above.split("/")) + 1))
            if one
        )
        (upper / above).mkdir(parents=True, exist_ok=True) if now or merged else None
        if now is None:
            if merged:
                os.mknod(upper / path, stat.S_IFCHR, os.makedev(0, 0))
            continue
        make(upper / path, now)
        if now[0] == "folder" and was is not None:
            os.setxattr(upper / path, OPAQUE, b"y")


def picture(root: Path) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder) / name
            inside = str(path.relative_to(root))
            if path.is_symlink():
                found[inside] = ("link", os.readlink(path))
            elif path.is_dir():
                found[inside] = ("folder", None)
            else:
                found[inside] = ("file", path.read_bytes())
    return found


everything = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@everything
@given(old=trees(), new=trees())
def test_whatever_changed_has_landed_afterwards(old: Tree, new: Tree, tmp_path: Path) -> None:
    with contextlib.ExitStack() as undo:
        undo.callback(clear, tmp_path)
        world = World(tmp_path)
        build(world.base / "app", old)
        build(world.target, old)
        layer_root = world.upper / "app"
        layer_root.mkdir()
        layer(layer_root, old, new)
        assert picture_of_view(PointView(world.volume, world.base)) == new
        world.land(delete=True)
        assert picture(world.target) == new
        assert not world.plan(delete=True).steps


def picture_of_view(view: PointView) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for path, entry in view.walk("/app"):
        content: Any = None
        if entry.is_link:
            content = view.readlink(path)
        elif entry.is_file:
            place = view.place(path)
            assert place
            where = view.data_path(place)
            assert where
            content = Path(where).read_bytes()
        found[path.removeprefix("/app/")] = (entry.kind, content)
    return found


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@settings(everything, max_examples=25)
@given(old=trees().map(filled), new=trees().map(filled))
def test_a_patch_says_all_that_a_patch_can_say(old: Tree, new: Tree, tmp_path: Path) -> None:
    # git looks at what is below a link before it knows that the link goes.
    assume(all({old[path][0], new[path][0]} != {"link", "folder"} for path in {*old} & {*new}))
    with contextlib.ExitStack() as undo:
        undo.callback(clear, tmp_path)
        world = World(tmp_path)
        build(world.base / "app", old)
        build(world.target, old)
        (world.upper / "app").mkdir()
        layer(world.upper / "app", old, new)
        text = patch_of(world)
        if text:
            git_apply(world.target, text)

        def without_folders(tree: Tree) -> Tree:
            return {path: thing for path, thing in tree.items() if thing[0] != "folder"}

        assert without_folders(picture(world.target)) == without_folders(new)
        if text:
            git_apply(world.target, text, "-R")
            assert without_folders(picture(world.target)) == without_folders(old)


def git_apply(folder: Path, text: bytes, *options: str) -> None:
    command = ["git", "apply", *options, "-"]
    # Links of the tree would be links beyond the tree to a git that found a repository around it.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, (done.stderr, text)


# ---- exports ------------------------------------------------------------------------------------


def patch_of(world: World, *paths: str) -> bytes:
    selection, old, new = world.selection(*paths)
    out = io.BytesIO()
    export.write_patch(selection, old, new, out.write, named=paths)
    return out.getvalue()


def tar_of(world: World, *, whiteouts: bool = False, source: str = "/app") -> bytes:
    selection, _, new = world.selection(source=source)
    out = io.BytesIO()
    told = export.write_tar(selection, new, out.write, whiteouts=whiteouts)
    assert told.bytes == len(out.getvalue())
    return out.getvalue()


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


def test_a_tar_keeps_what_there_is_to_keep(world: World) -> None:
    one = world.write("/app/one", b"\0binary\xff", mode=0o4710)
    os.chown(one, 12345, 54321)
    one.chmod(0o4710)
    os.setxattr(one, "user.bytes", b"\xff\x00=")
    os.utime(one, ns=(0, 1_700_000_000_123_456_789))
    os.link(one, world.upper / "app" / "two")
    (world.upper / "app" / "link").symlink_to("one")
    long = "/".join(["a" * 100] * 3)
    world.write(f"/app/{long}", "deep")
    world.write("/app/\udcff", "odd")
    data = tar_of(world)
    assert data == tar_of(world), "the same every time"
    found = members(data)
    header = found["one"]
    assert (header.mode, header.uid, header.gid, header.uname) == (0o4710, 12345, 54321, "")
    assert header.pax_headers["mtime"] == "1700000000.123456789"
    assert found["two"].islnk()
    assert found["two"].linkname == "one"
    assert found["link"].linkname == "one"
    assert long in found
    folder = world.target
    done = subprocess.run(
        ["tar", "xpf", "-", "--xattrs", "--numeric-owner", "-C", folder], input=data, check=False
    )
    assert done.returncode == 0
    there = folder / "one"
    assert there.read_bytes() == b"\0binary\xff"
    assert os.getxattr(there, "user.bytes") == b"\xff\x00="
    assert there.stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert there.stat().st_ino == (folder / "two").stat().st_ino
    assert (folder / "\udcff").read_text() == "odd"


def test_deletions_in_a_tar(world: World) -> None:
    world.below("/app/f")
    world.below("/app/d/with space")
    world.delete("/app/f")
    world.delete("/app/d")
    data = tar_of(world)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        listed = tar.extractfile(export.DELETED_MEMBER)
        assert listed
        assert listed.read() == b"d\0f\0"
    assert set(members(tar_of(world, whiteouts=True))) == {".wh.d", ".wh.f"}


def test_a_tar_has_no_sockets_and_nothing_of_waypoints(world: World) -> None:
    os.mkfifo(world.write("/app/x").parent / "pipe")
    world.write("/etc/resolv.conf")
    selection, _, new = world.selection(source="/")
    told = export.write_tar(selection, new, io.BytesIO().write, whiteouts=False)
    assert {one.path for one in told.left_out} == {"/app/pipe", "/etc/resolv.conf"}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_patch_with_everything_that_is_hard_to_say(world: World) -> None:
    world.below("/app/text", "\n".join(str(number) for number in range(100)))
    world.below("/app/binary", b"\0" * 5000)
    world.below("/app/gone", "gone\n")
    world.below("/app/run", "#!/bin/sh\n")
    world.below("/app/latin", "caf\xe9\n".encode("latin-1"))
    world.write("/app/text", "\n".join(str(number) for number in range(100) if number != 50) + "\n")
    world.write("/app/binary", os.urandom(5000))
    world.write("/app/latin", "caf\xe8\n".encode("latin-1"))
    world.write("/app/run", "#!/bin/sh\n", mode=0o755)
    world.write("/app/with space", "x")
    world.write('/app/quo"te\n\udcff', "odd\n")
    world.write("/app/crlf", "a\r\nb\r\n")
    world.write("/app/empty", "")
    (world.upper / "app" / "link").symlink_to("with space")
    world.delete("/app/gone")
    git_apply(world.target, patch_of(world))
    assert picture(world.target) == picture_of_view(PointView(world.volume, world.base))
    assert stat.S_IMODE((world.target / "run").stat().st_mode) & 0o111


def test_a_patch_of_text_is_one_for_patch_too(world: World) -> None:
    world.below("/app/text", "one\ntwo\nthree\n")
    world.write("/app/text", "one\n2\nthree\n")
    world.write("/app/with space", "new\n")
    done = subprocess.run(
        ["patch", "-p1", "-s"], cwd=world.target, input=patch_of(world), capture_output=True, check=False
    )
    if done.returncode == 127:
        pytest.skip("needs patch")
    assert done.returncode == 0, done.stdout
    assert (world.target / "text").read_text() == "one\n2\nthree\n"
    assert (world.target / "with space").read_text() == "new\n"


def test_what_a_patch_cannot_say_is_said(world: World) -> None:
    world.below("/app/f", "same")
    os.chown(world.write("/app/f", "same"), 5, 5)
    (world.upper / "app" / "empty").mkdir()
    selection, old, new = world.selection()
    told = export.write_patch(selection, old, new, io.BytesIO().write)
    assert {one.path for one in told.left_out} == {"/app/f", "/app/empty"}


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("work:/app", Location(True, "/app", "work")),
        ("work:", Location(True, ".", "work")),
        (":out", Location(True, "out")),
        ("work@c3:/etc/hosts", Location(True, "/etc/hosts", "work", "c3")),
        ("work@10:27:/etc/hosts", Location(True, "/etc/hosts", "work", "10:27")),
        ("@up:/x", Location(True, "/x", None, "up")),
        ("work:a:b", Location(True, "a:b", "work")),
        ("file", Location(False, "file")),
        ("./a:b", Location(False, "./a:b")),
        ("/a:b", Location(False, "/a:b")),
        ("-x:y", Location(False, "-x:y")),
    ],
)
def test_one_end_of_a_copy(word: str, meant: Location) -> None:
    assert parse_location(word) == meant


def test_a_plan_cannot_command_the_terminal() -> None:
    plan = Landing(
        source="/app\x1b",
        target="/t",
        items=(
            Landed(
                path="/t/\x1b[2J\rok", source="/app/x", action="create", entry="file", size_bytes=3, what=()
            ),
        ),
        conflicts=(Conflict(path="/t/\x07", source="", why="w", forcible=True),),
        left_out=(LeftOut(path="/\x1b]0;x", why="w"),),
    )
    shown = landing_plan(plan, PLAIN)
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "\x07" not in shown


def test_a_long_plan_is_cut() -> None:
    items = tuple(Landed(path=f"/t/{n}", source="", action="create", entry="file") for n in range(1000))
    shown = landing_plan(Landing(source="/", target="/t", items=items), PLAIN)
    assert len(shown.splitlines()) < 60
    assert "960 more" in shown


def test_what_an_overlay_obeys_does_not_land() -> None:
    attributes = {"user.color": b"red", "user.overlay.redirect": b"/etc", "trusted.overlay.opaque": b"y"}
    assert portable_attributes(attributes) == {"user.color": b"red"}
