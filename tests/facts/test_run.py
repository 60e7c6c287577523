"""Facts of a run, from its samples: each kind is read as it was written, and what is none is said to be none."""

import json
from typing import Any

import msgspec

from ncclprobe.checks.run.ranks import NODE_RUNG, ONE, WITHIN
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, SLOW_COPY
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run import samples as of
from ncclprobe.facts.run.samples import Arrivals, Attendance, Ending, MeasuredPairs, Participants, RunRequest
from ncclprobe.host.run_log import CUT_SHORT, RunLog
from ncclprobe.model.measurement import Band, Disturbance, Fingerprint, FirstCall, SkippedRow, Xids
from ncclprobe.model.pair_results import Aside, LostTransfer, Nic, PairRow, RankNics
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import StepRow
from ncclprobe.model.values import replace
from tests.checks.cases.run_rates import _RIGHT
from tests.each_row import each_row, some

ASKED = RunRequest(ops=("all_reduce",), sizes=(8,), steps=("ddp",))
LOST = of.LostRank(1, "h1", "timing", "gone")
CRASHED, ZERO = replace(LOST, why="it was ended by SIGSEGV"), replace(LOST, rank=0)
WHO = Participants("torchrun", 2, ("h0", "h1"), "nccl", {"nccl": "2.28.9"}, 2, "", (0, 1))
COST = FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1)
PRINT = Fingerprint({"gpu": "x"}, "abc", {"nccl": "2"})
LEFT_OUT = SkippedRow("reduce", None, "refused", "no such call")
BANDS = (Band("all_reduce", 1, 2, BAND), Band("all_reduce", 3, 4, BAND))
BUSY, HEARD = Disturbance("processors busy", 0.5), Xids("n0", ((3, "74"),))
PAIR = PairRow(src=0, dst=1, src_end="a", dst_end="b", nbytes=4, latency_nbytes=8, latency_us=1.5, GBps=2.0,
               time_us=1.0, min_us=0.5, max_us=2.0, samples_us=(1.0,))  # fmt: skip
TWO = RankNics(("n0", "n1"), (Nic("mlx5_0", 0), None))
GONE, ASIDE = LostTransfer(0, 1, "timed out", 1, True), Aside(1, "n1", "timed out", True)
STEP = StepRow(strategy="ddp", ranks=2, params=1, layers=1, dtype="float32", micro_batches=1,
               overlap=True, calls=1, call_bytes=4, steps=1, step_us=1.0, step_min_us=1.0, step_max_us=1.0,
               compute_us=1.0, calls_us=1.0, exposed_us=0.0, efficiency=1.0)  # fmt: skip
PROTO = of.DifferingSetting("NCCL_PROTO", (("not set", (0,)), ("LL", (1,))))
CASES: list[tuple[list[tuple[str, Any]], Any]] = [
    ([("asked", ASKED)], ASKED),
    ([("skipped", LEFT_OUT)], of.Skipped((LEFT_OUT,))),
    ([("note", "one"), ("note", "two")], of.Notes(("one", "two"))),
    ([("pair_ranks", TWO), ("pair", PAIR), ("pair", PAIR)], MeasuredPairs(TWO, (PAIR, PAIR))),
    ([("pair_ranks", TWO), ("lost_transfer", GONE), ("excluded", ASIDE),
      ("pairs_complete", True)], MeasuredPairs(TWO, (), (GONE,), (ASIDE,), True)),
    ([("participants", Participants("single", 2, ("h0",))), ("participants", WHO)], WHO),
    ([("arrivals", Arrivals(2, (1,), 60.0))], Arrivals(2, (1,), 60.0)),
    ([("arrivals", Arrivals(2))], Attendance(2)),
    ([("attendance", Attendance(2, (LOST,), "timing"))], Attendance(2, (LOST,), "timing")),
    ([("participants", WHO), ("lost", LOST)], Attendance(2, (LOST,))),
    ([("lost", LOST), ("attendance", Attendance(2, (ZERO,)))], Attendance(2, (LOST, ZERO))),
    ([("participants", WHO), ("lost", LOST), ("lost", CRASHED)], Attendance(2, (CRASHED,))),
    ([("first_call", COST)], of.FirstCalls(COST)),
    ([("fingerprint", PRINT)], of.MeasuredOn(PRINT)),
    ([("expected", band) for band in BANDS], of.Expected(BANDS)),
    ([("row", ROW), ("retest", ROW), ("disturbance", BUSY)], of.Rows((ROW,), (ROW,), (BUSY,))),
    ([("xids", HEARD)], of.HeardXids((HEARD,))),
    ([("nic_traffic", [_RIGHT])], of.NicTraffic((_RIGHT,))),
    ([("nic_traffic", [])], of.NicTraffic(())),
    ([("copies", [SLOW_COPY])], of.Copies((SLOW_COPY,))),
    ([("rank_settings", [PROTO])], of.RankSettings((PROTO,))),
    ([("expected_copies", BY_SLOT)], BY_SLOT),
    ([("rung", ONE), ("rung", NODE_RUNG)], of.Ladder((ONE, NODE_RUNG))),
    ([("group", WITHIN), ("group", WITHIN)], of.Groups((WITHIN, WITHIN))),
    ([("step", STEP)], of.Steps((STEP,)))]  # fmt: skip


