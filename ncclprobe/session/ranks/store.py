"""The job's own store, and how the ranks exchange their results through it: never over the group that is measured.

The store is torch's rendezvous, as in any torch job: under torchrun the agent's (we are a client only), otherwise
rank 0 serves it on MASTER_PORT. Everything of ours lies under one key prefix, and values are JSON.
"""

import json
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from ncclprobe.errors import ProbeError, UsageError
from ncclprobe.session.ranks.identity import Seat

MAX_VALUE_BYTES = 8 << 20  # torch's TCPStore drops the connection above this (seen with torch 2.13)
_POLL_S, _FIRST_POLL_S = 0.002, 0.0001  # soon at first, for answers decide between batches; then sparing the server
_LONG_S, _LONG_POLL_S = 1.0, 0.02  # who has waited so long waits for a judgement, and would load the network for it
_RESOLVE_S = 0.5


class Store(Protocol):
    """What is used of torch's TCPStore."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


def resolve(seat: Seat) -> None:
    """Wait until the name of rank 0's host means something here, as a job's torch does: a pod's name comes late.

    The caller is watched by a thread that ends the wait.
    """
    while True:
        try:
            socket.getaddrinfo(seat.address, seat.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            time.sleep(_RESOLVE_S)
        else:
            return


def connect(seat: Seat, *, serve: bool, timeout_s: float) -> Any:
    """A new connection to the job's store (clients are not safe across threads: one each); `serve`: host it as well.

    Raises UsageError where the port is taken, ProbeError where nobody answers within `timeout_s`. A server that is
    stopped can block longer than that: the caller is watched by a thread that touches no store.
    """
    from torch.distributed import TCPStore

    try:
        return TCPStore(
            seat.address,
            seat.port,
            is_master=serve,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        where = f"{seat.address}:{seat.port}"
        if "EADDRINUSE" in str(error):
            raise UsageError(f"port {seat.port} on this host is in use; set MASTER_PORT to a free one") from None
        text = str(error).partition("\n")[0]
        raise ProbeError(f"the store of rank 0 at {where} does not answer: {text}") from None


def key(seat: Seat, name: str) -> str:
    """The store key for `name`: our own prefix, and one per attempt of torchrun."""
    return f"ncclprobe/{seat.attempt}/{name}"


class Exchange:
    """Ranks hand their numbers to rank 0, and rank 0 its decisions to all, over the store: never the measured group.

    Each wait has `deadline_s` and names the ranks that did not answer. Every rank must make the same calls in order.
    Rank 0 may go on without some: nobody waits again for who is set `aside`, and whatever such a rank still says is
    not heard.
    """

    def __init__(self, store: Store, seat: Seat, deadline_s: float) -> None:
        self._store, self._seat, self._deadline_s = store, seat, deadline_s
        self._round = 0
        self._shared: list[str] = []  # which all have read once all have answered again
        self.aside: set[int] = set()
        """On rank 0: the ranks that did not answer when :meth:`gather` waited for them."""

    def collect(self, value: Any) -> list[Any] | None:
        """All ranks' JSON values on rank 0, by rank; None elsewhere. Of a rank set aside, None."""
        names = self._answer(value)
        if self._seat.rank:
            return None
        self._wait(list(names.values()))
        heard = self._take(names)
        return [heard.get(rank) for rank in range(self._seat.ranks)]

    def gather(
        self, value: Any, deadline_s: float, gone: Callable[[], Collection[int]] = tuple
    ) -> dict[int, Any] | None:
        """As :meth:`collect`, of the ranks that answer within `deadline_s`; the others are set aside, and so is at once
        who is `gone` by then without an answer.
        """
        names = self._answer(value)
        if self._seat.rank:
            return None
        late, pause_s = time.monotonic() + deadline_s, _FIRST_POLL_S
        while not self._store.check(list(names.values())):
            over = time.monotonic() > late
            for rank in [each for each in names if over or each in gone()]:
                if not self._store.check([names[rank]]):
                    self.aside.add(rank)
                    del names[rank]
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
        return self._take(names)

    def _answer(self, value: Any) -> dict[int, str]:
        """Give this rank's answer; the keys under which those of all lie that are not set aside."""
        names = {rank: self._name(rank) for rank in range(self._seat.ranks) if rank not in self.aside}
        self._put(self._name(self._seat.rank), value)
        self._round += 1
        return names

    def _take(self, names: Mapping[int, str]) -> dict[int, Any]:
        texts = self._store.multi_get(list(names.values()))
        for name in (*names.values(), *self._shared):
            self._store.delete_key(name)
        self._shared.clear()
        return {rank: json.loads(text) for rank, text in zip(names, texts, strict=True)}

    def share(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank; what the others pass is not looked at."""
        name = self._name(0)
        self._round += 1
        if self._seat.rank == 0:
            self._put(name, value)
            self._shared.append(name)
            return value
        self._wait([name])
        return json.loads(self._store.get(name))

    def _name(self, rank: int) -> str:
        return key(self._seat, f"exchange/{self._round}/{rank}")

    def _put(self, name: str, value: Any) -> None:
        text = json.dumps(value, allow_nan=False)
        if len(text) >= MAX_VALUE_BYTES:
            raise ProbeError(f"{len(text)} bytes are too many for one value of torch's store: use fewer --batches")
        self._store.set(name, text)

    def _wait(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        began, pause_s = clock(), _FIRST_POLL_S
        while not self._store.check(list(names)):
            waited_s = clock() - began
            if waited_s > self._deadline_s:
                silent = [name.rpartition("/")[2] for name in names if not self._store.check([name])]
                raise ProbeError(f"no answer from rank {', '.join(silent)} within {self._deadline_s:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S if waited_s < _LONG_S else _LONG_POLL_S)
