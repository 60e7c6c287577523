"""Plans are data: who calls whom."""

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
