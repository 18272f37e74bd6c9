"""A long run of a coding agent: tasks, tests that break, ways back, forks, and effects outside."""

from __future__ import annotations

from tests.truth.stories.live import SERVE
from tests.truth.stories.packages import PIP, WHEEL
from tests.truth.story import Act, Step, Story, story

_SHOP = """mkdir -p /srv/shop && cd /srv/shop && git init -q && git init -q --bare /srv/hub.git
git config url./srv/.insteadOf far: && git remote add origin far:hub.git
printf 'def total(prices):\\n    return sum(prices)\\n' > shop.py
printf '__pycache__/\\n.venv/\\n*.db\\n' > .gitignore && git add -A && git commit -qm 'a shop'"""
_TESTS = """cat > test_shop.py <<'END'
import unittest
from shop import total

class Totals(unittest.TestCase):
    def test_of_three(self):
        self.assertEqual(total([1, 2, 3]), 6)
END
python3 -m unittest -q 2>/dev/null && git add -A && git commit -qm 'a test of totals'"""
_BREAK = "sed -i 's/sum(prices)/sum(prices) * rate/' shop.py && git commit -qam 'taxes' && python3 -m unittest -q 2>/dev/null"
_ORDERS = (
    "sqlite3 shop.db 'create table orders (id integer primary key, what, price)' && sqlite3 shop.db \"with recursive"
    " n(i) as (select 1 union all select i + 1 from n where i < 40) insert into orders select i, 'thing ' || i, i from n\""
)

STORIES: tuple[Story, ...] = (
    story(
        "a long run of an agent",
        Step(
            _SHOP,
            name="shop",
            acts=(
                Act("say", "I begin with the shop and its tests."),
                *(
                    Act("plan", title)
                    for title in ("a shop", "tests", "orders", "taxes", "a server", "release")
                ),
                Act("start", "a shop"),
                Act("done", "a shop"),
            ),
        ),
        Step(
            _TESTS,
            name="tested",
            acts=(
                Act("start", "tests"),
                Act("call", "python3 -m unittest"),
                Act("result", "python3 -m unittest"),
                Act("done", "tests"),
            ),
        ),
        Step(
            f"{WHEEL}mkdir -p /srv/wheels && make_wheel money 1.0 && make_wheel money 1.1; unset -f make_wheel"
        ),
        Step(
            "python3 -m venv --without-pip .venv &&"
            f" {PIP} install --no-index --find-links /srv/wheels money==1.0 2>/dev/null",
            acts=(Act("call", "pip install money"), Act("result", "pip install money")),
        ),
        Step(_ORDERS, name="orders", acts=(Act("start", "orders"),)),
        Step("sqlite3 shop.db 'create index by_price on orders (price)'", acts=(Act("done", "orders"),)),
        Step("git push -q origin main", name="pushed", outside="external-reversible"),
        Step(SERVE.format(8100), name="serving", acts=(Act("start", "a server"), Act("done", "a server"))),
        Step(
            f"{PIP} install --no-index --find-links /srv/wheels money==1.1 2>/dev/null; export RATE=1.19",
            name="rated",
            acts=(Act("start", "taxes"),),
        ),
        Step(
            _BREAK,
            fails=True,
            name="broken",
            acts=(Act("fail", "taxes"), Act("plan", "find out about rates")),
        ),
        Step(
            "rm shop.db && git reset -q --hard HEAD~1 && echo 'rate = 1' > rates.py",
            acts=(Act("say", "Too far."),),
        ),
        Step(
            "sed -i 's/sum(prices)/round(sum(prices))/' shop.py && python3 -m unittest -q 2>/dev/null",
            restore="rated",
            acts=(Act("say", "Back to where it worked."), Act("plan", "round totals")),
        ),
        Step(
            "git commit -qam 'totals are rounded' && git tag v1",
            name="rounded",
            acts=(Act("done", "round totals"),),
        ),
        Step(
            "git push -q origin v1",
            outside="external-reversible",
            acts=(Act("claim", "told the customers of v1"),),
        ),
        Step(
            "git checkout -q -b taxes && echo 'RATE = 1.19' > taxes.py && git add taxes.py && git commit -qm 'a rate'",
            name="branched",
            acts=(Act("start", "taxes"),),
        ),
        Step(
            "kill %1; wait %1 2>/dev/null; " + SERVE.format(8100), acts=(Act("say", "The server runs anew."),)
        ),
        Step(
            "git push -q origin taxes",
            fork="branched",
            name="left",
            outside="external-reversible",
            acts=(Act("done", "taxes"),),
        ),
        Step("mkdir lib && git mv shop.py lib/shop.py && echo 'see lib' > NOTES && touch lib/__init__.py"),
        Step(
            "sed -i 's/from shop/from lib.shop/' test_shop.py && python3 -m unittest -q 2>/dev/null && git add -A"
            " && git commit -qm 'a library'",
            name="library",
            acts=(Act("skip", "release"),),
        ),
        Step(
            "git checkout -q main && git merge -q --no-edit taxes && sqlite3 shop.db 'delete from orders where id > 30'",
            fork="branched",
            name="merged",
            acts=(Act("done", "taxes"), Act("start", "release")),
        ),
        Step(
            "git push -q origin main",
            outside="external-reversible",
            name="released",
            acts=(
                Act("done", "release"),
                Act("claim", "booked a server for v2"),
                Act("claim", "told the press"),
            ),
        ),
        Step(
            "git clone -q /srv/hub.git /srv/check && cd /srv/check && git log -1 --format=%s > /srv/check.txt"
        ),
        Step(
            'cd /srv/shop && sqlite3 shop.db "update orders set price = 0; alter table orders add column paid"',
            restore="pushed",
            acts=(Act("plan", "free things"), Act("claim", "wrote to the bank")),
        ),
        Step("echo 'free for all' > NOTES && unset RATE", undo=True),
        Step("rm -rf .venv /srv/wheels && kill $(jobs -p); wait 2>/dev/null; cd /", fails=True),
        Step("cd /srv/shop && git stash list > stashes && chmod 600 shop.db", restore="released"),
        needs=("git", "sqlite3"),
    ),
)
