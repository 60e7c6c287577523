"""Judge results that were measured elsewhere as a run judges its own rows, and show them: ``ncclprobe expect --judge
FILE``.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.expect.bands import judged
from ncclprobe.expect.evidence import GROSS_FROM, GROSS_SHARE
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.log_findings import LogFinding
from ncclprobe.expect.pinned import Pinned
from ncclprobe.expect.predict import LATEST, predict
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.findings import ExitCode, Severity
from ncclprobe.model.layout import wrap
from ncclprobe.model.measurement import Band, Judged, Measurement
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Result, Struct, asdict, grouped, replace

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
_MOST_NODES = 1 << 16
REACHED = 0.8
"""From 64 MiB on, a row passes at this share of a number whose error is unknown. Below it there is no verdict, and
below a third it fails.
"""
REFUTED, REFUTED_LOOSE = 1.3, 1.5
"""If a run's fastest row exceeds the expectation by this factor, it was not measured on this machine: the first if the
error of the class is known, the second if not.
"""
MARGIN, _CLOSE = 1.2, 1.03
"""No run of a machine exceeds its links by this factor: of 2,301 published rows the fastest has 1.09 times the larger
of what its links carry one way and of what is expected. `_CLOSE`: for a hint, which must be true, only rounding is
allowed.
"""


class Alternative(Struct, frozen=True):
    """Another machine that may have been measured, and what the user can say to settle it."""

    system: NodeSystem
    words: str


class Setup(Struct, frozen=True):
    """The machine that the rows were measured on. `nodes` is None if each row has it; `settings` are the job's.

    `version` is NCCL's, None if each row has it. `failed` is why the run itself says that it is not evidence of health
    (wrong data in its summary, an error); otherwise empty. `system` is None for a run that is not judged, for the
    reason `not_judged`. `assumed` describes the parts of the machine that nobody specified: a row never fails because
    of them. A row that one of the `alternatives` allows does not fail either.
    """

    system: NodeSystem | None
    machine: MachineType | None
    nodes: int | None
    settings: Pinned
    failed: str = ""
    version: NcclVersion | None = None
    assumed: str = ""
    not_judged: str = ""
    alternatives: tuple[Alternative, ...] = ()
    name: str = ""


def judge(rows: Sequence[Measurement], place: Setup) -> tuple[Measurement, ...]:
    """Return each row with its expectation and verdict; a row with wrong data fails whatever its speed.

    If no interval is known, as in nccl-tests' tables, the time is used as it is. A report's own baselines and verdicts
    are ignored.
    """
    return tuple(_judged(row, place) for row in rows)


def _judged(row: Measurement, place: Setup) -> Measurement:
    interval = row.interval_us or (row.time_us.typical, row.time_us.typical)
    plain = replace(row, expectation=None, status="unjudged", inconclusive_why="", interval_us=interval)
    said = judged(plain, list(_band(row, place)))
    if row.wrong:
        return replace(said, status="fail", inconclusive_why=f"{row.wrong} wrong values")
    found = said.expectation
    if said.status in ("fail", "warn") and place.assumed and found:
        if said.busbw_GBps >= found.threshold and said.status == "warn":  # above the mark: the machine is not known
            said = replace(said, status="pass")
        elif row.nbytes < GROSS_FROM and (place.nodes or row.nodes) > 1:
            return replace(
                said, status="unjudged", inconclusive_why="small, and the latency of the assumed NICs is unknown"
            )
    if said.status == "fail":
        return _downgrade_if_assumed(said, place)
    return _refute_if_too_fast(_pass_if_near(said), place)


def _downgrade_if_assumed(row: Measurement, place: Setup) -> Measurement:
    """Downgrade a failing row to a warning if an assumption about the machine decides it."""
    for other in place.alternatives:
        found = next((band.expectation for band in _band(row, replace(place, system=other.system, machine=None))), None)
        if found and row.busbw_GBps >= max(found.mark(row.busbw_GBps), found.value * GROSS_SHARE):
            return replace(row, status="warn", inconclusive_why=f"below what is expected, or {other.words}")
    if place.assumed:
        why = f"it would fail if the assumptions hold: {place.assumed}"
        return replace(row, status="warn", inconclusive_why=why)
    return row


def _pass_if_near(row: Measurement) -> Measurement:
    """Let a large row pass that is near its expectation, however uncertain that is.

    It does not pass by a threshold that is below the gross one.
    """
    found = row.expectation
    if row.status == "pass" and found and found.gross and found.threshold < found.gross:
        row = replace(
            row, status="unjudged", inconclusive_why=f"less than {REACHED:.0%} of an expectation that is too uncertain"
        )
    if row.status != "unjudged" or found is None or found.gross is None or row.busbw_GBps < REACHED * found.value:
        return row
    return replace(row, status="pass", inconclusive_why=f"it reaches {REACHED:.0%} or more of what is expected")


def _refute_if_too_fast(row: Measurement, place: Setup) -> Measurement:
    """Make `row` inconclusive if it is faster than this machine can be."""
    most = _most(row, place)
    if row.expectation is None or row.busbw_GBps <= MARGIN * most:
        return row
    why = (
        f"{row.busbw_GBps:.4g} GB/s is more than {most:.4g}, which this machine can reach, by {MARGIN - 1:.0%} or more"
    )
    return replace(row, status="inconclusive", inconclusive_why=f"{why}: it was measured on another one{_hint(place)}")


def _most(row: Measurement, place: Setup) -> float:
    """Return the most that this machine can reach; infinite if unknown."""
    shape = shape_of(row, place)
    if shape is None or place.system is None:
        return math.inf
    found = predict(place.system, shape, row.op, row.nbytes, place.version or _version(row.library.version))
    expected = row.expectation.value if row.expectation else 0.0
    return max(found.wire_GBps, found.busbw_GBps, expected) if found else math.inf


def above(rows: Sequence[Measurement], place: Setup) -> bool:
    """Return whether one of `rows` is faster than the nodes' NICs carry, or than the machine is known to reach."""
    system, nodes = place.system, place.nodes or rows[0].nodes
    carried = system.nics * system.nic_gbps / 8 * nodes / (nodes - 1) if system and nodes > 1 else math.inf
    return any(row.busbw_GBps > _CLOSE * min(carried * (1 - 1 / row.ranks), _most(row, place)) for row in rows)


