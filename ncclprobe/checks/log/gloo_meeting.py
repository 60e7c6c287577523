"""Ranks of a gloo group that wait in the store for the address of a rank that does not write one."""

from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import JOB, of_no_rank
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding

_WAITED = "wait timeout after "
_KEY = "//cpu//"
_LINE = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/4"


@cause(
    code="world-size-mismatch",
    signs=(_WAITED, "clients joined"),
    doctor="launch.world-agree",
    echoes=("rank-crashed", "gloo-iface", "oom", "fd-limit", "master-unreachable", "dns-unresolved", "port-blocked"),
    bad=lambda: [_LINE],
    good=lambda: ["torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/info"],
)
def no_address_of_a_rank(log: JobLog) -> Iterator[Finding]:
    """A rank of a gloo group never wrote its address to the store.

    Right: Every rank found the addresses of the others.
    Why: each rank of the group writes its address under its number, and reads those of all others. A number that no
    rank writes is one that no process has: a rank was not started, two have one number, or ranks differ in the size of
    the job. A rank that has a log says itself why it did not come.
    Fix: compare WORLD_SIZE and RANK of all ranks; look whether the rank of that number was started, and at its log.
    """
    if next(log.having("clients joined"), None):
        return  # the store's own rank waits for the others, and writes no address before they have come
    waits = [(event, rank) for event in log.having(_WAITED) if (rank := _awaited(event)) is not None]
    unsaid = {rank for event, rank in waits if rank not in log.ranks or event.rank == rank}
    waiters = Counter(rank for _, rank in waits)
    for event, rank in waits:
        if rank in unsaid:
            message = f"rank {rank} did not write its address to the store"
            told = said(log, event, message, ranks=(rank,), peers=(rank,), **JOB)
            yield told if waiters[rank] > 1 else of_no_rank(told)  # a rank that alone waits may be wrong of the size


def _awaited(event: LogEvent) -> int | None:
    """Return the rank whose address is the key; None: the key is another."""
    key = between(event.text, "keys: ").split(",")[0].strip()
    rank = number(key.rpartition("/")[2]) if _KEY in key else None
    return rank if rank is not None and key.endswith(f"/{rank}") else None
