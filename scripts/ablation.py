#!/usr/bin/env python3
"""What does each kind of expectation know by itself? Published numbers, links with measured latency and efficiency, and
NCCL's own model; and how much of that model is equal to NCCL's code.

    .venv/bin/python scripts/ablation.py [FOLDER] [--out reports/ablation.md]

FOLDER is that of scripts/accuracy.py. Every healthy row is expected by each kind alone, made of other sources
only (scripts/held_out.py says what one source is), and the error is the absolute log of measured by expected.
"""

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests")]

import held_out
from accuracy import quantile
from expect.nccl_vectors import communicators, of_release, same_channels, same_choices
from held_out import LARGE, measured
from published import PUBLISHED, Row, outliers, rows
from tables import table

from ncclprobe.expect import evidence, network
from ncclprobe.expect.predict import LATEST, modelled, predict
from ncclprobe.expect.tuner.cost import only
from ncclprobe.expect.tuner.search import rank_links
from ncclprobe.ops import OPS

KINDS = ("published", "links", "links, measured", "NCCL", "NCCL, measured", "ncclprobe")
WORDS = """
- *published*: the best number of another source for the same GPU, links, shape and operation at nearly the same size
- *links*: bytes by what the links of a GPU, and the NICs of a node, carry by their rate
- *links, measured*: a latency, and bytes by the rate of the links times an efficiency; both are those of other sources
- *NCCL*: latency and transfer time of what NCCL's cost model chooses, over the graphs of our search, and nothing else
- *NCCL, measured*: the same with a factor on its latency and an efficiency of its bandwidth; both of other sources
- *ncclprobe*: what ships: NCCL's choice, the network's limits, measured latencies; its factors have seen these sources
  (reports/expected-accuracy.md holds them back)

What is measured is the geometric mean over other sources of each one's median, on such a path: of the same operation
and as many nodes (one, two, more), else of as many nodes, else of any; latency up to 64 KiB, efficiency from 256 MiB.
"""
_SMALL, _LARGE = 64 << 10, 256 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """A time in two parts, in microseconds: what is waited for, and what bytes take."""

    latency_us: float
    transfer_us: float


@dataclass(frozen=True, slots=True)
class Known:
    """One published number, and what is expected by each kind that says something, in GB/s of bus bandwidth."""

    row: Row
    source: str
    path: str
    nbytes: int
    value_GBps: float
    said: dict[str, float] = field(default_factory=dict)
    splits: dict[str, Split] = field(default_factory=dict)

    def error(self, kind: str) -> float:
        """The absolute log of measured by expected. Raises KeyError where this kind says nothing."""
        return abs(math.log(self.value_GBps / self.said[kind]))

    @property
    def bus_bytes(self) -> float:
        """What the bus bandwidth counts."""
        return self.nbytes * OPS[self.row.op].bus_factor(self.row.shape.ranks)

    @property
    def time_us(self) -> float:
        """What was measured, as a time."""
        return self.bus_bytes / self.value_GBps / 1e3

    def take(self, kind: str, time_us: float) -> None:
        """Note what `kind` expects."""
        self.said[kind] = self.bus_bytes / time_us / 1e3

    @property
    def keys(self) -> tuple[tuple[object, ...], ...]:
        """What it may be learned from, nearest first."""
        nodes = min(3, network.domains(self.row.system, self.row.shape).count)
        return (self.path, self.row.op, nodes), (self.path, nodes), (self.path.split()[0],)


def known(found: Sequence[Row]) -> list[Known]:
    """Every healthy row with all that can be said of it without its source."""
    healthy = [row for row in found if row.healthy == "yes"]
    named = held_out.sources(healthy)
    whole = [_known(row, named[row.family]) for row in healthy]
    others = {id(s.row): s.expected.value for s in held_out.samples(healthy) if s.basis == "published"}
    for each in whole:
        if id(each.row) in others:
            each.said["published"] = others[id(each.row)]
    for kind in ("links", "NCCL"):
        measured_by_others(whole, kind)
    return whole


