"""Random trees of processes through checkpoints and what is grown from them:
`python -m tests.fingerprint.campaign [--trees N] [--seed N]`, as root.

Many small trees are put into one session. It is saved, and brought back as a restore, a fork, or a spare
that is released. Every tree then has to be equal to what it was, by its fingerprint and by what its processes
say of themselves; or the checkpoint is refused with an error that names a process. The same seed gives the
same trees.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fingerprint import Difference, Fact, Fingerprint, actors, difference, keeper_of, take
from tests.fingerprint.declared import reason
from tests.fingerprint.trees import Operation, Tree, random_trees, script
from tests.tables import replace_section, table
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home
from waypoint.kernel.pool.lifecycle import close_pool

BATCH = 60
WAYS = ("restore", "fork", "spare", "again")
"""How a point is brought back; `again`: restored, saved and restored once more."""
_SHRINK_SECONDS = 20.0
"""For making one defect small; the campaign goes on with what it has by then."""
_TALLY = "tally: "
_SHOWN = 12
"""Differences of one defect."""
_BATCHES = 10_000
"""More than a campaign has: each batch has a seed of its own."""


@dataclass
class Tally:
    """What a campaign has seen."""

    trees: int = 0
    operations: int = 0
    processes: int = 0
    points: int = 0
    returns: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    declared: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    kinds: list[frozenset[str]] = field(default_factory=list)
    """Those of the defects that were made small."""


@dataclass(eq=False)
class Refused(Exception):
    """The checkpoint was refused; `trees`: for the number of each tree with a process that was named, why."""

    reason: str
    trees: Mapping[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class Defective(Exception):
    """Something is silently wrong, or a point that was acknowledged cannot be restored."""

    what: str
    trees: Mapping[int, Sequence[Difference]] = field(default_factory=dict)
    """Those concerned, if that is known, and what is wrong with each."""

    def of(self, number: int) -> Defective:
        """What is wrong with this tree alone."""
        if number not in self.trees:
            return self
        return Defective(self.what, {0: self.trees[number]})

    @property
    def kinds(self) -> frozenset[str]:
        """The same for defects that are probably one."""
        return frozenset(one.kind for each in self.trees.values() for one in each) or frozenset([self.what])

    def __str__(self) -> str:
        lines = [f"  {one}" for each in self.trees.values() for one in each]
        return "\n".join([self.what, *lines[:_SHOWN]])


@dataclass(frozen=True)
class _Saved:
    """A point, the fingerprint of what it holds, and the trees that were refused and ended for it."""

    point: waypoint.Checkpoint
    before: Fingerprint
    names: dict[int, int]
    """The tree of each process."""
    refused: Mapping[int, str]
    """Those, and why."""


class Campaign:
    """Batches of trees, each in a fork of one point: a session that has the actor, and nothing else."""

    def __init__(self, home: Home, point: waypoint.Checkpoint, tally: Tally) -> None:
        self._home, self._point, self._tally = home, point, tally

    def check(self, trees: Sequence[Tree], way: str) -> None:
        """All of these trees. Refused ones are counted and left out, defects are made small and noted."""
        left = list(trees)
        while left:
            try:
                refused = self._try_all(left, way)
            except (Refused, Defective) as found:
                print(f"  {way}, {len(left)} trees, of them {[*found.trees]}: {found}", flush=True)
                if len(left) == 1:
                    self._note(left, 0, way, found)
                elif isinstance(found, Defective) and found.trees:
                    for number in sorted(found.trees, reverse=True):
                        self._note(left, number, way, found)
                else:
                    self._halve(left, way, found)
                    return
            else:
                self._tally.trees += len(left)
                self._tally.refusals.update(refused.values())
                kept = [tree for number, tree in enumerate(left) if number not in refused]
                self._tally.operations += sum(map(_operations, kept))
                return

    def _halve(self, trees: list[Tree], way: str, found: Refused | Defective) -> None:
        """Checks both halves, to find the tree that is concerned. One that neither shows is noted too."""
        noted = len(self._tally.defects)
        self.check(trees[: len(trees) // 2], way)
        self.check(trees[len(trees) // 2 :], way)
        if isinstance(found, Defective) and len(self._tally.defects) == noted:
            self._tally.defects.append(f"{way}: only with {len(trees)} trees together: {found}")

    def _note(self, left: list[Tree], number: int, way: str, found: Refused | Defective) -> None:
        """Takes a tree out, and notes why."""
        tree = left.pop(number)
        self._tally.trees += 1
        if isinstance(found, Refused):
            self._tally.refusals[found.reason] += 1
        else:
            defect = self._explain(tree, way, found.of(number))
            print(defect, flush=True)
            self._tally.defects.append(defect)

    def _explain(self, tree: Tree, way: str, found: Defective) -> str:
        """A defect, with the smallest tree that shows it. One that is like an earlier one is only named."""
        if found.kinds in self._tally.kinds:
            return f"{way}, as before: {found}"
        self._tally.kinds.append(found.kinds)
        smaller = list(_smaller(tree))
        deadline = time.monotonic() + _SHRINK_SECONDS
        while smaller and time.monotonic() < deadline:
            candidate = smaller.pop(0)
            try:
                self._try_all([candidate], way)
            except Defective as defective:
                tree, found = candidate, defective
                smaller = list(_smaller(tree))
            except Refused:
                pass
        return f"{way}: {found}\n{script([tree])}"

    def _try_all(self, trees: Sequence[Tree], way: str) -> Mapping[int, str]:
        """As `_try`. What fails in another way than it should does not end the campaign."""
        try:
            return self._try(trees, way)
        except (Refused, Defective):
            raise
        except Exception as error:
            raise Defective("".join(traceback.format_exception(error)[-3:])) from error

    def _try(self, trees: Sequence[Tree], way: str) -> Mapping[int, str]:
        """One batch. Returns the numbers of the trees that were refused and ended, and why; raises Refused if
        it is not known which one to end, and Defective."""
        tally = self._tally
        with self._session() as session:
            keeper = keeper_of(self._home, session.name)
            actors.start(session, keeper, trees)
            asked = actors.ask(keeper)
            saved = self._save(session, keeper, len(trees), {})
            point, before, names = saved.point, saved.before, saved.names
            tally.points += 1
            tally.processes += point.info.processes
            self._compare("the dump changed the tree itself", keeper, before, names)
            steps = ("restore", "restore") if way == "again" else (way,)
            for number, step in enumerate(steps, 1):
                returned = self._bring_back(session, point, step)
                keeper = keeper_of(self._home, returned.name)
                tally.returns[step] += 1
                # Asking them leaves traces in their memory.
                self._compare(
                    f"after a {way}", keeper, before, names, asked if number == len(steps) else None
                )
                if number < len(steps):
                    point = self._checkpoint(session, names)
                    tally.points += 1
            return saved.refused

    def _save(
        self, session: waypoint.Session, keeper: int, count: int, before_it: Mapping[int, str]
    ) -> _Saved:
        """A checkpoint of all trees that are not refused; those are ended."""
        before, names = take(keeper), actors.trees_of(keeper)
        try:
            return _Saved(self._checkpoint(session, names), before, names, before_it)
        except Refused as refused:
            named = refused.trees.keys() - before_it.keys()
            if not named or count - len(before_it) <= len(named):
                raise
            for tree in named:
                actors.end(keeper, tree)
            return self._save(session, keeper, count, {**before_it, **refused.trees})

    def _checkpoint(self, session: waypoint.Session, names: dict[int, int]) -> waypoint.Checkpoint:
        try:
            return session.checkpoint()
        except errors.CannotCheckpoint as refused:
            culprits = refused.details.get("processes", ())
            trees: dict[int, str] = {}
            for culprit in culprits:
                if culprit["pid"] in names:
                    trees.setdefault(names[culprit["pid"]], str(culprit["reason"]))
            raise Refused(str(culprits[0]["reason"]) if culprits else refused.message, trees) from refused

    def _bring_back(
        self, session: waypoint.Session, point: waypoint.Checkpoint, step: str
    ) -> waypoint.Session:
        try:
            match step:
                case "fork":
                    return point.fork(name="copy")[0]
                case "spare":
                    client = waypoint.Client()
                    until(lambda: point.id in client.daemon.status().spares)
                    client.close()
            session.restore(point, safety=False)
        except errors.WaypointError as error:
            raise Defective(
                f"an acknowledged point cannot be restored: {error.message} {error.details}"
            ) from error
        return session

    def _compare(
        self,
        when: str,
        keeper: int,
        before: Fingerprint,
        names: dict[int, int],
        asked: dict[str, str] | None = None,
    ) -> None:
        """`names`: the tree of each process. `asked`: what they said of themselves."""
        differences = difference(before, take(keeper))
        if asked is not None:
            answers = actors.ask(keeper)
            for key in sorted(asked.keys() | answers.keys()):
                one, other, pid = asked.get(key), answers.get(key), int(key.partition(" ")[0])
                if one != other and pid in names:  # (not one of a refused tree)
                    fact = Fact(f"answer: {key.partition(' ')[2]}", key)
                    declared = reason(fact, one, other, before.facts)
                    differences.append(Difference(*fact, one, other, declared))
        self._tally.declared.update(found.kind for found in differences if found.declared)
        wrong = [found for found in differences if not found.declared]
        if wrong:
            trees: dict[int, list[Difference]] = {}
            for found in wrong:
                word = _pid(found.place)
                if word and int(word) in names:
                    trees.setdefault(names[int(word)], []).append(found)
            raise (
                Defective(when, trees) if trees else Defective("\n  ".join([when, *map(str, wrong[:_SHOWN])]))
            )

    @contextmanager
    def _session(self) -> Iterator[waypoint.Session]:
        client = waypoint.Client()
        others = {one.name for one in client.sessions()}
        session = self._point.fork(name="batch")[0]
        try:
            yield session
        finally:
            names = [one.name for one in client.sessions() if one.name not in others]
            client.call("rm", {"sessions": names})
            client.close()


def _pid(place: str) -> str:
    digits = place.replace("/", ":").replace(" ", ":").split(":")[0]
    return digits if digits.isdecimal() else ""


def _operations(tree: Sequence[Operation]) -> int:
    return sum(1 + _operations(operation.block or ()) for operation in tree)


def _smaller(tree: Tree) -> Iterator[Tree]:
    """The tree without one of its operations; or with a child's own in place of the child."""
    for index, operation in enumerate(tree):
        yield (*tree[:index], *tree[index + 1 :])
        for block in _smaller(operation.block or ()):
            smaller = dataclasses.replace(operation, block=block)
            yield (*tree[:index], smaller, *tree[index + 1 :])


