"""What the shell and `man` know of the verbs: completion, manual pages."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from waypoint import errors
from waypoint.api.history import Log
from waypoint.api.request import Result
from waypoint.api.sessions import Ls
from waypoint.cli.spec import SESSION, argument, verb

if TYPE_CHECKING:
    from waypoint.cli.console import Console


class Script(Result, frozen=True):
    """A script for a shell."""

    script: str


class Names(Result, frozen=True):
    """Names that can be typed."""

    names: tuple[str, ...]


class Pages(Result, frozen=True):
    """The files that were written, or the one page that is printed."""

    files: tuple[str, ...]
    page: str = ""


@verb(
    "completion",
    "print a script that completes verbs, options, sessions and points in your shell",
    argument("shell", choices=("bash", "zsh", "fish"), help="the shell"),
    examples=(
        "waypoint completion bash",
        "waypoint completion fish",
    ),
    about='Put `eval "$(waypoint completion bash)"` into ~/.bashrc, the same with zsh into ~/.zshrc, or the'
    " output for fish into ~/.config/fish/completions/waypoint.fish.",
    json=Script,
)
def completion(console: Console) -> int:
    from waypoint.cli.completion import script

    text = script(console.arguments.shell)
    console.result(Script(script=text), text.rstrip("\n"))
    return 0


@verb(
    "complete",
    "print the names of sessions or points, for completion",
    SESSION,
    argument("what", choices=("sessions", "points"), help="which names"),
    examples=("waypoint complete points -s work",),
    about="It starts no daemon: without one it prints nothing.",
    json=Names,
)
def complete(console: Console) -> int:
    names: list[str] = []
    with contextlib.suppress(errors.WaypointError):
        daemon = console.another_transport(start=False)
        if console.arguments.what == "sessions":
            names = [session.name for session in daemon.ask(Ls()).sessions]
        else:
            points = daemon.ask(Log(session=console.session)).checkpoints
            names = ["@", "good", *(name for point in points for name in (point.label, point.name) if name)]
    console.result(Names(names=tuple(names)), "\n".join(names))
    return 0


@verb(
    "man",
    "print or write the manual pages",
    argument(
        "page", metavar="VERB", nargs="*", default=[], help="the verb (default: the page of the program)"
    ),
    argument("--to", metavar="DIR", help="write all pages below this folder, in man1"),
    examples=("waypoint man restore", "waypoint man --to ~/.local/share/man"),
    json=Pages,
)
def man(console: Console) -> int:
    from waypoint.cli.manual import pages

    everything, arguments = pages(), console.arguments
    if arguments.to is None:
        name = "-".join(["waypoint", *arguments.page])
        if f"{name}.1" not in everything:
            raise errors.NotFound(f"there is no page {name}", hint="`waypoint -h` lists the verbs")
        page = everything[f"{name}.1"]
        console.result(Pages(files=(), page=page), page.rstrip("\n"))
        return 0
    folder = Path(arguments.to) / "man1"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in everything.items():
            (folder / name).write_text(page)
    except OSError as error:
        raise errors.UsageError(f"cannot write to {folder}: {error.strerror}") from error
    files = tuple(str(folder / name) for name in everything)
    console.result(Pages(files=files), str(folder))
    console.hint(f"man -M {arguments.to} waypoint")
    return 0
