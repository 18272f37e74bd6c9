"""The base below a session changes: files are replaced as by a package manager, file systems come and go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home
from waypoint.kernel.syscalls import umount

Make = Callable[..., waypoint.Session]
MakeRoot = Callable[[Path], None]


@pytest.fixture
def root(make_root: MakeRoot) -> Iterator[Path]:
    folder = Path(f"/var/tmp/waypoint-base-{os.getpid()}")
    make_root(folder)
    yield folder
    shutil.rmtree(folder)


def upgrade(path: Path, *, longer_by: int = 0) -> None:
    """Replaces a program or library by one that works and is another: a new file, moved over the old one."""
    new = path.with_name(f"{path.name}.dpkg-new")
    path = path.resolve()
    shutil.copy2(path, new)
    with new.open("ab") as file:
        file.write(b"upgraded" + bytes(longer_by))
    new.rename(path)


def wait_kept(home: Home, point: waypoint.Checkpoint) -> None:
    """The daemon keeps files of the base when it is idle."""
    until((home.checkpoints / point.id / "base.json").exists)


def libc_of(root: Path) -> Path:
    return next(root.glob("lib/*/libc.so.6"))


def test_an_upgrade_of_libc_and_bash_ended_all_points_over_a_base(
    sessions: Make, home: Home, root: Path
) -> None:
    session = sessions("s", base=str(root), net="none")
    session.run("x='kept in memory'; exec 7< /bin/cat; sleep 1000 &").check()
    old = session.checkpoint(name="old")
    assert old.fork(name="before")[0].run("echo $x").output == "kept in memory\n"
    wait_kept(home, old)
    kept = home.pool / "kept"
    stored = {entry.name: entry.stat().st_nlink for entry in kept.iterdir()}
    assert stored

    for program in (root / "bin/bash", root / "bin/sleep", root / "bin/cat", libc_of(root)):
        upgrade(program)
    size = (root / "bin/cat").stat().st_size

    # What runs goes on, a point that is taken now is whole, and what starts is new.
    assert session.run("echo $x; /bin/cat /bin/cat | wc -c").output.split()[:3] == ["kept", "in", "memory"]
    mixed = session.checkpoint(name="mixed")
    wait_kept(home, mixed)
    assert "the base has other files by now (" in str(session.preview(old))

    restored = session.restore(old, safety=False)
    (said,) = restored.base_changes
    assert "/bin/bash" in said
    assert session.run("echo $x; jobs").output.startswith("kept in memory\n")
    # An open file is the old one, its path shows the new one.
    assert session.run("wc -c <&7; wc -c < /bin/cat").output.split() == [str(size - 8), str(size)]
    assert session.run("bash -c 'echo a new shell'; ls / | wc -l").ok
    assert not session.diff("old").files

    # Such a session is saved, restored and forked as any other, also after the next upgrade.
    again = session.checkpoint(name="again")
    wait_kept(home, again)
    for program in (root / "bin/bash", libc_of(root)):
        upgrade(program, longer_by=100)
    for point in (again, mixed, old):
        (fork,) = point.fork(name=f"of-{point.name}")
        assert fork.run("echo $x; jobs; bash -c 'echo works'").output.startswith("kept in memory\n")
        assert fork.checkpoint().fork(name=f"of-{point.name}-too")[0].run("echo $x").output == (
            "kept in memory\n"
        )

    # What no point needs any more is removed.
    names = [one["name"] for one in waypoint.Client().call("ls")["sessions"]]
    waypoint.Client().call("rm", {"sessions": [name for name in names if name != "seed"]})
    last = sessions("last", base=str(root), net="none").checkpoint()
    wait_kept(home, last)
    links = {entry.name for entry in (home.checkpoints / last.id / "kept").iterdir()}
    assert links
    until(lambda: {entry.name for entry in kept.iterdir()} == links)


def test_a_base_that_lacks_what_was_not_kept_is_named_before_anything_is_tried(
    sessions: Make, home: Home, root: Path
) -> None:
    session = sessions("s", base=str(root), net="none")
    session.run("sleep 1000 & echo data > /root/file").check()
    point = session.checkpoint()
    wait_kept(home, point)
    (home.checkpoints / point.id / "base.json").unlink()
    upgrade(root / "bin/sleep")
    with pytest.raises(errors.BaseChanged, match=r"/bin/sleep of the base changed") as caught:
        session.restore(point, safety=False)
    assert caught.value.details["files"] == ["/bin/sleep"]
    assert session.run("jobs").output.startswith("[1]+  Running")
    session.restore(point, files_only=True)
    assert session.run("cat /root/file").output == "data\n"

    # Another folder at the path of the base.
    here = session.checkpoint()
    aside = root.with_name(f"{root.name}-aside")
    root.rename(aside)
    shutil.copytree(aside, root, symlinks=True)
    try:
        with pytest.raises(errors.BaseChanged, match="not what the session was made with"):
            session.restore(here, safety=False)
        assert session.point(here.id).info.restorable != "failed"
    finally:
        shutil.rmtree(root)
        aside.rename(root)
    session.restore(here, safety=False)


# ---- file systems below the base -----------------------------------------------------------------


@pytest.fixture
def disks(root: Path, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Mounts one of several disks at a place below the base; "" takes the disk away."""

    def put(place: str, name: str) -> None:
        path, image = root / place, tmp_path / f"{name}.img"
        if os.path.ismount(path):
            umount(path)
        if not name:
            return
        path.mkdir(exist_ok=True)
        is_new = not image.exists()
        if is_new:
            image.touch()
            os.truncate(image, 32 << 20)
            subprocess.run(["mkfs.ext4", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, path], check=True)
        if is_new:
            (path / "name").write_text(f"{name}\n")
            (path / "folder").mkdir()
            (path / "folder" / name).touch()

    yield put
    for place in ("data", "other", "late"):
        put(place, "")


