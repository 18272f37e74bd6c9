"""Changes as text: unified diffs in the form that `git apply` and `patch -p1` read.

Paths are the box's, with a/ and b/ instead of the leading slash. A file without lines (it has a zero byte
near its beginning) or with too many bytes is summed up in one line, and so is what a patch cannot express:
owners, attributes, devices, folders. Those lines begin with `#` and stand between the diffs, where both
programs ignore them.

A diff is bytes, because files are. `FilePatch.text` is for people and terminals: characters that could move a
cursor or reverse a line are made visible.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterable, Iterator, Sequence

from waypoint.api.difference import Change
from waypoint.history.view import Place, PointView, printable
from waypoint.kernel import files
from waypoint.model import Record

_BINARY_WITHIN = 8000
_MAX_COMPARED = 9_000_000
"""Lines of the one side times lines of the other, up to which the shortest edit is searched for."""
_NO_NEWLINE = b"\\ No newline at end of file\n"
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

Block = tuple[bool, int, int, int, int]
"""Whether it is equal, its lines in the old file (from, to) and in the new one."""


class Limits(Record, frozen=True):
    """How much to write."""

    file_bytes: int = 1 << 20
    """The largest file with a diff, on either side."""
    total_bytes: int = 16 << 20
    """The size of all diffs together."""
    renames: int = 1000
    """How many files of renamed folders get a diff of their own."""
    context: int = 3


class FilePatch(Record, frozen=True):
    """The diff of one file, or one line instead of it."""

    path: str
    body: bytes
    old_path: str | None = None
    left_out: str = ""
    """Why it has no lines although it could have some: `binary`, `large`, …"""

    @property
    def text(self) -> str:
        """For people: invalid and invisible characters are written as escapes."""
        shown = self.body.decode(errors="backslashreplace")
        return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), shown)


def patch(
    old: PointView | None,
    new: PointView,
    changes: Iterable[Change],
    paths: Sequence[str] = (),
    limits: Limits | None = None,
) -> Iterator[FilePatch]:
    """A diff for each change, in their order; only those at or below `paths` when there are any.

    `old` None is the base alone. When the limit is reached the last entry says how many were left out.
    """
    limits = limits or Limits()
    writer = _Writer(old or PointView.bare(new), new, list(changes), limits)
    wanted = [change for change in writer.changes if _is_below(change, paths)]
    written = 0
    for number, change in enumerate(wanted):
        for piece in writer.diffs(change):
            written += len(piece.body)
            yield piece
        if written > limits.total_bytes and number + 1 < len(wanted):
            left = len(wanted) - number - 1
            body = f"# {left:,} more {'change is' if left == 1 else 'changes are'} left out\n".encode()
            yield FilePatch(path="", body=body, left_out="limit")
            return


def _is_below(change: Change, paths: Sequence[str]) -> bool:
    if not paths:
        return True
    mine = (change.path, change.old_path or change.path)
    return any(f"{path}/".startswith(f"{top.rstrip('/')}/") for path in mine for top in paths)


class _Writer:
    def __init__(self, old: PointView, new: PointView, changes: list[Change], limits: Limits) -> None:
        self.old, self.new, self.changes, self.limits = old, new, changes, limits
        self.listed = {change.real_old_path for change in changes if change.kind != "created"}
        self.renames = 0

    def diffs(self, change: Change) -> Iterator[FilePatch]:
        before = self.old.place(change.real_old_path) if change.kind != "created" else None
        after = self.new.place(change.real_path) if change.kind != "deleted" else None
        remarks = list(_remarks(change))
        before_bytes, after_bytes = self._content(self.old, before), self._content(self.new, after)
        left_out = _left_out(before, before_bytes) or _left_out(after, after_bytes)
        body = b""
        if _is_diffable(before) or _is_diffable(after):
            body = self._diff(change, before, after, before_bytes, after_bytes, left_out)
        if remarks or body:
            yield FilePatch(
                path=change.path,
                old_path=change.old_path,
                body="".join(f"# {remark}\n" for remark in remarks).encode() + body,
                left_out=left_out,
            )
        if change.kind == "renamed" and before and before.entry.is_folder:
            yield from self._renamed_below(before, change.real_path)

    def _content(self, view: PointView, place: Place | None) -> bytes | None:
        """What a diff compares: the bytes of a file or the target of a link; None when it cannot be read."""
        if place is None:
            return b""
        if place.entry.is_link:
            where = view.host_path(place)
            target = files.target(where) if where else None
            return None if target is None else target.encode(errors="surrogateescape")
        if place.entry.is_file and place.entry.size <= self.limits.file_bytes:
            where = view.data_path(place)
            return files.read(where, self.limits.file_bytes) if where else None
        return b"" if not place.entry.is_file else None

    def _diff(
        self,
        change: Change,
        before: Place | None,
        after: Place | None,
        before_bytes: bytes | None,
        after_bytes: bytes | None,
        left_out: str,
    ) -> bytes:
        if before and after and stat.S_IFMT(before.entry.mode) != stat.S_IFMT(after.entry.mode):
            # One kind becomes another: a deletion and a creation.
            parts = [
                self._diff(change, before, None, before_bytes, b"", left_out),
                self._diff(change, None, after, b"", after_bytes, left_out),
            ]
            return b"".join(parts)
        if not _is_diffable(before) and not _is_diffable(after):
            return b""
        old_path, new_path = before.path if before else "", after.path if after else ""
        head = list(_header(before, after, same=before_bytes is not None and before_bytes == after_bytes))
        a, b = _name("a", old_path or new_path), _name("b", new_path or old_path)
        lines = [f"diff --git {a} {b}\n".encode(errors="surrogateescape"), *head]
        source, target = a if before else "/dev/null", b if after else "/dev/null"
        if left_out:
            if change.kind != "renamed" or "content" in change.what:
                text = f"Binary files {source} and {target} differ\n"
                lines.append(text.encode(errors="surrogateescape"))
        elif before_bytes != after_bytes:
            text = f"--- {end_name(source)}\n+++ {end_name(target)}\n"
            lines.append(text.encode(errors="surrogateescape"))
            lines += unified(split_lines(before_bytes), split_lines(after_bytes), self.limits.context)
        return b"".join(lines) if len(lines) > 1 else b""

    def _renamed_below(self, folder: Place, target: str) -> Iterator[FilePatch]:
        """A patch has no folders: each file in a moved folder is renamed on its own."""
        skipped = 0
        for path, entry in self.old.walk(folder.path):
            if entry.is_folder or path in self.listed or self._leaves(path, folder.path):
                continue
            if self.renames >= self.limits.renames:
                skipped += 1
                continue
            self.renames += 1
            moved = target + path[len(folder.path) :]
            place = self.new.place(moved)
            before = self.old.place(path)
            if before and place:
                head = f"diff --git {_name('a', path)} {_name('b', moved)}\n"
                lines = [head.encode(errors="surrogateescape"), *_header(before, place, same=True)]
                yield FilePatch(path=printable(moved), old_path=printable(path), body=b"".join(lines))
        if skipped:
            body = f"# {skipped:,} more files moved along\n".encode()
            yield FilePatch(path=printable(target), body=body, left_out="limit")

    def _leaves(self, path: str, top: str) -> bool:
        """Whether a folder between a path and the top has a change of its own, which includes the path."""
        while (path := path.rpartition("/")[0]) and path != top:
            if path in self.listed:
                return True
        return False


def _is_diffable(place: Place | None) -> bool:
    return place is not None and (place.entry.is_file or place.entry.is_link)


def _left_out(place: Place | None, content: bytes | None) -> str:
    if content is None:
        return "large" if place and place.entry.is_file else "unreadable"
    return "binary" if is_binary(content) else ""


def _remarks(change: Change) -> Iterator[str]:
    """What a patch cannot express."""
    name = change.path
    if change.entry == "folder" or change.entry_before == "folder":
        below = f" with {'at least ' * change.at_least}{change.files:,} files" if change.files else ""
        if change.kind == "renamed":
            yield f"folder {change.old_path} renamed to {name}"
        elif "type" in change.what:
            yield f"{name} was a {change.entry_before} and is a {change.entry} now"
        elif change.kind != "modified":
            yield f"folder {name} {change.kind}{below}"
    elif change.entry not in ("file", "link"):
        yield f"{change.entry} {name} {change.kind}"
    if change.entry not in ("file", "link") and "mode" in change.what and "type" not in change.what:
        yield f"{name}: mode {change.mode_before or 0:04o} to {change.mode_after or 0:04o}"
    if "owner" in change.what:
        yield f"{name}: owner {change.owner_before} to {change.owner_after}"
    if "xattr" in change.what:
        yield f"{name}: extended attributes changed"


def _header(before: Place | None, after: Place | None, *, same: bool) -> Iterator[bytes]:
    """The lines that git puts between the names and the hunks."""
    if before is None and after is not None:
        yield f"new file mode {after.entry.mode:06o}\n".encode()
    elif after is None and before is not None:
        yield f"deleted file mode {before.entry.mode:06o}\n".encode()
    elif before is not None and after is not None:
        if before.entry.mode != after.entry.mode:
            yield f"old mode {before.entry.mode:06o}\nnew mode {after.entry.mode:06o}\n".encode()
        if before.path != after.path:
            if same:
                yield b"similarity index 100%\n"
            names = f"rename from {_name('', before.path)}\nrename to {_name('', after.path)}\n"
            yield names.encode(errors="surrogateescape")


def _name(side: str, path: str) -> str:
    """A path in a patch, quoted if necessary."""
    return quote_name(f"{side}{path}" if side else path.lstrip("/"))


def quote_name(name: str, *, ascii_only: bool = False) -> str:
    """Quotes a name as git does when it could be misread; `ascii_only`: also when it is not ASCII."""
    raw = name.encode(errors="surrogateescape")
    is_text = not any("\udc80" <= letter <= "\udcff" for letter in name)
    is_plain = not any(byte < 0x20 or byte in b'"\\\x7f' for byte in raw)
    if is_plain and is_text and not (ascii_only and not raw.isascii()):
        return name
    letters = [
        f"\\{byte:c}" if byte in b'"\\' else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
        for byte in raw
    ]
    return f'"{"".join(letters)}"'


def end_name(name: str) -> str:
    """`patch` reads a name with a space as a name and a date unless a tab ends it."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def is_binary(content: bytes) -> bool:
    """Whether a file has a zero byte near its beginning."""
    return b"\0" in content[:_BINARY_WITHIN]


