"""NCCL's search and cost model, against worked examples, tables that NCCL printed, and numbers made by hand."""

import pytest

from expect.boxes import A100, B200, GIB, H100, LATEST, MESH, NODE, PAIR, PLAIN, RACK, SOCKETS, found
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.constants import BEFORE, CORRECTIONS, tuning
from ncclprobe.expect.tuner.cost import Cost, Forced
from ncclprobe.expect.tuner.search import Graph, Graphs, nvlink_domains
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import replace
from tests.each_row import each_row, known


@each_row(
    ("system", "gpus", "channels", "speed"),
    [
        (A100, (8,), 12, 20),  # 240 GB/s: 40 x 6, duplicated
        (H100, (8,), 12, 30),  # 370.8: 60 x 6, duplicated
        (B200, (8,), 16, 45),  # 721.8: 90 x 8, duplicated
        (H100, (8, 8), 8, 48),  # 400G behind Gen5: not duplicated
        (PLAIN, (2,), 1, 10),  # over Skylake's UPI, NVIDIA/nccl#1358
        (replace(SOCKETS, nics=4, nic_gbps=10), (1, 1), 4, 1.2),  # NVIDIA/nccl#601
        (MESH, (4,), 12, 20),  # 80 GB/s to each of three: six rings of 40, duplicated
        (H100, (8, 4), 8, 24),  # unequal nodes agree on the least
    ],
)
def test_a_ring_is_the_worked_one(system: NodeSystem, gpus: tuple[int, ...], channels: int, speed: float) -> None:
    answer = found(system, Shape(gpus))
    assert (answer.ring.channels, answer.ring.bw_intra, answer.ring.bw_inter) == (channels, speed, speed)
    assert len(gpus) > 1 or answer.tree.channels == channels


def test_an_nvlink_domain_of_many_nodes_is_one_node_and_switches_that_add_need_multicast() -> None:
    """More machines and releases are in tests/data/command_values/graphs.txt."""
    assert nvlink_domains(RACK, Shape((4,) * 36)) == (72, 72)
    # 72 GPUs are too many for NCCL to put every channel on one path before it loses patience.
    assert found(RACK, Shape((4,) * 18)).ring == replace(found(B200, NODE).ring, same_channels=False)
    assert (known(found(H100, NODE).nvls).channels, found(replace(H100, nvls=False), NODE).nvls) == (8, None)


ONE = Graph(pattern=4, channels=2, bw_intra=1.2, bw_inter=1.2, type_intra="LOC", type_inter="PHB", same_channels=True)
TREE = replace(ONE, pattern=3, bw_intra=2.4)
BLACKWELL = replace(SOCKETS, compute_capability=120, nics=2, nic_gbps=10, processor="unknown")
PRINTED = {
    ("Tree", "LL"): (16.8, 0.5), ("Tree", "LL128"): (31.0, 0.0), ("Tree", "Simple"): (36.4, 1.9),
    ("Ring", "LL"): (16.6, 1.2), ("Ring", "LL128"): (31.0, 0.0), ("Ring", "Simple"): (36.4, 2.4),
}  # fmt: skip
"""AllReduce as NCCL 2.29.7 printed it: 2 ranks on 2 nodes, sm120, Socket (nccl_log_grammar.md, tuning-row)."""


def cells(
    system: NodeSystem, shape: Shape, op: str = "all_reduce", version: NcclVersion = LATEST
) -> dict[tuple[str, str], cost.Cell]:
    made = cost.cells(found(system, shape, version), system, shape, op, version)
    return {(cell.algorithm, cell.protocol): cell for cell in made}


def best(
    system: NodeSystem, op: str, nbytes: int = 16 * GIB, version: NcclVersion = LATEST, forced: Forced | None = None
) -> Cost | None:
    return cost.best(found(system, NODE, version), system, NODE, op, nbytes, version, *([forced] if forced else []))


