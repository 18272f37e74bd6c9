"""Three ways at once: forks a session three times, tries a command in each fork, keeps the first that works.

    sudo .venv/bin/python docs/examples/best_of_three.py

It is checked with `mypy --strict` (make lint), so it shows the types of the SDK, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import waypoint
from waypoint import aio


async def attempt(fork: aio.Session, command: str) -> waypoint.Result:
    """The result of a command in a fork."""
    return await fork.run(command, timeout=60)


async def first_that_works(name: str, commands: Sequence[str]) -> tuple[str, waypoint.Diff] | None:
    """The first command that exits with 0, and what it changed."""
    async with await aio.session(name) as session:
        point: aio.Checkpoint = await session.checkpoint("before the attempts")
        forks = await point.fork(len(commands))
        try:
            results = await asyncio.gather(*map(attempt, forks, commands))
            for fork, result in zip(forks, results, strict=True):
                if result.ok:
                    return result.command, await fork.diff()
            return None
        finally:
            await asyncio.gather(*(fork.remove() for fork in forks))


def main() -> None:
    try:
        winner = asyncio.run(
            first_that_works("best-of-three", ["false", "echo two > /srv/answer", "sleep 1"])
        )
    except waypoint.NotRoot as error:
        raise SystemExit(f"{error.message}: {error.hint}") from error
    with waypoint.session("best-of-three") as session:
        session.remove()
    if winner:
        command, changed = winner
        print(f"{command}: {changed.summary}")


if __name__ == "__main__":
    main()
