"""Stage 1. Does it run at all: every measuring command, on one rank and on several of one GPU."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes
from gpu_stages.processes import End
from gpu_stages.steps import Context, Outcome, StepLog

REPLACED = (
    "NCCL by gloo, the GPU by host memory",
    "ranks that share a GPU by NCCL_HOSTID: the same variables are set, gloo reads none of them",
)
NOT_RUN = (
    "CUDA buffers, streams and events of ncclprobe/probes",
    "--graph, beyond its refusal with gloo",
    "transport detection and the untimed NCCL_DEBUG pass",
)
VERDICTS = (0, 3, 4)
"""Exit codes of a run that came to its end: a verdict on numbers that mean nothing here is not looked at."""
_SMALL = ("-b", "64K", "-e", "4M", "-f", "64", "-n", "5", "-w", "1", "--batches", "1", "--timeout", "60")
_TIMEOUT_S = 70.0


def run_steps(context: Context, log: StepLog) -> None:
    """All commands once, small."""
    log.run("inventory", _inventory)
    log.run("one rank alone is refused", _refused)
    for ranks in (2, 4):
        log.run(f"every collective, {ranks} ranks", _every_op, ranks)
    log.run("CUDA graphs, 2 ranks", _graphs)
    log.run("pairs, 4 ranks", _command, "pairs", 4, "pairs", "--timeout", 60)
    log.run("copies", _command, "copies", 1, "copies", "--timeout", 60)
    training = ("ddp", "--params", "200K", "--layers", 2, "--micro-batches", 1, "--timeout", 60)
    log.run("workload, 2 ranks", _command, "steps", 2, "workload", *training)


def _inventory(context: Context, folder: Path) -> Outcome:
    """What this machine has of all that the stages need."""
    ended = processes.run(
        [sys.executable, "-m", "gpu_stages.inventory"], folder / "inventory.log", context.variables, 60
    )
    found = json.loads(processes.last_line_whole(ended.text))
    missing = [f"cannot import {name}: {why}" for name, why in found["missing"].items()]
    if not context.rehearse and not found["gpus"]:
        missing.append("torch can use no GPU")
    return Outcome(found, tuple(missing))


def _refused(context: Context, folder: Path) -> Outcome:
    """One rank moves no byte between ranks: exit 2 and a remedy."""
    command = machine.ncclprobe("bandwidth", "--backend", context.backend, "--nproc", 1)
    ended = processes.run(command, folder / "bandwidth.log", context.variables, _TIMEOUT_S)
    return Outcome({"exit": ended.code, "said": processes.last_line(ended.text)}, _unless(ended.code == 2, str(ended)))


def _every_op(context: Context, folder: Path, ranks: int) -> Outcome:
    ends, report = _measured(context, folder, ranks, "bandwidth", "--op", "all", *_SMALL)
    if report is None:
        return Outcome({}, tuple(map(str, ends)))
    rows = report["measurements"]
    networks = sorted({str(row["transport"]["network"]) for row in rows})
    found = {"rows": len(rows), "nodes": rows[0]["nodes"] if rows else 0, "networks": ", ".join(networks)}
    versions = next(node["versions"] for node in report["environment"].values())
    found |= {"torch": versions.get("torch"), "NCCL": versions.get("nccl"), "failing": _failing(report)}
    return Outcome(found, (*_wrong_rows(rows, context.rehearse), *_wrong_versions(folder, versions)))


def _wrong_versions(folder: Path, reported: Mapping[str, str | None]) -> Iterator[str]:
    """Where the report's versions are not those that torch itself says."""
    path = folder.parent / "inventory" / "inventory.log"
    known = json.loads(processes.last_line_whole(path.read_text()))
    for name in ("torch", "nccl"):
        if known[name] and reported.get(name) != known[name]:
            yield f"the report says {name} {reported.get(name)}, torch says {known[name]}"


def _wrong_rows(rows: Sequence[Mapping[str, Any]], rehearse: bool) -> Iterator[str]:
    """What rows lack, and what they must not say."""
    from ncclprobe.model.ops import OPS

    places = {(row["op"], row["place"]) for row in rows}
    for op in OPS.values():
        for place in op.places:
            if (op.name, place) not in places:
                yield f"{op.name} was not measured {machine.PLACES[place]}"
    yield from (f"{row['op']} of {row['nbytes']} B has {row['wrong']} wrong elements" for row in rows if row["wrong"])
    if not rehearse:
        networks = {str(row["transport"]["network"]) for row in rows}  # Socket, with the interface: Socket lo
        strange = (name for name in sorted(networks) if name.split()[0] != "Socket")
        yield from (f"transport detection says {name} where ranks of one GPU have sockets alone" for name in strange)


def _graphs(context: Context, folder: Path) -> Outcome:
    ends, report = _measured(context, folder, 2, "bandwidth", "--graph", *_SMALL)
    if context.rehearse:
        return Outcome(
            {"exits": [end.code for end in ends]}, _unless(ends[0].code == 2, "--graph with gloo is not refused")
        )
    if report is None:
        return Outcome({}, tuple(map(str, ends)))
    modes = sorted({row["mode"] for row in report["measurements"]})
    return Outcome({"rows": len(report["measurements"])}, _unless(modes == ["graph"], f"modes are {modes}"))


def _command(context: Context, folder: Path, wants: str, ranks: int, name: str, *arguments: object) -> Outcome:
    """A command whose report must hold rows under `wants`."""
    ends, report = _measured(context, folder, ranks, name, *arguments)
    if report is None:
        return Outcome({}, tuple(map(str, ends)))
    rows = report.get(wants) or []
    return Outcome({wants: len(rows), "failing": _failing(report)}, _unless(bool(rows), f"the report has no {wants}"))


def _measured(
    context: Context, folder: Path, ranks: int, name: str, *arguments: object
) -> tuple[list[End], dict[str, Any] | None]:
    """How the ranks of a command ended, and rank 0's report; None where one did not come to its end."""
    path = folder / "report.json"
    command = machine.ncclprobe(name, "--backend", context.backend, "--json", path, *arguments)
    if ranks == 1:
        ends = [processes.run(command, folder / "rank0.log", context.variables, _TIMEOUT_S)]
    else:
        ends = machine.as_ranks(context, folder, ranks, command, _TIMEOUT_S)
    whole = all(end.code in VERDICTS for end in ends) and path.exists()
    return ends, machine.report(path) if whole else None


def _failing(report: Mapping[str, Any]) -> str:
    """The checks that fail; some must, as ranks of one machine that play several nodes meet on loopback."""
    return " ".join(sorted({check["id"] for check in report["checks"] if check["status"] == "fail"})) or "none"


def _unless(right: bool, problem: str) -> tuple[str, ...]:
    return () if right else (problem,)
