"""Faults that show once the nodes are together: interfaces, paths, and nodes that differ."""

from collections.abc import Callable, Sequence
from typing import Literal

from . import faults
from .hosts import Host
from .matrix import Codes, Named, Row, Setup
from .run import give_nccl

WELL = Codes(0, 0, 0)
ONE_IS_BAD = Codes(4, 4, 0)
MESH = "launch.mesh"
BOTH = ("n0", "@victim")
"""Of two nodes it cannot be told which one it is."""


def new_connections(verdict: str, peer: Host | None = None) -> list[str]:
    """What a firewall that knows connections does: new ones to ephemeral ports meet the verdict, others pass."""
    first, last = faults.EPHEMERAL
    whose = "" if peer is None else f"ip saddr {peer.address()} "
    return [f"{whose}tcp dport {first}-{last} tcp flags & (syn | ack) == syn {verdict}"]


def closed(verdict: str = "drop", to: Literal["in", "out"] = "in", pair: bool = False) -> Callable[[Setup], object]:
    """The victim's firewall stops new connections to ephemeral ports, with `pair` those of one other host only."""
    return lambda s: s.use(faults.rules(s.victim, new_connections(verdict, s.other if pair else None), to))


def closed_both(setup: Setup) -> None:
    """Between the victim and one other host no new connection passes, whoever begins."""
    for one, other in ((setup.victim, setup.other), (setup.other, setup.victim)):
        setup.use(faults.rules(one, new_connections("drop", other), "in"))


def named(*names: str, on: Sequence[str] = ("@all",)) -> Callable[[Setup], object]:
    """NCCL_SOCKET_IFNAME on hosts."""

    def make(setup: Setup) -> None:
        for name in setup.expand(on):
            setup.use(faults.environment(setup.lab[name], NCCL_SOCKET_IFNAME=",".join(names)))

    return make


def both(*makers: Callable[[Setup], object]) -> Callable[[Setup], object]:
    """One fault made of several steps."""

    def make(setup: Setup) -> None:
        for each in makers:
            each(setup)

    return make


def docker_bridge(setup: Setup) -> None:
    """Every host has the bridge, as where docker is installed; one has it in NCCL_SOCKET_IFNAME."""
    for host in setup.lab.hosts:
        setup.use(faults.bridge(host))
    named("docker0", on=("@victim",))(setup)


def slower(mbits: float, others_mbits: float) -> Callable[[Setup], object]:
    """All links are shaped, the victim's most."""

    def make(setup: Setup) -> None:
        for host in setup.lab.hosts:
            setup.use(faults.shaped(host, mbits if host is setup.victim else others_mbits))

    return make


def dropped_by_size(setup: Setup) -> None:
    """All others' firewalls drop what the victim sends in large packets, as a switch port of a smaller MTU would."""
    setup.use(faults.single_packets(setup.victim))
    for host in setup.lab.hosts:
        if host is not setup.victim:
            setup.use(faults.rules(host, [f"ip saddr {setup.victim.address()} meta length > 1400 drop"], "in"))


def lossy_link(percent: int) -> Callable[[Setup], object]:
    """What the victim sends is lost on its way: a drop in its own output hook would only make its TCP wait (EPERM)."""

    def make(setup: Setup) -> None:
        lost = f"ip saddr {setup.victim.address()} numgen random mod 100 < {percent} drop"
        for host in setup.lab.hosts:
            if host is not setup.victim:
                setup.use(faults.rules(host, [lost], "in"))

    return make


def other_version(setup: Setup) -> None:
    give_nccl(setup.victim, "2.26.2")


def without_right_to_lock(setup: Setup) -> None:
    """root may lock what it likes, unless it is taken from it."""
    setup.use(faults.prefixed(setup.victim, "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"))
    setup.use(faults.low_memlock(setup.victim))


def _interfaces() -> tuple[Row, ...]:
    match = Named("env.ifname", "NCCL_SOCKET_IFNAME", ("@victim",))
    astray = Named("launch.mesh", "{victim}", says="eth1", of_two=BOTH)
    return (
        Row(
            "NCCL_SOCKET_IFNAME names an interface that one node calls otherwise",
            both(named("=eth1"), lambda s: s.use(faults.renamed(s.victim, "ens5", 1))),
            (match,),
            also=("sync.machine", "sync.network"),
            gpus=True,
            nics=2,
        ),
        Row(
            "the interface in NCCL_SOCKET_IFNAME is down on one node",
            both(named("=eth1"), lambda s: s.use(faults.link_down(s.victim, 1))),
            (astray,),
            ONE_IS_BAD,
            also=("sync.machine",),
            gpus=True,
            nics=2,
        ),
        Row(
            "the interface in NCCL_SOCKET_IFNAME has no address on one node",
            both(named("=eth1"), lambda s: s.use(faults.addressed(s.victim, nic=1))),
            (match,),
            also=("sync.machine",),
            gpus=True,
            nics=2,
        ),
        Row(
            "the interface in NCCL_SOCKET_IFNAME has no carrier on one node",
            both(named("=eth1"), lambda s: s.use(faults.cable_pulled(s.victim, 1))),
            (astray,),
            ONE_IS_BAD,
            also=("sync.machine",),
            gpus=True,
            nics=2,
        ),
        Row(
            "the interface in NCCL_SOCKET_IFNAME is on another subnet on one node",
            both(named("=eth1"), lambda s: s.use(faults.addressed(s.victim, "10.99.0.9/24", nic=1))),
            (astray,),
            ONE_IS_BAD,
            also=("path.route",),  # of its packets, for its address is of no network there
            gpus=True,
            nics=2,
        ),
        Row(
            "NCCL_SOCKET_IFNAME is docker's bridge on one node",
            docker_bridge,
            (Named("env.ifname", "docker0"),),
            also=("launch.master", MESH, "launch.mesh", "sync.machine"),
            gpus=True,
        ),
    )


