"""Cards in words: the one line of a log, and the lines of a card with the source of each."""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.api.difference import Card, CardLine, Difference, LiveDifference, Source
from waypoint.model import Effect, IntentFrom, TaskChange
from waypoint.text.effects import describe_contacts, describe_effect, effect_name
from waypoint.text.findings import program_name, summarize_files, summarize_findings
from waypoint.text.units import some

_NAMED = 3
NOTHING = "nothing changed"


def summarize(difference: Difference, outside: Sequence[Effect] = ()) -> str:
    """One line that a person can read in a log."""
    live = difference.live
    phrases = [
        summarize_files(difference.files),
        *summarize_findings(difference.analysis),
        *_processes(live),
        f"cwd {live.cwd[1]}" if live.cwd else "",
        _variables(live),
        _outside(outside),
        describe_contacts(difference.contacts),
    ]
    return " · ".join(filter(None, phrases)) or NOTHING


def _processes(live: LiveDifference) -> list[str]:
    """`node :3000, worker started`, and the same for those that ended."""
    phrases = []
    for verb, processes, ports in (
        ("started", live.started, live.opened),
        ("ended", live.ended, live.closed),
    ):
        names = []
        for process in processes:
            numbers = sorted({port.port for port in ports if port.pid == process.pid})
            names.append(program_name(process.command) + "".join(f" :{number}" for number in numbers))
        if names:
            phrases.append(f"{some(names, _NAMED)} {verb}")
    return phrases


def _variables(live: LiveDifference) -> str:
    if len(live.variables) > _NAMED:
        return f"{len(live.variables)} variables"
    signs = [
        "-" if variable.after is None else "+" if variable.before is None else "~"
        for variable in live.variables
    ]
    return ", ".join(f"{sign}{variable.name}" for sign, variable in zip(signs, live.variables, strict=True))


def _outside(effects: Sequence[Effect]) -> str:
    if not effects:
        return ""
    more = f" and {len(effects) - 1} more" if len(effects) > 1 else ""
    return f"outside: {effect_name(effects[-1])}{more}"


def _tasks(changes: Sequence[TaskChange]) -> list[str]:
    """`task done: add payments`."""
    phrases = []
    for state, verb in (("completed", "done"), ("failed", "failed"), ("skipped", "skipped")):
        titles = [change.title for change in changes if change.after == state != change.before]
        if titles:
            noun = "task" if len(titles) == 1 else "tasks"
            phrases.append(f"{noun} {verb}: {some(titles, _NAMED)}")
    return phrases


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
    """The card of a checkpoint from its difference to its parent. `own_words`: the intent is Waypoint's own
    text. `tasks`: those whose state was another at the parent; `outside`: the effects in between."""
    live = difference.live
    lines: list[CardLine] = []

    def add(topic: str, source: Source, *texts: str) -> None:
        lines.extend(CardLine(topic=topic, text=text, source=source) for text in texts if text)

    add("intent", "claimed" if intent_from in ("given", "git") and not own_words else "observed", intent)
    add("files", "derived", summarize_files(difference.files))
    add("meaning", "derived", *summarize_findings(difference.analysis))
    add("processes", "observed", *_processes(live))
    add("shell", "observed", f"cwd {live.cwd[0]} → {live.cwd[1]}" if live.cwd else "", _variables(live))
    add("network", "observed", describe_contacts(difference.contacts, amounts=True))
    for effect in outside:
        add("outside", "claimed" if effect.source == "claimed" else "observed", describe_effect(effect))
    done = _tasks(tasks)
    add("tasks", "claimed", *done)
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
