"""The NVSwitch fabric: whether the GPUs have joined it, and what keeps it together."""

from collections.abc import Iterator

from ncclprobe.checks.env import loaded
from ncclprobe.checks.env.fixtures import NO_NCCL
from ncclprobe.checks.gpu import blanks, named
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl.links import FULL
from ncclprobe.errors import Unlearned
from ncclprobe.expect.tables.gpus import nvlink_products
from ncclprobe.facts.driver import FabricManager
from ncclprobe.facts.kernel_log import KernelLog
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import Devices
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, unsupported
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.facts.process import Container
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding, Severity, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.values import read_setting

_HOPPER = (9, 0)
_CHANNELS = "/dev/nvidia-caps-imex-channels"
_REGISTERING = "in-progress"
_NO_LOG = Absent("not permitted", "Denied")
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_SWITCH = Device(
    "0000:c1:00.0", Identity(0x068000, 0x10DE, 0x22A3), PciPosition("pci0000:c0"), PcieLink(16.0, 2, 16.0, 2)
)

JOINED = replace(HEALTHY, fabric=GpuFabric("completed", cluster=_NO_CLUSTER, troubles=()))
WAITING = replace(HEALTHY, fabric=GpuFabric("in-progress", cluster=_NO_CLUSTER, troubles=()))
REFUSED = replace(HEALTHY, fabric=GpuFabric("completed", 3, cluster=_NO_CLUSTER, troubles=()))
CLUSTER = GpuFabric("completed", cluster="4e5631c0-ffee-4d0d-8f9a-1d2c3b4a5968", clique=32766, troubles=())
TRAY = box(*[replace(HEALTHY, name="NVIDIA GB200", fabric=CLUSTER)] * 4)
LINKS, TWO_TRAYS = NvLinks((FULL,) * 4), Launch("torchrun", 0, 8, 0, 4, 2)
SWITCHES = Pci({_SWITCH.address: _SWITCH})


