#!/usr/bin/env python3
"""The factors and errors of expectations, from published runs, and what settings cost.

    .venv/bin/python scripts/accuracy.py [FOLDER] --fit     what the factors of expect/predict.py should be
    .venv/bin/python scripts/accuracy.py [FOLDER] --errors  make expect/tables/errors.csv
    .venv/bin/python scripts/accuracy.py [FOLDER] --report  make reports/expected-accuracy.md
    .venv/bin/python scripts/accuracy.py --costs            make only its last table again: what settings cost

FOLDER: published numbers, as scripts/published.py reads them (tests/data/published). Errors are those of held_out.py:
expectations that the row's own source had no part in.
"""

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import fitting
import held_out
from published import PUBLISHED, Row, kept
from tables import table

from ncclprobe.engine.collect import add_choices, add_predictions, replayed
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.expect import evidence
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings, merge
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Job, Snapshot, learned
from ncclprobe.model.values import replace

ERRORS = ROOT / "ncclprobe" / "expect" / "tables" / "errors.csv"
REPORT = ROOT / "reports" / "expected-accuracy.md"
CLASSES = ((1 << 30, "1 GiB and more"), (256 << 20, "256 MiB to 1 GiB"), (0, "below 256 MiB"))
COLUMNS = ("what decides", "bytes", "rows", "sources", "judged", "median", "90th percentile", "slowest source", "FAIL",
           "gross mark alone", "FAIL by it", "goal")  # fmt: skip
GOALS = {True: ((0.02, 0.05), (0.06, 0.25), None), False: ((0.05, 0.15), (0.06, 0.25), (0.25, 0.60))}
"""Median and 90th percentile by size, as in CLASSES: within a node or a rack, and between nodes."""
WITH_A_NUMBER, CAN_FAIL = 0.99, 0.8


def report(judged: Sequence[held_out.Judged], rows: Sequence[Row]) -> str:
    """Errors by what decides and by size, what fails of the healthy, and what incidents are found. `rows`: all."""
    healthy, sick = ([each for each in judged if each.row.healthy == word] for word in ("yes", "no"))
    failed = [each for each in healthy if each.status == "fail"]
    found = {each.run for each in sick if each.status == "fail"}
    finely = {each.run for each in sick if each.status == "fail" and not by_gross(each)}
    loose = [each for each in healthy if each.expectation.gross is not None and each.expectation.worst != "fail"]
    runs, incidents = ({each.run for each in own} for own in (healthy, sick))
    lines = [
        "# How near expectations are to published runs",
        "",
        "Made by `scripts/accuracy.py --report`. A source is held back whole: from the factors, from what was",
        "published, and from the marks; then its rows are expected from what others printed. An error is the absolute",
        "log of measured by expected bus bandwidth: 0.10 is 10 %. Medians and 90th percentiles are those of each",
        "source, averaged. The network's shares of its line rate, the latency of EFA and TCPX, and the rules of",
        "`ncclprobe/expect/network.py` were read from runs that are here: no check on the source that taught them.",
        "A row FAILs by the fine mark of its class, where the evidence for that class is enough, or else by the gross",
        "mark, a third of what is expected, which holds from 64 MiB on in every class.",
        "",
        f"- {len(judged)} rows of {len({each.row.family for each in judged})} publishers; of {len(rows) - len(judged)}"
        " more, over TCP and below 16 MiB, nothing is expected",
        f"- rows with a number: {_share(len(judged), len(rows))}, of healthy ones "
        f"{_share(len(healthy), sum(row.healthy == 'yes' for row in rows))} (goal {WITH_A_NUMBER:.0%})",
        f"- healthy rows that the fine mark can fail: {', '.join(_can_fail(healthy))} (goal {CAN_FAIL:.0%})",
        f"- healthy: {len(failed)} of {len(healthy)} rows FAIL, {len({e.run for e in failed})} of {len(runs)} runs"
        f" ({'; '.join(sorted({f'{e.row.label}, {e.source}' for e in failed}))})",
        f"- healthy rows that the gross mark alone judges: {len(loose)}; {sum(map(by_gross, loose))} of them FAIL",
        f"- incidents: {len(found)} of {len(incidents)} FAIL, {len(found - finely)} of them by the gross mark alone;"
        " not found: " + "; ".join(sorted(f"{run[0]} ({run[1]})" for run in incidents - found)),
        "",
        *table(COLUMNS, list(_by_class(healthy))),
        "Over all networks and links, each class of a source counted once:",
        "",
        *table(("", "bytes", "sources", "median", "90th percentile", "goal"), list(_over_all(healthy))),
    ]
    return "\n".join(lines) + "\n"


