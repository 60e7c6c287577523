"""How many GPUs and NICs each node has, how it is built inside, kernel options and limits."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from operator import and_
from typing import Any

from ncclprobe.checks import IMAGE, JOB, NODE, several
from ncclprobe.checks.env import evidence, loaded
from ncclprobe.checks.env.fixtures import PLAIN, PLAIN_HOST, fabric, gpus, hcas, nccl, port, setting
from ncclprobe.checks.gpu.state import CLOCK, FULL, PACED, POWER, box
from ncclprobe.checks.ib import meant
from ncclprobe.checks.ib.fixtures import pci
from ncclprobe.checks.majority import differing, kinds, named, several_with_gpus, split_by_kind, unlike
from ncclprobe.checks.sync import LIMITS_GROUP, MACHINE_GROUP
from ncclprobe.checks.sync.addresses import sockets
from ncclprobe.facts.cpu import Cpus, NumaNode
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Dmi, Machine, is_virtual
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.process import Memlock, SharedMemory
from ncclprobe.facts.software import Software, reaches
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.hcas import Selection, fast, select_by
from ncclprobe.nccl.networks import efa_ports
from ncclprobe.nccl.values import read_setting

_MEMORY_SPREAD = 1.1  # ECC takes up to a sixteenth of the memory of cards that keep it there

DGX = Machine(Dmi("NVIDIA", "DGXH100"))
DGXS: Every[Machine | Absent] = Every({f"n{i}": DGX for i in range(4)})
EIGHT, SEVEN = gpus(8), gpus(7)
H100S: Every[Gpus | Absent] = Every({f"n{i}": EIGHT for i in range(4)})
A100S = gpus(8, "NVIDIA A100-SXM4-80GB")


@check(
    group=MACHINE_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": EIGHT, "n1": EIGHT, "n2": EIGHT, "n3": SEVEN}), DGXS, Job())],
    good=lambda: [(Every({"n0": EIGHT, "n1": EIGHT, "n2": EIGHT, "n3": EIGHT}), DGXS, Job())],
    required=True,
    applies=several_with_gpus,
)
def gpu_count(gpus: Every[Gpus], machines: Every[Machine | Absent], job: Job) -> Iterator[Finding]:
    """Nodes of the same kind have different numbers of GPUs.

    Right: Nodes of the same kind have the same number of GPUs.
    Why: a launcher starts the same number of ranks on each node. If a node has lost a GPU, its last rank has none, and
    all others wait for it. In NVIDIA/aicr#1858, every nightly run failed for days because one of two VMs had only 7.
    Fix: compare the output of nvidia-smi -L with that of a healthy node. Reboot or drain the node with fewer GPUs. If
    the difference is intended, add --mixed-gpus.
    """
    counted = {node: len(each.all) for node, each in gpus.items()}  # also those that gpu.count says are lost
    for part in split_by_kind(counted, kinds(machines, Every(dict(gpus.items())))):
        ballot = vote(part)
        details: dict[str, Any] = {"tell": note, "after": " (--mixed-gpus)"}
        if not job.mixed_gpus:
            fewer = bool(ballot.outliers) and all(part[node] < ballot.usual for node in ballot.outliers)
            details = {"tell": fail, "blame": "node" if fewer else "unknown", "action": "repair"}
        yield from unlike(ballot, "{} GPUs".format, evidence="nvmlDeviceGetCount", **details)


@check(
    group=MACHINE_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": EIGHT, "n1": A100S}), Every({"n0": DGX, "n1": DGX}))],
    good=lambda: [(Every({"n0": EIGHT, "n1": Absent("no driver")}), Every({"n0": DGX, "n1": DGX}))],
    applies=several_with_gpus,
)
def machine_type(gpus: Every[Gpus | Absent], machines: Every[Machine | Absent]) -> Iterator[Finding]:
    """The nodes are different kinds of machine, or have different GPUs.

    Right: The nodes are machines of the same kind, with the same GPUs.
    Why: the slowest GPU sets the pace of every collective, NCCL tunes for the oldest (src/init.cc), and memory that is
    enough on one node is not enough on another. The other comparisons cover only machines of the same kind.
    Fix: unless the mixture is intended, request nodes of the same kind from the scheduler (--constraint, a node
    selector).
    """
    kind = kinds(machines, gpus)
    if not any(map(any, kind.values())):
        raise Unlearned("no node's machine type or GPUs are known")
    ballot = vote(kind)
    if not ballot.agreed:
        products = ("/sys/class/dmi/id", "nvmlDeviceGetName")
        yield from unlike(ballot, _kind_in_words, evidence=products, **JOB)
        return
    sizes = {node: _smallest(each) for node, each in gpus.items() if isinstance(each, Gpus) and _smallest(each)}
    if sizes and max(sizes.values()) > _MEMORY_SPREAD * min(sizes.values()):
        memory = vote({node: nbytes >> 30 for node, nbytes in sizes.items()})
        yield from unlike(memory, "{} GiB per GPU".format, evidence="nvmlDeviceGetMemoryInfo", **JOB)


def _kind_in_words(kind: tuple[str, str]) -> str:
    return ", ".join(filter(None, kind)) or "an unknown machine"


def _smallest(gpus: Gpus) -> int:
    """Return the memory of the smallest GPU in bytes, 0 if none is known."""
    return min((gpu.memory_bytes for gpu in gpus.all if isinstance(gpu.memory_bytes, int)), default=0)


Names = tuple[str, ...]
Slots = Mapping[str, str]
_MOST_NODES = 4
"""In a message."""


def usable(fabric: Fabric, settings: Settings, found: Interfaces, software: Software | Absent) -> Names:
    """Return what NCCL has for its network: ports of HCAs, otherwise a plugin's devices, otherwise interfaces."""
    if not read_setting(settings, "NCCL_IB_DISABLE", 0):
        if ports := fast(_selected(fabric, settings, software).taken):
            return tuple(sorted(port.name for port in ports))
        if foreign := tuple(sorted({port.device for port in efa_ports(fabric) if port.state != "DOWN"})):
            return foreign
    return tuple(each.name for each in sockets(found, settings, software))


