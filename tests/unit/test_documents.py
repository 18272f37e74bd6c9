"""What is written from the declarations of the verbs: completion, manual pages; links of `doctor`."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
from tests.person import Person

from waypoint import cli
from waypoint.cli import completion, console, manual, verbs
from waypoint.cli.spec import Parser
from waypoint.machine import doctor

REPOSITORY = Path(__file__).parents[2]

NAMES = """#!/bin/sh
case "$*" in
    "complete sessions") echo work; echo other ;;
    "complete points -s work") echo c1; echo good ;;
    "complete points") echo c9 ;;
esac
"""


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f"source {script}; COMP_WORDS=(waypoint {line}); COMP_CWORD={len(words)}; _waypoint"
    ask += "; printf '%s\\n' \"${COMPREPLY[@]}\""
    environment = {**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, check=True, env=environment, cwd=script.parent
    )
    assert not done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "waypoint").write_text(NAMES)
    (folder / "waypoint").chmod(0o755)
    (folder / "script").write_text(completion.script("bash"))
    return folder / "script"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["resto"], {"restore"}),
        (["base", ""], {"import", "info", "ls", "rm"}),
        (["--home", "/x", "tas"], {"task"}),
        (["hooks", "install", "c"], {"claude", "codex"}),
        (["restore", "--no-s"], {"--no-safety"}),
        (["restore", "-s", ""], {"work", "other"}),
        (["restore", "-s", "work", ""], {"c1", "good"}),
        (["restore", ""], {"c9"}),
        (["auto", "o"], {"on", "off"}),
        (["completion", "f"], {"fish"}),
        (["mcp", "--al"], {"--all"}),
        (["base", "import", "box", "scr"], {"script"}),
        (["ls", "x"], set()),
    ],
)
def test_bash_completes_verbs_options_and_names(script: Path, words: list[str], offered: set[str]) -> None:
    assert completed(script, *words) == offered


def test_every_verb_and_option_is_completed(script: Path) -> None:
    assert completed(script, "") == {name.split()[0] for name in verbs.MODULES}
    text = completion.script("fish")
    for name in verbs.MODULES:
        options = {each for action in Parser(verbs.load(name)).actions for each in action.option_strings}
        assert f"-l {max(options, key=len)[2:]}" in text


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("waypoint checkp", {"checkpoint"}),
        ("waypoint new --net n", {"nat", "none"}),
        ("waypoint restore --no-s", {"--no-safety"}),
        ("waypoint restore -s work ", {"c1", "good"}),
    ],
)
def test_fish_completes(script: Path, tmp_path: Path, line: str, offered: set[str]) -> None:
    (tmp_path / "script").write_text(completion.script("fish"))
    command = f"source {tmp_path}/script; complete -C '{line}'"
    path = f"{script.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}  # fish makes a folder there
    done = subprocess.run(
        ["fish", "--no-config", "-c", command], capture_output=True, text=True, check=True, env=environment
    )
    assert {found.split("\t")[0] for found in done.stdout.splitlines()} == offered


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes_also_without_a_start_up_file(script: Path, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(completion.script("zsh"))
    path = f"{script.parent}:{os.environ['PATH']}"
    person = Person(
        ["zsh", "-f"], env={"PS1": "ready> ", "ZDOTDIR": str(tmp_path), "PATH": path}, cwd=tmp_path
    )
    try:
        person.sees("ready>")
        person.type(b"source ./script && echo $((6*7))\r")
        person.sees("42")
        person.type(b"waypoint new --net ho\t")
        person.sees("waypoint new --net host")
        person.type(b"\x15waypoint restor\t")
        person.sees("waypoint restore")
        person.type(b"\x15waypoint restore -s work g\t")
        person.sees("waypoint restore -s work good")
    finally:
        person.close()


def test_there_is_a_manual_page_for_every_verb() -> None:
    pages = manual.pages()
    assert set(pages) == {"waypoint.1", *(f"waypoint-{name.replace(' ', '-')}.1" for name in verbs.MODULES)}
    restore = pages["waypoint-restore.1"]
    assert ".SH SYNOPSIS" in restore
    assert r"\-\-no\-safety" in restore
    for name, page in pages.items():
        requests = {line.split()[0] for line in page.splitlines() if line.startswith(".")}
        assert requests <= {".TH", ".SH", ".TP", ".PP", ".nf", ".fi"}, name
        assert r"\fB\fR" not in page
    if groff := shutil.which("groff"):
        text = "".join(pages.values())
        done = subprocess.run(
            [
                groff,
                "-K",
                "utf8",
                "-man",
                "-Tutf8",
                "-wmac",
                "-wchar",
                "-wescape",
                "-wmissing",
                "-Wbreak",
                "-z",
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr


def test_every_check_of_doctor_links_to_a_heading_that_exists() -> None:
    for check in doctor._CHECKS:
        page, _, anchor = check.docs.partition("#")
        headings = re.findall(r"^#+ (.*)$", (REPOSITORY / page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, check.name


def drawn(terminal: int) -> bytes:
    """What was written to a terminal, up to the progress."""
    seen = b""
    while b"30%" not in seen:
        seen += os.read(terminal, 1000)
    return seen


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *, quiet: bool = False) -> str:
    """What a console shows on a terminal for work that takes a while."""
    ours, terminal = pty.openpty()
    with open(terminal, "w") as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stderr", stream)
        patched.setattr(console, "_PROGRESS_AFTER_SECONDS", 0.0)
        shown = console.Console(Namespace(), quiet=quiet)
        with shown.progress("importing") as update:
            update("unpacking x, 30%")
            stream.flush()
            if not quiet:
                assert b"unpacking" in drawn(ours)
        shown.step("one step")
        shown.say("a note")
        shown.warn("a warning")
        stream.flush()
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(ours, 10_000):
            text += data
    os.close(ours)
    return text.decode()


def test_quiet_leaves_only_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = on_a_terminal(monkeypatch)
    assert "one step" in loud
    assert "a note" in loud
    assert "a warning" in loud
    quiet = on_a_terminal(monkeypatch, quiet=True)
    assert "a warning" in quiet
    assert "note" not in quiet
    assert "step" not in quiet
    assert "importing" not in quiet


@pytest.mark.parametrize(
    "words", [["--no-color", "--quiet", "completion", "bash"], ["man", "--no-color", "--quiet"]]
)
def test_the_common_options_stand_before_or_after_the_verb(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("NO_COLOR", "")
    assert cli.main(words) == 0
    assert os.environ["NO_COLOR"] == "1"
    assert "waypoint" in capsys.readouterr().out
