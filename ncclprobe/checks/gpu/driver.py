"""Whether the driver answers, for which GPUs, and what it has written into the kernel log."""

import re
from collections.abc import Iterator, Sequence

from ncclprobe.checks import IMAGE, NODE
from ncclprobe.checks.gpu import ERRORS_GROUP, at, gpu_job
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.expect.tables.machines import named as machine_named
from ncclprobe.facts.driver import Driver
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.kernel_log import XIDS, Event, KernelLog, Xid
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nvidia_smi import Smi
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.process import Container, DeviceNode, Devices
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import ONCE, Certainty, Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped

PAIR = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), driver="570.86.15", cuda=(12, 8))
NODES = Devices(tuple(DeviceNode(f"/dev/nvidia{n}", usable=True) for n in (*range(7), "ctl", "-uvm")), (), ())

NO_DRIVER = Absent("no module", "Missing")
UNNAMED = Absent("no text names a machine")
REST = Pci(), NO_DRIVER, Environment(), Container()
NO_SMI = Absent("nvidia-smi: not there", "Missing")


_TO_A_GUEST, _MOST_SHOWN = "vfio-pci", 4
_CUDA_NODE = "/dev/nvidia-uvm"
_START_WITH_GPUS = (
    "the driver is loaded, but this process has no access to its devices. Start the container with GPUs "
    "(`docker run --gpus all`, nvidia.com/gpu in its resources, `srun --gpus-per-node`)"
)
_LOAD_DRIVER = (
    "load NVIDIA's driver, or install it: `modprobe nvidia`, then `nvidia-smi`. If no job uses this "
    "node's GPUs: --backend gloo"
)


@check(
    bad=lambda: [(Smi(wedged="nvidia-smi -L: no answer within 60 s"), Absent("not asked"))],
    good=lambda: [(NO_SMI, PAIR)],
    required=True,
    applies=gpu_job,
)
def smi_canary(smi: Smi | Absent, gpus: Gpus | Absent) -> Iterator[Finding]:
    """nvidia-smi does not return, or lists fewer GPUs than NVML.

    Right: nvidia-smi returns, and lists the GPUs that NVML counts.
    Why: if the driver is wedged, every CUDA call of a job hangs in the same way, without a message. Without persistence
    mode up to 3 s per GPU are normal, so the limit is one minute. In containers without nvidia-smi, NVML asks the same
    driver.
    Fix: look for Xid messages (`dmesg | grep -i xid`), then drain the node and reboot it.
    """
    if isinstance(smi, Absent):
        if smi.refused != "Missing" or isinstance(gpus, Absent):
            raise Unlearned(smi.why, smi.refused)
    elif smi.wedged:
        yield fail("nvidia-smi", smi.wedged, **NODE, evidence="nvidia-smi -L")
    elif isinstance(gpus, Gpus) and smi.gpus < (alive := sum(not gpu.lost for gpu in gpus.all)):
        message = f"lists {plural(smi.gpus, 'GPU')}, but NVML counts {alive}: a GPU appears and disappears"
        yield fail("nvidia-smi", message, blame="node", action="retest", confidence=ONCE, evidence="nvidia-smi -L")


