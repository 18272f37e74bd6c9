"""Search over live forks: many continuations of one point are tried, scored and compared, and the best is
kept.

    tree        what a search knows, made of the events of its journal
    strategy    what decides from a tree what is tried next
    trial       a candidate that is run in a fork of a node's point; told of, it is a node
    candidate   what is tried: commands, a function on a live fork, an attempt of an agent
    outcome     what came of a trial: a score, a point, or why there is none

    from waypoint.explore import Budget, explore

    found = explore(point, ["./fix-a", "./fix-b"], "pytest -q", strategy="best-of-n")
    found.apply(".")

It uses the SDK and nothing below it. docs/explore.md is the guide.
"""

from waypoint.explore.budget import Budget
from waypoint.explore.candidates import Agent, Attempt, Place
from waypoint.explore.forks import Fork, Held, NoRoom
from waypoint.explore.result import Result
from waypoint.explore.runner import Progress, explore
from waypoint.explore.scores import Command, NoScore, Pairwise, Score
from waypoint.explore.search import Match, Search, Trial
from waypoint.explore.strategies import Beam, BestFirst, BestOfN, FirstWins, Mcts, Strategy, Tournament
from waypoint.explore.tree import Node, Outcome, Tree

__all__ = [
    "Agent",
    "Attempt",
    "Beam",
    "BestFirst",
    "BestOfN",
    "Budget",
    "Command",
    "FirstWins",
    "Fork",
    "Held",
    "Match",
    "Mcts",
    "NoRoom",
    "NoScore",
    "Node",
    "Outcome",
    "Pairwise",
    "Place",
    "Progress",
    "Result",
    "Score",
    "Search",
    "Strategy",
    "Tournament",
    "Tree",
    "Trial",
    "explore",
]
