"""``python -m gpu_stages.inventory``: what this machine has of what the stages need, as one line of JSON."""

import importlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

MODULES = ("msgspec", "psutil", "pynvml", "hypothesis", "numpy", "torch")
PROGRAMS = ("nvidia-smi", "nvcc", "gcc", "make", "ip", "nft", "iptables", "unshare", "torchrun")


def torch_says() -> dict[str, Any]:
    """torch, its NCCL and its GPUs."""
    import torch

    from ncclprobe.probes import nccl_library

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    nccl = nccl_library.loaded()
    named = str(nccl) if nccl else None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": named, "gpus": gpus}


def missing() -> dict[str, str]:
    """Modules that cannot be imported, and why."""
    found = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found[name] = str(error)
    return found


def main() -> None:
    """Print it."""
    absent = missing()
    found: dict[str, Any] = {"gpus": [], **({} if "torch" in absent else torch_says()), "missing": absent}
    found |= {name: shutil.which(name) for name in PROGRAMS}
    found |= {
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "cpus": os.cpu_count(),
    }
    found |= {"uid": os.geteuid(), "libc": " ".join(platform.libc_ver()), "interfaces": _interfaces()}
    print(json.dumps(found))


def _interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


if __name__ == "__main__":
    main()
