"""Sessions, as objects of the SDK.

    >>> import waypoint
    >>> with waypoint.session("sdk-example") as s:
    ...     _ = s.run("cd /tmp && echo one > note").check()
    ...     point = s.checkpoint("one is written")
    ...     _ = s.run("echo two > note")
    ...     restored = s.restore(point)
    ...     s.run("cat note").output
    'one\\n'
    >>> _ = s.remove()

Objects here are names for things that live in the daemon: they hold no state worth losing, may be used from
several threads or tasks and from several processes at once. The daemon is started by the first call, and
started again when it is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from waypoint import errors, model
from waypoint.aio import agent
from waypoint.aio.checkpoint import Checkpoint
from waypoint.aio.connection import OnApproval, Transport
from waypoint.api import requests
from waypoint.api.request import path_to_wire
from waypoint.client import payloads
from waypoint.client.payloads import ref_of
from waypoint.client.result import Result
from waypoint.home import Settings
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.aio.program import Program, Terminal
    from waypoint.api.difference import PortFact


class Session:
    """A live terminal session, by name.

    As a context manager it does not end with the block: a session is meant to stay. A temporary one
    (`waypoint.session(temporary=True)`) ends there, and nothing is left of it.
    """

    def __init__(
        self, client: Transport, name: str, actor: model.Actor = "person", *, temporary: bool = False
    ) -> None:
        self._client = client
        self.name = name
        self.temporary = temporary
        """Whether the end of a `with` block removes it."""
        self.actor: model.Actor = actor
        """Who acts through this object: it is written into the trajectory and onto checkpoints."""
        self.forked: model.Forked | None = None
        """Of a session that `fork` has just made: how, its id, and what its hooks came to."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.temporary:
                with contextlib.suppress(errors.NotFound):  # the block may have removed it
                    await self.remove()
        finally:
            await self._client.close()

    @property
    async def info(self) -> model.Session:
        """How it is now."""
        return (await self._client.ask(requests.Session(session=self.name))).session

    # ---- commands, programs, the terminal ----------------------------------------------------

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_output: Callable[[str], None] | None = None,
        max_output_bytes: int | None = None,
        tty: bool = False,
        plain: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        on_approval: OnApproval | model.ApprovalMode | None = None,
        approval_timeout: float | None = None,
    ) -> Result:
        """Runs a command in the session's shell: `cd`, `export` and the like last.

        `cwd`, `env`: a folder and variables for this command alone. It then runs in a subshell, so that what
        it changes of the shell does not last. `user`: who runs it, a name or a number of the session, and
        after a colon a group; another user than the session's own runs beside the shell, with its folder and
        variables. NotFound when there is no such folder or user.

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     s.run("echo $WHAT in $PWD as $(id -un)", cwd="/srv", env={"WHAT": "hello"}).output
            'hello in /srv as root\\n'

        Its stdin is empty unless `stdin` is given. Pagers are `cat` for this command, git starts no editor,
        and git, ssh and apt do not ask (PAGER, GIT_PAGER, MANPAGER, SYSTEMD_PAGER, GIT_EDITOR,
        GIT_SEQUENCE_EDITOR, GIT_TERMINAL_PROMPT, SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DEBIAN_FRONTEND and
        APT_LISTCHANGES_FRONTEND are set; one that the command names is left alone). `tty`: it reads from the
        terminal, with the shell's own variables. `plain`: the output without escape sequences.

        `on_output` is called with pieces of the output while it runs. `timeout`: seconds, after which it is
        interrupted; for its turn, while another command runs, it waits no longer than that either
        (SessionBusy).

        `on_approval`: what happens where the policy wants approval first. A function is called with the
        approval and says whether the command may run; "wait": it waits for `approve` or `deny` of another
        client; "deny": it is refused at once. The default is to wait, but a command of an agent is refused
        at once if no person is attached to the session. `approval_timeout`: the longest wait, in seconds;
        without it `timeout` is for both, the wait and the command. PolicyDenied or NotApproved, and nothing
        has run, when it may not.
        """
        request = requests.Exec(
            command=command,
            session=self.name,
            timeout=timeout,
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            limit=max_output_bytes,
            on_terminal=tty,
            stream=on_output is not None,
            plain=plain,
            cwd=None if cwd is None else os.fspath(cwd),
            env=dict(env or {}),
            user=user,
            actor=self.actor,
            on_approval=payloads.approval_mode(on_approval),
            approval_timeout=approval_timeout,
        )

        def on_event(event: Any) -> None:
            if on_output and "output" in event:
                on_output(event["output"])

        on_approval = on_approval if callable(on_approval) else None
        answer = await self._client.ask(request, on_event=on_event, on_approval=on_approval)
        return Result(command, answer)

    async def interrupt(self, command: str | None = None) -> bool:
        """Ends the command that a `run` of another thread or process waits for, as its timeout would.
        `command`: only that one. False when no such command runs."""
        request = requests.Interrupt(session=self.name, command=command)
        return (await self._client.ask(request)).interrupted

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        shell_env: bool = False,
        user: str | None = None,
        timeout: float | None = None,
        on_approval: OnApproval | model.ApprovalMode | None = None,
        approval_timeout: float | None = None,
    ) -> Program:
        """Starts a program outside the shell: no terminal (TERM is dumb), separate streams. It belongs to the
        session and to its checkpoints like everything else. `shell_env`: with the shell's present folder and
        variables. `user`: who runs it (without: the session's own user). `timeout`: it is ended after that
        time, also when this client is gone. `on_approval`, `approval_timeout`: as for `run`. CannotStart,
        with `errno` and the shell's 126 or 127 as `exit_code` in its `details`, when it cannot be started.

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     sorter = s.spawn(["sort", "-n"], cwd="/srv")
            ...     sorter.communicate(b"10\\n9\\n"), sorter.exit_code
            ((b'9\\n10\\n', b''), 0)
        """
        request = requests.Spawn(
            argv=payloads.argv_to_wire(argv),
            session=self.name,
            cwd=None if cwd is None else os.fspath(cwd),
            env=dict(env or {}),
            shell_env=shell_env,
            user=user,
            timeout=timeout,
            actor=self.actor,
            on_approval=payloads.approval_mode(on_approval),
            approval_timeout=approval_timeout,
        )
        from waypoint.aio.program import Program  # here: few commands need it

        on_approval = on_approval if callable(on_approval) else None
        connection, answer = await self._client.open(request, on_approval=on_approval)
        return Program(connection, answer.pid, answer.warnings, self)

    async def signal(self, pid: int, signal: int | str) -> bool:
        """Sends a signal (`"TERM"`, `15`) to a program that `spawn` started, and to its process group. False
        when it has ended."""
        request = requests.Signal(session=self.name, pid=pid, signal=payloads.signal_number(signal))
        return (await self._client.ask(request)).sent

    async def attach(self, rows: int = 24, columns: int = 80) -> Terminal:
        """Its terminal, as a person at a screen of this size has it."""
        from waypoint.aio.program import Terminal

        request = requests.Attach(session=self.name, rows=rows, columns=columns)
        connection, _ = await self._client.open(request)
        return Terminal(connection)

    async def type(self, keys: str | bytes) -> None:
        """Types into its terminal, as a person would."""
        data = keys.encode() if isinstance(keys, str) else keys
        await self._client.ask(requests.Type(data=data, session=self.name))

    async def screen(self) -> str:
        """What its terminal shows now."""
        return (await self._client.ask(requests.Screen(session=self.name))).text

    # ---- ports -------------------------------------------------------------------------------

    async def ports(self, ref: Checkpoint | str | None = None) -> list[PortFact]:
        """What listens in it now, or what did at a point: `protocol`, `address`, `port`, `pid`, `command`."""
        answer = await self._client.ask(requests.Ports(session=self.name, ref=ref_of(ref)))
        return [*answer.ports]

    async def forward(
        self, port: int, local_port: int | None = None, *, bind: str = "127.0.0.1"
    ) -> model.Forward:
        """Lets connections to a port of this machine reach a TCP port of the session: `endpoint` of the
        answer says where. It follows the session through restores, forks have none, and it ends with
        `unforward`, `stop`, `park` and `remove`.

        `local_port`: the port of this machine; 0 for any that is free; without it the same number if that is
        free, else another one. AlreadyExists when it is taken. `bind`: the address of this machine; with the
        default only this machine reaches it, with "0.0.0.0" every machine does.

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     forward = s.forward(8000, 0)
            ...     [one == forward for one in s.info.forwards], s.unforward() == [forward]
            ([True], True)
        """
        request = requests.Forward(port=port, session=self.name, local_port=local_port, bind=bind)
        return (await self._client.ask(request)).forward

    async def unforward(self, port: int | None = None) -> list[model.Forward]:
        """Ends the forwards of a port of the session, and their connections; without a port all of them. What
        is forwarded is in `info.forwards`."""
        return [*(await self._client.ask(requests.Unforward(session=self.name, port=port))).ended]

    # ---- points ------------------------------------------------------------------------------

    async def checkpoint(
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
        durable: bool | None = None,
    ) -> Checkpoint:
        """Captures the session whole. It goes on running.

        `agent_state`: what the agent needs to go on from here, bytes or anything that JSON can hold;
        `agent_version`: of its code. It comes back with the point (`Checkpoint.agent_state`, `restore`).

        `durable`: return when the point is on the disk and would survive a power cut (`info.durable`).
        Without it that is so within about a second; WAYPOINT_DURABLE=1 makes it the default.

        `verify`: a command to be run in a throwaway fork of the point. It is not waited for, unless `wait`
        is given; then `info.verdict` has what came of it.
        """
        request = requests.Checkpoint(
            session=self.name,
            intent=intent,
            name=name,
            files_only=files_only,
            verify=verify,
            wait=wait,
            actor=actor or self.actor,
            agent_state=payloads.state_to_wire(agent_state),
            agent_version=agent_version,
            durable=Settings.read().durable if durable is None else durable,
        )
        return Checkpoint(self._client, (await self._client.ask(request)).checkpoint)

    async def checkpoints(self) -> list[Checkpoint]:
        """Its points, oldest first."""
        return await self.log()

    async def log(self, *, since: str | None = None, graph: bool = False) -> list[Checkpoint]:
        """Its points, oldest first: `checkpoints()` with a beginning, or with the whole family."""
        request = requests.Log(session=self.name, since=since, family="whole" if graph else None)
        answer = await self._client.ask(request)
        return [Checkpoint(self._client, point) for point in answer.checkpoints]

    async def point(self, ref: str) -> Checkpoint:
        """The point that a ref means: `c5`, `@-`, `good`, a name, a tag, a time of day."""
        answer = await self._client.ask(requests.Show(ref=ref, session=self.name))
        return Checkpoint(self._client, answer.checkpoint)

    async def tags(self) -> dict[str, Checkpoint]:
        """The points that have a tag, by tag."""
        answer = await self._client.ask(requests.Tags(session=self.name))
        return {
            tagged.tag: Checkpoint(self._client, tagged.checkpoint)
            for tagged in answer.tags
            if isinstance(tagged.checkpoint, model.Checkpoint)
        }

    async def auto(self, on: bool = True) -> None:  # noqa: FBT001, FBT002 - reads as it is said
        """Whether a point is taken after each command that changed something."""
        await self._client.ask(requests.Auto(on=on, session=self.name))

    async def restore(
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

        `plan`: one from `preview`. PlanStale when the session has changed since it was made.
        `agent_version`: of the code that goes on. State of another version is brought to it by migrations
        first; NoMigration, and nothing is touched, when none leads there.
        """
        state = None
        if agent_version is not None:
            if point is None:
                raise errors.UsageError(
                    "agent_version needs to know the point", hint="give the point beside the plan"
                )
            state = await agent.AgentHistory(self._client, self.name, ref_of(point)).agent_state(
                agent_version
            )
        request = requests.Restore(
            session=self.name,
            ref=ref_of(point),
            plan=plan.id if isinstance(plan, views.Plan) else plan,
            safety=safety,
            files_only=files_only,
            actor=self.actor,
        )
        return await self._restored(await self._client.ask(request), state)

    async def _restored(self, restored: model.Restored, state: Any = None) -> agent.Restored:
        # A frozen box that runs again is the session itself: there is no point any more.
        ref = None if restored.checkpoint.pending else restored.checkpoint.id
        history = agent.AgentHistory(self._client, self.name, ref)
        if state is None and restored.checkpoint.agent_state_kind:
            state = await history.agent_state()
        return agent.Restored.make(restored, history, state)

    async def undo(self) -> agent.Restored:
        """Takes the last restore back."""
        request = requests.Undo(session=self.name, actor=self.actor)
        return await self._restored(await self._client.ask(request))

    async def redo(self) -> agent.Restored:
        """Takes the last undo back."""
        request = requests.Redo(session=self.name, actor=self.actor)
        return await self._restored(await self._client.ask(request))

    async def fork(
        self,
        n: int = 1,
        *,
        ref: Checkpoint | str | None = None,
        name: str | None = None,
        names: Sequence[str] = (),
        hook_timeout: float | None = None,
    ) -> list[Session]:
        """`n` new live sessions grown from this one as it is now, of which a point is taken; `ref`: from one
        of its points. `name`: with several NAME-1, NAME-2, …; `names`: one for each.
        `hook_timeout`: how long the hooks of each may take together (10 s); what they came to is in `forked`
        of each.

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     _ = s.run("x=5")
            ...     left, right = s.fork(names=["left", "right"])
            ...     left.run("echo $x").output, [one.remove().removed for one in (left, right)]
            ('5\\n', [('left',), ('right',)])
        """
        request = requests.Fork(
            ref=ref_of(ref),
            session=self.name,
            n=n,
            name=name,
            names=tuple(names),
            hook_timeout=hook_timeout,
            actor=self.actor,
        )
        answer = await self._client.ask(request)
        return sessions_of(self._client, answer.sessions, self.actor)

    async def forget(
        self,
        *,
        keep_last: int | None = None,
        keep_hourly: int | None = None,
        keep_daily: int | None = None,
        keep_weekly: int | None = None,
        older_than: float | str | None = None,
        kinds: Sequence[model.Kind] = (),
        keep_good: bool = True,
        keep_named: bool = True,
        dry_run: bool = False,
    ) -> model.Forgotten:
        """Forgets the points that none of these rules keeps. `older_than`: seconds, or `30d`; nothing younger
        goes. `kinds`: only points of these kinds. (`Checkpoint.forget` forgets one point.)"""
        policy = requests.Retention(
            keep_last=keep_last,
            keep_hourly=keep_hourly,
            keep_daily=keep_daily,
            keep_weekly=keep_weekly,
            older_than=older_than,
            kinds=tuple(kinds),
            keep_good=keep_good,
            keep_named=keep_named,
        )
        return await self._client.ask(requests.Forget(session=self.name, policy=policy, dry_run=dry_run))

    async def du(self) -> model.DiskUse:
        """What its points take on disk."""
        return await self._client.ask(requests.Du(session=self.name))

    async def park(self, name: str | None = None) -> Checkpoint:
        """Takes a checkpoint, of that name, and stops, freeing memory; `restore` brings it back."""
        answer = await self._client.ask(requests.Park(session=self.name, name=name))
        return Checkpoint(self._client, answer.checkpoint)

    async def stop(self, *, discard: bool = False) -> Checkpoint:
        """Ends it and keeps its checkpoints; `restore` brings it back to the last one, which is returned.
        ConfirmationNeeded if something has changed since that one. `discard`: that is lost."""
        answer = await self._client.ask(requests.Stop(session=self.name, discard=discard))
        return Checkpoint(self._client, answer.checkpoint)

    async def remove(self) -> model.Removal:
        """Ends it and forgets it, with its checkpoints. Those that other sessions stand on or grew from are
        handed over to these: `handed_over` of the result has them."""
        return await self._client.ask(requests.Rm(sessions=(self.name,)))

    # ---- what changed ------------------------------------------------------------------------

    async def status(self) -> views.Status:
        """Where it stands, and what is in no checkpoint yet."""
        return views.Status(await self._client.ask_plain(requests.Status(session=self.name)))

    async def changed(self, *, besides: Sequence[str] = ()) -> bool:
        """Whether anything is different from its last point. `besides`: files at or below these paths do not
        count, and of what lives in it only its ports do."""
        request = requests.Changed(session=self.name, besides=tuple(besides))
        return (await self._client.ask(request)).changed

    async def diff(
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
        request = requests.Diff(
            session=self.name,
            a=ref_of(old),
            b=ref_of(new),
            paths=tuple(paths),
            only=tuple(only),
            patch=patch,
        )
        return views.Diff(await self._client.ask_plain(request))

    async def preview(self, point: Checkpoint | str, *, files_only: bool = False) -> views.Plan:
        """What a restore would do. Its id can be given to `restore(plan=…)`."""
        request = requests.Preview(ref=ref_of(point) or "", session=self.name, files_only=files_only)
        return views.Plan(await self._client.ask_plain(request))

    async def bisect(
        self,
        good: Checkpoint | str,
        bad: Checkpoint | str,
        command: str,
        *,
        timeout: float | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ) -> views.Bisection:
        """The first point at which a command fails. `on_step` is called with each point that was tried."""
        request = requests.Bisect(
            good=ref_of(good) or "",
            bad=ref_of(bad) or "",
            command=command,
            session=self.name,
            timeout=timeout,
        )

        def on_event(event: Any) -> None:
            if on_step:
                on_step(event["tried"])

        return views.Bisection(await self._client.ask_plain(request, on_event=on_event))

    async def replay(
        self,
        *,
        start: Checkpoint | str | None = None,
        ref: Checkpoint | str | None = None,
        outside: bool = False,
        timeout: float | None = None,
        all: bool = False,  # noqa: A002 - the API's name
        keep: bool = False,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ) -> views.Replay:
        """Runs what it has done once more, in a session of its own, and compares: exit statuses, output
        (without times, process ids and temporary names), files, packages and verdicts at each point.

        `start`: from this point on; without it from where it began, of a fork from the point it was forked
        from. `ref`: up to this point. What acts outside is not run unless `outside`. `timeout`: for one
        command; without it ten times as long as it took, and at least a minute. `all`: it goes on after a
        difference. `keep`: the session in which it ran stays. `on_step` is called with each step.

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     point = s.checkpoint("before")
            ...     _ = s.run("echo one >/srv/note; date")
            ...     s.replay(start=point).same
            True
        """
        request = requests.Replay(
            session=self.name,
            start=ref_of(start),
            ref=ref_of(ref),
            outside=outside,
            timeout=timeout,
            all=all,
            keep=keep,
        )
        return views.Replay(await self._client.ask_plain(request, on_event=payloads.steps(on_step)))

    async def export_trace(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        *,
        start: Checkpoint | str | None = None,
        ref: Checkpoint | str | None = None,
    ) -> str:
        """Writes what it has done to a file that others can check (`Client.replay`): the base, where it
        starts, each command with its end and output, the files and verdicts of each point. The id of the
        trace is the answer."""
        request = requests.ExportTrace(session=self.name, start=ref_of(start), ref=ref_of(ref))
        with payloads.complete_file(file) as out:
            return (await self._client.ask(request, on_data=out.write)).trace

    async def operations(self) -> list[dict[str, Any]]:
        """What has moved it, oldest first: `at`, `verb`, `target`, `to`, `before`, `back_to`, `undone`."""
        answer = await self._client.ask_plain(requests.Ops(session=self.name))
        return [*answer["operations"]]

    # ---- what is done outside, and who agreed ------------------------------------------------

    async def judge(self, command: str) -> views.Judgement:
        """What its policy says about a command. Nothing is run or written down."""
        answer = await self._client.ask_plain(requests.Classify(command=command, session=self.name))
        return views.Judgement(answer["judgement"])

    async def effects(self, since: Checkpoint | str | None = None) -> list[model.Effect]:
        """What was done outside, oldest first, or since a point; no restore takes any of it back."""
        answer = await self._client.ask(requests.Effects(session=self.name, ref=ref_of(since)))
        return [*answer.effects]

    async def effect(
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
        request = requests.Effect(
            what=what,
            session=self.name,
            class_="external-reversible" if reversible else "irreversible",
            target=target,
            key=key,
            compensate=compensate,
            actor=actor or self.actor,
        )
        return (await self._client.ask(request)).effect

    async def approvals(self, *, all: bool = False) -> list[model.Approval]:  # noqa: A002 - the API's name
        """Its commands that wait for approval; `all`: also those that were decided."""
        return [*(await self._client.ask(requests.Approvals(session=self.name, all=all))).approvals]

    async def approve(self, approval: model.Approval | str) -> model.Approval:
        """Lets the one command run that waits, once."""
        return (await self._client.ask(requests.Approve(id=ref_of(approval) or ""))).approval

    async def deny(self, approval: model.Approval | str, why: str = "") -> model.Approval:
        """The command that waits does not run."""
        return (await self._client.ask(requests.Deny(id=ref_of(approval) or "", note=why))).approval

    async def policy(self, *, built_in: bool = False) -> dict[str, Any]:
        """Its policy: `decisions`, `expires_seconds`, and the files as they were written (`own`, `home`, and
        if asked for `built_in`)."""
        request = requests.Policy(session=self.name, built_in=built_in)
        return dict(await self._client.ask_plain(request))

    async def set_policy(self, policy: str | None) -> None:
        """Rules of its own, as the text of a policy file; None: none. PolicyBroken, and nothing has changed,
        when it cannot be understood."""
        await self._client.ask(requests.PolicySet(session=self.name, text=policy))

    # ---- what its agent does, knows and has still to do --------------------------------------

    async def record(
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
        request = requests.Record(
            what=what,
            session=self.name,
            content=payloads.content_to_wire(content),
            name=name,
            call=call,
            error=error,
            actor=actor or ("person" if what == "user" else "agent"),
        )
        return (await self._client.ask(request)).event

    async def trace(
        self,
        ref: Checkpoint | str | None = None,
        *,
        kinds: Sequence[model.EventKind] = (),
        limit: int | None = None,
        everything: bool = False,
    ) -> list[model.Event]:
        """What happened, oldest first: up to now, or up to a point. `everything`: also what it went back
        from. `limit`: the last so many."""
        request = requests.Trace(
            session=self.name, ref=ref_of(ref), all=everything, kinds=tuple(kinds), limit=limit, full=True
        )
        return [*(await self._client.ask(request)).events]

    @property
    def _history(self) -> agent.AgentHistory:
        return agent.AgentHistory(self._client, self.name, None)

    async def messages(self) -> list[dict[str, Any]]:
        """What was said up to now, oldest first: `{"role", "content"}`; tools' with a `kind`."""
        return await self._history.messages()

    async def cast(self, file: str | os.PathLike[str], ref: Checkpoint | str | None = None) -> None:
        """Writes what its terminal showed, up to now or up to a point, as an asciicast."""
        with payloads.complete_file(file) as out:
            await self._client.ask(requests.Cast(session=self.name, ref=ref_of(ref)), on_data=out.write)

    async def agent_state(self, version: str | None = None) -> Any:
        """What the agent left with the last point on the way to where it stands that has something."""
        return await self._history.agent_state(version)

    @property
    def tasks(self) -> agent.Tasks:
        """What is to be done in it."""
        return agent.Tasks(self._client, self.name, self.actor)

    async def resume(self, *, agent_version: str | None = None) -> agent.Resumed:
        """Where things stand and what comes next, as data and as text for a prompt. A session that does not
        run is brought back from its last point first. `agent_version`: as for `restore`."""
        state = await self.agent_state(agent_version)
        answer = await self._client.ask(requests.Resume(session=self.name, actor=self.actor))
        return agent.Resumed(self._client, answer, state)

    # ---- files -------------------------------------------------------------------------------

    async def apply(
        self,
        to: str | os.PathLike[str],
        paths: Sequence[str] = (),
        *,
        source: str | None = None,
        ref: Checkpoint | str | None = None,
        since: Checkpoint | str | None = None,
        delete: bool = False,
        force: bool = False,
        allow_executed: bool = False,
        dry_run: bool = False,
        on_progress: Callable[[str], object] | None = None,
    ) -> model.Landing:
        """Brings what has changed in it (or up to `ref`, or since `since`) to a folder of this machine.

        `source` is the folder of the session that stands for `to`: else the one in `paths`, else the one its
        shell is in. LandingConflict when files here have changed that would be replaced; `force` does. So are
        files that this machine runs by itself (git hooks, start files of shells, units): `allow_executed`.
        `on_progress` is called with how far it is, in words, up to four times a second.
        """
        request = requests.Apply(
            to=payloads.local_path(to),
            session=self.name,
            paths=payloads.paths_to_wire(paths),
            source=None if source is None else path_to_wire(source),
            ref=ref_of(ref),
            since=ref_of(since),
            delete=delete,
            force=force,
            allow_executed=allow_executed,
            dry_run=dry_run,
        )
        on_event = payloads.progress_reader(on_progress)
        return (await self._client.ask(request, on_event=on_event)).landing

    async def export(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        paths: Sequence[str] = (),
        *,
        source: str | None = None,
        ref: Checkpoint | str | None = None,
        since: Checkpoint | str | None = None,
        patch: bool = False,
        whiteouts: bool = False,
        on_progress: Callable[[str], object] | None = None,
    ) -> model.Exported:
        """Writes the same changes to a file, as a tar or as a patch. `source`: where names in it start.
        `on_progress`: as for `apply`."""
        request = requests.Export(
            session=self.name,
            paths=payloads.paths_to_wire(paths),
            source=None if source is None else path_to_wire(source),
            ref=ref_of(ref),
            since=ref_of(since),
            patch=patch,
            whiteouts=whiteouts,
        )
        on_event = payloads.progress_reader(on_progress)
        with payloads.complete_file(file) as out:
            return (await self._client.ask(request, on_event=on_event, on_data=out.write)).exported

    async def copy_in(
        self,
        sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str,
        *,
        follow: bool = False,
        on_progress: Callable[[str], object] | None = None,
    ) -> model.Copied:
        """Copies files and folders of this machine into it, as `cp -a` does. `follow`: links named in
        `sources` are not copied but what they lead to. `on_progress`: as for `apply`."""
        files = [sources] if isinstance(sources, str | os.PathLike) else sources
        request = requests.CopyIn(
            sources=tuple(payloads.local_path(path) for path in files),
            target=path_to_wire(target),
            session=self.name,
            follow=follow,
        )
        on_event = payloads.progress_reader(on_progress)
        return (await self._client.ask(request, on_event=on_event)).copied

    async def copy_out(
        self,
        sources: str | Sequence[str],
        target: str | os.PathLike[str],
        *,
        ref: Checkpoint | str | None = None,
        follow: bool = False,
        on_progress: Callable[[str], object] | None = None,
    ) -> model.Copied:
        """Copies files and folders out of it, or out of one of its points, to this machine. `on_progress`: as
        for `apply`."""
        request = requests.CopyOut(
            sources=payloads.paths_to_wire(sources),
            target=payloads.local_path(target),
            session=self.name,
            ref=ref_of(ref),
            follow=follow,
        )
        on_event = payloads.progress_reader(on_progress)
        return (await self._client.ask(request, on_event=on_event)).copied

    async def read_file(
        self,
        path: str | os.PathLike[str],
        *,
        ref: Checkpoint | str | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """The bytes of one of its files, as it is now or as it was at a point. No program of the session is
        run for it, and links are followed inside the session. A path that does not begin with / starts in the
        folder of its shell. `max_bytes`: UsageError for a file that is larger (without it: 1 GB).

            >>> import waypoint
            >>> with waypoint.session(temporary=True) as s:
            ...     _ = s.write_file("/srv/app/config", "debug = 1\\n")
            ...     s.read_file("/srv/app/config"), s.read_text("/srv/app/config")
            (b'debug = 1\\n', 'debug = 1\\n')
        """
        request = requests.ReadFile(
            path=path_to_wire(os.fspath(path)), session=self.name, ref=ref_of(ref), limit=max_bytes
        )
        content = bytearray()
        await self._client.ask(request, on_data=content.extend)
        return bytes(content)

    async def read_text(
        self,
        path: str | os.PathLike[str],
        *,
        encoding: str = "utf-8",
        ref: Checkpoint | str | None = None,
        max_bytes: int | None = None,
    ) -> str:
        """The same as text. UsageError when it is none in that encoding."""
        return payloads.decoded(await self.read_file(path, ref=ref, max_bytes=max_bytes), path, encoding)

    async def write_file(
        self,
        path: str | os.PathLike[str],
        data: str | bytes | bytearray | memoryview,
        *,
        mode: int | None = None,
        parents: bool = True,
    ) -> model.FileWritten:
        """Writes one of its files, text as UTF-8, without running a program of the session. A reader sees the
        old content or the new one. A file that exists keeps its owner, and its mode unless `mode` is given; a
        new one belongs to the session's user and has 0o644. Folders that are missing are made, unless
        `parents` is off. Up to 128 MB: `copy_in` takes more."""
        request = requests.WriteFile(
            path=path_to_wire(os.fspath(path)),
            data=payloads.content_bytes(data),
            session=self.name,
            mode=mode,
            parents=parents,
        )
        return await self._client.ask(request)

    async def restore_files(
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
        request = requests.RestoreFiles(
            ref=ref_of(point) or "",
            paths=payloads.paths_to_wire(paths),
            session=self.name,
            delete=delete,
            safety=safety,
            dry_run=dry_run,
        )
        return await self._client.ask(request)

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"


def sessions_of(client: Transport, forks: Sequence[model.Forked], actor: model.Actor) -> list[Session]:
    """Forks that were just made, as sessions that know it."""
    sessions = []
    for fork in forks:
        session = Session(client, fork.name, actor)
        session.forked = fork
        sessions.append(session)
    return sessions
