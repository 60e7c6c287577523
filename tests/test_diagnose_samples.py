"""What follows from samples of a run is made anew for each report: who is slow, which copies are."""

from typing import Any

import pytest
from test_diagnose import log, machine, measured, of_run, report_on

from ncclprobe.commands.bandwidth import parse
from ncclprobe.engine.diagnose import MEASURED, ask, diagnose
from ncclprobe.engine.measured import expecting, rejudged, run_facts
from ncclprobe.expect import bands
from ncclprobe.facts.run.samples import Localised, Participants, RunRequest
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.findings import Status
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.snapshot import Job
from ncclprobe.model.traffic import CopyRow
from tests.each_row import each_row


def pair(src: int, dst: int, GBps: float, **more: Any) -> PairRow:
    given: dict[str, Any] = {"nbytes": 1 << 26, "latency_nbytes": 8, "latency_us": 9.0, "time_us": 1.0, **more}
    ends = {"src_end": f"n{src}", "dst_end": f"n{dst}"}
    return PairRow(src=src, dst=dst, **ends, GBps=GBps, min_us=1.0, max_us=1.0, samples_us=(1.0,) * 5, **given)


def run_of_pairs(*more: tuple[str, Any], slow: float = 5.0, steps: int = 3) -> RunLog:
    """Four nodes of one rank: pairs of 20 GB/s but for those of node 3, `slow`, in the round-robin and its retests."""
    who = Participants("self", 4, ("n0", "n1", "n2", "n3"), "nccl", nnodes=4)
    ways = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    pairs = [pair(src, dst, slow if 3 in (src, dst) else 20.0, step=step) for step in range(steps) for src, dst in ways]
    begun = [("asked", RunRequest(what=("pairs",))), ("participants", who), ("arrivals", {"expected": 4})]
    return log(*begun, ("pair_ranks", {"hosts": who.hosts}), *(("pair", each) for each in pairs), *more)


def test_who_is_slow_is_found_from_the_pairs_whenever_a_run_is_judged() -> None:
    run = run_of_pairs(("pairs_complete", True))
    run.close()
    report = report_on(run)
    assert report.localisation
    assert [each.where for each in report.localisation.culprits] == ["n3"]
    assert of_run(report)["run.pairs"] == "fail"
    assert run_facts(run).keys().isdisjoint({Localised})


def test_a_new_expectation_judges_the_pairs_of_a_kept_run_too() -> None:
    run = run_of_pairs(("pairs_complete", True), slow=20.0)
    run.close()
    (band,) = bands.from_toml(
        '[[expect]]\nop = "sendrecv"\nmin_bytes = 1\nbusbw_GBps = 50\nsource = "s"\nwhy = "w"\n', "new.toml"
    )
    facts = expecting(run_facts(run), [band], "new.toml")
    again = diagnose(ask(parse(()).judging, ("doctor",), Job(), MEASURED), (), facts)
    before = report_on(run)
    assert before.localisation
    assert again.localisation
    assert (before.localisation.all_slow, again.localisation.all_slow) == (False, True)
    assert of_run(again)["run.pairs"] == "warn"


def test_pairs_of_a_run_that_was_cut_short_are_judged_as_far_as_they_came() -> None:
    report = report_on(run_of_pairs(slow=20.0, steps=1))
    assert report.localisation
    assert not report.localisation.complete
    assert of_run(report)["run.pairs"] == "unknown"


@each_row("row", [pair(0, 7, 20.0), pair(0, 1, -3.0), pair(2, 2, 20.0), pair(0, 7, 20.0, inside=True)])
def test_pairs_that_no_run_can_have_measured_are_unknown_and_break_nothing(row: PairRow) -> None:
    report = report_on(run_of_pairs(("pair", row), ("pairs_complete", True)))
    (found,) = [v for v in report.checks if v.id == "run.pairs"]
    assert found.status is Status.UNKNOWN
    assert "pairs: " in found.why


def test_copies_are_judged_by_what_the_run_expected_and_again_by_what_the_node_should_reach() -> None:
    rates = {"GBps": 12.0, "min_GBps": 12.0, "max_GBps": 12.0}
    copy = CopyRow(node="hgx", rank=0, kind="h2d", device="GPU0", near=True, nbytes=1, samples=7, **rates)
    low = {"nodes": {"hgx": {"host": Expectation(11.0, 10.0, "GB/s", "datasheet", "a slot", "s")}}}
    run = measured(("copies", [copy]), ("expected_copies", low), what=("collectives", "copies"))
    assert of_run(report_on(run, machine()))["run.copies"] == "pass"
    facts = rejudged(run_facts(run), [machine()])
    again = diagnose(ask(parse(()).judging, ("doctor",), Job(), MEASURED), [machine()], facts)
    assert of_run(again)["run.copies"] == "fail"
    assert [(row.status, row.threshold_GBps) for row in again.copies] == [("fail", pytest.approx(49.8, abs=0.1))]
