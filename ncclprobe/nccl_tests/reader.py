"""Find the text tables of nccl-tests in any log.

A table's own header names its columns, so that older and newer versions can be read (``-I`` and ``-S`` add some,
``error`` became ``#wrong``, ``root`` is newer). Rows whose header was cut off have today's columns. Lines of other
programs between the rows, or in the middle of one, are skipped, and so are the prefixes of launchers
(``[1,0]<stdout>:``, ``0: ``). Lines that a terminal wrapped are joined.

The JSON of nccl-tests (``-J``), version 3 and before: booleans are text, a number may be ``"nan"``, parts may be
missing.

Version 3 is what a0b82b2 (2.19.6) writes, src/util.cu: jsonBool, jsonDouble, writeBenchmarkLineBody.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Fingerprint, Measurement, Mode, Place
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl_tests.context import Context
from ncclprobe.nccl_tests.operation import NOT_GIVEN, Given, Printed, named_ops, recognised
from ncclprobe.nccl_tests.rows import (
    DTYPES,
    Contradiction,
    Line,
    Log,
    Run,
    Setup,
    measurement,
    op_name,
    refused,
    version,
    wrong_data,
)

_MARK = re.compile(
    r"^\s*(?:\[\d+,\d+\](?:<std(?:out|err)>)?:|\d+: |[\w.-]{1,80}: (?=[ #])|\[[\w./: -]{1,160}\]:?(?=\s)|"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s(?:std(?:out|err) [FP]\s)?|"
    r"[\w.-]{1,80}\s{1,20}\|(?=\s)|>(?=\s)|\([^()]{0,80}\bpid=\d[^()]{0,80}\)(?=\s))"
)
_ROW = re.compile(rf"(?<![\w.,])[\d,]{{1,20}}\s{{1,40}}[\d,]{{1,20}}\s{{1,40}}(?:{'|'.join(DTYPES)})\s")
"""The beginning of a row, after whatever a logger put before it."""
_CELLS = re.compile(
    rf"\W{{0,4}}\d{{1,16}}\W{{1,4}}\d{{1,16}}\W{{1,4}}(?:{'|'.join(DTYPES)})\b|\W{{0,4}}size\W{{1,4}}count\b"
)
"""The beginning of a row or header of a table in Markdown, CSV or tabs."""
_MARKS = 3
"""Maximum number of prefixes of a line: those of kubectl, Ray, Slurm and Open MPI can be nested."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_DEVICE = re.compile(
    r"\bRank\s+(\d+)(?:\s+Group\s+(\d+))?(?:\s+Pid\s+\d+)?(?:\s+on\s+(\S+))?\s+device\s+(\d+)\s+\[([^\]]*)\]"
    r" ([^()]*[^()\s])(?:\s+\(([^()]*)\))?"
)
_PROGRAM = re.compile(r"(?<![\w.-])([\w./-]*?[a-z]+(?:_[a-z]+)*_perf(?:_mpi)?)(?![\w.])")
_LIBRARY = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)")
_ITERS = re.compile(r"(?<!warmup )(?<!agg )iters: (\d+)")
_AVERAGE = re.compile(r"\bAvg bus bandwidth\s*:\s*(\d{1,6}(?:\.\d{1,9})?)\b")
_OUT_OF_BOUNDS = re.compile(r"\bOut of bounds values\s*:\s*(\d+)")
_TIMES = ("time", "cputime")
_TODAY = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
"""Columns of a table without a header, or with a part of it."""
_FRAGMENT = re.compile(r"[-+\d.eN/A*\s]{1,200}")
"""The rest of a row: numbers and ``N/A``."""
_WRAPPED_ROWS = 2
_UNREAD = 3
"""Number of broken rows that are listed."""


class _Section(Struct):
    """What is known of the run whose lines are being read."""

    op: str = ""
    nccl: str = "unknown"
    mode: Mode = "queued"
    iters: int = 1
    ranks: list[tuple[str, str, str]] = field(default_factory=list)  # group, host, GPU
    listed: set[tuple[str, int]] = field(default_factory=set)  # group and number of each
    places: dict[tuple[str, ...], list[str]] = field(default_factory=dict)  # group, host, device, bus: their ranks
    hints: set[str] = field(default_factory=set)  # operations that lines above the table name
    average: float | None = None
    unchecked: bool = False
    no_multicast: bool = False
    context: Context = field(default_factory=Context)
    line: int = 0  # of the table's header
    columns: tuple[str, ...] = ()
    lines: list[Line] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    unfinished: str = ""  # a row that lacks its end so far
    unread: list[str] = field(default_factory=list)
    missing: str = ""
    wrong: int = 0
    ended: bool = False


