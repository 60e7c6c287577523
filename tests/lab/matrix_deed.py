"""Faults of which only the deed says what they do: the doctor must not call Ready what dies, whatever it says else."""

from collections.abc import Callable
from typing import Literal

from . import faults
from .faults import EPHEMERAL
from .matrix import PORT, Row, Setup
from .matrix_gloo import listens, own_name
from .matrix_nodes import both

EVERYWHERE, VICTIM = ("@all",), ("@victim",)
CARD_1 = listens("eth1", on=EVERYWHERE)


def env(on: tuple[str, ...] = VICTIM, **variables: str) -> Callable[[Setup], object]:
    """Variables of the job on hosts."""

    def make(setup: Setup) -> None:
        for name in setup.expand(on):
            setup.use(faults.environment(setup.lab[name], **variables))

    return make


def ip(*lines: str) -> Callable[[Setup], object]:
    """What `ip` is told on the victim; ``{other}`` and ``{hub}`` are addresses."""

    def make(setup: Setup) -> None:
        words = {"other": setup.other.address(), "hub": setup.hub.address(), "address": setup.victim.address()}
        setup.victim.ip(*(line.format(**words) for line in lines))

    return make


def rules(line: str, hook: Literal["in", "out", "both"] = "in") -> Callable[[Setup], object]:
    """A rule of the victim's firewall."""
    return lambda setup: setup.use(faults.rules(setup.victim, [line], hook))


def sysctl(name: str, value: str) -> Callable[[Setup], object]:
    return lambda setup: setup.use(faults.sysctl(setup.victim, name, value))


def prefixed(*words: str) -> Callable[[Setup], object]:
    return lambda setup: setup.use(faults.prefixed(setup.victim, *words))


def slow(**line: float) -> Callable[[Setup], object]:
    return lambda setup: setup.use(faults.slow(setup.victim, **line))  # type: ignore[arg-type]


def called(name: str) -> Callable[[Setup], object]:
    """The victim's own host name."""
    return lambda setup: setup.victim.must("tee", "/proc/sys/kernel/hostname", text=name)


def flags(on: tuple[str, ...] = EVERYWHERE, **values: str) -> Callable[[Setup], object]:
    """Who and where hosts are told to be."""

    def make(setup: Setup) -> None:
        for name in setup.expand(on):
            setup.flag(setup.lab[name], **values)

    return make


def row(name: str, *makers: Callable[[Setup], object], hosts: int = 2, nics: int = 1, timeout_s: float = 40.0) -> Row:
    return Row(name, both(*makers), (), hosts=(hosts,), nics=nics, timeout_s=timeout_s)


