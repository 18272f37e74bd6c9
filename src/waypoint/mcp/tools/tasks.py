"""Tools about the plan: tasks, task."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from waypoint import errors, model
from waypoint.api import requests
from waypoint.mcp.registry import ADDS, READS, Answer, Backend, SessionName, plain, tool
from waypoint.text.units import shown

_MARKS = {"pending": " ", "in_progress": ">", "completed": "x", "failed": "!", "skipped": "-"}


class TaskTools:
    """The tasks of a session."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @tool("List tasks", READS, requests.Tasks, core=False)
    async def tasks(
        self,
        *,
        session: SessionName = "",
        ref: Annotated[str, Field(description="As they were at this point (a ref); empty: now.")] = "",
    ) -> Answer:
        """The plan: tasks with their state (pending, in_progress, completed, failed, skipped) and the point
        that is the evidence. A restore also takes the tasks back to their state at that point."""
        target = self._backend.session(session)
        return _describe(await self._backend.ask(lambda: target.tasks.list(ref or None)), target.name)

    @tool("Plan and report tasks", ADDS)
    async def task(
        self,
        ctx: Context[Any, Any],
        *,
        action: Annotated[
            Literal["add", "start", "done", "fail", "skip"],
            Field(description="add: new tasks; the others: one task."),
        ],
        task: Annotated[str, Field(description="Its number (2.1) or title.")] = "",
        titles: Annotated[list[str], Field(description="For add, in order.")] = [],  # noqa: B006
        under: Annotated[str, Field(description="For add: the task above.")] = "",
        note: Annotated[str, Field(description="The outcome, or why.")] = "",
        checkpoint: Annotated[bool, Field(description="For done: with a point as evidence.")] = False,
        session: SessionName = "",
    ) -> Answer:
        """Keep the plan up to date: add tasks before you begin, start one, report its end. `resume` tells the
        next agent what is left."""
        target = self._backend.session(session)
        tasks = target.tasks

        def work() -> list[model.Task]:
            match action:
                case "add":
                    if not titles:
                        raise errors.UsageError("no tasks to add", hint="give `titles`, one for each")
                    tasks.plan(*titles, under=under or None)
                case "start":
                    tasks.start(_required(task))
                case "done":
                    tasks.done(_required(task), note, checkpoint=checkpoint)
                case "fail":
                    tasks.fail(_required(task), note)
                case "skip":
                    tasks.skip(_required(task), note)
            return tasks.list()

        return _describe(await self._backend.ask(work, ctx, "updating the plan"), target.name)


def _required(task: str) -> str:
    if not task:
        raise errors.UsageError("no task given", hint="give its number or its title as `task`")
    return task


def _describe(tasks: list[model.Task], session: str) -> Answer:
    lines = []
    for task in tasks:
        note = f"  ({shown(task.note)})" if task.note else ""
        indent = "  " * task.id.count(".")
        lines.append(f"{indent}[{_MARKS[task.state]}] {task.id} {shown(task.title)}{note}")
    text = "" if lines else "No tasks are planned. `task` with action=add plans some."
    return Answer(text, {"tasks": [plain(task) for task in tasks]}, "\n".join(lines), "tasks", session)
