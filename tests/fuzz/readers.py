"""Readers of files, streams and packets, each with good input to damage."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import struct
import tarfile
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from tests.fuzz.mutate import damaged, damaged_json, damaged_text, sendable, text, value

from waypoint.agent import tasks
from waypoint.agent.trajectory import agent_event
from waypoint.bases import images as bases
from waypoint.core import pointfile
from waypoint.daemon.inside.doors import PROTOCOL, read_request
from waypoint.engine import images
from waypoint.errors import WaypointError
from waypoint.history import refs
from waypoint.history.analyzers import analyze
from waypoint.history.redaction import Redactor
from waypoint.history.retention import parse_duration
from waypoint.hooks import config, handler
from waypoint.hooks.claude import Claude
from waypoint.hooks.codex import Codex
from waypoint.kernel.network import dns
from waypoint.kernel.pool import deltas
from waypoint.model import Checkpoint
from waypoint.policy.rules import Policy, built_in_text, check
from waypoint.terminal import escapes
from waypoint.terminal.screen import DUMP_MAGIC, Screen

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
Errors = tuple[type[Exception], ...]


@dataclass(frozen=True)
class Target:
    """A reader. `run` builds one input and reads it; `errors` are the ways in which it may refuse."""

    name: str
    run: Callable[[Random, Path], object]
    errors: Errors = (WaypointError,)
    weight: int = 10
    """Its share of a campaign; slow readers have a small one."""


# ---- names, refs, times -----------------------------------------------------------------------------


@cache
def points() -> tuple[Checkpoint, ...]:
    """A line of points, with names and without."""
    made: list[Checkpoint] = []
    for number in range(1, 9):
        fields = {
            "id": f"{number:012x}",
            "session": "work",
            "number": number,
            "name": f"name{number}" if number % 2 else None,
            "parent": made[-1].id if made else None,
            "created_at": f"2026-11-16T10:{number * 5:02}:00+00:00",
            "kind": "manual",
        }
        made.append(msgspec.convert({**_point_template(), **fields}, Checkpoint))
    return tuple(made)


def _point_template() -> dict[str, Any]:
    """A value for each field that a checkpoint must have."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Checkpoint):
        if field.required:
            kind = str(field.type)
            values[field.encode_name] = 0 if "int" in kind or "float" in kind else "x"
            if "bool" in kind:
                values[field.encode_name] = False
            if "tuple" in kind or "list" in kind:
                values[field.encode_name] = []
            if "dict" in kind:
                values[field.encode_name] = {}
    return values


def _ref(random: Random, _folder: Path) -> None:
    ref = random.choice((text(random, 12), damaged_text(random, random.choice(_REFS))))
    _, rest = refs.split(ref)
    refs.resolve(rest, points(), points(), points()[-1].id, NOW)


_REFS = ("@~3", "@--", "name3", "c4", "00000000", "10:27", "10:27:33", "work:name1", "good", "work/c2")


def _name(random: Random, _folder: Path) -> None:
    refs.check_name(text(random, 80), random.choice(("checkpoint", "session", "tag")))


def _time(random: Random, _folder: Path) -> None:
    good = random.choice(("10:27", "2h", "3d", "2026-11-16", "2026-11-16 10:27", "30m", "1w"))
    written = damaged_text(random, good)
    if random.random() < 0.5:
        parse_duration(written)
    else:
        refs.parse_moment(written, NOW)


# ---- the terminal ------------------------------------------------------------------------------------

_SEQUENCES = (
    b"\x1b[",
    b"\x1b]0;",
    b"\x1bP",
    b"\x1b(",
    b"\x1b[?1049h",
    b"\x1b[?2004",
    b"\x1b[38;5;",
    b"\x1b[48;2;1;2;3m",
    b"\x1b]133;A;k=",
    b"\x1b]133;D;0",
    b"\x07",
    b"\x1b\\",
    b"\r\n",
    b"\t",
    b"\b",
    b"\x0e",
    b"\x1b7",
    b"\x1b8",
    b"\x1bM",
    b"\x1b[999999999999b",
    b"\x1b[1000S",
    b"\x1b[5;2r",
    b"\x1b[6n",
    b"\x1b[>4;2m",
    b"\x1b[22t",
    b"\xff",
    b"\xe2\x82",
    "日本e\u0301".encode(),
    b"h",
    b"m",
    b"H",
    b";",
    b"1",
    b"K",
    b"J",
    b"X" * 50,
)


