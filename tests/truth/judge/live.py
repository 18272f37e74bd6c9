"""The live side: processes, ports, the shell."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.oracle.live import PortFacts, ProcessFacts, ShellFacts
from tests.truth.oracle.look import Look

MASK = "[redacted]"
_QUOTED = re.compile(r'\\([$`"\\\n])')


def same_text(told: str, real: str) -> bool:
    """Whether a text is told as it is, but for parts that were taken out as secrets."""
    if MASK not in told:
        return told == real
    return re.fullmatch(".*".join(map(re.escape, told.split(MASK))), real, re.DOTALL) is not None


_SHELLS = re.compile(r"^-?(?:\S*/)?(?:ba|da|z)?sh(?: -\S+)*$")


def judge_nested(ledger: Ledger, new: Look, gaps: Sequence[str]) -> None:
    """What a shell inside the session's own knows cannot be told, which has to be said."""
    nested = {process.pid for process in new.processes.values() if _SHELLS.match(process.command)}
    told = {
        int(match[1]) for gap in gaps if (match := re.search(r"\(pid (\d+)\) runs inside the session's", gap))
    }
    ledger.count("shell", len(nested))
    for pid in nested - told:
        ledger.missing("shell", f"nothing says that the shell with the pid {pid} was not asked")
    for pid in told - nested:
        ledger.wrong("shell", f"there is no shell with the pid {pid}")


def judge_live(ledger: Ledger, old: Look, new: Look, live: Mapping[str, Any]) -> None:
    """Processes, ports and the shell, and what of them is not told."""
    known = ("started", "ended", "restarted", "stopped", "continued", "kept", "opened", "closed", "moved")
    shell = ("cwd", "variables", "functions_added", "functions_removed", "settings")
    ledger.known("shell", live, (*known, *shell, "memory_bytes"))
    _judge_processes(ledger, old, new, live)
    _judge_ports(ledger, old, new, live)
    _judge_shell(ledger, old, new, live)


_Processes = dict[tuple[int, str], ProcessFacts]


def _judge_processes(ledger: Ledger, old: Look, new: Look, live: Mapping[str, Any]) -> None:
    before: _Processes = {(process.pid, process.command): process for process in old.processes.values()}
    after: _Processes = {(process.pid, process.command): process for process in new.processes.values()}
    gone, come = before.keys() - after.keys(), after.keys() - before.keys()
    restarted = {"started": set[tuple[int, str]](), "ended": set[tuple[int, str]]()}
    for statement in live["restarted"]:
        ledger.known("processes", statement, ("before", "after", "ports"))
        was = _judge_process(ledger, "restarted", statement["before"], before)
        now = _judge_process(ledger, "restarted", statement["after"], after)
        if was is None or now is None:
            continue
        restarted["ended"].add((was.pid, was.command))
        restarted["started"].add((now.pid, now.command))
        if was.command != now.command or (was.pid, was.command) not in gone:
            ledger.wrong("processes", f"restarted: {was.command} → {now.command}")
        ports = sorted({port.port for port in new.ports if port.pid == now.pid})
        ledger.equal("processes", f"restarted {now.command} ports", sorted(statement["ports"]), ports)
    commands = {name: Counter[str]() for name in ("started", "ended")}
    for name, here, real in (("started", after, come), ("ended", before, gone)):
        told = restarted[name]
        for statement in live[name]:
            process = _judge_process(ledger, name, statement, here)
            if process is None:
                continue
            key = process.pid, process.command
            commands[name][process.command] += 1
            if key not in real or key in told:
                ledger.wrong("processes", f"{name}: {process.command} was and is there")
            told = {*told, key}
        for key in real - told:
            ledger.missing("processes", f"{name}: {key[1]}")
    for command in commands["started"] & commands["ended"]:
        ledger.misleading("processes", f"{command} was restarted, told as an end and a start")
    kept = before.keys() & after.keys()
    was_stopped = {key for key in kept if before[key].state == "T"}
    is_stopped = {key for key in kept if after[key].state == "T"}
    for name, real_ones in (("stopped", is_stopped - was_stopped), ("continued", was_stopped - is_stopped)):
        for statement in live[name]:
            process = _judge_process(ledger, name, statement, after)
            if process and (process.pid, process.command) not in real_ones:
                ledger.wrong("processes", f"{name}: {process.command}")
        if len(live[name]) < len(real_ones):
            ledger.missing("processes", f"{name}: {real_ones}")
    ledger.count("processes")
    ledger.equal("processes", "kept", live["kept"], len(kept))


