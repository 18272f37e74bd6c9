"""The tools of the MCP server by subject. server.py lists the groups."""
