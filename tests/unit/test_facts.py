"""What a checkpoint observed of processes, ports and the shell, and what happened between two of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

import waypoint
from waypoint.api.difference import LiveDifference, PortFact, ProcessFact, SettingChange, VariableChange
from waypoint.history.facts import Facts, compare_facts, nested_shells, went_on
from waypoint.history.redaction import Redactor
from waypoint.history.shell import ShellFact, ShellListing, compare_variables, parse_listing, parse_shell
from waypoint.text.findings import program_name
from waypoint.text.live import (
    describe_not_compared,
    port_lines,
    process_lines,
    shell_lines,
    shell_summary,
    summarize_moves,
    summarize_processes,
    summarize_shell,
)
from waypoint.text.units import cut_around

LISTING = """declare -x HOME="/root"
declare -x MULTI="one
declare -x FAKE=\\"no\\"
two"
declare -x EMPTY
declare -x ODD=$'tab\\there'
declare -x QUOTED="a \\"b\\" \\$c"
declare -f __waypoint_begin
declare -f deploy
alias ll='ls -l'
alias q='echo '\\''x'\\'''
"""


def test_the_listing_of_an_older_shell_is_read_back() -> None:
    shell = parse_shell(LISTING, "/srv", None)
    assert shell.exported == {
        "HOME": "/root",
        "MULTI": 'one\ndeclare -x FAKE="no"\ntwo',
        "EMPTY": "",
        "ODD": "tab\there",
        "QUOTED": 'a "b" $c',
    }
    assert shell.functions == ("deploy",)
    assert shell.aliases == {"ll": "ls -l", "q": "echo 'x'"}
    assert (shell.cwd, shell.listing) == ("/srv", None)


def test_garbage_in_the_listing_is_no_error() -> None:
    assert parse_shell("declare -x A='\x00\ndeclare -x\nalias", "/", None).cwd == "/"
    assert parse_listing("") is None
    assert parse_listing("a\0b\0c\0d\0e\0f") is None


def test_what_the_integration_alone_has_put_into_a_variable_is_no_variable() -> None:
    def variables(text: str) -> set[str]:
        function = "declare -f f\0f () \n{ \n    :\n}"
        listing = parse_listing(f"{text}\0\0{function}\0\0" + "0022\0")
        assert listing
        return set(listing.variables)

    own = 'declare -- PS0="\\e]133;C;k=1f;l=0\\a"'
    assert variables(own) == set()
    assert variables(own.replace('="', '="mine ')) == {"PS0"}
    assert variables('declare -- EMPTY=""') == {"EMPTY"}


# ---- a real shell --------------------------------------------------------------------------------

INTEGRATION = Path(waypoint.__file__).parent / "shell" / "integration.bash"


def bash(folder: Path, script: str) -> tuple[ShellFact, str]:
    """The shell as it reports itself at a prompt after this script, and what the script printed then."""
    (folder / "name").write_text("work\n")
    text = (
        INTEGRATION.read_text().replace("/dev/waypoint.state", str(folder)).replace("/dev/tty", "/dev/null")
    )
    text = text.replace("/dev/waypoint.inside", str(folder))
    start, hooks = text.split("__waypoint_key=", 1)
    assert ".bashrc" in start
    (folder / "integration").write_text(f"__waypoint_key={hooks}")
    prompt = 'eval "$__waypoint_last"'
    whole = f". {folder}/integration 2>/dev/null\nset -o history\n{script.replace('PROMPT', prompt)}\n"
    done = subprocess.run(
        # A test run in the background ignores some signals, which a shell would report as traps.
        ["env", "--default-signal", "bash", "--norc", "--noprofile", "-c", whole],
        env={"HOME": "/", "PATH": "/usr/bin:/bin", "WAYPOINT_KEY": "key"},
        capture_output=True,
        check=True,
    )
    listing = parse_listing((folder / "listing").read_bytes().decode(errors="replace"))
    shell = parse_shell((folder / "shell").read_text(), "/", None, listing=listing)
    return shell, done.stdout.decode(errors="replace")


STATE = r"""
umask 027; export OUT='two
lines' TOKEN=t0k; plain='q"$`\'; bytes=$'\x01\xff'
declare -a list=(one 'two three' [7]=x); declare -ri number=5
declare -A map=(["k y"]='v w' [z]=$'a\nb'); status=mine; where=here
greet() { local x=1; cat <<X
}
declare -x FAKE="1"
other ()
X
}
other() { :; }; export -f other
alias ll='ls -l' q="echo 'x'" '..=cd ..'
shopt -s globstar; shopt -u sourcepath; set -o noclobber -o pipefail -u
trap 'rm -f "/tmp/a b"' EXIT; trap '' INT; trap 'a
b' USR1; trap 'true' DEBUG; trap 'echo err' ERR
PS1='mine> '; HISTIGNORE=ls
PROMPT
"""


def test_what_the_integration_sets_at_the_first_prompt_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first, _ = bash(tmp_path / "first", "PROMPT")
    second, _ = bash(tmp_path / "second", "PROMPT\nPROMPT")
    assert compare_variables(first, second) == ()


def test_all_of_a_real_shell_is_listed(tmp_path: Path) -> None:
    shell, _ = bash(tmp_path, STATE)
    listing = shell.listing
    assert listing
    assert (shell.exported["OUT"], shell.exported["TOKEN"]) == ("two\nlines", "t0k")
    values = {name: (one.flags, one.value) for name, one in listing.variables.items()}
    assert values["plain"] == ("", 'q"$`\\')
    assert values["list"] == ("a", '([0]="one" [1]="two three" [7]="x")')
    assert values["number"] == ("ir", "5")
    assert values["map"][0] == "A"
    assert '["k y"]="v w"' in values["map"][1]
    assert values["status"] == ("", "mine"), "a local variable of the integration does not hide it"
    assert values["where"] == ("", "here")
    assert values["PS1"] == ("", "mine> "), "without what the integration added"
    assert "WAYPOINT_SESSION" not in values
    assert values["HISTIGNORE"] == ("", "ls")
    assert not {name for name in values if name.startswith("__waypoint")} | {"RANDOM", "PIPESTATUS"} & set(
        values
    )
    assert "FAKE" not in values
    assert set(listing.functions) == {"greet", "other"}
    assert listing.aliases == {"ll": "ls -l", "q": "echo 'x'", "..": "cd .."}
    assert {"globstar", "noclobber", "pipefail", "nounset"} <= set(listing.options)
    assert not {"sourcepath", "xtrace"} & set(listing.options)
    assert listing.umask == "0027"
    assert listing.traps == {
        "EXIT": 'rm -f "/tmp/a b"', "SIGINT": "", "SIGUSR1": "a\nb", "DEBUG": "true", "ERR": "echo err",
    }  # fmt: skip


def test_the_report_leaves_the_shell_as_it_is(tmp_path: Path) -> None:
    _, printed = bash(
        tmp_path,
        r"""PROMPT
