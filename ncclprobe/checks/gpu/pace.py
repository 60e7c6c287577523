"""What holds a GPU back before anything is measured: its power limit, clocks, heat, and a link that repeats packets."""

from collections.abc import Iterator
from statistics import median

from ncclprobe.checks.gpu import blanks, gpu_job, named
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.facts.nvml import Gpu, Gpus, unsupported
from ncclprobe.model.findings import ONCE, Finding, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

_LESS = 0.95
"""Of what is usual: the limits that boards of one model are shipped with differ by less."""
_HALF = 0.6
"""A limit on all GPUs below this share of the default costs NCCL too, and not the arithmetic alone."""
_MARGIN_C = 5
"""NVML's slowdown threshold is where the hardware halves the clocks; idle GPUs are 30 to 60 degrees below it."""
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
    slows=True,
    since="0.2",
    bad=lambda: [(box(FULL, CAPPED, FULL),)],
    good=lambda: [(PACED,)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def limits(gpus: Gpus) -> Iterator[Finding]:
    """A GPU is limited below what its siblings, or GPUs of its model, may do.

    Right: No GPU has a lower power limit or lower clocks than its siblings, nor is hot enough to slow down.
    Why: every collective and every step waits for the slowest GPU. A limit that was set by hand, or by a script for one
    GPU, stays until the driver is loaded again, and shows in no message; a GPU near its slowdown temperature before the
    job begins reaches it within the job.
    Fix: `nvidia-smi -i N -pl WATTS` with the default of `nvidia-smi -q -d POWER`, `nvidia-smi -i N -rac` and `-rgc` for
    the clocks, as root; of a hot GPU look at fans, inlet and airflow.
    """
    every = dict(named(gpus))
    yield from _limited(every, "power_limit_W", "power limit {} W", POWER)
    yield from _limited(every, "clock_MHz", "clock allowed {} MHz", CLOCK)
    yield from _below_default(every)
    for name, gpu in every.items():
        if isinstance(gpu.temperature_C, int) and isinstance(gpu.slowdown_C, int):
            left = gpu.slowdown_C - gpu.temperature_C
            if left <= _MARGIN_C:
                message = f"{gpu.temperature_C} °C, {max(left, 0)} below the {gpu.slowdown_C} at which it slows down"
                yield warn(name, message, blame="node", action="retest", confidence=ONCE,
                           evidence="nvmlDeviceGetTemperature")  # fmt: skip
    yield from _was_hot(every)
    yield from _not_told(every, "power_limit_W", POWER)


def _was_hot(gpus: dict[str, Gpu]) -> Iterator[Finding]:
    """Yield the GPUs that heat has held back for much longer than their siblings, whether or not they work now."""
    seconds = {name: gpu.hot_s for name, gpu in gpus.items() if isinstance(gpu.hot_s, int)}
    usual = median(seconds.values()) if seconds else 0
    for name, hot_s in seconds.items():
        if len(seconds) > 1 and hot_s >= _LONG_S and hot_s > _LONGER * (usual + 1):
            message = f"heat has held it back for {hot_s:,} s since the driver was loaded, {usual:,.0f} s is usual here"
            evidence = "nvmlDeviceGetViolationStatus (thermal)"
            yield warn(name, message, blame="node", action="retest", evidence=evidence)


def _not_told(gpus: dict[str, Gpu], field: str, source: str) -> Iterator[Finding]:
    unknown = {n: gap for n, gpu in gpus.items() if isinstance(gap := getattr(gpu, field), Absent)}
    yield from blanks({n: gap for n, gap in unknown.items() if not unsupported(gap)}, len(gpus), source)


def _limited(gpus: dict[str, Gpu], field: str, what: str, source: str) -> Iterator[Finding]:
    """Yield the GPUs that may do less than siblings of their model."""
    for model in sorted({gpu.name for gpu in gpus.values()}):
        rates = {n: rate for n, g in gpus.items() if g.name == model and isinstance(rate := getattr(g, field), int)}
        usual = max(rates.values(), default=0)
        for name, rate in rates.items():
            if rate < _LESS * usual:
                message = f"{what.format(rate)}, up to {usual} on its siblings"
                loss = round(1 - rate / usual, 4)
                yield warn(name, message, blame="node", action="fix-image", evidence=source, loss=loss)


def _below_default(gpus: dict[str, Gpu]) -> Iterator[Finding]:
    """Yield the GPUs that have the most of their node, and less than their default: a user's wish, if it is little
    less.
    """
    most = max((gpu.power_limit_W for gpu in gpus.values() if isinstance(gpu.power_limit_W, int)), default=0)
    for name, gpu in gpus.items():
        limit, usual = gpu.power_limit_W, gpu.power_default_W
        if isinstance(limit, int) and isinstance(usual, int) and _LESS * most <= limit < _LESS * usual:
            tell = warn if limit < _HALF * usual else note
            message = f"power limit {limit} W, {usual} by default"
            yield tell(name, message, blame="image", action="fix-image", evidence=POWER)


@check(
    slows=True,
    since="0.2",
    bad=lambda: [(box(FULL, FULL, replace(FULL, pcie_replays=250_000)),)],
    good=lambda: [(box(FULL, FULL, replace(FULL, pcie_replays=40)),)],
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def replays(gpus: Gpus) -> Iterator[Finding]:
    """A GPU's PCIe link has repeated many packets.

    Right: No GPU's PCIe link has repeated many more packets than its siblings' links.
    Why: a packet is repeated when it arrives damaged; a link that does so all the time carries less, and ends in AER
    errors or a GPU that falls off the bus (nvmlDeviceGetPcieReplayCounter, since the driver was loaded).
    Fix: compare with `nvidia-smi -q | grep -i replay` in an hour; where it grows, reseat the GPU, its riser or cable.
    """
    counts = {name: gpu.pcie_replays for name, gpu in named(gpus) if isinstance(gpu.pcie_replays, int)}
    usual = median(counts.values()) if counts else 0
    source = "nvmlDeviceGetPcieReplayCounter"
    for name, count in counts.items():
        if count >= _MANY and count > _TIMES * (usual + 1) and len(counts) > 1:
            message = f"{count} packets were sent again over its PCIe link, {usual:.0f} is usual here"
            yield warn(name, message, blame="node", action="repair", evidence=seen(source, str(count)))
        elif count >= _MANY:
            yield note(name, f"{count} packets were sent again over its PCIe link", evidence=source)
    yield from _not_told(dict(named(gpus)), "pcie_replays", source)
