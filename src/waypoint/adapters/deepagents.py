"""A backend of deepagents: files and commands of an agent are those of a session.

    with WaypointBackend(base="python-3.12", net="none") as backend:
        agent = create_deep_agent(model, backend=backend, tools=machine_tools(backend))
        agent.invoke({"messages": [("user", "…")]})
        backend.session.diff("@")

Each command has a shell of its own. They are an agent's: the policy of the home applies, and what needs
approval is refused. deepagents finds, reads and edits files with a `python3` of the session. `machine_tools`
gives the agent the verbs `keep_point` and `go_back`.
"""

from __future__ import annotations

import errno
import posixpath
import weakref
from types import TracebackType
from typing import Any, Self

from waypoint.adapters import versions

versions.require("deepagents", oldest="0.7.32", below="0.8", extra="deepagents")

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.tools import BaseTool, StructuredTool

import waypoint
from waypoint import errors
from waypoint.adapters import files, labels, programs, settings

PREFIX = "deepagents-"
"""How the names of sessions begin."""
_TOOK_TOO_LONG = 124
_ERRORS = {
    errno.ENOENT: FILE_NOT_FOUND,
    errno.EISDIR: IS_DIRECTORY,
    errno.EACCES: PERMISSION_DENIED,
    errno.EPERM: PERMISSION_DENIED,
    errno.ENOTDIR: INVALID_PATH,
    errno.ELOOP: INVALID_PATH,
    errno.ENAMETOOLONG: INVALID_PATH,
}
"""What deepagents calls what can go wrong with a file."""


class WaypointBackendConfig(settings.SessionConfig):
    """What the session of a backend is made of."""

    folder: str | None = None
    """Where commands start. Without it: where programs of the session start."""
    timeout: int = 120
    """Seconds for a command that brings no time of its own."""


class WaypointBackend(BaseSandbox):
    """A session as a sandbox. `session`: the SDK's object for it. `options`: of WaypointBackendConfig."""

    def __init__(self, **options: Any) -> None:
        self.config = WaypointBackendConfig(**options)
        self.session: waypoint.Session = self.config.open(PREFIX)
        self._removal = weakref.finalize(self, settings.remove, self.session)
        if self.config.session is not None:  # it has a name of the user's: it stays
            self._removal.detach()

    @property
    def id(self) -> str:
        """The name of the session."""
        return self.session.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes the session with its points, unless it was given a name."""
        self._removal()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command in a shell of its own."""
        seconds = timeout or self.config.timeout
        ended = programs.run(
            self.session, programs.merged(command), cwd=self.config.folder, timeout=float(seconds)
        )
        if not ended.timed_out:
            return ExecuteResponse(ended.output, ended.exit_code, ended.truncated)
        told = f"{ended.output}Error: the command took longer than {seconds} seconds and was ended."
        return ExecuteResponse(told, _TOOK_TOO_LONG, ended.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, and the folders above them, as far as the session's user may."""
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        if not posixpath.isabs(path):
            return INVALID_PATH
        try:
            self._require(files.MAY_WRITE, path)
            with files.os_errors(path):
                self.session.write_file(path, content)
        except (OSError, errors.UsageError) as error:
            return _error(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files, as far as the session's user may."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not posixpath.isabs(path):
            return FileDownloadResponse(path, error=INVALID_PATH)
        try:
            self._require(files.MAY_READ, path)
            with files.os_errors(path):
                return FileDownloadResponse(path, self.session.read_file(path))
        except (OSError, errors.UsageError) as error:
            return FileDownloadResponse(path, error=_error(error))

    def _require(self, test: str, path: str) -> None:
        if not files.may_everything(self.config.user):
            done = programs.run(self.session, files.asked(test, path))
            files.require(done.exit_code == 0, path)


def _error(error: Exception) -> str:
    return _ERRORS.get(getattr(error, "errno", None) or 0, str(error))


def machine_tools(backend: WaypointBackend) -> list[BaseTool]:
    """The tools with which an agent keeps points of its machine and goes back to them."""

    def keep_point(label: str) -> str:
        """Keep a point of the whole machine (files and processes), to come back to with go_back."""
        backend.session.checkpoint(labels.intent(label))
        return f"The point {label!r} is kept."

    def go_back(label: str) -> str:
        """Take the whole machine (files and processes) back to a point that keep_point has kept."""
        kept = labels.kept(backend.session.log())
        if label not in kept:
            return labels.missing(label, kept)
        backend.session.restore(kept[label])
        return f"The machine is as it was at {label!r}."

    return [StructuredTool.from_function(keep_point), StructuredTool.from_function(go_back)]