@applies
def may_have_a_fabric(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs that register with NVSwitches (Hopper and later)."""
    known = [] if isinstance(gpus, Absent) else [_registers(gpu) for _, gpu in named(gpus)]
    return job.backend == "nccl" and (not known or any(known))


def _registers(gpu: Gpu) -> bool:
    if isinstance(gpu.fabric, GpuFabric):
        return gpu.fabric.state != "not-supported"
    old = isinstance(gpu.compute, tuple) and gpu.compute < _HOPPER
    return not unsupported(gpu.fabric) and not old


@applies
def on_switches(job: Job, pci: Pci | Absent) -> bool:
    """to jobs on GPUs, where NVSwitches are on the PCI bus."""
    return job.backend == "nccl" and (isinstance(pci, Absent) or bool(pci.of("nvswitch")))


@applies
def in_a_rack(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs whose NVLinks lead to other machines (MNNVL)."""
    known = [] if isinstance(gpus, Absent) else [_cluster(gpu) for _, gpu in named(gpus)]
    return job.backend == "nccl" and (not known or any(known))


def _cluster(gpu: Gpu) -> str:
    """Return the UUID of the cluster of machines that a GPU is part of, empty where it is in none."""
    uuid = gpu.fabric.cluster if isinstance(gpu.fabric, GpuFabric) else ""
    return "" if uuid == _NO_CLUSTER else uuid


@check(
    slows=True,
    bad=lambda: [(box(JOINED, REFUSED), LINKS, _NO_LOG)],
    good=lambda: [(box(JOINED, JOINED), LINKS, _NO_LOG)],
    required=True,
    requires="gpu.smi-canary",
    applies=may_have_a_fabric,
)
def fabric(gpus: Gpus, links: NvLinks | Absent, log: KernelLog | Absent) -> Iterator[Finding]:
    """A GPU has not joined the NVSwitch fabric.

    Right: Every GPU has joined the NVSwitch fabric.
    Why: until the fabric manager has let every GPU in, cudaInit fails with error 802 or NVLink SHARP and multicast are
    missing; on GB200 and GB300 machines without a cluster NCCL leaves the rack's NVLink unused.
    Fix: wait while it is in progress, some minutes after a start; else `systemctl start nvidia-fabricmanager`, of the
    driver's own version (on racks: look at the switch trays), and reboot if the state stays.
    """
    unknown: dict[str, Absent] = {}
    found: list[Finding] = []
    for name, gpu in named(gpus):
        if isinstance(gpu.fabric, Absent):
            if not unsupported(gpu.fabric):
                unknown[name] = gpu.fabric
        else:
            found += _registration(name, gpu, gpu.fabric, _leads_to_switches(gpu.index, links))
    if not any(each.severity is Severity.FAIL for each in found):
        _wait(gpus, log)
    yield from found
    fabrics = [gpu.fabric for _, gpu in named(gpus) if isinstance(gpu.fabric, GpuFabric)]
    if len({(fabric.cluster, fabric.clique) for fabric in fabrics if fabric.state == "completed"}) > 1:
        message = "they are not in one cluster and clique: NVLink does not connect them all"
        yield warn("GPUs", message, blame="fabric", action="repair", evidence="nvmlDeviceGetGpuFabricInfo")
    yield from blanks(unknown, sum(1 for _ in named(gpus)), "nvmlDeviceGetGpuFabricInfo")


def _wait(gpus: Gpus, log: KernelLog | Absent) -> None:
    """Raise Unlearned where GPUs still register: no job starts until that has ended, well or not."""
    late = [name for name, gpu in named(gpus) if isinstance(gpu.fabric, GpuFabric) and gpu.fabric.state == _REGISTERING]
    if late:
        since = "" if isinstance(log, Absent) else f", {log.uptime_s / 60:,.0f} min after the machine was started"
        raise Unlearned(
            f"the NVLink fabric's registration of {', '.join(late)} is in progress{since}: wait, and look again"
        )


def _registration(name: str, gpu: Gpu, fabric: GpuFabric, switched: bool) -> Iterator[Finding]:
    evidence = "nvmlDeviceGetGpuFabricInfo (nvidia-smi -q: Fabric)"
    if fabric.state == "not-started":
        message = "its registration with the NVLink fabric was not started"
        if switched:
            yield fail(
                name, f"{message}, though links to NVSwitches are up", blame="node", action="repair", evidence=evidence
            )
        else:
            yield note(name, f"{message}; no link leads to an NVSwitch", evidence=evidence)
    elif fabric.state == "completed" and fabric.status:
        message = f"its registration with the NVLink fabric failed (NVML error {fabric.status})"
        yield fail(name, message, blame="node", action="repair", evidence=evidence)
    elif fabric.state == "completed" and _of_a_rack(gpu) and switched and not _cluster(gpu):
        message = "its cluster UUID is zero, so NCCL does not use NVLink between machines"
        yield warn(name, message, blame="fabric", action="repair", evidence=evidence)
    if isinstance(fabric.troubles, tuple) and fabric.troubles:
        message = f"the fabric reports: {', '.join(fabric.troubles)}"
        yield warn(name, message, blame="fabric", action="repair", evidence=evidence)


def _of_a_rack(gpu: Gpu) -> bool:
    product = nvlink_products().get(gpu.name)
    return product is not None and product.wiring == "rack"


def _leads_to_switches(index: int, links: NvLinks | Absent) -> bool:
    row = links.gpus[index] if isinstance(links, NvLinks) and index < len(links.gpus) else ()
    return not isinstance(row, Absent) and any(link.remote == "switch" for link in row)


_IN_DOCKER = Container("docker", "/.dockerenv")


@check(
    bad=lambda: [(SWITCHES, FabricManager("570.86.15", running=False), box(JOINED, WAITING), _IN_DOCKER)],
    good=lambda: [(SWITCHES, FabricManager("570.86.15", running=False), box(JOINED), _IN_DOCKER)],
    privilege="a look at the host's own services, from outside a container",
    applies=on_switches,
)
def fm_service(
    pci: Pci, manager: FabricManager, gpus: Gpus | Absent, container: Container | Absent
) -> Iterator[Finding]:
    """The fabric manager does not run, or its version differs from the driver's.

    Right: The fabric manager runs in the driver's version.
    Why: NVSwitches carry nothing until it has set them up: cudaInit fails with error 802, "system not yet initialized".
    It does not start with a driver of another version (LlamaFactory#8968).
    Fix: install the fabric manager of exactly the driver's version, then `systemctl enable --now nvidia-fabricmanager`.
    """
    if isinstance(manager.running, Absent):
        raise Unlearned(manager.running.why)
    known = [] if isinstance(gpus, Absent) else [gpu for _, gpu in named(gpus)]
    joined = bool(known) and all(isinstance(i.fabric, GpuFabric) and i.fabric.state == "completed" for i in known)
    switches = (seen("PCI bus", f"{len(pci.of('nvswitch'))} NVSwitches"), "nv-fabricmanager --version", "its pid file")
    driver = "" if isinstance(gpus, Absent) else gpus.driver
    unlike = f"; it is {manager.version} and the driver {driver}" if driver and driver != manager.version else ""
    contained = isinstance(container, Absent) or bool(container.kind)
    if not manager.running and joined and contained:
        message = (
            f"does not run in this container, though all GPUs have joined the fabric: it may run in another one{unlike}"
        )
        yield note("nv-fabricmanager", message, evidence=switches)
    elif not manager.running and joined:
        message = f"has ended, though all GPUs had joined the fabric: new jobs may find no GPU (error 802){unlike}"
        yield warn("nv-fabricmanager", message, blame="node", action="fix-image", evidence=switches)
    elif not manager.running:
        message = f"is installed and does not run{unlike}"
        yield fail("nv-fabricmanager", message, blame="node", action="fix-image", evidence=switches)
    elif unlike:
        message = f"runs{unlike}: it will fail to restart"
        yield warn("nv-fabricmanager", message, blame="image", action="fix-image", evidence=switches)


NO_CHANNEL = Devices((), (), ())
OFF = Settings({"NCCL_MNNVL_ENABLE": Setting("NCCL_MNNVL_ENABLE", "0", "environment")})


@check(
    bad=lambda: [(TRAY, NO_CHANNEL, Settings(), TWO_TRAYS, NO_NCCL)],
    good=lambda: [(TRAY, NO_CHANNEL, OFF, TWO_TRAYS, NO_NCCL)],
    applies=in_a_rack,
)
def imex(
    gpus: Gpus, devices: Devices, settings: Settings, launch: Launch, software: Software | Absent
) -> Iterator[Finding]:
    """The IMEX channel that NVLink between machines needs is missing.

    Right: An IMEX channel is present.
    Why: NCCL sees the cluster, tries to share memory with another machine by a fabric handle, fails, and ends the job
    with an error instead of taking the network (src/mnnvl.cc); the channel is the permission to share.
    Fix: run nvidia-imex with the same nodes_config on all machines, and give the container a channel (Kubernetes: a
    ComputeDomain). NCCL_MNNVL_ENABLE=0 avoids it and leaves the rack's NVLink unused.
    """
    enabled = read_setting(settings, "NCCL_MNNVL_ENABLE", 2, loaded(software))
    if isinstance(devices.imex_channels, Absent):
        raise Unlearned(devices.imex_channels.why)
    if enabled == 0 or any(node.usable for node in devices.imex_channels):
        return
    members = ", ".join(name for name, gpu in named(gpus) if _cluster(gpu))
    seen = "none may be opened" if devices.imex_channels else "there is none"
    message = f"{seen}, and {members} are part of a cluster of machines"
    if launch.several_nodes or enabled == 1:
        yield fail(_CHANNELS, message, blame="image", action="fix-image", evidence=f"{_CHANNELS}/channel*")
    else:
        yield note(_CHANNELS, f"{message}; a job on this machine alone needs none", evidence=f"{_CHANNELS}/channel*")
