"""A runtime and a deployment of SWE-ReX: a session in place of a container with a server in it.

    deployment = WaypointDeployment(base="python-3.12", net="none")
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    await deployment.runtime.run_in_session(BashAction(command="cd /srv && make"))
    point = await deployment.session.checkpoint("it builds")

Of the named shells ("bash sessions") the first is the shell of the session in its terminal: what runs in it
is part of every point, and is there again after a restore. Interactive programs need it. The others are for
commands: between two of them the folder, variables and functions are kept, in a file of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import secrets
import shlex
from abc import ABC, abstractmethod
from typing import Any, Literal, Self

from waypoint.adapters import versions

versions.require("swe-rex", oldest="1.4", below="1.5", extra="swe-rex")

from pydantic import ConfigDict
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    CloseResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

import waypoint.aio
from waypoint import errors
from waypoint.adapters import files, programs, settings

PREFIX = "swe-rex-"
"""How the names of sessions begin."""
_END_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 0.1
_HELPER_SECONDS = 60.0


class NotInThisShell(SwerexException, RuntimeError):
    """Raised when a shell that is not the one in the terminal is asked for what needs a terminal."""


# ---- shells ------------------------------------------------------------------------------------------------


class _Shell(ABC):
    """A named shell of a runtime."""

    def __init__(self, session: waypoint.aio.Session) -> None:
        self._session = session

    @abstractmethod
    async def start(self, request: CreateBashSessionRequest) -> str: ...

    @abstractmethod
    async def run(self, action: BashAction) -> BashObservation: ...

    @abstractmethod
    async def interrupt(self, action: BashInterruptAction) -> BashObservation: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def source(self, request: CreateBashSessionRequest) -> str:
        """Reads the files that a shell shall begin with."""
        if not request.startup_source:
            return ""
        command = "; ".join(f"source {file}" for file in request.startup_source)
        action = BashAction(command=command, timeout=request.startup_timeout, check="silent")
        return str((await self.run(action)).output)

    async def require_syntax(self, command: str) -> None:
        """BashIncorrectSyntaxError when bash cannot read a command."""
        read = await programs.run_async(self._session, ["bash", "-n", "-c", command], timeout=_HELPER_SECONDS)
        if read.exit_code and read.refusal is None:  # what is refused is refused again when it shall run
            raise BashIncorrectSyntaxError(
                f"bash cannot read {command!r}: {read.output}",
                extra_info={"bash_stdout": read.stdout.decode(errors="replace"), "bash_stderr": read.output},
            )


class _TerminalShell(_Shell):
    """The shell of the session, in its terminal. One command runs in it at a time."""

    def __init__(self, session: waypoint.aio.Session) -> None:
        super().__init__(session)
        self._running: asyncio.Task[Any] | None = None
        self._shown = ""
        """What the running command has printed and no observation has."""
        self._news = asyncio.Event()

    async def start(self, request: CreateBashSessionRequest) -> str:
        await self._session.run(":", timeout=_END_SECONDS)  # it has a prompt: time limits count from now on
        return await self.source(request)

    async def run(self, action: BashAction) -> BashObservation:
        interactive = action.is_interactive_command or action.is_interactive_quit
        if self._running and not self._running.done():
            if not interactive:
                raise CommandTimeoutError(f"{action.command!r} cannot run: the command before it still runs")
            await self._session.type(f"{action.command}\n")
        else:
            if not interactive:
                await self.require_syntax(action.command)
            self._begin(action.command, on_terminal=interactive)
        try:
            async with asyncio.timeout(action.timeout):
                before, matched = await self._until(action.expect)
        except TimeoutError as error:
            took = f"timeout after {action.timeout} seconds while running command {action.command!r}"
            raise CommandTimeoutError(took) from error
        if interactive:
            shown = before.lstrip().removeprefix(action.command).strip()  # the terminal echoes what is typed
            return BashObservation(output=shown, exit_code=0, expect_string=matched)
        if matched:  # it goes on
            return BashObservation(output=before, exit_code=None, expect_string=matched)
        output, exit_code = self._outcome()
        return _checked(action, output, exit_code)

    def _begin(self, command: str, *, on_terminal: bool) -> None:
        self._shown = ""
        self._running = asyncio.create_task(
            self._session.run(command, tty=on_terminal, plain=True, on_output=self._show, on_approval="deny")
        )
        self._running.add_done_callback(lambda _: self._news.set())

    def _show(self, text: str) -> None:
        self._shown += text
        self._news.set()

    async def _until(self, expect: list[str]) -> tuple[str, str]:
        """Waits until one of these texts is printed, or the command has ended. What came before the text, and
        the text."""
        assert self._running
        while True:
            places = [(self._shown.index(text), text) for text in expect if text in self._shown]
            if places:
                at, text = min(places)
                before, self._shown = self._shown[:at], self._shown[at + len(text) :]
                return before, text
            if self._running.done():
                before, self._shown = self._shown, ""
                return before, ""
            self._news.clear()
            await self._news.wait()

    def _outcome(self) -> tuple[str, int]:
        """What the command that has ended printed, and its exit code."""
        assert self._running
        try:
            result = self._running.result()
        except errors.PolicyDenied as error:
            return f"{error.message}\n", programs.NOT_PERMITTED
        return result.output, result.exit_code

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """The command has ended after it: its terminal is interrupted, and what takes no notice is killed."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                while self._running and not self._running.done():
                    # While it waits for a prompt there is nothing to interrupt: it is asked again.
                    await self._session.interrupt()
                    await asyncio.wait([self._running], timeout=_ASK_AGAIN_SECONDS)
        except TimeoutError as error:
            raise CommandTimeoutError("the command could not be interrupted") from error
        output, self._shown = self._shown.strip(), ""
        return BashObservation(output=output, exit_code=0)

    async def close(self) -> None:
        """The session has another shell after it."""
        with contextlib.suppress(errors.WaypointError, CommandTimeoutError):
            await self.interrupt(BashInterruptAction())
            await self._session.run("exec true", timeout=_END_SECONDS)
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


