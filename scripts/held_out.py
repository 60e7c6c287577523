"""Published runs against expectations that were made without them: what ``expect/tables/errors.csv`` is made of.

A source is held back whole. What it is compared with: NCCL's model with factors that were fitted to the others, and for
the basis *published* the numbers that other sources printed for the same GPU, shape, operation and size.
"""

import csv
import io
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import fitting
from published import Row

from ncclprobe.expect import evidence, sockets
from ncclprobe.expect.bands import once
from ncclprobe.expect.expected import as_expectation, combined
from ncclprobe.expect.predict import LATEST, Prediction, predict
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import DIRECT_OPS, OPS
from ncclprobe.model.values import Struct, replace

LARGE = 8 << 30
_SITES = {
    "google": ("google",),
    "azure": ("azure", "microsoft"),
    "oracle": ("oracle",),
    "aws": ("aws",),
    "nvidia": ("nvidia",),
}
"""Several repositories and documents of one cloud or vendor are one source; an issue thread is one of its own."""
_OWN = ("coreweave/", "awslabs/", "dstackai/")
"""Whose threads are written by who publishes the repository."""
_DIGITS = 4
_COPIES = 2
HIGHEST = 0.9
"""No mark is above this: other releases and clocks cost some percent, which baselines and peers are for."""
_MANY, _SPREAD = 8, 0.04
"""Few sources that agree may do so by chance: they spread by no less than the median class that has many."""
T99 = (31.821, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764, 2.718, 2.681, 2.650, 2.624, 2.602, 2.583,
       2.567, 2.552, 2.539, 2.528, 2.518, 2.508, 2.500, 2.492, 2.485, 2.479, 2.473, 2.467, 2.462, 2.457)  # fmt: skip
"""Student's t by degrees of freedom from 1, one in a hundred on one side."""


class Sample(Struct, frozen=True):
    """One published row and one expectation that was made without its source."""

    row: Row
    source: str
    basis: str
    path: str
    nbytes: int
    expected: Expectation
    value_GBps: float
    by_time: bool

    @property
    def reached(self) -> float:
        """Measured by expected."""
        return self.value_GBps / self.expected.value


Cells = Mapping[tuple[str, str, int], evidence.ErrorCell]


def measured(row: Row, nbytes: int) -> float:
    """Bus bandwidth by the time where there is one: the printed rate has two decimals."""
    if row.time_us and row.nbytes:
        return nbytes * OPS[row.op].bus_factor(row.shape.ranks) / row.time_us / 1e3
    return row.busbw_GBps


def sources(rows: Sequence[Row]) -> Mapping[str, str]:
    """The source of each family: issue threads each, one cloud together, and who printed the same numbers together."""
    found = {row.family: _site(row.family) for row in rows}
    printed: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for row in rows:
        if len(f"{row.busbw_GBps:g}".replace(".", "").strip("0")) >= _DIGITS:
            printed[row.system.gpu, row.shape, row.op, row.nbytes, row.busbw_GBps].add(found[row.family])
    shared: dict[tuple[str, str], int] = defaultdict(int)
    for names in printed.values():
        for pair in combinations(sorted(names), 2):
            shared[pair] += 1
    for (one, other), count in shared.items():
        if count >= _COPIES:
            found = {family: found[family] if name != other else one for family, name in found.items()}
    return found


def _site(family: str) -> str:
    if "#" in family and not family.startswith(_OWN):
        return family
    low = family.lower()
    known = next((site for site, words in _SITES.items() if any(word in low for word in words)), None)
    return known or re.split(r"[/]", low)[0]


def samples(rows: Sequence[Row]) -> list[Sample]:
    """Every row with what the model, and with what other sources printed of the same machine."""
    named = sources(rows)
    return [*_by_model(rows, named), *_by_others(rows, named)]


def points(rows: Sequence[Row]) -> list[fitting.Point]:
    """What the factors of the correction are fitted to: healthy rows of the collectives that NCCL's model knows."""
    named = sources(rows)
    own = ((row, _predicted(row)) for row in rows if row.healthy == "yes" and row.op not in DIRECT_OPS)
    return [_point(row, named[row.family], found) for row, found in own if found]