def _terminal(random: Random, _folder: Path) -> None:
    screen = Screen(random.randint(1, 30), random.randint(1, 90))
    for _ in range(random.randint(1, 6)):
        data = b"".join(random.choice(_SEQUENCES) for _ in range(random.randrange(25)))
        screen.feed(damaged(random, data) if random.random() < 0.5 else data)
        if random.random() < 0.2:
            screen.resize(random.randint(1, 30), random.randint(1, 90))
    again = Screen.load(screen.dump())
    assert again.text() == screen.text()
    assert again.dump() == screen.dump()
    escapes.strip_bytes(screen.redraw() + screen.leave())


def _screen_dump(random: Random, _folder: Path) -> None:
    screen = Screen(5, 20)
    screen.feed(b"".join(random.choice(_SEQUENCES) for _ in range(20)))
    dumped = screen.dump()
    if random.random() < 0.3:
        Screen.load(damaged(random, dumped))
        return
    state = json.loads(zlib.decompress(dumped[len(DUMP_MAGIC) :]))
    changed = json.dumps(damaged_json(random, state)).encode()
    loaded = Screen.load(DUMP_MAGIC + zlib.compress(changed))
    loaded.feed(b"abc\r\n\x1b[2J")
    loaded.dump()


# ---- commands and policies ---------------------------------------------------------------------------

_COMMANDS = tuple(
    line.replace("⏎", "\n")
    for line in (Path(__file__).parents[1] / "unit" / "commands.txt").read_text().splitlines()
    if line and not line.startswith("== ")
)
_policy = cache(Policy)


def _command(random: Random, _folder: Path) -> None:
    line = damaged_text(random, random.choice(_COMMANDS))
    if random.random() < 0.3:
        line += random.choice((" | ", " && ", "; ", " $(", " <(", "\n", " <<E\n")) + random.choice(_COMMANDS)
    _policy().judge(line, cwd="/srv/app")


def _policy_file(random: Random, _folder: Path) -> None:
    check(damaged_text(random, built_in_text() if random.random() < 0.2 else _POLICY))


_POLICY = """
[decisions]
irreversible = "ask"

[[rule]]
command = "deploy [--to TARGET] *"
class = "irreversible"
reason = "deploys {TARGET}"
"""


def _redaction(random: Random, _folder: Path) -> None:
    redactor = Redactor.for_variables({"TOKEN": "s3cr3t-value-9", sendable(text(random)): text(random)})
    given = " ".join(
        random.choice((*_SECRETS, text(random), random.choice(_COMMANDS))) for _ in range(random.randrange(6))
    )
    redactor.redact(damaged_text(random, given))
    redactor.redact_patch(given)
    redactor.redact_json(value(random))


_SECRETS = (
    "TOKEN=abc",
    "--password hunter2",
    "https://u:p@h/x",
    "-----BEGIN RSA PRIVATE KEY-----",
    "Authorization: Bearer x",
    "AKIAABCDEFGHIJKLMNOP",
    "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
    "\n+",
    "\n-",
    "@@ -1 +1 @@\n",
    "{",
    "}",
    '"key": "',
)


# ---- archives ----------------------------------------------------------------------------------------


