"""The tools of the MCP server agree with the requests of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from waypoint.client.client import Client
from waypoint.mcp.registry import tools_of
from waypoint.mcp.server import GROUPS, Server

TOOLS = {name: tool for group in GROUPS for name, tool in tools_of(group)}
REQUESTS = {name: tool.request for name, tool in TOOLS.items() if tool.request}

RENAMED = {
    ("compare", "points"): "candidates",
    ("diff", "old"): "a",
    ("diff", "new"): "b",
    ("effects", "since"): "ref",
    ("effect", "reversible"): "class",
    ("new", "base"): "options",
    ("new", "net"): "options",
    ("trace", "everything"): "all",
    ("run", "raw"): "plain",
}
"""Arguments that have another name in the request."""
OWN = {
    ("run", "max_characters"): "the size of an answer",
    ("log", "limit"): "the size of an answer",
    ("trace", "event"): "asks for one event instead",
}
"""Arguments that are not part of the request, and why."""


def schemas(folder: Path) -> dict[str, dict[str, Any]]:
    server = Server(Client(folder, start=False), everything=True)
    return {tool.name: tool.input_schema["properties"] for tool in anyio.run(server.list_tools)}


def request_fields(name: str) -> dict[str, Any]:
    """The JSON schema of each field of the request of a tool."""
    request = REQUESTS[name]
    assert request
    (_,), definitions = msgspec.json.schema_components([request], ref_template="{name}")
    fields: dict[str, Any] = definitions[request.__name__]["properties"]
    return fields


def values(schema: Any) -> set[str]:
    """The values of an enumeration, wherever in a schema."""
    if isinstance(schema, list):
        return {value for part in schema for value in values(part)}
    if not isinstance(schema, dict):
        return set()
    nested = {value for part in schema.values() for value in values(part)}
    return nested | {value for value in schema.get("enum", ()) if isinstance(value, str)}


def test_every_tool_is_offered(tmp_path: Path) -> None:
    assert set(schemas(tmp_path)) == set(TOOLS)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_arguments_of_a_tool_are_fields_of_its_request(name: str, tmp_path: Path) -> None:
    fields = request_fields(name)
    for argument, schema in schemas(tmp_path)[name].items():
        if (name, argument) in OWN:
            assert argument not in fields
            continue
        field = RENAMED.get((name, argument), argument)
        assert field in fields, f"{name}: {argument}"
        if allowed := values(fields[field]):
            assert values(schema) <= allowed, f"{name}: {argument}"


def test_no_exception_is_left_over(tmp_path: Path) -> None:
    arguments = {(name, argument) for name, schema in schemas(tmp_path).items() for argument in schema}
    assert {*RENAMED, *OWN} <= arguments
