"""The command line: `waypoint VERB …`.

A face without logic of its own: it reads the arguments (`parser`), asks the daemon (`sessions`, `machine`,
`attach`) and shows the answer (`console`, `render`). Every module is imported by the verb that needs it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.cli.spec import Verb

_INSIDE, _CLIENT = "/dev/waypoint.inside/replies", "/dev/waypoint/bin/inside/waypoint"
_BROKEN_PIPE = 141
_INTERRUPTED = 130
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    inside = argv is None and os.path.exists(_INSIDE) and not os.environ.get("WAYPOINT_HOME")
    if inside:
        # In a session, whose base has a Waypoint too. That session's own is meant. A hook goes on here: it
        # knows the agent's formats, and asks that one itself. To be asked is no change of the session.
        if "hook" not in words[:3]:
            os.execv(_CLIENT, [_CLIENT, *words])
        sys.dont_write_bytecode = True
    if words in (["--version"], ["-V"]):
        from waypoint import __version__

        print(f"waypoint {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✔ is no reason to fail
    try:
        status = _main(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has gone. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        print(f"waypoint: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    return status


def _import_msgspec() -> None:
    """It uses typing_extensions where that is installed (MCP's server needs it) and does as well without:
    10 ms of every verb."""
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]


def _main(words: list[str]) -> int:
    _import_msgspec()
    from waypoint.errors import WaypointError

    try:
        return _run(words)
    except WaypointError as error:
        from waypoint.cli.console import report

        return report(error, json="--json" in words)


def _run(words: list[str]) -> int:
    from waypoint.cli import spec

    asked = spec.split(words)
    if asked.show == "version":
        return main(["--version"])
    rest = asked.words
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "-h"]
    if asked.show or not rest or rest == ["-h"]:
        print(spec.overview(), end="")
        return 0 if asked.show or rest else 2
    if rest[1:] in (["-h"], ["--help"]) and spec.below(rest[0]):
        print(spec.group_overview(rest[0]), end="")
        return 0
    verb, rest = spec.find(rest)
    try:
        arguments = spec.Parser(verb).parse(rest)
    except SystemExit as stop:  # -h
        return int(stop.code or 0)
    from waypoint.cli.console import Console

    home = getattr(arguments, "home", asked.home)
    with Console(arguments, home=home, json=asked.json or getattr(arguments, "json", False)) as console:
        return int(_function(verb)(console))


def _function(verb: Verb) -> Callable[[Console], int]:
    from importlib import import_module

    module, _, name = verb.run.rpartition(".")
    found: Callable[[Console], int] = getattr(import_module(f"waypoint.cli.{module}"), name)
    return found
