"""Every reader of foreign text or bytes, with texts that it reads: what scripts/fuzz.py spoils.

A reader may return a value or raise an NcclprobeError; anything else is a defect. A collector may also meet any of the
errors that engine/collect.py turns into Absent, and no check may break on what it learned.
"""

import asyncio
import contextlib
import json
import random
import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from fuzz_mutations import changed, spoilt, spoilt_bytes
from fuzz_seeds import (
    BANDS,
    CAPTURES,
    IGNORES,
    LAUNCHES,
    MACHINES,
    MESSAGES,
    baseline,
    cache_file,
    captured,
    flights,
    libraries,
    literals,
    report_text,
    tables,
)

from ncclprobe import wire
from ncclprobe.cluster.mesh.listeners import parse_listeners
from ncclprobe.cluster.mesh.plan import NodePlan
from ncclprobe.cluster.rendezvous import messages
from ncclprobe.commands import compare, run_files
from ncclprobe.engine import suppressions
from ncclprobe.engine.collect import _run_collector as made
from ncclprobe.engine.collect import arguments, collect, of_node
from ncclprobe.engine.diagnose import LEFT, MEASURED, Judging, Question, diagnose, every_check
from ncclprobe.engine.judge import judge_node
from ncclprobe.engine.measured import run_facts
from ncclprobe.expect import bands, baselines, composed
from ncclprobe.expect.tables.machines import from_toml
from ncclprobe.expect.topology_text import system_in
from ncclprobe.facts import nccl_conf, nvlink, topo_matrix
from ncclprobe.facts.files import flight_child
from ncclprobe.facts.files.ras import read_answer
from ncclprobe.facts.launcher import Flags, detect, half_given
from ncclprobe.facts.nccl_conf import topology_file
from ncclprobe.host import elf, job_files, live, nvml_child
from ncclprobe.host.capture import Replay, load, parse
from ncclprobe.host.run_log import RunLog
from ncclprobe.logs import reader as log_reader
from ncclprobe.logs.read import JobFiles, looked_at
from ncclprobe.model import training
from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.hostlist import expand
from ncclprobe.model.registry import Check, Collector, Source, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.units import parse_size
from ncclprobe.model.values import asdict
from ncclprobe.nccl import log as nccl_log
from ncclprobe.nccl.hcas import parse_selector
from ncclprobe.nccl.values import read_int
from ncclprobe.nccl_tests import parse_json, parse_text
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import json as as_json
from ncclprobe.report import junit, markdown, prometheus, text

_LIMIT = 1 << 20
_MILD = 3 / 4


class Reader(NamedTuple):
    """`attempt` spoils one of the reader's texts by random numbers and reads it."""

    name: str
    attempt: Callable[[random.Random], object]


class CheckBroke(Exception):
    """A check broke on a fact that a collector made of spoilt answers."""


def readers() -> list[Reader]:
    """Return every reader, the collectors last."""
    return [*_of_texts(), *_of_bytes(), *_of_messages(), *_file_sections(), *_of_machines()]


def _of(name: str, read: Callable[[str], object], seeds: Callable[[], Sequence[str]]) -> Reader:
    """Return a reader of text whose seeds are made when it is first asked."""
    found = cache(lambda: tuple(each for each in seeds() if each))
    taken = cache(lambda: tuple(each for each in found() if _is_read(read, each)) or found())

    def attempt(draw: random.Random) -> object:
        made = _made_of(found(), taken(), draw)
        return read(made.encode(errors="replace").decode())  # what comes from a file or a command is UTF-8

    return Reader(name, attempt)


def _groups(text: str) -> object:
    groups = training.parse(text)
    with contextlib.suppress(NcclprobeError):  # groups that do not fit the ranks were read
        return training.fit(groups, 64)
    return groups


def _is_read(read: Callable[[str], object], seed: str) -> bool:
    """Return whether a reader takes a seed as it stands; tests have texts that are to be refused."""
    try:
        read(seed)
    except NcclprobeError:
        return False
    return True


