"""A virtual environment with torch's CUDA wheels, unmodified but for two libraries, which are the stand-ins'."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import environment

from on_cpu import build, cuda_12

TORCH = "2.12.0"
RELEASES = (TORCH, "2.13.0", "2.11.0", "2.9.1", "2.6.0", "2.4.1")
"""Tried, the first most of all. From 2.11 on torch's wheel is CUDA 13's, before CUDA 12's."""
_INSTALL_S = 1800.0
_REPLACED = {build.CUDART: "nvidia/cu13/lib", "libnccl.so.2": "nvidia/nccl/lib"}
"""torch finds these by its own DT_RPATH, before LD_LIBRARY_PATH."""
_HOOK = "torch_ops"
_OLD_HOOK = "torch_hook"
"""For torch 2.4, which loads no entry points."""


def cached(tag: str, torch: str = TORCH) -> Path | None:
    """The environment of a release of torch above NCCL's `tag`, where it was made to its end."""
    out = _folder(tag, torch)
    return out if build.cached(tag) and (out / "ready").exists() else None


def make(tag: str, torch: str = TORCH) -> Path:
    """Make it; NCCL must have been built. Raises BuildError, OSError."""
    if found := cached(tag, torch):
        return found
    out, pristine = _folder(tag, torch), _pristine(torch)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(pristine, out, symlinks=True, copy_function=os.link)  # hard links: a copy takes no room
    (out / "ready").unlink()
    site = next(out.glob("lib/python*/site-packages"))
    lib = build.folder(tag) / "lib"
    for name, folder in _REPLACED.items():
        if (site / folder / name).exists():
            (site / folder / name).unlink()
            shutil.copy(lib / name, site / folder)
    cuda_12.make(site, lib)
    shutil.copy(build.SOURCES / f"{_HOOK}.py", site)
    if torch.startswith("2.4."):
        shutil.copy(build.SOURCES / f"{_OLD_HOOK}.py", site)
        (site / "fake_cuda.pth").write_text(f"import {_OLD_HOOK}\n")
    about = site / "fake_cuda-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-cuda\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\nfake_cuda = {_HOOK}:register\n")
    (out / "ready").touch()
    return out


def _folder(tag: str, torch: str) -> Path:
    own = [build.SOURCES / f"{_HOOK}.py", build.SOURCES / f"{_OLD_HOOK}.py"]
    own += [cuda_12.SOURCE, build.SOURCES / "properties.h"]
    key = build.digest(*own, Path(cuda_12.__file__), Path(__file__))
    return build.CACHE / f"torch-{torch}-{build.folder(tag).name}-{key}"


def _pristine(torch: str) -> Path:
    """The wheels of torch, of all that it needs, and of what ncclprobe needs."""
    out = build.CACHE / f"torch-{torch}"
    if not (out / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", out], check=True, timeout=_INSTALL_S)
        pip: list[str | Path] = [out / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = [f"torch==={torch}", "numpy", "ClusterShell", "hypothesis", *environment.requirements([])]
        subprocess.run([*pip, *wanted], check=True, timeout=_INSTALL_S)
        (out / "ready").touch()
    return out
