"""Ask ncclprobe from Python: five questions, each with a value for an answer, and no other effect.

::

    from ncclprobe import api

    report = api.doctor()                       # is this machine fit for an NCCL job?
    report = api.bandwidth()                    # on every rank of a job: is its network as fast as it should be?
    outlook = api.expect(machine="dgx-h100", nodes=4)
    report = api.explain(["logs/"])             # why did the job fail?
    report = api.load("report.json")            # what a command wrote with --json

    for finding in report.failures():
        print(finding.subject, finding.message, finding.remedy)

Nothing is printed, no process is ended, no signal handler is set, and torch is imported by :func:`bandwidth` alone.
What is wrong is raised as one of :mod:`ncclprobe.model.errors`, all of which are :class:`NcclprobeError`: UsageError
for what cannot be asked, ProbeError where a measurement did not end, OutOfTime where the deadline was over before a
verdict.
A file ``ncclprobe.toml`` in the working directory is not read; give it as `config`.

Importing this module loads no more than errors and the report's types.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from ncclprobe.model.errors import NcclprobeError, OutOfTime, ProbeError, UsageError
from ncclprobe.model.findings import ExitCode, Finding, Severity, Status, Verdict
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ncclprobe.engine.diagnose import Judging
    from ncclprobe.expect.table import Outlook

__all__ = [
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
    "bandwidth",
    "doctor",
    "expect",
    "explain",
    "load",
    "render",
]

Format = Literal["text", "json", "markdown", "html", "junit", "prometheus"]
AnyPath = str | os.PathLike[str]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "machine": ("a text", str),
    "config": ("a path", (str, os.PathLike)),
    "capture": ("a path", (str, os.PathLike)),
    "nodes": ("a whole number above zero", int),
    "expect_gpus": ("a whole number above zero", int),
    "timeout_s": ("a number", (int, float)),
    "report": ("a Report, or for load a path", (Report, str, os.PathLike)),
}
_LISTS: dict[str, tuple[str, type]] = {
    "select": ("patterns of checks", str),
    "ignore": ("patterns of checks", str),
    "ops": ("operations", str),
    "sizes": ("sizes in bytes", int),
    "gpus_per_node": ("numbers of GPUs", int),
}
"""What a parameter of one name is everywhere: one value, or several of which one may stand alone."""


def _typed(asks: Callable[_P, _T]) -> Callable[_P, _T]:
    """Refuse values of another type by name, with UsageError, and take a single pattern or size for a list of it."""
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
        return asks(*bound.args, **bound.kwargs)

    return typed


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
) -> Report:
    """Return whether this machine, or the machines of `captures`, are fit for a job with `backend`.

    This process's machine is looked at alone, whatever launcher started it; captures, one per node, are
    also compared if they are of one job, or if `one_job` says so.
    `expect_gpus`: fewer usable ones fail. `select`, `ignore`: patterns of check ids, as on the command line; `config`:
    the findings that the site accepts. Raises UsageError, and OutOfTime where nothing could be judged in `timeout_s`.
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
        from ncclprobe.engine.captures import of_captures

        return doctors.within(question, timeout_s, lambda: of_captures(question, collectors, paths, one_job=one_job))
    return doctors.of_this_machine(question, collectors, timeout_s)


def bandwidth(
    ops: Sequence[str] = ("all_reduce",),
    sizes: Sequence[int | str] = (),
    *,
    group: ProcessGroup | None = None,
    dtype: str = "float32",
    precision: float = 0.02,
    budget_s: float | None = None,
    expect: AnyPath | None = None,
    baseline: AnyPath | None = None,
    require_judged: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    config: AnyPath | None = None,
    timeout_s: float = 60.0,
) -> Report:
    """Measure collectives over the ranks of `group` (null: all), which must all call this, equally often.

    Every rank gets the same report. `sizes` are bytes, or as in ``"64K"``; empty: what can be judged, up to 1 GiB, with
    gloo 64 MiB. A row takes `budget_s` seconds, or fewer once its median is known within ±`precision`. `expect` and
    `baseline` are files, the same on every node, to judge by in place of what is known of the machine. NCCL is measured
    on the current device.

    The group itself is not used: a second one over the same ranks is made, measured and removed, and device, stream and
    environment are left as they are. Raises UsageError, on all ranks where it is wrong on one, and ProbeError where
    a rank does not come, leaves or is late: after `timeout_s` seconds, and at once where torch tells of it.
    """
    began = time.monotonic()
    from ncclprobe.commands.bandwidth import InGroup, in_group

    _refuse_no_time(timeout_s)
    asked = InGroup(
        ops=tuple(ops),
        sizes=tuple(sizes),
        dtype=dtype,
        precision=precision,
        budget_s=budget_s,
        expect=None if expect is None else os.fspath(expect),
        baseline=None if baseline is None else os.fspath(baseline),
        require_judged=require_judged,
    )
    return in_group(group, asked, _judging(select, ignore, config), timeout_s, began)


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

    `machine` is a type (``ncclprobe expect --list``) or one of parts (``8 x L40S, 2 sockets``); `capture` one that was
    captured; with neither it is this one, looked at for no longer than `timeout_s` seconds. `gpus_per_node`: of each
    node, or one number for all; empty: all of them. `sizes` are bytes; empty: 8 B to 8 GiB. Raises UsageError.
    """
    from ncclprobe.engine.outlook import outlook

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
) -> Report:
    """Return why a job failed (`report.causes`), from what it left: logs, flight records, captures, reports.

    `paths` are files, folders or patterns. Raises UsageError where nothing can be read, and OutOfTime after `timeout_s`
    seconds: what reads a file that hangs is then left behind.
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
        raise UsageError("no file is given to explain")
    judging = replace(_judging(select, ignore, config), gates=False)
    question = diagnose.ask(judging, ("api.explain",), Job(), diagnose.LEFT)
    return within(question, timeout_s, lambda: explaining.explain(question, job_files.named(names), json.read))


@_typed
def load(report: AnyPath) -> Report:
    """Return the report in a file that a command wrote with --json. Raises UsageError for anything else."""
    from ncclprobe.report import json

    return json.read(os.fspath(report))


@_typed
def render(report: Report, format: Format = "text") -> str:
    """Return `report` as a text: for a terminal, or as ``--json``, ``--markdown``, ``--html`` … write it.

    Raises UsageError for another format.
    """
    from ncclprobe.report import delivery

    return delivery.rendered(report, format)


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
        raise UsageError(f"timeout_s={timeout_s:g} is no number of seconds above zero and below 10,000,000")
