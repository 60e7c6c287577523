#!/usr/bin/env python3
"""How near are expectations to published runs, whom do they blame, and how small a loss could they find?

    .venv/bin/python scripts/accuracy.py [FOLDER] [--out reports/expected-accuracy.md]
    .venv/bin/python scripts/accuracy.py [FOLDER] --fit            what the factors of expect/predict.py should be
    .venv/bin/python scripts/accuracy.py [FOLDER] --errors  make expect/tables/errors.csv

FOLDER: published numbers, as scripts/published.py reads them (tests/data/published). Every average over rows is one
over sources first, or one long sweep would drown the rest.
Verdicts are those of held_out.py: expectations and thresholds that the row's own source had no part in.
"""

import argparse
import math
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ncclprobe.model.values import Struct

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import fitting
import held_out
import held_out_page
from held_out import measured
from published import PUBLISHED, Copied, Row, outliers, rows
from published import copies as published_copies
from tables import table

from ncclprobe.expect import copies, evidence
from ncclprobe.expect.network import domains
from ncclprobe.expect.predict import CORRECTIONS, LATEST, STARTS_US, Prediction, predict
from ncclprobe.expect.system import Shape
from ncclprobe.expect.tables import gpus, machines
from ncclprobe.model.measurement import Expectation
from ncclprobe.ops import sizes
from ncclprobe.units import size

ERRORS = ROOT / "ncclprobe" / "expect" / "tables" / "errors.csv"
LARGE = 8 << 30
PEAK = 256 << 20
PATHS = ("nvlink ampere", "nvlink hopper", "nvlink blackwell", "mnnvl", "pcie", "rdma", "racks", "tcpx", "tcp")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
ALARMS = 0.01


class Pair(Struct, frozen=True):
    """A published number beside what is predicted for it."""

    row: Row
    nbytes: int
    found: Prediction

    @property
    def ratio(self) -> float:
        """Predicted by measured."""
        return self.found.busbw_GBps / measured(self.row, self.nbytes)

    @property
    def error(self) -> float:
        """The absolute log of it."""
        return abs(math.log(self.ratio))


def paired(found: Iterable[Row]) -> Iterator[Pair]:
    """Rows beside their predictions, where there is one."""
    for row in found:
        nbytes = row.nbytes or LARGE
        prediction = predict(row.system, row.shape, row.op, nbytes, row.nccl or LATEST, row.forced)
        if prediction:
            yield Pair(row, nbytes, prediction)


