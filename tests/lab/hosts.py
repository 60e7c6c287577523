"""Hosts, the switches between them, and the commands that run on them.

A host is one `sh` in a network, mount, host name and IPC namespace of its own. It reads from a pipe that only the lab's
process holds open: whatever ends that process, SIGKILL included, the pipe closes, and the host kills all that runs on
it and ends, and with it its namespaces and mounts. Nothing has a name that the machine knows: labs never collide.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from ncclprobe.model.values import Struct

PREFIX = "ncclprobe-lab-"
TOOLS = ("ip", "tc", "nft", "nsenter", "unshare", "mount")
LAUNCHERS = ("SLURM_", "OMPI_", "PMI", "PET_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_")
UP_S, GRACE_S, STEP_S = 20.0, 5.0, 0.01

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
mount -t tmpfs -o size=64m tmpfs /dev/shm
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


class LabError(Exception):
    """The lab itself could not do what was asked: never a verdict on what is tested in it."""


def why_not(*tools: str) -> str:
    """Why a lab cannot be made here; empty where it can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in (*TOOLS, *tools) if shutil.which(tool, path=path) is None]
    if missing:
        return f"the fault lab needs {', '.join(missing)} (scripts/lab_packages installs them)"
    return "" if os.geteuid() == 0 else "the fault lab needs root"


