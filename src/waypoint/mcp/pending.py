"""A command on its way: it may have to wait for a person's word, longer than a call of a tool should take.

The command runs in a thread of its own. Whoever waits for it is told when it is done, or when somebody has
to agree first; then the word can be brought by the same call, by a later one, or by a person at a terminal.
Nothing here can grant anything by itself: without a word the daemon lets the approval expire, and nothing
has run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Literal

from waypoint import model
from waypoint.client.connection import OnApproval
from waypoint.client.result import Result
from waypoint.errors import WaypointError

State = Literal["done", "asking"]


class _Abandoned(Exception):
    """Raised where a word is waited for, when nobody wants the command any more."""


class Held:
    """One command."""

    def __init__(self, run: Callable[[OnApproval], Result]) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._result: Result | None = None
        self._error: Exception | None = None
        self._asked = False
        """Whether a word of ours is waited for."""
        self._word: bool | None = None
        self._abandoned = False
        self.approval: model.Approval | None = None
        self.thread = threading.Thread(target=self._work, name="held", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            result, error = self._run(self._on_approval), None
        except Exception as failed:  # noqa: BLE001 - handed to whoever waits
            result, error = None, failed
        with self._changed:
            self._result, self._error = result, error
            self._asked = False
            self._changed.notify_all()

    def _on_approval(self, approval: model.Approval) -> bool | None:
        with self._changed:
            self.approval, self._asked = approval, True
            self._changed.notify_all()
            left = datetime.fromisoformat(approval.expires_at) - datetime.now().astimezone()
            if not self._changed.wait_for(lambda: not self._asked, max(0.0, left.total_seconds())):
                self._asked, self._word = False, None  # too late for any word
            if self._abandoned:
                raise _Abandoned
            return self._word

    def wait(self, seconds: float | None = None, *, word: bool = True) -> State | None:
        """Until it is done, or (`word`) until a word is wanted; None when neither came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or (word and self._asked), seconds)
            return "done" if self._done else "asking" if word and self._asked else None

    @property
    def _done(self) -> bool:
        return self._result is not None or self._error is not None

    def answer(self, word: bool | None) -> None:  # noqa: FBT001 - what a person said is the one thing it takes
        """A person's word; None leaves it to others: it goes on waiting for them."""
        with self._changed:
            self._word, self._asked = word, False
            self._changed.notify_all()

    def abandon(self) -> None:
        """Nobody wants it any more. If it waits for a word it will not run."""
        with self._changed:
            self._abandoned, self._asked = True, False
            self._changed.notify_all()

    def result(self) -> Result:
        """What came of it, once it is done."""
        if self._error is not None:
            if isinstance(self._error, _Abandoned):
                raise WaypointError("nobody waited for it any more; nothing has run")
            raise self._error
        assert self._result is not None
        return self._result
