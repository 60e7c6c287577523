"""Results measured elsewhere, judged as a run judges its own rows, and shown: ``ncclprobe expect --judge FILE``.

And what others may learn of such rows, or of a run's own: ``--contribute FILE``.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ncclprobe.expect.bands import judged
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import Pinned, pinned
from ncclprobe.expect.predict import LATEST, predict
from ncclprobe.expect.recognise import expectation_context
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.measurement import Band, Judged, Measurement
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, asdict, replace
from ncclprobe.nccl import algorithms
from ncclprobe.nccl.parameters import table

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
    return _said_version(text) or LATEST


def _said_version(text: str) -> NcclVersion | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


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


CONTRIBUTION = "ncclprobe.contribution/1"
Healthy = Literal["yes", "no", "unknown"]
"""Whether the machine was well, as its user says."""


class ContributedRow(Struct, frozen=True):
    """One measured number, as docs/reference/files.md documents it."""

    op: str
    nbytes: int
    place: str
    nodes: int
    gpus_per_node: int
    nccl: str
    time_us: float
    busbw_GBps: float


class Contribution(Struct, frozen=True):
    """What others may learn of a run: known fields alone, none of which can name a host, a user or a site."""

    schema: str
    healthy: Healthy
    system: NodeSystem
    settings: str
    rows: tuple[ContributedRow, ...]


def contribution(rows: Sequence[Measurement], place: Setup, healthy: Healthy) -> Contribution:
    """Return the rows of NCCL that tell of this machine; `healthy` is what the user says.

    They have right data, of ranks evenly on its nodes, and are neither noise nor faster than its links. What was not
    said is left out: NCCL's release, and the network where no row crossed it. Raises UsageError where there is none,
    for a run that failed, and for settings in words that are not NCCL's.
    """
    if place.failed:
        raise UsageError(f"the run says of itself: {place.failed}")
    _refuse_foreign_words(str(place.settings))
    own = place.machine and not place.machine.origin  # a site's own type may be called after the site
    system = replace(place.system, name=place.machine.name if place.machine and own else place.system.gpu, source="")
    shapes = ((row, shape_of(row, place)) for row in rows if _tells(row))
    kept = tuple(
        _contributed(row, shape, place) for row, shape in shapes if shape and max(shape.gpus) <= place.system.gpus
    )
    if not kept:
        raise UsageError(
            "no row of NCCL was measured that tells of this machine: wrong data, noise, ranks that it lacks"
        )
    if all(row.nodes == 1 for row in kept):  # then nothing was seen of its network
        system = replace(system, nics=0, nic_gbps=0.0, network=None, gdr=False)
    return Contribution(CONTRIBUTION, healthy, system, str(place.settings), kept)


def _tells(row: Measurement) -> bool:
    return row.backend == "nccl" and not row.wrong and row.status != "inconclusive"


def _refuse_foreign_words(settings: str) -> None:
    """Raises UsageError for a value that NCCL does not know: it may be a name, and says nothing of the rows."""
    for word in filter(None, re.split(r"[\s,;:^=-]", settings)):
        if not (word.isdecimal() or word in table() or word.lower() in _WORDS):
            raise UsageError(f"{settings[:80]}: {word[:40]!r} is neither a number nor a word of NCCL's")


_WORDS = {word.lower() for word in (*algorithms.FUNCTIONS, *algorithms.ALGORITHMS, *algorithms.PROTOCOLS, "LOC")}


def of_run(rows: Sequence[Measurement], known: Mapping[type, Any], healthy: Healthy) -> Contribution:
    """Return the same of a run's own rows, on the machine of which these facts are `known`. Raises UsageError."""
    here = expectation_context(known)
    if isinstance(here.system, Absent):
        raise UsageError(here.system.why)
    return contribution(
        rows, Setup(here.system, here.machine, None, pinned(here.settings, here.nccl or LATEST)), healthy
    )


def contribute(path: str, told: Contribution) -> None:
    """Write what others may learn of the rows. Raises UsageError."""
    files.write(Path(path), json.dumps(asdict(told), indent=1) + "\n", ours=recognises)
    print(f"ncclprobe: {path} has {len(told.rows)} rows; read it before you send it", file=sys.stderr)


def recognises(text: str) -> bool:
    """Return whether `text` is a contribution, as a whole."""
    try:
        return msgspec.json.decode(text, type=Contribution).schema == CONTRIBUTION
    except (msgspec.MsgspecError, RecursionError):
        return False


def _contributed(row: Measurement, shape: Shape, place: Setup) -> ContributedRow:
    release = ".".join(map(str, place.version or _said_version(row.library.version) or ()))
    about = row.op, row.nbytes, row.place, shape.nodes, shape.gpus[0], release
    return ContributedRow(*about, row.time_us.typical, row.busbw_GBps)


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
