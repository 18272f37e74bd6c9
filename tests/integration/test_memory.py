"""Only what was written is copied, and nothing that was written is forgotten.

A program changes its memory in every way there is, again and again, with a checkpoint in between. While it
waits, its memory is compared with the images byte by byte: they are what a restore would bring back. Now and
then it is restored, and asked.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waypoint
from waypoint.engine import memory as tracking
from waypoint.engine.images import DumpStats, dump_stats, encode, read_image
from waypoint.home import Home
from waypoint.kernel import processes
from waypoint.kernel.pool.extents import freed
from waypoint.kernel.syscalls import syncfs

PAGE = 4096
_IN_PARENT, _PRESENT = 1, 4

PROGRAM = r"""
import ctypes, hashlib, mmap, os, random, signal, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.sbrk.argtypes = (ctypes.c_long,)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
PAGE, MB = 4096, 1 << 20
PRIVATE, FIXED, DONTNEED, HUGE = 0x22, 0x10, 4, 14
rest = random.Random(int(sys.argv[1]))

def area(size, at=None):
    return libc.mmap(at, size, 3, PRIVATE | (FIXED if at else 0), -1, 0)

def put(at, data):
    ctypes.memmove(at, data, len(data))

def some(size):
    return rest.randbytes(size)

class Iovec(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))

plain, plain_size = area(24 * MB), 24 * MB
huge = (area(10 * MB) + 2 * MB - 1) & ~(2 * MB - 1)
libc.madvise(huge, 6 * MB, HUGE)
for at in range(plain, plain + plain_size, MB):
    put(at, some(MB))
for at in range(huge, huge + 6 * MB, MB):
    put(at, some(MB))
wanderer, wanderer_size = area(2 * MB), 2 * MB
put(wanderer, some(wanderer_size))
heap = libc.sbrk(256 * 1024)
heap_size = 256 * 1024
put(heap, some(heap_size))
kept = bytearray(some(3 * MB))
more = [some(MB) for _ in range(int(sys.argv[2]))]

