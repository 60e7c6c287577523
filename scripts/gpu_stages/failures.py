"""Stage 2. Real failures, recorded: for each fault a job of its own, and everything that can be seen of it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_stages import processes
from gpu_stages.failure_job import END_S, MOMENTS, START_S
from gpu_stages.faults import FAULTS, RANKS, Fault
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = (
    "NCCL by gloo: the faults are real, torch's errors are gloo's, the flight recorder's dumps are of gloo's calls",
    "illegal address on a GPU: a segmentation fault on the host; out of memory: the host's allocator refuses",
)
NOT_RUN = (
    "NCCL_DEBUG logs, the watchdog of ProcessGroupNCCL and the dump that it writes itself",
    "NCCL RAS at three moments (its client is tested against a server of the tests')",
    "nvidia-smi at three moments, Xids in the kernel's log",
    "other-algorithm: gloo reads no NCCL_ALGO, so the job ends well",
)
_WORDS = re.compile(r"Watchdog caught|NCCL WARN|\b\w*Error: |Fatal Python error")
_JOB_S = START_S + END_S + 45.0
_LEAST_S = 40.0


def run_steps(context: Context, log: StepLog) -> None:
    """Every fault, one after the other."""
    for fault in FAULTS:
        log.run(fault.name, _job, fault, least_s=_LEAST_S)


def _job(context: Context, folder: Path, fault: Fault) -> Outcome:
    command = [sys.executable, "-m", "gpu_stages.failure_job", fault.name, folder, context.backend]
    mark = f"{context.mark}/{fault.name}"
    ended = processes.run(command, folder / "job.log", {**context.variables, processes.MARK: mark}, _JOB_S)
    processes.kill_marked(mark)
    if ended.code == 3:
        raise Refused(processes.last_line(ended.text))
    if ended.code != 0:
        return Outcome({}, (str(ended),))
    found = json.loads((folder / "end.json").read_text())
    counts = {kind: len(_non_empty(folder, pattern)) for kind, pattern in KINDS.items()}
    evidence = {"exits": " ".join(map(str, found["codes"])), "said": first_error(folder), **counts}
    return Outcome(evidence, tuple(_lacking(fault, context, found["codes"], counts)))


KINDS = {
    "stacks": "rank*.stacks.txt",
    "kernel views": "*.proc.txt",
    "dumps": "*.fr.pickle*",
    "JSON dumps": "*.fr.json",
    "NCCL logs": "*.nccl.log",
    "RAS texts": "*.ras.txt",
    "RAS JSON": "*.ras.json",
    "nvidia-smi": "*.nvidia-smi.txt",
}
_OF_NCCL = ("NCCL logs", "RAS texts", "RAS JSON")


def _non_empty(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.stat().st_size]


def _lacking(fault: Fault, context: Context, codes: list[int | None], counts: dict[str, int]) -> Iterator[str]:
    """Which evidence is not there, and a job that did not end as its fault must."""
    wanted = {"kernel views": RANKS * len(MOMENTS)}
    wanted |= {} if fault.at_start else {"stacks": RANKS, "dumps": RANKS, "JSON dumps": RANKS}
    wanted |= {} if context.rehearse else dict.fromkeys(_OF_NCCL, 1)
    if fault.network == "master":
        wanted.pop("NCCL logs", None)  # torch opens NCCL once the ranks have met
    wanted |= {} if context.rehearse else {"nvidia-smi": 1}
    yield from (f"{counts[kind]} {kind}, {least} wanted" for kind, least in wanted.items() if counts[kind] < least)
    harmless = not fault.cause or (context.rehearse and fault.name == "other-algorithm")
    if harmless != (set(codes) == {0}) and not fault.unnoticed:
        yield f"the ranks ended with {codes}"


def first_error(folder: Path) -> str:
    """The first line of any rank that speaks of an error, for a reader of the summary."""
    for path in sorted(folder.glob("rank*.log")):
        if path.name.endswith(".nccl.log"):
            continue
        for line in path.read_text(errors="replace").splitlines():
            if _WORDS.search(line):
                return f"{path.stem}: {line.strip()[:160]}"
    return ""
