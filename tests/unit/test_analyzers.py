"""Analyzers, over what pip, git, SQLite and dpkg really leave behind. A point is a copy of a folder here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import pytest
from tests.waiting import until

from waypoint.api.difference import Change, Changes, Difference, LiveDifference
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    Finding,
    Gap,
    PackageChange,
    RepositoryChange,
    ServerChange,
    SystemChange,
    TableChange,
)
from waypoint.history.analyzers import analyze, databases
from waypoint.history.analyzers.packages import move
from waypoint.history.analyzers.reading import Outcome, View
from waypoint.history.redaction import Redactor
from waypoint.text.difference import describe_difference
from waypoint.text.files import name_files, summarize_files
from waypoint.text.findings import describe_gap, summarize_findings
from waypoint.text.plan import _databases


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

    def open(self, path: str) -> BinaryIO:
        return open(self._at(path), "rb")

    def attributes_of(self, path: str) -> dict[str, bytes]:
        where = self._at(path)
        return {name: os.getxattr(where, name) for name in os.listxattr(where)}


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
            found: dict[str, tuple[int, ...]] = {}
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


Kind = TypeVar("Kind", bound=Finding)


def only(found: Analysis, kind: type[Kind]) -> Kind:
    assert found.gaps == ()
    [finding] = found.findings
    assert isinstance(finding, kind)
    return finding


# The frame


def boom(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    yield AccountChange(name="ann", change="created")
    raise ValueError("odd\nbytes")


def slow(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    yield AccountChange(name="bob", change="created")
    while True:
        new.exists("/")
        time.sleep(0.005)


def test_an_analyzer_that_fails_leaves_a_gap_and_what_it_had_found(box: Box) -> None:
    found = analyze(None, Folder(box.root), [], analyzers={"one": boom, "two": slow}, budget_s=0.05)
    assert [finding.name for finding in found.findings if isinstance(finding, AccountChange)] == [
        "ann",
        "bob",
    ]
    assert found.gaps == (
        Gap(analyzer="one", reason="ValueError: odd bytes"),
        Gap(analyzer="two", reason="not done after 0.05 s"),
    )


def test_nothing_is_read_when_nothing_of_interest_was_touched(box: Box) -> None:
    old, new = Folder(box.root), Folder(box.root)
    touched = [f"/srv/site/page{number}.html" for number in range(50_000)]
    start = time.process_time()
    assert analyze(old, new, touched) == Analysis()
    assert time.process_time() - start < 1.5
    assert old.calls + new.calls < 20


def test_names_that_are_no_text_can_still_be_shown(box: Box) -> None:
    repository(box, "/app")
    box.checkpoint()
    (box.root / os.fsdecode(b"app/odd\xff.txt")).write_text("x")
    assert only(box.look(), RepositoryChange).untracked_paths == ("odd\\xff.txt",)


def test_what_is_in_a_folder_that_went_as_a_whole_is_found(box: Box) -> None:
    repository(box, "/srv/app")
    with closing(sqlite3.connect(box.root / "srv/data.bin")) as database:
        database.executescript("CREATE TABLE t(x)")
    box.checkpoint()
    shutil.rmtree(box.root / "srv")
    old, new = box.views()
    assert analyze(old, new, ["/srv"]) == Analysis()
    found = analyze(old, new, ["/srv"], folders=["/srv"])
    assert sorted(summarize_findings(found)) == ["git -app", "sqlite -data.bin"]


# Packages: Debian

NGINX = """Package: nginx
Status: install ok installed
Priority: optional
Maintainer: Debian Nginx Maintainers <pkg-nginx-maintainers@alioth-lists.debian.net>
Architecture: amd64
Version: 1.22.1-9+deb12u3
Depends: libc6 (>= 2.28), nginx-common (<< 1.22.1-9+deb12u3.1~)
Description: small, powerful, scalable web/proxy server
 Nginx ("engine X") is a high-performance web and reverse proxy server
 created by Igor Sysoev.
 Version: not a field
Homepage: https://nginx.org
"""
DPKG = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n"
COMMON = NGINX.replace("Package: nginx", "Package: nginx-common").replace("amd64", "all")
REMOVED = NGINX.replace("install ok installed", "deinstall ok config-files")
STATUS = "/var/lib/dpkg/status"


def test_apt_install_and_purge(box: Box) -> None:
    box.write(STATUS, DPKG)
    box.checkpoint()
    box.write(STATUS, f"{DPKG}\n{NGINX}\n{COMMON}")
    box.write(
        "/var/lib/apt/extended_states", "Package: nginx-common\nArchitecture: amd64\nAuto-Installed: 1\n"
    )
    found = box.look()
    version = "1.22.1-9+deb12u3"
    assert packages(found) == [("added", "nginx", None, version), ("added", "nginx-common", None, version)]
    assert summarize_findings(found) == [f"apt +nginx {version} (and 1 with it)"]
    box.checkpoint()
    box.write(STATUS, f"{DPKG}\n{REMOVED}")
    assert packages(box.look()) == [
        ("removed", "nginx", version, None),
        ("removed", "nginx-common", version, None),
    ]


def test_apt_upgrade_and_a_foreign_architecture(box: Box) -> None:
    box.write(STATUS, f"{DPKG}\n{NGINX}")
    box.checkpoint()
    newer = NGINX.replace("1.22.1-9+deb12u3", "1:1.18.0-6", 1)
    foreign = NGINX.replace("amd64", "i386")
    box.write(STATUS, f"{DPKG}\n{newer}\n{foreign}")
    assert packages(box.look()) == [
        ("upgraded", "nginx", "1.22.1-9+deb12u3", "1:1.18.0-6"),
        ("added", "nginx:i386", None, "1.22.1-9+deb12u3"),
    ]


def test_packages_of_images_without_dpkg_and_of_roots_in_the_root(box: Box) -> None:
    box.write("/var/lib/dpkg/status.d/nginx", NGINX)
    box.write("/srv/jail/var/lib/dpkg/status", NGINX)
    found = box.look()
    assert {change.environment for change in found.findings if isinstance(change, PackageChange)} == {
        "/",
        "/srv/jail",
    }


def test_apk_add(box: Box) -> None:
    box.write("/lib/apk/db/installed", "C:Q1x=\nP:musl\nV:1.2.4-r2\nA:x86_64\n\n")
    box.checkpoint()
    box.write("/lib/apk/db/installed", "C:Q1x=\nP:musl\nV:1.2.4-r2\nA:x86_64\n\nC:Q1y=\nP:jq\nV:1.6-r4\n\n")
    box.write("/etc/apk/world", "jq\n")
    assert summarize_findings(box.look()) == ["apk +jq 1.6-r4"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, "1.0", "added"),
        ("1.0", None, "removed"),
        ("1.9", "1.10", "upgraded"),
        ("2.0", "1.10", "downgraded"),
        ("1.0rc1", "1.0", "upgraded"),
        ("1.0", "1.0.post1", "upgraded"),
        ("2.0.0-beta.2", "2.0.0", "upgraded"),
        ("2.0.0", "2.0.0-next.1", "downgraded"),
        ("1!1.0", "2.0", "downgraded"),
        ("junk", "", "downgraded"),
    ],
)
def test_which_way_a_version_went(before: str | None, after: str | None, expected: str) -> None:
    assert move(before, after) == expected


# Packages: Python


def wheel(folder: Path, name: str, version: str, *, requires: str = "") -> Path:
    """A wheel, made by hand."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"{metadata}\nName: not this\nVersion: 9\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def pip(environment: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), *arguments]
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*command, *options], check=True, env={**os.environ, "PIP_NO_INDEX": "1"}, timeout=100)


@pytest.mark.slow
def test_pip_in_a_virtual_environment(box: Box, tmp_path: Path) -> None:
    environment = box.root / "app/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=100)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "Small_Web", "1.0", requires="tiny-dep")
    wheel(wheels, "tiny_dep", "0.3")
    box.checkpoint()
    pip(environment, "install", f"--find-links={wheels}", "small-web")
    found = box.look()
    assert packages(found) == [("added", "Small_Web", None, "1.0"), ("added", "tiny_dep", None, "0.3")]
    assert [
        (change.direct, change.environment) for change in found.findings if isinstance(change, PackageChange)
    ] == [
        (True, "/app/venv"),
        (False, "/app/venv"),
    ]
    assert summarize_findings(found) == ["pip +Small_Web 1.0 (and 1 with it)"]

    box.checkpoint()
    pip(environment, "install", str(wheel(wheels, "Small_Web", "2.0")))
    found = box.look()
    assert packages(found) == [("upgraded", "Small_Web", "1.0", "2.0")]
    assert summarize_findings(found) == ["pip ~Small_Web 1.0 → 2.0"]

    box.checkpoint()
    pip(
        environment,
        "install",
        "--force-reinstall",
        "--no-deps",
        str(wheels / "Small_Web-2.0-py3-none-any.whl"),
    )
    assert packages(box.look()) == []

    box.checkpoint()
    pip(environment, "uninstall", "--yes", "small-web", "tiny-dep")
    assert summarize_findings(box.look()) == ["pip -Small_Web (and 1 with it)"]


def distribution(box: Box, site: str, name: str, version: str) -> None:
    box.write(f"{site}/{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")


def test_distributions_are_found_in_every_kind_of_place_and_only_there(box: Box) -> None:
    for number, site in enumerate([
        "/usr/local/lib/python3.11/dist-packages",
        "/root/.local/lib/python3.11/site-packages",
        "/root/.pyenv/versions/3.12.1/lib/python3.12/site-packages",
        "/app/vendor",
        "/usr/lib/python3/dist-packages",
        "/root/.cache/uv/archive-v0/abc",
        "/app/venv/lib/python3.11/site-packages/setuptools/_vendor",
        "/tmp/pip-install-abc/thing",
    ]):  # fmt: skip
        distribution(box, site, f"p{number}", "1")
    box.write("/usr/local/lib/python3.11/dist-packages/old.egg-info/PKG-INFO", "Name: old\nVersion: 2\n")
    box.write("/usr/local/lib/python3.11/dist-packages/older-3.egg-info", "Name: older\nVersion: 3\n")
    box.write("/app/src/mine.egg-info/PKG-INFO", "Name: mine\nVersion: 0\n")
    places = {c.name: c.environment for c in box.look().findings if isinstance(c, PackageChange)}
    assert places == {
        "p0": "/usr/local",
        "p1": "/root/.local",
        "p2": "/root/.pyenv/versions/3.12.1",
        "p3": "/app/vendor",
        "old": "/usr/local",
        "older": "/usr/local",
    }


