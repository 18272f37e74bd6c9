"""Checks for what Waypoint needs on a machine: `waypoint doctor`.

Every check tries the feature itself: a file system is mounted, a firewall rule is loaded, a namespace is
made, all in throwaway namespaces that disappear when the check ends. Nothing is changed and nothing is left
behind. Only the standard library is used, because users run this when something is missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from waypoint.box import limits
from waypoint.engine.criu import criu_argv, criu_environment
from waypoint.errors import NotFound
from waypoint.home import Home, Settings
from waypoint.kernel import mounts, userns
from waypoint.kernel.pool import quota
from waypoint.kernel.pool.protocol import opened
from waypoint.machine import access, setup
from waypoint.machine.apt import which

OLDEST_PYTHON = (3, 11)
OLDEST_KERNEL = (5, 15)
LEAST_FREE_BYTES = 2 << 30
_SECONDS = 10


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `version` describes what the machine has; `why` is what Waypoint needs it for; `fix` what to do if it is
    missing. Without an `optional` one Waypoint works, with fewer features.
    """

    name: str
    ok: bool
    version: str
    why: str
    fix: str
    optional: bool = False
    docs: str = ""
    """The page and the heading that say more."""


@dataclass(frozen=True)
class _Result:
    ok: bool
    version: str
    fix: str | None = None


@dataclass(frozen=True)
class _Check:
    name: str
    check: Callable[[Path], _Result]
    why: str
    fix: str
    optional: bool = False
    as_root: bool = False
    docs: str = "docs/limits.md#the-machine"


def examine(home: Path) -> list[Finding]:
    """Runs all checks, in an order that makes sense to read."""
    with ThreadPoolExecutor(max_workers=4) as workers:
        return list(workers.map(lambda check: _examine(check, home), _CHECKS))


def _examine(check: _Check, home: Path) -> Finding:
    if check.as_root and os.geteuid() != 0:
        result = _Result(ok=False, version="only root can check this", fix="run it as root")
    else:
        try:
            result = check.check(home)
        except (OSError, subprocess.SubprocessError) as error:
            result = _Result(ok=False, version=str(error))
    fix = "" if result.ok else check.fix if result.fix is None else result.fix
    return Finding(check.name, result.ok, result.version, check.why, fix, check.optional, check.docs)


# ---- the checks -----------------------------------------------------------------------------------


