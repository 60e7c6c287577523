"""Name resolution on this node: /etc/hosts, /etc/resolv.conf and the order in /etc/nsswitch.conf.

Every user may read them. In a container they are the container's; Kubernetes and docker rewrite the first two for each
container. MASTER_ADDR, the host of NCCL_COMM_ID and this node's own name are resolved on this node.
"""

import json
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address

from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.host import Host
from ncclprobe.model.errors import Failed, Missing, TimedOut
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class Master(Struct, frozen=True):
    """The rendezvous address. `name` is empty if no launcher gave one; `failure` is why it did not resolve."""

    name: str = ""
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: str = ""

    @property
    def loopback(self) -> tuple[str, ...]:
        """Return the loopback addresses, which no other node can reach."""
        return tuple(a for a in self.addresses if ip_address(a.partition("%")[0]).is_loopback)


@collector
def resolver(host: Host, launch: Launch) -> Master:
    """Resolve MASTER_ADDR by getaddrinfo(3). A failure is a fact: the job would not find rank 0 either."""
    if not launch.master_addr:
        return Master()
    try:
        seen = json.loads(host.ask("resolve", launch.master_addr))
    except (Failed, TimedOut) as error:
        return Master(launch.master_addr, failure=str(error))
    return Master(launch.master_addr, tuple(seen["addresses"]), seen["seconds"])


class OwnName(Struct, frozen=True):
    """This host's own name as getaddrinfo(3) resolves it, in its order. `failure`: why it did not resolve.

    `name` is empty if it was not looked up, as in single-node jobs.
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    failure: str = ""


@collector
def own_name(host: Host, launch: Launch, system: System) -> OwnName:
    """Resolve the host's own name in multi-node jobs, as gloo does (and torchrun on rank 0)."""
    return resolve_own(host, system.hostname) if launch.several_nodes else OwnName()


def resolve_own(host: Host, name: str) -> OwnName:
    """Resolve `name`. A failure is a fact: gloo then listens on 127.0.0.1. Raises TimedOut."""
    try:
        seen = json.loads(host.ask("resolve", name))
    except Failed as error:
        return OwnName(name, failure=str(error))
    return OwnName(name, tuple(seen["addresses"]))


def comm_id_host(text: str) -> str:
    """Return the host, name or address, in a value of NCCL_COMM_ID: ``10.0.0.1:9999``, ``[fe80::1%eth0]:9999``.

    Raises ValueError if NCCL rejects the text, even an empty one: it is set and therefore counts. NCCL passes a name to
    the resolver, which may still reject it. Source: src/misc/socket.cc:252 ncclSocketGetAddrFromString (v2.30.7).
    """
    if len(text) < 2:
        raise ValueError("it is empty, or a single character")
    if not text.startswith("["):
        host = next((piece for piece in text.split(",") if piece and piece[0] != ":"), "").split(":")[0]
        if not host:
            raise ValueError("it names no host")
        return host
    inside, closed, _ = text[1:].partition("]")
    if not closed:
        raise ValueError("its bracket is not closed")
    try:
        IPv6Address(inside.partition("%")[0])
    except ValueError:
        raise ValueError("the text in its brackets is not an IPv6 address") from None
    return inside


class CommIdHost(Struct, frozen=True):
    """The host of NCCL_COMM_ID as getaddrinfo(3) resolves it, in its order; NCCL takes the first address.

    `name` is empty if the variable names no host. `failure`: why it did not resolve, so that NCCL does not start.
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    failure: str = ""


@collector
def comm_id_named(host: Host, settings: Settings) -> CommIdHost:
    """Resolve the host of NCCL_COMM_ID, if it is a name, as NCCL's bootstrap does."""
    try:
        name = comm_id_host(settings.get("NCCL_COMM_ID") or "")
    except ValueError:
        return CommIdHost()
    if _is_address(name.partition("%")[0]):
        return CommIdHost()
    found = resolve_own(host, name)
    return CommIdHost(name, found.addresses, found.failure)


HOSTS, RESOLV_CONF, NSSWITCH = "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf"


class HostsEntry(Struct, frozen=True):
    """One line of /etc/hosts: an address and its names, the canonical one first. `line` counts from 1."""

    address: str
    names: tuple[str, ...]
    line: int


class Names(Struct, frozen=True):
    """Contents of the three files.

    `sources` are the words of nsswitch's hosts line (``files``, ``dns``, ``[NOTFOUND=return]``). If it is empty, glibc
    uses ``files dns``, or before 2.35 ``dns [!UNAVAIL=return] files`` (glibc bug 28700).
    """

    hosts: tuple[HostsEntry, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def entries(self, name: str) -> tuple[HostsEntry, ...]:
        """Return the lines of /etc/hosts that list `name`, ignoring case."""
        return tuple(entry for entry in self.hosts if name.lower() in map(str.lower, entry.names))


@collector
def names(host: Host) -> Names:
    """Read three files. Needs no privileges; a missing file counts as empty, as it does for the resolver."""
    search, options = resolv_conf(_text(host, RESOLV_CONF))
    return Names(
        hosts=hosts(_text(host, HOSTS)),
        search=search,
        options=options,
        sources=sources(_text(host, NSSWITCH)),
    )


def _text(host: Host, path: str) -> str:
    try:
        return host.ask("read", path)
    except Missing:
        return ""


def hosts(text: str) -> tuple[HostsEntry, ...]:
    """Parse hosts(5); lines that glibc skips are skipped."""
    entries = []
    for number, words in _lines(text):
        if len(words) > 1 and _is_address(words[0]):
            entries.append(HostsEntry(words[0], tuple(words[1:]), number))
    return tuple(entries)


def resolv_conf(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse search list and options of resolv.conf(5). The last search or domain line counts."""
    search: list[str] = []
    options: list[str] = []
    for _, words in _lines(text, comments="#;"):
        keyword, values = words[0], words[1:]
        if keyword in ("search", "domain"):
            search = values
        elif keyword == "options":
            options += values
    return tuple(search), tuple(options)


def sources(text: str) -> tuple[str, ...]:
    """Return the words of the hosts line of nsswitch.conf(5); empty if there is none."""
    for _, words in _lines(text):
        database, colon, first = words[0].partition(":")
        if database == "hosts" and (colon or words[1:2] == [":"]):
            return tuple(filter(None, (first, *words[1 if colon else 2 :])))
    return ()


def _lines(text: str, comments: str = "#") -> Iterator[tuple[int, list[str]]]:
    """Yield the number and words of each line that has any, without comments."""
    for number, line in enumerate(text.split("\n"), start=1):
        cut = min((at for mark in comments if (at := line.find(mark)) >= 0), default=len(line))
        words = line[:cut].split()
        if words:
            yield number, words


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
