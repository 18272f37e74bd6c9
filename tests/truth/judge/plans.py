"""The words of a plan: what goes, what comes back, what ends and what resumes.

As in words.py, they are compared with the data of the plan, and what runs at its target with the oracle.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger
from tests.truth.judge.words import (
    NOUNS,
    filled_folders,
    head_of,
    is_folded,
    is_told_by_its_files,
    noun_of,
    number,
    printed,
)
from tests.truth.oracle.look import Look

Data = Mapping[str, Any]
KIND = "plans"

_KNOWN = (
    *("here", "state", "way", "files", "packages", "git", "databases", "system", "ends", "resumes", "shell"),
    *("tasks", "safety"),
)
_ONLY_NOW = "made since, will go|not there then, will go|not on that line, will go"
_EDITED = (
    "will lose its edits since|will lose their edits since|will be as it was then|will be as they were then"
    "|differs on that line, will be replaced|differ on that line, will be replaced"
)
_ONLY_THEN = "deleted since, will be back|made by then, will come|only on that line, will come"
_METADATA = "will have the mode, owner or attributes of then"
_RENAMED = (
    "renamed since, will have its old name|renamed since, will have their old names"
    "|will have the name it had then|will have the names they had then|will have the name it has on that line"
    "|will have the names they have on that line"
)
_FILLED = {
    "caches: ": re.compile(
        r"^(?!.*/(?:site-packages|node_modules|\.venv)/).*/(?:__pycache__|\.cache|\.pytest_cache)/"
    ),
    "also changed: ": re.compile(r"/(?:node_modules|site-packages)/(?!.*__pycache__)"),
}
_BACK = "(?:will be back|will come)"


def _is_edited(change: Data) -> bool:
    return "content" in change["what"] or "type" in change["what"]


_GROUPS: tuple[tuple[str, Callable[[Data], bool]], ...] = (
    (_ONLY_NOW, lambda change: change["kind"] == "created"),
    (_EDITED, lambda change: change["kind"] == "modified" and _is_edited(change)),
    (_METADATA, lambda change: change["kind"] == "modified" and not _is_edited(change)),
    (_ONLY_THEN, lambda change: change["kind"] == "deleted"),
    (_RENAMED, lambda change: change["kind"] == "renamed"),
)


def judge_plan_words(
    ledger: Ledger, target: Look, plan: Data, words: Data, expected: Mapping[str, str]
) -> None:
    """`expected`: the session's state, how the target lies to the point it stands on, the next label."""
    ledger.known(KIND, words, _KNOWN)
    for field, real in expected.items():
        ledger.count(KIND)
        ledger.equal(KIND, field, words[field], real)
    _judge_here(ledger, plan, words["here"])
    judge = _PlanWords(target, plan)
    for field, rule in (
        ("files", judge.files),
        ("packages", judge.packages),
        ("git", judge.git),
        ("databases", judge.databases),
        ("system", judge.system),
        ("shell", judge.shell),
    ):
        for phrase in words[field]:
            ledger.count(KIND)
            if not rule(phrase):
                ledger.wrong(KIND, f"{field}: {phrase!r}")
    for wording in judge.missing_groups(words["files"]):
        ledger.missing(KIND, f"files: {wording}")
    for field in ("packages", "git", "databases", "system", "shell"):
        if len(words[field]) < judge.fewest(field):
            ledger.missing(KIND, f"{field}: {words[field]}")
    said = ("files", "packages", "git", "databases", "system")
    if plan["lost"]["files"]["changes"] and not any(words[field] for field in said):
        ledger.missing(KIND, "nothing is said, and files differ")
    ledger.count(KIND, len(words["ends"]) + len(words["resumes"]))
    live = plan["lost"]["live"]
    ending = [*live["started"], *(restart["after"] for restart in live["restarted"])]
    _judge_programs(ledger, "ends", words["ends"], [process["command"] for process in ending])
    commands = [process.command for process in target.processes.values()]
    _judge_programs(ledger, "resumes", words["resumes"], commands)


