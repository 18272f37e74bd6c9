"""What may differ after a restore: each kind with the reason. All of it is said in docs/limits.md, or by the
coverage of the point."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tests.fingerprint.facts import Fact

from waypoint.kernel import userns

_TIMES = ("atime", "dtime", "ctime", "otime", "stime", "rtime")
_ALWAYS: dict[str, str] = {
    "start time": "the process is a new one for the kernel",
    "st_dev": "the root of each box is a file system of its own",
    "inode without a name": "such a file is made again",
    "time of change without a name": "such a file is made again",
    "forked without exec": "CRIU forks what had executed a program",
    "unread watch events": "the kernel takes none back; the coverage names the process",
    "datagrams": "UDP datagrams are not saved; the coverage names the process",
    "unread datagrams": "UDP datagrams are not saved; the coverage names the process",
    "senders": "a datagram that waits to be read has lost its sender",
    "personality": "only the process can set it; the coverage names it",
    "answer: personality": "only the process can set it; the coverage names it",
    "answer: merged memory": "only the process can set it, and none else can see it",
    "answer: write or execute": "only the process can set it, and none else can see it",
    "answer: time stamp counter": "only the process can set it, and none else can see it",
    "TCP_WINDOW_CLAMP": "the kernel computes it anew",
    "terminal's exclusive": "TIOCEXCL is not saved",
    "terminal's unread": "what waits in a terminal inside the session may change",
    "shares its undo list with its parent": "SEM_UNDO is not saved; the coverage names the process",
    **{
        f"System V {name}": "CRIU makes the object"
        for name in (
            "creator",
            "atime",
            "dtime",
            "ctime",
            "otime",
            "stime",
            "rtime",
            "cpid",
            "lpid",
            "lspid",
            "lrpid",
        )
    },
}
_RENAMED = "a file that lost its name to another one had a name of CRIU's for a moment"
_UNLOCKED = "memory of a program's own that mlockall locked may not be locked any more"
_SIGCHLD_HANDLED = 1 << 16
_HARMLESS_SIGNALS = 0xF << 18 | 1 << 28
"""Those that stop a process, and SIGIO."""
_IN_ONESHOT = 0x80000000
_LOST_FLAGS = 0o20200000
_DATAGRAM, _TCP_CLOSE, _TCP_LISTEN, _YES = "02000000", "7", "10", "01000000"


def reason(fact: Fact, before: str | None, after: str | None, facts: Mapping[Fact, str]) -> str | None:
    """Why this difference is no defect, or None."""
    if fact.kind in _ALWAYS:
        return _ALWAYS[fact.kind]
    if fact.kind == "another home" and "visible" not in (before, after):
        return "homes of the machine come and go, and each is hidden"
    one, other = before or "", after or ""
    return (
        _of_process(fact, one, other, facts)
        or _of_memory(fact.kind, one, other)
        or _of_parents(fact, facts)
        or _of_threads(fact, facts)
        or _of_descriptor(fact, one, other, facts)
        or _of_socket(fact, other, facts)
    )


def _of_process(fact: Fact, one: str, other: str, facts: Mapping[Fact, str]) -> str | None:
    match fact.kind:
        case "owner of /proc" if one == str(userns.FIRST_ID) and other == "0":
            return "memory that CRIU made is not of the box's user namespace, where no process may read it"
        case "exe" if one.startswith("/memfd:"):
            return "a program in a memfd is saved as a file without a name"
        case "exe" if _without_suffix(one) == _without_suffix(other):
            return _RENAMED
        case "NSsid" | "NSpgid" if facts.get(Fact("State", fact.place), "").startswith("Z"):
            return "a zombie without its session's leader is in its parent's session; the coverage names it"
        case "terminal" if facts.get(Fact("State", fact.place), "").startswith("Z"):
            return "a zombie is in the session that its parent had first, and may have its terminal"
        case "exit code" if one == "0" and facts.get(Fact("State", fact.place), "").startswith("T"):
            return "the parent of a stopped process is told once more that it has stopped"
        case "ShdPnd" if one and other and not (int(one, 16) ^ int(other, 16)) & ~_HARMLESS_SIGNALS:
            if facts.get(Fact("State", fact.place), "").startswith("T"):
                return "a stopped process has one more stop signal, which SIGCONT takes back, or SIGIO"
    return None


def _of_memory(kind: str, one: str, other: str) -> str | None:
    gone, new = set(one.split()) - set(other.split()), set(other.split()) - set(one.split())
    match kind:
        case "mapping" if _without_suffix(one) == _without_suffix(other):
            return _RENAMED
        case "mapping" if one == other.replace("/memfd:/dev/zero", "/dev/zero"):
            return "shared memory of /dev/zero has another name"
        case "mapping" if one.partition("SYSV")[0] == other.partition("SYSV")[0] and "SYSV" in other:
            return "System V shared memory that was removed has no key any more"
        case "mapping's flags" if gone == {"lf"} and not new:
            return "MLOCK_ONFAULT becomes mlock; the coverage names the process"
        case "mapping's flags" if gone and gone <= {"lo", "lf"} and not new:
            return _UNLOCKED
        case "mapping's flags" if gone | new == {"nr"}:
            return "whether the kernel reserves swap space for memory depends on its history"
        case "VmLck" if one and other and int(one.split(maxsplit=1)[0]) > int(other.split(maxsplit=1)[0]):
            return _UNLOCKED
        case "mapping's flags" if new == {"mw", "sh"} and gone <= {"lo", "lf"}:
            return "System V shared memory that is attached for reading could be made writable"
    return None


def _of_threads(fact: Fact, facts: Mapping[Fact, str]) -> str | None:
    pid = re.split("[:/]", fact.place)[0]
    is_stopped = facts.get(Fact("State", pid), "").startswith("T") and facts.get(Fact("Threads", pid)) != "1"
    if is_stopped and ("/" in fact.place or fact.kind == "private memory"):
        return "the threads of a stopped process may run for a moment"
    return None


def _of_parents(fact: Fact, facts: Mapping[Fact, str]) -> str | None:
    if fact.kind != "private memory":
        return None
    pid = fact.place.partition(":")[0]
    handles = int(facts.get(Fact("SigCgt", pid), "0"), 16) & _SIGCHLD_HANDLED
    children = [one.place for one, parent in facts.items() if one.kind == "parent" and parent == pid]
    if handles and any(facts.get(Fact("State", child), "").startswith("T") for child in children):
        return "its handler ran: the parent of a stopped process is told once more that it has stopped"
    return None


def _of_descriptor(fact: Fact, one: str, other: str, facts: Mapping[Fact, str]) -> str | None:
    match fact.kind:
        case "links" if one == "1" and other == "2":
            return "a file of the base that is open has one more link, in the overlay's index"
        case "descriptor" if _without_suffix(one) == _without_suffix(other):
            return _RENAMED
        case "descriptor's flags" if (
            one
            and facts.get(Fact("descriptor", fact.place), "").startswith("/dev/pt")
            and int(one, 8) & ~os.O_NOATIME == int(other or "0", 8)
        ):
            return "a terminal inside the session is opened without O_NOATIME"
        case "descriptor's flags" if one and other and int(one, 8) & ~_LOST_FLAGS == int(other, 8):
            return "a folder is opened without O_DIRECTORY, a file without a name without O_TMPFILE"
        case "file" if one.startswith("10") and _without_owner(one) == _without_owner(other):
            return "a pipe belongs to root"
        case "state" if _without_flags(one) == _without_flags(other):
            return "a timer set to a point in time goes on with the time that was left"
        case "watch" if _mask(one) & ~_IN_ONESHOT == _mask(other) != 0:
            return "a watch for one event becomes one for all; the coverage names the process"
        case "epoll member" if _is_closed_in_a_holder(fact, one or other, facts):
            return "an epoll watches by another descriptor of the same file; the coverage names the process"
    return None


def _is_closed_in_a_holder(fact: Fact, value: str, facts: Mapping[Fact, str]) -> bool:
    """Whether a process that has this epoll has closed the descriptor by which the epoll watches."""
    epoll = fact.place.partition(" ")[0]
    members = [one.place.split() for one, what in facts.items() if one.kind == fact.kind and what == value]
    numbers = {number for holder, number in members if holder == epoll}
    holders = {holder.partition(":")[0] for holder, number in members if number in numbers}
    return any(Fact("descriptor", f"{pid}:{number}") not in facts for pid in holders for number in numbers)


def _of_socket(fact: Fact, other: str, facts: Mapping[Fact, str]) -> str | None:
    is_datagram = facts.get(Fact("SO_TYPE", fact.place), "").startswith(_DATAGRAM)
    has_no_peer = facts.get(Fact("peer", fact.place)) == "none"
    match fact.kind:
        case "SO_PEERCRED user" | "SO_PEERCRED process" if is_datagram:
            return "a datagram socket has another peer than it had"
        case "SO_PEERCRED process" if facts.get(Fact("SO_ACCEPTCONN", fact.place)) == _YES:
            return (
                "the first of those that hold a listening socket has called listen(); the coverage names it"
            )
        case "SO_PEERCRED process" if other == "ended":
            return "a process of the same number made the connection, and has ended"
        case "peer's address" if is_datagram and has_no_peer:
            return "a datagram socket whose peer is closed is no longer connected"
        case "address" | "peer's address" if has_no_peer and other in ("", "b''"):
            return "a unix connection whose other end is closed has lost its names"
        case "unsent in a socket" if facts.get(Fact("TCP state", fact.place)) == _TCP_CLOSE:
            return "a connection that was reset does not know what it had not sent"
        case "IPV6_V6ONLY" | "TCP_FASTOPEN" if facts.get(Fact("TCP state", fact.place)) != _TCP_LISTEN:
            return "it means nothing for a connection"
    return None


def _without_suffix(path: str) -> str:
    return path.replace(".cr_link (deleted)", " (deleted)")


def _without_flags(state: str) -> str:
    text = re.sub("settime flags: 0[01]", "", state)
    # One that has expired, and whose next period begins when it is read (engine/images.py).
    return text if "ticks: 0" in text else text.replace("timer stands", "timer runs")


def _without_owner(file: str) -> list[str]:
    """Of a pipe: its mode, without its user and group."""
    return [word for index, word in enumerate(file.split()) if index not in (1, 2)]


def _mask(watch: str) -> int:
    return int(watch.split()[1], 16) if watch else 0
