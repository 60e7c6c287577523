#!/usr/bin/env python3
"""Rates of --path-rates beside fio's on the same folder, alternating: the ratio of each kind with its 95 % interval.

usage: bench_path_rates.py FOLDER [ROUNDS [KIND...]]      needs fio; writes 384 MiB into a folder of its own in FOLDER

fio is asked for what is measured here: psync, one thread, blocks of 1 MiB (random: 128 KiB), pages dropped before, the
fsync counted. Who goes first changes from round to round.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ncclprobe.host.path_child import PathChild
from ncclprobe.model.path_rates import PathRate, RateKind, shown
from ncclprobe.stats import median_interval

NBYTES, FILE = 64 << 20, 256 << 20
PATIENCE_S = 60.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    try:
        data = folder / "data"
        data.write_bytes(os.urandom(FILE))
        descriptor = os.open(data, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
        for kind in sys.argv[3:] or ("write", "read", "random"):
            rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
            compare(kind, folder, 3 * rounds if kind == "random" else rounds)  # those take a tenth of the time
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(kind: Any, folder: Path, rounds: int) -> None:
    ways: tuple[Callable[[RateKind, Path, int], float], ...] = (ours, fio)
    seen: dict[Any, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 else ways[::-1]:
            settle(folder)
            seen[way].append(way(kind, folder, number))
    ratios = [a / b for a, b in zip(seen[ours], seen[fio], strict=True)]
    low, high = median_interval(ratios)
    each = ", ".join(f"{way.__name__} {shown(kind, statistics.median(seen[way]))}" for way in ways)
    print(
        f"{kind}: {each}; ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] of {rounds} rounds", flush=True
    )


def settle(folder: Path) -> None:
    """Have the journal take what the one before left, its removed file above all: the next one's fsync would pay."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def ours(kind: RateKind, folder: Path, number: int) -> float:
    asked = folder if kind == "write" else folder / "data"
    child = PathChild(str(asked))
    try:
        own = child.ask("write", PATIENCE_S, host="bench", text="x")["folder"] if kind == "write" else ""
        more: dict[str, Any] = {"kind": kind, "folder": own, "nbytes": NBYTES, "seconds": PATIENCE_S / 2}
        said = child.ask("rate", PATIENCE_S, place=number, at_once=1, **more)
        if own:
            child.ask("clean", PATIENCE_S, folder=own)
    finally:
        child.close()
    return PathRate("", kind, nbytes=said["nbytes"], count=said["count"], seconds=said["seconds"]).per_s


def fio(kind: RateKind, folder: Path, number: int) -> float:
    name = folder / ("written" if kind == "write" else "data")
    words = ["--name=x", "--ioengine=psync", "--output-format=json", f"--filename={name}", "--overwrite=0"]
    words += {
        "write": ["--rw=write", "--bs=1M", f"--size={NBYTES}", "--end_fsync=1", "--fallocate=none"],
        "read": ["--rw=read", "--bs=1M", f"--size={NBYTES}", f"--offset={number * NBYTES % FILE}"],
        "random": ["--rw=randread", "--bs=128k", f"--size={FILE}", "--io_size=8M", f"--randseed={number}"],
        "open": [],
    }[kind]
    done = subprocess.run(["fio", *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    side = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write" if kind == "write" else "read"]
    if kind == "write":
        name.unlink()
    return float(side["iops"] if kind == "random" else side["bw_bytes"])


if __name__ == "__main__":
    main()
