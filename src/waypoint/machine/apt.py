"""Packages of the distribution.

`install_missing` installs a package on the machine, as an administrator would. `PrivateApt` does not change
the machine: it downloads a package with everything it depends on, from a suite that the machine does not
use, into a folder of its own. In both cases apt decides what to trust, by the keys that the machine has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from waypoint.errors import NotRoot, SetupFailed

Progress = Callable[[str], None]

_APT_GET = (
    "env",
    "DEBIAN_FRONTEND=noninteractive",
    "LC_ALL=C.UTF-8",
    "apt-get",
    "-qq",
    "-y",
    "--no-install-recommends",
    "--option=DPkg::Lock::Timeout=300",
)
_RUN_SECONDS = 900.0
"""For one program; apt itself gives up a download that stands still."""
_ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def which(program: str) -> str | None:
    """The path of a program. root's usual folders are searched too, whatever PATH is."""
    return shutil.which(program) or shutil.which(program, path=_ROOT_PATH)


def run(doing: str, *argv: str) -> str:
    """The output of a program that must succeed; SetupFailed has its error messages."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_RUN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise SetupFailed(
            f"{doing} took longer than {_RUN_SECONDS / 60:g} minutes",
            hint="is the package archive reachable, and is no other package manager at work?",
        ) from error
    except OSError as error:
        raise SetupFailed(f"{doing} failed: {error}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = " / ".join(lines[-6:]) or f"{argv[0]} ended with {done.returncode}"
        raise SetupFailed(f"{doing} failed: {reason}", hint=_hint_for(reason))
    return done.stdout


def _hint_for(reason: str) -> str:
    if re.search(r"Could not (resolve|connect)|Temporary failure|Unable to connect|timed out", reason):
        return "the package archive cannot be reached: is the network up, is a proxy needed?"
    if "No space left" in reason:
        return "free some space and run it again"
    return ""


def install_missing(needed: dict[str, str], progress: Progress) -> None:
    """Installs the packages whose program is missing; `needed` is program → packages."""
    missing = {program: packages for program, packages in needed.items() if which(program) is None}
    if not missing:
        return
    packages = " ".join(missing.values())
    if which("apt-get") is None:
        raise SetupFailed(
            f"missing: {', '.join(missing)}",
            hint=f"install the packages of this distribution that have them (on Debian: {packages})",
        )
    if os.geteuid() != 0:
        raise NotRoot(f"installing {packages} needs root", hint="run it again as root")
    progress(f"installing {packages}")
    install = (*_APT_GET, "install", *packages.split())
    try:
        run(f"installing {packages}", *install)
    except SetupFailed:
        # The package lists may be old, or missing.
        run("downloading the package lists", *_APT_GET, "update")
        run(f"installing {packages}", *install)
    for program in missing:
        if which(program) is None:
            raise SetupFailed(f"{program} is still missing after installing {packages}")


# ---- the distribution and its sources ------------------------------------------------------------


@dataclass(frozen=True)
class Distribution:
    """The distribution of this machine, and its suites that may have newer packages, nearest first."""

    name: str
    codename: str
    suites: tuple[tuple[str, ...], ...] = ()
    components: tuple[str, ...] = ()
    keyring_package: str = ""


@dataclass(frozen=True)
class Source:
    """One source of packages, as apt's configuration gives it."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def read_distribution(release_file: Path = Path("/etc/os-release")) -> Distribution:
    """The distribution of this machine. An unknown one has no suites."""
    try:
        text = release_file.read_text()
    except OSError:
        text = ""
    pairs = (line.partition("=") for line in text.splitlines())
    fields = {key: value.strip("\"'") for key, _, value in pairs}
    family = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    name, codename = fields.get("NAME", "this system"), fields.get("VERSION_CODENAME", "")
    if "ubuntu" in family:
        codename = fields.get("UBUNTU_CODENAME", codename)
        suites = ((codename, f"{codename}-updates"), ("devel",))
        return Distribution(name, codename, suites, ("main", "universe"), "ubuntu-keyring")
    if "debian" in family:
        return Distribution(name, codename, (("testing",), ("sid",)), ("main",), "debian-archive-keyring")
    return Distribution(name, codename)


def machine_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of binary packages in apt's configuration."""
    sources: list[Source] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if path.is_file():
            sources += parse_one_line_sources(path.read_text(errors="replace"))
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        sources += parse_deb822_sources(path.read_text(errors="replace"))
    return sources


def parse_one_line_sources(text: str) -> list[Source]:
    """Sources of the form `deb [signed-by=/a/key.gpg] URI suite component…`."""
    shape = re.compile(r"deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s*(.*)")
    sources = []
    for line in text.splitlines():
        match = shape.fullmatch(line.split("#", 1)[0].strip())
        if match is None:
            continue
        options, uri, suite, components = match.groups()
        values = dict(option.partition("=")[::2] for option in (options or "").split())
        signed_by = values.get("signed-by", "").replace(",", " ")
        sources.append(Source((uri,), (suite,), tuple(components.split()), signed_by))
    return sources


