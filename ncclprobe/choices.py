"""What NCCL would choose on one node, from its facts: interfaces, HCAs, GIDs, GPUDirect, the roads between GPUs, NVLS.

The rules are those of :mod:`ncclprobe.nccl`, of the NCCL that a job would load, for a job with a rank on every GPU. A
network plugin decides for itself: where NCCL would find one, the words of the HCAs say so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TypeVar

from ncclprobe.chosen import (
    Choices,
    DirectChoice,
    GidChoice,
    HcaChoice,
    InterfaceChoice,
    NvlsChoice,
    Part,
    PeerChoice,
)
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.gpudirect import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.nvml_p2p import PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.software import Software, Version
from ncclprobe.facts.system import System
from ncclprobe.model import Absent, Setting, Snapshot
from ncclprobe.nccl.gids import Pick, pick, wish
from ncclprobe.nccl.gpudirect import Direct, decide, supported, way
from ncclprobe.nccl.hcas import LAYERS, Selection, fast, gbps
from ncclprobe.nccl.hcas import chosen as chosen_hcas
from ncclprobe.nccl.interfaces import Choice, same_subnet
from ncclprobe.nccl.interfaces import chosen as chosen_interfaces
from ncclprobe.nccl.lists import MAX_INTERFACES
from ncclprobe.nccl.p2p import maker, nvls, p2p_level, roads
from ncclprobe.nccl.values import read_int
from ncclprobe.topology import PathType, Topology, of_machine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Rules:
    """By what NCCL decides here: its settings, and its version (None: the newest known)."""

    settings: Settings
    version: Version | None

    def on(self, name: str, default: int) -> int:
        return read_int(self.settings.get(name) or "", default).value

    def said(self, name: str) -> str:
        """``NCCL_IB_HCA=mlx5 (environment)``."""
        setting = self.settings.effective.get(name, Setting(name, "", "not set"))
        return f"{name}={setting.value} ({setting.origin})"


def choose(snapshot: Snapshot) -> Choices:
    """What NCCL would choose on this node; a part is null, with its reason, where the facts do not tell."""
    settings, software = _fact(snapshot, Settings), _fact(snapshot, Software)
    version = software.nccl_version if isinstance(software, Software) else None
    nccl = ".".join(map(str, version)) if version else None
    if isinstance(settings, Absent):
        why = settings.why
        return Choices(nccl, *(Part(None, why) for _ in range(2)), *_without_hcas(None, why), Part(None, why), _nvls_unknown(why))  # fmt: skip
    rules = _Rules(settings, version)
    interfaces, gpus, links = (_fact(snapshot, kind) for kind in (Interfaces, Gpus, NvLinks))
    bootstrap, sockets = _interfaces(interfaces, rules)
    fabric, off = _fact(snapshot, Fabric), _no_ib(rules, bootstrap)
    if isinstance(fabric, Absent):
        hcas, left_out, gids, direct = _without_hcas(None, fabric.why)
    elif off:
        hcas, left_out, gids, direct = _without_hcas((), off)
    else:
        selection = chosen_hcas(fabric, settings, version)
        hcas, left_out = _hcas(fabric, selection, _fact(snapshot, Plugins), rules)
        gids, direct = _gids(selection, rules), _gpudirect(snapshot, fabric, selection, rules)
    if isinstance(gpus, Absent):
        available = _nvls_unknown(gpus.why)
    else:
        found = nvls(gpus, links, settings, version)
        available = NvlsChoice(found.available, found.why)
    return Choices(nccl, bootstrap, sockets, hcas, left_out, gids, direct, _p2p(snapshot, rules), available)


def _fact(snapshot: Snapshot, kind: type[T]) -> T | Absent:
    fact: T | Absent = snapshot.facts.get(kind, Absent(f"{kind.__name__} was never collected"))
    return fact
