"""A story with a known plot, and what Waypoint tells of it: every card against what the script really did.

The first part tells one story (a clone, an environment with a package, a server, edits, commits, files that
git does not know, a database, something that breaks and is repaired) and reads it from all sides. The second
part has small sessions of its own: verdicts, plans, undo, secrets, cards that fail.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.box.box import keepers
from waypoint.home import Home
from waypoint.text.views import Card

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

PROGRAM = [sys.executable, "-P", "-m", "waypoint"]
TOKEN = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
PASSWORD = "correct-horse-7-battery"


class Ran(NamedTuple):
    """What a run of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def cli(*words: str) -> Ran:
    """The command line, without a terminal. Unlike the fixture `wp` it leaves sessions alone."""
    done = subprocess.run(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def on_terminal(*words: str, answer: bytes = b"", pager: str = "cat") -> tuple[int, str]:
    """The command line on a terminal of 20 rows; `answer` is typed when it asks."""
    pid, master = pty.fork()
    if pid == 0:
        sized = ["sh", "-c", 'stty rows 20 cols 90; exec "$@"', "sh", *PROGRAM, *words]
        os.execvpe(sized[0], sized, {**os.environ, "TERM": "xterm", "PAGER": pager})
    shown, asked = b"", False
    with os.fdopen(master, "r+b", buffering=0) as terminal:
        while select.select([terminal], [], [], 30)[0]:
            try:
                data = terminal.read(1 << 16)
            except OSError:
                break
            if not data:
                break
            shown += data
            if answer and not asked and b"[y/N]" in shown:
                asked = True
                terminal.write(answer)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode(errors="replace")


# The story ----------------------------------------------------------------------------------------------


class Chapter(NamedTuple):
    """What the script does up to a point, and what that changes outside of .git and .venv."""

    does: str
    intent: str
    files: dict[str, str]
    summary: str
    """What the card's line has to match."""
    verify: str | None = None
    verdict: str | None = None


SCRIPT = (
    Chapter(
        "mkdir -p /srv/origin && cd /srv/origin && git init -q -b main . && git config user.email a@b.org"
        " && git config user.name A && echo 'print(\"hello\")' > app.py && echo '*.cfg' > .gitignore"
        " && git add -A && git commit -qm 'say hello' && cd /root",
        "an origin to clone from",
        {"/srv/origin/app.py": "created", "/srv/origin/.gitignore": "created"},
        r'^git \+origin: 1 commit on main "say hello" · \+app\.py, \+\.gitignore$',
    ),
    Chapter(
        "git clone -q /srv/origin /srv/app && cd /srv/app && git config user.email a@example.org"
        " && git config user.name A",
        "clean clone",
        {"/srv/app/app.py": "created", "/srv/app/.gitignore": "created"},
        r"^git \+app on main · cwd /srv/app · \+app\.py, \+\.gitignore$",
        "python3 app.py",
        "passed",
    ),
    Chapter(
        "python3 -m venv --without-pip .venv && python3 -m zipfile -e /srv/tiny.whl"
        " $(echo .venv/lib/python3*/site-packages)",
        "",
        {"/srv/app/.venv/pyvenv.cfg": "created"},
        r"^pip \+tiny 1\.2 · .*\+\.venv/$",
    ),
    Chapter(
        "export COLOUR=blue; python3 -m http.server 8123 >/srv/server.log 2>&1 &"
        " until (: </dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.05; done",
        "server up",
        {"/srv/server.log": "created"},
        r"^http\.server :8123 started · \+COLOUR$",
    ),
    Chapter(
        "echo 'print(\"please\")' >> app.py && git commit -qam 'answer politely'",
        "politeness, committed",
        {"/srv/app/app.py": "modified"},
        r'^git 1 commit on main "answer politely" · ~app\.py$',
        "python3 app.py | grep -q please",
        "passed",
    ),
    Chapter(
        "echo 'port = 8123' > local.cfg && echo 'ask somebody' > notes.txt",
        "files that git does not know",
        {"/srv/app/local.cfg": "created", "/srv/app/notes.txt": "created"},
        r"^\+local\.cfg, \+notes\.txt$",
    ),
    Chapter(
        'sqlite3 data.db "create table orders (id, what);'
        " insert into orders values (1, 'tea'), (2, 'milk')\"",
        "a database",
        {"/srv/app/data.db": "created"},
        r"^sqlite \+data\.db \(orders 2 rows\)$",
    ),
    Chapter(
        "sqlite3 data.db \"insert into orders values (3, 'salt')\" && echo 'print(undefined)' >> app.py"
        " && mv notes.txt notes.md && rm /srv/origin/app.py && chmod 755 app.py",
        "an order more",
        {
            "/srv/app/data.db": "modified",
            "/srv/app/app.py": "modified",
            "/srv/app/notes.md": "renamed",
            "/srv/origin/app.py": "deleted",
        },
        r"^sqlite data\.db: orders \+1 row · ~app\.py, notes\.txt → notes\.md and 1 more file \(-1\)$",
        "python3 app.py",
        "failed",
    ),
    Chapter(
        "mkdir docs && echo 'see notes' > docs/index.md && kill %1; wait %1 2>/dev/null; unset COLOUR",
        "documentation",
        {"/srv/app/docs": "created", "/srv/app/docs/index.md": "created"},
        r"^http\.server :8123 ended · -COLOUR · \+docs/index\.md$",
    ),
    Chapter(
        "sed -i '$d' app.py && git add app.py && cd docs",
        "repaired",
        {"/srv/app/app.py": "modified"},
        r"^cwd /srv/app/docs · ~ /srv/app/app\.py$",
        "cd /srv/app && python3 app.py && test -f docs/index.md",
        "passed",
    ),
)


def wheel() -> bytes:
    """A package as small as packages get."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("tiny.py", "SIZE = 1\n")
        about = "tiny-1.2.dist-info"
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.2\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/INSTALLER", "pip\n")
        file.writestr(f"{about}/REQUESTED", "")
        file.writestr(f"{about}/RECORD", "tiny.py,,\n")
    return data.getvalue()


def clear(home: Home) -> None:
    client = waypoint.Client()
    names = [one["name"] for one in client.call("ls")["sessions"]]
    if names:
        client.call("rm", {"sessions": names})
    client.close()
    assert not keepers(home)


class Story(NamedTuple):
    session: waypoint.Session
    points: list[waypoint.Checkpoint]


@pytest.fixture(scope="module")
def story(home: Home) -> Iterator[Story]:
    """The script, played once. Whoever reads it must leave it as it is."""
    session = waypoint.session("story")
    session.run("cat > /srv/tiny.whl", stdin=wheel()).check()
    session.checkpoint("before everything")
    points = []
    for chapter in SCRIPT:
        session.run(chapter.does).check()
        points.append(session.checkpoint(chapter.intent, verify=chapter.verify))
    yield Story(session, points)
    clear(home)


def settled(point: waypoint.Checkpoint) -> Card:
    """The card, once all verdicts are there."""
    deadline = time.monotonic() + 20
    while True:
        card = point.card()
        if card.ready and all(one["state"] != "running" for one in card.verdicts):
            return card
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", range(len(SCRIPT)), ids=[chapter.intent or "venv" for chapter in SCRIPT])
def test_every_card_says_what_the_script_did(story: Story, number: int) -> None:
    chapter, card = SCRIPT[number], settled(story.points[number])
    assert card.gaps == []
    assert card.difference is not None
    files = {
        one["path"]: one["kind"]
        for one in card.difference.files
        if "/.git/" not in f"{one['path']}/"
        and not re.search(r"/\.venv(/(bin|lib|lib64|include)\b|$)", one["path"])
    }
    folders = {one["path"] for one in card.difference.files if one["entry"] == "folder"}
    assert {path: kind for path, kind in files.items() if path in chapter.files or path not in folders} == (
        chapter.files
    )
    assert re.search(chapter.summary, card.summary), card.summary
    assert [one["state"] for one in card.verdicts] == ([chapter.verdict] if chapter.verdict else [])


def finding(card: Card, kind: str) -> dict[str, Any]:
    assert card.difference
    [found] = [one for one in card.difference.findings if one["kind"] == kind]
    return found


def test_work_that_is_committed_already_is_not_hidden(story: Story) -> None:
    """The first lie of a label made from `git status`: the work tree is clean, so nothing was done."""
    card = settled(story.points[4])
    assert story.points[4].verify("git -C /srv/app diff --quiet HEAD -- app.py").state == "passed"  # type: ignore[union-attr]
    found = finding(card, "repository")
    assert (found["path"], found["commit_count"], found["committed"], found["modified"]) == (
        "/srv/app",
        1,
        1,
        0,
    )
    assert found["commits"][0]["subject"] == "answer politely"
    assert card.difference
    assert {one["path"] for one in card.difference.files} >= {"/srv/app/app.py"}


def test_a_file_that_git_does_not_track_is_not_hidden(story: Story) -> None:
    """The second lie: an ignored file is none of git's business, so it was never there."""
    card = settled(story.points[5])
    assert card.difference
    assert {one["path"] for one in card.difference.files} == {"/srv/app/local.cfg", "/srv/app/notes.txt"}
    found = finding(card, "repository")
    assert (found["commit_count"], found["committed"]) == (0, 0)
    assert found["untracked"] >= 1


def test_what_files_mean(story: Story) -> None:
    found = finding(settled(story.points[2]), "package")
    assert {key: found[key] for key in ("ecosystem", "name", "change", "after", "environment")} == {
        "ecosystem": "pip",
        "name": "tiny",
        "change": "added",
        "after": "1.2",
        "environment": "/srv/app/.venv",
    }
    assert finding(settled(story.points[1]), "repository")["change"] == "created"
    table = finding(settled(story.points[6]), "database")["tables"][0]
    assert (table["name"], table["change"], table["rows_after"]) == ("orders", "created", 2)
    table = finding(settled(story.points[7]), "database")["tables"][0]
    assert (table["name"], table["rows_before"], table["rows_after"]) == ("orders", 2, 3)


def test_the_live_side(story: Story) -> None:
    card = settled(story.points[3])
    assert card.difference
    live = card.difference.live
    assert [one["port"] for one in live["opened"]] == [8123]
    [server] = live["started"]
    assert "http.server 8123" in server["command"]
    assert [(one["name"], one["before"], one["after"]) for one in live["variables"]] == [
        ("COLOUR", None, "blue")
    ]
    ended = settled(story.points[8])
    assert ended.difference
    assert [one["pid"] for one in ended.difference.live["ended"]] == [server["pid"]]
    assert [one["port"] for one in ended.difference.live["closed"]] == [8123]
    first = settled(story.points[0])
    assert first.difference
    assert first.difference.live["variables"] == []


def test_every_line_of_a_card_says_where_it_comes_from(story: Story) -> None:
    for point in story.points:
        for mark in settled(point).marks:
            expected = {
                "intent": {"observed"} if point.info.intent_from == "command" else {"claimed"},
                "files": {"derived"},
                "meaning": {"derived"},
            }
            assert mark["source"] in expected.get(mark["topic"], {"observed"})
    sections = {
        one["name"]: one["source"] for point in story.points for one in settled(point).data["sections"]
    }
    assert sections == {
        **dict.fromkeys(("files", "packages", "git", "databases"), "derived"),
        **dict.fromkeys(("processes", "ports", "shell"), "observed"),
    }


def test_where_an_intent_comes_from(story: Story) -> None:
    assert (story.points[1].info.intent, story.points[1].info.intent_from) == ("clean clone", "given")
    card = settled(story.points[2])
    assert (card.intent, card.intent_from) == (SCRIPT[2].does, "command")
    assert "[observed, the last command]" in str(card)
    assert "[claimed]" in str(settled(story.points[1]))
    # Nobody has run anything in the shell of this fork: what is known is the commit.
    fork = story.points[4].fork(name="committer")[0]
    program = fork.spawn(
        ["sh", "-c", "cd /srv/app && echo 'print(1)' >> app.py && git commit -qam 'count to one'"],
        env={"HOME": "/root"},
    )
    program.communicate()
    assert program.exit_code == 0
    card = settled(fork.checkpoint())
    fork.remove()
    assert (card.intent, card.intent_from) == ("count to one", "git")
    assert 'commit "count to one"  [claimed, the last commit\'s subject]' in str(card)


def test_who_asked_what_it_took_and_what_it_does_not_hold(story: Story) -> None:
    found = cli("--json", "show", "-s", "story", "c2").json
    point = found["checkpoint"]
    assert (point["actor"], point["kind"], found["parent"]) == ("person", "manual", "c1")
    assert point["pause_ms"] > 0
    shown = cli("show", "-s", "story", "c2").out
    assert re.search(r"^who +a person$", shown, re.MULTILINE)
    assert re.search(r"^holds +\d+ process.* · paused ", shown, re.MULTILINE)
    assert re.search(r"^verified +not yet$", shown, re.MULTILINE)
    for sentence in point["coverage"]:
        assert sentence in shown


def test_two_points_far_apart(story: Story) -> None:
    """The sum of the chapters: what came and went in between is not in it."""
    found = cli("--json", "diff", "-s", "story", "c1", "c11")
    assert found.code == 1
    kinds = {one["path"]: one["kind"] for one in found.json["difference"]["files"]["changes"]}
    assert kinds["/srv/app/app.py"] == "created"
    assert kinds["/srv/app/notes.md"] == "created"
    assert "/srv/app/notes.txt" not in kinds
    assert "/srv/origin/app.py" not in kinds  # made after the one and removed before the other
    live = found.json["difference"]["live"]
    assert (live["started"], live["opened"], live["variables"]) == ([], [], [])
    assert live["cwd"] == ["/root", "/srv/app/docs"]


def test_sections_sums_paths_and_exit_statuses(story: Story) -> None:
    words = ("-s", "story", "c3", "c5")
    text = cli("diff", *words).out
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == [
        "files",
        "packages",
        "git",
        "processes",
        "ports",
        "shell",
    ]
    only = cli("diff", *words, "--packages")
    assert (only.code, only.out.split()[0]) == (1, "packages")
    assert "pip tiny" in only.out
    assert cli("diff", *words, "--shell").out.split()[0] == "shell"
    assert "http.server" in cli("diff", *words, "--processes").out
    summed = cli("diff", *words, "--stat").out
    assert len(summed.splitlines()) == 6
    assert cli("diff", *words, "/srv/server.log").out.splitlines()[1].split()[:2] == ["+", "/srv/server.log"]
    assert cli("diff", *words, "./app.py").code == 0
    assert cli("diff", *words, "--", "local.cfg").code == 0
    same = cli("diff", "-s", "story", "c3", "c3")
    assert (same.code, same.out) == (0, "no change found\n")
    assert cli("diff", "-s", "story", "c11").code == 0
    assert cli("diff", "-s", "story", "nothing").code == errors.NotFound.exit_status
    assert cli("diff", "-s", "story", "c3", "base").code == errors.UsageError.exit_status


def test_a_patch_of_what_changed(story: Story) -> None:
    found = cli("diff", "-s", "story", "c5", "c6", "./app.py", "--patch")
    assert found.code == 1
    assert found.out.splitlines()[-3:] == ["@@ -1 +1,2 @@", ' print("hello")', '+print("please")']
    assert found.err == ""


def test_the_log_for_people_and_for_programs(story: Story) -> None:
    settled(story.points[-1])
    found = cli("--json", "log", "-s", "story").json
    assert [one["label"] for one in found["checkpoints"]] == [f"c{n}" for n in range(1, 12)]
    assert found["good"] == {"story": story.points[-1].id}
    lines = cli("log", "-s", "story").out.splitlines()
    assert re.match(r"@  now +no change found since c11$", lines[0])
    assert re.match(r"●  c11  \d\d:\d\d  repaired +✔ cd /srv/app && .* ← good$", lines[1])
    [broken] = [line for line in lines if " an order more " in line]
    assert re.match(r"✗  c9 .*✖ python3 app.py exit 1$", broken)
    assert any(line.startswith("○  c4 ") and "  $ python3 -m venv" in line for line in lines)
    [clone] = [number for number, line in enumerate(lines) if "clean clone" in line]
    assert lines[clone + 1].strip("│ ").startswith("git +app on main")
    assert len(cli("--json", "log", "-s", "story", "-n", "2").json["checkpoints"]) == 2
    assert [line for line in cli("log", "-s", "story", "-n", "2").out.splitlines() if "older" in line] == [
        "… 9 older"
    ]
    assert cli("--json", "log", "-s", "story", "--since", "2000-01-01").json["checkpoints"]
    later = cli("--json", "log", "-s", "story", "--since", "2100-01-01").json
    assert later["checkpoints"] == []
    assert cli("log", "-s", "story", "--since", "soon").code == 2


def test_what_is_longer_than_the_screen_goes_through_the_pager(story: Story) -> None:
    code, shown = on_terminal("log", "-s", "story", pager="sed 's/^/>> /'")
    assert code == 0
    lines = shown.splitlines()
    assert len(lines) > 20
    assert all(line.startswith(">> ") for line in lines)
    assert re.match(r">> \x1b\[1m@", lines[0])
    _, shown = on_terminal("log", "-s", "story", "-n", "2", pager="sed 's/^/>> /'")
    assert ">> " not in shown
    code, shown = on_terminal("log", "-s", "story", pager="no-such-program-at-all")
    assert code == 0
    assert "clean clone" in shown


def test_refs(story: Story) -> None:
    ids = [point.id for point in story.points]

    def meant(ref: str) -> str:
        return story.session.point(ref).id

    assert meant("@") == meant("story:@") == meant("story/c11") == ids[-1]
    assert meant("@-") == ids[-2]
    assert meant("@~3") == ids[-4]
    assert meant(ids[3][:6]) == ids[3]
    assert meant("good") == ids[-1]
    assert meant(time.strftime("%H:%M")) == ids[-1]
    assert cli("--json", "show", "story/c3").json["checkpoint"]["id"] == ids[1]
    assert cli("tag", "-s", "story", "broken", "c9").code == 0
    assert meant("broken") == meant("story:broken") == ids[7]
    assert cli("--json", "tag", "-s", "story").json["tags"][0]["tag"] == "broken"
    story.points[6].tag("broken")
    assert meant("broken") == ids[6]
    assert "#broken" in cli("log", "-s", "story").out
    assert cli("tag", "-s", "story", "-d", "broken").code == 0
    for ref in ("broken", "@~30", "c99", "nobody:c1"):
        with pytest.raises(errors.NotFound):
            meant(ref)
    for name in ("c9", "good", "now"):
        with pytest.raises(errors.InvalidName):
            story.points[0].tag(name)


def test_bisect_finds_the_point_that_broke_it(story: Story) -> None:
    steps: list[dict[str, Any]] = []
    found = story.session.bisect("c3", "c10", "cd /srv/app && python3 app.py", on_step=steps.append)
    assert found.culprit["label"] == "c9"
    assert found.last_good["label"] == "c8"
    assert steps[0]["label"] == "c3"
    assert [(one["label"], one["passed"]) for one in steps] == [
        (one["label"], one["passed"]) for one in found.steps
    ]
    assert 3 <= len(steps) <= 7
    assert {one["path"] for one in found.diff.files} >= {"/srv/app/app.py", "/srv/app/data.db"}
    # Asking is no verdict: what was said about the points before still stands.
    assert [one["command"] for one in settled(story.points[7]).verdicts] == ["python3 app.py"]
    assert story.session.point("good").id == story.points[-1].id
    shown = cli("bisect", "-s", "story", "c8", "c9", "cd /srv/app && python3 app.py")
    assert shown.code == 0
    assert shown.out.startswith('It broke at c9 "an order more" (')
    assert re.search(r"^intent +an order more  \[claimed\]$", shown.out, re.MULTILINE)
    assert "~ /srv/app/app.py" in shown.out
    assert shown.err.splitlines() == ["✔ c8  a database", "✖ c9  an order more"]
    wrong = cli("bisect", "-s", "story", "c9", "c11", "cd /srv/app && python3 app.py")
    assert wrong.code == errors.UsageError.exit_status
    assert "fails at c9" in wrong.err


def test_words_added_later_are_marked_as_such(story: Story) -> None:
    assert cli("note", "-s", "story", "c9", "here", "it broke").code == 0
    shown = cli("show", "-s", "story", "c9").out
    assert re.search(r'^note +"here it broke"  \[claimed, added later: \d\d:\d\d\]$', shown, re.MULTILINE)
    assert cli("note", "-s", "story", "c9", " ").code == errors.UsageError.exit_status


# Sessions of their own ----------------------------------------------------------------------------------


Fork = Callable[[], waypoint.Session]


@pytest.fixture
def work(story: Story, home: Home) -> Iterator[waypoint.Session]:
    """A session at the end of the story, which may do with it what it likes."""
    fork = story.points[-1].fork(name="work")[0]
    yield fork
    known = {one["name"] for one in waypoint.Client().call("ls")["sessions"]} - {"story"}
    waypoint.Client().call("rm", {"sessions": sorted(known)})
    assert len(keepers(home)) == 1


def test_a_verdict_is_about_the_bytes_of_the_point(work: waypoint.Session, home: Home) -> None:
    work.run("export WHO=me; mkdir /srv/w; cd /srv/w; echo one > file; kept=here").check()
    point = work.checkpoint("one")
    work.run("echo two > file; cd /; WHO=you").check()
    before = work.status().data["difference"]
    # It runs in the point's shell: its files, its folder, its variables, exported or not.
    found = point.verify("test \"$(cat file) $WHO $kept $PWD\" = 'one me here /srv/w'")
    assert found
    assert (found.state, found.exit_code) == ("passed", 0)
    failed = point.verify("echo shown; rm -rf /srv/w; (exit 7)")
    assert failed
    assert (failed.state, failed.exit_code, failed.output) == ("failed", 7, "shown\n")
    timed = point.verify("sleep 30", timeout=0.5)
    assert timed
    assert (timed.state, timed.exit_code) == ("timeout", None)
    assert "longer than 0.5 s" in timed.output
    unclear = point.verify("exit 125")
    assert unclear
    assert (unclear.state, unclear.exit_code) == ("unclear", 125)
    [head] = [one for one in work.checkpoints() if one.id == point.id]
    assert [one.state for one in head.info.verdicts] == ["passed", "failed", "timeout", "unclear"]
    assert head.info.verdict
    assert head.info.verdict.state == "failed"
    # The session has noticed nothing, and nothing is left of the forks.
    assert work.status().data["difference"] == before
    assert work.run("cat /srv/w/file; pwd; echo $WHO $kept").output == "two\n/\nyou here\n"
    assert len(keepers(home)) == 2
    assert [one.state for one in point.verdicts()] == ["passed", "failed", "timeout", "unclear"]
    assert sorted(os.listdir(home.staging)) == []


def test_good_is_the_last_point_at_which_nothing_failed(work: waypoint.Session) -> None:
    first = work.checkpoint("first", verify="true", wait=True)
    assert first.info.verdict
    assert first.info.verdict.state == "passed"
    second = work.checkpoint("second", verify="false", wait=True)
    work.checkpoint("third")
    assert work.point("good").id == first.id
    assert cli("verify", "-s", "work", second.info.label, "true").code == 0
    assert work.point("good").id == first.id, "what another command says does not take the failure back"
    assert re.search(r"second +✖ false exit 1 · ✔ true", cli("log", "-s", "work").out)
    assert cli("verify", "-s", "work", second.info.label, "exit 125").code == 125
    assert cli("verify", "-s", "work", "--timeout", "0.3", second.info.label, "sleep 30").code == 124
    third = work.checkpoint("third, verified", verify="true", wait=True)
    assert work.point("good").id == third.id
    found = cli("verify", "-s", "work", second.info.label, "echo", "no;", "false")
    assert found.code == 1
    assert found.out.splitlines()[1:] == ["  ✖ echo no; false exit 1", "    no"]
    assert work.point("good").id == third.id
    assert [one["state"] for one in second.card().verdicts] == [
        *("failed", "passed", "unclear", "timeout", "failed")
    ]
    waited = cli("checkpoint", "-s", "work", "fourth", "--verify", "exit 3", "--wait")
    assert waited.code == 1
    assert "✖ exit 3 exit 3" in waited.out
    later = cli("--json", "verify", "-s", "work", "--no-wait", "@", "true")
    assert (later.code, later.json["verdict"]) == (0, None)
    assert cli("checkpoint", "-s", "work", "--files-only", "--verify", "true").code == 2
    assert [one.info.intent for one in work.checkpoints()] == [
        *("first", "second", "third", "third, verified", "fourth")
    ]


def test_a_plan_is_what_happens_or_nothing(work: waypoint.Session) -> None:
    work.run("cd /srv/app; echo 1 > one").check()
    point = work.checkpoint("one")
    work.run("echo 2 > two; echo more >> one; rm notes.md; export LATER=yes; cd /srv; sleep 1000 &").check()
    plan = work.preview(point)
    text = re.sub(r" {3,}", "   ", str(plan)).splitlines()
    assert re.match(
        rf'From now \({point.info.label} \+ 3 files\) back to {point.info.label} "one" \(', text[0]
    )
    assert text[1:6] == [
        "  files   1 made since, will go: two",
        "   1 will lose its edits since: one",
        "   1 deleted since, will be back: notes.md",
        "  processes  sleep ends",
        "  shell   cwd /srv → /srv/app · variable LATER",
    ]
    assert text[-1].startswith("A safety checkpoint (c")
    # Somebody goes on writing a file that the plan has: that is not what was agreed to.
    work.run("echo 3 >> /srv/app/two").check()
    with pytest.raises(errors.GroundMoved):
        work.restore(plan=plan)
    refused = cli("restore", "-s", "work", "--plan", plan.id)
    assert refused.code == errors.GroundMoved.exit_status
    assert "preview" in refused.err
    assert work.run("cat /srv/app/two").output == "2\n3\n"
    assert cli("restore", "-s", "work", "--plan", "nonsense").code == errors.NotFound.exit_status
    again = cli("--json", "preview", "-s", "work", point.info.label).json["plan"]["id"]
    restored = cli("--json", "restore", "-s", "work", "--plan", again)
    assert restored.code == 0
    assert restored.json["checkpoint"]["id"] == point.id
    assert work.run("ls two notes.md; cat one; pwd; echo $LATER").output.splitlines()[1:] == [
        "notes.md",
        "1",
        "/srv/app",
        "",
    ]


def test_a_plan_for_another_line_of_history(work: waypoint.Session) -> None:
    fork = work.checkpoint("where they part").fork(name="other")[0]
    work.run("cd /srv/app; echo here > only-here; git commit -qam 'here alone'; mv notes.md here.md").check()
    fork.run("cd /srv/app; echo there > only-there; echo there >> app.py; rm local.cfg").check()
    there = fork.checkpoint("there")
    assert " on to other:c1 " in str(work.preview(there)), "where they part is on the way there"
    work.checkpoint("here")
    lines = re.sub(r" {3,}", "   ", str(work.preview(there))).splitlines()
    assert " over to other:c1 " in lines[0]
    for line in (
        "  files   2 not on that line, will go: local.cfg, only-here",
        "   1 differs on that line, will be replaced: app.py",
        "   1 only on that line, will come: only-there",
        "   1 will have the name it has on that line: here.md → notes.md",
        '  git   1 commit on main will be lost: "here alone"',
    ):
        assert line in lines, lines


def test_without_a_terminal_a_restore_must_be_confirmed(work: waypoint.Session) -> None:
    found = cli("--json", "restore", "-s", "work", "story:c5")
    assert (found.code, found.json["error"]["code"]) == (3, "confirmation_needed")


def test_on_a_terminal_a_restore_shows_its_plan_and_asks(work: waypoint.Session) -> None:
    work.checkpoint("here", name="here")
    work.run("echo x > /srv/x").check()
    code, shown = on_terminal("restore", "-s", "work", "here", answer=b"n\n")
    assert code == 3
    assert "1 made since, will go: /srv/x" in shown
    assert "is taken first; `waypoint undo` comes back here." in shown
    assert work.run("cat /srv/x").ok
    code, shown = on_terminal("restore", "-s", "work", "here", "--no-safety", answer=b"y\n")
    assert code == 0, shown
    assert "No safety checkpoint is taken" in shown
    assert not work.run("cat /srv/x").ok
    code, shown = on_terminal("log", "-s", "work")
    assert code == 0
    assert "\x1b[32m●" in shown


def test_undo_and_redo(work: waypoint.Session) -> None:
    work.checkpoint("a", name="a")
    work.run("echo b > /srv/state; held=b").check()
    work.restore("a")
    assert not work.run("cat /srv/state").ok
    work.run("echo c > /srv/other").check()
    work.undo()
    assert work.run("cat /srv/state; echo $held; ls /srv/other").output.splitlines()[:2] == ["b", "b"]
    work.redo()
    assert work.run("cat /srv/other").output == "c\n"
    assert not work.run("cat /srv/state").ok
    with pytest.raises(errors.NotFound):
        work.redo()
    work.undo()
    assert work.run("cat /srv/state").ok
    done = work.operations()
    assert [(one["verb"], one["undone"]) for one in done] == [
        ("restore", True),
        ("undo", True),
        ("redo", True),
        ("undo", False),
    ]
    assert done[0]["to"] == "c1"  # (a present that ran again before it was saved is no point)
    shown = cli("ops", "-s", "work").out.splitlines()
    assert shown[0].split() == ["WHEN", "WHAT", "TO", "WAY", "BACK"]
    assert [line.split()[1] for line in shown[1:]] == ["undo", "redo", "undo", "restore"]
    assert shown[-1].split()[2] == "c1"
    lines = cli("log", "-s", "work").out
    assert "automatic (" in lines
    assert "automatic (" not in cli("log", "--all").out


def test_what_was_left_behind_by_a_session_that_died_is_in_the_plan(work: waypoint.Session) -> None:
    work.checkpoint("alive", name="alive")
    work.run("echo lost > /srv/lost").check()
    pid = work.info.pid
    assert pid
    os.kill(pid, 9)
    deadline = time.monotonic() + 10
    while work.info.state != "dead":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    text = str(work.preview("alive"))
    assert "1 made since, will go: /srv/lost" in text
    assert "no safety checkpoint can be taken" in text
    assert "it does not run" in cli("log", "-s", "work").out
    assert "it does not run" in cli("status", "-s", "work").out
    code, shown = on_terminal("restore", "-s", "work", "alive", answer=b"y\n")
    assert code == 0, shown
    work.park()
    assert "It is parked" in str(work.preview("@"))
    assert re.match(r"@  now +parked at c\d", cli("log", "-s", "work").out)
    work.restore("@")


def test_the_status_of_a_session(work: waypoint.Session) -> None:
    untouched = str(work.status())
    assert "no change found in files, processes and ports, nor in the shell's folder, variables" in untouched
    assert "missing" not in untouched
    work.run("echo x > /srv/x").check()
    shown = cli("status", "work").out.splitlines()
    assert shown[0] == "work  live, at its prompt"
    assert re.match(r'at +story:c11 "repaired" \(\d\d:\d\d, .* ago, ✔ cd /srv/app', shown[1])
    assert shown[2].split() == ["since", "+", "/srv/x"]
    work.type("sleep 1000\r")
    deadline = time.monotonic() + 10
    while work.status().foreground != "sleep 1000":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "runs sleep 1000" in cli("log", "-s", "work").out.splitlines()[0]
    assert re.search(
        "^not seen +the shell is as .*; it runs sleep 1000$", cli("status", "work").out, re.MULTILINE
    )
    work.type(b"\x03")
    # Its line begins in another session, and that belongs to its history.
    lines = cli("log", "-s", "work").out.splitlines()
    assert lines[1].startswith("●  story/c11 ")
    assert cli("--json", "log", "-s", "work").json["checkpoints"] == []
    assert len(work.log(graph=True)) >= 11


def section(shown: str, name: str) -> list[str]:
    """The lines below the name of a section, without the room between the columns."""
    match = re.search(rf"^{name} .*\n((?:  .*\n)*)", shown, re.MULTILINE)
    return [re.sub(r" {2,}", "  ", line.strip()) for line in match[1].splitlines()] if match else []


def test_what_a_shell_holds_is_compared(work: waypoint.Session) -> None:
    work.run(
        "plain=1 list=(a b) gone=1; f() { echo 1; }; alias l=ls; umask 022; trap 'echo bye' USR1"
        "; export LONG=$(printf '/some/folder%s:' {1..20})"
    ).check()
    before = work.checkpoint("before")
    assert not work.changed()
    work.run(
        "list=(a c); unset gone; export plain; f() { echo 2; }; alias l='ls -a' m=more; umask 077"
        "; shopt -s nullglob; trap - USR1; LONG=${LONG/folder13/other}"
    ).check()
    assert work.changed()
    shown = cli("diff", "-s", "work", before.info.label, "now").out
    lines = section(shown, "shell")
    [long] = [line for line in lines if line.startswith("~ LONG")]
    assert re.fullmatch(r"~ LONG  ….*folder13:.*… → ….*other:.*…", long)
    assert [line for line in lines if line != long] == [
        "- gone",
        '~ list  ([0]="a" [1]="b") → ([0]="a" [1]="c") · not exported',
        "~ plain  exported now",
        "~ f()  another body",
        "~ alias l  ls → ls -a",
        "+ alias m  more",
        "~ option nullglob  on",
        "~ umask  0022 → 0077",
        "- trap SIGUSR1",
    ]
    work.type("bash --norc\r")
    until(lambda: "bash --norc" in str(work.status()))
    assert re.search(
        r"^missing +shell: bash --norc \(pid \d+\) runs", cli("status", "work").out, re.MULTILINE
    )
    work.type("exit\r")
    work.restore(before)
    assert "no change found" in str(work.status())


def test_processes_that_restart_stop_and_take_a_port_over(work: waypoint.Session) -> None:
    answers = "(: </dev/tcp/127.0.0.1/8124) 2>/dev/null"
    serve = f"python3 -m http.server 8124 >/dev/null 2>&1 & until {answers}; do sleep 0.05; done"
    work.run(f"{serve}; sleep 1000 &").check()
    work.checkpoint("up")
    assert "memory of 2 processes that went on (http.server, sleep) may have changed" in str(work.status())
    code = "/usr/bin/python3 -c 'import time; time.sleep(999)'"
    work.run(f"kill %1; wait %1; {serve}; kill -STOP %2; {code} &")
    until(lambda: "sleep stopped" in str(work.status()))
    assert work.status().data["summary"] == "http.server :8124 restarted · python3 -c started · sleep stopped"
    shown = cli("status", "work").out
    assert re.match(
        r"~ http\.server :8124  restarted · pid \d+ → \d+ · .*python3 -m", section(shown, "processes")[0]
    )
    assert not section(shown, "ports")
    work.checkpoint("again")
    code = 'import socket, time; s = socket.create_server(("", 8124)); time.sleep(999)'
    work.run(f"kill %3; wait %3; kill -CONT %2; /usr/bin/python3 -c '{code}' &")
    until(lambda: ":8124 http.server → python3 -c" in str(work.status()))
    assert "sleep continued" in str(work.status())


def test_secrets_are_not_shown_anywhere_and_are_counted(work: waypoint.Session) -> None:
    work.checkpoint("clean", name="clean")
    work.run(f"cd /srv/app; export API_TOKEN={TOKEN}").check()
    work.run(f"export DB_PASSWORD={PASSWORD}").check()
    work.run(f"printf 'API_KEY=%s\\nMODE=fast\\n' {TOKEN} > .env; echo plain > plain.txt").check()
    work.run(f"git add -A; git commit -qm 'use {TOKEN}'").check()
    work.run(
        f"sleep 1000 --password {PASSWORD} 2>/dev/null & sleep 0.1; exec -a 'srv {PASSWORD}' true &"
    ).check()
    work.run(
        f"sh -c 'sleep 1000; : {PASSWORD}' & curl -H 'Authorization: Bearer {TOKEN}' x 2>/dev/null; true"
    ).check()
    point = work.checkpoint()
    point.note(f"the password is {PASSWORD}")
    verdict = point.verify(f"echo $DB_PASSWORD $API_TOKEN; test {PASSWORD} = $DB_PASSWORD")
    assert verdict
    assert verdict.state == "passed"
    card = point.card()
    assert card.redacted >= 3
    seen = [
        json.dumps(card.data),
        str(card),
        str(work.preview("clean")),
        json.dumps(work.preview("clean").data),
        str(work.status()),
        json.dumps(work.status().data),
        json.dumps(work.diff("clean", patch=True).data),
        *(
            cli(*words).out
            for words in (
                ("log", "-s", "work"),
                ("--json", "log", "-s", "work", "--all"),
                ("show", "-s", "work", "@"),
                ("--json", "show", "-s", "work", "@"),
                ("diff", "-s", "work", "clean"),
                ("diff", "-s", "work", "clean", "--patch"),
                ("--json", "diff", "-s", "work", "clean", "--patch"),
                ("--json", "ls"),
            )
        ),
    ]
    for text in seen:
        assert text
        assert TOKEN not in text
        assert PASSWORD not in text
    assert "plain.txt" in seen[0]
    patched = work.diff("clean", patch=True)
    assert patched.patch
    assert "+plain" in patched.patch
    assert re.search(r"^\+API_KEY=.*\[redacted\]", patched.patch, re.MULTILINE)
    assert patched.data["patch_redacted"] >= 1
    assert patched.redacted >= 2
    assert "redacted" in cli("diff", "-s", "work", "clean").out.splitlines()[-1]
    # The session itself is as it was: hiding is for those who look.
    assert work.run("echo $API_TOKEN").output == f"{TOKEN}\n"


def test_a_card_that_cannot_be_computed_leaves_the_point_standing(work: waypoint.Session, home: Home) -> None:
    parent = work.checkpoint("parent")
    work.run("echo child > /srv/child").check()
    folder = home.checkpoints / parent.id
    away = home.checkpoints / f"{parent.id}.away"
    folder.rename(away)
    try:
        point = work.checkpoint("child")
        card = point.card()
        assert card.ready
        assert card.gaps
        assert "missing" in str(card)
        assert (card.intent, point.info.session) == ("child", "work")
        assert point.verify("test -f /srv/child").state == "passed"  # type: ignore[union-attr]
        assert cli("log", "-s", "work").code == 0
        work.run("rm /srv/child").check()
        work.restore(point)
        assert work.run("cat /srv/child").output == "child\n"
    finally:
        away.rename(folder)
    assert point.card().gaps == card.gaps
    again = point.card(again=True)
    assert again.gaps == []
    assert again.summary == "+ /srv/child"
    assert point.card().summary == "+ /srv/child"


def test_history_outlives_the_daemon(work: waypoint.Session, home: Home) -> None:
    point = work.checkpoint("kept", verify="true", wait=True)
    point.tag("release")
    point.note("said once")
    plan = work.preview(point)
    waypoint.Client().call("daemon_stop", {})
    card = point.card()
    assert (card.notes[0]["text"], card.verdicts[0]["state"]) == ("said once", "passed")
    assert work.point("release").id == point.id
    assert work.restore(plan=plan).checkpoint.id == point.id
    assert Path(home.database).exists()
