"""Requests: every verb has one struct, with a result, and says what is wrong about its arguments."""

from __future__ import annotations

import msgspec
import pytest

from waypoint.api import points, requests, sessions
from waypoint.api.hints import Do
from waypoint.api.request import PathBytes, Request, path_from_wire, path_to_wire
from waypoint.errors import UsageError
from waypoint.model import RunResult


@pytest.mark.parametrize("verb", requests.VERBS)
def test_every_verb_has_a_request_and_a_result_that_travel(verb: str) -> None:
    kind = requests.kind_of(verb)
    assert issubclass(kind, Request)
    assert requests.verb_of(kind) == verb
    assert kind.__doc__
    assert issubclass(requests.result_of(kind), msgspec.Struct)
    assert msgspec.json.schema(kind)
    assert msgspec.json.schema(requests.result_of(kind))
    config = kind.__struct_config__
    assert config.frozen
    assert config.forbid_unknown_fields


def test_every_request_is_listed() -> None:
    for subject in requests.SUBJECTS:
        __import__(f"waypoint.api.{subject}")
    listed = {requests.kind_of(verb) for verb in requests.VERBS}
    assert set(Request.__subclasses__()) == listed


def test_a_request_travels() -> None:
    request = sessions.Exec(command="ls", stdin=b"\xff\x00", timeout=2.5)
    travelled = requests.decode("exec", msgspec.json.encode(request))
    assert travelled == request
    assert requests.result_of(sessions.Exec) is RunResult
    assert msgspec.json.encode(sessions.Ls()) == b"{}", "what is not given does not travel"


@pytest.mark.parametrize(
    ("verb", "args", "message", "hint"),
    [
        ("exec", b"{}", "exec needs the argument 'command'", ""),
        ("exec", b'{"command": 1}', "the argument 'command' of exec is wrong: expected `str`, got `int`", ""),
        ("exec", b'{"command": "x", "color": 1}', "exec has no argument 'color'", ""),
        (
            "exec",
            b'{"command": "x", "actor": "ghost"}',
            "unknown actor 'ghost'",
            "one of: agent, automatic, person",
        ),
        ("exec", b'{"command": "x", "timeout": 0}', "'timeout' of exec is wrong: expected `float` > 0", ""),
        ("exec", b'{"command": "x", "timeout": 1e300}', "'timeout' of exec is wrong", ""),
        ("exec", b'{"command": "x", "limit": 1.5}', "'limit' of exec is wrong: expected `int | null`", ""),
        ("exec", b'{"command": "x", "limit": 0}', "'limit' of exec is wrong: expected `int` >= 1", ""),
        ("new", b'{"size": {"rows": 0}}', "'size.rows' of new is wrong: expected `int` >= 1", ""),
        ("new", b'{"options": {"net": "x"}}', "unknown options.net 'x'", "one of: host, nat, none"),
        ("attach", b'{"columns": 1001}', "'columns' of attach is wrong: expected `int` <= 1000", ""),
        ("spawn", b'{"argv": []}', "'argv' of spawn is wrong: expected `array` of length >= 1", ""),
        ("trace", b'{"limit": -1}', "'limit' of trace is wrong", ""),
        ("exec", b"nonsense", "exec: JSON is malformed", ""),
        ("fly", b"{}", "there is no verb 'fly'", "checkpoint"),
    ],
)
def test_what_is_wrong_is_named(verb: str, args: bytes, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        requests.decode(verb, args)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_path_that_is_no_text_travels_as_its_bytes() -> None:
    odd = b"/tmp/\xff".decode(errors="surrogateescape")
    assert path_to_wire("/tmp/x") == "/tmp/x"
    sent = path_to_wire(odd)
    assert sent == PathBytes(b"/tmp/\xff")
    assert path_from_wire(sent) == odd
    for wrong in ("", "/a\0b"):
        with pytest.raises(UsageError):
            path_from_wire(wrong)


def test_a_hint_and_a_request_use_the_same_names() -> None:
    assert set(Do("restore", ref="@", session="x").args) <= set(points.Restore.__struct_fields__)
