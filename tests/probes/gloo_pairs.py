"""One rank of a real gloo group that plays pairs, two of which never get through; rank 0 prints rows and localisation.

Run by test_pairs.py as ``python gloo_pairs.py RANK RANKS STORE_FILE SILENT DEAF``: rank SILENT says nothing to DEAF.
"""

import json
import sys
import time
from dataclasses import asdict
from datetime import timedelta

import torch
import torch.distributed as dist

from ncclprobe.paired import PairRow
from ncclprobe.probes import tournament
from ncclprobe.probes.pairs import Kind, Timed, Wire
from ncclprobe.session.seat import Seat
from ncclprobe.session.store import Exchange

RANK, RANKS, SILENT, DEAF = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
DEADLINE_S = 1.5
SIZES = (8, 64 << 10)


class SilentWire(Wire):
    """A wire on which rank SILENT does not answer DEAF, as behind a path that swallows everything."""

    def play(self, kind: Kind, first: int, second: int, deadline_s: float) -> Timed:
        """Nothing for that pair until its deadline."""
        if RANK == SILENT and {first, second} == {SILENT, DEAF}:
            time.sleep(deadline_s)
            return Timed()
        return super().play(kind, first, second, deadline_s)


def main() -> None:
    """Play, and print what was found on rank 0; every rank prints whether its wire was lost."""
    store = dist.FileStore(sys.argv[3], RANKS)
    seat = Seat("manual", RANK, RANKS, RANK, RANKS, nnodes=1, address="", port=0)
    exchange = Exchange(store, seat, deadline_s=30)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=RANK, world_size=RANKS, timeout=timedelta(seconds=30)
    )
    wire = SilentWire(RANK, torch.device("cpu"), SIZES)
    table = tournament.Table(RANK, wire, exchange, lambda phase: None, SIZES, DEADLINE_S)
    said: dict[str, object] = {}
    if RANK:
        tournament.follow(table)
    else:
        rows: list[PairRow] = []
        found = tournament.lead(table, ["h"] * RANKS, rows.append)
        said = {"rows": [asdict(row) for row in rows], "found": asdict(found)}
    print(json.dumps({**said, "lost": wire.lost}))
    exchange.collect(None)


if __name__ == "__main__":
    main()
