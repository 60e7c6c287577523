"""A whole run of four gloo ranks on loopback, of which rank 0 is this process: all parts, and what it makes of them.

The only job that runs every time. Nothing here asserts a speed. Faults are in tests/test_ranks.py.
"""

import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import pytest
from conftest import ROOT
from launching import Launcher, by_hand

from ncclprobe.commands import measuring, workload
from ncclprobe.host import settings
from ncclprobe.model.findings import Status
from ncclprobe.model.ops import OPS
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.session.measure import rank
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.launch import held_port
from ncclprobe.session.watchdog import watchdog
from ncclprobe.signals import ENDING
from session.test_watchdog import LeftError

pytestmark = [pytest.mark.slow, pytest.mark.every_time, pytest.mark.timeout(300)]
KiB, RANKS = 1 << 10, 4
MODEL = ["--params", "40K", "--layers", "2", "--tokens", "16", "--micro-batches", "2"]
OTHERS = """
import os, sys
from ncclprobe.commands import measuring
from ncclprobe.session.measure import collectives, ladder, training
from session.test_rank_zero import everything
for rank in "123":
    if not os.fork():
        os.environ["RANK"] = rank
        measuring.main(sys.argv[1:], everything)
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in "123"))
"""


def everything(argv: Sequence[str]) -> Options:
    """All that ranks can measure, in small."""
    from ncclprobe.session.measure import ladder

    ladder._TOKENS, ladder.STEPS = 64, 3
    parts = replace(workload.parse(argv), what=("copies", "collectives", "pairs", "ladder", "training"))
    small = replace(parts, ops=tuple(OPS), sizes=(64 * KiB, 8), pair_sizes=(8, 64 * KiB))
    return replace(small, transport=True, budget_s=0.1, timeout_s=240.0, phase_timeout_s=120.0)


class Run(NamedTuple):
    codes: tuple[int, int]
    report: Report
    out: str
    err: str
    others_said: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("torch")
    from ncclprobe.session.measure import ladder

    lab = Launcher(tmp_path_factory.mktemp("job"))
    environment, handlers = dict(os.environ), {number: signal.getsignal(number) for number in ENDING}
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    argv = ["--backend", "gloo", "--json", str(lab.report_path), "--groups", "tp=2,dp=2", "all", *MODEL]
    out, err, codes = io.StringIO(), io.StringIO(), list[int]()

    def leave(code: int) -> None:
        codes.append(code)
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()  # it is a daemon
        raise LeftError(code)

    def wait() -> None:
        """Until another thread has decided how the run ends."""
        while not codes:
            time.sleep(0.1)
        raise LeftError(codes[0])

    with pytest.MonkeyPatch.context() as patch, held_port() as port:
        seat = by_hand(str(port), RANKS)
        patch.setattr(settings, "_OURS", {})
        for name in ("_TOKENS", "STEPS"):  # `everything` makes them small
            patch.setattr(ladder, name, getattr(ladder, name))
        for module in (rank, watchdog):
            patch.setattr(module, "leave", leave)
        patch.setattr(watchdog, "wait_for_the_end", wait)
        patch.setattr(watchdog, "limit_reporting", lambda: None)
        try:
            os.environ.update(seat(0) | {"OMP_NUM_THREADS": "1"})
            others = lab.start(["-c", OTHERS, *argv], seat(1) | path)
            with pytest.raises(LeftError) as left, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                measuring.main(argv, everything)
            code = others.wait()
        finally:
            os.environ.clear()
            os.environ.update(environment)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            lab.clear()
    report = as_json.read(str(lab.report_path))
    return Run((left.value.args[0], code), report, out.getvalue(), err.getvalue(), others.out + others.err)


def test_all_parts_pass_and_rank_zero_alone_speaks(run: Run) -> None:
    report = run.report
    assert (run.codes, run.others_said) == ((report.exit_code,) * 2, ""), run.out
    own = {v.id: v.status for v in report.checks if v.id.startswith("run.")}
    del own["run.straggler"], own["run.pairs"]  # this machine may be busy
    passed = ("copies", "data", "groups", "init", "ladder", "rank-lost", "settings")
    assert {name: s for name, s in own.items() if s is not Status.SKIP} == {f"run.{n}": Status.PASS for n in passed}
    assert {v.node for v in report.checks if v.id.startswith("run.")} == {None}
    machine = [v for v in report.checks if not v.id.startswith("run.")]
    assert len(machine) > 50
    assert not any(v.required for v in machine), "what the machine looks like is advisory"
    assert not [f for v in report.checks for f in v.findings if f.subject.startswith("TORCH_")], "set by the run itself"
    assert any(remark.startswith(f"{len(report.measurements)} rows measured, none judged") for remark in report.notes)
    parts = [line.split(": ")[1] for line in run.err.splitlines()]
    collectives = f"collectives, {len(report.measurements)} rows"
    assert parts == ["torch, process group and first calls", "copies", collectives, "pairs", "ladder", "training"]
    launch = report.launch
    assert (launch.kind, launch.nnodes, launch.world_size) == ("environment", 1, RANKS)