_SAVE = (
    r"declare -p | grep -vE '^declare -[[:alpha:]]*r'; declare -f; alias -p; shopt -p;"
    r' printf "cd %q\n" "$PWD"'
)
"""What is kept of a shell, as commands that bring it back."""


class _FileShell(_Shell):
    """A shell of which its state is kept between commands, in a file that the next one reads first."""

    def __init__(self, session: waypoint.aio.Session) -> None:
        super().__init__(session)
        self._state = f"/tmp/.waypoint-shell-{secrets.token_hex(6)}"
        self._running: asyncio.Task[programs.Ended] | None = None

    async def start(self, request: CreateBashSessionRequest) -> str:
        # The shell that reads the file writes it anew when it ends.
        new = f"{self._state}.new"
        save = (
            f"{{ {_SAVE}; trap -p EXIT; echo unset BASH_ENV; }} > {new} 2>/dev/null; mv {new} {self._state}"
        )
        await self._session.write_file(
            self._state, f"trap {shlex.quote(save)} EXIT; unset BASH_ENV\n", mode=0o600
        )
        return await self.source(request)

    async def run(self, action: BashAction) -> BashObservation:
        if action.is_interactive_command or action.is_interactive_quit or action.expect:
            raise NotInThisShell(
                f"{action.session!r} has no terminal, which interactive programs need: the first shell has it"
            )
        await self.require_syntax(action.command)
        self._running = asyncio.create_task(
            programs.run_async(
                self._session,
                programs.merged(action.command),
                env={"BASH_ENV": self._state},
                timeout=action.timeout,
            )
        )
        ended = await self._running
        if ended.timed_out:
            took = f"timeout after {action.timeout} seconds while running command {action.command!r}"
            raise CommandTimeoutError(took)
        return _checked(action, ended.output, ended.exit_code)

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """A command that took too long has been ended; one that runs is."""
        await self._end()
        return BashObservation(exit_code=0)

    async def close(self) -> None:
        await self._end()
        await programs.run_async(self._session, ["rm", "-f", self._state], timeout=_HELPER_SECONDS)

    async def _end(self) -> None:
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _checked(action: BashAction, output: str, exit_code: int) -> BashObservation:
    if action.check == "raise" and exit_code:
        said = f"{action.error_msg}: " if action.error_msg else ""
        raise NonZeroExitCodeError(
            f"{said}Command {action.command!r} failed with exit code {exit_code}. Its output:\n{output!r}"
        )
    return BashObservation(output=output, exit_code=None if action.check == "ignore" else exit_code)


# ---- runtime -----------------------------------------------------------------------------------------------


