"""Results measured elsewhere, judged as a run judges its own rows, and shown: ``ncclprobe expect --judge FILE``."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.expect.bands import judged
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import Pinned
from ncclprobe.expect.predict import LATEST, predict
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.measurement import Band, Judged, Measurement
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, asdict, replace

_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{1,64}) set by environment to (\S{1,256})\.?(?:\s|$)")
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
_MOST_NODES = 1 << 16
MARGIN = 1.2
"""So many times what the links carry is reached by no run of such a machine: of 2,301 published rows the fastest has
1.09 times the larger of what its links carry one way and of what is expected."""


class Setup(Struct, frozen=True):
    """On what the rows were measured. `nodes` is null where each row says it, `settings` are those of the job.

    `version` is NCCL's, null where each row says it. `failed` is why the run calls itself no measure of health (wrong
    data in its summary, an error); empty: it does not. `must`: a file of which no row is judged is inconclusive.
    """

    system: NodeSystem
    machine: MachineType | None
    nodes: int | None
    settings: Pinned
    failed: str = ""
    version: NcclVersion | None = None
    must: bool = False


def environment(text: str) -> dict[str, str | None]:
    """What NCCL's INFO lines in a log say of its variables; the last of each counts."""
    return {name: value.rstrip(".") for name, value in _SET.findall(text)}


def judge(rows: Sequence[Measurement], place: Setup) -> tuple[Measurement, ...]:
    """Each row with its expectation and verdict; a row with wrong data fails whatever its speed.

    Where no interval is known, as in nccl-tests' tables, the time is all there is, and is taken as it stands. Baselines
    and verdicts that a report carries of itself are left aside.
    """
    return tuple(_judged(row, place) for row in rows)


def _judged(row: Measurement, place: Setup) -> Measurement:
    interval = row.interval_us or (row.time_us.typical, row.time_us.typical)
    plain = replace(row, expectation=None, status="unjudged", inconclusive_why="", interval_us=interval)
    said = judged(plain, list(_band(row, place)))
    if row.wrong:
        return replace(said, status="fail", inconclusive_why=f"{row.wrong} wrong values")
    return _unless_another_machine(said, place)


def _unless_another_machine(row: Measurement, place: Setup) -> Measurement:
    """`row`, which is no pass where it is faster than this machine can be."""
    shape = shape_of(row, place)
    if row.expectation is None or shape is None:
        return row
    found = predict(place.system, shape, row.op, row.nbytes, place.version or _version(row.library.version))
    most = max(found.wire_GBps, found.busbw_GBps, row.expectation.value) if found else math.inf
    if row.busbw_GBps <= MARGIN * most:
        return row
    why = (
        f"{row.busbw_GBps:.4g} GB/s is more than {most:.4g}, which this machine can reach, by {MARGIN - 1:.0%} or more"
    )
    return replace(row, status="inconclusive", inconclusive_why=f"{why}: it was measured on another one")


def _band(row: Measurement, place: Setup) -> Iterator[Band]:
    shape = shape_of(row, place)
    if row.backend != "nccl" or shape is None or max(shape.gpus) > place.system.gpus:
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
    """How the ranks of `row` are spread: evenly; None where they cannot be."""
    nodes = place.nodes or row.nodes
    if not 0 < nodes <= min(row.ranks, _MOST_NODES) or row.ranks % nodes:
        return None
    return Shape((row.ranks // nodes,) * nodes)


def _version(text: str) -> NcclVersion:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else LATEST


def exit_code(rows: Sequence[Measurement], place: Setup) -> ExitCode:
    """4 where a row fails, 3 where one is too noisy to say or the run failed, else 0; where none was judged 0, or 3."""
    states = {row.status for row in rows}
    if "fail" in states:
        return ExitCode.FAIL
    unjudged = place.must and states <= {"unjudged"}
    return ExitCode.INCONCLUSIVE if "inconclusive" in states or place.failed or unjudged else ExitCode.OK


def headline(rows: Sequence[Measurement]) -> str:
    """How many rows, how many of them judged, and what they came to."""
    count, said = f"{len(rows)} row{'s' * (len(rows) != 1)} measured", judged_of(rows)
    if not said.rows:
        return f"{count}, none judged"
    states = [(word, sum(row.status == word for row in rows)) for word in ("fail", "warn", "inconclusive", "pass")]
    return f"{count}, {said.rows} judged: " + ", ".join(f"{number} {word}" for word, number in states if number)


def judged_of(rows: Sequence[Measurement]) -> Judged:
    """How many of `rows` have a verdict."""
    return Judged(sum(row.status != "unjudged" for row in rows), len(rows))


def as_text(rows: Sequence[Measurement], place: Setup, sources: Sequence[str]) -> str:
    """A line per row, below them each source and reason once."""
    return "\n".join(_text(rows, place, sources))


def _text(rows: Sequence[Measurement], place: Setup, sources: Sequence[str]) -> Iterator[str]:
    name = place.machine.name if place.machine else place.system.name
    yield f"{headline(rows)}; {', '.join(sources)} against {name}" + (
        f" with {place.settings}" if place.settings else ""
    )
    if place.failed:
        yield f"the run says of itself: {place.failed}"
    names = ("op", "size", "place", "ranks", "GB/s", "expected", "threshold", "status")
    yield "{:<14} {:>9} {:<5} {:>11} {:>9} {:>9} {:>9} {:<9} from".format(*names)
    notes: dict[str, int] = {}
    for row in rows:
        yield _line(row, place, notes)
    for note, number in notes.items():
        yield f"[{number}] {note}"


def _line(row: Measurement, place: Setup, notes: dict[str, int]) -> str:
    found, nodes = row.expectation, place.nodes or row.nodes
    ranks = f"{row.ranks} on {nodes}"
    value = f"{found.value:9.4g}" if found else f"{'-':>9}"
    mark = found.mark(row.busbw_GBps) if found else 0.0
    low = f"{mark:9.4g}" if mark else f"{'-':>9}"
    marks = [f"[{notes.setdefault(note, len(notes) + 1)}]" for note in _notes(row, place)]
    basis = found.basis if found else ""
    cells = f"{row.op:<14} {size(row.nbytes):>9} {row.place:<5} {ranks:>11} {row.busbw_GBps:9.4g} {value} {low}"
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


def _nothing(row: Measurement, place: Setup) -> str:
    if row.backend != "nccl":
        return f"not judged: nothing is expected of {row.backend}"
    shape = shape_of(row, place)
    if shape is None:
        return f"not judged: {row.ranks} ranks cannot be spread evenly over {place.nodes or row.nodes} nodes"
    if max(shape.gpus) > place.system.gpus:
        return f"not judged: {max(shape.gpus)} ranks per node, and this machine has {place.system.gpus} GPUs"
    return f"not judged: nothing is known of {row.op} here"


def as_json(rows: Sequence[Measurement], place: Setup, sources: Sequence[str]) -> dict[str, Any]:
    """The same as data."""
    return {
        "files": list(sources),
        "machine": place.machine.name if place.machine else None,
        "settings": str(place.settings) or None,
        "headline": headline(rows),
        "failed": place.failed or None,
        "judged": asdict(judged_of(rows)),
        "exit_code": int(exit_code(rows, place)),
        "rows": [_row(row, place) for row in rows],
    }


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
