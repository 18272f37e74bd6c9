"""User namespaces: the ids that a box in one has on the host, and files shown with ids of its own.

Root of such a box is a user of the host that owns nothing there. The box sees files through idmapped mounts
(mount_setattr(2)): what belongs to user 1000 on the disk belongs to user 1000 of the box, though its
processes are other users outside. So what is on the disk is the same with and without such a namespace.
native/plan.h makes both; here is what the daemon has to know of them.

All boxes have the same range: CRIU's images contain it, and a point has to fit every box of its session.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from waypoint.kernel.syscalls import idmapped_mount

FIRST_ID = 0x70000000
"""The host's id of a box's root. From here on no distribution has ids for users or containers."""
ID_COUNT = 0x0FF00000
NOBODY = 65534
"""Whom the kernel shows where an id is not in the map."""

_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_ACL_HEADER, _ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_ACL_NAMED = (0x02, 0x08)
"""ACL_USER and ACL_GROUP: the entries that have an id."""


def to_inner(host_id: int) -> int:
    """The id in a box of what the host knows by this one; NOBODY for an id outside of the range."""
    return host_id - FIRST_ID if FIRST_ID <= host_id < FIRST_ID + ID_COUNT else NOBODY


def to_host(inner_id: int) -> int:
    return FIRST_ID + inner_id if inner_id < ID_COUNT else FIRST_ID + NOBODY


def attribute_to_host(name: str, value: bytes) -> bytes:
    """An extended attribute of a file, with the host's ids in it: access control lists name users."""
    return _with_ids(name, value, to_host)


def attribute_to_inner(name: str, value: bytes) -> bytes:
    """The same the other way round."""
    return _with_ids(name, value, to_inner)


def _with_ids(name: str, value: bytes, translate: Callable[[int], int]) -> bytes:
    if name not in _ACLS:
        return value
    entries = (
        _ACL_ENTRY.pack(tag, rights, translate(number) if tag in _ACL_NAMED else number)
        for tag, rights, number in _ACL_ENTRY.iter_unpack(value[_ACL_HEADER.size :])
    )
    return value[: _ACL_HEADER.size] + b"".join(entries)


def is_of_box(pid: int) -> bool:
    """Whether a process is in the user namespace of a box, also one that has ended and is not waited for.
    OSError when it is gone."""
    words = Path(f"/proc/{pid}/uid_map").read_text().split()
    return words[:2] == ["0", str(FIRST_ID)]


def is_own(pid: int | str) -> bool:
    """Whether a process is in the same user namespace as this one. OSError when it is gone."""
    return os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino


def why_not(folder: Path) -> str | None:
    """Why this folder cannot be shown with ids of a user namespace; None when it can. OSError where no user
    namespace can be made at all."""
    holder = subprocess.Popen(["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdin
        assert holder.stdout
        try:
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            if not holder.stdout.read(1):  # else it is in the namespace
                raise OSError("no user namespace can be made")
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {FIRST_ID} {ID_COUNT}\n")
            namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.stdin.close()
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        os.close(idmapped_mount(place, namespace))
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(namespace)
        os.close(place)
    return None
