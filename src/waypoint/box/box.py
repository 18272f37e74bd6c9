"""A box: the isolated place a session lives in.

Namespaces, an overlay root on the session's own volume, a private /dev, a terminal, and a keeper
as pid 1. This module decides what goes where and writes it down as a plan; native/keeper.c carries
the plan out. A box is built for every incarnation of a session (new, restored, forked, spare): it is
cheap, and a failed one is thrown away.

A volume (a writable tree in the pool) holds what a checkpoint's file snapshot has to hold:

    upper/            the writable layer over the base
    mounts/NAME/      the writable layer over what is mounted below the base, one each
    shm/              /dev/shm
    state/            what the shell tells about itself, seen in the box at /dev/waypoint.state
    moved.json        which of the mounts are elsewhere by now, if any
    work-now/         overlayfs's own folders, one for each layer; fresh for each box, but for the index
    work-old-BOX/     those of the box before: a snapshot brings them along, they go when nobody waits
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from waypoint.box.keeper import Hello, Keeper
from waypoint.errors import MachineError, MissingFeature, NoSpace, NotFound, UsageError
from waypoint.home import Home
from waypoint.kernel import confinement, mounts, overlay
from waypoint.kernel.pool import is_pool
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
    RESOLVE_IN_ROOT,
    openat2,
)
from waypoint.model import BoxOptions, Size

OVERLAY_OPTIONS = "xino=on,index=on,nfs_export=on,redirect_dir=on,volatile"
"""xino: else /proc/locks and inotify name other inodes than stat(2), and CRIU drops file locks in silence.
index and nfs_export: else files cannot be opened by handle, and every inotify user fails to be saved.
redirect_dir: else renaming a folder of the base fails with EXDEV.
volatile: no fsync reaches the disk from inside. A machine that crashes takes the processes with it anyway,
and what comes back is a checkpoint, whose snapshot flushes by itself. Deleting /usr/share/doc (12,000
files): 31 s without, 2.6 s with."""

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
ENGINE_IN_BOX = Path("/dev/waypoint")
KDAT_IN_BOX = Path("/dev/criu.kdat")
_MOVED = "moved.json"
STATE_IN_BOX = Path("/dev/waypoint.state")
"""Part of the snapshot: a checkpoint may find the shell while it writes there."""
INSIDE_IN_BOX = Path("/dev/waypoint.inside")
"""Where the daemon listens to this box alone, and answers: daemon/inside/doors.py."""


@dataclass
class Plan:
    """The operations of native/keeper.c, in order."""

    words: list[str] = field(default_factory=list)

    def add(self, operation: str, *arguments: str | Path | int) -> None:
        self.words += [operation, *(str(argument) for argument in arguments)]

    def encode(self) -> bytes:
        return b"".join(os.fsencode(word) + b"\0" for word in self.words)


@dataclass(frozen=True)
class Layers:
    """How a base is seen in a box, and what of it is not covered by checkpoints."""

    layered: tuple[str, ...]
    read_only: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    other_homes: tuple[str, ...] = ()
    """Where other Waypoints of this machine live: none of a session's business, nor to be held by it."""


def examine_base(base: Path, home: Home) -> Layers:
    """Which mounts below the base are layered like it, shown read-only, or left out."""
    layered, read_only, left_out, other_homes = [], [], [], []
    for mount in mounts.mounts_below(str(base), mounts.mounts()):
        if mount.path == str(home.path) or mount.path.startswith(f"{home.path}/"):
            continue
        inside = "/" + os.path.relpath(mount.path, base)
        if is_pool(Path(mount.path), mount.source):
            if os.path.exists(Home(Path(mount.path).parent).database):
                other_homes.append(os.path.dirname(inside))
        elif mount.fstype in mounts.LAYERED and os.path.isdir(mount.path):
            layered.append(inside)
        elif mount.fstype in mounts.READ_ONLY and os.path.isdir(mount.path):
            read_only.append(inside)
        elif not f"{inside}/".startswith(("/proc/", "/sys/", "/dev/", "/run/")):
            left_out.append((inside, mount.fstype))
    return Layers(tuple(layered), tuple(read_only), tuple(left_out), tuple(other_homes))


