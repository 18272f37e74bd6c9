"""The sentences: the line of a log, the lines of a section, the words of a plan.

They are compared with the data of the same answer, which has been judged against the oracle. A phrase that no
rule can read is wrong: it may say anything.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.truth.judge.ledger import Ledger

Data = Mapping[str, Any]

_SIGNS = {"created": "+", "modified": "~", "deleted": "-", "renamed": "→"}
_MOVES = {"added": "+", "removed": "-", "upgraded": "~", "downgraded": "~"}
_AS_DEPENDENCY = {
    "added": "as a dependency",
    "removed": "was a dependency",
    "upgraded": "a dependency",
    "downgraded": "a dependency",
}
_FATES = {"created": "+", "removed": "-", "changed": "~"}
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_NOISY = re.compile(
    r"/(?:\.git|__pycache__|node_modules|site-packages|\.venv/(?:bin|include|lib|lib64)|\.cache|\.npm|\.pytest_cache)/"
)
_FILLED = ("/usr/share/doc", "/usr/share/man", "/var/cache", "/var/lib/dpkg/info", "/var/lib/dpkg/triggers")
"""Folders with one line for all that changed in them."""
_ACCOUNTS = ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")
_PARTS = re.compile(r", (?=group |password |unit |[+-]\d+ |[+~-]cap_)")
_CONDA = ("bin", "conda-meta", "etc", "include", "lib", "libexec", "man", "share", "ssl")
"""What conda fills in an environment."""
_ENVIRONMENT = "/pyvenv.cfg"
_ENTRIES = {
    "file": "file",
    "folder": "folder",
    "link": "symlink",
    "hard link": "hard link",
    "fifo": "fifo",
    "socket": "socket",
    "device": "device",
}
"""The word for each kind of entry, in the order in which a line names them."""
NOUNS = rf"(?:(?:{'|'.join(_ENTRIES.values())})s?(?:, | and |(?= \(| in |$)))+"
"""`file`, `files, folders and symlinks`."""
_BY_THE_WAY = (".lock", ".log", ".out", ".pid", ".sock", ".swp", ".tmp")
"""Files that a line of a log may leave out."""
_ASIDE = ("", "-wal", "-shm", "-journal")


def number(word: str) -> int:
    """`1,842`."""
    return int(word.replace(",", ""))


def is_folded(change: Data, filled: Iterable[str] = ()) -> bool:
    """Whether it is in a folder that a program fills, or is one. `filled`: more such folders."""
    path = f"{change['path']}{'/' * (change['entry'] == 'folder')}"
    if any(path.startswith(f"{folder}/") for folder in (*_FILLED, *filled)):
        return True
    if change["path"].endswith(_ENVIRONMENT):  # it stands for a whole environment
        return False
    return _NOISY.search(path) is not None


def is_told_by_its_files(change: Data, parents: Iterable[str]) -> bool:
    """Whether it is a folder that only came or went with what is in it."""
    return bool(
        change["entry"] == "folder"
        and not change["files"]
        and change["kind"] in ("created", "deleted")
        and change["path"] in parents
    )


def filled_folders(findings: Mapping[str, Sequence[Data]]) -> tuple[str, ...]:
    """Folders of which a finding says who fills them: repositories without a work tree, the data of servers,
    environments of conda."""
    found = [change["path"] for change in findings.get("repository", ()) if change["bare"]]
    found += [change["path"] for change in findings.get("server", ())]
    for package in findings.get("package", ()):
        if package["ecosystem"] == "conda":
            top = package["environment"]
            found += [f"{top}/{name}" for name in _CONDA] + [f"{top.partition('/envs/')[0]}/pkgs"]
    return tuple(found)


def is_size(word: str, size: int | None) -> bool:
    """Whether `4.3 KB` is a size, as precisely as it says."""
    if size is None:
        return False
    amount, _, unit = word.partition(" ")
    told, step = float(amount) * _UNITS[unit], (0.051 if "." in amount else 0.51) * _UNITS[unit]
    return abs(told - size) <= step


def printed(text: str) -> str:
    """A text from a session as it stands on one line of a terminal."""
    return clean(text).strip()


def clean(text: str) -> str:
    """A text without letters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class Words:
    """What an answer says in words, and the data that it says it of."""

    def __init__(self, ledger: Ledger, difference: Data) -> None:
        self._ledger = ledger
        self._changes = difference["files"]["changes"]
        self._live = difference["live"]
        self._contacts = difference["contacts"]
        self._findings: dict[str, list[Data]] = {}
        for finding in difference["analysis"]["findings"]:
            self._findings.setdefault(finding["kind"], []).append(finding)

        self._filled = filled_folders(self._findings)

    def _of(self, kind: str) -> list[Data]:
        return self._findings.get(kind, [])

    # ---- the line of a log -------------------------------------------------------------------

    def judge_summary(self, summary: str, commands: Sequence[Data] = (), work: Sequence[str] = ()) -> None:
        """The one line of a log. `work`: what it has to say of tasks and of effects outside."""
        told = Counter[str]()
        for phrase in clean(summary).split(" · "):
            self._ledger.count("log")
            kind = "work" if phrase in work else self._phrase(phrase, commands)
            if not kind:
                self._ledger.wrong("log", f"{phrase!r}, in {summary!r}")
            told[kind] += 1
        if told["work"] < len(work):
            self._ledger.missing("log", f"{work}: {summary!r}")
        self._judge_kept(summary, told)

    def _judge_kept(self, summary: str, told: Counter[str]) -> None:
        """What has to have a word in the line."""
        live = self._live
        for kind, changed in (
            ("sqlite", self._of("database")),
            ("package", self._of("package")),
            ("processes", live["started"] or live["ended"] or live["restarted"]),
            ("cwd", live["cwd"]),
            ("variables", any(self._shell_names().values())),
        ):
            if changed and not told[kind]:
                self._ledger.missing("log", f"{kind}: {summary!r}")
        repositories = [
            change
            for change in self._of("repository")
            if change["commit_count"]
            or change["lost_count"]
            or change["change"] != "changed"
            or _others(change)
        ]
        repositories = [change for change in repositories if not self._is_told_with_a_worktree(change)]
        if len(repositories) > told["git"]:
            self._ledger.missing("log", f"git: {summary!r}")

    def _is_told_with_a_worktree(self, change: Data) -> bool:
        """Whether all that happened is that a branch of one of its worktrees has moved."""
        told = {one["branch_after"] for one in self._of("repository") if one["worktree_of"] == change["path"]}
        others = {move["branch"] for move in _others(change)}
        return not (change["commit_count"] or change["lost_count"] or others - told) and (
            change["change"] == "changed"
        )

    def _phrase(self, phrase: str, commands: Sequence[Data]) -> str:
        """What a phrase is about, if it is true; else empty."""
        if told := re.fullmatch(r"no change found(?:, but (memory of .* may have changed))?", phrase):
            is_empty = not self._changes and not any(self._shell_names().values())
            return "nothing" if is_empty and (self._live["kept"] or not told[1]) else ""
        for kind, rule in (
            ("git", self._git),
            ("sqlite", self._sqlite),
            ("server", self._server),
            ("package", self._package),
            ("system", self._system),
            ("processes", self._processes),
            ("moved", self._port_moves),
            ("cwd", self._cwd),
            ("variables", self._variables),
            ("files", self._files),
        ):
            if rule(phrase):
                return kind
        return "command" if any(_is_outcome(phrase, outcome) for outcome in commands) else ""

    def _git(self, phrase: str) -> bool:
        """`git 1 commit on main "fix it"; tag +v1`, `git +app: 2 commits on main "more"`."""
        if not phrase.startswith("git "):
            return False
        return any(self._is_about(phrase[4:], change) for change in self._of("repository"))

    def _is_about(self, words: str, change: Data) -> bool:
        name = printed(change["path"].rpartition("/")[2] or "/")
        if change["change"] != "changed":
            worktree = "worktree " * bool(change["worktree_of"])
            begin = f"{worktree}{_FATES[change['change']]}{name}"
            if change["change"] == "removed":
                return words == begin
            # What was made in it follows a colon, where it stands alone only where that is.
            colon = ":" if change["commit_count"] or change["lost_count"] else ""
            parts = _git_parts(words.removeprefix(f"{begin}{colon} "))
            if not words.startswith(f"{begin}{colon} ") or (not colon and parts.pop(0) != head_of(change)):
                return False
        elif words.startswith(f"{name}: "):
            parts = _git_parts(words.removeprefix(f"{name}: "))
        elif (len(self._of("repository")) == 1 and not change["bare"]) or (
            change["moved_from"] and words.startswith(f"{change['moved_from']} → ")
        ):
            parts = _git_parts(words)
        else:
            return False
        return len(parts) >= _fewest_of_git(change) and all(
            any(rule(part, change) for rule in _GIT_RULES) for part in parts
        )

    def _sqlite(self, phrase: str) -> bool:
        if not phrase.startswith("sqlite "):
            return False
        return any(_is_database(phrase[7:], change) for change in self._of("database"))

    def _server(self, phrase: str) -> bool:
        """`redis +dump.rdb (+db0 2 keys)`, `mariadb mysql: +next 1 table, shop written to`."""
        for change in self._of("server"):
            name, words = printed(posixpath.basename(change["path"])), _server_words(change)
            forms = {
                "created": f"{change['server']} +{name}" + f" ({words})" * bool(words),
                "removed": f"{change['server']} -{name}",
                "changed": f"{change['server']} {name}: {words or 'written to'}",
            }
            if phrase == forms[change["change"]]:
                return True
        return False

    def _package(self, phrase: str) -> bool:
        match = re.fullmatch(
            r"(apt|apk|pip|npm|cargo|conda|pnpm|yarn)( locked|, lock file only:)? (.*?)"
            r"(?: \(and ([\d,]+) (?:with it|with them|more)\))?(?: in (/\S*))?(?: \(lock file only\))?",
            phrase,
        )
        if match is None:
            return False
        members = [change for change in self._of("package") if change["ecosystem"] == match[1]]
        if match[5]:
            members = [change for change in members if change["environment"] == match[5]]
        if re.fullmatch(r"[+~-][\d,]+(?: [+~-][\d,]+)*", match[3]):
            counted = Counter(_MOVES[change["change"]] for change in members)
            return all(counted[word[0]] == number(word[1:]) for word in match[3].split())
        named = [re.match(r"([+~-])(\S+)(?: (\S+)(?: → (\S+))?)?$", word) for word in match[3].split(", ")]
        more = number(match[4]) if match[4] else 0
        return all(word and any(_is_package(word, change) for change in members) for word in named) and (
            len(named) + more == len(members)
        )

    def _system_change(self, words: str) -> bool:
        """`group +docker (+ann)`, `password of ann changed`, `+1 key in /root/.ssh/authorized_keys`."""
        for change in self._of("system"):
            sign, name = _FATES[change["change"]], change["name"]
            details = change["details"]
            match change["subject"]:
                case "group":
                    members = f" ({', '.join(details[:3])})" if details else ""
                    forms = {f"group {sign}{name}{members}"}
                case "password":
                    forms = {f"password of {name} {' '.join(details)}"}
                case "keys":
                    signs = Counter(detail[0] for detail in details)
                    counts = " ".join(f"{mark}{signs[mark]}" for mark in "+-" if signs[mark])
                    forms = {f"{counts} {noun} in {name}" for noun in ("key", "keys")}
                case "capability":
                    forms = {f"{sign}{' '.join(details)} on {name}"}
                case _:
                    forms = {f"unit {sign.replace('~', '')}{name} {' '.join(details)}".rstrip()}
            if words in forms:
                return True
        counted = re.fullmatch(r"(\d+) (group|password|unit)s changed", words)
        subject = counted[2] if counted else ""
        alike = [change for change in self._of("system") if change["subject"] == subject]
        return counted is not None and len(alike) == number(counted[1])

    def _system(self, phrase: str) -> bool:
        if all(self._system_change(part) for part in _PARTS.split(phrase)):
            return True
        word, _, rest = phrase.partition(" ")
        kind = {"user": "account", "cron": "cron"}.get(word)
        if kind is None:
            return False
        names = {
            f"{_FATES[change['change']]}{posixpath.basename(change.get('name') or change['path'])}"
            for change in self._of(kind)
        }
        return set(rest.split(", ")) == names

    def _processes(self, phrase: str) -> bool:
        match = re.fullmatch(r"(.*?)(?: and (\d+) more)? (started|ended|restarted|stopped|continued)", phrase)
        if match is None:
            return self._ports_of_others(phrase)
        members = self._live[match[3]]
        if match[3] == "restarted":
            members = [restart["after"] for restart in members]
        names = match[1].split(", ")
        times = sum(int(count[1]) if (count := re.search(r" ×(\d+)", name)) else 1 for name in names)
        is_all = times == len(members) if match[2] is None else times < len(members)
        return is_all and all(
            any(name.split(" ")[0] in process["command"] for process in members) for name in names
        )

    def _ports_of_others(self, phrase: str) -> bool:
        """`node opened :3000`."""
        match = re.fullmatch(r"(?:(.*) )?(opened|closed) (:.*?)(?: and \d+ more)?", phrase)
        if match is None:
            return False
        ports = {
            port["port"]
            for port in self._live[match[2]]
            if match[1] is None or match[1].split(" ")[0] in (port["command"] or "")
        }
        return set(map(int, re.findall(r":(\d+)", match[3]))) <= ports

    def _port_moves(self, phrase: str) -> bool:
        """`:5000 flask → node`."""
        match = re.fullmatch(r":(\d+) (.*) → (.*)", phrase)
        return match is not None and any(
            int(match[1]) == move["after"]["port"]
            and match[2].split(" ")[0] in (move["before"]["command"] or "pid")
            and match[3].split(" ")[0] in (move["after"]["command"] or "pid")
            for move in self._live["moved"]
        )

    def _cwd(self, phrase: str) -> bool:
        cwd = self._live["cwd"]
        return bool(cwd) and phrase in (f"cwd {cwd[1]}", f"cwd {cwd[0]} → {cwd[1]}")

    def _shell_names(self) -> dict[str, set[str]]:
        """What changed in the shell, as a line of a log names it, by the noun that counts it."""
        live, settings = self._live, set()
        functions = {f"+{name}()" for name in live["functions_added"]}
        functions |= {f"-{name}()" for name in live["functions_removed"]}
        for change in live["settings"]:
            kind, name = change["kind"], change["name"]
            if kind == "function":
                functions.add(f"~{name}()")
            elif kind == "umask":
                settings.add(f"umask {change['after']}")
            elif kind == "option":
                settings.add(f"{name} {change['after'] or 'off'}")
            else:
                settings.add(f"{_sign(change)}{kind} {name}")
        variables = {f"{_sign(one)}{one['name']}" for one in live["variables"]}
        return {"variable": variables, "function": functions, "shell setting": settings}

    def _variables(self, phrase: str) -> bool:
        nouns = self._shell_names()
        counted = re.fullmatch(r"(.*) and (\d+) more (variable|function|shell setting)s?", phrase)
        if counted:
            told, real = counted[1].split(", "), nouns[counted[3]]
            return set(told) <= real and len(told) + int(counted[2]) == len(real) > 3
        return set(phrase.split(", ")) in nouns.values()

    # ---- files in a line ---------------------------------------------------------------------

    def _files(self, phrase: str) -> bool:
        phrase = phrase.removeprefix("caches only: ")
        if match := re.fullmatch(rf"((?:[+~→-][\d,]+ )+)({NOUNS}) \((.*)\)", phrase):
            return self._counts(match[1]) == _count(self._changes) and match[2] == noun_of(self._changes)
        parts = re.split(r", (?=[+~→-][\d,]+ (?:[+~→-][\d,]+ )*in )|, (?=…$)", phrase)
        names = [part for part in parts if not self._is_folded(part) and part != "…"]
        if len(names) > 1:
            return False
        folders = [part.partition(" in ")[2] for part in parts if self._is_folded(part)]
        return not names or self._named(names[0], folders)

    @staticmethod
    def _counts(words: str) -> dict[str, int]:
        return {word[0]: number(word[1:]) for word in words.split()}

    def _is_folded(self, part: str) -> bool:
        """`+3 ~1 in app/node_modules`."""
        match = re.fullmatch(r"((?:[+~→-][\d,]+ )+)in (.+)", part)
        return match is not None and any(
            self._counts(match[1]) == _count(_below(self._changes, folder))
            for folder in _folders(self._changes)
            if folder == match[2] or folder.endswith(f"/{match[2]}")
        )

    def _named(self, part: str, folders: Sequence[str]) -> bool:
        """`~api.py, + /srv/pay.py and 8 more files (+6 -2)`."""
        if match := re.fullmatch(rf"((?:[+~→-][\d,]+ )+)({NOUNS})", part):
            listed = [change for change in self._changes if not is_folded(change, self._filled)]
            return self._counts(match[1]) == _count(listed) and match[2] == noun_of(listed)
        if match := re.fullmatch(r"([\d,]+) folders|folders in (.*)", part):
            return not any(change["entry"] != "folder" for change in self._own())
        match = re.fullmatch(
            r"(.*?)(?: and (?:at least )?([\d,]+) more((?: hard)? \w+)?"
            r"(?: \(((?:[+~→-][\d,]+ ?)+)\))?)?",
            part,
        )
        if match is None:
            return False
        own = [
            change
            for change in self._own()
            if not any(f"/{folder.lstrip('/')}/" in f"{change['path']}/" for folder in folders)
        ]
        named = _consume(match[1], own)
        if not named:
            return False
        rest = [change for change in own if not any(change is other for other in named)]
        telling = [change for change in rest if not change["path"].endswith((*_BY_THE_WAY, "/.bash_history"))]
        if self._of("package"):
            return True  # files of packages are told with them
        # A folder in which a repository or a cache changed needs no name of its own.
        folded = [f"{change['path']}/" for change in self._changes if is_folded(change)]
        filled = {path[: noisy.start()] for path in folded if (noisy := _NOISY.search(path))}
        filled |= {posixpath.dirname(path.rstrip("/")) for path in folded}
        for some in (rest, telling):
            for possible in (some, [change for change in some if change["path"] not in filled]):
                if match[4]:
                    is_counted = self._counts(match[4]) == _count_leaves(possible)
                else:
                    is_counted = number(match[2] or "0") == _files_of(possible)
                if is_counted and (match[3] or "").strip() == _noun_of_more(possible):
                    return True
        return False

    def _own(self) -> list[Data]:
        """Changes that are neither in a folder that a program fills nor told otherwise."""
        told = {f"{change['path']}{end}" for change in self._of("database") for end in _ASIDE}
        told |= {change["path"] for change in self._of("cron")}
        system = self._of("system")
        told |= {change["name"] for change in system if change["subject"] == "keys"}
        if self._of("account") or any(change["subject"] in ("group", "password") for change in system):
            told |= {f"/etc/{name}{end}" for name in _ACCOUNTS for end in ("", "-")}
        tops = tuple(
            f"{posixpath.dirname(change['path'])}/"
            for change in self._changes
            if change["path"].endswith(_ENVIRONMENT)
        )
        own = [
            change
            for change in self._changes
            if not is_folded(change, self._filled) or change["path"].endswith(_ENVIRONMENT)
        ]
        parents = {posixpath.dirname(change["path"]) for change in own}
        return [
            change
            for change in own
            if change["path"] not in told
            and (not change["path"].startswith(tops) or change["path"].endswith(_ENVIRONMENT))
            and not is_told_by_its_files(change, parents)
        ]

    # ---- sections ----------------------------------------------------------------------------

    def judge_sections(self, sections: Sequence[Data]) -> None:
        """Every line of every section; every change must have one."""
        rules: dict[str, Callable[[Data], bool]] = {
            "files": self._file_line,
            "packages": self._package_line,
            "git": self._git_line,
            "databases": self._database_line,
            "system": self._system_line,
            "processes": self._process_line,
            "ports": self._port_line,
            "shell": self._shell_line,
        }
        names = [section["name"] for section in sections]
        for section in sections:
            self._judge_summary_of(section)
            if (rule := rules.get(section["name"])) is None:
                continue  # effects are judged in work.py; the network and commands have tests of their own
            for line in section["lines"]:
                self._ledger.count("lines")
                if not rule(line):
                    self._ledger.wrong("lines", f"{section['name']}: {' '.join(map(str, line.values()))}")
        needed = {
            "files": self._changes,
            "packages": self._of("package"),
            "git": self._of("repository"),
            "databases": self._of("database") or self._of("server"),
            "processes": self._live["started"] or self._live["ended"] or self._live["restarted"],
            "ports": self._live["opened"] or self._live["closed"] or self._live["moved"],
            "shell": self._live["cwd"] or any(self._shell_names().values()),
        }
        for name, changed in needed.items():
            if changed and name not in names:
                self._ledger.missing("lines", f"there is no section {name}")
        for section in sections:
            if section["name"] == "files":
                self._judge_complete([line["text"] for line in section["lines"]])
            elif section["name"] in rules and len(section["lines"]) < self._fewest(section["name"]):
                self._ledger.missing("lines", f"{section['name']} has {len(section['lines'])} lines")

    def _judge_summary_of(self, section: Data) -> None:
        """The words beside the name of a section."""
        name, told = section["name"], section["summary"]
        rules: dict[str, Callable[[str], bool]] = {
            "files": self._files,
            "packages": self._package,
            "git": self._git,
            "databases": lambda phrase: self._sqlite(phrase) or self._server(phrase),
            "system": self._system,
            "processes": self._about_processes,
            "ports": self._about_ports,
            "shell": self._about_shell,
        }
        if name not in rules:
            return
        for phrase in told.split(" · "):
            self._ledger.count("lines")
            if not rules[name](phrase) and not (name == "git" and self._unfinished(phrase)):
                self._ledger.wrong("lines", f"{name}, at its head: {phrase!r}, in {told!r}")

    def _unfinished(self, phrase: str) -> bool:
        """`not committed: /app`."""
        fields = ("staged", "modified", "untracked", "untracked_folded")
        repositories = self._of("repository")
        waiting = [one["path"] for one in repositories if any(one[field] for field in fields)]
        if not phrase.startswith("not committed: "):
            return phrase == f"{len(repositories)} repositor{'y' if len(repositories) == 1 else 'ies'}" and (
                not waiting
            )
        named = re.sub(r" and \d+ more$", "", phrase.removeprefix("not committed: ")).split(", ")
        return bool(waiting) and set(named) <= set(map(printed, waiting))

    def _about_processes(self, phrase: str) -> bool:
        if match := re.fullmatch(r"([\d,]+) still there", phrase):
            return bool(number(match[1]) == self._live["kept"])
        if match := re.fullmatch(r"memory (.*) → (.*)", phrase):
            return all(map(is_size, match.groups(), self._live["memory_bytes"]))
        return self._processes(phrase)

    def _about_ports(self, phrase: str) -> bool:
        match = re.fullmatch(r"(:.*) (opened|closed)", phrase)
        if match is None:
            return self._port_moves(phrase)
        told = [int(port) for port in re.findall(r":(\d+)", match[1])]
        return told == sorted({port["port"] for port in self._live[match[2]]})

    def _about_shell(self, phrase: str) -> bool:
        settings = Counter(change["kind"] for change in self._live["settings"])
        functions = len(self._live["functions_added"]) + len(self._live["functions_removed"])
        counts = {
            "variable": len(self._live["variables"]),
            "function": functions + settings["function"],
            **{kind: settings[kind] for kind in ("alias", "option", "trap")},
        }
        if match := re.fullmatch(r"(\d+) (variable|function|alias|option|trap)(?:s|es)?", phrase):
            return int(match[1]) == counts[match[2]]
        if match := re.fullmatch(r"umask (\d+) → (\d+)", phrase):
            masks = [
                (one["before"], one["after"]) for one in self._live["settings"] if one["kind"] == "umask"
            ]
            return masks == [(match[1], match[2])]
        return self._cwd(phrase)

    def _fewest(self, section: str) -> int:
        """How many lines a section has at least: one for each thing that changed."""
        live = self._live
        if section == "packages":
            members = self._of("package")
            dependencies = sum(not change["direct"] for change in members)
            return len(members) if dependencies <= 5 else len(members) - dependencies + 1
        if section == "git":
            fields = ("commits", "lost", "branches", "moves", "refs")
            return sum(
                1
                + sum(len(change[field]) for field in fields)
                + bool(change["stashed"])
                + bool(change["unstashed"])
                for change in self._of("repository")
            )
        if section == "databases":
            servers = self._of("server")
            made = sum(len(server["databases"]) for server in servers if server["change"] == "created")
            return len(servers) + made + sum(1 + len(change["schema"]) for change in self._of("database"))
        if section == "system":
            lines = sum(1 + len(change["added"]) + len(change["removed"]) for change in self._of("cron"))
            return lines + len(self._of("account")) + len(self._of("system"))
        observed: dict[str, tuple[str, ...]] = {
            "processes": ("started", "ended", "restarted", "stopped", "continued"),
            "ports": ("opened", "closed", "moved"),
            "shell": ("variables", "functions_added", "functions_removed", "settings"),
        }
        return sum(len(live[field]) for field in observed[section]) + (
            section == "shell" and live["cwd"] is not None
        )

    def _judge_complete(self, texts: Iterable[str]) -> None:
        paths = {text.rpartition(" → ")[2] for text in texts}
        folders = {path for path in paths if path.endswith("/")}
        listed = paths | {path.rstrip("/") or "/" for path in paths}  # a name may be of spaces alone
        parents = {posixpath.dirname(change["path"]) for change in self._changes}
        for change in self._changes:
            path = printed(change["path"])
            if path in listed or is_told_by_its_files(change, parents):
                continue
            is_filled = is_folded(change, self._filled)
            if is_filled and any(f"{path}/".startswith(folder) for folder in folders):
                continue
            if not any(path.endswith(other.rpartition(" → ")[2]) for other in listed):
                self._ledger.missing("lines", f"no line for {change['kind']} {change['path']}")

    def _file_line(self, line: Data) -> bool:
        for change in self._changes:
            path = change["path"]
            if change["entry"] == "folder" and path != "/":
                path += "/"
            text = path
            if change["kind"] == "renamed" and change["old_path"]:
                text = f"{change['old_path']} → {path}"
            is_same = printed(text) == line["text"] and line["sign"] == _SIGNS[change["kind"]]
            phrases = filter(None, line["detail"].split(" · "))
            if is_same and all(_is_detail(phrase, change) for phrase in phrases):
                return True
        return self._fold_line(line)

    def _fold_line(self, line: Data) -> bool:
        folder = line["text"].removesuffix("/")
        members = _below(self._changes, folder)
        words = line["detail"].split(" · ")
        if words[0] == "folders only":
            return bool(members) and not any(_count(members).values())
        match = re.fullmatch(rf"((?:[+~→-][\d,]+ )+)({NOUNS})", words[0])
        signs = list(_count(members))
        if line["sign"] != (signs[0] if len(signs) == 1 else "~"):
            return False
        written = sum(
            change["files_bytes"] if change["entry"] == "folder" else change["size_after"] or 0
            for change in members
            if (change["kind"] == "created" and not change["links_to"]) or "content" in change["what"]
        )
        if match is None or match[2] != noun_of(members):
            return False
        return self._counts(match[1]) == _count(members) and (len(words) == 1 or is_size(words[1], written))

    def _package_line(self, line: Data) -> bool:
        if re.fullmatch(r"\w+ [\d,]+ more", line["text"]):
            members = [change for change in self._of("package") if not change["direct"]]
            return any(_MOVES[change["change"]] == line["sign"] for change in members)
        for change in self._of("package"):
            versions = " → ".join(filter(None, (change["before"], change["after"])))
            words = line["detail"].split(" · ")
            if (
                (line["sign"], line["text"])
                == (_MOVES[change["change"]], f"{change['ecosystem']} {change['name']}")
                and words[0] == versions
                and (_AS_DEPENDENCY[change["change"]] in words) != change["direct"]
                and ("in the lock file only" in words) != change["installed"]
            ):
                return True
        return False

    def _git_line(self, line: Data) -> bool:
        return any(_is_git_line(line, change) for change in self._of("repository"))

    def _database_line(self, line: Data) -> bool:
        for change in self._of("server"):
            version = f"{change['server']} {change['version']}".rstrip()
            words = {"changed": _server_words(change) or "written to"}.get(change["change"], "")
            about = " · ".join(filter(None, (version, words)))
            if (line["sign"], line["text"], line["detail"]) == (
                _FATES[change["change"]],
                printed(change["path"]),
                about,
            ):
                return True
            if line["sign"] == "+" and change["change"] == "created":
                counted = {
                    space["name"]: _several(space["after"], change["unit"]) for space in change["databases"]
                }
                if counted.get(line["text"]) == line["detail"]:
                    return True
        for change in self._of("database"):
            if line["detail"] == "schema":
                marks = {"+": "+", "-": "-"}
                if any(
                    printed(entry[1:]) == line["text"] and marks.get(entry[0], "~") == line["sign"]
                    for entry in change["schema"]
                ):
                    return True
            elif (line["text"], line["sign"]) == (printed(change["path"]), _FATES[change["change"]]):
                name, detail = printed(change["path"].rpartition("/")[2]), line["detail"]
                if change["renamed_from"]:
                    was, _, detail = detail.partition(" · ")
                    former = printed(change["renamed_from"])
                    name = f"{former.rpartition('/')[2]} → {name}"
                    if was != f"was {former}":
                        return False
                if change["damage"]:
                    return bool(detail == printed(f"damaged: {change['damage']}"))
                if change["damage_before"] and change["change"] == "changed":
                    return bool(detail == "whole again")
                forms = (
                    f"{name}: {detail}",
                    f"+{name} ({detail})",
                    f"-{name}",
                )
                return any(_is_database(form, change) for form in forms)
        return False

    def _system_line(self, line: Data) -> bool:
        for change in self._of("account"):
            if (line["sign"], line["text"]) == (_FATES[change["change"]], f"user {change['name']}"):
                return bool(line["detail"] == f"uid {change['uid']}")
        for change in self._of("system"):
            if change["subject"] == "keys" and f"{line['sign']}{line['text']}" in change["details"]:
                return True
            of = " of" if change["subject"] == "password" else ""
            name = (
                change["name"] if change["subject"] == "keys" else f"{change['subject']}{of} {change['name']}"
            )
            about = "may log in" if change["subject"] == "keys" else ", ".join(change["details"])
            if (line["sign"], line["text"], line["detail"]) == (_FATES[change["change"]], name, about):
                return True
        for change in self._of("cron"):
            if line["text"] == f"cron {change['path']}":
                return bool(line["sign"] == _FATES[change["change"]])
            entries = {"+": change["added"], "-": change["removed"]}.get(line["sign"], ())
            if line["text"] in map(printed, entries):
                return True
        return False

    def _process_line(self, line: Data) -> bool:
        words = line["detail"].split(" · ")
        kind = words[0] if words[0] in ("restarted", "stopped", "continued") else ""
        kind = kind or {"+": "started", "-": "ended"}.get(line["sign"], "")
        if kind in words:
            words.remove(kind)
        for one in self._live.get(kind, ()):
            process = one["after"] if kind == "restarted" else one
            pid = (
                f"pid {one['before']['pid']} → {process['pid']}"
                if kind == "restarted"
                else f"pid {one['pid']}"
            )
            command = words[1].removesuffix("…") if len(words) > 1 else ""
            if words[0] == pid and printed(process["command"]).startswith(command):
                is_stopped = process["stopped"] and kind == "started"
                return bool(
                    line["text"].split(" ")[0] in process["command"] and is_stopped == ("stopped" in words)
                )
        return False

    def _port_line(self, line: Data) -> bool:
        if line["sign"] == "~":
            return any(
                line["text"] == _port(move["after"])
                and line["detail"].endswith(f"pid {move['before']['pid']} → {move['after']['pid']}")
                for move in self._live["moved"]
            )
        members = self._live[{"+": "opened", "-": "closed"}[line["sign"]]]
        return any(
            line["text"] == _port(port) and line["detail"] in (port["command"] or "") for port in members
        )

    def _shell_line(self, line: Data) -> bool:
        sign, text, detail = line["sign"], line["text"], line["detail"]
        if self._cwd(text):
            return bool(sign == "~" and not detail)
        for variable in self._live["variables"]:
            if (text, sign) == (variable["name"], _sign(variable)):
                return _is_variable(detail, variable)
        name = text.removesuffix("()")
        field = {"+": "functions_added", "-": "functions_removed"}.get(sign, "")
        if text.endswith("()") and name in self._live.get(field, ()):
            return bool(detail == "")
        for change in self._live["settings"]:
            kind = change["kind"]
            shown = {"function": f"{change['name']}()", "umask": "umask"}.get(
                kind, f"{kind} {change['name']}"
            )
            real = "~" if kind in ("function", "option") else _sign(change)
            if (text, sign) == (shown, real):
                return _is_setting(detail, change, sign)
        return False


