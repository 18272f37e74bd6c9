"""Traces as files, and what is compared when one is run again."""

from __future__ import annotations

import io
import tarfile

import msgspec
import pytest

from waypoint.agent import traces
from waypoint.agent.traces import Trace, TraceBase, TraceHead, TraceStart, TraceState, TraceStep
from waypoint.errors import BadTrace
from waypoint.model import BoxOptions

STEPS = (
    TraceStep(kind="command", text="echo one >/srv/x", exit_code=0, duration_ms=3.0, env={"A": "b"}),
    TraceStep(kind="point", text="up", state=TraceState(files={"/srv/x": "file 0644 ab"}, packages=("a",))),
)
HEAD = TraceHead(
    format=traces.FORMAT,
    version=traces.VERSION,
    written_by="1",
    session="work",
    base=TraceBase(name="/", digest="sha256:0"),
    options=BoxOptions(net="none"),
    start=TraceStart(point="p1", label="c1"),
    steps=len(STEPS),
)


def written(head: TraceHead = HEAD, start: bytes | None = b"a tar" * 1000) -> bytes:
    out = io.BytesIO()
    traces.write_trace(Trace(head=head, steps=STEPS), None if start is None else io.BytesIO(start), out)
    return out.getvalue()


def read(data: bytes) -> tuple[Trace, bytes | None]:
    return traces.read_trace(io.BytesIO(data), "work.trace")


def repacked(data: bytes, **members: bytes | None) -> bytes:
    """The same tar with other members: None leaves one out."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        contents = {info.name: old.extractfile(info).read() for info in old}  # type: ignore[union-attr]
        for name, content in {**contents, **members}.items():
            if content is not None:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_a_trace_comes_back_as_it_was_written_with_the_same_id() -> None:
    trace, start = read(written())
    assert (trace.head, trace.steps, start) == (HEAD, STEPS, b"a tar" * 1000)
    assert read(written())[0].id == trace.id != read(written(start=b"another"))[0].id
    assert read(written(start=None))[1] is None


def test_a_trace_that_was_cut_off_says_so_wherever_it_was_cut() -> None:
    whole = written()
    end = whole.index(b"  steps.jsonl")  # in the last member
    for length in {*range(512, end, 517), end}:
        with pytest.raises(BadTrace) as caught:
            read(whole[:length])
        assert caught.value.details["reason"] == "cut_off", length
        assert caught.value.hint


@pytest.mark.parametrize("member", ["trace.json", "steps.jsonl", "start.tar", "SHA256SUMS"])
def test_a_trace_that_was_altered_names_what(member: str) -> None:
    data = written()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        content = tar.extractfile(member).read()  # type: ignore[union-attr]
    changed = content.replace(b"work", b"play").replace(b"one", b"two").replace(b"a tar", b"b tar")
    changed = changed.replace(b"  trace.json", b"0 trace.json") if member == "SHA256SUMS" else changed
    with pytest.raises(BadTrace) as caught:
        read(repacked(data, **{member: changed}))
    assert caught.value.details["reason"] in (
        {"altered", "cut_off"} if member == "SHA256SUMS" else {"altered"}
    )


def test_what_is_no_trace_or_of_a_newer_version_is_refused_with_what_to_do() -> None:
    newer = msgspec.structs.replace(HEAD, version=traces.VERSION + 1, written_by="9.9")
    for data, reason, word in [
        (written(newer), "newer", "9.9"),
        (repacked(written(newer), **{"steps.jsonl": b"{}", "SHA256SUMS": None}), "newer", "9.9"),
        (b"#!/bin/sh\n" * 200, "no_trace", "no trace"),
        (b"", "no_trace", "no trace"),
        (repacked(written(), **{"../etc/passwd": b"x"}), "no_trace", "passwd"),
    ]:
        with pytest.raises(BadTrace, match=word) as caught:
            read(data)
        assert caught.value.details["reason"] == reason
        assert caught.value.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Mon Nov 16 10:27:01 UTC 2026", "Tue Dec 1 23:59:59 UTC 2026"),
        ("2026-11-16T10:27:01.123456Z done", "2025-01-02T00:00:00.9Z done"),
        ("3 passed in 0.12s", "3 passed in 14.5s"),
        ("real\t0m0.012s", "real\t1m2.5s"),
        ("[1] 4711\n[1]+  Done", "[1] 12\n[1]+  Done"),
        ("started, pid=812", "started, pid=99"),
        ("-rw-r--r-- 1 root root 4 Nov 16 10:27 x", "-rw-r--r-- 1 root root 4 Jan  2  2024 x"),
        ("in /tmp/tmp8h3x_a1/x", "in /tmp/tmpq0q0q0q0/x"),
        ("[main 1a2b3c4] fix", "[main 99aabbcc] fix"),
        ("at 0x7f12ab34cd", "at 0x55aa0011223344"),
        ("work: hello  \n", "replay-1: hello"),
    ],
)
def test_times_pids_and_temporary_names_make_no_difference(one: str, other: str) -> None:
    assert traces.first_difference(one, other, ["work", "replay-1"]) is None


@pytest.mark.parametrize(
    ("one", "other", "lines"),
    [
        ("3 passed\n", "2 passed, 1 failed\n", ("3 passed", "2 passed, 1 failed")),
        ("a\nb\nc", "a\nb", ("c", "(its end)")),
        ("x 10.2.3", "x 10.2.4", ("x 10.2.3", "x 10.2.4")),
        ("port 8080", "port 8081", ("port 8080", "port 8081")),
        ("/srv/work2", "/srv/work3", ("/srv/work2", "/srv/work3")),
    ],
)
def test_what_was_printed_is_compared_line_by_line(one: str, other: str, lines: tuple[str, str]) -> None:
    assert traces.first_difference(one, other, ["work"]) == lines


def test_files_are_compared_by_mode_and_content_but_for_caches_and_logs() -> None:
    describe = traces.describe_file
    assert describe(0o644, b"at 10:27:01\n") == describe(0o644, b"at 23:01:59\n")
    assert describe(0o644, b"a") != describe(0o644, b"b")
    assert describe(0o644, b"a") != describe(0o755, b"a")
    assert describe(0o644, b"\0 10:27:01") != describe(0o644, b"\0 23:01:59"), "no text"
    for path in ("/app/x.py", "/etc/passwd", "/app/cache/x", "/srv/.github/x", "/var/lib/app.db"):
        assert traces.is_compared(path), path
    for path in (
        "/a/__pycache__/x.pyc",
        "/app/.git/index",
        "/tmp/x",
        "/var/log/dpkg.log",
        "/root/.bash_history",
    ):
        assert not traces.is_compared(path), path
