"""The X-ray of a real session over the host: what its points tell, against what was done in it."""

from __future__ import annotations

import os
from pathlib import Path

import waypoint
from waypoint.api.difference import Changes
from waypoint.history.changes import compare_views, is_noise, total
from waypoint.history.view import PointView
from waypoint.home import Home
from waypoint.kernel.pool.deltas import by_send, by_walk


def view(home: Home, point: waypoint.Checkpoint) -> PointView:
    return PointView(
        home.checkpoints / point.info.id / "files", Path("/"), hide=[str(home.path), "/run/waypoint"]
    )


def between(home: Home, old: waypoint.Checkpoint, new: waypoint.Checkpoint) -> Changes:
    one, other = (home.checkpoints / point.info.id / "files" for point in (old, new))
    deltas = by_send(one, other, skip=is_noise)
    assert deltas == by_walk(one, other, skip=is_noise)
    return compare_views(view(home, old), view(home, new), deltas)


def told(changes: Changes) -> set[str]:
    """What happened, the shell's own traces aside."""
    return {
        f"{change.kind} {change.old_path or ''} {change.path}".replace("  ", " ")
        for change in changes
        if not change.path.startswith(("/root/", "/tmp/", "/var/log/", "/var/cache/"))
    }


def large_folder() -> str:
    """A folder of the host with a few files in it and nothing mounted on it."""
    for folder, _, files in os.walk("/usr/share"):
        if len(files) > 5 and " " not in folder:
            return folder
    raise AssertionError("no folder in /usr/share")


def test_points_of_a_session_tell_what_was_done_in_it(home: Home, session: waypoint.Session) -> None:
    folder = large_folder()
    count = sum(len(names) for _, _, names in os.walk(folder))
    session.run(
        "mkdir -p /srv/app/lib && cd /srv/app && echo 1 > one && echo 2 > two && echo 3 > lib/three"
    ).check()
    first = session.checkpoint("start", files_only=True)
    session.run("echo 11 > one; mv two second; mv lib library; echo new > new; chmod 600 /etc/passwd").check()
    session.run(
        f"mv {folder} /srv/moved; echo x > /dev/shm/segment; touch /etc/group; rm /etc/hostname"
    ).check()
    second = session.checkpoint("changed", files_only=True)
    changes = between(home, first, second)
    assert told(changes) == {
        *("modified /srv/app/one", "renamed /srv/app/two /srv/app/second"),
        *("renamed /srv/app/lib /srv/app/library", "created /srv/app/new", "modified /etc/passwd"),
        *(f"renamed {folder} /srv/moved", "created /dev/shm/segment", "deleted /etc/hostname"),
    }
    there = view(home, second)
    assert there.read("/srv/app/library/three") == b"3\n"
    assert there.read("/dev/shm/segment") == b"x\n"
    assert not there.exists("/etc/hostname")
    moved = sorted(there.listdir("/srv/moved"))
    assert moved == sorted(session.run("ls -A1 /srv/moved").output.split("\n")[:-1])

    session.run("rm -rf /srv/moved /srv/app/library")
    third = session.checkpoint("less", files_only=True)
    changes = between(home, second, third)
    assert told(changes) == {
        *("deleted /srv/moved", "deleted /srv/app/library", "deleted /srv/app/library/three"),
    }
    assert total(changes).deleted == count + 1


def test_after_a_restore_only_what_was_done_since_is_told(home: Home, session: waypoint.Session) -> None:
    session.run("echo 1 > /srv/f; chmod 600 /etc/passwd").check()
    first = session.checkpoint("start")
    session.run("echo 2 > /srv/f; echo 2 > /srv/g; rm /etc/passwd").check()
    second = session.checkpoint("more")
    session.restore(first)
    session.run("echo 3 > /srv/h").check()
    third = session.checkpoint("again")
    assert told(between(home, first, third)) == {"created /srv/h"}
    assert told(between(home, second, third)) == {
        *("created /srv/h", "deleted /srv/g", "modified /srv/f", "created /etc/passwd"),
    }
