"""Which GPUs may reach each other's memory directly, as NVML says: what ``nvidia-smi topo -p2p`` prints."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.nvml_answers import listed, number, several
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

P2pStatus = Literal["OK", "CNS", "GNS", "TNS", "DR", "NS", "U"]
Pairs = Mapping[tuple[int, int], P2pStatus | Absent]
"""Keyed by the indices of two different GPUs, in both orders."""

# NVML_P2P_STATUS_… as the legend of nvidia-smi abbreviates them: OK, chipset not supported, GPU not supported, topology
# not supported, disabled by registry key, not supported, unknown.
_STATUSES: tuple[P2pStatus, ...] = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
CAPABILITIES = (0, 1, 2)  # NVML_P2P_CAPS_INDEX_READ, _WRITE, _NVLINK
ASK = "nvmlDeviceGetP2PStatus"


class PeerAccess(Struct, frozen=True):
    """Whether each GPU may read and write the memory of each other one, and whether by NVLink. Lost GPUs are left out.

    NCCL asks NVML for reads and writes as well, and gives up where NVLink is there and one of them is not OK.
    """

    read: Pairs = field(default_factory=dict)
    write: Pairs = field(default_factory=dict)
    nvlink: Pairs = field(default_factory=dict)


@collector
def nvml_p2p(host: Host, gpus: Gpus) -> PeerAccess:
    """Read every ordered pair of GPUs that are not lost. One GPU has no pairs."""
    present = [gpu.index for gpu in gpus.all if not gpu.lost]
    return PeerAccess(*(_pairs(host, present, capability) for capability in CAPABILITIES))


def _pairs(host: Host, gpus: Sequence[int], capability: int) -> Pairs:
    pairs: dict[tuple[int, int], P2pStatus | Absent] = {}
    for gpu in gpus:
        peers = [peer for peer in gpus if peer != gpu]
        if peers:
            row = several(host, _status, len(peers), ASK, gpu, listed(peers), capability)
            pairs |= {(gpu, peer): status for peer, status in zip(peers, row, strict=True)}
    return pairs


def _status(code: Any) -> P2pStatus:
    return _STATUSES[number(code)]
