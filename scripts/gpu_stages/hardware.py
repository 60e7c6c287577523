"""Stage 2. The machine: what it says of itself, captured raw and redacted, and whether a replay says the same."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes, standins
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = (
    "libnvidia-ml.so.1 by tests/fake_nvml.c: one GPU, no NVLink",
    "nvidia-smi by a script that prints what tests/captures/one-gpu.jsonl recorded; -q and -x were not recorded",
)
NOT_RUN = (
    "NVML above a driver",
    "nvidia-smi -q and -q -x",
)
TEXTS = (("-q",), ("-q", "-x"), ("topo", "-m"), ("nvlink", "-s"), ("-L",), ())
_DEADLINE_S = 40.0


def run_steps(context: Context, log: StepLog) -> None:
    """Look, replay, compare."""
    for words in TEXTS:
        log.run(" ".join(("nvidia-smi", *words)), _text, *words)
    log.run("capture", _capture)
    log.run("capture, redacted", _capture, "--redact")
    log.run("what NVML said", _nvml)
    log.run("doctor", _doctor)
    for name in ("capture", "capture, redacted"):
        log.run(f"replay of {name}", _replay, name)


def driver_variables(context: Context) -> dict[str, str]:
    """The environment in which a process finds the driver, or what replaces it."""
    if not context.rehearse:
        return dict(context.variables)
    path = os.pathsep.join((str(context.standins / "bin"), context.variables.get("PATH", "")))
    return {**standins.with_nvml(context.variables, context.standins), "PATH": path}


def _text(context: Context, folder: Path, *words: str) -> Outcome:
    ended = processes.run(["nvidia-smi", *words], folder / "text.txt", driver_variables(context), _DEADLINE_S)
    if ended.code != 0:
        raise Refused(str(ended))
    return Outcome({"lines": len(ended.text.splitlines())})


def _capture(context: Context, folder: Path, *arguments: str) -> Outcome:
    path = folder / "machine.jsonl"
    command = machine.ncclprobe("capture", "-o", path, "--timeout", 30, *arguments)
    ended = processes.run(command, folder / "capture.log", driver_variables(context), _DEADLINE_S)
    if ended.code != 0:
        return Outcome({}, (str(ended),))
    return Outcome({"answers": len(path.read_text().splitlines()) - 1, "bytes": path.stat().st_size})


def _nvml(context: Context, folder: Path) -> Outcome:
    """Each question to NVML: answered, or refused and how."""
    rows = [json.loads(line) for line in _captured(folder, "capture").read_text().splitlines()]
    asked = [row for row in rows if row.get("ask", [""])[0] == "nvml"]
    answers = {f"{' '.join(map(str, row['ask'][1:]))}": row.get("refused", "answered") for row in asked}
    whys = {name: row["why"] for name, row in zip(answers, asked, strict=True) if "why" in row}
    counts = Counter(answers.values())
    problems = () if counts["answered"] else ("NVML answered nothing",)
    return Outcome({**counts, "answers": answers, "why": whys}, problems)


def _doctor(context: Context, folder: Path) -> Outcome:
    """The verdict on the machine itself. A healthy machine with a GPU has nothing that fails."""
    report = _judged(context, folder)
    failing = [check["id"] for check in report["checks"] if check["status"] == "fail"]
    unknown = [check["id"] for check in report["checks"] if check["status"] == "unknown"]
    found = {"exit": report["exit_code"], "failing": " ".join(failing), "unknown": " ".join(unknown)}
    return Outcome({**found, **report["coverage"]}, tuple(f"{name} fails" for name in failing))


def _captured(folder: Path, name: str) -> Path:
    """The capture that another step has made. Raises Refused."""
    path = folder.parent / name / "machine.jsonl"
    if not path.exists():
        raise Refused(f"there is no {name} to read")
    return path


def _replay(context: Context, folder: Path, name: str) -> Outcome:
    """The same checks must come to the same, whoever looks."""
    here = _verdicts(machine.report(folder.parent / "doctor" / "report.json"))
    there = _verdicts(_judged(context, folder, _captured(folder, name)))
    differences = [f"{name}: {here.get(name)} here, {there.get(name)} replayed" for name in sorted({*here, *there})
              if here.get(name) != there.get(name)]  # fmt: skip
    return Outcome({"checks": len(there)}, tuple(differences))


def _judged(context: Context, folder: Path, *captures: Path) -> dict[str, Any]:
    path = folder / "report.json"
    options = ["--local", "--no-config", "--timeout", 30, "--json", path]
    ended = processes.run(
        machine.ncclprobe("doctor", *options, *captures), folder / "doctor.log", driver_variables(context), _DEADLINE_S
    )
    if ended.code not in (0, 3, 4):
        raise Refused(str(ended))
    return machine.report(path)


def _verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}