@cache
def _tar(docker: bool) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind in (
            ("etc", tarfile.DIRTYPE),
            ("etc/passwd", tarfile.REGTYPE),
            ("bin", tarfile.SYMTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, "usr/bin" if name == "bin" else "", 0o755
            member.size = 40 if name == "etc/passwd" else 0
            member.pax_headers = {"SCHILY.xattr.user.note": "x", "path": name}
            tar.addfile(member, io.BytesIO(b"root:x:0:0:root:/root:/bin/bash\n" + bytes(8)))
        hard = tarfile.TarInfo("etc/copy")
        hard.type, hard.linkname = tarfile.LNKTYPE, "etc/passwd"
        tar.addfile(hard)
        tar.addfile(tarfile.TarInfo("etc/.wh.gone"))
    if not docker:
        return layer.getvalue()
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as tar:
        manifest = json.dumps([{"Config": "c.json", "Layers": ["l/layer.tar"]}]).encode()
        for name, data in (("l/layer.tar", layer.getvalue()), ("c.json", b"{}"), ("manifest.json", manifest)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return image.getvalue()


def _archive(random: Random, folder: Path) -> None:
    file, root = folder / "archive.tar", folder / "root"
    file.write_bytes(damaged(random, _tar(random.random() < 0.5)))
    root.mkdir(exist_ok=True)
    unpacker = bases.Unpacker(root)
    with contextlib.closing(unpacker):
        bases.unpack(file, unpacker, folder, lambda *_: None)
        unpacker.finish()
    assert not (folder.parent / "gone").exists()


# ---- images, points, streams -------------------------------------------------------------------------


@cache
def _image() -> bytes:
    timer = images.encode({1: 17, 2: 1, 12: images.encode({1: 1, 5: 3, 6: 0, 7: 0, 8: 0, 9: 0, 10: 500})})
    address = images.encode({1: 4, 2: 1, 4: images.encode({11: 0x0109080A})})
    bodies = (timer, address, images.encode({1: 7, 3: 0, 6: 40, 64: 1 << 63}))
    return bytes(8) + b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def _criu_images(random: Random, folder: Path) -> None:
    names = ("tty-info.img", "files.img", "remap-fpath.img", "stats-dump", "inventory.img", "pstree.img")
    for name in names:
        (folder / name).write_bytes(damaged(random, _image()))
    state = images.TreeState(
        anchor=2, status_pipe=0, foreground=0, last_pid=9, ipc=False, network_locked=False
    )
    (folder / "tree.json").write_bytes(damaged(random, msgspec.json.encode(state)))
    readers: tuple[Callable[[Path], object], ...] = (
        images.inner_terminals,
        images.bound_addresses,
        images.has_link_remaps,
        images.dump_stats,
        images.read_state,
    )
    random.choice(readers)(folder)


def _sizes(random: Random, folder: Path) -> None:
    (folder / "core.img").write_bytes(b"x" * 20)
    images.record_sizes(folder)
    recorded = folder / "sizes.json"
    recorded.write_bytes(damaged(random, recorded.read_bytes()))
    images.check_sizes(folder)


def _point_file(random: Random, folder: Path) -> None:
    good = {"version": 1, "point": _point_template(), "session": {"name": "work", "id": "ab"}}
    (folder / "point.json").write_bytes(json.dumps(damaged_json(random, good)).encode())
    pointfile.read(folder)
    (folder / "point.json").write_bytes(random.randbytes(50))
    assert pointfile.read(folder) is None


def _send_stream(random: Random, _folder: Path) -> None:
    head = b"btrfs-stream\0" + struct.pack("<I", 1)
    path = struct.pack("<HH", 15, 3) + b"a/b"

    def command(number: int, body: bytes) -> bytes:
        return struct.pack("<IHI", len(body), number, 0) + body

    good = head + b"".join(command(number, path) for number in (1, 3, 9, 11, 17, 19)) + command(21, b"")
    stream = io.BytesIO(damaged(random, good))
    for _ in deltas.parse_stream(lambda: stream.read(64)):
        pass


def _dns(random: Random, _folder: Path) -> None:
    dns.parse(damaged(random, _DNS))


_DNS = bytes.fromhex(
    "4500004c000040004011000001010101c0a80002003514e90038000012348180000100010000000003777777076578616d706c65"
    "03636f6d0000010001c00c0001000100000e1000045db8d822"
)


# ---- requests from inside, agents, hooks -------------------------------------------------------------


def _door(random: Random, _folder: Path) -> None:
    words = (PROTOCOL, "0" * 32, "ask", "80", "/root", "checkpoint", "--name", "x", "a text")
    kind, request = read_request(damaged(random, "\0".join(words).encode() + b"\0"), 0)
    assert kind in ("ask", "again", "done")
    assert request.cwd.startswith("/")


def _record(random: Random, _folder: Path) -> None:
    what = random.choice(("user", "assistant", "tool_call", "tool_result", "note", text(random, 8)))
    agent_event(what, value(random), {"name": value(random, 1), "call": value(random, 1)})


def _tasks(random: Random, _folder: Path) -> None:
    all_tasks: tasks.Tasks = ()
    for _ in range(random.randrange(6)):
        under = random.choice((None, None, text(random, 5), "1", "1.1"))
        with contextlib.suppress(WaypointError):
            all_tasks, _ = tasks.add(all_tasks, sendable(text(random)), under)
    assert tasks.load(tasks.dump(all_tasks)) == all_tasks
    tasks.find(all_tasks, text(random, 6))


def _hook(random: Random, _folder: Path) -> None:
    payload = {
        "hook_event_name": random.choice(
            ("PreToolUse", "PostToolUse", "Stop", "SessionStart", "UserPromptSubmit")
        ),
        "tool_name": random.choice(("Bash", "Edit", "Write", "shell", "apply_patch")),
        "tool_input": {"command": "ls -l", "file_path": "/x", "content": "y"},
        "tool_response": {"stdout": "z", "exit_code": 1},
        "session_id": "abc",
        "cwd": "/srv",
        "prompt": "do it",
    }
    given = json.dumps(damaged_json(random, payload))
    agent = random.choice((Claude(), Codex()))
    handler.parse(agent, damaged_text(random, given) if random.random() < 0.2 else given)


def _hook_settings(random: Random, folder: Path) -> None:
    good = {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "x"}]}]}}
    (folder / ".claude").mkdir(exist_ok=True)
    (folder / ".codex").mkdir(exist_ok=True)
    written = json.dumps(damaged_json(random, good))
    (folder / ".claude" / "settings.local.json").write_text(
        sendable(damaged_text(random, written)) if random.random() < 0.3 else written
    )
    (folder / ".mcp.json").write_text(
        json.dumps(damaged_json(random, {"mcpServers": {"x": {"command": "y"}}}))
    )
    (folder / ".codex" / "config.toml").write_text(
        sendable(damaged_text(random, '[mcp_servers.x]\ncommand = "y"\n'))
    )
    agent = random.choice(("claude", "codex"))
    for edit in config.edits(agent, folder, config.Installation(("/opt/waypoint",), session="work")):
        edit.write()
    with contextlib.suppress(tomllib.TOMLDecodeError):
        config.installed(agent, folder)


