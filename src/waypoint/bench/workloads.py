"""The workloads that Waypoint is measured with.

Each workload makes its own sessions, checks that the restored state is the saved one (a fast but wrong
restore must not count), and adds one figure per case, operation and window.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import waypoint
from waypoint.bench.results import TREE, Unit
from waypoint.bench.runner import Bench, Timed, available_bytes, now_ms, used_bytes
from waypoint.client.session import Session
from waypoint.errors import MissingFeature, SessionError
from waypoint.text.units import size

WAIT = "for i in {1..400}; do (: </dev/tcp/127.0.0.1/PORT) 2>/dev/null && break; sleep 0.01; done"
_TIMEOUT_SECONDS = 20.0
_REST_SECONDS = 0.2


class Workload(NamedTuple):
    title: str
    measure: Callable[[Bench], None]


class WrongState(SessionError):
    """A restored session is not in the state of its point."""

    code = "bench_wrong"


def expect(session: Session, command: str, output: str) -> None:
    """Runs a command and raises unless it prints this."""
    actual = session.run(command).check().output.strip()
    if actual != output:
        raise WrongState(f"{command} printed {actual!r}, not {output!r}", hint="please report it")


def start_tree(bench: Bench, session: Session) -> None:
    """Starts the tree that most figures are about: bash, a sleep, a Python HTTP server."""
    session.run("cd /srv; set +m; sleep 100000 &").check()
    session.run(f"{bench.python} -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &").check()
    session.run(WAIT.replace("PORT", "8000")).check()


def put(session: Session, path: str, text: str) -> None:
    """Writes a file in the session."""
    session.run(f"cat > {path}", stdin=text).check()


def both_rollbacks(
    bench: Bench, session: Session, workload: str, case: str, rounds: int, check: Callable[[], None]
) -> None:
    """Rollbacks to a point, with a spare and without. A spare exists a moment after its point was taken and
    is used up by the first restore, so two restores in a row are one of each."""
    for _ in range(rounds):
        point = session.checkpoint("bench")
        if not bench.wait_for_spare(point):
            bench.skip_once(
                f"a spare for {case}", "there was none after 20 s: no room for it, or they are off"
            )
        for _ in range(2):
            how, took = bench.rollback(session, point)
            bench.add_timed(workload, case, f"rollback, {how}", took)
            check()


# ---- the tree, its threads, its terminal -----------------------------------------------------------

# A bash that sleeps for a millisecond at a time and records when it was stopped for longer.
_TICKER = r"""
exec 9<>/tmp/ticks.fifo
was=${EPOCHREALTIME/./}
while :; do
    read -rt 0.001 -u 9
    is=${EPOCHREALTIME/./}
    ((is - was > 5000)) && echo "$was $((is - was))" >>/tmp/gaps
    was=$is
