"""Units for input and output: sizes are binary (1 KiB = 1024 bytes), rates decimal (1 GB/s = 1e9 bytes/s). Also
terminal-safe text.
"""

import re

from ncclprobe.model.errors import UsageError

USER_HZ = 100
"""Ticks a second in /proc, on every architecture that CUDA runs on (proc(5))."""
_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Parse digits with a binary K, M or G (``4M`` is 4194304), as nccl-tests reads -b and -e.

    nccl-tests has no T either. Raises UsageError.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(
            f"size {text!r}: give a number of bytes, or a number with K, M or G (binary), such as 8, 64K or 1G"
        )
    return int(float(match[1]) * _FACTOR[match[2].upper()])


def size(nbytes: float) -> str:
    """Format `nbytes` in the largest binary unit that keeps it short: ``64 KiB``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(nbytes) < 1024 or unit == "TiB":
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable: TiB returns")


def three_digits(number: float) -> str:
    """Format `number` with three digits or more, without an exponent: ``0.135``, ``54.0``, ``392``, ``1477``."""
    return f"{number:#.3g}" if abs(number) < 99.95 else f"{number:.0f}"


def microseconds(seconds: float) -> float:
    """Convert `seconds` to µs, rounded to a nanosecond, which is finer than any clock here."""
    return round(seconds * 1e6, 3)


def printable(text: str) -> str:
    """Escape control characters: text from a machine must not control the reader's terminal."""
    if text.isprintable():  # nearly always, and a report of thousands of nodes has millions of characters
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plural(number: int, noun: str) -> str:
    """Format a count: ``1 node``, ``2,048 nodes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_OF_SEVERAL = {
    "keeps a CPU busy but reads and writes": "keep a CPU busy but read and write",
    "no longer has": "no longer have",
    **{"has": "have", "is": "are", "was": "were", "tries": "try", "waits": "wait"},
}
"""The verbs at the beginning of what one rank does, and of what several do."""


def agreeing(text: str, number: int) -> str:
    """Return what ranks do, whose verb begins the text of one, for so many: ``is idle``, ``are idle``."""
    found = next((each for each in _OF_SEVERAL if f"{text} ".startswith(f"{each} ")), "") if number != 1 else ""
    return f"{_OF_SEVERAL[found]}{text[len(found) :]}" if found else text


def certain(share: float) -> str:
    """Format a confidence from 0 to 1: ``confidence 99.2 %``; no measurement reaches 100 %."""
    return "confidence > 99.9 %" if share >= 0.9995 else f"confidence {100 * share:.1f} %"


def whole_words(text: str, most: int) -> str:
    """Shorten `text` to the whole words that fit in `most` characters.

    Redaction would not recognise half a token or half an address.
    """
    if len(text) <= most:
        return text
    end = max(text.rfind(each, 0, most) for each in " \t\"',;()[]{}|")
    return f"{text[: max(end, 0)].rstrip()} …"