def _ports() -> tuple[Row, ...]:
    return (
        Row(
            "new connections to one node's ephemeral ports are dropped",
            closed(),
            (Named(MESH, says="filtered"),),
            ONE_IS_BAD,
            hosts=(3, 8),
        ),
        Row(
            "new connections to one of two nodes are dropped",
            closed(),
            (Named(MESH, "n0 -> {victim}", ("n0", "@victim"), "filtered"),),
            hosts=(2,),
        ),
        Row(
            "new connections to one node's ephemeral ports are refused",
            closed("reject with tcp reset"),
            (Named(MESH, says="refused"),),
            ONE_IS_BAD,
            hosts=(3, 8),
        ),
        Row(
            "new connections to one node's ephemeral ports are refused, IPv6 only",
            closed("reject with tcp reset"),
            (Named(MESH, says="refused"),),
            ONE_IS_BAD,
            hosts=(3, 8),
            family=6,
        ),
        Row(
            "one node can connect to nobody's ephemeral ports",
            closed(to="out"),
            (Named(MESH, says="out of {victim}"),),
            ONE_IS_BAD,
            hosts=(3, 8),
        ),
        Row(
            "one pair of nodes cannot connect, whoever begins",
            closed_both,
            (Named(MESH, "<->", ("@other", "@victim"), "filtered"),),
            Codes(4, 4, None),
            hosts=(2, 8),
        ),
        Row(
            "one pair of nodes cannot connect in one direction",
            closed(pair=True),
            (Named(MESH, "{other} -> {victim}", ("@other", "@victim"), "from {other} to {victim}"),),
            Codes(4, 4, None),
            hosts=(2, 8),
        ),
    )


