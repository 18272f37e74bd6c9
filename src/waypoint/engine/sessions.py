"""Processes whose session leader is none of their ancestors.

A session is inherited at fork, and only its leader can create it. CRIU restores a session by forking its
members from the leader, or from an ancestor before that calls setsid(); for children of the anchor it makes
up for a leader that has ended. More shapes come from subreapers (PR_SET_CHILD_SUBREAPER), which adopt what a
program leaves behind:

- the leader lives (or is a zombie) beside its members, below the same parent;
- the leader has ended, and its members are below one parent;
- so are they, the anchor is the parent, and one of their descendants has called setsid() after it had a
  child. (CRIU overlooks what is below a leader that it makes up for.)

For these the images show CRIU another tree, in which it finds its way, and native/shim.c has the kernel
make the real one: a member is forked by the leader, but for the leader's parent; a leader that has ended is
made once more for a moment, and forks the first member. Everything else cannot be restored. (A process that
has ended and is not waited for gets the session of its parent: CRIU cannot have it die below another one.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waypoint.engine.images import Birth, DeadSession, Sessions, encode, fields

MAX_BIRTHS = 128
"""MAX_BIRTHS in native/shim.c"""
_PID, _PPID, _PGID, _SID = 1, 2, 3, 4  # pstree_entry
_ID_FIELDS = (1, 2, 3, 4)  # task_kobj_ids_entry: vm_id, files_id, fs_id, sighand_id
_UNUSED_ID = 1_000_000
"""Object ids from here are not CRIU's."""

NO_LEADER = "the leader of its session ({session}) is neither above nor beside it"
SCATTERED = "its session ({session}) has lost its leader, and its processes have different parents"
TWO_SESSIONS = "it and another process were started by a process that has changed its session twice"
TOO_MANY = f"it is one of more than {MAX_BIRTHS} processes whose session leader is none of their ancestors"


@dataclass
class Member:
    """A process as CRIU is to see it."""

    pid: int
    parent: int
    group: int
    session: int
    is_zombie: bool = False


@dataclass
class Plan:
    births: list[Birth] = field(default_factory=list)
    dead: list[DeadSession] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    """Zombies that get the session of their parent."""
    refused: dict[int, str] = field(default_factory=dict)
    """The processes that cannot be restored, and why."""


def plan(tree: Sequence[Member]) -> Plan:
    """How the sessions of a tree are made again; the members become what CRIU is to see. The anchor is the
    first, parents are before their children, and the anchor leads its own session."""
    result = Plan()
    by_pid = {member.pid: member for member in tree}
    astray = [member for member in tree[1:] if _path_to_leader(member, tree[0], by_pid) is None]
    for member in [member for member in astray if member.is_zombie]:
        parent = by_pid[member.parent]
        member.session = parent.session
        member.group = member.pid if member.group == member.pid else parent.group
        result.moved.append(member.pid)
        astray.remove(member)
    for session in dict.fromkeys(member.session for member in astray):
        members = [member for member in astray if member.session == session]
        if session in by_pid:
            _join_leader(members, by_pid[session], result)
        else:
            _revive_leader(members, tree, by_pid, result)
    if len(result.births) > MAX_BIRTHS:
        result.refused[result.births[-1].pid] = TOO_MANY
    _check(tree, by_pid, result)
    return result


def _path_to_leader(member: Member, anchor: Member, by_pid: Mapping[int, Member]) -> list[Member] | None:
    """The processes between one and the leader of its session, as CRIU looks for it; None when it finds none.
    Those on the path have to fork before they call setsid()."""
    parent = by_pid[member.parent]
    if member.session in (member.pid, parent.session) or parent is anchor:
        return []
    path = []
    while parent.pid != member.session:
        if parent is anchor:
            return None
        path.append(parent)
        parent = by_pid[parent.parent]
    return path


def _join_leader(members: Sequence[Member], leader: Member, result: Plan) -> None:
    """The leader forks those beside it, for its own parent."""
    for member in members:
        if member.parent == leader.parent:
            result.births.append(Birth(pid=member.pid, session=leader.pid))
            member.parent = leader.pid
        else:
            result.refused[member.pid] = NO_LEADER.format(session=leader.pid)


