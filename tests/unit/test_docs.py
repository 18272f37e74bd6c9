"""What the documentation says about the source is true."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from waypoint.kernel.locks import ORDER
from waypoint.terminal.screen import Screen

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
_WITH_TESTS = ("Threat model",)
"""Sections of docs/security.md with a column of tests, the one before the last."""


def _module(name: str) -> ModuleType:
    """A generator of tests/."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tests" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_of_the_architecture_is_the_folder_tree() -> None:
    module = _module("generate_tree")
    assert module.page() == module.PAGE.read_text(), "run: python tests/generate_tree.py"
    assert sorted(module.TOP_DOWN) == sorted(
        path.name for path in module.SOURCE.iterdir() if (path / "__init__.py").exists()
    )


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    names = set(re.findall(r"(?<![\w/.$~+-])(?:[a-z_]+/)+[a-z_]+\.(?:py|c|h|bash|toml)\b", page.read_text()))
    missing = [
        name
        for name in sorted(names)
        if not any((root / name).exists() for root in (REPOSITORY, REPOSITORY / "src" / "waypoint"))
    ]
    assert not missing


def test_every_test_that_holds_a_line_of_the_threat_model_exists() -> None:
    page = (DOCS / "security.md").read_text()
    sections = [page.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in _WITH_TESTS]
    paths = list((REPOSITORY / "tests").rglob("*.py"))
    names = " ".join(
        name
        for path in paths
        for name in re.findall(r"(?:def test_|class |@attack\(\s*\")([^\"(:]+)", path.read_text())
    )
    cells = [row.split("|")[-3] for section in sections for row in section.splitlines() if row[:2] == "| "]
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 40
    assert [name for name in named if name not in names and not name.startswith("make ")] == []
    files = {name for cell in cells for name in re.findall(r"test_\w+\.py", cell)}
    assert files - {path.name for path in paths} == set()


def test_every_lock_is_described_in_its_place() -> None:
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", (DOCS / "threads.md").read_text(), re.MULTILINE)
    assert [name for _, name in rows] == list(ORDER)
    assert [int(number) for number, _ in rows] == list(range(1, len(ORDER) + 1))


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("the output of `waypoint restore`", "cli/verbs/restore.py"),
        ("the tar of a base unpacked", "bases/images.py"),
        ("counted as leaving a session", "kernel/network/flows.py"),
        ("the daemon do for `log`", "daemon/verbs/history.py"),
        ("a command pass before it runs", "core/gate.py"),
    ],
)
def test_a_newcomer_finds_the_file(question: str, place: str) -> None:
    [line] = [line for line in (DOCS / "contributing.md").read_text().splitlines() if question in line]
    assert f"src/waypoint/{place}" in line
    assert (REPOSITORY / "src" / "waypoint" / place).exists()


_UNCLEAR = re.compile(r"\b(?:[Ss]omebody|(?<![`\"])[Nn]obody|[Ww]hoever|[Aa]nybody|[Ee]verybody)\b")
"""In quotes, or as a constant, it is the name of a user."""


def test_sentences_name_their_subject() -> None:
    pages = [*DOCS.glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"]
    source = [
        path for kind in ("py", "c", "h", "toml", "bash") for path in (REPOSITORY / "src").rglob(f"*.{kind}")
    ]
    unclear = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in (*pages, *source)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _UNCLEAR.search(line)
    ]
    assert not unclear, "name the client, daemon, process or user: " + "\n".join(unclear)


@pytest.mark.parametrize("name", ["demo", "log"])
def test_a_picture_of_the_readme_is_drawn_from_its_recording(name: str) -> None:
    pictures = _module("generate_pictures")
    drawn = (DOCS / f"{name}.svg").read_text()
    assert drawn == pictures.draw(name), "run: make docs"
    assert f"(docs/{name}.svg)" in (REPOSITORY / "README.md").read_text()
    assert len(drawn) < 30_000
    # All that was on the terminal is in the picture, word for word.
    root = ET.fromstring(drawn)
    words = " ".join("".join(one.itertext()) for one in root.iter() if one.tag.endswith("tspan")).split()
    screen = Screen(pictures.ALL_ROWS, pictures.COLUMNS)
    for line in (pictures.RECORDINGS / f"{name}.cast").read_text().splitlines()[1:]:
        screen.feed(json.loads(line)[2].encode())
    assert words == screen.text().split()


def test_the_recorded_demo_is_the_present_one() -> None:
    source = (REPOSITORY / "src/waypoint/cli/verbs/demo.py").read_text()
    titles = re.findall(r'self\._step\(f?"(.*?)[{"]', source)
    shown = (_module("generate_pictures").RECORDINGS / "demo.cast").read_text()
    assert len(titles) == 6
    assert [title for title in titles if title not in shown] == [], "run: make pictures"