# ---- what a card reads -------------------------------------------------------------------------------


class _Files:
    """A view of files that are in memory."""

    def __init__(self, files: dict[str, bytes], folder: Path) -> None:
        self._files, self._folder = files, folder
        for path, content in files.items():
            at = folder / path.lstrip("/")
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(content)

    def _at(self, path: str) -> Path:
        return self._folder / path.lstrip("/")

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def lstat(self, path: str) -> Any:
        return self._at(path).lstat()

    def read(self, path: str, limit: int = 1 << 24) -> bytes:
        return self._at(path).read_bytes()[:limit]

    def attributes_of(self, path: str) -> dict[str, bytes]:
        return {}

    def listdir(self, path: str) -> list[str]:
        return [entry.name for entry in self._at(path).iterdir()]

    def open(self, path: str) -> Any:
        return self._at(path).open("rb")


@cache
def _database() -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO notes (text) VALUES (?)", [(f"note {n}",) for n in range(200)])
        connection.commit()
        return connection.serialize()


_PACKAGE_FILES: dict[str, bytes] = {
    "/var/lib/dpkg/status": b"Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n\n",
    "/var/lib/apt/extended_states": b"Package: bash\nArchitecture: amd64\nAuto-Installed: 1\n\n",
    "/lib/apk/db/installed": b"P:musl\nV:1.2\n\n",
    "/v/lib/python3.11/site-packages/a-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: a\nVersion: 1\n",
    "/app/package-lock.json": b'{"lockfileVersion": 3, "packages": {"node_modules/a": {"version": "1.0.0"}}}',
    "/app/node_modules/a/package.json": b'{"name": "a", "version": "1.0.0"}',
    "/app/package.json": b'{"dependencies": {"a": "^1"}}',
    "/app/Cargo.lock": b'[[package]]\nname = "a"\nversion = "1.0.0"\n',
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/bash\nnew:x:1000:1000::/home/new:/bin/sh\n",
    "/etc/group": b"root:x:0:\nsudo:x:27:new\n",
    "/var/spool/cron/crontabs/root": b"* * * * * true\n",
    "/repo/.git/HEAD": b"ref: refs/heads/main\n",
    "/repo/.git/config": b"[core]\n\trepositoryformatversion = 0\n",
    "/repo/.git/refs/heads/main": b"0123456789012345678901234567890123456789\n",
    "/repo/.git/packed-refs": b"# pack-refs with: peeled\n" + b"01" * 20 + b" refs/tags/v1\n",
    "/repo/.git/index": b"DIRC\0\0\0\2\0\0\0\1" + bytes(62) + b"\0\5a.txt" + bytes(20),
    "/repo/.gitignore": b"*.log\n!keep.log\n",
    "/repo/.git/objects/aa/aa": b"x\x9cK\xca\xc9OR04`\0\0",
    "/app/app.db-wal": struct.pack(">IIIIIIII", 0x377F0682, 3007000, 4096, 0, 1, 2, 3, 4) + bytes(200),
}


