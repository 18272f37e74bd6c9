"""Sessions in a user namespace: root in them is a user without rights on the host, and nothing else changes.

The tests of other modules that are imported here run once more in such a session. `WAYPOINT_USERNS=on make
integration` runs all of them that way.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fingerprint import keeper_of
from tests.integration.test_engine_panes import test_a_process_outlives_its_pane  # noqa: F401
from tests.integration.test_fidelity_kernel import (  # noqa: F401
    survives,
    test_a_program_that_was_run_from_a_memfd,
    test_an_unprivileged_client_of_a_unix_socket_is_not_root_to_its_server,
    test_posix_locks_on_a_file_that_is_also_mapped,
    test_system_v_shared_memory_semaphores_and_messages,
    test_users_and_groups_of_processes_that_were_not_waited_for,
)
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.core.registry import FACTS_FILE
from waypoint.home import Home
from waypoint.kernel import processes, userns
from waypoint.kernel.syscalls import mount, umount

USERNS = True  # for the fixtures `session`, `fresh` and `seed`

ACL = "system.posix_acl_access"


def acl(user: int) -> bytes:
    """An access control list in which one user may read and write."""
    undefined = 0xFFFFFFFF
    entries = ((1, 6, undefined), (2, 6, user), (4, 4, undefined), (0x10, 6, undefined), (0x20, 4, undefined))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


# ---- what is gained ------------------------------------------------------------------------------

TAKER = """
import array, os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/srv/way-out")
listener.listen(8)
open("/srv/listens", "w").close()
while True:
    connection, _ = listener.accept()
    message, control, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
    (place,) = array.array("i", control[0][2])
    done = []
    for call in (
        lambda: os.close(os.open("secret", os.O_RDONLY, dir_fd=place)),
        lambda: os.close(os.open("secret", os.O_WRONLY, dir_fd=place)),
        lambda: os.close(os.open("new", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=place)),
        lambda: os.close(os.open(".", os.O_RDONLY, dir_fd=place)),
        lambda: os.chown("secret", 0, 0, dir_fd=place),
    ):
        try:
            call()
            done.append("done")
        except OSError as error:
            done.append(error.strerror)
    connection.sendall("; ".join(done).encode())
    connection.close()
    os.close(place)
