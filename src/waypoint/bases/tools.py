"""Building the image of a Dockerfile with a tool that is installed: buildah or podman.

They know all of the language and pull images from registries. What they build comes back as an OCI image in a
folder, which is imported like any other. They keep a cache of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waypoint.api.hints import Arg, Hint
from waypoint.errors import CommandFailed, MissingFeature
from waypoint.model import Builder

TOOLS = ("buildah", "podman")
BUILD_SECONDS = 7200.0
_CALLER_SECONDS = 0.25
_END_SECONDS = 10.0
_SHOWN_LINES = 20


def find_tool(builder: Builder) -> str | None:
    """The program to build with; None when Waypoint does it itself."""
    if builder == "waypoint":
        return None
    for name in TOOLS if builder == "auto" else (builder,):
        if program := shutil.which(name):
            return program
    if builder == "auto":
        return None
    raise MissingFeature(f"{builder} is not installed", hint=f"install it: apt-get install {builder}")


def build_image(
    tool: str,
    name: str,
    file: Path,
    context: Path,
    arguments: Mapping[str, str],
    target: Path,
    progress: Callable[[str], None],
    gone: Callable[[], bool] = lambda: False,
) -> None:
    """Builds a file and writes the image into the folder `target`. `gone`: whether the caller waits no
    more."""
    image = f"localhost/waypoint/{name.lower()}:latest"
    given = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    deadline = time.monotonic() + BUILD_SECONDS
    command = [tool, "build", "--layers", "--tag", image, "--file", str(file), *given, str(context)]
    _run(command, progress, gone, deadline)
    _run([tool, "push", image, f"oci:{target}:latest"], progress, gone, deadline)


def _run(
    command: Sequence[str], progress: Callable[[str], None], gone: Callable[[], bool], deadline: float
) -> None:
    tail: deque[str] = deque(maxlen=_SHOWN_LINES)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    output = process.stdout

    def read() -> None:
        for line in output:
            if shown := line.strip():
                tail.append(shown)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    ended, reported = "", ""
    try:
        while process.poll() is None and not ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CALLER_SECONDS)
            if tail and tail[-1] != reported:
                reported = tail[-1]
                progress(reported[:200])
            if gone():
                ended = "was ended: its caller waits no more"
            elif time.monotonic() > deadline:
                ended = "took too long"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        reading.join(1)
        output.close()
    if ended or process.returncode:
        shown = "\n".join(tail)
        name = f"{Path(command[0]).name} {command[1]}"
        raise CommandFailed(
            f"{name} {ended or f'ended with exit code {process.returncode}'}"
            + (f":\n{shown}" if shown else ""),
            hint=Hint(
                "the lines above say why; ",
                Arg("base_import", builder="waypoint"),
                " carries the plain part of the language out without it",
            ),
        )