def _judge_here(ledger: Ledger, plan: Data, here: str) -> None:
    """`c5 + 3 files`."""
    head = plan["head"]
    label = head["label"] if head["session"] == plan["session"] else f"{head['session']}:{head['label']}"
    since = plan["uncheckpointed"]
    changes = since["files"]["changes"]
    changed = sum(map(_files, changes))
    ledger.count(KIND)
    told, _, more = here.partition(" + ")
    ledger.equal(KIND, "here", told, label)
    match = re.fullmatch(rf"([\d,]+) ({NOUNS})", more)
    if match or changed:
        ledger.equal(KIND, "here", (number(match[1]), match[2]) if match else 0, (changed, noun_of(changes)))


def _judge_programs(ledger: Ledger, field: str, names: Sequence[str], commands: Sequence[str]) -> None:
    times = 0
    for name in names:
        match = re.fullmatch(r"(.*?)(?: ×(\d+))?((?: :\d+)*)", name)
        assert match
        times += int(match[2] or 1)
        if not any(match[1] in command for command in commands):
            ledger.wrong(KIND, f"{field}: {name}, of {commands}")
    ledger.equal(KIND, field, times, len(commands))


class _PlanWords:
    """The phrases of one plan."""

    def __init__(self, target: Look, plan: Data) -> None:
        self._cwd = target.shell.cwd
        lost = plan["lost"]
        self._changes = lost["files"]["changes"]
        self._live = lost["live"]
        self._findings: dict[str, list[Data]] = {}
        for finding in lost["analysis"]["findings"]:
            self._findings.setdefault(finding["kind"], []).append(finding)

    def missing_groups(self, phrases: Sequence[str]) -> list[str]:
        """The wordings that have to be there and are not."""
        filled = filled_folders(self._findings)
        own = [change for change in self._changes if not is_folded(change, filled)]
        parents = {posixpath.dirname(change["path"]) for change in own}
        own = [change for change in own if not is_told_by_its_files(change, parents)]
        missing = [
            begin
            for begin, folders in _FILLED.items()
            if any(folders.search(change["path"]) for change in self._changes if change["entry"] != "folder")
            and not any(phrase.startswith(begin) for phrase in phrases)
        ]
        return missing + [
            wordings
            for wordings, belongs in _GROUPS
            if any(belongs(change) for change in own)
            and not any(wording in phrase for wording in wordings.split("|") for phrase in phrases)
        ]

    def fewest(self, field: str) -> int:
        """How many phrases there are at least."""
        if field == "git":
            return sum(map(_phrases_of_git, self._findings.get("repository", ())))
        if field == "system":
            return len(self._system_changes())
        if field == "databases":
            return len(self._findings.get("database", ())) + len(self._findings.get("server", ()))
        if field == "packages":
            moves = {"upgraded": "other", "downgraded": "other"}
            packages = self._findings.get("package", ())
            return len({(one["ecosystem"], moves.get(one["change"], one["change"])) for one in packages})
        live = self._live
        kinds = {change["kind"] for change in live["settings"]}
        functions = live["functions_added"] or live["functions_removed"] or "function" in kinds
        parts = (live["cwd"], live["variables"], functions, *(kinds - {"function"}))
        return sum(bool(part) for part in parts)

    def _name(self, path: str) -> str:
        return printed(path.removeprefix(f"{self._cwd}/") if self._cwd != "/" else path)

    def files(self, phrase: str) -> bool:
        """`3 made since, will go: a, b and 1 more`."""
        if phrase.startswith(("also changed: ", "caches: ")):
            return self._folded(phrase.partition(": ")[2])
        match = re.fullmatch(r"(?:at least )?([\d,]+) (.*?): (.*)", phrase)
        if match is None:
            return False
        for wordings, belongs in _GROUPS:
            if match[2] in wordings.split("|"):
                members = [change for change in self._changes if belongs(change)]
                return number(match[1]) <= sum(change["files"] or 1 for change in members) and (
                    self._names(match[3], members, number(match[1]))
                )
        return False

    def _names(self, words: str, members: Sequence[Data], told: int) -> bool:
        more = re.search(r" and ([\d,]+) more$", words)
        named = words[: more.start()] if more else words
        found = [change for change in members if any(form in named for form in self._forms(change))]
        return (
            bool(found)
            and told >= (number(more[1]) if more else 0)
            and not _rest(named, [form for change in found for form in self._forms(change)])
        )

    def _forms(self, change: Data) -> list[str]:
        name = self._name(change["path"]) + ("/" if change["entry"] == "folder" else "")
        if change["kind"] == "renamed" and change["old_path"]:
            return [f"{name} → {self._name(change['old_path'])}"]
        return [name]

    def _folded(self, words: str) -> bool:
        """`3 in .git, 5 in app/node_modules`, `7 files in .cache and 1 more`."""
        told = 0
        for part in re.sub(r" and [\d,]+ more$", "", words).split(", "):
            match = re.fullmatch(rf"(?:([\d,]+) )?(?:{NOUNS} )?in (.*)", part)
            if match is None:
                return False
            below = [
                change
                for change in self._changes
                if f"{self._name(change['path'])}/".startswith(f"{match[2]}/")
            ]
            told += 1
            if not below:
                return False
            exact = sum(_files(change) for change in below)
            if "files in" not in part and number(match[1] or "0") != exact:
                return False
        return bool(told)

    def packages(self, phrase: str) -> bool:
        match = re.fullmatch(rf"(\w+) (.*?)(?: and ([\d,]+) more)?(?: (will be lost|{_BACK}))?", phrase)
        if match is None:
            return False
        moves = {"will be lost": ("added",), None: ("upgraded", "downgraded")}.get(match[4], ("removed",))
        members = [
            change
            for change in self._findings.get("package", ())
            if change["ecosystem"] == match[1] and change["change"] in moves
        ]
        forms = {
            f"{change['name']} {change['after']} → {change['before']}"
            if match[4] is None
            else f"{change['name']} {change['after'] or change['before']}"
            for change in members
        }
        named = match[2].split(", ")
        return set(named) <= forms and len(named) + number(match[3] or "0") == len(members)

    def git(self, phrase: str) -> bool:
        changes = self._findings.get("repository", ())
        return any(_git_phrase(phrase, change) or _kept_elsewhere(phrase, change) for change in changes)

    def databases(self, phrase: str) -> bool:
        if any(_server_phrase(phrase, change) for change in self._findings.get("server", ())):
            return True
        return any(_database_phrase(phrase, change) for change in self._findings.get("database", ()))

    def system(self, phrase: str) -> bool:
        return any(phrase in _system_phrases(change) for change in self._system_changes())

    def _system_changes(self) -> list[Data]:
        return [change for kind in ("account", "cron", "system") for change in self._findings.get(kind, ())]

    def shell(self, phrase: str) -> bool:
        cwd = self._live["cwd"]
        if cwd and phrase == f"cwd {cwd[1]} → {cwd[0]}":
            return True
        settings = [(change["kind"], change["name"]) for change in self._live["settings"]]
        functions = [*self._live["functions_added"], *self._live["functions_removed"]]
        functions += [name for kind, name in settings if kind == "function"]
        names = {
            "variable": [variable["name"] for variable in self._live["variables"]],
            "function": [f"{name}()" for name in functions],
            **{
                word: [name for kind, name in settings if kind == word]
                for word in ("alias", "option", "trap")
            },
        }
        for change in self._live["settings"]:
            if phrase == f"umask {change['after']} → {change['before']}":
                return bool(change["kind"] == "umask")
        match = re.fullmatch(
            r"(variable|function|alias|option|trap)(s|es)? (.*?)(?: and (\d+) more)?", phrase
        )
        if match is None:
            return False
        real, told = names[match[1]], match[3].split(", ")
        is_all = len(told) + int(match[4] or 0) == len(real)
        return is_all and set(told) <= set(real) and bool(match[2]) == (len(real) > 1)


