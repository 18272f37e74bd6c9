"""The engine's parts: what is compiled, what is altered, and how a new one takes the old one's place."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from waypoint.box.plan import ENGINE_IN_BOX
from waypoint.engine.criu import criu_argv, criu_environment
from waypoint.errors import MissingFeature, NotRoot, SetupFailed
from waypoint.machine import setup


def test_the_engine_is_in_the_home_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    assert setup.engine_dir(Path("/a/home")) == Path("/a/home/engine")
    monkeypatch.setenv("WAYPOINT_ENGINE", "/elsewhere")
    assert setup.engine_dir(Path("/a/home")) == Path("/elsewhere")


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


# Altering programs ---------------------------------------------------------------------------------------


def test_every_occurrence_is_replaced_and_the_length_kept() -> None:
    image = b"x\0/run/criu.kdat\0y/run/criu.kdat.tmp\0"
    changed = setup.patched(image, b"/run/criu.kdat", b"/dev/criu.kdat")
    assert changed == b"x\0/dev/criu.kdat\0y/dev/criu.kdat.tmp\0"


def test_a_program_without_the_expected_path_is_refused() -> None:
    with pytest.raises(SetupFailed, match=r"/run/criu\.kdat"):
        setup.safe_criu(b"\x7fELF and nothing that is known\0")
    with pytest.raises(SetupFailed, match=r"/etc/ld\.so\.preload"):
        setup.safe_loader(b"\x7fELF and nothing that is known\0")
    with pytest.raises(ValueError, match="length"):
        setup.patched(b"", b"/short", b"/longer/path")


def test_an_altered_loader_knows_no_path_of_the_system() -> None:
    loader = setup.interpreter_of(Path("/bin/sh").resolve())
    assert loader is not None
    image = loader.read_bytes()
    altered = setup.safe_loader(image)
    assert len(altered) == len(image)
    paths = [b"/etc/ld.so.preload", b"/etc/ld.so.cache", b"\0/lib/\0", b"\0/usr/lib/\0"]
    assert [path for path in paths if path not in image] == []
    assert [path for path in paths if path in altered] == []


def test_an_altered_criu_has_no_default_configuration_and_plugins() -> None:
    image = b"\0/run/criu.kdat\0/etc/criu/default.conf\0/usr/lib/criu/\0(by default /usr/lib/criu/)\0"
    altered = setup.safe_criu(image)
    assert altered == (
        b"\0/dev/criu.kdat\0/dev/waypoint/none.cfg\0/sys/xxxxxxxx/\0(by default /usr/lib/criu/)\0"
    )


def test_the_loader_of_a_program_is_read_from_its_header(tmp_path: Path) -> None:
    loader = setup.interpreter_of(Path("/bin/sh").resolve())
    assert loader is not None
    assert loader.exists()
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert setup.interpreter_of(tmp_path / "script") is None
    assert setup.interpreter_of(loader.resolve()) is None, "the loader itself asks for none"


# Native programs -------------------------------------------------------------------------------------------


def test_native_programs_compile_without_a_warning(tmp_path: Path) -> None:
    for name, (_, flags) in setup._NATIVES.items():
        source = str(setup.NATIVE_SOURCES / name)
        argv = ["cc", *flags, "-Werror", "-o", str(tmp_path / name.removesuffix(".c")), source]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_digest_of_the_sources_follows_their_content(tmp_path: Path) -> None:
    (tmp_path / "one.c").write_text("int main;\n")
    first = setup.natives_hash(tmp_path)
    assert setup.natives_hash(tmp_path) == first
    (tmp_path / "common.h").write_text("\n")
    second = setup.natives_hash(tmp_path)
    (tmp_path / "one.c").write_text("int main ;\n")
    assert len({first, second, setup.natives_hash(tmp_path)}) == 3


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    _, flags = setup._NATIVES["shim.c"]
    subprocess.run(["cc", *flags, "-o", built, setup.NATIVE_SOURCES / "shim.c"], check=True)
    return built


# Asks as CRIU does, for every resource: prints the two numbers, or the errno.
ASK_LIMITS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 302, "aarch64": 261}[__import__("os").uname().machine]
for kind in range(16):
    limit = (ctypes.c_uint64 * 2)()
    if libc.syscall(ctypes.c_long(number), int(sys.argv[1]), kind, None, ctypes.byref(limit)):
        print("errno", ctypes.get_errno())
    else:
        print(*limit)
"""


