"""libcudart.so.12 for torch's builds of CUDA 12: it sends calls on to the stand-in's library, which is CUDA 13's."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from on_cpu import build

SONAME = "libcudart.so.12"
SOURCE = build.SOURCES / "cuda_12.c"


def make(site: Path, lib: Path) -> None:
    """In the place of NVIDIA's in `site`, where torch is of CUDA 12. Raises BuildError, OSError."""
    real = site / "nvidia/cuda_runtime/lib" / SONAME
    if not real.exists():
        return
    work = site.parent / "cuda_12"
    work.mkdir(exist_ok=True)
    names = exported(build.run(["readelf", "--dyn-syms", "-W", real], work))
    own = set(re.findall(r"^cudaError_t (\w+)\(", SOURCE.read_text(), re.M))
    (work / "cuda_12.S").write_text(forwards(sorted(names - own)))
    (work / "exports").write_text(f"{SONAME} {{ global: cuda*; __cuda*; local: *; }};\n")
    real.unlink()
    flags = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-I{site / 'nvidia/cuda_runtime/include'}", f"-I{build.SOURCES}"]
    flags += ["-idirafter", str(build.headers())]  # the compiler's part, which CUDA 12's wheel lacks
    link = [f"-Wl,--version-script={work / 'exports'}", f"-Wl,-soname,{SONAME}", "-Wl,-rpath,$ORIGIN", "-ldl"]
    build.run([*flags, SOURCE, work / "cuda_12.S", *link, "-o", real], work)
    shutil.copy(lib / build.CUDART, real.parent)


def exported(symbols: str) -> set[str]:
    """What CUDA's runtime exports, in the table that readelf writes of it."""
    return set(re.findall(r"\s(\w+)@@libcudart", symbols))


def forwards(names: Sequence[str]) -> str:
    """For each name a function that jumps to where cuda_12.c found it, else to one that says it; and their list."""
    lines = [
        ".text\n.globl cuda_12_absent\n.hidden cuda_12_absent\ncuda_12_absent: mov %rax,%rdi\n jmp cuda_12_refuses@PLT"
    ]
    for at, name in enumerate(names):
        lines.append(f".globl {name}\n.type {name},@function\n{name}: lea name_{at}(%rip),%rax")
        lines.append(f" jmp *forwarded+{8 * at}(%rip)")
    lines += [".bss\n.balign 8\n.globl forwarded\n.hidden forwarded", f"forwarded: .zero {8 * len(names)}"]
    lines.append(".section .data.rel.ro\n.balign 8\n.globl forwarded_names\n.hidden forwarded_names\nforwarded_names:")
    lines += [f".quad name_{at}" for at in range(len(names))]
    lines += [".quad 0", ".section .rodata", *(f'name_{at}: .asciz "{name}"' for at, name in enumerate(names))]
    return "\n".join(lines) + '\n.section .note.GNU-stack,"",@progbits\n'
