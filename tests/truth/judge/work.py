"""Tasks and what was done outside, against what the story itself has done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.work import Outside, Work

Data = Mapping[str, Any]
KIND = "work"
_MOST_EFFECTS = 6
_MOST_TITLES = 3
_ENDED = {"done": "completed", "failed": "failed", "skipped": "skipped"}


def judge_planned_work(ledger: Ledger, then: Work, now: Work, plan: Data, words: Data) -> None:
    """What a plan says of tasks, and of effects outside that it does not undo."""
    expected = []
    for index in range(max(len(now.tasks), len(then.tasks))):
        task_now, task_then = (
            tasks[index] if index < len(tasks) else None for tasks in (now.tasks, then.tasks)
        )
        if task_now != task_then:
            before, after = task_now and task_now[1], task_then and task_then[1]
            title = (task_now or task_then or ("",))[0]
            expected.append({"id": str(index + 1), "title": title, "before": before, "after": after})
    ledger.count(KIND, 4 + len(expected))
    ledger.equal(KIND, "tasks", list(plan["tasks"]), expected)
    lines: dict[str, list[str]] = {}
    for change in expected:
        states = [(change[side] or "not planned").replace("_", " ") for side in ("before", "after")]
        lines.setdefault(" → ".join(dict.fromkeys(states)), []).append(f'"{change["title"]}"')
    shown = [f"{len(titles)} {way}: {_some(titles)}" for way, titles in lines.items()]
    ledger.equal(KIND, "tasks in words", list(words["tasks"]), shown)
    _judge_effects(ledger, plan["not_undone"], [one for one in now.ever if one not in then.done])
    # The sessions of the stories have no network: what could not be looked into has done nothing outside.
    for field in ("unseen", "contacts"):
        ledger.equal(KIND, field, list(plan[field]), [])


def judge_work_of_card(
    ledger: Ledger, before: Work, after: Work, card: Data, sections: Sequence[Data]
) -> None:
    """What a card says of tasks and effects since the point before, in its lines and its sections."""
    effects = _since(before, after)
    by_topic: dict[str, list[str]] = {}
    for line in card["lines"]:
        by_topic.setdefault(line["topic"], []).append(line["text"])
    _judge_effects(ledger, by_topic.get("outside", []), effects)
    ledger.count(KIND)
    ledger.equal(KIND, "tasks of the card", by_topic.get("tasks", []), _ended(before, after))
    told = [
        (section["source"], line)
        for section in sections
        if section["name"] == "outside"
        for line in section["lines"]
    ]
    _judge_effects(ledger, [line["text"] for _, line in told], sorted(effects, key=lambda one: one.claimed))
    for (source, line), effect in zip(told, sorted(effects, key=lambda one: one.claimed), strict=False):
        real = ("claimed" if effect.claimed else "judged", "→", effect.effect_class)
        ledger.equal(KIND, effect.words, (source, line["sign"], line["detail"]), real)


def work_phrases(before: Work, after: Work) -> list[str]:
    """What the line of a log has to say of tasks and effects."""
    effects = _since(before, after)
    more = f" and {len(effects) - 1} more" if len(effects) > 1 else ""
    return [*(f"outside: {one.words}{more}" for one in effects[-1:]), *_ended(before, after)]


def _since(before: Work, after: Work) -> list[Outside]:
    return [one for one in after.done if one not in before.done]


def _ended(before: Work, after: Work) -> list[str]:
    phrases = []
    for verb, state in _ENDED.items():
        titles = [task[0] for task in after.tasks if task[1] == state and task not in before.tasks]
        if titles:
            phrases.append(f"task{'s' * (len(titles) > 1)} {verb}: {_some(titles)}")
    return phrases


def _judge_effects(ledger: Ledger, told: Sequence[str], real: Sequence[Outside]) -> None:
    if len(real) > _MOST_EFFECTS and told and told[0] == f"{len(real) - _MOST_EFFECTS} more before":
        told, real = told[1:], real[-_MOST_EFFECTS:]
    ledger.count(KIND, len(told) + 1)
    ledger.equal(KIND, "number of effects outside", len(told), len(real))
    for sentence, effect in zip(told, real, strict=False):
        match = re.fullmatch(r"(.*) \((\d\d:\d\d)(, claimed)?\)", sentence)
        if match is None:
            ledger.wrong(KIND, f"cannot be read: {sentence!r}")
            continue
        ledger.equal(KIND, "an effect", (match[1], bool(match[3])), (effect.words, effect.claimed))
        if match[2] not in effect.clock:
            ledger.wrong(KIND, f"{sentence!r}: it was at {sorted(effect.clock)}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_TITLES} more" if len(names) > _MOST_TITLES else ""
    return f"{', '.join(names[:_MOST_TITLES])}{more}"
