"""Which points of sessions that are removed stay, with which session, and what they are called there.

Every point that has led to something that stays is kept: to where another session stands, to the point that
it was forked from, to a point of its own, or to a point that it has given a tag. So what leads to a session
is the same before and after. Each of these points goes to one session that needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from waypoint.model import BoxOptions, Checkpoint, Record

_MOST_NAME = 64


class Owner(Record, frozen=True):
    """A session, as far as it matters who gets a point. They are compared oldest first."""

    id: str
    name: str
    options: BoxOptions
    beginning: str | None
    head: str | None
    forked_from: str | None
    next_number: int
    """The number of its next point."""
    tags: Mapping[str, str]
    """The points that its tags name."""


class MovedTag(Record, frozen=True):
    """A tag that goes with its point."""

    owner: str
    """The session that has it now."""
    name: str
    becomes: str
    """Its name in the session that gets the point."""


class Handover(Record, frozen=True):
    """A point that goes to another session."""

    point: Checkpoint
    to: str
    """The id of the session that gets it."""
    session: str
    """The name of that session."""
    number: int
    name: str | None
    why: str
    tags: tuple[MovedTag, ...] = ()

    @property
    def was(self) -> str:
        """What it is called before."""
        return f"{self.point.session}:{self.point.label}"


def plan(owners: Sequence[Owner], points: Sequence[Checkpoint], going: Collection[str]) -> list[Handover]:
    """What is handed over when the sessions with the ids `going` are removed, oldest first. `points`: all
    that there are, oldest first."""
    by_name = {owner.name: owner for owner in owners}
    leaving = [point for point in points if by_name[point.session].id in going]
    staying = [owner for owner in owners if owner.id not in going]
    needs = _needs(staying, points)
    names = _Names(staying, points)
    numbers = {owner.id: owner.next_number for owner in staying}
    plans = []
    for point in leaving:
        if point.id not in needs:
            continue
        heir, why = _heir(by_name[point.session], needs[point.id])
        tags = (
            (owner, tag)
            for owner in owners
            for tag, tagged in owner.tags.items()
            if owner.id in going and tagged == point.id
        )
        plans.append(
            Handover(
                point=point,
                to=heir.id,
                session=heir.name,
                number=numbers[heir.id],
                name=names.for_point(point, heir),
                why=why,
                tags=tuple(
                    MovedTag(owner=owner.id, name=tag, becomes=names.free(tag, owner.name, heir))
                    for owner, tag in tags
                    if heir.tags.get(tag) != point.id
                ),
            )
        )
        numbers[heir.id] += 1
    return plans


def _needs(staying: Sequence[Owner], points: Sequence[Checkpoint]) -> dict[str, list[tuple[Owner, str]]]:
    """By point, the sessions that stay and need it, and why."""
    parents = {point.id: point.parent for point in points}
    needs: dict[str, list[tuple[Owner, str]]] = {}
    for owner in staying:
        reached: set[str] = set()
        for start, why in _starts(owner, points):
            point_id: str | None = start
            while point_id and point_id not in reached:
                reached.add(point_id)
                reason = why if point_id == start else f"it has led to where {owner.name} is"
                needs.setdefault(point_id, []).append((owner, reason))
                point_id = parents.get(point_id)
    return needs


def _starts(owner: Owner, points: Sequence[Checkpoint]) -> Iterator[tuple[str, str]]:
    """The points that a session needs, and why. What has led to them it needs too."""
    if owner.head:
        yield owner.head, f"{owner.name} stands on it"
    if owner.forked_from:
        yield owner.forked_from, f"{owner.name} was forked from it"
    for tag, point_id in owner.tags.items():
        yield point_id, f"{owner.name} calls it {tag}"
    for point in points:
        if point.session == owner.name and point.parent:
            yield point.parent, f"{owner.name}:{point.label} grew from it"


def _heir(old: Owner, wanted: Sequence[tuple[Owner, str]]) -> tuple[Owner, str]:
    """Of the sessions that need a point the one whose boxes are like those of the old one: a fork of the
    point gets the options of its session. Among equals it is the oldest."""
    return min(wanted, key=lambda need: (need[0].options != old.options, need[0].beginning != old.beginning))


class _Names:
    """The names and tags that sessions have already."""

    def __init__(self, owners: Sequence[Owner], points: Sequence[Checkpoint]) -> None:
        self._named: dict[str, set[str]] = {owner.name: set() for owner in owners}
        for point in points:
            if point.name and point.session in self._named:
                self._named[point.session].add(point.name)
        self._taken = {owner.name: self._named[owner.name] | {*owner.tags} for owner in owners}

    def for_point(self, point: Checkpoint, heir: Owner) -> str | None:
        """What a point is called in the session that gets it. That may have given it this name as a tag."""
        if point.name is None:
            return None
        if heir.tags.get(point.name) == point.id and point.name not in self._named[heir.name]:
            return point.name
        return self.free(point.name, point.session, heir)

    def free(self, name: str, session: str, heir: Owner) -> str:
        """The name, or one that says where it came from. It is taken from here on."""
        taken = self._taken[heir.name]
        longer = f"{session}.{name}"[:_MOST_NAME]
        choice, number = (longer if name in taken else name), 2
        while choice in taken:
            suffix = f"-{number}"
            choice, number = longer[: _MOST_NAME - len(suffix)] + suffix, number + 1
        taken.add(choice)
        return choice
