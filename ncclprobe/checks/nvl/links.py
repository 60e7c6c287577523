"""How many NVLinks are up, and how fast they are."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ncclprobe.checks.gpu import blanks, gpu_job
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl import Box, Linked, look
from ncclprobe.errors import Unlearned
from ncclprobe.expect.tables.gpus import NvlinkProduct, nvlink_products
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvlink import NvLink, NvLinks, NvlinkStatus, Remote, State
from ncclprobe.facts.nvml import Gpus
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Evidence, Finding, fail, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent

Row = tuple[NvLink, ...]
_MOST_NAMED = 6
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
    bad=lambda: [(H200S, NvLinks((FULL, SHORT, FULL)), UNSAID, METAL)],
    good=lambda: [(H200S, NvLinks((FULL, FULL, FULL)), UNSAID, METAL)],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def links(
    gpus: Gpus | Absent, links: NvLinks | Absent, status: NvlinkStatus | Absent, machine: Machine | Absent
) -> Iterator[Finding]:
    """NVLinks of a GPU are down.

    Right: All NVLinks are up.
    Why: NCCL builds its rings and trees over the links that are active when the job starts; a GPU with fewer slows all
    others down to itself, and one without any makes NCCL go through PCIe, ten times slower.
    Fix: reset the GPUs (`nvidia-smi --gpu-reset`), or reboot; if the same links stay down, have the GPU, its baseboard
    or its bridge reseated.
    """
    seen = look(gpus, links, status)
    virtual = isinstance(machine, Machine) and machine.virtual is True
    for gpu in seen.gpus:
        yield from _short(gpu, seen, virtual)
        if gpu.dozing:
            message = f"{_listed(gpu.dozing)} idle or asleep; NCCL uses only active ones"
            yield note(gpu.name, message, evidence=seen.evidence)
    if seen.unknown:
        yield from blanks(seen.unknown, len(seen.gpus) + len(seen.unknown), seen.evidence)


def _short(gpu: Linked, seen: Box, virtual: bool) -> Iterator[Finding]:
    """Yield what is to be said of a GPU with fewer links than its siblings have, or than every one of its kind has."""
    product = nvlink_products().get(gpu.product)
    siblings = _usual([len(other.up) for other in seen.like(gpu)])
    message = f"{len(gpu.up)} NVLinks are up{f', {_listed(gpu.down)} down' if gpu.down else ''}"
    if len(gpu.up) < siblings:
        yield _unlike_siblings(gpu, product, f"{message}; its siblings have {siblings}", seen)
    elif product and len(gpu.up) < product.links:
        expected = f"{message}; every {gpu.product} has {product.links}"
        yield from _unlike_its_kind(gpu, product, expected, seen, virtual)


def _unlike_siblings(gpu: Linked, product: NvlinkProduct | None, message: str, seen: Box) -> Finding:
    """Bridges need not join every GPU, and a GPU that is not known may be bridged too: in pairs, as most bridges do."""
    bridged = product.wiring == "bridge" if product else not any(other.switched for other in seen.like(gpu))
    paired = product is not None or not any(other.meshed for other in seen.like(gpu))
    if bridged and paired and not gpu.up:
        return note(gpu.name, f"{message}: it has no bridge", evidence=seen.evidence)
    tell = warn if bridged else fail
    return tell(gpu.name, message, blame="link", action="repair", evidence=seen.evidence)


def _unlike_its_kind(gpu: Linked, product: NvlinkProduct, message: str, seen: Box, virtual: bool) -> Iterator[Finding]:
    """Report that all siblings have equally few: certain where the board decides, not with bridges or in part of a
    board.
    """
    evidence = (seen.evidence, Evidence(product.source, text=f"{product.links} links"))
    alone, part = len(seen.gpus) < 2, virtual and len(seen.gpus) < _BASEBOARD
    if product.wiring == "board" and not part:
        yield fail(gpu.name, message, blame="link", action="repair", evidence=evidence)
    elif not gpu.up and not alone and product.wiring != "bridge":
        yield warn(gpu.name, message, blame="node", action="repair", evidence=evidence)
    elif gpu.up:
        yield note(gpu.name, message, evidence=evidence)


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value; of several, the largest."""
    return max(Counter(values).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]


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
    """An NVLink runs below its rate.

    Right: All NVLinks run at their rate.
    Why: NCCL takes the links of a GPU for equally fast, so the slow one holds up its channels.
    Fix: reset the GPUs (`nvidia-smi --gpu-reset`), or reboot; if the link stays slow, have the GPU, its baseboard or
    its bridge reseated.
    """
    seen = look(gpus, links, status)
    silent = {
        gpu.name: Absent("NVML does not report the speed of the links") for gpu in seen.gpus if None in gpu.speeds
    }
    told = [gpu for gpu in seen.gpus if gpu.name not in silent]
    for gpu in told:
        usual = _usual([round(speed) for other in seen.like(gpu) for speed in other.speeds if speed is not None])
        slow = {link: speed for link, speed in zip(gpu.up, gpu.speeds, strict=True) if speed and speed < 0.99 * usual}
        product = nvlink_products().get(gpu.product)
        if slow:
            worst = min(slow.values()) / 1000
            message = f"{_listed(tuple(slow))} at {worst:.5g} GB/s, the others at {usual / 1000:.5g}"
            yield fail(gpu.name, message, blame="link", action="repair", evidence=seen.evidence)
        elif product and gpu.up and usual < _ON_THE_WIRE * product.link_GBps * 1000:
            message = f"its links run at {usual / 1000:.5g} GB/s, {product.link_GBps:g} expected ({product.source})"
            yield warn(gpu.name, message, blame="node", action="repair", evidence=seen.evidence)
    unknown = {**seen.unknown, **silent}
    if unknown and not told:
        raise Unlearned("; ".join(dict.fromkeys(gap.why for gap in unknown.values())))
    yield from blanks(unknown, len(told) + len(unknown) + 1, seen.evidence)
