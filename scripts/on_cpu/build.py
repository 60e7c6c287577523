"""Build NCCL and the stand-ins of CUDA and NVML into a cache: by release and by what our own sources were."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_stages import processes

from on_cpu import device_sources

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "cuda_stand_in"
CACHE = Path.home() / ".cache" / "ncclprobe" / "on_cpu"
CUDART = "libcudart.so.13"
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85")
"""CUDA's headers, and a cudart whose exported names are those that ours must have."""
RELEASES = ("v2.30.7-1", "v2.29.7-1", "v2.28.9-1", "v2.27.7-1", "v2.26.6-1", "v2.25.1-1", "v2.24.3-1", "v2.23.4-1")
"""Built and tried, the newest first: torch runs above that alone, so the others reduce fewer types."""
_CUDA_12 = 12010
_OF_CUDA_12 = """#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
static inline cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
    unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes, size_t* count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, nullptr, count);
}
static inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes, size_t count,
    unsigned int flags) {
  return cudaStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags);
}
static inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes, size_t count,
    cudaStreamUpdateCaptureDependenciesFlags flags) {
  return cudaStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags);
}
static inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
    const cudaGraphNode_t* to, size_t count) {
  return cudaGraphAddDependencies(graph, from, to, nullptr, count);
}
#define cudaStreamGetCaptureInfo_v3 cudaStreamGetCaptureInfo
#define cudaGraphAddDependencies_v2 cudaGraphAddDependencies
#define cudaStreamUpdateCaptureDependencies_v2 cudaStreamUpdateCaptureDependencies
"""
"""What NCCL 2.23 to 2.26 call in the way of CUDA 12."""
_TRACED = SOURCES / "nccl_calls.cc"
"""Belongs to NCCL's library; the other sources are the stand-in's."""
_COMPILE_S, _DOWNLOAD_S, _LINK_S = 300.0, 600.0, 120.0
_GXX = ["g++", "-std=c++17", "-w", "-fPIC"]
_NCCL = """-DNVTX_NO_IMPL -DCUDA_MAJOR=13 -DCUDA_MINOR=0 -DNCCL_OS_LINUX -DNCCL_GIN_PROXY_ENABLE=1
 -DNCCL_GIN_GDAKI_ENABLE=0"""
_HOST_FOLDERS = """. graph misc transport transport/net_ib transport/net_ib/gdaki transport/gdaki register plugin
 plugin/* nccl_device scheduler gin rma devcomm param ras os"""
_NOT_HOST = re.compile(r"_stub\.cc$|^ras/client\.cc$|^param/ncclparam\.cc$|^enhcompat\.cc$|^os/(?!linux)")


class BuildError(Exception):
    """What could not be built, and why, in a line or a few."""


def digest(*paths: Path) -> str:
    """Of the content of these files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def folder(tag: str) -> Path:
    """Where the libraries of a release are, once they are built from what our sources are now."""
    own = [*sorted(SOURCES.glob("*.cc")), *sorted(SOURCES.glob("*.h")), ROOT / "tests" / "fake_nvml.c"]
    return CACHE / f"{tag}-{digest(*own, Path(__file__), Path(device_sources.__file__))}"


def cached(tag: str) -> Path | None:
    """That folder, where it was built to its end."""
    return folder(tag) if (folder(tag) / "ready").exists() else None


def build(source: Path, tag: str, jobs: int) -> Path:
    """Build release `tag` out of `source`, a tree, an archive or a clone's git folder. Raises BuildError, OSError."""
    out = folder(tag)
    with _alone(tag):
        if cached(tag):
            return out
        include = headers()
        objects = _nccl_objects(source, tag, include, jobs)
        work = out / "objects"
        work.mkdir(parents=True, exist_ok=True)
        lib = out / "lib"
        lib.mkdir(exist_ok=True)
        _stand_ins(work, lib, include, jobs)
        _link_nccl(objects, work, lib)
        if (client := objects.source / "src/ras/client.cc").exists():  # since 2.24
            run([*_GXX, "-O1", *objects.flags, client, "-o", lib / "ncclras"], work)
        (out / "ready").touch()
    return out


