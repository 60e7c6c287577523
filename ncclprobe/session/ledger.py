"""Rank 0's book of a sweep: rows come in, are judged, shown and saved at once, and end up in one report.

However the run ends, the book is closed exactly once, by whichever thread sees the end first.
"""

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from ncclprobe import __version__, engine, output
from ncclprobe.checks import MEASURED
from ncclprobe.errors import UsageError
from ncclprobe.expect.bands import Band, judged, listed
from ncclprobe.model import (
    Absent,
    Arrivals,
    Attendance,
    Check,
    ExitCode,
    Job,
    Judged,
    LaunchRow,
    Measurement,
    NodeEnvironment,
    NodeRow,
    Report,
    Snapshot,
    Status,
    Tool,
    Verified,
)
from ncclprobe.registry import discover
from ncclprobe.report import json as as_json
from ncclprobe.report import text as as_text
from ncclprobe.session.options import Options
from ncclprobe.session.progress import Progress
from ncclprobe.session.selflaunch import VERDICT_FILE
from ncclprobe.session.watch import Ending

UNJUDGED = (
    "there was nothing to judge these numbers by: give --expect FILE, or --report-only where they are all you want"
)


@dataclass(frozen=True, slots=True)
class Party:
    """Who measures: the host of each rank, what of, and with which versions."""

    kind: str
    ranks: int
    hosts: tuple[str, ...]
    backend: str = "gloo"
    versions: Mapping[str, str | None] | None = None
    nnodes: int | None = None


class Ledger:
    """The rows so far and everything needed to turn them into a report."""

    def __init__(
        self,
        options: Options,
        party: Party,
        bands: Sequence[Band] = (),
        progress: Progress | None = None,
    ) -> None:
        self._options, self._bands = options, bands
        self._progress = progress or Progress(wanted=False)
        self.party = party
        found = discover("ncclprobe.checks", Check)
        self._checks = tuple(check for check in found if check.id.startswith(MEASURED))
        self._started, self._clock = datetime.now(timezone.utc), time.monotonic()
        self._rows: list[Measurement] = []
        self._remarks = list(options.remarks)
        self._doubts: list[str] = []
        self._lock = threading.RLock()
        self._code: int | None = None
        self.met = False
        """Whether all ranks have met: before that, nothing is known of them."""

    def doubt(self, remark: str) -> None:
        """Something for which this run cannot be called good, whatever its numbers."""
        self._doubts.append(remark)

    def remark(self, text: str) -> None:
        """Something that the reader must know."""
        self._remarks.append(text)

    def add(self, row: Measurement) -> None:
        """Judge a row, show it, and save all rows so far: a kill costs at most the row that is being measured."""
        with self._lock:
            if self._code is not None:  # closed by another thread: the report is out
                return
            row = judged(row, self._bands)
            if not self._rows and self._shows:
                print(as_text.measurement_header(row), flush=True)
            self._rows.append(row)
            if self._shows:
                print(as_text.measurement_row(row), flush=True)
            with contextlib.suppress(UsageError):  # a disk that fills up does not end the sweep; close() will say so
                self.save()

    def save(self) -> None:
        """Write what there is to the JSON file, if one was asked for. Raises UsageError where it cannot be written."""
        if self._options.json and self._options.json != "-":
            as_json.write(self._report(Ending(why="written while the sweep was still running")), self._options.json)

    def close(self, ending: Ending | None = None) -> int:
        """Write the report and return the exit code. A second call returns the first one's."""
        with self._lock:
            if self._code is None:
                report = self._report(ending or Ending())
                self._code = report.exit_code
                self._progress.stop()
                self._show(report)
                try:
                    self._write(report)
                except UsageError as error:  # the others wait for a code, not for an exception
                    print(f"ncclprobe: {error}", file=sys.stderr)
                    self._code = ExitCode.USAGE
            return self._code

    @property
    def _shows(self) -> bool:
        return not self._options.quiet and self._options.json != "-"

    def _show(self, report: Report) -> None:
        if self._options.json == "-":
            return
        if self._rows and self._shows:
            print(flush=True)
        o = self._options
        output.show(report, quiet=o.quiet, verbose=o.verbose, no_color=o.no_color, rows=not self._shows)

    def _write(self, report: Report) -> None:
        for path in filter(None, (self._options.json, os.environ.get(VERDICT_FILE))):
            as_json.write(report, path)

    def _report(self, ending: Ending) -> Report:
        party, rows = self.party, tuple(self._rows)
        verdicts = engine.judge((Snapshot(party.hosts[0], self._facts(ending)),), self._asked(), _job(party))
        doubts = [*self._doubts, *([ending.why] if ending.why else [])]
        status, code = engine.conclude(verdicts, self._options.fail_on, inconclusive=bool(doubts))
        return Report(
            tool=Tool("ncclprobe", __version__),
            started=self._started.isoformat(timespec="seconds"),
            duration_s=round(time.monotonic() - self._clock, 3),
            command=shlex.join(["ncclprobe", "bandwidth", *self._options.argv]),
            status=status,
            exit_code=code,
            launch=LaunchRow(party.kind, party.nnodes, party.ranks),
            nodes=self._nodes(status),
            checks=verdicts,
            measurements=rows,
            coverage=engine.coverage(verdicts),
            environment={party.hosts[0]: NodeEnvironment(dict(party.versions or {}))},
            remarks=(*doubts, *self._remarks, *self._unjudged(rows, status)),
        )

    def _unjudged(self, rows: Sequence[Measurement], status: Status) -> Iterator[str]:
        """Which of `rows` nobody expected anything of, and why."""
        judged, path = sum(row.expectation is not None for row in rows), self._options.expect
        if path and judged < len(rows):
            if judged:
                yield f"{judged} of {len(rows)} rows judged by {path}"
            else:
                yield f"{path} expects nothing of the rows measured: it speaks for {listed(self._bands)}"
        elif not path and rows and status is Status.UNKNOWN and not self._options.report_only:
            yield UNJUDGED

    def _facts(self, ending: Ending) -> dict[type, object]:
        rows = tuple(self._rows)
        verified = tuple(row for row in rows if row.wrong is not None)
        expected = tuple(row for row in rows if row.expectation)
        nothing = "no row was measured" if not rows else ""
        apart = Absent("the ranks had not met when the run ended")
        return {
            Arrivals: ending.arrivals or (Arrivals(self.party.ranks) if self.met else apart),
            Attendance: ending.attendance or (Attendance(self.party.ranks) if self.met else apart),
            Verified: Verified(verified) if verified else Absent(nothing or "no row's data was verified"),
            Judged: Judged(expected) if expected else Absent(nothing or "nothing was expected of these numbers"),
        }

    def _asked(self) -> tuple[Check, ...]:
        """The checks of this run: none of one rank. With --report-only, numbers without expectation are no gap."""
        if self.party.ranks == 1:
            return ()
        judged_any = any(row.expectation for row in self._rows)
        unasked = ("run.band",) if self._options.report_only and not judged_any else ()
        return engine.selected(self._checks, ignore=unasked)

    def _nodes(self, status: Status) -> tuple[NodeRow, ...]:
        hosts = dict.fromkeys(self.party.hosts)
        return tuple(NodeRow(host, rank, host, status) for rank, host in enumerate(hosts))


def _job(party: Party) -> Job:
    return Job("nccl" if party.backend == "nccl" else "gloo")
