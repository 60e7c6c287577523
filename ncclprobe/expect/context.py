"""Which links to expect anything of: those of the machine type that this is, or those that can be seen."""

from collections.abc import Mapping
from typing import Any

from ncclprobe.expect.observed import Facts, system_of
from ncclprobe.expect.recognise import recognise, seen, should_be
from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.tables.machine_types import MachineType
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.gpudirect import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.nvml_p2p import PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Software
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

_FACTS = {
    "gpus": Gpus,
    "nvlinks": NvLinks,
    "pci": Pci,
    "fabric": Fabric,
    "interfaces": Interfaces,
    "cpus": Cpus,
    "peers": PeerAccess,
    "gpudirect": GpuDirect,
}
assert set(_FACTS) == {*Facts.__struct_fields__}


class ExpectationContext(Struct, frozen=True):
    """What numbers are expected of: `system`, or why nothing can be; `machine`, the type that was recognised.

    `why` is one sentence for the reader, `nccl` the version found on the machine, `settings` what
    NCCL would read there.
    """

    system: NodeSystem | Absent
    machine: MachineType | None = None
    why: str = ""
    nccl: NcclVersion | None = None
    settings: Settings = field(default_factory=Settings)


def expectation_context(known: Mapping[type, Any]) -> ExpectationContext:
    """From the facts of one node, by their type.

    A recognised type speaks for its machine, so that a NIC that fell out counts as lost. An unknown machine is taken as
    its links are now, which is all that is known of it.
    """
    facts = Facts(**{name: known.get(kind, Absent("was not asked")) for name, kind in _FACTS.items()})
    found = recognise(seen(facts, known.get(Firmware, Absent("was not asked"))))
    software = known.get(Software)
    version = software.nccl_version if isinstance(software, Software) else None
    settings = known.get(Settings)
    settings = settings if isinstance(settings, Settings) else Settings()
    if found.machine:
        differs = "; ".join(map(str, found.differs))
        why = f"this is {found.machine.name}" + (f", but for {differs}" if differs else "")
        return ExpectationContext(should_be(found, system_of(facts)), found.machine, why, version, settings)
    system = system_of(facts)
    return ExpectationContext(system, None, f"{found.why}; taken by its links as they are now", version, settings)
