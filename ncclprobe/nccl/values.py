"""How NCCL and torch parse one value from the environment."""

import re
from typing import Literal

from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.values import Struct

Note = Literal["plain", "word", "tail", "octal", "empty", "overflow"]

BLANKS = " \t\n\v\f\r"
"""Whitespace according to C's isspace() in the C locale."""

SLOWING = frozenset(
    {
        *("NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "FI_PROVIDER", "NCCL_NET_GDR_LEVEL"),
        *("NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NVLS_ENABLE"),
        *("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS"),
        *("NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "NCCL_SOCKET_IFNAME", "NCCL_SHM_DISABLE"),
    }
)
"""Settings that can cost bandwidth in a way that :mod:`ncclprobe.expect.bound` models."""

_WORDS_KEEP_THE_DEFAULT = (2, 32)

_INT64 = range(-(1 << 63), 1 << 63)
_MOST_DIGITS = 19  # of an int64; Python itself refuses to convert much longer decimal text
_NUMBER = rf"[{BLANKS}]*(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*))"


class Reading(Struct, frozen=True):
    """The integer that NCCL parses from a text, and how.

    ``note`` is *plain* (the number as written), *word* (no digits: 0, and the default since 2.32), *tail* (text after
    the number is dropped: ``4M`` is 4), *octal* (a leading zero makes it base 8: ``010`` is 8), *empty* or *overflow*
    (the default is used).
    """

    value: int
    note: Note


def keeps_default(version: Version | None) -> bool:
    """Return whether this NCCL uses the default for a word in place of a number; False if the version is unknown.

    Observed in the real library: 2.31.2 reads 0, 2.32.3 its default (scripts/oracle.py).
    """
    return version is not None and version >= _WORDS_KEEP_THE_DEFAULT


def read_int(text: str, default: int, version: Version | None = None) -> Reading:
    """Parse `text` as NCCL_PARAM does: strtoll(text, &end, 0); the default if it is empty or overflows int64."""
    if not text:
        return Reading(default, "empty")
    match = re.match(_NUMBER, text)
    if match is None:
        return Reading(default if keeps_default(version) else 0, "word")
    value = _number(match)
    if value is None:
        return Reading(default, "overflow")
    if text[match.end() :].strip(BLANKS):
        return Reading(value, "tail")
    other_in_decimal = len((match["octal"] or "").lstrip("0")) > 1
    return Reading(value, "octal" if other_in_decimal else "plain")


def read_setting(settings: Settings, name: str, default: int, version: Version | None = None) -> int:
    """Return the integer that NCCL reads for `name`; the default if it is unset."""
    return read_int(settings.get(name) or "", default, version).value


def _number(match: re.Match[str]) -> int | None:
    """Return the matched number, or None if it overflows an int64."""
    if match["decimal"]:
        if len(match["decimal"]) > _MOST_DIGITS:
            return None
        size = int(match["decimal"])
    else:
        size = int(match["hex"], 16) if match["hex"] else int(match["octal"], 8)
    value = -size if match["sign"] == "-" else size
    return value if value in _INT64 else None


def to_int32(value: int) -> int:
    """Convert `value` as C converts to int, keeping the low 32 bits."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


_YES = frozenset({"true", "yes", "on", "enable", "enabled", "t", "y"})
_NO = frozenset({"false", "no", "off", "disable", "disabled", "none", "f", "n"})


def intent(word: str) -> bool | None:
    """Return what a person means by `word` where NCCL expects an integer; None if it is not such a word.

    NCCL reads every one of them as 0 before 2.32, so that NCCL_IB_DISABLE=true leaves InfiniBand on.
    """
    lowered = word.strip().lower()
    if lowered in _YES:
        return True
    return False if lowered in _NO else None


_LEVEL_SINCE: dict[str, tuple[int, int]] = {
    "LOC": (2, 5),
    "NVL": (2, 5),
    "NVB": (2, 8),
    "C2C": (2, 26),
    "PIX": (2, 5),
    "PXB": (2, 5),
    "P2C": (2, 27),
    "PXN": (2, 12),
    "PHB": (2, 5),
    "SYS": (2, 5),
}
_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")


def read_level(text: str, version: Version | None = None) -> str | None:
    """Return the path type that NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL names; None if the text is silently ignored.

    Words count in upper case and in versions that know them. Text that begins with a digit is an old-style number, in
    which 4 and above is SYS. A negative number is not a level: it does not begin with a digit. Source:
    src/graph/paths.cc:244 and src/graph/topo.cc:34 (v2.30.7; the words of older versions from their own).
    """
    if text in _LEVEL_SINCE and reaches(version, _LEVEL_SINCE[text]):
        return text
    if text[:1] not in tuple("0123456789"):
        return None
    number = to_int32(read_int(text, default=-1).value)
    # A number that wraps below zero indexes in front of NCCL's array: nothing can be said about that.
    return _LEGACY_LEVELS[min(number, 4)] if number >= 0 else None
