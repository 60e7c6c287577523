"""Which rail a rank is, and how it is called."""

from ncclprobe.localise.pairs.rounds import Nic, place_ranks
from ncclprobe.localise.pairs.samples import End

TWO = ["a", "a", "b", "b"]


def nic(index: int, stem: str = "mlx5_") -> Nic:
    return Nic(f"{stem}{index}", index)


def test_a_rail_is_the_number_of_the_nic_where_each_rank_has_its_own() -> None:
    placement = place_ranks(TWO, [nic(1), nic(0), nic(0), nic(1)])
    assert placement.ends == (End("a", 1), End("a", 0), End("b", 0), End("b", 1))
    assert [placement.names[end] for end in placement.ends] == [
        "a rail 1 (mlx5_1)", "a (mlx5_0)", "b (mlx5_0)", "b rail 1 (mlx5_1)"
    ]  # fmt: skip
    assert placement.rails == {"a": [1, 0], "b": [0, 1]}
    assert not placement.note


def test_ranks_that_share_a_nic_are_told_apart_by_their_place() -> None:
    placement = place_ranks(TWO, [nic(0, "eth")] * 4)
    assert placement.ends == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))
    assert placement.names[End("b", 1)] == "b rail 1 (eth0)"
    assert "share NICs" in placement.note


def test_nodes_whose_nics_have_other_numbers_could_never_meet_so_places_count() -> None:
    placement = place_ranks(TWO, [nic(0), nic(1), nic(2), nic(3)])
    assert placement.ends == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))


def test_a_rank_whose_nic_nobody_knows_is_called_by_node_and_rail_alone() -> None:
    placement = place_ranks(TWO, [nic(0), None, nic(0), nic(1)])
    assert placement.names[End("a", 1)] == "a rail 1"
    assert placement.names[End("b", 1)] == "b rail 1 (mlx5_1)"


def test_on_a_single_node_every_rank_plays_for_itself() -> None:
    placement = place_ranks(["h", "h"], [nic(0), nic(1)])
    assert placement.ends == (End("rank 0"), End("rank 1"))
    assert placement.single
    assert placement.names[End("rank 1")] == "rank 1"
    assert placement.nodes == {"h": [0, 1]}
