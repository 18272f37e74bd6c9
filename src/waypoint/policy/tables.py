"""What is known about commands that run other commands: the content of wrappers.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from waypoint.model import Record, from_plain


class Words(frozenset[str]):
    """A list of words that is one string in wrappers.toml."""


class Wrapper(Record, frozen=True, forbid_unknown_fields=True):
    """A program that runs the words after its options. wrappers.toml explains the fields."""

    values: Words = Words()
    arguments: int = 0
    variables: bool = False
    line: Words = Words()
    versioned: bool = False
    acts_itself: bool = False


class Names(Record, frozen=True, forbid_unknown_fields=True):
    shells: Words
    interpreters: Words
    modules: Words
    command_variables: Words
    library_variables: Words
    prompt_variables: Words
    usual_helpers: Words
    tmux_verbs: Words
    find_actions: Words


class Tables(Record, frozen=True, forbid_unknown_fields=True):
    """The content of wrappers.toml."""

    programs: dict[str, Wrapper]
    verbs: dict[str, dict[str, Wrapper]]
    options: dict[str, Words]
    starts: dict[str, Words]
    loads: dict[str, Words]
    names: Names


@cache
def tables() -> Tables:
    """What is known about wrappers. It is read from the file once, when it is first needed."""
    data = tomllib.loads((Path(__file__).parent / "wrappers.toml").read_text())
    data["programs"] |= {name: {} for name in data.pop("plain").split()}
    return from_plain(data, Tables, dec_hook=lambda _, text: Words(text.split()))
