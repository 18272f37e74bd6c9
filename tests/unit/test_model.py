"""Records: what travels and what is stored, decoded from many threads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import waypoint

SOURCE = Path(waypoint.__file__).parent

_FIRST_USES = """
import sys, threading
from msgspec import defstruct
from waypoint.model import Record, from_json, from_plain, json_decoder

sys.setswitchinterval(1e-6)
for round in range(60):
    fields = [(f"field_{n}", "int | None", None) for n in range(20)]
    inner = defstruct("Inner", fields, bases=(Record,), frozen=True)
    outer = defstruct("Outer", [("one", inner), ("many", tuple[inner, ...])], bases=(Record,), frozen=True)
    plain = {"one": {"field_1": 1}, "many": [{"field_2": 2}] * 3}
    text = '{"one": {"field_1": 1}, "many": [{"field_2": 2}]}'
    start = threading.Barrier(6)
    first_uses = [
        lambda: from_json(text, outer),
        lambda: from_plain(plain, outer),
        lambda: json_decoder(inner).decode('{"field_1": 1}'),
        lambda: from_json("[]", list[outer]),
        lambda: from_plain(plain["many"], tuple[inner, ...]),
        lambda: from_json(text, outer | None),
    ]
    threads = [threading.Thread(target=lambda use=use: (start.wait(), use())) for use in first_uses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_type_that_several_threads_decode_to_for_the_first_time_does_not_end_the_process() -> None:
    """msgspec alone crashes: two cards that were written at the same time ended a daemon that had just
    started."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _FIRST_USES],
        env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_only_these_functions_decode_to_a_type() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {call}"
        for path in SOURCE.rglob("*.py")
        if path.name != "model.py"
        for call in re.findall(
            r"msgspec\.convert\(|decode\([^\n]*, type=|\.Decoder\([^)\n]|strict_decode", path.read_text()
        )
    ]
    assert not found
