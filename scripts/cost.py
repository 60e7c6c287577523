#!/usr/bin/env python3
"""What does looking cost? A local collection, the replay of a capture, and thousands of nodes in one process.

    .venv/bin/python scripts/cost.py [--capture PATH] [--nodes N ...] [--runs N]

1. One local collection: questions by kind, files opened and commands started (as sys.addaudithook sees them in this
   process; what commands and the NVML child open themselves is theirs), the longest wait for one answer, and all of it.
2. Milliseconds to replay the capture (default: 8 GPUs and 10 NICs) through all collectors and all checks of the doctor;
   its rows are remembered from the first reading, as a fleet's are.
3. Seconds, processor time and peak memory to read, replay and judge so many nodes: tests/fleets makes a capture of
   each, with a name, addresses, UUIDs and GUIDs of its own. Each number of nodes has a process of its own: a process
   never gives its peak back. The ratio is that of processor times: what else runs on this machine does not count.
4. How many times the processor time of an interpreter with json and argparse `ncclprobe doctor --backend gloo -q`
   takes, the processes that it starts included: medians of runs taken by turns, with byte code written before.
"""

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fleets import captures

from ncclprobe.engine import diagnose
from ncclprobe.engine.collect import collect, recordable, replayed
from ncclprobe.engine.judge import judge
from ncclprobe.host.capture import Recorder, load
from ncclprobe.host.live import LiveHost
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.nccl.parameters import looks_like_ours

CAPTURE = ROOT / "tests" / "captures" / "hgx-h200.jsonl"
COLLECTORS = discover("ncclprobe.facts", Collector)
CHECKS = diagnose.every_check(diagnose.MACHINE)
CHILD_S = 600.0
BARE = (sys.executable, "-c", "import json, argparse")
DOCTOR = (sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "-q")


class Stopwatch:
    """A host that notes how long each answer took."""

    def __init__(self, host: LiveHost) -> None:
        self.host = host
        self.waits_s: dict[str, float] = {}

    def ask(self, *question: str | int) -> str:
        """What the host answers."""
        started = time.perf_counter()
        try:
            return self.host.ask(*question)
        finally:
            self.waits_s[" ".join(map(str, question))] = time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--capture", type=Path, default=CAPTURE, metavar="PATH", help="(default: %(default)s)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1024, 2048], metavar="N", help="(default: 1024 2048)")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="replays to time (default: %(default)s)")
    parser.add_argument("--many", type=Path, help=argparse.SUPPRESS)  # in a child: this folder's nodes, as JSON
    options = parser.parse_args(argv)
    if options.many:
        print(json.dumps(many(options.many)))
        return 0
    local()
    one(options.capture, options.runs)
    starting(options.runs)
    children = [child(options.capture, count) for count in options.nodes]
    for count, seen in zip(options.nodes, children, strict=True):
        times = f"{seen['seconds']:.1f} s, {seen['cpu_s']:.1f} s of processor time"
        print(f"{count} nodes: {times}, {seen['peak_mib']:.0f} MiB at most, {seen['verdicts']} verdicts")
    if len(children) > 1:
        ratio = children[-1]["cpu_s"] / children[0]["cpu_s"]
        print(f"{options.nodes[-1]} : {options.nodes[0]} nodes: {ratio:.2f} times the processor time")
    return 0


def local() -> None:
    """Print what one collection on this machine does."""
    opened: Counter[str] = Counter()
    commands: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith((".py", ".pyc")):
            opened[arguments[0]] += 1
        elif event == "subprocess.Popen":
            commands.append(Path(os.fsdecode(arguments[0])).name)

    live = LiveHost(recordable(), looks_like_ours)
    watch = Stopwatch(live)
    host = Recorder(watch)
    sys.addaudithook(audit)
    started = time.perf_counter()
    collect(host, COLLECTORS, at_once=True)
    took_s = time.perf_counter() - started
    live.close()
    kinds = Counter(str(question[0]) for question in host.answers)
    slowest = max(watch.waits_s, key=lambda question: watch.waits_s[question])
    print(
        f"one local collection: {len(host.answers)} questions ({', '.join(f'{n} {k}' for k, n in kinds.most_common())})"
    )
    print(f"  files opened: {len(opened)}, {sum(opened.values())} times")
    print(f"  commands started: {len(commands)} ({', '.join(sorted(commands))})")
    again = sorted(path for path, times in opened.items() if times > 1)
    print(f"  opened more than once: {', '.join(again) or 'none'}")
    print(f"  {took_s * 1e3:.0f} ms, the longest wait {watch.waits_s[slowest] * 1e3:.0f} ms for: {slowest}")


def one(capture: Path, runs: int) -> None:
    """Print how long one replay takes, reading the file included and not."""
    reads: list[float] = []
    replays: list[float] = []
    judgements: list[float] = []
    for _ in range(runs):
        clock = [time.perf_counter()]
        host = load(capture)
        clock.append(time.perf_counter())
        snapshot = Snapshot(host.node, collect(host, COLLECTORS))
        clock.append(time.perf_counter())
        judge([snapshot], CHECKS, Job())
        clock.append(time.perf_counter())
        for times, start, end in zip((reads, replays, judgements), clock, clock[1:], strict=False):
            times.append((end - start) * 1e3)
    medians = [statistics.median(times) for times in (reads, replays, judgements)]
    parts = "reading {:.1f} ms, {} collectors {:.1f} ms, {} checks {:.2f} ms"
    told = parts.format(medians[0], len(COLLECTORS), medians[1], len(CHECKS), medians[2])
    print(f"replay of {capture.name}: {sum(medians):.1f} ms ({told}; medians of {runs})")


def starting(runs: int) -> None:
    """Print what the doctor's start costs beside the interpreter's own."""
    compileall.compile_dir(ROOT / "ncclprobe", quiet=2)
    bare: list[float] = []
    doctor: list[float] = []
    for _ in range(runs):
        bare.append(processor_s(BARE))
        doctor.append(processor_s(DOCTOR))
    ratio = statistics.median(doctor) / statistics.median(bare)
    told = f"{statistics.median(doctor) * 1e3:.0f} ms of processor time, an interpreter"
    print(f"doctor --backend gloo: {told} {statistics.median(bare) * 1e3:.0f} ms: {ratio:.1f} times as much")


def processor_s(command: Sequence[str]) -> float:
    """The processor time of a command and of what it waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, timeout=CHILD_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def many(folder: Path) -> dict[str, float]:
    """Read, replay and judge the captures in `folder`."""
    started, cpu_s = time.perf_counter(), time.process_time()
    snapshots = replayed(sorted(folder.iterdir()), COLLECTORS)
    verdicts = judge(snapshots, CHECKS, Job())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    return {"seconds": wall_s, "cpu_s": cpu_s, "peak_mib": peak_mib, "verdicts": len(verdicts)}


def child(capture: Path, count: int) -> dict[str, float]:
    """The same of `count` nodes, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        captures.write(capture, count, Path(folder))
        command = [sys.executable, __file__, "--many", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CHILD_S, check=True)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


if __name__ == "__main__":
    sys.exit(main())
