"""The JSON of nccl-tests (``-J``), version 3 and before: booleans are text, a number may be ``"nan"``, parts may lack.

Version 3 is what a0b82b2 (2.19.6) writes, src/util.cu: jsonBool, jsonDouble, writeBenchmarkLineBody.
"""

import math

import msgspec

from ncclprobe import bounds
from ncclprobe.errors import UsageError
from ncclprobe.model.measurement import Fingerprint, Measurement, Mode, Place
from ncclprobe.nccl_tests.rows import Line, Run, Setup, measurement, op_name, refused, version, wrong_data
from ncclprobe.nccl_tests.texts import fingerprint

VERSION = 3

_Number = float | str | None


class Body(msgspec.Struct, frozen=True):
    """One placement of one size."""

    time: _Number = None
    cpu_time: _Number = None
    alg_bw: _Number = None
    bus_bw: _Number = None
    nwrong: _Number = None


class Result(msgspec.Struct, frozen=True):
    """One size."""

    size: int
    count: int
    type: str
    redop: str = "none"
    out_of_place: Body | None = None
    in_place: Body | None = None


class Device(msgspec.Struct, frozen=True):
    """The first GPU of one process."""

    group: int = 0
    hostname: str = ""
    device_info: str = ""


class Config(msgspec.Struct, frozen=True):
    """How it was run. `blocking_collectives` is text, and has lost which of three ways."""

    nthreads: int = 1
    ngpus: int = 1
    iterations: int = 1
    aggregated_iterations: int = 1
    graph: int = 0
    blocking_collectives: str | bool = False
    devices: list[Device] = []


class Bounds(msgspec.Struct, frozen=True):
    """How many values were wrong."""

    count: int = 0
    okay: str | bool = True


class Library(msgspec.Struct, frozen=True):
    """What ncclprobe adds where the file is its own: with which library the rows were measured."""

    backend: str = "nccl"
    version: str = ""


class Document(msgspec.Struct, frozen=True):
    """A whole file."""

    version: int
    results: list[Result]
    args: list[str] = []
    start_time: str = ""
    nccl_version: int = 0
    config: Config = Config()
    out_of_bounds: Bounds | None = None
    errors: list[str] = []
    ncclprobe: Library = Library()


def parse_json(text: str, path: str) -> Run:
    """Return the run in `text`. Raises UsageError for what is no whole file of nccl-tests."""
    try:
        document = msgspec.json.decode(text, type=Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a whole JSON file of nccl-tests: {error}") from None
    if not 1 <= document.version <= VERSION:
        raise UsageError(f"{path}: version {document.version} of nccl-tests' JSON; this reads up to {VERSION}")
    if len(document.results) > bounds.NCCL_TESTS_ROWS:
        raise UsageError(f"{path}: more than {bounds.NCCL_TESTS_ROWS} results")
    setup, found = _setup(document, path), list[Measurement]()
    for number, result in enumerate(document.results, start=1):
        try:
            lines = (_line(result, place) for place in ("out", "in"))
            found += [row for line in lines if line and (row := measurement(line, setup))]
        except ValueError as error:
            raise refused(path, f"result {number}", error) from None
    wrong = document.out_of_bounds.count if document.out_of_bounds else 0
    failed = "; ".join(each[:160] for each in document.errors[:3] if each) or wrong_data(wrong, found)
    return Run(path, document.start_time, tuple(found), _fingerprint(document), failed)


def _setup(document: Document, path: str) -> Setup:
    config = document.config
    op = op_name(document.args[0]) if document.args else ""
    if not op:
        raise UsageError(f"{path}: does not say which operation was measured: its args name no …_perf program")
    own = [each for each in config.devices if each.group == config.devices[0].group]
    ranks = len(own) * config.nthreads * config.ngpus  # a process lists its first GPU alone
    if ranks < 1:
        raise UsageError(f"{path}: does not say how many ranks there were: it lists no devices")
    blocking = config.blocking_collectives in (True, "true")
    mode: Mode = "graph" if config.graph else "blocking" if blocking else "queued"
    nccl = version(document.nccl_version) if document.nccl_version > 0 else "unknown"
    iters = max(1, config.iterations * config.aggregated_iterations)
    hosts = len({each.hostname for each in own})
    if document.ncclprobe.backend == "gloo":
        return Setup(op, ranks, hosts, mode, iters, document.ncclprobe.version or "unknown", "gloo")
    return Setup(op, ranks, hosts, mode, iters, nccl)


def _line(result: Result, place: Place | str) -> Line | None:
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
        time_us=_number(body.cpu_time if cpu else body.time),
        algbw=_number(body.alg_bw),
        busbw=_number(body.bus_bw),
        wrong=None if body.nwrong in (None, "nan", "N/A") else int(_number(body.nwrong)),
        cpu=cpu,
    )


def _number(said: _Number) -> float:
    """Return a number, also where it was written as text. Raises ValueError where there is none, or it is no finite
    one.
    """
    number = math.nan if said is None else float(said)
    if not math.isfinite(number):
        raise ValueError("a time or bandwidth is missing or no number")
    return number


def _fingerprint(document: Document) -> Fingerprint | None:
    config = document.config
    each = config.nthreads * config.ngpus
    if not 0 < each <= 1024:
        return None
    ranks = [(str(d.group), d.hostname, d.device_info) for d in config.devices if d.device_info for _ in range(each)]
    return fingerprint(ranks, version(document.nccl_version) if document.nccl_version > 0 else "unknown")
