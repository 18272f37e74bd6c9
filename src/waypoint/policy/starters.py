"""Programs that start another program because an option, a word or a setting says so: `tar --to-command`,
`git -c core.pager`, `gdb -ex '!…'`.

Most of them are data: [starts] and [loads] in wrappers.toml. Those with a syntax of their own have a function
here. Each adds what it finds to the inspection of a line (wrappers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from waypoint.policy.bash import Command, Word
from waypoint.policy.tables import tables
from waypoint.policy.words import join_words, program_of, skip_options

if TYPE_CHECKING:
    from waypoint.policy.wrappers import Inspector

TERMINALS = "xterm gnome-terminal konsole xfce4-terminal alacritty kitty urxvt st foot terminator"

_MIN_ABBREVIATION = 5
"""Of a long option GNU programs accept the beginning: `--rsh-com` is `--rsh-command`."""
_METACHARACTER = re.compile(r"[|&;<>()$`\\\"'\n]|(?i:command)")


# ---- options ------------------------------------------------------------------------------------


def inspect_options(inspector: Inspector, name: str, command: Command) -> None:
    """Options whose value is a command, or a file with commands or code, that the program runs."""
    data, words = tables(), command.words
    keys = [name, *(f"{name} {word.text}" for word in words[1:4])] if name == "git" else [name]
    if name in ("ssh", "autossh", "mosh", "scp", "sftp"):
        for _, value in _values(words, frozenset({"-o"})):
            if match := re.match(r"(?i)(?:proxy|local|knownhosts)command[ =](.*)", value.text, re.DOTALL):
                inspector.shell_text(value._replace(text=match[1]), f"what {name} starts")
    for key in keys:
        for option, value in _values(words, data.starts.get(key, frozenset())):
            _inspect_started(inspector, name, option, value)
        for option, value in _values(words, data.loads.get(key, frozenset())):
            if value.text not in ("/dev/null", "none", "NONE", "NORC", ""):
                inspector.result.add_unseen(f"what {name} does with {option} {value.text}")


def _inspect_started(inspector: Inspector, name: str, option: str, value: Word) -> None:
    text = value.text
    if option == "--checkpoint-action":
        if not text.startswith("exec"):
            return
        text = text.removeprefix("exec").lstrip("=")
    if option == "-wrapper":
        text = text.replace(",", " ")
    if not value.dynamic and not _METACHARACTER.search(text) and _is_usual(text.split()):
        return
    if text:
        inspector.shell_text(value._replace(text=text), f"what {name} starts")


def _is_usual(words: list[str]) -> bool:
    """Whether it is a program that does nothing by itself, such as a pager; ssh only without a command."""
    if not words or program_of(words[0]) not in tables().names.usual_helpers:
        return False
    if program_of(words[0]) != "ssh":
        return True
    return skip_options([Word(word) for word in words], tables().options["ssh"]) == len(words)


def _values(words: list[Word], options: frozenset[str]) -> Iterator[tuple[str, Word]]:
    """The values that these options have among the words: as the next word, or attached."""
    if not options:
        return
    for index, word in enumerate(words[1:], 1):
        if word.text == "--":
            return
        if not word.text.startswith("-") or len(word.text) < 2:
            continue
        given, equals, attached = word.text.partition("=")
        for option in options:
            if given == option or (
                option.startswith("--") and len(given) >= _MIN_ABBREVIATION and option.startswith(given)
            ):
                if equals:
                    yield option, word._replace(text=attached)
                elif index + 1 < len(words):
                    yield option, words[index + 1]
                break
            is_short = len(option) == 2 and not given.startswith("--")
            if is_short and word.text.startswith(option):
                yield option, word._replace(text=word.text[2:].removeprefix("="))
                break
            # The last of several letters: `tar -cI gzip`.
            if is_short and re.fullmatch(rf"-[A-Za-z]+{option[1]}", word.text) and index + 1 < len(words):
                yield option, words[index + 1]
                break


# ---- git ----------------------------------------------------------------------------------------

_COMMAND_SETTINGS = re.compile(
    r"(?i)(core\.(sshcommand|editor|pager|fsmonitor|askpass|gitproxy|alternaterefscommand)|sequence\.editor|pager\..*"
    r"|diff\.external|interactive\.difffilter|uploadpack\.packobjectshook|sendemail\.\w*cmd|remote\..*\.(uploadpack|receivepack|vcs)"
    r"|.*\.(cmd|command|helper|textconv|driver|process|clean|smudge|program))$"
)
"""Settings whose value git runs."""
_LOADING_SETTINGS = re.compile(
    r"(?i)(core\.(hookspath|attributesfile|worktree)|include(if)?\..*|init\.templatedir|browser\..*|man\..*\.path"
    r"|.*\.path|submodule\..*\.update)$"
)
"""Settings that name a file with commands."""
_PLACE_SETTINGS = re.compile(r"(?i)(url\..*|protocol\..*|http\..*proxy)$")
"""Settings that name another place to push to and fetch from. `git config` itself does not go there; a later
push is judged by what the repository's configuration says then."""
_TRUE_OR_FALSE = re.compile(r"(?i)(true|false|yes|no|on|off|0|1)?$")
_HELPER_NAMES = re.compile(r"(store|cache|libsecret|osxkeychain|manager|manager-core|wincred)\b[\w\s=-]*$")
_GIT_VALUES = frozenset({
    "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--super-prefix",
})  # fmt: skip