def _is_variable(detail: str, variable: Data) -> bool:
    """What stands beside a variable: its values, unless they are long, and what else it became."""
    before, after = variable["before"], variable["after"]
    if after is None:
        return detail == ""
    words = [f"{word} now" for word in variable["became"]]
    words += [f"not {word} any more" for word in variable["no_longer"]]
    if not variable["exported"] and "exported" not in variable["no_longer"]:
        words.append("not exported")
    rest = " · ".join(words)
    if not detail.endswith(rest):
        return False
    told = detail[: len(detail) - len(rest)].removesuffix(" · ")
    if before == after:
        return told == "" or "another value" in told
    if max(len(before or ""), len(after)) > 60:
        return "…" in told
    values = [after] if before is None else [before, after]
    return told in map(" → ".join, itertools.product(*map(_written, values)))


def _written(value: str) -> tuple[str, ...]:
    """The ways in which a value may be written."""
    escaped = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in value)
    return printed(value), f"'{value}'", f"$'{escaped}'"


def _is_setting(detail: str, change: Data, sign: str) -> bool:
    """What stands beside a setting of the shell."""
    before, after = change["before"], change["after"]
    match change["kind"]:
        case "function":
            return detail == "another body"
        case "option":
            return bool(detail == (after or "off"))
        case "umask":
            return detail == f"{before} → {after}"
    if sign == "-":
        return detail == ""
    return printed(after)[:20] in detail if sign == "+" else " → " in detail


