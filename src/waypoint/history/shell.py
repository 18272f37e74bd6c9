"""The shell of a session as it reported itself at its last prompt, and what changed between two reports.

shell/integration.bash writes two files at each prompt. The first has what programs inherit. The second, the
listing, has the rest: all variables, functions, aliases, options, the mask, traps. A shell of an older
Waypoint writes no listing, and one that is cut off is not used: what it would have told is then not known,
which is not the same as "nothing".
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping

import msgspec

from waypoint.api.difference import SettingChange, VariableChange
from waypoint.model import Record

_LONGEST_VALUE = 16 << 10


class ShellVariable(Record, frozen=True):
    """A variable that is not exported, or that is more than a string."""

    value: str
    """As bash writes it; a long one is cut and ends in its digest."""
    flags: str = ""
    """`a` array, `A` associative array, `i` integer, `n` reference, `r` read-only, `x` exported, …"""


class ShellListing(Record, frozen=True):
    """What no program inherits from the shell, and no file shows."""

    variables: dict[str, ShellVariable] = msgspec.field(default_factory=dict)
    functions: dict[str, str] = msgspec.field(default_factory=dict)
    """Names and digests of the bodies."""
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Those that are on, of `set` and of `shopt`."""
    umask: str = ""
    traps: dict[str, str] = msgspec.field(default_factory=dict)


class ShellFact(Record, frozen=True):
    """The shell as it was at its last prompt."""

    cwd: str = "/"
    exported: dict[str, str] = msgspec.field(default_factory=dict)
    functions: tuple[str, ...] = ()
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    foreground: str | None = None
    listing: ShellListing | None = None
    """None when it is not known."""

    @property
    def values(self) -> dict[str, str]:
        """The values of all variables that are compared, exported or not."""
        others = self.listing.variables if self.listing else {}
        return {name: one.value for name, one in others.items() if not name.startswith("_")} | self.exported


# ---- reading what the shell wrote ----------------------------------------------------------------

_DECLARED = re.compile(
    r"^declare -([a-zA-Z-]+) ([A-Za-z_][A-Za-z0-9_]*)"
    r"""(?:=((?:"(?:[^"\\]|\\.)*+"|\$'(?:[^'\\]|\\.)*+'|[^"'\n])*+))?$""",
    re.MULTILINE | re.DOTALL,
)
"""One variable as `declare -p` writes it. Quoted parts may contain line ends, and lines that look like
declarations."""
_FUNCTION = re.compile(r"^declare -f([a-z]*) (\S+)$", re.MULTILINE)
_QUOTED = r"(?:'[^']*+'|\\')++"
_ALIAS = re.compile(rf"^alias (?:-- )?([^=\n]+)=({_QUOTED})$", re.MULTILINE)
_TRAP = re.compile(rf"^trap -- ({_QUOTED}) (\S+)$", re.MULTILINE)
_OPTIONS = re.compile(r'^declare -[a-z]+ (?:BASHOPTS|SHELLOPTS)="([a-z0-9_:-]*)"$', re.MULTILINE)
_START = re.compile(r"^(?=declare -[a-zA-Z-]+ |alias )", re.MULTILINE)
_FLAGS_OF_OPTIONS = {"e": "errexit", "u": "nounset", "x": "xtrace", "v": "verbose"}