done
"""


def tree(bench: Bench) -> None:
    """The main tree: all windows, from outside and from inside."""
    rounds = bench.rounds(25, 6)
    with bench.session() as session:
        start_tree(bench, session)
        session.run("variable=1").check()
        bench.checkpoint(session)  # the first one warms caches up
        for number in range(rounds):
            session.run(f"echo {number} > /srv/note").check()
            _, took = bench.checkpoint(session)
            bench.add_timed("tree", TREE, "checkpoint", took)
        unchanged = [bench.checkpoint(session)[1] for _ in range(max(3, rounds // 3))]
        for took in unchanged[1:]:
            bench.add_timed("tree", "the same, nothing changed since", "checkpoint", took)

        def check() -> None:
            state = f"echo $variable; jobs -p | wc -l; cat /srv/note; {_probe(8000)}"
            expect(session, state, f"1\n2\n{rounds - 1}\nanswers")

        both_rollbacks(bench, session, "tree", TREE, rounds, check)
        point = session.checkpoint("bench")
        for _ in range(max(3, rounds // 3)):
            _, took = bench.rollback(session, point, safety=True)
            bench.add_timed("tree", TREE, "rollback, safety first", took)
        # Without a rest in between: work in the background after one answer delays the next call.
        began, many = now_ms(), max(5, rounds // 2)
        for _ in range(many):
            bench.rollback(session, point)
        bench.add("tree", TREE, "rollback, back to back", "until", (now_ms() - began) / many)
    _seen_from_inside(bench, rounds)
    _in_user_namespace(bench, rounds)


def _in_user_namespace(bench: Bench, rounds: int) -> None:
    """The same tree in a session in a user namespace, and in one that is in none: in turns."""
    with contextlib.ExitStack() as held:
        cases = {"the same, beside a user namespace": held.enter_context(bench.session(userns=False))}
        try:
            cases["the same, in a user namespace"] = held.enter_context(bench.session(userns=True))
        except MissingFeature as error:
            bench.skip_once("a user namespace", error.message)
            return
        for session in cases.values():
            start_tree(bench, session)
            bench.checkpoint(session)
        for number in range(rounds):
            for case, session in cases.items():
                session.run(f"echo {number} > /srv/note").check()
                _, took = bench.checkpoint(session)
                bench.add_timed("tree", case, "checkpoint", took)
        for _ in range(rounds):
            for case, session in cases.items():
                both_rollbacks(bench, session, "tree", case, 1, lambda: None)


def _probe(port: int) -> str:
    """A command that prints `answers` if a server listens on that port."""
    return f"(: </dev/tcp/127.0.0.1/{port}) && echo answers"


def _seen_from_inside(bench: Bench, rounds: int) -> None:
    """The same pause as a process of the session measures it."""
    with bench.session() as session:
        start_tree(bench, session)
        session.run("mkfifo /tmp/ticks.fifo").check()
        put(session, "/tmp/ticker", _TICKER)
        session.run("bash /tmp/ticker &").check()
        for number in range(rounds):
            session.run(f"echo {number} > /srv/note; sleep 0.05").check()
            called_us = time.time() * 1e6
            point, took = bench.checkpoint(session)
            answered_us = called_us + took.api * 1000
            session.run("sleep 0.02").check()
            lines = session.run("cat /tmp/gaps 2>/dev/null; : > /tmp/gaps").output.splitlines()
            gaps_us = [(int(began), int(length)) for began, length in map(str.split, lines)]
            pauses_ms = [
                length / 1000
                for began, length in gaps_us
                if began <= answered_us and called_us <= began + length
            ]
            case = "the same, with a process that watches the clock"
            bench.add("tree", case, "checkpoint", "pause", point.info.pause_ms)
            bench.add("tree", case, "checkpoint, seen from inside", "pause", max(pauses_ms, default=0.0))


_THREADS = """
import threading, time
for _ in range({count}):
    threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()
print("started", flush=True)
time.sleep(100000)
"""


def processes(bench: Bench) -> None:
    """How costs grow with processes and with threads."""
    rounds = bench.rounds(6, 3)
    counts = (1, 32) if bench.quick else (1, 2, 4, 8, 16, 32)
    for count in counts:
        with bench.session() as session:
            session.run(f"set +m; for i in {{1..{count}}}; do sleep 100000 & done").check()
            case = f"{count} process{'es' if count > 1 else ''}"
            _measure_both(bench, session, "processes", case, rounds, "jobs -p | wc -l", str(count))
    for count in () if bench.quick else (8, 32):
        with bench.session() as session:
            put(session, "/tmp/threads.py", _THREADS.format(count=count))
            session.run(f"set +m; {bench.python} /tmp/threads.py > /tmp/output &").check()
            session.run("until grep -q started /tmp/output; do sleep 0.01; done").check()
            case, tasks = f"{count} threads", "ls /proc/$!/task | wc -l"
            _measure_both(bench, session, "processes", case, rounds, tasks, str(count + 1))


def _measure_both(
    bench: Bench, session: Session, workload: str, case: str, rounds: int, command: str, output: str
) -> None:
    """Checkpoints and rollbacks. `command` has to print `output` after each rollback."""
    point, _ = bench.checkpoint(session)
    for _ in range(rounds):
        session.run("date > /tmp/note").check()
        point, took = bench.checkpoint(session)
        bench.add_timed(workload, case, "checkpoint", took)
    for _ in range(rounds):
        how, took = bench.rollback(session, point)
        bench.add_timed(workload, case, f"rollback, {how}", took)
        expect(session, command, output)


_NODE = "require('http').createServer((q, a) => a.end('ok')).listen(8001, '127.0.0.1')"
_WRITER = """
import sqlite3, time
db = sqlite3.connect("/srv/w.db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table t (n integer)")
n = 0
while True:
    n += 1
    db.execute("insert into t values (?)", (n,))
    time.sleep(0.005)
