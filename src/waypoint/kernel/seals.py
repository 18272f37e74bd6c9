"""The key of an installation, and what it seals: documents that a later look knows as its own.

A seal is a keyed digest (BLAKE2b, 128 bits). A program that cannot read the key cannot make one, whatever it
can write. What is sealed is bytes and not their meaning: a later version that reads a document differently
finds the same seal right.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from hashlib import blake2b
from pathlib import Path

from waypoint.kernel import atomic

log = logging.getLogger("waypoint")

KEY_FILE = "key"
_KEY_BYTES = 32
_SEAL_BYTES = 16
_PREFIX = b'{"seal":"'
_AFTER = len(_PREFIX) + 2 * _SEAL_BYTES
_SEPARATOR = b'",'


class Key:
    """The key of one home. `new`: whether it was made just now."""

    def __init__(self, secret: bytes, *, new: bool = False) -> None:
        self._secret, self.new = secret, new

    @classmethod
    def of(cls, folder: Path) -> Key:
        """The key in a folder, made if there is none that is whole."""
        path = folder / KEY_FILE
        if secret := _read(path):
            return cls(secret)
        if os.path.lexists(path):
            log.error("%s is damaged: another key takes its place", path)
        secret = os.urandom(_KEY_BYTES)
        atomic.write(path, secret, mode=0o600, durable=True)
        return cls(secret, new=True)

    def seal(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=_SEAL_BYTES, key=self._secret).digest()

    def has_sealed(self, data: bytes, seal: bytes) -> bool:
        return hmac.compare_digest(self.seal(data), seal)

    # ---- documents ---------------------------------------------------------------------------

    def seal_document(self, document: bytes) -> bytes:
        """A JSON object with its seal as the first field."""
        body = _unsealed(document)
        return _PREFIX + self.seal(body).hex().encode() + _SEPARATOR + body[1:]

    def has_sealed_document(self, document: bytes) -> bool:
        """Whether it is one of ours, and as it was sealed."""
        body = _unsealed(document)
        if body == document:
            return False
        return hmac.compare_digest(self.seal(body).hex().encode(), document[len(_PREFIX) : _AFTER])


def _unsealed(document: bytes) -> bytes:
    if document.startswith(_PREFIX) and document[_AFTER : _AFTER + len(_SEPARATOR)] == _SEPARATOR:
        return b"{" + document[_AFTER + len(_SEPARATOR) :]
    return document


def is_sealed(document: bytes) -> bool:
    """Whether a document has a seal, right or wrong."""
    return _unsealed(document) != document


def _read(path: Path) -> bytes | None:
    """The key in a file; None when it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error)
        return None
    try:
        about = os.fstat(fd)
        secret = os.read(fd, _KEY_BYTES + 1) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(fd)
    return secret if len(secret) == _KEY_BYTES else None
