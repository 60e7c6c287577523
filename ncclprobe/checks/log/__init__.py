"""Checks on the files of a job that failed; each finds one cause, or one consequence of another cause.

``@cause`` declares one::

    @cause(
        code="iface-missing",
        signs=("no socket interface found",),       # a line is searched for these; it must hold one
        doctor="env.ifname",                  # the check that finds it before the next launch
        bad=lambda: ["node1:7:7 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"],
        good=lambda: ["node1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"],
    )
    def no_interface(log: JobLog) -> Iterator[Finding]:
        for event in log.having("no socket interface found"):
            yield said(log, event, "…", blame="job", action="fix-job")

An example is the text of one log, or texts by the name of their log, and goes through the reader of logs itself; or it
is a tuple of facts. `code` names the cause; an empty one marks the line as a consequence. A cause on the same ranks,
their peers or their communicator explains it unless it is later. `echoes` are the codes of causes that explain this one
in the same way, such as a port that went down and the timeouts of its peers.

Codes, by group.
- Interfaces, names, ports: ``iface-missing`` (no interface passes the selection), ``iface-loopback``,
  ``iface-wrong-veth``, ``iface-wrong-tunnel``, ``container-bridge-net``, ``gloo-iface``, ``dns-loopback``,
  ``dns-unresolved``, ``addr-in-use``, ``port-privileged``, ``port-blocked``, ``master-unreachable``,
  ``peer-unreachable``, ``foreign-connection``, ``host-identity``.
- InfiniBand, RoCE, GPUDirect, P2P: ``ib-gid``, ``ib-hca-wrong``, ``ib-hca-mismatch``, ``ib-cross-rail``,
  ``ib-link-error``, ``ib-no-path``, ``ib-device-not-in-container``, ``libibverbs-missing``, ``net-asymmetric``,
  ``mtu``, ``memlock``, ``kernel-pin-failure``, ``dmabuf-unsupported``, ``gdr-off``, ``p2p-broken-acs-iommu``,
  ``p2p-unsupported``.
- Plugins and files: ``efa-no-provider``, ``efa-security-group``, ``plugin-missing``, ``plugin-mismatch``,
  ``topo-file``, ``graph-file``.
- One host: ``fabric-manager``, ``imex-missing``, ``nvls-slots``, ``shm-too-small``, ``oom``, ``fd-limit``,
  ``duplicate-gpu``, ``gpu-isolation``, ``gpu-hw-error``, ``gpu-arch-unsupported``, ``cuda-driver-mismatch``, ``mig``,
  ``peer-limit``, ``vm-topology``.
- Ranks, program, versions: ``rank-crashed``, ``ended-from-outside`` (a time limit, a person, a drained node),
  ``world-size-mismatch``, ``collective-desync``, ``timeout-straggler``, ``env-mismatch``, ``nccl-setting`` (a value
  that NCCL refuses), ``version-mismatch``, ``nccl-lib-mismatch``, ``wrong-data``, ``collective-stalled`` (with all
  ranks in it). Faults of a release: ``nccl-bug-VERSION-topic``.
- ``stated``: no check knows the line that says why; its own words are the answer.
- Slow, not failed: ``gdr-off`` too, ``slow-socket-fallback`` (sockets although there is RDMA), ``nvls`` (left out),
  ``ib-mixed-link-layer``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.logs.job_log import SUMMARY, JobLog, LogEvent
from ncclprobe.model.findings import Finding, Occurrence, Severity, fail, warn
from ncclprobe.model.registry import CauseRule, Check, CheckGroup, check
from ncclprobe.model.values import Struct

SOURCE = "files"

_PARTS = {
    "collective-mismatch": ("Ranks are in different collectives, or use different sizes",
        "collectives-do-not-match message-of-another-size desync one-rank-ended-otherwise ras-other-operations"),
    "rank-behind": ("A rank did not join a collective of the others, or joined too late",
        "a-rank-did-not-come torch-names-the-late-ranks "
        "listed-as-missing works-on-alone late-rank absent-rank ras-rank-behind rank-came-late-to-nccl"),
    "rank-silent": ("A rank is silent, or its process is gone",
        "rank-fell-silent rank-did-not-begin ras-dead-process ras-no-answer"),
    "ranks-missing": ("Ranks of the job did not meet", "ranks-missing no-address-of-a-rank waits-for-the-first-rank"),
    "collective-stuck": ("A collective did not end, and no line names the rank at fault",
        "waited-in-vain ended-by-its-own-monitor all-entered stands-elsewhere"),
    "interface": ("A rank uses an interface or address that others cannot reach",
        "no-interface loopback container-interface tunnel bridge-network gloo-interface own-name-is-loopback "
        "ranks-may-not-meet"),
    "unreachable": ("A running peer cannot be reached",
        "rejected-by-a-firewall connection-timed-out peer-unreachable refused"),
    "rank-ended": ("A process of the job exited or was killed by a signal",
        "killed-by-a-signal exited"),
    "program-raised": ("The program raised an exception", "program-raised traceback-is-cut-off"),
    "kernel-faulted": ("A kernel of the program failed on a GPU",
        "kernel-faulted launch-failed driver-saw-a-wild-access"),
    "ended-by-others": ("A launcher or the scheduler ended ranks", "ended-by-the-launcher ended-in-initialisation"),
    "nvlink-fabric": ("NVLink between GPUs, or the service that manages it, does not work",
        "fabric-not-ready nvlink-without-peer-access no-imex-channel"),
    "nvls": ("NVLS failed, was not used, or was used up", "nvls-used-up nvls-left-out"),
    "gpu-failed": ("A GPU or an NVLink failed",
        "gpu-failed dcgm-found-a-fault nccl-diagnosed ras-error"),
    "gpu-shared": ("Ranks share a GPU, or several hosts look like one host",
        "two-ranks-on-one-gpu"),
    "driver": ("The driver, the CUDA runtime and the binary are incompatible", "driver-does-not-fit"),
    "peer-access": ("A rank cannot open the memory of another GPU",
        "too-many-peers peer-memory-closed no-peer-access"),
    "topology": ("The topology that NCCL reads is unusable or belongs to another machine",
        "topology-file"),
    "rdma-transfer": ("A transfer over RDMA failed", "no-acknowledgement flushed device-access-broken efa-completion"),
    "rdma-path": ("There is no path between two RDMA ports, or a port is down",
        "port-went-down no-path-between-ports wrong-gid efa-security-group"),
    "networks-differ": ("Hosts use different networks, link layers or numbers of devices",
        "networks-differ link-layers-in-use"),
    "rdma-device": ("RDMA was requested, but a device, a driver or a library is missing",
        "verbs-library-missing no-device-of-that-name no-efa-provider"),
    "plugin": ("The network plugin is not loaded or is incompatible", "plugin-not-found plugin-does-not-fit"),
    "registration": ("Memory cannot be registered with a device",
        "locked-memory refused-without-a-limit pinning-failed"),
    "memory-full": ("Memory is full: the host's, a GPU's or shared memory",
        "host-memory-full gpu-memory-full shared-memory-full"),
    "node-failed": ("A host or pod of the job was lost, or a pod could not be placed",
        "node-failed pod-evicted pod-not-placed"),
    "port": ("A port cannot be used by this job", "port-taken port-privileged"),
    "store": ("The job's store cannot be reached, or was lost", "master-unreachable store-left"),
    "nccl-failed": ("NCCL returned an error, and another line gives the reason", "nccl-returned-an-error proxy-failed"),
    "slow-path": ("NCCL uses a slower path than it could", "slow-path sockets-instead-of-rdma gpudirect-off"),
    "versions": ("Ranks run different versions or settings",
        "settings-differ nccl-versions-differ another-library"),
}  # fmt: skip
"""Ids that several functions share: the title of each, and the names of its parts."""
_GROUPS = {part: CheckGroup(name, title) for name, (title, parts) in _PARTS.items() for part in parts.split()}

Example = str | Mapping[str, str] | tuple[Any, ...]


class Examples(Struct, frozen=True):
    """Examples as they were written, and as the check takes them: of their lines those that hold one of `signs`."""

    written: Callable[[], Sequence[Example]]
    signs: tuple[str, ...]

    def __call__(self) -> list[tuple[Any, ...]]:
        """Return the facts that the reader makes of them."""
        return [facts_of(example, self.signs) for example in self.written()]


def cause(
    *,
    code: str = "",
    signs: tuple[str, ...] = (),
    doctor: str = "",
    echoes: tuple[str, ...] = (),
    bad: Callable[[], Sequence[Example]],
    good: Callable[[], Sequence[Example]],
    required: bool = False,
) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Declare a check of a job's logs; see this module."""

    def declare(run: Callable[..., Iterator[Finding]]) -> Check:
        return check(
            bad=Examples(bad, signs),
            good=Examples(good, signs),
            required=required,
            cause=CauseRule(code, signs, doctor, echoes),
            group=_GROUPS.get(run.__name__.replace("_", "-")),
        )(run)

    return declare


