#!/usr/bin/env python3
"""Set this machine up and look at it: make `.venv`, then run `ncclprobe doctor` and a two-rank bandwidth sweep.

    scripts/preflight

Both reports are printed and written to reports/runs/, as text and JSON. The torch measured is the caller's where
python3 (or $PYTHON) imports one. The exit code is the worse of the two: 1 (a broken tool) before 4 (something fails),
2 (wrong usage), 3 (inconclusive) and 0.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from child import ROOT, ask_json, run, run_script
from environment import ASK_S, make

RUNS = Path("reports/runs")  # below the root, where children run
RUN_S = 600.0  # a backstop: both end by themselves before
WORSE = (0, 3, 2, 4, 1)  # each code is worse than those before it

# Up to where NCCL's curve is flat. Gloo's says nothing about a network: it is to show that the way works.
NCCL_SWEEP = ("-b", "1K", "-e", "1G", "-f", "4")
GLOO_SWEEP = ("-b", "1K", "-e", "16M", "-f", "4", "--backend", "gloo")


class Torch(NamedTuple):
    """What scripts/which_torch.py says."""

    torch: str
    nccl: str
    gpus: int


def main() -> int:
    """Set up, look, measure; the worse of the two exit codes."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    python = make()
    torch = Torch(**ask_json([python, "scripts/which_torch.py"], deadline_s=ASK_S))
    nvidia = torch.gpus > 0 or nvidia_on_pci()
    say(f"torch {torch.torch}", f"libnccl {torch.nccl}", choice(torch, nvidia))
    (ROOT / RUNS).mkdir(parents=True, exist_ok=True)
    doctor, bandwidth = (probe(python, command) for command in plan(torch, nvidia))
    worst = max(doctor, bandwidth, key=WORSE.index)
    say(f"written: {RUNS}/{{doctor,bandwidth}}.{{txt,json}}")
    say(f"doctor exit {doctor}, bandwidth exit {bandwidth}: exit {worst}")
    return worst


def plan(torch: Torch, nvidia: bool) -> list[list[str]]:
    """The two commands. Gloo is always asked for by name, and the doctor only where the machine has no GPU at all: one
    whose driver is broken must not pass for a machine without."""
    doctor = ["doctor", *([] if nvidia else ["--backend", "gloo"])]
    return [doctor, ["bandwidth", "--nproc", "2", *(NCCL_SWEEP if torch.gpus >= 2 else GLOO_SWEEP)]]


def choice(torch: Torch, nvidia: bool) -> str:
    """Why the sweep uses the backend it uses."""
    if torch.gpus >= 2:
        return f"{torch.gpus} GPUs: two ranks over NCCL"
    if torch.gpus == 1:
        return "1 GPU: two ranks need two for NCCL, so the sweep asks for gloo by name, reported but not judged"
    if nvidia:
        return "torch sees none of the NVIDIA devices: the sweep asks for gloo by name, reported but not judged"
    return "no GPU: both ask for gloo by name, and the sweep is reported but not judged"


def nvidia_on_pci() -> bool:
    """Whether a device of NVIDIA (vendor 0x10de) that draws or computes (PCI class 0x03) is in this machine."""
    devices = Path("/sys/bus/pci/devices").glob("*")
    return any(
        (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith("0x03")
        for device in devices
    )


def probe(python: str, command: list[str]) -> int:
    """Run one command of ncclprobe, shown and kept; its exit code, or 1 where it hung or died."""
    report, text = RUNS / f"{command[0]}.json", RUNS / f"{command[0]}.txt"
    (ROOT / report).unlink(missing_ok=True)  # an earlier run's is not this one's
    command = [*command, "--json", str(report)]
    say(f"$ ncclprobe {shlex.join(command)}")
    with (ROOT / text).open("wb", buffering=0) as file:

        def tee(chunk: bytes) -> None:
            file.write(chunk)
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

        try:
            code = run([python, "-u", "-m", "ncclprobe", *command], deadline_s=RUN_S, sink=tee)
        except subprocess.TimeoutExpired:
            say(f"{command[0]} did not end within {RUN_S:g} s and was stopped")
            return 1
    return code if code in WORSE else 1


def say(*lines: str) -> None:
    """Print lines of our own, told apart from those of the two reports."""
    print(*(f"== {line}" for line in lines), sep="\n", flush=True)


if __name__ == "__main__":
    run_script(main)
