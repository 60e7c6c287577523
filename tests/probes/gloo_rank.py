"""One rank of a real gloo group on this machine: measures plans, honest and sabotaged, and prints one JSON document.

Run by test_gloo.py as ``python gloo_rank.py RANK RANKS STORE_FILE``.
"""

import itertools
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ncclprobe.host.live import LiveHost
from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from ncclprobe.model.values import asdict
from ncclprobe.probes import collectives
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.sweep import run
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange

KiB = 1 << 10
RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
Sabotage = tuple[object, str, Callable[..., Any]]


def plan(**changes: Any) -> Plan:
    """A sweep that takes milliseconds."""
    small: dict[str, Any] = {"sizes": (8, 1000, 64 * KiB), "iters": 2, "warmup": 1, "footprint_bytes": 256 * KiB}
    return Plan(rank=RANK, ranks=RANKS, backend="gloo", **(small | changes))


def one_rank_is_missing(tensor: torch.Tensor, op: Any, _group: None) -> None:
    """The last rank's contribution to a sum is lost."""
    if RANK == RANKS - 1:
        tensor.zero_()
    dist.distributed_c10d.all_reduce(tensor, op)


def shares_in_reverse(
    output: torch.Tensor, own: torch.Tensor, _group: None, original: Callable[..., Any] = collectives._all_gather
) -> None:
    """All shares arrive, in the wrong order."""
    original(output, own)
    output.copy_(output.view(RANKS, -1).flip(0).flatten())


def share_of_a_neighbour(
    output: torch.Tensor,
    whole: torch.Tensor,
    op: Any,
    _group: None,
    original: Callable[..., Any] = collectives._reduce_scatter,
) -> None:
    """Each rank ends with the share of the one before."""
    original(output, whole.roll(output.numel()), op)


def nothing_is_exchanged(output: torch.Tensor, own: torch.Tensor, group: None) -> None:
    """Every rank keeps what it had."""
    output.copy_(own)


def from_another_root(tensor: torch.Tensor, root: int, _group: None) -> None:
    """Rank 1 sends instead of the root."""
    dist.distributed_c10d.broadcast(tensor, 1)


def one_element_late(tensor: torch.Tensor, root: int, op: Any, _group: None) -> None:
    """The result lies one element too far."""
    dist.distributed_c10d.reduce(tensor, root, op)
    tensor.copy_(tensor.roll(1))


def gathered_in_reverse(own: torch.Tensor, shares: list[torch.Tensor] | None, root: int, _group: None) -> None:
    """The root puts the shares in the wrong order."""
    dist.distributed_c10d.gather(own, shares[::-1] if shares else None, root)


def scattered_in_reverse(own: torch.Tensor, shares: list[torch.Tensor] | None, root: int, _group: None) -> None:
    """The root deals the shares in the wrong order."""
    dist.distributed_c10d.scatter(own, shares[::-1] if shares else None, root)


def received_without_its_last_element(batch: list[dist.P2POp]) -> list[Any]:
    """The last element arrives as zero on rank 0."""
    works = dist.distributed_c10d.batch_isend_irecv(batch)
    for work in works:
        work.wait()
    if RANK == 0:
        batch[1].tensor[-1] = 0
    return []


SABOTAGES: dict[str, Sabotage] = {
    "all_reduce": (dist, "all_reduce", one_rank_is_missing),
    "all_gather": (collectives, "_all_gather", shares_in_reverse),
    "reduce_scatter": (collectives, "_reduce_scatter", share_of_a_neighbour),
    "all_to_all": (dist, "all_to_all_single", nothing_is_exchanged),
    "broadcast": (dist, "broadcast", from_another_root),
    "reduce": (dist, "reduce", one_element_late),
    "gather": (dist, "gather", gathered_in_reverse),
    "scatter": (dist, "scatter", scattered_in_reverse),
    "sendrecv": (dist, "batch_isend_irecv", received_without_its_last_element),
}


def main() -> None:
    """Measure everything and print it."""
    store = dist.FileStore(sys.argv[3], RANKS)
    identity = RankIdentity("environment", RANK, RANKS, RANK, RANKS, nnodes=1, address="", port=0)
    host = LiveHost((), lambda name: False)
    exchange = Exchange(store, identity, deadline_s=30)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=RANK, world_size=RANKS, timeout=timedelta(seconds=30)
    )

    def rows(plan: Plan) -> list[dict[str, Any]]:
        return [asdict(row) for row in run(plan, exchange, lambda phase: None, host=host)]

    said: dict[str, Any] = {"sweep": rows(plan(ops=tuple(OPS), iters=4))}
    brief: dict[str, Any] = {"sizes": (4 * KiB,), "iters": 1, "warmup": 0, "batches": 1, "rounds": 0}
    said["types"] = [row for dtype in DTYPES for row in rows(plan(ops=tuple(OPS), dtype=dtype, **brief))]
    reductions = tuple(op.name for op in OPS.values() if op.reduces)
    said["reductions"] = [
        row
        for redop, dtype in itertools.product(REDOPS, DTYPES)
        for row in rows(plan(ops=reductions, dtype=dtype, redop=redop, **brief))
    ]
    said["adaptive"] = rows(plan(ops=("all_reduce", "broadcast"), precision=0.3, budget_s=0.5, dtype="float64"))
    said["sabotaged"] = []
    for name, (where, attribute, replacement) in SABOTAGES.items():
        with patch.object(where, attribute, replacement):
            said["sabotaged"] += rows(plan(ops=(name,), sizes=(64 * KiB,)))
    dist.barrier()
    print(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
