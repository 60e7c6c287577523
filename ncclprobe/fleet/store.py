"""The store: one SQLite file, to which every node adds its reports, and which a killed writer leaves as it was.

A report is one transaction. With it go the numbers that it tells, the state of the sequential test of each, and how its
nodes stand, so that listing a fleet reads one row for each node. SQLite's rollback journal is used and not its
write-ahead log, which needs shared memory: nodes write to one file over NFS or Lustre, as long as that can lock.

What the file holds is taken for a stranger's: tables that are not exactly ours are refused, texts are decoded into
types, and no statement outlasts the deadline.
"""

import contextlib
import math
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from ncclprobe import bounds
from ncclprobe.errors import UsageError
from ncclprobe.fleet import drift as drifts
from ncclprobe.fleet import standing as standings
from ncclprobe.host import files
from ncclprobe.model.fleet import (
    Added,
    Drift,
    Fault,
    NodeCourse,
    NodeHistory,
    NodeStanding,
    Number,
    Reading,
    Series,
    Told,
)
from ncclprobe.model.values import replace

APPLICATION, VERSION = 0x6E63_666C, 1
"""In the file's header (PRAGMA application_id, user_version): ``ncfl``, and which tables it has."""
_TABLES = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE reports (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, started_s REAL NOT NULL,"
    " added_s REAL NOT NULL, added_by TEXT NOT NULL, source TEXT NOT NULL, command TEXT NOT NULL)",
    "CREATE TABLE nodes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, course TEXT NOT NULL,"
    " standing TEXT NOT NULL)",
    "CREATE TABLE tests (node INTEGER, time_s REAL, report INTEGER, unknown INTEGER NOT NULL,"
    " machine INTEGER NOT NULL, looked INTEGER NOT NULL, faults TEXT NOT NULL,"
    " PRIMARY KEY (node, time_s, report)) WITHOUT ROWID",
    "CREATE TABLE series (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, number INTEGER NOT NULL,"
    " machine INTEGER NOT NULL, level REAL NOT NULL, first_s REAL NOT NULL, last_s REAL NOT NULL,"
    " drift TEXT NOT NULL, UNIQUE (node, number))",
    "CREATE INDEX siblings ON series (number, machine, level, node, last_s)",
    "CREATE TABLE readings (series INTEGER, time_s REAL, report INTEGER, value REAL NOT NULL, noise REAL NOT NULL,"
    " siblings REAL NOT NULL, spread REAL NOT NULL, PRIMARY KEY (series, time_s, report)) WITHOUT ROWID",
)
_AT_A_TIME = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
T = TypeVar("T")


@contextlib.contextmanager
def opened(path: Path, patience_s: float, *, create: bool = False) -> Iterator["Store"]:
    """Open the store at `path`, for `patience_s` at most, in which it also waits for other writers.

    Raises UsageError for what is no store of ours, is damaged, locked or not there.
    """
    files.refuse_links(path)
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        if not (create and isinstance(error, FileNotFoundError)):
            hint = "; `ncclprobe fleet add REPORT` makes one" if isinstance(error, FileNotFoundError) else ""
            raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{hint}") from None
    else:
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: cannot be read: not a regular file")
    with _explained(path, patience_s):
        uri = f"{path.resolve().as_uri()}?mode={'rwc' if create else 'rw'}"
        with contextlib.closing(sqlite3.connect(uri, patience_s, isolation_level=None, uri=True)) as connection:
            store = Store(connection, patience_s)
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, bounds.FLEET_TEXT)
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            _recognise(connection, path, create=create)
            yield store


@contextlib.contextmanager
def _explained(path: Path, patience_s: float) -> Iterator[None]:
    """Turn every error of SQLite, and every text that is none of ours, into one line."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        said = str(error)
        why = f"cannot be used: {said}"
        if "locked" in said:
            why = f"another writer has held it for {patience_s:g} s; try again: what is added already counts once"
        elif "unable to open" in said:
            why = "cannot be opened: is its folder there, and may you write to it?"
        elif "interrupted" in said:
            why = f"did not answer within {patience_s:g} s; give --timeout more"
        elif "not a database" in said:
            why = "is no store of `ncclprobe fleet`; nothing was changed"
        elif "malformed" in said:
            why = f"is damaged ({said}); copy it, and `sqlite3 COPY .recover | sqlite3 NEW` saves what can be read"
        raise UsageError(f"{path}: {why}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: is damaged: {str(error)[:200]}") from None


def _recognise(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Raise UsageError where the file is not ours; `create`: make the tables in an empty one."""
    if create and not _value(connection, "PRAGMA schema_version"):
        with _transaction(connection):
            if not _value(connection, "PRAGMA schema_version"):  # nobody else has made them meanwhile
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                for statement in _TABLES:
                    connection.execute(statement)
    if _value(connection, "PRAGMA application_id") != APPLICATION:
        raise UsageError(f"{path}: is no store of `ncclprobe fleet`; nothing was changed")
    version = _value(connection, "PRAGMA user_version")
    if version != VERSION:
        raise UsageError(f"{path}: is a store of schema {version}; this ncclprobe reads {VERSION}")
    if {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master") if sql} != {*_TABLES}:
        raise UsageError(f"{path}: is damaged: its tables are not those of a store")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; begins once no other writer is at work."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _value(connection: sqlite3.Connection, statement: str, *values: Any) -> Any:
    """Return the first column of the first row; None: there is no row."""
    row = connection.execute(statement, values).fetchone()
    return row[0] if row else None


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(text: Any, kind: type[T]) -> T:
    """Return what a text of the store says. Raises ValueError, as msgspec does, for what is none of ours."""
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__} where a text should be")
    return msgspec.json.decode(text, type=kind)


