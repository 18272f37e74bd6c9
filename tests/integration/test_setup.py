"""Setting up, for real: CRIU from the distribution's archive, altered, and proven by a dump and a restore."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from waypoint.engine.criu import criu_argv, criu_environment
from waypoint.errors import SetupFailed
from waypoint.machine import apt, natives, setup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# A tree with a listening socket and a thread. Whoever connects is told how far the thread has counted.
TREE = """
import fcntl, socket, struct, threading, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    SIOCSIFFLAGS, up_and_running = 0x8914, 0x41
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", up_and_running))
count = 0
def work():
    global count
    while True:
        count += 1
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
server = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(b"%d" % count)
    client.close()
"""

ASK = """
import socket
with socket.create_connection(("127.0.0.1", 8000), 5) as client:
    print(client.recv(99).decode())
"""

# Runs as pid 1 of throw-away namespaces; $criu, $python, $TREE and $ASK are in its environment.
STAGE = """
set -eu
mount -t tmpfs -o mode=755 dev /dev
mknod /dev/null c 1 3; mknod /dev/zero c 1 5; mknod /dev/urandom c 1 9; mknod /dev/tty c 5 0
mkdir /dev/pts /dev/images
mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts
ln -s pts/ptmx /dev/ptmx
setsid "$python" -I -c "$TREE" </dev/null >/dev/out 2>&1 &
tree=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q ready /dev/out && break
    sleep 0.1
