"""Hosts and the switches between them.

A host is one `sh` in a network, mount, host name and IPC namespace of its own. It reads from a pipe that only the lab's
process holds open: whatever ends that process, SIGKILL included, the pipe closes, and the host kills all that runs on
it and ends, and with it its namespaces and mounts. Nothing has a name that the machine knows: labs never collide.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from .processes import GRACE_S, Completed, LabError, Running, must, start

PREFIX = "ncclprobe-lab-"
TOOLS = ("ip", "tc", "nft", "nsenter", "unshare", "mount")
LAUNCHERS = ("SLURM_", "OMPI_", "PMI", "PET_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_")
FAMILIES: tuple[Literal[4], Literal[6]] = (4, 6)
UP_S = 20.0

# No name server: who asks for a name that is not in /etc/hosts hears at once that it is unknown.
# /sys anew, because it shows the network namespace of whoever mounted it; that hides the cgroups, without which slurmd
# does not start. The loop at the end is for processes that fork while they are being killed.
HOST = r"""
set -eu
trap '' INT TERM HUP
mount --rbind /sys/fs/cgroup "$1/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/cgroup" /sys/fs/cgroup
mount --bind "$1/hosts" /etc/hosts
[ ! -e /etc/resolv.conf ] || mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o "size=$3" tmpfs /dev/shm
echo "$2" >/proc/sys/kernel/hostname
echo up
cat >/dev/null || true
others() {
  for seen in /proc/[0-9]*; do
    [ "$seen/ns/net" -ef "/proc/$$/ns/net" ] && [ "$seen" != "/proc/$$" ] && echo "${seen#/proc/}"
  done
  true
}
for _ in 1 2 3 4 5 6 7 8 9; do
  left=$(others)
  for pid in $left; do kill -9 "$pid" 2>/dev/null && again=1 || true; done
  [ "${again:-}" ] || break
  again=
done
"""


def why_not(*tools: str) -> str:
    """Why a lab cannot be made here; empty where it can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in (*TOOLS, *tools) if shutil.which(tool, path=path) is None]
    if missing:
        return f"the fault lab needs {', '.join(missing)} (scripts/lab_packages installs them)"
    return "" if os.geteuid() == 0 else "the fault lab needs root"


def enter(pid: int) -> list[str]:
    """The start of a command line that runs its rest on the host whose shell is `pid`."""
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "--"]


@dataclass(slots=True)
class Host:
    """One host. `env` and `prefix` are given to every command started on it, also under Slurm and mpirun."""

    lab: "Lab"
    name: str
    number: int
    env: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    door: "subprocess.Popen[str] | None" = None

    @property
    def folder(self) -> Path:
        return self.lab.folder / self.name

    @property
    def pid(self) -> int:
        if self.door is None:
            raise LabError(f"{self.name} is not up")
        return self.door.pid

    def address(self, nic: int = 0, family: Literal[4, 6] | None = None) -> str:
        """Of this network card; of the lab's first family where none is named."""
        six = family == 6 or (family is None and not self.lab.ipv4)
        return f"fd77:{nic}::{self.number:x}" if six else f"10.77.{nic}.{self.number}"

    def addresses(self, nic: int = 0) -> list[str]:
        """All of this card, with their prefix lengths."""
        return [f"{self.address(nic, 4)}/24"] * self.lab.ipv4 + [f"{self.address(nic, 6)}/64"] * self.lab.ipv6

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        """Run a command to its end or the deadline."""
        return self.start(argv, env).wait(timeout_s)

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Running:
        """Start a command, in our working directory, without what a launcher around us has set."""
        self.lab.save()
        ours = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        ours["PATH"] = ours.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
        where = ["env", f"--chdir={Path.cwd()}"]
        stem = self.folder / f"run{next(self.lab.counter)}"
        job = start([*enter(self.pid), *where, *self.prefix, *argv], stem, {**ours, **self.env, **(env or {})})
        self.lab.jobs.append(job)
        return job

    def must(self, *argv: str, text: str = "") -> str:
        """Run one of the lab's own tools here, machine's process ids and all; LabError where it fails."""
        return must([*enter(self.pid), *argv], text)

    def ip(self, *lines: str) -> None:
        """Lines of `ip -batch`, all in one process."""
        if lines:
            self.must("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def set_names(self, lines: Sequence[str]) -> None:
        """Replace what /etc/hosts says on this host."""
        # In place: the file is mounted, and a new one would not be seen.
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines]) + "\n")

    def port(self, nic: int = 0) -> str:
        """Its port on the switch of that card, an interface of `lab.ctl`."""
        return f"p{self.number}.{nic}"

    def wire(self, nic: int = 0) -> None:
        """Plug this card in."""
        port = self.port(nic)
        self.lab.ctl.ip(
            f"link add {port} type veth peer name eth{nic} netns {self.pid}", f"link set {port} master br{nic} up"
        )
        self.configure(nic)

    def unwire(self, nic: int = 0) -> None:
        """Pull this card out of the machine."""
        self.lab.ctl.ip(f"link del {self.port(nic)}")

    def configure(self, nic: int = 0) -> None:
        """Give this card its addresses, link and, if it is the first, the default route, however they were before."""
        self.ip(*self.settings(nic))

    def settings(self, nic: int) -> list[str]:
        """What `configure` does, as lines for `ip`."""
        # `replace` is for IPv6, whose addresses vanish when a link goes down.
        addresses = [f"addr replace {it} dev eth{nic}{' nodad' * (':' in it)}" for it in self.addresses(nic)]
        return [f"link set eth{nic} up", *addresses, *(self.routes() if nic == 0 and self.lab.default_route else [])]

    def routes(self, verb: str = "replace") -> list[str]:
        """The default routes, through the controller, as lines for `ip`."""
        four = [f"route {verb} 0.0.0.0/0 via {self.lab.ctl.address(0, 4)}"]
        six = [f"route {verb} ::/0 via {self.lab.ctl.address(0, 6)}"]
        return four * self.lab.ipv4 + six * self.lab.ipv6