def log_of(*samples: tuple[str, Any]) -> RunLog:
    log = RunLog()
    for name, value in samples:
        log.add(name, msgspec.to_builtins(value, str_keys=True))
    return log


@each_row(("samples", "fact"), CASES, ids=[type(fact).__name__ for _, fact in CASES])
def test_a_fact_is_read_as_it_was_written(samples: list[tuple[str, Any]], fact: Any) -> None:
    assert run_facts(log_of(*samples))[type(fact)] == fact


def test_every_fact_of_a_run_has_a_case_here() -> None:
    produced = {c.produces for c in discover("ncclprobe.facts", Collector, {"run"})}
    assert {type(fact) for _, fact in CASES} | {Ending} == produced


NOT_MET = f"the ranks had not met when the run ended: {CUT_SHORT}"
UNKNOWN = {
    RunRequest: "the run contains no sample asked", MeasuredPairs: "no pair was measured",
    of.Ladder: "no rung of the ladder was measured", Participants: "the run contains no sample participants",
    Arrivals: NOT_MET, Attendance: NOT_MET, of.FirstCalls: "the run contains no sample first_call",
    of.MeasuredOn: "the run contains no sample fingerprint", of.Rows: "no row was measured",
    of.HeardXids: "NVML listened on no node", of.NicTraffic: "no NIC was counted",
    of.Copies: "no copy was measured", of.Groups: "no group was measured"}  # fmt: skip


def test_what_was_not_measured_is_absent_and_what_only_some_runs_have_is_known_to_be_none() -> None:
    found = run_facts(RunLog())
    assert {fact: found[fact] for fact in UNKNOWN} == {
        fact: Absent(why, "NotCaptured") for fact, why in UNKNOWN.items()
    }
    none = (of.Skipped(), of.Notes(), of.ExpectedCopies(), of.Expected(), of.Steps(()))
    assert [found[type(fact)] for fact in none] == [*none]
    log = RunLog()
    assert run_facts(log)[Ending] == Ending(CUT_SHORT)
    log.close()
    assert run_facts(log)[Ending] == Ending("")


FITS = {
    "[": {Ending, of.NicTraffic, of.Copies, of.RankSettings},
    "{": {Ending, RunRequest, of.MeasuredOn, of.ExpectedCopies},
}
"""Of which facts a value that begins with this is one: rows may be none, and fields left out."""


@each_row("wrong", [None, 3, "x", [], [3], {}, {"rank": "x"}, [[1]]], ids=json.dumps)
def test_a_sample_of_another_type_is_not_understood_and_nothing_is_made_of_it(wrong: Any) -> None:
    log = RunLog()
    for name in {name for samples, _ in CASES for name, _ in samples}:
        log.add(name, wrong)
    for fact, found in some(run_facts(log).items()):
        if isinstance(found, Absent):
            assert (found.refused, "sample " in found.why) == ("ParseError", True)
        else:
            assert fact in FITS.get(json.dumps(wrong)[0], {Ending, of.Notes})


def test_a_row_with_a_number_of_the_wrong_type_is_refused_by_its_name() -> None:
    log = RunLog()
    log.add("row", {**msgspec.to_builtins(ROW, str_keys=True), "busbw_GBps": "fast"})
    assert "busbw_GBps" in run_facts(log)[of.Rows].why


def test_the_rows_asked_for_are_those_of_every_place_with_something_to_move_of_known_operations() -> None:
    asked = RunRequest(ops=("all_reduce", "all_gather"), sizes=(8, 64), itemsize=4)
    assert asked.rows(4) == {
        ("all_reduce", 8, "in"), ("all_reduce", 64, "in"), ("all_gather", 64, "in"), ("all_gather", 64, "out"),
    }  # fmt: skip
    assert replace(asked, what=("pairs",)).rows(4) == frozenset()
    one = RunRequest(what=("collectives",), ops=("all_reduce",), sizes=(1 << 20,))
    assert replace(one, ops=("all_reduce", "# all\nreduce")).rows(2) == one.rows(2) != frozenset()
