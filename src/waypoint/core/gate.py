"""What every command passes before it runs in a session: judged, approved if needed, and written down.

Reading and judging a command takes microseconds, and an ordinary command costs nothing more. A command that
acts on the outside is in the ledger before it runs, with its outcome afterwards. A command that needs
approval waits for it here.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from waypoint.api.hints import Arg, Do, Hint
from waypoint.core.background import Background
from waypoint.core.live import Live
from waypoint.core.meaning import compare, look
from waypoint.core.observe import look_at_shell
from waypoint.core.pushes import pushes_inside
from waypoint.core.registry import Registry
from waypoint.errors import NotApproved, PolicyBroken, PolicyDenied, SessionBusy, UsageError
from waypoint.history.retention import format_duration
from waypoint.kernel import atomic, locks
from waypoint.model import (
    Actor,
    Approval,
    ApprovalMode,
    Checkpoint,
    Effect,
    EffectClass,
    EffectState,
    Judgement,
)
from waypoint.policy.approvals import Approvals
from waypoint.policy.remotes import environment_is_plain, push_folders
from waypoint.policy.rules import Policy, Rules, built_in, check
from waypoint.policy.wrappers import Inspection, inspect, inspect_words
from waypoint.store.ledger import Ledger, NewEffect
from waypoint.store.sessions import SessionRow
from waypoint.terminal.recording import TerminalEvent
from waypoint.text import effects as telling
from waypoint.text.review import LONGEST, Command, digest, review

log = logging.getLogger("waypoint")

FILE = "policy.toml"
_MOST_SHOWN = 16_000


@dataclass
class Asker:
    """The caller that wants a command to run, and how it is informed that the command has to wait."""

    actor: Actor = "person"
    socket: int | None = None
    announce: Callable[[Approval], None] = lambda _: None
    on_approval: ApprovalMode | None = None
    """What happens if the command needs approval; None: see `_refused`."""
    patience_seconds: float | None = None
    """How long it waits for approval, at most as long as the policy says."""
    require_free: Callable[[Live], None] = lambda _: None
    """SessionBusy if the command could not run now: then it asks for no approval and uses none up."""


class Asked(NamedTuple):
    """A command that a person is to decide about."""

    command: str | Sequence[str]
    line: str
    shown: str
    """The line without its secrets, as it is stored."""
    judgement: Judgement
    actor: Actor = "agent"
    warnings: Sequence[str] = ()
    stdin: bytes | None = None
    user: str | None = None
    cwd: str | None = None

    def inspection(self) -> Inspection:
        if isinstance(self.command, str):
            return inspect(self.command, _text(self.stdin))
        return inspect_words(self.command)


@dataclass
class Passed:
    """A command that may run. `ended` records its outcome; a block left without it was interrupted."""

    warnings: tuple[str, ...] = ()
    effects: list[tuple[int, NewEffect]] = field(default_factory=list)
    state: EffectState = "interrupted"
    exit_code: int | None = None
    alone: bool = True
    """Whether the line is one command, so that its exit code is that of the effect."""
    require_same: Callable[[], None] = lambda: None
    """To be called when it is the command's turn: NotApproved if it means something else now."""

    def ended(self, exit_code: int | None, *, timed_out: bool = False) -> None:
        self.exit_code = exit_code
        if exit_code is None or timed_out:
            self.state = "interrupted"
        else:
            self.state = "failed" if exit_code and self.alone else "done"


