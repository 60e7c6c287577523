"""Stage 2. Real failures, recorded: for each fault a job of its own, and everything that can be seen of it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_stages import processes
from gpu_stages.failure_job import END_S, MOMENTS, START_S
from gpu_stages.faults import FAULTS, RANKS, Fault
from gpu_stages.notebook import Hour, Notebook, Outcome, Refused

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


def play(hour: Hour, notebook: Notebook) -> None:
    """Every fault, one after the other."""
    for fault in FAULTS:
        notebook.step(fault.name, _job, fault, least_s=_LEAST_S)


def _job(hour: Hour, folder: Path, fault: Fault) -> Outcome:
    command = [sys.executable, "-m", "gpu_stages.failure_job", fault.name, folder, hour.backend]
    mark = f"{hour.mark}/{fault.name}"
    ended = processes.run(command, folder / "job.log", {**hour.variables, processes.MARK: mark}, _JOB_S)
    processes.clear(mark)
    if ended.code == 3:
        raise Refused(processes.last_line(ended.text))
    if ended.code != 0:
        return Outcome({}, (str(ended),))
    found = json.loads((folder / "end.json").read_text())
    counts = {kind: len(_full(folder, pattern)) for kind, pattern in KINDS.items()}
    told = {"exits": " ".join(map(str, found["codes"])), "said": first_words(folder), **counts}
    return Outcome(told, tuple(_lacking(fault, hour.rehearse, found["codes"], counts)))


KINDS = {
    "stacks": "rank*.stacks.txt",
    "kernel views": "*.proc.txt",
    "dumps": "*.fr.pickle*",
    "framed dumps": "*.fr.framed.pickle",
    "JSON dumps": "*.fr.json",
    "NCCL logs": "*.nccl.log",
    "RAS texts": "*.ras.txt",
    "RAS JSON": "*.ras.json",
    "nvidia-smi": "*.nvidia-smi.txt",
}
_OF_NCCL = ("NCCL logs", "RAS texts", "RAS JSON", "nvidia-smi")


def _full(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.stat().st_size]


def _lacking(fault: Fault, rehearse: bool, codes: list[int | None], counts: dict[str, int]) -> Iterator[str]:
    """Which evidence is not there, and a job that did not end as its fault must."""
    wanted = {"kernel views": RANKS * len(MOMENTS)}
    wanted |= {} if fault.at_start else {"stacks": RANKS, "dumps": RANKS, "JSON dumps": RANKS}
    wanted |= {} if rehearse else dict.fromkeys(_OF_NCCL, 1)
    yield from (f"{counts[kind]} {kind}, {least} wanted" for kind, least in wanted.items() if counts[kind] < least)
    harmless = not fault.cause or (rehearse and fault.name == "other-algorithm")
    if harmless != (set(codes) == {0}):
        yield f"the ranks ended with {codes}"


def first_words(folder: Path) -> str:
    """The first line of any rank that speaks of an error, for a reader of the summary."""
    for path in sorted(folder.glob("rank*.log")):
        if path.name.endswith(".nccl.log"):
            continue
        for line in path.read_text(errors="replace").splitlines():
            if _WORDS.search(line):
                return f"{path.stem}: {line.strip()[:160]}"
    return ""
