#!/usr/bin/env python3
"""`bandwidth` beside a bare loop of torch.distributed with the same calls, in turns.

    .venv/bin/python scripts/beside_bare.py [--pairs 20]                       gloo, two ranks
    scripts/torch_on_cpu.py -- python scripts/beside_bare.py --backend nccl    NCCL on a processor, two ranks

Each turn measures all_reduce with both, at the same sizes, batches and calls; what is compared is the fastest batch, by
the mean over ranks: on a machine that is shared the others say what else ran. A ratio is the bus bandwidth of
`bandwidth` by that of the loop. The one that goes first changes with each turn. Prints a table and the load of the
machine before and after; reports/beside-bare.md keeps it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from gpu_stages import processes
from gpu_stages.machine import free_port
from on_cpu import machine
from tables import table

ITERS, BATCHES, WARMUP = 5, 20, 5
SIZES = {"gloo": (1 << 20, 4 << 20, 16 << 20), "nccl": (1 << 20, 4 << 20)}
_LIMIT_S = 120.0
_BARE = "BESIDE_BARE"


def bare(backend: str, *, rotates: bool) -> None:
    """Be one rank of the loop, over as much memory as `bandwidth`, or one buffer; rank 0 prints JSON."""
    import torch
    import torch.distributed as dist

    from ncclprobe.probes.buffers import footprint

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = "cuda" if backend == "nccl" else "cpu"
    wait = torch.cuda.synchronize if backend == "nccl" else bool  # gloo waits for each call
    dist.init_process_group(backend)
    found: dict[int, float] = {}
    for nbytes in SIZES[backend]:
        # Ones, since zeros that were never written are all one page of the kernel's, which is in the cache.
        whole = torch.ones(max(nbytes, footprint(nbytes, 1)) // 4, dtype=torch.float32, device=device)
        views = cycle(whole.split(nbytes // 4)[: len(whole) * 4 // nbytes] if rotates else [whole[: nbytes // 4]])
        batches = []
        for batch in range(-1, BATCHES):
            wait()
            dist.barrier()
            wait()
            start = time.perf_counter()
            for _ in range(WARMUP if batch < 0 else ITERS):
                dist.all_reduce(next(views))
            wait()
            took = torch.tensor([(time.perf_counter() - start) / ITERS * 1e6], dtype=torch.float64, device=device)
            dist.all_reduce(took)
            if batch >= 0:
                batches.append(float(took) / dist.get_world_size())
        found[nbytes] = min(batches)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _run(commands: Sequence[Sequence[str]], backend: str, variables: Sequence[dict[str, str]], folder: Path) -> str:
    """Run processes of one job, and return what the first one printed. Ends with a message where one fails or hangs."""
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **(machine.FAST if backend == "nccl" else {}),
    }
    jobs = [
        processes.start([sys.executable, *command], folder / f"{number}.log", {**settings, **own})
        for number, (command, own) in enumerate(zip(commands, variables, strict=True))
    ]
    ends = processes.wait(jobs, _LIMIT_S)
    if any(end.code for end in ends):
        raise SystemExit(f"{' '.join(commands[0])}: {'; '.join(map(str, ends))}")
    return ends[0].text


def loop(backend: str, folder: Path, more: Sequence[str] = ()) -> dict[int, float]:
    """Run the loop; microseconds by size."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), _BARE: "1"}
    ranks = [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
    said = _run([[str(Path(__file__).resolve()), "--backend", backend, *more]] * 2, backend, ranks, folder)
    line = next(line for line in said.splitlines() if line.startswith("{"))
    return {int(nbytes): float(us) for nbytes, us in json.loads(line).items()}


def ours(backend: str, folder: Path) -> dict[int, float]:
    """Run `bandwidth`; microseconds by size."""
    sizes, path = SIZES[backend], folder / "report.json"
    options = ["--backend", backend, "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "4", "-n", str(ITERS)]
    options += ["--batches", str(BATCHES), "-w", str(WARMUP), "--no-transport-detection", "--repeat", "0"]
    options += ["--quiet", "--nproc", "2", "--timeout", str(int(_LIMIT_S - 20)), "--json", str(path)]
    _run([["-m", "ncclprobe.bandwidth", *options]], backend, [{}], folder)
    rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    return {row["nbytes"]: row["time_us"]["min"] for row in rows if row["place"] == rows[0]["place"]}


def rows(backend: str, pairs: int, more: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """Measure in turns; a row per size."""
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for turn in range(pairs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if turn % 2:
                mine, other = ours(backend, folder), loop(backend, folder, more)
            else:
                other, mine = loop(backend, folder, more), ours(backend, folder)
        for nbytes in SIZES[backend]:
            seen[nbytes].append((mine[nbytes], other[nbytes]))
    for nbytes, times in seen.items():
        ratios = sorted(bare_us / our_us for our_us, bare_us in times)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        own_us, loop_us = (statistics.median(each) for each in zip(*times, strict=True))
        size = f"{nbytes >> 20} MiB"
        best = min(bare_us for _, bare_us in times) / min(our_us for our_us, _ in times)
        median = f"{statistics.median(ratios):.3f}"
        yield size, f"{own_us:.0f}", f"{loop_us:.0f}", median, f"{low:.3f} to {high:.3f}", f"{best:.3f}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, metavar="N")
    parser.add_argument("--backend", choices=tuple(SIZES), default="gloo")
    parser.add_argument("--one-buffer", action="store_true", help="let the loop use the same bytes in each call")
    options = parser.parse_args()
    if os.environ.get(_BARE):
        bare(options.backend, rotates=not options.one_buffer)
        return 0
    before = os.getloadavg()[0]
    found = list(rows(options.backend, options.pairs, ["--one-buffer"] if options.one_buffer else []))
    print(f"{options.backend}, {options.pairs} pairs, load {before:.1f} before and {os.getloadavg()[0]:.1f} after")
    print(
        *table(("size", "bandwidth, us", "loop, us", "ratio, median", "its middle half", "ratio of the best"), found),
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
