"""The list of all requests, and how one is read from what travelled.

A verb that is not in `SUBJECTS` does not exist. A subject's module is imported when one of its verbs is used:
a command line that lists sessions does not pay for the types of a difference.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from waypoint.api.request import Request
from waypoint.errors import UsageError
from waypoint.model import MALFORMED, json_decoder

if TYPE_CHECKING:
    from waypoint.api.agent import *  # noqa: F403
    from waypoint.api.effects import *  # noqa: F403
    from waypoint.api.files import *  # noqa: F403
    from waypoint.api.history import *  # noqa: F403
    from waypoint.api.machine import *  # noqa: F403
    from waypoint.api.points import *  # noqa: F403
    from waypoint.api.ports import *  # noqa: F403
    from waypoint.api.sessions import *  # noqa: F403
    from waypoint.api.traces import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """`requests.Exec`: the struct of a verb."""
        verb = "forget" if name == "Retention" else _verb_of(name)
        if verb not in _SUBJECT_OF:
            raise AttributeError(f"there is no request {name!r}")
        return getattr(import_module(f"waypoint.api.{_SUBJECT_OF[verb]}"), name)


R = TypeVar("R")

SUBJECTS = {
    "sessions": "new ls session park stop rm auto exec interrupt spawn signal attach type screen",
    "ports": "ports forward unforward",
    "points": "checkpoint restore undo redo fork verify tag tags note pin",
    "history": "log show status changed diff preview ops bisect compare",
    "files": "apply export copy_in copy_out read_file write_file restore_files",
    "agent": "record trace event cast messages agent_state tasks task_add task_set resume",
    "traces": "replay export_trace",
    "effects": "effects effect classify policy policy_set approvals approve deny",
    "machine": "forget prune du check recover base_import base_ls base_info base_rm ping"
    " daemon_status daemon_stop",
}
"""Which module of the API describes a verb, and which one of daemon/verbs/ answers it."""
_SUBJECT_OF = {verb: subject for subject, verbs in SUBJECTS.items() for verb in verbs.split()}
VERBS = tuple(_SUBJECT_OF)


@cache
def kind_of(verb: str) -> type[Request[Any]]:
    """The struct of a verb."""
    if verb not in _SUBJECT_OF:
        raise UsageError(f"there is no verb {verb!r}", hint=f"there are: {', '.join(sorted(_SUBJECT_OF))}")
    name = "".join(word.capitalize() for word in verb.split("_"))
    kind: type[Request[Any]] = getattr(import_module(f"waypoint.api.{_SUBJECT_OF[verb]}"), name)
    return kind


def verb_of(request: type[Request[Any]]) -> str:
    """The name of a request's verb."""
    return _verb_of(request.__name__)


@cache
def _verb_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@cache
def result_of(request: type[Request[R]]) -> type[R]:
    """The type of the answer."""
    (result,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    return result  # type: ignore[no-any-return]


@cache
def _decoder(verb: str) -> msgspec.json.Decoder[Request[Any]]:
    return json_decoder(kind_of(verb))


def decode(verb: str, args: bytes | msgspec.Raw) -> Request[Any]:
    """The request in the arguments of a frame; UsageError naming the field that is wrong."""
    try:
        request: Request[Any] = _decoder(verb).decode(args)
    except MALFORMED as error:
        raise _usage_error(verb, str(error)) from error
    return request


_AT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?", re.DOTALL)
_VALUE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<field>[^`]*)`")


def _usage_error(verb: str, text: str) -> UsageError:
    match = _AT.fullmatch(text)
    what, where = (match["what"], match["where"] or "") if match else (text, "")
    if missing := _FIELD.match(what):
        field = f"{where}.{missing['field']}".lstrip(".")
        how = "has no argument" if "unknown" in missing["how"] else "needs the argument"
        return UsageError(f"{verb} {how} {field!r}")
    if value := _VALUE.match(what):
        return UsageError(f"unknown {where} {value['value']}", hint=_choices(verb, where))
    what = what if what.startswith("JSON") else f"{what[:1].lower()}{what[1:]}"
    return UsageError(f"the argument {where!r} of {verb} is wrong: {what}" if where else f"{verb}: {what}")


def _choices(verb: str, where: str) -> str:
    node: Any = msgspec.json.schema(kind_of(verb))
    definitions = node.get("$defs", {})
    for name in ("", *filter(None, re.split(r"[.\[\]…]+", where))):
        node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        node = node.get("properties", {}).get(name, node) if name else node
        node = node.get("items", node)
        for choice in node.get("anyOf", ()):
            node = choice if "enum" in choice else node
    return f"one of: {', '.join(map(str, node['enum']))}" if "enum" in node else ""