def _analyzers(random: Random, folder: Path) -> None:
    good = {**_PACKAGE_FILES, "/app/app.db": _database()}
    paths = random.sample(sorted(good), random.randint(2, 10))
    if random.random() < 0.5:  # a repository is only one as a whole
        paths = sorted({*paths, *(path for path in good if path.startswith("/repo"))})
    old = {path: good[path] for path in paths if random.random() < 0.7}
    new = {path: damaged(random, good[path]) for path in paths}
    found = analyze(_Files(old, folder / "old"), _Files(new, folder / "new"), sorted(paths))
    assert not [gap for gap in found.gaps if "Error" in gap.reason and "is a bug" in gap.reason]


def targets() -> Iterator[Target]:
    """All readers."""
    yield Target("refs", _ref, weight=20)
    yield Target("names", _name)
    yield Target("times", _time)
    yield Target("terminal streams", _terminal)
    yield Target("terminal dumps", _screen_dump, (ValueError,), weight=5)
    yield Target("commands", _command, (), weight=20)
    yield Target("policies", _policy_file, weight=2)
    yield Target("redaction", _redaction, (), weight=5)
    yield Target("archives", _archive, weight=5)
    yield Target(
        "CRIU's images", _criu_images, (WaypointError, ValueError, LookupError, struct.error), weight=5
    )
    yield Target("recorded sizes", _sizes, weight=3)
    yield Target("point files", _point_file, (), weight=3)
    yield Target("send streams", _send_stream, (deltas.CannotCompare,))
    yield Target("DNS answers", _dns, dns.CUT_OFF)
    yield Target("requests at a door", _door, (ValueError,))
    yield Target("records", _record)
    yield Target("tasks", _tasks)
    yield Target("hook events", _hook)
    yield Target("hook settings", _hook_settings, weight=3)
    yield Target("cards", _analyzers, (), weight=2)
