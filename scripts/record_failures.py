#!/usr/bin/env python3
"""Makes real failures in the lab and records what the ranks leave behind. Needs root, torch, nft; Slurm and Open MPI.

    scripts/record_failures.py --write tests/data/failures            all cases of gloo
    scripts/record_failures.py --select 'desync-*' --write FOLDER     some
    --nccl PATH      the libnccl for the cases of the library (else these are left out)
    scripts/record_failures.py --releases v2.30.7-1,v2.23.4-1 --write tests/data/nccl_failures     all cases of NCCL
    scripts/record_failures.py --releases v2.30.7-1 --ras --write tests/data      what its RAS says, in one file

For each case a folder: the log of each rank, or of the launcher, and the flight records, compressed; case.json says
what was done and what the cause is. Cases of NCCL alone, on a processor (scripts/nccl_on_cpu.py builds it), are one
file of JSON lines for each release. Paths are those inside the lab: /opt/python, /opt/site, /opt/job, /opt/nccl.
"""

import argparse
import fnmatch
import gzip
import json
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from failures import nccl, nccl_ras
from failures.cases import CASES, LIBRARY, RANKS, Case

from tests.lab import Completed, Host, Lab, Running, launchers

JOB, PYTHON, SITE = "/opt/job", "/opt/python/bin/python3", "/opt/site"
MERGED = ("sh", "-c", 'exec "$@" 2>&1', "sh")


def main() -> int:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--select", default="*", metavar="GLOB")
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--nccl", type=Path, metavar="PATH", help="a libnccl.so.2")
    parser.add_argument("--releases", default="", metavar="TAG,…", help="play the cases of NCCL with these")
    parser.add_argument("--ras", action="store_true", help="with --releases: ask NCCL's RAS of healthy and sick jobs")
    options = parser.parse_args()
    for tag in filter(None, options.releases.split(",")):
        (nccl_ras if options.ras else nccl).record(tag, options.select, options.write)
    if options.releases:
        return 0
    for case in CASES:
        if not fnmatch.fnmatch(case.name, options.select) or (case.launcher == "library" and not options.nccl):
            continue
        begun = time.monotonic()
        codes = record(case, options.write / case.name, options.nccl)
        print(
            f"{case.name}: {case.code or 'healthy'}, exit codes {codes}, {time.monotonic() - begun:.0f} s", flush=True
        )
    return 0


