"""The measured process group: open it with a deadline, wait in a barrier, examine and abort it."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from ncclprobe.facts.files.flight_child import Refusing, loaded
from ncclprobe.model.errors import NCCL_NO_MEMORY, OUT_OF_MEMORY, ProbeError, reason
from ncclprobe.model.units import size
from ncclprobe.session.ranks.identity import Backend, RankIdentity
from ncclprobe.session.ranks.store import connect, key

_DUMPS: dict[Backend, tuple[str, ...]] = {
    "nccl": ("_dump_nccl_trace_json", "_dump_nccl_trace", "_dump_fr_trace_json"),
    "gloo": ("_dump_fr_trace_json",),
}
"""torch's dump functions, in order of preference: NCCL's calls have their own recorder, written as JSON since 2.5 and
before that as a pickle; gloo and other backends are in a general one, since 2.8.
"""
_SEQ = ("collective_seq_id", "p2p_seq_id")
ABORT_S = 2.0
"""How long NCCL may take to abort its communicator, or the flight recorder to answer. The process exits in any case."""

_FULL_BYTES = 1 << 30
"""If less than this is free, NCCL's allocation failed for lack of memory: all its buffers need less."""


class MissedBarrier(ProbeError):
    """Ranks that did not reach a barrier, as reported by the rank that waited for them."""

    def __init__(self, why: str, ranks: tuple[int, ...]) -> None:
        super().__init__(why)
        self.ranks = ranks


def open_group(identity: RankIdentity, backend: Backend, timeout_s: float) -> float:
    """Create torch's default group, over its own connection; return the seconds that torch took."""
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


def in_flight(backend: Backend) -> str:
    """Return torch's flight record of the call that this process is in; empty if there is none.

    The recorder has its own lock, so this waits only briefly.
    """
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_recorded(backend)), daemon=True)
    thread.start()
    thread.join(ABORT_S)
    return found[0] if found else ""


def _recorded(backend: Backend) -> str:
    from torch._C import _distributed_c10d as c10d

    for name in filter(partial(hasattr, c10d), _DUMPS[backend]):
        with contextlib.suppress(RuntimeError, Refusing):
            if found := stuck(loaded(getattr(c10d, name)())):
                return found
    return ""


def stuck(record: Mapping[str, Any]) -> str:
    """Describe the stuck call of a flight recorder's dump: the first that was made after the last that ended.

    Calls after it are queued. Before it, torch leaves the parts of a batch of sends open forever.
    """
    entries = record.get("entries", ())
    over = [number for number, entry in enumerate(entries) if entry.get("retired") or entry.get("state") == "completed"]
    rest = entries[over[-1] + 1 if over else 0 :]
    if not rest:
        return ""
    first = rest[0]
    name, number = first.get("profiling_name", "a call"), first.get(_SEQ[bool(first.get("is_p2p"))], "?")
    more = f"; {len(rest) - 1} more wait behind it" if len(rest) > 1 else ""
    sizes, state = first.get("input_sizes"), first.get("state")
    return f"{name}, call {number} of its group, sizes {sizes}, is {state} and not finished{more}"


def why(error: BaseException, backend: Backend | None, device: int) -> str:
    """Return the text of `error` and, if NCCL ran out of memory, how much GPU `device` has free."""
    text = reason(error)
    of_nccl = any(sign in text for sign in NCCL_NO_MEMORY)
    if backend != "nccl" or "are free" in text or not (of_nccl or OUT_OF_MEMORY in text):
        return text
    import torch

    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # CUDA's: the GPU, or this process's context on it, is lost
        return text
    full = of_nccl and OUT_OF_MEMORY not in text and free < _FULL_BYTES
    return f"{OUT_OF_MEMORY * full}{text}; of the {size(total)} of GPU {device} {size(free)} are free"


def aborter() -> Callable[[], object] | None:
    """Return torch's function for aborting the communicators of NCCL's default group; None: it has none.

    The group's own method appeared in 2025. Until then its backend has one, and in 2.4, which has no method of that
    name, its shutdown aborts.
    """
    import torch
    import torch.distributed as dist

    whole: Any = dist.group.WORLD
    if hasattr(whole, "abort"):
        found: Callable[[], object] = whole.abort
        return found
    backend = whole._get_backend(torch.device("cuda"))
    return next((getattr(backend, name) for name in ("abort", "_abort", "_shutdown") if hasattr(backend, name)), None)


def abort(backend: Backend) -> None:
    """Abort NCCL's communicator, so that a stuck kernel keeps no process.

    Only NCCL can (see torch's _abort_process_group). The abort itself may hang, so this waits only briefly.
    """
    if backend != "nccl":
        return

    def abort_group() -> None:
        with contextlib.suppress(RuntimeError, ValueError, AttributeError):  # it is over, or was never made
            if way := aborter():
                way()

    thread = threading.Thread(target=abort_group, daemon=True)
    thread.start()
    thread.join(ABORT_S)
