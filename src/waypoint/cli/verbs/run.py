"""`waypoint run`: a command in a session of its own at this folder, and at its end what it did.

On a terminal the user is attached while the command runs. Without one the command runs beside the shell and
its streams are those of this process. The exit status is that of the command.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint import errors
from waypoint.api import sessions as api
from waypoint.api.agent import Trace
from waypoint.cli import render
from waypoint.cli.console import report, terminal_size, text_size
from waypoint.cli.spec import YES, argument, command, flag, remainder, verb
from waypoint.model import BoxOptions, Size

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.client.connection import Transport
    from waypoint.client.session import Session
    from waypoint.model import Landing

_INSIDE_PATH = "/dev/waypoint/bin/inside"
_NOT_PASSED = re.compile(
    r"_|SHLVL|PWD|OLDPWD|LINES|COLUMNS|TERM|TERMCAP|TMUX.*|STY|SSH_.*|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_.*"
    r"|XDG_RUNTIME_DIR|XDG_SESSION_.*|WAYPOINT_.*|PS\d|PROMPT_COMMAND|BASH.*|HOSTNAME|NOTIFY_SOCKET|LISTEN_.*"
    r"|INVOCATION_ID|JOURNAL_STREAM"
)
"""Variables of the caller that mean nothing in a session: its terminal, its sockets, its shell."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BEFORE, _SHELL = "before ", "the work"
"""The intent of the first point, by which a session of `waypoint run` is recognized."""
_LOG_LINES = 20
_LOOK_SECONDS = 0.5


@verb(
    "run",
    "run a command in a session of its own at this folder, and bring its results out at the end",
    argument("--name", metavar="NAME", help="the name of the session (default: a free one is chosen)"),
    flag("--keep", help="let the session go on at the end"),
    flag("--rm", help="remove the session at the end, with its points"),
    argument("--policy", metavar="FILE", help="a TOML file with rules for the commands of this session"),
    flag("--no-hooks", help="add no hooks to an agent that is known"),
    YES,
    command("the command and its arguments (default: the shell alone)"),
    examples=("waypoint run -- claude", "waypoint run --name fix -- codex", "waypoint run -- make test"),
    about="The session is layered over this machine's files: what the command writes lands nowhere else. It"
    " starts in this folder, with your variables, and with a point to come back to; automatic points and the"
    " policy are on. For claude and codex the hooks are used that are installed; if there are none, they are"
    " added in the session alone. While it runs on a terminal, C-] opens a menu: checkpoint, log, restore,"
    " approve, help, detach. At the end it shows what happened, with the plan of bringing the changes of this"
    " folder here, and asks; without a terminal it names the command that does it, or does it with --yes."
    " Then the session is parked: `waypoint restore` brings it back. The exit status is that of the command."
    " After a detach, `waypoint run --name NAME` without a command goes on.",
    json={},
)
def run(console: Console) -> int:
    arguments = console.arguments
    words = remainder(arguments.command)
    if arguments.keep and arguments.rm:
        raise errors.UsageError("--keep and --rm exclude each other", hint="choose one")
    policy = None
    if arguments.policy is not None:
        from waypoint.cli.verbs.policy import read_policy

        policy = read_policy(arguments.policy)
    console.prepare()
    if not words and arguments.name and _exists(console, arguments.name):
        return _Run(console, console.open_session(arguments.name), []).go_on()
    size = terminal_size()
    request = api.New(
        name=arguments.name,
        # A member of the daemon's group works with its own files, as itself.
        options=BoxOptions(user=str(os.getuid()) if os.geteuid() else None),
        size=Size(rows=size.lines, columns=size.columns),
        policy=policy,
    )
    name = console.send(request, "starting a session").session.name
    return _Run(console, console.open_session(name), words).start()


def _exists(console: Console, name: str) -> bool:
    sessions = console.send(api.Ls(), "waiting for the daemon").sessions
    return any(session.name == name for session in sessions)


