"""What the daemon does for each request: one function a verb, in the module of its subject.

A handler takes the app, the connection and the request, and returns the result. It finds out which session
and which point are meant, calls the core, and puts the answer together; anything more belongs into core/.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from waypoint.api.requests import SUBJECTS

Handler = Callable[..., Any]
"""Called with the app, the connection and the request."""


@cache
def _handlers() -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for subject, verbs in SUBJECTS.items():
        module = import_module(f"waypoint.daemon.verbs.{subject}")
        for verb in verbs.split():
            # A verb that is a word of Python or of its library has an underscore behind it.
            handlers[verb] = getattr(module, f"{verb}_", None) or getattr(module, verb)
    return handlers


def handler_of(verb: str) -> Handler:
    """The function that answers a verb of api/requests.py."""
    return _handlers()[verb]
