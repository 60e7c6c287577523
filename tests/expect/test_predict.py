"""What is expected of one collective: whose number is taken, and how low it may be.

What decides calls of all machines and boxes is in tests/data/command_values/machines.txt.
"""

from collections.abc import Iterator

import pytest

from expect.boxes import A100, B200, GIB, H100, KIB, MEGA, NO_NVLINK, NODE, PAIR
from ncclprobe.expect.expected import FADES, drawn, expectation, published_start_us
from ncclprobe.expect.predict import CORRECTIONS, LATEST, Correction, Prediction, corrected_us, predict, start_us, where
from ncclprobe.expect.system import NcclVersion, Network, NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.expect.tables.machines import Latency, MachineType
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from tests.each_row import each_row, known

TWO, FOUR = Shape((2,)), Shape((8,) * 4)
PCIE = replace(A100, name="2x PCIe", gpus=2, processor="unknown", sockets=1, **NO_NVLINK)
TCP = replace(H100, name="TCP", network="sockets", nics=1, nic_gbps=100, gdr=False)


def expected(op: str, nbytes: int, shape: Shape, system: NodeSystem, **more: object) -> Expectation:
    return known(expectation(op, nbytes, shape, system, **more))  # type: ignore[arg-type]


def predicted(
    system: NodeSystem, shape: Shape, op: str = "all_reduce", nbytes: int = 8 * GIB, version: NcclVersion = LATEST,
    **more: str | None,
) -> Prediction:  # fmt: skip
    return known(predict(system, shape, op, nbytes, version, **more))  # type: ignore[arg-type]


@each_row(
    ("system", "shape", "op", "busbw"),
    [
        (A100, NODE, "all_reduce", 235), (H100, NODE, "all_reduce", 480), (H100, NODE, "all_gather", 362),
        (B200, NODE, "all_reduce", 840), (H100, FOUR, "all_reduce", 366), (MEGA, PAIR, "all_gather", 188),
        (A100, PAIR, "all_reduce", 187), (H100, NODE, "all_to_all", 348),
    ],
)  # fmt: skip
def test_a_published_peak_is_expected_and_never_fails(system: NodeSystem, shape: Shape, op: str, busbw: float) -> None:
    assert expected(op, 8 * GIB, shape, system).threshold < busbw
    assert busbw / predicted(system, shape, op).busbw_GBps == pytest.approx(1, abs=0.12)


HOSTED, BETWEEN = replace(PCIE, p2p=False), replace(PCIE, sockets=2, processor="skl")


@each_row(
    ("system", "shape", "nbytes", "bottleneck", "why"),
    [
        (H100, NODE, 8 * GIB, "NVLink", "18 NVLinks x 20.6 GB/s as NCCL counts them, NVLS Simple, 8 ranks"),
        (PCIE, TWO, 8 * GIB, "PCIe", "PCIe that NCCL counts as 24 GB/s, Ring Simple, 2 ranks"),
        (HOSTED, TWO, GIB, "PCIe", "PCIe that NCCL counts as 24 GB/s, through host memory; published runs reach 0.59"),
        (BETWEEN, TWO, 8 * GIB, "inter-socket", "the link between processor sockets, which NCCL counts as 10 GB/s; p"),
        (H100, PAIR, KIB, "latency", "limited by a single node, 474.5 GB/s: the network would allow 705, Tree LL"),
    ])  # fmt: skip
def test_what_decides_is_said(system: NodeSystem, shape: Shape, nbytes: int, bottleneck: str, why: str) -> None:
    found = predicted(system, shape, nbytes=nbytes)
    assert (found.bottleneck, found.why[: len(why)]) == (bottleneck, why)


def test_half_the_nvlinks_fail_and_many_nodes_warn_at_most() -> None:
    whole = expected("all_gather", 8 * GIB, NODE, A100)
    assert predicted(replace(A100, nvlinks=6), NODE, "all_gather").busbw_GBps < whole.threshold
    assert whole.worst == "fail"
    assert [expected("all_gather", GIB, Shape((8,) * nodes), H100).worst for nodes in (4, 128)] == ["fail", "warn"]


def test_a_published_number_of_several_nodes_is_used_and_one_too_loosely_known_takes_the_models_threshold() -> None:
    mega, p5 = machines.find("a3-megagpu-8g"), machines.find("p5.48xlarge")
    own = expected("all_reduce", 8 * GIB, PAIR, mega.system(), machine=mega)
    assert (own.basis, own.value) == ("published", 339.0)
    loose, alone = (expected("all_reduce", 8 * GIB, PAIR, p5.system(), machine=each) for each in (p5, None))
    assert (loose.basis, loose.value) == ("published", 479.0)
    assert loose.threshold == pytest.approx(alone.threshold, rel=0.02)
    assert "the model expects" in loose.known


USERS = Band("all_reduce", GIB, GIB, Expectation(300, 290, "GB/s", "user", "acceptance", "rack 7"))
SITES = Band("all_reduce", GIB, 8 * GIB, Expectation(310, 300, "GB/s", "baseline", "ten runs", "site"))


def test_the_user_comes_before_the_site_before_what_is_published_before_the_model() -> None:
    dgx = machines.find("dgx-h100")
    given_ones = (((USERS, SITES), dgx), ((SITES,), dgx), ((), dgx), ((), None))
    found = [expected("all_reduce", GIB, NODE, H100, machine=each, given=bands) for bands, each in given_ones]
    assert [each.basis for each in found] == ["user", "baseline", "published", "model"]


