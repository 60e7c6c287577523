"""Plans are data: who calls whom, whose paths are measured again, which of two results counts, what is believed."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.plan import plan_mesh
from ncclprobe.facts.reach import MeshListener


def listeners(node: int, *roles: str) -> list[MeshListener]:
    return [MeshListener(role, "eth0", f"10.0.{node // 250}.{node % 250 + 1}", 40000 + node) for role in roles]


@given(st.integers(1, 24), st.lists(st.sampled_from(["nccl0", "nccl1", "default"]), min_size=1, unique=True))
def test_every_ordered_pair_is_tried_once_on_every_role(nodes: int, roles: list[str]) -> None:
    plans = plan_mesh({node: listeners(node, *roles) for node in range(nodes)})
    calls = Counter((me, call.to, call.role) for me, plan in plans.items() for call in plan.calls)
    assert set(calls) == {(a, b, role) for a in range(nodes) for b in range(nodes) if a != b for role in roles}
    assert set(calls.values()) <= {1}
    for turn in zip(*(plan.calls[:: len(roles)] for plan in plans.values()), strict=True):
        assert len({call.to for call in turn}) == nodes  # in each place of the order all call different nodes


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
