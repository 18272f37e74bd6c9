"""All of an answer: its data, then its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.truth.judge.files import judge_files
from tests.truth.judge.findings import judge_findings
from tests.truth.judge.ledger import Ledger
from tests.truth.judge.live import judge_live, judge_nested
from tests.truth.judge.plans import judge_plan_words
from tests.truth.judge.words import Words
from tests.truth.judge.work import judge_planned_work, judge_work_of_card, work_phrases
from tests.truth.oracle.look import Look

Answer = Mapping[str, Any]


def judge_difference(ledger: Ledger, old: Look, new: Look, difference: Answer) -> None:
    """What changed, as data."""
    ledger.known(
        "files", difference, ("files", "analysis", "live", "gaps", "redacted", "contacts", "not_compared")
    )
    judge_files(ledger, old, new, difference["files"]["changes"])
    judge_findings(ledger, old, new, difference["analysis"])
    judge_live(ledger, old, new, difference["live"])
    judge_nested(ledger, new, difference["gaps"])
    before = {(process.pid, process.command) for process in old.processes.values()}
    went_on = before & {(process.pid, process.command) for process in new.processes.values()}
    if went_on and not any("memory of" in phrase for phrase in difference["not_compared"]):
        ledger.missing("processes", "nothing is said of the memory of programs that went on")


def judge_diff(ledger: Ledger, old: Look, new: Look, answer: Answer) -> None:
    """The difference of two points."""
    judge_difference(ledger, old, new, answer["difference"])
    words = Words(ledger, answer["difference"])
    words.judge_summary(answer["summary"])
    words.judge_sections(answer["sections"])


def judge_card(ledger: Ledger, old: Look, new: Look, answer: Answer) -> None:
    """The card of a point."""
    if answer["card"] is None:
        ledger.missing("files", "there is no card")
        return
    card = answer["card"]
    judge_difference(ledger, old, new, card["difference"])
    words = Words(ledger, card["difference"])
    words.judge_summary(card["summary"], card["commands"], work_phrases(old.work, new.work))
    words.judge_sections(answer["sections"])
    judge_work_of_card(ledger, old.work, new.work, card, answer["sections"])


def judge_status(ledger: Ledger, old: Look, new: Look, answer: Answer) -> None:
    """Where a session stands."""
    if answer["difference"] is None:
        ledger.missing("files", f"no difference: {answer['missing']}")
        return
    judge_difference(ledger, old, new, answer["difference"])
    words = Words(ledger, answer["difference"])
    words.judge_summary(answer["summary"])
    words.judge_sections(answer["sections"])


def judge_plan(ledger: Ledger, old: Look, new: Look, answer: Answer, expected: Mapping[str, str]) -> None:
    """What a restore would do: the difference from its target to now. `expected`: what else it has to say."""
    judge_difference(ledger, old, new, answer["plan"]["lost"])
    judge_plan_words(ledger, old, answer["plan"], answer["words"], expected)
    judge_planned_work(ledger, old.work, new.work, answer["plan"], answer["words"])
