"""The list grammar of NCCL_SOCKET_IFNAME and NCCL_IB_HCA."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.nccl.hcas import ANY, MAX_HCAS, MAX_INTERFACES, Entry, parse_selector
from tests.each_row import each_row

LIBC = ctypes.CDLL(None)
LIBC.atoi.argtypes = (ctypes.c_char_p,)
LIBC.atoi.restype = ctypes.c_int


@each_row(
    ("text", "entries"),
    [
        ("", ()),
        (",,", ()),
        ("eth0", (Entry("eth0"),)),
        ("eth0,,eth1,", (Entry("eth0"), Entry("eth1"))),
        ("eth0, eth1", (Entry("eth0"), Entry(" eth1"))),
        ("mlx5_0:1", (Entry("mlx5_0", 1),)),
        ("mlx5_0:1:2:3", (Entry("mlx5_0", 1, 2, 3),)),
        ("mlx5_0::0:1", (Entry("mlx5_0", ANY, 0, 1),)),
        ("mlx5_0:1:2:3:4", (Entry("mlx5_0", 1, 2, 3),)),
        ("mlx5_0:x", (Entry("mlx5_0", 0),)),
        (":1,mlx5_0", (Entry("mlx5_0"),)),
        ("eth0,^lo", (Entry("eth0"), Entry("^lo"))),
        ("a" * 70, (Entry("a" * 63),)),
    ],
)
def test_a_list_is_split_as_nccl_splits_it(text: str, entries: tuple[Entry, ...]) -> None:
    assert parse_selector(text, MAX_HCAS).entries == entries


@each_row(
    ("text", "exclude", "exact", "first"),
    [
        ("eth", False, False, "eth"),
        ("^eth", True, False, "eth"),
        ("=eth", False, True, "eth"),
        ("^=eth", True, True, "eth"),
        ("=^eth", False, True, "^eth"),
        ("^^eth", True, False, "^eth"),
    ],
)
def test_the_signs_count_in_front_of_the_list_and_in_this_order(
    text: str, exclude: bool, exact: bool, first: str
) -> None:
    selector = parse_selector(text, MAX_HCAS)
    assert (selector.exclude, selector.exact, selector.entries[0].prefix) == (exclude, exact, first)


@each_row(
    ("text", "name", "port", "taken"),
    [
        ("", "anything", ANY, True),
        ("^", "anything", ANY, False),
        ("eth1", "eth10", ANY, True),
        ("=eth1", "eth10", ANY, False),
        ("=eth1", "eth1", ANY, True),
        ("=eth0, eth1", "eth1", ANY, False),
        ("eth0,^lo", "lo", ANY, False),
        ("^docker,lo", "docker0", ANY, False),
        ("^docker,lo", "eth0", ANY, True),
        ("^=lo", "lo0", ANY, True),
        ("eth0:1", "eth0", ANY, True),
        ("mlx5_1", "mlx5_12", 1, True),
        ("=mlx5_1", "mlx5_12", 1, False),
        ("mlx5_0:1", "mlx5_0", 1, True),
        ("mlx5_0:1", "mlx5_0", 2, False),
        ("mlx5_0", "mlx5_0", 2, True),
        ("mlx5_0:-1", "mlx5_0", 2, True),
        ("mlx5_0::0:1", "mlx5_0", 2, True),
        ("^mlx5_0:1", "mlx5_0", 2, True),
        ("^mlx5_0:1", "mlx5_0", 1, False),
    ],
)
def test_a_device_is_taken_or_left_as_nccl_does(text: str, name: str, port: int, taken: bool) -> None:
    assert parse_selector(text, MAX_HCAS).takes(name, port) is taken


@each_row("limit", [MAX_INTERFACES, MAX_HCAS])
def test_entries_beyond_the_limit_are_told_and_not_used(limit: int) -> None:
    names = [f"nic{number}x" for number in range(limit + 2)]
    selector = parse_selector("=" + ",,".join(names), limit)
    assert [entry.prefix for entry in selector.entries] == names[:limit]
    assert selector.dropped == tuple(names[limit:])
    assert not selector.takes(names[-1])


def test_entries_that_vanish_do_not_use_up_the_limit() -> None:
    selector = parse_selector(",:1,eth0", limit=1)
    assert (selector.entries, selector.dropped) == ((Entry("eth0"),), ())


def test_the_limits_are_those_of_nccl() -> None:
    assert (MAX_INTERFACES, MAX_HCAS) == (16, 32)


@pytest.mark.slow
@given(st.text(), st.sampled_from([MAX_INTERFACES, MAX_HCAS]), st.text(), st.integers(-1, 3))
def test_any_text_is_a_list(text: str, limit: int, name: str, port: int) -> None:
    selector = parse_selector(text, limit)
    assert len(selector.entries) <= limit
    assert all(entry.prefix and "," not in entry.prefix for entry in selector.entries)
    assert selector.takes(name, port) in (True, False)


@given(st.text(alphabet=" \t+-0123456789x", min_size=1, max_size=25))
def test_a_port_is_the_number_that_libc_makes_of_it(text: str) -> None:
    (entry,) = parse_selector(f"mlx5_0:{text}", MAX_HCAS).entries
    assert entry.port == LIBC.atoi(text.encode())
