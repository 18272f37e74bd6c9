"""Bases: root file systems that were imported, for sessions to start from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.api.machine import BaseImport, BaseLs, BaseRm
from waypoint.api.sessions import Removed
from waypoint.cli import render
from waypoint.cli.spec import argument, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console

_NAME = argument("name", metavar="NAME", help="the name of the base")


@verb(
    "base import",
    "import a root file system, for `waypoint new --base NAME`",
    _NAME,
    argument(
        "file",
        metavar="FILE",
        help="a tar, a `docker export`, a `docker save` or an OCI archive, or a folder",
    ),
    examples=("docker export box > box.tar; waypoint base import box box.tar",),
)
def base_import(console: Console) -> int:
    name, file = console.arguments.name, console.arguments.file
    if not os.path.exists(file):
        raise errors.NotFound(f"no such file: {file}", hint="name a tar, or the output of `docker save`")
    console.prepare()

    with console.progress(f"importing {os.path.basename(file)}") as update:

        def on_event(event: Any) -> None:
            if "progress" in event:
                update(render.shown(event["progress"]))

        result = console.transport.ask(BaseImport(name=name, file=os.path.abspath(file)), on_event=on_event)
    console.result(result, name)
    for warning in result.base.warnings:
        console.say(render.shown(warning))
    console.hint(f"waypoint new --base {name}   starts a session on it")
    return 0


@verb("base ls", "list the imported bases", examples=("waypoint base ls",))
def base_ls(console: Console) -> int:
    result = console.send(BaseLs(), "waiting for the daemon")
    rows = [
        (
            base.name,
            render.size(base.size_bytes),
            f"{base.file_count:,}",
            render.age(base.created_at),
            base.source,
        )
        for base in result.bases
    ]
    if not rows:
        console.hint("there are no bases: `waypoint base import NAME FILE` imports one")
    head = ("NAME", "SIZE", "FILES", "IMPORTED", "FROM")
    console.result(result, render.table(head, rows, console.paint) if rows else None)
    return 0


@verb("base rm", "remove a base", _NAME, examples=("waypoint base rm box",), json=Removed)
def base_rm(console: Console) -> int:
    name = console.arguments.name
    console.send(BaseRm(name=name), "removing")
    console.result(Removed(removed=(name,)), f"removed {name}")
    return 0
