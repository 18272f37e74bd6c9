"""Commands that wait for the decision of a user before they run.

An approval belongs to one request: the thread of that request waits with the command, then runs it or not. So
an approval cannot be used for another command, another session or a second time. In every other case the
command is refused: no decision in time, the client disconnects, the session is restored, the daemon ends.

A thread waits with one `poll` on two descriptors, for the decision and for the client's connection. Neither a
decision nor a disconnect can be missed, and nothing is checked periodically.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.errors import NotFound, UsageError
from waypoint.kernel import locks
from waypoint.model import Actor, Approval, ApprovalState, EffectClass
from waypoint.store.database import iso
from waypoint.store.ledger import Ledger


@dataclass
class _Waiting:
    approval: Approval
    owner: object
    """The present of the session in which the command would run. If it goes, the approval is refused."""
    require_free: Callable[[], None]
    """SessionBusy if the command could not run now."""
    decided: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC))
    """An event descriptor that becomes readable with the decision."""


class Approvals:
    """The commands that wait for a decision. The daemon has one of these."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = locks.lock("approvals")
        self._waiting: dict[str, _Waiting] = {}
        ledger.abandon()

    def ask(
        self,
        session_id: str,
        session: str,
        *,
        shown: str,
        digest: str,
        review: tuple[str, ...],
        class_: EffectClass,
        why: str,
        actor: Actor,
        expires_seconds: float,
        owner: object,
        requester: int | None,
        require_free: Callable[[], None],
        announce: Callable[[Approval], None],
        refused: str = "",
    ) -> Approval:
        """Waits for the decision and returns it. `shown`: the command without its secrets, which is stored;
        `review`: what the person reads, which is not; `requester`: the
        client's socket, whose end of file means that the client has disconnected. `refused`: why it is denied
        without a wait."""
        now = time.time()
        approval = Approval(
            id=secrets.token_hex(4),
            session=session,
            command=shown,
            digest=digest,
            class_=class_,
            why=why,
            actor=actor,
            created_at=iso(now),
            expires_at=iso(now + expires_seconds),
            review=review,
        )
        if refused:
            self._ledger.ask(approval, session_id, now, now)
            self._ledger.decide(approval.id, "denied", refused)
            return self._ledger.approval(approval.id) or approval
        waiting = _Waiting(approval, owner, require_free)
        with self._lock:
            self._ledger.ask(approval, session_id, now, now + expires_seconds)
            self._waiting[approval.id] = waiting
        try:
            announce(approval)
            self._wait(waiting, requester, expires_seconds)
        finally:
            # Has no effect if it is decided. If the wait ended in another way, it can never be approved.
            self._ledger.decide(approval.id, "gone", "the command no longer waits")
            with self._lock:
                del self._waiting[approval.id]
                os.close(waiting.decided)
        return self._ledger.approval(approval.id) or approval

    def _wait(self, waiting: _Waiting, requester: int | None, seconds: float) -> None:
        poll = select.poll()
        poll.register(waiting.decided, select.POLLIN)
        if requester is not None:
            poll.register(requester, select.POLLRDHUP)
        ready = poll.poll(max(0.0, seconds) * 1000)
        if not ready:
            self._ledger.decide(waiting.approval.id, "expired", "no decision in time")
        elif all(fd == requester for fd, _ in ready):
            self._ledger.decide(waiting.approval.id, "gone", "the client has disconnected")

    def decide(self, approval_id: str, *, granted: bool, note: str = "") -> Approval:
        """The decision of a user. It counts once, and only while the command waits. SessionBusy, and the
        command waits on, if it could not run now."""
        approval = self._ledger.approval(approval_id)
        if approval is None:
            raise NotFound(
                f"no command waits for approval as {approval_id!r}",
                hint=Hint(Do("approvals"), " lists those that do"),
            )
        with self._lock:
            waiting = self._waiting.get(approval.id)
        if granted and waiting:
            waiting.require_free()
        if not self._finish(approval.id, "approved" if granted else "denied", note):
            state = (self._ledger.approval(approval.id) or approval).state
            raise UsageError(
                f"{approval.id} is {state} already", hint="an approval is for one run of one command"
            )
        return self._ledger.approval(approval.id) or approval

    def approvals(self, *, waiting: bool = True, session_id: str | None = None) -> list[Approval]:
        """Oldest first. Those that wait have their review."""
        with self._lock:
            reviews = {number: entry.approval.review for number, entry in self._waiting.items()}
        return [
            msgspec.structs.replace(approval, review=reviews.get(approval.id, ()))
            if approval.state == "waiting"
            else approval
            for approval in self._ledger.approvals(waiting=waiting, session_id=session_id)
        ]

    def withdraw(self, approval_id: str, note: str) -> Approval | None:
        """An approval that was given and is not used: what was approved means something else now."""
        self._ledger.withdraw(approval_id, note)
        return self._ledger.approval(approval_id)

    def drop(self, owner: object) -> None:
        """The present of a session is gone: refuses the commands that wait in it."""
        with self._lock:
            ids = [waiting.approval.id for waiting in self._waiting.values() if waiting.owner is owner]
        for approval_id in ids:
            self._finish(approval_id, "gone", "the session was restored or ended while it waited")

    def _finish(self, approval_id: str, state: ApprovalState, note: str) -> bool:
        with self._lock:
            waiting = self._waiting.get(approval_id)
            if waiting is None or not self._ledger.decide(approval_id, state, note):
                return False
            with contextlib.suppress(OSError):
                os.eventfd_write(waiting.decided, 1)
            return True