def check_options(options: BoxOptions, base: Path) -> None:
    """Refuses what cannot become a box, before anything is made."""
    if not base.is_dir():
        raise NotFound(
            f"the base {base} is no folder",
            hint="give a folder with a root file system, or a name from `waypoint base ls`",
        )
    if not any(os.path.lexists(base / shell) for shell in ("bin/bash", "usr/bin/bash")):
        raise UsageError(
            f"the base {base} has no /bin/bash", hint="a session's shell is bash: install it in the base"
        )
    for bind in options.binds:
        if not os.path.exists(bind.host):
            raise NotFound(f"cannot bind {bind.host}: it does not exist")
        if not bind.box.startswith("/") or os.path.normpath(bind.box) in ("/", "/proc", "/dev", "/sys"):
            raise UsageError(
                f"cannot bind to {bind.box}",
                hint="the path in the box must be absolute, and not /, /proc, /sys or /dev",
            )
    for path in options.hide:
        if not path.startswith("/") or os.path.normpath(path) == "/":
            raise UsageError(f"cannot hide {path}", hint="give an absolute path other than /")


def settled(options: BoxOptions) -> BoxOptions:
    """The options with the links in the host's paths followed, once and for all: a box that is shown a folder
    above must not be able to send the next one elsewhere."""
    binds = (msgspec.structs.replace(bind, host=os.path.realpath(bind.host)) for bind in options.binds)
    return msgspec.structs.replace(options, binds=tuple(binds))


def make_volume(volume: Path, layered: Sequence[str] = ()) -> None:
    """The folders of a fresh, empty volume, with a layer for each of these mounts below the base."""
    for folder, mode in (("upper", 0o755), ("mounts", 0o700), ("shm", 0o1777), ("state", 0o755)):
        (volume / folder).mkdir()
        (volume / folder).chmod(mode)
    for path in layered:
        (volume / "mounts" / quote(path, safe="")).mkdir(mode=0o755)


def _mounted(volume: Path, layers: Layers) -> list[tuple[str, Path, str]]:
    """The mounts below the base that the session was made with, each with its layer and where it is in the
    box, outermost first.

    What the host has mounted since is not among them: its point of mount may not even be there. What it has
    unmounted since is left out, unless the session has changed something in it.
    """
    found = [(unquote(layer.name), layer) for layer in (volume / "mounts").iterdir()]
    moved: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        moved = json.loads((volume / _MOVED).read_text())
    for path, layer in found:
        if path not in layers.layered and any(layer.iterdir()):
            raise MachineError(
                f"{path} is not mounted any more, and the session has changed files in it",
                hint="mount it again",
            )
    there = [(path, layer, moved.get(path, path)) for path, layer in found if path in layers.layered]
    return sorted(there, key=lambda mount: mount[2])


def note_moved_mounts(box: Box) -> None:
    """Writes into a volume which of its layers are elsewhere by now: somebody in the box has renamed a folder
    above. To be called before each snapshot."""
    layers = {layer.name: unquote(layer.name) for layer in (box.volume / "mounts").iterdir()}
    moved = {}
    for mount in mounts.mounts(box.pid) if layers else ():
        for name, path in layers.items():
            is_layer = f"/{box.volume.name}/mounts/{name},workdir=" in mount.super_options
            if is_layer and mount.path != path:
                moved[path] = mount.path
    if moved:
        (box.volume / _MOVED).write_text(json.dumps(moved))
    else:
        (box.volume / _MOVED).unlink(missing_ok=True)


def write_first_files(volume: Path, base: Path, files: Mapping[str, str]) -> None:
    """Files that a new session finds changed from its base (its resolver, its name), in its own layer."""
    for path, text in files.items():
        inside = path.lstrip("/")
        with contextlib.suppress(OSError):
            if not (base / inside).is_symlink() and (base / inside).read_text() == text:
                continue
        _make_parents(volume / "upper", base, Path(inside))
        (volume / "upper" / inside).write_text(text)
        (volume / "upper" / inside).chmod(0o644)


