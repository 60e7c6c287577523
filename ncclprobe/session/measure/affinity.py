"""``ncclprobe affinity``: the cost of the processors that ranks run on, and the options that place them better.

A rank with a GPU should run on the processors of the GPU's NUMA node, one without a GPU on those of its share of the
nodes; any of them will do: pinning to one processor only helps where nothing else runs there.
"""

import contextlib
import math
import os
import threading
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from ncclprobe.facts.cpu import cpu
from ncclprobe.host import Host
from ncclprobe.model import stats
from ncclprobe.model.errors import HostError, ParseError, ProbeError
from ncclprobe.model.hostlist import fold_numbers
from ncclprobe.model.ops import DTYPES, OPS
from ncclprobe.model.registry import discover
from ncclprobe.model.traffic import AffinityRow
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of, time_batch
from ncclprobe.probes.collectives import Probe
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, SweepContext
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.ranks.identity import RankIdentity, pci_address

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase  # which imports torch

OP = "all_reduce"
ROUNDS = 12
_BATCH_S, _MOST_CALLS = 0.1, 2000
"""Of calls: several turns of the kernel's balancing of threads over processors."""
_PCI = "/sys/bus/pci/devices"
_MOST_CPUS = 8192
"""NR_CPUS of the largest kernels; bits of absent processors do no harm."""


def numa_nodes(host: Host) -> dict[int, tuple[int, ...]]:
    """Return, by NUMA node, the processors that this process may have; all in node 0 where the kernel has no nodes.

    A control group's limit holds; a process may undo the affinity that taskset, srun or mpirun set.
    """
    allowed = _allowed()
    try:
        found = {node.id: tuple(c for c in node.cpus if c in allowed) for node in cpu.run(host).numa}
    except (HostError, ParseError):
        found = {}
    return {node: cpus for node, cpus in found.items() if cpus} or {0: tuple(sorted(allowed))}


def _allowed() -> set[int]:
    """Ask for all processors in a thread, and return those that the kernel gives: the control group's."""
    got: list[set[int]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(_MOST_CPUS))
        got.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return got[0]


def node_of_gpu(device: str, host: Host, nodes: Container[int]) -> int | None:
    """Return which of `nodes` the GPU `device` (such as ``cuda:1``) is attached to; None where it is not known."""
    import torch

    try:
        address = pci_address(torch.cuda.get_device_properties(torch.device(device)))
        number = int(host.ask("read", f"{_PCI}/{address}/numa_node"))
    except (HostError, ValueError):
        return None
    return number if number in nodes else None


ALREADY = "every rank already has the processors of its NUMA node, so there was nothing to compare"


def play(run: RankContext) -> bool:
    """Measure what other processors would bring, on all ranks that should have others at the same time.

    Rank 0 records a row for each of these, and a note where there is none. Raises ProbeError.
    """
    rows, note = measured(run.plan(), run.identity, run.node.node, run.host, run.exchange, run.set_phase)
    if run.recorder:
        run.recorder.add_affinity(rows)
    run.note(note)
    return True


def measured(
    plan: Plan, identity: RankIdentity, name: str, host: Host, exchange: Exchange, set_phase: SetPhase
) -> tuple[tuple[AffinityRow, ...], str]:
    """Return a row for each rank that should have other processors, and a note where there is none; on rank 0.

    All such ranks change their processors at the same time. Raises ProbeError.
    """
    set_phase("affinity, NUMA node of each rank")
    nodes, mine = numa_nodes(host), set(os.sched_getaffinity(0))
    node = _node(plan.device, identity, host, sorted(nodes))
    better = None if set(nodes[node]) == mine else nodes[node]
    infos = exchange.collect({"node": name, "local": identity.local_rank, "numa": node, "wrong": better is not None})
    if not exchange.share(any(info["wrong"] for info in infos) if infos else None):
        return (), ALREADY
    sides = alternate(plan, better, exchange, set_phase)
    words = "" if better is None else fold_numbers(better)
    received = exchange.collect([fold_numbers(mine), words, len(nodes), *sides])
    if not received or not infos:
        return (), ""
    return tuple(
        row(rank, info["node"], cpus, wanted, as_is, changed, how(info, infos, wanted, number))
        for rank, (info, (cpus, wanted, number, as_is, changed)) in enumerate(zip(infos, received, strict=True))
        if wanted
    ), ""