def _system_phrases(change: Data) -> set[str]:
    """What a plan may say of a user, a group, a password, keys, cron, a unit or a capability."""
    fates = {
        "created": ("will be lost",),
        "removed": ("will be back", "will come"),
        "changed": ("will be as it was then",),
    }
    name, subject = posixpath.basename(change.get("name") or change["path"]), change.get("subject")
    what = {"account": "user", "cron": "cron"}.get(change["kind"], subject)
    if subject == "password":
        what = "password of"
    if subject == "capability":
        return {f"capabilities of {change['name']} will be as they were then"}
    if change.get("details") in (["enabled"], ["disabled"]):
        return {f"unit {name} will be {'disabled' if change['details'] == ['enabled'] else 'enabled'}"}
    if subject == "keys":
        phrases = set()
        for mark, kind in (("+", "created"), ("-", "removed")):
            number = sum(detail.startswith(mark) for detail in change["details"])
            words = f"{number} key{'s' * (number != 1)} in {change['name']}"
            phrases |= {f"{words} {fate}" for fate in fates[kind] if number}
        return phrases
    return {f"{what} {name} {fate}" for fate in fates[change["change"]]}


def _rest(text: str, forms: Sequence[str]) -> str:
    """What is said beside some forms."""
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "", 1)
    return text.replace(",", "").strip()


