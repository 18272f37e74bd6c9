"""A story of an agent, told with the SDK: python story.py SESSION

It plans, works, checks, breaks something, goes back, and tries two ways at once.
story.sh and story_mcp.py tell the same one with the command line and over MCP.
"""

import sys

import waypoint


def main(name: str) -> None:
    s = waypoint.session(name, actor="agent")
    s.record("user", "write a greeting and test it")
    s.tasks.add("write it", "test it")

    s.tasks.start("write it")
    s.run("mkdir -p /srv/greet && cd /srv/greet && echo 'echo hello' > greet.sh").check()
    s.tasks.done("write it")
    good = s.checkpoint("the greeting is written", name="written", verify="sh greet.sh", wait=True)

    s.tasks.start("test it")
    s.run("rm greet.sh")
    print(s.diff(good))
    plan = s.preview(good)
    print(plan)
    s.restore(plan=plan)

    s.record("assistant", "that went wrong; two ways from here")
    s.effect("told the team about it", target="the team", key="told-1")
    a, b = s.fork(2, ref="written", name=f"{name}-try")
    a.run("echo 'echo hello world' > greet.sh").check()
    b.run("echo 'exit 3' > greet.sh").check()
    for fork in (a, b):
        point = fork.checkpoint("another way")
        verdict = point.verify("sh greet.sh")
        print(fork.name, verdict.state if verdict else "?")


if __name__ == "__main__":
    main(sys.argv[1])
