r"""What `waypoint type` sends for its words: names of keys, and text with escapes.

The names are those of tmux's send-keys. Every other word is text, in which `\n` is the Enter key.
"""

from __future__ import annotations

import re

_NAMED = {
    "Enter": "\r", "Tab": "\t", "BTab": "\x1b[Z", "Space": " ", "BSpace": "\x7f", "Backspace": "\x7f",
    "Escape": "\x1b", "Esc": "\x1b",
    "Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H", "End": "\x1b[F",
    "Insert": "\x1b[2~", "IC": "\x1b[2~", "Delete": "\x1b[3~", "DC": "\x1b[3~",
    "PageUp": "\x1b[5~", "PgUp": "\x1b[5~", "PPage": "\x1b[5~",
    "PageDown": "\x1b[6~", "PgDn": "\x1b[6~", "NPage": "\x1b[6~",
    "F1": "\x1bOP", "F2": "\x1bOQ", "F3": "\x1bOR", "F4": "\x1bOS",
    "F5": "\x1b[15~", "F6": "\x1b[17~", "F7": "\x1b[18~", "F8": "\x1b[19~",
    "F9": "\x1b[20~", "F10": "\x1b[21~", "F11": "\x1b[23~", "F12": "\x1b[24~",
}  # fmt: skip
_BY_NAME = {name.lower(): keys.encode() for name, keys in _NAMED.items()}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|[nrtea0b\\])|\r?\n")
_ESCAPES = {
    "n": b"\r",
    "r": b"\r",
    "t": b"\t",
    "e": b"\x1b",
    "a": b"\x07",
    "b": b"\x08",
    "0": b"\0",
    "\\": b"\\",
}


def encode_keys(words: list[str], *, literal: bool = False) -> bytes:
    """The bytes that a keyboard would send for these words."""
    if literal:
        return "".join(words).encode(errors="surrogateescape")
    return b"".join(_key(word) or _text(word) for word in words)


def _key(word: str) -> bytes | None:
    """The bytes of a key: `Enter`, `C-c`, `^C`, `M-x`, `C-M-Left`. None if the word is not a key."""
    if len(word) > 1 and (plain := _BY_NAME.get(word.lower())):
        return plain
    control = alt = False
    while len(word) > 1:
        if word[:2] in {"C-", "c-"} and len(word) > 2:
            control, word = True, word[2:]
        elif word[:2] in {"M-", "m-"} and len(word) > 2:
            alt, word = True, word[2:]
        elif word[0] == "^" and len(word) == 2:
            control, word = True, word[1:]
        else:
            break
    if not (control or alt):
        return None
    name = _BY_NAME.get(word.lower()) if len(word) > 1 else word.encode(errors="surrogateescape")
    if name is None:
        return None
    if control:
        name = _control(name)
    return name and (b"\x1b" + name if alt else name)


def _control(key: bytes) -> bytes | None:
    if len(key) != 1:
        return None
    if key == b"?":
        return b"\x7f"
    if key == b" ":
        return b"\0"
    code = key.upper()[0]
    return bytes([code & 0x1F]) if 0x40 <= code <= 0x5F else None


def _text(word: str) -> bytes:
    data, at = bytearray(), 0
    for match in _ESCAPE.finditer(word):
        data += word[at : match.start()].encode(errors="surrogateescape")
        escape = match[1]
        if escape is None:
            data += b"\r"
        elif escape[0] == "x":
            data.append(int(escape[1:], 16))
        else:
            data += _ESCAPES[escape]
        at = match.end()
    return bytes(data) + word[at:].encode(errors="surrogateescape")