def parse_text(text: str, path: str, given: Given = NOT_GIVEN) -> tuple[Run, ...]:
    """Return the runs in a log, in order. `given`: what the user knows of them.

    Raises UsageError for a log without rows, with the error that ended it.
    """
    runs: list[Run] = []
    section, read = _Section(), 0
    for number, whole in enumerate(_unwrap([_strip_prefixes(raw) for raw in text.splitlines()]), start=1):
        if len(whole) > bounds.NCCL_TESTS_LINE:
            continue
        line = whole.rstrip()
        if _starts_run(line, section):
            runs += _finish_run(section, path, given)
            section = _Section(nccl=section.nccl, context=section.context.following())
        try:
            read += _take(line, section, number)
        except ValueError as error:
            section.unread += [f"line {number}: {error}"][: _UNREAD - len(section.unread)]
        if read > bounds.NCCL_TESTS_ROWS:
            raise UsageError(f"{path}: more than {bounds.NCCL_TESTS_ROWS} rows of nccl-tests: split the log")
    runs += _finish_run(section, path, given)
    own = section.op or section.ranks or section.context.failure(ended=True)
    if own and section.context.error and not section.lines:
        runs.append(_run_without_rows(section, path, "the run failed before its first row"))
    if not runs and (section.missing or section.unread):
        raise UsageError(f"{path}: {section.missing or section.unread[0]}")
    if not runs and section.ranks:
        missing = f"it lists {plural(len(section.ranks), 'rank')} and holds no row: it ended, or hung, before the first"
        runs = [_run_without_rows(section, path, missing)]
    if not runs:
        raise UsageError(f"{path}: contains no nccl-tests table (a header with size, count, type … and rows below it)")
    return tuple(runs)


def _run_without_rows(section: _Section, path: str, missing: str) -> Run:
    return Run(path, "", (), None, section.context.error, missing, cut=True, log=_log(section))


def _strip_prefixes(raw: str) -> str:
    """Remove colours and launchers' prefixes from a line; leave one that is too long as it is."""
    if len(raw) > bounds.NCCL_TESTS_LINE:
        return raw
    line = _ANSI.sub("", raw).replace("\N{NO-BREAK SPACE}", " ")
    for _ in range(_MARKS):
        shorter = _MARK.sub("", line, count=1)
        if shorter == line:
            break
        tag = line[: len(line) - len(shorter)].strip()
        line = _strip_tag(shorter, tag)
    if _CELLS.match(line):
        line = re.sub(r"[|;\"\t]", " ", line)
        line = line.replace(",", " ") if not _ROW.search(f"{line} ") else line
    found = _ROW.search(line)
    return _normalise_decimals(line[found.start() :] if line[: found.start()].strip() else line) if found else line


def _normalise_decimals(row: str) -> str:
    """Return a row with decimal points only: commas are decimal or separate thousands."""
    decimal = re.search(r"\d,(?:\d{1,2}|\d{4,})\b", row)
    return row.replace(",", ".") if decimal else row.replace(",", "")


def _strip_tag(line: str, tag: str) -> str:
    """Remove the tag ``[0]`` that a launcher put before each piece of a row."""
    return line.replace(f"{tag} ", " ") if re.fullmatch(r"\[\d{1,6}\]", tag) and _begins_row(line) else line


def _unwrap(lines: list[str]) -> Iterator[str]:
    """Yield lines, rejoined if a terminal wrapped them; the rest of a joined line becomes empty."""
    width = max(map(len, lines), default=0)
    broken = sum(_begins_row(line) and bool(_FRAGMENT.fullmatch(rest)) for line, rest in pairwise(lines))
    if broken < _WRAPPED_ROWS:
        yield from lines
        return
    whole = ""
    for line in lines:
        whole += line
        yield "" if len(line) == width else whole
        whole = whole if len(line) == width else ""
    yield whole


