"""Hooks of coding agents: they record what the agent does, take points, and apply the policy.

**events** is what the agents have in common: a hook event, and the protocol of an agent. **claude** and
**codex** translate the formats of those agents. **handler** does the work of a hook. **routes** reach the
session, through the daemon or from inside. **config** adds hooks to an agent's own files and removes them.
"""
