"""The backend `podman`, in the suite that each backend passes for what it claims. Skipped where podman is not
installed, or cannot start a container in any of the ways that are tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import roots

from waypoint import backends, errors
from waypoint.backends.conformance import *  # noqa: F403 - the suite

PROGRAMS = (*roots.PROGRAMS, "mkfifo", "setsid", "timeout")
OFFLINE = ("--network", "none")
WAYS: tuple[dict[str, Any], ...] = (
    {"options": OFFLINE},
    # A machine on which nobody may raise a limit, and one whose control groups crun does not know.
    {"options": (*OFFLINE, "--ulimit", "nofile=512:512", "--ulimit", "nproc=1000:1000")},
    {
        "options": (*OFFLINE, "--ulimit", "nofile=512:512", "--ulimit", "nproc=1000:1000"),
        "podman": ("podman", "--runtime", "runc"),
    },
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base")
    roots.make_root(folder, PROGRAMS)
    return str(folder)


@pytest.fixture(scope="module")
def way(base: str) -> dict[str, Any]:
    """How a container can be started here."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    refused = []
    for way in WAYS:
        try:
            backends.open("podman", base=base, **way).stop()
        except errors.WaypointError as error:
            refused.append(error.message)
        else:
            return way
    pytest.skip(f"podman starts no container here: {refused}")


@pytest.fixture
def environment(base: str, way: dict[str, Any]) -> Iterator[Any]:
    with backends.open("podman", base=base, **way) as environment:
        yield environment


def test_a_service_is_started_again(environment: Any) -> None:
    environment.serve("web", "exec sleep 4321")
    point = environment.checkpoint()
    restored = environment.restore(point)
    assert (restored.started, restored.lost) == (("web",), ("processes that ran at the point are not there",))
    assert "sleep\x004321" in environment.run("cat /proc/[0-9]*/cmdline").output


def test_running_programs_are_kept_or_that_is_refused_at_once(base: str, way: dict[str, Any]) -> None:
    refusal = ""
    try:
        with backends.open("podman", base=base, memory=True, **way) as environment:
            assert environment.capabilities.memory
    except errors.MissingFeature as refused:
        refusal = refused.message
    assert not refusal or "podman cannot save running programs here" in refusal


def test_nothing_is_left(environment: Any, tmp_path: Path) -> None:
    (fork,) = environment.fork()
    fork.checkpoint()
    shared = environment._shared
    fork.stop()
    environment.stop()
    assert shared.call("images", "--noheading", shared.repository, doing="list") == ""
    assert shared.call("ps", "--all", "--quiet", "--filter", "name=waypoint-", doing="list") == ""
    assert not Path(shared.folder.name).exists()
