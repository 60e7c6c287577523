"""Interfaces, routes, settings, names, ports and filters: what the kernel's texts say, and what they do not."""

import json
from typing import Any

import pytest
from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import interfaces, names, ports, process, routes
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied, Failed, Missing, ParseError
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

NET = "/sys/class/net"
NOTHING = Missing("not there")


def learn(collector: Collector, said: dict[Question, Any], *others: Collector) -> Any:
    return collect(answers(said), [collector, *others])[collector.produces]


def fact(value: object, kind: type | None = None) -> Collector:
    return Collector(run=lambda host: value, produces=kind or type(value))


def box(*names: str) -> dict[Question, Any]:
    """psutil's two answers for interfaces without addresses."""
    stats = {name: {"flags": "up,loopback,running" if name == "lo" else "up,running", "mtu": 1500} for name in names}
    return {("psutil", "net_if_addrs"): {}, ("psutil", "net_if_stats"): stats}


BOND: dict[Question, Any] = {
    **box("eth0", "eth1", "bond0", "veth1"),
    **{("read", f"{NET}/{name}/ifindex"): str(n) for n, name in enumerate(("eth0", "eth1", "bond0", "veth1"), 2)},
    ("link", f"{NET}/eth0"): "../../devices/pci0000:00/0000:00:1c.0/0000:02:00.0/net/eth0",
    ("link", f"{NET}/eth1"): "../../devices/vmbus/VMBUS:01/3f2/net/eth1",
    ("link", f"{NET}/bond0"): "../../devices/virtual/net/bond0",
    ("link", f"{NET}/veth1"): "../../devices/virtual/net/veth1",
    ("link", f"{NET}/eth0/master"): "../../../../virtual/net/bond0",
    ("link", f"{NET}/eth1/master"): "../bond0",
    ("read", f"{NET}/bond0/uevent"): "DEVTYPE=bond\nINTERFACE=bond0\nIFINDEX=4\n",
    ("read", f"{NET}/veth1/uevent"): "INTERFACE=veth1\nIFINDEX=5\n",
    ("read", f"{NET}/bond0/speed"): "50000\n",
    ("read", f"{NET}/eth0/carrier_changes"): "7\n",
}


def test_physical_interfaces_have_a_function_and_count_their_carrier_changes() -> None:
    eth0, eth1, *_ = learn(interfaces.interfaces, BOND).all
    assert (eth0.virtual, eth0.pci, eth0.carrier_changes) == (False, "0000:02:00.0", 7)
    assert (eth1.virtual, eth1.pci, eth1.carrier_changes) == (False, "", None)


def test_a_bond_is_virtual_has_members_and_the_speed_of_them_all() -> None:
    seen = learn(interfaces.interfaces, BOND)
    bond, veth = seen.all[2:]
    assert (bond.virtual, bond.kind, bond.speed_mbps, seen.members("bond0")) == (True, "bond", 50_000, ("eth0", "eth1"))
    assert (veth.virtual, veth.kind, veth.master) == (True, "", "")


def test_an_interface_that_goes_while_we_look_hides_no_other() -> None:
    said = BOND | {("read", f"{NET}/veth1/ifindex"): NOTHING}
    assert [i.name for i in learn(interfaces.interfaces, said).all] == ["eth0", "eth1", "bond0"]


def test_an_older_capture_does_not_say_what_is_virtual() -> None:
    said = {**box("lo"), ("read", f"{NET}/lo/ifindex"): "1"}
    assert learn(interfaces.interfaces, said).all[0].virtual is None


