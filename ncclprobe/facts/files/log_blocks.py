"""The bytes of a log in pieces that end with a line, lines of any length, and the end of the log."""

from collections.abc import Iterable, Iterator

LEAST = 1 << 20
AHEAD = 64 << 10
"""Bytes after a piece that may be looked at: a traceback goes on in the lines that follow."""
_LONG = 16 << 10
_TAIL = 256 << 10
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


class Chunks:
    """The lines of blocks, in pieces of some megabytes; a line longer than that is cut into several pieces.

    After the last piece, `nbytes` and `nlines` say how much there was, and `tail` holds its end.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self.nbytes = self.nlines = 0
        self.tail = b""

    def __iter__(self) -> Iterator[Chunk]:
        """Yield piece by piece."""
        data, line = b"", 1
        for block in self._blocks:
            self.nbytes += len(block)
            data += block
            if len(data) < LEAST + AHEAD:
                continue
            own = data.rfind(b"\n", 0, len(data) - AHEAD) + 1 or len(data) - AHEAD
            yield (chunk := Chunk(data, own, line))
            line, data, before = chunk.line_of(own), data[own:], data
            self.tail = b"" if len(data) >= _TAIL else before[own - _TAIL if own > _TAIL else 0 : own]
        self.tail = (self.tail + data)[-_TAIL:]
        if data:
            yield (chunk := Chunk(data, len(data), line))
            line = chunk.line_of(len(data))
        self.nlines = line - 1 + bool(self.tail and not self.tail.endswith(b"\n"))


def window(data: bytes, begin: int, end: int, hit: int | None = None) -> bytes:
    """Return a line; of one of more than 16 KiB its beginning and what stands around `hit`."""
    if end - begin <= _LONG:
        return data[begin:end]
    around = begin if hit is None else max(hit - _AROUND // 4, begin + _START)
    until = min(around + _AROUND, end)
    after = data[around:until].partition(b" ")[2]  # whole words: half a secret has no form to be known by
    last = after if until == end else after.rpartition(b" ")[0]
    return data[begin : begin + _START].rpartition(b" ")[0] + b" ... " + last
