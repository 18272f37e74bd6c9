"""Coding agents: what their hooks tell becomes points and a record; the policy speaks through their prompts.

`events` is what all agents have in common, `claude` and `codex` are their formats, `handler` does
what a hook is there for, `config` writes hooks into an agent's own files and takes them out again.
"""
