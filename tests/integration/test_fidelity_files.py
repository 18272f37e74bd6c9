"""The files of a session come back exactly: whatever can be said of a file is the same after a restore and in
a fork, for what the session made and for what it changed of its base. The base itself never changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint import errors

LOOK = r"""
import hashlib, json, os, stat, sys

def look(path):
    about = os.lstat(path)
    found = {
        "mode": oct(about.st_mode), "owner": [about.st_uid, about.st_gid], "links": about.st_nlink,
        "size": about.st_size if not stat.S_ISDIR(about.st_mode) else 0, "mtime": about.st_mtime_ns,
        "device": about.st_rdev, "inode": about.st_ino,
        "attributes": {name: os.getxattr(path, name, follow_symlinks=False).hex()
                       for name in os.listxattr(path, follow_symlinks=False)},
    }
    if stat.S_ISLNK(about.st_mode):
        found["target"] = os.readlink(path)
    elif stat.S_ISREG(about.st_mode):
        found["content"] = hashlib.sha256(open(path, "rb").read()).hexdigest()
        found["blocks"] = about.st_blocks
    return found

found = {}
for root in sys.argv[1:]:
    found[root] = look(root)
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[path] = look(path)
print(json.dumps({os.fsencode(path).hex(): about for path, about in found.items()}))
"""
Fingerprint = dict[str, dict[str, Any]]
Revive = Callable[..., waypoint.Session]


def fingerprint(session: waypoint.Session, *paths: str) -> Fingerprint:
    """All that can be said of all that is there."""
    out, err = session.spawn(["/usr/bin/python3", "-c", LOOK, *paths]).communicate()
    assert not err, err.decode()
    found: Fingerprint = json.loads(out)
    return {os.fsdecode(bytes.fromhex(path)): about for path, about in found.items()}


def differences(before: Fingerprint, after: Fingerprint) -> list[str]:
    told = [f"{path}: gone" for path in before.keys() - after.keys()]
    told += [f"{path}: new" for path in after.keys() - before.keys()]
    for path in before.keys() & after.keys():
        told += [
            f"{path}: {key} {value} -> {after[path].get(key)}"
            for key, value in before[path].items()
            if after[path].get(key) != value
        ]
    return told


def python(session: waypoint.Session, source: str) -> None:
    _, err = session.spawn(["/usr/bin/python3", "-c", source]).communicate()
    assert not err, err.decode()


@pytest.fixture(params=["restore", "fork"])
def revive(request: pytest.FixtureRequest) -> Revive:
    """Takes a point and comes back to it, in the session itself after it was spoilt, or as a fork."""

    def come_back(session: waypoint.Session, spoil: str = "true") -> waypoint.Session:
        point = session.checkpoint()
        if request.param == "fork":
            return point.fork(name="copy")[0]
        session.run(spoil)
        session.restore(point, safety=False)
        return session

    return come_back


# ---- what the session made ----------------------------------------------------------------------

MAKE = r"""
import os, socket, stat, struct
os.makedirs("/root/made")
os.chdir("/root/made")
def write(name, data=b"x"):
    with open(name, "wb") as file:
        file.write(data)
for mode in (0o000, 0o400, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o1777, 0o6711):
    write(f"mode-{mode:o}")
    os.chmod(f"mode-{mode:o}", mode)
    os.mkdir(f"folder-{mode:o}")
    os.chmod(f"folder-{mode:o}", mode)
write("owned")
os.chown("owned", 1234, 4321)
os.mkdir("owned-folder")
os.chown("owned-folder", 65534, 7)
os.symlink("nowhere", "dangling")
os.symlink("/" + "x" * 4000, "long-link")
os.lchown("dangling", 99, 98)
write("links")
for number in range(5):
    os.link("links", f"link-{number}")
os.mkdir("elsewhere")
os.link("links", "elsewhere/link")
with open("sparse", "wb") as file:
    file.truncate(64 << 20)
    file.seek(32 << 20)
    file.write(b"an island")
write("empty", b"")
write("large", os.urandom(1 << 20) * 3)
os.mkfifo("fifo", 0o604)
socket.socket(socket.AF_UNIX).bind("socket")
for attribute, value in (("user.comment", b"hello"), ("user.empty", b""), ("user.big", b"v" * 3000),
                         ("user.overlay.opaque", b"y")):
    os.setxattr("owned", attribute, value)
    os.setxattr("elsewhere", attribute, value)
