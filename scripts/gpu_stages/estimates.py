"""Stage 5. NCCL's own estimate of every call, between 2 to 16 nodes of one GPU each, beside what our model says."""

import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages import machine, processes
from gpu_stages.notebook import Hour, Notebook, Outcome, Refused

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
_TABLE = re.compile(
    r"NCCL INFO .*(?:Algorithm|Protocol|Max NThreads|AllReduce|AllGather|ReduceScatter|Broadcast|Reduce) *\|"
)
NEAR = 0.02
"""An estimate this near is the same: the model is NCCL's own arithmetic."""


def play(hour: Hour, notebook: Notebook) -> None:
    """For each number of nodes ask NCCL, then compare."""
    notebook.step("library", _library)
    for nodes in NODES:
        notebook.step(f"{nodes} nodes", _asked, nodes, least_s=20.0)
        notebook.step(f"{nodes} nodes beside the model", _compared, nodes)


def _library(hour: Hour, folder: Path) -> Outcome:
    path = (
        hour.standins / "nccl" / "libnccl.so.2" if hour.rehearse else machine.nccl_library(hour, folder / "library.log")
    )
    if not path.exists():
        raise Refused(f"there is no {path.name}: no compiler built the stand-in")
    (folder / "path").write_text(str(path))
    return Outcome({"library": path.name})


def _asked(hour: Hour, folder: Path, nodes: int) -> Outcome:
    """NCCL's estimates of all operations and sizes, with its log."""
    library = (folder.parent / "library" / "path").read_text()
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": _SYSTEMS, "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log")}
    dumps = {"NCCL_GRAPH_DUMP_FILE": str(folder / "graphs.xml"), "NCCL_TOPO_DUMP_FILE": str(folder / "topology.xml")}
    command = [sys.executable, "-m", "gpu_stages.estimate_rank", library, folder]
    port = machine.free_port()
    ranks = []
    for rank in range(nodes):
        more = dumps if rank == 0 else {}
        env = {**hour.variables, **machine.seat(rank, nodes, port), **log, **more}
        ranks.append(processes.start(command, folder / f"rank{rank}.log", env))
    ends = processes.wait(ranks, _RUN_S)
    broken = tuple(str(end) for end in ends if end.code != 0)
    if broken:
        return Outcome({}, broken[:3])
    found = json.loads((folder / "estimates.json").read_text())
    tables = [
        line
        for path in folder.glob("*.log")
        for line in path.read_text(errors="replace").splitlines()
        if _TABLE.search(line)
    ]
    (folder / "tables.txt").write_text("\n".join(tables))
    (folder / "id").unlink()
    return Outcome({"NCCL": found["version"], "estimates": len(found["rows"]), "lines of tables": len(tables)})


def _compared(hour: Hour, folder: Path, nodes: int) -> Outcome:
    """Our model's time over NCCL's, by operation."""
    asked = folder.parent / f"{nodes} nodes"
    path = asked / "estimates.json"
    if not path.exists():
        raise Refused("NCCL was not asked")
    found = json.loads(path.read_text())
    log = _RECORDED if hour.rehearse else "\n".join(path.read_text(errors="replace") for path in asked.glob("*.log"))
    rows = beside(found["rows"], model(log, nodes, found["version"], hour.rehearse))
    (folder / "beside.json").write_text(json.dumps(rows))
    ratios = {op: [row["ratio"] for row in rows if row["op"] == op] for op in sorted({row["op"] for row in rows})}
    medians = {op: statistics.median(each) for op, each in ratios.items()}
    return Outcome({"rows": len(rows), **medians}, () if hour.rehearse else tuple(far(ratios)))


def far(ratios: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """The operations of which our model says something else than NCCL."""
    for op, each in ratios.items():
        beyond = [ratio for ratio in each if abs(ratio - 1) > NEAR]
        if beyond:
            worst = max(beyond, key=lambda ratio: abs(ratio - 1))
            yield f"{op}: {len(beyond)} of {len(each)} sizes differ, ours up to {worst:.2f} times NCCL's"


def beside(asked: Sequence[tuple[str, int, float]], modelled: Mapping[tuple[str, int], Any]) -> list[dict[str, Any]]:
    """NCCL's estimate and ours of each call that both have, with their ratio."""
    rows = []
    for op, nbytes, estimate_us in asked:
        cost = modelled.get((op, nbytes))
        if cost is not None and estimate_us > 0:
            ratio = cost.time_us / estimate_us
            rows.append({"op": op, "nbytes": nbytes, "NCCL_us": estimate_us, "ours_us": cost.time_us, "ratio": ratio,
                         "algorithm": cost.algorithm, "protocol": cost.protocol})  # fmt: skip
    return rows


def model(log: str, nodes: int, version: int, rehearse: bool) -> dict[tuple[str, int], Any]:
    """What our cost model makes of every call, with the graphs that NCCL found. Raises UsageError, Refused."""
    from gpu_stages.estimate_rank import SIZES
    from gpu_stages.nccl_calls import OPS
    from ncclprobe.expect.system import Shape
    from ncclprobe.expect.tuner.cost import best
    from ncclprobe.expect.tuner.dumps import pattern_lines

    graphs, system, shape = pattern_lines(log, "nccl.log"), here(rehearse), Shape((1,) * nodes)
    release = version // 10000, version % 10000 // 100, version % 100
    return {(op, size): best(graphs, system, shape, op, size, release) for op in OPS for size in SIZES}


def here(rehearse: bool) -> Any:
    """This machine as the cost model sees it. Raises Refused."""
    import time

    from ncclprobe.engine import observe
    from ncclprobe.expect.context import expectation_context
    from ncclprobe.expect.tables import machines
    from ncclprobe.model.registry import discover
    from ncclprobe.model.rules import Collector
    from ncclprobe.model.snapshot import Absent
    from ncclprobe.model.values import replace

    if rehearse:
        return replace(machines.find("dgx-h100").system(), gpus=1, nics=1, network="sockets")
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    system = expectation_context(observe.observed(collectors, time.monotonic() + 30.0)[0].facts).system
    if isinstance(system, Absent):
        raise Refused(system.why)
    return replace(system, gpus=1)
