"""The tools: one method each, with its arguments described for a model.

A method asks the daemon through the client, in a thread, and answers with a short text and the same as data.
What it raises becomes a tool error with a code, a message and what to do next. Everything done here was asked
for by an agent, and is marked so.
"""

# ruff: noqa: ASYNC109 - how long a command may take is the caller's to say, in the word of the other faces

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors, model
from waypoint.api import hints
from waypoint.client import agent
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.client.session import Session
from waypoint.mcp.pages import PAGE_CHARACTERS, Shelf
from waypoint.text import views
from waypoint.text.units import clock, milliseconds, shown

T = TypeVar("T")

_PROGRESS_SECONDS = 1.0
_MOST_FORKS = 16
_MOST_COMPARED = 16
_POINTS_A_PAGE = 20

Name = Annotated[
    str,
    Field(description="Session name. Leave empty for the default session, or when there is only one."),
]
Ref = Annotated[
    str,
    Field(
        description="A point: label (c5), name or tag, id prefix, `@` (last), `@-` or `@~3` (before it),"
        " `good` (last that verified), a time of day (10:27), or SESSION:REF."
    ),
]


class Answer(NamedTuple):
    """What a tool answers: words for the model, and the same as data."""

    text: str
    data: Mapping[str, Any]


class Tools:
    """The verbs, as a model calls them."""

    def __init__(self, client: Client, session: str = "") -> None:
        self._client = client
        self._default = session
        self._shelf = Shelf()

    # ---- sessions ----------------------------------------------------------------------------

    async def sessions(self) -> Answer:
        """List the sessions: name, state (live, parked, dead), the point each stands on, what runs in
        it."""
        found = await self._ask(lambda: self._client.call("ls")["sessions"])
        points = await self._ask(lambda: self._client.call("log", {"all": True})["checkpoints"])
        labels = {point["id"]: f"{point['session']}:{point['label']}" for point in points}
        told = [
            {
                "name": one["name"],
                "state": one["state"],
                "at": labels.get(one["head"] or ""),
                "runs": one["foreground"],
                "forked_from": labels.get(one["forked_from"] or ""),
            }
            for one in found
        ]
        lines = [
            f"{one['name']}  {one['state']}  at {one['at'] or 'the base'}"
            + (f"  runs {shown(one['runs'])}" if one["runs"] else "")
            for one in told
        ]
        return Answer("\n".join(lines) or "There are no sessions. `new` starts one.", {"sessions": told})

    async def new(
        self,
        ctx: Context[Any, Any],
        *,
        name: Annotated[
            str, Field(description="Its name: letters, digits, - and _. Empty: one is chosen.")
        ] = "",
        base: Annotated[
            str,
            Field(description="Root file system: `/` is this machine's own (writes stay in the session)."),
        ] = "/",
        net: Annotated[
            Literal["nat", "none"], Field(description="`nat`: it can reach out; `none`: it cannot.")
        ] = "nat",
        auto: Annotated[
            bool, Field(description="Take a point after each command that changed something.")
        ] = False,
    ) -> Answer:
        """Start a session, or join the one of that name: an isolated live computer with its own files,
        processes, network and shell. Nothing it does changes this machine's files."""
        options = {"base": base, "net": net}
        args = {"name": name or None, "options": options, "join": True, "auto": auto}
        found = await self._ask(lambda: self._client.call("new", args)["session"], ctx, "starting a session")
        data = {"session": found["name"], "state": found["state"]}
        return Answer(f"Session {found['name']} is {found['state']}.", data)

    async def stop(
        self,
        ctx: Context[Any, Any],
        *,
        session: Annotated[str, Field(description="Session name.")],
        forget: Annotated[
            bool,
            Field(
                description="false: take a last point and free its memory; `preview` and `restore` bring it"
                " back. true: delete it with all of its points, for good."
            ),
        ] = False,
    ) -> Answer:
        """Stop a session. By default nothing is lost."""
        found = self._session(session)
        if forget:
            await self._ask(found.stop, ctx, "removing the session")
            return Answer(
                f"Session {session} and its points are gone.", {"session": session, "forgotten": True}
            )
        point = await self._ask(found.park, ctx, "parking the session")
        return Answer(
            f"Session {session} is parked at {_called(point.info)}.",
            {"session": session, "forgotten": False, "point": _brief(point.info)},
        )

    # ---- reading on --------------------------------------------------------------------------

    async def more(
        self,
        *,
        cursor: Annotated[str, Field(description="The cursor of the answer that was cut.")],
        max_characters: Annotated[
            int, Field(description="How much is shown.", ge=200, le=100_000)
        ] = PAGE_CHARACTERS,
    ) -> Answer:
        """Read on in an answer that was cut."""
        kind, _, rest = cursor.partition(":")
        if kind == "log":
            session, _, before = rest.partition(":")
            return await self._log(session, before, _POINTS_A_PAGE)
        page = self._shelf.more(cursor, max_characters)
        text = page.text
        if page.cursor:
            text += f"\n[more(cursor={page.cursor!r}) reads on]"
        return Answer(text, {"text": page.text, "cursor": page.cursor})

    # ---- points ------------------------------------------------------------------------------

    async def checkpoint(
        self,
        ctx: Context[Any, Any],
        *,
        intent: Annotated[
            str, Field(description="What this point is, in your words: what was done and why.")
        ] = "",
        session: Name = "",
        name: Annotated[
            str, Field(description="A short name to come back by; must be new in the session.")
        ] = "",
        verify: Annotated[
            str, Field(description="A command that says whether the point is good; runs in a throwaway fork.")
        ] = "",
        wait: Annotated[bool, Field(description="Wait for the verification.")] = True,
        files_only: Annotated[bool, Field(description="Keep files, no processes.")] = False,
        agent_state: Annotated[
            str, Field(description="What you want to know when you are back here; `restore` gives it back.")
        ] = "",
    ) -> Answer:
        """Keep this moment: files, processes with their memory, shell and terminal. Takes milliseconds; the
        session goes on running. Take one before anything risky and after each step that works."""
        target = self._session(session)
        point = await self._ask(
            lambda: target.checkpoint(
                intent,
                name=name or None,
                files_only=files_only,
                verify=verify or None,
                wait=wait,
                agent_state=agent_state or None,
            ),
            ctx,
            "verifying" if verify else "taking a checkpoint",
        )
        text = f"Kept as {_called(point.info)} (paused {milliseconds(point.info.pause_ms)})."
        if point.info.verdict:
            text += f"\n{views.verdict(plain(point.info.verdict))}"
        if point.info.coverage:
            text += "\nnot held: " + " · ".join(map(shown, point.info.coverage))
        return Answer(text, {"point": _brief(point.info)})

    async def log(
        self,
        session: Name = "",
        limit: Annotated[int, Field(description="How many points.", ge=1, le=200)] = _POINTS_A_PAGE,
    ) -> Answer:
        """The points of a session, newest first: intent, what really changed, verdict. `● ` is where it
        stands, `good` the last that verified."""
        return await self._log(self._session(session).name, "", limit)

    async def _log(self, session: str, before: str, limit: int) -> Answer:
        found = await self._ask(lambda: self._client.call("log", {"session": session}))
        whose = found["sessions"][0]
        points = list(reversed(found["checkpoints"]))
        ids = [point["id"] for point in points]
        start = ids.index(before) + 1 if before in ids else 0
        page = points[start : start + limit]
        left = len(points) - start - len(page)
        cursor = f"log:{whose['name']}:{page[-1]['id']}" if page and left else None
        good = set(found["good"].values())
        lines = [line for point in page for line in _log_lines(point, head=whose["head"], good=good)]
        if not before:
            status = await self._ask(self._session(whose["name"]).status)
            lines.insert(0, f"@ now  {status.now()}")
        if cursor:
            lines.append(f"[{left:,} older; more(cursor={cursor!r}) reads on]")
        told = [
            {**_brief(point), "head": point["id"] == whose["head"], "good": point["id"] in good}
            for point in page
        ]
        return Answer("\n".join(lines), {"session": whose["name"], "points": told, "cursor": cursor})

    async def show(self, ref: Ref = "@", session: Name = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """One point in full: intent, what changed since the point before (derived from the snapshots),
        every verdict, notes, what it does not hold."""
        card = await self._ask(lambda: self._point(session, ref).card(), ctx, "reading the card")
        page = self._shelf.first(str(card))
        data = {
            "point": _brief(card.data["checkpoint"]),
            "parent": card.data.get("parent"),
            "summary": card.summary,
            "verdicts": [_verdict(one) for one in card.verdicts],
            "notes": card.notes,
            "not_held": card.coverage,
            "gaps": card.gaps,
            "cursor": page.cursor,
        }
        return Answer(cut(page.text, page.cursor), data)

    async def status(self, session: Name = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """Where a session stands: its last point, what runs, what has changed since and is in no point
        yet."""
        found = await self._ask(self._session(session).status, ctx, "looking at the session")
        page = self._shelf.first(str(found))
        head = found.head
        data = {
            "session": found.data["session"]["name"],
            "state": found.state,
            "runs": found.foreground,
            "at": _brief(head) if head else None,
            "changed": bool(found.diff),
            "summary": found.data["summary"],
            "cursor": page.cursor,
        }
        return Answer(cut(page.text, page.cursor), data)

    async def diff(
        self,
        ctx: Context[Any, Any],
        *,
        old: Annotated[str, Field(description="From this point (a ref); empty: the last one.")] = "",
        new: Annotated[str, Field(description="To this point (a ref); empty: now.")] = "",
        session: Name = "",
        paths: Annotated[list[str], Field(description="Only what is at or below these paths.")] = [],  # noqa: B006
        only: Annotated[
            list[Literal["files", "packages", "git", "databases", "system", "processes", "ports", "shell"]],
            Field(description="Only these sections."),
        ] = [],  # noqa: B006
        patch: Annotated[bool, Field(description="With a unified diff of the text files.")] = False,
    ) -> Answer:
        """What changed between two points, or a point and now: files, packages, commits, databases,
        processes, ports, shell. Whether git knows the files or not."""
        target = self._session(session)
        found = await self._ask(
            lambda: target.diff(old or None, new or None, paths=paths, only=only, patch=patch),
            ctx,
            "comparing",
        )
        text = str(found)
        if found.patch:
            text += f"\n\n{found.patch}"
        page = self._shelf.first(text)
        data = {
            "different": bool(found),
            "summary": found.summary,
            "sections": _sections(found),
            "gaps": found.gaps,
            "redacted": found.redacted,
            "cursor": page.cursor,
        }
        return Answer(cut(page.text, page.cursor), data)

    # ---- going back --------------------------------------------------------------------------

    async def preview(
        self,
        *,
        ref: Ref,
        session: Name = "",
        files_only: Annotated[bool, Field(description="Files go back, processes stay.")] = False,
        ctx: Context[Any, Any] | None = None,
    ) -> Answer:
        """What a restore to a point would do: what goes, what comes back, what it cannot undo. Changes
        nothing. Answers with the plan id that `restore` needs."""
        target = self._session(session)
        plan = await self._ask(lambda: target.preview(ref, files_only=files_only), ctx, "making a plan")
        page = self._shelf.first("\n".join(text for _, text in plan.lines(wording=hints.in_tool)))
        body = plan.data["plan"]
        data = {
            "plan": plan.id,
            "session": body["session"],
            "target": _brief(plan.target),
            "words": plan.data["words"],
            "not_undone": body["not_undone"],
            "not_covered": body["not_covered"],
            "files_only": files_only,
            "cursor": page.cursor,
        }
        text = f"{cut(page.text, page.cursor)}\nplan {plan.id}: restore(plan={plan.id!r}) does this"
        return Answer(text, data)

    async def restore(
        self,
        *,
        plan: Annotated[
            str, Field(description="The plan id from `preview`. Refused when anything has changed since.")
        ],
        session: Name = "",
        files_only: Annotated[bool, Field(description="As it was given to `preview`.")] = False,
        ctx: Context[Any, Any] | None = None,
    ) -> Answer:
        """Take the session back to a point, whole: files, processes, shell. Only with a plan from
        `preview`, which you have read. A safety point of the present is taken first; `undo` comes back to
        it."""
        if not plan.strip():
            raise errors.ConfirmationNeeded(
                "a restore needs a plan", hint="call `preview` with the point, read it, then pass its plan id"
            )
        target = self._session(session)
        done = await self._ask(
            lambda: target.restore(plan=plan, files_only=files_only), ctx, "restoring the session"
        )
        return _restored(done)

    async def undo(self, session: Name = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """Take the last restore back: the session is again as it was just before it."""
        return _restored(await self._ask(self._session(session).undo, ctx, "undoing the restore"))

    # ---- branches ----------------------------------------------------------------------------

    async def fork(
        self,
        ctx: Context[Any, Any],
        *,
        ref: Ref = "@",
        n: Annotated[int, Field(description="How many.", ge=1, le=_MOST_FORKS)] = 1,
        name: Annotated[str, Field(description="Their name; with several: name-1, name-2, …")] = "",
        session: Name = "",
    ) -> Answer:
        """Grow new live sessions from a point, to try several ways at once. Each goes on from exactly that
        moment, with its own files, processes and ports. `compare` puts them side by side."""
        target = self._session(session)
        found = await self._ask(lambda: target.fork(n, ref=ref, name=name or None), ctx, "forking")
        names = [one.name for one in found]
        return Answer(f"Live forks of {ref}: {', '.join(names)}", {"sessions": names, "ref": ref})

    async def compare(
        self,
        ctx: Context[Any, Any],
        *,
        points: Annotated[
            list[str],
            Field(
                description="What to compare: session names (as they are now) or points (SESSION:REF).",
                min_length=1,
                max_length=_MOST_COMPARED,
            ),
        ],
        base: Annotated[
            str, Field(description="What each is compared with (SESSION:REF); empty: where they parted.")
        ] = "",
        verify: Annotated[
            str,
            Field(
                description="A command to try at each, in a throwaway fork. A session that has changed since"
                " its last point gets a point first."
            ),
        ] = "",
        timeout: Annotated[float, Field(description="Seconds for each verification.", gt=0)] = 600,
    ) -> Answer:
        """Several forks or points side by side: verdict, what each changed, what each costs. Use it to
        choose."""

        def work() -> views.Comparison:
            return self._client.compare(
                *points, base=base or None, verify=verify or None, timeout=timeout, actor="agent"
            )

        compared = await self._ask(work, ctx, "comparing")
        rows = [_compared(candidate) for candidate in compared.candidates]
        base_name = _point_name(compared.base) if compared.base else "base"
        return Answer(str(compared), {"base": base_name, "rows": rows})

    async def verify(
        self,
        ctx: Context[Any, Any],
        *,
        command: Annotated[str, Field(description="Exit 0 means good.")],
        ref: Ref = "@",
        session: Name = "",
        timeout: Annotated[float, Field(description="Seconds.", gt=0)] = 600,
    ) -> Answer:
        """Run a command at a point, in a throwaway fork; the session is not touched. The verdict is kept
        with the point, and `good` means the last that passed."""

        def work() -> tuple[model.Checkpoint, model.Verdict | None]:
            point = self._point(session, ref)
            verdict = point.verify(command, timeout=timeout)
            return point.info, verdict

        info, verdict = await self._ask(work, ctx, f"verifying {ref}")
        told = _verdict(plain(verdict)) if verdict else None
        text = f"{_called(info)}: {views.verdict(plain(verdict)) if verdict else 'no verdict yet'}"
        if verdict and verdict.output.strip():
            text += f"\n{verdict.output.rstrip()}"
        return Answer(text, {"point": _brief(info), "verdict": told})

    # ---- asking ------------------------------------------------------------------------------

    def _session(self, name: str) -> Session:
        return Session(self._client, name or self._default, "agent")

    def _point(self, session: str, ref: str) -> Checkpoint:
        return self._session(session).point(ref)

    async def _ask(
        self,
        work: Callable[[], T],
        ctx: Context[Any, Any] | None = None,
        doing: str | Callable[[], str] = "",
    ) -> T:
        """Asks the daemon in a thread; tells the client every second that it goes on."""
        async with anyio.create_task_group() as group:
            if ctx is not None:
                group.start_soon(_tell_progress, ctx, doing)
            found = await anyio.to_thread.run_sync(lambda: _outcome(work), abandon_on_cancel=True)
            group.cancel_scope.cancel()
        if isinstance(found, errors.WaypointError):
            raise found
        return found


def _outcome(work: Callable[[], T]) -> T | errors.WaypointError:
    """What it gives or raises: an error that leaves a task group comes out wrapped in a group of errors."""
    try:
        return work()
    except errors.WaypointError as error:
        return error


async def _tell_progress(ctx: Context[Any, Any], doing: str | Callable[[], str]) -> None:
    seconds = 0.0
    while True:
        await anyio.sleep(_PROGRESS_SECONDS)
        seconds += _PROGRESS_SECONDS
        await ctx.report_progress(seconds, None, doing if isinstance(doing, str) else doing())


# ---- words and data ------------------------------------------------------------------------------


def plain(record: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def cut(text: str, cursor: str | None) -> str:
    return f"{text}\n[cut; more(cursor={cursor!r}) reads on]" if cursor else text


def _called(point: model.Checkpoint) -> str:
    return f"{point.session}:{views.quoted(plain(point))}"


def _brief(point: model.Checkpoint | Mapping[str, Any]) -> dict[str, Any]:
    """A point in few words: what a model needs to choose one."""
    found = point if isinstance(point, Mapping) else plain(point)
    return {
        "ref": f"{found['session']}:{found['label']}",
        "id": found["id"],
        "name": found["name"],
        "intent": views.title(found),
        "at": found["created_at"],
        "kind": found["kind"],
        "actor": found["actor"],
        "verdict": _verdict(found["verdict"]) if found.get("verdict") else None,
        "summary": found.get("summary"),
    }


def _verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("state", "command", "exit_code", "duration_ms", "at")}


def _sections(found: views.Diff) -> list[dict[str, Any]]:
    return [
        {key: one[key] for key in ("name", "summary", "source")} | {"lines": len(one["lines"])}
        for one in found.sections
    ]


def _log_lines(point: Mapping[str, Any], *, head: str | None, good: set[str]) -> Sequence[str]:
    mark = "●" if point["id"] == head else "○"
    words = " ".join(filter(None, (point["label"], clock(point["created_at"]), point["name"])))
    lines = [f"{mark} {words}  {views.title(point) or '(no intent)'}"]
    lines[0] += f"  {views.verdict(point['verdict'], short=True)}"
    if point["id"] in good:
        lines[0] += "  ← good"
    if point["summary"]:
        lines.append(f"    {shown(point['summary'])}")
    return lines


def _restored(done: agent.Restored) -> Answer:
    text = f"{done.session.name} is at {_called(done.checkpoint)} (ready in {milliseconds(done.ready_ms)})."
    if done.safety:
        text += f" What was there is kept as {done.safety.label}; `undo` goes back to it."
    data = {
        "session": done.session.name,
        "point": _brief(done.checkpoint),
        "safety": _brief(done.safety) if done.safety else None,
        "ready_ms": done.ready_ms,
        "agent_state": None,
    }
    state = done.agent_state()
    if isinstance(state, bytes):
        text += f"\nAn agent left {len(state)} bytes with that point."
    elif state is not None:
        data["agent_state"] = state
        words = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
        text += f"\nLeft with that point: {words}"
    return Answer(text, data)


def _point_name(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def _compared(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate of `compare`, as the tool answers it."""
    point = candidate["point"]
    verdict = point["verdict"] if point else None
    return {
        "asked": candidate["name"],
        "session": candidate["session"],
        "point": _point_name(point) if point else None,
        "live": candidate["live"],
        "intent": views.title(point) if point else "",
        "verdict": {key: verdict[key] for key in ("state", "command", "exit_code")} if verdict else None,
        "changes": {
            "summary": candidate["summary"],
            "files": candidate["files"],
            "sections": {section["name"]: section["summary"] for section in candidate["sections"]},
        },
        "cost": {
            "unique_bytes": candidate["unique_bytes"],
            "memory_bytes": point["size_bytes"] if point else None,
            "processes": point["processes"] if point else None,
            "commands": candidate["commands"],
            "commands_ms": round(candidate["commands_ms"], 1),
            "effects": candidate["effects"],
        },
    }
