"""Terminal layout: wrapped lines, columns, the first of many, status labels."""

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence

from ncclprobe.model.units import printable

Style = Callable[[str, str], str]
"""Takes text and a status word (fail, warn, note, unknown, pass, skip) and may colour the text."""


def columns(otherwise: int) -> int:
    """Return the terminal's width in columns, or the value of COLUMNS.

    `shutil` has the same function, but loads three compressors at every start.
    """
    if (said := os.environ.get("COLUMNS", "")).isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size().columns or otherwise
    except OSError:  # standard output is closed, or no terminal
        return otherwise


def unstyled(text: str, _status: str) -> str:
    """Return `text` unchanged: the Style for a pipe or a file."""
    return text


def wrap(lead: str, text: str, width: int, hang: int | None = None, *, whole: bool = False) -> list[str]:
    """Wrap `text` after `lead` to `width`; continuation lines align with the first word, or are indented by `hang`.

    `whole`: keep words longer than a line whole, such as addresses, so that they can be copied.
    """
    below = " " * (len(lead) if hang is None else hang)
    words = printable(" ".join(text.split())).replace("(exit ", "(exit\xa0")  # an exit code is one word
    made = textwrap.wrap(words, width, initial_indent=lead, subsequent_indent=below, break_long_words=not whole,
                         break_on_hyphens=False)  # fmt: skip
    return [line.replace("(exit\xa0", "(exit ") for line in made] or [lead.rstrip()]


def labelled(status: str, text: str, width: int, style: Style, room: int = 8) -> list[str]:
    """Wrap `text` after its status, which `style` may colour."""
    first, *others = wrap(" " * room, text, width)
    return [style(f"{status:<{room}}", status.lower()) + first[room:], *others]


def shorten(text: str, width: int) -> str:
    """Shorten `text` to the whole words that fit in `width`."""
    return text if len(text) <= width else textwrap.shorten(text, width, placeholder=" …")


def table(rows: Iterable[Sequence[str]], *, right: bool = False) -> list[str]:
    """Align rows of cells in columns, two spaces apart, flush left or `right`; a cell may have several lines."""
    from tabulate import tabulate

    held = [list(row) for row in rows]
    ways = ["right" if right else "left"] * (len(held[0]) if held else 0)
    made = tabulate(held, tablefmt="plain", disable_numparse=True, colalign=ways, preserve_whitespace=True)
    return [line.rstrip() for line in made.split("\n")] if held else []


def first_of(items: Iterable[object], most: int, joint: str = ", ") -> str:
    """Join the first `most` of `items`, and say how many more there are."""
    named = [str(each) for each in items]
    last = joint if joint.strip() != "," else " "
    return joint.join(named[:most]) + (f"{last}and {len(named) - most} more" if named[most:] else "")
