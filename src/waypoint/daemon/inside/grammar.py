"""What may be asked from inside a session: about itself, and nothing else.

A grammar of its own, small and strict: no option here names a file of the host, another session or a plan.
The session is the one whose box the request came from. A ref means one of its own points, or one that it grew
from; of all others it is not even said whether they exist. Nothing that moves a session (restore, undo,
fork, park), lets something out (apply, export, cp) or grants something (approve) is here.

daemon/inside/doors.py brings the requests and takes the answers back.
"""

from __future__ import annotations

import contextlib
import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from waypoint import __version__
from waypoint.agent import tasks
from waypoint.api import hints
from waypoint.core.comparison import BASE, NOW
from waypoint.core.live import Live
from waypoint.daemon.inside.doors import MOST_ANSWER_BYTES, Answer, Asked, Door, Doors, Own
from waypoint.daemon.service import VERBS, Connection
from waypoint.errors import NotFound, SessionBusy, SessionDead, UsageError, WaypointError
from waypoint.history import refs
from waypoint.model import Checkpoint, Task
from waypoint.store.sessions import SessionRow
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_DIFFERENT = 1
_ROW_BYTES = 500
"""What keeping something takes, however few words it is."""
_BORN_SECONDS = 10.0
"""How long a fork may take from its first instruction until it is in the database."""

OVERVIEW = """waypoint VERB …

About this session, from inside:
  checkpoint [INTENT]     keep this moment: files, processes, shell and terminal    --name N --files-only
  log                     its points, the last one first                            -n N
  status                  where it stands, and what has changed since
  changed [PATH…]         whether anything has, but for files at or below these paths
  resume                  where work that was begun stands, in words for a prompt
  classify CMD…           what the policy says about a command
  effect WHAT             something was done outside          --target --key --compensate --reversible
  show REF                one point
  diff [A [B]] [PATH…]    two points; without B the present                         --stat --patch
                                                            --files --packages --processes --shell
  task ls [REF]           what is to be done, now or at a point
  task add TITLE…         plan something                                            --under TASK --once
  task start TASK         say that it is under way; also done, fail, skip           --evidence REF
  record WHAT TEXT        keep what was said: user, assistant, tool_call, …         --name --call --error
A single - stands for what comes from stdin.
With --json the answer is data. After a restore, and in a fork, a checkpoint that was asked for from inside
comes back once more: "copy" says "original", "restored" or "forked".
Going back, forking and bringing files out is done from outside.
"""


@dataclass(frozen=True)
class Grammar:
    """What a verb takes: flags, options with a value, and how many words."""

    flags: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    most: int = 0
    least: int = 0
    usage: str = ""


