"""What the threads of a process have freed is returned to the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THREADS = 16
_READ = """
import os, sys, threading
from waypoint.kernel.heap import use_one_heap

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

if sys.argv[1] == "one":
    use_one_heap()
zero = os.open("/dev/zero", os.O_RDONLY)
os.read(zero, 16 << 20)
before, kept, meet = rss(), [], threading.Barrier(int(sys.argv[2]))

def work():
    meet.wait()
    for _ in range(5):
        part = os.read(zero, 4 << 20)
        kept.append(part[:2000])
        del part
    meet.wait()

threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(rss() - before)
"""


def grown_bytes(heaps: str) -> int:
    """By how much a process grows whose threads have read a few megabytes each."""
    argv = [sys.executable, "-c", _READ, heaps, str(_THREADS)]
    return int(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout)


def test_many_threads_that_read_large_files_leave_nothing_behind() -> None:
    assert grown_bytes("one") < 8 << 20


def test_without_it_every_thread_would_keep_what_it_once_held() -> None:
    if grown_bytes("many") < 16 << 20:
        pytest.skip("this C library returns memory by itself")
