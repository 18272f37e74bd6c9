"""The faces of the history on made-up histories: what is drawn, how it is cut, which words are said."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from waypoint.api.difference import (
    Change,
    Changes,
    Difference,
    LiveDifference,
    PortFact,
    ProcessFact,
    RestorePlan,
    VariableChange,
    Way,
)
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    BranchMove,
    Commit,
    CronChange,
    DatabaseChange,
    PackageChange,
    PackageMove,
    RefMove,
    RepositoryChange,
    SystemChange,
    TableChange,
)
from waypoint.cli import main, render
from waypoint.cli.graph import Dot, place
from waypoint.cli.spec import join_command
from waypoint.cli.timeline import Timeline
from waypoint.cli.verbs.history import split_refs_and_paths
from waypoint.errors import NotFound, UsageError
from waypoint.history import lineage, refs
from waypoint.history.difference import select_paths
from waypoint.history.facts import Facts
from waypoint.history.shell import ShellFact
from waypoint.model import Checkpoint, Event
from waypoint.text import views
from waypoint.text.cards import summarize, write_card
from waypoint.text.commands import describe_outcomes, outcomes, summarize_outcomes
from waypoint.text.comparison import Column, side_by_side
from waypoint.text.difference import describe_difference
from waypoint.text.plan import describe_plan

PLAIN = render.Paint(on=False)
NOW = datetime(2026, 11, 16, 10, 27, tzinfo=UTC).astimezone()


# The graph --------------------------------------------------------------------------------------------


def drawn(*dots: tuple[str, str | None]) -> list[str]:
    """The picture with the ids as signs; newest first."""
    lines = []
    found = [Dot(*dot) for dot in dots]
    for dot, placed in zip(found, place(found), strict=True):
        lines += [f"{placed.left}{dot.id}{placed.right}", *placed.joins]
    return [line.rstrip() for line in lines]


def test_a_line_of_points_is_a_line() -> None:
    assert drawn(("3", "2"), ("2", "1"), ("1", None)) == ["3", "2", "1"]


def test_a_branch_joins_the_line_it_grew_from() -> None:
    assert drawn(("5", "4"), ("4", "2"), ("b", "2"), ("2", "1"), ("1", None)) == [
        "5",
        "4",
        "│ b",
        "├─╯",
        "2",
        "1",
    ]


def test_the_present_keeps_the_first_column_after_a_restore() -> None:
    # Points 4 and 3 came after 2, to which the session went back.
    assert drawn(("@", "2"), ("4", "3"), ("3", "2"), ("2", "1"), ("1", None)) == [
        "@",
        "│ 4",
        "│ 3",
        "├─╯",
        "2",
        "1",
    ]


def test_branches_of_branches_and_columns_that_are_free_again() -> None:
    assert drawn(
        ("9", "5"), ("8", "3"), ("7", "5"), ("5", "3"), ("4", "3"), ("3", None), ("2", "1"), ("1", None)
    ) == [
        "9",
        "│ 8",
        "│ │ 7",
        "├─┼─╯",
        "5 │",
        "├─╯",
        "│ 4",
        "├─╯",
        "3",
        "2",
        "1",
    ]


def test_what_descends_from_a_point_that_is_not_shown_hangs_in_the_air() -> None:
    assert drawn(("9", "gone"), ("8", "older")) == ["9", "8"]


def test_many_forks_of_one_point_take_no_more_than_two_columns_when_each_has_one() -> None:
    lines = drawn(("@", "1"), *((letter, "1") for letter in "abcdefgh"), ("1", None))
    assert max(map(len, lines)) == 3
    assert lines.count("├─╯") == 8


# The log ----------------------------------------------------------------------------------------------


def point(number: int, **more: Any) -> dict[str, Any]:
    """As it travels; oldest first means lowest number."""
    found = {
        "id": f"id{number}",
        "name": None,
        "intent": f"step {number}",
        "intent_from": "given",
        "session": "work",
        "label": f"c{number}",
        "parent": f"id{number - 1}" if number > 1 else None,
        "created_at": (NOW - timedelta(minutes=60 - number)).astimezone(UTC).isoformat(),
        "kind": "manual",
        "actor": "person",
        "pause_ms": 12.0,
        "total_ms": 30.0,
        "size_bytes": 12 << 20,
        "processes": 1,
        "files_only": False,
        "coverage": [],
        "pinned": False,
        "tags": [],
        "verdict": None,
        "verdicts": [],
        "summary": None,
        "position": None,
        "agent_state_kind": None,
        "agent_version": None,
        "durable": True,
        "restorable": "unproven",
        "restore_error": None,
        "digested": True,
        "damage": None,
        "platform": None,
        "pending": False,
        "problem": None,
        **more,
    }
    assert set(found) == {field.name for field in msgspec.structs.fields(Checkpoint)}
    return found


def verdict(state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "command": "npm test",
        "state": state,
        "at": "2026-11-16T10:20:00Z",
        "exit_code": 0 if state == "passed" else 1,
        "duration_ms": 2100.0,
        "output": "",
        **more,
    }


def status(head: dict[str, Any] | None, summary: str = "nothing changed", **more: Any) -> views.Status:
    session = {
        "name": "work",
        "state": "live",
        "foreground": None,
        "head": head["id"] if head else None,
        "auto": False,
        **more,
    }
    called = None
    if head:
        called = head["label"] if head["session"] == "work" else f"{head['session']}:{head['label']}"
    return views.Status(
        {
            "session": session,
            "head": head,
            "head_called": called,
            "summary": summary,
            "sections": [],
            "difference": None,
            "missing": None,
        }
    )


def told(
    points: list[dict[str, Any]],
    present: views.Status | None,
    *,
    width: int = 100,
    good: dict[str, str] | None = None,
    heads: dict[str, str | None] | None = None,
    paint: render.Paint = PLAIN,
    **more: Any,
) -> list[str]:
    head = present.data["session"]["head"] if present else None
    found = {
        "checkpoints": points,
        "sessions": [
            {"name": name, "state": "live", "head": at} for name, at in (heads or {"work": head}).items()
        ],
        "good": good or {},
    }
    return Timeline(found, present, paint, width, now=NOW, **more).text().splitlines()


def test_the_log_of_the_experience_page() -> None:
    points = [
        point(1, intent="clean clone", verdict=verdict("passed")),
        point(2, intent="before auth refactor"),
        point(3, id="p1", session="try-pnpm", label="c1", parent="id2", intent="pnpm instead"),
        point(
            4,
            parent="id2",
            intent="after package install",
            verdict=verdict("failed"),
            summary="+1,842 files (node_modules) · npm +212",
        ),
        point(
            5,
            intent="working version, app healthy",
            verdict=verdict("passed"),
            summary="+7 ~3 files · pip +stripe 12.1.0 · node :8080 started · cwd /app/api",
        ),
    ]
    lines = told(points, status(points[-1], "~3 files"), good={"work": "id5"})
    assert [re.sub(r" {3,}", "   ", line) for line in lines] == [
        "@  now   ~3 files since c5",
        (
            f"●  c5  {NOW - timedelta(minutes=55):%H:%M}  working version, app healthy"
            "   ✔ npm test (in a fork, 2.1 s)  ← good"
        ),
        "│   +7 ~3 files · pip +stripe 12.1.0 · node :8080 started · cwd /app/api",
        f"✗  c4  {NOW - timedelta(minutes=56):%H:%M}  after package install   ✖ npm test exit 1",
        "│   +1,842 files (node_modules) · npm +212",
        f"│ ○  try-pnpm/c1  {NOW - timedelta(minutes=57):%H:%M}  pnpm instead   – not verified",
        "├─╯",
        f"○  c2  {NOW - timedelta(minutes=58):%H:%M}  before auth refactor   – not verified",
        f"○  c1  {NOW - timedelta(minutes=59):%H:%M}  clean clone   ✔ npm test (in a fork, 2.1 s)",
    ]
    # One column for the verdicts, whatever is drawn before the points; and the summary below the words.
    columns = {line.index(sign) for line in lines for sign in "✔✖–" if sign in line}
    assert len(columns) == 1
    assert lines[2].index("+7") == lines[1].index("working")


def test_a_point_that_cannot_be_restored_is_loud() -> None:
    """In the log (also where automatic points are folded), in its card, and where a session stands on it."""
    failed = {"restorable": "failed", "restore_error": "Can't open a \x1b[31mfile"}
    points = [point(number, kind="auto") for number in range(1, 6)]
    points[2] |= failed
    lines = told(points, status(points[-1]))
    (at,) = [number for number, line in enumerate(lines) if "cannot be restored: Can't open a" in line]
    assert lines[at - 1].startswith("✗  c3")
    assert "\x1b" not in lines[at]
    for view in (card_of(points[2]), status(points[2])):
        [(manner, line)] = [(manner, line) for manner, line in view.lines() if "NO: Can't open a" in line]
        assert manner == "bad"
        assert "\x1b" not in line
    assert not any("NO:" in line for _, line in status(points[3]).lines())
    for known, words in (("proven", "brought back once"), ("unproven", "not tried yet")):
        assert any(words in line for _, line in card_of(point(1, restorable=known)).lines())


def test_a_card_says_when_a_power_cut_may_take_its_point() -> None:
    def says_so(*, durable: bool) -> bool:
        return any(
            "a power cut may take it" in line for _, line in card_of(point(1, durable=durable)).lines()
        )

    assert says_so(durable=False)
    assert not says_so(durable=True)


def test_whose_words_an_intent_is_can_be_seen() -> None:
    points = [
        point(1, intent="mine"),
        point(2, intent="make test", intent_from="command"),
        point(3, intent="fix it", intent_from="git"),
        point(4, intent="", intent_from="none"),
        point(5, intent="", name="up", tags=["v1"], pinned=True),
    ]
    lines = told(points, status(points[0]))
    text = "\n".join(lines)
    assert "  mine\n" in f"{text}\n"
    assert "  $ make test\n" in text
    assert '  commit "fix it"\n' in text
    assert "  no intent\n" in text
    assert re.search(r"  up +#v1  pinned\n", text)


@pytest.mark.parametrize("width", [80, 120])
def test_where_nothing_is_verified_the_room_goes_to_the_intents(width: int) -> None:
    intent = "word " * 40
    lines = told([point(1, intent=intent), point(2, intent=intent)], status(None), width=width)
    assert "not verified" not in "".join(lines)
    assert [render.width(line) for line in lines[1:]] >= [width - 4] * 2
    verified = told(
        [point(1, intent=intent, verdict=verdict("passed")), point(2, intent=intent)],
        status(None),
        width=width,
        good={"work": "id1"},
    )
    assert [line.endswith(("not verified", "← good")) for line in verified] == [False, True, True]


def test_points_that_waypoint_took_are_folded_into_one_row() -> None:
    points = [
        point(1),
        *(point(number, kind="auto", intent_from="command") for number in (2, 3, 4, 5, 6)),
        point(7),
        point(8, kind="safety", intent="before restore to c3"),
    ]
    lines = told(points, status(points[6]))
    assert lines == told(points, status(points[6]), limit=4)
    assert [line.split("  ")[-1] for line in lines if "…" in line] == [
        "before restore to c3",
        "$ step 2, $ step 3, $ step 4, $ step 5, $ step 6",
    ]
    assert [line.split("  ")[-2] for line in lines if "…" in line] == [
        "… 1 automatic (c8)",
        "… 5 automatic (c2 to c6)",
    ]
    assert len([line for line in lines if "  step" in line]) == 2
    unfolded = told(points, None, unfold=True, heads={"work": "id7"})
    assert len(unfolded) == 8
    assert "automatic" not in "".join(unfolded)


@pytest.mark.parametrize(
    "more", [{"name": "kept"}, {"tags": ["t"]}, {"pinned": True}, {"verdict": verdict("passed")}]
)
def test_an_automatic_point_that_somebody_spoke_of_is_not_folded(more: dict[str, Any]) -> None:
    points = [point(1), point(2, kind="auto", **more), point(3)]
    assert "automatic (" not in "".join(told(points, status(points[2])))


def test_an_automatic_point_on_which_the_session_stands_is_not_folded() -> None:
    points = [point(1), point(2, kind="safety", intent="before restore to c1")]
    assert any(line.startswith("●  c2") for line in told(points, status(points[1])))


def test_a_fold_keeps_the_lines_of_descent() -> None:
    points = [
        point(1),
        point(2, kind="auto"),
        point(3, kind="auto"),
        point(4, parent="id2", session="try", label="c1", id="t1"),
        point(5, parent="id3"),
    ]
    lines = told(points, status(points[4]))
    assert [line[:4].rstrip() for line in lines] == ["@  n", "●  c", "│ ○", "├─╯", "○  …", "○  c"]


def test_the_last_ones_only() -> None:
    points = [point(number) for number in range(1, 31)]
    lines = told(points, status(points[-1]), limit=3)
    assert [line.split()[1] for line in lines] == ["now", "c30", "c29", "c28", "27"]
    assert lines[-1] == "… 27 older"


def test_a_log_of_all_names_every_session_and_who_stands_where() -> None:
    points = [point(1), point(2, parent="id1", session="try", label="c1", id="t1")]
    heads: dict[str, str | None] = {"work": "id1", "try": "t1", "other": "id1"}
    lines = told(points, None, heads=heads, good={"work": "id1", "try": "id1"})
    assert lines[0].startswith("●  try/c1")
    assert lines[-1].startswith("●  work/c1")
    assert lines[-1].endswith("← other, good, good of try")


@pytest.mark.parametrize(
    ("more", "summary", "line"),
    [
        ({}, "~3 files", "~3 files since c1"),
        ({"state": "parked"}, "nothing changed", "parked at c1"),
        ({"state": "dead"}, "~1 file", "~1 file since c1 · it does not run"),
        ({"foreground": "make -j"}, "~1 file", "~1 file since c1 · runs make -j"),
    ],
)
def test_the_present(more: dict[str, Any], summary: str, line: str) -> None:
    assert told([point(1)], status(point(1), summary, **more))[0].split(maxsplit=2)[2] == line


def test_a_session_without_points_is_compared_with_the_base() -> None:
    assert told([], status(None, "+2 files")) == ["@  now        +2 files since the base"]


def test_a_session_that_stands_on_another_sessions_point() -> None:
    elsewhere = point(1, session="origin")
    assert told([elsewhere], status(elsewhere, "~1 file"))[0].endswith("~1 file since origin:c1")


@pytest.mark.parametrize("width", [40, 56, 60, 72, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    points = [
        point(
            number,
            intent=f"日本語のとても長い説明 {'and more of it ' * 8}",
            verdict=verdict("passed", command="pytest -q " + "x" * 50),
            summary="+1 file · " * 20,
            name="a-name" if number == 3 else None,
        )
        for number in range(1, 6)
    ]
    points += [point(6, parent="id2", session="try", label="c1", id="t1", intent="é" * 300)]
    lines = told(points, status(points[4], "~3 files · " * 30), width=width, good={"work": "id5"})
    for line in lines:
        assert render.width(line) <= width, line
    assert lines[0].endswith("since c5")


def test_cutting_is_done_in_columns_and_never_through_a_letter() -> None:
    assert render.cut("short", 10) == "short"
    assert render.cut("exactly ten", 10) == "exactly t…"
    assert render.cut("日本語", 6) == "日本語"
    assert render.cut("日本語", 5) == "日本…"
    assert render.cut("日本語", 4) == "日…"
    assert render.width(render.cut("e\u0301" * 20, 7)) <= 7
    assert render.cut("anything", 0) == ""
    assert render.width("● c1 ✔ … │├─╯") == 13


def test_there_is_no_colour_unless_asked_for() -> None:
    points = [point(1, verdict=verdict("failed"), name="n"), point(2, verdict=verdict("passed"))]
    assert "\x1b" not in "".join(told(points, status(points[1])))
    lines = told(points, status(points[1]), paint=render.Paint(on=True))
    assert any("\x1b[31m✗" in line for line in lines)
    plain = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in lines]
    assert plain == told(points, status(points[1]))


def test_somebody_elses_words_cannot_command_the_terminal() -> None:
    points = [point(1, intent="\x1b]2;evil\x07\nnext", summary="\x1b[2J\n+1 file")]
    lines = told(points, status(points[0], "\x1b[31m\nred"))
    assert "\x1b" not in "".join(lines)
    assert len(lines) == 3


def test_a_thousand_points_take_no_time() -> None:
    points = [
        point(
            number,
            kind="auto" if number % 5 == 0 else "manual",
            parent=f"id{number - (7 if number % 50 == 0 else 1)}" if number > 8 else None,
            verdict=verdict("passed") if number % 3 else None,
            summary="+7 ~3 files · pip +stripe 12.1.0 · node :8080 started · cwd /app/api",
            created_at=(NOW - timedelta(minutes=2000 - number)).astimezone(UTC).isoformat(),
        )
        for number in range(1, 1001)
    ]
    started = time.process_time()
    lines = told(points, status(points[-1]))
    assert time.process_time() - started < 0.2
    assert len(lines) > 1500


# Families, refs, words ----------------------------------------------------------------------------------


def record(number: int, **more: Any) -> Checkpoint:
    return msgspec.convert(point(number, **more), Checkpoint)


def test_the_family_of_a_session() -> None:
    history = [
        record(1, session="origin"),
        record(2, session="origin"),
        record(3, id="w1", parent="id2"),
        record(4, id="w2", parent="w1"),
        record(5, id="o3", session="origin", parent="id2"),
        record(6, id="f1", session="fork", parent="w1"),
        record(7, id="f2", session="fork", parent="f1"),
        record(8, id="x", session="stranger", parent=None),
    ]

    def ids(how: str | None) -> list[str]:
        return [one.id for one in lineage.family(history, "work", "w2", how)]

    assert ids(None) == ["w1", "w2"]
    assert ids("tips") == ["id1", "id2", "w1", "w2", "f2"]
    assert ids("whole") == ["id1", "id2", "w1", "w2", "o3", "f1", "f2"]
    assert [one.id for one in lineage.family(history, "new", "w1", "tips")] == ["id1", "id2", "w1"]


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("c5", (None, "c5")),
        ("work:c5", ("work", "c5")),
        ("work/c5", ("work", "c5")),
        ("10:27", (None, "10:27")),
        ("9:05:30", (None, "9:05:30")),
        ("work:10:27", ("work", "10:27")),
        ("@~2", (None, "@~2")),
    ],
)
def test_a_ref_may_say_which_session(ref: str, found: tuple[str | None, str]) -> None:
    assert refs.split(ref) == found


def test_a_fork_is_told_whose_the_names_before_it_are() -> None:
    history = [record(1, id="w1", name="up"), record(2, id="f1", session="fork", parent="w1")]

    def hint(ref: str, points: list[Checkpoint], head: str) -> str:
        with pytest.raises(NotFound) as caught:
            refs.resolve(ref, points, history, head, NOW)
        return caught.value.hint

    assert refs.resolve("up", history[1:], history, "f1", NOW).id == "w1", "it is the only one of that name"
    assert hint("c1", [], "w1") == "work:c1 is one, of the session this was forked from"
    assert hint("c1", history[1:], "f1").startswith("work:c1 is one")
    assert hint("down", [], "w1") == "this session has none of its own yet; it began at work:up"
    assert hint("down", history[:1], "w1") == "there are: c1 (up)"


def test_times_that_people_write() -> None:
    def ago(text: str) -> timedelta:
        return NOW - refs.parse_moment(text, NOW)

    assert ago("2h") == timedelta(hours=2)
    assert ago("90m") == timedelta(minutes=90)
    assert refs.parse_moment(f"{NOW - timedelta(hours=1):%H:%M}", NOW) == NOW - timedelta(hours=1)
    assert refs.parse_moment(f"{NOW + timedelta(hours=1):%H:%M}", NOW) == NOW - timedelta(hours=23)
    assert refs.parse_moment("2026-11-16", NOW).isoformat().startswith("2026-11-16T00:00")
    assert refs.parse_moment("2026-11-16 10:00", NOW).hour == 10
    assert refs.parse_moment("2026-11-16T10:00:00Z", NOW) == datetime(2026, 11, 16, 10, tzinfo=UTC)
    assert ago("5200w") == timedelta(weeks=5200)
    beyond = ("5201w", "99999999w", "9" * 400 + "d", "0001-01-01")
    for wrong in ("soon", "25:00", "2026-13-01", "", *beyond):
        with pytest.raises(UsageError):
            refs.parse_moment(wrong, NOW)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ([], [])),
        (["c1"], (["c1"], [])),
        (["c1", "c2"], (["c1", "c2"], [])),
        (["c1", "c2", "src"], (["c1", "c2"], ["src"])),
        (["c1", "/srv"], (["c1"], ["/srv"])),
        (["c1", "./src", "lib"], (["c1"], ["./src", "lib"])),
        (["/srv"], ([], ["/srv"])),
        (["c1", "--", "src", "c2"], (["c1"], ["src", "c2"])),
        (["--", "c1"], ([], ["c1"])),
        (["try/c1", "c2"], (["try/c1", "c2"], [])),
    ],
)
def test_refs_and_paths_are_told_apart(words: list[str], found: tuple[list[str], list[str]]) -> None:
    assert split_refs_and_paths(words) == found


def test_a_command_is_joined_as_ssh_does() -> None:
    assert join_command(["pytest", "-q"]) == "pytest -q"
    assert join_command(["--", "ls", "-l"]) == "ls -l"
    with pytest.raises(UsageError):
        join_command(["--"])


# Differences in words -----------------------------------------------------------------------------------


def change(path: str, kind: str = "created", **more: Any) -> Change:
    return msgspec.convert({"path": path, "kind": kind, "entry": "file", **more}, Change)


SERVER = ProcessFact(pid=7, parent=3, command="/usr/bin/node --x app.js", uid=0, rss_bytes=1 << 20)
WORKERS = tuple(
    ProcessFact(pid=pid, parent=1, command="postgres: worker", uid=0, rss_bytes=1) for pid in (20, 21, 22)
)
PORT = PortFact(protocol="tcp", address="0.0.0.0", port=8080, pid=7, command=SERVER.command)

FOUND = Difference(
    files=Changes(
        changes=(
            change("/app", entry="folder"),
            change("/app/.git/index", size_after=300),
            change("/app/.git/objects/ab/cd", size_after=300),
            change("/app/api.py", "modified", what=("content",), size_before=100, size_after=2200),
            change("/app/new.py", size_after=5),
            change("/app/node_modules/x/index.js", size_after=2048),
            change("/app/old.py", "deleted"),
            change("/app/run.sh", "modified", what=("mode",), mode_before=0o100644, mode_after=0o100755),
            change("/app/there", "renamed", old_path="/app/here"),
            change("/empty", entry="folder"),
            change("/srv/gone", "deleted", entry="folder", files=1200),
        )
    ),
    analysis=Analysis(
        findings=(
            PackageChange(
                ecosystem="pip", environment="/app/.venv", name="flask", change="added", after="3.0"
            ),
            *(
                PackageChange(
                    ecosystem="pip",
                    environment="/app/.venv",
                    name=f"dep{number}",
                    change="added",
                    after="1",
                    direct=False,
                )
                for number in range(7)
            ),
            RepositoryChange(
                path="/app",
                change="changed",
                branch_before="main",
                branch_after="main",
                commits=(Commit(id="abcdef1234", subject="fix it", at=1),),
                commit_count=3,
                committed=2,
                modified=1,
                untracked=4,
                branches=(BranchMove(branch="main", before="1234567890", after="abcdef1234"),),
            ),
            DatabaseChange(
                path="/app/app.db",
                change="changed",
                tables=(TableChange(name="orders", change="changed", rows_before=1, rows_after=13),),
            ),
        )
    ),
    live=LiveDifference(
        started=(SERVER,),
        ended=WORKERS,
        kept=2,
        opened=(PORT,),
        cwd=("/root", "/app"),
        variables=(
            VariableChange(name="TOKEN", before=None, after="[redacted]"),
            VariableChange(name="OLD", before="x", after=None),
        ),
        functions_added=("greet",),
        memory_bytes=(10 << 20, 30 << 20),
    ),
    redacted=1,
)


def test_a_difference_in_words() -> None:
    data = {
        "difference": msgspec.to_builtins(FOUND),
        "summary": summarize(FOUND),
        "sections": msgspec.to_builtins(describe_difference(FOUND)),
        "different": True,
    }
    found = views.Diff(data)
    assert found
    assert (
        re.sub(r" {2,}", "  ", str(found)).splitlines()
        == """\
