"""Files in and out of real sessions: what lands, what is refused, and that nobody is led astray."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint import errors, model
from waypoint.home import Home
from waypoint.kernel.pool.lifecycle import close_pool

BINARY = bytes(range(256)) * 64
ODD_NAMES = ("Grüße", "日本語", "with space", "-rf", "a:b")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder of this machine, and beside it what must stay as it is."""
    (tmp_path / "target").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    return tmp_path / "target"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that sessions see too, because their base is this machine."""
    folder = Path("/var/tmp/waypoint-landing-test")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / name).write_text(f"{name}\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "four").write_text("four\n")
    yield folder
    shutil.rmtree(folder)


def actions(landing: model.Landing) -> dict[str, str]:
    prefix = landing.target.rstrip("/") + "/"
    return {item.path.removeprefix(prefix): item.action for item in landing.items}


def untouched(target: Path) -> bool:
    outside = target.parent / "outside"
    return os.listdir(outside) == ["precious"] and (outside / "precious").read_text() == "precious"


# ---- apply --------------------------------------------------------------------------------------


def test_what_a_session_made_lands_with_all_that_it_is(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir -p /srv/app/sub && cd /srv/app && umask 022").check()
    fresh.run("echo hello > text; chmod 640 text; chown 33:34 text; ln text same; ln -s text link").check()
    fresh.run("python3 -c \"import os; os.setxattr('text', 'user.color', b'red')\"").check()
    fresh.run("python3 -c \"open('sub/binary','wb').write(bytes(range(256))*64)\"").check()
    for name in ODD_NAMES:
        fresh.run(f"echo x > './{name}'").check()
    fresh.run("mkfifo pipe; mkdir empty; chmod 700 empty; echo elsewhere > /srv/other")
    landing = fresh.apply(target)
    assert landing.done
    assert landing.source == "/srv/app", "the folder its shell is in"
    assert [one.path for one in landing.left_out] == ["/srv/app/pipe"]
    text = target / "text"
    about = text.stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (33, 34, 0o640)
    assert os.getxattr(text, "user.color") == b"red"
    assert (target / "same").stat().st_ino == about.st_ino
    assert os.readlink(target / "link") == "text"
    assert (target / "sub" / "binary").read_bytes() == BINARY
    assert stat.S_IMODE((target / "empty").stat().st_mode) == 0o700
    made = {"text", "same", "link", "sub", "empty", *ODD_NAMES}
    assert set(os.listdir(target)) == made
    again = fresh.apply(target)
    assert (again.done, again.items) == (True, ())
    assert again.unchanged == len(made) + 1


def test_how_far_it_is_is_said_while_files_move(
    fresh: waypoint.Session, target: Path, tmp_path: Path
) -> None:
    fresh.run("mkdir /srv/app; cd /srv/app; for i in {1..40}; do echo $i > $i; done").check()
    heard: list[str] = []
    fresh.apply(target, on_progress=heard.append)
    assert heard[0] == "1 of 40 files"
    fresh.export(tmp_path / "out.tar", on_progress=heard.append)
    assert heard[-1].endswith(" written")
    fresh.copy_out("/srv/app", tmp_path / "copy", on_progress=heard.append)
    fresh.copy_in(tmp_path / "copy", "/srv/copied", on_progress=heard.append)
    assert sum(" files, " in text for text in heard) >= 2


def test_a_session_lands_again_and_again(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir /srv/app && cd /srv/app && echo one > f").check()
    fresh.apply(target)
    fresh.run("echo two > f").check()
    assert actions(fresh.apply(target)) == {"f": "update"}
    assert (target / "f").read_text() == "two\n"
    (target / "f").write_text("somebody here\n")
    fresh.run("echo three > f").check()
    with pytest.raises(errors.LandingConflict) as caught:
        fresh.apply(target)
    assert caught.value.details["conflicts"][0]["path"] == str(target / "f")
    assert (target / "f").read_text() == "somebody here\n"
    assert fresh.apply(target, dry_run=True).conflicts[0].forcible
    fresh.apply(target, force=True)
    assert (target / "f").read_text() == "three\n"


def test_what_a_session_landed_and_deleted_later_goes_when_asked_for(
    fresh: waypoint.Session, target: Path
) -> None:
    fresh.run("mkdir -p /srv/app/d/e && cd /srv/app && echo > a && echo > d/b && echo > d/e/c").check()
    fresh.apply(target)
    (target / "own").write_text("own")
    fresh.run("rm -r a d").check()
    plan = fresh.apply(target, dry_run=True)
    assert plan.items == ()
    assert {one.path for one in plan.left_out} == {
        f"/srv/app/{path}" for path in ("a", "d", "d/b", "d/e", "d/e/c")
    }
    fresh.apply(target, delete=True)
    assert os.listdir(target) == ["own"]
    (target / "a").write_text("made here")
    again = fresh.apply(target, delete=True)
    assert (again.items, again.left_out) == ((), ())


def test_changes_of_this_machines_own_files_come_back_to_it(
    sessions: Callable[..., waypoint.Session], place: Path
) -> None:
    session = sessions("t")
    session.run(f"cd {place} && echo changed > one && rm two && echo made > new && chmod 600 three").check()
    session.run("rm -r sub").check()
    assert (place / "one").read_text() == "one\n"
    plan = session.apply("/", [str(place)], dry_run=True)
    inside = str(place).lstrip("/")
    assert actions(plan) == {f"{inside}/one": "update", f"{inside}/new": "create", f"{inside}/three": "mode"}
    assert {one.path for one in plan.left_out} == {f"{place}/two", f"{place}/sub"}
    session.apply(place, delete=True)
    assert sorted(os.listdir(place)) == ["new", "one", "three"]
    assert (place / "one").read_text() == "changed\n"
    assert stat.S_IMODE((place / "three").stat().st_mode) == 0o600
    assert session.apply(place, delete=True).items == ()
    assert session.run("cat one new; ls -1").output == "changed\nmade\nnew\none\nthree\n"
    fork = session.checkpoint().fork(name="f")[0]
    assert fork.run("cat one new; ls -1; echo more >> one; cat one").output == (
        "changed\nmade\nnew\none\nthree\nchanged\nmore\n"
    ), "the base below a session has changed, and the session does not mind"


def test_what_changed_here_since_the_session_began_is_a_conflict(
    sessions: Callable[..., waypoint.Session], place: Path
) -> None:
    session = sessions("t")
    session.run(f"cd {place} && echo mine > one && rm two && rm -r sub && echo mine > three").check()
    point = session.checkpoint()
    fork = point.fork(name="f")[0]
    time.sleep(0.05)
    (place / "one").write_text("yours\n")
    (place / "two").write_text("yours\n")
    (place / "sub" / "five").write_text("yours\n")
    for one in (session, fork):
        plan = one.apply(place, delete=True, dry_run=True)
        assert {conflict.path.rpartition("/")[2] for conflict in plan.conflicts} == {"one", "two", "five"}
        with pytest.raises(errors.LandingConflict):
            one.apply(place, delete=True)
    assert (place / "three").read_text() == "three\n", "nothing lands when something is in conflict"
    assert [conflict.path for conflict in fork.apply(place, dry_run=True).conflicts] == [f"{place}/one"]
    assert actions(fork.apply(place, ["three"])) == {"three": "update"}
    fork.apply(place, delete=True, force=True)
    assert sorted(os.listdir(place)) == ["one", "three"]
    assert (place / "one").read_text() == "mine\n"


def test_the_changes_of_a_point_and_between_two_points(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir /srv/app && cd /srv/app && echo 1 > a").check()
    first = fresh.checkpoint()
    fresh.run("echo 2 > b").check()
    second = fresh.checkpoint()
    fresh.run("echo 3 > c; rm a").check()
    assert actions(fresh.apply(target, ref=first)) == {"a": "create"}
    shutil.rmtree(target / ".", ignore_errors=True)
    target.mkdir(exist_ok=True)
    assert actions(fresh.apply(target, ref=second, since=first)) == {"b": "create"}
    assert actions(fresh.apply(target, since=second, source="/srv/app")) == {"c": "create"}


def test_which_folder_stands_for_the_target(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir -p /srv/app/src /srv/app/doc && cd /srv/app && echo > src/a && echo > doc/b").check()
    assert set(actions(fresh.apply(target, ["/srv/app/src"], dry_run=True))) == {"a"}
    assert set(actions(fresh.apply(target, ["/srv/app/src/a"], dry_run=True))) == {"a"}
    assert set(actions(fresh.apply(target, ["src"], dry_run=True))) == {"src", "src/a"}
    with pytest.raises(errors.NotFound):
        fresh.apply(target, ["src"], source="/srv")
    found = fresh.apply(target, ["/srv/app/src", "/srv/app/doc"], source="/srv/app", dry_run=True)
    assert set(actions(found)) == {"src", "src/a", "doc", "doc/b"}
    with pytest.raises(errors.UsageError, match="stands for the target"):
        fresh.apply(target, ["/srv/app/src", "/srv/app/doc"])
    with pytest.raises(errors.NotFound):
        fresh.apply(target, ["nothing"])
    with pytest.raises(errors.UsageError, match="not below"):
        fresh.apply(target, ["/srv/app/src"], source="/srv/app/doc")
    assert os.listdir(target) == []
    missing = target / "deeper"
    assert fresh.apply(missing, ["src"], dry_run=True).items
    assert not missing.exists()
    fresh.apply(missing, ["src"])
    assert (missing / "src" / "a").exists()
    with pytest.raises(errors.NotFound):
        fresh.apply(target / "no" / "such")


def test_a_session_cannot_write_outside_of_where_it_lands(fresh: waypoint.Session, target: Path) -> None:
    outside = target.parent / "outside"
    fresh.run("mkdir /srv/app && cd /srv/app").check()
    fresh.run(f"ln -s {outside} abs; ln -s ../outside rel; ln -s {outside}/precious file").check()
    fresh.apply(target)
    assert os.readlink(target / "abs") == str(outside)
    fresh.run("rm abs rel file; mkdir abs rel; echo evil | tee abs/precious rel/precious > file").check()
    fresh.apply(target)
    assert untouched(target)
    assert (target / "rel" / "precious").read_text() == "evil\n"
    assert not (target / "abs").is_symlink()
    (target / "sub").symlink_to("../outside")
    fresh.run("mkdir sub; echo evil > sub/precious; echo evil > sub/new").check()
    with pytest.raises(errors.LandingConflict):
        fresh.apply(target)
    fresh.apply(target, force=True)
    assert untouched(target), "a link of this machine is replaced or left, and never followed"


def test_a_program_that_lends_rights_does_not_land_unseen(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir /srv/app && cd /srv/app && cp /bin/true su && chmod 4755 su").check()
    with pytest.raises(errors.LandingConflict, match="rights of user 0"):
        fresh.apply(target)
    copied = fresh.copy_out("su", target)
    assert [one.path for one in copied.left_out] == ["su"]
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755


def test_what_this_machine_runs_by_itself_lands_only_when_it_is_allowed(
    fresh: waypoint.Session, target: Path
) -> None:
    fresh.run("git init -q /srv/app && cd /srv/app && echo work > file").check()
    fresh.run("echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo evil > .envrc").check()
    with pytest.raises(errors.LandingConflict, match=r"hook|direnv") as refused:
        fresh.apply(target)
    assert "allow_executed" in str(refused.value.hint)
    done = fresh.apply(target, force=True)
    assert {Path(one.path).name for one in done.conflicts} == {"pre-commit", ".envrc"}
    assert (target / "file").read_text() == "work\n"
    assert (target / ".git/config").exists(), "a new repository is no danger by itself"
    assert not (target / ".envrc").exists()
    fresh.apply(target, allow_executed=True)
    assert (target / ".git/hooks/pre-commit").read_text() == "evil\n"


def test_the_boxs_own_resolver_does_not_land(sessions: Callable[..., waypoint.Session]) -> None:
    session = sessions("t")
    plan = session.apply("/", dry_run=True)
    assert "/etc/resolv.conf" not in {item.path for item in plan.items}
    assert not any(item.path.startswith(("/dev", "/proc", "/sys")) for item in plan.items)


def test_another_home_that_is_not_mounted_any_more_was_not_deleted(
    sessions: Callable[..., waypoint.Session], small_home: Path
) -> None:
    """It was hidden when the session began, and has not come into the session by being closed."""
    waypoint.Client(small_home).call("daemon_status", {})
    session = sessions("t", net="none")
    session.run("echo mine > /srv/mine").check()
    point = session.checkpoint("mine")
    waypoint.Client(small_home).call("daemon_stop", {"sessions": True})
    assert close_pool(small_home)
    session.restore(point)  # the box has no mask over it now
    session.run(f"rm -rf {small_home}")
    assert [one["path"] for one in session.diff("base").files] == ["/srv/mine"]
    landing = session.apply("/", source="/", delete=True, dry_run=True)
    assert not [item for item in landing.items if item.path.startswith(str(small_home))]
    exported = io.BytesIO()
    session.export(exported)
    with tarfile.open(fileobj=io.BytesIO(exported.getvalue())) as tar:
        assert not [name for name in tar.getnames() if name.startswith(str(small_home).lstrip("/"))]
        assert ".waypoint-deleted" not in tar.getnames()
    assert (small_home / "waypoint.db").exists()


def test_the_disk_is_not_filled(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir /srv/app && cd /srv/app && truncate -s 900G big && echo > small").check()
    room = shutil.disk_usage(target).free
    if room > 900 << 30:
        pytest.skip("this disk takes it")
    with pytest.raises(errors.NoSpace):
        fresh.apply(target)
    assert os.listdir(target) == []


# ---- export -------------------------------------------------------------------------------------


def test_an_export_holds_the_changes_and_can_be_used_elsewhere(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir -p /srv/app/d && cd /srv/app && echo one > d/f && ln -s d/f l && chmod 755 d/f").check()
    point = fresh.checkpoint()
    fresh.run("python3 -c \"open('binary','wb').write(bytes(range(256))*64)\"").check()
    fresh.run("echo two > d/f; rm l; printf 'no newline' > 'with space'").check()
    file = target.parent / "x.tar"
    told = fresh.export(file, since=point, source="/srv/app", whiteouts=True)
    assert told.bytes == file.stat().st_size
    with tarfile.open(file) as tar:
        assert sorted(tar.getnames()) == [".wh.l", "binary", "d/f", "with space"]
    patch = target.parent / "x.patch"
    fresh.copy_out("/srv/app/.", target, ref=point)
    fresh.export(patch, since=point, source="/srv/app", patch=True)
    # In a folder of a repository git would take the names in the patch for names in the repository.
    apart = {**os.environ, "GIT_CEILING_DIRECTORIES": str(target.parent)}
    subprocess.run(["git", "apply", str(patch)], cwd=target, env=apart, check=True)
    assert (target / "d" / "f").read_text() == "two\n"
    assert (target / "binary").read_bytes() == BINARY
    assert sorted(os.listdir(target)) == ["binary", "d", "with space"]
    again = target.parent / "y.tar"
    later = fresh.checkpoint()
    fresh.export(again, since=point, ref=later, source="/srv/app", whiteouts=True)
    assert again.read_bytes() == file.read_bytes()
    with pytest.raises(errors.NotFound):
        fresh.export(target.parent / "z.tar", ref="nonsense")
    assert not list(target.parent.glob("z.tar*")), "nothing half made is left"


def test_a_large_export_streams(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir /srv/app; cd /srv/app; head -c 20000000 /dev/urandom > big").check()
    with open(target / "x.tar", "wb") as file:
        fresh.export(file, ["/srv/app"])
    digest = fresh.run("sha256sum < big").output.split()[0]
    found = subprocess.run(
        f"tar xOf {target}/x.tar srv/app/big | sha256sum",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split()[0] == digest


# ---- cp -----------------------------------------------------------------------------------------


def test_files_go_in_and_come_out_as_they_are(fresh: waypoint.Session, target: Path) -> None:
    source = target / "tree"
    (source / "sub").mkdir(parents=True)
    (source / "sub").chmod(0o2750)
    (source / "a").write_bytes(BINARY)
    (source / "a").chmod(0o4711)
    os.chown(source / "sub", 33, 34)
    os.setxattr(source / "a", "user.color", b"red")
    os.link(source / "a", source / "same")
    (source / "link").symlink_to("/etc/passwd")
    (source / "sub" / "日本 \udcff").write_text("odd")
    os.mkfifo(source / "pipe")
    for path in (source / "a", source / "sub"):
        os.utime(path, ns=(10**18, 10**18))
    fresh.run("mkdir -p /srv/app && cd /srv/app").check()
    into = fresh.copy_in(source, ".")
    assert (into.files, into.folders, into.links) == (3, 2, 1)
    assert [one.path for one in into.left_out] == [f"{source}/pipe"]
    assert fresh.run("stat -c '%a %u %g %Y' tree/sub").output == "2750 33 34 1000000000\n"
    assert fresh.run("stat -c '%a %h %Y' tree/a").output == "4711 2 1000000000\n"
    assert fresh.run("readlink tree/link").output == "/etc/passwd\n"
    fresh.copy_out("tree", target / "back")
    back = target / "back"
    assert (back / "a").read_bytes() == BINARY
    assert os.getxattr(back / "a", "user.color") == b"red"
    assert (back / "a").stat().st_ino == (back / "same").stat().st_ino
    assert (back / "a").stat().st_mtime_ns == 10**18
    assert (back / "sub" / "日本 \udcff").read_text() == "odd"
    assert stat.S_IMODE((back / "sub").stat().st_mode) == 0o2750
    assert fresh.copy_in(source / "a", "renamed").files == 1
    assert fresh.copy_in([source / "a", source / "same"], "tree/sub").files == 2
    assert (
        fresh.run("ls -1; ls -1 tree/sub/a tree/sub/same").output
        == "renamed\ntree\ntree/sub/a\ntree/sub/same\n"
    )
    with pytest.raises(errors.NotFound):
        fresh.copy_in([source / "a", source / "same"], "nowhere")
    with pytest.raises(errors.NotFound):
        fresh.copy_in(source / "a", "no/such/folder")
    with pytest.raises(errors.NotFound):
        fresh.copy_in(source / "nothing", ".")
    with pytest.raises(errors.NotFound):
        fresh.copy_out("nothing", target)
    with pytest.raises(errors.UsageError, match="is a file there"):
        fresh.copy_in(source, "renamed")


def test_a_copy_can_be_taken_from_a_point(fresh: waypoint.Session, target: Path) -> None:
    fresh.run("mkdir -p /srv/app/d && cd /srv/app && echo then > d/f && ln -s d link").check()
    point = fresh.checkpoint()
    fresh.run("rm -r d link").check()
    fresh.copy_out("/srv/app", target / "then", ref=point)
    assert (target / "then" / "d" / "f").read_text() == "then\n"
    fresh.copy_out("link/.", target / "content", ref=point)
    assert os.listdir(target / "content") == ["f"]
    fresh.copy_out("link", target / "followed", ref=point, follow=True)
    assert (target / "followed" / "f").read_text() == "then\n"
    fresh.copy_out("/etc/passwd", target, ref=point)
    assert (target / "passwd").read_text() == Path("/etc/passwd").read_text(), "files of the base too"
    fresh.park()
    fresh.copy_out("/srv/app/d/f", target / "parked", ref=point)
    with pytest.raises(errors.SessionDead):
        fresh.copy_out("/srv/app/d/f", target / "x")


def test_links_in_a_session_lead_nowhere_but_in_it(fresh: waypoint.Session, target: Path) -> None:
    outside = target.parent / "outside"
    (target / "payload").write_text("payload")
    (target / "tree").mkdir()
    (target / "tree" / "precious").write_text("payload")
    fresh.run(f"mkdir -p /srv/app {outside} && cd /srv/app && echo inner > {outside}/precious").check()
    fresh.run(
        f"ln -s {outside} abs; ln -s ../../../../../../..{outside} rel; ln -s {outside}/precious file;"
        f" ln -s /proc/self/root{outside} magic; ln -s /proc/1/root proc; ln -s loop loop; mkdir tree;"
        f" ln -s {outside}/precious tree/precious"
    ).check()
    for name in ("abs", "rel", "file"):
        fresh.copy_in(target / "payload", f"/srv/app/{name}")
        assert untouched(target)
    assert fresh.run(f"ls -1 {outside}; cat {outside}/precious").output == "payload\nprecious\npayload"
    for name in ("magic", "magic/precious", f"proc{outside}/precious", "loop"):
        with pytest.raises(errors.UsageError):
            fresh.copy_in(target / "payload", f"/srv/app/{name}")
    fresh.run(f"echo inner > {outside}/precious").check()
    fresh.copy_in(target / "tree", "/srv/app")
    assert fresh.run(f"cat {outside}/precious; test -L tree/precious").exit_code == 1, "it was replaced"
    assert fresh.run(f"cat {outside}/precious").output == "inner\n"
    shutil.rmtree(target)
    target.mkdir()
    fresh.run(f"rm -f file; ln -s {outside}/precious file; ln -s /etc/shadow shadow").check()
    fresh.copy_out(["abs", "file", "shadow"], target)
    assert all((target / name).is_symlink() for name in ("abs", "file", "shadow"))
    fresh.copy_out("file", target / "content", follow=True)
    assert (target / "content").read_text() == "inner\n", "the session's own"
    assert untouched(target)


def test_a_kernel_file_is_no_place_to_copy_to(fresh: waypoint.Session, target: Path) -> None:
    (target / "payload").write_text("|/bin/evil")
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    fresh.run(
        "mkdir /srv/app && cd /srv/app; ln -s /proc/sys/kernel/core_pattern a; ln -s /dev/null b"
    ).check()
    for place in ("a", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/new", "/sys/new"):
        with pytest.raises(errors.WaypointError):
            fresh.copy_in(target / "payload", place)
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def test_a_swarm_of_links_changes_nothing(fresh: waypoint.Session, target: Path) -> None:
    """Folders become links and folders again while files are copied through them."""
    outside = target.parent / "outside"
    (target / "tree" / "d").mkdir(parents=True)
    for number in range(50):
        (target / "tree" / "d" / f"f{number}").write_text("payload")
    fresh.run("mkdir -p /srv/app && cd /srv/app").check()
    swap = (
        "import os\n"
        "while True:\n"
        "    try:\n"
        "        os.mkdir('/srv/app/x'); os.rename('/srv/app/x', '/srv/app/tree/d')\n"
        "    except OSError: pass\n"
        "    try:\n"
        f"        os.rename('/srv/app/tree/d', '/srv/app/y'); os.symlink('{outside}', '/srv/app/tree/d')\n"
        "    except OSError: pass\n"
        "    try: os.unlink('/srv/app/tree/d')\n"
        "    except OSError: pass\n"
        "    os.system('rm -rf /srv/app/y /srv/app/x')\n"
    )
    swapper = fresh.spawn(["python3", "-c", swap])
    for _ in range(15):
        try:
            fresh.copy_in(target / "tree", "/srv/app")
        except errors.WaypointError:
            continue
    fresh.run(f"kill {swapper.pid}")
    swapper.close()
    assert untouched(target)


def test_a_folder_that_is_copied_into_itself_has_an_end(
    sessions: Callable[..., waypoint.Session], target: Path
) -> None:
    (target / "f").write_text("x")
    session = sessions("t", binds=[model.Bind(host=str(target), box="/mnt/shared")])
    session.copy_in(target, "/mnt/shared/inner")
    assert sorted(os.listdir(target / "inner")) == ["f"]


def test_the_command_line_copies_both_ways(
    wp: Callable[..., Any], session: waypoint.Session, target: Path
) -> None:
    (target / "data").write_text("data")
    done = wp("cp", str(target / "data"), "t:/srv/data", "--json")
    assert done.json["copied"]["files"] == 1
    session.checkpoint("with data", name="with")
    wp("exec", "-s", "t", "rm /srv/data")
    assert wp("cp", "t@with:/srv/data", str(target / "then")).code == 0
    assert (target / "then").read_text() == "data"
    for words in (("t:/a", "t:/b"), ("a", "b"), ("t:/a",), ("a", "t@with:/b")):
        assert wp("cp", *words).code == 2
    assert wp("cp", "t:/none", str(target)).code == 4


# ---- restore --files ----------------------------------------------------------------------------


def test_single_files_come_back_and_all_else_stays(fresh: waypoint.Session) -> None:
    fresh.run("mkdir -p /srv/app/d && cd /srv/app && echo one > a && echo two > d/b && chmod 640 a").check()
    fresh.run("chown 33:34 a; touch -d @1000000000 a; ln -s a l; rm /etc/hostname").check()
    point = fresh.checkpoint()
    fresh.run("echo bad > a; chmod 777 a; rm -r d; echo new > n; rm l; echo kept > /srv/kept; x=1").check()
    fresh.run("echo again > /etc/hostname").check()
    plan = fresh.restore_files(point, ["a", "/srv/app/d"], dry_run=True)
    assert not plan.landing.done
    assert fresh.run("cat a").output == "bad\n"
    done = fresh.restore_files(point, ["a", "/srv/app/d"])
    assert actions(done.landing) == {"srv/app/a": "update", "srv/app/d": "create", "srv/app/d/b": "create"}
    assert fresh.run("stat -c '%a %u %g %Y' a; cat a d/b n /srv/kept; echo $x").output == (
        "640 33 34 1000000000\none\ntwo\nnew\nkept\n1\n"
    )
    assert done.safety
    assert done.safety.kind == "safety"
    assert fresh.restore_files(point, ["a", "d"]).landing.items == ()
    fresh.undo()
    assert fresh.run("cat a; ls d; echo $x").output.startswith("bad\n")
    with pytest.raises(errors.NotFound):
        fresh.restore_files(point, ["never/was"])


def test_what_was_made_since_goes_only_when_asked_for(fresh: waypoint.Session) -> None:
    fresh.run("mkdir -p /srv/app/d && cd /srv/app && echo one > d/a").check()
    point = fresh.checkpoint()
    fresh.run("mkdir d/new; echo > d/new/b; echo > d/c; mv d/a d/moved; echo > other").check()
    kept = fresh.restore_files(point, "d")
    assert {one.path for one in kept.landing.left_out} >= {"/srv/app/d/c"}
    assert fresh.run("cat d/a; ls -1d d/c d/new/b d/moved").output == "one\nd/c\nd/moved\nd/new/b\n"
    fresh.restore_files(point, "d", delete=True, safety=False)
    assert fresh.run("find d other | sort").output == "d\nd/a\nother\n"


def test_files_of_the_base_come_back_through_the_layer(
    sessions: Callable[..., waypoint.Session], place: Path
) -> None:
    session = sessions("t")
    point = session.checkpoint()
    session.run(f"cd {place} && rm -r sub two && echo bad > one && mv three moved").check()
    session.restore_files(point, ".")
    assert session.run("cat one two three sub/four moved").output == "one\ntwo\nthree\nfour\nthree\n"
    session.restore_files(point, ".", delete=True)
    assert session.run("ls -1").output == "one\nsub\nthree\ntwo\n"
    assert sorted(os.listdir(place)) == ["one", "sub", "three", "two"], "only in the session"


def test_a_link_in_the_place_of_a_folder_leads_no_restore_astray(
    fresh: waypoint.Session, target: Path
) -> None:
    outside = target.parent / "outside"
    fresh.run(f"mkdir -p /srv/app/d {outside} && cd /srv/app && echo then > d/precious").check()
    point = fresh.checkpoint()
    fresh.run(f"rm -r d; ln -s {outside} d").check()
    with pytest.raises(errors.LandingConflict, match="is a link"):
        fresh.restore_files(point, "d/precious")
    assert fresh.run(f"cat {outside}/precious").output == "precious"
    fresh.restore_files(point, "d")
    assert fresh.run("cat d/precious; test -L d").exit_code == 1
    assert fresh.run(f"cat {outside}/precious").output == "precious"
    assert untouched(target)


def test_running_programs_see_the_files_come_back(fresh: waypoint.Session) -> None:
    fresh.run("mkdir /srv/app && cd /srv/app && echo one > a").check()
    point = fresh.checkpoint()
    fresh.run("sleep 1000 & echo two > a").check()
    fresh.restore_files(point, "a")
    assert fresh.run("cat a; kill %1").output.startswith("one\n")


def test_the_command_line_restores_files(wp: Callable[..., Any], session: waypoint.Session) -> None:
    session.run("mkdir /srv/app && cd /srv/app && echo one > a").check()
    session.checkpoint("one", name="one")
    session.run("echo two > a; echo > b").check()
    refused = wp("restore", "-s", "t", "one", "--files", "a")
    assert refused.code == 3
    shown = wp("restore", "-s", "t", "one", "--dry-run", "--yes", "--files", "a")
    assert "~ srv/app/a" in shown.out
    assert session.run("cat a").output == "two\n"
    done = wp("restore", "-s", "t", "one", "--yes", "--json", "--files", "a")
    assert done.json["landing"]["done"]
    assert session.run("cat a").output == "one\n"
    assert wp("undo", "-s", "t").code == 0
    assert session.run("cat a").output == "two\n"
    assert wp("restore", "-s", "t", "one", "--delete", "--yes").code == 2


def test_the_command_line_lands_and_exports(
    wp: Callable[..., Any], session: waypoint.Session, target: Path
) -> None:
    session.run("mkdir /srv/app && cd /srv/app && echo one > a").check()
    assert wp("apply", "-s", "t", "--to", str(target)).code == 3
    shown = wp("apply", "-s", "t", "--to", str(target), "--dry-run", "--yes")
    assert "+ a" in shown.out
    assert os.listdir(target) == []
    assert wp("apply", "-s", "t", "--to", str(target), "--yes").code == 0
    (target / "a").write_text("mine")
    session.run("echo two > a")
    clash = wp("apply", "-s", "t", "--to", str(target), "--yes", "--json")
    assert clash.code == 10
    assert clash.json["error"]["code"] == "conflict"
    told = wp("export", "-s", "t", "-o", str(target / "x.tar"), "--json")
    assert told.json["exported"]["files"] == 1
    patch = wp("export", "-s", "t", "--patch", "--from", "/srv/app")
    assert patch.out.startswith("diff --git a/a b/a\n")
    assert wp("export", "-s", "t", "--json").code == 2


def test_checkpoints_wait_for_a_copy(fresh: waypoint.Session, target: Path) -> None:
    """No point finds a tree half copied."""
    for number in range(300):
        (target / f"f{number}").write_text("x")
    fresh.run("mkdir /srv/app").check()
    copying = threading.Thread(target=lambda: fresh.copy_in(target, "/srv/app/tree"))
    copying.start()
    points: list[waypoint.Checkpoint] = []
    while copying.is_alive() or not points:
        points.append(fresh.checkpoint(files_only=True))
    copying.join()
    counts = set()
    for point in points:
        with_point = target.parent / f"out-{point.id}"
        with_point.mkdir()
        fresh.copy_out("/srv/app/.", with_point, ref=point)
        counts.add(len(list((with_point / "tree").iterdir())) if (with_point / "tree").exists() else 0)
    assert counts <= {0, 300}


def test_a_client_in_another_mount_namespace_means_its_own_files(
    home: Home, session: waypoint.Session, target: Path
) -> None:
    session.run("mkdir /srv/app && cd /srv/app && echo one > a").check()
    script = (
        f"mount -t tmpfs none {target} && mkdir {target}/mine &&"
        f" {sys.executable} -P -m waypoint cp t:/srv/app/a {target}/mine/a && cat {target}/mine/a"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-ec", script], capture_output=True, text=True, check=False)
    assert done.stdout == "one\n", done.stderr
    assert os.listdir(target) == []
