"""What the measuring commands share: parts of their parsers, and how ranks are started, joined and reported on.

Each command parses its own options, so that argparse refuses what does not apply. Usage errors are raised before torch
is imported; only rank 0 prints.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments, hosts
from ncclprobe.commands.run_files import expected_bands
from ncclprobe.engine.diagnose import MACHINE, MEASURED, Question, ask
from ncclprobe.expect import bands
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.memory import memory
from ncclprobe.facts.run.samples import What
from ncclprobe.host import Host
from ncclprobe.model import training
from ncclprobe.model.errors import HostError, ParseError, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.ops import OPS
from ncclprobe.model.snapshot import Job
from ncclprobe.model.units import parse_size
from ncclprobe.session.measure.rank import Rank
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import launch as selflaunch
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.identity import Backend, Devices, choose_backend, devices, identify

_MOST_CHARACTERS = 32
_RANKS_PER_CPU, _FEW_RANKS = 4, 16
_FIRST_WORD_S = 10.0  # for rank 0 to start and complain on a busy node
_BY_HAND = "environment"
_WSL = "/dev/dxg"
"""Windows lends its GPU to Linux through this device; there is no /dev/nvidia0."""


def parser(command: str, about: str, more: str = "") -> argparse.ArgumentParser:
    """Return a measuring command's parser with the common options, except for time limits."""
    found = arguments.Parser(command, about, more)
    add = found.add_argument
    add("--backend", choices=("nccl", "gloo"),
        help="Measure this library (default: nccl; gloo on nodes without a GPU, with a note).")  # fmt: skip
    add("--nproc", type=arguments.count, metavar="N", help="Start N ranks on this node (default: one per GPU).")
    return found


def limits(parser: argparse.ArgumentParser, timeout_s: float = 120.0) -> None:
    """Add the time limits of a command that has no others."""
    add = partial(parser.add_argument, type=arguments.positive, metavar="SECONDS")
    add("--timeout", dest="timeout_s", default=timeout_s,
        help="Limit the whole run, including the import of torch and the report, to this many seconds (default: "
        "%(default)g).")  # fmt: skip
    add("--phase-timeout", dest="phase_timeout_s", default=60.0,
        help="Report a hang if one batch, or one step of the start, takes this many seconds (default: "
        "%(default)g).")  # fmt: skip


def judging(parser: argparse.ArgumentParser, *, files: bool = True) -> None:
    """Add the options for judging: whether a verdict is required, and, with `files`, the files to judge by."""
    add = parser.add_argument_group("judging").add_argument
    if files:
        add("--expect", metavar="FILE", help="Judge by the numbers in FILE: TOML, or an earlier JSON report.")
        add("--baseline", metavar="PATH",
            help="Judge by this file of `ncclprobe baseline`, or by the matching file in this folder.")  # fmt: skip
        add("--tolerance", type=bands.parse_tolerance, default=bands.TOLERANCE, metavar="SHARE",
            help="Pass a number up to this fraction below the expected one, if the expectation has no threshold of "
            "its own (default: %(default)s).")  # fmt: skip
    add("--require-judged", action="store_true", help="Exit with 3 if no number could be judged.")


def reporting(parser: argparse.ArgumentParser) -> None:
    """Add the options that every judging command has."""
    arguments.selection(parser)
    arguments.fleet_store(parser)
    parser.add_argument("--keep", type=arguments.folder, metavar="DIR",
        help="Write the run log (run.jsonl) and the captures of all nodes to this folder.")  # fmt: skip
    arguments.arguments(parser)


def made(command: str, argv: Sequence[str], given: argparse.Namespace, what: tuple[What, ...], **own: Any) -> Options:
    """Return the options of `command`: the fields of `given`, by name, and its `own`."""
    ours = {**own, "judging": arguments.judging(given), "output": arguments.output(given)}
    if "hosts" in given:
        where = hosts.named(given)
        ours |= {"hosts": where.names, "remote_python": where.python}
    named = {*Options.__struct_fields__} - ours.keys()
    taken = {name: value for name, value in vars(given).items() if name in named}
    return Options(command=command, argv=tuple(argv), what=what, **taken, **ours)