@contextlib.contextmanager
def _alone(tag: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{tag}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: Sequence[object], work: Path, deadline_s: float = _COMPILE_S) -> str:
    """Run a program to its end and return what it wrote. Raises BuildError."""
    log = work / f"{Path(str(command[-1])).name}.log"
    ended = processes.run(command, log, os.environ, deadline_s)
    if ended.code:
        lines = [line for line in ended.text.splitlines() if "error" in line] or ended.text.splitlines()[-3:]
        raise BuildError("\n".join([f"{ended}", *lines[:5]]))
    return ended.text


def headers() -> Path:
    """CUDA's headers, out of NVIDIA's wheels."""
    out = CACHE / "cuda-13.0"
    if not (out / "ready").exists():
        shutil.rmtree(out, ignore_errors=True)
        wheels = out / "wheels"
        wheels.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        run([*pip, *HEADERS, "--dest", wheels], out, _DOWNLOAD_S)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(out)
        shutil.rmtree(wheels)
        (out / "ready").touch()
    (include,) = out.glob("nvidia/*/include")
    return include


class Objects:
    """Compiled NCCL: its source, the flags that it was compiled with, and the folder of its objects."""

    def __init__(self, source: Path, out: Path, include: Path) -> None:
        self.source, self.out, self.cuda = source, out, include
        own, doca = source / "src", next((source / "src").glob("transport/**/doca-gpunetio"), out)
        paths = [own, out / "include", own / "include", own / "include/plugin", doca / "include", doca / "src"]
        paths += [include, include / "cccl"]
        self.doca = doca
        self.flags = [*_NCCL.split(), *(f"-I{path}" for path in paths), f"-fmacro-prefix-map={own}/="]
        self.flags += ["-include", str(out / "include/cuda_12.h")]


def _nccl_objects(source: Path, tag: str, include: Path, jobs: int) -> Objects:
    """NCCL compiled, which does not depend on most of what is ours."""
    ways = hashlib.sha256(repr((HEADERS, _GXX, _NCCL, _HOST_FOLDERS, _NOT_HOST.pattern, _OF_CUDA_12)).encode())
    key = digest(SOURCES / "device_code.h", Path(device_sources.__file__))
    out = CACHE / f"nccl-{tag}-{key}-{ways.hexdigest()[:6]}"
    objects = Objects(_tree(source, tag), out, include)
    if (out / "ready").exists():
        return objects
    (out / "objects").mkdir(parents=True, exist_ok=True)
    _configure(objects)
    device = device_sources.make(objects.source, out, few=tag != RELEASES[0])
    common = out / "common.h"
    common.write_text("".join(f'#include "{name}.h"\n' for name in ("comm", "core", "bootstrap", "proxy", "graph")))
    host = [*_GXX, "-O1", *objects.flags, "-DPROFAPI"]
    run([*host, "-x", "c++-header", common, "-o", f"{common}.gch"], out)
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(_compile_device, objects, path) for path in device]
        tasks += [pool.submit(_compile_host, objects, host, path) for path in _host_sources(objects.source)]
        for task in tasks:
            task.result()
    (out / "ready").touch()
    return objects


def _tree(source: Path, tag: str) -> Path:
    """The sources of a release, unpacked where `source` is no tree."""
    if (source / "src/nccl.h.in").exists():
        return source
    out = CACHE / f"source-{tag}"
    if not (out / "src/nccl.h.in").exists():
        out.mkdir(parents=True, exist_ok=True)
        archive = source
        if source.is_dir():  # a clone
            archive = CACHE / f"{tag}.tar"
            run(["git", "-C", source, "archive", "-o", archive, tag, "src", "makefiles"], CACHE)
        with tarfile.open(archive) as packed:
            first = packed.getnames()[0].partition("/")[0]
            packed.extractall(out, filter="data")
        if first not in ("src", "makefiles"):
            for path in (out / first).iterdir():
                path.rename(out / path.name)
    if not (out / "src/nccl.h.in").exists():
        raise BuildError(f"{source} is neither NCCL's source, nor an archive nor a clone of it")
    return out