done
before=$("$python" -I -c "$ASK")
options='-D /dev/images -v2 --tcp-established --network-lock skip --manage-cgroups=ignore'
$criu dump -t $tree $options -o dump.log || { grep Error /dev/images/dump.log | tail -2; exit 1; }
wait $tree || :
echo 300000 >/proc/sys/kernel/ns_last_pid
$criu restore -d $options -o restore.log || { grep Error /dev/images/restore.log | tail -2; exit 1; }
after=$("$python" -I -c "$ASK")
[ "$after" -ge "$before" ] || { echo "its thread counted $before before and $after after"; exit 1; }
test -s /dev/criu.kdat || { echo "its kernel cache is not in /dev"; exit 1; }
"""


def run_apart(script: str, *, network: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell script as pid 1 of its own mount, pid, ipc and, unless told not to, network namespaces."""
    kinds = ["-m", "-p", "-i", *(["-n"] if network else [])]
    return subprocess.run(
        ["unshare", *kinds, "-f", "--kill-child", "--mount-proc", "sh", "-c", script],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def dumps_and_restores(engine: Path) -> str | None:
    criu = " ".join(criu_argv(engine))
    done = run_apart(STAGE, criu=criu, python=sys.executable, TREE=TREE, ASK=ASK)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or "no reason given"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> setup.Engine:
    """An engine built from nothing, in a home of its own, on a machine whose own criu is of no use."""
    home, programs = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("bin")
    shutil.copy(Path("/bin/true").resolve(), programs / "criu")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WAYPOINT_ENGINE", raising=False)
        patch.setenv("PATH", str(programs), prepend=os.pathsep)
        return setup.ensure_engine(home, lambda _: None, probe=dumps_and_restores)


def run_criu(engine: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = criu_argv(engine, *args)
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.network
def test_a_working_criu_is_built_and_the_machines_useless_one_passed_over(engine: setup.Engine) -> None:
    assert dumps_and_restores(engine.folder) is None
    assert engine.criu.origin == "package"
    assert setup.read_engine(engine.folder) == engine
    (own,) = engine.rejected
    assert "the machine's own criu" in own.candidate
    assert "/run/criu.kdat" in own.reason
    left = {path.name for path in engine.folder.iterdir()}
    assert left == {"bin", "criu", "engine.json", ".lock"}


@pytest.mark.network
def test_a_probe_that_fails_gives_the_reason(engine: setup.Engine, tmp_path: Path) -> None:
    shutil.copytree(engine.folder, tmp_path / "broken")
    (tmp_path / "broken/criu/lib/libc.so.6").unlink()
    reason = dumps_and_restores(tmp_path / "broken")
    assert reason is not None
    assert "libc.so.6" in reason


@pytest.mark.network
def test_new_sources_are_built_into_the_engine_while_it_is_in_use(
    engine: setup.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sources = tmp_path / "engine", tmp_path / "native"
    shutil.copytree(engine.folder, folder)
    shutil.copytree(natives.SOURCES, sources)
    with (sources / "anchor.c").open("a") as anchor:
        anchor.write("/* changed */\n")
    monkeypatch.setenv("WAYPOINT_ENGINE", str(folder))
    monkeypatch.setattr(natives, "SOURCES", sources)
    digest = natives.natives_hash(sources)
    monkeypatch.setattr(natives, "natives_hash", lambda: digest)
    place = os.open(folder, os.O_PATH)
    said: list[str] = []
    results: list[setup.Engine] = []
    probing = threading.Event()

    def slow_probe(candidate: Path) -> str | None:
        probing.set()
        return dumps_and_restores(candidate)

    def ensure() -> None:
        results.append(setup.ensure_engine(tmp_path, said.append, probe=slow_probe))

    try:
        first, second = threading.Thread(target=ensure), threading.Thread(target=ensure)
        first.start()
        assert probing.wait(30)
        second.start()
        first.join()
        second.join()
        assert os.stat(folder).st_ino == os.fstat(place).st_ino, "a box's mount would show the old one"
    finally:
        os.close(place)
    assert results[0] == results[1]
    assert results[0].natives == digest
    assert results[0].criu == engine.criu
    assert said.count("compiling bin/anchor") == 1
    assert "another process is setting up; waiting for it" in said
    assert not [line for line in said if "downloading" in line]
    assert run_criu(folder, "--version").returncode == 0


# CRIU runs with all privileges where others own the files ------------------------------------------------

# Says so wherever it is loaded.
TRAP = (
    '#include <unistd.h>\n__attribute__((constructor)) static void t(void) { write(2, "TRAPPED\\n", 8); }\n'
)


@pytest.fixture(scope="session")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trap")
    (folder / "trap.c").write_text(TRAP)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", "trap.so", "trap.c"], cwd=folder, check=True)
    return folder / "trap.so"


@pytest.mark.network
def test_a_boxs_preload_file_loads_nothing_into_criu(engine: setup.Engine, trap: Path) -> None:
    criu = " ".join(criu_argv(engine.folder, "--version"))
    # /etc is an empty file system of this script's own; the machine's stays as it is.
    prepared = f"set -eu; mount -t tmpfs etc /etc; echo {trap} >/etc/ld.so.preload; "
    trapped = run_apart(prepared + "exec /bin/true")
    assert "TRAPPED" in trapped.stderr, "this test proves nothing if the trap does not work"
    # `exec` by the very shell that wrote the file: every other program would be trapped as well.
    done = run_apart(f"{prepared} exec {criu}")
    assert "TRAPPED" not in done.stderr
    assert "Version:" in done.stdout


@pytest.mark.network
def test_a_boxs_libraries_are_not_even_looked_for(engine: setup.Engine, tmp_path: Path) -> None:
    shutil.copytree(engine.folder, tmp_path / "engine")
    (tmp_path / "engine/criu/lib/libuuid.so.1").unlink()
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    assert "libuuid.so.1" in known, "this test proves nothing if the machine does not have it either"
    done = run_criu(tmp_path / "engine", "--version")
    assert done.returncode != 0
    assert "libuuid.so.1" in done.stderr


@pytest.mark.network
def test_a_boxs_plugins_and_options_are_not_read_by_criu(engine: setup.Engine, trap: Path) -> None:
    bare = criu_argv(engine.folder)
    bare = bare[: bare.index("--no-default-config")]  # the altered program alone, without our options
    prepared = f"""
        set -eu
        mount -t tmpfs box /mnt
        mkdir -p /mnt/upper/criu /mnt/work
        cp {trap} /mnt/upper/criu/trap.so
        mount -t overlay -o lowerdir=/usr/lib,upperdir=/mnt/upper,workdir=/mnt/work box /usr/lib
        mount -t tmpfs dev /dev
        mknod /dev/null c 1 3
        mkdir /dev/pts /dev/images
        mount -t devpts -o newinstance pts /dev/pts
        mount -t tmpfs etc /etc
        mkdir /etc/criu
        echo no-such-option >/etc/criu/default.conf
        setsid sleep 60 </dev/null >/dev/null 2>&1 &
    """
    dump = "dump -t $! -D /dev/images -o dump.log --manage-cgroups=ignore --network-lock skip --shell-job"
    trapped = run_apart(f"{prepared} {' '.join(bare)} {dump} --libdir /usr/lib/criu", network=False)
    assert "TRAPPED" in trapped.stderr, "this test proves nothing if the trap does not work"
    complain = "{ grep Error /dev/images/dump.log >&2; exit 1; }"
    done = run_apart(f"{prepared} {' '.join(bare)} {dump} || {complain}", network=False)
    assert done.returncode == 0, done.stderr
    assert "TRAPPED" not in done.stderr


@pytest.mark.network
def test_a_boxs_shell_is_not_run_by_criu(engine: setup.Engine, tmp_path: Path) -> None:
    (tmp_path / "sh").write_text("#!/bin/sh\necho TRAPPED >/dev/trapped\n")
    (tmp_path / "sh").chmod(0o755)
    criu = " ".join(criu_argv(engine.folder, "check"))
    prepared = "mount -t tmpfs dev /dev; mknod /dev/null c 1 3; "
    trapped = run_apart(f"{prepared} PATH={tmp_path} {criu}; ls /dev/trapped", network=False)
    assert "/dev/trapped" in trapped.stdout, "this test proves nothing if the trap does not work"
    path = criu_environment()["PATH"]
    done = run_apart(f"{prepared} PATH={path} {criu}; ls /dev", network=False)
    assert "criu.kdat" in done.stdout
    assert "trapped" not in done.stdout


# Signatures ------------------------------------------------------------------------------------------------


def debian_source() -> tuple[apt.Source, apt.Distribution]:
    distribution = apt.read_distribution()
    sources = apt.archive_sources(apt.machine_sources(), distribution)
    if distribution.keyring_package != "debian-archive-keyring" or not sources:
        pytest.skip("needs Debian's archive and keys")
    return sources[0], distribution


def keyring(name: str) -> str:
    path = Path("/usr/share/keyrings") / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return str(path)


@pytest.mark.network
def test_keys_of_newer_suites_come_through_the_suite_that_can_be_verified(tmp_path: Path) -> None:
    source, distribution = debian_source()
    tmp_path.chmod(0o755)
    # The key that signs this release alone, as on a machine that has not been updated since.
    old = replace(source, signed_by=keyring(f"debian-archive-{distribution.codename}-stable.gpg"))
    old = replace(old, suites=(distribution.codename,))
    said: list[str] = []
    apt.open_suites(tmp_path / "apt", old, ("testing",), distribution, said.append)
    assert [line for line in said if "debian-archive-keyring" in line]


@pytest.mark.network
def test_an_archive_that_cannot_be_verified_is_not_used(tmp_path: Path) -> None:
    source, distribution = debian_source()
    stranger = replace(source, signed_by=keyring("debian-archive-removed-keys.gpg"))
    stranger = replace(stranger, suites=(distribution.codename,))
    with pytest.raises(apt.Unverifiable):
        apt.open_suites(tmp_path / "apt", stranger, ("testing",), distribution, lambda _: None)


def test_an_archive_that_cannot_be_reached_is_an_error_with_a_hint(tmp_path: Path) -> None:
    source = apt.Source(("http://127.0.0.1:9",), ("testing",), ("main",))
    distribution = apt.Distribution(
        "Debian", "bookworm", (("testing",),), ("main",), "debian-archive-keyring"
    )
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt")
    with pytest.raises(SetupFailed) as caught:
        apt.open_suites(tmp_path / "apt", source, ("testing",), distribution, lambda _: None)
    assert "network" in caught.value.hint


# The program in the root of the clone ----------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose package only tells how it was called, and which requires nothing."""
    root = Path(__file__).parents[2]
    clone = tmp_path / "a clone"
    (clone / "src/waypoint").mkdir(parents=True)
    shutil.copy(root / "waypoint", clone)
    (clone / "requirements.txt").write_text("# nothing\n")
    (clone / "src/waypoint/__main__.py").write_text("import sys\nprint(sys.argv[1:])\n")
    return clone


def start(program: Path, *args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program, *args], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_first_starts_at_once_set_up_once(clone: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(clone / "waypoint")
    # A module in the current folder must not take the place of the standard library's.
    (tmp_path / "sysconfig.py").write_text("raise SystemExit('shadowed')\n")
    both = [start(link, "two words", "--x", cwd=tmp_path), start(clone / "waypoint", cwd=clone)]
    (out_1, err_1), (out_2, err_2) = [one.communicate(timeout=60) for one in both]
    assert [one.returncode for one in both] == [0, 0], err_1 + err_2
    assert (out_1, out_2) == ("['two words', '--x']\n", "[]\n")
    assert (err_1 + err_2).count("making its environment") == 1
    again = start(link, cwd=tmp_path)
    assert again.communicate(timeout=60) == ("[]\n", "")


def test_an_environment_that_was_not_finished_is_made_again(clone: Path, tmp_path: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to("/no/such/python")
    first = start(clone / "waypoint", cwd=tmp_path)
    assert first.communicate(timeout=60)[0] == "[]\n"
    (clone / "requirements.txt").write_text("no-such-file-of-waypoint @ file:///no/such/file.whl\n")
    failing = start(clone / "waypoint", cwd=tmp_path)
    out, err = failing.communicate(timeout=60)
    assert (failing.returncode, out) == (6, "")
    assert "requirements could not be installed" in err


def test_without_a_python_that_is_new_enough_the_error_says_so(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "env", "flock", "id", "mktemp", "readlink", "rm", "sha256sum", "tail"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    (clone / "waypoint").write_text(
        (clone / "waypoint").read_text().replace("/usr/bin/python3", "/no/python3")
    )
    done = subprocess.run(
        [clone / "waypoint"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 6
    assert "Python 3.11 or newer" in done.stderr
    assert "WAYPOINT_PYTHON" in done.stderr
