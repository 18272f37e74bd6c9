"""The messy story of docs/history.md, told by a real run: `python tests/messy_story.py WHEELS`.

A Python program with git, pip, SQLite and a server, a wrong turn, a restore and a fork; no point is verified.
WHEELS is a folder with the wheels of flask and pytest (`pip download flask pytest -d WHEELS`), and an older
one of werkzeug. The log is printed at 80 and at 120 columns, with a card and two plans.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import waypoint

WEB = """
import sqlite3
from flask import Flask
import shop

app = Flask(__name__)

def rows():
    with sqlite3.connect("shop.db") as db:
        return db.execute("select item, price from orders").fetchall()

@app.get("/total")
def total():
    return str(shop.total(rows()))
"""
TEST = "import shop\n\ndef test_total():\n    assert shop.total([('tea', 1), ('milk', 2)]) == 3\n"
VAT = "\n\ndef with_vat(items):\n    return round(total(items) * 1.19, 2)\n"
TEST_VAT = "\n\ndef test_vat():\n    assert shop.with_vat([('tea', 100)]) == 119\n"
TABLE = "create table orders (id integer primary key, item, price);"
ORDERS = "('tea', 3), ('milk', 2), ('salt', 1)"
SERVE = "python3 -m flask --app web run --port 5000 >server.log 2>&1 &"
ANSWERS = "until curl -sf localhost:5000/total; do sleep 0.1; done"
TESTS = "python -m pytest -q"


class Step(NamedTuple):
    """Commands, each with what it reads, and the point after them."""

    commands: tuple[str | tuple[str, str], ...]
    intent: str = ""
    back_to: str = ""
    """A point to go back to first."""
    of_fork: str = ""
    """The session that this happens in: a fork of the point before."""


def steps(wheels: str) -> tuple[Step, ...]:
    install = f"pip install -q --no-index --find-links {wheels}"
    return (
        Step(
            (
                "mkdir /root/shop && cd /root/shop && git init -q -b main",
                "git config user.email ann@example.org; git config user.name ann",
                ("cat >shop.py", "def total(items):\n    return sum(price for _, price in items)\n"),
                ("cat >.gitignore", ".venv/\n__pycache__/\n*.db\n*.log\n"),
                "git add -A && git commit -qm 'total of an order'",
            ),
            "start",
        ),
        Step(("python3 -m venv .venv && . .venv/bin/activate", f"{install} flask"), "flask"),
        Step(
            (
                ("cat >web.py", WEB),
                ("sqlite3 shop.db", f"{TABLE} insert into orders (item, price) values {ORDERS};"),
                "git add -A && git commit -qm 'orders over the web'",
            ),
        ),
        Step((SERVE, ANSWERS), "server up"),
        Step(
            (
                f"{install} pytest && mkdir tests",
                ("cat >tests/test_shop.py", TEST),
                ("cat >pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\n'),
                TESTS,
            ),
            "tests",
        ),
        Step(
            (
                "git add -A && git commit -qm 'tests for the total'",
                "sed -i 's/in items)/in items) * 1.19/' shop.py",
                TESTS,
            ),
            "with VAT",
        ),
        Step(
            (
                "git checkout -q -b vat && git commit -qam 'prices include VAT'",
                f"{install} 'werkzeug<3.1.9'",
                TESTS,
                TESTS,
            ),
            "try an older werkzeug",
        ),
        Step(
            (
                ("sqlite3 shop.db", "delete from orders where price < 3"),
                "kill %1; wait; rm -rf tests; git commit -qam 'tests are in the way'",
                TESTS,
            ),
            "clean up",
        ),
        Step(
            (
                "git add -A && git commit -qm 'tests for the total'",
                ("cat >>shop.py", VAT),
                ("cat >>tests/test_shop.py", TEST_VAT),
                TESTS,
            ),
            "VAT, second try",
            back_to="c5",
        ),
        Step(("sed -i s/1.19/1.07/ shop.py", TESTS), "reduced rate", of_fork="cheaper"),
        Step(
            (
                "git commit -qam 'VAT beside the total'",
                "sed -i 's/shop.total(/shop.with_vat(/' web.py && kill %1; wait; rm server.log",
                SERVE,
                ANSWERS,
                TESTS,
                "git commit -qam 'show VAT'",
            ),
            "the server shows VAT",
        ),
        Step(
            (
                (
                    "sqlite3 shop.db",
                    "alter table orders add currency; update orders set price = price * 100;",
                ),
                "sed -i 's/sum(price/sum(price * 100/' shop.py",
                TESTS,
            ),
            "amounts in cents",
        ),
        Step(
            ("git reset -q --hard HEAD~1", "python3 -m venv --clear .venv", TESTS),
            "start from a clean environment",
        ),
    )


def tell(wheels: str) -> waypoint.Session:
    session = waypoint.session("shop", net="none")
    for step in steps(wheels):
        if step.back_to:
            session.restore(step.back_to)
        place = session.point("@").fork(name=step.of_fork)[0] if step.of_fork else session
        for command in step.commands:
            line, stdin = command if isinstance(command, tuple) else (command, None)
            place.run(line, stdin=stdin)
        point = place.checkpoint(step.intent)
        assert point.card().ready
    return session


def main() -> None:
    wheels = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory(prefix="waypoint-story-", dir="/var/tmp") as home:
        os.environ.update(WAYPOINT_HOME=home, WAYPOINT_SPARES="off", WAYPOINT_PROVE="off")
        program = [sys.executable, "-P", "-m", "waypoint"]
        try:
            tell(wheels)
            for columns, *words in (
                ("80", "log"),
                ("120", "log"),
                ("100", "show", "c8"),
                ("100", "preview", "c3"),
                ("100", "preview", "c7"),
            ):
                print(f"$ waypoint {' '.join(words)}    # {columns} columns", flush=True)
                environment = {**os.environ, "COLUMNS": columns}
                subprocess.run([*program, *words, "-s", "shop"], env=environment, check=True)
        finally:
            subprocess.run([*program, "uninstall", "--yes"], check=False)


if __name__ == "__main__":
    main()