def _is_outcome(phrase: str, outcome: Data) -> bool:
    """`make test exit 2`: of a line that ended well the last command may stand for it."""
    ended = re.fullmatch(r"(.*?)…? ?exit (\d+)(?: .*)?", phrase)
    if ended and ended[1] in clean(outcome["command"]):
        return ended[2] == str(outcome["exit_code"])
    return outcome["command"][:20] in phrase


def _sign(change: Data) -> str:
    return "+" if change["before"] is None else "-" if change["after"] is None else "~"


def _port(port: Data) -> str:
    address = f"[{port['address']}]" if ":" in port["address"] else port["address"]
    return f"{port['protocol']} {address}:{port['port']}"


def _several(count: int | None, noun: str) -> str:
    """`2 tables`; nothing for none."""
    return f"{count:,} {noun}{'s' * (count != 1)}" if count and noun else ""


def _server_words(change: Data) -> str:
    """What is said of the databases of a server: three of them, those that were only written to last."""
    spaces = [(_space_words(space, change["unit"]), space) for space in change["databases"]]
    words = [text for text, _ in sorted(spaces, key=lambda pair: pair[0].endswith(" written to"))]
    return ", ".join(words[:3]) + f" and {len(words) - 3} more" * (len(words) > 3)


def _space_words(space: Data, unit: str) -> str:
    if space["added"] is not None or space["removed"] is not None:
        signed = [
            f"{sign}{space[field]:,}" for sign, field in (("+", "added"), ("-", "removed")) if space[field]
        ]
        parts = [f"{' '.join(signed)} {unit}{'s' * (signed not in (['+1'], ['-1']))}"] if signed else []
        parts += [f"{space['rewritten']:,} rewritten"] if space["rewritten"] else []
        return f"{space['name']} {', '.join(parts)}"
    if space["renamed_from"]:
        return f"{space['renamed_from']} → {space['name']}"
    if space["change"] != "changed":
        held = _several(space["after"], unit) if space["change"] == "created" else ""
        return f"{_FATES[space['change']]}{space['name']} {held}".rstrip()
    if space["before"] != space["after"]:
        return f"~{space['name']} {space['before']} → {space['after']} {unit}s"
    return f"{space['name']} written to"