RANDOM=42; first=$RANDOM; RANDOM=42; set -- a 'b c'
seen=$(compgen -v | grep -v '^_\|^BASH\|^PIPESTATUS\|^seen'); before=$(set -o; shopt; trap -p; umask)
(exit 7) | true; PROMPT
echo "$# $2 $((RANDOM == first)) $(history | grep -c 'declar[e] -p')"
[[ $before == "$(set -o; shopt; trap -p; umask)" ]] && echo same
diff <(echo "$seen") <(compgen -v | grep -v '^_\|^BASH\|^PIPESTATUS\|^seen') | grep '^[<>]'
""",
    )
    assert printed.splitlines() == ["2 b c 1 0", "same", "> before"]


def test_what_changed_in_a_real_shell(tmp_path: Path) -> None:
    old, _ = bash(
        tmp_path,
        "X=1; export Y=1; Z=z _hook=1; list=(a b); f() { echo 1; }; g() { :; }; alias l=ls"
        "; umask 022\nPROMPT",
    )
    new, _ = bash(
        tmp_path,
        "export X=1; export Y=2; _hook=2; list=(a c); f() { echo 2; }; h() { :; }; alias l='ls -a'; umask 077"
        "; shopt -s nullglob; trap 'bye' EXIT; readonly N=1\nPROMPT",
    )
    live = compare_facts(Facts(shell=old), Facts(shell=new))
    assert [(line.sign, line.text, line.detail) for line in shell_lines(live)] == [
        ("+", "N", "1 · not exported"),
        ("~", "X", "exported now"),
        ("~", "Y", "1 → 2"),
        ("-", "Z", ""),
        ("~", "list", '([0]="a" [1]="b") → ([0]="a" [1]="c") · not exported'),
        ("+", "h()", ""),
        ("-", "g()", ""),
        ("~", "f()", "another body"),
        ("~", "alias l", "ls → ls -a"),
        ("~", "option nullglob", "on"),
        ("~", "umask", "0022 → 0077"),
        ("+", "trap EXIT", "bye"),
    ]
    assert shell_summary(live) == (
        "5 variables · 3 functions · 1 alias · 1 option · 1 trap · umask 0022 → 0077"
    )
    assert summarize_shell(live)[1:] == [
        "~X, ~Y and 3 more variables",
        "+h(), -g(), ~f()",
        "~alias l, nullglob on and 2 more shell settings",
    ]
    assert compare_facts(Facts(shell=new), Facts(shell=new)).empty


def test_a_shell_that_does_not_tell_is_not_compared_by_what_it_did_not_tell() -> None:
    told = ShellFact(exported={"A": "1"}, listing=ShellListing(aliases={"l": "ls"}, umask="022"))
    silent = ShellFact(exported={"A": "1"})
    assert compare_facts(Facts(shell=told), Facts(shell=silent)).empty
    assert compare_facts(Facts(shell=silent), Facts(shell=told)).empty


def test_long_values_are_cut_around_the_difference() -> None:
    path = ":".join(f"/usr/local/folder{number}/bin" for number in range(12))
    before, after = cut_around(path, path.replace("folder9", "other"), 60)
    assert "folder9/bin" in before
    assert "other/bin" in after
    assert before.startswith("…")
    assert max(len(before), len(after)) <= 60
    assert cut_around(path, f"/new:{path}", 60)[1].startswith("/new:/usr")
    assert cut_around(path, f"{path}:/new", 60)[1].endswith(":/new")
    assert cut_around("a", "b", 60) == ("a", "b")


def test_secrets_in_variables_that_are_not_exported_are_redacted(tmp_path: Path) -> None:
    shell, _ = bash(tmp_path, "API_TOKEN=vW8kQ2mZx7Lp; keys=1; trap 'curl -u x:vW8kQ2mZx7Lp' EXIT\nPROMPT")
    live = compare_facts(Facts(shell=ShellFact(listing=ShellListing())), Facts(shell=shell))
    clean, count = Redactor.for_variables(shell.values).redact_json(msgspec.to_builtins(live))
    assert "vW8kQ2mZx7Lp" not in str(clean)
    assert count >= 2


# ---- processes and ports -------------------------------------------------------------------------


def fact(pid: int, command: str, *, stopped: bool = False) -> ProcessFact:
    return ProcessFact(pid=pid, parent=1, command=command, uid=0, rss_bytes=10, stopped=stopped)


def port(number: int, pid: int | None, command: str | None = None) -> PortFact:
    return PortFact(protocol="tcp", address="0.0.0.0", port=number, pid=pid, command=command)


def test_processes_ports_and_shell_are_compared() -> None:
    old = Facts(
        processes=(fact(3, "bash"), fact(7, "node a.js")),
        ports=(port(80, None),),
        shell=ShellFact(cwd="/a", exported={"X": "1", "SHLVL": "1"}, functions=("f",)),
    )
    new = Facts(
        processes=(fact(3, "bash"), fact(8, "node b.js")),
        ports=(port(81, None),),
        shell=ShellFact(cwd="/b", exported={"X": "2", "SHLVL": "2"}, functions=("g",)),
    )
    found = compare_facts(old, new)
    assert [p.command for p in found.started] == ["node b.js"]
    assert [p.command for p in found.ended] == ["node a.js"]
    assert found.kept == 1
    assert [p.port for p in found.opened] == [81]
    assert [p.port for p in found.closed] == [80]
    assert found.cwd == ("/a", "/b")
    assert [(v.name, v.before, v.after) for v in found.variables] == [("X", "1", "2")]
    assert (found.functions_added, found.functions_removed) == (("g",), ("f",))
    assert not found.empty
    assert compare_facts(old, old).empty


FLASK = "/usr/bin/python3 /usr/bin/flask run"


def test_a_restart_is_one_thing() -> None:
    old = Facts(processes=(fact(7, FLASK), fact(9, "vim x")), ports=(port(5000, 7, FLASK),))
    new = Facts(processes=(fact(12, FLASK), fact(9, "vim x")), ports=(port(5000, 12, FLASK),))
    live = compare_facts(old, new)
    assert summarize_processes(live) == ["flask :5000 restarted"]
    assert (live.started, live.ended, live.opened, live.closed, live.moved) == ((), (), (), (), ())
    assert [(line.sign, line.text, line.detail) for line in process_lines(live)] == [
        ("~", "flask :5000", f"restarted · pid 7 → 12 · {FLASK}")
    ]
    assert not live.empty


def test_of_several_workers_only_those_that_ended_were_restarted() -> None:
    old = Facts(processes=(fact(3, "gunicorn: worker"), fact(4, "gunicorn: worker"), fact(5, "make")))
    new = Facts(processes=tuple(fact(pid, "gunicorn: worker") for pid in (4, 6, 7)))
    live = compare_facts(old, new)
    assert summarize_processes(live) == ["gunicorn restarted", "gunicorn started", "make ended"]
    assert live.kept == 1


def test_a_port_that_moved_to_another_process_is_told() -> None:
    old = Facts(processes=(fact(7, FLASK),), ports=(port(5000, 7, FLASK),))
    new = Facts(processes=(fact(8, "node app.js"),), ports=(port(5000, 8, "node app.js"),))
    live = compare_facts(old, new)
    assert summarize_moves(live) == [":5000 flask → app.js"]
    assert [(line.sign, line.text, line.detail) for line in port_lines(live)] == [
        ("~", "tcp 0.0.0.0:5000", "flask → app.js · pid 7 → 8")
    ]
    only_port = LiveDifference(moved=live.moved)
    assert not only_port.empty


def test_ports_of_programs_that_went_on_are_told() -> None:
    web = fact(7, "node app.js")
    old = Facts(processes=(web,), ports=(port(3000, 7, "node app.js"),))
    new = Facts(processes=(web,), ports=(port(3001, 7, "node app.js"), port(3002, 7, "node app.js")))
    assert summarize_processes(compare_facts(old, new)) == [
        "app.js opened :3001, :3002",
        "app.js closed :3000",
    ]
    # Of those that started or were restarted it is told with them.
    started = Facts(
        processes=(web, fact(8, FLASK)), ports=(port(3000, 7, "node app.js"), port(5000, 8, FLASK))
    )
    assert summarize_processes(compare_facts(old, started)) == ["flask :5000 started"]
    restarted = Facts(processes=(fact(9, "node app.js"),), ports=(port(3001, 9, "node app.js"),))
    assert summarize_processes(compare_facts(old, restarted)) == ["app.js :3001 restarted"]


def test_values_that_cannot_be_seen_are_quoted() -> None:
    def shown(before: str | None, after: str) -> str:
        change = VariableChange(name="IFS", before=before, after=after, exported=True)
        return next(line.detail for line in shell_lines(LiveDifference(variables=(change,))))

    assert shown(" \t\n", ",") == "$' \\t\\n' → ,"
    assert shown("1", "") == "1 → ''"
    assert shown(None, "a ") == "'a '"
    assert shown(None, "a b") == "a b"


def test_stopped_and_continued() -> None:
    old = Facts(processes=(fact(7, "make"), fact(8, "vim", stopped=True)))
    new = Facts(processes=(fact(7, "make", stopped=True), fact(8, "vim")))
    live = compare_facts(old, new)
    assert summarize_processes(live) == ["make stopped", "vim continued"]
    assert not live.empty


def test_a_program_that_writes_its_command_line_anew_is_the_same() -> None:
    old = Facts(processes=(fact(7, "postgres: a b [local] idle"),))
    new = Facts(processes=(fact(7, "postgres: a b [local] SELECT"),))
    assert compare_facts(old, new).empty
    assert [one.pid for one in went_on(old, new)] == [7]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 -c import time; time.sleep(9)", "python3 -c"),
        ("/usr/bin/python3.11 -u -cprint(1)", "python3.11 -c"),
        ("python3 -W ignore -u app.py --port 1", "app.py"),
        ("python3 -X dev -m http.server 80", "http.server"),
        ("python3 -mhttp.server", "http.server"),
        ("python3", "python3"),
        ("python3 -", "python3"),
        ("node --require ./a.js -e setTimeout(x)", "node -e"),
        ("node --max-old-space-size=99 /srv/app.js", "app.js"),
        ("sh -c while true; do sleep 1; done", "sh -c"),
        ("bash -lc make", "bash -c"),
        ("bash -o pipefail /srv/run.sh x", "run.sh"),
        ("perl -e print", "perl -e"),
        ("nginx: worker process", "nginx"),
        ("bash /root/.pyenv/libexec/pyenv-exec python3 -m http.server", "pyenv"),
        ("bash /root/.pyenv/plugins/pyenv-virtualenv/bin/pyenv-sh-activate --quiet", "pyenv"),
        ("bash /root/pyenv-run.sh", "pyenv-run.sh"),
        ("/usr/bin/node --x app.js", "app.js"),
        ("python3 /usr/bin/flask run", "flask"),
        ("", "?"),
    ],
)
def test_the_name_of_a_program(command: str, name: str) -> None:
    assert program_name(command) == name


def test_nested_shells_are_found() -> None:
    commands = [
        "bash", "-bash", "/bin/zsh -l", "sh -i", "bash --norc -o vi", "busybox sh",
        "bash run.sh", "sh -c make", "bash -lc x", "bash --rcfile /dev/waypoint/bin/integration.bash", "vim",
        "busybox httpd",
    ]  # fmt: skip
    facts = Facts(processes=tuple(fact(pid, command) for pid, command in enumerate(commands)))
    assert [one.command for one in nested_shells(facts)] == commands[:6]


def test_what_went_on_is_named_as_not_compared() -> None:
    shell = fact(8, "bash --rcfile /dev/waypoint/bin/integration.bash")
    facts = Facts(processes=(fact(7, "redis-server *:6379"), shell))
    assert describe_not_compared(went_on(facts, facts), foreground=None, own_network=True) == [
        "memory of 1 process that went on (redis-server) may have changed"
    ]
    assert describe_not_compared([], foreground="make -j", own_network=False) == [
        "the shell is as it was at its last prompt; it runs make -j",
        "the session shares the ports of the host",
    ]


def test_words_of_a_redacted_pair() -> None:
    change = VariableChange(name="TOKEN", before="[redacted]", after="[redacted]")
    [line] = shell_lines(LiveDifference(variables=(change,)))
    assert line.detail == "[redacted] → another value"
    alias = SettingChange(kind="alias", name="l", before=None, after="ls")
    assert summarize_shell(LiveDifference(settings=(alias,)))[-1] == "+alias l"
