"""Coding agents: what their hooks tell becomes points and a record; the policy speaks through their prompts.

`happenings` is what all agents have in common, `claude` and `codex` are their formats, `answering` does
what a hook is there for, `configuration` writes hooks into an agent's own files and takes them out again.
"""
