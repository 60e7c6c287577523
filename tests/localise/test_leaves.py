"""Leaves that only the measurement tells: which rates make a group of nodes a leaf, and which do not.

rates                                                     leaves
────────────────────────────────────────────────────────  ──────────────────────────────────────────────────
recorded, two leaves of nine and eight nodes              these, and no node is blamed for the uplinks
recorded, equal or only some pairs faster                 none
a slow node in one of two leaves                          both leaves; the node keeps its own
two or three slow nodes                                   none
few nodes                                                 none
neighbours that lose a tenth, also with each other        theirs, which is blamed
the same of half the rate, or of nodes far apart          none: another build
a leaf of a large fleet, six rounds                       that one, after its nodes met once more
"""

import math
import random
from itertools import combinations

import pytest
from fleets.fabric import Fabric
from fleets.faults import Fault
from fleets.fleet import NOISES, Fleet
from fleets.recorded import Replay, recorded_sets

from ncclprobe.localise.pairs.leaves import find_split, leaf_name, measured_layout
from ncclprobe.localise.pairs.samples import End, Layout, Sample
from ncclprobe.localise.pairs.suspects import Localisation, localise_slowness, round_robin
from tests.each_row import each_row

NINE, EIGHT = "cnode2-001 (+8)", "cnode2-005 (+7)"


def replayed(name: str) -> Localisation:
    fleet = Replay(recorded_sets()[name])
    return localise_slowness(fleet.rails, fleet.measure)


def samples(name: str, slow: str = "", left: float = 1.0) -> list[Sample]:
    fleet = Replay(recorded_sets()[name], lambda src, dst: left if slow in (src.node, dst.node) else 1.0)
    results = [each for pairs in round_robin(fleet.rails) for each in fleet.measure(pairs, 0)]
    return [each for each in results if isinstance(each, Sample)]


def test_two_recorded_leaves_with_slow_uplinks_are_leaves_and_not_eight_sick_nodes() -> None:
    found = replayed("cluster00 all_to_all 8")
    assert sorted(set(found.layout.leaf.values())) == [NINE, EIGHT]
    [named] = found.confirmed
    assert str(named.cause) == f"uplinks between {NINE} and {EIGHT}"
    assert named.ratio == pytest.approx(0.7, abs=0.06)
    assert named.retests


def test_leaves_that_cost_a_twentieth_by_design_blame_nothing() -> None:
    found = replayed("cluster00 sendrecv 8")
    assert set(found.layout.leaf.values()) == {NINE, "cnode2-005 (+6)"}
    assert "cnode2-008" not in found.layout.leaf  # as slow with all as those are with each other
    assert (found.confirmed, found.equally_slow) == ((), ())


@each_row("name", ["cluster01 sendrecv 1", "cluster01 all_to_all 8", "cluster00 sendrecv 1"])
def test_pairs_that_differ_without_groups_make_no_leaves(name: str) -> None:
    assert measured_layout(samples(name), Layout()).leaf == {}


def test_a_slow_node_keeps_the_leaf_with_which_it_is_faster() -> None:
    leaf = measured_layout(samples("cluster00 all_to_all 8", "cnode2-011", 0.8), Layout()).leaf
    assert leaf["cnode2-011"] == leaf["cnode2-005"] != leaf["cnode2-001"]


def test_leaves_that_the_site_tells_are_taken_as_they_are() -> None:
    told = Layout({"cnode2-001": "rack 7"})
    assert measured_layout(samples("cluster00 all_to_all 8"), told) is told


@each_row("sick", ["a", "ab", "abc"])
def test_slow_nodes_are_no_leaf(sick: str) -> None:
    rates = {pair: math.log(20 if {*pair} & {*sick} else 40) for pair in combinations("abcdefgh", 2)}
    assert find_split(rates) is None


def test_of_four_nodes_no_leaves_are_concluded() -> None:
    near = (("a", "b"), ("c", "d"))
    assert find_split({pair: 4.0 if pair in near else 3.0 for pair in combinations("abcd", 2)}) is None


def test_noise_alone_makes_no_leaves() -> None:
    draw = random.Random(5)
    for _ in range(200):
        assert find_split({pair: draw.gauss(0, 0.1) for pair in combinations("abcdefgh", 2)}) is None


def test_a_leaf_of_a_large_fleet_is_found_though_few_of_its_nodes_met() -> None:
    fabric = Fabric(128, per_leaf=16)
    fleet = Fleet(fabric, NOISES["quiet"], [Fault("uplink", 0.5, leaf=3)], seed=4, at_once=128)
    found = localise_slowness(fleet.rails, fleet.measure)
    members = leaf_name([node for node in fabric.names if fabric.leaf(node) == 3])
    assert [str(each.cause) for each in found.confirmed] == [f"uplinks between n0 (+111) and {members}"]
    assert all((leaf == members) is (fabric.leaf(node) == 3) for node, leaf in found.layout.leaf.items())


def test_nodes_of_another_build_are_not_blamed_one_by_one() -> None:
    fabric = Fabric(24, per_leaf=8)
    slower = [Fault("node", 0.5, (node,)) for node in fabric.names[:8]]
    fleet = Fleet(fabric, NOISES["usual"], slower, seed=2)
    found = localise_slowness(fleet.rails, fleet.measure)
    assert found.confirmed == ()
    assert {node for each in found.equally_slow for node in each.cause.nodes} == {*fabric.names[:8]}


def test_a_leaf_that_is_slow_inside_as_well_is_blamed_as_one() -> None:
    fabric = Fabric(24, per_leaf=8, rails=2)
    fleet = Fleet(fabric, NOISES["usual"], [Fault("leaf", 0.9, leaf=1)], seed=2, at_once=24)
    found = localise_slowness(fleet.rails, fleet.measure)
    [named] = found.confirmed
    assert (str(named.cause), found.equally_slow) == ("leaf n10 (+7)", ())
    assert named.ratio == pytest.approx(0.9, abs=0.02)
    assert {node for node, leaf in found.layout.leaf.items() if leaf == "n10 (+7)"} == {*fabric.names[8:16]}


def test_nodes_far_apart_that_lose_the_same_are_no_leaf() -> None:
    fabric = Fabric(24, per_leaf=8)
    sick = [Fault("node", 0.9, (node,)) for node in fabric.names[::4]]
    fleet = Fleet(fabric, NOISES["usual"], sick, seed=2)
    found = localise_slowness(fleet.rails, fleet.measure)
    assert found.confirmed == ()
    assert len(found.equally_slow) == 6


def test_two_nodes_that_lose_the_same_are_blamed() -> None:
    fabric = Fabric(24, per_leaf=8)
    fleet = Fleet(fabric, NOISES["usual"], [Fault("node", 0.8, (node,)) for node in ("n3", "n9")], seed=2)
    found = localise_slowness(fleet.rails, fleet.measure)
    assert sorted(str(each.cause) for each in found.confirmed) == ["n3", "n9"]
    assert not found.layout.near(End("n3"), End("n9"))
