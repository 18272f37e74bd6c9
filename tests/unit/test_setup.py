"""The engine: when it is current, and how a new one takes the place of the old one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from waypoint.errors import MissingFeature, NotRoot, SetupFailed
from waypoint.machine import criu_prefix, natives, setup


def test_the_engine_is_in_the_home_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    assert setup.engine_dir(Path("/a/home")) == Path("/a/home/engine")
    monkeypatch.setenv("WAYPOINT_ENGINE", "/elsewhere")
    assert setup.engine_dir(Path("/a/home")) == Path("/elsewhere")


def make_engine(folder: Path) -> Path:
    """Something that looks like an engine built from these sources for this kernel."""
    for part in (*criu_prefix.PARTS, *natives.PARTS):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text("")
    fields = {
        "layout": setup.LAYOUT,
        "arch": os.uname().machine,
        "kernel": os.uname().release,
        "criu": {"version": "4.2", "origin": "host", "source": "a test"},
        "natives": natives.natives_hash(),
        "rejected": [{"candidate": "an old one", "reason": "too old"}],
    }
    (folder / "engine.json").write_text(json.dumps(fields))
    return folder


def test_an_engine_for_these_sources_and_this_kernel_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_ENGINE", str(make_engine(tmp_path)))
    steps: list[str] = []
    engine = setup.ensure_engine(tmp_path, steps.append, probe=lambda _: "must not be called")
    assert engine.criu == setup.Criu("4.2", "host", "a test")
    assert engine.rejected == (criu_prefix.Rejection("an old one", "too old"),)
    assert steps == []


@pytest.mark.parametrize(
    "changed", [{"kernel": "2.6.32"}, {"natives": "other"}, {"arch": "vax"}, {"layout": 0}]
)
def test_an_engine_for_something_else_is_not_current(tmp_path: Path, changed: dict[str, object]) -> None:
    make_engine(tmp_path)
    assert setup.current_engine(tmp_path) is not None
    fields = json.loads((tmp_path / "engine.json").read_text())
    (tmp_path / "engine.json").write_text(json.dumps({**fields, **changed}))
    assert setup.current_engine(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"layout": 1}'])
def test_a_damaged_description_counts_as_no_engine(tmp_path: Path, text: str) -> None:
    make_engine(tmp_path)
    (tmp_path / "engine.json").write_text(text)
    assert setup.read_engine(tmp_path) is None


def test_an_engine_with_a_part_missing_is_not_current(tmp_path: Path) -> None:
    make_engine(tmp_path)
    (tmp_path / "bin/keeper").unlink()
    assert setup.current_engine(tmp_path) is None
    assert setup.read_engine(tmp_path) is not None, "its CRIU need not be fetched again"
    (tmp_path / "criu/ld.so").unlink()
    assert setup.read_engine(tmp_path) is None


def test_a_folder_is_exchanged_for_another_in_place(tmp_path: Path) -> None:
    new, present = tmp_path / "new", tmp_path / "present"
    new.mkdir()
    (new / "content").write_text("1")
    setup._exchange(new, present)
    assert (present / "content").read_text() == "1"
    new.mkdir()
    (new / "content").write_text("2")
    setup._exchange(new, present)
    assert (present / "content").read_text() == "2"
    assert (new / "content").read_text() == "1"


def test_when_no_criu_works_the_error_names_every_reason_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    monkeypatch.setattr(criu_prefix, "which", lambda name: None if name == "apt-get" else shutil.which(name))
    (tmp_path / "bin").mkdir()
    shutil.copy(Path("/bin/true").resolve(), tmp_path / "bin/criu")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    with pytest.raises(SetupFailed, match="no CRIU works") as caught:
        setup.ensure_engine(tmp_path / "home", lambda _: None, probe=lambda _: None)
    own, package = caught.value.details["rejected"]
    assert "the machine's own criu" in own["candidate"]
    assert "/run/criu.kdat" in own["reason"]
    assert "no apt" in package["reason"]
    assert [path.name for path in (tmp_path / "home/engine").iterdir()] == [".lock"]


def test_an_architecture_without_an_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "ARCHITECTURES", ("vax",))
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    with pytest.raises(MissingFeature, match="yet"):
        setup.ensure_engine(tmp_path, lambda _: None, probe=lambda _: None)


def test_setting_up_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot):
        setup.set_up(tmp_path, lambda _: None)


def test_a_home_that_cannot_be_made_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    with pytest.raises(SetupFailed, match="/dev/null/home"):
        setup.ensure_engine(Path("/dev/null/home"), lambda _: None, probe=lambda _: None)
