"""The facts that expectations read, of a captured machine."""

from functools import cache
from pathlib import Path
from typing import Any

import zoo

from ncclprobe.engine.collect import collect
from ncclprobe.expect.visible import Facts
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent

CAPTURES = sorted(zoo.CAPTURES.glob("*.jsonl")) + sorted((zoo.CAPTURES / "sick").glob("*.jsonl"))
WANTED = (Gpus, NvLinks, Pci, Fabric, Interfaces, Cpus, PeerAccess, GpuDirect)


@cache
def facts_of(path: Path) -> tuple[Facts, Firmware | Absent]:
    """Those of one capture."""
    known: Any = collect(load(path), discover("ncclprobe.facts", Collector))
    return Facts(*(known[kind] for kind in WANTED)), known[Firmware]


def named(name: str) -> tuple[Facts, Firmware | Absent]:
    """Those of the capture of this name, healthy or sick."""
    (path,) = [path for path in CAPTURES if path.stem == name]
    return facts_of(path)