def _files(change: Data) -> int:
    several = change["entry"] == "folder" and change["kind"] in ("created", "deleted")
    return int(change["files"]) if several else 1


def _git_phrase(phrase: str, change: Data) -> bool:
    where = change["path"].rpartition("/")[2] or "/"
    noun = "worktree" if change["worktree_of"] else "repository"
    if match := re.fullmatch(rf"{noun} (.*?) will be lost(?: with its ([\d,]+) commits?)?", phrase):
        told = number(match[2] or "0")
        return bool(match[1] == where and change["change"] == "created" and told == change["commit_count"])
    if match := re.fullmatch(rf"{noun} (.*?) {_BACK}", phrase):
        return bool(match[1] == where and change["change"] == "removed")
    if match := re.fullmatch(rf"([\d,]+) commits? (.*?)(?: of (\S+))? (will be lost|{_BACK}): (.*)", phrase):
        is_lost = match[4] == "will be lost"
        field, count = ("commits", "commit_count") if is_lost else ("lost", "lost_count")
        subjects = [printed(commit["subject"])[:39] for commit in change[field]]
        return (
            number(match[1]) == change[count]
            and match[3] in (None, where)
            and any(f'"{subject}' in match[5] for subject in subjects)
            and re.fullmatch(r'".*"(?: and [\d,]+ more)?', match[5]) is not None
        )
    if match := re.fullmatch(r"(.*?) will be (on .*?|detached at \w+), not (.*)", phrase):
        then, now = head_of(change, "before"), head_of(change)
        now = now.removeprefix("on ") if then.startswith("on ") else now
        return (match[1], match[2], match[3]) == (where, then, now)
    if match := re.fullmatch(rf"unfinished ([\w-]+)(?: of (\S+))? (will be lost|{_BACK})", phrase):
        side = "in_progress" if match[3] == "will be lost" else "in_progress_before"
        is_other = change["in_progress"] != change["in_progress_before"]
        return match[2] in (None, where) and is_other and match[1] == change[side]
    if match := re.fullmatch(
        r"branch (.*?)(?: of (\S+))? will"
        r"(?: lose ([\d,]+) commits?)?( and)?(?: gain ([\d,]+) commits?)?( be as it was then)?",
        phrase,
    ):
        counts = number(match[3] or "0"), number(match[5] or "0")
        if (any(counts) or match[6]) and bool(match[4]) == all(counts) and bool(match[6]) != any(counts):
            return any(
                move["branch"] == match[1]
                and move["before"]
                and move["after"]
                and counts == (move["gained"], move["lost"])
                for move in change["branches"]
            )
    pattern = rf"branch (.*?)(?: of (\S+))? (will be lost|{_BACK})(?: with ([\d,]+) commits?)?"
    if match := re.fullmatch(pattern, phrase):
        for move in change["branches"]:
            if move["branch"] == match[1] and match[2] in (None, where):
                commits = number(match[4] or "0")
                if match[3] == "will be lost":
                    return bool(move["before"] is None and commits == move["gained"])
                return bool(move["after"] is None and commits == move["lost"])
    return False


def _phrases_of_git(change: Data) -> int:
    """How many phrases a repository needs."""
    if change["change"] != "changed":
        return 1
    branches = [
        move
        for move in change["branches"]
        if move["branch"] != change["branch_after"] or (move["before"] is None and not change["commit_count"])
    ]
    tags = [ref for ref in change["refs"] if ref["kind"] == "tag"]
    return len(branches) + sum(
        map(
            bool,
            (
                change["commit_count"],
                change["lost_count"],
                change["branch_before"] != change["branch_after"],
                any(ref["before"] is None for ref in tags),
                any(ref["after"] is None for ref in tags),
                any(ref["before"] and ref["after"] for ref in tags),
                change["in_progress"] and change["in_progress"] != change["in_progress_before"],
                change["in_progress_before"] and change["in_progress"] != change["in_progress_before"],
                change["stashed"],
                change["unstashed"],
            ),
        )
    )


