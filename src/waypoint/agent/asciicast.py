"""The history of a terminal as an asciicast (version 3), a format that players and web pages can show.

One JSON value per line: first the header, then `[interval, code, data]`, where the interval is the time since
the line before, in seconds. `o` is output, `r` a new size, `m` a marker. Every checkpoint is a marker, so a
player can jump to it. https://docs.asciinema.org/manual/asciicast/v3/
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from waypoint.model import Event, EventKind

KINDS: tuple[EventKind, ...] = ("command", "output", "checkpoint", "restored", "forked")
"""The events that a cast is made from."""
_IDLE_SECONDS = 2.0
"""Players shorten a longer silence to this."""


def cast(events: Iterable[Event], *, title: str) -> Iterator[str]:
    """The lines of a cast, with their newlines. Events come with their output, oldest first."""
    writer = _Writer()
    for number, event in enumerate(events):
        size = tuple(event.body.get("size") or ()) or writer.size
        if number == 0:
            yield writer.header(event, size, title)
        yield from writer.event(event, size)
    if not writer.has_header:
        yield writer.header(None, writer.size, title)


class _Writer:
    def __init__(self) -> None:
        self.has_header = False
        self.size: tuple[int, ...] = (80, 24)
        self._now = 0.0

    def header(self, first: Event | None, size: tuple[int, ...], title: str) -> str:
        self.has_header, self.size = True, size
        head: dict[str, Any] = {
            "version": 3,
            "term": {"cols": size[0], "rows": size[1], "type": "xterm-256color"},
            "title": title,
            "idle_time_limit": _IDLE_SECONDS,
        }
        if first:
            self._now = _seconds(first.at) - _duration(first)
            head["timestamp"] = int(self._now)
        return _line(head)

    def event(self, event: Event, size: tuple[int, ...]) -> Iterator[str]:
        body, ended = event.body, _seconds(event.at)
        match event.kind:
            case "command" | "output" if body.get("beside"):
                return  # it ran without a terminal
            case "command" | "output":
                began = ended - _duration(event)
                if size != self.size:
                    self.size = size
                    yield self._at(began, "r", f"{size[0]}x{size[1]}")
                if body.get("shown"):
                    yield self._at(began, "o", body["shown"])
                yield from self._output(event, ended)
            case "checkpoint":
                label = filter(None, (body["label"], body.get("name"), body.get("intent")))
                yield self._at(ended, "m", " ".join(label))
            case _:
                yield self._at(ended, "m", f"{event.kind}: {body.get('session', '')}:{body.get('label', '')}")

    def _output(self, event: Event, ended: float) -> Iterator[str]:
        body = event.body
        data = base64.b64decode(body["base64"]) if body.get("base64") else body.get("output", "").encode()
        first = ended - body.get("age_ms", 0) / 1000
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Redaction has changed the offsets: all of the output comes at once then.
        timing = [] if body.get("redacted") else body.get("timing", [])
        before = 0
        for ms, at in [*timing, (timing[-1][0] if timing else 0, len(data))]:
            text = decoder.decode(data[before:at], final=at >= len(data))
            if text:
                shown = text if body.get("raw") else text.replace("\n", "\r\n")
                yield self._at(first + ms / 1000, "o", shown)
            before = at

    def _at(self, moment: float, code: str, data: str) -> str:
        interval = max(0.0, round(moment - self._now, 3))
        self._now += interval
        return _line([interval, code, data])


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _duration(event: Event) -> float:
    """How long before its time the event began, in seconds."""
    return float(max(event.body.get("duration_ms") or 0, event.body.get("age_ms") or 0)) / 1000
