"""The SDK: sessions, checkpoints and forks from Python.

    >>> import waypoint
    >>> with waypoint.session("sdk-example") as s:
    ...     _ = s.run("cd /tmp && echo one > note").check()
    ...     point = s.checkpoint("one is written")
    ...     _ = s.run("echo two > note")
    ...     restored = s.restore(point)
    ...     s.run("cat note").output
    'one\\n'
    >>> s.stop()

Objects here are names for things that live in the daemon: they hold no state worth losing, may be used
from several threads (each thread has its own connection) and from several processes at once. The daemon is
started by the first call, and started again when it is gone.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from waypoint import errors, model
from waypoint.api import wire
from waypoint.client import agent
from waypoint.home import Home, locate
from waypoint.kernel import atomic
from waypoint.text import views

_START_SECONDS = 120.0


OnApproval = Callable[[model.Approval], bool | None]
"""Asked when a command waits for approval: whether it may run; None leaves it to others."""


class _Connection(socket.socket):
    """Goes with its thread or its client, without a word."""

    def __del__(self) -> None:
        self.close()


class _AskAgain(Exception):
    """Raised when a daemon that is about to end has not begun what it was asked for."""


class Client:
    """Connections to the daemon of one home."""

    def __init__(self, home: str | os.PathLike[str] | None = None, *, start: bool = True) -> None:
        self.home: Home = locate(home)
        self._start = start
        self._local = threading.local()

    def connect(self) -> socket.socket:
        """A connection of its own, the daemon started if need be."""
        try:
            return self._connect_once()
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            pass
        except PermissionError as error:
            raise errors.NotRoot(
                f"no permission to talk to the daemon at {self.home.socket}", hint="run it as root"
            ) from error
        if not self._start:
            raise errors.DaemonUnreachable("no daemon runs", hint="any other verb starts it")
        self._start_daemon()
        try:
            return self._connect_once()
        except OSError as error:
            raise errors.DaemonUnreachable(
                f"the daemon does not answer: {error}", hint=f"its log is {self.home.log}"
            ) from error

    def _connect_once(self) -> socket.socket:
        connection = _Connection(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(str(self.home.socket))
            # A daemon greets. One that ends just now may have let us in without ever reading a request.
            wire.receive(connection)
        except wire.Closed as error:
            connection.close()
            raise ConnectionRefusedError("the daemon is about to end") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _start_daemon(self) -> None:
        import subprocess  # here: a verb that finds a daemon does not pay for it

        if os.geteuid() != 0:
            raise errors.NotRoot("Waypoint needs root", hint="run it with sudo, or as root")
        environment = {**os.environ, "WAYPOINT_HOME": str(self.home.path)}
        # -P: the current folder is no place to import from.
        command = [sys.executable, "-P", "-m", "waypoint.daemon.main"]
        started = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        if started.returncode:
            with contextlib.suppress(ValueError, KeyError, IndexError):
                raise errors.from_dict(wire.decode(started.stdout.splitlines()[-1].encode())["error"])
            raise errors.DaemonUnreachable(
                f"the daemon did not start: {started.stderr.strip()[-500:]}",
                hint=f"its log is {self.home.log}",
            )

    def call(
        self,
        verb: str,
        args: Mapping[str, Any] | None = None,
        *,
        on_event: Callable[[Any], None] | None = None,
        on_data: Callable[[bytes], object] | None = None,
    ) -> Any:
        """One request and its answer. Raises what the daemon raised."""
        request = wire.Request(verb, dict(args or {}))
        connection = self._send(request)
        try:
            return self._answer(connection, on_event, on_data)
        except _AskAgain:
            self.close()
            return self.call(verb, args, on_event=on_event, on_data=on_data)
        except wire.Closed as error:
            self.close()
            raise errors.DaemonUnreachable(
                f"the daemon ended during {verb!r}", hint="ask again: sessions and checkpoints are kept"
            ) from error
        except (KeyboardInterrupt, GeneratorExit, OSError):
            self.close()  # its answer is still on the way: no other request may find it there
            raise

    def _send(self, request: wire.Request) -> socket.socket:
        """Sends on this thread's connection. One whose daemon has gone refuses at once, before anything was
        asked: then, and only then, it is safe to ask a new daemon."""
        kept: socket.socket | None = getattr(self._local, "kept", None)
        if kept is not None:
            try:
                wire.send(kept, request)
                return kept
            except wire.Closed:
                self.close()
        connection = self.connect()
        self._local.kept = connection
        try:
            wire.send(connection, request)
        except wire.Closed as error:
            self.close()
            raise errors.DaemonUnreachable(
                "the daemon closed the connection", hint=f"its log is {self.home.log}"
            ) from error
        return connection

    def _answer(
        self,
        connection: socket.socket,
        on_event: Callable[[Any], None] | None = None,
        on_data: Callable[[bytes], object] | None = None,
    ) -> Any:
        while True:
            kind, body = wire.receive(connection)
            if kind == wire.DATA:
                if on_data:
                    self._hear(connection, on_data, body)
                continue
            message = wire.decode(body)
            if "event" in message:
                if on_event:
                    self._hear(connection, on_event, message["event"])
            elif "error" in message:
                raise errors.from_dict(message["error"])
            elif "again" in message:
                raise _AskAgain
            else:
                return message["result"]

    def _hear(self, connection: socket.socket, callback: Callable[[Any], object], what: Any) -> None:
        """Somebody else's code: if it raises, the rest of the answer is still on the way, and the connection
        is good for nothing any more."""
        try:
            callback(what)
        except BaseException:
            connection.close()
            if getattr(self._local, "kept", None) is connection:
                self._local.kept = None
            raise

    def decide(self, approval: Mapping[str, Any], on_approval: OnApproval | None) -> None:
        """Asks whoever is to be asked about a command that waits, and hands their word on. Without an answer
        it waits for somebody else's."""
        if on_approval is None or approval["state"] != "waiting":
            return
        answer = on_approval(msgspec.convert(approval, model.Approval))
        if answer is None:
            return
        other = Client(self.home.path, start=False)
        try:
            # Somebody else may have been faster, or it has expired: then their word counts.
            with contextlib.suppress(errors.UsageError):
                other.call("approve" if answer else "deny", {"id": approval["id"]})
        finally:
            other.close()

    def open(
        self, verb: str, args: Mapping[str, Any], *, on_event: Callable[[Any], None] | None = None
    ) -> tuple[socket.socket, Any]:
        """A request whose connection stays open for data: attach, spawn."""
        connection = self.connect()
        try:
            wire.send(connection, wire.Request(verb, dict(args)))
            return connection, self._answer(connection, on_event)
        except _AskAgain:
            connection.close()
            return self.open(verb, args, on_event=on_event)
        except wire.Closed as error:
            connection.close()
            raise errors.DaemonUnreachable(f"the daemon ended during {verb!r}") from error
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes this thread's connection."""
        kept: socket.socket | None = getattr(self._local, "kept", None)
        if kept is not None:
            kept.close()
            self._local.kept = None


