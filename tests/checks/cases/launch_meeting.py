"""What the checks of how ranks meet must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import ETH0, LO, interface, over
from ncclprobe.checks.launch import BY_HAND, TWO_NODES
from ncclprobe.checks.launch.meeting import (
    AT,
    ELSEWHERE,
    FIRST,
    NO_PROCESSES,
    NOBODY,
    NODE1,
    OF_TWO,
    PROCESS,
    THERE,
)
from ncclprobe.checks.launch.mesh import ALL_STAYED, CALM, CROWD, HEALTHY, ONLY_DEFAULT, ONLY_NCCL, example
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
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.ports import Chain, Firewall, Ports
from ncclprobe.facts.reach import Gathering, Reach, RollCall, Trouble
from ncclprobe.model.nccl_selection import Decision, InterfaceChoice
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

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
_LOST_ONE: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0, lost=(Trouble("10.0.0.3", "reset", "", 2),))})
_DEAD = example(*((a, b, "nccl0", "filtered") for a, b in ((0, 2), (1, 2), (2, 0), (2, 1))))
_ONE_WAY = example((0, 2, "nccl0", "refused"), (1, 2, "nccl0", "refused"))
_ONLY_GLOO = example((0, 2, "gloo0", "filtered"), (1, 2, "gloo0", "filtered"), (2, 0, "gloo0", "ok"))
_AT_ETH0 = [Decision((InterfaceChoice("eth0", address, "", ""),), "") for address in ("10.0.0.5", "fd00::5%eth0")]
_OVER_IPV4, _OVER_IPV6 = (
    Every(dict.fromkeys(("n0", "n1"), replace(over("Socket"), bootstrap=bootstrap))) for bootstrap in _AT_ETH0
)
_RESERVED = replace(USUAL, ephemeral_ports=(50000, 51999), reserved_ports=((1, 50100), (51000, 60000)))
_UNSEEN = (
    Absent("only root may see the rules"),
    Firewall(Absent("no nft here"), ()),
    Firewall((), ("ipv4/filter",)),
    Firewall((), Absent("not readable")),
    RULED,  # a chain that its rules lead to may refuse all
    Firewall((Chain("inet/firewalld/filter_INPUT", "accept", Absent("rules not read")),), ()),
)
LARGE = replace(TWO_NODES, world_size=4096, nnodes=512)


_gloo_group = rows_of(
    interfaces=HOSTS,
    names=names_of("10.0.0.5", "10.0.0.6"),
    environments=ifnames("", ""),
    systems=SYSTEMS,
    processes=ANY,
    job=Job(),
)
CASES: Cases = {
    "launch.gloo-group": [
        _gloo_group("WARN job: n[0-1] on n0 n1", names=names_of("10.0.0.5", ""), environments=ifnames("lo", "")),
        _gloo_group("WARN job: n[0-1] on n0 n1", interfaces=_DOCKERS, environments=ifnames("docker0", "docker0")),
        _gloo_group(
            "FAIL job: n[0-1] on n0 n1",
            interfaces=_TWO_NETS,
            environments=ifnames("eth0,eth1", "eth0"),
            job=Job("gloo"),
        ),
        _gloo_group("WARN job: GLOO_SOCKET_IFNAME on n0", interfaces=_TWO_NETS, environments=ifnames("eth1", "")),
        _gloo_group(job=Job("gloo")),
        _gloo_group(environments=ifnames("eth0", "")),
        _gloo_group(environments=ifnames("eth9", "")),
        _gloo_group(interfaces=_SAME, names=names_of("127.0.1.1", "127.0.1.1"), systems=Every({}), job=Job("gloo")),
    ],
    "launch.master/master-reach": [
        ("FAIL unknown: node0:29500", _FILTERED),
        ("FAIL job: node0:29500", replace(AT, outcome="resolve", address="", source="", interface="")),
    ],
    "launch.ranks/rank-twice": [
        ("FAIL job: node rank 0 on n0 n1", Every({"n0": TWO_NODES, "n1": TWO_NODES}), NO_PROCESSES),
        ("FAIL job: rank 1 on n0 n1", Every({"n0": TWO_NODES, "n1": NODE1}), _TWICE),
        (Every({"n0": Launch(), "n1": Launch()}), NO_PROCESSES),
    ],
    "launch.vars/world-agree": [
        ("FAIL job: nnodes on n1", Every({"n0": BY_HAND, "n1": replace(BY_HAND, nnodes=3), "n2": BY_HAND})),
        ("FAIL job: MASTER_PORT", Every({"n0": BY_HAND, "n1": replace(BY_HAND, master_port=29501)})),
    ],
    "launch.master/master-agree": [
        ("WARN image: node0 on n2", Every({"n0": THERE, "n1": THERE, "n2": ELSEWHERE}), _REACHED),
        ("FAIL image: node0", Every({"n0": THERE, "n1": ELSEWHERE}), NOBODY),
        (Every({"n0": THERE, "n1": replace(THERE, name="10.0.0.1")}), NOBODY),
        (Every({"n0": replace(THERE, addresses=("fd00::1", "10.0.0.1")), "n1": THERE}), NOBODY),
    ],
    "launch.ranks/rank-silent": [
        ("FAIL unknown: n0 local rank 1 on n0", OF_TWO, Ranks({"n0": {0: FIRST}}), Every({"n0": RollCall(1)})),
    ],
    "launch.mesh/tcp-mesh": [
        ("FAIL node: n2 on n2", _DEAD, ALL_STAYED),
        ("FAIL node: n2 on n2", _ONE_WAY, ALL_STAYED),
        ("WARN fabric: n0 -> n2 on n0 n2", ONLY_NCCL, ALL_STAYED),
        ("WARN node: n2 on n2", _ONLY_GLOO, ALL_STAYED),
        (_DEAD, _LOST_ONE),
        (ONLY_DEFAULT, ALL_STAYED),
    ],
    "launch.mesh/tcp-mesh-iface": [
        (HEALTHY, ALL_STAYED),
        (_DEAD, ALL_STAYED),
    ],
    "launch.mesh/firewall": [
        ("WARN image: inet/firewalld/filter_INPUT on n1", Every({"n0": OPEN, "n1": REJECTS}), UNTRIED, UNCHOSEN),
        ("WARN image: ip/filter/INPUT on n1", Every({"n0": OPEN, "n1": DROPS}), UNTRIED, _OVER_IPV4),
        ("WARN image: inet/firewalld/filter_INPUT on n0", Every({"n0": REJECTS, "n1": DROPS}), UNTRIED, _OVER_IPV6),
        (
            "WARN image: ip/filter/INPUT on n0; NOTE unknown: firewall",
            Every({"n0": DROPS, "n1": _UNSEEN[0]}),
            Every({}),
            Every({}),
        ),
        *(("UNKNOWN: n1", Every({"n0": OPEN, "n1": each}), Every({}), Every({})) for each in _UNSEEN),
        (Every({"n0": DROPS, "n1": DROPS}), HEALTHY, UNCHOSEN),  # they have tried, and connect
        (Every({"n0": OPEN, "n1": DROPS}), UNTRIED, _OVER_IPV6),
        (Every({"n0": OPEN, "n1": Firewall((Chain("arp/filter/INPUT", "drop"),), ())}), UNTRIED, UNCHOSEN),
        (Every({"n0": OPEN, "n1": Firewall((Chain("ip6/filter/INPUT", "drop"),), ())}), UNTRIED, _OVER_IPV4),
        (Every({"n0": OPEN, "n1": Firewall((), ("ipv6/filter",))}), UNTRIED, _OVER_IPV4),
    ],
    "launch.port/port-free": [
        (BY_HAND, MASTER, HERE, Ports((), 0)),
        (BY_HAND, replace(MASTER, addresses=("10.0.0.6",)), HERE, TAKEN),
    ],
    "launch.port/port-ephemeral": [
        (replace(BY_HAND, master_port=40123), replace(USUAL, reserved_ports=((40000, 41000),))),
    ],
    "launch.limits/ports-enough": [
        ("WARN image: ephemeral ports", LARGE, replace(USUAL, ephemeral_ports=(50000, 59999)), Ports((), 0)),
        ("WARN image: ephemeral ports", TWO_NODES, _RESERVED, Ports((), 0)),
        ("NOTE unknown: ephemeral ports", TWO_NODES, USUAL, Ports((), 28000)),  # waiting ones
        (LARGE, USUAL, Ports((), 5000)),
        (replace(TWO_NODES, world_size=1024), USUAL, Absent("not readable")),
    ],
    "launch.port/port-flooded": [
        ("WARN unknown: MASTER_PORT", Every({"n0": Gathering(2, 1.0, floods=CROWD)}), HEALTHY),
        (CALM, HEALTHY),
    ],
}
