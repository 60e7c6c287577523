"""Texts made of blocks, each under a heading: what ibstat and `nvidia-smi nvlink -s` print.

Indentation is not looked at, since mails and forms lose it, and neither are quotation marks before a line.
"""

import re
from collections.abc import Iterable, Sequence

_QUOTE = "> \t\u00a0|#"
_REMARK = re.compile(r"\s{2,}|\s*(?://|←)")


def lines(text: str) -> list[str]:
    """Return the lines that say anything, without blanks and quotation marks around them."""
    return [line for line in (raw.lstrip(_QUOTE).rstrip() for raw in text.splitlines()) if line]


def blocks(lines: Iterable[str], heading: re.Pattern[str]) -> list[tuple[re.Match[str], list[str]]]:
    """Return each line that is a `heading` with the lines below it, up to the next; what is above all is left out."""
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := heading.fullmatch(line):
            found.append((match, []))
        elif found:
            found[-1][1].append(line)
    return found


def fields(lines: Sequence[str]) -> dict[str, str]:
    """Return the lines of the form ``key: value``, the first of each key; wide blanks and ``//`` begin a remark."""
    found: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip().lower(), _REMARK.split(value.strip(), maxsplit=1)[0])
    return found
