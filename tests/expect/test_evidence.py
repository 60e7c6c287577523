"""What an expectation may decide: only what held-back sources bear out, and never more than that.

The class of each path, and what it decides by size and nodes, is in tests/data/command_values/weighed.txt.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from expect.boxes import A100, B200, GIB, H100, NODE, PAIR, PLAIN, SOCKETS
from ncclprobe.expect import evidence
from ncclprobe.expect.bands import once
from ncclprobe.expect.evidence import ErrorCell, path_of, weighed
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import replace
from tests.each_row import each_row, known

ROOT, TWO = Path(__file__).resolve().parents[2], Shape((2,))
NUMBER = Expectation(100.0, 0.0, "GB/s", "model", "why", "source")


def with_cell(system: NodeSystem, shape: Shape, nbytes: int, mark: float | None, by_time: bool = False) -> Expectation:
    """By a class that is known up to 4 nodes."""
    key = ("model", path_of(system, shape, "all_reduce"), evidence.decade(nbytes))
    cells = {key: ErrorCell(*key, 5, 60, 4, 0.03, 0.08, mark)}
    return weighed(NUMBER, system, shape, "all_reduce", nbytes, by_time=by_time, cells=cells)


def verdicts(found: Expectation, *rates: float) -> list[str]:
    return [once((rate, rate), found).status for rate in rates]


def test_a_cell_with_a_mark_gives_a_threshold_and_one_below_the_gross_mark_fails_no_row() -> None:
    found = with_cell(H100, NODE, 8 * GIB, 0.8)
    assert (found.threshold, found.worst) == (80.0, "fail")
    assert "have a median error of 3%; nine of ten rows are within 8% (5 sources, 60 rows)" in found.known
    assert verdicts(found, 70) == ["fail"]
    assert [with_cell(H100, NODE, GIB, mark).worst for mark in (0.3, 0.4)] == ["warn", "fail"]


@each_row(
    "found", [with_cell(H100, NODE, GIB, None), weighed(NUMBER, PLAIN, TWO, "gather", GIB)], ids=["no mark", "no cell"]
)
def test_without_enough_sources_a_row_is_shown_and_judged_by_the_gross_mark_alone(found: Expectation) -> None:
    assert (found.value, found.threshold, found.worst) == (100.0, 0.0, "unjudged")
    assert "not judged" in found.known
    assert "it takes 3 sources and 15 rows" in found.known
    assert verdicts(found, 34, 1) == ["unjudged", "fail"]  # a third is missed by nobody's table
    assert once(None, found).status == "unjudged"


def test_far_more_nodes_than_the_class_is_known_of_warn_at_most_and_the_text_says_why() -> None:
    near, far = (with_cell(H100, Shape((8,) * nodes), GIB, 0.74) for nodes in (32, 33))
    assert (near.worst, near.gross, "known up to" in near.known) == ("fail", pytest.approx(100 / 3), False)
    assert (far.worst, far.gross, far.threshold) == ("warn", near.gross, near.threshold)
    assert far.known == f"{near.known}; known up to 4 nodes, so 33 fail only by the coarse threshold"
    assert (verdicts(near, 70), verdicts(far, 70, 10)) == (["fail"], ["warn", "fail"])
    for nodes, worst in ((8, "fail"), (128, "warn"), (512, "warn")):  # by what is shipped
        found = known(expectation("all_reduce", GIB << 3, Shape((8,) * nodes), H100))
        assert (found.worst, verdicts(found, found.threshold - 1)) == (worst, [worst])


def test_infiniband_and_roce_stand_in_for_each_other_where_one_alone_is_too_little_known() -> None:
    own, both = (("model", path, 9) for path in ("ib", "rdma"))
    cells = {own: ErrorCell(*own, 2, 9, 2, 0.01, 0.02, None), both: ErrorCell(*both, 9, 60, 32, 0.05, 0.1, 0.7)}
    found = weighed(NUMBER, H100, PAIR, "all_reduce", GIB, cells=cells)
    assert (found.threshold, found.worst) == (70.0, "fail")
    assert "over InfiniBand or RoCE between nodes" in found.known
    other = weighed(NUMBER, replace(H100, network="slingshot"), PAIR, "all_reduce", GIB, cells=cells)
    assert (other.worst, other.confidence) == ("unjudged", "low")
    assert "over Slingshot between nodes" in other.known


def test_the_shipped_errors_have_a_mark_where_there_are_sources_and_rows_enough_and_nowhere_else() -> None:
    cells = evidence.table().values()
    assert len(cells) > 40
    for cell in cells:
        assert (cell.mark is not None) == evidence.enough(cell.sources, cell.rows), cell
        assert cell.mark is None or 0 < cell.mark <= 0.9
        assert 0 <= cell.median <= cell.ninety
    for system in (H100, A100, replace(H100, network="efa"), replace(H100, network="tcpxo"), SOCKETS, B200):
        shape = Shape((system.gpus, system.gpus))
        for power in range(3, 27):  # nothing between nodes fails up to 64 MiB
            assert weighed(NUMBER, system, shape, "all_reduce", 1 << power).worst != "fail"


@pytest.mark.slow
def test_the_shipped_errors_are_those_of_the_published_runs() -> None:
    accuracy = _script("accuracy")
    held = accuracy.held_out
    samples = held.samples(accuracy.kept(ROOT / "tests" / "data" / "published"))
    made = held.as_csv(held.cells(samples))
    assert made == accuracy.ERRORS.read_text(encoding="utf-8"), "run scripts/accuracy --errors"


def _script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / f"{name}.py"))
    module = importlib.util.module_from_spec(known(importlib.util.spec_from_loader(name, loader)))
    sys.modules[name] = module  # its values look themselves up
    loader.exec_module(module)
    return module