def caller_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that mean something in a session."""
    passed = {
        name: value
        for name, value in environment.items()
        if _VARIABLE.fullmatch(name) and not _NOT_PASSED.fullmatch(name) and value.isprintable()
    }
    if "PATH" in passed:
        passed["PATH"] = f"{_INSIDE_PATH}:{passed['PATH']}"
    return passed


class _Run:
    """One `waypoint run`."""

    def __init__(self, console: Console, session: Session, words: Sequence[str]) -> None:
        self._console, self._session, self._words = console, session, words
        self._name, self._folder = session.name, os.getcwd()
        self._agent = os.path.basename(words[0]) if words else ""
        self._exit_code: int | None = None
        self._error: errors.WaypointError | None = None
        self._is_occupied = False
        """Whether the command runs already."""
        self._left = threading.Event()
        """Set when the user is no longer attached."""

    # ---- the command -------------------------------------------------------------------------

    def start(self) -> int:
        """Prepares the session, runs the command to its end, and tells what happened."""
        is_attached = sys.stdin.isatty() and sys.stdout.isatty()
        try:
            if not (is_attached or self._words):
                raise errors.UsageError("no command given", hint="without a terminal it needs one")
            self._session.run(f"cd {shlex.quote(self._folder)}").check()
            if not self._console.arguments.no_hooks:
                self._edit_hooks("install", "--no-mcp")
            self._session.checkpoint(f"{_BEFORE}{shlex.join(self._words) or _SHELL}", name="start")
            self._session.auto()
        except BaseException:
            self._session.remove()
            raise
        if not is_attached:
            return self._beside()
        return self._attached(self._run_in_shell if self._words else self._wait_for_prompt)

    def go_on(self) -> int:
        """Attaches again after a detach. If the command has ended meanwhile, it comes to its end."""
        commands, points = self._session.trace(kinds=["command"]), self._session.log()
        moved = shlex.split(commands[0].body.get("command") or "") if commands else []
        if not points or not points[0].info.intent.startswith(_BEFORE) or moved[:1] != ["cd"]:
            raise errors.UsageError(
                f"session {self._name!r} was not started by `waypoint run`",
                hint=f"waypoint shell {self._name}",
            )
        intent = points[0].info.intent.removeprefix(_BEFORE)
        self._words = [] if intent == _SHELL else shlex.split(intent)
        self._folder, self._agent = moved[1], os.path.basename(self._words[0]) if self._words else ""
        self._is_occupied = bool(self._session.info.foreground)
        if self._words and not self._is_occupied:
            self._exit_code = commands[-1].body.get("exit_code")
            return self._end()
        return self._attached(self._wait_for_prompt)

    def _attached(self, follow: Callable[[Transport], None]) -> int:
        """With the user attached to the session. `follow` returns when the command has ended."""
        from waypoint.cli.attach import Attachment

        reader, writer = os.pipe()
        transport = self._console.another_transport()

        def work() -> None:
            try:
                follow(transport)
            except errors.WaypointError as error:
                self._error = error
            finally:
                os.close(writer)

        thread = threading.Thread(target=work, daemon=True)
        attachment = Attachment(
            self._console,
            self._session.info,
            until=reader,
            on_attached=thread.start,
            ends_with_shell=not self._words,
        )
        try:
            end = attachment.run_to_end()
        finally:
            self._left.set()
            os.close(reader)
        if isinstance(end, int):
            return end
        if end.detached:
            again = f"`waypoint run --name {self._name}` attaches again"
            self._console.aside(f"[detached from {self._name}, which goes on; {again}]")
            return 0
        if end.why:
            self._console.aside(f"[{self._name}: {end.why}]")
            return 1
        return self._end()

    def _run_in_shell(self, transport: Transport) -> None:
        """Runs the command in the shell of the session."""
        request = api.Exec(
            session=self._name,
            command=shlex.join(self._words),
            on_terminal=True,
            env=caller_variables(os.environ),
            actor=self._console.actor,
            on_approval="wait",
        )
        try:
            self._exit_code = transport.ask(request).exit_code
        except (errors.DaemonUnreachable, errors.SessionDead):
            # The daemon was replaced, or the session restored: the command may be there still.
            self._wait_for_prompt(transport)

    def _wait_for_prompt(self, transport: Transport) -> None:
        """Returns when what occupies the shell has ended. If nothing does, when the user has left."""
        is_occupied = self._is_occupied
        while not self._left.wait(_LOOK_SECONDS):
            with contextlib.suppress(errors.DaemonUnreachable):
                session = transport.ask(api.Session(session=self._name)).session
                if session.foreground:
                    is_occupied = True
                elif is_occupied:
                    break
        if is_occupied:
            events = transport.ask(Trace(session=self._name, kinds=("command",), limit=1)).events
            self._exit_code = events[-1].body.get("exit_code") if events else None

    def _beside(self) -> int:
        """As a program beside the shell, with the streams of this process."""
        from waypoint.cli.verbs.commands import pass_through, program_status

        console = self._console
        request = api.Spawn(
            argv=tuple(self._words),
            session=self._name,
            cwd=self._folder,
            env=caller_variables(os.environ),
            actor=console.actor,
            on_approval="wait" if console.can_ask else None,
        )
        try:
            # The keyboard belongs to this terminal, which the program does not have.
            program = pass_through(console, request, stdin=not sys.stdin.isatty())
            self._exit_code = program_status(program)
        except errors.CannotStart as error:
            code = int(error.details.get("exit_code", error.exit_status))
            if not console.arguments.keep:  # nothing has happened in it
                report(error, json=False)
                self._session.remove()
                console.say(f"session {self._name} is removed")
                return code
            self._error, self._exit_code = error, code
        except errors.WaypointError as error:
            self._error = error
        return self._end()

    # ---- the hooks of an agent ---------------------------------------------------------------

    def _edit_hooks(self, *words: str) -> None:
        """Adds hooks for an agent that is known, in the session alone, or takes them out again. If it has
        hooks on this machine, it has these."""
        from waypoint.cli.verbs.hooks import AGENTS, launcher
        from waypoint.hooks.config import installed

        agent, folder = self._agent, self._folder
        if agent not in AGENTS or installed(agent, Path(folder)) or installed(agent, Path.home()):
            return
        verb, *options = words
        program = self._session.spawn(
            [*launcher(), "hooks", verb, agent, "--dir", folder, *options],
            env={**caller_variables(os.environ), "WAYPOINT_HOME": str(self._console.home.path)},
        )
        _, wrong = program.communicate()
        if program.exit_code:
            self._console.warn(f"no hooks of {agent}: {render.shown(wrong.decode(errors='replace').strip())}")
        elif verb == "install":
            self._console.say(f"hooks of {agent} are added in the session alone")

    # ---- the end -----------------------------------------------------------------------------

    def _end(self) -> int:
        """Tells what happened, offers to bring it here, and leaves the session as it was asked for."""
        console = self._console
        if self._error is not None:
            report(self._error, json=False)
        if not console.arguments.no_hooks:
            self._edit_hooks("uninstall")
        try:
            if self._session.changed():
                self._session.checkpoint(f"after {shlex.join(self._words) or 'the work'}")
            self._tell()
        except errors.WaypointError as error:
            report(error, json=False)
        is_here = self._apply()
        self._leave(is_here=is_here)
        if self._error is not None and self._exit_code is None:
            return self._error.exit_status
        return 1 if self._exit_code is None and self._words else self._exit_code or 0

    def _tell(self) -> None:
        """The points, the changes, and what acted outside."""
        from waypoint.cli.timeline import read_timeline
        from waypoint.text.effects import known_effects, list_effects, unknown_effects

        console, session, paint = self._console, self._session, self._console.stderr_paint
        if console.quiet:
            return
        if self._words:
            ending = "did not end" if self._exit_code is None else f"ended with {self._exit_code}"
            console.aside(f"{paint.bold(render.shown(shlex.join(self._words)))} {ending}")
        width = text_size().columns
        with console.progress("looking at what happened"):
            session.point(
                "@"
            ).card()  # the last one that is written: then the log has what each point changed
            timeline = read_timeline(console.transport, self._name, paint, width, limit=_LOG_LINES)
            difference = session.diff(session.log()[0])
        console.aside(timeline.text())
        console.aside(paint.bold("changed since the start"))
        console.aside(render.styled(difference.stat(), paint))
        effects = session.effects()
        for effect in list_effects(known_effects(effects)):
            console.aside(paint.warn(f"outside    {effect}"))
        if unseen := unknown_effects(effects):
            console.aside(
                f"outside    {render.plural(len(unseen), 'command')} could not be looked into:"
                f" `waypoint effects -s {self._name} --unseen`"
            )

    def _apply(self) -> bool:
        """Offers to bring the changes of the folder here. Whether nothing is left to bring."""
        from waypoint.cli.verbs.files import applied, landing_count, landing_plan

        console, folder = self._console, self._folder

        def apply(*, dry_run: bool, on_progress: Callable[[str], None] | None = None) -> Landing:
            return self._session.apply(
                folder, [folder], source=folder, delete=True, dry_run=dry_run, on_progress=on_progress
            )

        try:
            with console.progress("comparing"):
                plan = apply(dry_run=True)
            if not (plan.items or plan.conflicts):
                console.say(f"nothing to bring to {render.shown(folder)}")
                return True
            console.aside(landing_plan(plan, console.stderr_paint))
            wanted = console.arguments.yes or (
                console.can_ask and console.ask(f"Apply {landing_count(plan)} to {render.shown(folder)}?")
            )
            if wanted and not plan.conflicts:
                with console.progress("applying") as update:
                    done = apply(dry_run=False, on_progress=lambda far: update(f"applying: {far}"))
                console.aside(applied(done))
                return not done.conflicts
        except errors.WaypointError as error:
            report(error, json=False)
            return False
        quoted = shlex.quote(folder)
        console.aside(
            f"not applied; `waypoint apply -s {self._name} --ref @ --to {quoted} --from {quoted} --delete`"
            " does it"
        )
        return False

    def _leave(self, *, is_here: bool) -> None:
        """Parks the session, or what was asked for; and says so."""
        console, name, arguments = self._console, self._name, self._console.arguments
        if arguments.keep:
            console.say(f"session {name} goes on: `waypoint shell {name}`")
            return
        if arguments.rm and is_here:
            self._session.remove()
            console.say(f"session {name} is removed")
            return
        if arguments.rm:
            console.say(f"session {name} is not removed: its changes are not applied")
        try:
            with console.progress("parking"):
                self._session.park()
        except errors.WaypointError as error:
            report(error, json=False)
            console.say(f"session {name} goes on: `waypoint shell {name}`, `waypoint rm {name}`")
            return
        console.say(
            f"session {name} is parked: `waypoint restore -s {name} @` brings it back,"
            f" `waypoint log -s {name}` shows its points, `waypoint rm {name}` removes both"
        )
