"""The SDK as users type it: the examples in its docstrings are run; it works from threads and processes."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import waypoint
from waypoint import aio, errors
from waypoint.client import agent, checkpoint, program, result, session
from waypoint.home import Home


@pytest.mark.parametrize(
    "module", [aio, agent, checkpoint, program, result, session], ids=lambda module: module.__name__
)
def test_the_examples_in_the_docstrings_are_true(
    home: Home, sessions: Callable[..., waypoint.Session], module: ModuleType
) -> None:
    found = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.attempted >= 2
    assert found.failed == 0


def test_the_examples_of_the_reference_are_true(
    home: Home, sessions: Callable[..., waypoint.Session], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
    examples = doctest.DocTestParser().get_doctest(
        "".join(re.findall(r"^```pycon\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)), {}, "sdk.md", None, 0
    )
    assert len(examples.examples) >= 14
    assert doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(examples).failed == 0
    (script,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "/srv/note" in done.stdout) == (0, True), done.stderr


def test_joining_a_session_by_its_name_finds_it_as_it_is(session: waypoint.Session) -> None:
    session.run("x=5")
    assert waypoint.session("t").run("echo $x").output == "5\n"
    assert [one.name for one in waypoint.sessions()] == ["t"]


def test_check_raises_with_the_exit_code(session: waypoint.Session) -> None:
    with pytest.raises(errors.CommandFailed) as failed:
        session.run("echo why; exit 7; true").check()
    assert failed.value.details["exit_code"] == 7
    assert "why" in failed.value.hint


def test_several_threads_share_a_session(session: waypoint.Session) -> None:
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = session.run(f"echo {number}").output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(8)}


def test_several_processes_share_a_session(session: waypoint.Session) -> None:
    script = "import waypoint, sys; print(waypoint.session('t').run(f'echo {sys.argv[1]}').output, end='')"
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    assert [one.communicate(timeout=60)[0] for one in running] == ["0\n", "1\n", "2\n"]


def test_output_comes_in_pieces_while_the_command_runs(session: waypoint.Session) -> None:
    pieces: list[str] = []
    script = "echo one; until [ -e /tmp/go ]; do sleep 0.01; done; echo two"

    def hear(piece: str) -> None:
        pieces.append(piece)
        if "one" in piece:
            session.spawn(["touch", "/tmp/go"]).communicate()

    result = session.run(script, on_output=hear)
    assert "".join(pieces) == result.output == "one\ntwo\n"
    assert len(pieces) >= 2
