"""What else was going on: how much of a slowdown it may explain, and what is nobody's interference."""

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands.bandwidth import parse as options
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.measured import notes, rows_of
from ncclprobe.facts.run.samples import Participants
from ncclprobe.model.measurement import Band, Disturbance, Expectation, TimeStats
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.session.measure.interference import setting_disturbances
from ncclprobe.session.measure.recorder import Recorder


def recorder(*bands: Band) -> Recorder:
    asked = options([])
    participants = Participants("single", 8, ("n0",) * 8, "nccl")
    return Recorder(asked, ask(asked.judging, (), Job(), MEASURED), participants, bands)


def test_what_fails_is_judged_anew_once_it_was_repeated_and_explained() -> None:
    band = Band("all_reduce", 1, 1 << 40, Expectation(100.0, 90.0, "GB/s", "user", "w", "s"))
    record = recorder(band)
    slow = replace(ROW, busbw_GBps=60.0, time_us=TimeStats(20.0), interval_us=(19.8, 20.2))
    for nbytes in (1 << 20, 1 << 22, 1 << 24):
        record.add(replace(slow, nbytes=nbytes))
    assert record.failing(2) == [("all_reduce", 1 << 24), ("all_reduce", 1 << 22)]
    record.add_retest(replace(slow, nbytes=1 << 24, busbw_GBps=100.0))
    record.add_retest(replace(slow, nbytes=1 << 22))
    assert record.failing(9) == [("all_reduce", 1 << 22), ("all_reduce", 1 << 20)]
    record.disturbed((Disturbance("GPU3 of n0 has lowered its clocks", 0.5),))
    assert record.failing(9) == []
    assert "GPU3 of n0" in rows_of(record.facts())[0].inconclusive_why


def test_under_a_setting_that_falsifies_no_row_is_judged_fast_or_slow() -> None:
    band = Band("all_reduce", 1, 1 << 21, Expectation(100.0, 90.0, "GB/s", "user", "w", "s"))
    record = recorder(band)
    record.disturbed(setting_disturbances([{"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}] * 8))
    for busbw, nbytes in ((60.0, 1 << 20), (1000.0, 1 << 20), (60.0, 1 << 24)):
        record.add(replace(ROW, nbytes=nbytes, busbw_GBps=busbw, time_us=TimeStats(20.0), interval_us=(19.8, 20.2)))
    assert record.failing(9) == []
    slow, fast, without = rows_of(record.facts())
    assert (slow.status, fast.status, without.status) == ("inconclusive", "inconclusive", "unjudged")
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL on every rank" in slow.inconclusive_why
    assert slow.inconclusive_why == fast.inconclusive_why
    (told,) = [text for text in notes(record.facts()) if "TORCH_DISTRIBUTED_DEBUG" in text]
    assert told.endswith("do not make this run a baseline; unset it and measure again")