def _selected(fabric: Fabric, settings: Settings, software: Software | Absent) -> Selection:
    return select_by(meant(fabric), settings, loaded(software))


def _idle(fabric: Fabric, settings: Settings, software: Software | Absent) -> Names:
    """Return ports that are present and selected, but not usable: another check has reported why."""
    found = _selected(fabric, settings, software)
    return tuple(port.name for port in (*found.down, *found.closed, *found.unknown))


_DOWN = fabric(*(port(f"mlx5_{n}", state="DOWN" if n == 3 else "ACTIVE") for n in range(8)))
FABRICS = {f"n{i}": hcas(8) for i in range(4)}
SETTINGS, HOSTS = Every({f"n{i}": PLAIN for i in range(4)}), Every({f"n{i}": PLAIN_HOST for i in range(4)})
ANY: Every[Software | Absent] = Every({})


@check(
    group=MACHINE_GROUP,
    slows=True,
    bad=lambda: [(Every({**FABRICS, "n3": _DOWN}), SETTINGS, HOSTS, ANY, DGXS, H100S)],
    good=lambda: [(Every(FABRICS), SETTINGS, HOSTS, ANY, DGXS, H100S)],
    required=True,
    applies=several_with_gpus,
)
def nic_count(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    interfaces: Every[Interfaces],
    software: Every[Software | Absent],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """Nodes of the same kind have different numbers of NICs that NCCL can use.

    Right: Nodes of the same kind have the same number of NICs that NCCL can use.
    Why: ranks plan their channels over the NICs of all nodes. If a node has fewer, NCCL before 2.30.3 fails to start.
    Since 2.30.3 it continues by default without a message (NCCL_IGNORE_NET_MISMATCH, src/init.cc:131), and is slower or
    hangs (nccl#2428).
    Fix: compare the output of ibstat and ip -br link with that of a healthy node. Look for a NIC that fell off the bus,
    a port that is down, or a different NCCL_IB_HCA.
    """
    found = network(fabrics, settings, interfaces, software)
    for part in split_by_kind(found, kinds(machines, gpus)):
        ballot = vote({node: len(names) for node, names in part.items()})
        if ballot.agreed:
            continue
        outliers = ballot.outliers
        known: Software | Absent = Absent("not asked")
        idle = {
            node: _idle(fabrics.by_node[node], settings.by_node[node], software.by_node.get(node, known))
            for node in outliers or part
        }
        yield _uneven(part, idle, outliers, {node: _slots(fabrics.by_node[node]) for node in part})


def network(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    interfaces: Every[Interfaces],
    software: Every[Software | Absent],
) -> dict[str, Names]:
    """Return `usable` of every node with known facts. Raises Unlearned if no node has them."""
    every = fabrics.by_node.keys() & settings.by_node.keys() & interfaces.by_node.keys()
    known: Software | Absent = Absent("not asked")
    found = {
        node: usable(fabric, settings.by_node[node], interfaces.by_node[node], software.by_node.get(node, known))
        for node, fabric in fabrics.items()
        if node in every
    }
    if not found:
        raise Unlearned("no node's NICs, interfaces and settings are all known")
    return found


def _nics(count: int) -> str:
    return plural(count, "NIC")


def _uneven(
    part: Mapping[str, Names], idle: Mapping[str, Names], outliers: Names, slots: Mapping[str, Slots]
) -> Finding:
    ballot = vote({node: len(names) for node, names in part.items()})
    told = differing(ballot, _nics)
    message = told["message"] + _lacking(part, outliers, slots)
    evidence = ("/sys/class/infiniband", "/sys/class/net", "what NCCL_IB_HCA or NCCL_SOCKET_IFNAME selects")
    usual = ballot.usual if outliers else max(map(len, part.values()))
    short = outliers or tuple(node for node, names in part.items() if len(names) < usual)  # of two nodes the poorer one
    fewer = all(len(part[node]) < usual for node in short)
    if fewer and all(len(part[node]) + len(idle[node]) >= usual for node in short):
        asleep = "; ".join(f"{node}: {', '.join(idle[node])}" for node in short[:_MOST_NODES])
        message += f"; present but not usable: {asleep} (see the findings on these ports)"
        told |= {"message": message, "nodes": short}
        return warn(named(short), blame="link", action="repair", evidence=evidence, **told)
    told["message"] = message
    if fewer and outliers:
        return fail(named(outliers), **NODE, evidence=evidence, **told)
    tell = warn if ballot.settled else fail
    return tell(named(outliers), blame="unknown", action="repair", evidence=evidence, **told)


def _lacking(part: Mapping[str, Names], outliers: Names, slots: Mapping[str, Slots]) -> str:
    """Name what most nodes have and the first outlier lacks; without a majority, what each lacks of the fullest."""
    full = next((node for node in part if outliers and node not in outliers), max(part, key=lambda n: len(part[n])))
    fewer = outliers[:1] or [node for node, names in part.items() if len(names) < len(part[full])][:_MOST_NODES]
    gone = {node: _gone(part[full], slots.get(full, {}), part[node], slots.get(node, {})) for node in fewer}
    return "".join(f"; {node} has no {', '.join(names)}" for node, names in gone.items() if names)


def _gone(most: Names, theirs: Slots, mine: Names, own: Slots) -> list[str]:
    """Return those of `most` that are not among `mine`, by slot: a NIC that is gone hands its name to the next one."""
    filled = {own.get(name, name) for name in mine}
    gone = sorted(name for name in most if theirs.get(name, name) not in filled)
    return gone if len(gone) == len(most) - len(mine) else sorted(set(most) - set(mine))


def _slots(fabric: Fabric) -> Slots:
    """Return the PCI addresses of devices, by their names and those of their ports."""
    known = {device.name: device.pci for device in fabric.devices if isinstance(device.pci, str)}
    return known | {port.name: known[port.device] for port in fabric.ports if port.device in known}


MIB, GIB = 1 << 20, 1 << 30
_ENOUGH_TO_LOCK, _ENOUGH_TO_SHARE = 16 * GIB, GIB  # as host.limits and host.shm see it


class _Shape(Struct, frozen=True):
    """How a node is built: processors of each NUMA node, and per root bus what is on it, without any address."""

    numa: tuple[int, ...]
    roots: tuple[tuple[str, ...], ...]


def cpus_of(*sizes: int) -> Cpus:
    nodes = (NumaNode(i, tuple(range(count)), (10,) * len(sizes)) for i, count in enumerate(sizes))
    return Cpus(tuple(range(sum(sizes))), "", tuple(nodes))


TREES, MOVED = {f"n{i}": pci() for i in range(3)}, pci(far=(3,))
TWO_SOCKETS = Every({f"n{i}": cpus_of(56, 56) for i in range(4)})


@check(
    group=MACHINE_GROUP,
    slows=True,
    bad=lambda: [(Every({**TREES, "n3": MOVED}), TWO_SOCKETS, DGXS, H100S)],
    good=lambda: [(Every({**TREES, "n3": pci()}), TWO_SOCKETS, DGXS, H100S)],
    requires="sync.machine/gpu-count",
    applies=several_with_gpus,
)
def topology(
    trees: Every[Pci], cpus: Every[Cpus], machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]
) -> Iterator[Finding]:
    """Nodes of the same kind differ in their NUMA nodes, or in the positions of GPUs and NICs.

    Right: Nodes of the same kind have the same NUMA nodes, with GPUs and NICs in the same positions.
    Why: NCCL plans its rings and trees on each node separately, and all nodes then use the slowest plan. If the
    firmware of one node splits its sockets differently (NPS, SNC), or one card is in another slot, every node loses
    channels.
    Fix: compare the firmware settings and the output of lspci -tv with those of a healthy node.
    """
    # Of nodes that have more or fewer devices than others, the counts have something to say.
    counted = {node: (len(tree.of("gpu")), len(tree.of("nic"))) for node, tree in trees.items()}
    devices = {node: each for node, each in counted.items() if node in cpus.by_node}
    kind = kinds(machines, gpus)
    shapes = {node: _shape(trees.by_node[node], cpus.by_node[node]) for node in devices}
    for part in split_by_kind(shapes, {node: (kind.get(node), devices[node]) for node in devices}):
        # The tree of a virtual machine is what its hypervisor shows.
        tell = note if any(is_virtual(machines.by_node.get(node)) for node in part) else warn
        numa = vote({node: shape.numa for node, shape in part.items()})
        placed = vote({node: shape.roots for node, shape in part.items()})
        more: dict[str, Any] = {"tell": tell, "action": "repair"}
        more |= {"evidence": ("/sys/devices/system/node", "/sys/bus/pci/devices")}
        if not numa.agreed:
            yield from unlike(numa, lambda sizes: f"{len(sizes)} NUMA nodes with {_listed(sizes)} CPUs", **more)
        elif not placed.agreed:
            yield from unlike(placed, partial(_own_roots, reduce(and_, map(Counter, placed.groups))), **more)


