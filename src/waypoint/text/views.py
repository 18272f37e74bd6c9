"""Answers of the daemon as objects that can be printed: `Diff`, `Card`, `Plan`, `Status`, `Comparison`, ….

Each wraps the answer as it travelled (`data`, the same as the command line prints as JSON) and has
properties for the parts that are needed most. `str()` is the text that the command line shows; `lines()` is
the same with the manner of each line, for a face that has colours.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from waypoint.api.hints import Do, Wording, in_python
from waypoint.text.live import COMPARED
from waypoint.text.units import age, clock, cut, milliseconds, plural, shown, size

Manner = Literal["plain", "bold", "dim", "good", "bad", "warn"]
Lines = list[tuple[Manner, str]]

_MANNERS: Mapping[str, Manner] = {"+": "good", "-": "bad", "~": "warn", "→": "warn"}
_VERDICT_MANNERS: Mapping[str, Manner] = {
    "passed": "good",
    "failed": "bad",
    "error": "bad",
    "timeout": "warn",
    "unclear": "warn",
}
_NAME_WIDTH = 10
_TEXT_WIDTH = 48
_TITLE_WIDTH = 72
_LEAST_COLUMN = 22
"""How narrow the column of a candidate may be, in characters."""


def title(point: Mapping[str, Any]) -> str:
    """What a point is meant to be, and whose words these are: given ones stand as they are, a command has its
    prompt before it, a commit says that it is one."""
    intent = point["intent"].strip()
    if point["intent_from"] == "command" and "\n" in intent:
        intent = f"{intent.partition(chr(10))[0]} …"
    words = shown(intent)
    if not words:
        return ""
    marks = {"command": f"$ {words}", "git": f'commit "{words}"'}
    return marks.get(point["intent_from"], words)


def quoted(point: Mapping[str, Any]) -> str:
    """`c2 up "before auth refactor"`."""
    words = title(point)
    if len(words) > _TITLE_WIDTH:
        words = f"{words[: _TITLE_WIDTH - 1].rstrip()}…"
    if words and point["intent_from"] == "given":
        words = f'"{words}"'
    return " ".join(filter(None, (point["label"], point["name"], words)))


def verdict(result: Mapping[str, Any] | None, *, short: bool = False) -> str:
    """`✔ npm test (in a fork, 2.1 s)`."""
    if result is None:
        return "– not verified"
    command = shown(result["command"])
    match result["state"]:
        case "passed":
            took = milliseconds(result["duration_ms"] or 0)
            return f"✔ {command}" if short else f"✔ {command} (in a fork, {took})"
        case "failed":
            code = result["exit_code"]
            return f"✖ {command} " + ("did not end" if code is None else f"exit {code}")
        case "timeout":
            return f"? {command} took longer than {milliseconds(result['duration_ms'] or 0)}"
        case "unclear":
            return f"? {command} cannot tell (exit {result['exit_code']})"
        case "running":
            return f"… {command} runs in a fork"
    return f"✖ {command} could not be tried"


def verdicts(point: Mapping[str, Any], *, short: bool = False) -> str:
    """What each command that was tried at a point says of it: first the one that decides."""
    first = point["verdict"]
    if first is None:
        return verdict(None)
    others = [result for result in reversed(point.get("verdicts", ())) if result["id"] != first["id"]]
    return " · ".join([verdict(first, short=short), *(verdict(result, short=True) for result in others)])


def _verdict_in_brief(point: Mapping[str, Any]) -> str:
    return verdicts(point, short=True).removeprefix("– ")


def restorable(point: Mapping[str, Any]) -> tuple[Manner, str] | None:
    """What is known of a restore of a point, in words; None for one without processes."""
    match point.get("restorable"):
        case _ if point.get("problem"):
            return (
                "bad",
                f"NO, it is not saved: {shown(point['problem'])}; `undo` lets its processes run again",
            )
        case _ if point.get("pending"):
            return "dim", "it is being saved; its processes stand still"
        case _ if point["files_only"]:
            return None
        case "proven":
            return "plain", "yes, its processes have been brought back once"
        case "failed":
            return "bad", f"NO: {shown(point['restore_error'] or 'its restore failed')}"
    return "dim", "not tried yet"


def verdict_manner(result: Mapping[str, Any] | None) -> Manner:
    state = result["state"] if result else ""
    return _VERDICT_MANNERS.get(state, "dim")


def _row(name: str, text: str) -> str:
    return f"{name.ljust(_NAME_WIDTH)} {text}"


def sections(described: Sequence[Mapping[str, Any]], most: int | None = None) -> Lines:
    """Sections of a difference, each under its name; of each at most so many lines."""
    lines: Lines = []
    for section in described:
        lines.append(("bold", f"{_row(section['name'], section['summary'])}  [{section['source']}]"))
        lines_shown = section["lines"][:most]
        width = min(_TEXT_WIDTH, max(len(line["text"]) for line in lines_shown))
        for line in lines_shown:
            text = f"  {line['sign']} {line['text']}"
            if line["detail"]:
                text = f"{text.ljust(width + 4)}  {line['detail']}"
            lines.append((_MANNERS[line["sign"]], text))
        if len(lines_shown) < len(section["lines"]):
            lines.append(("dim", f"    … {len(section['lines']) - len(lines_shown):,} more"))
    return lines


def _left_out(gaps: Sequence[str], redacted: int) -> Lines:
    lines: Lines = [("warn", _row("missing", shown(gap))) for gap in gaps]
    if redacted:
        lines.append(("dim", _row("redacted", plural(redacted, "value"))))
    return lines


def _not_compared(phrases: Sequence[str]) -> Lines:
    return [("dim", _row("not seen", shown(phrase))) for phrase in phrases]


class Answer:
    """The answer of the daemon, and how it is printed."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def lines(self) -> Lines:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.lines())


