"""TreeQuest's algorithms search over live forks, as they are: they choose, Waypoint forks and scores.

    pip install treequest==0.3.3
    sudo python docs/examples/explore_treequest.py

A tree of TreeQuest has the number of our node as the state of its node: from that the next trial goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import treequest

import waypoint
from waypoint.explore import Budget, Node, Result, Search
from waypoint.explore.tree import ROOT

ACTIONS = {
    "double": "x=$((x * 2)); echo $x > x",
    "add": "x=$((x + 3)); echo $x > x",
    "break": "false",
}
TARGET = 40
SCORE = f'x=$(cat x); python3 -c "print(1 / (1 + abs({TARGET} - $x)))" >&3'


def search(
    point: waypoint.Checkpoint,
    algorithm: Any,
    actions: Mapping[str, str],
    evaluate: str,
    *,
    trials: int,
    at_once: int = 2,
    name: str = "treequest",
) -> Result:
    """Lets an algorithm choose so many trials, `at_once` of them before it is told."""
    with Search(point, evaluate=evaluate, strategy=None, budget=Budget(nodes=trials), name=name) as forks:
        tree = algorithm.init_tree()
        while forks.over is None:
            most = min(at_once, trials - len(forks.tree))
            tree, chosen = algorithm.ask_batch(tree, most, list(actions))
            for one in chosen:
                parent = ROOT if one.parent_state is None else one.parent_state
                trial = forks.trial(parent, actions[one.action])
                node = forks.tell(trial, forks.attempt(trial))
                assert isinstance(node, Node)
                # What failed has no point to go on from: for the algorithm it is its parent again, with 0.
                state = (node.id if node.done else parent, node.score or 0.0)
                tree = algorithm.tell(tree, one.trial_id, state)
            forks.settle()
        forks.end("TreeQuest has had its trials")
        forks.settle()
        return forks.result()


def main() -> None:
    with waypoint.session(temporary=True) as session:
        session.run("mkdir /srv/app; cd /srv/app; x=5; echo $x > x").check()
        start = session.checkpoint("the start")
        found = search(start, treequest.StandardMCTS(samples_per_action=1), ACTIONS, SCORE, trials=18)
        print(found.graph())
        found.restore(session)
        print("x is", session.run("echo $x").output.strip())


if __name__ == "__main__":
    main()
