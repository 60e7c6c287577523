"""What the checks of how ranks meet must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.env.fixtures import ETH0, LO, interface, over
from ncclprobe.checks.launch import BY_HAND, TWO_NODES
from ncclprobe.checks.launch.meeting import AT, ELSEWHERE, FIRST, NO_PROCESSES, NOBODY, NODE1, OF_TWO, PROCESS, THERE
from ncclprobe.checks.launch.mesh import HEALTHY
from ncclprobe.checks.launch.ports import (
    ANY,
    DROPS,
    HERE,
    HOSTS,
    MASTER,
    OPEN,
    REJECTS,
    RULED,
    SYSTEMS,
    TAKEN,
    UNCHOSEN,
    UNTRIED,
    USUAL,
    ifnames,
    names_of,
)
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.machine import System
from ncclprobe.facts.ports import Chain, Firewall, Ports
from ncclprobe.facts.reach import Proof, Reach, RollCall
from ncclprobe.model.nccl_selection import Decision, InterfaceChoice
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of
from tests.checks.cases.sync_nodes import four

_TWO_NETS = Every(
    {
        f"n{i}": Interfaces((LO, interface("eth0", 2, f"10.0.0.{5 + i}"), interface("eth1", 3, f"10.1.0.{5 + i}")))
        for i in range(2)
    }
)
_DOCKERS = Every(
    {node: Interfaces((*own.all, interface("docker0", 4, "172.17.0.1"))) for node, own in HOSTS.by_node.items()}
)
_SAME = Every(dict.fromkeys(("n0", "n1"), Interfaces((LO, ETH0))))
_FILTERED = replace(AT, outcome="filtered", detail="timed out", tries=14, seconds=60.0, seen=("refused", "filtered"))
_TWICE = Ranks({"n0": {0: PROCESS, 1: PROCESS}, "n1": {1: PROCESS, 2: PROCESS}})
_REACHED: Every[Reach | Absent] = Every({"n1": AT, "n2": replace(AT, address="10.9.0.1")})
_AT_ETH0 = [Decision((InterfaceChoice("eth0", address, "", ""),), "") for address in ("10.0.0.5", "fd00::5%eth0")]
_OVER_IPV4, _OVER_IPV6 = (
    Every(dict.fromkeys(("n0", "n1"), replace(over("Socket"), bootstrap=bootstrap))) for bootstrap in _AT_ETH0
)
_RESERVED = replace(USUAL, ephemeral_ports=(50000, 51999), reserved_ports=((1, 50100), (51000, 60000)))
_UNSEEN = (
    Absent("only root may see the rules"), Firewall(Absent("no nft here"), ()), Firewall((), ("ipv4/filter",)),
    Firewall((), Absent("not readable")),
    RULED,  # a chain that its rules lead to may refuse all
    Firewall((Chain("inet/firewalld/filter_INPUT", "accept", Absent("rules not read")),), ()),
)  # fmt: skip
LARGE = replace(TWO_NODES, world_size=4096, nnodes=512)


def nodes_of(*names: str) -> dict[str, Any]:
    """Return nodes of two networks and two address families with these names of their own."""
    six = {i: Address("eth0", "inet6", f"fd00::{i + 5}", "ffff:ffff:ffff:ffff::", running=True) for i in range(4)}
    loops = replace(LO, addresses=(*LO.addresses, Address("lo", "inet6", "::1", "ffff:" * 7 + "ffff", running=True)))
    hosts = {}
    for i in range(len(names)):
        four = interface("eth0", 2, f"10.0.0.{i + 5}")
        eth0 = replace(four, addresses=(*four.addresses, six[i]))
        hosts[f"n{i}"] = Interfaces((loops, eth0, interface("eth1", 3, f"10.1.0.{i + 5}")))
    systems = {node: System(node, "6.8", "x86_64", "", node) for node in hosts}
    none = ifnames(*[""] * len(names))
    return {"interfaces": Every(hosts), "names": names_of(*names), "environments": none, "systems": Every(systems)}


def _reached(outcome: str, seen: tuple[str, ...] = (), **details: Any) -> Reach:
    return replace(AT, outcome=outcome, seen=seen or (outcome,), tries=9, seconds=12.4, **details)


_BLAMED = {"refused": "job", "filtered": "unknown", "unreachable": "unknown", "address": "node", "denied": "image",
           "route": "node", "foreign": "job", "stranger": "job", "a kind of tomorrow": "unknown",
           "reset": "job", "too-big": "job", "garbled": "job"}  # fmt: skip
_ONE_UNASKED = Every({**names_of("10.0.0.5").by_node, "n1": Absent("not asked")})
_OF_EIGHT, _OF_FOUR = (
    detect({"RANK": rank, "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": gpus})
    for rank, gpus in (("0", "8"), ("8", "4"))
)
_gloo = rows_of(
    interfaces=HOSTS, names=names_of("10.0.0.5", "10.0.0.6"), environments=ifnames("", ""), systems=SYSTEMS,
    processes=ANY, job=Job(),
)  # fmt: skip


def _by(origin: str, field: str = "node_rank") -> Launch:
    """Return a launch of which a field was told by this."""
    return replace(TWO_NODES, origins=((field, origin),))


def _dropped(family: str) -> Firewall:
    return Firewall((Chain(f"{family}/f/INPUT", "drop"),), ())


_ODD, _UNEVEN = ifnames("eth0,eth1", "eth0,eth1", "eth0"), ifnames("eth0,eth1", "eth0")
_BOTH = nodes_of("10.0.0.5", "10.0.0.6")
_EIGHT_AND_NINE = Ranks({node: {8: FIRST, 9: FIRST} for node in ("n0", "n1")})
_WITHOUT_5 = Ranks({"gpu01": {r: replace(FIRST, local_rank=r) for r in range(8) if r != 5}})
_NONE: Every[Any] = Every({})
_AT_ONCE = replace(_reached("refused", seen=("filtered", "refused", "silent")), tries=1, interface="")
_UNLIKE = Every({"n0": _by("--nnodes", "nnodes"), "n1": replace(_by("NNODES", "nnodes"), nnodes=3)})
_ONE_LATE, _CALLED = Ranks({"n0": {0: FIRST, 1: Absent("late")}}), Every({"n0": RollCall(1)})
_OF_THREE = Every({"n0": replace(TWO_NODES, local_world_size=3)})
CASES: Cases = {
    "launch.gloo-group": [
        _gloo("WARN job: n[0-1] on n0 n1", names=names_of("10.0.0.5", ""), environments=ifnames("lo", "")),
        _gloo("WARN job: n[0-1] on n0 n1", interfaces=_DOCKERS, environments=ifnames("docker0", "docker0")),
        _gloo("FAIL job: n[0-1] on n0 n1", Job("gloo"), interfaces=_TWO_NETS, environments=_UNEVEN),
        _gloo("WARN job: GLOO_SOCKET_IFNAME on n0", interfaces=_TWO_NETS, environments=ifnames("eth1", "")),
        _gloo("FAIL image: n2 on n2", Job("gloo"), **nodes_of("10.0.0.5", "10.0.0.6", "fd00::7")),
        _gloo("WARN image: n[0-1] on n0 n1", **nodes_of("10.0.0.5", "fd00::6")),
        _gloo("WARN image: n[0,2] on n0 n2", **nodes_of("127.0.1.1", "10.0.0.6", "", "10.0.0.8")),
        _gloo("WARN job: n2 on n2", **nodes_of("", "", "") | {"environments": _ODD}),
        _gloo("UNKNOWN: the address that gloo would listen on", **_BOTH | {"names": _ONE_UNASKED}),
        _gloo(Job("gloo")), _gloo(environments=ifnames("eth0", "")),
        _gloo(environments=ifnames("eth9", "")),  # that node's own check says it
        _gloo(**nodes_of("127.0.1.1", "10.0.0.6", "10.0.0.7")),  # one that calls all others
        _gloo(Job("gloo"), interfaces=_SAME, names=names_of("127.0.1.1", "127.0.1.1"), systems=Every({})),
    ],
    "launch.master/master-reach": [
        ("UNKNOWN: does not answer (9 tries in 12 s)", _reached("silent")), ("FAIL job: node0:29500", _AT_ONCE),
        ("FAIL unknown: node0:29500", _FILTERED),
        ("FAIL job: node0:29500", replace(AT, outcome="resolve", address="", source="", interface="")),
        ("FAIL job: [fd00::1]:29500", _reached("refused", target="fd00::1", address="fd00::1")),
        *((f"FAIL {blame}: node0:29500", _reached(outcome)) for outcome, blame in _BLAMED.items()),
        ("UNKNOWN: closed the connection before it answered", _reached("hung-up")),
        *(("UNKNOWN: node0:29500", _reached(each, seen=("hung-up", each))) for each in ("silent", "reset", "filtered")),
        ("UNKNOWN: node0:29500", _reached("filtered", seen=("refused", "hung-up", "filtered"))),
        ("UNKNOWN: node0:29500", _reached("hung-up", seen=("silent", "hung-up"))),
    ],
    "launch.ranks/rank-twice": [
        ("FAIL job: node rank 0 on n0 n1", Every({"n0": _by("SLURM_NODEID"), "n1": _by("--node-rank")}), NO_PROCESSES),
        ("FAIL job: node rank 0 on n0 n1", Every({"n0": TWO_NODES, "n1": TWO_NODES}), NO_PROCESSES),
        ("FAIL job: rank 1 on n0 n1", Every({"n0": TWO_NODES, "n1": NODE1}), _TWICE),
        ("FAIL job: node rank 1 on n0 n1", Every({"n0": NODE1, "n1": NODE1}), _EIGHT_AND_NINE),
        (Every({"n0": Launch(), "n1": Launch()}), NO_PROCESSES),
    ],
    "launch.vars/world-agree": [
        ("FAIL job: nnodes", _UNLIKE),
        ("FAIL job: nnodes on n1", Every({"n0": BY_HAND, "n1": replace(BY_HAND, nnodes=3), "n2": BY_HAND})),
        ("FAIL job: MASTER_PORT", Every({"n0": BY_HAND, "n1": replace(BY_HAND, master_port=29501)})),
        ("FAIL job: WORLD_SIZE on gpu04", Every({**four(0, 1, 2).by_node, **four(3, world_size=24).by_node})),
        (Every({"n0": _OF_EIGHT, "n1": _OF_FOUR}),),  # they guess the number of nodes, 2 and 4
    ],
    "launch.master/master-agree": [
        ("WARN image: node0 on n2", Every({"n0": THERE, "n1": THERE, "n2": ELSEWHERE}), _REACHED),
        ("FAIL image: node0 on n2", Every({"n0": THERE, "n1": THERE, "n2": ELSEWHERE}), NOBODY),
        ("FAIL image: node0", Every({"n0": THERE, "n1": ELSEWHERE}), NOBODY),
        (Every({"n0": THERE, "n1": replace(THERE, name="10.0.0.1")}), NOBODY),
        (Every({"n0": replace(THERE, addresses=("fd00::1", "10.0.0.1")), "n1": THERE}), NOBODY),
    ],
    "launch.ranks/rank-silent": [
        ("FAIL unknown: n0 1 rank on n0", _OF_THREE, _ONE_LATE, _CALLED),
        ("FAIL unknown: n0 local rank [1-2] on n0", _OF_THREE, Ranks({"n0": {0: FIRST}}), _CALLED),
        ("FAIL unknown: n0 local rank 1 on n0", OF_TWO, Ranks({"n0": {0: FIRST}}), Every({"n0": RollCall(1)})),
        ("FAIL unknown: gpu01 local rank 5 on gpu01", four(0), _WITHOUT_5, Every({})),
    ],
    "launch.unproven": [
        ("UNKNOWN: secret", Every({"n0": Proof("none", proved=False), "n1": Absent("")})),
        (Every({"n0": Proof("munge", proved=True), "n1": Absent("")}),),
    ],
    "launch.mesh/firewall": [
        *((f"WARN image: {kind}/f/INPUT on n1", Every({"n0": OPEN, "n1": _dropped(kind)}), UNTRIED, _OVER_IPV6)
            for kind in ("ip6", "inet", "netdev")),
        ("WARN image: ip6/f/INPUT on n1", Every({"n0": OPEN, "n1": _dropped("ip6")}), UNTRIED, UNCHOSEN),
        ("WARN image: inet/firewalld/filter_INPUT on n1", Every({"n0": OPEN, "n1": REJECTS}), UNTRIED, UNCHOSEN),
        ("WARN image: ip/filter/INPUT on n1", Every({"n0": OPEN, "n1": DROPS}), UNTRIED, _OVER_IPV4),
        ("WARN image: inet/firewalld/filter_INPUT on n0", Every({"n0": REJECTS, "n1": DROPS}), UNTRIED, _OVER_IPV6),
        ("WARN image: ip/filter/INPUT on n0; NOTE unknown: firewall", Every({"n0": DROPS, "n1": _UNSEEN[0]}), _NONE,
            _NONE),
        *(("UNKNOWN: n1", Every({"n0": OPEN, "n1": each}), _NONE, _NONE) for each in _UNSEEN),
        (Every({"n0": DROPS, "n1": DROPS}), HEALTHY, UNCHOSEN),  # they have tried, and connect
        (Every({"n0": OPEN, "n1": DROPS}), UNTRIED, _OVER_IPV6),
        (Every({"n0": OPEN, "n1": Firewall((Chain("arp/filter/INPUT", "drop"),), ())}), UNTRIED, UNCHOSEN),
        (Every({"n0": OPEN, "n1": Firewall((Chain("ip6/filter/INPUT", "drop"),), ())}), UNTRIED, _OVER_IPV4),
        (Every({"n0": OPEN, "n1": Firewall((), ("ipv6/filter",))}), UNTRIED, _OVER_IPV4),
    ],
    "launch.port/port-free": [
        (BY_HAND, MASTER, HERE, Ports((), 0)), (BY_HAND, replace(MASTER, addresses=("10.0.0.6",)), HERE, TAKEN),
    ],
    "launch.port/port-ephemeral": [
        (replace(BY_HAND, master_port=40123), replace(USUAL, reserved_ports=((40000, 41000),)))
    ],
    "launch.limits/ports-enough": [
        ("WARN image: ephemeral ports", LARGE, replace(USUAL, ephemeral_ports=(50000, 59999)), Ports((), 0)),
        ("WARN image: ephemeral ports", TWO_NODES, _RESERVED, Ports((), 0)),
        ("NOTE unknown: ephemeral ports", TWO_NODES, USUAL, Ports((), 28000)),  # waiting ones
        (LARGE, USUAL, Ports((), 5000)), (replace(TWO_NODES, world_size=1024), USUAL, Absent("not readable")),
    ],
}  # fmt: skip
