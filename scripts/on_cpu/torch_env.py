"""A virtual environment with torch's CUDA wheels, unmodified but for two libraries, which are the stand-ins'."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import environment

from on_cpu import build

TORCH = "2.12.0"
_INSTALL_S = 1800.0
_REPLACED = {build.CUDART: "nvidia/cu13/lib", "libnccl.so.2": "nvidia/nccl/lib"}
"""torch finds these by its own DT_RPATH, before LD_LIBRARY_PATH."""
_HOOK = "torch_ops"


def cached(tag: str) -> Path | None:
    """The environment for NCCL's release `tag`, where it was made to its end."""
    out = _folder(tag)
    return out if build.cached(tag) and (out / "ready").exists() else None


def make(tag: str) -> Path:
    """Make it; NCCL must have been built. Raises BuildError, OSError."""
    if found := cached(tag):
        return found
    out, pristine = _folder(tag), _pristine()
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(pristine, out, symlinks=True, copy_function=os.link)  # hard links: a copy takes no room
    (out / "ready").unlink()
    site = next(out.glob("lib/python*/site-packages"))
    for name, folder in _REPLACED.items():
        (site / folder / name).unlink()
        shutil.copy(build.folder(tag) / "lib" / name, site / folder)
    shutil.copy(build.SOURCES / f"{_HOOK}.py", site)
    about = site / "fake_cuda-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-cuda\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\nfake_cuda = {_HOOK}:register\n")
    (out / "ready").touch()
    return out


def _folder(tag: str) -> Path:
    key = build.digest(build.SOURCES / f"{_HOOK}.py", Path(__file__))
    return build.CACHE / f"torch-{TORCH}-{build.folder(tag).name}-{key}"


def _pristine() -> Path:
    """The wheels of torch, of all that it needs, and of what ncclprobe needs."""
    out = build.CACHE / f"torch-{TORCH}"
    if not (out / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", out], check=True, timeout=_INSTALL_S)
        pip: list[str | Path] = [out / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wanted = [f"torch=={TORCH}", "numpy", "ClusterShell", "hypothesis", *environment.requirements([])]
        subprocess.run([*pip, *wanted], check=True, timeout=_INSTALL_S)
        (out / "ready").touch()
    return out
