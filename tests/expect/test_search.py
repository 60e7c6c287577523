"""The channels that NCCL's search finds, against the worked examples of docs/maintainers/nccl.md and of logs."""

from hypothesis import given
from hypothesis import strategies as st

from expect.boxes import A100, B200, H100, LATEST, MESH, PLAIN, SOCKETS, V100, found
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.expect.tuner.search import Graphs, graphs, nvlink_domains
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row, some


@each_row(
    ("system", "shape", "channels", "speed"),
    [
        (A100, Shape((8,)), 12, 20),  # 240 GB/s: 40 x 6, duplicated
        (H100, Shape((8,)), 12, 30),  # 370.8: 60 x 6, duplicated
        (B200, Shape((8,)), 16, 45),  # 721.8: 90 x 8, duplicated
        (H100, Shape((8, 8)), 8, 48),  # 400G behind Gen5: not duplicated
        (A100, Shape((8, 8)), 8, 24),  # 200G behind Gen4
        (PLAIN, Shape((2,)), 1, 10),  # over Skylake's UPI, NVIDIA/nccl#1358
        (replace(SOCKETS, nics=4, nic_gbps=10), Shape((1, 1)), 4, 1.2),  # NVIDIA/nccl#601
        (replace(SOCKETS, nics=1, nic_gbps=25), Shape((1, 1)), 1, 3.0),
        (MESH, Shape((4,)), 12, 20),  # 80 GB/s to each of three: six rings of 40, duplicated
        (replace(V100, gpus=4, fabric="mesh"), Shape((4,)), 6, 20),
        (replace(V100, fabric="cube-mesh"), Shape((8,)), 6, 20),
        (replace(H100, nics=32, nic_gbps=100), Shape((8, 8)), 32, 12),
    ],
)
def test_the_ring_is_the_one_of_the_worked_example(
    system: NodeSystem, shape: Shape, channels: int, speed: float
) -> None:
    ring = found(system, shape).ring
    assert (ring.channels, ring.bw_intra, ring.bw_inter) == (channels, speed, speed)


def test_a_tree_has_as_many_channels_as_the_ring() -> None:
    for system in (A100, H100, B200, MESH, PLAIN):
        answer = found(system, Shape((system.gpus,)))
        assert answer.tree.channels == answer.ring.channels


def test_every_gpu_of_a_hopper_pulls_from_the_switch() -> None:
    nvls = found(H100, Shape((8,))).nvls
    assert nvls is not None
    assert (nvls.channels, nvls.bw_intra, nvls.bw_inter) == (8, 40, 60)


def test_without_hopper_switch_or_multicast_there_is_no_nvls() -> None:
    for system in (A100, replace(H100, nvls=False), replace(H100, fabric="mesh", nvlinks=14)):
        assert found(system, Shape((8,))).nvls is None


def test_an_nvlink_domain_of_many_nodes_is_one_node() -> None:
    rack = replace(B200, gpus=4, domain_gpus=72)
    assert nvlink_domains(rack, Shape((4,) * 18)) == (72,)
    assert nvlink_domains(rack, Shape((4,) * 36)) == (72, 72)
    ring = found(B200, Shape((8,))).ring
    assert ring.same_channels
    # 72 GPUs are too many for NCCL to put every channel on one path before it loses patience.
    assert found(rack, Shape((4,) * 18)).ring == replace(ring, same_channels=False)


def test_a_network_without_gpudirect_is_reached_over_the_processor() -> None:
    assert found(H100, Shape((8, 8))).ring.type_inter == "PXB"
    assert found(replace(H100, gdr=False), Shape((8, 8))).ring.type_inter == "PHB"


def test_fewer_gpus_per_node_have_fewer_nics() -> None:
    ring = found(H100, Shape((4, 4))).ring
    assert ring.channels * ring.bw_inter == 4 * 48


def test_unequal_nodes_agree_on_the_least() -> None:
    assert found(H100, Shape((8, 4))).ring == replace(found(H100, Shape((4, 4))).ring)


def test_an_older_release_counts_slower_links() -> None:
    assert found(H100, Shape((8,)), (2, 19, 3)).ring.bw_intra * 12 <= 18 * 20.0
    assert found(replace(PLAIN, processor="amd"), Shape((2,)), (2, 18, 3)).ring.bw_intra == 12


@each_row(
    ("system", "shape", "why"),
    [
        (H100, Shape((1,)), "fewer than two"),
        (H100, Shape((9,)), "has 8 GPUs"),
        (replace(H100, nic_gbps=0.0), Shape((8, 8)), "NICs"),
        (replace(V100, fabric="cube-mesh"), Shape((3,)), "cube mesh"),
        (replace(A100, fabric="mesh", gpus=6), Shape((6,)), "do not divide"),
        (replace(PLAIN, pcie_GBps=0.0), Shape((2,)), "slots"),
    ],
)
def test_what_is_irregular_is_not_guessed(system: NodeSystem, shape: Shape, why: str) -> None:
    answer = graphs(system, shape, LATEST)
    assert isinstance(answer, Absent)
    assert why in answer.why


def test_every_known_machine_is_searched_or_says_why_not() -> None:
    for machine in some(machines.table().values()):
        system = machine.system()
        if isinstance(system, Absent):
            continue
        for nodes in (1, 2, 4):
            answer = graphs(system, Shape((system.gpus,) * nodes), LATEST)
            assert answer.why if isinstance(answer, Absent) else answer.ring.channels >= 1


@given(
    nics=st.integers(1, 8),
    gbps=st.sampled_from([10, 25, 40, 50, 100, 200, 400, 800]),
    gpus=st.integers(1, 8),
    system=st.sampled_from([A100, H100, B200]),
)
def test_no_search_reserves_more_than_the_nics_have(nics: int, gbps: int, gpus: int, system: NodeSystem) -> None:
    answer = graphs(replace(system, nics=nics, nic_gbps=gbps), Shape((gpus,) * 2), LATEST)
    if isinstance(answer, Graphs):
        assert answer.ring.channels * answer.ring.bw_inter <= max(1, nics) * gbps / 8 + 1e-6
        assert answer.ring.channels <= 32