def report(tally: Tally, seconds: float) -> str:
    """The result in words and tables."""
    ways = ", ".join(f"{way} {count}" for way, count in sorted(tally.returns.items()))
    lines = [
        f"{tally.trees:,} trees with {tally.operations:,} operations, {tally.processes:,} processes saved in",
        f"{tally.points:,} points, {sum(tally.returns.values()):,} times brought back ({ways}),",
        f"{seconds:.0f} s. Silently wrong, or never restored: {len(tally.defects)}.",
        f"Refused trees: {sum(tally.refusals.values())}.",
        "",
        table(("refused because", "trees"), tally.refusals.most_common()),
        "",
        table(("declared difference", "seen"), tally.declared.most_common()),
    ]
    return "\n".join([*lines, *tally.defects])


def _run(
    count: int, number: int, home: Home, program: Path, seconds: float, *, share: int, shares: int
) -> Tally:
    """All trees of a seed, or those of one share; or as many batches as begin within that time."""
    tally = Tally()
    deadline = time.monotonic() + seconds
    campaigns = {}
    for spares in (0, 1):
        session = waypoint.session(f"seed-{spares}", spares=spares)
        actors.install(session, program)
        campaigns[bool(spares)] = Campaign(home, session.checkpoint("the actor is there"), tally)
    for turn, start in [*enumerate(range(0, count, BATCH))][share::shares]:
        trees = random_trees(min(BATCH, count - start), number * _BATCHES + turn)
        if time.monotonic() > deadline:
            break
        way = WAYS[turn % len(WAYS)]
        campaigns[way == "spare"].check(trees, way)
        print(f"{tally.trees} trees, {tally.points} points", flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fingerprint.campaign", description=__doc__)
    parser.add_argument("--trees", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--write", action="store_true", help="write the result into docs/reliability.md")
    parser.add_argument("--jobs", type=int, default=2, help="daemons side by side, each with a share")
    parser.add_argument("--share", type=int, help="only this one, and print its tally at the end")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no batch after that")
    options = parser.parse_args()
    if options.share is not None:
        tally = _run_share(options)
        print(_TALLY + json.dumps(vars(tally) | {"kinds": []}), flush=True)
        return bool(tally.defects)
    print(f"WAYPOINT_SEED={options.seed}", flush=True)
    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as executor:
        tallies = list(executor.map(_follow, [options] * options.jobs, range(options.jobs)))
    tally = _sum(tallies)
    shown = report(tally, time.monotonic() - started)
    print(shown)
    if options.write:
        replace_section("reliability.md", "fidelity", f"{_heading(options)}\n\n{shown}")
    return bool(tally.defects)


def _heading(options: argparse.Namespace) -> str:
    git = ["git", "-C", str(Path(__file__).parent), "log", "-1", "--format=%h"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    asked = f"seed {options.seed}, {options.trees:,} trees asked for, {options.jobs} daemons side by side"
    return f"The last campaign: {asked}, code of {commit}."


def _follow(options: argparse.Namespace, share: int) -> Tally:
    """One share in a process and a mount namespace of its own: daemons see the pools of others otherwise."""
    words = {"trees": options.trees, "seed": options.seed, "jobs": options.jobs, "minutes": options.minutes}
    arguments = [f"--{name}={value}" for name, value in words.items()]
    command = [sys.executable, "-m", "tests.fingerprint.campaign", f"--share={share}", *arguments]
    result: Tally | None = None
    with subprocess.Popen(["unshare", "--mount", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(_TALLY):
                result = Tally(**json.loads(line.removeprefix(_TALLY)))
            else:
                print(f"{share}: {line}", end="", flush=True)
    if result is None:
        raise SystemExit(f"share {share} ended with {process.returncode} and has no result")
    return result


def _sum(tallies: Sequence[Tally]) -> Tally:
    result = Tally()
    for tally in tallies:
        result.trees += tally.trees
        result.operations += tally.operations
        result.processes += tally.processes
        result.points += tally.points
        result.returns.update(tally.returns)
        result.refusals.update(tally.refusals)
        result.declared.update(tally.declared)
        result.defects += tally.defects
    return result


def _run_share(options: argparse.Namespace) -> Tally:
    os.environ["WAYPOINT_SPARES"] = "0"
    os.environ["WAYPOINT_PROVE"] = "off"
    with tempfile.TemporaryDirectory(prefix="waypoint-trees-", dir="/var/tmp") as folder:
        os.environ["WAYPOINT_HOME"] = folder
        home = Home(Path(folder))
        try:
            return _run(
                options.trees,
                options.seed,
                home,
                actors.build(Path(folder)),
                options.minutes * 60,
                share=options.share,
                shares=options.jobs,
            )
        finally:
            waypoint.Client(folder).call("daemon_stop", {"sessions": True})
            until(lambda: close_pool(home.path))


if __name__ == "__main__":
    sys.exit(main())
