"""Which GPUs CUDA gives a job: those of CUDA_VISIBLE_DEVICES that can compute.

Source: CUDA programming guide, environment variables: a list is read up to the first entry that names no GPU, by number
or by the beginning of a UUID, all of one kind. CUDA_DEVICE_ORDER is taken to be NVML's, by PCI address.
"""

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.nccl_selection import Part
from ncclprobe.model.snapshot import Absent

LIST = "CUDA_VISIBLE_DEVICES"


def usable_gpus(gpus: Gpus, environment: Environment | Absent) -> Part[str]:
    """Return the names of the GPUs on which a rank of a job can run; refused where that is none."""
    text = None if isinstance(environment, Absent) else environment.get(LIST)
    if text is not None and "MIG-" in text.upper():
        return Part(None, f"{LIST}={text} names parts of GPUs")
    seen = gpus.all if text is None else visible(text, gpus)
    able = tuple(f"GPU{gpu.index}" for gpu in seen if not gpu.lost and gpu.compute_mode != "prohibited")
    if able:
        return Part(able, "every GPU" if text is None else f"{LIST}={text}")
    if not seen:
        return Part((), f"{LIST}={text!r} shows none: CUDA sees no GPU", refused=True, subject=LIST)
    why = seen[0].lost or "its compute mode is prohibited"
    return Part((), f"none can compute: GPU{seen[0].index}: {why}", refused=True, subject=f"GPU{seen[0].index}")


def visible(text: str, gpus: Gpus) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA takes from its list `text`, in that order."""
    found: list[Gpu] = []
    for word in map(str.strip, text.split(",")):
        gpu = next((gpu for gpu in gpus.all if _names(word, gpu)), None)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def _names(word: str, gpu: Gpu) -> bool:
    return gpu.uuid.startswith(word) if word.startswith("GPU-") else word == str(gpu.index)
