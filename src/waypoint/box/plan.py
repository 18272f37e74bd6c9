"""What a box is made of, and the plan that builds it.

A box is built for every incarnation of a session (new, restored, forked, spare): it is cheap, and one that
fails is thrown away. `write_plan` decides what goes where and writes it down as a list of steps;
native/keeper.c carries them out and becomes pid 1 of the box. The writable part of a box is its volume
(volume.py).
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.box.users import check_user
from waypoint.box.volume import (
    BaseMounts,
    Layer,
    examine_base,
    hidden_for_good,
    mounts_of_homes_below,
    own_paths_below,
    prepare_layers,
)
from waypoint.errors import NotFound, UsageError
from waypoint.home import Home
from waypoint.kernel import atomic, confinement, homes, processes, userns
from waypoint.kernel.syscalls import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
)
from waypoint.model import Bind, BoxOptions, Size

OVERLAY_OPTIONS = "xino=on,index=on,nfs_export=on,redirect_dir=on,volatile"
"""xino: without it /proc/locks and inotify name other inodes than stat(2), and CRIU loses file locks
silently.
index and nfs_export: without them files cannot be opened by handle, and no process that uses inotify can be
saved.
redirect_dir: without it renaming a folder of the base fails with EXDEV.
volatile: no fsync in the box reaches the disk. A machine that crashes loses the processes anyway, and what is
restored is a checkpoint, whose snapshot flushes by itself. Deleting /usr/share/doc (12,000 files) takes 2.6 s
with it and 31 s without."""

_DEVICES = (
    ("null", 0o666, 1, 3),
    ("zero", 0o666, 1, 5),
    ("full", 0o666, 1, 7),
    ("random", 0o666, 1, 8),
    ("urandom", 0o666, 1, 9),
    ("tty", 0o666, 5, 0),
)
_DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
)
_TTY_GROUP = 5
ENGINE_IN_BOX = Path("/dev/waypoint")
KDAT_IN_BOX = Path("/dev/criu.kdat")
STATE_IN_BOX = Path("/dev/waypoint.state")
"""Part of the snapshot: the shell may be writing there when a checkpoint is taken."""
INSIDE_IN_BOX = Path("/dev/waypoint.inside")
_ID_FILE = "id"
NO_SESSION = "0" * 12
"""In a box that belongs to no session yet."""
"""Where the daemon listens to this box alone, and answers: daemon/inside/doors.py."""
KEPT_IN_BOX = Path("/dev/waypoint.kept")
"""Files of an earlier base that restored processes have mapped or open: core/kept.py."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READONLY_VARIABLES = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
_LONGEST_NAME = 64
_FEWEST_FILES = 32
_LEAST_DISK_BYTES = 16 << 20
_SAFE = MS_NOSUID | MS_NODEV | MS_NOEXEC


@dataclass(frozen=True)
class BoxSpec:
    """What one box is built from."""

    home: Home
    engine: Path
    volume: Path
    """Its name is the box's id."""
    name: str
    """The box's host name, unless its base is the host's root."""
    options: BoxOptions
    base: Path
    size: Size
    kdat: Path | None = None
    """CRIU's cache of kernel features, shown to the box."""
    open_files: Collection[str] = ()
    """Files that the tree to be restored has open, as the overlays' index names them."""

    @property
    def id(self) -> str:
        return self.volume.name

    @property
    def inside(self) -> Path:
        return inside_path(self.home, self.id)


