"""How a hook reaches its session: through the daemon's socket, or from inside the session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waypoint.api.agent import Record, Resume
from waypoint.api.effects import Classified, Classify, Effect
from waypoint.api.history import Changed
from waypoint.api.points import Checkpoint
from waypoint.client.payloads import content_to_wire
from waypoint.errors import WaypointError, from_dict
from waypoint.home import Settings
from waypoint.hooks.handler import Verdict
from waypoint.model import from_plain
from waypoint.text.review import LONGEST

if TYPE_CHECKING:
    from waypoint.client.connection import Transport
    from waypoint.model import Actor, Judged

DOOR = "/dev/waypoint.inside/replies"
"""Exists inside a session."""
PROGRAM = "/dev/waypoint/bin/inside/waypoint"
_INSIDE_SECONDS = 60.0
_MAX_CHARACTERS = 30_000
"""Of one text in a request from inside."""


def verdict(answer: Classified) -> Verdict:
    """What the policy says, for an agent: a command that is only recorded may run."""
    permission = "allow" if answer.ruling == "record" else answer.ruling
    outside = tuple(part for part in answer.judgement.outside if part.decision != "allow")
    if sum(map(len, answer.review)) > LONGEST:
        return Verdict("deny", f"it needs approval, and is too long to be read ({answer.reason})", outside)
    return Verdict(permission, answer.reason, outside, answer.review)


class DaemonRoute:
    """Through the daemon's socket. It sends requests and uses no objects of the SDK: importing those would
    take a fifth of the time that a hook may take."""

    def __init__(self, daemon: Transport, session: str) -> None:
        self._daemon, self._session = daemon, session

    def resume_text(self) -> str:
        resumed = self._daemon.ask(Resume(session=self._session, actor="agent"))
        return resumed.text if resumed.tasks or resumed.checkpoint else ""

    def changed(self, besides: Sequence[str]) -> bool:
        return self._daemon.ask(Changed(session=self._session, besides=tuple(besides))).changed

    def checkpoint(self, intent: str) -> None:
        durable = Settings.read().durable
        self._daemon.ask(Checkpoint(session=self._session, intent=intent, actor="agent", durable=durable))

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        actor: Actor = "person" if what == "user" else "agent"
        said = content_to_wire(content)
        tool, number = name or None, call or None
        self._daemon.ask(
            Record(what=what, session=self._session, content=said, name=tool, call=number, actor=actor)
        )

    def classify(self, command: str) -> Verdict:
        return verdict(self._daemon.ask(Classify(command=command, session=self._session)))

    def effect(self, part: Judged) -> None:
        self._daemon.ask(
            Effect(
                what=part.command,
                session=self._session,
                class_="external-reversible" if part.class_ == "external-reversible" else "irreversible",
                target=part.target,
                key=part.key,
                compensate=part.compensate,
                actor="agent",
            )
        )


class InsideRoute:
    """From inside, with the program that every session has. It can only ask about its own session."""

    def resume_text(self) -> str:
        answer = self._ask("resume")
        return str(answer["text"]) if answer["tasks"] or answer["checkpoint"] else ""

    def changed(self, besides: Sequence[str]) -> bool:
        return bool(self._ask("changed", "--", *besides)["changed"])

    def checkpoint(self, intent: str) -> None:
        self._ask("checkpoint", "--", intent)

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        if len(text) > _MAX_CHARACTERS:
            content = text = f"{text[:_MAX_CHARACTERS]}…"
        options = [] if isinstance(content, str) else ["--structured"]
        for option, value in (("--name", name), ("--call", call)):
            options += [option, value] if value else []
        self._ask("record", *options, "--", what, text)

    def classify(self, command: str) -> Verdict:
        return verdict(from_plain(self._ask("classify", "--", command), Classified))

    def effect(self, part: Judged) -> None:
        options: list[str] = []
        for option, value in (("target", part.target), ("key", part.key), ("compensate", part.compensate)):
            options += [f"--{option}", value] if value else []
        if part.class_ == "external-reversible":
            options.append("--reversible")
        self._ask("effect", *options, "--", part.command)

    def _ask(self, verb: str, *words: str) -> Any:
        import subprocess

        done = subprocess.run(
            [PROGRAM, verb, "--json", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSIDE_SECONDS,
            check=False,
        )
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise WaypointError(done.stderr.strip() or f"exit status {done.returncode}") from None
        if "error" in answer:
            raise from_dict(answer["error"])
        return answer