ROUTE = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	100	00000000	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
*	0000000A	00000000	0200	0	0	0	000000FF	0	0	0
"""
ROUTE6 = """fe800000000000000000000000000000 40 {0} 00 {0} 00000100 00000002 00000000 00000001     eth0
{0} 00 {0} 00 fd000000000000000000000000000001 00000400 00000002 00000000 00000003     eth0
00000000000000000000000000000001 80 {0} 00 {0} 00000000 00000002 00000000 80200001       lo
ff000000000000000000000000000000 08 {0} 00 {0} 00000100 00000003 00000000 00000001     eth0
""".format("0" * 32)
RULES = json.dumps(
    [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 49, "src": "all", "dst": "10.3.0.0", "dstlen": 16, "action": "unreachable"},
        {"priority": 50, "src": "10.2.0.0", "srclen": 16, "fwmark": "0x5", "iif": "b", "table": "102"},
        {"priority": 32765, "src": "10.1.0.1", "table": "101"},
        {"priority": 32766, "src": "all", "table": "main"},
        {"priority": 32767, "src": "all", "table": "default"},
    ]
)
IP = ("run", "ip", "-j", "-4")


def test_routes_that_lead_elsewhere_are_read_from_proc() -> None:
    seen = learn(
        routes.routes,
        {
            ("read", "/proc/net/route"): ROUTE,
            ("read", "/proc/net/ipv6_route"): ROUTE6,
            (*IP, "rule"): Missing("ip: not there"),
        },
    )
    assert [(r.destination, r.interface, r.gateway, r.metric) for r in seen.main] == [
        ("0.0.0.0/0", "eth0", "192.0.2.1", 100),
        ("192.0.2.0/24", "eth0", "", 0),
        ("fe80::/64", "eth0", "", 256),
        ("::/0", "eth0", "fd00::1", 1024),
    ]
    assert seen.default_interfaces == ("eth0",)
    assert isinstance(seen.rules, Absent), "without ip(8) nobody knows of rules"


def test_further_tables_are_asked_for_only_where_rules_lead_to_them() -> None:
    table = [
        {"dst": "default", "dev": "rdma0", "gateway": "10.1.0.254", "table": "101", "flags": []},
        {"type": "local", "dst": "10.1.0.1", "dev": "rdma0", "table": "local", "prefsrc": "10.1.0.1"},
        {"dst": "10.9.0.0/16", "nexthops": [{"dev": "a"}, {"dev": "b"}]},
    ]
    said: dict[Question, Any] = {("read", "/proc/net/route"): ROUTE, ("read", "/proc/net/ipv6_route"): NOTHING}
    said |= {(*IP, "rule"): RULES, (*IP, "route", "show", "table", "all"): table}
    seen = learn(routes.routes, said)
    assert [(r.source, r.table, r.interface, r.action) for r in seen.policy] == [
        ("all", "", "", "unreachable"),
        ("10.2.0.0/16", "102", "b", ""),
        ("10.1.0.1/32", "101", "", ""),
    ]
    assert [(r.destination, r.interface, r.table) for r in seen.tables] == [
        ("0.0.0.0/0", "rdma0", "101"),
        ("10.9.0.0/16", "", "main"),
    ]
    usual = json.dumps([row for row in json.loads(RULES) if row["priority"] in (0, 32766, 32767)])
    assert learn(routes.routes, said | {(*IP, "rule"): usual}).policy == ()


@each_row("text", ["", "nonsense", ROUTE.replace("010200C0", "x"), "0: from all lookup local"])
def test_texts_that_are_no_tables_are_refused(text: str) -> None:
    for parse in (routes.main4, routes.rules):
        with pytest.raises(ParseError):
            parse(text)


SETTINGS: dict[Question, Any] = {
    ("read", "/proc/sys/net/ipv4/ip_local_port_range"): "32768\t60999\n",
    ("read", "/proc/sys/net/ipv4/ip_local_reserved_ports"): "29500,40000-40010\n",
}


def rail(name: str, address: str, index: int) -> Interface:
    own = Address(name, "inet", address, "255.255.255.0", running=True)
    return Interface(name, index, frozenset({"up", "running"}), 9000, addresses=(own,))


def test_settings_are_read_and_what_is_refused_is_not_known() -> None:
    said = SETTINGS | {("read", "/proc/sys/net/ipv4/ip_local_reserved_ports"): NOTHING}
    assert isinstance(learn(ports.sysctls, said, fact(Interfaces())).reserved_ports, Absent)
    seen = learn(ports.sysctls, SETTINGS, fact(Interfaces()))
    assert seen.ephemeral_ports == (32768, 60999)
    assert seen.reserved_ports == ((29500, 29500), (40000, 40010))


def test_only_interfaces_that_share_a_subnet_are_asked_how_they_treat_addresses() -> None:
    rails = Interfaces((rail("a", "10.0.0.1", 2), rail("b", "10.0.0.2", 3), rail("c", "10.0.1.1", 4)))
    conf = "/proc/sys/net/ipv4/conf"
    said = SETTINGS | {
        **{("read", f"{conf}/{w}/arp_ignore"): "0" for w in ("all", "a", "b")},
        **{("read", f"{conf}/{w}/arp_announce"): n for w, n in (("all", "2"), ("a", "1"), ("b", "0"))},
        ("read", f"{conf}/b/arp_ignore"): NOTHING,
    }
    seen = learn(ports.sysctls, said, fact(rails)).interfaces
    assert set(seen) == {"a", "b"}
    assert (seen["a"].arp_announce, seen["b"].arp_announce, seen["a"].arp_ignore) == (2, 2, 0)
    assert isinstance(seen["b"].arp_ignore, Absent)


@each_row("text", ["1-", "70000", "5,x", "1 2"])
def test_what_is_no_list_of_ports_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        ports.port_list(text)


HOSTS = "127.0.0.1 localhost\n127.0.1.1\tn0.site n0 # the installer's\n\nnonsense here\n::1 ip6-localhost\n10.0.0.5\n"


def test_names_are_read_as_the_resolver_reads_them() -> None:
    seen = learn(
        names.names,
        {
            ("read", "/etc/hosts"): HOSTS,
            ("read", "/etc/resolv.conf"): "search a b\nnameserver 10.0.0.2\n; no\noptions ndots:5 edns0\ndomain c\n",
            ("read", "/etc/nsswitch.conf"): "passwd: files\nhosts:\tfiles dns [NOTFOUND=return] myhostname # x\n",
        },
    )
    assert [(e.address, e.names, e.line) for e in seen.hosts] == [
        ("127.0.0.1", ("localhost",), 1),
        ("127.0.1.1", ("n0.site", "n0"), 2),
        ("::1", ("ip6-localhost",), 5),
    ]
    assert [e.address for e in seen.entries("N0")] == ["127.0.1.1"]
    assert (seen.search, seen.options) == (("c",), ("ndots:5", "edns0"))
    assert seen.sources == ("files", "dns", "[NOTFOUND=return]", "myhostname")


def test_files_that_are_not_there_say_nothing() -> None:
    paths = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf")
    assert learn(names.names, {("read", path): NOTHING for path in paths}) == names.Names()


TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 65298 1 0 100 0 0 10 0
"""
TCP6 = TCP.replace("0100007F:733C", f"{'0' * 32}:E10E").replace(" 00000000:0000 0A", f" {'0' * 32}:0000 0A")


