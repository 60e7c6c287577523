"""NVLink: the links of each GPU, and the NVSwitch fabric that they lead to.

The links are NVML's, or ``nvidia-smi nvlink -s`` lists them if NVML does not.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.checks import FABRIC, IMAGE, NODE
from ncclprobe.checks.env import loaded
from ncclprobe.checks.env.fixtures import NO_NCCL
from ncclprobe.checks.gpu import blanks, gpu_job, most_frequent, named, unread
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.expect.tables.gpus import GpuProduct, nvlink_products
from ncclprobe.facts.driver import FabricManager
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.kernel_log import KernelLog
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import GpuLinks, NvLink, NvLinks, NvlinkStatus, Remote, State
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, unsupported
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.facts.process import Container, Devices
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Evidence, Finding, Severity, fail, note, seen, warn
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import CheckGroup, applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, unlearned
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.paths import machine_topology
from ncclprobe.nccl.values import read_setting

FABRIC_GROUP = CheckGroup("fabric", "A GPU has not joined the NVLink fabric, or the fabric's service does not work")


class _Linked(Struct, frozen=True):
    """A GPU and its links, from either source.

    `up` are those that are not inactive, `dozing` those of them that carry nothing now ("sleep", "traffic-disabled"),
    `speeds` of those up in MB/s, None if unknown. `switched`: one leads to an NVSwitch; None if unknown.
    `meshed`: they lead to several GPUs.
    """

    name: str
    product: str
    up: tuple[int, ...]
    down: tuple[int, ...] = ()
    dozing: tuple[int, ...] = ()
    speeds: tuple[float | None, ...] = ()
    switched: bool | None = None
    meshed: bool = False


class _Box(Struct, frozen=True):
    """The GPUs with known links, why those of the others are unknown, and the source."""

    gpus: tuple[_Linked, ...]
    unknown: Mapping[str, Absent]
    evidence: str

    def same_product(self, gpu: _Linked) -> tuple[_Linked, ...]:
        """Return the GPUs of the same product, itself included."""
        return tuple(other for other in self.gpus if other.product == gpu.product)


def look(gpus: Gpus | Absent, links: NvLinks | Absent, status: NvlinkStatus | Absent) -> _Box:
    """Return the links of every GPU except those with MIG, which show none. Raises Unlearned if no source has them."""
    told = isinstance(links, NvLinks) and not all(isinstance(row, Absent) for row in links.gpus)
    if isinstance(gpus, Gpus) and isinstance(links, NvLinks) and (told or isinstance(status, Absent)):
        known: list[_Linked] = []
        unknown: dict[str, Absent] = {}
        for gpu, row in zip(gpus.all, links.gpus, strict=False):
            gap = row if isinstance(row, Absent) else next(_gaps(row), None)
            if gap:
                unknown[f"GPU{gpu.index}"] = gap
            elif not isinstance(row, Absent) and gpu.mig is not True:
                known.append(_read(gpu, row))
        return _Box(tuple(known), unknown, "NVML, link by link (nvidia-smi nvlink -s)")
    if isinstance(status, NvlinkStatus):
        return _Box(tuple(_printed(n, gpu) for n, gpu in status.gpus.items()), {}, "nvidia-smi nvlink -s")
    raise unlearned(fact for fact in (gpus, links, status) if isinstance(fact, Absent))


def _gaps(row: tuple[NvLink, ...]) -> Iterator[Absent]:
    return (link.state for link in row if isinstance(link.state, Absent))


def _read(gpu: Gpu, row: tuple[NvLink, ...]) -> _Linked:
    up = [link for link in row if link.state != "inactive"]
    return _Linked(
        name=f"GPU{gpu.index}",
        product=gpu.name,
        up=tuple(link.link for link in up),
        down=tuple(link.link for link in row if link.state == "inactive"),
        dozing=tuple(link.link for link in up if link.state != "active"),
        speeds=tuple(None if isinstance(link.speed_MBps, Absent) else link.speed_MBps for link in up),
        switched=any(link.remote == "switch" for link in up) if up else None,
        meshed=len({link.remote_pci for link in up if link.remote == "gpu" and isinstance(link.remote_pci, str)}) > 1,
    )


def _printed(index: int, gpu: GpuLinks) -> _Linked:
    up = {link: speed for link, speed in gpu.links.items() if speed is not None}
    down = tuple(link for link, speed in gpu.links.items() if speed is None)
    return _Linked(f"GPU{index}", gpu.name, tuple(up), down, speeds=tuple(speed * 1000 for speed in up.values()))


Row = tuple[NvLink, ...]
_MOST_NAMED = 6
_BOARDS = (4, 8, 16)  # so many GPUs do switches join
_BASEBOARD = 8  # GPUs: of a virtual machine with as many, no part of the board is another's
_ON_THE_WIRE = 0.98  # of the payload's rate at least: a link that codes shows more than that, one that does not as much


def links_of(up: int, down: int = 0, state: State = "inactive", *, speed: int = 26562, to: Remote = "switch") -> Row:
    """Return so many active links, and so many in another state, for examples."""
    active = [NvLink(n, "active", speed_MBps=speed, remote=to) for n in range(up)]
    return (*active, *(NvLink(n, state, speed_MBps=speed, remote=to) for n in range(up, up + down)))


FULL, SHORT = links_of(18), links_of(17, 1)
SLOW = (*FULL[:17], NvLink(17, "active", speed_MBps=13281, remote="switch"))
H200S = box(HEALTHY, HEALTHY, HEALTHY)
METAL, UNSAID = Machine(virtual=False), Absent("not asked")


@check(
    slows=True,
    bad=lambda: [(H200S, NvLinks((FULL, SHORT, FULL)), UNSAID, METAL, UNSAID)],
    good=lambda: [(H200S, NvLinks((FULL, FULL, FULL)), UNSAID, METAL, UNSAID)],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def links(
    gpus: Gpus | Absent,
    links: NvLinks | Absent,
    status: NvlinkStatus | Absent,
    machine: Machine | Absent,
    pci: Pci | Absent,
) -> Iterator[Finding]:
    """NVLinks of a GPU are down.

    Right: All NVLinks are up.
    Why: NCCL builds its rings and trees from the links that are active when the job starts. A GPU with fewer links
    slows all others down. If a GPU has no links, NCCL uses PCIe, which is ten times slower.
    Fix: reset the GPUs (`nvidia-smi --gpu-reset`), or reboot. If the same links stay down, have the GPU, its baseboard
    or its bridge reseated.
    """
    seen = look(gpus, links, status)
    virtual = isinstance(machine, Machine) and machine.virtual is True
    for gpu in seen.gpus:
        yield from _short(gpu, seen, virtual)
        if gpu.dozing:
            message = f"{_listed(gpu.dozing)} idle or asleep; NCCL uses only active links"
            yield note(gpu.name, message, evidence=seen.evidence)
    yield from _lacking(seen)
    if isinstance(gpus, Gpus) and isinstance(pci, Pci) and not any(gpu.up or gpu.product for gpu in seen.gpus):
        yield from _unlinked(gpus, pci, seen.evidence)
    if seen.unknown:
        yield from blanks(seen.unknown, len(seen.gpus) + len(seen.unknown), seen.evidence)


def _lacking(seen: _Box) -> Iterator[Finding]:
    """Yield a note on a number of GPUs that no board has, for a matrix: it shows all GPUs, without their names."""
    count = len(seen.gpus) + len(seen.unknown)
    missing = next((board for board in _BOARDS if board >= count), count) - count
    if missing and count > _BOARDS[0] and all(gpu.switched and not gpu.product for gpu in seen.gpus):
        what = "one is" if missing == 1 else f"{missing} are"
        message = f"all connected by NVSwitch; boards have 4, 8 or 16 GPUs, so {what} missing"
        yield note(f"{count} GPUs", message, evidence=seen.evidence)


def _unlinked(gpus: Gpus, pci: Pci, evidence: str) -> Iterator[Finding]:
    """Yield a note on GPUs of an unknown product without an NVLink, with the paths between them."""
    words = machine_topology(pci, gpus, NvLinks(((),) * len(gpus.all)), Fabric()).smi
    paths = sorted({word for pair, word in words.items() if word and pair[0] != pair[1]})
    if paths:
        message = f"no NVLink connects them: every pair is {' or '.join(paths)}"
        yield note(f"{len(gpus.all)} GPUs", message, evidence=evidence)


def _short(gpu: _Linked, seen: _Box, virtual: bool) -> Iterator[Finding]:
    """Yield findings about a GPU with fewer links than its siblings, or than every GPU of its model has."""
    product = nvlink_products().get(gpu.product)
    siblings = most_frequent([len(other.up) for other in seen.same_product(gpu)])
    message = f"{len(gpu.up)} NVLinks are up{f', {_listed(gpu.down)} down' if gpu.down else ''}"
    if len(gpu.up) < siblings:
        yield _unlike_siblings(gpu, product, f"{message}; its siblings have {siblings}", seen)
    elif product and len(gpu.up) < product.nvlinks:
        expected = f"{message}; every {gpu.product} has {product.nvlinks}"
        yield from _unlike_its_kind(gpu, product, expected, seen, virtual)


def _unlike_siblings(gpu: _Linked, product: GpuProduct | None, message: str, seen: _Box) -> Finding:
    """Bridges need not join every GPU, and a GPU that is not known may be bridged too: in pairs, as most bridges do."""
    bridged = product.wiring == "bridge" if product else not any(other.switched for other in seen.same_product(gpu))
    paired = product is not None or not any(other.meshed for other in seen.same_product(gpu))
    if bridged and paired and not gpu.up:
        return note(gpu.name, f"{message}; it has no bridge", evidence=seen.evidence)
    tell = warn if bridged else fail
    return tell(gpu.name, message, blame="link", action="repair", evidence=seen.evidence)


def _unlike_its_kind(gpu: _Linked, product: GpuProduct, message: str, seen: _Box, virtual: bool) -> Iterator[Finding]:
    """Report that all siblings have equally few: certain if the board decides, not with bridges or part of one."""
    evidence = (seen.evidence, Evidence(product.nvlink_source, text=f"{product.nvlinks} links"))
    alone, part = len(seen.gpus) < 2, virtual and len(seen.gpus) < _BASEBOARD
    if product.wiring == "board" and not part:
        yield fail(gpu.name, message, blame="link", action="repair", evidence=evidence)
    elif not gpu.up and not alone and product.wiring != "bridge":
        yield warn(gpu.name, message, **NODE, evidence=evidence)
    elif gpu.up and gpu.down and product.wiring == "system" and not part:
        yield warn(gpu.name, message, blame="link", action="repair", evidence=evidence)
    elif gpu.up:
        yield note(gpu.name, message, evidence=evidence)


def _listed(numbers: Sequence[int]) -> str:
    """Return ``link 5``, ``links 3, 5``; the first of many."""
    return f"link{'s' * (len(numbers) != 1)} {first_of(numbers, _MOST_NAMED)}"


@check(
    slows=True,
    bad=lambda: [(H200S, NvLinks((FULL, SLOW, FULL)), UNSAID)],
    good=lambda: [(H200S, NvLinks((FULL, SHORT, FULL)), UNSAID)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def rate(gpus: Gpus | Absent, links: NvLinks | Absent, status: NvlinkStatus | Absent) -> Iterator[Finding]:
    """An NVLink runs below its full rate.

    Right: All NVLinks run at their full rate.
    Why: NCCL assumes that all links of a GPU are equally fast, so a slow link delays its channels.
    Fix: reset the GPUs (`nvidia-smi --gpu-reset`), or reboot; if the link stays slow, have the GPU, its baseboard or
    its bridge reseated.
    """
    seen = look(gpus, links, status)
    silent = {
        gpu.name: Absent("NVML does not report the speed of the links") for gpu in seen.gpus if None in gpu.speeds
    }
    told = [gpu for gpu in seen.gpus if gpu.name not in silent]
    if told and not any(gpu.up or gpu.down or gpu.product for gpu in told):
        raise Unlearned("no NVLink is shown, and no GPU's model is known")
    for gpu in told:
        usual = most_frequent(
            [round(speed) for other in seen.same_product(gpu) for speed in other.speeds if speed is not None]
        )
        slow = {link: speed for link, speed in zip(gpu.up, gpu.speeds, strict=True) if speed and speed < 0.99 * usual}
        product = nvlink_products().get(gpu.product)
        if slow:
            worst = min(slow.values()) / 1000
            run = f"run{'s' * (len(slow) == 1)} at {worst:.5g} GB/s, while the others run at {usual / 1000:.5g}"
            yield fail(gpu.name, f"{_listed(tuple(slow))} {run}", blame="link", action="repair", evidence=seen.evidence)
        elif product and gpu.up and usual < _ON_THE_WIRE * product.nvlink_GBps * 1000:
            message = (
                f"its links run at {usual / 1000:.5g} GB/s, {product.nvlink_GBps:g} expected ({product.nvlink_source})"
            )
            yield warn(gpu.name, message, **NODE, evidence=seen.evidence)
    unknown = {**seen.unknown, **silent}
    if unknown and not told:
        raise unlearned(unknown.values())
    yield from blanks(unknown, len(told) + len(unknown) + 1, seen.evidence)


_HOPPER = (9, 0)
CHANNELS = "/dev/nvidia-caps-imex-channels"
_REGISTERING = "in-progress"
NO_LOG = Absent("not permitted", "Denied")
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_SWITCH = Device(
    "0000:c1:00.0", Identity(0x068000, 0x10DE, 0x22A3), PciPosition("pci0000:c0"), PcieLink(16.0, 2, 16.0, 2)
)

JOINED = replace(HEALTHY, fabric=GpuFabric("completed", cluster=NO_CLUSTER, troubles=()))
WAITING = replace(HEALTHY, fabric=GpuFabric("in-progress", cluster=NO_CLUSTER, troubles=()))
REFUSED = replace(HEALTHY, fabric=GpuFabric("completed", 3, cluster=NO_CLUSTER, troubles=()))
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
    """to jobs on GPUs, if NVSwitches are on the PCI bus."""
    return job.backend == "nccl" and (isinstance(pci, Absent) or bool(pci.of("nvswitch")))


@applies
def in_a_rack(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs whose NVLinks lead to other machines (MNNVL)."""
    known = [] if isinstance(gpus, Absent) else [_cluster(gpu) for _, gpu in named(gpus)]
    return job.backend == "nccl" and (not known or any(known))