def peak(rows: Sequence[Measurement]) -> Measurement | None:
    """Return the fastest of the large rows that have an expectation."""
    large = [row for row in rows if row.expectation and row.expectation.gross is not None]
    return max(large, key=lambda row: row.busbw_GBps, default=None)


def refuted(rows: Sequence[Measurement]) -> bool:
    """Return whether the large `rows` are so much faster than expected that the machine must be another one."""
    if any(row.status == "inconclusive" for row in rows):
        return True
    fastest = peak(rows)
    if fastest is None or fastest.expectation is None:
        return False
    least = REFUTED_LOOSE if fastest.expectation.worst == "unjudged" else REFUTED
    return fastest.busbw_GBps > least * fastest.expectation.value


def _hint(place: Setup) -> str:
    """Describe the assumptions about the machine that the measurement refutes."""
    said = place.system.source.partition("assumed: ")[2] if place.system else ""
    return f", or one of these assumptions is wrong: {said}" if said else ""


def _band(row: Measurement, place: Setup) -> Iterator[Band]:
    shape = shape_of(row, place)
    if place.system is None or row.backend != "nccl" or shape is None or max(shape.gpus) > place.system.gpus:
        return
    found = expectation(
        row.op,
        row.nbytes,
        shape,
        place.system,
        machine=place.machine,
        version=place.version or _version(row.library.version),
        settings=place.settings,
        itemsize=1 if "8" in row.dtype else 4,  # int8, uint8, f8e4m3, float8_e5m2
    )
    if found:
        yield Band(row.op, row.nbytes, row.nbytes, found)


