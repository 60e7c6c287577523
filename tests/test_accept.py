"""`ncclprobe accept`: what it measures at each level, what it does where little can be measured, and runs of gloo."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from launching import Launcher

from ncclprobe.checks.run.rows import BAND
from ncclprobe.commands import accept, measuring
from ncclprobe.commands.accept import main, parse
from ncclprobe.model.measurement import Band
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.expectations import judgeable
from ncclprobe.session.measure.rank import too_late
from ncclprobe.session.ranks.identity import Devices
from tests.each_row import each_row

SIZES = (1 << 30, 256 << 20, 64 << 20, 4 << 20, 64 << 10, 8)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No launcher has started this process."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@each_row(
    ("bands", "backend", "chosen"),
    [
        ([Band("all_reduce", 128 << 20, 1 << 30, BAND)], "nccl", (1 << 30, 256 << 20, 8)),
        ([], "nccl", (1 << 30, 64 << 20, 8)),
        ([], "gloo", (1 << 30, 4 << 20, 8)),
    ],
)
def test_the_sizes_that_can_be_judged_or_a_usual_one_and_the_largest_are_chosen_and_the_smallest(
    bands: list[Band], backend: str, chosen: tuple[int, ...]
) -> None:
    assert judgeable(SIZES, bands, backend) == chosen


def test_a_part_that_comes_too_late_is_left_out_and_named() -> None:
    late = too_late("pairs", 20.0, 180.0)
    assert late is not None
    assert (late.op, late.nbytes, late.cause) == ("pairs", None, "time")
    assert late.why == "20 s were left of 180, and it is given 36 or more"
    assert too_late("pairs", 90.0, 180.0) is None


@pytest.mark.parametrize(
    ("nodes", "chosen", "argv", "ranks", "why"),
    [
        (0, None, [], [2], ""), (0, None, ["--backend", "gloo"], [2], ""), (1, None, [], [1], ""),
        (8, None, [], [8], ""), (8, "0,1", [], [2], ""), (8, None, ["--nproc", "4"], [4], ""),
        (8, "", [], [], "this process can use none of the 8 GPUs here: check CUDA_VISIBLE_DEVICES"),
        (0, None, ["--backend", "nccl"], [], "no GPU is visible"),
    ],
)  # fmt: skip
def test_alone_it_starts_a_rank_per_gpu_two_of_gloo_without_one_and_looks_where_none_can_be_used(
    nodes: int, chosen: str | None, argv: list[str], ranks: list[int], why: str, alone: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    reasons: list[str] = []
    alone.setattr(measuring.selflaunch, "launch", lambda count, *_: started.append(count) or 0)
    alone.setattr(accept.single_rank, "look", lambda *_, why, **__: reasons.append(why) or 3)
    for module in (accept, measuring):
        alone.setattr(module, "devices", lambda _: Devices(nodes, listed=chosen))
    alone.setattr(accept, "has_torch", lambda: True)
    assert main(argv) == (3 if why else 0)
    assert started == ranks
    assert [reason.startswith(why) for reason in reasons] == [True] * bool(why)


def test_one_rank_measures_its_copies_and_says_what_takes_two(alone: pytest.MonkeyPatch) -> None:
    parts = ("copies", "collectives", "pairs")
    alone.setenv("WORLD_SIZE", "1")
    assert (parse([]).what, parse([]).left_out) == (parts, ())  # of another launcher
    alone.setenv("NCCLPROBE_FOLDER", "/nowhere")
    one, ranks = "one GPU, so there is no link between GPUs", "one rank, so there is no traffic between ranks"
    for argv, why in (([], one), (["--backend", "nccl"], one), (["--backend", "gloo"], ranks)):
        asked = parse(argv)
        left = [(part, "alone", f"{why} to measure") for part in parts[1:]]
        assert (asked.what, [(row.op, row.cause, row.why) for row in asked.left_out]) == (("copies",), left)
    alone.setenv("WORLD_SIZE", "2")
    assert parse([]).what == parts


def test_a_quick_look_starts_no_rank_and_says_what_the_doctor_says(alone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone.setattr(measuring.selflaunch, "launch", lambda *_: pytest.fail("a rank was started"))
    path = tmp_path / "report.json"
    code = main(["--level", "quick", "--backend", "gloo", "-q", "--json", str(path), "--no-config"])
    looked = as_json.read(str(path))
    assert code == looked.exit_code
    assert not looked.measurements
    assert not any(verdict.id.startswith("run.") for verdict in looked.checks)
    assert {verdict.id for verdict in looked.checks} >= {"host.limits", "env.value"}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_without_torch_the_doctors_half_is_done_and_the_rest_named(
    backend: str, alone: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone.setitem(sys.modules, "torch", None)
    path = tmp_path / "report.json"
    own = ["--backend", "gloo"] if backend == "gloo" else []
    code = main([*own, "-q", "--json", str(path), "--no-config", "--keep", str(tmp_path / "kept")])
    looked = as_json.read(str(path))
    assert code == looked.exit_code
    assert code in (3, 4)
    assert looked.scope.backend == backend
    assert [(row.op, row.cause) for row in looked.skipped_rows] == [
        (part, "unable") for part in ("copies", "collectives", "pairs")
    ]
    (unknown,) = [verdict for verdict in looked.checks if verdict.id == "run.init"]
    assert "pip install torch" in unknown.why
    assert unknown.required
    assert any(verdict.id.startswith("env.") for verdict in looked.checks)
    assert len(list((tmp_path / "kept").glob("*.jsonl"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_two_ranks_are_accepted_in_one_launch_and_one_report(tmp_path: Path) -> None:
    lab = Launcher(tmp_path)
    run = lab.start(["-m", "ncclprobe", "accept", "--backend", "gloo", "--ladder", "--json", str(lab.report_path)])
    code = run.wait(200.0)  # it ends within its three minutes, however busy the machine
    report = as_json.read(str(lab.report_path))
    assert code == report.exit_code, run.err
    assert {row.nbytes for row in report.measurements} == {8, 4 << 20, 64 << 20}
    assert {(row.src, row.dst) for row in report.pairs} == {(0, 1), (1, 0)}
    assert {row.kind for row in report.copies} == {"host"}
    ids = {verdict.id for verdict in report.checks}
    assert {"run.data", "run.pairs", "run.copies", "run.ladder", "host.cpu"} <= ids
    assert [(row.rung, row.ranks) for row in report.ladder] == [("rank", 1), ("pair", 2)]
    said = run.out.splitlines()[-1]
    assert said == run.out.splitlines()[0]
    assert re.match(r"2 ranks on \S+, gloo: all_reduce 64 MiB: busbw [0-9.e+-]+ GB/s \(algbw ", said)
    assert re.search(r"; 1 pair at [0-9.e+-]+ GB/s; ladder 2 ranks ", said)
