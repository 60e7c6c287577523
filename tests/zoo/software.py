"""torch, NCCL and its plugins, as files and in the loader's cache.

Shapes: torch's wheels from PyPI, whose metadata names the NCCL wheel that each version brings (2.4.0: 2.20.5, 2.6.0:
2.21.5, 2.7.0: 2.26.2, 2.8.0: 2.27.3) and whose libtorch_cuda.so looks for it by an RPATH; NVIDIA's libnccl2 packages;
folders of plugins as in ncclprobe/facts/plugins.py. What libnccl.so.2 needs: the wheels of 2.30.7 and 2.32.3.
What a plugin needs is not told by any source here: libc alone.
"""

import json
from pathlib import PurePosixPath
from typing import Any

from ncclprobe.model.errors import Missing
from zoo.answers import Answers
from zoo.description import Machine

_MULTIARCH = {"x86_64": "/usr/lib/x86_64-linux-gnu", "aarch64": "/usr/lib/aarch64-linux-gnu", "ppc64le": "/usr/lib64"}
GLIBC = ("GLIBC_2.17", "GLIBC_2.28", "GLIBC_2.34")


def describe(machine: Machine, here: Answers) -> None:
    """What is installed."""
    software = machine.software
    libraries = _MULTIARCH[machine.processors.arch]
    for folder in (libraries, "/usr/lib", "/usr/local/lib"):
        here.folder(folder)
    cached = [*software.cached, f"{libraries}/libc.so.6"]
    library(here, f"{libraries}/libc.so.6", versions=GLIBC)
    if software.system_nccl:
        cached.append(f"{libraries}/libnccl.so.2")
        for name in ("libnccl.so", "libnccl.so.2", f"libnccl.so.{software.system_nccl}"):
            here.write(f"{libraries}/{name}", _NCCL)
            says_version(here, f"{libraries}/{name}", software.system_nccl)
    for folder, names in software.plugins.items():
        for name in names:
            library(here, f"{folder}/{name}", "libc.so.6", asks=GLIBC[:1])
            says_names(here, f"{folder}/{name}")

    def cache(*prefixes: str) -> str:
        named = [(PurePosixPath(file).name, file) for file in cached]
        return json.dumps([pair for pair in named if pair[0].startswith(prefixes)])

    here.programs["ld_cache"] = cache
    _wheels(machine, here)


def library(here: Answers, path: str, *needed: str, asks: tuple[str, ...] = (), **told: Any) -> None:
    """A shared library; `asks`: the versions that it asks of the first library that it needs."""
    here.write(path, _dynamic(*needed, asks=asks, **told))


def says_version(here: Answers, path: str, version: str, cuda: str = "12.3") -> None:
    """The version of NCCL among a library's constants."""
    here.said["elf_texts", path, "NCCL version 2."] = json.dumps([f"NCCL version {version}+cuda{cuda}"])


def says_names(here: Answers, path: str) -> None:
    """What a plugin's file says to NCCL, as nccl_ofi_interface_nvidia.c of aws-ofi-nccl 1.9 has it; nothing of others,
    whose sources are not public.
    """
    ofi = "ofi" in path
    kind = "Tuner" if "tuner" in path else "Net"
    own = {"Tuner": {"ncclTunerPlugin_v2": "nccl_ofi_tuner"}, "Net": {"ncclNetPlugin_v8": "AWS Libfabric"}}[kind]
    here.said["elf_objects", path, "nccl"] = json.dumps(own if ofi else {})
    here.said["elf_texts", path, "aws-ofi-nccl "] = json.dumps(["aws-ofi-nccl 1.9.1-aws"] if ofi else [])


def _dynamic(*needed: str, asks: tuple[str, ...] = (), **told: Any) -> str:
    wants = {needed[0]: asks} if asks else {}
    empty = {"soname": "", "rpath": "", "runpath": "", "versions": ()}
    return json.dumps({**empty, "needed": needed, "needs_versions": wants, **told})


_NCCL = _dynamic("libc.so.6", asks=GLIBC[:1])


def _wheels(machine: Machine, here: Answers) -> None:
    software = machine.software
    packages = {"torch": software.torch} if software.torch else {}
    cuda = software.torch_cuda.partition(".")[0]
    if software.nccl:
        packages[f"nvidia-nccl-cu{cuda}"] = software.nccl
        for name in ("libnccl.so.2", "libnccl_static.a"):
            here.write(f"{software.python}/nvidia/nccl/lib/{name}", _NCCL)
            says_version(here, f"{software.python}/nvidia/nccl/lib/{name}", software.nccl)
    here.said["packages",] = json.dumps(packages | {"nvidia-ml-py": "13.580.82"})
    here.said["module", "torch"] = Missing("Python module torch: not installed")
    if not software.torch:
        return
    folder = f"{software.python}/torch"
    here.said["module", "torch"] = f"{folder}/__init__.py"
    value = repr(software.torch_cuda) if software.torch_cuda else "None"
    here.write(f"{folder}/version.py", f"__version__ = {software.torch!r}\ncuda: Optional[str] = {value}\n")
    here.said["elf", f"{folder}/lib/libtorch_nvshmem.so"] = Missing("it came with torch 2.8, and not for every machine")
    if software.torch_cuda:
        library(here, f"{software.python}/nvidia/cuda_runtime/lib/libcudart.so.{cuda}", "libc.so.6")
        paths = (
            "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"
        )
        said = _dynamic(f"libcudart.so.{cuda}", "libnccl.so.2", soname="libtorch_cuda.so", rpath=paths)
        here.said["elf", f"{folder}/lib/libtorch_cuda.so"] = said
