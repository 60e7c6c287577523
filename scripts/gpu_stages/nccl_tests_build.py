"""nccl-tests for stage 4: built from carried sources against torch's NCCL, or taken as it was built before.

A build takes minutes of processor time, so where the sources hold a folder `build` with the programs, these are run.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_stages import processes
from gpu_stages.steps import Refused

BUILD_S = 300.0


def build(sources: Path, library: Path, names: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Leave the programs `names` in `folder`; how they came there. Raises Refused where they cannot."""
    before = [sources / "build" / name for name in names]
    if all(path.exists() for path in before):
        for path in before:
            shutil.copy2(path, folder / path.name)
        return "built before"
    if shutil.which("nvcc") is None:
        raise Refused("no nvcc here, and no folder build in the sources")
    copy, home, built = folder / "src", folder / "nccl", folder / "build"
    shutil.copytree(sources, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "build"))
    nccl_home(library, home)
    cuda = cuda_home()
    options = [f"NCCL_HOME={home}", f"CUDA_HOME={cuda}", f"NVCC_GENCODE={architecture(variables)}", f"BUILDDIR={built}"]
    programs = [built / name for name in names]
    command = ["make", "-C", copy / "src", "-j", str(os.cpu_count() or 2), *options, *programs]
    ended = processes.run(command, folder / "make.log", variables, BUILD_S)
    if ended.code != 0:
        raise Refused(str(ended))
    for path in programs:
        path.replace(folder / path.name)
    shutil.rmtree(copy)
    shutil.rmtree(built)
    return f"built in {ended.seconds:.0f} s"


def architecture(variables: Mapping[str, str]) -> str:
    """nvcc's option for the GPU of this machine; of Hopper's where there is none to ask."""
    return "-arch=native" if shutil.which("nvidia-smi", path=variables.get("PATH")) else "-arch=sm_90"


def cuda_home() -> Path:
    """The folder of CUDA that nvcc belongs to; nvcc may be a script that calls another. Raises Refused."""
    folders = [*Path(os.path.realpath(str(shutil.which("nvcc")))).parents, Path("/usr/local/cuda")]
    folders += sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    for folder in folders:
        if (folder / "include" / "cuda_runtime.h").exists() and (folder / "bin" / "nvcc").exists():
            return folder
    raise Refused("nvcc is here, and no folder has its headers")


def nccl_home(library: Path, home: Path) -> None:
    """Make a folder as nccl-tests wants one: a wheel has the header, and no libnccl.so beside libnccl.so.2."""
    include = library.parent.parent / "include"
    if not (include / "nccl.h").exists():
        raise Refused(f"there is no nccl.h in {include}")
    (home / "lib").mkdir(parents=True, exist_ok=True)
    for name in ("libnccl.so", "libnccl.so.2"):
        (home / "lib" / name).unlink(missing_ok=True)
        (home / "lib" / name).symlink_to(library)
    (home / "include").unlink(missing_ok=True)
    (home / "include").symlink_to(include)
