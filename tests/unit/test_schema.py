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
    assert result["title"] == requests.result_of(requests.kind_of(verb)).__name__
