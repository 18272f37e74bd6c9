"""Adapters are tested in the real framework, each in a virtual environment of its own (`make adapters`)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.conftest import engine, home, pytest_configure

__all__ = ["engine", "home", "pytest_configure"]

_THREADS = 4


@pytest.fixture(scope="module")
async def loop_threads() -> None:
    """The loop of asyncio and its threads are there before the first test, which then leaves none."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    together = threading.Barrier(_THREADS)
    await asyncio.gather(*(asyncio.to_thread(together.wait, 20) for _ in range(_THREADS)))
