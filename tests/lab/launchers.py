"""What starts ncclprobe on the lab's hosts (hands, and real Slurm, mpirun and torchrun), and what its reports say."""

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ncclprobe.model.values import Struct

from .hosts import Completed, Host, Lab, LabError, Running, must, why_not

SLURM = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
PORT = 29500
TOKEN = {"NCCLPROBE_TOKEN": "of this run of the lab alone"}
NCCLPROBE = (sys.executable, "-m", "ncclprobe")
DOCTOR = (*NCCLPROBE, "doctor", "--backend", "gloo", "--no-color")
BY_NAME = ("sh", "-c", 'exec "$@" --json "$0/$(uname -n).json"')
SOCKET = "munge.socket.2"
READY_S = 30.0
FAKE_NVML = Path(__file__).parents[1] / "fake_nvml.c"


def by_hand(
    hosts: Sequence[Host], *words: str, command: Sequence[str] = DOCTOR, nodes: int = 0, env: Mapping[str, str] = TOKEN
) -> dict[str, Running]:
    """Start a command on `hosts` with flags; each writes its report to HOST.json. `nodes`: of the job, if it has more.

    `words` come last, so that they count.
    """
    jobs = {}
    for host in hosts:
        seat = ["--nnodes", str(nodes or len(hosts)), "--node-rank", str(host.number - 1), "--master-addr", "n0"]
        report = ["--master-port", str(PORT), "--json", str(host.lab.folder / f"{host.name}.json")]
        jobs[host.name] = host.start([*command, *seat, *report, *words], env)
    return jobs


def ranks(lab: Lab, path: Path, command: str, *options: str) -> dict[str, Running]:
    """Start a rank of a measuring command over gloo on every host; rank 0 reports."""
    argv = [*NCCLPROBE, command, "--backend", "gloo", "--no-color", "--json", str(path), *options]
    job = {"WORLD_SIZE": str(len(lab.hosts)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    job |= {"MASTER_ADDR": "n0", "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0"}
    return {host.name: host.start(argv, {**job, "RANK": str(host.number - 1)}) for host in lab.hosts}


def report(lab: Lab, host: str = "n0") -> dict[str, Any]:
    """What a node wrote."""
    read: dict[str, Any] = json.loads((lab.folder / f"{host}.json").read_text())
    return read


def verdict(lab: Lab, check: str, host: str = "n0") -> dict[str, Any]:
    """One verdict of a report."""
    found: dict[str, Any] = next(each for each in report(lab, host)["checks"] if each["id"] == check)
    return found


def findings(lab: Lab, *severities: str, host: str = "n0") -> dict[str, list[dict[str, Any]]]:
    """What a report finds of these severities, by check; checks without any are left out."""
    found = {
        each["id"]: [one for one in each["findings"] if one["severity"] in severities]
        for each in report(lab, host)["checks"]
    }
    return {name: every for name, every in found.items() if every}


def give_gpus(lab: Lab, count: int = 2, nccl: str = "2.27.3") -> None:
    """Every host has `count` GPUs that a library of ours shows, and this NCCL. LabError without a compiler."""
    library = lab.folder / "libnvidia-ml.so.1"
    must(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), str(FAKE_NVML)])
    for host in lab.hosts:
        folder = host.folder / "lib"
        folder.mkdir()
        (folder / library.name).symlink_to(library)
        (folder / f"libnccl.so.{nccl}").write_bytes(b"")  # nothing but its name
        (folder / "libnccl.so.2").symlink_to(f"libnccl.so.{nccl}")
        own = {"FAKE_NVML_GPUS": str(count), "FAKE_NVML_HOST": str(host.number)}  # no two machines have one GPU
        host.env |= {"LD_LIBRARY_PATH": str(folder), **own}


class Slurm(Struct, frozen=True):
    """A cluster that is ready for jobs."""

    lab: Lab
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 90.0) -> Completed:
        """Run a command of Slurm on n0, to its end or the deadline."""
        return self.lab.hosts[0].run(argv, {**(env or {}), **self.env}, timeout_s)


@contextmanager
def slurm(lab: Lab, *extra: str, switches: str = "") -> Iterator[Slurm]:
    """A real Slurm, a slurmd on every host; `extra` are more lines of slurm.conf, `switches` those of topology.conf.

    LabError where it is not ready.
    """
    if reason := why_not(*SLURM):
        raise LabError(reason)
    cluster = Slurm(lab, lab.folder / "slurm")
    _write_configuration(cluster, (*extra, *(["TopologyPlugin=topology/tree"] if switches else [])))
    (cluster.folder / "topology.conf").write_text(switches)
    daemons: list[Running] = []
    try:
        daemons.append(_start_munge(cluster))
        daemons.append(lab.ctl.start(["slurmctld", "-D", "-c"], cluster.env))
        daemons.extend(host.start(["slurmd", "-D", "-N", host.name], cluster.env) for host in lab.hosts)
        _wait_ready(cluster, daemons)
        yield cluster
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait(5.0)


