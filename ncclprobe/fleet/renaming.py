"""Nodes under a new name: which they may be, and how the two histories are merged."""

import sqlite3
from contextlib import suppress
from itertools import pairwise

from ncclprobe.fleet.schema import EARLIEST, LATE, read
from ncclprobe.model.fleet import NodeCourse


def merge(sql: sqlite3.Connection, other: int, node: int) -> None:
    """Give the whole history of node `other` to `node`; process its numbers again."""
    both = "SELECT theirs.id, ours.id FROM series AS theirs LEFT JOIN series AS ours ON ours.node = ? AND ours.number"
    rows = sql.execute(f"{both} = theirs.number WHERE theirs.node = ?", (node, other)).fetchall()
    for theirs, ours in rows:
        if ours is None:
            sql.execute("UPDATE series SET node = ? WHERE id = ?", (node, theirs))
            continue
        first = "UPDATE series SET first_s = min(first_s, (SELECT first_s FROM series WHERE id = ?)) WHERE id = ?"
        sql.execute(first, (theirs, ours))
        sql.execute("UPDATE OR IGNORE readings SET series = ? WHERE series = ?", (ours, theirs))
        for table, column in (("readings", "series"), ("marks", "series"), ("series", "id")):
            sql.execute(f"DELETE FROM {table} WHERE {column} = ?", (theirs,))
    for table in ("tests", "accepted"):
        sql.execute(f"UPDATE OR IGNORE {table} SET node = ? WHERE node = ?", (node, other))
        sql.execute(f"DELETE FROM {table} WHERE node = ?", (other,))
    sql.execute("DELETE FROM nodes WHERE id = ?", (other,))
    sql.execute(f"{LATE} SELECT number, 0 FROM series WHERE node = ? {EARLIEST}", (node,))


def same_machine(sql: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Return nodes that may be one under two names, with the evidence: the second appeared after the first, and has its
    boot, or its GPUs.
    """
    rows = sql.execute("SELECT name, course, (SELECT min(time_s) FROM tests WHERE node = id) FROM nodes ORDER BY name")
    known: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for name, text, first_s in rows:
        with suppress(ValueError):  # a row that is damaged is said where nodes are shown
            course = read(text, NodeCourse)
            for what, which in (("boot", course.boot), ("GPUs", course.gpus)):
                if which:
                    known.setdefault((what, which), []).append((float(first_s or 0.0), course.last_s, str(name)))
    found: dict[tuple[str, str], str] = {}
    for (what, _), same in known.items():
        for (_, last_s, old), (first_s, _, new) in pairwise(sorted(same)):
            if last_s < first_s:
                found.setdefault((old, new), what)
    return [(old, new, what) for (old, new), what in found.items()]
