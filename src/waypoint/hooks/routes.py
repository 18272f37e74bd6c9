"""The two ways from a hook to the session: the daemon's socket, or the narrow door inside a session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waypoint.errors import WaypointError, from_dict
from waypoint.hooks.handler import Decided

if TYPE_CHECKING:
    from waypoint.client.client import Client

DOOR = "/dev/waypoint.inside/replies"
"""There where a session can ask about itself."""
PROGRAM = "/dev/waypoint/bin/inside/waypoint"
_INSIDE_SECONDS = 60.0
_OUTSIDE = ("external-reversible", "irreversible")
_MOST_CHARACTERS = 30_000
"""What can be said through the door at once is limited."""


def decided(found: Mapping[str, Any]) -> Decided:
    """What the policy says, as far as an agent is concerned: what is only written down may go on."""
    ruling = found["ruling"]
    parts = found["judgement"]["parts"]
    outside = tuple(part for part in parts if part["class"] in _OUTSIDE and part["decision"] != "allow")
    return Decided("allow" if ruling == "record" else ruling, found["reason"], outside)


class Outside:
    """By the SDK."""

    def __init__(self, client: Client, session: str) -> None:
        from waypoint.client.session import Session  # an agent inside does without

        self._client = client
        self._session = Session(client, session, "agent")

    def standing(self) -> str:
        found = self._session.resume()
        return found.text if found.info.tasks or found.info.checkpoint else ""

    def changed(self, besides: Sequence[str]) -> bool:
        return self._session.changed(besides=besides)

    def checkpoint(self, intent: str) -> None:
        self._session.checkpoint(intent)

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        self._session.record(what, content, name=name or None, call=call or None)

    def effect(self, part: Mapping[str, Any]) -> None:
        self._session.effect(
            part["command"],
            reversible=part["class"] == "external-reversible",
            target=part["target"],
            key=part["key"],
            compensate=part["compensate"],
        )

    def classify(self, command: str) -> Decided:
        found = self._client.call("classify", {"session": self._session.name, "command": command})
        return decided(found)


class Inside:
    """By the program that every session has. It asks about its own session and nothing else."""

    def standing(self) -> str:
        found = self._ask("resume")
        return str(found["text"]) if found["tasks"] or found["checkpoint"] else ""

    def changed(self, besides: Sequence[str]) -> bool:
        return bool(self._ask("changed", "--", *besides)["changed"])

    def checkpoint(self, intent: str) -> None:
        self._ask("checkpoint", "--", intent)

    def record(self, what: str, content: Any, name: str = "", call: str = "") -> None:
        words = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        if len(words) > _MOST_CHARACTERS:
            content = words = f"{words[:_MOST_CHARACTERS]}…"
        more = [] if isinstance(content, str) else ["--structured"]
        for option, value in (("--name", name), ("--call", call)):
            more += [option, value] if value else []
        self._ask("record", *more, "--", what, words)

    def classify(self, command: str) -> Decided:
        return decided(self._ask("classify", "--", command))

    def effect(self, part: Mapping[str, Any]) -> None:
        more: list[str] = []
        for name in ("target", "key", "compensate"):
            more += [f"--{name}", part[name]] if part[name] else []
        if part["class"] == "external-reversible":
            more.append("--reversible")
        self._ask("effect", *more, "--", part["command"])

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
            found = json.loads(done.stdout)
        except ValueError:
            raise WaypointError(done.stderr.strip() or f"exit status {done.returncode}") from None
        if "error" in found:
            raise from_dict(found["error"])
        return found
