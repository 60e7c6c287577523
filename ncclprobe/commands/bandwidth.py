"""``torchrun -m ncclprobe.bandwidth``: measure collectives across ranks, judge the numbers, report.

Works under torchrun, srun and mpirun, with RANK and WORLD_SIZE set by hand, and by itself with ``--nproc N``.
Usage is settled before torch is imported; rank 0 alone speaks.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ncclprobe.commands.measuring import parse
from ncclprobe.commands.run_files import expected_bands
from ncclprobe.engine.diagnose import MEASURED, Question, ask, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.errors import UsageError
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.host import Host
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import Job
from ncclprobe.session.measure import single_rank
from ncclprobe.session.measure.publish import Publisher
from ncclprobe.session.measure.rank import Rank, devices
from ncclprobe.session.measure.survivor import LOG
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import launch as selflaunch
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.identity import Backend, choose_backend, take_seat

_RANKS_PER_CPU, _FEW_RANKS = 4, 16
_FIRST_WORD_S = 10.0  # for rank 0 to start and complain on a busy node


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; returns the exit code. Raises UsageError, on rank 0 only."""
    launch = detect(os.environ)
    try:
        options = parse(argv)
        question = ask(options, (options.command, *argv), Job(), MEASURED)
        if log := os.environ.get(LOG):
            return _report_on(Path(log), options, question)
        expected = expected_bands(options.expect, options.tolerance)
        _readable(options.baseline)
        if options.nproc is not None and rank_files.FOLDER not in os.environ:
            return _start_ranks(options, question, options.nproc, launch)
        seat = take_seat(launch, os.environ)
        if seat is None or seat.ranks == 1:
            return _alone(options, question, launch)
        host = _this_host()
        backend = choose_backend(options.backend, seat.kind, seat.local_ranks, devices(host))[0]
        return Rank(options, question, seat, host, expected, backend).run()
    except UsageError:
        if launch.rank and not launch.problems:
            _let_rank_zero_speak()
            return ExitCode.USAGE
        raise


def _let_rank_zero_speak() -> None:
    """Stay until rank 0 has complained: torchrun and mpirun end every rank, by SIGTERM, as soon as one has ended."""
    ends = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        signal.sigtimedwait(ends, _FIRST_WORD_S)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _readable(baseline: str | None) -> None:
    """Whether what --baseline names can be read, found out before any rank is started. Raises UsageError."""
    if baseline is not None:
        from ncclprobe.expect.site.baselines import load

        load(baseline)


def _report_on(path: Path, options: Options, question: Question) -> int:
    """The report of a run log whose rank 0 is gone."""
    return Publisher(options).publish(diagnose(question, (), run_facts(RunLog.read(path))))


def _start_ranks(options: Options, question: Question, count: int, launch: Launch) -> int:
    if launch.kind != "single":
        raise UsageError(f"--nproc starts ranks of its own, but {launch.kind} has started this one; leave --nproc out")
    if count == 1:
        return _alone(options, question, launch)
    choose_backend(options.backend, "torchrun", count, devices(_this_host()))
    cpus = len(os.sched_getaffinity(0))
    most = max(_FEW_RANKS, _RANKS_PER_CPU * cpus)
    if count > most:
        raise UsageError(
            f"--nproc {count} is more than this node can run: at most {most} ranks on {cpus} CPUs "
            f"({_RANKS_PER_CPU} per CPU, and {_FEW_RANKS} anywhere); give a smaller --nproc"
        )
    return selflaunch.launch(count, options, question)


def _alone(options: Options, question: Question, launch: Launch) -> int:
    """One rank moves no byte between GPUs: measure copies, or start a rank per GPU, or say how to be more.

    Raises UsageError.
    """
    gpus = devices(_this_host()).nodes
    backend: Backend = options.backend or ("nccl" if gpus else "gloo")
    if options.aside == "copies":
        return single_rank.copies(options, question, launch.kind, _this_host(), backend)
    if options.nproc is None and backend == "nccl" and gpus > 1 and launch.kind == "single":
        print(f"ncclprobe: one rank moves no byte between GPUs: starting one on each of {gpus} GPUs", file=sys.stderr)
        return _start_ranks(options, question, gpus, launch)
    raise UsageError(f"one rank moves no byte between ranks; {_how_to_be_more(backend, gpus)}")


def _how_to_be_more(backend: Backend, gpus: int) -> str:
    """What to type instead, on a node with so many GPUs."""
    if backend == "gloo":
        return "start several: ncclprobe bandwidth --backend gloo --nproc 2"
    if gpus == 0:
        return "--backend nccl needs a GPU per rank and none can be seen here"
    if gpus == 1:
        return "this node has one GPU, so start one rank on each of several nodes (torchrun --nnodes, srun, mpirun)"
    return (
        "start one rank per GPU: torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth, "
        f"or ncclprobe bandwidth --nproc {gpus}"
    )


def _this_host() -> Host:
    from ncclprobe.host.live import LiveHost
    from ncclprobe.nccl.parameters import looks_like_ours, table

    return LiveHost(table().keys(), looks_like_ours)