@dataclass
class BoxPlan:
    """The steps that build a box, in order. Each is an operation of native/keeper.c with its arguments; the
    paths of operations that start with "in-" are resolved inside the box's root."""

    words: list[str] = field(default_factory=list)

    def add(self, operation: str, *arguments: str | Path | int) -> None:
        self.words += [operation, *(str(argument) for argument in arguments)]

    def mount(
        self, source: str | Path, target: str | Path, fstype: str = "", flags: int = 0, data: str = ""
    ) -> None:
        """Mounts something inside the box."""
        self.add("in-mount", source, target, fstype, flags, data)

    def overlay(self, layer: Layer, *, root: Path | None = None) -> None:
        """Mounts a layer at its place in the box, or as the `root` of the box. MS_NODEV, because no device
        of a base or a layer may be opened: there is no device controller that would refuse it."""
        folders = {"lowerdir": layer.lower, "upperdir": layer.upper, "workdir": layer.work}
        data = ",".join([f"{name}={_escape(path)}" for name, path in folders.items()] + [OVERLAY_OPTIONS])
        self.add("mount" if root else "in-mount", "overlay", root or layer.target, "overlay", MS_NODEV, data)

    def idmapped_overlay(self, layer: Layer, volume: Path, *, root: Path | None = None) -> None:
        """The same with the ids of a user namespace. For a moment the lower folder is covered by itself with
        these ids: what else the mount needs is reached from a working folder that was entered before. What
        covers a root is not found by its path; there that is the root meanwhile. (The overlay tells the path
        of its base, by which other homes are masked in it.)"""
        over_root = layer.lower == Path("/")
        start = Path("/") if over_root else volume.parent.parent
        place = root if over_root and root else layer.lower
        self.add("chdir", start)
        self.add("idmap", layer.lower, place)
        written = replace(layer, upper=layer.upper.relative_to(start), work=layer.work.relative_to(start))
        if over_root:
            self.add("chroot", place)
            self.overlay(written, root=place.relative_to(start))
            self.add("chroot", ".")
        else:
            self.overlay(written, root=root)
            self.add("unmount", place)
        self.add("chdir", "/")

    def encode(self) -> bytes:
        return b"".join(os.fsencode(word) + b"\0" for word in self.words)


