"""Automatic points: after each command that changed something, and only then."""

from __future__ import annotations

import time

import waypoint


def automatic(session: waypoint.Session) -> list[str]:
    return [point.info.intent for point in session.checkpoints() if point.info.kind == "auto"]


def turn_on(session: waypoint.Session) -> None:
    waypoint.Client().call("auto", {"session": session.name, "on": True})


def test_a_command_that_changes_something_is_followed_by_a_point(session: waypoint.Session) -> None:
    turn_on(session)
    session.run("echo one > /tmp/one")
    session.run("true")
    session.run("ls /tmp")
    session.run("cd /tmp")
    session.run("export NAME=value")
    session.run("sleep 1000 &")
    assert automatic(session) == ["echo one > /tmp/one", "cd /tmp", "export NAME=value", "sleep 1000 &"]
    point = session.checkpoints()[-1].info
    assert point.actor == "automatic"


def test_without_it_nothing_is_taken(session: waypoint.Session) -> None:
    session.run("echo one > /tmp/one")
    assert not session.checkpoints()


def test_a_typed_command_counts_too(session: waypoint.Session) -> None:
    turn_on(session)
    session.type("echo typed > /tmp/typed\n")
    deadline = time.monotonic() + 20
    while not automatic(session):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    session.run("rm /tmp/typed")
    session.restore(session.checkpoints()[0])
    assert session.run("cat /tmp/typed").output == "typed\n"
