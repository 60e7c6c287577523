"""``python -m gpu_stages.estimate_rank LIBRARY FOLDER``: one rank of a communicator that is asked and never used.

RANK and WORLD_SIZE say which. Every rank asks, for NCCL connects to its peers before it estimates (group.cc,
ncclPrepareTasksAndCollPreconnect). Rank 0 leaves the id and, for every operation and size, the estimate in FOLDER.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpu_stages.nccl_calls import OPS, Nccl

SIZES = tuple(8 << shift for shift in range(30))
_MEET_S = 60.0
_POLL_S = 0.02


def main() -> None:
    """Be the rank."""
    nccl, folder = Nccl(Path(sys.argv[1])), Path(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    buffer = _buffer()
    if rank == 0:
        whole = folder / "id.part"
        whole.write_bytes(nccl.unique_id())
        whole.rename(folder / "id")
    communicator = nccl.communicator(_read(folder / "id"), rank, ranks)
    rows = [(op, size, nccl.estimate_us(op, size, ranks, communicator, buffer)) for op in OPS for size in SIZES]
    if rank == 0:
        (folder / "estimates.json").write_text(json.dumps({"version": nccl.version(), "rows": rows}))
        (folder / "over").touch()
    _read(folder / "over")
    nccl.abort(communicator)


def _buffer() -> int:
    """An address on the GPU, where there is one: nothing is read there, but NCCL may ask what it is."""
    import torch

    _kept.append(torch.zeros(1 << 20, device="cuda" if torch.cuda.is_available() else "cpu"))
    return int(_kept[0].data_ptr())


_kept: list[Any] = []
"""What must live as long as the process."""


def _read(path: Path) -> bytes:
    """The bytes of a file, once it is there. Raises TimeoutError."""
    late = time.monotonic() + _MEET_S
    while not path.exists():
        if time.monotonic() > late:
            raise TimeoutError(f"{path.name} did not come in {_MEET_S:.0f} s")
        time.sleep(_POLL_S)
    return path.read_bytes()


if __name__ == "__main__":
    main()
