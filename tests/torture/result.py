"""What a part of the campaign has found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Part(msgspec.Struct):
    """By kind of fault: how many happened, and how many cases were wrong after one."""

    name: str = ""
    cases: int = 0
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    wrong: dict[str, int] = msgspec.field(default_factory=dict)
    violations: list[str] = msgspec.field(default_factory=list)
    seed: int = 0
    seconds: float = 0.0

    def add(self, case: str, kinds: Sequence[str], violations: Sequence[str]) -> None:
        """A case, with the faults that happened in it, and what was wrong after the last one."""
        self.cases += 1
        for kind in kinds:
            self.faults[kind] = self.faults.get(kind, 0) + 1
        if violations:
            kind = kinds[-1] if kinds else "none"
            self.wrong[kind] = self.wrong.get(kind, 0) + 1
        self.violations += [f"{case}: {violation}" for violation in violations]

    def join(self, other: Part) -> None:
        """With what another process has found."""
        self.cases += other.cases
        for mine, theirs in ((self.faults, other.faults), (self.wrong, other.wrong)):
            for kind, number in theirs.items():
                mine[kind] = mine.get(kind, 0) + number
        self.violations += other.violations
