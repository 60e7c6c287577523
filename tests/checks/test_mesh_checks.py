"""Who cannot connect to whom: the node, the direction and the interface that must be named, and nobody else."""

from typing import Any

import pytest
from fake_paths import Change, fleet

from ncclprobe.checks.launch import mesh
from ncclprobe.engine.judge import judge
from ncclprobe.facts.reach import Flood, Gathering, Paths, Trouble
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Every, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

TWO_ROLES = ("nccl0", "default")


def fails(when: Any, outcome: str = "filtered", role: str = "nccl0") -> Change:
    """Paths of one role fail for which `when` of their ends is true."""
    return lambda one, other, on: {"outcome": outcome, "tries": 2} if on == role and when(one, other) else None


def found(paths: Every[Paths], check: Check = mesh.tcp_mesh, *lost: Trouble) -> list[Finding]:
    return list(check.run(paths, Every({"n0": Gathering(1, 1.0, lost=lost)})))


def subjects(*arguments: Any, check: Check = mesh.tcp_mesh, **details: Any) -> list[tuple[str, tuple[str, ...], str]]:
    return [(f.subject, f.nodes, f.blame) for f in found(fleet(*arguments, **details), check)]


@each_row("nodes", [2, 3, 8, 64])
def test_a_healthy_mesh_is_not_talked_about(nodes: int) -> None:
    assert subjects(nodes, lambda *_: None, TWO_ROLES) == []
    assert subjects(nodes, lambda *_: None, TWO_ROLES, check=mesh.tcp_mesh_iface) == []


@each_row("nodes", [3, 8, 64])
def test_a_node_that_nobody_reaches_and_that_reaches_nobody_is_that_node(nodes: int) -> None:
    assert subjects(nodes, fails(lambda one, other: 1 in (one, other))) == [("n1", ("n1",), "node")]


@each_row("nodes", [3, 8, 64])
def test_a_firewall_on_one_node_is_that_nodes_and_one_direction(nodes: int) -> None:
    (finding,) = found(fleet(nodes, fails(lambda _, other: other == 2, "refused")))
    assert (finding.nodes, finding.blame, finding.action) == (("n2",), "node", "fix-image")
    assert f"{nodes - 1} of {nodes - 1} paths into n2 (eth1, refused)" in finding.message
    assert f"tried 2 times with {nodes - 1} other nodes" in finding.confidence.how
    assert finding.remedy.startswith("on n2, run `ip addr show eth1`; `ip -s link show eth1`")
    assert subjects(nodes, fails(lambda one, _: one == 2)) == [("n2", ("n2",), "node")]


@each_row(
    ("nodes", "when", "named"),
    [
        (8, lambda *ends: set(ends) == {2, 5}, ("n2 <-> n5", ("n2", "n5"), "fabric")),
        (8, lambda *ends: ends == (5, 2), ("n5 -> n2", ("n5", "n2"), "fabric")),
        (2, lambda *_: True, ("n0 <-> n1", ("n0", "n1"), "fabric")),
    ],
    ids=["a pair is a path", "one direction", "of two nodes neither is at fault"],
)
def test_a_path_is_named_and_neither_of_its_nodes(nodes: int, when: Any, named: tuple[str, ...]) -> None:
    assert subjects(nodes, fails(when)) == [named]


@each_row("outcome", ["filtered", "silent"])
def test_one_call_without_an_answer_by_one_node_is_no_evidence(outcome: str) -> None:
    once = fleet(8, lambda *ends: {"outcome": outcome, "tries": 1} if ends == (5, 2, "nccl0") else None)
    with pytest.raises(Unlearned, match="1 of 56 paths gave no answer and were tested only once"):
        found(once)
    refused = fleet(8, lambda *ends: {"outcome": "refused", "tries": 1} if ends == (5, 2, "nccl0") else None)
    assert [finding.subject for finding in found(refused)] == ["n5 -> n2"]


