"""Adapters are tested in the real framework, each in a virtual environment of its own (`make adapters`)."""

from tests.integration.conftest import engine, home, pytest_configure

__all__ = ["engine", "home", "pytest_configure"]