def _cluster(gpu: Gpu) -> str:
    """Return the UUID of the cluster of machines that a GPU is part of, empty if it is in none."""
    uuid = gpu.fabric.cluster if isinstance(gpu.fabric, GpuFabric) else ""
    return "" if uuid == NO_CLUSTER else uuid


@check(
    group=FABRIC_GROUP,
    slows=True,
    bad=lambda: [(box(JOINED, REFUSED), LINKS, NO_LOG)],
    good=lambda: [(box(JOINED, JOINED), LINKS, NO_LOG)],
    required=True,
    requires="gpu.smi-canary",
    applies=may_have_a_fabric,
)
def fabric(gpus: Gpus, links: NvLinks | Absent, log: KernelLog | Absent) -> Iterator[Finding]:
    """A GPU has not joined the NVSwitch fabric.

    Right: Every GPU has joined the NVSwitch fabric.
    Why: until the fabric manager has registered every GPU, cudaInit fails with error 802, or NVLink SHARP and multicast
    are missing. If a GB200 or GB300 machine has joined no cluster, NCCL does not use the rack's NVLink.
    Fix: while the registration is in progress, wait; after a start it takes some minutes. Otherwise run `systemctl
    start nvidia-fabricmanager` with the same version as the driver (on racks, check the switch trays). If the state
    does not change, reboot.
    """
    found: list[Finding] = []
    for name, gpu in named(gpus):
        if isinstance(gpu.fabric, GpuFabric):
            found += _registration(name, gpu, gpu.fabric, _leads_to_switches(gpu.index, links))
    if not any(each.severity is Severity.FAIL for each in found):
        _wait(gpus, log)
    yield from found
    fabrics = [gpu.fabric for _, gpu in named(gpus) if isinstance(gpu.fabric, GpuFabric)]
    if len({(fabric.cluster, fabric.clique) for fabric in fabrics if fabric.state == "completed"}) > 1:
        message = "they are not all in one cluster and clique, so NVLink does not connect all of them"
        yield warn("GPUs", message, **FABRIC, evidence="nvmlDeviceGetGpuFabricInfo")
    yield from unread(gpus, "fabric", "nvmlDeviceGetGpuFabricInfo")


