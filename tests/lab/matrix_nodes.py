"""Faults that show once the nodes are together: interfaces, paths, and nodes that differ."""

from collections.abc import Callable, Sequence
from typing import Literal

from . import faults
from .hosts import Host
from .matrix import Codes, Named, Row, Setup

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


def dropped_by_size(setup: Setup) -> None:
    """All others' firewalls drop what the victim sends in large packets, as a switch port of a smaller MTU would."""
    setup.use(faults.single_packets(setup.victim))
    for host in setup.lab.hosts:
        if host is not setup.victim:
            setup.use(faults.rules(host, [f"ip saddr {setup.victim.address()} meta length > 1400 drop"], "in"))


def _interfaces() -> tuple[Row, ...]:
    astray = Named("launch.mesh", "{victim}", says="eth1", of_two=BOTH)
    return (
        Row(
            "the interface in NCCL_SOCKET_IFNAME is on another subnet on one node",
            both(named("=eth1"), lambda s: s.use(faults.addressed(s.victim, "10.99.0.9/24", nic=1))),
            (astray,),
            ONE_IS_BAD,
            also=("path.route",),  # of its packets, for its address is of no network there
            gpus=True,
            nics=2,
        ),
    )


def _ports() -> tuple[Row, ...]:
    return (
        Row(
            "new connections to one node's ephemeral ports are refused",
            closed("reject with tcp reset"),
            (Named(MESH, says="refused"),),
            ONE_IS_BAD,
            hosts=(3, 8),
        ),
        Row(
            "one node can connect to nobody's ephemeral ports",
            closed(to="out"),
            (Named(MESH, says="out of {victim}"),),
            ONE_IS_BAD,
            hosts=(3, 8),
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
            "packets above 1400 bytes vanish on their way from one node, and nobody says so",
            dropped_by_size,
            (Named("path.mtu", "{victim}", says="they pass in packets of 1280 bytes", blame="link"),),
            ONE_IS_BAD,
            hosts=(3,),
            deadline_s=30.0,
        ),
        Row(
            "packets of one node's second card leave by its first",
            both(named("=eth1"), lambda s: s.use(faults.routed_by(s.victim, 1, 0))),
            (Named("path.route", "{victim}", says="leave through eth0", severity="warn"),),
            WELL,
            also=("launch.master",),
            hosts=(3,),
            nics=2,
            gpus=True,
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
            "one node has NCCL_ALGO",
            lambda s: s.use(faults.environment(s.victim, NCCL_ALGO="Ring")),
            (Named("sync.env", "NCCL_ALGO", says="Ring", of_two=(), blame="job"),),
            also=("env.forced-algo",),
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
            "one node's clock is three minutes ahead",
            lambda s: s.use(faults.clock_off(s.victim, 180)),
            (Named("sync.clock", says="{victim} is 180 s ahead", severity="warn"),),
            WELL,
            hosts=(3, 8),
        ),
    )


NODES = (*_interfaces(), *_ports(), *_paths(), *_differences())
