"""``ncclprobe affinity``: the cost of the processors that ranks run on, and the options that place them better.

A rank with a GPU should run on the processors of the GPU's NUMA node, one without a GPU on those of its share of the
nodes; any of them will do: pinning to one processor only helps where nothing else runs there.
"""

import os
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

from ncclprobe import stats
from ncclprobe.host import Host
from ncclprobe.model.traffic import AffinityRow
from ncclprobe.probes.plan import Exchange, SetPhase
from ncclprobe.session.measure import numa
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.topology.node import ranges

ALREADY = "every rank already has the processors of its NUMA node, so there was nothing to compare"


def measured(
    plan: Any, identity: RankIdentity, name: str, host: Host, exchange: Exchange, set_phase: SetPhase
) -> tuple[tuple[AffinityRow, ...], str]:
    """Return a row for each rank that should have other processors, and a note where there is none; on rank 0.

    All such ranks change their processors at the same time. Raises ProbeError.
    """
    from ncclprobe.probes.affinity import alternate

    set_phase("affinity, NUMA node of each rank")
    nodes, mine = numa.numa_nodes(host), set(os.sched_getaffinity(0))
    node = _node(plan.device, identity, host, sorted(nodes))
    better = None if set(nodes[node]) == mine else nodes[node]
    infos = exchange.collect({"node": name, "local": identity.local_rank, "numa": node, "wrong": better is not None})
    if not exchange.share(any(info["wrong"] for info in infos) if infos else None):
        return (), ALREADY
    sides = alternate(plan, better, exchange, set_phase)
    words = "" if better is None else ranges(better)
    received = exchange.collect([ranges(mine), words, len(nodes), *sides])
    if not received or not infos:
        return (), ""
    return tuple(
        row(rank, info["node"], cpus, wanted, as_is, changed, how(info, infos, wanted, number))
        for rank, (info, (cpus, wanted, number, as_is, changed)) in enumerate(zip(infos, received, strict=True))
        if wanted
    ), ""


def _node(device: str, identity: RankIdentity, host: Host, nodes: Sequence[int]) -> int:
    """Return the NUMA node of the rank's GPU, else its share of the nodes by local rank."""
    of_gpu = numa.of_gpu(device, host, nodes) if device.startswith("cuda") else None
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
