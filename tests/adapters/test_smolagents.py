"""The adapter of smolagents in the real framework: an agent whose variables go back with its machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, MessageRole, Model, tool
from smolagents.utils import AgentError

import waypoint
from waypoint.adapters.smolagents import FOLDER, WaypointExecutor, machine_tools
from waypoint.home import Home


class Script(Model):
    """A model that says one code block after the other."""

    def __init__(self, *blocks: str) -> None:
        super().__init__(model_id="script")
        self.blocks = [*blocks]

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        code = f"<code>\n{self.blocks.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=code)


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number
    """
    return 2 * number


@pytest.fixture(scope="module")
def executor(home: Home) -> Iterator[WaypointExecutor]:
    made = WaypointExecutor(net="none", timeout=20)
    yield made
    made.cleanup()
    assert waypoint.sessions() == []


def test_variables_and_definitions_stay_from_one_block_to_the_next(
    executor: WaypointExecutor,
) -> None:
    executor("import math\ndef area(r):\n    return math.pi * r ** 2\nr = 2")
    result = executor("print('radius', r)\nimport os\n_ = os.system('echo of a program')\nround(area(r), 2)")
    assert (result.output, result.is_final_answer) == ("12.57", False)
    assert result.logs == "radius 2\nof a program\n"
    executor.send_variables({"values": {"a": (1, 2)}, "data": b"\x00"})
    assert executor("values['a'] + (data,)").output == "(1, 2, b'\\x00')"


def test_code_that_fails_keeps_the_variables_and_names_the_line(executor: WaypointExecutor) -> None:
    executor("kept = [1]")
    with pytest.raises(AgentError, match=r"(?s)before.*wrong = kept\[5\].*IndexError"):
        executor("print('before')\nkept.append(2)\nwrong = kept[5]")
    with pytest.raises(AgentError, match="SyntaxError"):
        executor("kept = = 1")
    with pytest.raises(AgentError, match="SystemExit"):
        executor("import sys; sys.exit(3)")
    assert executor("kept").output == "[1, 2]"


def test_code_that_hangs_is_interrupted_and_the_variables_stay(executor: WaypointExecutor) -> None:
    executor("kept = 'still here'")
    executor._timeout = 0.5
    try:
        with pytest.raises(AgentError, match=r"(?s)begun.*took longer than 0.5 s"):
            executor("print('begun')\nimport threading\nthreading.Event().wait()")
    finally:
        executor._timeout = 20
    assert executor("kept").output == "'still here'"


def test_a_python_that_ends_is_started_again_with_its_tools(executor: WaypointExecutor) -> None:
    executor.send_tools({"double": double})
    executor("lost = 1")
    with pytest.raises(AgentError, match="variables are gone"):
        executor("import os\nos._exit(1)")
    assert executor("double(4)").output == "8"
    with pytest.raises(AgentError, match="NameError"):
        executor("lost")


def test_too_much_output_is_shortened_in_the_middle(executor: WaypointExecutor) -> None:
    result = executor("print('a' * 70_000, end=''); print('the end')")
    assert len(result.logs) < 60_000
    assert "bytes were left out" in result.logs
    assert result.logs.endswith("the end\n")


def test_answers_travel_as_values(executor: WaypointExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    made = executor(
        "import datetime\nfinal_answer([(1,), {2}, {3: b'x'}, datetime.date(2026, 1, 2), 1.5, None])"
    )
    assert made.output == [(1,), {2}, {3: b"x"}, dt.date(2026, 1, 2), 1.5, None]
    assert made.is_final_answer
    with pytest.raises(AgentError, match="a module cannot be given as an answer"):
        executor("final_answer(datetime)")


def test_each_fork_goes_on_with_its_own_variables(executor: WaypointExecutor) -> None:
    executor("found = []\nimport random\nrandom.seed(1)")
    left, right = executor.fork(2)
    try:
        left("found.append('left')")
        right("found.append('right')")
        outputs = [one("found").output for one in (executor, left, right)]
        assert outputs == ["[]", "['left']", "['right']"]
    finally:
        left.cleanup()
        right.cleanup()


def test_an_agent_breaks_its_machine_goes_back_and_succeeds(executor: WaypointExecutor) -> None:
    model = Script(
        "import pathlib\nlog = pathlib.Path('/srv/data')\nlog.write_text('precious')\nseen = [double(21)]",
        "keep_point('good')\nseen.append('not reached')",
        "log.unlink()\nseen.clear()\nprint(log.read_text())",
        "go_back('no-such-point')",
        "go_back('good')",
        "final_answer({'text': log.read_text(), 'seen': seen})",
    )
    agent = CodeAgent(tools=[double, *machine_tools()], model=model, executor=executor, verbosity_level=0)
    assert agent.run("break it") == {"text": "precious", "seen": [42]}
    steps = [step for step in agent.memory.steps if hasattr(step, "code_action")]
    assert "FileNotFoundError" in str(steps[2].error), "the machine was broken"
    assert "no-such-point" in str(steps[3].error)
    assert "'good' is kept" in str(steps[1].observations)
    # Another run of the same agent, with the machine as it is.
    model.blocks = ["final_answer(seen[0] + 1)"]
    assert agent.run("go on") == 43


def test_a_session_that_is_gone_is_an_error_of_the_framework(home: Home) -> None:
    made = WaypointExecutor(net="none", user="nobody")
    assert made("import os; os.getuid(), os.access('.', os.W_OK)").output == "(65534, True)"
    with pytest.raises(AgentError, match="managed agents"):
        made.send_tools({"helper": made})
    made.session.remove()
    with pytest.raises(AgentError, match=made.session.name):
        made("1 + 1")
    made.cleanup()


def test_a_base_without_a_python_is_told_with_what_to_do(home: Home) -> None:
    before = len(waypoint.sessions())
    with pytest.raises(waypoint.errors.CannotStart, match="no-such-python") as caught:
        WaypointExecutor(net="none", python="no-such-python")
    assert "python=" in str(caught.value.hint)
    assert len(waypoint.sessions()) == before


def test_the_files_of_the_live_python_are_where_the_docs_say(executor: WaypointExecutor) -> None:
    assert executor.session.run(f"ls {FOLDER}").output.split() == ["live_python.py", "pid", "socket"]
