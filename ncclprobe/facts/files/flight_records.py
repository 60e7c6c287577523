"""Dumps of torch's flight recorder: the collectives that each rank entered, in order, and their progress.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, torch 2.4 to 2.13, which write them
as pickle or JSON. A dump does not name the rank that wrote it; the file name or the groups do.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Literal

import msgspec

from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.model.errors import Failed, HostError
from ncclprobe.model.values import Struct, replace

MAX_DUMP_BYTES = 64 << 20
PATIENCE_S = 30.0
STARTED, COMPLETED, RETIRED = 1, 2, 4
"""What is known of an entry: its kernel started, completed; torch looks after it no longer."""


class FlightFrame(Struct, frozen=True):
    """One frame of a Python stack, as torch records it."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        """Return ``train.py:12 in step``."""
        return f"{self.filename}:{self.line} in {self.name}"

    @property
    def place(self) -> str:
        """Return its line, without folders: ``train.py:12``."""
        return f"{self.filename.rpartition('/')[2]}:{self.line}"

    @property
    def function(self) -> str:
        """Return its name without its class, which newer versions of py-spy include."""
        return self.name.rpartition(".")[2]

    @property
    def of_library(self) -> bool:
        """Return whether it belongs to Python itself, to an installed package, or has no file."""
        return any(part in self.filename for part in ("<", "/lib/python", "-packages/"))


class FlightCall(Struct, frozen=True):
    """One call: ``all_reduce``, ``send 0->1``; shapes as text, element counts and tensor types."""

    op: str
    p2p: bool = False
    inputs: str = ""
    outputs: str = ""
    input_numel: int = 0
    output_numel: int = 0
    input_dtype: str = ""
    output_dtype: str = ""

    def __str__(self) -> str:
        """Return ``all_reduce of [8] Float``."""
        shape = f"{self.inputs or self.outputs} {self.input_dtype or self.output_dtype}".strip()
        return f"{self.op} of {shape}" if shape else self.op


class FlightGroup(Struct, frozen=True):
    """A process group as one rank knows it. `ranks` is empty if the dump lacks them, as for gloo.

    `enqueued`, `started` and `completed`: the number of the last collective that got this far; None: unknown.
    `timeout_s` is the timeout of its last entry; 0: unknown.
    """

    backend: str
    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    timeout_s: float = 0.0


class FlightDump(Struct, frozen=True):
    """The recorded entries of one rank, oldest first.

    Entries are stored as columns, because two million are read at once: entry i called ``calls[call[i]]`` in
    ``groups[group[i]]``, from ``stacks[stack[i]]`` (innermost frame first), as collective number ``seq[i]``.
    :meth:`column` returns one column. `first_record` is 0 if the recorder has dropped nothing yet. `left_out` entries
    were malformed. `rank` is None if neither the file name nor the groups reveal it.
    """

    version: str
    library: str
    groups: tuple[FlightGroup, ...]
    calls: tuple[FlightCall, ...]
    stacks: tuple[tuple[FlightFrame, ...], ...]
    group: bytes
    call: bytes
    stack: bytes
    seq: bytes
    state: bytes
    created_ns: bytes
    completed_ns: bytes
    first_record: int = 0
    left_out: int = 0
    source: str = ""
    rank: int | None = None

    def column(self, name: str) -> Sequence[int]:
        """Return a column by name."""
        return memoryview(getattr(self, name)).cast(COLUMNS[name])

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.state)


COLUMNS: dict[str, Literal["B", "H", "I", "q"]] = {
    "group": "H",
    "call": "I",
    "stack": "I",
    "seq": "q",
    "state": "B",
    "created_ns": "q",
    "completed_ns": "q",
}
"""Type code of each column (see :mod:`array`), in row order."""


class UnreadDump(Struct, frozen=True):
    """A file that looked like a dump but could not be read, and why."""

    source: str
    why: str


class FlightRecords(Struct, frozen=True):
    """The newest dump of each rank, ordered by rank. `unplaced`: dumps whose rank is unknown."""

    dumps: tuple[FlightDump, ...]
    unplaced: tuple[FlightDump, ...] = ()
    unread: tuple[UnreadDump, ...] = ()


def is_dump(head: bytes) -> bool:
    """Return whether a file that begins with `head` (4 KiB or more) looks like a dump."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return head.lstrip()[:1] in (b"{", b"[") and any(key in head for key in _KEYS)


_KEYS = (b'"collective_seq_id"', b'"pg_config"', b'"profiling_name"', b'"pg_status"', b'"nccl_comm_state"')


def read_dumps(files: Iterable[tuple[str, bytes]], children: int = 2) -> FlightRecords:
    """Read the dumps of `files`, (name, content) each, with `children` processes in parallel.

    Takes a few of `files` at a time, so that a lazy iterable is read as needed.
    """
    return records(_read_all(files, max(1, children)))


def records(found: Iterable[tuple[str, FlightDump | str]]) -> FlightRecords:
    """Keep each rank's newest dump from `found`: pairs of a name and a dump, or why it was not read.

    Dumps whose rank is unknown are kept apart.
    """
    read, unread = [], []
    for source, dump in found:
        if isinstance(dump, FlightDump):
            read.append(replace(dump, source=source, rank=rank_of(source, dump.groups)))
        else:
            unread.append(UnreadDump(source, dump))
    by_age = sorted(read, key=lambda dump: (_newest_ns(dump), len(dump.stacks)))
    newest = {dump.rank: dump for dump in by_age if dump.rank is not None}
    return FlightRecords(
        dumps=tuple(newest[rank] for rank in sorted(newest)),
        unplaced=tuple(dump for dump in read if dump.rank is None),
        unread=tuple(unread),
    )


def _read_all(files: Iterable[tuple[str, bytes]], children: int) -> Iterator[tuple[str, FlightDump | str]]:
    idle: SimpleQueue[LimitedChild] = SimpleQueue()
    workers = [LimitedChild(f"{__package__}.flight_child") for _ in range(children)]
    for worker in workers:
        idle.put(worker)

    def read(data: bytes) -> FlightDump | str:
        worker = idle.get()
        try:
            return read_dump(worker, data)
        finally:
            idle.put(worker)

    waiting: deque[tuple[str, Future[FlightDump | str]]] = deque()
    try:
        with ThreadPoolExecutor(children) as pool:
            for source, data in files:
                waiting.append((source, pool.submit(read, data)))
                if len(waiting) > 2 * children:
                    source, future = waiting.popleft()
                    yield source, future.result()
            for source, future in waiting:
                yield source, future.result()
    finally:
        for worker in workers:
            worker.close()


def read_dump(child: LimitedChild, data: bytes) -> FlightDump | str:
    """Return the dump in `data`, or why it was not read."""
    if len(data) > MAX_DUMP_BYTES:
        return f"it is longer than {MAX_DUMP_BYTES >> 20} MiB"
    try:
        found = _ANSWER.decode(child.ask(data, PATIENCE_S))
    except HostError as error:
        return str(error)
    except msgspec.DecodeError as error:
        return str(Failed(f"the process that was asked answered nonsense: {error}"))
    if isinstance(found, FlightDump) and not _is_whole(found):
        return "the process that was asked answered nonsense: its columns differ in length"
    return found


_ANSWER: "msgspec.msgpack.Decoder[FlightDump | str]" = msgspec.msgpack.Decoder(FlightDump | str)


def _is_whole(dump: FlightDump) -> bool:
    """Return whether all columns have equal length and every index is within its table."""
    sizes = {len(getattr(dump, name)) / memoryview(b"").cast(code).itemsize for name, code in COLUMNS.items()}
    tables = {"group": dump.groups, "call": dump.calls, "stack": dump.stacks}
    return len(sizes) == 1 and all(max(dump.column(name), default=-1) < len(table) for name, table in tables.items())


_NAMED = re.compile(r"rank[_.=-]?(\d{1,7})", re.IGNORECASE)
_ENDING = re.compile(r"(\d{1,7})(?:\.[A-Za-z]{1,8}){0,3}$")


def rank_of(source: str, groups: Sequence[FlightGroup] = ()) -> int | None:
    """Return the rank that wrote a dump: from a name like ``nccl_trace_rank_3``, otherwise from its groups if only one
    rank is possible.

    A process records only its own groups, so its rank is in all of them. A number in the name that is not in all of
    them is not the rank.
    """
    ranks = [set(group.ranks) for group in groups if group.ranks]
    possible = set.intersection(*ranks) if ranks else None
    name = source.rpartition("/")[2]
    for pattern in (_NAMED, _ENDING):
        for found in reversed(pattern.findall(name)):
            if possible is None or int(found) in possible:
                return int(found)
    return next(iter(possible)) if possible is not None and len(possible) == 1 else None


def _newest_ns(dump: FlightDump) -> int:
    return max(max(dump.column("created_ns"), default=0), max(dump.column("completed_ns"), default=0))
