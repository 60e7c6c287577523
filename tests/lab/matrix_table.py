"""Plays the fault matrix, or a part of it."""

import fnmatch
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from .matrix import Outcome, Row
from .matrix_gloo import GLOO
from .matrix_meeting import MEETING
from .matrix_nodes import NODES
from .run import play

ROWS = (*MEETING, *NODES, *GLOO)
AT_ONCE = 2
Runs = list[tuple[Row, int]]


def chosen(rows: Iterable[Row], select: str, every: bool) -> Runs:
    """Rows whose name fits, each at all its numbers of hosts, or at the smallest only."""
    fitting = [row for row in rows if fnmatch.fnmatchcase(row.name, select)]
    return [(row, count) for row in fitting for count in (row.hosts if every else row.hosts[:1])]


def played(runs: Runs, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Play them, two at a time where time is not what is measured."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {}
        patient = [run for run in runs if not run[0].timed]
        for run, outcome in zip(patient, pool.map(lambda run: play(*run), patient), strict=True):
            found[run] = outcome
            tell(outcome)
    for run in runs:
        if run[0].timed:
            found[run] = play(*run)
            tell(found[run])
    return [found[run] for run in runs]


def line(outcome: Outcome) -> str:
    """One outcome for the terminal."""
    state = "ok  " if outcome.well else "ODD "
    return f"{state} {outcome.count:3} hosts {outcome.seconds:6.1f} s  {outcome.row.name}  {outcome.told()}".rstrip()
