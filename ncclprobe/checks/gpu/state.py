"""Modes and conditions of each GPU while nothing of ours runs on it, and what holds it back."""

from collections.abc import Iterator

from ncclprobe.checks import IMAGE, NODE
from ncclprobe.checks.gpu import (
    CLOCKS_GROUP,
    ERRORS_GROUP,
    MODE_GROUP,
    blanks,
    gpu_job,
    named,
    unread,
    unstarted_gpu_job,
)
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvml import Gpu, Gpus, unsupported
from ncclprobe.model.findings import ONCE, Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.stats import median
from ncclprobe.model.units import size
from ncclprobe.model.values import replace

GIB = 1 << 30
_MUCH = 2 * GIB  # AMD-AGI/Primus' limit; the driver keeps up to 1 GiB for itself
_LEAST = GIB
"""The least free memory that a rank can begin with: CUDA's context takes half of it, NCCL's buffers the rest."""
_CONTEXT = 128 << 20
"""A CUDA context takes more; the server of MPS, which exclusive-process mode is meant for, takes less."""
_SLOWED = {
    "hw-slowdown": "the hardware has lowered its clocks",
    "hw-thermal-slowdown": "it is too hot, and the hardware has lowered its clocks",
    "hw-power-brake-slowdown": "the power supply makes it slow down (power brake)",
    "sw-thermal-slowdown": "it is too hot, and the driver has lowered its clocks",
}

HEALTHY = Gpu(
    *(0, "NVIDIA H200", "GPU-0", "00000000:07:00.0"),
    memory_bytes=141 * GIB,
    memory_used_bytes=600 << 20,
    compute_mode="default",
    mig=False,
    persistence=True,
    remap_pending=False,
    remap_failed=False,
    throttle=("gpu-idle",),
    processes=(),
    compute=(9, 0),
)


def box(*gpus: Gpu) -> Gpus:
    """Return these GPUs, numbered, for examples."""
    return Gpus(tuple(replace(gpu, index=n) for n, gpu in enumerate(gpus)), driver="570.86.15", cuda=(12, 8))


WELL = box(HEALTHY, HEALTHY)


