"""The private copy of CRIU: how it is altered, and how it is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.engine.criu import criu_argv, criu_environment
from waypoint.errors import SetupFailed
from waypoint.machine import criu_prefix


def test_criu_is_run_by_its_own_loader_with_its_own_libraries() -> None:
    argv = criu_argv(ENGINE_IN_BOX, "dump", "-t", "7")
    assert argv[:7] == [
        *("/dev/waypoint/criu/ld.so", "--inhibit-cache", "--library-path", "/dev/waypoint/criu/lib"),
        *("--preload", "/dev/waypoint/criu/shim.so", "/dev/waypoint/criu/criu"),
    ]
    assert argv[-3:] == ["dump", "-t", "7"]
    assert "--preload" not in criu_argv(ENGINE_IN_BOX, "check", shim=False)


def test_criu_finds_neither_programs_nor_a_home_in_its_environment() -> None:
    environment = criu_environment()
    assert "HOME" not in environment
    assert shutil.which("sh", path=environment["PATH"]) is None


def test_every_occurrence_is_replaced_and_the_length_kept() -> None:
    image = b"x\0/run/criu.kdat\0y/run/criu.kdat.tmp\0"
    changed = criu_prefix.patched(image, b"/run/criu.kdat", b"/dev/criu.kdat")
    assert changed == b"x\0/dev/criu.kdat\0y/dev/criu.kdat.tmp\0"


def test_a_program_without_the_expected_path_is_refused() -> None:
    with pytest.raises(SetupFailed, match=r"/run/criu\.kdat"):
        criu_prefix.safe_criu(b"\x7fELF and nothing that is known\0")
    with pytest.raises(SetupFailed, match=r"/etc/ld\.so\.preload"):
        criu_prefix.safe_loader(b"\x7fELF and nothing that is known\0")
    with pytest.raises(ValueError, match="length"):
        criu_prefix.patched(b"", b"/short", b"/longer/path")


def test_an_altered_loader_knows_no_path_of_the_system() -> None:
    loader = criu_prefix.interpreter_of(Path("/bin/sh").resolve())
    assert loader is not None
    image = loader.read_bytes()
    altered = criu_prefix.safe_loader(image)
    assert len(altered) == len(image)
    paths = [b"/etc/ld.so.preload", b"/etc/ld.so.cache", b"\0/lib/\0", b"\0/usr/lib/\0"]
    assert [path for path in paths if path not in image] == []
    assert [path for path in paths if path in altered] == []


def test_an_altered_criu_has_no_default_configuration_and_plugins() -> None:
    image = b"\0/run/criu.kdat\0/etc/criu/default.conf\0/usr/lib/criu/\0(by default /usr/lib/criu/)\0"
    altered = criu_prefix.safe_criu(image)
    assert altered == (
        b"\0/dev/criu.kdat\0/dev/waypoint/none.cfg\0/sys/xxxxxxxx/\0(by default /usr/lib/criu/)\0"
    )


def test_the_loader_of_a_program_is_read_from_its_header(tmp_path: Path) -> None:
    loader = criu_prefix.interpreter_of(Path("/bin/sh").resolve())
    assert loader is not None
    assert loader.exists()
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert criu_prefix.interpreter_of(tmp_path / "script") is None
    assert criu_prefix.interpreter_of(loader.resolve()) is None, "the loader itself asks for none"