def test_a_printed_table_is_reproduced_to_its_last_digit_and_the_search_comes_to_it() -> None:
    """``Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`` was printed on the same machine."""
    log, pair, release = Graphs(ring=ONE, tree=TREE, source="log"), Shape((1, 1)), (2, 29, 7)
    made = cost.cells(log, BLACKWELL, pair, "all_reduce", release)
    told = {(cell.algorithm, cell.protocol): (round(cell.latency_us, 1), round(cell.algbw_GBps, 1)) for cell in made}
    assert told == PRINTED
    answer = found(BLACKWELL, pair, release)
    assert (answer.ring.channels, answer.ring.bw_intra) == (2, 1.2)
    assert (answer.tree.pattern, answer.tree.bw_intra) == (3, 2.4)
    small = known(cost.best(log, BLACKWELL, pair, "broadcast", 16384, release))
    assert (small.algorithm, small.protocol, small.channels) == ("Ring", "LL", 2)


@each_row(
    ("system", "op", "expected", "algorithm"),
    [
        (H100, "all_reduce", 476, "NVLS"),  # measured 485 (plugins/profiler/inspector/README.md of NCCL)
        (H100, "reduce_scatter", 360, "Ring"),  # measured 366
        (B200, "all_reduce", 719, "NVLS"),
        (A100, "all_reduce", 240, "Ring"),
    ],
)
def test_the_peak_of_a_box_is_the_models(system: NodeSystem, op: str, expected: float, algorithm: str) -> None:
    made = known(best(system, op))
    assert made.algorithm == algorithm
    assert made.busbw_GBps == pytest.approx(expected, rel=0.003)


def test_latencies_are_the_formulas_by_hand() -> None:
    """8 ranks of one node over NVLink: Ring LL 6.6 + 14 x 0.6, Tree LL 6.8 + 14 x 0.6, Ring Simple 8.4 + 14 x 3.4.

    16 ranks on 2 nodes, Intel: 6.6 + 28 x max(0.6, 1.0) + 2 x 2.7; 2.20 counted two crossings more.
    """
    made = {cell: each.latency_us for cell, each in cells(H100, NODE).items()}
    assert made["Ring", "LL"] == pytest.approx(15.0)
    assert made["Tree", "LL"] == pytest.approx(15.2)
    assert made["Ring", "Simple"] == pytest.approx(56.0)
    assert made["NVLS", "Simple"] == pytest.approx(25.0)
    for version, expected in ((LATEST, 6.6 + 28 + 2 * 2.7), ((2, 20, 5), 6.6 + 26 + 4 * 2.7)):
        assert cells(H100, PAIR, version=version)["Ring", "LL"].latency_us == pytest.approx(expected)


def test_pat_is_for_one_gpu_per_node_since_2_23_and_ll128_is_not_trusted_over_the_processor() -> None:
    for per_node, version, has in ((1, LATEST, True), (8, LATEST, False), (1, (2, 22, 3), False)):
        made = cells(H100, Shape((per_node,) * 4), "all_gather", version)
        assert ("PAT" in {algorithm for algorithm, _ in made}) == has
    far = cells(replace(H100, gdr=False), PAIR)
    assert {cell.algbw_GBps for (_, protocol), cell in far.items() if protocol == "LL128"} == {0}


def test_a_forced_ring_is_a_ring_and_what_is_forced_in_vain_fails_since_2_24() -> None:
    ring = known(best(H100, "all_reduce", GIB, forced=Forced(frozenset({"Ring"}), frozenset({"Simple"}))))
    assert (ring.algorithm, ring.protocol) == ("Ring", "Simple")
    assert ring.busbw_GBps < 370.8
    assert best(H100, "broadcast", GIB, forced=cost.only("Tree")) is None
    assert known(best(H100, "broadcast", GIB, (2, 23, 4), cost.only("Tree"))).algorithm == "Ring"
    with pytest.raises(UsageError, match="all_to_all"):  # NCCL has no model of pairs
        cost.table(found(H100, NODE), H100, NODE, "all_to_all", 1, LATEST)


def test_changes_between_versions_stand_newest_first_and_every_one_matters() -> None:
    assert {len(row) for row in CORRECTIONS.values()} == {24}
    assert all(0 < share <= 1 for row in CORRECTIONS.values() for share in row)
    since = [version for version, _ in BEFORE]
    assert since == sorted(since, reverse=True)
    before = [(a, b, c - 1) if c else (a, b - 1, 99) for a, b, c in since]
    assert len({str(tuning(version)) for version in [LATEST, *before]}) == len(since) + 1
    assert tuning((2, 22, 3)).nvlink["Tree"][2] == 28
    assert tuning((2, 20, 5)).ll_max[2] == (87.7, 22.5, 19.0)
