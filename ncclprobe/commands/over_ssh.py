"""Orders for each host of ``--hosts``, and one report of their findings.

The first host that answers is node 0. Its report comes back, with ssh's messages about hosts that take no part.
"""

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ncclprobe import page
from ncclprobe.checks.sync.roster import host_unused
from ncclprobe.cluster.rendezvous.token import VARIABLE as TOKEN
from ncclprobe.commands.hosts import STARTED, Hosts
from ncclprobe.engine import evidence_excerpts
from ncclprobe.engine.diagnose import MACHINE, Question, diagnose
from ncclprobe.engine.judge import compare, conclude, coverage, selected
from ncclprobe.facts.reach import HostFailure, StartedHosts
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.units import printable
from ncclprobe.model.values import Struct, replace
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import FORMATS, Output
from ncclprobe.report.progress import Waiting
from ncclprobe.session.ssh.here import Call, Calls
from ncclprobe.session.ssh.there import Order

_SPARE_S = 15.0  # after --timeout, for the hosts to end and to send what they found
_VALUES = ("--hosts", "--hostfile", "--remote-python", "--nodes-out", "--keep", "--timeout", "--nproc", "--redact-key")
_FLAGS = {"-q", "--quiet", "-v", "--verbose", "--no-color", "--redact"}
_LOCAL = {*_VALUES, *_FLAGS, *(f"--{name}" for name in FORMATS)}
_FILES, _PATHS = {"--config", "--expect", "--baseline"}, {"--path"}
"""Options for this side only, and options whose file or path is passed on."""


class Started(Struct, frozen=True):
    """What the hosts run: the command line `argv`, within `timeout_s`; `keep`: a folder for their captures.

    `ranks` None: one process per host; otherwise that many ranks for a host with so many GPUs.
    """

    hosts: Hosts
    argv: Sequence[str]
    timeout_s: float
    output: Output
    keep: Path | None = None
    ranks: Callable[[int], int] | None = None


def run(asked: Started, question: Question) -> int:
    """Run the command on the hosts, deliver their report, and return its exit code. Raises UsageError."""
    words, texts = host_words(asked.argv)
    present, failed = _run_orders(
        asked, question, lambda present, left_s: host_orders(asked, present, words, left_s, texts)
    )
    first = present[0] if present else None
    report = _report(question, first, failed)
    report = add_hosts(report, question, StartedHosts(len(asked.hosts.names), tuple(failed)))
    if asked.keep and first and first.outcome:
        keep(asked.keep, first.outcome.kept, first.outcome.left)
    return delivery.deliver(report, asked.output)


def look(asked: Started, question: Question) -> tuple[dict[str, str], StartedHosts]:
    """Return the captures that each host keeps, by file name, and which hosts took no part."""
    words, texts = host_words(asked.argv)

    def orders(present: Sequence[Call], left_s: float) -> list[Order]:
        line = (*words, "--timeout", f"{left_s:g}")
        return [Order(line, ({STARTED: "1"},), texts, keep=True) for _ in present]

    present, failed = _run_orders(asked, question, orders)
    kept = {f"{call.host}-{name}": text for call in present if call.outcome for name, text in call.outcome.kept.items()}
    if left := sum(call.outcome.left for call in present if call.outcome):
        delivery.complain(f"--hosts: {left} captures are left out: together they are too large")
    return kept, StartedHosts(len(asked.hosts.names), tuple(failed))


def _run_orders(
    asked: Started, question: Question, orders: Callable[[Sequence[Call], float], Sequence[Order]]
) -> tuple[list[Call], list[HostFailure]]:
    """Run `orders` on the hosts; return the hosts that answered, and those that failed."""
    total, quiet = len(asked.hosts.names), asked.output.quiet
    with (
        Waiting(f"calling {total} hosts", wanted=not quiet) as waiting,
        Calls(asked.hosts.names, asked.hosts.python, lambda lines: None if quiet else _show(lines, waiting)) as calls,
    ):
        present = calls.greet(asked.timeout_s, waiting.say)
        waiting.say(f"running on {len(present)} of {total} hosts")
        left_s = max(asked.timeout_s - (time.monotonic() - question.clock), 1.0)
        for call, order in zip(present, orders(present, left_s), strict=True):
            call.order(order)
        calls.outcomes(present, time.monotonic() + left_s + _SPARE_S)
        return present, [call.failure for call in calls.all if call.failure]


def _show(lines: str, waiting: Waiting) -> None:
    waiting.end()
    print(lines, file=sys.stderr, flush=True)


