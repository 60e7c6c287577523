"""A virtual environment with torch's CUDA wheels, unmodified but for two libraries, which are the stand-ins'."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import environment

from stand_in import build

INSTALL_S = 3600.0
REPLACED = {build.CUDART: "nvidia/cu13/lib", build.NCCL: "nvidia/nccl/lib"}
"""torch finds these by its own DT_RPATH, before LD_LIBRARY_PATH."""
_OPERATIONS = "torch_ops"
_ABOUT = "Metadata-Version: 2.1\nName: fake-cuda\nVersion: 1\n"
_ENTRY = f"[torch.backends]\nfake_cuda = {_OPERATIONS}:register\n"


def make(folder: Path, torch: str) -> Path:
    """Return the environment of a release of torch, made in `folder` if it is not there.

    Raises BuildError, OSError, CalledProcessError, TimeoutExpired.
    """
    wheels = folder / f"wheels-{torch}"
    if not (wheels / "ready").exists():
        _install(wheels, torch)
    out = folder / f"torch-{torch}-{_digest()}"
    if (out / "ready").exists():
        return out
    site = _site(wheels)
    real = [site / place / name for name, place in REPLACED.items()]
    include = build.headers([site / "nvidia/cu13/include"])
    if not include or not all(path.exists() for path in real):
        raise build.BuildError(f"torch {torch} as pip installed it is not a build for CUDA 13")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(wheels, out, symlinks=True, copy_function=os.link)  # hard links: a copy takes no room
    (out / "ready").unlink()
    began = time.monotonic()
    build.build(out / "stand-in", [*include, site / "nvidia/nccl/include"], real)
    print(f"built the stand-ins in {time.monotonic() - began:.0f} s", file=sys.stderr)
    _replace(_site(out), out / "stand-in")
    (out / "ready").touch()
    return out


def _install(wheels: Path, torch: str) -> None:
    """The wheels of torch and of all that it needs, of what ncclprobe needs, and CUDA's headers of the same version."""
    subprocess.run([sys.executable, "-m", "venv", wheels], check=True, timeout=INSTALL_S)
    pip: list[str | Path] = [wheels / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"torch=={torch}", "numpy", *environment.requirements([])]
    subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_S)
    runtime = next(_site(wheels).glob("nvidia_cuda_runtime-13.*"), None)
    if found := runtime and re.search(r"-(13\.\d+)\.", runtime.name):
        parts = [f"nvidia-cuda-{part}~={found[1]}.0" for part in ("crt", "cccl")]
        subprocess.run([*pip, *parts], check=True, timeout=INSTALL_S)
    (wheels / "ready").touch()


def _replace(site: Path, lib: Path) -> None:
    """Put the stand-ins in the place of two libraries, and let torch load its operations."""
    for name, place in REPLACED.items():
        (site / place / name).unlink()
        shutil.copy(lib / (build.NCCL_FILE if name == build.NCCL else name), site / place)
    build.link_nccl(site / REPLACED[build.NCCL])
    shutil.copy(build.SOURCES / f"{_OPERATIONS}.py", site)
    about = site / "fake_cuda-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(_ABOUT)
    (about / "entry_points.txt").write_text(_ENTRY)


def _site(venv: Path) -> Path:
    return next(venv.glob("lib/python*/site-packages"))


def _digest() -> str:
    """Of our own sources: another environment is made when one of them changes."""
    found = hashlib.sha256()
    own = [path for path in build.SOURCES.glob("*") if path.suffix in (".cc", ".h")]
    own += [
        build.SOURCES / f"{_OPERATIONS}.py",
        build.ROOT / "tests" / "fake_nvml.c",
        Path(build.__file__),
        Path(__file__),
    ]
    for path in sorted(own):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]
