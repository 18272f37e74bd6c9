"""Which processes keep the pool of a home from being closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waypoint.kernel import mounts
from waypoint.kernel.mounts import Mount


@dataclass(frozen=True)
class Holder:
    """A process that keeps the pool from being closed."""

    pid: int
    command: str
    what: str


def pool_holders(home: Path) -> list[Holder]:
    """What keeps the pool open: files and folders in use, overlays on it, other mount namespaces."""
    prefix = f"{home.resolve() / 'pool'}/"
    holders = mount_holders(home)
    for process in _processes():
        links = [process / "cwd", process / "root"]
        with contextlib.suppress(OSError):
            links += list((process / "fd").iterdir())
        for link in links:
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if f"{target}/".startswith(prefix):
                    holders.append(_holder(process, f"uses {target}"))
                    break
    return holders


def mount_holders(home: Path) -> list[Holder]:
    """Mounts other than the pool's own that keep its file system alive, one per mount namespace.

    A mount namespace that was copied while the pool was mounted holds a copy of that mount, and an
    overlay holds the file system of its layers: unmounting the pool here would then release nothing.
    """
    root = home.resolve() / "pool"
    own_namespace = os.readlink("/proc/self/ns/mnt")
    own_mount = mounts.mount_at(root)
    holders: list[Holder] = []
    namespaces: set[str] = set()
    for process in _processes():
        with contextlib.suppress(OSError):
            namespace = os.readlink(process / "ns" / "mnt")
            if namespace in namespaces:
                continue
            namespaces.add(namespace)
            elsewhere = namespace != own_namespace
            for mount in _on_pool(mounts.mounts(process.name), root, own_mount):
                if elsewhere or mount.path != str(root):
                    where = " in a mount namespace of its own" if elsewhere else ""
                    holders.append(_holder(process, f"has {mount.path} mounted{where}"))
                    break
    return holders


def _on_pool(table: list[Mount], root: Path, pool: Mount | None) -> Iterator[Mount]:
    """The mounts of the pool's file system, and the overlays with a layer in it."""
    for mount in table:
        layers = mount.super_options
        if (pool and mount.device == pool.device) or f"={root}/" in layers or f":{root}/" in layers:
            yield mount


def _processes() -> list[Path]:
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return sorted(entries, key=lambda entry: int(entry.name))


def _holder(process: Path, what: str) -> Holder:
    command = ""
    with contextlib.suppress(OSError):
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        command = command or (process / "comm").read_text(errors="replace").strip()
    return Holder(int(process.name), command or "?", what)
