"""Why a job failed, from what it left behind: each check is one cause, or one consequence of whatever the cause is.

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
is a tuple of facts. `code` names the cause; an empty one says that the line is a consequence: whatever is named on the
same ranks, their peers or their communicator, and not later, explains it. `echoes` are the codes of causes that explain
this one in the same way, such as a port that went down and the timeouts of its peers.

Codes, by group.
- Interfaces, names, ports: ``iface-missing`` (no interface passes the selection), ``iface-loopback``,
  ``iface-wrong-veth``, ``iface-wrong-tunnel``, ``container-bridge-net``, ``gloo-iface``, ``dns-loopback``,
  ``dns-unresolved``, ``addr-in-use``, ``port-privileged``, ``port-blocked``, ``master-unreachable``,
  ``peer-unreachable``, ``foreign-connection``, ``host-identity``.
- InfiniBand, RoCE, GPUDirect, P2P: ``ib-gid``, ``ib-hca-wrong``, ``ib-hca-mismatch``, ``ib-cross-rail``,
  ``ib-link-error``, ``ib-no-path``, ``ib-device-not-in-container``, ``libibverbs-missing``, ``net-asymmetric``,
  ``mtu``, ``memlock``, ``kernel-pin-failure``, ``dmabuf-unsupported``, ``gdr-off``, ``p2p-broken-acs-iommu``,
  ``p2p-unsupported``, ``nccl-bug-roce-lid``.
- Plugins and files: ``efa-no-provider``, ``efa-security-group``, ``plugin-missing``, ``plugin-mismatch``,
  ``topo-file``, ``graph-file``.
- One host: ``fabric-manager``, ``imex-missing``, ``nvls-slots``, ``shm-too-small``, ``oom``, ``fd-limit``,
  ``duplicate-gpu``, ``gpu-isolation``, ``gpu-hw-error``, ``gpu-arch-unsupported``, ``cuda-driver-mismatch``, ``mig``,
  ``peer-limit``, ``vm-topology``, ``wsl-unsupported``.
- Ranks, program, versions: ``rank-crashed``, ``ended-from-outside`` (a time limit, a person, a drained node),
  ``world-size-mismatch``, ``collective-desync``, ``timeout-straggler``, ``env-mismatch``, ``nccl-setting`` (a value
  that NCCL refuses), ``version-mismatch``, ``nccl-lib-mismatch``, ``wrong-data``, ``collective-stalled`` (with all
  ranks in it). Faults of a release: ``nccl-bug-VERSION-topic``.
- Slow, not failed: ``gdr-off`` too, ``slow-socket-fallback`` (sockets although there is RDMA), ``nvls`` (left out),
  ``container-topology`` (NCCL sees another topology than there is), ``ib-mixed-link-layer``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.logs.job_log import SUMMARY, JobLog, LogEvent
from ncclprobe.model.findings import Finding, Occurrence, Severity, fail, warn
from ncclprobe.model.registry import CauseRule, Check, check
from ncclprobe.model.values import Struct

SOURCE = "files"

Example = str | Mapping[str, str] | tuple[Any, ...]


class Examples(Struct, frozen=True):
    """Examples as they were written, and as the check takes them: of their lines those that hold one of `signs`."""

    written: Callable[[], Sequence[Example]]
    signs: tuple[str, ...]

    def __call__(self) -> list[tuple[Any, ...]]:
        """Return the facts that the reader makes of them."""
        return [_facts(example, self.signs) for example in self.written()]


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
    return check(
        bad=Examples(bad, signs),
        good=Examples(good, signs),
        required=required,
        cause=CauseRule(code, signs, doctor, echoes),
    )


def _facts(example: Example, signs: Sequence[str]) -> tuple[Any, ...]:
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

    `ranks`: whom it is about, where the rank that wrote the line speaks of others, which did not come.
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
