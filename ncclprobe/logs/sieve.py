"""Find the few lines of a large log that hold one of some hundred texts, at nearly the speed of reading it.

Searching a block for one literal takes half a nanosecond a byte in CPython. A regular expression that begins with one
literal character costs the same, however many texts continue from there; one that begins with any of several characters
takes ten times that. So the sieve chooses a few characters such that every text has one of them, searches for texts
from that character on, and checks the part before it last. Case is folded first, which is cheap and halves the
characters. A line that is found is then tested for the whole texts.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from heapq import heapify, heapreplace
from itertools import combinations
from operator import or_

_PER_MILLE = {
    " ": 128, "s": 48, "e": 48, "t": 41, "o": 42, "n": 42, "a": 33, ":": 30, "i": 33, "r": 28, "l": 26, ".": 23,
    "m": 21, "p": 22, "/": 18, "d": 16, "|": 16, "c": 18, "_": 14, "-": 11, "k": 11, "h": 10, "g": 12, "b": 11, ",": 7,
    "u": 7, "[": 6, "]": 6, "#": 5, "f": 6, "v": 4, "=": 3, "(": 3, ")": 3, "y": 2, "w": 2, "z": 2, "%": 2, "x": 1,
    **dict.fromkeys("0123456789", 25),
}  # fmt: skip
"""How often a character, its case folded, stands in training logs and NCCL's INFO lines, in thousandths."""
_RARE = 0.2
_NS_A_LITERAL, _NS_A_CHARACTER, _NS_PER_MILLE = 0.7, 0.55, 0.02
"""Nanoseconds a byte for a literal, for an expression that begins with one character, and for each thousandth of all
bytes that it stops at: measured on one core of 2026 with Python 3.11.
"""
_SHORTEST, _LONGEST = 4, 6
"""Characters that a piece must have, and of those before and after its character that it may have."""
_CLEAR = re.compile(r"[^\"\\<>&\x00-\x1f\x7f-\U0010ffff]+")
"""What JSON writes unchanged: pieces hold nothing else, so that lines of log shippers are found too."""
_EVERYWHERE = "] nccl info channel via net/ib/"
"""What very many lines hold: a piece of it would find them all."""
_Choice = tuple[str, str]
"""A character to begin at, or a literal to search for; the other is empty."""


class Whole:
    """Test whether a line holds one of `texts`."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._words = {text.encode(): b"" for text in texts if text}

    @cached_property
    def _any(self) -> "re.Pattern[bytes]":
        return re.compile(_tree(self._words) if self._words else b"(?!)")

    def holds(self, line: bytes) -> bool:
        """Return whether `line` holds a text."""
        return self._any.search(line) is not None


class Sieve:
    """Finds the lines of a block that may hold one of `texts`."""

    def __init__(self, texts: Collection[str]) -> None:
        pieces, self.literals = _pieces(list(dict.fromkeys(text.encode().lower().decode() for text in texts if text)))
        self.begun = tuple(
            re.compile(_pattern_from(char, pieces)) for char in sorted({after[0] for _, after in pieces})
        )

    def lines(self, block: bytes, own: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield begin and end of each line of `block` that may hold a text, in order and once, and the position of
        the text. `own`: no further than up to there.
        """
        end = -1
        for at in sorted(self._hits(block.lower(), len(block) if own is None else own)):
            if at >= end:
                begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
                end = len(block) if end < 0 else end
                yield begin, end, at

    def _hits(self, block: bytes, own: int) -> Iterator[int]:
        """Yield the position of each piece: of each literal at most once in a line."""
        for literal in self.literals:
            at = block.find(literal, 0, own)
            while at >= 0:
                yield at
                at = block.find(b"\n", at)
                at = block.find(literal, at, own) if at >= 0 else at
        for begun in self.begun:
            for found in begun.finditer(block, 0, own):
                yield found.start()


@lru_cache(maxsize=2)
def sieve(texts: tuple[str, ...]) -> Sieve:
    """Return the sieve of `texts`: made once in a process, because it takes as long as reading some 30 MB."""
    return Sieve(texts)


