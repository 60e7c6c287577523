"""Publish the address of rank 0's own listener in torchrun's store, if torchrun itself has MASTER_PORT.

Uses torch's TCPStore as a client without a world size, which waits for no worker, under a prefix of our own. Its own
timeouts do not hold against a stopped server, so it runs on a thread that is abandoned at the deadline.
"""

import asyncio
import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError

T = TypeVar("T")
_POLL_S = 0.1
_LEAST_S = 1.0  # a TCPStore with less may give up within its own greeting


class StoreError(NcclprobeError):
    """torchrun's store did not serve. ``kind``: refused, silent (until the deadline), empty (no note), garbled, or
    torch (not
    importable).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def announce(address: str, port: int, attempt: str, note: Mapping[str, Any], deadline: float) -> None:
    """Store `note` (addresses, port, token) for the other nodes of this `attempt`. Raises StoreError."""
    text = json.dumps(note)
    await _served(address, port, deadline, lambda store: store.set(_key(attempt), text))


async def look_up(address: str, port: int, attempt: str, deadline: float) -> dict[str, Any]:
    """Return rank 0's note; wait for it until `deadline`. Raises StoreError."""
    raw = await _served(address, port, deadline, lambda store: _polled(store, _key(attempt), deadline))
    with contextlib.suppress(ValueError, RecursionError):
        if len(raw) <= bounds.STORE_NOTE_BYTES and isinstance(note := json.loads(raw), dict):
            return note
    raise StoreError("garbled", f"the store has a different value for {_key(attempt)}")


def _key(attempt: str) -> str:
    return f"ncclprobe/doctor/{attempt}/coordinator"


def _polled(store: Any, key: str, deadline: float) -> bytes:
    while not store.check([key]):
        if time.monotonic() + _POLL_S > deadline:
            raise StoreError("empty", f"rank 0 set no value for {key}")
        time.sleep(_POLL_S)
    return bytes(store.get(key))


async def _served(address: str, port: int, deadline: float, work: Callable[[Any], T]) -> T:
    where = f"the store at {address} port {port}"
    try:
        return await run_in_thread(lambda: work(_client(address, port, deadline)), deadline)
    except (TimeoutError, asyncio.TimeoutError):
        raise StoreError("silent", f"{where}: no answer") from None
    except ImportError as error:
        raise StoreError("torch", f"cannot import torch: {error}") from None
    except (RuntimeError, OSError, ValueError) as error:  # torch.distributed.DistError is a RuntimeError
        words = str(error).partition("\n")[0] or repr(error)
        raise StoreError("refused", f"{where}: {words}") from None


def _client(address: str, port: int, deadline: float) -> Any:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # it prints a C++ stack trace for every refused connection
    import torch.distributed as dist

    left_s = max(_LEAST_S, deadline - time.monotonic())
    return dist.TCPStore(
        address,
        port,
        world_size=None,
        is_master=False,
        timeout=datetime.timedelta(seconds=left_s),
        wait_for_workers=False,
    )