# ---- parts ---------------------------------------------------------------------------------------


def _count(changes: Iterable[Data]) -> dict[str, int]:
    counted = Counter[str]()
    for change in changes:
        several = change["entry"] == "folder" and change["kind"] in ("created", "deleted")
        counted[_SIGNS[change["kind"]]] += change["files"] if several else 1
    return {sign: times for sign, times in counted.items() if times}


def noun_of(changes: Iterable[Data]) -> str:
    """What `_count` has counted."""
    counted = [change for change in changes if _count([change])]
    several = sum(_count(counted).values())
    things = {_thing(change) for change in counted}
    words = [f"{word}{'s' * (several != 1)}" for thing, word in _ENTRIES.items() if thing in things]
    return " and ".join(", ".join(words).rsplit(", ", 1))


def _thing(change: Data) -> str:
    """What a change is counted as: a folder that came or went with files as these."""
    if change["links_to"]:
        return "hard link"
    several = change["files"] and change["kind"] in ("created", "deleted")
    return "file" if several else str(change["entry"])


def _noun_of_more(changes: Iterable[Data]) -> str:
    """What the changes that a line does not name are; empty where they are of several kinds, or none."""
    counted = list(changes)
    nouns = {_ENTRIES[_thing(change)] for change in counted}
    return f"{nouns.pop()}{'s' * (_files_of(counted) != 1)}" if len(nouns) == 1 else ""