def _revive_leader(
    strays: Sequence[Member], tree: Sequence[Member], by_pid: Mapping[int, Member], result: Plan
) -> None:
    """The first of the topmost members is forked by a leader of their session that ends again, the others by
    the first. CRIU sees all members in the session of their parent."""
    session = strays[0].session
    members = [member for member in tree if member.session == session]
    topmost = [member for member in members if not _is_below(member, session, by_pid)]
    first = next((member for member in topmost if not member.is_zombie), topmost[0])
    parent = by_pid[first.parent]
    if any(member.parent != parent.pid for member in topmost):
        result.refused.update((member.pid, SCATTERED.format(session=session)) for member in strays)
        return
    result.births.append(Birth(pid=first.pid, session=session, dead=True))
    for member in topmost:
        if member is not first:
            result.births.append(Birth(pid=member.pid, session=session))
            member.parent = first.pid
    result.dead.append(DeadSession(session=session, shown_session=parent.session, shown_group=parent.group))
    for member in members:
        member.session = parent.session
        if member.group == session:
            member.group = parent.group


def _is_below(member: Member, session: int, by_pid: Mapping[int, Member]) -> bool:
    """Whether it descends from another member of its session."""
    while member.parent in by_pid:
        member = by_pid[member.parent]
        if member.session == session:
            return True
    return False


def _check(tree: Sequence[Member], by_pid: Mapping[int, Member], result: Plan) -> None:
    """Whether CRIU finds its way in what it is shown. A process can have been born in one session only."""
    born_in: dict[int, int] = {}
    for member in tree[1:]:
        if member.pid in result.refused:
            continue
        path = _path_to_leader(member, tree[0], by_pid)
        if path is None:
            result.refused[member.pid] = NO_LEADER.format(session=member.session)
        elif any(born_in.setdefault(one.pid, member.session) != member.session for one in path):
            result.refused[member.pid] = TWO_SESSIONS


# ---- the images ----------------------------------------------------------------------------------


def correct_images(images: Path) -> Sessions:
    """Has the images show what CRIU can restore. Returns what the shim has to know."""
    path = images / "pstree.img"
    data = path.read_bytes()
    entries = list(_read_entries(data))
    keepers = dict(entries[0])[_SID]
    anchor = dict(entries[0])[_PID]
    tree = []
    for entry in map(dict, entries):
        pid, parent, group, session = (int(entry[number]) for number in (_PID, _PPID, _PGID, _SID))
        # The anchor takes the place of the keeper, who leads its session and is not saved.
        tree.append(
            Member(
                pid=pid,
                parent=parent,
                group=group,
                session=int(anchor) if session == keepers else session,
                is_zombie=not (images / f"ids-{pid}.img").exists(),
            )
        )
    by_pid = dict(zip((member.pid for member in tree), entries, strict=True))
    result = plan(tree)
    for birth in result.births:
        _give_ids(images, birth)
    body = b""
    for member in _parents_first(tree):
        shown = {_PPID: member.parent, _PGID: member.group, _SID: member.session}
        message = b"".join(encode({number: shown.get(number, value)}) for number, value in by_pid[member.pid])
        body += struct.pack("<I", len(message)) + message
    path.write_bytes(data[:8] + body)
    return Sessions(births=tuple(result.births), dead=tuple(result.dead), moved=tuple(result.moved))


def _read_entries(data: bytes) -> Iterator[list[tuple[int, int | bytes]]]:
    at = 8
    while at + 4 <= len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        yield list(fields(data[start:at]))


def _parents_first(tree: Sequence[Member]) -> Iterator[Member]:
    waiting, seen = list(tree), {tree[0].parent}
    while waiting:
        member = next(one for one in waiting if one.parent in seen)
        waiting.remove(member)
        seen.add(member.pid)
        yield member


def _give_ids(images: Path, birth: Birth) -> None:
    """A leader that is a zombie has no objects of its own in the images, and CRIU compares them with those of
    its children."""
    own = images / f"ids-{birth.session}.img"
    if birth.dead or own.exists():
        return
    data = (images / f"ids-{birth.pid}.img").read_bytes()
    body = b"".join(
        encode({number: _UNUSED_ID + birth.session if number in _ID_FIELDS else value})
        for number, value in fields(data[12:])
    )
    own.write_bytes(data[:8] + struct.pack("<I", len(body)) + body)


def environment(sessions: Sessions) -> list[str]:
    """What CRIU's environment has to have for the shim."""
    births = ",".join(f"{birth.pid}:{birth.session}:{int(birth.dead)}" for birth in sessions.births)
    dead = ",".join(f"{one.session}:{one.shown_session}:{one.shown_group}" for one in sessions.dead)
    return [f"WAYPOINT_BIRTHS={births}", f"WAYPOINT_DEAD_SESSIONS={dead}"] if births else []