def _output(*argv: str, feed: str = "") -> tuple[bool, str]:
    """Whether a program succeeded, and its output, or its last error message if it failed."""
    done = subprocess.run(
        argv,
        input=feed,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return True, done.stdout.strip()
    lines = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()
    return False, lines[-1].strip()


def _in_namespace(script: str, *, network: bool = False) -> tuple[bool, str]:
    """Runs a shell script in a mount namespace, and a network namespace, of its own."""
    return _output("unshare", "--mount", *(["--net"] if network else []), "sh", "-euc", script)


def _number(text: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+", text)
    return match[0] if match else ""


def _program(name: str) -> _Result:
    """Whether a program is installed, and its version."""
    path = which(name)
    if path is None:
        return _Result(ok=False, version="not found")
    _, output = _output(path, "--version")
    return _Result(ok=True, version=_number(output) or path)


def _root(_home: Path) -> _Result:
    uid = os.geteuid()
    return _Result(ok=uid == 0, version=f"uid {uid}")


def _group(home: Path) -> _Result:
    place = Home(home)
    if (name := access.allowed(place)) is None:
        return _Result(ok=True, version="root alone")
    try:
        users = access.members(name)
    except NotFound:
        return _Result(ok=False, version=f"root alone: group {name} has been deleted")
    return _Result(
        ok=True, version=f"root and group {name} ({', '.join(users) or 'no members'}), who are root by it"
    )


def _python(_home: Path) -> _Result:
    return _Result(ok=sys.version_info >= OLDEST_PYTHON, version=sys.version.split()[0])


def _kernel(_home: Path) -> _Result:
    release = os.uname().release
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    return _Result(ok=numbers >= OLDEST_KERNEL, version=release)


def _architecture(_home: Path) -> _Result:
    machine = os.uname().machine
    return _Result(ok=machine in setup.ARCHITECTURES, version=machine)


def _namespaces(_home: Path) -> _Result:
    ok, output = _output("unshare", "-m", "-p", "-n", "-i", "-u", "-f", "--mount-proc", "true")
    return _Result(ok=ok, version="mount, pid, net, ipc, uts" if ok else output)


def _overlay(_home: Path) -> _Result:
    # With the options of a box's root: older kernels lack some of them.
    ok, output = _in_namespace("""
        mount -t tmpfs -o size=1m waypoint /tmp
        mkdir /tmp/lower /tmp/upper /tmp/work /tmp/root
        options=lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work
        mount -t overlay -o $options,xino=on,index=on,nfs_export=on waypoint /tmp/root
        echo here >/tmp/root/file
        grep -q here /tmp/upper/file
        umount /tmp/root
    """)
    return _Result(ok=ok, version="mounted and written to" if ok else output)


def _userns(home: Path) -> _Result:
    places = [Path("/"), *(folder for folder in (home / "pool", home) if folder.is_dir())][:2]
    for place in places:
        if why := userns.why_not(place):
            return _Result(ok=False, version=f"files of {place} cannot be shown in one: {why}")
    return _Result(ok=True, version="with idmapped mounts of " + " and ".join(map(str, places)))


def _loop(_home: Path) -> _Result:
    device = Path("/dev/loop-control")
    if not device.exists():
        return _Result(ok=False, version=f"no {device}")
    os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    return _Result(ok=True, version=str(device))


def _btrfs(_home: Path) -> _Result:
    make = which("mkfs.btrfs")
    if make is None:
        known = "\tbtrfs\n" in Path("/proc/filesystems").read_text() or _output("modprobe", "-nq", "btrfs")[0]
        return _Result(ok=known, version="in the kernel, not tried" if known else "not in the kernel")
    ok, output = _in_namespace(f"""
        mount -t tmpfs -o size=256m waypoint /tmp
        mkdir /tmp/pool
        truncate -s 128M /tmp/image
        {shlex.quote(make)} -q /tmp/image
        mount -t btrfs -o loop /tmp/image /tmp/pool
        umount /tmp/pool
    """)
    return _Result(ok=ok, version="mounted from a loop device" if ok else output)


def _make_btrfs(_home: Path) -> _Result:
    return _program("mkfs.btrfs")


def _seccomp(_home: Path) -> _Result:
    number = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine)
    if number is None:
        return _Result(ok=False, version="unknown architecture")
    is_available, refuse = 2, ctypes.c_uint32(0x00050000)  # SECCOMP_GET_ACTION_AVAIL, SECCOMP_RET_ERRNO
    _syscall(number, is_available, 0, ctypes.byref(refuse))
    return _Result(ok=True, version="filters can refuse calls")


def _firewall(_home: Path) -> _Result:
    nft = which("nft")
    if nft is None:
        return _Result(ok=False, version="nft not found")
    rules = "table ip waypoint { chain out { type nat hook postrouting priority 100; masquerade; }; }"
    ok, output = _in_namespace(
        f"{shlex.quote(nft)} {shlex.quote(rules)}; {shlex.quote(nft)} --version", network=True
    )
    return _Result(ok=ok, version=_number(output) if ok else output)


def _veth(_home: Path) -> _Result:
    def attribute(kind: int, payload: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(payload), kind) + payload

    new_link, request_create_exclusive_ack, linkinfo, kind = 16, 0x605, 18, 1
    body = bytes(16) + attribute(linkinfo, attribute(kind, b"veth"))
    message = struct.pack("=IHHII", 16 + len(body), new_link, request_create_exclusive_ack, 1, 0) + body
    ask = (
        "import os, socket, struct, sys\n"
        "netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)\n"
        "netlink.send(bytes.fromhex(sys.argv[1]))\n"
        "status = -struct.unpack_from('=i', netlink.recv(4096), 16)[0]\n"
        "sys.exit(os.strerror(status) if status else 0)\n"
    )
    ok, output = _output("unshare", "--net", sys.executable, "-I", "-S", "-c", ask, message.hex())
    return _Result(ok=ok, version="a pair was made" if ok else output)


def _cgroups(_home: Path) -> _Result:
    needed, top = ("cpu", "memory", "pids"), Path("/sys/fs/cgroup")
    offers = {
        "v1": [name for name in needed if (top / name / "cgroup.procs").exists()],
        "v2 beside v1": _controllers(top / "unified"),
        "v2": _controllers(top),
    }
    version, controllers = max(offers.items(), key=lambda offer: len(set(offer[1]) & set(needed)))
    missing = [name for name in needed if name not in controllers]
    if len(missing) == len(needed):
        return _Result(ok=False, version="none mounted")
    version += f", without {', '.join(missing)}" if missing else ""
    return _Result(ok=not missing, version=version)


def _limits(home: Path) -> _Result:
    """What a session may use that was given no limits, as a daemon with this environment would set them."""
    settings, pool = Settings.read(), home / "pool"
    counts, total_bytes = quota.is_known(), 0
    if pool.is_dir() and (mounts.mount_at(pool) or any(pool.iterdir())):
        status = os.statvfs(pool)
        total_bytes = status.f_blocks * status.f_frsize
        with opened(pool) as fd:
            counts = quota.share(fd) is not None
    usual = limits.usual_limits(
        pool_bytes=total_bytes if counts else 0,
        memory_bytes=settings.box_memory_bytes,
        pids=settings.box_pids,
        open_files=settings.box_open_files,
        disk_bytes=settings.box_disk_bytes,
    )
    memory, pids = usual.groups.memory_bytes, usual.groups.pids
    parts = [
        f"{memory / (1 << 30):.1f} GiB of memory" if memory else "no limit of memory",
        f"{pids:,} processes" if pids else "no limit of processes",
        f"{usual.open_files[1]:,} open files in each",
    ]
    if not counts or settings.box_disk_bytes == 0:
        parts.append("no limit of what it takes of the pool")
    elif usual.disk_bytes:
        parts.append(f"{usual.disk_bytes / (1 << 30):.1f} GiB of the pool")
    else:
        parts.append("a share of the pool, once that is made")
    return _Result(ok=bool(memory and pids and counts), version=", ".join(parts))


def _controllers(hierarchy: Path) -> list[str]:
    listing = hierarchy / "cgroup.controllers"
    return listing.read_text().split() if listing.exists() else []


def _userfaultfd(_home: Path) -> _Result:
    number = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine)
    if number is None:
        return _Result(ok=False, version="unknown architecture")
    uffdio_api, api, write_protect_async = 0xC018AA3F, 0xAA, 1 << 15
    descriptor = _syscall(number, os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        answer = bytearray(struct.pack("=QQQ", api, 0, 0))
        fcntl.ioctl(descriptor, uffdio_api, answer)
        features: int = struct.unpack("=QQQ", answer)[1]
    finally:
        os.close(descriptor)
    tracking = bool(features & write_protect_async)
    return _Result(ok=True, version="with write tracking" if tracking else "without write tracking")


def _sys_resource(_home: Path) -> _Result:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    cap_sys_resource = 1 << 24
    held = effective is not None and bool(int(effective[1], 16) & cap_sys_resource)
    return _Result(ok=held, version="held" if held else "not held; limits are read from /proc instead")


def _soft_dirty(_home: Path) -> _Result:
    page, entry_bytes, soft_dirty = mmap.PAGESIZE, 8, 1 << 55
    with mmap.mmap(-1, page) as fresh, Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        fresh[0] = 1  # a page that was just written is dirty, if the kernel records that
        anchor = ctypes.c_char.from_buffer(fresh)
        address = ctypes.addressof(anchor)
        del anchor
        pagemap.seek(address // page * entry_bytes)
        (entry,) = struct.unpack("=Q", pagemap.read(entry_bytes))
    recorded = bool(entry & soft_dirty)
    return _Result(ok=recorded, version=f"{'' if recorded else 'not '}recorded by this kernel")


def _engine(home: Path) -> _Result:
    folder = setup.engine_dir(home)
    built = setup.read_engine(folder)
    if built is None:
        return _Result(ok=False, version=f"not built in {folder}")
    if setup.current_engine(folder) is not None:
        return _Result(ok=True, version=str(folder))
    if built.kernel != os.uname().release:
        return _Result(ok=False, version=f"proven on kernel {built.kernel} only")
    return _Result(ok=False, version="built from other sources")


def _criu(home: Path) -> _Result:
    folder = setup.engine_dir(home)
    built = setup.read_engine(folder)
    if built is None:
        return _Result(ok=False, version="not set up")
    done = subprocess.run(
        criu_argv(folder, "--version"),
        env=criu_environment(),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    version = _number(done.stdout)
    if done.returncode != 0 or not version:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return _Result(ok=False, version=lines[-1] if lines else "it does not start")
    return _Result(ok=True, version=f"{version}, {built.criu.source}")


def _compiler(_home: Path) -> _Result:
    return _program("cc")


def _bash(_home: Path) -> _Result:
    return _program("bash")


def _space(home: Path) -> _Result:
    folder = next(folder for folder in (home, *home.parents) if folder.exists())
    free_bytes = shutil.disk_usage(folder).free
    return _Result(
        ok=free_bytes >= LEAST_FREE_BYTES, version=f"{free_bytes / 2**30:.1f} GiB free at {folder}"
    )


def _pool(home: Path) -> _Result:
    pool, image = home / "pool", home / "pool.img"
    if mount := mounts.mount_at(pool):
        if os.statvfs(pool).f_flag & os.ST_RDONLY:
            return _Result(
                ok=False,
                version=f"{pool} has stopped writing",
                fix=f"make room on the disk of {home}; the next checkpoint, restore or new session opens the"
                " pool again (`dmesg` tells why it stopped)",
            )
        return _Result(ok=True, version=f"{mount.fstype} at {pool}")
    if image.exists():
        return _Result(ok=True, version=f"{image}, mounted when it is needed")
    if pool.is_dir() and any(pool.iterdir()):
        return _Result(ok=True, version=f"the folder {pool}")
    return _Result(ok=False, version=f"none at {pool}")


def _syscall(number: int, *arguments: object) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


_SETUP = "waypoint setup"
_BOUNDARIES = "docs/security.md#boundaries"
_POOLS = "docs/storage.md#kinds-of-pool"
_DECISIONS = "docs/architecture.md#decisions"
_MEMORY = "docs/architecture.md#memory"
_NETWORK = "docs/limits.md#what-leaves-a-session"

_CHECKS = (
    _Check("root", _root, "namespaces, mounts and CRIU need it", "run it as root", docs=_BOUNDARIES),
    _Check(
        "daemon's users",
        _group,
        "a client of the daemon is root on this machine",
        "waypoint setup --no-group",
        optional=True,
        as_root=True,
        docs=_BOUNDARIES,
    ),
    _Check("python", _python, "Waypoint is written in it", "apt-get install python3"),
    _Check(
        "kernel",
        _kernel,
        "boxes and CRIU need features of newer kernels",
        f"boot a kernel of at least {'.'.join(map(str, OLDEST_KERNEL))}",
    ),
    _Check(
        "architecture",
        _architecture,
        "the engine is built for it",
        f"not supported yet; Waypoint runs on {', '.join(setup.ARCHITECTURES)}",
    ),
    _Check(
        "namespaces",
        _namespaces,
        "a box is made of them",
        "allow them: a container needs CAP_SYS_ADMIN (docker run --privileged)",
        as_root=True,
    ),
    _Check(
        "user namespaces",
        _userns,
        "root in a session that was started with --userns has no rights on this machine",
        "sessions work without; an overlay as root file system (a container) cannot have them",
        optional=True,
        as_root=True,
        docs="docs/limits.md#user-namespaces",
    ),
    _Check(
        "overlayfs",
        _overlay,
        "a session writes to its own layer over the base",
        "modprobe overlay",
        as_root=True,
        docs=_DECISIONS,
    ),
    _Check(
        "loop devices",
        _loop,
        "the pool is a file mounted like a disk",
        "modprobe loop, or put WAYPOINT_HOME on a btrfs",
        as_root=True,
        docs=_POOLS,
    ),
    _Check("mkfs.btrfs", _make_btrfs, "makes the pool", _SETUP, docs=_POOLS),
    _Check(
        "btrfs",
        _btrfs,
        "snapshots of the files take milliseconds on it",
        "modprobe btrfs; without it files are copied, which is slower",
        as_root=True,
        docs=_POOLS,
    ),
    _Check(
        "seccomp",
        _seccomp,
        "refuses system calls that a container may not use",
        "use a kernel with it",
        docs="docs/limits.md#confinement",
    ),
    _Check(
        "nftables",
        _firewall,
        "sessions reach the network through it",
        f"{_SETUP}, or modprobe nf_tables",
        as_root=True,
        docs=_NETWORK,
    ),
    _Check(
        "veth",
        _veth,
        "each session has a network interface of its own",
        "modprobe veth, or use sessions without a network (net none)",
        as_root=True,
        docs=_NETWORK,
    ),
    _Check("bash", _bash, "is the shell of a session whose base is /", "apt-get install bash"),
    _Check("engine", _engine, "keeps boxes alive and runs CRIU in them", _SETUP, docs=_DECISIONS),
    _Check("criu", _criu, "saves and restores processes", _SETUP, docs=_DECISIONS),
    _Check("c compiler", _compiler, "builds the engine, once", _SETUP),
    _Check(
        "free space",
        _space,
        "checkpoints are kept there",
        "free some, or set WAYPOINT_HOME to a folder with more",
        docs="docs/limits.md#a-full-disk",
    ),
    _Check("pool", _pool, "holds the files and images of all sessions", _SETUP, docs=_POOLS),
    _Check(
        "cgroups",
        _cgroups,
        "limit a session's memory, processors and processes",
        "mount -t cgroup2 none /sys/fs/cgroup",
        optional=True,
        docs="docs/limits.md#confinement",
    ),
    _Check(
        "limits of a session",
        _limits,
        "what a session may use that was started without limits of its own",
        "the page says what a limit needs; WAYPOINT_BOX_MEMORY, _PIDS, _OPEN_FILES and _DISK of the daemon"
        " and the options of a session set others",
        optional=True,
        as_root=True,
        docs="docs/limits.md#limits-of-a-session",
    ),
    _Check(
        "CAP_SYS_RESOURCE",
        _sys_resource,
        "reads the limits of other users' processes",
        "nothing to do",
        optional=True,
    ),
    _Check(
        "userfaultfd",
        _userfaultfd,
        "tracks which memory changed",
        "use a kernel with CONFIG_USERFAULTFD",
        optional=True,
        docs=_MEMORY,
    ),
    _Check(
        "soft-dirty",
        _soft_dirty,
        "tracks which memory changed, on kernels that record it",
        "use a kernel with CONFIG_MEM_SOFT_DIRTY",
        optional=True,
        docs=_MEMORY,
    ),
)
