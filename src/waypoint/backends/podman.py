"""The backend `podman`: a container, for people who have containers.

A point is an image that is committed; with `memory=True` it is a checkpoint of the container (podman's own,
which needs CRIU), so that its programs go on. An image keeps files only: programs that have to run again
after a restore are started with `serve`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from waypoint import errors
from waypoint.backends.environment import (
    ENDED_BY_TIMEOUT,
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
    compare,
    finish,
    take_out,
)

DEFAULT_IMAGE = "debian:stable-slim"
_FILES: frozenset[Kept] = frozenset({"files"})
_RUNNING: frozenset[Kept] = frozenset({"files", "processes", "memory"})
_KILLED = 137
_FIRST = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
"""What a container runs first. It waits, and collects processes that have lost their parent."""


class _Shared(Family):
    """What the containers of one family have in common: how podman is called, and their points."""

    def __init__(self, podman: Sequence[str], options: Sequence[str], *, memory: bool) -> None:
        super().__init__()
        self.podman, self.options, self.memory = tuple(podman), tuple(options), memory
        self.repository = f"localhost/{new_name('waypoint')}"
        self.folder = tempfile.TemporaryDirectory(prefix="waypoint-podman-", dir="/var/tmp")
        self.services: dict[str, dict[str, str]] = {}
        self.images: list[str] = []
        """All that were made, and belong to nothing else."""

    def image(self, point: Point) -> str:
        """The image of a point."""
        return f"{self.repository}:{point.id}"

    def export(self, point: Point) -> Path:
        """The checkpoint of a point."""
        return Path(self.folder.name) / f"{point.id}.tar"

    def call(self, *words: str, doing: str, seconds: float = COPY_SECONDS) -> str:
        """Runs podman. MachineError with what it says when it fails."""
        done = subprocess.run(
            [*self.podman, *words],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise errors.MachineError(
                f"podman cannot {doing}: {done.stderr.strip() or done.stdout.strip()}",
                hint="`podman info` shows what it has",
            )
        return done.stdout.strip()

    def quietly(self, *words: str) -> None:
        """Runs podman, for what may be gone already."""
        subprocess.run([*self.podman, *words], capture_output=True, timeout=COPY_SECONDS, check=False)

    def end(self) -> None:
        """Nothing is left of the points."""
        if self.images:
            self.quietly("image", "rm", "--force", "--ignore", *self.images)
        self.folder.cleanup()


class PodmanEnvironment(Environment):
    """A container. `serve` starts a program that a restore starts again."""

    backend = "podman"

    def __init__(self, shared: _Shared, lineage: Lineage) -> None:
        self.name = new_name("waypoint")
        self._shared, self._lineage = shared, lineage
        self._services = Services()
        self._runs = self._stopped = False
        shared.enter()

    @classmethod
    def start(
        cls,
        image: str | None = None,
        *,
        base: str | None = None,
        podman: Sequence[str] = ("podman",),
        options: Sequence[str] = (),
        memory: bool = False,
        services: Mapping[str, str] | None = None,
        **unknown: Any,
    ) -> Self:
        """`image`: the container's (debian:stable-slim if not given), or `base`: a folder with a root file
        system. It needs bash, sleep and timeout. `options`: words for `podman run`, `podman`: how podman
        itself is called (`("podman", "--runtime", "runc")`). `memory`: points hold running programs;
        MissingFeature when podman cannot do that here. `services`: as for the backend `files`."""
        if unknown:
            raise errors.UsageError(f"the backend podman has no option {next(iter(unknown))!r}")
        if image is not None and base is not None:
            raise errors.UsageError("a container has an image or a base, not both", hint="give one of them")
        if shutil.which(podman[0]) is None:
            raise errors.MissingFeature(
                f"{podman[0]} is not installed",
                hint="`apt-get install podman crun` installs it on Debian; the backend `files` needs none",
            )
        shared = _Shared(podman, options, memory=memory)
        environment = cls(shared, Lineage())
        try:
            if base is not None:
                image = environment._import(local(base))
            environment._run_image(image or DEFAULT_IMAGE)
            if memory:
                environment._try_memory()
            for name, command in (services or {}).items():
                environment.serve(name, command)
        except BaseException:
            environment.stop()
            raise
        return environment

    def _import(self, folder: str) -> str:
        if not os.path.isdir(folder):
            raise errors.NotFound(f"there is no folder {folder} to be the base", path=folder)
        image = f"{self._shared.repository}:base"
        with tempfile.NamedTemporaryFile(dir=self._shared.folder.name, suffix=".tar") as file:
            subprocess.run(
                ["tar", "--create", f"--file={file.name}", f"--directory={folder}", "."],
                check=True,
                timeout=COPY_SECONDS,
                capture_output=True,
            )
            self._shared.call("import", "--quiet", file.name, image, doing=f"import {folder}")
        self._shared.images.append(image)
        return image

    def _run_image(self, image: str) -> None:
        words = (
            "run",
            "--detach",
            "--name",
            self.name,
            *self._shared.options,
            image,
            "/bin/bash",
            "-c",
            _FIRST,
        )
        self._shared.call(*words, doing=f"start a container of {image}")
        self._runs = True

    def _try_memory(self) -> None:
        """Takes a checkpoint, to find out whether that works here."""
        trial = Path(self._shared.folder.name) / "trial.tar"
        try:
            self._dump(trial)
        except errors.MachineError as error:
            raise errors.MissingFeature(
                f"podman cannot save running programs here: {error.message}",
                hint="it needs CRIU 3.11 or later; without `memory` points hold files",
            ) from error
        finally:
            trial.unlink(missing_ok=True)

    @property
    def capabilities(self) -> Capabilities:
        memory = self._shared.memory
        notes = (
            () if memory else ("processes end at a restore and are not in forks; services are started again",)
        )
        return Capabilities(
            processes=memory, memory=memory, in_place=True, live_forks=True, isolated=True, notes=notes
        )

    def park(self) -> Point:
        point = self.checkpoint()
        self._end()
        return point

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._end()
            if self._shared.leave():
                self._shared.end()

    def _end(self) -> None:
        self._shared.quietly("rm", "--force", "--time", "0", self.name)
        self._runs = False

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
        self._check_running()
        folder = absolute(cwd) if cwd is not None else "/"
        if cwd is not None and not self._holds(f"[ -d {shlex.quote(folder)} ]"):
            raise errors.NotFound(f"there is no folder {folder} in {self.name}", path=folder)
        words = [*self._shared.podman, "exec", "--interactive", "--workdir", folder]
        words += [f"--env={name}={value}" for name, value in (env or {}).items()]
        words.append(self.name)
        # The end of `podman exec` does not end what it has started: that is done inside.
        words += ["timeout", "--signal=KILL", f"{timeout:g}"] if timeout is not None else []
        words += ["/bin/bash", "-c", command]
        result = finish(words, command, None if timeout is None else timeout + PATIENCE_SECONDS, None, stdin)
        if timeout is not None and result.exit_code == _KILLED and result.seconds >= timeout:
            return RunResult(command, ENDED_BY_TIMEOUT, result.output, result.seconds, timed_out=True)
        return result

    def _holds(self, condition: str) -> bool:
        words = [*self._shared.podman, "exec", self.name, "/bin/bash", "-c", condition]
        return finish(words, condition, PATIENCE_SECONDS, None, None).ok

    def _check_running(self) -> None:
        if not self._runs:
            raise errors.SessionDead(
                f"{self.name} does not run", hint="`restore` brings it back from its last point"
            )

    def serve(self, name: str, command: str) -> None:
        """Starts a program in the background that belongs to the environment: a point notes that it runs, and
        a restore or fork of the point starts it again, unless the point holds running programs."""
        self._services.start(name, command, self.run)

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        self._check_running()
        place, path = local_source(source), absolute(target)
        is_folder = os.path.isdir(place) and not os.path.islink(place)
        if not is_folder and self._holds(f"[ -d {shlex.quote(path)} ]"):
            raise errors.UsageError(
                f"cannot copy a file to {path}: it is a folder", hint="name the file", path=path
            )
        above = path if is_folder else os.path.dirname(path)
        self.run(f"mkdir -p -- {shlex.quote(above)}").check()
        self._shared.call(
            "cp", f"{place}/." if is_folder else place, f"{self.name}:{path}", doing=f"copy to {path}"
        )

    def get(self, source: str, target: str | os.PathLike[str]) -> None:
        self._check_running()
        path, place = absolute(source), local(target)
        there = shlex.quote(path)
        if not self._holds(f"[ -e {there} ] || [ -L {there} ]"):
            raise errors.NotFound(f"cannot copy {path} out of {self.name}: it does not exist", path=path)
        with tempfile.TemporaryDirectory(dir=self._shared.folder.name) as folder:
            staged = Path(folder) / "copy"
            self._shared.call("cp", f"{self.name}:{path}", str(staged), doing=f"copy {path}")
            take_out(staged, place)

    # ---- points ------------------------------------------------------------------------------

    def checkpoint(self, name: str | None = None, *, needs: Collection[Kept] = ()) -> Point:
        keeps = _RUNNING if self._shared.memory else _FILES
        require(self.backend, keeps, needs)
        check_name_free(name, self._lineage.points)
        self._check_running()
        point = Point(
            id=new_name("p"), environment=self.name, name=name, parent=self._lineage.head, keeps=keeps
        )
        self._shared.services[point.id] = self._services.running(self.run)
        if self._shared.memory:
            self._dump(self._shared.export(point))
        image = self._shared.image(point)
        self._shared.call("commit", "--quiet", "--pause", self.name, image, doing="commit the container")
        self._shared.images.append(image)
        return self._lineage.add(point)

    def _dump(self, file: Path) -> None:
        words = (
            "container",
            "checkpoint",
            "--leave-running",
            "--tcp-established",
            "--export",
            str(file),
            self.name,
        )
        self._shared.call(*words, doing="checkpoint the container")

    def points(self) -> list[Point]:
        return [*self._lineage.points]

    def restore(self, point: Point | str | None = None, *, needs: Collection[Kept] = ()) -> Restored:
        found = self._lineage.find(point)
        require(f"the point {found.name or found.id}", found.keeps, needs)
        self._end()
        self._lineage.head = found.id
        return self._bring_up(found)

    def fork(self, point: Point | str | None = None, n: int = 1) -> list[Self]:
        checked_count(n)
        found = self.checkpoint() if point is None else self._lineage.find(point)
        forks: list[Self] = []
        try:
            for _ in range(n):
                fork = type(self)(self._shared, self._lineage.until(found))
                forks.append(fork)
                fork._bring_up(found)
        except BaseException:
            for fork in forks:
                fork.stop()
            raise
        return forks

    def _bring_up(self, point: Point) -> Restored:
        services = self._shared.services[point.id]
        self._services = Services()
        if "memory" in point.keeps:
            words = ("container", "restore", "--tcp-established", "--import", str(self._shared.export(point)))
            self._shared.call(*words, "--name", self.name, doing="restore the container")
            self._runs = True
            self._services.commands.update(services)
            return Restored(point)
        self._run_image(self._shared.image(point))
        for name, command in services.items():
            self.serve(name, command)
        return Restored(point, ("processes that ran at the point are not there",), tuple(services))

    def diff(self, old: Point | str | None = None, new: Point | str | None = None) -> Difference:
        with self._mounted(self._lineage.find(old)) as before:
            if new is None:
                self._check_running()
                mounted = self._shared.call("mount", self.name, doing="mount the container")
                try:
                    return compare(before, Path(mounted))
                finally:
                    self._shared.quietly("umount", self.name)
            with self._mounted(self._lineage.find(new)) as after:
                return compare(before, after)

    @contextlib.contextmanager
    def _mounted(self, point: Point) -> Iterator[Path]:
        if os.geteuid():
            raise errors.NotRoot(
                "podman mounts an image only for root", hint="run it as root to compare points"
            )
        image = self._shared.image(point)
        place = self._shared.call("image", "mount", image, doing=f"mount {image}")
        try:
            yield Path(place)
        finally:
            self._shared.quietly("image", "unmount", image)
