"""Reading apt's configuration, and finding the distribution's own archive in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from waypoint.errors import NotRoot, SetupFailed
from waypoint.machine import apt

DEBIAN = apt.Distribution("Debian", "bookworm", (("testing",),), ("main",), "debian-archive-keyring")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_one_line_sources_are_read_with_and_without_options() -> None:
    found = apt.parse_one_line_sources(
        "# deb http://archive.example/old wheezy main\n"
        "deb http://archive.example/debian bookworm main contrib # ours\n"
        "deb-src http://archive.example/debian bookworm main\n"
        "deb [ arch=amd64 signed-by=/a.gpg,/b.gpg ] https://other.example/apt stable main\n"
        "\n"
    )
    assert found == [
        apt.Source(("http://archive.example/debian",), ("bookworm",), ("main", "contrib")),
        apt.Source(("https://other.example/apt",), ("stable",), ("main",), "/a.gpg /b.gpg"),
    ]


def test_deb822_sources_are_read_and_disabled_ones_are_not() -> None:
    found = apt.parse_deb822_sources(
        "Types: deb deb-src\n"
        "# a comment in between\n"
        "URIs: http://archive.example/debian\n"
        "Suites: bookworm bookworm-updates\n"
        "Components: main\n"
        f"Signed-By: {KEYRING}\n"
        "\n"
        "Enabled: no\n"
        "Types: deb\n"
        "URIs: http://archive.example/off\n"
        "Suites: bookworm\n"
        "Components: main\n"
        " \n"
        "Types: deb-src\n"
        "URIs: http://archive.example/sources-only\n"
        "Suites: bookworm\n"
        "Components: main\n"
    )
    suites = ("bookworm", "bookworm-updates")
    assert found == [apt.Source(("http://archive.example/debian",), suites, ("main",), KEYRING)]


def test_a_key_written_into_a_source_is_kept_line_by_line() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----"
    (found,) = apt.parse_deb822_sources(
        f"Types: deb\nURIs: http://archive.example\nSuites: sid\nComponents: main\nSigned-By:{key}\n"
    )
    assert found.signed_by == key


def test_all_files_of_the_configuration_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://one.example a main\n")
    (tmp_path / "sources.list.d/two.list").write_text("deb http://two.example b main\n")
    three = "Types: deb\nURIs: http://three.example\nSuites: c\nComponents: main\n"
    (tmp_path / "sources.list.d/three.sources").write_text(three)
    (tmp_path / "sources.list.d/four.list.disabled").write_text("deb http://four.example d main\n")
    assert [source.suites for source in apt.machine_sources(tmp_path)] == [("a",), ("b",), ("c",)]
    assert apt.machine_sources(tmp_path / "nowhere") == []


def test_the_distributions_archive_is_preferred_to_additions() -> None:
    own = apt.Source(("http://archive.example/debian",), ("bookworm", "bookworm-updates"), ("main",), KEYRING)
    security = apt.Source(("http://archive.example/security",), ("bookworm-security",), ("main",), KEYRING)
    addition = apt.Source(("http://other.example",), ("bookworm",), ("main",), "/other.gpg")
    vendor = apt.Source(("http://vendor.example",), ("bookworm",), ("stable",), "/vendor.gpg")
    flat = apt.Source(("http://flat.example",), ("./",), (), "")
    assert apt.archive_sources([vendor, addition, flat, security, own], DEBIAN) == [own, addition]


@pytest.mark.parametrize(
    ("text", "suites", "keyring"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", (("testing",), ("sid",)), "debian-archive-keyring"),
        (
            'ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME="noble"\n',
            (("noble", "noble-updates"), ("devel",)),
            "ubuntu-keyring",
        ),
        (
            'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n',
            (("noble", "noble-updates"), ("devel",)),
            "ubuntu-keyring",
        ),
        ("ID=fedora\nVERSION_ID=42\n", (), ""),
    ],
)
def test_each_distribution_has_its_suites(
    tmp_path: Path, text: str, suites: tuple[tuple[str, ...], ...], keyring: str
) -> None:
    (tmp_path / "os-release").write_text(text)
    found = apt.read_distribution(tmp_path / "os-release")
    assert (found.suites, found.keyring_package) == (suites, keyring)


def test_a_system_without_os_release_is_unknown(tmp_path: Path) -> None:
    assert apt.read_distribution(tmp_path / "none").suites == ()


def test_nothing_is_installed_when_nothing_is_missing() -> None:
    said: list[str] = []
    apt.install_missing({"sh": "dash"}, said.append)
    assert said == []


def test_without_apt_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "which", lambda _: None)
    with pytest.raises(SetupFailed, match=r"missing: nft") as caught:
        apt.install_missing({"nft": "nftables"}, lambda _: None)
    assert "nftables" in caught.value.hint


def test_installing_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot):
        apt.install_missing({"nft": "nftables"}, lambda _: None)


def test_a_program_that_fails_is_quoted_with_its_last_words() -> None:
    with pytest.raises(SetupFailed, match=r"^trying failed: gone wrong$"):
        apt.run("trying", "sh", "-c", "echo gone wrong >&2; exit 3")
    with pytest.raises(SetupFailed, match=r"trying failed: .*No such file"):
        apt.run("trying", "/no/such/program")


def test_an_unreachable_archive_gets_a_hint_about_the_network() -> None:
    with pytest.raises(SetupFailed) as caught:
        apt.run("fetching", "sh", "-c", "echo \"Could not resolve 'archive.example'\" >&2; exit 100")
    assert "network" in caught.value.hint