def test_listening_ports_are_read_and_never_tried() -> None:
    seen = learn(
        ports.ports,
        {
            ("lines", "/proc/net/tcp", ports.LISTENING): TCP,
            ("lines", "/proc/net/tcp6", ports.LISTENING): TCP6,
            ("read", "/proc/net/sockstat"): "sockets: used 35\nTCP: inuse 5 orphan 0 tw 28 alloc 23 mem 536\n",
        },
    )
    assert [(p.address, p.port) for p in seen.listeners] == [("127.0.0.1", 29500), ("::", 57614)]
    assert seen.time_wait == 28
    assert seen.on(29500)
    assert not seen.on(29501)


def test_a_kernel_without_ipv6_has_no_such_listeners() -> None:
    said = {("lines", "/proc/net/tcp", ports.LISTENING): TCP, ("lines", "/proc/net/tcp6", ports.LISTENING): NOTHING}
    assert len(learn(ports.ports, {**said, ("read", "/proc/net/sockstat"): ""}).listeners) == 1


@each_row("text", ["", "sl\n", TCP.replace(" 0A ", " 01 "), TCP.replace("0100007F", "7F")])
def test_a_table_of_sockets_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        ports.listening(text)


def holding(*capabilities: str) -> Collector:
    limit = process.ResourceLimit(None, None)
    return fact(process.Process(limit, (0,), (0,), frozenset(capabilities), True, {}))


