"""docs/cli.md, from the declarations of the verbs: `python -m waypoint.cli.reference > docs/cli.md`.

The JSON part comes from the types of the results, so it covers every verb.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from msgspec import NODEFAULT, inspect

from waypoint import errors
from waypoint.api.requests import kind_of, result_of
from waypoint.cli.help import Row, introduction, options, positionals, usage_line
from waypoint.cli.spec import PROGRAM, Parser, Verb
from waypoint.cli.verbs import load_all

_WIDTH = 110
_INLINE_FIELDS = 4
_HEAD = """\
# The command line

<!-- Written by `python -m waypoint.cli.reference > docs/cli.md` from src/waypoint/cli/verbs. -->

`waypoint VERB …`. Results go to stdout, everything else to stderr. Every verb has `-h`;
`waypoint man` has the same as manual pages, and `waypoint completion SHELL` makes your shell know it.

- `--json`: the result, or the error, as one JSON value on stdout.
- `--home DIR`: the folder in which Waypoint keeps everything; else `WAYPOINT_HOME`, else `/var/lib/waypoint`.
- `--no-color`: no colours; they are used only on a terminal, and not with `NO_COLOR`.
- `--quiet`: no progress, notes and hints on stderr. Warnings and errors stay.
- These may stand before or after the verb.
- The session is `-s`, else `WAYPOINT_SESSION`, else the only session there is.
- A point (REF) is a name, a number (`c5`), an id or the beginning of one, `@` (the last), `@-` or `@~3`
  (before it), a time of day (`10:27`: the last point at or before it), a tag, `good` (the last that passed a
  verification), or `SESSION:REF`.
"""
_JSON_HEAD = """\
## JSON

What `--json` prints, in the notation of TypeScript. A field with `?` may be missing. Times are ISO 8601,
bytes are base64. An error is `{"error": {"code", "message", "hint"}}`, and the exit status is not 0.

