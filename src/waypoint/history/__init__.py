"""What points mean: pure functions of captures.

**View**: the merged files of a point, read without a mount. **Change**: one path that differs between
two points. **Facts**: what was observed of processes, ports and shell at a freeze. **Analyzer**: turns
changed files into packages, commits, rows. **Card**: the story of one point. **Plan**: what a restore
would do. **Ref**: a name for a point. **Retention**: which points may be forgotten. **Landing**:
bringing changes to a folder of this machine. **Contact**: a place outside that a session has talked to.
**Redaction**: secrets are replaced before anything is kept or shown.
"""
