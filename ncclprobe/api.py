"""Ask ncclprobe from Python: each question returns a value and has no other effect.

::

    from ncclprobe import api

    report = api.doctor()                       # is this machine fit for an NCCL job?
    outlook = api.expect(machine="dgx-h100", nodes=4)
    report = api.explain(["logs/"])             # why did the job fail?
    report = api.attach()                       # for whom does the job on this node wait?
    report = api.accept(timeout_s=180)          # check and measure; also bandwidth(), pairs() and copies()
    found = api.judge("all_reduce.log")         # are these numbers of nccl-tests right?
    report = api.load("report.json")            # what a command wrote with --json

    for finding in report.failures():
        print(finding.check, finding.node, finding.subject, finding.message, finding.remedy)

Every answer has ``to_dict()``. Nothing is printed, none of your processes is ended, no signal handler is set, and torch
is
not imported: measurements run in processes of their own. Each question and its duration go to the logger ``ncclprobe``.
Errors are those of :mod:`ncclprobe.model.errors`, all subclasses of :class:`NcclprobeError`: UsageError for an invalid
question, ProbeError if a measurement did not end, OutOfTime if the deadline passed before a verdict. A file
``ncclprobe.toml`` in the working directory is not read; pass it as `config`.

Importing this module loads only the errors and the report's types.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from ncclprobe.model.errors import NcclprobeError, OutOfTime, ProbeError, UsageError
from ncclprobe.model.findings import ExitCode, Severity, Status, Verdict
from ncclprobe.model.findings import NamedFinding as Finding
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.values import Result

if TYPE_CHECKING:
    import subprocess

    from ncclprobe.commands.compare import Comparison
    from ncclprobe.engine.diagnose import Judging
    from ncclprobe.expect.baselines import Site
    from ncclprobe.expect.elsewhere import JudgedLog
    from ncclprobe.expect.table import Outlook

__all__ = [
    "Capture",
    "ExitCode",
    "Finding",
    "Measurement",
    "NcclprobeError",
    "OutOfTime",
    "ProbeError",
    "Report",
    "Severity",
    "Status",
    "UsageError",
    "Verdict",
    "accept",
    "attach",
    "bandwidth",
    "baseline",
    "capture",
    "compare",
    "copies",
    "doctor",
    "expect",
    "explain",
    "judge",
    "load",
    "pairs",
    "render",
]
_LOG = logging.getLogger("ncclprobe")

Format = Literal["text", "json", "markdown", "html", "junit", "prometheus"]
AnyPath = str | os.PathLike[str]
Progress = Callable[[str], None]
"""Receives a line whenever a part of the work has ended. An exception that it raises ends the work."""
_P = ParamSpec("_P")
_T = TypeVar("_T")
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "machine": ("a text", str),
    "config": ("a path", (str, os.PathLike)),
    "capture": ("a path", (str, os.PathLike)),
    "nodes": ("a whole number above zero", int),
    "nproc": ("a whole number above zero", int),
    "largest": ("a whole number above zero", int),
    "pid": ("a whole number above zero", int),
    "old": ("a path", (str, os.PathLike)),
    "new": ("a path", (str, os.PathLike)),
    "path": ("a path", (str, os.PathLike)),
    "expect_gpus": ("a whole number above zero", int),
    "timeout_s": ("a number", (int, float)),
    "progress": ("a function", (FunctionType, MethodType, BuiltinFunctionType, functools.partial)),
    "report": ("a Report, or for load a path", (Report, str, os.PathLike)),
}
_LISTS: dict[str, tuple[str, type]] = {
    "select": ("patterns of checks", str),
    "ignore": ("patterns of checks", str),
    "ops": ("operations", str),
    "sizes": ("sizes in bytes", int),
    "gpus_per_node": ("numbers of GPUs", int),
}
"""A parameter has the same type everywhere: one value, several, or one of several."""


def _typed(asks: Callable[_P, _T]) -> Callable[_P, _T]:
    """Check the types of arguments, raising UsageError, and wrap a single pattern or size in a list."""
    signature = inspect.signature(asks)

    @functools.wraps(asks)
    def typed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in _LISTS:
                what, kind = _LISTS[name]
                several = (value,) if isinstance(value, kind) else value
                if not isinstance(several, Sequence) or not all(isinstance(each, kind) for each in several):
                    raise UsageError(f"{name}: give {what}, not {ascii(value)[:80]}")
                bound.arguments[name] = several
            elif name in _KINDS and (value is not None or signature.parameters[name].default is not None):
                what, kinds = _KINDS[name]
                if not isinstance(value, kinds) or (kinds is int and isinstance(value, int) and value < 1):
                    raise UsageError(f"{name}: give {what}, not {ascii(value)[:80]}")
        began = time.monotonic()
        try:
            answer = asks(*bound.args, **bound.kwargs)
        except NcclprobeError as error:
            _LOG.info("%s: %s: %s", asks.__name__, type(error).__name__, error)
            raise
        shown = f"{len(answer)} characters" if isinstance(answer, str) else repr(answer)
        _LOG.info("%s: %s in %.1f s", asks.__name__, shown, time.monotonic() - began)
        return answer

    return typed


class Capture(Result, frozen=True):
    """The doctor's questions to the machine `node` and the answers, as the `text` of a file."""

    node: str
    text: str

    def save(self, path: AnyPath) -> None:
        """Write the capture to a file, which :func:`doctor` accepts on any machine. Raises UsageError."""
        from ncclprobe.host.capture import save

        save(Path(path), self.text)

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<Capture of {self.node}: {len(self.text)} characters>"


