"""The same work done with other tools, in the same run, on the same machine.

Each tool gets the same job: a folder of 1,000 files of which ten change, a shell, a `sleep` and a Python HTTP
server (`tree`), or one process with much memory of which 1% changes (`memory`). Each has to save that state
and continue, then go back to it and run a command there. What a tool does not restore at all (memory,
terminal, files) is reported beside its figures (`Peer.covers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from waypoint.bench.results import OURS
from waypoint.bench.runner import Bench, Timed, now_ms, select
from waypoint.bench.workloads import WAIT, WrongState
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.session import Session

COLD = "waypoint, cold"
_FILES = 1000
_CHANGED = 10
_TIMEOUT_SECONDS = 60


class Job(NamedTuple):
    """The state that is saved and restored."""

    name: str
    megabytes: int
    """The memory of its one process; 0 for the tree with the server."""
    files: int


class Run(Protocol):
    """A job that is running under one of the tools."""

    def change(self, number: int) -> None:
        """Writes ten files, or 1% of the memory, and sets a shell variable."""

    def checkpoint(self) -> Timed: ...

    def rollback(self) -> Timed:
        """Goes back to the last checkpoint. Checks that what the tool covers is restored."""


class Peer(NamedTuple):
    """One of the tools that are measured."""

    covers: str
    missing: Callable[[Bench], str | None]
    """Returns why it cannot be measured on this machine, if so."""
    jobs: tuple[str, ...]
    start: Callable[[Bench, Job], contextlib.AbstractContextManager[Run]]


# ---- the job ---------------------------------------------------------------------------------------

# Holds memory, and writes to 1% of its pages at each signal.
_HOLDER = """
import os, signal, sys
size = int(sys.argv[1]) << 20
memory = bytearray(size)
for at in range(0, size, 4096):
    memory[at:at + 8] = os.urandom(8)
