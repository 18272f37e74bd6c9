"""The adapter of Inspect AI in the real framework: its own suite, and an agent that breaks its machine."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from inspect_ai import Task, task
from inspect_ai import eval as evaluate
from inspect_ai import eval_retry as retry
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState, basic_agent
from inspect_ai.tool import Tool, ToolCall, ToolChoice, ToolInfo, bash, tool
from inspect_ai.util import (
    CheckpointConfig,
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    Store,
    TurnInterval,
    sandbox,
)
from inspect_ai.util._restic import resolver
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from tests.adapters import restic

import waypoint
from waypoint.adapters import inspect_ai
from waypoint.adapters.inspect_ai import PREFIX, WaypointConfig, WaypointSandbox, whole_machine
from waypoint.home import Home

ROOT, USER = WaypointConfig(), WaypointConfig(user="nobody")
MAY_DO_EVERYTHING = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
"""What root is not refused: they hold for another user."""


@pytest.fixture(scope="module", params=[ROOT, USER], ids=["root", "user"])
async def environment(home: Home, request: pytest.FixtureRequest) -> AsyncIterator[WaypointSandbox]:
    made = await WaypointSandbox.sample_init("check", request.param, {})
    yield made["default"].as_type(WaypointSandbox)
    await WaypointSandbox.sample_cleanup("check", request.param, made, False)


@pytest.fixture
async def sandbox_env(environment: WaypointSandbox, request: pytest.FixtureRequest) -> WaypointSandbox:
    """What the functions of Inspect's suite take."""
    if environment._config.user is None and request.node.originalname in MAY_DO_EVERYTHING:
        request.applymarker(pytest.mark.xfail(strict=True, reason="root may read and write every file"))
    return environment


async def test_a_program_that_prints_too_much_is_ended(sandbox_env: WaypointSandbox) -> None:
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["yes", "of-the-test"])
    found = await sandbox_env.exec(["pgrep", "-f", "yes of-the-test"])
    assert found.stdout == ""


async def test_a_command_that_needs_approval_is_refused_in_words(sandbox_env: WaypointSandbox) -> None:
    refused = await sandbox_env.exec(["sh", "-c", "git push git@example.com:x/y.git main"])
    assert (refused.success, refused.returncode) == (False, 126)
    assert "approval" in refused.stderr or "policy" in refused.stderr


async def test_a_program_that_is_not_there_is_a_failed_result(sandbox_env: WaypointSandbox) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode, result.stdout) == (False, 127, "")
    assert "no-such-program" in result.stderr


async def test_a_machine_that_is_gone_is_not_replaced_in_silence(
    environment: WaypointSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_ai, "sandbox", lambda name: environment)
    state = SimpleNamespace(store=Store({"waypoint": {"session": "no-such-session", "point": "x"}}))
    with pytest.raises(
        SandboxUnavailableError, match="cannot be resumed at point x of session no-such-session"
    ):
        await inspect_ai.on_resume(state, "resume")
    state = SimpleNamespace(store=Store({}))
    assert await inspect_ai.on_resume(state, "resume") is None, "a checkpoint without a point"


async def test_a_session_that_was_removed_meanwhile_is_an_error_of_the_framework(home: Home) -> None:
    made = await WaypointSandbox.sample_init("gone", WaypointConfig(net="none"), {})
    gone = made["default"].as_type(WaypointSandbox)
    await gone.session.remove()
    for call in (gone.exec(["true"]), gone.read_file("/etc/passwd"), gone.write_file("x", "y")):
        with pytest.raises(SandboxUnavailableError, match=gone.session.name):
            await call
    await WaypointSandbox.sample_cleanup("gone", None, made, False)


async def test_what_samples_have_left_is_removed_by_the_command_line(home: Home) -> None:
    left = await WaypointSandbox.sample_init("left", None, {})
    assert (await left["default"].connection()).command.startswith(f"waypoint shell {PREFIX}")
    await WaypointSandbox.cli_cleanup(None)
    assert not [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]


@tool
def machine() -> Tool:
    async def execute(action: str) -> str:
        """Goes back to a point of the machine, or keeps one.

        Args:
            action: keep or restore
        """
        session = sandbox().as_type(WaypointSandbox).session
        if action == "keep":
            return (await session.checkpoint("kept by the model")).id
        return (await session.restore("@")).checkpoint.id

    return execute


@scorer(metrics=[accuracy()])
def server_answers() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        answer = await sandbox().exec(["cat", "/srv/data", "/proc/sys/kernel/hostname"])
        alive = await sandbox().exec(["sh", "-c", "kill -0 $(cat /srv/pid)"])
        return Score(value="C" if answer.success and alive.success else "I", answer=answer.stdout)

    return score


