"""`compare`: several sessions and points side by side, in the SDK and on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import waypoint
from waypoint import errors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_candidates_stand_side_by_side(session: waypoint.Session, wp: Callable[..., Any]) -> None:
    client = waypoint.Client()
    session.run("mkdir /srv/app; echo start > /srv/app/f; echo old > /srv/app/gone")
    start = session.checkpoint("start")
    one, two = session.fork(ref="c1", names=("one", "two"))
    for fork, word in ((one, "better"), (two, "worse_")):
        fork.run(f"cd /srv/app; echo {word} > f; rm gone; echo alike > both; touch -d @1 both")
    one.run("grep -q better /srv/app/f")
    two.run("sleep 1000 &")
    two.run("false; make -C /nowhere test")
    two.run("gh issue close 7")
    point = two.checkpoint("two is here")

    found = client.compare("one", f"two:{point.info.label}", "t", base=start.id)
    assert [each["live"] for each in found.candidates] == [True, False, True]
    assert [each["commands"] for each in found.candidates] == [2, 4, 0]
    rows = {(row["section"], row["text"]): row for row in found.rows}
    files = {text: row for (section, text), row in rows.items() if section == "files"}
    # Of the same size in both, and not the same.
    assert files["/srv/app/f"]["cells"][0] == files["/srv/app/f"]["cells"][1]
    assert files["/srv/app/f"]["same"] is False
    assert [cell and cell["sign"] for cell in files["/srv/app/gone"]["cells"]] == ["-", "-", None]
    assert rows["processes", "sleep"]["cells"][0] is None
    assert rows["processes", "sleep"]["cells"][1]["detail"].endswith("sleep 1000")
    tests = rows["commands", "$ false; make -C /nowhere test"]["cells"]
    assert [cell and cell["detail"] for cell in tests] == [None, "exit 2", None]
    assert [each["effects"] for each in found.candidates] == [0, 1, 0]
    assert found.candidates[1]["outcomes"][-1]["command"] == "gh issue close 7"
    assert rows["outside", "gh issue close 7"]["cells"][1]["detail"].startswith("external-reversible · ")

    both = client.compare("one", "two")
    alike = {row["text"]: row["same"] for row in both.rows if row["section"] == "files"}
    assert both.base is not None
    assert (both.base["id"], alike) == (
        start.id,
        {"/srv/app/both": True, "/srv/app/f": False, "/srv/app/gone": True},
    )

    shown = wp("compare", "one", "two", f"--verify={'grep -q better /srv/app/f'}")
    assert "compared with c1" in shown.out
    assert "✔ grep -q better" in shown.out
    assert "✖ grep -q better" in shown.out
    assert "/srv/app/both" not in shown.out
    assert "files  (2 rows alike in all)" in shown.out
    assert "= /srv/app/both" in wp("compare", "one", "two", "--all").out
    told = wp("compare", "-s", "two", "c1", "now", "--json").json
    assert [each["name"] for each in told["candidates"]] == ["c1", "now"]
    assert told["candidates"][1]["live"] is True
    with pytest.raises(errors.UsageError, match="2"):
        client.compare("one")
    with pytest.raises(errors.NotFound):
        client.compare("one", "none:c1")
