"""A sandbox of Inspect AI: each sample has a session of its own.

    Task(..., sandbox="waypoint")
    Task(..., sandbox=("waypoint", "python-3.12"))                     # over an imported base
    Task(..., sandbox=SandboxEnvironmentSpec("waypoint", WaypointConfig(net="none", user="agent")))

Commands are programs beside the shell of the session, as Inspect expects of `exec`. They are an agent's: the
policy of the home applies to them, and a command that needs approval is refused, since no person is there.
The points of a session (`WaypointSandbox.session`) hold the whole machine.

    Task(..., sandbox="waypoint", **whole_machine())

takes a point with each checkpoint of Inspect, and a sample that is resumed goes on at that point: with its
processes, not with the files of one folder only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal, overload

from waypoint.adapters import versions

versions.require("inspect-ai", oldest="0.3.285", below="0.4", extra="inspect")

from inspect_ai.hooks import Hooks, SampleEnd, hooks
from inspect_ai.solver import TaskState
from inspect_ai.util import (
    CheckpointConfig,
    ExecResult,
    OutputLimitExceededError,
    ResumeReport,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandbox,
    sandboxenv,
)
from pydantic import BaseModel

import waypoint.aio
from waypoint import errors, model
from waypoint.adapters import files, programs

PREFIX = "inspect-"
"""How the names of sessions begin; `inspect sandbox cleanup waypoint` removes these."""
_FOLDER = "/workspace"
_DEFAULT = "default"
"""The name of a sample's only sandbox."""
_STORE_KEY = "waypoint"
"""Where a sample's store has the session and the point of its last checkpoint."""
_NOT_PERMITTED, _NOT_FOUND = 126, 127
_HELPER_SECONDS = 60.0
_MAY_READ = '[ ! -e "$1" ] || [ -r "$1" ]'
_MAY_WRITE = 'p=$1; until [ -e "$p" ]; do p=${p%/*}; p=${p:-/}; done; [ -w "$p" ]'
"""What a shell of the session's user says of a path: for a file that is missing, of the folder above it."""


class WaypointConfig(BaseModel, frozen=True):
    """What a sample's session is made of, as for `waypoint.session`."""

    base: str = "/"
    net: model.Net = "nat"
    user: str | None = None
    folder: str = _FOLDER
    """The working folder, where relative paths begin. It is made if it is missing."""
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None


