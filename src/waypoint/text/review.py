"""A command for the person who decides whether it runs: all of it, as it will run.

Its author may want the reader to take it for another one. So every line of it stands behind a mark that it
cannot leave, and every character that would not be seen as what it is is written by its number between ⟨ and
⟩. Of its secrets only those are hidden that were generated and are one word (`Redactor.opaque_values`).
Nothing is cut: what is too long to be read is not asked about at all. Every face shows these lines.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence

import msgspec

from waypoint.model import Actor, Judged, Judgement
from waypoint.text.units import plural

LONGEST = 24_000
"""Characters of one review: about five hundred lines of a terminal. A person reads no more than that."""

_BAR = "  │ "
_FEW_SPACES = 16
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and signs that are drawn as nothing."""
_SPACES = re.compile(rf" {{{_FEW_SPACES + 1},}}")
_OTHERS_SHOWN = 8


class Command(msgspec.Struct, frozen=True):
    """What is asked about, before it is written for a reader."""

    session: str
    actor: Actor
    line: str
    judgement: Judgement
    remarks: Sequence[str] = ()
    """What else is to be known: that it happened before, what a name means in this shell."""
    opaque: Sequence[str] = ()
    """Values that are not shown."""
    stdin: bytes | None = None
    user: str | None = None
    cwd: str | None = None


def digest(line: str, stdin: bytes | None = None) -> str:
    """Of everything that an approval is for."""
    whole = line.encode(errors="surrogatepass")
    return hashlib.sha256(whole if stdin is None else b"\0".join((whole, stdin))).hexdigest()


def review(command: Command) -> tuple[str, ...]:
    """The lines that a person reads."""
    return tuple(_lines(command))


def _lines(command: Command) -> Iterator[str]:
    judgement, opaque = command.judgement, command.opaque
    actor = "an agent" if command.actor == "agent" else "a person"
    user = f" as user {visible(command.user)}" if command.user else ""
    folder = f", in {visible(command.cwd)}" if command.cwd else ""
    yield f"{actor} wants to run this in session {visible(command.session)}{user}{folder}:"
    yield ""
    yield from _quoted(command.line, opaque)
    yield ""
    parts = [part for part in judgement.parts if part.command]
    yield f"{judgement.class_}, {plural(len(parts), 'command')}:"
    for number, part in enumerate(parts, 1):
        yield f"  {number}. {visible(part.command, opaque)}"
        yield f"     {_reason(part, opaque)}"
    for reason in judgement.unseen:
        yield f"  cannot be looked into: {visible(reason, opaque)}"
    for remark in command.remarks:
        yield f"  {visible(remark, opaque)}"
    if command.stdin is not None:
        yield from _input(command.stdin, opaque)
    if strange := _foreign(command.line):
        yield f"  letters of other alphabets: {strange}"
    of = plural(len(command.line), "character")
    yield f"sha256 {digest(command.line, command.stdin)} of {of}"


def _reason(part: Judged, opaque: Sequence[str]) -> str:
    facts = [f"{part.class_}, {part.decision}" + (f" (rule: {part.rule})" if part.rule else "")]
    facts += [part.why] if part.why else []
    facts += [f"it acts on {part.target}"] if part.target else []
    facts += [f"it runs on the {part.place}"] if part.place else []
    return " · ".join(visible(fact, opaque) for fact in facts)


def _input(stdin: bytes, opaque: Sequence[str]) -> Iterator[str]:
    yield f"its standard input, {plural(len(stdin), 'byte')}:"
    try:
        yield from _quoted(stdin.decode(), opaque)
    except UnicodeDecodeError:
        yield f"{_BAR}⟨no text, sha256 {hashlib.sha256(stdin).hexdigest()}⟩"


def _quoted(text: str, opaque: Sequence[str]) -> Iterator[str]:
    """Each line behind the mark. A line that goes on in the next one ends in ⏎."""
    *lines, last = text.split("\n")
    for line in lines:
        yield f"{_BAR}{visible(line, opaque)} ⏎"
    if last or not lines:
        yield f"{_BAR}{visible(last, opaque)}"


def visible(text: str, opaque: Sequence[str] = ()) -> str:
    """The text on one line, with every character that is not seen, or that moves others, by its number."""
    if not opaque:
        return _spaces("".join(map(_letter, text)))
    pieces: list[str] = []
    done = 0
    for match in re.finditer("|".join(map(re.escape, opaque)), text):
        pieces += (visible(text[done : match.start()]), f"⟨{len(match[0])} characters hidden⟩")
        done = match.end()
    return "".join([*pieces, visible(text[done:])])


def _letter(letter: str) -> str:
    if letter == "\n":
        return "⏎"
    if letter == "\t":
        return "⟨tab⟩"
    is_plain = letter.isprintable() and unicodedata.category(letter)[0] != "M" and letter not in _BLANK
    return letter if is_plain and letter not in "⟨⟩⏎│" else f"⟨U+{ord(letter):04X}⟩"


def _spaces(text: str) -> str:
    """A long run of spaces moves what is behind it out of sight."""
    return _SPACES.sub(lambda match: f"⟨{len(match[0])} spaces⟩", text)


def _foreign(text: str) -> str:
    """Letters that look like those of a name, and are others."""
    found = dict.fromkeys(letter for letter in text if not letter.isascii() and letter.isalpha())
    names = [f"{letter} ({unicodedata.name(letter, 'unnamed').lower()})" for letter in found]
    more = f" and {len(names) - _OTHERS_SHOWN} more" if len(names) > _OTHERS_SHOWN else ""
    return ", ".join(names[:_OTHERS_SHOWN]) + more
