"""What this machine has of what Waypoint needs: `waypoint doctor`.

Every check tries the thing itself rather than a sign of it: a file system is mounted, a firewall rule
is loaded, a namespace is made, all in throw-away namespaces that take everything with them when they
end. Nothing is changed and nothing is left behind. Only the standard library is used, because this is
what people run when something is missing.
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

from waypoint.engine.criu import criu_argv, criu_environment
from waypoint.kernel import mounts
from waypoint.machine import setup
from waypoint.machine.apt import which

OLDEST_PYTHON = (3, 11)
OLDEST_KERNEL = (5, 15)
LEAST_FREE_BYTES = 2 << 30
_SECONDS = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    `version` is what was found, in words; `why` what Waypoint needs it for; `fix` what to do if it is
    not there. Without an `optional` one Waypoint works, with less.
    """

    name: str
    ok: bool
    version: str
    why: str
    fix: str
    optional: bool = False


@dataclass(frozen=True)
class _Found:
    ok: bool
    version: str
    fix: str | None = None


@dataclass(frozen=True)
class _Check:
    name: str
    look: Callable[[Path], _Found]
    why: str
    fix: str
    optional: bool = False
    as_root: bool = False


def examine(home: Path) -> list[Finding]:
    """Looks for everything that Waypoint needs, in an order that makes sense to read."""
    with ThreadPoolExecutor(max_workers=4) as workers:
        return list(workers.map(lambda check: _examine(check, home), _CHECKS))


def _examine(check: _Check, home: Path) -> Finding:
    if check.as_root and os.geteuid() != 0:
        found = _Found(ok=False, version="only root can look", fix="run it as root")
    else:
        try:
            found = check.look(home)
        except (OSError, subprocess.SubprocessError) as error:
            found = _Found(ok=False, version=str(error))
    fix = "" if found.ok else check.fix if found.fix is None else found.fix
    return Finding(check.name, found.ok, found.version, check.why, fix, check.optional)


# Looking -----------------------------------------------------------------------------------------------


def _output(*argv: str, feed: str = "") -> tuple[bool, str]:
    """Whether a program succeeded, and what it said: its output then, its last complaint otherwise."""
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


def _apart(script: str, *, network: bool = False) -> tuple[bool, str]:
    """Runs a shell script in a mount namespace, and a network namespace, of its own."""
    return _output("unshare", "--mount", *(["--net"] if network else []), "sh", "-euc", script)


def _number(text: str) -> str:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else ""


def _program(name: str) -> _Found:
    """A program that is there and says its version."""
    where = which(name)
    if where is None:
        return _Found(ok=False, version="not found")
    _, said = _output(where, "--version")
    return _Found(ok=True, version=_number(said) or where)


def _root(_home: Path) -> _Found:
    uid = os.geteuid()
    return _Found(ok=uid == 0, version=f"uid {uid}")


def _python(_home: Path) -> _Found:
    return _Found(ok=sys.version_info >= OLDEST_PYTHON, version=sys.version.split()[0])


def _kernel(_home: Path) -> _Found:
    release = os.uname().release
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    return _Found(ok=numbers >= OLDEST_KERNEL, version=release)


def _architecture(_home: Path) -> _Found:
    machine = os.uname().machine
    return _Found(ok=machine in setup.ARCHITECTURES, version=machine)


def _namespaces(_home: Path) -> _Found:
    ok, said = _output("unshare", "-m", "-p", "-n", "-i", "-u", "-f", "--mount-proc", "true")
    return _Found(ok=ok, version="mount, pid, net, ipc, uts" if ok else said)


def _overlay(_home: Path) -> _Found:
    # With the very options that boxes are mounted with: older kernels lack some.
    ok, said = _apart("""
        mount -t tmpfs -o size=1m waypoint /tmp
        mkdir /tmp/lower /tmp/upper /tmp/work /tmp/root
        options=lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work
        mount -t overlay -o $options,xino=on,index=on,nfs_export=on waypoint /tmp/root
        echo here >/tmp/root/file
        grep -q here /tmp/upper/file
        umount /tmp/root
    """)
    return _Found(ok=ok, version="mounted and written to" if ok else said)


def _loop(_home: Path) -> _Found:
    device = Path("/dev/loop-control")
    if not device.exists():
        return _Found(ok=False, version=f"no {device}")
    os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    return _Found(ok=True, version=str(device))


