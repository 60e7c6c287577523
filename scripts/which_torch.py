"""Run by .venv's Python: say in one line of JSON which torch and which NCCL a measurement here would use."""

import json
from pathlib import Path

import torch
import torch.cuda.nccl
import torch.distributed


def nccl_version() -> str | None:
    """The version the loaded library gives; None where torch is built without NCCL."""
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def mapped_libraries(stem: str) -> list[str]:
    """The files of this process' memory map whose name begins with `stem`: what is loaded, not what is installed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(stem))


if __name__ == "__main__":
    answer = {
        "version": torch.__version__,
        "folder": str(Path(torch.__file__).parent),
        "gpus": torch.cuda.device_count(),
        "nccl": nccl_version(),
        "libnccl": mapped_libraries("libnccl.so"),
    }
    print(json.dumps(answer))
