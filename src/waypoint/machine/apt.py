"""The distribution's archive of packages, and the programs it brings.

Two ways to get something from it. `install_missing` installs a package on the machine, as an
administrator would. `PrivateApt` leaves the machine alone: it fetches a package with everything it
depends on, from a suite that the machine does not use, into a folder of its own. In both cases it is
apt that decides what to trust, by the keys that the machine has.
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
    *("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"),
    *("apt-get", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"),
)
_ROOTS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def which(program: str) -> str | None:
    """Where a program is; root's folders are looked in whatever PATH says."""
    return shutil.which(program) or shutil.which(program, path=_ROOTS_PATH)


def run(doing: str, *argv: str) -> str:
    """The output of a program that must succeed; SetupFailed tells what it complained about."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise SetupFailed(f"{doing} failed: {error}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        complaint = " / ".join(lines[-6:]) or f"{argv[0]} ended with {done.returncode}"
        raise SetupFailed(f"{doing} failed: {complaint}", hint=_hint_for(complaint))
    return done.stdout


def _hint_for(complaint: str) -> str:
    if re.search(r"Could not (resolve|connect)|Temporary failure|Unable to connect|timed out", complaint):
        return "the archive of packages cannot be reached: is the network up, is a proxy needed?"
    if "No space left" in complaint:
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
            hint=f"install what {packages} is called on this distribution, then run it again",
        )
    if os.geteuid() != 0:
        raise NotRoot(f"installing {packages} needs root", hint="run it again as root")
    progress(f"installing {packages}")
    install = (*_APT_GET, "install", *packages.split())
    try:
        run(f"installing {packages}", *install)
    except SetupFailed:
        # The lists may be old, or never have been fetched.
        run("fetching the lists of packages", *_APT_GET, "update")
        run(f"installing {packages}", *install)
    for program in missing:
        if which(program) is None:
            raise SetupFailed(f"{program} is still missing after installing {packages}")


# Which distribution, and where its packages come from ------------------------------------------------


@dataclass(frozen=True)
class Distribution:
    """Which distribution this is, and in which of its suites something newer may be, nearest first."""

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
    """The running distribution; one that is not known has no suites to look in."""
    try:
        text = release_file.read_text()
    except OSError:
        text = ""
    pairs = (line.partition("=") for line in text.splitlines())
    said = {key: value.strip("\"'") for key, _, value in pairs}
    family = {said.get("ID", ""), *said.get("ID_LIKE", "").split()}
    name, codename = said.get("NAME", "this system"), said.get("VERSION_CODENAME", "")
    if "ubuntu" in family:
        codename = said.get("UBUNTU_CODENAME", codename)
        suites = ((codename, f"{codename}-updates"), ("devel",))
        return Distribution(name, codename, suites, ("main", "universe"), "ubuntu-keyring")
    if "debian" in family:
        return Distribution(name, codename, (("testing",), ("sid",)), ("main",), "debian-archive-keyring")
    return Distribution(name, codename)


def machine_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of binary packages in apt's configuration."""
    found: list[Source] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]:
        if path.is_file():
            found += parse_one_line_sources(path.read_text(errors="replace"))
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        found += parse_deb822_sources(path.read_text(errors="replace"))
    return found


def parse_one_line_sources(text: str) -> list[Source]:
    """Sources of the form `deb [signed-by=/a/key.gpg] URI suite component…`."""
    shape = re.compile(r"deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s*(.*)")
    found = []
    for line in text.splitlines():
        match = shape.fullmatch(line.split("#", 1)[0].strip())
        if match is None:
            continue
        options, uri, suite, components = match.groups()
        given = dict(option.partition("=")[::2] for option in (options or "").split())
        signed_by = given.get("signed-by", "").replace(",", " ")
        found.append(Source((uri,), (suite,), tuple(components.split()), signed_by))
    return found


def parse_deb822_sources(text: str) -> list[Source]:
    """Sources in stanzas of `Field: value`; Signed-By may hold a whole key."""
    found = []
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
            found.append(Source(uris, suites, components, fields.get("signed-by", "")))
    return found


def archive_sources(sources: Iterable[Source], distribution: Distribution) -> list[Source]:
    """Those that look like the distribution's own archive rather than somebody's addition, best first."""

    def fits(source: Source) -> bool:
        releases = [suite for suite in source.suites if not set("-/") & set(suite)]
        return "main" in source.components and bool(releases) and bool(source.uris)

    def order(source: Source) -> tuple[bool, bool]:
        by_archive_key = "archive-keyring" in source.signed_by
        return (not by_archive_key, distribution.codename not in source.suites)

    return sorted((source for source in sources if fits(source)), key=order)


# apt, apart from the machine ---------------------------------------------------------------------------


class Unverifiable(SetupFailed):
    """Raised when a suite is signed with a key that is not known here."""


class PrivateApt:
    """apt with sources, lists, cache and package status of its own.

    To it nothing is installed, so a package comes with everything it depends on, down to libc. What else
    the machine's configuration says (proxies, say) holds; what would weaken the verification of
    signatures does not. Its folder must be one that apt's own user can enter.
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
        """Fetches the lists of `source`; Unverifiable if a key is missing."""
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
            self._apt_get(f"fetching the list of packages of {source.suites[0]}", "update")
        except SetupFailed as error:
            if re.search(r"NO_PUBKEY|Missing key|is not signed", error.message):
                raise Unverifiable(error.message, hint=error.hint) from error
            raise

    def unpack(self, package: str, target: Path) -> None:
        """Fetches `package` and all that it depends on, and unpacks everything below `target`."""
        self._apt_get(f"fetching {package}", "--download-only", "install", package)
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

    A machine that is some years old may not know the keys of newer suites. Its own suite has them by then,
    in a package that the machine can verify: that is where they are taken from.
    """
    components = tuple(dict.fromkeys((*distribution.components, *source.components)))
    wanted = replace(source, suites=suites, components=components)
    apt = PrivateApt(folder)
    try:
        apt.use(wanted)
    except Unverifiable:
        package = distribution.keyring_package
        progress(f"no key for {suites[0]} on this machine; fetching the newest {package} it can verify")
        keyring = _newest_keyring(folder / "keyring", source, package)
        try:
            apt.use(replace(wanted, signed_by=str(keyring)))
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
        for found in sorted(unpacked.glob(f"usr/share/keyrings/*-archive-keyring.{suffix}")):
            return found
    raise SetupFailed(f"the package {package} has no keyring in it")
