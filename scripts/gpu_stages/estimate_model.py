"""What stage 5 compares: NCCL's estimates and the tuning table of its log, with our cost model of the same machine."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_stages.nccl_calls import OPS
from gpu_stages.steps import Refused

NEAR = 0.02
"""An estimate this near is the same: the model is NCCL's own arithmetic."""
ROUNDED = 0.06
"""NCCL prints its table with one decimal."""
Cells = dict[tuple[str, str, str], tuple[float, float]]
"""Latency in us and bandwidth in GB/s by function (AllReduce), algorithm (Ring) and protocol (LL)."""
_PROTOCOLS = ("LL", "LL128", "Simple")
_HEAD = re.compile(r"NCCL INFO +Algorithm +\|((?: +\w+ +\|)+)")
_ROW = re.compile(
    r"NCCL INFO +(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) +\|((?: *[\d.]+/ *[\d.]+ +\|)+)"
)  # fmt: skip
_CELL = re.compile(r"([\d.]+)/ *([\d.]+) +\|")


class Model:
    """Our cost model between `nodes` nodes of one GPU, with the graphs that NCCL found. Raises UsageError."""

    def __init__(self, log: str, system: Any, nodes: int, version: int) -> None:
        from ncclprobe.expect.system import Shape
        from ncclprobe.expect.topology_text import pattern_lines

        self._graphs, self._system, self._shape = pattern_lines(log, "nccl.log"), system, Shape((1,) * nodes)
        self._version = version // 10000, version % 10000 // 100, version % 100

    def cost(self, op: str, nbytes: int) -> Any:
        """The call that the model takes for the quickest; None where it has none."""
        from ncclprobe.expect.tuner.cost import best

        return best(self._graphs, self._system, self._shape, op, nbytes, self._version)

    def cells(self) -> Cells:
        """The table that NCCL would print."""
        from ncclprobe.expect.tuner.cost import FUNCTIONS, cells

        return {
            (FUNCTIONS[op], cell.algorithm, cell.protocol): (cell.latency_us, cell.algbw_GBps)
            for op in OPS
            for cell in cells(self._graphs, self._system, self._shape, op, self._version)
        }


def here(rehearse: bool) -> Any:
    """This machine as the cost model sees it, as a node of one GPU. Raises Refused."""
    from ncclprobe.engine import collect
    from ncclprobe.expect.recognise import expectation_context
    from ncclprobe.expect.tables import machines
    from ncclprobe.model.registry import Collector, discover
    from ncclprobe.model.snapshot import Absent
    from ncclprobe.model.values import replace

    if rehearse:
        return replace(machines.find("dgx-h100").system(), gpus=1, nics=1, network="sockets")
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    system = expectation_context(collect.observed(collectors, time.monotonic() + 30.0)[0].facts).system
    if isinstance(system, Absent):
        raise Refused(system.why)
    return replace(system, gpus=1)


def compared_calls(asked: Sequence[tuple[str, int, float]], model: Model) -> list[dict[str, Any]]:
    """NCCL's estimate and ours of each call that both have, with their ratio."""
    rows = []
    for op, nbytes, estimate_us in asked:
        cost = model.cost(op, nbytes) if op in OPS else None
        if cost is not None and estimate_us > 0:
            ratio = cost.time_us / estimate_us
            rows.append({"op": op, "nbytes": nbytes, "NCCL_us": estimate_us, "ours_us": cost.time_us, "ratio": ratio,
                         "algorithm": cost.algorithm, "protocol": cost.protocol})  # fmt: skip
    return rows


def differing_ops(ratios: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """The operations of which our model says something else than NCCL."""
    for op, each in ratios.items():
        beyond = [ratio for ratio in each if abs(ratio - 1) > NEAR]
        if beyond:
            worst = max(beyond, key=lambda ratio: abs(ratio - 1))
            yield f"{op}: {len(beyond)} of {len(each)} sizes differ, ours up to {worst:.2f} times NCCL's"


def printed_cells(log: str) -> Cells:
    """The cells of the table that rank 0 prints since 2.18: blocks of three algorithms, each with three protocols."""
    algorithms: list[str] = []
    found: Cells = {}
    for line in log.splitlines():
        if head := _HEAD.search(line):
            algorithms = head[1].replace("|", " ").split()
        elif row := _ROW.search(line):
            columns = [(algorithm, protocol) for algorithm in algorithms for protocol in _PROTOCOLS]
            for (algorithm, protocol), (latency, bandwidth) in zip(columns, _CELL.findall(row[2]), strict=False):
                found[row[1], algorithm, protocol] = float(latency), float(bandwidth)
    return found


def differing_cells(printed: Cells, ours: Cells) -> Iterator[str]:
    """Where NCCL's table says something else than ours; cells without bandwidth are not available."""
    for cell, (latency_us, bandwidth) in printed.items():
        if cell[1].startswith("CollNet") or not bandwidth:
            continue
        mine = ours.get(cell, (0.0, 0.0))
        if abs(mine[0] - latency_us) > ROUNDED or abs(mine[1] - bandwidth) > ROUNDED:
            yield f"{' '.join(cell)}: NCCL {latency_us:g} us, {bandwidth:g} GB/s; ours {mine[0]:.1f}, {mine[1]:.1f}"
