"""A command that may have to wait for the approval of a user, longer than a tool call should take.

The command runs in a thread of its own. A tool call waits until it is done or needs a decision. The decision
can come with the same call, with a later one, or from a user at a terminal. Nothing here approves by itself:
without a decision the daemon lets the approval expire, and the command does not run.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Literal

from waypoint import model
from waypoint.client.connection import OnApproval, Transport
from waypoint.client.result import Result
from waypoint.errors import WaypointError

State = Literal["done", "undecided"]


class _Abandoned(Exception):
    """Raised in the waiting thread when no call waits for the command any more."""


class PendingCommand:
    """One command, from its start to its end."""

    def __init__(self, transport: Transport, run: Callable[[OnApproval], Result]) -> None:
        """`run` runs the command, through this transport."""
        self._transport, self._run = transport, run
        self._changed = threading.Condition()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        """Becomes readable with `decide` and `abandon`."""
        self._result: Result | None = None
        self._error: Exception | None = None
        self._undecided = False
        """Whether the thread waits for `decide`."""
        self._approved: bool | None = None
        self._abandoned = False
        self.approval: model.Approval | None = None
        self.thread = threading.Thread(target=self._work, name="pending", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            result, error = self._run(self._on_approval), None
        except Exception as raised:  # noqa: BLE001 - raised again by result()
            result, error = None, raised
        with self._changed:
            self._result, self._error = result, error
            self._undecided = False
            os.close(self._wakeup)
            self._changed.notify_all()

    def _on_approval(self, approval: model.Approval) -> bool | None:
        with self._changed:
            self.approval, self._undecided = approval, True
            self._changed.notify_all()
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if (
            elsewhere := self._transport.asked_on
        ):  # the daemon says what others have decided, or that it expired
            poll.register(elsewhere, select.POLLIN)
        poll.poll()
        with self._changed:
            self._undecided = False
            self._changed.notify_all()
            if self._abandoned:
                raise _Abandoned
            return self._approved

    def wait(self, seconds: float | None = None, *, or_undecided: bool = True) -> State | None:
        """Waits until it is done, or (`or_undecided`) until it needs a decision. None: neither in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or (or_undecided and self._undecided), seconds)
            return "done" if self._done else "undecided" if or_undecided and self._undecided else None

    def wait_decided(self) -> None:
        """Waits until it needs no decision any more: it was decided, here or elsewhere, or it has expired."""
        with self._changed:
            self._changed.wait_for(lambda: not self._undecided)

    @property
    def _done(self) -> bool:
        return self._result is not None or self._error is not None

    def decide(self, approved: bool | None) -> None:  # noqa: FBT001 - the decision is its one argument
        """The decision of the user. None: it is left to a user at a terminal, and the command waits on."""
        with self._changed:
            self._approved = approved
            self._end_question()

    def abandon(self) -> None:
        """No call waits for it any more. If it waits for a decision it will not run."""
        with self._changed:
            self._abandoned = True
            self._end_question()

    def _end_question(self) -> None:
        self._undecided = False
        if not self._done:
            os.eventfd_write(self._wakeup, 1)
        self._changed.notify_all()

    def result(self) -> Result:
        """The result, once it is done."""
        if self._error is not None:
            if isinstance(self._error, _Abandoned):
                raise WaypointError("the call was abandoned; the command has not run")
            raise self._error
        assert self._result is not None
        return self._result
