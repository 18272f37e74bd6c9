"""An environment of mini-swe-agent: its commands run in a session.

    environment:
      environment_class: waypoint.adapters.mini_swe_agent.WaypointEnvironment
      cwd: /root/project
      may_restore: true

An agent of mini-swe-agent has one tool, a command. `waypoint checkpoint`, `log`, `diff` and the like work in
every session. With `may_restore` the command `waypoint restore [REF]`, alone, is carried out too, by the
environment and from outside: what goes back cannot answer.
"""

from __future__ import annotations

import platform
import shlex
import weakref
from typing import Any

from waypoint.adapters import versions

versions.require("mini-swe-agent", oldest="2.4", below="2.5", extra="mini-swe-agent")

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import Field

import waypoint
from waypoint import errors
from waypoint.adapters import programs, settings

PREFIX = "mini-swe-agent-"
"""How the names of sessions begin."""
_FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of a command's output that ends the agent's run; what follows is its answer."""
_UNKNOWN_EXIT_CODE = -1


class WaypointEnvironmentConfig(settings.SessionConfig):
    """What the environment of an agent is made of."""

    cwd: str = ""
    """The folder of commands. Without it: where programs of the session start."""
    env: dict[str, str] = Field(default_factory=dict)
    timeout: int = 30
    """Seconds for one command."""
    may_restore: bool = False
    """Whether the agent may take its session back to a point. A safety checkpoint is taken first."""


class WaypointEnvironment:
    """Runs an agent's commands in a session. `session`: the SDK's object for it."""

    def __init__(
        self, *, config_class: type[WaypointEnvironmentConfig] = WaypointEnvironmentConfig, **options: Any
    ) -> None:
        self.config = config_class(**options)
        self.session: waypoint.Session = self.config.open(PREFIX)
        self._removal = weakref.finalize(self, settings.remove, self.session)
        if self.config.session is not None:  # it has a name of the user's: it stays
            self._removal.detach()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Runs the command of an action, each in a shell of its own. Submitted when the agent is done."""
        command = action.get("command", "")
        if self.config.may_restore and (ref := _restore_in(command)) is not None:
            return self._restore(ref)
        seconds = timeout or self.config.timeout
        ended = programs.run(
            self.session,
            programs.merged(command),
            cwd=cwd or self.config.cwd or None,
            env=self.config.env,
            timeout=seconds,
        )
        if ended.timed_out:
            problem = f"The command took longer than {seconds} s and was ended."
            return _result(ended.output, _UNKNOWN_EXIT_CODE, problem)
        result = _result(ended.output, ended.exit_code)
        first, _, rest = ended.output.lstrip().partition("\n")
        if first.strip() == _FINISHED and ended.exit_code == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return result

    def _restore(self, ref: str) -> dict[str, Any]:
        try:
            point = self.session.restore(ref).checkpoint
        except errors.WaypointError as error:
            return _result(f"{error.message}\n", error.exit_status)
        return _result(f"The machine is back at {point.label} {point.intent or ''}".rstrip() + ".\n", 0)

    def cleanup(self) -> None:
        """Removes the session with its points, unless it was given a name."""
        self._removal()

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What prompts may mention. `session_name`: of the session."""
        return recursive_merge(
            self.config.model_dump(), platform.uname()._asdict(), {"session_name": self.session.name}, more
        )

    def serialize(self) -> dict[str, Any]:
        """What is kept of it with the agent's trajectory."""
        kind = type(self)
        environment = self.config.model_dump(mode="json") | {"session": self.session.name}
        return {
            "info": {
                "config": {
                    "environment": environment,
                    "environment_type": f"{kind.__module__}.{kind.__name__}",
                }
            }
        }


def _restore_in(command: str) -> str | None:
    """The point that `waypoint restore [REF]` means, None for any other command."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    if words[:2] != ["waypoint", "restore"] or len(words) > 3:
        return None
    return words[2] if len(words) == 3 else "@"


def _result(output: str, returncode: int, problem: str = "") -> dict[str, Any]:
    return {"output": output, "returncode": returncode, "exception_info": problem}
