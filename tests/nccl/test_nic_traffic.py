"""Which way the bytes went: by counters, others' traffic is never named, and gaps stay gaps."""

from collections.abc import Mapping

from ncclprobe.checks.run.rows import ROW
from ncclprobe.checks.run.traffic import nic_traffic
from ncclprobe.facts.run.samples import NicTraffic
from ncclprobe.facts.traffic import Count
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.measurement import Transport
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl import log
from ncclprobe.nccl.nic_traffic import Carried, operation_traffic, transport
from tests.each_row import each_row

MIB = 1 << 20
IDLE = Count(4000, 4000)


def node(
    name: str, expected: str | None = "eth0", below: Mapping[str, list[str]] | None = None, **counts: Count | Absent
) -> Carried:
    rdma = {nic.replace("_p", ":"): count for nic, count in counts.items() if nic.startswith("mlx5")}
    ethernet = {nic: count for nic, count in counts.items() if not nic.startswith("mlx5")}
    names = None if expected is None else frozenset([expected])
    return Carried(name, ethernet, rdma, names, below or {})


def both(nbytes: int) -> Count:
    return Count(nbytes, nbytes)


def wrong(seen: list[Carried], nbytes: int = 64 * MIB) -> list[str]:
    """The NICs that the check names for what the nodes' NICs moved; empty where it cannot tell."""
    try:
        return [each.subject for each in nic_traffic.run(NicTraffic((operation_traffic("all_reduce", nbytes, seen),)))]
    except Unlearned:
        return []


def test_bytes_on_the_expected_nic_name_nobody() -> None:
    seen = [node(name, eth0=both(70 * MIB), eth1=IDLE) for name in "ab"]
    found = operation_traffic("all_reduce", 64 * MIB, seen)
    assert wrong(seen) == []
    assert [(nic.nic, nic.share, nic.expected) for nic in found.nics if nic.node == "a"] == [("eth0", 0.9999, True)]


def test_a_nic_that_moved_what_another_was_to_is_named() -> None:
    seen = [node("a", eth0=both(6 * MIB), eth1=both(66 * MIB)), node("b", eth0=both(66 * MIB), eth1=IDLE)]
    assert wrong(seen) == ["a eth1"]
    less = [replace(seen[0], ethernet={"eth0": both(7 * MIB), "eth1": both(66 * MIB)}), seen[1]]
    assert wrong(less) == []


@each_row("busy", [Count(0, 900 * MIB), Count(900 * MIB, 0)])
def test_storage_traffic_beside_the_expected_bytes_names_nobody(busy: Count) -> None:
    assert wrong([node(name, eth0=both(66 * MIB), eth1=busy) for name in "ab"]) == []


def test_a_bonds_members_carry_what_the_bond_was_to() -> None:
    below = {"bond0": ["eth0", "eth1"]}
    seen = [node(n, "bond0", below, bond0=both(66 * MIB), eth0=both(33 * MIB), eth1=both(33 * MIB)) for n in "ab"]
    assert wrong(seen) == []
    found = operation_traffic("all_reduce", 64 * MIB, seen)
    assert {nic.nic: nic.share for nic in found.nics if nic.node == "a"} == {"bond0": None, "eth0": 0.5, "eth1": 0.5}


def test_counters_that_cannot_be_read_leave_the_transport_unknown() -> None:
    unread = Absent("its driver keeps no counters")
    seen = [node(name, eth0=unread, eth1=Count(20 * MIB, 0)) for name in "ab"]
    assert wrong(seen) == []
    found = operation_traffic("all_reduce", 64 * MIB, seen)
    assert [(nic.sent, nic.why) for nic in found.nics if nic.nic == "eth0"] == [(None, unread.why)] * 2
    assert {nic.share for nic in found.nics} == {None}


def test_where_nobody_knows_what_was_expected_nobody_is_named() -> None:
    assert wrong([node(name, None, eth0=IDLE, eth1=both(66 * MIB)) for name in "ab"]) == []


def test_messages_too_small_to_tell_from_the_noise_name_nobody() -> None:
    assert wrong([node(name, eth0=IDLE, eth1=both(100_000)) for name in "ab"], 50_000) == []


HEAD = "gpu1:101:101 [0] NCCL INFO "


def said(*lines: str) -> log.Log:
    return log.read("".join(f"{HEAD}{line}\n" for line in lines))


OVER_IB = said(
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.0.0.1<0>",
    "Using network IB",
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA",
    "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer",
    "AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
    "AllGather: 131072 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
)


def test_a_row_has_the_transport_that_nccls_lines_tell() -> None:
    over = "IB mlx5_0, mlx5_3"
    assert transport(ROW, [OVER_IB]) == Transport(over, True, "RING", "LL128", 16)
    assert transport(replace(ROW, op="all_gather"), [OVER_IB]) == Transport(over, True, "RING", "SIMPLE", 8)
    assert transport(replace(ROW, op="sendrecv"), [OVER_IB]) == Transport(over, True)


def test_one_rank_without_gpudirect_is_enough_to_say_so() -> None:
    other = said("Using network IB", "Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0")
    assert transport(ROW, [OVER_IB, other]).gdr is False


def test_a_log_cut_before_its_channels_does_not_make_a_network_of_one_node() -> None:
    """As of a run with --graph on a crowded machine: NCCL names its network whether it needs it or not."""
    cut = said("Using network Socket")
    assert transport(replace(ROW, nodes=1), [cut]).network is None
    assert transport(replace(ROW, nodes=2), [cut]).network == "Socket"


def test_within_a_node_the_transport_is_how_the_ranks_reach_each_other() -> None:
    inside = said("Using network IB", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 00 : 1[1] -> 0[0] via SHM")
    assert transport(ROW, [inside]) == Transport("P2P CUMEM, SHM")


def test_without_any_log_nothing_is_said() -> None:
    assert transport(ROW, []) == Transport()
