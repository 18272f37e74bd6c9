"""`waypoint doctor`: each feature is tried, nothing is left behind, and no failure ends it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from waypoint.machine import doctor, natives, setup
from waypoint.machine.doctor import Finding


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    return {finding.name: finding for finding in doctor.examine(tmp_path / "not" / "yet")}


def test_everything_has_a_name_a_version_and_a_reason(findings: dict[str, Finding]) -> None:
    assert [finding for finding in findings.values() if not (finding.version and finding.why)] == []


def test_what_is_missing_comes_with_a_fix_and_what_is_there_without(findings: dict[str, Finding]) -> None:
    assert [finding.name for finding in findings.values() if finding.ok == bool(finding.fix)] == []


def test_a_machine_that_was_never_set_up_lacks_engine_and_pool(findings: dict[str, Finding]) -> None:
    for name in ("engine", "criu", "pool"):
        assert not findings[name].ok
        assert findings[name].fix == "waypoint setup"
        assert not findings[name].optional


def test_only_what_waypoint_can_do_without_is_optional(findings: dict[str, Finding]) -> None:
    optional = {finding.name for finding in findings.values() if finding.optional}
    assert optional == {
        "daemon's users",
        "user namespaces",
        "cgroups",
        "limits of a session",
        "CAP_SYS_RESOURCE",
        "userfaultfd",
        "soft-dirty",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_checks_change_nothing_on_the_machine(tmp_path: Path) -> None:
    def state() -> list[str]:
        """What the probes make, as it would look if it were on the host: others may be at work here too."""
        table = Path("/proc/self/mountinfo").read_text().splitlines()
        mounts = [line for line in table if line.split()[4] in {"/tmp", "/tmp/root", "/tmp/pool"}]
        links = [name for name in os.listdir("/sys/class/net") if name in {"veth0", "veth1"}]
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
        rules = [line for line in tables.stdout.splitlines() if line == "table ip waypoint"]
        backing = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
        return [*mounts, *links, *rules, *(path for path in backing if path.startswith("/tmp/image"))]

    before = state()
    doctor.examine(tmp_path)
    assert state() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_failed_check_has_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ok, output = doctor._in_namespace("echo first >&2; echo the reason >&2; exit 1")
    assert (ok, output) == (False, "the reason")

    def fail(_home: Path) -> doctor._Result:
        raise OSError(19, "No such device")

    broken = dataclasses.replace(doctor._CHECKS[0], check=fail)
    monkeypatch.setattr(doctor, "_CHECKS", (broken, *doctor._CHECKS[1:3]))
    first, *others = doctor.examine(tmp_path)
    assert not first.ok
    assert "No such device" in first.version
    assert len(others) == 2


def test_without_root_the_rest_is_still_examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    findings = {finding.name: finding for finding in doctor.examine(tmp_path)}
    assert not findings["root"].ok
    assert findings["overlayfs"].fix == "run it as root"
    assert findings["python"].ok


@pytest.mark.parametrize(("release", "ok"), [("5.10.0-9-amd64", False), ("5.15.0", True), ("6.1", True)])
def test_an_old_kernel_is_recognized(monkeypatch: pytest.MonkeyPatch, release: str, ok: bool) -> None:
    pretended = os.uname_result(("Linux", "host", release, "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: pretended)
    assert doctor._kernel(Path("/")).ok is ok


def test_an_unknown_architecture_is_not_supported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    pretended = os.uname_result(("Linux", "host", "6.1", "#1", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: pretended)
    (check,) = [check for check in doctor._CHECKS if check.name == "architecture"]
    finding = doctor._examine(check, Path("/"))
    assert (finding.ok, finding.version) == (False, "aarch64")
    assert "not supported yet" in finding.fix


def test_an_engine_of_another_kernel_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    criu = setup.Criu("4.2", "host", "a test")
    old = setup.Engine(tmp_path, criu, os.uname().machine, "2.6.32", natives.natives_hash())
    monkeypatch.setattr(setup, "read_engine", lambda _: old)
    found = doctor._engine(tmp_path)
    assert not found.ok
    assert "2.6.32" in found.version


def test_a_pool_is_recognised_by_its_image(tmp_path: Path) -> None:
    assert not doctor._pool(tmp_path).ok
    (tmp_path / "pool.img").touch()
    assert doctor._pool(tmp_path).ok
