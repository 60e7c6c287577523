"""Pseudonyms: prefixes are preserved exactly, and ranges that mean something are not left."""

from ipaddress import IPv4Address, IPv6Address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.redact.pseudonyms import Pseudonyms


def shared(first: int, second: int, bits: int) -> int:
    return bits - (first ^ second).bit_length()


near = st.tuples(st.integers(0, (1 << 128) - 1), st.integers(0, 128), st.integers(0, (1 << 128) - 1)).map(
    lambda t: (t[0], t[0] ^ t[2] >> t[1])
)


@given(pair=near, octet=st.sampled_from([0x20, 0x26, 0xFD, 0xFE]))
def test_addresses_guids_and_macs_that_share_leading_bits_share_exactly_as_many_afterwards(
    pair: tuple[int, int], octet: int
) -> None:
    new = Pseudonyms(b"k")
    first, second = (value >> 96 for value in pair)
    renamed = [int(new.ipv4(IPv4Address(value))) for value in (first, second)]
    assert shared(*renamed, 32) == shared(first, second, 32)
    first, second = (octet << 120 | value >> 8 for value in pair)
    renamed = [int(new.ipv6(IPv6Address(value))) for value in (first, second)]
    assert shared(*renamed, 128) == shared(first, second, 128)
    guids, macs = ([value >> bits for value in pair] for bits in (64, 80))
    assert shared(*map(new.eui64, guids), 64) == shared(*guids, 64)
    if not {*macs} & {0, (1 << 48) - 1}:
        assert shared(*map(new.mac, macs), 48) == shared(*macs, 48)


low = st.integers(0, (1 << 64) - 1).map(lambda bits: 0xFE80 << 112 | bits)
KINDS = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified")


@given(value=st.integers(0, (1 << 32) - 1), long=st.integers(0, (1 << 128) - 1) | low)
def test_an_address_stays_in_its_range(value: int, long: int) -> None:
    new = Pseudonyms(b"k")
    before, after = IPv4Address(value), new.ipv4(IPv4Address(value))
    for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"):
        assert (before in ip_network(net)) == (after in ip_network(net))
    assert [getattr(before, kind) for kind in KINDS] == [getattr(after, kind) for kind in KINDS]
    one, other = IPv6Address(long), new.ipv6(IPv6Address(long))
    kinds = (*KINDS, "is_site_local")
    assert [getattr(one, kind) for kind in kinds] == [getattr(other, kind) for kind in kinds]
    assert (one.ipv4_mapped is None) == (other.ipv4_mapped is None)
    every = [IPv6Address(text) for text in ("::1", "ff02::1", "ff05::1:3", "2001:db8::1", "fd00::7")]
    assert [new.ipv6(each) == each for each in every] == [True, True, True, False, False]


@given(digits=st.text("0123456789abcdef", min_size=32, max_size=32), length=st.integers(1, 32))
def test_the_first_digits_of_a_uuid_become_the_first_digits_of_its_pseudonym(digits: str, length: int) -> None:
    new = Pseudonyms(b"k")
    assert shared(int(new.uuid(digits)[:length], 16), int(new.uuid(digits[:length]), 16), 128) >= 124


def test_a_guid_made_from_a_mac_shows_it_and_any_other_keeps_no_digit() -> None:
    """Its middle was kept once: with a chance neighbour that was half of it, for one key in 450."""
    renamed = [f"{Pseudonyms(bytes([key])).eui64(0x7929_4793_9251_4894):016x}" for key in range(64)]
    assert all(len(set(digits)) > 1 for digits in zip(*renamed, strict=True))
    assert {Pseudonyms(bytes([key])).eui64(0x7929_47FF_FE51_4894) >> 24 & 0xFFFF for key in range(64)} == {0xFFFE}
