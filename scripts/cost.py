#!/usr/bin/env python3
"""What does starting, explaining and judging cost, and what did it cost at another commit?

    .venv/bin/python scripts/cost.py [--against COMMIT] [--runs N] [--nodes N ...]

Printed is processor time, of all processes that a command starts, as medians of runs taken by turns: of an interpreter
with json and argparse (B), and of each command in its multiples; beside a commit, the ratio too. Judging N captures
that differ (tests/fleets) comes by the clock too, which says something only if nothing else runs. Both trees lie in
temporary folders, with byte code, and run with this interpreter and its libraries. What no processor tells, the number
of calls, scripts/calls.py keeps.
"""

import argparse
import compileall
import io
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "scripts"), str(ROOT / "tests")]  # behind PYTHONPATH, which says whose ncclprobe it is

from child import spent

GIT_S = 120.0
CAPTURE = "tests/captures/hgx-h200.jsonl"
COMMANDS = {
    "B": [sys.executable, "-c", "import json, argparse"],
    "doctor": [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "-q"],
    "expect": [sys.executable, "-m", "ncclprobe", "expect", "--machine", "dgx-h100"],
    "explain": [sys.executable, "-m", "ncclprobe", "explain", str(ROOT / "tests/data/failures/nccl-no-interface")],
}


def main() -> int:
    """Measure and print, or be the process that judges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1024, 2048])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = {"here": tree("", Path(folder, "here"))}
        if options.against:
            trees["there"] = tree(options.against, Path(folder, "there"))
        costs = starting(trees, options.runs)
        for count in options.nodes:
            costs |= judging(trees, count, Path(folder, str(count)))
    bare = min(costs["B", at] for at in trees)  # which no tree has a part in
    for name in dict.fromkeys(name for name, _ in costs):
        each = {at: costs[name, at] for at in trees}
        shown = ", ".join(f"{took * 1e3:.0f} ms {at} ({took / bare:.2f} B)" for at, took in each.items())
        ratio = f", ratio {costs[name, 'here'] / costs[name, 'there']:.3f}" if options.against else ""
        print(f"{name}: {shown}{ratio}")
    return 0


def tree(commit: str, folder: Path) -> Path:
    """Return a folder with the package of `commit`, or as it lies here, and with its byte code."""
    if commit:
        unpack(commit, folder)
    else:
        shutil.copytree(ROOT / "ncclprobe", folder / "ncclprobe", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "ncclprobe", quiet=2)
    return folder


def unpack(commit: str, folder: Path) -> None:
    """Write the files of `commit` to `folder`."""
    said = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=GIT_S)
    with tarfile.open(fileobj=io.BytesIO(said.stdout)) as archive:
        archive.extractall(folder, filter="data")


def within(code: Path, command: list[str]) -> list[str]:
    """Return the command with the package of the folder `code`."""
    return ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPATH={code}", "PYTHONSAFEPATH=1", *command]


def starting(trees: dict[str, Path], runs: int) -> dict[tuple[str, str], float]:
    """Return the seconds of processors of each command, by its name and whose it is."""
    times: dict[tuple[str, str], list[float]] = {(name, at): [] for name in COMMANDS for at in trees}
    for _ in range(runs):
        for name, at in times:
            times[name, at].append(spent(within(trees[at], COMMANDS[name])).processor_s)
    return {key: statistics.median(found) for key, found in times.items()}


def judging(trees: dict[str, Path], count: int, folder: Path) -> dict[tuple[str, str], float]:
    """Return the seconds of processors to judge so many captures, and those by the clock, by name and tree."""
    from fleets import captures

    folder.mkdir()
    captures.write(ROOT / CAPTURE, count, folder)
    found = {}
    for at, code in trees.items():
        began = time.monotonic()
        told = spent(within(code, [sys.executable, "-m", "ncclprobe", "doctor", str(folder), "-q"]))
        found[f"{count} captures by the clock", at] = time.monotonic() - began
        found[f"{count} captures", at] = told.processor_s
    return found


if __name__ == "__main__":
    sys.exit(main())
