"""Schemas: each verb can be described from its structs alone."""

from __future__ import annotations

import pytest

from waypoint.api import requests, schema


@pytest.mark.parametrize("verb", requests.VERBS)
def test_every_verb_can_be_described(verb: str) -> None:
    request, result = schema.request_schema(verb), schema.result_schema(verb)
    assert request["type"] == result["type"] == "object"
    assert request["additionalProperties"] is False
    assert request["description"]
    assert schema.outline(result, depth=0).startswith("{")


def test_an_outline_names_what_is_deeper() -> None:
    assert (
        schema.outline(schema.result_schema("park"), depth=0)
        == '{"session": Session, "checkpoint": Checkpoint}'
    )
    assert schema.outline(schema.result_schema("rm")) == '{"removed": [string]}'
    assert '"rows": integer' in schema.outline(schema.result_schema("screen"))
    assert '"id": string' in schema.outline(schema.result_schema("session"))
    assert '"older_than": number or string or null' in schema.outline(
        schema.request_schema("forget"), depth=3
    )
    assert schema.outline(schema.request_schema("spawn"), depth=0).count('"env": {name: string}') == 1


def test_types_are_found_by_name() -> None:
    assert {"Session", "Checkpoint", "BoxOptions"} <= set(schema.named_types("ls", "park"))
    assert "Difference" in schema.named_types()