def inspect_git(inspector: Inspector, _: str, command: Command) -> None:
    """Some settings of git name a command to run, and some verbs run their arguments."""
    words = command.words
    at = skip_options(words, _GIT_VALUES)
    verb = words[at].text if at < len(words) else ""
    for index, word in enumerate(words[1:], 1):
        following = words[index + 1] if index + 1 < len(words) else None
        if following and word.text in ("-c", "--config") and (index < at or verb in ("clone", "submodule")):
            _inspect_setting(inspector, *_setting(following))
        elif word.text.startswith("--config="):
            _inspect_setting(inspector, *_setting(word._replace(text=word.text.partition("=")[2])))
        elif word.text.startswith(("--config-env", "--exec-path=")) and index < at:
            inspector.result.add_unseen(f"what git does with {word.text}")
        elif re.match(r"--[a-z-]+-filter$", word.text) and following:
            inspector.shell_text(following, "what git filter-branch runs")
        elif re.match(r"(?i)(ext|fd)::", word.text.removeprefix("+")):
            inspector.shell_text(word._replace(text=word.text.partition("::")[2]), "what git starts")
    rest = words[at + 1 :]
    plain = [word for word in rest if not word.text.startswith("-")]
    if verb == "config":
        plain = plain[1:] if plain and plain[0].text in ("set", "add", "replace-all") else plain
        if len(plain) > 1 and not _PLACE_SETTINGS.match(plain[0].text):
            _inspect_setting(inspector, plain[0].text, plain[1])
    elif verb == "bisect" and rest and rest[0].text == "run":
        inspector.inner_command(rest[1:])
    elif verb == "submodule" and plain and plain[0].text == "foreach":
        start = rest.index(plain[0]) + 1
        inspector.shell_text(
            join_words(rest[skip_options(rest, frozenset(), start) :]), "what git submodule runs"
        )
    inspector.add_part(command)


def _setting(word: Word) -> tuple[str, Word]:
    key, _, value = word.text.partition("=")
    return key, word._replace(text=value)


def _inspect_setting(inspector: Inspector, key: str, value: Word) -> None:
    if re.match(r"(?i)alias\.", key):
        text = value.text
        line = text[1:] if text.startswith("!") else f"git {text}"
        inspector.shell_text(value._replace(text=line), f"what {key} runs")
    elif _COMMAND_SETTINGS.match(key):
        is_helper = key.lower().endswith(".helper") and _HELPER_NAMES.match(value.text)
        if not is_helper and not _TRUE_OR_FALSE.match(value.text):
            inspector.shell_text(value._replace(text=value.text.lstrip("!")), f"what {key} runs")
    elif (_LOADING_SETTINGS.match(key) or _PLACE_SETTINGS.match(key)) and value.text:
        inspector.result.add_unseen(f"what git does with {key}={value.text}")


