"""What a checkpoint observed, and what happened between two of them."""

from __future__ import annotations

from waypoint.api.difference import PortFact, ProcessFact
from waypoint.history.facts import Facts, ShellFact, compare_facts, parse_shell

LISTING = """declare -x HOME="/root"
declare -x MULTI="one
two"
declare -x EMPTY
declare -x ODD=$'tab\\there'
declare -x QUOTED="a \\"b\\" \\$c"
declare -f __waypoint_begin
declare -f deploy
alias ll='ls -l'
alias q='echo '\\''x'\\'''
"""


def test_the_shell_s_own_listing_is_read_back() -> None:
    shell = parse_shell(LISTING, "/srv", None)
    assert shell.exported == {
        "HOME": "/root",
        "MULTI": "one\ntwo",
        "EMPTY": "",
        "ODD": "tab\there",
        "QUOTED": 'a "b" $c',
    }
    assert shell.functions == ("deploy",)
    assert shell.aliases == {"ll": "ls -l", "q": "echo 'x'"}
    assert shell.cwd == "/srv"


def test_garbage_in_the_listing_is_no_error() -> None:
    assert parse_shell("declare -x A='\x00\ndeclare -x\nalias", "/", None).cwd == "/"


def fact(pid: int, command: str) -> ProcessFact:
    return ProcessFact(pid=pid, parent=1, command=command, uid=0, rss_bytes=10)


def test_processes_ports_and_shell_are_compared() -> None:
    old = Facts(
        processes=(fact(3, "bash"), fact(7, "node a.js")),
        ports=(PortFact(protocol="tcp", address="0.0.0.0", port=80),),
        shell=ShellFact(cwd="/a", exported={"X": "1", "SHLVL": "1"}, functions=("f",)),
    )
    new = Facts(
        processes=(fact(3, "bash"), fact(8, "node b.js")),
        ports=(PortFact(protocol="tcp", address="0.0.0.0", port=81),),
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