@applies
def remaps_rows(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs whose memory can remap rows (ECC memory of Ampere and later)."""
    told = [] if isinstance(gpus, Absent) else [unsupported(gpu.remap_pending) for _, gpu in named(gpus)]
    return job.backend == "nccl" and not (told and all(told))


@check(
    group=CLOCKS_GROUP,
    slows=True,
    bad=lambda: [(box(HEALTHY, replace(HEALTHY, throttle=("hw-slowdown", "hw-power-brake-slowdown"))),)],
    good=lambda: [(WELL,)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def throttle(gpus: Gpus) -> Iterator[Finding]:
    """Heat or a power limit slows down a GPU's clocks.

    Right: Neither heat nor a power limit slows down a GPU's clocks.
    Why: every collective waits for the slowest GPU. A GPU that is already slowed down before the job begins slows down
    the whole job.
    Fix: check the GPU's temperature, fans and power supplies (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`).
    """
    for name, gpu in named(gpus):
        told = () if isinstance(gpu.throttle, Absent) else gpu.throttle
        reasons = [reason for reason in told if reason in _SLOWED]
        causes = [reason for reason in reasons if reason != "hw-slowdown"] or reasons  # which goes with its causes
        if causes:
            evidence = seen("NVML's reasons for the clocks", ", ".join(told))
            message = "; ".join(_SLOWED[reason] for reason in causes)
            yield warn(name, message, blame="node", action="retest", confidence=ONCE, evidence=evidence)
    yield from unread(gpus, "throttle", "nvmlDeviceGetCurrentClocksEventReasons", lacking=True)


@check(
    group=ERRORS_GROUP,
    bad=lambda: [(box(HEALTHY, replace(HEALTHY, remap_pending=True)),)],
    good=lambda: [(WELL,)],
    requires="gpu.smi-canary",
    applies=remaps_rows,
)
def remap(gpus: Gpus) -> Iterator[Finding]:
    """A GPU's memory has rows to remap, or no spare rows left.

    Right: No GPU memory has rows to remap.
    Why: a pending remapping takes effect only at the next reset, and until then the bad row can end a job with Xid 94
    or 95. A failed remapping means that no spare rows are left (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
    Fix: if a remapping is pending, run `nvidia-smi --gpu-reset -i N` or reboot the node when it is free. If it failed,
    have the GPU replaced.
    """
    for name, gpu in named(gpus):
        if gpu.remap_failed is True:
            message = "a row of its memory could not be remapped"
            yield fail(name, message, **NODE, evidence="nvmlDeviceGetRemappedRows")
        elif gpu.remap_pending is True:
            message = "a row of its memory will be remapped at the next reset"
            yield warn(name, message, **NODE, evidence="nvmlDeviceGetRemappedRows")
    yield from unread(gpus, "remap_failed", "nvmlDeviceGetRemappedRows")


@check(
    slows=True,
    bad=lambda: [(box(HEALTHY, replace(HEALTHY, memory_used_bytes=70 * GIB)),)],
    good=lambda: [(WELL,)],
    requires="gpu.smi-canary",
    applies=unstarted_gpu_job,
)
def busy(gpus: Gpus) -> Iterator[Finding]:
    """A GPU is already in use.

    Right: No GPU is in use.
    Why: a job on a GPU in use runs out of memory or shares the GPU, and measurements during other work are meaningless.
    With less than 1 GiB free the job does not start: "Failed to CUDA calloc", "out of memory".
    Fix: `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv` lists the processes. End your own, or use
    another node.
    """
    unknown = {}
    for name, gpu in named(gpus):
        if isinstance(gpu.memory_used_bytes, Absent) and isinstance(gpu.processes, Absent):
            unknown[name] = gpu.memory_used_bytes
            continue
        processes = () if isinstance(gpu.processes, Absent) else gpu.processes
        in_use = 0 if isinstance(gpu.memory_used_bytes, Absent) else gpu.memory_used_bytes
        told = sum(nbytes or 0 for nbytes in processes)
        by = f"{len(processes)} process{'es' * (len(processes) != 1)}" if processes else "no process visible to NVML"
        message = f"{size(max(in_use, told))} of its memory are in use by {by}"
        # What Linux keeps in the memory of a Grace's GPU, a NUMA node like any other, counts as used.
        shared = "GH200" in gpu.name or "GB200" in gpu.name or "GB300" in gpu.name
        whole = 0 if isinstance(gpu.memory_bytes, Absent) else gpu.memory_bytes
        if whole and whole - (told if shared else max(in_use, told)) < _LEAST:
            free = size(max(0, whole - max(in_use, told)))
            message = f"only {free} of its {size(whole)} are free, with {by} on it, so no rank can start"
            yield fail(name, message, action="retest", confidence=ONCE, evidence=("NVML memory", "NVML processes"))
        elif told > _MUCH or (in_use > _MUCH and not shared):
            yield warn(name, message, action="retest", confidence=ONCE, evidence=("NVML memory", "NVML processes"))
        elif processes:
            yield note(name, message, evidence=("NVML memory", "NVML processes"))
    yield from blanks(unknown, sum(1 for _ in named(gpus)), ("NVML memory", "NVML processes"))


@check(
    group=MODE_GROUP,
    slows=True,
    bad=lambda: [(box(replace(HEALTHY, mig=True), HEALTHY), Launch())],
    good=lambda: [(WELL, Launch())],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def mig(gpus: Gpus, launch: Launch) -> Iterator[Finding]:
    """MIG splits a GPU, or will split it after its next reset.

    Right: No GPU is split by MIG, or will be after its next reset.
    Why: MIG instances have neither NVLink nor peer-to-peer access, so ranks on them exchange data through the host
    (docs.nvidia.com/datacenter/tesla/mig-user-guide).
    Fix: for a job on several GPUs, have the administrator turn MIG off (`nvidia-smi -mig 0`), or use another node.
    """
    split = [name for name, gpu in named(gpus) if gpu.mig is True]
    if split:
        others = [name for name, gpu in named(gpus) if gpu.mig is not True]
        several = (launch.local_world_size or 1) > 1
        unlike = f", but {', '.join(others)} {'is' if len(others) == 1 else 'are'} not" if others else ""
        message = f"is split by MIG{unlike}; MIG instances have no NVLink or peer-to-peer access"
        if others or several:
            yield warn(", ".join(split), message, blame="node", action="fix-image", evidence="nvmlDeviceGetMigMode")
        else:
            yield note(", ".join(split), message, evidence="nvmlDeviceGetMigMode")
    changing = [n for n, g in named(gpus) if g.mig_pending is (g.mig is False)]
    for name in changing:
        message = f"MIG will be turned {'off' if name in split else 'on'} at its next reset"
        yield warn(name, message, blame="node", action="fix-image", evidence="nvmlDeviceGetMigMode (pending)")
    yield from unread(gpus, "mig", "nvmlDeviceGetMigMode")


@check(
    group=MODE_GROUP,
    bad=lambda: [(box(HEALTHY, HEALTHY, replace(HEALTHY, persistence=False)),)],
    good=lambda: [(WELL,)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def persistence(gpus: Gpus) -> Iterator[Finding]:
    """Persistence mode is off.

    Right: Persistence mode is on.
    Why: without it the driver releases a GPU when the last program exits, and initialising it again takes seconds per
    GPU. If it is on for only some GPUs, the others were reset, or removed and added again, since the node was set up.
    Fix: run nvidia-persistenced, or `nvidia-smi -pm 1` as root.
    """
    known = {name: gpu.persistence for name, gpu in named(gpus) if isinstance(gpu.persistence, bool)}
    off = [name for name, on in known.items() if not on]
    if off and len(off) < len(known):
        message = "persistence mode is off here but on for the other GPUs"
        yield warn(", ".join(off), message, blame="node", action="fix-image", evidence="nvmlDeviceGetPersistenceMode")
    elif off:
        yield note("GPUs", "persistence mode is off for all GPUs", evidence="nvmlDeviceGetPersistenceMode")
    yield from unread(gpus, "persistence", "nvmlDeviceGetPersistenceMode", lacking=True)


@check(
    group=MODE_GROUP,
    slows=True,
    bad=lambda: [(box(HEALTHY, replace(HEALTHY, compute_mode="prohibited")), Job())],
    good=lambda: [(WELL, Job())],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def compute_mode(gpus: Gpus, job: Job) -> Iterator[Finding]:
    """A GPU's compute mode keeps a process from computing.

    Right: Every GPU's compute mode allows processes to compute.
    Why: in compute mode "prohibited" every cudaSetDevice fails, so this GPU's rank dies and all others wait for it. In
    "exclusive-process" cudaSetDevice fails while another process uses the GPU (nvmlComputeMode_t in nvml.h).
    Fix: run `nvidia-smi -i N -c 0` as root.
    """
    for name, gpu in named(gpus):
        mode = "" if isinstance(gpu.compute_mode, Absent) else gpu.compute_mode
        if mode == "prohibited":
            message = "its compute mode is prohibited"
            yield fail(name, message, blame="node", action="fix-image", evidence="nvmlDeviceGetComputeMode")
        elif mode.startswith("exclusive") and not isinstance(gpu.processes, Absent):
            held = [nbytes for nbytes in gpu.processes if nbytes is None or nbytes > _CONTEXT]
            if held:
                message = f"its compute mode is {mode}, and another process already uses it, so a second one fails"
                shown = ("nvmlDeviceGetComputeMode", "NVML processes")
                tell = warn if None in held else fail
                yield tell(name, message, action="retest", confidence=ONCE, evidence=shown)
    yield from unread(gpus, "compute_mode", "nvmlDeviceGetComputeMode", lacking=True)


_LESS = 0.95
"""A share of the usual limit: the limits that boards of one model are shipped with differ by less."""
_HALF = 0.6
"""A limit on all GPUs below this share of the default slows NCCL too, not only arithmetic."""
_LEAST_MHZ = 500
"""The least default clocks of NVIDIA's data sheets are those of K80, 560 MHz, and T4, 585."""
_MARGIN_C = 5
"""The hardware halves the clocks at NVML's slowdown threshold; idle GPUs are 30 to 60 degrees below it."""
_MANY, _TIMES = 1000, 100
"""Replays that are worth a word, and how many times the siblings' median."""
_LONG_S, _LONGER = 60, 10
"""Seconds too hot that are worth a word, and how many times the siblings' median."""

FULL = replace(HEALTHY, power_limit_W=700, power_default_W=700, clock_MHz=1980, temperature_C=31,
               slowdown_C=92, pcie_replays=0, hot_s=0)  # fmt: skip
CAPPED = replace(FULL, power_limit_W=200)
PACED = box(FULL, FULL, FULL)
POWER, CLOCK = "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetApplicationsClock"


@check(
    group=CLOCKS_GROUP,
    slows=True,
    bad=lambda: [(box(FULL, CAPPED, FULL),)],
    good=lambda: [(PACED,)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def limits(gpus: Gpus) -> Iterator[Finding]:
    """A GPU has lower limits than its siblings or its model's defaults, or is close to its slowdown temperature.

    Right: No GPU has a lower power limit or lower clocks than its siblings, or is hot enough to slow down.
    Why: every step of a job waits for the slowest GPU. A limit set by hand, or by a script for one GPU, remains until
    the driver is reloaded, and no message reports it. A GPU that is already near its slowdown temperature before the
    job reaches it during the job.
    Fix: as root, run `nvidia-smi -i N -pl WATTS` with the default that `nvidia-smi -q -d POWER` shows, and `nvidia-smi
    -i N -rac` and `-rgc` for the clocks. If a GPU is hot, check fans, inlet temperature and airflow.
    """
    every = dict(named(gpus))
    yield from _limited(every, "power_limit_W", "its power limit is {} W", POWER)
    yield from _limited(every, "clock_MHz", "its maximum clock is {} MHz", CLOCK)
    yield from _locked_low(every)
    yield from _lowered_limits(every)
    for name, gpu in every.items():
        if isinstance(gpu.temperature_C, int) and isinstance(gpu.slowdown_C, int):
            left = gpu.slowdown_C - gpu.temperature_C
            if left <= _MARGIN_C:
                message = (
                    f"it is at {gpu.temperature_C} °C, only {max(left, 0)} below its slowdown threshold of "
                    f"{gpu.slowdown_C}"
                )
                yield warn(name, message, blame="node", action="retest", confidence=ONCE,
                           evidence="nvmlDeviceGetTemperature")  # fmt: skip
    yield from _was_hot(every)
    yield from unread(gpus, "power_limit_W", POWER)


def _was_hot(gpus: dict[str, Gpu]) -> Iterator[Finding]:
    """Yield the GPUs that heat has held back for much longer than their siblings, whether or not they work now."""
    seconds = {name: gpu.hot_s for name, gpu in gpus.items() if isinstance(gpu.hot_s, int)}
    usual = median(seconds.values()) if seconds else 0
    for name, hot_s in seconds.items():
        if hot_s >= _LONG_S and hot_s > _LONGER * (usual + 1):
            message = (
                f"heat has slowed it for {hot_s:,} s since the driver was loaded, but its siblings for {usual:,.0f} s"
            )
            evidence = "nvmlDeviceGetViolationStatus (thermal)"
            yield warn(name, message, blame="node", action="retest", evidence=evidence)


def _limited(gpus: dict[str, Gpu], field: str, what: str, source: str) -> Iterator[Finding]:
    """Yield the GPUs that may do less than siblings of their model."""
    for model in sorted({gpu.name for gpu in gpus.values()}):
        rates = {n: rate for n, g in gpus.items() if g.name == model and isinstance(rate := getattr(g, field), int)}
        usual = max(rates.values(), default=0)
        for name, rate in rates.items():
            if rate < _LESS * usual:
                message = f"{what.format(rate)}; on its siblings it is as high as {usual}{what.partition('}')[2]}"
                loss = round(1 - rate / usual, 4)
                yield warn(name, message, blame="node", action="fix-image", evidence=source, loss=loss)


def _locked_low(gpus: dict[str, Gpu]) -> Iterator[Finding]:
    """Yield the GPUs that may do no less than their siblings, and less than any model does."""
    rates = {name: gpu.clock_MHz for name, gpu in gpus.items() if isinstance(gpu.clock_MHz, int)}
    for name, rate in rates.items():
        if _LESS * max(rates.values()) <= rate < _LEAST_MHZ:
            message = f"its clock is limited to {rate} MHz, but every model allows 560 or more by default"
            yield warn(name, message, **IMAGE, evidence=CLOCK)


def _lowered_limits(gpus: dict[str, Gpu]) -> Iterator[Finding]:
    """Yield the GPUs with the most of their node, and less than their default: a user's wish, if it is little less."""
    most = max((gpu.power_limit_W for gpu in gpus.values() if isinstance(gpu.power_limit_W, int)), default=0)
    for name, gpu in gpus.items():
        limit, usual = gpu.power_limit_W, gpu.power_default_W
        if isinstance(limit, int) and isinstance(usual, int) and _LESS * most <= limit < _LESS * usual:
            tell = warn if limit < _HALF * usual else note
            message = f"its power limit is {limit} W, but {usual} by default"
            yield tell(name, message, **IMAGE, evidence=POWER)


@check(
    group=ERRORS_GROUP,
    slows=True,
    bad=lambda: [(box(FULL, FULL, replace(FULL, pcie_replays=250_000)),)],
    good=lambda: [(box(FULL, FULL, replace(FULL, pcie_replays=40)),)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def replays(gpus: Gpus) -> Iterator[Finding]:
    """A GPU's PCIe link has replayed many packets.

    Right: No GPU's PCIe link has replayed many more packets than its siblings' links.
    Why: a packet is replayed when it arrives damaged. A link that keeps replaying packets carries less data, and
    eventually causes AER errors or a GPU that falls off the bus. The count starts when the driver is loaded
    (nvmlDeviceGetPcieReplayCounter).
    Fix: check `nvidia-smi -q | grep -i replay` again in an hour. If the count has grown, reseat the GPU, its riser or
    its cable.
    """
    counts = {name: gpu.pcie_replays for name, gpu in named(gpus) if isinstance(gpu.pcie_replays, int)}
    usual = median(counts.values()) if counts else 0
    source = "nvmlDeviceGetPcieReplayCounter"
    for name, count in counts.items():
        if count >= _MANY and count > _TIMES * (usual + 1):
            message = f"its PCIe link replayed {count} packets; its siblings usually replay {usual:.0f}"
            yield warn(name, message, **NODE, evidence=seen(source, str(count)))
        elif count >= _MANY:
            yield note(name, f"its PCIe link replayed {count} packets", evidence=source)
    yield from unread(gpus, "pcie_replays", source)