def _shape(tree: Pci, cpus: Cpus) -> _Shape:
    roots: dict[str, list[str]] = {}
    for device in (*tree.of("gpu"), *tree.of("nic")):
        if not isinstance(device.place, Absent):
            levels = len(device.place.switches)
            where = f"behind {levels} switch{'' if levels == 1 else 'es'} on" if levels else "directly on"
            what = f"a {str(device.identity.kind).upper()} {where} NUMA node {device.numa_node}"
            roots.setdefault(device.place.root, []).append(what)
    numa = tuple(len(node.cpus) for node in cpus.numa)
    return _Shape(numa, tuple(sorted(tuple(sorted(here)) for here in roots.values())))


def _listed(sizes: tuple[int, ...]) -> str:
    return " and ".join(str(count) for count in sorted(set(sizes)))


def _own_roots(common: Counter[tuple[str, ...]], roots: tuple[tuple[str, ...], ...]) -> str:
    """Return the root buses that not every node has."""
    own = Counter(roots) - common
    shown = [f"{plural(times, 'PCIe root')} with {' and '.join(what)}" for what, times in own.items()]
    return ", ".join(shown[:3]) or "no such PCIe root"


ROOMY = SharedMemory(64 * GIB, 60 * GIB)
FREE, FEW = Memlock(None), Memlock(8 * MIB)
ALL_ROOMY: Every[SharedMemory | Absent] = Every({f"n{i}": ROOMY for i in range(4)})
ALL_FREE: Every[Memlock | Absent] = Every({f"n{i}": FREE for i in range(4)})