def ask_limits(pid: int, **environment: str) -> list[str]:
    """The limits of a process, asked for by a root that lacks CAP_SYS_RESOURCE."""
    without = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
    argv = [*without, sys.executable, "-I", "-c", ASK_LIMITS, str(pid)]
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_shim_reads_the_limits_of_another_users_process(shim: Path) -> None:
    lowered = "ulimit -c 0; ulimit -S -n 300; ulimit -H -n 400; echo ready; exec sleep 60"
    other = subprocess.Popen(["sh", "-c", lowered], user=65534, group=65534, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.read(len("ready"))
    try:
        eperm = "errno 1"
        assert set(ask_limits(other.pid)) == {eperm}, "this test proves nothing if it is allowed anyway"
        found = ask_limits(other.pid, LD_PRELOAD=str(shim))
        assert found[resource.RLIMIT_NOFILE] == "300 400"
        assert found[resource.RLIMIT_CORE] == "0 0"
        for kind, said in enumerate(found):
            expected = [value % 2**64 for value in resource.prlimit(os.getpid(), kind)]
            if kind not in {resource.RLIMIT_NOFILE, resource.RLIMIT_CORE}:
                assert said == f"{expected[0]} {expected[1]}", kind
    finally:
        other.kill()
        other.communicate()


def test_the_shim_leaves_other_calls_and_errors_alone(shim: Path) -> None:
    ask = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "number = {'x86_64': (39, 302), 'aarch64': (172, 261)}[os.uname().machine]\n"
        "assert libc.syscall(number[0]) == os.getpid()\n"
        "limit = ctypes.create_string_buffer(16)\n"
        "assert libc.syscall(number[1], 2**22 + 1, 0, None, ctypes.byref(limit)) == -1\n"
        "print(ctypes.get_errno())\n"
    )
    argv = [sys.executable, "-I", "-c", ask]
    done = subprocess.run(argv, env={"LD_PRELOAD": str(shim)}, capture_output=True, text=True, check=True)
    esrch = "3"
    assert done.stdout.strip() == esrch


# Keeping and replacing an engine ------------------------------------------------------------------------


def make_engine(folder: Path) -> Path:
    """Something that looks like an engine built from these sources for this kernel."""
    for part in (*setup._CRIU_PARTS, *setup._BUILT_PARTS):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text("")
    said = {
        "layout": setup.LAYOUT,
        "arch": os.uname().machine,
        "kernel": os.uname().release,
        "criu": {"version": "4.2", "origin": "host", "source": "a test"},
        "natives": setup.natives_hash(),
        "rejected": [{"candidate": "an old one", "reason": "too old"}],
    }
    (folder / "engine.json").write_text(json.dumps(said))
    return folder


def test_an_engine_for_these_sources_and_this_kernel_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_ENGINE", str(make_engine(tmp_path)))
    said: list[str] = []
    engine = setup.ensure_engine(tmp_path, said.append, probe=lambda _: "not to be asked")
    assert engine.criu == setup.Criu("4.2", "host", "a test")
    assert engine.rejected == (setup.Rejection("an old one", "too old"),)
    assert said == []


@pytest.mark.parametrize(
    "changed", [{"kernel": "2.6.32"}, {"natives": "other"}, {"arch": "vax"}, {"layout": 0}]
)
def test_an_engine_for_something_else_is_not_current(tmp_path: Path, changed: dict[str, object]) -> None:
    make_engine(tmp_path)
    assert setup.current_engine(tmp_path) is not None
    said = json.loads((tmp_path / "engine.json").read_text())
    (tmp_path / "engine.json").write_text(json.dumps({**said, **changed}))
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


def test_when_no_criu_works_every_reason_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAYPOINT_ENGINE", raising=False)
    monkeypatch.setattr(setup, "which", lambda name: None if name == "apt-get" else shutil.which(name))
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


def test_an_architecture_without_engine_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