class WaypointRuntime(AbstractRuntime):
    """Runs everything in a session. `session`: the SDK's object for it."""

    def __init__(self, session: waypoint.aio.Session) -> None:
        self.session = session
        self.logger = get_logger("rex-runtime")
        self._shells: dict[str, _Shell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            async with asyncio.timeout(timeout):
                state = (await self.session.info).state
        except (errors.WaypointError, TimeoutError) as error:
            return IsAliveResponse(is_alive=False, message=str(error) or "it does not answer")
        return IsAliveResponse(is_alive=state == "live", message="" if state == "live" else f"it is {state}")

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Opens a shell. The first one is the shell of the session, until it is closed; then the next one."""
        name = request.session
        if name in self._shells:
            raise SessionExistsError(f"session {name} already exists")
        has_terminal = any(isinstance(shell, _TerminalShell) for shell in self._shells.values())
        shell = self._shells[name] = (_FileShell if has_terminal else _TerminalShell)(self.session)
        try:
            return CreateBashSessionResponse(output=await shell.start(request))
        except BaseException:
            del self._shells[name]
            raise

    async def run_in_session(self, action: Action) -> BashObservation:
        shell = self._shell(action.session)
        return await (
            shell.interrupt(action) if isinstance(action, BashInterruptAction) else shell.run(action)
        )

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        await self._shell(request.session).close()
        del self._shells[request.session]
        return CloseBashSessionResponse()

    def _shell(self, name: str) -> _Shell:
        try:
            return self._shells[name]
        except KeyError:
            raise SessionDoesNotExistError(f"session {name!r} does not exist") from None

    async def execute(self, command: Command) -> CommandResponse:
        """Runs a program beside the shells. Its variables are added to those of the session."""
        words = command.command
        if command.merge_output_streams:
            argv = programs.merged(words if command.shell or not isinstance(words, str) else [words])
        elif command.shell:
            argv = ["/bin/sh", "-c", words if isinstance(words, str) else words[0]]
        else:
            argv = [words] if isinstance(words, str) else words
        ended = await programs.run_async(
            self.session, argv, cwd=command.cwd, env=command.env or {}, timeout=command.timeout
        )
        if ended.refusal and (error := files.os_error(ended.refusal, argv[0])):
            raise error from ended.refusal
        if ended.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        response = CommandResponse(
            stdout=ended.stdout.decode(errors="backslashreplace"),
            stderr=ended.stderr.decode(errors="backslashreplace"),
            exit_code=ended.exit_code,
        )
        if command.check and ended.exit_code:
            said = f"{command.error_msg}: " if command.error_msg else ""
            raise NonZeroExitCodeError(
                f"{said}Command {words!r} failed with exit code {ended.exit_code}. "
                f"Stdout:\n{response.stdout!r}\nStderr:\n{response.stderr!r}"
            )
        return response

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        with files.os_errors(request.path):
            content = await self.session.read_file(request.path)
        return ReadFileResponse(
            content=content.decode(request.encoding or "utf-8", request.errors or "strict")
        )

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        with files.os_errors(request.path):
            await self.session.write_file(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copies a file, or what is in a folder, of this machine. Folders that are missing are made."""
        source, target = request.source_path, request.target_path
        sources = await asyncio.to_thread(_inside, source)
        folder = posixpath.dirname(target) or "." if sources is None else target
        made = await programs.run_async(
            self.session, ["mkdir", "-p", "--", folder], shell_env=True, timeout=_HELPER_SECONDS
        )
        if made.exit_code:
            raise OSError(made.output.strip())
        with files.os_errors(source):
            if sources != []:
                await self.session.copy_in(sources or [source], target)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        for name in [*self._shells]:
            await self.close_session(CloseBashSessionRequest(session=name))
        return CloseResponse()


def _inside(path: str) -> list[str] | None:
    """What is in a folder of this machine; None if it is none."""
    return [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else None


# ---- deployment --------------------------------------------------------------------------------------------


class WaypointDeploymentConfig(settings.SessionConfig):
    """What the session of a deployment is made of."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["waypoint"] = "waypoint"

    def get_deployment(self) -> WaypointDeployment:
        return WaypointDeployment.from_config(self)


class WaypointDeployment(AbstractDeployment):
    """Starts a session and removes it. One with a name of the user's stays."""

    def __init__(self, **options: Any) -> None:
        self.logger = get_logger("rex-deploy")
        self._config = WaypointDeploymentConfig(**options)
        self._hooks = CombinedDeploymentHook()
        self._runtime: WaypointRuntime | None = None

    @classmethod
    def from_config(cls, config: WaypointDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def start(self) -> None:
        self._hooks.on_custom_step("Starting session")
        self._runtime = WaypointRuntime(await self._config.open_async(PREFIX))

    async def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        if self._config.session is not None:
            await runtime.close()
            return
        with contextlib.suppress(errors.NotFound):
            await runtime.session.remove()

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> WaypointRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    @property
    def session(self) -> waypoint.aio.Session:
        """The SDK's object: `checkpoint`, `restore`, `fork`, …"""
        return self.runtime.session