def record(case: Case, into: Path, nccl: Path | None) -> list[int]:
    """Play a case and keep what it left; return how its programs ended."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    with Lab(hosts=case.hosts, ipv6=False) as lab:
        job = lab.folder / "job"
        job.mkdir(mode=0o777)
        job.chmod(0o777)
        lab.folder.chmod(0o755)
        shutil.copy(ROOT / "scripts" / "failures" / "train.py", job)
        (job / "library.py").write_text(LIBRARY)
        if nccl is not None:
            shutil.copy(nccl, job / "libnccl.so.2")
        for host in lab.hosts:
            furnish(host, job)
        with case.around(lab):
            done = play(case, lab)
        for name, each in done.items():
            keep(into / f"{name}.log.gz", (each.out + each.err).encode())
        for path in sorted(job.glob("fr_trace_rank_*")):
            if path.suffix != ".part":
                keep(into / f"{path.name}.gz", path.read_bytes())
    codes = [each.code for each in done.values()]
    about = {
        "code": case.code,
        "ranks": case.ranks,
        "launcher": case.launcher,
        "fault": case.fault,
        "hosts": case.hosts,
    }
    (into / "case.json").write_text(json.dumps({**about, "env": case.env, "exit_codes": codes}) + "\n")
    return codes


def furnish(host: Host, job: Path) -> None:
    """Give the host paths of its own, so that logs name none of this machine."""
    import torch

    mounts = {PYTHON.rpartition("/bin")[0]: sys.base_prefix, SITE: Path(torch.__file__).parents[1], JOB: job}
    host.must("mount", "-t", "tmpfs", "none", "/opt")
    for inside, outside in mounts.items():
        host.must("mkdir", "-p", inside)
        host.must("mount", "--bind", str(outside), inside)
    host.prefix = ["env", f"--chdir={JOB}"]
    recorder = {"TORCH_FR_BUFFER_SIZE": "2000", "JOB_FOLDER": JOB}
    host.env |= {"PYTHONPATH": SITE, "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", **recorder}
    host.env |= {"GLOO_SOCKET_IFNAME": "lo"} if host.lab.count == 1 else {}


def play(case: Case, lab: Lab) -> dict[str, Completed]:
    """Start the programs of a case and wait for them; who still runs at the deadline is killed."""
    starters = {"torchrun": _torchrun, "plain": _plain, "srun": _srun, "mpirun": _mpirun, "library": _library}
    return starters[case.launcher](case, lab)


def _wait(jobs: dict[str, Running], deadline_s: float) -> dict[str, Completed]:
    end_s = time.monotonic() + deadline_s
    return {name: job.wait(end_s - time.monotonic()) for name, job in jobs.items()}


def _program(case: Case) -> list[str]:
    return [*case.prefix, PYTHON, "train.py", case.fault]


def _plain(case: Case, lab: Lab) -> dict[str, Completed]:
    each = RANKS // case.hosts
    jobs = {}
    for rank in range(RANKS):
        if rank in case.leaves_out:
            continue
        host = lab.hosts[rank // each]
        own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank % each), "MASTER_PORT": "29500"}
        own |= {"MASTER_ADDR": "n0" if case.hosts > 1 else "127.0.0.1"}
        jobs[f"rank{rank}"] = host.start([*MERGED, *_program(case)], {**own, **case.env, **case.per_rank.get(rank, {})})
    return _wait(jobs, case.deadline_s)


def _torchrun(case: Case, lab: Lab) -> dict[str, Completed]:
    jobs = {}
    for number, host in enumerate(lab.hosts):
        shape = [f"--nnodes={case.hosts}", f"--nproc-per-node={RANKS // case.hosts}", f"--node-rank={number}"]
        meet = [f"--master-addr={'n0' if case.hosts > 1 else '127.0.0.1'}", "--master-port=29500"]
        run = [PYTHON, "-m", "torch.distributed.run", *shape, *meet, "train.py", case.fault]
        jobs[host.name] = host.start([*MERGED, *case.prefix, *run], case.env)
    return _wait(jobs, case.deadline_s)


_FROM_SLURM = 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID; exec "$@"'
_FROM_MPI = (
    "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK; "
    f'cd {JOB}; exec "$@"'
)
_MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}


def _srun(case: Case, lab: Lab) -> dict[str, Completed]:
    with launchers.slurm(lab) as cluster:
        ranks = [f"--nodes={case.hosts}", f"--ntasks={RANKS}", "--overcommit", f"--chdir={JOB}"]
        run = ["srun", "-l", "--kill-on-bad-exit=1", *ranks, "sh", "-c", _FROM_SLURM, "sh", *_program(case)]
        return _wait({"srun": cluster.start([*MERGED, *run], {**_MASTER, **case.env})}, case.deadline_s)


def _mpirun(case: Case, lab: Lab) -> dict[str, Completed]:
    env = {**_MASTER, **case.env, "PYTHONPATH": SITE, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
    env |= {"JOB_FOLDER": JOB}
    run = ["sh", "-c", _FROM_MPI, "sh", *_program(case)]
    job = launchers.mpirun(lab, run, per_host=RANKS // case.hosts, options=["--tag-output"], env=env)
    return _wait({"mpirun": job}, case.deadline_s)


def _library(case: Case, lab: Lab) -> dict[str, Completed]:
    run = [*MERGED, PYTHON, "library.py", f"{JOB}/libnccl.so.2", case.fault]
    job = lab.hosts[0].start(run, {"NCCL_DEBUG": "INFO", "RANK": "0", **case.env})
    return _wait({"rank0": job}, case.deadline_s)


def keep(path: Path, data: bytes) -> None:
    """Write compressed, the same bytes for the same data."""
    path.write_bytes(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