"""


def terminal(bench: Bench) -> None:
    """What users and agents work with: a REPL, vim, servers, a database that is being written."""
    rounds = bench.rounds(6, 2)
    python = bench.python
    repl = Dialogue(f"{python} -q\r", ">>>", "x = 41\r", "x = 0\r", "x + 1\r", "42")
    _interactive(bench, "Python REPL", rounds, repl)
    if shutil.which("vim"):
        vim = Dialogue("vim -u NONE -i NONE -n /tmp/v\r", "~", "ihello", "junk", "-after", "hello-after")
        _interactive(bench, "vim, inserting", rounds, vim)
    else:
        bench.skip("vim", "it is not installed")
    with bench.session() as session:
        session.run("set +m").check()
        servers = [(f"{python} -m http.server 8000 --bind 127.0.0.1", 8000)]
        if shutil.which("node"):
            servers.append((f"node -e {shlex.quote(_NODE)}", 8001))
        for command, port in servers:
            session.run(f"{command} >/dev/null 2>&1 &").check()
            session.run(WAIT.replace("PORT", str(port))).check()
        probes = " && ".join(_probe(port) for _, port in servers)
        answers = "\n".join(["answers"] * len(servers))
        names = "servers: Python, node" if len(servers) > 1 else "servers: Python"
        _measure_both(bench, session, "terminal", names, rounds, probes, answers)
    with bench.session() as session:
        put(session, "/tmp/writer.py", _WRITER)
        session.run(f"set +m; {python} /tmp/writer.py &").check()
        session.run("until [ -s /srv/w.db-wal ]; do sleep 0.01; done").check()
        query = 'd.execute("pragma integrity_check").fetchone()'
        check = f"{python} -c 'import sqlite3; d = sqlite3.connect(\"/srv/w.db\"); print(*{query})'"
        _measure_both(bench, session, "terminal", "SQLite writer", rounds, check, "ok")


class Dialogue(NamedTuple):
    """What is typed into a program that occupies the terminal, and what it shows."""

    start: str
    prompt: str
    before: str
    """Typed before the point."""
    after: str
    """Typed after it, and undone by the rollback."""
    question: str
    answer: str
    """Shown for the question if the state of the point is restored."""


def _interactive(bench: Bench, case: str, rounds: int, dialogue: Dialogue) -> None:
    """A program that occupies the terminal: a point, more input, a rollback, and input again."""
    with bench.session() as session:
        session.type(dialogue.start)
        _wait_screen(session, dialogue.prompt)
        session.type(dialogue.before)
        _wait_screen(session, dialogue.before.strip()[-5:])
        time.sleep(0.2)
        for _ in range(rounds):
            point, took = bench.checkpoint(session, command=None)
            bench.add_timed("terminal", case, "checkpoint", took)
            session.type(dialogue.after)
            _wait_screen(session, dialogue.after.strip())
            began = now_ms()
            restored = session.restore(point, safety=False)
            answered = now_ms()
            session.type(dialogue.question)
            _wait_screen(session, dialogue.answer)
            how = "spare" if restored.spare else "cold"
            bench.add("terminal", case, f"rollback, {how}", "api", answered - began)
            bench.add("terminal", case, f"rollback, {how}", "until", now_ms() - began)
            session.restore(point, safety=False)


def _wait_screen(session: Session, text: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while text not in (shown := session.screen()):
        if time.monotonic() > deadline:
            raise WrongState(f"the terminal never showed {text!r}", hint=shown[-500:])
        time.sleep(0.001)


# ---- the way back ------------------------------------------------------------------------------------

_CALM_SECONDS = 1.0


def safety(bench: Bench) -> None:
    """What people call: a restore that keeps the present, the undo after it, a checkpoint's answer. Calm, and
    with nothing but the wait for a spare in between: work in the background delays the next call."""
    rounds = bench.rounds(25, 3)
    cases = {"calm": _CALM_SECONDS, "back to back": 0.0}
    with bench.session() as session:
        start_tree(bench, session)
        session.run("variable=1").check()
        point = session.checkpoint("bench")
        there = f"echo $variable; jobs -p | wc -l; {_probe(8000)}"
        for case, seconds in cases.items():
            for number in range(rounds):
                session.run(f"variable=now{number}").check()
                if not bench.wait_for_spare(point):
                    bench.skip_once("a spare for the way back", "there was none after 20 s")
                time.sleep(seconds)
                how, took = bench.rollback(session, point, safety=True)
                bench.add_timed("safety", case, f"restore with safety, {how}", took)
                expect(session, there, "1\n2\nanswers")
        for number in range(rounds):
            session.run(f"variable=now{number}").check()
            bench.wait_for_spare(point)
            time.sleep(_CALM_SECONDS)
            session.restore(point)
            began = now_ms()
            session.undo()
            answered = now_ms()
            session.run("true").check()
            took = Timed(None, answered - began, now_ms() - began)
            bench.add_timed("safety", "right after the restore", "undo", took)
            expect(session, there, f"now{number}\n2\nanswers")
        for case, seconds in cases.items():
            for _ in range(rounds):
                time.sleep(seconds)
                _, took = bench.checkpoint(session)
                bench.add_timed("safety", case, "checkpoint", took)


# ---- memory ----------------------------------------------------------------------------------------

# Holds memory that cannot be compressed, and writes to a share of its pages on request.
_HOLDER = """
import os
size = {size}
memory = bytearray(size)
piece = os.urandom(1 << 20)
for at in range(0, size, len(piece)):
    memory[at:at + len(piece)] = piece[:size - at]
    memory[at:at + 8] = at.to_bytes(8, "little")
