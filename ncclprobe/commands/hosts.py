"""``--hosts A,B``: which hosts, what each is to start, and one report of what they found.

The first host that answers is node 0. Its report comes back, with what ssh said of the hosts that take no part.
"""

import argparse
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ncclprobe import page
from ncclprobe.cluster.rendezvous.token import VARIABLE as TOKEN
from ncclprobe.engine import evidence_excerpts
from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.judge import compare, conclude, coverage
from ncclprobe.facts.reach import HostFailure, StartedHosts
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Status
from ncclprobe.model.hostlist import expand
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

_NAME = r"(?:[\w][\w.+-]{0,63}@)?[\w:][\w.:%-]{0,252}"
_STARTED = "NCCLPROBE_HOST"
"""Set on the hosts: what ncclprobe.toml says of --hosts is for the process that called them."""
_SPARE_S = 15.0  # after --timeout, for the hosts to end and to send what they found
_VALUES = ("--hosts", "--hostfile", "--remote-python", "--nodes-out", "--keep", "--timeout", "--nproc")
_LOCAL = {*_VALUES, *(f"--{name}" for name in FORMATS), "-q", "--quiet", "-v", "--verbose", "--no-color"}
_FLAGS = {"-q", "--quiet", "-v", "--verbose", "--no-color"}
_FILES, _PATHS = {"--config", "--expect", "--baseline"}, {"--path", "--code"}
"""Options of this side; of these, those without a value; options whose file is passed on, and whose path is."""


class Hosts(Struct, frozen=True):
    """Where a command runs: on these hosts, by this Python; none: here."""

    names: tuple[str, ...] = ()
    python: str = ""


class Started(Struct, frozen=True):
    """What the hosts are to do: the command line `argv`, within `timeout_s`; `keep`: a folder for their captures.

    `ranks`: None: one process for each host; otherwise that many ranks for a host with so many GPUs.
    """

    hosts: Hosts
    argv: Sequence[str]
    timeout_s: float
    output: Output
    keep: Path | None = None
    ranks: Callable[[int], int] | None = None


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name hosts."""
    add = parser.add_argument_group(
        "many hosts", "Start ncclprobe on hosts by ssh, which must not ask for anything, and make one report."
    ).add_argument
    add("--hosts", metavar="HOSTS", help="Run on these hosts: a,b or n[1-8]; the first is node 0.")
    add("--hostfile", type=Path, metavar="FILE", help="Run on the hosts in FILE: one a line, as for mpirun, or n[1-8].")
    add("--remote-python", metavar="PATH",
        help="Start ncclprobe with this Python there (default: the path of the one that runs here).")  # fmt: skip


def named(given: argparse.Namespace) -> Hosts:
    """Return the hosts that a command line names. Raises UsageError."""
    if _STARTED in os.environ or not (given.hosts or given.hostfile):
        if given.remote_python and _STARTED not in os.environ:
            raise UsageError("--remote-python is for --hosts or --hostfile, and neither is given")
        return Hosts()
    if given.hosts and given.hostfile:
        raise UsageError("--hosts and --hostfile exclude each other")
    try:
        found = expand(given.hosts) if given.hosts else _of_file(given.hostfile)
    except ValueError as error:
        raise UsageError(f"--{'hosts' if given.hosts else 'hostfile'}: {error}") from None
    for name in found:
        if not re.fullmatch(_NAME, name):
            raise UsageError(f"--hosts: {ascii(name)[:80]} is not the name or address of a host, such as n1 or me@n1")
    if not found or len(found) > bounds.SSH_HOSTS:
        raise UsageError(f"--hosts: {len(found)} hosts; name 1 to {bounds.SSH_HOSTS}")
    if len({*found}) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise UsageError(f"--hosts: {twice} is named twice")
    return Hosts(tuple(found), given.remote_python or sys.executable)


def _of_file(path: Path) -> list[str]:
    """Return the hosts of a file: the first word of each line, without slots. Raises ValueError, UsageError."""
    lines = (line.partition("#")[0].split() for line in files.read(path, limit=bounds.EXPECT_BYTES).splitlines())
    words = (words[0] for words in lines if words)
    return [name for word in words for name in expand(re.sub(r"(?<=[^:]):[0-9]{1,4}$", "", word))]


def run(asked: Started, question: Question) -> int:
    """Run the command on the hosts, deliver their report, and return its exit code. Raises UsageError."""
    words, extra = _words(asked.argv)
    first, failed = None, list[HostFailure]()
    quiet = asked.output.quiet
    with (
        Waiting(f"calling {len(asked.hosts.names)} hosts", wanted=not quiet) as waiting,
        Calls(asked.hosts.names, asked.hosts.python, lambda lines: None if quiet else _show(lines, waiting)) as calls,
    ):
        present = calls.greet(waiting.say)
        failed = [call.failure for call in calls.all if call.failure]
        waiting.say(f"running on {len(present)} of {len(asked.hosts.names)} hosts")
        left_s = asked.timeout_s - (time.monotonic() - question.clock)
        for call, order in zip(present, _orders(asked, present, words, max(left_s, 1.0), extra), strict=True):
            call.order(order)
        calls.outcomes(present, time.monotonic() + max(left_s, 1.0) + _SPARE_S)
        first = present[0] if present else None
    failed += [call.failure for call in present if call.failure]
    report = _report(question, first, failed)
    report = with_hosts(report, question, StartedHosts(len(asked.hosts.names), tuple(failed)))
    if asked.keep and first and first.outcome:
        keep(asked.keep, first.outcome.kept, first.outcome.left)
    return delivery.deliver(report, asked.output)


def _show(lines: str, waiting: Waiting) -> None:
    waiting.end()
    print(lines, file=sys.stderr, flush=True)


def keep(folder: Path, kept: Mapping[str, str], left: int) -> None:
    """Write the captures that hosts have sent. Raises UsageError."""
    files.make_folder(folder, 0o700)
    for name, text in kept.items():
        files.write(folder / Path(name).name, text, private=True)
    if left:
        delivery.complain(f"--keep: {left} captures are left out: together they are too large")


def _words(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words of `argv` that the hosts are given, and the texts of the files that they name."""
    words, texts = list[str](), dict[str, str]()
    rest = iter(argv)
    for word in rest:
        if word == "--":
            return [*words, word, *rest], texts
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


