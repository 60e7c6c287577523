"""Faults of rails, planted in fleets of several sizes: each named with its direction, and no other node blamed.

The fleets answer as :mod:`fake_rails` computes; the search, the retests and the judging are the real ones.
"""

from typing import Any

from fake_rails import FakeNodes, names, played, verdicts, wrong

from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.findings import Status
from ncclprobe.model.rails import RailFailure
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Every, Job, Snapshot
from ncclprobe.model.units import certain
from ncclprobe.model.values import replace
from tests.each_row import each_row

BAD = End("n1", 2)
OTHERS = {End(f"n{node}", rail): {"link_layer": "InfiniBand", "gid_type": ""} for node in range(8) for rail in range(4)}
MEMLOCK = RailFailure(step="open", kind="refused", text="Cannot allocate memory", call="ibv_reg_mr_iova2", errno=12)
WHERE = "n1 rail 2 (mlx5_2:1)"
V1 = {"gid_type": "IB/RoCE v1"}


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "dead": ({"carries": only(BAD)}, "rail.dead", WHERE),
    "whole node": ({"carries": only(*(End("n1", rail) for rail in range(4)))}, "rail.dead", "n1"),
    "into": ({"carries": only(BAD, out=False)}, "rail.dead", WHERE),
    "out of": ({"carries": only(BAD, into=False)}, "rail.dead", WHERE),
    "link-local GID": (
        {"carries": only(BAD), "addresses": {BAD: {"gid": "fe80" + "0" * 27 + "1", "gid_index": 0}}},
        "rail.dead", WHERE,
    ),
    "RoCE v1": ({"carries": only(BAD), "addresses": {BAD: V1}}, "rail.dead", WHERE),
    "empty GID": ({"carries": only(BAD), "addresses": {BAD: {"gid": "0" * 32}}}, "rail.dead", WHERE),
    "P_Key": (
        {"carries": only(BAD), "addresses": {**OTHERS, BAD: {**OTHERS[BAD], "pkey": 0x8005}}},
        "rail.dead", WHERE,
    ),
    "MTU of a switch": ({"small_only": (BAD,)}, "rail.dead", WHERE),
    "memlock": ({"local": {BAD: MEMLOCK}}, "rail.unusable", WHERE),
    "slow": ({"carries": only(BAD, share=0.4)}, "rail.slow", WHERE),
    "slow out": ({"carries": only(BAD, share=0.7, into=False)}, "rail.slow", f"out of {WHERE}"),
    "late": ({"latency_us": {BAD: 30.0}}, "rail.slow", WHERE),
    "wrong bytes": ({"wrong": {BAD: 8}}, "rail.data", f"into {WHERE}"),
    "GPUDirect": (
        {"gpus": True, "carries": lambda src, dst, gpu: 0.3 if gpu and BAD in (src, dst) else 1.0},
        "rail.gpu", WHERE,
    ),
}  # fmt: skip


@each_row("fault", FAULTS)
def test_a_planted_fault_is_named_alone(fault: str) -> None:
    changes, check, subject = FAULTS[fault]
    nodes = 7 if fault in ("slow", "slow out") else 4  # a search with retests has more to choose from
    found = verdicts(played(World(names(nodes), 4, **changes)))
    told = list(wrong(found))
    assert [(each, where) for each, where, _ in told] == [(check, subject)]
    assert told[0][2] in ((), ("n1",))
    assert not [each.key for each in found.values() if each.status is Status.UNKNOWN]


@each_row("nodes", [2, 3, 4, 20])
def test_a_healthy_fleet_is_well(nodes: int) -> None:
    found = verdicts(played(World(names(nodes), 4)))
    assert not list(wrong(found))
    assert {verdict.status for verdict in found.values()} <= {Status.PASS, Status.SKIP}


@each_row("fault", ["slow"])
def test_among_20_nodes_that_do_not_all_meet_a_fault_is_named_too(fault: str) -> None:
    changes, check, subject = FAULTS[fault]
    found = verdicts(played(World(names(20), 4, **changes)))
    assert [(each, where) for each, where, _ in wrong(found)] == [(check, subject)]


def test_of_two_nodes_a_dead_rail_is_between_them_and_a_wrong_gid_is_its_ends() -> None:
    found = verdicts(played(World(names(2), 4, **FAULTS["dead"][0])))
    assert [where for _, where, _ in wrong(found)] == ["n0 rail 2 <-> n1 rail 2"]
    found = verdicts(played(World(names(2), 4, **FAULTS["link-local GID"][0])))
    (finding,) = found["rail.dead"].findings
    assert (finding.subject, finding.nodes) == (WHERE, ("n1",))
    assert "GID 0 of mlx5_2 is link-local" in finding.message
    both = {End(node, 2): {"gid": "fe80" + "0" * 27 + "1", "gid_index": 0} for node in names(2)}
    found = verdicts(played(World(names(2), 4, carries=only(BAD), addresses=both)))
    assert [where for _, where, _ in wrong(found)] == ["n0 rail 2 <-> n1 rail 2"]