class Gate:
    """The policies, the ledger and the approvals of one home."""

    def __init__(self, registry: Registry, ledger: Ledger, background: Background) -> None:
        self._registry, self._background, self.ledger = registry, background, ledger
        self.approvals = Approvals(ledger)
        self._file = registry.home.path / FILE
        self._lock = locks.lock("gate")
        self._policies: dict[tuple[object, str | None], Policy] = {}
        background.run(built_in)  # the first command does not wait for the rules to be read

    def close_interrupted(self) -> None:
        """The effects that were under way when an earlier daemon died: their outcome is not known, and they
        count as done."""
        left = self.ledger.unfinished()
        self.ledger.interrupt()
        by_number = {effect.id: effect for effect in self.ledger.effects()} if left else {}
        for session_id, number in left:
            if row := self._registry.store.sessions.find(session_id):
                effect = by_number[number]
                self._registry.record(row, "effect", _body(number, effect), actor=effect.actor)

    # ---- policies ----------------------------------------------------------------------------

    def home_text(self) -> str | None:
        """The rules for all sessions of this home, as they were written."""
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyBroken(
                f"{self._file} cannot be read: {error}", hint="until it can, no command runs"
            ) from error

    def policy(self, row: SessionRow) -> Policy:
        """What holds for a session. PolicyBroken when a file cannot be understood: then nothing may run."""
        try:
            status = os.stat(self._file)
            stamp: object = (status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            raise PolicyBroken(
                f"{self._file} cannot be read: {error}", hint="until it can, no command runs"
            ) from error
        key = (stamp, row.policy)
        policy = self._policies.get(key)
        if policy is None:
            own = [Rules(row.policy, f"the policy of {row.name}")] if row.policy else []
            text = self.home_text() if stamp else None
            shared = [Rules(text, str(self._file))] if text else []
            policy = Policy(*own, *shared)
            with self._lock:
                if len(self._policies) > 64:
                    self._policies.clear()
                self._policies[key] = policy
        return policy

    def set_policy(self, row: SessionRow | None, text: str | None) -> None:
        """Rules for a session, or for all of this home; None takes them away. Nothing changes when they
        cannot be understood."""
        if text is not None:
            check(text)
        if row is not None:
            self._registry.store.sessions.set_policy(row.id, text)
            return
        if text is None:
            self._file.unlink(missing_ok=True)
            return
        atomic.write(self._file, text, mode=0o600)

    def judge(
        self, row: SessionRow, command: str | Sequence[str], *, stdin: bytes | None = None
    ) -> Judgement:
        """What the policy of a session says about a command line, or about a program and its arguments."""
        cwd, shares = self._cwd(row), row.options.net == "host"
        policy = self.policy(row)
        local = self._local_remotes(row, command, cwd)
        if isinstance(command, str):
            return policy.judge(
                command, cwd=cwd, shares_network=shares, stdin=_text(stdin), local_remotes=local
            )
        return policy.judge_words(command, cwd=cwd, shares_network=shares, local_remotes=local)

    def _local_remotes(self, row: SessionRow, command: str | Sequence[str], cwd: str) -> frozenset[str]:
        """Of a command that pushes: which of git's remotes are repositories of the session."""
        live = self._registry.running(row.id)
        line = command if isinstance(command, str) else " ".join(command)
        if live is None or "git" not in line or "push" not in line:
            return frozenset()
        inspection = inspect(command) if isinstance(command, str) else inspect_words(command)
        folders = push_folders(inspection, cwd)
        if not folders:
            return frozenset()
        shell = look_at_shell(live.box, live.terminal)
        if not environment_is_plain(shell.exported) or {"git", "cd"} & {*shell.functions, *shell.aliases}:
            return frozenset()
        return pushes_inside(live.box, folders, [bind.box for bind in row.options.binds])

    def _cwd(self, row: SessionRow) -> str:
        live = self._registry.running(row.id)
        return live.terminal.shell.cwd if live and live.terminal.shell else ""

    # ---- passing -----------------------------------------------------------------------------

    @contextmanager
    def passing(
        self,
        row: SessionRow,
        command: str | Sequence[str],
        asker: Asker,
        *,
        stdin: bytes | None = None,
        user: str | None = None,
        cwd: str | None = None,
        shown: str | None = None,
    ) -> Iterator[Passed]:
        """Around a command: refused, held or let through before, written down before and after. `cwd`: of a
        program that is started in another folder than the shell's. `shown`: how it is told to people, if not
        as it is judged."""
        policy = self.policy(row)
        judgement = self.judge(row, command, stdin=stdin)
        if judgement.decision == "allow":
            yield Passed()
            return
        line = command if isinstance(command, str) else shlex.join(command)
        shown = self._clean(row, line if shown is None else shown)
        if judgement.decision == "deny":
            self._registry.record(row, "approval", _denial(judgement, shown), actor=asker.actor)
            raise PolicyDenied(
                f"the policy does not let this run: {self._clean(row, judgement.why, line) or shown}",
                hint=Hint(Do("classify", "command", session=row.name), " says how a command is judged"),
                **{"class": judgement.class_},
            )
        warnings = self._warnings(row, judgement)
        passed = Passed(warnings=warnings, alone=len(judgement.parts) == 1)
        approval = None
        if judgement.decision == "ask":
            asked = Asked(command, line, shown, judgement, asker.actor, warnings, stdin, user, cwd)
            approval, passed.require_same = self._ask(row, asked, asker)
        new = self._new(row, line, judgement, asker.actor, approval.id if approval else None)
        if new:
            numbers = self.ledger.add(row.id, row.name, new)
            passed.effects = list(zip(numbers, new, strict=True))
        try:
            yield passed
        except (SessionBusy, NotApproved):
            passed.state = "failed"  # nothing of it has run
            raise
        finally:
            unseen = bool(judgement.unseen) and policy.decisions["unknown"] != "allow"
            self._finish(
                row, passed, self._unseen(row, line, shown, judgement, asker.actor) if unseen else None
            )

    def check_trial(self, row: SessionRow, command: str) -> None:
        """A trial may run many times, in copies that are thrown away: it may not act on the outside."""
        judgement = self.judge(row, command)
        if judgement.decision in ("ask", "deny") or judgement.outside:
            raise PolicyDenied(
                f"a verification may not act on the outside: {self._clean(row, judgement.why, command)}",
                hint=Hint(
                    "run it with ",
                    Do("exec", "command", session=row.name),
                    ", where it can be approved and is written down",
                ),
                **{"class": judgement.class_},
            )

    def _ask(self, row: SessionRow, asked: Asked, asker: Asker) -> tuple[Approval, Callable[[], None]]:
        """The approval, and what is to be called when it is the command's turn."""
        shown, judgement = asked.shown, asked.judgement
        live, seconds = self._registry.live(row), self.policy(row).expires_seconds
        if asker.patience_seconds is not None:
            seconds = min(seconds, asker.patience_seconds)
        why = " · ".join((self._clean(row, judgement.why, asked.line), *asked.warnings))
        refused, meaning, inspection = _refused(asker, live), None, asked.inspection()
        review: tuple[str, ...] = ()
        if not refused:
            asker.require_free(live)
            meaning = look(live, inspection)
            review = self.review(row, asked, meaning.remarks())
            if (length := sum(map(len, review))) > LONGEST:
                refused = f"it is too long for a person to read: {length:,} characters with its reasons"

        def announce(approval: Approval) -> None:
            self._record_approval(row, approval)
            live.terminal.notify({"approval": approval})
            asker.announce(approval)

        approval = self.approvals.ask(
            row.id,
            row.name,
            shown=shown,
            digest=digest(asked.line, asked.stdin),
            review=review,
            class_=judgement.class_,
            why=why,
            actor=asker.actor,
            expires_seconds=seconds,
            owner=live,
            requester=asker.socket,
            require_free=lambda: asker.require_free(live),
            announce=announce,
            refused=refused,
        )
        live.terminal.notify({"approval": approval})
        self._record_approval(row, approval)

        def require_same() -> None:
            if meaning and (change := compare(meaning, look(live, inspection))):
                note = f"not used: {self._clean(row, change)}"
                self._record_approval(row, self.approvals.withdraw(approval.id, note) or approval)
                raise NotApproved(
                    f"`{_cut(shown)}` did not run: since it was asked about, {self._clean(row, change)}",
                    hint="run it again to be asked again",
                    approval=approval.id,
                    state="gone",
                )

        if approval.state == "approved" and not live.ended.is_set():
            require_same()
            asker.announce(approval)
            return approval, require_same
        if refused:
            raise NotApproved(
                f"`{_cut(shown)}` did not run: it needs approval, and {refused} ({judgement.class_}: {why})",
                hint=Hint(
                    "a person who is attached to the session (",
                    Do("attach", session=row.name),
                    ") is asked; with ",
                    Arg("exec", on_approval="wait"),
                    " it waits for ",
                    Do("approve", "id"),
                ),
                approval=approval.id,
                state=approval.state,
            )
        reason = {
            "denied": f"it was denied{f': {approval.note}' if approval.note else ''}",
            "approved": "the session was restored or ended meanwhile",
            "expired": f"it was not approved within {format_duration(seconds)}",
        }.get(approval.state, approval.note or "its caller does not wait any more")
        raise NotApproved(
            f"`{_cut(shown)}` did not run: {reason}",
            hint=Hint("each attempt asks for approval again; ", Do("approvals"), " lists what waits"),
            approval=approval.id,
            state=approval.state,
        )

    def review(self, row: SessionRow, asked: Asked, remarks: Sequence[str] = ()) -> tuple[str, ...]:
        """What the person who decides has to read."""
        redactor = self._registry.redactor(row)
        return review(
            Command(
                session=row.name,
                actor=asked.actor,
                line=asked.line,
                judgement=asked.judgement,
                remarks=(*remarks, *asked.warnings),
                opaque=redactor.opaque_values(asked.line),
                stdin=asked.stdin,
                user=asked.user,
                cwd=asked.cwd,
            )
        )

    def _new(
        self, row: SessionRow, line: str, judgement: Judgement, actor: Actor, approval: str | None
    ) -> list[NewEffect]:
        parts = [part for part in judgement.outside if part.decision != "allow"]
        if not parts:
            return []
        clean = self._registry.redactor(row).knowing(line).redact
        return [
            NewEffect(
                command=clean(part.command).text,
                class_=part.class_,
                source="rule",
                rule=part.rule,
                target=clean(part.target).text,
                key=part.key,
                compensate=clean(part.compensate).text,
                actor=actor,
                approval=approval,
                details={"place": clean(part.place).text} if part.place else {},
            )
            for part in parts
        ]

    def _finish(self, row: SessionRow, passed: Passed, unseen: NewEffect | None) -> None:
        outcome = {"state": passed.state, "exit_code": passed.exit_code}
        if passed.effects:
            self.ledger.finish([number for number, _ in passed.effects], passed.state, passed.exit_code)
        ran = not (passed.state == "failed" and passed.exit_code is None)
        if unseen and ran:
            (number,) = self.ledger.add(row.id, row.name, [msgspec.structs.replace(unseen, **outcome)])
            passed.effects.append((number, unseen))
        for number, new in passed.effects:
            self._record(row, number, msgspec.structs.replace(new, **outcome))

    def _record(self, row: SessionRow, number: int, new: NewEffect) -> None:
        """Puts an effect into the trajectory, after its command. The caller does not wait for that."""
        live = self._registry.running(row.id)
        if live is not None:
            live.stream.add("effect", _body(number, new), actor=new.actor)
        else:
            self._registry.record(row, "effect", _body(number, new), actor=new.actor)

    def _record_approval(self, row: SessionRow, approval: Approval) -> None:
        body: dict[str, Any] = {
            "approval": approval.id,
            "state": approval.state,
            "command": approval.command,
            "class": approval.class_,
            "why": approval.why,
        }
        if approval.note:
            body["note"] = approval.note
        self._registry.record(row, "approval", body, actor=approval.actor)

    def _warnings(self, row: SessionRow, judgement: Judgement) -> tuple[str, ...]:
        warnings = []
        for part in judgement.outside:
            before = self.ledger.last_success(part.key) if part.key else None
            if before:
                warnings.append(telling.repeat_warning(before, row.name))
        return tuple(dict.fromkeys(warnings))

    def _unseen(
        self, row: SessionRow, line: str, shown: str, judgement: Judgement, actor: Actor
    ) -> NewEffect:
        """A command that could not be looked into. `shown`: the line without its secrets, as it is told."""
        details = {"unseen": [self._clean(row, reason, line) for reason in judgement.unseen]}
        return NewEffect(command=shown, class_="unknown", source="rule", actor=actor, details=details)

    def _clean(self, row: SessionRow, text: str, line: str = "") -> str:
        """A text without its secrets; `line`: the whole that it is about, which may say more of its words."""
        redactor = self._registry.redactor(row)
        clean = (redactor.knowing(line) if line else redactor).redact(text).text if text else text
        more = len(clean) - _MOST_SHOWN
        return clean if more <= 0 else f"{clean[:_MOST_SHOWN]}… ({more:,} more characters)"

    # ---- after the fact ----------------------------------------------------------------------

    def terminal_event(self, live: Live, event: TerminalEvent) -> None:
        """A command that a person typed is judged when it has ended. Called on the terminals' thread."""
        if event.typed and event.ended and event.command:
            self._background.run(lambda: self._judge_typed(live, event))

    def _judge_typed(self, live: Live, event: TerminalEvent) -> None:
        row = self._registry.store.sessions.find(live.session_id)
        if row is None or not event.command:
            return
        policy = self.policy(row)
        judgement = policy.judge(
            event.command,
            cwd=event.cwd or "",
            shares_network=row.options.net == "host",
            local_remotes=self._local_remotes(row, event.command, event.cwd or ""),
        )
        if judgement.decision == "allow":
            return
        passed = Passed(alone=len(judgement.parts) == 1)
        passed.ended(event.exit_code, timed_out=event.timed_out)
        new = self._new(row, event.command, judgement, event.actor, None)
        if judgement.unseen and policy.decisions["unknown"] != "allow":
            shown = self._clean(row, event.command)
            new.append(self._unseen(row, event.command, shown, judgement, event.actor))
        known: dict[str, Any] = {"source": "typed", "at": event.at}
        known |= {"state": passed.state, "exit_code": passed.exit_code}
        new = [msgspec.structs.replace(effect, **known) for effect in new]
        for number, effect in zip(self.ledger.add(row.id, row.name, new), new, strict=True):
            self._record(row, number, effect)

    def claim(
        self,
        row: SessionRow,
        what: str,
        *,
        class_: EffectClass = "irreversible",
        target: str = "",
        key: str = "",
        compensate: str = "",
        actor: Actor = "person",
    ) -> Effect:
        """An effect that a caller reports: by an API, for example, that no command shows."""
        if not what.strip():
            raise UsageError("no effect given", hint="describe it in a few words: 'charged order 17'")
        if class_ not in ("external-reversible", "irreversible"):
            raise UsageError(
                f"an effect is external-reversible or irreversible, not {class_}",
                hint="what a restore undoes needs no ledger",
            )
        clean = self._registry.redactor(row).redact
        new = NewEffect(
            command=self._clean(row, what),
            class_=class_,
            source="claimed",
            target=clean(target).text,
            key=key,
            compensate=clean(compensate).text,
            state="done",
            actor=actor,
        )
        (number,) = self.ledger.add(row.id, row.name, [new])
        self._registry.record(row, "effect", _body(number, new), actor=actor)
        return self.ledger.effect(number)

    # ---- looking back ------------------------------------------------------------------------

    def effects(self, row: SessionRow, since: Checkpoint | None = None) -> list[Effect]:
        """What was done outside by a session and on the way to where it stands; `since`: after a point."""
        self._registry.trajectory.wait_written(row.id)
        tip = self._registry.find(row.id).tip
        if since is None:
            return self.ledger.leading_to(row.id, tip)
        return self.ledger.since(row.id, tip, since.position)

    def outside(self, row: SessionRow, since: Checkpoint) -> tuple[list[str], list[str]]:
        """For a plan: what a restore would not undo, and commands that could not be examined."""
        effects = self.effects(row, since)
        return (
            telling.list_effects(telling.known_effects(effects)),
            telling.list_effects(telling.unknown_effects(effects), most=3),
        )

    def done_since(self, row: SessionRow, point: Checkpoint | None) -> list[str]:
        """The effects since a point in words, for an agent that resumes."""
        return telling.list_effects(telling.known_effects(self.effects(row, point)), most=20)


def _refused(asker: Asker, live: Live) -> str:
    """Why a command that needs approval is refused at once; empty if it waits. A person who asks can also
    answer, at another terminal for example. An agent may work where there is no person."""
    if asker.on_approval == "deny":
        return "its caller does not wait for one"
    if asker.on_approval is None and asker.actor == "agent" and not live.terminal.is_watched:
        return "no person is there to give it"
    return ""


def in_place(command: str, cwd: str | None, env: Mapping[str, str]) -> str:
    """A command line with its own folder and variables, as one that a policy can judge."""
    steps = [f"cd -- {shlex.quote(cwd)}"] if cwd is not None else []
    steps += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join([*steps, command])


def told(command: str, cwd: str | None, env: Mapping[str, str]) -> str:
    """The same for people: the command first, because `waypoint run` brings all variables of its user."""
    where = [f"in {shlex.quote(cwd)}"] if cwd is not None else []
    if env:
        where.append("with " + " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items()))
    return f"{command}  # {', '.join(where)}" if where else command


def _text(stdin: bytes | None) -> str | None:
    """The standard input of a command, where that is a text that a shell could run."""
    if stdin is None or len(stdin) > 1 << 16:
        return None
    try:
        return stdin.decode()
    except UnicodeDecodeError:
        return None


def _body(number: int, effect: NewEffect | Effect) -> dict[str, Any]:
    """An effect as the trajectory stores it."""
    body = {
        "effect": number,
        "command": effect.command,
        "class": effect.class_,
        "source": effect.source,
        "state": effect.state,
    }
    more = {"target": effect.target, "key": effect.key, "exit_code": effect.exit_code}
    return body | {name: value for name, value in more.items() if value not in ("", None)}


def _denial(judgement: Judgement, shown: str) -> dict[str, Any]:
    return {
        "state": "denied",
        "command": shown,
        "class": judgement.class_,
        "why": judgement.why,
        "by": "policy",
    }


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
