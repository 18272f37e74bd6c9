"""Search over live forks from the command line."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.cli.spec import SESSION, argument, byte_count, count, flag, positive, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.explore import Result
    from waypoint.explore.candidates import Work

_HOW_IT_IS_SHOWN = ("table", "show", "dot", "html", "json", "quiet", "no_color", "home", "session")
_STRATEGIES = ("first-wins", "best-of-n", "beam", "best-first", "mcts", "tournament")


def _repeated(name: str, metavar: str, help: str) -> Any:
    return argument(name, metavar=metavar, action="append", default=[], help=help)


@verb(
    "explore",
    "try many ways from a point in live forks, score each, keep the best",
    SESSION,
    argument(
        "ref", metavar="REF", nargs="?", help="where to start (default: now, of which a point is taken)"
    ),
    _repeated("--try", "CMD", "a candidate: a command line; may be given several times"),
    argument(
        "--from",
        dest="file",
        metavar="FILE",
        help="more candidates: a command line on each line, or a JSON list of lines that are run in turn",
    ),
    _repeated("--agent", "CMD", "a command that does not do the same each time; it sees WAYPOINT_ATTEMPT"),
    argument("--attempts", metavar="N", type=count, default=4, help="how often at each place (default: 4)"),
    argument(
        "--score",
        metavar="CMD",
        help="scores a result: by what it writes to descriptor 3, else by how it exits",
    ),
    argument(
        "--read",
        choices=("auto", "exit", "number", "json"),
        default="auto",
        help="where the score is: its exit status (0 is 1, others 0), a number on descriptor 3, JSON there or"
        " on stdout (default: descriptor 3 if something is written to it, else the exit status)",
    ),
    argument(
        "--strategy", choices=_STRATEGIES, default="best-of-n", help="what is tried next (default: best-of-n)"
    ),
    argument(
        "--width", metavar="N", type=count, help="of beam: how many of each generation are gone on from"
    ),
    argument("--goal", metavar="X", type=float, help="a score at which the search is over"),
    argument("--nodes", metavar="N", type=count, default=100, help="the most trials (default: 100)"),
    argument("--depth", metavar="N", type=count, help="the most steps from the start"),
    argument("--seconds", metavar="SEC", type=positive, help="the longest it may take"),
    argument(
        "--cost", metavar="X", type=positive, help="the most that JSON scores may say it costs together"
    ),
    argument(
        "--boxes", metavar="N", type=count, default=4, help="live boxes at once, two a trial (default: 4)"
    ),
    argument("--memory", metavar="SIZE", type=byte_count, help="the most memory of its boxes together"),
    argument("--disk", metavar="SIZE", type=byte_count, help="the most disk space of its sessions together"),
    argument("--timeout", metavar="SEC", type=positive, default=600.0, help="of each command (default: 600)"),
    argument("--runners-up", metavar="N", type=int, default=2, help="kept beside the best (default: 2)"),
    argument(
        "--name", metavar="NAME", help="of the search and its sessions (default: one for this line of words)"
    ),
    flag("--table", help="print a table instead of the tree"),
    flag("--show", help="print the search of that name, or the newest, and try nothing"),
    argument("--dot", metavar="FILE", help="also write the tree for Graphviz"),
    argument("--html", metavar="FILE", help="also write it as a page"),
    examples=(
        "waypoint explore -s work --try './fix a' --try './fix b' --score 'pytest -q'",
        "waypoint explore -s work c5 --agent ./agent.sh --attempts 8 --score 'npm test'",
        "waypoint explore -s work --from moves --score './rate >&3' --strategy mcts --depth 6",
        "waypoint explore --show --html tree.html",
    ),
    about="Each candidate runs in a fork, and is scored in a fork of that, which is thrown away. Commands"
    " that act on the outside do not run: those of the best are listed at the end. The best and its"
    " runners-up stay as stopped sessions NAME-1, NAME-2, …; the others are removed. A search that was killed"
    " goes on where it was when the same line is typed again. It exits with 0 if a candidate came to an end,"
    " and the goal was reached.",
    json="waypoint.explore.result:Explored",
)
def explore(console: Console) -> int:
    from waypoint.explore import Budget, Command, Result, journal, strategies
    from waypoint.explore.runner import explore as search
    from waypoint.explore.search import journal_path

    arguments = console.arguments
    if arguments.show:
        path = journal_path(arguments.name, console.home.path) if arguments.name else _newest(console)
        return _print(console, Result.read(journal.read(path), home=console.home.path))
    works = _candidates(console)
    console.prepare()
    session = console.open_session()
    settings = {"width": arguments.width} if arguments.width is not None else {}
    if arguments.strategy == "first-wins" and arguments.goal is not None:
        settings["goal"] = arguments.goal
    with console.progress("exploring") as update:
        found = search(
            session.point(arguments.ref) if arguments.ref else session,
            works,
            Command(arguments.score, arguments.read) if arguments.score else None,
            strategy=strategies.named(arguments.strategy, **settings),
            budget=Budget(
                nodes=arguments.nodes,
                depth=arguments.depth,
                seconds=arguments.seconds,
                cost=arguments.cost,
                boxes=arguments.boxes,
                memory=arguments.memory,
                disk=arguments.disk,
            ),
            goal=arguments.goal,
            timeout=arguments.timeout,
            runners_up=arguments.runners_up,
            name=arguments.name or _name(console, session.name),
            on_progress=lambda progress: update(str(progress)),
            home=console.home.path,
        )
    return _print(console, found)


def _name(console: Console, session: str) -> str:
    """The search that the same words have begun and that is not over; else a new one."""
    from waypoint.explore import Result, journal
    from waypoint.explore.search import journal_path

    words = {name: value for name, value in vars(console.arguments).items() if name not in _HOW_IT_IS_SHOWN}
    digest = hashlib.sha256(repr((session, sorted(words.items()))).encode()).hexdigest()[:6]
    for number in itertools.count(1):
        name = f"search-{digest}" + (f"-again{number}" if number > 1 else "")
        path = journal_path(name, console.home.path)
        if not path.exists() or not (events := journal.read(path)) or Result.read(events).stopped is None:
            return name
    raise AssertionError("unreachable")


def _newest(console: Console) -> Path:
    from waypoint.explore.search import journal_path

    found = sorted(
        journal_path("*", console.home.path).parent.glob("*.jsonl"), key=lambda path: path.stat().st_mtime
    )
    if not found:
        raise errors.NotFound("no search was made here yet")
    return found[-1]


def _candidates(console: Console) -> list[Work]:
    from waypoint.explore import Agent

    arguments = console.arguments
    works: list[Work] = [*vars(arguments)["try"]]
    if arguments.file:
        with errors.translated("read", arguments.file), open(arguments.file) as lines:
            works += [_work(line) for line in lines if line.strip() and not line.startswith("#")]
    works += [Agent(command, arguments.attempts) for command in arguments.agent]
    if not works:
        raise errors.UsageError("nothing to try", hint="give candidates with --try, --from or --agent")
    return works


def _work(line: str) -> Work:
    """A line of a file: a command line, or a JSON list of them."""
    if not line.startswith("["):
        return line.strip()
    try:
        steps: Any = json.loads(line)
    except ValueError as error:
        raise errors.UsageError(
            f"{line.strip()!r} is no JSON: {error}", hint='["make", "make install"]'
        ) from error
    return [str(step) for step in steps]


def _print(console: Console, found: Result) -> int:
    arguments = console.arguments
    for path, text in ((arguments.dot, found.dot), (arguments.html, found.html)):
        if path:
            with errors.translated("write", path), open(path, "w") as file:
                file.write(text())
            console.step(f"wrote {os.path.abspath(path)}")
    winner = found.winner
    lines = [found.table() if arguments.table else found.graph()]
    if found.stopped:
        lines.append(f"stopped: {found.stopped}")
    if winner is not None and winner.outcome and winner.outcome.session:
        lines.append(f"the best is #{winner.id}: point {winner.point} of {winner.outcome.session}")
        lines += [f"held, not run: {command}" for command in found.held]
    console.show(found.report(), "\n".join(lines))
    if winner is not None and winner.point:
        console.hint(
            f"`waypoint restore -s SESSION {winner.point}` goes there; `waypoint apply` brings files out"
        )
    reached = arguments.goal is None or (winner is not None and (winner.score or 0.0) >= arguments.goal)
    return 0 if winner is not None and reached else 1
