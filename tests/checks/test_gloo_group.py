"""Which nodes are said to keep gloo groups from coming up, and which are not."""

from typing import Any, Literal

import pytest

from ncclprobe.checks.env.fixtures import interface
from ncclprobe.checks.launch.names import LO
from ncclprobe.checks.launch.ports import gloo_group
from ncclprobe.cluster.mesh.listeners import mesh_interfaces
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.names import OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot
from ncclprobe.model.values import replace

_SIX = Address("lo", "inet6", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", running=True)
LO6 = replace(LO, addresses=(*LO.addresses, _SIX))
NETMASK6 = "ffff:ffff:ffff:ffff::"


def host(number: int) -> Interfaces:
    """10.0.0.x and fd00::x on eth0, 10.1.0.x on eth1."""
    four = interface("eth0", 2, f"10.0.0.{number + 5}")
    six = Address("eth0", "inet6", f"fd00::{number + 5}", NETMASK6, running=True)
    eth0 = replace(four, addresses=(*four.addresses, six))
    return Interfaces((LO6, eth0, interface("eth1", 3, f"10.1.0.{number + 5}")))


def said(*names: str | None, ifnames: tuple[str, ...] = (), job: Literal["nccl", "gloo"] = "gloo") -> list[Finding]:
    """What is found of nodes whose own names are these; null: not asked."""
    nodes = range(len(names))
    own: dict[str, OwnName | Absent] = {
        f"n{i}": Absent("not asked") if name is None else OwnName(f"n{i}", (name,) if name else ())
        for i, name in enumerate(names)
    }
    given = [ifnames[i] if i < len(ifnames) else "" for i in nodes]
    variables: Every[Environment | Absent] = Every(
        {f"n{i}": Environment({"GLOO_SOCKET_IFNAME": text} if text else {}) for i, text in enumerate(given)}
    )
    systems: Every[System | Absent] = Every({f"n{i}": System(f"n{i}", "6.8", "x86_64", "", f"boot{i}") for i in nodes})
    machines = Every({f"n{i}": host(i) for i in nodes})
    return list(gloo_group.run(machines, Every(own), variables, systems, Every({}), Job(job)))


def test_of_three_nodes_the_one_of_another_family_is_named() -> None:
    (finding,) = said("10.0.0.5", "10.0.0.6", "fd00::7")
    assert (finding.subject, finding.severity.value, finding.nodes) == ("n2", "fail", ("n2",))
    assert "not in the other nodes' address family" in finding.message


def test_of_two_nodes_of_two_families_neither_is_the_odd_one() -> None:
    (finding,) = said("10.0.0.5", "fd00::6", job="nccl")
    assert (finding.nodes, finding.severity.value) == (("n0", "n1"), "warn")
    assert "gloo groups of this job" in finding.message


def test_two_loopback_nodes_among_healthy_ones_are_named_and_no_other() -> None:
    (finding,) = said("127.0.1.1", "10.0.0.6", "", "10.0.0.8")
    assert finding.nodes == ("n0", "n2")


def test_one_loopback_node_calls_all_others_and_nothing_fails() -> None:
    assert said("127.0.1.1", "10.0.0.6", "10.0.0.7") == []


def test_a_list_of_another_length_is_named() -> None:
    (finding,) = said("", "", "", ifnames=("eth0,eth1", "eth0,eth1", "eth0"))
    assert (finding.nodes, finding.blame) == (("n2",), "job")


def test_of_a_name_that_is_no_interface_the_nodes_own_check_speaks() -> None:
    assert said("10.0.0.5", "10.0.0.6", ifnames=("eth9", "")) == []


def test_a_variable_on_some_nodes_is_a_warning_only_in_another_network() -> None:
    assert said("10.0.0.5", "10.0.0.6", ifnames=("eth0", "")) == []
    (finding,) = said("10.0.0.5", "10.0.0.6", ifnames=("eth1", ""))
    assert (finding.subject, finding.severity.value, finding.nodes) == ("GLOO_SOCKET_IFNAME", "warn", ("n0",))


def test_processes_of_one_network_reach_each_others_loopback() -> None:
    own: dict[str, OwnName | Absent] = {f"n{i}": OwnName("n", ("127.0.1.1",)) for i in range(2)}
    plain: Every[Environment | Absent] = Every(dict.fromkeys(own, Environment({})))
    here = Every(dict.fromkeys(own, host(0)))
    assert list(gloo_group.run(here, Every(own), plain, Every({}), Every({}), Job("gloo"))) == []


def test_nothing_passes_where_a_name_was_not_asked() -> None:
    with pytest.raises(Unlearned):
        said("10.0.0.5", "10.0.0.6", None)


def meshed(backend: str, name: str, ifname: str = "", nccls: str = "=eth1") -> dict[str, str]:
    """The addresses of a node by role."""
    facts: dict[type, Any] = {
        Interfaces: host(0),
        Settings: Settings({"NCCL_SOCKET_IFNAME": Setting("NCCL_SOCKET_IFNAME", nccls, "environment")}),
        Environment: Environment({"GLOO_SOCKET_IFNAME": ifname} if ifname else {}),
        OwnName: OwnName("n0", (name,)),
    }
    return {each.name: each.address for each in mesh_interfaces(Snapshot("n0", facts), backend)}


def test_what_gloo_listens_on_is_called_as_well_as_nccls() -> None:
    assert meshed("nccl", "10.0.0.5") == {"nccl0": "10.1.0.5", "default": "10.0.0.5"}
    assert meshed("nccl", "fd00::5") == {"nccl0": "10.1.0.5", "default": "10.0.0.5", "gloo0": "fd00::5"}
    assert meshed("nccl", "10.1.0.5") == {"nccl0": "10.1.0.5", "default": "10.0.0.5"}


def test_under_gloo_its_first_device_is_the_default_and_the_next_follow() -> None:
    assert meshed("gloo", "fd00::5") == {"default": "fd00::5"}
    assert meshed("gloo", "fd00::5", ifname="eth1,eth0") == {"default": "10.1.0.5", "gloo1": "10.0.0.5"}


def test_no_other_node_calls_a_loopback_address() -> None:
    assert meshed("gloo", "127.0.1.1") == {"default": "10.0.0.5"}
