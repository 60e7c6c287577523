"""Measure how fast `ncclprobe explain` reads a large job's logs, beside `grep -c NCCL` on the same bytes.

    .venv/bin/python scripts/bench_logs.py [--ranks 1024] [--megabytes 10] [--form plain|docker|gz] [--folder DIR]

Makes a log of a rank that trains, with NCCL's INFO lines and a failure at its end, and as many hard links to variants
of it as there are ranks, so that ten gigabytes need no ten gigabytes of disk: all are read from the page cache.
"""

import argparse
import gzip
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from child import spent

_VARIANTS = 16
_INFO = 0.1
"""Share of lines that are NCCL's: in the logs of a job with NCCL_DEBUG=INFO it is less."""


def log_of(rank: int, nbytes: int) -> bytes:
    """Return the log of one rank, of about `nbytes`."""
    some, head = random.Random(rank), f"gpu{rank // 8:03d}:{4000 + rank}:{4000 + rank} [{rank % 8}] NCCL INFO"
    comm = f"comm 0x55d0 rank {rank} nranks {_VARIANTS} cudaDev {rank % 8} busId 1b000 commId 0x77"
    lines, length = [f"{head} {comm} - Init COMPLETE"], 0
    while length < nbytes:
        step = len(lines)
        at = f"2026-11-22 10:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d}"
        speed = f"loss {some.random():.5f} grad_norm {some.random():.3f} tokens/s {some.randrange(90000)} mem 61.2GiB"
        line = f"[rank{rank}]: {at} INFO train.py:101 step {step} {speed}"
        if some.random() < _INFO:
            line = f"{head} Channel {step % 32:02d}/0 : {rank}[{rank % 8}] -> 9[1] [send] via NET/IB/3/GDRDMA"
        lines.append(line)
        length += len(line) + 1
    work = "WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    glog = f"[rank{rank}]:[E1122 10:59:00.5 ProcessGroupNCCL.cpp:607] [Rank {rank}]"
    lines.append(f"{glog} Watchdog caught collective operation timeout: {work} ran for 600001 milliseconds")
    return "\n".join(lines).encode() + b"\n"


def _docker(log: bytes) -> bytes:
    """The log as Docker keeps it: one JSON object for each line."""
    at = {"stream": "stdout", "time": "2026-11-22T10:00:00.000000000Z"}
    return "".join(json.dumps({"log": f"{line}\n", **at}) + "\n" for line in log.decode().splitlines()).encode()


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": (".log", lambda log: log),
    "docker": (".log", _docker),
    "gz": (".log.gz", lambda log: gzip.compress(log, 6)),
}


def made(folder: Path, ranks: int, nbytes: int, form: str) -> list[Path]:
    """Write the variants, each of `nbytes` before it is given its form, and a link for each rank."""
    ending, formed = FORMS[form]
    logs = [folder / "logs" / f"rank{rank}{ending}" for rank in range(ranks)]
    logs[0].parent.mkdir()
    for rank, path in enumerate(logs):
        if rank < _VARIANTS:
            path.write_bytes(formed(log_of(rank, nbytes)))
        else:
            os.link(logs[rank % _VARIANTS], path)
    return logs


def main() -> int:
    """Measure, and print one line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--form", choices=FORMS, default="plain")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        logs = made(Path(name), options.ranks, int(options.megabytes * 1e6), options.form)
        total = sum(path.stat().st_size for path in logs)
        print(f"{len(logs)} logs, {total / 1e9:.2f} GB, {os.cpu_count()} cores")
        for title, command in (
            ("grep -c NCCL", ["sh", "-c", f"grep -c NCCL {name}/logs/* | tail -1"]),
            ("ncclprobe explain", [sys.executable, "-m", "ncclprobe", "explain", f"{name}/logs", "-q"]),
        ):
            cost = spent(command)
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            print(f"{title:<18} {cost.seconds:7.1f} s  {total / cost.seconds / 1e6:6.0f} MB/s  "
                  f"{cost.processor_s:7.1f} s of processors  largest process so far {largest} MiB  "
                  f"{cost.text.strip()[-160:]}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
