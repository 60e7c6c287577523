"""The process group that is measured: opened with a deadline, met in, examined and aborted when a run ends badly."""

import contextlib
import json
import re
import threading
import time
from datetime import timedelta
from typing import Any

from ncclprobe.errors import ProbeError
from ncclprobe.session.ranks.identity import Backend, Seat
from ncclprobe.session.ranks.store import connect, key

_ABORT_S = 2.0
"""For NCCL to give up its communicator, or the recorder to speak. The process ends anyway, and the driver tidies up."""


class Unmet(ProbeError):
    """Ranks that did not come to a barrier, by the word of the rank that waited for them."""

    def __init__(self, why: str, ranks: tuple[int, ...]) -> None:
        super().__init__(why)
        self.ranks = ranks


def open_group(seat: Seat, backend: Backend, timeout_s: float) -> float:
    """Make torch's default group, over a connection of its own; returns the seconds that torch took."""
    import torch.distributed as dist

    store = connect(seat, serve=False, timeout_s=timeout_s)
    started = time.monotonic()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(key(seat, "group"), store),
        rank=seat.rank,
        world_size=seat.ranks,
        timeout=timedelta(seconds=timeout_s),
    )
    return time.monotonic() - started


def meet(backend: Backend, timeout_s: float) -> None:
    """With gloo, meet in the one barrier that knows who is missing. Raises Unmet, on rank 0, naming them."""
    if backend != "gloo":
        return
    import torch.distributed as dist

    try:
        dist.monitored_barrier(timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        named = re.search(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier", text)
        raise Unmet(text, tuple(map(int, named[1].split(","))) if named else ()) from error


def in_flight() -> str:
    """What torch's flight recorder has of the call that this process is in; empty where it knows of none.

    The recorder has a lock of its own, so it is given a moment, and no more.
    """
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(_recorded()), daemon=True)
    thread.start()
    thread.join(_ABORT_S)
    return said[0] if said else ""


def _recorded() -> str:
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return ""
    with contextlib.suppress(RuntimeError, ValueError):
        return last_open(json.loads(dump()))
    return ""


def last_open(record: dict[str, Any]) -> str:
    """The last call of a flight recorder's dump that was handed over and has not returned."""
    entries = [entry for entry in record.get("entries", ()) if not entry.get("retired", True)]
    if not entries:
        return ""
    last = entries[-1]
    name, number = last.get("profiling_name", "a call"), last.get("collective_seq_id", "?")
    return f"{name}, call {number} of its group, sizes {last.get('input_sizes')}, is {last.get('state')} and not over"


def abort(backend: Backend) -> None:
    """Give up NCCL's communicator, so that a stuck kernel keeps neither this process nor its peers.

    Only NCCL can (torch's _abort_process_group says so), and it may hang itself: no longer than a moment.
    """
    if backend != "nccl":
        return
    import torch.distributed as dist

    def give_up() -> None:
        with contextlib.suppress(RuntimeError, AttributeError, ValueError):
            dist.group.WORLD.abort()

    thread = threading.Thread(target=give_up, daemon=True)
    thread.start()
    thread.join(_ABORT_S)
