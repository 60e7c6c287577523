"""What NCCL's Inspector (ext-profiler/inspector) wrote of a real job: for whom the others waited, how fast nodes were.

Each process writes one JSON object a line: the communicator and its rank, and how long one collective took there. A
kernel that begins early waits in it for the rank that comes last, and all end together: so the last one has the
shortest time, and the others have waited for it by what theirs are longer. What a collective of one node reached is
that node's own number; one of several nodes says nothing of any single one.
"""

import hashlib
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.fleet import JobCommunicator, LateRank, Number, Reading, Told
from ncclprobe.model.units import printable, size
from ncclprobe.model.values import Struct, field

_WAITED, _SHARE, _ENOUGH = 1.2, 0.5, 20
"""A rank is late where the others' median is so many times its own time, in so many of at least so many collectives."""
_ALL_ALIKE = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll")
"""Collectives that end on all ranks together; the root of another may end before."""
_MAD_TO_SIGMA = 1.4826
_NAME = 100


class _Header(Struct, frozen=True):
    id: str
    rank: int
    n_ranks: int
    nnodes: int


class _Metadata(Struct, frozen=True):
    dump_timestamp_us: float
    hostname: str


class _Collective(Struct, frozen=True):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_busbw_gbs: float


class _Line(Struct, frozen=True):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective


class _Known(Struct):
    """What is known of one communicator: times of each collective by rank, hosts of ranks, rates by operation."""

    ranks: int
    nodes: int
    times: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    rates: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)


class Job(Struct, frozen=True):
    """What a job's files tell: its communicators, the slowest first; its nodes' own numbers; how many lines were not
    understood, and how many left out as `beyond` the bounds; and what tells this job from others, while it goes on too.
    """

    communicators: tuple[JobCommunicator, ...]
    told: tuple[Told, ...]
    odd: int
    beyond: int
    digest: str


def read(names: Sequence[Path], patience_s: float) -> Job:
    """Return what the files of one job tell. Raises UsageError where none is the Inspector's."""
    end, known = time.monotonic() + patience_s, dict[str, _Known]()
    odd = lines = beyond = 0
    newest_us = 0.0
    for text in (text for name in names for text in _lines(name)):
        lines += 1
        if lines % 10_000 == 0 and time.monotonic() > end:
            raise UsageError(f"{lines:,} lines took {patience_s:g} s, and there are more: give --timeout more")
        try:
            line = msgspec.json.decode(text, type=_Line)
            odd += not _fits(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            odd += 1
            continue
        if _fits(line):
            newest_us = max(newest_us, line.metadata.dump_timestamp_us)
            beyond += not _note(known, line)
    if not known:
        raise UsageError(f"{names[0]}: no line is of NCCL's Inspector: give what NCCL_INSPECTOR_DUMP_DIR holds")
    found = [_communicator(of, name) for name, of in known.items()]
    found.sort(key=lambda each: (-max((late.waited_s for late in each.late), default=0.0), each.id))
    digest = hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()
    return Job(tuple(found), tuple(_told(known, newest_us / 1e6)), odd, beyond, digest)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that are no longer than one of the Inspector's. Raises UsageError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path}: cannot be read: not a regular file")
        with path.open("rb") as file:
            while text := file.readline(bounds.INSPECTOR_LINE):
                if text.strip():
                    yield text
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _fits(line: _Line) -> bool:
    """Whether a line says what can be."""
    header, perf = line.header, line.coll_perf
    fine = 0 <= header.rank < header.n_ranks <= bounds.JOB_RANKS and 1 <= header.nnodes <= header.n_ranks
    fine &= 0 < perf.coll_exec_time_us <= bounds.MOST_TIME_US and 0 <= perf.coll_msg_size_bytes <= bounds.BYTES
    fine &= 0 <= perf.coll_busbw_gbs <= bounds.MOST_GBPS and 0 < line.metadata.dump_timestamp_us < 1e17
    return bool(fine and 0 < len(line.metadata.hostname) <= bounds.NAME_CHARACTERS and len(header.id) <= _NAME)


def _note(known: dict[str, _Known], line: _Line) -> bool:
    """Keep what a line says; False: there are too many communicators, or collectives of this one."""
    header, perf = line.header, line.coll_perf
    if header.id not in known and len(known) >= bounds.INSPECTOR_COMMUNICATORS:
        return False
    of = known.setdefault(header.id, _Known(header.n_ranks, header.nnodes))
    of.hosts[header.rank] = line.metadata.hostname
    collective = (perf.coll[:_NAME], perf.coll_sn)
    if collective not in of.times and len(of.times) >= bounds.INSPECTOR_COLLECTIVES:
        return False
    of.times.setdefault(collective, {})[header.rank] = perf.coll_exec_time_us
    key = (line.metadata.hostname, perf.coll[:_NAME], perf.coll_msg_size_bytes)
    of.rates.setdefault(key, []).append(perf.coll_busbw_gbs)
    return True


def _communicator(of: _Known, name: str) -> JobCommunicator:
    """Return for which ranks of a communicator the others waited."""
    late, waited = Counter[int](), dict[int, list[float]]()
    whole = [times for (coll, _), times in of.times.items() if coll in _ALL_ALIKE and len(times) == of.ranks > 1]
    for times in whole:
        last = min(times, key=times.__getitem__)
        others = median(each for rank, each in times.items() if rank != last)
        if others >= _WAITED * times[last]:
            late[last] += 1
            waited.setdefault(last, []).append((others - times[last]) / 1e6)
    found = tuple(
        LateRank(rank, printable(of.hosts[rank]), count / len(whole), sum(waited[rank]))
        for rank, count in late.most_common()
        if len(whole) >= _ENOUGH and count >= _SHARE * len(whole)
    )
    return JobCommunicator(printable(name), of.ranks, of.nodes, len(whole), len(of.times), found)


def _told(known: dict[str, _Known], time_s: float) -> Iterator[Told]:
    """Yield of each node the largest size of each operation among its own ranks."""
    rates: dict[str, dict[tuple[str, int, int], list[float]]] = {}
    for of in known.values():
        for (host, coll, nbytes), values in of.rates.items() if of.nodes == 1 and of.ranks > 1 else ():
            rates.setdefault(host, {}).setdefault((coll, of.ranks, nbytes), []).extend(values)
    for host, found in rates.items():
        largest: dict[tuple[str, int], int] = {}
        for (coll, ranks, nbytes), values in found.items():
            if len(values) >= _ENOUGH:
                largest[coll, ranks] = max(largest.get((coll, ranks), 0), nbytes)
        numbers: dict[Number, Reading] = {}
        for (coll, ranks), nbytes in largest.items():
            values = found[coll, ranks, nbytes]
            value = median(values)
            if value >= bounds.LEAST_GBPS and len(numbers) < bounds.FLEET_NUMBERS:
                noise = _MAD_TO_SIGMA * median(abs(each - value) for each in values) / value / len(values) ** 0.5
                which = Number("", f"{printable(coll)} {size(nbytes)} in a job", "GB/s", f"Inspector, {ranks} ranks")
                numbers[which] = Reading(time_s, value, min(noise, 1.0))
        if numbers:
            yield Told(printable(host), time_s, numbers=numbers)