def _pieces(texts: Sequence[str]) -> tuple[list[tuple[str, str]], list[bytes]]:
    """Return pieces, each cut before the character that it begins at, and literals: every text holds one of them.

    The choice of characters and literals is a weighted cover: the cheapest for each text that it adds comes first.
    """
    cuts = {text: _cuts(text) for text in texts}
    covers: dict[_Choice, int] = {}  # a bit for each text
    for at, (text, found) in enumerate(cuts.items()):
        for choice in (*((char, "") for char in found), *(("", literal) for literal in _literals(text))):
            covers[choice] = covers.get(choice, 0) | 1 << at
    chosen: list[_Choice] = []
    waiting = (1 << len(cuts)) - 1
    cost = {choice: _NS_A_LITERAL if choice[1] else _cost(choice[0]) for choice in covers}
    best_first = [(-held.bit_count() / cost[choice], choice) for choice, held in covers.items()]
    heapify(best_first)
    while waiting:  # a choice only ever gets worse: one that is still the best when it is looked at again is the best
        _, choice = best_first[0]
        worth = -(covers[choice] & waiting).bit_count() / cost[choice], choice
        if heapreplace(best_first, worth) == worth:
            chosen.append(choice)
            waiting &= ~covers[choice]
    for choice in sorted(chosen, key=cost.__getitem__, reverse=True):  # what came early may be covered by a later one
        others = reduce(or_, (covers[other] for other in chosen if other != choice), 0)
        if not covers[choice] & ~others:
            chosen.remove(choice)
    chosen = _cheaper(chosen, covers, cost)
    literals = [literal for _, literal in chosen if literal]
    begin = {char for char, _ in chosen if char}
    pieces = []
    for text, found in cuts.items():
        if not any(literal in text for literal in literals):
            pieces.append(found[min(begin & found.keys(), key=lambda char: (_PER_MILLE.get(char, _RARE), char))])
    return pieces, [literal.encode() for literal in literals]


def _cheaper(chosen: list[_Choice], covers: Mapping[_Choice, int], cost: Mapping[_Choice, float]) -> list[_Choice]:
    """Return the choices, two of them changed for two characters that together cover as much for less, if there are."""
    chars = [choice for choice in covers if choice[0]]
    for one, other in combinations(chosen, 2):
        rest = [choice for choice in chosen if choice not in (one, other)]
        missing = (covers[one] | covers[other]) & ~reduce(or_, (covers[choice] for choice in rest), 0)
        pairs = (pair for pair in combinations(chars, 2) if not missing & ~(covers[pair[0]] | covers[pair[1]]))
        best = min(pairs, key=lambda pair: cost[pair[0]] + cost[pair[1]], default=(one, other))
        if cost[best[0]] + cost[best[1]] < cost[one] + cost[other]:
            return _cheaper(list(dict.fromkeys([*rest, *best])), covers, cost)
    return chosen


def _cost(char: str) -> float:
    """Return the nanoseconds a byte that searching for what begins with a character takes."""
    return _NS_A_CHARACTER + _NS_PER_MILLE * _PER_MILLE.get(char, _RARE)


def _literals(text: str) -> list[str]:
    """Return what `text` may be searched for by itself: all of what is clear in it, and each part of some length."""
    long = [clear for clear in _CLEAR.findall(text) if len(clear) >= _SHORTEST]
    whole = [text] if len(text) <= _SHORTEST or not long else []
    each = [clear[at : at + _SHORTEST + 1] for clear in long for at in range(len(clear) - _SHORTEST)]
    return [*whole, *long, *each]


def _cuts(text: str) -> dict[str, tuple[str, str]]:
    """Return by each character of `text` a piece around it, cut before it: all of it if that is long enough."""
    found = {}
    shortest = min(_SHORTEST, len(text))
    for clear in _CLEAR.findall(text):
        for at in reversed(range(len(clear))):
            after = clear[at : at + _LONGEST]
            before = "" if len(after) >= shortest else clear[max(at - _LONGEST, 0) : at]
            if len(before + after) >= shortest and before + after not in _EVERYWHERE:
                found[clear[at]] = before, after
    return found


def _pattern_from(char: str, pieces: Collection[tuple[str, str]]) -> bytes:
    """Return an expression that matches any piece from `char` on, and then looks at what precedes it."""
    leaves: dict[bytes, list[bytes]] = {}
    for before, after in pieces:
        if after[0] == char:
            leaves.setdefault(after.encode(), []).append(before.encode())
    return _tree({after: b"" if b"" in found else _pattern_behind(after, found) for after, found in leaves.items()})


def _pattern_behind(after: bytes, found: Collection[bytes]) -> bytes:
    return b"(?:" + b"|".join(b"(?<=" + re.escape(before + after) + b")" for before in sorted(found)) + b")"


def _tree(words: Mapping[bytes, bytes]) -> bytes:
    """Return an expression that matches any of `words`, each with its continuation; each beginning occurs once."""
    first, last = min(words), max(words)
    shared = first[
        : next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    ]
    by_first: dict[bytes, dict[bytes, bytes]] = {}
    for word, then in words.items():
        rest = word[len(shared) :]
        by_first.setdefault(rest[:1], {})[rest] = then
    branches = list(by_first.pop(b"", {}).values())
    if b"" in branches:
        return re.escape(shared)
    branches = [_tree(rests) for _, rests in sorted(by_first.items())] + branches
    return re.escape(shared) + (branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")")