class Result:
    """What a command did.

    >>> import waypoint
    >>> with waypoint.session("sdk-result") as s:
    ...     r = s.run("echo hello; false")
    >>> r.exit_code, r.output, r.ok
    (1, 'hello\\n', False)
    >>> r.check()
    Traceback (most recent call last):
        ...
    waypoint.errors.CommandFailed: `echo hello; false` exited with 1
    >>> s.stop()
    """

    def __init__(self, command: str, found: model.RunResult) -> None:
        self.command = command
        self.exit_code = found.exit_code
        self.output = found.output
        self.output_bytes = base64.b64decode(found.base64) if found.base64 else found.output.encode()
        self.duration_ms = found.duration_ms
        self.timed_out = found.timed_out
        self.truncated = found.truncated
        self.notice = found.notice
        self.warnings = found.warnings

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> Result:
        """Itself, or CommandFailed when the command did not exit with 0."""
        if not self.ok:
            how = "timed out" if self.timed_out else f"exited with {self.exit_code}"
            raise errors.CommandFailed(
                f"`{self.command}` {how}", hint=self.output[-500:], exit_code=self.exit_code
            )
        return self

    def __repr__(self) -> str:
        how = "timed_out" if self.timed_out else f"exit_code={self.exit_code}"
        return f"<Result {how} output={self.output[:60]!r}>"


