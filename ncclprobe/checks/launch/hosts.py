"""Nodes that are one machine, machines that look like one, and ranks that share what each needs for itself."""

from collections.abc import Iterable, Iterator, Mapping

from ncclprobe.checks import several
from ncclprobe.checks.env.fixtures import PLAIN, gpus
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.own_gpus import OwnGpus
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.system import System
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.nccl.values import read_setting


def _node(hostname: str, boot_id: str | None) -> System:
    return System(hostname, "6.8.0", "x86_64", "Ubuntu 22.04", boot_id)


_APART = Every({"n0": _node("n0", "a"), "n1": _node("n1", "b")})


@applies
def several_ranks(processes: Ranks[RankProcess], job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), where several ranks reported."""
    return job.backend == "nccl" and len(list(processes.items())) > 1


@check(
    bad=lambda: [(Every({"n0": _node("gpu", "a"), "n1": _node("gpu", "a")}),)],
    good=lambda: [(Every({"n0": _node("gpu", "a"), "n1": _node("gpu", "b")}),)],
    applies=several,
)
def hostname_unique(systems: Every[System]) -> Iterator[Finding]:
    """Nodes of the job are one machine, or have one host name.

    Right: Every node of the job is a machine with a host name of its own.
    Why: NCCL tells machines apart by host name and boot id (src/misc/utils.cc:117). Two agents started on one machine
    share its GPUs and NICs; virtual machines cloned with a boot id are one to NCCL, which then tries shared memory
    between them (nccl-tests#64).
    Fix: start one agent per machine (check the host file or --nodes); give containers that are meant to be separate
    nodes an NCCL_HOSTID each.
    """
    machines: dict[str, list[str]] = {}
    hostnames: dict[str, list[str]] = {}
    for node, system in systems.items():
        hostnames.setdefault(system.hostname, []).append(node)
        if system.boot_id:
            machines.setdefault(system.boot_id, []).append(node)
    seen = ("uname(2)", "/proc/sys/kernel/random/boot_id")
    for nodes in machines.values():
        names = {systems.by_node[node].hostname for node in nodes}
        if len(nodes) > len(names):  # some of them share both
            message = f"have one boot id and the host name {', '.join(sorted(names)[:3])}: they are one machine to NCCL"
            yield warn(fold(nodes), message, blame="job", action="fix-job", nodes=tuple(nodes), evidence=seen)
        elif len(nodes) > 1:
            message = "run on one machine under different names: NCCL goes over the network between them"
            yield note(fold(nodes), message, evidence=seen)
    for name, nodes in hostnames.items():
        if len({systems.by_node[node].boot_id for node in nodes}) > 1:
            yield note(name, f"is the host name of {len(nodes)} machines: {fold(nodes)}", evidence=seen)


def _process(local_rank: int, shm: int = 26, ipc: int = 39, visible: tuple[str, ...] | None = None) -> RankProcess:
    return RankProcess(local_rank, 2, visible, None, (0, 1), {"ipc": ipc, "mnt": 32}, shm)


@check(
    slows=True,
    bad=lambda: [(Ranks({"n0": {0: _process(0), 1: _process(1, shm=44, ipc=77)}}), _APART)],
    good=lambda: [(Ranks({"n0": {0: _process(0)}, "n1": {1: _process(0, shm=44)}}), _APART)],
    requires="sync.hostid",
    applies=several_ranks,
)
def container_split(processes: Ranks[RankProcess], systems: Every[System | Absent]) -> Iterator[Finding]:
    """Ranks of one machine are in containers that do not share memory.

    Right: All ranks of a machine share memory.
    Why: they have one identity to NCCL, which checks /dev/shm alone before it tries shared memory and CUDA IPC between
    them; across IPC or mount namespaces these fail or crash (nccl#324).
    Fix: run all ranks of a machine in one container, or give all containers --ipc=host, or each its own NCCL_HOSTID.
    """
    here: dict[str, dict[int, RankProcess]] = {}
    on: dict[str, set[str]] = {}
    for node, rank, process in processes.items():
        if isinstance(process, RankProcess):
            identity = _identity(node, process, systems.by_node.get(node))
            here.setdefault(identity, {})[rank] = process
            on.setdefault(identity, set()).add(node)
    for identity, ranks in here.items():
        split = [what for what, numbers in _surroundings(ranks).items() if len(numbers) > 1]
        if split:
            message = f"are on one machine and do not share {' and '.join(split)}"
            nodes = tuple(sorted(on[identity]))
            seen = ("/proc/self/ns", "st_dev of /dev/shm")
            yield warn(_listed(ranks), message, blame="job", action="fix-job", nodes=nodes, evidence=seen)


def _identity(node: str, process: RankProcess, system: System | Absent | None) -> str:
    """Return what tells machines apart for NCCL; where the boot id is not known, the node."""
    if process.host_id:
        return process.host_id
    return f"{system.hostname} {system.boot_id}" if isinstance(system, System) and system.boot_id else node


def _surroundings(ranks: dict[int, RankProcess]) -> dict[str, set[int]]:
    """Return IPC namespaces and /dev/shm of the ranks, as far as they are known."""
    found: dict[str, set[int]] = {"their IPC namespace": set(), "/dev/shm": set()}
    for process in ranks.values():
        for what, inode in zip(found, (process.namespaces.get("ipc"), process.shm_device), strict=True):
            if isinstance(inode, int):
                found[what].add(inode)
    return found


def _listed(ranks: Iterable[int]) -> str:
    """Return ``rank 5``, ``ranks 0-3,7``."""
    text = fold(map(str, ranks)).strip("[]")
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


_EIGHT: Every[Gpus | Absent] = Every({"n0": gpus(8), "n1": gpus(8)})
_PLAIN: Every[Settings | Absent] = Every({"n0": PLAIN})


_UNASKED: Ranks[OwnGpus | Absent] = Ranks({"n0": {}})


def _two(one: RankProcess, other: RankProcess) -> Ranks[RankProcess]:
    return Ranks({"n0": {0: one, 1: other}})


@check(
    bad=lambda: [(_two(_process(0), _process(0)), _EIGHT, _PLAIN, _UNASKED)],
    good=lambda: [(_two(_process(0), _process(1)), _EIGHT, _PLAIN, _UNASKED)],
    applies=several_ranks,
)
def dup_gpu(
    processes: Ranks[RankProcess],
    gpus: Every[Gpus | Absent],
    settings: Every[Settings | Absent],
    own: Ranks[OwnGpus | Absent],
) -> Iterator[Finding]:
    """Two ranks would use the same GPU.

    Right: Every rank has a GPU of its own.
    Why: NCCL ends its start with "Duplicate GPU detected" (src/init.cc:1050), unless NCCL_MULTI_RANK_GPU_ENABLE is set.
    A rank takes the visible device of its local rank, or the only one that it sees.
    Fix: start one rank per GPU: --nproc-per-node=gpu, srun --gpus-per-task=1, torch.cuda.set_device(LOCAL_RANK).
    """
    users: dict[str, list[tuple[str, int]]] = {}
    for node, rank, process in processes.items():
        known, given = gpus.by_node.get(node), settings.by_node.get(node)
        allowed = isinstance(given, Settings) and read_setting(given, "NCCL_MULTI_RANK_GPU_ENABLE", 0) != 0
        ours = {gpu.index: gpu.uuid for gpu in known.all} if isinstance(known, Gpus) else {}
        # Fewer GPUs than ranks: each rank may be confined to one of its own, and calls it 0 (Slurm, ConstrainDevices).
        names = ours if len(ours) >= len(processes.by_node[node]) else {}
        seen_alone = own.by_node.get(node, {}).get(rank)
        if isinstance(seen_alone, OwnGpus):
            names = dict(enumerate(seen_alone.uuids))
        if isinstance(process, RankProcess) and not allowed and (gpu := _gpu(process, names)):
            users.setdefault(gpu, []).append((node, rank))
    for gpu, ranks in users.items():
        if len(ranks) > 1:
            nodes = tuple(dict.fromkeys(node for node, _ in ranks))
            message = f"would be used by {_listed(rank for _, rank in ranks)} of {fold(nodes)}"
            seen = "LOCAL_RANK and CUDA_VISIBLE_DEVICES of each rank"
            yield fail(gpu, message, blame="job", action="fix-job", nodes=nodes, evidence=seen)


def _gpu(process: RankProcess, uuids: Mapping[int, str]) -> str:
    """Return the UUID of the GPU that a rank would use, given those that numbers stand for; empty where nothing tells
    it.
    """
    if process.local_rank is None:
        return ""
    listed = process.visible
    if listed is not None and process.local_rank >= len(listed) != 1:
        return ""  # env.visible's business
    if listed is None:
        entry = "0" if len(uuids) == 1 else str(process.local_rank)
    else:
        entry = listed[0] if len(listed) == 1 else listed[process.local_rank]
    if entry.isdecimal():
        return uuids.get(int(entry), "")
    return next((uuid for uuid in uuids.values() if uuid.startswith(entry)), entry)  # CUDA takes a beginning
