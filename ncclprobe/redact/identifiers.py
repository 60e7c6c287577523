"""What identifies a machine by its form, wherever it stands: addresses, GUIDs, UUIDs, serials, paths of users' homes.

Text by patterns, and the few answers of the kernel in which an address looks like any other number, by their format.
"""

import json
import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from ncclprobe.redact.pseudonyms import Pseudonyms

IDENTIFIER = re.compile(
    r"(?P<home>/(?:home|Users)/)(?P<user>[^/\s\"',;:]+)"
    r"|(?:(?<![0-9A-Fa-f])|(?<=pod))(?P<uuid>[0-9A-Fa-f]{8}(?P<dash>[-_])(?:[0-9A-Fa-f]{4}(?P=dash)){3}[0-9A-Fa-f]{12})"
    r"(?![0-9A-Fa-f])"
    r"|(?<![^\W_])(?:GPU|MIG)-(?P<short>[0-9A-Fa-f]{4,8}(?:-[0-9A-Fa-f]{1,12}){0,4})(?![\w-])"
    r"|(?i:guid)(?P<gap>:?\s{0,16}(?:0[xX])?)(?P<guid>[0-9A-Fa-f]{16})(?!\w)"
    r"|(?<!\w)(?i:serial)(?P<colon>(?:[ _]?(?i:number|no))?\s{0,40}[:=]\s{0,8})(?P<serial>[^\s,;\"']+)"
    r"|(?<!\w)(?<!(?<!/)/)(?P<colons>[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?:(?:\.\d{1,3}){3}(?![\w.]))?)"
    r"|(?<![^\W_])(?<!\.)(?P<ipv4>\d{1,3}(?:\.\d{1,3}){3})(?P<bits>/\d{1,2}(?!\w))?(?!\w|\.\w)"
    r"|(?<![0-9A-Fa-f])(?P<digits>[0-9A-Fa-f]{64}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f])"
)
_SOCKET = re.compile(r"\b(?:[0-9A-F]{32}|[0-9A-F]{8})(?=:[0-9A-F]{4}\b)")
_ROUTE4 = re.compile(r"(\S{1,64}\t)([0-9A-F]{8})\t([0-9A-F]{8})(\t(?:\w{1,10}\t){4})([0-9A-F]{8})")
_ROUTE6 = re.compile(r"([0-9a-f]{32}) ([0-9a-f]{2}) ([0-9a-f]{32}) ([0-9a-f]{2}) ([0-9a-f]{32})\b")
_CLOUD_TAGS = ("7783-7084-3265-9085-8269-3286-77", "OracleCloud.com")  # every machine's there: how a cloud is known
_DEEPEST = 64