@check(
    bad=lambda: [(PAIR, Job(expect_gpus=8), Launch(), NODES, *REST)],
    good=lambda: [(PAIR, Job(), Launch(), NODES, *REST)],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def count(
    gpus: Gpus | Absent,
    job: Job,
    launch: Launch | Absent,
    devices: Devices | Absent,
    pci: Pci | Absent,
    driver: Driver | Absent,
    environment: Environment | Absent,
    container: Container | Absent,
    named: NamedMachine | Absent = UNNAMED,
) -> Iterator[Finding]:
    """A GPU is lost, or the node has fewer than expected.

    Right: All expected GPUs are present.
    Why: the launcher starts one rank per expected GPU. A rank without a GPU fails or shares one, and all others wait.
    If a process sees only one GPU, the launcher may have given each process its own (srun --gpus-per-task, Ray). A node
    without a usable GPU fails only if something shows that it should have one. That can be --expect-gpus, an NVIDIA GPU
    on the PCI bus that is not passed through to a guest, SLURM_GPUS_ON_NODE, SLURM_JOB_GPUS in a prolog, or UUIDs in
    NVIDIA_VISIBLE_DEVICES. A GPU that failed to initialise appears on the PCI bus and in /dev, but not in NVML.
    Fix: drain the node. Reset a lost GPU or reboot the node, and have the GPU repaired if it does not return. If more
    ranks than GPUs were started, use --nproc-per-node=gpu.
    """
    ranks = (launch.local_world_size or 0) if isinstance(launch, Launch) else 0
    if isinstance(gpus, Absent):
        nodes = _numbered(devices)
        signs = () if nodes or isinstance(devices, Absent) else tuple(_signs(job, pci, environment))
        unseen = gpus.refused == "NotCaptured"  # by a text, which shows no more than was pasted
        if unseen or (not signs and not 1 < len(nodes) < ranks):
            raise Unlearned(gpus.why, gpus.refused)
        yield _none_usable(signs, gpus.why, driver) if signs else _too_few(len(nodes), ranks, "/dev/nvidia[0-9]*")
        return
    if gpus.instead_of_nvml:
        yield note(
            "NVML", f"could not be used, so nvidia-smi was used instead: {gpus.instead_of_nvml}", evidence="nvidia-smi"
        )
    for gpu in gpus.all:
        if gpu.lost:
            message = f"NVML reports that it is lost ({gpu.lost})"
            yield fail(f"GPU{gpu.index}", message, **NODE, evidence="NVML")
    yield from _closed(devices, container)
    yield from _twins(gpus)
    yield from _uncounted(gpus, devices, pci, environment, container)
    alive = sum(not gpu.lost for gpu in gpus.all)
    if job.expect_gpus is not None and alive < job.expect_gpus:
        message = f"{alive} usable, {job.expect_gpus} expected (--expect-gpus)"
        yield fail("GPUs", message, **NODE, evidence="NVML")
    elif 1 < alive < ranks:
        yield _too_few(alive, ranks, "NVML")
    elif isinstance(named, NamedMachine) and (has := _gpus_of(named)) > len(gpus.all) > 1:
        message = f"the text shows {len(gpus.all)}, but {named.type} has {has}"
        yield fail("GPUs", message, **NODE, evidence="nvidia-smi")


def _gpus_of(named: NamedMachine) -> int:
    """Return how many GPUs a text promises and shows, if it is whole; 0: it does not."""
    machine = machine_named(named.type) if named.type and not named.partial else None
    return 0 if machine is None else min(named.gpus or machine.links.gpus, machine.links.gpus)


def _closed(devices: Devices | Absent, container: Container | Absent) -> Iterator[Finding]:
    """Yield that CUDA's own device node is closed to this process, or is not there, which NVML does without.

    On a host nvidia-modprobe, which is root's, makes it when CUDA starts; a container has what it was given.
    """
    nodes = () if isinstance(devices, Absent) or isinstance(devices.nvidia, Absent) else devices.nvidia
    own, shown = next((node for node in nodes if node.path == _CUDA_NODE), None), f"access(2) {_CUDA_NODE}"
    if own and not own.usable:
        message = "is not readable and writable for this process, so CUDA does not start, although NVML sees the GPUs"
        yield fail(own.path, message, **IMAGE, evidence=shown)
    elif own is None and _numbered(devices) and isinstance(container, Container):
        if container.kind:
            message = (
                f"does not exist in this {container.kind} container, so CUDA does not start, although NVML sees the "
                "GPUs"
            )
            yield fail(_CUDA_NODE, message, **IMAGE, evidence=shown)
        else:
            yield note(_CUDA_NODE, "does not exist; nvidia-modprobe creates it when CUDA starts", evidence=shown)


def _uncounted(
    gpus: Gpus,
    devices: Devices | Absent,
    pci: Pci | Absent,
    environment: Environment | Absent,
    container: Container | Absent,
) -> Iterator[Finding]:
    """Yield that GPUs are on the bus and not counted by NVML: they did not initialise, or are not this process's."""
    bound = () if isinstance(pci, Absent) else [gpu for gpu in pci.of("gpu") if gpu.identity.driver == "nvidia"]
    if len(bound) <= len(gpus.all):
        return
    variables = {} if isinstance(environment, Absent) else environment.variables
    given = variables.get("NVIDIA_VISIBLE_DEVICES") not in (None, "", "all")
    slurms = any(name.startswith("SLURM_") for name in variables)
    inside = isinstance(container, Absent) or bool(container.kind)
    open_nodes = len(_numbered(devices, usable=True))
    message = f"NVML counts {len(gpus.all)}, but {len(bound)} on the PCI bus use the driver nvidia"
    shown = seen("/sys/bus/pci/devices", first_of((gpu.address for gpu in bound), _MOST_SHOWN))
    if given or slurms or inside or open_nodes <= len(gpus.all):
        yield note("GPUs", f"{message}: this process has no access to the others", evidence=[shown, seen("NVML")])
    else:
        message = f"{message} and {open_nodes} are in /dev: the others failed to initialise"
        yield fail("GPUs", message, **NODE, evidence=[shown, seen("NVML")])


def _twins(gpus: Gpus) -> Iterator[Finding]:
    """Yield that GPUs have one UUID: what names a GPU by it, as CUDA_VISIBLE_DEVICES, may mean either."""
    uuids = {
        gpu.uuid: [f"GPU{each.index}" for each in gpus.all if each.uuid == gpu.uuid] for gpu in gpus.all if gpu.uuid
    }
    for uuid, names in uuids.items():
        if len(names) > 1:
            message = f"have the same UUID, {uuid}: one GPU is counted twice, or the driver is wrong"
            yield warn(", ".join(names), message, **NODE, evidence="NVML")


def _signs(job: Job, pci: Pci | Absent, environment: Environment | Absent) -> Iterator[tuple[str, Evidence]]:
    """The evidence that this node has GPUs, each as a phrase with the value that was seen."""
    if job.expect_gpus:
        yield f"{job.expect_gpus} expected", seen("command line", f"--expect-gpus {job.expect_gpus}")
    bus = () if isinstance(pci, Absent) else pci.of("gpu")
    if mine := [gpu for gpu in bus if gpu.identity.driver != _TO_A_GUEST]:
        shown = first_of((gpu.address for gpu in mine), _MOST_SHOWN)
        yield f"{len(mine)} on the PCI bus", seen("/sys/bus/pci/devices", shown)
    variables = Environment() if isinstance(environment, Absent) else environment
    given, numbers = variables.get("SLURM_GPUS_ON_NODE") or "", variables.get("SLURM_JOB_GPUS") or ""
    if re.fullmatch(r"[0-9]{1,4}", given) and int(given):
        yield f"{int(given)} given by Slurm", seen("environment", f"SLURM_GPUS_ON_NODE={given}")
    elif re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4}){0,63}", numbers):
        yield f"{numbers.count(',') + 1} given by Slurm", seen("environment", f"SLURM_JOB_GPUS={numbers}")
    listed = variables.get("NVIDIA_VISIBLE_DEVICES") or ""
    if uuids := [word for word in listed.split(",") if word.strip().startswith(("GPU-", "MIG-"))]:
        yield f"{len(uuids)} given to this container", seen("environment", "NVIDIA_VISIBLE_DEVICES holds UUIDs")