def test_the_headline_counts_what_it_cannot_name(box: Box) -> None:
    site = "/app/venv/lib/python3.11/site-packages"
    for name in "abcd":
        distribution(box, site, name, "1")
    distribution(box, "/usr/local/lib/python3.11/dist-packages", "stripe", "12.1.0")
    assert sorted(summarize_findings(box.look())) == [
        "pip +4 in /app/venv",
        "pip +stripe 12.1.0 in /usr/local",
    ]


# Packages: Node, Rust


def lock(packages: dict[str, str], **needs: list[str]) -> str:
    """A lock file; `needs`: what a package depends on."""
    entries = {
        place: {
            "version": version,
            "resolved": "x",
            "license": "MIT",
            "dependencies": dict.fromkeys(needs.get(place.rpartition("node_modules/")[2], ()), "*"),
        }
        for place, version in packages.items()
    }
    return json.dumps({"name": "app", "lockfileVersion": 3, "packages": {"": {"name": "app"}, **entries}})


def test_npm_install_upgrade_and_removal_of_everything(box: Box) -> None:
    box.write("/app/package.json", json.dumps({"dependencies": {"express": "^4"}, "devDependencies": None}))
    box.checkpoint()
    first = {
        "node_modules/express": "4.18.2",
        "node_modules/@types/node": "20.1.0",
        "node_modules/ms": "2.1.3",
        "node_modules/debug/node_modules/ms": "2.0.0",
    }
    needs = {"express": ["ms", "@types/node"]}
    box.write("/app/node_modules/.package-lock.json", lock(first, **needs))
    box.write("/app/package-lock.json", lock(first, **needs))
    found = box.look()
    assert packages(found) == [
        ("added", "@types/node", None, "20.1.0"),
        ("added", "express", None, "4.18.2"),
        ("added", "ms", None, "2.0.0"),
        ("added", "ms", None, "2.1.3"),
    ]
    assert summarize_findings(found) == ["npm +express 4.18.2 (and 3 with it)"]

    box.checkpoint()
    second = {**first, "node_modules/express": "4.19.0"}
    del second["node_modules/ms"]
    second["node_modules/serve/node_modules/ms"] = "2.1.3"  # moved, the same version
    box.write("/app/node_modules/.package-lock.json", lock(second))
    assert packages(box.look()) == [("upgraded", "express", "4.18.2", "4.19.0")]

    box.checkpoint()
    shutil.rmtree(box.root / "app/node_modules")
    assert {change for change, *_ in packages(box.look())} == {"removed"}


def test_packages_that_yarn_or_pnpm_installed_are_read_one_by_one(box: Box) -> None:
    for place in (
        "left-pad",
        "@scope/tool",
        ".pnpm/deep@3.0.0/node_modules/deep",
        "left-pad/node_modules/ms",
    ):
        name = place.rpartition("node_modules/")[2]
        box.write(f"/app/node_modules/{place}/package.json", json.dumps({"name": name, "version": "3.0.0"}))
    box.write("/app/node_modules/left-pad/esm/package.json", '{"type": "module"}')
    box.write("/app/node_modules/left-pad/test/broken/package.json", "{")
    found = box.look()
    assert [name for _, name, _, _ in packages(found)] == ["@scope/tool", "deep", "left-pad", "ms"]
    assert summarize_findings(found) == ["npm +4"]


def test_a_global_package_counts_once(box: Box) -> None:
    box.write("/usr/lib/node_modules/pnpm/package.json", '{"name": "pnpm", "version": "9.1.0"}')
    box.write("/usr/lib/node_modules/pnpm/node_modules/ms/package.json", '{"name": "ms", "version": "2.1.3"}')
    assert summarize_findings(box.look()) == ["npm +pnpm 9.1.0"]


def test_a_lock_file_alone_says_that_nothing_is_installed(box: Box) -> None:
    nested = {"version": "1.0.0", "dependencies": {"b": {"version": "2.0.0"}}}
    box.write("/app/package-lock.json", json.dumps({"lockfileVersion": 1, "dependencies": {"a": nested}}))
    found = box.look()
    assert packages(found) == [("added", "a", None, "1.0.0"), ("added", "b", None, "2.0.0")]
    assert summarize_findings(found) == ["npm locked +a 1.0.0 (and 1 with it)"]

    # Also when there is a node_modules: it was not touched.
    box.write("/app/node_modules/a/package.json", '{"name": "a", "version": "1.0.0"}')
    box.write("/app/node_modules/.package-lock.json", lock({"node_modules/a": "1.0.0"}))
    box.checkpoint()
    box.write("/app/package-lock.json", lock({"node_modules/a": "1.0.0", "node_modules/c": "3.0.0"}))
    found = box.look()
    assert summarize_findings(found) == ["npm locked +c 3.0.0 (and 1 more)"]
    assert not any(one.installed for one in found.findings if isinstance(one, PackageChange))


def test_what_nothing_needs_is_no_dependency(box: Box) -> None:
    """`npm install --no-save`, and a package that only a workspace asks for."""
    box.write("/app/package.json", json.dumps({"dependencies": {"express": "^4"}}))
    box.checkpoint()
    places = {f"node_modules/{name}": "1.0.0" for name in ("express", "ms", "extra", "tool")}
    whole = json.loads(lock(places, express=["ms"]))
    box.write("/app/node_modules/.package-lock.json", json.dumps(whole))
    found = box.look()
    direct = {one.name for one in found.findings if isinstance(one, PackageChange) and one.direct}
    assert direct == {"express", "extra", "tool"}


PNPM = """lockfileVersion: '9.0'

importers:

  .:
    dependencies:
      is-odd:
        specifier: ^3.0.1
        version: 3.0.1
{more}
packages:

  is-number@6.0.0:
    resolution: {{integrity: sha512-x==}}
    engines: {{node: '>=0.10.0'}}

  is-odd@3.0.1:
    resolution: {{integrity: sha512-y==}}
{packages}
snapshots:

  is-number@6.0.0: {{}}

  is-odd@3.0.1:
    dependencies:
      is-number: 6.0.0
"""
SCOPED = """
  '@scope/x@1.2.0(react@18.0.0)':
    resolution: {integrity: sha512-z==}
"""


def test_pnpm_add_and_remove(box: Box) -> None:
    box.write("/app/package.json", '{"dependencies": {"is-odd": "1"}}')
    box.checkpoint()
    wanted = "      '@scope/x':\n        specifier: 1\n        version: 1.2.0\n"
    box.write("/app/node_modules/.pnpm/lock.yaml", PNPM.format(more=wanted, packages=SCOPED))
    box.write("/app/node_modules/.pnpm/is-odd@3.0.1/node_modules/is-odd/package.json", '{"version": "3.0.1"}')
    box.write("/app/pnpm-lock.yaml", PNPM.format(more=wanted, packages=SCOPED))
    found = box.look()
    assert packages(found) == [
        ("added", "@scope/x", None, "1.2.0"),
        ("added", "is-number", None, "6.0.0"),
        ("added", "is-odd", None, "3.0.1"),
    ]
    assert summarize_findings(found) == ["npm +@scope/x, +is-odd (and 1 with them)"]
    box.checkpoint()
    # The package stays in pnpm's store below node_modules; its link and its entry in the list go.
    box.write("/app/node_modules/.pnpm/lock.yaml", PNPM.format(more="", packages=""))
    box.write("/app/pnpm-lock.yaml", PNPM.format(more="", packages=""))
    assert summarize_findings(box.look()) == ["npm -@scope/x"]
    box.checkpoint()
    box.write("/app/pnpm-lock.yaml", PNPM.format(more=wanted, packages=SCOPED))
    assert summarize_findings(box.look()) == ["npm locked +@scope/x 1.2.0"]


@pytest.mark.parametrize(
    "place",
    [
        "/root/.npm/_npx/af12/node_modules/cowsay/package.json",
        "/root/.npm/_npx/af12/node_modules/.package-lock.json",
        "/root/.npm/_npx/af12/package-lock.json",
        "/root/.cache/yarn/v6/npm-ms-2.1.3-abc/node_modules/ms/package.json",
        "/root/.cache/uv/archive-v0/Xy12/flask-3.0.0.dist-info/METADATA",
        "/data/uv/environments-v2/a1/lib/python3.12/site-packages/flask-3.0.0.dist-info/METADATA",
        "/root/.cache/pre-commit/repo1/py_env/lib/python3.11/site-packages/black-1.0.dist-info/METADATA",
        "/opt/conda/pkgs/numpy-1.26.0-py311_0/lib/python3.11/site-packages/numpy-1.26.0.dist-info/METADATA",
        "/root/.cargo/registry/src/index/serde-1.0.0/Cargo.lock",
    ],
)
def test_what_a_cache_holds_is_not_installed(box: Box, place: str) -> None:
    manifest = "Metadata-Version: 2.1\nName: flask\nVersion: 3.0.0\n"
    if place.endswith("Cargo.lock"):
        manifest = '[[package]]\nname = "serde"\nversion = "1.0.0"\n'
    elif place.endswith("lock.json"):
        manifest = lock({"node_modules/ms": "2.1.3"})
    elif place.endswith(".json"):
        manifest = '{"name": "ms", "version": "2.1.3"}'
    box.write(place, manifest)
    assert box.look() == Analysis()


