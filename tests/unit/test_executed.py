"""Files that the host runs by itself are told from those that it does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from waypoint.history.executed import reason_executed

CLONED = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
[remote "origin"]
\turl = https://example.com/a/b.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
"""


def reason(
    path: str, *, content: str = "", is_link: bool = False, repository: int | None = None
) -> str | None:
    return reason_executed(
        path, is_link=is_link, read=content.encode, is_repository=lambda levels: levels == repository
    )


@pytest.mark.parametrize(
    "path",
    [
        "/srv/app/.git/hooks/pre-commit",
        "/srv/app/.git/modules/a/b/hooks/post-checkout",
        "/srv/app/.husky/pre-push",
        "/srv/app/.git",  # a file: the repository is elsewhere
        "/srv/app/.git/info/attributes",
        "/srv/app/.git/config.worktree",
        "/srv/app/.envrc",
        "/srv/app/deep/down/.envrc",
        "/srv/app/.vscode/tasks.json",
        "/srv/app/.claude/settings.json",
        "/srv/app/.claude/hooks/x.sh",
        "/srv/v/lib/python3.11/site-packages/evil.pth",
        "/root/.bashrc",
        "/home/u/.config/fish/conf.d/x.fish",
        "/home/u/.ssh/authorized_keys",
        "/home/u/.ssh/rc",
        "/home/u/.config/systemd/user/x.service",
        "/etc/cron.d/x",
        "/var/spool/cron/crontabs/root",
        "/etc/systemd/system/x.service",
        "/lib/systemd/system-generators/x",
        "/etc/profile.d/x.sh",
        "/etc/sudoers.d/x",
        "/etc/ld.so.preload",
        "/etc/rc3.d/S01x",
        "/etc/shadow",
    ],
)
def test_it_is_named(path: str) -> None:
    assert reason(path)


@pytest.mark.parametrize(
    "path",
    [
        "/srv/app/main.py",
        "/srv/app/hooks/pre-commit",
        "/srv/app/config",
        "/srv/app/.gitignore",
        "/srv/app/.gitattributes",
        "/srv/app/.git/HEAD",
        "/srv/app/.git/objects/ab/cdef",
        "/srv/app/.git/refs/heads/main",
        "/srv/app/.git/hooks/pre-commit.sample",
        "/srv/app/Makefile",
        "/srv/app/etc/cron.d/x",
        "/srv/app/bashrc",
        "/etc/hosts",
        "/etc/nginx/nginx.conf",
        "/srv/app/my.envrc",
    ],
)
def test_everything_else_is_not(path: str) -> None:
    assert reason(path) is None


def test_a_link_in_place_of_a_folder_on_the_way_leads_to_another_one() -> None:
    for path in (
        "/home/u/.config",
        "/home/u/.ssh",
        "/srv/app/.git/hooks",
        "/srv/app/.vscode",
        "/etc/cron.d",
        "/etc",
    ):
        assert reason(path, is_link=True), path
    assert reason("/srv/app/node_modules", is_link=True) is None


def test_a_bare_repository_is_one_wherever_it_is() -> None:
    assert reason("/srv/x.git/hooks/update", repository=2)
    assert reason("/srv/x.git/hooks", is_link=True, repository=1)
    assert reason("/srv/x.git/config", content="[core]\n\tfsmonitor = ./evil\n", repository=1)
    assert reason("/srv/x.git/config", content=CLONED, repository=1) is None


@pytest.mark.parametrize(
    "lines",
    [
        "[core]\n\tfsmonitor = ./evil\n",
        "[core]\n\thooksPath = /tmp\n",
        "[core] fsmonitor = ./evil\n",
        '[core "x"]\n\tfsmonitor = ./evil\n',
        "[core.x]\n",
        '[filter "x"]\n\tclean = evil\n',
        "[alias]\n\tst = !evil\n",
        "[include]\n\tpath = ../evil\n",
        '[remote "origin"]\n\turl = ext::sh -c evil\n',
        '[remote "origin"]\n\turl = -oProxyCommand=evil\n',
        '[remote "origin"]\n\tuploadpack = evil\n',
        "[core]\n\tbare = \\\n[core]\n",
        '[user]\n\tname = "a\n',
        "\ufeff[core]\n\tfsmonitor = ./evil\n",
        "[user]\n\tname = x\r\n[core]\r\n\tfsmonitor = evil\r\n",
    ],
)
def test_a_configuration_of_git_with_a_line_that_may_run_something_is_named(lines: str) -> None:
    assert reason("/srv/app/.git/config", content=CLONED + lines)


def test_what_git_writes_itself_is_harmless(tmp_path: Path) -> None:
    """A new repository and a clone of it are no conflict; their configuration is read as git wrote it."""

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "one")
    git(
        "-C",
        "one",
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.com",
        "commit",
        "--allow-empty",
        "-m",
        "x",
    )
    git("-C", "one", "config", "user.name", "A Person")
    git("clone", f"file://{tmp_path}/one", "two")
    for name in ("one", "two"):
        config = (tmp_path / name / ".git/config").read_text()
        assert reason(f"/srv/{name}/.git/config", content=config) is None, config


def test_a_configuration_that_is_large_or_no_text_is_named() -> None:
    assert reason("/srv/app/.git/config", content="# x\n" * 20_000)
    assert reason_executed(
        "/srv/app/.git/config", is_link=False, read=lambda: b"\xff", is_repository=lambda _: False
    )