def _made_of(seeds: Sequence[str], taken: Sequence[str], draw: random.Random) -> str:
    """Return a seed, spoilt; or, three times of four, one that is taken, with other values, to get past the parser."""
    mild = draw.random() < _MILD
    return changed(draw.choice(taken), draw) if mild else spoilt(draw.choice(seeds), draw.choice(seeds), draw)


def _of_texts() -> Iterator[Reader]:
    topo = captured(("run", "nvidia-smi", "topo", "-m"))
    yield _of("topology matrix", lambda each: topo_matrix.parse(each), topo)
    yield _of("nvidia-smi nvlink", nvlink.parse, captured(("run", "nvidia-smi", "nvlink")))
    conf = ["NCCL_DEBUG=WARN\n# comment\nNCCL_IB_HCA= mlx5_0:1,mlx5_1\n", "A=B\nNCCL_NET_GDR_LEVEL=PHB\n" * 5]
    yield _of("nccl.conf", lambda each: nccl_conf.parse_conf(each, "nccl.conf"), lambda: conf)
    yield _of("NCCL's log", nccl_log.read, literals("nccl/test_log.py"))
    yield _of("topology files", _topology, literals("expect/test_topology_file.py"))
    yield _of("topology XML", lambda each: topology_file("/x", each), literals("facts/made_up_texts.py"))
    hosts = ["gpu[007-010,20],cpu1", "n[0-3]r[1,2].example.org", "a,b,c", "node-[1-8]-[001-002]"]
    yield _of("host lists", lambda each: _unless(ValueError, lambda: expand(each)), lambda: hosts)
    selectors = ["mlx5_0:1,mlx5_1", "=mlx5_0:1", "^docker,lo", "eth0,^ib", "=^mlx5:2,"]
    yield _of("device lists", lambda each: parse_selector(each, 32), lambda: selectors)
    yield _of("NCCL's numbers", lambda each: read_int(each, 1), lambda: ["1", "0x10", "-2", " 7", "4294967296"])
    yield _of("sizes", parse_size, lambda: ["64M", "1G", "8", "1.5K", "4KiB"])
    yield _of("groups", _groups, lambda: ["tp=8,dp=8", "tp=2,cp=2,ep=4,pp=4", "dp=64", "pp=4,dp=16"])
    yield _of("machine of parts", composed.composed, lambda: [*MACHINES, composed.EXAMPLE])
    yield _of("launcher's variables", _launch, lambda: [json.dumps(each) for each in LAUNCHES])
    yield _of("kernel ring", lambda each: live.ring_line(each.encode(errors="replace")), lambda: ["6,5,1000,-;x y\n"])
    yield _of("journal", lambda each: live._journal_lines(each.splitlines()), lambda: ["[    1.5] NVRM: Xid 79\n"])
    lines = '{"said": "[1, 2]"}\n', '{"refused": "Failed", "why": "Not Supported"}\n'
    yield _of("NVML child", lambda each: nvml_child.decode_answer(each.encode(errors="replace")), lambda: lines)


def _file_sections() -> Iterator[Reader]:
    captures = lambda: [path.read_text() for path in sorted(CAPTURES.glob("*.jsonl"))[:6]]  # noqa: E731
    yield _of("capture", lambda each: parse(each, "capture"), captures)
    yield _of("redacted capture", lambda each: Redactor(b"key").capture(each[:100_000]), captures)
    log = lambda: [(ROOT / "tests" / "data" / "run.jsonl").read_text()]  # noqa: E731
    yield _of("run.jsonl", _on_file(lambda path: _run(RunLog.read(path))), log)
    yield _of("report", _on_file(lambda path: _rendered(as_json.read(str(path)))), lambda: [report_text()])
    yield _of("compare", _on_file(_compared), lambda: [report_text(), *tables()])
    yield _of("nccl-tests text", lambda each: parse_text(each, "log"), lambda: tables()[:1])
    yield _of("nccl-tests JSON", lambda each: parse_json(each, "log"), lambda: tables()[1:])
    yield _of("baseline", lambda each: baselines.bands(baselines.parse(each, "b"), "b"), lambda: [baseline()])
    yield _of("bands (TOML)", lambda each: bands.from_toml(each, "b"), lambda: [BANDS])
    yield _of("ncclprobe.toml", lambda each: suppressions.parse(each, "c"), lambda: [IGNORES])
    folder = ROOT / "ncclprobe" / "expect" / "tables" / "machines"
    machines = lambda: [path.read_text() for path in sorted(folder.glob("*.toml"))]  # noqa: E731
    yield _of("machine type (TOML)", lambda each: from_toml(each, "m"), machines)
    yield _of("run file", _on_file(lambda path: run_files.read_runs(str(path))), lambda: [report_text(), *tables()])
    logs = literals("log/test_causes.py", "log/test_examples.py", "log/test_reader.py", "nccl/test_log.py")
    yield _of("job's log", lambda each: log_reader.read([("log", [each.encode(errors="replace")])]), logs)
    ras = literals("facts/made_up_records.py")
    yield _of("RAS answer", lambda each: read_answer("ras", each.encode(errors="replace")), ras)
    yield _of("explain FILE", _on_file(_explained), lambda: [*logs(), *ras()])


