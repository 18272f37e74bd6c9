"""A disk that forgets what was not synced, for tests of power cuts.

`LossyDisk` mounts a FUSE file system with one file, `disk`, to be used under a loop device. The kernel sends
every write of that file here; a write is safe only when an fsync has followed it, as with a disk that has a
volatile cache. `cut` writes a plain file with what such a disk might hold if the power failed now: all that
is safe, and of each later write all, nothing, or some of its sectors, as the seed decides.

The server is a process of its own (`python -m tests.lossy_disk`): the kernel waits for it in system calls of
the process that tests. The protocol is that of <linux/fuse.h>, version 7.31, of which ten requests suffice.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

SECTOR = 4096
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 14, 15, 16
_STATFS, _RELEASE, _FSYNC, _FLUSH, _INIT, _DESTROY, _BATCH_FORGET = 17, 18, 20, 25, 26, 38, 42
_ENOENT, _ENOSYS = 2, 38
_FILE, _ROOT = 2, 1
_MOST_BYTES = 1 << 20
_HEADER = struct.Struct("=IIQQIIII")
_libc = ctypes.CDLL(None, use_errno=True)


class LossyDisk:
    """A disk of `size_bytes`: the file `path`. To be used as a context."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder, self._size_bytes = folder, size_bytes
        self.path = folder / "disk"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"lossy", os.fsencode(self._folder), b"fuse", 6, options):
            raise OSError(ctypes.get_errno(), "cannot mount the lossy disk")
        self._control, other = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.lossy_disk", str(fd), str(other.fileno()), str(self._size_bytes)],
            pass_fds=(fd, other.fileno()),
            cwd=Path(__file__).parents[1],
        )
        os.close(fd)
        other.close()
        return self

    def cut(self, image: Path, seed: int) -> None:
        """What the disk would hold if the power failed now, as a sparse file."""
        self._control.sendall(json.dumps([str(image), seed]).encode())
        if self._control.recv(1) != b".":
            raise RuntimeError("the lossy disk is gone")

    def __exit__(self, *_: object) -> None:
        _libc.umount2(os.fsencode(self._folder), 2)
        self._control.close()
        self._server.terminate()
        self._server.wait()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class _Server:
    """The contents of the disk: sectors that are safe, and writes since the last fsync."""

    def __init__(self, fuse: int, control: int, size_bytes: int) -> None:
        self._fuse, self._size_bytes = fuse, size_bytes
        self._control = socket.socket(fileno=control)
        self._safe: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}
        """Sectors that were written since they were last safe."""
        self._writes: list[tuple[int, bytes]] = []

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([self._fuse, self._control.fileno()], [], [])
            if self._control.fileno() in ready:
                if not (request := self._control.recv(65536)):
                    return
                image, seed = json.loads(request)
                self._cut(Path(image), seed)
                self._control.sendall(b".")
            if self._fuse in ready and not self._serve():
                return

    def _serve(self) -> bool:
        try:
            data = os.read(self._fuse, _MOST_BYTES + SECTOR)
        except OSError as error:
            return error.errno == _ENOENT  # it was interrupted; ENODEV: unmounted
        _, opcode, unique, node, _, _, _, _ = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if opcode in (_FORGET, _BATCH_FORGET):
            return True
        try:
            answer, code = self._answer(opcode, node, body), 0
        except OSError as failure:
            answer, code = b"", -(failure.errno or _ENOSYS)
        os.write(self._fuse, struct.pack("=IiQ", 16 + len(answer), code, unique) + answer)
        return bool(opcode != _DESTROY)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _INIT:
            readahead, flags = struct.unpack_from("=II", body, 8)
            big_writes, max_pages = 1 << 5, 1 << 22
            return struct.pack(
                "=IIIIHHIIHHI28x",
                7,
                31,
                readahead,
                flags & (big_writes | max_pages),
                16,
                12,
                _MOST_BYTES,
                1,
                256,
                0,
                0,
            )
        if opcode == _LOOKUP:
            if body.rstrip(b"\0") != b"disk":
                raise OSError(_ENOENT, "no such file")
            return struct.pack("=QQQQII", _FILE, 0, 3600, 3600, 0, 0) + self._attributes(_FILE)
        if opcode in (_GETATTR, _SETATTR):
            return struct.pack("=QII", 3600, 0, 0) + self._attributes(node)
        if opcode == _OPEN:
            return struct.pack("=QII", 1, 0, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("=QQI", body)
            return self._read(offset, size)
        if opcode == _WRITE:
            _, offset, size = struct.unpack_from("=QQI", body)
            self._write(offset, body[40 : 40 + size])
            return struct.pack("=II", size, 0)
        if opcode == _FSYNC:
            self._safe.update(self._now)
            self._now.clear()
            self._writes.clear()
            return b""
        if opcode == _STATFS:
            return struct.pack("=QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 10, 10, SECTOR, 255, SECTOR, 0)
        if opcode in (_RELEASE, _FLUSH, _DESTROY):
            return b""
        raise OSError(_ENOSYS, "not needed for a disk")

    def _attributes(self, node: int) -> bytes:
        size, mode = (self._size_bytes, 0o100600) if node == _FILE else (0, 0o40700)
        return struct.pack(
            "=QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, SECTOR, 0
        )

    def _sector(self, number: int) -> bytes:
        return self._now.get(number) or self._safe.get(number) or bytes(SECTOR)

    def _read(self, offset: int, size: int) -> bytes:
        first, last = offset // SECTOR, (offset + size - 1) // SECTOR
        data = b"".join(self._sector(number) for number in range(first, last + 1))
        return data[offset - first * SECTOR :][:size]

    def _write(self, offset: int, data: bytes) -> None:
        self._writes.append((offset, data))
        first, last = offset // SECTOR, (offset + len(data) - 1) // SECTOR
        whole = self._read(first * SECTOR, (last + 1 - first) * SECTOR)
        start = offset - first * SECTOR
        whole = whole[:start] + data + whole[start + len(data) :]
        for number in range(first, last + 1):
            at = (number - first) * SECTOR
            self._now[number] = whole[at : at + SECTOR]

    def _cut(self, image: Path, seed: int) -> None:
        chance = random.Random(seed)
        with open(image, "wb") as file:
            file.truncate(self._size_bytes)
            for number, data in self._safe.items():
                os.pwrite(file.fileno(), data, number * SECTOR)
            luck = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            for offset, data in self._writes:
                for at in range(0, len(data), SECTOR):
                    if chance.random() < luck:
                        os.pwrite(file.fileno(), data[at : at + SECTOR], offset + at)


if __name__ == "__main__":
    _Server(*map(int, sys.argv[1:])).run()
