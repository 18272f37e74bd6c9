"""Coding agents: the MCP server that they start, and the hooks in their configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint.api.request import Result
from waypoint.cli.spec import SESSION, argument, flag, verb
from waypoint.errors import UsageError, WaypointError

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.hooks.config import Edit, Installation
    from waypoint.hooks.handler import Route


class EditedFile(Result, frozen=True):
    """A file of an agent's configuration, and what was done to it."""

    file: str
    changed: bool
    removed: bool


class EditedFiles(Result, frozen=True):
    """The files of an agent's configuration, and what the user has to know about them."""

    files: tuple[EditedFile, ...]
    notes: tuple[str, ...]


class InstalledHooks(Result, frozen=True):
    """What is configured for each agent, one line each."""

    hooks: dict[str, list[str]]


AGENTS = ("claude", "codex")
_AGENT = argument("agent", choices=AGENTS, help="the coding agent")
_FOLDER = argument(
    "--dir", metavar="DIR", default=".", help="the project, or your home folder for all projects (default: .)"
)

_ON_APPROVAL = argument(
    "--on-approval",
    choices=("wait", "deny"),
    help="the agent asks its user about a command that needs approval, or it is refused at once, for an agent"
    " that runs without a user (default: wait)",
)


@verb(
    "mcp",
    "serve the verbs to a model as MCP tools, over stdin and stdout",
    argument(
        "-s",
        "--session",
        metavar="SESSION",
        help="the session that tools use if they name none (default: WAYPOINT_SESSION, else the one that was"
        " used last)",
    ),
    flag("--all", help="offer all tools; by default a core set, which costs the model fewer tokens"),
    argument(
        "--on-approval",
        choices=("wait", "deny"),
        help="a command that needs approval waits for it, or is refused at once (default: wait if the client"
        " can ask its user or a person is attached to the session, else deny)",
    ),
    examples=("waypoint mcp", "waypoint mcp -s work", "waypoint mcp --all"),
    about="An agent's configuration names it as a server, and the agent starts it. It keeps nothing that"
    " matters: it can be killed and started again at any time.",
    json={},
)
def mcp(console: Console) -> int:
    from waypoint.client.client import Client
    from waypoint.machine.extras import require_mcp

    require_mcp(console.say)
    from waypoint.mcp.server import serve  # a large library, which no other verb should pay for

    console.hint("this speaks MCP on stdin and stdout; an agent starts it from its configuration")
    arguments = console.arguments
    serve(
        Client(console.home.path),
        console.session or "",
        everything=arguments.all,
        on_approval=arguments.on_approval,
    )
    return 0


# A hook ---------------------------------------------------------------------------------------------------


@verb(
    "hook",
    "the program that a coding agent's hooks run: it records, takes points and applies the policy",
    SESSION,
    _AGENT,
    argument("payload", metavar="JSON", nargs="?", help="the event (default: read from stdin)"),
    flag("--allow", help="explicitly allow commands that the policy does not object to"),
    _ON_APPROVAL,
    examples=("waypoint hook claude <event.json",),
    about="It reads the agent's event as JSON and replies in the agent's format. It never fails: errors are"
    " reported on stderr only, and at the start of the agent's session if there is no session to work on.",
    json={},
)
def hook(console: Console) -> int:
    """Errors are reported and ignored: they must not stop the agent."""
    from waypoint.hooks import handler

    arguments = console.arguments
    agent = handler.AGENTS[arguments.agent]
    try:
        payload = arguments.payload if arguments.payload is not None else sys.stdin.read()
        event = handler.parse(agent, payload)
        if event.name == "other" or (event.name == "before_tool" and not event.command):
            return 0
        try:
            route = _route(console)
        except WaypointError as error:
            # What a hook writes to stderr is seen by hardly any user; a message is shown.
            handler.note(why := f"this hook does nothing: {_in_words(error)}")
            reply = {"systemMessage": f"waypoint: {why}"} if event.name == "session_start" else None
        else:
            deny = arguments.on_approval == "deny"
            reply = handler.answer(agent, event, route, allow=arguments.allow, deny=deny)
    except WaypointError as error:
        handler.note(_in_words(error))
        return 0
    except Exception as error:  # noqa: BLE001
        handler.note(f"{type(error).__name__}: {error}")
        return 0
    if reply is not None:
        import json

        print(json.dumps(reply))
    return 0


def _in_words(error: WaypointError) -> str:
    from waypoint.api import hints

    return "; ".join(filter(None, (error.message, hints.word(error.hint, hints.in_command))))


def _route(console: Console) -> Route:
    """How the session is reached: -s, else WAYPOINT_SESSION, else the only one there is."""
    from waypoint.hooks import routes

    if os.path.exists(routes.DOOR):
        return routes.InsideRoute()
    from waypoint.api import sessions

    session = console.session or console.transport.ask(sessions.Session()).session.name
    return routes.DaemonRoute(console.transport, session)


