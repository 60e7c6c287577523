"""What people type and read: sizes, and text fit for a terminal. Sizes are binary (1 KiB = 1024 bytes), rates decimal
(1 GB/s = 1e9 bytes/s).
"""

import re

from ncclprobe.model.errors import UsageError

USER_HZ = 100
"""Ticks a second in /proc, on every architecture that CUDA runs on (proc(5))."""
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Return bytes in `text`: digits with a binary K, M or G (``4M`` is 4194304), as nccl-tests reads -b and -e.

    nccl-tests has no T either. Raises UsageError.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"size {text!r}: write bytes, or a number with K, M or G (binary), such as 8, 64K or 1G")
    return int(float(match[1]) * _FACTOR[match[2].upper()])


def size(nbytes: float) -> str:
    """Return `nbytes` in the largest binary unit that keeps it exact or short: ``64 KiB``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(nbytes) < 1024 or unit == "TiB":
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable: TiB returns")


def three_digits(number: float) -> str:
    """Return `number` with three digits or more, and without an exponent: ``0.135``, ``54.0``, ``392``, ``1477``."""
    return f"{number:#.3g}" if abs(number) < 99.95 else f"{number:.0f}"


def microseconds(seconds: float) -> float:
    """Return `seconds` in µs, to a nanosecond, which is finer than any clock here."""
    return round(seconds * 1e6, 3)


def printable(text: str) -> str:
    """Return `text` with control characters escaped: text from a machine must not steer the reader's terminal."""
    if text.isprintable():  # nearly always, and a report of thousands of nodes has millions of characters
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plural(number: int, noun: str) -> str:
    """Return ``1 node``, ``2,048 nodes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def certain(share: float) -> str:
    """Return a confidence from 0 to 1 as text: ``confidence 99.2 %``; no measurement reaches 100 %."""
    return "confidence > 99.9 %" if share >= 0.9995 else f"confidence {100 * share:.1f} %"


def whole_words(text: str, most: int) -> str:
    """Return `text`, or as many whole words of it as `most` characters hold.

    Half a token or half an address has no form that redaction could recognise.
    """
    if len(text) <= most:
        return text
    end = max(text.rfind(each, 0, most) for each in " \t\"',;()[]{}|")
    return f"{text[: max(end, 0)].rstrip()} …"
