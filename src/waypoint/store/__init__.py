"""The database: one SQLite file that says which sessions and points exist, and what moved them.

Nothing is true before its row. **Session row**, **point**, **operation** (what moved a session, and
what undo goes back to), **event** (one thing of a trajectory), **contact**, **effect** (the ledger),
**landing** (files that a session has brought to this machine).
"""
