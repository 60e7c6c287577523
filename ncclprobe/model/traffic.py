"""Types of traffic: the NIC that carried the bytes, the memories they moved between, groups, and training steps.

GB/s are 1e9 bytes per second, ``_us`` microseconds. None is unknown, never zero.
"""

from typing import Literal

from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import Struct

RungName = Literal["rank", "pair", "node", "job"]


class NicBytes(Struct, frozen=True):
    """Bytes that one NIC of one node moved during a measurement, by its own counters (all traffic, not only ours).

    `share`: of all bytes that this node's NICs sent. `expected`: whether the library should use it; None: unknown.
    `why`: the reason if the counters are unknown.
    """

    node: str
    nic: str
    kind: Literal["ethernet", "rdma"]
    sent: int | None
    received: int | None
    share: float | None = None
    expected: bool | None = None
    why: str = ""


class OperationTraffic(Struct, frozen=True):
    """The NICs that carried one operation's bytes. `nbytes` is its size times the number of calls."""

    op: str
    nbytes: int
    nics: tuple[NicBytes, ...]


class CopyRow(Struct, frozen=True, kw_only=True):
    """A copy within one node. `kind`: host to device, device to host, both at once, device to device, within one
    device's memory, host.

    `device` is ``GPU3``, or ``cpu`` for the host's own memory; `peer` the other GPU. `numa` is the node of the host
    memory, `near` whether it is the device's own. `concurrent`: all GPUs copied at the same time. GB/s are per
    direction.
    """

    node: str
    rank: int
    kind: Literal["h2d", "d2h", "bidirectional", "d2d", "device", "host"]
    device: str
    peer: str = ""
    numa: int | None = None
    near: bool | None = None
    concurrent: bool = False
    nbytes: int
    GBps: float
    min_GBps: float
    max_GBps: float
    samples: int
    expected_GBps: float | None = None
    threshold_GBps: float | None = None
    why: str = ""
    source: str = ""
    status: Literal["pass", "fail", "inconclusive", "unjudged"] = "unjudged"


class GroupRow(Struct, frozen=True, kw_only=True):
    """All groups of one kind of a hybrid-parallel job, measured by themselves and while all kinds are busy.

    `size` ranks in each of `groups` groups; `crossing` of these span nodes. Times are of the slowest group (its ranks:
    `slowest`); `slowdown` is together over alone. `advice`: warnings about the layout.
    """

    kind: Literal["tp", "dp", "pp"]
    op: str
    nbytes: int
    size: int
    groups: int
    crossing: int
    slowest: tuple[int, ...]
    alone_us: float
    alone_busbw_GBps: float
    together_us: float | None = None
    together_busbw_GBps: float | None = None
    slowdown: float | None = None
    advice: tuple[str, ...] = ()


class StepRow(Struct, frozen=True, kw_only=True):
    """One step of a training strategy, replayed with its real collectives and stand-in compute.

    `compute_us`: the compute of one rank by itself. `calls_us`: all calls in sequence without compute. `exposed_us`:
    how much longer the step is than its compute, 0 if it is not. `efficiency`: compute over step. `predicted_us`
    follows from the calls' own measured times.
    """

    strategy: Literal["ddp", "fsdp", "tp"]
    ranks: int
    params: int
    layers: int
    dtype: str
    micro_batches: int
    overlap: bool
    calls: int
    call_bytes: int
    steps: int
    step_us: float
    step_min_us: float
    step_max_us: float
    compute_us: float
    calls_us: float
    exposed_us: float
    efficiency: float
    predicted_us: float | None = None


class LadderRow(Struct, frozen=True, kw_only=True):
    """One step of the ladder: the same data-parallel step in each of `groups` groups of `ranks` ranks, all at once.

    `rung`: each `rank` by itself, `pair`s of ranks, the ranks of each `node`, all ranks of the `job`. In a step every
    rank does the same work and sums `step_bytes` of gradients over its group, overlapped as DDP does; a single rank
    sums nothing. `step_us` is the median of `samples_us`, the steps of the slowest group (its ranks: `slowest`).
    `busbw_GBps` is of an `op` of `nbytes` without compute (median of the slowest group; `best_GBps` its fastest); None:
    one rank sends nothing. `efficiency`: one rank's step over this one, the median over the steps, because rungs take
    turns, with its 95 % `interval` (None: too few steps). `speedup`: efficiency times the ranks.
    """

    rung: RungName
    ranks: int
    groups: int
    slowest: tuple[int, ...]
    step_bytes: int
    step_us: float
    samples_us: tuple[float, ...]
    op: Literal["all_reduce"] = "all_reduce"
    nbytes: int
    busbw_GBps: float | None = None
    best_GBps: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    interval: tuple[float, float] | None = None
    expectation: Expectation | None = None
    status: Literal["pass", "warn", "fail", "inconclusive", "unjudged"] = "unjudged"