def test_environments_of_poetry_are_installed(box: Box) -> None:
    site = "/root/.cache/pypoetry/virtualenvs/app-x/lib/python3.11/site-packages"
    box.write(f"{site}/flask-3.0.0.dist-info/METADATA", "Name: flask\nVersion: 3.0.0\n")
    box.write(f"{site}/flask-3.0.0.dist-info/INSTALLER", "Poetry 1.8.0\n")
    box.write(f"{site}/click-8.0.dist-info/METADATA", "Name: click\nVersion: 8.0\n")
    box.write(f"{site}/click-8.0.dist-info/INSTALLER", "Poetry 1.8.0\n")
    found = box.look()
    assert summarize_findings(found) == ["pip +click, +flask"]
    assert all(one.direct for one in found.findings if isinstance(one, PackageChange)), "Poetry does not tell"


def test_conda(box: Box) -> None:
    def meta(name: str, version: str, spec: str, *depends: str) -> None:
        record = {
            "name": name,
            "version": version,
            "requested_spec": spec,
            "depends": depends,
            "files": ["a"],
        }
        box.write(f"/opt/conda/conda-meta/{name}-{version}-0.json", json.dumps(record))

    meta("numpy", "1.26.0", "numpy", "blas 1.*", "python >=3.11")
    meta("blas", "1.0", "None")
    meta("extra", "2.0", "None")
    site = "/opt/conda/lib/python3.11/site-packages/numpy-1.26.0.dist-info"
    box.write(f"{site}/METADATA", "Name: numpy\nVersion: 1.26.0\n")
    box.write(f"{site}/INSTALLER", "conda")
    found = box.look()
    assert packages(found) == [
        ("added", "blas", None, "1.0"),
        ("added", "extra", None, "2.0"),
        ("added", "numpy", None, "1.26.0"),
    ]
    assert summarize_findings(found) == ["conda +extra, +numpy (and 1 with them)"]
    box.checkpoint()
    (box.root / "opt/conda/conda-meta/numpy-1.26.0-0.json").unlink()
    meta("numpy", "2.0.0", "numpy")
    assert summarize_findings(box.look()) == ["conda ~numpy 1.26.0 → 2.0.0"]
    box.checkpoint()
    # What a package needs that has not changed itself is still a dependency.
    meta("extra", "2.0", "extra", "zlib")
    box.checkpoint()
    meta("zlib", "1.3", "None")
    assert only(box.look(), PackageChange).direct is False


def test_lock_files_of_python_and_rust_say_that_they_are(box: Box) -> None:
    package = '[[package]]\nname = "{}"\nversion = "{}"\n'
    own = '[[package]]\nname = "app"\nversion = "0.1.0"\nsource = { editable = "." }\n'
    box.write("/app/uv.lock", f"version = 1\n{own}{package.format('idna', '3.6')}")
    box.write("/crate/Cargo.lock", f"version = 3\n{package.format('serde', '1.0.0')}")
    assert sorted(summarize_findings(box.look())) == ["cargo locked +serde 1.0.0", "pip locked +idna 3.6"]
    box.checkpoint()
    # What was installed too is told once.
    box.write("/app/uv.lock", f"version = 1\n{own}{package.format('idna', '3.7')}")
    site = "/app/.venv/lib/python3.12/site-packages/idna-3.7.dist-info"
    box.write(f"{site}/METADATA", "Name: idna\nVersion: 3.7\n")
    assert summarize_findings(box.look()) == ["pip +idna 3.7"]


def test_apt_says_as_a_dependency_only_of_what_is_one_now(box: Box) -> None:
    """`apt install` by name of a package that was a dependency before."""
    states = "Package: libssl3\nArchitecture: amd64\nAuto-Installed: 1\n"
    box.write("/var/lib/apt/extended_states", states)
    old = "Package: libssl3\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
    box.write("/var/lib/dpkg/status", old)
    box.checkpoint()
    box.write("/var/lib/apt/extended_states", "\n")
    box.write("/var/lib/dpkg/status", old.replace("Version: 1", "Version: 2"))
    assert only(box.look(), PackageChange).direct


def test_a_broken_lock_file_is_a_gap_and_hides_no_other_project(box: Box) -> None:
    box.write("/a/package-lock.json", "{")
    box.write("/b/package-lock.json", lock({"node_modules/ms": "2.1.3"}))
    found = box.look()
    assert [(gap.analyzer, gap.path) for gap in found.gaps] == [("npm", "/a")]
    assert summarize_findings(found) == ["npm locked +ms 2.1.3"]


def test_cargo_install(box: Box) -> None:
    def crates(*names: str) -> str:
        return json.dumps(
            {"installs": {f"{name} (registry+https://example.org/index)": {"bins": []} for name in names}}
        )

    box.write("/root/.cargo/.crates2.json", crates("ripgrep 13.0.0"))
    box.checkpoint()
    box.write("/root/.cargo/.crates2.json", crates("ripgrep 14.1.0", "fd-find 9.0.0"))
    assert summarize_findings(box.look()) == ["cargo +fd-find, ~ripgrep"]


# Git


