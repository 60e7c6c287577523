"""One rank of a real gloo group that climbs a ladder; rank 0 prints the rungs.

Run by test_ladder.py as ``python gloo_ladder.py RANK HOSTS STORE_FILE``, HOSTS naming the host of each rank.
"""

import json
import sys
from datetime import timedelta

import torch.distributed as dist

from ncclprobe.model.training import plan
from ncclprobe.model.values import asdict
from ncclprobe.probes.plan import Plan
from ncclprobe.session.measure.ladder import LadderSizes, climb
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange

RANK, HOSTS = int(sys.argv[1]), sys.argv[2].split(",")
RANKS = len(HOSTS)


def main() -> None:
    """Climb, and print the rungs on rank 0."""
    store = dist.FileStore(sys.argv[3], RANKS)
    identity = RankIdentity("environment", RANK, RANKS, RANK, RANKS, nnodes=1, address="", port=0)
    exchange = Exchange(store, identity, deadline_s=60)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=RANK, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    asked = Plan(ops=("all_reduce",), sizes=(64 << 10,), rank=RANK, ranks=RANKS, backend="gloo", nodes=2)
    sizes = LadderSizes(step_bytes=64 << 10, nbytes=64 << 10, budget_s=4.0)
    rows = climb(asked, plan(HOSTS, pairs=True), sizes, 60.0, exchange, lambda phase: None)
    print(json.dumps([asdict(row) for row in rows]))
    exchange.collect(None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