def _can_fail(healthy: Sequence[held_out.Judged]) -> Iterator[str]:
    for _, words in CLASSES[:2]:
        own = [each for each in healthy if _class_of(each.nbytes) == words]
        able = sum(each.expectation.worst == "fail" for each in own)
        yield f"{_share(able, len(own), 0)} of {words}"


def _share(part: int, whole: int, digits: int = 1) -> str:
    return f"{part} of {whole} ({part / whole:.{digits}%})"


def _errors(own: Iterable[Iterable[held_out.Judged]]) -> tuple[float, float]:
    """The median and the 90th percentile of each source, averaged."""
    errors = [sorted(each.error for each in of_source) for of_source in own]
    ninety = statistics.fmean(each[min(len(each) - 1, math.ceil(0.9 * len(each)) - 1)] for each in errors)
    return statistics.fmean(map(statistics.median, errors)), ninety


def _goal(path: str, size: int, median: float, ninety: float) -> str:
    goal = GOALS[path.split()[0] in evidence.IN_NODE][size]
    if goal is None:
        return ""
    met = round(median, 3) <= goal[0] and round(ninety, 3) <= goal[1]
    return f"{goal[0]} / {goal[1]}: {'met' if met else 'missed'}"


def _over_all(healthy: Sequence[held_out.Judged]) -> Iterator[tuple[str | int, ...]]:
    for words, path in (("in a node or a rack", "nvlink"), ("between nodes", "ib")):
        within = path in evidence.IN_NODE
        for size, (_, sizes) in enumerate(CLASSES):
            groups: dict[tuple[str, str], list[held_out.Judged]] = defaultdict(list)
            for each in healthy:
                if (each.path.split()[0] in evidence.IN_NODE) == within and _class_of(each.nbytes) == sizes:
                    groups[each.path, each.source].append(each)
            median, ninety = _errors(groups.values())
            yield words, sizes, len(groups), f"{median:.3f}", f"{ninety:.3f}", _goal(path, size, median, ninety)


def _class_of(nbytes: int) -> str:
    return next(words for least, words in CLASSES if nbytes >= least)


def by_gross(each: held_out.Judged) -> bool:
    """Return whether a row fails by the gross mark, where it may not fail by a fine one."""
    return each.status == "fail" and each.expectation.below_gross(each.value_GBps)


def _by_class(healthy: Sequence[held_out.Judged]) -> Iterator[tuple[str | int, ...]]:
    groups: dict[tuple[str, int], dict[str, list[held_out.Judged]]] = defaultdict(lambda: defaultdict(list))
    for each in healthy:
        size = next(at for at, (least, _) in enumerate(CLASSES) if each.nbytes >= least)
        groups[each.path, size][each.source].append(each)
    for (path, size), own in sorted(groups.items()):
        rows = [each for of_source in own.values() for each in of_source]
        median, ninety = _errors(own.values())
        slowest = min(own, key=lambda name: statistics.median(each.reached for each in own[name]))
        share = statistics.median(each.reached for each in own[slowest])
        yield (
            path,
            CLASSES[size][1],
            len(rows),
            len(own),
            f"{sum(each.is_judged for each in rows) / len(rows):.0%}",
            f"{median:.3f}",
            f"{ninety:.3f}",
            f"{share:.2f}, {slowest}",
            sum(each.status == "fail" for each in rows),
            sum(each.expectation.gross is not None and each.expectation.worst != "fail" for each in rows),
            sum(map(by_gross, rows)),
            _goal(path, size, median, ninety),
        )


