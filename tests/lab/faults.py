"""How each fault is made: context managers that undo themselves. None needs what the kernel of a small machine lacks.

`host` is where the fault is; `nic` is the number of a network card. Times are seconds, sizes bytes, rates Mbit/s. Any
can also be left to the lab, and is undone with it: `lab.stack.enter_context(faults.shaped(host, mbits=100))`.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .hosts import Host
from .processes import LabError, Running

Direction = Literal["in", "out", "both"]
HERE = Path(__file__).resolve().parent
EPHEMERAL = (32768, 60999)
"""The ports that Linux gives to who does not ask for one: net.ipv4.ip_local_port_range."""

_numbers = itertools.count()


@contextmanager
def rules(host: Host, lines: Sequence[str], hook: Direction = "both") -> Iterator[None]:
    """Filter packets on `host` by lines of nft; what passes the loopback device is never touched."""
    table = f"lab{next(_numbers)}"
    hooks = {"in": ["input"], "out": ["output"], "both": ["input", "output"]}[hook]
    text = f"add table inet {table}\n"
    for name in hooks:
        text += f"add chain inet {table} {name} {{ type filter hook {name} priority 0 ; }}\n"
        device = "iifname" if name == "input" else "oifname"
        text += "".join(f'add rule inet {table} {name} {device} != "lo" {line}\n' for line in lines)
    host.must("nft", "-f", "-", text=text)
    try:
        yield
    finally:
        host.must("nft", "delete", "table", "inet", table)


@contextmanager
def filtered(
    host: Host, *, port: int | tuple[int, int] | None = None, peer: Host | None = None, to: Direction = "in"
) -> Iterator[None]:
    """A firewall that drops: new and old TCP packets to this port (all TCP without one), from or to this peer only.

    `to`: "in" drops what comes to `host`, "out" what it sends to others' ports, "both" either.
    """
    with rules(host, _matching(host, port, peer, to, "drop"), to):
        yield


@contextmanager
def refused(
    host: Host, *, port: int | tuple[int, int], peer: Host | None = None, to: Direction = "in"
) -> Iterator[None]:
    """A firewall that answers every connection to the port with a reset, as if nobody listened."""
    with rules(host, _matching(host, port, peer, to, "reject with tcp reset"), to):
        yield


@contextmanager
def lossy(host: Host, percent: int, *, to: Direction = "out") -> Iterator[None]:
    """Loses packets at random: 0 to 99 per cent."""
    with rules(host, [f"numgen random mod 100 < {percent} drop"], to):
        yield


@contextmanager
def mtu_black_hole(host: Host, *, above: int = 1400, peer: Host | None = None) -> Iterator[None]:
    """Packets longer than `above` bytes vanish without an ICMP: small messages pass and large ones hang."""
    with rules(host, [f"{match} meta length > {above} drop" for match in _peers(host, peer, "daddr")], "out"):
        yield


@contextmanager
def single_packets(host: Host, nic: int = 0) -> Iterator[None]:
    """The card is given packets as they are on a wire, where a veth pair passes 64 KiB of a stream as one."""
    host.ip(f"link set eth{nic} gso_max_segs 1")
    try:
        yield
    finally:
        host.ip(f"link set eth{nic} gso_max_segs 65535")


@contextmanager
def routed_by(host: Host, nic: int, other: int) -> Iterator[None]:
    """What leaves for the network of card `nic` leaves by the card `other`."""
    network = f"{host.lab.ctl.address(nic, 4).rpartition('.')[0]}.0/24"
    host.ip(f"route replace {network} dev eth{other}")
    try:
        yield
    finally:
        host.ip(f"route del {network} dev eth{other}")
        host.configure(nic)


@contextmanager
def shaped(host: Host, mbits: float, nic: int = 0) -> Iterator[None]:
    """What the host sends through this card is held to a rate."""
    burst = max(16_000, int(mbits * 1e6 / 8 * 0.002))  # two milliseconds' worth
    shape = ["root", "tbf", "rate", f"{mbits}mbit", "burst", str(burst), "latency", "50ms"]
    host.must("tc", "qdisc", "add", "dev", f"eth{nic}", *shape)
    try:
        yield
    finally:
        host.must("tc", "qdisc", "del", "dev", f"eth{nic}", "root")


@contextmanager
def addressed(host: Host, *addresses: str, nic: int = 0) -> Iterator[None]:
    """The card has these addresses ("10.99.0.3/24") instead of its own; without any, none at all."""
    host.ip(f"addr flush dev eth{nic}", *(f"addr add {address} dev eth{nic}" for address in addresses))
    try:
        yield
    finally:
        host.ip(f"addr flush dev eth{nic}", f"link set eth{nic} down")  # coming up again gives a link-local address
        host.configure(nic)


@contextmanager
def same_address(host: Host, other: Host, nic: int = 0) -> Iterator[None]:
    """Two hosts have one address."""
    with addressed(host, *other.addresses(nic), nic=nic):
        yield


@contextmanager
def names(host: Host, *lines: str) -> Iterator[None]:
    """What this host's /etc/hosts says instead: "127.0.1.1 n0" for a loopback; without any line, nobody resolves."""
    host.set_names(lines)
    try:
        yield
    finally:
        host.set_names(host.lab.names())


@contextmanager
def clock_off(host: Host, seconds: float) -> Iterator[None]:
    """The wall clock of commands that start from now on is off; the monotonic one is not, on which deadlines stand."""
    libraries = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise LabError("the package faketime is not installed")
    with environment(host, LD_PRELOAD=str(libraries[0]), FAKETIME=f"{seconds:+g}s", FAKETIME_DONT_FAKE_MONOTONIC="1"):
        yield


@contextmanager
def environment(host: Host, **variables: str) -> Iterator[None]:
    """Variables of commands that start on this host from now on, also under Slurm and mpirun."""
    before = dict(host.env)
    host.env.update(variables)
    host.lab.save()
    try:
        yield
    finally:
        host.env.clear()
        host.env.update(before)
        host.lab.save()


@contextmanager
def taken(
    host: Host, port: int, says: Literal["nothing", "banner", "garbage", "flood"] = "nothing"
) -> Iterator[Running]:
    """Another service has the port: it accepts everybody and says nothing, a line, noise, or noise without end."""
    job = host.start([sys.executable, str(HERE / "squatter.py"), str(port), says])
    try:
        job.until_says("ready")
        yield job
    finally:
        job.kill()
        job.wait(5.0)


def _peers(host: Host, peer: Host | None, side: Literal["saddr", "daddr"]) -> list[str]:
    """One match for each address of the peer; one that matches all where there is none."""
    if peer is None:
        return [""]
    every = [address.split("/")[0] for nic in range(host.lab.nics) for address in peer.addresses(nic)]
    return [f"{'ip6' if ':' in address else 'ip'} {side} {address}" for address in every]


def _matching(
    host: Host, port: int | tuple[int, int] | None, peer: Host | None, to: Direction, verdict: str
) -> list[str]:
    ports = f"{port[0]}-{port[1]}" if isinstance(port, tuple) else port
    what = "meta l4proto tcp" if port is None else f"tcp dport {ports}"
    incoming, outgoing = _peers(host, peer, "saddr"), _peers(host, peer, "daddr")
    matches = dict.fromkeys(incoming * (to != "out") + outgoing * (to != "in"))
    return [f"{match} {what} {verdict}" for match in matches]
