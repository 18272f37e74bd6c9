"""Changes without a kernel: how they are counted, folded, named and sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from waypoint.api.difference import Change, ChangeKind, Changes
from waypoint.api.findings import (
    AccountChange,
    Analysis,
    CronChange,
    DatabaseChange,
    Finding,
    PackageChange,
    RepositoryChange,
    SystemChange,
)
from waypoint.box.volume import note_hidden, noted_hidden
from waypoint.errors import UsageError
from waypoint.history.changes import (
    Fold,
    Thing,
    box_path,
    compare_views,
    fold_noisy,
    is_noise,
    noisy_folder,
    total,
)
from waypoint.history.view import PointView
from waypoint.kernel.copytree import remove_tree
from waypoint.kernel.pool.deltas import by_walk
from waypoint.text.files import name_files, summarize_files


def change(path: str, kind: ChangeKind = "created", size: int = 10, **more: object) -> Change:
    found = Change(
        path=path, kind=kind, entry="file", size_after=size, what=("content",) if kind == "modified" else ()
    )
    return msgspec.structs.replace(found, **more)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/app/main.py", None),
        ("/app/node_modules/x/node_modules/y.js", "/app/node_modules"),
        ("/root/.cache/pip/http/a", "/root/.cache"),
        ("/app/.git/objects/ab/cdef", "/app/.git/objects"),
        ("/app/.git/HEAD", None),
        ("/app/.venv/lib/python3.11/site-packages/flask/__init__.py", "/app/.venv/lib"),
        ("/usr/lib/python3/dist-packages/x.py", "/usr/lib/python3/dist-packages"),
        ("/var/cache/apt/pkgcache.bin", "/var/cache"),
        ("/srv/var/cache/x", None),
        ("/app/node_modules", None),
        ("/x/__pycache__/a.pyc", "/x/__pycache__"),
        ("/", None),
    ],
)
def test_noisy_folders_are_known_by_their_names(path: str, folder: str | None) -> None:
    assert noisy_folder(path) == folder


def test_a_noisy_folder_is_in_itself_and_a_file_of_that_name_is_not() -> None:
    assert noisy_folder("/app/node_modules", is_folder=True) == "/app/node_modules"
    assert noisy_folder("/node_modules", is_folder=True) == "/node_modules"


def test_noisy_folders_are_folded_with_their_sums() -> None:
    changes = Changes(
        changes=(
            change("/app/a.py", "modified"),
            change("/app/node_modules", entry="folder", size_after=None),
            *(change(f"/app/node_modules/{number}.js") for number in range(1842)),
            change("/app/node_modules/1.js", "modified", 5),
            change("/app/node_modules/old", "deleted"),
        )
    )
    folded = fold_noisy(changes)
    assert [one.path for one in folded.changes] == ["/app/a.py"]
    files = frozenset[Thing](["file"])
    assert folded.folds == (
        Fold(path="/app/node_modules", created=1842, modified=1, deleted=1, things=files, bytes=18425),
    )
    assert summarize_files(changes) == "~1 file, +1,842 ~1 -1 in /app/node_modules"


def test_headlines_say_how_many_files() -> None:
    def words(*found: Change) -> str:
        return summarize_files(Changes(changes=found))

    folder = change("/d", entry="folder")
    assert words() == ""
    assert words(change("/a")) == "+1 file"
    assert words(change("/a"), change("/b"), change("/c", "modified")) == "+2 ~1 files"
    assert words(folder) == "+ /d/"
    assert words(change("/e", entry="folder"), folder, change("/f", entry="folder")) == "3 folders"
    assert words(folder, change("/d/f")) == "+1 file"
    assert words(change("/d", "deleted", entry="folder", files=12000)) == "-12,000 files"
    assert words(change("/n/node_modules/a")) == "+1 file (/n/node_modules)"
    assert words(change("/n/node_modules/d", entry="folder")) == "folders in /n/node_modules"
    link = change("/l", links_to="/a")
    assert words(link) == "+1 hard link"
    assert words(link, change("/m", "deleted", links_to="/a")) == "+1 -1 hard links"
    assert words(link, change("/a")) == "+2 files and hard links"
    assert words(link, change("/n/node_modules/a", links_to="/a")) == "+1 hard link, +1 in /n/node_modules"
    # Only what is a file is called one.
    folders = [change(f"/{name}", "renamed", entry="folder", old_path=f"/o/{name}") for name in "de"]
    assert words(folders[0]) == "→1 folder"
    assert words(*folders, change("/f", "modified", entry="folder", what=("mode",))) == "~1 →2 folders"
    assert words(change("/a"), folders[0]) == "+1 →1 files and folders"
    assert words(change("/l", entry="link")) == "+1 symlink"
    assert (
        words(change("/s", "deleted", entry="socket"), change("/p", entry="fifo"))
        == "+1 -1 fifos and sockets"
    )
    every = words(*folders, change("/a"), link, change("/l", entry="link"), change("/m", entry="device"))
    assert every == "+4 →2 files, folders, symlinks, hard links and devices"
    # A folder of the base that went with its files is these files.
    assert words(change("/d", "deleted", entry="folder", files=3), change("/e", "deleted")) == "-4 files"
    assert words(change("/n/node_modules/.bin", entry="link")) == "+1 symlink (/n/node_modules)"
    # Which `bin` it is.
    assert words(change("/srv/app/.venv/bin/x", "deleted"), change("/a")) == "+1 file, -1 in .venv/bin"
    two = words(change("/srv/a/venv/bin/x"), change("/srv/b/venv/bin/x"), change("/f"))
    assert two == "+1 file, +1 in /srv/a/venv/bin, +1 in /srv/b/venv/bin"
    assert (
        words(change("/n/node_modules/a"), change("/x/.cache/b")) == "+2 files (/n/node_modules, /x/.cache)"
    )


def named(*found: Change, findings: Sequence[Finding] = (), beside: bool = True) -> str:
    return name_files(Changes(changes=found), Analysis(findings=tuple(findings)), beside=beside)


def test_the_line_of_a_log_names_two_files_and_counts_the_rest() -> None:
    assert named(change("/srv/app/api.py", "modified"), change("/x")) == "+ /x, ~ /srv/app/api.py"
    assert named(change("/a/new", "renamed", old_path="/a/old")) == "/a/old → /a/new"
    assert named(*(change(f"/w/{name}") for name in "abc")) == "+ /w/a, + /w/b and 1 more file"
    some = [change("/w/a"), *(change(f"/w/{n}", "deleted") for n in (1, 2)), change("/w/m", "modified")]
    assert named(*some) == "- /w/1, - /w/2 and 2 more files (+1 ~1)"
    gone = change("/w/gone", "deleted", entry="folder", files=1200)
    assert named(change("/w/a"), gone) == "+ /w/a, - /w/gone/ (1,200 files)"
    # A folder is named where nothing in it is; what lies deep, hidden or in the system comes last.
    order = [change("/etc/x"), change("/w/.env"), change("/w/d", entry="folder"), change("/w/d/f")]
    assert named(*order) == "+ /w/d/f, + /w/.env and 1 more file"
    # A log is named only where it is all there is to tell.
    assert named(*order, change("/w/run.log")) == named(*order)
    assert named(change("/w/run.log"), beside=False) == "+ /w/run.log"
    assert named(change("/w/d", entry="folder")) == "+ /w/d/"
    folders = [change(f"/w/{name}", entry="folder") for name in "abc"]
    assert named(*folders) == "+ /w/a/, + /w/b/ and 1 more folder"
    # Folders are not counted as files, and neither are further names of files.
    files = [change(f"/w/{name}") for name in "123"]
    assert named(*files, *folders) == "+ /w/1, + /w/2 and 4 more"
    gone = change("/w/gone", "deleted", entry="folder")
    assert named(*files, *folders, gone) == "+ /w/1, + /w/2 and 5 more (+4 -1)"
    links = [change(f"/w/link{number}", links_to="/w/1") for number in range(3)]
    assert named(*links) == "+ /w/link0 (hard link), + /w/link1 (hard link) and 1 more hard link"
    assert named(*files, *links) == "+ /w/1, + /w/2 and 4 more"
    # A folder that has another mode is named, also where something in it is; one that is only new is not.
    above = change("/w/pkg", "modified", entry="folder", what=("mode",))
    assert named(above, change("/w/pkg/__pycache__/x.pyc"), change("/w/a")) == "+ /w/a, ~ /w/pkg/"
    assert named(above, change("/w/pkg/a")) == "+ /w/pkg/a, ~ /w/pkg/"
    assert named(change("/w/pkg", entry="folder"), change("/w/pkg/a")) == "+ /w/pkg/a"
    assert named(change("/home/me/projects/shop/api/pay.py")) == "+api/pay.py"
    inside = RepositoryChange(path="/srv/app", change="changed")
    assert named(change("/srv/app/src/deep/pay.py"), findings=[inside]) == "+src/deep/pay.py"
    other = RepositoryChange(path="/srv/tree", change="changed")
    both = [change("/srv/app/a.py"), change("/srv/tree/a.py")]
    assert named(*both, findings=[inside, other]) == "+ /srv/app/a.py, + /srv/tree/a.py"


def test_what_a_finding_explains_is_not_named_again() -> None:
    table = DatabaseChange(path="/w/app.db", change="changed")
    assert named(change("/w/app.db", "modified"), change("/w/app.db-wal"), findings=[table]) == ""

    def package(ecosystem: str, environment: str) -> PackageChange:
        return PackageChange(
            ecosystem=ecosystem, environment=environment, name="x", change="added", after="1"
        )

    venv = [change("/w/.venv/bin/x"), change("/w/.venv/lib/y"), change("/w/a.py")]
    assert named(*venv, findings=[package("pip", "/w/.venv")]) == "+ /w/a.py"
    assert named(change("/w/.venv/pyvenv.cfg"), *venv) == "+ /w/a.py, + /w/.venv/"
    assert named(change("/w/node_modules/m/x"), findings=[package("npm", "/w")]) == ""
    assert named(change("/w/node_modules/m/x")) == "+1 in /w/node_modules"
    conda = [
        change("/opt/c/envs/ml/conda-meta/x.json"),
        change("/opt/c/pkgs/x/y"),
        change("/opt/c/envs/ml/a.py"),
    ]
    assert named(*conda, findings=[package("conda", "/opt/c/envs/ml")]) == "+ /opt/c/envs/ml/a.py"
    system = [change("/usr/bin/jq"), change("/var/lib/dpkg/status", "modified"), change("/etc/motd")]
    assert named(*system, findings=[package("apt", "/")]) == "+ /etc/motd"
    assert named(*system) == "+ /etc/motd, + /usr/bin/jq and 1 more file (~1)"


def test_files_of_users_and_groups_are_told_with_them() -> None:
    files = [change(f"/etc/{name}", "modified") for name in ("passwd", "passwd-", "shadow", "profile")]
    account = AccountChange(name="ann", change="created")
    assert named(*files, findings=[account]) == "~ /etc/profile"
    assert named(*files) == "~ /etc/passwd, ~ /etc/passwd- and 2 more files"
    job = CronChange(path="/etc/cron.d/job", change="created")
    keys = SystemChange(subject="keys", name="/root/.ssh/authorized_keys", change="changed")
    both = [change("/etc/cron.d/job"), change("/root/.ssh/authorized_keys", "modified")]
    assert named(*both, change("/x"), findings=[job, keys]) == "+ /x"


def test_caches_and_what_a_shell_does_at_its_start_need_no_word_beside_others() -> None:
    noise = [
        change("/w/__pycache__/x.pyc"),
        change("/root/.pyenv/shims/pip", "modified"),
        change("/root/.bash_history", "modified"),
    ]
    assert named(*noise, change("/w/a")) == "+ /w/a"
    assert named(*noise) == ""
    alone = named(*noise, beside=False)
    assert alone == "caches only: ~1 file, ~1 in .pyenv/shims, +1 in /w/__pycache__"
    assert named(change("/w/.git/index", "modified"), beside=False) == "~1 file (/w/.git)"
    # Modules that were compiled at their first use were not installed.
    compiled = [change(f"/w/lib/site-packages/{name}/__pycache__/x.pyc") for name in "ab"]
    assert named(*compiled) == ""
    assert named(*compiled, change("/w/lib/site-packages/a/x.py")) == "+3 in lib/site-packages"
    # What a server keeps in shared memory is no file of the user's.
    assert named(change("/dev/shm/PostgreSQL.17", "modified"), change("/etc/motd")) == "+ /etc/motd"
    assert summarize_files(Changes(changes=(change("/root/.pyenv/shims/pip"),))) == "+1 file (.pyenv/shims)"


def test_a_summary_counts_files_not_folders() -> None:
    summary = total(
        Changes(
            changes=(
                change("/d", entry="folder", size_after=None),
                change("/d/f", size=100),
                change("/e", "deleted", entry="folder", files=7, files_bytes=70, at_least=True),
                change("/m", "modified", 50),
                change("/mode", "modified", 50, what=("mode",)),
                change("/r", "renamed", old_path="/q"),
            )
        )
    )
    assert (summary.created, summary.modified, summary.deleted, summary.renamed) == (1, 2, 7, 1)
    assert summary.folders == 2
    assert summary.bytes_written == 150
    assert summary.things == {"file"}
    links = total([change("/l", links_to="/a"), change("/m", "deleted", links_to="/a")])
    assert (links.created, links.deleted, links.bytes_written) == (1, 1, 0)
    assert links.things == {"hard link"}
    assert summary.at_least


def test_volumes_are_seen_at_their_places_in_the_box() -> None:
    assert box_path("upper") == "/"
    assert box_path("upper/etc/x") == "/etc/x"
    assert box_path("shm/segment") == "/dev/shm/segment"
    assert box_path("mounts/%2Fhome/me") == "/home/me"
    assert box_path("mounts/%2Fhome") == "/home"
    assert box_path("mounts/%2Fdata%2Fa%20b/x") == "/data/a b/x"
    assert box_path("mounts") is None
    assert box_path("work-1/base") is None
    assert is_noise("work-abc")
    assert not is_noise("upper")


def test_changes_travel_as_json() -> None:
    changes = Changes(changes=(change("/a"), change("/b", "renamed", old_path="/c")))
    assert msgspec.json.decode(msgspec.json.encode(changes), type=Changes) == changes
    assert bool(changes)
    assert len(changes) == 2
    assert not Changes()


# ---- layers made by hand ------------------------------------------------------------------------


def volume(path: Path, files: dict[str, str]) -> Path:
    for folder in ("upper", "mounts", "shm"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / "upper" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "upper" / name).write_text(text)
    return path


def test_layers_on_any_disk_are_compared(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "hosts").write_text("localhost\n")
    (base / "etc" / "same").write_text("same\n")
    old = volume(
        tmp_path / "old", {"etc/hosts": "localhost\nbox\n", "app/main.py": "1\n", "app/old.py": "x\n"}
    )
    new = volume(tmp_path / "new", {"etc/same": "same\n", "app/main.py": "2\n", "app/new.py": "y\n"})
    found = compare_views(PointView(old, base), PointView(new, base), by_walk(old, new))
    assert [(one.kind, one.path, one.what) for one in found] == [
        ("modified", "/app/main.py", ("content",)),
        ("created", "/app/new.py", ()),
        ("deleted", "/app/old.py", ()),
        ("modified", "/etc/hosts", ("content",)),
    ]
    assert [one.path for one in compare_views(None, PointView(new, base))] == [
        "/app",
        "/app/main.py",
        "/app/new.py",
    ]
    with pytest.raises(UsageError):
        compare_views(PointView(old, tmp_path), PointView(new, base))


def test_a_moved_file_is_known_by_its_content_and_time_where_inodes_tell_nothing(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    old = volume(tmp_path / "old", {"a/one": "content\n", "a/two": "content\n", "a/empty": ""})
    new = volume(tmp_path / "new", {"b/one": "content\n", "b/two": "content\n", "b/empty": ""})
    for path in (old / "upper" / "a" / "one", new / "upper" / "b" / "one"):
        os.utime(path, ns=(1, 1))
    found = compare_views(PointView(old, base), PointView(new, base), by_walk(old, new))
    assert [(one.kind, one.old_path, one.path) for one in found if one.entry == "file"] == [
        ("deleted", None, "/a/empty"),
        ("deleted", None, "/a/two"),
        ("created", None, "/b/empty"),
        ("renamed", "/a/one", "/b/one"),
        ("created", None, "/b/two"),
    ]


def test_what_is_hidden_does_not_change(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    new = volume(tmp_path / "new", {"secret/x": "1", "proc/x": "1", "dev/x": "1", "seen": "1"})
    found = compare_views(None, PointView(new, base, hide=["/secret"]))
    assert [one.path for one in found] == ["/seen"]


def test_a_very_deep_tree_is_no_problem(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    new = volume(tmp_path / "new", {})
    deep = str(new / "upper")
    for _ in range(1200):
        deep += "/d"
        os.mkdir(deep)
    try:
        assert len(compare_views(None, PointView(new, base))) == 1200
    finally:
        parent = os.open(tmp_path, os.O_RDONLY)
        remove_tree(parent, "new")
        os.close(parent)


def test_what_was_hidden_when_a_session_began_is_noted_in_its_volume(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "var/other").mkdir(parents=True)
    note_hidden(tmp_path, ["/var/other", "/var/gone"])
    # What the base has no more can be made by the session itself.
    assert noted_hidden(tmp_path, base) == ["/var/other"]
    (tmp_path / "elsewhere").mkdir()
    assert noted_hidden(tmp_path / "elsewhere", base) == []


def test_a_server_with_a_snapshot_alone_has_no_folder() -> None:
    changes = Changes(
        changes=(change("/srv/dump.rdb"), change("/srv/pg", entry="folder"), change("/srv/pg/a"))
    )
    folded = fold_noisy(changes, ["/srv/dump.rdb", "/srv/pg"])
    assert [one.path for one in folded.changes] == ["/srv/dump.rdb"]
    assert [fold.path for fold in folded.folds] == ["/srv/pg"]
