"""Counters of NICs: read where they are, subtracted with care, and unknown where they cannot be trusted."""

import json

from conftest import answers
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts import traffic
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.host import Question
from ncclprobe.model.errors import Denied
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row


def site(**changed: object) -> dict[Question, object]:
    return {
        ("list", "/sys/class/net"): ["bonding_masters", "eth0", "eth1", "lo"],
        ("files", "/sys/class/net/eth0/statistics"): {"tx_bytes": "100", "rx_bytes": "70", "rx_errors": "0"},
        ("files", "/sys/class/net/eth1/statistics"): Denied("eth1: permission denied"),
        ("list", "/sys/class/infiniband"): ["mlx5_0"],
        ("list", "/sys/class/infiniband/mlx5_0/ports"): ["1"],
        ("files", "/sys/class/infiniband/mlx5_0/ports/1/counters"): {"port_xmit_data": "10", "port_rcv_data": "20"},
        **changed,  # type: ignore[dict-item]
    }


def test_ethernet_counts_bytes_and_infiniband_counts_words_of_four() -> None:
    found = traffic.read(answers(site()))
    assert found.ethernet["eth0"] == Count(100, 70)
    assert found.rdma == {"mlx5_0:1": Count(40, 80)}


def test_two_looks_are_two_questions() -> None:
    again = {("counters", "/sys/class/net/eth0/statistics", 2): {"tx_bytes": "160", "rx_bytes": "70"}}
    assert traffic.read(answers(site() | again), 2).ethernet["eth0"] == Count(160, 70)


def test_a_counter_that_cannot_be_read_says_why_and_loopback_is_no_nic() -> None:
    found = traffic.read(answers(site()))
    assert isinstance(denied := found.ethernet["eth1"], Absent)
    assert denied.refused == "Denied"
    assert set(found.ethernet) == {"eth0", "eth1"}


def test_a_machine_without_rdma_has_no_rdma_counters() -> None:
    alone = {ask: said for ask, said in site().items() if "infiniband" not in str(ask[1])}
    assert traffic.read(answers(alone)).rdma == {}


def grown(before: Count | Absent, after: Count | Absent, kind: traffic.NicKind = "ethernet") -> Count | Absent:
    made = [Traffic(**{kind: {"nic": count}}) for count in (before, after)]
    return traffic.moved(made[0], made[1], kind)["nic"]


@given(before=st.integers(0, 1 << 63), more=st.integers(0, 1 << 40))
def test_a_counter_that_grows_has_moved_the_difference(before: int, more: int) -> None:
    assert grown(Count(before, 0), Count(before + more, 0)) == Count(more, 0)


@given(before=st.integers(1 << 31, (1 << 32) - 1), more=st.integers(0, 1 << 30))
def test_a_counter_of_32_bits_may_wrap_once(before: int, more: int) -> None:
    assert grown(Count(before, 0), Count((before + more) % (1 << 32), 0)) == Count(more, 0)


@each_row(("before", "after"), [(5_000_000_000, 10), (1 << 30, 10), (1 << 33, 1 << 32)])
def test_a_counter_that_was_set_back_is_not_known(before: int, after: int) -> None:
    assert isinstance(grown(Count(before, 0), Count(after, 0)), Absent)


def test_words_of_four_wrap_at_four_times_32_bits() -> None:
    last = (1 << 34) - 8
    assert grown(Count(last, 0), Count(8, 0), "rdma") == Count(16, 0)


def test_a_nic_that_came_in_between_is_not_known() -> None:
    found = traffic.moved(Traffic(), Traffic({"eth9": Count(5, 5)}), "ethernet")
    assert isinstance(found["eth9"], Absent)


def test_an_answer_that_is_no_table_is_not_known() -> None:
    broken = answers({**site(), ("files", "/sys/class/net/eth0/statistics"): json.dumps([1])})
    assert isinstance(traffic.read(broken).ethernet["eth0"], Absent)