def _configure(objects: Objects) -> None:
    """The headers that NCCL's own build makes."""
    source, include = objects.source / "src", objects.out / "include"
    text = (objects.source / "makefiles/version.mk").read_text()
    major, minor, patch = (re.findall(rf"NCCL_{part}\s*:=\s*(\d+)", text)[0] for part in ("MAJOR", "MINOR", "PATCH"))
    values = {"Major": major, "Minor": minor, "Patch": patch, "Suffix": ""}
    values["Version"] = f"{major}{int(minor):02}{int(patch):02}"
    shutil.rmtree(include, ignore_errors=True)
    include.mkdir(parents=True)
    (include / "nccl.h").write_text(
        re.sub(r"\$\{nccl:(\w+)\}", lambda found: values[found[1]], (source / "nccl.h.in").read_text())
    )
    (include / "cuda_12.h").write_text(driver_names((objects.cuda / "cudaTypedefs.h").read_text()) + _OF_CUDA_12)
    (include / "nccl_git_version.h").write_text('#define NCCL_GIT_COMMIT_HASH ""\n#define NCCL_GIT_BRANCH ""\n')
    for path in (source / "include").glob("nccl_device*"):
        if path.is_dir():
            shutil.copytree(path, include / path.name)
        else:
            shutil.copy(path, include)
    if objects.doca != objects.out:
        there = include / "nccl_device/gin/gdaki/doca_gpunetio"
        shutil.copytree(objects.doca / "include", there, dirs_exist_ok=True)


def driver_names(typedefs: str) -> str:
    """CUDA 12's types of the driver's functions, without a version, which NCCL used up to 2.26 and CUDA 13 has not."""
    found: dict[str, list[int]] = {}
    for name, version in re.findall(r"\*(PFN_cu\w+)_v(\d+)\)", typedefs):
        found.setdefault(name, []).append(int(version))
    chosen = {name: max((each for each in all_ if each <= _CUDA_12), default=min(all_)) for name, all_ in found.items()}
    return "".join(f"#define {name} {name}_v{version}\n" for name, version in chosen.items())


def _host_sources(source: Path) -> list[Path]:
    root = source / "src"
    found = sorted({path for name in _HOST_FOLDERS.split() for path in root.glob(f"{name}/*.cc".removeprefix("./"))})
    return [path for path in found if not _NOT_HOST.search(str(path.relative_to(root)))]


def _compile_host(objects: Objects, host: Sequence[object], path: Path) -> None:
    name = str(path.relative_to(objects.source / "src")).replace("/", "_")
    target = objects.out / "objects" / f"{name}.o"
    if not target.exists():
        run([*host, "-include", objects.out / "common.h", "-c", path, "-o", target], objects.out / "objects")


def _compile_device(objects: Objects, path: Path) -> None:
    target = objects.out / "objects" / f"device_{path.name}.o"
    if target.exists():
        return
    flags: list[object] = [*_GXX, "-O1", "-fpermissive", "-ftls-model=initial-exec", f"-I{objects.out / 'device'}"]
    flags += objects.flags
    if path.suffix == ".cu":
        flags += ["-include", SOURCES / "device_code.h"]
    run([*flags, "-x", "c++", "-c", path, "-o", target], objects.out / "objects")


