"""Writes the synchronous SDK (client/) from the asynchronous one (aio/): `python tests/generate_client.py`.

What is awaited there is called here. Connections and programs are written by hand on both sides, since
threads and tasks differ. A line `# sync: …` is part of the synchronous side only. tests/unit/test_sdk.py
checks that the files are up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "waypoint"
MODULES = ("agent", "checkpoint", "client", "session")

_INSIDE = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_REPLACEMENTS = (
    (r"# sync: ", ""),
    (r"\basync (def|for|with)\b", r"\1"),
    (rf"\(await ({_INSIDE})\)(?=\.)", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b__a(iter|enter|exit)__\b", r"__\1__"),
    (r"\bwaypoint\.aio\b", "waypoint.client"),
)


def generate(module: str) -> str:
    """The text of a module of the synchronous SDK."""
    text = (PACKAGE / "aio" / f"{module}.py").read_text()
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    note = f"# Generated from aio/{module}.py: change that, then run `python tests/generate_client.py`.\n"
    target = PACKAGE / "client" / f"{module}.py"
    sorted_ = _ruff("check", "--select=I", "--fix", target=target, text=note + text)
    return _ruff("format", target=target, text=sorted_)


def _ruff(*words: str, target: Path, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *words, "--quiet", f"--stdin-filename={target}", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for module in MODULES:
        (PACKAGE / "client" / f"{module}.py").write_text(generate(module))


if __name__ == "__main__":
    main()
