"""Which NCCL a job would load, and whether it has what torch and the plugin ask of it."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.env import written
from ncclprobe.checks.env.fixtures import ONE_NODE, gpus
from ncclprobe.errors import Unlearned
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.linking import Linking, SharedLibrary
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import NCCL, Mapped, NcclLibrary, Software, Torch, parse_version
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace

_WRONG: dict[str, Any] = {"blame": "image", "action": "fix-image"}
_BY_HAND = ("single", "options")
"""Started by a person, who may start the job from another environment."""

_SYSTEM = (NcclLibrary((2, 19, 3), "/usr/lib/libnccl.so.2.19.3", "/usr/lib/libnccl.so.2.19.3"),)
_WHEEL = NcclLibrary((2, 27, 3), "nvidia-nccl-cu12", "/venv/nvidia/nccl/lib/libnccl.so.2")
_CUDA = Torch("/venv/torch", "12.8")
_PACKAGES = {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3"}
_FOUND = Software(_PACKAGES, (_WHEEL,), mapped=None, torch=_CUDA)


@applies
def gpu_seen(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, where there is a GPU."""
    return job.backend == "nccl" and isinstance(gpus, Gpus)


@check(
    slows=True,
    bad=lambda: [(_FOUND, ONE_NODE, Job())],
    good=lambda: [(replace(_FOUND, mapped=Mapped("/venv/torch/lib/libtorch_cuda.so", "static")), ONE_NODE, Job())],
    required=True,
    applies=gpu_seen,
)
def nccl(software: Software, launch: Launch | Absent, job: Job) -> Iterator[Finding]:
    """A job that is started here finds no NCCL that it can use, or an older one than torch was built with.

    Right: A job that is started here finds the NCCL that torch was built with, or one of its own.
    Why: torch without CUDA has no NCCL ("Distributed package doesn't have NCCL built in"), and without its library
    `import torch` fails. An older one that LD_LIBRARY_PATH brings lacks functions that torch calls, or differs from the
    other nodes'.
    Fix: install torch for CUDA in the job's environment (pytorch.org/get-started), run the doctor in that environment,
    and take folders with another libnccl off LD_LIBRARY_PATH.
    """
    torch, mapped = software.torch, software.mapped
    if isinstance(mapped, Absent):
        raise Unlearned(mapped.why)
    if isinstance(torch, Torch) and torch.cuda is None:
        message = f"{software.packages.get('torch', '')} is built without CUDA, and so without NCCL".strip()
        rest = f"; what is no torch would load {mapped.path}" if mapped else ""
        yield (warn if mapped else fail)("torch", message + rest, evidence=f"{torch.folder}/version.py", **_WRONG)
    elif mapped:
        yield from _older(software, mapped)
    elif isinstance(torch, Torch):
        message = "torch needs it, and the loader finds none"
        yield fail(NCCL, message, evidence=f"{torch.folder}/lib/libtorch_cuda.so", **_WRONG)
    elif isinstance(launch, Launch) and launch.kind not in _BY_HAND:
        message = f"neither torch nor {NCCL} is in the environment in which {launch.kind} started this"
        yield fail(NCCL, message, evidence=_ALL, **_WRONG)
    elif job.local:
        message = "neither it nor torch is in this environment; jobs bring their own, or find none"
        yield note(NCCL, message, evidence=_ALL)
    else:
        raise Unlearned(f"neither torch nor {NCCL} is in this environment: run the doctor in the job's own")


_NEW = replace(_FOUND, torch=Torch("/venv/torch", "13.0"))
_CUDA_12 = gpus(2)


@check(
    bad=lambda: [(_NEW, _CUDA_12)],
    good=lambda: [(_NEW, replace(_CUDA_12, cuda=(13, 0)))],
    required=True,
    applies=gpu_seen,
)
def torch_driver(software: Software, gpus: Gpus) -> Iterator[Finding]:
    """torch was built for a newer CUDA than the driver's.

    Right: The driver's CUDA is as new as that which torch was built for.
    Why: a driver runs all minor versions of its CUDA, and none of a later major one: "The NVIDIA driver on your system
    is too old", and no rank has a GPU (docs.nvidia.com/deploy/cuda-compatibility).
    Fix: take the torch that is built for the driver's CUDA (pytorch.org/get-started), upgrade the driver, or have
    NVIDIA's cuda-compat for it on LD_LIBRARY_PATH.
    """
    torch = software.torch
    if not isinstance(torch, Torch) or not isinstance(torch.cuda, str):
        return
    if int(torch.cuda.partition(".")[0]) > gpus.cuda[0]:
        message = f"is built for CUDA {torch.cuda}, and the driver {gpus.driver} has {gpus.cuda[0]}.{gpus.cuda[1]}"
        yield fail("torch", message, evidence=f"{torch.folder}/version.py", **_WRONG)


_ALL = "installed distributions and the loader's folders"


def _older(software: Software, mapped: Mapped) -> Iterator[Finding]:
    """Yield a finding where the library that is mapped is older than the wheel that torch brought."""
    wheels = [version for name, version in software.packages.items() if name.startswith("nvidia-nccl")]
    version = software.nccl_version
    if version and len(wheels) == 1 and version < parse_version(wheels[0]):
        message = f"{written(version)}, by {mapped.why}, where torch brought {wheels[0]}"
        yield warn(mapped.path, message, evidence=mapped.why, **_WRONG)


_CUDART = SharedLibrary(
    "libcudart.so.12", "/venv/torch/lib/libtorch_cuda.so", "/venv/nvidia/lib/libcudart.so.12", "DT_RPATH"
)
_OURS = SharedLibrary(NCCL, _CUDART.needed_by, _WHEEL.path, "DT_RPATH")
_OLD_NCCL = replace(_OURS, path=_SYSTEM[0].path, why="LD_LIBRARY_PATH", others=(_WHEEL.path,))


@check(
    slows=True,
    bad=lambda: [(Linking((_CUDART, replace(_OLD_NCCL, lacks=("ncclCommWindowRegister",)))),)],
    good=lambda: [(Linking((_CUDART, _OLD_NCCL)),)],
    applies=gpu_seen,
)
def libraries(linking: Linking) -> Iterator[Finding]:
    """A library that torch, NCCL or its plugin needs is missing, or lacks what they ask of it.

    Right: Every library that torch, NCCL and its plugin need is there, with the functions that they ask of it.
    Why: torch or NCCL then ends in "cannot open shared object file", "undefined symbol" or "version `GLIBC_2.38' not
    found" when it starts; a plugin is passed over without a word, and NCCL goes on with what it has itself: on EFA,
    with TCP.
    Fix: install what is missing, or a plugin built for this system; take folders that hide a newer library off
    LD_LIBRARY_PATH and LD_PRELOAD (`LD_DEBUG=libs python -c 'import torch'` shows each choice).
    """
    for each in linking.libraries:
        by = each.needed_by.rpartition("/")[2]
        tell = warn if each.needed_by == linking.plugin else fail
        after = ": NCCL goes on without the plugin" if each.needed_by == linking.plugin else ""
        if not each.path:
            yield tell(each.name, f"{by} needs it, and the loader finds none{after}", evidence=each.needed_by, **_WRONG)
        elif each.lacks:
            message = f"{each.path}, by {each.why}, lacks {', '.join(each.lacks)}, for which {by} asks{after}"
            yield tell(each.name, message, evidence=each.needed_by, **_WRONG)
        elif each.others and each.why in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            yield note(
                each.name, f"{each.path}, by {each.why}, hides {', '.join(each.others)}", evidence=each.needed_by
            )
