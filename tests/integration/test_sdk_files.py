"""Files of a session, read and written through the SDK without a program of the session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.waiting import until

import waypoint
from waypoint import errors
from waypoint.home import Home


def test_a_file_is_written_with_its_folders_and_read_as_bytes_and_text(fresh: waypoint.Session) -> None:
    before = fresh.run("echo $BASHPID").output
    data = bytes(range(256)) * 4096
    made = fresh.write_file("/srv/deep/er/blob", data, mode=0o640)
    assert (made.bytes, made.created) == (len(data), True)
    assert fresh.read_file("/srv/deep/er/blob") == data
    assert fresh.run("stat -c '%a %U' /srv/deep/er/blob /srv/deep").output == "640 root\n755 root\n"

    fresh.run("mkdir -p /srv/here && cd /srv/here")
    fresh.write_file("grüße", "schön\n")  # starts in the folder of the shell
    assert fresh.read_text("/srv/here/grüße") == "schön\n"
    assert fresh.run("cat grüße").output == "schön\n"
    assert fresh.run("echo $BASHPID").output == before


def test_a_file_that_exists_keeps_owner_mode_and_its_place_behind_a_link(fresh: waypoint.Session) -> None:
    fresh.run(
        "mkdir -p /srv/k && cd /srv/k && echo a > real && chmod 751 real && chown 12:34 real"
        " && ln -s real link && exec 7<real"
    )
    made = fresh.write_file("/srv/k/link", "b\n")
    assert not made.created
    shown = fresh.run("stat -c '%a %u %g' real; readlink link; cat real; cat <&7; ls -A1").output
    assert shown == "751 12 34\nreal\nb\na\nlink\nreal\n", "an open descriptor still has the old content"
    fresh.write_file("/srv/k/real", b"", mode=0o600)
    assert fresh.run("stat -c '%a %u %s' real").output == "600 12 0\n"


def test_links_stay_inside_and_what_is_no_file_is_left_alone(fresh: waypoint.Session, tmp_path: Path) -> None:
    fresh.run(
        "mkdir -p /srv/l/pipes && cd /srv/l && ln -s ../../../../../etc/evil up && mkfifo pipe"
        " && ln -s nowhere/at/all gone"
    )
    fresh.write_file("/srv/l/up", "inside\n")
    assert not Path("/etc/evil").exists()
    assert fresh.read_text("/etc/evil") == "inside\n"
    for path, number in (("/srv/l/pipe", "EINVAL"), ("/dev/null", "EINVAL"), ("/srv/l", "EISDIR")):
        with pytest.raises(errors.UsageError) as refused:
            fresh.write_file(path, "x")
        assert refused.value.details["errno"] == number
        with pytest.raises(errors.UsageError) as refused:
            fresh.read_file(path)
        assert refused.value.details["errno"] == number
    assert fresh.run("test -p pipe && test -c /dev/null").ok


def test_a_point_has_the_file_as_it_was(fresh: waypoint.Session) -> None:
    fresh.write_file("/srv/p", "then\n")
    point = fresh.checkpoint("with a file")
    fresh.write_file("/srv/p", "now\n")
    assert (fresh.read_text("/srv/p", ref=point), fresh.read_text("/srv/p")) == ("then\n", "now\n")
    assert fresh.read_file("/etc/hostname", ref=point) == fresh.read_file("/etc/hostname")
    fresh.restore(point)
    assert fresh.read_text("/srv/p") == "then\n"
    with pytest.raises(errors.NotFound):
        fresh.read_file("/srv/none", ref=point)


def test_bad_input_is_named(fresh: waypoint.Session) -> None:
    fresh.write_file("/srv/bad", b"\xff\xfe")
    with pytest.raises(errors.UsageError, match="cannot be read as text"):
        fresh.read_text("/srv/bad")
    with pytest.raises(errors.UsageError, match="no path"):
        fresh.read_file("/srv/a\0b")
    with pytest.raises(errors.UsageError, match="not from int"):
        fresh.write_file("/srv/n", 5)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFound) as missing:
        fresh.write_file("/srv/no/such/folder/f", "x", parents=False)
    assert missing.value.details["errno"] == "ENOENT"
    with pytest.raises(errors.NotFound) as missing:
        fresh.read_file("/srv/none")
    assert missing.value.details["errno"] == "ENOENT"
    with pytest.raises(errors.NotFound):
        fresh.write_file("/srv/bad/below/a/file", "x")
    with pytest.raises(errors.UsageError) as large:
        fresh.read_file("/srv/bad", max_bytes=1)
    assert large.value.details["errno"] == "EFBIG"
    assert fresh.read_text("/proc/sys/kernel/ostype") == "Linux\n", "a file that says it has no size"
    assert fresh.run("ls -A /srv").output == "bad\n", "nothing was made by what was refused"


def test_a_temporary_session_leaves_nothing(home: Home) -> None:
    before = set(os.listdir(home.sessions)), set(os.listdir(home.checkpoints))

    def fail_inside() -> None:
        with waypoint.session("gone", temporary=True) as s:
            s.checkpoint("one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert "gone" not in [one.name for one in waypoint.sessions()]
    with waypoint.session("gone", temporary=True) as s:
        with pytest.raises(errors.AlreadyExists):
            waypoint.session("gone", temporary=True)
        s.remove()
    until(lambda: (set(os.listdir(home.sessions)), set(os.listdir(home.checkpoints))) == before)