def parse_deb822_sources(text: str) -> list[Source]:
    """Sources in stanzas of `Field: value`; Signed-By may hold a whole key."""
    sources = []
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n[ \t]*\n", uncommented):
        fields: dict[str, str] = {}
        last = ""
        for line in stanza.splitlines():
            if line[:1] in {" ", "\t"} and last:
                fields[last] += f"\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in {"no", "false"}
        if enabled and "deb" in fields.get("types", "").split():
            uris, suites, components = (
                tuple(fields.get(name, "").split()) for name in ("uris", "suites", "components")
            )
            sources.append(Source(uris, suites, components, fields.get("signed-by", "")))
    return sources


def archive_sources(sources: Iterable[Source], distribution: Distribution) -> list[Source]:
    """The sources that look like the distribution's own archive, not like an addition to it; best first."""

    def fits(source: Source) -> bool:
        releases = [suite for suite in source.suites if not set("-/") & set(suite)]
        return "main" in source.components and bool(releases) and bool(source.uris)

    def order(source: Source) -> tuple[bool, bool]:
        by_archive_key = "archive-keyring" in source.signed_by
        return (not by_archive_key, distribution.codename not in source.suites)

    return sorted((source for source in sources if fits(source)), key=order)


# ---- an apt of our own ----------------------------------------------------------------------------


class Unverifiable(SetupFailed):
    """Raised when a suite is signed with a key that this machine does not have."""


class PrivateApt:
    """apt with sources, lists, cache and package status of its own.

    For it no package is installed, so a package comes with everything it depends on, down to libc. The rest
    of the machine's configuration (proxies, for example) applies, except what would weaken the verification
    of signatures. apt's own user must be able to enter its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sources", "lists/partial", "archives/partial", "cache", "preferences"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        hooks = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success")
        settings = {
            "APT::Default-Release": "",
            "APT::Get::AllowUnauthenticated": "false",
            "APT::Keep-Downloaded-Packages": "true",
            "APT::Update::Error-Mode": "any",
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::AllowWeakRepositories": "false",
            "Acquire::GzipIndexes": "true",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "Dir::Cache": f"{folder}/cache",
            "Dir::Cache::archives": f"{folder}/archives",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": f"{folder}/preferences",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": f"{folder}/sources",
            "Dir::State": f"{folder}",
            "Dir::State::lists": f"{folder}/lists",
            "Dir::State::status": f"{folder}/status",
        }
        lines = [f"#clear {hook};" for hook in hooks]
        lines += [f'{key} "{value}";' for key, value in settings.items()]
        (folder / "apt.conf").write_text("\n".join(lines) + "\n")

    def use(self, source: Source) -> None:
        """Downloads the package lists of `source`; Unverifiable if a key is missing."""
        architecture = run("asking dpkg for the architecture", "dpkg", "--print-architecture").strip()
        fields = {
            "Types": "deb",
            "URIs": " ".join(source.uris),
            "Suites": " ".join(source.suites),
            "Components": " ".join(source.components),
            "Architectures": architecture,
            "Signed-By": source.signed_by,
        }
        stanza = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
        (self.folder / "sources" / "waypoint.sources").write_text(stanza)
        try:
            self._apt_get(f"downloading the package list of {source.suites[0]}", "update")
        except SetupFailed as error:
            if re.search(r"NO_PUBKEY|Missing key|is not signed", error.message):
                raise Unverifiable(error.message, hint=error.hint) from error
            raise

    def unpack(self, package: str, target: Path) -> None:
        """Downloads `package` and everything it depends on, and unpacks all of it below `target`."""
        self._apt_get(f"downloading {package}", "--download-only", "install", package)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted((self.folder / "archives").glob("*.deb")):
            run(f"unpacking {path.name}", "dpkg-deb", "-x", str(path), str(target))

    def _apt_get(self, doing: str, *arguments: str) -> None:
        # -c is read after the machine's own configuration; APT_CONFIG would be read before it.
        run(doing, *_APT_GET, "-c", str(self.folder / "apt.conf"), *arguments)


def open_suites(
    folder: Path, source: Source, suites: tuple[str, ...], distribution: Distribution, progress: Progress
) -> PrivateApt:
    """An apt in `folder` that offers `suites` of the archive that `source` names.

    A machine that is some years old may not have the keys of newer suites. They are then taken from a
    package of its own suite, which it can verify.
    """
    components = tuple(dict.fromkeys((*distribution.components, *source.components)))
    newer = replace(source, suites=suites, components=components)
    apt = PrivateApt(folder)
    try:
        apt.use(newer)
    except Unverifiable:
        package = distribution.keyring_package
        progress(f"this machine has no key of {suites[0]}; downloading the newest {package} it can verify")
        keyring = _newest_keyring(folder / "keyring", source, package)
        try:
            apt.use(replace(newer, signed_by=str(keyring)))
        except Unverifiable as error:
            raise SetupFailed(
                f"neither this machine nor the newest {package} it can verify has a key of {suites[0]}",
                hint=f"apt-get update && apt-get install {package}",
            ) from error
    return apt


def _newest_keyring(folder: Path, source: Source, package: str) -> Path:
    apt = PrivateApt(folder)
    apt.use(source)
    unpacked = folder / "unpacked"
    apt.unpack(package, unpacked)
    for suffix in ("gpg", "pgp"):
        for keyring in sorted(unpacked.glob(f"usr/share/keyrings/*-archive-keyring.{suffix}")):
            return keyring
    raise SetupFailed(f"the package {package} has no keyring in it")
