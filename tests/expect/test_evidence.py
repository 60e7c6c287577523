"""What an expectation may decide: only what held-back sources bear out, and never more than that."""

import pytest

from ncclprobe.expect import evidence
from ncclprobe.expect.bands import once
from ncclprobe.expect.evidence import ErrorCell, path_of, weighed
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import replace
from tests.each_row import each_row

from .boxes import A100, B200, H100, PLAIN, SOCKETS, V100

NODE, PAIR, GIB = Shape((8,)), Shape((8, 8)), 1 << 30
NUMBER = Expectation(100.0, 0.0, "GB/s", "model", "why", "source")


def with_cell(system: NodeSystem, shape: Shape, nbytes: int, mark: float | None, by_time: bool = False) -> Expectation:
    """By a class that is known up to 4 nodes."""
    key = ("model", path_of(system, shape, "all_reduce"), evidence.decade(nbytes))
    cells = {key: ErrorCell(*key, 5, 60, 4, 0.03, 0.08, mark)}
    return weighed(NUMBER, system, shape, "all_reduce", nbytes, by_time=by_time, cells=cells)


@each_row(
    ("system", "shape", "op", "path"),
    [
        (H100, NODE, "all_reduce", "nvlink hopper"),
        (A100, NODE, "all_to_all", "nvlink ampere pairs"),
        (V100, NODE, "broadcast", "nvlink volta"),
        (replace(PLAIN, sockets=1), Shape((2,)), "all_reduce", "pcie"),
        (PLAIN, Shape((2,)), "all_reduce", "sockets"),
        (replace(PLAIN, p2p=False), Shape((2,)), "all_reduce", "host"),
        (H100, PAIR, "all_reduce", "ib"),
        (replace(H100, network="efa"), PAIR, "sendrecv", "efa pairs"),
        (replace(H100, network="roce", gdr=False), PAIR, "all_reduce", "roce host"),
        (replace(H100, nic_gbps=800), PAIR, "all_reduce", "ib slot"),
        (replace(PLAIN, compute_capability=121, network="roce"), Shape((1, 1)), "all_gather", "roce unified"),
        (replace(H100, network="tcpxo"), PAIR, "all_reduce", "tcpxo"),
        (SOCKETS, Shape((1, 1)), "all_reduce", "tcp"),
        (replace(H100, gpus=4, fabric="mesh"), Shape((4,)), "all_reduce", "nvlink hopper wired"),
        (replace(H100, network=None), PAIR, "all_reduce", "unknown"),
        (replace(B200, gpus=4, domain_gpus=72), Shape((4,) * 18), "all_reduce", "mnnvl"),
        (replace(B200, gpus=4, domain_gpus=72), Shape((4,) * 36), "all_reduce", "racks"),
    ],
)
def test_the_path_of_the_bytes_is_a_class_of_its_own(system: NodeSystem, shape: Shape, op: str, path: str) -> None:
    assert path_of(system, shape, op) == path


def test_a_cell_with_a_mark_gives_a_threshold_and_says_how_well_it_is_known() -> None:
    found = with_cell(H100, NODE, 8 * GIB, 0.8)
    assert (found.threshold, found.worst) == (80.0, "fail")
    assert "have a median error of 3%; nine of ten rows are within 8% (5 sources, 60 rows)" in found.known
    assert once((70, 71), found).status == "fail"


def test_a_mark_below_the_gross_one_fails_no_row_that_the_gross_one_passes() -> None:
    assert [with_cell(H100, NODE, GIB, mark).worst for mark in (0.3, 0.4)] == ["warn", "fail"]


@each_row("mark", [None, "no cell"])
def test_without_enough_sources_a_row_is_shown_and_judged_by_the_gross_mark_alone(mark: object) -> None:
    found = with_cell(H100, NODE, GIB, None) if mark is None else weighed(NUMBER, PLAIN, Shape((2,)), "gather", GIB)
    assert (found.value, found.threshold, found.worst) == (100.0, 0.0, "unjudged")
    assert "not judged" in found.known
    assert "it takes 3 sources and 15 rows" in found.known
    assert once((34, 35), found).status == "unjudged"
    assert once(None, found).status == "unjudged"
    assert once((1, 1), found).status == "fail"  # a third is missed by nobody's table


