"""Connections between ranks that had already met: NCCL's sockets and gloo's."""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import FABRIC, JOB, demoted, of_peer, of_the_job, warned
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.nccl_lines import CONTAINER_PORTS, LINK_LOCAL, TUNNELS, FailedConnection, failed_connection
from ncclprobe.facts.files.texts import address_of, between
from ncclprobe.model.findings import Finding

_CONNECT = ("onnect to ", "exceeded error retry count", "exceeded retries", "exceeded timeouts", "PollConnect to ",
            "Call to connect failed : ", "Call to recv", "Call to send")  # fmt: skip


def _connections(log: JobLog, *errors: str) -> Iterator[tuple[LogEvent, FailedConnection]]:
    """Yield NCCL's connections that ended with one of these errors."""
    for event in log.having(*_CONNECT):
        found = failed_connection(event.text) if _nccls(event) else None
        if found and found.final and found.error in errors and not _explained(found.peer):
            yield event, found


def _nccls(event: LogEvent) -> bool:
    return not demoted(event) and "c10d" not in event.text and "gloo" not in event.text


def _explained(peer: str) -> bool:
    """Return whether the address itself says what is wrong: loopback, link-local, or of a strange interface."""
    scope = peer.partition("%")[2]
    return peer.startswith(("127.", "::1", LINK_LOCAL)) or (
        bool(scope) and scope.startswith((*CONTAINER_PORTS, *TUNNELS))
    )


@cause(
    code="port-blocked",
    signs=_CONNECT,
    doctor="launch.tcp-mesh",
    echoes=("iface-wrong-veth", "iface-wrong-tunnel", "container-bridge-net", "iface-loopback"),
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:550 NCCL WARN socketStartConnect: Connect to 10.0.0.2<40211> failed : "
        "No route to host"
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO socketPollConnect: connect to 10.0.0.2<40211> returned No route to host, retrying "
        "(1/34) after sleep for 100 msec"
    ],
)
def rejected_by_a_firewall(log: JobLog) -> Iterator[Finding]:
    """A firewall rejects the ports of the job.

    Right: No connection between ranks was rejected on its way.
    Why: the ranks have met at MASTER_PORT; "No route to host" within one network is then what a firewall sends back
    (firewalld and iptables' icmp-host-prohibited) for the ephemeral ports that NCCL listens on. To another network a
    router says the same where no way leads there.
    Fix: let all TCP between the hosts of the job pass (`firewall-cmd --zone=trusted --add-source=SUBNET`), or at least
    the range in net.ipv4.ip_local_port_range.
    """
    for event, found in _connections(log, "No route to host"):
        message = f"the way to {found.peer or 'a peer'} is rejected: No route to host"
        own = [address for address, name in log.addresses.items() if name == event.host and "." in address]
        codes = () if _in_one_network(own, found.peer) else ("port-blocked", "peer-unreachable")
        codes = codes[::-1] if own else codes
        yield said(log, event, message, **FABRIC, codes=codes, **of_peer(log, found.peer))


def _in_one_network(own: Sequence[str], peer: str) -> bool:
    """Return whether one of the IPv4 addresses that a host uses has the first 24 bits of its peer's."""
    return "." in peer and any(each.rpartition(".")[0] == peer.rpartition(".")[0] for each in own)


@cause(
    signs=_CONNECT,
    doctor="launch.tcp-mesh",
    echoes=("iface-wrong-veth", "iface-wrong-tunnel", "container-bridge-net", "iface-loopback"),
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:58 NCCL WARN socketPollConnect: connect to 10.0.0.2<40211> returned "
        "Connection timed out, exceeded error retry count after 35 attempts"
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying"],
)
def connection_timed_out(log: JobLog) -> Iterator[Finding]:
    """A rank's packets to a peer are not answered.

    Right: Every connection between ranks was answered.
    Why: nothing comes back where a firewall drops packets, or where the peer's address is of an interface that leads
    elsewhere; a rank whose process has ended answers with a refusal instead.
    Fix: on this host `nc -vz PEER PORT` while the peer waits. Answered by ping and not by nc: open the ports. Answered
    by neither: the peer published the wrong interface; set NCCL_SOCKET_IFNAME on all hosts.
    """
    for event, found in _connections(log, "Connection timed out"):
        message = f"{found.peer or 'a peer'} does not answer: Connection timed out"
        codes = ("port-blocked", "peer-unreachable")
        yield said(log, event, message, **FABRIC, codes=codes, **of_peer(log, found.peer))


