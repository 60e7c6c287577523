"""The nouns of traffic: the NIC of the bytes, the memories they moved between, groups, and steps of training.

GB/s are 1e9 bytes per second, ``_us`` microseconds. A null is unknown, and never zero.
"""

from typing import Literal

from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import Struct

RungName = Literal["rank", "pair", "node", "job"]


class NicBytes(Struct, frozen=True):
    """What one NIC of one node moved while something was measured, by its own counters (all traffic, not only ours).

    `share`: of all bytes that this node's NICs sent; `expected`: whether the library was to use it, null: not known.
    `why`: for what reason the counters are not known.
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
    """Which way the bytes of one operation went. `nbytes` are its size times the number of calls."""

    op: str
    nbytes: int
    nics: tuple[NicBytes, ...]


class CopyRow(Struct, frozen=True, kw_only=True):
    """Bytes copied within one node. `kind`: host to device, device to host, both at once, device to device, within one
    device's memory, host.

    `device` is ``GPU3``, or ``cpu`` for the host's own memory; `peer` the other GPU. `numa` is the node of the host
    memory, `near` whether it is the device's own. `concurrent`: all GPUs copied at the same time. GB/s of each
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
    """All groups of one kind of a hybrid-parallel job, measured alone and while all kinds are at work.

    `size` ranks in each of `groups` groups; `crossing` of these span nodes. Times are of the slowest group (its ranks:
    `slowest`); `slowdown` is together over alone. `advice`: what is unwise.
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

    `compute_us`: the work of one rank by itself; `calls_us`: all calls one after the other without work; `exposed_us`:
    by how much the step is longer than its compute, 0 if it is not; `efficiency`: compute over step. `predicted_us`
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
    """One rung: the same step of data-parallel training in each of `groups` groups of `ranks` ranks, all at once.

    `rung`: each `rank` by itself, `pair`s of ranks, the ranks of each `node`, all ranks of the `job`. In a step every
    rank does the same work and sums `step_bytes` of gradients over its group, overlapped as DDP does; a single rank
    sums nothing. `step_us` is the median of `samples_us`, the steps of the slowest group (its ranks: `slowest`).
    `busbw_GBps` is of an `op` of `nbytes` without work (median of the slowest group; `best_GBps` its fastest); null:
    one rank sends nothing. `efficiency`: one rank's step by this one, the median over the steps, for rungs take turns,
    with its 95 % `interval` (null: too few steps); `speedup`: that times the ranks.
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
