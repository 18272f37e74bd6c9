"""Asking before a command runs, and waiting for somebody's word.

An approval is bound to the one request that asked: that thread waits with that command in its hands, and
runs it or does not. So there is nothing that could be used for another command, another session or a second
time. It fails closed: who is not answered in time, who goes away, whose session moves, whose daemon ends, is
refused.

Waiting is one `poll` on two descriptors, the decision and the requester's connection: nothing looks around in
between, and neither an answer nor a hang-up is missed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from waypoint.errors import NotFound, UsageError
from waypoint.model import Actor, Approval, ApprovalState, EffectClass
from waypoint.store.database import iso
from waypoint.store.ledger import Ledger


@dataclass
class _Waiting:
    approval: Approval
    owner: object
    """What has to stay for it to mean anything: the present incarnation of the session."""
    told: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC))


class Approvals:
    """What waits for somebody's word. One of these lives in the daemon."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        ledger.abandon()

    def ask(
        self,
        session_id: str,
        session: str,
        command: str,
        *,
        shown: str,
        class_: EffectClass,
        why: str,
        actor: Actor,
        expires_seconds: float,
        owner: object,
        requester: int | None,
        announce: Callable[[Approval], None],
    ) -> Approval:
        """Returns when it is decided, one way or the other. `shown`: the command without its secrets;
        `requester`: a socket whose end of file means that nobody wants the answer any more."""
        now = time.time()
        approval = Approval(
            id=secrets.token_hex(4),
            session=session,
            command=shown,
            digest=hashlib.sha256(command.encode(errors="surrogatepass")).hexdigest(),
            class_=class_,
            why=why,
            actor=actor,
            created_at=iso(now),
            expires_at=iso(now + expires_seconds),
        )
        waiting = _Waiting(approval, owner)
        with self._lock:
            self._ledger.ask(approval, session_id, now, now + expires_seconds)
            self._waiting[approval.id] = waiting
        try:
            announce(approval)
            self._wait(waiting, requester, expires_seconds)
        finally:
            # Whatever happened in between, what is not approved by now never will be.
            self._ledger.decide(approval.id, "gone", "nobody waits for it any more")
            with self._lock:
                del self._waiting[approval.id]
                os.close(waiting.told)
        return self._ledger.approval(approval.id) or approval

    def _wait(self, waiting: _Waiting, requester: int | None, seconds: float) -> None:
        ready = select.poll()
        ready.register(waiting.told, select.POLLIN)
        if requester is not None:
            ready.register(requester, select.POLLRDHUP)
        found = ready.poll(max(0.0, seconds) * 1000)
        if not found:
            self._ledger.decide(waiting.approval.id, "expired", "nobody answered in time")
        elif all(fd == requester for fd, _ in found):
            self._ledger.decide(waiting.approval.id, "gone", "whoever asked has gone")

    def decide(self, approval_id: str, *, granted: bool, note: str = "") -> Approval:
        """Somebody's word. It counts once, and only while the command waits."""
        approval = self._ledger.approval(approval_id)
        if approval is None:
            raise NotFound(
                f"nothing waits for approval as {approval_id!r}", hint="`waypoint approvals` lists what does"
            )
        if not self._settle(approval.id, "approved" if granted else "denied", note):
            found = self._ledger.approval(approval.id) or approval
            raise UsageError(
                f"{approval.id} is {found.state} already", hint="an approval is for one run of one command"
            )
        return self._ledger.approval(approval.id) or approval

    def drop(self, owner: object) -> None:
        """The session's present is gone: what was asked in it no longer makes sense."""
        with self._lock:
            mine = [one.approval.id for one in self._waiting.values() if one.owner is owner]
        for one in mine:
            self._settle(one, "gone", "the session was restored or ended while it waited")

    def _settle(self, approval_id: str, state: ApprovalState, note: str) -> bool:
        with self._lock:
            waiting = self._waiting.get(approval_id)
            if waiting is None or not self._ledger.decide(approval_id, state, note):
                return False
            with contextlib.suppress(OSError):
                os.eventfd_write(waiting.told, 1)
            return True
