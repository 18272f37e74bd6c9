"""README.md, docs/agents.md and docs/tour.md: what they show is run, as it stands there.

    ```python     runs to its end
    ```sh         each line succeeds; what attaches a terminal is followed on one (`_FOLLOWED`)
    ```console    commands behind `$ `, and below each what it prints, where … stands for anything
    ```terminal   the same on a terminal of its own: `» ` is what the user types there (`» [C-] d]`: keys),
                  every other line is seen, in this order

The blocks of the tour are one story, in one folder; those of other pages stand alone. A block after the
comment `<!-- not run -->` is for people's eyes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.person import DETACH, Person

from waypoint.home import Home
from waypoint.machine import link

REPOSITORY = Path(__file__).parents[2]
TOUR = REPOSITORY / "docs" / "tour.md"
PAGES = (REPOSITORY / "README.md", REPOSITORY / "docs" / "agents.md", REPOSITORY / "docs" / "explore.md")
_BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?^```(?P<language>python|console|sh|terminal)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PARTS_OF_A_CLONE = ("LICENSE", "README.md", "pyproject.toml", "src")
_AGENT = "#!/bin/sh\necho I am the agent\necho done > done\n"


class Example(NamedTuple):
    page: str
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}-{self.language}-line-{self.line}"


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    return [
        Example(page.stem, found["language"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in _BLOCK.finditer(text)
        if not found["skip"]
    ]


@pytest.fixture
def place(home: Home, wp: Callable[..., Any], tmp_path: Path) -> Place:
    wp("ls", check=True)  # the daemon does not start in what a test hides from the machine
    return Place(tmp_path)


class Place:
    """A folder, with a `waypoint` that can be called by name and an agent of that name."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (
            ("waypoint", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m waypoint "$@"\n'),
            ("claude", _AGENT),
        ):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.folder = folder / "project"
        self.folder.mkdir()
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "NO_COLOR": "1",
        }
        self.env.pop("COLUMNS", None)  # the examples are as wide as without a terminal

    def play(self, example: Example) -> None:
        getattr(self, f"_{example.language}")(example.text)

    def run(self, command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            env=self.env,
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def _python(self, text: str) -> None:
        self.run(shlex.join([sys.executable, "-P", "-c", text]))

    def _sh(self, text: str) -> None:
        cwd = self.folder
        if "pip install '." in text:
            for name in _PARTS_OF_A_CLONE:
                copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
                copy(REPOSITORY / name, cwd / name)
        for line in filter(None, text.splitlines()):
            follow = next((one for start, one in _FOLLOWED.items() if line.startswith(start)), None)
            if follow:
                self._on_a_terminal(line, follow)
            elif line.startswith("./waypoint"):
                # What it puts into /usr/local/bin is seen by this command alone.
                hidden = f"mount --bind {shlex.quote(str(self.folder))} /usr/local/bin && {line}"
                self.run(f"unshare --mount bash -c {shlex.quote(hidden)}", REPOSITORY)
            else:
                self.run(line)

    def _console(self, text: str) -> None:
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            printed = self.run(command)
            pattern = re.escape(expected).replace("…", ".*")
            pattern = re.sub(
                r"(?:\\ ){2,}", " {2,}", pattern
            )  # how wide a column is depends on what is in it
            assert re.fullmatch(pattern, printed, re.DOTALL), f"$ {command}\n{printed}\nis not\n{expected}"

    def _terminal(self, text: str) -> None:
        first, *lines = text.splitlines()

        def follow(person: Person) -> None:
            expected = ""
            for line in lines:
                if not line.startswith("» "):
                    expected += f"^ *{re.escape(line).replace('…', '.*')}.*"
                    continue
                self._see(person, expected)
                expected = ""
                keys = line.removeprefix("» ")
                if keys.startswith("["):
                    person.type(b"".join(_key(key) for key in keys[1:-1].split()))
                else:
                    person.type(f"{keys}\r".encode())
            self._see(person, expected)

        self._on_a_terminal(first.removeprefix("$ "), follow)

    @staticmethod
    def _see(person: Person, pattern: str) -> None:
        person.sees(lambda shown: bool(re.search(pattern, shown, re.DOTALL | re.MULTILINE)))

    def _on_a_terminal(self, command: str, follow: Callable[[Person], None]) -> None:
        person = Person(["bash", "-c", command], 40, 110, env=self.env, cwd=self.folder)
        try:
            follow(person)
            assert person.leaves() == 0, person.look()
        finally:
            person.close()


def _key(name: str) -> bytes:
    return bytes([ord(name[2:].upper()) & 0x1F]) if name.startswith("C-") else name.encode()


def _attach(person: Person) -> None:
    person.sees("# ")
    person.type(DETACH)
    person.sees("detached")


def _agree(person: Person) -> None:
    person.sees("[y/N]")
    person.type(b"y\r")


_FOLLOWED = {"waypoint shell": _attach, "waypoint run": _agree}
"""Commands that a user follows on a terminal, and what the user does there."""


@pytest.mark.timeout(300)  # one of them installs with pip
@pytest.mark.parametrize("example", [one for page in PAGES for one in examples(page)], ids=str)
def test_an_example_is_true(place: Place, home: Home, example: Example) -> None:
    place.play(example)
    link.remove(home.path)


@pytest.mark.timeout(300)
def test_the_first_ten_minutes_are_as_they_are_told(place: Place) -> None:
    for example in examples(TOUR):
        place.play(example)


def test_the_pages_have_examples_of_each_way_in() -> None:
    found = {page.stem: {one.language for one in examples(page)} for page in (*PAGES, TOUR)}
    assert found == {
        "README": {"python", "sh"},
        "agents": {"python", "console"},
        "explore": {"python"},
        "tour": {"console", "terminal", "python"},
    }


def test_the_readme_begins_with_the_command_for_a_person_who_lets_an_agent_loose() -> None:
    assert examples(PAGES[0])[0].text.startswith("waypoint run -- ")


def test_every_command_that_the_readme_shows_is_among_them() -> None:
    text = PAGES[0].read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "<!-- not run -->" not in text
    unmarked = [block for language, block in blocks if not language]
    assert not [block for block in unmarked if re.search(r"^\S*(waypoint|make|pip) ", block, re.MULTILINE)]
