"""The store's file: its tables, how it is recognised as ours, and how its texts are read and written."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ncclprobe.model.errors import UsageError

APPLICATION, VERSION = 0x6E63_666C, 3
"""In the file's header (PRAGMA application_id, user_version): ``ncfl``, and the version of the tables."""
TABLES = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE reports (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, started_s REAL NOT NULL,"
    " added_s REAL NOT NULL, added_by TEXT NOT NULL, source TEXT NOT NULL, command TEXT NOT NULL)",
    "CREATE TABLE nodes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, course TEXT NOT NULL,"
    " standing TEXT NOT NULL)",
    "CREATE TABLE tests (node INTEGER, time_s REAL, report INTEGER, unknown INTEGER NOT NULL,"
    " machine INTEGER NOT NULL, looked INTEGER NOT NULL, faults TEXT NOT NULL, counted INTEGER NOT NULL,"
    " PRIMARY KEY (node, time_s, report)) WITHOUT ROWID",
    "CREATE TABLE series (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, number INTEGER NOT NULL,"
    " first_s REAL NOT NULL, last_s REAL NOT NULL, drift TEXT NOT NULL,"
    " day INTEGER NOT NULL, machine INTEGER NOT NULL, level REAL NOT NULL, newest REAL NOT NULL,"
    " old_day INTEGER NOT NULL, old_machine INTEGER NOT NULL, old_level REAL NOT NULL, old_newest REAL NOT NULL,"
    " UNIQUE (node, number))",
    "CREATE INDEX siblings ON series (number, day, machine, node, level, newest,"
    " old_day, old_machine, old_level, old_newest)",
    "CREATE TABLE readings (series INTEGER, time_s REAL, report INTEGER, value REAL NOT NULL, noise REAL NOT NULL,"
    " partners TEXT NOT NULL, PRIMARY KEY (series, time_s, report)) WITHOUT ROWID",
    "CREATE TABLE late (number INTEGER PRIMARY KEY, time_s REAL NOT NULL)",
    "CREATE TABLE marks (series INTEGER PRIMARY KEY, day INTEGER NOT NULL, course TEXT NOT NULL)",
    "CREATE TABLE accepted (node INTEGER, time_s REAL, by TEXT NOT NULL, what TEXT NOT NULL,"
    " PRIMARY KEY (node, time_s)) WITHOUT ROWID",
)
LATE = "INSERT INTO late (number, time_s)"
EARLIEST = "ON CONFLICT (number) DO UPDATE SET time_s = min(time_s, excluded.time_s)"
T = TypeVar("T")


def recognise(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Raise UsageError if the file is not ours; `create`: make the tables in an empty one."""
    if create and not value(connection, "PRAGMA schema_version"):
        with transaction(connection):
            if not value(connection, "PRAGMA schema_version"):  # no other process has made them meanwhile
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                for statement in TABLES:
                    connection.execute(statement)
    if value(connection, "PRAGMA application_id") != APPLICATION:
        raise UsageError(f"{path}: is not a store of `ncclprobe fleet`; nothing was changed")
    version = value(connection, "PRAGMA user_version")
    if version != VERSION:
        raise UsageError(f"{path}: is a store of schema {version}; this ncclprobe reads {VERSION}")
    if {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master") if sql} != {*TABLES}:
        raise UsageError(f"{path}: is damaged: its tables are not those of a store")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing; begin once no other writer is active."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:  # a signal too: nothing of a report is kept unless all of it is
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def value(connection: sqlite3.Connection, statement: str, *values: Any) -> Any:
    """Return the first column of the first row; None if there is no row."""
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None


def text_of(value: Any) -> str:
    """Return a value as text for :func:`read`."""
    return msgspec.json.encode(value).decode()


def read(text: Any, kind: type[T]) -> T:
    """Parse a text of the store. Raises ValueError, as msgspec does, for anything that is not ours."""
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} where a text should be")
    return msgspec.json.decode(text, type=kind)