@sandboxenv(name="waypoint")
class WaypointSandbox(SandboxEnvironment):
    """A session as a sandbox. `session` is the SDK's object for it: `checkpoint`, `restore`, `fork`, …"""

    def __init__(self, session: waypoint.aio.Session, config: WaypointConfig) -> None:
        super().__init__()
        self.session, self._config = session, config
        self.resumable = False
        """Whether a sample may be resumed at one of its points, so that these have to stay."""

    # ---- the life of a sample ----------------------------------------------------------------

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """One session. `config`: a WaypointConfig, or the name or folder of a base."""
        if isinstance(config, str):
            config = WaypointConfig(base=config)
        wanted = config if isinstance(config, WaypointConfig) else WaypointConfig()
        session = await waypoint.aio.session(
            f"{PREFIX}{secrets.token_hex(6)}",
            base=wanted.base,
            net=wanted.net,
            user=wanted.user,
            memory_bytes=wanted.memory_bytes,
            cpus=wanted.cpus,
            pids=wanted.pids,
            actor="agent",
        )
        try:
            await programs.make_folder_async(session, wanted.folder, wanted.user)
        except BaseException:
            await session.remove()
            raise
        return {"default": cls(session, wanted)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Removes the session with its points; one that a sample may be resumed in is only stopped."""
        for environment in environments.values():
            own = environment.as_type(cls)
            with contextlib.suppress(errors.NotFound):
                if own.resumable:
                    await own.session.stop(discard=True)
                else:
                    await own.session.remove()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes the session of this name, or all that samples have left."""
        for session in await waypoint.aio.sessions():
            if session.name == id or (id is None and session.name.startswith(PREFIX)):
                await session.remove()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return WaypointConfig(**config)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets to it. `user`: the terminal belongs to the session's own one."""
        return SandboxConnection(
            type="waypoint", command=f"waypoint shell {self.session.name}", container=self.session.name
        )

    def default_polling_interval(self) -> float:
        return 0.2

    # ---- commands ----------------------------------------------------------------------------

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a program. One that took too long has ended, and is not tried again: it may have done a part
        of its work. (Inspect retries for the sake of transports that lose requests.)"""
        sizes = {"stdout": 0, "stderr": 0}
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE

        def count(stream: str, data: bytes) -> None:
            sizes[stream] += len(data)
            if sizes[stream] > limit:
                raise _TooMuch

        async with _as_inspect_expects(" ".join(cmd)[:200]):
            try:
                program = await self.session.spawn(
                    cmd,
                    cwd=self._path(cwd or ""),
                    env=env or {},
                    user=user,
                    timeout=timeout,
                    on_approval="deny",
                )
            except errors.CannotStart as error:
                if error.details.get("errno") in {"EACCES", "EPERM"}:
                    raise PermissionError(errno.EACCES, error.message, cmd[0]) from error
                return ExecResult(False, _NOT_FOUND, "", f"{error.message}\n")
            except (errors.PolicyDenied, errors.NotApproved) as error:
                return ExecResult(False, _NOT_PERMITTED, "", f"{error.message}\n")
            except errors.NotFound as error:
                await self.session.info  # NotFound if it is the session that is not there
                return ExecResult(False, _NOT_PERMITTED, "", f"{error.message}\n")
            try:
                stdout, stderr = await program.communicate(_bytes(input), on_output=count)
            except _TooMuch:
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, None
                ) from None
            finally:
                if program.exit_code is None:  # also when the task is cancelled
                    await program.kill()
                    await program.close()
        if program.timed_out:
            raise TimeoutError(f"{cmd[0]} took longer than {timeout} s")
        code = program.exit_code
        assert code is not None
        return ExecResult(code == 0, code, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    # ---- files -------------------------------------------------------------------------------

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and the folders above it, if the session's user may."""
        path = self._path(file)
        async with _as_inspect_expects(file):
            await self._require(_MAY_WRITE, path, file)
            await self.session.write_file(path, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """The content of a file, if the session's user may read it."""
        path = self._path(file)
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        async with _as_inspect_expects(file):
            await self._require(_MAY_READ, path, file)
            content = await self.session.read_file(path, max_bytes=limit)
        return content.decode() if text else content

    async def _require(self, test: str, path: str, file: str) -> None:
        """Files are read and written by the daemon, which may do everything. So the session's user is asked
        first, unless that is root."""
        if self._config.user in {None, "root", "0"}:
            return
        program = await self.session.spawn(["/bin/sh", "-c", test, "sh", path])
        await program.communicate(timeout=_HELPER_SECONDS)
        if program.exit_code:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)

    def _path(self, file: str) -> str:
        return os.path.normpath(os.path.join(self._config.folder, file))


# ---- the whole machine of a sample that is resumed ---------------------------------------------------


def whole_machine(checkpoint: CheckpointConfig | None = None) -> dict[str, Any]:
    """Arguments of a Task that has the sandbox "waypoint". `checkpoint`: when Inspect takes its checkpoints
    (without: as the evaluation says). The session of a sample that failed is stopped and stays, until a retry
    has succeeded or `inspect sandbox cleanup waypoint` is run."""
    _forget_when_done()
    wanted = checkpoint or CheckpointConfig()
    if wanted.sandbox_paths is None:
        wanted = dataclasses.replace(wanted, sandbox_paths={_DEFAULT: []})  # a point has all files
    return {"checkpoint": wanted, "on_checkpoint": on_checkpoint, "on_resume": on_resume}


async def on_checkpoint(state: TaskState) -> None:
    """For `Task(on_checkpoint=…)`: takes a point, and leaves in the sample's store which."""
    own = sandbox(_DEFAULT).as_type(WaypointSandbox)
    point = await own.session.checkpoint(f"checkpoint of sample {state.sample_id}, epoch {state.epoch}")
    own.resumable = True
    state.store.set(_STORE_KEY, {"session": own.session.name, "point": point.id})


async def on_resume(state: TaskState, _: str) -> ResumeReport | None:
    """For `Task(on_resume=…)`: goes on in the session of the attempt before, at the point of the checkpoint
    that Inspect resumes from. None when that checkpoint has no point. SandboxUnavailableError when the
    session is gone: what the model knows of its machine would not be true."""
    kept = state.store.get(_STORE_KEY)
    if not kept:
        return None
    own = sandbox(_DEFAULT).as_type(WaypointSandbox)
    name, point = kept["session"], kept["point"]
    try:
        session = await waypoint.aio.Client().session(name, actor="agent")
        await session.restore(point)
    except errors.WaypointError as error:
        raise SandboxUnavailableError(
            f"this sample cannot be resumed at point {point} of session {name}: {error.message}"
        ) from error
    fresh, own.session, own.resumable = own.session, session, True
    await fresh.remove()
    return ResumeReport(transparent=True, data={"session": name, "point": point})


class _Completed(Hooks):
    """Removes the session of a sample that has ended without an error: nothing will resume it."""

    async def on_sample_end(self, data: SampleEnd) -> None:
        kept = data.sample.store.get(_STORE_KEY)
        if kept and data.sample.error is None:
            with contextlib.suppress(errors.NotFound):
                await (await waypoint.aio.Client().session(kept["session"])).remove()


@functools.cache
def _forget_when_done() -> None:
    """Only in processes whose tasks need it: Inspect lists its hooks to the user."""
    hooks("waypoint_completed", "Removes the sessions of samples that have succeeded")(_Completed)


class _TooMuch(Exception):
    """Raised when a program prints more than Inspect takes."""


def _bytes(text: str | bytes | None) -> bytes:
    return text.encode() if isinstance(text, str) else text or b""


@contextlib.asynccontextmanager
async def _as_inspect_expects(what: str) -> AsyncIterator[None]:
    """Errors of the SDK as those that Inspect knows."""
    try:
        yield
    except (errors.SessionDead, errors.DaemonUnreachable) as error:
        raise SandboxUnavailableError(error.message) from error
    except errors.WaypointError as error:
        meant = files.os_error(error, what)
        if meant is None and isinstance(error, errors.NotFound):  # the session was removed meanwhile
            raise SandboxUnavailableError(error.message) from error
        if meant is None:
            raise
        if meant.errno == errno.EFBIG:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        raise meant from error
