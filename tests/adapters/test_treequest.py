"""TreeQuest's own algorithms drive a search over live forks: docs/examples/explore_treequest.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import treequest
from treequest.algos.best_first_search import BestFirstSearchAlgo

import waypoint
from waypoint.explore.journal import read
from waypoint.explore.search import journal_path
from waypoint.explore.tree import ROOT, Tree
from waypoint.home import Home

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "explore_treequest.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("explore_treequest", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start(home: Home) -> Iterator[waypoint.Checkpoint]:
    session = waypoint.session("start")
    session.run("mkdir /srv/app; cd /srv/app; x=5; echo $x > x").check()
    yield session.checkpoint("the start")
    for left in waypoint.sessions():
        left.remove()


@pytest.mark.parametrize(
    "algorithm",
    [
        treequest.StandardMCTS(samples_per_action=1),
        BestFirstSearchAlgo(num_samples=1),
        treequest.TreeOfThoughtsBFSAlgo(breadth_limit=2, size_limit=3),
        treequest.ABMCTSA(),
    ],
    ids=lambda algorithm: type(algorithm).__name__.lower(),
)
def test_an_algorithm_of_treequest_finds_its_way_over_live_forks(
    algorithm: Any, example: Any, start: waypoint.Checkpoint
) -> None:
    name = type(algorithm).__name__.lower()
    found = example.search(start, algorithm, example.ACTIONS, example.SCORE, trials=12, name=name)
    assert len(found.nodes) == 12
    assert {node.status for node in found.nodes} == {"done", "failed"}
    assert max(node.depth for node in found.nodes) > 1, "it has gone on from forks"
    value = {ROOT: 5}
    for node in found.nodes:
        if node.done:  # the variable of the shell has come with each fork
            before = value[node.parent]
            value[node.id] = before * 2 if node.label.startswith("x=$((x * 2") else before + 3
            assert node.score == pytest.approx(1 / (1 + abs(example.TARGET - value[node.id])))
    assert found.winner.score == max(node.score for node in found.nodes if node.done)
    assert Tree.of(read(journal_path(name))).shape() == found.tree.shape()