def _kept_elsewhere(phrase: str, change: Data) -> bool:
    """Tags and the stash."""
    if match := re.fullmatch(
        r"tags? (.*?)(?: and (\d+) more)?(?: of (\S+))? will be as (?:it was|they were) then", phrase
    ):
        moved = {
            ref["name"] for ref in change["refs"] if ref["kind"] == "tag" and ref["before"] and ref["after"]
        }
        names = match[1].split(", ")
        return set(names) <= moved and len(names) + int(match[2] or 0) == len(moved)
    if match := re.fullmatch(
        rf"tags? (.*?)(?: and (\d+) more)?(?: of (\S+))? (will be lost|{_BACK})", phrase
    ):
        side = "before" if match[4] == "will be lost" else "after"
        tags = {ref["name"] for ref in change["refs"] if ref["kind"] == "tag" and ref[side] is None}
        names = match[1].split(", ")
        return set(names) <= tags and len(names) + int(match[2] or 0) == len(tags)
    match = re.fullmatch(rf"(\d+) stash entr(?:y|ies)(?: of (\S+))? (will be lost|{_BACK})", phrase)
    field = "stashed" if match and match[3] == "will be lost" else "unstashed"
    return bool(match and int(match[1]) == change[field])


def _database_phrase(phrase: str, change: Data) -> bool:
    name = printed(change["path"].rpartition("/")[2])
    rows = sum(table["rows_after"] or 0 for table in change["tables"])
    if match := re.fullmatch(rf"{re.escape(name)} will be lost(?: with ([\d,]+) rows?)?", phrase):
        return change["change"] == "created" and number(match[1] or "0") == rows
    if re.fullmatch(rf"{re.escape(name)} {_BACK}", phrase):
        return bool(change["change"] == "removed")
    if phrase in (f"{name} will be whole again", f"{name} will be whole"):
        return bool(change["damage"] and not change["damage_before"])
    if phrase == f"{name} will be damaged, as it was then":
        return bool(change["damage_before"])
    which, _, rest = phrase.partition(": ")
    if which != name or change["change"] != "changed":
        return False
    if rest == "its schema will be as it was then":
        return bool(change["schema"]) and not change["tables"]
    return all(any(_table_phrase(word, table) for table in change["tables"]) for word in rest.split(", "))


def _server_phrase(phrase: str, change: Data) -> bool:
    name = f"{change['server']} {change['path'].rpartition('/')[2]}"
    fates = {"created": "will be lost", "removed": _BACK, "changed": "will be as it was then"}
    if change["change"] != "changed":
        return re.fullmatch(rf"{re.escape(name)} {fates[change['change']]}", phrase) is not None
    told = phrase.removeprefix(f"{name}: ").split(", ")
    spaces = [rf"{re.escape(space['name'])} {fates[space['change']]}" for space in change["databases"]]
    forms = spaces or [fates["changed"]]
    return len(told) == len(forms) and all(map(re.fullmatch, forms, told))


def _table_phrase(word: str, table: Data) -> bool:
    name = printed(table["name"])
    if match := re.fullmatch(rf"table (.*?) (will be lost|{_BACK})(?: with ([\d,]+) rows?)?", word):
        fate, rows = ("created", "rows_after") if match[2] == "will be lost" else ("removed", "rows_before")
        return match[1] == name and table["change"] == fate and number(match[3] or "0") == (table[rows] or 0)
    if match := re.fullmatch(rf"([\d,]+) rows? of (.*?) (will be lost|will have other values|{_BACK})", word):
        field = {"will be lost": "inserted", "will have other values": "updated"}.get(match[3], "deleted")
        return match[2] == name and number(match[1]) == table[field]
    if word == f"{name} will be {printed(table['renamed_from'] or '')}":
        return bool(table["renamed_from"])
    if word == f"{name} will have its definition of then":
        return bool(table["altered"])
    return table["inserted"] is None and word.startswith(f"{name} will be as it was then")
