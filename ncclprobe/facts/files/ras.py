"""Answers of NCCL's RAS about a job: dead processes, ranks behind, and errors, by communicator.

`ncclras`, or telnet to port 28028, queries RAS. NCCL 2.24 and later answers as text, 2.28.7 and later also as JSON.
Source: src/ras/client_support.cc of v2.24.3 to v2.30.7, whose texts are matched; docs, "RAS".
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec

from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import Struct, field, grouped, replace

RasKind = Literal["dead", "missing", "count", "status", "error", "timeout"]
_MAX_LINE, _MAX_STATEMENTS = 4096, 100_000


class RasProcess(Struct, frozen=True):
    """A process of the job. `rank` is its rank in the communicator; None if the text names only the process."""

    host: str = ""
    pid: int | None = None
    gpu: str = ""
    rank: int | None = None


class RasStatement(Struct, frozen=True):
    """One statement of RAS about some ranks, with its line (0: from JSON, whose line numbers mean nothing).

    `kind`: ``dead`` (unreachable for 60 s), ``missing`` (did not answer), ``count`` (launched `value` operations of
    type `operation`; empty: of all types), ``status`` and ``error`` (`value` in NCCL's words), ``timeout``. It covers
    `nranks` ranks, of which RAS lists `processes`. `comm` is the communicator's hash; empty: the whole job.
    """

    kind: RasKind
    line: int = 0
    text: str = ""
    comm: str = ""
    operation: str = ""
    value: str = ""
    nranks: int = 0
    processes: tuple[RasProcess, ...] = ()


class RasAnswer(Struct, frozen=True):
    """One answer. `statements` are the deviations, in RAS's order.

    `launched`: operations launched by each process, by pid; only JSON has it for all. A pid that occurs on two nodes is
    left out.
    """

    source: str
    version: str = ""
    statements: tuple[RasStatement, ...] = ()
    launched: tuple[tuple[int, int], ...] = ()


class RasStatus(Struct, frozen=True):
    """All answers in input order; the newest is last."""

    answers: tuple[RasAnswer, ...]


def read_answer(source: str, data: bytes) -> RasAnswer:
    """Parse an answer; if a text contains several, the last. Raises ParseError for anything else."""
    if data.lstrip()[:1] == b"{":
        try:
            found = msgspec.json.decode(data, type=_Json)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ParseError(f"{source}: not an answer from NCCL's RAS: {error}") from None
        statements = [each for comm in found.communicators for each in _communicator_statements(comm)]
        return RasAnswer(source, found.nccl_version[:40], tuple(statements[:_MAX_STATEMENTS]), _launched(found))
    lines = data.decode(errors="replace").splitlines()
    if not any(line.startswith(("Job summary", "Communicators...")) or "PEER_DEAD" in line for line in lines):
        raise ParseError(f"{source}: not an answer from NCCL's RAS: {data[:80]!r}")
    state = _Text()
    for number, line in enumerate(lines, start=1):
        state.add(number, line[:_MAX_LINE].rstrip())
    return RasAnswer(source, state.version, tuple(state.statements))


_PROCESS = re.compile(r" *Process (\d+) on node (\S+) managing GPUs? (.+)")
_RANK = re.compile(
    r" *Rank (\d+)(?: .{0,80}?)? -- GPU (\S+)(?: \(NVML [\d,]+\))? managed by process (\d+) on node (\S+)"
)
_MISSING = re.compile(r" *The missing ranks?: ([\d, -]+)$")
_COMM = re.compile(r"#\d+-\d+ \(([0-9a-f]{1,16})\) ([A-Z,]+)")
_HEADS: tuple[tuple[RasKind, "re.Pattern[str]"], ...] = (
    ("dead", re.compile(r" *(\d+) job process(?:es are| is) considered dead")),
    ("missing", re.compile(r" *Missing communicator data from (\d+) (?:job process|rank)")),
    ("timeout", re.compile(r" *Encountered (\d+) communication timeout")),
    ("count", re.compile(r" *(\d+) ranks have launched up to operation (\d+)")),
    ("count", re.compile(r" *(\d+) ranks have (not) launched any operations")),
    ("status", re.compile(r" *(\d+) ranks have status (\w+)")),
    ("error", re.compile(r" *(\d+) ranks reported (.+)")),
)
_ALONE: tuple[tuple[RasKind, "re.Pattern[str]"], ...] = (
    ("count", re.compile(r" *Rank \d+ has launched up to operation (\d+) --")),
    ("count", re.compile(r" *Rank \d+ has (not) launched any operations --")),
    ("status", re.compile(r" *Rank \d+ has status (\w+) --")),
    ("error", re.compile(r" *Rank \d+ reported (.{1,80}?) --")),
)
_OPERATION = re.compile(r" *Communicator ranks have different (\w+) operation counts")
_EVENT = re.compile(r"\[[-\d: ]{19}\] PEER_(DEAD|UNRESPONSIVE): *Process (\d+) on node (\S+) managing GPUs? (.+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")


class _Text:
    """Parser state: the communicator and operation that the next lines refer to."""

    def __init__(self) -> None:
        self.statements: list[RasStatement] = []
        self.version = self.comm = self.operation = ""

    def add(self, number: int, line: str) -> None:
        """Process one line."""
        if line.startswith("Job summary"):  # a new answer: what an older one said no longer holds
            self.statements.clear()
            self.comm = self.operation = ""
        elif found := _VERSION.match(line):
            self.version = found[1]
        elif found := _COMM.match(line):
            self.comm, self.operation = found[1], ""
        elif line and not line.startswith((" ", "[")):
            self.comm = ""
        elif found := _OPERATION.match(line):
            self.operation = "" if found[1] == "collective" else found[1]
        elif len(self.statements) < _MAX_STATEMENTS:
            self._state(number, line)

    def _state(self, number: int, line: str) -> None:
        if found := _EVENT.match(line):
            kind: RasKind = "dead" if found[1] == "DEAD" else "missing"
            process = RasProcess(found[3], int(found[2]), found[4])
            self.statements.append(RasStatement(kind, number, line, nranks=1, processes=(process,)))
            return
        for kind, pattern in _HEADS:
            if found := pattern.match(line):
                self._append(kind, number, line, int(found[1]), found[2] if found.re.groups > 1 else "")
                return
        if (missing := _MISSING.match(line)) and self.statements:
            spans = ((int(one), int(last or one)) for one, last in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?", missing[1]))
            ranks = islice((rank for one, last in spans for rank in range(one, last + 1)), 64)
            self.statements[-1] = replace(self.statements[-1], processes=tuple(RasProcess(rank=each) for each in ranks))
            return
        process_ = _process(line)
        for kind, pattern in _ALONE:
            if process_ and (found := pattern.match(line)):
                self._append(kind, number, line, 1, found[1], (process_,))
                return
        if process_ and self.statements:
            last = self.statements[-1]
            self.statements[-1] = replace(last, processes=(*last.processes, process_))

    def _append(
        self, kind: RasKind, line: int, text: str, nranks: int, value: str, processes: tuple[RasProcess, ...] = ()
    ) -> None:
        value = "0" if value == "not" else value
        operation = self.operation if kind == "count" else ""
        self.statements.append(RasStatement(kind, line, text.strip(), self.comm, operation, value, nranks, processes))


def _process(line: str) -> RasProcess | None:
    if found := _RANK.match(line):
        return RasProcess(found[4], int(found[3]), found[2], int(found[1]))
    if found := _PROCESS.match(line):
        return RasProcess(found[2], int(found[1]), found[3])
    return None


class _Status(Struct, frozen=True):
    async_error: int = 0
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(Struct, frozen=True):
    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    status: _Status = _Status()
    collective_counts: dict[str, int] = field(default_factory=dict)

    def process(self) -> RasProcess:
        return RasProcess(self.host, self.pid, "" if self.cuda_dev is None else str(self.cuda_dev), self.rank)


class _Communicator(Struct, frozen=True):
    hash: str = ""
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()


class _Json(Struct):
    nccl_version: str
    communicators: list[_Communicator]


def _launched(found: _Json) -> tuple[tuple[int, int], ...]:
    totals: Counter[tuple[str, int]] = Counter()
    for rank in (rank for comm in found.communicators for rank in comm.ranks):
        if rank.pid is not None:
            totals[rank.host, rank.pid] += sum(rank.collective_counts.values())
    shared = Counter(pid for _, pid in totals)
    return tuple((pid, total) for (_, pid), total in totals.items() if shared[pid] == 1)[:_MAX_STATEMENTS]


def _communicator_statements(comm: _Communicator) -> Iterator[RasStatement]:
    name = comm.hash.removeprefix("0x")
    gone = [rank for rank in comm.missing_ranks if rank.status.considered_dead]
    silent = [rank for rank in comm.missing_ranks if rank.status.unresponsive and not rank.status.considered_dead]
    failed = [(r, _RESULTS.get(r.status.async_error, "error")) for r in comm.ranks if _failed(r.status.async_error)]
    size = len(comm.ranks) + len(comm.missing_ranks)
    yield from _each("dead", name, "considered_dead", [(rank, "") for rank in gone], size)
    yield from _each("missing", name, "unresponsive", [(rank, "") for rank in silent], size)
    yield from _each("error", name, "async_error", failed, size)
    for operation in sorted({name for rank in comm.ranks for name in rank.collective_counts}):
        counts = [(rank, str(rank.collective_counts.get(operation, 0))) for rank in comm.ranks]
        if len({value for _, value in counts}) > 1:
            yield from (replace(each, operation=operation) for each in _each("count", name, operation, counts, size))


def _failed(result: int) -> bool:
    return result not in (0, _IN_PROGRESS)


_IN_PROGRESS = 7
_RESULTS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument"}
_RESULTS |= {5: "Invalid usage", 6: "Remote process error"}
"""As :func:`ncclErrorToString` of client_support.cc writes them in the text."""


def _each(kind: RasKind, comm: str, word: str, said: Sequence[tuple[_Rank, str]], size: int) -> Iterator[RasStatement]:
    """Yield one statement per distinct value; counts list no processes for the largest group, as in the text.

    `size`: the communicator's size.
    """
    groups = grouped((value, rank) for rank, value in said)
    most = max(map(len, groups.values()), default=0)
    for value, ranks in groups.items():
        processes = tuple(rank.process() for rank in ranks) if kind != "count" or len(ranks) < most else ()
        text = f"{word} {value}".strip() + f" on {len(ranks)} of {size} ranks of communicator {comm}"
        yield RasStatement(kind, 0, text, comm, "", value, len(ranks), processes)


def by_operation(answer: RasAnswer) -> Mapping[tuple[str, str], Sequence[RasStatement]]:
    """Return the launch counts that differ between ranks, by communicator and operation."""
    return grouped(((each.comm, each.operation), each) for each in answer.statements if each.kind == "count")