def must(argv: Sequence[str], text: str = "", timeout_s: float = 20.0) -> str:
    """Run one of the lab's own tools with `text` on stdin; LabError with its words where it fails."""
    try:
        done = subprocess.run(list(argv), input=text, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(str(error)) from error
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Completed(Struct, frozen=True):
    """A command that has ended. `code` is negative where a signal ended it, as subprocess has it."""

    code: int
    out: str
    err: str
    seconds: float
    timed_out: bool = False


@dataclass(slots=True)
class Running:
    """A command in a session of its own, and all that it started. Its output goes to files: nobody blocks on a pipe."""

    popen: "subprocess.Popen[bytes]"
    stem: Path
    began_s: float = field(default_factory=time.monotonic)
    over: bool = False  # collected: its number may be another's by now

    @property
    def out(self) -> str:
        """What it wrote so far."""
        return self.stem.with_suffix(".out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.stem.with_suffix(".err").read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the command and all that it started, also what left its group (torchrun's ranks do)."""
        if self.over:
            return
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self.popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def wait(self, timeout_s: float) -> Completed:
        """Wait for its end; at the deadline it is killed, and `timed_out` says so."""
        late = False
        try:
            self.popen.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            late = True
        finally:  # also at Ctrl-C, and for what an ended command left in its group
            self.kill()
            self.popen.wait(GRACE_S)
            self.over = True
        return Completed(self.popen.returncode, self.out, self.err, time.monotonic() - self.began_s, late)

    def until_says(self, text: str, timeout_s: float = UP_S) -> None:
        """Wait until its output has `text`; LabError when it ends before, or at the deadline."""
        end_s = time.monotonic() + timeout_s
        while text not in self.out + self.err:
            if self.popen.poll() is not None or time.monotonic() > end_s:
                raise LabError(f"{self.popen.args!r} did not say {text!r}: {self.popen.returncode} {self.err}")
            time.sleep(STEP_S)


def ended(jobs: Mapping[str, Running], timeout_s: float) -> dict[str, Completed]:
    """Wait for all at once, so that the time of each is its own; who still runs at the end is killed."""
    end_s, over = time.monotonic() + timeout_s, dict[str, float]()
    while len(over) < len(jobs) and time.monotonic() < end_s:
        for name in [name for name in jobs.keys() - over.keys() if jobs[name].popen.poll() is not None]:
            over[name] = time.monotonic() - jobs[name].began_s
        time.sleep(STEP_S)
    late = {name: time.monotonic() - jobs[name].began_s for name in jobs.keys() - over.keys()}
    done = {name: job.wait(0.0) for name, job in jobs.items()}
    return {
        name: Completed(each.code, each.out, each.err, {**over, **late}[name], name in late)
        for name, each in done.items()
    }


@dataclass(slots=True)
class Host:
    """One host. `env` is given to every command started on it, also under Slurm and mpirun."""

    lab: "Lab"
    name: str
    number: int
    env: dict[str, str] = field(default_factory=dict)
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
        stem = self.folder / f"run{next(self.lab.counter)}"
        with stem.with_suffix(".out").open("wb") as out, stem.with_suffix(".err").open("wb") as err:
            popen = subprocess.Popen(
                [*enter(self.pid), "env", f"--chdir={Path.cwd()}", *argv], env={**ours, **self.env, **(env or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        self.lab.jobs.append(job := Running(popen, stem))
        return job

    def must(self, *argv: str, text: str = "") -> str:
        """Run one of the lab's own tools here, machine's process ids and all; LabError where it fails."""
        return must([*enter(self.pid), *argv], text)

    def ip(self, *lines: str) -> None:
        """Lines of `ip -batch`, all in one process."""
        self.must("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def set_names(self, lines: Sequence[str]) -> None:
        """Replace what /etc/hosts says on this host."""
        # In place: the file is mounted, and a new one would not be seen.
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines]) + "\n")

    def port(self, nic: int = 0) -> str:
        """Its port on the switch of that card, an interface of `lab.ctl`."""
        return f"p{self.number}.{nic}"

    def settings(self, nic: int = 0) -> list[str]:
        """The lines for `ip` that give a card its addresses and link, and the first one the default routes."""
        # `replace` is for IPv6, whose addresses vanish when a link goes down.
        addresses = [f"addr replace {it} dev eth{nic}{' nodad' * (':' in it)}" for it in self.addresses(nic)]
        four = [f"route replace 0.0.0.0/0 via {self.lab.ctl.address(0, 4)}"] * self.lab.ipv4
        six = [f"route replace ::/0 via {self.lab.ctl.address(0, 6)}"] * self.lab.ipv6
        return [f"link set eth{nic} up", *addresses, *([] if nic else four + six)]


class Lab:
    """Hosts n0, n1, … with cards eth0, eth1, …; card k of every host is on switch k, which is a bridge on host `ctl`.

    `ctl` is also where the default route leads (it forwards nothing) and where a scheduler's controller runs. Raises
    LabError where the machine cannot do it.
    """

    def __init__(self, hosts: int = 2, *, nics: int = 1, ipv4: bool = True, ipv6: bool = False) -> None:
        if not (1 <= hosts <= 250 and 1 <= nics <= 16 and (ipv4 or ipv6)):
            raise ValueError("1 to 250 hosts, 1 to 16 network cards, and at least one family of addresses")
        self.nics, self.ipv4, self.ipv6 = nics, ipv4, ipv6
        self.folder = Path(tempfile.gettempdir(), f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:6]}")
        self.hosts = [Host(self, f"n{index}", index + 1) for index in range(hosts)]
        self.ctl = Host(self, "ctl", 254)
        self.jobs: list[Running] = []
        self.counter, self.stack = itertools.count(), contextlib.ExitStack()

    def __enter__(self) -> "Lab":
        if reason := why_not():
            raise LabError(reason)
        try:
            self._up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def every(self) -> list[Host]:
        return [self.ctl, *self.hosts]

    def close(self) -> None:
        """End everything that runs on the hosts, and the hosts."""
        try:
            self.stack.close()
        finally:
            for job in self.jobs:  # one that has not entered its host yet would not be seen from there
                job.kill()
            doors = [host.door for host in self.every if host.door]
            for door in doors:
                assert door.stdin
                door.stdin.close()
                door.stdin = None
            for door in doors:
                door.communicate(timeout=UP_S)
            for host in self.every:
                host.door = None
            for job in self.jobs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.popen.wait(GRACE_S)
            self.jobs.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    def __getitem__(self, name: str) -> Host:
        """The host of that name."""
        return {host.name: host for host in self.every}[name]

    def names(self) -> list[str]:
        """The lines of a healthy /etc/hosts."""
        four = [f"{host.address(0, 4)} {host.name}" for host in self.every]
        return four * self.ipv4 + [f"{host.address(0, 6)} {host.name}" for host in self.every] * self.ipv6

    def save(self) -> None:
        """Write down what others need to enter: scripts/lab, the agent of mpirun and Slurm's task prolog."""
        text = json.dumps({"hosts": {host.name: {"pid": host.pid, "env": host.env} for host in self.every}})
        beside = self.folder / f"lab.json.{next(self.counter)}"
        beside.write_text(text)
        beside.replace(self.folder / "lab.json")  # at once: an agent may be reading
        for host in self.hosts:
            lines = [f"export {name}={value}\n" for name, value in host.env.items()]
            (self.folder / f"{host.name}.env").write_text("".join(lines))

    def _up(self) -> None:
        self.folder.mkdir(mode=0o711)  # a munge socket must be reachable for all
        for host in self.every:
            _open(host)
        for host in self.every:
            assert host.door
            assert host.door.stdout
            if host.door.stdout.readline() != "up\n":
                raise LabError(f"{host.name} did not come up: {host.door.communicate()[1].strip()}")
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
    host.door = subprocess.Popen(
        ["unshare", "--mount", "--uts", "--ipc", "--net", "sh", "-c", HOST, "lab-host", str(host.folder), host.name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def enter(pid: int) -> list[str]:
    """The start of a command line that runs its rest on the host whose shell is `pid`."""
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "--"]


def found() -> list[Path]:
    """The folders of all labs on this machine, newest last."""
    folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    return sorted((folder for folder in folders if folder.is_dir()), key=lambda folder: folder.stat().st_mtime)


def owner(folder: Path) -> int | None:
    """The living process that holds the lab of this folder."""
    pid = int(folder.name.removeprefix(PREFIX).split("-")[0])
    return pid if psutil.pid_exists(pid) else None


def clean() -> list[Path]:
    """Remove the folders of labs whose process was killed; their hosts have ended by themselves."""
    left = [folder for folder in found() if owner(folder) is None]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return left


def become(folder: Path, name: str, argv: Sequence[str]) -> None:
    """Become a command on a host of a lab that another process holds. LabError where there is none."""
    try:
        hosts = json.loads((folder / "lab.json").read_text())["hosts"]
    except FileNotFoundError as error:
        raise LabError(f"{folder} is no lab that is up") from error
    if name not in hosts:
        raise LabError(f"no host {name}: there are {', '.join(hosts)}")
    line = [*enter(hosts[name]["pid"]), "env", f"--chdir={Path.cwd()}", *argv]
    os.execvpe(line[0], line, {**os.environ, **hosts[name]["env"]})
