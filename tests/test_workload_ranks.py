"""`ncclprobe workload` over real gloo ranks on loopback. Nothing here asserts a speed."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from probes.plans import plan
from rank_lab import Lab

from ncclprobe.commands.workload import parse
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status
from ncclprobe.model.training import Model

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

OWN = ["-m", "ncclprobe", "workload", "--backend", "gloo"]
SMALL = ["--params", "40K", "--layers", "2", "--tokens", "16", "--micro-batches", "2"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@pytest.mark.slow
def test_groups_are_measured_alone_and_together_and_every_strategy_is_replayed(lab: Lab) -> None:
    asked = ["--nproc", "4", "--groups", "tp=2,dp=2", "-e", "64K", "all", *SMALL]
    process = lab.start([*OWN, *asked, "--json", str(lab.report_path)])
    assert process.wait() == 0, process.err
    report = lab.report()
    assert [(row.kind, row.op, row.nbytes, row.size, row.groups, row.crossing) for row in report.groups] == [
        ("tp", "all_reduce", 65536, 2, 2, 0),
        ("dp", "all_reduce", 65536, 2, 2, 0),
    ]
    assert all(row.alone_us > 0 and row.together_us and row.slowdown for row in report.groups)
    assert not any(row.advice for row in report.groups)
    assert [(row.strategy, row.overlap) for row in report.steps] == [
        (strategy, overlap) for strategy in ("ddp", "fsdp", "tp") for overlap in (False, True)
    ]
    for row in report.steps:
        assert row.step_min_us <= row.step_us <= row.step_max_us
        assert row.predicted_us
        assert row.efficiency == pytest.approx(row.compute_us / row.step_us, rel=1e-3)
    moved = {row.strategy: row.call_bytes for row in report.steps}
    assert (moved["ddp"], moved["fsdp"]) == (160_000, 3 * 2 * 160_000)  # 40,000 parameters of 4 bytes
    assert report.measurements == ()
    asked = {v.id for v in report.checks if v.id.startswith("run.") and v.status is not Status.SKIP}
    assert asked == {"run.init", "run.rank-lost", "run.groups", "run.settings"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["ddp", "--params", "many"], "must be a number of parameters"),
        (["ddp", "--params", "4", "--layers", "8"], "--params 4 is less than --layers 8"),
    ],
)
def test_what_cannot_be_replayed_is_refused(asked: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(["--backend", "gloo", "--nproc", "2", *asked])


def test_a_step_that_needs_more_memory_than_a_rank_has_is_refused() -> None:
    from ncclprobe.probes.training import Bench, play_strategy

    nobody = cast(Any, None)
    bench = Bench(plan(), nobody, lambda phase: None, nobody)
    with pytest.raises(UsageError, match=r"fsdp: its largest call needs .* on every rank and a rank has only 1 GiB"):
        next(play_strategy(bench, nobody, "fsdp", Model(params=10**12, layers=1), 1 << 30))


@pytest.mark.slow
def test_a_call_that_is_too_small_to_share_is_found_by_the_ranks_and_refused_in_one_line(lab: Lab) -> None:
    process = lab.start([*OWN, "--nproc", "2", "fsdp", "--params", "2", "--layers", "1"])
    assert process.wait() == 2
    assert process.err.count("\n") == 1, process.err
    assert "too little for 2 ranks" in process.err
