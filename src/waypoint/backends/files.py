"""The backend `files`: file state only. It needs no CRIU, no btrfs and no root.

An environment is a root file system (`base`, the host's `/` by default) with a layer of its own on top
(overlayfs), in namespaces of its own. A point is a copy of that layer, so its cost follows what was changed.
Processes are not kept: a restore ends them, says which ran at the point, and starts those again that are
services (`serve`). Everything ends with the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from waypoint import errors
from waypoint.backends.environment import (
    Capabilities,
    Difference,
    Environment,
    Kept,
    Lineage,
    Point,
    Restored,
    RunResult,
    absolute,
    check_name_free,
    checked_count,
    local,
    local_source,
    new_name,
    require,
)
from waypoint.backends.local import (
    COPY_SECONDS,
    PATIENCE_SECONDS,
    Family,
    Services,
    copy,
    differs,
    finish,
    remove,
    take_out,
    user_namespace,
)

_KEEPS: frozenset[Kept] = frozenset({"files"})
_HOLDER = Path(__file__).with_name("holder.sh")
_EXCHANGE = "/.waypoint"
"""Where an environment sees the folder through which files are copied in and out."""
_VARIABLES = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
}


# ---- points of an environment and of those that grew from it ---------------------------------------


@dataclass(frozen=True)
class _Stored:
    """What is known of a point beside its files."""

    services: Mapping[str, str]
    processes: tuple[str, ...]
    """What ran then, apart from the services."""


class _Store(Family):
    """The folder of a family of environments."""

    def __init__(self, above: str) -> None:
        super().__init__()
        os.makedirs(above, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="waypoint-files-", dir=above))
        self.stored: dict[str, _Stored] = {}

    def tree(self, point: Point) -> Path:
        """The files of a point."""
        return self.path / "points" / point.id


class FilesEnvironment(Environment):
    """A root file system with a layer of its own. `serve` starts a program that a restore starts again."""

    backend = "files"

    def __init__(self, store: _Store, base: str, lineage: Lineage, tree_of: Path | None) -> None:
        self.name = new_name("files")
        self.base = base
        self._store, self._lineage = store, lineage
        self._services = Services()
        self._holder: _Holder | None = None
        self._stopped = False
        self._folder = store.path / "environments" / self.name
        store.enter()
        try:
            self._exchange = self._folder / "exchange"
            self._exchange.mkdir(parents=True)
            (self._folder / "root").mkdir()
            if tree_of is None:
                _new_tree(self._folder / "tree")
            else:
                _copy_tree(tree_of, self._folder / "tree")
            self._hold()
        except BaseException:
            self.stop()
            raise

    @classmethod
    def start(
        cls,
        base: str = "/",
        *,
        store: str | os.PathLike[str] | None = None,
        services: Mapping[str, str] | None = None,
        **unknown: Any,
    ) -> Self:
        """`base`: the root file system below it, a folder with bash, cp and mkdir in it. `store`: where
        layers and points are kept (`/var/tmp` if not given). `services`: programs that are started, and that
        a restore starts again, by name."""
        if unknown:
            raise errors.UsageError(f"the backend files has no option {next(iter(unknown))!r}")
        folder = local(base)
        if not os.path.isdir(folder):
            raise errors.NotFound(f"there is no folder {folder} to be the base", path=folder)
        if {",", ":", "\\"} & {*folder, *local(store or "")}:
            raise errors.UsageError("a folder for overlayfs cannot have , : or \\ in its name", path=folder)
        for program in ("unshare", "nsenter", "mount"):
            if shutil.which(program) is None:
                raise errors.MissingFeature(
                    f"the backend files needs {program}", hint="install the package util-linux"
                )
        environment = cls(_Store(local(store or "/var/tmp")), folder, Lineage(), None)
        try:
            for name, command in (services or {}).items():
                environment.serve(name, command)
        except BaseException:
            environment.stop()
            raise
        return environment

    @property
    def capabilities(self) -> Capabilities:
        notes = [
            "processes end at a restore and are not in forks; services are started again",
            "the network is this machine's",
            "mounts below the top-level folders of the base are not seen",
        ]
        if self._holder and self._holder.read_only:
            notes.append(
                f"not writable, since another mount is below it: {', '.join(self._holder.read_only)}"
            )
        if os.geteuid():
            notes.append("without root there is one user inside: its files belong to the caller")
        return Capabilities(in_place=True, live_forks=True, isolated=True, notes=tuple(notes))

    def park(self) -> Point:
        point = self.checkpoint()
        self._release()
        return point

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._release()
            remove(self._folder)
            if self._store.leave():
                remove(self._store.path)

    # ---- commands, services and files --------------------------------------------------------

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> RunResult:
        holder = self._held()
        folder = absolute(cwd) if cwd is not None else "/"
        if not os.path.isdir(holder.see(folder)):
            raise errors.NotFound(f"there is no folder {folder} in {self.name}", path=folder)
        words = ["/bin/bash", "-c", 'cd -- "$1" && exec /bin/bash -c "$2"', "bash", folder, command]
        return finish(holder.enter(words), command, timeout, {**_VARIABLES, **(env or {})}, stdin)

    def serve(self, name: str, command: str) -> None:
        """Starts a program in the background that belongs to the environment: a point notes that it runs, and
        a restore or fork of the point starts it again."""
        self._services.start(name, command, self.run)

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        place, path = local_source(source), absolute(target)
        with self._exchanged() as (outside, inside):
            copy(place, outside)
            self._copy_inside(inside, path, from_folder=os.path.isdir(place) and not os.path.islink(place))

    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        path, place = absolute(source), local(target)
        with self._exchanged() as (outside, inside):
            if not self.run(f"[ -e {shlex.quote(path)} ] || [ -L {shlex.quote(path)} ]").ok:
                raise errors.NotFound(f"cannot copy {path} out of {self.name}: it does not exist", path=path)
            self.run(f"cp -a -- {shlex.quote(path)} {inside}", timeout=COPY_SECONDS).check()
            take_out(outside, place)

    def _copy_inside(self, source: str, target: str, *, from_folder: bool) -> None:
        above, there = shlex.quote(os.path.dirname(target)), shlex.quote(target)
        if from_folder:
            line = f"mkdir -p -- {there} && cp -a -- {source}/. {there}"
        else:
            line = f"mkdir -p -- {above} && cp -a --remove-destination -T -- {source} {there}"
        result = self.run(line, timeout=COPY_SECONDS)
        if not result.ok:
            raise errors.UsageError(
                f"cannot copy to {target} of {self.name}", hint=result.output.strip(), path=target
            )

    @contextlib.contextmanager
    def _exchanged(self) -> Iterator[tuple[Path, str]]:
        """A free place in the folder that both sides see: as this machine and as the environment names it."""
        name = new_name("copy")
        place = self._exchange / name
        try:
            yield place, f"{_EXCHANGE}/{name}"
        finally:
            remove(place)

    # ---- points ------------------------------------------------------------------------------

    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        require(self.backend, _KEEPS, needs)
        check_name_free(name, self._lineage.points)
        holder = self._held()
        services = self._services.running(self.run)
        point = Point(
            id=new_name("p"), environment=self.name, name=name, parent=self._lineage.head, keeps=_KEEPS
        )
        with holder.still() as processes:
            _copy_tree(self._folder / "tree", self._store.tree(point))
        known = {self._services.pids[service] for service in services}
        others = tuple(one.command for one in processes if one.session not in known)
        self._store.stored[point.id] = _Stored(services, others)
        return self._lineage.add(point)

    def points(self) -> list[Point]:
        return [*self._lineage.points]

    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        found = self._lineage.find(point)
        require(f"the point {found.name or found.id}", found.keeps, needs)
        fresh = self._folder / "fresh"
        remove(fresh)
        _copy_tree(self._store.tree(found), fresh)
        self._release()
        old = self._folder / "tree"
        remove(old)
        fresh.rename(old)
        self._hold()
        self._lineage.head = found.id
        return replace(self._start_again(found), point=found)

    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        checked_count(n)
        found = self.checkpoint() if point is None else self._lineage.find(point)
        forks: list[Self] = []
        try:
            for _ in range(n):
                fork = type(self)(self._store, self.base, self._lineage.until(found), self._store.tree(found))
                forks.append(fork)
                fork._start_again(found)
        except BaseException:
            for fork in forks:
                fork.stop()
            raise
        return forks

    def _start_again(self, point: Point) -> Restored:
        """Starts the services of a point, and says what else ran then."""
        stored = self._store.stored[point.id]
        self._services = Services()
        for name, command in stored.services.items():
            self.serve(name, command)
        lost = tuple(f"a process that ran at the point is not there: {one}" for one in stored.processes)
        return Restored(point, lost, tuple(stored.services))

    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        before = _View(self.base, self._store.tree(self._lineage.find(old)))
        after = _View(
            self.base, self._folder / "tree" if new is None else self._store.tree(self._lineage.find(new))
        )
        comparison = _Comparison(before, after)
        comparison.folder("")
        return Difference(
            tuple(sorted(comparison.added)),
            tuple(sorted(comparison.changed)),
            tuple(sorted(comparison.removed)),
        )

    # ---- its processes -----------------------------------------------------------------------

    def _held(self) -> _Holder:
        if self._holder is None:
            raise errors.SessionDead(
                f"{self.name} does not run", hint="`restore` brings it back from its last point"
            )
        return self._holder

    def _hold(self) -> None:
        self._holder = _Holder(self._folder, self.base)

    def _release(self) -> None:
        if self._holder is not None:
            self._holder.end()
            self._holder = None


@dataclass(frozen=True)
class _Process:
    """A process of an environment."""

    session: int
    """The first process of its session, as it is numbered inside: for a service its own number."""
    command: str


_SESSION = re.compile(r"^NSsid:.*\t(\d+)$", re.MULTILINE)


class _Holder:
    """The namespaces of an environment, held by its first process."""

    def __init__(self, folder: Path, base: str) -> None:
        words = [
            "unshare",
            *user_namespace(),
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--propagation",
            "private",
        ]
        options = "userxattr,index=off" if os.geteuid() else "index=off"
        tree = folder / "tree"
        (tree / "work").mkdir(exist_ok=True)
        words += [
            "--",
            "bash",
            "-c",
            _HOLDER.read_text(),
            "holder",
            str(tree),
            base,
            str(folder / "root"),
            str(folder / "exchange"),
            options,
        ]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.read_only: list[str] = []
        try:
            self._await()
            self._pid = int(
                Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]
            )
        except BaseException:
            self.end()
            raise

    def _await(self) -> None:
        """Until the root is built."""
        assert self._process.stdout
        assert self._process.stderr
        limit = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        limit.start()
        try:
            for raw in self._process.stdout:
                line = raw.decode(errors="replace").strip()
                if line == "ready":
                    return
                self.read_only.append("/" + line.removeprefix("read-only "))
        finally:
            limit.cancel()
        said = self._process.stderr.read().decode(errors="replace").strip()
        raise errors.MissingFeature(
            f"the namespaces of an environment could not be made: {said or 'it took too long'}",
            hint="the backend files needs root, or user namespaces that every user may make and overlayfs "
            "in them (kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1)",
        )

    def enter(self, words: Sequence[str]) -> list[str]:
        """The command line that runs these words inside."""
        user = ["--user", "--preserve-credentials"] if user_namespace() else []
        return ["nsenter", f"--target={self._pid}", *user, "--mount", "--pid", "--", *words]

    def see(self, path: str) -> str:
        """A path of the environment as this machine sees it. Only for looking whether something is there: a
        link in it leads to a place of this machine."""
        return f"/proc/{self._pid}/root{path}"

    @contextlib.contextmanager
    def still(self) -> Iterator[list[_Process]]:
        """All processes stand still in the block, so that the files are those of one moment."""
        everyone = ["/bin/bash", "-c", 'kill "$1" -1 2>/dev/null || :', "bash"]
        running = list(self._processes())
        if not running:
            yield running
            return
        subprocess.run(self.enter([*everyone, "-STOP"]), check=False, timeout=PATIENCE_SECONDS)
        try:
            yield running
        finally:
            subprocess.run(self.enter([*everyone, "-CONT"]), check=False, timeout=PATIENCE_SECONDS)

    def _processes(self) -> Iterator[_Process]:
        """All processes inside but the first."""
        mine = os.readlink(f"/proc/{self._pid}/ns/pid")
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == self._pid:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns" / "pid") == mine:
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").strip()
                    session = _SESSION.search((process / "status").read_text())
                    if words and session:
                        yield _Process(int(session[1]), words.decode(errors="replace"))

    def end(self) -> None:
        """Ends all processes of the environment. Its mounts go with them."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            pipe.close()


