"""The process group that is measured: open it with a deadline, wait in a barrier, examine and abort it."""

import contextlib
import json
import re
import threading
import time
from datetime import timedelta
from typing import Any

from ncclprobe.errors import ProbeError
from ncclprobe.session.ranks.identity import Backend, RankIdentity
from ncclprobe.session.ranks.store import connect, key

_ABORT_S = 2.0
"""For NCCL to abort its communicator, or the flight recorder to answer. The process ends all the same."""


class MissedBarrier(ProbeError):
    """Ranks that did not come to a barrier, as the rank that waited for them reports."""

    def __init__(self, why: str, ranks: tuple[int, ...]) -> None:
        super().__init__(why)
        self.ranks = ranks


def open_group(identity: RankIdentity, backend: Backend, timeout_s: float) -> float:
    """Make torch's default group, over a connection of its own; return the seconds that torch took."""
    import torch.distributed as dist

    store = connect(identity, serve=False, timeout_s=timeout_s)
    started = time.monotonic()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(key(identity, "group"), store),
        rank=identity.rank,
        world_size=identity.ranks,
        timeout=timedelta(seconds=timeout_s),
    )
    return time.monotonic() - started


def barrier(backend: Backend, timeout_s: float) -> None:
    """Wait, with gloo, in the barrier that knows which ranks are missing. Raises MissedBarrier, on rank 0."""
    if backend != "gloo":
        return
    import torch.distributed as dist

    try:
        dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        named = re.search(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier", text)
        raise MissedBarrier(text, tuple(map(int, named[1].split(","))) if named else ()) from error


def in_flight() -> str:
    """Return what torch's flight recorder has of the call that this process is in; empty where it has none.

    The recorder has a lock of its own, so wait for it only a moment.
    """
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_recorded()), daemon=True)
    thread.start()
    thread.join(_ABORT_S)
    return found[0] if found else ""


def _recorded() -> str:
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return ""
    with contextlib.suppress(RuntimeError, ValueError):
        return last_open(json.loads(dump()))
    return ""


def last_open(record: dict[str, Any]) -> str:
    """Describe the last call in a flight recorder's dump that was launched and has not returned."""
    entries = [entry for entry in record.get("entries", ()) if not entry.get("retired", True)]
    if not entries:
        return ""
    last = entries[-1]
    name, number = last.get("profiling_name", "a call"), last.get("collective_seq_id", "?")
    return f"{name}, call {number} of its group, sizes {last.get('input_sizes')}, is {last.get('state')} and not over"


def abort(backend: Backend, group: Any = None) -> None:
    """Abort NCCL's communicator, of `group` or the default one, so that a stuck kernel keeps no process.

    Only NCCL can (torch's _abort_process_group says so). The abort itself may hang, so wait only a moment.
    """
    if backend != "nccl":
        return
    import torch.distributed as dist

    def abort_group() -> None:
        with contextlib.suppress(RuntimeError, AttributeError, ValueError):
            (group or dist.group.WORLD).abort()

    thread = threading.Thread(target=abort_group, daemon=True)
    thread.start()
    thread.join(_ABORT_S)