write("capable")
os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (
    (1, 6, 0xFFFFFFFF), (2, 7, 1234), (4, 4, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)))
write("listed")
os.setxattr("listed", "system.posix_acl_access", acl)
odd = ["new\nline", "tab\t", "-rf", "--", " ", "\u540d\u524d \U0001f600", "n" * 255, ".wh.whiteout",
       ".wh..wh..opq", "back\\slash", "quo'te\"", "*", "a:b,c=d", "#overlay"]
for name in odd:
    write(name, name.encode())
write(b"\xff\xfe not utf-8")
os.makedirs("/".join(["deep"] * 150))
for folder, folders, files in os.walk("."):
    for name in files:
        path = os.path.join(folder, name)
        os.utime(path, ns=(1_000_000_007, 2_000_000_000_000_000_011), follow_symlinks=False)
os.utime("elsewhere", ns=(3, 5))
"""


def test_everything_that_can_be_said_of_a_file_survives(fresh: waypoint.Session, revive: Revive) -> None:
    python(fresh, MAKE)
    before = fingerprint(fresh, "/root/made")
    assert len(before) > 100
    sparse = before["/root/made/sparse"]
    assert sparse["blocks"] * 512 < 1 << 20, "it was sparse"
    assert before["/root/made/links"]["links"] == 7
    after = fingerprint(revive(fresh, "rm -rf /root/made"), "/root/made")
    assert not differences(before, after)


def test_names_that_are_hard_links_of_each_other_stay_so(fresh: waypoint.Session, revive: Revive) -> None:
    fresh.run("cd /root; echo 1 > a; ln a b; mkdir d; ln a d/c; rm a").check()
    copy = revive(fresh, "rm -rf b d")
    assert copy.run("echo 2 > b; cat d/c; stat -c %h b; [ b -ef d/c ] && echo same").output == "2\n2\nsame\n"


def test_capabilities_and_setuid_of_programs_work(fresh: waypoint.Session, revive: Revive) -> None:
    fresh.run("cp /usr/bin/id /usr/local/bin/who; chmod 4755 /usr/local/bin/who").check()
    fresh.run("cp $(realpath /usr/bin/python3) /usr/local/bin/binder").check()
    fresh.run("setcap cap_net_bind_service=ep /usr/local/bin/binder").check()
    copy = revive(fresh, "rm /usr/local/bin/*")
    assert copy.run("setpriv --reuid 1000 --clear-groups /usr/local/bin/who -u").output == "0\n"
    bind = 'import socket; socket.socket().bind(("", 80)); print(80)'
    assert copy.run(f"setpriv --reuid 1000 --clear-groups /usr/local/bin/binder -c '{bind}'").output == "80\n"


def test_shared_memory_files_survive(fresh: waypoint.Session, revive: Revive) -> None:
    fresh.run(
        "mkdir /dev/shm/d; echo kept > /dev/shm/d/f; chmod 600 /dev/shm/d/f; chown 12:34 /dev/shm/d/f"
    ).check()
    before = fingerprint(fresh, "/dev/shm")
    assert not differences(
        before, fingerprint(revive(fresh, "rm -rf /dev/shm/*; touch /dev/shm/x"), "/dev/shm")
    )


def test_device_nodes_cannot_be_made(fresh: waypoint.Session) -> None:
    for node in ("b 254 0", "c 1 1", "c 5 1", "c 0 0"):
        refused = fresh.run(f"mknod /root/node {node}")
        assert refused.exit_code == 1, node
        assert "Operation not permitted" in refused.output
    assert fresh.run("mknod /root/fifo p; stat -c %F /root/fifo").output == "fifo\n"


def test_forks_do_not_see_each_others_writes(fresh: waypoint.Session) -> None:
    fresh.run("mkdir /root/w; echo common > /root/w/f")
    forks = fresh.checkpoint().fork(3, name="branch")
    for fork in forks:
        fork.run(
            f"echo {fork.name} > /root/w/f; touch /root/w/{fork.name} /dev/shm/{fork.name}; rm -rf /etc/apt"
        )
    for fork in forks:
        look = "cat /root/w/f; ls /root/w /dev/shm | xargs"
        assert fork.run(look).output == f"{fork.name}\n/dev/shm: {fork.name} /root/w: {fork.name} f\n"
    assert fresh.run("cat /root/w/f; ls /root/w; ls -d /etc/apt").output == "common\nf\n/etc/apt\n"


# ---- what the session changed of its base -------------------------------------------------------


def fill(folder: Path) -> None:
    """Something to change."""
    (folder / "data/tree/inner").mkdir(parents=True)
    for name in ("changed", "deleted", "renamed", "truncated", "owned", "kept", "replaced", "linked-to"):
        (folder / "data" / name).write_text(f"{name} of the base\n")
        os.utime(folder / "data" / name, ns=(10**18, 10**18 + 7))
    for name in ("one", "two", "inner/three"):
        (folder / "data/tree" / name).write_text(name)
    shutil.copytree(folder / "data/tree", folder / "data/doomed")
    shutil.copytree(folder / "data/tree", folder / "data/opaque")
    os.setxattr(folder / "data/kept", "user.of", b"the base")
    os.chown(folder / "data/kept", 1234, 4321)
    (folder / "data/twin-a").write_text("twins\n")
    for name in ("twin-b", "tree/twin-c"):
        os.link(folder / "data/twin-a", folder / "data" / name)


def of_host(folder: Path) -> dict[str, tuple[Any, ...]]:
    """What a folder of the host holds: to be compared with later."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else ""
        found[str(path)] = (
            about.st_mode,
            about.st_uid,
            about.st_nlink,
            about.st_mtime_ns,
            about.st_ino,
            content,
        )
    return found