def shape_of(row: Measurement, place: Setup) -> Shape | None:
    """Spread the ranks of `row` evenly over the nodes; None if that is impossible."""
    nodes = place.nodes or row.nodes
    if not 0 < nodes <= min(row.ranks, _MOST_NODES) or row.ranks % nodes:
        return None
    return Shape((row.ranks // nodes,) * nodes)


def _version(text: str) -> NcclVersion:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else LATEST


def _line(row: Measurement, place: Setup, notes: dict[str, int]) -> str:
    found, nodes = row.expectation, place.nodes or row.nodes
    ranks = f"{row.ranks or '?'} on {nodes}"
    value = f"{found.value:8.4g}" if found else f"{'-':>8}"
    mark = found.mark(row.busbw_GBps) if found else 0.0
    low = f"{mark:9.4g}" if mark else f"{'-':>9}"
    marks = [f"[{notes.setdefault(note, len(notes) + 1)}]" for note in _notes(row, place)]
    basis = found.basis if found else ""
    cells = f"{size(row.nbytes):>9} {row.place:<3} {ranks:>9} {row.busbw_GBps:9.4g} {value} {low}"
    return f"{cells} {row.status:<9} {' '.join([basis, *marks])}".rstrip()


def _notes(row: Measurement, place: Setup) -> Iterator[str]:
    found = row.expectation
    if row.inconclusive_why:
        yield row.inconclusive_why
    if found is None:
        yield _nothing(row, place)
        return
    yield found.least(row.busbw_GBps) if found.below_gross(row.busbw_GBps) else found.known
    yield f"{found.basis}: {found.source}"


def _row(row: Measurement, place: Setup) -> Mapping[str, Any]:
    return {
        "op": row.op,
        "nbytes": row.nbytes,
        "place": row.place,
        "ranks": row.ranks,
        "nodes": place.nodes or row.nodes,
        "time_us": row.time_us.typical,
        "busbw_GBps": row.busbw_GBps,
        "wrong": row.wrong,
        "expectation": asdict(row.expectation) if row.expectation else None,
        "status": row.status,
        "why": "; ".join(_notes(row, place)),
    }


class JudgedRun(Struct, frozen=True):
    """One table of a log: its rows with verdicts and expectations, and other findings.

    `title` names the table, if there are several.
    """

    rows: tuple[Measurement, ...]
    place: Setup
    findings: tuple[LogFinding, ...] = ()
    title: str = ""


class JudgedLog(Result, frozen=True):
    """The verdicts on a log of measurements, the file `source`, table by table."""

    source: str
    runs: tuple[JudgedRun, ...]

    @property
    def rows(self) -> tuple[Measurement, ...]:
        """Return the rows of all tables, each with its status and expectation."""
        return tuple(row for run in self.runs for row in run.rows)

    @property
    def exit_code(self) -> ExitCode:
        """Return 4 if a row or a finding fails, 3 if a row is too noisy to judge, otherwise 0."""
        return exit_code(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `ncclprobe expect --judge FILE --json` writes."""
        return as_json(self.runs, [self.source])

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<JudgedLog of {self.source}: {headline(self.runs)}, exit {self.exit_code}>"


def exit_code(runs: Sequence[JudgedRun], *, must: bool = False) -> ExitCode:
    """Return 4 if a row or a finding fails; 3 if a row is too noisy, or the run was stopped or has no row; otherwise 0.

    If no row was judged: 0, or 3 if one `must` be.
    """
    states = {row.status for run in runs for row in run.rows}
    if "fail" in states or any(each.severity is Severity.FAIL for run in runs for each in run.findings):
        return ExitCode.FAIL
    unjudged = states <= {"unjudged"} and (must or not states)
    failed = any(run.place.failed for run in runs)
    return ExitCode.INCONCLUSIVE if "inconclusive" in states or failed or unjudged else ExitCode.OK


def headline(runs: Sequence[JudgedRun]) -> str:
    """Summarise the number of rows and of judged rows, and their verdicts."""
    rows = [row for run in runs for row in run.rows]
    count, said = f"{len(rows)} row{'s' * (len(rows) != 1)} measured", judged_of(rows)
    states = [(word, sum(row.status == word for row in rows)) for word in ("fail", "warn", "inconclusive", "pass")]
    told = f"{said.rows} judged: " + ", ".join(f"{number} {word}" for word, number in states if number)
    loud = [each for run in runs for each in run.findings if each.severity is not Severity.NOTE]
    more = f"; {len(loud)} finding{'s' * (len(loud) != 1)}" if loud else ""
    return f"{count}, {told if said.rows else 'none judged'}{more}"


def judged_of(rows: Sequence[Measurement]) -> Judged:
    """Count the `rows` that have a verdict."""
    return Judged(sum(row.status != "unjudged" for row in rows), len(rows))


def as_text(runs: Sequence[JudgedRun], sources: Sequence[str], width: int = 80) -> str:
    """Print one line per row below its operation's name, and below the rows each source and reason once."""
    return "\n".join(_text(runs, sources, width))


def _text(runs: Sequence[JudgedRun], sources: Sequence[str], width: int) -> Iterator[str]:
    against = "" if any(run.place.system is None for run in runs[:1]) else "against "
    machines = "several machines or settings, listed below" if _several(runs) else _describe_basis(runs[0].place)
    yield from wrap("", f"{headline(runs)}; {', '.join(sources)} {against}{machines}", width)
    names = ("size", "at", "ranks", "GB/s", "expected", "threshold", "status")
    notes: dict[str, int] = {}
    for run in runs:
        if run.title:
            title = f"--- {run.title}" + (f"; against {_describe_basis(run.place)}" if _several(runs) else "")
            yield from wrap("", title, width)
        if run.place.failed:
            yield from wrap("", f"the run reports: {run.place.failed}", width)
        for found in run.findings:
            yield from wrap("", str(found), width)
        for op, rows in grouped((row.op, row) for row in run.rows).items():
            yield op
            yield "{:>9} {:<3} {:>9} {:>9} {:>8} {:>9} {:<9} from".format(*names)
            for row in rows:
                yield _line(row, run.place, notes)
    for note, number in notes.items():
        yield from wrap(f"[{number}] ", note, width, whole=True)


def _several(runs: Sequence[JudgedRun]) -> bool:
    return len({_describe_basis(run.place) for run in runs}) > 1


def _describe_basis(place: Setup) -> str:
    """Describe what a run is judged by: the machine, its settings, and the assumptions."""
    if place.system is None:
        return place.not_judged
    name = place.name or (place.machine.name if place.machine else place.system.name)
    joined = place.system.joins(place.system.gpus)
    assumed = place.assumed or ("" if joined else place.system.source.partition("assumed: ")[2])
    return name + (f" with {place.settings}" if place.settings else "") + (f"; assumed: {assumed}" if assumed else "")


def _nothing(row: Measurement, place: Setup) -> str:
    if row.backend != "nccl":
        return f"not judged: there is no expectation for {row.backend}"
    if place.system is None:
        return place.not_judged
    if row.ranks == 1:
        return "not judged: one rank sends nothing; processes that each run with one were built without MPI=1"
    shape = shape_of(row, place)
    if shape is None:
        return f"not judged: {row.ranks} ranks cannot be spread evenly over {place.nodes or row.nodes} nodes"
    if max(shape.gpus) > place.system.gpus:
        return f"not judged: {max(shape.gpus)} ranks per node, and this machine has {plural(place.system.gpus, 'GPU')}"
    return f"not judged: there is no expectation for {row.op} here"


def as_json(runs: Sequence[JudgedRun], sources: Sequence[str], *, must: bool = False) -> dict[str, Any]:
    """Return the same as data. `settings`, `machine` and `assumed` are the first table's; each row names its own."""
    rows, place = [row for run in runs for row in run.rows], runs[0].place
    failed = "; ".join(filter(None, (run.place.failed for run in runs)))
    return {
        "files": list(sources),
        "machine": place.machine.name if place.machine else None,
        "assumed": place.assumed or None,
        "settings": str(place.settings) or None,
        "headline": headline(runs),
        "failed": failed or None,
        "judged": asdict(judged_of(rows)),
        "exit_code": int(exit_code(runs, must=must)),
        "findings": [
            {"table": number, "severity": str(each.severity), "message": each.message}
            for number, run in enumerate(runs, start=1)
            for each in run.findings
        ],
        "rows": [
            {"table": number, **_row(row, run.place)} for number, run in enumerate(runs, start=1) for row in run.rows
        ],
    }
