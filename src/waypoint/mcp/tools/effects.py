"""Tools about actions outside the session: judge, effects, effect."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from waypoint.api import requests
from waypoint.mcp.registry import ADDS, READS, Answer, Backend, SessionName, plain, tool
from waypoint.text import views

_MAX_EFFECTS = 100


class EffectTools:
    """What the policy says, and the ledger of effects."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @tool("What the policy says of a command", READS, requests.Classify, core=False)
    async def judge(
        self,
        *,
        command: Annotated[str, Field(description="A bash command line. It is not run.")],
        session: SessionName = "",
    ) -> Answer:
        """What the policy says about a command before you run it: its class (read-only, reversible,
        external-reversible, unknown, irreversible) and whether it is allowed, recorded, asked about or
        denied."""
        target = self._backend.session(session)
        judgement = await self._backend.ask(lambda: target.judge(command))
        data = {"class": judgement.class_, "decision": judgement.decision, "unseen": judgement.unseen}
        return Answer("", data, str(judgement), "judgement", target.name)

    @tool("What was done outside", READS, requests.Effects, core=False)
    async def effects(
        self,
        *,
        session: SessionName = "",
        since: Annotated[str, Field(description="Since this point; empty: all.")] = "",
    ) -> Answer:
        """What was done outside and cannot be undone by any restore: pushes, publishes, requests. Look here
        before you repeat something."""
        request = requests.Effects(session=self._backend.session(session).name, ref=since or None)
        answer = await self._backend.ask(lambda: self._backend.client.ask_plain(request))
        keys = ("id", "at", "command", "class", "state", "target", "key", "compensate")
        effects = [{key: effect[key] for key in keys} for effect in answer["effects"][-_MAX_EFFECTS:]]
        text = "" if effects else "Nothing was done outside."
        data = {"effects": effects}
        return self._backend.page(str(views.Effects(answer)), data, what="ledger of effects", text=text)

    @tool("Write down an effect", ADDS, requests.Effect, core=False)
    async def effect(
        self,
        *,
        what: Annotated[str, Field(description="What was done, in a few words.")],
        reversible: Annotated[bool, Field(description="Whether it can be compensated.")] = False,
        target: Annotated[str, Field(description="Where: a host, a repository, a person.")] = "",
        key: Annotated[
            str,
            Field(description="Identifies the effect, so that a repetition is noticed (idempotency key)."),
        ] = "",
        compensate: Annotated[str, Field(description="How to compensate for it.")] = "",
        session: SessionName = "",
    ) -> Answer:
        """Record something you did outside by other means than `run` (another tool, an API), so that
        restore plans and later agents know of it."""
        owner = self._backend.session(session)
        effect = await self._backend.ask(
            lambda: owner.effect(what, reversible=reversible, target=target, key=key, compensate=compensate)
        )
        return Answer(f"Recorded as effect {effect.id}.", {"effect": plain(effect)})
