"""Interfaces and TCP connections: what NCCL says of them."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.model.findings import Finding

_NO_INTERFACE = ("Bootstrap : no socket interface found", "Bootstrap : no socket interface")


@cause(
    code="iface-missing",
    signs=_NO_INTERFACE,
    doctor="env.ifname-match",
    bad=lambda: [
        "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
        "[rank3]: Last error:\nBootstrap : no socket interface found\n",
    ],
    good=lambda: ["node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"],
)
def no_interface(log: JobLog) -> Iterator[Finding]:
    """NCCL found no network interface that it may use.

    Right: no log says that NCCL found no interface.
    Why: NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY leaves no interface that is up, so a rank cannot even listen for the
    others (src/bootstrap.cc, bootstrapNetInit); all other ranks then wait for it or fail after it.
    Fix: compare `ip -br addr` on this host with NCCL_SOCKET_IFNAME; a prefix such as eth, or ^docker, matches what
    exists; or unset it.
    """
    for event in log.having(*_NO_INTERFACE):
        yield said(log, event, "NCCL found no interface that it may use", blame="job", action="fix-job")