def bytes_of(option: str, text: str) -> int:
    """Parse a size in bytes. Raises UsageError."""
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{option} {text[:_MOST_CHARACTERS]}… is not a size; write it as in 64M")
    return parse_size(text)


def main(
    argv: Sequence[str],
    parse: Callable[[Sequence[str]], Options],
    alone: Callable[[Options, Question, Launch], int] | None = None,
) -> int:
    """Measure what `parse` makes of `argv`, or start ranks that do; return the exit code.

    `alone`: what a process without a launcher does instead of :func:`_start_local_ranks`. Raises UsageError, on rank 0
    only.
    """
    launch = detect(os.environ)
    try:
        options = parse(argv)
        job = Job(options.backend or "nccl", options.expect_gpus)
        question = ask(options.judging, (options.command, *argv), job, MEASURED if options.what else MACHINE)
        expected = expected_bands(options.expect, options.tolerance)
        readable(options.baseline)
        if options.hosts:
            return _start_on_hosts(options, question)
        ours = rank_files.FOLDER in os.environ
        if options.nproc is not None and not ours:
            return (alone or _start_nproc_ranks)(options, question, launch)
        identity = identify(launch, os.environ)
        if identity is None or (identity.ranks == 1 and not ours):
            return (alone or _start_local_ranks)(options, question, launch)
        host = this_host()
        backend = choose_backend(options.backend, identity.kind, identity.local_ranks, devices(host))[0]
        _refuse_early(options, identity.ranks, host, backend)
        if options.output.on_stdout:
            _keep_stdout()
        return Rank(options, question, identity, host, expected, backend).run()
    except UsageError:
        if launch.rank and not launch.problems:
            # Rank 0 complains first: torchrun and mpirun end every rank as soon as one has ended.
            ends = {signal.SIGTERM, signal.SIGINT}
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
            try:
                signal.sigtimedwait(ends, _FIRST_WORD_S)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return ExitCode.USAGE
        raise


def _start_on_hosts(options: Options, question: Question) -> int:
    """Start a rank per GPU of each host, or --nproc ranks on each. Raises UsageError."""

    def ranks(gpus: int) -> int:
        return options.nproc or (gpus if options.backend != "gloo" else 0) or 1

    from ncclprobe.commands.over_ssh import Started, run

    where = hosts.Hosts(options.hosts, options.remote_python)
    line = (options.command, *options.argv)
    return run(Started(where, line, options.timeout_s, options.output, options.keep, ranks), question)


def _keep_stdout() -> None:
    """Reserve standard output for the report: redirect what libraries such as NCCL write to descriptor 1 to stderr.

    On each rank, because all share it.
    """
    with contextlib.suppress(OSError):  # one of them is closed: what is written there is lost anyhow
        own = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def readable(baseline: str | None) -> None:
    """Refuse an unreadable --baseline, before any rank is started. Raises UsageError."""
    if baseline is not None:
        from ncclprobe.expect.baselines import load

        load(baseline)


def _start_nproc_ranks(options: Options, question: Question, launch: Launch) -> int:
    """Start --nproc ranks. Raises UsageError."""
    count = options.nproc or 1
    return (
        _start_local_ranks(options, question, launch) if count == 1 else start_ranks(options, question, launch, count)
    )


