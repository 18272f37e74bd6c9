"""Errors of the kernel become errors of Waypoint's once, with what was done and to what."""

from __future__ import annotations

import errno
import os

import pytest

from waypoint import errors
from waypoint.errors import translated


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.NoSpace),
        (errno.EDQUOT, errors.NoSpace),
        (errno.ENOENT, errors.NotFound),
        (errno.EEXIST, errors.AlreadyExists),
        (errno.EOPNOTSUPP, errors.MissingFeature),
        (errno.EIO, errors.MachineError),
        (errno.EBUSY, errors.MachineError),
    ],
)
def test_the_number_decides_the_kind(number: int, kind: type[errors.WaypointError]) -> None:
    cause = OSError(number, os.strerror(number), "/a/deeper")
    with pytest.raises(kind, match="copy /a") as caught, translated("copy", "/a"):
        raise cause
    assert caught.value.__cause__ is cause
    assert caught.value.details == {"path": "/a/deeper"}


def test_only_a_user_who_is_not_root_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, kind in ((0, "machine"), (1000, "not_root")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        with pytest.raises(errors.MachineError) as caught, translated("copy", "/a"):
            raise PermissionError(errno.EPERM, "no")
        assert caught.value.code == kind


def test_other_exceptions_pass() -> None:
    with pytest.raises(errors.UsageError, match="as it was"), translated("copy"):
        raise errors.UsageError("as it was")


def test_a_client_raises_the_public_error_of_a_code() -> None:
    class OnlyInsideAModule(errors.CannotCheckpoint):
        """Has the code of its parent."""

    raised = errors.from_dict(OnlyInsideAModule("no", hint="x", pid=3).to_wire())
    assert type(raised) is errors.CannotCheckpoint
    assert (raised.message, raised.hint, raised.details) == ("no", "x", {"pid": 3})
