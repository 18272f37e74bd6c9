"""The command line: `waypoint VERB …`.

A face without logic of its own: a verb (`verbs/`) turns its arguments into a call of the SDK and prints the
result (`console`, `render`). Starting a Python process is most of what a verb costs, so a module is imported
by the verb that needs it, and no earlier.

`spec` is what a verb is, `help`, `reference`, `manual` and `completion` show it; `attach` is `waypoint
shell`, `keys` what `waypoint type` sends; `timeline` and `graph` draw `waypoint log`.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

_INSIDE, _INSIDE_CLIENT = "/dev/waypoint.inside/replies", "/dev/waypoint/bin/inside/waypoint"
_BROKEN_PIPE = 141
_INTERRUPTED = 130
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_inside = argv is None and os.path.exists(_INSIDE) and not os.environ.get("WAYPOINT_HOME")
    if is_inside:
        # This process runs in a session whose base contains a Waypoint. The session's own client is meant.
        # A hook goes on here: it knows the agent's formats, and calls that client itself. It must not change
        # the session's files, so no bytecode is written.
        if "hook" not in words[:3]:
            os.execv(_INSIDE_CLIENT, [_INSIDE_CLIENT, *words])
        sys.dont_write_bytecode = True
    if words in (["--version"], ["-V"]):
        from waypoint import __version__

        print(f"waypoint {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ✔ must not be an error
    try:
        status = _run_reporting_errors(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout has gone. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        print(f"waypoint: cannot write the output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    return status


def run() -> NoReturn:
    """Runs one verb, as a process of its own.

    Half of what a verb costs is beginning and ending Python. While modules are imported no garbage is looked
    for: there is none. When the verb is done and no thread is left the process ends at once, instead of
    taking apart what goes with it.
    """
    gc.disable()
    status = main()
    import threading

    if threading.active_count() > 1:
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone: `main` has seen that
            continue
    os._exit(status)


def _import_msgspec() -> None:
    """Imports msgspec without two modules that it does not need here: that saves 11 ms of every verb.
    typing_extensions is for older versions of Python; uuid asks `platform` whether this is AIX."""
    if "msgspec" in sys.modules:
        return
    platform = ModuleType("platform")
    platform.__dict__["system"] = lambda: os.uname().sysname
    instead = {"typing_extensions": None, "platform": platform}
    without = {name: module for name, module in instead.items() if name not in sys.modules}
    sys.modules.update(without)  # type: ignore[arg-type]
    try:
        import msgspec  # noqa: F401
    finally:
        for name in without:
            del sys.modules[name]


def _run_reporting_errors(words: list[str]) -> int:
    _import_msgspec()
    from waypoint.errors import WaypointError

    try:
        return _run(words)
    except WaypointError as error:
        from waypoint.cli.console import report

        return report(error, json="--json" in words)


def _run(words: list[str]) -> int:
    from waypoint.cli import spec, verbs

    invocation = spec.split_options(words)
    if invocation.show == "version":
        return main(["--version"])
    rest = invocation.words
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "-h"]
    if invocation.show or not rest or rest == ["-h"]:
        from waypoint.cli import help

        print(help.overview(verbs.load_all()), end="")
        return 0 if invocation.show or rest else 2
    if rest[1:] in (["-h"], ["--help"]) and (names := verbs.family(rest[0])):
        from waypoint.cli import help

        print(help.family_overview(rest[0], [verbs.load(name) for name in names]), end="")
        return 0
    verb, rest = verbs.find(rest)
    try:
        arguments = spec.Parser(verb).parse(rest)
    except SystemExit as stop:  # -h
        return int(stop.code or 0)
    from waypoint.cli.console import Console

    if invocation.no_color or getattr(arguments, "no_color", False):
        os.environ["NO_COLOR"] = "1"  # also for the pager and for other programs that are started
    with Console(
        arguments,
        home=getattr(arguments, "home", invocation.home),
        json=invocation.json or getattr(arguments, "json", False),
        quiet=invocation.quiet or getattr(arguments, "quiet", False),
    ) as console:
        gc.freeze()  # what was imported stays
        gc.enable()
        return verb.run(console)
