"""The oracle: what is really there, read from a live session by other means than Waypoint's.

It reads the files through /proc/PID/root, asks `git` and SQLite, and reads /proc as `ps` and `ss` do. Nothing
of Waypoint is imported here, so an error of Waypoint's readers cannot be an error of the oracle as well.

    tree.py           every file: kind, mode, owner, content, attributes
    repositories.py   what `git` says of refs, commits and the work tree
    databases.py      tables and rows, by the sqlite3 module
    packages.py       dpkg, pip, npm; accounts and other files with a known meaning
    live.py           processes, listening ports, and the state of bash
    work.py           tasks and effects outside, which the story itself keeps
    look.py           all of it, at one moment
"""