for at in range(0, size, 4096):
    memory[at:at + 8] = os.urandom(8)
requests, done = open("/tmp/dirty", "r+b", 0), open("/tmp/done", "r+b", 0)
done.write(b"ready\\n")
turn = 0
while True:
    percent = int(requests.readline())
    turn += 1
    pages = size // 4096
    step = 100 // percent if percent else pages + 1
    for page in range(turn % step if percent else 0, pages if percent else 0, step):
        memory[page * 4096 + 16:page * 4096 + 24] = os.urandom(8)
    done.write(b"done\\n")
"""


def _start_holder(bench: Bench, session: Session, megabytes: int) -> None:
    put(session, "/tmp/holder.py", _HOLDER.format(size=megabytes << 20))
    session.run("mkfifo /tmp/dirty /tmp/done; exec 7<>/tmp/dirty 8<>/tmp/done; set +m").check()
    session.run(f"{bench.python} /tmp/holder.py 7>&- 8>&- &").check()
    session.run("read -t 60 answer <&8").check()


def memory(bench: Bench) -> None:
    """From 1 MB to 1 GB, with nothing to everything written between two points."""
    rounds = bench.rounds(4, 3)
    sizes = (64,) if bench.quick else (1, 16, 64, 256, 1024)
    shares = (1, 100) if bench.quick else (0, 1, 10, 100)
    for megabytes in sizes:
        if available_bytes() < (megabytes << 20) * 4:
            bench.skip(
                f"{megabytes} MB of memory", f"{size(available_bytes())} are free, and it takes 4 times"
            )
            continue
        with bench.session() as session:
            _start_holder(bench, session, megabytes)
            took = bench.checkpoint(session)[1]
            bench.add_timed("memory", f"{megabytes} MB", "checkpoint, first", took)
            for share in shares:
                points = []
                for _ in range(rounds if megabytes < 1024 else max(2, rounds - 1)):
                    session.run(f"echo {share} >&7; read -t 60 answer <&8").check()
                    point, took = bench.checkpoint(session)
                    bench.add_timed("memory", f"{megabytes} MB, {share}% dirty", "checkpoint", took)
                    points.append(point)
                for point in points[:-1]:
                    point.forget()
            many = rounds if megabytes < 1024 else 2
            check = "kill -0 $! && echo there"
            both_rollbacks(
                bench,
                session,
                "memory",
                f"{megabytes} MB",
                many,
                lambda session=session, check=check: expect(session, check, "there"),  # type: ignore[misc]
            )
            if megabytes == sizes[-1]:
                _fork_memory(bench, session, f"{megabytes} MB", check)


def _fork_memory(bench: Bench, session: Session, case: str, check: str) -> None:
    """Forks of a session with much memory, none of which uses it."""
    count = 4 if bench.quick else 16
    point = session.checkpoint("bench")
    for number in (1, count):
        what = f"{number} fork{'s' if number > 1 else ''}"
        for _ in range(bench.rounds(3, 2)):
            used_before, began = used_bytes(), now_ms()
            forks = point.fork(number)
            answered = now_ms()
            for fork in forks:
                expect(fork, check, "there")
            bench.add("memory", case, what, "api", answered - began)
            bench.add("memory", case, what, "until", now_ms() - began)
            used = used_bytes() - used_before
            bench.add("memory", case, f"memory of {what}, idle", "", used, unit="bytes")
            bench.remove(forks)


# ---- searching -------------------------------------------------------------------------------------

_MODULE = """\
def total(items):
    result = 0
    for item in items:
        result = result BUG item
    return result