class Program:
    """A program outside the shell, with pipes of its own. Made by `Session.spawn`."""

    def __init__(self, connection: socket.socket, pid: int, warnings: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.pid = pid
        self.warnings = warnings
        self.exit_code: int | None = None

    def write(self, data: bytes) -> None:
        """Writes to its standard input."""
        with self._lock:
            wire.send_data(self._connection, data)

    def close_stdin(self) -> None:
        with self._lock:
            wire.send_data(self._connection, b"")

    def events(self) -> Iterator[tuple[str, bytes]]:
        """What it prints, as it comes: ("stdout" | "stderr", data)."""
        while self.exit_code is None:
            try:
                kind, body = wire.receive(self._connection)
            except wire.Closed:
                raise errors.SessionDead("the program's session was restored or ended") from None
            if kind == wire.DATA:
                yield ("stderr" if body[:1] == b"2" else "stdout"), body[1:]
                continue
            message = wire.decode(body)
            if "error" in message:
                raise errors.from_dict(message["error"])
            self.exit_code = message["result"]["exit_code"]

    def communicate(self, stdin: bytes = b"") -> tuple[bytes, bytes]:
        """Feeds it, waits for its end; returns all of its stdout and stderr."""
        feeder = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        feeder.start()
        found = {"stdout": bytearray(), "stderr": bytearray()}
        for stream, data in self.events():
            found[stream] += data
        feeder.join()
        self.close()
        return bytes(found["stdout"]), bytes(found["stderr"])

    def _feed(self, stdin: bytes) -> None:
        with contextlib.suppress(wire.Closed):
            for at in range(0, len(stdin), 1 << 16):
                self.write(stdin[at : at + (1 << 16)])
            self.close_stdin()

    def close(self) -> None:
        """Stops listening. The program goes on; what it prints from now on is discarded."""
        self._connection.close()


class Checkpoint:
    """One immutable point of a session."""

    def __init__(self, client: Client, info: model.Checkpoint) -> None:
        self._client = client
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    def fork(
        self,
        n: int = 1,
        *,
        name: str | None = None,
        agent_version: str | None = None,
        actor: model.Actor = "person",
    ) -> list[Session]:
        """`n` new live sessions grown from this point. Conversation, tasks and agent state come along;
        `agent_version`: NoMigration, and no fork, when no migration leads to it."""
        if agent_version is not None:
            self.agent_state(agent_version)
        args = {"session": self.info.session, "ref": self.id, "n": n, "name": name, "actor": actor}
        found = self._client.call("fork", args)
        return [Session(self._client, fork["name"], actor) for fork in found["sessions"]]

    @property
    def _standing(self) -> agent.Standing:
        return agent.Standing(self._client, self.info.session, self.id)

    def agent_state(self, version: str | None = None) -> Any:
        """What the agent left with it, None when nothing. `version`: that of the code that asks; state of
        another version is brought to it by migrations (see `waypoint.migration`)."""
        return self._standing.agent_state(version)

    def messages(self) -> list[dict[str, Any]]:
        """What had been said up to it, oldest first."""
        return self._standing.messages()

    def trace(self, *, kinds: Sequence[model.EventKind] = (), limit: int | None = None) -> list[model.Event]:
        """What led to it, oldest first. `limit`: the last so many."""
        return self._standing.trace(kinds=tuple(kinds), limit=limit)

    def tasks(self) -> list[model.Task]:
        """The tasks as they stood at it."""
        return agent.Tasks(self._client, self.info.session, "person").list(self.id)

    def card(self, *, again: bool = False) -> views.Card:
        """Its story: intent, changes, verdicts, notes. `again`: computed anew."""
        return views.Card(self._call("show", again=again))

    def verify(
        self, command: str, *, timeout: float | None = None, wait: bool = True
    ) -> model.Verdict | None:
        """Runs a command in a throwaway fork of it and keeps the verdict; None when it is not waited for."""
        found = self._call("verify", command=command, timeout=timeout, wait=wait)
        self.info = msgspec.convert(found["checkpoint"], model.Checkpoint)
        return msgspec.convert(found["verdict"], model.Verdict | None)

    def verdicts(self) -> list[model.Verdict]:
        """All that were given about it, oldest first."""
        return msgspec.convert(self._call("show")["verdicts"], list[model.Verdict])

    def diff(
        self,
        other: Checkpoint | str | None = None,
        *,
        paths: Sequence[str] = (),
        only: Sequence[str] = (),
        patch: bool = False,
    ) -> views.Diff:
        """What changed from here to another point; to the present of its session when none is given.

        >>> import waypoint
        >>> with waypoint.session("sdk-diff") as s:
        ...     point = s.checkpoint("nothing yet")
        ...     _ = s.run("echo hello > /srv/note").check()
        >>> print(point.diff())
        files      +1 file  [derived]
          + /srv/note  6 B
        >>> s.stop()
        """
        args = {"a": self.id, "b": _ref(other), "paths": list(paths), "only": list(only), "patch": patch}
        return views.Diff(self._call("diff", **args))

    def tag(self, name: str) -> None:
        """Gives it another name; one that another point has is taken from there."""
        self.info = msgspec.convert(self._call("tag", name=name)["checkpoint"], model.Checkpoint)

    def note(self, text: str) -> None:
        """Adds words to it, marked as added later."""
        self._call("note", text=text)

    def _call(self, verb: str, **args: Any) -> Any:
        return self._client.call(verb, {"session": self.info.session, "ref": self.id, **args})

    def pin(self) -> None:
        """Keeps it, whatever is forgotten around it."""
        self._pin(off=False)

    def unpin(self) -> None:
        self._pin(off=True)

    def _pin(self, *, off: bool) -> None:
        found = self._client.call("pin", {"session": self.info.session, "ref": self.id, "off": off})
        self.info = msgspec.convert(found["checkpoint"], model.Checkpoint)

    def forget(self, *, force: bool = False) -> None:
        """Forgets it, unless a session stands on it or would go back to it. `force`: although it is named or
        pinned."""
        self._client.call("forget", {"session": self.info.session, "refs": [self.id], "force": force})

    def __repr__(self) -> str:
        return f"<Checkpoint {self.info.session}:{self.info.label} {self.info.name or self.id!r}>"


def _ref(point: Checkpoint | str | None) -> str | None:
    return point.id if isinstance(point, Checkpoint) else point


def _absolute(path: str | os.PathLike[str]) -> str:
    """From the root on, and otherwise as it was written: only the kernel knows what `..` after a link is."""
    return os.path.join(os.getcwd(), os.fspath(path))


def _sent(path: str) -> str | dict[str, str]:
    """A path as it can be sent: one that is no text goes as its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(os.fsencode(path)).decode()}
    return path


@contextlib.contextmanager
def _complete(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that has its name when all of it is there; a pipe or a device is written as it is."""
    is_special = os.path.exists(path) and not os.path.isfile(path)
    with open(path, "wb") if is_special else atomic.replaced(path) as file:
        yield file


class Session:
    """A live terminal session, by name.

    As a context manager it does not end with the block: a session is meant to stay.
    """

    def __init__(self, client: Client, name: str, actor: model.Actor = "person") -> None:
        self._client = client
        self.name = name
        self.actor: model.Actor = actor
        """Who acts through this object: it is written into the trajectory and onto checkpoints."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def info(self) -> model.Session:
        """How it is now."""
        return msgspec.convert(self._client.call("session", {"session": self.name})["session"], model.Session)

    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output_bytes: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> Result:
        """Runs a command in the session's shell: `cd`, `export` and the like last.

        `on_output` is called with pieces of the output while it runs. Where the policy wants somebody to
        agree first, `on_approval` is asked; without it this waits for others (`waypoint approve`).
        PolicyDenied or NotApproved, and nothing has run, when it may not.
        """
        args: dict[str, Any] = {"session": self.name, "command": command, "timeout": timeout}
        args["actor"] = self.actor
        if stdin is not None:
            data = stdin.encode() if isinstance(stdin, str) else stdin
            args["stdin"] = base64.b64encode(data).decode()
        if max_output_bytes is not None:
            args["limit"] = max_output_bytes
        if on_output:
            args["stream"] = True

        def hear(event: Any) -> None:
            if "approval" in event:
                self._client.decide(event["approval"], on_approval)
            elif on_output:
                on_output(event["output"])

        found = self._client.call("exec", args, on_event=hear)
        return Result(command, msgspec.convert(found, model.RunResult))

    def interrupt(self, command: str | None = None) -> bool:
        """Ends the command that a `run` of another thread or process waits for, as its timeout would.
        `command`: that one and no other. False when nothing of the kind runs."""
        args = {"session": self.name, "command": command}
        return bool(self._client.call("interrupt", args)["interrupted"])

    def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        shell_env: bool = False,
        on_approval: OnApproval | None = None,
    ) -> Program:
        """Starts a program outside the shell: no terminal, separate streams. It belongs to the session and to
        its checkpoints like everything else. `shell_env`: with the shell's present folder and variables."""
        args = {
            "session": self.name,
            "argv": list(argv),
            "cwd": cwd,
            "env": dict(env or {}),
            "shell_env": shell_env,
            "actor": self.actor,
        }

        def hear(event: Any) -> None:
            self._client.decide(event["approval"], on_approval)

        connection, found = self._client.open("spawn", args, on_event=hear)
        return Program(connection, found["pid"], tuple(found.get("warnings", ())))

    def checkpoint(
        self,
        intent: str = "",
        *,
        name: str | None = None,
        files_only: bool = False,
        verify: str | None = None,
        wait: bool = False,
        actor: model.Actor | None = None,
        agent_state: Any = None,
        agent_version: str | None = None,
    ) -> Checkpoint:
        """Captures the session whole. It goes on running.

        `agent_state`: what the agent needs to go on from here, bytes or anything that JSON can hold;
        `agent_version`: of its code. It comes back with the point (`Checkpoint.agent_state`, `restore`).

        `verify`: a command to be run in a throwaway fork of the point. It is not waited for, unless `wait`
        is given; then `info.verdict` has what came of it.
        """
        args = {
            "session": self.name,
            "intent": intent,
            "name": name,
            "files_only": files_only,
            "verify": verify,
            "wait": wait,
            "actor": actor or self.actor,
            "agent_state": None if agent_state is None else agent.sent_state(agent_state),
            "agent_version": agent_version,
        }
        found = self._client.call("checkpoint", args)["checkpoint"]
        return Checkpoint(self._client, msgspec.convert(found, model.Checkpoint))

    def checkpoints(self) -> list[Checkpoint]:
        """Its points, oldest first."""
        found = self._client.call("log", {"session": self.name})["checkpoints"]
        return [Checkpoint(self._client, msgspec.convert(one, model.Checkpoint)) for one in found]

    def log(self, *, since: str | None = None, graph: bool = False) -> list[Checkpoint]:
        """Its points, oldest first: `checkpoints()` with a beginning, or with the whole family."""
        args = {"session": self.name, "since": since, "family": "whole" if graph else None}
        found = self._client.call("log", args)["checkpoints"]
        return [Checkpoint(self._client, msgspec.convert(one, model.Checkpoint)) for one in found]

    def point(self, ref: str) -> Checkpoint:
        """The point that a ref means: `c5`, `@-`, `good`, a name, a tag, a time of day."""
        found = self._client.call("show", {"session": self.name, "ref": ref})["checkpoint"]
        return Checkpoint(self._client, msgspec.convert(found, model.Checkpoint))

    def status(self) -> views.Status:
        """Where it stands, and what is in no checkpoint yet."""
        return views.Status(self._client.call("status", {"session": self.name}))

    def changed(self, *, besides: Sequence[str] = ()) -> bool:
        """Whether anything is different from its last point. `besides`: files at or below these paths do not
        count, and of what lives in it only its ports do."""
        args = {"session": self.name, "besides": list(besides)}
        return bool(self._client.call("changed", args)["changed"])

    def diff(
        self,
        old: Checkpoint | str | None = None,
        new: Checkpoint | str | None = None,
        *,
        paths: Sequence[str] = (),
        only: Sequence[str] = (),
        patch: bool = False,
    ) -> views.Diff:
        """What changed from one point (the last) to another (now). `only`: some of the sections files,
        packages, git, databases, system, processes, ports, shell. `patch`: with a unified diff."""
        args = {"a": _ref(old), "b": _ref(new), "paths": list(paths), "only": list(only), "patch": patch}
        return views.Diff(self._client.call("diff", {"session": self.name, **args}))

    def preview(self, point: Checkpoint | str, *, files_only: bool = False) -> views.Plan:
        """What a restore would do. Its id can be given to `restore(plan=…)`."""
        args = {"session": self.name, "ref": _ref(point), "files_only": files_only}
        return views.Plan(self._client.call("preview", args))

    def bisect(
        self,
        good: Checkpoint | str,
        bad: Checkpoint | str,
        command: str,
        *,
        timeout: float | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ) -> views.Bisection:
        """The first point at which a command fails. `on_step` hears of each point that was tried."""
        args = {"good": _ref(good), "bad": _ref(bad), "command": command, "timeout": timeout}
        hear = (lambda event: on_step(event["tried"])) if on_step else None
        found = self._client.call("bisect", {"session": self.name, **args}, on_event=hear)
        return views.Bisection(found)

    def restore(
        self,
        point: Checkpoint | str | None = None,
        *,
        plan: views.Plan | str | None = None,
        safety: bool = True,
        files_only: bool = False,
        agent_version: str | None = None,
    ) -> agent.Restored:
        """Takes the session back to a point; a safety checkpoint of the present is taken first. Conversation
        and tasks go back with it, and the answer has what the agent left there (`agent_state()`).

        `plan`: one from `preview`. GroundMoved when something has changed since it was made.
        `agent_version`: of the code that goes on. State of another version is brought to it by migrations
        first; NoMigration, and nothing is touched, when none leads there.
        """
        state = None
        if agent_version is not None:
            if point is None:
                raise errors.UsageError(
                    "agent_version needs to know the point", hint="give the point beside the plan"
                )
            at = agent.Standing(self._client, self.name, _ref(point))
            state = at.agent_state(agent_version)
        args = {
            "session": self.name,
            "ref": _ref(point),
            "plan": plan.id if isinstance(plan, views.Plan) else plan,
            "safety": safety,
            "files_only": files_only,
            "actor": self.actor,
        }
        return self._restored(self._client.call("restore", args), state)

    def _restored(self, found: Any, state: Any = None) -> agent.Restored:
        restored = msgspec.convert(found, agent.Restored)
        point = restored.checkpoint
        at = agent.Standing(self._client, self.name, point.id)
        if state is None and point.agent_state_kind:
            state = at.agent_state()
        return restored._know(at, state)

    def undo(self) -> agent.Restored:
        """Takes the last restore back."""
        return self._restored(self._client.call("undo", {"session": self.name, "actor": self.actor}))

    def redo(self) -> agent.Restored:
        """Takes the last undo back."""
        return self._restored(self._client.call("redo", {"session": self.name, "actor": self.actor}))

    # What is done outside, and who agreed -----------------------------------------------------------------

    def judge(self, command: str) -> views.Judgement:
        """What its policy says about a command. Nothing is run or written down."""
        found = self._client.call("classify", {"session": self.name, "command": command})
        return views.Judgement(found["judgement"])

    def effects(self, since: Checkpoint | str | None = None) -> list[model.Effect]:
        """What was done outside, oldest first, or since a point; no restore takes any of it back."""
        found = self._client.call("effects", {"session": self.name, "ref": _ref(since)})["effects"]
        return msgspec.convert(found, list[model.Effect])

    def effect(
        self,
        what: str,
        *,
        reversible: bool = False,
        target: str = "",
        key: str = "",
        compensate: str = "",
        actor: model.Actor | None = None,
    ) -> model.Effect:
        """Writes down something that was done outside by other means than a command: it is marked as
        claimed. `key`: what makes it the same effect when it is done again; `compensate`: how to make it
        good."""
        args = {
            "session": self.name,
            "what": what,
            "class": "external-reversible" if reversible else "irreversible",
            "target": target,
            "key": key,
            "compensate": compensate,
            "actor": actor or self.actor,
        }
        return msgspec.convert(self._client.call("effect", args)["effect"], model.Effect)

    def approvals(self, *, all: bool = False) -> list[model.Approval]:  # noqa: A002 - as the command line says it
        """Its commands that wait for somebody's word; `all`: those that were decided, too."""
        found = self._client.call("approvals", {"session": self.name, "all": all})["approvals"]
        return msgspec.convert(found, list[model.Approval])

    def approve(self, approval: model.Approval | str) -> model.Approval:
        """Lets the one command run that waits, once."""
        return self._decide("approve", approval)

    def deny(self, approval: model.Approval | str, why: str = "") -> model.Approval:
        return self._decide("deny", approval, note=why)

    def _decide(self, verb: str, approval: model.Approval | str, **args: Any) -> model.Approval:
        given = approval if isinstance(approval, str) else approval.id
        return msgspec.convert(self._client.call(verb, {"id": given, **args})["approval"], model.Approval)

    def set_policy(self, policy: str | None) -> None:
        """Rules of its own, as the text of a policy file; None: none. PolicyBroken, and nothing has changed,
        when it cannot be understood."""
        self._client.call("policy_set", {"session": self.name, "text": policy})

    # What its agent does, knows and has still to do ------------------------------------------------------

    def record(
        self,
        what: str,
        content: Any = None,
        *,
        name: str | None = None,
        call: str | None = None,
        error: bool = False,
        actor: model.Actor | None = None,
    ) -> int:
        """Adds to its trajectory what was said: kept when this returns. The number of the event.

        `what`: a role (user, assistant, system, developer, tool), "tool_call" (`content`: the arguments),
        "tool_result" or "note". `name`: of the tool; `call`: what links a result to its call.
        """
        if actor is None:
            actor = "person" if what == "user" else "agent"
        args = {"what": what, "content": agent.sent_content(content), "name": name, "call": call}
        args |= {"error": error, "actor": actor}
        return int(self._client.call("record", {"session": self.name, **args})["event"])

    def trace(
        self,
        ref: Checkpoint | str | None = None,
        *,
        kinds: Sequence[model.EventKind] = (),
        limit: int | None = None,
        everything: bool = False,
    ) -> list[model.Event]:
        """What happened, oldest first: up to now, or up to a point. `everything`: also what it went back
        from. `limit`: the last so many."""
        args = {"ref": _ref(ref), "kinds": list(kinds), "limit": limit, "all": everything, "full": True}
        return agent.events(self._client.call("trace", {"session": self.name, **args}))

    def messages(self) -> list[dict[str, Any]]:
        """What was said up to now, oldest first: `{"role", "content"}`; tools' with a `kind`."""
        return agent.Standing(self._client, self.name, None).messages()

    def cast(self, file: str | os.PathLike[str], ref: Checkpoint | str | None = None) -> None:
        """Writes what its terminal showed, up to now or up to a point, as an asciicast."""
        with _complete(file) as out:
            self._client.call("cast", {"session": self.name, "ref": _ref(ref)}, on_data=out.write)

    def agent_state(self, version: str | None = None) -> Any:
        """What the agent left with the last point on the way to where it stands that has something."""
        return agent.Standing(self._client, self.name, None).agent_state(version)

    @property
    def tasks(self) -> agent.Tasks:
        """What is to be done in it."""
        return agent.Tasks(self._client, self.name, self.actor)

    def resume(self, *, agent_version: str | None = None) -> agent.Resumed:
        """Where things stand and what comes next, as data and as text for a prompt. A session that does not
        run is brought back from its last point first. `agent_version`: as for `restore`."""
        state = self.agent_state(agent_version)
        found = self._client.call("resume", {"session": self.name, "actor": self.actor})
        return agent.Resumed(self._client, msgspec.convert(found, model.Resumption), state)

    def operations(self) -> list[dict[str, Any]]:
        """What has moved it, oldest first: `at`, `verb`, `target`, `to`, `before`, `back_to`, `undone`."""
        found: list[dict[str, Any]] = self._client.call("ops", {"session": self.name})["operations"]
        return found

    def fork(self, n: int = 1, *, ref: str = "@", name: str | None = None) -> list[Session]:
        """`n` new live sessions grown from a point of this one (`@`: the last)."""
        args = {"session": self.name, "ref": ref, "n": n, "name": name, "actor": self.actor}
        found = self._client.call("fork", args)
        return [Session(self._client, fork["name"], self.actor) for fork in found["sessions"]]

    def apply(
        self,
        to: str | os.PathLike[str],
        paths: Sequence[str] = (),
        *,
        source: str | None = None,
        ref: Checkpoint | str | None = None,
        since: Checkpoint | str | None = None,
        delete: bool = False,
        force: bool = False,
        dry_run: bool = False,
    ) -> model.Landing:
        """Brings what has changed in it (or up to `ref`, or since `since`) to a folder of this machine.

        `source` is the folder of the session that stands for `to`: else the one in `paths`, else the one its
        shell is in. LandingConflict when files here have changed that would be replaced; `force` does.
        """
        args = {
            **self._changes(paths, source, ref, since),
            "to": _sent(_absolute(to)),
            "delete": delete,
            "force": force,
            "dry_run": dry_run,
        }
        return msgspec.convert(self._client.call("apply", args)["landing"], model.Landing)

    def export(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        paths: Sequence[str] = (),
        *,
        source: str | None = None,
        ref: Checkpoint | str | None = None,
        since: Checkpoint | str | None = None,
        patch: bool = False,
        whiteouts: bool = False,
    ) -> model.Exported:
        """Writes the same changes to a file, as a tar or as a patch. `source`: where names in it start."""
        args = {**self._changes(paths, source, ref, since), "patch": patch, "whiteouts": whiteouts}
        if isinstance(file, str | os.PathLike):
            with _complete(file) as out:
                found = self._client.call("export", args, on_data=out.write)
        else:
            found = self._client.call("export", args, on_data=file.write)
        return msgspec.convert(found["exported"], model.Exported)

    def _changes(
        self,
        paths: Sequence[str],
        source: str | None,
        ref: Checkpoint | str | None,
        since: Checkpoint | str | None,
    ) -> dict[str, Any]:
        return {
            "session": self.name,
            "paths": [_sent(path) for path in paths],
            "source": None if source is None else _sent(source),
            "ref": _ref(ref),
            "since": _ref(since),
        }

    def copy_in(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str,
        *,
        follow: bool = False,
    ) -> model.Copied:
        """Copies files and folders of this machine into it, as `cp -a` does. `follow`: links named in
        `sources` are not copied but what they lead to."""
        given = [sources] if isinstance(sources, str | os.PathLike) else sources
        args = {
            "session": self.name,
            "sources": [_sent(_absolute(path)) for path in given],
            "target": _sent(target),
            "follow": follow,
        }
        return msgspec.convert(self._client.call("copy_in", args)["copied"], model.Copied)

    def copy_out(
        self,
        sources: str | Sequence[str],
        target: str | os.PathLike[str],
        *,
        ref: Checkpoint | str | None = None,
        follow: bool = False,
    ) -> model.Copied:
        """Copies files and folders out of it, or out of one of its points, to this machine."""
        given = [sources] if isinstance(sources, str) else sources
        args = {
            "session": self.name,
            "sources": [_sent(path) for path in given],
            "target": _sent(_absolute(target)),
            "ref": _ref(ref),
            "follow": follow,
        }
        return msgspec.convert(self._client.call("copy_out", args)["copied"], model.Copied)

    def restore_files(
        self,
        point: Checkpoint | str,
        paths: str | Sequence[str],
        *,
        delete: bool = False,
        safety: bool = True,
        dry_run: bool = False,
    ) -> model.FilesRestored:
        """Brings single files and folders of a point back and leaves the rest alone. What was made since
        stays, unless `delete`. A safety checkpoint is taken first: `undo` goes back to it."""
        given = [paths] if isinstance(paths, str) else paths
        args = {
            "session": self.name,
            "ref": _ref(point),
            "paths": [_sent(path) for path in given],
            "delete": delete,
            "safety": safety,
            "dry_run": dry_run,
        }
        return msgspec.convert(self._client.call("restore_files", args), model.FilesRestored)

    def park(self) -> Checkpoint:
        """Takes a checkpoint and stops, freeing memory; `restore` brings it back."""
        found = self._client.call("park", {"session": self.name})["checkpoint"]
        return Checkpoint(self._client, msgspec.convert(found, model.Checkpoint))

    def type(self, keys: str | bytes) -> None:
        """Types into its terminal, as a person would."""
        data = keys.encode() if isinstance(keys, str) else keys
        self._client.call("type", {"session": self.name, "data": base64.b64encode(data).decode()})

    def screen(self) -> str:
        """What its terminal shows now."""
        return str(self._client.call("screen", {"session": self.name})["text"])

    def stop(self) -> None:
        """Ends it and forgets it, with its checkpoints."""
        self._client.call("rm", {"sessions": [self.name]})

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"


def session(
    name: str | None = None,
    *,
    base: str = "/",
    net: model.Net = "nat",
    hide: Sequence[str] = (),
    binds: Sequence[model.Bind] = (),
    memory_bytes: int | None = None,
    cpus: float | None = None,
    pids: int | None = None,
    spares: int | None = None,
    confined: bool = True,
    home: str | os.PathLike[str] | None = None,
    actor: model.Actor = "person",
    policy: str | None = None,
) -> Session:
    """Starts a session, or joins the one of that name. `confined=False`: root in it is the machine's root.
    `spares`: how many of its points have a twin restored ahead of time. `actor`: who acts
    through the object, a person or an agent. `policy`: rules of its own about commands, as the text of a
    policy file; a session that is there keeps those it has."""
    client = Client(home)
    options = model.BoxOptions(
        base=base,
        net=net,
        hide=tuple(hide),
        binds=tuple(binds),
        memory_bytes=memory_bytes,
        cpus=cpus,
        pids=pids,
        spares=spares,
        confined=confined,
    )
    args = {"name": name, "options": msgspec.to_builtins(options), "join": True, "policy": policy}
    return Session(client, client.call("new", args)["session"]["name"], actor)


def sessions(home: str | os.PathLike[str] | None = None) -> list[Session]:
    """All sessions there are."""
    client = Client(home)
    return [Session(client, found["name"]) for found in client.call("ls")["sessions"]]
