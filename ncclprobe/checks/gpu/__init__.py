"""The GPUs and their driver, as they are found before a job starts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nvml import Gpu, Gpus, unsupported
from ncclprobe.facts.pci import normal
from ncclprobe.model.findings import UNSEEN, Finding, Sources, note
from ncclprobe.model.registry import CheckGroup, applies
from ncclprobe.model.snapshot import Absent, Job, unlearned

ERRORS_GROUP = CheckGroup("errors", "The driver or a GPU has counted errors")
MODE_GROUP = CheckGroup("mode", "A GPU is not in the mode that a job needs")
CLOCKS_GROUP = CheckGroup("clocks", "A GPU's clocks are limited")


@applies
def gpu_job(job: Job) -> bool:
    """to jobs on GPUs (--backend nccl)."""
    return job.backend == "nccl"


@applies
def unstarted_gpu_job(job: Job) -> bool:
    """to jobs on GPUs (--backend nccl) that do not run yet."""
    return job.backend == "nccl"


def named(gpus: Gpus) -> Iterator[tuple[str, Gpu]]:
    """Return the GPUs that are not lost, by the names that nvidia-smi's matrix gives them too."""
    return ((f"GPU{gpu.index}", gpu) for gpu in gpus.all if not gpu.lost)


def shown(gpus: Gpus, environment: Environment | Absent) -> Iterator[tuple[str, Gpu]]:
    """Return those of `named` that CUDA_VISIBLE_DEVICES shows to the job; all of them if it names none of them."""
    text = None if isinstance(environment, Absent) else environment.get("CUDA_VISIBLE_DEVICES")
    words = {word.strip() for word in (text or "").split(",")}
    uuids = tuple(word for word in words if word.startswith("GPU-"))  # or how they begin, which CUDA takes as well
    ours = [(name, gpu) for name, gpu in named(gpus) if str(gpu.index) in words or gpu.uuid.startswith(uuids)]
    yield from ours or named(gpus)


def at(address: str, gpus: Gpus | Absent) -> str:
    """Return what is at a PCI address, with or without function (``0000:19:00``, kernel log): ``GPU3``, or itself."""
    known = () if isinstance(gpus, Absent) else gpus.all
    return next((f"GPU{gpu.index}" for gpu in known if gpu.pci and _slot(gpu.pci) == _slot(address)), address)


def _slot(address: str) -> str:
    return normal(address if "." in address else f"{address}.0").rpartition(".")[0]


def unread(gpus: Gpus, field: str, evidence: Sources, lacking: bool = False) -> Iterator[Finding]:
    """Yield, as `blanks` does, the GPUs that do not report `field`; `lacking`: also those that have no such thing."""
    gaps = {name: gap for name, gpu in named(gpus) if isinstance(gap := getattr(gpu, field), Absent)}
    unknown = {name: gap for name, gap in gaps.items() if lacking or not unsupported(gap)}
    yield from blanks(unknown, sum(1 for _ in named(gpus)), evidence)


def blanks(unknown: Mapping[str, Absent], subjects: int, evidence: Sources) -> Iterator[Finding]:
    """Yield a note that names the unknown subjects. Raises Unlearned if all of them are unknown."""
    if len(unknown) >= subjects:
        raise unlearned(unknown.values() or [Absent("no GPU could be looked at")])
    if unknown:
        why = "; ".join(dict.fromkeys(gap.why for gap in unknown.values()))
        yield note(", ".join(unknown), f"{UNSEEN}{why}", evidence=evidence)


def most_frequent(values: Iterable[int]) -> int:
    """Return the most frequent value; of several, the largest; without any 0."""
    return max(Counter(values).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
