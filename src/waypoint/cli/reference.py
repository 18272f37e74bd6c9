"""docs/cli.md, written from the table of verbs: `python -m waypoint.cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys

from waypoint import errors
from waypoint.cli.spec import GROUPS, VERBS, Argument, Parser, Verb

_HEAD = """\
# The command line

<!-- Written by `python -m waypoint.cli.reference > docs/cli.md` from src/waypoint/cli/spec.py. -->

`waypoint VERB …`. Results go to stdout, everything else to stderr. Every verb has `-h`.

- `--json`: the result, or the error, as one JSON value on stdout. May stand before or after the verb.
- `--home DIR`: where Waypoint keeps things; else `WAYPOINT_HOME`, else `/var/lib/waypoint`.
- The session is `-s`, else `WAYPOINT_SESSION`, else the only one there is.
- A point (REF) is a name, a number (`c5`), an id or the beginning of one, `@` (the last), `@-` or `@~3`
  (before it), a time of day (`10:27`: the last point at or before it), a tag, `good` (the last that
  verified), or `SESSION:REF`.
- There is no colour where there is no terminal, or with `NO_COLOR`.
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
    for group in GROUPS:
        parts.append(f"## {group}\n")
        parts += [_verb(verb) for verb in VERBS if verb.group == group]
    parts += [_JSON, _statuses()]
    return "\n".join(parts)


def _verb(verb: Verb) -> str:
    parser = Parser(verb)
    summary = f"{verb.summary[:1].upper()}{verb.summary[1:]}."
    lines = [f"### waypoint {verb.name}\n", f"{summary} {_escaped(verb.about)}".rstrip() + "\n"]
    lines.append(f"```\n{parser.usage_line()}\n```\n")
    if rows := [*parser.positionals(), *parser.options()]:
        lines += ["| | |", "|---|---|", *(_row(row) for row in rows), ""]
    lines += ["```", *(f"$ {example}" for example in verb.examples), "```", ""]
    return "\n".join(lines)


def _row(row: Argument) -> str:
    words = row.words.replace("|", "\\|")
    return f"| `{words}` | {_escaped(row.help)} |"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _statuses() -> str:
    lines = [
        "## Exit statuses\n",
        "`exec` ends with the status of its command. The others:\n",
        "| status | code | when |",
        "|---|---|---|",
        "| 0 | | it was done |",
    ]
    for kind in _kinds(errors.WaypointError):
        why = (kind.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {kind.exit_status} | `{kind.code}` | {why.removeprefix('Raised ')} |")
    lines += [
        "| 124 | | `exec --timeout`: it took too long and was interrupted |",
        "| 130 | | interrupted with Ctrl-C |",
        "",
    ]
    return "\n".join(lines)


def _kinds(root: type[errors.WaypointError]) -> list[type[errors.WaypointError]]:
    known = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    found = [root, *(kind for child in known for kind in _kinds(child))]
    return found if root is not errors.WaypointError else sorted(found, key=lambda kind: kind.exit_status)


if __name__ == "__main__":
    sys.stdout.write(reference())
