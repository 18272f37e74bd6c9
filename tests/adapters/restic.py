"""A stand-in for restic, which Inspect AI keeps its own state in and would download.

It does what Inspect asks of it with one folder per snapshot: init, backup, unlock, snapshots, ls and restore
of one source folder. The rest is real: the framework that calls it, and the session that is resumed.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any


def main(repository: Path, verb: str, *arguments: str) -> None:
    match verb:
        case "init":
            (repository / "config").write_text("{}")
        case "backup":
            print(json.dumps(backup(repository, Path(arguments[0]), arguments[arguments.index("--tag") + 1])))
        case "snapshots":
            print(json.dumps(snapshots(repository)))
        case "ls":
            latest = snapshots(repository)[-1]
            print(json.dumps({**latest, "message_type": "snapshot"}))
            for node in nodes(repository / latest["id"], latest["paths"][0]):
                print(json.dumps({**node, "message_type": "node"}))
        case "restore":
            kept, _, _ = arguments[0].partition(":")
            target = arguments[arguments.index("--target") + 1]
            shutil.copytree(repository / kept / "files", target, dirs_exist_ok=True)
        case "unlock":
            pass
        case _:
            sys.exit(f"the stand-in for restic does not know {verb!r}")


def backup(repository: Path, source: Path, tag: str) -> dict[str, Any]:
    kept, now = secrets.token_hex(32), dt.datetime.now(dt.UTC).isoformat()
    shutil.copytree(source, repository / kept / "files")
    record = {"id": kept, "time": now, "paths": [str(source)], "tags": [tag]}
    (repository / kept / "record.json").write_text(json.dumps(record))
    sizes = [path.stat().st_size for path in source.rglob("*") if path.is_file()]
    counts = ("files_changed", "files_unmodified", "dirs_new", "dirs_changed", "dirs_unmodified")
    return {
        "message_type": "summary",
        **dict.fromkeys((*counts, "data_blobs", "tree_blobs", "total_duration"), 0),
        **dict.fromkeys(("files_new", "total_files_processed"), len(sizes)),
        **dict.fromkeys(("data_added", "data_added_packed", "total_bytes_processed"), sum(sizes)),
        **dict.fromkeys(("backup_start", "backup_end"), now),
        "snapshot_id": kept,
    }


def snapshots(repository: Path) -> list[dict[str, Any]]:
    records = [json.loads(path.read_text()) for path in repository.glob("*/record.json")]
    return sorted(records, key=lambda record: str(record["time"]))


def nodes(snapshot: Path, source: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"type": "dir", "path": source}]
    for path in sorted((snapshot / "files").rglob("*")):
        name = f"{source}/{path.relative_to(snapshot / 'files')}"
        kind = {"type": "file", "size": path.stat().st_size} if path.is_file() else {"type": "dir"}
        found.append({**kind, "path": name})
    return found


if __name__ == "__main__":
    main(Path(sys.argv[2]), *sys.argv[3:])
