"""Stage 3. Deadlines: whatever a rank, a kernel or the driver waits for, our commands end when they said they would."""

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes, standins
from gpu_stages.processes import MARK, End, Started
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = (
    "NCCL's kernel that spins on a GPU by gloo's call that waits on the host",
    "a driver call that blocks by tests/fake_nvml.c, which sleeps in nvmlInit, and a nvidia-smi that sleeps",
)
NOT_RUN = (
    "ncclCommAbort of a communicator whose kernel spins",
    "a kernel that computes for longer than the deadline",
    "the GPU is free afterwards",
)
RANKS = 3
TIMEOUT_S = 25.0
OVER_S = 2.0
"""So much later than --timeout at most may a command end: its own promise."""
_PATIENCE_S = TIMEOUT_S + 15.0
_BEFORE_S = 40.0
_ROWS = ("-b", "1K", "-e", "16M", "-f", "16384", "-n", "300", "-w", "1", "--batches", "1")
_TIMES = ("--timeout", f"{TIMEOUT_S:g}", "--phase-timeout", "10")
_MARGIN_MIB = 64
_SPIN = """
import sys, torch
torch.cuda.set_device(0)
torch.cuda._sleep(1 << 62)
print("spins", flush=True)
torch.cuda.synchronize()
"""


def run_steps(context: Context, log: StepLog) -> None:
    """Each kind of waiting."""
    before = gpu_memory_mib(context)
    log.run("a rank that never joins", _never_joins, least_s=_PATIENCE_S)
    log.run("a rank that is stopped", _hit, signal.SIGSTOP, least_s=_PATIENCE_S)
    log.run("a rank that is killed", _hit, signal.SIGKILL, least_s=_PATIENCE_S)
    log.run("another process's kernel spins", _spinning, least_s=_PATIENCE_S)
    log.run("NVML and nvidia-smi block", _driver_blocks, least_s=_PATIENCE_S)
    log.run("the GPU is free", _free, before)


def _never_joins(context: Context, folder: Path) -> Outcome:
    """All ranks but the last one are started."""
    programs = _start(context, folder, RANKS - 1, RANKS)
    return _judged(context, folder, processes.wait(programs, _PATIENCE_S))


def _hit(context: Context, folder: Path, number: signal.Signals) -> Outcome:
    """Send the last rank a signal in the middle of a row."""
    programs = _start(context, folder, RANKS, RANKS)
    if not processes.wait_until(lambda: _rows(folder) > 0, TIMEOUT_S):
        ends = processes.wait(programs, 0.0)
        return Outcome({}, ("no row was measured before the deadline", *map(str, ends)))
    os.kill(programs[-1].pid, number)
    others = processes.wait(programs[:-1], _PATIENCE_S)
    processes.end(programs[-1])
    return _judged(context, folder, others)


def _spinning(context: Context, folder: Path) -> Outcome:
    """A foreign kernel holds the GPU: our own ranks take turns with it, or do not get one."""
    if context.rehearse:
        raise Refused("there is no GPU to spin on")
    spinner = processes.start([sys.executable, "-c", _SPIN], folder / "spinner.log", context.variables)
    try:
        if not processes.wait_until(lambda: "spins" in spinner.log.read_text(), _BEFORE_S):
            raise Refused(f"no kernel spins: {processes.last_line(spinner.log.read_text())}")
        programs = _start(context, folder, 2, 2)
        return _judged(context, folder, processes.wait(programs, _PATIENCE_S))
    finally:
        processes.end(spinner)


def _driver_blocks(context: Context, folder: Path) -> Outcome:
    """The doctor asks NVML and nvidia-smi, neither of which ever answers."""
    if not (context.standins / "nvml").exists():
        raise Refused("there is no libnvidia-ml of our own: no compiler built it")
    (folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    (folder / "nvidia-smi").chmod(0o755)
    env = {**standins.with_nvml(context.variables, context.standins), "FAKE_NVML_HANG": "1"}
    env["PATH"] = os.pathsep.join((str(folder), env.get("PATH", "")))
    command = machine.ncclprobe("doctor", "--local", "--no-config", *_TIMES[:2], "--json", folder / "report.json")
    ended = processes.run(command, folder / "rank0.log", _marked(env, folder), _PATIENCE_S)
    return _judged(context, folder, [ended])


def _start(context: Context, folder: Path, started: int, of: int) -> list[Started]:
    """Start the first ranks of a world on a row of seconds and one of many more."""
    options = [*_ROWS, *_TIMES, "--no-transport-detection", "--keep", folder / "kept", "--json", folder / "report.json"]
    command = machine.ncclprobe("bandwidth", "--backend", context.backend, *options)
    return machine.start_ranks(_marked(context.variables, folder), folder, range(started), of, command)


def _marked(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`variables` with a mark of this step's own, by which what it leaves is found."""
    return {**variables, MARK: f"{variables.get(MARK, '')}/{_slug(folder)}"}


def _slug(folder: Path) -> str:
    return re.sub(r"\W+", "-", folder.name)


def _rows(folder: Path) -> int:
    return sum(path.read_text().count('"row"') for path in folder.glob("kept/run.jsonl"))


def _judged(context: Context, folder: Path, ends: list[End]) -> Outcome:
    """When they ended, whether the report is whole, and what they left running."""
    late = max(end.seconds for end in ends)
    problems = [str(end) for end in ends if end.code not in (0, 2, 3, 4)]
    if late > TIMEOUT_S + OVER_S:
        problems.append(f"the last ended {late - TIMEOUT_S:.1f} s after its deadline")
    found: dict[str, Any] = {"seconds": late, "exits": " ".join(str(end.code) for end in ends)}
    try:
        report = machine.report(folder / "report.json")
        found |= {"status": report["status"], "exit": report["exit_code"]}
    except (OSError, ValueError) as error:
        problems.append(f"the report is not whole: {error}")
    time.sleep(1.0)  # what was killed needs a moment to be gone
    mark = f"{context.mark}/{_slug(folder)}"
    if left := processes.kill_marked(mark):
        problems.append(f"{left} processes were left running")
    return Outcome(found, tuple(problems))


def gpu_memory_mib(context: Context) -> int | None:
    """What is in use of the GPU; None where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        text = machine.output_of(context, *command, log=context.out / "stage3" / "memory.txt")
        return int(text.split()[0])
    except (Refused, ValueError, IndexError):
        return None


def _free(context: Context, folder: Path, before: int | None) -> Outcome:
    after = gpu_memory_mib(context)
    if before is None or after is None:
        raise Refused("nvidia-smi does not say how much memory of the GPU is in use")
    more = after - before
    return Outcome(
        {"before MiB": before, "after MiB": after}, (f"{more} MiB are still in use",) if more > _MARGIN_MIB else ()
    )
