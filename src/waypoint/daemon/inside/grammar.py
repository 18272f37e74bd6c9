"""What may be asked from inside a session: about itself, and nothing else.

A small, strict command line. `ALLOWED` lists the verbs, and of each request (api/requests.py) the arguments
that may be given: no option here names a file of the host, another session or a plan. The session is the one
whose box the request came from. A ref means one of its own points, or one that it grew from; whether others
exist is not told. Nothing that moves a session (restore, undo, fork, park), lets something out (apply,
export, cp) or grants something (approve) is here.

daemon/inside/doors.py brings the requests and takes the answers back.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from waypoint import __version__
from waypoint.agent import tasks
from waypoint.api import hints, requests
from waypoint.api.request import Request
from waypoint.core.comparison import BASE, NOW
from waypoint.core.live import Live
from waypoint.daemon.connection import Connection
from waypoint.daemon.inside.doors import MOST_ANSWER_BYTES, Answer, Door, DoorRequest, Doors, OwnRequest
from waypoint.daemon.verbs import handler_of
from waypoint.errors import NotFound, SessionBusy, SessionDead, UsageError, WaypointError
from waypoint.history import refs
from waypoint.history.view import printable
from waypoint.model import MALFORMED, Checkpoint, Task, TaskState, from_plain
from waypoint.store.sessions import SessionRow
from waypoint.text import views

if TYPE_CHECKING:
    from waypoint.daemon.app import App

_DIFFERENT = 1
_ROW_BYTES = 500
"""What storing something takes, however short it is."""
_BORN_SECONDS = 30.0
"""How long a fork may take from its first instruction until it is in the database: its hooks run before."""

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


_MANY = 4096


@dataclass(frozen=True)
class Grammar:
    """What a verb takes. `fields`: arguments of its request that are options here; a switch for a bool.
    `flags`, `values`: options that only this grammar has."""

    verb: str
    words: str = ""
    least: int = 0
    most: int = 0
    fields: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @functools.cache  # noqa: B019 - a few grammars, which live as long as the daemon
    def options(self) -> dict[str, bool]:
        """Its options, and whether each takes a value."""
        types = get_type_hints(requests.kind_of(self.verb))
        own = {f"--{name.replace('_', '-')}": types[name] is not bool for name in self.fields}
        return own | dict.fromkeys(self.flags, False) | dict.fromkeys(self.values, True)

    def usage(self, name: str) -> str:
        shown = [
            f"[{option} {option.lstrip('-').upper()}]" if takes_value else f"[{option}]"
            for option, takes_value in self.options().items()
        ]
        return " ".join(filter(None, ("waypoint", name, self.words, *shown)))


ALLOWED: dict[str, Grammar] = {
    "checkpoint": Grammar("checkpoint", "[INTENT]", most=_MANY, fields=("name", "files_only")),
    "log": Grammar("log", values=("-n",)),
    "status": Grammar("status"),
    "changed": Grammar("changed", "[PATH…]", most=_MANY),
    "resume": Grammar("resume"),
    "classify": Grammar("classify", "CMD…", 1, _MANY),
    "effect": Grammar(
        "effect", "WHAT", 1, _MANY, fields=("target", "key", "compensate"), flags=("--reversible",)
    ),
    "show": Grammar("show", "REF", 1, 1, flags=("--all",)),
    "diff": Grammar(
        "diff",
        "[A [B]] [PATH…]",
        most=_MANY,
        fields=("patch",),
        flags=("--stat", "--files", "--packages", "--processes", "--shell"),
    ),
    "record": Grammar(
        "record", "WHAT TEXT|-", 2, _MANY, fields=("name", "call", "error"), flags=("--structured",)
    ),
    "task ls": Grammar("tasks", "[REF]", most=1),
    "task add": Grammar("task_add", "TITLE…", 1, _MANY, fields=("under", "once")),
    "task start": Grammar("task_set", "TASK", 1, 1),
    "task done": Grammar("task_set", "TASK [NOTE]", 1, _MANY, fields=("evidence", "checkpoint")),
    "task fail": Grammar("task_set", "TASK [NOTE]", 1, _MANY, fields=("evidence",)),
    "task skip": Grammar("task_set", "TASK [NOTE]", 1, _MANY),
}
_STATES: dict[str, TaskState] = {
    "task start": "in_progress",
    "task done": "completed",
    "task fail": "failed",
    "task skip": "skipped",
}
_WITH_PATHS = ("changed", "diff")
"""Verbs whose words may be paths: any bytes. The words of all others are texts."""
_SECTIONS = {
    "--files": ("files",),
    "--packages": ("packages",),
    "--processes": ("processes", "ports"),
    "--shell": ("shell",),
}


@dataclass
class Arguments:
    """The arguments of a request, sorted."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    """The words behind `--`."""

    @property
    def all_words(self) -> list[str]:
        return [*self.words, *self.after]

    @property
    def text(self) -> str:
        return " ".join(self.all_words)


def parse(name: str, words: Sequence[str], grammar: Grammar) -> Arguments:
    """The words of a verb, sorted. What the grammar does not know is refused."""
    usage, options = grammar.usage(name), grammar.options()
    arguments, rest = Arguments(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments.after = rest
            break
        option, equals, value = word.partition("=")
        if word == "--json" or options.get(word) is False:
            arguments.flags.add(word)
        elif options.get(option) or option in ("-s", "--session"):
            if not equals:
                if not rest:
                    raise UsageError(f"{option} needs a value", hint=usage)
                value = rest.pop(0)
            arguments.values[option] = value
        elif word.startswith("-") and word != "-":
            raise UsageError(f"{name} has no option {printable(option)} inside a session", hint=usage)
        else:
            arguments.words.append(word)
    number = len(arguments.all_words)
    if not grammar.least <= number <= grammar.most:
        message = "an argument is missing" if number < grammar.least else "too many arguments"
        raise UsageError(message, hint=usage)
    return arguments


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


@dataclass(frozen=True)
class Reply:
    """An answer as data, as text, and the exit status."""

    data: Mapping[str, Any]
    text: str
    status: int = 0


class Inside:
    """Answers what comes in through the doors."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.doors = Doors(app.home, answer=self.answer, lasting=_is_lasting, copied=self._copied)

    # ---- one request -------------------------------------------------------------------------

    def answer(self, door: Door, incoming: DoorRequest) -> Answer:
        """Carries a request out. An error of it is an answer, too."""
        try:
            return self._carry_out(door, incoming)
        except WaypointError as error:
            return _refusal(error, json=_wants_json(incoming.words))

    def _carry_out(self, door: Door, incoming: DoorRequest) -> Answer:
        name, words = split(incoming.words)
        if name not in _WITH_PATHS:
            words = [printable(word) for word in words]
        if name in ("help", "-h", "--help") or (words and words[0] in ("-h", "--help")):
            return Answer(status=0, out=OVERVIEW)
        if name in ("--version", "-V"):
            return Answer(status=0, out=f"waypoint {__version__}\n")
        grammar = ALLOWED.get(name)
        if grammar is None:
            raise UsageError(
                f"`waypoint {printable(name)}` cannot be asked from inside a session",
                hint=f"there are: {', '.join(ALLOWED)}; the rest is done from outside",
            )
        if incoming.again and _is_lasting(incoming):
            raise SessionDead(
                "the daemon was replaced while it did this: it may be done or not",
                hint="`waypoint log` tells; ask again if it is not",
            )
        arguments = parse(name, words, grammar)
        row = self._row(door)
        session = arguments.values.get("-s") or arguments.values.get("--session")
        if session is not None and session != row.name:
            raise NotFound(
                f"there is no session {printable(session)!r} in here",
                hint=f"this is {row.name!r}, and no other can be seen from here",
            )
        if _is_lasting(incoming) and not door.words.take(sum(map(len, incoming.words)) + _ROW_BYTES):
            raise SessionBusy(
                "this session has stored very much in a short time",
                hint=f"more in {door.words.wait_seconds + 0.5:.0f} s; what is large is better kept in a file",
            )
        takes_point = name == "checkpoint" or "--checkpoint" in arguments.flags
        with self._capturing(door, incoming) if takes_point else contextlib.nullcontext():
            reply = _HANDLERS[name](self, row, arguments, incoming)
        return _answer(reply, json="--json" in arguments.flags)

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

    def _ask(self, request: Request[Any]) -> dict[str, Any]:
        """What the daemon answers to a request, as it travels."""
        handler = handler_of(requests.verb_of(type(request)))
        answer: dict[str, Any] = msgspec.to_builtins(handler(self._app, _NO_CLIENT, request))
        return answer

    @contextlib.contextmanager
    def _capturing(self, door: Door, incoming: DoorRequest) -> Iterator[None]:
        """While a request takes a point, which then knows for whom it was taken."""
        if not door.points.take():
            raise SessionBusy(
                "this session has asked for many points in a short time",
                hint=f"the next one in {door.points.wait_seconds + 0.5:.0f} s",
            )
        with door.changed:
            door.capturing = (incoming, threading.get_ident())
            door.changed.notify_all()
        try:
            yield
        finally:
            with door.changed:
                door.capturing = None

    def _copied(self, live: Live, point: Checkpoint, own: OwnRequest) -> Answer:
        """For the process that took this point from inside and wakes up in a copy of it."""
        # A fork is in the database only when it runs.
        copy = "restored" if self._app.store.sessions.find(live.session_id) else "forked"
        reply = _taken(msgspec.to_builtins(point), copy, ())
        if split(own.words)[0].startswith("task"):
            all_tasks = tasks.load(self._app.store.points.tasks(point.id))
            shown = [task for task in all_tasks if task.checkpoint == point.id]
            more = msgspec.to_builtins({"task": shown[0] if shown else None, "tasks": all_tasks})
            reply = Reply({**reply.data, **more}, "\n".join([*tasks.listing(shown), reply.text]))
        return _answer(reply, json=_wants_json(own.words))

    def _visible(self, row: SessionRow) -> Visible:
        return Visible(row, self._app.store.points.all())

    # ---- verbs -------------------------------------------------------------------------------

    def _checkpoint(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        answer = self._ask(
            requests.Checkpoint(
                session=row.id,
                intent=arguments.text,
                name=arguments.values.get("--name"),
                files_only="--files-only" in arguments.flags,
                actor="agent",
            )
        )
        return _taken(answer["checkpoint"], "original", answer["warnings"])

    def _log(self, row: SessionRow, arguments: Arguments, incoming: DoorRequest) -> Reply:
        number = arguments.values.get("-n")
        if number is not None and not (number.isascii() and number.isdigit() and int(number[:9]) > 0):
            raise UsageError(f"-n takes a number, not {number!r}", hint="waypoint log -n 5")
        points = self._visible(row).points
        points = points[-int(number[:9]) :] if number else points
        data = msgspec.to_builtins({"session": row.name, "head": row.head, "checkpoints": points})
        return Reply(data, str(views.Log(data, width=incoming.width)))

    def _status(self, row: SessionRow, _: Arguments, __: DoorRequest) -> Reply:
        answer = self._ask(requests.Status(session=row.id))
        return Reply({**answer, "session": _own_view(answer["session"])}, str(views.Status(answer)))

    def _changed(self, row: SessionRow, arguments: Arguments, incoming: DoorRequest) -> Reply:
        besides = tuple(posixpath.join(incoming.cwd, path) for path in arguments.all_words)
        answer = self._ask(requests.Changed(session=row.id, besides=besides))
        text = "something has changed" if answer["changed"] else "nothing has changed"
        return Reply(answer, text, _DIFFERENT if answer["changed"] else 0)

    def _resume(self, row: SessionRow, _: Arguments, __: DoorRequest) -> Reply:
        answer = self._ask(requests.Resume(session=row.id, actor="agent"))
        return Reply({name: answer[name] for name in ("text", "task", "tasks", "checkpoint")}, answer["text"])

    def _classify(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        answer = self._ask(requests.Classify(command=arguments.text, session=row.id))
        return Reply(answer, str(views.Judgement(answer["judgement"])))

    def _effect(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        answer = self._ask(
            requests.Effect(
                what=arguments.text,
                session=row.id,
                class_="external-reversible" if "--reversible" in arguments.flags else "irreversible",
                target=arguments.values.get("--target", ""),
                key=arguments.values.get("--key", ""),
                compensate=arguments.values.get("--compensate", ""),
                actor="agent",
            )
        )
        return Reply(answer, f"effect {answer['effect']['id']}")

    def _show(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        (ref,) = arguments.all_words
        answer = self._ask(requests.Show(ref=self._visible(row).point(ref).id, session=row.id))
        lines = views.Card(answer).lines(None if "--all" in arguments.flags else 40)
        return Reply(answer, "\n".join(text for _, text in lines))

    def _diff(self, row: SessionRow, arguments: Arguments, incoming: DoorRequest) -> Reply:
        patch = "--patch" in arguments.flags
        if patch and incoming.uid:
            raise UsageError(
                "the text of files is shown to root only",
                hint="leave --patch out: what changed is told anyway",
            )
        is_path = [word.startswith(("/", ".")) for word in arguments.words]
        names = [word for word, path in zip(arguments.words, is_path, strict=True) if not path]
        paths = [*names[2:], *(word for word, path in zip(arguments.words, is_path, strict=True) if path)]
        visible = self._visible(row)
        ends = [ref if ref in (BASE, NOW) else visible.point(printable(ref)).id for ref in names[:2]]
        answer = self._ask(
            requests.Diff(
                session=row.id,
                a=ends[0] if ends else row.head or BASE,
                b=ends[1] if len(ends) > 1 else None,
                paths=tuple(posixpath.join(incoming.cwd, path) for path in (*paths, *arguments.after)),
                only=tuple(name for flag in sorted(arguments.flags) for name in _SECTIONS.get(flag, ())),
                patch=patch,
            )
        )
        diff = views.Diff(answer)
        lines = diff.stat() if "--stat" in arguments.flags else diff.lines()
        text = diff.patch if diff.patch is not None else "\n".join(line for _, line in lines)
        return Reply(answer, text, _DIFFERENT if diff else 0)

    # ---- what an agent did, and has still to do ------------------------------------------------

    def _record(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        what, *rest = arguments.all_words
        content: Any = " ".join(rest)
        if "--structured" in arguments.flags or (what == "tool_call" and content.lstrip().startswith("{")):
            try:
                content = msgspec.json.decode(content)
            except (*MALFORMED, RecursionError) as error:
                raise UsageError(
                    f"that is no JSON: {error}", hint="leave --structured out for text"
                ) from error
        # The actor is not the role: that it was said is the claim of a process in here.
        answer = self._ask(
            requests.Record(
                what=what,
                session=row.id,
                content=content,
                name=arguments.values.get("--name"),
                call=arguments.values.get("--call"),
                error="--error" in arguments.flags,
                actor="agent",
            )
        )
        return Reply(answer, f"event {answer['event']}")

    def _tasks(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        refs = [self._visible(row).point(ref).id for ref in arguments.all_words]
        answer = self._ask(requests.Tasks(session=row.id, ref=refs[0] if refs else None))
        return Reply(answer, _listing(answer["tasks"]) or "there are no tasks: `waypoint task add` makes one")

    def _task_add(self, row: SessionRow, arguments: Arguments, _: DoorRequest) -> Reply:
        answer = self._ask(
            requests.TaskAdd(
                titles=tuple(arguments.all_words),
                session=row.id,
                under=arguments.values.get("--under"),
                once="--once" in arguments.flags,
                actor="agent",
            )
        )
        return Reply(answer, _listing(answer["added"]))

    def _task_set(self, row: SessionRow, arguments: Arguments, incoming: DoorRequest) -> Reply:
        task, *note = arguments.all_words
        evidence = arguments.values.get("--evidence")
        takes_point = "--checkpoint" in arguments.flags
        answer = self._ask(
            requests.TaskSet(
                task=task,
                state=_STATES[split(incoming.words)[0]],
                session=row.id,
                note=" ".join(note),
                evidence=self._visible(row).point(evidence).id if evidence else None,
                checkpoint=takes_point,
                actor="agent",
            )
        )
        text = _listing([answer["task"]])
        if takes_point:
            return Reply({**answer, "copy": "original"}, f"{text}\n{views.quoted(answer['checkpoint'])}")
        return Reply(answer, text)


_HANDLERS: dict[str, Callable[[Inside, SessionRow, Arguments, DoorRequest], Reply]] = {
    "checkpoint": Inside._checkpoint,
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
    **dict.fromkeys(_STATES, Inside._task_set),
}


class _NoClient(Connection):
    """Stands for the connection in requests from inside, which only answer."""

    def __init__(self) -> None:
        pass

    def event(self, body: Any) -> None:
        pass


_NO_CLIENT = _NoClient()


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb, which may have two words, and what comes after it."""
    verb, *rest = words or ("help",)
    before = []
    if verb == "--json" and rest:
        before, (verb, *rest) = [verb], rest
    if verb == "task" and rest:
        verb, rest = f"task {rest[0]}", rest[1:]
    return verb, [*before, *rest]


def _is_lasting(incoming: DoorRequest) -> bool:
    """Whether a request leaves something behind, so that it must not be carried out twice."""
    verb, _ = split(incoming.words)
    return verb in ("checkpoint", "effect", "record") or (verb.startswith("task ") and verb != "task ls")


def _listing(listed: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(tasks.listing(from_plain(listed, list[Task])))


def _wants_json(words: Sequence[str]) -> bool:
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _taken(point: Mapping[str, Any], copy: str, warnings: Sequence[str]) -> Reply:
    marks = {
        "restored": "  this is the point again: the session was restored to it",
        "forked": "  this is a fork of it",
    }
    lines = [views.quoted(point) + marks.get(copy, ""), *(f"warning: {warning}" for warning in warnings)]
    return Reply({"checkpoint": point, "copy": copy, "warnings": list(warnings)}, "\n".join(lines))


def _own_view(session: Mapping[str, Any]) -> dict[str, Any]:
    """A session as it may see itself: without where things are on the host."""
    return {name: value for name, value in session.items() if name not in ("options", "pid")}


def _answer(reply: Reply, *, json: bool) -> Answer:
    out = msgspec.json.encode(reply.data).decode() if json else reply.text
    if len(out.encode(errors="replace")) >= MOST_ANSWER_BYTES:
        if json:
            raise UsageError(
                "that is more than an answer can hold", hint="ask for less: some paths, --files, or --stat"
            )
        cut = out.encode(errors="replace")[: MOST_ANSWER_BYTES - 200].decode(errors="ignore")
        out = f"{cut}\n… the rest is left out: ask for some paths, or --stat"
    return Answer(status=reply.status, out=out if out.endswith("\n") or not out else f"{out}\n")


def _refusal(error: WaypointError, *, json: bool) -> Answer:
    if json:
        out = msgspec.json.encode({"error": error.as_dict(hints.in_command)}).decode()
        return Answer(status=error.exit_status, out=f"{out}\n")
    hint = "".join(f"\n  {line}" for line in hints.word(error.hint, hints.in_command).splitlines())
    return Answer(status=error.exit_status, err=f"waypoint: {error.message}{hint}\n")
