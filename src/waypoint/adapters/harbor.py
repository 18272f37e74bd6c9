"""An environment of Harbor: each trial has a session of its own.

    harbor run -p TASK -a oracle --env waypoint.adapters.harbor:WaypointEnvironment --ek base=python-3.12

The files of a task's environment are those of `base=` (the name or folder of a base), or else of an imported
base that has the name of the task's image, or else of its Dockerfile, which is carried out once and kept as a
base. `environment.session` is the SDK's object: an agent reaches the points of its machine with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waypoint.adapters import versions

versions.require("harbor", oldest="0.24", below="0.26", extra="harbor")

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import (
    COMPOSE_FILE_NAME,
    DOCKERFILE_NAME,
    require_agent_environment_definition,
)
from harbor.models.trial.config import ResourceMode

import waypoint.aio
from waypoint import errors
from waypoint.adapters import files, programs, settings
from waypoint.api.hints import Do, Hint

PREFIX = "harbor-"
"""How the names of sessions begin, and of bases that were made of Dockerfiles."""
_MOST_WRITTEN_BYTES = 64 << 20
"""Larger files are copied by the daemon."""


class WaypointEnvironment(BaseEnvironment):
    """A session as an environment. `base`, `user`: as for `waypoint.session`; the network, processors and
    memory are those of the task."""

    def __init__(self, *args: Any, base: str | None = None, user: str | None = None, **options: Any) -> None:
        self._base, self._user = base, user  # what follows looks at them
        self._session: waypoint.aio.Session | None = None
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        return "waypoint"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @classmethod
    def preflight(cls) -> None:
        """SystemExit when this machine cannot run sessions."""
        try:
            waypoint.Client().daemon.ping()
        except errors.WaypointError as error:
            raise SystemExit(f"Waypoint cannot run here: {error.message} {error.hint}".strip()) from error

    def _validate_definition(self) -> None:
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ValueError("a session is one machine: tasks with a docker-compose.yaml are not supported")
        if self._base is None:
            require_agent_environment_definition(
                self.environment_dir, docker_image=self.task_env_config.docker_image
            )

    # ---- its life ----------------------------------------------------------------------------

    @property
    def session(self) -> waypoint.aio.Session:
        """The SDK's object: `checkpoint`, `restore`, `fork`, …"""
        if self._session is None:
            raise RuntimeError("the environment has not been started")
        return self._session

    async def start(self, force_build: bool) -> None:
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        config = settings.SessionConfig(
            base=await self._base_of_task(force_build=force_build),
            net="none" if self._network_disabled else "nat",
            user=self._user,
            cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
            memory_bytes=None if memory is None else memory << 20,
        )
        with _as_harbor_expects("the session"):
            self._session = await config.open_async(PREFIX)
        try:
            if self.task_env_config.workdir:
                user = None if self.default_user is None else str(self.default_user)
                await programs.make_folder_async(self._session, self.task_env_config.workdir, user)
            made = await self.ensure_dirs(self._mount_targets(writable_only=True))
            if made is not None and made.return_code:
                raise RuntimeError(f"the folders for logs cannot be made: {made.stderr}")
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def _base_of_task(self, *, force_build: bool) -> str:
        if self._base is not None:
            return self._base
        image, bases = self.task_env_config.docker_image, waypoint.aio.Client().bases
        known = {base.name for base in await bases.list()}
        dockerfile = self.environment_dir / DOCKERFILE_NAME
        if image and not (force_build and dockerfile.exists()):
            name = re.sub(r"[^a-z0-9.-]+", "-", image.lower())
            if name in known:
                return name
            if not dockerfile.exists():
                importing = Hint(Do("base_import", "file", name=name), " imports it")
                raise SandboxBuildFailedError(
                    f"no base has the name {name!r}, of the task's image {image}: {importing}; "
                    "the environment's argument `base` names another"
                )
        name = f"{PREFIX}{self.environment_id[:12]}"
        if name not in known or force_build:
            try:
                await bases.import_(name, dockerfile)
            except errors.AlreadyExists:
                return name  # by another trial, meanwhile
            except errors.WaypointError as error:
                message = f"{dockerfile} cannot be carried out: {error.message} {error.hint}".strip()
                raise SandboxBuildFailedError(message) from error
        return name

    async def stop(self, delete: bool) -> None:
        """Ends it, and with `delete` its points; else its last state is a point, to be restored."""
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(errors.NotFound):
            if delete:
                await session.remove()
            else:
                point = await session.park()
                self.logger.info("session %s is parked at point %s", session.name, point.id)

    async def attach(self) -> None:
        os.execvp("waypoint", ["waypoint", "shell", self.session.name])

    # ---- commands ----------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        who = self._resolve_user(user)
        with _as_harbor_expects(command):
            ended = await programs.run_async(
                self.session,
                ["bash", "-c", command],
                cwd=cwd or self.task_env_config.workdir,
                env=self._merge_env(env) or {},
                user=None if who is None else str(who),
                timeout=timeout_sec,
            )
            if isinstance(ended.refusal, errors.NotFound):
                await self.session.info  # NotFound if it is the session that is not there
        if ended.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        stdout, stderr = (bytes(stream).decode(errors="replace") for stream in (ended.stdout, ended.stderr))
        if callback := self._output_callback():
            await callback(stdout, "stdout")
            await callback(stderr, "stderr")
        return ExecResult(stdout=stdout, stderr=stderr, return_code=ended.exit_code)

    # ---- files -------------------------------------------------------------------------------

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        content, mode = await asyncio.to_thread(_content, Path(source_path))
        with _as_harbor_expects(target_path):
            if content is None:
                await self.session.copy_in(source_path, target_path, follow=True)
            else:
                await self.session.write_file(self._absolute(target_path), content, mode=mode)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        target = self._absolute(target_dir)
        with _as_harbor_expects(target_dir):
            await programs.make_folder_async(self.session, target)
            await self.session.copy_in(f"{source_dir}/.", target)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        with _as_harbor_expects(source_path):
            content = await self.session.read_file(self._absolute(source_path))
        await asyncio.to_thread(Path(target_path).write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        # Harbor unpacks it with its own checks: no links out of the folder, no devices.
        await self.download_dir_with_exclusions(source_dir=source_dir, target_dir=target_dir, exclude=[])

    def _absolute(self, path: str) -> str:
        return os.path.join(self.task_env_config.workdir or "/", path)


def _content(path: Path) -> tuple[bytes | None, int]:
    """A file's bytes, None for a large one, and its mode."""
    found = path.stat()
    return (None if found.st_size > _MOST_WRITTEN_BYTES else path.read_bytes()), stat.S_IMODE(found.st_mode)


@contextlib.contextmanager
def _as_harbor_expects(what: str) -> Iterator[None]:
    """Errors of the SDK as those that Harbor knows: FileNotFoundError and the like, else RuntimeError."""
    try:
        yield
    except errors.WaypointError as error:
        message = f"{error.message} {error.hint}".strip()
        raise files.os_error(error, what) or RuntimeError(message) from error