def _make_parents(upper: Path, lower: Path, inside: Path) -> None:
    """The folders above a path in a layer. They cover those below: they have to look like them."""
    for folder in reversed(inside.parents[:-1]):
        here = upper / folder
        if not here.is_dir():
            here.mkdir(mode=0o755)
            if (lower / folder).is_dir():
                about = (lower / folder).stat()
                os.chown(here, about.st_uid, about.st_gid)
                shutil.copystat(lower / folder, here)


def _hidden(options: BoxOptions, base: Path, home: Home, layers: Layers) -> list[str]:
    """What a session must not see: every Waypoint's own folders, and what it was told to hide."""
    ours = [path for path in (home.path, home.run.parent) if path.is_relative_to(base)]
    return [*("/" + os.path.relpath(path, base) for path in ours), *layers.other_homes, *options.hide]


def hidden_paths(options: BoxOptions, base: Path, home: Home) -> list[str]:
    """What a session does not see of its base."""
    return _hidden(options, base, home, examine_base(base, home))


def empty_hidden(volume: Path, base: Path, home: Home, options: BoxOptions) -> None:
    """Empties what must not be seen in the session's own layer, before anything runs in it.

    A mask is mounted over it in every box as well, but a mount belongs to a path: after `mv` of a folder
    above it the next box would have the mask in one place and what it has to hide in another.
    """
    layers = examine_base(base, home)
    root = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in _hidden(options, base, home, layers):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                there = openat2(root, path, os.O_PATH, resolve=RESOLVE_IN_ROOT)
                try:
                    found = os.path.relpath(os.readlink(f"/proc/self/fd/{there}"), base)
                    is_folder = stat.S_ISDIR(os.fstat(there).st_mode)
                finally:
                    os.close(there)
                _empty(volume, base, layers, Path(found), is_folder=is_folder)
    finally:
        os.close(root)


def _empty(volume: Path, base: Path, layers: Layers, inside: Path, *, is_folder: bool) -> None:
    upper, lower = volume / "upper", base
    for mount in layers.layered:  # outermost first
        if inside.is_relative_to(mount.lstrip("/")):
            upper, lower = volume / "mounts" / quote(mount, safe=""), base / mount.lstrip("/")
    inside = (base / inside).relative_to(lower)
    if inside == Path():
        return  # a file system of its own: it is not found again in another place
    upper.mkdir(exist_ok=True)
    _make_parents(upper, lower, inside)
    if is_folder:
        (upper / inside).mkdir(mode=0o755, exist_ok=True)
        os.setxattr(upper / inside, "trusted.overlay.opaque", b"y")
    else:
        (upper / inside).touch(mode=0o644)


def _overlay(plan: Plan, operation: str, lower: str, upper: Path, work: Path, target: str | Path) -> None:
    def escaped(path: str | Path) -> str:
        return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")

    data = f"lowerdir={escaped(lower)},upperdir={escaped(upper)},workdir={escaped(work)},{OVERLAY_OPTIONS}"
    # No device of a base or a layer may be opened: there is no device controller to hold it back.
    plan.add(operation, "overlay", target, "overlay", MS_NODEV, data)


def _work(volume: Path) -> Path:
    return volume / "work-now"


def drop_old_work(volume: Path) -> None:
    """The work folders of earlier boxes, which a snapshot brings along. They may hold an entry for each file
    that was ever deleted, so this is for afterwards, when nobody waits."""
    for old in volume.glob("work-*"):
        if old != _work(volume):
            shutil.rmtree(old, ignore_errors=True)


def _make_work(old: Path, new: Path, upper: Path, lower: Path, open_files: Collection[str]) -> Path:
    """A fresh work folder for one overlay."""
    new.mkdir(mode=0o700)
    overlay.carry_index(old / "index", new / "index", upper, lower, keep=open_files)
    return new


