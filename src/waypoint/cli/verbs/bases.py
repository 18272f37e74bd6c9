"""Bases: root file systems that were imported, for sessions to start from."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from waypoint import errors
from waypoint.api.machine import BaseImport, BaseInfo, BaseLs, BaseRm, OneBase
from waypoint.api.sessions import Removed
from waypoint.cli import render
from waypoint.cli.spec import argument, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console
    from waypoint.model import ImageConfig

_NAME = argument("name", metavar="NAME", help="the name of the base")


@verb(
    "base import",
    "import a root file system, for `waypoint new --base NAME`",
    _NAME,
    argument(
        "file",
        metavar="FILE",
        help="a tar, a `docker export`, a `docker save`, an OCI archive or folder, a folder, or a Dockerfile",
    ),
    argument(
        "--context", metavar="DIR", help="the files of a Dockerfile (default: the folder that it is in)"
    ),
    argument(
        "--arg",
        metavar="NAME=VALUE",
        dest="arguments",
        action="append",
        default=[],
        help="the value of an ARG of a Dockerfile; may be given several times",
    ),
    argument(
        "--builder",
        choices=("auto", "buildah", "podman", "waypoint"),
        default="auto",
        help="what carries a Dockerfile out (default: buildah or podman if installed, else waypoint itself)",
    ),
    examples=(
        "docker export box > box.tar; waypoint base import box box.tar",
        "waypoint base import app ./Dockerfile --arg VERSION=2",
    ),
    about="Waypoint carries a Dockerfile out in the session `build-NAME`, with a point after each step that"
    " changes files: importing it again does only what is new since. `FROM` names an imported base, `scratch`"
    " or an OCI folder.",
)
def base_import(console: Console) -> int:
    name, file = console.arguments.name, console.arguments.file
    if not os.path.exists(file):
        raise errors.NotFound(f"no such file: {file}", hint="name a tar, or the output of `docker save`")
    console.prepare()
    context = console.arguments.context
    request = BaseImport(
        name=name,
        file=os.path.abspath(file),
        context=os.path.abspath(context) if context else None,
        arguments=dict(map(_argument, console.arguments.arguments)),
        builder=console.arguments.builder,
        actor=console.actor,
    )

    with console.progress(f"importing {os.path.basename(file)}") as update:

        def on_event(event: Any) -> None:
            if "progress" in event:
                update(render.shown(event["progress"]))

        result = console.transport.ask(request, on_event=on_event)
    console.result(result, name)
    for warning in result.base.warnings:
        console.say(render.shown(warning))
    console.hint(f"waypoint new --base {name}   starts a session on it")
    return 0


def _argument(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise errors.UsageError(f"{word!r} is not NAME=VALUE", hint="as in `--arg VERSION=2`")
    return name, value


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
            _starts(base.image),
        )
        for base in result.bases
    ]
    if not rows:
        console.hint("there are no bases: `waypoint base import NAME FILE` imports one")
    head = ("NAME", "SIZE", "FILES", "IMPORTED", "FROM", "STARTS")
    console.result(result, render.table(head, rows, console.paint) if rows else None)
    return 0


@verb(
    "base info",
    "show a base: its image, and the sessions over it",
    _NAME,
    examples=("waypoint base info box",),
    json=OneBase,
)
def base_info(console: Console) -> int:
    result = console.send(BaseInfo(name=console.arguments.name), "waiting for the daemon")
    base, image = result.base, result.base.image
    facts = [
        ("imported", f"{render.age(base.created_at)}, from {base.source} ({base.format})"),
        ("digest", base.digest),
        ("size", f"{render.size(base.size_bytes)} in {base.file_count:,} files"),
        ("sessions", ", ".join(result.sessions) or "none"),
        ("user", image.user),
        ("folder", image.workdir),
        *(("variable", f"{name}={value}") for name, value in image.env.items()),
        ("entry", shlex.join(image.entrypoint)),
        ("command", shlex.join(image.command)),
        ("ports", ", ".join(image.ports)),
        *(("label", f"{name}={value}") for name, value in image.labels.items()),
        *(("warning", text) for text in base.warnings),
    ]
    console.result(result, "\n".join(f"{name:<10}{render.shown(text)}" for name, text in facts if text))
    return 0


def _starts(image: ImageConfig) -> str:
    """How a session over an image starts, as far as the image says anything about it."""
    parts = [
        f"as {image.user}" if image.user else "",
        f"in {image.workdir}" if image.workdir else "",
        f"{len(image.env)} variables" if image.env else "",
    ]
    return render.shown(", ".join(filter(None, parts)))


@verb("base rm", "remove a base", _NAME, examples=("waypoint base rm box",), json=Removed)
def base_rm(console: Console) -> int:
    name = console.arguments.name
    console.send(BaseRm(name=name), "removing")
    console.result(Removed(removed=(name,)), f"removed {name}")
    return 0