def _none_usable(signs: Sequence[tuple[str, Evidence]], why: str, driver: Driver | Absent) -> Finding:
    """Return that no GPU can be used: the driver is loaded and hidden from this process, or it is not there."""
    hidden = isinstance(driver, Driver)
    return fail(
        "GPUs",
        f"none usable, {', '.join(word for word, _ in signs)}",
        blame="job" if hidden else "node",
        action="fix-job" if hidden else "repair",
        evidence=[*(each for _, each in signs), seen("NVML", why)],
        remedy=_START_WITH_GPUS if hidden else _LOAD_DRIVER,
    )


def _too_few(gpus: int, ranks: int, evidence: str) -> Finding:
    return fail("GPUs", f"{gpus} usable for {ranks} ranks on this node", **NODE, evidence=evidence)


def _numbered(devices: Devices | Absent, usable: bool = False) -> tuple[str, ...]:
    """Return the device nodes of GPUs, or of them those that are `usable`: /dev/nvidia0 …, not the driver's parts."""
    nodes = () if isinstance(devices, Absent) or isinstance(devices.nvidia, Absent) else devices.nvidia
    open_nodes = (node.path for node in nodes if node.usable or not usable)
    return tuple(path for path in open_nodes if path.removeprefix("/dev/nvidia").isdecimal())


_DAY_S = 86400.0
_WHOSE = r"\b(pid|name)=('[^']*'|[^,]*),? ?"  # of no use here, and of a stranger perhaps
_RECOVERY = "154"  # "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def log(*events: Event, uptime_s: float = 7200.0) -> KernelLog:
    """Return a kernel log with these events, for examples."""
    return KernelLog(events, uptime_s, source="/dev/kmsg")