# ---- lines --------------------------------------------------------------------------------------


def split_lines(content: bytes | None) -> list[bytes]:
    """Lines as a diff has them: ended by a newline and by no other character."""
    *ended, rest = (content or b"").split(b"\n")
    return [line + b"\n" for line in ended] + [rest] * bool(rest)


def blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Block]:
    """Which runs of lines are equal and which are not, in order."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old_end, new_end = len(old) - end, len(new) - end
    result: list[Block] = []
    if start:
        result.append((True, 0, start, 0, start))
    if (old_end - start) * (new_end - start) > _MAX_COMPARED:
        result.append((False, start, old_end, start, new_end))
    else:
        matcher = difflib.SequenceMatcher(None, old[start:old_end], new[start:new_end], autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            result.append((tag == "equal", start + i1, start + i2, start + j1, start + j2))
    if end:
        result.append((True, old_end, len(old), new_end, len(new)))
    return result


def unified(old: Sequence[bytes], new: Sequence[bytes], context: int = 3) -> Iterator[bytes]:
    """The hunks of a unified diff."""
    for hunk in _hunks(blocks(old, new), context):
        first, last = hunk[0], hunk[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n".encode()
        for equal, i1, i2, j1, j2 in hunk:
            if equal:
                yield from _with_sign(b" ", old[i1:i2])
            else:
                yield from _with_sign(b"-", old[i1:i2])
                yield from _with_sign(b"+", new[j1:j2])


def _hunks(all_blocks: list[Block], context: int) -> Iterator[list[Block]]:
    """Groups of blocks, each with the equal lines around it."""
    hunk: list[Block] = []
    for number, (equal, i1, i2, j1, j2) in enumerate(all_blocks):
        if not equal:
            hunk.append((equal, i1, i2, j1, j2))
            continue
        is_first, is_last = number == 0, number == len(all_blocks) - 1
        if not is_first and not is_last and i2 - i1 <= 2 * context:
            hunk.append((equal, i1, i2, j1, j2))
            continue
        if not is_first:
            count = min(context, i2 - i1)
            hunk.append((True, i1, i1 + count, j1, j1 + count))
            yield hunk
            hunk = []
        if not is_last:
            count = min(context, i2 - i1)
            hunk = [(True, i2 - count, i2, j2 - count, j2)]
    if any(not block[0] for block in hunk):
        yield hunk


def _with_sign(sign: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield sign + line
        if not line.endswith(b"\n"):
            yield b"\n" + _NO_NEWLINE


def _range(start: int, end: int) -> str:
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"
