"""Real ranks of which one is slow for a reason of its own host: named as that, and not as a slow link."""

import contextlib
import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rank_lab import Lab, by_hand, findings, free_port

pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")]

STOPPED_S, RUNNING_S = 0.1, 0.005  # more than a busy machine keeps the others; less to run in than a round takes
SWEEP = ["-b", "1K", "-e", "16K", "-f", "4", "-n", "3", "-w", "1", "--op", "all_reduce,broadcast"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@contextlib.contextmanager
def starved(process: psutil.Process) -> Iterator[None]:
    """Let `process` run a twentieth of the time, in turns short enough for every heartbeat to come in time."""
    over = threading.Event()

    def starve() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not over.is_set():
                process.suspend()
                time.sleep(STOPPED_S)
                process.resume()
                time.sleep(RUNNING_S)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def test_a_rank_without_processor_time_is_named_and_the_run_goes_on(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "3"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, *SWEEP])
    lab.until_rows(1)
    with starved(lab.rank_of(process, 2)):
        assert process.wait() == 0
    report = lab.report()
    assert [subject for subject, _ in findings(report, "run.straggler")] == ["rank 2"]
    assert findings(report, "run.rank-lost") == []
    assert report.status.value == "warn"
    assert "run.straggler  rank 2" in process.out


def test_a_size_without_room_is_refused_by_all_ranks_before_anything_is_measured(lab: Lab) -> None:
    sizes = ["-b", "1K", "-e", "900G", "-f", "1073741824"]
    processes = lab.ranks(by_hand(free_port()), *sizes)
    assert [process.wait() for process in processes] == [2, 2]
    (line,) = processes[0].err.splitlines()
    assert "two buffers of 900 GiB" in line
    assert "choose smaller sizes (-b and -e)" in line
    assert processes[0].out == ""


def test_first_calls_have_their_cost_and_rows_their_samples(lab: Lab) -> None:
    own = ["--backend", "gloo", "--json", str(lab.report_path), "--nproc", "2"]
    process = lab.start(["-m", "ncclprobe", "bandwidth", *own, "-b", "1K", "-e", "1K", "--budget", "0.2"])
    assert process.wait() == 0
    report = lab.report()
    cost = report.first_call
    assert cost is not None
    assert min(cost.process_group_s, cost.collective_s, cost.second_call_s, cost.pair_s) > 0
    assert {cost.process_group_rank, cost.collective_rank, cost.pair_rank} <= {0, 1}
    assert "first calls: process group" in process.out
    (row,) = report.measurements
    assert row.precision_asked == 0.02
    assert row.samples is not None
    assert len(row.samples.each) == 2
    if row.precision is not None and row.precision > 0.02:
        assert any("did not reach the requested" in remark for remark in report.notes)