def facts_of(example: Example, signs: Sequence[str]) -> tuple[Any, ...]:
    """Return the arguments of a check: what the reader makes of texts.

    The reader is imported here: discovery imports this folder to see whose facts it judges, in the doctor too.
    """
    from ncclprobe.logs.reader import read

    if isinstance(example, tuple):
        return example
    texts = {"example": example} if isinstance(example, str) else example
    return (read(((name, [text.encode()]) for name, text in texts.items()), signs),)


def said(
    log: JobLog,
    event: LogEvent,
    message: str,
    *,
    severity: Severity = Severity.FAIL,
    ranks: tuple[int, ...] = (),
    peers: tuple[int, ...] = (),
    peer_hosts: tuple[str, ...] = (),
    comm: str = "",
    codes: tuple[str, ...] = (),
    **details: Any,
) -> Finding:
    """Return a finding that rests on one line of a log. `details`: fields of :class:`Finding` by name.

    `ranks`: whom it is about, if the rank that wrote the line speaks of others, which did not arrive.
    """
    own = () if event.rank is None else (event.rank,)
    known = {log.ranks[rank].host: None for rank in ranks if rank in log.ranks} if ranks else {event.host: None}
    occurrence = Occurrence(
        ranks=ranks or own,
        hosts=tuple(host for host in known if host),
        peers=peers,
        peer_hosts=peer_hosts,
        comm=comm,
        stream=event.stream,
        line=event.line,
        time_s=event.time_s,
        codes=codes,
        ordered=event.level not in SUMMARY,
    )
    make = fail if severity is Severity.FAIL else warn
    subject = details.pop("subject", "") or log.where(event)
    nodes = details.pop("nodes", occurrence.hosts)
    return make(subject, message, evidence=log.evidence(event), nodes=nodes, occurrence=occurrence, **details)


def consequence(log: JobLog, event: LogEvent, message: str, **details: Any) -> Finding:
    """Return the same for a line that only follows from something else."""
    return said(log, event, message, severity=Severity.WARN, **details)