_LONG_S = 3600.0
"""Registration takes some minutes after a start."""


def _wait(gpus: Gpus, log: KernelLog | Absent) -> None:
    """Raise Unlearned while GPUs still register: no job starts before that has ended, well or not."""
    late = [name for name, gpu in named(gpus) if isinstance(gpu.fabric, GpuFabric) and gpu.fabric.state == _REGISTERING]
    if late:
        long = not isinstance(log, Absent) and log.uptime_s > _LONG_S
        since = "" if isinstance(log, Absent) else f", {log.uptime_s / 60:,.0f} min after the machine was started"
        then = (
            "it is stuck, unless the fabric manager was just started: restart the manager, or the machine"
            if long
            else "wait, and run ncclprobe again"
        )
        raise Unlearned(f"the registration of {', '.join(late)} with the NVLink fabric is in progress{since}: {then}")


def _registration(name: str, gpu: Gpu, fabric: GpuFabric, switched: bool) -> Iterator[Finding]:
    evidence = "nvmlDeviceGetGpuFabricInfo (nvidia-smi -q: Fabric)"
    if fabric.state == "not-started":
        message = "it has not begun to register with the NVLink fabric"
        if switched:
            yield fail(name, f"{message}, although links to NVSwitches are up", **NODE, evidence=evidence)
        else:
            yield note(name, f"{message}; none of its links leads to an NVSwitch", evidence=evidence)
    elif fabric.state == "completed" and fabric.status:
        message = f"its registration with the NVLink fabric failed (NVML error {fabric.status})"
        yield fail(name, message, **NODE, evidence=evidence)
    elif fabric.state == "completed" and _is_rack_gpu(gpu) and switched and not _cluster(gpu):
        message = "its cluster UUID is zero, so NCCL does not use NVLink between machines"
        yield warn(name, message, **FABRIC, evidence=evidence)
    if isinstance(fabric.troubles, tuple) and fabric.troubles:
        message = f"the fabric reports {', '.join(fabric.troubles)}"
        yield warn(name, message, **FABRIC, evidence=evidence)


