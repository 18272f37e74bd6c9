"""The confinement of a box: checked number by number in an interpreter, then on real processes."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from waypoint.errors import MissingFeature
from waypoint.kernel import confinement

if TYPE_CHECKING:
    from collections.abc import Sequence

PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {"x86_64": 0x40000003, "aarch64": 0x40000028}
COLUMNS = {"x86_64": 0, "aarch64": 1}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
CLONE_NEWUSER = 0x10000000
CLONE_NEWTIME = 0x80
CLONE_FILES = 0x400
AF_ALG, AF_VSOCK, AF_UNIX, AF_INET, AF_TIPC = 38, 40, 1, 2, 30

needs_filter = pytest.mark.skipif(os.uname().machine not in ARCHES, reason="no filter for this machine")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="loading a filter needs root")


def interpret(program: bytes, data: bytes) -> tuple[int, int]:
    """What a filter says about a call, and how many jumps it took to find out."""
    code = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    position = accumulator = jumps = 0
    while True:
        opcode, if_true, if_false, k = code[position]
        position += 1
        if opcode == confinement.BPF_LD_W_ABS:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif opcode == confinement.BPF_RET_K:
            return k, jumps
        else:
            holds = {
                confinement.BPF_JMP_JEQ_K: accumulator == k,
                confinement.BPF_JMP_JGE_K: accumulator >= k,
                confinement.BPF_JMP_JSET_K: bool(accumulator & k),
            }[opcode]
            position += if_true if holds else if_false
            jumps += 1


def call(machine: str, number: int, *arguments: int, arch: int | None = None) -> bytes:
    """struct seccomp_data."""
    padded = [*arguments, *(0,) * (6 - len(arguments))]
    return struct.pack("<IIQ6Q", number, ARCHES[machine] if arch is None else arch, 0, *padded)


def verdict(machine: str, number: int, *arguments: int) -> int | None:
    """The errno that the filter answers with, None for an allowed call."""
    action, _ = interpret(confinement.seccomp_filter(machine), call(machine, number, *arguments))
    if action == confinement.SECCOMP_RET_ALLOW:
        return None
    assert action & 0xFFFF0000 == confinement.SECCOMP_RET_ERRNO
    return action & 0xFFFF


def number_of(name: str, machine: str) -> int:
    number = confinement.SYSCALLS[name][COLUMNS[machine]]
    assert number is not None
    return number


@pytest.mark.parametrize("machine", ARCHES)
def test_every_number_gets_the_verdict_of_its_name(machine: str) -> None:
    program = confinement.seccomp_filter(machine)
    expected = {}
    for names, number in ((confinement._EPERM, errno.EPERM), (confinement._ENOSYS, errno.ENOSYS)):
        for name in names:
            found = confinement.SYSCALLS[name][COLUMNS[machine]]
            if found is not None:
                expected[found] = confinement.SECCOMP_RET_ERRNO | number
    for name in ("socket", "socketpair"):
        expected[number_of(name, machine)] = confinement.SECCOMP_RET_ERRNO | errno.EAFNOSUPPORT
    newest = confinement.NEWEST_SYSCALL[COLUMNS[machine]]
    assert newest is not None
    for number in range(newest + 1):
        action, _ = interpret(program, call(machine, number))
        assert action == expected.get(number, confinement.SECCOMP_RET_ALLOW), number


@pytest.mark.parametrize("machine", ARCHES)
def test_the_search_is_short_and_the_filter_small(machine: str) -> None:
    program = confinement.seccomp_filter(machine)
    assert len(program) // 8 < 200
    assert max(interpret(program, call(machine, number))[1] for number in range(500)) <= 15
    for name, most in (("ioctl", 15), ("clone", 10)):  # four requests of btrfs are looked for
        assert interpret(program, call(machine, number_of(name, machine)))[1] <= most


@pytest.mark.parametrize("machine", ARCHES)
def test_calls_younger_than_the_table_do_not_exist(machine: str) -> None:
    for number in (470, 600, 4096, 0x40000000 - 1, 0xFFFFFFFE):
        assert verdict(machine, number) == errno.ENOSYS


def test_x32_calls_do_not_exist() -> None:
    for number in (0, 1, 59, 165, 520, 547):
        assert verdict("x86_64", 0x40000000 | number) == errno.ENOSYS


@pytest.mark.parametrize("machine", ARCHES)
def test_a_call_that_a_tracer_took_over_passes(machine: str) -> None:
    assert verdict(machine, 0xFFFFFFFF) is None


@pytest.mark.parametrize("machine", ARCHES)
def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    other = "aarch64" if machine == "x86_64" else "x86_64"
    for arch in (FOREIGN[machine], ARCHES[other], 0):
        action, _ = interpret(confinement.seccomp_filter(machine), call(machine, 1, arch=arch))
        assert action == confinement.SECCOMP_RET_KILL_PROCESS


@pytest.mark.parametrize("machine", ARCHES)
def test_no_new_namespace_by_any_flag(machine: str) -> None:
    clone, unshare = number_of("clone", machine), number_of("unshare", machine)
    for flag in confinement.CLONE_NEW:
        assert verdict(machine, clone, flag | signal.SIGCHLD) == errno.EPERM
        assert verdict(machine, unshare, flag | CLONE_FILES) == errno.EPERM
    assert verdict(machine, unshare, CLONE_NEWTIME) == errno.EPERM
    assert verdict(machine, clone, 0x3D0F00) is None  # a thread
    assert verdict(machine, clone, 0x1200000 | signal.SIGCHLD) is None  # fork
    assert verdict(machine, unshare, CLONE_FILES) is None


@pytest.mark.parametrize("machine", ARCHES)
def test_only_sockets_that_can_be_saved(machine: str) -> None:
    for name in ("socket", "socketpair"):
        number = number_of(name, machine)
        allowed = {family for family in range(64) if verdict(machine, number, family) is None}
        assert allowed == {1, 2, 10, 16, 17}


@pytest.mark.parametrize("machine", ARCHES)
def test_nobody_types_into_a_terminal_from_within(machine: str) -> None:
    number = number_of("ioctl", machine)
    for request in (confinement.TIOCSTI, confinement.TIOCLINUX, confinement.TIOCSTI | 1 << 32):
        assert verdict(machine, number, 0, request) == errno.EPERM
    assert verdict(machine, number, 0, 0x5413) is None  # TIOCGWINSZ


@pytest.mark.parametrize("machine", ARCHES)
def test_no_subvolume_is_made_inside_and_files_are_still_cloned(machine: str) -> None:
    number = number_of("ioctl", machine)
    for request in confinement.BTRFS_NESTING:
        assert verdict(machine, number, 0, request) == errno.EPERM
    for request in (0x40049409, 0x4020940D, 0xC0189436):  # FICLONE, FICLONERANGE, FIDEDUPERANGE
        assert verdict(machine, number, 0, request) is None


def test_a_machine_without_a_table_is_said_to_have_none() -> None:
    with pytest.raises(MissingFeature, match="riscv64"):
        confinement.seccomp_filter("riscv64")


@pytest.mark.parametrize("machine", ARCHES)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip("no kernel headers")
    lines = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    known = {name: int(number) for name, number in lines}
    table = {name: numbers[COLUMNS[machine]] for name, numbers in confinement.SYSCALLS.items()}
    if machine == "aarch64":
        known["clock_adjtime"] = 266  # defined in two steps there
    highest = max(known.values())
    for name, number in table.items():
        if number is not None and number <= highest:
            assert known.get(name) == number, name


def test_the_capabilities_are_a_containers_without_device_nodes() -> None:
    assert confinement.DEFAULT_CAPS == 0xA80425FB & ~(1 << 27)
    assert confinement.available_caps() & ~confinement.DEFAULT_CAPS == 0
    assert confinement.available_caps(0) == 0


def test_paths_are_absolute_and_not_in_two_lists() -> None:
    paths = [*confinement.MASKED_PATHS, *confinement.READONLY_PATHS]
    assert len(paths) == len(set(paths))
    assert all(path.startswith(("/proc/", "/sys/")) for path in paths)


# ---- on the real kernel -------------------------------------------------------------------------


class SockFprog(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_LIBC = ctypes.CDLL(None, use_errno=True)


def confined(
    argv: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program with the filter of a box on it."""
    program = confinement.seccomp_filter()
    argument = SockFprog(len(program) // 8, program)

    def load() -> None:
        if _LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(argument), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return subprocess.run(
        argv,
        preexec_fn=load,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
        env=env,
    )


def confined_python(script: str) -> str:
    done = confined([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    return done.stdout


def errno_of(*arguments: int) -> int:
    """The errno of a raw system call made by a confined process, 0 if it went well."""
    return int(
        confined_python(
            "import ctypes\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            f"print(ctypes.get_errno() if libc.syscall(*{tuple(arguments)!r}) == -1 else 0)"
        )
    )


def has(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


@needs_filter
@needs_root
class TestOnThisKernel:
    def test_denied_calls_fail_as_the_table_says(self) -> None:
        machine = os.uname().machine
        asked = {}
        for names, number in ((confinement._EPERM, errno.EPERM), (confinement._ENOSYS, errno.ENOSYS)):
            for name in names:
                found = confinement.SYSCALLS[name][COLUMNS[machine]]
                if found is not None:
                    asked[found] = number
        answers = confined_python(
            "import ctypes\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            f"for number in {sorted(asked)!r}:\n"
            "    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
            "    print(number, ctypes.get_errno() if result == -1 else 0)\n"
        )
        numbers = [int(word) for word in answers.split()]
        assert dict(zip(numbers[::2], numbers[1::2], strict=True)) == asked

    def test_no_namespace_can_be_made_or_entered(self) -> None:
        machine = os.uname().machine
        assert errno_of(number_of("unshare", machine), CLONE_NEWUSER) == errno.EPERM
        assert errno_of(number_of("clone", machine), CLONE_NEWUSER | signal.SIGCHLD, 0) == errno.EPERM
        assert errno_of(number_of("setns", machine), 0, 0) == errno.EPERM
        assert errno_of(number_of("unshare", machine), CLONE_FILES) == 0

    def test_sockets_of_other_families_do_not_exist(self) -> None:
        number = number_of("socket", os.uname().machine)
        for family in (AF_ALG, AF_VSOCK, AF_TIPC):
            assert errno_of(number, family, 1, 0) == errno.EAFNOSUPPORT
        for family in (AF_UNIX, AF_INET):
            assert errno_of(number, family, 1, 0) == 0

    def test_nobody_types_into_a_terminal(self) -> None:
        answer = confined_python(
            "import fcntl, os, pty, termios\n"
            "_, slave = pty.openpty()\n"
            "try:\n"
            "    fcntl.ioctl(slave, termios.TIOCSTI, b'x')\n"
            "except OSError as failure:\n"
            "    print(failure.errno, os.isatty(slave), os.get_terminal_size(slave).lines)\n"
        )
        assert answer.split() == [str(errno.EPERM), "True", "0"]

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="int 0x80 is x86's")
    def test_a_32_bit_call_ends_the_process(self) -> None:
        script = (
            "import ctypes, mmap\n"
            "page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
            "page.write(bytes.fromhex('b814000000cd80c3'))  # getpid by way of int 0x80\n"
            "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())\n"
        )
        assert confined([sys.executable, "-c", script]).returncode == -signal.SIGSYS

    def test_bash_with_pipes_jobs_and_subshells(self) -> None:
        done = confined(
            ["bash", "-c", "sleep 0 & wait; (echo a; echo b) | tac; ulimit -n; [[ $(id -u) == 0 ]]"]
        )
        assert done.returncode == 0
        assert done.stdout.startswith("b\na\n")
        assert not done.stderr

    def test_python_with_threads_processes_and_sockets(self) -> None:
        script = (
            "import asyncio, concurrent.futures, multiprocessing, socket, sqlite3, subprocess, tempfile\n"
            "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
            "    assert sum(pool.map(lambda n: n * n, range(100))) == 328350\n"
            "process = multiprocessing.get_context('fork').Process(target=print)\n"
            "process.start(); process.join(); assert process.exitcode == 0\n"
            "assert subprocess.check_output(['echo', 'hi']) == b'hi\\n'\n"
            "async def main():\n"
            "    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)\n"
            "    reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
            "    assert await reader.read() == b''\n"
            "    server.close()\n"
            "asyncio.run(main())\n"
            "with tempfile.NamedTemporaryFile() as file:\n"
            "    database = sqlite3.connect(file.name)\n"
            "    database.execute('pragma journal_mode=wal')\n"
            "    database.execute('create table t(x)')\n"
            "socket.socketpair()\n"
            "print('done')\n"
        )
        assert confined_python(script).endswith("done\n")

    @has("node")
    def test_node_with_workers_children_and_a_server(self) -> None:
        script = """
            const { Worker } = require("worker_threads");
            const http = require("http"), fs = require("fs"), cp = require("child_process");
            fs.readFileSync("/etc/passwd");
            cp.execSync("true");
            new Worker("require('fs').promises.readFile('/etc/passwd')", { eval: true }).on("exit", () => {
                const server = http.createServer((_, res) => res.end("hi")).listen(0, "127.0.0.1", () =>
                    http.get({ port: server.address().port, host: "127.0.0.1" }, (res) =>
                        res.on("data", (data) => { console.log(String(data)); server.close(); })));
            });
        """
        done = confined(["node", "-e", script], env={**os.environ, "UV_USE_IO_URING": "1"})
        assert done.stdout == "hi\n", done.stderr

    @has("git")
    def test_git_with_a_clone(self, tmp_path: Path) -> None:
        script = (
            "git init -q a && cd a && echo x > f && git add . && "
            "git -c user.name=n -c user.email=e@e commit -qm m && "
            "cd .. && git clone -q a b && git -C b log --oneline && git -C b gc -q"
        )
        done = confined(["bash", "-c", script], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("m\n")

    @has("apt-get")
    def test_apt_solves_and_dpkg_unpacks(self, tmp_path: Path) -> None:
        script = (
            "apt-get -s -qq install bash >/dev/null && dpkg --audit && mkdir -p p/DEBIAN && "
            "printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: m\\nDescription: d\\n' "
            "> p/DEBIAN/control && dpkg-deb -b p >/dev/null && dpkg-deb -x p.deb out && echo done"
        )
        done = confined(["bash", "-c", script], cwd=tmp_path)
        assert done.stdout.endswith("done\n"), done.stderr
