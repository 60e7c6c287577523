"""How each fault is made: context managers that undo themselves. None needs what the kernel of a small machine lacks.

`host` is where the fault is; `nic` is the number of a network card. Times are seconds, sizes bytes, rates Mbit/s. Any
can also be left to the lab, and is undone with it: `lab.stack.enter_context(faults.shaped(host, mbits=100))`.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .hosts import Host, LabError

Direction = Literal["in", "out"]
_numbers = itertools.count()


@contextmanager
def rules(host: Host, lines: Sequence[str], to: Direction = "in") -> Iterator[None]:
    """Filter packets that come to `host`, or go out of it, by lines of nft; the loopback device is never touched."""
    table, hook, device = f"lab{next(_numbers)}", *{"in": ("input", "iifname"), "out": ("output", "oifname")}[to]
    text = f"add table inet {table}\nadd chain inet {table} {hook} {{ type filter hook {hook} priority 0 ; }}\n"
    text += "".join(f'add rule inet {table} {hook} {device} != "lo" {line}\n' for line in lines)
    host.must("nft", "-f", "-", text=text)
    try:
        yield
    finally:
        host.must("nft", "delete", "table", "inet", table)


@contextmanager
def filtered(host: Host, *, port: int, peer: Host | None = None) -> Iterator[None]:
    """A firewall that drops: new and old TCP packets to this port, from this peer only."""
    whose = f"ip saddr {peer.address()} " if peer else ""
    with rules(host, [f"{whose}tcp dport {port} drop"]):
        yield


@contextmanager
def lossy(host: Host, percent: int) -> Iterator[None]:
    """Loses packets that come to the host, at random: 0 to 99 per cent."""
    with rules(host, [f"numgen random mod 100 < {percent} drop"]):
        yield


@contextmanager
def mtu_black_hole(host: Host, *, above: int = 1400) -> Iterator[None]:
    """Packets longer than `above` bytes vanish without an ICMP: small messages pass and large ones hang."""
    with rules(host, [f"meta length > {above} drop"], "out"):
        yield


@contextmanager
def routed_by(host: Host, nic: int, other: int) -> Iterator[None]:
    """What leaves for the network of card `nic` leaves by the card `other`."""
    network = f"{host.lab.ctl.address(nic, 4).rpartition('.')[0]}.0/24"
    host.ip(f"route replace {network} dev eth{other}")
    try:
        yield
    finally:
        host.ip(f"route del {network} dev eth{other}", *host.settings(nic))


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
    """The card has these addresses ("10.99.0.3/24") instead of its own."""
    host.ip(f"addr flush dev eth{nic}", *(f"addr add {address} dev eth{nic}" for address in addresses))
    try:
        yield
    finally:  # coming up again gives a link-local address
        host.ip(f"addr flush dev eth{nic}", f"link set eth{nic} down", *host.settings(nic))


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
    try:
        yield
    finally:
        host.env.clear()
        host.env.update(before)
