"""Find the few lines of a large log that hold one of some hundred texts, at a speed near that of reading it.

Searching a block for one literal takes half a nanosecond a byte in CPython, for hundreds of them a fraction of a
microsecond. But one regular expression that only begins at characters that logs seldom hold skips nearly all bytes. So
of every text a piece is searched for that begins at a rare character; what has only common ones is searched for by
itself. A line that holds a piece is then tested for the whole texts.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

_PER_MILLE = {
    " ": 128, "s": 48, "e": 43, "t": 40, "o": 38, "n": 36, "a": 32, ":": 30, "i": 29, "r": 27, "l": 25, ".": 23,
    "m": 21, "p": 21, "/": 18, "d": 16, "|": 16, "c": 15, "_": 14, "-": 11, "k": 11, "h": 10, "g": 8, "b": 8, ",": 7,
    "u": 7, "[": 6, "]": 6, "N": 6, "E": 5, "#": 5, "I": 4, "O": 4, "F": 4, "v": 4, "B": 3, "G": 3, "=": 3, "(": 3,
    ")": 3, "C": 3, "f": 2, "y": 2, "w": 2, "z": 2, "%": 2, "L": 1.5, "P": 1, "R": 1, "T": 1, "A": 1, "D": 1, "S": 1,
    "M": 1, "U": 0.5, "x": 0.5, **dict.fromkeys("0123456789", 25),
}  # fmt: skip
"""How often a character stands in training logs and NCCL's INFO lines, in thousandths; counted over such lines."""
_RARE = 0.2
_MOST_COMMON = 55.0
"""Thousandths of all bytes at which the expression may begin: each costs as much as skipping twenty others."""
_CLEAR = re.compile(r"[^\"'\\<>&/\x00-\x1f\x7f-\U0010ffff]+")
"""What JSON writes as it is: pieces hold nothing else, so that lines of log shippers are found too."""
_SHORTEST, _LONGEST = 4, 6
"""Characters that a piece must have, and of those before and after its rare one that it may have."""


class Sieve:
    """Finds the lines of a block that may hold one of `texts`, and says which surely do."""

    def __init__(self, texts: Collection[str]) -> None:
        pieces, self.literals = _pieces([text for text in dict.fromkeys(texts) if text])
        self._start = re.compile(_begun_rarely(pieces)) if pieces else None
        self._whole = re.compile(_tree({text.encode(): b"" for text in texts if text}) if any(texts) else b"(?!)")

    def lines(self, block: bytes, own: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield where the lines of `block` that may hold a text begin and end, in their order, each once, and where
        the text may be. `own`: no further than up to there.
        """
        end = -1
        for at in sorted(self._hits(block, len(block) if own is None else own)):
            if at >= end:
                begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
                end = len(block) if end < 0 else end
                yield begin, end, at

    def holds(self, line: bytes) -> bool:
        """Return whether `line` holds a whole text."""
        return self._whole.search(line) is not None

    def _hits(self, block: bytes, own: int) -> Iterator[int]:
        """Yield where a piece stands: of each literal at most once in a line."""
        for literal in self.literals:
            at = block.find(literal, 0, own)
            while at >= 0:
                yield at
                at = block.find(b"\n", at)
                at = block.find(literal, at, own) if at >= 0 else at
        if self._start:
            for found in self._start.finditer(block, 0, own):
                yield found.start()


def _pieces(texts: Sequence[str]) -> tuple[list[tuple[str, str]], list[bytes]]:
    """Return pieces, each cut before its rare character, and the texts that have none: each is searched by itself."""
    cuts = {text: _cuts(text) for text in texts}
    begin: set[str] = set()
    while waiting := [text for text, found in cuts.items() if found and not begin & found.keys()]:
        counts = {char: sum(char in cuts[text] for text in waiting) for text in waiting for char in cuts[text]}
        best = min(counts, key=lambda char: (_PER_MILLE.get(char, _RARE) / counts[char], char))
        if sum(_PER_MILLE.get(char, _RARE) for char in (*begin, best)) > _MOST_COMMON:
            break
        begin.add(best)
    pieces, literals = [], []
    for text, found in cuts.items():
        if usable := begin & found.keys():
            pieces.append(found[min(usable, key=lambda char: (_PER_MILLE.get(char, _RARE), char))])
        else:
            literals.append(max(_CLEAR.findall(text) or [text], key=len).encode())
    return pieces, list(dict.fromkeys(literals))


def _cuts(text: str) -> dict[str, tuple[str, str]]:
    """Return by each character of `text` a piece around it, cut before it: all of it if that is long enough."""
    found = {}
    for clear in _CLEAR.findall(text):
        for at in reversed(range(len(clear) if len(clear) >= _SHORTEST else 0)):
            after = clear[at : at + _LONGEST]
            before = "" if len(after) >= _SHORTEST else clear[max(at - _LONGEST, 0) : at]
            if len(before + after) >= _SHORTEST:
                found[clear[at]] = before, after
    return found


def _begun_rarely(pieces: Collection[tuple[str, str]]) -> bytes:
    """Return an expression that matches any piece from its rare character on, and then looks at what stands before."""
    leaves: dict[bytes, list[bytes]] = {}
    for before, after in pieces:
        leaves.setdefault(after.encode(), []).append(before.encode())
    return _tree({after: b"" if b"" in found else _behind(after, found) for after, found in leaves.items()})


def _behind(after: bytes, found: Collection[bytes]) -> bytes:
    return b"(?:" + b"|".join(b"(?<=" + re.escape(before + after) + b")" for before in sorted(found)) + b")"


def _tree(words: Mapping[bytes, bytes]) -> bytes:
    """Return an expression that matches any of `words`, each with what is to follow it: each beginning stands once."""
    by_first: dict[bytes, dict[bytes, bytes]] = {}
    for word, then in words.items():
        by_first.setdefault(word[:1], {})[word[1:]] = then
    branches = list(by_first.pop(b"", {}).values())
    if b"" in branches:
        return b""
    branches = [re.escape(first) + _tree(rests) for first, rests in sorted(by_first.items())] + branches
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"