"""
_TEST = "import shop\nassert shop.total([1, 2, 3]) == 6, shop.total([1, 2, 3])\nassert shop.total([]) == 0\n"
_TRIES = ("-", "*", "//", "%", "**", "|", "&", "^", "<<", "+")
_STEPS = 30


def repair(bench: Bench) -> None:
    """An agent repairs a repository: 30 steps of tree search. Each is a point, an attempt and a test, then a
    rollback or a fork."""
    steps = bench.rounds(_STEPS, 10)
    case = f"{steps} steps"
    with bench.session() as session:
        start_tree(bench, session)
        session.run("mkdir -p /srv/shop && cd /srv/shop && git init -q 2>/dev/null; export TRIED=0").check()
        put(session, "shop.py", _MODULE.replace("BUG", "-"))
        put(session, "check.py", _TEST)
        began, ours, solved = now_ms(), 0.0, 0
        for step in range(steps):
            point, took = bench.checkpoint(session, command=None)
            bench.add_timed("repair", case, "checkpoint", took)
            ours += took.api
            if step % 5 == 4:  # attempted in a fork, which is then removed
                called = now_ms()
                fork = point.fork(1)[0]
                passed = _try(bench, fork, step)
                bench.add("repair", case, "fork", "until", now_ms() - called)
                fork.remove()
                ours += now_ms() - called
            else:
                passed = _try(bench, session, step)
                expect(session, "echo $TRIED", "1")
                how, took = bench.rollback(session, point)
                bench.add_timed("repair", case, f"rollback, {how}", took)
                ours += took.until or 0.0
                expect(session, f"echo $TRIED; {_probe(8000)}", "0\nanswers")
            solved += passed
        if solved != sum(_TRIES[step % len(_TRIES)] == "+" for step in range(steps)):
            raise WrongState(f"{solved} of {steps} attempts passed their test", hint="please report it")
        whole = now_ms() - began
        bench.add("repair", case, "the whole search", "", whole)
        bench.add("repair", case, "of it in Waypoint", "", ours)


def _try(bench: Bench, session: Session, step: int) -> bool:
    """Attempts one repair; whether its test passes."""
    put(session, "shop.py", _MODULE.replace("BUG", _TRIES[step % len(_TRIES)]))
    return session.run(f"TRIED=1; {bench.python} check.py 2>/dev/null").ok


def fan_out(bench: Bench) -> None:
    """Forks of one point, each verified to run before the clock stops."""
    cores = os.cpu_count() or 1
    with bench.session() as session:
        start_tree(bench, session)
        point = session.checkpoint("bench")
        for count in (1, 4, 16) if bench.quick else (1, 4, 16, 64):
            for _ in range(bench.rounds(3, 2) if count < 64 else 1):
                case = f"{count} fork{'s' if count > 1 else ''}"
                began = now_ms()
                forks = point.fork(count)
                answered = now_ms()
                with ThreadPoolExecutor(max_workers=2 * cores) as workers:
                    ran = list(workers.map(_is_running, forks))
                until = now_ms() - began
                if not all(ran):
                    raise WrongState(
                        f"{ran.count(False)} of {count} forks do not run", hint="please report it"
                    )
                bench.add("fan-out", case, "fork", "api", answered - began)
                bench.add("fan-out", case, "fork", "until", until)
                idle = sum(memory_of(fork.info.pid or 0) for fork in forks) / count
                bench.add("fan-out", case, "memory per idle fork", "", idle, unit="bytes")
                bench.remove(forks)
    _fork_large(bench, *((4, 64) if bench.quick else (16, 1024)))


def _fork_large(bench: Bench, count: int, megabytes: int) -> None:
    """Forks of a session with much memory: until a command has run in each, and what all of them take while
    they do nothing."""
    case = f"{count} forks with {megabytes} MB each"
    if available_bytes() < (count + 4) * (megabytes << 20):
        bench.skip(case, f"{size(available_bytes())} are free, and each fork may take all that it has")
        return
    with bench.session() as session:
        _start_holder(bench, session, megabytes)
        point = session.checkpoint("bench")
        for _ in range(bench.rounds(2, 2)):
            began = now_ms()
            forks = point.fork(count)
            answered = now_ms()
            with ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as workers:
                ran = list(workers.map(_has_holder, forks))
            until = now_ms() - began
            if not all(ran):
                raise WrongState(f"{ran.count(False)} of {count} forks do not run", hint="please report it")
            bench.add("fan-out", case, "fork", "api", answered - began)
            bench.add("fan-out", case, "fork", "until", until)
            idle = sum(memory_of(fork.info.pid or 0) for fork in forks)
            bench.add("fan-out", case, "memory of all, idle", "", idle, unit="bytes")
            bench.remove(forks)


def _has_holder(fork: Session) -> bool:
    return fork.run("kill -0 $! && echo there").output == "there\n"


def _is_running(fork: Session) -> bool:
    return fork.run(f"jobs -p | wc -l; {_probe(8000)}").output.split() == ["2", "answers"]


def memory_of(keeper: int) -> int:
    """The memory of all processes of a box; shared pages are divided by the number of their users (PSS)."""
    total, waiting = 0, [keeper]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/smaps_rollup") as lines:
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    waiting += map(int, children.read().split())
    return total


# ---- depth and width -------------------------------------------------------------------------------


def depth(bench: Bench) -> None:
    """One line of history: what the last of a thousand points costs, compared with the first. The first and
    the last ones are taken with a rest in between, the others as fast as possible."""
    many, edge = bench.rounds(1000, 30), bench.rounds(40, 10)
    with bench.session() as session:
        start_tree(bench, session)
        first = bench.checkpoint(session)[0]
        before = _daemon_resources(bench)
        for number in range(1, many):
            in_a_hurry = edge < number < many - edge
            if number == many - edge:
                time.sleep(_REST_SECONDS * 10)  # until the background work for the points before is done
            session.run(f"echo {number} > /srv/note").check()
            _, took = bench.checkpoint(session, command=None)
            case = "in between, in a hurry" if in_a_hurry else "first" if number <= edge else "last"
            bench.add_timed("depth", case, "checkpoint", took)
            if not in_a_hurry:
                time.sleep(_REST_SECONDS)
            if number % 250 == 0:
                bench.say(f"  {number} points")
        after = _daemon_resources(bench)
        if not bench.quick:
            bench.add("depth", "all", "checkpoints", "", len(session.checkpoints()), unit="count")
        for case, numbers in (("first", before), ("last", after)):
            for what, value in numbers.items():
                unit: Unit = "bytes" if what.startswith("memory") else "count"
                bench.add("depth", case, what, "", value, unit=unit)
        how, took = bench.rollback(session, first)
        bench.add_timed("depth", "first", f"rollback, {how}", took)
        _ping_beside_reader(bench)
        time.sleep(_REST_SECONDS)
        for point in session.checkpoints()[1 :: many // bench.rounds(20, 6)]:
            began = now_ms()
            point.forget()
            bench.add("depth", "any", "forget", "api", now_ms() - began)


_READER = """
import sys, waypoint
client = waypoint.Client(sys.argv[1])
while True:
    client.call("log", {"all": True})
