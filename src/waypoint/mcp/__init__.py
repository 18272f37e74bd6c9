"""The MCP server: Waypoint's verbs as tools for a model, over stdin and stdout.

A face like the command line: it talks to the client and holds no truth. It may be killed at any moment and
started again. `server` puts it together, `tools` has the verbs, `pages` sizes their answers.
"""
