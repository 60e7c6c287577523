"""Where NCCL's model and the clock are known to part, and by how much: few factors, each with a physical reason.

NCCL's model ranks algorithms; it was never meant to tell the time. Four things are missing in it, the same for every
machine of a class, and each is one number here:

- `STARTS_US`: what a call waits for before its first and after its last hop: the launch, the slowest rank, and between
  nodes the host's thread that posts to the NIC (with TCPX a program on the host that moves every message).
- `latency`: hops that take longer than NCCL counts: only through host memory.
- `transfer`: what the bytes take, by the constants of the search. Below one on a single Blackwell board: the 0.74
  that NCCL since 2.28 gives its switches was set for racks, and the share of (n-1)/n heads then counts twice for
  eight. Above one through host memory, which each byte crosses twice while NCCL counts the slot alone, and where more
  than two GPUs share PCIe: 8 reach 41 of 48 GB/s, 3 20 of 24, two 11.7 of 12. Below one across sockets: 8 GPUs on two
  EPYC reach 22 GB/s where NCCL counts 16 (https://github.com/voipmonitor/rtx6kpro).
- `filling`: a pipeline that fills and drains costs time that neither latency nor bandwidth alone accounts for; it is
  greatest where both are equal, hence the geometric mean: 1 MiB on 8 A100 reaches 24 of the 29 GB/s modelled, 8 MiB
  90 of 125. It ends at FILLED times the wait: a pipeline fills once, however much follows. Rings between nodes show
  none, trees do.

``corrected_us = wait + transfer x B + filling x min(sqrt(wait x B), FILLED x wait)`` with ``wait = start + latency x
L``, for a modelled latency L and transfer time B.

The numbers come from ``scripts/accuracy.py --fit`` over published runs; ``reports/expected-accuracy.md`` says how far
they are off where each source is compared with factors that were fitted without it. Never tuned to a row.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.model.values import Struct

Where = Literal["nvlink", "pcie", "pcie ring", "sockets", "host", "nvls", "nvls-8", "network", "network trees"]
"""The classes that differ in what is missing: rings and trees over NVLink, between two GPUs over PCIe, around more of
them, across the sockets of processors, and through host memory (which NCCL counts as PCIe, though each byte crosses
memory twice); the switches' own reduction; the same on one Blackwell board; rings and pairs that cross a network, and
trees that do."""


class Correction(Struct, frozen=True):
    """Factors on the modelled latency and transfer time, and the weight of what a pipeline loses as it fills."""

    latency: float = 1.0
    transfer: float = 1.0
    filling: float = 0.0


CORRECTIONS: Mapping[Where, Correction] = MappingProxyType(
    {
        "nvlink": Correction(filling=0.9),
        "pcie": Correction(),
        "pcie ring": Correction(transfer=1.2),
        "sockets": Correction(transfer=0.72),
        "host": Correction(latency=1.1, transfer=1.7, filling=0.2),
        "nvls": Correction(filling=0.9),
        "nvls-8": Correction(transfer=0.86, filling=0.9),
        "network": Correction(),
        "network trees": Correction(filling=0.9),
    }
)

STARTS_US: Mapping[str, float] = MappingProxyType(
    {
        "nvlink": 8.0,
        "nvlink ampere": 16.0,
        "nvlink hopper": 0.0,
        "mnnvl": 8.0,
        "pcie": 2.0,
        "rdma": 16.0,
        "tcpx": 58.0,
        "unknown": 16.0,
        "racks": 117.0,
    }
)
"""By the path of the bytes as :mod:`.evidence` words it. Between racks one run says it: 184 us for 8 B on two of them
(https://github.com/oracle-quickstart/oci-hpc-oke, GB200 document)."""

FILLED = 4.0
_BOARD, _SHARES = 8, (2, 28, 0)


def start_us(path: str, starts: Mapping[str, float] = STARTS_US) -> float:
    """What a call over `path` waits for on top of its hops: by its class, else by what it is a kind of, else none."""
    words = path.removesuffix(" pairs")
    return starts.get(words, starts.get(words.split()[0], 0.0))


def where(system: NodeSystem, shape: Shape, algorithm: str, version: NcclVersion, *, crosses_network: bool) -> Where:
    """The class of one prediction."""
    if crosses_network:
        return "network trees" if algorithm.endswith("Tree") else "network"
    if algorithm.startswith("NVLS"):
        board = system.compute_capability >= 100 and shape.ranks <= _BOARD and version >= _SHARES
        return "nvls-8" if board else "nvls"
    if system.nvlinks and (system.fabric != "pairs" or shape.ranks == 2):
        return "nvlink"
    if not system.p2p:
        return "host"
    return "pcie" if shape.ranks == 2 else "pcie ring"


def corrected_us(latency_us: float, transfer_us: float, factors: Correction, start: float = 0.0) -> float:
    """The time of one call, from what the model makes of its latency and of its bytes, in microseconds."""
    wait = start + factors.latency * latency_us
    moving = factors.transfer * transfer_us
    return wait + moving + factors.filling * min(math.sqrt(wait * moving), FILLED * wait)
