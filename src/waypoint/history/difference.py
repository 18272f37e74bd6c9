"""A part of a difference: what of it is about some paths."""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Sequence

import msgspec

from waypoint.api.difference import Changes, Difference, LiveDifference
from waypoint.api.findings import AccountChange, Finding, PackageChange, SystemChange
from waypoint.history.redaction import MASK


def select_paths(difference: Difference, paths: Sequence[str], cwd: str) -> Difference:
    """The part of a difference that is about these paths and what is below them; a path may be a pattern.
    Relative paths start at `cwd`. Processes, ports, shell and contacts have no path, so they are left out."""
    wanted = [posixpath.normpath(posixpath.join(cwd, path)) for path in paths]

    def is_wanted(path: str | None) -> bool:
        return path is not None and any(_matches(path, pattern) for pattern in wanted)

    files = tuple(
        change for change in difference.files if is_wanted(change.path) or is_wanted(change.old_path)
    )
    findings = tuple(finding for finding in difference.analysis.findings if is_wanted(_path_of(finding)))
    return msgspec.structs.replace(
        difference,
        files=Changes(changes=files),
        analysis=msgspec.structs.replace(difference.analysis, findings=findings),
        live=LiveDifference(),
        contacts=(),
        gaps=tuple(gap for gap in difference.gaps if not gap.startswith(_GAPS_WITHOUT_PATH)),
        not_compared=(),
        redacted=msgspec.json.encode(findings).decode().count(MASK),
    )


_GAPS_WITHOUT_PATH = ("shell: ", "processes, ports and shell: ")


def _path_of(finding: Finding) -> str | None:
    if isinstance(finding, AccountChange):
        return None
    if isinstance(finding, SystemChange):
        return finding.name if finding.subject == "keys" else None
    return finding.environment if isinstance(finding, PackageChange) else finding.path


def _matches(path: str, pattern: str) -> bool:
    if any(letter in pattern for letter in "*?["):
        return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")
    return pattern in ("/", path) or path.startswith(f"{pattern}/")
