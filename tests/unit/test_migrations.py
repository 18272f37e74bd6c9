"""Migrations: the shortest way from the state that was left to the code that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from waypoint import errors
from waypoint.client import migrations


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_known", {})


def step(from_: str | None, to: str) -> None:
    @migrations.migration(from_, to)
    def _(state: list[Any]) -> list[Any]:
        return [*state, to]


def test_the_shortest_way_is_taken() -> None:
    for from_, to in (("1", "2"), ("2", "3"), ("3", "4"), ("1", "3"), ("4", "1")):
        step(from_, to)
    assert migrations.migrate([], "1", "4") == ["3", "4"]
    assert migrations.migrate([], "4", "2") == ["1", "2"]


def test_state_of_the_same_version_or_code_without_one_changes_nothing() -> None:
    state = {"a": 1}
    assert migrations.migrate(state, "1", "1") is state
    assert migrations.migrate(state, "1", None) is state


def test_state_without_a_version_has_a_way_of_its_own() -> None:
    with pytest.raises(errors.NoMigration):
        migrations.migrate([], None, "1")
    step(None, "1")
    assert migrations.migrate([], None, "1") == ["1"]


def test_no_way_is_an_error_that_says_what_there_is() -> None:
    step("1", "2")
    with pytest.raises(errors.NoMigration) as none:
        migrations.migrate([], "1", "9")
    assert "'2'" in none.value.hint
    assert (none.value.code, none.value.exit_status) == ("no_migration", 11)
    assert isinstance(errors.from_dict(none.value.as_dict()), errors.NoMigration)


def test_a_circle_ends() -> None:
    step("1", "2")
    step("2", "1")
    with pytest.raises(errors.NoMigration):
        migrations.migrate([], "1", "3")
    with pytest.raises(errors.UsageError):
        step("1", "1")
