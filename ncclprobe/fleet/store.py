"""The store: one SQLite file for the reports of every node, which a killed writer leaves intact.

A report is one transaction: its numbers, their sequential tests and its nodes' states, so listing reads one row per
node.
A late number is inserted in its place before any answer. The rollback journal is used: write-ahead logs need shared
memory.

The file is treated as a stranger's: other tables are refused, texts are typed, and no statement outlasts the deadline.
"""

import contextlib
import errno
import fcntl
import math
import os
import sqlite3
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from ncclprobe.fleet import drift as drifts
from ncclprobe.fleet import node_health as standings
from ncclprobe.fleet import renaming
from ncclprobe.fleet import shared as shares
from ncclprobe.fleet.place import guarded
from ncclprobe.fleet.schema import EARLIEST, LATE, read, recognise, text_of, transaction, value
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.fleet import (
    Added,
    Drift,
    Fault,
    History,
    NodeCourse,
    NodeDays,
    NodeEvent,
    NodeHistory,
    NodeReport,
    NodeStanding,
    Number,
    Reading,
    Series,
    SharedLoss,
)
from ncclprobe.model.report import when
from ncclprobe.model.values import Struct, replace

_LONGEST_S = 2e6
"""SQLite counts the milliseconds that it waits in 32 bits."""
_DAY_S, _DAYS = 86400.0, 30
"""Days after which untested nodes no longer count as siblings."""
_MARKED_DAYS = 14
"""Up to so many days late, a number does not need the whole history to be processed again."""
_AT_A_TIME = 10_000
"""Steps of SQLite's machine between two looks at the clock."""


@contextlib.contextmanager
def opened(path: Path, patience_s: float, *, create: bool = False) -> Iterator["Store"]:
    """Open the store at `path` within `patience_s`, which includes the wait for other writers.

    Raises UsageError for a file that is not a store of ours, is damaged, locked, missing, or that others may change.
    """
    with _explain_errors(path, patience_s), guarded(path, create=create) as place:
        uri = f"{place.as_uri()}?mode=rw"
        wait_s = min(patience_s, _LONGEST_S)
        with contextlib.closing(sqlite3.connect(uri, timeout=wait_s, isolation_level=None, uri=True)) as connection:
            store = Store(connection, patience_s)
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, bounds.FLEET_TEXT)
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            recognise(connection, path, create=create)
            yield store


@contextlib.contextmanager
def _explain_errors(path: Path, patience_s: float) -> Iterator[None]:
    """Turn every error of SQLite, and every text that is not ours, into a one-line UsageError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        said = str(error)
        why = f"cannot be used: {said}"
        if "locked" in said:
            why = (
                f"another writer has held it for {patience_s:g} s; try again (a report that is added twice counts once)"
            )
            if not _can_lock(path):
                why = "is on a file system without locks; keep it elsewhere, or let one host add all (docs/history.md)"
        elif "unable to open" in said:
            why = "cannot be opened: does its folder exist, and can you write to it?"
        elif "interrupted" in said:
            why = f"did not answer within {patience_s:g} s; give --timeout more"
        elif "not a database" in said:
            why = "is not a store of `ncclprobe fleet`; nothing was changed"
        elif "malformed" in said:
            why = f"is damaged ({said}); copy it, and `sqlite3 COPY .recover | sqlite3 NEW` saves what can be read"
        raise UsageError(f"{path}: {why}") from None
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path}: is damaged: {str(error)[:200]}") from None


def _can_lock(path: Path) -> bool:
    """Return whether the file system can lock. SQLite mistakes NFS without locks for a file locked by
    another process.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
    return True


class _Undone(Exception):
    """Ends a transaction that must leave nothing behind."""


class _Counted(Struct, frozen=True, array_like=True):
    """The boot's id, its counters, and the GPUs that were there."""

    boot: str
    counters: dict[str, int]
    gpus: str = ""


class _Level(NamedTuple):
    """The state of a series at the end of a day: its level and its newest number, as logarithms, and its machine."""

    day: int = -1
    machine: int = -1
    level: float = 0.0
    newest: float = 0.0