_OWN = "__waypoint_"
_OWN_PARTS = (
    re.compile(r"\\+\[\\+e\]133;B;k=.*?\\+a\\+\]"),
    re.compile(r"\\+e\]133;C;k=.*?;l=0\\+a"),
    re.compile(r'\[\d+\]="\{ __waypoint_prompt[^"]*" ?'),
    re.compile(r"(?:; )?\{ __waypoint_prompt[^}]*\} 2>/dev/null(?:; )?"),
    re.compile(r"^ __waypoint_begin \*:?"),
    re.compile(r"\\*\$\{__waypoint_mark\}"),
)
"""What the integration adds to the prompt, to what runs before it and to what the history leaves out."""
_WITH_OWN_PARTS = frozenset({"PS0", "PS1", "PROMPT_COMMAND", "HISTIGNORE"})
_CHANGE_BY_THEMSELVES = frozenset({
    "_", "OLDPWD", "PWD", "SHLVL", "PPID", "BASHPID", "RANDOM", "SRANDOM", "SECONDS", "LINENO", "HISTCMD",
    "EPOCHREALTIME", "EPOCHSECONDS", "PIPESTATUS", "FUNCNAME", "DIRSTACK", "COLUMNS", "LINES", "GROUPS",
    "BASHOPTS", "SHELLOPTS", "BASH_ALIASES", "BASH_CMDS", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0",
    "BASH_COMMAND", "BASH_EXECUTION_STRING", "BASH_LINENO", "BASH_SOURCE", "BASH_SUBSHELL", "BASH_REMATCH",
    "READLINE_LINE", "READLINE_POINT", "READLINE_MARK", "COMP_WORDBREAKS", "WAYPOINT_SESSION",
})  # fmt: skip


def _value(quoted: str) -> str:
    """A word as bash quotes it in its own listings."""
    if quoted.startswith("$'") and quoted.endswith("'"):
        return quoted[2:-1].encode().decode("unicode_escape", errors="replace")
    if len(quoted) >= 2 and quoted[0] == quoted[-1] == '"':
        return re.sub(r'\\([$`"\\])', r"\1", quoted[1:-1])
    try:
        return " ".join(shlex.split(quoted))
    except ValueError:
        return quoted


def parse_shell(
    text: str, cwd: str, foreground: str | None, *, listing: ShellListing | None = None
) -> ShellFact:
    """Reads the first file. (Older shells have the names of functions and the aliases in it.)"""
    exported = {match[2]: _value(match[3] or '""') for match in _DECLARED.finditer(text) if "x" in match[1]}
    if listing:
        functions, aliases = tuple(listing.functions), dict(listing.aliases)
    else:
        entries = [part.rstrip("\n") for part in _START.split(text)]
        found = [match[2] for entry in entries if (match := _FUNCTION.fullmatch(entry))]
        functions = tuple(sorted(name for name in found if not name.startswith(_OWN)))
        aliases = {match[1]: _value(match[2]) for entry in entries if (match := _ALIAS.fullmatch(entry))}
    return ShellFact(
        cwd=cwd,
        exported=exported,
        functions=functions,
        aliases=aliases,
        foreground=foreground,
        listing=listing,
    )


def parse_listing(text: str) -> ShellListing | None:
    """Reads the second file: sections that end in NUL. None when it is not there or cut off."""
    parts = text.split("\0")
    if len(parts) != 7:
        return None
    variables, flags, names, bodies, aliases, umask, traps = parts
    functions = _functions(_FUNCTION.findall(names), bodies)
    if functions is None or not umask.strip():
        return None
    on = {option for options in _OPTIONS.findall(variables) for option in options.split(":") if option}
    on |= {_FLAGS_OF_OPTIONS[flag] for flag in flags if flag in "euxv"}
    return ShellListing(
        variables=dict(_variables(variables)),
        functions=functions,
        aliases={match[1]: _value(match[2]) for match in _ALIAS.finditer(aliases)},
        options=tuple(sorted(on)),
        umask=umask.strip(),
        traps={match[2]: _value(match[1]) for match in _TRAP.finditer(traps)},
    )


def _variables(text: str) -> Iterable[tuple[str, ShellVariable]]:
    for match in _DECLARED.finditer(text):
        flags, name, quoted = match[1].replace("-", ""), match[2], match[3] or ""
        if name in _CHANGE_BY_THEMSELVES or name.startswith(_OWN):
            continue
        if name in _WITH_OWN_PARTS:
            for part in _OWN_PARTS:
                quoted = quoted[:1] + part.sub("", quoted[1:]) if quoted[:1] == '"' else part.sub("", quoted)
        value = quoted if "a" in flags or "A" in flags else _value(quoted) if quoted else ""
        if name in _WITH_OWN_PARTS and value in ("", "()"):
            continue  # the integration made it: before the first prompt there was none
        if len(value) > _LONGEST_VALUE:
            value = f"{value[:_LONGEST_VALUE]}… ({_digest(value)})"
        yield name, ShellVariable(value=value, flags="".join(sorted(flags)))


