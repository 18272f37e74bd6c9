"""Policies: what may be forgotten, decided without a pool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypoint.errors import UsageError
from waypoint.history.retention import (
    AUTOMATIC,
    RetentionChoice,
    RetentionPolicy,
    apply_policy,
    format_duration,
    parse_duration,
)
from waypoint.model import Checkpoint, Kind, Verdict

NOW = datetime(2025, 11, 16, 12, 30, tzinfo=UTC)


def point(
    number: int,
    age: timedelta = timedelta(),
    *,
    session: str = "work",
    kind: Kind = "manual",
    name: str | None = None,
    tags: tuple[str, ...] = (),
    pinned: bool = False,
    good: bool | None = None,
) -> Checkpoint:
    verdict = None
    if good is not None:
        verdict = Verdict(id=1, command="true", state="passed" if good else "failed", at=NOW.isoformat())
    return Checkpoint(
        id=f"{session}-{number}",
        name=name,
        intent="",
        session=session,
        label=f"c{number}",
        parent=None,
        created_at=(NOW - age).isoformat(),
        kind=kind,
        pause_ms=1,
        total_ms=1,
        size_bytes=1,
        processes=1,
        tags=tags,
        pinned=pinned,
        verdict=verdict,
    )


def decide(points: Sequence[Checkpoint], policy: RetentionPolicy, **protected: str) -> RetentionChoice:
    named = {one.id: why for one in points for label, why in protected.items() if one.label == label}
    return apply_policy(points, policy, protected=named, now=NOW)


def labels(points: Sequence[Checkpoint], chosen: Sequence[str]) -> list[str]:
    return [one.label for one in points if one.id in chosen]


def a_line(count: int, step: timedelta = timedelta(minutes=10)) -> list[Checkpoint]:
    """c1 is the oldest, the last one was taken now."""
    return [point(number, step * (count - number)) for number in range(1, count + 1)]


def test_a_point_that_cannot_be_restored_takes_no_other_points_place() -> None:
    points = [
        msgspec.structs.replace(one, restorable="failed") if one.label in ("c2", "c5") else one
        for one in a_line(5)
    ]
    decision = decide(points, RetentionPolicy(keep_last=2))
    assert labels(points, decision.forget) == ["c1", "c2", "c5"]


def test_the_last_ones_are_kept() -> None:
    points = a_line(5)
    decision = decide(points, RetentionPolicy(keep_last=2))
    assert labels(points, decision.forget) == ["c1", "c2", "c3"]
    assert list(decision.keep.values()) == [("one of the last 2",)] * 2


def test_the_last_of_each_hour_is_kept() -> None:
    points = a_line(12, timedelta(minutes=20))  # 08:50, 09:10 09:30 09:50, … 12:10 12:30
    decision = decide(points, RetentionPolicy(keep_hourly=3))
    kept = [one.created_at[11:16] for one in points if one.id not in decision.forget]
    assert kept == ["10:50", "11:50", "12:30"]


def test_days_and_weeks_are_those_of_the_people_who_ask() -> None:
    points = [point(1, timedelta(hours=13)), point(2, timedelta(hours=12))]  # 23:30 and 00:30 in UTC
    assert decide(points, RetentionPolicy(keep_daily=2)).forget == ()
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))  # 08:30 and 09:30 of one day there
    assert apply_policy(points, RetentionPolicy(keep_daily=2), protected={}, now=tokyo).forget == ("work-1",)


def test_weeks_are_kept() -> None:
    points = a_line(22, timedelta(days=1))
    decision = decide(points, RetentionPolicy(keep_weekly=2))
    assert labels(points, list(decision.keep)) == ["c15", "c22"]  # a Sunday, and this Sunday


def test_rules_add_up() -> None:
    points = a_line(100, timedelta(hours=1))
    decision = decide(points, RetentionPolicy(keep_last=3, keep_daily=3))
    assert len(decision.keep) == 3 + 2  # the last of today is one of the last three
    assert ("one of the last 3", "the last of its day") in list(decision.keep.values())


def test_what_is_young_stays() -> None:
    points = a_line(10, timedelta(days=1))
    decision = decide(points, RetentionPolicy(older_than=parse_duration("3d")))
    assert labels(points, decision.forget) == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]
    assert next(iter(decision.keep.values())) == ("younger than 3d",)


def test_age_and_count_both_have_to_agree() -> None:
    points = a_line(10, timedelta(days=1))
    decision = decide(points, RetentionPolicy(keep_last=5, older_than=parse_duration("1w")))
    assert labels(points, decision.forget) == ["c1", "c2", "c3"]


def test_sessions_are_counted_apart() -> None:
    points = [*a_line(3), *(point(number, timedelta(days=number), session="other") for number in (2, 1))]
    decision = decide(points, RetentionPolicy(keep_last=1))
    assert set(decision.forget) == {"work-1", "work-2", "other-2"}


def test_a_policy_about_some_kinds_leaves_the_others_alone() -> None:
    kinds: tuple[Kind, ...] = ("manual", "auto", "safety", "auto", "park", "auto")
    points = [point(n, timedelta(hours=9 - n), kind=kind) for n, kind in enumerate(kinds, start=1)]
    decision = decide(points, RetentionPolicy(keep_last=1, kinds=AUTOMATIC))
    assert labels(points, decision.forget) == ["c2", "c3", "c4"]
    assert decision.keep["work-1"] == ("taken as manual, which the policy is not about",)


def test_pinned_named_tagged_and_good_points_stay() -> None:
    points = [
        point(1, pinned=True),
        point(2, name="up"),
        point(3, tags=("v1", "v2")),
        point(4, good=True),
        point(5, good=False),
        point(6),
    ]
    decision = decide(points, RetentionPolicy(older_than=0))
    assert labels(points, decision.forget) == ["c5", "c6"]
    assert list(decision.keep.values()) == [
        ("pinned",),
        ("named up",),
        ("tagged v1", "tagged v2"),
        ("verified good",),
    ]
    everything = RetentionPolicy(older_than=0, keep_good=False, keep_named=False)
    assert labels(points, decide(points, everything).forget) == ["c2", "c3", "c4", "c5", "c6"]


def test_what_is_protected_stays_and_says_why() -> None:
    points = a_line(3)
    decision = decide(points, RetentionPolicy(older_than=0), c1="session 'work' stands on it")
    assert labels(points, decision.forget) == ["c2", "c3"]
    assert next(iter(decision.keep.values())) == ("session 'work' stands on it",)


def test_where_nothing_matches_nothing_goes() -> None:
    points = a_line(3)
    assert decide(points, RetentionPolicy(older_than=parse_duration("1w"))).forget == ()
    assert decide(points, RetentionPolicy(keep_last=1, kinds=("auto",))).forget == ()
    assert decide([], RetentionPolicy(keep_last=1)) == RetentionChoice(forget=(), keep={})


@pytest.mark.parametrize(
    "policy",
    [
        RetentionPolicy(),
        RetentionPolicy(kinds=AUTOMATIC),
        RetentionPolicy(keep_good=False, keep_named=False),
        RetentionPolicy(keep_last=0),
        RetentionPolicy(keep_last=2, keep_daily=-1),
        RetentionPolicy(older_than=-1),
    ],
)
def test_a_policy_that_says_nothing_is_refused(policy: RetentionPolicy) -> None:
    with pytest.raises(UsageError):
        decide(a_line(3), policy)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("90m", 5400),
        ("2h", 7200),
        ("3d", 259200),
        ("1w", 604800),
        ("1d12h", 129600),
        ("1.5h", 5400),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "-2h", "2x", "2h later", "1e3s", "٢h"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


# ---- whatever the points, whatever the policy ----------------------------------------------------

counts = st.none() | st.integers(1, 5)
policies = st.builds(
    RetentionPolicy,
    keep_last=counts,
    keep_hourly=counts,
    keep_daily=counts,
    keep_weekly=counts,
    older_than=st.none() | st.floats(0, 40 * 86400),
    kinds=st.lists(st.sampled_from(("manual", "safety", "park", "auto")), unique=True, max_size=3).map(tuple),
    keep_good=st.booleans(),
    keep_named=st.booleans(),
).filter(
    lambda policy: any(
        rule is not None
        for rule in (
            policy.keep_last,
            policy.keep_hourly,
            policy.keep_daily,
            policy.keep_weekly,
            policy.older_than,
        )
    )
)


@st.composite
def histories(draw: st.DrawFn) -> list[Checkpoint]:
    ages = draw(st.lists(st.integers(0, 30 * 86400), max_size=25))
    return [
        point(
            number,
            timedelta(seconds=age),
            session=draw(st.sampled_from(("work", "other"))),
            kind=draw(st.sampled_from(("manual", "safety", "park", "auto"))),
            name=draw(st.sampled_from((None, None, None, f"n{number}"))),
            pinned=draw(st.sampled_from((False, False, False, True))),
            good=draw(st.sampled_from((None, None, True, False))),
        )
        for number, age in enumerate(sorted(ages, reverse=True), start=1)
    ]


@given(histories(), policies, st.data())
def test_nothing_that_has_to_stay_ever_goes(
    points: list[Checkpoint], policy: RetentionPolicy, data: st.DataObject
) -> None:
    protected = data.draw(st.sets(st.sampled_from([one.id for one in points]))) if points else set()
    decision = apply_policy(points, policy, protected=dict.fromkeys(protected, "needed"), now=NOW)
    gone = set(decision.forget)
    assert gone.isdisjoint(protected)
    for one in points:
        if one.id in gone:
            assert not one.pinned
            assert not (policy.keep_named and one.name)
            assert not (policy.keep_good and one.verdict and one.verdict.state == "passed")
            assert not policy.kinds or one.kind in policy.kinds
    assert gone.isdisjoint(decision.keep)
    assert gone | decision.keep.keys() == {one.id for one in points}
    assert all(decision.keep.values())


@given(histories(), policies)
def test_a_policy_applied_twice_forgets_nothing_more(
    points: list[Checkpoint], policy: RetentionPolicy
) -> None:
    gone = apply_policy(points, policy, protected={}, now=NOW).forget
    left = [one for one in points if one.id not in gone]
    assert apply_policy(left, policy, protected={}, now=NOW).forget == ()


@given(histories(), policies)
def test_the_order_in_which_points_are_given_does_not_matter(
    points: list[Checkpoint], policy: RetentionPolicy
) -> None:
    ages = [one.created_at for one in points]
    if len(set(ages)) == len(ages):
        straight = apply_policy(points, policy, protected={}, now=NOW)
        assert apply_policy(points[::-1], policy, protected={}, now=NOW) == straight
