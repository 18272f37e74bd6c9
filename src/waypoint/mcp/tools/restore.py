"""Tools that go back to a point or continue from it: preview, restore, undo, fork, compare."""

# ruff: noqa: ASYNC109 - `timeout` is the argument of the user's command, as in the other faces

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors
from waypoint.api import requests
from waypoint.client import agent
from waypoint.mcp.registry import ADDS, CHANGES, READS, Answer, Backend, Ref, SessionName, tool
from waypoint.mcp.tools.points import called, summary_of
from waypoint.text import views
from waypoint.text.units import milliseconds, shown

_MAX_FORKS = 16
_MAX_COMPARED = 16
_MAX_OUTCOMES = 10
"""Of each candidate, how its last commands ended."""


class RestoreTools:
    """Restores, forks, and the choice between forks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @tool("Preview a restore", READS, requests.Preview)
    async def preview(
        self,
        *,
        ref: Ref,
        session: SessionName = "",
        files_only: Annotated[bool, Field(description="Only files; processes go on.")] = False,
        ctx: Context[Any, Any] | None = None,
    ) -> Answer:
        """What a restore to a point would do: what is lost, what comes back, what it cannot undo. Answers
        with the plan id that `restore` needs."""
        target = self._backend.session(session)
        plan = await self._backend.ask(
            lambda: target.preview(ref, files_only=files_only), ctx, "making a plan"
        )
        body = plan.data["plan"]
        data = {
            "plan": plan.id,
            "session": body["session"],
            "target": summary_of(plan.target),
            "words": plan.data["words"],
            "not_undone": body["not_undone"],
            "not_covered": body["not_covered"],
            "files_only": files_only,
        }
        lines = "\n".join(line for _, line in plan.lines(wording=self._backend.wording))
        page = self._backend.page(lines, data, what="plan")
        does = f"plan {plan.id}: restore(plan={plan.id!r}) does this"
        return page._replace(after="\n".join(filter(None, (page.after, does))))

    @tool("Restore a point", CHANGES, requests.Restore)
    async def restore(
        self,
        *,
        plan: Annotated[
            str, Field(description="The plan id; refused if anything has changed since `preview`.")
        ],
        session: SessionName = "",
        files_only: Annotated[bool, Field(description="As in `preview`.")] = False,
        ctx: Context[Any, Any] | None = None,
    ) -> Answer:
        """Restore the whole session to a point: files, processes, shell. Read the plan first. A safety point
        of the present is taken; `undo` goes back to it."""
        if not plan.strip():
            raise errors.ConfirmationNeeded(
                "a restore needs a plan", hint="call `preview` with the point, read it, then pass its plan id"
            )
        target = self._backend.session(session)
        restored = await self._backend.ask(
            lambda: target.restore(plan=plan, files_only=files_only), ctx, "restoring the session"
        )
        return _describe_restored(restored)

    @tool("Undo the last restore", CHANGES, requests.Undo)
    async def undo(self, session: SessionName = "", ctx: Context[Any, Any] | None = None) -> Answer:
        """Undo the last restore: the session is again as it was before it."""
        target = self._backend.session(session)
        return _describe_restored(await self._backend.ask(target.undo, ctx, "undoing the restore"))

    @tool("Fork live sessions from a point", ADDS, requests.Fork)
    async def fork(
        self,
        ctx: Context[Any, Any],
        *,
        ref: Ref = "",
        n: Annotated[int, Field(description="How many.", ge=1, le=_MAX_FORKS)] = 1,
        name: Annotated[str, Field(description="Their name; with several: name-1, name-2, …")] = "",
        session: SessionName = "",
    ) -> Answer:
        """Start new live sessions from a point (without `ref`: from now), to try several ways at once. Each
        continues from exactly that moment, with its own files, processes and ports."""
        target = self._backend.session(session)
        forks = await self._backend.ask(
            lambda: target.fork(n, ref=ref or None, name=name or None), ctx, "forking"
        )
        names = [fork.name for fork in forks]
        problems = [
            f"hook {hook.name} in {fork.name}: {shown(hook.problem)}"
            for fork in forks
            for hook in (fork.forked.hooks if fork.forked else ())
            if hook.problem
        ]
        text = f"Live forks of {ref or 'the present'}: {', '.join(names)}"
        return Answer("\n".join([text, *problems]), {"sessions": names, "ref": ref, "problems": problems})

    @tool("Compare forks or points", ADDS, requests.Compare)
    async def compare(
        self,
        ctx: Context[Any, Any],
        *,
        points: Annotated[
            list[str],
            Field(
                description="Session names (as they are now) or points (SESSION:REF).",
                min_length=2,
                max_length=_MAX_COMPARED,
            ),
        ],
        base: Annotated[
            str,
            Field(description="Compared with this point; empty: their last common one."),
        ] = "",
        verify: Annotated[
            str,
            Field(
                description="A command to try at each, in a throwaway fork. A changed session gets a point"
                " first."
            ),
        ] = "",
        timeout: Annotated[float, Field(description="Seconds for each verification.", gt=0)] = 600,
    ) -> Answer:
        """Several forks or points side by side: verdict, what each changed, what each costs."""

        def work() -> views.Comparison:
            return self._backend.client.compare(
                *points, base=base or None, verify=verify or None, timeout=timeout, actor="agent"
            )

        comparison = await self._backend.ask(work, ctx, "comparing")
        base_name = _point_name(comparison.base) if comparison.base else "base"
        rows = [_candidate_data(candidate) for candidate in comparison.candidates]
        data = {"base": base_name, "rows": rows}
        return self._backend.page(str(comparison), data, what="comparison")


def _point_name(point: Mapping[str, Any]) -> str:
    return f"{point['session']}:{point['label']}"


def _candidate_data(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate of `compare`, as the tool answers it."""
    point = candidate["point"]
    verdict = point["verdict"] if point else None
    sections: dict[str, str] = {}
    for section in candidate["sections"]:  # what is known of the outside in two ways are two sections
        known = sections.get(section["name"])
        sections[section["name"]] = f"{known} · {section['summary']}" if known else section["summary"]
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
            "sections": sections,
        },
        "outcomes": candidate["outcomes"][-_MAX_OUTCOMES:],
        "cost": {
            "unique_bytes": candidate["unique_bytes"],
            "memory_bytes": point["size_bytes"] if point else None,
            "processes": point["processes"] if point else None,
            "commands": candidate["commands"],
            "commands_ms": round(candidate["commands_ms"], 1),
            "effects": candidate["effects"],
        },
    }


def _describe_restored(restored: agent.Restored) -> Answer:
    name, ready = restored.session.name, milliseconds(restored.ready_ms)
    text = f"{name} is at {called(restored.checkpoint)} (ready in {ready})."
    if restored.safety:
        text += f" The state before it is kept as {restored.safety.label}; `undo` goes back to it."
    state, left = restored.agent_state(), ""
    if isinstance(state, bytes):
        text += f"\nAn agent left {len(state)} bytes with that point."
    elif state is not None:
        left = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    data = {
        "session": name,
        "point": summary_of(restored.checkpoint),
        "safety": summary_of(restored.safety) if restored.safety else None,
        "ready_ms": restored.ready_ms,
        "agent_state": None if isinstance(state, bytes) else state,
    }
    return Answer(text, data, left, "note left with that point")