def _begins_row(line: str) -> bool:
    """Return whether `line` begins with a size, a count and a data type."""
    words = line.split(maxsplit=3)[:3]
    return len(words) == 3 and words[0].isdigit() and words[1].isdigit() and words[2] in DTYPES


def _starts_run(line: str, section: _Section) -> bool:
    """Return whether a new run begins here: another table after rows, or another program is started.

    A run that only listed its ranks is over too when the next one starts.
    """
    started = any(each in line for each in ("Collective test starting:", "# nThread", "# nccl-tests version"))
    if not section.lines:
        return started and bool(section.ranks)
    named = section.ended and bool(_PROGRAM.search(line) or _DEVICE.search(line))
    return started or named or (section.ended and _columns(line) != ())


def _take(line: str, section: _Section, number: int) -> int:
    """Read `line`; return how many rows it held. Raises ValueError."""
    if section.unfinished and _FRAGMENT.fullmatch(line):
        read = _read_row(section.unfinished + line, section) or _read_row(f"{section.unfinished} {line}", section)
        section.unfinished = "" if read else section.unfinished
        return read
    columns = _columns(line)
    if columns:
        section.columns, section.line = columns, section.line or number
    elif _begins_row(line) or (section.columns and all(map(str.isdigit, line.split()[:2])) and line.strip()):
        section.columns, section.line = section.columns or _TODAY, section.line or number
        read = _read_row(line, section)
        section.unfinished = "" if read else line
        if not read:  # the row was printed before its test failed
            labels = next(at for at, name in enumerate(section.columns) if name in _TIMES)
            section.context.take(" ".join(line.split()[labels:]))
        return read
    else:
        _about(line, section)
    return 0


def _columns(line: str) -> tuple[str, ...]:
    """Return the names of a header's columns; empty if `line` is not a header."""
    words = line.partition("size")[2].split()
    if words[:2] != ["count", "type"] or not set(words) & set(_TIMES):
        return ()
    words = ["size", *words]
    return tuple(word for word in words if word != "timestamp")


def _about(line: str, section: _Section) -> None:
    device, wrong, library = _DEVICE.search(line), _OUT_OF_BOUNDS.search(line), _LIBRARY.search(line)
    if device and len(section.ranks) < bounds.NCCL_TESTS_ROWS:
        _record_rank(device[2] or "0", device[1], section)
        section.ranks.append((device[2] or "0", device[3] or device[7] or "", device[6]))
        section.places.setdefault((*section.ranks[-1][:2], device[4], device[5]), []).append(device[1])
    if wrong:
        section.wrong, section.ended = int(wrong[1]), True
    if library:
        section.nccl = library[2] or version(int(library[1]))
    if average := _AVERAGE.search(line):
        section.average = float(average[1])
    section.context.take(line)
    if iters := _ITERS.search(line):
        section.iters = int(iters[1])
    section.unchecked = section.unchecked or "validation: 0" in line
    section.no_multicast = section.no_multicast or "NVLS multicast support is not available" in line
    if "Blocking Enabled" in line:
        section.mode = "blocking"
    elif re.search(r"graph: [1-9]", line):
        section.mode = "graph"
    if not section.lines:
        section.hints |= named_ops(line)
        if named := _PROGRAM.search(line):
            section.op = op_name(named[1]) or section.op


def _record_rank(group: str, rank: str, section: _Section) -> None:
    """Record a rank. If it is already there, two runs wrote this list, and its ranks add up to neither.

    N processes of a build without MPI do this; each is rank 0 of one (nccl-tests#3, #121).
    """
    number = int(rank[:9])
    if (group, number) in section.listed:
        section.missing = (
            f"rank {number} is listed twice: several runs wrote into this log at once, because "
            "each process runs by itself (nccl-tests built without MPI=1)"
        )
    section.listed.add((group, number))


