"""Memory: which ranges are mapped and how, and what private and shared memory holds."""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, replace

from tests.fingerprint.facts import Recorder, read

_PAGE = 4096
_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) \S+ (\d+) *(.*)")
_PRESENT_OR_SWAPPED, _OF_A_FILE = 3 << 62, 1 << 61
_VOLATILE_FLAGS = {"sd", "um", "uw", "ui", "ac"}
"""Soft-dirty bits; tracking by userfaultfd, which is Waypoint's own doing (engine/memory.py); and whether the
kernel has counted the range as memory that may be needed."""
_LOCKED = {"lo", "lf"}
"""A part of a mapping may come back unlocked (declared.py)."""
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class _Mapping:
    start: int
    end: int
    protection: str
    offset: int
    inode: str
    name: str
    flags: frozenset[str] = frozenset()
    anonymous_kb: int = 0

    @property
    def _has_no_file(self) -> bool:
        """A segment of System V is one, with a name that others have too: 0, if it was removed."""
        return self.inode == "0" and not self.name.startswith("/SYSV")

    def continues(self, before: _Mapping) -> bool:
        """Whether it could be one with the mapping before it. The kernel merges some, by their history."""
        alike = ("protection", "inode", "name")
        return (
            before.end == self.start
            and all(getattr(self, name) == getattr(before, name) for name in alike)
            and self.flags - _LOCKED == before.flags - _LOCKED
            and (self._has_no_file or before.offset + before.end - before.start == self.offset)
        )


def _mappings(host_pid: int) -> list[_Mapping]:
    result: list[_Mapping] = []
    for line in read(f"/proc/{host_pid}/smaps").split("\n"):
        if match := _HEADER.match(line):
            start, end, protection, offset, inode, name = match.groups()
            if protection.startswith("-w"):  # x86 has no memory that can be written and not read
                protection = "r" + protection[1:]
            of_file = name.startswith("/") and not name.endswith("(deleted)")
            name = "" if name == "[heap]" else name  # what lies before it may be one with it
            result.append(
                _Mapping(
                    start=int(start, 16),
                    end=int(end, 16),
                    protection=protection,
                    offset=int(offset, 16) if name.startswith("/") else 0,
                    inode=inode if of_file else "0",
                    name=name,
                )
            )
        elif line.startswith("VmFlags:"):
            flags = frozenset(line.split()[1:]) - _VOLATILE_FLAGS
            result[-1] = replace(result[-1], flags=flags | {"rd"} if "wr" in flags else flags)
        elif line.startswith("Anonymous:"):
            result[-1] = replace(result[-1], anonymous_kb=int(line.split()[1]))
    return result


def record_memory(recorder: Recorder) -> None:
    for process in recorder.members:
        if process.state != "Z":
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                _record_process(recorder, process.host_pid, process.pid)


def _record_process(recorder: Recorder, host_pid: int, pid: int) -> None:
    mappings = _mappings(host_pid)
    merged: list[_Mapping] = []
    for mapping in mappings:
        if merged and mapping.continues(merged[-1]):
            merged[-1] = replace(
                merged[-1],
                end=mapping.end,
                flags=mapping.flags & merged[-1].flags,
                anonymous_kb=merged[-1].anonymous_kb + mapping.anonymous_kb,
            )
        else:
            merged.append(mapping)
    for mapping in merged:
        place = f"{pid}:{mapping.start:x}"
        recorder.add("mapping", place, f"to {mapping.end:x} {mapping.name}")
        recorder.add("mapping's protection", place, mapping.protection)
        recorder.add("mapping's flags", place, " ".join(sorted(mapping.flags)))
        if mapping.name.startswith("/"):
            recorder.add("mapping's file", place, f"{mapping.inode} at {mapping.offset:x}")
    with contextlib.suppress(PermissionError), open(f"/proc/{host_pid}/mem", "rb", buffering=0) as memory:
        _record_contents(recorder, host_pid, pid, merged, memory.fileno())


def _record_contents(
    recorder: Recorder, host_pid: int, pid: int, mappings: list[_Mapping], memory: int
) -> None:
    room = _MOST_BYTES
    with open(f"/proc/{host_pid}/pagemap", "rb", buffering=0) as pagemap:
        for mapping in mappings:
            place = f"{pid}:{mapping.start:x}"
            size = mapping.end - mapping.start
            is_private = mapping.protection.endswith("p")
            is_shared_memory = not is_private and mapping.name.endswith("(deleted)")
            if mapping.name in ("[vvar]", "[vvar_vclock]", "[vsyscall]", "[vdso]") or size > 16 * room:
                continue
            if is_private and mapping.anonymous_kb:
                pages = _private_pages(pagemap.fileno(), memory, mapping, host_pid)
                room -= len(pages) * _PAGE
                if room < 0:
                    return
                recorder.pages[place] = pages
            elif is_shared_memory and size <= room:
                room -= size
                digest = hashlib.blake2b(digest_size=8)
                for address in range(mapping.start, mapping.end, _PAGE):
                    with contextlib.suppress(OSError):  # behind the end of the file
                        digest.update(os.pread(memory, _PAGE, address))
                recorder.add("shared memory's content", place, digest.hexdigest())


def _private_pages(pagemap: int, memory: int, mapping: _Mapping, host_pid: int) -> dict[int, bytes]:
    """The pages of private memory that do not hold what they held when they were mapped. (A page may have
    been written and be the same as before: CRIU borrows one of the program's own.)"""
    pages: dict[int, bytes] = {}
    entries = array.array("Q")
    first, count = mapping.start // _PAGE, (mapping.end - mapping.start) // _PAGE
    entries.frombytes(os.pread(pagemap, count * 8, first * 8))
    with contextlib.ExitStack() as opened:
        file = _open_mapped(host_pid, mapping)
        if file >= 0:
            opened.callback(os.close, file)
        for index, entry in enumerate(entries):
            if entry & _PRESENT_OR_SWAPPED and not entry & _OF_A_FILE:
                with contextlib.suppress(OSError):
                    page = os.pread(memory, _PAGE, mapping.start + index * _PAGE)
                    original = os.pread(file, _PAGE, mapping.offset + index * _PAGE) if file >= 0 else b""
                    if page != original.ljust(_PAGE, b"\0"):
                        pages[first + index] = page
    return pages


def _open_mapped(host_pid: int, mapping: _Mapping) -> int:
    """The file that is mapped; -1 if there is none."""
    if not mapping.name.startswith("/") or mapping.name.startswith(("/dev/", "/SYSV")):
        return -1
    for name in os.listdir(f"/proc/{host_pid}/map_files"):
        if int(name.partition("-")[0], 16) == mapping.start:
            return os.open(f"/proc/{host_pid}/map_files/{name}", os.O_RDONLY | os.O_CLOEXEC)
    return -1