def test_where_nothing_connects_no_node_is_at_fault() -> None:
    (finding,) = found(fleet(4, fails(lambda *_: True, "unreachable")))
    assert (finding.subject, finding.nodes, finding.action) == ("all nodes", (), "fix-job")


def test_two_faults_at_once_are_both_named() -> None:
    both = fails(lambda one, other: 1 in (one, other) or (one, other) == (5, 6))
    assert [subject for subject, _, _ in subjects(8, both)] == ["n1", "n5 -> n6"]


def test_two_groups_that_are_cut_off_from_each_other_are_one_finding() -> None:
    (finding,) = found(fleet(8, fails(lambda one, other: (one < 3) != (other < 3))))
    assert (finding.subject, finding.blame) == ("n[0-2]", "fabric")


def test_another_node_that_answers_is_an_address_that_two_have() -> None:
    (finding,) = found(fleet(8, fails(lambda _, other: other == 3, "wrong-peer")))
    assert "two nodes have this address" in finding.message
    assert mesh.tcp_mesh.requires == "sync.identity/address-twice"


def test_a_node_that_came_and_then_said_nothing_more_can_be_named() -> None:
    paths = fleet(4, fails(lambda _, other: other == 3, "silent"), silent=[3])
    (finding,) = found(paths)
    assert finding.nodes == ("n3",)


def test_a_node_that_rank_0_has_lost_is_not_the_networks_fault() -> None:
    paths = fleet(8, fails(lambda one, other: other == 3 or (one, other) == (5, 6), "refused"), silent=[3])
    (finding,) = found(paths, mesh.tcp_mesh, Trouble("10.1.0.4", "reset", "closed the connection", 3))
    assert finding.subject == "n5 -> n6"


def test_what_we_had_no_time_for_is_nobodys_fault_and_no_proof() -> None:
    with pytest.raises(Unlearned, match="14 of 56 paths were not tested"):
        subjects(8, fails(lambda one, other: 1 in (one, other), "late"))


def test_what_was_found_before_the_time_was_over_is_told() -> None:
    def outcome(one: int, other: int, _: str) -> dict[str, str]:
        return {"outcome": "refused" if (one, other) == (5, 6) else "late" if 1 in (one, other) else "ok"}

    paths = fleet(8, outcome)
    assert [finding.subject for finding in found(paths, mesh.tcp_mesh)] == ["n5 -> n6"]


def test_a_node_that_could_listen_nowhere_is_no_healthy_one() -> None:
    paths = fleet(4, lambda *_: None)
    deaf = replace(paths.by_node["n2"], listeners=(), rows=(), unopened={"nccl0": "Cannot assign requested address"})
    with pytest.raises(Unlearned, match="n2 could listen on none of its interfaces"):
        found(Every({**paths.by_node, "n2": deaf}), mesh.tcp_mesh)


def test_a_run_that_had_time_for_no_path_at_all_is_unknown() -> None:
    paths = fleet(3, fails(lambda *_: True, "late"))
    hub = {Gathering: Gathering(2, 1.0)}
    snapshots = [Snapshot(node, {Paths: each, **hub}) for node, each in paths.items()]
    assert {v.status for v in judge(snapshots, [mesh.tcp_mesh, mesh.tcp_mesh_iface], Job())} == {Status.UNKNOWN}


def test_a_node_without_paths_makes_a_mesh_that_works_unknown() -> None:
    paths = fleet(3, lambda *_: None)
    snapshots = [Snapshot(node, {Paths: each} if node != "n2" else {}) for node, each in paths.items()]
    (verdict,) = judge(snapshots, [mesh.tcp_mesh], Job())
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, True)
    assert "n2" in verdict.why


def test_one_node_by_itself_has_no_mesh() -> None:
    assert {v.status for v in judge([Snapshot("n0", {})], [mesh.tcp_mesh, mesh.tcp_mesh_iface], Job())} == {Status.SKIP}