@dataclass
class Given:
    """What was given to a verb."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    """The words behind `--`."""


_MANY = 4096
GRAMMARS: dict[str, Grammar] = {
    "checkpoint": Grammar(
        frozenset({"--files-only"}),
        frozenset({"--name"}),
        _MANY,
        usage="[INTENT] [--name NAME] [--files-only]",
    ),
    "log": Grammar(frozenset(), frozenset({"-n"}), usage="[-n N]"),
    "status": Grammar(),
    "changed": Grammar(most=_MANY, usage="[PATH…]"),
    "resume": Grammar(),
    "classify": Grammar(most=_MANY, least=1, usage="CMD…"),
    "effect": Grammar(
        frozenset({"--reversible"}),
        frozenset({"--target", "--key", "--compensate"}),
        *(_MANY, 1),
        usage="WHAT [--target T] [--key K] [--compensate HOW] [--reversible]",
    ),
    "show": Grammar(frozenset({"--all"}), most=1, least=1, usage="REF [--all]"),
    "diff": Grammar(
        frozenset({"--stat", "--patch", "--files", "--packages", "--processes", "--shell"}),
        most=_MANY,
        usage="[A [B]] [PATH…] [--stat|--patch] [--files] [--packages] [--processes] [--shell]",
    ),
    "record": Grammar(
        frozenset({"--error", "--structured"}),
        frozenset({"--name", "--call"}),
        most=_MANY,
        least=2,
        usage="WHAT TEXT|- [--name TOOL] [--call ID] [--error] [--structured]",
    ),
    "task ls": Grammar(most=1, usage="[REF]"),
    "task add": Grammar(
        frozenset({"--once"}),
        frozenset({"--under"}),
        most=_MANY,
        least=1,
        usage="TITLE… [--under TASK] [--once]",
    ),
    "task start": Grammar(most=1, least=1, usage="TASK"),
    "task done": Grammar(
        frozenset({"--checkpoint"}),
        frozenset({"--evidence"}),
        most=_MANY,
        least=1,
        usage="TASK [NOTE] [--evidence REF] [--checkpoint]",
    ),
    "task fail": Grammar(
        values=frozenset({"--evidence"}), most=_MANY, least=1, usage="TASK [NOTE] [--evidence REF]"
    ),
    "task skip": Grammar(most=_MANY, least=1, usage="TASK [NOTE]"),
}
_STATES = {
    "task start": "in_progress",
    "task done": "completed",
    "task fail": "failed",
    "task skip": "skipped",
}
_SECTIONS = {
    "--files": ("files",),
    "--packages": ("packages",),
    "--processes": ("processes", "ports"),
    "--shell": ("shell",),
}


def parse(verb: str, words: Sequence[str], grammar: Grammar) -> Given:
    """The words of a verb, sorted. Everything that the grammar does not know is refused."""
    usage = f"waypoint {verb} {grammar.usage}".rstrip()
    given, rest = Given(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            given.after = rest
            break
        name, equals, value = word.partition("=")
        if word in grammar.flags or word == "--json":
            given.flags.add(word)
        elif name in grammar.values or name in ("-s", "--session"):
            if not equals:
                if not rest:
                    raise UsageError(f"{name} needs a value", hint=usage)
                value = rest.pop(0)
            given.values[name] = value
        elif word.startswith("-") and word != "-":
            raise UsageError(f"{verb} has no option {word.partition('=')[0]} inside a session", hint=usage)
        else:
            given.words.append(word)
    number = len(given.words) + len(given.after)
    if not grammar.least <= number <= grammar.most:
        raise UsageError("something is missing" if number < grammar.least else "too many words", hint=usage)
    return given


class Visible:
    """The points that a session may know of: its own, and those it grew from."""

    def __init__(self, row: SessionRow, everything: Sequence[Checkpoint]) -> None:
        self._row = row
        by_id = {point.id: point for point in everything}
        self.own = [point for point in everything if point.session == row.name]
        wanted = {point.id for point in self.own}
        for start in (*wanted, row.head):
            above = by_id.get(start or "")
            while above and (above.id not in wanted or above.id == start):
                wanted.add(above.id)
                above = by_id.get(above.parent or "")
        self.points = [point for point in everything if point.id in wanted]

    def point(self, ref: str) -> Checkpoint:
        other, rest = refs.split(ref)
        if other is not None and other != self._row.name:
            raise NotFound(
                f"there is no checkpoint {ref!r} in this session", hint="a session knows its own points only"
            )
        return refs.resolve(rest, self.own, self.points, self._row.head, datetime.now().astimezone())


Verb = Callable[["Inside", SessionRow, Given, Asked], tuple[Any, str, int]]
"""Returns the answer as data, as text, and the exit status."""


class Inside:
    """Answers what comes in through the doors."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.doors = Doors(app.home, answer=self.answer, lasting=_is_lasting, copied=self._copied)

    # ---- one request -------------------------------------------------------------------------

    def answer(self, door: Door, asked: Asked) -> Answer:
        json = _wants_json(asked.words)
        try:
            return self._carry_out(door, asked)
        except WaypointError as error:
            return _refusal(error, json=json)

    def _carry_out(self, door: Door, asked: Asked) -> Answer:
        verb, words = split(asked.words)
        if verb in ("help", "-h", "--help") or (words and words[0] in ("-h", "--help")):
            return Answer(status=0, out=OVERVIEW)
        if verb in ("--version", "-V"):
            return Answer(status=0, out=f"waypoint {__version__}\n")
        grammar = GRAMMARS.get(verb)
        if grammar is None:
            raise UsageError(
                f"`waypoint {verb}` is nothing that can be asked from inside a session",
                hint=f"there are: {', '.join(GRAMMARS)}; the rest is done from outside",
            )
        if asked.again and _is_lasting(asked):
            raise SessionDead(
                "the daemon was replaced while it was at this: it may be done or not",
                hint="`waypoint log` tells; ask again if it is not",
            )
        given = parse(verb, words, grammar)
        row = self._row(door)
        named = given.values.get("-s") or given.values.get("--session")
        if named is not None and named != row.name:
            raise NotFound(
                f"there is no session {named!r} in here", hint=f"this is {row.name!r}, and it is all there is"
            )
        if _is_lasting(asked) and not door.words.take(sum(map(len, asked.words)) + _ROW_BYTES):
            raise SessionBusy(
                "this session has said very much in a short time",
                hint=f"more in {door.words.wait_seconds + 0.5:.0f} s; what is large is better kept in a file",
            )
        if verb == "checkpoint" or "--checkpoint" in given.flags:
            taking = self._checkpoint if verb == "checkpoint" else self._task_done
            with self._capturing(door, asked):
                found, text, status = taking(row, given)
        elif verb in _STATES:
            found, text, status = self._task_set(row, given, _STATES[verb])
        else:
            found, text, status = _TELLING[verb](self, row, given, asked)
        return _answer(found, text, status, json="--json" in given.flags)

    def _row(self, door: Door) -> SessionRow:
        """The session that the door belongs to. A fork runs a moment before it is in the database; a trial
        never is."""
        deadline = time.monotonic() + _BORN_SECONDS
        while True:
            row = self._app.store.sessions.find(door.session_id)
            if row and row.box == door.box_id and row.id == door.session_id:
                return row
            throwaway = door.session_id in self._app.registry.throwaways
            if throwaway or door.closed or time.monotonic() > deadline:
                raise SessionDead(
                    "this is a throwaway copy, not a session", hint="nothing can be asked from in here"
                )
            time.sleep(0.05)

    def _call(self, verb: str, row: SessionRow, **args: Any) -> dict[str, Any]:
        """What a verb of the daemon answers for this session, as it travels."""
        found = VERBS[verb](self._app, _NOBODY, {**args, "session": row.id, "actor": "agent"})
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    # ---- verbs -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _capturing(self, door: Door, asked: Asked) -> Iterator[None]:
        """While a request takes a point, which then knows whom it was taken for."""
        if not door.points.take():
            raise SessionBusy(
                "this session has asked for many points in a short time",
                hint=f"the next one in {door.points.wait_seconds + 0.5:.0f} s",
            )
        with door.changed:
            door.capturing = (asked, threading.get_ident())
            door.changed.notify_all()
        try:
            yield
        finally:
            with door.changed:
                door.capturing = None

    def _checkpoint(self, row: SessionRow, given: Given) -> tuple[Any, str, int]:
        found = self._call(
            "checkpoint",
            row,
            intent=" ".join((*given.words, *given.after)),
            name=given.values.get("--name"),
            files_only="--files-only" in given.flags,
        )
        return _taken(found["checkpoint"], "original", found["warnings"])

    def _task_done(self, row: SessionRow, given: Given) -> tuple[Any, str, int]:
        found, text, status = self._task_set(row, given, "completed")
        return {**found, "copy": "original"}, f"{text}\n{views.quoted(found['checkpoint'])}", status

    def _copied(self, live: Live, point: Checkpoint, own: Own) -> Answer:
        """For whoever took this point from inside and wakes up in a copy of it."""
        # A fork is in the database only when it runs.
        copy = "restored" if self._app.store.sessions.find(live.session_id) else "forked"
        found, text, status = _taken(msgspec.to_builtins(point), copy, ())
        if split(own.words)[0].startswith("task"):
            held = tasks.load(self._app.store.points.tasks(point.id))
            shown = [task for task in held if task.checkpoint == point.id]
            found |= msgspec.to_builtins({"task": shown[0] if shown else None, "tasks": held})
            text = "\n".join([*tasks.listing(shown), text])
        return _answer(found, text, status, json=_wants_json(own.words))

    def _visible(self, row: SessionRow) -> Visible:
        return Visible(row, self._app.store.points.all())

    def _log(self, row: SessionRow, given: Given, asked: Asked) -> tuple[Any, str, int]:
        number = given.values.get("-n")
        if number is not None and not (number.isascii() and number.isdigit() and int(number[:9]) > 0):
            raise UsageError(f"-n takes a number, not {number!r}", hint="waypoint log -n 5")
        points = self._visible(row).points
        points = points[-int(number[:9]) :] if number else points
        found = msgspec.to_builtins({"session": row.name, "head": row.head, "checkpoints": points})
        return found, str(views.Log(found, width=asked.width)), 0

    def _status(self, row: SessionRow, _: Given, __: Asked) -> tuple[Any, str, int]:
        found = self._call("status", row)
        text = str(views.Status(found))
        return {**found, "session": _own_view(found["session"])}, text, 0

    def _changed(self, row: SessionRow, given: Given, asked: Asked) -> tuple[Any, str, int]:
        besides = [posixpath.join(asked.cwd, path) for path in (*given.words, *given.after)]
        found = self._call("changed", row, besides=besides)
        text = "something has changed" if found["changed"] else "nothing has changed"
        return found, text, _DIFFERENT if found["changed"] else 0

    def _resume(self, row: SessionRow, _: Given, __: Asked) -> tuple[Any, str, int]:
        found = self._call("resume", row)
        return {name: found[name] for name in ("text", "task", "tasks", "checkpoint")}, found["text"], 0

    def _classify(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        found = self._call("classify", row, command=" ".join((*given.words, *given.after)))
        return found, str(views.Judgement(found["judgement"])), 0

    def _effect(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        args = {name: given.values.get(f"--{name}") for name in ("target", "key", "compensate")}
        args["class"] = "external-reversible" if "--reversible" in given.flags else "irreversible"
        what = " ".join((*given.words, *given.after))
        found = self._call("effect", row, what=what, **args)
        return found, f"effect {found['effect']['id']}", 0

    def _show(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        (ref,) = (*given.words, *given.after)
        found = self._call("show", row, ref=self._visible(row).point(ref).id)
        card = views.Card(found)
        most = None if "--all" in given.flags else 40
        return found, "\n".join(text for _, text in card.lines(most)), 0

    def _diff(self, row: SessionRow, given: Given, asked: Asked) -> tuple[Any, str, int]:
        patch = "--patch" in given.flags
        if patch and asked.uid:
            raise UsageError(
                "the text of files is shown to root only",
                hint="leave --patch out: what changed is told anyway",
            )
        names = [word for word in given.words if not word.startswith(("/", "."))]
        points, paths = (
            names[:2],
            [*names[2:], *(word for word in given.words if word.startswith(("/", ".")))],
        )
        visible = self._visible(row)
        ends = [ref if ref in (BASE, NOW) else visible.point(ref).id for ref in points]
        if not ends:
            ends = [row.head or BASE]
        found = self._call(
            "diff",
            row,
            a=ends[0],
            b=ends[1] if len(ends) > 1 else None,
            paths=[posixpath.join(asked.cwd, path) for path in (*paths, *given.after)],
            only=[name for flag in sorted(given.flags) for name in _SECTIONS.get(flag, ())],
            patch=patch,
        )
        told = views.Diff(found)
        if told.patch is not None:
            text = told.patch
        else:
            lines = told.stat() if "--stat" in given.flags else told.lines()
            text = "\n".join(line for _, line in lines)
        return found, text, _DIFFERENT if told else 0

    # ---- what an agent did, and has still to do ------------------------------------------------

    def _record(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        what, *rest = (*given.words, *given.after)
        content: Any = " ".join(rest)
        if "--structured" in given.flags or (what == "tool_call" and content.lstrip().startswith("{")):
            try:
                content = msgspec.json.decode(content)
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageError(
                    f"that is no JSON: {error}", hint="leave --structured out for text"
                ) from error
        # Whoever is meant to have said it: that it was said is the claim of somebody in here.
        found = self._call(
            "record",
            row,
            what=what,
            content=content,
            name=given.values.get("--name"),
            call=given.values.get("--call"),
            error="--error" in given.flags,
        )
        return found, f"event {found['event']}", 0

    def _tasks(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        refs = [self._visible(row).point(ref).id for ref in (*given.words, *given.after)]
        found = self._call("tasks", row, ref=refs[0] if refs else None)
        return found, _listing(found["tasks"]) or "there are no tasks: `waypoint task add` makes one", 0

    def _task_add(self, row: SessionRow, given: Given, _: Asked) -> tuple[Any, str, int]:
        found = self._call(
            "task_add",
            row,
            titles=[*given.words, *given.after],
            under=given.values.get("--under"),
            once="--once" in given.flags,
        )
        return found, _listing(found["added"]), 0

    def _task_set(self, row: SessionRow, given: Given, state: str) -> tuple[Any, str, int]:
        task, *note = (*given.words, *given.after)
        evidence = given.values.get("--evidence")
        found = self._call(
            "task_set",
            row,
            task=task,
            state=state,
            note=" ".join(note),
            evidence=self._visible(row).point(evidence).id if evidence else None,
            checkpoint="--checkpoint" in given.flags,
        )
        return found, _listing([found["task"]]), 0


_TELLING: dict[str, Verb] = {
    "log": Inside._log,
    "status": Inside._status,
    "changed": Inside._changed,
    "resume": Inside._resume,
    "classify": Inside._classify,
    "effect": Inside._effect,
    "show": Inside._show,
    "diff": Inside._diff,
    "record": Inside._record,
    "task ls": Inside._tasks,
    "task add": Inside._task_add,
}


class _Nobody(Connection):
    """In place of a connection, for verbs that only answer."""

    def __init__(self) -> None:
        pass

    def event(self, what: Any) -> None:
        pass


_NOBODY = _Nobody()


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb, be it of two words, and what comes after it."""
    verb, *rest = words or ("help",)
    before = []
    if verb == "--json" and rest:
        before, (verb, *rest) = [verb], rest
    if verb == "task" and rest:
        verb, rest = f"task {rest[0]}", rest[1:]
    return verb, [*before, *rest]


def _is_lasting(asked: Asked) -> bool:
    verb, _ = split(asked.words)
    return verb in ("checkpoint", "effect", "record") or (verb.startswith("task ") and verb != "task ls")


def _listing(found: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(tasks.listing(msgspec.convert(found, list[Task])))


def _wants_json(words: Sequence[str]) -> bool:
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _taken(point: Mapping[str, Any], copy: str, warnings: Sequence[str]) -> tuple[Any, str, int]:
    words = views.quoted(point)
    marks = {
        "restored": "  this is the point again: the session was restored to it",
        "forked": "  this is a fork of it",
    }
    text = "\n".join([words + marks.get(copy, ""), *(f"warning: {one}" for one in warnings)])
    return {"checkpoint": point, "copy": copy, "warnings": list(warnings)}, text, 0


def _own_view(session: Mapping[str, Any]) -> dict[str, Any]:
    """A session as it may see itself: without where things are on the host."""
    return {name: value for name, value in session.items() if name not in ("options", "pid")}


def _answer(found: Any, text: str, status: int, *, json: bool) -> Answer:
    out = msgspec.json.encode(found).decode() if json else text
    if len(out.encode(errors="replace")) >= MOST_ANSWER_BYTES:
        if json:
            raise UsageError(
                "that is more than an answer can hold", hint="ask for less: some paths, --files, or --stat"
            )
        cut = out.encode(errors="replace")[: MOST_ANSWER_BYTES - 200].decode(errors="ignore")
        out = f"{cut}\n… the rest is left out: ask for some paths, or --stat"
    return Answer(status=status, out=out if out.endswith("\n") or not out else f"{out}\n")


def _refusal(error: WaypointError, *, json: bool) -> Answer:
    if json:
        return Answer(
            status=error.exit_status,
            out=msgspec.json.encode({"error": error.as_dict(hints.in_command)}).decode() + "\n",
        )
    hint = "".join(f"\n  {line}" for line in hints.word(error.hint, hints.in_command).splitlines())
    return Answer(status=error.exit_status, err=f"waypoint: {error.message}{hint}\n")
