"""The live side in words: processes, ports and the shell, in one line and in sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from waypoint.api.difference import (
    LiveDifference,
    PortFact,
    ProcessFact,
    SectionLine,
    SettingChange,
    Sign,
    VariableChange,
)
from waypoint.text.findings import program_name, program_names
from waypoint.text.units import cut, cut_around, noun_of, plural, size, some

_NAMED = 3
MAY_HAVE_CHANGED = "may have changed"
_VALUE_WIDTH = 60
COMPARED = (
    "no change found in files, processes and ports, nor in the shell's folder, variables (_* only if"
    " exported), functions, aliases, options, umask and traps"
)
"""For a difference that is empty: exactly what it is about."""


def summarize_processes(live: LiveDifference) -> list[str]:
    """`flask :5000 restarted`, `node :3000, worker started`, and so on."""
    phrases = [f"{names} restarted"] if (names := some(_restarted(live), _NAMED)) else []
    for word, processes, ports in (
        ("started", live.started, live.opened),
        ("ended", live.ended, live.closed),
        ("stopped", live.stopped, ()),
        ("continued", live.continued, ()),
    ):
        if names := some(program_names(processes, ports), _NAMED):
            phrases.append(f"{names} {word}")
    ended = {process.pid for process in live.ended} | {restart.before.pid for restart in live.restarted}
    started = {process.pid for process in live.started} | {restart.after.pid for restart in live.restarted}
    phrases += _of_others(live.opened, started, "opened")
    return [*phrases, *_of_others(live.closed, ended, "closed")]


def _of_others(ports: Sequence[PortFact], told: Collection[int | None], word: str) -> Iterator[str]:
    """`node opened :3000`, of a program that went on."""
    numbers: dict[str, set[int]] = {}
    for port in ports:
        if port.pid not in told:
            numbers.setdefault(program_name(port.command) if port.command else "", set()).add(port.port)
    for name, group in numbers.items():
        listed = some([f":{number}" for number in sorted(group)], _NAMED)
        yield f"{name} {word} {listed}" if name else f"{listed} {word}"


def _restarted(live: LiveDifference) -> list[str]:
    """Programs of the same name and ports are one: a server with its workers."""
    after = [restart.after for restart in live.restarted]
    ports = [
        PortFact(protocol="", address="", port=port, pid=restart.after.pid)
        for restart in live.restarted
        for port in restart.ports
    ]
    return program_names(after, ports)


def summarize_moves(live: LiveDifference) -> list[str]:
    """`:5000 flask → node`."""
    return [
        f":{move.after.port} {_mover(move.before)} → {_mover(move.after)}" for move in live.moved[:_NAMED]
    ]


def _mover(port: PortFact) -> str:
    return program_name(port.command) if port.command else f"pid {port.pid}"


def summarize_shell(live: LiveDifference) -> list[str]:
    """The shell's folder, and the names of two or three variables, functions and settings. Those come first
    that programs see."""
    functions = [
        *(f"+{name}()" for name in live.functions_added),
        *(f"-{name}()" for name in live.functions_removed),
        *(f"~{change.name}()" for change in live.settings if change.kind == "function"),
    ]
    settings = [_setting(change) for change in live.settings if change.kind != "function"]
    exported = sorted(live.variables, key=lambda variable: not variable.exported)
    variables = [f"{_variable_sign(variable)}{variable.name}" for variable in exported]
    return [
        f"cwd {live.cwd[1]}" if live.cwd else "",
        *(
            _some_of_shell(names, noun)
            for names, noun in ((variables, "variable"), (functions, "function"), (settings, "shell setting"))
        ),
    ]


def _some_of_shell(names: Sequence[str], noun: str) -> str:
    """`~PATH, +TOKEN`, `~PATH, +TOKEN and 5 more variables`."""
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {plural(len(names) - _NAMED + 1, f'more {noun}')}"


def _variable_sign(variable: VariableChange) -> Sign:
    return "+" if variable.before is None else "-" if variable.after is None else "~"


def _setting_sign(change: SettingChange) -> Sign:
    if change.kind in ("function", "option"):
        return "~"
    return "+" if change.before is None else "-" if change.after is None else "~"


def _setting(change: SettingChange) -> str:
    match change.kind:
        case "umask":
            return f"umask {change.after}"
        case "option":
            return f"{change.name} {change.after or 'off'}"
    return f"{_setting_sign(change)}{change.kind} {change.name}"


def describe_not_compared(
    went_on: Sequence[ProcessFact], *, foreground: str | None, own_network: bool
) -> list[str]:
    """What may have changed without a sign."""
    phrases = []
    if went_on:
        names = some(program_names(went_on, ()), _NAMED)
        count = plural(len(went_on), "process")
        phrases.append(f"memory of {count} that went on ({names}) {MAY_HAVE_CHANGED}")
    if foreground:
        phrases.append(f"the shell is as it was at its last prompt; it runs {foreground}")
    if not own_network:
        phrases.append("the session shares the ports of the host")
    return phrases


# ---- sections ------------------------------------------------------------------------------------


def process_summary(live: LiveDifference) -> str:
    phrases = summarize_processes(live)
    if live.kept:
        phrases.append(f"{live.kept:,} still there")
    before, after = live.memory_bytes
    if phrases and size(before) != size(after):
        phrases.append(f"memory {size(before)} → {size(after)}")
    return " · ".join(phrases)


def process_lines(live: LiveDifference) -> Iterator[SectionLine]:
    for restart in live.restarted:
        name = program_name(restart.after.command) + "".join(f" :{port}" for port in restart.ports)
        yield SectionLine(
            sign="~", text=name, detail=f"restarted · {_process(restart.after, restart.before)}"
        )
    signs: tuple[tuple[Sign, Sequence[ProcessFact], Sequence[PortFact], str], ...] = (
        ("+", live.started, live.opened, ""),
        ("-", live.ended, live.closed, ""),
        ("~", live.stopped, (), "stopped · "),
        ("~", live.continued, (), "continued · "),
    )
    for sign, processes, ports, word in signs:
        for process in processes:
            [name] = program_names([process], ports)
            stopped = " · stopped" if process.stopped and sign == "+" else ""
            yield SectionLine(sign=sign, text=name, detail=f"{word}{_process(process)}{stopped}")


def _process(process: ProcessFact, before: ProcessFact | None = None) -> str:
    pid = f"pid {process.pid}" if before is None else f"pid {before.pid} → {process.pid}"
    return f"{pid} · {cut(process.command, _VALUE_WIDTH)}"


def port_summary(live: LiveDifference) -> str:
    phrases = []
    for word, ports in (("opened", live.opened), ("closed", live.closed)):
        if ports:
            numbers = sorted({port.port for port in ports})
            phrases.append(f"{', '.join(f':{number}' for number in numbers)} {word}")
    return " · ".join([*phrases, *summarize_moves(live)])


def port_lines(live: LiveDifference) -> Iterator[SectionLine]:
    signs: tuple[tuple[Sign, Sequence[PortFact]], ...] = (("+", live.opened), ("-", live.closed))
    for sign, ports in signs:
        for port in ports:
            program = program_name(port.command) if port.command else ""
            yield SectionLine(sign=sign, text=_address(port), detail=program)
    for move in live.moved:
        pids = f"pid {move.before.pid} → {move.after.pid}"
        detail = f"{_mover(move.before)} → {_mover(move.after)} · {pids}"
        yield SectionLine(sign="~", text=_address(move.after), detail=detail)


def _address(port: PortFact) -> str:
    address = f"[{port.address}]" if ":" in port.address else port.address
    return f"{port.protocol} {address}:{port.port}"


def shell_summary(live: LiveDifference) -> str:
    cwd = [f"cwd {live.cwd[0]} → {live.cwd[1]}"] if live.cwd else []
    umask = [f"umask {one.before} → {one.after}" for one in live.settings if one.kind == "umask"]
    return " · ".join([*cwd, *count_shell(live), *umask])


def count_shell(live: LiveDifference) -> list[str]:
    """How many variables, functions and settings of the shell are others."""
    kinds = Counter(change.kind for change in live.settings)
    counts = (
        (len(live.variables), "variable"),
        (len(live.functions_added) + len(live.functions_removed) + kinds["function"], "function"),
        (kinds["alias"], "alias"),
        (kinds["option"], "option"),
        (kinds["trap"], "trap"),
    )
    return [plural(number, noun) for number, noun in counts if number]


def name_shell(live: LiveDifference) -> list[str]:
    """The same by name: `variables PATH, TOKEN and 3 more`, `function build()`."""
    names: dict[str, list[str]] = {
        "variable": [variable.name for variable in live.variables],
        "function": [f"{name}()" for name in (*live.functions_added, *live.functions_removed)],
        "alias": [],
        "option": [],
        "trap": [],
    }
    for change in live.settings:
        if change.kind in names:
            names[change.kind].append(f"{change.name}()" if change.kind == "function" else change.name)
    return [f"{noun_of(len(group), noun)} {some(group, _NAMED)}" for noun, group in names.items() if group]


def shell_lines(live: LiveDifference) -> Iterator[SectionLine]:
    if live.cwd:
        yield SectionLine(sign="~", text=f"cwd {live.cwd[0]} → {live.cwd[1]}")
    for variable in live.variables:
        yield SectionLine(sign=_variable_sign(variable), text=variable.name, detail=_variable(variable))
    yield from (SectionLine(sign="+", text=f"{name}()") for name in live.functions_added)
    yield from (SectionLine(sign="-", text=f"{name}()") for name in live.functions_removed)
    for change in live.settings:
        yield _setting_line(change)


def _variable(variable: VariableChange) -> str:
    if variable.after is None:
        return ""
    phrases = []
    if variable.before is None:
        phrases.append(_visible(cut(variable.after, _VALUE_WIDTH)))
    elif variable.before != variable.after:
        phrases.append(" → ".join(map(_visible, cut_around(variable.before, variable.after, _VALUE_WIDTH))))
    elif not variable.became and not variable.no_longer:
        phrases.append(f"{cut(variable.after, _VALUE_WIDTH)} → another value")  # both are redacted
    phrases += [f"{word} now" for word in variable.became]
    phrases += [f"no longer {word}" for word in variable.no_longer]
    if not variable.exported and "exported" not in variable.no_longer:
        phrases.append("not exported")
    return " · ".join(phrases)


def _visible(value: str) -> str:
    """A value as bash would quote it where it is empty or has white space at an end."""
    if value.strip() == value and value:
        return value
    if value.isprintable():
        return f"'{value}'"
    letters = (letter if letter.isprintable() else f"{letter!r}"[1:-1] for letter in value)
    return f"$'{''.join(letters)}'"


def _setting_line(change: SettingChange) -> SectionLine:
    sign, before, after = _setting_sign(change), change.before or "", change.after or ""
    match change.kind:
        case "function":
            return SectionLine(sign=sign, text=f"{change.name}()", detail="another body")
        case "umask":
            return SectionLine(sign=sign, text="umask", detail=f"{before} → {after}")
        case "option":
            return SectionLine(sign=sign, text=f"option {change.name}", detail=after or "off")
    detail = cut(after, _VALUE_WIDTH) if sign == "+" else ""
    if sign == "~":
        detail = " → ".join(cut_around(before, after, _VALUE_WIDTH))
    return SectionLine(sign=sign, text=f"{change.kind} {change.name}", detail=detail)