# The configuration of an agent ----------------------------------------------------------------------------


@verb(
    "hooks install",
    "add Waypoint's hooks, its MCP server and a skill to the configuration of a coding agent",
    _AGENT,
    _FOLDER,
    SESSION,
    flag("--no-mcp", help="only the hooks, not the MCP server"),
    flag("--allow", help="let the agent run what the policy allows without asking its user"),
    _ON_APPROVAL,
    examples=("waypoint hooks install claude", "waypoint hooks install codex --dir ~/project -s work"),
    about="What is there stays, and repeating it changes nothing. docs/coding-agents.md says what the"
    " hooks do.",
    json=EditedFiles,
)
def hooks_install(console: Console) -> int:
    arguments = console.arguments
    if not Path(arguments.dir).is_dir():
        raise UsageError(f"no such folder: {arguments.dir}", hint="--dir is the folder of the project")
    installation = _installation(console)
    _edit(console, installation, unchanged="unchanged")
    if installation.mcp:
        _provide_server(console)
    if arguments.agent == "codex":
        console.hint("Codex runs new hooks only after you have trusted them: type /hooks in it")
    if arguments.agent == "claude" and Path(arguments.dir).resolve() == Path.home().resolve():
        command = " ".join(installation.server())
        console.hint(f"to add the MCP server for all projects: claude mcp add -s user waypoint -- {command}")
    return 0


@verb(
    "hooks uninstall",
    "remove the hooks, the MCP server and the skill again; the files are as they were",
    _AGENT,
    _FOLDER,
    examples=("waypoint hooks uninstall claude",),
    json=EditedFiles,
)
def hooks_uninstall(console: Console) -> int:
    _edit(console, None, unchanged="contains nothing of Waypoint")
    return 0


@verb(
    "hooks show",
    "show which hooks and servers of Waypoint are configured",
    argument("agent", choices=AGENTS, nargs="?", help="the coding agent (default: both)"),
    _FOLDER,
    examples=("waypoint hooks show", "waypoint hooks show codex --dir ~/project"),
    json=InstalledHooks,
)
def hooks_show(console: Console) -> int:
    from waypoint.hooks.config import installed

    arguments = console.arguments
    agents = [arguments.agent] if arguments.agent else AGENTS
    hooks = {agent: installed(agent, Path(arguments.dir)) for agent in agents}
    text = "\n".join(line for lines in hooks.values() for line in lines)
    console.result(InstalledHooks(hooks=hooks), text or None)
    if not text:
        console.hint("there are none: `waypoint hooks install claude` (or codex) adds them")
    return 0


def _provide_server(console: Console) -> None:
    """Agents wait half a minute for a server to start: its packages are installed before that."""
    from waypoint.api import hints
    from waypoint.machine.extras import require_mcp

    try:
        require_mcp(console.say)
    except WaypointError as error:
        console.warn(error.message)
        console.aside(f"  {hints.word(error.hint, hints.in_command)}; the hooks work without them")


def _installation(console: Console) -> Installation:
    from waypoint.home import DEFAULT_HOME
    from waypoint.hooks.config import Installation
    from waypoint.hooks.routes import DOOR

    arguments, home = console.arguments, str(console.home.path)
    # Inside a session WAYPOINT_SESSION names that one. Its forks have other names: there the door decides.
    session = arguments.session if Path(DOOR).exists() else console.session
    command = launcher() if home == DEFAULT_HOME else (*launcher(), "--home", home)
    return Installation(
        command,
        session,
        allow=arguments.allow,
        mcp=not arguments.no_mcp,
        on_approval=arguments.on_approval,
    )


def launcher() -> tuple[str, ...]:
    """The command that starts this Waypoint."""
    import shutil

    import waypoint

    clone = Path(waypoint.__file__).parents[2] / "waypoint"
    if clone.is_file() and os.access(clone, os.X_OK):
        return (str(clone),)
    installed = shutil.which("waypoint")
    return (installed,) if installed else (sys.executable, "-P", "-m", "waypoint")


def _edit(console: Console, installation: Installation | None, *, unchanged: str) -> None:
    """Changes the files of the agent and prints what was done to each. None removes everything."""
    from waypoint.hooks.config import edits

    arguments = console.arguments
    changes = edits(arguments.agent, Path(arguments.dir), installation)
    lines = []
    for edit in changes:
        edit.write()
        what = ("removed" if _is_removed(edit) else "written") if edit.changes else unchanged
        lines += [f"{edit.path}  {what}", *(f"  {note}" for note in edit.notes)]
    files = tuple(
        EditedFile(file=str(edit.path), changed=edit.changes, removed=_is_removed(edit)) for edit in changes
    )
    notes = tuple(note for edit in changes for note in edit.notes)
    console.result(EditedFiles(files=files, notes=notes), "\n".join(lines))


def _is_removed(edit: Edit) -> bool:
    return edit.changes and edit.after is None