class Diff(Answer):
    """What changed from one point to another. True when anything did; printed, it says what.

    `sections`: the same in words, `{"name", "source", "summary", "lines": [{"sign", "text", "detail"}]}`.
    """

    @property
    def summary(self) -> str:
        return str(self.data["summary"])

    @property
    def sections(self) -> list[dict[str, Any]]:
        return list(self.data["sections"])

    @property
    def files(self) -> list[dict[str, Any]]:
        """Changed files: `path`, `kind` (created, modified, deleted, renamed), `size_before`, …"""
        return list(self.data["difference"]["files"]["changes"])

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What changed files mean; each has a `kind`: package, repository, database, server, account, …."""
        return list(self.data["difference"]["analysis"]["findings"])

    @property
    def live(self) -> dict[str, Any]:
        """`started` and `ended` processes, `opened` and `closed` ports, `cwd`, `variables`, …"""
        return dict(self.data["difference"]["live"])

    @property
    def gaps(self) -> list[str]:
        """What could not be found out, and why."""
        return list(self.data["difference"]["gaps"])

    @property
    def not_compared(self) -> list[str]:
        """What may have changed without a sign of it: the memory of programs that went on."""
        return list(self.data["difference"].get("not_compared", ()))

    @property
    def redacted(self) -> int:
        """How many values were taken out because they look like secrets."""
        return int(self.data["difference"]["redacted"])

    @property
    def patch(self) -> str | None:
        """A unified diff of the text files, if that was asked for."""
        return self.data.get("patch")

    def lines(self) -> Lines:
        lines = sections(self.sections) or [("dim", "no change found")]
        return [*lines, *_not_compared(self.not_compared), *_left_out(self.gaps, self.redacted)]

    def stat(self) -> Lines:
        """One line for each section."""
        rows: Lines = [("plain", _row(section["name"], section["summary"])) for section in self.sections]
        return [*(rows or [("dim", "no change found")]), *_left_out(self.gaps, self.redacted)]

    def __bool__(self) -> bool:
        return bool(self.data["different"])

    def __repr__(self) -> str:
        return f"<Diff {self.summary}>"


class Card(Answer):
    """The story of a point: what it is meant to be, what changed, what was said about it."""

    @property
    def ready(self) -> bool:
        """Whether it has been computed; a moment after the checkpoint it may not be."""
        return self.data["card"] is not None

    @property
    def _card(self) -> Mapping[str, Any]:
        return self.data["card"] or {}

    @property
    def intent(self) -> str:
        return str(self.data["checkpoint"]["intent"])

    @property
    def intent_from(self) -> str:
        """`given`, `command`, `git` or `none`: whose words the intent is."""
        return str(self.data["checkpoint"]["intent_from"])

    @property
    def summary(self) -> str:
        return str(self._card.get("summary", ""))

    @property
    def marks(self) -> list[dict[str, str]]:
        """What it says, each with where that comes from: `topic`, `text`, `source`."""
        return list(self._card.get("lines", ()))

    @property
    def difference(self) -> Diff | None:
        """What changed since the point before."""
        if not self.ready:
            return None
        return Diff(
            {
                "difference": self._card["difference"],
                "summary": self.summary,
                "sections": self.data["sections"],
                "different": bool(self.data["sections"]),
            }
        )

    @property
    def coverage(self) -> list[str]:
        """What the point does not hold."""
        return list(self._card.get("coverage", self.data["checkpoint"]["coverage"]))

    @property
    def gaps(self) -> list[str]:
        return list(self._card.get("gaps", ()))

    @property
    def redacted(self) -> int:
        return int(self._card.get("redacted", 0))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return list(self.data["verdicts"])

    @property
    def notes(self) -> list[dict[str, str]]:
        return list(self.data["notes"])

    def lines(self, most: int | None = 40, now: datetime | None = None) -> Lines:
        point = self.data["checkpoint"]
        lines: Lines = [("bold", " ".join(filter(None, (point["label"], point["name"], *point["tags"]))))]
        lines += [("plain", row) for row in self.about(now)]
        lines += [
            (verdict_manner(result), _row("verified", f"{verdict(result)}, {clock(result['at'], now)}"))
            for result in self.verdicts
        ] or [("dim", _row("verified", "not yet"))]
        if known := restorable(point):
            lines.append((known[0], _row("restores", known[1])))
        for mark in self.marks:
            if mark["topic"] == "tasks":
                lines.append(("plain", _row("tasks", f"{shown(mark['text'])}  [{mark['source']}]")))
        for note in self.notes:
            added = f'"{shown(note["text"])}"  [claimed, added later: {clock(note["at"], now)}]'
            lines.append(("plain", _row("note", added)))
        if point.get("pending"):
            return lines
        if not self.ready:
            lines.append(("warn", _row("missing", "the card is not there yet; ask again in a moment")))
        elif not self.data["sections"]:
            lines.append(("dim", _row("changes", "no change found since the point before")))
        lines += sections(self.data["sections"], most)
        if self.difference is not None:
            lines += _not_compared(self.difference.not_compared)
        lines += [("warn", _row("not held", shown(sentence))) for sentence in self.coverage]
        return [*lines, *_left_out(self.gaps, self.redacted)]

    def about(self, now: datetime | None = None) -> Iterator[str]:
        """What it is, when it was taken, by whom."""
        point = self.data["checkpoint"]
        source = next((mark["source"] for mark in self.marks if mark["topic"] == "intent"), "claimed")
        whose = {"command": "the last command", "git": "the last commit's subject"}
        how = ", ".join(filter(None, (source, whose.get(point["intent_from"], ""))))
        yield _row("intent", f"{title(point)}  [{how}]" if self.intent else "none was given")
        yield _row("point", f"{point['session']}:{point['label']}, id {point['id']}")
        yield _row("when", f"{clock(point['created_at'], now)}, {age(point['created_at'], now)}")
        kinds = {"safety": "Waypoint, before a restore", "auto": "Waypoint, after a command"}
        who = {"person": "a person", "agent": "an agent", "automatic": "Waypoint"}
        yield _row("who", kinds.get(point["kind"], who.get(point["actor"], point["actor"])))
        held = "files only" if point["files_only"] else plural(point["processes"], "process")
        took = f"paused {milliseconds(point['pause_ms'])}"
        left = ""
        if point.get("agent_state_kind"):
            version = f", version {shown(point['agent_version'])}" if point.get("agent_version") else ""
            left = f" · agent state ({point['agent_state_kind']}{version})"
        yield _row("holds", f"{held} · {size(point['size_bytes'])} of memory{left} · {took}")
        if not point.get("durable", True):
            yield _row("disk", "not durable yet: a power cut may take it")
        yield _row("after", self.data.get("parent") or "the base")

    def __repr__(self) -> str:
        return f"<Card {self.summary or 'not there yet'}>"


class Status(Answer):
    """Where a session stands, and what has changed since its last point."""

    @property
    def state(self) -> str:
        return str(self.data["session"]["state"])

    @property
    def foreground(self) -> str | None:
        """The command that occupies its shell, if any."""
        foreground: str | None = self.data["session"]["foreground"]
        return foreground

    @property
    def head(self) -> dict[str, Any] | None:
        """The checkpoint it stands on."""
        head: dict[str, Any] | None = self.data["head"]
        return head

    @property
    def diff(self) -> Diff | None:
        """What is in no checkpoint yet; None when nothing can be said."""
        if self.data["difference"] is None:
            return None
        return Diff({**self.data, "different": bool(self.data["sections"])})

    def now(self, cut: Callable[[str, int], str] = lambda text, room: text[:room], room: int = 10_000) -> str:
        """One line: `~3 files since c5`. `cut` shortens what changed, so that all fits into `room`."""
        where = self.data["head_called"] or "the base"
        if self.state in ("parked", "stopped"):
            return f"{self.state} at {where}"
        rest = f" since {where}"
        if self.state == "dead":
            rest += " · it does not run"
        elif waiting := self.data["session"].get("approvals"):
            rest += f" · waits for approval: {cut(shown(waiting[0]['command']), 30)}"
        elif self.foreground:
            rest += f" · runs {cut(shown(self.foreground), 30)}"
        return cut(shown(self.data["summary"] or "unknown"), room - len(rest)) + rest

    def lines(self, most: int | None = 20) -> Lines:
        session, head = self.data["session"], self.head
        doing = {"parked": "parked", "stopped": "stopped", "dead": "it does not run"}.get(self.state)
        if doing is None:
            doing = f"live, runs {shown(self.foreground)}" if self.foreground else "live, at its prompt"
        lines: Lines = [("bold", f"{session['name']}  {doing}")]
        if head:
            when = f"{clock(head['created_at'])}, {age(head['created_at'])}"
            at = quoted(head) if head["session"] == session["name"] else f"{head['session']}:{quoted(head)}"
            lines.append(("plain", _row("at", f"{at} ({when}, {_verdict_in_brief(head)})")))
            if head.get("restorable") == "failed":
                words = shown(head["restore_error"] or "its restore failed")
                lines.append(("bad", _row("restores", f"NO: {words}")))
        else:
            lines.append(("plain", _row("at", "the base: it has no points yet")))
        for approval in session.get("approvals", ()):
            text = f"for approval {approval['id']}: {shown(approval['command'])} ({approval['class']})"
            lines.append(("warn", _row("waits", text)))
        for forward in session.get("forwards", ()):
            address = f"[{forward['address']}]" if ":" in forward["address"] else forward["address"]
            text = f"{address}:{forward['local_port']} leads to port {forward['port']}"
            why = shown(forward["problem"])
            lines.append(
                ("warn", _row("forward", f"{text}: {why}")) if why else ("plain", _row("forward", text))
            )
        if session.get("auto"):
            lines.append(("plain", _row("automatic", "a point after each command that changed something")))
        diff = self.diff
        if diff:
            lines.append(("plain", _row("since", diff.summary)))
            lines += sections(diff.sections, most)
        elif diff is not None:
            lines.append(("dim", _row("since", COMPARED)))
        if diff is not None:
            lines += _not_compared(diff.not_compared)
            lines += _left_out(diff.gaps, diff.redacted)
        if self.data["missing"]:
            lines.append(("warn", _row("missing", shown(self.data["missing"]))))
        return lines

    def __repr__(self) -> str:
        return f"<Status {self.data['session']['name']}: {self.now()}>"


class Log(Answer):
    """The points of a session in plain lines, the last one first. For where there is no graph to draw."""

    def __init__(self, data: Mapping[str, Any], width: int = 0) -> None:
        super().__init__(data)
        self._width = width

    @property
    def points(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return list(self.data["checkpoints"])

    def lines(self, now: datetime | None = None) -> Lines:
        lines: Lines = []
        for point in reversed(self.points):
            here = "●" if point["id"] == self.data["head"] else "○"
            own = point["session"] == self.data["session"]
            label = point["label"] if own else f"{point['session']}/{point['label']}"
            words = "  ".join(filter(None, (point["name"], title(point)))) or "no words given"
            verified = f"  {verdicts(point, short=True)}" if point["verdict"] else ""
            lines.append(
                ("plain", self._cut(f"{here}  {label}  {clock(point['created_at'], now)}  {words}{verified}"))
            )
            summary = shown(point["summary"] or "")
            if summary:
                lines.append(("dim", self._cut(f"     {summary}")))
        return lines or [("dim", "there are no points yet")]

    def _cut(self, text: str) -> str:
        return text if not self._width or len(text) <= self._width else f"{text[: self._width - 1]}…"


class Plan(Answer):
    """What a restore would do. Its `id` can be given to `Session.restore(plan=…)`, which is refused when the
    session has changed since."""

    @property
    def id(self) -> str:
        return str(self.data["plan"]["id"])

    @property
    def target(self) -> dict[str, Any]:
        return dict(self.data["plan"]["target"])

    @property
    def lost(self) -> dict[str, Any]:
        """The difference from the target to now, as data."""
        return dict(self.data["plan"]["lost"])

    @property
    def uncheckpointed(self) -> dict[str, Any]:
        """The difference from the last point to now: what only the safety checkpoint will hold."""
        return dict(self.data["plan"]["uncheckpointed"])

    def lines(
        self, *, safety: bool = True, now: datetime | None = None, wording: Wording = in_python
    ) -> Lines:
        """`safety`: whether a safety checkpoint is taken. `wording`: how the face writes a request."""
        plan, words = self.data["plan"], self.data["words"]
        target = plan["target"]
        facts = [clock(target["created_at"], now), age(target["created_at"], now)]
        facts.append(_verdict_in_brief(target))
        whose = "" if target["session"] == plan["session"] else f"{target['session']}:"
        way = {"back": "back to", "on": "on to", "across": "over to"}[words["way"]]
        start = f"From now ({words['here']}) {way} {whose}{quoted(target)}"
        lines: Lines = [("bold", f"{start} ({', '.join(facts)})")]
        if target.get("restorable") == "failed":
            why = shown(target["restore_error"] or "the daemon's log says why")
            lines.append(("bad", f"  its processes could not be brought back: {why}"))
        rows = [*self._rows(words, facts[0])]
        lines += [("plain", f"  {_row(name, text)}") for name, text in rows]
        if not rows:
            lines.append(("dim", "  no difference found in files, processes, ports and the shell"))
        if plan["not_undone"]:
            lines.append(("warn", f"  not undone, it happened outside: {' · '.join(plan['not_undone'])}"))
        if plan["unseen"]:
            unseen = " · ".join(map(shown, plan["unseen"]))
            lines.append(("warn", f"  may have acted outside, could not be looked into: {unseen}"))
        lines += [("warn", f"  {shown(change)}") for change in plan.get("base_changes", ())]
        if plan["not_covered"]:
            lines.append(("warn", f"  not covered: {' · '.join(map(shown, plan['not_covered']))}"))
        lines += [("warn", f"  missing: {shown(gap)}") for gap in plan["lost"]["gaps"]]
        return [*lines, self._way_back(words, wording, safety=safety)]

    def _rows(self, words: Mapping[str, Any], when: str) -> Iterator[tuple[str, str]]:
        for name in ("files", "packages", "git", "databases", "system"):
            for number, text in enumerate(words[name]):
                yield (name if number == 0 else ""), text
        changes = []
        if words["ends"]:
            changes.append(f"{_few(words['ends'])} {'ends' if _is_one(words['ends']) else 'end'}")
        if words["resumes"]:
            verb, whose = ("resumes", "its") if _is_one(words["resumes"]) else ("resume", "their")
            changes.append(f"{_few(words['resumes'])} {verb} with {whose} memory of {when}")
        if changes:
            yield "processes", " · ".join(changes)
        if words["shell"]:
            yield "shell", " · ".join(words["shell"])
        if words.get("tasks"):
            yield "tasks", " · ".join(words["tasks"])

    def _way_back(self, words: Mapping[str, Any], wording: Wording, *, safety: bool) -> tuple[Manner, str]:
        if words["state"] == "parked":
            return "plain", "It is parked: nothing runs that could be lost."
        if words["state"] == "stopped":
            return "plain", "It is stopped: nothing runs that could be lost."
        if words["state"] == "dead":
            return (
                "warn",
                "It does not run: no safety checkpoint can be taken, what came after its last point is lost.",
            )
        if not safety:
            return "warn", "No safety checkpoint is taken: there is no way back to what is there now."
        return (
            "plain",
            f"A safety checkpoint ({words['safety']}) is taken first; {wording(Do('undo'))} comes back here.",
        )

    def __repr__(self) -> str:
        return f"<Plan {self.id} to {self.data['plan']['target']['label']}>"


def _is_one(names: Sequence[str]) -> bool:
    """Whether these are the names of one program that runs once."""
    return len(names) == 1 and not re.search(r" ×\d", names[0])


def _few(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Bisection(Answer):
    """The first point at which a command fails, and what changed from the last one at which it passes."""

    @property
    def culprit(self) -> dict[str, Any]:
        return dict(self.data["culprit"])

    @property
    def last_good(self) -> dict[str, Any]:
        return dict(self.data["last_good"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What was tried, in order: `checkpoint`, `label`, `passed`, `state`."""
        return list(self.data["steps"])

    @property
    def diff(self) -> Diff:
        return Diff({**self.data, "different": bool(self.data["sections"])})

    def lines(self) -> Lines:
        culprit, good, unclear = self.culprit, self.last_good, self.data["unclear"]
        when = f"{clock(culprit['created_at'])}, {age(culprit['created_at'])}"
        card = Card({**self.data, "checkpoint": culprit})
        return [
            ("bold", f"It broke at {quoted(culprit)} ({when})"),
            *(("warn", f"or at {quoted(point)}, at which the command cannot tell") for point in unclear),
            *(("plain", row) for row in card.about()),
            ("plain", _row("changes", card.summary)),
            ("bold", f"From {quoted(good)}, the last point at which it works:"),
            *self.diff.lines(),
        ]

    def __repr__(self) -> str:
        return f"<Bisection {self.data['culprit']['label']}>"


