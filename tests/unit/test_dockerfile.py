"""What a Dockerfile says: lines, words, variables, patterns."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from waypoint.bases import tools
from waypoint.bases.dockerfile import (
    Copy,
    Ignored,
    MakeFolder,
    Recipe,
    Run,
    matches,
    origin_of,
    read,
    starts_one,
)
from waypoint.errors import CommandFailed, MissingFeature, UsageError
from waypoint.model import ImageConfig


def recipe(text: str, inherited: ImageConfig | None = None, **arguments: str) -> Recipe:
    return read(text, "Dockerfile", arguments, inherited or ImageConfig())


@pytest.mark.parametrize(
    ("start", "is_one"),
    [
        (b"FROM x\n", True),
        (b"\xef\xbb\xbf# comment\n\n  from x\n", True),
        (b"ARG A=1\nFROM x\n", True),
        (b"#!/bin/sh\necho FROM x\n", False),
        (b"", False),
        (b"\x1f\x8b\x08", False),
        (b"FROM x\0" + bytes(512), False),
        (b"FROMAGE\n", False),
        ("FROM x\n# é".encode()[:-1], True),
    ],
)
def test_a_dockerfile_is_recognized_by_its_first_instruction(start: bytes, is_one: bool) -> None:
    assert starts_one(start) is is_one


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ('A="b c"', "b c"),
        ("A='$B c'", "$B c"),
        ("A=b\\ c", "b c"),
        ("A b  c ", "b  c"),
        ("A=$B/x", "two words/x"),
        ('A="${B}"', "two words"),
        ("A=${NONE:-it is not}", None),
        ('A="${NONE:-it is not}"', "it is not"),
        ("A=${EMPTY:-full}", "full"),
        ("A=${EMPTY-full}", ""),
        ("A=${B:+set}", "set"),
        ("A=${NONE+set}", ""),
        ("A=${NONE:-${B}}", "two words"),
        ('A="\\$B \\x"', "$B \\x"),
        ("A=\\$B", "$B"),
        ("A=cost$", "cost$"),
        ("A=x=y", "x=y"),
    ],
)
def test_words_are_read_as_docker_reads_them(line: str, value: str | None) -> None:
    text = f'FROM x\nENV B="two words" EMPTY=\nENV {line}\n'
    if value is None:
        with pytest.raises(UsageError, match="line 3"):
            recipe(text)
    else:
        assert recipe(text).image.env["A"] == value


def test_variables_of_one_line_are_not_seen_in_it() -> None:
    assert recipe("FROM x\nENV A=1\nENV A=2 B=$A\nENV C=$A$B\n").image.env == {"A": "2", "B": "1", "C": "21"}


def test_arguments_hold_from_where_they_are_declared_and_variables_win() -> None:
    text = "ARG V=1\nFROM base:$V\nRUN a\nARG V\nARG W=$V-w\nRUN b\nENV W=env\nRUN c\n"
    assert origin_of(text, "D", {"V": "9"}) == ("base:9", 2)
    runs = [step.action for step in recipe(text).steps]
    assert [run.env for run in runs if isinstance(run, Run)] == [
        {},
        {"V": "1", "W": "1-w"},
        {"V": "1", "W": "env"},
    ]
    with pytest.raises(UsageError, match="has no ARG X"):
        recipe(text, X="1")


def test_lines_go_on_and_comments_between_them_do_not_count() -> None:
    said = recipe("FROM x\n\n# first\nRUN a \\\n  # not a\n\n  && b \\\n&& c\nRUN d\\\\\n")
    assert [(step.line, step.text) for step in said.steps] == [(4, "RUN a && b && c"), (9, "RUN d\\")]
    run = said.steps[0].action
    assert isinstance(run, Run)
    assert run.argv == ("/bin/sh", "-c", "a   && b && c")


def test_folders_users_and_targets_follow_each_other() -> None:
    said = recipe(
        "FROM x\nUSER app\nWORKDIR sub\nCOPY a b c/\n"
        "WORKDIR ../../other\nADD --chmod=0755 a .\nCOPY a /\nRUN x\n",
        ImageConfig(workdir="/srv", user="nobody"),
    )
    assert [step.action for step in said.steps] == [
        MakeFolder("/srv/sub"),
        Copy(("a", "b"), "/srv/sub/c/", "", None, unpack=False),
        MakeFolder("/other"),
        Copy(("a",), "/other/", "", 0o755, unpack=True),
        Copy(("a",), "/", "", None, unpack=False),
        Run(("/bin/sh", "-c", "x"), "x", {}, "app", "/other"),
    ]


def test_what_the_origin_says_is_kept_unless_the_file_says_more() -> None:
    before = ImageConfig(env={"A": "1"}, command=("old",), entrypoint=("run",), ports=("80/tcp",))
    assert recipe("FROM x\nENV B=2\nEXPOSE 80 81\n", before).image == ImageConfig(
        env={"A": "1", "B": "2"}, command=("old",), entrypoint=("run",), ports=("80/tcp", "81/tcp")
    )
    assert recipe('FROM x\nENTRYPOINT ["new"]\n', before).image.command == ()
    assert recipe("FROM x\nCMD a b\n", before).image.command == ("/bin/sh", "-c", "a b")


def test_what_is_ignored() -> None:
    ignored = Ignored("# comment\n*.log\n**/node_modules\nbuild/\n!build/keep\ndocs/*.[ch]\n")
    assert [
        path
        for path in (
            *("a.log", "x/a.log", "node_modules/a", "x/y/node_modules/z/a", "build/a", "build/keep"),
            *("docs/a.c", "docs/a.md", "docs/x/a.c", "nodemodules"),
        )
        if ignored.hides(path)
    ] == ["a.log", "node_modules/a", "x/y/node_modules/z/a", "build/a", "docs/a.c"]
    assert matches("package-lock.json", "package*.json")
    assert not matches("a/b", "*")


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("a*b*c", ["abc", "a1b2c", "abcbc"], ["ab", "acb", "a/bc"]),
        ("[a-c_]?", ["a1", "_x"], ["d1", "a", "a/"]),
        ("[^a-c]", ["d"], ["a", "dd"]),
        ("[z-a]", [], ["a", "z"]),
        ("a\\*", ["a*"], ["ab"]),
        ("[a", ["[a"], ["a"]),
    ],
)
def test_a_pattern_fits_a_name(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in (*fitting, *others) if matches(name, pattern)] == fitting


def test_no_pattern_takes_long() -> None:
    """A file of others could stop the daemon with one that a regular expression tries in all ways."""
    began = time.monotonic()
    assert not matches("a" * 250, "*a" * 30 + "b")
    assert not Ignored("**/" * 30 + "*a" * 30 + "b").hides("/".join(["a" * 20] * 12))
    assert time.monotonic() - began < 5


def fake_tool(folder: Path, script: str) -> str:
    program = folder / "buildah"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_a_tool_that_is_installed_builds_and_hands_over_an_oci_folder(tmp_path: Path) -> None:
    tool = fake_tool(
        tmp_path,
        f'printf "%s\\n" "$@" >> {tmp_path}/asked\n'
        'case $1 in push) mkdir "${3#oci:}" 2>/dev/null || { d=${3#oci:}; mkdir "${d%:latest}"; };; esac',
    )
    heard: list[str] = []
    target = tmp_path / "image"
    tools.build_image(tool, "App", tmp_path / "D", tmp_path, {"A": "1"}, target, heard.append)
    assert (tmp_path / "asked").read_text().split("\n")[:-1] == [
        *("build", "--layers", "--tag", "localhost/waypoint/app:latest", "--file", f"{tmp_path}/D"),
        *("--build-arg", "A=1", str(tmp_path)),
        *("push", "localhost/waypoint/app:latest", f"oci:{target}:latest"),
    ]


def test_a_tool_that_fails_or_has_no_caller_any_more(tmp_path: Path) -> None:
    tool = fake_tool(tmp_path, "echo the reason; exit 125")
    with pytest.raises(CommandFailed, match="buildah build ended with exit code 125:\nthe reason"):
        tools.build_image(tool, "a", tmp_path / "D", tmp_path, {}, tmp_path / "t", lambda _: None)
    tool = fake_tool(tmp_path, "sleep 60 & wait")
    with pytest.raises(CommandFailed, match="its caller waits no more"):
        tools.build_image(
            tool, "a", tmp_path / "D", tmp_path, {}, tmp_path / "t", lambda _: None, gone=lambda: True
        )


def test_which_tool_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.find_tool("auto") is None
    with pytest.raises(MissingFeature, match="podman is not installed"):
        tools.find_tool("podman")
    tool = fake_tool(tmp_path, "true")
    assert tools.find_tool("auto") == tool
    assert tools.find_tool("waypoint") is None