@each_row(
    ("system", "shape", "nbytes", "mark", "by_time"),
    [
        (H100, NODE, GIB, 0.8, True),  # latency decides
        (H100, PAIR, 64 << 20, 0.9, False),  # between nodes, up to 64 MiB
    ],
)
def test_what_may_be_a_wrong_table_warns_at_most_above_the_gross_mark(
    system: NodeSystem, shape: Shape, nbytes: int, mark: float, by_time: bool
) -> None:
    found = with_cell(system, shape, nbytes, mark, by_time)
    assert found.worst == "warn"
    assert once((34, 35), found).status == "warn"
    assert once((32, 33), found).status == "fail"


def test_far_more_nodes_than_the_class_is_known_of_warn_at_most_and_the_text_says_why() -> None:
    near, far = (with_cell(H100, Shape((8,) * nodes), GIB, 0.74) for nodes in (32, 33))
    assert near.worst == "fail"
    assert near.gross == pytest.approx(100 / 3)
    assert once((70, 71), near).status == "fail"
    assert "known up to" not in near.known
    assert (far.worst, far.gross, far.threshold) == ("warn", near.gross, near.threshold)
    assert far.known == f"{near.known}; known up to 4 nodes, so 33 fail only by the coarse threshold"
    assert once((70, 70), far).status == "warn"
    assert once((10, 10), far).status == "fail", "a third of the expectation fails everywhere"


def test_128_nodes_of_infiniband_warn_by_what_is_shipped_and_8_still_fail() -> None:
    for nodes, worst in ((8, "fail"), (128, "warn"), (512, "warn")):
        found = expectation("all_reduce", GIB << 3, Shape((8,) * nodes), H100)
        assert found is not None
        assert found.worst == worst
        assert once((found.threshold - 2, found.threshold - 1), found).status == worst


def test_infiniband_and_roce_stand_in_for_each_other_where_one_alone_is_too_little_known() -> None:
    own, both = (("model", path, 9) for path in ("ib", "rdma"))
    cells = {own: ErrorCell(*own, 2, 9, 2, 0.01, 0.02, None), both: ErrorCell(*both, 9, 60, 32, 0.05, 0.1, 0.7)}
    found = weighed(NUMBER, H100, PAIR, "all_reduce", GIB, cells=cells)
    assert (found.threshold, found.worst) == (70.0, "fail")
    assert "over InfiniBand or RoCE between nodes" in found.known
    other = weighed(NUMBER, replace(H100, network="slingshot"), PAIR, "all_reduce", GIB, cells=cells)
    assert (other.worst, other.confidence) == ("unjudged", "low")
    assert "over Slingshot between nodes" in other.known


def test_pairs_over_switches_are_known_together_and_wired_ones_not_at_all() -> None:
    stands_in = {
        path: evidence.pooled(path) for path in ("nvlink hopper pairs", "nvlink blackwell pairs", "roce pairs")
    }
    assert stands_in == {
        **dict.fromkeys(("nvlink hopper pairs", "nvlink blackwell pairs"), "nvlink pairs"),
        "roce pairs": "rdma pairs",
    }
    assert {evidence.pooled(path) for path in ("nvlink hopper", "nvlink hopper wired pairs", "mnnvl pairs")} == {None}


def test_the_shipped_errors_have_a_mark_where_there_are_sources_and_rows_enough_and_nowhere_else() -> None:
    cells = evidence.table().values()
    assert len(cells) > 40
    for cell in cells:
        assert (cell.mark is not None) == evidence.enough(cell.sources, cell.rows), cell
        assert cell.mark is None or 0 < cell.mark <= 0.9
        assert 0 <= cell.median <= cell.ninety


def test_nothing_between_nodes_fails_up_to_64_mib_by_what_is_shipped() -> None:
    for system in (H100, A100, replace(H100, network="efa"), replace(H100, network="tcpxo"), SOCKETS):
        for power in range(3, 27):
            shape = Shape((system.gpus, system.gpus))
            assert weighed(NUMBER, system, shape, "all_reduce", 1 << power).worst != "fail"