def _is_rack_gpu(gpu: Gpu) -> bool:
    product = nvlink_products().get(gpu.name)
    return product is not None and product.wiring == "rack"


def _leads_to_switches(index: int, links: NvLinks | Absent) -> bool:
    row = links.gpus[index] if isinstance(links, NvLinks) and index < len(links.gpus) else ()
    return not isinstance(row, Absent) and any(link.remote == "switch" for link in row)


_IN_DOCKER = Container("docker", "/.dockerenv")


@check(
    group=FABRIC_GROUP,
    bad=lambda: [(SWITCHES, FabricManager("570.86.15", running=False), box(JOINED, WAITING), _IN_DOCKER)],
    good=lambda: [(SWITCHES, FabricManager("570.86.15", running=False), box(JOINED), _IN_DOCKER)],
    privilege="a look at the host's own services, from outside a container",
    applies=on_switches,
)
def fm_service(
    pci: Pci, manager: FabricManager, gpus: Gpus | Absent, container: Container | Absent
) -> Iterator[Finding]:
    """The fabric manager is not running, or its version differs from the driver's.

    Right: The fabric manager runs and has the driver's version.
    Why: until the fabric manager has configured the NVSwitches, they carry no data, and cudaInit fails with error 802,
    "system not yet initialized". It does not start if the driver has another version (LlamaFactory#8968).
    Fix: install the fabric manager with exactly the driver's version, then run `systemctl enable --now
    nvidia-fabricmanager`.
    """
    if isinstance(manager.running, Absent):
        raise Unlearned(manager.running.why, manager.running.refused)
    known = [] if isinstance(gpus, Absent) else [gpu for _, gpu in named(gpus)]
    joined = bool(known) and all(isinstance(i.fabric, GpuFabric) and i.fabric.state == "completed" for i in known)
    switches = (seen("PCI bus", f"{len(pci.of('nvswitch'))} NVSwitches"), "nv-fabricmanager --version", "its pid file")
    driver = "" if isinstance(gpus, Absent) else gpus.driver
    unlike = (
        f"; its version is {manager.version}, but the driver's is {driver}"
        if driver and driver != manager.version
        else ""
    )
    contained = isinstance(container, Absent) or bool(container.kind)
    if not manager.running and joined and contained:
        message = (
            "does not run in this container, although all GPUs have joined the fabric; it may run in another "
            f"container{unlike}"
        )
        yield note("nv-fabricmanager", message, evidence=switches)
    elif not manager.running and joined:
        message = f"has exited, although all GPUs had joined the fabric; new jobs may find no GPU (error 802){unlike}"
        yield warn("nv-fabricmanager", message, blame="node", action="fix-image", evidence=switches)
    elif not manager.running:
        message = f"is installed but not running{unlike}"
        yield fail("nv-fabricmanager", message, blame="node", action="fix-image", evidence=switches)
    elif unlike:
        message = f"is running{unlike}, so it will not start again"
        yield warn("nv-fabricmanager", message, **IMAGE, evidence=switches)


