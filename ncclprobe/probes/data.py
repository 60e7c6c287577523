"""What buffers hold when data is verified, and how many elements came out wrong.

Every element depends on the rank that sends it and on where it lies, so that a missing rank, a swapped share and a
shifted one all show. Every value, and every partial reduction in whatever order, is exact in the data type, so that
any difference is an error; only the average of floating-point numbers has a tolerance, because NCCL multiplies by a
rounded 1/n before it sums (hostToDevRedOp in nccl src/enqueue.cc). Nothing here belongs inside a timed window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ncclprobe.probes import Part

PERIOD = 1021
"""Elements after which values repeat: a prime, so that no share of a buffer is a multiple of it by accident."""

_BLOCK = PERIOD * 1024
"""Elements handled at once: bounds what verification needs beside the buffers themselves."""

_EXACT_BELOW = {torch.int8: 127, torch.uint8: 255, torch.bfloat16: 256, torch.float16: 2048}
_EXACT_EXPONENT = {torch.int8: 6, torch.uint8: 7, torch.float16: 15}
_FLOAT_AVERAGE_BELOW = 16


@dataclass(frozen=True, slots=True)
class Pattern:
    """What each rank sends (`rows[rank]`, one period) and what a reduction over all ranks gives (`total`)."""

    rows: torch.Tensor
    total: torch.Tensor
    tolerance: float = 0.0

    def fill(self, buffer: torch.Tensor, rank: int) -> None:
        """Write what `rank` sends."""
        for start, piece in _pieces(buffer):
            piece.copy_(_repeated(self.rows[rank], start, len(piece)))

    def wrong(self, received: torch.Tensor, parts: Sequence[Part]) -> int:
        """How many elements of `received` are not what `parts` says they must be."""
        count = torch.zeros((), dtype=torch.int64, device=received.device)
        begin = 0
        for part in parts:
            period = self.total if part.source is None else self.rows[part.source]
            for offset, piece in _pieces(received[begin : begin + part.count]):
                expected = _repeated(period, part.start + offset, len(piece))
                count += self._differing(piece, expected, part.source is None)
            begin += part.count
        return int(count)

    def _differing(self, got: torch.Tensor, expected: torch.Tensor, reduced: bool) -> torch.Tensor:
        if not (reduced and self.tolerance):
            return (got != expected).sum()
        error = (got.double() - expected.double()).abs()
        return (~(error <= self.tolerance * expected.double())).sum()  # NaN is never within the tolerance


def pattern(dtype: torch.dtype, redop: str | None, ranks: int, device: torch.device) -> Pattern:
    """The data to verify one reduction with, or (None) an operation that only moves data."""
    limit = _EXACT_BELOW.get(dtype, 1 << 20)
    tolerance = 0.0
    if redop is None:
        rows = 1 + _scattered(ranks) % limit
        total = rows[0]
    elif redop == "sum":
        rows = _shares(ranks, limit)
        total = rows.sum(0)
    elif redop == "prod":
        exponents = _shares(ranks, _EXACT_EXPONENT.get(dtype, 30))
        rows, total = 1 << exponents, 1 << exponents.sum(0)
    elif redop == "avg" and dtype.is_floating_point:
        rows = _shares(ranks, _FLOAT_AVERAGE_BELOW)
        total = rows.sum(0).double() / ranks
        tolerance = 5 * torch.finfo(dtype).eps  # at most eight ranks contribute, each rounded twice
    elif redop == "avg":
        rows = _shares(ranks, limit)
        total = rows.sum(0) // ranks
    else:
        rows = _contest(ranks, limit, highest_wins=redop == "max")
        total = rows.amax(0) if redop == "max" else rows.amin(0)
    return Pattern(rows.to(dtype).to(device), total.to(dtype).to(device), tolerance)


def _scattered(ranks: int) -> torch.Tensor:
    """Non-negative numbers without order, one row of a period per rank.

    Squares modulo a prime: unlike multiples, they change by another amount at every place of a shift, and unlike
    plain squares they do not repeat modulo a power of two, which is what shares are shifted by.
    """
    place = torch.arange(ranks * PERIOD, dtype=torch.int64).view(ranks, PERIOD)
    return (place + 4099).square() % 65521


def _turn(ranks: int) -> torch.Tensor:
    """Whose turn it is: 0 for another rank at every place, and counting up from there."""
    return (torch.arange(ranks).unsqueeze(1) - torch.arange(PERIOD)) % ranks


def _shares(ranks: int, limit: int) -> torch.Tensor:
    """Positive numbers whose sum over ranks never exceeds `limit`.

    With too many ranks for that, most contribute 0, others at every place.
    """
    highest = max(2, limit // ranks)
    contributes = _turn(ranks) < limit // highest
    return torch.where(contributes, 1 + _scattered(ranks) % highest, 0)


def _contest(ranks: int, limit: int, highest_wins: bool) -> torch.Tensor:
    """Positive numbers up to `limit` of which one rank's alone is the largest (or smallest), in turn."""
    half = limit // 2
    raised = (_turn(ranks) == 0) == highest_wins
    return 1 + _scattered(ranks) % half + half * raised


def _pieces(buffer: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The blocks of `buffer`, each with where it begins."""
    for start in range(0, len(buffer), _BLOCK):
        yield start, buffer[start : start + _BLOCK]


def _repeated(period: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """`count` elements of the endless repetition of `period`, from element `start` on."""
    phase = start % PERIOD
    times = -(-(phase + count) // PERIOD)
    return period.repeat(times)[phase : phase + count]
