"""NCCL's cost model, against tables that NCCL printed and numbers that were worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expect.boxes import A100, B200, H100, LATEST, SOCKETS, found
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner import cost, search
from ncclprobe.expect.tuner.constants import ALGORITHMS, BEFORE, CORRECTIONS, tuning
from ncclprobe.expect.tuner.cost import Forced
from ncclprobe.expect.tuner.search import Graph, Graphs
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row

GIB = 1 << 30
ONE = Graph(pattern=4, channels=2, bw_intra=1.2, bw_inter=1.2, type_intra="LOC", type_inter="PHB", same_channels=True)
BLACKWELL = replace(SOCKETS, compute_capability=120, nics=2, nic_gbps=10, processor="unknown")
PRINTED = {
    ("Tree", "LL"): (16.8, 0.5),
    ("Tree", "LL128"): (31.0, 0.0),
    ("Tree", "Simple"): (36.4, 1.9),
    ("Ring", "LL"): (16.6, 1.2),
    ("Ring", "LL128"): (31.0, 0.0),
    ("Ring", "Simple"): (36.4, 2.4),
}
"""AllReduce as NCCL 2.29.7 printed it: 2 ranks on 2 nodes, sm120, Socket (nccl_log_grammar.md, tuning-row)."""


def busbw(system: NodeSystem, shape: Shape, op: str, nbytes: int, version: NcclVersion = LATEST) -> float:
    best = cost.best(found(system, shape, version), system, shape, op, nbytes, version)
    assert best is not None
    return best.busbw_GBps


def test_a_printed_table_is_reproduced_to_its_last_digit() -> None:
    tree = replace(ONE, pattern=3, bw_intra=2.4)
    graphs = Graphs(ring=ONE, tree=tree, source="log")
    cells = cost.cells(graphs, BLACKWELL, Shape((1, 1)), "all_reduce", (2, 29, 7))
    told = {(cell.algorithm, cell.protocol): (round(cell.latency_us, 1), round(cell.algbw_GBps, 1)) for cell in cells}
    assert told == PRINTED


def test_the_search_alone_comes_to_the_same_table() -> None:
    answer = found(BLACKWELL, Shape((1, 1)), (2, 29, 7))
    assert (answer.ring.channels, answer.ring.bw_intra) == (2, 1.2)
    assert (answer.tree.pattern, answer.tree.bw_intra) == (3, 2.4)


def test_a_small_broadcast_takes_ring_ll_as_the_log_says() -> None:
    """``Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`` on the same machine."""
    graphs = Graphs(ring=ONE, tree=replace(ONE, pattern=3, bw_intra=2.4), source="log")
    best = cost.best(graphs, BLACKWELL, Shape((1, 1)), "broadcast", 16384, (2, 29, 7))
    assert best is not None
    assert (best.algorithm, best.protocol, best.channels) == ("Ring", "LL", 2)


@each_row(
    ("system", "op", "expected"),
    [
        (H100, "all_reduce", 476),  # measured 485 (plugins/profiler/inspector/README.md of NCCL)
        (H100, "reduce_scatter", 360),  # measured 366
        (B200, "all_reduce", 719),
        (A100, "all_reduce", 240),
    ],
)
def test_the_peak_of_a_box_is_the_models(system: NodeSystem, op: str, expected: float) -> None:
    assert busbw(system, Shape((8,)), op, 16 * GIB) == pytest.approx(expected, rel=0.003)


def test_the_peak_of_a_box_is_made_by_its_switch_or_its_rings() -> None:
    for system, algorithm in ((H100, "NVLS"), (B200, "NVLS"), (A100, "Ring")):
        best = cost.best(found(system, Shape((8,))), system, Shape((8,)), "all_reduce", 16 * GIB, LATEST)
        assert best is not None
        assert best.algorithm == algorithm


def test_latencies_are_the_formulas_by_hand() -> None:
    """8 ranks of one node over NVLink: Ring LL 6.6 + 14 x 0.6, Tree LL 6.8 + 14 x 0.6, Ring Simple 8.4 + 14 x 3.4."""
    cells = cost.cells(found(H100, Shape((8,))), H100, Shape((8,)), "all_reduce", LATEST)
    latency = {(cell.algorithm, cell.protocol): cell.latency_us for cell in cells}
    assert latency["Ring", "LL"] == pytest.approx(15.0)
    assert latency["Tree", "LL"] == pytest.approx(15.2)
    assert latency["Ring", "Simple"] == pytest.approx(56.0)
    assert latency["NVLS", "Simple"] == pytest.approx(25.0)


def test_a_ring_between_nodes_pays_the_network_for_its_crossings_only() -> None:
    """16 ranks on 2 nodes, Intel: 6.6 + 28 x max(0.6, 1.0) + 2 x 2.7; 2.20 counted two crossings more."""
    shape = Shape((8, 8))
    for version, expected in ((LATEST, 6.6 + 28 + 2 * 2.7), ((2, 20, 5), 6.6 + 26 + 4 * 2.7)):
        cells = cost.cells(found(H100, shape, version), H100, shape, "all_reduce", version)
        ring = next(cell for cell in cells if (cell.algorithm, cell.protocol) == ("Ring", "LL"))
        assert ring.latency_us == pytest.approx(expected)


def test_pat_is_for_one_gpu_per_node() -> None:
    lonely, full = Shape((1,) * 4), Shape((8,) * 4)
    has = {
        shape: {c.algorithm for c in cost.cells(found(H100, shape), H100, shape, "all_gather", LATEST)}
        for shape in (lonely, full)
    }
    assert "PAT" in has[lonely]
    assert "PAT" not in has[full]
    before = cost.cells(found(H100, lonely, (2, 22, 3)), H100, lonely, "all_gather", (2, 22, 3))
    assert "PAT" not in {cell.algorithm for cell in before}


def test_ll128_is_not_trusted_over_the_processor() -> None:
    far = replace(H100, gdr=False)
    cells = cost.cells(found(far, Shape((8, 8))), far, Shape((8, 8)), "all_reduce", LATEST)
    assert all(cell.algbw_GBps == 0 for cell in cells if cell.protocol == "LL128")


def test_a_forced_ring_is_a_ring() -> None:
    best = cost.best(
        found(H100, Shape((8,))),
        H100,
        Shape((8,)),
        "all_reduce",
        GIB,
        LATEST,
        Forced(frozenset({"Ring"}), frozenset({"Simple"})),
    )
    assert best is not None
    assert (best.algorithm, best.protocol) == ("Ring", "Simple")
    assert best.busbw_GBps < 370.8


def test_what_is_forced_in_vain_fails_since_2_24_and_was_a_ring_before() -> None:
    shape, tree = Shape((8,)), cost.only("Tree")
    assert cost.best(found(H100, shape), H100, shape, "broadcast", GIB, LATEST, tree) is None
    old = (2, 23, 4)
    best = cost.best(found(H100, shape, old), H100, shape, "broadcast", GIB, old, tree)
    assert best is not None
    assert best.algorithm == "Ring"


def test_nccl_has_no_model_of_pairs() -> None:
    with pytest.raises(UsageError, match="all_to_all"):
        cost.table(found(H100, Shape((8,))), H100, Shape((8,)), "all_to_all", 1, LATEST)


def test_the_corrections_have_a_step_for_every_size() -> None:
    assert {len(row) for row in CORRECTIONS.values()} == {24}
    assert all(0 < share <= 1 for row in CORRECTIONS.values() for share in row)


def test_changes_between_versions_stand_newest_first_and_every_one_matters() -> None:
    since = [version for version, _ in BEFORE]
    assert since == sorted(since, reverse=True)
    before = [(a, b, c - 1) if c else (a, b - 1, 99) for a, b, c in since]
    assert len({str(tuning(version)) for version in [LATEST, *before]}) == len(since) + 1
    assert tuning((2, 22, 3)).nvlink["Tree"][2] == 28
    assert tuning((2, 20, 5)).ll_max[2] == (87.7, 22.5, 19.0)


_VERSIONS = [(2, minor, 0) for minor in range(20, 31)]


@given(
    system=st.sampled_from([A100, H100, B200, SOCKETS, replace(B200, gpus=4, domain_gpus=72)]),
    nodes=st.integers(1, 64),
    op=st.sampled_from(list(cost.FUNCTIONS)),
    power=st.integers(0, 40),
    version=st.sampled_from(_VERSIONS),
)
def test_a_cost_is_finite_and_every_byte_costs(
    system: NodeSystem, nodes: int, op: str, power: int, version: NcclVersion
) -> None:
    shape = Shape((system.gpus,) * nodes)
    searched = search.graphs(system, shape, version)
    if isinstance(searched, Absent):
        return
    less, more = (cost.best(searched, system, shape, op, 1 << bits, version) for bits in (power, power + 5))
    if less is None or more is None:
        assert less is more
        return
    assert 0 < less.latency_us <= less.time_us < math.inf
    assert less.time_us < more.time_us
    assert less.busbw_GBps > 0
    assert less.algorithm in ALGORITHMS