def _known(row: Row, source: str) -> Known:
    nbytes = row.nbytes or LARGE
    path = evidence.path_of(row.system, row.shape, row.op)
    found = Known(row, source, path, nbytes, measured(row, nbytes))
    rate = _rate_GBps(row)
    if rate:
        found.take("links", found.bus_bytes / rate / 1e3)
        found.splits["links"] = Split(1.0, found.bus_bytes / rate / 1e3)
    forced = row.forced
    version = row.nccl or LATEST
    cost = modelled(row.system, row.shape, row.op, nbytes, version, only(forced))
    if cost:
        found.take("NCCL", cost.latency_us + cost.transfer_us)
        found.splits["NCCL"] = Split(cost.latency_us, cost.transfer_us)
    whole = predict(row.system, row.shape, row.op, nbytes, version, forced)
    if whole:
        found.said["ncclprobe"] = whole.busbw_GBps
    return found


def _rate_GBps(row: Row) -> float | None:
    """The rate of the slowest link that every byte must cross."""
    inside = rank_links(row.system, row.shape, row.nccl or LATEST).inside_GBps
    if network.domains(row.system, row.shape).count < 2:
        return inside
    bound = network.limit(row.system, row.shape, row.op, inside)
    return min(bound.hard_GBps, inside) if bound else None


Reached = Mapping[tuple[object, ...], Mapping[str, Sequence[float]]]
"""What each source reached, by what it may be learned from."""


def measured_by_others(whole: Sequence[Known], kind: str) -> None:
    """Note in `whole` what `kind` expects with the latency and the efficiency of other sources."""
    own = [each for each in whole if kind in each.splits]
    small, large = ([e for e in own if e.nbytes <= _SMALL], [e for e in own if e.nbytes >= _LARGE])
    waits = _reached((each, each.time_us / each.splits[kind].latency_us) for each in small)
    takes = _reached((each, each.time_us / each.splits[kind].transfer_us) for each in large)
    for each in own:
        split, wait, take = each.splits[kind], _of_others(waits, each), _of_others(takes, each)
        if take and (wait or each.nbytes >= _LARGE):
            each.take(f"{kind}, measured", split.latency_us * (wait or 1.0) + split.transfer_us * take)


