"""The bytes of a log in pieces that end with a line, lines of any length, and the end of the log."""

from collections.abc import Iterable, Iterator

BLOCK = 2 << 20
AHEAD = 64 << 10
"""Bytes after a piece that may be looked at: a traceback goes on in the lines that follow."""
_LONG = 16 << 10
_START, _AROUND = 512, 4096


class Chunk:
    """Some lines of a log: those that begin before `own`; `data` goes on a little. `first` is the number of its first
    line.
    """

    def __init__(self, data: bytes, own: int, first: int) -> None:
        self.data, self.own = data, own
        self._at, self._line = 0, first

    def line_of(self, at: int) -> int:
        """Return the number of the line that begins at `at`, which must not be less than it was before."""
        self._line += self.data.count(b"\n", self._at, at)
        self._at = at
        return self._line

    def following(self, end: int, most: int = 400) -> Iterator[bytes]:
        """Yield the lines after the one that ends at `end`, as far as `data` goes."""
        for _ in range(most):
            begin, end = end + 1, self.data.find(b"\n", end + 1)
            if end < 0:
                if begin < len(self.data):
                    yield self.data[begin:]
                return
            yield window(self.data, begin, end)


def chunks(blocks: Iterable[bytes]) -> Iterator[Chunk]:
    """Yield the lines of `blocks`, in pieces of some megabytes. A line longer than that is cut into several pieces."""
    rest, line = b"", 1
    for block in blocks:
        rest += block
        while len(rest) >= BLOCK + AHEAD:
            own = rest.rfind(b"\n", 0, BLOCK) + 1 or BLOCK
            yield Chunk(rest[: own + AHEAD], own, line)
            line += rest.count(b"\n", 0, own)
            rest = rest[own:]
    if rest:
        yield Chunk(rest, len(rest), line)


def window(data: bytes, begin: int, end: int, hit: int | None = None) -> bytes:
    """Return a line; of one of more than 16 KiB its beginning and what stands around `hit`."""
    if end - begin <= _LONG:
        return data[begin:end]
    around = begin if hit is None else max(hit - _AROUND // 4, begin + _START)
    return data[begin : begin + _START] + b" ... " + data[around : min(around + _AROUND, end)]


class Watched:
    """Bytes on their way to a reader: how many lines there were, and the last of them."""

    def __init__(self, blocks: Iterable[bytes], keep: int = 256 << 10) -> None:
        self._blocks, self._keep = blocks, keep
        self.nbytes = self.nlines = 0
        self.tail = b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the blocks as they are."""
        for block in self._blocks:
            self.nbytes += len(block)
            self.nlines += block.count(b"\n")
            self.tail = block[-self._keep :] if len(block) >= self._keep else (self.tail + block)[-self._keep :]
            yield block
        if self.tail and not self.tail.endswith(b"\n"):
            self.nlines += 1
