"""Real launchers on the lab's hosts: Slurm, mpirun and torchrun. All need their programs; `why_not(...)` says which."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ncclprobe.model.values import Struct

from . import hosts
from .hosts import Host, Lab
from .processes import Completed, LabError, Running

SLURM = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
MPIRUN = ("mpirun",)
SOCKET = "munge.socket.2"
READY_S = 30.0
POLL_S = 0.1


class Slurm(Struct, frozen=True):
    """A cluster that is ready for jobs."""

    lab: Lab
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 120.0) -> Completed:
        """Run a command of Slurm on n0, to its end or the deadline."""
        return self.start(argv, env).wait(timeout_s)

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Running:
        return self.lab.hosts[0].start(argv, {**(env or {}), **self.env})


@contextmanager
def slurm(lab: Lab, *extra: str, cpus: int = 8, switches: str = "") -> Iterator[Slurm]:
    """A real Slurm, a slurmd on every host; `extra` are more lines of slurm.conf, `switches` those of topology.conf.

    LabError where it is not ready.
    """
    if reason := hosts.why_not(*SLURM):
        raise LabError(reason)
    cluster = Slurm(lab, lab.folder / "slurm")
    _write_configuration(cluster, (*extra, *(["TopologyPlugin=topology/tree"] if switches else [])), cpus)
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


def mpirun(
    lab: Lab,
    argv: Sequence[str],
    *,
    per_host: int = 1,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Running:
    """Start Open MPI's mpirun on n0 with `per_host` ranks on every host; `options` go before the command."""
    agent = lab.folder / "rsh-agent"
    script = Path(hosts.__file__).parent
    enter = [sys.executable, "-c", f"from {script.name} import outside; outside.agent()", str(lab.folder)]
    agent.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(script.parent))} exec {shlex.join(enter)} "$@"\n')
    agent.chmod(0o755)
    exported = [word for name in (env or {}) for word in ("-x", name)]
    where = ",".join(f"{host.name}:{per_host}" for host in lab.hosts)
    plm = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "eth0"]
    plm += ["--mca", "btl_tcp_if_include", "eth0"]
    ranks = ["-np", str(per_host * len(lab.hosts)), "--host", where]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", *ranks, *plm, *exported, *options, *argv]
    return lab.hosts[0].start(command, env)


def torchrun(
    lab: Lab, argv: Sequence[str], *, nproc: int = 1, c10d: bool = False, port: int = 29500,
    env: Mapping[str, str] | None = None,
) -> list[Running]:  # fmt: skip
    """Start a torchrun on every host: the static rendezvous with n0 as master, or c10d. `argv`: script or -m module."""

    def agent(host: Host) -> Running:
        master = lab.hosts[0].address()
        at = f"[{master}]:{port}" if ":" in master else f"{master}:{port}"
        static = [f"--node-rank={host.number - 1}", f"--master-addr={master}", f"--master-port={port}"]
        meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint={at}", f"--rdzv-id={lab.folder.name}"] if c10d else static
        shape = [f"--nnodes={len(lab.hosts)}", f"--nproc-per-node={nproc}"]
        run = [sys.executable, "-m", "torch.distributed.run", *shape, *meet, *argv]
        return host.start(run, {"OMP_NUM_THREADS": "1", **(env or {})})

    return [agent(host) for host in lab.hosts]


def _write_configuration(cluster: Slurm, extra: Sequence[str], cpus: int) -> None:
    lab, folder = cluster.lab, cluster.folder
    for host in lab.hosts:
        (folder / host.name).mkdir(parents=True)
    (folder / "ctl").mkdir()
    # What a slurmd was started with is not what its host has now: the tasks take it from the lab.
    prolog = folder / "task-prolog"
    prolog.write_text(f"#!/bin/sh\ncat {lab.folder}/$SLURMD_NODENAME.env\n")
    prolog.chmod(0o755)
    families = [] if lab.ipv4 else ["CommunicationParameters=EnableIPv6,DisableIPv4"]
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
    nodes = [f"NodeName={h.name} NodeAddr={h.address()} CPUs={cpus} RealMemory=4000" for h in lab.hosts]
    lines = [line.strip() for line in settings.splitlines()] + [*families, *extra, *nodes]
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
        time.sleep(POLL_S / 10)
    for host in cluster.lab.hosts:
        host.must(
            "sh", "-c", 'mount -t tmpfs tmpfs /run && mkdir /run/munge && mount --bind "$0" /run/munge', str(folder)
        )
    return job


def _wait_ready(cluster: Slurm, daemons: Sequence[Running]) -> None:
    end_s = time.monotonic() + READY_S
    said = ""
    while said.split() != ["idle"] * len(cluster.lab.hosts):
        dead = [daemon for daemon in daemons if daemon.popen.poll() is not None]
        if dead or time.monotonic() > end_s:
            logs = "".join(path.read_text(errors="replace")[-500:] for path in cluster.folder.glob("*.log"))
            raise LabError(f"Slurm is not ready: {said} {[job.err[-500:] for job in dead]} {logs}")
        time.sleep(POLL_S)
        with contextlib.suppress(LabError):  # the controller does not listen yet
            environment = [f"{name}={value}" for name, value in cluster.env.items()]
            show = ["timeout", "5", "sinfo", "-h", "-N", "-p", "p", "-o", "%T"]
            said = cluster.lab.ctl.must("env", *environment, *show)
