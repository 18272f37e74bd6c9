"""What is told is true: a short written story and a random one, each statement judged by an oracle.

`make truth` plays all stories. A judge that notices nothing would find no fault either, so true answers are
falsified too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.truth.base import make_base
from tests.truth.mutations import Mutator
from tests.truth.player import Player
from tests.truth.stories.generated import random_story
from tests.truth.story import story

import waypoint
from waypoint.home import Home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SEED = int(os.environ.get("WAYPOINT_SEED", "20"))

SHORT = story(
    "a bit of everything",
    "mkdir -p /srv/app/lib && cd /srv/app && git init -q && echo 1 > a && echo 2 > lib/b && git add -A"
    " && git commit -qm one && sqlite3 data.db 'create table t (id integer primary key, v);"
    " insert into t values (1, 2)' && echo f > /srv/f && ln /srv/f /srv/g",
    "echo more >> a && git commit -qam two && mv lib library && chmod 600 a && rm /etc/hosts && echo x > new"
    " && ln /srv/f /srv/h && ln /etc/passwd /srv/p",
    "sqlite3 data.db 'insert into t values (2, 3); update t set v = 9 where id = 1'; git reset -q --hard @~1;"
    " export COLOUR=blue; sleep 1000 & until grep -q sleep /proc/$!/cmdline; do :; done; rm -r /opt /srv/g",
)


@pytest.fixture(scope="module")
def player(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    base = tmp_path_factory.mktemp("truth")
    make_base(base)
    yield Player(base)
    waypoint.Client().call("rm", {"sessions": ["truth"]})


@pytest.mark.parametrize("told", [SHORT, random_story(SEED, points=4)], ids=lambda told: told.name)
def test_every_statement_is_true_and_a_falsehood_is_noticed(player: Player, told: object) -> None:
    played = player.play(told)  # type: ignore[arg-type]
    assert not played.ledger.faults, "\n".join(map(str, played.ledger.faults))
    mutator = Mutator()
    for answer in played.told:
        mutator.check(answer)
    assert not mutator.unnoticed, "\n".join(mutator.unnoticed)
    assert mutator.tried.total() > 50