turn = 0
def dirty(*_):
    global turn
    turn += 1
    for page in range(turn % 100, size // 4096, 100):
        memory[page * 4096 + 16:page * 4096 + 24] = os.urandom(8)
    open("turn", "w").write(str(turn))
signal.signal(signal.SIGUSR1, dirty)
open("turn", "w").write("0")
while True:
    signal.pause()
"""


def _make_folder(folder: Path, job: Job) -> None:
    for number in range(job.files):
        place = folder / str(number // 100)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number)).write_text(f"file {number}\n" * 40)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "holder.py").write_text(_HOLDER)


def _start_line(bench: Bench, job: Job, port: int) -> str:
    """What a shell in the folder runs to start the job."""
    if job.megabytes:
        return (
            f"{bench.python} holder.py {job.megabytes} >/dev/null 2>&1 & "
            "until [ -s turn ]; do sleep 0.01; done"
        )
    server = f"{bench.python} -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1"
    return f"sleep 100000 & {server} & {WAIT.replace('PORT', str(port))}"


def _change_line(job: Job, number: int) -> str:
    if job.megabytes:
        return 'was=$(cat turn); kill -USR1 $!; until [ "$(cat turn)" != "$was" ]; do sleep 0.002; done'
    names = " ".join(f"{n // 100}/{n}" for n in range(number % 90, job.files, job.files // _CHANGED))
    return f"for f in {names}; do echo {number} > $f; done"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kill_group(process: subprocess.Popen[Any]) -> None:
    """Kills a process and its whole group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(_TIMEOUT_SECONDS)
    for stream in (process.stdin, process.stdout):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()


# ---- Waypoint --------------------------------------------------------------------------------------


class _OurRun:
    def __init__(self, bench: Bench, session: Session, job: Job, *, spares: bool) -> None:
        self._bench, self._session, self._job, self._spares = bench, session, job, spares
        self._point: Checkpoint | None = None
        self._state = 0

    def change(self, number: int) -> None:
        self._session.run(_change_line(self._job, number), timeout=60).check()
        self._session.run(f"state={number}").check()
        self._state = number

    def checkpoint(self) -> Timed:
        self._point, took = self._bench.checkpoint(self._session)
        return took

    def rollback(self) -> Timed:
        assert self._point
        if self._spares:
            self._bench.wait_for_spare(self._point)
        took = self._bench.rollback(self._session, self._point)[1]
        state = self._session.run("echo $state").output.strip()
        if state != str(self._state):
            raise WrongState(f"the shell is at {state!r} after a restore, not at {self._state}")
        return took


def _waypoint(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _in_session(bench, job, spares=True)


def _waypoint_cold(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _in_session(bench, job, spares=False)


@contextlib.contextmanager
def _in_session(bench: Bench, job: Job, *, spares: bool) -> Iterator[Run]:
    with bench.session(spares=None if spares else 0) as session:
        folder = bench.work / "job"
        _make_folder(folder, job)
        try:
            session.copy_in(folder, "/srv/job")
        finally:
            shutil.rmtree(folder)
        session.run("cd /srv/job; set +m").check()
        session.run(_start_line(bench, job, 8000), timeout=60).check()
        yield _OurRun(bench, session, job, spares=spares)


# ---- CRIU alone ------------------------------------------------------------------------------------

# Pid 1 of its own namespaces, with CRIU beside the tree as in a box. The tree is a shell that reads from one
# FIFO and writes to another. Each line on stdin is answered by one on stdout.
_CRIU_DRIVER = r"""
import fcntl, json, os, signal, socket, struct, subprocess, sys, time
setting = json.loads(sys.argv[1])
images, criu = setting["images"], setting["criu"]
with socket.socket() as probe:  # brings the loopback interface up
    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14s", b"lo", 0x1 | 0x40, b""))
# CRIU caches the features of the kernel in /run.
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.chdir(setting["folder"])
for name in ("in", "out"):
    os.mkfifo(f"/run/{name}")
ins, outs = (os.open(f"/run/{name}", os.O_RDWR) for name in ("in", "out"))
output = os.fdopen(os.dup(outs), "r")

def shell_run(line):
    os.write(ins, (line + "\necho done $?\n").encode())
    while not output.readline().startswith("done"):
        pass

def members(root):
    pids = [root]
    for pid in pids:
        try:
            pids += map(int, open(f"/proc/{pid}/task/{pid}/children").read().split())
        except OSError:
            pass
    return pids

def kill_tree():
    for pid in members(shell):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    reap(until_none=True)

def reap(until_none=False):
    try:
        while os.waitpid(-1, 0 if until_none else os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass

def run_criu(*words):
    options = ["-D", images, "-v1", "-o", "log", "--tcp-established", "--network-lock", "skip"]
    options += ["--manage-cgroups=ignore", "--file-locks", "--link-remap"]
    done = subprocess.run([*criu, *words, *options])
    if done.returncode:
        raise SystemExit(open(f"{images}/log").read()[-2000:])

def restore():
    open("/proc/sys/kernel/ns_last_pid", "w").write("3000000")
    run_criu("restore", "-d")

shell = subprocess.Popen(["bash", "--norc", "--noprofile"], stdin=ins, stdout=outs, stderr=subprocess.DEVNULL,
                         start_new_session=True).pid
shell_run(setting["start"])
print("ready", flush=True)
for line in sys.stdin:
    verb, _, rest = line.strip().partition(" ")
    began = time.perf_counter()
    if verb == "run":
        shell_run(rest)
    elif verb == "checkpoint":
        run_criu("dump", "-t", str(shell))
        reap()
        restore()
    elif verb == "rollback":
        kill_tree()
        restore()
    print(json.dumps((time.perf_counter() - began) * 1000), flush=True)
"""


class _CriuRun:
    def __init__(self, driver: subprocess.Popen[str], job: Job) -> None:
        self._driver, self._job = driver, job

    def _send(self, line: str) -> float:
        """Sends a line to the driver; returns how long it took there, in milliseconds."""
        assert self._driver.stdin
        assert self._driver.stdout
        self._driver.stdin.write(f"{line}\n")
        self._driver.stdin.flush()
        answer = self._driver.stdout.readline()
        if not answer:
            raise WrongState("CRIU alone failed", hint=line)
        return float(answer)

    def change(self, number: int) -> None:
        self._send(f"run {_change_line(self._job, number)}")
        self._send(f"run state={number}")

    def checkpoint(self) -> Timed:
        began = now_ms()
        took = self._send("checkpoint")  # the dump kills the tree, so it has to be restored to continue
        answered = now_ms()
        self._send("run true")
        return Timed(took, answered - began, now_ms() - began)

    def rollback(self) -> Timed:
        began = now_ms()
        self._send("rollback")
        answered = now_ms()
        self._send("run true")
        return Timed(None, answered - began, now_ms() - began)


@contextlib.contextmanager
def _criu(bench: Bench, job: Job) -> Iterator[Run]:
    prefix = Path(os.environ["WAYPOINT_ENGINE"]) / "criu"
    folder, images = bench.work / "criu" / "folder", bench.work / "criu" / "images"
    _make_folder(folder, job)
    images.mkdir()
    loader = [f"{prefix}/ld.so", "--inhibit-cache", "--library-path", f"{prefix}/lib"]
    setting = {
        "criu": [*loader, f"{prefix}/criu", "--no-default-config", "--libdir", f"{prefix}/plugins"],
        "images": str(images),
        "folder": str(folder),
        "start": _start_line(bench, job, 8000),
    }
    unshare = ["unshare", "--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    driver = subprocess.Popen(
        [*unshare, bench.python, "-c", _CRIU_DRIVER, json.dumps(setting)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stdout
        if driver.stdout.readline() != "ready\n":
            raise WrongState("CRIU alone could not be started")
        yield _CriuRun(driver, job)
    finally:
        _kill_group(driver)
        shutil.rmtree(bench.work / "criu")


# ---- copies, replay, git ---------------------------------------------------------------------------


class _Shell:
    """A shell on this machine that runs the job."""

    def __init__(self, bench: Bench, job: Job, folder: Path) -> None:
        self._start = _start_line(bench, job, _free_port())
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        (self._folder / "turn").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.run(self._start)

    def run(self, line: str) -> None:
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\necho done\n")
        self._process.stdin.flush()
        while self._process.stdout.readline() not in ("done\n", ""):
            pass

    def end(self) -> None:
        if self._process:
            _kill_group(self._process)
            self._process = None


class _CopyRun:
    """`cp -a` of the folder. To go back, the programs are killed, the folder is copied back and the programs
    are started again. Old copies are deleted after the last round; that time is not counted."""

    def __init__(self, shell: _Shell, folder: Path, job: Job) -> None:
        self._shell, self._folder, self._job = shell, folder, job
        self._copies = 0

    def _sibling(self, kind: str) -> Path:
        return self._folder.with_name(f"{kind}-{self._copies}")

    def change(self, number: int) -> None:
        self._shell.run(_change_line(self._job, number))

    def checkpoint(self) -> Timed:
        self._copies += 1
        began = now_ms()
        subprocess.run(["cp", "-a", self._folder, self._sibling("copy")], check=True)
        answered = now_ms()
        self._shell.run("true")
        return Timed(None, answered - began, now_ms() - began)

    def rollback(self) -> Timed:
        began = now_ms()
        self._shell.end()
        self._folder.rename(self._sibling("old"))
        subprocess.run(["cp", "-a", self._sibling("copy"), self._folder], check=True)
        self._shell.start()
        answered = now_ms()
        self._shell.run("true")
        return Timed(None, answered - began, now_ms() - began)


@contextlib.contextmanager
def _on_host(bench: Bench, job: Job, name: str, run: Callable[[_Shell, Path, Job], Run]) -> Iterator[Run]:
    """The job in a folder of this machine, with an ordinary shell."""
    place = bench.work / name
    folder = place / "folder"
    _make_folder(folder, job)
    shell = _Shell(bench, job, folder)
    try:
        shell.start()
        yield run(shell, folder, job)
    finally:
        shell.end()
        shutil.rmtree(place)


def _copy(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _on_host(bench, job, "copy", _CopyRun)


class _GitRun:
    """A git repository beside the folder: how coding agents make their own checkpoints."""

    def __init__(self, shell: _Shell, folder: Path, job: Job) -> None:
        self._shell, self._folder, self._job = shell, folder, job
        self._environment = {
            **os.environ,
            "GIT_DIR": f"{folder}.git",
            "GIT_WORK_TREE": str(folder),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
        }
        for key in ("AUTHOR", "COMMITTER"):
            self._environment |= {f"GIT_{key}_NAME": "bench", f"GIT_{key}_EMAIL": "bench@localhost"}
        self._git("init", "-q")

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], env=self._environment, cwd=self._folder, check=True)

    def change(self, number: int) -> None:
        self._shell.run(_change_line(self._job, number))

    def checkpoint(self) -> Timed:
        began = now_ms()
        self._git("add", "-A")
        self._git("commit", "-q", "--allow-empty", "-m", "bench")
        answered = now_ms()
        self._shell.run("true")
        return Timed(None, answered - began, now_ms() - began)

    def rollback(self) -> Timed:
        began = now_ms()
        self._git("reset", "-q", "--hard")
        self._git("clean", "-qfd")
        answered = now_ms()
        self._shell.run("true")
        return Timed(None, answered - began, now_ms() - began)


def _git(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _on_host(bench, job, "git", _GitRun)


# ---- a process that forks itself -------------------------------------------------------------------

# The process forks a copy of itself that waits: its checkpoint. To go back it wakes the copy and exits. The
# copy first forks another copy of itself, so that the checkpoint remains.
_FORKER = """
import os, sys
size = int(sys.argv[1]) << 20
memory = bytearray(size)
for at in range(0, size, 4096):
    memory[at:at + 8] = os.urandom(8)
state, copy, turn = 0, None, 0
def say(text):
    os.write(1, (text + "\\n").encode())
def checkpoint():
    global copy
    if copy is not None:
        os.close(copy)
    reader, writer = os.pipe()
    if os.fork():
        os.close(reader)
        copy = writer
        return
    os.close(writer)
    while True:
        if os.read(reader, 1) != b"b":  # closed: a newer checkpoint exists
            os._exit(0)
        os.read(reader, 1)  # until the process that woke this one has exited
        os.close(reader)
        copy = None
        checkpoint()
        return
buffer = b""
say("ready")
while True:
    while b"\\n" not in buffer:
        more = os.read(0, 4096)
        if not more:
            os._exit(0)
        buffer += more
    line, _, buffer = buffer.partition(b"\\n")
    verb, _, rest = line.decode().partition(" ")
    if verb == "checkpoint":
        checkpoint()
    elif verb == "back":
        os.write(copy, b"b")
        os._exit(0)
    elif verb == "change":
        state, turn = int(rest), turn + 1
        for page in range(turn % 100, size // 4096, 100):
            memory[page * 4096 + 16:page * 4096 + 24] = os.urandom(8)
    say(str(state))
"""


class _ForkRun:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._state = process, 0

    def read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.read()

    def change(self, number: int) -> None:
        self._ask(f"change {number}")

    def checkpoint(self) -> Timed:
        began = now_ms()
        self._state = int(self._ask("checkpoint"))
        answered = now_ms()
        self._ask("state")
        return Timed(answered - began, answered - began, now_ms() - began)

    def rollback(self) -> Timed:
        self._ask(f"change {self._state + 1}")
        began = now_ms()
        state = self._ask("back")  # the copy answers
        answered = now_ms()
        self._ask("state")
        if state != str(self._state):
            raise WrongState(f"the process is at {state!r} after going back, not at {self._state}")
        return Timed(None, answered - began, now_ms() - began)


@contextlib.contextmanager
def _fork(bench: Bench, job: Job) -> Iterator[Run]:
    process = subprocess.Popen(
        [bench.python, "-c", _FORKER, str(job.megabytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        run = _ForkRun(process)
        run.read()
        yield run
    finally:
        _kill_group(process)


# ---- podman ----------------------------------------------------------------------------------------

_PROGRAMS = ("bash", "cat", "chmod", "mkdir", "rm", "sleep", "true")
_IMAGE = "localhost/waypoint-bench"


def _make_root(folder: Path, python: str) -> None:
    """Makes a root file system with a shell and Python, at the paths they have on this machine."""
    library = Path(sysconfig.get_path("stdlib"))
    left_out = shutil.ignore_patterns(
        "test", "tests", "site-packages", "dist-packages", "__pycache__", "config-*"
    )
    shutil.copytree(library, folder / library.relative_to("/"), ignore=left_out, symlinks=True)
    programs = [python, *filter(None, (shutil.which(name, path="/usr/bin:/bin") for name in _PROGRAMS))]
    for program in programs:
        for place in (Path(program), Path("/bin") / Path(program).name):
            copy = folder / place.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(program, copy)
    extensions = [str(path) for path in (library / "lib-dynload").glob("*.so")]
    ldd = subprocess.run(["ldd", *programs, *extensions], capture_output=True, text=True, check=False)
    for path in {word for word in ldd.stdout.split() if word.startswith("/") and not word.endswith(":")}:
        copy = folder / path.lstrip("/")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for name in ("dev", "etc", "proc", "sys", "tmp"):
        (folder / name).mkdir(exist_ok=True)


class _Podman:
    """A podman with its own storage, and the CRIU of this engine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        engine = Path(os.environ["WAYPOINT_ENGINE"]) / "criu"
        criu = f"{engine}/ld.so --inhibit-cache --library-path {engine}/lib {engine}/criu"
        config = place / "home" / ".config" / "containers"
        for folder in (place / "bin", config):
            folder.mkdir(parents=True)
        (place / "bin" / "criu").write_text(f'#!/bin/sh\nexec {criu} --libdir {engine}/plugins "$@"\n')
        (place / "bin" / "criu").chmod(0o755)
        (place / "criu.conf").write_text("network-lock skip\n")
        (place / "containers.conf").write_text('[engine]\nlock_type = "file"\n')
        (config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        runtime = next((name for name in ("runc", "crun") if shutil.which(name)), "runc")
        folders = ["--root", f"{place}/root", "--runroot", f"{place}/run", "--tmpdir", f"{place}/tmp"]
        options = ["--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        self._command = ["podman", *folders, *options, "--runtime", shutil.which(runtime) or runtime]
        self._environment = {
            **os.environ,
            "HOME": str(place / "home"),
            "CONTAINERS_CONF": str(place / "containers.conf"),
            "PATH": f"{place}/bin:{os.environ.get('PATH', '')}",
        }

    def __call__(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self._command, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if check and done.returncode:
            raise WrongState(f"podman {words[0]} {words[1]}: {' '.join(done.stderr.split())[-300:]}")
        return done.stdout

    def start(self, image: str, line: str) -> None:
        options = ("--network", "none", "--annotation", f"org.criu.config={self.place}/criu.conf")
        # Limits that cannot be raised without CAP_SYS_RESOURCE can still be lowered.
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
        command = ("/bin/bash", "-c", f"cd /srv/job; {line}; while :; do sleep 100000; done")
        self("run", "-d", "--name", "job", *options, *limits, image, *command)
        self("exec", "job", "/bin/bash", "-c", WAIT.replace("PORT", "8000"))

    def end(self) -> None:
        self("kill", "job", check=False)
        self("rm", "-f", "job", check=False)


class _PodmanRun:
    """Exported checkpoints: only so can there be more than one to go back to."""

    def __init__(self, podman: _Podman, job: Job, line: str) -> None:
        self._podman, self._job, self._line = podman, job, line
        self._file = str(podman.place / "point.tar")

    def change(self, number: int) -> None:
        self._podman("exec", "job", "/bin/bash", "-c", f"cd /srv/job; {_change_line(self._job, number)}")

    def _timed(self, began: float, pause: float | None = None) -> Timed:
        """The operation that began then has just ended: runs a command and returns the times."""
        answered = now_ms()
        self._podman("exec", "job", "/bin/true")
        return Timed(pause, answered - began, now_ms() - began)

    def checkpoint(self) -> Timed:
        began = now_ms()
        words = ("--print-stats", "--leave-running", "--compress", "none", "--export", self._file)
        answer = json.loads(self._podman("container", "checkpoint", *words, "job"))
        numbers = answer["container_statistics"][0]["criu_statistics"]
        return self._timed(began, (numbers["freezing_time"] + numbers["frozen_time"]) / 1000)

    def rollback(self) -> Timed:
        began = now_ms()
        self._podman.end()
        self._podman("container", "restore", "--import", self._file)
        return self._timed(began)


class _CommitRun(_PodmanRun):
    """Images of the files. To go back, the programs are started again."""

    def checkpoint(self) -> Timed:
        began = now_ms()
        self._podman("commit", "-q", "job", f"{_IMAGE}:point")
        return self._timed(began)

    def rollback(self) -> Timed:
        began = now_ms()
        self._podman.end()
        self._podman.start(f"{_IMAGE}:point", self._line)
        return self._timed(began)


@contextlib.contextmanager
def _container(bench: Bench, job: Job, kind: type[_PodmanRun]) -> Iterator[Run]:
    place = bench.work / "podman"
    podman = _Podman(place)
    try:
        _make_root(place / "base", bench.python)
        _make_folder(place / "base" / "srv" / "job", job)
        subprocess.run(["tar", "-C", place / "base", "-cf", place / "base.tar", "."], check=True)
        podman("import", str(place / "base.tar"), f"{_IMAGE}:base")
        line = _start_line(bench, job, 8000)
        podman.start(f"{_IMAGE}:base", line)
        yield kind(podman, job, line)
    finally:
        podman.end()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{place}/")]):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        shutil.rmtree(place)


def _podman(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _container(bench, job, _PodmanRun)


def _podman_commit(bench: Bench, job: Job) -> contextlib.AbstractContextManager[Run]:
    return _container(bench, job, _CommitRun)


# ---- the list --------------------------------------------------------------------------------------


def _nothing_missing(_: Bench) -> None:
    return None


def _needs(program: str) -> Callable[[Bench], str | None]:
    return lambda _: None if shutil.which(program) else f"{program} is not installed"


PEERS = {
    OURS: Peer(
        "files, all processes with memory, shell, terminal", _nothing_missing, ("tree", "memory"), _waypoint
    ),
    COLD: Peer(
        "the same, without a spare restored ahead of time",
        _nothing_missing,
        ("tree", "memory"),
        _waypoint_cold,
    ),
    "criu": Peer(
        "processes with memory; no files, no terminal; the tree is killed and restored for each point",
        _needs("unshare"),
        ("tree", "memory"),
        _criu,
    ),
    "cp": Peer(
        "files; programs are started again and have lost their memory",
        _needs("cp"),
        ("tree", "memory"),
        _copy,
    ),
    "git": Peer("files that git does not ignore; no processes", _needs("git"), ("tree",), _git),
    "self-fork": Peer(
        "one single-threaded process that cooperates; no files, no shell, no terminal",
        _nothing_missing,
        ("tree", "memory"),
        _fork,
    ),
    "podman": Peer(
        "a container's files and processes with memory, as an exported archive; no attached terminal",
        _needs("podman"),
        ("tree",),
        _podman,
    ),
    "podman-commit": Peer(
        "a container's files; programs are started again and have lost their memory",
        _needs("podman"),
        ("tree",),
        _podman_commit,
    ),
}
OTHERS = [name for name in PEERS if name not in (OURS, COLD)]


def measure(bench: Bench) -> None:
    """Waypoint first, then the other tools, each on every job it can do."""
    names = OTHERS if bench.peers is None else select(bench.peers, OTHERS, "peer") if bench.peers else []
    jobs = (Job("tree", 0, _FILES), Job("memory", 64 if bench.quick else 256, 10))
    for job in jobs:
        for name in (OURS, COLD, *names):
            peer = PEERS[name]
            if why := peer.missing(bench):
                if job is jobs[0]:
                    bench.skip(name, why)
                continue
            if job.name not in peer.jobs:
                continue
            bench.covers[name] = peer.covers
            bench.say(f"  {job.name}: {name}")
            try:
                _measure_peer(bench, name, peer, job)
            except (OSError, subprocess.SubprocessError, WrongState, ValueError) as error:
                if name in (OURS, COLD):
                    raise
                bench.skip(f"{name} ({job.name})", str(error))


def _measure_peer(bench: Bench, name: str, peer: Peer, job: Job) -> None:
    case = job.name if not job.megabytes else f"{job.name} {job.megabytes} MB"
    with peer.start(bench, job) as run:
        run.change(1)
        run.checkpoint()
        run.rollback()
        deadline = time.monotonic() + bench.rounds(15, 3)
        for number in range(2, 2 + bench.rounds(10, 5)):
            if number > 3 and time.monotonic() > deadline:
                break  # two rounds of a slow tool are enough
            run.change(number)
            bench.add_timed("peers", case, "checkpoint", run.checkpoint(), who=name)
            time.sleep(0.05)
            bench.add_timed("peers", case, "rollback", run.rollback(), who=name)
