"""Hostile boxes: programs that try from inside a session what must not work, and what became of it.

Each module has attacks of one kind, registered with `attack`. `python -m tests.redteam` (`make redteam`) runs
all of them and writes the table into docs/security.md; tests/integration/test_redteam.py runs the quick ones.
"""
