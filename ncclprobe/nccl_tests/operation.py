"""Find a table's operation and number of ranks, from the lines above it or from its numbers.

The ratio of bus to algorithm bandwidth is the operation's factor, which for most operations depends on the ranks.
"""

import math
import re
from collections.abc import Iterator, Sequence

from ncclprobe.model import bounds
from ncclprobe.model.ops import Op
from ncclprobe.model.values import Struct
from ncclprobe.nccl_tests.rows import DTYPES, KNOWN, Line, is_old

_APART, _SURE_GBps = 0.05, 1.0
_ROUNDING, _DIGITS = 0.005, 5e-6
"""Rounding error of a printed bandwidth, in GB/s, and of a printed time, as a share."""
_NEAR = 0.4
UNKNOWN = "unknown"
"""Operation of rows whose table neither names nor shows it."""
_UNCHECKED_IN_PLACE = {"all_to_all", "sendrecv"}
_NAMED = {
    name: re.compile(rf"\b{name.replace('_', '[-_ ]?')}(?![a-z])", re.IGNORECASE)
    for name in KNOWN
    if name not in ("reduce", "gather", "scatter")  # words of other things too
}


class Given(Struct, frozen=True):
    """What the user knows of a log: the operation (empty: unknown) and the number of ranks (0: unknown)."""

    op: str = ""
    ranks: int = 0


NOT_GIVEN = Given()


class Printed(Struct, frozen=True):
    """A table and its hints. `hints`: operations that lines above it name.

    `counts`: numbers of ranks in the order of trust (0: unknown): the user's, the list's, the command's.
    """

    lines: Sequence[Line]
    roots: Sequence[int]
    op: str
    hints: set[str]
    counts: Sequence[int]


def named_ops(line: str) -> set[str]:
    """Return the operations that `line` names, in any spelling."""
    return {name for name, pattern in _NAMED.items() if pattern.search(line)}


def recognised(printed: Printed) -> tuple[str, int, str]:
    """Return the operation, its ranks (0: unknown), and what is missing to be certain of them, if anything."""
    if printed.op:
        return _infer_ranks(printed.op, printed)
    rows = list(zip(printed.lines, printed.roots, strict=False))
    counts = ((name, ranks) for name in KNOWN for ranks in _counts(name, printed))
    fits = [(name, ranks) for name, ranks in counts if all(_fits(KNOWN[name], *each, ranks) for each in rows)]
    first = dict(reversed(fits))  # by the most trusted count
    listed = [name for name, ranks in first.items() if ranks == max(printed.counts[:2])]
    names = listed or list(first)
    names = _filter_by_verification(names, printed) or listed
    hinted = [name for name in names if name in printed.hints]
    if len(names) > 1 and len(hinted) == 1:
        names = hinted
    if max(printed.counts) == 1 and not hinted:  # which sends nothing, whatever it is
        return UNKNOWN, 1, "one rank sends nothing"
    if len(names) == 1:
        return names[0], first[names[0]], ""
    unsaid = "it does not say which operation was measured"
    if names:
        same = {first[name] for name in names}
        told = f"it may be {' or '.join(sorted(names))}: give --op {min(names)}"
        return UNKNOWN, same.pop() if len(same) == 1 else 0, f"{unsaid}, and {told}"
    sure = [line for line in printed.lines if line.algbw > _SURE_GBps]
    if sure and all(line.busbw > line.algbw for line in sure):
        return _infer_ranks("all_reduce", printed)  # the only one whose factor is above 1
    return UNKNOWN, 0, f"{unsaid}, and its numbers fit none: give --op NAME"


def _infer_ranks(name: str, printed: Printed) -> tuple[str, int, str]:
    """Return `name`, its ranks, and what is missing to know them: the first number that its bandwidths allow."""
    counts = list(_counts(name, printed))
    op = KNOWN.get(name)
    found = next(
        (ranks for ranks in counts if op and all(_bandwidths_fit(op, ranks, each) for each in printed.lines)), 0
    )
    ranks = found or (counts or [0])[0]  # numbers that fit none are shown with the first
    return name, ranks, "" if ranks else "it does not say how many ranks there were: give --ranks N"


def _counts(name: str, printed: Printed) -> Iterator[int]:
    """Yield possible numbers of ranks, the user's first and that of the ratio last."""
    yield from dict.fromkeys(count for count in printed.counts if 0 < count <= bounds.JOB_RANKS)
    by_ratio = ranks_by_ratio(name, printed.lines)
    if by_ratio and not printed.counts[0]:
        yield by_ratio


def ranks_by_ratio(name: str, lines: Sequence[Line]) -> int | None:
    """Return the number of ranks that gives the printed ratio of bus to algorithm bandwidth; None if rounding leaves
    several.
    """
    top = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}.get(name)
    timed = [line for line in lines if _timed(line)]
    if top is None or not timed:
        return None
    line = max(timed, key=lambda each: each.busbw)
    ratio = line.busbw / (line.nbytes / line.time_us / 1e3)
    if not top / 2 * 0.99 <= ratio < top:
        return None
    ranks = top / (top - ratio)
    rounding = ratio * (_ROUNDING / line.busbw + _DIGITS) * ranks / (top - ratio)
    return round(ranks) if rounding < _NEAR and 2 <= round(ranks) <= bounds.JOB_RANKS else None


def _timed(line: Line) -> bool:
    numbers = line.time_us, line.algbw, line.busbw
    return not line.cpu and all(0 < each < math.inf for each in numbers)


def _fits(op: Op, line: Line, root: int, ranks: int) -> bool:
    reduces = line.redop not in ("none", "") and not (op.name == "sendrecv" and line.redop == "sum")
    if reduces != op.reduces or (root >= 0) != op.rooted:
        return False
    if line.count * DTYPES.get(line.dtype, ("", 1))[1] * (ranks if op.divided else 1) != line.nbytes:
        return False
    return _bandwidths_fit(op, ranks, line)


def _bandwidths_fit(op: Op, ranks: int, line: Line) -> bool:
    """Return whether a line's two bandwidths agree with this operation, within their rounding."""
    if line.algbw <= _SURE_GBps:
        return True
    old = is_old(op, line) and line.time_us > 0 and not line.cpu
    algbw = line.nbytes / line.time_us / 1e3 if old else line.algbw
    apart = max(0.002, 2 * _ROUNDING * (1 / algbw + line.busbw / algbw**2))
    return abs(line.busbw / algbw - op.bus_factor(ranks)) < min(_APART, apart)


def _filter_by_verification(names: Sequence[str], printed: Printed) -> list[str]:
    """Filter `names` by verification: some operations are checked only out of place, others in both."""
    checked = {
        place: {line.wrong is not None for line in printed.lines if line.place == place} for place in ("in", "out")
    }
    if checked["out"] != {True} or len(checked["in"]) != 1:
        return list(names)
    return [name for name in names if (name in _UNCHECKED_IN_PLACE) != (checked["in"] == {True})]
