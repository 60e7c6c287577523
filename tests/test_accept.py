"""`ncclprobe accept`: what it measures, what it leaves out for want of time, and one run over two gloo ranks."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher

from ncclprobe.checks.run.rows import BAND
from ncclprobe.commands import measuring
from ncclprobe.commands.accept import main, parse
from ncclprobe.errors import UsageError
from ncclprobe.model.measurement import Band
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.expectations import judgeable
from ncclprobe.session.measure.parts import too_late

SIZES = (1 << 30, 256 << 20, 64 << 20, 4 << 20, 64 << 10, 8)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Launcher]:
    found = Launcher(tmp_path)
    yield found
    found.clear()


def test_it_measures_three_things_within_its_minutes() -> None:
    asked = parse(["--minutes", "1"])
    assert asked.what == ("copies", "collectives", "pairs")
    assert (asked.timeout_s, asked.phase_timeout_s) == (60.0, 10.0)
    assert asked.budget_s * len(asked.sizes) <= 60.0 / 4
    assert asked.sizes_for("nccl") == SIZES
    assert parse(["--timeout", "90"]).timeout_s == 90.0


def test_the_ladder_is_climbed_last_and_only_where_it_was_asked_for() -> None:
    assert parse(["--ladder"]).what == ("copies", "collectives", "pairs", "ladder")
    assert "ladder" not in parse([]).what


@pytest.mark.parametrize("argv", [["--minutes", "0"], ["--minutes", "0.1"], ["--op", "all_gather"]])
def test_what_does_not_apply_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv)


def test_the_sizes_that_can_be_judged_are_chosen_and_the_smallest() -> None:
    judges = Band("all_reduce", 128 << 20, 1 << 30, BAND)
    assert judgeable(SIZES, [judges], "nccl") == (1 << 30, 256 << 20, 8)


@pytest.mark.parametrize(("backend", "usual"), [("nccl", 64 << 20), ("gloo", 4 << 20)])
def test_where_none_can_be_judged_a_usual_one_and_the_largest_are_measured(backend: str, usual: int) -> None:
    assert judgeable(SIZES, [], backend) == (1 << 30, usual, 8)


def test_a_part_that_comes_too_late_is_left_out_and_named() -> None:
    late = too_late("pairs", 20.0, 180.0)
    assert late is not None
    assert (late.op, late.nbytes, late.cause) == ("pairs", None, "time")
    assert late.why == "20 s were left of 180, and it is given 36 or more"
    assert too_late("pairs", 90.0, 180.0) is None


def test_alone_it_starts_two_ranks_of_gloo_only_where_gloo_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    started: list[int] = []
    monkeypatch.setattr(measuring.selflaunch, "launch", lambda count, *_: started.append(count) or 0)
    assert main(["--backend", "gloo"]) == 0
    assert started == [2]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_two_ranks_are_accepted_in_one_launch_and_one_report(lab: Launcher) -> None:
    run = lab.start(["-m", "ncclprobe", "accept", "--backend", "gloo", "--ladder", "--json", str(lab.report_path)])
    code = run.wait(200.0)  # it ends within its three minutes, however busy the machine
    report = as_json.read(str(lab.report_path))
    assert code == report.exit_code, run.err
    assert {row.nbytes for row in report.measurements} == {8, 4 << 20, 64 << 20}
    assert {(row.src, row.dst) for row in report.pairs} == {(0, 1), (1, 0)}
    assert {row.kind for row in report.copies} == {"host"}
    ids = {verdict.id for verdict in report.checks}
    assert {"run.data", "run.pairs", "run.copies", "run.ladder", "host.affinity"} <= ids
    assert [(row.rung, row.ranks) for row in report.ladder] == [("rank", 1), ("pair", 2)]
    said = run.out.splitlines()[-1]
    assert said.startswith("2 ranks, gloo: ")
    assert re.search(r"; 1 pair at [0-9.e+-]+ GB/s; ladder 2 ranks ", said)
