"""A sandbox client of the OpenAI Agents SDK: the sandbox of an agent is a session.

    agent = SandboxAgent(..., capabilities=[Shell(), MachinePoints()])
    sandbox = SandboxRunConfig(client=WaypointSandboxClient(), snapshot=LocalSnapshotSpec(base_path=...))
    await Runner.run(agent, "…", run_config=RunConfig(sandbox=sandbox))

A snapshot of the SDK is a point: `persist_workspace` returns a few bytes that name it, not a tar. It has the
whole machine, with its processes. A session whose state is kept by a snapshot is stopped at its end, not
removed, so that a later run can resume it. `MachinePoints` gives the agent the tools `keep_point` and
`go_back`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shlex
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from waypoint.adapters import versions

versions.require("openai-agents", oldest="0.24", below="0.25", extra="openai-agents")

from agents import function_tool
from agents.sandbox.capabilities import Capability
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
from agents.tool import Tool
from pydantic import Field

import waypoint.aio
from waypoint import errors
from waypoint.adapters import labels, programs, settings

PREFIX = "openai-agents-"
"""How the names of sessions begin."""
_REFERENCE = b"WAYPOINT_POINT_V1\n"
"""What a snapshot begins with that names a point; no tar begins so."""
_logger = logging.getLogger(__name__)


class WaypointSandboxClientOptions(BaseSandboxClientOptions):
    """What the sessions of a client are made of, as for `waypoint.session`."""

    type: Literal["waypoint"] = "waypoint"
    machine: settings.SessionConfig = Field(default_factory=settings.SessionConfig)
    exposed_ports: tuple[int, ...] = ()
    """Ports of the session that `resolve_exposed_port` may open on this machine."""


class WaypointSandboxSessionState(SandboxSessionState):
    """What a session of the SDK is resumed from."""

    type: Literal["waypoint"] = "waypoint"
    session_name: str
    machine: settings.SessionConfig = Field(default_factory=settings.SessionConfig)
    point: str | None = None
    """The point that its last snapshot names."""
    holds_point: bool = False
    """Whether that is a point of the session itself, which then has to stay."""


class MachinePoints(Capability):
    """Tools with which the agent keeps points of its machine and goes back to them."""

    type: Literal["waypoint_points"] = "waypoint_points"

    def tools(self) -> list[Tool]:
        if self.session is None:
            raise ValueError("MachinePoints capability is not bound to a SandboxSession")
        bound = self.session

        async def keep_point(label: str) -> str:
            """Keeps a point of the whole machine, files and running processes, to come back to with go_back.

            Args:
                label: A short name. Of two points with one name the last counts.
            """
            await machine_of(bound).checkpoint(labels.intent(label))
            return f"The point {label!r} is kept."

        async def go_back(label: str) -> str:
            """Brings the whole machine, files and processes, back to a point that keep_point has kept.

            Args:
                label: The name of the point.
            """
            kept = labels.kept(await machine_of(bound).log())
            if label not in kept:
                return labels.missing(label, kept)
            await machine_of(bound).restore(kept[label])
            return f"The machine is as it was at {label!r}."

        return [function_tool(keep_point), function_tool(go_back)]


def machine_of(session: BaseSandboxSession) -> waypoint.aio.Session:
    """The session of Waypoint below one of the Agents SDK: `checkpoint`, `restore`, `fork`, …"""
    inner = session._inner if isinstance(session, SandboxSession) else session
    if not isinstance(inner, WaypointSandboxSession):
        raise TypeError(f"{type(inner).__name__} is no session of WaypointSandboxClient")
    return inner.machine


class WaypointSandboxSession(BaseSandboxSession):
    """A session of Waypoint as one of the Agents SDK. `machine`: the SDK's object for it."""

    state: WaypointSandboxSessionState

    def __init__(self, state: WaypointSandboxSessionState, machine: waypoint.aio.Session) -> None:
        self.state, self.machine = state, machine
        self._stays = state.machine.session is not None
        """Whether it outlives the run: it has a name of the user's, or its state could not be kept."""

    # ---- how it starts and ends ----------------------------------------------------------------

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.machine.name

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            if (await self.machine.info).state == "live":  # else the snapshot brings it back, with its root
                user = self.state.machine.user
                await programs.make_folder_async(self.machine, root.as_posix(), user)
        except errors.WaypointError as error:
            raise WorkspaceStartError(path=root, context=_context(error), cause=error) from error

    async def _ensure_runtime_helpers(self) -> None:
        if await self.running():
            await super()._ensure_runtime_helpers()

    async def _after_start(self) -> None:
        await super()._ensure_runtime_helpers()  # a snapshot may be of another session

    async def running(self) -> bool:
        try:
            return (await self.machine.info).state == "live"
        except errors.WaypointError:
            return False

    async def _shutdown_backend(self) -> None:
        """Stops a session that a snapshot needs, and removes any other."""
        if self._stays:
            return
        try:
            if self.state.holds_point:
                await self.machine.stop(discard=True)
            else:
                await self.machine.remove()
        except errors.NotFound:
            return
        except errors.WaypointError as error:
            _logger.warning("the session %s could not be ended: %s", self.machine.name, error.message)

    # ---- commands ------------------------------------------------------------------------------

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv, user = [str(part) for part in command], None
        if argv[:2] == ["sudo", "-u"] and argv[3:4] == ["--"]:  # so the Agents SDK asks for a user
            argv, user = argv[4:], argv[2]
        try:
            ended = await programs.run_async(
                self.machine,
                argv,
                cwd=self._workspace_root_path().as_posix(),
                env=await self.state.manifest.environment.resolve(),
                user=user,
                timeout=timeout,
            )
            if isinstance(ended.refusal, errors.NotFound):
                await self.machine.info  # NotFound if it is the session that is not there
        except errors.WaypointError as error:
            raise ExecTransportError(
                command=command, context=_context(error), cause=error, message=error.message, retryable=False
            ) from error
        if ended.timed_out:
            output = {"stdout": bytes(ended.stdout), "stderr": bytes(ended.stderr)}
            raise ExecTimeoutError(command=command, timeout_s=timeout, context=output)
        return ExecResult(stdout=bytes(ended.stdout), stderr=bytes(ended.stderr), exit_code=ended.exit_code)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            there = [one for one in (await self.machine.info).forwards if one.port == port]
            forward = there[0] if there else await self.machine.forward(port, 0)
        except errors.WaypointError as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context=_context(error),
                cause=error,
            ) from error
        return ExposedPortEndpoint(host=forward.address, port=forward.local_port)

    # ---- files ---------------------------------------------------------------------------------

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        return io.BytesIO(await self._content(path, await self._validate_path_access(path)))

    async def _content(self, path: Path, at: Path) -> bytes:
        try:
            return await self.machine.read_file(at)
        except errors.WaypointError as error:
            if error.details.get("errno") in {"ENOENT", "ENOTDIR"}:
                raise WorkspaceReadNotFoundError(path=path, cause=error) from error
            raise WorkspaceArchiveReadError(
                path=path, context=_context(error), cause=error, retryable=False
            ) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
        at = await self._validate_path_access(path, for_write=True)
        async with self._writing(at):
            await self.machine.write_file(at, bytes(content))

    @contextlib.asynccontextmanager
    async def _writing(self, path: Path) -> AsyncIterator[None]:
        try:
            yield
        except errors.WaypointError as error:
            raise WorkspaceArchiveWriteError(
                path=path, context=_context(error), cause=error, message=error.message, retryable=False
            ) from error

    # ---- snapshots -----------------------------------------------------------------------------

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return False  # `changed` says whether a session is still at its point

    async def persist_workspace(self) -> io.IOBase:
        """A reference to a new point. A tar of the workspace instead, if parts of it must not be kept
        (mounts, what the manifest calls ephemeral): a point has everything."""
        if self._persist_workspace_skip_relpaths() or self.state.manifest.mount_targets():
            return io.BytesIO(await self._tar())
        try:
            point = await self.machine.checkpoint("snapshot of the sandbox of an agent")
        except errors.WaypointError as error:
            self._stays = True  # nothing else has its state
            context = {**_context(error), "session": self.machine.name}
            raise WorkspaceArchiveReadError(
                path=self._workspace_root_path(), context=context, cause=error, retryable=False
            ) from error
        self.state.point, self.state.holds_point = point.id, True
        return io.BytesIO(_reference(point))

    async def _can_skip_snapshot_restore_on_resume(self, *, is_running: bool) -> bool:
        if not is_running or self.state.point is None:
            return False
        info = await self.machine.info
        return info.head == self.state.point and not await self.machine.changed()

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        archive = await self.state.snapshot.restore(dependencies=self.dependencies)
        with contextlib.closing(archive):
            content = archive.read()
        if not content.startswith(_REFERENCE):  # files only: it replaces the workspace
            await self._clear_workspace_root_on_resume()
        await self.hydrate_workspace(io.BytesIO(content))

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Goes to the point that a snapshot names: the session that it is of in place, or else in a fork.
        A tar is unpacked into the workspace."""
        content = data.read()
        if not isinstance(content, bytes | bytearray):
            raise WorkspaceWriteTypeError(
                path=self._workspace_root_path(), actual_type=type(content).__name__
            )
        async with self._writing(self._workspace_root_path()):
            if content.startswith(_REFERENCE):
                await self._go_to(**_referred(bytes(content)))
            else:
                await self._untar(bytes(content))

    async def _go_to(self, session: str, point: str) -> None:
        if session == self.machine.name:
            await self.machine.restore(point)
        else:
            found = await self.machine.point(f"{session}:{point}")
            (fork,) = await found.fork(actor="agent")
            if not self._stays:
                await self.machine.remove()
            self.machine, self._stays = fork, False
            self.state.session_name, self.state.holds_point = fork.name, False
        self.state.point = point

    async def _tar(self) -> bytes:
        exclude = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        root, path = self._workspace_root_path(), self._tar_path()
        made = await self.exec(f"tar -C {shlex.quote(root.as_posix())} {exclude} -cf {path} .")
        if not made.ok():
            context = {"stderr": made.stderr.decode(errors="replace")}
            raise WorkspaceArchiveReadError(path=root, context=context)
        try:
            return await self._content(root, Path(path))
        finally:
            await self.exec("rm", "-f", path, shell=False)

    async def _untar(self, content: bytes) -> None:
        root, path = self._workspace_root_path(), self._tar_path()
        try:
            validate_tar_bytes(content, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            context = {"reason": "unsafe_or_invalid_tar", "member": error.member, "detail": str(error)}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        await self.machine.write_file(path, content)
        unpacked = await self.exec("tar", "-C", root.as_posix(), "-xf", path, shell=False)
        await self.exec("rm", "-f", path, shell=False)
        if not unpacked.ok():
            context = {"stderr": unpacked.stderr.decode(errors="replace")}
            raise WorkspaceArchiveWriteError(path=root, context=context)

    def _tar_path(self) -> str:
        return f"/tmp/openai-agents-{self.state.session_id.hex}.tar"


class WaypointSandboxClient(BaseSandboxClient[WaypointSandboxClientOptions]):
    """Makes, resumes and ends sessions of Waypoint for the Agents SDK."""

    backend_id = "waypoint"
    supports_default_options = True

    def __init__(
        self, *, instrumentation: Instrumentation | None = None, dependencies: Dependencies | None = None
    ) -> None:
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: WaypointSandboxClientOptions | None = None,
    ) -> SandboxSession:
        options = options or WaypointSandboxClientOptions()
        manifest = manifest or Manifest()
        self._validate_manifest_for_create(manifest)
        machine = await options.machine.open_async(PREFIX)
        session_id = uuid.uuid4()
        state = WaypointSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=manifest,
            exposed_ports=options.exposed_ports,
            session_name=machine.name,
            machine=options.machine,
        )
        return self._wrapped(WaypointSandboxSession(state, machine))

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session that is still there, as it is or as of its last point; or else a new one, which the
        snapshot of the state fills."""
        if not isinstance(state, WaypointSandboxSessionState):
            raise TypeError("WaypointSandboxClient.resume expects a WaypointSandboxSessionState")
        state.assert_path_grants_rebound()
        preserved = True
        try:
            machine = await waypoint.aio.Client().session(state.session_name, actor="agent")
            if (await machine.info).state != "live":
                preserved = await _revived(machine)
        except errors.NotFound:
            preserved = False
            machine = await state.machine.open_async(PREFIX)
            state.session_name, state.holds_point = machine.name, False
            state.workspace_root_ready = False
        inner = WaypointSandboxSession(state, machine)
        inner._set_start_state_preserved(preserved, system=preserved)
        return self._wrapped(inner)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Removes the session, unless a snapshot names one of its points or it has a name of the user's."""
        inner = session._inner
        if not isinstance(inner, WaypointSandboxSession):
            raise TypeError("WaypointSandboxClient.delete expects a WaypointSandboxSession")
        if not inner._stays and not inner.state.holds_point:
            with contextlib.suppress(errors.NotFound):
                await inner.machine.remove()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, WaypointSandboxSessionState)

    def _wrapped(self, inner: WaypointSandboxSession) -> SandboxSession:
        return self._wrap_session(inner, instrumentation=self._instrumentation)


async def _revived(machine: waypoint.aio.Session) -> bool:
    """Brings a session back that does not run, as it was at its last point. False when it has none."""
    try:
        await machine.restore("@")
    except errors.NotFound:
        return False
    return True


def _reference(point: waypoint.aio.Checkpoint) -> bytes:
    return _REFERENCE + json.dumps({"session": point.info.session, "point": point.id}).encode()


def _referred(content: bytes) -> dict[str, str]:
    """What a reference names: `session` and `point`."""
    try:
        fields = json.loads(content.removeprefix(_REFERENCE))
        return {name: str(fields[name]) for name in ("session", "point")}
    except (ValueError, KeyError, TypeError) as error:
        raise errors.UsageError(f"this reference to a point cannot be read: {error}") from error


def _context(error: errors.WaypointError) -> dict[str, object]:
    """What an error of the Agents SDK says about its cause."""
    context: dict[str, object] = {"backend": "waypoint", "reason": error.code, "detail": error.message}
    return {**context, "hint": str(error.hint)} if error.hint else context