@check(
    group=LIMITS_GROUP,
    bad=lambda: [(Every({**ALL_FREE.by_node, "n3": FEW}), ALL_ROOMY)],
    good=lambda: [(Every({**ALL_FREE.by_node, "n3": Memlock(8 * MIB, exempt=True)}), ALL_ROOMY)],
    applies=several,
)
def limits(locked: Every[Memlock | Absent], shared: Every[SharedMemory | Absent]) -> Iterator[Finding]:
    """A node lets processes lock or share less memory than the others do.

    Right: All nodes let processes lock and share enough memory.
    Why: a job that runs on most nodes then fails only on this one: ibv_reg_mr fails with "Cannot allocate memory", or
    there is a bus error in /dev/shm. Usually slurmd was started by hand, or a container without --shm-size.
    Fix: set LimitMEMLOCK=infinity for slurmd or containerd, or --ulimit memlock=-1 and --shm-size for docker, as on the
    other nodes.
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
    # To a power of two: nodes with nearly as much are one group.
    ballot = vote({node: 1 << max(nbytes.bit_length() - 1, 0) for node, nbytes in values.items()})
    told = differing(
        ballot, lambda nbytes: "unlimited" if nbytes >= _UNLIMITED else f"about {size(nbytes)}", f"{subject}:"
    )
    low = tuple(node for node in short if values[node] < enough)
    told["nodes"] = (low or short) if ballot.settled else ()
    yield (warn if low else note)(subject, evidence=evidence, **told, **IMAGE)


_SLOW = box(*(replace(FULL, power_limit_W=500) for _ in range(3)))


@check(
    group=LIMITS_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": PACED, "n1": PACED, "n2": _SLOW}),)],
    good=lambda: [(Every({"n0": PACED, "n1": PACED}),)],
    requires="sync.machine/gpu-count",
    applies=several_with_gpus,
)
def gpu_limits(gpus: Every[Gpus]) -> Iterator[Finding]:
    """GPUs of the same model have different power limits or clocks on some nodes.

    Right: GPUs of the same model have the same power limits and clocks on all nodes.
    Why: all ranks wait for the slowest GPU. If all GPUs of a node have the same low limit, the node looks healthy by
    itself.
    Fix: on the nodes that the finding names, run as root `nvidia-smi -pl WATTS` with the other nodes' limit, and
    `nvidia-smi -rac`. Look for the script, or the rack's power manager, that sets the limits.
    """
    for model in sorted({gpu.name for _, each in gpus.items() for gpu in each.all if gpu.name}):
        for field, what, source in (
            ("power_limit_W", "power limit {} W", POWER),
            ("clock_MHz", "maximum clock {} MHz", CLOCK),
        ):
            rates = {node: _most(each, model, field) for node, each in gpus.items()}
            ballot = vote({node: rate for node, rate in rates.items() if rate})
            yield from unlike(ballot, what.format, before=f"{model}: ", evidence=source, **IMAGE)


def _most(gpus: Gpus, model: str, field: str) -> int:
    """Return the most that a GPU of `model` may do on a node; single GPUs have a check of their own. 0: unknown."""
    known = [getattr(gpu, field) for gpu in gpus.all if gpu.name == model]
    return max((value for value in known if isinstance(value, int)), default=0)


_IGNORES = "NCCL_IGNORE_NET_MISMATCH"
_IGNORES_SINCE = (2, 30, 3)

NEWEST: Every[Software | Absent] = Every(dict.fromkeys(("n0", "n1"), nccl(2, 30, 7)))
PLAINS, _LOUD = Every(dict.fromkeys(("n0", "n1"), PLAIN)), Every(dict.fromkeys(("n0", "n1"), setting(_IGNORES, "0")))
TWO_HOSTS, UNLIKE = Every(dict.fromkeys(("n0", "n1"), PLAIN_HOST)), Every({"n0": hcas(8), "n1": hcas(7)})


@check(
    group=MACHINE_GROUP,
    bad=lambda: [(UNLIKE, PLAINS, TWO_HOSTS, NEWEST, DGXS, H100S)],
    good=lambda: [(UNLIKE, _LOUD, TWO_HOSTS, NEWEST, DGXS, H100S)],
    applies=several_with_gpus,
)
def ignore_net_mismatch(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    interfaces: Every[Interfaces],
    software: Every[Software | Absent],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """Nodes have different numbers of NICs, but NCCL is set to ignore it.

    Right: Nodes have equal numbers of NICs, or NCCL reports the difference.
    Why: since 2.30.3 NCCL accepts a difference by default (src/init.cc:131, v2.30.7) and logs it only at INFO. Such
    jobs have hung with all GPUs busy (nccl#2428).
    Fix: until the node is repaired, set NCCL_IGNORE_NET_MISMATCH=0, so that the job fails at startup instead of
    hanging.
    """
    counts = {node: len(names) for node, names in network(fabrics, settings, interfaces, software).items()}
    silent = {
        node: each
        for node, each in settings.items()
        if _knows(software.by_node.get(node)) and read_setting(each, _IGNORES, 1, loaded(software.by_node[node]))
    }
    for part in split_by_kind(counts, kinds(machines, gpus)) if silent else ():
        shown = evidence(next(iter(silent.values())), _IGNORES) or f"{_IGNORES} is not set: 1 by default"
        more = {"before": "lets NCCL start without a message: ", "evidence": shown, **JOB}
        yield from unlike(vote(part), _nics, "NCCL starts without a message:", subject=_IGNORES, **more)


def _knows(software: Software | Absent | None) -> bool:
    """Return whether the NCCL of a node has the variable. One whose version is not known is not accused."""
    version = software.nccl_version if isinstance(software, Software) else None
    return version is not None and reaches(version, _IGNORES_SINCE)
