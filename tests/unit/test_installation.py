"""What a clone puts on a machine besides its environment: a link on PATH, and packages of one verb."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from waypoint.errors import AlreadyExists, MissingFeature, NotFound
from waypoint.machine import extras, link

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    return path


def test_a_link_makes_the_program_a_command_and_goes_with_the_home(home: Path, folder: Path) -> None:
    assert link.is_offered(folder)
    assert link.command().endswith("/waypoint")
    assert link.make(home, folder) == folder / "waypoint"
    assert link.make(home, folder) == folder / "waypoint"  # twice is no mistake
    assert (folder / "waypoint").resolve() == REPOSITORY / "waypoint"
    assert link.command() == "waypoint"
    assert not link.is_offered(folder)
    done = subprocess.run(["waypoint", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("waypoint ")
    assert link.remove(home) == [folder / "waypoint"]
    assert not os.path.lexists(folder / "waypoint")


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_has_the_name_already_is_never_replaced_or_removed(home: Path, folder: Path, kind: str) -> None:
    theirs = folder / "waypoint"
    if kind == "file":
        theirs.write_text("#!/bin/sh\n")
    else:
        theirs.symlink_to("/bin/true" if kind == "link" else "/nowhere")
    assert not link.is_offered(folder)
    with pytest.raises(AlreadyExists, match="is there already"):
        link.make(home, folder)
    assert link.remove(home) == []
    assert os.path.lexists(theirs)


def test_a_link_that_was_replaced_since_is_not_removed(home: Path, folder: Path) -> None:
    link.make(home, folder)
    (folder / "waypoint").unlink()
    (folder / "waypoint").symlink_to("/bin/true")
    assert link.remove(home) == []
    assert os.path.lexists(folder / "waypoint")
    with pytest.raises(NotFound, match="no folder"):
        link.make(home, folder / "missing")


def fake_python(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_packages_are_installed_only_when_they_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    there = tmp_path / "there.txt"
    there.write_text(f"# a comment\nmsgspec=={version('msgspec')}\n")
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, "exit 9"))
    extras.provide(there, tmp_path / "lock", said.append)
    assert said == []
    for pins in ("msgspec==0.0.1\n", "no-such-package-of-waypoint==1\n"):
        missing = tmp_path / "missing.txt"
        missing.write_text(pins)
        monkeypatch.setattr(sys, "executable", fake_python(tmp_path, f'echo "$@" > {tmp_path}/asked'))
        extras.provide(missing, tmp_path / "lock", said.append)
        assert f"-r {missing}" in (tmp_path / "asked").read_text()
    assert said == ["installing the packages of the MCP server (once)"] * 2


def test_packages_that_cannot_be_fetched_are_named_and_nothing_else_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.txt"
    missing.write_text("no-such-package-of-waypoint==1\n")
    script = 'echo "WARNING: Retrying"; echo "ERROR: no network"; exit 1'
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, script))
    with pytest.raises(MissingFeature, match="could not be installed:\nERROR: no network") as failed:
        extras.provide(missing, tmp_path / "lock", lambda _: None)
    assert "every other verb works" in failed.value.hint


def test_packages_that_a_user_may_not_install_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    missing.write_text("no-such-package-of-waypoint==1\n")
    with pytest.raises(MissingFeature, match="cannot be written: No such file") as failed:
        extras.provide(missing, tmp_path / "nowhere" / "lock", lambda _: None)
    assert "the owner of that folder" in failed.value.hint


def test_an_environment_of_its_own_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    extras.require_mcp(lambda _: pytest.fail("nothing is installed there"))  # mcp is there: the tests need it
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingFeature, match="packages that are not installed") as refused:
        extras.require_mcp(lambda _: None)
    assert "waypoint[mcp]" in refused.value.hint


def test_the_extra_of_the_package_is_what_the_file_pins() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pinned = (REPOSITORY / "tests/adapters/requirements").glob("*.txt")
    adapters = REPOSITORY / "src/waypoint/adapters"
    frameworks = {path.stem.replace("_", "-") for path in pinned if (adapters / f"{path.stem}.py").exists()}
    renamed = {"inspect-ai": "inspect"}
    assert {*project["optional-dependencies"]} == {"mcp"} | {renamed.get(name, name) for name in frameworks}
    assert not any(requirement.startswith("mcp") for requirement in project["dependencies"])
    assert extras.missing(REPOSITORY / "requirements-mcp.txt") == []
    assert extras.missing(REPOSITORY / "requirements.txt") == []


def test_only_the_mcp_server_needs_its_packages() -> None:
    """Every other module of the program can be imported without them."""
    names = [
        line.partition("==")[0] for line in (REPOSITORY / "requirements-mcp.txt").read_text().splitlines()
    ]
    modules = [
        ".".join(path.relative_to(REPOSITORY / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (REPOSITORY / "src/waypoint").rglob("*.py")
        # An adapter needs its framework, which is in no environment of ours.
        if not {"mcp", "adapters"} & {*path.relative_to(REPOSITORY / "src").parts}
        and path.name != "__main__.py"
    ]
    own = {name.replace("-", "_").lower() for name in names if name and not name.startswith("#")}
    program = (
        "import importlib, sys\n"
        f"blocked = {sorted(own | {'jwt', 'httpx', 'anyio'} - {'typing_extensions'})!r}\n"
        "for name in blocked: sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": "src"}, cwd=REPOSITORY
    )
