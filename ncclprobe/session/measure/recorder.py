"""Rank 0's record of a run: samples go to the run log and are shown as they arrive; the end makes one report.

However the run ends, the log is closed exactly once, by the thread that sees the end first. Under ``--nproc`` the
parent of the ranks makes the report from the log, and rank 0 only ends the log.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe import signals
from ncclprobe.engine import history
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.expect.bands import judge_rows
from ncclprobe.facts.run.samples import (
    DifferingSetting,
    Expected,
    ExpectedCopies,
    LostRank,
    Participants,
    Rows,
    RunRequest,
)
from ncclprobe.host.run_log import FILE, RunLog
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.hostlist import fold
from ncclprobe.model.measurement import Band, Disturbance, Fingerprint, FirstCall, Measurement, SkippedRow, Xids
from ncclprobe.model.pair_results import Aside, LostTransfer, PairRow, RankNics
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.traffic import CopyRow, GroupRow, LadderRow, OperationTraffic, StepRow
from ncclprobe.model.values import Struct, replace
from ncclprobe.report import delivery, rows
from ncclprobe.report import json as as_json
from ncclprobe.report.progress import Progress
from ncclprobe.session.measure.node_snapshot import replayed_nodes
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.rank_files import FOLDER
from ncclprobe.session.watchdog.ending import Ending

_VERDICT: Mapping[type, Collection[str]] = {
    Measurement: ("expectation", "status", "inconclusive_why", "retest"),
    LadderRow: ("speedup", "efficiency", "interval", "expectation", "status"),
    CopyRow: ("expected_GBps", "threshold_GBps", "why", "source", "status"),
}
"""Fields of a row that judging fills in; the log does not contain them."""
_SAMPLES: Mapping[type, str] = {
    Aside: "excluded",
    Fingerprint: "fingerprint",
    FirstCall: "first_call",
    GroupRow: "group",
    LadderRow: "rung",
    LostRank: "lost",
    LostTransfer: "lost_transfer",
    PairRow: "pair",
    RankNics: "pair_ranks",
    SkippedRow: "skipped",
    StepRow: "step",
    Xids: "xids",
}
"""Types that are separate samples in the log, and the samples' names."""


def log_path(options: Options, folder: str | Path | None) -> Path | None:
    """Return the path of the run log: in --keep, otherwise in `folder`, where the ranks' parent looks for it.

    None: the log is only in memory.
    """
    chosen = options.keep or folder
    return Path(chosen, FILE) if chosen else None


def asked(options: Options, backend: str) -> RunRequest:
    """Return the request of `options` with `backend`, the first sample of the log."""
    training, collectives = options.training, "collectives" in options.what
    return RunRequest(
        what=options.what,
        ops=options.ops if collectives else (),
        sizes=options.sizes_for(backend) if collectives else options.sizes,
        itemsize=options.itemsize,
        groups=bool(training and training.grid),
        steps=tuple(training.strategies) if training else (),
        nic_traffic=options.transport and collectives,
        backend=options.backend,
        expect=options.expect,
        baseline=options.baseline,
        require_judged=options.require_judged,
        notes=options.notes,
        accepts=options.accepts,
    )


