"""A daemon of another version meets a live session: it leaves the box in peace, and its own goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import REPOSITORY, Output

import waypoint
from waypoint.box.keeper import PROTOCOL


def test_a_session_whose_keeper_speaks_another_protocol_lives_on(
    small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_SPARES", "off")
    monkeypatch.setenv("WAYPOINT_PROVE", "off")
    monkeypatch.setenv("WAYPOINT_HOME", str(small_home))
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "src/waypoint/box/keeper.py"
    source = module.read_text()
    assert source.count(f'\nPROTOCOL = "{PROTOCOL}"\n') == 1
    module.write_text(source.replace(f'\nPROTOCOL = "{PROTOCOL}"\n', '\nPROTOCOL = "999"\n'))

    def other(*words: str) -> Output:
        """The command line of the other version, with its daemon."""
        with monkeypatch.context() as environment:
            environment.setenv("PYTHONPATH", str(tmp_path / "src"))
            done = subprocess.run(
                [sys.executable, "-P", "-m", "waypoint", *words], capture_output=True, text=True, check=False
            )
        return Output(done)

    client = waypoint.Client(small_home)
    session = waypoint.session("t", home=small_home, net="none")
    session.run("word=kept")
    session.checkpoint("one", name="one")
    pid = session.info.pid
    client.daemon.stop()

    listed = other("ls", "--json").json["sessions"]
    assert [(one["name"], one["state"], one["pid"]) for one in listed] == [("t", "live", pid)]
    for words in (("exec", "-s", "t", "true"), ("restore", "-s", "t", "one", "--yes"), ("rm", "--yes", "t")):
        refused = other(*words, "--json")
        assert (refused.code, refused.json["error"]["code"]) == (7, "busy"), refused.out
        assert "speaks protocol" in refused.json["error"]["message"]
    assert [one["name"] for one in other("log", "-s", "t", "--json").json["checkpoints"]] == ["one"]
    assert other("daemon", "stop").code == 0

    assert session.info.pid == pid, "it was not ended"
    assert session.run("echo $word").output == "kept\n"
    client.close()
    session.remove()
