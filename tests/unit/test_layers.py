"""Imports point down only. A package is a layer or a room of one; the folders are the list."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "waypoint"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "model", "home", "api"),
    ("kernel",),
    ("box", "terminal", "bases"),
    ("engine",),
    ("machine",),
    ("history",),
    ("store",),
    ("policy", "agent"),
    ("text",),
    ("core",),
    ("client", "aio", "daemon"),
    ("backends", "explore"),
    ("mcp", "hooks", "bench", "adapters", "cli"),
    ("__main__",),
)
"""From the ground up: a room may import rooms of its own layer and of those before it."""

NOT_KNOWN: dict[str, tuple[str, ...]] = {
    # What a point means is derived from what was captured; nothing here goes and looks.
    "history": ("kernel", "box", "terminal", "bases", "engine", "machine"),
    "policy": ("kernel", "box", "terminal", "bases", "engine", "machine"),
    "agent": ("kernel", "box", "terminal", "bases", "engine", "machine"),
    "text": ("kernel", "box", "terminal", "bases", "engine", "machine"),
    # A client knows what travels.
    "client": (
        *("kernel", "box", "terminal", "bases", "engine", "machine", "history", "store", "policy", "agent"),
        *("core", "daemon"),
    ),
    "daemon": ("client", "aio"),
}
for face in ("backends", "explore", "mcp", "hooks", "bench", "adapters", "cli"):
    # A face that reached around the client would have logic of its own.
    NOT_KNOWN[face] = (
        *("kernel", "box", "terminal", "bases", "engine", "history", "store", "policy", "agent"),
        *("core", "daemon"),
    )

EXCEPT: dict[str, tuple[str, ...]] = {
    # Reading files of a snapshot, and what two of them do not share, is what history is derived from.
    "history": ("kernel.files", "kernel.pool.deltas", "kernel.pool.subvolume"),
    # Taking escape sequences out of a text looks at nothing else.
    "text": ("terminal.escapes",),
    # A file that they write is replaced as a whole. It is the one mechanism that loads nothing else.
    "client": ("kernel.atomic",),
    "hooks": ("kernel.atomic",),
    # Locks have one order for the whole daemon.
    "policy": ("kernel.locks",),
    "agent": ("kernel.locks",),
}

TOGETHER = {
    "network.rtnetlink": {"network.netlink"},
    "network.flows": {"network.netlink"},
    "network.firewall": {"network", "network.flows", "network.netlink"},
    "network.sockets": {"network.netlink", "network.rtnetlink"},
    "network.resolver": {"network", "network.sockets"},
    "network.veth": {
        *("network", "network.firewall", "network.flows", "network.netlink", "network.resolver"),
        "network.rtnetlink",
    },
    "pool.btrfs": {"pool.protocol", "pool.quota", "pool.subvolume", "copytree"},
    "pool.folder": {"pool.btrfs", "pool.protocol", "copytree"},
    "pool.image": {"pool.btrfs", "pool.loop", "pool.protocol", "atomic"},
    "pool.holders": {"mounts"},
    "seals": {"atomic"},
    "pool.lifecycle": {
        *("pool.btrfs", "pool.folder", "pool.holders", "pool.image", "pool.loop", "pool.protocol"),
        "pool.quota",
        *("homes", "mounts"),
    },
    "homes": {"atomic", "mounts", "overlay", "processes"},
    "cgroups": {"mounts", "memory"},
    "sandbox": {"confinement"},
    "pool.deltas": {"files", "pool.subvolume"},
    "pool.extents": {"pool.subvolume"},
    "pool.subvolume": {"pool.protocol"},
    "pool.quota": {"pool.protocol", "pool.subvolume"},
    "placement": {"files", "copytree", "userns"},
    "processes": {"userns"},
}
"""Mechanisms of the kernel know nothing of each other, but for these and the system calls."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def room_of(name: str) -> str:
    return name.partition(".")[0]


def rank_of(room: str) -> int:
    return next(rank for rank, rooms in enumerate(LAYERS) if room in rooms)


def imports(path: Path) -> set[str]:
    """The modules of ours that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "waypoint":
            package = node.module.removeprefix("waypoint").lstrip(".")
            for alias in node.names:
                deeper = f"{package}.{alias.name}".lstrip(".")
                place = SOURCE / deeper.replace(".", "/")
                is_module = place.with_suffix(".py").exists() or (place / "__init__.py").exists()
                found.add(deeper if is_module else package)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("waypoint.") for a in node.names if a.name.startswith("waypoint.")}
    return found - {""}


def test_every_folder_is_a_room_of_one_layer() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    listed = [room for layer in LAYERS for room in layer]
    assert len(listed) == len(set(listed))
    assert rooms <= set(listed), f"in no layer: {sorted(rooms - set(listed))}"
    top_level = {path.stem for path in SOURCE.glob("*.py")}
    assert top_level == {"__init__", "__main__", "errors", "model", "home"}


def test_every_room_says_what_it_is_for() -> None:
    for package in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(package.read_text())), f"{package} has no docstring"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    name = name_of(path)
    if name == "__init__":
        return
    mine = room_of(name)
    for imported in imports(path):
        theirs = room_of(imported)
        assert rank_of(theirs) <= rank_of(mine), f"{name} imports {imported}: up"
        allowed = imported in EXCEPT.get(mine, ()) or theirs not in NOT_KNOWN.get(mine, ())
        assert allowed, f"{name} must not know {imported}"
        if mine == theirs == "kernel":
            short, other = name.removeprefix("kernel."), imported.removeprefix("kernel.")
            known = {"syscalls", "locks", short, *TOGETHER.get(short, set())}
            assert other in known, f"{name} imports {imported}: mechanisms know nothing of each other"


def test_the_public_surface_is_what_it_says() -> None:
    import waypoint
    from waypoint import errors

    assert waypoint.__all__ == sorted(waypoint.__all__)
    for name in waypoint.__all__:
        assert getattr(waypoint, name) is not None
    for name in [*vars(errors)]:
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.WaypointError):
            assert getattr(waypoint, name) is kind, "every error that a user meets can be named"
    with pytest.raises(AttributeError):
        waypoint.nonsense  # noqa: B018
