"""Capabilities of programs: they are in no list and no content, only with the file itself."""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator, Sequence

from waypoint.api.findings import Fate, SystemChange
from waypoint.history.analyzers.reading import Outcome, View, status
from waypoint.history.view import printable

_ATTRIBUTE = "security.capability"
_EFFECTIVE = 1
_NAMES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
"""By their numbers in linux/capability.h."""
_PROGRAM = re.compile(
    r"/(?:s?bin|libexec)/[^/]+$"
    r"|/(?!\.)[^/]+(?<!\.[acho])(?<!\.(?:db|gz|js|md|py|rb|rs|sh|so|ts|xz))(?<!\.(?:cfg|css|csv|ini|log|map|pem|png|pyc"
    r"|pyi|rst|sql|svg|tar|tsx|txt|whl|xml|yml|zip))(?<!\.(?:conf|html|json|lock|toml|yaml))$"
)
"""What a program may be called: other files are not looked at."""


def capabilities(old: View, new: View, touched: Sequence[str]) -> Iterator[Outcome]:
    """Programs that may do what otherwise only root may."""
    for path in filter(_PROGRAM.search, touched):
        now, was = _capabilities(new, path), _capabilities(old, path)
        if now != was:
            change: Fate = "created" if not was else "removed" if not now else "changed"
            words = " → ".join(filter(None, (was, now))) if was and now else now or was
            yield SystemChange(subject="capability", name=printable(path), change=change, details=(words,))


def _capabilities(view: View, path: str) -> str:
    """`cap_net_raw+ep`, as setcap(8) takes it; nothing when there are none."""
    about = status(view, path)
    if about is None or not stat.S_ISREG(about.st_mode) or not about.st_mode & 0o111:
        return ""
    data = view.attributes_of(path).get(_ATTRIBUTE, b"")
    if len(data) < 12:
        return ""
    words = struct.unpack_from("<5I", data.ljust(20, b"\0"))
    permitted, inheritable = words[1] | words[3] << 32, words[2] | words[4] << 32
    effective = "e" if words[0] & _EFFECTIVE else ""
    parts = []
    for bits, flags in (
        (permitted & ~inheritable, f"{effective}p"),
        (permitted & inheritable, f"{effective}ip"),
        (inheritable & ~permitted, "i"),
    ):
        names = [_name(number) for number in range(64) if bits >> number & 1]
        if names:
            parts.append(f"{','.join(names)}+{flags}")
    return " ".join(parts)


def _name(number: int) -> str:
    return f"cap_{_NAMES[number]}" if number < len(_NAMES) else f"cap_{number}"
