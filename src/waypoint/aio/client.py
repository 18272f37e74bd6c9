"""The client of one home: its sessions, its space, its bases, its daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint import model
from waypoint.aio.checkpoint import Checkpoint
from waypoint.aio.connection import Transport
from waypoint.aio.session import Session
from waypoint.api import requests
from waypoint.client import payloads
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.api import machine


class Bases:
    """The root file systems that were imported."""

    def __init__(self, client: Transport) -> None:
        self._client = client

    async def import_(
        self,
        name: str,
        file: str | os.PathLike[str],
        *,
        on_progress: Callable[[str], None] | None = None,
        context: str | os.PathLike[str] | None = None,
        arguments: Mapping[str, str] | None = None,
        builder: model.Builder = "auto",
    ) -> model.Base:
        """Imports a tar, an image (an archive or an OCI folder), a folder or a Dockerfile. For a Dockerfile:
        `context`, the folder of its files if it is not the one it is in; `arguments`, values of its ARGs;
        `builder`, what carries it out (buildah or podman if installed, else Waypoint)."""

        request = requests.BaseImport(
            name=name,
            file=os.path.abspath(file),
            context=os.path.abspath(context) if context is not None else None,
            arguments=dict(arguments or {}),
            builder=builder,
        )
        return (await self._client.ask(request, on_event=payloads.progress_reader(on_progress))).base

    async def list(self) -> list[model.Base]:
        """All of them."""
        return [*(await self._client.ask(requests.BaseLs())).bases]

    async def info(self, name: str) -> model.Base:
        """One of them: where it came from, and what its image says about programs that start in it."""
        return (await self._client.ask(requests.BaseInfo(name=name))).base

    async def remove(self, name: str) -> None:
        """Deletes one that no session uses."""
        await self._client.ask(requests.BaseRm(name=name))


class Daemon:
    """The daemon of a home."""

    def __init__(self, client: Transport) -> None:
        self._client = client

    async def ping(self) -> machine.Pong:
        """Starts it if it does not run, and says which one it is."""
        return await self._client.ask(requests.Ping())

    async def status(self) -> machine.DaemonStatusResult:
        """What it is doing."""
        return await self._client.ask(requests.DaemonStatus())

    async def stop(self, *, sessions: bool = False) -> machine.DaemonStopped:
        """Ends it; sessions live on. `sessions`: every session ends with it."""
        return await self._client.ask(requests.DaemonStop(sessions=sessions))


class Client(Transport):
    """Connections to the daemon of one home, and what concerns all of its sessions."""

    @property
    def bases(self) -> Bases:
        """The root file systems that sessions can be layered over."""
        return Bases(self)

    @property
    def daemon(self) -> Daemon:
        """The daemon itself."""
        return Daemon(self)

    async def new(
        self,
        name: str | None = None,
        *,
        options: model.BoxOptions | None = None,
        join: bool = False,
        auto: bool = False,
        policy: str | None = None,
        actor: model.Actor = "person",
    ) -> Session:
        """Starts a session. `join`: or joins the one of that name."""
        request = requests.New(
            name=name, options=options or model.BoxOptions(), join=join, auto=auto, policy=policy
        )
        return Session(self, (await self.ask(request)).session.name, actor)

    async def session(self, name: str | None = None, *, actor: model.Actor = "person") -> Session:
        """A session that exists; without a name the only one there is."""
        return Session(self, (await self.ask(requests.Session(session=name))).session.name, actor)

    async def sessions(self) -> list[Session]:
        """All sessions there are."""
        return [Session(self, session.name) for session in (await self.ask(requests.Ls())).sessions]

    async def checkpoints(self) -> list[Checkpoint]:
        """The points of all sessions, oldest first."""
        return [Checkpoint(self, point) for point in (await self.ask(requests.Log(all=True))).checkpoints]

    async def compare(
        self,
        *candidates: str,
        session: str | None = None,
        base: str | None = None,
        verify: str | None = None,
        timeout: float | None = None,
        actor: model.Actor = "person",
    ) -> views.Comparison:
        """Several sessions or points side by side: what each changed since they parted, its verdict, its
        cost. `candidates`: two or more names of sessions, as they are now, or points: `SESSION:REF`, or refs
        of `session`. `base`: compared with that point. `verify`: a command that is run in a throwaway fork of
        each; a session that has changed since its last point gets one first."""
        request = requests.Compare(
            candidates=candidates, session=session, base=base, verify=verify, timeout=timeout, actor=actor
        )
        return views.Comparison(await self.ask_plain(request))

    async def replay(
        self,
        trace: str | os.PathLike[str],
        *,
        base: str | None = None,
        outside: bool = False,
        timeout: float | None = None,
        all: bool = False,  # noqa: A002 - the API's name
        keep: bool = False,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ) -> views.Replay:
        """Checks a trace that `Session.export_trace` has written, as `Session.replay` does: in a fork of its
        starting point if this home has it, else in a new session over the same base with the files of that
        point. BaseChanged when there is no such base; `base`: over this one. BadTrace when the file is none,
        was cut off or altered, or is of a newer version."""
        request = requests.Replay(
            trace=payloads.local_path(trace),
            base=base,
            outside=outside,
            timeout=timeout,
            all=all,
            keep=keep,
        )
        return views.Replay(await self.ask_plain(request, on_event=payloads.steps(on_step)))

    async def effects(self) -> list[model.Effect]:
        """What every session that ever was has done outside."""
        return [*(await self.ask(requests.Effects(all=True))).effects]

    async def event(self, number: int) -> model.Event:
        """One event of a trajectory, with all that belongs to it."""
        return (await self.ask(requests.Event(event=number))).event

    async def approvals(self, *, all: bool = False) -> list[model.Approval]:  # noqa: A002 - the API's name
        """Commands of all sessions that wait for approval; `all`: also those that were decided."""
        return [*(await self.ask(requests.Approvals(all=all))).approvals]

    async def set_policy(self, policy: str | None) -> None:
        """The rules for all sessions of this home, as the text of a policy file; None: none."""
        await self.ask(requests.PolicySet(text=policy, everywhere=True))

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
        """Forgets the points of all sessions that none of these rules keeps: see `Session.forget`."""
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
        return await self.ask(requests.Forget(all=True, policy=policy, dry_run=dry_run))

    async def prune(self, *, auto: bool = False, dry_run: bool = False) -> model.Pruned:
        """Removes what belongs to nothing; `auto`: also points that were taken automatically."""
        return await self.ask(requests.Prune(auto=auto, dry_run=dry_run))

    async def check(
        self,
        *refs: str,
        session: str | None = None,
        deep: bool = False,
        on_progress: Callable[[str], None] | None = None,
    ) -> model.Checked:
        """Whether everything keeps the rules of docs/storage.md. `refs`, `session`: only these points.
        `deep`: all memory and all files are compared with the digests that were made with the points."""

        request = requests.Check(session=session, refs=refs, deep=deep)
        return await self.ask(request, on_event=payloads.progress_reader(on_progress))

    async def recover(
        self, *, foreign: bool = False, on_progress: Callable[[str], None] | None = None
    ) -> model.Recovered:
        """Repairs what a check finds, as far as nothing has to be guessed, and says what it did. `foreign`:
        points and bases that this installation has not made are taken over too; what is in them will run as
        root. (A database that cannot be read keeps the daemon from starting: `waypoint recover` on the
        command line rebuilds it.)"""

        return await self.ask(
            requests.Recover(foreign=foreign), on_event=payloads.progress_reader(on_progress)
        )

    async def du(self) -> model.DiskUse:
        """What takes how much space."""
        return await self.ask(requests.Du())


async def session(
    name: str | None = None,
    *,
    base: str = "/",
    net: model.Net = "nat",
    hide: Sequence[str] = (),
    binds: Sequence[model.Bind] = (),
    memory_bytes: int | None = None,
    cpus: float | None = None,
    pids: int | None = None,
    open_files: int | None = None,
    disk_bytes: int | None = None,
    spares: int | None = None,
    confined: bool = True,
    userns: bool | None = None,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    home: str | os.PathLike[str] | None = None,
    actor: model.Actor = "person",
    policy: str | None = None,
    temporary: bool = False,
) -> Session:
    """Starts a session, or joins the one of that name. `confined=False`: root in it is the machine's root.
    `userns=True`: in a user namespace, where root is a user without rights on the machine (without: as the
    daemon's WAYPOINT_USERNS says).
    `spares`: how many of its points have a copy restored ahead of time. `user`: who runs its shell and its
    programs, a name or a number in it (without: root), `env`: variables that they start with, `cwd`: the
    folder they start in; its restores and forks keep them. What is not given is as the image of the base
    says, if it has one. `actor`: who acts through the object, a person or an agent. `policy`: rules of its
    own about commands, as the text of a policy file. A session that exists stays as it is.
    `temporary`: a new one, which is removed with its points at the end of the `with` block (a program that is
    killed before leaves it: `sessions()` has it)."""
    options = model.BoxOptions(
        base=base,
        net=net,
        hide=tuple(hide),
        binds=tuple(binds),
        memory_bytes=memory_bytes,
        cpus=cpus,
        pids=pids,
        open_files=open_files,
        disk_bytes=disk_bytes,
        spares=spares,
        confined=confined,
        userns=userns,
        user=user,
        env=dict(env or {}),
        cwd=cwd,
    )
    client = Client(home)
    made = await client.new(name, options=options, join=not temporary, policy=policy, actor=actor)
    return Session(client, made.name, actor, temporary=temporary)


async def sessions(home: str | os.PathLike[str] | None = None) -> list[Session]:
    """All sessions there are."""
    return await Client(home).sessions()
