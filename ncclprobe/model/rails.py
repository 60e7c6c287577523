"""One test of a rail: the request to its two ends, their messages to each other, and the results.

A rail is a pair of ports, one on each node. Each end opens its own port and creates reliable-connected queue pairs with
the choices of :class:`RailPort`. It sends its address to the other end (:class:`RailAddress`) and connects; then both
do the same steps in the same order (:class:`RailTest`). The observations of one end are a :class:`RailOutcome`: a fact
of the node, without a verdict.

Numbers of the verbs library keep its form (an MTU is in bytes, a completion status is the library's number and its
name).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec

from ncclprobe.model import bounds
from ncclprobe.model.values import Struct

Bytes = Annotated[int, msgspec.Meta(ge=0, le=bounds.BYTES)]
_SHORTEST_S = 1e-9
"""Limits the rate if another node reports a tiny time."""

RailMemory = Literal["host", "cuda", "cuda-dmabuf"]
"""Where the data is: host memory; GPU memory registered by address (the peer memory module translates it); GPU memory
registered through a DMA-BUF that the driver exports.
"""
RailDirection = Literal["out", "in", "both"]
"""Who writes, as seen from the leading end: it, the other end, or both at once."""
RailStepName = Literal["start", "open", "connect", "latency", "prepare", "write", "verify"]

RailFailureKind = Literal["completion", "refused", "hangs", "died", "late", "event", "missing", "peer", "channel"]


class RailPort(Struct, frozen=True, kw_only=True):
    """The parameters of one end: the choices of NCCL's rules, with NCCL's names where they exist.

    `mtu`: the path MTU in bytes; None: the port's active MTU. Each end's queue pairs get the smaller one of both ends,
    as NCCL's do. `timeout` is the exponent of 4.096 µs × 2^timeout, after which a packet is sent again, `retry_count`
    times at most: NCCL's own 20 and 7 report a dead path only after half a minute and more. `service_level` and
    `traffic_class`: None: not set, which is 0. `gpu` is NVML's index of the GPU if `memory` is not the host's.
    """

    device: str
    port: int = 1
    gid_index: int = 0
    pkey_index: int = 0
    service_level: int | None = None
    traffic_class: int | None = None
    mtu: int | None = None
    timeout: int = 20
    retry_count: int = 7
    queue_pairs: int = 1
    adaptive_routing: bool = False
    relaxed_ordering: bool = False
    ece: bool = True
    memory: RailMemory = "host"
    gpu: int | None = None


class RailTest(Struct, frozen=True, kw_only=True):
    """The steps of both ends, in this order: latency, then each direction; equal on both ends.

    `round_trips` small messages each way, one after another; 0: none. Then for each of `directions`, `messages` RDMA
    writes of `message_bytes`, spread over the queue pairs, in chains of `chain`. The receiving end then compares its
    memory with the pattern generated from `seed`. `seconds` limits each of these steps; a step that exceeds it fails.
    `setup_seconds` limits each of the others: opening a device and pinning memory, connecting, filling and comparing
    memory.
    """

    round_trips: int = 1000
    message_bytes: int = 1 << 20
    messages: int = 1024
    directions: tuple[RailDirection, ...] = ("out", "in")
    chain: int = 64
    seed: int = 0
    seconds: float = 10.0
    setup_seconds: float = 10.0


class RailQueuePair(Struct, frozen=True):
    """A queue pair's number, its first packet sequence number, and its device's extensions.

    `ece` (ibv_query_ece): vendor, options, mask; None: no extensions.
    """

    number: int
    psn: int
    ece: tuple[int, int, int] | None = None


class RailAddress(Struct, frozen=True, kw_only=True):
    """The address of one end, read from its own port, with which the other end connects and writes.

    `gid` is 32 hexadecimal digits, the entry at `gid_index`; `gid_type` as the kernel names it (``IB/RoCE v1``, ``RoCE
    v2``); empty: the kernel does not name it. `lid` is 0 on Ethernet, `pkey` the entry at the requested index.
    `active_mtu` is the port's, `mtu` the one this end would use, both in bytes. `rate_gbps`: width × speed of the port;
    0: unknown. `address` and `rkey` name the memory to write to, of `nbytes`; `mailbox_…` the host memory for small
    messages.
    """

    device: str
    port: int
    link_layer: Literal["InfiniBand", "Ethernet", "unknown"]
    state: str
    rate_gbps: float
    lid: int
    gid_index: int
    gid: str
    gid_type: str
    pkey: int
    active_mtu: int
    mtu: int
    queue_pairs: tuple[RailQueuePair, ...]
    address: int
    rkey: int
    nbytes: int
    mailbox_address: int
    mailbox_rkey: int


class RailFailure(Struct, frozen=True, kw_only=True):
    """Why a step failed at this end.

    kind: ``completion`` a work request failed (`status` is the verbs library's number). ``refused`` a call of the
    library failed (`call`, `errno`). ``hangs`` a call, or the library, did not return before the deadline, and its
    process was killed. ``died`` the process exited by itself. ``late`` calls return, but completions or the other end's
    data do not arrive. ``event`` the device reported an asynchronous event. ``missing`` no library, device, port or
    table entry of that name. ``peer`` the other end failed and reported so, and this end has nothing to add.
    ``channel`` the connection to the other end broke.

    `direction` is that of a write.
    """

    step: RailStepName
    kind: RailFailureKind
    text: str
    direction: RailDirection | None = None
    call: str = ""
    errno: int = 0
    status: int = 0


class RailStream(Struct, frozen=True, kw_only=True):
    """RDMA writes in one direction, as seen by the writing end: from the first post to the last completion.

    Polling is busy, so `work_s` is the time spent posting and handling completions, without the polls that found
    nothing. If it nears `seconds`, the interpreter was measured and not the rail.
    """

    direction: RailDirection
    nbytes: Bytes
    seconds: float
    work_s: float

    @property
    def GBps(self) -> float:
        """Return the rate in 1e9 bytes per second."""
        return self.nbytes / max(self.seconds, _SHORTEST_S) / 1e9 if self.seconds > 0 else 0.0


class RailArrival(Struct, frozen=True, kw_only=True):
    """The memory of the receiving end, once the writer was done or had failed.

    The writes wrap around a region of a few MiB, so the last ones are seen. Of `checked_bytes`, `arrived_bytes` were
    overwritten, and `wrong_bytes` of these differ from the bytes sent; `offset`, `expected`, `found` are the first of
    those. A writer whose acknowledgements are lost fails although its data arrives: the return path is dead.
    """

    direction: RailDirection
    checked_bytes: int
    arrived_bytes: int
    wrong_bytes: int = 0
    offset: int = 0
    expected: int = 0
    found: int = 0


class RailOutcome(Struct, frozen=True, kw_only=True):
    """The observations of one end. A failed step does not stop those that can run with new queue pairs.

    `own` and `peer` are None if it did not get that far. `half_round_trip_us`: the median is the latency, as
    ib_write_lat reports it; interpreted code is part of it, so it is compared among rails, not with a data sheet. Only
    the leading end has them. `streams` are the writes of this end, `arrivals` the writes to it; `events` are
    asynchronous events of the device during the test. `steps` are the seconds that each step took, in order.
    """

    asked: RailPort
    own: RailAddress | None = None
    peer: RailAddress | None = None
    half_round_trip_us: tuple[float, ...] = ()
    streams: tuple[RailStream, ...] = ()
    arrivals: tuple[RailArrival, ...] = ()
    events: tuple[str, ...] = ()
    steps: tuple[tuple[RailStepName, float], ...] = ()
    failures: tuple[RailFailure, ...] = ()


COMPLETIONS: Mapping[int, tuple[str, str]] = {
    1: ("LOC_LEN_ERR", "the message is longer than the receive buffer, or than the device allows"),
    2: ("LOC_QP_OP_ERR", "this NIC could not carry out the request: often a fault of its firmware or driver"),
    4: ("LOC_PROT_ERR", "this NIC may not read the memory that was registered: with GPU memory ACS, the IOMMU or BAR1"),
    5: ("WR_FLUSH_ERR", "given up because of an earlier error on the same queue pair"),
    6: ("MW_BIND_ERR", "a memory window could not be bound"),
    7: ("BAD_RESP_ERR", "the peer sent an unexpected answer"),
    8: ("LOC_ACCESS_ERR", "this NIC may not write the memory that the message is for"),
    9: ("REM_INV_REQ_ERR", "the peer's NIC refuses the request as invalid: a path MTU that differs gives this"),
    10: ("REM_ACCESS_ERR", "the peer's NIC may not write that memory: its registration, key or address is wrong"),
    11: ("REM_OP_ERR", "the peer's NIC could not carry out the request: with GPU memory ACS, the IOMMU or BAR1"),
    12: (
        "RETRY_EXC_ERR",
        "nothing was acknowledged: the peer's address (LID, GID, P_Key), its process, the path MTU, "
        "or a link that loses packets",
    ),
    13: ("RNR_RETRY_EXC_ERR", "the peer is reachable but not ready: it has posted no receive buffer"),
    14: ("LOC_RDD_VIOL_ERR", "the queue pair belongs to another domain"),
    15: ("REM_INV_RD_REQ_ERR", "the peer's NIC refuses a read as invalid"),
    16: ("REM_ABORT_ERR", "the peer aborted the operation"),
    19: ("FATAL_ERR", "the NIC has failed: its driver resets it, or it is gone from the bus"),
    20: ("RESP_TIMEOUT_ERR", "the peer's answer did not arrive in time"),
    21: ("GENERAL_ERR", "the NIC reports a vendor-specific error; see the vendor syndrome"),
}
"""Completion statuses of the verbs library (enum ibv_wc_status, without IBV_WC_), and their meaning on a rail."""


class RailChannel(Protocol):
    """The connection between the two ends of one rail, in order; :class:`ncclprobe.wire.Wire` is one.

    Deadlines are those of time.monotonic(). Both methods raise WireError.
    """

    @property
    def peer(self) -> str:
        """Return the other end's address on this connection."""

    async def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Send one JSON object."""

    async def receive(self, deadline: float) -> dict[str, Any]:
        """Receive the next one."""