# ---- layers --------------------------------------------------------------------------------------


def _new_tree(tree: Path) -> None:
    for name in ("top", "upper"):
        (tree / name).mkdir(parents=True)
    (tree / "top").chmod(0o755)


def _copy_tree(source: Path, target: Path) -> None:
    """A copy of a layer. What overlayfs uses for itself is left behind."""
    target.mkdir(parents=True)
    for name in ("top", "upper"):
        copy(source / name, target / name)


# ---- comparing -----------------------------------------------------------------------------------


class _View:
    """The files of an environment: a base with a layer on top."""

    def __init__(self, base: str, tree: Path) -> None:
        self._base, self._tree = base, tree
        self._layered = frozenset(os.listdir(tree / "upper"))

    def own(self, path: str) -> str:
        """Where the layer has a path, if it does."""
        top, _, rest = path.partition("/")
        where = self._tree / "upper" / path if top in self._layered else self._tree / "top" / path
        return str(where if rest or top in self._layered else self._tree / "top" / path)

    def look(self, path: str) -> str | None:
        """Where the file is that the environment sees; None when it sees none."""
        own = self.own(path)
        status = _status(own)
        if status is not None:
            return None if _is_whiteout(status) else own
        below = os.path.join(self._base, path)
        return below if self.shows_base(os.path.dirname(path)) and os.path.lexists(below) else None

    def shows_base(self, folder: str) -> bool:
        """Whether a folder shows what the base has there."""
        parts = folder.split("/") if folder else []
        if not parts or parts[0] not in self._layered:
            return False
        for count in range(1, len(parts) + 1):
            own = self.own("/".join(parts[:count]))
            status = _status(own)
            if status is None:
                return True
            if not stat.S_ISDIR(status.st_mode) or _is_opaque(own):
                return False
        return True

    def names(self, folder: str) -> set[str]:
        """What the layer has in a folder."""
        try:
            return set(os.listdir(self.own(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def base_names(self, folder: str) -> set[str]:
        """What the base has there."""
        try:
            return set(os.listdir(os.path.join(self._base, folder)))
        except (FileNotFoundError, NotADirectoryError):
            return set()


class _Comparison:
    """Two views of one base, compared folder by folder. Only what one of the layers has can differ."""

    def __init__(self, before: _View, after: _View) -> None:
        self._before, self._after = before, after
        self.added: list[str] = []
        self.changed: list[str] = []
        self.removed: list[str] = []

    def folder(self, path: str) -> None:
        """Compares what is in a folder that both have."""
        names = self._before.names(path) | self._after.names(path)
        if self._before.shows_base(path) != self._after.shows_base(path):
            names |= self._before.base_names(path)
        for name in names:
            self._entry(f"{path}/{name}".lstrip("/"))

    def _entry(self, path: str) -> None:
        if path in _NOT_STATE:
            return
        before, after = self._before.look(path), self._after.look(path)
        if before is None or after is None:
            if before is not after:
                (self.added if before is None else self.removed).append(f"/{path}")
            return
        old, new = os.lstat(before), os.lstat(after)
        if before != after and differs(before, old, after, new):
            self.changed.append(f"/{path}")
        if stat.S_ISDIR(old.st_mode) and stat.S_ISDIR(new.st_mode):
            self.folder(path)


_NOT_STATE = frozenset({"dev", "proc", "sys", "run", ".waypoint"})


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(path: str) -> bool:
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
    return False
