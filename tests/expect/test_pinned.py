"""Settings that change what a collective should reach: the expectation is for them, or judges nothing and says why."""

import pytest

from ncclprobe.expect.bands import once
from ncclprobe.expect.composed import composed
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import NOTHING, Pinned, pinned
from ncclprobe.expect.predict import predict
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.model.measurement import Expectation
from tests.each_row import each_row

from .boxes import H100, LATEST, PLAIN

NODE, GIB = Shape((8,)), 1 << 30
DGX = machines.find("dgx-h100")


def set_to(**variables: str) -> Pinned:
    return pinned(merge(Environment(variables), ()), LATEST)


def expected(settings: Pinned, system: NodeSystem = H100, op: str = "all_reduce", shape: Shape = NODE) -> Expectation:
    found = expectation(op, 8 * GIB, shape, system, machine=DGX, settings=settings)
    assert found is not None
    return found


def test_no_setting_changes_nothing() -> None:
    assert set_to() == NOTHING
    assert not set_to(NCCL_DEBUG="INFO", NCCL_NVLS_ENABLE="2", NCCL_P2P_LEVEL="NVL")
    assert expected(NOTHING).basis == "published"


@each_row("value", ["Ring", "ring", "^NVLS,NVLSTree,Tree,CollNetDirect,CollNetChain,PAT", "allreduce:ring"])
def test_a_pinned_ring_is_expected_at_a_rings_speed_and_passes_there(value: str) -> None:
    ring = predict(H100, NODE, "all_reduce", 8 * GIB, algorithm="Ring")
    assert ring is not None
    found = expected(set_to(NCCL_ALGO=value))
    assert found.value == pytest.approx(ring.busbw_GBps, rel=1e-3)  # DGX's own small calls say what it waits for
    assert found.worst == "fail"
    assert once((ring.busbw_GBps, ring.busbw_GBps), found).status == "pass"
    assert once((ring.busbw_GBps, ring.busbw_GBps), expected(NOTHING)).status != "pass"
    assert f"NCCL_ALGO={value}" in found.why


def test_a_list_for_another_function_changes_nothing_of_this_one() -> None:
    assert expected(set_to(NCCL_ALGO="broadcast:ring")).value == expected(NOTHING).value


def test_switches_that_do_not_reduce_leave_a_ring() -> None:
    found = expected(set_to(NCCL_NVLS_ENABLE="0"))
    assert 340 < found.value < 380
    assert found.worst == "fail"


@each_row(
    ("variables", "said"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1"),
        ({"NCCL_P2P_LEVEL": "LOC"}, "NCCL_P2P_LEVEL=LOC"),
        ({"NCCL_ALGO": "Tree"}, "NCCL_ALGO=Tree"),
        ({"NCCL_PROTO": "LL"}, "NCCL_PROTO=LL"),
        ({"NCCL_ALGO": "nonsense"}, "NCCL refuses NCCL_ALGO=nonsense"),
        ({"NCCL_MAX_NCHANNELS": "2"}, "NCCL_MAX_NCHANNELS=2"),
    ],
)
def test_what_is_not_known_with_a_setting_judges_nothing_and_names_it(variables: dict[str, str], said: str) -> None:
    found = expected(set_to(**variables))
    assert found.worst == "unjudged"
    assert said in found.known
    assert once((1, 1), found).status == "unjudged"


@each_row(
    "variables",
    [
        {"NCCL_PROTO": "Simple"},
        {"NCCL_MAX_NCHANNELS": "64"},
        {"NCCL_MIN_NCHANNELS": "64"},  # as in NVIDIA's own recipe for Spectrum-X: bytes alone decide at 8 GiB
        {"NCCL_ALGO": "NVLS"},
    ],
)
def test_a_setting_that_leaves_the_choice_as_it_was_leaves_the_verdict(variables: dict[str, str]) -> None:
    found = expected(set_to(**variables))
    assert (found.value, found.threshold, found.worst) == (
        expected(NOTHING).value,
        expected(NOTHING).threshold,
        expected(NOTHING).worst,
    )


def test_racks_without_their_nvlink_fabric_are_nodes_that_a_network_joins() -> None:
    machine = machines.find("gb200-nvl72")
    system, shape = machine.system(), Shape((4,) * 8)
    joined, apart = (
        expectation("all_reduce", 8 * GIB, shape, system, machine=machine, settings=each)
        for each in (NOTHING, set_to(NCCL_MNNVL_ENABLE="0"))
    )
    assert joined is not None
    assert apart is None or apart.value < joined.value / 2


def test_p2p_that_there_never_was_cannot_be_turned_off() -> None:
    from ncclprobe.model.values import replace

    lone = replace(PLAIN, p2p=False)
    plain, off = (expectation("all_reduce", GIB, Shape((2,)), lone, settings=each)
                  for each in (NOTHING, set_to(NCCL_P2P_DISABLE="1")))  # fmt: skip
    assert plain is not None
    assert off is not None
    assert (plain.value, "NCCL_P2P_DISABLE" in off.known) == (off.value, False)


def test_numbers_of_one_byte_are_not_added_up_by_switches() -> None:
    byte, word = (expectation("all_reduce", 8 * GIB, NODE, H100, machine=DGX, itemsize=size) for size in (1, 4))
    gathered = [expectation("all_gather", 8 * GIB, NODE, H100, machine=DGX, itemsize=size) for size in (1, 4)]
    ring = predict(H100, NODE, "all_reduce", 8 * GIB, algorithm="Ring")
    assert byte
    assert word
    assert ring
    assert byte.value == pytest.approx(ring.busbw_GBps, rel=0.02)
    assert byte.value < 0.8 * word.value
    assert gathered[0] == gathered[1]


def test_more_channels_leave_a_call_that_latency_decides_unjudged() -> None:
    found = expectation("all_reduce", 64 << 10, NODE, H100, settings=set_to(NCCL_MIN_NCHANNELS="32"))
    assert found
    assert "NCCL_MIN_NCHANNELS=32" in found.known


def test_more_channels_leave_a_call_across_sockets_unjudged_and_its_machine_unrefuted() -> None:
    """8 RTX PRO 6000 on two EPYC: 22 GB/s with NCCL's own channels, 38 with eight of them."""
    box = composed("8 x RTX PRO 6000, 2 sockets, Turin")
    found = {
        value: expectation("all_reduce", 2 * GIB, NODE, box, settings=set_to(NCCL_MIN_NCHANNELS=value))
        for value in ("8", "1")
    }
    eight, one = found["8"], found["1"]
    assert eight
    assert one
    assert eight.gross is None
    assert "NCCL_MIN_NCHANNELS=8" in eight.known
    assert one.gross is not None
    assert "NCCL_MIN_NCHANNELS" not in one.known