# ---- editors, pagers, debuggers --------------------------------------------------------------------


def inspect_vim(inspector: Inspector, name: str, command: Command) -> None:
    """vim -c '!cmd' and the like."""
    inspector.add_part(command)
    for index, word in enumerate(command.words[1:], 1):
        text = word.text
        if text in ("-c", "--cmd") and index + 1 < len(command.words):
            text = "+" + command.words[index + 1].text
        if not text.startswith("+"):
            continue
        if match := re.search(r"!\s*(.+)", text):
            inspector.shell_text(word._replace(text=match[1]), f"what {name} runs")
        elif re.search(r"!|system|term|lua|py|perl|ruby|source|so\b|call|exe", text):
            inspector.result.add_unseen(f"what {name} runs")


def inspect_ed(inspector: Inspector, name: str, command: Command) -> None:
    """`ed '!command'`, and lines of its input that begin with `!`, or read from and write to a command."""
    inspector.add_part(command)
    for word in command.words[1:]:
        if word.text.startswith("!"):
            inspector.shell_text(word._replace(text=word.text[1:]), f"what {name} runs")
    if command.stdin:
        for line in re.findall(r"(?m)^[^\n]*?[rewW]?\s*!(.+)$", command.stdin.text):
            inspector.shell_text(command.stdin._replace(text=line), f"what {name} runs")
    elif command.piped or command.reads_file:
        inspector.result.add_unseen(f"what {name} runs")


def inspect_pager(inspector: Inspector, name: str, command: Command) -> None:
    """`less '+!command'`: what stands after + is typed."""
    inspector.add_part(command)
    for word in command.words[1:]:
        if word.text.startswith("+") and (match := re.search(r"[!#|]\s*(.*)", word.text)):
            inspector.shell_text(word._replace(text=match[1]), f"what {name} runs")


_DEBUGGER_ESCAPE = re.compile(
    r"\s*(?:!|shell\b|(?:platform\s+)?shell\b|pipe\b[^|]*\||make\b)\s*(.*)", re.DOTALL
)
_DEBUGGER_LOOKS = re.compile(
    r"\s*(?:bt|backtrace|where|info|i|frame|f|thread|up|down|list|l|print|p|x|disas\w*|disassemble|quit|q|y|run|r|start|continue|c"
    r"|next|n|step|s|finish|until|break|b|tbreak|watch|delete|set\s+(?:pagination|confirm|logging|print|width|height|args|breakpoint)"
    r"|show|image|register|process|target|settings|exit)\b[^()!|]*"
)


def inspect_debugger(inspector: Inspector, name: str, command: Command) -> None:
    words, at = command.words, 1
    inspector.add_part(command)
    while at < len(words):
        text = words[at].text
        if text in (
            "-ex",
            "--ex",
            "-iex",
            "--eval-command",
            "-eval-command",
            "-o",
            "-O",
            "--one-line",
        ) and at + 1 < len(words):
            _inspect_debugger_line(inspector, name, words[at + 1])
            at += 2
            continue
        for option in ("-ex=", "--eval-command=", "-iex="):
            if text.startswith(option):
                _inspect_debugger_line(inspector, name, words[at]._replace(text=text.removeprefix(option)))
        if text in ("-x", "-ix", "--command", "-command", "--init-command", "-s", "-S", "--source"):
            inspector.result.add_unseen(f"what {name} reads with {text}")
        if text in ("--args", "--") and at + 1 < len(words):
            inspector.inner_command(words[at + 1 :], command)
            return
        at += 1
    if command.stdin:
        for line in command.stdin.text.splitlines():
            _inspect_debugger_line(inspector, name, command.stdin._replace(text=line))


def _inspect_debugger_line(inspector: Inspector, name: str, line: Word) -> None:
    if match := _DEBUGGER_ESCAPE.match(line.text):
        inspector.shell_text(line._replace(text=match[1]), f"what {name} runs")
    elif line.text.strip() and not _DEBUGGER_LOOKS.fullmatch(line.text):
        inspector.result.add_unseen(f"what {name} runs")


