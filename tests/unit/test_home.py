"""Settings: every variable of the environment is read once, and refused when it is malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from waypoint.errors import UsageError
from waypoint.home import DEFAULT_HOME, Settings, locate


def test_what_is_not_set_has_a_default() -> None:
    assert Settings.read({}) == Settings()
    assert Settings.read({"WAYPOINT_SPARES": "", "WAYPOINT_ACTOR": ""}) == Settings()
    assert Settings().home == DEFAULT_HOME


def test_every_variable_is_read() -> None:
    environment = {
        "WAYPOINT_HOME": "/h",
        "WAYPOINT_ENGINE": "/e",
        "WAYPOINT_SESSION": "work",
        "WAYPOINT_ACTOR": "agent",
        "WAYPOINT_POOL_SIZE": "2G",
        "WAYPOINT_SPARES": "3",
        "WAYPOINT_SPARE_BYTES": "1048576",
        "WAYPOINT_SPARE_SECONDS": "2.5",
        "WAYPOINT_PROVE": "off",
        "WAYPOINT_BOX_MEMORY": "1G",
        "WAYPOINT_BOX_PIDS": "off",
        "WAYPOINT_BOX_OPEN_FILES": "1024",
        "WAYPOINT_BOX_DISK": "2G",
        "WAYPOINT_USERNS": "on",
    }
    assert Settings.read(environment) == Settings(
        "/h",
        "/e",
        "work",
        "agent",
        2 << 30,
        3,
        1 << 20,
        2.5,
        prove=False,
        box_memory_bytes=1 << 30,
        box_pids=0,
        box_open_files=1024,
        box_disk_bytes=2 << 30,
        userns=True,
    )


@pytest.mark.parametrize(("text", "number"), [("off", 0), ("0", 0), ("3", 3), ("1000", 16)])
def test_the_environment_says_how_many_spares_there_are(text: str, number: int) -> None:
    assert Settings.read({"WAYPOINT_SPARES": text}).spares == number


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WAYPOINT_ACTOR", "ghost"),
        ("WAYPOINT_POOL_SIZE", "much"),
        ("WAYPOINT_SPARES", "nonsense"),
        ("WAYPOINT_SPARE_BYTES", "-1"),
        ("WAYPOINT_SPARE_SECONDS", "0"),
        ("WAYPOINT_SPARE_SECONDS", "nan"),
        ("WAYPOINT_SPARE_SECONDS", "soon"),
        ("WAYPOINT_PROVE", "maybe"),
        ("WAYPOINT_BOX_MEMORY", "all"),
        ("WAYPOINT_BOX_PIDS", "-1"),
        ("WAYPOINT_BOX_OPEN_FILES", "many"),
        ("WAYPOINT_BOX_DISK", "half"),
        ("WAYPOINT_LAZY_BYTES", "-1"),
        ("WAYPOINT_USERNS", "maybe"),
    ],
)
def test_what_is_malformed_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        Settings.read({name: text})
    assert text in caught.value.message
    assert caught.value.hint


def test_a_home_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYPOINT_HOME", "/srv/wp")
    assert locate().path == Path("/srv/wp")
    assert locate("/other").path == Path("/other")
