"""A whole search in one call: several trials at once, until nothing is left to be tried."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from waypoint import errors
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.session import Session
from waypoint.explore import render
from waypoint.explore.budget import Budget
from waypoint.explore.candidates import Propose
from waypoint.explore.forks import NoRoom
from waypoint.explore.result import Result
from waypoint.explore.scores import Evaluate, NoScore
from waypoint.explore.search import DEFAULT_TIMEOUT, RUNNERS_UP, Match, Search, Trial
from waypoint.explore.strategies import Strategy
from waypoint.explore.tree import Outcome, Tree

_TICK_SECONDS = 0.5
_GRACE_SECONDS = 3.0
"""How long a function may go on after its fork was ended, before it is not waited for any more."""
_ROOM_SECONDS = 10.0
"""How long after the last trial a search waits for room for the next one."""
_MOST_RETRIES = 3
"""How often a trial is done again that a daemon was lost under."""


@dataclass(frozen=True)
class Progress:
    """How far a search is. Printed, it is one line."""

    tree: Tree
    budget: Budget
    running: int

    def __str__(self) -> str:
        return render.progress(self.tree, self.budget, self.running)


class _Done(NamedTuple):
    """A trial or match that has ended, with what came of it."""

    trial: Trial | Match
    outcome: Outcome | float | Exception


def explore(
    point: Checkpoint | Session | str,
    propose: Propose,
    evaluate: Evaluate = None,
    *,
    strategy: str | Strategy = "best-of-n",
    budget: Budget | None = None,
    goal: float | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    runners_up: int = RUNNERS_UP,
    name: str | None = None,
    journal: str | Path | None = None,
    merge: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    home: str | Path | None = None,
) -> Result:
    """Searches from a point: tries what `propose` gives in live forks, scores it with `evaluate`, and goes on
    as the strategy says until the budget is used up. The arguments are those of `Search`. A search of the
    same name that was killed goes on where it was; one that is over is returned as it is.

        >>> import waypoint
        >>> from waypoint.explore import explore
        >>> with waypoint.session(temporary=True) as s:
        ...     _ = s.run("cd /srv && echo 1 > number")
        ...     found = explore(s, ["echo 2 > number", "echo 5 > number", "false"], "cat number >&3")
        ...     _ = found.restore(s)
        ...     found.winner.score, s.run("cat number").output, [node.status for node in found.nodes]
        (5.0, '5\\n', ['done', 'done', 'failed'])
    """
    search = Search(
        point,
        propose,
        evaluate,
        strategy=strategy,
        budget=budget,
        goal=goal,
        timeout=timeout,
        runners_up=runners_up,
        name=name,
        journal=journal,
        merge=merge,
        home=home,
    )
    with search:
        return _Runner(search, timeout, on_progress).run()


class _Runner:
    """The trials of one search, side by side."""

    def __init__(
        self, search: Search, timeout: float, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._search, self._timeout, self._on_progress = search, timeout, on_progress
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._running: dict[int | str, tuple[Trial | Match, float | None]] = {}
        """And since when the fork of each is known to have ended."""
        self._retries: dict[int | str, int] = {}
        self._last_end: float | None = None
        self._refused: str | None = None
        """Why the machine had no room for the last fork."""

    def run(self) -> Result:
        search = self._search
        reason = search.over
        try:
            while reason is None:
                self._fill()
                if not self._running:
                    reason = search.over
                    break
                self._show()
                self._take()
                reason = search.over
        finally:
            if self._running:
                self._leave()
        if reason is not None:
            search.end(reason)
            search.settle()
        result = search.result()
        result.stopped = reason or self._refused or "nothing more can be tried"
        self._show()
        return result

    def _fill(self) -> None:
        """Begins as many trials as the budget has room for."""
        free = self._search.budget.workers - len(self._running)
        if self._refused and self._running:
            return  # until one of them has ended
        self._refused = None
        for trial in self._search.ask(free) if free > 0 else ():
            self._running[trial.id] = (trial, None)
            thread = threading.Thread(target=self._do, args=(trial,), name=f"trial {trial.id}", daemon=True)
            thread.start()

    def _do(self, trial: Trial | Match) -> None:
        try:
            outcome: Outcome | float | Exception = (
                self._search.play(trial) if isinstance(trial, Match) else self._search.attempt(trial)
            )
        except Exception as error:  # noqa: BLE001 - the thread that searches decides
            outcome = error
        self._done.put(_Done(trial, outcome))

    def _take(self) -> None:
        """Tells the search of the next trial that ends."""
        try:
            done = self._done.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            self._give_up_on_hung()
            return
        trial, outcome = done
        if trial.id not in self._running:
            return  # it was not waited for any more
        del self._running[trial.id]
        match outcome:
            case NoRoom():
                self._refused = outcome.message
                self._search.give_back(trial)
                if not self._running:
                    self._wait_for_room(outcome)
            case errors.DaemonUnreachable():
                self._retries[trial.id] = self._retries.get(trial.id, 0) + 1
                if self._retries[trial.id] > _MOST_RETRIES:
                    raise outcome
                self._search.give_back(trial)
                self._search.settle()  # its fork may still be there
            case NoScore() if isinstance(trial, Match):
                self._search.tell(trial, 0.0)
            case Exception():
                raise outcome
            case _:
                self._last_end = time.monotonic()
                self._search.tell(trial, outcome)
                self._search.settle()

    def _wait_for_room(self, refusal: NoRoom) -> None:
        """What a trial took comes back a moment after its end. NoRoom when that is not so."""
        if self._last_end is None or time.monotonic() - self._last_end > _ROOM_SECONDS:
            raise refusal
        time.sleep(_TICK_SECONDS)

    def _give_up_on_hung(self) -> None:
        """A function that does not return although its fork is gone cannot be ended."""
        now = time.monotonic()
        for number, (trial, ended) in list(self._running.items()):
            if isinstance(trial, Match) or not self._search.forks.has_ended(trial.id):
                continue
            if ended is None:
                self._running[number] = (trial, now)
            elif now - ended > _GRACE_SECONDS:
                del self._running[number]
                self._search.forks.abandon(trial.id)
                why = f"it took longer than {self._timeout:g} s, and does not return"
                self._search.tell(trial, Outcome(status="timeout", why=why))
                self._search.settle()

    def _leave(self) -> None:
        """Ends what is under way: it is not needed any more, or the search is interrupted."""
        for trial, _ in self._running.values():
            if isinstance(trial, Trial):
                self._search.forks.cancel(trial.id)
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._running and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                trial = self._done.get(timeout=left).trial
                if self._running.pop(trial.id, None):
                    self._search.give_back(trial)
        for trial, _ in self._running.values():  # functions that do not return
            self._search.give_back(trial)
            self._search.forks.abandon(trial.id) if isinstance(trial, Trial) else None
        self._running.clear()
        self._search.settle()

    def _show(self) -> None:
        if self._on_progress:
            tree = self._search.tree
            self._on_progress(Progress(tree, self._search.budget, len(self._running)))