def _files_of(changes: Iterable[Data]) -> int:
    return sum(change["files"] or 1 for change in changes)


def _below(changes: Iterable[Data], folder: str) -> list[Data]:
    return [
        change
        for change in changes
        if change["path"].startswith(f"{folder}/")
        or (change["path"] == folder and change["entry"] == "folder")
    ]


def _folders(changes: Iterable[Data]) -> set[str]:
    found: set[str] = set()
    for change in changes:
        path = change["path"]
        while path and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def _count_leaves(changes: Iterable[Data]) -> dict[str, int]:
    counted = Counter[str]()
    for change in changes:
        counted[_SIGNS[change["kind"]]] += change["files"] or 1
    return dict(counted)


def _ends(path: str) -> list[str]:
    """A path and its ends, as a log may name it."""
    steps = path.split("/")
    return [clean("/".join(steps[index:])) for index in range(len(steps)) if steps[index:] != [""]]


def _consume(text: str, changes: Sequence[Data]) -> list[Data]:
    """The changes that are named one after the other; none if anything else is said."""
    named: list[Data] = []
    while text:
        found = [
            (form, change)
            for change in changes
            if not any(change is other for other in named)
            if posixpath.basename(clean(change["path"])) in text or change["path"].endswith(_ENVIRONMENT)
            for form in _forms(change)
            if text == form or text.startswith(f"{form}, ")
        ]
        if not found:
            return []
        form, change = max(found, key=lambda pair: len(pair[0]))
        named.append(change)
        text = text[len(form) + 2 :]
    return named