CAPTURES = ROOT / "tests" / "captures"
PRICED = {"hgx-h100": 2, "aws-p4d": 2, "gcp-a3-mega": 2, "dgx-b200": 2, "gb200-tray": 2, "l40s-8": 1}
"""Captures of machine types, and the nodes of the job that each is judged for."""
WRONG = """
NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=LOC NCCL_P2P_LEVEL=PIX NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_NET=Socket
NCCL_NET=IB NCCL_NET_PLUGIN=none FI_PROVIDER=tcp NCCL_NET_GDR_LEVEL=LOC NCCL_NET_GDR_LEVEL=PIX
NCCL_NET_GDR_READ=0 NCCL_IB_HCA=mlx5_0 NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3 NCCL_IB_HCA=^mlx5_0
NCCL_IB_HCA=mlx5 NCCL_MAX_NCHANNELS=2 NCCL_MAX_NCHANNELS=8 NCCL_MAX_NCHANNELS=32 NCCL_MAX_CTAS=4 NCCL_PROTO=LL
NCCL_PROTO=LL128 NCCL_PROTO=^LL128 NCCL_PROTO=Simple NCCL_ALGO=Ring NCCL_ALGO=Tree NCCL_NVLS_ENABLE=0
NCCL_MNNVL_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_SOCKET_IFNAME=lo
"""
"""Settings that cost something on one of them, and some that do not."""
_GRAVEST = (Severity.FAIL, Severity.WARN, Severity.NOTE)


def costs() -> str:
    """Return the table of what settings cost: for each machine what is left of what is expected, and the verdict."""
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    machines = replayed([CAPTURES / f"{name}.jsonl" for name in PRICED], collectors)
    healthy = {each.node: _doctored(each, {})[1] for each in machines}
    rows = [(f"`{text}`", *(_cost(each, text, healthy[each.node]) for each in machines)) for text in WRONG.split()]
    return "\n".join(
        [
            COSTS,
            "",
            "Made by `scripts/accuracy.py --costs`: `doctor` on six captures of tests/captures, as one of two nodes,",
            "the L40S alone. A cell has the most that an all_reduce of 1 GiB still reaches with the setting, what is",
            "expected of a healthy machine, in GB/s, and the verdict. Without numbers no loss is predicted.",
            "",
            *table(("setting", *PRICED), rows),
        ]
    )


COSTS = "# What settings cost"


def _cost(machine: Snapshot, text: str, healthy: Sequence[Finding]) -> str:
    name, _, value = text.partition("=")
    rate, found = _doctored(machine, {name: value})
    new = [each.severity for each in found if each not in healthy]
    word = min(new, key=_GRAVEST.index).value.upper() if new else "no finding"
    left = f"{rate.settings[name]:.3g} of {rate.healthy_GBps:.3g}, " if rate and name in rate.settings else ""
    return left + word


def _doctored(machine: Snapshot, variables: dict[str, str]) -> tuple[AttainableRate | None, list[Finding]]:
    """Return what is predicted of a machine in a job with these variables, and what is found there."""
    own = learned(machine.facts, Environment) or Environment({})
    environment = Environment({**own.variables, **variables})
    gpus, nodes = 4 if machine.node == "gb200-tray" else 8, PRICED[machine.node]
    launch = Launch("torchrun", 0, nodes * gpus, 0, gpus, nodes)
    facts = {**machine.facts, Environment: environment, Settings: merge(environment, ()), Launch: launch}
    checks = every_check(MACHINE)
    known = add_predictions(add_choices([replace(machine, facts=facts)], checks), checks, Job(), 1)
    found = [each for verdict in judge(known, checks, Job()) for each in verdict.findings]
    return learned(known[0].facts, AttainableRate), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, nargs="?", default=PUBLISHED, metavar="FOLDER")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fit", action="store_true", help="print the factors")
    what.add_argument("--errors", action="store_true", help="write the table that ncclprobe ships")
    what.add_argument("--report", action="store_true", help="write reports/expected-accuracy.md")
    what.add_argument("--costs", action="store_true", help="write its table of what settings cost")
    options = parser.parse_args()
    if options.costs:
        REPORT.write_text(REPORT.read_text().partition(f"\n{COSTS}")[0] + "\n" + costs())
        return 0
    found = kept(options.published)
    if options.fit:
        best = fitting.fit(held_out.points(found))
        print(*best.corrections.items(), *best.starts_us.items(), sep="\n")
        return 0
    if options.report:
        REPORT.write_text(report(held_out.nested(held_out.samples(found)), found) + "\n" + costs())
        return 0
    ERRORS.write_text(held_out.as_csv(held_out.cells(held_out.samples(found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