def _btrfs(_home: Path) -> _Found:
    make = which("mkfs.btrfs")
    if make is None:
        known = "\tbtrfs\n" in Path("/proc/filesystems").read_text() or _output("modprobe", "-nq", "btrfs")[0]
        return _Found(ok=known, version="known to the kernel, not tried" if known else "not in the kernel")
    ok, said = _apart(f"""
        mount -t tmpfs -o size=256m waypoint /tmp
        mkdir /tmp/pool
        truncate -s 128M /tmp/image
        {shlex.quote(make)} -q /tmp/image
        mount -t btrfs -o loop /tmp/image /tmp/pool
        umount /tmp/pool
    """)
    return _Found(ok=ok, version="mounted from a loop device" if ok else said)


def _make_btrfs(_home: Path) -> _Found:
    return _program("mkfs.btrfs")


def _seccomp(_home: Path) -> _Found:
    number = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine)
    if number is None:
        return _Found(ok=False, version="unknown architecture")
    is_available, refuse = 2, ctypes.c_uint32(0x00050000)  # SECCOMP_GET_ACTION_AVAIL, SECCOMP_RET_ERRNO
    _syscall(number, is_available, 0, ctypes.byref(refuse))
    return _Found(ok=True, version="filters can refuse calls")


def _firewall(_home: Path) -> _Found:
    nft = which("nft")
    if nft is None:
        return _Found(ok=False, version="nft not found")
    rules = "table ip waypoint { chain out { type nat hook postrouting priority 100; masquerade; }; }"
    ok, said = _apart(f"{shlex.quote(nft)} {shlex.quote(rules)}; {shlex.quote(nft)} --version", network=True)
    return _Found(ok=ok, version=_number(said) if ok else said)


def _veth(_home: Path) -> _Found:
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
    ok, said = _output("unshare", "--net", sys.executable, "-I", "-S", "-c", ask, message.hex())
    return _Found(ok=ok, version="a pair was made" if ok else said)


def _cgroups(_home: Path) -> _Found:
    wanted, top = ("cpu", "memory", "pids"), Path("/sys/fs/cgroup")
    offers = {
        "v1": [name for name in wanted if (top / name / "cgroup.procs").exists()],
        "v2 beside v1": _controllers(top / "unified"),
        "v2": _controllers(top),
    }
    version, there = max(offers.items(), key=lambda offer: len(set(offer[1]) & set(wanted)))
    missing = [name for name in wanted if name not in there]
    if len(missing) == len(wanted):
        return _Found(ok=False, version="none mounted")
    return _Found(ok=not missing, version=f"{version}, without {', '.join(missing)}" if missing else version)


def _controllers(hierarchy: Path) -> list[str]:
    listing = hierarchy / "cgroup.controllers"
    return listing.read_text().split() if listing.exists() else []


