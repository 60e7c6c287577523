"""Plans are data: who calls whom, spread over the nodes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.listeners import parse_listeners
from ncclprobe.cluster.mesh.plan import Call, NodePlan, plan_mesh, steps
from ncclprobe.facts.reach import MeshListener
from tests.each_row import each_row


def listeners(node: int, *roles: str) -> list[MeshListener]:
    return [MeshListener(role, "eth0", f"10.0.{node // 250}.{node % 250 + 1}", 40000 + node) for role in roles]


@given(st.integers(1, 24), st.lists(st.sampled_from(["nccl0", "nccl1", "default"]), min_size=1, unique=True))
def test_every_ordered_pair_is_tried_once_on_every_role(nodes: int, roles: list[str]) -> None:
    plans = plan_mesh({node: listeners(node, *roles) for node in range(nodes)})
    calls = Counter((me, call.to, call.role) for me, plan in plans.items() for call in plan.calls)
    assert set(calls) == {(a, b, role) for a in range(nodes) for b in range(nodes) if a != b for role in roles}
    assert set(calls.values()) <= {1}


@given(st.integers(2, 300))
def test_in_each_place_of_the_order_all_call_different_nodes(nodes: int) -> None:
    plans = plan_mesh({node: listeners(node, "nccl0") for node in range(nodes)})
    for turn in zip(*(plan.calls for plan in plans.values()), strict=True):
        assert len({call.to for call in turn}) == nodes


def test_beyond_the_limit_only_neighbours_of_rings_and_trees_are_called() -> None:
    plans = plan_mesh({node: listeners(node, "nccl0") for node in range(2048)})
    assert {len(plan.calls) for plan in plans.values()} == {21}
    away = {(call.to - 5) % 2048 for call in plans[5].calls}
    assert away == {1 << k for k in range(11)} | {2048 - (1 << k) for k in range(11)}


@each_row("nodes", [2, 3, 4, 64, 65, 100])
def test_streams_go_to_neighbours_that_are_called_as_well(nodes: int) -> None:
    plans = plan_mesh({node: listeners(node, "nccl0") for node in range(nodes)})
    first = Counter(plan.rates[0].to for plan in plans.values())
    assert set(first.values()) == {1}
    if nodes > 2:
        second = Counter(plan.rates[1].to for plan in plans.values())
        assert set(second.values()) == {1}
        assert all(plan.rates[0].to != plan.rates[1].to for plan in plans.values())
    assert {plan.rates[0].to for plan in plans.values()} == set(plans)


def test_an_interface_is_walked_only_where_both_ends_have_it_and_ranks_may_be_missing() -> None:
    plans = plan_mesh({0: listeners(0, "nccl0", "default"), 2: listeners(2, "nccl0"), 7: []}, names={0: "a", 2: "b"})
    assert [(call.to, call.role) for call in plans[0].calls] == [(2, "nccl0")]
    assert [(call.to, call.role) for call in plans[2].calls] == [(0, "nccl0")]
    assert plans[7].calls == ()
    assert plans[0].names == {0: "a", 2: "b", 7: "node 7"}


def test_only_nccls_interfaces_are_called_by_another_family() -> None:
    four = [MeshListener(role, "eth0", "10.0.0.1", 4000) for role in ("nccl0", "default", "gloo0")]
    six = [MeshListener(role, "eth0", "fd00::2", 4000) for role in ("nccl0", "default", "gloo0")]
    assert [call.role for call in plan_mesh({0: four, 1: six})[0].calls] == ["nccl0"]


@each_row("address", ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:127.0.0.1", "n1"])
def test_no_node_is_sent_to_an_address_that_another_node_cannot_have(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        NodePlan(0, {}, (Call(1, "nccl0", address, 4000),)).check()
    announced = {"role": "nccl0", "interface": "eth0", "address": address, "port": 4000}
    assert parse_listeners([announced, {**announced, "address": "10.0.0.2"}]) == (
        MeshListener("nccl0", "eth0", "10.0.0.2", 4000),
    )


@each_row("nodes", [2, 64, 65, 4096, 1 << 20])
def test_a_plan_of_any_number_of_nodes_is_taken(nodes: int) -> None:
    calls = tuple(Call(step, f"nccl{role}", "10.0.0.2", 4000) for step in steps(nodes, 64) for role in range(21))
    NodePlan(0, {}, calls, calls).check()


LIES = {
    "many nodes": [Call(node, "nccl0", "10.0.0.2", 4000) for node in range(30_000)],
    "many calls of one": [Call(1, "nccl0", "10.0.0.2", 1 + port) for port in range(30_000)],
    "many roles": [Call(1, f"nccl{role}", "10.0.0.2", 4000) for role in range(30_000)],
}


@each_row("lie", LIES)
@each_row("where", ["calls", "rates"])
def test_a_plan_of_a_lying_node_with_30000_calls_is_none(lie: str, where: str) -> None:
    with pytest.raises(ValueError, match="30000 calls"):
        NodePlan(0, **{where: tuple(LIES[lie])}).check()
