"""Cards in words: the one line of a log, and the lines of a card with the source of each."""

from __future__ import annotations

from collections.abc import Sequence

from waypoint.api.difference import Card, CardLine, CommandOutcome, Difference, Source
from waypoint.model import Effect, IntentFrom, TaskChange
from waypoint.text.commands import summarize_outcomes
from waypoint.text.effects import describe_contacts, describe_effect, effect_name, effect_source
from waypoint.text.files import name_files, summarize_files
from waypoint.text.findings import summarize_findings
from waypoint.text.live import MAY_HAVE_CHANGED, summarize_moves, summarize_processes, summarize_shell
from waypoint.text.units import some

_NAMED = 3
_NOTHING = "no change found"


def summarize(difference: Difference, outside: Sequence[Effect] = (), *, beside: bool = False) -> str:
    """One line that a person can read in a log: what tells most comes first, files by name and what was only
    talked to come last. `beside`: more is told in the same line."""
    live = difference.live
    phrases = [
        *summarize_findings(difference.analysis),
        *summarize_processes(live),
        *summarize_moves(live),
        _outside(outside),
        *summarize_shell(live),
    ]
    files = name_files(difference.files, difference.analysis, beside=beside or any(phrases))
    phrases += [files, describe_contacts(difference.contacts)]
    return " · ".join(filter(None, phrases)) or _NOTHING


def _nothing(difference: Difference) -> str:
    """That nothing was found, and what may have changed without a sign."""
    unseen = [phrase for phrase in difference.not_compared if phrase.endswith(MAY_HAVE_CHANGED)]
    return ", but ".join((_NOTHING, *unseen[:1]))


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
    commands: Sequence[CommandOutcome] = (),
) -> Card:
    """The card of a checkpoint from its difference to its parent. `own_words`: the intent is Waypoint's own
    text. `tasks`: those whose state was another at the parent; `outside`: the effects in between; `commands`:
    what ran in between."""
    live = difference.live
    lines: list[CardLine] = []

    def add(topic: str, source: Source, *texts: str) -> None:
        lines.extend(CardLine(topic=topic, text=text, source=source) for text in texts if text)

    add("intent", "claimed" if intent_from in ("given", "git") and not own_words else "observed", intent)
    add("files", "derived", summarize_files(difference.files, difference.analysis))
    add("meaning", "derived", *summarize_findings(difference.analysis))
    add("processes", "observed", *summarize_processes(live), *summarize_moves(live))
    add("shell", "observed", *summarize_shell(live))
    add("network", "observed", describe_contacts(difference.contacts, amounts=True))
    for effect in outside:
        add("outside", effect_source(effect), describe_effect(effect))
    done = _tasks(tasks)
    add("tasks", "claimed", *done)
    ran = summarize_outcomes(commands, intent if intent_from == "command" else "")
    add("commands", "observed", *ran)
    changed = summarize(difference, outside, beside=bool(ran))
    if changed == _NOTHING:
        changed = "" if ran or done else _nothing(difference)
    return Card(
        intent=intent,
        intent_from=intent_from,
        summary=" · ".join(filter(None, (*ran, changed, *done))),
        lines=tuple(lines),
        difference=difference,
        coverage=tuple(coverage),
        gaps=difference.gaps,
        redacted=difference.redacted,
        commands=tuple(commands),
    )
