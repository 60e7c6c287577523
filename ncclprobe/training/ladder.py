"""The ladder of a job: one rank, its node, all nodes; what more ranks bring, and whether a node alone is slow. Pure.

Every rung is the same step of data-parallel training: a rank's own work, and the gradients summed over its group. On
the lowest rung a group is one rank, so nothing is sent: that is what each further rung is compared with.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from ncclprobe import stats
from ncclprobe.model.measurement import Band
from ncclprobe.model.traffic import LadderRow, RungName
from ncclprobe.model.values import Struct, replace


class Rung(Struct, frozen=True):
    """The ranks of each group; groups work at the same time, as they would in a job."""

    name: RungName
    groups: tuple[tuple[int, ...], ...]

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the group that `rank` is in; itself alone where it is in none."""
        return next((group for group in self.groups if rank in group), (rank,))


def plan(hosts: Sequence[str], *, pairs: bool) -> tuple[Rung, ...]:
    """Return the rungs of ranks on `hosts`, from one rank to all; none that holds as many ranks as the one below.

    `pairs`: with a rung of two ranks each, for a backend without GPUs, where a node is only as wide as it was started.
    """
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    by_two = tuple(two for ranks in nodes.values() for two in zip(ranks[::2], ranks[1::2], strict=False))
    wanted = [
        Rung("rank", tuple((rank,) for rank in range(len(hosts)))),
        *([Rung("pair", by_two)] if pairs else []),
        Rung("node", tuple(tuple(ranks) for ranks in nodes.values())),
        Rung("job", (tuple(range(len(hosts))),)),
    ]
    found: list[Rung] = []
    for rung in wanted:
        width = max((len(group) for group in rung.groups), default=0)
        if not found or width > max(map(len, found[-1].groups)):
            found.append(rung)
    return tuple(found)


def climbed(rows: Sequence[LadderRow], bands: Sequence[Band]) -> tuple[LadderRow, ...]:
    """Return `rows` with speed-up, efficiency and verdict: what follows from them, and from `bands` of one node."""
    alone = next((row for row in rows if row.rung == "rank"), None)
    return tuple(_judged(_compared(row, alone), bands) for row in rows)


def _compared(row: LadderRow, alone: LadderRow | None) -> LadderRow:
    pairs = zip(alone.samples_us if alone else (), row.samples_us, strict=False)
    ratios = [one_us / step_us for one_us, step_us in pairs if step_us > 0]
    if not ratios:
        return row
    efficiency = median(ratios)
    interval = stats.median_interval(ratios) if len(ratios) >= stats.MIN_SAMPLES else None
    return replace(row, speedup=row.ranks * efficiency, efficiency=efficiency, interval=interval)


def _judged(row: LadderRow, bands: Sequence[Band]) -> LadderRow:
    """Judge a node's all_reduce by what a node of so many ranks reaches; that of the job is judged as a row is."""
    found = next(_of_node(row, bands), None)
    usual, best = row.busbw_GBps, row.best_GBps
    if found is None or usual is None or best is None:
        return row
    expected = found.expectation
    row = replace(row, expectation=expected)
    if expected.below_gross(best):
        return replace(row, status="fail")
    if expected.worst == "unjudged":
        return row
    if usual >= expected.threshold:
        return replace(row, status="pass")
    return replace(row, status=expected.worst if best < expected.threshold else "inconclusive")


def _of_node(row: LadderRow, bands: Sequence[Band]) -> Iterator[Band]:
    for band in bands:
        same = band.like is not None and (band.like.ranks, band.like.nodes) == (row.ranks, 1)
        if row.rung == "node" and same and band.op == row.op and band.low_bytes <= row.nbytes <= band.high_bytes:
            yield band