def _judge_process(
    ledger: Ledger, name: str, statement: Mapping[str, Any], processes: _Processes
) -> ProcessFacts | None:
    """The process that a statement is about, if there is one; everything said of it is compared."""
    ledger.count("processes")
    ledger.known("processes", statement, ("pid", "parent", "command", "uid", "rss_bytes", "stopped"))
    real = _find_process(statement, processes)
    if real is None:
        ledger.wrong("processes", f"{name}: there is no {statement['pid']} {statement['command']}")
        return None
    ledger.equal("processes", f"{real.command} uid", statement["uid"], real.uid)
    ledger.equal("processes", f"{real.command} stopped", statement["stopped"], real.state == "T")
    ledger.equal("processes", f"{real.command} parent", statement["parent"], real.parent)
    return real


def _find_process(
    statement: Mapping[str, Any], processes: Mapping[tuple[int, str], ProcessFacts]
) -> ProcessFacts | None:
    for (pid, command), process in processes.items():
        if pid == statement["pid"] and same_text(statement["command"], command):
            return process
    return None


_PORT = ("protocol", "address", "port", "pid", "command")


def _judge_ports(ledger: Ledger, old: Look, new: Look, live: Mapping[str, Any]) -> None:
    def places(ports: set[PortFacts]) -> dict[tuple[str, str, int], PortFacts]:
        return {(port.protocol, port.address, port.port): port for port in ports}

    before, after = places(old.ports), places(new.ports)

    def judge(name: str, statement: Mapping[str, Any], look: Look) -> tuple[str, str, int]:
        here = before if look is old else after
        ledger.count("ports")
        ledger.known("ports", statement, _PORT)
        key = statement["protocol"], statement["address"], statement["port"]
        if key not in here:
            ledger.wrong("ports", f"{name}: {key}")
            return key
        ledger.equal("ports", f"{key} pid", statement["pid"], here[key].pid)
        owner = look.processes.get(here[key].pid or 0)
        if owner and not same_text(statement["command"] or "", owner.command):
            ledger.wrong("ports", f"{key} is {owner.command}, told {statement['command']}")
        return key

    for name, here, there, look in (("opened", after, before, new), ("closed", before, after, old)):
        told = {judge(name, statement, look) for statement in live[name]}
        for key in told & there.keys():
            ledger.wrong("ports", f"{name}: {key} was and is open")
        for key in here.keys() - there.keys() - told:
            ledger.missing("ports", f"{name}: {key}")
    moved = set()
    for statement in live["moved"]:
        ledger.known("ports", statement, ("before", "after"))
        key = judge("moved", statement["before"], old)
        moved.add(key)
        if judge("moved", statement["after"], new) != key:
            ledger.wrong("ports", f"moved: {key} is another port now")
        if key in before and key in after and before[key].pid == after[key].pid:
            ledger.wrong("ports", f"moved: {key}")
    same = {(one["before"]["pid"], one["after"]["pid"]) for one in live["restarted"]}
    for key in before.keys() & after.keys() - moved:
        pids = before[key].pid, after[key].pid
        commands = [
            look.processes[pid].command if pid in look.processes else ""
            for look, pid in zip((old, new), pids, strict=True)
        ]
        if (pids[0] != pids[1] or commands[0] != commands[1]) and pids not in same:
            ledger.missing("ports", f"moved: {key} {commands}")


# ---- the shell -----------------------------------------------------------------------------------

_ATTRIBUTES = {
    "x": "exported",
    "r": "read-only",
    "a": "an array",
    "A": "an associative array",
    "i": "an integer",
}


def _judge_shell(ledger: Ledger, old: Look, new: Look, live: Mapping[str, Any]) -> None:
    before, after = old.shell, new.shell
    if cwd := live["cwd"]:
        ledger.count("shell")
        ledger.equal("shell", "cwd", list(cwd), [before.cwd, after.cwd])
    elif before.cwd != after.cwd:
        ledger.missing("shell", f"cwd {before.cwd} → {after.cwd}")
    told = {_judge_variable(ledger, before, after, statement) for statement in live["variables"]}
    for name in before.variables.keys() | after.variables.keys():
        was, now = before.variables.get(name), after.variables.get(name)
        if was != now and name not in told and not name.startswith("_"):
            ledger.missing("shell", f"variable {name}: {was} → {now}")
    _judge_names(ledger, "functions_added", live, set(after.functions) - set(before.functions))
    _judge_names(ledger, "functions_removed", live, set(before.functions) - set(after.functions))
    _judge_settings(ledger, before, after, live["settings"])