@pytest.fixture(scope="module")
def root(make_root: Callable[[Path], None]) -> Iterator[Path]:
    """A base of its own, which no session may change."""
    with tempfile.TemporaryDirectory(prefix="waypoint-root-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_root(folder)
        fill(folder)
        before = of_host(folder)
        yield folder
        assert of_host(folder) == before, "a session has changed its base"


CHANGE = """
cd /data
echo more >> changed
rm deleted
mv renamed moved
truncate -s 5 truncated
chown 55:66 owned; chmod 4700 owned
rm replaced; mkdir replaced; echo a folder now > replaced/file
ln linked-to link
rm -r doomed
rm -r opaque; mkdir opaque; echo new > opaque/new
mv tree grove; mv grove/one grove/uno; rm grove/two; echo 4 > grove/inner/four
mkdir fresh; mv moved fresh/
"""
LISTING = """
cd /data
stat -c '%n %F %a %u:%g %s %h %Y' * */* */*/* 2>/dev/null | sort
sha256sum * */* */*/* 2>/dev/null | sort
"""


def test_changes_of_the_base_survive(
    root: Path, sessions: Callable[..., waypoint.Session], revive: Revive
) -> None:
    session = sessions("based", base=str(root), net="none")
    session.run(CHANGE).check()
    before = session.run(LISTING).output
    for gone in ("deleted", "doomed", "tree", "renamed", "opaque/one", "grove/two"):
        assert f" {gone}\n" not in before
    for there in ("changed", "replaced/file", "opaque/new", "grove/uno", "grove/inner/three", "fresh/moved"):
        assert f" {there}\n" in before, there
    copy = revive(session, "rm -rf /data; mkdir /data; echo spoilt > /data/changed")
    after = copy.run(LISTING).output
    assert after.splitlines() == before.splitlines()
    assert copy.run("cat /data/changed").output == "changed of the base\nmore\n"
    # And again, on top of what was restored: a rename of what was renamed, a deletion below it.
    copy.run("cd /data; mv grove wood; rm -r wood/inner; mkdir tree; echo other > tree/one").check()
    again = copy.checkpoint().fork(name="again")[0]
    assert again.run("cd /data; ls tree wood | cat").output == "tree:\none\n\nwood:\ntwin-c\nuno\n"


def test_hard_links_of_the_base_stay_links_of_each_other(
    root: Path, sessions: Callable[..., waypoint.Session], revive: Revive
) -> None:
    session = sessions("based", base=str(root), net="none")
    look = "cd /data; cat twin-a twin-b tree/twin-c; stat -c '%h %i' twin-a twin-b tree/twin-c"
    session.run("echo changed through one name >> /data/twin-b").check()
    before = session.run(look).output
    assert before.count("changed through one name") == 3, "all names show it"
    copy = revive(session, "echo spoilt > /data/twin-a")
    assert copy.run(look).output == before
    copy.run("cd /data; echo and more >> tree/twin-c; rm twin-b").check()
    after = copy.run("cd /data; cat twin-a; stat -c %h twin-a tree/twin-c").output
    assert after == "twins\nchanged through one name\nand more\n2\n2\n"
    last = copy.checkpoint().fork(name="again")[0]
    assert last.run("cd /data; cat twin-a; stat -c %h twin-a tree/twin-c; ls twin-b").output.startswith(after)


def test_files_of_the_hosts_own_root_can_be_changed_and_never_are(
    fresh: waypoint.Session, revive: Revive
) -> None:
    touched = ("/etc/passwd", "/etc/hostname", "/usr/bin/env", "/usr/share/zoneinfo/UTC")
    before = {path: (Path(path).read_bytes(), os.stat(path)) for path in touched}
    fresh.run(
        "echo intruder >> /etc/passwd; rm /usr/bin/env; mv /usr/share/zoneinfo /usr/share/zones"
    ).check()
    fresh.run("chmod 777 /etc/hostname; rm -rf /etc/apt; mkdir /etc/apt").check()
    copy = revive(fresh, "rm -rf /usr/share/zones /etc/passwd")
    look = "tail -1 /etc/passwd; ls /usr/bin/env; stat -c %a /etc/hostname; ls /usr/share/zones/UTC /etc/apt"
    assert copy.run(look).output.splitlines() == [
        "intruder",
        "ls: cannot access '/usr/bin/env': No such file or directory",
        "777",
        "/usr/share/zones/UTC",
        "",
        "/etc/apt:",
    ]
    for path, (content, about) in before.items():
        assert Path(path).read_bytes() == content
        assert os.stat(path)[:9] == about[:9]


# ---- what is mounted below a base ---------------------------------------------------------------


@contextlib.contextmanager
def mounted(*words: str | Path) -> Iterator[None]:
    subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", words[-1]], check=True)


@pytest.fixture
def parted_root(make_root: Callable[[Path], None]) -> Iterator[Path]:
    """A root whose /home is a file system of its own, /home/deep another, and /mnt/temporary a tmpfs."""
    with contextlib.ExitStack() as undo:
        name = undo.enter_context(tempfile.TemporaryDirectory(prefix="waypoint-root-", dir="/var/tmp"))
        folder = Path(name, "root")
        folder.mkdir(mode=0o755)
        Path(name).chmod(0o755)
        make_root(folder)
        (folder / "mnt/temporary").mkdir(parents=True)
        (folder / "home").mkdir()
        for disk, where in (("home.img", "home"), ("deep.img", "home/de:ep, with \\ odd")):
            image = Path(name, disk)
            with open(image, "wb") as file:
                file.truncate(16 << 20)
            subprocess.run(["mkfs.ext4", "-q", image], check=True)
            (folder / where).mkdir(exist_ok=True)
            undo.enter_context(mounted("-o", "loop", image, folder / where))
            (folder / where / "file").write_text(f"of {disk}\n")
            (folder / where / "folder").mkdir()
            (folder / where / "folder/inner").write_text("inner\n")
        undo.enter_context(mounted("-t", "tmpfs", "none", folder / "mnt/temporary"))
        (folder / "mnt/temporary/file").write_text("of a tmpfs\n")
        before = of_host(folder)
        yield folder
        assert of_host(folder) == before, "a session has changed its base"


def test_file_systems_mounted_below_the_base_are_there_and_captured(
    parted_root: Path, sessions: Callable[..., waypoint.Session], revive: Revive
) -> None:
    session = sessions("parted", base=str(parted_root), net="none")
    deep = r"/home/de:ep,\ with\ \\\ odd"
    assert session.run(f"cat /home/file {deep}/file").output == "of home.img\nof deep.img\n"
    session.run(
        f"cd /home; echo more >> file; mv folder moved; cd {deep}; rm -r folder; echo new > new"
    ).check()
    look = f"cat /home/file /home/moved/inner; ls {deep} | cat; ls /mnt/temporary | wc -l"
    before = session.run(look).output
    assert before == "of home.img\nmore\ninner\nfile\nlost+found\nnew\n0\n"
    copy = revive(session, f"rm -rf {deep}/* /home/*")
    assert copy.run(look).output == before
    told = copy.checkpoint().info.coverage
    assert "/mnt/temporary (tmpfs) is left out" in told
    assert not any("/home" in sentence for sentence in told)


def test_a_file_system_below_a_folder_that_was_renamed_is_found_where_it_is_now(
    parted_root: Path, sessions: Callable[..., waypoint.Session], revive: Revive
) -> None:
    (parted_root / "srv/disk").mkdir(parents=True)
    with mounted("--bind", parted_root / "home", parted_root / "srv/disk"):
        session = sessions("parted", base=str(parted_root), net="none")
        session.run("mv /srv /moved; echo changed > /moved/disk/file").check()
        copy = revive(session, "echo spoilt > /moved/disk/file")
        assert copy.run("cat /moved/disk/file; ls /moved/disk/folder; ls /srv").output == (
            "changed\ninner\nls: cannot access '/srv': No such file or directory\n"
        )
        copy.run("mv /moved /srv").check()
        again = copy.checkpoint(files_only=True).fork(name="again")[0]
        assert again.run("cat /srv/disk/file; ls /moved").output.startswith("changed\nls: cannot")
        for one in (session, copy, again):
            with contextlib.suppress(errors.NotFound):
                one.remove()
    (parted_root / "srv/disk").rmdir()
    (parted_root / "srv").rmdir()


def test_what_a_session_changed_in_a_file_system_is_there_without_it(
    parted_root: Path, sessions: Callable[..., waypoint.Session]
) -> None:
    session = sessions("parted", base=str(parted_root), net="none")
    untouched = session.checkpoint()
    session.run(r"echo new > /home/de:ep,\ with\ \\\ odd/new").check()
    touched = session.checkpoint()
    disk = parted_root / "home/de:ep, with \\ odd"
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE", disk], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(["umount", disk], check=True)
    try:
        session.restore(untouched, safety=False)
        assert session.run("cat /home/file").output == "of home.img\n"
        (change,) = session.restore(touched, safety=False).base_changes
        assert "is not mounted on the host any more; what the session changed there is shown" in change
        assert session.run(r"cat /home/de:ep,\ with\ \\\ odd/new").output == "new\n"
    finally:
        image = parted_root.parent / "deep.img"
        subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    assert device
    session.restore(touched, safety=False)
    assert session.run(r"cat /home/de:ep,\ with\ \\\ odd/new").output == "new\n"


def test_a_database_of_the_base_that_is_open_can_still_be_written(
    fresh: waypoint.Session, revive: Revive
) -> None:
    """SQLite remembers the inode number of a file, and refuses to write when it has changed."""
    with tempfile.TemporaryDirectory(prefix="waypoint-data-", dir="/var/tmp") as name:
        with contextlib.closing(sqlite3.connect(f"{name}/db")) as database:
            database.execute("create table rows (who text)")
        before = of_host(Path(name))
        program = f"""
import signal, sqlite3
database = sqlite3.connect("{name}/db", isolation_level=None)
database.execute("insert into rows values ('before')")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open("/tmp/ready", "w").close()
signal.sigwait([signal.SIGUSR1])
database.execute("insert into rows values ('after')")
print(*(who for (who,) in database.execute("select who from rows")))
"""
        fresh.run("cat > /tmp/program.py", stdin=program).check()
        fresh.run("/usr/bin/python3 /tmp/program.py > /tmp/out 2>&1 & program=$!")
        fresh.run("until [ -e /tmp/ready ]; do sleep 0.01; done", timeout=20).check()
        copy = revive(fresh, "kill $program")
        assert copy.run("kill -USR1 $program; wait $program; cat /tmp/out", timeout=20).output.endswith(
            "before after\n"
        )
        assert of_host(Path(name)) == before
