"""The native programs: how they are compiled, and what the shim answers to CRIU."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from waypoint.machine import natives


def test_native_programs_compile_without_a_warning(tmp_path: Path) -> None:
    for name, (_, flags) in natives.PROGRAMS.items():
        source = str(natives.SOURCES / name)
        argv = ["cc", *flags, "-Werror", "-o", str(tmp_path / name.removesuffix(".c")), source]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_digest_of_the_sources_follows_their_content(tmp_path: Path) -> None:
    (tmp_path / "one.c").write_text("int main;\n")
    first = natives.natives_hash(tmp_path)
    assert natives.natives_hash(tmp_path) == first
    (tmp_path / "common.h").write_text("\n")
    second = natives.natives_hash(tmp_path)
    (tmp_path / "one.c").write_text("int main ;\n")
    assert len({first, second, natives.natives_hash(tmp_path)}) == 3


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    _, flags = natives.PROGRAMS["shim.c"]
    subprocess.run(["cc", *flags, "-o", built, natives.SOURCES / "shim.c"], check=True)
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
        limits = ask_limits(other.pid, LD_PRELOAD=str(shim))
        assert limits[resource.RLIMIT_NOFILE] == "300 400"
        assert limits[resource.RLIMIT_CORE] == "0 0"
        for kind, answer in enumerate(limits):
            expected = [value % 2**64 for value in resource.prlimit(os.getpid(), kind)]
            if kind not in {resource.RLIMIT_NOFILE, resource.RLIMIT_CORE}:
                assert answer == f"{expected[0]} {expected[1]}", kind
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