_GLOO_CONNECT = ("Connect timeout [", "timed out connecting: ", "onnectFullMesh failed")


@cause(
    code="peer-unreachable",
    signs=(*_CONNECT, *_GLOO_CONNECT),
    doctor="launch.tcp-mesh-iface",
    echoes=(
        "iface-wrong-veth",
        "iface-wrong-tunnel",
        "container-bridge-net",
        "dns-loopback",
        "gloo-iface",
        "rank-crashed",
        "world-size-mismatch",
    ),
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:550 NCCL WARN socketStartConnect: Connect to 10.9.0.2<40211> failed : "
        "Network is unreachable"
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO socketPollConnect: connect to 10.0.0.2<40211> returned Network is unreachable, retrying "
        "(1/34) after sleep for 100 msec"
    ],
)
def peer_unreachable(log: JobLog) -> Iterator[Finding]:
    """Two ranks that have met cannot reach each other.

    Right: Every rank reached its peers.
    Why: each rank publishes the address of the interface that it chose; where hosts choose interfaces of different
    networks, the address that was published has no route from the other side.
    Fix: set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to one network that all hosts share, and `ip route get PEER` on
    the host that says it.
    """
    for event, found in _connections(log, "Network is unreachable"):
        message = f"no route leads to {found.peer or 'a peer'}"
        yield said(log, event, message, **JOB, **of_peer(log, found.peer))
    for event in log.having(*_GLOO_CONNECT):
        if "127.0." not in event.text:
            peer = between(event.text, "timeout [", "]") or between(event.text, "remote=[", "]")
            peer = peer or between(event.text, "connecting: ", " ").strip("[]")
            peer = "" if peer == "none" else peer  # gloo's word for an address that it never learned
            message = f"gloo did not connect to {peer or 'a peer'} in time"
            codes = ("rank-crashed", "peer-unreachable") if "onnection refused" in event.text else ()
            codes = codes if peer else ("gloo-iface", "peer-unreachable")
            yield said(log, event, message, codes=codes, **JOB, **of_peer(log, peer))


_REFUSED = ("Connection refused",)


@cause(
    signs=(*_CONNECT, *_REFUSED),
    echoes=("*",),
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:466 NCCL WARN socketPollConnect: connect to 10.0.0.2<4021> returned Connection "
        "refused, exceeded error retry count after 35 attempts",
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO Call to connect returned Connection refused, retrying"],
)
def refused(log: JobLog) -> Iterator[Finding]:
    """A peer's host refuses the connection: its process has ended, or listens elsewhere.

    Right: No peer refused a connection.
    Why: a refusal comes from the peer's kernel, so the host is reached and no process listens on that port: the rank
    there has ended, or published an address that is another host's.
    Fix: look for the first failure of the rank at that address; if it still runs, compare the address with
    `ip -br addr` there.
    """
    for event, found in _connections(log, "Connection refused"):
        codes = ("rank-crashed", "peer-unreachable") if found.peer else ()
        message = f"{found.peer or 'a peer'} refuses the connection"
        yield consequence(log, event, message, codes=codes, **of_peer(log, found.peer))


_CLOSED = (
    "Connection closed by remote peer",
    "onnection reset by peer",
    "onnection closed by peer",
    "Socket unexpectedly closed",
    "Broken pipe",
    "Read error [",
)


@cause(
    signs=_CLOSED,
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n2.local<52123>"
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0"],
)
def closed_by_the_peer(log: JobLog) -> Iterator[Finding]:
    """A peer closed its connection: it ended first.

    Right: No peer closed a connection.
    Why: the rank that writes this is the victim; the process at the other end has ended or aborted, for a reason that
    only its own log can say.
    Fix: look at the log of the rank at that address for what it wrote last, and at the kernel log of its host.
    """
    for event in log.having(*_CLOSED):
        if of_the_job(event) and not demoted(event) and not warned(event):
            peer = closed_peer(event.text)
            yield consequence(log, event, f"{peer or 'a peer'} closed the connection", **of_peer(log, peer))


def closed_peer(text: str) -> str:
    """Return the address or host at the other end of a connection that was closed; empty: the line does not say."""
    for start, end in (
        ("by remote peer ", " "),
        ("recv from ", " "),
        ("send to ", " "),
        ("by peer [", "]"),
        ("error [", "]"),
    ):
        if found := between(text, start, end):
            return address_of(found)
    return ""