def write_plan(
    home: Home,
    engine: Path,
    box_id: str,
    name: str,
    options: BoxOptions,
    base: Path,
    volume: Path,
    size: Size,
    *,
    kdat: Path | None = None,
    open_files: Collection[str] = (),
) -> Plan:
    """Everything the keeper has to do, in order, to become pid 1 of this box. `open_files`: the names, in
    the index of overlays, of files that the tree has open which is to be restored in it."""
    plan = Plan()
    root = home.run / "root"
    layers = examine_base(base, home)
    now, old = _work(volume), volume / f"work-old-{box_id}"
    with contextlib.suppress(FileNotFoundError):
        now.rename(old)
    now.mkdir(mode=0o700)
    plan.add(
        "unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | (0 if options.net == "host" else CLONE_NEWNET)
    )
    plan.add("fork")
    plan.add("mount", "", "/", "", MS_REC | MS_PRIVATE, "")
    work = _make_work(old / "base", now / "base", volume / "upper", base, open_files)
    _overlay(plan, "mount", str(base), volume / "upper", work, root)
    plan.add("root", root)
    for path, upper, target in _mounted(volume, layers):
        lower = base / path.lstrip("/")
        work = _make_work(old / upper.name, now / upper.name, upper, lower, open_files)
        _overlay(plan, "in-mount", str(lower), upper, work, target)
    for path in layers.read_only:
        plan.add(
            "in-mount", base / path.lstrip("/"), path, "", MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, ""
        )
    for folder in ("/proc", "/sys", "/dev", "/tmp"):
        if not os.path.isdir(base / folder.lstrip("/")):
            plan.add("in-folder", folder, "1777" if folder == "/tmp" else "755")
    safe = MS_NOSUID | MS_NODEV | MS_NOEXEC
    plan.add("in-mount", "proc", "/proc", "proc", safe, "")
    plan.add("in-mount", "sysfs", "/sys", "sysfs", safe | MS_RDONLY, "")
    plan.add("in-mount", "tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=16m")
    for device, mode, major, minor in _DEVICES:
        plan.add("in-node", f"/dev/{device}", f"{stat.S_IFCHR | mode:o}", major, minor)
    for target, link in _DEVICE_LINKS:
        plan.add("in-symlink", target, link)
    for folder in ("/dev/pts", "/dev/shm", *map(str, (ENGINE_IN_BOX, STATE_IN_BOX, INSIDE_IN_BOX))):
        plan.add("in-folder", folder, "755")
    plan.add(
        "in-mount",
        "devpts",
        "/dev/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        "newinstance,ptmxmode=0666,mode=620,gid=5",
    )
    plan.add("in-mount", volume / "shm", "/dev/shm", "", MS_BIND | MS_NOSUID | MS_NODEV, "")
    plan.add("in-mount", volume / "state", STATE_IN_BOX, "", MS_BIND | safe, "")
    plan.add("in-mount", engine, ENGINE_IN_BOX, "", MS_BIND | MS_RDONLY | MS_NOSUID, "")
    make_inside(home, box_id)
    plan.add("in-mount", inside_path(home, box_id), INSIDE_IN_BOX, "", MS_BIND | MS_RDONLY | safe, "")
    if kdat:
        plan.add("in-file", KDAT_IN_BOX)
        plan.add("in-mount", kdat, KDAT_IN_BOX, "", MS_BIND | MS_RDONLY | MS_NOSUID, "")
    for hidden in _hidden(options, base, home, layers):
        plan.add("in-mask", hidden)
    for bind in options.binds:
        if os.path.isdir(bind.host):
            plan.add("in-folder", bind.box, "755")
        else:
            plan.add("in-folder", os.path.dirname(bind.box), "755")
            plan.add("in-file", bind.box)
        flags = MS_BIND | MS_REC | MS_NODEV | (MS_RDONLY if bind.readonly else 0)
        plan.add("in-bind", bind.host, bind.box, flags)
    plan.add("pivot")
    plan.add("hostname", name if base != Path("/") else socket.gethostname())
    if options.net != "host":
        plan.add("loopback")
    plan.add("pids")
    if options.confined:
        for path in confinement.READONLY_PATHS:
            plan.add("in-readonly", path)
        for path in confinement.MASKED_PATHS:
            plan.add("in-mask", path)
        plan.add("capabilities", f"{confinement.available_caps():x}")
        plan.add("seccomp", confinement.seccomp_filter().hex())
    plan.add("terminal", size.rows, size.columns)
    return plan


