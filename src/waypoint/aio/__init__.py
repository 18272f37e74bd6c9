"""The SDK for asyncio: `waypoint` method by method, to be awaited.

    >>> import asyncio
    >>> from waypoint import aio
    >>> async def main():
    ...     async with await aio.session("sdk-aio") as s:
    ...         first, second = await asyncio.gather(s.run("echo one"), s.screen())
    ...     await s.remove()
    ...     return first.output
    >>> asyncio.run(main())
    'one\\n'

agent, checkpoint, client and session are the source of the modules of the same names in client/:
`python -m waypoint.aio.generate` writes those.
"""

from __future__ import annotations

from waypoint.aio.agent import Restored, Resumed, Tasks
from waypoint.aio.checkpoint import Checkpoint
from waypoint.aio.client import Bases, Client, Daemon, session, sessions
from waypoint.aio.program import Program, Terminal
from waypoint.aio.session import Session
from waypoint.client.result import Result

__all__ = [
    "Bases",
    "Checkpoint",
    "Client",
    "Daemon",
    "Program",
    "Restored",
    "Result",
    "Resumed",
    "Session",
    "Tasks",
    "Terminal",
    "session",
    "sessions",
]
