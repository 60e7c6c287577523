"""What the kernel says of a connection, and kernels that say less."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.walk import TcpInfo, parse


def info(**fields: int) -> bytes:
    places = {"path_mtu": 60, "resent": 100, "acked": 120, "segments": 136, "min_rtt": 148, "busy": 168, "full": 176}
    said = bytearray(184)
    for name, value in fields.items():
        said[places[name] : places[name] + 4] = value.to_bytes(4, sys.byteorder)
    return bytes(said)


def test_fields_are_where_the_kernel_puts_them() -> None:
    said = info(path_mtu=9000, resent=3, acked=4096, segments=200, min_rtt=45, busy=3000, full=1000)
    assert parse(said) == TcpInfo(path_mtu=9000, resent=3, segments=200, rtt_s=45e-6, acked_bytes=4096, waiting_s=0.002)


def test_no_round_trip_yet_is_not_zero_seconds() -> None:
    assert parse(info(min_rtt=0xFFFFFFFF)).rtt_s is None


@given(st.integers(0, 184))
def test_an_older_kernel_says_less_and_what_it_does_not_say_is_none(nbytes: int) -> None:
    whole = parse(info(path_mtu=1500, resent=1, acked=1, segments=1, min_rtt=1))
    short = parse(info(path_mtu=1500, resent=1, acked=1, segments=1, min_rtt=1)[:nbytes])
    assert (short.path_mtu is None) == (nbytes < 64)
    assert (short.resent is None) == (nbytes < 104)
    assert (short.segments is None) == (nbytes < 140)
    assert (short.rtt_s is None) == (nbytes < 152)
    assert nbytes < 184 or short == whole
