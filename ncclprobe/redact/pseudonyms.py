"""Keyed pseudonyms: stable for the same original and key, and irreversible without the key.

Addresses, GUIDs and UUIDs are permuted with their prefixes preserved, as Crypto-PAn does it (Xu, Fan, Ammar, Moon,
"Prefix-preserving IP address anonymization", ICNP 2002): two that share exactly k leading bits have pseudonyms that
share exactly k leading bits, so subnets stay subnets. Whether a bit is flipped depends only on the key and the bits
before
it. It is not flipped if that would leave a range that has a meaning (10.0.0.0/8, fe80::/64).
"""

import hmac
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_V4 = (  # ranges that an address stays within
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15"),
)
_V4_WHOLE = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")  # kept bit for bit; the last holds netmasks
_V6 = ("::/64", "fe80::/64", "fec0::/10", "fc00::/8", "fd00::/8", "2000::/3", "2001:db8::/32", "64:ff9b::/64")
_V6_WHOLE = ("ff00::/8",)
_EMBEDDED = tuple(IPv6Network(net) for net in ("::ffff:0:0/96", "::/96", "64:ff9b::/96"))  # with an IPv4 address inside

Range = tuple[int, int, bool]  # a prefix, its length, whether everything within it is kept too
_EUI_HELD = 0x0300_0000_0000_0000
"""Bits of an EUI-64 that never flip: universal/local and group."""
_FROM_MAC: tuple[Range, ...] = ((0xFFFE, 16, False),)
"""The middle of an EUI-64 made from a MAC, which is preserved; what differs from it keeps the first differing bit."""
_SERIAL_CHARS, _NAME_CHARS = 12, 10
PSEUDONYM = re.compile(rf"host-(?=\d*[a-f])[0-9a-f]{{{_NAME_CHARS}}}(\..*)?")
"""The pseudonym of a node; one with digits only (one in a hundred) is excluded, because a site may have such names."""


def _ranges(bits: int, nets: Iterable[IPv4Network | IPv6Network], whole: bool) -> tuple[Range, ...]:
    """Group `nets` by their first `bits` bits."""
    return tuple((int(n.network_address) >> (n.max_prefixlen - bits), n.prefixlen, whole) for n in nets)


_IPV4_RANGES = _ranges(32, map(IPv4Network, _V4), False) + _ranges(32, map(IPv4Network, _V4_WHOLE), True)
_SUBNET_RANGES = _ranges(64, map(IPv6Network, _V6), False) + _ranges(64, map(IPv6Network, _V6_WHOLE), True)
_ZERO: tuple[Range, ...] = ((0, 64, False),)  # nothing (no GUID, the network itself) stays nothing


class Pseudonyms:
    """One key's pseudonyms. Answers are cached; nothing else is kept."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._octet = lru_cache(maxsize=1 << 16)(self._digest)
        self.ipv4 = lru_cache(maxsize=1 << 16)(self._ipv4)
        self.ipv6 = lru_cache(maxsize=1 << 16)(self._ipv6)

    def host(self, label: str) -> str:
        """Return the pseudonym of one label of a host or domain name; case-insensitive."""
        return f"host-{self._hex('host', label.lower(), _NAME_CHARS)}"

    def user(self, name: str) -> str:
        """Return the pseudonym of a user's name."""
        return f"user-{self._hex('user', name, _NAME_CHARS)}"

    def name(self, text: str) -> str:
        """Return the pseudonym of a project, a plugin or a run."""
        return f"name-{self._hex('name', text.lower(), _NAME_CHARS)}"

    def serial(self, text: str) -> str:
        """Return the pseudonym of a serial number or asset tag."""
        return f"serial-{self._hex('serial', text, _SERIAL_CHARS)}"

    def digits(self, text: str) -> str:
        """Return as many hexadecimal digits as `text` has, at most 64 of them random: a machine's or container's id."""
        return self._hex("digits", text.lower(), len(text))

    def uuid(self, text: str) -> str:
        """Return the pseudonym of a UUID, or of its first digits, which CUDA accepts as well; zero stays zero."""
        digits = text.replace("-", "").replace("_", "")
        value = int(digits.ljust(32, "0"), 16)
        renamed = iter(f"{self._permute(b'uuid', value, 16, _held(value, 128, ((0, 128, False),))):032x}")
        return "".join(c if c in "-_" else next(renamed) for c in text)

    def _ipv4(self, address: IPv4Address) -> IPv4Address:
        """Replace within its range; loopback, link-local, multicast and netmasks stay."""
        value = int(address)
        return IPv4Address(self._permute(b"ipv4", value, 4, _held(value, 32, _IPV4_RANGES)))

    def _ipv6(self, address: IPv6Address) -> IPv6Address:
        """Replace subnet and interface separately: a GID's lower half is its port's GUID; an embedded IPv4 address
        agrees.
        """
        value = int(address)
        for net in _EMBEDDED:
            if address in net and value > 1:
                inner = self.ipv4(IPv4Address(value & 0xFFFF_FFFF))
                return IPv6Address(value >> 32 << 32 | int(inner))
        subnet = value >> 64
        if value == 1 or subnet >> 56 == 0xFF:
            return address
        subnet = self._permute(b"ipv6", subnet, 8, _held(subnet, 64, _SUBNET_RANGES))
        return IPv6Address(subnet << 64 | self.eui64(value & (1 << 64) - 1))

    def eui64(self, value: int) -> int:
        """Return the pseudonym of a GUID, or of the interface half of an IPv6 address."""
        middle = _held(value >> 24 & 0xFFFF, 16, _FROM_MAC) << 24
        return self._permute(b"eui64", value, 8, _held(value, 64, _ZERO) | _EUI_HELD | middle)

    def mac(self, value: int) -> int:
        """Return the pseudonym of a MAC address, consistent with its EUI-64 (RFC 4291, appendix A).

        Zero and broadcast stay.
        """
        if value in (0, (1 << 48) - 1):
            return value
        high, low = value >> 24 ^ 0x020000, value & 0xFFFFFF
        renamed = self.eui64(high << 40 | 0xFFFE << 24 | low)
        return (renamed >> 40 ^ 0x020000) << 24 | renamed & 0xFFFFFF

    def _permute(self, kind: bytes, value: int, nbytes: int, held: int) -> int:
        """Flip the bits of `value` that its preceding bits and the key select, except those in `held`."""
        packed, flips = value.to_bytes(nbytes, "big"), 0
        for at, octet in enumerate(packed):
            coins = self._octet(kind, packed[:at])  # 256: one for each node of the tree of this octet's bits
            for level in range(8):
                node = 1 << level | octet >> (8 - level)
                flips = flips << 1 | coins >> node & 1
        return value ^ flips & ~held

    def _digest(self, kind: bytes, data: bytes) -> int:
        return int.from_bytes(hmac.digest(self._key, kind + b"\0" + data, "sha256"), "big")

    def _hex(self, kind: str, text: str, length: int) -> str:
        return f"{self._digest(kind.encode(), text.encode(errors='surrogatepass')):064x}"[:length]


def _held(value: int, bits: int, ranges: Iterable[Range]) -> int:
    """Return a mask of the leading bits that must not flip: shared with a range, or the first that differs from it."""
    longest = 0
    for prefix, length, whole in ranges:
        shared = bits - (value ^ prefix).bit_length()
        longest = max(longest, bits if whole and shared >= length else min(length, shared + 1))
    return (1 << bits) - (1 << (bits - longest))
