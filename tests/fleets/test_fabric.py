"""What a simulated fabric gives each flow, worked out by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.fabric import Fabric, Link, fair_share
from fleets.faults import KINDS, Fault, plant
from fleets.fleet import NOISES, Fleet
from ncclprobe.localise.pairs.samples import End, Lost, Sample
from tests.each_row import each_row

A, B, C = ("a",), ("b",), ("c",)


@each_row(
    ("routes", "rates"),
    [
        ([(A,)], [10]),
        ([(A,), (A,)], [5, 5]),
        ([(A, B), (A,), (B,)], [2, 8, 2]),
        ([(A, C), (B, C), (C,)], [10, 2, 18]),
        ([(A,), ()], [10, 0]),
        ([], []),
    ],
)
def test_flows_share_links_max_min_fairly(routes: list[tuple[tuple[str, ...], ...]], rates: list[float]) -> None:
    carries: dict[Link, float] = {A: 10.0, B: 4.0 if (B,) in routes else 2.0, C: 30.0}
    assert fair_share(routes, carries) == pytest.approx(rates)


@given(
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=12), st.lists(st.floats(1, 50), min_size=6)
)
def test_no_link_carries_too_much_and_nobody_could_have_more(crossed: list[set[int]], capacity: list[float]) -> None:
    routes = [tuple((link,) for link in sorted(links)) for links in crossed]
    carries: dict[Link, float] = {(link,): capacity[link] for link in range(6)}
    rates = fair_share(routes, carries)
    load = {link: sum(r for r, route in zip(rates, routes, strict=True) if link in route) for link in carries}
    assert all(load[link] <= carries[link] + 1e-6 for link in carries)
    for rate, route in zip(rates, routes, strict=True):
        full = [link for link in route if load[link] >= carries[link] - 1e-6]
        assert any(
            rate >= max(r for r, other in zip(rates, routes, strict=True) if link in other) - 1e-6 for link in full
        )


def test_a_pair_below_one_leaf_crosses_no_uplink() -> None:
    fabric = Fabric(8, per_leaf=4)
    draw = random.Random(1)
    assert not [link for link in fabric.route(End("n0"), End("n3"), draw) if link[0] in ("up", "down")]
    assert [link[:2] for link in fabric.route(End("n0"), End("n5"), draw)][-2:] == [("up", 0), ("down", 1)]


def test_an_oversubscribed_leaf_halves_what_crosses_it() -> None:
    fleet = Fleet(Fabric(8, per_leaf=4, oversubscription=2.0), NOISES["quiet"])
    meetings = tuple((End(f"n{number}"), End(f"n{number + 4}")) for number in range(4))
    rates = [sample.GBps for sample in fleet.measure(meetings, 0) if isinstance(sample, Sample)]
    assert rates == pytest.approx([24.0] * 8, rel=0.05)


def test_flows_hashed_to_one_uplink_collide() -> None:
    fleet = Fleet(Fabric(16, per_leaf=8, ecmp=True), NOISES["quiet"], seed=3)
    meetings = tuple((End(f"n{number}"), End(f"n{number + 8}")) for number in range(8))
    rates = [sample.GBps for sample in fleet.measure(meetings, 0) if isinstance(sample, Sample)]
    assert min(rates) < 26 < 46 < max(rates)


def test_what_carries_nothing_is_lost() -> None:
    fleet = Fleet(Fabric(4, per_leaf=4), NOISES["quiet"], [Fault("node", 0.0, ("n2",))])
    lost, fine = fleet.measure(((End("n0"), End("n2")),), 0), fleet.measure(((End("n0"), End("n1")),), 0)
    assert all(isinstance(result, Lost) for result in lost)
    assert all(isinstance(result, Sample) for result in fine)


@each_row("kind", KINDS)
def test_a_fault_slows_what_it_says_and_nothing_else(kind: str) -> None:
    fabric = Fabric(16, per_leaf=4, rails=2, ecmp=kind == "link")
    [fault] = plant(kind, 1, 0.5, fabric, random.Random(2))
    ends = [End(node, rail) for node in fabric.names for rail in range(2)]
    pairs = [(s, d) for s in ends for d in ends if s.node != d.node and s.rail == d.rail]
    slow = [pair for pair in pairs if any(fault.slows(link, fabric) for link in fabric.route(*pair, random.Random(1)))]
    expected = {"node": 60, "nic": 30, "direction": 15, "pair": 2, "leaf": 216, "uplink": 192}
    assert len(slow) == expected[kind] if kind in expected else 0 <= len(slow) < 192
