"""What became of a measurement, on rows made up here: what is named, and what must not be."""

from typing import Any

from ncclprobe.checks.run import pairs as of_pairs
from ncclprobe.checks.run import ranks, traffic
from ncclprobe.checks.run import ranks as of_groups
from ncclprobe.checks.run import rows as row_points
from ncclprobe.checks.run.pairs import NONE
from ncclprobe.checks.run.ranks import LATECOMER, PUNCTUAL, rungs_of
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, SLOW_COPY
from ncclprobe.engine.judge import judge
from ncclprobe.facts.run.samples import (
    Arrivals,
    Attendance,
    Copies,
    Ending,
    Expected,
    ExpectedCopies,
    Groups,
    HeardXids,
    Localised,
    LostRank,
    Participants,
    Rows,
    RunRequest,
    Skipped,
)
from ncclprobe.model import training
from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.measurement import Band, Expectation, Measurement, Mismatch, Skew, Xids
from ncclprobe.model.pair_results import Aside, Blamed, Localisation, LostPair, WrongBytes
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Job
from ncclprobe.model.training import Grid
from ncclprobe.model.values import replace
from tests.checks.cases.run_rates import _BAD_NIC, _LOOSE, _SLOW_INSIDE
from tests.each_row import each_row

FAILED = replace(ROW, expectation=BAND, interval_us=(19.8, 20.2))
NOISE = replace(ROW, expectation=BAND, interval_us=(15.0, 25.0))


ASKED = RunRequest(ops=("all_reduce",), sizes=(1 << 20,))
EIGHT = Participants("torchrun", 8, ("n0",) * 8, "nccl")


def said(check: Check, *facts: Any, asked: RunRequest = ASKED) -> Verdict:
    """The verdict of `check` over a run of these facts, as the engine gives it."""
    run = {type(fact): fact for fact in (asked, EIGHT, Expected(), Ending(), Skipped(), *facts)}
    (verdict,) = judge((), (check,), Job(), run)
    return verdict


LOOSE = replace(BAND, basis="model", worst="warn", known="off by 60% in the median")


def banded(*rows: Measurement) -> Verdict:
    """The verdict over `rows`, as the engine gives it."""
    return said(row_points.bandwidth, Rows(rows))


@each_row(
    ("found", "words"),
    [
        (Arrivals(4, (1, 2), 2.0, 60.0), "ranks 1-2 had not joined after 2 s, of the 60 s that joining may take"),
        (Arrivals(4, (1,), 99.0, 60.0, running=(1,)), "after 99 s; the process of rank 1 is running"),
    ],
)
def test_a_rank_that_may_still_come_is_unknown_and_not_lost(found: Arrivals, words: str) -> None:
    verdict = said(ranks.init, found)
    assert (verdict.status, verdict.required, verdict.findings) == (Status.UNKNOWN, True, ())
    assert words in verdict.why
    assert "raise --timeout" in verdict.why


@each_row(("of_gpus", "status"), [((), Status.UNKNOWN), (((0, "13"),), Status.UNKNOWN), (((0, "79"),), Status.FAIL)])
def test_a_node_on_which_nvml_was_not_heard_is_not_well(of_gpus: tuple[tuple[int, str], ...], status: Status) -> None:
    assert said(ranks.xids, HeardXids((Xids("n0", of_gpus),)), ranks.FOUR).status is status
    both = HeardXids((Xids("n0", of_gpus), Xids("n1")))
    assert said(ranks.xids, both, ranks.FOUR).status is (Status.PASS if status is Status.UNKNOWN else status)


@each_row(("times", "words"), [(63, "reported 63 times while"), (64, "reported 64 times or more while")])
def test_of_a_storm_of_xids_no_number_is_made_up(times: int, words: str) -> None:
    verdict = said(ranks.xids, HeardXids((Xids("n0", ((0, "79"),) * times), Xids("n1"))), ranks.FOUR)
    assert words in verdict.findings[0].message


def test_an_nvlink_error_that_may_have_been_fatal_warns() -> None:
    verdict = said(ranks.xids, HeardXids((Xids("n0", ((0, "149"),)), Xids("n1"))), ranks.FOUR)
    assert verdict.status is Status.WARN
    assert "NETIR error, fatal or not" in verdict.findings[0].message


def test_noise_is_never_a_pass_and_says_which_row_and_how_wide() -> None:
    verdict = banded(replace(ROW, busbw_GBps=98.0, expectation=BAND), NOISE, NOISE)
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, True)
    assert "too noisy to judge: all_reduce 1 MiB, at least 95 expected" in verdict.why
    assert "median between 15.0 and 25.0 us" in verdict.why
    assert "and 1 more rows" in verdict.why


