"""Where NCCL's model and the clock are known to part, and by how much: few factors, each with a physical reason.

NCCL's model ranks algorithms; it was never meant to tell the time. Three things are missing in it, the same for every
machine of a class, and each is one number here:

- `latency`: what the caller waits for beside the hops NCCL counts: the launch of the kernel, the wait for the slowest
  rank, the last hop's way back to the host.
- `transfer`: what the bytes take beside the constants of the search. Below one on a single Blackwell board: the 0.74
  that NCCL since 2.28 gives its switches was set for racks, and the share of (n-1)/n heads then counts twice for
  eight. Above one through host memory, which each byte crosses twice while NCCL counts the slot alone.
- `filling`: a pipeline that fills and drains costs time that neither latency nor bandwidth alone accounts for; it is
  greatest where both are equal, hence the geometric mean: 1 MiB on 8 A100 reaches 24 of the 29 GB/s modelled, 8 MiB
  90 of 125.

``corrected_us = latency x L + transfer x B + filling x sqrt(L x B)`` for a modelled latency L and transfer time B.

The numbers come from ``scripts/accuracy.py --fit`` over published runs; sources whose name hashes to an even number
were held back, and ``reports/expected-accuracy.md`` says how the correction does on those. Never tuned to a row; and
where the sources held back gained nothing (PCIe, the network) there is no correction.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.model.values import Struct

Where = Literal["nvlink", "pcie", "host", "nvls", "nvls-8", "network"]
"""The classes that differ in what is missing: rings and trees over NVLink, over PCIe, and through host memory (which
NCCL counts as PCIe, though each byte crosses memory twice); the switches' own reduction; the same on one Blackwell
board; anything that crosses a network."""


class Correction(Struct, frozen=True):
    """Factors on the modelled latency and transfer time, and the weight of what a pipeline loses as it fills."""

    latency: float = 1.0
    transfer: float = 1.0
    filling: float = 0.0


CORRECTIONS: Mapping[Where, Correction] = MappingProxyType(
    {
        "nvlink": Correction(latency=2.0, transfer=1.0, filling=0.4),
        "pcie": Correction(),
        "host": Correction(latency=1.3, transfer=1.7, filling=0.2),
        "nvls": Correction(latency=1.9, transfer=1.0, filling=0.2),
        "nvls-8": Correction(latency=1.9, transfer=0.86, filling=0.2),
        "network": Correction(),
    }
)


_BOARD, _SHARES = 8, (2, 28, 0)


def where(system: NodeSystem, shape: Shape, algorithm: str, version: NcclVersion, *, crosses_network: bool) -> Where:
    """The class of one prediction."""
    if crosses_network:
        return "network"
    if algorithm.startswith("NVLS"):
        board = system.compute_capability >= 100 and shape.ranks <= _BOARD and version >= _SHARES
        return "nvls-8" if board else "nvls"
    if system.nvlinks and (system.fabric != "pairs" or shape.ranks == 2):
        return "nvlink"
    return "pcie" if system.p2p else "host"


def corrected_us(latency_us: float, transfer_us: float, factors: Correction) -> float:
    """The time of one call, from what the model makes of its latency and of its bytes, in microseconds."""
    filling = factors.filling * math.sqrt(latency_us * transfer_us)
    return factors.latency * latency_us + factors.transfer * transfer_us + filling
