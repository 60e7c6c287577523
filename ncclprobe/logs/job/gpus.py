"""Find the GPU of each rank, what it does, and why it may hold the rank up."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.ranks import JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.kernel_log import HARMLESS_XIDS, Event
from ncclprobe.facts.nvml import SLOWED
from ncclprobe.facts.pci import normal
from ncclprobe.model.errors import ParseError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import USER_HZ, size

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLOW_CLOCK = 0.5


def gpus_of(here: LocalRanks, looks: JobLooks) -> Mapping[int, tuple[str, str]]:
    """Return what each process's GPU does, and why this may hold it up; nothing of one whose GPU is not known."""
    found = {}
    for rank in here.ranks:
        both = [() if isinstance(gpus, Absent) else gpus for gpus in (looks.first.gpus, looks.second.gpus)]
        own = _gpu_of_process(rank, (*both[0], *both[1])) or _gpu_of_local_rank(rank, here.ranks, both[1])
        first, last = (next((gpu for gpu in gpus if own and gpu.index == own.index), None) for gpus in both)
        if last is not None:
            troubles = [*_xids(rank, last, looks.xids), *_gpu_troubles(first or last, last)]
            words = ", ".join(_gpu_in_words(first or last, last))
            found[rank.pid] = f"GPU{last.index}: {words}" if words else "", "; ".join(troubles)
    return found


def _gpu_of_process(rank: JobProcess, gpus: Sequence[LiveGpu]) -> LiveGpu | None:
    """Return the GPU on which a process computes, by NVML at either look: a lost GPU no longer reports its processes.

    If there are several, return the one with the fewest ranks: every rank has a context on GPU 0 unless its program
    selects another. None if that leaves two.
    """
    pids: dict[int, set[int]] = {}
    for gpu in gpus:
        pids.setdefault(gpu.index, set()).update(() if isinstance(gpu.pids, Absent) else gpu.pids)
    ours = {index: len(all_pids) for index, all_pids in pids.items() if rank.pid in all_pids}
    fewest = [index for index, number in ours.items() if number == min(ours.values())]
    return next((gpu for gpu in gpus if [gpu.index] == fewest), None)


def _gpu_of_local_rank(rank: JobProcess, ranks: Sequence[JobProcess], gpus: Sequence[LiveGpu]) -> LiveGpu | None:
    """Return the GPU of a local rank if NVML reports no process there and each GPU has a rank.

    This is the case in a container, and if a GPU is lost.
    """
    at = rank.launch.local_rank
    if at is None or _VISIBLE in rank.settings or not len(gpus) == len(ranks) == rank.launch.local_world_size:
        return None
    return gpus[at] if at < len(gpus) and (isinstance(gpus[at].pids, Absent) or not gpus[at].pids) else None


def _gpu_in_words(first: LiveGpu, last: LiveGpu) -> Iterator[str]:
    if last.lost:
        yield last.lost
    if not isinstance(last.busy_percent, Absent):
        yield f"busy {last.busy_percent} % of the time"
    if not isinstance(last.clock_MHz, Absent):
        yield f"{last.clock_MHz} MHz{f' of {last.most_MHz}' if not isinstance(last.most_MHz, Absent) else ''}"
    if not isinstance(last.power_mW, Absent):
        yield f"{last.power_mW / 1000:.0f} W"
    if not isinstance(first.nvlink_KiB, Absent) and not isinstance(last.nvlink_KiB, Absent):
        yield f"{size(max(last.nvlink_KiB - first.nvlink_KiB, 0) << 10)} over NVLink between the two samples"


def _gpu_troubles(first: LiveGpu, last: LiveGpu) -> Iterator[str]:
    if last.lost:
        yield f"its GPU{last.index} does not answer ({last.lost})"
    clocks = last.clock_MHz, last.most_MHz
    if isinstance(clocks[0], Absent) or isinstance(clocks[1], Absent) or not clocks[1]:
        return
    if clocks[0] > _SLOW_CLOCK * clocks[1]:
        return
    reasons = [set() if isinstance(each.reasons, Absent) else {*each.reasons} for each in (first, last)]
    if why := [name for name in SLOWED if name in reasons[0] & reasons[1]]:
        yield f"its GPU{last.index} is held at {clocks[0]} of {clocks[1]} MHz ({', '.join(why)})"


def _xids(rank: JobProcess, gpu: LiveGpu, events: Sequence[Event] | Absent) -> Iterator[str]:
    """Yield the driver's messages about a GPU since its rank began, except those that a program usually causes."""
    known = () if isinstance(events, Absent) or isinstance(gpu.pci, Absent) else events
    said = {
        f"its GPU{gpu.index} has had Xid {each.code}" if each.kind == "xid" else f"its GPU{gpu.index} fell off the bus"
        for each in known
        if each.at_s >= rank.start / USER_HZ and each.code not in HARMLESS_XIDS and _same_gpu(each.device, str(gpu.pci))
    }
    yield from sorted(said)


def _same_gpu(device: str, pci: str) -> bool:
    try:
        return normal(device if "." in device else f"{device}.0") == normal(pci)
    except ParseError:
        return False