NFT = {
    "nftables": [
        {"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "inet", "table": "filter", "name": "input", "handle": 1, "type": "filter",
                   "hook": "input", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "helper", "handle": 2}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 2, "type": "filter",
                   "hook": "forward", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "ip", "table": "nat", "name": "PREROUTING", "handle": 1, "type": "nat",
                   "hook": "prerouting", "prio": -100, "policy": "accept"}},
        {"chain": {"family": "ip", "table": "raw", "name": "PREROUTING", "handle": 1, "type": "filter",
                   "hook": "prerouting", "prio": -300, "policy": "accept"}},
        {"chain": {"family": "inet", "table": "odd; flush ruleset", "name": "input", "handle": 1, "type": "filter",
                   "hook": "input", "prio": 0, "policy": "accept"}},
    ]
}  # fmt: skip
ESTABLISHED = [
    {"match": {"op": "==", "left": {"ct": {"key": "state"}}, "right": {"set": ["established", "related"]}}},
    {"accept": None},
]


def in_chain(*rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``nft -j list chain`` of nftables 1.0.6 says of a chain with these rules."""
    chain = {"family": "inet", "table": "t", "name": "c", "handle": 2, "type": "filter", "hook": "input", "prio": 10}
    listed = ({"family": "inet", "table": "t", "chain": "c", "handle": n, "expr": e} for n, e in enumerate(rules, 5))
    return {"nftables": [{"metainfo": {}}, {"chain": chain}, *({"rule": rule} for rule in listed)]}


def test_chains_that_filter_what_comes_in_are_seen_with_the_right_to_see_them() -> None:
    said: dict[Question, Any] = {
        ("run", "nft", "-j", "list", "chains"): NFT,
        ("run", "nft", "-j", "list", "chain", "inet", "filter", "input"): in_chain(ESTABLISHED),
        ("run", "nft", "-j", "list", "chain", "ip", "raw", "PREROUTING"): in_chain(),
        ("read", "/proc/net/ip_tables_names"): "nat\nfilter\n",
        ("read", "/proc/net/ip6_tables_names"): NOTHING,
    }
    seen = learn(ports.firewall, said, holding("net_admin"))
    drops, raw, odd = seen.chains
    assert drops == ports.Chain("inet/filter/input", "drop", 1)
    assert raw == ports.Chain("ip/raw/PREROUTING", "accept", 0)
    assert isinstance(odd.rules, Absent)
    assert seen.legacy == ("ipv4/nat", "ipv4/filter")


@each_row(
    ("last", "verdict"),
    [
        ([{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}], "reject"),  # firewalld's
        ([{"counter": {"packets": 0, "bytes": 0}}, {"log": {"prefix": "a"}}, {"drop": None}], "drop"),
        ([{"counter": {"packets": 0, "bytes": 0}}, {"xt": {"type": "target", "name": "REJECT"}}], "reject"),
        ([{"counter": {"packets": 0, "bytes": 0}}, {"xt": None}], ""),  # iptables-nft, by nft before 1.0.7
        ([{"xt": {"type": "match", "name": "tcp"}}, {"xt": {"type": "target", "name": "REJECT"}}], ""),
        ([{"jump": {"target": "KUBE-FIREWALL"}}], ""),
        ([], ""),
    ],
)
def test_a_last_rule_that_refuses_all_is_told(last: list[dict[str, Any]], verdict: str) -> None:
    assert ports.rules(json.dumps(in_chain(ESTABLISHED, last))) == (2, verdict)


def test_without_that_right_nothing_is_asked_and_nothing_is_known() -> None:
    seen = learn(ports.firewall, {}, holding())
    assert isinstance(seen, Absent)
    assert seen.refused == "Denied"


def test_a_node_without_nft_says_what_it_can() -> None:
    said: dict[Question, Any] = {
        ("run", "nft", "-j", "list", "chains"): Missing("nft: not there"),
        ("read", "/proc/net/ip_tables_names"): Denied("no"),
    }
    seen = learn(ports.firewall, said, holding("net_admin"))
    assert isinstance(seen.chains, Absent)
    assert isinstance(seen.legacy, Absent)


def test_a_speed_of_a_link_that_is_down_is_not_known() -> None:
    said = BOND | {("read", f"{NET}/eth0/speed"): Failed("Invalid argument")}
    assert learn(interfaces.interfaces, said).all[0].speed_mbps is None
