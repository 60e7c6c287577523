"""The job's own store, over which the ranks exchange their results: never over the measured group.

The store is torch's rendezvous, as in any torch job: under torchrun the agent's (we are only a client), otherwise rank
0 serves it on MASTER_PORT. All our keys have one prefix, and values are JSON.
"""

import json
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from ncclprobe.model import bounds
from ncclprobe.model.errors import ProbeError, UsageError
from ncclprobe.session.ranks.identity import RankIdentity

_POLL_S, _FIRST_POLL_S = 0.002, 0.0001  # soon at first, for answers decide between batches; then sparing the server
_LONG_S, _LONG_POLL_S = 1.0, 0.02  # so long a wait is for a decision; polling it often would load the network
_RESOLVE_S = 0.5


class Store(Protocol):
    """The methods of torch's TCPStore in use."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


def resolve(identity: RankIdentity) -> None:
    """Wait until the name of rank 0's host resolves here, as torch does: a pod gets its name after its start.

    The watchdog's signal thread ends the wait.
    """
    while True:
        try:
            socket.getaddrinfo(identity.address, identity.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            time.sleep(_RESOLVE_S)
        else:
            return


def connect(identity: RankIdentity, *, serve: bool, timeout_s: float) -> Any:
    """Connect to the job's store; with `serve`, host it as well. Each thread needs its own connection.

    Raises UsageError if the port is taken, ProbeError if the store does not answer within `timeout_s`. A stopped server
    can block for longer: the watchdog's signal thread, which uses no store, ends the process then.
    """
    from torch.distributed import TCPStore

    try:
        return TCPStore(
            identity.address,
            identity.port,
            is_master=serve,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        where = f"{identity.address}:{identity.port}"
        if "EADDRINUSE" in str(error):
            raise UsageError(f"port {identity.port} on this host is in use; set MASTER_PORT to a free one") from None
        text = str(error).partition("\n")[0]
        raise ProbeError(f"the store of rank 0 at {where} does not answer: {text}") from None


def free_port() -> int:
    """Return a port of this host that was just free."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def key(identity: RankIdentity, name: str) -> str:
    """Return the store key for `name`: our prefix, and one prefix per attempt of torchrun."""
    return f"ncclprobe/{identity.attempt}/{name}"


class Exchange:
    """Values from the ranks to rank 0, and decisions of rank 0 to all, over the store: never over the measured group.

    Each wait takes at most `deadline_s` and names the ranks that did not answer. Every rank must make the same calls in
    order. Rank 0 may continue without some ranks: it does not wait for `excluded` ones again, and ignores what they
    still send.
    """

    def __init__(self, store: Store, identity: RankIdentity, deadline_s: float) -> None:
        self._store, self._identity, self._deadline_s = store, identity, deadline_s
        self._round = 0
        self._shared: list[str] = []  # which all have read once all have answered again
        self.excluded: set[int] = set()
        """On rank 0: the ranks that did not answer :meth:`gather`."""

    def collect(self, value: Any) -> list[Any] | None:
        """Return all ranks' JSON values on rank 0, by rank (None for an excluded one); None on every other rank."""
        names = self._send(value)
        if self._identity.rank:
            return None
        self._wait(list(names.values()))
        received = self._take(names)
        return [received.get(rank) for rank in range(self._identity.ranks)]

    def gather(
        self, value: Any, deadline_s: float, gone: Callable[[], Collection[int]] = tuple
    ) -> dict[int, Any] | None:
        """Collect the values of the ranks that answer within `deadline_s`, and exclude the others.

        A rank that is `gone` and has not answered is excluded immediately.
        """
        names = self._send(value)
        if self._identity.rank:
            return None
        late, pause_s = time.monotonic() + deadline_s, _FIRST_POLL_S
        while not self._store.check(list(names.values())):
            over = time.monotonic() > late
            for rank in [each for each in names if over or each in gone()]:
                if not self._store.check([names[rank]]):
                    self.excluded.add(rank)
                    del names[rank]
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)
        return self._take(names)

    def _send(self, value: Any) -> dict[int, str]:
        """Store this rank's value; return the keys of all ranks that are not excluded."""
        names = {rank: self._name(rank) for rank in range(self._identity.ranks) if rank not in self.excluded}
        self._put(self._name(self._identity.rank), value)
        self._round += 1
        return names

    def _take(self, names: Mapping[int, str]) -> dict[int, Any]:
        texts = self._store.multi_get(list(names.values()))
        for name in (*names.values(), *self._shared):
            self._store.delete_key(name)
        self._shared.clear()
        return {rank: json.loads(text) for rank, text in zip(names, texts, strict=True)}

    def share(self, value: Any) -> Any:
        """Return rank 0's JSON value on every rank; the values of the others are ignored."""
        name = self._name(0)
        self._round += 1
        if self._identity.rank == 0:
            self._put(name, value)
            self._shared.append(name)
            return value
        self._wait([name])
        return json.loads(self._store.get(name))

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Return this rank's element of rank 0's JSON `values`; the values of the others are ignored."""
        name = self._name(self._identity.rank)
        names = {rank: self._name(rank) for rank in range(self._identity.ranks)}
        self._round += 1
        if values is not None and self._identity.rank == 0:
            for rank, value in enumerate(values):
                self._put(names[rank], value)
            self._shared += names.values()
            return values[0]
        self._wait([name])
        return json.loads(self._store.get(name))

    def _name(self, rank: int) -> str:
        return key(self._identity, f"exchange/{self._round}/{rank}")

    def _put(self, name: str, value: Any) -> None:
        text = json.dumps(value, allow_nan=False)
        if len(text) >= bounds.STORE_VALUE_BYTES:
            raise ProbeError(f"{len(text)} bytes are too many for one value of torch's store: use fewer --batches")
        self._store.set(name, text)

    def _wait(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        began, pause_s = clock(), _FIRST_POLL_S
        while not self._store.check(list(names)):
            waited_s = clock() - began
            if waited_s > self._deadline_s:
                silent = [name.rpartition("/")[2] for name in names if not self._store.check([name])]
                raise ProbeError(f"no answer from rank {', '.join(silent)} within {waited_s:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S if waited_s < _LONG_S else _LONG_POLL_S)
