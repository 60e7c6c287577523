#!/usr/bin/env python3
"""Plays our commands with NCCL and torch's CUDA build on a machine without a GPU, and keeps what they left.

    scripts/record_on_cpu.py FOLDER [--select GLOB…]      FOLDER: tests/data/on_cpu for all cases of the repository
    scripts/record_on_cpu.py FOLDER --torch 2.6.0         with another release of torch than those were recorded with

For each case that has none yet a folder: the report, the output of each process and torch's flight records, compressed,
and case.json.
Needs what scripts/torch_on_cpu.py built, and root. No number in what is kept means anything.
"""

import argparse
import fnmatch
import gzip
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from child import fail
from gpu_stages import processes
from gpu_stages.machine import free_port
from on_cpu import build, machine, torch_env
from on_cpu.cases import CASES, Case

HOST = "n0"
_REPORT_S = 60.0
_KEPT = ("*.log", "report.json", "fr_trace_rank_*", "calls.*")
_JOB = ROOT / "tests" / "cuda_stand_in" / "job.py"


def main() -> int:
    """Play the cases, one after the other; print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--select", default=["*"], nargs="+", metavar="GLOB")
    parser.add_argument("--torch", default=torch_env.TORCH, metavar="VERSION", help="torch's release (%(default)s)")
    args = parser.parse_args()
    tag = build.RELEASES[0]
    python = torch_env.cached(tag, args.torch)
    if problem := machine.impossible() or (None if python else "run scripts/torch_on_cpu.py --source … first"):
        fail(problem)
    assert python is not None
    folder = args.folder if args.torch == torch_env.TORCH else args.folder / f"torch-{args.torch}"
    for case in CASES:
        chosen = any(fnmatch.fnmatch(case.name, each) for each in args.select)
        if chosen and not (folder / case.name).exists():
            with tempfile.TemporaryDirectory(prefix="job-") as work:
                ends = play(case, tag, python, Path(work))
                processes.wait_until(lambda: not processes.marked(work), _REPORT_S)  # one in a lost rank's place
                processes.kill_marked(work)
                keep(case, ends, args.torch, python, Path(work), folder / case.name)
            codes = [end.code for end in ends]
            print(f"{case.name}: exit {codes}, {max(end.seconds for end in ends):.0f} s", flush=True)
    return 0


def play(case: Case, tag: str, python: Path, work: Path) -> list[processes.End]:
    """Run the case to its end, or to its deadline."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_", "FAKE_"))}
    env |= machine.variables(build.folder(tag) / "lib", work, case.gpus)
    env |= {"PATH": f"{python / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "TMPDIR": str(work), **machine.FAST}
    env |= {"NCCL_SOCKET_IFNAME": "lo", "TORCH_FR_DUMP_TEMP_FILE": str(work / "fr_trace_rank_"), "HOME": str(work)}
    env |= {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(work / "fr_trace_rank_"), processes.MARK: str(work)}
    env |= {name: value.replace("FOLDER", str(work)) for name, value in case.env.items()}
    words = [word.replace("JOB.py", str(_JOB)).replace("REPORT", str(work / "report.json")) for word in case.command]
    if case.launch == "alone":
        return [processes.run(machine.inside(["python", *words], HOST), work / "run.log", env, case.deadline_s)]
    if case.launch == "torchrun":
        port = ["--master-port", str(free_port())]
        run = ["python", "-m", "torch.distributed.run", *port, "--nproc-per-node", case.ranks, *words]
        return [processes.run(machine.inside(run, HOST), work / "run.log", env, case.deadline_s)]
    meet = {"WORLD_SIZE": str(case.ranks), "LOCAL_WORLD_SIZE": str(case.ranks)}
    meet |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = []
    for rank in range(case.ranks):
        own = {**env, **meet, "RANK": str(rank), "LOCAL_RANK": str(rank), **case.per_rank.get(rank, {})}
        if case.launch == "one-gpu":
            own |= {"CUDA_VISIBLE_DEVICES": str(rank)}
        if rank not in case.absent:
            started.append(processes.start(machine.inside(["python", *words], HOST), work / f"rank{rank}.log", own))
    return processes.wait(started, case.deadline_s)


def keep(case: Case, ends: list[processes.End], torch: str, python: Path, work: Path, into: Path) -> None:
    """Keep what the processes left, without the paths of this machine."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    paths = {str(python): "/opt/python", str(build.CACHE): "/opt/cache", str(ROOT): "/opt/src", str(work): "/job"}
    paths = {f"{path}/": "" for path in build.CACHE.glob("source-*/src")} | paths  # as NCCL's own build names its files
    paths |= {str(Path(sys.base_prefix)): "/opt/base"}
    for path in sorted(each for name in _KEPT for each in work.glob(name)):
        data, fixed = path.read_bytes(), path.name.startswith("fr_")  # a pickle knows how long its words are
        for ours, theirs in paths.items():
            data = data.replace(ours.encode(), theirs.encode().ljust(len(ours) if fixed else 0, b"_"))
        (into / f"{path.name}.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    about: dict[str, object] = {"command": case.command, "launch": case.launch, "ranks": case.ranks, "env": case.env}
    about |= {"per_rank": case.per_rank, "absent": case.absent, "nccl": build.RELEASES[0], "torch": torch}
    about |= {"code": case.code, "at_fault": case.at_fault, "exit_codes": [end.code for end in ends]}
    about |= {"seconds": round(max(end.seconds for end in ends))}
    (into / "case.json").write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    sys.exit(main())