files  +1 ~2 -1,201 →1 files, +1 in /app/node_modules  [derived]
  + /app/.git/  +2 files · 600 B
  ~ /app/api.py  100 B → 2.1 KB
  + /app/new.py  5 B
  + /app/node_modules/  +1 file · 2.0 KB
  - /app/old.py
  ~ /app/run.sh  mode 644 → 755
  → /app/here → /app/there
  + /empty/
  - /srv/gone/  1,200 files
packages  pip +flask 3.0 (and 7 with it)  [derived]
  + pip flask  3.0 · in /app/.venv
  + pip 7 more  as dependencies
git  git 3 commits on main "fix it", 4 untracked  [derived]
  ~ /app  on main · 2 files committed · 1 file changed and not committed · 4 files untracked
  + abcdef1 "fix it"  commit
  + 2 more commits
  ~ branch main  1234567 → abcdef1
databases  sqlite app.db: orders +12 rows  [derived]
  ~ /app/app.db  orders +12 rows
processes  app.js :8080 started · postgres ×3 ended · 2 still there · memory 10 MB → 30 MB  [observed]
  + app.js :8080  pid 7 · /usr/bin/node --x app.js
  - postgres  pid 20 · postgres: worker
  - postgres  pid 21 · postgres: worker
  - postgres  pid 22 · postgres: worker
