"""Stage 4. Parity: nccl-tests and our loop on one rank in turn, CUDA events beside the wall clock, copies by hand."""

import json
import os
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = (
    "all_reduce_perf and all_gather_perf of nccl-tests by our own loop over gloo, which prints the same tables",
    "the target of both comparisons: on a machine that others use, what differs is counted and not judged",
    "copies of a GPU by copies of the host's memory, cudaMemcpyAsync by memmove",
)
NOT_RUN = (
    "the programs of nccl-tests",
    "CUDA events: device_us is not known without a GPU",
    "nvbandwidth: it is not carried",
)
LOW, HIGH = 0.98, 1.02
MOST_US = 2.0
"""Beyond the ratio, so much more per call is as good as equal: short calls are all launch."""
OPS = ("all_reduce", "all_gather")
"""One rank all_reduces in place without a kernel; gathering out of place it copies."""
ROUNDS = 5
BUILD, LIBRARIES = "nccl-tests", "libraries"
_ITERS = 20
_ROUND_S = 60.0
_FLAGS = ["-f", "2", "-g", "1", "-w", "5", "-c", "0"]


def run_steps(context: Context, log: StepLog) -> None:
    """Find the programs, alternate, compare."""
    log.run(BUILD, _programs, least_s=60.0)
    for number in range(ROUNDS):
        name = f"round {number + 1}"
        log.run(name, _round, number, least_s=15.0)
    log.run("ratios", _ratios)
    log.run("copies beside a loop by hand", _copies, least_s=20.0)


def _sizes(context: Context) -> list[int]:
    """8 B to 4 GiB by factors of 2; to 1 MiB without a GPU."""
    return [8 << shift for shift in range(18 if context.rehearse else 30)]


def _programs(context: Context, folder: Path) -> Outcome:
    """The programs of nccl-tests, or in a rehearsal what replaces them. Raises Refused."""
    if context.rehearse:
        for op in OPS:
            script = f'#!/bin/sh\nexec "{sys.executable}" -m gpu_stages.standin_perf {op} "$@"\n'
            (folder / f"{op}_perf").write_text(script)
            (folder / f"{op}_perf").chmod(0o755)
        return Outcome({"programs": "stand-ins"})
    installed = {op: shutil.which(f"{op}_perf") for op in OPS}
    if missing := [op for op, path in installed.items() if path is None]:
        raise Refused(f"not on PATH: {', '.join(f'{op}_perf' for op in missing)}")
    for op, path in installed.items():
        (folder / f"{op}_perf").symlink_to(str(path))
    loaded = machine.libraries(context, folder / "libraries.log")
    (folder / LIBRARIES).write_text(os.pathsep.join(str(path.parent) for path in loaded.values()))
    return Outcome({"programs": "installed"})


