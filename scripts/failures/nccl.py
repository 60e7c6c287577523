"""Play cases of NCCL alone, built for a processor, on the lab's hosts, and keep what each rank wrote."""

import fnmatch
import gzip
import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from on_cpu import build, machine

from failures.nccl_cases import NCCL_CASES, NcclCase
from tests.lab import Completed, Host, Lab, LabError, Running

JOB, PYTHON, NCCL = Path("/opt/job"), Path("/opt/python"), Path("/opt/nccl")
_GPUS, _SHM_BYTES = 8, 1 << 30
_BEGUN_S = 30.0
_MOST_LETTERS = 60_000
"""Some failures of 2.23 write the same line without end."""
RECORDED = build.ROOT / "tests" / "data" / "nccl_failures"


def record(tag: str, select: str, folder: Path) -> None:
    """Play the cases whose name `select` matches, and put their lines into the release's file; print one of each."""
    release = tag.removeprefix("v").removesuffix("-1")
    path = folder / f"{release}.jsonl.gz"
    rows = read(path) if path.exists() else {}
    for case in NCCL_CASES:
        if fnmatch.fnmatch(case.name, select) and tag not in case.library.values():
            rows[case.name] = row = played(case, tag)
            print(f"{release} {case.name}: {row['exit_codes']}, {row['seconds']} s", flush=True)
            write(path, rows)


def read(path: Path) -> dict[str, Any]:
    """What was recorded of a release, by the names of the cases."""
    return {row["name"]: row for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())}


def write(path: Path, rows: dict[str, Any]) -> None:
    """Write compressed, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(rows[name]) + "\n" for name in sorted(rows))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def played(case: NcclCase, tag: str) -> dict[str, Any]:
    """One case with one release: what was done, how the ranks ended and what each wrote."""
    with Lab(hosts=case.hosts, ipv6=False, shm_bytes=_SHM_BYTES) as lab:
        job = lab.folder / "job"
        job.mkdir()
        shutil.copy(build.SOURCES / "rank.py", job)
        for name, text in case.files.items():
            _make(job / name, text)
        for host in lab.hosts:
            _furnish(host, job, {tag, *case.library.values()}, case.without)
        with case.around(lab):
            done = _run(case, tag, lab, job)
        logs = {name: (each.out + each.err)[:_MOST_LETTERS] for name, each in done.items()}
    about = {name: getattr(case, name) for name in ("name", "code", "ranks", "words", "hosts", "env", "per_rank")}
    about |= {"library": case.library, "leaves_out": case.leaves_out, "prefix": case.prefix}
    ends = {name: None if each.timed_out else each.code for name, each in done.items()}
    seconds = round(max((each.seconds for each in done.values()), default=0.0))
    return {**about, "exit_codes": ends, "seconds": seconds, "logs": logs}


def _make(path: Path, text: str) -> None:
    if path.suffix != ".so":
        path.write_text(text)
        return
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", path], check=True, timeout=60)


def _furnish(host: Host, job: Path, tags: set[str], without: str) -> None:
    """Give the host paths of its own, so that logs name none of this machine, and the libraries of the releases."""
    mounts = {PYTHON: Path(sys.base_prefix), JOB: job}
    mounts |= {NCCL / tag: build.folder(tag) / "lib" for tag in tags}
    host.must("mount", "-t", "tmpfs", "none", "/opt")
    for inside, outside in mounts.items():
        host.must("mkdir", "-p", str(inside))
        host.must("mount", "--bind", str(outside), str(inside))
    for tag in tags if without else ():
        empty = job / "empty"
        empty.touch()
        host.must("mount", "--bind", str(empty), str(NCCL / tag / without))
    host.prefix = ["env", f"--chdir={JOB}"]


def _run(case: NcclCase, tag: str, lab: Lab, job: Path) -> dict[str, Completed]:
    """Start the ranks and wait for them; who still runs at the deadline is killed."""
    each, jobs, end_s = case.world // case.hosts, {}, time.monotonic() + case.deadline_s
    for rank in range(case.world):
        host = lab.hosts[rank // each]
        of = case.library.get(rank, tag)
        env = machine.variables(NCCL / of, job, _GPUS, host.number) | {
            "NCCL_TOPO_FILE": str(JOB / f"topology-{_GPUS}.xml")
        }
        env |= {**machine.FAST, "RANK": str(rank), "WORLD_SIZE": str(case.world), "LOCAL_RANK": str(rank % each)}
        env |= {"NCCL_DEBUG": case.debug, "PYTHONPATH": "", **case.env, **case.per_rank.get(rank, {})}
        command = [*case.prefix, str(PYTHON / "bin/python3"), "rank.py", str(JOB / "id"), *case.words]
        if rank not in case.leaves_out:
            jobs[f"rank{rank}"] = host.start(["sh", "-c", 'exec "$@" 2>&1', "sh", *command], env)
    with ExitStack() as during:
        if case.during:
            _await(jobs["rank0"], case.says, max(_BEGUN_S, case.deadline_s / 2))
            during.enter_context(case.during(lab))
        return {name: started.wait(end_s - time.monotonic()) for name, started in jobs.items()}


def _await(job: Running, text: str, within_s: float) -> None:
    """Wait for what rank 0 says; a job that ends before has no fault, and its recording shows it."""
    try:
        job.until_says(text, within_s)
    except LabError as error:
        print(error, file=sys.stderr)
