"""Play the recorded cases of tests/data/on_cpu again, above the stand-ins, and compare how they end with the recording.

The recordings are of the real NCCL, and stay the judge: what differs is a property of the stand-in, or of our own code
since then.
"""

import fnmatch
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_stages import processes
from gpu_stages.machine import free_port

from stand_in import machine

RECORDED = machine.ROOT / "tests" / "data" / "on_cpu"
AT_ONCE = 6
_JOB = machine.ROOT / "tests" / "cuda_stand_in" / "job.py"
_EXPLAIN_S = 120.0
_DEADLINE_S, _DEADLINES_S = 150.0, {"job-*": 60.0, "accept-*": 200.0, "bandwidth-rank-0-stopped": 60.0}
_TIMEOUTS = ("100", "170")
"""In seconds, as the recorded commands have them."""
_GPUS = {"bandwidth-1": 1, "devices-mig-one": 3, "devices-mig*": 2, "copies": 4, "copies-*": 2, "accept-*": 2}
_GPUS |= {"devices-*": 4, "doctor-*": 4}
_UNJUDGED = {"NCCL_PROTO": "Simple"}
"""What a call of most sizes reaches with it is not known, so no rate is judged: none means anything."""
_GONE = "api-*"
"""Recorded while the API measured within the caller's process group; it has processes of its own now."""
_UNRECORDED = {
    "bandwidth-other-channels": {"NCCL_MAX_NCHANNELS": "1"},
    "bandwidth-other-algorithm": {"NCCL_ALGO": "Tree"},
}
"""What rank 1 has of its own in cases that were recorded before their files said so."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended: exit codes (None: killed at the deadline), what explain names first, and the rows."""

    codes: tuple[int | None, ...]
    cause: str
    rows: frozenset[tuple[str, int, str]]
    wrong: int

    def differences(self, recorded: "Outcome") -> list[str]:
        """Return what is not as it was recorded."""
        found = [] if self.codes == recorded.codes else [f"exit {_codes(recorded.codes)} → {_codes(self.codes)}"]
        if self.cause != recorded.cause:
            found.append(f"explain: {recorded.cause or 'nothing'} → {self.cause or 'nothing'}")
        if self.rows != recorded.rows:
            found.append(f"rows {len(recorded.rows)} → {len(self.rows)}")
        return found + ([f"{self.wrong} wrong elements"] if self.wrong else [])


def play_all(python: Path, torch: str, out: Path, names: Sequence[str], patience: float) -> int:
    """Play the cases with these names, some at once; add a line of each to `out`; 0 if all agree.

    `patience` multiplies all deadlines, those of our commands too: on a machine with much other work they need it.
    """
    own = RECORDED / f"torch-{torch}"
    places = {path.parent.name: path.parent for path in RECORDED.glob("*/case.json")}
    places |= {path.parent.name: path.parent for path in own.glob("*/case.json")}
    places = {name: place for name, place in places.items() if not fnmatch.fnmatch(name, _GONE)}
    chosen = [name for name in sorted(places) if any(fnmatch.fnmatch(name, each) for each in names)]
    out.parent.mkdir(parents=True, exist_ok=True)
    differing = 0
    with ThreadPoolExecutor(AT_ONCE) as pool, out.open("a", encoding="utf-8") as table:
        played = pool.map(lambda name: _play(name, places[name], python, patience), chosen)
        for name, (outcome, seconds) in zip(chosen, played, strict=True):
            recorded = _recorded(places[name])
            differences = outcome.differences(recorded)
            differing += bool(differences)
            row = f"| {name} | {_codes(outcome.codes)} | {outcome.cause or '-'} | {len(outcome.rows)} | "
            table.write(row + f"{'; '.join(differences) or 'agrees'} | {seconds:.0f} s |\n")
            table.flush()
    print(f"torch {torch}: {len(chosen) - differing} of {len(chosen)} cases agree: {out}")
    return 1 if differing else 0