def _paths() -> tuple[Row, ...]:
    return (
        Row(
            "packets above 1400 bytes vanish on their way out of one node",
            lambda s: s.use(faults.mtu_black_hole(s.victim)),
            (Named("path.mtu", "{victim}", says="out of {victim}", blame="node"),),
            ONE_IS_BAD,
            hosts=(3, 8),
            deadline_s=30.0,
        ),
        Row(
            "packets above 1400 bytes vanish from one node to another",
            lambda s: s.use(faults.mtu_black_hole(s.victim, peer=s.other)),
            (Named("path.mtu", "{victim} -> {other}", ("@victim", "@other")),),
            Codes(4, 4, None),
            deadline_s=30.0,
        ),
        Row(
            "packets above 1400 bytes vanish on their way from one node, and nobody says so",
            dropped_by_size,
            (Named("path.mtu", "{victim}", says="they pass in packets of 1280 bytes", blame="link"),),
            ONE_IS_BAD,
            hosts=(3,),
            deadline_s=30.0,
        ),
        Row(
            "a router of MTU 1400 on the way from one node, whose ICMP is filtered",
            lambda s: s.use(
                faults.router_black_hole(s.victim, *(each for each in s.lab.hosts if each is not s.victim))
            ),
            (Named("path.mtu", "{victim}", says="they pass in packets of 1280 bytes", blame="link"),),
            ONE_IS_BAD,
            hosts=(3,),
            deadline_s=30.0,
        ),
        Row(
            "one of two nodes sends 2 Mbit/s, too little for any job",
            slower(2, 500),
            (Named("path.rate", "{victim} -> n0", ("@victim", "n0"), "4 MiB do not arrive within 10 s"),),
            hosts=(2,),
            also=("path.delay",),  # what waits in a full shaper waits for long
            timed=True,
            deadline_s=40.0,
        ),
        Row(
            "one node of three sends 2 Mbit/s",
            slower(2, 500),
            (Named("path.rate", "{victim}", says="4 MiB do not arrive within 10 s"),),
            ONE_IS_BAD,
            hosts=(3,),
            also=("path.delay",),
            timed=True,
            deadline_s=40.0,
        ),
        Row(
            "packets of one node's second card leave by its first",
            both(named("=eth1"), lambda s: s.use(faults.routed_by(s.victim, 1, 0))),
            (Named("path.route", "{victim}", says="leave by eth0", severity="warn"),),
            WELL,
            also=("launch.master",),
            hosts=(3,),
            nics=2,
            gpus=True,
        ),
        Row(
            "one node's interface has an MTU of 9000 among 1500",
            lambda s: s.use(faults.mtu(s.victim, 9000)),
            (Named("sync.network", "eth0", says="MTU 9000", severity="warn", of_two=(), blame="image"),),
            WELL,
        ),
        Row(
            "one node's link has a tenth of the others' rate",
            slower(50, 500),
            (Named("path.rate", "{victim}", severity="warn"),),
            WELL,
            hosts=(3, 8),
            timed=True,
            deadline_s=25.0,
        ),
        Row(
            "one of two links has a tenth of the other's rate",
            slower(50, 500),
            (Named("path.rate", "{victim} -> n0", ("@victim", "n0"), severity="warn"),),
            WELL,
            hosts=(2,),
            timed=True,
            deadline_s=25.0,
        ),
        Row(
            "one node loses 5 % of what it sends",
            lossy_link(5),
            (Named("path.loss", "{victim}", severity="warn"),),
            WELL,
            hosts=(3, 8),
            timed=True,
            also=("path.rate",),
            deadline_s=25.0,
        ),
        Row(
            "one node is 20 ms away",
            lambda s: s.use(faults.slow(s.victim, delay_s=0.02)),
            (Named("path.delay", "{victim}", severity="warn"),),
            WELL,
            hosts=(3, 8),
            timed=True,
            also=("path.rate", "path.loss"),  # what delays is a process, whose queue may be full
            deadline_s=25.0,
        ),
        Row(
            "two nodes have one address on their second card",
            lambda s: s.use(faults.same_address(s.victim, s.other, 1)),
            (Named("sync.identity", "10.77.1.", ("@victim", "@other")),),
            Codes(4, 4, None),
            nics=2,
            gpus=True,
        ),
    )


def _differences() -> tuple[Row, ...]:
    differs = Codes(4, 4, None)
    return (
        Row(
            "two nodes have one host name and one boot id",
            lambda s: s.use(faults.same_identity(s.victim, s.other)),
            (Named("launch.ranks", nodes=("@twin", "@other"), severity="warn"),),
            WELL,
            also=("launch.names",),
        ),
        Row(
            "one node has NCCL_ALGO",
            lambda s: s.use(faults.environment(s.victim, NCCL_ALGO="Ring")),
            (Named("sync.env", "NCCL_ALGO", says="Ring", of_two=(), blame="job"),),
            also=("env.forced-algo",),
            gpus=True,
        ),
        Row(
            "one node has another NCCL",
            other_version,
            (Named("sync.versions", says="2.26.2", of_two=(), blame="image"),),
            differs,
            gpus=True,
        ),
        Row(
            "one node has a GPU less",
            lambda s: s.use(faults.environment(s.victim, FAKE_NVML_GPUS="1")),
            (Named("sync.machine", says="1 GPUs", of_two=()),),
            differs,
            gpus=True,
        ),
        Row(
            "one node has a network card less",
            lambda s: s.use(faults.card_missing(s.victim, 1)),
            (Named("sync.machine", says="1 NICs", of_two=()),),
            differs,
            nics=2,
            gpus=True,
        ),
        Row(
            "one node may lock 64 KiB of memory",
            without_right_to_lock,
            (Named("sync.limits", "RLIMIT_MEMLOCK", says="64 KiB", of_two=(), severity="warn"),),
            WELL,
            gpus=True,
            also=("host.limits", "host.shm"),
        ),
        Row(
            "one node has a /dev/shm of 4 MiB among 64",
            lambda s: s.use(faults.small_shm(s.victim, 4 << 20)),
            (
                Named("host.shm", "/dev/shm", says="to reach other nodes", of_two=("@victim",)),
                Named("sync.limits", "/dev/shm", says="4 MiB", of_two=(), severity="warn"),
            ),
            Codes(4, 4, None),
            gpus=True,
        ),
        Row(
            "one node's clock is three minutes ahead",
            lambda s: s.use(faults.clock_off(s.victim, 180)),
            (Named("sync.clock", says="{victim} 180 s ahead", severity="warn"),),
            WELL,
            hosts=(3, 8),
        ),
        Row(
            "the clocks of two nodes are three minutes apart",
            lambda s: s.use(faults.clock_off(s.victim, 180)),
            (Named("sync.clock", "clocks", (), "180 s apart", severity="warn"),),
            WELL,
            hosts=(2,),
        ),
    )


NODES = (*_interfaces(), *_ports(), *_paths(), *_differences())
