"""Judges commands before they run: what class of effect they have, and whether they may.

Rules are data (rules.toml, and files of the user in the same form). A line is taken apart into the commands
it may run (unwrapping.py); each is judged by the first rule that matches, and the worst of them is what the
line is. What cannot be seen makes it `unknown` at least. The user's rules come first; a file that cannot be
understood is an error and not an empty policy: nothing runs until it is mended.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from waypoint.errors import PolicyBroken
from waypoint.history.retention import parse_duration
from waypoint.model import OUTSIDE, Decision, EffectClass, Judged, Judgement, Record
from waypoint.policy.bash import Word, plain
from waypoint.policy.targets import Arguments, Facts, facts_of, take_apart
from waypoint.policy.wrappers import Inspection, Part, inspect, inspect_words, is_local

CLASSES: tuple[EffectClass, ...] = get_args(EffectClass)
DECISIONS: tuple[Decision, ...] = get_args(Decision)

_MOST_SHOWN = 400


class Rule(Record, frozen=True, forbid_unknown_fields=True):
    """One rule, as it stands in a file. rules.toml explains the fields."""

    command: str | tuple[str, ...]
    name: str = ""
    options: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    when: dict[str, str] = msgspec.field(default_factory=dict)
    matches: str = ""
    class_: EffectClass | None = msgspec.field(default=None, name="class")
    decision: Decision | None = None
    harmless: tuple[str, ...] = ()
    target: str = ""
    key: str = "{command}"
    compensate: str = ""
    why: str = ""


class _File(Record, frozen=True, forbid_unknown_fields=True):
    decisions: dict[EffectClass, Decision] = msgspec.field(default_factory=dict)
    approval: dict[Literal["expires"], str] = msgspec.field(default_factory=dict)
    programs: dict[str, str] = msgspec.field(default_factory=dict)
    rule: tuple[Rule, ...] = ()


# ---- reading files -------------------------------------------------------------------------------


class _Pattern(NamedTuple):
    words: tuple[re.Pattern[str] | None, ...]
    """What the words after the program have to be; None: any number of them."""
    raw: bool
    """Whether options count as words."""


class _Compiled(NamedTuple):
    rule: Rule
    pattern: _Pattern
    matches: re.Pattern[str] | None
    when: tuple[tuple[str, re.Pattern[str]], ...]


class Rules:
    """One file of rules, ready to be asked."""

    def __init__(self, text: str, origin: str) -> None:
        self.origin = origin
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PolicyBroken(f"{origin} is no TOML: {error}", hint=_MEND) from error
        try:
            file = msgspec.convert(found, _File)
        except msgspec.ValidationError as error:
            raise PolicyBroken(f"{origin}, line {_line_of(text, str(error))}: {error}", hint=_MEND) from error
        self.decisions = file.decisions
        self.values = {name: frozenset(words.split()) for name, words in file.programs.items()}
        self.expires_seconds = self._duration(text, file)
        self._by_program: dict[str, list[_Compiled]] = {}
        self._others: list[tuple[re.Pattern[str], int, _Compiled]] = []
        for number, rule in enumerate(file.rule):
            try:
                self._add(rule, number)
            except (re.error, ValueError) as error:
                line = _line_of(text, f"$.rule[{number}]")
                raise PolicyBroken(f"{origin}, line {line}: {error}", hint=_MEND) from error

    def _duration(self, text: str, file: _File) -> float | None:
        given = file.approval.get("expires")
        if given is None:
            return None
        try:
            return parse_duration(given)
        except Exception as error:
            line = _line_of(text, "$.approval")
            raise PolicyBroken(f"{self.origin}, line {line}: {error}", hint=_MEND) from error

    def _add(self, rule: Rule, number: int) -> None:
        if rule.class_ is None and rule.decision is None:
            raise ValueError("a rule says a class, a decision, or both")
        commands = [rule.command] if isinstance(rule.command, str) else rule.command
        if not commands or not all(one.split() for one in commands):
            raise ValueError("a rule needs a command")
        matches = re.compile(rule.matches) if rule.matches else None
        when = tuple(
            (name, re.compile(f"(?:{pattern})$", re.IGNORECASE)) for name, pattern in rule.when.items()
        )
        for command in commands:
            programs, *words = command.split()
            pattern = _Pattern(
                tuple(None if word == "**" else _alternatives(word) for word in words),
                bool(words) and words[0].startswith("-"),
            )
            compiled = _Compiled(rule, pattern, matches, when)
            for program in programs.split("|"):
                if "*" in program or "?" in program:
                    self._others.append((re.compile(fnmatch.translate(program)), number, compiled))
                else:
                    self._by_program.setdefault(program, []).append(compiled)

    def about(self, program: str) -> Iterable[_Compiled]:
        """The rules that may be about a program, in order."""
        found = self._by_program.get(program, ())
        if not self._others:
            return found
        return [*found, *(one for pattern, _, one in self._others if pattern.match(program))]


_MEND = "mend it, or take it away with `waypoint policy set --none`: until then no command runs"


def _alternatives(word: str) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(one) for one in word.split("|")))


def _line_of(text: str, where: str) -> int:
    """The line that a complaint about `$.rule[3].class` is about, as well as can be told."""
    lines = text.splitlines()
    if found := re.search(r"\$\.rule\[(\d+)\](?:\.(\w+))?", where):
        starts = [number for number, line in enumerate(lines) if line.strip().startswith("[[rule]]")]
        if int(found[1]) < len(starts):
            start = starts[int(found[1])]
            for number in range(start + 1, len(lines)):
                if lines[number].strip().startswith("["):
                    break
                if found[2] and re.match(rf"\s*{found[2]}\s*=", lines[number]):
                    return number + 1
            return start + 1
    if found := re.search(r"\$\.(\w+)", where):
        for number, line in enumerate(lines):
            if line.strip().startswith((f"[{found[1]}", f"{found[1]} ")):
                return number + 1
    if found := re.search(r"unknown field `(\w+)`", where):
        for number, line in enumerate(lines):
            if re.match(rf"\s*(\[+)?{found[1]}\b", line):
                return number + 1
    return 1


def check(text: str) -> None:
    """Rules that somebody offers. PolicyBroken if they cannot be understood: they do not hold then, and what
    held before still does."""
    try:
        Rules(text, "the policy")
    except PolicyBroken as error:
        raise PolicyBroken(error.message, hint="mend it and try again; nothing has changed") from error


@cache
def built_in() -> Rules:
    """What Waypoint knows by itself."""
    return Rules(built_in_text(), "the built-in policy")


def built_in_text() -> str:
    return (Path(__file__).parent / "rules.toml").read_text()


# ---- judging -------------------------------------------------------------------------------------


class _Match(NamedTuple):
    compiled: _Compiled
    consumed: int
    arguments: Arguments
    facts: Facts


class Policy:
    """The rules that hold for a session: its own, those of the home, the built-in ones."""

    def __init__(self, *own: Rules) -> None:
        self._own = own
        self._all = (*own, built_in())
        self.decisions: dict[EffectClass, Decision] = {}
        for rules in reversed(self._all):
            self.decisions.update(rules.decisions)
        self.expires_seconds = next(r.expires_seconds for r in self._all if r.expires_seconds is not None)
        self._judge = lru_cache(maxsize=512)(self._judge_line)

    def judge(
        self, line: str, *, cwd: str = "", shares_network: bool = False, stdin: str | None = None
    ) -> Judgement:
        """A line that is given to the shell, and what it is given to read. `shares_network`: localhost is the
        machine, not the session."""
        return self._judge(line, cwd, shares_network, stdin)

    def judge_words(self, argv: Sequence[str], *, cwd: str = "", shares_network: bool = False) -> Judgement:
        """A program that is started without a shell."""
        return self._verdict(inspect_words(argv), cwd, shares_network=shares_network)

    def _judge_line(
        self,
        line: str,
        cwd: str,
        shares_network: bool,  # noqa: FBT001 - cached, so all of them have a place
        stdin: str | None,
    ) -> Judgement:
        return self._verdict(inspect(line, stdin), cwd, shares_network=shares_network)

    def _verdict(self, found: Inspection, cwd: str, *, shares_network: bool) -> Judgement:
        unseen = list(found.unseen)
        parts = []
        for part in found.parts:
            judged = self._part(part, cwd, shares_network=shares_network)
            if part.shadowed and judged.class_ == "unknown" and not judged.rule:
                continue
            parts.append(judged)
            if judged.class_ == "unknown" and judged.why not in unseen:
                unseen.append(judged.why if not judged.rule else f"{judged.command}: {judged.why}")
        classes = [part.class_ for part in parts]
        decisions = [part.decision for part in parts]
        if found.unseen:
            classes.append("unknown")
            decisions.append(self.decisions["unknown"])
        return Judgement(
            class_=max(classes, key=CLASSES.index, default="read-only"),
            decision=max(decisions, key=DECISIONS.index, default="allow"),
            parts=tuple(parts),
            unseen=tuple(unseen),
        )

    def _part(self, part: Part, cwd: str, *, shares_network: bool) -> Judged:
        if not part.words:
            return self._without_words(part)
        program, command = part.program, plain(part.words)
        best: Judged | None = None
        for greedy in (False, True):
            arguments = take_apart(part.words, self._values(program), greedy=greedy)
            facts = facts_of(part, arguments)
            if shares_network and "place" in facts:
                facts["place"] = "outside"
            judged = self._judged(part, program, command, arguments, facts, cwd)
            # An option that nobody knows may or may not take a value: the worse of the two readings counts.
            if best is None or (judged.rule and CLASSES.index(judged.class_) > CLASSES.index(best.class_)):
                best = judged
            if not any(word.text.startswith("--") for word in part.words[1:]):
                break
        assert best
        return best

    @staticmethod
    def _is_elsewhere(path: Word) -> bool:
        return path.text.startswith(("/dev/tcp/", "/dev/udp/"))

    def _without_words(self, part: Part) -> Judged:
        """Only variables and redirections."""
        if any(self._is_elsewhere(path) for path in part.writes):
            target = next(path.text for path in part.writes if self._is_elsewhere(path))
            host = target.split("/")[3] if target.count("/") > 2 else ""
            if not is_local(host):
                why = "what goes through a raw connection cannot be taken back"
                rule = Rule(command=target, name="a raw connection", why=why, target=target)
                return self._made(part, f"> {target}", "irreversible", None, rule)
        quiet = all(re.match(r"/dev/(null|std\w+|tty|fd/\d+)$", path.text) for path in part.writes)
        if not quiet or any(not name for name, _ in part.sets):
            shown = " ".join(f"> {path.text}" for path in part.writes) or "a script"
            rule = Rule(command=shown, name="writes a file", class_="reversible")
            return self._made(part, shown, _at(part.place, "reversible"), None, rule)
        return self._made(part, "", "reversible" if part.sets else "read-only", None, None)

    def _values(self, program: str) -> frozenset[str]:
        for rules in self._all:
            if program in rules.values:
                return rules.values[program]
        return frozenset()

    def _judged(
        self, part: Part, program: str, command: str, arguments: Arguments, facts: Facts, cwd: str
    ) -> Judged:
        class_: EffectClass | None = None
        decision: Decision | None = None
        chosen: _Match | None = None
        for rules in self._all:
            is_own = rules is not self._all[-1]
            if not is_own and class_ is None and _only_tells(part, program, arguments, rules):
                class_ = "read-only"
                break
            match = self._first(rules, part, program, command, arguments, facts)
            if match is None:
                continue
            rule = match.compiled.rule
            chosen = chosen or match
            if any(_given(arguments, option) for option in rule.harmless):
                class_, decision = class_ or "read-only", decision or self.decisions["read-only"]
                break
            if class_ is None and rule.class_ is not None:
                class_ = rule.class_ if is_own else _at(part.place, rule.class_)
            decision = decision or rule.decision
            if class_ is not None:
                break
        if class_ is None:
            shown = command if len(command) < 60 else command[:57] + "…"
            why = f"what {program} does" if len(part.words) < 2 or "/" in program else f"what `{shown}` does"
            unknown = Rule(command=program, why=why)
            return self._made(part, command, "unknown", decision, unknown, named=False)
        if chosen is None:
            return self._made(part, command, class_, decision, None)
        # A rule for any verb says nothing about a verb that is in a variable.
        taken = max(chosen.consumed, 1) if chosen.compiled.pattern.words else 0
        verbs = chosen.arguments.plain[:taken]
        if any(word.open for word in verbs) and CLASSES.index(class_) < CLASSES.index("unknown"):
            why = f"which {program} command {verbs[-1].text} is"
            return self._made(part, command, "unknown", decision, Rule(command=program, why=why), named=False)
        return self._made(part, command, class_, decision, chosen.compiled.rule, match=chosen, cwd=cwd)

    def _first(
        self, rules: Rules, part: Part, program: str, command: str, arguments: Arguments, facts: Facts
    ) -> _Match | None:
        for one in rules.about(program):
            words = list(part.words[1:]) if one.pattern.raw else arguments.plain
            consumed = _fits(one.pattern.words, words)
            if consumed is None:
                continue
            rule = one.rule
            if rule.options and not any(_given(arguments, option) for option in rule.options):
                continue
            if rule.without and any(_given(arguments, option) for option in rule.without):
                continue
            if one.when and not all(pattern.match(facts.get(name, "")) for name, pattern in one.when):
                continue
            if one.matches and not one.matches.search(command):
                continue
            return _Match(one, consumed, arguments, facts)
        return None

    def _made(
        self,
        part: Part,
        command: str,
        class_: EffectClass,
        decision: Decision | None,
        rule: Rule | None,
        *,
        match: _Match | None = None,
        cwd: str = "",
        named: bool = True,
    ) -> Judged:
        name = (rule.name or _short(rule.command)) if rule and named else ""
        if part.place and rule and rule.class_ == "reversible":
            name = (
                f"a command in a {part.place}"
                if part.place.startswith("container")
                else f"a command on the {part.place}"
            )
        target = key = compensate = ""
        if rule and match and class_ in (*OUTSIDE, "unknown"):
            fill = _filler(match, command, cwd)
            target = " ".join(fill(rule.target).split())
            compensate = " ".join(fill(rule.compensate).split())
            if "idempotency" in match.facts and "idempotency" in rule.key:
                key = match.facts["idempotency"]
            else:
                text = f"{part.place}\0{fill(rule.key)}"
                slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
                key = f"{slug}:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"
        elif rule and rule.target and not match:
            target = rule.target
        why = rule.why if rule else ""
        if part.place and class_ in OUTSIDE and not why:
            why = f"it runs on the {part.place}: no restore undoes it"
        return Judged(
            command=command[:_MOST_SHOWN],
            class_=class_,
            decision=decision or self.decisions[class_],
            rule=name,
            place=part.place,
            target=target[:_MOST_SHOWN] or (part.place if class_ in OUTSIDE else ""),
            key=key or (_plain_key(part, command) if class_ in OUTSIDE else ""),
            compensate=compensate,
            why=why,
        )


def _plain_key(part: Part, command: str) -> str:
    digest = hashlib.sha256(f"{part.place}\0{command}".encode(errors="surrogatepass")).hexdigest()
    return f"command:{digest[:12]}"


def _short(command: str | tuple[str, ...]) -> str:
    first = command if isinstance(command, str) else command[0]
    return " ".join(word.split("|")[0] for word in first.split() if word != "**")


def _at(place: str, class_: EffectClass) -> EffectClass:
    """What only changes the session changes something else when it runs elsewhere."""
    if not place or class_ != "reversible":
        return class_
    return "external-reversible" if place.startswith("container ") else "irreversible"


def _only_tells(part: Part, program: str, arguments: Arguments, rules: Rules) -> bool:
    """`--help` and `--version` of a program that is known."""
    if len(part.words) < 2 or not any(True for _ in rules.about(program)):
        return False
    alone = len(part.words) == 2 and part.words[1].text in ("--version", "-h", "-V", "help", "version")
    # `docker run image --help` is for what runs in it.
    runs = any(word.text in ("run", "exec", "ssh", "console", "shell") for word in arguments.plain)
    return alone or ("--help" in arguments.options and not runs)


def _given(arguments: Arguments, option: str) -> bool:
    """Whether an option is there, and not switched off: `--dry-run=none`."""
    return any(word.text not in ("none", "false", "no", "0") for word in arguments.options.get(option, ()))


def _fits(patterns: Sequence[re.Pattern[str] | None], words: Sequence[Word], at: int = 0) -> int | None:
    """How many words a rule's words take up; None when they do not fit."""
    for index, pattern in enumerate(patterns):
        if pattern is None:
            rest = patterns[index + 1 :]
            if not rest:
                return at
            for start in range(at, len(words)):
                if (found := _fits(rest, words, start)) is not None:
                    return found
            return None
        if at >= len(words):
            return None
        if not pattern.match(words[at].text):
            return None
        at += 1
    return at