def _play(name: str, place: Path, python: Path, patience: float) -> tuple[Outcome, float]:
    """Run a case to its end, or to its deadline."""
    case = json.loads((place / "case.json").read_text())
    with tempfile.TemporaryDirectory(prefix="job-") as folder:
        work = Path(folder)
        case["command"] = [
            str(round(float(word) * patience)) if word in _TIMEOUTS else word for word in case["command"]
        ]
        started = _start(name, case, python, work)
        ends = processes.wait(started, _chosen(_DEADLINES_S, name, _DEADLINE_S) * patience)
        processes.wait_until(lambda: not processes.marked(folder), _DEADLINE_S / 3)  # one in a lost rank's place
        processes.kill_marked(folder)
        files = [*work.glob("*.log"), *work.glob("fr_trace_rank_*")]
        report = json.loads(path.read_text()) if (path := work / "report.json").exists() else {}
        if keep := os.environ.get("STAND_IN_KEEP"):
            shutil.copytree(work, Path(keep) / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("torchelastic*"))
        return _outcome([end.code for end in ends], files, report), max(end.seconds for end in ends)


def _start(name: str, case: dict[str, Any], python: Path, work: Path) -> list[processes.Started]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "TORCH_", "FAKE_"))}
    env |= machine.variables(python / "stand-in", work, int(_chosen(_GPUS, name, 8)))
    env |= {"PATH": f"{python / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1", "TMPDIR": str(work), "HOME": str(work)}
    env |= {"NCCL_SOCKET_IFNAME": "lo", "TORCH_FR_DUMP_TEMP_FILE": str(work / "fr_trace_rank_"), **_UNJUDGED}
    env |= {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(work / "fr_trace_rank_"), processes.MARK: str(work)}
    env |= {key: value.replace("FOLDER", str(work)) for key, value in case["env"].items()}
    words = [word.replace("JOB.py", str(_JOB)).replace("REPORT", str(work / "report.json")) for word in case["command"]]
    ranks = case["ranks"]
    if case["launch"] == "alone":
        return [processes.start(machine.inside(["python", *words]), work / "run.log", env)]
    if case["launch"] == "torchrun":
        port = ["--master-port", str(free_port())]
        run = ["python", "-m", "torch.distributed.run", *port, "--nproc-per-node", ranks, *words]
        return [processes.start(machine.inside(run), work / "run.log", env)]
    env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    per_rank = {"1": _UNRECORDED[name]} if name in _UNRECORDED else case.get("per_rank", {})
    absent = case.get("absent", []) or ([1] if name == "bandwidth-absent" else [])
    started = []
    for rank in set(range(ranks)) - set(absent):
        seen = {"CUDA_VISIBLE_DEVICES": str(rank)} if case["launch"] == "one-gpu" else {}
        own = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank), **seen, **per_rank.get(str(rank), {})}
        started.append(processes.start(machine.inside(["python", *words]), work / f"rank{rank}.log", own))
    return started


def _recorded(place: Path) -> Outcome:
    case, report = json.loads((place / "case.json").read_text()), place / "report.json.gz"
    files = [path for path in place.glob("*.gz") if path.name.startswith(("run.", "rank", "fr_"))]
    return _outcome(
        case["exit_codes"], files, json.loads(gzip.decompress(report.read_bytes())) if report.exists() else {}
    )


def _outcome(codes: Sequence[int | None], files: Sequence[Path], report: dict[str, Any]) -> Outcome:
    rows = report.get("measurements") or []
    where = frozenset((row["op"], row["nbytes"], row["place"]) for row in rows)
    return Outcome(tuple(codes), _cause(files), where, sum(row.get("wrong") or 0 for row in rows))


def _cause(files: Sequence[Path]) -> str:
    """The first cause that explain finds in these files, and the ranks that it names."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explained.json"
        command = [sys.executable, "-m", "ncclprobe", "explain", *sorted(files), "--json", path, "-q"]
        processes.run(command, Path(folder) / "log", {**os.environ, "PYTHONPATH": str(machine.ROOT)}, _EXPLAIN_S)
        causes = json.loads(path.read_text())["causes"] if path.exists() else []
    return f"{causes[0]['code']} {causes[0]['ranks']}" if causes else ""


def _chosen(table: dict[str, Any], name: str, otherwise: float) -> float:
    """The value of the first pattern in `table` that `name` has."""
    return next((float(value) for pattern, value in table.items() if fnmatch.fnmatch(name, pattern)), otherwise)


def _codes(codes: Sequence[int | None]) -> str:
    return ", ".join("killed" if code is None else str(code) for code in codes)
