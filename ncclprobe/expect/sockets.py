"""The limits of TCP: gloo on processors, and NCCL without RDMA. Never compared with a GPU's numbers.

The slowest link on the path decides. Its speed is what the interface reports, unless it is virtual: a veth or a bridge
reports 10 Gb/s whatever is below it, so there only a measured stream counts.
"""

import statistics
from collections.abc import Sequence
from typing import Literal

from ncclprobe.expect.evidence import GROSS_FROM, GROSS_SHARE
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import Struct, replace

GLOO_OPS = ("all_reduce", "broadcast", "sendrecv")
"""Operations that gloo implements with the traffic that their bus factor counts. Its reduce_scatter all-reduces a copy
of the whole input and takes a slice, its all_gather copies as much again: 3 to 4 times slower over the same link
(ProcessGroupGloo.cpp), so neither is judged. Nothing is published for the rest.
"""
_STREAM_GBps = 1.1
"""One gloo stream on one core: 1.07 to 1.16 GB/s over 40GbE (https://github.com/pytorch/gloo/issues/248)."""
_SHARED_CORES_GBps = 0.15
"""Still passes if ranks share cores, as in containers: 2 cores carry 0.7 GB/s of four ranks over loopback."""
_LINE = 0.88
"""Share of the line rate if the processor keeps up: 110 of 125 MB/s (https://github.com/pytorch/gloo/issues/21)."""
_REPORTED = (
    "not judged: only 2 sources and 2 rows show what gloo reaches of an interface's reported speed; streams "
    "measured between three nodes or more would allow a verdict"
)
_NCCL_NODE_GBps = 4.5
"""All streams of one node with NCCL's defaults: 4.5 to 5.2 GB/s over 100GbE
(https://github.com/NVIDIA/nccl/issues/450), 3.2 over IPoIB, 4 on an A3 Mega without TCPXO.
"""
_NCCL_LINE = 0.75
"""Share of a link slow enough for the processor to keep up: 0.6 of 32 Gb/s (https://github.com/NVIDIA/nccl/issues/209),
0.77 of 10.
"""
_OF_STREAM, _OF_STREAM_LOW = 0.8, 0.4
"""Share of a measured TCP stream: gloo copies and reduces between its messages."""
LEAST_NBYTES = 1 << 20
"""Below this size latency decides, and TCP's latency is unknown."""

LARGE_NBYTES = 16 << 20
"""From this size on, there are expectations for NCCL over TCP between nodes."""

Speed = Literal["reported", "measured"]


class SocketLink(Struct, frozen=True):
    """The slowest link of a job: `gbps` (1e9 bit/s) of `where` (``eth0 of node3``), and the source of that rate."""

    gbps: float
    where: str
    known: Speed


class SocketInterface(Struct, frozen=True):
    """One interface of one node that the job uses. `gbps` is None if nothing is reported or measured."""

    node: str
    interface: str
    gbps: float | None
    virtual: bool | None


def slowest(interfaces: Sequence[SocketInterface]) -> SocketLink | None:
    """Return the slowest interface by reported speed; None if one is virtual or reports none.

    An interface of unknown speed may be the slowest, so then nothing is expected.
    """
    if not interfaces or any(each.virtual is not False or not each.gbps for each in interfaces):
        return None
    least = min(interfaces, key=lambda each: each.gbps or 0.0)
    return SocketLink(least.gbps or 0.0, f"{least.interface} of {least.node}", "reported")


def typical(rates_gbps: Sequence[float]) -> SocketLink | None:
    """Return the usual rate of this job's paths: the median of streams. None for fewer than three, which show no
    outlier.

    The minimum would make the sick path the norm.
    """
    known = [rate for rate in rates_gbps if rate > 0]
    if len(known) < 3:
        return None
    return SocketLink(statistics.median(known), f"the median of {len(known)} paths between nodes", "measured")


def gloo(op: str, nbytes: int, link: SocketLink) -> Expectation | None:
    """Expect gloo's bus bandwidth over `link`; None for operations that are not judged (:data:`GLOO_OPS`), or small
    sizes.
    """
    if op not in GLOO_OPS or nbytes < LEAST_NBYTES:
        return None
    line = link.gbps / 8
    if link.known == "measured":
        value, low = min(line * _OF_STREAM, _STREAM_GBps), min(line * _OF_STREAM_LOW, _SHARED_CORES_GBps)
        why = f"a TCP stream carries {line:.3g} GB/s ({link.where}); gloo reaches {value:.3g} of them"
        return Expectation(value, low, "GB/s", "model", why, "TCP streams measured by this run", "low")
    value = min(line * _LINE, _STREAM_GBps)
    bound = "the wire" if line * _LINE < _STREAM_GBps else "one core per stream"
    why = f"{link.where} reports {link.gbps:g} Gb/s, {line:.3g} GB/s; {bound} decides, at {value:.3g} GB/s"
    source = "https://github.com/pytorch/gloo/issues/21 and /248: 0.88 of 1GbE, 1.1 GB/s of 40GbE"
    found = Expectation(value, 0.0, "GB/s", "datasheet", why, source, "low", worst="unjudged", known=_REPORTED)
    if op != "all_reduce" or nbytes < GROSS_FROM:  # other trees may cross a node's NIC once per rank
        return found
    return replace(found, gross=min(value * GROSS_SHARE, _SHARED_CORES_GBps))


def nccl(op: str, link: SocketLink) -> Expectation | None:
    """Expect NCCL's bus bandwidth over TCP between nodes whose slowest link is `link`, for large messages.

    :mod:`.evidence` decides what verdict it allows. An all-to-all shares the link among the ranks of a node and is not
    judged here.
    """
    if op in ("all_to_all", "gather", "scatter"):
        return None
    line = link.gbps / 8
    value = min(line * _NCCL_LINE, _NCCL_NODE_GBps)
    bound = "the wire" if line * _NCCL_LINE < _NCCL_NODE_GBps else "the processors, not the wire,"
    why = f"TCP sockets over {link.where}, {link.gbps:g} Gb/s: {bound} decides, at {value:.3g} GB/s"
    source = "https://github.com/NVIDIA/nccl/issues/450 (4.5 to 5.2 GB/s of 100GbE) and /209 (0.6 of 32 Gb/s)"
    return Expectation(value, 0.0, "GB/s", "datasheet", why, source, "low")
