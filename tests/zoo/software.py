"""torch, NCCL and its plugins, as files and in the loader's cache.

Shapes: torch's wheels from PyPI, whose metadata names the NCCL wheel that each version brings (2.4.0: 2.20.5, 2.6.0:
2.21.5, 2.7.0: 2.26.2, 2.8.0: 2.27.3) and whose libtorch_cuda.so looks for it by an RPATH; NVIDIA's libnccl2 packages;
folders of plugins as in ncclprobe/facts/plugins.py.
"""

import json
from pathlib import PurePosixPath

from ncclprobe.errors import Missing
from zoo.answers import Answers
from zoo.description import Machine

_MULTIARCH = {"x86_64": "/usr/lib/x86_64-linux-gnu", "aarch64": "/usr/lib/aarch64-linux-gnu", "ppc64le": "/usr/lib64"}


def describe(machine: Machine, here: Answers) -> None:
    """What is installed."""
    software = machine.software
    libraries = _MULTIARCH[machine.processors.arch]
    for folder in (libraries, "/usr/lib", "/usr/local/lib"):
        here.folder(folder)
    cached = [*software.cached]
    if software.system_nccl:
        cached.append(f"{libraries}/libnccl.so.2")
        for name in ("libnccl.so", "libnccl.so.2", f"libnccl.so.{software.system_nccl}"):
            here.write(f"{libraries}/{name}", "")
    for folder, names in software.plugins.items():
        for name in names:
            here.write(f"{folder}/{name}", "")

    def cache(*prefixes: str) -> str:
        named = [(PurePosixPath(file).name, file) for file in cached]
        return json.dumps([pair for pair in named if pair[0].startswith(prefixes)])

    here.programs["ld_cache"] = cache
    _wheels(machine, here)


def _wheels(machine: Machine, here: Answers) -> None:
    software = machine.software
    packages = {"torch": software.torch} if software.torch else {}
    cuda = software.torch_cuda.partition(".")[0]
    if software.nccl:
        packages[f"nvidia-nccl-cu{cuda}"] = software.nccl
        for name in ("libnccl.so.2", "libnccl_static.a"):
            here.write(f"{software.python}/nvidia/nccl/lib/{name}", "")
    here.said["packages",] = json.dumps(packages | {"nvidia-ml-py": "13.580.82"})
    here.said["module", "torch"] = Missing("Python module torch: not installed")
    if not software.torch:
        return
    folder = f"{software.python}/torch"
    here.said["module", "torch"] = f"{folder}/__init__.py"
    value = repr(software.torch_cuda) if software.torch_cuda else "None"
    here.write(f"{folder}/version.py", f"__version__ = {software.torch!r}\ncuda: Optional[str] = {value}\n")
    if software.torch_cuda:
        needs = {
            "soname": "libtorch_cuda.so",
            "needed": [f"libcudart.so.{cuda}", "libnccl.so.2"],
            "rpath": "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN",
            "runpath": "",
        }
        here.said["elf", f"{folder}/lib/libtorch_cuda.so"] = json.dumps(needs)