def test_a_disk_that_was_replaced_made_every_point_unrestorable(
    sessions: Make, home: Home, root: Path, disks: Callable[[str, str], None]
) -> None:
    disks("data", "one")
    disks("other", "two")
    session = sessions("s", base=str(root), net="none")
    unchanged = session.checkpoint()
    look = "cat /data/name /data/mine; echo /data/folder/*; cat /other/name"
    session.run(
        "echo mine > /data/mine; touch /data/folder/new; rm /data/folder/one; exec 5< /data/name"
    ).check()
    changed = session.checkpoint()
    assert session.run(look).output == "one\nmine\n/data/folder/new\ntwo\n"
    wait_kept(home, changed)

    # Another disk, and none: what the session has changed is shown over what is there.
    disks("data", "three")
    disks("other", "")
    disks("late", "four")
    restored = session.restore(changed, safety=False)
    assert set(restored.base_changes) >= {
        "/data is another file system now; what the session changed there is shown over what is there now",
        "/other is not mounted on the host any more",
    }
    assert session.run("cat /data/mine; echo /data/folder/*; echo /other/*").output == (
        "mine\n/data/folder/new /data/folder/three\n/other/*\n"
    )
    assert session.run("cat /data/name; cat <&5").output == "three\none\n"
    again = session.checkpoint()
    assert session.restore(again, safety=False).base_changes == ()
    assert session.restore(unchanged, safety=False).base_changes[0] == "/data is another file system now"
    assert session.run("cat /data/name; echo /data/*").output == (
        "three\n/data/folder /data/lost+found /data/name\n"
    )

    # No disk at all, and then the first ones again: nothing is lost.
    disks("data", "")
    (fork,) = changed.fork(name="without")
    assert fork.run("cat /data/mine; echo /data/* /data/folder/*").output == (
        "mine\n/data/folder /data/mine /data/folder/new\n"
    )
    disks("data", "one")
    disks("other", "two")
    assert session.restore(changed, safety=False).base_changes == ()
    assert session.run(look).output == "one\nmine\n/data/folder/new\ntwo\n"


def test_a_spare_of_before_an_upgrade_mixed_old_libraries_with_new_ones(
    sessions: Make, home: Home, root: Path
) -> None:
    """Its box went on showing the files that its processes had open, beside those that were new."""
    session = sessions("s", base=str(root), net="none", spares=1)
    point = session.checkpoint()
    wait_kept(home, point)
    until(lambda: point.id in waypoint.Client().call("daemon_status")["spares"])
    upgrade(libc_of(root))
    size = libc_of(root).stat().st_size
    restored = session.restore(point, safety=False)
    assert not restored.spare
    assert restored.base_changes
    assert session.run(f"wc -c < /{libc_of(root).relative_to(root)}").output == f"{size}\n"
