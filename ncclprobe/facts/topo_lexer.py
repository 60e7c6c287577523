"""Lines and words of a terminal's output, however it was pasted: what every reader of such text needs first.

Taken away are colours (also where a paste lost the escape byte and left ``[4m``), HTML tags, table borders and
drawn lines; blanks of any kind part words, and so does the end of a label that log collectors put before a line
(``[pod/a] ``, ``0: ``, ``> ``, ``file:``), which may have no blank behind it.
"""

import re

from ncclprobe.model.values import Struct

_COLOUR = re.compile(r"\x1b?\[[0-9;]*[mK]")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]*>")
_WORD = re.compile(r"[^\s:>\]]*[:>\]]+|[^\s:>\]]+")
_SPEAKING = re.compile(r"[^\W_]")
_PAGER = re.compile(r"\s*\[[0-9]+/[0-9]+\]\s*")
_TAB = " " * 6


class MatrixLine(Struct, frozen=True):
    """One line with at least one letter or digit: its number in the text, the text, its words."""

    number: int
    text: str
    words: tuple[str, ...]

    def gap(self, index: int) -> int:
        """Return the width of the blank before the word of that index.

        A tab counts six: two of them are then as wide as a blank column in a table whose tabs became spaces.
        """
        spans = [match.span() for match in _WORD.finditer(self.text)]
        start = spans[index - 1][1] if index else 0
        return len(self.text[start : spans[index][0]].replace("\t", _TAB))


class MatrixLines(Struct, frozen=True):
    """A text's lines. Those that say nothing are left out but counted in `size`, which is the last line's number.

    `unfinished`: that line has no line feed.
    """

    speaking: tuple[MatrixLine, ...]
    size: int
    unfinished: bool


def lex(text: str) -> MatrixLines:
    """Return every line of `text`, in linear time."""
    plain = _COLOUR.sub("", _TAG.sub("", text.replace("&nbsp;", " "))).replace("|", " ").splitlines()
    numbered = [(number, line) for number, line in enumerate(plain, start=1) if _SPEAKING.search(line)]
    speaking = [MatrixLine(n, line, tuple(_WORD.findall(line))) for n, line in numbered if not _PAGER.fullmatch(line)]
    return MatrixLines(tuple(speaking), len(plain), not text.endswith("\n"))