class Judgement(Answer):
    """What a policy says about a command line: its class, what is decided, and both for each of its parts."""

    @property
    def class_(self) -> str:
        return str(self.data["class"])

    @property
    def decision(self) -> str:
        return str(self.data["decision"])

    @property
    def parts(self) -> list[dict[str, Any]]:
        """`command`, `class`, `decision`, `rule`, `place`, `target`, `key`, `compensate`, `why` of each."""
        return list(self.data["parts"])

    @property
    def unseen(self) -> list[str]:
        """What of it could not be looked into."""
        return list(self.data["unseen"])

    def lines(self) -> Lines:
        lines: Lines = [("bold", f"{self.class_}: {_DECIDED[self.decision]}")]
        for part in self.parts:
            if not part["command"]:
                continue
            lines.append(("plain", f"  {shown(part['command'])}"))
            lines.append(("dim", f"    {part['class']}, {part['decision']}{_of_rule(part)}"))
            for name in ("why", "target", "key", "compensate"):
                if part[name]:
                    lines.append(("plain", f"    {name.ljust(10)} {shown(part[name])}"))
        lines += [("warn", f"  cannot be looked into: {shown(part)}") for part in self.unseen]
        return lines

    def __repr__(self) -> str:
        return f"<Judgement {self.class_}: {self.decision}>"


