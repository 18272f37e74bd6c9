"""How many statements were judged, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Sort = Literal["wrong", "missing", "misleading"]


@dataclass(frozen=True)
class Fault:
    """Something that is told wrongly, not told, or told so that a reader understands something else."""

    sort: Sort
    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.sort} {self.kind} · {self.where}: {self.text}"


@dataclass
class Ledger:
    """What was judged, by kind of statement. `where` names the answer that is judged now."""

    statements: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    where: str = ""

    def count(self, kind: str, number: int = 1) -> None:
        self.statements[kind] += number

    def fault(self, sort: Sort, kind: str, text: str) -> None:
        self.faults.append(Fault(sort, kind, self.where, text))

    def wrong(self, kind: str, text: str) -> None:
        self.fault("wrong", kind, text)

    def missing(self, kind: str, text: str) -> None:
        self.fault("missing", kind, text)

    def misleading(self, kind: str, text: str) -> None:
        self.fault("misleading", kind, text)

    def equal(self, kind: str, what: str, told: object, real: object) -> None:
        """One value of a statement."""
        if told != real:
            self.wrong(kind, f"{what}: told {told!r}, is {real!r}")

    def known(self, kind: str, statement: Mapping[str, Any], names: Iterable[str]) -> None:
        """Every field has to be one that a rule looks at."""
        if unknown := sorted(statement.keys() - set(names)):
            self.wrong(kind, f"no rule judges {', '.join(unknown)}")

    def add(self, other: Ledger) -> None:
        self.statements.update(other.statements)
        self.faults += other.faults