def mpirun(lab: Lab, argv: Sequence[str], env: Mapping[str, str]) -> Running:
    """Start Open MPI's mpirun on n0 with a rank on every host."""
    agent, package = lab.folder / "rsh-agent", Path(__file__).parent
    # What mpirun takes for ssh: HOST COMMAND…
    program = (
        "import sys, pathlib; from lab.hosts import become;"
        "become(pathlib.Path(sys.argv[1]), sys.argv[2], ['sh', '-c', ' '.join(sys.argv[3:])])"
    )
    enter = shlex.join([sys.executable, "-c", program, str(lab.folder)])
    agent.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(package.parent))} exec {enter} "$@"\n')
    agent.chmod(0o755)
    plm = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "eth0"]
    where = ["-np", str(len(lab.hosts)), "--host", ",".join(f"{host.name}:1" for host in lab.hosts)]
    exported = [word for name in env for word in ("-x", name)]
    line = ["--allow-run-as-root", "--oversubscribe", *where, *plm, "--mca", "btl_tcp_if_include", "eth0", *exported]
    return lab.hosts[0].start(["mpirun", *line, *argv], env)


def torchrun(lab: Lab, argv: Sequence[str]) -> dict[str, Running]:
    """Start a torchrun with its c10d rendezvous on every host. `argv`: script or -m module."""
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={lab.hosts[0].address()}:{PORT}", f"--rdzv-id={lab.folder.name}"]
    line = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(lab.hosts)}", *meet, *argv]
    return {host.name: host.start(line, {"OMP_NUM_THREADS": "1"}) for host in lab.hosts}


def _write_configuration(cluster: Slurm, extra: Sequence[str]) -> None:
    lab, folder = cluster.lab, cluster.folder
    for host in (*lab.hosts, lab.ctl):
        (folder / host.name).mkdir(parents=True)
    # What a slurmd was started with is not what its host has now: the tasks take it from the lab.
    prolog = folder / "task-prolog"
    prolog.write_text(f"#!/bin/sh\ncat {lab.folder}/$SLURMD_NODENAME.env\n")
    prolog.chmod(0o755)
    settings = f"""
        ClusterName=lab
        SlurmctldHost=ctl({lab.ctl.address()})
        SlurmUser=root
        AuthType=auth/munge
        AuthInfo=socket={folder}/munge/{SOCKET}
        StateSaveLocation={folder}/ctl
        SlurmdSpoolDir={folder}/%n
        SlurmctldPidFile={folder}/ctl.pid
        SlurmdPidFile={folder}/%n.pid
        SlurmctldLogFile={folder}/ctl.log
        SlurmdLogFile={folder}/%n.log
        ProctrackType=proctrack/linuxproc
        TaskPlugin=task/none
        TaskProlog={prolog}
        PropagateResourceLimits=NONE
        SelectType=select/cons_tres
        ReturnToService=2
        SlurmdParameters=config_overrides
        MpiDefault=none
    """
    nodes = [f"NodeName={h.name} NodeAddr={h.address()} CPUs=8 RealMemory=4000" for h in lab.hosts]
    lines = [line.strip() for line in settings.splitlines()] + [*extra, *nodes]
    (folder / "slurm.conf").write_text("\n".join([*lines, "PartitionName=p Nodes=ALL Default=YES State=UP", ""]))


def _start_munge(cluster: Slurm) -> Running:
    """munge on the controller; its socket is a file, which all hosts see where munge's own clients look for it."""
    folder = cluster.folder / "munge"
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    files = [f"--{name}-file={folder / name}" for name in ("key", "log", "pid", "seed")]
    job = cluster.lab.ctl.start(["munged", "--foreground", f"--socket={folder / SOCKET}", *files])
    end_s = time.monotonic() + READY_S
    while not (folder / SOCKET).exists():
        if job.popen.poll() is not None or time.monotonic() > end_s:
            raise LabError(f"munged did not start: {job.err.strip()}")
        time.sleep(0.01)
    run = 'mount -t tmpfs tmpfs /run && mkdir /run/munge && mount --bind "$0" /run/munge'
    for host in cluster.lab.hosts:
        host.must("sh", "-c", run, str(folder))
    return job


def _wait_ready(cluster: Slurm, daemons: Sequence[Running]) -> None:
    end_s = time.monotonic() + READY_S
    said = ""
    while said.split() != ["idle"] * len(cluster.lab.hosts):
        dead = [daemon for daemon in daemons if daemon.popen.poll() is not None]
        if dead or time.monotonic() > end_s:
            logs = "".join(path.read_text(errors="replace")[-500:] for path in cluster.folder.glob("*.log"))
            raise LabError(f"Slurm is not ready: {said} {[job.err[-500:] for job in dead]} {logs}")
        time.sleep(0.1)
        with contextlib.suppress(LabError):  # the controller does not listen yet
            show = ["timeout", "5", "sinfo", "-h", "-N", "-p", "p", "-o", "%T"]
            said = cluster.lab.ctl.must("env", f"SLURM_CONF={cluster.env['SLURM_CONF']}", *show)
