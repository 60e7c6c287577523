"""Samples of a measuring run, and what becomes of each kind: `texts-run.txt` keeps the facts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ncclprobe.checks.run.ranks import NODE_RUNG, ONE, WITHIN
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, SLOW_COPY
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run import samples as of
from ncclprobe.facts.run.samples import Arrivals, Attendance, Participants, RunRequest
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.measurement import Band, Disturbance, Fingerprint, FirstCall, SkippedRow, Xids
from ncclprobe.model.pair_results import Aside, LostTransfer, Nic, PairRow, RankNics
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import StepRow
from ncclprobe.model.values import replace
from tests.checks.cases.run import _RIGHT

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
CASES: Sequence[Sequence[tuple[str, Any]]] = (
    (), (("asked", ASKED),), (("asked", ASKED), ("asked", replace(ASKED, sizes=(16,)))), (("skipped", LEFT_OUT),),
    (("note", "one"), ("note", "two")), (("pair_ranks", TWO), ("pair", PAIR), ("pair", PAIR)), (("pair", PAIR),),
    (("pair_ranks", TWO), ("lost_transfer", GONE), ("excluded", ASIDE), ("pairs_complete", True)),
    (("participants", Participants("single", 2, ("h0",))), ("participants", WHO)), (("participants", WHO),),
    (("arrivals", Arrivals(2, (1,), 60.0)),), (("arrivals", Arrivals(2)),), (("arrivals", Arrivals(2, (0, 1), 60.0)),),
    (("attendance", Attendance(2, (LOST,), "timing")),), (("participants", WHO), ("lost", LOST)), (("lost", LOST),),
    (("lost", LOST), ("attendance", Attendance(2, (ZERO,)))), (("participants", WHO), ("lost", LOST),
        ("lost", CRASHED)),
    (("participants", WHO), ("lost", CRASHED), ("lost", LOST)), (("participants", WHO), ("lost", ZERO), ("lost", LOST)),
    (("first_call", COST),), (("fingerprint", PRINT),), tuple(("expected", band) for band in BANDS),
    (("row", ROW), ("retest", ROW), ("disturbance", BUSY)), (("xids", HEARD), ("xids", replace(HEARD, node="n1"))),
    (("nic_traffic", [_RIGHT]),), (("nic_traffic", []),), (("copies", [SLOW_COPY]),), (("rank_settings", [PROTO]),),
    (("expected_copies", BY_SLOT),), (("rung", ONE), ("rung", NODE_RUNG)), (("group", WITHIN), ("group", WITHIN)),
    (("step", STEP),), (("attendance", Attendance(2)), ("attendance", Attendance(2, (LOST,), "timing"))),
    tuple(("expected_copies", of.ExpectedCopies({node: {"host": BAND}})) for node in ("n0", "n1")),
        (("row", {**msgspec.to_builtins(ROW, str_keys=True), "busbw_GBps": "fast"}),),
)  # fmt: skip
KINDS = sorted({name for samples in CASES for name, _ in samples})


def facts(*samples: tuple[str, Any], closed: bool = True) -> list[tuple[str, object]]:
    """Return the facts of a run by their names; of one with samples, those that differ from those without any."""
    found, bare = ({kind.__name__: each.why if isinstance(each, Absent) else each
                    for kind, each in run_facts(_log(*own, closed=closed)).items()} for own in (samples,
                        ()))  # fmt: skip
    return [(name, found[name]) for name in sorted(found) if not samples or found[name] != bare[name]]


def _log(*samples: tuple[str, Any], closed: bool) -> RunLog:
    log = RunLog()
    for name, value in samples:
        log.add(name, msgspec.to_builtins(value, str_keys=True))
    if closed:
        log.close()
    return log


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    wrong: Sequence[Any] = (None, 3, "x", [], [3], {}, {"rank": "x"}, [[1]])
    one, asked = RunRequest(what=("collectives",), ops=("all_reduce",), sizes=(1 << 20,)), RunRequest(
        ops=("all_reduce", "all_gather"), sizes=(8, 64), itemsize=4)  # fmt: skip
    return {
        "facts of runs": (facts, CASES),
        "facts of a run that was cut short": (lambda *samples: facts(*samples, closed=False), [(), *CASES[-2:]]),
        "samples that are none": (lambda name: [facts((name, each)) for each in wrong], [(each,) for each in KINDS]),
        "rows that are asked for": (lambda request, ranks: sorted(request.rows(ranks)), [*((asked, ranks) for ranks in (
            1, 2, 4)), (replace(asked, what=("pairs",)), 4), (one, 2),
            (replace(one, ops=("all_reduce", "# all\nreduce")), 2)]),
    }  # fmt: skip