def _perf_variables(context: Context, programs: Path) -> dict[str, str]:
    """The environment in which the programs find torch's NCCL and CUDA runtime."""
    path = programs / LIBRARIES
    folders = [path.read_text() if path.exists() else "", context.variables.get("LD_LIBRARY_PATH", "")]
    return {**context.variables, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def _round(context: Context, folder: Path, number: int) -> Outcome:
    """Both once; which one goes first changes from round to round."""
    programs, sizes = folder.parent / BUILD, _sizes(context)
    if not all((programs / f"{op}_perf").exists() for op in OPS):
        raise Refused("nccl-tests is not installed")
    kinds = (_theirs, _ours) if number % 2 else (_ours, _theirs)
    rows = [row for play in kinds for row in play(context, folder, programs, sizes)]
    (folder / "rows.json").write_text(json.dumps(rows))
    return Outcome({"rows": len(rows)})


def _theirs(context: Context, folder: Path, programs: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    from ncclprobe.nccl_tests import parse_text

    for op in OPS:
        command = [programs / f"{op}_perf", "-b", sizes[0], "-e", sizes[-1], "-n", _ITERS, *_FLAGS]
        ended = processes.run(command, folder / f"{op}.txt", _perf_variables(context, programs), _ROUND_S)
        if ended.code != 0:
            raise RuntimeError(str(ended))
        for run in parse_text(ended.text, f"{op}.txt"):
            for row in run.rows:
                times = {"mean_us": row.time_us.mean, "by": "theirs"}
                yield {"op": row.op, "nbytes": row.nbytes, "place": row.place, **times}


def _ours(context: Context, folder: Path, programs: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    path = folder / "ours.json"
    words = (context.backend, ",".join(OPS), ",".join(map(str, sizes)), path, _ITERS)
    ended = processes.run(
        [sys.executable, "-m", "gpu_stages.one_rank", *words], folder / "ours.log", context.variables, _ROUND_S
    )
    if ended.code != 0:
        raise RuntimeError(str(ended))
    for row in json.loads(path.read_text()):
        yield {"by": "ours", **row}


@dataclass(slots=True)
class Times:
    """Microseconds of one operation, size and place, one of each round; and our wall clock over our CUDA events."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    over_events: list[float] = field(default_factory=list)


def _ratios(context: Context, folder: Path) -> Outcome:
    """Ours over theirs by operation, size and place, over all rounds."""
    times: dict[tuple[str, int, str], Times] = defaultdict(Times)
    for path in sorted(folder.parent.glob("round */rows.json")):
        for row in json.loads(path.read_text()):
            one = times[row["op"], row["nbytes"], row["place"]]
            getattr(one, row["by"]).append(row["mean_us"])
            if row.get("device_us"):
                one.over_events.append(row["mean_us"] / row["device_us"])
    table = [compared(*key, one) for key, one in sorted(times.items()) if one.ours and one.theirs]
    if not table:
        raise Refused("no round has both")
    differing = tuple(row["problem"] for row in table if row["problem"])
    worst = max(table, key=lambda row: abs(row["ratio"] - 1))
    found = {"rows": len(table), "beyond": len(differing), "worst": worst["ratio"], "table": table}
    return Outcome(found, () if context.rehearse else differing)


def compared(op: str, nbytes: int, place: str, times: Times) -> dict[str, Any]:
    """The median ratio of the rounds with its interval, and what a call of ours takes longer."""
    from ncclprobe.model import stats

    pairs = list(zip(times.ours, times.theirs, strict=False))
    ratios = [ours / theirs for ours, theirs in pairs if theirs > 0]
    low, high = stats.median_interval(ratios)
    middle, more = statistics.median(ratios), statistics.median(ours - theirs for ours, theirs in pairs)
    fair = (low <= HIGH and high >= LOW) or abs(more) <= MOST_US
    said = f"{op} of {nbytes} B {machine.PLACES[place]}: {middle:.3f} [{low:.3f}, {high:.3f}], {more:+.2f} us a call"
    found = {"op": op, "nbytes": nbytes, "place": place, "ratio": middle, "low": low, "high": high, "more_us": more}
    over = statistics.median(times.over_events) if times.over_events else None
    return {**found, "wall_over_events": over, "problem": "" if fair else said}


def _copies(context: Context, folder: Path) -> Outcome:
    """Our copies, and a loop of the plainest copies there are."""
    path = folder / "report.json"
    command = machine.ncclprobe("copies", "--backend", context.backend, "--json", path, "--timeout", 60)
    ended = processes.run(command, folder / "ours.log", context.variables, 70.0)
    if ended.code not in (0, 3, 4):
        return Outcome({}, (str(ended),))
    by_hand = processes.run(
        [sys.executable, "-m", "gpu_stages.copies_by_hand"], folder / "by_hand.log", context.variables, 60.0
    )
    if by_hand.code != 0:
        return Outcome({}, (str(by_hand),))
    theirs: dict[str, float] = json.loads(processes.last_line_whole(by_hand.text))
    rows = [row for row in machine.report(path)["copies"] if not row["concurrent"] and row["near"] is not False]
    ours = {row["kind"] + (" memcpy" if "memcpy" in row["device"] else ""): row["GBps"] for row in rows}
    shared = {name: ours[name] / theirs[name] for name in theirs if name in ours}
    problems = [f"{name}: {ratio:.2f} of the loop by hand" for name, ratio in shared.items() if not 0.9 <= ratio <= 1.1]
    return Outcome({"ours": ours, "by_hand": theirs, **shared}, () if context.rehearse else tuple(problems))
