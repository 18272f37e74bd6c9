"""What points mean: pure functions of captures.

**View**: the merged files of a point, read without a mount. **Change**: one path that differs between two
points. **Facts**: what was observed of processes, ports and shell at a checkpoint. **Analyzer**: turns
changed files into packages, commits, rows. **Contact**: a place outside that a session has talked to.
**Ref**: a name for a point. **Lineage**: which points lead to which. **Retention**: which points may be
forgotten. **Landing**: bringing changes to a folder of this machine. **Export**: changes as a tar or a patch.
**Redaction**: secrets are replaced before anything is stored in a card or shown.
"""
