"""Facts: what was observed of the live side at a checkpoint (processes, ports, shell) while the tree stood
still.

Files show what changed on disk; facts hold what no file shows. They are stored beside the images without
redaction (memory images hold the same and more); everything that is shown of them is redacted first.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from waypoint.api.difference import LiveDifference, PortFact, PortMove, ProcessFact, Restart
from waypoint.history.shell import ShellFact, compare_settings, compare_variables
from waypoint.model import Record


class Facts(Record, frozen=True):
    """What was observed of one session at one moment."""

    processes: tuple[ProcessFact, ...] = ()
    ports: tuple[PortFact, ...] = ()
    shell: ShellFact = msgspec.field(default_factory=ShellFact)

    @property
    def memory_bytes(self) -> int:
        return sum(process.rss_bytes for process in self.processes)


OWN_SHELL = "/dev/waypoint/bin/integration.bash"
_TITLE = re.compile(r"([\w.-]+): ")
"""The beginning of a command line that a program writes anew while it runs: `nginx: worker process`."""
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "fish", "ksh", "mksh", "busybox"})


def compare_facts(old: Facts, new: Facts) -> LiveDifference:
    """From `old` to `new`. The session's own shell is always there and is left out."""
    kept, ended, started = _match(_programs(old), _programs(new))
    restarted, ended, started = _restarts(ended, started, new.ports)
    ports_before = {(p.protocol, p.address, p.port): p for p in old.ports}
    ports_after = {(p.protocol, p.address, p.port): p for p in new.ports}
    same = {(before.pid, after.pid) for before, after in kept}
    same |= {(restart.before.pid, restart.after.pid) for restart in restarted}
    return LiveDifference(
        started=tuple(started),
        ended=tuple(ended),
        restarted=tuple(restarted),
        stopped=tuple(after for before, after in kept if after.stopped and not before.stopped),
        continued=tuple(after for before, after in kept if before.stopped and not after.stopped),
        kept=len(kept),
        opened=tuple(p for key, p in ports_after.items() if key not in ports_before),
        closed=tuple(p for key, p in ports_before.items() if key not in ports_after),
        moved=tuple(_moves(ports_before, ports_after, same)),
        cwd=(old.shell.cwd, new.shell.cwd) if old.shell.cwd != new.shell.cwd else None,
        variables=compare_variables(old.shell, new.shell),
        functions_added=tuple(sorted(set(new.shell.functions) - set(old.shell.functions))),
        functions_removed=tuple(sorted(set(old.shell.functions) - set(new.shell.functions))),
        settings=compare_settings(old.shell, new.shell),
        memory_bytes=(old.memory_bytes, new.memory_bytes),
    )


def _programs(facts: Facts) -> list[ProcessFact]:
    return [process for process in facts.processes if OWN_SHELL not in process.command]


_Pairs = list[tuple[ProcessFact, ProcessFact]]


def _match(
    old: Sequence[ProcessFact], new: Sequence[ProcessFact]
) -> tuple[_Pairs, list[ProcessFact], list[ProcessFact]]:
    """The processes that are there on both sides, those that are gone, and those that are new. A process is
    the same if its pid and its command are (both survive every restore), or its pid and the title that it
    gave itself."""
    kept: _Pairs = []
    left = {(process.pid, _identity(process)): process for process in old}
    started = []
    for process in new:
        before = left.pop((process.pid, _identity(process)), None)
        if before is None:
            started.append(process)
        else:
            kept.append((before, process))
    return kept, list(left.values()), started


def _identity(process: ProcessFact) -> str:
    title = _TITLE.match(process.command)
    return title[0] if title else process.command


def _restarts(
    ended: Iterable[ProcessFact], started: Iterable[ProcessFact], ports: Sequence[PortFact]
) -> tuple[list[Restart], list[ProcessFact], list[ProcessFact]]:
    """Each that ended with one that was started with the same command; then the rest of both."""
    waiting: dict[tuple[str, int], list[ProcessFact]] = defaultdict(list)
    for process in ended:
        waiting[_identity(process), process.uid].append(process)
    restarts, new = [], []
    for process in started:
        if former := waiting[_identity(process), process.uid]:
            numbers = tuple(sorted({port.port for port in ports if port.pid == process.pid}))
            restarts.append(Restart(before=former.pop(0), after=process, ports=numbers))
        else:
            new.append(process)
    return restarts, [process for group in waiting.values() for process in group], new


_Ports = dict[tuple[str, str, int], PortFact]


def _moves(old: _Ports, new: _Ports, same: set[tuple[int, int]]) -> Iterator[PortMove]:
    """Ports on which one process listened and another does now."""
    for key in old.keys() & new.keys():
        before, after = old[key], new[key]
        if before.pid is not None and after.pid is not None and (before.pid, after.pid) not in same:
            yield PortMove(before=before, after=after)


# ---- what is not known ---------------------------------------------------------------------------


def went_on(old: Facts, new: Facts) -> list[ProcessFact]:
    """Programs that are there on both sides: what changed in their memory shows nowhere."""
    return [after for _, after in _match(_programs(old), _programs(new))[0]]


def nested_shells(facts: Facts) -> list[ProcessFact]:
    """Shells inside the session's own that wait for commands: their variables and settings are not known."""
    return [process for process in _programs(facts) if _is_interactive_shell(process.command)]


def _is_interactive_shell(command: str) -> bool:
    """Whether it is a shell without a script to run."""
    words = command.split()
    if not words or posixpath.basename(words[0]).removeprefix("-") not in _SHELLS:
        return False
    if posixpath.basename(words[0]) == "busybox" and words[1:2] not in (["sh"], ["ash"]):
        return False
    arguments = iter(words[1:])
    for word in arguments:
        if word in ("--rcfile", "--init-file", "-o", "-O", "+O"):
            next(arguments, None)
        elif word.startswith("--"):
            continue
        elif word.startswith("-"):
            if "c" in word:
                return False
        elif not word.startswith("+") and word not in ("sh", "ash"):
            return False
    return True