def _stand_ins(work: Path, lib: Path, include: Path, jobs: int) -> None:
    """The fake CUDA and NVML, and a function that refuses for each that they lack."""
    errors = re.findall(r"^\s+(cudaError\w+|cudaSuccess)\s*=\s*(\d+)", (include / "driver_types.h").read_text(), re.M)
    rows = "".join(f'  {{{number}, "{name}"}},\n' for name, number in errors)
    (work / "errors.inc").write_text(
        f"static const struct {{\n  int code;\n  const char* name;\n}} ERRORS[] = {{\n{rows}}};\n"
    )
    flags = [*_GXX, "-O2", "-fpermissive", f"-I{work}", f"-I{include}", f"-I{include / 'cccl'}"]
    sources = sorted({*SOURCES.glob("*.cc")} - {_TRACED})
    with ThreadPoolExecutor(jobs) as pool:
        for task in [pool.submit(run, [*flags, "-c", path, "-o", work / f"{path.stem}.o"], work) for path in sources]:
            task.result()
    own = [work / f"{path.stem}.o" for path in sources]
    defined = set(re.findall(r" T (\w+)", run(["nm", *own], work)))
    (work / "refusals.S").write_text(refusals(sorted(wanted(include, work) - defined)))
    (work / "exports").write_text(
        "libcudart.so.13 { global: cuda*; __cuda*; };\nCUDA { global: cu[A-Z]*; fake_cuda_*; simt_*; local: *; };\n"
    )
    link = ["-shared", f"-Wl,--version-script={work / 'exports'}", f"-Wl,-soname,{CUDART}", "-lpthread", "-ldl"]
    run(["g++", *own, work / "refusals.S", *link, "-o", lib / CUDART], work, _LINK_S)
    # The driver's library is that one under another name.
    (work / "driver.c").write_text("")
    driver = ["-shared", "-Wl,--no-as-needed", f"-L{lib}", f"-l:{CUDART}", "-Wl,-rpath,$ORIGIN"]
    run(["gcc", work / "driver.c", *driver, "-Wl,-soname,libcuda.so.1", "-o", lib / "libcuda.so.1"], work, _LINK_S)
    nvml = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    run(["gcc", *nvml, ROOT / "tests/fake_nvml.c", "-o", lib / "libnvidia-ml.so.1"], work, _LINK_S)


def wanted(include: Path, work: Path) -> set[str]:
    """All functions of CUDA's runtime, as its library exports them, and of its driver, as the header declares them."""
    (real,) = include.parent.glob(f"lib/{CUDART}")
    runtime = re.findall(r"\s(\w+)@@libcudart", run(["readelf", "--dyn-syms", "-W", real], work))
    header = (include / "cuda.h").read_text()
    return {*runtime, *re.findall(r"\b(cu[A-Z]\w+)\(", header), *re.findall(r"\b(cu[A-Z]\w+_v\d)\b", header)}


def refusals(names: Sequence[str]) -> str:
    """Functions that say their name and return cudaErrorNotSupported; a mark beside each, by which it is known."""
    lines = [".text"]
    for name in names:
        lines += [
            f".globl {name}, fake_cuda_refusing_{name}\n.type {name},@function\n{name}: fake_cuda_refusing_{name}:",
            " sub $8,%rsp\n lea 1f(%rip),%rdi\n call fake_cuda_refuses@PLT\n mov $801,%eax\n add $8,%rsp\n ret",
            f'.section .rodata\n1: .asciz "{name}"\n.text',
        ]
    return "\n".join(lines) + '\n.section .note.GNU-stack,"",@progbits\n'


def _link_nccl(objects: Objects, work: Path, lib: Path) -> None:
    """NCCL's library; what is not built of it returns an error (DOCA) or traps (kernels)."""
    run([*_GXX, "-O1", *objects.flags, "-c", _TRACED, "-o", work / "nccl_calls.o"], work)
    files = [*sorted((objects.out / "objects").glob("*.o")), work / "nccl_calls.o"]
    libraries = [f"-L{lib}", f"-l:{CUDART}", "-lpthread", "-ldl", "-lrt"]
    link = ["g++", "-shared", *files, *libraries, "-Wl,-z,defs,--no-demangle"]
    log = work / "undefined.log"
    ended = processes.run([*link, "-o", work / "undefined.so"], log, os.environ, _LINK_S)
    lines = [".text"]
    for name in sorted(set(re.findall(r"undefined reference to .(\w+)", ended.text))):
        answer = " ud2" if re.search(r"Dev(Kernel|Func)", name) else " mov $1,%eax\n ret"
        lines.append(f".globl {name}\n.type {name},@function\n{name}:\n{answer}")
    (work / "absent.S").write_text("\n".join(lines) + '\n.section .note.GNU-stack,"",@progbits\n')
    run([*link, work / "absent.S", "-Wl,-soname,libnccl.so.2", "-o", lib / "libnccl.so.2"], work, _LINK_S)
