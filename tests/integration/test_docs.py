"""The examples of docs/agents.md, run as they stand there.

A block of Python has to run to its end. A block of a console has its commands behind `$ ` and below each what
it prints, where … stands for anything. A block after the comment `<!-- not run -->` is for people's eyes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from waypoint.home import Home

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
_BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?^```(?P<language>python|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    language: str
    text: str
    line: int


def examples() -> list[Example]:
    text = PAGE.read_text()
    return [
        Example(found["language"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
        if not found["skip"]
    ]


def environment(tmp_path: Path) -> dict[str, str]:
    """With a `waypoint` that can be called by name."""
    program = tmp_path / "bin" / "waypoint"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m waypoint "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("example", examples(), ids=lambda one: f"{one.language}-line-{one.line}")
def test_an_example_is_true(home: Home, wp: Callable[..., Any], tmp_path: Path, example: Example) -> None:
    env = environment(tmp_path)
    if example.language == "python":
        done = subprocess.run(
            [sys.executable, "-P", "-c", example.text], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", example.text, re.MULTILINE):
        done = subprocess.run(
            ["bash", "-c", command], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, done.stdout, re.DOTALL), (
            f"$ {command}\n{done.stdout}\nis not\n{expected}"
        )


def test_the_page_has_examples_of_each_way_in() -> None:
    assert {one.language for one in examples()} == {"python", "console"}