def _predicted(row: Row) -> Prediction | None:
    return predict(row.system, row.shape, row.op, row.nbytes or LARGE, row.nccl or LATEST, row.forced)


def _point(row: Row, source: str, found: Prediction) -> fitting.Point:
    path = evidence.path_of(row.system, row.shape, row.op)
    seen_us = found.bus_bytes / measured(row, row.nbytes or LARGE) / 1e3
    return fitting.Point(source, found.place, path, found.latency_us, found.bytes_us, seen_us)


def _by_model(rows: Sequence[Row], named: Mapping[str, str]) -> Iterator[Sample]:
    fits = fitting.Fits(points(rows))
    without = {source: fits.without(source) for source in set(named.values())}
    for row in rows:
        nbytes, source, found = row.nbytes or LARGE, named[row.family], _predicted(row)
        expected = as_expectation(found) if found else _over_tcp(row, nbytes)
        if found and expected:
            time_us = without[source].time_us(_point(row, source, found))
            expected = replace(expected, value=found.bus_bytes / time_us / 1e3)
        if expected:
            path, by_time = evidence.deciding(row.system, row.shape, row.op), bool(found and found.latency_decides)
            yield Sample(row, source, expected.basis, path, nbytes, expected, measured(row, nbytes), by_time)


def _over_tcp(row: Row, nbytes: int) -> Expectation | None:
    if row.system.network != "sockets" or row.shape.nodes < 2 or nbytes < sockets.LARGE_NBYTES:
        return None
    link = sockets.SocketLink(row.system.nic_gbps * max(1, row.system.nics), "the NICs of a node", "reported")
    return sockets.nccl(row.op, link)


def _by_others(rows: Iterable[Row], named: Mapping[str, str]) -> Iterator[Sample]:
    """By what a healthy other source printed of a size within a factor of two, the best as the tables take it."""
    same: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        if row.nbytes:
            system = row.system
            links = (system.nics, system.nic_gbps, system.network, system.nvls, system.fabric, system.gpus)
            same[system.gpu, row.shape, row.op, row.forced, int(math.log2(row.nbytes or 1)), links].append(row)
    for own in same.values():
        best: dict[str, float] = {}
        for row in own:
            if row.healthy == "yes":
                value = measured(row, row.nbytes or LARGE)
                best[named[row.family]] = max(value, best.get(named[row.family], 0.0))
        for row in own:
            others = [value for name, value in best.items() if name != named[row.family]]
            if others:
                yield _sample(row, named[row.family], max(others))


def _sample(row: Row, source: str, best: float) -> Sample:
    nbytes = row.nbytes or LARGE
    path = evidence.deciding(row.system, row.shape, row.op)
    expected = Expectation(best, 0.0, "GB/s", "published", "another source", "another source")
    found = _predicted(row)
    by_time = bool(found and found.latency_decides)
    return Sample(row, source, "published", path, nbytes, expected, measured(row, nbytes), by_time)


def cells(found: Iterable[Sample]) -> Cells:
    """The errors of healthy rows by basis, path and decade."""
    return {key: _cell(key, own) for key, own in _groups(found).items()}


def without(found: Iterable[Sample], source: str) -> Cells:
    """The same without one source. What is judged with it stays judged: its mark is then what the others give."""
    groups = _groups(found)
    others = {key: {name: own[name] for name in own if name != source} for key, own in groups.items()}
    return {key: replace(_cell(key, own), mark=_mark(own, groups[key])) for key, own in others.items() if own}


def _mark(own: Mapping[str, Sequence[Sample]], whole: Mapping[str, Sequence[Sample]]) -> float | None:
    """That of `own`, where the evidence is enough with the source that was left out of `whole`."""
    rows = sum(map(len, whole.values()))
    known = len(own) > 1 and evidence.enough(len(whole), rows)
    return mark_of(_lowest(own)) if known else None


def _lowest(own: Mapping[str, Sequence[Sample]]) -> list[float]:
    return [min(each.reached for each in of_source) for of_source in own.values()]