def _functions(names: list[tuple[str, str]], bodies: str) -> dict[str, str] | None:
    """Bash lists names and bodies in the same order. None when they do not go together."""
    starts: list[int] = []
    for _, name in names:
        start = re.compile(rf"^(?:function )?{re.escape(name)} \(\) *$", re.MULTILINE).search(
            bodies, starts[-1] + 1 if starts else 0
        )
        if start is None:
            return None
        starts.append(start.start())
    ends = [*starts[1:], len(bodies)][: len(starts)]
    return {
        name: _digest(flags + bodies[start:end])
        for (flags, name), start, end in zip(names, starts, ends, strict=True)
        if not name.startswith(_OWN)
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


# ---- comparing two reports -----------------------------------------------------------------------

_ATTRIBUTES = {
    "x": "exported", "r": "read-only", "a": "an array", "A": "an associative array", "i": "an integer",
    "n": "a reference", "l": "in lower case", "u": "in upper case", "t": "traced",
}  # fmt: skip


def compare_variables(old: ShellFact, new: ShellFact) -> tuple[VariableChange, ...]:
    """Those that are not exported are compared when both sides are known, and their name does not begin with
    `_`: so do those that the hooks of prompts and completions keep for themselves."""
    before, after = _all_variables(old), _all_variables(new)
    if old.listing is None or new.listing is None:
        before = {name: ShellVariable(value=value, flags="x") for name, value in old.exported.items()}
        after = {name: ShellVariable(value=value, flags="x") for name, value in new.exported.items()}
    changes = []
    for name in sorted((before.keys() | after.keys()) - _CHANGE_BY_THEMSELVES):
        was, now = before.get(name), after.get(name)
        exported = "x" in (now or was or ShellVariable("")).flags
        if was == now or (name.startswith("_") and not exported):
            continue
        flags_before, flags_after = (set(variable.flags) if variable else set() for variable in (was, now))
        gained = flags_after - flags_before if was and now else set()
        lost = flags_before - flags_after if was and now else set()
        changes.append(
            VariableChange(
                name=name,
                before=was.value if was else None,
                after=now.value if now else None,
                exported=exported,
                became=tuple(_ATTRIBUTES.get(flag, flag) for flag in sorted(gained)),
                no_longer=tuple(_ATTRIBUTES.get(flag, flag) for flag in sorted(lost)),
            )
        )
    return tuple(changes)


def _all_variables(shell: ShellFact) -> dict[str, ShellVariable]:
    """What programs inherit is read exactly; the listing has the rest."""
    variables = dict(shell.listing.variables) if shell.listing else {}
    for name, value in shell.exported.items():
        known = variables.get(name)
        if known is None or (known.flags == "x" and name not in _WITH_OWN_PARTS):
            variables[name] = ShellVariable(value=value, flags="x")
    return variables


def compare_settings(old: ShellFact, new: ShellFact) -> tuple[SettingChange, ...]:
    """Aliases, bodies of functions, options, the mask, traps; nothing where one side is not known."""
    before, after = old.listing, new.listing
    if before is None or after is None:
        return ()
    bodies = {name: digest for name, digest in before.functions.items() if name in after.functions}
    changed = [name for name, digest in bodies.items() if after.functions[name] != digest]
    return (
        *(SettingChange(kind="function", name=name) for name in sorted(changed)),
        *_changed("alias", before.aliases, after.aliases),
        *_changed("option", dict.fromkeys(before.options, "on"), dict.fromkeys(after.options, "on")),
        *_changed("umask", {"umask": before.umask}, {"umask": after.umask}),
        *_changed("trap", before.traps, after.traps),
    )


def _changed(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[SettingChange]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield SettingChange(kind=kind, name=name, before=before.get(name), after=after.get(name))  # type: ignore[arg-type]
