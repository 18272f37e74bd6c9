"""A session's terminal: attach to it, type into it, print what it shows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from waypoint import errors
from waypoint.api.sessions import Screen, Type
from waypoint.cli.spec import SESSION, SESSION_FIRST, argument, flag, remainder, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console


@verb(
    "shell",
    "attach to a session's terminal",
    *SESSION_FIRST,
    examples=("waypoint shell", "waypoint shell work"),
    about="C-] opens a menu: c takes a checkpoint, l shows the log, r restores, a answers a command that"
    " waits for approval, ? helps, d detaches, and the session goes on. C-] C-] types one C-]. Several"
    " clients can be attached at once; the terminal has the size of the smallest one. The title of the window"
    " and the prompt name the session. In the session, WAYPOINT_SESSION has its name, and WAYPOINT_PROMPT=off"
    " leaves the prompt as it is.",
    json={},
)
def shell(console: Console) -> int:
    from waypoint.cli.attach import attach

    return attach(console)


@verb(
    "type",
    "type into a session's terminal",
    SESSION,
    flag("-l", "--literal", help="send the words as they are: no key names, no escapes"),
    argument("keys", metavar="KEYS", nargs=argparse.REMAINDER, help="text with escapes, or names of keys"),
    examples=(
        "waypoint type -s work 'ls -l' Enter",
        "waypoint type -s work Escape :wq Enter",
        "waypoint type -s work C-c",
        r"waypoint type -s work 'echo one\necho two\n'",
    ),
    about="Names of keys, each as its own word: Enter, Tab, BTab, Space, BSpace, Escape, Up, Down, Left,"
    " Right, Home, End, PageUp, PageDown, Insert, Delete, F1 to F12, C-c (control), M-x (alt). Escapes in"
    " text: \\n (the Enter key), \\t, \\e, \\xHH, \\\\.",
)
def type_(console: Console) -> int:
    from waypoint.cli.keys import encode_keys

    words = remainder(console.arguments.keys)
    if not words:
        raise errors.UsageError("nothing to type", hint="waypoint type [-s SESSION] 'ls -l' Enter")
    data = encode_keys(words, literal=console.arguments.literal)
    console.result(console.send(Type(session=console.session, data=data), "typing"), None)
    return 0


@verb(
    "screen",
    "print what a session's terminal shows now",
    SESSION,
    examples=("waypoint screen -s work",),
)
def screen(console: Console) -> int:
    result = console.send(Screen(session=console.session), "waiting for the daemon")
    console.result(result, result.text.rstrip("\n"))
    return 0
