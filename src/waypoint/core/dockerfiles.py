"""Bases from Dockerfiles: each step is carried out in a session, and a point is taken after it.

The session of the base `NAME` is called `build-NAME`. Its points are the cache: a point is named after the
digest of everything that led to it (what the file begins with, each command with its variables, each file
that was copied), so a step that is the same as before is found and not done again. They are points like all
others: `log` lists them, a fork of one shows what a step has left. When the file is done the session is
stopped and its points stay. When a step fails the session is left as it is, to be looked at.

The last point becomes the base: a copy of the tree that the file began with, with all changes landed in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import select
import shutil
import signal
import stat
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waypoint.api.hints import Do, Hint
from waypoint.bases import dockerfile, store, tools
from waypoint.bases.dockerfile import Copy, Ignored, MakeFolder, Recipe, Run, Step
from waypoint.bases.images import Unpacker, decompress, is_image_folder
from waypoint.box.users import find_user
from waypoint.core.capture import Capture, Wish
from waypoint.core.commands import Commands
from waypoint.core.fork import Fork
from waypoint.core.gate import Asker, Gate
from waypoint.core.live import Live, new_id
from waypoint.core.registry import Registry
from waypoint.core.removal import Removals
from waypoint.core.restore import Restore
from waypoint.core.sessions import Sessions
from waypoint.core.transfer import Transfer
from waypoint.errors import CommandFailed, NotFound, SessionBusy, UsageError, translated
from waypoint.kernel import faults, files, processes
from waypoint.kernel.files import Entry
from waypoint.kernel.placement import Folder, Metadata, is_same
from waypoint.kernel.pool.protocol import Pool
from waypoint.model import Base, BoxOptions, Builder, Checkpoint, Size
from waypoint.store.sessions import SessionRow
from waypoint.terminal.recording import ProgramOutput

STEP_SECONDS = 3600.0
"""A command of a file that takes longer is ended."""
_SHOWN_LINES = 20
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.25
"""How often the caller is looked for."""
_KEPT_BYTES = 64 << 10
_KEY_DIGITS = 16
_CACHE_NAME = "step-"
_OF_THE_BOX = ("dev", "proc", "sys")
"""Folders of the root that belong to the box: a base has nothing in them."""
_PROGRAM_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


@dataclass(frozen=True)
class _Source:
    """A file, folder or link of the context."""

    path: str
    """In the context."""
    target: str
    """Below the target of its step."""
    entry: Entry
    link: str | None
    digest: str
    """Of its content, if it is a file."""
    named: bool
    """Whether it is a file that the step names itself."""

    @property
    def about(self) -> tuple[str, str, int, str, str]:
        """What of it ends up in a base; not its times."""
        return self.target, self.entry.kind, stat.S_IMODE(self.entry.mode), self.link or "", self.digest


@dataclass(frozen=True)
class Build:
    """What was asked for."""

    name: str
    file: Path
    context: Path
    arguments: Mapping[str, str]
    asker: Asker
    progress: Callable[[str], None]
    builder: Builder = "auto"
    gone: Callable[[], bool] = lambda: False
    """Whether the caller waits no more."""


class Dockerfiles:
    """Makes bases of Dockerfiles for one home."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        sessions: Sessions,
        capture: Capture,
        restore: Restore,
        fork: Fork,
        removals: Removals,
        commands: Commands,
        transfer: Transfer,
        gate: Gate,
    ) -> None:
        self._registry, self._pool = registry, pool
        self._sessions, self._capture, self._restore, self._removals = sessions, capture, restore, removals
        self._fork = fork
        self._commands, self._transfer, self._gate = commands, transfer, gate
        self._building: dict[str, Path] = {}

    def build(self, build: Build) -> Base:
        """The base that a file describes. Steps that were done before are not done again."""
        store.require_free(self._pool, build.name)
        if self._building.setdefault(build.name, build.file) is not build.file:
            raise SessionBusy(f"the base {build.name!r} is being built", hint="wait until that is done")
        try:
            return self._build(build)
        finally:
            del self._building[build.name]

    def _build(self, build: Build) -> Base:
        text = _text_of(build.file)
        said, line = dockerfile.origin_of(text, build.file.name, build.arguments)
        if tool := self._tool(build, said):
            return self._build_outside(build, tool)
        origin = self._origin(build, said, line)
        recipe = dockerfile.read(text, build.file.name, build.arguments, origin.image)
        with Folder.open(build.context) as context:
            copied = _Context(context, build)
            keys = _keys(origin, recipe, copied)
            row, done, point = self._find(build, origin, keys)
            faults.reach("build.found")
            for step in recipe.steps[:done]:
                build.progress(
                    f"step {recipe.steps.index(step) + 1} of {len(keys)} was done before: {step.text}"
                )
            if done < len(keys):
                row = self._enter(build, origin, row, point)
                faults.reach("build.entered")
                for number in range(done, len(keys)):
                    build.progress(f"step {number + 1} of {len(keys)}: {recipe.steps[number].text}")
                    point = self._step(build, row, recipe.steps[number], copied, keys[number])
        # Before the base exists: an import that fails in here finds all steps done when it is asked again.
        if row and self._registry.running(row.id):
            self._sessions.stop(self._registry.find(row.id), discard=True)
        return self._publish(build, origin, recipe, point, keys)

    # ---- by another tool ---------------------------------------------------------------------

    def _tool(self, build: Build, said: str) -> str | None:
        """The program that builds it. None of them knows the bases of this home."""
        own = said in {base.name for base in store.list_bases(self._pool)} or _is_image(build, said)
        return None if own and build.builder == "auto" else tools.find_tool(build.builder)

    def _build_outside(self, build: Build, tool: str) -> Base:
        folder = self._registry.home.staging / f"image-{new_id()}"
        try:
            with translated(f"build {build.file.name}"):
                folder.mkdir(mode=0o700)
            image = folder / build.file.name
            tools.build_image(
                tool,
                build.name,
                build.file,
                build.context,
                build.arguments,
                image,
                build.progress,
                build.gone,
            )
            return store.import_base(self._pool, build.name, image, build.progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- what a file begins with -------------------------------------------------------------

    def _origin(self, build: Build, said: str, line: int) -> Base:
        if said == dockerfile.SCRATCH:
            return store.empty_base(self._pool, dockerfile.SCRATCH)
        if said in {base.name for base in store.list_bases(self._pool)}:
            store.require_own(self._pool, said)
            return store.read_base(self._pool, said)
        if _is_image(build, said):
            folder = build.context / said
            with Folder.open(folder) as image:
                digest = hashlib.sha256(_small_text(image, "index.json")).hexdigest()
            name = f"image-{digest[:12]}"
            if not any(base.name == name for base in store.list_bases(self._pool)):
                store.import_base(self._pool, name, folder, build.progress)
            store.require_own(self._pool, name)
            return store.read_base(self._pool, name)
        names = ", ".join(base.name for base in store.list_bases(self._pool)) or "none"
        raise NotFound(
            f"{build.file.name}, line {line}: there is no base {said!r}, and no registry is asked",
            hint=Hint(
                f"import it under that name first (there are: {names}) with ",
                Do("base_import", "name", "file"),
                ", or install buildah or podman",
            ),
            line=line,
        )

    # ---- the session and its points ----------------------------------------------------------

    def _find(
        self, build: Build, origin: Base, keys: list[str]
    ) -> tuple[SessionRow | None, int, Checkpoint | None]:
        """The session that builds this base, how many steps are done, and the point behind them. A session
        that does not exist yet begins with what others have done."""
        row = self._registry.store.sessions.find(_session_name(build.name))
        if row and not row.options.build:
            raise UsageError(
                f"there is a session {row.name!r} that builds no base",
                hint=Hint(
                    "choose another name for the base, or remove it with ", Do("rm", sessions=[row.name])
                ),
            )
        if row and row.options.base != origin.name:  # the file begins with something else now
            self._removals.remove([row])
            row = None
        points = self._registry.store.points.all(row.id if row else None)
        for done in range(len(keys), 0, -1):
            for point in points:
                named = (point.name or "").startswith(keys[done - 1])
                if named and point.damage is None and point.restorable != "failed":
                    return row, done, point
        return row, 0, None

    def _enter(
        self, build: Build, origin: Base, row: SessionRow | None, point: Checkpoint | None
    ) -> SessionRow:
        """The session, live, as it was behind the last step that is done."""
        name = _session_name(build.name)
        if point:
            if row:
                self._restore.to(row, point.id, safety=self._registry.running(row.id) is not None)
            else:
                self._fork.grow(self._registry.find(point.session), point.id, name=name, hook_seconds=None)
        else:
            if row:
                self._removals.remove([row])
            options = BoxOptions(base=origin.name, build=True)
            self._sessions.new(name, options, Size(), needs_shell=False)
        return self._registry.find(name)

    def _step(self, build: Build, row: SessionRow, step: Step, context: _Context, key: str) -> Checkpoint:
        where = f"{build.file.name}, line {step.line}"
        live, action = self._registry.live(row), step.action
        if isinstance(action, Run):
            self._run(build, row, live, step, action)
        else:
            with _root(live) as root, translated(f"carry out {where}"):
                if isinstance(action, MakeFolder):
                    _make_folders(root, action.path)
                else:
                    _copy(context, action, step, root, where)
        faults.reach("build.carried_out")
        name = key
        if self._registry.store.points.name_taken(row.id, key):  # of a point that cannot be used
            name = f"{key}-{self._registry.store.points.next_number(row.id)}"
        return self._capture.checkpoint(row, Wish(step.text, name=name, actor="automatic"))

    def _run(self, build: Build, row: SessionRow, live: Live, step: Step, run: Run) -> None:
        where = f"{build.file.name}, line {step.line}"
        with self._gate.passing(row, run.argv, build.asker) as passed:
            with self._registry.death_named(row, live):
                exit_code, output = self._run_to_end(build, row, live, run)
            passed.ended(exit_code, timed_out=exit_code is None)
        if exit_code == 0:
            return
        how = "did not end in time" if exit_code is None else f"ended with exit code {exit_code}"
        shown = "\n".join(output.decode(errors="replace").rstrip().splitlines()[-_SHOWN_LINES:])
        look = Do("spawn", "argv", session=row.name)
        if live.terminal.shell:
            look = Do("attach", session=row.name)
        raise CommandFailed(
            f"{where}: RUN {run.shown} {how}" + (f":\n{shown}" if shown else ""),
            hint=Hint(
                f"the steps before it are done; look at the session {row.name!r} as it is now with ",
                look,
                ", correct the file, and import it again",
            ),
            line=step.line,
            exit_code=exit_code,
        )

    def _run_to_end(
        self, build: Build, row: SessionRow, live: Live, run: Run
    ) -> tuple[int | None, bytearray]:
        """The exit code (None: it was ended) and the end of the output of a command. All that it has started
        has ended too."""
        record, tail = ProgramOutput(run.argv, run.workdir), bytearray()
        environment = {**_PROGRAM_ENVIRONMENT, **run.env}
        with _root(live) as root:
            _make_folders(root, run.workdir)  # an image may name one that it does not have
        program, pipes = self._commands.spawn(
            row, run.argv, run.workdir, environment, shell_env=False, user=run.user or "root"
        )
        deadline = time.monotonic() + STEP_SECONDS
        with contextlib.ExitStack() as held:
            for fd in pipes[1:]:
                held.callback(os.close, fd)
            os.close(pipes[0])
            poll = select.poll()
            for fd in pipes[1:]:
                poll.register(fd, select.POLLIN)
            is_open, finishing, killed = set(pipes[1:]), False, False
            while is_open or not program.ended.is_set():
                has_ended = program.ended.is_set()
                is_late = time.monotonic() > deadline
                if finishing and is_late:
                    break
                if not finishing and (has_ended or is_late or build.gone()):
                    # What still runs holds the pipes: without it they end.
                    finishing, killed = True, not has_ended
                    deadline = time.monotonic() + faults.limit(_END_SECONDS)
                    _end_programs(live)
                if not is_open:
                    program.ended.wait(_LOOK_SECONDS)
                for fd, _ in poll.poll(_LOOK_SECONDS * 1000) if is_open else ():
                    if data := os.read(fd, 1 << 16):
                        record.add(data)
                        tail = (tail + data)[-_KEPT_BYTES:]
                    else:
                        poll.unregister(fd)
                        is_open.discard(fd)
        _end_programs(live)
        exit_code = None if killed else program.exit_code
        event = record.record(exit_code)
        live.stream.add(event.kind, event.body, actor=build.asker.actor, data=event.data)
        return exit_code, tail

    # ---- the base ----------------------------------------------------------------------------

    def _publish(
        self, build: Build, origin: Base, recipe: Recipe, point: Checkpoint | None, keys: list[str]
    ) -> Base:
        """The point behind the last step, as a tree of its own."""
        build.progress("putting the base together")
        start = store.base_path(self._pool, origin.name)

        def fill(staged: Path) -> Base:
            tree, left_out = staged / "files", list(origin.warnings)
            if point:
                with self._registry.using(point), Folder.open(tree) as root:
                    row = self._registry.find(point.session)
                    left_out = self._transfer.land_all(row, point, root)
            faults.reach("build.landed")
            return store.describe(
                tree,
                build.name,
                "dockerfile",
                build.file.name,
                left_out,
                digest=f"sha256:{_digest([keys[-1] if keys else '', msgspec.to_builtins(recipe.image)])}",
                image=recipe.image,
                empty=origin.name == dockerfile.SCRATCH,
            )

        return store.make_base(self._pool, build.name, build.file.name, fill, build.progress, start=start)


# ---- keys ---------------------------------------------------------------------------------------


def _is_image(build: Build, said: str) -> bool:
    """Whether a file begins with an OCI image in a folder."""
    return "/" in said and is_image_folder(build.context / said)


def _session_name(base: str) -> str:
    return f"build-{base}"[:64]


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _keys(origin: Base, recipe: Recipe, context: _Context) -> list[str]:
    """For each step a name that stands for it and for all that came before it."""
    before, keys = _digest([origin.name, origin.digest]), []
    for step in recipe.steps:
        action: object = msgspec.to_builtins(step.action)
        if isinstance(step.action, Copy):
            action = [action, [[*source.about] for source in context.sources(step, step.action)]]
        before = _digest([before, type(step.action).__name__, action])
        keys.append(f"{_CACHE_NAME}{before[:_KEY_DIGITS]}")
    return keys


def _small_text(folder: Folder, name: str) -> bytes:
    """A file that should be a small one. The context may be hostile: a pipe would never answer, a device or a
    sparse file would fill the memory."""
    with translated(f"read {name}"), open(folder.open_file(name), "rb") as opened:
        data = opened.read(dockerfile.MAX_BYTES + 1)
    if len(data) > dockerfile.MAX_BYTES:
        raise UsageError(f"{name} is too large", hint=f"{dockerfile.MAX_BYTES:,} bytes are enough for it")
    return data


def _text_of(file: Path) -> str:
    with translated(f"read {file.name}"), file.open("rb") as opened:
        data = opened.read(dockerfile.MAX_BYTES + 1)
    if len(data) > dockerfile.MAX_BYTES:
        raise UsageError(f"{file.name} is too large for a Dockerfile", hint="give another file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.name} is not valid UTF-8", hint="give a text file") from error


# ---- running ------------------------------------------------------------------------------------


def _end_programs(live: Live) -> None:
    """Ends what runs beside the shell: the next command does not find it, as it would not in an image."""
    shell = live.terminal.shell
    deadline = time.monotonic() + faults.limit(_END_SECONDS)
    while time.monotonic() < deadline:
        below = processes.below(live.box.pid)
        # The shell's processes are in the terminal's session, everything that was started beside it is not.
        kept = {process.session for process in below if shell and process.pid == shell.pid}
        left = [
            process.host_pid
            for process in below
            if process.session not in kept and process.comm != "waypoint-anchor"
        ]
        if not left:
            return
        for host_pid in left:
            with contextlib.suppress(OSError):
                os.kill(host_pid, signal.SIGKILL)
        time.sleep(0.01)


# ---- files --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _root(live: Live) -> Iterator[Folder]:
    with Folder.root_of_box(live.box) as root:
        yield root


def _make_folders(root: Folder, path: str, owner: tuple[int, int] = (0, 0)) -> None:
    """A folder with those above it. Links are followed inside the session."""
    made = ""
    for name in path.strip("/").split("/"):
        above, made = made, f"{made}/{name}"
        try:
            root.enter(made).close()
        except FileNotFoundError:
            with root.enter(above or "/") as folder:
                folder.put_folder(name, Metadata(0o755, owner))


class _Context:
    """The folder whose files COPY and ADD take. No link leads out of it."""

    def __init__(self, root: Folder, build: Build) -> None:
        self.root, self._name = root, build.file.name
        self._known: dict[int, list[_Source]] = {}
        ignored = ""
        for name in (f"{build.file.name}.dockerignore", ".dockerignore"):
            with contextlib.suppress(NotFound):
                ignored = _small_text(root, name).decode(errors="replace")
                break
        self._ignored = Ignored(ignored)

    def sources(self, step: Step, copy: Copy) -> list[_Source]:
        """What a step copies, parents first."""
        if step.line not in self._known:
            self._known[step.line] = [
                source for path in self._paths(step, copy) for source, _ in self._tree(path, digests=True)
            ]
        return self._known[step.line]

    def pieces(self, step: Step, copy: Copy) -> Iterator[tuple[_Source, str]]:
        """The same, each with a path by which its bytes can be read until the next one is taken."""
        known = iter(self.sources(step, copy))
        for path in self._paths(step, copy):
            for source, data in self._tree(path, digests=False):
                before = next(known, None)
                if before is None or before.path != source.path or not is_same(before.entry, source.entry):
                    raise UsageError(f"{source.path} has just been changed", hint="import again")
                yield source, data

    def _paths(self, step: Step, copy: Copy) -> Iterator[str]:
        for said in copy.sources:
            paths = self._fitting(said)
            if not paths:
                raise NotFound(
                    f"{self._name}, line {step.line}: there is no {said} in the context",
                    hint="paths start in the folder of the Dockerfile, unless another context is given",
                    line=step.line,
                )
            yield from paths

    def _fitting(self, said: str) -> list[str]:
        """The paths of the context that a word of COPY means."""
        steps = [step for step in posixpath.normpath(posixpath.join("/", said)).split("/") if step]
        paths = [""]
        for step in steps:
            if dockerfile.has_wildcards(step):
                names = ((path, name) for path in paths for name in self._names(path))
                paths = [
                    f"{path}/{name}".lstrip("/") for path, name in names if dockerfile.matches(name, step)
                ]
            else:
                paths = [f"{path}/{step}".lstrip("/") for path in paths]
        return [path for path in paths if not path or (self._exists(path) and not self._ignored.hides(path))]

    def _names(self, path: str) -> list[str]:
        with contextlib.suppress(OSError), self.root.enter(path) as folder:
            return folder.names("")
        return []

    def _exists(self, path: str) -> bool:
        with contextlib.suppress(OSError), self._holding(path) as (folder, name):
            return not name or folder.look(name) is not None
        return False

    @contextlib.contextmanager
    def _holding(self, path: str) -> Iterator[tuple[Folder, str]]:
        """A folder of the context, and what is meant in it; an empty name is the folder itself."""
        try:
            folder, name = self.root.enter(path), ""
        except (NotADirectoryError, FileNotFoundError):
            folder, name = self.root.destination(path)
        with folder:
            yield folder, name

    def _tree(self, path: str, *, digests: bool) -> Iterator[tuple[_Source, str]]:
        with translated(f"read {path or '.'}"), self._holding(path) as (folder, name):
            for node in folder.walk(name):
                inside = posixpath.join(path, node.path).strip("/")
                if inside and self._ignored.hides(inside) and not node.entry.is_folder:
                    continue
                # A file goes under its own name; of a folder only the content is copied.
                target = node.path if not name else posixpath.basename(path)
                digest = _content(node.data) if digests and node.entry.is_file else ""
                link = files.target(node.where) if node.entry.is_link else None
                named = bool(name) and node.entry.is_file
                yield _Source(inside, target, node.entry, link, digest, named), node.data


def _content(path: str) -> str:
    fd = files.open_file(path)
    with open(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(context: _Context, copy: Copy, step: Step, root: Folder, where: str) -> None:
    """Copies files of the context into a session, as COPY and ADD do."""
    owner = _owner(root, copy.owner, where)
    into = copy.target
    sources = context.sources(step, copy)
    only = sources[0] if len(sources) == 1 and not sources[0].entry.is_folder else None
    renamed = ""
    if only and not into.endswith("/") and not _is_folder(root, into):
        into, renamed = posixpath.split(into)
    _make_folders(root, into, owner)
    for source, data in context.pieces(step, copy):
        if copy.unpack and source.named and _is_archive(data):
            with root.enter(into) as folder:
                _unpack(data, folder, source.path, leave=_OF_THE_BOX if into == "/" else ())
            continue
        _put(root, posixpath.join(into, renamed or source.target), source, data, copy.mode, owner, where)


def _unpack(data: str, folder: Folder, name: str, *, leave: Collection[str]) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.fd)
    try:
        unpacker = Unpacker(fd, leave=leave, in_userns=folder.in_userns)
    finally:
        os.close(fd)
    with contextlib.closing(unpacker), open(files.open_file(data), "rb", buffering=0) as raw:
        unpacker.apply(decompress(raw, name), name, whiteouts=False)
        unpacker.finish()


def _owner(root: Folder, said: str, where: str) -> tuple[int, int]:
    if not said:
        return 0, 0
    try:
        user = find_user(root, said)
    except NotFound as error:
        raise NotFound(f"{where}: {error.message}", hint="make it with RUN before this line") from error
    return user.uid, user.gid


def _put(
    root: Folder, path: str, source: _Source, data: str, mode: int | None, owner: tuple[int, int], where: str
) -> None:
    entry = source.entry
    if path.strip("/").split("/")[0] in _OF_THE_BOX:
        return
    if entry.is_folder:
        if not _is_folder(root, path):
            _make_folders(root, path, owner)
        if source.target:  # the folder that is copied into is not one of those that are copied
            with root.enter(posixpath.dirname(path.rstrip("/")) or "/") as folder:
                name = posixpath.basename(path.rstrip("/"))
                there = folder.look(name)
                if there and there.is_folder:
                    folder.set_metadata(name, Metadata(mode or stat.S_IMODE(entry.mode), owner, {}))
        return
    head, name = posixpath.split(path)
    metadata = Metadata(mode or stat.S_IMODE(entry.mode), owner, {}, entry.mtime_ns)
    with root.enter(head or "/") as folder:
        there = folder.look(name)
        if there and there.is_folder:
            raise UsageError(
                f"{where}: {path} is a folder, and {source.path} is none", hint="correct the line"
            )
        if entry.is_link:
            folder.put_link(name, source.link or "", metadata)
        elif entry.is_file:
            folder.put_file(name, data, metadata)
        else:
            raise UsageError(f"{where}: {source.path} is a {entry.kind}", hint="leave it out of the context")


def _is_folder(root: Folder, path: str) -> bool:
    with contextlib.suppress(OSError):
        root.enter(path).close()
        return True
    return False


def _is_archive(path: str) -> bool:
    """Whether ADD unpacks it: a tar, compressed or not."""
    with contextlib.suppress(UsageError, OSError, EOFError, ValueError, tarfile.TarError):
        with open(files.open_file(path), "rb", buffering=0) as raw:
            start = decompress(raw, "").read(tarfile.BLOCKSIZE)
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
        return True
    return False
