"""Random trees of processes, as scripts for the actor (tests/native/actor)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class Operation:
    """One line of a script; with a block, what a child does."""

    name: str
    numbers: tuple[int, ...] = ()
    block: tuple[Operation, ...] | None = None

    def lines(self, indent: str = "") -> Iterator[str]:
        words = " ".join([self.name, *map(str, self.numbers)])
        if self.block is None:
            yield f"{indent}{words}"
            return
        yield f"{indent}{words} {{"
        for operation in self.block:
            yield from operation.lines(indent + "  ")
        yield f"{indent}}}"


Tree = tuple[Operation, ...]


def script(trees: Sequence[Tree]) -> str:
    """The script of several trees, numbered in their order."""
    lines = [line for number, tree in enumerate(trees) for line in Operation("tree", (number,), tree).lines()]
    return "\n".join(lines) + "\n"


def _operation(name: str, *numbers: SearchStrategy[int] | range | Sequence[int]) -> SearchStrategy[Operation]:
    drawn = [
        one if isinstance(one, SearchStrategy) else st.sampled_from(one) if len(one) < 40 else _between(one)
        for one in numbers
    ]
    return st.builds(lambda *values: Operation(name, values), *drawn)


def _between(numbers: Sequence[int]) -> SearchStrategy[int]:
    return st.integers(min(numbers), max(numbers))


_SLOT = range(20)
_SIGNAL, _UID = range(11), (-1, 0, 0, 33, 1000, 65534)
_BITS = range(16)

_FILES = (
    _operation("open", range(4), range(3), range(128), (0, 5, 4096, 9000), (0, 3, 5000)),
    _operation("odd_open", range(5), range(8)),
    _operation("special", range(14), range(8), range(2)),
    _operation("rename", range(4), range(5)),
    _operation("dup", _SLOT, (0, 0, 1, 50), range(2)),
    _operation("close", _SLOT),
    _operation("standard", _SLOT, range(3)),
    _operation("flags", _SLOT, _BITS, range(128)),
    _operation("write", _SLOT, range(1, 5000)),
    _operation("seek", _SLOT, (0, 1, 77, 5000)),
    _operation("lock", range(4), _SLOT, range(2), (0, 10, 100), (0, 5, 50)),
)
_PIPES = (
    _operation("pipe", (0, 2, 4, 6), (0, 0, 1, 3, 5), (0, 0, 5, 30), range(3)),
    _operation("fifo", range(3), range(15), _BITS),
    _operation("terminal", range(1), range(60), range(256), range(64)),
)
_OBJECTS = (
    _operation("eventfd", (0, 1, 7, 2000000000), range(8)),
    _operation("timerfd", range(3), (0, 2, 4, 6), (0, 5), range(4)),
    _operation("signalfd", range(64), (0, 2, 4, 6)),
    _operation("epoll", (0, 4), range(20), range(8), range(9)),
    _operation("inotify", (0, 2, 4, 6), _BITS, range(64)),
    _operation("pidfd", range(2), range(2)),
)
_SOCKETS = (
    _operation("socketpair", range(3), (0, 1, 2, 4, 5, 8, 9, 12, 13), (0, 1, 700, 3000), range(6)),
    _operation("unix", range(2), range(9), range(64), (0, 5, 900), range(6)),
    _operation("unix_datagram", range(9), range(32), (0, 9, 800)),
    _operation("option", st.integers(0, (1 << 30) - 1), _SLOT, (*range(9), 10)),
    _operation("tcp", range(2), range(64), st.integers(0, (1 << 30) - 1), (0, 10, 3000), range(6)),
    _operation("udp", range(2), _BITS, st.integers(0, (1 << 30) - 1), (0, 10, 500)),
    _operation("odd_socket", range(3), range(8)),
)
_MEMORY = (
    _operation("map", range(9), range(20), range(8), _BITS, range(50)),
    _operation("protect", _SLOT, range(8)),
    _operation("advise", _SLOT, range(12), range(2)),
    _operation("mlock", range(5), _SLOT),
    _operation("unmap", _SLOT),
    _operation("remap", _SLOT),
    _operation("label", _SLOT),
    _operation("brk", range(30)),
    _operation("memfd", range(2), range(4), (0, 100, 10000), (0, 0, 1, 2, 7, 15)),
    _operation("shm", range(2), range(6), range(8)),
    _operation("sem", range(4), range(6), range(9)),
    _operation("msg", range(2), range(90), range(9)),
)
_SIGNALS = (
    _operation("action", _SIGNAL, range(3), range(6), range(256)),
    _operation("pending", _SIGNAL, range(4), range(100)),
    _operation("altstack", range(2)),
    _operation("timer", range(8), range(9), range(8)),
)
_IDENTITY = (
    _operation("name", range(1000), range(15)),
    _operation("uid", _UID, _UID, _UID, (0, 0, 1234)),
    _operation("gid", _UID, _UID, _UID, range(40)),
    _operation("caps", range(5), st.integers(0, (1 << 32) - 1)),
    _operation("prctl", range(11), range(100)),
    _operation("priority", range(8), range(2000)),
    _operation("rlimit", range(10), range(3)),
    _operation("seccomp", range(3), range(2)),
    _operation("setsid"),
    _operation("setpgid", range(2)),
    _operation("cwd", range(2)),
    _operation("zombie", range(2), range(250)),
    _operation("thread", range(9), _BITS),
)
_LAST = (_operation("stop", range(2)), _operation("chroot", range(2)))
_FAMILIES = (_FILES, _PIPES, _OBJECTS, _SOCKETS, _MEMORY, _SIGNALS, _IDENTITY)
_CHILDREN = ("fork", "fork", "fork", "fork", "daemon", "leaderless", "exec")
_DEPTH = 2
_TREES_OF_A_SEED = 1000


@st.composite
def _process(draw: st.DrawFn, depth: int = _DEPTH) -> Tree:
    """What one process does: resources, children between them, and at the end what would be in the way."""
    operations: list[Operation] = []
    # (The choices are drawn one after the other: `one_of` would make all operations of all families alike.)
    for _ in range(draw(st.integers(1, 9))):
        if depth and draw(st.integers(0, 5)) == 0:
            name, way = draw(st.sampled_from(_CHILDREN)), draw(st.integers(0, 3))
            operations.append(Operation(name, (way,), draw(_process(depth - 1))))
        else:
            family = draw(st.sampled_from(_FAMILIES))
            operations.append(draw(draw(st.sampled_from(family))))
    if depth < _DEPTH and draw(st.integers(0, 9)) == 0:
        operations.append(draw(draw(st.sampled_from(_LAST))))
    return tuple(operations)


def random_trees(count: int, number: int) -> list[Tree]:
    """Trees by a seed: the same ones each time."""
    return [_random_tree(number * _TREES_OF_A_SEED + turn) for turn in range(count)]


def _random_tree(number: int) -> Tree:
    """The second example of a run: the first one is the simplest, and later ones are mostly copies of earlier
    ones with another number in them."""
    trees: list[Tree] = []

    @seed(number)
    @settings(
        max_examples=2,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_process())
    def collect(tree: Tree) -> None:
        trees.append(tree)

    collect()
    return trees[1]
