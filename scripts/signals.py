#!/usr/bin/env python3
"""Send random signals to random processes of running commands, and look at what becomes of the run.

    .venv/bin/python scripts/signals.py doctor --runs 20 --seed 1 --results signals.jsonl      (root: it makes a lab)
    .venv/bin/python scripts/signals.py bandwidth --runs 20 --seed 1 --results signals.jsonl
    .venv/bin/python scripts/signals.py table --results signals.jsonl --write reports/signals.md

`doctor` runs on 4 hosts of the lab, `bandwidth` with --nproc 4 and gloo. Each run gets one signal, at a random moment
of it. It must end in time, its report or its processes must name the victim or say that they were interrupted, and no
process, socket or file may be left but folders that the next run removes, which is tried at the end. A process that was
stopped is continued once all others have ended. Results are appended, so that slices make a whole.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil
from tables import table

from ncclprobe.model.values import Struct, asdict

SIGNALS = ("TERM", "INT", "KILL", "STOP", "HUP", "CONT", "USR1", "PIPE")
HARMLESS = ("CONT", "PIPE")
MARK, NONE = "SIGNALS_RUN", "none"
TIMEOUT_S = {"doctor": 40.0, "bandwidth": 90.0}
GRACE_S = 5.0
STATED_S = 2.0
"""What --timeout promises beyond itself; runs that are later are counted, and those later than GRACE_S are not well."""
"""Beyond --timeout, on a machine that other work shares."""
AFTERMATH_S = 40.0
"""For what outlives a killed process to report in its place and leave; and for a stopped one that was continued."""
SCRATCH = re.compile(r"ncclprobe-scratch-\w{8}")
OWN = re.compile(r"interrupted|ended by SIG|was ended by|signal SIG|KeyboardInterrupt")


class Played(Struct, frozen=True):
    """One run. `at_s`: when the signal was sent; `late`: the processes that ended after --timeout."""

    kind: str
    seed: int
    signal: str
    victim: str
    at_s: float
    seconds: float
    codes: dict[str, int | None]
    said: str
    late: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    for_next: int = 0

    @property
    def well(self) -> bool:
        """Whether it ended in time, with a word of its own, and left nothing."""
        return bool(self.said) and not self.late and not self.left


class Run:
    """The processes of one run, which carry a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.began = time.monotonic()
        self.ended: dict[str, float] = {}

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start `argv`; its output goes to files."""
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            own = {**env, MARK: self.mark, "TMPDIR": str(self.folder.parent / "tmp")}
            self.started[name] = subprocess.Popen(
                argv, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def processes(self) -> list[psutil.Process]:
        """All that run, in an order that does not depend on their numbers' width."""
        return sorted((each for each in psutil.process_iter() if self._ours(each)), key=lambda each: each.pid)

    def _ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def wait(self, end_s: float, spare: int | None = None) -> None:
        """Wait until all started have ended but process `spare`, or it is `end_s` after the start."""
        while time.monotonic() < self.began + end_s:
            for name, popen in self.started.items():
                if name not in self.ended and popen.poll() is not None:
                    self.ended[name] = time.monotonic() - self.began
            if all(name in self.ended or popen.pid == spare for name, popen in self.started.items()):
                return
            time.sleep(0.02)

    def text(self) -> str:
        """All that was written: reports, and what was said."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.iterdir()))

    def clear(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            process.kill()
        for popen in self.started.values():
            popen.kill()
            popen.wait(GRACE_S)


Begin = Callable[[Run], None]
Tell = Callable[[Played], None]


def role(process: psutil.Process, run: Run) -> str:
    """What `process` is in its run."""
    for name, popen in run.started.items():
        if popen.pid == process.pid:
            return name
    try:
        words, env = process.cmdline(), process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "gone"
    if any(word.endswith("survivor:begin") for word in words):
        return "survivor"
    if "ncclprobe.start:program" in words and "RANK" in env:
        return f"rank {env['RANK']}"
    return f"child {Path(words[0]).name}" if words else "child"


def play(kind: str, begin: Begin, folder: Path, dice: random.Random, longest_s: float) -> Played:
    """Begin a run, send one of its processes a signal at a moment of its first `longest_s` seconds, see how it ends."""
    seed, name = dice.randrange(1 << 30), dice.choice(SIGNALS)
    wait_s = dice.uniform(0.0, longest_s)
    folder.mkdir()
    run = Run(folder)
    begin(run)
    try:
        run.wait(wait_s)
        alive = run.processes()
        if not alive:
            return Played(kind, seed, name, NONE, wait_s, wait_s, _codes(run), "the run had ended before")
        victim = dice.choice(alive)
        who = role(victim, run)
        at_s = time.monotonic() - run.began
        victim.send_signal(getattr(signal, f"SIG{name}"))
        return _seen(Played(kind, seed, name, who, round(at_s, 2), 0.0, {}, ""), run, victim)
    finally:
        run.clear()


def _seen(played: Played, run: Run, victim: psutil.Process) -> Played:
    """Wait for the end of a run that was hit, and judge it."""
    limit_s = TIMEOUT_S[played.kind] + GRACE_S
    spare = victim.pid if played.signal == "STOP" else None
    run.wait(limit_s, spare)
    late = tuple(name for name, popen in run.started.items() if name not in run.ended and popen.pid != spare)
    seconds = max(run.ended.values(), default=limit_s)
    if spare in {popen.pid for popen in run.started.values()} and played.kind == "bandwidth":
        _until(lambda: (run.folder / "report.json").exists(), TIMEOUT_S[played.kind] + AFTERMATH_S, run.began)
        time.sleep(1.0)
    said_before = run.text()
    if spare and victim.is_running():
        victim.send_signal(signal.SIGCONT)
    now_s = time.monotonic() - run.began
    run.wait(now_s + AFTERMATH_S)
    _until(lambda: not run.processes(), AFTERMATH_S, time.monotonic())
    left = tuple(f"process: {' '.join(each.cmdline())[:60]}" for each in run.processes())
    files = [path.name for path in (run.folder.parent / "tmp").iterdir()]
    strange = tuple(f"file: {name}" for name in files if not SCRATCH.fullmatch(name))
    return Played(
        played.kind, played.seed, played.signal, played.victim, played.at_s, round(seconds, 1), _codes(run),
        said(played, run, said_before), late, (*left, *strange), len(files) - len(strange),
    )  # fmt: skip


def _until(reached: Callable[[], bool], limit_s: float, began: float) -> None:
    while not reached() and time.monotonic() < began + limit_s:
        time.sleep(0.1)


def _codes(run: Run) -> dict[str, int | None]:
    return {name: popen.poll() for name, popen in run.started.items()}


def said(played: Played, run: Run, text: str) -> str:
    """What the run said of the signal, in a few words; empty where it should have said something and did not."""
    codes = _codes(run)
    if set(codes.values()) <= {0}:
        return "went on to its end, all well"
    if (
        len(codes) > 1
        and played.victim in codes
        and {code for name, code in codes.items() if name != played.victim} == {0}
    ):
        return "all others well: its part was done"
    if played.signal in HARMLESS:
        return ""
    if played.victim in codes and (own := _own_end(codes[played.victim], played.signal)) and len(codes) == 1:
        return own
    if played.kind == "doctor":
        return _said_by_nodes(played.victim, codes, run)
    return _said_by_ranks(played.victim, text)


def _own_end(code: int | None, name: str) -> str:
    """How the only process of a run says that it was ended itself."""
    number = getattr(signal, f"SIG{name}")
    return "ended by the signal" if code in (-number, 128 + number) else ""


def _said_by_nodes(victim: str, codes: Mapping[str, int | None], run: Run) -> str:
    """Whether a node that was not hit names the one that was: as missing, in a finding or on its standard error."""
    others = [name for name in codes if name != victim]
    reports = [json.loads(path.read_text()) for name in others if (path := run.folder / f"{name}.json").exists()]
    if any(victim in report["missing_nodes"] for report in reports):
        return "named: missing"
    if not victim.removeprefix("n").isdigit():
        return "a command of a node failed, and its fact is unknown" if set(codes.values()) <= {0, 3} else ""
    checks = [check for report in reports for check in report["checks"]]
    texts = [finding["subject"] + " " + finding["message"] for check in checks for finding in check["findings"]]
    texts += [check["why"] for check in checks] + [note for report in reports for note in report["notes"]]
    texts += [(run.folder / f"{name}.err").read_text(errors="replace") for name in others]
    number = victim.removeprefix("n")
    words = rf"\b{victim}\b|(node|rank) {number}\b|10\.77\.0\.{int(number) + 1}\b"
    return "named by others" if any(re.search(words, text) for text in texts) else ""


def _said_by_ranks(victim: str, text: str) -> str:
    if victim.startswith("rank "):
        lost = re.search(rf'"subject": ?"{victim}"|{victim} on \S+ was lost', text)
        return "named: lost" if lost else "interruption said" if "ended by SIG" in text else ""
    return "interruption said" if OWN.search(text) else ""


def doctors(runs: int, dice: random.Random, folder: Path, tell: Tell) -> None:
    """Play runs of the doctor on 4 lab hosts."""
    from tests.lab import Lab

    with Lab(hosts=4) as lab:
        secret = {"NCCLPROBE_TOKEN": uuid.uuid4().hex}

        def begin(run: Run) -> None:
            from tests.lab.hosts import enter

            limits = ["--timeout", f"{TIMEOUT_S['doctor']:g}", "--wait", "6"]
            for host in lab.hosts:
                flags = ["--nnodes", "4", "--node-rank", str(host.number - 1), "--master-addr", "n0"]
                own = ["-m", "ncclprobe.doctor", "--backend", "gloo", *limits, *flags, "--master-port", "29500"]
                argv = [*enter(host.pid), sys.executable, *own, "--json", str(run.folder / f"{host.name}.json")]
                run.start(host.name, argv, {**os.environ, **secret, "PYTHONPATH": str(ROOT)})

        _slice("doctor", begin, runs, dice, folder, tell)
        sockets = [name for host in lab.hosts for name in _sockets(host.pid)]
        if sockets:
            sys.exit(f"sockets are left: {sockets}")


def _sockets(pid: int) -> list[str]:
    """The listening sockets of TCP, and the names of unix sockets, in the network namespace of a process."""
    net = Path(f"/proc/{pid}/net")
    lines = [line.split() for name in ("tcp", "tcp6") for line in (net / name).read_text().splitlines()[1:]]
    unix = [line.split() for line in (net / "unix").read_text().splitlines()[1:]]
    return [words[1] for words in lines if words[3] == "0A"] + [words[7] for words in unix if len(words) > 7]


def bandwidths(runs: int, dice: random.Random, folder: Path, tell: Tell) -> None:
    """Play runs of `bandwidth --nproc 4`."""
    own = ["--backend", "gloo", "--nproc", "4", "-b", "64K", "-e", "1M", "-f", "4", "-n", "20", "-w", "2"]
    limits = ["--no-transport-detection", "--timeout", f"{TIMEOUT_S['bandwidth']:g}", "-q"]

    def begin(run: Run) -> None:
        argv = [sys.executable, "-m", "ncclprobe.bandwidth", *own, *limits, "--json", str(run.folder / "report.json")]
        run.start("parent", argv, {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})

    _slice("bandwidth", begin, runs, dice, folder, tell)


def _slice(
    kind: str,
    begin: Begin,
    runs: int,
    dice: random.Random,
    folder: Path,
    tell: Tell,
) -> None:
    """Play `runs` runs after one without a signal, which says how long one takes; then let one more clean up."""
    longest_s = _whole(begin, folder / "whole") * 1.1
    played = 0
    for number in count():
        found = play(kind, begin, folder / f"{kind}{number}", dice, longest_s)
        if found.victim != NONE:
            tell(found)
            played += 1
        if played == runs:
            break
    for left in (folder / "tmp").iterdir():
        os.utime(left, (0, 0))  # older than a minute
    _whole(begin, folder / "last")
    if names := sorted(path.name for path in (folder / "tmp").iterdir()):
        sys.exit(f"the next run did not remove {names}")


def _whole(begin: Begin, folder: Path) -> float:
    """Return the seconds of a run without a signal, which must be well."""
    folder.mkdir()
    run = Run(folder)
    begin(run)
    try:
        run.wait(200.0)
        if set(_codes(run).values()) != {0}:
            sys.exit(f"a run without a signal ended with {_codes(run)}: {run.text()[-2000:]}")
        return max(run.ended.values())
    finally:
        run.clear()


def page(played: Sequence[Mapping[str, Any]]) -> str:
    """The report of all results."""
    runs = [Played(**each) for each in played]
    rows = []
    for kind in TIMEOUT_S:
        for name in SIGNALS:
            some = [run for run in runs if run.kind == kind and run.signal == name]
            words = Counter(run.said or "NOTHING SAID" for run in some)
            told = "; ".join(f"{number} x {word}" for word, number in words.most_common())
            seconds = max((run.seconds for run in some), default=0.0)
            bad = sum(not run.well for run in some)
            beyond = sum(run.seconds > TIMEOUT_S[kind] + STATED_S for run in some)
            kept = sum(run.for_next > 0 for run in some)
            rows.append((kind, name, len(some), told, f"{seconds:.0f}", beyond, kept, bad))
    late = f"beyond --timeout + {STATED_S:g} s"
    head = ("command", "signal", "runs", "what was said", "longest, s", late, "left for the next run", "not well")
    bad_rows = [(r.kind, r.signal, r.victim, f"{r.at_s:g}", f"{r.seconds:g}", json.dumps(r.codes), r.said,
                 "; ".join((*(f"late: {name}" for name in r.late), *r.left))) for r in runs if not r.well]  # fmt: skip
    own = ("command", "signal", "victim", "at, s", "ended, s", "codes", "said", "late or left")
    return "\n".join([*table(head, rows), *(table(own, bad_rows) if bad_rows else ())])


def main() -> int:
    """Play, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["doctor", "bandwidth", "table"])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("signals.jsonl"))
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.what == "table":
        text = page([json.loads(line) for line in options.results.read_text().splitlines()])
        options.write.write_text(text + "\n") if options.write else print(text)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell's background job hands on that it is ignored
        signal.signal(number, lambda *_: sys.exit("interrupted"))

    def tell(played: Played) -> None:
        print("well" if played.well else "NOT WELL", asdict(played), flush=True)
        with options.results.open("a") as file:
            file.write(json.dumps(asdict(played)) + "\n")

    with tempfile.TemporaryDirectory(prefix="signals-") as folder:
        (Path(folder) / "tmp").mkdir()
        play_all = doctors if options.what == "doctor" else bandwidths
        play_all(options.runs, random.Random(options.seed), Path(folder), tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
