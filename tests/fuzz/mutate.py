"""Random values and damaged copies of good ones, all from one seeded source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

ODD_TEXTS = (
    "",
    " ",
    ".",
    "..",
    "/",
    "@",
    "@~",
    "@~99999999999999999999",
    "-",
    "--",
    "-rf",
    "a/../../b",
    "\0",
    "a\0b",
    "\n",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "é",
    "日本",
    "'",
    '"',
    "$(reboot)",
    "`x`",
    "%s",
    "{}",
    "99:99",
    "10:27",
    "good",
    "now",
    "c1",
    "c0",
    "c999999999999",
    "0",
    "-1",
    "1e999",
    "nan",
    "None",
    "A" * 300,
    "x" * 5000,
)
ODD_NUMBERS = (0, 1, -1, 2, 7, 255, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 10**30, 0.5, -0.0, 1e308, 1e-308)


def text(random: Random, most: int = 40) -> str:
    """A text: an odd one, or random characters of several kinds."""
    if random.random() < 0.4:
        return random.choice(ODD_TEXTS)
    kinds = ("abc019_-.", " \t\n:/@~'\"\\", "\x00\x07\x1b\x7f", "éß€日\u202e\u200b", "(){}[]<>|&;$`*?!#%=")
    return "".join(random.choice(random.choice(kinds)) for _ in range(random.randrange(most)))


def sendable(value: str) -> str:
    """The text without what JSON cannot carry."""
    return value.encode("utf-8", "replace").decode()


def value(random: Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kind = random.randrange(9 if depth else 6)
    if kind < 3:
        return sendable(text(random))
    if kind == 3:
        return random.choice(ODD_NUMBERS)
    if kind == 4:
        return random.choice((True, False, None))
    if kind == 5:
        return random.randrange(-5, 200)
    if kind == 6:
        return {sendable(text(random, 10)): value(random, depth - 1) for _ in range(random.randrange(4))}
    return [value(random, depth - 1) for _ in range(random.randrange(4))]


def damaged(random: Random, good: bytes) -> bytes:
    """A copy of some bytes with one to four faults: changed, removed, repeated, inserted, cut off."""
    data = bytearray(good)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << random.randrange(8)
            case 1:
                data[at : at + random.randrange(9)] = b""
            case 2:
                data[at:at] = random.randbytes(random.randrange(9))
            case 3:
                part = data[at : at + random.randrange(64)]
                data[at:at] = part * random.randrange(1, 4)
            case 4:
                data[at : at + 8] = random.choice(
                    (b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\0\0\0\x80")
                )
            case _ if random.random() < 0.3:
                del data[at:]
    return bytes(data)


def damaged_text(random: Random, good: str) -> str:
    """A copy of a text with faults, still a text."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(good) + 1)
        end = at + random.randrange(12)
        good = random.choice(
            (
                good[:at] + text(random, 8) + good[at:],
                good[:at] + good[end:],
                good[:end] + good[at:],
                good[:at],
            )
        )
    return good


def damaged_json(random: Random, good: Any) -> Any:
    """A copy of a JSON value in which one part is another value, missing, or too much."""
    copy = json.loads(json.dumps(good))
    place = copy
    while isinstance(place, dict | list) and place:
        keys: Sequence[Any] = list(place) if isinstance(place, dict) else range(len(place))
        key = random.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or random.random() < 0.3:
            match random.randrange(3):
                case 0:
                    place[key] = value(random)
                case 1:
                    del place[key]
                case _ if isinstance(place, dict):
                    place[sendable(text(random, 8))] = value(random)
                case _:
                    place.append(value(random))
            return copy
        place = place[key]
    return value(random)
