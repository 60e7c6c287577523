"""Rank 0's book of a sweep: rows come in, are judged, shown and saved at once, and end up in one report.

However the run ends, the book is closed exactly once, by whichever thread sees the end first.
"""

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from ncclprobe import __version__, engine, output
from ncclprobe.checks import MEASURED
from ncclprobe.errors import UsageError
from ncclprobe.expect.site.bands import Band, judged, listed
from ncclprobe.measured import Again, Disturbance, Fingerprint, FirstCall, Unmeasured
from ncclprobe.model import (
    Absent,
    Apart,
    Arrivals,
    Attendance,
    Check,
    ExitCode,
    Job,
    Judged,
    LaunchRow,
    LostRank,
    Measurement,
    NodeEnvironment,
    NodeRow,
    Report,
    Snapshot,
    Status,
    Tool,
    Verified,
)
from ncclprobe.moved import Grouped, GroupRow, StepRow
from ncclprobe.paired import Localisation, PairRow
from ncclprobe.registry import discover
from ncclprobe.report import json as as_json
from ncclprobe.report import text as as_text
from ncclprobe.session import gaps
from ncclprobe.session.asides import Asides
from ncclprobe.session.options import Options
from ncclprobe.session.progress import Progress
from ncclprobe.session.trail import FOLDER, REPORT, ROWS
from ncclprobe.session.watch import Ending

