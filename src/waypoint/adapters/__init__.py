"""Adapters: other frameworks' interfaces, filled by sessions.

An adapter is one module with the name of its framework. It uses the SDK like any other client. It imports its
framework, so nothing else may import it: the framework loads it by name (an entry point in pyproject.toml).
Each is an optional extra (`waypoint[inspect]`), and `make adapters` tests it with the real package in a
virtual environment of its own.
"""
