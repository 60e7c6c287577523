"""The same machine with something wrong with it, to show what a fault would cost."""

from collections.abc import Iterator

from ncclprobe.errors import UsageError
from ncclprobe.expect.system import NodeSystem
from ncclprobe.model.values import Struct, replace

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
    if change.nics is not None and not 0 < change.nics <= 64:
        raise UsageError(f"--nics {change.nics}: a node has 1 to 64")
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
