"""What all tests share: the very test that leaves something behind fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.leaks import Watch


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """What belongs to this run of the tests. A fixture that makes a home adds it."""
    return Watch(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def no_leaks(watch: Watch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Looks before and after each test: after the fixtures of its module began, and before they end."""
    before = watch.look()
    yield
    if not request.node.get_closest_marker("leaks"):
        left = watch.leaks(before)
        assert not left, "left behind:\n" + "\n".join(left)
