"""Stage 4. Parity: nccl-tests and our loop on one rank in turn, CUDA events beside the wall clock, copies by hand."""

import json
import os
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes
from gpu_stages.notebook import Hour, Notebook, Outcome, Refused

REPLACED = (
    "nccl-tests' all_reduce_perf by a loop over gloo that prints the same table",
    "the target of both comparisons: on a machine that others use, what differs is counted and not judged",
    "copies of a GPU by copies of the host's memory, cudaMemcpyAsync by memmove",
)
NOT_RUN = (
    "the build of nccl-tests, where --nccl-tests-src or nvcc is missing",
    "CUDA events: device_us is not known without a GPU",
    "nvbandwidth: it is not carried",
)
LOW, HIGH = 0.98, 1.02
MOST_US = 2.0
"""Beyond the ratio, so much more per call is as good as equal: short calls are all launch."""
ROUNDS = 5
BUILD = "build nccl-tests"
_ITERS = 20
_BUILD_S = 240.0
_ROUND_S = 60.0
_FLAGS = ["-f", "8", "-g", "1", "-w", "5", "-c", "0"]


def play(hour: Hour, notebook: Notebook) -> None:
    """Build, alternate, compare."""
    notebook.step(BUILD, _build, least_s=60.0)
    for number in range(ROUNDS):
        name = f"round {number + 1}"
        notebook.step(name, _round, number, least_s=15.0)
    notebook.step("ratios", _ratios)
    notebook.step("copies beside a loop by hand", _copies, least_s=20.0)


def _sizes(hour: Hour) -> list[int]:
    """8 B to 4 GiB by factors of 8; less without a GPU."""
    largest = 64 << 20 if hour.rehearse else 4 << 30
    sizes = [8 << shift for shift in range(0, 40, 3) if 8 << shift < largest]
    return [*sizes, largest]


def _build(hour: Hour, folder: Path) -> Outcome:
    """The program of nccl-tests, or in a rehearsal what replaces it. Raises Refused."""
    if hour.rehearse and not hour.sources:
        script = f'#!/bin/sh\nexec "{sys.executable}" -m gpu_stages.standin_perf "$@"\n'
        (folder / "all_reduce_perf").write_text(script)
        (folder / "all_reduce_perf").chmod(0o755)
        return Outcome({"program": "a stand-in"})
    if hour.sources is None:
        raise Refused("no sources: give --nccl-tests-src DIR")
    if shutil.which("nvcc") is None:
        raise Refused("no nvcc here")
    sources, home = folder / "src", folder / "nccl"
    shutil.copytree(hour.sources, sources, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "build"))
    _nccl_home(machine.nccl_library(hour, folder / "library.log"), home)
    compiler = Path(os.path.realpath(str(shutil.which("nvcc"))))
    cuda = next(
        (path for path in compiler.parents if (path / "include" / "cuda_runtime.h").exists()), Path("/usr/local/cuda")
    )
    options = [f"NCCL_HOME={home}", f"CUDA_HOME={cuda}", "NVCC_GENCODE=-arch=native", f"BUILDDIR={folder / 'build'}"]
    command = [
        "make",
        "-C",
        sources / "src",
        "-j",
        str(os.cpu_count() or 2),
        *options,
        folder / "build" / "all_reduce_perf",
    ]
    ended = processes.run(command, folder / "make.log", hour.variables, min(_BUILD_S, 600.0))
    if ended.code != 0:
        return Outcome({}, (str(ended),))
    (folder / "build" / "all_reduce_perf").replace(folder / "all_reduce_perf")
    shutil.rmtree(sources)
    return Outcome({"seconds": ended.seconds})


def _nccl_home(library: Path, home: Path) -> None:
    """A folder as nccl-tests wants one: a wheel has the header, and no libnccl.so beside libnccl.so.2."""
    (home / "lib").mkdir(parents=True, exist_ok=True)
    for name in ("libnccl.so", "libnccl.so.2"):
        (home / "lib" / name).unlink(missing_ok=True)
        (home / "lib" / name).symlink_to(library)
    include = library.parent.parent / "include"
    if not (include / "nccl.h").exists():
        raise Refused(f"there is no nccl.h in {include}")
    (home / "include").unlink(missing_ok=True)
    (home / "include").symlink_to(include)


def _round(hour: Hour, folder: Path, number: int) -> Outcome:
    """Both once; which one goes first changes from round to round."""
    program, sizes = folder.parent / BUILD / "all_reduce_perf", _sizes(hour)
    if not program.exists():
        raise Refused("there is no all_reduce_perf")
    kinds = (_theirs, _ours) if number % 2 else (_ours, _theirs)
    rows = [row for play in kinds for row in play(hour, folder, program, sizes)]
    (folder / "rows.json").write_text(json.dumps(rows))
    return Outcome({"rows": len(rows)})