def test_a_failure_beside_noise_is_a_failure() -> None:
    assert banded(NOISE, FAILED).status is Status.FAIL


def test_one_batch_decides_nothing() -> None:
    verdict = banded(replace(NOISE, interval_us=None))
    assert verdict.status is Status.UNKNOWN
    assert "too few for an interval" in verdict.why


def found(row: Measurement) -> Finding:
    (finding,) = row_points.bandwidth.run(ASKED, Expected(), Rows((row,)))
    return finding


def test_late_ranks_are_not_reported_as_a_slow_link() -> None:
    """The bytes take 10 of 20 us, which is 184 GB/s, far above the band; the ranks come 500 us apart."""
    skew = Skew(8, 4000.0, 10.0, 500.0, (0.0,) * 7 + (500.0,), (0,) * 8)
    finding = found(replace(FAILED, skew=skew))
    assert "once all ranks have joined it takes 10.0 us, which is 183.6 GB/s" in finding.message
    assert "500.0 us apart, rank 7 last" in finding.message
    assert finding.remedy.startswith("check the hosts before the links")


@each_row(
    "skew",
    [
        None,
        Skew(8, 4000.0, 40.0, 500.0, (0.0,) * 7 + (500.0,), (0,) * 8),  # the transfer alone is too slow as well
        Skew(8, 4000.0, 10.0, 1.0, (0.0,) * 8, (0,) * 8),  # nobody is late
    ],
)
def test_a_slow_transfer_is_not_excused(skew: Skew | None) -> None:
    finding = found(replace(FAILED, skew=skew))
    assert "but once" not in finding.message
    assert finding.remedy == ""


def test_a_host_that_hands_calls_over_slowly_is_said() -> None:
    finding = found(replace(FAILED, launch_bound=True, issue_us=18.0))
    assert "launch-bound" in finding.message


def test_wrong_data_is_shown_with_rank_offset_values_and_bits() -> None:
    wrong = tuple(Mismatch(rank, 9, None, "3.0", "nan", "0x40400000", "0x7fc00000") for rank in range(5))
    (finding,) = row_points.data.run(ASKED, EIGHT, Skipped(), Rows((replace(ROW, wrong=5, mismatches=wrong),)))
    assert "rank 0, element 9, of the reduction: nan (0x7fc00000) instead of 3.0 (0x40400000)" in finding.seen
    assert finding.seen.count("instead of") == 3


def named(*skews: Skew) -> list[str]:
    rows = tuple(replace(ROW, skew=skew) for skew in skews)
    return [finding.subject for finding in ranks.straggler.run(Rows(rows), EIGHT)]


def test_a_straggler_is_named_with_its_host_and_blamed_on_it() -> None:
    (finding,) = ranks.straggler.run(*rungs_of(LATECOMER))
    assert finding.message.startswith("on host n1 is late in collectives by 5.0 ms on average")
    assert finding.blame == "node"


def test_lateness_adds_up_over_rows() -> None:
    rarely = replace(PUNCTUAL, late_us=(0.0,) * 7 + (3000.0,), late_rounds=(0,) * 7 + (1,))
    assert named(rarely) == []
    assert named(rarely, rarely, rarely) == ["rank 7"]
    assert named(rarely, *[PUNCTUAL] * 20) == []


def test_one_long_pause_is_no_straggler() -> None:
    assert named(replace(PUNCTUAL, late_us=(9000.0,) + (0.0,) * 7, late_rounds=(1,) + (0,) * 7)) == []


def test_two_ranks_of_eight_may_both_be_late() -> None:
    both = replace(PUNCTUAL, late_us=(0.0,) * 6 + (5000.0,) * 2, late_rounds=(0,) * 6 + (4,) * 2)
    assert named(both) == ["rank 6", "rank 7"]


def test_of_two_ranks_the_late_one_is_named_and_not_its_peer() -> None:
    skew = Skew(8, 4000.0, 100.0, 5000.0, (5000.0, 100.0), (6, 0))
    row, two = replace(ROW, ranks=2, skew=skew), Participants("environment", 2, ("a", "b"))
    assert [f.subject for f in ranks.straggler.run(Rows((row,)), two)] == ["rank 0"]


PAIRS = RunRequest(what=("pairs",), require_judged=True)


def said_of(found: Localisation, *bands: Band) -> list[Finding]:
    return list(of_pairs.pairs.run(Localised(found), PAIRS, Expected(bands)))


