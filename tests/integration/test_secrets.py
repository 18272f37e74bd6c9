"""A secret that a session uses is nowhere outside its points, and in no file after its points are gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

import waypoint
from waypoint.home import Home

CANARY = "ghp_" + "Zq8vT2mXw5Lk9RsJ4hNcY7bDpGf3"
PLAIN = "canary7word"
"""A password without a shape: it is known by its place alone."""


def _holding(data: bytes) -> list[str]:
    return [secret for secret in (CANARY[4:], PLAIN) if secret.encode() in data]


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path


def _leaks(home: Home) -> list[str]:
    """Files of a home with a secret in them, without its pool: points hold what the session held."""
    files = (*_files(home.run), *(one for one in home.path.iterdir() if one.is_file()))
    return [
        f"{path}: {secrets}"
        for path in files
        if path.name != "pool.img" and (secrets := _holding(path.read_bytes()))
    ]


def test_a_secret_is_in_no_record_of_a_session(session: waypoint.Session, home: Home, tmp_path: Path) -> None:
    """Database, log, run folder, trace, cast, export of the trace, answers on the command line, errors."""
    lines = (
        f"export GITHUB_TOKEN={CANARY}; echo $GITHUB_TOKEN",
        f"curl -s -u ann:{PLAIN} http://127.0.0.1:1/ -d token={CANARY}",
        f"echo ann:{PLAIN} | chpasswd",
        f"docker login -u ann -p {PLAIN} 127.0.0.1:1",
        f"./unknown-program --password {PLAIN}; nc 127.0.0.1 1 <<< 'password={PLAIN}'",
        f"git push https://ann:{PLAIN}@127.0.0.1:1/x main",
        f"psql postgres://ann:{PLAIN}@127.0.0.1:1/x -c 'select 1'",
    )
    for line in lines:
        session.run(line, on_approval=lambda _: True, timeout=20)
    with pytest.raises(waypoint.WaypointError) as refused:
        session.run(f"npm publish --token={CANARY} --password={PLAIN}", on_approval="deny")
    assert not _holding(json.dumps(refused.value.as_dict()).encode())
    session.record("user", f"my password is: password={PLAIN}, token {CANARY}")
    point = session.checkpoint(f"with password={PLAIN} and {CANARY}")
    session.tasks.add(f"use token {CANARY}")
    session.checkpoint("after")
    session.cast(tmp_path / "cast")
    told = [*session.trace(), *session.effects(), *session.approvals(all=True)]
    (tmp_path / "trace").write_text(repr(told))
    faces = (["trace"], ["effects"], ["log"], ["show", "@-"], ["status"], ["diff", "@-"], ["ls"], ["resume"])
    for words in faces:
        command = [sys.executable, "-m", "waypoint", *words, "--json"]
        command += ["-s", session.name] if words[0] != "ls" else []
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert not _holding(done.stdout + done.stderr), words
    assert not [path for path in _files(tmp_path) if _holding(path.read_bytes())]
    assert point.name is None or PLAIN not in point.name
    assert _leaks(home) == []


def _on_disk(path: Path, secret: bytes) -> bool:
    """Whether the bytes of a file that are on the disk have a secret. Most of a pool's file is a hole."""
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return False
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            while start < at:
                if secret in os.pread(file.fileno(), min(1 << 24, at - start), start):
                    return True
                start += 1 << 24
    return False


def test_forget_and_prune_take_a_secret_off_the_disk(session: waypoint.Session, home: Home) -> None:
    secret = os.urandom(24).hex().encode()
    session.write_file("/srv/secret", secret * 400)
    point = session.checkpoint("with the secret", durable=True)
    assert _on_disk(home.path / "pool.img", secret), "the search finds what is there"
    session.run("rm /srv/secret").check()
    session.checkpoint("without it")
    point.forget(force=True)
    waypoint.Client().prune()
    assert [path for path in home.path.iterdir() if path.is_file() and _on_disk(path, secret)] == []


def test_a_forgotten_secret_leaves_the_disk_behind_the_answer(session: waypoint.Session, home: Home) -> None:
    secret = os.urandom(24).hex().encode()
    session.write_file("/srv/secret", secret * 400)
    point = session.checkpoint("with the secret", durable=True)
    session.run("rm /srv/secret").check()
    session.checkpoint("without it")
    assert _on_disk(home.path / "pool.img", secret)
    point.forget(force=True)
    until(lambda: not _on_disk(home.path / "pool.img", secret), seconds=30)