class Recorder:
    """The samples so far, and the report on them."""

    def __init__(
        self,
        options: Options,
        question: Question,
        participants: Participants,
        bands: Sequence[Band] = (),
        progress: Progress | None = None,
    ) -> None:
        self._options, self._question = options, question
        self.progress = progress or Progress(wanted=False)
        self._log = RunLog(log_path(options, os.environ.get(FOLDER)))
        self._lock = threading.RLock()
        self._rows, self._expected = Rows(()), Expected()
        self._publisher = Publisher(options)
        self._code: int | None = None
        self.snapshots: Callable[[], Sequence[Snapshot]] = tuple
        """Returns the snapshots of nodes, once the report is made."""
        self.with_transport: Callable[[Measurement], Measurement] = lambda row: row
        """Returns a row with its transport, as far as it is known."""
        self._log.add("asked", _plain(asked(options, participants.backend)))
        self.participants = participants
        self.take_part(participants)
        self.expect(bands)
        self.record(*options.left_out)

    def ask_for(self, sizes: Sequence[int]) -> None:
        """Record the sizes of collectives to measure, once they are chosen by what can be judged."""
        asked_so_far = asked(self._options, self.participants.backend)
        self._log.add("asked", _plain(replace(asked_so_far, sizes=tuple(sizes))))

    def take_part(self, participants: Participants) -> None:
        """Record the participants known so far."""
        self.participants = participants
        self._log.add("participants", _plain(participants))

    def differ(self, settings: Sequence[DifferingSetting]) -> None:
        """Record the settings that differ between ranks."""
        self._log.add("rank_settings", _plain(tuple(settings)))

    def meet(self) -> None:
        """Record that all ranks have joined."""
        self._log.add("arrivals", {"expected": self.participants.ranks})

    def expect(self, bands: Sequence[Band]) -> None:
        """Judge rows by `bands` too, where no earlier band applies."""
        self._expected = Expected((*self._expected.bands, *bands))
        for band in bands:
            self._log.add("expected", _plain(band))

    def record(self, *found: Struct) -> None:
        """Record samples of the types in _SAMPLES."""
        for each in found:
            self._log.add(_SAMPLES[type(each)], _unjudged(each))

    def note(self, text: str) -> None:
        """Record a note for the reader."""
        self._log.add("note", text)

    def add(self, row: Measurement) -> None:
        """Record a row and show it with its verdict: a kill loses at most the row being measured."""
        with self._lock:
            if self._code is not None:  # closed by another thread: the report is out
                return
            row = self.with_transport(row)
            self.progress.count()
            self._rows = replace(self._rows, measured=(*self._rows.measured, row))
            self._log.add("row", _unjudged(row))
            self._publisher.row(judge_rows(replace(self._rows, measured=(row,)), self._expected)[0])

    def failing(self, most: int) -> list[tuple[str, int]]:
        """Return the operations and sizes that fail so far, at most `most`, the largest first."""
        rows = judge_rows(self._rows, self._expected, over=False)
        slow = sorted((row for row in rows if row.status == "fail"), key=lambda row: -row.nbytes)
        return list(dict.fromkeys((row.op, row.nbytes) for row in slow))[:most]

    def add_retest(self, row: Measurement) -> None:
        """Record a retest of a failed row, and show its new verdict."""
        with self._lock:
            self._rows = replace(self._rows, retests=(*self._rows.retests, row))
            self._log.add("retest", _unjudged(row))
            key = (row.op, row.nbytes, row.place)
            again = [each for each in self._rows.measured if (each.op, each.nbytes, each.place) == key]
            for each in judge_rows(replace(self._rows, measured=tuple(again)), self._expected):
                self._publisher.row(each)

    def disturbed(self, found: Sequence[Disturbance]) -> None:
        """Record what disturbed the run."""
        with self._lock:
            self._rows = replace(self._rows, disturbances=(*self._rows.disturbances, *found))
            for each in found:
                self._log.add("disturbance", _plain(each))
                if each.falsifies:
                    self.note(f"{each.what}; do not make this run a baseline; unset it and measure again")

    def all_pairs_tried(self) -> None:
        """Record that every pair was tried, except those of ranks that were gone."""
        self._log.add("pairs_complete", True)

    def lose_files(self, whys: Sequence[str]) -> None:
        """Report why files besides the report could not be written."""
        self._publisher.lose(whys)

    def add_traffic(self, rows: Sequence[OperationTraffic]) -> None:
        """Record the NICs' counts."""
        self._log.add("nic_traffic", _plain(tuple(rows)))

    def add_copies(self, rows: Sequence[CopyRow], expected: ExpectedCopies) -> None:
        """Record the copies within nodes, if any, and their expectations."""
        if rows:
            self._log.add("expected_copies", _plain(expected))
            self._log.add("copies", [_unjudged(row) for row in rows])

    def expected_GBps(self, nbytes: int) -> float | None:
        """Return the threshold of a pair of this size; None without an expectation."""
        return self._expected.least_pair_GBps(nbytes)

    def take_captures(self, captures: Sequence[tuple[str, str]]) -> list[Snapshot]:
        """Return the snapshots of these nodes, and record which nodes sent no capture."""
        if missing := sorted({*self.participants.hosts} - {host for host, _ in captures}):
            self.note(f"not checked: {fold(missing)} sent no capture")
        return replayed_nodes(captures, self.participants.hosts)

    def open(self) -> None:
        """Write a first report, which says that the run was cut short. Raises UsageError if it cannot be written."""
        self._publisher.write(self._report(()))

    def keep(self, ending: Ending) -> None:
        """Record the reason for the end in case this process is killed now."""
        with self._lock:
            if self._code is None:
                self._log.foresee(ending.why)

    def close(self, ending: Ending | None = None) -> int:
        """End the log, make the report and return the exit code. A second call returns the first one's."""
        ending = ending or Ending()
        with self._lock:
            if self._code is not None:
                return self._code
            self._end(ending)
            if FOLDER in os.environ:
                self._code = int(bare_code(ending))
                self.progress.stop()
                return self._code
            if ending != Ending():
                with contextlib.suppress(UsageError):
                    self._publisher.write(self._report(()))
            snapshots = self.snapshots()
            report = self._report(snapshots)
            self.progress.stop()
            self._code = self._publisher.publish(report)
            return self._code

    def report(self, snapshots: Sequence[Snapshot]) -> Report:
        """End the log, and return the report without showing it."""
        self._end(Ending())
        return self._report(snapshots)

    def _end(self, ending: Ending) -> None:
        if ending.arrivals:
            self._log.add("arrivals", _plain(ending.arrivals))
        if ending.attendance:
            self._log.add("attendance", _plain(ending.attendance))
        self._log.close(ending.why or ("" if ending == Ending() else "ranks were lost"))

    def facts(self) -> Facts:
        """Return the facts of the samples so far."""
        return run_facts(self._log)

    def _report(self, snapshots: Sequence[Snapshot]) -> Report:
        return diagnose(self._question, snapshots, self.facts())


