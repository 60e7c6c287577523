"""What else was going on: how much of a slowdown it may explain, and what is nobody's interference."""

from dataclasses import replace

import pytest

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands.measuring import parse as options
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.measured import rows_of
from ncclprobe.facts.run.ranks import Participants
from ncclprobe.model.measurement import Band, Disturbance, Expectation, TimeStats
from ncclprobe.model.snapshot import Job
from ncclprobe.session.measure.interference import Reading, of_processors, parse, together
from ncclprobe.session.measure.recorder import Recorder

BEFORE = Reading(1000.0, 500.0, 0.0, 10.0)


def after(busy: float, steal: float = 0.0) -> Reading:
    return Reading(1100.0, 500.0 + busy, steal, 30.0)


def test_the_kernels_counters_are_seconds() -> None:
    assert parse("cpu  100 0 200 700 0 0 0 50 0 0\ncpu0 1\n", 1.0) == Reading(10.5, 3.0, 0.5, 1.0)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h i"])
def test_what_are_no_counters_says_nothing(text: str) -> None:
    assert parse(text, 1.0) is None


def test_our_own_work_is_no_interference() -> None:
    assert of_processors("n0", BEFORE, after(80), [40.0, 40.0]) is None
    found = of_processors("n0", BEFORE, after(80), [20.0, 20.0])
    assert found == Disturbance("40% of the processors of n0 were busy with other work", 0.25)


def test_a_hypervisor_that_takes_processors_is_said() -> None:
    found = of_processors("n0", BEFORE, after(20, steal=30.0), [20.0])
    assert found is not None
    assert found.what == "30% of the processors of n0 were taken by its hypervisor"
    assert found.left == pytest.approx(0.4)


def test_ranks_of_one_host_are_counted_together_and_hosts_apart() -> None:
    told = [("n0", BEFORE, after(70)), ("n0", BEFORE, after(70)), ("n1", BEFORE, after(20)), ("n2", None, None)]
    (found,) = together(told)
    assert found.what == "30% of the processors of n0 were busy with other work"


def test_what_fails_is_judged_anew_once_it_was_repeated_and_explained() -> None:
    band = Band("all_reduce", 1, 1 << 40, Expectation(100.0, 90.0, "GB/s", "user", "w", "s"))
    asked = options([])
    question = ask(asked, (), Job(), MEASURED)
    record = Recorder(asked, question, Participants("single", 8, ("n0",) * 8, "nccl"), (band,))
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
