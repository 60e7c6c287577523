"""``python -m gpu_stages.standin_perf -b BYTES -e BYTES -f FACTOR -n ITERS …``: stands in for all_reduce_perf.

A bare loop of gloo's all_reduce on one rank, in and out of place, in the table that nccl-tests prints.
"""

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_WARMUP = 5
_COLUMNS = "   time   algbw   busbw  #wrong"
_HEAD = (
    "# Collective test starting: all_reduce_perf",
    "# nThread 1 nGpus 1 minBytes {begin} maxBytes {end} step: {factor}(factor) warmup iters: 5 iters: {iters}",
    "#  Rank  0 Group  0 Pid      1 on       host device  0 [0000:00:00] a stand-in",
    "#       size         count      type   redop    root  " + 2 * _COLUMNS,
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    for flag, name in (("-b", "begin"), ("-e", "end"), ("-f", "factor"), ("-n", "iters")):
        parser.add_argument(flag, dest=name, type=int, required=True)
    args, _ = parser.parse_known_args()
    print("\n".join(_HEAD).format(**vars(args)))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        nbytes = args.begin
        while nbytes <= args.end:
            print(_line(nbytes, args.iters), flush=True)
            nbytes = args.end if nbytes < args.end < nbytes * args.factor else nbytes * args.factor
        dist.destroy_process_group()
    print("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n#")


def _line(nbytes: int, iters: int) -> str:
    send = torch.zeros(max(1, nbytes // 4))
    receive = torch.zeros_like(send)

    def out_of_place() -> None:
        receive.copy_(send)
        dist.all_reduce(receive)

    row = f"{nbytes:>12} {send.numel():>13}     float     sum      -1"
    for call in (out_of_place, lambda: dist.all_reduce(send)):
        us = _us(call, iters)
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
