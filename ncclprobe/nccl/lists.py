"""The grammar of NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_OOB_NET_IFNAME.

``[^][=]name[:port[:rail[:plane]]]{,…}``: ``^`` and ``=`` count for the whole list and only in front of it.

Source: src/misc/utils.cc:189 parseStringList and :218 matchIf (v2.30.7). Rail and plane are read since
2.30.7; before, an empty port (``mlx5_0:``) was port 0, which matches none. In prose: docs/how/nccl-selection.md.
"""

import re

from ncclprobe.model.values import Struct
from ncclprobe.nccl.values import BLANKS, to_int32

MAX_INTERFACES = 16
"""Entries of an interface list that are looked at: MAX_IFS, src/include/socket.h:25 (v2.30.7)."""

MAX_HCAS = 32
"""Entries of an HCA list that are looked at: MAX_IB_DEVS, src/transport/net_ib/common.h:112 (v2.30.7)."""

ANY = -1
"""A port, rail or plane that was not given."""

_LONGEST_PREFIX = 63  # netIf.prefix holds 64 with its NUL, src/include/utils.h:47
_DECIMAL = re.compile(rf"[{BLANKS}]*([+-]?)0*([0-9]*)")
_MOST_DIGITS = 19


class Entry(Struct, frozen=True):
    """One element of a list: a name or the beginning of one, and where it was narrowed down."""

    prefix: str
    port: int = ANY
    rail: int = ANY
    plane: int = ANY

    def matches(self, name: str, port: int, exact: bool) -> bool:
        """Return whether device `name`, port `port` (`ANY`: not known), falls under this entry."""
        named = name == self.prefix if exact else name.startswith(self.prefix)
        return named and (port in (ANY, self.port) or self.port == ANY)


class Selector(Struct, frozen=True):
    """A parsed list. ``dropped`` are the entries beyond the limit, which NCCL neither reads nor mentions."""

    exclude: bool
    exact: bool
    entries: tuple[Entry, ...]
    dropped: tuple[str, ...]

    def takes(self, name: str, port: int = ANY) -> bool:
        """Return whether NCCL would use device `name`, port `port`. An empty list matches everything.

        Source: src/os/linux.cc:417 and src/transport/net_ib/init.cc:370 (v2.30.7): match XOR exclude.
        """
        found = not self.entries or any(entry.matches(name, port, self.exact) for entry in self.entries)
        return found != self.exclude


def parse_selector(text: str, limit: int) -> Selector:
    """Split `text` as NCCL does; `limit` is `MAX_INTERFACES` or `MAX_HCAS`. No text is an error."""
    exclude, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    pieces = [piece for piece in text.split(",") if piece and not piece.startswith(":")]
    entries = tuple(_entry(piece) for piece in pieces[:limit])
    return Selector(exclude, exact, entries, dropped=tuple(pieces[limit:]))


def _entry(piece: str) -> Entry:
    """Parse ``name:port:rail:plane``; ignore what follows a fourth colon."""
    name, *numbers = piece.split(":")
    return Entry(name[:_LONGEST_PREFIX], *(_atoi(number) if number else ANY for number in numbers[:3]))


def _atoi(text: str) -> int:
    """Read as glibc's atoi: strtol in base 10, cut to an int, so that text without digits is 0."""
    match = _DECIMAL.match(text)
    assert match is not None  # every part of the pattern may be empty
    if len(match[2]) > _MOST_DIGITS:
        return 0 if match[1] == "-" else -1  # LONG_MIN and LONG_MAX, cut
    value = int(match[1] + (match[2] or "0"))
    return to_int32(max(-(1 << 63), min(value, (1 << 63) - 1)))
