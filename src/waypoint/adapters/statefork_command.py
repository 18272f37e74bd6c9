"""`waypoint-statefork`: the verbs and the output of the command that StateFork drives.

    WAYPOINT_BIN=$(command -v waypoint-statefork) python search_workflow.py

That command is called `waypoint` as well, and its verbs have other arguments than ours; so this one has a
name of its own. Results and errors are on stdout, as with that one. Its verbs with forks (from version 0.7
on) are here, and the older `create`, `restore` and `exec` without the name of a fork.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import waypoint
from waypoint import errors
from waypoint.adapters.statefork_machines import MAIN, Done, Machine, Machines, SavedCheckpoint

_FAILED = 1


class Verb(NamedTuple):
    """What one verb is."""

    run: Callable[[Sequence[str]], int]
    usage: str
    what: str


class _Misused(Exception):
    """The arguments are not those of the verb."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status."""
    words = [*(sys.argv[1:] if argv is None else argv)]
    if not words:
        print(_help())
        return _FAILED
    name, *arguments = words
    verb = VERBS.get(name)
    if verb is None:
        print(f"Unknown command: {name}")
        return _FAILED
    try:
        return verb.run(arguments)
    except _Misused as problem:
        if problem.args:
            print(f"Error: {problem}")
        print(f"Usage: {name} {verb.usage}")
    except errors.WaypointError as error:
        print(f"Error: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    return _FAILED


def _help() -> str:
    verbs = [f"  {f'{name} {verb.usage}':<52} - {verb.what}" for name, verb in VERBS.items()]
    return "\n".join(
        ["Usage: waypoint <command> [args...]", "Commands:", *verbs, "", f"Version: {_version()}"]
    )


def _version() -> str:
    return f"v{waypoint.__version__}"


# ---- arguments -----------------------------------------------------------------------------------


def _split(
    arguments: Sequence[str], *flags: str, values: Sequence[str] = ()
) -> tuple[list[str], set[str], dict[str, str]]:
    """The words, the flags, and the options that have a value."""
    words: list[str] = []
    given: set[str] = set()
    options: dict[str, str] = {}
    waiting = iter(arguments)
    for word in waiting:
        if word in flags:
            given.add(word)
        elif word in values:
            value = next(waiting, None)
            if value is None:
                raise _Misused(f"{word} requires a value")
            options[word] = value
        elif word.startswith("--"):
            raise _Misused(f"unknown flag: {word}")
        else:
            words.append(word)
    return words, given, options


def _exactly(words: Sequence[str], count: int) -> list[str]:
    if len(words) != count:
        raise _Misused
    return [*words]


# ---- verbs ---------------------------------------------------------------------------------------


def _start(arguments: Sequence[str], *, build: bool) -> int:
    words, given, _ = _split(arguments, "--quiet", "--shell")
    (folder,) = _exactly(words, 1)
    machines = Machines.start(folder, build=build)
    main = next(machine for machine in machines.live() if machine.id == MAIN)
    if "--quiet" in given:
        print(",".join([machines.id, machines.folder, *([str(main.pid)] if build else [])]))
        return 0
    print("Sandbox environment built successfully!" if build else "Environment initialized!")
    print(f"Session ID: {machines.id}")
    print(f"Work in this directory: {machines.folder}")
    if build:
        print(f"Sandbox bash PID: {main.pid}")
    elif "--shell" in given:
        print(f"Shell PID: {main.pid} [socket: {machines.home.socket}]")
    print("\nSave the session ID for future operations!")
    return 0


def _init(arguments: Sequence[str]) -> int:
    return _start(arguments, build=False)


def _build(arguments: Sequence[str]) -> int:
    return _start(arguments, build=True)


def _checkpoint(arguments: Sequence[str]) -> int:
    name, checkpoint_id, *process = arguments if len(arguments) in {2, 3} else _exactly(arguments, 2)
    if process and not process[0].removeprefix("-").isdecimal():
        raise _Misused(f"no process: {process[0]}")  # of older versions, which saved one process
    Machines(name).checkpoint(MAIN, checkpoint_id)
    print(f"Checkpoint '{checkpoint_id}' created successfully")
    return 0


def _snapshot(arguments: Sequence[str]) -> int:
    words, given, _ = _split(arguments, "--park")
    name, fork, checkpoint_id = _exactly(words, 3)
    parked = "--park" in given
    Machines(name).checkpoint(fork, checkpoint_id, park=parked)
    print(f"Fork '{fork}' {'parked' if parked else 'snapshotted'} as checkpoint '{checkpoint_id}'")
    return 0


def _fork(arguments: Sequence[str]) -> int:
    words, _, options = _split(arguments, "--lazy-pages", values=("--id", "--n"))
    name, checkpoint_id = _exactly(words, 2)
    number = options.get("--n", "1")
    if not number.isdecimal() or not int(number):
        raise _Misused(f"invalid fork count: {number}")
    if "--id" in options and int(number) != 1:
        raise _Misused("--id can only be used when creating one fork")
    machines = Machines(name)
    for _ in range(int(number)):
        began = time.monotonic()
        made = machines.fork(checkpoint_id, options.get("--id"))
        milliseconds = (time.monotonic() - began) * 1000
        print(f"{made.id} pid={made.pid} socket={machines.home.socket} duration={milliseconds:.0f}ms")
    return 0


def _restore(arguments: Sequence[str]) -> int:
    name, checkpoint_id = _exactly(arguments, 2)
    main = Machines(name).restore(checkpoint_id)
    print(f"Checkpoint '{checkpoint_id}' restored, new PID: {main.pid}")
    return 0


def _exec(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        raise _Misused
    if arguments[2:3] != ["--"]:  # of versions before 0.7, which had no forks
        return _shown(Machines(arguments[0]).run(MAIN, " ".join(arguments[1:])))
    name, fork, _, *command = arguments
    if len(command) != 1:
        line = f"-- {shlex.quote(shlex.join(command))}"
        raise _Misused(f"the command is one argument; got {len(command)} arguments, for example: {line}")
    return _shown(Machines(name).run(fork, command[0]))


def _fork_exec(arguments: Sequence[str]) -> int:
    if len(arguments) < 3:
        raise _Misused
    name, fork, *command = arguments
    return _shown(Machines(name).run(fork, " ".join(command)))


def _shown(done: Done) -> int:
    sys.stdout.write(done.output)
    if done.output and not done.output.endswith("\n"):
        sys.stdout.write("\n")
    if done.exit_code is None:
        print("Error: the fork has ended", file=sys.stderr)
        return _FAILED
    return done.exit_code


def _destroy(arguments: Sequence[str]) -> int:
    name, fork = _exactly(arguments, 2)
    if fork == MAIN:
        raise errors.UsageError("the main fork is not destroyed", hint="`cleanup` removes the session")
    Machines(name).end(fork)
    print(f"Fork '{fork}' destroyed successfully")
    return 0


def _list(arguments: Sequence[str]) -> int:
    words, given, _ = _split(arguments, "--json")
    if not words:
        names = [session.name for session in waypoint.sessions() if "." not in session.name]
        print(
            "\n".join(
                ["Available sessions:", *(f"  {name}" for name in names)] if names else ["No sessions found"]
            )
        )
        return 0
    machines = Machines(_exactly(words, 1)[0])
    checkpoints, forks = machines.checkpoints(), machines.live()
    if "--json" in given:
        print(json.dumps(_listing(machines, checkpoints, forks), indent=2))
        return 0
    print("Checkpoints:" if checkpoints else "No checkpoints found")
    for one in checkpoints:
        print(f"  {one.id} parent={one.parent_id or ''} status=ready layers={one.id}")
    if forks:
        print("Live forks:")
    for fork in forks:
        standing = f"checkpoint={fork.checkpoint or ''} status={fork.status}"
        print(f"  {fork.id} {standing} pid={fork.pid} socket={machines.home.socket}")
    return 0


def _listing(
    machines: Machines, checkpoints: Sequence[SavedCheckpoint], forks: Sequence[Machine]
) -> dict[str, Any]:
    return {
        "session_id": machines.id,
        "checkpoints": [
            {
                "id": one.id,
                **({"parent_id": one.parent_id} if one.parent_id else {}),
                "layer_ids": [one.id],
                "session_id": machines.id,
                "created_from_fork_id": one.fork,
                "created_at": one.info.created_at,
                "status": "ready",
                "size_bytes": one.info.size_bytes,
                "point": one.point,
            }
            for one in checkpoints
        ],
        "forks": [
            {
                "id": fork.id,
                "session_id": machines.id,
                "base_checkpoint_id": fork.checkpoint or "",
                "layer_ids": [fork.checkpoint] if fork.checkpoint else [],
                "status": fork.status,
                "pid": fork.pid,
                "socket_path": str(machines.home.socket),
                "session": fork.session.name,
            }
            for fork in forks
        ],
    }


def _suspend(arguments: Sequence[str]) -> int:
    (name,) = _exactly(arguments, 1)
    Machines(name).suspend()
    print(f"Session '{name}' suspended; checkpoints remain on disk")
    return 0


def _cp(arguments: Sequence[str]) -> int:
    name, source, target = _exactly(arguments, 3)
    outside, inside = _in_fork(source), _in_fork(target)
    if bool(outside) == bool(inside):
        raise _Misused("exactly one path has the form <fork-id>:/<path>")
    machines = Machines(name)
    if inside:
        machines.copy(inside[0], source, inside[1], into=True)
    elif outside:
        machines.copy(outside[0], target, outside[1], into=False)
    return 0


def _in_fork(path: str) -> tuple[str, str] | None:
    fork, colon, inside = path.partition(":")
    return (fork, inside) if colon and fork and "/" not in fork and inside.startswith("/") else None


def _cleanup(arguments: Sequence[str]) -> int:
    words, _, _ = _split(arguments, "--force")
    (name,) = _exactly(words, 1)
    Machines(name).remove()
    print(f"Session '{name}' cleaned up successfully")
    return 0


def _info(arguments: Sequence[str]) -> int:
    if not arguments:
        answer: dict[str, Any] = {
            "version": _version(),
            "home": os.fspath(waypoint.home.Settings.read().home),
            "kernel": platform.release(),
        }
    else:
        machines = Machines(arguments[0])
        answer = _listing(machines, machines.checkpoints(), machines.live())
        if arguments[1:]:
            (wanted,) = _exactly(arguments[1:], 1)
            machines.checkpoint_of(wanted)
            answer = next(one for one in answer["checkpoints"] if one["id"] == wanted)
    print(json.dumps(answer, indent=2))
    return 0


def _show_version(_arguments: Sequence[str]) -> int:
    print(f"waypoint version {_version()}")
    return 0


VERBS = {
    "init": Verb(_init, "<root-directory> [--quiet] [--shell]", "Start over a root file system"),
    "build": Verb(_build, "<dockerfile-directory> [--quiet]", "Start over what a Dockerfile makes"),
    "checkpoint": Verb(_checkpoint, "<session> <checkpoint-id>", "Take a checkpoint of main"),
    "fork": Verb(_fork, "<session> <checkpoint-id> [--id ID] [--n K]", "Make live forks of a checkpoint"),
    "exec": Verb(_exec, "<session> <fork-id> -- <command>", "Run a command in the shell of a fork"),
    "snapshot": Verb(
        _snapshot, "<session> <fork-id> <checkpoint-id> [--park]", "Take a checkpoint of a fork"
    ),
    "destroy": Verb(_destroy, "<session> <fork-id>", "End a fork; its checkpoints stay"),
    "restore": Verb(_restore, "<session> <checkpoint-id>", "Take main back to a checkpoint"),
    "list": Verb(_list, "[session] [--json]", "Show sessions, or checkpoints and forks"),
    "suspend": Verb(_suspend, "<session>", "End all forks; checkpoints stay"),
    "cp": Verb(_cp, "<session> <host> <fork-id>:/<path> | <session> <fork-id>:/<path> <host>", "Copy"),
    "cleanup": Verb(_cleanup, "<session> [--force]", "Remove a session with its checkpoints"),
    "info": Verb(_info, "[session [checkpoint-id]]", "Show the same as JSON"),
    "version": Verb(_show_version, "", "Show the version"),
    "create": Verb(_checkpoint, "<session> <checkpoint-id> [pid]", "Older name of checkpoint"),
    "fork-exec": Verb(_fork_exec, "<session> <fork-id> <command> [args...]", "Older form of exec"),
}
