"""`check`: whether a home keeps the rules of docs/storage.md. Nothing is changed, but that damage is marked.

The numbers are those of the rules. Rules about an order in time (8, 9, 13, 19) cannot be seen afterwards:
tests hold them. What may be under way (a point that is being taken, a tree that is being removed) is looked
at twice, or has to be older than an hour.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from waypoint.bases import store as bases
from waypoint.bases.store import RECORD
from waypoint.core import kept, manifest, pointfile
from waypoint.core.adoption import Adoption, is_unreadable
from waypoint.core.builder import BoxBuilder
from waypoint.core.digests import Digests
from waypoint.core.manifest import ManifestError
from waypoint.core.registry import Registry
from waypoint.core.remains import Remains
from waypoint.engine.images import WRITTEN_BY_RESTORES
from waypoint.errors import DatabaseDamaged, WaypointError
from waypoint.kernel.pool.lifecycle import written_kind
from waypoint.kernel.pool.loop import devices_of
from waypoint.kernel.pool.protocol import SCRATCH, Pool
from waypoint.kernel.seals import Key
from waypoint.model import Checked, Checkpoint, Remedy, Violation, from_json
from waypoint.store import soundness

_SURE_SECONDS = 1.0
"""Between two looks at what may be under way."""
_OF_ROWS: dict[int, Remedy] = {7: "recover", 20: "recover", 21: "recover", 22: "recover"}

Progress = Callable[[str], None]


class Check:
    """Checks one home."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        remains: Remains,
        digests: Digests,
        adoption: Adoption,
        builder: BoxBuilder,
        key: Key,
    ) -> None:
        self._registry, self._store, self._home = registry, registry.store, registry.home
        self._pool, self._remains, self._digests = pool, remains, digests
        self._adoption, self._builder, self._key = adoption, builder, key

    def run(
        self,
        points: Sequence[Checkpoint] | None = None,
        *,
        deep: bool = False,
        progress: Progress = lambda _: None,
    ) -> Checked:
        """`points`: only these; else the whole home. `deep`: everything is read and compared with its
        digests. A point that is not what was written is marked as damaged."""
        violations: list[Violation] = []
        chosen = self._all_points() if points is None else points
        if points is None:
            violations += [*self.database(deep=deep), *self._folders(), *self._trees(), *self._home_rules()]
            violations += [
                self._broken(24, "a kept file of a base is not what its name says", path, "none")
                for path in kept.damaged_files(self._home.pool, deep=deep)
            ]
        for number, point in enumerate(chosen, start=1):
            if deep:
                progress(f"comparing {point.session}:{point.label} ({number} of {len(chosen)})")
            found = list(self.point(point, deep=deep))
            violations += found
            if (damage := [one for one in found if one.remedy == "forget"]) and not point.damage:
                self._digests.mark(point, [one.what.removeprefix(_name(point)) for one in damage])
        return Checked(
            deep=deep,
            points=len(chosen),
            undigested=sum(not point.digested for point in chosen),
            violations=tuple(violations),
            repaired=tuple(self._adoption.done),
        )

    def _all_points(self) -> list[Checkpoint]:
        """Those whose rows can be read; the others are found by their rows."""
        points = []
        for point_id in sorted(self._store.points.ids()):
            try:
                if point := self._store.points.find(point_id):
                    points.append(point)
            except DatabaseDamaged:
                continue
        return points

    def _where(self, path: Path) -> str:
        return str(path.relative_to(self._home.path))

    # ---- rows: 7, 16 to 18, 20 to 22 ---------------------------------------------------------

    def database(self, *, deep: bool) -> Iterator[Violation]:
        """The rules about rows, and what SQLite finds."""
        for fault in soundness.check_file(self._home.database, deep=deep):
            remedy = _OF_ROWS.get(fault.rule, "none")
            yield Violation(rule=fault.rule, what=fault.what, where=fault.where, remedy=remedy)

    # ---- points: 1, 4, 5, 6, 10, 23, 25 ----------------------------------------------------------

    def point(self, point: Checkpoint, *, deep: bool) -> Iterator[Violation]:
        """Whether a point is what was written. One that has been forgotten meanwhile is none."""
        found = list(self._point(point, deep=deep))
        if self._store.points.find(point.id):
            yield from found

    def _point(self, point: Checkpoint, *, deep: bool) -> Iterator[Violation]:
        folder = self._home.checkpoints / point.id

        def broken(rule: int, what: str, place: Path = folder, remedy: Remedy = "forget") -> Violation:
            words = _name(point) + what
            return Violation(rule=rule, what=words, where=self._where(place), remedy=remedy, point=point.id)

        if not folder.is_dir() or not (folder / "files").is_dir():
            yield broken(1, "its files are gone")
            return
        if not point.files_only:
            if damage := pointfile.damage(folder, files_only=False):
                yield broken(1, damage.removeprefix("the checkpoint is damaged: "), folder / "images")
                return
            yield from (broken(6, what, place) for what, place in _not_plain(folder / "images"))
        if not self._pool.is_readonly(folder / "files"):
            yield broken(4, "its files can be written to", folder / "files", "recover")
        yield from (broken(25, what, folder, "none") for what in kept.missing_links(folder))
        if wrong := self._point_file(point, folder):
            yield broken(10, wrong, folder / pointfile.POINT_FILE, "recover")
        digest = self._store.points.digest(point.id)
        if digest is None:
            yield from (
                broken(5, f"images/{name} does not belong to it", folder / "images" / name)
                for name in _foreign_images(folder / "images", files_only=point.files_only)
            )
            return
        try:
            made = manifest.read(folder, digest)
        except ManifestError as error:
            yield broken(23, str(error), folder / manifest.MANIFEST_FILE)
            return
        for what in manifest.damaged_images(folder, made, _no_pause, deep=deep):
            yield broken(5, what, folder / "images")
        if deep:
            for what in manifest.damaged_files(folder, made, _no_pause):
                yield broken(4, what, folder / "files")
        if not wrong and (wrong := manifest.damage_of_point_file(folder, made)):
            yield broken(10, wrong, folder / pointfile.POINT_FILE, "recover")

    def _point_file(self, point: Checkpoint, folder: Path) -> str | None:
        """What point.json says differently from the row: nothing of this ever changes."""
        if not (folder / pointfile.POINT_FILE).exists():
            # Points of older versions have none.
            return None if point.platform is None else "point.json is missing"
        content = pointfile.read(folder)
        if content is None:
            return "point.json cannot be read"
        new = content.point
        pairs: tuple[tuple[str, object, object], ...] = (
            ("id", new.id, point.id),
            ("kind", new.kind, point.kind),
            ("size_bytes", new.size_bytes, point.size_bytes),
            ("processes", new.processes, point.processes),
            ("files_only", new.files_only, point.files_only),
            ("coverage", new.coverage, point.coverage),
            ("actor", new.actor, point.actor),
            ("platform", new.platform, point.platform),
        )
        if point.id not in self._store.points.handed_over():  # else it is still to be written again
            pairs += (("session", new.session, self._registry.find(point.session).id),)
        wrong = [name for name, there, here in pairs if there != here]
        return f"point.json and its row differ ({', '.join(wrong)})" if wrong else None

    # ---- the pool: 2, 3, 4, 7, 12, 14, 15, 21 ------------------------------------------------

    def _folders(self) -> Iterator[Violation]:
        """What is there without a row."""
        suspects = self._remains.without_row()
        if suspects:
            time.sleep(_SURE_SECONDS)
        for path in set(suspects) & set(self._remains.without_row()):
            if pointfile.is_newer(path):
                yield self._broken(2, "a point of a newer Waypoint: it is left alone", path, "none")
            elif is_unreadable(path):
                yield self._broken(2, "a point without a row whose point.json is damaged", path, "by-hand")
            elif not self._adoption.is_own(path):
                yield self._broken(27, "a point that this installation has not made", path, "foreign")
            else:
                yield self._broken(2, "a complete point without a row", path, "recover")
        for path in self._remains.abandoned(self._builder.standing()):
            rule = 3 if path.parent == self._home.staging else 2
            yield self._broken(rule, "remains that belong to nothing", path, "recover")
        for path in self._remains.foreign():
            yield self._broken(2, "something that Waypoint has not put there", path, "by-hand")
        for path in (self._home.pool / SCRATCH).iterdir() if (self._home.pool / SCRATCH).is_dir() else ():
            if not Path("/proc", path.name.partition(".")[0]).exists():
                yield self._broken(3, "a temporary tree of a process that has ended", path, "recover")

    def _trees(self) -> Iterator[Violation]:
        """The trees that sessions need."""
        rows = self._registry.store.sessions.all()
        for row in rows:
            if row.beginning and not (self._home.beginnings / row.beginning).is_dir():
                what = f"the files at the first prompt of session {row.name!r} are gone"
                yield self._broken(21, what, self._home.beginnings / row.beginning, "none")
            if row.state == "live" and row.box and not (self._home.sessions / row.box).is_dir():
                what = f"the files of session {row.name!r} are gone"
                yield self._broken(21, what, self._home.sessions / row.box, "none")
            if not row.options.base.startswith("/"):
                base = self._home.pool / "bases" / row.options.base
                if not (base / "files").is_dir():
                    what = f"the base of session {row.name!r} is gone"
                    yield self._broken(15, what, base, "none")
        for row in rows:
            path = self._home.beginnings / str(row.beginning)
            if row.beginning and path.is_dir() and not self._pool.is_readonly(path):
                what = f"the files at the first prompt of session {row.name!r} can be written to"
                yield self._broken(4, what, path, "recover")

    def _home_rules(self) -> Iterator[Violation]:
        image = self._home.path / "pool.img"
        if image.exists() and len(devices := devices_of(image)) > 1:
            yield self._broken(
                12, f"attached to several loop devices: {', '.join(devices)}", image, "by-hand"
            )
        if (kind := written_kind(self._home.path)) != self._pool.kind:
            what = f"the kind of the pool is said to be {kind!r}, and it is {self._pool.kind!r}"
            yield self._broken(14, what, self._home.pool, "by-hand")
        for path in sorted((self._home.pool / "bases").glob("*")):
            yield from self._base(path)

    def _base(self, path: Path) -> Iterator[Violation]:
        try:
            fields = json.loads((path / RECORD).read_text())
            wrong = None if fields["name"] == path.name else "its base.json is of another base"
        except (OSError, ValueError, KeyError, TypeError) as error:
            wrong = f"its base.json cannot be read: {error}"
        if wrong is None and not (path / "files").is_dir():
            wrong = "its files are gone"
        if wrong:
            yield self._broken(15, f"base {path.name!r}: {wrong}", path, "by-hand")
        else:
            try:
                writable = not self._pool.is_readonly(path / "files")
            except WaypointError:
                writable = True
            if writable:
                yield self._broken(4, f"base {path.name!r}: its files can be written to", path, "recover")
            if not bases.is_own(path, self._key):
                yield self._broken(
                    27, f"base {path.name!r}: this installation has not imported it", path, "foreign"
                )

    def _broken(self, rule: int, what: str, path: Path, remedy: Remedy) -> Violation:
        return Violation(rule=rule, what=what, where=self._where(path), remedy=remedy)


def _name(point: Checkpoint) -> str:
    return f"{point.label} of session {point.session!r}: "


def _no_pause() -> None:
    """A check is waited for."""


def _not_plain(images: Path) -> Iterator[tuple[str, Path]]:
    """What makes images depend on something else."""
    for path in sorted(images.iterdir()):
        if not stat.S_ISREG(path.lstat().st_mode):
            yield f"images/{path.name} is no plain file", path


def _foreign_images(images: Path, *, files_only: bool) -> Iterable[str]:
    """Without digests: files that are not among those whose sizes were recorded."""
    if not images.is_dir():
        return []
    names = {path.name for path in images.iterdir()}
    if files_only:
        return sorted(names)
    try:
        known = from_json((images / "sizes.json").read_bytes(), dict[str, int])
    except (OSError, msgspec.DecodeError):
        return []
    return sorted(names - known.keys() - {"sizes.json"} - WRITTEN_BY_RESTORES)