ports  :8080 opened  [observed]
  + tcp 0.0.0.0:8080  app.js
shell  cwd /root → /app · 2 variables · 1 function  [observed]
  ~ cwd /root → /app
  + TOKEN  [redacted]
  - OLD
  + greet()
redacted  1 value
""".splitlines()
    )
    assert str(found).splitlines()[0].startswith("files      +1 ~2")


def test_a_folder_of_the_base_has_a_line_beside_what_was_written_in_it() -> None:
    """Of a folder with 12 files of the base, one was written to; then all of it went."""
    gone = change("/lib/html", "deleted", entry="folder", files=11)
    own = change("/lib/html/__init__.py", "deleted")
    found = msgspec.structs.replace(NOTHING, files=Changes(changes=(gone, own)))
    [section] = describe_difference(found)
    assert section.summary == "-12 files"
    assert [(line.text, line.detail) for line in section.lines] == [
        ("/lib/html/", "11 files"),
        ("/lib/html/__init__.py", ""),
    ]
    gone = msgspec.structs.replace(gone, files=0)
    [section] = describe_difference(msgspec.structs.replace(NOTHING, files=Changes(changes=(gone, own))))
    assert [line.text for line in section.lines] == ["/lib/html/__init__.py"]


def test_only_some_sections() -> None:
    assert [one.name for one in describe_difference(FOUND, ("packages", "shell"))] == ["packages", "shell"]
    assert describe_difference(Difference(files=Changes(), analysis=Analysis(), live=LiveDifference())) == ()


@pytest.mark.parametrize(
    ("paths", "files", "findings"),
    [
        (["/app/api.py"], ["/app/api.py"], []),
        (["api.py"], ["/app/api.py"], []),
        (["./node_modules"], ["/app/node_modules/x/index.js"], []),
        (["/srv"], ["/srv/gone"], []),
        (["*.py"], ["/app/api.py", "/app/new.py", "/app/old.py"], []),
        (["here"], ["/app/there"], []),
        (["/app/app.db"], [], ["database"]),
        (["/nothing"], [], []),
    ],
)
def test_a_part_of_a_difference(paths: list[str], files: list[str], findings: list[str]) -> None:
    found = select_paths(FOUND, paths, "/app")
    assert [one.path for one in found.files] == files
    kinds = [one["kind"] for one in msgspec.to_builtins(found.analysis)["findings"]]
    assert kinds == findings
    assert found.live.empty
    assert found.redacted == 0


# Cards and plans ------------------------------------------------------------------------------------------


def card_of(the_point: dict[str, Any], **more: Any) -> views.Card:
    card = write_card(the_point["intent"], the_point["intent_from"], FOUND, ("bind mount /data is outside",))
    return views.Card(
        {
            "checkpoint": the_point,
            "parent": "c4",
            "card": msgspec.to_builtins(card),
            "sections": msgspec.to_builtins(describe_difference(FOUND)),
            "verdicts": [verdict("failed"), verdict("passed")],
            "notes": [{"at": "2026-11-16T10:25:00Z", "text": "it lost the table"}],
            **more,
        }
    )


@pytest.mark.parametrize(
    ("intent", "source", "line"),
    [
        ("works", "given", "intent     works  [claimed]"),
        ("make", "command", "intent     $ make  [observed, the last command]"),
        ("fix", "git", 'intent     commit "fix"  [claimed, the last commit\'s subject]'),
        ("", "none", "intent     none was given"),
    ],
)
def test_a_card_says_whose_words_the_intent_is(intent: str, source: str, line: str) -> None:
    assert line in str(card_of(point(5, intent=intent, intent_from=source))).splitlines()


def test_a_card_in_words() -> None:
    lines = [re.sub(r" {2,}", "  ", line) for line in str(card_of(point(5, name="up"))).splitlines()]
    assert lines[0] == "c5 up"
    for line in (
        "who  a person",
        "after  c4",
        "holds  1 process · 12 MB of memory · paused 12 ms",
        "not held  bind mount /data is outside",
        "redacted  1 value",
    ):
        assert line in lines
    assert [line for line in lines if line.startswith("verified")] == [
        f"verified  ✖ npm test exit 1, {render.clock('2026-11-16T10:20:00Z')}",
        f"verified  ✔ npm test (in a fork, 2.1 s), {render.clock('2026-11-16T10:20:00Z')}",
    ]
    [note] = [line for line in lines if line.startswith("note")]
    assert note.startswith('note  "it lost the table"  [claimed, added later: ')
    assert "files  +1 ~2 -1,201 →1 files, +1 in /app/node_modules  [derived]" in lines


def ended(command: str, code: int) -> Event:
    body = {"command": command, "exit_code": code}
    return Event(id=1, session="work", parent=None, at="", kind="command", actor="agent", body=body)


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        ([("ls", 0)], ""),
        ([("pytest -q", 0)], "pytest -q exit 0"),
        ([("pytest -q", 1), ("pytest -q", 1)], "pytest -q exit 1 ×2"),
        ([("pytest -q", 1), ("vi x", 0), ("pytest -q", 0)], "pytest -q exit 0 after 1 failure"),
        ([("cd /app && npm test", 0)], "npm test exit 0"),
        ([("python3 -m pytest -q", 0)], "pytest -q exit 0"),
        # The exit code is that of the last command of a line.
        ([("pytest -q; true", 0), ("pytest | tee log", 0)], ""),
        ([("pytest -q | tee log", 2)], "pytest -q | tee log exit 2"),
        # A test run is a command and not a word in one.
        ([("printf '[tool.pytest.ini_options]' > pyproject.toml", 0), ("grep -r 'a && pytest' .", 0)], ""),
        ([("git commit -qm 'npm test passes'", 0), ("pip install pytest", 0), ("vim make/test.py", 0)], ""),
        ([(".venv/bin/pytest -q", 0)], ".venv/bin/pytest -q exit 0"),
        ([("CI=1 timeout 60 python3.11 -m pytest -x", 0)], "CI=1 timeout 60 python3.11 -m pytest -x exit 0"),
        ([("uv run --frozen pytest", 0), ("npx jest", 0)], "uv run --frozen pytest exit 0 · npx jest exit 0"),
        ([("make && make test", 2)], "make && make test exit 2"),
        # `no` is an answer, and an interrupt is no failure.
        ([("grep -q x y", 1), ("cd /a; LC_ALL=C diff a b", 1), ("sleep 9", 130)], ""),
        ([("grep -q x y", 2)], "grep -q x y exit 2"),
        ([("a", 1), ("b", 1), ("c", 1)], "b exit 1 · c exit 1"),
        ([("the intent", 3)], "exit 3"),
    ],
)
def test_what_commands_came_to_is_in_the_line_of_a_log(runs: list[tuple[str, int]], line: str) -> None:
    found = outcomes([ended(*run) for run in runs])
    assert " · ".join(summarize_outcomes(found, "the intent")) == line


def test_a_card_has_the_commands_that_failed_and_the_tests() -> None:
    events = [ended("ls", 0), ended("make", 2), ended("pytest", 1), ended("pytest", 0)]
    [section] = describe_outcomes(outcomes(events))
    assert (section.source, section.summary) == (
        "observed",
        "4 commands ended, 2 with a non-zero exit code",
    )
    assert [(line.sign, line.text, line.detail) for line in section.lines] == [
        ("-", "$ make", "exit 2"),
        ("+", "$ pytest ×2", "exit 0 · 1 of them failed"),
    ]
    assert describe_outcomes(outcomes([ended("ls", 0)])) == ()
    card = write_card("x", "given", FOUND, (), commands=outcomes(events))
    assert card.summary.startswith("make exit 2 · pytest exit 0 after 1 failure · pip +flask")
    assert {line.source for line in card.lines if line.topic == "commands"} == {"observed"}


def test_a_command_of_many_lines_is_its_first_one() -> None:
    command = point(1, intent="cat > x.py <<E\nimport os\nE", intent_from="command")
    assert views.title(command) == "$ cat > x.py <<E …"
    assert views.title(point(1, intent="two\nlines")) == "two lines"


def test_a_card_that_is_not_there_yet_or_has_gaps() -> None:
    missing = card_of(point(5), card=None, sections=[])
    assert not missing.ready
    assert missing.difference is None
    assert "not there yet" in str(missing)
    found = msgspec.to_builtins(
        write_card("x", "given", msgspec.structs.replace(FOUND, gaps=("files: it is gone",)), ())
    )
    assert "missing    files: it is gone" in str(card_of(point(5), card=found))


def plan_text(
    *,
    way: Way = "back",
    state: Any = "live",
    safety: bool = True,
    lost: Difference = FOUND,
    not_covered: tuple[str, ...] = ("bind mount /data",),
    **target_has: Any,
) -> str:
    plan = RestorePlan(
        id="1f4b9c20",
        session="work",
        target=record(2, intent="before auth refactor", **target_has),
        head=record(9),
        lost=lost,
        uncheckpointed=lost,
        not_covered=not_covered,
    )
    target = Facts() if lost is NOTHING else Facts(processes=WORKERS, shell=ShellFact(cwd="/app"))
    words = describe_plan(plan, target, state=state, way=way, next_label="c6")
    data = {"plan": msgspec.to_builtins(plan), "words": msgspec.to_builtins(words)}
    return "\n".join(text for _, text in views.Plan(data).lines(safety=safety, now=NOW))


NOTHING = Difference(files=Changes(), analysis=Analysis(), live=LiveDifference())


def test_a_plan_in_words() -> None:
    when = f"{NOW - timedelta(minutes=58):%H:%M}"
    assert plan_text().splitlines() == [
        f'From now (c9 + 1,208 files) back to c2 "before auth refactor" ({when}, 58 min ago, not verified)',
        "  files      2 made since, will go: new.py, /empty/",
        "             1 will lose its edits since: api.py",
        "             1 will have the mode, owner or attributes of then: run.sh",
        "             1,201 deleted since, will be back: old.py, /srv/gone/",
        "             1 renamed since, will have its old name: there → here",
        "             also changed: 1 in node_modules",
        "  packages   pip flask 3.0 and 7 more will be lost",
        '  git        3 commits on main will be lost: "fix it" and 2 more',
        "  databases  app.db: orders will be as it was then (13 → 1 row)",
        f"  processes  app.js :8080 ends · postgres ×3 resume with their memory of {when}",
        "  shell      cwd /app → /root · variables TOKEN, OLD · function greet()",
        "  not covered: bind mount /data",
        "A safety checkpoint (c6) is taken first; `s.undo()` comes back here.",
    ]


def test_a_plan_says_that_its_target_could_not_be_restored() -> None:
    said = "its processes could not be brought back: Can't open a file"
    assert said in plan_text(restorable="failed", restore_error="Can't open a file")
    assert "could not be brought back" not in plan_text(restorable="proven")


def test_a_plan_says_when_there_is_no_way_back() -> None:
    assert "No safety checkpoint is taken" in plan_text(safety=False)
    assert "no safety checkpoint can be taken" in plan_text(state="dead")
    assert "It is parked" in plan_text(state="parked")


def test_a_plan_that_leads_forward_does_not_speak_of_going_back() -> None:
    text = plan_text(way="on")
    assert " on to c2 " in text
    for wrong in ("since", "back", "old name"):
        assert wrong not in text.split("A safety checkpoint")[0]


def test_a_plan_to_another_line_neither_goes_back_nor_on() -> None:
    lines = plan_text(way="across").splitlines()
    assert " over to c2 " in lines[0]
    assert [line.strip().removeprefix("files").strip() for line in lines[1:6]] == [
        "2 not on that line, will go: new.py, /empty/",
        "1 differs on that line, will be replaced: api.py",
        "1 will have the mode, owner or attributes of then: run.sh",
        "1,201 only on that line, will come: old.py, /srv/gone/",
        "1 will have the name it has on that line: there → here",
    ]
    for wrong in ("since", "back", "old name"):
        assert wrong not in "\n".join(lines[:-1])


def test_a_plan_names_packages_commits_and_rows_that_come_and_go() -> None:
    def commits(*subjects: str) -> tuple[Commit, ...]:
        return tuple(Commit(id="abcdef1234", subject=subject, at=1) for subject in subjects)

    def package(name: str, change: PackageMove, before: str | None, after: str | None) -> PackageChange:
        return PackageChange(
            ecosystem="pip", environment="/v", name=name, change=change, before=before, after=after
        )

    analysis = Analysis(
        findings=(
            package("a", "removed", "1", None),
            package("b", "upgraded", "1", "2"),
            RepositoryChange(
                path="/app",
                change="changed",
                branch_before="main",
                branch_after="side",
                lost=commits("x", "y"),
                lost_count=2,
                branches=(
                    BranchMove(branch="new", before=None, after="1", gained=1),
                    BranchMove(branch="main", before="1", after="2", gained=2),
                    BranchMove(branch="old", before="1", after=None, lost=1),
                ),
            ),
            RepositoryChange(path="/lib", change="created", commit_count=2, commits=commits("p", "q")),
            DatabaseChange(
                path="/app.db",
                change="changed",
                tables=(
                    TableChange(name="t", change="changed", inserted=12, deleted=3, updated=1, altered=True),
                    TableChange(name="u", change="created", rows_after=2),
                    TableChange(name="v", change="removed", rows_before=1),
                ),
            ),
            DatabaseChange(path="/gone.db", change="removed"),
        )
    )
    lines = plan_text(lost=msgspec.structs.replace(NOTHING, analysis=analysis)).splitlines()[1:-3]
    assert [re.sub(r"^ *(packages|git|databases)? *", "", line) for line in lines] == [
        "pip a 1 will be back",
        "pip b 2 → 1",
        '2 commits on side of app will be back: "x", "y"',
        "app will be on main, not side",
        "branch new of app will be lost with 1 commit",
        "branch main of app will lose 2 commits",
        "branch old of app will be back with 1 commit",
        "repository lib will be lost with its 2 commits",
        (
            "app.db: t will have its definition of then, 12 rows of t will be lost, 3 rows of t will be back,"
            " 1 row of t will have other values, table u will be lost with 2 rows,"
            " table v will be back with 1 row"
        ),
        "gone.db will be back",
    ]


def test_caches_are_one_line_of_a_plan() -> None:
    files = tuple(change(f"/app/{number}/__pycache__/x.pyc") for number in range(45))
    text = plan_text(lost=msgspec.structs.replace(NOTHING, files=Changes(changes=files)))
    assert text.splitlines()[1] == "  files      caches: 45 files in 0/__pycache__ and 44 more"


def test_a_plan_names_its_gaps_and_what_else_happened_to_branches() -> None:
    analysis = Analysis(
        findings=(
            RepositoryChange(
                path="/app",
                change="changed",
                branch_before="0123456789",
                head_before="0123456789abcdef",
                branch_after="main",
                head_after="fedc",
                branches=(
                    BranchMove(branch="topic", before="1", after="2", gained=1, lost=2),
                    BranchMove(branch="side", before="1", after="2"),
                ),
                refs=(RefMove(kind="tag", name="v1", before="1", after="2"),),
                in_progress="rebase",
                in_progress_before="merge",
            ),
            RepositoryChange(path="/tree", change="created", worktree_of="/app"),
            DatabaseChange(path="/a.db", change="changed", damage="x", damage_before="y"),
            DatabaseChange(path="/b.db", change="changed", damage_before="y"),
            DatabaseChange(path="/c.db", change="changed", damage="x"),
        )
    )
    lost = msgspec.structs.replace(NOTHING, analysis=analysis, gaps=("files: they are gone",))
    lines = plan_text(lost=lost, not_covered=()).splitlines()[1:-1]
    assert [re.sub(r"^ *(git|databases)? *", "", line) for line in lines] == [
        "app will be detached at 0123456, not on main",
        "branch topic of app will lose 1 commit and gain 2 commits",
        "branch side of app will be as it was then",
        "tag v1 of app will be as it was then",
        "unfinished rebase of app will be lost",
        "unfinished merge of app will be back",
        "worktree tree will be lost",
        "a.db will be damaged, as it was then",
        "b.db will be damaged, as it was then",
        "c.db will be whole again",
        f"processes  postgres ×3 resume with their memory of {NOW - timedelta(minutes=58):%H:%M}",
        "missing: files: they are gone",
    ]


def test_a_plan_names_users_passwords_and_what_runs_by_itself() -> None:
    findings = (
        AccountChange(name="ann", change="created", uid=1001),
        CronChange(path="/etc/cron.d/job", change="changed"),
        SystemChange(subject="group", name="ops", change="removed"),
        SystemChange(subject="password", name="root", change="changed", details=("locked",)),
        SystemChange(subject="keys", name="/k", change="changed", details=("+a", "+b", "-c")),
        SystemChange(subject="unit", name="a.timer", change="changed", details=("enabled",)),
        SystemChange(subject="capability", name="/bin/x", change="created", details=("cap_x+ep",)),
    )
    text = plan_text(lost=msgspec.structs.replace(NOTHING, analysis=Analysis(findings=findings)))
    assert [re.sub(r"^ *(system)? *", "", line) for line in text.splitlines()[1:-3]] == [
        "user ann will be lost",
        "cron job will be as it was then",
        "group ops will be back",
        "password of root will be as it was then",
        "2 keys in /k will be lost",
        "1 key in /k will be back",
        "unit a.timer will be disabled",
        "capabilities of /bin/x will be as they were then",
    ]


def test_beside_a_command_caches_need_no_word() -> None:
    caches = Changes(changes=(change("/root/.npm/x"),))
    found = msgspec.structs.replace(NOTHING, files=caches)
    commands = outcomes([ended("npm test", 0)])
    assert write_card("x", "given", found, (), commands=commands).summary == "npm test exit 0"
    assert write_card("x", "given", found, ()).summary == "caches only: +1 file (/root/.npm)"


def test_folders_that_changed_themselves_are_in_a_plan() -> None:
    files = (
        change("/app/css", "modified", entry="folder", what=("mode",)),
        change("/app/css/new.css"),
        change("/app/lib", entry="folder"),
        change("/app/lib/x"),
    )
    text = plan_text(lost=msgspec.structs.replace(NOTHING, files=Changes(changes=files)))
    assert "2 made since, will go: css/new.css, lib/x" in text
    assert "1 will have the mode, owner or attributes of then: css/" in text


def test_a_card_without_a_change_says_what_was_not_compared() -> None:
    difference = msgspec.structs.replace(NOTHING, not_compared=("memory of redis may have changed",))
    card = msgspec.to_builtins(write_card("x", "given", difference, ()))
    text = str(card_of(point(5), card=card, sections=[]))
    assert "no change found since the point before" in text
    assert "not seen   memory of redis may have changed" in text
    assert card["summary"] == "no change found, but memory of redis may have changed"
    ran = write_card("x", "given", difference, (), commands=outcomes([ended("make", 2)]))
    assert ran.summary == "make exit 2"


def test_a_plan_of_nothing() -> None:
    lines = plan_text(lost=NOTHING).splitlines()
    assert lines[0].startswith("From now (c9) back to c2 ")
    assert lines[1] == "  no difference found in files, processes, ports and the shell"
    # What is staged is no commit, and is not lost without a word.
    staged = RepositoryChange(path="/app", change="changed", staged=1)
    index = Changes(changes=(change("/app/.git/index", "modified"), change("/app/.git/objects/ab/c")))
    lost = msgspec.structs.replace(NOTHING, files=index, analysis=Analysis(findings=(staged,)))
    assert plan_text(lost=lost).splitlines()[1] == "  files      also changed: 2 in .git"
    made = Changes(changes=(change("/app/node_modules", entry="folder"),))
    text = plan_text(lost=msgspec.structs.replace(NOTHING, files=made))
    assert text.splitlines()[1] == "  files      also changed: folders in node_modules"


# Asking -------------------------------------------------------------------------------------------------


def test_a_restore_needs_a_point_or_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "--yes"]) == 2
    assert "no point given" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["tag", "-d"], ["tag", "-d", "name", "c1"], ["checkpoint", "--wait"], ["verify", "c1"]]
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYPOINT_HOME", "/nonexistent/none")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("waypoint: ")


# Side by side -----------------------------------------------------------------------------------------


def test_rows_of_a_comparison() -> None:
    """Files by what is in them, processes without their numbers."""

    def column(pid: int, exit_code: int) -> Column:
        process = ProcessFact(pid=pid, parent=1, command="node server.js", uid=0, rss_bytes=0)
        change = Change(path="/srv/f", kind="modified", entry="file", what=("content",), size_after=3)
        return Column(
            Difference(
                files=Changes(changes=(change,)),
                analysis=Analysis(),
                live=LiveDifference(started=(process,)),
                gaps=(),
                redacted=0,
            ),
            outcomes([event("pytest -q", exit_code), event("ls", 0)]),
            (),
        )

    def event(command: str, exit_code: int) -> Event:
        body = {"command": command, "exit_code": exit_code}
        return Event(
            id=1, session="s", parent=None, at="", kind="command", actor="agent", body=body, blob=None
        )

    def same(apart: set[str] | None, second: Column) -> list[tuple[str, str, bool | None]]:
        rows = side_by_side([column(7, 0), second], apart)
        return [(row.section, row.text, row.same) for row in rows]

    test, server = ("commands", "$ pytest -q", True), ("processes", "server.js", True)
    assert same(set(), column(8, 0)) == [test, ("files", "/srv/f", True), server]
    assert same({"/srv/f"}, column(8, 0)) == [test, ("files", "/srv/f", False), server]
    assert same(None, column(8, 0)) == [test, ("files", "/srv/f", None), server]
    assert same(set(), column(8, 1))[0] == ("commands", "$ pytest -q", False)