def test_an_index_without_a_gid_is_the_jobs_fault_and_no_broken_port() -> None:
    missing = RailFailure(step="open", kind="missing", text="the GID at index 5 is empty", call="ibv_query_gid")
    rails = played(World(names(2), 4, local={BAD: missing}))
    assert [*wrong(verdicts(rails))] == [("rail.dead", WHERE, ("n1",))]
    settings = Settings({"NCCL_IB_GID_INDEX": Setting("NCCL_IB_GID_INDEX", "5", "environment")})
    (finding,) = verdicts(rails, settings)["rail.dead"].findings
    assert finding.message == "the GID at index 5 is empty; NCCL_IB_GID_INDEX=5 (environment)"
    assert finding.blame == "job"


def test_a_wrong_gid_that_a_setting_chose_is_the_jobs_fault() -> None:
    settings = Settings({"NCCL_IB_GID_INDEX": Setting("NCCL_IB_GID_INDEX", "0", "environment")})
    rails = played(World(names(4), 4, **FAULTS["link-local GID"][0]))
    snapshots = [Snapshot(node, {Rails: each, Settings: settings}) for node, each in rails.items()]
    wanted = [check for check in every_check() if check.key == "rail.dead"]
    (finding,) = judge(snapshots, wanted, Job())[0].findings
    assert finding.blame == "job"
    assert "NCCL_IB_GID_INDEX=0 (environment)" in finding.message
    assert finding.remedy.startswith("on n1, unset NCCL_IB_GID_INDEX")
    unset = verdicts(rails)["rail.dead"].findings[0]
    assert unset.blame == "node"
    assert unset.remedy.startswith("on n1, run `show_gids mlx5_2`. NCCL uses")
    assert "NCCL_IB_GID_INDEX" not in unset.remedy


def test_no_measurement_is_sure_to_a_hundred_percent() -> None:
    assert [certain(share) for share in (1.0, 0.9996, 0.9994, 0.5)] == [
        "confidence > 99.9 %",
        "confidence > 99.9 %",
        "confidence 99.9 %",
        "confidence 50.0 %",
    ]


def test_both_ends_choices_stand_beside_each_other() -> None:
    found = verdicts(played(World(names(4), 4, **FAULTS["RoCE v1"][0])))
    one, other = (each.source for each in found["rail.dead"].findings[0].evidence)
    assert "n1 mlx5_2:1 GID 3 ::ffff:10.2.0.2 (IB/RoCE v1), P_Key 0xffff, MTU 4096" in one
    assert "GID 3 ::ffff:10.2.0." in other
    assert "(RoCE v2)" in other


def test_two_faults_at_once_are_two_findings() -> None:
    def carries(src: End, dst: End, gpu: bool) -> float:
        if End("n2", 0) in (src, dst):
            return 0.0
        return 0.4 if BAD in (src, dst) else 1.0

    found = verdicts(played(World(names(5), 4, carries=carries)))
    assert {(check, where) for check, where, _ in wrong(found)} == {
        ("rail.dead", "n2 rail 0 (mlx5_0:1)"),
        ("rail.slow", "n1 rail 2 (mlx5_2:1)"),
    }


def test_a_way_without_a_way_back_is_dead_and_not_slow_where_no_error_is_told() -> None:
    """As soft-RoCE does: what is lost is sent again until the time is up."""

    def late(row: RailRow) -> RailRow:
        failures = tuple(replace(each, kind="late", status=0) for each in row.outcome.failures)
        return replace(row, outcome=replace(row.outcome, failures=failures))

    seen = rails_of(World(names(2), carries=only(End("n1", 1), out=False)))
    found = verdicts(Every({node: replace(each, rows=tuple(map(late, each.rows))) for node, each in seen.items()}))
    assert [*wrong(found)] == [("rail.dead", "n0 rail 1 -> n1 rail 1", ("n0", "n1"))]
    assert found["rail.untried"].status is Status.PASS


def test_uplinks_of_one_rail_are_told_from_the_whole_rail() -> None:
    left = names(3)

    def carries(src: End, dst: End, gpu: bool) -> float:
        return 0.4 if src.rail == 1 and (src.node in left) != (dst.node in left) else 1.0

    assert [*wrong(verdicts(played(World(names(8), 4, carries=carries))))] == [
        ("rail.slow", "n[0-2] with the others rail 1", ())
    ]


def test_a_rail_of_all_nodes_that_is_dead_blames_no_node() -> None:
    plane = World(names(4), 4, carries=lambda src, dst, gpu: float(src.rail != 1))
    (told,) = wrong(verdicts(played(plane)))
    assert told == ("rail.dead", "all nodes rail 1", ())


