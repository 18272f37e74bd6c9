"""The live side: processes and listening ports from /proc, the state of the shell from bash itself."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_OWN_COMMANDS = ("waypoint-keeper", "waypoint-anchor", "waypoint-inside")
_OWN_SHELL = "/dev/waypoint/bin/integration.bash"
_LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}


class ProcessFacts(NamedTuple):
    """A process, as the session numbers it."""

    pid: int
    parent: int
    """0 for what belongs to no process of the session."""
    command: str
    uid: int
    state: str
    started: int
    """Clock ticks since the machine started: another one is another process, except after a restore."""


class PortFacts(NamedTuple):
    """A socket that listens."""

    protocol: str
    address: str
    port: int
    pid: int | None


@dataclass(frozen=True)
class ShellFacts:
    """What bash says of itself."""

    cwd: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    """Each as bash declares it: `-x NAME="value"` without the name."""
    aliases: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    umask: str = ""
    options: dict[str, str] = field(default_factory=dict)
    traps: dict[str, str] = field(default_factory=dict)


def read_processes(keeper: int) -> dict[int, ProcessFacts]:
    """Every process of the session but for Waypoint's own and the session's shell."""
    space = os.readlink(f"/proc/{keeper}/ns/pid")
    numbers: dict[int, int] = {}
    found: dict[int, ProcessFacts] = {}
    stats = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == space:
                status = Path(f"/proc/{name}/status").read_text()
                inside = int(re.search(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]
                numbers[int(name)] = inside
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                stats[int(name)] = (stat, command, int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)[1]))  # type: ignore[index]
    own = {host for host, (stat, _, _) in stats.items() if stat[0].partition("(")[2].startswith("waypoint")}
    for host, (stat, command, uid) in stats.items():
        fields = stat[2].split()
        state, parent, started = fields[0], int(fields[1]), int(fields[19])
        comm = stat[0].partition("(")[2]
        shown = b" ".join(command.rstrip(b"\0").split(b"\0")).decode(errors="replace") or f"[{comm}]"
        is_own = comm.startswith("waypoint") or shown.startswith(_OWN_COMMANDS) or _OWN_SHELL in shown
        if state != "Z" and not is_own:
            pid, above = numbers[host], 0 if parent in own else numbers.get(parent, 0)
            found[pid] = ProcessFacts(pid, above, shown, uid, state, started)
    return found


def read_ports(keeper: int) -> set[PortFacts]:
    """Every listening TCP socket and every bound, unconnected UDP socket of the session's network."""
    space = os.readlink(f"/proc/{keeper}/ns/pid")
    owners: dict[str, int] = {}
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") != space:
                continue
            status = Path(f"/proc/{name}/status").read_text()
            inside = int(re.search(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{fd}")
                    if target.startswith("socket:["):
                        owners.setdefault(target[8:-1], inside)
    ports = set()
    for table, state in _LISTENING.items():
        for line in Path(f"/proc/{keeper}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state:
                address, _, port = words[1].partition(":")
                ports.add(PortFacts(table, _address(address), int(port, 16), owners.get(words[9])))
    return ports


def _address(digits: str) -> str:
    words = [int(digits[index : index + 8], 16) for index in range(0, len(digits), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


_SCRIPT = r"""(builtin printf '%s\036' "$PWD"; builtin declare -p; builtin printf '\036'; builtin alias -p
builtin printf '\036'; builtin declare -f; builtin printf '\036'; builtin umask; builtin printf '\036'
builtin shopt -p; builtin set +o; builtin printf '\036'; builtin trap -p)"""
_DECLARED = re.compile(r"^declare (-\S+) (\w+)(?:=(.*))?$", re.DOTALL)
_NEXT = re.compile(r"\n(?=declare -\S+ \w)")
_ALIAS = re.compile(r"^alias (?:-- )?([^=]+)=(.*?)\n(?=alias |\Z)", re.DOTALL | re.MULTILINE)
_VOLATILE = re.compile(
    r"^(_|BASH_.*|BASHOPTS|BASHPID|COLUMNS|COMP_WORDBREAKS|DIRSTACK|EPOCH.*|FUNCNAME|GROUPS|HISTCMD|HISTIGNORE"
    r"|LINENO|LINES|OLDPWD|PIPESTATUS|PPID|PROMPT_COMMAND|PS[01]|PWD|RANDOM|READLINE_.*|SECONDS|SHELLOPTS|SHLVL"
    r"|SRANDOM|WAYPOINT_SESSION|__waypoint_.*)$"
)
"""Variables that bash or Waypoint sets by itself."""


def read_shell(run: Callable[[str], str]) -> ShellFacts:
    """`run` runs a command in the session's shell and returns what it prints."""
    parts = run(_SCRIPT).replace("\r\n", "\n").split("\036")
    cwd, declared, aliases, functions, umask, options, traps = (part.strip("\n") for part in parts)
    variables = {}
    for entry in _NEXT.split(declared):
        if (match := _DECLARED.match(entry)) and not _VOLATILE.match(match[2]):
            variables[match[2]] = f"{match[1]} {match[3] if match[3] is not None else ''}".rstrip("\n")
    bodies = {}
    for body in re.split(r"\n(?=[^\s{}][^\n]* \(\) ?\n)", functions):
        name = body.partition(" ()")[0]
        if name and not name.startswith("__waypoint"):
            bodies[name] = body
    return ShellFacts(
        cwd=cwd,
        variables=variables,
        aliases=dict(_ALIAS.findall(f"{aliases}\n")),
        functions=bodies,
        umask=umask,
        options={line.rpartition(" ")[2]: line.rpartition(" ")[0] for line in options.splitlines()},
        traps={entry.rpartition(" ")[2]: entry for entry in re.split(r"\n(?=trap -- )", traps) if entry},
    )