class Store:
    """An open store. Its methods raise what :func:`opened` turns into UsageError."""

    def __init__(self, connection: sqlite3.Connection, patience_s: float) -> None:
        self._sql, self._patience_s = connection, patience_s
        self._begin()

    def _begin(self) -> None:
        """Give what is asked now its own time."""
        end = time.monotonic() + self._patience_s
        self._sql.set_progress_handler(lambda: time.monotonic() > end, _AT_A_TIME)
        self._siblings: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def add(self, told: Sequence[Told], digest: str, added: Added) -> bool:
        """Add what one report tells of its nodes, as one transaction; False: it is there already, by its `digest`."""
        self._begin()
        with _transaction(self._sql):
            if _value(self._sql, "SELECT 1 FROM reports WHERE digest = ?", digest):
                return False
            row = (digest, told[0].time_s, added.added_s, added.added_by, added.source, added.command)
            report = self._insert("reports (digest, started_s, added_s, added_by, source, command)", row)
            for each in told:
                self._add_test(report, each)
        return True

    def standings(self) -> list[NodeStanding]:
        """Return how each node stands."""
        self._begin()
        rows = self._sql.execute("SELECT standing FROM nodes ORDER BY name LIMIT ?", (bounds.HOST_NAMES,))
        return [_read(text, NodeStanding) for (text,) in rows]

    def history(self, name: str, most: int) -> NodeHistory | None:
        """Return what is kept of a node, and of its `most` newest reports how they were added; None: no such node."""
        self._begin()
        row = self._sql.execute("SELECT id, standing FROM nodes WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        node, text = row
        added = self._sql.execute(
            "SELECT added_s, added_by, source, command FROM reports JOIN tests ON reports.id = tests.report"
            " WHERE node = ? ORDER BY time_s DESC LIMIT ?", (node, most))  # fmt: skip
        tests, series = tuple(self._tests(node, name)), self._series(node)
        return NodeHistory(
            _read(text, NodeStanding),
            tests[0].time_s if tests else 0.0,
            tuple(standings.events(tests, series)),
            tuple(newest(series)),
            tuple(Added(*msgspec.convert(row, tuple[float, str, str, str])) for row in added),
        )

    def _insert(self, table: str, row: Sequence[Any]) -> int:
        marks = ", ".join("?" * len(row))
        return int(self._sql.execute(f"INSERT INTO {table} VALUES ({marks})", row).lastrowid or 0)

    def _interned(self, text: str) -> int:
        """Return the number of a text, of which many tests have the same."""
        known = _value(self._sql, "SELECT id FROM texts WHERE text = ?", text)
        return int(known) if known is not None else self._insert("texts (text)", (text,))

    def _add_test(self, report: int, told: Told) -> None:
        """Add what a report tells of one node, and how the node stands then."""
        row = self._sql.execute("SELECT id, course FROM nodes WHERE name = ?", (told.node,)).fetchone()
        node = row[0] if row else self._insert("nodes (name, course, standing)", (told.node, "", ""))
        course = _read(row[1], NodeCourse) if row else NodeCourse()
        machine = self._interned(_text(told.machine))
        test = (node, told.time_s, report, told.unknown, machine, self._interned(_text(told.looked)),
                _text(told.faults))  # fmt: skip
        self._insert("tests", test)
        if told.time_s >= course.last_s:
            course = standings.step(course, told)
        else:  # a report that comes late
            course = NodeCourse()
            for each in self._tests(node, told.node):
                course = standings.step(course, each)
        sums = 2 * max(len(newest(self._series(node))), len(told.numbers))
        for number, reading in told.numbers.items():
            self._add_reading(node, report, machine, number, reading, sums)
        stands = standings.standing(told.node, course, newest(self._series(node)))
        row = (_text(course), _text(stands), node)
        self._sql.execute("UPDATE nodes SET course = ?, standing = ? WHERE id = ?", row)

    def _add_reading(self, node: int, report: int, machine: int, number: Number, reading: Reading, sums: int) -> None:
        """Add one number of a node, beside those of its siblings, and take the test of its series a step on."""
        which = self._interned(_text(number))
        siblings, spread = drifts.among([level for other, level in self._alike(which, machine, reading.time_s)
                                         if other != node])  # fmt: skip
        reading = replace(reading, siblings=siblings, spread=spread)
        row = self._sql.execute(
            "SELECT id, last_s, drift FROM series WHERE node = ? AND number = ?", (node, which)).fetchone()  # fmt: skip
        if row is None:
            last_s, text = reading.time_s, "{}"
            new = (node, which, machine, 0.0, last_s, last_s, text)
            series = self._insert("series (node, number, machine, level, first_s, last_s, drift)", new)
        else:
            series, last_s, text = row
        self._insert("readings", (series, reading.time_s, report, *msgspec.structs.astuple(reading)[1:]))
        if reading.time_s >= last_s:
            drift = drifts.step(_read(text, Drift), reading, sums)
        else:  # a report that comes late
            drift = drifts.course(self._readings(series), sums)
            machine = _value(self._sql, "SELECT machine FROM series WHERE id = ?", series)
        level = fmean(map(math.log, drift.recent))
        self._sql.execute(
            "UPDATE series SET machine = ?, level = ?, first_s = min(first_s, ?), last_s = max(last_s, ?), drift = ?"
            " WHERE id = ?", (machine, level, reading.time_s, reading.time_s, _text(drift), series))  # fmt: skip

    def _alike(self, number: int, machine: int, time_s: float) -> list[tuple[int, float]]:
        """Return (node, level) of the series of a number on machines alike, lowest first; not those long untested."""
        if (number, machine) not in self._siblings:
            rows = self._sql.execute(
                "SELECT node, CAST(level AS REAL) FROM series WHERE number = ? AND machine = ? AND abs(last_s - ?) < ?"
                " ORDER BY level",
                (number, machine, time_s, standings.WINDOW_S))  # fmt: skip
            self._siblings[number, machine] = rows.fetchall()
        return self._siblings[number, machine]

    def _series(self, node: int) -> list[Series]:
        """Return the series of a node."""
        rows = self._sql.execute(
            "SELECT text, first_s, last_s, drift FROM series JOIN texts ON texts.id = number WHERE node = ?"
            " ORDER BY series.id", (node,))  # fmt: skip
        found = []
        for number, first_s, last_s, text in rows:
            drift = _read(text, Drift)
            if not drift.recent:
                raise ValueError("a series without a number")
            changed, which = self._changed(node, drift), _read(number, Number)
            found.append(Series(which, drift, *msgspec.convert((first_s, last_s), tuple[float, float]), changed))
        return found

    def _changed(self, node: int, drift: Drift) -> tuple[str, ...]:
        """Return what of the machine was another one at the last good test than at the first bad one."""
        sum_ = max(drift.own, drift.siblings, key=lambda each: (each.state != "ok", -each.lost))
        if sum_.state == "ok" or sum_.good_s is None or sum_.since_s is None:
            return ()
        old, new = (self._machine(node, time_s) for time_s in (sum_.good_s, sum_.since_s))
        return standings.differences(old, new)

    def _machine(self, node: int, time_s: float) -> dict[str, str]:
        known = "SELECT text FROM tests JOIN texts ON texts.id = machine WHERE node = ? AND time_s = ?"
        text = _value(self._sql, known, node, time_s)
        return _read(text or "{}", dict[str, str])

    def _readings(self, series: int) -> Iterator[Reading]:
        rows = self._sql.execute(
            "SELECT time_s, value, noise, siblings, spread FROM readings WHERE series = ? ORDER BY time_s", (series,)
        )
        return (Reading(*msgspec.convert(row, tuple[float, float, float, float, float])) for row in rows)

    def _tests(self, node: int, name: str) -> Iterator[Told]:
        """Yield what reports told of a node but for its numbers, oldest first."""
        rows = self._sql.execute(
            "SELECT time_s, faults, looked.text, unknown, machine.text FROM tests"
            " JOIN texts AS looked ON looked.id = looked JOIN texts AS machine ON machine.id = machine"
            " WHERE node = ? ORDER BY time_s", (node,))  # fmt: skip
        for time_s, faults, looked, unknown, machine in rows:
            yield Told(
                name, msgspec.convert(time_s, float), _read(faults, tuple[Fault, ...]),
                _read(looked, tuple[str, ...]), bool(unknown),
                machine=_read(machine, dict[str, str]),
            )  # fmt: skip


def newest(series: Sequence[Series]) -> list[Series]:
    """Return of each number the series that was measured last: other software or settings begin anew."""
    found: dict[tuple[str, str, str], Series] = {}
    for each in series:
        key = (each.number.part, each.number.name, each.number.unit)
        found[key] = max(found.get(key, each), each, key=lambda one: one.last_s)
    return list(found.values())