def _failure(report: str) -> MachineError:
    """What a keeper said when it could not carry out its plan, as an error that helps."""
    _, number, operation, path = report.split(" ", 3)
    reason = os.strerror(int(number))
    if int(number) in (28, 122):
        return NoSpace(
            f"no space left for the box: {operation} {path}",
            hint="free some with `waypoint rm`, or enlarge the pool",
        )
    if operation in ("mount", "in-mount") and int(number) in (19, 22):
        return MissingFeature(
            f"cannot mount {path.strip()}: {reason}", hint="`waypoint doctor` tells what this kernel lacks"
        )
    return MachineError(
        f"cannot build the box: {operation} {path.strip()}: {reason}", hint="`waypoint doctor` may know more"
    )


_own_files: list[tuple[int, int]] = []
"""How many files a program may have open that was started as this one was."""


def allow_many_files() -> None:
    """For a process that holds some ten descriptors of each box. Boxes do not inherit it: there are programs
    that go through all descriptors they may have, or cannot do with large ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _own_files[:] = [(soft, hard)]


class Box:
    """A running box, seen from the daemon. Closing it leaves it running; `kill` ends all that is in it."""

    def __init__(self, box_id: str, pid: int, volume: Path, keeper: Keeper) -> None:
        self.id, self.pid, self.volume, self.keeper = box_id, pid, volume, keeper
        self._pidfd = os.pidfd_open(pid)

    @classmethod
    def build(cls, home: Home, engine: Path, box_id: str, plan: Plan, volume: Path) -> Box:
        """Starts a keeper on this plan and waits until the box stands."""
        home.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home.run / "root").mkdir(exist_ok=True)
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(socket_path(home, box_id)))
            listener.listen(8)
            orders = os.memfd_create("plan")
            undo.callback(os.close, orders)
            os.write(orders, plan.encode())
            reader, writer = os.pipe()
            report = undo.enter_context(os.fdopen(reader))
            try:
                starter = subprocess.Popen(
                    [
                        *(
                            f"waypoint-keeper {home.tag} {box_id}",
                            str(orders),
                            str(listener.fileno()),
                            str(writer),
                        ),
                    ],
                    executable=engine / "bin" / "keeper",
                    pass_fds=(orders, listener.fileno(), writer),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                )
            finally:
                os.close(writer)
            pid, outcome = 0, ""
            for line in report:  # from two processes, in any order
                if line.startswith("pid "):
                    pid = int(line[4:])
                else:
                    outcome = line.strip()
            starter.wait()
            if outcome != "ready":
                socket_path(home, box_id).unlink(missing_ok=True)
                raise _failure(outcome or "failed 0 keeper -")
            if _own_files:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, _own_files[0])
            return cls(box_id, pid, volume, Keeper(socket_path(home, box_id)))

    @classmethod
    def find(cls, home: Home, box_id: str, volume: Path) -> Box | None:
        """The box that an earlier daemon built, if it still stands."""
        pid = keepers(home).get(box_id)
        if not pid:
            return None
        try:
            return cls(box_id, pid, volume, Keeper(socket_path(home, box_id)))
        except OSError:
            return None

    @property
    def alive(self) -> bool:
        """Whether its keeper, and so anything in it, still runs."""
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except OSError:
            return False
        return True

    def hello(self) -> Hello:
        return self.keeper.hello()

    def host_pid(self, pid: int) -> int | None:
        """The host's number of a process of the box."""
        return self.host_pids().get(pid)

    def host_pids(self) -> dict[int, int]:
        """The host's numbers of all processes of the box, by their numbers inside."""
        here = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/pid").st_ino != here:
                    continue
                with open(f"/proc/{entry}/status") as lines:
                    for line in lines:
                        if line.startswith("NSpid:"):
                            found[int(line.split()[-1])] = int(entry)
                            break
        return found

    def open_namespace(self, kind: str) -> int:
        """A descriptor of one of the keeper's namespaces."""
        return os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)

    def signal_end(self) -> None:
        """From here on nothing in it runs any more. `kill` waits until it is gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def kill(self, home: Home) -> None:
        """Ends everything in the box and waits until it is gone. pid 1's death takes all with it."""
        if self._pidfd >= 0:
            self.signal_end()
            _wait_gone(self._pidfd)
            self.close()
        socket_path(home, self.id).unlink(missing_ok=True)

    def close(self) -> None:
        self.keeper.close()
        # The number may be another box's from here on.
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


