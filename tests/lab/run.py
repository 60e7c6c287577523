"""Plays one row of the fault matrix: a lab, the fault, the doctor on every host, and the score."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from . import launchers
from .hosts import Host, Lab
from .matrix import PORT, Outcome, Row, Said, Setup, read, score
from .processes import Completed, LabError, Running, must

FAKE_NVML = Path(__file__).parents[1] / "fake_nvml.c"
TOKEN = "of this run of the lab alone"
GRACE_S = 8.0
"""Beyond --timeout, after which a doctor that still runs is killed, and counted."""


@contextmanager
def prepared(row: Row, count: int) -> Iterator[Setup]:
    """A lab of `count` hosts with the fault of `row`."""
    families = {"ipv4": row.family == 4, "ipv6": row.family == 6}
    with Lab(hosts=count, nics=row.nics, **families) as lab:
        setup = Setup(lab, lab.hosts[count // 2], row.gpus)
        if row.gpus:
            give_gpus(lab)
        if row.launcher != "torchrun":  # that has its store
            for host in lab.hosts:
                host.env["NCCLPROBE_TOKEN"] = TOKEN
        row.make(setup)
        yield setup


def examine(setup: Setup, row: Row) -> Outcome:
    """The doctor on every host, and the score of what it said."""
    jobs = (row.start or _STARTERS[row.launcher])(setup, *([] if row.start else [row]))
    for hook in setup.after:
        hook(jobs)
    end_s = time.monotonic() + row.timeout_s + GRACE_S
    # All at once: the time of each is from its own start to its own end.
    done = ended(jobs, end_s)
    return score(setup, row, said(setup.lab, row), done)


def play(row: Row, count: int) -> Outcome:
    """One run of `row` with `count` hosts."""
    with prepared(row, count) as setup:
        return examine(setup, row)


def ended(jobs: Mapping[str, Running], end_s: float) -> dict[str, Completed]:
    """Wait for all, and note when each ended; who still runs at `end_s` is killed."""
    left, over = dict(jobs), dict[str, float]()
    while left and time.monotonic() < end_s:
        for name in [name for name, job in left.items() if job.popen.poll() is not None]:
            over[name] = time.monotonic() - left.pop(name).began_s
        time.sleep(0.01)
    late = {name: time.monotonic() - job.began_s for name, job in left.items()}
    found = {}
    for name, job in jobs.items():
        done = job.wait(0.0)
        found[name] = Completed(done.code, done.out, done.err, {**over, **late}[name], name in late)
    return found


def said(lab: Lab, row: Row) -> list[Said]:
    """What all reports of a run say."""
    return [each for host in lab.hosts for each in read(lab.folder / f"{host.name}.json", host.name)]


def flags(setup: Setup, host: Host) -> dict[str, str]:
    """Who a host is in the job, and where that meets."""
    usual = {"nnodes": str(len(setup.lab.hosts)), "node_rank": str(host.number - 1)}
    return {**usual, "master_addr": "n0", "master_port": str(PORT), **setup.flags.get(host.name, {})}


def by_hand(setup: Setup, row: Row) -> dict[str, Running]:
    """Start the doctor on every host with flags, all at the same time."""
    jobs = {}
    for host in setup.lab.hosts:
        if host.name in setup.absent:
            continue
        words = [word for name, value in flags(setup, host).items() for word in (f"--{name.replace('_', '-')}", value)]
        report = str(setup.lab.folder / f"{host.name}.json")
        jobs[host.name] = host.start([*doctor(setup, row), *words, "--json", report])
    return jobs


def doctor(setup: Setup, row: Row) -> list[str]:
    """The command line that all hosts have in common."""
    backend = "nccl" if setup.gpus else "gloo"
    times = ["--timeout", f"{row.timeout_s:g}", "--wait", f"{row.wait_s:g}"]
    own = ["--ignore", "env.start"] if setup.gpus else []  # torch here may be built without CUDA, which is no fault
    return [sys.executable, "-m", "ncclprobe.doctor", "--backend", backend, *times, "--no-color", *own]


def _each_its_report(setup: Setup, row: Row) -> list[str]:
    """For launchers that start one command everywhere: the report is called after the host."""
    script = 'exec "$@" --json "$0/$(uname -n).json"'
    return ["sh", "-c", script, str(setup.lab.folder), *doctor(setup, row)]


def by_srun(setup: Setup, row: Row) -> dict[str, Running]:
    """Under a real Slurm; its own exit code is the highest of its tasks'."""
    cluster = setup.use(launchers.slurm(setup.lab))
    hosts = str(len(setup.lab.hosts))
    return {"srun": cluster.start(["srun", f"-N{hosts}", *_each_its_report(setup, row)], {"MASTER_PORT": str(PORT)})}


def by_mpirun(setup: Setup, row: Row) -> dict[str, Running]:
    """Under Open MPI, which passes no MASTER_ADDR of its own."""
    env = {"MASTER_ADDR": "n0", "MASTER_PORT": str(PORT)}
    return {"mpirun": launchers.mpirun(setup.lab, _each_its_report(setup, row), env=env)}


def by_torchrun(setup: Setup, row: Row, c10d: bool = False) -> dict[str, Running]:
    """One torchrun on each host; only rank 0's node writes the report."""
    argv = [*doctor(setup, row)[1:], "--json", str(setup.lab.folder / "n0.json")]
    jobs = launchers.torchrun(setup.lab, argv, c10d=c10d)
    return {host.name: job for host, job in zip(setup.lab.hosts, jobs, strict=True)}


_STARTERS: Mapping[str, Callable[..., dict[str, Running]]] = {
    "hand": by_hand,
    "srun": by_srun,
    "mpirun": by_mpirun,
    "torchrun": by_torchrun,
    "c10d": partial(by_torchrun, c10d=True),
}


def give_gpus(lab: Lab, count: int = 2, nccl: str = "2.27.3") -> None:
    """Every host has `count` GPUs that a library of ours shows, and this NCCL. LabError without a compiler."""
    built = lab.folder / "nvml"
    built.mkdir()
    library = built / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(FAKE_NVML)]
    must(["gcc", *flags])
    for host in lab.hosts:
        folder = host.folder / "lib"
        folder.mkdir()
        (folder / library.name).symlink_to(library)
        own = {"FAKE_NVML_GPUS": str(count), "FAKE_NVML_HOST": str(host.number)}  # no two machines have one GPU
        host.env |= {"LD_LIBRARY_PATH": str(folder), **own}
        give_nccl(host, nccl)


def give_nccl(host: Host, version: str) -> None:
    """The NCCL that the host's loader finds: nothing but its name."""
    folder = host.folder / "lib"
    for old in folder.glob("libnccl*"):
        old.unlink()
    (folder / f"libnccl.so.{version}").write_bytes(b"")
    (folder / "libnccl.so.2").symlink_to(f"libnccl.so.{version}")


def connections(host: Host) -> set[int]:
    """The remote ports of the host's open TCP connections."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{host.pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(words[2].rpartition(":")[2], 16) for words in lines if words[3] == "01"}


def until_connected(host: Host, timeout_s: float = 15.0) -> None:
    """Wait until `host` has reached the hub; raise LabError if it does not."""
    end_s = time.monotonic() + timeout_s
    while not connections(host) & {PORT}:
        if time.monotonic() > end_s:
            raise LabError(f"{host.name} did not connect")
        time.sleep(0.002)