def _escape(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def write_plan(spec: BoxSpec) -> BoxPlan:
    """Everything the keeper has to do, in order, to become pid 1 of this box. Makes the folders that the
    plan mounts and that do not exist yet."""
    plan, options, base, volume = BoxPlan(), spec.options, spec.base, spec.volume
    base_mounts = examine_base(base, spec.home)

    own_network = options.net != "host"
    root_id = userns.FIRST_ID if options.userns else 0  # for file systems of the kernel's own
    _enter_namespaces(plan, spec, own_network=own_network)
    _show_base(plan, spec, base_mounts)

    # The kernel's file systems and a private /dev.
    for folder in ("/proc", "/sys", "/dev", "/tmp"):
        if not os.path.isdir(base / folder.lstrip("/")):
            plan.add("in-folder", folder, "1777" if folder == "/tmp" else "755")
    plan.mount("proc", "/proc", "proc", _SAFE)
    plan.mount("sysfs", "/sys", "sysfs", _SAFE | MS_RDONLY)
    plan.mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, f"mode=755,size=16m,uid={root_id},gid={root_id}")
    for device, mode, major, minor in _DEVICES:
        plan.add("in-node", f"/dev/{device}", f"{stat.S_IFCHR | mode:o}", major, minor)
    for target, link in _DEVICE_LINKS:
        plan.add("in-symlink", target, link)
    for folder in ("/dev/pts", "/dev/shm", *map(str, (ENGINE_IN_BOX, STATE_IN_BOX, INSIDE_IN_BOX))):
        plan.add("in-folder", folder, "755")
    pts = f"newinstance,ptmxmode=0666,mode=620,gid={root_id + _TTY_GROUP}"
    plan.mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts)
    plan.mount(volume / "shm", "/dev/shm", flags=MS_BIND | MS_NOSUID | MS_NODEV)
    plan.mount(volume / "state", STATE_IN_BOX, flags=MS_BIND | _SAFE)
    plan.mount(spec.engine, ENGINE_IN_BOX, flags=MS_BIND | MS_RDONLY | MS_NOSUID)
    _make_inside(spec.inside)
    tell_name(spec.inside, spec.name)
    atomic.write(spec.inside / _ID_FILE, f"{NO_SESSION}\n".encode(), mode=0o644)
    plan.mount(spec.inside, INSIDE_IN_BOX, flags=MS_BIND | MS_RDONLY | _SAFE)
    if (volume / "kept").is_dir():
        plan.add("in-folder", KEPT_IN_BOX, "755")
        plan.mount(volume / "kept", KEPT_IN_BOX, flags=MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    if spec.kdat:
        plan.add("in-file", KDAT_IN_BOX)
        plan.mount(spec.kdat, KDAT_IN_BOX, flags=MS_BIND | MS_RDONLY | MS_NOSUID)

    # What the options hide and show.
    for path in hidden_for_good(options, base, spec.home):
        plan.add("in-mask", path)
    for bind in options.binds:
        _bind(plan, bind, spec.home, idmapped=bool(options.userns))

    # From here on the host's files are out of reach.
    plan.add("pivot")
    plan.add("hostname", spec.name if base != Path("/") else socket.gethostname())
    if own_network:
        plan.add("loopback")
        # CRIU cannot save MPTCP sockets, and Go's servers listen with them by default. Where MPTCP is off,
        # socket(2) fails and programs fall back to TCP.
        plan.add("setting", "/proc/sys/net/mptcp/enabled", "0")
    plan.add("pids")
    if options.confined:
        for path in confinement.READONLY_PATHS:
            plan.add("in-readonly", path)
        for path in confinement.MASKED_PATHS:
            plan.add("in-mask", path)
        plan.add("capabilities", f"{confinement.available_caps():x}")
        plan.add("seccomp", confinement.seccomp_filter().hex())
    plan.add("terminal", spec.size.rows, spec.size.columns)
    return plan


def _enter_namespaces(plan: BoxPlan, spec: BoxSpec, *, own_network: bool) -> None:
    namespaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | (CLONE_NEWNET if own_network else 0)
    if spec.options.userns:
        plan.add("userns", userns.FIRST_ID, userns.ID_COUNT, namespaces)
    else:
        plan.add("unshare", namespaces)
        plan.add("fork")
    plan.add("mount", "", "/", "", MS_REC | MS_PRIVATE, "")
    if spec.options.userns:
        plan.add("idmap", spec.volume, spec.volume)


def _show_base(plan: BoxPlan, spec: BoxSpec, base_mounts: BaseMounts) -> None:
    """The base and what is mounted below it."""
    volume, root = spec.volume, spec.home.run / "root"
    first, *others = prepare_layers(volume, spec.base, base_mounts, spec.open_files)
    if spec.options.userns:
        plan.idmapped_overlay(first, volume, root=root)
    else:
        plan.overlay(first, root=root)
    plan.add("root", root)
    for layer in others:
        plan.add("in-folder", layer.target, "755")  # the host may have removed it since
        if spec.options.userns and not layer.lower.is_relative_to(volume):  # which is idmapped already
            plan.idmapped_overlay(layer, volume)
        else:
            plan.overlay(layer)
    for path in base_mounts.read_only:
        below = spec.base / path.lstrip("/")
        plan.mount(below, path, flags=MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind(plan: BoxPlan, bind: Bind, home: Home, *, idmapped: bool) -> None:
    """A folder or file of the host, without what is mounted there for Waypoint homes. `idmapped`: with the
    ids of a user namespace."""
    if os.path.isdir(bind.host):
        plan.add("in-folder", bind.box, "755")
    else:
        plan.add("in-folder", os.path.dirname(bind.box), "755")
        plan.add("in-file", bind.box)
    flags = MS_BIND | MS_REC | MS_NODEV | (MS_RDONLY if bind.readonly else 0)
    plan.add("in-bind", bind.host, bind.box, flags)
    for below in mounts_of_homes_below(bind.host):
        plan.add("in-unmount", os.path.normpath(bind.box + "/" + below))
    if idmapped:
        plan.add("in-idmap", bind.box)
    for below in own_paths_below(Path(bind.host), home):
        plan.add("in-mask", os.path.normpath(bind.box + "/" + below))


def inside_path(home: Home, box_id: str) -> Path:
    """The folder through which programs in a box reach the daemon."""
    return home.run / f"{box_id}.inside"


def _make_inside(folder: Path) -> None:
    """Makes that folder. The box sees it read-only: its programs can read there and connect to a socket."""
    for path in (folder, folder / "replies"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)


def tell_name(inside: Path, name: str) -> None:
    """Lets the shell of a box know the name of its session. All such files have one size: CRIU restores no
    file that is open, as one may be that the shell is reading, if it has another size in the new box."""
    atomic.write(inside / "name", f"{name:<{_LONGEST_NAME}}\n".encode(), mode=0o644)


def tell_id(inside: Path, session_id: str) -> None:
    """Lets the programs of a box know the id of its session: a fork has another one. The file is written in
    place, not replaced: a program that watches it (inotify) is told, also one that was restored with its
    watch and has not run yet. Like the name, it always has the same size."""
    fd = os.open(inside / _ID_FILE, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, f"{session_id:<{len(NO_SESSION)}}\n".encode(), 0)
    finally:
        os.close(fd)


# ---- options --------------------------------------------------------------------------------------


def check_options(options: BoxOptions, base: Path, home: Home, *, needs_shell: bool = True) -> None:
    """Refuses what cannot become a box, before anything is made."""
    if not base.is_dir():
        raise NotFound(
            f"the base {base} is not a folder",
            hint=Hint(
                "give a folder with a root file system, or the name of a base that ", Do("base_ls"), " lists"
            ),
        )
    if needs_shell and not any(os.path.lexists(base / shell) for shell in ("bin/bash", "usr/bin/bash")):
        raise UsageError(
            f"the base {base} has no /bin/bash", hint="a session's shell is bash: install it in the base"
        )
    if options.userns and not (options.confined and options.net != "host"):
        other = "use the host's network" if options.confined else "be privileged"
        raise UsageError(
            f"a session in a user namespace cannot {other}",
            hint="it has no rights over anything of the host: choose one of the two",
        )
    waypoint_folders = [known.path for known in homes.known_homes()]
    for bind in options.binds:
        if not os.path.exists(bind.host):
            raise NotFound(f"cannot bind {bind.host}: it does not exist")
        host = Path(os.path.realpath(bind.host))
        if any(host.is_relative_to(path) for path in (*waypoint_folders, home.path, home.run.parent)):
            raise UsageError(
                f"cannot bind {bind.host}: it is part of a Waypoint home",
                hint="a session sees no home: copy what it needs to another folder",
            )
        if not bind.box.startswith("/") or os.path.normpath(bind.box) in ("/", "/proc", "/dev", "/sys"):
            raise UsageError(
                f"cannot bind to {bind.box}",
                hint="the path in the box must be absolute, and not /, /proc, /sys or /dev",
            )
    if options.open_files is not None and options.open_files < _FEWEST_FILES:
        raise UsageError(f"{options.open_files} open files are not enough for a shell")
    if options.disk_bytes is not None and options.disk_bytes < _LEAST_DISK_BYTES:
        raise UsageError(
            f"a session needs more than {options.disk_bytes} bytes of the pool", hint="the least is 16M"
        )
    if options.user is not None:
        check_user(options.user)
    if options.cwd is not None and not options.cwd.startswith("/"):
        raise UsageError(
            f"the folder {options.cwd} is not absolute", hint="give it from the root of the session"
        )
    check_variables(options.env)
    for path in options.hide:
        if not path.startswith("/") or os.path.normpath(path) == "/":
            raise UsageError(f"cannot hide {path}", hint="give an absolute path other than /")


def usable_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of an image that a shell can have."""
    return {
        name: value
        for name, value in variables.items()
        if _VARIABLE.fullmatch(name) and name not in _READONLY_VARIABLES and "\0" not in value
    }


def check_variables(variables: Mapping[str, str]) -> None:
    """UsageError for what cannot be variables of a shell."""
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"{name!r} cannot be a variable", hint="letters, digits and _, no digit first")
        if name in _READONLY_VARIABLES:
            raise UsageError(f"the variable {name} is set by the shell itself", hint="choose another name")
        if "\0" in value:
            raise UsageError(f"the value of {name} contains a NUL byte", hint="variables hold text")


def resolve_binds(options: BoxOptions) -> BoxOptions:
    """The options with the symbolic links in the host's paths followed once, for the session's whole life:
    a box that is shown a folder above must not be able to redirect the next box's bind mount."""
    binds = (msgspec.structs.replace(bind, host=os.path.realpath(bind.host)) for bind in options.binds)
    return msgspec.structs.replace(options, binds=tuple(binds))


def coverage(options: BoxOptions, base: Path, home: Home) -> tuple[str, ...]:
    """What checkpoints of a session with these options do not hold, one sentence each."""
    base_mounts = examine_base(base, home)
    notes = [f"bind mount {bind.box} ({bind.host}) is outside the snapshot" for bind in options.binds]
    notes += [f"{path} is read-only: its file system cannot be layered" for path in base_mounts.read_only]
    notes += [f"{path} ({fstype}) is left out" for path, fstype in base_mounts.left_out]
    notes += [f"{path} is hidden" for path in options.hide]
    if options.net == "host":
        notes.append("what it sends to other machines is not observed: it uses the host's network")
    return tuple(map(processes.printable, notes))


def lost_from_dev(keeper_pid: int) -> tuple[str, ...]:
    """What programs have made in a box's /dev, which every box makes anew; one sentence each. (A socket
    that is in use is restored with the process that uses it.)"""
    own = {*(name for name, *_ in _DEVICES), *(link.removeprefix("/dev/") for _, link in _DEVICE_LINKS)}
    own |= {"pts", "shm", "waypoint.sock"}
    own |= {path.name for path in (ENGINE_IN_BOX, KDAT_IN_BOX, STATE_IN_BOX, INSIDE_IN_BOX, KEPT_IN_BOX)}
    names = sorted(set(os.listdir(f"/proc/{keeper_pid}/root/dev")) - own)
    notes = (f"/dev/{name} is not kept: /dev is made anew in every box" for name in names)
    return tuple(map(processes.printable, notes))
