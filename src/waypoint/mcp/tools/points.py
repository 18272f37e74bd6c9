"""Tools about points: checkpoint, log, show, diff, verify."""

# ruff: noqa: ASYNC109 - `timeout` is the argument of the user's command, as in the other faces

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import model
from waypoint.api import requests
from waypoint.mcp.registry import ADDS, READS, Answer, Backend, Ref, SessionName, plain, tool
from waypoint.text import views
from waypoint.text.units import clock, milliseconds, shown

_POINTS_A_PAGE = 20


class PointTools:
    """The points of a session, and what changed between them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        backend.readers["log"] = self._continue_log

    @tool("Take a checkpoint", ADDS, requests.Checkpoint)
    async def checkpoint(
        self,
        ctx: Context[Any, Any],
        *,
        intent: Annotated[str, Field(description="What was done and why.")] = "",
        session: SessionName = "",
        name: Annotated[str, Field(description="A new short name for it.")] = "",
        verify: Annotated[str, Field(description="A test command; it runs in a throwaway fork.")] = "",
        wait: Annotated[bool, Field(description="Wait for its verdict.")] = True,
        files_only: Annotated[bool, Field(description="No processes.")] = False,
        agent_state: Annotated[str, Field(description="A note to yourself; `restore` returns it.")] = "",
    ) -> Answer:
        """Keep this moment: files, processes with their memory, shell, terminal. Takes milliseconds. Do it
        before anything risky and after each step that works."""
        target = self._backend.session(session)
        point = await self._backend.ask(
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
        text = f"Kept as {called(point.info)} (paused {milliseconds(point.info.pause_ms)})."
        if point.info.verdict:
            text += f"\n{views.verdicts(plain(point.info))}"
        data = {"session": point.info.session, "point": summary_of(point.info)}
        return Answer(text, data, "\n".join(map(shown, point.info.coverage)), "what the point does not hold")

    @tool("Timeline of a session", READS, requests.Log)
    async def log(
        self,
        session: SessionName = "",
        limit: Annotated[int, Field(description="How many points.", ge=1, le=200)] = _POINTS_A_PAGE,
    ) -> Answer:
        """The points of a session, newest first: intent, what really changed, verdict. `●`: where it
        stands."""
        return await self._log(self._backend.session(session).name, "", limit)

    async def _continue_log(self, cursor: str) -> Answer:
        session, _, before = cursor.partition(":")
        return await self._log(session, before, _POINTS_A_PAGE)

    async def _log(self, session: str, before: str, limit: int) -> Answer:
        log = await self._backend.ask(lambda: self._backend.client.ask(requests.Log(session=session)))
        [head] = log.sessions
        points = log.checkpoints[::-1]
        ids = [point.id for point in points]
        start = ids.index(before) + 1 if before in ids else 0
        page = points[start : start + limit]
        left = len(points) - start - len(page)
        cursor = f"log:{head.name}:{page[-1].id}" if page and left else None
        good = set(log.good.values())
        lines = [line for point in page for line in _log_lines(point, head=head.head, good=good)]
        if not before:
            status = await self._backend.ask(self._backend.session(head.name).status)
            lines.insert(0, f"@ now  {status.now()}")
        rows = [
            {**summary_of(point), "head": point.id == head.head, "good": point.id in good} for point in page
        ]
        after = f"[{left:,} older; more(cursor={cursor!r}) reads on]" if cursor else ""
        data = {"session": head.name, "points": rows, "cursor": cursor}
        return Answer("", data, "\n".join(lines), "timeline", after=after)

    @tool("Show a point", READS, requests.Show, core=False)
    async def show(
        self, ref: Ref = "@", session: SessionName = "", ctx: Context[Any, Any] | None = None
    ) -> Answer:
        """One point in full: intent, what changed since the point before (derived from the snapshots),
        every verdict, notes, what it does not hold."""
        card = await self._backend.ask(
            lambda: self._backend.point(session, ref).card(), ctx, "reading the card"
        )
        data = {
            "point": summary_of(card.data["checkpoint"]),
            "parent": card.data.get("parent"),
            "summary": card.summary,
            "verdicts": [_verdict(verdict) for verdict in card.verdicts],
            "notes": card.notes,
            "not_held": card.coverage,
            "gaps": card.gaps,
        }
        return self._backend.page(str(card), data, what="card", session=card.data["checkpoint"]["session"])

    @tool("What changed", READS, requests.Diff)
    async def diff(
        self,
        ctx: Context[Any, Any],
        *,
        old: Annotated[str, Field(description="From this point; empty: the last.")] = "",
        new: Annotated[str, Field(description="To this point; empty: now.")] = "",
        session: SessionName = "",
        paths: Annotated[list[str], Field(description="Only below these.")] = [],  # noqa: B006
        only: Annotated[
            list[Literal["files", "packages", "git", "databases", "system", "processes", "ports", "shell"]],
            Field(description="Only these sections."),
        ] = [],  # noqa: B006
        patch: Annotated[bool, Field(description="With a diff of text files.")] = False,
    ) -> Answer:
        """What changed between two points, or a point and now: files (also those that git ignores), packages,
        commits, databases, processes, ports, shell."""
        target = self._backend.session(session)
        diff = await self._backend.ask(
            lambda: target.diff(old or None, new or None, paths=paths, only=only, patch=patch),
            ctx,
            "comparing",
        )
        text = f"{diff}\n\n{diff.patch}" if diff.patch else str(diff)
        data = {
            "different": bool(diff),
            "summary": diff.summary,
            "sections": [
                {key: section[key] for key in ("name", "summary", "source")}
                | {"lines": len(section["lines"])}
                for section in diff.sections
            ],
            "gaps": diff.gaps,
            "redacted": diff.redacted,
        }
        return self._backend.page(text, data, what="changes", session=target.name)

    @tool("Verify a point", ADDS, requests.Verify)
    async def verify(
        self,
        ctx: Context[Any, Any],
        *,
        command: Annotated[str, Field(description="Exit 0 means good.")],
        ref: Ref = "@",
        session: SessionName = "",
        timeout: Annotated[float, Field(description="Seconds.", gt=0)] = 600,
    ) -> Answer:
        """Run a command at a point, in a throwaway fork. The point keeps the verdict; `good` is the last that
        passed."""

        def work() -> tuple[model.Checkpoint, model.Verdict | None]:
            point = self._backend.point(session, ref)
            verdict = point.verify(command, timeout=timeout)
            return point.info, verdict

        info, verdict = await self._backend.ask(work, ctx, f"verifying {ref}")
        text = f"{called(info)}: {views.verdict(plain(verdict)) if verdict else 'no verdict yet'}"
        data = {"point": summary_of(info), "verdict": _verdict(plain(verdict)) if verdict else None}
        return Answer(text, data, verdict.output if verdict else "", session=info.session)


# ---- points in answers ---------------------------------------------------------------------------


def called(point: model.Checkpoint) -> str:
    """`work:c2 up "before auth refactor"`."""
    return f"{point.session}:{views.quoted(plain(point))}"


def summary_of(point: model.Checkpoint | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a point that a model needs to choose one."""
    fields = point if isinstance(point, Mapping) else plain(point)
    return {
        "ref": f"{fields['session']}:{fields['label']}",
        "id": fields["id"],
        "name": fields["name"],
        "intent": views.title(fields),
        "at": fields["created_at"],
        "kind": fields["kind"],
        "actor": fields["actor"],
        "verdict": _verdict(fields["verdict"]) if fields.get("verdict") else None,
        "verdicts": [_verdict(verdict) for verdict in fields.get("verdicts", ())],
        "summary": fields.get("summary"),
    }


def _verdict(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {key: verdict[key] for key in ("state", "command", "exit_code", "duration_ms", "at")}


def _log_lines(point: model.Checkpoint, *, head: str | None, good: set[str]) -> Sequence[str]:
    fields = plain(point)
    mark = "●" if point.id == head else "○"
    label = " ".join(filter(None, (point.label, clock(point.created_at), point.name)))
    verified = views.verdicts(fields, short=True)
    line = f"{mark} {label}  {views.title(fields) or '(no intent)'}  {verified}"
    if point.id in good:
        line += "  ← good"
    return [line, f"    {shown(point.summary)}"] if point.summary else [line]
