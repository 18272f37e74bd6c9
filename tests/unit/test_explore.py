"""A search without a machine: strategies, the journal, scores, budgets, and how a tree is shown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from waypoint import errors, model
from waypoint.client.checkpoint import Checkpoint
from waypoint.client.client import Client
from waypoint.explore import (
    Agent,
    Budget,
    Command,
    NoScore,
    Outcome,
    Pairwise,
    Place,
    Search,
    Tree,
    Trial,
    budget,
    candidates,
    forks,
    journal,
    render,
    scores,
    strategies,
)
from waypoint.explore.result import Explored, Result
from waypoint.explore.search import Match
from waypoint.explore.strategies import STRATEGIES, Decision, Expand, Play, Strategy
from waypoint.explore.tree import ROOT, Asked, Given, Node, Played, Proposal, Proposed, Told
from waypoint.model import from_json, from_plain

NAMES = sorted(STRATEGIES)


# ---- a search by hand: each node has the same candidates, and its score is a function of its path ----------


def _score(path: tuple[int, ...]) -> float | None:
    """Of one in seven there is none: it failed."""
    number = random.Random(repr(path)).random()
    return None if number < 1 / 7 else round(number, 3)


def _path(tree: Tree, node: Node) -> tuple[int, ...]:
    return tuple(one.index for one in reversed(tree.line(node.id)[:-1]))


def _outcome(path: tuple[int, ...]) -> Outcome:
    score = _score(path)
    return Outcome(status="failed") if score is None else Outcome(score=score, point=f"p{path}")


def _play(strategy: Strategy, *, width: int, nodes: int, depth: int, at_once: int, seed: int) -> Tree:
    """A whole search in which what is under way ends in any order."""
    tree, order = Tree(depth), random.Random(seed)
    pending: list[int | tuple[int, int]] = []
    for _ in range(10 * nodes + 100):
        while len(pending) < at_once and not (strategy.rounds and pending):
            batch = list(_decisions(strategy, tree, width, nodes, at_once))
            pending += batch
            if len(batch) < at_once:
                break
        if not pending:
            return tree
        done = pending.pop(order.randrange(len(pending)))
        if isinstance(done, tuple):
            tree.apply(Played(left=done[0], right=done[1], verdict=order.choice((-1.0, 1.0))))
        else:
            tree.apply(Told(id=done, outcome=_outcome(_path(tree, tree[done]))))
    raise AssertionError("it does not end")


def _decisions(
    strategy: Strategy, tree: Tree, width: int, nodes: int, most: int
) -> Iterator[int | tuple[int, int]]:
    while most:
        decision: Decision = strategy.choose(tree)
        match decision:
            case Expand(node=node) if node not in tree.proposals:
                tree.apply(Proposed(node=node, proposals=tuple(Proposal(label=str(i)) for i in range(width))))
                continue
            case Expand(node=node) if len(tree) < nodes:
                assert tree.expandable(node)
                asked = Asked(id=len(tree.nodes), parent=node, index=len(tree.children(node)))
                tree.apply(Given(trials=(asked,)))
                yield asked.id
            case Play(left=left, right=right):
                assert left != right
                tree.playing.add((left, right))
                yield left, right
            case _:
                return
        most -= 1


@settings(max_examples=40, deadline=None)
@given(
    name=some.sampled_from(NAMES),
    width=some.integers(0, 5),
    nodes=some.integers(1, 30),
    depth=some.integers(1, 4),
    at_once=some.integers(1, 4),
    seed=some.integers(0, 1 << 30),
)
def test_every_strategy_ends_within_its_budget_whatever_ends_first(
    name: str, width: int, nodes: int, depth: int, at_once: int, seed: int
) -> None:
    strategy = strategies.named(name)
    tree = _play(strategy, width=width, nodes=nodes, depth=depth, at_once=at_once, seed=seed)
    assert len(tree) <= nodes
    assert all(node.depth <= depth for node in tree.nodes)
    assert not tree.pending or name == "first-wins"
    assert len({(node.parent, node.index) for node in tree.nodes}) == len(tree.nodes)
    if name in ("best-of-n", "tournament"):
        assert len(tree) == min(width, nodes)
    if not isinstance(strategy, strategies.FirstWins | strategies.Tournament):
        other = _play(strategy, width=width, nodes=nodes, depth=depth, at_once=at_once, seed=seed + 1)
        assert other.shape() == tree.shape(), "which of several trials ends first changes nothing"


def test_a_beam_goes_on_from_the_best_of_each_generation_only() -> None:
    tree = _play(strategies.named("beam", width=2), width=4, nodes=100, depth=3, at_once=3, seed=1)
    for depth in (1, 2):
        ranked = [node.id for node in tree.ranking() if node.depth == depth]
        gone_on = {node.id for node in tree.nodes if node.depth == depth and tree.children(node.id)}
        assert gone_on == set(ranked[:2])


def test_best_first_goes_on_from_the_best_there_is() -> None:
    tree = _play(strategies.named("best-first"), width=3, nodes=12, depth=9, at_once=1, seed=1)
    parents = [node.parent for node in tree.nodes[1:]]
    assert parents[:3] == [ROOT] * 3
    best = max((node for node in tree.nodes[1:4] if node.done), key=lambda node: node.score or 0.0)
    assert parents[3:6] == [best.id] * 3


def test_uct_tries_each_candidate_once_and_then_the_better_side_more_often() -> None:
    tree = Tree(6)
    for _ in range(40):
        (trial,) = _decisions(strategies.named("mcts"), tree, 2, 100, 1)
        assert isinstance(trial, int)
        good = _path(tree, tree[trial])[0] == 0
        tree.apply(Told(id=trial, outcome=Outcome(score=0.9 if good else 0.1)))
    sides = [_path(tree, node)[0] for node in tree.nodes[1:]]
    assert sides[:2] == [0, 1]
    assert sides.count(0) > 2 * sides.count(1) > 0


def test_a_tournament_is_won_by_the_one_that_wins_every_match() -> None:
    tree = _play(strategies.named("tournament"), width=7, nodes=99, depth=1, at_once=2, seed=3)
    entrants = len(tree.ranking())
    assert len(tree.matches) == entrants - 1
    assert tree.best is not None
    losers = {right if verdict > 0 else left for (left, right), verdict in tree.matches.items()}
    assert tree.best.id not in losers
    assert len(losers) == entrants - 1


def test_a_duplicate_is_not_gone_on_from_and_does_not_win_beside_the_first() -> None:
    tree = Tree()
    tree.apply(Proposed(node=ROOT, proposals=tuple(Proposal(label=str(i)) for i in range(3))))
    tree.apply(Given(trials=tuple(Asked(id=i + 1, parent=ROOT, index=i) for i in range(3))))
    for number, certain in ((3, True), (1, True), (2, False)):  # in any order
        outcome = Outcome(score=1.0, fingerprint="same", certain=certain)
        tree.apply(Told(id=number, outcome=outcome))
    assert [tree.duplicate_of(number) for number in (1, 2, 3)] == [None, None, 1]
    assert tree.looks_like(2) == 1, "their files are alike; what programs have in memory was not compared"
    assert [tree.expandable(number) for number in (1, 2, 3)] == [True, True, False]
    assert [node.id for node in tree.ranking()] == [1, 2]


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("fastest", {}, "no strategy 'fastest'"),
        ("beam", {"depth": 3}, "no setting 'depth'"),
        ("beam", {"width": 0}, "1 or more"),
        ("mcts", {"exploration": float("nan")}, "0 or more"),
        (7, {}, "is no strategy"),
    ],
)
def test_a_strategy_that_there_is_not_is_a_usage_error(name: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.UsageError, match=says):
        strategies.named(name, **wrong)


# ---- ask and tell --------------------------------------------------------------------------------


@pytest.fixture
def searching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Search]:
    """Makes searches that have no machine: nothing is forked, and no session is looked for."""
    monkeypatch.setattr(forks.Forks, "existing", lambda _: [])

    def make(propose: Any = ("a", "b", "c"), **options: Any) -> Search:
        info = model.Checkpoint(
            id="start",
            name=None,
            intent="",
            session="s",
            label="c1",
            parent=None,
            created_at="",
            kind="manual",
            pause_ms=0,
            total_ms=0,
            size_bytes=0,
            processes=1,
        )
        point = Checkpoint(Client(tmp_path), info)
        return Search(point, propose, journal=tmp_path / "journal", home=tmp_path, **options)

    return make


def _drive(search: Search, most: int | None = None, at_once: int = 2) -> None:
    """Does what is asked, until nothing more is or `most` was told."""
    told = 0
    while asked := search.ask(at_once):
        for trial in asked:
            if told == most:
                return
            if isinstance(trial, Match):
                search.tell(trial, trial.left.score or 0.0)
            else:
                search.tell(trial, _outcome(_path(search.tree, trial.node)))
            told += 1


@pytest.mark.parametrize(("name", "judged"), [*((name, False) for name in NAMES), ("tournament", True)])
def test_a_search_that_was_left_anywhere_ends_with_the_tree_of_one_that_was_not(
    name: str, judged: bool, searching: Callable[..., Search], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"strategy": name, "budget": Budget(nodes=14, depth=3)}
    options |= {"evaluate": Pairwise(lambda _a, _b: 1)} if judged else {}
    with searching(**options) as search:
        _drive(search)
        whole, log = search.tree.shape(), (tmp_path / "journal").read_bytes()
        matches = search.tree.matches
    for cut in range(0, len(log), max(1, len(log) // 12)):  # also in the middle of a line
        (tmp_path / "journal").write_bytes(log[:cut])
        for most in (1, None):
            with searching(**options) as search:
                _drive(search, most)
        assert search.tree.shape() == whole, f"cut at {cut}"
        assert search.tree.matches == matches


def test_lost_trials_are_asked_again_first_and_telling_twice_changes_nothing(
    searching: Callable[..., Search],
) -> None:
    with searching(budget=Budget(nodes=3)) as search:
        first, second = search.ask(2)
        search.tell(second, 0.5, cost=2)
        search.tell(second, 0.9, cost=7)
        assert (search.tree[2].score, search.tree.cost) == (0.5, 2)
    with searching(budget=Budget(nodes=3)) as search:
        again, third = search.ask(5)
        assert (again.id, third.id) == (first.id, 3)
        assert search.ask(5) == [], "they are under way"
        search.tell(third, 0.1)
        search.tell(again, 0.2)
        assert search.over == "all was tried"
        with pytest.raises(errors.NotFound, match="no trial 9"):
            search.tell(9, 1.0)


def test_only_one_process_works_on_a_search_and_it_stays_the_same_search(
    searching: Callable[..., Search],
) -> None:
    with searching(), pytest.raises(errors.SessionBusy, match="another process"):
        searching()
    with pytest.raises(errors.AlreadyExists, match="another search"):
        searching(strategy="mcts")


def test_another_library_may_choose_what_is_tried(searching: Callable[..., Search]) -> None:
    with searching(strategy=None, budget=Budget(nodes=3, depth=2)) as search:
        first = search.trial(ROOT, "make one")
        search.tell(first, 0.5, point="p1")
        second = search.trial(first.id, ["make two", "make three"])
        search.tell(second, Outcome(status="failed", why="exit 1"))
        with pytest.raises(errors.UsageError, match="is failed"):
            search.trial(second.id, "x")
        search.trial(ROOT, "make four")
        with pytest.raises(errors.UsageError, match="all 3 nodes are used"):
            search.trial(ROOT, "x")
        with pytest.raises(errors.UsageError, match="no strategy"):
            search.ask()
        shape = search.tree.shape()
    with searching(strategy=None) as search:
        assert search.tree.shape() == shape
        assert [node.label for node in search.tree.nodes[1:]] == [
            "make one",
            "make two; make three",
            "make four",
        ]
        assert [node.id for node in search.tree.pending] == [3]


def test_a_function_of_an_earlier_process_is_asked_for_again(searching: Callable[..., Search]) -> None:
    def propose(place: Place) -> list[Any]:
        def work(_: Any) -> str:
            return f"at {place.node.id}"

        return [work, "plain"]

    with searching(propose) as search:
        (trial,) = search.ask(1)
    with searching(propose) as search:
        (again,) = search.ask(1)
        assert isinstance(again, Trial)
        assert again.candidate.proposal == trial.candidate.proposal  # type: ignore[union-attr]
        assert again.candidate.work is not None
        assert again.candidate.work(None) == "at 0"
    with searching(["other"]) as search, pytest.raises(errors.UsageError, match="not proposed any more"):
        search.ask(1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strategy": "fastest"}, "no strategy"),
        ({"evaluate": Pairwise(lambda _a, _b: 1)}, "needs the strategy tournament"),
        ({"strategy": "mcts", "budget": Budget(nodes=None)}, "would never end"),
        ({"timeout": 0}, "timeout"),
        ({"runners_up": -1}, "0 or more"),
        ({"name": "a/b"}, "cannot be the name"),
    ],
)
def test_what_makes_no_search_is_refused_before_anything_is_written(
    options: dict[str, Any], says: str, searching: Callable[..., Search], tmp_path: Path
) -> None:
    with pytest.raises(errors.UsageError, match=says):
        searching(**options)
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize("works", [[3], [""], [[]], [["make", 7]], 5])
def test_what_is_no_candidate_is_refused(works: Any) -> None:
    node = Tree()[ROOT]
    with pytest.raises(errors.UsageError, match="no candidate"):
        candidates.proposed_by(works, Place(node, ()))


def test_an_agent_is_as_many_candidates_as_it_has_attempts() -> None:
    place = Place(Tree()[ROOT], ())
    found = candidates.proposed_by([Agent("./agent", attempts=2), "make"], place)
    assert [(one.proposal.label, one.number, one.proposal.agent) for one in found] == [
        ("./agent #1", 1, True),
        ("./agent #2", 2, True),
        ("make", 1, False),
    ]
    with pytest.raises(errors.UsageError, match="at least one attempt"):
        Agent("x", attempts=0)


# ---- the journal ---------------------------------------------------------------------------------


def test_a_line_that_was_being_written_is_cut_off_and_any_other_damage_is_named(
    searching: Callable[..., Search], tmp_path: Path
) -> None:
    with searching() as search:
        search.ask(2)
    path = tmp_path / "journal"
    assert path.stat().st_mode & 0o777 == 0o600, "it holds commands as they were given"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "told", "id": 1, "outc')
    assert len(journal.read(path)) == whole.count(b"\n")
    with journal.Journal(path) as opened:
        assert len(opened.events) == whole.count(b"\n")
    assert path.read_bytes() == whole
    lines = whole.splitlines(keepends=True)
    for broken, says in (
        (b"".join([lines[0], b"{nonsense\n", *lines[2:]]), "line 2"),
        (b"".join(lines[1:]), "line 1: a journal begins"),
        (b"".join([*lines, lines[0]]), "once"),
    ):
        path.write_bytes(broken)
        with pytest.raises(journal.JournalDamaged, match=says):
            journal.Journal(path)
    path.write_bytes(whole.replace(b'"version":1', b'"version":2'))
    with pytest.raises(errors.VersionMismatch):
        journal.read(path)


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "exit_code", "output", "written", "value"),
    [
        ("auto", 0, "", b"", 1.0),
        ("auto", 3, "", b"", 0.0),
        ("auto", 1, "", b"0.25\n", 0.25),
        ("auto", 0, "", b'{"score": 2, "cost": 0.5, "why": "ok"}', 2.0),
        ("exit", 0, "", b"0.25", 1.0),
        ("number", 1, "", b"-3", -3.0),
        ("json", 0, 'words\n{"score": 7}\n', b"", 7.0),
    ],
)
def test_a_score_is_read_where_its_evaluation_puts_it(
    read: Any, exit_code: int, output: str, written: bytes, value: float
) -> None:
    assert scores.read_score(read, exit_code, output, written).value == value


@pytest.mark.parametrize(
    ("read", "output", "written"),
    [
        ("auto", "", b"high"),
        ("auto", "", b"nan"),
        ("auto", "", b"inf"),
        ("auto", "", b'{"points": 1}'),
        ("auto", "", b'{"score": "many"}'),
        ("auto", "", b'{"score": 1'),
        ("auto", "", b"\xff\xfe"),
        ("number", "5", b""),
        ("json", "", b""),
        ("json", "[1, 2]", b""),
    ],
)
def test_a_score_that_is_no_number_is_named(read: Any, output: str, written: bytes) -> None:
    with pytest.raises(NoScore):
        scores.read_score(read, 0, output, written)


def test_what_functions_and_judges_say_is_a_number_too() -> None:
    assert scores.score_of(True).value == 1.0
    assert scores.score_of({"score": "0.5", "cost": 2, "why": "half"}) == scores.Score(0.5, 2.0, "half")
    assert [scores.verdict_of(value) for value in ("left", "right", 0, -2)] == [1.0, -1.0, 0.0, -2.0]
    for wrong in (None, "fine", float("nan"), 10**400, {"score": None}, {"score": 1, "cost": "x"}):
        with pytest.raises(NoScore):
            scores.score_of(wrong)
    with pytest.raises(errors.UsageError):
        Command("true", "loud")  # type: ignore[arg-type]


# ---- the budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *({"nodes": 0}, {"nodes": 1.5}, {"depth": True}, {"seconds": -1}, {"cost": float("nan")}),
        *({"boxes": 1}, {"boxes": None}, {"memory": "much"}, {"disk": -1}),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError):
        Budget(**wrong)


def test_a_fork_is_refused_before_the_machine_suffers_and_what_takes_too_much_is_ended() -> None:
    gb = 1 << 30
    machine = budget.Room(16 * gb, 8 * gb, 100 * gb, 50 * gb, 0, 1 * gb)
    small = Budget(memory="2G", disk="1G")
    assert budget.refused(small, machine, gb // 2) is None
    assert "memory" in (budget.refused(small, machine, 2 * gb) or "")
    assert "too little memory" in (budget.refused(Budget(), machine, 7 * gb) or "")
    assert budget.exceeded(small, machine) is None
    assert "its boxes" in (budget.exceeded(small, machine._replace(boxes_memory=3 * gb)) or "")
    assert "written" in (budget.exceeded(small, machine._replace(written=2 * gb)) or "")
    assert "memory is free" in (budget.exceeded(Budget(), machine._replace(memory_free=gb // 2)) or "")
    assert "pool is free" in (budget.exceeded(Budget(), machine._replace(disk_free=gb)) or "")
    assert "pool is free" in (budget.refused(Budget(), machine._replace(disk_free=9 * gb), 1) or "")


# ---- how it is shown -----------------------------------------------------------------------------


def _hostile() -> Tree:
    tree = Tree()
    labels = ('<script>alert(1)</script>"\\', "two\n\x1b[31m", "held")
    tree.apply(Proposed(node=ROOT, proposals=tuple(Proposal(label=label) for label in labels)))
    tree.apply(Given(trials=tuple(Asked(id=i + 1, parent=ROOT, index=i) for i in range(3))))
    tree.apply(Told(id=1, outcome=Outcome(score=0.5, why="</table>", files=2, seconds=1.5)))
    tree.apply(Told(id=2, outcome=Outcome(status="timeout", why="\x1b]0;x\x07")))
    tree.apply(Told(id=3, outcome=Outcome(score=0.75, held=("git push",), cost=2.0)))
    return tree


def test_what_candidates_say_is_shown_as_text_everywhere() -> None:
    tree = _hostile()
    result = Result("<b>", tree, "start")
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(result.html())
    assert set(tags) <= {
        "html",
        "meta",
        "title",
        "style",
        "h1",
        "p",
        "ul",
        "li",
        "b",
        "code",
        "span",
        "table",
    } | {*("tr", "td", "th")}
    for text in (result.table(), result.graph(), result.dot(), result.html()):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert '\\"\\\\' in result.dot()


def test_the_table_has_the_best_first_and_the_progress_says_what_is_left() -> None:
    tree = _hostile()
    rows = render.table(tree).splitlines()
    assert rows[0].split() == ["node", "from", "score", "time", "cost", "files", "candidate"]
    assert [row.split()[0] for row in rows[1:]] == ["#3", "#1", "#2"]
    assert "best · holds 1 command" in rows[1]
    assert render.progress(tree, Budget(nodes=10, cost=5), 2) == (
        "2 running · best 0.75 (#3) · left: 7 of 10 nodes, 3 of 5 cost"
    )


def test_a_report_is_plain_data() -> None:
    result = Result("r", _hostile(), "start")
    report = result.report()
    assert (report.winner, report.held, report.nodes[1].status) == (3, ("git push",), "timeout")
    import msgspec

    text = msgspec.json.encode(report)
    assert from_json(text, Explored) == report
    assert from_plain(json.loads(text), Explored) == report