def _read_row(line: str, section: _Section) -> int:
    """Read the placements of a row. A line with another number of words than the header has columns is not a row."""
    words = _STAMP.sub("", line).split()
    cut = section.columns != _TODAY and len(words) == len(_TODAY) and sum(map(section.columns.count, _TIMES)) < 2
    columns = _TODAY if cut else section.columns
    starts = [index for index, name in enumerate(columns) if name in _TIMES]
    labels, bodies = columns[: starts[0]], [columns[starts[0] :]]
    if len(starts) == 2:
        bodies = [columns[starts[0] : starts[1]], columns[starts[1] :]]
    places: tuple[Place, ...] = ("out", "in")
    if len(starts) == 2 and len(words) == len(labels) + len(bodies[1]):  # out of place was left blank
        bodies, places = bodies[1:], ("in",)
    missing = len(labels) + sum(map(len, bodies)) - len(words)
    if missing:  # old versions print nothing where an operation has no reduction or no root
        optional = [name for name in labels if name in ("redop", "root")]
        labels = tuple(name for name in labels if name not in optional[:missing]) if missing > 0 else ()
    if len(words) != len(labels) + sum(map(len, bodies)) or not words[1].isdigit():
        return 0
    if not words[len(labels)][:1].isdigit():  # the end of a line that was broken, or an error amid a row
        return 0
    said = dict(zip(labels, words, strict=False))
    at = len(labels)
    for place, body in zip(places, bodies, strict=False):
        section.lines.append(_line(said, dict(zip(body, words[at:], strict=False)), place))
        section.roots.append(int(root) if re.fullmatch(r"\d{1,6}", root := said.get("root", "")) else -1)
        at += len(body)
    return len(bodies)


def _line(said: dict[str, str], body: dict[str, str], place: Place) -> Line:
    cpu = "cputime" in body
    return Line(
        nbytes=_whole(said["size"]),
        count=_whole(said["count"]),
        dtype=said["type"],
        redop=said.get("redop", "none"),
        place=place,
        time_us=_number(body["cputime" if cpu else "time"]),
        algbw=_number(body.get("algbw", "0")),
        busbw=_number(body.get("busbw", "0")),
        wrong=_wrong_count(body),
        cpu=cpu,
    )


def _wrong_count(body: dict[str, str]) -> int | None:
    """Return the number of wrong elements: ``#wrong`` counts them; in old versions' ``error`` only 0 is certain."""
    text = body.get("#wrong", body.get("error", "N/A")).rstrip("*")
    if text == "N/A":
        return None
    number = _number(text)
    if number == math.inf:
        raise ValueError(f"{text[:20]!r} is not a count of elements")
    return int(number) if "#wrong" in body else 0 if number == 0 else None


