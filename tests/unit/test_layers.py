"""Imports point down only. The order is the one of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "waypoint"

LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ground", ("errors", "model", "home", "words", "api", "wire")),
    ("kernel", ("kernel",)),
    ("box", ("keeper", "box", "cells", "emulator", "screen", "recording", "terminal", "layers", "bases")),
    ("engine", ("engine",)),
    ("machine", ("archive", "provision", "doctor", "machine")),
    ("history", ("history",)),
    ("store", ("store",)),
    ("agent", ("agent", "policy")),
    ("text", ("text",)),
    (
        "core",
        (
            *("observe", "spares", "sessions", "trial", "outbound", "story", "journal", "gate"),
            *("transfer", "upkeep", "sharing", "core"),
        ),
    ),
    ("client", ("migrations", "agents", "answers", "client")),
    ("daemon", ("service", "carrying", "gating", "journaling", "storytelling", "doors", "inside", "daemon")),
    ("faces", ("mcp", "adapters", "hooks", "bench", "cli", "__main__")),
)
"""From the ground up: a layer may import itself and what stands before it."""

NOT_ALLOWED: dict[str, tuple[str, ...]] = {
    # The story is told from what was captured; it does not go and look.
    "history": ("kernel", "box", "engine", "machine"),
    "agent": ("kernel", "box", "engine", "machine"),
    # What a client knows is what travels.
    "client": ("kernel", "box", "engine", "machine", "history", "core"),
    # A face that reached around the client would have logic of its own.
    "faces": ("kernel", "box", "engine", "history", "core", "daemon"),
}

EXCEPT = {"history": ("kernel.files", "kernel.pool.deltas")}
"""Reading files of a snapshot, and what two of them do not share, is what the story is derived from."""

TOGETHER = {
    "veth": {"netlink", "flows"},
    "flows": {"netlink"},
    "pool": {"loop", "copytree"},
    "deltas": {"files"},
    "placement": {"files", "copytree"},
}
"""Mechanisms of the kernel know nothing of each other, but for these and the system calls."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def layer_of(name: str) -> str | None:
    for layer, members in LAYERS:
        if name.partition(".")[0] in members:
            return layer
    return None


def imports(path: Path) -> set[str]:
    """The modules of ours that a module imports, wherever in it, but not those only types need."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "waypoint":
            inside = node.module.removeprefix("waypoint").lstrip(".")
            for alias in node.names:
                deeper = f"{inside}.{alias.name}".lstrip(".")
                is_module = (SOURCE / (deeper.replace(".", "/") + ".py")).exists()
                found.add(deeper if is_module else inside)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("waypoint.") for a in node.names if a.name.startswith("waypoint.")}
    return found - {""}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    name = name_of(path)
    if name in ("", "__init__"):
        return
    mine = layer_of(name)
    assert mine, f"{name} is in no layer: put it into one here and in docs/architecture.md"
    order = [layer for layer, _ in LAYERS]
    for imported in imports(path):
        theirs = layer_of(imported)
        assert theirs, f"{name} imports {imported}, which is in no layer"
        assert order.index(theirs) <= order.index(mine), f"{name} ({mine}) imports {imported} ({theirs}): up"
        allowed = imported in EXCEPT.get(mine, ()) or theirs not in NOT_ALLOWED.get(mine, ())
        assert allowed, f"{name} ({mine}) must not know {imported} ({theirs})"
        if mine == theirs == "kernel":
            short, other = name.split(".")[-1], imported.split(".")[-1]
            known = {"syscalls", *TOGETHER.get(short, set())}
            assert other in known, f"{name} imports {imported}: mechanisms know nothing of each other"


def test_the_public_surface_is_what_it_says() -> None:
    import waypoint

    assert waypoint.__all__ == sorted(waypoint.__all__)
    for name in waypoint.__all__:
        assert getattr(waypoint, name) is not None
    with pytest.raises(AttributeError):
        waypoint.nonsense  # noqa: B018
