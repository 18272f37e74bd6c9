"""What requests and results look like, for faces that describe them: JSON schemas, and a short form.

The reference of the command line (docs/cli.md) and the schemas of MCP's tools are made from here, so that
they cannot differ from what the daemon takes and answers.
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


def outline(schema: dict[str, Any], *, depth: int = 1) -> str:
    """The fields of a schema in one line: `{"session": Session, "removed": [string]}`. Types that are deeper
    than `depth` are named only."""
    return _outline(schema, schema.get("$defs", {}), depth)


def _outline(node: dict[str, Any], definitions: dict[str, Any], depth: int) -> str:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return _outline(definitions[name], definitions, depth - 1) if depth > 0 else name
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_outline(choice, definitions, depth) for choice in node["anyOf"]))
    if "enum" in node:
        return " or ".join(f'"{value}"' for value in node["enum"])
    kind = node.get("type")
    if kind == "array":
        if "prefixItems" in node:
            return f"[{', '.join(_outline(item, definitions, depth) for item in node['prefixItems'])}]"
        return f"[{_outline(node.get('items') or {}, definitions, depth)}]"
    if kind == "object" and "properties" in node:
        fields = [
            f'"{name}": {_outline(value, definitions, depth)}' for name, value in node["properties"].items()
        ]
        return f"{{{', '.join(fields)}}}"
    if kind == "object":
        return f"{{name: {_outline(node.get('additionalProperties') or {}, definitions, depth)}}}"
    return str(kind) if kind else "any"


def named_types(*verbs: str) -> dict[str, dict[str, Any]]:
    """The types that results of these verbs (all of them if none is given) are made of, by name."""
    types: dict[str, dict[str, Any]] = {}
    for verb in verbs or requests.VERBS:
        types |= result_schema(verb).get("$defs", {})
    return dict(sorted(types.items()))