def _userfaultfd(_home: Path) -> _Found:
    number = {"x86_64": 323, "aarch64": 282}.get(os.uname().machine)
    if number is None:
        return _Found(ok=False, version="unknown architecture")
    uffdio_api, api, write_protect_async = 0xC018AA3F, 0xAA, 1 << 15
    descriptor = _syscall(number, os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        answer = bytearray(struct.pack("=QQQ", api, 0, 0))
        fcntl.ioctl(descriptor, uffdio_api, answer)
        features: int = struct.unpack("=QQQ", answer)[1]
    finally:
        os.close(descriptor)
    tracking = bool(features & write_protect_async)
    return _Found(ok=True, version="with write tracking" if tracking else "without write tracking")


def _sys_resource(_home: Path) -> _Found:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    cap_sys_resource = 1 << 24
    held = effective is not None and bool(int(effective[1], 16) & cap_sys_resource)
    return _Found(ok=held, version="held" if held else "not held; limits are read from /proc instead")


def _soft_dirty(_home: Path) -> _Found:
    page, entry_bytes, soft_dirty = mmap.PAGESIZE, 8, 1 << 55
    with mmap.mmap(-1, page) as fresh, Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        fresh[0] = 1  # a page that was just written is dirty, where that is kept at all
        anchor = ctypes.c_char.from_buffer(fresh)
        address = ctypes.addressof(anchor)
        del anchor
        pagemap.seek(address // page * entry_bytes)
        (entry,) = struct.unpack("=Q", pagemap.read(entry_bytes))
    kept = bool(entry & soft_dirty)
    return _Found(ok=kept, version="kept by the kernel" if kept else "not kept by this kernel")


def _engine(home: Path) -> _Found:
    folder = setup.engine_dir(home)
    built = setup.read_engine(folder)
    if built is None:
        return _Found(ok=False, version=f"not built in {folder}")
    if setup.current_engine(folder) is not None:
        return _Found(ok=True, version=str(folder))
    if built.kernel != os.uname().release:
        return _Found(ok=False, version=f"proven on kernel {built.kernel} only")
    return _Found(ok=False, version="built from other sources")


def _criu(home: Path) -> _Found:
    folder = setup.engine_dir(home)
    built = setup.read_engine(folder)
    if built is None:
        return _Found(ok=False, version="not set up")
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
        complaint = (done.stderr or done.stdout).strip().splitlines()
        return _Found(ok=False, version=complaint[-1] if complaint else "it does not start")
    return _Found(ok=True, version=f"{version}, {built.criu.source}")


def _compiler(_home: Path) -> _Found:
    return _program("cc")


def _bash(_home: Path) -> _Found:
    return _program("bash")


def _space(home: Path) -> _Found:
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    return _Found(ok=free_bytes >= LEAST_FREE_BYTES, version=f"{free_bytes / 2**30:.1f} GiB free at {place}")


def _pool(home: Path) -> _Found:
    pool, image = home / "pool", home / "pool.img"
    if mount := mounts.mount_at(pool):
        return _Found(ok=True, version=f"{mount.fstype} at {pool}")
    if image.exists():
        return _Found(ok=True, version=f"{image}, mounted when it is needed")
    if pool.is_dir() and any(pool.iterdir()):
        return _Found(ok=True, version=f"the folder {pool}")
    return _Found(ok=False, version=f"none at {pool}")


def _syscall(number: int, *arguments: object) -> int:
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


_SETUP = "waypoint setup"
_CHECKS = (
    _Check("root", _root, "namespaces, mounts and CRIU need it", "run it as root"),
    _Check("python", _python, "Waypoint is written in it", "apt-get install python3"),
    _Check(
        *("kernel", _kernel, "boxes and CRIU rely on what newer kernels can do"),
        fix=f"boot a kernel of at least {'.'.join(map(str, OLDEST_KERNEL))}",
    ),
    _Check(
        *("architecture", _architecture, "the engine exists for it or does not"),
        fix=f"not yet; it runs on {', '.join(setup.ARCHITECTURES)}",
    ),
    _Check(
        *("namespaces", _namespaces, "a box is made of them"),
        fix="allow them: a container needs CAP_SYS_ADMIN (docker run --privileged)",
        as_root=True,
    ),
    _Check(
        *("overlayfs", _overlay, "a session writes to its own layer over the base"),
        fix="modprobe overlay",
        as_root=True,
    ),
    _Check(
        *("loop devices", _loop, "the pool is a file mounted like a disk"),
        fix="modprobe loop, or put WAYPOINT_HOME on a btrfs",
        as_root=True,
    ),
    _Check("mkfs.btrfs", _make_btrfs, "makes the pool", _SETUP),
    _Check(
        *("btrfs", _btrfs, "snapshots of the files take milliseconds on it"),
        fix="modprobe btrfs; without it files are copied, which is slower",
        as_root=True,
    ),
    _Check("seccomp", _seccomp, "keeps a session from what containers may not do", "use a kernel with it"),
    _Check(
        *("nftables", _firewall, "sessions reach the network through it"),
        fix=f"{_SETUP}, or modprobe nf_tables",
        as_root=True,
    ),
    _Check(
        *("veth", _veth, "each session has a network interface of its own"),
        fix="modprobe veth, or use `waypoint new --net none`",
        as_root=True,
    ),
    _Check("bash", _bash, "is the shell of a session whose base is /", "apt-get install bash"),
    _Check("engine", _engine, "keeps boxes alive and runs CRIU in them", _SETUP),
    _Check("criu", _criu, "saves and restores processes", _SETUP),
    _Check("c compiler", _compiler, "builds the engine, once", _SETUP),
    _Check(
        *("free space", _space, "checkpoints are kept there"),
        fix="free some, or set WAYPOINT_HOME to a folder with more",
    ),
    _Check("pool", _pool, "holds the files and images of all sessions", _SETUP),
    _Check(
        *("cgroups", _cgroups, "limit a session's --memory, --cpus and --pids"),
        fix="mount -t cgroup2 none /sys/fs/cgroup",
        optional=True,
    ),
    _Check(
        *("CAP_SYS_RESOURCE", _sys_resource, "reads the limits of other users' processes"),
        fix="nothing to do",
        optional=True,
    ),
    _Check(
        *("userfaultfd", _userfaultfd, "tracks which memory changed"),
        fix="use a kernel with CONFIG_USERFAULTFD",
        optional=True,
    ),
    _Check(
        *("soft-dirty", _soft_dirty, "tracks which memory changed, on kernels that keep it"),
        fix="use a kernel with CONFIG_MEM_SOFT_DIRTY",
        optional=True,
    ),
)