_OUTPUT = frozenset({"-o", "--output"})


def inspect_strace(inspector: Inspector, name: str, command: Command) -> None:
    """`strace -o '|command'` pipes its output; the rest is a wrapper like others."""
    for _, value in _values(
        command.words[: skip_options(command.words, tables().programs[name].values)], _OUTPUT
    ):
        if value.text.startswith(("|", "!")):
            inspector.shell_text(value._replace(text=value.text[1:]), f"what {name} writes to")
        else:
            inspector.add_part(Command([], [], [value]))
    inspector.wrapper(name, command)


# ---- small languages -----------------------------------------------------------------------------


def inspect_awk(inspector: Inspector, _: str, command: Command) -> None:
    """awk can run commands and write files, but most awk programs do neither."""
    at = skip_options(command.words, tables().options["awk"])
    if any(word.text in ("-f", "--file") for word in command.words[:at]):
        inspector.result.add_unseen("what an awk script does")
    for word in command.words[at : at + 1]:
        if re.search(r"\bsystem\s*\(|\|\s*(getline|&?\s*\")|\"\s*\|\s*getline|\|&|@load|/inet/", word.text):
            inspector.result.add_unseen("what awk runs")
            for line in re.findall(r"system\s*\(\s*\"((?:[^\"\\]|\\.)*)\"", word.text):
                inspector.shell_text(Word(line.replace('\\"', '"')), "what awk runs")
    inspector.add_part(command)


def inspect_sed(inspector: Inspector, _: str, command: Command) -> None:
    for word in command.words[1:]:
        if re.search(r"(^|[;{\s\d/$])e(\s+\S|$)|([/|#,!])[gpiIm0-9]*e[gpiIm0-9]*\s*(;|$)", word.text) and (
            not word.text.startswith(("-", "/"))
        ):
            inspector.result.add_unseen("what sed runs")
    inspector.add_part(command)


def inspect_dc(inspector: Inspector, name: str, command: Command) -> None:
    for word in (*command.words[1:], *([command.stdin] if command.stdin else [])):
        for line in re.findall(r"!(?![<>=])\s*(.+)", word.text):
            inspector.shell_text(word._replace(text=line), f"what {name} runs")
    inspector.add_part(command)


def inspect_expect(inspector: Inspector, name: str, command: Command) -> None:
    words, texts = command.words, [word.text for word in command.words]
    script = words[texts.index("-c") + 1] if "-c" in texts[:-1] else command.stdin
    if script:
        for line in re.findall(r"\b(?:spawn|exec|system)\b(?:\s+-\w+)*\s+([^\n;\]]+)", script.text):
            inspector.shell_text(script._replace(text=line.strip('{}" ')), f"what {name} runs")
    inspector.result.add_unseen(f"what a script for {name} does")


_DATABASE_ESCAPE = re.compile(
    r"(?:\\!|(?:^|\n)\s*\.(?:shell|system)|(?:^|;|\n)\s*system|(?:^|\n)\s*\.(?:once|output|import|read)\s+['\"]?\|"
    r"|\\(?:o|g|gx|w|copy[^\n]*?)\s*\|)\s*(.+)"
)
_DATABASE_PROGRAM = re.compile(r"(?is)\bcopy\b.*?\b(?:to|from)\s+program\s+\$?'((?:[^']|'')*)'")
_DATABASE_LOADS = re.compile(
    r"(?im)(?:^|\n)\s*\.(?:load|read|open|edit)\b|\bload_extension\s*\(|^\s*\\(?:i|ir|e|ef|ev|setenv|watch)\b|\bedit\s*\("
)


def inspect_database(inspector: Inspector, name: str, command: Command) -> None:
    """Command lines of databases can run commands of the shell."""
    inspector.add_part(command)
    for word in (*command.words[1:], *([command.stdin] if command.stdin else [])):
        for line in _DATABASE_ESCAPE.findall(word.text):
            inspector.shell_text(word._replace(text=line.rstrip("'\"")), f"what {name} hands to the shell")
        for line in _DATABASE_PROGRAM.findall(word.text):
            inspector.shell_text(
                word._replace(text=line.replace("''", "'")), f"what {name} hands to the shell"
            )
        if _DATABASE_LOADS.search(word.text) and (" " in word.text or word is command.stdin):
            inspector.result.add_unseen(f"what {name} reads or loads")