def _orders(
    asked: Started, present: Sequence[Call], words: Sequence[str], left_s: float, extra: Mapping[str, str]
) -> list[Order]:
    """Return what each of the hosts is to start. They meet at the first."""
    place = words.index("--") if "--" in words else len(words)
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
        line = (*words[:place], *own, *words[place:])
        job = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "NNODES": str(len(present)), "NODE_RANK": str(number)}
        ranks = _ranks(counts, number, job) if asked.ranks and len(present) > 1 else [{}]
        given = tuple({_STARTED: "1", **token, **each} for each in ranks)
        orders.append(Order(line, given, dict(extra), report=number == 0, keep=number == 0 and asked.keep is not None))
    return orders


def _ranks(counts: Sequence[int], number: int, job: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables of each rank of host `number`, as torchrun would set them."""
    before, here = sum(counts[:number]), counts[number]
    sizes = {"WORLD_SIZE": str(sum(counts)), "LOCAL_WORLD_SIZE": str(here)}
    return [{**job, **sizes, "RANK": str(before + local), "LOCAL_RANK": str(local)} for local in range(here)]


def _report(question: Question, first: Call | None, failed: list[HostFailure]) -> Report:
    """Return the report of the first host; an empty one if there is none, with the reason in `failed`."""
    if first and first.outcome:
        try:
            report = as_json.parse(first.outcome.report, first.host)
            return replace(report, command=printable(shlex.join(question.command)))
        except UsageError:
            codes = ", ".join(map(str, first.outcome.codes))
            failed.append(HostFailure(first.host, "lost", f"exit code {codes}, and no report"))
    return diagnose(replace(question, checks=(), sources=frozenset({"machine"})))


def with_hosts(report: Report, question: Question, hosts: StartedHosts) -> Report:
    """Return `report` with what is to be said of hosts that take no part; without them it is inconclusive."""
    snapshot = Snapshot(report.nodes[0].name if report.nodes else "", {StartedHosts: hosts})
    own = compare([snapshot], [check for check in question.checks if check.key == _CHECK], question.job)
    verdicts = tuple(own[0] if own and each.key == _CHECK else each for each in report.checks)
    verdicts += () if any(each.key == _CHECK for each in verdicts) else own
    status, code = report.status, report.exit_code
    if hosts.failed and code != ExitCode.FAIL:
        status, code = conclude(own, question.judging.fail_on, inconclusive=True)
    return replace(
        report,
        status=status if question.judging.gates or not hosts.failed else Status.UNKNOWN,
        exit_code=int(code),
        checks=verdicts,
        coverage=coverage(verdicts),
        missing_nodes=tuple(dict.fromkeys((*report.missing_nodes, *(each.host for each in hosts.failed)))),
        pages=report.pages | {each.id: page(each.id) for each in own if each.findings},
        explained=report.explained | evidence_excerpts.explained(own, question.checks),
    )


_CHECK = "sync.nodes/host-unused"