def git(where: Path, *arguments: str) -> str:
    identity = {f"GIT_{role}_{key}": "ann" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    environment = {
        **os.environ,
        **identity,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=where,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def repository(box: Box, path: str) -> Path:
    """One commit with two files."""
    box.write(f"{path}/README", "hello\n")
    box.write(f"{path}/api/pay.py", "pay = 1\n")
    where = box.root / path.lstrip("/")
    git(where, "init", "--quiet", "--initial-branch=main")
    git(where, "add", ".")
    git(where, "commit", "--quiet", "--message=first")
    return where


@pytest.fixture
def clone(box: Box) -> Path:
    where = repository(box, "/app")
    box.checkpoint()
    return where


def test_commits_branch_and_both_lies_of_git(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "fix-auth")
    box.write("/app/api/auth.py", "auth = 1\n")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "--message=add auth")
    box.write("/app/api/auth.py", "auth = 2\n")
    git(clone, "commit", "--quiet", "--all", "--message=repair it")
    box.write("/app/.env.local", "x=1\n")
    box.write("/app/node_modules/ms/index.js", "")
    found = box.look()
    change = only(found, RepositoryChange)
    assert change.path == "/app"
    assert change.change == "changed"
    assert (change.branch_before, change.branch_after) == ("main", "fix-auth")
    assert change.head_after == git(clone, "rev-parse", "HEAD") == change.commits[0].id
    assert [commit.subject for commit in change.commits] == ["repair it", "add auth"]
    assert change.commit_count == 2
    assert change.moves == ("checkout: moving from main to fix-auth",)
    assert [(moved.branch, moved.before) for moved in change.branches] == [("fix-auth", None)]
    assert (change.committed, change.staged, change.modified) == (1, 0, 0)
    assert (change.untracked, change.untracked_paths) == (1, (".env.local",))
    assert change.untracked_folded == 1
    assert summarize_findings(found) == ['git 2 commits on fix-auth "repair it", 1 untracked']


def test_what_is_staged_modified_deleted_and_only_rewritten(box: Box, clone: Path) -> None:
    box.write("/app/README", "changed\n")
    box.write("/app/api/new.py", "new = 1\n")
    git(clone, "add", "api/new.py")
    (clone / "api/pay.py").write_text("pay = 1\n")  # the same bytes at another time
    change = only(box.look(), RepositoryChange)
    assert (change.committed, change.staged, change.modified, change.untracked) == (0, 1, 1, 0)
    assert change.modified_paths == ("README",)
    assert summarize_findings(box.look()) == []

    (clone / "README").unlink()
    git(clone, "rm", "--quiet", "api/pay.py")
    change = only(box.look(), RepositoryChange)
    assert (change.committed, change.staged, change.modified) == (0, 2, 1)
    git(clone, "commit", "--quiet", "--all", "--message=away with it")
    change = only(box.look(), RepositoryChange)
    assert (change.committed, change.staged, change.modified) == (3, 0, 0)


def test_a_change_in_the_moment_of_the_add_is_seen(box: Box, clone: Path) -> None:
    path = box.write("/app/README", "hullo\n")
    git(clone, "add", "README")
    about = path.stat()
    path.write_text("hallo\n")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    os.utime(clone / ".git/index", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert only(box.look(), RepositoryChange).modified_paths == ("README",)


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_every_index_that_git_writes(box: Box, version: str, kind: str) -> None:
    where = box.root / "app"
    where.mkdir()
    git(where, "init", "--quiet", "--initial-branch=main", f"--object-format={kind}")
    git(where, "config", "index.version", version)
    for number in range(40):
        box.write(f"/app/deep/{number % 7}/file with spaces {number}", str(number))
    git(where, "add", ".")
    if version == "3":
        box.write("/app/intended", "x")
        git(where, "add", "--intent-to-add", "intended")
        box.write("/app/intended", "xy")
    git(where, "update-index", "--index-version", version)
    git(where, "commit", "--quiet", "--message=all")
    box.checkpoint()
    box.write("/app/deep/3/file with spaces 3", "other")
    box.write("/app/deep/4/new", "new")
    (where / "deep/5/file with spaces 5").unlink()
    change = only(box.look(), RepositoryChange)
    assert change.modified_paths == ("deep/3/file with spaces 3", "deep/5/file with spaces 5")
    assert change.untracked_paths == ("deep/4/new",)


def test_amending_resetting_merging_and_picking(box: Box, clone: Path) -> None:
    box.write("/app/a", "1")
    git(clone, "add", "a")
    git(clone, "commit", "--quiet", "--message=wrong words")
    git(clone, "commit", "--quiet", "--amend", "--message=right words")
    git(clone, "checkout", "--quiet", "-b", "side", "HEAD~1")
    box.write("/app/b", "1")
    git(clone, "add", "b")
    git(clone, "commit", "--quiet", "--message=on the side")
    git(clone, "checkout", "--quiet", "main")
    git(clone, "merge", "--quiet", "--no-edit", "side")
    git(clone, "revert", "--no-edit", "HEAD~1")
    git(clone, "reset", "--quiet", "--hard", "HEAD~1")
    change = only(box.look(), RepositoryChange)
    subjects = [commit.subject for commit in change.commits]
    assert subjects[0] == "Merge branch 'side'"
    assert summarize_findings(box.look()) == [
        "git merge on main \"Merge branch 'side'\" and 2 more commits; branch +side (1 commit)"
    ]
    assert sorted(subjects[1:]) == ["on the side", "right words"]
    assert change.lost_count == 0
    assert change.moves[-1] == "reset: moving to HEAD~1"


def test_a_merge_that_waits_to_be_finished(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "side")
    box.write("/app/README", "side\n")
    git(clone, "commit", "--quiet", "--all", "--message=side")
    git(clone, "checkout", "--quiet", "main")
    box.write("/app/README", "main\n")
    git(clone, "commit", "--quiet", "--all", "--message=main")
    box.checkpoint()
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "merge", "side")
    found = box.look()
    change = only(found, RepositoryChange)
    assert change.in_progress == "merge"
    assert change.modified_paths == ("README",)
    assert summarize_findings(found) == ["git merge unfinished"]


def test_tags_fetched_branches_and_the_stash_are_told(box: Box, clone: Path) -> None:
    git(clone, "tag", "v1")
    box.checkpoint()
    git(clone, "tag", "--annotate", "--message=two", "v2")
    git(clone, "tag", "--delete", "v1")
    git(clone, "update-ref", "refs/remotes/hub/main", "HEAD")
    (clone / "api/pay.py").write_text("half done\n")
    git(clone, "stash", "--quiet")
    found = box.look()
    change = only(found, RepositoryChange)
    assert [(ref.kind, ref.name, ref.before is None, ref.after is None) for ref in change.refs] == [
        ("remote branch", "hub/main", True, False),
        ("tag", "v1", False, True),
        ("tag", "v2", True, False),
    ]
    assert (change.stashed, change.unstashed, change.commit_count) == (1, 0, 0)
    assert summarize_findings(found) == ["git tag -v1, +v2; fetched hub/main; 1 stash entry made"]
    box.checkpoint()
    git(clone, "stash", "drop", "--quiet")
    change = only(box.look(), RepositoryChange)
    assert (change.stashed, change.unstashed, change.refs) == (0, 1, ())


def test_clones_come_and_go_and_move(box: Box, clone: Path, tmp_path: Path) -> None:
    git(clone, "pack-refs", "--all")
    git(clone, "gc", "--quiet")
    box.checkpoint()
    git(clone, "clone", "--quiet", str(clone), str(box.root / "copy"))
    found = box.look()
    change = only(found, RepositoryChange)
    assert (change.path, change.change, change.branch_after, change.commit_count) == (
        "/copy",
        "created",
        "main",
        0,
    )
    assert change.committed == 0
    assert summarize_findings(found) == ["git +copy on main"]
    box.checkpoint()
    (box.root / "copy").rename(box.root / "moved")
    box.write("/moved/late", "x")
    found = box.look()
    change = only(found, RepositoryChange)
    assert (change.path, change.moved_from, change.change, change.commit_count) == (
        "/moved",
        "/copy",
        "changed",
        0,
    )
    assert summarize_findings(found) == ["git /copy → /moved"]
    commit(box, box.root / "moved", "/moved/late", "meanwhile")
    assert summarize_findings(box.look()) == ['git /copy → /moved; 1 commit on main "meanwhile"']
    box.checkpoint()
    shutil.rmtree(box.root / "moved")
    assert summarize_findings(box.look()) == ["git -moved"]


def test_a_linked_worktree_and_a_submodule_are_repositories_of_their_own(box: Box, clone: Path) -> None:
    git(clone, "worktree", "add", "--quiet", "-b", "wt", str(box.root / "linked"))
    # What the box sees is not what the host sees: the paths in it are the box's.
    box.write("/linked/.git", "gitdir: /app/.git/worktrees/linked\n")
    box.write("/app/.git/worktrees/linked/gitdir", "/linked/.git\n")
    box.checkpoint()
    own = clone / ".git/worktrees/linked"
    box.write("/linked/extra", "x")
    box.write("/linked/api/pay.py", "pay = 2\n")
    environment = [f"--git-dir={own}", f"--work-tree={box.root / 'linked'}"]
    git(clone, *environment, "add", "api/pay.py")
    git(clone, *environment, "commit", "--quiet", "--message=linked work")
    found = box.look()
    assert found.gaps == ()
    changes = {change.path: change for change in found.findings if isinstance(change, RepositoryChange)}
    linked = changes["/linked"]
    assert linked.worktree_of == "/app"
    assert linked.branch_after == "wt"
    assert [commit.subject for commit in linked.commits] == ["linked work"]
    assert (linked.committed, linked.untracked_paths) == (1, ("extra",))
    assert [moved.branch for moved in changes["/app"].branches] == ["wt"]
    assert changes["/app"].commit_count == 0

    box.checkpoint()
    git(clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(clone), "sub")
    changes = {change.path: change for change in box.look().findings if isinstance(change, RepositoryChange)}
    assert changes["/app/sub"].change == "created"
    assert (changes["/app/sub"].commit_count, changes["/app/sub"].committed) == (0, 0)


def test_commits_are_found_without_a_reflog_and_in_bare_repositories(box: Box, clone: Path) -> None:
    git(clone, "config", "core.logAllRefUpdates", "false")
    shutil.rmtree(clone / ".git/logs")
    git(clone, "clone", "--quiet", "--bare", str(clone), str(box.root / "bare.git"))
    box.checkpoint()
    box.write("/app/README", "two\n")
    git(clone, "commit", "--quiet", "--all", "--message=unlogged")
    git(clone, "push", "--quiet", str(box.root / "bare.git"), "main")
    found = box.look()
    assert found.gaps == ()
    changes = {change.path: change for change in found.findings if isinstance(change, RepositoryChange)}
    assert [commit.subject for commit in changes["/app"].commits] == ["unlogged"]
    assert [commit.subject for commit in changes["/bare.git"].commits] == ["unlogged"]
    assert changes["/bare.git"].bare
    assert [moved.branch for moved in changes["/bare.git"].branches] == ["main"]


def commit(box: Box, where: Path, path: str, subject: str) -> str:
    box.write(path, subject)
    git(where, "add", "--all")
    git(where, "commit", "--quiet", f"--message={subject}")
    return git(where, "rev-parse", "HEAD")


def counts(change: RepositoryChange) -> tuple[int, int]:
    return change.commit_count, change.lost_count


def test_commits_that_were_reset_squashed_or_rebased_away_are_not_told(box: Box, clone: Path) -> None:
    commit(box, clone, "/app/a", "one")
    commit(box, clone, "/app/b", "two")
    git(clone, "reset", "--quiet", "--hard", "HEAD~2")
    assert (change := only(box.look(), RepositoryChange)).commits == ()
    assert counts(change) == (0, 0)
    assert change.moves == ("reset: moving to HEAD~2",)

    commit(box, clone, "/app/a", "one")
    commit(box, clone, "/app/b", "two")
    box.checkpoint()
    git(clone, "reset", "--quiet", "--soft", "HEAD~2")
    git(clone, "commit", "--quiet", "--message=squashed")
    git(clone, "reflog", "expire", "--expire=now", "--all")
    git(clone, "gc", "--quiet", "--prune=now")
    change = only(box.look(), RepositoryChange)
    assert [made.subject for made in change.commits] == ["squashed"]
    assert counts(change) == (1, 2)
    assert change.committed == 0  # the same files as before, in one commit
    assert summarize_findings(box.look()) == ['git 1 commit on main "squashed", lost "two", "one"']

    box.checkpoint()
    git(clone, "checkout", "--quiet", "-b", "topic", "HEAD~1")
    commit(box, clone, "/app/t", "topic work")
    box.checkpoint()
    git(clone, "rebase", "--quiet", "main")
    change = only(box.look(), RepositoryChange)
    assert [made.subject for made in change.commits] == ["topic work", "squashed"]
    assert counts(change) == (2, 1)


def test_commits_that_are_lost_are_named(box: Box, clone: Path) -> None:
    for number in range(4):
        commit(box, clone, "/app/a", f"c{number}")
    git(clone, "checkout", "--quiet", "-b", "side")
    commit(box, clone, "/app/s", "only on the side")
    git(clone, "checkout", "--quiet", "-b", "merged", "main")
    git(clone, "checkout", "--quiet", "main")
    box.checkpoint()
    git(clone, "reset", "--quiet", "--hard", "HEAD~3")
    git(clone, "branch", "--quiet", "-D", "side")
    git(clone, "branch", "--quiet", "-D", "merged")
    change = only(box.look(), RepositoryChange)
    assert [one.subject for one in change.lost] == ["c3", "c2", "c1"]
    # Of two branches that are gone, one had a commit that nothing else has.
    assert {move.branch: (move.lost, move.lost_subjects) for move in change.branches} == {
        "main": (3, ("c3", "c2", "c1")),
        "side": (5 - 1, ("only on the side", "c3", "c2", "c1")),
        "merged": (3, ("c3", "c2", "c1")),
    }
    [words] = summarize_findings(box.look())
    assert words.split("; ") == [
        'git main lost 3 commits: "c3", "c2" and 1 more',
        'branch merged deleted, lost "c3", "c2" and 1 more',
        'branch side deleted, lost "only on the side", "c3" and 2 more',
    ]


def test_a_head_without_a_branch_is_detached(box: Box, clone: Path) -> None:
    first = git(clone, "rev-parse", "HEAD")
    commit(box, clone, "/app/a", "one")
    box.checkpoint()
    git(clone, "checkout", "--quiet", first)
    assert summarize_findings(box.look()) == [f"git main → detached at {first[:7]}"]
    made = commit(box, clone, "/app/b", "astray")
    assert summarize_findings(box.look()) == [f'git 1 commit detached at {made[:7]} "astray"']
    git(clone, "checkout", "--quiet", "main")
    git(clone, "branch", "keep")
    box.checkpoint()
    git(clone, "reset", "--quiet", "--hard", "HEAD~1")
    assert summarize_findings(box.look()) == ['git main lost 1 commit: "one" (still on keep)']


def test_a_commit_on_another_branch_belongs_to_that_branch(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "side")
    commit(box, clone, "/app/s", "on the side")
    git(clone, "checkout", "--quiet", "main")
    change = only(box.look(), RepositoryChange)
    assert counts(change) == (0, 0)
    assert change.committed == 0
    assert [(move.branch, move.gained, move.lost) for move in change.branches] == [("side", 1, 0)]


def test_branches_that_are_not_checked_out_are_in_the_line_of_a_log(box: Box, clone: Path) -> None:
    git(clone, "branch", "side")
    assert summarize_findings(box.look()) == ["git branch +side"]
    git(clone, "checkout", "--quiet", "side")
    commit(box, clone, "/app/s", "one")
    commit(box, clone, "/app/s", "two")
    git(clone, "checkout", "--quiet", "main")
    assert summarize_findings(box.look()) == ["git branch +side (2 commits)"]
    box.checkpoint()
    git(clone, "branch", "--force", "side", "side~1")
    git(clone, "update-ref", "refs/remotes/hub/side", "HEAD")
    assert summarize_findings(box.look()) == ["git branch side -1 commit; fetched hub/side"]
    box.checkpoint()
    git(clone, "branch", "--force", "side", "main")
    git(clone, "update-ref", "-d", "refs/remotes/hub/side")
    box.checkpoint()
    git(clone, "branch", "-D", "side")
    assert summarize_findings(box.look()) == ["git branch -side"]
    git(clone, "branch", "-m", "trunk")
    assert summarize_findings(box.look()) == ["git main → trunk; branch -main, -side"]


def test_a_fetched_branch_that_is_gone_is_told(box: Box, clone: Path) -> None:
    git(clone, "update-ref", "refs/remotes/hub/side", "HEAD")
    box.checkpoint()
    git(clone, "update-ref", "-d", "refs/remotes/hub/side")
    assert summarize_findings(box.look()) == ["git remote branch -hub/side"]


def test_one_of_several_repositories_is_named(box: Box, clone: Path) -> None:
    git(clone, "clone", "--quiet", "--bare", str(clone), str(box.root / "hub.git"))
    box.checkpoint()
    commit(box, clone, "/app/a", "one")
    git(clone, "push", "--quiet", str(box.root / "hub.git"), "main")
    assert summarize_findings(box.look()) == [
        'git app: 1 commit on main "one"',
        'git hub.git: 1 commit on main "one"',
    ]
    git(clone, "push", "--quiet", str(box.root / "hub.git"), "main:next")
    box.checkpoint()
    git(clone, "push", "--quiet", "--force", str(box.root / "hub.git"), "main~1:next")
    assert summarize_findings(box.look()) == ["git hub.git: branch next -1 commit"]


def test_a_merge_that_was_given_up_is_told(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "side")
    commit(box, clone, "/app/README", "side")
    git(clone, "checkout", "--quiet", "main")
    commit(box, clone, "/app/README", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "merge", "side")
    box.checkpoint()
    git(clone, "merge", "--abort")
    found = box.look()
    assert only(found, RepositoryChange).in_progress_before == "merge"
    assert summarize_findings(found) == ["git merge no longer in progress"]
    [section] = describe_difference(Difference(files=Changes(), analysis=found, live=LiveDifference()))
    assert section.summary == "git merge no longer in progress"


def test_what_is_committed_is_not_called_not_committed(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "side")
    git(clone, "checkout", "--quiet", "main")
    git(clone, "branch", "-d", "side")
    found = box.look()
    assert only(found, RepositoryChange).moves
    [section] = describe_difference(Difference(files=Changes(), analysis=found, live=LiveDifference()))
    assert section.summary == "1 repository"
    box.write("/app/new", "x")
    found = box.look()
    [section] = describe_difference(Difference(files=Changes(), analysis=found, live=LiveDifference()))
    assert section.summary == "not committed: /app"


def test_the_branch_that_is_checked_out_is_renamed_once(box: Box, clone: Path) -> None:
    git(clone, "branch", "-m", "trunk")
    assert only(box.look(), RepositoryChange).moves == (
        "Branch: renamed refs/heads/main to refs/heads/trunk",
    )


def test_going_back_invents_no_commits(box: Box, clone: Path) -> None:
    old, _ = box.views()
    commit(box, clone, "/app/a", "one")
    commit(box, clone, "/app/b", "two")
    new = box.views()[1]
    [back] = analyze(new, old, box.touched()).findings
    assert isinstance(back, RepositoryChange)
    assert (back.commits, counts(back), back.moves, back.committed) == ((), (0, 2), (), 0)


def test_worktrees_that_come_and_go(box: Box, clone: Path) -> None:
    for number in range(3):
        commit(box, clone, "/app/a", f"c{number}")
    box.checkpoint()
    git(clone, "worktree", "add", "--quiet", "-b", "wt", str(box.root / "linked"))
    box.write("/linked/.git", "gitdir: /app/.git/worktrees/linked\n")
    box.write("/app/.git/worktrees/linked/gitdir", "/linked/.git\n")
    changes = {change.path: change for change in box.look().findings if isinstance(change, RepositoryChange)}
    assert changes["/linked"].change == "created"
    assert changes["/linked"].worktree_of == "/app"
    assert (counts(changes["/linked"]), changes["/linked"].committed) == ((0, 0), 0)
    assert changes["/linked"].untracked == changes["/linked"].modified == changes["/linked"].staged == 0
    assert [(move.branch, move.gained) for move in changes["/app"].branches] == [("wt", 0)]
    assert "git worktree +linked on wt" in summarize_findings(box.look())
    tip = git(clone, "commit-tree", "-p", "main", "-m", "in the tree", "main^{tree}").strip()
    git(clone, "update-ref", "refs/heads/wt", tip)
    assert 'git worktree +linked: 1 commit on wt "in the tree"' in summarize_findings(box.look())
    box.checkpoint()
    shutil.rmtree(box.root / "linked")
    git(clone, "worktree", "prune")
    changes = {change.path: change for change in box.look().findings if isinstance(change, RepositoryChange)}
    assert {path: change.change for path, change in changes.items()} == {"/linked": "removed"}
    assert summarize_findings(box.look()) == ["git worktree -linked"]
    assert counts(changes["/linked"]) == (0, 0)


def test_ignored_and_deleted_files_are_not_untracked(box: Box, clone: Path) -> None:
    box.write("/app/.gitignore", "*.log\n/build/\n!keep.log\nnode_modules\n")
    box.write("/app/api/.gitignore", "local-*\n")
    commit(box, clone, "/app/x", "rules")
    box.write("/app/scratch", "x")
    box.checkpoint()
    (clone / "scratch").unlink()
    for number in range(40):
        box.write(f"/app/build/{number}", "x")
        box.write(f"/app/node_modules/m/{number}", "x")
    box.write("/app/run.log", "x")
    box.write("/app/keep.log", "x")
    box.write("/app/api/local-settings", "x")
    box.write("/app/api/real", "x")
    box.write("/app/.git/info/exclude", "mine\n")
    box.write("/app/mine", "x")
    os.mkfifo(clone / "pipe")
    change = only(box.look(), RepositoryChange)
    listed = git(clone, "status", "--porcelain", "--untracked-files=all").split("\n")
    assert sorted(f"?? {path}" for path in change.untracked_paths) == sorted(line.strip() for line in listed)
    assert (change.untracked, change.untracked_folded) == (2, 0)


def test_packed_history_is_walked(box: Box, clone: Path) -> None:
    for number in range(25):
        commit(box, clone, "/app/a", f"c{number}")
    git(clone, "gc", "--quiet")
    box.checkpoint()
    for number in range(12):
        commit(box, clone, "/app/b", f"d{number}")
    git(clone, "gc", "--quiet")
    change = only(box.look(), RepositoryChange)
    assert [made.subject for made in change.commits] == [f"d{number}" for number in range(11, 1, -1)]
    assert (change.commit_count, change.committed) == (12, 1)


def test_a_new_repository_tells_its_commits_and_a_clone_tells_none(box: Box, clone: Path) -> None:
    where = repository(box, "/fresh")
    commit(box, where, "/fresh/more", "second")
    git(clone, "clone", "--quiet", "--no-local", str(clone), str(box.root / "copy"))
    changes = {change.path: change for change in box.look().findings if isinstance(change, RepositoryChange)}
    assert [made.subject for made in changes["/fresh"].commits] == ["second", "first"]
    assert changes["/fresh"].committed == 3
    assert changes["/copy"].commits == ()
    assert summarize_findings(box.look()) == ["git +copy on main", 'git +fresh: 2 commits on main "second"']


def test_nothing_is_said_of_a_repository_in_which_nothing_happened(box: Box, clone: Path) -> None:
    os.utime(clone / "README")
    git(clone, "status")
    git(clone, "config", "color.ui", "never")
    os.utime(clone / "README")
    (box.root / "elsewhere").write_text("x")
    assert box.look() == Analysis()
    box.checkpoint()
    git(clone, "config", "color.ui", "always")
    assert box.look() == Analysis()


def test_hostile_repositories_are_gaps_at_worst(box: Box, clone: Path) -> None:
    (clone / ".git/index").write_bytes(b"DIRC" + bytes(7) + b"\2\xff\xff\xff\xff")
    box.write("/app/README", "x")
    assert [gap.analyzer for gap in box.look().gaps] == ["git"]
    shutil.rmtree(clone)
    box.write("/app/.git", "gitdir: ../../../../../../etc\n")
    box.write("/app/x", "x")
    assert box.look().gaps == ()


# SQLite


def test_rows_tables_and_schema_with_a_writer_at_work(box: Box) -> None:
    (box.root / "app").mkdir()
    with closing(sqlite3.connect(box.root / "app/store.data")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.executescript("CREATE TABLE orders(id, item); CREATE TABLE users(name); CREATE TABLE old(x);")
        writer.executemany("INSERT INTO orders VALUES (?, ?)", [(n, "pen") for n in range(10)])
        writer.execute("INSERT INTO users VALUES ('ann')")
        writer.commit()
        box.checkpoint()
        writer.executemany("INSERT INTO orders VALUES (?, ?)", [(n, "ink") for n in range(12)])
        writer.execute("UPDATE users SET name = 'bob'")
        writer.executescript("DROP TABLE old; CREATE TABLE carts(id); CREATE INDEX by_item ON orders(item);")
        writer.commit()
        writer.execute("INSERT INTO orders VALUES (99, 'not committed')")
        hashes = digest(box.root)
        found = box.look()
        assert digest(box.root) == hashes
        change = only(found, DatabaseChange)
        writer.rollback()
    assert change.path == "/app/store.data"
    assert change.tables == (
        TableChange(name="carts", change="created", rows_after=0),
        TableChange(name="old", change="removed", rows_before=0),
        TableChange(
            name="orders",
            change="changed",
            rows_before=10,
            rows_after=22,
            rewritten=False,
            inserted=12,
            deleted=0,
            updated=0,
        ),
        TableChange(
            name="users",
            change="changed",
            rows_before=1,
            rows_after=1,
            rewritten=True,
            inserted=0,
            deleted=0,
            updated=1,
        ),
    )
    assert change.schema == ("+index by_item", "+table carts", "-table old")
    assert summarize_findings(found) == ["sqlite store.data: +carts; -old; 2 more tables"]


def digest(root: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()
    }


def database(box: Box, script: str) -> None:
    with closing(sqlite3.connect(box.root / "shop.db")) as writer:
        writer.executescript(script)


ORDERS = """
    CREATE TABLE orders(id INTEGER PRIMARY KEY, item TEXT COLLATE NOCASE);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
        INSERT INTO orders SELECT i, 'pen' FROM n;
"""


def test_rows_that_were_deleted_and_inserted_are_told_apart(box: Box) -> None:
    database(box, ORDERS.format(rows=100))
    box.checkpoint()
    database(
        box,
        "DELETE FROM orders WHERE id <= 50; INSERT INTO orders SELECT id + 1000, 'ink' FROM orders;"
        "INSERT INTO orders VALUES (5000, 'x'), (5001, 'y');"
        "UPDATE orders SET item = 'PEN' WHERE id IN (60, 61);",
    )
    table = only(box.look(), DatabaseChange).tables[0]
    assert (table.inserted, table.deleted, table.updated) == (52, 50, 2)
    assert summarize_findings(box.look()) == ["sqlite shop.db: orders +52 -50 rows, 2 updated"]


def test_another_definition_is_told_beside_other_rows(box: Box) -> None:
    database(box, ORDERS.format(rows=3))
    box.checkpoint()
    database(box, "ALTER TABLE orders ADD currency; UPDATE orders SET item = 'ink'")
    assert summarize_findings(box.look()) == ["sqlite shop.db: orders altered, 3 updated"]


def test_an_update_of_a_large_table_is_told(box: Box) -> None:
    database(box, ORDERS.format(rows=300_000))
    box.checkpoint()
    database(box, "UPDATE orders SET item = 'ink' WHERE id = 250000")
    found = box.look(budget_s=20)
    assert found.gaps == ()
    assert summarize_findings(found) == ["sqlite shop.db: orders 1 updated"]


@pytest.mark.parametrize(
    ("part", "table"), [("WHERE NOT", "k (id INTEGER PRIMARY KEY, v)"), ("EXCEPT", "k (id, v)")]
)
def test_rows_that_were_compared_in_part_are_a_gap(
    box: Box, monkeypatch: pytest.MonkeyPatch, part: str, table: str
) -> None:
    """The time of a comparison is over before its last question: that nothing was inserted is not all."""
    with closing(sqlite3.connect(box.root / "a.db")) as writer:
        writer.executescript(f"CREATE TABLE {table}; INSERT INTO k VALUES (1, 'a'), (2, 'b')")
        box.checkpoint()
        writer.executescript("UPDATE k SET v = 'c' WHERE id = 2")
    ask = databases._Pair._number
    monkeypatch.setattr(
        databases._Pair, "_number", lambda pair, query: None if part in query else ask(pair, query)
    )
    found = box.look()
    assert summarize_findings(found) == ["sqlite a.db: k not compared"]
    [gap] = found.gaps
    assert (gap.path, gap.meaning) == (
        "/a.db",
        "the rows of k were counted, which of them changed is not told",
    )


def test_rows_without_a_key_keep_their_identity_through_a_vacuum(box: Box) -> None:
    database(box, "CREATE TABLE log(line); INSERT INTO log VALUES ('a'), ('b'), ('b'), ('c');")
    database(box, "DELETE FROM log WHERE line = 'a'")
    box.checkpoint()
    database(box, "VACUUM")
    assert box.look().findings == ()
    database(box, "UPDATE log SET line = 'd' WHERE line = 'c'; INSERT INTO log VALUES ('e')")
    table = only(box.look(), DatabaseChange).tables[0]
    assert (table.inserted, table.deleted) != (0, 0)


def test_a_table_with_another_name_is_the_same_table(box: Box) -> None:
    database(box, "CREATE TABLE orders(id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2);")
    box.checkpoint()
    database(box, "ALTER TABLE orders RENAME TO sales; INSERT INTO sales VALUES (3)")
    change = only(box.look(), DatabaseChange)
    assert [(table.renamed_from, table.name, table.inserted) for table in change.tables] == [
        ("orders", "sales", 1)
    ]
    assert change.schema == ("→table orders → sales",)
    assert summarize_findings(box.look()) == ["sqlite shop.db: orders → sales +1 row"]


def test_a_damaged_database_is_called_damaged(box: Box) -> None:
    database(box, ORDERS.format(rows=5000))
    box.checkpoint()
    path = box.root / "shop.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(4096) + whole[8192:])
    change = only(box.look(), DatabaseChange)
    assert (change.change, change.tables) == ("changed", ())
    assert change.damage
    assert summarize_findings(box.look())[0].startswith("sqlite shop.db damaged: ")
    for rest, damage in (
        (whole[:-4096], f"truncated, {len(whole) - 4096:,} of {len(whole):,} bytes"),
        (whole[:700], f"truncated, 700 of {len(whole):,} bytes"),
        (whole[:50], "no longer a SQLite database (50 bytes)"),
        (b"", "empty now"),
    ):
        path.write_bytes(rest)
        change = only(box.look(), DatabaseChange)
        assert (change.change, change.damage) == ("changed", damage)
    path.unlink()
    assert only(box.look(), DatabaseChange).change == "removed"


def test_a_database_that_is_whole_again_is_not_compared_with_what_could_not_be_read(box: Box) -> None:
    database(box, ORDERS.format(rows=5000))
    path = box.root / "shop.db"
    whole = path.read_bytes()
    for damaged in (whole[:4096] + os.urandom(4096) + whole[8192:], whole[:700]):
        path.write_bytes(damaged)
        box.checkpoint()
        path.write_bytes(whole)
        change = only(box.look(), DatabaseChange)
        assert (change.change, change.tables, change.damage) == ("changed", (), None)
        assert change.damage_before
        assert summarize_findings(box.look()) == ["sqlite shop.db whole again"]
        path.write_bytes(whole[:600])
        assert summarize_findings(box.look()) == [
            f"sqlite shop.db still damaged: truncated, 600 of {len(whole):,} bytes"
        ]
        path.unlink()
        assert summarize_findings(box.look()) == ["sqlite -shop.db"]
    path.write_bytes(b"")
    box.checkpoint()
    path.write_bytes(whole)
    assert summarize_findings(box.look()) == ["sqlite +shop.db (orders 5,000 rows)"]


def test_a_database_with_another_name_is_the_same_database(box: Box) -> None:
    (box.root / "db").mkdir()
    (box.root / "shop.db").touch()
    database(box, "CREATE TABLE orders(id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2);")
    shutil.copy(box.root / "shop.db", box.root / "db/in.db")
    box.checkpoint()
    (box.root / "shop.db").rename(box.root / "sales.db")
    (box.root / "db").rename(box.root / "data")
    old, new = box.views()
    moved = {"/sales.db": "/shop.db", "/data": "/db"}
    assert analyze(old, new, box.touched(), moved=moved).findings == ()  # the files are told as renamed
    (box.root / "sales.db").rename(box.root / "shop.db")
    database(box, "INSERT INTO orders VALUES (3)")
    (box.root / "shop.db").rename(box.root / "sales.db")
    found = analyze(old, new, box.touched(), moved=moved)
    assert only(found, DatabaseChange).renamed_from == "/shop.db"
    assert summarize_findings(found) == ["sqlite shop.db → sales.db: orders +1 row"]
    [section] = describe_difference(Difference(files=Changes(), analysis=found, live=LiveDifference()))
    assert [(line.sign, line.text, line.detail) for line in section.lines] == [
        ("~", "/sales.db", "was /shop.db · orders +1 row")
    ]


def test_what_a_virtual_table_holds_is_a_gap(box: Box) -> None:
    database(box, "CREATE VIRTUAL TABLE words USING fts5(body); INSERT INTO words VALUES ('a'), ('b');")
    box.checkpoint()
    database(box, "CREATE TABLE one(x); INSERT INTO one VALUES (1)")
    assert summarize_findings(box.look()) == ["sqlite shop.db: +one (1 row)"]
    box.checkpoint()
    database(box, "DELETE FROM words WHERE body = 'a'")
    found = box.look()
    assert summarize_findings(found) == ["sqlite shop.db: words changed"]
    assert [describe_gap(gap) for gap in found.gaps] == [
        "/shop.db: which rows of words changed is not told (it is a virtual table)"
    ]


def test_schema_that_has_no_room_in_a_line_is_counted(box: Box) -> None:
    database(box, "CREATE TABLE t(a, b)")
    box.checkpoint()
    database(box, "CREATE INDEX i ON t(a); CREATE INDEX j ON t(b); CREATE VIEW v AS SELECT a FROM t")
    assert summarize_findings(box.look()) == ["sqlite shop.db: +index i; +index j; 1 more"]


def test_the_log_alone_may_have_changed(box: Box) -> None:
    with closing(sqlite3.connect(box.root / "app.db")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.executescript("CREATE TABLE orders(id); INSERT INTO orders VALUES (1);")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        box.checkpoint()
        writer.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(12)])
        writer.commit()
        old, new = box.views()
        found = analyze(old, new, ["/app.db-wal"])
    assert summarize_findings(found) == ["sqlite app.db: orders +12 rows"]


def test_a_transaction_that_was_cut_is_rolled_back_in_the_copy(box: Box) -> None:
    path = box.root / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
        box.checkpoint()
        writer.execute("PRAGMA cache_size=1")
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO t VALUES (?)", [("x" * 2000,) for _ in range(50)])
        assert (box.root / "app.db-journal").stat().st_size > 0
        kept = digest(box.root)
        assert box.look() == Analysis()
        assert digest(box.root) == kept
        writer.execute("ROLLBACK")


def test_a_journal_that_names_another_file_is_refused(box: Box, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = box.root / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
        box.checkpoint()
        writer.execute("PRAGMA cache_size=1")
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO t VALUES (?)", [("x" * 2000,) for _ in range(50)])
        name = os.fsencode(victim)
        tail = (
            name
            + len(name).to_bytes(4, "big")
            + sum(name).to_bytes(4, "big")
            + bytes.fromhex("d9d505f920a163d7")
        )
        with open(box.root / "app.db-journal", "ab") as journal:
            journal.write(b"\0\0\0\0" + tail)
        found = box.look()
        assert victim.read_text() == "precious"
        writer.execute("ROLLBACK")  # this does remove it
    assert [gap.path for gap in found.gaps] == ["/app.db"]


def test_databases_come_and_go_and_what_only_looks_like_one_is_none(box: Box) -> None:
    with closing(sqlite3.connect(box.root / "a.db")) as writer:
        writer.executescript(
            "CREATE TABLE t(x); CREATE VIRTUAL TABLE words USING fts5(body); CREATE VIEW v AS SELECT 1;"
        )
    box.write("/fake.db", "SQLite format 3\0" + "x" * 1008)
    box.write("/text.db", "just text")
    os.mkfifo(box.root / "pipe.db")
    os.symlink("/etc/passwd", box.root / "link.db")
    found = box.look()
    assert summarize_findings(found) == ["sqlite +a.db (t, words)"]
    assert [gap.path for gap in found.gaps] == ["/fake.db"]
    (box.root / "fake.db").unlink()
    (box.root / "pipe.db").unlink()
    box.checkpoint()
    (box.root / "a.db").unlink()
    assert summarize_findings(box.look()) == ["sqlite -a.db"]


def test_an_endless_database_costs_no_more_than_its_time(box: Box) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with closing(sqlite3.connect(box.root / "a.db")) as writer:
        writer.executescript(
            "CREATE TABLE t(x); CREATE TABLE u(x); INSERT INTO t VALUES (1); INSERT INTO u VALUES (1);"
        )
        writer.execute("PRAGMA writable_schema=ON")
        # A schema that lies: a table that is a view of something without end.
        writer.execute(
            "UPDATE sqlite_master SET type='view', rootpage=0, sql=? WHERE name='u'",
            (f"CREATE VIEW u AS {endless}",),
        )
        writer.commit()
    start = time.monotonic()
    found = box.look(budget_s=0.5)
    assert time.monotonic() - start < 5
    assert summarize_findings(found) == ["sqlite +a.db (t 1 row)"]


# Servers


def server(found: Analysis) -> ServerChange:
    [change] = [finding for finding in found.findings if isinstance(finding, ServerChange)]
    return change


def test_postgres_is_told_by_its_data_folder(box: Box) -> None:
    def database(number: int, name: str) -> None:
        box.write(f"/pg/base/{number}/112", "x" * 100)
        rows.append(number.to_bytes(4, "little") + name.encode().ljust(64, b"\0") + bytes(60))
        page = bytearray(8192)
        at = 8192
        for index, row in enumerate(rows):
            at -= 160
            page[at + 22] = 24
            page[at + 24 : at + 24 + len(row)] = row
            page[24 + 4 * index : 28 + 4 * index] = (at | 1 << 15 | 152 << 17).to_bytes(4, "little")
        page[12:14] = (24 + 4 * len(rows)).to_bytes(2, "little")
        box.write("/pg/global/1262", "").write_bytes(page)

    rows: list[bytes] = []
    box.write("/pg/PG_VERSION", "15\n")
    box.write("/pg/global/pg_control", "x")
    database(1, "template1")
    database(5, "postgres")
    database(16384, "shop")
    assert summarize_findings(box.look()) == ["postgresql +pg (+postgres, +shop)"]
    box.checkpoint()
    box.write("/pg/base/16384/2619", "rows")
    box.write("/pg/pg_wal/000000010000000000000001", "log")
    database(16390, "billing")
    box.write("/pg/base/16391/1", "not in the catalog yet")
    found = box.look()
    assert summarize_findings(found) == ["postgresql pg: +billing, +database 16391, shop written to"]
    [gap] = found.gaps
    assert describe_gap(gap) == (
        "/pg: which tables, rows and users changed in it is not told, a restore brings all of them back as"
        " they were (only its server can read them: ask it in a fork of the point)"
    )
    # Its files are one line.
    files = Changes(changes=tuple(Change(path=path, kind="created", entry="file") for path in box.touched()))
    assert summarize_files(files, found) == f"+{len(files)} files (/pg)"
    assert name_files(files, found, beside=True) == ""
    box.checkpoint()
    # A name that has come to the disk is no new database, and another name is no other one.
    database(16391, "late")
    rows[2] = (16384).to_bytes(4, "little") + b"store".ljust(64, b"\0") + bytes(60)
    database(16392, "next")
    assert summarize_findings(box.look()) == ["postgresql pg: +next, shop → store, late written to"]
    plan = list(_databases(box.look().findings, "back"))
    assert plan == ["postgresql pg: late will be as it was then, next will be lost, store will be shop"]
    box.checkpoint()
    shutil.rmtree(box.root / "pg/base/16384")
    assert summarize_findings(box.look()) == ["postgresql pg: -store"]
    box.checkpoint()
    # What a server may have written by itself comes after everything else.
    box.write("/pg/base/16392/1", "written by autovacuum")
    box.write("/etc/group", "docker:x:99:\n")
    assert summarize_findings(box.look()) == ["group +docker", "postgresql pg: next written to"]
    box.checkpoint()
    shutil.rmtree(box.root / "pg")
    assert summarize_findings(box.look()) == ["postgresql -pg"]
    assert box.look().gaps == ()


_INITDB = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)


@pytest.mark.skipif(_INITDB is None or os.geteuid() != 0, reason="needs PostgreSQL, and root to leave it")
def test_the_catalog_of_a_real_postgres_is_read(box: Box) -> None:
    assert _INITDB
    # The folders above `tmp_path` may be closed to other users, so the cluster is made elsewhere and moved.
    with tempfile.TemporaryDirectory(dir="/tmp") as open_folder:
        Path(open_folder).chmod(0o777)
        data = Path(open_folder) / "pg"
        alone = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        made = [*alone, str(_INITDB), "-D", str(data), "-A", "trust", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd="/")
        (box.root / "srv").mkdir()
        shutil.move(data, box.root / "srv/pg")
    assert summarize_findings(box.look(budget_s=20)) == ["postgresql +pg (+postgres)"]


def test_mariadb_is_told_by_its_data_folder(box: Box) -> None:
    for name in ("ibdata1", "mysql/user.frm", "shop/db.opt", "shop/orders.ibd", "shop/orders.frm"):
        box.write(f"/var/lib/mysql/{name}", "x")
    assert summarize_findings(box.look()) == ["mariadb +mysql (+shop 1 table)"]
    box.checkpoint()
    box.write("/var/lib/mysql/shop/carts.ibd", "x")
    box.write("/var/lib/mysql/new/t.ibd", "x")
    found = box.look()
    assert summarize_findings(found) == ["mariadb mysql: +new 1 table, ~shop 1 → 2 tables"]
    assert [gap.path for gap in found.gaps] == ["/var/lib/mysql"]


def test_files_of_a_server_are_not_tried_as_sqlite(box: Box) -> None:
    """A new PostgreSQL has over a thousand files, and no time would be left for what is one."""
    box.write("/pg/PG_VERSION", "15\n")
    box.write("/pg/global/pg_control", "x")
    for path in ("/pg/global/113", "/srv/global/113"):
        with contextlib.closing(sqlite3.connect(box.write(path, ""))) as database, database:
            database.execute("create table t (a)")
    assert summarize_findings(box.look()) == ["sqlite +113 (t)", "postgresql +pg"]


def test_an_append_only_file_of_redis_is_a_gap(box: Box) -> None:
    for name in ("1.base.rdb", "1.incr.aof", "manifest"):
        box.write(f"/r/appendonlydir/appendonly.aof.{name}", "REDIS0011")
    box.write("/old/appendonly.aof", "*2\r\n")
    found = box.look()
    assert set(summarize_findings(found)) == {"redis +appendonlydir", "redis +appendonly.aof"}
    assert {describe_gap(gap).partition(": ")[0] for gap in found.gaps} == {
        "/r/appendonlydir",
        "/old/appendonly.aof",
    }
    box.checkpoint()
    box.write("/r/appendonlydir/appendonly.aof.1.incr.aof", "more")
    found = box.look()
    assert summarize_findings(found) == ["redis appendonlydir: written to"]
    [gap] = found.gaps
    assert describe_gap(gap) == (
        "/r/appendonlydir: which keys changed in it is not told,"
        " a restore brings all of them back as they were"
        " (an append-only file is not read: ask its server in a fork of the point)"
    )
    files = Changes(changes=tuple(Change(path=path, kind="modified", entry="file") for path in box.touched()))
    assert summarize_files(files, found) == "~1 file (/r/appendonlydir)"
    box.write("/other/notes.aof", "no log of a redis")
    box.checkpoint()
    shutil.rmtree(box.root / "r")
    assert summarize_findings(box.look()) == ["redis -appendonlydir"]


def test_a_gap_without_a_path_says_what_was_not_looked_at() -> None:
    gap = Gap(analyzer="sqlite", reason="not done after 1 s")
    assert (
        describe_gap(gap) == "SQLite databases: there may be changes that are not told (not done after 1 s)"
    )


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis")
def test_what_redis_saved_is_told_key_by_key(box: Box) -> None:
    """Every kind of value that a redis of this machine writes."""

    def say(*commands: str) -> None:
        """Into a redis that reads its snapshot, and saves it when it ends."""
        socket = str(box.root.parent / "redis.sock")
        place = ["--port", "0", "--unixsocket", socket, "--dir", str(box.root), "--save", ""]
        with subprocess.Popen(["redis-server", *place], stdout=subprocess.DEVNULL) as redis:

            def ask(*words: str, check: bool = True) -> bytes:
                asked = ["redis-cli", "-s", socket, *words]
                return subprocess.run(asked, check=check, capture_output=True).stdout

            until(lambda: ask("ping", check=False) == b"PONG\n")
            for command in commands:
                ask(*command.split())
            ask("shutdown", "save", check=False)
            redis.wait(30)

    many = " ".join(f"m{number} {number}" for number in range(600))
    say(
        "set plain text",
        "set number 12345",
        f"set long {'abc' * 500}",
        "set later x ex 1000",
        "rpush list a b c",
        f"rpush longlist {many}",
        "sadd set a b",
        f"sadd longset {many}",
        "sadd numbers 1 2 3",
        "hset hash f v",
        f"hset longhash {many}",
        "zadd sorted 1 a 2 b",
        f"zadd longsorted {' '.join(f'{number} m{number}' for number in range(600))}",
    )
    assert summarize_findings(box.look()) == ["redis +dump.rdb (db0 +13 keys)"]
    box.checkpoint()
    say("set plain changed", "del list set", "set more 1", "hset hash f other")
    found = box.look()
    assert summarize_findings(found) == ["redis dump.rdb: db0 +1 -2 keys, 2 rewritten"]
    assert found.gaps == ()
    (box.root / "dump.rdb").write_bytes(b"REDIS0011" + bytes([0, 1]))
    assert [gap.path for gap in box.look().gaps] == ["/dump.rdb"]


# The system


def test_users_and_cron(box: Box) -> None:
    box.write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nold:x:5:5::/:/bin/sh\n")
    box.checkpoint()
    box.write("/etc/passwd", "root:x:0:0:root:/root:/bin/zsh\ndeploy:x:1001:1001::/home/deploy:/bin/sh\n")
    box.write("/etc/cron.d/backup", "# nightly\n0 3 * * * root /usr/bin/backup\n")
    found = box.look()
    assert found.gaps == ()
    assert found.findings == (
        AccountChange(name="deploy", change="created", uid=1001),
        AccountChange(name="old", change="removed", uid=5),
        AccountChange(name="root", change="changed", uid=0),
        CronChange(path="/etc/cron.d/backup", change="created", added=("0 3 * * * root /usr/bin/backup",)),
    )
    assert summarize_findings(found) == ["user +deploy, -old, ~root", "cron +backup"]


HASHES = ("$y$j9T$abc$Q9wYVh0oKq2fJmFq3nE1dV4mX8sP0aT7", "$y$j9T$def$Zk3LmP0sW2xC8vB1nQ5rT9yU7iO6eA4d")
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0mYkq2Wb1Z0d8t8bYp8u1X8k3Jw5m0c9sQ4n7e2r1a"


def test_groups_and_members(box: Box) -> None:
    box.write("/etc/group", "root:x:0:\nold:x:5:\nwheel:x:10:ann,bob\nsame:x:11:ann\n")
    box.checkpoint()
    box.write("/etc/group", "root:x:0:\nwheel:x:10:ann,eve\nsame:x:11:ann\ndocker:x:99:ann\n")
    found = box.look()
    assert found.findings == (
        SystemChange(subject="group", name="docker", change="created", details=("+ann",)),
        SystemChange(subject="group", name="old", change="removed"),
        SystemChange(subject="group", name="wheel", change="changed", details=("+eve", "-bob")),
    )
    assert summarize_findings(found) == ["group +docker (+ann), group -old, group ~wheel (+eve, -bob)"]
    # The group of a new user needs no word beside the user, unless it has other members.
    user = AccountChange(name="docker", change="created")
    assert summarize_findings(Analysis(findings=(user, *found.findings)))[0] == "user +docker"
    alone = msgspec.structs.replace(found.findings[0], details=())
    assert summarize_findings(Analysis(findings=(user, alone))) == ["user +docker"]


def test_a_password_changed_and_its_hash_goes_nowhere(box: Box) -> None:
    first, second = HASHES
    users = {"ann": first, "bob": first, "eve": first, "fay": "!", "gil": first, "hal": f"!{first}"}
    tail = ":19000:0:99999:7:::"
    box.write("/etc/shadow", "".join(f"{name}:{word}{tail}\n" for name, word in users.items()))
    box.checkpoint()
    users |= {
        "bob": second,
        "eve": f"!{first}",
        "fay": second,
        "gil": "",
        "hal": first,
        "new": second,
        "sys": "*",
    }
    box.write("/etc/shadow", "".join(f"{name}:{word}{tail}\n" for name, word in users.items()))
    found = box.look()
    assert [(one.name, *one.details) for one in found.findings if isinstance(one, SystemChange)] == [
        ("bob", "changed"),
        ("eve", "locked"),
        ("fay", "set"),
        ("gil", "removed: none is needed"),
        ("hal", "unlocked"),
        ("new", "set"),
    ]
    told = f"{msgspec.json.encode(found)!r}{summarize_findings(found)}"
    assert not any(part in told for part in (*first.split("$")[2:], *second.split("$")[2:]))


def test_keys_that_may_log_in(box: Box) -> None:
    box.write("/root/.ssh/authorized_keys", f"# mine\nssh-ed25519 {KEY} ann@laptop\n")
    box.checkpoint()
    other = KEY[:-3] + "xyz"
    box.write("/root/.ssh/authorized_keys", f'command="ls",no-pty ssh-ed25519 {other} eve@host\nbroken\n')
    found = box.look()
    change = only(found, SystemChange)
    fingerprint = r"ssh-ed25519 SHA256:[A-Za-z0-9+/]{43}"
    assert [re.sub(fingerprint, "KEY", one) for one in change.details] == ["+KEY eve@host", "-KEY ann@laptop"]
    assert summarize_findings(found) == ["+1 -1 keys in /root/.ssh/authorized_keys"]
    clean, count = Redactor().redact_json(msgspec.to_builtins(found))
    assert (clean, count) == (msgspec.to_builtins(found), 0), "a fingerprint is no secret"


def test_units_and_timers(box: Box) -> None:
    box.write("/etc/systemd/system/old.service", "[Service]\n")
    box.write("/etc/systemd/system/same.service", "[Service]\n")
    box.checkpoint()
    (box.root / "etc/systemd/system/old.service").unlink()
    box.write("/etc/systemd/system/backup.timer", "[Timer]\nOnCalendar=daily\n")
    box.write("/etc/systemd/system/same.service.d/override.conf", "[Service]\nRestart=always\n")
    box.write("/lib/systemd/system/of-a-package.service", "[Service]\n")
    wants = box.root / "etc/systemd/system/timers.target.wants"
    wants.mkdir()
    (wants / "backup.timer").symlink_to("/etc/systemd/system/backup.timer")
    found = box.look()
    assert [
        (one.name, one.change, one.details) for one in found.findings if isinstance(one, SystemChange)
    ] == [
        ("backup.timer", "created", ()),
        ("old.service", "removed", ()),
        ("same.service", "changed", ("+override.conf",)),
        ("backup.timer", "changed", ("enabled",)),
    ]
    box.checkpoint()
    (wants / "backup.timer").unlink()
    assert summarize_findings(box.look()) == ["unit backup.timer disabled"]
    box.checkpoint()
    # A link is there also where it leads to nothing, and a unit may be a link: an alias, or masked.
    (wants / "later.timer").symlink_to("../later.timer")
    (box.root / "etc/systemd/system/ssh.service").symlink_to("/dev/null")
    assert sorted(summarize_findings(box.look())) == ["unit +ssh.service, unit later.timer enabled"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_capabilities_of_a_program(box: Box) -> None:
    for name in ("ping", "plain"):
        box.write(f"/usr/bin/{name}", "x").chmod(0o755)
    box.checkpoint()
    program = box.write("/usr/bin/ping", "xy")
    program.chmod(0o755)
    subprocess.run(["setcap", "cap_net_raw,cap_sys_admin+ep", program], check=True)
    change = only(box.look(), SystemChange)
    assert (change.subject, change.name, change.change) == ("capability", "/usr/bin/ping", "created")
    assert change.details == ("cap_net_raw,cap_sys_admin+ep",)
    assert summarize_findings(box.look()) == ["+cap_net_raw,cap_sys_admin+ep on /usr/bin/ping"]
    box.checkpoint()
    subprocess.run(["setcap", "cap_checkpoint_restore+eip", program], check=True)
    program.write_text("xyz")  # writing takes capabilities away
    assert only(box.look(), SystemChange).change == "removed"
    box.checkpoint()
    for name in ("serve.bin", "module.py", "node-v20.1"):
        subprocess.run(["setcap", "cap_net_raw+ep", box.write(f"/srv/app/{name}", "x")], check=True)
        (box.root / f"srv/app/{name}").chmod(0o755)
    assert summarize_findings(box.look()) == [
        "+cap_net_raw+ep on /srv/app/node-v20.1",
        "+cap_net_raw+ep on /srv/app/serve.bin",
    ], "a script has no capabilities"


def test_redaction_leaves_findings_what_they_are(box: Box, clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "fix-auth")
    git(clone, "commit", "--quiet", "--allow-empty", "--message=use password=hunter2 for now")
    box.write(STATUS, DPKG.replace("Package: dpkg", "Package: passwd"))
    found = box.look()
    plain, count = Redactor().redact_json(msgspec.to_builtins(found))
    said = msgspec.json.encode(found).replace(b"password=hunter2", b"password=[redacted]")
    assert msgspec.convert(plain, Analysis) == msgspec.json.decode(said, type=Analysis)
    assert count == 1


def test_headlines_are_one_line_whatever_the_session_wrote(box: Box, clone: Path) -> None:
    git(clone, "commit", "--quiet", "--allow-empty", f"--message=\x1b[31mred\x07 {'long ' * 60}")
    [line] = summarize_findings(box.look())
    assert line.isprintable()
    assert len(line) <= 120