def test_pairs_far_below_a_loosely_known_expectation_are_noted_and_fail_nothing() -> None:
    slow = replace(NONE, level_GBps={"one way": 20.0, "both ways at once": 60.0, "inside a node, one way": 300.0})
    [finding] = said_of(slow, _LOOSE)
    assert (finding.severity, finding.subject) == (Severity.NOTE, "all pairs")
    assert "reaches 20 GB/s one way, and 46 GB/s are expected: one NIC of 50 GB/s" in finding.message
    assert [source.text for source in finding.evidence] == ["1 source"]
    assert said(of_pairs.pairs, Localised(slow), Expected((_LOOSE,)), asked=PAIRS).status is Status.PASS
    assert said_of(slow, replace(_LOOSE, op="sendrecv")) == []


def test_of_two_ranks_neither_can_be_said_to_be_slow_where_that_must_be_judged() -> None:
    two = Localised(replace(NONE, nodes=2))
    verdict = said(of_pairs.pairs, two, Expected(), asked=PAIRS)
    why = "with two nodes either may be the slow one, so measure at least three nodes"
    assert (verdict.status, verdict.why) == (Status.UNKNOWN, why)
    assert said(of_pairs.pairs, two, Expected(), asked=RunRequest(what=("pairs",))).status is Status.PASS


def test_a_node_with_some_bad_pairs_is_not_said_to_be_slow_with_all() -> None:
    several = Blamed("several pairs of n3", "node", ("n3",), None, "both", 0.6, 0.999, 24, 24, 8, 4, ("n3",), True)
    [finding] = said_of(replace(NONE, kind="node", culprits=(several,)))
    assert finding.message.startswith("what this node exchanges with 4 of the others is slow, at 60 %")


CHECK = "on n3, check rate, width and errors with "


def test_a_node_that_is_slow_alone_is_named_before_its_pairs_which_say_so_too() -> None:
    node = replace(_BAD_NIC, where="n2", kind="node", nodes=("n2",), rail=None, hosts=("n2",))
    inside, pair = said_of(replace(NONE, kind="node", culprits=(node,), intra_node=(_SLOW_INSIDE,)))
    assert (inside.subject, inside.blame, inside.nodes, inside.severity.value) == ("inside n2", "node", ("n2",), "fail")
    assert "30 % of its peers' bandwidth" in inside.message
    assert pair.message.endswith("the node is also slow inside, which may be the cause, so look there first")
    (other,) = said_of(replace(NONE, kind="rail", culprits=(_BAD_NIC,)))
    assert other.remedy.startswith(f"{CHECK}`ibstatus mlx5_1`; `rdma statistic show link mlx5_1/1`")
    (other,) = said_of(replace(NONE, kind="rail", culprits=(replace(_BAD_NIC, where="out of n3 rail 1 (eth1)"),)))
    assert other.remedy.startswith(f"{CHECK}`ethtool eth1`; `ip -s link show eth1`")
    assert "inside" not in other.message


def test_a_node_that_lost_little_inside_only_warns() -> None:
    (finding,) = said_of(replace(NONE, intra_node=(replace(_SLOW_INSIDE, ratio=0.7),)))
    assert finding.severity.value == "warn"


def test_a_culprit_of_a_single_node_is_a_rank_and_its_node_is_the_host() -> None:
    rank = replace(_BAD_NIC, where="rank 3", kind="node", nodes=("rank 3",), rail=None, hosts=("h",))
    (finding,) = said_of(replace(NONE, kind="node", culprits=(rank,)))
    assert (finding.subject, finding.nodes) == ("rank 3", ("h",))


def test_wrong_bytes_of_a_pair_fail_once_with_ranks_offset_and_bits() -> None:
    wrong = WrongBytes(0, 4, "n0", "n1 (mlx5_1)", 12, Mismatch(4, 1023, 0, "7", "6", "0x07", "0x06"))
    (finding,) = said_of(replace(NONE, nodes=2, wrong=(wrong, replace(wrong, wrong=9))))
    assert (finding.subject, finding.severity.value) == ("n0 to n1 (mlx5_1)", "fail")
    assert finding.seen == "rank 0 to rank 4, byte 1023: 6 (0x06) instead of 7 (0x07)"
    assert finding.message.startswith("12 bytes")


def test_a_lost_pair_says_who_was_set_aside() -> None:
    aside = (Aside(2, "n2 (eth0)", "gone", gone=True),)
    (finding,) = said_of(replace(NONE, lost=(LostPair("n0 (eth0)", "n2 (eth0)", "reset"),) * 2, excluded_ranks=aside))
    assert finding.message.endswith("set aside: n2 (eth0)")