_RUNNING = "written while the sweep was still running"
_SAVE_S = 1.0
_NOTHING_EXPECTED = "nothing was expected of these numbers"
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
        self._pairs: list[PairRow] = []
        self._groups: list[GroupRow] = []
        self._steps: list[StepRow] = []
        self._localisation: Localisation | None = None
        self._saved_s = 0.0
        self._remarks = list(options.remarks)
        self._doubts: list[str] = []
        self._lock = threading.RLock()
        self._code: int | None = None
        self._mute = False
        self._unmeasured: list[Unmeasured] = []
        self.asides = Asides()
        """What is found out beside rows."""
        self.first_call: FirstCall | None = None
        """What the first calls cost, once they are made."""
        self.lost: tuple[LostRank, ...] = ()
        """The ranks without which the run went on, and no other run would have."""
        self.so_far: Callable[[], Localisation] | None = None
        """What can be said of the pairs if the run ends before all are measured."""
        self.met = False
        """Whether all ranks have met: before that, nothing is known of them."""
        self.fingerprint: Fingerprint | None = None
        """What is measured on, once it was looked at."""

    def doubt(self, remark: str) -> None:
        """Something for which this run cannot be called good, whatever its numbers."""
        self._doubts.append(remark)

    def remark(self, text: str) -> None:
        """Something that the reader must know."""
        self._remarks.append(text)

    def expect(self, bands: Sequence[Band]) -> None:
        """Judge the rows to come by `bands` too, where nobody else speaks of them."""
        self._bands = (*self._bands, *bands)

    def leave_out(self, asked: Unmeasured) -> None:
        """Something asked for that is not measured. That a size is too small to share is no doubt of the others."""
        self._unmeasured.append(asked)

    def add(self, row: Measurement) -> None:
        """Judge a row, save all rows so far, and show it: a kill costs at most the row that is being measured."""
        with self._lock:
            if self._code is not None:  # closed by another thread: the report is out
                return
            row = judged(self.asides.told(row), self._bands)
            self._rows.append(row)
            with contextlib.suppress(UsageError):  # a disk that fills up does not end the sweep; close() will say so
                self.save()
            if self._shows:
                head = f"{as_text.measurement_header(row)}\n" if len(self._rows) == 1 else ""
                self._print(lambda: print(f"{head}{as_text.measurement_row(row)}", flush=True))

    def failing(self, most: int) -> list[tuple[str, int]]:
        """The operations and sizes that fail so far, at most so many, the largest first."""
        slow = sorted((row for row in self._rows if row.status == "fail"), key=lambda row: -row.nbytes)
        return list(dict.fromkeys((row.op, row.nbytes) for row in slow))[:most]

    def add_again(self, row: Measurement) -> None:
        """Take the repetition of a row that failed, and judge both."""
        again = Again(row.busbw_GBps, row.time_us.mean, row.interval_us, row.batches)
        with self._lock:
            for place, old in enumerate(self._rows):
                alike = (old.op, old.nbytes, old.place) == (row.op, row.nbytes, row.place)
                if alike and old.status == "fail":
                    self._rows[place] = judged(old, (), again=again)

    def disturbed(self, found: Sequence[Disturbance]) -> None:
        """Judge what fails anew: all this slowed the run down while it measured."""
        with self._lock:
            self._rows = [judged(row, (), disturbances=found) if row.status == "fail" else row for row in self._rows]

    def add_pair(self, row: PairRow) -> None:
        """Keep one direction of a pair."""
        with self._lock:
            self._pairs.append(row)
            if time.monotonic() > self._saved_s + _SAVE_S:  # there may be thousands of rows
                self._saved_s = time.monotonic()
                with contextlib.suppress(UsageError):
                    self.save()

    def add_trained(self, row: GroupRow | StepRow) -> None:
        """Keep a row of groups or of a training step."""
        with self._lock:
            (self._groups if isinstance(row, GroupRow) else self._steps).append(row)  # type: ignore[arg-type]
            with contextlib.suppress(UsageError):
                self.save()

    def expected_GBps(self, nbytes: int) -> float | None:
        """The least that --expect asks of a sendrecv of so many bytes."""
        asked = (b.expectation.low for b in self._bands if b.op == "sendrecv" and b.low_bytes <= nbytes <= b.high_bytes)
        return next(asked, None)

    def localise(self, found: Localisation) -> None:
        """Who is slow, by all pairs."""
        with self._lock:
            self._localisation = found
            with contextlib.suppress(UsageError):
                self.save()

    def save(self) -> None:
        """Write what there is to the JSON file, if one was asked for. Raises UsageError where it cannot be written."""
        self._write(self._report(Ending(why=_RUNNING)), ROWS)

    def keep(self, ending: Ending) -> None:
        """Save what would be reported if the run ended so now: it may, before anybody knows better."""
        with self._lock, contextlib.suppress(UsageError):
            if self._code is None:
                self._write(self._report(ending), ROWS)

    def reopen(self, report: Report) -> None:
        """Go on from what another process's book held when it was saved."""
        self._rows, self._unmeasured = list(report.measurements), list(report.unmeasured)
        self._pairs, self._localisation = list(report.pairs), report.localisation
        self._groups, self._steps = list(report.groups), list(report.steps)
        self.first_call = report.first_call
        self.asides.reopen(report)
        self.fingerprint = report.fingerprint
        self._remarks = [remark for remark in report.remarks if remark not in (_RUNNING, UNJUDGED)]
        self.met = any(v.id == "run.init" and v.status is Status.PASS for v in report.checks)
        environment = report.environment.get(self.party.hosts[0], NodeEnvironment())
        self.party = replace(self.party, versions=environment.versions)

    def close(self, ending: Ending | None = None) -> int:
        """Write the report and return the exit code. A second call returns the first one's."""
        with self._lock:
            return self.publish(self._report(ending or Ending())) if self._code is None else self._code

    def publish(self, report: Report) -> int:
        """Write `report`, which closes the book, then show it: no terminal may keep it from being written.

        Where ``--nproc`` started this rank, who started it shows the report, and knows how all ranks ended.
        """
        with self._lock:
            self._code = report.exit_code
            self._progress.stop()
            try:
                self._write(report, REPORT)
                if FOLDER not in os.environ:
                    output.write_others(report, self._options)
            except UsageError as error:  # the others wait for a code, not for an exception
                self._complain(str(error))
                self._code = ExitCode.USAGE
            if FOLDER not in os.environ:
                self._show(report)
            return self._code

    @property
    def _shows(self) -> bool:
        return not self._options.quiet and not output.on_stdout(self._options)

    def _show(self, report: Report) -> None:
        o = self._options
        if alone := output.on_stdout(o):
            if not self._print(lambda: output.write(alone, report, "-")):
                self._code = ExitCode.BROKEN  # it was all that was asked for
            return
        if report.measurements and self._shows:
            self._print(lambda: print(flush=True))
        self._print(
            lambda: output.show(report, quiet=o.quiet, verbose=o.verbose, no_color=o.no_color, rows=not self._shows)
        )

    def _print(self, show: Callable[[], None]) -> bool:
        """Whether `show` could write to standard output. Once it could not, it is not tried again."""
        if self._mute:
            return False
        try:
            show()
        except BrokenPipeError:  # `… | head`: nobody reads on, and nobody wants to be told
            self._mute = True
        except (OSError, ValueError) as error:  # full, closed, of another encoding, or too narrow for any text
            self._mute = True
            if FOLDER not in os.environ:  # else whoever started this rank fails likewise, and says so
                self._complain(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")
        if self._mute:
            _silence_stdout()
        return not self._mute

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(f"ncclprobe: {text}", file=sys.stderr, flush=True)

    def _write(self, report: Report, name: str) -> None:
        """Write `report` where the user wants it, and as `name` where whoever started the ranks looks for it."""
        folder = os.environ.get(FOLDER)
        if folder:
            as_json.write(report, str(Path(folder, name)))
        if self._options.json and self._options.json != "-":
            with contextlib.suppress(UsageError) if folder and name == REPORT else contextlib.nullcontext():
                as_json.write(report, self._options.json)

    def _report(self, ending: Ending) -> Report:
        party, rows = self.party, tuple(self._rows)
        verdicts = engine.judge((Snapshot(party.hosts[0], self._facts(ending)),), self._asked(), _job(party))
        if len({*party.hosts}) > 1:  # they are about all nodes, and their findings say which
            verdicts = tuple(replace(verdict, node=None) for verdict in verdicts)
        left_out = tuple(self._unmeasured)
        doubts = [*self._doubts, *([ending.why] if ending.why else []), *self._unjudged(rows), *gaps.doubts(left_out)]
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
            fingerprint=self.fingerprint,
            first_call=self.first_call,
            pairs=tuple(self._pairs),
            roads=self.asides.roads,
            copies=self.asides.copies,
            affinity=self.asides.affinity,
            groups=tuple(self._groups),
            steps=tuple(self._steps),
            localisation=self._found(ending),
            unmeasured=left_out,
            remarks=tuple(
                dict.fromkeys(
                    (*doubts, *self._remarks, *gaps.remarks(left_out), *gaps.imprecise(rows), *self._hint(rows, status))
                )
            ),
        )

    def _unjudged(self, rows: Sequence[Measurement]) -> Iterator[str]:
        """Which of `rows` the file of expectations left unjudged, where that was not asked for."""
        judged, path = sum(row.expectation is not None for row in rows), self._options.expect
        if self._options.training and not self._options.report_only:
            yield "nothing judges groups and steps of training: give --report-only where the numbers are all you want"
        copies = not self._options.report_only and self.asides.copies
        if copies and all(row.status == "unjudged" for row in copies):
            yield "nothing judges these copies: give --report-only where the numbers are all you want"
        if self._options.baseline and not path and rows and not self._options.report_only:
            without = sum(row.expectation is None or row.expectation.basis != "baseline" for row in rows)
            if without:
                yield f"no baseline for {without} of {len(rows)} rows in {self._options.baseline}: keep a run with them"
        if not path or judged == len(rows):
            return
        if not judged:
            yield f"{path} expects nothing of the rows measured: it speaks for {listed(self._bands)}"
        elif not self._options.report_only:
            yield f"{judged} of {len(rows)} rows judged by {path}: add the others, or --report-only where that will do"

    def _hint(self, rows: Sequence[Measurement], status: Status) -> Iterator[str]:
        """What else the reader should know of rows that nobody judged."""
        judged, path = sum(row.expectation is not None for row in rows), self._options.expect
        if path and self._options.report_only and 0 < judged < len(rows):
            yield f"{judged} of {len(rows)} rows judged by {path}"
        if loose := self._too_loose():
            yield loose
        alone = not (judged or path or self._options.baseline or self._options.report_only)
        if alone and rows and status is Status.UNKNOWN:
            yield UNJUDGED

    def _facts(self, ending: Ending) -> dict[type, object]:
        rows = tuple(self._rows)
        verified = tuple(row for row in rows if row.wrong is not None)
        expected = tuple(row for row in rows if row.expectation and row.status != "unjudged")
        skewed = tuple(row for row in rows if row.skew)
        nothing = "no row was measured" if not rows else ""
        no_pairs = "the run ended before all pairs were measured"
        apart = Absent("the ranks had not met when the run ended")
        return {
            Arrivals: ending.arrivals or (Arrivals(self.party.ranks) if self.met else apart),
            Attendance: self._attendance(ending) or apart,
            Verified: Verified(verified) if verified else Absent(nothing or "no row's data was verified"),
            Judged: Judged(expected) if expected else Absent(nothing or self._too_loose() or _NOTHING_EXPECTED),
            Localisation: self._found(ending) or Absent(no_pairs),
            Apart: Apart(skewed, self.party.hosts) if skewed else Absent(nothing or "no call is short enough for that"),
            Grouped: Grouped(tuple(self._groups)) if self._groups else Absent("no group was measured"),
            **self.asides.facts(),
        }

    def _too_loose(self) -> str:
        """Why no number is judged though some are expected: they are too loosely known. Empty where one is judged."""
        rows = self._rows
        known = [row.expectation.known for row in rows if row.expectation]
        if not known or any(row.status != "unjudged" for row in rows) or self._options.expect or self._options.baseline:
            return ""
        return f"{len(rows)} row{'s' * (len(rows) != 1)} measured, none judged; the last of them: {known[-1]}"

    def _attendance(self, ending: Ending) -> Attendance | None:
        """Who stayed, and who of the others was set aside or ended the run; None: not even the start is known."""
        found = ending.attendance or (Attendance(self.party.ranks) if self.met else None)
        return replace(found, lost=(*self.lost, *found.lost)) if found else None

    def _found(self, ending: Ending) -> Localisation | None:
        """The localisation; at an early end as much of it as the pairs measured so far give."""
        early = self.so_far if self._pairs and ending.why != _RUNNING else None
        return self._localisation or (early() if early else None)

    def _asked(self) -> tuple[Check, ...]:
        """The checks of this run: none of one rank. With --report-only, and no --expect, numbers need no judge."""
        if self.party.ranks == 1 and self._options.aside != "copies":
            return ()
        beside = self.asides.unasked(self._options.aside, report_only=self._options.report_only)
        if self._options.training is None or self._options.training.grid is None:
            beside = (*beside, "run.groups")
        if self._options.training is not None:
            return engine.selected(self._checks, ignore=("run.band", "run.data", "run.straggler", "run.pairs", *beside))
        if self._options.pairs is not None:
            few = self._localisation is not None and self._localisation.nodes < 3 and not self._localisation.lost
            lone = ("run.pairs",) if few and self._options.report_only else ()
            return engine.selected(self._checks, ignore=("run.band", "run.data", "run.straggler", *lone, *beside))
        judged_any = any(row.expectation for row in self._rows)
        unasked = ("run.band",) if self._options.report_only and not (self._options.expect or judged_any) else ()
        unasked = ("run.band",) if self._too_loose() else unasked
        return engine.selected(self._checks, ignore=("run.pairs", *unasked, *beside))

    def _nodes(self, status: Status) -> tuple[NodeRow, ...]:
        hosts = dict.fromkeys(self.party.hosts)
        return tuple(NodeRow(host, rank, host, status) for rank, host in enumerate(hosts))


def _silence_stdout() -> None:
    """What is still buffered for a stream that cannot be written would be tried again at the end, and complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _job(party: Party) -> Job:
    return Job("nccl" if party.backend == "nccl" else "gloo")
