"""What the expectations make of published runs: held here, so that a change of the model shows."""

import importlib.machinery
import importlib.util
import sys
from math import log
from pathlib import Path
from statistics import fmean, median
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


def test_most_published_collectives_of_known_gpus_can_be_predicted(samples: list[Any]) -> None:
    modelled = [each for each in samples if each.basis != "published"]
    assert len(modelled) > 1500
    assert sum(each.row.healthy == "yes" for each in modelled) > 1000


def test_the_peak_of_a_healthy_run_is_predicted_within_a_tenth_on_average(samples: list[Any]) -> None:
    """By factors that its source had no part in."""
    top: dict[str, dict[Any, Any]] = {}
    for each in samples:
        if each.basis != "published" and each.row.healthy == "yes" and each.nbytes >= 256 << 20:
            runs = top.setdefault(each.row.family, {})
            run = each.row.label, each.row.op, each.row.settings
            runs[run] = max(each, runs.get(run, each), key=lambda one: one.value_GBps)
    errors = [median(abs(log(each.reached)) for each in runs.values()) for runs in top.values()]
    assert len(errors) > 30
    assert fmean(errors) < 0.1


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


def test_large_rows_of_known_paths_are_judged(nested: list[Any]) -> None:
    paths = ("nvlink ampere", "nvlink hopper", "nvlink blackwell", "ib", "roce", "efa", "tcpxo")
    large = [each for each in nested if each.nbytes >= 1 << 30 and each.path in paths]
    assert sum(each.is_judged for each in large) >= 0.95 * len(large)


def test_half_of_the_sick_runs_fail_though_their_sources_are_held_back(nested: list[Any]) -> None:
    sick = runs(nested, "no")
    assert len(sick) > 10
    assert sum(any(each.status == "fail" for each in run) for run in sick.values()) >= len(sick) / 2


def test_the_gross_mark_finds_incidents_that_no_fine_mark_judges_and_the_report_says_how_many(
    accuracy: ModuleType, nested: list[Any]
) -> None:
    alone = [each for each in nested if accuracy.by_gross(each)]
    assert sum(each.row.healthy == "yes" for each in alone) <= 1
    assert len({each.run for each in alone if each.row.healthy == "no"}) >= 10
    text = accuracy.report(nested, [each.row for each in nested])
    assert "healthy rows that the gross mark alone judges: 252; 1 of them FAIL" in text
    (classes,) = (line.split("|") for line in text.splitlines() if line.startswith("| nvlink hopper pairs | below"))
    assert [cell.strip() for cell in classes[-5:-2]] == ["1", "8", "1"]


def test_a_source_has_no_part_in_the_thresholds_that_it_is_judged_by(accuracy: ModuleType, samples: list[Any]) -> None:
    source = next(each.source for each in samples if each.path == "roce")
    slower = [replace(e, value_GBps=e.value_GBps / 100) if e.source == source else e for e in samples]
    assert accuracy.held_out.without(slower, source) == accuracy.held_out.without(samples, source)
    assert accuracy.held_out.cells(slower) != accuracy.held_out.cells(samples)
    sources = accuracy.held_out.sources([each.row for each in samples])
    assert sources["Azure/AI-benchmarking-guide"] == sources["Azure/aks-rdma-infiniband"]


def test_a_mark_is_below_the_lowest_seen_and_wider_the_fewer_sources_there_are(accuracy: ModuleType) -> None:
    mark = accuracy.held_out.mark_of
    assert mark([0.8, 0.9, 1.0, 1.3]) < 0.8
    assert mark([0.8, 0.9, 1.0]) < mark([0.8, 0.9, 1.0, 0.8, 0.9, 1.0])
    assert mark([1.0] * 9) == accuracy.held_out.HIGHEST


def test_the_factors_that_ship_are_nearly_those_that_fit_the_published_runs_best(
    accuracy: ModuleType, points: list[Any]
) -> None:
    made, shipped = accuracy.fitting.fit(points), accuracy.fitting.Factors()
    losses = [accuracy.fitting.loss(points, factors.time_us) for factors in (made, shipped)]
    assert losses[1] <= 1.03 * losses[0], "run scripts/accuracy.py --fit"


def test_no_row_reads_its_own_source_as_another(accuracy: ModuleType) -> None:
    from published import family  # found by scripts/accuracy.py

    assert family("https://github.com/NVIDIA/nccl-tests/issues/309#x") == "NVIDIA/nccl-tests#309"
    assert family("https://github.com/a/b/blob/main/c.md#L3") == "a/b"
    assert family("https://www.nvidia.com/x") == "www.nvidia.com"


def test_what_a_row_says_of_its_network_and_algorithm_is_read_as_words(accuracy: ModuleType) -> None:
    from published import rows  # found by scripts/accuracy.py

    found = list(rows(PUBLISHED))
    assert {r.system.network for r in found if "megagpu" in r.system.name and r.shape.nodes > 1} == {"tcpxo"}
    assert {r.system.network for r in found if "OPA" in r.system.name} == {"opa"}
    advised = [r for r in found if r.family == "NVIDIA/nccl-tests#309" and r.settings == "default"]
    assert {r.forced for r in advised} == {None}, "a note that advises a ring is no ring"
    assert {r.forced for r in found if r.settings == "NCCL_ALGO=NVLSTree"} == {"NVLSTree"}
    racks = [r for r in found if r.system.name == "BM.GPU.GB300.4" and r.shape.nodes == 32]
    assert {r.system.nics for r in racks} == {8}, "a row that names a machine type has its NICs"


def test_documents_of_one_vendor_are_one_source_and_submitters_are_several(accuracy: ModuleType) -> None:
    sources = accuracy.held_out.sources(accuracy.kept(PUBLISHED))
    assert sources["mlcommons/training_results_v4.0: Oracle"] == sources["oracle-quickstart/oci-hpc"]
    assert sources["mlcommons/training_results_v5.0: Supermicro"] != sources["mlcommons/training_results_v4.0: Oracle"]
    assert sources["Oracle GB300 onboarding doc (BM.GPU.GB300.4)"] == sources["oracle-quickstart/oci-hpc"]
