"""Judges commands before they run: which class of effect they have, and whether they may run.

Rules are data (rules.toml, and files of the user in the same form). A line is split into the commands that it
may run (wrappers.py). The first rule that matches judges each of them, and the worst judgement counts for the
line. A line with a command that cannot be determined is at least `unknown`. The user's rules come first. An
invalid file is an error, not an empty policy: no command runs until it is corrected.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.errors import PolicyBroken
from waypoint.history.retention import parse_duration
from waypoint.model import OUTSIDE, Decision, EffectClass, Judged, Judgement, Record, from_plain
from waypoint.policy.bash import Word, join
from waypoint.policy.remotes import DEFAULT
from waypoint.policy.tables import tables
from waypoint.policy.targets import Arguments, Facts, facts_of, split_options
from waypoint.policy.words import is_local
from waypoint.policy.wrappers import Inspection, Part, inspect, inspect_words

CLASSES: tuple[EffectClass, ...] = get_args(EffectClass)
DECISIONS: tuple[Decision, ...] = get_args(Decision)

_MAX_SHOWN = 4000


class Rule(Record, frozen=True, forbid_unknown_fields=True):
    """One rule of a file. rules.toml explains the fields."""

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
    """What the words after the program have to match; None: any number of words."""
    with_options: bool
    """Whether options count as words."""


class _CompiledRule(NamedTuple):
    rule: Rule
    pattern: _Pattern
    matches: re.Pattern[str] | None
    when: tuple[tuple[str, re.Pattern[str]], ...]


class Rules:
    """One file of rules, compiled."""

    def __init__(self, text: str, origin: str) -> None:
        self.origin = origin
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PolicyBroken(f"{origin} is no TOML: {error}", hint=_CORRECT_IT) from error
        try:
            file = from_plain(data, _File)
        except msgspec.ValidationError as error:
            raise PolicyBroken(
                f"{origin}, line {_line_of(text, str(error))}: {error}", hint=_CORRECT_IT
            ) from error
        self.decisions = file.decisions
        self.values = {name: frozenset(words.split()) for name, words in file.programs.items()}
        self.expires_seconds = self._duration(text, file)
        self._by_program: dict[str, list[_CompiledRule]] = {}
        self._with_wildcard: list[tuple[re.Pattern[str], _CompiledRule]] = []
        for number, rule in enumerate(file.rule):
            try:
                self._add(rule)
            except (re.error, ValueError) as error:
                line = _line_of(text, f"$.rule[{number}]")
                raise PolicyBroken(f"{origin}, line {line}: {error}", hint=_CORRECT_IT) from error

    def _duration(self, text: str, file: _File) -> float | None:
        duration = file.approval.get("expires")
        if duration is None:
            return None
        try:
            return parse_duration(duration)
        except Exception as error:
            line = _line_of(text, "$.approval")
            raise PolicyBroken(f"{self.origin}, line {line}: {error}", hint=_CORRECT_IT) from error

    def _add(self, rule: Rule) -> None:
        if rule.class_ is None and rule.decision is None:
            raise ValueError("a rule needs a class, a decision, or both")
        commands = [rule.command] if isinstance(rule.command, str) else rule.command
        if not commands or not all(command.split() for command in commands):
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
            compiled = _CompiledRule(rule, pattern, matches, when)
            for program in programs.split("|"):
                if "*" in program or "?" in program:
                    self._with_wildcard.append((re.compile(fnmatch.translate(program)), compiled))
                else:
                    self._by_program.setdefault(program, []).append(compiled)

    def for_program(self, program: str) -> Iterable[_CompiledRule]:
        """The rules for a program, in order."""
        rules = self._by_program.get(program, ())
        if not self._with_wildcard:
            return rules
        return [*rules, *(rule for pattern, rule in self._with_wildcard if pattern.match(program))]


_CORRECT_IT = Hint(
    "correct it, or remove it with ", Do("policy_set", text=None), ": until then no command runs"
)


def _alternatives(word: str) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(alternative) for alternative in word.split("|")))


def _line_of(text: str, message: str) -> int:
    """The number of the line that a message about `$.rule[3].class` refers to, as far as it can be found."""
    lines = text.splitlines()
    if match := re.search(r"\$\.rule\[(\d+)\](?:\.(\w+))?", message):
        starts = [number for number, line in enumerate(lines) if line.strip().startswith("[[rule]]")]
        if int(match[1]) < len(starts):
            start = starts[int(match[1])]
            for number in range(start + 1, len(lines)):
                if lines[number].strip().startswith("["):
                    break
                if match[2] and re.match(rf"\s*{match[2]}\s*=", lines[number]):
                    return number + 1
            return start + 1
    if match := re.search(r"\$\.(\w+)", message):
        for number, line in enumerate(lines):
            if line.strip().startswith((f"[{match[1]}", f"{match[1]} ")):
                return number + 1
    if match := re.search(r"unknown field `(\w+)`", message):
        for number, line in enumerate(lines):
            if re.match(rf"\s*(\[+)?{match[1]}\b", line):
                return number + 1
    return 1


def check(text: str) -> None:
    """Raises PolicyBroken if rules that a user wants to set are invalid. The rules in force do not change."""
    try:
        Rules(text, "the policy")
    except PolicyBroken as error:
        raise PolicyBroken(error.message, hint="correct it and try again; nothing has changed") from error


@cache
def built_in() -> Rules:
    """The rules of Waypoint itself. Also loads what is known about wrappers: both are needed to judge."""
    tables()
    return Rules(built_in_text(), "the built-in policy")


def built_in_text() -> str:
    return (Path(__file__).parent / "rules.toml").read_text()


# ---- judging -------------------------------------------------------------------------------------


class _Match(NamedTuple):
    rule: _CompiledRule
    consumed: int
    """How many words of the command the rule has matched."""
    arguments: Arguments
    facts: Facts


class Policy:
    """The rules for a session: its own, those of the home, the built-in ones."""

    def __init__(self, *own: Rules) -> None:
        self._own = own
        self._all = (*own, built_in())
        self.decisions: dict[EffectClass, Decision] = {}
        for rules in reversed(self._all):
            self.decisions.update(rules.decisions)
        self.expires_seconds = next(r.expires_seconds for r in self._all if r.expires_seconds is not None)
        self._judge = lru_cache(maxsize=512)(self._judge_line)

    def judge(
        self,
        line: str,
        *,
        cwd: str = "",
        shares_network: bool = False,
        stdin: str | None = None,
        local_remotes: frozenset[str] = frozenset(),
    ) -> Judgement:
        """Judges a line for the shell. `stdin`: the input of its commands; `shares_network`: localhost is
        the machine, not the session; `local_remotes`: git's remotes that are in the session (remotes.py)."""
        return self._judge(line, cwd, shares_network, stdin, local_remotes)

    def judge_words(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        shares_network: bool = False,
        local_remotes: frozenset[str] = frozenset(),
    ) -> Judgement:
        """Judges a program that is started without a shell."""
        return self._judge_inspection(
            inspect_words(argv), cwd, shares_network=shares_network, local_remotes=local_remotes
        )

    def _judge_line(
        self,
        line: str,
        cwd: str,
        shares_network: bool,  # noqa: FBT001 - positional, because the cache keys on positions
        stdin: str | None,
        local_remotes: frozenset[str],
    ) -> Judgement:
        return self._judge_inspection(
            inspect(line, stdin), cwd, shares_network=shares_network, local_remotes=local_remotes
        )

    def _judge_inspection(
        self, inspection: Inspection, cwd: str, *, shares_network: bool, local_remotes: frozenset[str]
    ) -> Judgement:
        unseen = list(inspection.unseen)
        parts = []
        for part in inspection.parts:
            judgement = self._judge_part(
                part, cwd, shares_network=shares_network, local_remotes=local_remotes
            )
            if part.shadowed and judgement.class_ == "unknown" and not judgement.rule:
                continue
            parts.append(judgement)
            if judgement.class_ == "unknown" and judgement.why not in unseen:
                unseen.append(
                    judgement.why if not judgement.rule else f"{judgement.command}: {judgement.why}"
                )
        classes = [part.class_ for part in parts]
        decisions = [part.decision for part in parts]
        if inspection.unseen:
            classes.append("unknown")
            decisions.append(self.decisions["unknown"])
        return Judgement(
            class_=max(classes, key=CLASSES.index, default="read-only"),
            decision=max(decisions, key=DECISIONS.index, default="allow"),
            parts=tuple(parts),
            unseen=tuple(unseen),
        )

    def _judge_part(
        self, part: Part, cwd: str, *, shares_network: bool, local_remotes: frozenset[str]
    ) -> Judged:
        if not part.words:
            return self._judge_without_words(part)
        program, command = part.program, join(part.words)
        worst: Judged | None = None
        for greedy in (False, True):
            arguments = split_options(part.words, self._options_with_value(program), greedy=greedy)
            facts = facts_of(part, arguments)
            if shares_network and "place" in facts:
                facts["place"] = "outside"
            if program == "git" and "refs" in facts and facts.get("host", DEFAULT) in local_remotes:
                facts["place"] = "inside"
            judgement = self._judge_command(part, program, command, arguments, facts, cwd)
            # An unknown option may or may not take a value: the worse of the two judgements counts.
            if worst is None or (judgement.rule and _rank(judgement.class_) > _rank(worst.class_)):
                worst = judgement
            if not any(word.text.startswith("--") for word in part.words[1:]):
                break
        assert worst
        return worst

    def _judge_without_words(self, part: Part) -> Judged:
        """Only variables and redirections."""
        connections = [path.text for path in part.writes if path.text.startswith(("/dev/tcp/", "/dev/udp/"))]
        if connections:
            target = connections[0]
            host = target.split("/")[3] if target.count("/") > 2 else ""
            if not is_local(host):
                why = "data sent through a raw connection cannot be taken back"
                rule = Rule(command=target, name="a raw connection", why=why, target=target)
                return self._build(part, f"> {target}", "irreversible", None, rule)
        only_devices = all(re.match(r"/dev/(null|std\w+|tty|fd/\d+)$", path.text) for path in part.writes)
        if not only_devices or any(not name for name, _ in part.assignments):
            shown = " ".join(f"> {path.text}" for path in part.writes) or "a script"
            rule = Rule(command=shown, name="writes a file", class_="reversible")
            return self._build(part, shown, _class_at(part.place, "reversible"), None, rule)
        return self._build(part, "", "reversible" if part.assignments else "read-only", None, None)

    def _options_with_value(self, program: str) -> frozenset[str]:
        for rules in self._all:
            if program in rules.values:
                return rules.values[program]
        return frozenset()

    def _judge_command(
        self, part: Part, program: str, command: str, arguments: Arguments, facts: Facts, cwd: str
    ) -> Judged:
        class_: EffectClass | None = None
        decision: Decision | None = None
        first: _Match | None = None
        for rules in self._all:
            is_own = rules is not self._all[-1]
            if not is_own and class_ is None and _only_prints_help(part, program, arguments, rules):
                class_ = "read-only"
                break
            match = _first_match(rules, part, program, command, arguments, facts)
            if match is None:
                continue
            rule = match.rule.rule
            first = first or match
            if any(_has_option(arguments, option) for option in rule.harmless):
                class_, decision = class_ or "read-only", decision or self.decisions["read-only"]
                break
            if class_ is None and rule.class_ is not None:
                class_ = rule.class_ if is_own else _class_at(part.place, rule.class_)
            decision = decision or rule.decision
            if class_ is not None:
                break
        if class_ is None:
            shown = command if len(command) < 60 else command[:57] + "…"
            why = f"what {program} does" if len(part.words) < 2 or "/" in program else f"what `{shown}` does"
            unknown = Rule(command=program, why=why)
            return self._build(part, command, "unknown", decision, unknown, named=False)
        if first is None:
            return self._build(part, command, class_, decision, None)
        # A rule for any verb does not apply to a verb that is in a variable.
        verbs = first.arguments.plain[: max(first.consumed, 1)] if first.rule.pattern.words else []
        if any(word.dynamic for word in verbs) and _rank(class_) < _rank("unknown"):
            unknown = Rule(command=program, why=f"which {program} command {verbs[-1].text} is")
            return self._build(part, command, "unknown", decision, unknown, named=False)
        return self._build(part, command, class_, decision, first.rule.rule, match=first, cwd=cwd)

    def _build(
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
        name = (rule.name or _short_name(rule.command)) if rule and named else ""
        if part.place and rule and rule.class_ == "reversible":
            name = (
                f"a command in a {part.place}"
                if part.place.startswith("container")
                else f"a command on the {part.place}"
            )
        target = key = compensate = ""
        if rule and match and class_ in (*OUTSIDE, "unknown"):
            fill = _template_filler(match, command, cwd)
            target = " ".join(fill(rule.target).split())
            compensate = " ".join(fill(rule.compensate).split())
            if "idempotency" in match.facts and "idempotency" in rule.key:
                key = match.facts["idempotency"]
            else:
                slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
                key = f"{slug}:{_digest(part, fill(rule.key))}"
        elif rule and rule.target and not match:
            target = rule.target
        why = rule.why if rule else ""
        if part.place and class_ in OUTSIDE and not why:
            why = f"it runs on the {part.place}: no restore undoes it"
        if class_ in OUTSIDE:
            target, key = target or part.place, key or f"command:{_digest(part, command)}"
        return Judged(
            command=_cut(command),
            class_=class_,
            decision=decision or self.decisions[class_],
            rule=name,
            place=part.place,
            target=_cut(target),
            key=key,
            compensate=compensate,
            why=why,
        )


def _first_match(
    rules: Rules, part: Part, program: str, command: str, arguments: Arguments, facts: Facts
) -> _Match | None:
    for compiled in rules.for_program(program):
        words = list(part.words[1:]) if compiled.pattern.with_options else arguments.plain
        consumed = _match_words(compiled.pattern.words, words)
        if consumed is None:
            continue
        rule = compiled.rule
        if rule.options and not any(_has_option(arguments, option) for option in rule.options):
            continue
        if rule.without and any(_has_option(arguments, option) for option in rule.without):
            continue
        if compiled.when and not all(pattern.match(facts.get(name, "")) for name, pattern in compiled.when):
            continue
        if compiled.matches and not compiled.matches.search(command):
            continue
        return _Match(compiled, consumed, arguments, facts)
    return None


_rank = CLASSES.index


def _cut(text: str) -> str:
    more = len(text) - _MAX_SHOWN
    return text if more <= 0 else f"{text[:_MAX_SHOWN]}… ({more:,} more characters)"


def _digest(part: Part, text: str) -> str:
    return hashlib.sha256(f"{part.place}\0{text}".encode(errors="surrogatepass")).hexdigest()[:12]


def _short_name(command: str | tuple[str, ...]) -> str:
    first = command if isinstance(command, str) else command[0]
    return " ".join(word.split("|")[0] for word in first.split() if word != "**")


def _class_at(place: str, class_: EffectClass) -> EffectClass:
    """The class of a command that runs at a place: what is reversible in the session is not elsewhere."""
    if not place or class_ != "reversible":
        return class_
    return "external-reversible" if place.startswith("container ") else "irreversible"


def _only_prints_help(part: Part, program: str, arguments: Arguments, rules: Rules) -> bool:
    """`--help` and `--version` of a known program."""
    if len(part.words) < 2 or not any(True for _ in rules.for_program(program)):
        return False
    alone = len(part.words) == 2 and part.words[1].text in ("--version", "-h", "-V", "help", "version")
    # In `docker run image --help` the option belongs to the inner command.
    runs = any(word.text in ("run", "exec", "ssh", "console", "shell") for word in arguments.plain)
    return alone or ("--help" in arguments.options and not runs)


def _has_option(arguments: Arguments, option: str) -> bool:
    """Whether an option is present and not switched off: `--dry-run=none`."""
    return any(word.text not in ("none", "false", "no", "0") for word in arguments.options.get(option, ()))


def _match_words(
    patterns: Sequence[re.Pattern[str] | None], words: Sequence[Word], at: int = 0
) -> int | None:
    """How many words the patterns of a rule match; None if they do not match."""
    for index, pattern in enumerate(patterns):
        if pattern is None:
            rest = patterns[index + 1 :]
            if not rest:
                return at
            for start in range(at, len(words)):
                if (end := _match_words(rest, words, start)) is not None:
                    return end
            return None
        if at >= len(words):
            return None
        if not pattern.match(words[at].text):
            return None
        at += 1
    return at


_FIELD = re.compile(r"\{([^{}]*)\}")


def _template_filler(match: _Match, command: str, cwd: str) -> Callable[[str], str]:
    """A function that replaces the fields of a template (`{1}`, `{--host}`) for a command."""
    rest = match.arguments.plain[match.consumed :]

    def value_of(name: str) -> str | None:
        if name.isdecimal():
            index = int(name) - 1
            return rest[index].text if 0 <= index < len(rest) else None
        if name.startswith("-"):
            option = match.arguments.value(name)
            return option.text if option else None
        if name == "rest":
            return " ".join(word.text for word in rest) or None
        if name in ("command", "cwd"):
            return command if name == "command" else cwd
        if name in _FACT_NAMES:
            return match.facts.get(name) or None
        return name

    def fill_field(field: re.Match[str]) -> str:
        values = (value_of(name) for name in field[1].split("|"))
        return next((value for value in values if value is not None), "")

    return lambda template: _FIELD.sub(fill_field, template)


_FACT_NAMES = frozenset({"method", "url", "host", "place", "direction", "refs", "sql", "verb", "idempotency"})
