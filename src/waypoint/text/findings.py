"""What changed in a few words each, for the one line that a log has room for: findings and programs."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from waypoint.api.difference import PortFact, ProcessFact
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    BranchMove,
    CronChange,
    DatabaseChange,
    Gap,
    Keyspace,
    PackageChange,
    RefMove,
    RepositoryChange,
    ServerChange,
    SystemChange,
    TableChange,
)
from waypoint.text.units import cut, plural, some

_SIGNS = {"added": "+", "created": "+", "upgraded": "~", "downgraded": "~", "changed": "~", "removed": "-"}
_WIDTH = 120
"""How long a phrase may be."""
_NAMED = 3
_NAMED_COMMITS = 2
_NAMED_TABLES = 2
_SYSTEM = {"/", "/usr", "/usr/local"}


def program_name(command: str) -> str:
    """The name a person would use for a process: `node`, `http.server`, `redis-server`."""
    words = command.split()
    if not words:
        return "?"
    name = posixpath.basename(words[0].strip("[]-")).rstrip(":")  # `nginx: worker process`
    match = re.match(r"python|node|ruby|perl|(?:ba|da|z)?sh(?=$)", name)
    if match and (manager := _MANAGERS.search(command)):
        return manager[1]
    return name if match is None else _script_name(name, words[1:], _INTERPRETERS.get(match[0], _SHELL))


_MANAGERS = re.compile(r"^\S+ /\S*?/\.?(pyenv|rbenv|nodenv|asdf)/(?:libexec|plugins|shims|lib)/")
"""A step of a program that finds out which interpreter is meant: for a reader all of its steps are one."""


class _Options(NamedTuple):
    """The options of an interpreter before the script: what has the program in its own text, and what takes a
    word."""

    code: str
    with_word: tuple[str, ...]


_SHELL = _Options("c", ("-o", "-O", "+o", "+O", "--rcfile", "--init-file"))
_INTERPRETERS = {
    "python": _Options("c", ("-W", "-X", "--check-hash-based-pycs")),
    "node": _Options("ep", ("-r", "--require", "--import", "--loader", "-C", "--conditions")),
    "ruby": _Options("e", ("-I", "-r", "-C")),
    "perl": _Options("eE", ("-I",)),
}
_LONG_CODE = ("--eval", "--print")


def _script_name(interpreter: str, arguments: Sequence[str], options: _Options) -> str:
    """The script or the module that an interpreter runs; `python3 -c` when the program is in the command."""
    rest = iter(arguments)
    for word in rest:
        if word in options.with_word:
            next(rest, None)
        elif word in _LONG_CODE:
            return f"{interpreter} -{options.code[0]}"
        elif word.startswith("-m") and interpreter.startswith("python"):
            return word[2:] or next(rest, interpreter)
        elif match := re.match(rf"-[A-Za-z]*?([{options.code}])", word):
            return f"{interpreter} -{match[1]}"
        elif not word.startswith(("-", "+")):
            return posixpath.basename(word)
    return interpreter


def program_names(processes: Sequence[ProcessFact], ports: Sequence[PortFact]) -> list[str]:
    """`node :8080`, `postgres ×7`: each program once."""
    listening: dict[str, set[int]] = {}
    count: Counter[str] = Counter()
    for process in processes:
        name = program_name(process.command)
        count[name] += 1
        listening.setdefault(name, set()).update(port.port for port in ports if port.pid == process.pid)
    return [
        name
        + (f" ×{number}" if number > 1 else "")
        + "".join(f" :{port}" for port in sorted(listening[name]))
        for name, number in count.items()
    ]


def summarize_findings(analysis: Analysis) -> list[str]:
    """One phrase for each thing that happened, the most informative first."""
    findings = analysis.findings
    servers = [finding for finding in findings if isinstance(finding, ServerChange)]
    accounts = [finding for finding in findings if isinstance(finding, AccountChange)]
    system = [finding for finding in findings if isinstance(finding, SystemChange)]
    repositories = _repositories([finding for finding in findings if isinstance(finding, RepositoryChange)])
    phrases = [
        *(
            phrase
            for finding in findings
            if isinstance(finding, DatabaseChange)
            for phrase in _database(finding)
        ),
        *(describe_server(server) for server in servers if not _is_only_written(server)),
        *_counted("user", accounts),
        *_counted("cron", [finding for finding in findings if isinstance(finding, CronChange)]),
        *_system([change for change in system if not _comes_with_user(change, accounts)]),
        # A server writes to its folder also when nothing was asked of it.
        *(describe_server(server) for server in servers if _is_only_written(server)),
    ]
    return [
        *(
            _printable(phrase, _WIDTH)
            for phrase in _packages([finding for finding in findings if isinstance(finding, PackageChange)])
        ),
        *repositories,
        *(_printable(phrase, _WIDTH) for phrase in phrases),
    ]


def _is_only_written(server: ServerChange) -> bool:
    return server.change == "changed" and all(map(_is_written, server.databases))


def _is_written(space: Keyspace) -> bool:
    """Whether all that is known of a database is that its files were written."""
    return (
        space.change == "changed"
        and space.renamed_from is None
        and (space.added, space.removed) == (None, None)
        and space.before == space.after
    )


def _comes_with_user(change: SystemChange, accounts: Sequence[AccountChange]) -> bool:
    """Whether it is the group that has the name of a user and came or went with that user."""
    is_bare_group = change.subject == "group" and not change.details
    return is_bare_group and any((one.name, one.change) == (change.name, change.change) for one in accounts)


def _printable(words: str, width: int) -> str:
    """Words from a session, fit for a terminal: no control characters, one line, at most `width` letters."""
    return cut("".join(letter if letter.isprintable() else " " for letter in words), width)


def _packages(changes: list[PackageChange]) -> Iterator[str]:
    environments = {(change.ecosystem, change.environment) for change in changes}
    for (ecosystem, environment), group in groupby(
        changes, lambda change: (change.ecosystem, change.environment)
    ):
        members = list(group)
        several = sum(1 for other, _ in environments if other == ecosystem) > 1
        direct = [change for change in members if change.direct] or members
        rest = len(members) - len(direct)
        if len(direct) <= _NAMED:
            words = ", ".join(_package(change, versions=len(direct) == 1) for change in direct)
            if rest:
                # What a new package brought came with it; what went meanwhile did not.
                kinds = {change.change for change in members} - {change.change for change in direct}
                how = "more" if kinds else "with it" if len(direct) == 1 else "with them"
                words += f" (and {rest} {how})"
            where = f" in {environment}" if several else ""
        else:
            words = _signs([change.change for change in members])
            where = (
                f" in {environment}" if several or (ecosystem == "pip" and environment not in _SYSTEM) else ""
            )
        lock = "" if all(change.installed for change in members) else " locked"
        yield f"{ecosystem}{lock} {words}{where}"


def _package(change: PackageChange, *, versions: bool) -> str:
    name = f"{_SIGNS[change.change]}{change.name}"
    if not versions:
        return name
    if change.change in {"upgraded", "downgraded"}:
        return f"{name} {change.before} → {change.after}"
    return f"{name} {change.after}" if change.after else name


def _signs(changes: list[str]) -> str:
    signs = [_SIGNS[change] for change in changes]
    return " ".join(f"{sign}{signs.count(sign):,}" for sign in "+~-" if sign in signs)


def _repositories(changes: Sequence[RepositoryChange]) -> Iterator[str]:
    """What happened in each; its name is said where it is new, or could be mistaken for another one."""
    told = {(change.worktree_of, change.branch_after) for change in changes if change.worktree_of}
    for change in changes:
        here = [move for move in change.branches if (change.path, move.branch) not in told]
        phrases = [_printable(phrase, _WIDTH) for phrase in _repository(change, here)]
        name = _printable(_base(change.path), _WIDTH)
        if change.change != "changed":
            colon = ":" * bool(change.commit_count or change.lost_count)
            which = f"{'worktree ' * bool(change.worktree_of)}{_SIGNS[change.change]}{name}{colon} "
        else:
            named = (len(changes) > 1 or change.bare) and not change.moved_from
            which = f"{name}: " if named else ""
        if phrases or change.change == "removed":
            yield f"git {which}{'; '.join(phrases)}".rstrip()


def _base(path: str) -> str:
    return path.rpartition("/")[2] or "/"


def _repository(change: RepositoryChange, branches: Sequence[BranchMove]) -> Iterator[str]:
    at = describe_head(change)
    if change.change == "removed":
        return
    if change.moved_from:
        yield f"{change.moved_from} → {change.path}"
    if change.commit_count or change.lost_count:
        words = _commits(change)
        yield f"{words}, {change.untracked:,} untracked" if change.untracked else words
    elif change.change == "created":
        yield at
    elif change.branch_before != change.branch_after:
        yield f"{describe_former_head(change).removeprefix('on ')} → {at.removeprefix('on ')}"
    elif change.head_before != change.head_after:
        yield f"{at.removeprefix('on ')} moved to {(change.head_after or 'nothing')[:7]}"
    if change.change == "changed":
        yield from _refs(change, branches)
    if change.stashed:
        yield f"{plural(change.stashed, 'stash entry')} made"
    if change.unstashed:
        yield f"{plural(change.unstashed, 'stash entry')} gone"
    if change.in_progress:
        yield f"{change.in_progress} unfinished"
    elif change.in_progress_before and not change.commit_count:
        yield f"{change.in_progress_before} no longer in progress"


def _refs(change: RepositoryChange, branches: Sequence[BranchMove]) -> Iterator[str]:
    """Branches that are not checked out, tags, and what was fetched."""
    others = [move for move in branches if move.branch != change.branch_after]
    for move in others:
        if move.after is None and move.lost:
            yield f"branch {move.branch} deleted, lost {quoted(move.lost_subjects, move.lost)}"
    if moved := [_branch(move) for move in others if move.after or not move.lost]:
        yield f"branch {some(moved, _NAMED)}"
    if tags := [f"{_ref_sign(ref)}{ref.name}" for ref in change.refs if ref.kind == "tag"]:
        yield f"tag {some(tags, _NAMED)}"
    fetched = [ref for ref in change.refs if ref.kind == "remote branch"]
    if names := [ref.name for ref in fetched if ref.after]:
        yield f"fetched {some(names, _NAMED)}"
    if gone := [f"-{ref.name}" for ref in fetched if not ref.after]:
        yield f"remote branch {some(gone, _NAMED)}"


def _branch(move: BranchMove) -> str:
    """`+topic (2 commits)`, `side +2 -1 commits`, `-old`."""
    if move.after is None:
        return f"-{move.branch}"
    if move.before is None:
        return f"+{move.branch}" + (f" ({plural(move.gained, 'commit')})" if move.gained else "")
    signed = [f"{sign}{number:,}" for sign, number in (("+", move.gained), ("-", move.lost)) if number]
    return f"{move.branch} {_counted_signs(signed, 'commit')}" if signed else f"~{move.branch}"


def _counted_signs(signed: Sequence[str], noun: str) -> str:
    """`+2 -1 rows`, `+1 row`."""
    return f"{' '.join(signed)} {noun if signed in (['+1'], ['-1']) else f'{noun}s'}"


def _ref_sign(ref: RefMove) -> str:
    return "+" if ref.before is None else "-" if ref.after is None else "~"


def describe_head(change: RepositoryChange) -> str:
    """`on main`, `detached at 1b62a0c`."""
    return _head(change.branch_after, change.head_after)


def describe_former_head(change: RepositoryChange) -> str:
    """The same of the point before."""
    return _head(change.branch_before, change.head_before)


def _head(branch: str | None, commit: str | None) -> str:
    if branch and (commit or "").startswith(branch):
        return f"detached at {branch[:7]}"
    return f"on {branch or 'no branch'}"


def _commits(change: RepositoryChange) -> str:
    """`2 commits on main "newest of them"`, `main lost "a" and "b"`."""
    at = describe_head(change)
    lost = quoted([commit.subject for commit in change.lost], change.lost_count) if change.lost_count else ""
    lost += f" (still on {change.lost_kept_on})" if change.lost_kept_on else ""
    if not change.commit_count:
        return f"{at.removeprefix('on ')} lost {plural(change.lost_count, 'commit')}: {lost}"
    newest, others = change.commits[0], change.commit_count - 1
    what = "merge" if newest.merge else plural(change.commit_count, "commit")
    words = f'{what} {at} "{_printable(newest.subject, 50)}"'
    if newest.merge and others:
        words += f" and {plural(others, 'more commit')}"
    return f"{words}, lost {lost}" if lost else words


def quoted(subjects: Sequence[str], number: int) -> str:
    """`"fix it", "try it" and 3 more`."""
    names = [f'"{_printable(subject, 40)}"' for subject in subjects[:_NAMED_COMMITS]]
    more = f" and {number - len(names):,} more" if number > len(names) else ""
    return ", ".join(names) + more


def _database(change: DatabaseChange) -> Iterator[str]:
    name = _base(change.path)
    if change.change == "created":
        yield f"sqlite +{name} ({_new_tables(change.tables)})"
    elif change.change == "removed":
        yield f"sqlite -{name}"
    else:
        renamed = f"{_base(change.renamed_from)} → " if change.renamed_from else ""
        yield f"sqlite {renamed}{name}{_database_words(change)}"


def _database_words(change: DatabaseChange) -> str:
    if change.damage:
        return f" {'still ' * (change.damage_before is not None)}damaged: {change.damage}"
    if change.damage_before:
        return " whole again"
    shown = sorted(change.tables, key=_weight, reverse=True)
    words, more, noun = [_table(table) for table in shown], len(shown), "more table"
    if not words:
        listed = {table.name for table in change.tables}
        words = [entry for entry in change.schema if entry.partition(" ")[2] not in listed]
        more, noun = len(words), "more"
    rest = [plural(more - _NAMED_TABLES, noun) if noun != "more" else f"{more - _NAMED_TABLES:,} more"]
    return f": {'; '.join([*words[:_NAMED_TABLES], *rest * (more > _NAMED_TABLES)])}"


def describe_server(change: ServerChange) -> str:
    """`postgresql data: +shop, billing written to`, `redis dump.rdb: db0 +2 -1 keys`."""
    name = change.path.rpartition("/")[2]
    ordered = sorted(change.databases, key=_is_written)
    spaces = [_keyspace(space, change.unit) for space in ordered]
    words = ", ".join(spaces[:_NAMED]) + (
        f" and {len(spaces) - _NAMED:,} more" if len(spaces) > _NAMED else ""
    )
    if change.change == "removed":
        return f"{change.server} -{name}"
    if change.change == "created":
        return f"{change.server} +{name}" + (f" ({words})" if words else "")
    return f"{change.server} {name}: {words or 'written to'}"


def _keyspace(space: Keyspace, unit: str) -> str:
    if space.added is not None or space.removed is not None:
        counts = (("+", space.added), ("-", space.removed))
        signed = [f"{sign}{number:,}" for sign, number in counts if number]
        words = [_counted_signs(signed, unit)] if signed else []
        words += [f"{space.rewritten:,} rewritten"] if space.rewritten else []
        return f"{space.name} {', '.join(words)}"
    if space.renamed_from:
        return f"{space.renamed_from} → {space.name}"
    if space.change == "changed" and space.before != space.after:
        return f"~{space.name} {space.before} → {space.after} {unit}s"
    if space.change == "changed":
        return f"{space.name} written to"
    held = f" {plural(space.after, unit)}" if space.after and space.change == "created" else ""
    return f"{_SIGNS[space.change]}{space.name}{held}"


def _new_tables(tables: Sequence[TableChange]) -> str:
    """`orders 3 rows, carts`, or how many there are."""
    if not 0 < len(tables) <= _NAMED_TABLES:
        return plural(len(tables), "table")
    counted = [
        f"{table.name} {plural(table.rows_after, 'row')}" if table.rows_after else table.name
        for table in tables
    ]
    return ", ".join(counted)


def _weight(table: TableChange) -> tuple[bool, int]:
    rows = (table.inserted or 0) + (table.deleted or 0) + (table.updated or 0)
    return table.change != "changed", rows or abs((table.rows_after or 0) - (table.rows_before or 0))


def _table(table: TableChange) -> str:
    if table.change == "created":
        rows = f" ({plural(table.rows_after, 'row')})" if table.rows_after else ""
        return f"+{table.name}{rows}"
    if table.change == "removed":
        return f"-{table.name}"
    name = f"{table.renamed_from} → {table.name}" if table.renamed_from else table.name
    if table.inserted is None:
        difference = (table.rows_after or 0) - (table.rows_before or 0)
        if difference:
            return f"{name} {difference:+,} {'row' if abs(difference) == 1 else 'rows'}"
        if table.altered:
            return f"{name} altered"
        return f"{name} changed" if table.rows_after is None else f"{name} not compared"
    signed = [f"{sign}{number:,}" for sign, number in (("+", table.inserted), ("-", table.deleted)) if number]
    words = ["altered"] if table.altered else []
    if signed:
        words.append(_counted_signs(signed, "row"))
    if table.updated:
        words.append(f"{table.updated:,} updated")
    return f"{name} {', '.join(words)}".rstrip()


_MEANING = {
    "folders": ("folders", "what the files in it mean is not told"),
    "git": ("git repositories", "its commits and branches are not told"),
    "sqlite": ("SQLite databases", "its tables and rows are not told"),
    "servers": ("database servers", "which of its databases changed is not told"),
    "accounts": ("users", "changes of users are not told"),
    "groups": ("groups", "changes of groups are not told"),
    "passwords": ("passwords", "whether one is another is not told"),
    "keys": ("keys that may log in", "which keys may log in is not told"),
    "cron": ("cron", "what cron runs is not told"),
    "units": ("units of systemd", "changes of units are not told"),
    "capabilities": ("capabilities of programs", "its capabilities are not told"),
    "lock": ("lock files", "its changes are not told"),
}
"""By analyzer, what it looks at, and what it means that one path could not be looked at."""


def describe_gap(gap: Gap) -> str:
    """What could not be told, where that is, and why: `/app/a.db: its tables and rows are not told (…)`."""
    packages = (f"packages of {gap.analyzer}", "changes of packages are not told")
    subject, meaning = _MEANING.get(gap.analyzer, packages)
    if gap.path:
        return f"{gap.path}: {gap.meaning or meaning} ({gap.reason})"
    return f"{subject}: {gap.meaning or 'there may be changes that are not told'} ({gap.reason})"


_SUBJECTS = {
    "group": "groups",
    "password": "passwords",
    "keys": "files of keys",
    "unit": "units",
    "capability": "programs with capabilities",
}


def _system(changes: list[SystemChange]) -> Iterator[str]:
    """`group +docker (+ann)`, `password of ann changed`, `unit backup.timer enabled`."""
    for subject, group in groupby(changes, lambda change: change.subject):
        members = list(group)
        if len(members) > _NAMED:
            yield f"{len(members):,} {_SUBJECTS[subject]} changed"
        elif subject == "capability":  # each with a path: together they would be cut
            yield from map(describe_system, members)
        else:
            yield ", ".join(describe_system(change) for change in members)


def describe_system(change: SystemChange) -> str:
    """One thing about the system, in a few words."""
    sign = "" if change.change == "changed" else _SIGNS[change.change]
    match change.subject:
        case "password":
            return f"password of {change.name} {' '.join(change.details)}"
        case "keys":
            signs = [detail[:1] for detail in change.details]
            counts = " ".join(f"{mark}{signs.count(mark)}" for mark in "+-" if mark in signs)
            return f"{counts} {'key' if len(signs) == 1 else 'keys'} in {change.name}"
        case "group":
            members = f" ({', '.join(change.details[:_NAMED])})" if change.details else ""
            return f"group {sign or '~'}{change.name}{members}"
        case "capability":
            return f"{sign or '~'}{' '.join(change.details)} on {change.name}"
    return f"unit {sign}{change.name}" + (f" {' '.join(change.details)}" if change.details else "")


def _counted(word: str, changes: list[AccountChange] | list[CronChange]) -> Iterator[str]:
    if not changes:
        return
    if len(changes) <= _NAMED:
        yield f"{word} " + ", ".join(_sign(change) for change in changes)
    else:
        yield f"{word} {_signs([change.change for change in changes])}"


def _sign(change: AccountChange | CronChange) -> str:
    name = change.name if isinstance(change, AccountChange) else change.path.rpartition("/")[2]
    return f"{_SIGNS[change.change]}{name}"
