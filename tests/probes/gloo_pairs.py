"""One rank of a real gloo group that plays pairs, with something planted; rank 0 prints rows and localisation.

Run by test_pairs.py as ``python gloo_pairs.py RANK HOSTS STORE_FILE PLANTED ONE OTHER``, HOSTS naming the host of each
rank. PLANTED is `silent`: rank ONE says nothing to OTHER; or `flip`: of what ONE sends to OTHER one byte is wrong.
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from fake_pairs import measured

from ncclprobe.localise.pairs.rounds import place_ranks
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.values import asdict
from ncclprobe.probes import pairs, round_robin
from ncclprobe.probes.buffers import Pattern
from ncclprobe.probes.pairs import Kind, PairEndpoint, PairTiming, pattern
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange

RANK, HOSTS, PLANTED = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[4]
RANKS, ONE, OTHER = len(HOSTS), int(sys.argv[5]), int(sys.argv[6])
DEADLINE_S = 1.5
SIZES = (8, 64 << 10)


class SilentEndpoint(PairEndpoint):
    """An endpoint on which rank ONE does not answer OTHER, as behind a path that swallows everything."""

    def measure(self, kind: Kind, first: int, second: int, deadline_s: float) -> PairTiming:
        """Nothing for that pair until its deadline."""
        if RANK == ONE and {first, second} == {ONE, OTHER}:
            time.sleep(deadline_s)
            return PairTiming()
        return super().measure(kind, first, second, deadline_s)


def flipped(src: int, dst: int, device: torch.device) -> Pattern:
    """What is sent, with its sixth byte of each period wrong where it goes from ONE to OTHER."""
    right = pattern(src, dst, device)
    if (RANK, src, dst) == (ONE, ONE, OTHER):
        right.rows[0, 5] ^= 1
    return right


def main() -> None:
    """Play, and print what was found on rank 0; every rank prints whether its endpoint was lost."""
    store = dist.FileStore(sys.argv[3], RANKS)
    identity = RankIdentity("environment", RANK, RANKS, RANK, RANKS, nnodes=1, address="", port=0)
    exchange = Exchange(store, identity, deadline_s=30)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=RANK, world_size=RANKS, timeout=timedelta(seconds=30)
    )
    device = torch.device("cpu")
    endpoint = (SilentEndpoint if PLANTED == "silent" else PairEndpoint)(RANK, device, SIZES)
    if PLANTED == "flip":
        pairs.pattern = flipped
    context = round_robin.PairContext(RANK, endpoint, exchange, lambda phase: None, SIZES, DEADLINE_S)
    instruction: dict[str, object] = {}
    if RANK:
        round_robin.run_worker(context)
    else:
        kept: list[round_robin.Kept] = []
        round_robin.RoundRobin(context, place_ranks(HOSTS), kept.append).run()
        pairs_of_run = measured(HOSTS, kept)
        instruction = {"rows": [asdict(row) for row in pairs_of_run.rows], "found": asdict(localise(pairs_of_run))}
    print(json.dumps({**instruction, "lost": endpoint.lost}))
    exchange.collect(None)


if __name__ == "__main__":
    main()
