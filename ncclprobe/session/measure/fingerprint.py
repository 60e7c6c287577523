"""What this run is measured on, in few words: the fingerprint that baselines are kept under. Of rank 0's node."""

from collections.abc import Mapping
from typing import Any

from ncclprobe.expect.baselines import digest_of
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.measurement import Fingerprint
from ncclprobe.model.nccl_selection import NodeTopology
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import asdict
from ncclprobe.topology.node import layout


def of_facts(facts: Mapping[type, object], versions: Mapping[str, str | None], backend: str) -> Fingerprint:
    """Return the fingerprint of a node with these `facts`."""
    machine: dict[str, str] = {}
    firmware, gpus, cpus = facts.get(Machine), facts.get(Gpus), facts.get(Cpus)
    if isinstance(firmware, Machine) and (firmware.dmi.product or firmware.instance_type):
        product = f"{firmware.dmi.vendor} {firmware.dmi.product}".strip()
        machine["product"] = firmware.instance_type or product
    if isinstance(gpus, Gpus):
        names = [gpu.name for gpu in gpus.all]
        machine["gpu"] = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if isinstance(cpus, Cpus):
        machine["cpu"] = f"{len(cpus.online)} x {cpus.model}"
    built = layout(Snapshot("", facts))
    known = built.gpus or built.nics or built.numa
    software = {name: value for name, value in versions.items() if value and (name != "nccl" or backend == "nccl")}
    if isinstance(gpus, Gpus) and gpus.driver:
        software["driver"] = gpus.driver
    return Fingerprint(machine, digest_of(_devices(built)) if known else None, {**software, "backend": backend})


def _devices(built: NodeTopology) -> dict[str, Any]:
    """What tells one topology from another. A link that came up narrower is a fault, and no other machine."""
    found = {name: value for name, value in asdict(built).items() if name != "why"}
    for row in (*(found["gpus"] or ()), *(found["nics"] or ())):
        del row["pcie_width"], row["pcie_max_width"]
    return found
