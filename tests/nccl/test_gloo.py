"""What gloo listens on, and whether two nodes' devices meet, beside what torch 2.13 did in networks of namespaces.

The vectors were recorded from torch 2.13: the interfaces as ncclprobe saw them, what each host's own
name resolved to, what every rank listened on, and whether the group came up.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.checks.env.fixtures import DOCKER_HOST, ETH0, interface
from ncclprobe.checks.launch.names import LO
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.gloo import (
    Device,
    Node,
    Refused,
    calls,
    devices,
    hostname_address,
    interface_address,
    named,
    parted,
    partings,
)
from tests.each_row import each_row, some

VECTORS = Path(__file__).resolve().parents[1] / "data" / "gloo" / "groups.jsonl"
HERE = Interfaces((LO, ETH0))


@cache
def vectors() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


def nodes_of(row: dict[str, Any]) -> dict[str, Node]:
    found = {}
    for number, (facts, rank, said) in enumerate(
        zip(row["interfaces"], row["case"]["ranks"], row["said"], strict=True)
    ):
        own = msgspec.convert(facts, Interfaces)
        ifname = rank["env"].get("GLOO_SOCKET_IFNAME", "")
        found[f"n{number}"] = Node(own, devices(own, ifname, rank["hostname"], said["resolved"]["addresses"]))
    return found


def test_every_rank_listens_where_torch_did_and_a_group_that_cannot_come_up_did_not() -> None:
    for number, row in enumerate(vectors()):
        nodes = nodes_of(row)
        for node, said in some(zip(nodes.values(), row["said"], strict=True)):
            if any(isinstance(each, Refused) for each in node.devices):
                assert "refused" in said, number
            elif not any(isinstance(each, Absent) for each in node.devices):
                own = [each.address.partition("%")[0] for each in node.devices if isinstance(each, Device)]
                assert own == said["listens"], number
        refused = any(isinstance(each, Refused) for node in nodes.values() for each in node.devices)
        hopeless = refused or bool(list(partings(nodes)))
        assert hopeless == (row["expected"] in ("refused", "parted")), number
        if hopeless or row["expected"] == "up":
            assert all(said.get("joined") for said in row["said"]) is not hopeless, number
    assert {row["expected"] for row in vectors()} == {"up", "refused", "parted", "no way", "unknown"}


def test_a_list_is_split_as_torch_splits_it() -> None:
    split = {
        **dict.fromkeys(("", "e", ","), ()),
        **dict.fromkeys(("eth0", "eth0,"), ("eth0",)),
        **{",eth0": ("", "eth0"), ",,": ("", ""), "eth0, ib0": ("eth0", " ib0")},
    }
    assert {text: named(text) for text in split} == split


def test_an_interface_goes_by_its_whole_name_or_label_and_ipv4_comes_first() -> None:
    labelled = Address("eth0:1", "inet", "10.9.0.5", "255.255.255.0", running=True)
    six = Address("eth0", "inet6", "fd00::5", "ffff:ffff:ffff:ffff::", running=True)
    here = Interfaces((LO, replace(ETH0, addresses=(six, *ETH0.addresses, labelled))))
    assert interface_address(here, "eth0:1") == Device("eth0:1", "10.9.0.5")
    assert interface_address(here, "eth0") == Device("eth0", "10.0.0.5")
    assert interface_address(here, "") == Refused("an empty name is not an interface")
    assert isinstance(interface_address(here, "eth"), Refused)
    down = Interfaces((LO, replace(ETH0, flags=frozenset())))  # it is not known to serve
    assert isinstance(interface_address(down, "eth0"), Absent)
    assert any(isinstance(each, Absent) for each in devices(down, "eth0", "n0", ()))


@each_row(
    ("resolved", "found"),
    [
        (("10.0.0.5",), Device("eth0", "10.0.0.5")),
        (("192.0.2.1", "10.0.0.5"), Device("eth0", "10.0.0.5")),
        (("127.0.1.1",), Device("lo", "127.0.1.1")),
        (("10.0.0.77",), Device("lo", "127.0.0.1", fallback=True)),  # in a network that is no loopback
        ((), Device("lo", "127.0.0.1", fallback=True)),
        (("192.0.2.1",), Device("lo", "127.0.0.1", fallback=True)),
    ],
)
def test_the_own_names_first_address_of_this_host_counts(resolved: tuple[str, ...], found: Device) -> None:
    assert hostname_address(HERE, "node0", resolved) == found


def test_an_address_of_no_interface_that_can_be_bound_to_ends_torch_and_so_does_a_name_of_64_characters() -> None:
    for address in ("0.0.0.0", "224.0.0.1", "10.0.0.255", "255.255.255.255", "::"):
        assert isinstance(hostname_address(HERE, "node0", (address,)), Refused), address
    assert isinstance(hostname_address(HERE, "x" * 64, ("10.0.0.5",)), Refused)
    assert hostname_address(HERE, "x" * 63, ("10.0.0.5",)) == Device("eth0", "10.0.0.5")
    assert isinstance(hostname_address(Interfaces((ETH0,)), "node0", ()), Refused)  # no loopback, no fallback


def test_the_greater_address_calls_so_that_one_loopback_node_may_join_a_lower_network() -> None:
    loopback, ten, high = Device("lo", "127.0.1.1"), Device("eth0", "10.0.0.6"), Device("eth0", "192.168.0.6")
    others = Interfaces((LO, interface("eth0", 2, "10.0.0.6")))
    assert calls(loopback, ten)
    assert parted(loopback, HERE, ten, others) == ""
    assert "its own address" in parted(loopback, HERE, high, others)
    links = Device("eth0", "fe80::1%eth0"), Device("eth0", "fe80::2%eth0")
    assert parted(links[0], HERE, links[1], others) == ""  # every link has its own addresses
    assert "different address families" in parted(links[0], HERE, ten, others)


def test_a_bridge_that_every_node_has_connects_nobody_to_another() -> None:
    docker = devices(DOCKER_HOST, "docker0", "n", ())
    (pair,) = partings({"n0": Node(DOCKER_HOST, docker), "n1": Node(DOCKER_HOST, docker)})
    assert (pair.one, pair.other, pair.why) == ("n0", "n1", "both have 172.17.0.1")