def test_rows_carry_what_was_measured_and_how(run: Run) -> None:
    rows, cost = run.report.measurements, run.report.first_call
    assert [(m.op, m.place, m.nbytes) for m in rows] == [
        (op.name, place, nbytes)
        for op in OPS.values()
        for nbytes in ((64 * KiB,) if op.divided else (64 * KiB, 8))
        for place in op.places
    ]
    small = [(row.op, row.nbytes, row.cause) for row in run.report.skipped_rows]
    assert small == [(op.name, 8, "small") for op in OPS.values() if op.divided]
    for row in rows:
        assert (row.backend, row.mode, row.ranks, row.nodes, row.wrong) == ("gloo", "blocking", RANKS, 1, 0)
        assert (row.library.name, row.precision_asked, row.footprint_bytes) == ("gloo", 0.02, 64 << 20)
        assert row.transport is not None
        assert row.transport.network == "gloo tcp lo"
        assert row.samples is not None
        assert [len(each) for each in row.samples.each] == [row.batches] * RANKS
        assert row.algbw_GBps == pytest.approx(row.nbytes / row.time_us.typical / 1e3)
        assert row.busbw_GBps == pytest.approx(row.algbw_GBps * OPS[row.op].bus_factor(RANKS))
        assert (row.slowest_rank in range(RANKS), row.mismatches) == (True, ())
    assert run.out.count("busbw") == 1
    assert cost is not None
    costs = (cost.process_group_s, cost.collective_s, cost.second_call_s, cost.pair_s)
    assert all(each and each > 0 for each in costs)
    assert {cost.process_group_rank, cost.collective_rank, cost.pair_rank} <= {*range(RANKS)}
    assert "first calls: process group" in run.out


def test_every_pair_is_measured_both_ways(run: Run) -> None:
    report = run.report
    for both in (False, True):
        pairs = [(row.src, row.dst) for row in report.pairs if row.both is both and not row.step]
        assert sorted(pairs) == sorted(permutations(range(RANKS), 2))
    for row in report.pairs:
        assert (row.op, row.nbytes, row.latency_nbytes, row.src_end) == ("sendrecv", 64 * KiB, 8, f"rank {row.src}")
        assert (row.wrong, len(row.samples_us), row.inside) == (0, 5, False)
        assert row.min_us <= row.time_us <= row.max_us
    found = report.localisation
    assert found is not None
    assert (found.nodes, found.lost, found.complete, found.excluded_ranks) == (RANKS, (), True, ())
    assert "latency of 8 B" in run.out
    assert "bandwidth of 64 KiB" in run.out


def test_groups_are_measured_alone_and_together_and_every_strategy_is_replayed(run: Run) -> None:
    groups = [(row.kind, row.op, row.size, row.groups, row.crossing, row.advice) for row in run.report.groups]
    assert groups == [(kind, "all_reduce", 2, 2, 0, ()) for kind in ("tp", "dp")]
    for row in run.report.groups:
        assert row.slowest in [(0, 1), (2, 3)] if row.kind == "tp" else [(0, 2), (1, 3)]
        assert row.together_us is not None
        assert row.slowdown == pytest.approx(row.together_us / row.alone_us, rel=1e-3)
        rates = (row.alone_busbw_GBps * row.alone_us, (row.together_busbw_GBps or 0) * row.together_us)
        assert rates == pytest.approx((row.nbytes / 1e3,) * 2, rel=1e-3)
    steps = run.report.steps
    assert [(row.strategy, row.overlap) for row in steps] == [
        (strategy, overlap) for strategy in ("ddp", "fsdp", "tp") for overlap in (False, True)
    ]
    for row in steps:
        assert (row.ranks, row.params, row.layers, row.dtype, row.micro_batches) == (RANKS, 40_000, 2, "float32", 2)
        assert 3 <= row.steps <= 9
        assert row.step_min_us <= row.step_us <= row.step_max_us
        assert row.efficiency == pytest.approx(row.compute_us / row.step_us, rel=1e-3)
        assert row.exposed_us == pytest.approx(row.step_us - row.compute_us)
        parts = (row.compute_us, row.calls_us)
        assert max(parts) <= row.predicted_us * 1.001
        assert row.overlap or row.predicted_us == pytest.approx(sum(parts))
    moved = {row.strategy: (row.calls, row.call_bytes) for row in steps}
    assert moved == {"ddp": (1, 160_000), "fsdp": (12, 3 * 2 * 160_000), "tp": (16, 40 * KiB)}  # 40,000 x 4 bytes


def test_the_ladder_is_climbed_and_the_host_copies(run: Run) -> None:
    ladder = run.report.ladder
    assert [(row.rung, row.ranks, row.groups) for row in ladder] == [("rank", 1, 4), ("pair", 2, 2), ("node", 4, 1)]
    assert {len(row.samples_us) for row in ladder} == {3}
    for row in ladder:
        assert (row.step_bytes, row.nbytes, len(row.slowest)) == (4 << 20, 1 << 20, row.ranks)
        assert 0 < min(row.samples_us) <= row.step_us <= max(row.samples_us)
        assert row.ranks == 1 or (row.busbw_GBps and row.best_GBps and 0 < row.busbw_GBps <= row.best_GBps)
    assert (ladder[0].busbw_GBps, ladder[0].speedup, ladder[0].efficiency) == (None, 1.0, 1.0)
    copies = run.report.copies
    assert {(row.kind, row.device) for row in copies} >= {("host", "cpu"), ("host", "cpu memcpy")}
    assert all((row.status, row.rank, row.min_GBps > 0) == ("unjudged", 0, True) for row in copies)
    assert "within host" in run.out
