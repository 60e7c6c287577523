"""Which interface ranks took, and connections between ranks that had already met.

Connections between ranks that had already met: NCCL's sockets and gloo's.
"""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import (
    FABRIC,
    IMAGE,
    JOB,
    LIMIT,
    demoted,
    each,
    failed,
    hosts,
    of_the_job,
    peer_fields,
    warned,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import (
    CONTAINER_PORTS,
    LINK_LOCAL,
    LINK_LOCAL_V6,
    TUNNELS,
    FailedConnection,
    Used,
    failed_connection,
    used,
)
from ncclprobe.logs.outcome import worked_before
from ncclprobe.logs.texts import address_of, between
from ncclprobe.model.findings import Finding

_USING = ("Bootstrap : Using", "Bootstrap: Using", "NET/Socket : Using")
_NO_INTERFACE = (
    "no socket interface found",
    "NET/Socket : no interface found",
    "NET/IB : No IP interface found",
    "No usable listening interface found",
    "No interface found in the same subnet as remote address",
    "verify NCCL_OOB_NET_IFNAME",
)
_CUT_OFF = ("onnect to ", "exceeded retries", "exceeded timeouts", "exceeded error retry count", "onnection refused")


def _taken(log: JobLog) -> Iterator[tuple[LogEvent, Used]]:
    """Yield every interface that a rank reports to use, with the line."""
    for event in log.having(*_USING):
        for each_used in used(event.text):
            yield event, each_used


_NO_FAMILY = ("is neither AF_INET",)
_NO_SUCH_FAMILY = ("ocket creation failed : Address family not supported",)
_SELECTION = ("NCCL_SOCKET_IFNAME set", "NCCL_SOCKET_FAMILY set")


_ROOT = "NCCL_COMM_ID set by environment"
_NOT_HERE = tuple(f"Call to bind failed{colon} Cannot assign requested address" for colon in (":", " :"))


@cause(
    code="iface-missing",
    signs=(*_NO_INTERFACE, *_NO_FAMILY, *_NO_SUCH_FAMILY, *_SELECTION, *_NOT_HERE, _ROOT),
    doctor="env.ifname",
    bad=lambda: [
        "node1:77:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens9\n"
        "[rank0]: ncclSocketInit: connecting to address  with family 5931 is neither AF_INET(2) nor AF_INET6(10)"
    ],
    good=lambda: ["node1:77:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens9\nloss 2.1"],
)
def no_interface(log: JobLog) -> Iterator[Finding]:
    """NCCL found no usable network interface.

    Right: No log reports that NCCL found no interface.
    Why: NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY excludes every interface that is up, so a rank cannot even listen for
    the others (src/bootstrap.cc, bootstrapNetInit). All other ranks then wait for it, or fail later. Some releases,
    such as 2.27, do not detect this. They send the root an address without a family, and the root reports it
    (NVIDIA/nccl issue 1837).
    Fix: compare `ip -br addr` on this host with NCCL_SOCKET_IFNAME, then correct it or unset it. `eth` matches every
    name with that prefix, `=eth0` only eth0, and `^docker` every name without the prefix docker.
    """
    yield from each(log, _NO_INTERFACE, "NCCL found no usable interface", **JOB)
    for event in log.having(*_NOT_HERE):  # of RAS, too, where there is no ::1
        given = any((each_set.host, each_set.pid) == (event.host, event.pid) for each_set in log.having(_ROOT))
        if given and not demoted(event):
            yield said(log, event, "the address in NCCL_COMM_ID is not one of this host", **JOB)
    codes = () if any(True for _ in log.having(*_SELECTION)) else ("iface-missing", "version-mismatch")
    yield from each(log, _NO_SUCH_FAMILY, "this host or container has no address of that family", **IMAGE)
    yield from each(log, _NO_FAMILY, "a rank has no address, because it found no interface", codes=codes, **JOB)


@cause(
    code="iface-loopback",
    signs=(*_USING, *_CUT_OFF),
    doctor="env.ifname",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
        "n1:7:9 [0] include/socket.h:403 NCCL WARN Net : Connect to 127.0.0.1<40211> failed : Connection refused"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>"],
)
def loopback(log: JobLog) -> Iterator[Finding]:
    """Ranks on several hosts listen on a loopback address.

    Right: No rank of a job on several hosts uses a loopback address.
    Why: NCCL uses lo if NCCL_SOCKET_IFNAME allows only lo, or if no other interface is up (src/misc/socket.cc,
    ncclFindInterfaces). Other hosts that connect to 127.0.0.1 reach only themselves.
    Fix: set NCCL_SOCKET_IFNAME to the interface whose address the other hosts reach, for example
    `NCCL_SOCKET_IFNAME=eth0`, and check that it is up.
    """
    if len(hosts(log)) < 2 and not _refused_by_itself(log):
        return
    for event, taken in _taken(log):
        if taken.name == "lo" or taken.address.startswith("127.") or taken.address == "::1":
            message = f"uses {taken.name} ({taken.address}), which no other host can reach"
            codes = () if len(hosts(log)) > 1 else ("iface-loopback", "rank-crashed")
            yield said(log, event, message, codes=codes, **JOB)


def _refused_by_itself(log: JobLog) -> bool:
    """Return whether a rank connected to 127.0.0.1 and found no listener: the peer is on another host, or gone."""
    found = (failed_connection(event.text) for event in log.having(*_CUT_OFF) if event.level == "WARN")
    return any(each_found and each_found.final and each_found.peer.startswith("127.") for each_found in found)


@cause(
    code="iface-wrong-veth",
    signs=(*_USING, *_CUT_OFF),
    doctor="env.ifname",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.18.0.1<0>\n"
        "n1:7:9 [0] misc/socket.cc:550 NCCL WARN socketStartConnect: Connect to 172.18.0.1<4021> failed : "
        "No route to host"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.18.0.1<0>"],
)
def container_interface(log: JobLog) -> Iterator[Finding]:
    """NCCL uses an interface that exists on every host but connects none of them.

    Right: No connection failed on a container's bridge or a link-local address.
    Why: docker0, br-…, veth… and CNI interfaces exist on every host but do not connect hosts. The same is true for
    link-local addresses (169.254…, fe80:…), for example those of a management controller's USB port or of a second port
    in a cloud. NCCL uses every interface that NCCL_SOCKET_IFNAME allows. By default it excludes only lo and docker.
    Fix: name the interface that connects the hosts, such as `NCCL_SOCKET_IFNAME=eth0`, or exclude the others with
    `NCCL_SOCKET_IFNAME=^lo,docker,veth,br-,virbr,cni,flannel,cali`.
    """
    what = "a container's bridge or an interface whose address no other host can reach"
    yield from _strange(log, (*CONTAINER_PORTS, LINK_LOCAL), what)


@cause(
    code="iface-wrong-tunnel",
    signs=(*_USING, *_CUT_OFF),
    doctor="env.ifname",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/Socket : Using [0]tun0:10.8.0.6<0> [1]eth0:10.0.0.1<0>\n"
        "n1:7:9 [0] misc/socket.cc:550 NCCL WARN socketPollConnect: connect to 10.8.0.7<4021> returned "
        "Connection timed out, exceeded error retry count after 35 attempts"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NET/Socket : Using [0]tun0:10.8.0.6<0>"],
)
def tunnel(log: JobLog) -> Iterator[Finding]:
    """A tunnel is one of NCCL's interfaces.

    Right: No connection failed on a tunnel.
    Why: a VPN's interfaces (tun, wg, tailscale, …) reach only the VPN's own hosts and are slow, but NCCL uses them like
    any other interface that is up.
    Fix: name the interface that connects the hosts, such as `NCCL_SOCKET_IFNAME=eth0`, or exclude the tunnel, such as
    `NCCL_SOCKET_IFNAME=^lo,docker,tun`.
    """
    yield from _strange(log, TUNNELS, "a tunnel")


def _strange(log: JobLog, prefixes: tuple[str, ...], what: str) -> Iterator[Finding]:
    lines = (event for event in log.having(*_CUT_OFF) if of_the_job(event))
    if not any(event.level != "INFO" and not warned(event) and not worked_before(log, event) for event in lines):
        return
    connects = [*_connects_strangely(log, prefixes, what)]
    yield from connects
    seen: set[tuple[str, str]] = set()
    for event, taken in () if connects else _taken(log):
        first = next(iter(used(event.text))).name  # where the first is strange too, ranks meet over that one
        meant = taken.name == first or not first.startswith((*CONTAINER_PORTS, *TUNNELS))
        strange = taken.name.startswith(prefixes) or (LINK_LOCAL in prefixes and taken.address.startswith(LINK_LOCAL))
        if strange and meant and (event.host, taken.name) not in seen:
            seen.add((event.host, taken.name))
            message = f"uses {taken.name} ({taken.address}), {what}"
            yield said(log, event, message, **JOB)


def _connects_strangely(log: JobLog, prefixes: tuple[str, ...], what: str) -> Iterator[Finding]:
    """Yield the connections that failed over such an interface: they say which, if there are several."""
    for event in log.having("onnect to "):
        scope = event.text.partition("%")[2].partition("<")[0] if "<" in event.text else ""
        to = between(event.text, "onnect to ", " ") if LINK_LOCAL in prefixes else ""
        if event.level != "INFO" and (scope.startswith(prefixes) or _leads_nowhere(to, event.text)):
            yield said(log, event, f"connects over {scope or address_of(to)}, {what}", **JOB)


def _leads_nowhere(peer: str, text: str) -> bool:
    """Return whether a peer's address is link-local. An IPv6 one belongs to one host: a refusal there proves that it
    answers.
    """
    return peer.startswith(LINK_LOCAL) or (peer.startswith(LINK_LOCAL_V6) and "refused" not in text)


@cause(
    code="container-bridge-net",
    signs=_USING,
    doctor="env.ifname",
    bad=lambda: [
        {
            "a": "f00d5a7c0ffe:7:7 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>",
            "b": "0badcafe1dea:7:7 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>\n"
            "0badcafe1dea:7:9 [0] misc/socket.cc:58 NCCL WARN socketStartConnect: exceeded retries (20000)",
        }
    ],
    good=lambda: [
        {
            "a": "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
            "b": "n2:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n"
            "n2:7:9 [0] misc/socket.cc:58 NCCL WARN socketStartConnect: exceeded retries (20000)",
        }
    ],
)
def bridge_network(log: JobLog) -> Iterator[Finding]:
    """Ranks publish addresses of a container's private network.

    Right: No two hosts use the same address, or an address of a container's default bridge.
    Why: docker's default bridge gives the containers on every host the same addresses: 172.17.0.2, 172.17.0.3 and so
    on. A rank that connects to such an address reaches itself or another container on its own host, never the peer.
    Fix: start the containers in the host's network (`docker run --network=host`, `hostNetwork: true`), or give them a
    network that connects the hosts.
    """
    worked = any(rank.init_complete or rank.step for rank in log.ranks.values())
    if len(hosts(log)) < 2 or worked or not failed(log):
        return
    where: dict[str, set[str]] = {}
    inside = [(event, taken) for event, taken in _taken(log) if not taken.name.startswith(CONTAINER_PORTS)]
    for event, taken in inside:
        where.setdefault(taken.address, set()).add(event.host)
    for event, taken in inside:
        twice = len(where[taken.address]) > 1 and not taken.address.startswith(("127.", LINK_LOCAL, "fe80", "::1"))
        if twice or taken.address.startswith("172.17."):
            message = f"publishes {taken.address}, an address of a container's private network"
            yield said(log, event, message, **JOB)


_GLOO_IFACE = ("Unable to find address for: ", "Unable to find interface for: ", "unsupported gloo device")


@cause(
    code="gloo-iface",
    signs=_GLOO_IFACE,
    doctor="env.ifname",
    bad=lambda: [
        "RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:83] ifa != nullptr. "
        "Unable to find address for: ^docker0,lo"
    ],
    good=lambda: ["[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"],
)
def gloo_interface(log: JobLog) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME cannot be used.

    Right: gloo found the interfaces that GLOO_SOCKET_IFNAME names.
    Why: gloo expects a list of exact names. It does not support NCCL's prefixes, `^` and `=`
    (gloo/transport/tcp/device.cc), and fails if the name is not an interface on this host.
    Fix: set GLOO_SOCKET_IFNAME to one name as `ip -br addr` shows it, such as `GLOO_SOCKET_IFNAME=eth0`, on the same
    network on all hosts.
    """
    yield from each(log, _GLOO_IFACE, "gloo finds no interface with that name", **JOB)


_FALLBACK = ("Unable to resolve hostname to a (local) address",)


@cause(
    code="dns-loopback",
    signs=(*_FALLBACK, "127.0.1.1", "connectFullMesh failed"),
    doctor="launch.names",
    bad=lambda: [
        "[W ProcessGroupGloo.cpp:715] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
        "address as fallback. (function operator())\n"
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
    ],
    good=lambda: [
        "[W ProcessGroupGloo.cpp:715] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
        "address as fallback. (function operator())"
    ],
)
def own_name_is_loopback(log: JobLog) -> Iterator[Finding]:
    """A host's own name resolves to a loopback address.

    Right: No rank publishes a loopback address because of its host's name.
    Why: gloo and torch's RPC publish the address to which the host's own name resolves. In Debian's /etc/hosts that is
    127.0.1.1, which every other host takes for its own.
    Fix: give the host's name its real address in /etc/hosts or DNS (`getent hosts $(hostname)`), or set
    GLOO_SOCKET_IFNAME to the interface that connects the hosts.
    """
    signs = ("connectFullMesh failed", "Connection refused", "onnection closed by peer")
    if any(event.level != "INFO" and not warned(event) for event in log.having(*signs)):
        yield from each(
            log, _FALLBACK, "uses the loopback address, because the host's own name does not resolve", **IMAGE
        )
    for event in log.having("127.0.1.1"):
        if event.level != "INFO" and ("onnect" in event.text or "losed by peer" in event.text):
            yield said(log, event, "connects to 127.0.1.1, to which a host resolves its own name", **IMAGE)


_CONNECT = ("onnect to ", "connect returned", "exceeded error retry count", "exceeded retries", "exceeded timeouts",
            "PollConnect to ", "Call to connect failed : ", "Call to recv", "Call to send")  # fmt: skip


def _connections(log: JobLog, *errors: str) -> Iterator[tuple[LogEvent, FailedConnection]]:
    """Yield NCCL's connections that ended with one of these errors."""
    for event in log.having(*_CONNECT):
        found = failed_connection(event.text) if _nccls(event) else None
        if not found or not (found.final or _tries_to_the_end(log, event)) or found.error not in errors:
            continue
        if not _explained(found.peer, found.error) or worked_before(log, event):
            yield event, found


_FEWEST_TRIES = 3


def _tries_to_the_end(log: JobLog, event: LogEvent) -> bool:
    """Return whether a log ends with a rank's attempts to connect, and this is the last one."""
    stream = log.streams[event.stream]
    tries = (e for e in log.having(*_CONNECT) if e.stream == event.stream and e.line > stream.nlines - _FEWEST_TRIES)
    return event.line == stream.nlines and sum(", retrying" in each.text for each in tries) == _FEWEST_TRIES


def _nccls(event: LogEvent) -> bool:
    tries = ", retrying" in event.text
    return (tries or not demoted(event)) and "c10d" not in event.text and "gloo" not in event.text


def _explained(peer: str, error: str) -> bool:
    """Return whether the address itself is wrong: loopback, link-local, or of a strange interface."""
    scope = peer.partition("%")[2]
    own = peer.startswith(("127.", "::1")) or _leads_nowhere(peer, error)
    return own or scope.startswith((*CONTAINER_PORTS, *TUNNELS))


@cause(
    code="port-blocked",
    signs=_CONNECT,
    doctor="launch.mesh",
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

    Right: No firewall rejected a connection between ranks.
    Why: the ranks have joined at MASTER_PORT, so "No route to host" within one network comes from a firewall (firewalld
    and iptables' icmp-host-prohibited) that blocks the ephemeral ports on which NCCL listens. A router gives the same
    answer if it has no route to another network.
    Fix: allow all TCP between the hosts of the job (`firewall-cmd --zone=trusted --add-source=SUBNET`), or at least the
    range in net.ipv4.ip_local_port_range.
    """
    for event, found in _connections(log, "No route to host"):
        message = f"the connection to {found.peer or 'a peer'} was rejected: No route to host"
        own = [address for address, name in log.addresses.items() if name == event.host and "." in address]
        codes = () if _shares_network(own, found.peer) else ("port-blocked", "peer-unreachable")
        codes = codes[::-1] if own else codes
        yield said(log, event, message, **FABRIC, codes=codes, **peer_fields(log, found.peer))


def _shares_network(own: Sequence[str], peer: str) -> bool:
    """Return whether one of the IPv4 addresses that a host uses has the first 24 bits of its peer's."""
    return "." in peer and any(each.rpartition(".")[0] == peer.rpartition(".")[0] for each in own)


@cause(
    signs=_CONNECT,
    doctor="launch.mesh",
    echoes=("iface-wrong-veth", "iface-wrong-tunnel", "container-bridge-net", "iface-loopback"),
    bad=lambda: [
        "n1:7:9 [0] misc/socket.cc:58 NCCL WARN socketPollConnect: connect to 10.0.0.2<40211> returned "
        "Connection timed out, exceeded error retry count after 35 attempts"
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying"],
)
def connection_timed_out(log: JobLog) -> Iterator[Finding]:
    """A peer does not answer a rank's packets.

    Right: Every connection between ranks was answered.
    Why: a peer does not answer if a firewall drops packets, or if its address belongs to an interface on another
    network. If the peer's process had exited, its host would refuse the connection instead.
    Fix: run `ping PEER` and `nc -vz PEER PORT` on this host while the peer waits. If ping succeeds but nc fails, open
    the ports. If both fail, the peer published the address of the wrong interface: set NCCL_SOCKET_IFNAME on all hosts.
    """
    for event, found in _connections(log, "Connection timed out"):
        message = f"{found.peer or 'a peer'} does not answer: Connection timed out"
        codes = ("port-blocked", "peer-unreachable")
        yield said(log, event, message, **FABRIC, codes=codes, **peer_fields(log, found.peer))


_GLOO_CONNECT = ("Connect timeout [", "timed out connecting: ", "onnectFullMesh failed")


@cause(
    code="peer-unreachable",
    signs=(*_CONNECT, *_GLOO_CONNECT),
    doctor="launch.mesh",
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
    """Two ranks that have joined cannot reach each other.

    Right: Every rank reached its peers.
    Why: each rank publishes the address of its chosen interface. If hosts choose interfaces on different networks, the
    other side has no route to the published address.
    Fix: set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to interfaces on one network that all hosts share. Check with `ip
    route get PEER` on the host that reports the failure.
    """
    for event, found in _connections(log, "Network is unreachable"):
        message = f"there is no route to {found.peer or 'a peer'}"
        yield said(log, event, message, **LIMIT, **peer_fields(log, found.peer))
    for event in log.having(*_GLOO_CONNECT):
        if "127.0." not in event.text:
            peer = between(event.text, "timeout [", "]") or between(event.text, "remote=[", "]")
            peer = peer or between(event.text, "connecting: ", " ").strip("[]")
            peer = "" if peer == "none" else peer  # gloo's word for an address that it never learned
            message = f"gloo did not connect to {peer or 'a peer'} in time"
            codes = ("rank-crashed", "peer-unreachable") if "onnection refused" in event.text else ()
            codes = codes if peer else ("gloo-iface", "peer-unreachable")
            yield said(log, event, message, codes=codes, **JOB, **peer_fields(log, peer))


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
    """A peer's host refuses the connection, because its process has exited or listens elsewhere.

    Right: No peer refused a connection.
    Why: a refusal comes from the peer's kernel, so the host is reachable but no process listens on that port. The rank
    there has exited, or published another host's address.
    Fix: find the first failure of the rank at that address. If the rank still runs, compare the address with `ip -br
    addr` on its host.
    """
    for event, found in _connections(log, "Connection refused"):
        codes = ("rank-crashed", "peer-unreachable") if found.peer else ()
        message = f"{found.peer or 'a peer'} refuses the connection"
        yield consequence(log, event, message, codes=codes, **peer_fields(log, found.peer))


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
    """A peer closed its connection because it exited first.

    Right: No peer closed a connection.
    Why: the rank that writes this line is the victim. The process at the other end has exited or aborted, and only its
    own log can show why.
    Fix: read the last lines in the log of the rank at that address, and the kernel log of its host.
    """
    for event in log.having(*_CLOSED):
        if of_the_job(event) and not demoted(event) and not warned(event):
            peer = closed_peer(event.text)
            yield consequence(log, event, f"{peer or 'a peer'} closed the connection", **peer_fields(log, peer))


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
