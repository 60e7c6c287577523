"""``ncclprobe affinity``: what it costs that ranks run where they run, and the words that put them where they should.

A rank with a GPU should run on the processors of the GPU's NUMA node, one without on those of a node of its own share,
and any of them will do: pinning to one processor is only as good as the guess that nothing else runs there.
"""

import os
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

from ncclprobe import stats
from ncclprobe.host import Host
from ncclprobe.model.traffic import AffinityRow
from ncclprobe.probes.plan import Exchange, SetPhase
from ncclprobe.session.measure import numa as places
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.topology.node import ranges

ALREADY = "every rank already has the processors that its place asks for, so there was nothing to compare"


def measured(
    plan: Any, seat: Seat, name: str, host: Host, exchange: Exchange, beat: SetPhase
) -> tuple[tuple[AffinityRow, ...], str]:
    """A row for each rank whose processors should be others, and a remark where none; on rank 0, else nothing.

    All ranks whose processors should be others change together. Raises ProbeError.
    """
    from ncclprobe.probes.affinity import alternate

    beat("affinity, where each rank should run")
    nodes, mine = places.numa_nodes(host), set(os.sched_getaffinity(0))
    node = _node(plan.device, seat, host, sorted(nodes))
    better = None if set(nodes[node]) == mine else nodes[node]
    cards = exchange.collect({"node": name, "local": seat.local_rank, "numa": node, "wrong": better is not None})
    if not exchange.share(any(card["wrong"] for card in cards) if cards else None):
        return (), ALREADY
    sides = alternate(plan, better, exchange, beat)
    words = "" if better is None else ranges(better)
    told = exchange.collect([ranges(mine), words, len(nodes), *sides])
    if not told or not cards:
        return (), ""
    return tuple(
        row(rank, card["node"], cpus, wanted, as_is, changed, how(card, cards, wanted, number))
        for rank, (card, (cpus, wanted, number, as_is, changed)) in enumerate(zip(cards, told, strict=True))
        if wanted
    ), ""


def _node(device: str, seat: Seat, host: Host, nodes: Sequence[int]) -> int:
    """The NUMA node of the rank's GPU; else its share of the nodes, local rank after local rank."""
    of_gpu = places.of_gpu(device, host, nodes) if device.startswith("cuda") else None
    return of_gpu if of_gpu is not None else nodes[seat.local_rank * len(nodes) // max(1, seat.local_ranks)]


def row(
    rank: int, node: str, cpus: str, better: str, as_is: Sequence[float], changed: Sequence[float], words: str
) -> AffinityRow:
    """From the seconds of each round: medians, and the median of the rounds' ratios with its interval."""
    ratios = [first / last for first, last in zip(as_is, changed, strict=True)]
    interval = stats.median_interval(ratios) if len(ratios) >= stats.MIN_SAMPLES else None
    before_us, after_us = (round(median(each) * 1e6, 3) for each in (as_is, changed))
    rounded = None if interval is None else (round(interval[0], 4), round(interval[1], 4))
    return AffinityRow(rank, node, cpus, better, before_us, after_us, round(median(ratios), 4), rounded, words)


def how(card: dict[str, Any], cards: Collection[dict[str, Any]], cpus: str, nodes: int) -> str:
    """What to type so that a rank has these processors; of Slurm, for all ranks of its node."""
    if nodes < 2:
        return f"numactl --physcpubind={cpus} PROGRAM, or srun --cpu-bind=none with all of the node's processors (-c)"
    numa = card["numa"]
    here = sorted((each for each in cards if each["node"] == card["node"]), key=lambda each: int(each["local"]))
    domains = ",".join(str(each["numa"]) for each in here)
    return f"numactl --cpunodebind={numa} --membind={numa} PROGRAM, or srun --cpu-bind=map_ldom:{domains}"
