"""The verbs for agents: the MCP server, and hooks in coding agents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.errors import UsageError, WaypointError

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.hooks.config import Edit, Wanted
    from waypoint.hooks.handler import Way


def mcp(console: Console) -> int:
    from waypoint.mcp.server import serve  # its library is large: nobody else pays for it

    console.hint("this speaks MCP on stdin and stdout: an agent starts it, as its configuration says")
    serve(console.client, console.session or "")
    return 0


# ---- a hook --------------------------------------------------------------------------------------


def hook(console: Console) -> int:
    """Whatever goes wrong here is a note and no failure: the agent has its own work to do."""
    from waypoint.hooks import handler

    given = console.arguments
    agent = handler.AGENTS[given.agent]
    try:
        happening = handler.read(agent, given.payload if given.payload is not None else sys.stdin.read())
        if happening.event == "other" or (happening.event == "before" and not happening.command):
            return 0
        way = _way(console)
        if way is None:
            return 0
        said = handler.answer(agent, happening, way, allow=given.allow)
    except WaypointError as error:
        handler.note("; ".join(filter(None, (error.message, error.hint))))
        return 0
    except Exception as error:  # noqa: BLE001
        handler.note(f"{type(error).__name__}: {error}")
        return 0
    if said is not None:
        import json

        print(json.dumps(said))
    return 0


def _way(console: Console) -> Way | None:
    """How the session is reached; None when the agent works in none."""
    from waypoint.hooks import routes

    if os.path.exists(routes.DOOR):
        return routes.Inside()
    return routes.Outside(console.client, console.session) if console.session else None


# ---- hooks in configuration files ----------------------------------------------------------------


def hooks_install(console: Console) -> int:
    given = console.arguments
    if not Path(given.dir).is_dir():
        raise UsageError(f"there is no folder {given.dir}", hint="--dir is the folder of the project")
    edits = _edits(console, _wanted(console))
    for edit in edits:
        edit.write()
    _tell(console, edits, "unchanged")
    if given.agent == "codex":
        console.hint("Codex runs new hooks only after you have trusted them: type /hooks in it")
    if given.agent == "claude" and Path(given.dir).resolve() == Path.home().resolve():
        words = " ".join(_wanted(console).server())
        console.hint(f"its MCP servers are added with: claude mcp add -s user waypoint -- {words}")
    return 0


def hooks_uninstall(console: Console) -> int:
    edits = _edits(console, None)
    for edit in edits:
        edit.write()
    _tell(console, edits, "nothing of Waypoint's in it")
    return 0


def hooks_show(console: Console) -> int:
    from waypoint.hooks.config import found

    given = console.arguments
    agents = [given.agent] if given.agent else ["claude", "codex"]
    there = {agent: found(agent, Path(given.dir)) for agent in agents}
    text = "\n".join(line for lines in there.values() for line in lines)
    console.result({"hooks": there}, text or None)
    if not text:
        console.hint("there are none here: `waypoint hooks install claude` (or codex) puts them in")
    return 0


def _edits(console: Console, wanted: Wanted | None) -> list[Edit]:
    from waypoint.hooks.config import edits

    return edits(console.arguments.agent, Path(console.arguments.dir), wanted)


def _wanted(console: Console) -> Wanted:
    from waypoint.hooks.config import Wanted

    given = console.arguments
    session = given.session or os.environ.get("WAYPOINT_SESSION") or None
    return Wanted((*_launcher(), *_home(console)), session, allow=given.allow, mcp=not given.no_mcp)


def _launcher() -> tuple[str, ...]:
    """What starts this very Waypoint."""
    import shutil

    import waypoint

    clone = Path(waypoint.__file__).parents[2] / "waypoint"
    if clone.is_file() and os.access(clone, os.X_OK):
        return (str(clone),)
    there = shutil.which("waypoint")
    return (there,) if there else (sys.executable, "-P", "-m", "waypoint")


def _home(console: Console) -> tuple[str, ...]:
    from waypoint.home import DEFAULT_HOME

    here = str(console.home.path)
    return () if here == DEFAULT_HOME else ("--home", here)


def _tell(console: Console, edits: list[Edit], otherwise: str) -> None:
    told = [
        {"file": str(edit.path), "changed": edit.changes, "removed": edit.after is None and edit.changes}
        for edit in edits
    ]
    lines = []
    for edit in edits:
        how = otherwise if not edit.changes else ("removed" if edit.after is None else "written")
        lines.append(f"{edit.path}  {how}")
        lines += [f"  {note}" for note in edit.notes]
    notes = [note for edit in edits for note in edit.notes]
    console.result({"files": told, "notes": notes}, "\n".join(lines))