def keep(folder: Path, kept: Mapping[str, str], left: int) -> None:
    """Write the captures that hosts have sent. Raises UsageError."""
    files.make_folder(folder, 0o700)
    for name, text in kept.items():
        files.write(folder / Path(name).name, text, private=True)
    if left:
        delivery.complain(f"--keep: {left} captures are left out, because together they are too large")


def host_words(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words of `argv` for the hosts, and the contents of the files that they name."""
    words, texts = list[str](), dict[str, str]()
    rest = iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        takes = name in (_LOCAL | _FILES | _PATHS) - _FLAGS
        value = value if equals or not takes else next(rest, "")
        if name in _FILES:
            texts[name[2:]] = files.read(Path(value), limit=bounds.EXPECT_BYTES)
            words += [name, f"{{{name[2:]}}}"]
        elif name in _PATHS:
            words += [name, os.path.abspath(value)]  # noqa: PTH100 - asks no file system, which may hang
        elif name not in _LOCAL:
            words.append(word)
    return words, texts


def host_orders(
    asked: Started, present: Sequence[Call], words: Sequence[str], left_s: float, extra: Mapping[str, str]
) -> list[Order]:
    """Return what each host starts. They meet at the first."""
    hello = present[0].hello if present else None
    port, address = (hello.port, hello.address) if hello else (0, "")
    address = address or (present[0].host.rpartition("@")[2] if present else "")
    token = {TOKEN: secrets.token_hex(16)} if len(present) > 1 else {}
    counts = [asked.ranks(call.hello.gpus) if asked.ranks and call.hello else 1 for call in present]
    orders = []
    for number in range(len(present)):
        own = ["--timeout", f"{left_s:g}"]
        if asked.ranks is None and len(present) > 1:
            own += ["--nnodes", str(len(present)), "--node-rank", str(number)]
            own += ["--master-addr", address, "--master-port", str(port)]
        elif asked.ranks and len(present) == 1 and counts[0] > 1:
            own += ["--nproc", str(counts[0])]
        line = (*words, *own)
        job = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "NNODES": str(len(present)), "NODE_RANK": str(number)}
        ranks = _ranks(counts, number, job) if asked.ranks and len(present) > 1 else [{}]
        given = tuple({STARTED: "1", **token, **each} for each in ranks)
        orders.append(Order(line, given, dict(extra), report=number == 0, keep=number == 0 and asked.keep is not None))
    return orders


def _ranks(counts: Sequence[int], number: int, job: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables of each rank of host `number`, as torchrun would set them."""
    before, here = sum(counts[:number]), counts[number]
    sizes = {"WORLD_SIZE": str(sum(counts)), "LOCAL_WORLD_SIZE": str(here)}
    return [{**job, **sizes, "RANK": str(before + local), "LOCAL_RANK": str(local)} for local in range(here)]


def _report(question: Question, first: Call | None, failed: list[HostFailure]) -> Report:
    """Return the first host's report; an empty one without such a host, with the reason in `failed`."""
    if first and first.outcome:
        try:
            report = as_json.parse(first.outcome.report, first.host)
            return replace(report, command=printable(shlex.join(question.command)))
        except UsageError:
            codes = ", ".join(map(str, first.outcome.codes))
            failed.append(HostFailure(first.host, "lost", f"exit code {codes}, and no report"))
    return diagnose(replace(question, checks=(), sources=MACHINE))


def add_hosts(report: Report, question: Question, hosts: StartedHosts) -> Report:
    """Return `report` with the hosts that take no part; without them it is inconclusive."""
    checks = selected([host_unused], question.judging.select, question.judging.ignore)
    snapshot = Snapshot(report.nodes[0].name if report.nodes else "", {StartedHosts: hosts})
    own = compare([snapshot], checks, question.job)
    verdicts = tuple(own[0] if own and each.key == host_unused.key else each for each in report.checks)
    verdicts += () if any(each.key == host_unused.key for each in verdicts) else own
    status, code = report.status, report.exit_code
    if hosts.failed and code != ExitCode.FAIL:
        status, judged = conclude(own, question.judging.fail_on, inconclusive=True)
        code = int(judged) if question.judging.gates else code
    return replace(
        report,
        status=status,
        exit_code=code,
        checks=verdicts,
        coverage=coverage(verdicts),
        missing_nodes=tuple(dict.fromkeys((*report.missing_nodes, *(each.host for each in hosts.failed)))),
        pages=report.pages | {each.id: page(each.id) for each in own if each.findings},
        explained=report.explained | evidence_excerpts.explained(own, checks),
    )