def _forms(change: Data) -> list[str]:
    """The ends of a changed path with its sign, as a log names it."""
    ends = _ends(change["path"])
    if change["path"].endswith(_ENVIRONMENT):
        ends += [f"{end}/" for end in _ends(posixpath.dirname(change["path"]))]
    if change["entry"] == "folder":
        counted = f" ({change['files']:,} files)" if change["files"] > 1 else ""
        at_least = f" (at least {change['files']:,} files)" if change["at_least"] else ""
        ends = [f"{end.rstrip('/')}/{at_least or counted}" for end in ends]
    if change["kind"] == "renamed" and change["old_path"]:
        return [f"{old} → {end}" for old in _ends(change["old_path"]) for end in ends]
    sign, linked = _SIGNS[change["kind"]], " (hard link)" if change["links_to"] else ""
    return [f"{sign}{' ' * end.startswith('/')}{end}{linked}" for end in ends]


def _is_detail(phrase: str, change: Data) -> bool:
    """Whether a phrase beside a changed file is true."""
    if match := re.fullmatch(r"(at least )?([\d,]+) files?", phrase):
        return (number(match[2]), bool(match[1])) == (change["files"], change["at_least"])
    if phrase == "symlink with another target":
        return bool(change["entry"] == "link" and "content" in change["what"])
    if match := re.fullmatch(r"was an? (\w+), is an? (\w+)", phrase):
        return (match[1], match[2]) == (_ENTRIES[change["entry_before"]], _ENTRIES[change["entry"]])
    if match := re.fullmatch(r"mode (\d+) → (\d+)", phrase):
        return (int(match[1], 8), int(match[2], 8)) == (change["mode_before"], change["mode_after"])
    if match := re.fullmatch(r"owner (\S+) → (\S+)", phrase):
        return (match[1], match[2]) == (change["owner_before"], change["owner_after"])
    if match := re.fullmatch(r"([\d.]+ [KMGT]?B) → ([\d.]+ [KMGT]?B)", phrase):
        return is_size(match[1], change["size_before"]) and is_size(match[2], change["size_after"])
    if "hard link" in phrase:
        was = "was a " if change["kind"] == "deleted" else ""
        return bool(change["links_to"]) and phrase == printed(f"{was}hard link of {change['links_to']}")
    if re.fullmatch(r"[\d.]+ [KMGT]?B", phrase):
        return is_size(phrase, change["size_after"])
    return bool(phrase == _ENTRIES[change["entry"]] or (phrase == "attributes" and "xattr" in change["what"]))