# ---- other programs --------------------------------------------------------------------------------


def inspect_socat(inspector: Inspector, name: str, command: Command) -> None:
    """Addresses that are commands: `exec:`, `system:`, `shell:`."""
    for word in command.words[1:]:
        for part in word.text.split("!!"):
            if match := re.match(r"(?i)(?:exec|system|shell):(.*)", part, re.DOTALL):
                inspector.shell_text(word._replace(text=match[1].split(",pty")[0]), f"what {name} starts")
    inspector.add_part(command)


_APT_RUNS = re.compile(
    r"(?i)([\w:-]*(?:invoke|methods|bin::|solver|auto-detect|tools|update-command)[\w:-]*)=(.*)", re.DOTALL
)


def inspect_apt(inspector: Inspector, name: str, command: Command) -> None:
    for _, value in _values(command.words, frozenset({"-o", "--option"})):
        if match := _APT_RUNS.match(value.text):
            inspector.shell_text(value._replace(text=match[2]), f"what {name} runs")
    inspector.add_part(command)


def inspect_ip(inspector: Inspector, _: str, command: Command) -> None:
    texts = [word.text for word in command.words]
    if "exec" in texts and any(space in texts for space in ("netns", "netn", "vrf")):
        rest = command.words[texts.index("exec") + 2 :]
        inspector.inner_command(rest, command)
    if any(word in texts for word in ("-b", "-batch", "-force")):
        inspector.result.add_unseen("what ip reads from a file")
    inspector.add_part(command)


def inspect_hyperfine(inspector: Inspector, name: str, command: Command) -> None:
    values = frozenset(
        {"-w", "-m", "-M", "-r", "-P", "-L", "-u", "-n", "--warmup", "--runs", "--export-json"}
    )
    at = 1
    while at < len(command.words):
        word = command.words[at]
        if word.text.startswith("-"):
            at += 2 if word.text in values or word.text.startswith("--export") else 1
            continue
        inspector.shell_text(word, f"what {name} measures")
        at += 1


def inspect_cmake(inspector: Inspector, _: str, command: Command) -> None:
    texts = [word.text for word in command.words]
    if texts[1:2] == ["-E"] and len(texts) > 3 and texts[2] in ("env", "time", "chdir"):
        start = 3 + (texts[2] == "chdir")
        while start < len(texts) and (texts[start].startswith("-") or re.match(r"\w+=", texts[start])):
            start += 1
        inspector.inner_command(command.words[start:], command)
        return
    inspector.add_part(command)


def inspect_nix(inspector: Inspector, name: str, command: Command) -> None:
    texts = [word.text for word in command.words]
    for option in ("-c", "--command", "--run"):
        if option in texts[:-1]:
            rest = command.words[texts.index(option) + 1 :]
            if name == "nix":
                inspector.inner_command(rest, command)
            else:
                inspector.shell_text(rest[0], f"what {name} runs")
            return
    if "run" in texts[1:]:
        inspector.result.add_unseen("what a package of nix does")
    inspector.add_part(command)


def inspect_terminal(inspector: Inspector, name: str, command: Command) -> None:
    """A window with a command: `xterm -e …`."""
    texts = [word.text for word in command.words]
    for option in ("-e", "-x", "--", "--command", "-c"):
        if option in texts[:-1]:
            rest = command.words[texts.index(option) + 1 :]
            if len(rest) == 1:
                inspector.shell_text(rest[0], f"what {name} runs")
            else:
                inspector.inner_command(rest, command)
            return
    if name == "kitty" and len(texts) > 1:
        inspector.inner_command(command.words[skip_options(command.words, frozenset()) :], command)
        return
    inspector.result.add_unseen(f"what is typed in {name}")