| verb | result |
|---|---|"""


def reference() -> str:
    """The whole page."""
    parts, groups = [_HEAD], load_all()
    for group, verbs in groups:
        parts.append(f"## {group}\n")
        parts += [_verb(verb) for verb in verbs]
    parts += [_json([verb for _, verbs in groups for verb in verbs]), _statuses()]
    return "\n".join(parts)


def conventions() -> list[str]:
    """What holds for every verb, one paragraph each, as roff writes them."""
    _, _, text = _HEAD.partition("-->\n\n")
    paragraphs = [text.partition("\n\n- ")[0], *text.partition("\n\n- ")[2].split("\n- ")]
    return [line for paragraph in paragraphs for line in (paragraph.replace("`", ""), "")][:-1]


def _verb(verb: Verb) -> str:
    parser = Parser(verb)
    lines = [f"### {PROGRAM} {verb.name}\n", f"{_escape(introduction(verb))}\n"]
    lines.append(f"```\n{usage_line(parser)}\n```\n")
    if rows := [*positionals(parser), *options(parser)]:
        lines += ["| | |", "|---|---|", *(_row(row) for row in rows), ""]
    lines += ["```", *(f"$ {example}" for example in verb.examples), "```", ""]
    return "\n".join(lines)


def _row(row: Row) -> str:
    words = row.words.replace("|", "\\|")
    return f"| `{words}` | {_escape(row.meaning)} |"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


# JSON -----------------------------------------------------------------------------------------------------


def _json(verbs: list[Verb]) -> str:
    types = _Types()
    lines = [_JSON_HEAD]
    for verb in verbs:
        for form, result in verb.json.items():
            words, fields = f"{verb.name} {form}".strip(), types.result(_type(result))
            lines.append(f"| `{words}` | `{_escape(fields)}` |")
    return "\n".join([*lines, "", "```ts", *types.definitions(), "```", ""])


def _type(result: str | type) -> Any:
    if not isinstance(result, str):
        return result
    module, colon, name = result.partition(":")
    return getattr(import_module(module), name) if colon else result_of(kind_of(result))


class _Types:
    """Writes types in the notation of TypeScript, and remembers the structs that have to be defined."""

    def __init__(self) -> None:
        self._structs: dict[str, inspect.StructType] = {}

    def result(self, kind: Any) -> str:
        """The fields of a result if there are few, else its name."""
        struct = inspect.type_info(kind)
        assert isinstance(struct, inspect.StructType)
        if len(struct.fields) <= _INLINE_FIELDS:
            text = f"{{ {'; '.join(self._fields(struct))} }}" if struct.fields else "{}"
            if len(text) <= _WIDTH:
                return text
        return self._written(struct)

    def definitions(self) -> list[str]:
        """One definition for each struct that was named, and for those that these name."""
        texts: dict[str, str] = {}
        while missing := [name for name in self._structs if name not in texts]:
            for name in missing:
                texts[name] = self._definition(name, self._structs[name])
        return [texts[name] for name in sorted(texts)]

    def _definition(self, name: str, struct: inspect.StructType) -> str:
        fields = self._fields(struct)
        line = f"type {name} = {{ {'; '.join(fields)} }}"
        if len(line) <= _WIDTH:
            return line
        lines, text = [f"type {name} = {{"], " "
        for field_text in fields:
            if len(text) + len(field_text) + 2 > _WIDTH:
                lines.append(text)
                text = " "
            text += f" {field_text};"
        return "\n".join([*lines, text, "}"])

    def _fields(self, struct: inspect.StructType) -> list[str]:
        return [
            f"{field.encode_name}{'?' if _may_be_missing(field) else ''}: {self._written(field.type)}"
            for field in struct.fields
        ]

    def _written(self, kind: inspect.Type) -> str:
        match kind:
            case inspect.StructType(cls=cls):
                name = cls.__name__
                known = self._structs.setdefault(name, kind)
                assert known.cls is cls, f"two types are called {name}: {known.cls} and {cls}"
                return name
            case inspect.LiteralType(values=values):
                return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
            case inspect.UnionType(types=types):
                return " | ".join(self._written(each) for each in types)
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                text = self._written(item)
                return f"({text})[]" if " | " in text else f"{text}[]"
            case inspect.TupleType(item_types=items):
                return f"[{', '.join(self._written(item) for item in items)}]"
            case inspect.DictType(value_type=value):
                return f"{{ [name: string]: {self._written(value)} }}"
            case inspect.BoolType():
                return "boolean"
            case inspect.IntType() | inspect.FloatType():
                return "number"
            case inspect.NoneType():
                return "null"
            case inspect.AnyType():
                return "any"
        return "string"  # text, bytes in base64, times


def _may_be_missing(field: inspect.Field) -> bool:
    """Whether its default is UNSET, which msgspec shows as an optional field without a default."""
    return not field.required and field.default is field.default_factory is NODEFAULT


# Exit statuses --------------------------------------------------------------------------------------------


def _statuses() -> str:
    lines = [
        "## Exit statuses\n",
        "`exec` returns the exit status of its command. All others:\n",
        "| status | code | when |",
        "|---|---|---|",
        "| 0 | | success |",
    ]
    for error in sorted(_error_types(errors.WaypointError), key=lambda error: error.exit_status):
        when = (error.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {error.exit_status} | `{error.code}` | {when.removeprefix('Raised ')} |")
    lines += [
        "| 124 | | `exec --timeout`, `verify`: the command took too long and was interrupted |",
        "| 125 | | `verify`: the command ended with 125, by which it says that it cannot tell |",
        "| 130 | | interrupted with Ctrl-C |",
        "",
    ]
    return "\n".join(lines)


def _error_types(root: type[errors.WaypointError]) -> list[type[errors.WaypointError]]:
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(error for child in children for error in _error_types(child))]


if __name__ == "__main__":
    sys.stdout.write(reference())