_DECIDED = {
    "allow": "it runs",
    "record": "it runs, and is written down",
    "ask": "it waits for approval",
    "deny": "it does not run",
}


def _of_rule(part: Mapping[str, Any]) -> str:
    rule = f" (rule: {shown(part['rule'])})" if part["rule"] else ""
    return f"{rule} on the {shown(part['place'])}" if part["place"] else rule


class Effects(Answer):
    """What was done outside. Commands that could not be looked into are counted, and listed on demand."""

    def lines(self, *, everything: bool = False, now: datetime | None = None, hint: str = "") -> Lines:
        """`hint`: how those that are only counted can be listed."""
        lines: Lines = []
        unseen = [
            effect
            for effect in self.data["effects"]
            if effect["class"] == "unknown" and effect["source"] != "observed"
        ]
        several = self.data["session"] is None
        for effect in self.data["effects"]:
            if effect in unseen and not everything:
                continue
            lines += self._effect(effect, several=several, now=now)
        if talk := self.data.get("talked_to"):
            lines.append(("plain", f"{talk}  [observed]"))
        if unseen and not everything:
            many = plural(len(unseen), "command")
            lines.append(("dim", f"{many} could not be looked into and may have acted outside{hint}"))
        return lines

    def _effect(self, effect: Mapping[str, Any], *, several: bool, now: datetime | None) -> Lines:
        outcome = {"running": "under way", "interrupted": "outcome unknown", "failed": "failed", "done": ""}
        facts = [effect["class"], outcome[effect["state"]]]
        if effect["exit_code"]:
            facts.append(f"exit {effect['exit_code']}")
        if effect["approval"]:
            facts.append(f"approved as {effect['approval']}")
        facts.append(
            {"rule": "[judged]", "typed": "typed [judged]"}.get(effect["source"], f"[{effect['source']}]")
        )
        where = f"{effect['session']}  " if several else ""
        lines: Lines = [("plain", f"{clock(effect['at'], now)}  {where}{shown(effect['command'])}")]
        lines.append(("dim", f"       {' · '.join(filter(None, facts))}"))
        for name in ("target", "key", "compensate"):
            if effect[name]:
                lines.append(("dim", f"       {name.ljust(10)} {shown(effect[name])}"))
        for why in effect["details"].get("unseen", ()):
            lines.append(("dim", f"       not seen   {shown(why)}"))
        return lines