def page():
    return plain + rest.randrange(plain_size // PAGE) * PAGE

def write():
    for _ in range(50):
        put(page() + rest.randrange(PAGE - 8), some(8))

def fill():
    ctypes.memset(page(), rest.randrange(256), PAGE)

def kernel_writes():
    with open("/proc/self/exe", "rb", buffering=0) as file:
        for _ in range(5):
            target = (ctypes.c_char * 5000).from_address(plain + rest.randrange(plain_size - 5000))
            file.seek(rest.randrange(4000))
            file.readinto(target)
    reader, writer = os.pipe()
    os.write(writer, some(100))
    os.readv(reader, [(ctypes.c_char * 60).from_address(page()), (ctypes.c_char * 40).from_address(huge)])
    os.close(reader), os.close(writer)

def other_process_writes():
    data = some(6000)
    parent, place = os.getpid(), plain + rest.randrange(plain_size - 6000)
    libc.prctl(0x59616d61, -1)
    pid = os.fork()
    if pid == 0:
        source = (ctypes.c_char * 6000).from_buffer_copy(data)
        ours, theirs = Iovec(ctypes.addressof(source), 6000), Iovec(place, 6000)
        done = libc.process_vm_writev(parent, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        os._exit(done != 6000)
    assert os.waitpid(pid, 0)[1] == 0, "process_vm_writev"

def fork_and_copy():
    mine = [page() for _ in range(40)]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        for at in mine[:20]:
            put(at, b"the child's")
        os.read(reader, 1)
        os._exit(0)
    for at in mine[10:]:
        put(at, some(16))
    os.write(writer, b"x")
    os.waitpid(pid, 0)
    for at in mine[:5]:
        put(at, some(16))
    os.close(reader), os.close(writer)

def wander():
    global wanderer, wanderer_size
    size = rest.choice([1, 2, 3, 4, 6]) * MB // 2
    before = wanderer_size
    if rest.random() < 0.7:
        there = area(size)
        wanderer = libc.mremap(wanderer, wanderer_size, size, 3, there)
    else:
        wanderer = libc.mremap(wanderer, wanderer_size, size, 1, None)
    wanderer_size = size
    for _ in range(20):
        put(wanderer + rest.randrange(size - 8), some(8))
    if size > before:
        put(wanderer + size - 100, some(100))

def swap_places():
    # Two areas change their addresses: neither page is new, and both are wrong in the point before.
    first, second, spare = plain + 4 * MB, plain + 8 * MB, area(MB)
    libc.mremap(first, MB, MB, 3, spare)
    libc.mremap(second, MB, MB, 3, first)
    libc.mremap(spare, MB, MB, 3, second)

def give_back():
    at = page()
    size = min(rest.randrange(1, 60) * PAGE, plain + plain_size - at)
    libc.madvise(at, size, DONTNEED)
    if rest.random() < 0.5:
        put(at, some(24))
    ctypes.string_at(at + size - PAGE, 8)

def map_anew():
    size = rest.randrange(1, 30) * PAGE
    at = plain + 12 * MB + rest.randrange(100) * PAGE
    area(size, at)
    if rest.random() < 0.7:
        put(at, some(size))

def huge_pages():
    put(huge + rest.randrange(6 * MB - 8), some(8))
    if rest.random() < 0.3:
        libc.madvise(huge + 2 * MB, 2 * MB, DONTNEED)
        libc.madvise(huge + 2 * MB, 2 * MB, HUGE)
        put(huge + 2 * MB + rest.randrange(2 * MB - 8), some(8))

def protect():
    at = page()
    libc.mprotect(at, PAGE, 1)
    libc.mprotect(at, PAGE, 3)
    put(at + 9, some(3))

def grow():
    global heap_size
    libc.sbrk(128 * 1024)
    heap_size += 128 * 1024
    put(heap + heap_size - 70000, some(70000))
    kept.extend(some(rest.randrange(MB)))
    kept[rest.randrange(len(kept))] ^= 255

def deep(depth=0):
    here = some(500)
    return here if depth > 200 else deep(depth + 1) + here[:1]

def threads():
    def work(seed):
        mine = random.Random(seed)
        for _ in range(200):
            put(plain + mine.randrange(plain_size - 8), mine.randbytes(8))
    several = [threading.Thread(target=work, args=(rest.random(),)) for _ in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()

def digest():
    found = hashlib.blake2b()
    for at, size in ((plain, plain_size), (huge, 6 * MB), (wanderer, wanderer_size), (heap, heap_size)):
        for start in range(at, at + size, MB):
            found.update(ctypes.string_at(start, min(MB, at + size - start)))
    found.update(kept)
    for one in more:
        found.update(one)
    return found.hexdigest()

WAYS = (write, fill, kernel_writes, other_process_writes, fork_and_copy, wander, swap_places, give_back,
        map_anew, huge_pages, protect, grow, deep, threads)
said = None
while True:
    with open("/tmp/said.new", "w") as file:
        same = said is None or said == digest()
        said = digest()
        file.write(f"{'same' if same else 'DIFFERENT'}")
    os.rename("/tmp/said.new", "/tmp/said")
    signal.sigwait({signal.SIGUSR1})
    # Right after a checkpoint, or a restore: is all of it as it was when it was last looked at?
    if said != digest():
        with open("/tmp/said.new", "w") as file:
            file.write("DIFFERENT after the pause")
        os.rename("/tmp/said.new", "/tmp/said")
        break
    for way in rest.sample(WAYS, rest.randrange(1, len(WAYS) + 1)):
        way()
    said = digest()
"""


def _stretches(images: Path, pid: int) -> Iterator[tuple[int, int, int]]:
    """A process's memory in the images: address, length, place in the file of pages."""
    place = 0
    for entry in list(read_image(images / f"pagemap-{pid}.img"))[1:]:
        length = int(entry[5]) * PAGE
        assert int(entry[4]) & _PRESENT, "the images are not whole"
        yield int(entry[1]), length, place
        place += length


def _pages_file(images: Path, pid: int) -> Path:
    head = next(read_image(images / f"pagemap-{pid}.img"))
    return images / f"pages-{int(head[1])}.img"


def assert_holds(images: Path, process: processes.Process) -> int:
    """The images hold the memory of a process as it is now; how much was compared."""
    pages = _pages_file(images, process.pid).read_bytes()
    saved = list(_stretches(images, process.pid))
    assert sum(length for _, length, _ in saved) == len(pages)
    compared = 0
    with open(f"/proc/{process.host_pid}/mem", "rb", buffering=0) as memory:
        for start, end in tracking._areas(process.host_pid):
            expected = bytearray(end - start)  # what no image mentions is zero
            for address, length, place in saved:
                low, high = max(address, start), min(address + length, end)
                if low < high:
                    expected[low - start : high - start] = pages[
                        place + low - address : place + high - address
                    ]
            real = os.pread(memory.fileno(), end - start, start)
            if real != expected:
                wrong = [i for i in range(0, len(real), PAGE) if real[i : i + PAGE] != expected[i : i + PAGE]]
                raise AssertionError(
                    f"{len(wrong)} pages differ in {start:x}-{end:x}: {[hex(start + i) for i in wrong[:9]]}"
                )
            compared += end - start
    return compared


class Subject:
    """The program in a session, and what is known of it outside."""

    def __init__(self, session: waypoint.Session, home: Home, dice: int, more_mb: int = 0) -> None:
        self.session, self.home = session, home
        session.run("cat > /tmp/memory.py", stdin=PROGRAM.encode()).check()
        session.run(f"python3 -B /tmp/memory.py {dice} {more_mb} > /tmp/out 2>&1 & subject=$!").check()
        self.wait("same")

    def wait(self, word: str) -> None:
        self.session.run(
            "until [ -s /tmp/said ] || ! kill -0 $subject; do sleep 0.01; done", timeout=60
        ).check()
        said = self.session.run("cat /tmp/said /tmp/out").output
        assert said == word, said

    def go(self) -> None:
        self.session.run("rm -f /tmp/said; kill -USR1 $subject").check()
        self.wait("same")

    @property
    def process(self) -> processes.Process:
        pid = int(self.session.run("echo $subject").output)
        box = self.session.info.pid
        assert box
        return next(one for one in processes.below(box) if one.pid == pid)

    def images(self, point: waypoint.Checkpoint) -> Path:
        return self.home.checkpoints / point.id / "images"

    def save(self) -> tuple[waypoint.Checkpoint, DumpStats]:
        point = self.session.checkpoint()
        images = self.images(point)
        assert not (images / "parent").is_symlink()
        assert assert_holds(images, self.process) > 30 << 20
        return point, dump_stats(images)


@pytest.fixture
def watches(engine: Path) -> None:
    if not tracking.supported(engine):
        pytest.skip("this kernel does not tell what was written")


def test_memory_changed_in_every_way_is_in_the_images(
    watches: None, home: Home, fresh: waypoint.Session
) -> None:
    subject = Subject(fresh, home, 1)
    saved: list[waypoint.Checkpoint] = []
    for turn in range(6):
        point, stats = subject.save()
        if turn:
            assert stats.pages_in_parent > 1000, "everything was copied again"
        saved.append(point)
        subject.go()
    for point in (saved[3], saved[1]):
        fresh.restore(point)
        _, stats = subject.save()
        assert stats.pages_in_parent > 1000, "it is known what it was restored from"
        subject.go()
        subject.save()


def test_much_memory_is_copied_before_the_session_stops(
    watches: None, home: Home, fresh: waypoint.Session
) -> None:
    subject = Subject(fresh, home, 21, more_mb=64)
    point, stats = subject.save()
    assert stats.pages_in_parent > 64 << 8, "it was copied in the pause"
    subject.go()
    _, stats = subject.save()
    assert stats.pages_in_parent > 64 << 8
    fresh.restore(point)
    subject.go()
    subject.save()


WRITER = r"""
import mmap, os, signal, threading, time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
PAGES = 4096
idle = b"never touched again" * (4 << 20)
memory = mmap.mmap(-1, PAGES * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
asked, answered = threading.Event(), threading.Event()

def write():
    turn = 0
    while not asked.is_set():
        turn += 1
        for page in range(PAGES):
            memory[page * 4096 : page * 4096 + 8] = turn.to_bytes(8, "little")
            if page == PAGES // 2 and turn == 1:
                open("/tmp/said", "w").write("same")
    answered.set()

threading.Thread(target=write).start()
signal.sigwait({signal.SIGUSR1})
asked.set()
answered.wait()
turns = [int.from_bytes(memory[page * 4096 : page * 4096 + 8], "little") for page in range(PAGES)]
print("same" if len(set(turns)) == 1 else f"DIFFERENT {sorted(set(turns))}", flush=True)
"""


def test_memory_that_is_written_all_the_time_comes_back_as_of_one_moment(
    watches: None, home: Home, fresh: waypoint.Session
) -> None:
    """It is written in one order over and over, and at the end finishes its turn: a page from another moment
    would have been passed already, and keep another number."""
    fresh.run("cat > /tmp/writer.py", stdin=WRITER).check()
    fresh.run("python3 -B /tmp/writer.py > /tmp/out 2>&1 & subject=$!").check()
    fresh.run("until [ -s /tmp/said ]; do sleep 0.01; done", timeout=60).check()
    points = [fresh.checkpoint() for _ in range(6)]
    stats = [dump_stats(home.checkpoints / point.id / "images") for point in points]
    assert all(one.pages_in_parent for one in stats), "the first was copied ahead"
    for point in points[::2]:
        fresh.restore(point)
        said = fresh.run("kill -USR1 $subject; wait $subject; cat /tmp/out").output
        assert said.splitlines()[-1] == "same", said


def _write_images(folder: Path, number: int, stretches: list[tuple[int, int, int]], pages: bytes) -> None:
    """Images of the memory of one process, pid 7: address, how many pages, flags."""
    messages = [{1: number}, *({1: at, 2: 0, 4: flags, 5: count} for at, count, flags in stretches)]
    bodies = [encode({**message}) for message in messages]
    framed = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    folder.mkdir()
    (folder / "pagemap-7.img").write_bytes(b"magicals" + framed)
    (folder / f"pages-{number}.img").write_bytes(pages)


@pytest.mark.parametrize("cuts", [0, 1 << 20])
@pytest.mark.parametrize("place", ["pool", "disk"])
def test_images_are_put_together_from_their_parents(
    cuts: int, place: str, home: Home, engine: Path, tmp_path: Path, seed: waypoint.Checkpoint
) -> None:
    folder = Path(tempfile.mkdtemp(dir=home.staging if place == "pool" else tmp_path))
    dice = random.Random(cuts)
    before = {at: dice.randbytes(PAGE) for at in range(0x10000, 0x10400) if dice.random() < 0.9}
    after = {at: page for at, page in before.items() if dice.random() < 0.95}
    changed = {at: dice.randbytes(PAGE) for at in range(0x10000, 0x10500) if dice.random() < 0.1}
    after.update(changed)
    runs: dict[int, list[tuple[int, int, int]]] = {0: [], 1: []}
    for which, addresses in enumerate((before, after)):
        for at in sorted(addresses):
            flags = _IN_PARENT if which and at not in changed else _PRESENT
            last = runs[which][-1] if runs[which] else (0, 0, 0)
            if last[0] // PAGE + last[1] == at and last[2] == flags:
                runs[which][-1] = (last[0], last[1] + 1, flags)
            else:
                runs[which].append((at * PAGE, 1, flags))
    _write_images(folder / "parent", 3, runs[0], b"".join(before[at] for at in sorted(before)))
    _write_images(folder / "images", 1, runs[1], b"".join(changed[at] for at in sorted(changed)))
    (folder / "whole").mkdir()
    os.setxattr(folder / "parent" / "pages-3.img", "trusted.waypoint.scattered", cuts.to_bytes(8, "little"))
    memory = tracking.Memory(engine)
    memory.complete_images(folder / "images", folder / "parent", folder / "whole")
    assert not list((folder / "images").iterdir())
    pages = (folder / "whole" / "pages-1.img").read_bytes()
    found = {}
    for address, length, at in _stretches(folder / "whole", 7):
        for offset in range(0, length, PAGE):
            found[(address + offset) // PAGE] = pages[at + offset : at + offset + PAGE]
    assert found == after
    assert sum(length for _, length, _ in _stretches(folder / "whole", 7)) == len(pages)
    _write_images(folder / "other", 1, [(0x50000 * PAGE, 1, _IN_PARENT)], b"")
    with pytest.raises(tracking.IncompleteImages):  # the parent does not have it
        memory.complete_images(folder / "other", folder / "parent", folder / "whole")
    shutil.rmtree(folder)


def test_what_was_dumped_in_full_is_shared_when_nothing_else_is_to_be_done(
    home: Home, fresh: waypoint.Session
) -> None:
    """Small processes are not watched."""
    program = "import time; kept = bytes(range(256)) * 20000; print(1, flush=True); time.sleep(1000)"
    fresh.run(f"python3 -c '{program}' > /tmp/up & until [ -s /tmp/up ]; do sleep 0.01; done").check()
    points = [fresh.checkpoint() for _ in range(2)]
    folder = home.checkpoints / points[1].id / "images"
    files = sorted(folder.glob("pages-*.img"))
    before = [path.read_bytes() for path in files]
    size = sum(map(len, before))
    assert size > 8 << 20

    def shared() -> bool:
        pool = os.open(folder, os.O_RDONLY)
        syncfs(pool)
        os.close(pool)
        return freed((), [folder]).total_bytes < size // 2

    deadline = time.monotonic() + 60
    while not shared():
        assert time.monotonic() < deadline, "it is not shared"
        time.sleep(0.2)
    assert [path.read_bytes() for path in files] == before
    points[0].forget()
    fresh.restore(points[1])
    assert [path.read_bytes() for path in files] == before


def test_points_do_not_need_each_other(watches: None, home: Home, fresh: waypoint.Session) -> None:
    subject = Subject(fresh, home, 7)
    points = []
    for _ in range(4):
        points.append(subject.save()[0])
        subject.go()
    points[0].forget()
    points[2].forget()
    for point in (points[1], points[3]):
        fresh.restore(point)
        subject.go()


def test_a_dump_that_has_lost_what_it_was_compared_with_is_whole_all_the_same(
    watches: None, home: Home, fresh: waypoint.Session
) -> None:
    subject = Subject(fresh, home, 11)
    point, _ = subject.save()
    subject.go()
    for damaged in subject.images(point).glob("pages-*.img"):
        os.truncate(damaged, PAGE)
    _, stats = subject.save()
    assert stats.pages_in_parent == 0
    subject.go()
    subject.save()
    shutil.rmtree(subject.images(point))


BUSY = r"""
import os, select, sys, time

kept = bytearray(os.urandom(1 << 20) * 20)
poll, (reader, writer) = select.epoll(), os.pipe()
poll.register(reader)
print("up", flush=True)
while True:
    if sys.argv[1] == "computes":
        kept[0] ^= 1
    elif sys.argv[1] == "sleeps":
        time.sleep(0.0005)
    elif sys.argv[1] == "polls":
        poll.poll(0.001)
    else:
        sys.stdin.read(1)
"""


def test_a_process_that_was_made_to_open_something_goes_on_as_it_was(watches: None, engine: Path) -> None:
    """In whatever it does, also when it is told to stop and to go on all the time."""
    ways = ("computes", "sleeps", "polls", "waits")
    pipe = subprocess.PIPE
    busy = [subprocess.Popen([sys.executable, "-c", BUSY, way], stdin=pipe, stdout=pipe) for way in ways]
    try:
        for one in busy:
            assert one.stdout
            assert one.stdout.readline() == b"up\n"
        before = [processes.descriptors(one.pid).keys() for one in busy]
        bothering = threading.Event()

        def bother() -> None:
            while not bothering.wait(0.002):
                for one in busy:
                    one.send_signal(signal.SIGSTOP)
                    one.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=bother)
        thread.start()
        watched = False
        for _ in range(10):
            memory = tracking.Memory(engine)
            memory.prepare([one.pid for one in busy])
            watched = watched or memory.tracking
            memory.close()
        bothering.set()
        thread.join()
        assert watched
        assert [one.poll() for one in busy] == [None] * len(ways)
        assert [processes.descriptors(one.pid).keys() for one in busy] == before
    finally:
        for one in busy:
            one.kill()
            one.communicate()