BUS, BOX = "0000:07:00", box(HEALTHY)
FELL = Event(3600.0, "xid", BUS, "79", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


_LOGGED = Certainty("high", "kernel log")
_KEEP = "none needed, unless earlier jobs matter. `journalctl -k` shows more if the journal is kept on disk."


@check(
    group=ERRORS_GROUP,
    bad=lambda: [(log(FELL), BOX)],
    good=lambda: [(log(), BOX)],
    privilege="root, kernel.dmesg_restrict=0, or the group adm or systemd-journal",
    applies=gpu_job,
)
def xid(log: KernelLog, gpus: Gpus | Absent) -> Iterator[Finding]:
    """The driver has reported errors on a GPU or NVSwitch.

    Right: The driver has reported no serious error on a GPU or NVSwitch.
    Why: an Xid names the cause when the job itself shows only a hung collective or a CUDA error. After Xid 48, 64, 74,
    79, 95, 119 or 120 the GPU needs at least a reset. On Blackwell so do the fatal errors among 144 to 150.
    Fix: look the code up at docs.nvidia.com/deploy/xid-errors. If it is serious, drain the node and reset the GPU
    (`nvidia-smi --gpu-reset -i N`). After Xid 74 reset the GPUs at both ends of the link that `nvidia-smi nvlink -e`
    names. If the error returns, have the GPU repaired.
    """
    by_kind = grouped(
        ((event.kind, event.device, event.code), event) for event in log.events if event.kind in ("xid", "sxid", "lost")
    )
    for events in by_kind.values():
        yield _judged(events, log, gpus)
    if log.oldest_s or log.dropped:
        message = f"begins {_ago(log.uptime_s - log.oldest_s)}, so earlier messages are unknown"
        yield note("kernel log", message, evidence=log.source, remedy=_KEEP)


def _judged(events: Sequence[Event], log: KernelLog, gpus: Gpus | Absent) -> Finding:
    """Return one finding for all events of one kind on one device, by the last; any fatal one makes it fatal."""
    last = events[-1]
    meaning = meaning_of(last, fatal=any(event.fatal for event in events))
    times = f"{len(events)} times, last " if len(events) > 1 else ""
    name = {"xid": f"Xid {last.code}", "sxid": f"SXid {last.code}"}.get(last.kind, "GPU lost")
    message = f"{name}: {meaning.words}; {times}{_ago(log.uptime_s - last.at_s)}"
    text = re.sub(_WHOSE, "", last.text)[:160]
    evidence = seen(log.source, text)
    subject = f"NVSwitch {last.device}" if last.kind == "sxid" else at(last.device, gpus) if last.device else "a GPU"
    if any(
        later.code == _RECOVERY and later.device == last.device and later.at_s >= last.at_s and "to 0x0" in later.text
        for later in log.events
    ):
        return note(subject, f"{message}; the driver has reported a reset since then", evidence=evidence)
    if not (meaning.grave or meaning.risky):
        return note(subject, message, evidence=evidence)
    recent = log.uptime_s - last.at_s < _DAY_S
    tell = fail if meaning.grave and recent else warn
    return tell(subject, message, **NODE, confidence=_LOGGED, evidence=evidence)


def meaning_of(event: Event, fatal: bool | None) -> Xid:
    """Return the meaning of `event`; its lines may state whether it is `fatal`. None: there is no line."""
    known = XIDS.get(event.code, Xid())
    if event.kind == "lost":
        return XIDS["79"]
    if event.kind == "sxid":
        return Xid("fatal error of an NVSwitch" if fatal else "error of an NVSwitch, not fatal", grave=bool(fatal))
    if known.of_link and known.risky:
        said = "fatal or not" if fatal is None else "fatal" if fatal else "not fatal"
        return Xid(f"{known.words}, {said}", grave=bool(fatal), risky=fatal is None)
    if event.code == _RECOVERY:
        asked = event.text.rpartition(" to ")[2].rstrip(".")
        return Xid(f"the driver now requests {asked or 'an unknown action'}", risky="(None)" not in asked)
    return known


def _ago(seconds: float) -> str:
    for unit, length in (("day", _DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)} ago"
    return "less than a minute ago"
