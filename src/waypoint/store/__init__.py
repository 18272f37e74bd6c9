"""The database: one SQLite file that says which sessions and points exist, and what moved them.

A row is what makes a checkpoint exist: its folder is in place before the row is written and is removed only
after the row is gone. A crash leaves at worst a folder without a row. A complete one is adopted at start-up,
unless the table `forgotten` names it; any other is deleted.

**Session row**, **point**, **pending point** (its processes are still a frozen box), **operation** (what
moved a session, and what undo goes back to), **event** (one thing of a trajectory), **blob**, **contact**,
**effect** (the ledger), **landing** (files that a session has brought to this machine), **forward** (a port
of this machine that leads into a session).
Each group of tables has a module; `Store` holds all of them:

    database.py     the file, the schema and its migrations, transactions
    sessions.py  points.py  pending.py  events.py  operations.py
    contacts.py  landings.py  ledger.py  forwards.py
"""

from __future__ import annotations

from pathlib import Path

from waypoint.store.contacts import ContactTable
from waypoint.store.database import Database
from waypoint.store.events import EventTable
from waypoint.store.forwards import ForwardTable
from waypoint.store.landings import LandingTable
from waypoint.store.ledger import Ledger
from waypoint.store.operations import OperationTable
from waypoint.store.pending import PendingTable
from waypoint.store.points import PointTable
from waypoint.store.sessions import SessionTable

__all__ = ["Store"]


class Store:
    """The database of one home, table by table."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.events = EventTable(self.database)
        self.sessions = SessionTable(self.database, self.events)
        self.points = PointTable(self.database, self.events)
        self.operations = OperationTable(self.database, self.events)
        self.pending = PendingTable(self.database, self.events, self.points)
        self.contacts = ContactTable(self.database)
        self.landings = LandingTable(self.database)
        self.ledger = Ledger(self.database)
        self.forwards = ForwardTable(self.database)

    def sync(self) -> None:
        """Returns when everything that was stored before this call would survive a power cut."""
        self.database.sync()

    def close(self) -> None:
        self.database.close()
