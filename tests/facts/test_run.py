"""Facts of a run, from its samples: each kind is read as it was written, and what is none is said to be none."""

import json
from typing import Any

import msgspec

from ncclprobe.checks.run.ranks import NODE_RUNG, ONE, WITHIN
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, SLOW_COPY
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run.samples import (
    Arrivals,
    Attendance,
    Copies,
    DifferingSetting,
    Ending,
    Expected,
    ExpectedCopies,
    FirstCalls,
    Groups,
    HeardXids,
    Ladder,
    LostRank,
    MeasuredOn,
    MeasuredPairs,
    NicTraffic,
    Notes,
    Participants,
    RankSettings,
    Rows,
    RunRequest,
    Skipped,
    Steps,
)
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
LOST = LostRank(1, "h1", "timing", "gone")
CRASHED = replace(LOST, why="it was ended by SIGSEGV")
ZERO = replace(LOST, rank=0)
WHO = Participants("torchrun", 2, ("h0", "h1"), "nccl", {"nccl": "2.28.9"}, 2, "", (0, 1))
COST = FirstCall(1.0, 0, 0.2, 1, 1e-5, 0.1, 1)
PRINT = Fingerprint({"gpu": "x"}, "abc", {"nccl": "2"})
LEFT_OUT = SkippedRow("reduce", None, "refused", "no such call")
BANDS = (Band("all_reduce", 1, 2, BAND), Band("all_reduce", 3, 4, BAND))
BUSY = Disturbance("processors busy", 0.5)
HEARD = Xids("n0", ((3, "74"),))
PAIR = PairRow(src=0, dst=1, src_end="a", dst_end="b", nbytes=4, latency_nbytes=8, latency_us=1.5, GBps=2.0,
               time_us=1.0, min_us=0.5, max_us=2.0, samples_us=(1.0,))  # fmt: skip
TWO = RankNics(("n0", "n1"), (Nic("mlx5_0", 0), None))
GONE = LostTransfer(0, 1, "timed out", 1, True)
ASIDE = Aside(1, "n1", "timed out", True)
STEP = StepRow(strategy="ddp", ranks=2, params=1, layers=1, dtype="float32", micro_batches=1,
               overlap=True, calls=1, call_bytes=4, steps=1, step_us=1.0, step_min_us=1.0, step_max_us=1.0,
               compute_us=1.0, calls_us=1.0, exposed_us=0.0, efficiency=1.0)  # fmt: skip

_PROTO = DifferingSetting("NCCL_PROTO", (("not set", (0,)), ("LL", (1,))))
CASES: list[tuple[list[tuple[str, Any]], Any]] = [
    ([("asked", ASKED)], ASKED),
    ([("skipped", LEFT_OUT)], Skipped((LEFT_OUT,))),
    ([("note", "one"), ("note", "two")], Notes(("one", "two"))),
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
    ([("first_call", COST)], FirstCalls(COST)),
    ([("fingerprint", PRINT)], MeasuredOn(PRINT)),
    ([("expected", band) for band in BANDS], Expected(BANDS)),
    ([("row", ROW), ("retest", ROW), ("disturbance", BUSY)], Rows((ROW,), (ROW,), (BUSY,))),
    ([("xids", HEARD)], HeardXids((HEARD,))),
    ([("nic_traffic", [_RIGHT])], NicTraffic((_RIGHT,))),
    ([("nic_traffic", [])], NicTraffic(())),
    ([("copies", [SLOW_COPY])], Copies((SLOW_COPY,))),
    ([("rank_settings", [_PROTO])], RankSettings((_PROTO,))),
    ([("expected_copies", BY_SLOT)], BY_SLOT),
    ([("rung", ONE), ("rung", NODE_RUNG)], Ladder((ONE, NODE_RUNG))),
    ([("group", WITHIN), ("group", WITHIN)], Groups((WITHIN, WITHIN))),
    ([("step", STEP)], Steps((STEP,))),
]  # fmt: skip


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


@each_row(
    ("fact", "said"),
    [
        (RunRequest, "the run contains no sample asked"),
        (MeasuredPairs, "no pair was measured"),
        (Ladder, "no rung of the ladder was measured"),
        (Participants, "the run contains no sample participants"),
        (Arrivals, f"the ranks had not met when the run ended: {CUT_SHORT}"),
        (Attendance, f"the ranks had not met when the run ended: {CUT_SHORT}"),
        (FirstCalls, "the run contains no sample first_call"),
        (MeasuredOn, "the run contains no sample fingerprint"),
        (Rows, "no row was measured"),
        (HeardXids, "NVML listened on no node"),
        (NicTraffic, "no NIC was counted"),
        (Copies, "no copy was measured"),
        (Groups, "no group was measured"),
    ],
)
def test_what_was_not_measured_is_absent_and_a_sentence_says_so(fact: type, said: str) -> None:
    found = run_facts(RunLog())[fact]
    assert isinstance(found, Absent)
    assert (found.why, found.refused) == (said, "NotCaptured")


@each_row("fact", [Skipped(), Notes(), ExpectedCopies(), Expected(), Steps(())], ids=lambda fact: type(fact).__name__)
def test_what_only_some_runs_have_is_known_to_be_none(fact: Any) -> None:
    assert run_facts(RunLog())[type(fact)] == fact


FITS = {
    "[": {Ending, NicTraffic, Copies, RankSettings},
    "{": {Ending, RunRequest, MeasuredOn, ExpectedCopies},
    '"': {Ending, Notes},
}
"""Of which facts a value that begins with this is one: rows may be none, and fields left out."""


@each_row("wrong", [None, 3, "x", [], [3], {}, {"rank": "x"}, [[1]]], ids=json.dumps)
def test_a_sample_of_another_type_is_not_understood_and_nothing_is_made_of_it(wrong: Any) -> None:
    names = {name for samples, _ in CASES for name, _ in samples}
    log = RunLog()
    for name in names:
        log.add(name, wrong)
    for fact, found in some(run_facts(log).items()):
        if isinstance(found, Absent):
            assert found.refused == "ParseError"
            assert "sample " in found.why
        else:
            assert fact in FITS.get(json.dumps(wrong)[0], {Ending, Notes})


def test_a_row_with_a_number_of_the_wrong_type_is_refused_by_its_name() -> None:
    row = msgspec.to_builtins(ROW, str_keys=True)
    log = RunLog()
    log.add("row", {**row, "busbw_GBps": "fast"})
    found = run_facts(log)[Rows]
    assert isinstance(found, Absent)
    assert "busbw_GBps" in found.why


def test_a_run_that_came_to_its_end_was_cut_short_by_nothing() -> None:
    log = RunLog()
    assert run_facts(log)[Ending] == Ending(CUT_SHORT)
    log.close()
    assert run_facts(log)[Ending] == Ending("")


def test_the_rows_asked_for_are_those_of_every_place_with_something_to_move() -> None:
    asked = RunRequest(ops=("all_reduce", "all_gather"), sizes=(8, 64), itemsize=4)
    assert asked.rows(4) == {
        ("all_reduce", 8, "in"), ("all_reduce", 64, "in"), ("all_gather", 64, "in"), ("all_gather", 64, "out"),
    }  # fmt: skip
    assert replace(asked, what=("pairs",)).rows(4) == frozenset()


def test_the_rows_of_an_operation_that_is_not_known_are_none() -> None:
    asked = RunRequest(what=("collectives",), ops=("all_reduce", "# all\nreduce"), sizes=(1 << 20,))
    assert (
        asked.rows(2) == RunRequest(what=("collectives",), ops=("all_reduce",), sizes=(1 << 20,)).rows(2) != frozenset()
    )
