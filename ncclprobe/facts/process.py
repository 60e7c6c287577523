"""What this process may do and where it lives: limits, processors, capabilities, namespaces, and the kind of container.

All of it is the process's own, for every user to read. Under srun or in a container it is what a rank started the same
way gets; in a login shell it is not.
"""

import json
import re
from typing import NamedTuple

from ncclprobe.errors import HostError, ParseError
from ncclprobe.facts.cpu import cpu_list
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import learn
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_CAPABILITIES = {  # linux/capability.h: those that decide what a job or this tool may do
    12: "net_admin",
    14: "ipc_lock",
    19: "sys_ptrace",
    21: "sys_admin",
    23: "sys_nice",
    24: "sys_resource",
    34: "syslog",
}
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_WHOLE_RANGE = ["0", "0", "4294967295"]

READS = frozenset({"KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"})
"""Variables read here that NCCL's table of parameters does not hold: their values may be recorded too."""

_BY_VARIABLE = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}
_BY_FILE = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_BY_CGROUP = re.compile(r"/(kubepods|docker|libpod|lxc|machine\.slice/machine-|containerd|cri-o|enroot)")
_CGROUP_KINDS = {"kubepods": "kubernetes", "libpod": "podman", "machine.slice/machine-": "systemd-nspawn"}


class ResourceLimit(NamedTuple):
    """A resource limit, soft and hard. None: unlimited."""

    soft: int | None
    hard: int | None


class Process(Struct, frozen=True):
    """`cpus` and `memory_nodes` are those it may use, `capabilities` the effective ones that matter here
    (``ipc_lock``).

    `first_user_namespace`: its capabilities count for the whole machine, and not for a container only. `namespaces` are
    inode numbers by kind: equal numbers on one boot of one kernel are one namespace.
    """

    nofile: ResourceLimit
    nproc: ResourceLimit
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    capabilities: frozenset[str]
    first_user_namespace: bool
    namespaces: dict[str, int | Absent]


class Container(Struct, frozen=True):
    """`kind` is docker, podman, kubernetes, lxc, apptainer or the like; empty: no sign of one. `sign` is what tells.

    A sign can be a leftover: a machine that was started from docker's image has its /.dockerenv.
    """

    kind: str = ""
    sign: str = ""


@collector
def process(host: Host) -> Process:
    """Read getrlimit(2), /proc/self/status, uid_map and the links of /proc/self/ns: a process may always look at
    itself.
    """
    cpus, nodes, capabilities = status(host.ask("read", "/proc/self/status"))
    return Process(
        nofile=_limit(host, "RLIMIT_NOFILE"),
        nproc=_limit(host, "RLIMIT_NPROC"),
        cpus=cpus,
        memory_nodes=nodes,
        capabilities=capabilities,
        first_user_namespace=host.ask("read", "/proc/self/uid_map").split() == _WHOLE_RANGE,
        namespaces={kind: learn(host, namespace, "link", f"/proc/self/ns/{kind}") for kind in _NAMESPACES},
    )


def _limit(host: Host, name: str) -> ResourceLimit:
    soft, hard = json.loads(host.ask("rlimit", name))
    return ResourceLimit(soft, hard)


def status(text: str) -> tuple[tuple[int, ...], tuple[int, ...], frozenset[str]]:
    """Return allowed processors, allowed memory nodes and effective capabilities of /proc/self/status. Raises
    ParseError.

    A kernel without cpusets shows no memory nodes: none are listed then.
    """
    fields = {
        name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon
    }
    try:
        cpus, capabilities = fields["Cpus_allowed_list"], int(fields["CapEff"], 16)
    except (KeyError, ValueError):
        raise ParseError(f"/proc/self/status: no Cpus_allowed_list or CapEff: {text[:80]!r}") from None
    held = frozenset(name for bit, name in _CAPABILITIES.items() if capabilities >> bit & 1)
    return cpu_list(cpus), cpu_list(fields.get("Mems_allowed_list", "")), held


def namespace(link: str) -> int:
    """Return the inode number in ``ipc:[4026531839]``. Raises ParseError."""
    match = re.fullmatch(r"\w+:\[(\d{1,20})\]", link.strip(), re.ASCII)
    if not match:
        raise ParseError(f"/proc/self/ns: {link[:60]!r}")
    return int(match[1])


@collector
def container(host: Host, environment: Environment | Absent) -> Container:
    """Read the marks that container engines leave: variables, two files, the control groups of process 1. For every
    user.
    """
    variables = {} if isinstance(environment, Absent) else environment.variables
    for name, kind in _BY_VARIABLE.items():
        if variables.get(name):
            return Container(kind, name)
    for path, kind in _BY_FILE.items():
        if not isinstance(learn(host, str, "stat", path), Absent):
            return Container(kind, path)
    if named := variables.get("container"):  # systemd's convention, kept by podman, lxc and nspawn
        return Container(named, "container")
    return _by_cgroup(host)


def _by_cgroup(host: Host) -> Container:
    try:
        match = _BY_CGROUP.search(host.ask("read", "/proc/1/cgroup"))
    except HostError:  # hidepid: the other marks were looked for
        return Container()
    return Container(_CGROUP_KINDS.get(match[1], match[1]), "/proc/1/cgroup") if match else Container()
