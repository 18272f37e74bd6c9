"""What adapters say about the version of their framework."""

from __future__ import annotations

import warnings
from importlib import metadata

import pytest

from waypoint.adapters import versions
from waypoint.errors import MissingFeature


def require(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: found)
    versions.require("a-framework", oldest="1.4.2", below="2", extra="frame")


@pytest.mark.parametrize("found", ["1.4.2", "1.4.10", "1.5", "1.12.0rc1", "1.4.2.post1"])
def test_versions_that_are_known_are_used_in_silence(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require(found, monkeypatch)


@pytest.mark.parametrize("found", ["1.4.1", "1.4", "0.99"])
def test_a_framework_that_is_too_old_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = rf"a-framework {found} is too old: .* 1\.4\.2 up to, but not including, 2$"
    with pytest.raises(MissingFeature, match=told) as error:
        require(found, monkeypatch)
    assert error.value.hint == "pip install -U 'waypoint[frame]'"


@pytest.mark.parametrize("found", ["2.0.0", "2.0.0b1", "10.1"])
def test_a_framework_that_is_newer_than_known_is_warned_of(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(versions.UnknownVersion, match=rf"a-framework {found} is newer than known: .*1\.4\.2"):
        require(found, monkeypatch)


def test_a_framework_that_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(MissingFeature, match="no-such-framework is not installed") as error:
        versions.require("no-such-framework", oldest="1", below="2", extra="frame")
    assert error.value.hint == "pip install 'waypoint[frame]'"
