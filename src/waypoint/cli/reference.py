"""docs/cli.md, from the declarations of the verbs: `python -m waypoint.cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys

from waypoint import errors
from waypoint.cli.help import Row, introduction, options, positionals, usage_line
from waypoint.cli.spec import Parser, Verb
from waypoint.cli.verbs import load_all

_HEAD = """\
# The command line

<!-- Written by `python -m waypoint.cli.reference > docs/cli.md` from src/waypoint/cli/verbs. -->

`waypoint VERB …`. Results go to stdout, everything else to stderr. Every verb has `-h`.

- `--json`: the result, or the error, as one JSON value on stdout. May stand before or after the verb.
- `--home DIR`: the folder in which Waypoint keeps everything; else `WAYPOINT_HOME`, else `/var/lib/waypoint`.
- The session is `-s`, else `WAYPOINT_SESSION`, else the only session there is.
- A point (REF) is a name, a number (`c5`), an id or the beginning of one, `@` (the last), `@-` or `@~3`
  (before it), a time of day (`10:27`: the last point at or before it), a tag, `good` (the last that passed a
  verification), or `SESSION:REF`.
- Output has colours only on a terminal, and not with `NO_COLOR`.
"""

_JSON = """\
## JSON

| verb | value |
|---|---|
| `new` | `{"session": {"id", "name", "state", …}}` |
| `exec` | `{"exit_code", "output", "duration_ms", "timed_out", "truncated", …}` |
| `exec --pipe` | the same, and `"stderr"` |
| `checkpoint` | `{"checkpoint": {…}}`: `"id"`, `"name"`, `"intent"`, `"session"`, `"parent"`, \
`"created_at"`, `"pause_ms"`, `"total_ms"`, `"size_bytes"`, … |
| `log` | `{"checkpoints": […], "sessions": [{"name", "state", "head"}], "good": {session: id}}`, oldest \
first |
| `show` | `{"checkpoint", "parent", "card", "sections", "verdicts", "notes"}`; `card` is null until it is \
computed |
| `status` | `{"session", "head", "summary", "sections", "difference"}` |
| `diff` | `{"from", "to", "different", "summary", "sections", "difference"}`, with --patch `"patch"` |
| `preview` | `{"plan": {"id", "target", "head", "lost", "uncheckpointed", "not_undone", "not_covered"}, \
"words"}` |
| `restore`, `undo`, `redo` | `{"session", "checkpoint", "ready_ms", "safety"}` |
| `ops` | `{"operations": [{"id", "at", "verb", "target", "to", "before", "back_to", "undone"}]}`, \
oldest first |
| `verify`, `checkpoint --verify` | `{"checkpoint", "verdict": {"state", "exit_code", "duration_ms", \
"output", …}}`; the verdict is null when it is not waited for |
| `bisect` | `{"culprit", "last_good", "card", "summary", "sections", "difference", "steps"}` |
| `tag` | `{"tag", "checkpoint"}`; all of them: `{"tags": […]}` |
| `note` | `{"checkpoint", "notes"}` |
| `fork` | `{"sessions": [{"id", "name", "ready_ms"}]}` |
| `park` | `{"session", "checkpoint"}` |
| `restore --files` | `{"checkpoint", "landing", "safety"}` |
| `apply` | `{"landing": {…}}`: `"source"`, `"target"`, \
`"items": [{"path", "source", "action", "entry", "size_bytes", "what"}]`, \
`"conflicts": [{"path", "source", "why", "forcible"}]`, `"left_out": [{"path", "why"}]`, \
`"unchanged"`, `"done"` |
| `export -o` | `{"exported": {"files", "deleted", "bytes", "left_out"}}` |
| `cp` | `{"copied": {"files", "folders", "links", "bytes", "left_out"}}` |
| `ls` | `{"sessions": […]}` |
| `rm` | `{"removed": […]}` |
| `pin`, `unpin` | `{"checkpoint": {…}}` |
| `forget` | `{"forgotten": […], "kept": [{"id", "session", "label", "reasons"}], "frees_bytes", "exact", \
"dry_run"}` |
| `prune` | `{"removed", "forgotten", "freed_bytes", "pool", "dry_run"}` |
| `du` | `{"checkpoints": [{"id", "unique_bytes", "files_bytes", "processes_bytes", "exact", …}], \
"sessions", "bases", "other_bytes", "pool"}` |
| `screen` | `{"text", "rows", "columns", "cursor", "title"}` |
| `doctor` | `{"ok", "findings": [{"name", "ok", "version", "why", "fix", "optional"}]}` |
| an error | `{"error": {"code", "message", "hint"}}`, and the exit status is not 0 |
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for group, verbs in load_all():
        parts.append(f"## {group}\n")
        parts += [_verb(verb) for verb in verbs]
    parts += [_JSON, _statuses()]
    return "\n".join(parts)


def _verb(verb: Verb) -> str:
    parser = Parser(verb)
    lines = [f"### waypoint {verb.name}\n", f"{_escape(introduction(verb))}\n"]
    lines.append(f"```\n{usage_line(parser)}\n```\n")
    if rows := [*positionals(parser), *options(parser)]:
        lines += ["| | |", "|---|---|", *(_row(row) for row in rows), ""]
    lines += ["```", *(f"$ {example}" for example in verb.examples), "```", ""]
    return "\n".join(lines)


def _row(row: Row) -> str:
    words = row.words.replace("|", "\\|")
    return f"| `{words}` | {_escape(row.meaning)} |"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _statuses() -> str:
    lines = [
        "## Exit statuses\n",
        "`exec` returns the exit status of its command. All others:\n",
        "| status | code | when |",
        "|---|---|---|",
        "| 0 | | success |",
    ]
    for error in sorted(_error_types(errors.WaypointError), key=lambda error: error.exit_status):
        when = (error.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {error.exit_status} | `{error.code}` | {when.removeprefix('Raised ')} |")
    lines += [
        "| 124 | | `exec --timeout`: the command took too long and was interrupted |",
        "| 130 | | interrupted with Ctrl-C |",
        "",
    ]
    return "\n".join(lines)


def _error_types(root: type[errors.WaypointError]) -> list[type[errors.WaypointError]]:
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(error for child in children for error in _error_types(child))]


if __name__ == "__main__":
    sys.stdout.write(reference())
