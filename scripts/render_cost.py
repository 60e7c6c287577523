#!/usr/bin/env python3
"""What does each format cost? Time, size and memory to render a report of 1, 64 and 2,048 nodes of 8 ranks.

    .venv/bin/python scripts/render_cost.py [--nodes N ...] [--write PATH]

The report: the doctor's verdicts, devices and choices of a captured machine with 8 GPUs and 10 NICs, under as many
names, of which every sixteenth has lost a GPU; a sweep of 20 sizes with the samples of every rank; and pairs of nodes.
Each row has a process of its own, as `ncclprobe report FILE` has; its peak holds the report and what came out of it.
Times are of the processor: what else runs on the machine hardly counts.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.model.values import replace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import doctor
from ncclprobe.engine import diagnose, observe
from ncclprobe.engine.judge import conclude, coverage
from ncclprobe.model.findings import Status, Verdict, fail
from ncclprobe.model.measurement import (
    Measurement,
    Samples,
)
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import LaunchRow, NodeRow, Report
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json

CAPTURE = ROOT / "tests" / "captures" / "hgx-h200.jsonl"
FORMATS = ("text", "quiet", "nodes", *delivery.FORMATS)
RANKS, SIZES, ROUNDS = 8, 20, 8
ONE_IN = 16
CHILD_S = 600.0
LOST = fail("GPU3", "GPU is lost", blame="node", action="repair", evidence="NVML", remedy="reset or replace it")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 64, 2048], metavar="N", help="(default: 1 64 2048)")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the table there, as Markdown")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # in a child: format and file, printed as JSON
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(one(*options.one)))
        return 0
    lines = list(table(options.nodes))
    if options.write:
        options.write.write_text("\n".join([*preface(), *lines, ""]))
    else:
        print(*lines, sep="\n")
    return 0


def table(counts: Sequence[int]) -> Iterator[str]:
    """A row per number of nodes and format."""
    yield "| nodes | format | reading (CPU s) | rendering (CPU s) | output (kB) | peak (MiB) |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: |"
    with tempfile.TemporaryDirectory(prefix="render-cost-") as folder:
        for count in counts:
            path = Path(folder, f"{count}.json")
            path.write_text(as_json.render(fleet(count)))
            for name in FORMATS:
                seen = child(name, path)
                cells = "not installed | | |" if seen is None else row(seen)
                yield f"| {count} | {name} | {cells}"


def row(seen: dict[str, float]) -> str:
    """The cells of one measured format."""
    size_kb, peak_mib = seen["nbytes"] / 1e3, seen["peak_mib"]
    return f"{seen['read_s']:.2f} | {seen['render_s']:.2f} | {size_kb:,.1f} | {peak_mib:,.0f} |"


def preface() -> list[str]:
    """What stands above the table."""
    about = (__doc__ or "").partition("\n\n    ")[0]
    how = (__doc__ or "").strip().rpartition("\n\n")[2]
    where = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    return ["# " + about.partition("?")[0] + "?", "", about.partition("? ")[2], "", how, "",
            f"Made by `scripts/render_cost.py --write reports/render-cost.md` on {where}.", ""]  # fmt: skip


def fleet(count: int) -> Report:
    """The report of `count` nodes that are one captured machine."""
    options = doctor._parser().parse_args([str(CAPTURE), "--json", os.devnull])
    (snapshot,) = observe.replayed([CAPTURE], discover("ncclprobe.facts", Collector))
    base = diagnose.diagnose(diagnose.doctor_question(options, []), [snapshot])
    names = [f"gpu-{number:04}" for number in range(count)]
    own = [verdict for verdict in base.checks if verdict.node]
    checks = [verdict for number, name in enumerate(names) for verdict in _verdicts(own, name, number)]
    status, code = conclude(checks)
    return replace(
        base,
        status=status,
        exit_code=code,
        launch=LaunchRow("slurm", count, RANKS * count),
        nodes=tuple(NodeRow(name, rank, name, status) for rank, name in enumerate(names)),
        checks=(*checks, *(verdict for verdict in base.checks if not verdict.node)),
        coverage=coverage(checks),
        environment=dict.fromkeys(names, base.environment[snapshot.node]),
        topology=dict.fromkeys(names, base.topology[snapshot.node]),
        choices=dict.fromkeys(names, base.choices[snapshot.node]),
        measurements=tuple(measurement(4 << step, RANKS * count, count) for step in range(SIZES)),
        pairs=tuple(pair(names, src, step) for step in range(1, min(ROUNDS, count - 1) + 1) for src in range(count)),
    )


def _verdicts(own: Sequence[Verdict], name: str, number: int) -> Iterator[Verdict]:
    for verdict in own:
        named = replace(verdict, node=name)
        lost = verdict.id == "gpu.lost" and number % ONE_IN == ONE_IN - 1
        yield replace(named, status=Status.FAIL, findings=(LOST,)) if lost else named


def measurement(nbytes: int, ranks: int, nodes: int) -> Measurement:
    """One row of the sweep, with the numbers of every rank."""
    by_rank = tuple(20.0 + rank % 7 / 10 for rank in range(ranks))
    return replace(ROW, nbytes=nbytes, ranks=ranks, nodes=nodes, wrong=0, samples=Samples(by_rank, (20.0,) * 5))


def pair(names: Sequence[str], src: int, step: int) -> PairRow:
    """One direction of one pair of nodes."""
    dst = (src + step) % len(names)
    return PairRow(src=src, dst=dst, src_end=names[src], dst_end=names[dst], nbytes=64 << 20, latency_nbytes=8,
                   latency_us=3.5, GBps=48.0 + src % 5 / 10, time_us=1398.1, min_us=1390.0, max_us=1410.0,
                   samples_us=(1398.1,) * 5)  # fmt: skip


def one(name: str, path: str) -> dict[str, float]:
    """Read the report and render it, as the command does."""
    began_s = time.process_time()
    report = as_json.read(path)
    read_s = time.process_time() - began_s
    began_s = time.process_time()
    nbytes = len(rendered(name, report).encode())
    return {
        "read_s": read_s,
        "render_s": time.process_time() - began_s,
        "nbytes": nbytes,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> float:
    """Of this process alone: ru_maxrss also counts what its parent had when it was forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def rendered(name: str, report: Report) -> str:
    """`report` in one of FORMATS."""
    if name in ("text", "quiet"):
        from ncclprobe.report import text

        return text.render(report) if name == "text" else text.quiet(report)
    if name == "nodes":
        from ncclprobe.report import nodes

        return "".join(nodes.lists(report).texts.values())
    return str(importlib.import_module(f"ncclprobe.report.{name}").render(report))


def child(name: str, path: Path) -> dict[str, float] | None:
    """The same in a fresh process; None where what the format needs is not installed."""
    command = [sys.executable, __file__, "--one", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S)
    if done.returncode:
        if "ModuleNotFoundError" in done.stderr:
            return None
        raise SystemExit(done.stderr)
    with contextlib.suppress(ValueError):
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen
    raise SystemExit(f"{' '.join(command)}: {done.stdout!r}")


if __name__ == "__main__":
    sys.exit(main())