def _wait_gone(pidfd: int, seconds: float = 20.0) -> None:
    """A pidfd is readable when its process has ended; pid 1 ends after all others of its namespace."""
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(seconds * 1000):
        raise MachineError(
            "a box does not end: one of its processes hangs in the kernel", hint="see `ps` for state D"
        )


def socket_path(home: Home, box_id: str) -> Path:
    return home.run / f"{box_id}.sock"


def inside_path(home: Home, box_id: str) -> Path:
    """The folder through which a box can ask for something."""
    return home.run / f"{box_id}.inside"


def make_inside(home: Home, box_id: str) -> None:
    """That folder, empty. The box sees it read-only: one can connect to a socket there, and read."""
    for folder in (inside_path(home, box_id), inside_path(home, box_id) / "replies"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def drop_inside(home: Home, box_id: str) -> None:
    """When the box is gone."""
    shutil.rmtree(inside_path(home, box_id), ignore_errors=True)


def keepers(home: Home) -> dict[str, int]:
    """The boxes of this home that stand now, by what their keepers are called: box id → host pid."""
    found: dict[str, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")[0].decode(errors="replace").split(" ")
            if len(words) == 3 and words[:2] == ["waypoint-keeper", home.tag] and _is_first(entry):
                found[words[2]] = int(entry)
    return found


def _is_first(pid: str) -> bool:
    """Whether a process is pid 1 of its namespace. In a box anybody may call himself a keeper."""
    with open(f"/proc/{pid}/status") as lines:
        return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in lines)


def end_keeper(home: Home, box_id: str, pid: int) -> None:
    """Ends a box nobody owns: what a daemon left that died while it was building."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _wait_gone(pidfd)
        finally:
            os.close(pidfd)
    socket_path(home, box_id).unlink(missing_ok=True)


def lost_from_dev(box: Box) -> tuple[str, ...]:
    """What somebody has made in /dev, which every box makes anew; one sentence each. (A socket that is in use
    comes back with who uses it.)"""
    ours = {*(name for name, *_ in _DEVICES), *(link.removeprefix("/dev/") for _, link in _DEVICE_LINKS)}
    ours |= {"pts", "shm", "waypoint.sock"}
    ours |= {path.name for path in (ENGINE_IN_BOX, KDAT_IN_BOX, STATE_IN_BOX, INSIDE_IN_BOX)}
    made = sorted(set(os.listdir(f"/proc/{box.pid}/root/dev")) - ours)
    return tuple(f"/dev/{name} is not kept: /dev is made anew in every box" for name in made)


def coverage(options: BoxOptions, base: Path, home: Home) -> tuple[str, ...]:
    """What checkpoints of a session with these options do not hold, one sentence each."""
    layers = examine_base(base, home)
    said = [f"bind mount {bind.box} ({bind.host}) is outside the snapshot" for bind in options.binds]
    said += [f"{path} is read-only: its file system cannot be layered" for path in layers.read_only]
    said += [f"{path} ({fstype}) is left out" for path, fstype in layers.left_out]
    said += [f"{path} is hidden" for path in options.hide]
    if options.net == "host":
        said.append("what it says to the outside is not observed: it uses the host's network")
    return tuple(said)
