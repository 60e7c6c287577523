"""Which NIC carries each rank's bytes, from captured machines."""

from pathlib import Path
from typing import Any

from ncclprobe.engine import collect
from ncclprobe.host.capture import load
from ncclprobe.localise.pairs.rounds import Nic
from ncclprobe.model.registry import Collector, discover
from ncclprobe.session.measure import rank_nics
from tests.each_row import each_row

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


def test_a_node_that_nobody_looked_at_has_no_known_nic() -> None:
    assert rank_nics.nics(["a", "b"], [{"gpu": "x"}, {"gpu": None}]) == (None, None)
