"""An executor of smolagents: the code of an agent runs in one live Python of a session.

    agent = CodeAgent(tools=[*machine_tools()], model=model, executor=WaypointExecutor())

The variables of that Python are memory of a process of the session. So a point has them, a restore brings
them back, and each fork goes on with its own. Tools are sent into the session as smolagents sends them to
its remote executors: as source. `machine_tools` gives the agent the verbs `keep_point` and `go_back`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waypoint.adapters import versions

versions.require("smolagents", oldest="1.26", below="1.27", extra="smolagents")

from smolagents import AgentLogger, LogLevel, Tool
from smolagents.local_python_executor import CodeOutput
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import get_tools_definition_code
from smolagents.utils import AgentError

import waypoint
from waypoint import errors, model
from waypoint.adapters import labels, live_python, programs

PREFIX = "smolagents-"
"""How the names of sessions begin."""
FOLDER = "/var/lib/waypoint-python"
"""Where the live Python has its program and its socket, in the session."""
_PROGRAM = f"{FOLDER}/live_python.py"
_WORKSPACE = "/workspace"
_START_SECONDS = 30.0
_MARGIN_SECONDS = 30.0
"""What the client in the session gets beyond the time of the code, before it is ended itself."""
_INSTALL_SECONDS = 600.0
_PACKAGES = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
}
"""Modules whose package has another name."""
_MOST_OUTPUT_BYTES = 16 << 20
"""Code that prints more is ended."""


class KeepPoint(Tool):
    """For the agent: takes a point."""

    name = "keep_point"
    description = (
        "Keeps a point of the whole machine (files, processes, variables of this Python), to come back to "
        "with go_back. It ends the code block: nothing after it in the same block is run."
    )
    inputs = {  # noqa: RUF012 - as smolagents declares it
        "label": {
            "type": "string",
            "description": "A short name for the point. Of two with one name the last counts.",
        }
    }
    output_type = "string"

    def forward(self, label: str) -> str:
        class WaypointCall(BaseException):
            pass

        raise WaypointCall("keep_point", label)


class GoBack(Tool):
    """For the agent: restores a point."""

    name = "go_back"
    description = (
        "Brings the whole machine (files, processes, variables of this Python) back to a point that "
        "keep_point has kept. It ends the code block: nothing after it in the same block is run."
    )
    inputs = {  # noqa: RUF012
        "label": {"type": "string", "description": "The name of the point."}
    }
    output_type = "string"

    def forward(self, label: str) -> str:
        class WaypointCall(BaseException):
            pass

        raise WaypointCall("go_back", label)


def machine_tools() -> list[Tool]:
    """The tools with which an agent keeps points of its machine and goes back to them."""
    return [KeepPoint(), GoBack()]


class WaypointExecutor(RemotePythonExecutor):
    """A live Python in a session. `session` is the SDK's object for it: `checkpoint`, `restore`, …

    `session`: an existing one, which `cleanup` leaves alone; without it a session of its own is made, over
    `base`, and `cleanup` removes it. `python`: a program of the session. `timeout`: seconds for one code
    block. `allow_pickle`: as for the remote executors of smolagents; what the session answers may then run
    code in this process.
    """

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
        *,
        session: waypoint.Session | None = None,
        base: str = "/",
        net: model.Net = "nat",
        user: str | None = None,
        folder: str = _WORKSPACE,
        python: str = "python3",
        timeout: float = 60.0,
        max_output_bytes: int = 50_000,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(
            [*additional_imports], logger or AgentLogger(level=LogLevel.ERROR), allow_pickle=allow_pickle
        )
        self._timeout, self._max_output_bytes = timeout, max_output_bytes
        self._python, self._folder = python, folder
        self._tools: dict[str, Tool] = {}
        self._variables: dict[str, Any] = {}
        self._turn, self._starts_again = threading.RLock(), False
        self._owns = session is None
        self.session = session or waypoint.session(
            f"{PREFIX}{secrets.token_hex(6)}", base=base, net=net, user=user, actor="agent"
        )
        try:
            self._start()
            self.installed_packages = self.install_packages([*additional_imports])
        except BaseException:
            self.cleanup()
            raise

    # ---- what smolagents calls ---------------------------------------------------------------

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Defines the tools in the live Python, from their source. AgentError for a managed agent."""
        if agents := [name for name, one in tools.items() if not isinstance(one, Tool)]:
            raise AgentError(f"managed agents cannot work in a session: {', '.join(agents)}", self.logger)
        self._tools = dict(tools)
        wanted = {name for one in tools.values() for name in one.to_dict()["requirements"]}
        self.installed_packages += self.install_packages(sorted(wanted - {"smolagents"}))
        code = get_tools_definition_code(tools)
        if "final_answer" in tools:
            # smolagents' own wrapper of this tool would need numpy and pillow in the session.
            code += f"\nfrom {live_python.MODULE} import answering"
            code += f"\nfinal_answer = answering(final_answer, {self.allow_pickle})"
        self.run_code_raise_errors(code)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Sets variables of the live Python. SerializationError for a value that does not travel."""
        self._variables = dict(variables)
        super().send_variables(variables)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code. AgentError, with the traceback, when it fails or takes too long."""
        with self._turn:
            try:
                return self._run(code)
            except errors.WaypointError as error:
                raise AgentError(f"{error.message}\n{error.hint}".strip(), self.logger) from error

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs, with the pip of the session's Python, what it cannot import."""
        names = {name: _PACKAGES.get(name, name) for name in additional_imports if name.isidentifier()}
        check = f"import importlib.util; [n for n in {[*names]} if importlib.util.find_spec(n) is None]"
        missing = ast.literal_eval(self.run_code_raise_errors(check).output) if names else []
        packages = [names[name] for name in missing]
        packages += [name for name in additional_imports if name not in names]
        if packages:
            argv = [self._python, "-m", "pip", "install", "--quiet", "--no-input", *packages]
            ended = programs.run(self.session, argv, cwd="/", timeout=_INSTALL_SECONDS)
            if ended.exit_code:
                said = ended.output.strip()
                raise AgentError(
                    f"{' '.join(packages)} cannot be installed in the session (`python=` may name the "
                    f"Python of a virtual environment there): {said}",
                    self.logger,
                )
        return packages

    def cleanup(self) -> None:
        """Removes the session, with its points, if it was made for this executor."""
        if self._owns:
            with contextlib.suppress(errors.NotFound):
                self.session.remove()

    # ---- points ------------------------------------------------------------------------------

    def checkpoint(self, intent: str = "", *, name: str | None = None) -> waypoint.Checkpoint:
        """Keeps a point, with the variables of the Python, between two code blocks."""
        with self._turn:
            return self.session.checkpoint(intent, name=name)

    def restore(self, point: waypoint.Checkpoint | str) -> None:
        """Goes back to a point, between two code blocks."""
        with self._turn:
            self.session.restore(point)

    def fork(self, n: int = 1, *, point: waypoint.Checkpoint | str | None = None) -> list[WaypointExecutor]:
        """`n` executors over forks of the session: each has its own copy of the live Python. Their `cleanup`
        removes the forks."""
        with self._turn:
            sessions = self.session.fork(n, ref=point)
        return [self._over(session) for session in sessions]

    def _over(self, session: waypoint.Session) -> WaypointExecutor:
        """An executor over a session in which the Python is live already."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.session, other._owns, other._turn = session, True, threading.RLock()
        other.installed_packages = [*self.installed_packages]
        return other

    # ---- the live Python ---------------------------------------------------------------------

    def _start(self) -> None:
        user = self.session.info.options.user
        for folder in (FOLDER, self._folder):
            programs.make_folder(self.session, folder, user)
        self.session.write_file(_PROGRAM, Path(live_python.__file__).read_bytes())
        try:
            argv = [self._python, "-u", _PROGRAM, "serve", FOLDER]
            program = self.session.spawn(argv, cwd=self._folder, env={"PAGER": "cat"})
        except errors.CannotStart as error:
            error.hint = "the base needs a Python 3.11 or newer; `python=` names it"
            raise
        said = bytearray()
        for _, data in program.events():
            said += data
            if said == b"ready\n":
                program.close()
                return
        raise errors.SessionError(
            f"the live Python does not start: {said.decode(errors='replace').strip()}",
            hint="the base needs a Python 3.11 or newer; `python=` names it",
        )

    def _run(self, code: str) -> CodeOutput:
        # Isolated and without site: it only passes on what it gets, and starts in a few milliseconds.
        argv = [self._python, "-I", "-S", _PROGRAM, "ask", FOLDER, str(self._timeout)]
        program = self.session.spawn(argv, cwd="/", timeout=self._timeout + _MARGIN_SECONDS)
        printed = 0

        def count(_: str, data: bytes) -> None:
            nonlocal printed
            printed += len(data)
            if printed > _MOST_OUTPUT_BYTES:
                raise AgentError(f"The code printed more than {_MOST_OUTPUT_BYTES >> 20} MB.", self.logger)

        try:
            stdout, answer = program.communicate(code.encode(), on_output=count)
        finally:
            if program.exit_code is None:
                program.kill()
                program.close()
        reply: dict[str, Any] = json.loads(answer) if answer else {"gone": True}
        text = self._shortened(stdout)
        if reply.get("timed_out") or reply.get("gone"):
            what = f"The code took longer than {self._timeout:g} s." if reply.get("timed_out") else ""
            if reply.get("gone") and not self._starts_again:
                self._start_again()
                what += (
                    " The Python of the session has ended, and its variables are gone. Another one was "
                    "started. A point that was kept has the variables of its time."
                )
            raise AgentError(f"{text}\n{what.strip()}", self.logger)
        if "error" in reply:
            raise AgentError(f"{text}\n{reply['traceback']}", self.logger)
        if "final" in reply:
            final = self._deserialize_final_answer(reply["final"], self.allow_pickle)
            return CodeOutput(output=final, logs=text, is_final_answer=True)
        if "call" in reply:
            return CodeOutput(output=self._called(*reply["call"]), logs=text, is_final_answer=False)
        return CodeOutput(output=reply["value"], logs=text, is_final_answer=False)

    def _called(self, verb: str, label: str) -> str:
        """What the agent asked for with one of `machine_tools`."""
        if verb == labels.KEEP_POINT:
            self.session.checkpoint(labels.intent(label))
            return f"The point {label!r} is kept."
        if verb == labels.GO_BACK:
            # Its own last: they win over those of the session that it was forked from, and of other forks.
            kept = labels.kept([*self.session.log(graph=True), *self.session.log()])
            if label not in kept:
                raise AgentError(labels.missing(label, kept), self.logger)
            self.session.restore(kept[label])
            return f"The machine and all variables are as they were at {label!r}."
        raise AgentError(f"the host knows no verb {verb!r}", self.logger)

    def _start_again(self) -> None:
        """Another live Python, with the agent's tools and variables, in place of one that has ended."""
        self._starts_again = True  # a tool whose source ends the Python would do so for ever
        try:
            self._start()
            self.send_variables(self._variables)
            self.send_tools(self._tools)
        finally:
            self._starts_again = False

    def _shortened(self, printed: bytes) -> str:
        half = self._max_output_bytes // 2
        if len(printed) <= 2 * half:
            return printed.decode(errors="replace")
        first, last = (part.decode(errors="replace") for part in (printed[:half], printed[-half:]))
        return f"{first}\n… {len(printed) - 2 * half} bytes were left out …\n{last}"