class _Course(NamedTuple):
    """The test of one series, and its level now and at the end of the day before its newest."""

    drift: Drift = Drift()
    now: _Level = _Level()
    old: _Level = _Level()
    last_s: float = -math.inf

    def step(self, reading: Reading, machine: int, sums: int) -> "_Course":
        day = int(reading.time_s // _DAY_S)
        drift = self.drift if machine == self.now.machine else replace(self.drift, recent=())
        drift = drifts.step(drift, reading, sums)
        now = _Level(day, machine, fmean(map(math.log, drift.recent)), math.log(reading.value))
        return _Course(drift, now, self.now if day > self.now.day else self.old, reading.time_s)

    def accepted(self, time_s: float) -> "_Course":
        return self._replace(drift=drifts.accepted(self.drift, time_s))


def _alike(courses: Mapping[int, _Course], day: int) -> dict[int, drifts.Siblings]:
    """Return, by machine, the state of series that end before `day`, except those long untested."""
    levels: dict[int, dict[int, tuple[float, float]]] = {}
    for node, course in courses.items():
        if course.now.day >= day - _DAYS:
            levels.setdefault(course.now.machine, {})[node] = course.now.level, course.now.newest
    return {machine: drifts.Siblings(of) for machine, of in levels.items()}


def _sums(firsts: Sequence[float], time_s: float) -> int:
    """Return how many sums a node has at a time: two per number."""
    return 2 * bisect_right(firsts, time_s)


def _called(number: Number) -> tuple[str, str, str]:
    return number.part, number.name, number.unit


def _readable(text: str) -> NodeCourse | None:
    try:
        return read(text, NodeCourse)
    except ValueError:
        return None


class Store:
    """An open store. Its methods raise errors that :func:`opened` turns into UsageError."""

    unsettled = 0
    """Numbers not yet in the order of time: there was no time for it, or the file is read-only."""
    damaged: Sequence[str] = ()
    """Nodes whose row is unreadable; the others are shown without them."""

    def __init__(self, connection: sqlite3.Connection, patience_s: float) -> None:
        self._sql, self._patience_s = connection, patience_s
        self._begin()

    def _begin(self) -> None:
        """Start the time limit of one request."""
        self._end = end = time.monotonic() + self._patience_s
        self._sql.set_progress_handler(lambda: time.monotonic() > end, _AT_A_TIME)
        self._siblings: dict[tuple[int, int], drifts.Siblings] = {}

    def add(self, told: Sequence[NodeReport], digest: str, added: Added) -> bool:
        """Add one report's data about its nodes, as one transaction; False if its `digest` is already there."""
        self._begin()
        with transaction(self._sql):
            if value(self._sql, "SELECT 1 FROM reports WHERE digest = ?", digest):
                return False
            row = (digest, told[0].time_s, added.added_s, added.added_by, added.source, added.command)
            report = self._insert("reports (digest, started_s, added_s, added_by, source, command)", row)
            for each in told:
                self._add_test(report, each)
            self._refuse_too_many_nodes()
        return True

    def preview(self, told: Sequence[NodeReport]) -> dict[str, History]:
        """Return what would be kept of each node if this were added, without adding it."""
        self._begin()
        found: dict[str, History] = {}
        with contextlib.suppress(_Undone), transaction(self._sql):
            row = ("", told[0].time_s, 0.0, "", "", "")
            report = self._insert("reports (digest, started_s, added_s, added_by, source, command)", row)
            for each in told:
                self._add_test(report, each)
                node, course, _ = self._node(each.node)
                found[each.node] = History(course, tuple(newest(self._series(node or 0))))
            raise _Undone
        return found

    def settle(self) -> None:
        """Insert late numbers in their place: all nodes' values of each are processed again."""
        self._begin()
        self.unsettled = 0
        numbers = [int(number) for (number,) in self._sql.execute("SELECT number FROM late")]
        for done, number in enumerate(numbers):
            try:
                with transaction(self._sql):
                    since_s = value(self._sql, "SELECT time_s FROM late WHERE number = ?", number)
                    if since_s is not None:
                        self._sql.execute("DELETE FROM late WHERE number = ?", (number,))
                        self._settle(number, int(msgspec.convert(since_s, float) // _DAY_S))
            except sqlite3.OperationalError:
                self.unsettled = len(numbers) - done
                return

    def accept(self, name: str, by: str, now_s: float) -> None:
        """Take a node's present state as usual: its series start anew."""
        self.settle()
        self._begin()
        with transaction(self._sql):
            node, course, stands = self._node(name)
            if node is None:
                return
            time_s = max(now_s, course.last_s)
            row = (node, time_s, by, f"{stands.state}{': ' * bool(stands.evidence)}{stands.evidence}")
            self._sql.execute("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?)", row)
            for series, text in self._sql.execute("SELECT id, drift FROM series WHERE node = ?", (node,)).fetchall():
                drift = text_of(drifts.accepted(read(text, Drift), time_s))
                self._sql.execute("UPDATE series SET drift = ? WHERE id = ?", (drift, series))
            self._stands(node, name, course)

    def forget(self, name: str) -> None:
        """Delete a node's history and stop comparing others with it; reports about only this node may be added
        again.
        """
        self._begin()
        with transaction(self._sql):
            node = value(self._sql, "SELECT id FROM nodes WHERE name = ?", name)
            if node is None:
                return
            self._sql.execute(f"{LATE} SELECT number, 0 FROM series WHERE node = ? {EARLIEST}", (node,))
            for table in ("readings", "marks"):
                mine = f"DELETE FROM {table} WHERE series IN (SELECT id FROM series WHERE node = ?)"
                self._sql.execute(mine, (node,))
            for table, column in (("series", "node"), ("tests", "node"), ("accepted", "node"), ("nodes", "id")):
                self._sql.execute(f"DELETE FROM {table} WHERE {column} = ?", (node,))
            self._sql.execute("DELETE FROM reports WHERE id NOT IN (SELECT report FROM tests)")

    def rename(self, old: str, new: str) -> None:
        """Give a node another name; what is kept under both becomes one node's."""
        self._begin()
        with transaction(self._sql):
            node, *_ = self._node(old)
            other, *_ = self._node(new)
            if node is None or other == node:
                return
            if other is not None:
                renaming.merge(self._sql, other, node)
            self._sql.execute("UPDATE nodes SET name = ? WHERE id = ?", (new, node))
            course = NodeCourse()
            for each in self._tests(node, new):
                course = standings.step(course, each)
            self._stands(node, new, course)

    def refuse_behind(self, told: Sequence[NodeReport]) -> None:
        """Refuse a new measurement that is dated before the newest of its node: a clock is behind. Raises
        UsageError.
        """
        for each in told:
            last_s = value(self._sql, "SELECT max(time_s) FROM tests JOIN nodes ON id = node WHERE name = ?", each.node)
            if last_s is not None and each.time_s < float(last_s) - _DAY_S:
                dated, newest_at = when(each.time_s), when(float(last_s))
                raise UsageError(
                    f"{each.node} has a clock that is behind: it dates this report {dated} UTC, and its newest report "
                    "is of "
                    f"{newest_at} UTC; set the clock"
                )

    def renamed(self) -> list[tuple[str, str, str]]:
        """Return nodes that may be one under two names, the older one first."""
        return renaming.same_machine(self._sql)

    def _node(self, name: str) -> tuple[int | None, NodeCourse, NodeStanding]:
        row = self._sql.execute("SELECT id, course, standing FROM nodes WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None, NodeCourse(), standings.standing(name, NodeCourse(), ())
        return int(row[0]), read(row[1], NodeCourse), read(row[2], NodeStanding)

    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return [str(name) for (name,) in self._sql.execute("SELECT name FROM nodes")]

    def _refuse_too_many_nodes(self) -> None:
        """Raise UsageError if there are more nodes than can be shown."""
        if (nodes := value(self._sql, "SELECT count(*) FROM nodes")) > bounds.FLEET_NODES:
            raise UsageError(
                f"{nodes:,} nodes in one store; {bounds.FLEET_NODES:,} at most; put some of them into another --fleet"
            )

    def standings(self) -> list[NodeStanding]:
        """Return the state of each node."""
        self.settle()
        self._begin()
        self._refuse_too_many_nodes()
        found, self.damaged = [], []
        for name, text, course in self._sql.execute("SELECT name, standing, course FROM nodes ORDER BY name"):
            try:
                read(course, NodeCourse)
                found.append(read(text, NodeStanding))
            except ValueError:  # as msgspec's are
                self.damaged.append(str(name))
        if self.damaged and not found:
            raise ValueError("no node's row can be read")
        return found

    def history(self, name: str, most: int) -> NodeHistory | None:
        """Return what is kept of a node, with its `most` newest reports as they were added; None if there is no such
        node.
        """
        self.settle()
        self._begin()
        node, _, stands = self._node(name)
        if node is None:
            return None
        added = self._sql.execute(
            "SELECT added_s, added_by, source, command FROM reports JOIN tests ON reports.id = tests.report"
            " WHERE node = ? ORDER BY time_s DESC LIMIT ?", (node, most))  # fmt: skip
        tests, series = tuple(self._tests(node, name)), self._series(node)
        rows = self._sql.execute("SELECT time_s, by, what FROM accepted WHERE node = ?", (node,))
        accepted = [NodeEvent(time_s, f"accepted by {by}: {what}")
                    for time_s, by, what in msgspec.convert(rows.fetchall(), list[tuple[float, str, str]])]  # fmt: skip
        return NodeHistory(
            stands,
            tests[0].time_s if tests else 0.0,
            tuple(standings.events(tests, series, accepted)),
            tuple(newest(series)),
            tuple(Added(*msgspec.convert(row, tuple[float, str, str, str])) for row in added),
        )

    def days(self, since_s: float) -> Iterator[NodeDays]:
        """Yield each node with what was found on it by day, since then."""
        nodes = {each.name: each for each in self.standings()}
        for node, name in self._sql.execute("SELECT id, name FROM nodes ORDER BY name").fetchall():
            if name not in nodes:
                continue
            rows = self._sql.execute(
                "SELECT time_s, faults, unknown, source FROM tests JOIN reports ON reports.id = report"
                " WHERE node = ? AND time_s >= ? ORDER BY time_s, digest", (node, since_s))  # fmt: skip
            tests = [
                (NodeReport(name, at_s, read(faults, tuple[Fault, ...]), unknown=unknown), source)
                for at_s, faults, unknown, source in msgspec.convert(
                    rows.fetchall(), list[tuple[float, str, bool, str]], strict=False)
            ]  # fmt: skip
            yield NodeDays(nodes[name], standings.days(tests, newest(self._series(node))) if tests else {})

    def shared(self) -> list[SharedLoss]:
        """Return the losses that all nodes share, the greatest first."""
        self._begin()
        return shares.losses(self._sql)

    def _insert(self, table: str, row: Sequence[Any]) -> int:
        marks = ", ".join("?" * len(row))
        return int(self._sql.execute(f"INSERT INTO {table} VALUES ({marks})", row).lastrowid or 0)

    def _intern(self, text: str) -> int:
        """Return the number of a text, because many tests share one."""
        known = value(self._sql, "SELECT id FROM texts WHERE text = ?", text)
        return int(known) if known is not None else self._insert("texts (text)", (text,))

    def _add_test(self, report: int, told: NodeReport) -> None:
        """Add a report's data about one node, and the node's state after it."""
        row = self._sql.execute("SELECT id, course FROM nodes WHERE name = ?", (told.node,)).fetchone()
        node = row[0] if row else self._insert("nodes (name, course, standing)", (told.node, "", ""))
        course = _readable(row[1]) if row else NodeCourse()
        machine = self._intern(text_of(told.machine))
        counted = self._intern(text_of(_Counted(told.boot, told.counters, told.gpus)))
        test = (node, told.time_s, report, told.unknown, machine, self._intern(text_of(told.looked)),
                text_of(told.faults), counted)  # fmt: skip
        self._insert("tests", test)
        if course is not None and told.time_s > course.last_s:
            course = standings.step(course, told)
        else:  # a report that comes late, or a row that was damaged
            course = NodeCourse()
            for each in self._tests(node, told.node):
                course = standings.step(course, each)
        known = {which: self._intern(text_of(which)) for which in told.numbers}
        for which in known.values():
            self._note_series(node, which, told.time_s)
        sums = _sums(self._firsts("node = ?", node)[node], told.time_s) if known else 0
        for number, reading in told.numbers.items():
            self._add_reading(node, report, machine, known[number], reading, sums)
        self._stands(node, told.node, course)

    def _stands(self, node: int, name: str, course: NodeCourse) -> None:
        stands = standings.standing(name, course, newest(self._series(node)))
        row = (text_of(course), text_of(stands), node)
        self._sql.execute("UPDATE nodes SET course = ?, standing = ? WHERE id = ?", row)

    def _note_series(self, node: int, number: int, time_s: float) -> None:
        """Make the series of a number; if it began earlier than was known, all of the node's numbers are late."""
        first_s = value(self._sql, "SELECT first_s FROM series WHERE node = ? AND number = ?", node, number)
        if first_s is None:
            names = "series (node, number, first_s, last_s, drift, day, machine, level, newest, old_day, old_machine,"
            row = (node, number, time_s, time_s, "{}", *_Level(), *_Level())
            self._insert(f"{names} old_level, old_newest)", row)
        if time_s < (math.inf if first_s is None else first_s):
            self._sql.execute("UPDATE series SET first_s = ? WHERE node = ? AND number = ?", (time_s, node, number))
            later = f"{LATE} SELECT number, :at FROM series WHERE node = :node AND last_s > :at {EARLIEST}"
            self._sql.execute(later, {"node": node, "at": time_s})

    def _add_reading(self, node: int, report: int, machine: int, number: int, reading: Reading, sums: int) -> None:
        """Add one number of a node, and advance the test of its series against its siblings."""
        day = int(reading.time_s // _DAY_S)
        series, last_s, text, *at = self._sql.execute(
            "SELECT id, last_s, drift, day, machine, level, newest, old_day, old_machine, old_level, old_newest"
            " FROM series WHERE node = ? AND number = ?", (node, number)).fetchone()  # fmt: skip
        self._insert("readings", (series, reading.time_s, report, reading.value, reading.noise,
                                  text_of(reading.partners) if reading.partners else ""))  # fmt: skip
        drift, now, old = read(text, Drift), *(msgspec.convert(each, _Level) for each in (at[:4], at[4:]))
        late = (
            (drift.tests and reading.time_s <= last_s)
            or value(self._sql, "SELECT 1 FROM series WHERE number = ? AND day > ?", number, day)
            or value(self._sql, "SELECT 1 FROM accepted WHERE node = ? AND time_s >= ?", node, reading.time_s)
        )
        if late:
            self._sql.execute(f"{LATE} VALUES (?, ?) {EARLIEST}", (number, reading.time_s))
            return
        siblings, spread = self._alike(number, machine, day).beside(node)
        course = _Course(drift, now, old).step(replace(reading, siblings=siblings, spread=spread), machine, sums)
        self._keep(series, course)

    def _keep(self, series: int, course: "_Course") -> None:
        row = (text_of(course.drift), course.last_s, *course.now, *course.old, series)
        self._sql.execute(
            "UPDATE series SET drift = ?, last_s = ?, day = ?, machine = ?, level = ?, newest = ?, old_day = ?,"
            " old_machine = ?, old_level = ?, old_newest = ? WHERE id = ?", row)  # fmt: skip

    def _alike(self, number: int, machine: int, day: int) -> drifts.Siblings:
        """Return the state of the series of a number before that day, on equal machines, except those long untested."""
        if (number, machine) not in self._siblings:
            since = day - _DAYS
            rows = self._sql.execute(
                "SELECT node, CAST(level AS REAL), CAST(newest AS REAL) FROM series"
                " WHERE number = ? AND machine = ? AND day < ? AND day >= ?"
                " UNION ALL SELECT node, CAST(old_level AS REAL), CAST(old_newest AS REAL) FROM series"
                " WHERE number = ? AND old_machine = ? AND day = ? AND old_day >= ?",
                (number, machine, day, since, number, machine, day, since))  # fmt: skip
            self._siblings[number, machine] = drifts.Siblings({node: (level, now) for node, level, now in rows})
        return self._siblings[number, machine]

    def _firsts(self, where: str, *values: int) -> dict[int, list[float]]:
        """Return since when each node has each of its numbers, the oldest first."""
        firsts: dict[int, dict[tuple[str, str, str], float]] = {}
        rows = "SELECT node, CAST(first_s AS REAL), text FROM series JOIN texts ON texts.id = number WHERE"
        for node, first_s, text in self._sql.execute(f"{rows} {where}", values):
            of, key = firsts.setdefault(node, {}), _called(read(text, Number))
            of[key] = min(of.get(key, first_s), first_s)
        return {node: sorted(of.values()) for node, of in firsts.items()}

    def _settle(self, number: int, late: int) -> None:
        """Process all nodes' values of a number in the order of time, from the last saved state not later than the day
        of the
        `late` ones.
        """
        alike = "node IN (SELECT node FROM series WHERE number = ?)"
        firsts, accepted = self._firsts(alike, number), dict[int, list[float]]()
        for node, time_s in self._sql.execute(f"SELECT node, time_s FROM accepted WHERE {alike}", (number,)):
            accepted.setdefault(node, []).append(time_s)
        courses, begin = self._saved_courses(number, late)
        mark = int(value(self._sql, "SELECT max(day) FROM series WHERE number = ?", number)) - _MARKED_DAYS
        rows = self._sql.execute(
            "SELECT series.node, series.id, readings.time_s, value, noise, partners, tests.machine FROM series"
            " JOIN readings ON series = series.id JOIN tests"
            " ON tests.node = series.node AND tests.time_s = readings.time_s AND tests.report = readings.report"
            " WHERE number = ? AND readings.time_s >= ? ORDER BY readings.time_s, value, tests.machine",
            (number, begin * _DAY_S))  # fmt: skip
        today, siblings, which = begin - 1, dict[int, drifts.Siblings](), dict[int, int]()
        for node, series, time_s, value_, noise, partners, machine in rows:
            if (day := int(time_s // _DAY_S)) != today:
                if begin < mark <= day:
                    begin = self._save_courses(number, mark, courses)
                today, siblings = day, _alike(courses, day)
                if time.monotonic() > self._end:
                    raise sqlite3.OperationalError("interrupted")
            course = courses.get(node, _Course())
            for each in sorted(each for each in accepted.get(node, ()) if course.last_s <= each < time_s):
                course = course.accepted(each)
            median, spread = siblings[machine].beside(node) if machine in siblings else (0.0, 0.0)
            numbers = msgspec.convert((time_s, value_, noise), tuple[float, float, float])
            reading = Reading(*numbers, median, spread, read(partners, tuple[str, ...]) if partners else ())
            courses[node] = course.step(reading, machine, _sums(firsts[node], time_s))
            which[node] = series
        for node, one in which.items():
            last = max((each for each in accepted.get(node, ()) if each >= courses[node].last_s), default=None)
            self._keep(one, courses[node] if last is None else courses[node].accepted(last))
            name, text = self._sql.execute("SELECT name, course FROM nodes WHERE id = ?", (node,)).fetchone()
            self._stands(node, name, read(text, NodeCourse))

    def _saved_courses(self, number: int, late: int) -> tuple[dict[int, _Course], int]:
        """Return the saved courses of a number by node, and the day before which they hold; otherwise none, and 0."""
        found = "SELECT node, marks.day, course FROM marks JOIN series ON id = series WHERE number = ?"
        rows = msgspec.convert(self._sql.execute(found, (number,)).fetchall(), list[tuple[int, int, str]])
        if not rows or any(day > late for _, day, _ in rows):
            return {}, 0
        return {node: read(course, _Course) for node, _, course in rows}, rows[0][1]

    def _save_courses(self, number: int, day: int, courses: Mapping[int, _Course]) -> int:
        """Save the courses of a number as they are before this day, and return the day."""
        of = dict(self._sql.execute("SELECT node, id FROM series WHERE number = ?", (number,)))
        self._sql.execute("DELETE FROM marks WHERE series IN (SELECT id FROM series WHERE number = ?)", (number,))
        self._sql.executemany("INSERT INTO marks VALUES (?, ?, ?)",
                              [(of[node], day, text_of(course)) for node, course in courses.items()])  # fmt: skip
        return day

    def _series(self, node: int) -> list[Series]:
        """Return the series of a node."""
        rows = self._sql.execute(
            "SELECT series.id, text, first_s, last_s, drift FROM series JOIN texts ON texts.id = number WHERE node = ?"
            " ORDER BY first_s, length(text), text", (node,))  # fmt: skip
        found = []
        for series, number, first_s, last_s, text in rows:
            drift = read(text, Drift)
            if not drift.recent:  # all that it has came late
                continue
            changed, which = self._machine_changes(series, drift), read(number, Number)
            found.append(Series(which, drift, *msgspec.convert((first_s, last_s), tuple[float, float]), changed))
        return found

    def _machine_changes(self, series: int, drift: Drift) -> tuple[str, ...]:
        """Return the parts of the machine that changed in the report with which a loss begins, or on the day before.

        A change that most other nodes measured the same way share does not explain the loss of one.
        """
        sum_ = max(drift.own, drift.siblings, key=lambda each: (each.state != "ok", -each.lost))
        if sum_.state == "ok" or sum_.since_s is None:
            return ()
        seen = []
        for side, at_s, order in (("<", sum_.since_s - _DAY_S, "DESC"), (">=", sum_.since_s, "ASC")):
            text = value(self._sql,
                "SELECT text FROM readings JOIN series ON series.id = series JOIN tests ON tests.node = series.node"
                " AND tests.time_s = readings.time_s AND tests.report = readings.report"
                f" JOIN texts ON texts.id = tests.machine WHERE series = ? AND readings.time_s {side} ?"
                f" ORDER BY readings.time_s {order} LIMIT 1", series, at_s)  # fmt: skip
            if text is None:
                return ()
            seen.append(read(text, dict[str, str]))
        own = {name for name in seen[1] if seen[0].get(name) != seen[1][name]}
        theirs = self._machines_beside(series) if own else []
        own -= {name for name in own if _most(theirs, name, seen[1][name])}
        return standings.differences(*({name: each[name] for name in own & each.keys()} for each in seen))

    def _machines_beside(self, series: int) -> list[tuple[dict[str, str], int]]:
        """Return the machines on which other nodes last measured the number of a series, and how many have each."""
        rows = self._sql.execute(
            "SELECT text, count(*) FROM series JOIN texts ON texts.id = machine"
            " WHERE number = (SELECT number FROM series WHERE id = ?) AND series.id != ? GROUP BY machine",
            (series, series),
        )
        return [(read(text, dict[str, str]), int(count)) for text, count in rows]

    def _tests(self, node: int, name: str) -> Iterator[NodeReport]:
        """Yield a node's history from reports, without its numbers, oldest first."""
        rows = self._sql.execute(
            "SELECT time_s, faults, looked.text, unknown, machine.text, counted.text FROM tests"
            " JOIN reports ON reports.id = report JOIN texts AS looked ON looked.id = looked"
            " JOIN texts AS machine ON machine.id = machine JOIN texts AS counted ON counted.id = counted"
            " WHERE node = ? ORDER BY time_s, digest", (node,))  # fmt: skip
        for time_s, faults, looked, unknown, machine, counted in rows:
            own = read(counted, _Counted)
            yield NodeReport(
                name, msgspec.convert(time_s, float), read(faults, tuple[Fault, ...]),
                read(looked, tuple[str, ...]), bool(unknown),
                machine=read(machine, dict[str, str]), boot=own.boot, counters=own.counters, gpus=own.gpus,
            )  # fmt: skip


def _most(machines: Sequence[tuple[Mapping[str, str], int]], name: str, is_: str) -> bool:
    """Return whether most of these machines, some at least, have a version."""
    count = sum(number for _, number in machines)
    return count >= shares.NODES and sum(number for each, number in machines if each.get(name) == is_) > count / 2


def newest(series: Sequence[Series]) -> list[Series]:
    """Return each number's most recently measured series: other software or settings start anew."""
    found: dict[tuple[str, str, str], Series] = {}
    for each in series:
        key = _called(each.number)
        found[key] = max(found.get(key, each), each, key=lambda one: (one.last_s, one.number.how))
    return list(found.values())
