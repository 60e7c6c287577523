"""The snapshot of this node before anything is measured: collected once, in a thread, while torch is imported.

Expectations, transports, NICs of ranks, copies, the fingerprint and the report all use this snapshot. One rank of each
node collects it; the captures of all nodes are sent to rank 0 after the last row.
"""

import base64
import contextlib
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.engine.collect import Heard, capture_facts, heard_by_rank, observed
from ncclprobe.host import files
from ncclprobe.host.capture import Answers, Replay, dump, parse, save
from ncclprobe.host.run_log import FILE
from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError, UsageError
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.session.ranks.store import Exchange

LOOK_S = 30.0
"""A collector that has not answered after this many seconds is absent."""
_MARGIN_S = 5.0
_RANK_S = 10.0
MOST_PACKED_BYTES = 4 << 20
"""Limit for one node's compressed capture; 30 KiB are usual. A larger one is not sent."""


class NodeSnapshot:
    """One node's snapshot, collected in a thread, for at most `look_s` seconds.

    `folder`: its capture is written there immediately, for a report by another process.
    """

    def __init__(self, node: str, look_s: float = LOOK_S, folder: str | None = None) -> None:
        self.node, self._folder = node, folder
        self._found: tuple[Snapshot, Heard] | None = None
        self._patience_s = look_s + min(look_s, _MARGIN_S)
        self._deadline = time.monotonic() + look_s
        self._thread = threading.Thread(target=self._look, name="look", daemon=True)

    def start(self) -> None:
        """Start collecting."""
        self._thread.start()

    def _look(self) -> None:
        with contextlib.suppress(NcclprobeError):  # a node without a snapshot is measured all the same
            self._found = observed(_collectors(), self._deadline)
        text = self.capture()
        if text and self._folder:
            write_captures(Path(self._folder), [(self.node, text)])

    def snapshot(self, patience_s: float | None = None) -> Snapshot:
        """Wait for the node's facts and return them; empty if it did not answer in time."""
        if self._thread.is_alive():
            self._thread.join(self._patience_s if patience_s is None else patience_s)
        found = self._found
        return Snapshot(self.node, found[0].facts, found[0].ranks) if found else Snapshot(self.node, {})

    def take(self, ranks: Mapping[int, Answers]) -> None:
        """Add the GPUs that other ranks of this node see, each its own."""
        self.snapshot()  # waits for it
        if self._found and ranks:
            heard = self._found[1]
            snapshot = capture_facts(Replay(heard, self.node, older=False, ranks=ranks), _collectors())
            self._found = snapshot, heard

    def capture(self) -> str | None:
        """Return the node's capture; None if it is not ready."""
        return dump(self._found[1], self.node) if self._found else None


def pack(text: str | None) -> str | None:
    """Compress a capture to send it; None if it is too large or missing."""
    if text is None:
        return None
    packed = zlib.compress(text.encode())
    return base64.b64encode(packed).decode() if len(packed) <= MOST_PACKED_BYTES else None


def unpack(packed: Any, node: str) -> str | None:
    """Undo :func:`pack`; None for anything but a capture, because it comes from another node."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b64decode(str(packed), validate=True), bounds.CAPTURE_BYTES)
        parse(text.decode(), node, node)
    except (ValueError, zlib.error, UsageError):
        return None
    return text.decode()


def rank_capture(node: str) -> str:
    """Capture only this rank: affinity, visible devices, control group."""
    return dump(heard_by_rank(_collectors(), time.monotonic() + _RANK_S), node)


def gather_captures(
    exchange: Exchange, look: NodeSnapshot | None, hostname: str, hosts: Sequence[str]
) -> list[tuple[str, str]] | None:
    """Return the captures of all nodes, on rank 0; None elsewhere. Every rank of the run calls this.

    `look` is None on all but one rank of each node; those report only on themselves. `hosts` are those of all ranks.
    """
    text = look.capture() if look else rank_capture(hostname)
    received = exchange.collect([look is not None, pack(text)])
    return None if received is None else node_captures(hosts, received)


def share_gpus(exchange: Exchange, look: NodeSnapshot | None, hostname: str, hosts: Sequence[str]) -> None:
    """Add to each node's `look` the GPUs that its other ranks see. Every rank of the run calls this.

    `hosts` are those of all ranks, on rank 0.
    """
    received = exchange.collect([look is not None, None if look else pack(rank_capture(hostname))])
    values = None if received is None else captures_for_first_ranks(hosts, received)
    texts = {rank: unpack(packed, hostname) for rank, packed in exchange.scatter(values)}
    if look:
        look.take({rank: parse(text, hostname).answers for rank, text in texts.items() if text})


def captures_for_first_ranks(hosts: Sequence[str], received: Sequence[Any]) -> list[list[list[Any]]]:
    """Return for each rank that examined its node the packed captures of the other ranks there, by rank."""
    first = {host: rank for rank, host in reversed([*enumerate(hosts)]) if received[rank][0]}
    values: list[list[list[Any]]] = [[] for _ in hosts]
    for rank, (host, (_, packed)) in enumerate(zip(hosts, received, strict=True)):
        if packed and host in first:
            values[first[host]].append([rank, packed])
    return values


def node_captures(hosts: Sequence[str], received: Sequence[Any]) -> list[tuple[str, str]]:
    """Merge the captures of each node's ranks; `hosts` are those of all ranks.

    `received` holds for each rank whether it collected its node, and its packed capture.
    """
    looked: dict[str, Replay] = {}
    ranks: dict[str, dict[int, Answers]] = {}
    for rank, (host, each) in enumerate(zip(hosts, received, strict=True)):
        leads, packed = each or (False, None)
        text = unpack(packed, host) if packed else None
        if text is None:
            continue
        found = parse(text, host, host)
        if leads and host not in looked:
            looked[host] = found
        else:
            ranks.setdefault(host, {})[rank] = found.answers
    return [(host, dump(found.answers, host, ranks=ranks.get(host))) for host, found in looked.items()]


def replayed_nodes(captures: Sequence[tuple[str, str]], hosts: Iterable[str] = ()) -> list[Snapshot]:
    """Return the snapshots of nodes from their captures; a host that sent none has only absent facts, with
    that reason.
    """
    collectors, told = _collectors(), [node for node, _ in captures]
    found = [capture_facts(parse(text, node, node), collectors) for node, text in captures]
    none = {each.produces: Absent("no capture of this node arrived") for each in collectors}
    return found + [Snapshot(node, none) for node in dict.fromkeys(hosts) if node not in told]


def captures_in(folder: Path) -> list[tuple[str, str]]:
    """Read the captures that rank 0 wrote to `folder`, by node. Unreadable ones are left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.name != FILE:
            with contextlib.suppress(UsageError):
                text = files.read(path, limit=bounds.CAPTURE_BYTES)
                found.append((parse(text, str(path)).node, text))
    return found


def write_captures(folder: Path, captures: Sequence[tuple[str, str]]) -> list[str]:
    """Write captures to `folder`, and return why any could not be written: the run continues."""
    whys = []
    for node, text in captures:
        try:
            save(folder / files.named_after(node), text)
        except UsageError as error:
            whys.append(str(error))
    return whys


def _collectors() -> tuple[Collector, ...]:
    return discover("ncclprobe.facts", Collector, {"machine"})
