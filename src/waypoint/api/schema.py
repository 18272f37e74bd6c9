"""Requests and results as JSON schemas, for programs that speak to the daemon without the SDK.

They are made from the structs, so they cannot differ from what the daemon takes and answers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waypoint.api import requests


def request_schema(verb: str) -> dict[str, Any]:
    """The JSON schema of a verb's arguments."""
    return _schema(requests.kind_of(verb))


def result_schema(verb: str) -> dict[str, Any]:
    """The JSON schema of a verb's result."""
    return _schema(requests.result_of(requests.kind_of(verb)))


def _schema(kind: type) -> dict[str, Any]:
    """A schema whose top is the type itself rather than a reference to it."""
    schema = msgspec.json.schema(kind)
    definitions: dict[str, Any] = schema.get("$defs", {})
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = {**definitions[name]}
        others = {key: value for key, value in definitions.items() if key != name}
        if others:
            schema["$defs"] = others
    return schema
