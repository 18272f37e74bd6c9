"""Malformed input for everything that reads what others wrote.

A target builds one input from a seeded source of randomness and gives it to a reader. The reader may accept
it or refuse it with the errors that it declares. Any other exception is a finding, and so is a reader that
does not return. `python -m tests.fuzz` runs a campaign; tests/unit/test_fuzz.py runs a small part of it.
"""
