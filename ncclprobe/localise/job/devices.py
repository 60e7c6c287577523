"""What a rank's GPU does between two looks, and whether it may hold the rank up."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.job.devices import LiveGpu
from ncclprobe.facts.job.ranks import JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.kernel_log import HARMLESS_XIDS, Event
from ncclprobe.facts.nvml import SLOWED
from ncclprobe.facts.pci import normal
from ncclprobe.model.errors import ParseError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import size

_TICKS_S = 100
"""Of a process's start: USER_HZ, of every Linux that runs CUDA."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLOW_CLOCK = 0.5


def gpus_of(here: LocalRanks, looks: JobLooks) -> Mapping[int, tuple[str, str]]:
    """Return what each process's GPU does, and why this may hold it up; nothing of one whose GPU is not known."""
    found = {}
    for rank in here.ranks:
        both = [_gpu_of(rank, here.ranks, () if isinstance(gpus, Absent) else gpus) for gpus in _both(looks)]
        if both[1] is not None:
            troubles = [*_xids(rank, both[1], looks.xids), *_troubles(both[0] or both[1], both[1])]
            words = [*_words(both[0] or both[1], both[1])]
            found[rank.pid] = f"GPU{both[1].index}: {', '.join(words)}" if words else "", "; ".join(troubles)
    return found


def _both(looks: JobLooks) -> tuple[tuple[LiveGpu, ...] | Absent, ...]:
    return looks.first.gpus, looks.second.gpus


def _gpu_of(rank: JobProcess, ranks: Sequence[JobProcess], gpus: Sequence[LiveGpu]) -> LiveGpu | None:
    """Return the GPU on which a process computes, by NVML.

    Where NVML tells of none, as in a container or of a lost GPU: that of its local rank, if each GPU has a rank.
    """
    for gpu in gpus:
        if not isinstance(gpu.pids, Absent) and rank.pid in gpu.pids:
            return gpu
    at = rank.launch.local_rank
    if at is None or _VISIBLE in rank.settings or not len(gpus) == len(ranks) == rank.launch.local_world_size:
        return None
    return gpus[at] if at < len(gpus) and (isinstance(gpus[at].pids, Absent) or not gpus[at].pids) else None


def _words(first: LiveGpu, last: LiveGpu) -> Iterator[str]:
    if last.lost:
        yield last.lost
    if not isinstance(last.busy_percent, Absent):
        yield f"busy {last.busy_percent} % of the time"
    if not isinstance(last.clock_MHz, Absent):
        yield f"{last.clock_MHz} MHz{f' of {last.most_MHz}' if not isinstance(last.most_MHz, Absent) else ''}"
    if not isinstance(last.power_mW, Absent):
        yield f"{last.power_mW / 1000:.0f} W"
    if not isinstance(first.nvlink_KiB, Absent) and not isinstance(last.nvlink_KiB, Absent):
        yield f"{size(max(last.nvlink_KiB - first.nvlink_KiB, 0) << 10)} over NVLink between the looks"


def _troubles(first: LiveGpu, last: LiveGpu) -> Iterator[str]:
    if last.lost:
        yield f"its GPU{last.index} does not answer ({last.lost})"
    clocks = last.clock_MHz, last.most_MHz
    if isinstance(clocks[0], Absent) or isinstance(clocks[1], Absent) or clocks[0] > _SLOW_CLOCK * clocks[1]:
        return
    reasons = [set() if isinstance(each.reasons, Absent) else {*each.reasons} for each in (first, last)]
    if why := [name for name in SLOWED if name in reasons[0] & reasons[1]]:
        yield f"its GPU{last.index} is held at {clocks[0]} of {clocks[1]} MHz ({', '.join(why)})"


def _xids(rank: JobProcess, gpu: LiveGpu, events: Sequence[Event] | Absent) -> Iterator[str]:
    """Yield what the driver has said of a GPU since its rank began, but for what is usually of the program."""
    known = () if isinstance(events, Absent) or isinstance(gpu.pci, Absent) else events
    said = {
        f"its GPU{gpu.index} has had Xid {each.code}" if each.kind == "xid" else f"its GPU{gpu.index} fell off the bus"
        for each in known
        if each.at_s >= rank.start / _TICKS_S and each.code not in HARMLESS_XIDS and _same(each.device, str(gpu.pci))
    }
    yield from sorted(said)


def _same(device: str, pci: str) -> bool:
    try:
        return normal(device if "." in device else f"{device}.0") == normal(pci)
    except ParseError:
        return False
