"""Run by .venv's Python: say in one line of JSON which torch and which NCCL a measurement here would use."""

import json
from pathlib import Path

import torch

from ncclprobe.probes import nccl_library

if __name__ == "__main__":
    nccl = nccl_library.loaded()
    where = (nccl.path or "linked into torch") if nccl else ""
    answer = {
        "torch": f"{torch.__version__} ({Path(torch.__file__).parent})",
        "nccl": f"{nccl} ({where})" if nccl else "none: torch is a CPU build",
        "gpus": torch.cuda.device_count(),
    }
    print(json.dumps(answer))