@_typed
def doctor(
    captures: AnyPath | Sequence[AnyPath] = (),
    *,
    one_job: bool = False,
    backend: Literal["nccl", "gloo"] = "nccl",
    expect_gpus: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: AnyPath | None = None,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> Report:
    """Return whether this machine, or the machines of `captures`, are fit for a job with `backend`.

    Only this process's machine is examined, whatever launcher started it; captures, one per node, are also compared if
    they
    are of one job, or if `one_job` is set. `expect_gpus`: fewer usable GPUs fail. `select`, `ignore`: patterns of check
    ids,
    as on the command line; `config`: the findings that the site accepts. Raises UsageError, and OutOfTime if nothing
    could be
    judged in `timeout_s`.
    """
    from ncclprobe.engine import diagnose
    from ncclprobe.engine import doctor as doctors
    from ncclprobe.model.registry import Collector, discover
    from ncclprobe.model.snapshot import Job

    _refuse_no_time(timeout_s)
    if backend not in ("nccl", "gloo"):
        raise UsageError(f"backend {backend!r} is unknown; choose from nccl, gloo")
    paths = [Path(each) for each in _paths("captures", captures)]
    job = Job(backend, expect_gpus, local=not paths)
    question = diagnose.ask(_judging(select, ignore, config), ("api.doctor",), job)
    collectors = discover("ncclprobe.facts", Collector, diagnose.MACHINE)
    if paths:
        from ncclprobe.engine.captures import judge_captures

        show = progress or _ignore_line
        judged = functools.partial(judge_captures, question, collectors, paths, one_job=one_job, show=show)
        return doctors.within(question, timeout_s, judged)
    return doctors.examine_machine(question, collectors, timeout_s, progress or _ignore_line)


@_typed
def expect(
    machine: str | None = None,
    *,
    capture: AnyPath | None = None,
    nodes: int | None = None,
    gpus_per_node: Sequence[int] = (),
    ops: Sequence[str] = ("all_reduce",),
    sizes: Sequence[int] = (),
    timeout_s: float = 30.0,
) -> Outlook:
    """Return what a machine should reach, by operation and size, each number with its source and its threshold.

    `machine` is a type (``ncclprobe expect --list``) or its parts (``8 x L40S, 2 sockets``); `capture` a captured
    machine;
    without both it is this machine, examined for at most `timeout_s` seconds. `gpus_per_node`: of each node, or one
    number for
    all; empty: all of them. `sizes` are bytes; empty: 8 B to 8 GiB. Raises UsageError.
    """
    from ncclprobe.engine.expect_target import outlook

    _refuse_no_time(timeout_s)
    path = None if capture is None else Path(capture)
    return outlook(machine, path, nodes, tuple(gpus_per_node), tuple(ops), tuple(sizes), timeout_s)


@_typed
def explain(
    paths: AnyPath | Sequence[AnyPath],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: AnyPath | None = None,
    timeout_s: float = 600.0,
    progress: Progress | None = None,
) -> Report:
    """Return why a job failed (`report.causes`), from what it left: logs, flight records, captures, reports.

    `paths` are files, folders or patterns. Raises UsageError if nothing can be read, and OutOfTime after `timeout_s`
    seconds;
    a thread that reads a hanging file is then abandoned.
    """
    from ncclprobe.engine import diagnose
    from ncclprobe.engine import explain as explaining
    from ncclprobe.engine.doctor import within
    from ncclprobe.host import job_files
    from ncclprobe.model.snapshot import Job
    from ncclprobe.model.values import replace
    from ncclprobe.report import json

    _refuse_no_time(timeout_s)
    names = _paths("paths", paths)
    if not names:
        raise UsageError("explain needs at least one file")
    judging = replace(_judging(select, ignore, config), gates=False)
    question = diagnose.ask(judging, ("api.explain",), Job(), diagnose.LEFT)
    show = progress or _ignore_line
    return within(question, timeout_s, lambda: explaining.explain(question, job_files.named(names), json.read, show))


@_typed
def attach(*, pid: int | None = None, stacks: bool = False, timeout_s: float = 60.0) -> Report:
    """Return which ranks the others on this node are waiting for (`report.standing`, `report.classes`).

    `pid` is a process of that job; `stacks` also reads Python stacks with py-spy. Raises UsageError if there is no
    rank.
    """
    words = [*(["--pid", str(pid)] if pid else []), *(["--stacks"] if stacks else [])]
    return _run_command("attach", words, timeout_s)


@_typed
def accept(
    *,
    level: Literal["quick", "full", "long"] = "full",
    backend: Literal["nccl", "gloo"] | None = None,
    expect_gpus: int | None = None,
    timeout_s: float = 180.0,
    progress: Progress | None = None,
) -> Report:
    """Return whether this node is good: the doctor's checks, copies, all_reduce and all pairs of its GPUs.

    Measures in processes of its own. Raises UsageError, and ProbeError if they end without a report.
    """
    words = ["--level", level, *(["--backend", backend] if backend else [])]
    return _run_command(
        "accept", [*words, *(["--expect-gpus", str(expect_gpus)] if expect_gpus else [])], timeout_s, progress
    )


@_typed
def bandwidth(
    ops: Sequence[str] = ("all_reduce",),
    *,
    largest: int | None = None,
    nproc: int | None = None,
    backend: Literal["nccl", "gloo"] | None = None,
    expect: AnyPath | None = None,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> Report:
    """Return the bandwidth of collectives between ranks on this node (`report.measurements`), each judged.

    Sizes go up to `largest` bytes; None: as far as they can be judged. `expect` is a file to judge by instead of what
    is known
    of the machine. Starts ranks like :func:`pairs`. Raises UsageError and ProbeError.
    """
    words = ["--op", ",".join(ops), *(["-e", str(largest)] if largest else [])]
    words += ["--expect", str(Path(expect))] if expect else []
    return _run_command("bandwidth", [*words, *_ranks(nproc, backend)], timeout_s, progress)


@_typed
def pairs(
    *,
    nproc: int | None = None,
    backend: Literal["nccl", "gloo"] | None = None,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> Report:
    """Return how fast each pair of ranks on this node is, and which part is slow (`report.localisation`).

    Starts `nproc` ranks, by default one per GPU, in processes of their own. Raises UsageError and ProbeError.
    """
    return _run_command("pairs", _ranks(nproc, backend), timeout_s, progress)


@_typed
def copies(
    *,
    nproc: int | None = None,
    backend: Literal["nccl", "gloo"] | None = None,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> Report:
    """Return how fast this node copies between host and GPUs, and between GPUs (`report.copies`).

    Starts ranks like :func:`pairs`. Raises UsageError and ProbeError.
    """
    return _run_command("copies", _ranks(nproc, backend), timeout_s, progress)


@_typed
def judge(
    path: AnyPath,
    *,
    machine: str | None = None,
    capture: AnyPath | None = None,
    nodes: int | None = None,
    timeout_s: float = 30.0,
) -> JudgedLog:
    """Return the rows of an nccl-tests log, or of a report, judged by what their machine should reach.

    `machine` and `capture` are as for :func:`expect`; without both the GPUs that the log names count.
    Raises UsageError.
    """
    from ncclprobe.commands.judged_log import Wanted, judged_file
    from ncclprobe.engine.expect_target import machine_of

    _refuse_no_time(timeout_s)
    here = machine_of(machine, None if capture is None else Path(capture), timeout_s)
    return judged_file(os.fspath(path), Wanted(here, bool(machine or capture), nodes))


@_typed
def capture(*, timeout_s: float = 120.0) -> Capture:
    """Return what :func:`doctor` asks this machine, with the answers. Raises UsageError."""
    from ncclprobe.engine.collect import observed
    from ncclprobe.host.capture import dump
    from ncclprobe.model.registry import Collector, discover

    _refuse_no_time(timeout_s)
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    snapshot, answers = observed(collectors, time.monotonic() + timeout_s)
    return Capture(snapshot.node, dump(answers, snapshot.node))


@_typed
def compare(old: AnyPath, new: AnyPath, *, tolerance: float = 0.1) -> Comparison:
    """Compare two runs, or two captures of one node: what is slower beyond noise, new or gone.

    Raises UsageError.
    """
    from ncclprobe.commands.compare import compared, side

    return compared(side(os.fspath(old)), side(os.fspath(new)), tolerance)


@_typed
def baseline(paths: AnyPath | Sequence[AnyPath], *, machine: str | None = None, accept_low: bool = False) -> Site:
    """Merge the runs in `paths` into a site's expectation, without the rows that are not fit for it.

    Raises UsageError.
    """
    from ncclprobe.commands.baseline import merged

    return merged(_paths("paths", paths), machine, accept_low=accept_low)[0]


@_typed
def load(report: AnyPath) -> Report:
    """Return the report in a file that a command wrote with --json. Raises UsageError for anything else."""
    from ncclprobe.report import json

    return json.read(os.fspath(report))


@_typed
def render(report: Report, format: Format = "text") -> str:
    """Return `report` as text: for a terminal, or in the format of ``--json``, ``--markdown``, ``--html`` ….

    Raises UsageError for another format.
    """
    from ncclprobe.report import delivery

    return delivery.rendered(report, format)


def _ignore_line(_line: str) -> None:
    """Ignore a line of progress."""


def _ranks(nproc: int | None, backend: str | None) -> list[str]:
    return [*(["--nproc", str(nproc)] if nproc else []), *(["--backend", backend] if backend else [])]


def _run_command(command: str, words: Sequence[str], timeout_s: float, progress: Progress | None = None) -> Report:
    """Return the report of a command that runs in processes of its own. Raises UsageError, ProbeError and OutOfTime."""
    import tempfile

    from ncclprobe.host.command import abandon
    from ncclprobe.host.own_child import start_own
    from ncclprobe.report import json

    _refuse_no_time(timeout_s)
    with tempfile.TemporaryDirectory(prefix="ncclprobe-") as folder:
        path, said = f"{folder}/report.json", Path(folder, "said")
        own = ("--no-config", "--json", path, "--timeout", f"{timeout_s:g}", *([] if progress else ["--quiet"]))
        with said.open("wb") as file:
            process = start_own("ncclprobe.start:program", command, *words, *own, stderr=file)
        try:
            code = _wait_for(process, said, time.monotonic() + timeout_s + _ENDING_S, progress)
        finally:
            abandon(process)
        if code is None:
            raise OutOfTime(f"{command} did not end within {timeout_s:g} s")
        if Path(path).exists():
            return json.read(path)
        why = (_complete_lines(said, 0)[0] or [""])[-1]
    raise (UsageError if code == ExitCode.USAGE else ProbeError)(why or f"{command} ended with exit code {code}")


def _wait_for(process: subprocess.Popen[bytes], said: Path, end_s: float, progress: Progress | None) -> int | None:
    """Pass a command's lines to `progress`; return its exit code, None if it did not end in time."""
    place, code = 0, None
    while code is None and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        code = process.poll()
        if progress:
            lines, place = _complete_lines(said, place)
            for line in lines:
                progress(line)
    return code


def _complete_lines(said: Path, place: int) -> tuple[list[str], int]:
    """Return the complete lines from `place`, and the start of the next one."""
    with said.open("rb") as file:
        file.seek(place)
        text = file.read(_MOST_SAID).rpartition(b"\n")[0]
    lines = [line.removeprefix("ncclprobe: ") for line in text.decode(errors="replace").split("\n")]
    return [line for line in lines if line], place + len(text) + bool(text)


_LOOK_S = 0.05
_ENDING_S = 15.0
"""Time that a command needs after its deadline, to write its report."""
_MOST_SAID = 1 << 20


def _paths(name: str, given: object) -> list[str]:
    """Return the paths that a caller gave as the parameter `name`: one, or several. Raises UsageError."""
    several = [given] if isinstance(given, str | os.PathLike) else given
    try:
        return [os.fsdecode(each) for each in several]  # type: ignore[attr-defined]
    except TypeError:
        raise UsageError(f"{name}: give a path, or several in a list, not {ascii(given)[:80]}") from None


def _judging(select: Sequence[str], ignore: Sequence[str], config: AnyPath | None) -> Judging:
    from ncclprobe.engine.diagnose import Judging
    from ncclprobe.engine.suppressions import NO_FILE

    return Judging(tuple(select), tuple(ignore), NO_FILE if config is None else Path(config))


def _refuse_no_time(timeout_s: float) -> None:
    if not 0 < timeout_s < 1e7:
        raise UsageError(f"timeout_s={timeout_s:g} must be a number of seconds above 0 and below 10,000,000")
