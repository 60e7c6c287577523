"""Text in lines no wider than a terminal, and the words of a status."""

import textwrap
from collections.abc import Callable

Style = Callable[[str, str], str]
"""Takes text and a status word (fail, warn, note, unknown, pass, skip) and may colour the text."""


def unstyled(text: str, _status: str) -> str:
    """Return `text` as it is: the Style of a pipe or a file."""
    return text


def wrapped(lead: str, text: str, width: int) -> list[str]:
    """Return `text` after `lead`, its further lines below its first word."""
    words, indent = " ".join(text.split()), " " * len(lead)
    return textwrap.wrap(words, width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False) or [lead]


def labelled(status: str, text: str, width: int, style: Style, room: int = 8) -> list[str]:
    """Return `text` after its status, which `style` may colour."""
    lines = textwrap.wrap(text, width - room, break_on_hyphens=False) or [""]
    lead = style(f"{status:<{room}}", status.lower())
    return [(lead if n == 0 else " " * room) + line for n, line in enumerate(lines)]
