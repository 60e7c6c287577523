"""What else was going on: how much of a slowdown it may explain, and what is nobody's interference."""

import pytest
from conftest import answers

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands.bandwidth import parse as options
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.measured import notes, rows_of
from ncclprobe.expect.bands import judge_rows
from ncclprobe.facts.nvml import Gpu, Gpus, heated_s
from ncclprobe.facts.run.samples import Expected, Participants, Rows
from ncclprobe.model.errors import Missing
from ncclprobe.model.measurement import Band, Disturbance, Expectation, Samples, TimeStats
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.session.measure.interference import (
    Heat,
    Reading,
    falsifying,
    host_disturbances,
    of_gpus,
    parse,
    processor_disturbance,
    setting_disturbances,
)
from ncclprobe.session.measure.recorder import Recorder
from tests.each_row import each_row

BEFORE = Reading(1000.0, 500.0, 0.0, 10.0)


def after(busy: float, steal: float = 0.0) -> Reading:
    return Reading(1100.0, 500.0 + busy, steal, 30.0)


@each_row(
    ("text", "found"),
    [
        ("cpu  100 0 200 700 0 0 0 50 0 0\ncpu0 1\n", Reading(10.5, 3.0, 0.5, 1.0)),
        *((text, None) for text in ("", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h i")),
    ],
)
def test_the_kernels_counters_are_seconds_and_what_are_none_say_nothing(text: str, found: Reading | None) -> None:
    assert parse(text, 1.0) == found


@each_row(
    ("told", "found"),
    [
        ([(80, 0.0, 40.0)] * 2, []),  # our own work is none
        ([(80, 0.0, 20.0)] * 2, [Disturbance("40% of the processors of n0 were busy with other work", 0.25)]),
        ([(20, 30.0, 20.0)], [Disturbance("30% of the processors of n0 were taken by its hypervisor", 0.4)]),
    ],
)
def test_what_others_did_with_the_processors_is_told(
    told: list[tuple[float, float, float]], found: list[Disturbance]
) -> None:
    (busy, steal, _), *_ = told
    seen = processor_disturbance("n0", BEFORE, after(busy, steal), [own for *_, own in told])
    assert [seen.what] == [each.what for each in found] if seen else not found
    assert not seen or seen.left == pytest.approx(found[0].left)


def test_ranks_of_one_host_are_counted_together_and_hosts_apart() -> None:
    told = [("n0", BEFORE, after(70)), ("n0", BEFORE, after(70)), ("n1", BEFORE, after(20)), ("n2", None, None)]
    (found,) = host_disturbances(told)
    assert found.what == "30% of the processors of n0 were busy with other work"


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


DEBUG = "# of the site\nNCCL_DEBUG=TRACE\n"


@each_row(
    ("variables", "files", "found"),
    [
        ({}, {"/etc/nccl.conf": DEBUG}, {"NCCL_DEBUG": "TRACE (/etc/nccl.conf:2)"}),
        ({"NCCL_DEBUG": "WARN"}, {"/etc/nccl.conf": DEBUG}, {}),
        ({"NCCL_DEBUG": ""}, {"/etc/nccl.conf": DEBUG}, {}),
        ({"NCCL_CONF_FILE": "/job.conf"}, {"/job.conf": "NCCL_DEBUG=WARN\n", "/etc/nccl.conf": DEBUG}, {}),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, {"/etc/nccl.conf": "NCCL_DEBUG=INFO\n"}, {"NCCL_DEBUG_SUBSYS": "ALL"}),
        ({}, {"/etc/nccl.conf": "TORCH_DISTRIBUTED_DEBUG=DETAIL\nCUDA_LAUNCH_BLOCKING=1\n"}, {}),
        ({}, {"/etc/nccl.conf": "NCCL_DEBUG=trace \n"}, {}),
    ],
)
def test_a_setting_of_nccls_own_files_counts_as_nccl_would_take_it(
    variables: dict[str, str], files: dict[str, str], found: dict[str, str]
) -> None:
    known = {path: Missing("") for path in ("/etc/nccl.conf", "/root/.nccl.conf")} | files
    host = answers({("home",): Missing(""), **{("conf", path): text for path, text in known.items()}})
    assert falsifying("nccl", variables, host, (2, 28, 9)) == found
    assert falsifying("gloo", variables, host) == {}


def test_each_setting_is_named_once_with_its_ranks() -> None:
    detail, blocking = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"CUDA_LAUNCH_BLOCKING": "1"}
    assert setting_disturbances([{}, {}]) == []
    every, some, one = setting_disturbances([detail, detail | blocking, detail | blocking | {"NCCL_DEBUG": "TRACE"}])
    assert every.what.startswith("TORCH_DISTRIBUTED_DEBUG=DETAIL on every rank: torch compares")
    assert some.what.startswith("CUDA_LAUNCH_BLOCKING=1 on 2 of 3 ranks, 1 first: ")
    assert one.what.startswith("NCCL_DEBUG=TRACE on rank 2: ")
    assert every.falsifies
    assert some.falsifies
    assert setting_disturbances([{"OTHER": "1"}]) == []  # of another version of ncclprobe on another node


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


_COOL = Heat(100.0, {0: 7.0, 1: 3.0})


@each_row(
    ("heat", "throttle", "found"),
    [
        (Heat(160.0, {0: 7.0, 1: 3.0}), ("gpu-idle",), []),
        (Heat(160.0, {0: 7.0, 1: 4.0}), ("gpu-idle",), []),  # one second of sixty
        (Heat(160.0, {0: 7.0, 1: 33.0}), ("gpu-idle",), ["GPU1 of n0 lowered its clocks (for heat, 50% of the time)"]),
        (Heat(160.0, {0: 7.0, 1: 3.0}), ("hw-slowdown",), ["GPU1 of n0 lowered its clocks (hw-slowdown)"]),
        (
            Heat(160.0, {1: 63.0}),
            ("hw-thermal-slowdown",),
            ["GPU1 of n0 lowered its clocks (hw-thermal-slowdown, for heat, 100% of the time)"],
        ),
        (Heat(160.0, {0: 7.0, 1: 3.0, 2: 900.0}), ("gpu-idle",), []),  # not told before: nothing to subtract
    ],
)
def test_a_gpu_that_was_hot_while_it_worked_is_named_though_it_has_cooled_down(
    heat: Heat, throttle: tuple[str, ...], found: list[str]
) -> None:
    gpus = Gpus((Gpu(0, throttle=("gpu-idle",)), Gpu(1, throttle=throttle)), "570", (12, 8))
    assert [each.what for each in of_gpus("n0", _COOL, heat, gpus)] == found


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
