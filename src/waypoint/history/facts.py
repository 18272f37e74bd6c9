"""Facts: what was observed of the live side at a checkpoint (processes, ports, shell) while the tree stood
still.

Files show what changed on disk; facts hold what no file shows. They are stored beside the images without
redaction (memory images hold the same and more); everything that is shown of them is redacted first.
"""

from __future__ import annotations

import re
import shlex

import msgspec

from waypoint.api.difference import LiveDifference, PortFact, ProcessFact, VariableChange
from waypoint.model import Record


class ShellFact(Record, frozen=True):
    """The shell as it was at its last prompt."""

    cwd: str = "/"
    exported: dict[str, str] = msgspec.field(default_factory=dict)
    functions: tuple[str, ...] = ()
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    foreground: str | None = None


class Facts(Record, frozen=True):
    """What was observed of one session at one moment."""

    processes: tuple[ProcessFact, ...] = ()
    ports: tuple[PortFact, ...] = ()
    shell: ShellFact = msgspec.field(default_factory=ShellFact)

    @property
    def memory_bytes(self) -> int:
        return sum(process.rss_bytes for process in self.processes)


_EXPORT = re.compile(r"^declare -[a-z]*x[a-z]* ([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?$", re.DOTALL)
_FUNCTION = re.compile(r"^declare -f[a-z]* (\S+)$")
_ALIAS = re.compile(r"^alias (?:-- )?([^=]+)=(.*)$", re.DOTALL)
_START = re.compile(r"^(?=declare -[a-zA-Z-]+ |alias )", re.MULTILINE)


def _value(quoted: str) -> str:
    """A word as bash quotes it in its own listings."""
    if quoted.startswith("$'") and quoted.endswith("'"):
        return quoted[2:-1].encode().decode("unicode_escape", errors="replace")
    if len(quoted) >= 2 and quoted[0] == quoted[-1] == '"':
        return re.sub(r'\\([$`"\\])', r"\1", quoted[1:-1])
    try:
        return " ".join(shlex.split(quoted))
    except ValueError:
        return quoted


def parse_shell(text: str, cwd: str, foreground: str | None) -> ShellFact:
    """Reads what shell/integration.bash writes at each prompt. Best effort: a value that contains a line
    which looks like a declaration is cut there."""
    exported: dict[str, str] = {}
    functions: list[str] = []
    aliases: dict[str, str] = {}
    for part in _START.split(text):
        entry = part.rstrip("\n")
        if match := _FUNCTION.match(entry):
            functions.append(match[1])
        elif match := _EXPORT.match(entry):
            exported[match[1]] = _value(match[2] or '""')
        elif match := _ALIAS.match(entry):
            aliases[match[1]] = _value(match[2])
    own = tuple(sorted(name for name in functions if not name.startswith("__waypoint_")))
    return ShellFact(cwd=cwd, exported=exported, functions=own, aliases=aliases, foreground=foreground)


OWN_SHELL = "/dev/waypoint/bin/integration.bash"
_IGNORED_VARIABLES = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})
"""Variables that the shell changes by itself."""


def compare_facts(old: Facts, new: Facts) -> LiveDifference:
    """From `old` to `new`. A process is the same if its pid and its command are: both survive every restore.
    The session's own shell is always there and is left out."""
    before = {(p.pid, p.command): p for p in old.processes if OWN_SHELL not in p.command}
    after = {(p.pid, p.command): p for p in new.processes if OWN_SHELL not in p.command}
    ports_before = {(p.protocol, p.address, p.port): p for p in old.ports}
    ports_after = {(p.protocol, p.address, p.port): p for p in new.ports}
    names = sorted((old.shell.exported.keys() | new.shell.exported.keys()) - _IGNORED_VARIABLES)
    variables = tuple(
        VariableChange(name=name, before=old.shell.exported.get(name), after=new.shell.exported.get(name))
        for name in names
        if old.shell.exported.get(name) != new.shell.exported.get(name)
    )
    return LiveDifference(
        started=tuple(p for key, p in after.items() if key not in before),
        ended=tuple(p for key, p in before.items() if key not in after),
        kept=len(before.keys() & after.keys()),
        opened=tuple(p for key, p in ports_after.items() if key not in ports_before),
        closed=tuple(p for key, p in ports_before.items() if key not in ports_after),
        cwd=(old.shell.cwd, new.shell.cwd) if old.shell.cwd != new.shell.cwd else None,
        variables=variables,
        functions_added=tuple(sorted(set(new.shell.functions) - set(old.shell.functions))),
        functions_removed=tuple(sorted(set(old.shell.functions) - set(new.shell.functions))),
        memory_bytes=(old.memory_bytes, new.memory_bytes),
    )
