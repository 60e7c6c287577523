"""What else was going on: how much of a slowdown it may explain, and what is nobody's interference."""

from conftest import answers

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands.bandwidth import parse as options
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.measured import notes, rows_of
from ncclprobe.expect.bands import judge_rows
from ncclprobe.facts.nvml import heated_s
from ncclprobe.facts.run.samples import Expected, Participants, Rows
from ncclprobe.model.errors import Missing
from ncclprobe.model.measurement import Band, Disturbance, Expectation, Samples, TimeStats
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.session.measure.interference import setting_disturbances
from ncclprobe.session.measure.recorder import Recorder
from tests.each_row import each_row


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


@each_row(
    ("by_batch", "said"),
    [
        ((100.0, 101.0, 60_000.0, 99.0, 100.0), ["batch 3 of 5 took 1.2 s longer than this row usually takes"]),
        ((100.0, 101.0, 20_000.0, 99.0, 100.0), []),
        ((100_000.0, 101_000.0, 160_000.0), []),  # a slow link, and a third of it more
        ((), []),
    ],
)
def test_a_row_in_which_something_stood_still_says_so_though_its_median_does_not_show_it(
    by_batch: tuple[float, ...], said: list[str]
) -> None:
    record = recorder()
    record.add(replace(ROW, iters=20, samples=Samples(by_rank=(100.0,) * 8, by_batch=by_batch)))
    told = [note for note in notes(record.facts()) if "stalled" in note]
    assert len(told) == len(said)
    assert all(words in note for note, words in zip(told, said, strict=True))


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


def test_what_merely_slows_a_run_down_excuses_no_row_that_passes() -> None:
    band = Band("all_reduce", 1, 1 << 40, Expectation(100.0, 90.0, "GB/s", "user", "w", "s"))
    rows = Rows((replace(ROW, busbw_GBps=100.0),), disturbances=(Disturbance("a busy host", 0.5),))
    (row,) = judge_rows(rows, Expected((band,)))
    assert row.status == "pass"


def test_the_counters_of_heat_are_read_gpu_by_gpu_and_one_that_does_not_tell_is_left_out() -> None:
    host = answers(
        {
            ("nvml", "nvmlDeviceGetCount"): "2",
            ("nvml", "nvmlDeviceGetViolationStatus", 0, 1): '{"referenceTime": 9, "violationTime": 2500000000}',
            ("nvml", "nvmlDeviceGetViolationStatus", 1, 1): Missing("Not Supported"),
        }
    )
    assert heated_s(host) == {0: 2.5}
    assert heated_s(answers({("nvml", "nvmlDeviceGetCount"): Missing("no NVML")})) == {}
