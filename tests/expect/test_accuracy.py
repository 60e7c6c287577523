"""What the expectations make of published runs: held here, so that a change of the model shows."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclprobe.expect import evidence
from ncclprobe.model.values import replace

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "tests" / "data" / "published"

pytestmark = pytest.mark.slow  # statistics of a fit: before a change to the model, and before a release


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("accuracy", str(ROOT / "scripts" / "accuracy.py"))
    spec = importlib.util.spec_from_loader("accuracy", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module  # its values look themselves up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def points(accuracy: ModuleType) -> list[Any]:
    found: list[Any] = accuracy.held_out.points(accuracy.kept(PUBLISHED))
    return found


@pytest.fixture(scope="module")
def samples(accuracy: ModuleType) -> list[Any]:
    found: list[Any] = accuracy.held_out.samples(accuracy.kept(PUBLISHED))
    return found


@pytest.fixture(scope="module")
def nested(accuracy: ModuleType, samples: list[Any]) -> list[Any]:
    found: list[Any] = accuracy.held_out.nested(samples)
    return found


def runs(judged: list[Any], health: str) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for each in judged:
        if each.row.healthy == health:
            found.setdefault(each.run, []).append(each)
    return found


def test_the_shipped_errors_are_what_the_generator_makes_of_the_published_runs(
    accuracy: ModuleType, samples: list[Any]
) -> None:
    made = accuracy.held_out.as_csv(accuracy.held_out.cells(samples))
    assert made == accuracy.ERRORS.read_text(encoding="utf-8"), "run scripts/accuracy --errors"


def test_of_sources_held_back_whole_hardly_a_healthy_row_or_run_fails(nested: list[Any]) -> None:
    own = runs(nested, "yes")
    rows = [each for run in own.values() for each in run]
    assert sum(each.status == "fail" for each in rows) <= 0.005 * len(rows)
    assert sum(any(each.status == "fail" for each in run) for run in own.values()) <= len(own) / 50


def test_no_row_between_nodes_fails_below_64_mib(nested: list[Any]) -> None:
    small = [e for e in nested if e.nbytes < 64 << 20 and e.path.split()[0] not in evidence.IN_NODE]
    assert len(small) > 100
    assert not any(each.status == "fail" for each in small)


def test_half_of_the_sick_runs_fail_though_their_sources_are_held_back(nested: list[Any]) -> None:
    sick = runs(nested, "no")
    assert len(sick) > 10
    assert sum(any(each.status == "fail" for each in run) for run in sick.values()) >= len(sick) / 2


def test_a_source_has_no_part_in_the_thresholds_that_it_is_judged_by(accuracy: ModuleType, samples: list[Any]) -> None:
    source = next(each.source for each in samples if each.path == "roce")
    slower = [replace(e, value_GBps=e.value_GBps / 100) if e.source == source else e for e in samples]
    assert accuracy.held_out.without(slower, source) == accuracy.held_out.without(samples, source)
    assert accuracy.held_out.cells(slower) != accuracy.held_out.cells(samples)
    sources = accuracy.held_out.sources([each.row for each in samples])
    assert sources["Azure/AI-benchmarking-guide"] == sources["Azure/aks-rdma-infiniband"]


def test_the_factors_that_ship_are_nearly_those_that_fit_the_published_runs_best(
    accuracy: ModuleType, points: list[Any]
) -> None:
    made, shipped = accuracy.fitting.fit(points), accuracy.fitting.Factors()
    losses = [accuracy.fitting.loss(points, factors.time_us) for factors in (made, shipped)]
    assert losses[1] <= 1.03 * losses[0], "run scripts/accuracy.py --fit"


def test_the_table_of_costs_is_what_the_doctor_says(accuracy: ModuleType) -> None:
    kept = accuracy.REPORT.read_text(encoding="utf-8").partition(f"\n{accuracy.COSTS}")[2]
    assert f"{accuracy.COSTS}{kept}" == accuracy.costs(), "run scripts/accuracy.py --costs, and read the difference"
    assert len(accuracy.PRICED) == 6
    assert len(accuracy.WRONG.split()) == 30
