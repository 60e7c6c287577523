"""Lines and words of a terminal's output, however it was pasted: what every reader of such text needs first.

Taken away are colours (also where a paste lost the escape byte and left ``[4m``), HTML tags, table borders and
drawn lines; blanks of any kind part words, and so does the end of a label that log collectors put before a line
(``[pod/a] ``, ``0: ``, ``> ``, ``file:``), which may have no blank behind it.
"""

import re
from dataclasses import dataclass

_COLOUR = re.compile(r"\x1b?\[[0-9;]*[mK]")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]*>")
_WORD = re.compile(r"[^\s:>\]]*[:>\]]+|[^\s:>\]]+")
_PAGER = re.compile(r"\s*\[[0-9]+/[0-9]+\]\s*")
_TAB = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number in the text, its words, and the width of the blank before each.

    A tab counts six: two of them are then as wide as a blank column in a table whose tabs became spaces. A line
    without a letter or digit, or with a pager's position alone, has no words.
    """

    number: int
    words: tuple[str, ...] = ()
    gaps: tuple[int, ...] = ()


def lex(text: str) -> tuple[Line, ...]:
    """Every line of `text`, in linear time."""
    plain = _COLOUR.sub("", _TAG.sub("", text.replace("&nbsp;", " "))).replace("|", " ")
    return tuple(_line(number, line) for number, line in enumerate(plain.splitlines(), start=1))


def _line(number: int, text: str) -> Line:
    if _PAGER.fullmatch(text) or not any(map(str.isalnum, text)):
        return Line(number)
    words, gaps, end = [], [], 0
    for match in _WORD.finditer(text):
        blank = text[end : match.start()]
        words.append(match[0])
        gaps.append(len(blank) + (_TAB - 1) * blank.count("\t"))
        end = match.end()
    return Line(number, tuple(words), tuple(gaps))
