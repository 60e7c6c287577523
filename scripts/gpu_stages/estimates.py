"""Stage 5. NCCL's own estimate of every call, between 2 to 16 nodes of one GPU each, beside what our model says."""

import json
import statistics
import sys
from pathlib import Path

from gpu_stages import machine, processes
from gpu_stages.estimate_model import Model, compared_calls, differing_cells, differing_ops, here, printed_cells
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = (
    "libnccl.so.2 by tests/fake_nccl.c, whose estimate is 10 us and one for each 10,000 bytes",
    "the graphs that NCCL finds and this machine, by two lines of a log and one node of a DGX H100 with one GPU",
)
NOT_RUN = (
    "ncclCommInitRank, the tuning tables and graphs of NCCL's own log",
    "how near the model comes: it is compared with the stand-in's times, and not judged",
)
NODES = (2, 4, 8, 16)
_RUN_S = 70.0
_SYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"
_PATTERN = "a:1:1 [0] NCCL INFO Pattern {}, crossNic 0, nChannels 1, bw 1.2/1.2, type LOC/PHB, sameChannels 1\n"
_RECORDED = _PATTERN.format(4) + _PATTERN.format(1)  # ring, tree


def run_steps(context: Context, log: StepLog) -> None:
    """For each number of nodes ask NCCL, then compare."""
    log.run("library", _library)
    for nodes in NODES:
        log.run(f"{nodes} nodes", _asked, nodes, least_s=20.0)
        log.run(f"{nodes} nodes beside the model", _compared, nodes)


def _library(context: Context, folder: Path) -> Outcome:
    path = context.standins / "nccl" / "libnccl.so.2"
    if not context.rehearse:
        path = machine.libraries(context, folder / "library.log")["libnccl"]
    if not path.exists():
        raise Refused(f"there is no {path.name}: no compiler built the stand-in")
    (folder / "path").write_text(str(path))
    return Outcome({"library": path.name})


def _asked(context: Context, folder: Path, nodes: int) -> Outcome:
    """NCCL's estimates of all operations and sizes, with its log."""
    library = (folder.parent / "library" / "path").read_text()
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _SYSTEMS, "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log")}
    dumps = {"NCCL_GRAPH_DUMP_FILE": str(folder / "graphs.xml"), "NCCL_TOPO_DUMP_FILE": str(folder / "topology.xml")}
    command = [sys.executable, "-m", "gpu_stages.estimate_rank", library, folder]
    ranks = machine.start_ranks({**context.variables, **log}, folder, range(nodes), nodes, command, first=dumps)
    ends = processes.wait(ranks, _RUN_S)
    broken = tuple(str(end) for end in ends if end.code != 0)
    if broken:
        return Outcome({}, broken[:3])
    found = json.loads((folder / "estimates.json").read_text())
    (folder / "id").unlink()
    return Outcome({"NCCL": found["version"], "estimates": len(found["rows"])})


def _compared(context: Context, folder: Path, nodes: int) -> Outcome:
    """Our model beside NCCL: the time of each call by operation, and the cells of the table that NCCL prints."""
    asked = folder.parent / f"{nodes} nodes"
    if not (asked / "estimates.json").exists():
        raise Refused("NCCL was not asked")
    estimates = json.loads((asked / "estimates.json").read_text())
    log = "\n".join(path.read_text(errors="replace") for path in sorted(asked.glob("*.log")))
    model = Model(_RECORDED if context.rehearse else log, here(context.rehearse), nodes, estimates["version"])
    rows, cells = compared_calls(estimates["rows"], model), list(differing_cells(printed_cells(log), model.cells()))
    (folder / "beside.json").write_text(json.dumps({"calls": rows, "cells": cells}))
    ratios = {op: [row["ratio"] for row in rows if row["op"] == op] for op in sorted({row["op"] for row in rows})}
    medians = {op: statistics.median(each) for op, each in ratios.items()}
    found = {"calls": len(rows), "cells printed": len(printed_cells(log)), "cells that differ": len(cells), **medians}
    return Outcome(found, () if context.rehearse else (*differing_ops(ratios), *cells[:10]))