@pytest.mark.leaks("Inspect keeps its log of traces open")
def test_an_agent_breaks_its_machine_goes_back_and_succeeds(home: Home, tmp_path: Path) -> None:
    def call(name: str, **arguments: str) -> ModelOutput:
        output = ModelOutput.for_tool_call("mockllm/model", name, arguments)
        output.usage = ModelUsage()  # else Inspect counts tokens, with tables that it downloads
        return output

    model = get_model(
        "mockllm/model",
        custom_outputs=[
            call("bash", command="echo x > /srv/data; sleep 1000 >/dev/null 2>&1 & echo $! > /srv/pid"),
            call("machine", action="keep"),
            call("bash", command="kill $(cat /srv/pid); rm -rf /srv /usr/share/doc"),
            call("bash", command="cat /srv/data"),
            call("machine", action="restore"),
            call("submit", answer="done"),
        ],
    )
    task = Task(
        dataset=[Sample(input="break it", target="x")],
        solver=basic_agent(tools=[bash(timeout=30), machine()]),
        scorer=server_answers(),
        sandbox=SandboxEnvironmentSpec("waypoint", WaypointConfig(net="none")),
    )
    (log,) = evaluate(task, model=model, log_dir=os.fspath(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.samples
    shown = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert "No such file" in shown[3], "the machine was broken"
    assert log.results
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert not [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]


TURNS: list[list[tuple[str, dict[str, str]]]] = []
"""The tools that the model calls, for each turn of the conversation."""


class Crash(Exception):
    """What ends the first attempt."""


@tool
def crash() -> Tool:
    async def execute() -> str:
        """Ends the evaluation."""
        raise Crash

    return execute


@modelapi("script")
class Script(ModelAPI):
    """A model that calls the tools of `TURNS`, also in a conversation that is resumed."""

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        turn = sum(message.role == "assistant" for message in input)
        output = ModelOutput.from_content("script", "")
        output.choices[0].message.tool_calls = [
            ToolCall(id=f"{turn}-{number}", function=name, arguments=arguments)
            for number, (name, arguments) in enumerate(TURNS[turn])
        ]
        output.usage = ModelUsage()
        return output


@task
def resumable() -> Task:
    return Task(
        dataset=[Sample(id="one", input="work", target="x")],
        solver=react(tools=[bash(timeout=30), crash()]),
        scorer=server_answers(),
        sandbox=SandboxEnvironmentSpec("waypoint", WaypointConfig(net="none")),
        **whole_machine(CheckpointConfig(trigger=TurnInterval(every=1))),
    )


@pytest.mark.leaks("Inspect keeps its log of traces open")
def test_a_sample_that_failed_is_resumed_with_its_whole_machine(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not resolver.cache_path(resolver._current_platform()).exists():
        monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
        stand_in = resolver.cache_path(resolver._current_platform())
        stand_in.write_text(f"#!{sys.executable}\n{Path(restic.__file__).read_text()}")
        stand_in.chmod(0o755)
    begin = ("bash", {"command": "echo x > /srv/data; sleep 1000 >/dev/null 2>&1 & echo $! > /srv/pid"})
    destroy = ("bash", {"command": "kill $(cat /srv/pid); rm -rf /srv /usr/share/doc"})
    TURNS[:] = [[begin], [destroy, ("crash", {})]]
    (failed,) = evaluate(resumable(), model="script/model", log_dir=os.fspath(tmp_path), display="none")
    assert failed.status == "error"
    (left,) = [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]
    assert left.info.state == "stopped", "its points are needed"

    look = ("bash", {"command": "cat /srv/data; kill -0 $(cat /srv/pid) && echo alive"})
    TURNS[:] = [[begin], [look], [("submit", {"answer": "done"})]]
    checkpoint = CheckpointConfig(trigger=TurnInterval(every=1))
    (log,) = retry(failed, log_dir=os.fspath(tmp_path), display="none", checkpoint=checkpoint)
    assert log.status == "success", log.error
    assert log.samples
    shown = [message.text for message in log.samples[0].messages if message.role == "tool"]
    assert shown[1] == "x\nalive\n"
    (resumed,) = [
        event.data["report"]
        for event in log.samples[0].events
        if event.event == "info" and event.source == "checkpoint" and event.data["event"] == "resume"
    ]
    assert resumed["transparent"]
    assert resumed["data"]["session"] == left.name
    assert log.results
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert not [one for one in waypoint.sessions() if one.name.startswith(PREFIX)]


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left(home: Home) -> Iterator[None]:
    yield
    assert waypoint.sessions() == []
