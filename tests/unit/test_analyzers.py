"""Analyzers, over what pip, git, SQLite and dpkg really leave behind. A point is a copy of a folder here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from waypoint.history.analyzers import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    Finding,
    Gap,
    PackageChange,
    RepositoryChange,
    TableChange,
    View,
    analyze,
    headline,
)
from waypoint.history.analyzers.packages import move
from waypoint.history.analyzers.reading import Outcome


class Folder:
    """A view of a plain folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.calls = 0

    def _at(self, path: str) -> str:
        self.calls += 1
        assert path.startswith("/")
        assert os.path.normpath(path) == path
        return f"{self._root}{path}"

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._at(path))

    def lstat(self, path: str) -> os.stat_result:
        return os.lstat(self._at(path))

    def read(self, path: str, limit: int = 1 << 24) -> bytes:
        with open(self._at(path), "rb") as file:
            return file.read(limit)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(self._at(path))


class Box:
    """A folder that lives; `look` says what its files mean since the last look."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self._old = folder / "old"
        self._old.mkdir()

    def write(self, path: str, text: str) -> Path:
        where = self.root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)
        return where

    def touched(self) -> list[str]:
        def listed(root: Path) -> dict[str, tuple[int, ...]]:
            found = {}
            for here, folders, names in os.walk(root):
                for name in (*folders, *names):
                    path = os.path.join(here, name)
                    about = os.lstat(path)
                    folder = os.path.isdir(path) and not os.path.islink(path)
                    found[path[len(str(root)) :]] = (0,) if folder else (about.st_size, about.st_mtime_ns)
            return found

        before, after = listed(self._old), listed(self.root)
        return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))

    def checkpoint(self) -> None:
        shutil.rmtree(self._old)
        shutil.copytree(self.root, self._old, symlinks=True)

    def views(self) -> tuple[View, View]:
        return Folder(self._old), Folder(self.root)

    def look(self, **options: float) -> Analysis:
        old, new = self.views()
        found = analyze(old, new, self.touched(), **options)  # type: ignore[arg-type]
        assert msgspec.json.decode(msgspec.json.encode(found), type=Analysis) == found
        return found


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def packages(found: Analysis) -> list[tuple[str, str, str | None, str | None]]:
    changes = [change for change in found.findings if isinstance(change, PackageChange)]
    assert found.gaps == ()
    return [(change.change, change.name, change.before, change.after) for change in changes]


def only[Kind: Finding](found: Analysis, kind: type[Kind]) -> Kind:
    assert found.gaps == ()
    [finding] = found.findings
    assert isinstance(finding, kind)
    return finding