def _reached(found: Iterable[tuple[Known, float]]) -> Reached:
    reached: dict[tuple[object, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each, value in found:
        for key in each.keys:
            reached[key][each.source].append(value)
    return reached


def _of_others(reached: Reached, each: Known) -> float | None:
    for key in each.keys:
        others = [statistics.median(v) for name, v in reached.get(key, {}).items() if name != each.source]
        if others:
            return statistics.geometric_mean(others)
    return None


Group = Callable[[Known], tuple[str, ...]]


def where(each: Known) -> str:
    """Within a node or rack, or between nodes; operations in pairs by themselves."""
    inside = each.path.split()[0] in ("nvlink", "pcie", "mnnvl")
    return ("one node or rack" if inside else "between nodes") + (", pairs" if each.path.endswith("pairs") else "")


def decade(each: Known) -> str:
    """The decade of bytes, all that is below 10 KB together."""
    power = evidence.decade(each.nbytes)
    words = ("10 KB", "100 KB", "1 MB", "10 MB", "100 MB", "1 GB")
    return "below 10 KB" if power < 4 else f"from {words[power - 4]}"


def over_sources(own: Iterable[Known], kind: str) -> tuple[float, float, float]:
    """Median and 90th percentile of each source, averaged over sources, and the median of the worst source."""
    errors: dict[str, list[float]] = defaultdict(list)
    for each in own:
        errors[each.source].append(each.error(kind))
    middle = [statistics.median(values) for values in errors.values()]
    return statistics.fmean(middle), statistics.fmean(quantile(v, 0.9) for v in errors.values()), max(middle)


def _cell(own: Sequence[Known], kind: str) -> str:
    covered = [each for each in own if kind in each.said]
    if not covered:
        return ""
    median, ninety, worst = over_sources(covered, kind)
    return f"{median:.2f} / {ninety:.2f} / {worst:.2f} ({len(covered) / len(own):.0%})"


def by_group(whole: Iterable[Known], group: Group, head: tuple[str, ...]) -> Iterator[str]:
    """Median / p90 / worst source (coverage) of every kind."""
    groups: dict[tuple[str, ...], list[Known]] = defaultdict(list)
    for each in whole:
        groups[group(each)].append(each)
    lines = [
        (*key, len({each.source for each in own}), len(own), *(_cell(own, kind) for kind in KINDS))
        for key, own in sorted(groups.items(), key=lambda item: (item[0][:-1], min(e.nbytes for e in item[1])))
    ]
    yield from table((*head, "sources", "rows", *KINDS), lines)


def head_to_head(whole: Sequence[Known]) -> Iterator[str]:
    """Two kinds on the rows that both know: the mean over sources of the median, and of how many it is less."""
    pairs = (
        ("published", "links, measured"),
        ("published", "NCCL, measured"),
        ("NCCL, measured", "links, measured"),
        ("NCCL, measured", "ncclprobe"),
        ("links, measured", "ncclprobe"),
    )
    lines: list[tuple[object, ...]] = []
    for name in sorted({where(each) for each in whole}):
        for small in (True, False):
            for one, other in pairs:
                own = [e for e in whole if where(e) == name and (e.nbytes < 256 << 20) == small
                       and one in e.said and other in e.said]  # fmt: skip
                if own:
                    numbers = [f"{over_sources(own, kind)[0]:.3f}" for kind in (one, other)]
                    size = "below 256 MiB" if small else "256 MiB and more"
                    lines.append((name, size, one, other, len({e.source for e in own}), len(own), *numbers))
    yield from table(("where", "bytes", "one", "other", "sources", "rows", "error of one", "of the other"), lines)


FOLLOWS = """
- What was published of a machine comes first: nothing is nearer where it exists, and it seldom does.
- NCCL's model decides which algorithm, protocol and channels a call takes. As a clock it earns its place in a node,
  where it beats links from 1 MB on (at the largest sizes on Hopper by far), and between nodes from 100 KB on.
- It is no clock for smaller messages between nodes, where one measured latency is as good, nor over TCP or for racks of
  NVLink. From 256 MiB on between nodes the network's limits times measured fractions beat both.
- Equal to NCCL is not nearer to the clock: exact choices left the errors of these tables as they were.
"""


def by_release() -> Iterator[str]:
    """How many communicators of tests/data/nccl are equal, by release."""
    machines = {each.name for each in communicators() if each.functions}
    yield (
        "Communicators whose tables and choices are equal within 0.1 % given NCCL's graphs, and whose channels our own "
        f"search finds, by what NCCL's code, compiled without a GPU, makes of {len(machines)} machines "
        "(tests/data/nccl)."
    )
    yield ""
    lines = []
    for release in sorted({release for each in communicators() for release in each.releases}):
        own = of_release(release)
        equal = [sum(test(each, release) for each in own) for test in (same_choices, same_channels)]
        lines.append((".".join(map(str, release)), len(own), *equal))
    yield from table(("NCCL", "communicators", "tables and choices", "channels of our own search"), lines)


def page(found: Sequence[Row]) -> Iterator[str]:
    """The whole report."""
    whole = known(found)
    yield "# What each kind of expectation knows alone"
    yield ""
    yield (
        f"`scripts/ablation.py` over {len(whole)} healthy published collectives of {len({e.source for e in whole})} "
        "sources. A row is expected from other sources only; an error is the absolute log of measured by expected: "
        "0.10 is 10 %. Cells are median / 90th percentile / median of the worst source (share of rows with a number); "
        "the first two are those of each source, averaged over sources."
    )
    yield WORDS
    yield from by_group(whole, lambda each: (where(each), decade(each)), ("where", "bytes"))
    yield "## Two kinds on the rows that both know"
    yield ""
    yield from head_to_head(whole)
    yield "## What follows"
    yield ""
    yield FOLLOWS
    yield "## NCCL's model beside NCCL's code"
    yield ""
    yield from by_release()
    yield "## By path"
    yield ""
    yield from by_group(whole, lambda each: (each.path, decade(each)), ("path", "bytes"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, nargs="?", default=PUBLISHED, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    odd = outliers(options.published)
    text = "\n".join(page([row for row in rows(options.published) if (row.sweep, row.nbytes) not in odd])).rstrip()
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