def start_ranks(
    options: Options, question: Question, launch: Launch, count: int, refused: Callable[[str], int] | None = None
) -> int:
    """Start `count` ranks; `refused`: as in :func:`session.ranks.launch.launch`.

    Raises UsageError if a launcher has started several, or ranks cannot be started.
    """
    if launch.kind not in ("single", _BY_HAND) and launch.world_size != 1:
        raise UsageError(f"--nproc starts the ranks itself, but {launch.kind} has started this one; leave --nproc out")
    host = this_host()
    backend = choose_backend(options.backend, "torchrun", count, devices(host))[0]
    cpus = len(os.sched_getaffinity(0))
    most = max(_FEW_RANKS, _RANKS_PER_CPU * cpus)
    if count > most:
        raise UsageError(
            f"--nproc {count} is too many: this node, with {cpus} CPUs, can run at most {most} ranks "
            f"(the limit is {_RANKS_PER_CPU} per CPU, but never less than {_FEW_RANKS})"
        )
    _refuse_early(options, count, host, backend)
    _refuse_without_room(options, count, host)
    names = [name for name in (*launch.variables, "MASTER_ADDR", "MASTER_PORT") if os.environ.pop(name, None)]
    if names and launch.kind == _BY_HAND:
        what = ", ".join(dict.fromkeys(names))
        _say(f"ranks are started here, which overrides {what} of the environment", options)
    return selflaunch.launch(count, options, question, refused)


def may_have_gpus(here: Devices) -> bool:
    """Return whether torch may find a GPU here."""
    return bool(here.nodes) or Path(_WSL).exists()


def _refuse_early(options: Options, ranks: int, host: Host, backend: Backend) -> None:
    """Refuse what would fail once every rank has imported torch. Raises UsageError."""
    if options.training and options.training.grid:
        training.fit(options.training.grid, ranks)
    if options.backend == "nccl" and not may_have_gpus(devices(host)):
        raise UsageError("--backend nccl needs a GPU per rank, and no GPU is visible; use --backend gloo")
    averages = options.redop == "avg" and all(OPS[op].reduces for op in options.ops)
    if backend == "gloo" and averages and "int" in options.dtype:
        raise UsageError(f"--redop avg: gloo cannot average {options.dtype}; give --dtype float32, or --redop sum")


def _refuse_without_room(options: Options, ranks: int, host: Host) -> None:
    """Refuse buffers that cannot fit in this node's memory. Raises UsageError."""
    if devices(host).nodes and options.backend != "gloo":
        return
    try:
        free = memory.run(host).available_bytes
    except (HostError, ParseError):  # every rank looks again
        return
    if problem := options.without_room(ranks, free, "here"):
        raise UsageError(problem)


def _say(text: str, options: Options) -> None:
    if not options.output.quiet:
        print(f"ncclprobe: {text}", file=sys.stderr, flush=True)


def _start_local_ranks(options: Options, question: Question, launch: Launch) -> int:
    """Start a rank per GPU, or one that copies, or explain how to start more: one rank has nothing else to measure.

    Raises UsageError.
    """
    here = devices(this_host())
    gpus, backend = here.shown, options.backend or choose_backend(None, launch.kind, 1, here)[0]
    if options.nproc is None and backend == "nccl" and gpus > 1:
        _say(f"starting a rank on each of {gpus} GPUs", options)
        return start_ranks(options, question, launch, gpus)
    if options.what == ("copies",):
        return start_ranks(options, question, launch, 1)
    raise UsageError(f"one rank has nothing to measure; {_how_to_start_more(options, backend, gpus)}")


def _how_to_start_more(options: Options, backend: Backend, gpus: int) -> str:
    """Return what to type instead, on a node with `gpus` GPUs."""
    command, grid = options.command, options.training.grid if options.training else None
    if backend == "gloo":
        typed = [*options.argv, *([] if options.backend else ("--backend", "gloo"))]
        return f"start several: ncclprobe {shlex.join((command, *typed))} --nproc {grid.ranks if grid else 2}"
    if gpus == 0:
        return "--backend nccl needs a GPU per rank, and no GPU is visible here"
    if gpus == 1:
        return "this node has one GPU, so start one rank on each of several nodes (torchrun --nnodes, srun, mpirun)"
    return (
        f"start one rank per GPU: torchrun --nproc-per-node=gpu -m ncclprobe.{command}, "
        f"or ncclprobe {command} --nproc {gpus}"
    )


def this_host() -> Host:
    """Return this machine, for single facts."""
    from ncclprobe.host.live import LiveHost
    from ncclprobe.nccl.parameters import looks_like_ours, table

    return LiveHost(table().keys(), looks_like_ours)
