"""Cards: what a point changed and why it was taken, written after it exists.

A card is best effort: it may not fail, delay or damage a checkpoint. It is computed in the background; what
could not be found out is in its gaps, and it can be computed again at any time, because everything it is
derived from is in the point.
"""

from __future__ import annotations

import logging

import msgspec

from waypoint.agent import tasks
from waypoint.api.difference import Card, Changes, CommandOutcome, Difference, LiveDifference
from waypoint.api.findings import Analysis, RepositoryChange
from waypoint.core.background import Background
from waypoint.core.comparison import BASE, Comparison
from waypoint.core.registry import Registry
from waypoint.history.redaction import MASK
from waypoint.kernel import locks
from waypoint.model import Checkpoint, Effect, IntentFrom, from_json
from waypoint.store.ledger import Ledger
from waypoint.text.cards import write_card
from waypoint.text.commands import outcomes
from waypoint.text.effects import known_effects

log = logging.getLogger("waypoint")


class Cards:
    """The cards of all points of one home."""

    def __init__(
        self, registry: Registry, comparison: Comparison, ledger: Ledger, background: Background
    ) -> None:
        self._registry, self._store, self._comparison = registry, registry.store, comparison
        self._ledger, self._background = ledger, background
        self._written = locks.condition("cards")

    def write_missing(self) -> None:
        """The cards that an earlier daemon did not come to."""
        for checkpoint_id in self._store.points.without_card():
            self.write_when_idle(checkpoint_id)

    def write_when_idle(self, checkpoint_id: str) -> None:
        self._background.run_when_idle(lambda: self.write(checkpoint_id))

    def write(self, checkpoint_id: str) -> None:
        """Computes a card and stores it, also when there is one already."""
        point = self._store.points.find(checkpoint_id)
        if point is None:
            return
        card = self._compute(point)
        if card is None:
            return
        self._store.points.set_card(point.id, msgspec.json.encode(card), card.summary)
        if (card.intent, card.intent_from) != (point.intent, point.intent_from):
            self._store.points.set_intent(point.id, card.intent, card.intent_from)
        with self._written:
            self._written.notify_all()

    def _compute(self, point: Checkpoint) -> Card | None:
        """From the point itself and its parent (or the base). None when the point is removed meanwhile."""
        row = self._store.sessions.find(point.session)
        if row is None:
            return None
        coverage = self._comparison.coverage(row)
        parent = self._store.points.find(point.parent) if point.parent else None
        try:
            with self._comparison.moment(row, parent.id if parent else BASE) as before:
                difference = self._comparison.difference(before, self._comparison.past(point))
        except Exception as error:
            if self._store.points.find(point.id) is None:
                return None
            log.exception("the card of %s", point.id)
            difference = Difference(
                files=Changes(),
                analysis=Analysis(),
                live=LiveDifference(),
                gaps=(f"nothing of what changed is told ({error})",),
            )
        intent, source = _intent(point, difference)
        tasks_before = tasks.load(self._store.points.tasks(point.parent)) if point.parent else ()
        card = write_card(
            intent,
            source,
            difference,
            tuple(dict.fromkeys((*coverage, *point.coverage))),
            own_words=point.kind in ("safety", "park"),
            tasks=tasks.differences(tasks_before, tasks.load(self._store.points.tasks(point.id))),
            outside=self.effects(point, parent),
            commands=self._commands(point, parent),
        )
        # What was taken out of the intent was taken out before it was stored.
        return msgspec.structs.replace(card, redacted=card.redacted + intent.count(MASK))

    def _commands(self, point: Checkpoint, parent: Checkpoint | None) -> tuple[CommandOutcome, ...]:
        """How the commands ended that ran between a point and the one before it."""
        after = parent.position if parent else None
        return outcomes(self._store.events.trace(point.position, kinds=("command",), after=after))

    def effects(self, point: Checkpoint, parent: Checkpoint | None) -> list[Effect]:
        """What was done outside between a point and the one before it."""
        return known_effects(self._ledger.between(parent.position if parent else None, point.position))

    def card(self, point: Checkpoint, *, wait: float = 10.0) -> Card | None:
        """The card of a point, if it is there or comes within `wait` seconds."""
        with self._written:
            self._written.wait_for(lambda: self._store.points.card(point.id) is not None, wait)
        text = self._store.points.card(point.id)
        return from_json(text, Card) if text else None


def _intent(point: Checkpoint, difference: Difference) -> tuple[str, IntentFrom]:
    """Without one of its own, a point has the subject of the first commit that it brought."""
    if point.intent:
        return point.intent, point.intent_from
    for finding in difference.analysis.findings:
        if isinstance(finding, RepositoryChange) and finding.commits:
            return finding.commits[0].subject, "git"
    return "", "none"
