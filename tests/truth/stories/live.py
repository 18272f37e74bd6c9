"""Processes, ports and the state of the shell."""

from __future__ import annotations

from tests.truth.story import Step, Story, story

_WAIT = "until (: </dev/tcp/127.0.0.1/{0}) 2>/dev/null; do sleep 0.05; done"
_SLEEP = "sleep {0} & until grep -q ^sleep /proc/$!/cmdline; do :; done"
_PORTS = """import signal, socket
own = [socket.create_server(("", 8301))]
def more(*_):
    own.extend(socket.create_server(("", port)) for port in (8302, 8303))
def fewer(*_):
    own.pop(1).close()
signal.signal(signal.SIGUSR1, more)
signal.signal(signal.SIGUSR2, fewer)
while True:
    signal.pause()
"""
_LISTENS = """until grep -q "$(printf ':%04X 00000000:0000 0A' {0})" /proc/net/tcp; do sleep 0.05; done"""
SERVE = "python3 -m http.server {0} >/dev/null 2>&1 & " + _WAIT

STORIES: tuple[Story, ...] = (
    story(
        "servers start and end",
        SERVE.format(8001),
        f"{SERVE.format(8002)}; {_SLEEP.format(1000)}",
        "kill %1; wait %1 2>/dev/null; true",
        f"{SERVE.format(8001)}; kill %2; wait %2 2>/dev/null; true",
        "kill $(jobs -p); wait 2>/dev/null; true",
    ),
    story(
        "a restart, a stop and a moved port",
        SERVE.format(8001),
        f"kill %1; wait %1 2>/dev/null; {SERVE.format(8001)}",
        f"{_SLEEP.format(500)}; kill -STOP $!; until grep -q 'State:.T' /proc/$!/status; do :; done",
        "kill -CONT $!; until grep -q 'State:.S' /proc/$!/status; do :; done",
        'kill $(jobs -p); wait 2>/dev/null; python3 -c \'import socket; s = socket.create_server(("", 8001))\nwhile 1:'
        " s.accept()[0].close()' & " + _WAIT.format(8001),
        "kill $(jobs -p); wait 2>/dev/null; true",
    ),
    story(
        "ports of a program that goes on",
        f"mkdir /srv/w && cd /srv/w && cat > ports.py <<'END'\n{_PORTS}END\n"
        f"python3 ports.py & {_LISTENS.format(8301)}",
        f"kill -USR1 $!; {_LISTENS.format(8303)}",
        f"kill -USR2 $!; {_LISTENS.format(8302).replace('until', 'while')}",
        f"kill $!; wait 2>/dev/null; python3 ports.py & {_LISTENS.format(8301)}; kill -USR1 $!; {_LISTENS.format(8303)}",
        "kill $!; wait 2>/dev/null; true",
    ),
    story(
        "a redis server",
        "mkdir /srv/r && cd /srv/r && redis-server --port 6400 --save '' --daemonize yes >/dev/null"
        " && until redis-cli -p 6400 ping >/dev/null 2>&1; do sleep 0.05; done",
        "redis-cli -p 6400 set a 1 >/dev/null && redis-cli -p 6400 set b 2 >/dev/null",
        "redis-cli -p 6400 save >/dev/null && redis-cli -p 6400 del a >/dev/null",
        Step("redis-cli -p 6400 shutdown nosave; sleep 0.2", fails=True),
        needs=("redis-server", "redis-cli"),
    ),
    story(
        "a shell inside the session's shell",
        "cd /srv; export COLOUR=blue; plain=1",
        Step(
            types="bash --norc --noprofile\n: > /tmp/typed\n",
            nested=True,
            name="inside",
            intent="a shell inside",
        ),
        Step(
            types="cd /etc; COLOUR=green; echo 1 > /srv/one; : > /tmp/typed\n",
            nested=True,
            name="deeper",
            intent="another folder",
        ),
        Step(types="exit\n: > /tmp/typed\n", intent="out of it"),
        Step(types="sh\n: > /tmp/typed\n", nested=True, intent="another shell"),
        Step(types="exit\n: > /tmp/typed\n", restore="deeper", intent="back and out"),
        "plain=2; echo 2 > two",
    ),
    story(
        "the state of the shell",
        "export COLOUR=blue; plain=1; alias ll='ls -l'; greet() { echo hello; }; umask 027",
        "COLOUR=green; plain=2; alias ll='ls -la'; greet() { echo goodbye; }; umask 022; shopt -s nullglob",
        "declare -a list=(a b c); declare -A map=([x]=1); trap 'echo out' USR1; set -o noclobber; cd /etc",
        "unset COLOUR plain; unalias ll; unset -f greet; list+=(d); map[y]=2; trap - USR1; set +o noclobber",
        "export LONG=$(printf 'x%.0s' {1..300}); export MULTI=$'one\\ntwo'; declare -i number=7; declare -r fixed=1",
        "export LONG=${LONG}y; MULTI=$'one\\nthree'; shopt -u nullglob; cd /",
    ),
)
