"""`ncclprobe workload` over real gloo ranks on loopback. Nothing here asserts a speed."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_lab import Lab

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

OWN = ["-m", "ncclprobe", "workload", "--backend", "gloo"]
SMALL = ["--params", "40K", "--layers", "2", "--tokens", "16", "--micro-batches", "2", "--compute", "0.002"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


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
    assert not any(row.problems or row.advice for row in report.groups)
    assert [(row.strategy, row.overlap) for row in report.steps] == [
        (strategy, overlap) for strategy in ("ddp", "fsdp", "zero3", "tp", "pp") for overlap in (False, True)
    ]
    for row in report.steps:
        assert row.step_min_us <= row.step_us <= row.step_max_us
        assert row.predicted_us
        assert row.efficiency == pytest.approx(row.compute_us / row.step_us, rel=1e-3)
    moved = {row.strategy: row.call_bytes for row in report.steps}
    assert (moved["ddp"], moved["fsdp"]) == (160_000, 3 * 2 * 160_000)  # 40,000 parameters of 4 bytes
    assert {row.bubble_idle for row in report.steps if row.strategy == "pp"} == {3 / 5}
    assert report.measurements == ()
    assert "pipeline: 4 stages and 2 micro-batches" in process.out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--groups", "tp=4"], "--groups tp=4 is 4 ranks and this job has 2: it must make up the world"),
        (["--groups", "xp=2"], "xp is no kind of group"),
        (["fdsp"], "NAME: fdsp is no strategy; did you mean fsdp?"),
        (["ddp", "--params", "many"], "many is no number of parameters"),
        (["ddp", "--params", "4", "--layers", "8"], "--params 4 are fewer than --layers 8"),
        (["ddp", "--rounds", "3"], "--rounds is no option of ncclprobe workload"),
        (["fsdp", "--params", "900T", "--layers", "1"], "its largest call needs"),
        (["fsdp", "--params", "2", "--layers", "1"], "too little for 2 ranks"),
        (["ddp", "--params", "25M", "--bucket", "1"], "more than 10000 calls"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(lab: Lab, asked: list[str], said: str) -> None:
    process = lab.start([*OWN, "--nproc", "2", *asked])
    assert process.wait() == 2
    assert process.err.count("\n") == 1, process.err
    assert said in process.err