NEW = (
    row("no node's loopback device is up", lambda s: [host.ip("link set lo down") for host in s.lab.hosts]),
    row("one node's own name is an address that it does not have", own_name("10.77.0.77", on=VICTIM)),
    row("one node's own name is another node's address", own_name("10.77.0.1", on=VICTIM), hosts=3),
    row("one node's own name is its second card, which is closed",
        own_name("10.77.1.2", on=VICTIM), rules('iifname "eth1" meta l4proto tcp drop'), nics=2),
    row("one node calls itself localhost", called("localhost")),
    row("one node calls itself as no file knows it", called("nobody-knows-this")),
    row("one node may open 24 files", prefixed("prlimit", "--nofile=24:24")),
    row("one node may have 1.2 GB of addresses", prefixed("prlimit", "--as=1200000000")),
    row("one node has four ephemeral ports", sysctl("net.ipv4.ip_local_port_range", "40000 40003"), hosts=3),
    row("two nodes have one address on their only card",
        lambda s: s.use(faults.same_address(s.victim, s.other)), hosts=3),
    row("every node listens on the loopback device", listens("lo")),
    row("one node listens on the loopback device", listens("lo", on=VICTIM)),
    row("every node listens on docker's bridge",
        lambda s: [s.use(faults.bridge(host)) for host in s.lab.hosts], listens("docker0")),
    row("gloo's card is down on one node", CARD_1, lambda s: s.use(faults.link_down(s.victim, 1)), nics=2),
    row("gloo's card has no carrier on one node", CARD_1, lambda s: s.use(faults.cable_pulled(s.victim, 1)), nics=2),
    row("gloo's card swallows large packets on one node", CARD_1,
        rules('oifname "eth1" meta length > 1400 drop', "out"), nics=2),
    row("gloo's card is filtered on one node", CARD_1, rules('iifname "eth1" meta l4proto tcp drop'), nics=2),
    row("gloo's card is on another subnet on one node", CARD_1,
        lambda s: s.use(faults.addressed(s.victim, "10.99.0.9/24", nic=1)), nics=2),
    row("GLOO_SOCKET_IFNAME is a prefix, as NCCL would take it", listens("eth")),
    row("GLOO_SOCKET_IFNAME excludes, as NCCL would take it", listens("^lo")),
    row("GLOO_SOCKET_IFNAME names both cards", listens("eth0,eth1"), nics=2),
    row("MASTER_ADDR is another node than that of rank 0", flags(master_addr="n1"), hosts=3),
    row("MASTER_ADDR is localhost everywhere", flags(master_addr="localhost")),
    row("MASTER_ADDR is 0.0.0.0 everywhere", flags(master_addr="0.0.0.0")),
    row("MASTER_PORT is taken on another node than rank 0's",
        lambda s: s.use(faults.taken(s.victim, PORT, "banner"))),
    row("one node's way to another is a black hole", ip("route add blackhole {other}/32"), hosts=3),
    row("one node's way to another is prohibited", ip("route add prohibit {other}/32"), hosts=3),
    row("one node has a wrong hardware address of another",
        ip("neigh replace {other} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"), hosts=3),
    row("one node's firewall lets nothing through that it did not begin",
        rules("tcp flags & (syn | ack) == syn drop"), hosts=3),
    row("one node's firewall drops what is no connection to MASTER_PORT",
        rules(f"meta l4proto tcp tcp dport != {PORT} tcp sport != {PORT} drop"), hosts=3),
    row("one node's firewall drops large packets above 64 a second",
        rules(f"tcp dport {EPHEMERAL[0]}-{EPHEMERAL[1]} meta length > 1000 limit rate over 64/second drop", "out")),
    row("one node loses 30 % of what it sends",
        lambda s: [s.use(faults.rules(h, [f"ip saddr {s.victim.address()} numgen random mod 100 < 30 drop"], "in"))
                   for h in s.lab.hosts if h is not s.victim]),
    row("one node loses 60 % of what it sends",
        lambda s: [s.use(faults.rules(h, [f"ip saddr {s.victim.address()} numgen random mod 100 < 60 drop"], "in"))
                   for h in s.lab.hosts if h is not s.victim]),
    row("one node is half a second away", slow(delay_s=0.5), timeout_s=60.0),
    row("one node's line reorders by 50 ms", slow(delay_s=0.05, jitter_s=0.05)),
    row("one node sends 0.2 Mbit/s", lambda s: s.use(faults.shaped(s.victim, mbits=0.2))),
    row("one node has an MTU of 576", lambda s: s.use(faults.mtu(s.victim, 576))),
    row("no node has a default route", lambda s: [s.use(faults.no_default_route(host)) for host in s.lab.hosts]),
    row("gloo over TLS without a certificate", env(EVERYWHERE, GLOO_DEVICE_TRANSPORT="TCP_TLS")),
    row("a device of gloo's that there is not", env(EVERYWHERE, GLOO_DEVICE_TRANSPORT="IBVERBS")),
    row("TORCH_DISTRIBUTED_DEBUG is DETAIL on one node", env(TORCH_DISTRIBUTED_DEBUG="DETAIL")),
    row("TORCH_DISTRIBUTED_DEBUG is no level of torch's", env(TORCH_DISTRIBUTED_DEBUG="VERBOSE")),
    row("TORCH_GLOO_LAZY_INIT on one node", env(TORCH_GLOO_LAZY_INIT="1")),
    row("USE_LIBUV is 0 on rank 0's node alone", lambda s: s.use(faults.environment(s.hub, USE_LIBUV="0"))),
    row("one node's send buffers are 4 KiB", sysctl("net.ipv4.tcp_wmem", "4096 4096 4096")),
    row("one node answers for packets of the other card's network alone",
        CARD_1, sysctl("net.ipv4.conf.all.rp_filter", "1"), sysctl("net.ipv4.conf.eth1.rp_filter", "1"),
        lambda s: s.use(faults.routed_by(s.victim, 1, 0)), nics=2),
)  # fmt: skip
