"""This node as it was before anything was measured: looked at once, on a thread, while torch is imported.

What is needed of it afterwards (expectations, transports, NICs of ranks, copies, the fingerprint, the report) takes
this snapshot. One rank of each node looks; the captures of all nodes reach rank 0 after the last row.
"""

import base64
import contextlib
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclprobe.engine.observe import Heard, heard_by_rank, observed, of_capture
from ncclprobe.errors import NcclprobeError, UsageError
from ncclprobe.host import files
from ncclprobe.host.capture import MAX_CAPTURE_BYTES, Answers, Replay, dump, parse
from ncclprobe.host.run_log import FILE
from ncclprobe.model.registry import discover
from ncclprobe.model.rules import Collector
from ncclprobe.model.snapshot import Snapshot

LOOK_S = 30.0
"""After so long what has not answered is absent."""
_MARGIN_S = 5.0
_RANK_S = 10.0
MOST_PACKED_BYTES = 4 << 20
"""Of one node's compressed capture; usual are 30 KiB. A larger one does not travel."""


class Look:
    """One node's snapshot, as soon as there is one."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._found: tuple[Snapshot, Heard] | None = None
        self._deadline = time.monotonic() + LOOK_S
        self._thread = threading.Thread(target=self._look, name="look", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def _look(self) -> None:
        with contextlib.suppress(NcclprobeError):  # a node that cannot be looked at is measured all the same
            self._found = observed(_collectors(), self._deadline)

    def snapshot(self, patience_s: float = LOOK_S + _MARGIN_S) -> Snapshot:
        """The node's facts; without any where it did not answer in time."""
        if self._thread.is_alive():
            self._thread.join(patience_s)
        found = self._found
        return Snapshot(self.node, found[0].facts, found[0].ranks) if found else Snapshot(self.node, {})

    def capture(self) -> str | None:
        """The node's capture; null where there is none by now."""
        return dump(self._found[1], self.node) if self._found else None


def pack(text: str | None) -> str | None:
    """A capture as it travels; null where it is too large or there is none."""
    if text is None:
        return None
    packed = zlib.compress(text.encode())
    return base64.b64encode(packed).decode() if len(packed) <= MOST_PACKED_BYTES else None


def unpack(packed: Any, node: str) -> str | None:
    """Back from :func:`pack`; null for what is no capture: it comes from another node."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b64decode(str(packed), validate=True), MAX_CAPTURE_BYTES)
        parse(text.decode(), node, node)
    except (ValueError, zlib.error, UsageError):
        return None
    return text.decode()


def rank_capture(node: str) -> str:
    """What a rank that does not look at its node sees of itself: affinity, visible devices, control group."""
    return dump(heard_by_rank(_collectors(), time.monotonic() + _RANK_S), node)


def node_captures(hosts: Sequence[str], received: Sequence[Any]) -> list[tuple[str, str]]:
    """The capture of each node with what its other ranks saw of themselves, by the `hosts` of all ranks.

    `received` holds of each rank whether it looked at its node, and its packed capture.
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


def replayed_nodes(captures: Sequence[tuple[str, str]]) -> list[Snapshot]:
    """The snapshots of nodes from their captures, by name."""
    collectors = _collectors()
    return [of_capture(parse(text, node, node), collectors) for node, text in captures]


def captures_in(folder: Path) -> list[tuple[str, str]]:
    """The captures that rank 0 left in `folder`, by node. One that cannot be read is left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.name != FILE:
            with contextlib.suppress(UsageError):
                text = files.read(path, limit=MAX_CAPTURE_BYTES)
                found.append((parse(text, str(path)).node, text))
    return found


def write_captures(folder: Path, captures: Sequence[tuple[str, str]]) -> None:
    """Leave captures in `folder`. One that cannot be written is left out: the run goes on."""
    for node, text in captures:
        with contextlib.suppress(UsageError):
            files.write(folder / files.named_after(node), text, private=True)


def _collectors() -> tuple[Collector, ...]:
    return discover("ncclprobe.facts", Collector, {"machine"})