class Comparison(Answer):
    """Several sessions or points side by side, for choosing one of them."""

    @property
    def base(self) -> dict[str, Any] | None:
        """The point that they are compared with; None: the base of the session."""
        base: dict[str, Any] | None = self.data["base"]
        return base

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """`name`, `session`, `point`, `live`, `summary`, `files`, `sections`, `unique_bytes`, `commands`,
        `commands_ms`, `effects`, `outcomes` of each."""
        return list(self.data["candidates"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Everything that any of them changed: `section`, `text`, `cells` (what each candidate did to it:
        `sign`, `text`, `detail`; or None), `same` (whether all have it alike; None: not known)."""
        return list(self.data["rows"])

    def lines(self, width: int = 100, *, everything: bool = False, most: int = 12) -> Lines:
        """A column for each candidate; as many side by side as fit. `everything`: also what all of them have
        alike, however much it is. Else `most` rows of each section."""
        lines: Lines = [("plain", f"compared with {quoted(self.base) if self.base else 'the base'}")]
        label = max(_NAME_WIDTH, min(width // 4, max((len(row["text"]) + 2 for row in self.rows), default=0)))
        beside = max(1, (width - label) // _LEAST_COLUMN)
        for start in range(0, len(self.candidates), beside):
            shown_here = range(start, min(start + beside, len(self.candidates)))
            column = (width - label - 2 * len(shown_here)) // len(shown_here)
            lines += self._table(shown_here, label, column, most=None if everything else most)
        return lines

    def _table(self, places: range, label: int, column: int, *, most: int | None) -> Lines:
        candidates = [self.candidates[place] for place in places]

        def row(name: str, cells: Sequence[str]) -> str:
            padded = (cut(cell, column).ljust(column) for cell in cells)
            return "  ".join([cut(name, label).ljust(label), *padded]).rstrip()

        lines: Lines = [("plain", ""), ("bold", row("", [candidate["name"] for candidate in candidates]))]
        for name, tell in _COMPARED:
            cells = [tell(candidate) for candidate in candidates]
            if any(cells):
                lines.append(("plain", row(name, [cell or "–" for cell in cells])))
        for section, rows in itertools.groupby(self.rows, key=lambda found: found["section"]):
            found = [one for one in rows if any(one["cells"][place] for place in places)]
            listed = [one for one in found if not one["same"]] if most is not None else found
            alike = len(found) - len(listed)
            remark = f"  ({plural(alike, 'row')} alike in all)" if alike else ""
            if found:
                lines.append(("bold", f"{section}{remark}"))
            for one in listed[:most]:
                cells = [_compared_cell(one["cells"][place]) for place in places]
                mark = {True: "=", None: "?", False: " " if len(set(cells)) > 1 else "≠"}[one["same"]]
                lines.append(("dim" if one["same"] else "plain", row(f"{mark} {one['text']}", cells)))
            if most is not None and len(listed) > most:
                lines.append(("dim", f"  … {len(listed) - most:,} more"))
        return lines

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(candidate['name'] for candidate in self.candidates)}>"


def _compared_cell(cell: Mapping[str, Any] | None) -> str:
    return f"{cell['sign']} {cell['detail']}".rstrip() if cell else "–"


def _last_outcome(candidate: Mapping[str, Any]) -> str:
    """How the last command ended: that is often how the attempt ended."""
    if not candidate["outcomes"]:
        return ""
    last = candidate["outcomes"][-1]
    return f"exit {last['exit_code']}: {shown(last['command'])}"


def _compared_time(candidate: Mapping[str, Any]) -> str:
    return f"{plural(candidate['commands'], 'command')} in {milliseconds(candidate['commands_ms'])}"


def _compared_section(name: str) -> Callable[[Mapping[str, Any]], str]:
    def tell(candidate: Mapping[str, Any]) -> str:
        return " · ".join(part["summary"] for part in candidate["sections"] if part["name"] == name)

    return tell


_COMPARED: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
    ("verified", lambda candidate: verdicts(candidate["point"] or {"verdict": None}, short=True)),
    ("outcome", _last_outcome),
    *((name, _compared_section(name)) for name in ("files", "packages", "git", "databases", "system")),
    *((name, _compared_section(name)) for name in ("processes", "ports", "shell", "network")),
    ("effects", lambda candidate: plural(candidate["effects"], "effect") if candidate["effects"] else ""),
    ("time", _compared_time),
    (
        "disk",
        lambda candidate: "" if candidate["unique_bytes"] is None else size(candidate["unique_bytes"]),
    ),
)
"""The rows of a comparison that every candidate has, and what is said in each."""


class Replay(Answer):
    """Whether what was recorded comes about again. True when it does."""

    @property
    def same(self) -> bool:
        return bool(self.data["same"])

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What was run again, in order: `number`, `kind`, `text`, `state`, `differences`, `remark`,
        `was_ms`, `duration_ms`."""
        return list(self.data["steps"])

    @property
    def first(self) -> dict[str, Any] | None:
        """The first step that differs."""
        return next((step for step in self.steps if step["state"] == "different"), None)

    @property
    def kept(self) -> str | None:
        """The session in which it ran, if that was kept."""
        kept: str | None = self.data["kept"]
        return kept

    def __bool__(self) -> bool:
        return self.same

    def lines(self) -> Lines:
        total, left, not_run = len(self.steps) + self.data["left"], self.data["left"], self.data["not_run"]
        lines: Lines = []
        for step in self.steps:
            if step["state"] == "different":
                lines += replayed(step)
        done = plural(total, "step")
        if self.first is None:
            lines.append(("good", f"the same: {done}, in {self.data['start']}"))
        else:
            number = self.first["number"]
            lines.append(("bad", f"different, first at step {number} of {total}, in {self.data['start']}"))
        if not_run:
            lines.append(
                ("warn", f"{plural(not_run, 'command')} not run, so what they would do is not known")
            )
        if left:
            lines.append(("dim", f"{plural(left, 'step')} not reached"))
        lines += [("warn", shown(remark)) for remark in self.data["remarks"]]
        if self.data["trace"]:
            lines.append(("dim", f"trace {self.data['trace'][:16]}"))
        if self.kept:
            lines.append(("plain", f"it ran in the session {self.kept}, which was kept"))
        return lines

    def __repr__(self) -> str:
        return f"<Replay {'same' if self.same else 'different'}>"


_REPLAYED: Mapping[str, tuple[str, Manner]] = {
    "same": ("✔", "good"),
    "different": ("✖", "bad"),
    "not run": ("–", "warn"),
}


def replayed(step: Mapping[str, Any]) -> Lines:
    """One step of a replay, and where it differs."""
    sign, manner = _REPLAYED[step["state"]]
    what = "point " if step["kind"] == "point" else ""
    lines: Lines = [(manner, f"{sign} {step['number']:>3}  {what}{shown(step['text'])}")]
    if step["remark"]:
        lines.append(("dim", f"       {shown(step['remark'])}"))
    for difference in step["differences"]:
        where = f" {shown(difference['where'])}" if difference["where"] else ""
        lines.append(("plain", f"       {difference['what']}{where}"))
        lines.append(("dim", f"         was  {shown(difference['expected'])}"))
        lines.append(("dim", f"         now  {shown(difference['actual'])}"))
    return lines