@dataclass(slots=True)
class Lab:
    """Hosts n0, n1, … with cards eth0, eth1, …; card k of every host is on switch k, which is a bridge on host `ctl`.

    `ctl` is also where the default route leads (it forwards nothing) and where a scheduler's controller runs. Raises
    LabError where the machine cannot do it.
    """

    count: int
    nics: int
    ipv4: bool
    ipv6: bool
    default_route: bool
    shm_bytes: int
    folder: Path
    hosts: list[Host] = field(default_factory=list)
    jobs: list[Running] = field(default_factory=list)
    counter: "itertools.count[int]" = field(default_factory=itertools.count)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    ctl: Host = field(init=False)

    def __init__(
        self, hosts: int = 2, *, nics: int = 1, ipv4: bool = True, ipv6: bool = False,
        default_route: bool = True, shm_bytes: int = 64 << 20,
    ) -> None:  # fmt: skip
        if not (1 <= hosts <= 250 and 1 <= nics <= 16 and (ipv4 or ipv6)):
            raise ValueError("1 to 250 hosts, 1 to 16 network cards, and at least one family of addresses")
        self.count, self.nics, self.ipv4, self.ipv6 = hosts, nics, ipv4, ipv6
        self.default_route, self.shm_bytes = default_route, shm_bytes
        self.folder = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}")
        self.hosts = [Host(self, f"n{index}", index + 1) for index in range(hosts)]
        self.ctl = Host(self, "ctl", 254)
        self.jobs, self.counter, self.stack = [], itertools.count(), contextlib.ExitStack()

    def __enter__(self) -> "Lab":
        if reason := why_not():
            raise LabError(reason)
        try:
            self._up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs on the hosts, and the hosts."""
        try:
            self.stack.close()
        finally:
            for job in self.jobs:  # one that has not entered its host yet would not be seen from there
                job.kill()
            every = [host for host in (*self.hosts, self.ctl) if host.door]
            for host in every:
                _close(host)
            for host in every:
                _collect(host)
            for job in self.jobs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.popen.wait(GRACE_S)
            self.jobs.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    def __getitem__(self, name: str) -> Host:
        """The host of that name."""
        return {host.name: host for host in (*self.hosts, self.ctl)}[name]

    def names(self) -> list[str]:
        """The lines of a healthy /etc/hosts."""
        every = (*self.hosts, self.ctl)
        four, six = ([f"{host.address(0, family)} {host.name}" for host in every] for family in FAMILIES)
        return four * self.ipv4 + six * self.ipv6

    def save(self) -> None:
        """Write down what others need to enter: scripts/lab, the agent of mpirun and Slurm's task prolog."""
        every = {
            host.name: {"pid": host.pid, "env": host.env, "prefix": host.prefix} for host in (*self.hosts, self.ctl)
        }
        text = json.dumps({"owner": os.getpid(), "hosts": every})
        beside = self.folder / f"lab.json.{next(self.counter)}"
        beside.write_text(text)
        beside.replace(self.folder / "lab.json")  # at once: an agent may be reading
        for host in self.hosts:
            lines = [f"export {name}={value}\n" for name, value in host.env.items()]
            (self.folder / f"{host.name}.env").write_text("".join(lines))

    def _up(self) -> None:
        self.folder.mkdir(mode=0o711)  # a munge socket must be reachable for all
        for host in (self.ctl, *self.hosts):
            _open(host)
        for host in (self.ctl, *self.hosts):
            _await(host)
        self.save()
        self.ctl.ip(*self._switches())
        for host in self.hosts:
            host.ip("link set lo up", *(line for nic in range(self.nics) for line in host.settings(nic)))

    def _switches(self) -> list[str]:
        lines = ["link set lo up"]
        for nic in range(self.nics):
            lines += [f"link add br{nic} type bridge", f"link set br{nic} up"]
            lines += [f"addr add {it} dev br{nic}{' nodad' * (':' in it)}" for it in self.ctl.addresses(nic)]
            for host in self.hosts:
                lines.append(f"link add {host.port(nic)} type veth peer name eth{nic} netns {host.pid}")
                lines.append(f"link set {host.port(nic)} master br{nic} up")
        return lines


def _open(host: Host) -> None:
    (host.folder / "cgroup").mkdir(parents=True)
    host.set_names(host.lab.names())
    (host.folder / "resolv.conf").write_text("")
    (host.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    shell = ["sh", "-c", HOST, "lab-host", str(host.folder), host.name, str(host.lab.shm_bytes)]
    host.door = subprocess.Popen(
        ["unshare", "--mount", "--uts", "--ipc", "--net", *shell],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _await(host: Host) -> None:
    assert host.door is not None
    assert host.door.stdout is not None
    assert host.door.stderr is not None
    if host.door.stdout.readline() != "up\n":
        raise LabError(f"{host.name} did not come up: {host.door.stderr.read().strip()}")


def _close(host: Host) -> None:
    assert host.door is not None
    assert host.door.stdin is not None
    host.door.stdin.close()


def _collect(host: Host) -> None:
    assert host.door is not None
    try:
        host.door.wait(UP_S)
    finally:
        for pipe in (host.door.stdout, host.door.stderr):
            assert pipe is not None
            pipe.close()
        host.door = None
