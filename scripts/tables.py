"""Tables in markdown, and a ratio with its interval, for the scripts that measure."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ncclprobe import stats


class Ratio(NamedTuple):
    """The median of paired ratios, its 95 % bootstrap interval, and how many pairs there were."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(ours: Sequence[float], others: Sequence[float]) -> Ratio:
    """Ours over another's, pair by pair. Raises ValueError where they do not pair up."""
    values = [one / other for one, other in zip(ours, others, strict=True)]
    return Ratio(statistics.median(values), *stats.bootstrap(values), len(values))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of a markdown table, and an empty one."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "--|" * len(head)
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells below {len(head)} headings: {row}")
        yield "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in row) + " |"
    yield ""
