"""Ranks of a gloo group that wait in the store for the address of a rank that does not write one."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import JOB
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding

_WAITED = "wait timeout after "
_KEY = "//cpu//"
_LINE = "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/4"


@cause(
    code="world-size-mismatch",
    signs=(_WAITED,),
    doctor="launch.world-agree",
    echoes=("rank-crashed", "gloo-iface", "oom", "fd-limit", "master-unreachable", "dns-unresolved", "port-blocked"),
    bad=lambda: [_LINE, f"[rank3]: {_LINE}"],
    good=lambda: [
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
        "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/info",
        {"rank3": _LINE, "rank4": "ValueError: no data"},
    ],
)
def no_address_of_a_rank(log: JobLog) -> Iterator[Finding]:
    """A rank of a gloo group never wrote its address to the store.

    Right: No rank waited in vain for the address of another.
    Why: each rank of the group writes its address under its number, and reads those of all others. A number that no
    rank writes is one that no process has: a rank was not started, two have one number, or ranks differ in the size of
    the job. A rank that has a log says itself why it did not come.
    Fix: compare WORLD_SIZE and RANK of all ranks; look whether the rank of that number was started, and at its log.
    """
    waits = [(event, rank) for event in log.having(_WAITED) if (rank := _awaited(event)) is not None]
    unsaid = {rank for event, rank in waits if rank not in log.ranks or event.rank == rank}
    for event, rank in waits:
        if rank in unsaid:
            yield said(log, event, f"rank {rank} did not write its address to the store", peers=(rank,), **JOB)


def _awaited(event: LogEvent) -> int | None:
    """Return the rank whose address is the key; None: the key is another."""
    key = between(event.text, "keys: ").split(",")[0].strip()
    rank = number(key.rpartition("/")[2]) if _KEY in key else None
    return rank if rank is not None and key.endswith(f"/{rank}") else None