@each_row(
    ("ports", "gbps", "network", "version", "rule", "busbw"),
    [
        (16, 100, "roce", (2, 14, 3), "Ring", 180.1), (16, 100, "roce", (2, 29, 3), "Ring", 189.6),
        (8, 200, "ib", (2, 30, 7), "Ring", 187.2), (4, 100, "efa", (2, 30, 7), "Tree", 78.3),
    ],
)  # fmt: skip
def test_two_nodes_of_a100_take_what_nccl_s_model_chooses(
    ports: int, gbps: float, network: Network, version: NcclVersion, rule: str, busbw: float
) -> None:
    found = predicted(replace(A100, nics=ports, nic_gbps=gbps, network=network), PAIR, version=version)
    assert found.algorithm == rule
    assert found.busbw_GBps == pytest.approx(busbw, rel=0.09)


def test_a_call_waits_as_its_path_makes_it_wait_and_operations_wait_alike() -> None:
    assert start_us("nvlink ampere") > start_us("nvlink hopper"), "a small call takes 35 us on 8 A100, 15 on 8 H100"
    assert start_us("tcpx") > start_us("tcpxo") > start_us("ib") > start_us("pcie") > 0
    assert start_us("nvlink blackwell") == start_us("nvlink"), "a class that has none of its own is as its kind"
    assert start_us("rdma pairs") == start_us("rdma")
    calls = ("all_reduce", "broadcast", "all_to_all", "all_gather")
    times = [predicted(A100, NODE, op, 1024).time_us for op in calls]
    assert max(times) < 1.6 * min(times)


def test_every_class_has_few_factors_that_are_not_far_from_the_model() -> None:
    for path, factors in CORRECTIONS.items():
        fits = (0.5 <= factors.latency <= 4, 0.7 <= factors.transfer <= 2, 0 <= factors.filling <= 2)
        assert all(fits), path
    assert corrected_us(10, 90, Correction()) == 100  # no correction is the model itself
    assert corrected_us(10, 90, Correction(2, 1, 0.5)) == pytest.approx(20 + 90 + 0.5 * (20 * 90) ** 0.5)
    assert corrected_us(10, 90, Correction(filling=1), start=30) == pytest.approx(40 + 90 + 60)
    crossing = {"crosses_network": False}
    assert [where(each, NODE, "NVLS", LATEST, **crossing) for each in (B200, H100)] == ["nvls-8", "nvls"]


AZURE, GOOGLE = machines.find("standard-nd96asr-v4"), machines.find("a3-megagpu-8g")


def time_us(machine: MachineType, op: str, nbytes: int, shape: Shape) -> float:
    nbytes = OPS[op].shape(nbytes, shape.ranks, 4).nbytes
    value = expected(op, nbytes, shape, machine.system(), machine=machine).value
    return nbytes * OPS[op].bus_factor(shape.ranks) / value / 1e3


@each_row("op", ["all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"])
@each_row(("machine", "shape", "published"), [(AZURE, NODE, "all_reduce"), (GOOGLE, PAIR, "all_gather")])
def test_small_calls_learn_from_the_published_one(op: str, machine: MachineType, shape: Shape, published: str) -> None:
    told, own = (time_us(machine, name, 2 * KIB, shape) for name in (published, op))
    assert own == pytest.approx(told, rel=0.35)


def timed(*calls: tuple[int, float]) -> MachineType:
    """A machine of which calls of 1 KiB on so many nodes took so long."""
    found = tuple(Latency("all_reduce", 8, nodes, KIB, us, "source", "why") for nodes, us in calls)
    return MachineType(AZURE.name, "maker", AZURE.gpu, AZURE.match, AZURE.links, latencies=found)


def test_what_a_machine_waits_for_is_the_median_of_its_own_calls_in_a_node_or_between_nodes() -> None:
    machine = timed((1, 30), (1, 50), (2, 90))
    assert published_start_us(machine, NODE, lambda row: 10.0) == 30
    assert published_start_us(machine, PAIR, lambda row: 10.0) == 80
    assert published_start_us(machine, PAIR, lambda row: 95.0) == 0, "never below none"
    assert published_start_us(machine, PAIR, lambda row: None) is None
    assert published_start_us(machines.find("dgx-b300"), NODE, lambda row: 10.0) is None


def ends() -> Iterator[tuple[MachineType, str, Shape, int]]:
    for machine in machines.table().values():
        for late in machine.latencies:
            yield machine, late.op, Shape((late.gpus,) * late.nodes), late.max_bytes
        for rate in machine.published:
            if rate.gpus * rate.nodes > 1 and rate.algorithm != "sharp":
                yield machine, rate.op, Shape((rate.gpus,) * rate.nodes), rate.min_bytes


@each_row(("machine", "op", "shape", "nbytes"), list(ends()))
def test_no_curve_steps_where_two_numbers_meet(machine: MachineType, op: str, shape: Shape, nbytes: int) -> None:
    below, above = (time_us(machine, op, size, shape) for size in (int(nbytes / 1.05), int(nbytes * 1.05)))
    assert 0.93 < above / below < 1.1**2 * 1.1


def test_a_number_without_another_on_its_far_side_fades_and_is_expected_itself_at_its_own() -> None:
    machine = timed((1, 60.0))
    factors = [drawn(machine, "all_reduce", KIB * by, NODE, lambda nbytes: 30.0)[0] for by in (1, 8, FADES, 4 * FADES)]
    assert factors == pytest.approx([2, 2**0.5, 1, 1])
    _, words = drawn(machine, "all_reduce", 8 * KIB, NODE, lambda nbytes: 30.0)
    assert words == "adjusted to published results at 1 KiB"
    assert drawn(machine, "all_gather", KIB, NODE, lambda nbytes: 30.0) == (1.0, "")
    found = expected("all_reduce", 8 * GIB, NODE, AZURE.system(), machine=AZURE)
    assert (found.basis, "drawn" in found.why) == ("published", False)
