"""A story of an agent, told over MCP: python story_mcp.py SESSION

What a model would call, one tool after the other. See story.py.
"""

import os
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult


async def main(name: str) -> None:
    server = StdioServerParameters(
        command="waypoint", args=["mcp", "--all", "-s", name], env=dict(os.environ)
    )
    async with Client(stdio_client(server)) as client:

        async def call(tool: str, /, **arguments: Any) -> Any:
            found = await client.call_tool(tool, arguments)
            assert isinstance(found, CallToolResult)
            print(*(getattr(part, "text", "") for part in found.content))
            assert not found.is_error
            return (found.meta or {})["waypoint/data"]

        await call("new", name=name)
        await call("record", what="user", content="write a greeting and test it")
        await call("task", action="add", titles=["write it", "test it"])

        await call("task", action="start", task="write it")
        await call("run", command="mkdir -p /srv/greet && cd /srv/greet && echo 'echo hello' > greet.sh")
        await call("task", action="done", task="write it")
        await call("checkpoint", intent="the greeting is written", name="written", verify="sh greet.sh")

        await call("task", action="start", task="test it")
        await call("run", command="rm greet.sh")
        await call("diff", old="written")
        plan = await call("preview", ref="written")
        await call("restore", plan=plan["plan"])

        await call("record", what="assistant", content="that went wrong; two ways from here")
        await call("effect", what="told the team about it", target="the team", key="told-1")
        a, b = (await call("fork", ref="written", n=2, name=f"{name}-try"))["sessions"]
        await call("run", session=a, command="echo 'echo hello world' > greet.sh")
        await call("run", session=b, command="echo 'exit 3' > greet.sh")
        for fork in (a, b):
            await call("checkpoint", session=fork, intent="another way")
            await call("verify", session=fork, ref="@", command="sh greet.sh")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