def _of_bytes() -> Iterator[Reader]:
    def of(name: str, read: Callable[[bytes], object], seeds: Callable[[], Sequence[bytes]]) -> Reader:
        found = cache(lambda: tuple(seeds()))
        return Reader(name, lambda draw: read(spoilt_bytes(draw.choice(found()), draw.choice(found()), draw)))

    yield of("ELF", _on_bytes(lambda path: _unless(OSError, lambda: elf.dynamic(str(path)))), libraries)
    yield of("ld.so.cache", _on_bytes(lambda path: elf.cached("lib", path=str(path))), lambda: [cache_file()])
    yield of("flight record", _of_child, flights)
    yield of("wire greeting", _greeted, lambda: [b"ncclprobe/2 token " + b"0" * 32 + b"\n" + bytes(100)])
    packed = [zlib.compress(json.dumps(each).encode()) for each in MESSAGES]
    texts = [json.dumps(each) for each in MESSAGES]

    def message(draw: random.Random) -> object:
        if draw.random() < _MILD:
            return wire._message(zlib.compress(changed(draw.choice(texts), draw).encode(errors="replace")), _LIMIT)
        return wire._message(spoilt_bytes(draw.choice(packed), draw.choice(packed), draw), _LIMIT)

    yield Reader("wire message", message)


def _of_messages() -> Iterator[Reader]:
    def read(each: str) -> object:
        message = wire._message(zlib.compress(each.encode(errors="replace")), _LIMIT)
        kinds = {"hello": messages.Hello, "leave": messages.Leave, "capture": str, "plan": NodePlan}
        found: list[Any] = [messages.parse(message, key, kind) for key, kind in kinds.items() if key in message]
        for each_found in found:
            if isinstance(each_found, messages.Hello):
                parse_listeners(each_found.listeners)
            elif isinstance(each_found, NodePlan):
                _unless(ValueError, each_found.check)
        return found

    yield _of("rendezvous message", read, lambda: [json.dumps(each) for each in MESSAGES])


def _of_machines() -> Iterator[Reader]:
    by_module: dict[str, list[Collector]] = {}
    for each in discover("ncclprobe.facts", Collector, {"machine"}):
        by_module.setdefault(each.run.__module__.rpartition(".")[2], []).append(each)
    for name, collectors in by_module.items():
        yield Reader(f"facts/{name}", partial(_learn, collectors))


@cache
def _machines() -> list[tuple[Replay, dict[type, Any]]]:
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    hosts = [load(path) for path in sorted(CAPTURES.glob("*.jsonl"))]
    return [(host, collect(host, collectors)) for host in hosts]


@cache
def _checks_of(kind: type) -> tuple[Check, ...]:
    checks = every_check(frozenset({"machine"}))
    return tuple(c for c in checks if not c.compares and any(need.fact is kind for need in c.needs))


