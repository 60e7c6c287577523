"""Losses that all nodes of a fleet share: no single node's fault, but its owner has to know.

All have lost a number if its daily mean over the fleet fell by LEAST from some days to the following, has not
recovered,
and most nodes that were measured before and after have lost at least half of that themselves.
"""

import math
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from ncclprobe.fleet.schema import read, value
from ncclprobe.model.fleet import Number, SharedLoss
from ncclprobe.model.values import replace

LEAST = 0.05
"""Minimum loss as a share: more than some nodes lose by chance on the same days."""
NODES, BEFORE, AFTER, MOST = 3, 3, 2, 0.8
"""Nodes and days required on either side of a change before it is reported, and the share of nodes
that counts as all.
"""
_WINDOW = 14
_DAY_S, _BACK_S = 86400.0, 90 * 86400.0
"""A day, and how far back from the newest number a loss is searched."""


def losses(sql: sqlite3.Connection) -> list[SharedLoss]:
    """Return the losses that all nodes of a store share, the greatest first."""
    newest_s = value(sql, "SELECT max(last_s) FROM series") or 0.0
    since_s = float(newest_s) - _BACK_S
    means: dict[int, list[tuple[int, float]]] = {}
    rows = sql.execute(
        "SELECT number, CAST(time_s / 86400 AS INTEGER) AS at, avg(value) FROM readings"
        " JOIN series ON series.id = series WHERE time_s >= ? GROUP BY number, at ORDER BY number, at",
        (since_s,),
    )
    for number, day, mean in msgspec.convert(rows.fetchall(), list[tuple[int, int, float]]):
        means.setdefault(number, []).append((day, mean))
    steps = [(number, since) for number, days in means.items() if (since := step(days)) is not None]
    found = [each for number, since in steps if (each := _number_loss(sql, number, since, since_s))]
    return sorted(found, key=lambda each: (each.after / each.before, each.called))


def _number_loss(sql: sqlite3.Connection, number: int, day: int, since_s: float) -> SharedLoss | None:
    which = read(value(sql, "SELECT text FROM texts WHERE id = ?", number), Number)
    rows = sql.execute(
        "SELECT name, CAST(time_s / 86400 AS INTEGER), value FROM readings JOIN series ON series.id = series"
        " JOIN nodes ON nodes.id = node WHERE number = ? AND time_s >= ? ORDER BY time_s",
        (number, since_s),
    )
    readings: dict[str, list[tuple[int, float]]] = {}
    for name, at, reading in msgspec.convert(rows.fetchall(), list[tuple[str, int, float]]):
        readings.setdefault(name, []).append((at, reading))
    found = loss(which.called, which.unit, day, readings)
    if found is None:
        return None
    middle = math.sqrt(found.before * found.after)
    began = {}
    for name in found.nodes:  # a roll-out comes to one node after the other
        last = max((at for at, rate in readings[name] if rate > middle), default=0)
        began[name] = next((at for at, _ in readings[name] if at > last), day)
    machines = [each for name, at in began.items() if (each := _machine_around(sql, name, at * _DAY_S))]
    return replace(found, changed=change(machines))


def _machine_around(sql: sqlite3.Connection, name: str, at_s: float) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return a node's machine at its last test before a time, and at its first one after."""
    texts = [
        value(
            sql,
            "SELECT text FROM tests JOIN nodes ON nodes.id = node JOIN texts ON texts.id = machine"
            f" WHERE name = ? AND time_s {side} ORDER BY time_s {order} LIMIT 1", name, at_s)
        for side, order in (("< ?", "DESC"), (">= ?", "ASC"))
    ]  # fmt: skip
    return None if None in texts else (read(texts[0], dict[str, str]), read(texts[1], dict[str, str]))


def step(means: Sequence[tuple[int, float]]) -> int | None:
    """Return the day since which a number is lowest, given its mean on each day in order; None if it is not lost."""
    best: tuple[float, int | None] = (math.log1p(-LEAST), None)
    for at in range(BEFORE, len(means) - AFTER + 1):
        before = median(value for _, value in means[max(at - _WINDOW, 0) : at])
        after = [value for _, value in means[at:]]
        lost = math.log(median(after[:_WINDOW]) / before)
        still = math.log(median(after[-BEFORE:]) / before)
        edge = math.log(means[at][1] / before)
        if max(still, edge) < best[0] / 2 and lost < best[0] - 1e-9:
            best = lost, means[at][0]
    return best[1]


def loss(name: str, unit: str, day: int, readings: Mapping[str, Sequence[tuple[int, float]]]) -> SharedLoss | None:
    """Return what most nodes have lost of a number since `day`; `readings` has (day, value) by node."""
    both: dict[str, tuple[float, float]] = {}
    for node, values in readings.items():
        before, after = ([value for at, value in values if (at < day) == early] for early in (True, False))
        if before and after:
            both[node] = median(before[-_WINDOW:]), median(after)
    if len(both) < NODES:
        return None
    was, is_ = (median(each[side] for each in both.values()) for side in (0, 1))
    lost = math.log(is_ / was)
    losers = tuple(sorted(node for node, (old, new) in both.items() if math.log(new / old) <= lost / 2))
    if lost > math.log1p(-LEAST) or len(losers) < MOST * len(both):
        return None
    return SharedLoss(name, unit, losers, len(both), was, is_, day)


def change(machines: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> tuple[str, ...]:
    """Describe what changed on most of these machines, each given before and after."""
    found = Counter(
        f"{name} changed {old[name]} → {new[name]}"
        for old, new in machines
        for name in old.keys() & new.keys()
        if old[name] != new[name]
    )
    return tuple(words for words, count in found.most_common() if count > len(machines) / 2)
