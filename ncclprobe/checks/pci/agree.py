"""Whether the PCI tree and the driver tell the same of the distances between devices."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.checks.gpu.peers import TREE, TWO
from ncclprobe.checks.pci import is_virtual
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.topo_matrix import Matrix, MatrixKind
from ncclprobe.model.findings import Finding, note, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.topology.paths import of_machine

_MEANS = {"PIX": "PCIe switch", "PXB": "PCIe switch", **dict.fromkeys(("PHB", "NODE", "SYS", "SOC"), "processor")}

METAL = Machine(virtual=False)
NO_LINKS = NvLinks(((), ()))


def printed(word: str, kind: MatrixKind = "topo-m") -> Matrix:
    """Return the matrix of two GPUs, for examples."""
    links = {"GPU0": {"GPU0": "X", "GPU1": word}, "GPU1": {"GPU0": word, "GPU1": "X"}}
    return Matrix(kind, ("GPU0", "GPU1"), (), links, ("", ""), ("", ""), ("", ""))


@check(
    bad=lambda: [(printed("SYS"), TREE, TWO, NO_LINKS, Fabric(), METAL)],
    good=lambda: [(printed("PIX"), TREE, TWO, NO_LINKS, Fabric(), METAL)],
    requires="nvl.links",
    applies=gpu_job,
)
def topology_agree(
    matrix: Matrix,
    pci: Pci,
    gpus: Gpus,
    links: NvLinks | Absent,
    fabric: Fabric | Absent,
    machine: Machine | Absent,
) -> Iterator[Finding]:
    """sysfs and nvidia-smi disagree about how two devices are connected.

    Right: sysfs and nvidia-smi agree about how devices are connected.
    Why: NCCL goes by sysfs and NVML, people and launchers by `nvidia-smi topo -m`; where the two differ, one of them is
    wrong, and processes get bound to the wrong NIC or processor, or NCCL passes by a near one.
    Fix: compare `lspci -tv` with `nvidia-smi topo -m` outside of any container or job, whose cgroup hides processors
    from nvidia-smi; then look at NCCL's own view (NCCL_TOPO_DUMP_FILE), which decides.
    """
    own = of_machine(
        pci,
        gpus,
        links if matrix.kind == "topo-m" else NvLinks(((),) * len(gpus.all)),
        fabric if isinstance(fabric, Fabric) else Fabric(),
    ).smi
    shared = _compared(matrix.links, own)
    if not shared and len(gpus.all) > 1:
        raise Unlearned("the PCI tree and nvidia-smi's matrix have no pair of devices in common")
    differing: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    lost = {f"GPU{gpu.index}" for gpu in gpus.all if gpu.lost}  # NVML does not tell their NVLinks
    for (one, other), (seen, said) in shared.items():
        if seen != said and one < other and not lost & {one, other}:
            differing[seen, said].append(f"{one} and {other}")
    for (seen, said), pairs in differing.items():
        message = f"{seen} by sysfs and NVML, {said} by nvidia-smi"
        more = f", and {len(pairs) - 1} pairs more" if len(pairs) > 1 else ""
        same = _means(seen) == _means(said)
        tell = note if same or is_virtual(machine) or isinstance(links, Absent) else warn
        yield tell(pairs[0] + more, message, action="retest", evidence=("/sys/bus/pci/devices", "nvidia-smi topo -m"))


def _compared(
    printed: Mapping[str, Mapping[str, str]], own: Mapping[tuple[str, str], str | None]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Each pair of which both sources know a word: the tree's, then nvidia-smi's."""
    words = {(one, other): word for one, row in printed.items() for other, word in row.items() if one != other}
    known = {pair: (own.get(pair), "SYS" if word == "SOC" else word) for pair, word in words.items()}  # its old name
    return {pair: (seen, said) for pair, (seen, said) in known.items() if seen is not None}


def _means(word: str) -> str:
    """Return what a word says is between two devices: two that say the same are no matter for NCCL."""
    return "NVLink" if word.startswith("NV") else _MEANS.get(word, word)