"""


def escape(home: Home, session: waypoint.Session, folder: Path) -> str:
    """Hands a folder of the host to a program of the session, as a flaw would. Returns what it could do."""
    root = os.open(f"/proc/{keeper_of(home, session.name)}/root", os.O_PATH)
    way = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(f"/proc/self/fd/{root}/srv/way-out")
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [way]))]
            connection.sendmsg([b"x"], rights)
            return connection.recv(4096).decode()
    finally:
        os.close(root)
        os.close(way)


@pytest.mark.parametrize("inside", [True, False], ids=["in a user namespace", "without one"])
def test_a_way_to_the_files_of_the_host_leads_only_a_plain_root_to_them(
    home: Home, sessions: Callable[..., waypoint.Session], tmp_path: Path, inside: bool
) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("of the host")
    (folder / "secret").chmod(0o600)
    session = sessions("t", userns=inside)
    session.write_file("/srv/taker.py", TAKER)
    session.run("/usr/bin/python3 /srv/taker.py & until test -e /srv/listens; do sleep 0.01; done").check()
    expected = "; ".join(["Permission denied" if inside else "done"] * 5)
    assert escape(home, session, folder) == expected
    point = session.checkpoint()
    session.restore(point, safety=False)
    (fork,) = point.fork()
    for copy in (session, fork):
        assert escape(home, copy, folder) == expected
    assert (folder / "new").exists() is not inside


def test_no_process_of_the_session_is_root_on_the_host(home: Home, fresh: waypoint.Session) -> None:
    fresh.run("sleep 1000 & setpriv --reuid=33 --regid=33 --clear-groups sleep 1000 &").check()
    point = fresh.checkpoint()
    fresh.restore(point, safety=False)
    keeper = keeper_of(home, fresh.name)
    until(lambda: len(processes.below(keeper)) == 4)  # CRIU, which is the host's root, has ended
    users = set()
    for process in processes.below(keeper):
        assert not userns.is_own(process.host_pid)
        users |= {int(word) for word in processes.read_status(process.host_pid)["Uid"].split()}
    assert users == {userns.FIRST_ID, userns.FIRST_ID + 33}
    assert fresh.run("ps -o user= -C sleep | sort").output.split() == ["root", "www-data"]


def test_pid_1_of_the_box_cannot_be_looked_into_ended_or_traced(fresh: waypoint.Session) -> None:
    for attempt in (
        "kill -9 1",
        "kill -STOP 1",
        "kill -9 3",
        "ls /proc/1/root/",
        "cat /proc/1/environ",
        "ls /proc/3/fd",
        "strace -p 1",
        "strace -p 3",
        "nsenter -t 1 -U true",
        "nsenter -t 3 -m true",
        "unshare -U true",
    ):
        fresh.run(attempt, timeout=20)
        assert not fresh.run(f"{attempt} 2>/dev/null | grep .").ok, attempt
    assert fresh.run("echo still here").output == "still here\n"


def test_a_box_ends_with_its_keeper(home: Home, fresh: waypoint.Session) -> None:
    fresh.run("sleep 1234 &").check()
    keeper = keeper_of(home, fresh.name)
    members = [*processes.host_pids(keeper)]
    os.kill(keeper, 9)
    until(lambda: all(map(processes.is_over, members)))
    until(lambda: fresh.info.state == "dead")


# ---- what stays as it was ------------------------------------------------------------------------


def test_ids_on_the_disk_are_those_of_the_session(home: Home, fresh: waypoint.Session) -> None:
    fresh.run(
        "mkdir -p /srv/i && cd /srv/i && touch root www big && chown 33:33 www && chown 70000 big"
    ).check()
    (upper,) = home.sessions.glob("*/upper/srv/i")
    owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in upper.iterdir()}
    assert owners == {"root": (0, 0), "www": (33, 33), "big": (70000, 0)}
    fresh.restore(fresh.checkpoint(), safety=False)
    assert fresh.run("stat -c '%n %u' *").output == "big 70000\nroot 0\nwww 33\n"


def test_files_go_in_and_out_with_the_owners_that_the_session_knows(
    fresh: waypoint.Session, tmp_path: Path
) -> None:
    fresh.run("mkdir -p /srv/f && cd /srv/f && echo old > mine && chown 33:33 mine && chmod 640 mine").check()
    fresh.write_file("/srv/f/mine", "new\n")
    fresh.write_file("/srv/f/deep/er", "made\n")
    shown = fresh.run("stat -c '%n %u:%g %a' mine deep deep/er; cat mine").output
    assert shown == "mine 33:33 640\ndeep 0:0 755\ndeep/er 0:0 644\nnew\n"

    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_text("x")
    os.setxattr(tmp_path / "in/file", ACL, acl(1234))
    os.chown(tmp_path / "in/file", 1001, 1002)
    os.symlink("file", tmp_path / "in/link")
    fresh.copy_in(tmp_path / "in", "/srv/f/in")
    assert (
        fresh.run("stat -c '%n %u:%g' in in/file in/link").output
        == "in 0:0\nin/file 1001:1002\nin/link 0:0\n"
    )
    code = "import os; print(os.getxattr('/srv/f/in/file', 'system.posix_acl_access').hex())"
    read = f'/usr/bin/python3 -c "{code}"'
    assert fresh.run(read).output.strip() == acl(1234).hex()
    fresh.copy_out("/srv/f/in", tmp_path / "out")
    status = (tmp_path / "out/file").stat()
    assert (status.st_uid, status.st_gid) == (1001, 1002)
    assert os.getxattr(tmp_path / "out/file", ACL) == acl(1234)

    point = fresh.checkpoint()
    fresh.run("rm -rf in mine && echo other > mine").check()
    fresh.restore_files(point, ["/srv/f"])
    assert fresh.run("stat -c '%n %u:%g' mine in/file").output == "mine 33:33\nin/file 1001:1002\n"
    assert fresh.run(read).output.strip() == acl(1234).hex()

    landed = tmp_path / "landed"
    fresh.apply(landed, source="/srv/f")
    assert ((landed / "mine").stat().st_uid, (landed / "in/file").stat().st_uid) == (33, 1001)
    assert fresh.diff(point).files == []


def test_programs_open_their_own_output_again(fresh: waypoint.Session) -> None:
    assert fresh.spawn(["/bin/sh", "-c", "echo a > /dev/stdout"]).communicate()[0] == b"a\n"


def test_folders_of_the_host_are_shown_with_the_ids_they_have(
    sessions: Callable[..., waypoint.Session], tmp_path: Path
) -> None:
    folder = tmp_path / "shown"
    folder.mkdir(mode=0o700)
    session = sessions("t", userns=True, binds=[waypoint.Bind(host=str(folder), box="/srv/shown")])
    session.run("cd /srv/shown && touch root && touch www && chown 33 www").check()
    assert {path.name: path.stat().st_uid for path in folder.iterdir()} == {"root": 0, "www": 33}


def test_users_are_told_by_the_ids_of_the_session(home: Home, fresh: waypoint.Session) -> None:
    fresh.run("setpriv --reuid=33 --regid=33 --clear-groups sleep 1000 &").check()
    point = fresh.checkpoint()
    facts = json.loads((home.checkpoints / point.id / "images" / FACTS_FILE).read_bytes())
    assert {fact["uid"] for fact in facts["processes"]} == {0, 33}


def test_another_user_asks_from_inside_and_is_not_taken_for_root(fresh: waypoint.Session) -> None:
    as_user = "setpriv --reuid=33 --regid=33 --clear-groups"
    assert fresh.run(f"{as_user} waypoint log").ok
    assert fresh.run("waypoint diff --patch").ok
    refused = fresh.run(f"{as_user} waypoint diff --patch")
    assert not refused.ok
    assert "root only" in refused.output


def test_a_spare_and_a_daemon_that_starts_again(sessions: Callable[..., waypoint.Session]) -> None:
    session = sessions("t", userns=True, spares=1)
    session.run("X=1; sleep 1000 &").check()
    point = session.checkpoint()
    until(lambda: waypoint.Client().call("status", {"session": "t"}) is not None)
    session.run("X=2").check()
    waypoint.Client().call("daemon_stop")
    assert session.run("echo $X").output == "2\n"
    session.restore(point, safety=False)
    assert session.run("echo $X; jobs | wc -l").output == "1\n1\n"


# ---- what cannot be had --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"confined": False}, {"net": "host"}], ids=["privileged", "net"])
def test_it_is_refused_beside_rights_over_the_host(home: Home, options: dict[str, object]) -> None:
    with pytest.raises(errors.UsageError, match="in a user namespace cannot") as refused:
        waypoint.session("t", userns=True, **options)  # type: ignore[arg-type]
    assert refused.value.hint


def test_a_base_that_cannot_be_shown_in_one_is_refused(
    home: Home, make_root: Callable[[Path], None], tmp_path: Path
) -> None:
    lower, base = tmp_path / "lower", tmp_path / "base"
    make_root(lower)
    for folder in (base, tmp_path / "upper", tmp_path / "work"):
        folder.mkdir()
    layers = f"lowerdir={lower},upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    mount("overlay", base, "overlay", 0, layers)
    try:
        assert userns.why_not(base) is not None
        with pytest.raises(errors.MissingFeature, match="user namespace") as refused:
            waypoint.session("t", userns=True, base=str(base))
        assert refused.value.hint
    finally:
        umount(base)
    assert userns.why_not(tmp_path) is None


def test_a_point_fits_no_session_of_the_other_kind(sessions: Callable[..., waypoint.Session]) -> None:
    inside, plain = sessions("inside", userns=True), sessions("plain", userns=False)
    point = inside.checkpoint()
    with pytest.raises(errors.UsageError, match="user namespace"):
        plain.restore(point, safety=False)
    assert inside.info.options.userns is True
    (fork,) = point.fork()
    assert fork.info.options.userns is True
