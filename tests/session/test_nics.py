"""Which NIC carries each rank's bytes, and what the counters that ranks report say of the transport."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import answers

from ncclprobe.checks.run import traffic as checks
from ncclprobe.engine import collect
from ncclprobe.facts.run.samples import NicTraffic
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host.capture import load
from ncclprobe.localise.pairs.rounds import Nic
from ncclprobe.model.errors import Denied, Unlearned
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.nic_traffic import operation_traffic
from ncclprobe.session.measure import nccl_debug, nic_traffic, rank_nics
from tests.each_row import each_row

MIB = 1 << 20
HOSTS = ("a", "a", "b", "b")


def told(**sent: int) -> dict[str, Any]:
    return nic_traffic.packed(Traffic({name: Count(nbytes, nbytes) for name, nbytes in sent.items()}))


def card(expected: list[str] | None, below: dict[str, list[str]] | None = None) -> dict[str, Any]:
    return {"expected": expected, "below": below}


CARDS = [card(["eth0"], {}), card(["eth1"]), card(["eth0"], {}), card(["eth1"])]


def test_the_nics_of_a_node_are_those_of_all_its_ranks_and_one_that_does_not_know_leaves_it_unknown() -> None:
    both = [[told(eth0=5), told(eth0=9, eth1=4)], [None, None]] * 2
    first, second = nic_traffic.bytes_by_node(CARDS, both, HOSTS)
    assert (first.node, second.node, first.expected) == ("a", "b", frozenset({"eth0", "eth1"}))
    assert first.ethernet["eth0"] == Count(4, 4)
    assert isinstance(first.ethernet["eth1"], Absent)  # it was not there before
    found = nic_traffic.bytes_by_node([CARDS[0], card(None), *CARDS[2:]], both, HOSTS)
    assert [each.expected for each in found] == [None, {"eth0", "eth1"}]
    assert nic_traffic.bytes_by_node([CARDS[0]] * 2, [both[0]] * 2, ("a", "a")) == [], "two nodes of one name"


def test_a_counter_that_is_set_back_meanwhile_leaves_the_number_without_a_transport() -> None:
    both = [[told(eth0=900 * MIB), told(eth0=3 * MIB)], [told(eth0=0), told(eth0=66 * MIB)]]
    found = operation_traffic(
        "all_reduce", 64 * MIB, nic_traffic.bytes_by_node([card(["eth0"], {})] * 2, both, ("a", "b"))
    )
    assert [(nic.node, nic.sent) for nic in found.nics] == [("a", None), ("b", 66 * MIB)]
    assert "reset" in found.nics[0].why
    with pytest.raises(Unlearned, match="eth0 on a"):
        list(checks.nic_traffic.run(NicTraffic((found,))))


def test_counters_survive_the_way_to_rank_zero() -> None:
    seen = Traffic({"eth0": Count(1, 2), "eth1": Absent("permission denied")}, {"mlx5_0:1": Count(4, 8)})
    assert nic_traffic.unpacked(nic_traffic.packed(seen)) == seen


def test_what_an_interface_stands_on_is_read_from_sysfs() -> None:
    host = answers(
        {
            ("list", "/sys/class/net/bond0"): ["address", "lower_eth0", "lower_eth1", "mtu"],
            ("read", "/sys/class/net/bond0/type"): "1\n",
            ("list", "/sys/class/net/ib0"): ["dev_port", "type"],
            ("read", "/sys/class/net/ib0/type"): "32\n",
            ("read", "/sys/class/net/ib0/dev_port"): "0\n",
            ("list", "/sys/class/net/ib0/device/infiniband"): ["mlx5_0"],
            ("list", "/sys/class/net/eth9"): Denied("eth9"),
        }
    )
    assert nic_traffic.lower_devices(host, "bond0") == ["eth0", "eth1"]
    assert nic_traffic.lower_devices(host, "ib0") == ["mlx5_0:1"]
    assert nic_traffic.lower_devices(host, "eth9") == []


def test_gloo_within_one_node_goes_over_loopback_whatever_its_address() -> None:
    assert nic_traffic.socket_names([["eth0"], ["eth0"]], ("a", "a")) == "gloo tcp lo"
    assert nic_traffic.socket_names([["eth0"], ["eth1"]], ("a", "b")) == "gloo tcp eth0, eth1"
    assert nic_traffic.socket_names([["eth0"], None], ("a", "b")) == "gloo tcp"


def test_what_torch_holds_of_a_gpu_is_given_back_before_the_processes_of_the_pass_ask_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = pytest.importorskip("torch.cuda")
    done: list[str] = []
    monkeypatch.setattr(cuda, "empty_cache", lambda: done.append("given back"))
    monkeypatch.setattr(nccl_debug, "run_pass", lambda *task: done.append("pass"))
    run: Any = SimpleNamespace(config=SimpleNamespace(backend="nccl"), set_phase=lambda phase: None)
    for name in ("identity", "host", "exchange", "node", "hosts"):
        setattr(run, name, None)
    nic_traffic.TransportDetection(run).before(None, 1.0)
    assert done == ["given back", "pass"]


CAPTURES = Path(__file__).parents[1] / "captures"


def looked_at(name: str) -> dict[str, Any]:
    snapshot = collect.capture_facts(load(CAPTURES / f"{name}.jsonl"), discover("ncclprobe.facts", Collector))
    return rank_nics.snapshot_nics(snapshot)


def of_ranks(name: str) -> list[Nic | None]:
    """The NIC of each rank of one captured node with a rank per GPU, in the order of its GPUs."""
    node = looked_at(name)
    cards = [{"gpu": gpu} for gpu in node["near"] if ":" in gpu]
    return list(rank_nics.nics(["h"] * len(cards), [{**cards[0], "node": node}, *cards[1:]]))


def test_each_gpu_of_an_hgx_has_the_nic_of_its_own_switch() -> None:
    assert of_ranks("hgx-h100") == [Nic(f"mlx5_{number}", number) for number in range(8)]


@each_row("name", ["dgx-a100", "aws-p4d", "hgx-h200"])
def test_no_rank_has_a_nic_that_nccl_does_not_take_and_near_ones_are_taken_in_turn(name: str) -> None:
    found, node = of_ranks(name), looked_at(name)
    assert all(nic is None or node["nics"][nic.index] == nic.name for nic in found)
    near = [tuple(each) for gpu, each in node["near"].items() if ":" in gpu]
    for nics in set(near):
        turns = [nic.name for nic, own in zip(found, near, strict=True) if nic and own == nics]
        assert len(set(turns)) == min(len(turns), len(nics))


def test_with_gloo_each_rank_has_the_interface_that_it_was_told() -> None:
    cards: list[dict[str, Any]] = [{"gpu": None, "own": name} for name in ("eth1", "eth0", "eth0", "")]
    assert rank_nics.nics(["a", "a", "b", "b"], cards) == (Nic("eth1", 1), Nic("eth0", 0), Nic("eth0", 0), None)
    assert rank_nics.nics(["a", "b"], [{"gpu": "x"}, {"gpu": None}]) == (None, None), "nobody looked at the node"
