"""Kernel options, limits, and how each node is built inside."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial, reduce
from operator import and_

from ncclprobe.checks import several
from ncclprobe.checks.gpu.pace import CLOCK, FULL, PACED, POWER
from ncclprobe.checks.gpu.state import box
from ncclprobe.checks.ib.fixtures import pci
from ncclprobe.checks.sync import describe, kinds, named, of_one_kind, several_with_gpus
from ncclprobe.checks.sync.counts import DGXS, H100S
from ncclprobe.errors import Unlearned
from ncclprobe.facts.cpu import Cpus, NumaNode
from ncclprobe.facts.limits import Memlock, SharedMemory
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.system import CMDLINE, KernelOptions
from ncclprobe.model.findings import Finding, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import Struct, replace
from ncclprobe.units import size

MIB, GIB = 1 << 20, 1 << 30
_ENOUGH_TO_LOCK, _ENOUGH_TO_SHARE = 16 * GIB, GIB  # as host.memlock and host.shm see it

_PASSTHROUGH, _PLAIN = KernelOptions(("intel_iommu=on", "iommu=pt")), KernelOptions(("intel_iommu=on",))


@check(
    slows=True,
    bad=lambda: [(Every({"n0": _PASSTHROUGH, "n1": _PASSTHROUGH, "n2": _PLAIN}), DGXS, H100S)],
    good=lambda: [(Every({"n0": _PASSTHROUGH, "n1": _PASSTHROUGH}), DGXS, H100S)],
    applies=several_with_gpus,
)
def kernel_cmdline(
    options: Every[KernelOptions], machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]
) -> Iterator[Finding]:
    """Nodes of one kind were booted with different options about IOMMU or PCI.

    Right: Nodes of one kind were booted with the same options about IOMMU and PCI.
    Why: an IOMMU that translates sends GPUDirect through the processor, and PCI options move or shrink the windows onto
    GPU memory; the one node that was installed otherwise is then slow, or hangs in P2P (nccl#257).
    Fix: use the same kernel command line on all nodes (grubby --info=ALL, /etc/default/grub), and reboot.
    """
    values = {node: each.devices for node, each in options.items()}
    for part in of_one_kind(values, kinds(machines, gpus)):
        ballot = vote(part)
        if not ballot.agreed:
            outliers = ballot.outliers
            message = describe(ballot, partial(_besides, set.intersection(*map(set, part.values()))))
            blamed = {"blame": "image", "action": "fix-image"}
            yield warn("kernel command line", message, nodes=outliers, evidence=CMDLINE, **blamed)


def _besides(common: Collection[str], words: Sequence[str]) -> str:
    return " ".join(word for word in words if word not in common) or "without"


class _Shape(Struct, frozen=True):
    """How a node is built: processors of each NUMA node, and per root bus what is on it, without any address."""

    numa: tuple[int, ...]
    roots: tuple[tuple[str, ...], ...]


def _cpus(*sizes: int) -> Cpus:
    nodes = (NumaNode(i, tuple(range(count)), (10,) * len(sizes)) for i, count in enumerate(sizes))
    return Cpus(tuple(range(sum(sizes))), "", tuple(nodes))


_TREES, _MOVED = {f"n{i}": pci() for i in range(3)}, pci(far=(3,))
_TWO_SOCKETS = Every({f"n{i}": _cpus(56, 56) for i in range(4)})


@check(
    slows=True,
    bad=lambda: [(Every({**_TREES, "n3": _MOVED}), _TWO_SOCKETS, DGXS, H100S)],
    good=lambda: [(Every({**_TREES, "n3": pci()}), _TWO_SOCKETS, DGXS, H100S)],
    requires="sync.gpu-count",
    applies=several_with_gpus,
)
def topology(
    trees: Every[Pci], cpus: Every[Cpus], machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]
) -> Iterator[Finding]:
    """Nodes of one kind have different NUMA nodes, or their GPUs and NICs in other places.

    Right: Nodes of one kind have the same NUMA nodes, with GPUs and NICs in the same places.
    Why: NCCL searches its rings and trees on each node by itself, and all nodes then take the slowest: one firmware
    that splits its sockets otherwise (NPS, SNC), or one card in another slot, costs every node channels.
    Fix: compare the firmware's settings and lspci -tv with a healthy neighbour's.
    """
    # Of nodes that have more or fewer devices than others, the counts have something to say.
    devices = {node: _devices(tree) for node, tree in trees.items() if node in cpus.by_node}
    kind = kinds(machines, gpus)
    shapes = {node: _shape(trees.by_node[node], cpus.by_node[node]) for node in devices}
    for part in of_one_kind(shapes, {node: (kind.get(node), devices[node]) for node in devices}):
        # The tree of a virtual machine is what its hypervisor shows.
        tell = note if any(_virtual(machines.by_node.get(node)) for node in part) else warn
        numa = vote({node: shape.numa for node, shape in part.items()})
        placed = vote({node: shape.roots for node, shape in part.items()})
        seen = ("/sys/devices/system/node", "/sys/bus/pci/devices")
        if not numa.agreed:
            outliers = numa.outliers
            message = describe(numa, lambda sizes: f"{len(sizes)} NUMA nodes of {_listed(sizes)} processors")
            yield tell(named(outliers), message, action="repair", nodes=outliers, evidence=seen)
        elif not placed.agreed:
            outliers = placed.outliers
            message = describe(placed, partial(_unlike, reduce(and_, map(Counter, placed.groups))))
            yield tell(named(outliers), message, action="repair", nodes=outliers, evidence=seen)


def _virtual(machine: Machine | Absent | None) -> bool:
    return isinstance(machine, Machine) and machine.virtual is True


def _devices(tree: Pci) -> tuple[int, int]:
    return len(tree.of("gpu")), len(tree.of("nic"))


def _shape(tree: Pci, cpus: Cpus) -> _Shape:
    roots: dict[str, list[str]] = {}
    for device in (*tree.of("gpu"), *tree.of("nic")):
        if not isinstance(device.place, Absent):
            levels = len(device.place.switches)
            where = f"{levels} switch{'' if levels == 1 else 'es'} below NUMA node {device.numa_node}"
            what = f"{device.identity.kind} {where}"
            roots.setdefault(device.place.root, []).append(what)
    numa = tuple(len(node.cpus) for node in cpus.numa)
    return _Shape(numa, tuple(sorted(tuple(sorted(here)) for here in roots.values())))


def _listed(sizes: tuple[int, ...]) -> str:
    return " and ".join(str(count) for count in sorted(set(sizes)))


def _unlike(common: Counter[tuple[str, ...]], roots: tuple[tuple[str, ...], ...]) -> str:
    """Return the root buses that not every node has."""
    own = Counter(roots) - common
    shown = [f"{times} x {' with '.join(what)}" for what, times in own.items()]
    return ", ".join(shown[:3]) or "without"


_ROOMY = SharedMemory(64 * GIB, 60 * GIB)
_FREE, _FEW = Memlock(None), Memlock(8 * MIB)
_ALL_ROOMY: Every[SharedMemory | Absent] = Every({f"n{i}": _ROOMY for i in range(4)})
_ALL_FREE: Every[Memlock | Absent] = Every({f"n{i}": _FREE for i in range(4)})


@check(
    bad=lambda: [(Every({**_ALL_FREE.by_node, "n3": _FEW}), _ALL_ROOMY)],
    good=lambda: [(Every({**_ALL_FREE.by_node, "n3": Memlock(8 * MIB, exempt=True)}), _ALL_ROOMY)],
    applies=several,
)
def limits(locked: Every[Memlock | Absent], shared: Every[SharedMemory | Absent]) -> Iterator[Finding]:
    """A node lets its processes lock or share less memory than the others do.

    Right: All nodes let their processes lock and share enough memory.
    Why: a job that runs on most nodes then fails on this one alone: ibv_reg_mr with "Cannot allocate memory", or a bus
    error in /dev/shm. slurmd started by hand, or a container without --shm-size, are the usual reasons.
    Fix: LimitMEMLOCK=infinity for slurmd or containerd, --ulimit memlock=-1 and --shm-size for docker, as on the other
    nodes.
    """
    may_lock = {node: _lockable(each) for node, each in locked.items() if isinstance(each, Memlock)}
    may_share = {node: each.total_bytes for node, each in shared.items() if isinstance(each, SharedMemory)}
    found = [
        *_scarce("RLIMIT_MEMLOCK", may_lock, _ENOUGH_TO_LOCK, "getrlimit(RLIMIT_MEMLOCK)"),
        *_scarce("/dev/shm", may_share, _ENOUGH_TO_SHARE, "statvfs /dev/shm"),
    ]
    yield from found
    unknown = {node for node, each in (*locked.items(), *shared.items()) if isinstance(each, Absent)}
    if unknown and not found:
        raise Unlearned(f"the limits of {named(unknown)} are not known")


_UNLIMITED = 1 << 63


def _lockable(memlock: Memlock) -> int:
    return _UNLIMITED if memlock.exempt or memlock.soft_bytes is None else min(memlock.soft_bytes, _UNLIMITED)


def _scarce(subject: str, values: dict[str, int], enough: int, evidence: str) -> Iterator[Finding]:
    """Yield nodes with less than `enough`, and less than half of what others have."""
    most = max(values.values(), default=0)
    short = tuple(node for node, nbytes in values.items() if 2 * nbytes < most)
    if not short:
        return
    ballot = vote({node: _rounded(nbytes) for node, nbytes in values.items()})
    message = describe(ballot, lambda nbytes: "unlimited" if nbytes >= _UNLIMITED else f"about {size(nbytes)}")
    blamed = {"blame": "image", "action": "fix-image"}
    low = tuple(node for node in short if values[node] < enough)
    if low:
        yield warn(subject, message, nodes=low if ballot.settled else (), evidence=evidence, **blamed)
    else:
        yield note(subject, message, nodes=short if ballot.settled else (), evidence=evidence, **blamed)


def _rounded(nbytes: int) -> int:
    """To a power of two, so that nodes with nearly as much are one group."""
    return 1 << max(nbytes.bit_length() - 1, 0)


_SLOW = box(*(replace(FULL, power_limit_W=500) for _ in range(3)))


@check(
    slows=True,
    since="0.2",
    bad=lambda: [(Every({"n0": PACED, "n1": PACED, "n2": _SLOW}),)],
    good=lambda: [(Every({"n0": PACED, "n1": PACED}),)],
    requires="sync.gpu-count",
    applies=several_with_gpus,
)
def gpu_limits(gpus: Every[Gpus]) -> Iterator[Finding]:
    """GPUs of one model have other power limits or clocks on some nodes.

    Right: GPUs of one model have the same power limits and clocks on all nodes.
    Why: all ranks wait for the slowest GPU; a node whose GPUs all have the same limit looks healthy by itself.
    Fix: on the nodes named: `nvidia-smi -pl WATTS` with the other nodes' limit, `nvidia-smi -rac`, as root; look for
    the script, or the power manager of the rack, that sets them.
    """
    for model in sorted({gpu.name for _, each in gpus.items() for gpu in each.all if gpu.name}):
        for field, what, source in (("power_limit_W", "{} W", POWER), ("clock_MHz", "{} MHz", CLOCK)):
            rates = {node: _most(each, model, field) for node, each in gpus.items()}
            ballot = vote({node: rate for node, rate in rates.items() if rate})
            if not ballot.agreed:
                outliers = ballot.outliers
                message = f"{model}: {describe(ballot, what.format)}"
                yield warn(named(outliers), message, nodes=outliers, blame="image", action="fix-image",
                           evidence=source)  # fmt: skip


def _most(gpus: Gpus, model: str, field: str) -> int:
    """Return the most that a GPU of `model` may do on a node; what single ones lack is told of these. 0: not known."""
    known = [getattr(gpu, field) for gpu in gpus.all if gpu.name == model]
    return max((value for value in known if isinstance(value, int)), default=0)
