"""``python -m gpu_stages.one_rank BACKEND OP[,OP] SIZE[,SIZE] PATH [ITERS]``: our measuring loop, one rank.

The command itself refuses one rank, which moves no byte between ranks; the loop beneath it is the same. Rows go to PATH
as JSON: bytes, place, microseconds of a call by the wall clock and by CUDA events, wrong elements.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.host.live import LiveHost
from ncclprobe.model.measurement import Measurement
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.sweep import run
from ncclprobe.session.ranks.identity import Backend

ITERS = 20


class _Alone:
    """The exchange of a run with one rank."""

    def collect(self, value: Any) -> Sequence[Any]:
        return [value]

    def share(self, value: Any) -> Any:
        return value


_MOST_BYTES_OF_SLOTS = 64 << 20


def rows(backend: Backend, ops: tuple[str, ...], sizes: tuple[int, ...], iters: int) -> Iterator[dict[str, Any]]:
    """The rows of `ops`, as `iters` calls after 5 untimed ones."""
    plan = Plan(
        ops=ops,
        sizes=sizes,
        rank=0,
        ranks=1,
        nodes=1,
        backend=backend,
        device="cuda:0" if backend == "nccl" else "cpu",
        iters=iters,
        batches=1,
        rounds=0,
        footprint_bytes=_MOST_BYTES_OF_SLOTS,
    )
    host = LiveHost((), lambda name: False)
    for row in run(plan, _Alone(), lambda phase: None, host=host):
        if isinstance(row, Measurement):
            times = {"mean_us": row.time_us.mean, "device_us": row.device_us}
            yield {"op": row.op, "nbytes": row.nbytes, "place": row.place, "wrong": row.wrong, **times}
    host.close()


def measured(backend: Backend, ops: Sequence[str], sizes: Sequence[int], iters: int) -> list[dict[str, Any]]:
    """The same in a process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        found = list(rows(backend, tuple(ops), tuple(sizes), iters))
        dist.destroy_process_group()
    return found


def main() -> None:
    """Measure and write."""
    backend: Backend = "nccl" if sys.argv[1] == "nccl" else "gloo"
    ops, sizes, path = sys.argv[2:5]
    iters = int(sys.argv[5]) if len(sys.argv) > 5 else ITERS
    if backend == "nccl":
        torch.cuda.set_device(0)
    found = measured(backend, ops.split(","), list(map(int, sizes.split(","))), iters)
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