@each_row("found", [replace(NONE, complete=False), replace(NONE, nodes=2)], ids=["cut short", "two nodes"])
def test_what_cannot_be_decided_is_unknown_and_no_pass(found: Localisation) -> None:
    assert said(of_pairs.pairs, Localised(found), asked=PAIRS).status.value == "unknown"


def test_of_two_nodes_pairs_are_numbers_and_enough_where_no_verdict_must_be() -> None:
    two = Localised(replace(NONE, nodes=2))
    assert said(of_pairs.pairs, two, asked=RunRequest(what=("pairs",))).status is Status.PASS


def test_a_lost_rank_and_a_straggler_are_found_on_their_own_node() -> None:
    (lost,) = ranks.rank_lost.run(
        Attendance(4, (LostRank(2, "node7", "timing", "its heartbeat stopped"),)), Ending("ranks were lost")
    )
    assert lost.nodes == ("node7",)
    (late,) = ranks.straggler.run(*rungs_of(LATECOMER))
    assert late.nodes == ("n1",)


SHORT = (
    "it failed (rank 0: allocating 2 x 1 GiB: out of memory: 1.00 GiB were asked for, and of the 80 GiB of GPU 0 0 are "
    "free)"
)


@each_row(
    ("lost", "short", "others"),
    [
        ((SHORT, "it failed (rank 1: all_reduce: Connection closed by peer)"), ["rank 0"], []),
        ((SHORT, SHORT), ["rank 0", "rank 1"], []),
        ((SHORT, "its heartbeat stopped 5 s ago"), ["rank 0"], ["rank 1"]),
        (("it failed (rank 0: reset)", "its heartbeat stopped 5 s ago"), [], ["rank 0", "rank 1"]),
    ],
)
def test_a_rank_without_memory_is_not_lost_and_what_fails_because_it_left_is_silent(
    lost: tuple[str, ...], short: list[str], others: list[str]
) -> None:
    left = Attendance(2, tuple(LostRank(rank, "n0", "allocating 2 x 1 GiB", why) for rank, why in enumerate(lost)))
    found = list(ranks.out_of_memory.run(left))
    assert [finding.subject for finding in found] == short
    assert [finding.subject for finding in ranks.rank_lost.run(left, Ending("lost"))] == others
    for finding in found:
        assert finding.message.endswith("1.00 GiB were asked for, and of the 80 GiB of GPU 0 0 are free")


def test_a_tensor_parallel_group_over_nodes_warns_and_a_pipeline_over_nodes_is_as_meant() -> None:
    row = of_groups.WITHIN
    advice = training.advice(Grid(tp=2), ["a", "b"])
    [finding] = of_groups.groups.run(Groups((replace(row, advice=advice), replace(row, kind="pp", crossing=8))))
    assert (finding.subject, finding.severity.value, finding.blame) == ("tp groups", "warn", "job")
    assert "1 of 1 tensor-parallel groups cross nodes" in finding.message


def test_ranks_that_are_slow_by_themselves_say_nothing_of_the_network() -> None:
    stuck = Attendance(2, stalled="allocating 2 x 4 GiB")
    verdict = said(ranks.rank_lost, stuck)
    assert verdict.status.value == "unknown"
    assert "no data was in transit" in verdict.why


def test_a_row_below_a_loosely_known_threshold_warns_and_says_that_the_table_may_be_wrong() -> None:
    verdict = banded(replace(ROW, expectation=LOOSE, status="warn", busbw_GBps=10.0))
    (finding,) = verdict.findings
    assert (verdict.status, finding.severity.value) == (Status.WARN, "warn")
    assert "the table may be wrong" in finding.message
    assert "off by 60% in the median" in finding.seen


def test_a_slow_copy_over_nvlink_sends_nobody_to_the_pcie_slot() -> None:
    links = Expectation(420.0, 390.0, "GB/s", "datasheet", "18 NVLinks of 25 GB/s to one peer", "…")
    slow = replace(SLOW_COPY, kind="d2d", peer="GPU4", GBps=200.0, min_GBps=199.0, max_GBps=201.0)
    asked = RunRequest(what=("copies",))
    (over_nvlink,) = traffic.copies.run(Copies((slow,)), ExpectedCopies({"n0": {"d2d": links}}), asked)
    (over_pcie,) = traffic.copies.run(Copies((SLOW_COPY,)), BY_SLOT, asked)
    assert "nvidia-smi nvlink -s" in over_nvlink.remedy
    assert over_pcie.remedy == ""  # the check's own