def _judge_variable(
    ledger: Ledger, before: ShellFacts, after: ShellFacts, statement: Mapping[str, Any]
) -> str:
    ledger.count("shell")
    ledger.known("shell", statement, ("name", "before", "after", "exported", "became", "no_longer"))
    name = str(statement["name"])
    was, now = before.variables.get(name), after.variables.get(name)
    for side, declared in (("before", was), ("after", now)):
        said, real = statement[side], value(declared)
        if (said is None) != (real is None) or (
            said is not None and real is not None and not same_text(said, real)
        ):
            ledger.wrong("shell", f"{name} {side}: told {said!r}, is {real!r}")
    if was == now:
        ledger.wrong("shell", f"{name} has not changed")
    flags_before, flags_after = _flags(was), _flags(now)
    ledger.equal(
        "shell", f"{name} exported", statement["exported"], "x" in (flags_after if now else flags_before)
    )
    both = was is not None and now is not None
    for field, flags in (("became", flags_after - flags_before), ("no_longer", flags_before - flags_after)):
        real_words = {_ATTRIBUTES.get(flag, flag) for flag in flags} if both else set()
        ledger.equal("shell", f"{name} {field}", set(statement[field]), real_words)
    return name


def _flags(declared: str | None) -> set[str]:
    return set() if declared is None else set(declared.partition(" ")[0].replace("-", ""))


def _judge_names(ledger: Ledger, field: str, live: Mapping[str, Sequence[str]], real: set[str]) -> None:
    ledger.count("shell", len(live[field]))
    for name in set(live[field]) - real:
        ledger.wrong("shell", f"{field}: {name}")
    for name in real - set(live[field]):
        ledger.missing("shell", f"{field}: {name}")


def _judge_settings(
    ledger: Ledger, before: ShellFacts, after: ShellFacts, statements: Sequence[Mapping[str, Any]]
) -> None:
    """Aliases, bodies of functions, options, the mask, traps."""
    bodies = {name: body for name, body in before.functions.items() if name in after.functions}
    sides: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        "alias": (_unquoted(before.aliases), _unquoted(after.aliases)),
        "function": (bodies, {name: after.functions[name] for name in bodies}),
        "option": (_on(before.options), _on(after.options)),
        "umask": ({"umask": before.umask}, {"umask": after.umask}),
        "trap": (_commands(before.traps), _commands(after.traps)),
    }
    told = set()
    for statement in statements:
        ledger.count("shell")
        ledger.known("shell", statement, ("kind", "name", "before", "after"))
        kind, name = statement["kind"], statement["name"]
        told.add((kind, name))
        was, now = (side.get(name) for side in sides[kind])
        if was == now:
            ledger.wrong("shell", f"{kind} {name} has not changed")
        if kind != "function":
            said = statement["before"], statement["after"]
            for told_value, real in zip(said, (was, now), strict=True):
                if (told_value is None) != (real is None) or not same_text(told_value or "", real or ""):
                    ledger.wrong("shell", f"{kind} {name}: told {told_value!r}, is {real!r}")
    for kind, (one, other) in sides.items():
        for name in one.keys() | other.keys():
            if one.get(name) != other.get(name) and (kind, name) not in told:
                ledger.missing("shell", f"{kind} {name}")


def _unquoted(aliases: Mapping[str, str]) -> dict[str, str]:
    return {name: " ".join(shlex.split(text)) for name, text in aliases.items()}


def _on(options: Mapping[str, str]) -> dict[str, str]:
    return {name: "on" for name, way in options.items() if way in ("shopt -s", "set -o")}


def _commands(traps: Mapping[str, str]) -> dict[str, str]:
    return {name: shlex.split(text)[2] for name, text in traps.items()}


def value(declared: str | None) -> str | None:
    """The value of a variable as `declare -p` writes it; arrays stay as they are written."""
    if declared is None:
        return None
    _, _, quoted = declared.partition(" ")
    if quoted.startswith("$'") and quoted.endswith("'"):
        return quoted[2:-1].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
    if len(quoted) >= 2 and quoted[0] == quoted[-1] == '"':
        return _QUOTED.sub(r"\1", quoted[1:-1])
    return quoted
