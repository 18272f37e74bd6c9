"""The verbs on this machine: what it has, what it needs, the daemon, the root file systems."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli import render

if TYPE_CHECKING:
    from waypoint.cli.console import Console


def doctor(console: Console) -> int:
    from waypoint.machine.doctor import examine

    with console.progress("looking at this machine"):
        findings = examine(console.home.path)
    missing = [finding for finding in findings if not finding.ok and not finding.optional]
    paint = console.paint
    lines = []
    wide = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = paint.good("✔") if finding.ok else paint.warn("–") if finding.optional else paint.bad("✖")
        lines.append(
            f"{mark} {paint.bold(finding.name.ljust(wide))}  {render.shown(finding.version)}".rstrip()
        )
        lines.append(f"  {' ' * wide}  {paint.dim(finding.why)}")
        if not finding.ok and finding.fix:
            lines.append(f"  {' ' * wide}  {paint.warn('fix:')} {finding.fix}")
    lines.append("")
    if missing:
        lines.append(paint.bad(f"missing: {', '.join(finding.name for finding in missing)}"))
    else:
        lines.append(paint.good("everything that Waypoint needs is here"))
    value = {"ok": not missing, "findings": [asdict(finding) for finding in findings]}
    console.result(value, "\n".join(lines))
    return errors.MachineError.exit_status if missing else 0


def setup(console: Console) -> int:
    from waypoint.machine import setup

    home = console.home.path
    engine = setup.set_up(home, console.step)
    status = console.call("daemon_status", {}, "starting the daemon")
    pool = status["pool"]
    lines = [
        f"engine  {engine.folder} · CRIU {engine.criu.version} ({engine.criu.source})",
        f"pool    {home} · {pool['kind']} · {render.size(pool['free_bytes'])} free",
        "ready: `waypoint demo` shows what it does, `waypoint new` starts a session",
    ]
    made = asdict(engine)
    console.result({"engine": {**made, "folder": str(engine.folder)}, "pool": pool}, "\n".join(lines))
    return 0


def uninstall(console: Console) -> int:
    from waypoint.machine import setup

    home = console.home
    if not home.path.exists():
        console.result({"removed": False}, f"there is nothing in {home.path}")
        return 0
    remove: Any = getattr(setup, "uninstall", None)
    if remove is None:
        raise errors.MissingFeature(
            "this version cannot remove itself",
            hint=f"`waypoint daemon stop --sessions`, then delete {home.path}",
        )
    console.confirm(
        f"Remove all sessions, all checkpoints and everything else in {home.path}?", refused="uninstalling"
    )
    if _is_set_up(console):
        with console.progress("ending the sessions"):
            console.client.call("daemon_stop", {"sessions": True})
    remove(home.path, console.step)
    console.result({"removed": True}, f"removed {home.path}")
    return 0


def _is_set_up(console: Console) -> bool:
    """Whether a daemon can be here at all, to be asked for an orderly end."""
    from waypoint.machine import setup

    home = console.home
    return os.path.exists(home.socket) or setup.current_engine(setup.engine_dir(home.path)) is not None


# Root file systems --------------------------------------------------------------------------------------


_BASE_HEAD = ("NAME", "SIZE", "FILES", "IMPORTED", "FROM")


def base_import(console: Console) -> int:
    given = console.arguments
    if not os.path.exists(given.file):
        raise errors.NotFound(
            f"there is no file {given.file}", hint="a tar, or what `docker save` has written"
        )
    console.prepare()
    args = {"name": given.name, "file": os.path.abspath(given.file)}

    def hear(event: Any) -> None:
        if "progress" in event and not console.json:
            console.step(event["progress"])

    found = console.client.call("base_import", args, on_event=hear)
    console.result(found, given.name)
    for warning in found["base"].get("warnings", ()):
        console.say(render.shown(warning))
    console.hint(f"waypoint new --base {given.name}   starts a session on it")
    return 0


def base_ls(console: Console) -> int:
    found = console.call("base_ls", {}, "asking the daemon")
    rows = [
        (
            base["name"],
            render.size(base["size_bytes"]),
            f"{base['file_count']:,}",
            render.age(base["created_at"]),
            base["source"],
        )
        for base in found["bases"]
    ]
    if not rows:
        console.hint("there are none: `waypoint base import NAME FILE` brings one in")
    console.result(found, render.table(_BASE_HEAD, rows, console.paint) if rows else None)
    return 0


def base_rm(console: Console) -> int:
    name = console.arguments.name
    found = console.call("base_rm", {"name": name}, "removing")
    console.result({**found, "removed": [name]}, f"removed {name}")
    return 0


# The daemon ---------------------------------------------------------------------------------------------


def daemon_status(console: Console) -> int:
    try:
        found = console.another_client(start=False).call("daemon_status")
    except errors.DaemonUnreachable:
        console.result({"running": False}, "no daemon runs; the next verb that needs one starts it")
        return 0
    pool = found["pool"]
    used = render.size(pool["used_bytes"])
    lines = [
        f"pid       {found['pid']}, version {found['version']}, started {render.age(found['started_at'])}",
        f"home      {found['home']}",
        f"sessions  {found['sessions']}",
        f"memory    {render.size(found['rss_bytes'])}",
        f"pool      {pool['kind']}, {used} of {render.size(pool['total_bytes'])} used",
    ]
    lines += [f"warning   {warning}" for warning in found.get("warnings", ())]
    console.result({"running": True, **found}, "\n".join(lines))
    return 0


def daemon_stop(console: Console) -> int:
    sessions = console.arguments.sessions
    if sessions:
        console.confirm("End all sessions, with everything that runs in them?", refused="ending all sessions")
    client = console.another_client(start=sessions)
    try:
        with console.progress("stopping the daemon"):
            client.call("daemon_stop", {"sessions": sessions})
    except errors.DaemonUnreachable:
        if sessions:
            raise
        console.result({"stopped": False}, "no daemon runs")
        return 0
    console.result({"stopped": True}, "stopped the daemon" + (" and all sessions" if sessions else ""))
    return 0


def daemon_logs(console: Console) -> int:
    path, given = console.home.log, console.arguments
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()[-given.number :]
            console.result({"lines": lines}, "\n".join(lines))
            if given.follow and not console.json:
                sys.stdout.flush()
                _follow(file.fileno())
    except FileNotFoundError:
        raise errors.NotFound(f"there is no log yet: {path}", hint="no daemon has run in this home") from None
    except PermissionError:
        raise errors.NotRoot(f"{path} is not for everybody to read", hint="run it as root") from None
    return 0


def _follow(descriptor: int) -> None:
    """Prints what is added to a file, until interrupted."""
    import time

    try:
        while True:
            if data := os.read(descriptor, 1 << 16):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            else:
                time.sleep(0.2)
    except KeyboardInterrupt:
        return