def _number(text: str) -> float:
    if not re.fullmatch(r"-?\d{1,18}(?:\.\d{0,9})?(?:e[+-]?\d{1,3})?", text):
        raise ValueError(f"{text[:20]!r} is not a number")
    return float(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(f"{text[:20]!r} is not a size or count")
    return int(text)


def _finish_run(section: _Section, path: str, given: Given) -> Iterator[Run]:
    """Yield the run of `section`, if it has rows. Raises UsageError for the user's numbers."""
    if not section.lines:
        return
    op, ranks, missing = recognised(_printed(section, given))
    try:
        rows = _measurements(section, op, ranks)
    except Contradiction as error:
        if given != NOT_GIVEN:
            raise refused(path, op, error) from None
        rows, missing = _measurements(section, op, 0), f"its numbers do not agree: {error}"
    if not rows:
        return
    broken = section.context.failure(ended=section.ended)
    failed = broken or wrong_data(section.wrong, rows)
    yield Run(
        path,
        "",
        tuple(_unverify(rows, section)),
        fingerprint(section.ranks, section.nccl),
        failed,
        section.missing or missing,
        cut=not section.ended,
        log=_log(section),
    )


def _measurements(section: _Section, op: str, ranks: int) -> list[Measurement]:
    """Return the rows of a table, without impossible ones. Raises Contradiction."""
    setup = Setup(op, ranks, _nodes(section, ranks), section.mode, section.iters, section.nccl)
    rows = list[Measurement]()
    for line in section.lines:
        try:
            rows += filter(None, [measurement(line, setup)])
        except Contradiction:
            raise
        except ValueError as error:
            section.unread += [f"the row of {line.nbytes}: {error}"][: _UNREAD - len(section.unread)]
    return rows


def _log(section: _Section) -> Log:
    """Return what the log says of the run besides its rows."""
    context = section.context
    hosts: dict[str, list[str]] = {}
    for group, host, gpu in section.ranks:
        if group == section.ranks[0][0]:
            hosts.setdefault(host, []).append(gpu)
    return Log(
        line=section.line,
        command=context.command,
        settings=dict(context.settings),
        hosts={host: tuple(gpus) for host, gpus in hosts.items()},
        average=section.average,
        wrong=section.wrong,
        network=context.network,
        nics=len(context.nics),
        empty=sum(not line.nbytes for line in section.lines),
        unread=tuple(section.unread),
        unchecked=section.unchecked,
        no_multicast=section.no_multicast,
        died=bool(context.failure(ended=True)),
        shared=_shared_gpu(section),
        unfinished=int(section.unfinished.split()[0]) if _begins_row(section.unfinished) else 0,
    )


def _shared_gpu(section: _Section) -> str:
    """Return which ranks share a GPU; empty if none do. A bus without its domain may belong to several GPUs."""
    for (_, host, _, bus), ranks in section.places.items():
        if len(ranks) > 1 and ":" in bus and bus.strip("0x:."):
            return f"ranks {' and '.join(ranks[:3])} are on one GPU, {bus} of {host} (or on hosts of one name)"
    return ""


def _printed(section: _Section, given: Given) -> Printed:
    """Return the evidence for the operation and the number of ranks."""
    first = section.ranks[0][0] if section.ranks else ""
    numbers = [number for group, number in section.listed if group == first]
    return Printed(
        lines=section.lines,
        roots=section.roots,
        op=given.op or section.op,
        hints=section.hints,
        counts=(given.ranks, max(numbers, default=-1) + 1, section.context.started),
    )


def _nodes(section: _Section, ranks: int) -> int:
    """Return the number of hosts; in a list with gaps, the last GPU of a node shows how many each has."""
    listed: dict[int, tuple[str, int]] = {}
    for (group, host, device, _), numbers in section.places.items():
        if group == section.ranks[0][0]:
            listed |= dict.fromkeys(map(int, numbers), (host, int(device) + 1))
    hosts = [host for host, _ in listed.values()]
    last = (
        max(device, hosts.count(host))
        for rank, (host, device) in listed.items()
        if rank + 1 == ranks or listed.get(rank + 1, (host,))[0] != host
    )
    each = 0 if len(section.ranks) >= ranks else max(last, default=0)
    count = len(set(hosts)) or 1
    return count if not each or ranks % each else max(count, ranks // each)


def _unverify(rows: Sequence[Measurement], section: _Section) -> Iterator[Measurement]:
    """Yield the rows; if only the summary reports wrong data, none of them counts as verified."""
    unknown = section.wrong and not any(row.wrong for row in rows)
    for row in rows:
        yield replace(row, wrong=None) if unknown else row


def fingerprint(ranks: Sequence[tuple[str, str, str]], nccl: str) -> Fingerprint | None:
    """Return the GPUs of the first host, as listed (group, host, GPU)."""
    first = [gpu for _, host, gpu in ranks if host == ranks[0][1]]
    if not first:
        return None
    software = {} if nccl == "unknown" else {"nccl": nccl}
    return Fingerprint(
        {"gpu": ", ".join(f"{first.count(gpu)} x {gpu}" for gpu in dict.fromkeys(first))}, None, software
    )


VERSION = 3

_Number = float | str | None


class _Body(msgspec.Struct, frozen=True):
    """One placement of one size."""

    time: _Number = None
    cpu_time: _Number = None
    alg_bw: _Number = None
    bus_bw: _Number = None
    nwrong: _Number = None


class _Result(msgspec.Struct, frozen=True):
    """One size."""

    size: int
    count: int
    type: str
    redop: str = "none"
    out_of_place: _Body | None = None
    in_place: _Body | None = None


class _Device(msgspec.Struct, frozen=True):
    """The first GPU of one process."""

    group: int = 0
    hostname: str = ""
    device_info: str = ""


class _Config(msgspec.Struct, frozen=True):
    """Settings of the run. `blocking_collectives` is text, and has lost which of three ways."""

    nthreads: int = 1
    ngpus: int = 1
    iterations: int = 1
    aggregated_iterations: int = 1
    graph: int = 0
    blocking_collectives: str | bool = False
    devices: list[_Device] = []


class _Bounds(msgspec.Struct, frozen=True):
    """Number of wrong values."""

    count: int = 0


class _Library(msgspec.Struct, frozen=True):
    """The library that measured the rows, which ncclprobe adds to a file of its own."""

    backend: str = "nccl"
    version: str = ""


class _Document(msgspec.Struct, frozen=True):
    """A whole file."""

    version: int
    results: list[_Result]
    args: list[str] = []
    start_time: str = ""
    nccl_version: int = 0
    config: _Config = _Config()
    out_of_bounds: _Bounds | None = None
    errors: list[str] = []
    ncclprobe: _Library = _Library()


def parse_json(text: str, path: str) -> Run:
    """Return the run in `text`. Raises UsageError if it is not a complete file of nccl-tests."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a complete JSON file of nccl-tests: {error}") from None
    if not 1 <= document.version <= VERSION:
        raise UsageError(f"{path}: version {document.version} of nccl-tests' JSON; this reads up to {VERSION}")
    if len(document.results) > bounds.NCCL_TESTS_ROWS:
        raise UsageError(f"{path}: more than {bounds.NCCL_TESTS_ROWS} results")
    setup, found = _setup(document, path), list[Measurement]()
    for number, result in enumerate(document.results, start=1):
        try:
            lines = (_json_line(result, place) for place in ("out", "in"))
            found += [row for line in lines if line and (row := measurement(line, setup))]
        except ValueError as error:
            raise refused(path, f"result {number}", error) from None
    wrong = document.out_of_bounds.count if document.out_of_bounds else 0
    failed = "; ".join(each[:160] for each in document.errors[:3] if each) or wrong_data(wrong, found)
    return Run(path, document.start_time, tuple(found), _fingerprint(document), failed)


def _setup(document: _Document, path: str) -> Setup:
    config = document.config
    op = op_name(document.args[0]) if document.args else ""
    if not op:
        raise UsageError(f"{path}: does not name the operation: its args contain no …_perf program")
    own = [each for each in config.devices if each.group == config.devices[0].group]
    ranks = len(own) * config.nthreads * config.ngpus  # a process lists its first GPU alone
    if ranks < 1:
        raise UsageError(f"{path}: does not show the number of ranks: it lists no devices")
    blocking = config.blocking_collectives in (True, "true")
    mode: Mode = "graph" if config.graph else "blocking" if blocking else "queued"
    nccl = version(document.nccl_version) if document.nccl_version > 0 else "unknown"
    iters = max(1, config.iterations * config.aggregated_iterations)
    hosts = len({each.hostname for each in own})
    if document.ncclprobe.backend == "gloo":
        return Setup(op, ranks, hosts, mode, iters, document.ncclprobe.version or "unknown", "gloo")
    return Setup(op, ranks, hosts, mode, iters, nccl)


def _json_line(result: _Result, place: Place | str) -> Line | None:
    body = result.out_of_place if place == "out" else result.in_place
    if body is None:
        return None
    cpu = body.time is None and body.cpu_time is not None
    return Line(
        nbytes=result.size,
        count=result.count,
        dtype=result.type.strip(),
        redop=result.redop.strip(),
        place="out" if place == "out" else "in",
        time_us=_json_number(body.cpu_time if cpu else body.time),
        algbw=_json_number(body.alg_bw),
        busbw=_json_number(body.bus_bw),
        wrong=None if body.nwrong in (None, "nan", "N/A") else int(_json_number(body.nwrong)),
        cpu=cpu,
    )


def _json_number(said: _Number) -> float:
    """Return a number, even if written as text. Raises ValueError if it is missing or not finite."""
    number = math.nan if said is None else float(said)
    if not math.isfinite(number):
        raise ValueError("a time or bandwidth is missing or not a number")
    return number


def _fingerprint(document: _Document) -> Fingerprint | None:
    config = document.config
    each = config.nthreads * config.ngpus
    if not 0 < each <= 1024:
        return None
    ranks = [(str(d.group), d.hostname, d.device_info) for d in config.devices if d.device_info for _ in range(each)]
    return fingerprint(ranks, version(document.nccl_version) if document.nccl_version > 0 else "unknown")
