"""Files that are in no checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from tests.redteam.attacks import Scene, attack, hostile

import waypoint
from waypoint.errors import WaypointError
from waypoint.kernel.pool import btrfs
from waypoint.kernel.pool.protocol import opened

NEST = r"""
import fcntl, os, struct, sys
for place in ("/dev/shm", "/tmp", "/root", "/var/tmp", "/dev", "/"):
    folder = os.open(place, os.O_RDONLY)
    name = bytearray(struct.pack("=q4088s", folder, b"nested"))
    for request in (0x5000940E, 0x50009401):
        try:
            fcntl.ioctl(folder, request, name)
            print("made in", place)
        except OSError:
            pass
    for request in (0x50009418, 0x50009417):
        try:
            name = bytearray(struct.pack("=qQQ32s4040s", folder, 0, 0, b"", b"nested2"))
            fcntl.ioctl(folder, request, name)
            print("made in", place)
        except OSError:
            pass
"""


def _nest(session: waypoint.Session) -> str:
    return session.run(f"/usr/bin/python3 -c '{NEST}'").output


@attack(
    "a btrfs subvolume inside a session",
    "Nothing in a session is silently left out of its points",
    quick=True,
)
def nested_subvolume(scene: Scene) -> str:
    session = scene.session("hostile")
    for name, copy in scene.lives(session):
        assert _nest(copy) == "", f"{name}: {_nest(copy)}"
    return "refused"


@attack("a subvolume made with an older filter", "What is left out of a point is named", quick=True)
def old_subvolume(scene: Scene) -> str:
    session = scene.session("hostile")
    keeper = session.info.pid
    shm = Path(f"/proc/{keeper}/root/dev/shm")
    with opened(shm) as fd:
        fcntl.ioctl(fd, btrfs.BTRFS_IOC_SUBVOL_CREATE, btrfs.volume_request("nested"))
    (shm / "nested" / "lost").write_text("x")
    notes = session.checkpoint("with a subvolume").info.coverage
    assert any("subvolume nested" in note for note in notes), notes
    notes = session.checkpoint("files alone", files_only=True).info.coverage
    assert any("subvolume nested" in note for note in notes), notes
    with opened(shm) as fd:
        fcntl.ioctl(fd, btrfs.BTRFS_IOC_SNAP_DESTROY, btrfs.volume_request("nested"))
    return "named"


SWAPPER = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("/root/place", exist_ok=True)
open("/root/place/file", "w").write("box")
for name, root in (("one", "/proc/1/root"), ("two", "/proc/self/root/../../..")):
    if not os.path.lexists(f"/root/{name}"): os.symlink(root + sys.argv[1], f"/root/{name}")
os.write(1, b"ready\n")
while True:
    for name in (b"/root/one", b"/root/two"):
        libc.syscall(316, -100, b"/root/place", -100, name, 2)  # renameat2 with RENAME_EXCHANGE
"""


@attack(
    "folders exchanged for links under read_file and write_file", "Files go in and out of a session alone"
)
def swapped_folders(scene: Scene) -> str:
    session, tries = scene.session("hostile"), 0
    with tempfile.TemporaryDirectory(prefix="waypoint-redteam-host-", dir="/var/tmp") as folder:
        (Path(folder) / "file").write_text("host")
        session.run(f"mkdir -p {folder}; echo box >{folder}/file").check()
        for name, copy in scene.lives(session):
            if name == "at first":
                hostile(copy, SWAPPER, folder)  # it goes on in the others
            for _ in range(15):
                with contextlib.suppress(WaypointError):
                    copy.write_file("/root/place/file", b"box")
                with contextlib.suppress(WaypointError):
                    assert copy.read_file("/root/place/file") != b"host", (
                        f"{name}: a file of the host is read"
                    )
                tries += 2
        assert (Path(folder) / "file").read_text() == "host"
        assert os.listdir(folder) == ["file"]
    return f"{tries} tries, all inside"
