"""What a machine should reach: a line per operation and size with an expectation.

`machine`: its type, null: none was recognised. `why`: how it was recognised, or why nothing is expected.
"""

from collections.abc import Iterator, Sequence

from ncclprobe.expect.expected import Call, expectation
from ncclprobe.expect.pinned import NOTHING, Pinned
from ncclprobe.expect.predict import LATEST, Prediction
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.units import plural
from ncclprobe.model.values import Result, Struct

_MOST_NODES, MOST_SIZES = 1 << 16, 64


class Line(Struct, frozen=True):
    """One size of one operation. `prediction` is None if no model covers it."""

    op: str
    nbytes: int
    expectation: Expectation
    prediction: Prediction | None

    def time_us(self, ranks: int) -> float:
        """Return the time of a call with the expected bandwidth."""
        return self.nbytes * OPS[self.op].bus_factor(ranks) / self.expectation.value / 1e3


class Outlook(Result, frozen=True):
    """What a machine should reach: one line per operation and size that has an expectation.

    `machine`: its type; None: not recognised. `why`: how it was recognised, or why nothing is expected.
    """

    machine: str | None
    why: str
    lines: tuple[Line, ...] = ()

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<Outlook of {self.machine or 'no known machine'}: {len(self.lines)} lines>"


class TableRequest(Struct, frozen=True, kw_only=True):
    """The request for a table: the links, the ranks, the operations and the sizes."""

    system: NodeSystem
    shape: Shape
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    machine: MachineType | None = None
    version: NcclVersion = LATEST
    settings: Pinned = NOTHING


def shape_of(counts: tuple[int, ...], nodes: int | None, gpus: int) -> Shape:
    """Return the ranks on this many nodes (None: as listed), with one count for each node or one for all.

    `gpus` is the number that a node has. Raises UsageError for counts that do not fit the number of nodes, or missing
    GPUs.
    """
    nodes = nodes or len(counts)
    if nodes > _MOST_NODES:
        raise UsageError(f"--nodes {nodes}: at most {_MOST_NODES}")
    if len(counts) not in (1, nodes):
        listed = ",".join(map(str, counts))[:40]
        raise UsageError(f"--gpus-per-node {listed} speaks of {len(counts)} nodes and --nodes of {nodes}")
    for each in counts:
        if not 0 < each <= gpus:
            raise UsageError(f"--gpus-per-node {each}: this machine has {plural(gpus, 'GPU')}")
    shape = Shape(counts * nodes if len(counts) == 1 else counts)
    if shape.ranks < 2:
        raise UsageError("a single GPU sends nothing; give --nodes 2 or more")
    return shape


def lines(asked: TableRequest) -> tuple[Line, ...]:
    """Return one line per operation and size with an expectation. Sizes are rounded as nccl-tests rounds float32."""
    rows = ((op, nbytes) for op in asked.ops for nbytes in printed(op, asked.sizes, asked.shape.ranks))
    return tuple(line for op, nbytes in rows if (line := _line(asked, op, nbytes)))


def printed(op: str, sizes: Sequence[int], ranks: int, itemsize: int = 4) -> Iterator[int]:
    """Yield the sizes that nccl-tests prints for the requested ones, without those too small to divide."""
    rounded = (OPS[op].shape(nbytes, ranks, itemsize).nbytes for nbytes in sizes)
    return (nbytes for nbytes in dict.fromkeys(rounded) if nbytes)


def _line(asked: TableRequest, op: str, nbytes: int) -> Line | None:
    system, shape = asked.system, asked.shape
    settings = asked.settings
    found = expectation(op, nbytes, shape, system, machine=asked.machine, version=asked.version, settings=settings)
    if found is None:
        return None
    base = Call(settings.applied(system), shape, op, nbytes, asked.version, settings).predicted()
    return Line(op, nbytes, found, base)