def test_nccls_interface_fails_where_the_default_route_works_is_the_other_check() -> None:
    into_2 = fails(lambda _, other: other == 2)
    assert subjects(8, into_2, TWO_ROLES) == []
    (finding,) = found(fleet(8, into_2, TWO_ROLES), mesh.tcp_mesh_iface)
    assert (finding.nodes, finding.severity) == (("n2",), Severity.FAIL)
    assert "(eth1, filtered)" in finding.message


def test_where_both_roles_fail_it_is_reported_once() -> None:
    both = fleet(8, lambda one, other, _: {"outcome": "filtered"} if 2 in (one, other) else None, TWO_ROLES)
    assert [f.nodes for f in found(both)] == [("n2",)]
    assert found(both, mesh.tcp_mesh_iface) == []


def test_a_default_route_that_is_closed_beside_an_open_interface_of_nccl_is_a_warning() -> None:
    (finding,) = found(fleet(4, fails(lambda _, other: other == 2, role="default"), TWO_ROLES))
    assert (finding.severity, finding.nodes) == (Severity.WARN, ("n2",))


def test_a_node_whose_interfaces_all_fail_is_one_finding_that_names_them() -> None:
    both = fleet(4, lambda one, other, _: {"outcome": "filtered"} if 2 in (one, other) else None, ("nccl0", "nccl1"))
    (finding,) = found(both)
    assert "12 of 12 paths into and out of n2 (eth1 and eth2, filtered)" in finding.message


def test_paths_that_stall_do_connect() -> None:
    assert subjects(4, fails(lambda one, _: one == 1, "stalled-out")) == []


def test_many_suspects_are_reported_up_to_a_number_and_then_counted() -> None:
    odd_pairs = fleet(64, fails(lambda one, other: one % 2 == 0 and other == one + 1))
    findings = found(odd_pairs)
    assert len(findings) == mesh.MOST_SUSPECTS + 1
    assert findings[-1].message == f"{32 - mesh.MOST_SUSPECTS} more nodes or pairs have paths that fail"


def test_a_mesh_of_two_thousand_nodes_is_judged_while_one_waits() -> None:
    steps = sorted({each for power in range(11) for each in (1 << power, 2048 - (1 << power))})
    dead = {7, 500, 1033, 1999}
    paths = fleet(2048, fails(lambda one, other: bool(dead & {one, other})), steps=steps)
    (*findings,) = found(paths)
    assert {f.nodes for f in findings} == {(f"n{rank}",) for rank in dead}


def flooded(paths: Every[Paths], node: str) -> Every[Paths]:
    flood = (Flood("10.0.0.99", 400),)
    return Every({**paths.by_node, node: replace(paths.by_node[node], floods=flood)})


def test_what_ends_before_the_other_side_greets_is_unknown_and_no_nodes_fault() -> None:
    with pytest.raises(Unlearned, match="2 of 6 paths ended before"):
        found(fleet(3, fails(lambda one, other: other == 1, "hung-up")))


@each_row("outcome", ["filtered", "silent", "reset", "stalled-out"])
def test_failures_towards_a_node_that_strangers_flood_are_unknown(outcome: str) -> None:
    paths = flooded(fleet(3, fails(lambda one, other: other == 1, outcome)), "n1")
    with pytest.raises(Unlearned, match=r"launch\.port"):
        found(paths)


def test_a_flood_at_one_node_does_not_hide_a_fault_of_another() -> None:
    paths = flooded(fleet(4, fails(lambda one, other: 2 in (one, other))), "n1")
    assert [finding.subject for finding in found(paths)] == ["n2"]


def test_times_and_rates_of_a_flooded_node_are_not_judged() -> None:
    slow = fleet(4, lambda one, other, role: {"rate_gbps": 0.01, "rtt_s": 0.5} if 1 in (one, other) else None)
    assert [each.path.rate_gbps for each in mesh.tries(flooded(slow, "n1")) if "n1" in each.pair] == [None] * 6