def _theirs(hour: Hour, folder: Path, program: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    from ncclprobe.nccl_tests import parse_text

    command = [program, "-b", sizes[0], "-e", sizes[-1], "-n", _ITERS, *_FLAGS]
    ended = processes.run(command, folder / "theirs.txt", hour.variables, _ROUND_S)
    if ended.code != 0:
        raise RuntimeError(str(ended))
    for run in parse_text(ended.text, "theirs.txt"):
        for row in run.rows:
            yield {"by": "theirs", "nbytes": row.nbytes, "place": row.place, "mean_us": row.time_us.mean}


def _ours(hour: Hour, folder: Path, program: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    path = folder / "ours.json"
    command = [sys.executable, "-m", "gpu_stages.one_rank", hour.backend, "all_reduce", ",".join(map(str, sizes)), path]
    ended = processes.run([*command, _ITERS], folder / "ours.log", hour.variables, _ROUND_S)
    if ended.code != 0:
        raise RuntimeError(str(ended))
    for row in json.loads(path.read_text()):
        yield {"by": "ours", **row}


def _ratios(hour: Hour, folder: Path) -> Outcome:
    """Ours over theirs by size and place, over all rounds; and our wall clock over our own CUDA events."""
    times: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    events: dict[tuple[int, str], list[float]] = defaultdict(list)
    for path in sorted(folder.parent.glob("round */rows.json")):
        for row in json.loads(path.read_text()):
            times[row["nbytes"], row["place"], row["by"]].append(row["mean_us"])
            if row.get("device_us"):
                events[row["nbytes"], row["place"]].append(row["mean_us"] / row["device_us"])
    table = [row for key in sorted({key[:2] for key in times}) if (row := _row(*key, times, events))]
    if not table:
        raise Refused("no round has both")
    unlike = tuple(row["problem"] for row in table if row["problem"])
    worst = max(table, key=lambda row: abs(row["ratio"] - 1))
    found = {"rows": len(table), "beyond": len(unlike), "worst": worst["ratio"], "table": table}
    return Outcome(found, () if hour.rehearse else unlike)


def _row(
    nbytes: int,
    place: str,
    times: Mapping[tuple[int, str, str], list[float]],
    events: Mapping[tuple[int, str], list[float]],
) -> dict[str, Any] | None:
    from ncclprobe import stats

    ours, theirs = times.get((nbytes, place, "ours"), []), times.get((nbytes, place, "theirs"), [])
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs:
        return None
    ratios = [mine / other for mine, other in pairs if other > 0]
    low, high = stats.bootstrap(ratios)
    more = statistics.median(mine - other for mine, other in pairs)
    middle = statistics.median(ratios)
    fair = high >= LOW and low <= HIGH
    found = {"nbytes": nbytes, "place": place, "ratio": middle, "low": low, "high": high, "more_us": more}
    found["wall_over_events"] = statistics.median(events[nbytes, place]) if (nbytes, place) in events else None
    where = "in place" if place == "in" else "out of place"
    said = f"{nbytes} B {where}: {middle:.3f} [{low:.3f}, {high:.3f}], {more:+.2f} us a call"
    return {**found, "problem": "" if fair or abs(more) <= MOST_US else said}


def _copies(hour: Hour, folder: Path) -> Outcome:
    """Our copies, and a loop of the plainest copies there are."""
    path = folder / "report.json"
    command = machine.ours("copies", "--backend", hour.backend, "--json", path, "--timeout", 60)
    ended = processes.run(command, folder / "ours.log", hour.variables, 70.0)
    if ended.code not in (0, 3, 4):
        return Outcome({}, (str(ended),))
    by_hand = processes.run(
        [sys.executable, "-m", "gpu_stages.copies_by_hand"], folder / "by_hand.log", hour.variables, 60.0
    )
    if by_hand.code != 0:
        return Outcome({}, (str(by_hand),))
    theirs: dict[str, float] = json.loads(processes.last_line_whole(by_hand.text))
    ours = {row["kind"] + (" memcpy" if "memcpy" in row["device"] else ""): row["GBps"]
            for row in machine.report(path)["copies"] if not row["concurrent"]}  # fmt: skip
    shared = {name: ours[name] / theirs[name] for name in theirs if name in ours}
    problems = [f"{name}: {ratio:.2f} of the loop by hand" for name, ratio in shared.items() if not 0.9 <= ratio <= 1.1]
    return Outcome({"ours": ours, "by_hand": theirs, **shared}, () if hour.rehearse else tuple(problems))
