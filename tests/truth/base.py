"""The root file system of the stories: real programs with the libraries they need, copied from the machine.

It is small, so that the oracle can read all of it at every point, and nothing changes it from outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_PROGRAMS = (
    *("bash", "sh", "env", "ls", "cat", "cp", "mv", "rm", "ln", "mkdir", "rmdir", "mkfifo", "mknod", "touch"),
    *("chmod", "chown", "chgrp", "truncate", "dd", "head", "tail", "sort", "seq", "wc", "stat", "tr", "cut"),
    *("sed", "grep", "awk", "mawk", "find", "xargs", "sleep", "true", "false", "date", "basename", "dirname"),
    *("readlink", "uname", "id", "kill", "tar", "gzip", "setfattr", "getfattr", "tee", "sync", "printf"),
    *("git", "sqlite3", "redis-server", "redis-cli", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-split"),
    *("node", "setsid", "timeout", "flock", "mktemp", "diff", "cmp", "md5sum", "sha256sum", "whoami"),
    *("ldconfig", "start-stop-daemon", "dpkg-trigger", "setcap", "sudo", "crontab", "pgrep"),
)
"""Those that the machine does not have are left out: a story that needs one is skipped."""
_FOLDERS = (
    *("bin", "dev", "etc", "home", "lib64", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr/bin"),
    *("usr/lib", "usr/local/bin", "usr/share", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"),
    *("var/lib/dpkg/triggers", "var/tmp", "usr/local/lib", "etc/cron.d", "etc/dpkg/dpkg.cfg.d"),
)
_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n",
    "group": "root:x:0:\ndaemon:x:1:\nstaff:x:50:\n",
    "shadow": "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "gitconfig": "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
    "[advice]\n\tdetachedHead = false\n[gc]\n\tauto = 0\n",
}
_NOT_NEEDED = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "site-packages", "dist-packages")


def make_base(folder: Path) -> None:
    """Makes the folder the root of a small Linux system."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "var/tmp").chmod(0o1777)
    for name, text in _ETC.items():
        (folder / "etc" / name).write_text(text)
    copied: set[str] = set()
    for name in _PROGRAMS:
        if program := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            _copy_program(Path(program), folder / "usr/bin" / name, folder, copied)
            if name in ("bash", "sh", "env"):
                shutil.copy(folder / "usr/bin" / name, folder / "bin" / name)
    _copy_python(folder, copied)
    _copy_git(folder, copied)
    _make_dpkg(folder)
    if (npm := Path("/usr/lib/node_modules/npm")).is_dir():
        skipped = shutil.ignore_patterns("docs", "man", "*.md", "*.map")
        shutil.copytree(npm, folder / "usr/lib/node_modules/npm", symlinks=True, ignore=skipped)
        (folder / "usr/bin/npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")


def has_program(folder: Path, name: str) -> bool:
    """Whether the base has a program."""
    return os.path.lexists(folder / "usr/bin" / name)


def _copy_program(program: Path, target: Path, root: Path, copied: set[str]) -> None:
    shutil.copy(program, target)
    _copy_libraries(program, root, copied)


def _copy_libraries(program: Path, root: Path, copied: set[str]) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for word in listed.split():
        if word.startswith("/") and word not in copied:
            copied.add(word)
            library = root / word.lstrip("/")
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, library)


def _copy_python(root: Path, copied: set[str]) -> None:
    """The Python that runs the tests, with pip and without what no story uses."""
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = root / "usr/local"
    _copy_program(Path(os.path.realpath(sys.executable)), own / "bin" / version, root, copied)
    (own / "bin/python3").symlink_to(version)
    (root / "usr/bin/python3").symlink_to(f"../local/bin/{version}")

    def skipped(folder: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in ("__pycache__", "config-3.11-x86_64-linux-gnu", "ensurepip")
            or name.endswith((".a", ".pyc"))
            or (name in _NOT_NEEDED and folder == str(prefix / "lib" / version))
        }

    library = own / "lib" / version
    shutil.copytree(prefix / "lib" / version, library, symlinks=True, ignore=skipped)
    for extension in (library / "lib-dynload").glob("*.so"):
        _copy_libraries(extension, root, copied)
    for shared in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy(shared, own / "lib" / shared.name, follow_symlinks=False)
    (library / "site-packages").mkdir(exist_ok=True)
    import pip

    source = Path(pip.__file__).parent
    shutil.copytree(
        source, library / "site-packages/pip", ignore=shutil.ignore_patterns("__pycache__", "*.exe")
    )


def _copy_git(root: Path, copied: set[str]) -> None:
    core = Path("/usr/lib/git-core")
    target = root / "usr/lib/git-core"
    target.mkdir(parents=True)
    for name in (
        "git-sh-setup",
        "git-sh-i18n",
        "git-rebase--interactive",
        "git-merge-one-file",
        "git-mergetool",
    ):
        if (core / name).is_file():
            shutil.copy(core / name, target / name)
    (target / "git").symlink_to("../../bin/git")
    for name in ("git-upload-pack", "git-receive-pack"):
        (root / "usr/bin" / name).symlink_to("git")
    if (templates := Path("/usr/share/git-core/templates")).is_dir():
        skipped = shutil.ignore_patterns("hooks")
        shutil.copytree(templates, root / "usr/share/git-core/templates", symlinks=True, ignore=skipped)


def _make_dpkg(root: Path) -> None:
    architecture = "amd64" if os.uname().machine == "x86_64" else "arm64"
    paragraphs = [
        f"Package: dpkg\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 1.21.22\n",
        f"Package: bash\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 5.2.15-2\n",
    ]
    for paragraph in paragraphs:
        name = paragraph.split()[1]
        (root / f"var/lib/dpkg/info/{name}.list").write_text("/.\n")
    texts = [
        f"{text}Maintainer: none <none@example.org>\nDescription: made for a story\n" for text in paragraphs
    ]
    (root / "var/lib/dpkg/status").write_text("\n".join(texts))
    (root / "var/lib/dpkg/available").touch()
    (root / "var/lib/dpkg/info/format").write_text("1\n")
