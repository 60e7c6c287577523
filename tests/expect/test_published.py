"""What published numbers say of calls around them: one wait for all operations, and curves without a step."""

from collections.abc import Iterator

import pytest

from ncclprobe.expect.expected import FADES, drawn, expectation, published_start_us
from ncclprobe.expect.system import Shape
from ncclprobe.expect.tables import machines
from ncclprobe.expect.tables.machines import Latency, MachineType
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import OPS
from tests.each_row import each_row

A100 = machines.find("standard-nd96asr-v4")
MEGA = machines.find("a3-megagpu-8g")
NODE, PAIR = Shape((8,)), Shape((8, 8))
KIB, GIB = 1 << 10, 1 << 30


def time_us(machine: MachineType, op: str, nbytes: int, shape: Shape) -> float:
    nbytes = OPS[op].shape(nbytes, shape.ranks, 4).nbytes
    found = expectation(op, nbytes, shape, machine.system(), machine=machine)
    assert found is not None
    return nbytes * OPS[op].bus_factor(shape.ranks) / found.value / 1e3


@each_row("op", ["all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"])
@each_row(("machine", "shape", "published"), [(A100, NODE, "all_reduce"), (MEGA, PAIR, "all_gather")])
def test_small_calls_of_one_machine_learn_from_the_one_that_was_published(
    op: str, machine: MachineType, shape: Shape, published: str
) -> None:
    told, own = (time_us(machine, name, 2 * KIB, shape) for name in (published, op))
    assert own == pytest.approx(told, rel=0.35)


def test_what_a_machine_waits_for_is_the_median_of_its_own_calls_in_a_node_or_between_nodes() -> None:
    calls = [Latency("all_reduce", 8, nodes, KIB, us, "source", "why") for nodes, us in ((1, 30), (1, 50), (2, 90))]
    machine = MachineType(A100.name, "maker", A100.gpu, A100.match, A100.links, latencies=tuple(calls))
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
def test_no_curve_steps_where_a_published_number_meets_the_model(
    machine: MachineType, op: str, shape: Shape, nbytes: int
) -> None:
    below, above = (time_us(machine, op, size, shape) for size in (int(nbytes / 1.05), int(nbytes * 1.05)))
    assert 0.93 < above / below < 1.1**2 * 1.1


def test_a_number_without_another_on_its_far_side_fades() -> None:
    machine = MachineType(
        A100.name, "maker", A100.gpu, A100.match, A100.links,
        latencies=(Latency("all_reduce", 8, 1, KIB, 60.0, "source", "why"),),
    )  # fmt: skip
    factors = [drawn(machine, "all_reduce", KIB * by, NODE, lambda nbytes: 30.0)[0] for by in (1, 8, FADES, 4 * FADES)]
    assert factors == pytest.approx([2, 2**0.5, 1, 1])
    _, words = drawn(machine, "all_reduce", 8 * KIB, NODE, lambda nbytes: 30.0)
    assert words == "adjusted to published results at 1 KiB"
    assert drawn(machine, "all_gather", KIB, NODE, lambda nbytes: 30.0) == (1.0, "")


def test_the_number_that_is_published_is_expected_itself() -> None:
    found = expectation("all_reduce", 8 * GIB, NODE, A100.system(), machine=A100)
    assert isinstance(found, Expectation)
    assert found.basis == "published"
    assert "drawn" not in found.why
