"""``python -m gpu_stages.standin_perf OP -b BYTES -e BYTES -f FACTOR -n ITERS …``: stands in for OP_perf.

A bare loop of gloo's all_reduce or all_gather on one rank, in and out of place, in the table that nccl-tests prints.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_WARMUP = 5


def _all_reduce(receive: Any, send: Any) -> None:
    if receive is not send:
        receive.copy_(send)
    dist.all_reduce(receive)


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "all_reduce": _all_reduce,
    "all_gather": lambda receive, send: dist.all_gather_into_tensor(receive, send),
}
_COLUMNS = "   time   algbw   busbw  #wrong"
_HEAD = (
    "# Collective test starting: {op}_perf",
    "# nThread 1 nGpus 1 minBytes {begin} maxBytes {end} step: {factor}(factor) warmup iters: 5 iters: {iters}",
    "#  Rank  0 Group  0 Pid      1 on       host device  0 [0000:00:00] a stand-in",
    "#       size         count      type   redop    root  " + 2 * _COLUMNS,
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("op", choices=CALLS)
    for flag, name in (("-b", "begin"), ("-e", "end"), ("-f", "factor"), ("-n", "iters")):
        parser.add_argument(flag, dest=name, type=int, required=True)
    args, _ = parser.parse_known_args()
    print("\n".join(_HEAD).format(**vars(args)))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        nbytes = args.begin
        while nbytes <= args.end:
            print(_line(nbytes, args.iters, CALLS[args.op]), flush=True)
            nbytes *= args.factor
        dist.destroy_process_group()
    print("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n#")


def _line(nbytes: int, iters: int, call: Callable[[Any, Any], object]) -> str:
    send = torch.zeros(max(1, nbytes // 4))
    row = f"{nbytes:>12} {send.numel():>13}     float     sum      -1"
    for receive in (torch.zeros_like(send), send):
        us = _us(lambda receive=receive: call(receive, send), iters)  # type: ignore[misc]
        row += f" {us:>8.2f} {nbytes / us / 1e3:>7.2f} {0.0:>7.2f}       0"
    return row


def _us(call: Callable[[], object], iters: int) -> float:
    for _ in range(_WARMUP):
        call()
    started = time.perf_counter()
    for _ in range(iters):
        call()
    return (time.perf_counter() - started) / iters * 1e6


if __name__ == "__main__":
    main()
