"""The manual pages, from the declarations of the verbs: `waypoint man`.

The same table as `-h` and docs/cli.md, written in roff: one page for the program and one for each verb.
"""

from __future__ import annotations

from collections.abc import Sequence

from waypoint import __version__
from waypoint.cli import reference
from waypoint.cli.help import ABOUT, Row, introduction, options, positionals, usage_line
from waypoint.cli.spec import PROGRAM, Parser, Verb
from waypoint.cli.verbs import load_all


def pages() -> dict[str, str]:
    """All pages, by the name of their file: waypoint.1, waypoint-restore.1, …"""
    groups = load_all()
    verbs = [verb for _, each in groups for verb in each]
    return {f"{PROGRAM}.1": _program(groups), **{f"{_name(verb)}.1": _verb(verb) for verb in verbs}}


def _name(verb: Verb) -> str:
    return f"{PROGRAM}-{verb.name.replace(' ', '-')}"


def _program(groups: Sequence[tuple[str, Sequence[Verb]]]) -> str:
    lines = [
        *_head(PROGRAM, ABOUT),
        ".SH SYNOPSIS",
        f"{PROGRAM} VERB …",
        ".SH DESCRIPTION",
        *(_text(line) or ".PP" for line in reference.conventions()),
    ]
    for group, verbs in groups:
        lines.append(f".SH {_text(group.upper())}")
        for verb in verbs:
            lines += [".TP", rf"\fB{_text(_name(verb))}\fR(1)", _text(verb.summary)]
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> str:
    parser = Parser(verb)
    lines = [
        *_head(_name(verb), verb.summary),
        ".SH SYNOPSIS",
        _text(usage_line(parser)),
        ".SH DESCRIPTION",
        _text(introduction(verb)),
        ".SH OPTIONS",
        *_rows([*positionals(parser), *options(parser), *options(parser, common=True)]),
        ".SH EXAMPLES",
        ".nf",
        *map(_text, verb.examples),
        ".fi",
        ".SH SEE ALSO",
        rf"\fB{PROGRAM}\fR(1)",
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, summary: str) -> list[str]:
    return [
        f'.TH "{name.upper()}" 1 "" "{PROGRAM} {__version__}" "Waypoint"',
        ".SH NAME",
        rf"{_text(name)} \- {_text(summary)}",
    ]


def _rows(rows: Sequence[Row]) -> list[str]:
    return [line for row in rows for line in (".TP", rf"\fB{_text(row.words)}\fR", _text(row.meaning))]


def _text(text: str) -> str:
    """Text as roff prints it: no character of it is a request."""
    text = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga")
    return rf"\&{text}" if text.startswith((".", "'")) else text
