"""Cards in words: the one line of a log, and the lines of a card with where each comes from."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from waypoint.api.difference import Card, CardLine, Difference, LiveDifference, PortFact, ProcessFact
from waypoint.history import changes
from waypoint.model import Effect, IntentFrom, TaskChange
from waypoint.text.effects import phrase, what, words
from waypoint.text.findings import headline

_MOST_NAMES = 3
NOTHING = "nothing changed"


def program_name(command: str) -> str:
    """The name a person would use for a process: `node`, `http.server`, `redis-server`."""
    words = command.split()
    if not words:
        return "?"
    name = posixpath.basename(words[0].strip("[]-")).rstrip(":")  # `nginx: worker process`
    if name.startswith("python") and "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    if name.startswith(("python", "node", "ruby", "perl", "bash", "sh")):
        for word in words[1:]:
            if not word.startswith("-"):
                return posixpath.basename(word)
    return name


def _ports_of(process: ProcessFact, ports: Sequence[PortFact]) -> str:
    mine = sorted({port.port for port in ports if port.pid == process.pid})
    return "".join(f" :{port}" for port in mine)


def _process_words(found: LiveDifference) -> list[str]:
    words = []
    for verb, changed, ports in (
        ("started", found.started, found.opened),
        ("ended", found.ended, found.closed),
    ):
        names = [f"{program_name(process.command)}{_ports_of(process, ports)}" for process in changed]
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            words.append(f"{', '.join(names[:_MOST_NAMES])}{more} {verb}")
    return words


def _variable_words(found: LiveDifference) -> list[str]:
    if not found.variables:
        return []
    if len(found.variables) <= _MOST_NAMES:
        marks = {True: "+", False: "~"}
        return [
            ", ".join(
                f"-{v.name}" if v.after is None else marks[v.before is None] + v.name for v in found.variables
            )
        ]
    return [f"{len(found.variables)} variables"]


def summarize(difference: Difference, outside: Sequence[Effect] = ()) -> str:
    """One line that a person can read in a log."""
    said = []
    if counts := changes.headline(difference.files):
        said.append(counts)
    said += headline(difference.analysis)
    said += _process_words(difference.live)
    if difference.live.cwd:
        said.append(f"cwd {difference.live.cwd[1]}")
    said += _variable_words(difference.live)
    if len(outside) > 1:
        said.append(f"outside: {what(outside[-1])} and {len(outside) - 1} more")
    elif outside:
        said.append(f"outside: {what(outside[0])}")
    if talk := phrase(difference.contacts):
        said.append(talk)
    return " · ".join(said) or NOTHING


def _task_words(changes: Sequence[TaskChange]) -> list[str]:
    """What became of tasks: `task done: add payments`."""
    said = []
    for state, verb in (("completed", "done"), ("failed", "failed"), ("skipped", "skipped")):
        titles = [change.title for change in changes if change.after == state != change.before]
        if titles:
            more = f" and {len(titles) - _MOST_NAMES} more" if len(titles) > _MOST_NAMES else ""
            noun = "task" if len(titles) == 1 else "tasks"
            said.append(f"{noun} {verb}: {', '.join(titles[:_MOST_NAMES])}{more}")
    return said


def write_card(
    intent: str,
    intent_from: IntentFrom,
    difference: Difference,
    coverage: Sequence[str],
    *,
    own_words: bool = False,
    tasks: Sequence[TaskChange] = (),
    outside: Sequence[Effect] = (),
) -> Card:
    """The card of a checkpoint from its difference to its parent. `own_words`: Waypoint itself named it.
    `tasks`: those that stood otherwise at the parent; `outside`: what was done there in between."""
    lines = []
    if intent:
        claimed = intent_from in ("given", "git") and not own_words
        lines.append(CardLine(topic="intent", text=intent, source="claimed" if claimed else "observed"))
    if counts := changes.headline(difference.files):
        lines.append(CardLine(topic="files", text=counts, source="derived"))
    lines += [
        CardLine(topic="meaning", text=text, source="derived") for text in headline(difference.analysis)
    ]
    lines += [
        CardLine(topic="processes", text=text, source="observed") for text in _process_words(difference.live)
    ]
    if difference.live.cwd:
        before, after = difference.live.cwd
        lines.append(CardLine(topic="shell", text=f"cwd {before} → {after}", source="observed"))
    lines += [
        CardLine(topic="shell", text=text, source="observed") for text in _variable_words(difference.live)
    ]
    if talk := phrase(difference.contacts, amounts=True):
        lines.append(CardLine(topic="network", text=talk, source="observed"))
    lines += [
        CardLine(
            topic="outside", text=words(one), source="claimed" if one.source == "claimed" else "observed"
        )
        for one in outside
    ]
    done = _task_words(tasks)
    lines += [CardLine(topic="tasks", text=text, source="claimed") for text in done]
    changed = summarize(difference, outside)
    return Card(
        intent=intent,
        intent_from=intent_from,
        summary=" · ".join((changed, *done)) if changed != NOTHING else " · ".join(done) or changed,
        lines=tuple(lines),
        difference=difference,
        coverage=tuple(coverage),
        gaps=difference.gaps,
        redacted=difference.redacted,
    )