def test_rails_that_were_not_asked_for_are_skipped() -> None:
    wanted = [check for check in every_check() if check.key.startswith("rail.")]
    assert {verdict.status for verdict in judge([Snapshot("n0", {})], wanted, Job())} == {Status.SKIP}


def test_beside_other_traffic_nothing_is_tried_without_force() -> None:
    world = World(names(3), 2)
    nodes = FakeNodes(world, moved_gbps={"mlx5_1:1": 90.0})
    refused = played(world, nodes)
    assert nodes.waves == []
    found = verdicts(refused)
    assert found["rail.dead"].status is Status.UNKNOWN
    assert "mlx5_1:1 of n0 carried 90 Gb/s" in found["rail.dead"].why
    forced = played(world, FakeNodes(world, moved_gbps={"mlx5_1:1": 90.0}), force=True)
    assert verdicts(forced)["rail.dead"].status is Status.PASS


def test_a_node_that_never_answers_costs_one_wave_and_no_partner_is_blamed() -> None:
    world = World(names(5), 2)
    rails = played(world, FakeNodes(world, silent=(3,)))
    assert "n3" not in rails.by_node
    assert list(wrong(verdicts(rails))) == [("rail.untried", "n3", ("n3",))]


def test_a_node_that_stops_answering_is_named_and_its_partners_are_not() -> None:
    world = World(names(5), 2)
    nodes = FakeNodes(world, silent=(3,), from_start=False)
    assert list(wrong(verdicts(played(world, nodes)))) == [("rail.untried", "n3", ("n3",))]


def test_of_two_nodes_the_one_that_stops_answering_is_named_though_no_rail_was_tried() -> None:
    world = World(names(2), 2)
    found = verdicts(played(world, FakeNodes(world, silent=(1,), from_start=False)))
    assert [*wrong(found)] == [("rail.untried", "n1", ("n1",))]


def test_gids_that_are_no_numbers_are_none_and_break_nothing() -> None:
    rails = rails_of(World(names(3), 2, carries=only(End("n1", 1)), addresses={End("n1", 1): {"gid": "zz"}}))
    found = verdicts(rails)
    assert [check for check, _, _ in wrong(found)] == ["rail.dead"]


def test_a_run_that_ended_early_is_unknown_and_says_so() -> None:
    rails = Every({node: replace(each, planned=99) for node, each in rails_of(World(names(3), 2)).items()})
    verdict = verdicts(rails)["rail.untried"]
    assert verdict.status is Status.UNKNOWN
    assert "n0 8 of 99" in verdict.why


def test_a_run_without_time_for_a_single_wave_is_unknown() -> None:
    verdict = verdicts(played(World(names(3), 2), seconds=1.0))["rail.dead"]
    assert verdict.status is Status.UNKNOWN
    assert "the run ran out of time" in verdict.why


def test_wrong_bytes_of_one_partner_are_not_blamed_on_the_others() -> None:
    found = verdicts(played(World(names(4), 2, wrong={End("n2", 0): 3})))
    assert [(where, nodes) for _, where, nodes in wrong(found)] == [("into n2 rail 0 (mlx5_0:1)", ("n2",))]


def test_ways_that_came_to_no_end_in_time_are_not_known_to_be_well() -> None:
    """As on emulated soft-RoCE: what was written arrived, but was not acknowledged in time."""
    failure = RailFailure(step="write", kind="late", text="15 of 15 RDMA writes are not acknowledged", direction="out")

    def late(row: RailRow) -> RailRow:
        if row.rail or not row.leads:
            return row
        rest = tuple(stream for stream in row.outcome.streams if stream.direction != "out")
        return replace(row, outcome=replace(row.outcome, streams=rest, failures=(failure,)))

    world = rails_of(World())
    slow = Every({node: replace(each, rows=tuple(map(late, each.rows))) for node, each in world.items()})
    verdict = verdicts(slow)["rail.untried"]
    assert (verdict.status, verdict.findings) == (Status.UNKNOWN, ())
    assert "carried data, but not all of it in time: n0 to n1 on rail 0" in verdict.why


def test_efa_devices_that_nothing_can_try_are_unknown_and_the_reason_says_what_is_missing() -> None:
    why, without = "EFA (rdmap0s6) has no reliable connections, so it is not tested", World(names(4), rails=0)
    found = verdicts(played(without, FakeNodes(without, why=why)))
    assert found["rail.untried"].status is Status.UNKNOWN
    assert why in found["rail.untried"].why
    assert not [each for each in found.values() if each.status is Status.PASS]


def test_ends_that_never_met_are_unknown_and_not_well() -> None:
    refused = RailFailure(step="open", kind="channel", text="failed to connect: No route to host")
    found = verdicts(rails_of(World(names(4), rails=4, local={BAD: refused})))
    assert not list(wrong(found))
    assert found["rail.untried"].status is Status.UNKNOWN
    assert "No route to host" in found["rail.untried"].why