_FIELD = re.compile(r"\{([^{}]*)\}")


def _filler(match: _Match, command: str, cwd: str) -> Callable[[str], str]:
    rest = match.arguments.plain[match.consumed :]

    def choice(one: str) -> str | None:
        if one.isdecimal():
            index = int(one) - 1
            return rest[index].text if 0 <= index < len(rest) else None
        if one.startswith("-"):
            found = match.arguments.value(one)
            return found.text if found else None
        if one == "rest":
            return " ".join(word.text for word in rest) or None
        if one in ("command", "cwd"):
            return command if one == "command" else cwd
        if one in _FACT_NAMES:
            return match.facts.get(one) or None
        return one

    def field(found: re.Match[str]) -> str:
        for one in found[1].split("|"):
            value = choice(one)
            if value is not None:
                return value
        return ""

    return lambda template: _FIELD.sub(field, template)


_FACT_NAMES = frozenset({"method", "url", "host", "place", "direction", "refs", "sql", "verb", "idempotency"})


def policy_of(texts: Mapping[str, str | None]) -> Policy:
    """The policy made of files, by where they come from; those asked first come first."""
    return Policy(*(Rules(text, origin) for origin, text in texts.items() if text))


def describe(policy: Policy) -> dict[str, Any]:
    """What holds, in short: for `policy show`."""
    return {"decisions": policy.decisions, "expires_seconds": policy.expires_seconds}
