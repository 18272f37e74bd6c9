"""One story told through the SDK, the command line and MCP: the same history. The tellers are the examples of
docs/examples, run as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waypoint
from waypoint.client.session import Session
from waypoint.home import Home

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `waypoint` for the examples to find."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "waypoint"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m waypoint "$@"\n')
    script.chmod(0o755)
    return folder


def run(example: str, name: str, program: Path) -> str:
    command = [sys.executable] if example.endswith(".py") else ["sh"]
    done = subprocess.run(
        [*command, str(EXAMPLES / example), name],
        env={**os.environ, "PATH": f"{program}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def history(name: str) -> dict[str, Any]:
    """What is told of a story's sessions, without what must differ: names, times, numbers of events."""
    client = waypoint.Client()
    return {part: _history(Session(client, f"{name}{part}"), name) for part in ("", "-try-1", "-try-2")}


def _history(session: Session, name: str) -> dict[str, Any]:
    points = {point.id: point for point in session.log(graph=True)}

    def called(point: str | None) -> str | None:
        found = points.get(point or "")
        return f"{found.info.session.removeprefix(name)}:{found.info.label}" if found else None

    return {
        "points": [
            {
                "label": point.info.label,
                "name": point.info.name,
                "intent": point.info.intent.replace(name, "NAME"),
                "kind": point.info.kind,
                "actor": point.info.actor,
                "parent": called(point.info.parent),
                "changes": point.card().summary,
                "verdicts": [(one.state, one.command, one.exit_code) for one in point.verdicts()],
                "tasks": [
                    (task.id, task.title, task.state, called(task.checkpoint)) for task in point.tasks()
                ],
            }
            for point in session.log()
        ],
        "trace": [_event(event, name) for event in session.trace()],
        "everything": [_event(event, name) for event in session.trace(everything=True)],
        "messages": session.messages(),
        "tasks": [(task.id, task.title, task.state, called(task.checkpoint)) for task in session.tasks],
        "effects": [
            (one.command.replace(name, "NAME"), one.class_, one.source, one.actor, one.state, one.key)
            for one in session.effects()
            if one.source != "observed"
        ],
        "operations": [
            (one["verb"], called(one["target"]), called(one["before"]), one["undone"])
            for one in session.operations()
        ],
        "now": session.status().data["summary"],
    }


_TOLD = {
    "command": ("command", "cwd", "exit_code", "output"),
    "message": ("role", "content"),
    "task": ("task", "title", "state", "was", "note"),
    "checkpoint": ("label", "name", "intent"),
    "restored": ("verb", "label"),
    "forked": ("label",),
}


def _event(event: Any, name: str) -> tuple[Any, ...]:
    told = [event.body.get(key) for key in _TOLD.get(event.kind, ())]
    words = [word.replace(name, "NAME") if isinstance(word, str) else word for word in told]
    return (event.kind, event.actor, event.session.removeprefix(name), *words)


def test_the_same_story_gives_the_same_history(
    home: Home, sessions: Callable[..., waypoint.Session], program: Path
) -> None:
    told = {}
    for example, name in (("story.py", "sdk"), ("story.sh", "cli"), ("story_mcp.py", "mcp")):
        run(example, name, program)
        told[example] = history(name)
    by_sdk = told["story.py"]
    main = by_sdk[""]
    assert [point["label"] for point in main["points"]] == ["c1", "c2"]
    assert {point["actor"] for point in main["points"]} == {"agent", "automatic"}
    assert main["points"][0]["verdicts"] == [("passed", "sh greet.sh", 0)]
    assert [state for _, _, state, _ in main["tasks"]] == ["completed", "pending"]
    assert [one["verdicts"][0][0] for part in ("-try-1", "-try-2") for one in by_sdk[part]["points"]] == [
        "passed",
        "failed",
    ]
    assert ("command", "agent", "", "rm greet.sh", "/srv/greet", 0, None) in main["everything"]
    assert "rm greet.sh" not in str(main["trace"])
    assert any(one[0] == "told the team about it" for one in main["effects"])
    for example in ("story.sh", "story_mcp.py"):
        for part, found in by_sdk.items():
            for what, value in found.items():
                assert told[example][part][what] == value, (
                    f"{example} tells other {what} of {part or 'main'!r}"
                )
