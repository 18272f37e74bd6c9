#!/bin/sh
# A story of an agent, told with the command line: story.sh SESSION. See story.py.
set -eu
export WAYPOINT_ACTOR=agent WAYPOINT_SESSION="$1"

waypoint new "$1"
waypoint record user 'write a greeting and test it'
waypoint task add 'write it' 'test it'

waypoint task start 'write it'
waypoint exec "mkdir -p /srv/greet && cd /srv/greet && echo 'echo hello' > greet.sh"
waypoint task done 'write it'
waypoint checkpoint 'the greeting is written' --name written --verify 'sh greet.sh' --wait

waypoint task start 'test it'
waypoint exec 'rm greet.sh'
waypoint diff written || [ $? = 1 ]
plan=$(waypoint preview written --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["plan"]["id"])')
waypoint restore --plan "$plan"

waypoint record assistant 'that went wrong; two ways from here'
waypoint effect 'told the team about it' --target 'the team' --key told-1
waypoint fork written -n 2 --name "$1-try"
waypoint exec -s "$1-try-1" "echo 'echo hello world' > greet.sh"
waypoint exec -s "$1-try-2" "echo 'exit 3' > greet.sh"
for fork in "$1-try-1" "$1-try-2"; do
    waypoint checkpoint -s "$fork" 'another way'
    waypoint verify -s "$fork" @ 'sh greet.sh' || [ $? = 1 ]
done