def bare_code(ending: Ending) -> ExitCode:
    """Return rank 0's exit code if another process makes the report."""
    if ending.arrivals or ending.attendance:
        return ExitCode.FAIL
    return ExitCode.INCONCLUSIVE if ending.why else ExitCode.OK


def _plain(value: Any) -> Any:
    """Convert a value type to JSON's types."""

    return msgspec.to_builtins(value, str_keys=True)


def _unjudged(row: Struct) -> dict[str, Any]:
    return {name: value for name, value in _plain(row).items() if name not in _VERDICT.get(type(row), ())}


class Publisher:
    """Standard output and the files that the options name."""

    def __init__(self, options: Options) -> None:
        self._output, self._accepts, self._fleet = options.output, options.accepts, options.judging.fleet
        self._timeout_s = options.timeout_s
        self._shown: bool | None = None
        self._lost = False
        self._op = ""

    @property
    def shows_rows(self) -> bool:
        """Return whether rows are shown as they arrive; the output of `accept` begins with its line for pasting."""
        return not (self._output.quiet or self._output.on_stdout or self._accepts)

    def row(self, row: Measurement) -> None:
        """Show a row, the first one under its header."""
        if self.shows_rows:
            wide, style = delivery.width(), delivery.style(self._output.no_color)
            head = "" if self._op else f"{rows.header(row, wide)}\n"
            line = rows.row(row, wide, style, self._op)
            self._print(f"{head}{line}")
        self._op = row.op

    def write(self, report: Report) -> None:
        """Write the JSON report, if requested. Raises UsageError if it cannot be written."""
        path = self._output.files.get("json", "-")
        if path != "-":
            as_json.write(report, path)

    def publish(self, report: Report) -> int:
        """Write `report` to every requested destination, then show it; return the exit code."""
        code = delivery.deliver(report, self._output, measured=not self.shows_rows, shown=self._shown)
        if self._fleet:
            left_s = signals.began() + self._timeout_s - time.monotonic()
            history.keep(report, self._fleet, self._output.files.get("json", ""), left_s, delivery.complain)
        return int(ExitCode.USAGE if self._lost and code != ExitCode.FAIL else code)

    def lose(self, whys: Sequence[str]) -> None:
        """Report why files besides the report could not be written."""
        for why in whys:
            self._lost = True
            delivery.complain(why)

    def _print(self, text: str) -> None:
        """Print `text`. After a failure nothing more is tried on standard output."""
        if self._shown is not None:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:  # `… | head`: the reader has left
            self._shown = True
        except (OSError, ValueError) as error:  # full, closed, of another encoding, or too narrow for any text
            self._shown = False
            if FOLDER not in os.environ:  # else the parent of this rank fails in the same way, and prints that
                delivery.complain(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")
        if self._shown is not None:
            delivery.silence_stdout()