class _Spoiling:
    """A replay of which one answer is spoilt: the first of which chance says so."""

    def __init__(self, host: Replay, draw: random.Random) -> None:
        self._host, self._draw, self.done = host, draw, False

    def ask(self, *question: str | int) -> str:
        """Return the answer, spoilt or not."""
        said = self._host.ask(*question)
        if self.done or self._draw.random() > 0.3:
            return said
        self.done = True
        return spoilt(said, said, self._draw)


def _learn(collectors: Sequence[Collector], draw: random.Random) -> object:
    host, facts = draw.choice(_machines())
    collector = draw.choice(collectors)
    given, missing = arguments(collector.needs, partial(of_node, facts))
    if missing:
        return None
    fact = made(collector, _Spoiling(host, draw), given)
    changed = {**facts, collector.produces: fact}
    for verdict in judge_node(Snapshot("n0", changed), _checks_of(collector.produces), Job()):
        if verdict.why.startswith("the check itself failed"):
            raise CheckBroke(f"{verdict.id}: {verdict.why}")
    return fact


def _run(log: RunLog) -> object:
    """Judge a run log as `doctor run.jsonl` does, and render the report."""
    return _unbroken(diagnose(_question(MEASURED), (), run_facts(log)))


@cache
def _signs() -> list[str]:
    return [sign for check in every_check(LEFT) if check.cause for sign in check.cause.signs]


def _explained(path: Path) -> object:
    """Explain a file as the command does, and render the report."""
    found = looked_at(job_files.named([str(path)]), _signs())
    report = diagnose(_question(LEFT), facts={JobFiles: found})
    return _unbroken(report)


def _question(sources: frozenset[Source]) -> Question:
    checks = every_check(sources)
    return Question((), sources, checks, (), suppressions.Accepted(), Judging(), Job(), True, _EPOCH, 0.0)


def _unbroken(report: Report) -> object:
    """Render a report on which no check broke."""
    for verdict in report.checks:
        if verdict.why.startswith("the check itself failed"):
            raise CheckBroke(f"{verdict.id}: {verdict.why}")
    return _rendered(report)


def _rendered(report: Report) -> object:
    """Render a report in every format but the page, which costs a tenth of a second."""
    return [page(report) for page in (text.render, markdown.render, junit.render, prometheus.render, as_json.render)]


def _compared(path: Path) -> object:
    known = path.with_name("known.json")
    if not known.exists():
        known.write_text(report_text())
    old, new = compare.side(str(known)), compare.side(str(path))
    found = compare.compared(old, new, 0.1)
    return list(compare._text(old, new, found, quiet=False)), json.dumps(asdict(found))


def _launch(each: str) -> object:
    try:
        found = json.loads(each)
    except (ValueError, RecursionError):
        return None
    variables = {str(k): v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
    return detect(variables), half_given(Flags(4, 1), variables)


def _topology(text: str) -> object:
    return system_in(text, "topology", "H200", 400.0, network=True)


def _unless(refusal: type[Exception], read: Callable[[], object]) -> object:
    """Return what `read` returns; None after `refusal`, by which its callers know that there is nothing."""
    with contextlib.suppress(refusal):
        return read()
    return None


@cache
def _folder() -> Path:
    kept = tempfile.TemporaryDirectory(prefix="fuzz-")
    _KEPT.append(kept)
    return Path(kept.name)


def _on_file(read: Callable[[Path], object]) -> Callable[[str], object]:
    return lambda each: _on_bytes(read)(each.encode(errors="surrogatepass"))


def _on_bytes(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def on_file(data: bytes) -> object:
        path = _folder() / "spoilt"
        path.write_bytes(data)
        return read(path)

    return on_file


def _of_child(data: bytes) -> object:
    """Read a flight record with as much memory as the child has that reads them."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (flight_child.MEMORY_BYTES, resource.RLIM_INFINITY))
    try:
        return flight_child.answer(data)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _greeted(data: bytes) -> object:
    async def read() -> object:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await wire._receive_greeting(reader, time.monotonic() + 5)

    return asyncio.run(read())


_KEPT: list[Any] = []
_EPOCH = datetime(2026, 11, 22, tzinfo=timezone.utc)
