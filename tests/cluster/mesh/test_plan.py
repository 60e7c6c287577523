"""Plans are data: who calls whom, whose paths are measured again, which of two results counts, what is believed."""

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.listeners import parse_listeners
from ncclprobe.cluster.mesh.plan import Call, NodePlan, answering, plan_mesh, steps
from ncclprobe.cluster.mesh.walk import TcpInfo, doubtful, merged, parse
from ncclprobe.facts.reach import MeshListener, Path, Paths
from ncclprobe.localise.reach import LEAST_GBPS
from ncclprobe.model import bounds
from ncclprobe.model.values import replace
from tests.each_row import each_row


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


ANNOUNCED: dict[str, Any] = {"role": "nccl0", "interface": "eth0", "address": "10.0.0.2", "port": 4000}


@each_row(
    "change",
    [
        *({"address": address} for address in ("127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "n1")),
        *({"address": address} for address in ("::ffff:127.0.0.1", "255.255.255.255")),
        *({"port": port} for port in (0, 1 << 16, "x")),
        {"role": "r" * (bounds.LISTENER_CHARACTERS + 1)},
    ],
)
def test_no_node_is_sent_to_an_address_that_another_node_cannot_have(change: dict[str, Any]) -> None:
    wrong = {**ANNOUNCED, **change}
    if "role" not in change and change.get("port") != "x":
        with pytest.raises(ValueError, match=r"address|port"):
            NodePlan(0, {}, (Call(1, "nccl0", wrong["address"], wrong["port"]),)).check()
    right = {**ANNOUNCED, "role": "r" * bounds.LISTENER_CHARACTERS, "port": 65535}
    assert parse_listeners([wrong, right]) == (MeshListener(right["role"], "eth0", "10.0.0.2", 65535),)
    assert len(parse_listeners([ANNOUNCED] * 30)) == bounds.LISTENERS


@each_row("nodes", [2, 64, 65, 4096, 1 << 20])
def test_a_plan_of_any_number_of_nodes_is_taken(nodes: int) -> None:
    calls = tuple(Call(step, f"nccl{role}", "10.0.0.2", 1) for step in steps(nodes, 64) for role in range(21))
    NodePlan(0, {}, calls, calls).check()


LIES = {
    "64 nodes": [Call(node, "nccl0", "10.0.0.2", 4000) for node in range(64)],
    "many calls of one": [Call(1, "nccl0", "10.0.0.2", 1 + port) for port in range(2)],
    "22 roles": [Call(1, f"nccl{role}", "10.0.0.2", 4000) for role in range(22)],
}


@each_row("lie", LIES)
def test_a_plan_of_a_lying_node_is_none(lie: str) -> None:
    calls = tuple(LIES[lie])
    for plan in (NodePlan(0, calls=calls), NodePlan(0, rates=calls)):
        with pytest.raises(ValueError, match=f"{len(calls)} calls"):
            plan.check()


def row(to: int, rate: float | None = 10.0, resent: int = 0, outcome: str = "ok", segments: int = 1000) -> Path:
    return Path(
        to, "nccl0", "eth0", "10.0.0.9", f"10.0.0.{to}", outcome, rate_gbps=rate, resent=resent, segments=segments
    )


def seen(*rows: Path, me: int = 0) -> Paths:
    return Paths(me, {}, (), rows)


def test_of_an_answer_only_paths_that_were_asked_for_and_can_be_are_taken() -> None:
    plan = NodePlan(3, {3: "c"}, (Call(1, "nccl0", "10.0.0.1", 1), Call(2, "nccl0", "10.0.0.2", 1)))
    for number in ("rtt_s", "path_mtu", "rate_gbps", "resent", "segments", "tries", "passes"):
        odd = replace(row(2), **{number: -1})
        assert answering(plan, seen(row(1), odd, row(7), me=9)) == Paths(3, {3: "c"}, (), (row(1),))
        assert len(answering(plan, seen(replace(odd, **{number: 0}))).rows) == 1
    assert answering(plan, seen(row(1, outcome="made up"))).rows == ()


PLANS = {
    me: NodePlan(me, {}, tuple(Call(to, "nccl0", f"10.0.0.{to}", 1) for to in range(4) if to != me)) for me in range(4)
}
HEALTHY = {me: seen(row((me + 1) % 4), row((me + 2) % 4), row((me + 3) % 4, None), me=me) for me in range(4)}


@each_row(
    ("rows", "again"),
    [
        ([row(3), row(0), row(1, None)], []),
        ([row(3, 5.0), row(0), row(1, None)], []),  # half of the usual rate
        ([row(3, 4.99), row(0), row(1, None)], [3]),
        ([row(3, 10.0, 20), row(0)], [3]),  # lost packets, of 1,000
        ([row(3), row(1, None, 20)], [1]),
        ([row(3, 10.0, 6), row(0)], [3]),
        ([row(3, 10.0, 5), row(0)], []),  # half of what is lossy
        ([row(3, 10.0, 5, segments=999), row(0)], [3]),
        ([row(3, 10.0, 4, segments=100), row(0)], []),  # next to nothing
        ([row(3, None, 20, "stalled-back"), row(0), row(1, None, 4)], []),
        ([row(to, None, outcome="stalled-out") for to in (0, 1, 3)], [0, 1]),  # to learn which packets pass
    ],
)
def test_what_is_slow_stalled_or_lost_packets_is_looked_at_again_by_its_sender(
    rows: list[Path], again: list[int]
) -> None:
    plans = doubtful(PLANS, HEALTHY | {2: seen(*rows, me=2)})
    assert {rank: [call.to for call in plan.calls] for rank, plan in plans.items()} == ({2: again} if again else {})
    assert all(plan.thorough and plan.rates == plan.calls for plan in plans.values())


@each_row(("rate", "again"), [(2 * LEAST_GBPS, set()), (1.99 * LEAST_GBPS, {0, 1})])
def test_a_path_too_slow_for_any_job_is_looked_at_again_though_all_are_as_slow(rate: float, again: set[int]) -> None:
    assert {*doubtful(PLANS, {me: seen(row(1 - me, rate), me=me) for me in range(2)})} == again


def test_of_two_looks_the_better_one_counts() -> None:
    first = seen(row(1, 1.0, resent=30), row(2, None, resent=30), row(3, 9.0))
    both = merged(first, seen(row(1, 8.0, resent=2), row(2, 7.0, resent=1), row(3, 1.0, outcome="reset")))
    assert [(r.rate_gbps, r.resent, r.streams) for r in both.rows] == [(8.0, 2, 2), (7.0, 1, 2), (9.0, 0, 1)]
    worse = merged(seen(row(1, 8.0, resent=2)), seen(row(1, 1.0, resent=3, segments=2000))).rows[0]
    assert (worse.rate_gbps, worse.resent, worse.segments) == (8.0, 3, 2000)


def test_what_stalled_and_was_only_slow_is_slow_and_unknown_where_no_stream_tells() -> None:
    stalled = [row(to, None, outcome="stalled-out") for to in (1, 2, 3)]
    sized = replace(stalled[2], passes=1280, tries=2, refused=True)
    both = merged(seen(*stalled), seen(row(1, 0.0), row(2, None), sized))
    assert [(each.outcome, each.rate_gbps, each.streams) for each in both.rows[:2]] == [
        ("ok", 0.0, 2),
        ("late", None, 2),
    ]
    assert [(each.passes, each.tries, each.refused) for each in both.rows[2:]] == [(1280, 3, True)]
    assert both.rows[1].detail == "large messages are slow"


def info(**fields: int) -> bytes:
    """What the kernel says of a connection: fields at their offsets in struct tcp_info."""
    places = {"path_mtu": 60, "resent": 100, "acked": 120, "segments": 136, "min_rtt": 148, "busy": 168, "full": 176}
    said = bytearray(184)
    for name, value in fields.items():
        said[places[name] : places[name] + 4] = value.to_bytes(4, sys.byteorder)
    return bytes(said)


def test_fields_are_where_the_kernel_puts_them_and_what_an_older_one_does_not_say_is_none() -> None:
    said = info(path_mtu=9000, resent=3, acked=4096, segments=200, min_rtt=45, busy=3000, full=1000)
    whole = TcpInfo(path_mtu=9000, resent=3, segments=200, rtt_s=45e-6, acked_bytes=4096, waiting_s=0.002)
    assert parse(said) == whole
    assert parse(info(min_rtt=0xFFFFFFFF)).rtt_s is None
    assert parse(info(min_rtt=0)).rtt_s == 1e-6
    ends = {"path_mtu": 64, "resent": 104, "acked_bytes": 128, "segments": 140, "rtt_s": 152, "waiting_s": 184}
    for nbytes in range(185):
        known = {name: getattr(whole, name) for name, end in ends.items() if nbytes >= end}
        assert parse(said[:nbytes]) == TcpInfo(**known), nbytes