def _groups(found: Iterable[Sample]) -> dict[tuple[str, str, int], dict[str, list[Sample]]]:
    groups: dict[tuple[str, str, int], dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        for path in filter(None, (each.path, evidence.pooled(each.path))):
            if each.row.healthy == "yes":
                groups[each.basis, path, evidence.decade(each.nbytes)][each.source].append(each)
    return dict(sorted(groups.items()))


def _cell(key: tuple[str, str, int], own: Mapping[str, Sequence[Sample]]) -> evidence.ErrorCell:
    errors = [sorted(abs(math.log(each.reached)) for each in of_source) for of_source in own.values()]
    rows = sum(map(len, errors))
    nodes = max(each.row.shape.nodes for of_source in own.values() for each in of_source)
    median = statistics.fmean(statistics.median(each) for each in errors)
    ninety = statistics.fmean(each[min(len(each) - 1, math.ceil(0.9 * len(each)) - 1)] for each in errors)
    mark = mark_of(_lowest(own)) if evidence.enough(len(own), rows) else None
    return evidence.ErrorCell(*key, len(own), rows, nodes, round(median, 3), round(ninety, 3), mark)


def mark_of(lowest: Sequence[float]) -> float:
    """What 99 of 100 further sources reach with all of their rows, by the `lowest` that each source reached.

    The lower end of Student's prediction interval for one more, in logarithms, and never above the lowest seen. Faster
    than expected says nothing of how slow a healthy machine can be, so it counts as expected.
    """
    logs = [min(0.0, math.log(each)) for each in lowest]
    count = len(logs)
    spread = statistics.stdev(logs) if count >= _MANY else max(_SPREAD, statistics.stdev(logs))
    wide = spread * math.sqrt(1 + 1 / count) * T99[min(count - 1, len(T99)) - 1]
    return min(HIGHEST, math.floor(100 * math.exp(min(min(logs), statistics.fmean(logs) - wide))) / 100)


def as_csv(found: Cells) -> str:
    """The table that ships with ncclprobe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("basis", "path", "decade", "sources", "rows", "nodes", "median", "p90", "mark"))
    for cell in found.values():
        mark = "" if cell.mark is None else f"{cell.mark:.2f}"
        numbers = (cell.sources, cell.rows, cell.nodes, f"{cell.median:.3f}", f"{cell.ninety:.3f}", mark)
        writer.writerow((cell.basis, cell.path, cell.decade, *numbers))
    return text.getvalue()


class Judged(Struct, frozen=True):
    """One row, judged by expectations and thresholds that its source had no part in."""

    row: Row
    source: str
    path: str
    nbytes: int
    expectation: Expectation
    value_GBps: float
    status: str

    @property
    def run(self) -> tuple[str, str, str, str]:
        """Which run it is of."""
        return self.row.label, self.row.family, self.row.settings, self.row.sweep

    @property
    def reached(self) -> float:
        """Measured by expected."""
        return self.value_GBps / self.expectation.value

    @property
    def error(self) -> float:
        """The absolute log of it."""
        return abs(math.log(self.reached))

    @property
    def is_judged(self) -> bool:
        """Whether the evidence was enough for a verdict."""
        return self.status != "unjudged"


def nested(found: Sequence[Sample]) -> list[Judged]:
    """Every row, judged as :func:`ncclprobe.expect.expected.expectation` judges it, its own source held back whole."""
    marks = {source: without(found, source) for source in {each.source for each in found}}
    by_row: dict[int, dict[str, Sample]] = defaultdict(dict)
    for each in found:
        by_row[id(each.row)]["published" if each.basis == "published" else "model"] = each
    return [_judged(own, marks[next(iter(own.values())).source]) for own in by_row.values()]


def _judged(own: Mapping[str, Sample], marks: Cells) -> Judged:
    said = {name: _weighed(each, marks) for name, each in own.items()}
    published, modelled = said.get("published"), said.get("model")
    expected = combined(published, modelled)
    first = next(iter(own.values()))
    status = once((first.value_GBps, first.value_GBps), expected).status
    return Judged(first.row, first.source, first.path, first.nbytes, expected, first.value_GBps, status)


def _weighed(each: Sample, marks: Cells) -> Expectation:
    row = each.row
    return evidence.weighed(
        each.expected, row.system, row.shape, row.op, each.nbytes, by_time=each.by_time, cells=marks
    )
