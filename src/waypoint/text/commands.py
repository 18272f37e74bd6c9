"""What commands came to before a point: which ended with a non-zero exit code, and what tests said last.

An exit code is observed. It is no verdict: the command ran in the session and not on exactly the state of the
point, and more may have been done after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from waypoint.api.difference import CommandOutcome, Section, SectionLine
from waypoint.model import Event
from waypoint.text.units import cut, plural, shown

_WIDTH = 40
_LISTED = 20
_IN_A_LOG = 2

_SEPARATOR = re.compile(r"\s*(?:&&|\|\||;|\n)\s*")
_TESTS = re.compile(
    r"(?:\w+=\S*\s+)*"
    r"(?:(?:sudo|time|nice|env|command|timeout\s+[\d.]+\w?|python[\d.]*\s+-m|coverage\s+run|(?:uv|poetry|pdm|pipenv|hatch)\s+run"
    r"|uvx|npx|bunx|(?:npm|pnpm|bundle)\s+exec|yarn)(?:\s+-[-\w=]+)*\s+|\w+=\S*\s+)*"
    r"(?:\S*/)?"
    r"(?:(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|ctest|rspec|phpunit)\b"
    r"|(?:npm|yarn|pnpm|bun|deno|cargo|go|make|just|mix|gradlew?|mvn|dotnet)\b.*\b(?:test|tests|check)\b)"
)
"""The beginning of a command that runs tests, with what may stand before it."""
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*\"""")
_ANSWERS_WITH_1 = re.compile(
    r"\s*(?:\w+=\S*\s+)*(?:grep|egrep|fgrep|rg|diff|cmp|test|\[|\[\[|which|command|type|pgrep|expr|git\s+diff)(?:\s|$)"
)
"""Programs that say `no` by exit code 1."""
_PYTHON = re.compile(r"^python[\d.]* -m (?=\w)")
_INTERRUPTED = (130, 141, 143)


def outcomes(events: Iterable[Event]) -> tuple[CommandOutcome, ...]:
    """Of each command line that has ended, in the order in which they ended last."""
    found: dict[str, CommandOutcome] = {}
    for event in events:
        command, code = event.body.get("command"), event.body.get("exit_code")
        if event.kind != "command" or not command or not isinstance(code, int):
            continue
        before = found.pop(command, None)
        found[command] = CommandOutcome(
            command=command,
            exit_code=code,
            runs=before.runs + 1 if before else 1,
            failed=(before.failed if before else 0) + (code != 0),
        )
    return tuple(found.values())


def summarize_outcomes(found: Sequence[CommandOutcome], intent: str = "") -> list[str]:
    """For the line of a log: what tests said last, and the commands that failed last. `intent`: a command
    that stands above it already."""
    telling = [outcome for outcome in found if _is_test(outcome.command) or _has_failed(outcome)]
    return [_phrase(outcome, intent) for outcome in telling[-_IN_A_LOG:]]


def describe_outcomes(found: Sequence[CommandOutcome]) -> tuple[Section, ...]:
    """The section of a card; none where all went well and nothing was tested."""
    told = [outcome for outcome in found if is_telling(outcome)]
    if not told:
        return ()
    runs = sum(outcome.runs for outcome in found)
    failed = sum(outcome.failed for outcome in found)
    summary = f"{plural(runs, 'command')} ended" + (
        f", {failed:,} with a non-zero exit code" if failed else ""
    )
    lines = tuple(outcome_line(outcome, runs=True) for outcome in told[-_LISTED:])
    return (Section(name="commands", source="observed", summary=summary, lines=lines),)


def is_telling(outcome: CommandOutcome) -> bool:
    """Whether it was a test, or failed at least once."""
    return bool(_is_test(outcome.command) or outcome.failed)


def outcome_line(outcome: CommandOutcome, *, runs: bool) -> SectionLine:
    """How a command line ended last; `runs`: and how often it ran."""
    times = f" ×{outcome.runs:,}" if runs and outcome.runs > 1 else ""
    before = f" · {outcome.failed:,} of them failed" if times and 0 < outcome.failed < outcome.runs else ""
    return SectionLine(
        sign="-" if outcome.exit_code else "+",
        text=f"$ {cut(shown(outcome.command), 2 * _WIDTH)}{times}",
        detail=f"exit {outcome.exit_code}{before}",
    )


def _is_test(command: str) -> bool:
    """Whether the exit code of a line is that of a test run: the last command of the line is one."""
    words = _QUOTED.sub("''", command.strip())
    return "|" not in words.replace("||", "") and bool(_TESTS.match(_SEPARATOR.split(words)[-1]))


def _has_failed(outcome: CommandOutcome) -> bool:
    if outcome.exit_code in (0, *_INTERRUPTED):
        return False
    last = re.split(r"&&|\|\||[;|\n]", outcome.command.strip())[-1]
    return not (outcome.exit_code == 1 and _ANSWERS_WITH_1.match(last))


def _phrase(outcome: CommandOutcome, intent: str) -> str:
    words = outcome.command.strip()
    if not outcome.exit_code and _is_test(words):
        words = _SEPARATOR.split(words)[-1]  # all before it went well, or does not matter
    name = "" if words == intent.strip() else f"{cut(_PYTHON.sub('', shown(words)), _WIDTH)} "
    times = f" ×{outcome.runs:,}" if outcome.runs > 1 and outcome.failed in (0, outcome.runs) else ""
    after = f" after {plural(outcome.failed, 'failure')}" if outcome.failed and not outcome.exit_code else ""
    return f"{name}exit {outcome.exit_code}{times}{after}"
