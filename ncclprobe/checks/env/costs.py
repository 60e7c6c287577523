"""What settings cost: the most that is left of a machine's bandwidth with each of them."""

from collections.abc import Iterator

from ncclprobe.checks.env import TRANSPORT_GROUP, UNPRICED, evidence, jobs_fail, jobs_note, jobs_warn
from ncclprobe.checks.env.fixtures import PLAIN, setting
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.model.findings import WORTH_SAYING, Finding, Severity, severity_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.nccl.networks import named_network, over_kernel

_TELL = {Severity.FAIL: jobs_fail, Severity.WARN: jobs_warn, Severity.NOTE: jobs_note}
_FEW = AttainableRate(82.8, 459.0, 2, {"NCCL_MAX_NCHANNELS": 82.8})


_OFF = {
    ("NCCL_IB_DISABLE", "1"): "turns InfiniBand and RoCE off, so traffic between nodes uses TCP",
    ("NCCL_NET", "socket"): "makes traffic between nodes use TCP",
    ("NCCL_P2P_DISABLE", "1"): "turns NVLink and P2P off, so GPUs of a node exchange data through host memory",
    ("NCCL_SHM_DISABLE", "1"): "makes GPUs of a node without P2P exchange data over the network",
    ("NCCL_MNNVL_ENABLE", "0"): "leaves the NVLinks between the nodes of a rack unused",
}
"""Settings that take a transport away, whatever the machine has."""


_BETWEEN = ("NCCL_IB_DISABLE", "NCCL_NET", "FI_PROVIDER")
"""Those that concern only the traffic between nodes."""


def _setting_that_leaves_rack(settings: Settings, gpus: Gpus | Absent, named: NamedMachine | Absent) -> str:
    """Return the setting that keeps NCCL off the NVLinks to other nodes, if the GPUs are part of a cluster of nodes.

    A GPU of an NVL72 rack has 900 GB/s of NVLink each way and 50 GB/s of its NIC (nvidia.com, GB200 NVL72).
    """
    known = () if isinstance(gpus, Absent) else gpus.all
    joined = any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in known)
    joined = joined or (isinstance(named, NamedMachine) and named.type.endswith("nvl72"))
    closed = (name for name in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE") if settings.get(name) == "0")
    return next(closed, "") if joined else ""


def _disabled_transports(settings: Settings, fabric: Fabric | Absent) -> Iterator[tuple[str, str]]:
    """Yield each setting that takes away a transport that the machine may have, and what that means."""
    ports = isinstance(fabric, Absent) or bool(fabric.ports)
    for (name, value), what in _OFF.items():
        may_have = ports and not named_network(settings) if name == "NCCL_IB_DISABLE" else ports
        shown = name in ("NCCL_IB_DISABLE", "NCCL_NET") or isinstance(fabric, Absent)
        if (settings.get(name) or "").lower() == value and may_have and shown:
            yield name, what
    if over_kernel(settings):
        yield "FI_PROVIDER", "makes libfabric use the kernel's sockets"


@applies
def priced(
    job: Job,
    predicted: AttainableRate | Absent,
    fabric: Fabric | Absent,
    settings: Settings,
    gpus: Gpus | Absent,
    named: NamedMachine | Absent = UNPRICED,
) -> bool:
    """to jobs on GPUs, if the bandwidth of the machine is known, or a setting takes away a transport it may have."""
    return job.backend == "nccl" and (
        isinstance(predicted, AttainableRate)
        or any(_disabled_transports(settings, fabric))
        or bool(_setting_that_leaves_rack(settings, gpus, named))
    )


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(_FEW, setting("NCCL_MAX_NCHANNELS", "2"), UNPRICED, UNPRICED, UNPRICED)],
    good=lambda: [(AttainableRate(459.0, 459.0, 2), PLAIN, UNPRICED, UNPRICED, UNPRICED)],
    last=True,
    applies=priced,
)
def cost(
    predicted: AttainableRate | Absent,
    settings: Settings,
    fabric: Fabric | Absent,
    gpus: Gpus | Absent,
    launch: Launch | Absent,
    named: NamedMachine | Absent = UNPRICED,
) -> Iterator[Finding]:
    """A setting reduces the bandwidth that this machine can reach.

    Right: No setting is known to reduce this machine's bandwidth.
    Why: the remaining bandwidth is computed from the links that the setting still allows (NICs, sockets, channels, host
    memory between GPUs, the network between nodes of a rack). It is compared with what a healthy machine of this type
    reaches in an all-reduce of 1 GiB. A loss of half is a failure; a loss of a tenth is a warning. A machine with
    fabric NICs is judged as part of a job on at least two nodes.
    Fix: unset the variable. If it is intentional, accept it with --ignore env.transport=NAME or in ncclprobe.toml.
    """
    rack, alone = _setting_that_leaves_rack(settings, gpus, named), isinstance(launch, Launch) and launch.nnodes == 1
    if rack and not alone and (isinstance(predicted, Absent) or predicted.nodes == 1):
        message = "is '0', which leaves the NVLinks to other nodes unused, so traffic between nodes uses the NICs"
        yield jobs_fail(rack, message, evidence(settings, rack))
    inside = not isinstance(predicted, Absent) and predicted.nodes == 1
    if isinstance(predicted, Absent) or (inside and isinstance(launch, Launch) and launch.several_nodes):
        for name, what in _disabled_transports(settings, fabric):
            if name == rack or (inside and name not in _BETWEEN):
                continue
            message = f"is {settings.get(name)!r}, which {what}; the cost depends on the machine"
            yield jobs_warn(name, message, evidence(settings, name))
    if isinstance(predicted, Absent):
        return
    for name, what in _disabled_transports(settings, fabric) if predicted.nvlinked else ():
        if name in ("NCCL_IB_DISABLE", "NCCL_NET") and name not in predicted.settings:
            message = f"is {settings.get(name)!r}, which {what}; NVLink joins the nodes of one rack, so that this costs"
            yield jobs_note(name, f"{message} only what goes to other racks", evidence(settings, name))
    for name in predicted.settings:
        lost = predicted.lost(name)
        if lost >= WORTH_SAYING:
            message = f"is {settings.get(name)!r}, which leaves {predicted.cost(name)}"
            yield _TELL[severity_of(lost)](name, message, evidence(settings, name))
