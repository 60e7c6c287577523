"""One screen of text: 40 lines of 80 columns."""

import textwrap

from ncclprobe.units import printable

LINES, COLUMNS = 40, 80
_HEAD = 10


def headed(head: str, text: str) -> list[str]:
    """Return `text` behind ``head:``, lines below it indented as far."""
    return wrapped(f"{head + ':':<{_HEAD}}", text) if text else []


def wrapped(lead: str, text: str) -> list[str]:
    """Return `text` behind `lead`; words longer than a line are left whole."""
    clean = printable(" ".join(text.split()))
    filler = textwrap.TextWrapper(COLUMNS, lead, " " * len(lead), break_long_words=False, break_on_hyphens=False)
    return filler.wrap(clean) or [lead.rstrip()]


def shortened(lead: str, text: str, lines: int) -> list[str]:
    """Return no more than so many lines of `text`, the last of which ends in … where there is more."""
    every = wrapped(lead, text)
    if len(every) <= lines:
        return every
    last = every[lines - 1]
    return [*every[: lines - 1], f"{last[: COLUMNS - 2].rstrip()} …"]