def machine_class(row: Row) -> str:
    """What is compared with what: by generation, and where the bytes go."""
    capability = row.system.compute_capability
    name = {7: "V100", 8: "A100", 9: "H100/H200", 10: "B200/GB200"}.get(capability // 10, "other")
    if domains(row.system, row.shape).count > 1:
        return f"{name}, {'2 nodes' if row.shape.nodes == 2 else 'more nodes'}"
    if not row.system.nvlinks:
        return "PCIe, one node"
    return f"{name}, one node" if row.shape.nodes == 1 else f"{name}, one rack"


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def over_sources(pairs: Iterable[Pair], what: Callable[[Sequence[float]], float]) -> tuple[float, int, int]:
    """The mean over sources of `what` of their errors; how many sources and rows."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        by_family[pair.row.family].append(pair.error)
    values = [what(errors) for errors in by_family.values()]
    return statistics.fmean(values), len(values), sum(map(len, by_family.values()))


def peaks(pairs: Iterable[Pair]) -> list[Pair]:
    """Of each run and operation the row with the highest bandwidth."""
    best: dict[tuple[str, str, str, str], Pair] = {}
    for pair in pairs:
        key = (pair.row.label, pair.row.op, pair.row.family, pair.row.settings)
        if key not in best or measured(pair.row, pair.nbytes) > measured(best[key].row, best[key].nbytes):
            best[key] = pair
    return list(best.values())


def decade(nbytes: int) -> str:
    """1 KB to 10 KB and so on."""
    power = int(math.log10(nbytes))
    units = ("B", "KB", "MB", "GB")
    low, high = (f"{10 ** (p % 3)} {units[min(3, p // 3)]}" for p in (power, power + 1))
    return f"{low} to {high}"


def report(found: Sequence[Row], path: Path) -> Iterator[str]:
    """The whole page."""
    pairs = list(paired(found))
    healthy = [p for p in pairs if p.row.healthy == "yes"]
    count = len({p.row.family for p in healthy})
    yield "# How near expectations are to published runs"
    yield ""
    yield (
        f"`scripts/accuracy.py` over {len(found)} published collectives whose GPU is known, {len(pairs)} predicted "
        f"({len(found) - len(pairs)} go over TCP or say nothing of their NICs). {len(healthy)} are healthy, from "
        f"{count} publishers. An error is the absolute log of predicted by measured bus bandwidth (by time, where it "
        "is printed): 0.10 is 10 %. Medians and 90th percentiles are those of each source, averaged over sources. "
        "First every source is held back whole: from the factors of the correction, from what was published, and from "
        "the thresholds. Below that the model alone, as it ships. What each kind of evidence knows without the others "
        "is in `ablation.md`. This page takes ten seconds."
    )
    yield ""
    yield from INDEPENDENCE
    yield ""
    yield from held_out_page.page(found)
    yield from by_class(healthy)
    yield from by_decade(healthy)
    yield from by_fit(found)
    yield from losses(found, healthy)
    yield from of_copies(path)
    yield from worst(healthy)
    yield from speed()


def error_row(own: Sequence[Pair]) -> tuple[object, ...]:
    """Median and 90th percentile of the error, the median ratio, sources and rows."""
    median, sources, count = over_sources(own, statistics.median)
    ninety, _, _ = over_sources(own, lambda errors: quantile(errors, 0.9))
    middle = statistics.median(p.ratio for p in own)
    return f"{median:.3f}", f"{ninety:.3f}", f"{middle:.2f}", sources, count


INDEPENDENCE = (
    "How far this is a check: not wholly. The network's fractions, the share of several racks, the slot of a Grace's",
    "NIC, EFA's latency and NVLS's factor on 8 Blackwells were read from the published runs that are here, so a rule",
    "that one source taught is no check on that source. Runs that are not published are: `ncclprobe expect --judge`.",
)
"""Said at the top, so that nobody trusts the table further than it goes."""


def by_class(healthy: Sequence[Pair]) -> Iterator[str]:
    yield "## At the peak of each run, by machine and collective"
    yield ""
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    top = peaks(p for p in healthy if p.nbytes >= PEAK)
    for pair in top:
        groups[machine_class(pair.row), pair.row.op].append(pair)
        groups["all", "all"].append(pair)
    head = ("machines", "collective", "median error", "90th percentile", "median ratio", "sources", "runs")
    yield from table(head, [(*key, *error_row(own)) for key, own in sorted(groups.items())])


def by_decade(healthy: Sequence[Pair]) -> Iterator[str]:
    yield "## By size"
    yield ""
    groups: dict[tuple[int, str, str], list[Pair]] = defaultdict(list)
    for pair in healthy:
        place = "between nodes" if pair.found.between_nodes else "one node or rack"
        groups[int(math.log10(pair.nbytes)), decade(pair.nbytes), place].append(pair)
    head = ("bytes", "where", "median error", "90th percentile", "median ratio", "sources", "rows")
    yield from table(head, [(*key[1:], *error_row(own)) for key, own in sorted(groups.items())])


def by_fit(found: Sequence[Row]) -> Iterator[str]:
    """What the fit gains, where each source is compared with factors that it had no part in."""
    yield "## The correction"
    yield ""
    yield (
        "Error: mean over sources of the mean of their rows, of collectives that NCCL's model knows. `held back`: each "
        "source with factors fitted to the others."
    )
    yield ""
    points = held_out.points(found)
    without = {source: fitting.fit([p for p in points if p.source != source]) for source in {p.source for p in points}}
    rows_: list[tuple[object, ...]] = []
    for place, factors in CORRECTIONS.items():
        if part := [point for point in points if point.place == place]:
            numbers = f"{factors.latency:g} / {factors.transfer:g} / {factors.filling:g}"
            tried = (fitting.plain_us, fitting.Factors().time_us, lambda p: without[p.source].time_us(p))
            losses_ = [f"{fitting.loss(part, time_us):.3f}" for time_us in tried]
            rows_.append((place, numbers, *losses_, len({p.source for p in part}), len(part)))
    head = ("class", "latency / transfer / filling", "model alone", "corrected", "held back", "sources", "rows")
    yield from table(head, rows_)
    yield "What a call waits for on top of its hops, by path: " + ", ".join(
        f"{path} {us:g} us" for path, us in STARTS_US.items()
    )
    yield ""


def losses(found: Sequence[Row], healthy: Sequence[Pair]) -> Iterator[str]:
    """The smallest loss of bandwidth that would be found in nine of ten runs, at 1 % of healthy runs blamed."""
    yield "## The smallest loss that can be found"
    yield ""
    yield (
        "In nine of ten runs, with the mark set where 1 % of healthy ones fall below it (nearest rank: with fewer than "
        "100 numbers the lowest of them). A lost rail of eight is 12.5 %."
    )
    yield ""
    top = peaks(p for p in healthy if p.nbytes >= PEAK)
    shares: list[tuple[str, list[float]]] = [
        *(
            (
                f"model, {path}",
                [1 / p.ratio for p in top if evidence.path_of(p.row.system, p.row.shape, p.row.op) == path],
            )
            for path in PATHS
        ),
        ("published for the same machine, other sources", list(by_other_sources(found))),
        ("baseline: earlier runs of the same nodes", list(by_earlier(found))),
        ("peers: other nodes in the same run", list(by_peers(found))),
    ]
    rows_ = [(name, f"{quantile(v, ALARMS):.3f}", f"{quantile(v, 0.9):.3f}", f"{smallest(v):.1%}", len(v))
             for name, v in shares if v]  # fmt: skip
    yield from table(("judged by", "mark", "90th percentile", "smallest loss", "numbers"), rows_)


def smallest(reached: Sequence[float]) -> float:
    """The loss that takes nine of ten below the mark."""
    return max(0.0, 1 - quantile(reached, ALARMS) / quantile(reached, 0.9))


def groups_of(found: Iterable[Row], key: Callable[[Row], object]) -> Iterator[list[Row]]:
    """Healthy rows of more than 256 MiB by `key`."""
    by: dict[object, list[Row]] = defaultdict(list)
    for row in found:
        if row.healthy == "yes" and (row.nbytes or LARGE) >= PEAK and not row.forced:
            by[key(row)].append(row)
    return iter(by.values())


def by_other_sources(found: Iterable[Row]) -> Iterator[float]:
    """Each source's number by the median of the others' of the same GPU, shape, operation and size."""
    for own in groups_of(found, lambda r: (r.system.gpu, r.shape, r.op, r.nbytes, r.system.nics, r.system.nvls)):
        families = {family: statistics.median(r.busbw_GBps for r in own if r.family == family)
                    for family in {r.family for r in own}}  # fmt: skip
        for family, value in families.items():
            others = [other for name, other in families.items() if name != family]
            if others:
                yield value / statistics.median(others)


def by_peers(found: Iterable[Row]) -> Iterator[float]:
    """Each node's number by the median of the other nodes' of one cluster: ten nodes measured alike, one by one."""
    peers = (row for row in found if row.kind == "peak" and row.shape.nodes == 1)
    for own in groups_of(peers, lambda r: (r.family, r.label, r.op, r.nbytes)):
        yield from leave_one_out([r.busbw_GBps for r in own])


def by_earlier(found: Iterable[Row]) -> Iterator[float]:
    """Repeats of one test on one machine: MLPerf logs print one number per submission run."""
    repeats = (row for row in found if row.family.startswith("mlcommons"))
    for own in groups_of(repeats, lambda r: (r.family, r.label, r.op, r.nbytes)):
        yield from leave_one_out([r.busbw_GBps for r in own])


def leave_one_out(values: Sequence[float]) -> Iterator[float]:
    """Each by the median of the others, where there are three or more."""
    for at, value in enumerate(values):
        if len(values) > 2:
            yield value / statistics.median([*values[:at], *values[at + 1 :]])


def _run(pair: Pair) -> tuple[str, str, str, str]:
    return pair.row.label, pair.row.family, pair.row.op, pair.row.settings


def worst(healthy: Sequence[Pair]) -> Iterator[str]:
    yield "## The worst ten runs"
    yield ""
    by_run: dict[tuple[str, str, str, str], list[Pair]] = defaultdict(list)
    for pair in healthy:
        by_run[_run(pair)].append(pair)
    ordered = sorted(by_run.values(), key=lambda own: statistics.median(p.error for p in own), reverse=True)
    rows_ = []
    for own in ordered[:10]:
        far = max(own, key=lambda p: p.error)
        middle = statistics.median(p.error for p in own)
        at = f"{size(far.nbytes)}: {far.found.busbw_GBps:.4g} for {measured(far.row, far.nbytes):.4g}"
        rows_.append((far.row.label, far.row.op, f"{middle:.2f}", at, far.found.why, explained(far.row)))
    yield from table(("run", "operation", "median error", "worst row", "predicted as", "why it is off"), rows_)


EXPLAINED: Mapping[str, str] = {
    "p3dn": "the plugin's 75 us are EFA v1's on p4d, and a ring counts them four times; its tuner did not run in 2019",
    "Turin": "measured with NCCL_MIN_NCHANNELS=8; the channels that NCCL takes by itself reach 22",
    "Supermicro": "a replayed CUDA graph, which the host does not launch call by call",
    "a4x-max": "RoCE behind Google's plugin, whose LL128 stops at 8 MiB: 84 us, then 196 at 16 MiB",
    "p5.48xlarge, 2x8": "EFA's own 35 us hold the host's thread already; the slow one of two runs is of older software",
    "p6-b200": "a benchmark in Python, whose launches count: 48 us where 8 H100 take 15 by nccl-tests",
    "H20": "78 SMs of 132: too few to drive 18 NVLinks and 8 NICs at once; NCCL's model does not count SMs",
    "2080 Ti": "one source alone measures copies through host memory, and reduce differs from all_reduce there by two",
}


def explained(row: Row) -> str:
    """The cause, by the words of a run."""
    text = f"{row.label} {row.settings} {row.note}"
    return next((why for words, why in EXPLAINED.items() if words in text), "")


def speed() -> Iterator[str]:
    system = machines.find("dgx-h100").system()
    began = time.perf_counter()
    count = sum(
        predict(system, Shape((8,) * 2048), op, n) is not None for op in COLLECTIVES for n in sizes(8, LARGE, 2)
    )
    yield "## Time"
    yield ""
    yield f"{count} predictions (five collectives, 8 B to 8 GiB) for 16,384 ranks: {time.perf_counter() - began:.2f} s."


def copied(each: Copied) -> Expectation | None:
    """What is expected of one copy, by its link alone."""
    slot = re.search(r"PCIe(\d)", each.fabric)
    capability = gpus.table()[each.gpu].compute_capability if each.gpu in gpus.table() else 80
    if each.what.startswith(("h2d", "d2h")):
        if slot:
            return copies.host_copy(int(slot[1]), 16)
        return copies.c2c_copy(1 if "Station" in each.machine or "GH200" in each.machine else 2, capability)
    if "NVLink" in each.fabric:
        node = next(r for r in (machines.find("dgx-a100"), machines.find("dgx-h100"), machines.find("dgx-b200"))
                    if r.system().compute_capability // 10 == capability // 10)  # fmt: skip
        return copies.nvlink_copy(node.system())
    far, host = "cross" in each.fabric, "host" in each.fabric or "disabled" in each.what
    return copies.p2p_pcie_copy(int(slot[1]), 16, same_socket=not far, p2p=not host) if slot else None


def of_copies(path: Path) -> Iterator[str]:
    yield "## Copies"
    yield ""
    found = [(each, band) for each in published_copies(path) if (band := copied(each))]
    rows_: list[tuple[object, ...]] = []
    for name, words in (("PCIe, host", ("h2d", "d2h")), ("NVLink, GPU to GPU", ("d2d", "p2p")),
                        ("PCIe, GPU to GPU", ("d2d", "p2p")), ("C2C, host", ("h2d", "d2h"))):  # fmt: skip
        link = name.partition(",")[0]
        own = [(e, b) for e, b in found if link in e.fabric and e.what.startswith(words)]
        well = [(e, b) for e, b in own if e.healthy == "yes"]
        sick = [(e, b) for e, b in own if e.healthy == "no"]
        errors = [abs(math.log(b.value / e.GBps)) for e, b in well]
        falsely, caught = (sum(e.GBps < b.threshold for e, b in group) for group in (well, sick))
        middle, most = (f"{statistics.median(errors):.3f}", f"{max(errors):.3f}") if errors else ("", "")
        rows_.append((name, len(well), middle, most, falsely, f"{caught} of {len(sick)}"))
    head = ("link", "healthy", "median error", "largest error", "falsely failed", "sick ones failed")
    yield from table(head, rows_)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, nargs="?", default=PUBLISHED, metavar="FOLDER")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--errors", action="store_true", help="write the table that ncclprobe ships")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    odd = outliers(options.published)
    found = [row for row in rows(options.published) if (row.sweep, row.nbytes) not in odd or row.healthy == "no"]
    if options.fit:
        best = fitting.fit(held_out.points(found))
        print(*best.corrections.items(), *best.starts_us.items(), sep="\n")
        return 0
    if options.errors:
        ERRORS.write_text(held_out.as_csv(held_out.cells(held_out.samples(found))))
        return 0
    text = "\n".join(report(found, options.published)).rstrip() + "\n"
    if options.out:
        options.out.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