def _node(device: str, identity: RankIdentity, host: Host, nodes: Sequence[int]) -> int:
    """Return the NUMA node of the rank's GPU, else its share of the nodes by local rank."""
    of_gpu = node_of_gpu(device, host, nodes) if device.startswith("cuda") else None
    return of_gpu if of_gpu is not None else nodes[identity.local_rank * len(nodes) // max(1, identity.local_ranks)]


def row(
    rank: int, node: str, cpus: str, better: str, as_is: Sequence[float], changed: Sequence[float], words: str
) -> AffinityRow:
    """Make a row from the seconds of each round: medians, and the median of the rounds' ratios with its interval."""
    ratios = [first / last for first, last in zip(as_is, changed, strict=True)]
    interval = stats.median_interval(ratios) if len(ratios) >= stats.MIN_SAMPLES else None
    before_us, after_us = (round(median(each) * 1e6, 3) for each in (as_is, changed))
    rounded = None if interval is None else (round(interval[0], 4), round(interval[1], 4))
    return AffinityRow(rank, node, cpus, better, before_us, after_us, round(median(ratios), 4), rounded, words)


def how(info: dict[str, Any], infos: Collection[dict[str, Any]], cpus: str, nodes: int) -> str:
    """Return the options that give a rank these processors; for Slurm, all ranks of its node."""
    if nodes < 2:
        return f"numactl --physcpubind={cpus} PROGRAM, or srun --cpu-bind=none with all of the node's processors (-c)"
    node = info["numa"]
    here = sorted((each for each in infos if each["node"] == info["node"]), key=lambda each: int(each["local"]))
    domains = ",".join(str(each["numa"]) for each in here)
    return f"numactl --cpunodebind={node} --membind={node} PROGRAM, or srun --cpu-bind=map_ldom:{domains}"


def alternate(
    plan: Plan, better: Collection[int] | None, exchange: Exchange, set_phase: SetPhase
) -> tuple[list[float], list[float]]:
    """Return seconds per call of each round, as it is and on `better` processors (None: this rank stays).

    All ranks call this together, over the default group, and change sides together. Raises ProbeError.
    """
    device = torch.device(plan.device)
    shape = OPS[OP].shape(plan.sizes[-1], plan.ranks, DTYPES[plan.dtype])
    buffers = allocate(footprint(shape.nbytes, 1), getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock_of(device), buffers)
    call = next(probe for probe in discover("ncclprobe.probes", Probe) if probe.name == OP).run(
        context.views(shape, OPS[OP].places[0])[0]
    )
    number = _calls(context, call)
    sides: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        with context.phase(f"affinity, round {turn + 1} of {ROUNDS}"):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                with bound(better) if side and better else nullcontext():
                    context.clock.barrier()
                    time_batch([call] * (1 + number // 2), plan.timing, context.clock)  # until the threads have moved
                    context.clock.barrier()
                    batch = time_batch([call] * number, plan.timing, context.clock)
                sides[side].append(batch.seconds)
    return sides


def _calls(context: SweepContext, call: object) -> int:
    """Return how many calls make a batch, by the slowest rank's time of one."""
    assert callable(call)
    with context.phase("affinity, first calls"):
        for _ in range(2):
            context.clock.barrier()
            started = context.clock.now()
            call()
            context.clock.synchronise()
            took = context.clock.now() - started
    slowest = context.exchange.collect(took)
    most = max(1, min(_MOST_CALLS, math.ceil(_BATCH_S / max(max(slowest), 1e-6)))) if slowest else None
    return int(context.exchange.share(most))


@contextlib.contextmanager
def bound(cpus: Collection[int]) -> Iterator[None]:
    """Run all threads of this process on `cpus` meanwhile, those of torch's pool too; then each as before."""
    before = {thread: _affinity(thread) for thread in _threads()}
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ProbeError(f"processors {sorted(cpus)[:8]} may not be used: {error.strerror}") from error
    try:
        for thread in before:
            _bind(thread, cpus)
        yield
    finally:
        for thread in _threads():
            _bind(thread, before.get(thread) or before[threading.get_native_id()])


def _threads() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]


def _affinity(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return set()


def _bind(thread: int, cpus: Collection[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cpus)
