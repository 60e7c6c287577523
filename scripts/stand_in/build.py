"""Compile our stand-ins of CUDA, NCCL and NVML (tests/cuda_stand_in, tests/fake_nvml.c) with g++ and gcc."""

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_stages import processes

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "cuda_stand_in"
CUDART, NCCL, NVML, DRIVER = "libcudart.so.13", "libnccl.so.2", "libnvidia-ml.so.1", "libcuda.so.1"
NCCL_FILE = "a-stand-in-not-nccl.so"
"""What libnccl.so.2 links to: reports name the file that is loaded."""
HEADERS = "CUDA's headers, version 13: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
_NCCL_SOURCES = ("nccl", "mesh")
_STEP_S = 300.0
_GXX = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-fwrapv", "-fPIC"]
_CUDA_MAP = "libcudart.so.13 { global: cuda*; __cuda*; };\nCUDA { global: cu[A-Z]*; fake_cuda_*; local: *; };\n"
_NCCL_MAP = "{ global: nccl*; local: *; };\n"


class BuildError(Exception):
    """What could not be built, and why, in a few lines."""


def headers(places: Iterable[Path]) -> list[Path]:
    """Return the folders of CUDA's headers under the first of `places` that has them; empty: none has."""
    for place in places:
        compiler = (place / "crt" / "host_config.h").exists()
        if compiler and (place / "cuda.h").exists() and "CUDA_VERSION 13" in (place / "cuda.h").read_text("latin-1"):
            return [place, place / "cccl"]
    return []


def missing_tools() -> list[str]:
    """Return the programs that a build needs and this machine lacks."""
    return [name for name in ("g++", "gcc", "nm", "readelf") if not shutil.which(name)]


def build(out: Path, include: Sequence[Path], real: Sequence[Path] = ()) -> None:
    """Make the libraries in `out`. Whatever the libraries `real` export and ours lack refuses by name.

    Raises BuildError, OSError.
    """
    work = out / "objects"
    work.mkdir(parents=True, exist_ok=True)
    (work / "errors.inc").write_text(_error_names((include[0] / "driver_types.h").read_text("latin-1")))
    flags = [*_GXX, f"-I{work}", *(f"-isystem{path}" for path in include)]
    objects = {path.stem: work / f"{path.stem}.o" for path in sorted(SOURCES.glob("*.cc"))}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = [
            pool.submit(_run, [*flags, "-c", SOURCES / f"{name}.cc", "-o", target], work)
            for name, target in objects.items()
        ]
        for task in tasks:
            task.result()
    names = {name for path in real for name in _exported(path, work)}
    declared = set(re.findall(r"\b(cu[A-Z]\w+)\(", (include[0] / "cuda.h").read_text("latin-1"))) if real else set()
    cuda = [target for name, target in objects.items() if name not in _NCCL_SOURCES]
    cuda_names = {name for name in names | declared if name.startswith(("cu", "__cuda"))}
    _link(out / CUDART, CUDART, cuda, _CUDA_MAP, cuda_names, ("fake_cuda_refuses", 801), [])
    nccl = [objects[name] for name in _NCCL_SOURCES]
    nccl_names = {name for name in names if name.startswith("nccl")}
    on_cuda = [f"-L{out}", f"-l:{CUDART}", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    _link(out / NCCL_FILE, NCCL, nccl, _NCCL_MAP, nccl_names, ("fake_nccl_refuses", 5), on_cuda)
    link_nccl(out)
    empty = work / "driver.c"
    empty.write_text("")
    driver = ["gcc", "-shared", empty, "-Wl,--no-as-needed", f"-L{out}", f"-l:{CUDART}", "-Wl,-rpath,$ORIGIN"]
    _run([*driver, f"-Wl,-soname,{DRIVER}", "-o", out / DRIVER], work)
    nvml = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{NVML}", ROOT / "tests" / "fake_nvml.c"]
    _run([*nvml, "-o", out / NVML], work)


def link_nccl(folder: Path) -> None:
    """Let libnccl.so.2 be another name of the stand-in in `folder`."""
    (folder / NCCL).unlink(missing_ok=True)
    (folder / NCCL).symlink_to(NCCL_FILE)


def refusals(names: Iterable[str], refuse: str, code: int) -> str:
    """Return assembly of functions that give their name to `refuse` and return `code`; a mark is beside each."""
    lines = [".text"]
    for name in sorted(names):
        lines += [
            f".globl {name}, fake_cuda_refusing_{name}\n.type {name},@function\n{name}: fake_cuda_refusing_{name}:",
            f" sub $8,%rsp\n lea 1f(%rip),%rdi\n call {refuse}@PLT\n mov ${code},%eax\n add $8,%rsp\n ret",
            f'.section .rodata\n1: .asciz "{name}"\n.text',
        ]
    return "\n".join(lines) + '\n.section .note.GNU-stack,"",@progbits\n'


def _link(
    out: Path,
    soname: str,
    objects: Sequence[Path],
    exports: str,
    names: set[str],
    refusal: tuple[str, int],
    libraries: Sequence[str],
) -> None:
    """Link one library; `names` that no object defines refuse."""
    work = objects[0].parent
    defined = set(re.findall(r" [TV] (\w+)", _run(["nm", *objects], work)))
    absent, versions = work / f"{soname}.S", work / f"{soname}.map"
    absent.write_text(refusals(names - defined, *refusal))
    versions.write_text(exports)
    flags = ["-shared", f"-Wl,--version-script={versions}", f"-Wl,-soname,{soname}", "-lpthread", "-ldl"]
    _run(["g++", *objects, absent, *flags, *libraries, "-o", out], work)


def _exported(library: Path, work: Path) -> set[str]:
    table = _run(["readelf", "--dyn-syms", "-W", library], work)
    return set(re.findall(r"FUNC\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)", table))


def _error_names(driver_types: str) -> str:
    found = re.findall(r"^\s+(cudaError\w+|cudaSuccess)\s*=\s*(\d+)", driver_types, re.M)
    rows = "".join(f'  {{{number}, "{name}"}},\n' for name, number in found)
    return f"static const struct {{\n  int code;\n  const char* name;\n}} ERRORS[] = {{\n{rows}}};\n"


def _run(command: Sequence[object], work: Path) -> str:
    """Run a program to its end and return what it wrote. Raises BuildError."""
    log = work / f"{Path(str(command[-1])).name}.log"
    ended = processes.run(command, log, os.environ, _STEP_S)
    if ended.code:
        lines = [line for line in ended.text.splitlines() if "error" in line] or ended.text.splitlines()[-3:]
        raise BuildError("\n".join([f"{ended}", *lines[:5]]))
    return ended.text