class Identifiers:
    """Replaces them under one key; `user` names a user found in a path."""

    def __init__(self, pseudonyms: Pseudonyms, user: Callable[[str], str]) -> None:
        self._new = pseudonyms
        self._user = user

    def text(self, text: str) -> str:
        """`text` with every identifier replaced, and no name."""
        return IDENTIFIER.sub(self.one, text)

    def one(self, match: "re.Match[str]") -> str:
        """The pseudonym of what IDENTIFIER matched."""
        said, kind = match[0], match.lastgroup
        if kind == "user":
            return match["home"] + self._user(match["user"])
        if kind in ("dash", "uuid"):
            return self._new.uuid(said)
        if kind == "short":
            return said[:4] + self._new.uuid(match["short"])
        if kind == "guid":
            return said[:-16] + _as(match["guid"], f"{self._new.eui64(int(match['guid'], 16)):016x}")
        if kind == "serial":
            return said[: -len(match["serial"])] + self.serial(match["serial"])
        if kind == "colons":
            return self._colons(said)
        if kind in ("ipv4", "bits"):
            return self._ipv4(match["ipv4"], match["bits"] or "")
        return self._new.digits(said) if len(set(said)) > 1 else said

    def serial(self, text: str) -> str:
        """A serial number, or what stands where there is none."""
        word = text.strip()
        told = any(map(str.isdigit, word)) and word.strip("0") and word not in _CLOUD_TAGS
        return text.replace(word, self._new.serial(word)) if told and not word.startswith("serial-") else text

    def _colons(self, said: str) -> str:
        """Groups of hexadecimal digits: an IPv6 address, a GID, a MAC, a GUID; or something else, as a PCI address."""
        body = said.rstrip(":") if said.endswith(":") and not said.endswith("::") else said
        renamed = self._groups(body) if len(body) < 64 else ""
        if renamed:
            return renamed + said[len(body) :]
        head, _, tail = said.rpartition(":")
        if "." in tail:
            return f"{head}:{self.text(tail)}"
        port = self._groups(head) if tail.isdecimal() and len(said) < 64 and head.count(":") > 1 else ""
        return f"{port}:{tail}" if port else said

    def _groups(self, said: str) -> str:
        groups = said.split(":")
        sizes, digits = [len(group) for group in groups], "".join(groups)
        if sizes == [4] * 4:
            return _as(said, _grouped(f"{self._new.eui64(int(digits, 16)):016x}", 4))
        if sizes == [2] * 6:
            return _as(said, _grouped(f"{self._new.mac(int(digits, 16)):012x}", 2))
        if sizes == [2] * 8:
            return _as(said, _grouped(f"{self._new.eui64(int(digits, 16)):016x}", 2))
        if sizes == [2] * 20:  # IPoIB: flags and queue pair, then the GID
            gid = self._new.ipv6(IPv6Address(int(digits[8:], 16)))
            return _as(said, _grouped(f"{digits[:8]}{int(gid):032x}", 2))
        try:
            address = IPv6Address(said)
        except ValueError:
            return ""
        return self._ipv6(address, said)

    def _ipv6(self, address: IPv6Address, said: str) -> str:
        new = self._new.ipv6(address)
        if new == address:
            return said
        if "." in said:
            return f"{said.rpartition(':')[0]}:{IPv4Address(int(new) & 0xFFFF_FFFF)}"
        return _as(said, new.exploded if len(said) == 39 else str(new))

    def _ipv4(self, said: str, bits: str) -> str:
        try:
            address = IPv4Address(said)
        except ValueError:
            return said + bits
        new, host_bits = self._new.ipv4(address), 32 - min(32, int(bits[1:] or 32))
        if bits and not int(address) & (1 << host_bits) - 1:  # a network, not an address in it
            new = IPv4Address(int(new) >> host_bits << host_bits)
        return f"{new}{bits}"

    def route(self, line: str) -> str:
        """A row of /proc/net/route or ipv6_route: networks stay networks."""
        if match := _ROUTE4.match(line):
            ours = int(self.words(match[2]), 16) & int(match[5], 16)  # both in the same order of bytes
            return f"{match[1]}{ours:08X}\t{self.words(match[3])}{line[match.end(3) :]}"
        if match := _ROUTE6.match(line):
            network, source = (self._network(match[at], match[at + 1]) for at in (1, 3))
            gateway = self._network(match[5], "80")
            return f"{network} {match[2]} {source} {match[4]} {gateway}{line[match.end(5) :]}"
        return self.text(line)

    def _network(self, digits: str, length: str) -> str:
        spare = 128 - min(128, int(length, 16))
        return f"{int(self._new.ipv6(IPv6Address(int(digits, 16)))) >> spare << spare:032x}"

    def words(self, digits: str) -> str:
        """An address as one or four 32-bit numbers in little-endian order."""
        value = int(_swapped(digits), 16)
        new = self._new.ipv4(IPv4Address(value)) if len(digits) == 8 else self._new.ipv6(IPv6Address(value))
        return _swapped(f"{int(new):0{len(digits)}X}")

    def config_space(self, said: str) -> str:
        """A PCI function's configuration: its Device Serial Number (capability 3), often a NIC's MAC, is replaced."""
        seen = structure(said)
        try:
            data = bytearray(seen["length"] if 0x100 < seen["length"] <= 4096 else 0)
            for place, digits in seen["rows"].items():
                data[int(place, 16) : int(place, 16) + 16] = bytes.fromhex(digits)
        except (KeyError, TypeError, ValueError, AttributeError):
            return said
        for at in _capabilities(bytes(data), 3):
            serial = self._new.eui64(int.from_bytes(data[at + 4 : at + 12], "little"))
            data[at + 4 : at + 12] = serial.to_bytes(8, "little")
            starts = (start for start in range(0, len(data), 16) if any(data[start : start + 16]))
            rows = {f"{start:#05x}": data[start : start + 16].hex() for start in starts}
            said = json.dumps({**seen, "rows": rows})
        return said

    def sockets(self, said: str) -> str:
        """/proc/net/tcp or tcp6."""
        return _SOCKET.sub(lambda match: self.words(match[0]), said)

    def cluster(self, said: str) -> str:
        """NVML's fabric information: the cluster's UUID is a list of octets; zeros (no cluster) stay."""
        seen = structure(said)
        try:
            digits = bytes(list(seen["clusterUuid"])).hex()
            new = list(bytes.fromhex(self._new.uuid(digits))) if len(digits) == 32 else seen["clusterUuid"]
        except (KeyError, TypeError, ValueError):
            return said
        return json.dumps({**seen, "clusterUuid": new})


def structure(text: str) -> Any:
    """What JSON text says; None where it is not JSON, is nested beyond all reason, or says no more than a number."""
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = [value]
    for _ in range(_DEEPEST):
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
        if not level:
            return value
    return None


def _capabilities(data: bytes, wanted: int) -> list[int]:
    """Where the extended capabilities of this id lie (PCI Express Base Specification, 7.6.3): a list from 0x100 on."""
    found, seen, at = [], set(), 0x100
    while at >= 0x100 and at + 16 <= len(data) and at not in seen:
        seen.add(at)
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == wanted:
            found.append(at)
        at = header >> 20 & 0xFFC
    return found


def _swapped(digits: str) -> str:
    """32-bit numbers in hexadecimal with the order of their bytes turned around."""
    words = (digits[at : at + 8] for at in range(0, len(digits), 8))
    return "".join(bytes.fromhex(word)[::-1].hex().upper() for word in words)


def _grouped(digits: str, size: int) -> str:
    return ":".join(digits[at : at + size] for at in range(0, len(digits), size))


def _as(said: str, new: str) -> str:
    """`new` in capitals where `said` is."""
    return new.upper() if said.upper() == said and said.lower() != said else new