NO_CHANNEL = Devices((), (), ())
OFF = Settings({"NCCL_MNNVL_ENABLE": Setting("NCCL_MNNVL_ENABLE", "0", "environment")})


@check(
    group=FABRIC_GROUP,
    bad=lambda: [(TRAY, NO_CHANNEL, Settings(), TWO_TRAYS, NO_NCCL)],
    good=lambda: [(TRAY, NO_CHANNEL, OFF, TWO_TRAYS, NO_NCCL)],
    applies=in_a_rack,
)
def imex(
    gpus: Gpus, devices: Devices, settings: Settings, launch: Launch, software: Software | Absent
) -> Iterator[Finding]:
    """The IMEX channel that NVLink between machines needs is missing.

    Right: An IMEX channel is present.
    Why: NCCL sees the cluster and tries to share memory with another machine through a fabric handle. The channel is
    the permission to share. Without it this fails, and NCCL ends the job with an error instead of using the network
    (src/mnnvl.cc).
    Fix: run nvidia-imex with the same nodes_config on all machines, and give the container a channel (a ComputeDomain
    in Kubernetes). With NCCL_MNNVL_ENABLE=0 the job starts without it, but does not use the rack's NVLink.
    """
    enabled = read_setting(settings, "NCCL_MNNVL_ENABLE", 2, loaded(software))
    if isinstance(devices.imex_channels, Absent):
        raise Unlearned(devices.imex_channels.why, devices.imex_channels.refused)
    if enabled == 0 or any(node.usable for node in devices.imex_channels):
        return
    members = ", ".join(name for name, gpu in named(gpus) if _cluster(gpu))
    seen = "this process may not open a channel" if devices.imex_channels else "no channel exists"
    message = f"{seen}, although {members} are part of a cluster of machines"
    if launch.several_nodes or enabled == 1:
        yield fail(CHANNELS, message, **IMAGE, evidence=f"{CHANNELS}/channel*")
    else:
        yield note(
            CHANNELS, f"{message}; a job on only this machine does not need one", evidence=f"{CHANNELS}/channel*"
        )
