"""The SDK: sessions, checkpoints and forks from Python.

It knows what travels (errors, model, api, text) and nothing of the daemon's side.
"""