def head_of(change: Data, side: str = "after") -> str:
    """`on main`, `detached at 1b62a0c`; `side`: at which of the two points."""
    branch = change[f"branch_{side}"]
    if branch and (change[f"head_{side}"] or "").startswith(branch):
        return f"detached at {branch[:7]}"
    return f"on {branch or 'no branch'}"


def _others(change: Data) -> list[Data]:
    """The branches of a repository that moved and are not checked out."""
    if change["change"] != "changed":
        return []
    return [move for move in change["branches"] if move["branch"] != change["branch_after"]]


def _begins(told: str, subject: str) -> bool:
    """Whether a quoted subject is the beginning of a real one, cut or not."""
    whole = printed(subject)
    return told == whole or (told.endswith("…") and whole.startswith(told[:-1].rstrip()))


def _gained(phrase: str, change: Data) -> bool:
    match = re.fullmatch(
        r'(merge|[\d,]+ commits?) (on \S+|detached at \w{7}|on no branch) "(.*?)"'
        r"(?: and ([\d,]+) more commits?)?(, lost .*?)?(?:, ([\d,]+) untracked)?",
        phrase,
    )
    if match is None or not change["commits"]:
        return False
    newest = change["commits"][0]
    counted = (
        newest["merge"] and number(match[4] or "0") == change["commit_count"] - 1
        if match[1] == "merge"
        else number(match[1].split()[0]) == change["commit_count"]
    )
    return bool(
        counted
        and match[2] == head_of(change)
        and _begins(match[3], newest["subject"])
        and bool(match[5]) == bool(change["lost_count"])
        and _is_lost(match[5] or "", change)
        and number(match[6] or "0") == change["untracked"]
    )


def _is_lost(words: str, change: Data) -> bool:
    """`, lost "a", "b" and 3 more (still on side)`."""
    if not words:
        return True
    kept = re.search(r" \(still on (.*)\)$", words)
    if (kept[1] if kept else None) != change["lost_kept_on"]:
        return False
    subjects = re.findall(r'"(.*?)"(?:,| and \d+ more|$| \()', words)
    more = re.search(r'" and ([\d,]+) more', words)
    return len(subjects) + number(more[1] if more else "0") == change["lost_count"] and all(
        any(_begins(subject, commit["subject"]) for commit in change["lost"]) for subject in subjects
    )


def _only_lost(phrase: str, change: Data) -> bool:
    match = re.fullmatch(r"(.+?) lost ([\d,]+) commits?: (.*?)(?:, ([\d,]+) untracked)?", phrase)
    return bool(
        match
        and not change["commit_count"]
        and match[1] == head_of(change).removeprefix("on ")
        and number(match[2]) == change["lost_count"]
        and _is_lost(f", lost {match[3]}", change)
    )


def _git_parts(words: str) -> list[str]:
    """What is said of one repository, part by part; a subject may have any letters in it."""
    return [part.strip() for part in re.findall(r'(?:"[^"]*"|[^";]|;(?! ))+', words)]


def _fewest_of_git(change: Data) -> int:
    """How many parts the phrase of a repository has at least."""
    tags = change["change"] == "changed" and any(ref["kind"] == "tag" for ref in change["refs"])
    fields = ("moved_from", "stashed", "unstashed", "in_progress")
    return (
        bool(change["commit_count"] or change["lost_count"]) + tags + sum(bool(change[one]) for one in fields)
    )


def _moved(phrase: str, change: Data) -> bool:
    at = head_of(change).removeprefix("on ")
    return phrase in (
        f"{change['moved_from']} → {change['path']}",
        f"{head_of(change, 'before').removeprefix('on ')} → {at}",
        f"{at} moved to {(change['head_after'] or 'nothing')[:7]}",
        f"{change['in_progress']} unfinished",
    ) or (phrase == f"{change['in_progress_before']} no longer in progress" and change["in_progress"] is None)


def _branches(phrase: str, change: Data) -> bool:
    """`branch +side (2 commits), main +1 -2 commits, -old and 2 more`."""
    match = re.fullmatch(r"branch (.*?)(?: and (\d+) more)?", phrase)
    forms = set()
    for move in _others(change):
        if move["after"] is None:
            forms |= set() if move["lost"] else {f"-{move['branch']}"}
            continue
        counts = [f"{sign}{move[field]:,}" for sign, field in (("+", "gained"), ("-", "lost")) if move[field]]
        several = "" if counts in (["+1"], ["-1"]) else "s"
        if move["before"] is None:
            commits = f" ({move['gained']:,} commit{several})" if move["gained"] else ""
            forms.add(f"+{move['branch']}{commits}")
        else:
            forms.add(
                f"{move['branch']} {' '.join(counts)} commit{several}" if counts else f"~{move['branch']}"
            )
    told = match[1].split(", ") if match else []
    # A branch of a worktree is told with the worktree.
    return bool(match) and set(told) <= forms and len(told) + int(match[2] or 0 if match else 0) <= len(forms)


def _branch_gone(phrase: str, change: Data) -> bool:
    return any(
        branch["after"] is None and phrase.startswith(f"branch {branch['branch']} deleted, lost ")
        for branch in change["branches"]
    )


def _other_refs(phrase: str, change: Data) -> bool:
    """`tag +v1, -v2`, `fetched origin/main`, `2 stash entries made`."""
    if match := re.fullmatch(r"remote branch (.*?)(?: and (\d+) more)?", phrase):
        gone = {f"-{ref['name']}" for ref in change["refs"] if ref["kind"] != "tag" and not ref["after"]}
        named = match[1].split(", ")
        return set(named) <= gone and len(named) + int(match[2] or 0) == len(gone)
    if match := re.fullmatch(r"(tag|fetched) (.*?)(?: and (\d+) more)?", phrase):
        if match[1] == "tag":
            names = {f"{_sign(ref)}{ref['name']}" for ref in change["refs"] if ref["kind"] == "tag"}
        else:
            names = {ref["name"] for ref in change["refs"] if ref["kind"] != "tag" and ref["after"]}
        named = match[2].split(", ")
        return set(named) <= names and len(named) + int(match[3] or 0) == len(names)
    match = re.fullmatch(r"(\d+) stash entr(?:y|ies) (made|gone)", phrase)
    return bool(match and int(match[1]) == change["stashed" if match[2] == "made" else "unstashed"])


