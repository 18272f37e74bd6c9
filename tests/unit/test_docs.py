"""What the documentation says about the source is true."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from waypoint.kernel.locks import ORDER

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


def test_the_tree_of_the_architecture_is_the_folder_tree() -> None:
    where = REPOSITORY / "tests" / "generate_tree.py"
    spec = importlib.util.spec_from_file_location("generate_tree", where)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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


_UNCLEAR = re.compile(r"\b(?:somebody|nobody|whoever|anybody|everybody)\b", re.IGNORECASE)


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
