"""The verbs for agents: the MCP server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waypoint.cli.console import Console


def mcp(console: Console) -> int:
    from waypoint.mcp.server import serve  # its library is large: nobody else pays for it

    serve(console.client, console.session or "")
    return 0
