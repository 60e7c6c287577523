"""What the expectations make of published runs: held here, so that a change of the model shows."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FACTS = Path(os.environ.get("NCCLPROBE_SHARED") or ROOT.parent / "shared") / "facts"
PUBLISHED, SWEEPS = FACTS / "published_results.csv", FACTS / "sweep_index.csv"

pytestmark = pytest.mark.skipif(not PUBLISHED.exists(), reason="the published runs are not in this checkout")


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("accuracy", str(ROOT / "scripts" / "accuracy.py"))
    spec = importlib.util.spec_from_loader("accuracy", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module  # its dataclasses look themselves up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pairs(accuracy: ModuleType) -> list[Any]:
    odd = accuracy.outliers(SWEEPS)
    return list(accuracy.paired(row for row in accuracy.rows(PUBLISHED) if (row.sweep, row.nbytes) not in odd))


def healthy(pairs: list[Any]) -> list[Any]:
    return [pair for pair in pairs if pair.row.healthy == "yes"]


def test_most_published_collectives_of_known_gpus_can_be_predicted(pairs: list[Any]) -> None:
    assert len(pairs) > 1500
    assert len(healthy(pairs)) > 1000


def test_the_peak_of_a_healthy_run_is_predicted_within_a_tenth_on_average(
    accuracy: ModuleType, pairs: list[Any]
) -> None:
    top = accuracy.peaks(pair for pair in healthy(pairs) if pair.nbytes >= accuracy.PEAK)
    error, sources, _ = accuracy.over_sources(top, accuracy.statistics.median)
    assert sources > 30
    assert error < 0.1


def test_one_healthy_row_of_a_hundred_fails_and_no_peak_does(accuracy: ModuleType, pairs: list[Any]) -> None:
    well = healthy(pairs)
    assert sum(map(accuracy.failing, well)) <= 0.01 * len(well)
    peaks = accuracy.peaks(pair for pair in well if pair.nbytes >= accuracy.PEAK)
    assert not any(map(accuracy.failing, peaks))


def test_nine_of_ten_sick_runs_fail(accuracy: ModuleType, pairs: list[Any]) -> None:
    sick: dict[tuple[str, str], list[bool]] = {}
    for pair in pairs:
        row = pair.row
        if row.healthy == "no":
            sick.setdefault((row.label, row.family), []).append(accuracy.failing(pair))
    assert len(sick) > 10
    assert sum(map(any, sick.values())) >= 0.9 * len(sick)


def test_the_correction_helps_sources_that_it_was_not_fitted_to(accuracy: ModuleType, pairs: list[Any]) -> None:
    corrections = accuracy.correction
    for place, factors in corrections.CORRECTIONS.items():
        own = [
            p
            for p in healthy(pairs)
            if p.found.place == place and accuracy.held_back(p.row.family) and p.row.op not in accuracy.direct.OPS
        ]
        if own and factors != corrections.Correction():
            assert accuracy.loss(own, factors) < accuracy.loss(own, corrections.Correction()), place


def test_no_row_reads_its_own_source_as_another(accuracy: ModuleType) -> None:
    from published import family  # found by scripts/accuracy.py

    assert family("https://github.com/NVIDIA/nccl-tests/issues/309#x") == "NVIDIA/nccl-tests#309"
    assert family("https://github.com/a/b/blob/main/c.md#L3") == "a/b"
    assert family("https://www.nvidia.com/x") == "www.nvidia.com"
