"""What a machine should reach: a line per operation and size with an expectation.

`machine`: its type, null: none was recognised. `why`: how it was recognised, or why nothing is expected.
"""

from collections.abc import Iterator, Sequence

from ncclprobe.expect.expected import Call, expectation
from ncclprobe.expect.pinned import NOTHING as NOT_SET
from ncclprobe.expect.pinned import Pinned
from ncclprobe.expect.predict import LATEST, Prediction, predict
from ncclprobe.expect.system import MOST_NICS, NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import Result, Struct, replace

_FASTEST_GBPS = 1e5


class WhatIf(Struct, frozen=True, kw_only=True):
    """What is to be different; None and False: as it is. `nic_gbps` is 1e9 bits per second of each NIC."""

    nic_gbps: float | None = None
    nics: int | None = None
    no_gdr: bool = False
    no_nvls: bool = False
    tcp: bool = False
    algorithm: str | None = None

    def __bool__(self) -> bool:
        """Return whether anything is."""
        return self != NOTHING

    def __str__(self) -> str:
        """In words: ``NICs at 200 Gb/s, ring``."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.nics is not None:
            yield f"{self.nics} NICs"
        if self.nic_gbps is not None:
            yield f"NICs at {self.nic_gbps:g} Gb/s"
        if self.no_gdr:
            yield "no GPUDirect RDMA"
        if self.no_nvls:
            yield "no NVLS"
        if self.tcp:
            yield "TCP sockets"
        if self.algorithm:
            yield f"NCCL_ALGO={self.algorithm}"


NOTHING = WhatIf()


def changed(system: NodeSystem, change: WhatIf) -> NodeSystem:
    """Return `system` with `change`. Raises UsageError for one that it cannot have."""
    if change.nics is not None and not 0 < change.nics <= MOST_NICS:
        raise UsageError(f"--nics {change.nics}: a node has 1 to {MOST_NICS}")
    if change.nic_gbps is not None and not 0 < change.nic_gbps <= _FASTEST_GBPS:
        raise UsageError(f"--nic-rate {change.nic_gbps:g}: give Gb/s of one NIC, such as 200")
    return replace(
        system,
        nics=system.nics if change.nics is None else change.nics,
        nic_gbps=system.nic_gbps if change.nic_gbps is None else change.nic_gbps,
        gdr=system.gdr and not (change.no_gdr or change.tcp),
        nvls=system.nvls and not change.no_nvls,
        network="sockets" if change.tcp else system.network,
    )


_MOST_NODES, MOST_SIZES = 1 << 16, 64


class Line(Struct, frozen=True):
    """One size of one operation. `prediction` is null if no model speaks of it, `changed_GBps` without a what-if."""

    op: str
    nbytes: int
    expectation: Expectation
    prediction: Prediction | None
    changed_GBps: float | None = None
    changed_bottleneck: str | None = None

    @property
    def cost(self) -> float | None:
        """The share of the bandwidth that the change costs; below zero: it gains."""
        return None if self.changed_GBps is None else 1 - self.changed_GBps / self.unchanged_GBps

    @property
    def unchanged_GBps(self) -> float:
        """What the change is compared with: model with model, never model with a published number."""
        return self.prediction.busbw_GBps if self.prediction else self.expectation.value

    def time_us(self, ranks: int) -> float:
        """What a call of the expected bandwidth takes."""
        return self.nbytes * OPS[self.op].bus_factor(ranks) / self.expectation.value / 1e3


class Outlook(Result, frozen=True):
    """What a machine should reach: a line per operation and size of which anything is known.

    `machine`: its type, null: none was recognised. `why`: how it was recognised, or why nothing is expected.
    """

    machine: str | None
    why: str
    lines: tuple[Line, ...] = ()

    def __repr__(self) -> str:
        """Return it in one line."""
        return f"<Outlook of {self.machine or 'no known machine'}: {len(self.lines)} lines>"


class TableRequest(Struct, frozen=True, kw_only=True):
    """For what numbers are asked: links, as many of them, what of, and what if."""

    system: NodeSystem
    shape: Shape
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    machine: MachineType | None = None
    version: NcclVersion = LATEST
    change: WhatIf = NOTHING
    changed_version: NcclVersion | None = None
    settings: Pinned = NOT_SET


def shape_of(counts: tuple[int, ...], nodes: int | None, gpus: int) -> Shape:
    """Return the ranks on so many nodes (null: as listed), with one count for each or one for all.

    `gpus` are there. Raises UsageError for counts that do not fit the number of nodes, or GPUs that are not there.
    """
    nodes = nodes or len(counts)
    if nodes > _MOST_NODES:
        raise UsageError(f"--nodes {nodes}: at most {_MOST_NODES}")
    if len(counts) not in (1, nodes):
        listed = ",".join(map(str, counts))[:40]
        raise UsageError(f"--gpus-per-node {listed} speaks of {len(counts)} nodes and --nodes of {nodes}")
    for each in counts:
        if not 0 < each <= gpus:
            raise UsageError(f"--gpus-per-node {each}: this machine has {gpus} GPUs")
    shape = Shape(counts * nodes if len(counts) == 1 else counts)
    if shape.ranks < 2:
        raise UsageError("one GPU sends nothing to anybody: give --nodes 2 or more")
    return shape


def lines(asked: TableRequest) -> tuple[Line, ...]:
    """A line per operation and size with an expectation. Sizes are rounded as nccl-tests rounds float32."""
    rows = ((op, nbytes) for op in asked.ops for nbytes in printed(op, asked.sizes, asked.shape.ranks))
    return tuple(line for op, nbytes in rows if (line := _line(asked, op, nbytes)))


def printed(op: str, sizes: Sequence[int], ranks: int, itemsize: int = 4) -> Iterator[int]:
    """The sizes that nccl-tests prints for those asked for, without what is too small to be shared out."""
    rounded = (OPS[op].shape(nbytes, ranks, itemsize).nbytes for nbytes in sizes)
    return (nbytes for nbytes in dict.fromkeys(rounded) if nbytes)


def _line(asked: TableRequest, op: str, nbytes: int) -> Line | None:
    system, shape = asked.system, asked.shape
    settings = asked.settings
    found = expectation(op, nbytes, shape, system, machine=asked.machine, version=asked.version, settings=settings)
    if found is None:
        return None
    base = Call(settings.applied(system), shape, op, nbytes, asked.version, settings).predicted()
    if not asked.change and asked.changed_version is None:
        return Line(op, nbytes, found, base)
    version = asked.changed_version or asked.version
    other = changed(system, asked.change)
    fault = predict(other, shape, op, nbytes, version, asked.change.algorithm)
    if fault:
        return Line(op, nbytes, found, base, fault.busbw_GBps, fault.bottleneck)
    if asked.change.algorithm and predict(other, shape, op, nbytes, version):  # without it there would be a number
        return Line(op, nbytes, found, base)
    plain = expectation(op, nbytes, shape, other, version=version)
    return Line(op, nbytes, found, base, plain.value if plain else None, "TCP" if plain else None)