"""


def _ping_beside_reader(bench: Bench) -> None:
    """How long a short request waits while the daemon computes long answers for another client."""
    reader = subprocess.Popen([sys.executable, "-c", _READER, str(bench.home.path)])
    try:
        time.sleep(_REST_SECONDS * 2)
        for _ in range(bench.rounds(300, 100)):
            began = now_ms()
            bench.client.daemon.ping()
            bench.add("depth", "all, beside a client that reads the log", "ping", "api", now_ms() - began)
            time.sleep(0.003)
        if reader.poll() is not None:
            raise WrongState("the client that reads the log has ended", hint="please report it")
    finally:
        reader.kill()
        reader.wait()


def _daemon_resources(bench: Bench) -> dict[str, float]:
    """The resources that the daemon uses."""
    status = bench.client.daemon.status()
    pid = status.pid
    return {
        "memory of the daemon": status.rss_bytes,
        "descriptors of the daemon": len(os.listdir(f"/proc/{pid}/fd")),
        "mounts": len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()),
    }


_MAKE_FILES = """
import os, sys
for n in range({count}):
    if n % 100 == 0:
        os.makedirs("/srv/many/%d" % (n // 100), exist_ok=True)
    with open("/srv/many/%d/%d" % (n // 100, n), "w") as f:
        f.write("file %d\\n" % n)
"""
_CHANGED = 10


def files(bench: Bench) -> None:
    """Up to 100,000 files, ten of them changed between two points."""
    rounds = bench.rounds(6, 3)
    for count in (1_000, 10_000) if bench.quick else (1_000, 10_000, 100_000):
        case = f"{count:,} files"
        with bench.session() as session:
            put(session, "/tmp/make.py", _MAKE_FILES.format(count=count))
            session.run(f"{bench.python} /tmp/make.py", timeout=300).check()
            last, _ = bench.checkpoint(session)
            for number in range(rounds):
                step = count // _CHANGED
                names = " ".join(f"/srv/many/{n // 100}/{n}" for n in range(number, count, step))
                session.run(f"for f in {names}; do echo {number} > $f; done").check()
                point, took = bench.checkpoint(session)
                bench.add_timed("files", case, "checkpoint", took)
                began = now_ms()
                count_changed = len(last.diff(point, only=["files"]).files)
                bench.add("files", case, "diff", "api", now_ms() - began)
                if count_changed != _CHANGED:
                    raise WrongState(f"{count_changed} files differ, not {_CHANGED}", hint="please report it")
                last = point


# ---- calls -----------------------------------------------------------------------------------------


def api(bench: Bench) -> None:
    """What a call of the API and a call of the command line cost."""
    with bench.session() as session:
        for _ in range(20):
            session.run("true")
        for _ in range(bench.rounds(300, 100)):
            began = now_ms()
            session.run("true")
            bench.add("api", "run true", "run", "api", now_ms() - began)
        for _ in range(bench.rounds(1000, 300)):
            began = now_ms()
            bench.client.daemon.ping()
            bench.add("api", "ping", "ping", "api", now_ms() - began)
        environment = {**os.environ, "WAYPOINT_HOME": str(bench.home.path)}
        verbs = (("--version",), ("ls",), ("log", "-s", session.name), ("exec", "-s", session.name, "true"))
        session.checkpoint("bench")
        # As ./waypoint starts it: PYTHON* variables of this environment (no bytecode, say) have no effect.
        isolated = subprocess.run(
            [sys.executable, "-I", "-c", "import waypoint"], capture_output=True, check=False
        )
        flag = "-P" if isolated.returncode else "-I"
        program = str(Path(waypoint.__file__).with_name("__main__.py"))
        for words in verbs:
            for _ in range(bench.rounds(15, 5)):
                took = timed_program([sys.executable, flag, program, *words], environment)
                bench.add("api", words[0], "cli", "api", took)
    for _ in range(bench.rounds(15, 5)):
        bench.add(
            "api",
            "python -c pass",
            "cli",
            "api",
            timed_program([sys.executable, "-I", "-c", "pass"]),
            who="python",
        )
        bench.add("api", "bash -c true", "run", "api", timed_program(["bash", "-c", "true"]), who="bash")


def timed_program(argv: Sequence[str], environment: dict[str, str] | None = None) -> float:
    began = now_ms()
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    return now_ms() - began


def peers(bench: Bench) -> None:
    """Waypoint and other tools on the same work."""
    from waypoint.bench.peers import measure

    measure(bench)


WORKLOADS = {
    "tree": Workload("bash, sleep, http.server: every window, from outside and inside", tree),
    "safety": Workload("restore with safety, undo, a checkpoint's answer: calm and back to back", safety),
    "api": Workload("what a call and a command line cost", api),
    "processes": Workload("how it grows with processes and threads", processes),
    "terminal": Workload("REPL, vim, servers, a database being written", terminal),
    "memory": Workload("how it grows with memory, and with what was written since", memory),
    "repair": Workload("a repository repaired by tree search", repair),
    "fan-out": Workload("forks of one point, all verified to run", fan_out),
    "files": Workload("how it grows with files, and what comparing costs", files),
    "depth": Workload("many points in one line", depth),
    "peers": Workload("the same work with other tools", peers),
}