_GIT_RULES = (_gained, _only_lost, _moved, _branches, _branch_gone, _other_refs)


def _is_git_line(line: Data, change: Data) -> bool:
    sign, text, detail = line["sign"], line["text"], line["detail"]
    if text == printed(change["path"]):
        return sign == _FATES[change["change"]] and all(
            _is_git_detail(phrase, change) for phrase in filter(None, detail.split(" · "))
        )
    for field, mark, words in (("commits", "+", ("commit", "merge")), ("lost", "-", ("lost commit",))):
        for commit in change[field]:
            if text == printed(f'{commit["id"][:7]} "{commit["subject"]}"') and sign == mark:
                return detail in words
        counted = change["commit_count" if field == "commits" else "lost_count"] - len(change[field])
        if re.fullmatch(rf"{counted:,} more (?:lost )?commits?", text) and sign == mark:
            return True
    for branch in change["branches"]:
        if text == printed(f"branch {branch['branch']}"):
            moved = " → ".join(commit[:7] for commit in (branch["before"], branch["after"]) if commit)
            real = "+" if branch["before"] is None else "-" if branch["after"] is None else "~"
            told = detail.partition(" · ")
            return sign == real and told[0] == moved and bool(told[2]) == bool(branch["lost"])
    for ref in change["refs"]:
        if (text, sign) == (printed(f"{ref['kind']} {ref['name']}"), _sign(ref)):
            return bool(detail == " → ".join(tip[:7] for tip in (ref["before"], ref["after"]) if tip))
    if match := re.fullmatch(r"(\d+) stash entr(?:y|ies)", text):
        return bool(int(match[1]) == change["stashed" if sign == "+" else "unstashed"])
    return text in map(printed, change["moves"])


def _is_git_detail(phrase: str, change: Data) -> bool:
    if match := re.fullmatch(r"([\d,]+) files? (.*)", phrase):
        counts = {
            "committed": change["committed"],
            "staged": change["staged"],
            "changed and not committed": change["modified"],
            "untracked": change["untracked"] + change["untracked_folded"],
        }
        return counts.get(match[2]) == number(match[1])
    at = head_of(change)
    arrow = f"{head_of(change, 'before').removeprefix('on ')} → {at.removeprefix('on ')}"
    return phrase in (at, arrow, f"was {change['moved_from']}", f"{change['in_progress']} unfinished")


def _is_database(phrase: str, change: Data) -> bool:
    """Whether a phrase about a database is true: its fate, or what happened to its tables."""
    name = printed(change["path"].rpartition("/")[2])
    if match := re.fullmatch(rf"\+{re.escape(name)} \(([\d,]+) tables?\)", phrase):
        return change["change"] == "created" and number(match[1]) == len(change["tables"])
    if (match := re.fullmatch(rf"\+{re.escape(name)} \((.*)\)", phrase)) and change["change"] == "created":
        return match[1].split(", ") == [
            printed(table["name"])
            + (
                f" {table['rows_after']:,} row{'s' * (table['rows_after'] != 1)}"
                if table["rows_after"]
                else ""
            )
            for table in change["tables"]
        ]
    if phrase == f"-{name}":
        return bool(change["change"] == "removed")
    if change["renamed_from"]:
        former = printed(change["renamed_from"].rpartition("/")[2])
        if not phrase.startswith(f"{former} → "):
            return False
        phrase = phrase.removeprefix(f"{former} → ")
    if change["damage"]:
        still = "still " * bool(change["damage_before"])
        # A phrase of a log has 120 letters at most.
        return f"{name} {still}damaged: {printed(change['damage'])}".startswith(phrase.removesuffix("…"))
    if change["damage_before"]:
        return phrase == f"{name} whole again"
    told, _, rest = phrase.partition(": ")
    if told != name:
        return False
    tables = {printed(table["name"]): table for table in change["tables"]}
    parts = rest.split("; ")
    more = re.fullmatch(r"([\d,]+) more( tables?)?", parts[-1])
    if more:
        others = [entry for entry in change["schema"] if entry.partition(" ")[2] not in tables]
        if number(more[1]) != len(tables if more[2] else others) - len(parts) + 1:
            return False
        parts.pop()
    return all(part in change["schema"] or _is_table(part, tables) for part in parts)


def _is_table(part: str, tables: Mapping[str, Data]) -> bool:
    """`orders altered, +2 -1 rows, 3 updated`."""
    first, *rest = part.split(", ")
    if first.endswith(" altered") and rest and rest[0][:1] in "+-":
        first = f"{first.removesuffix(' altered')} {rest.pop(0)} altered"
    if first.endswith(" not compared") and (unknown := tables.get(first.removesuffix(" not compared"))):
        return not rest and unknown["inserted"] is None
    table = _table_of(first, tables)
    if table is None or len(rest) > 1:
        return False
    updated = re.fullmatch(r"([\d,]+) updated", rest[0]) if rest else None
    return not rest or bool(updated and number(updated[1]) == table["updated"])


def _table_of(word: str, tables: Mapping[str, Data]) -> Data | None:
    """The table that a phrase is about, if the phrase is true."""
    if match := re.fullmatch(r"\+(.*?)(?: \(([\d,]+) rows?\))?", word):
        table = tables.get(match[1])
        if table and table["change"] == "created" and number(match[2] or "0") == (table["rows_after"] or 0):
            return table
    if word.startswith("-") and (table := tables.get(word[1:])) and table["change"] == "removed":
        return table
    match = re.fullmatch(
        r"(?:(.*) → )?(.*?)(?: ((?:[+-][\d,]+ )+)rows?)?(?: ([\d,]+) updated)?( altered| changed)?", word
    )
    table = tables.get(match[2]) if match else None
    if match is None or table is None or (match[1] or None) != table["renamed_from"]:
        return None
    counts = {part[0]: number(part[1:]) for part in (match[3] or "").split()}
    if table["inserted"] is None:
        return table
    told = counts.get("+", 0), counts.get("-", 0)
    real = table["inserted"], table["deleted"]
    return table if told == real and (not match[4] or number(match[4]) == table["updated"]) else None


def _is_package(word: re.Match[str], change: Data) -> bool:
    if (word[1], word[2]) != (_MOVES[change["change"]], change["name"]):
        return False
    if word[4]:
        return (word[3], word[4]) == (change["before"], change["after"])
    return word[3] is None or word[3] == (change["after"] or change["before"])
