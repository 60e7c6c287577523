"""``--nproc N`` of a measuring command: start N ranks on this node, show their report, and exit with its code.

This process does not import torch, keeps the deadline, forwards signals, and has the last word; the ranks lead their
own sessions. Rank 0 writes the run log, and this process makes the report from it. If rank 0 could not end the log, or
a rank failed after that, the log is completed from the files of the ranks.
"""

import contextlib
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run.samples import Attendance, LostRank, Participants, RunRequest
from ncclprobe.host import run_log, scratch
from ncclprobe.host.command import abandon
from ncclprobe.host.own_child import start_own
from ncclprobe.host.run_log import FILE, RunLog, ends
from ncclprobe.model.errors import NO_TORCH, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import learned
from ncclprobe.model.values import Struct, asdict
from ncclprobe.report import delivery
from ncclprobe.report.progress import Waiting
from ncclprobe.session.measure.node_snapshot import captures_in, replayed_nodes, write_captures
from ncclprobe.session.measure.recorder import Publisher, asked, log_path
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.rank_files import RankState
from ncclprobe.session.watchdog.ending import reserve_s
from ncclprobe.signals import ENDING, Interrupted

_REPORTING = 0.25  # of what the ranks leave of --timeout: for ending those that are stopped, and for the report
_LOOPBACK = "127.0.0.1"  # the host's own name means nothing in a plain container
_AFTER_REPORT_S = 4.0  # after rank 0's report, or after a rank wrote why it left: the others leave within two
_AFTER_SIGNAL_S = 12.0  # after a signal: time for rank 0 to find the missing ranks and to report
_NOT_IMPORTED = "torch cannot be imported here"
_BY_SIGNAL = {code for number in ENDING for code in (-number, 128 + number)}
"""Exit codes of a rank killed by such a signal: before Python had started, and after."""


class RanksEnd(Struct, frozen=True):
    """How the ranks exited: failing codes first, below 0 for a signal, and the signal that this process received.

    `late`: some were still running at the deadline.
    """

    codes: Mapping[int, int] = {}
    signal: str = ""
    late: bool = False


def launch(nproc: int, options: Options, question: Question, refused: Callable[[str], int] | None = None) -> int:
    """Run the command with `options` on `nproc` ranks and return the overall exit code.

    `refused` is called if the ranks could not begin, such as without a torch that fits this node, and have printed the
    reason on standard error; it takes that reason and returns the exit code. Raises UsageError if no folder can be
    created for the files of the ranks, or a rank cannot be started.
    """
    if find_spec("torch") is None:
        error = UsageError(NO_TORCH)
        if refused is None:
            raise error
        delivery.complain(str(error))
        return refused(_NOT_IMPORTED)
    folder = _folder()
    log = log_path(options, str(folder.path)) or folder.path / FILE
    try:
        if options.keep:
            run_log.remove(log)  # of an earlier run
        code = _run(nproc, options, question, str(folder.path), log)
        why = refusal(folder.path, log) if code == ExitCode.USAGE and refused else ""
    finally:
        folder.remove()
    return refused(why) if refused and why else code


def refusal(folder: Path, log: Path) -> str:
    """Return why ranks that exited with wrong usage could not begin; empty: they had begun, or gave no reason."""
    if rank_files.read_state(folder, 0, "").phase == rank_files.IMPORTING:
        return _NOT_IMPORTED
    return RunLog.read(log).foreseen if log.exists() else ""


def _run(nproc: int, options: Options, question: Question, name: str, log: Path) -> int:
    """Start the ranks, wait for them, and publish the report; return the exit code."""
    folder = Path(name)
    last = question.clock + options.timeout_s - _REPORTING * reserve_s(options.timeout_s)
    starting = Waiting(f"starting {nproc} ranks, which import torch", wanted=not options.output.quiet)
    ranks: list[subprocess.Popen[bytes]] = []
    with starting as waiting:
        with held_port() as port, _signals(ranks, folder) as received:
            own = _variables(nproc, port) | {rank_files.FOLDER: name, rank_files.STARTED: repr(question.clock)}
            ranks.extend(_start(rank, own, options) for rank in range(nproc))
            end = wait_for(ranks, folder, log, last, waiting, received)
        return publish_outputs(options, question, nproc, end, folder, log, waiting)


@contextlib.contextmanager
def _signals(ranks: "Sequence[subprocess.Popen[bytes]]", folder: Path) -> Iterator[list[int]]:
    """Yield the signals that arrive while `ranks` start and run. In the end, kill the ranks and all that they started.

    A process that survives SIGKILL in the kernel is not waited for.
    """
    received: list[int] = []
    taken = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in taken}
    try:
        yield received
    finally:
        for each in ranks:
            abandon(each)
        rank_files.end_processes_of(str(folder))
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Reserve a free port for rank 0's store, which listens on it seconds later.

    The kernel gives it to no other process. Sockets that set SO_REUSEADDR, as torch's does, may be bound to one port as
    long as none listens yet (socket(7)).
    """
    both = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", 0))  # at every address, for torch's listens at every one
        yield held.getsockname()[1]


def _variables(nproc: int, port: int) -> dict[str, str]:
    """Return the common environment of `nproc` ranks: torchrun's variables, except those of its own store."""
    sizes = {"WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    place = {"MASTER_ADDR": _LOOPBACK, "MASTER_PORT": port}
    named = {"TORCHELASTIC_RUN_ID": uuid.uuid4().hex, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    return {name: str(value) for name, value in {**sizes, **place, **named}.items()}


def _start(rank: int, job: Mapping[str, str], options: Options) -> "subprocess.Popen[bytes]":
    own = {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    entry = ("ncclprobe.start:program", options.command, *options.argv)
    try:
        return start_own(*entry, stdin=None, stdout=None, stderr=None, variables=own)
    except OSError as error:  # those before it end with this process
        raise UsageError(f"--nproc: rank {rank} cannot be started: {error.strerror}; see `ulimit -u`") from None


def publish_outputs(
    options: Options, question: Question, nproc: int, end: RanksEnd, folder: Path, log: Path, waiting: Waiting
) -> int:
    """Publish the report of a finished run, once `waiting` has cleared its line; return the exit code.

    Raises Interrupted if a signal came before anything was measured, and nothing fails.
    """
    host, publisher = socket.gethostname(), Publisher(options)
    record = resumed(log, asked(options, options.backend or "gloo"), nproc, host)
    if record.end is None and (own := {ExitCode.USAGE, ExitCode.BROKEN} & {*end.codes.values()}):
        record.close(record.foreseen)
        with contextlib.suppress(UsageError):  # what is wrong has been printed, by the rank that found it
            publisher.write(diagnose(question, (), run_facts(record)))
        return int(min(own))
    complete_log(record, folder, nproc, host, end)
    captures = captures_in(folder)
    if options.keep:
        publisher.lose(write_captures(options.keep, captures))
    snapshots = replayed_nodes(captures, () if record.end else (host,))
    facts = run_facts(record)
    report = diagnose(question, snapshots, facts)
    waiting.end()
    if end.signal and report.exit_code == ExitCode.INCONCLUSIVE and not (report.judged and report.judged.of):
        raise Interrupted(signal.Signals[end.signal])
    return publisher.publish(report)


def _folder() -> scratch.Scratch:
    """Create a folder for the files of the ranks, which a later run removes if this process is killed."""
    try:
        return scratch.make()
    except OSError as error:
        raise UsageError(
            f"--nproc needs a folder for temporary files: {error}; set TMPDIR to a writable folder"
        ) from None


def complete_log(record: RunLog, folder: Path, nproc: int, host: str, end: RanksEnd) -> None:
    """Complete the run log with the ranks that were lost, and with its end."""
    codes, whole = end.codes, record.end is not None
    known = learned(run_facts(record), Attendance)
    named = known and known.lost
    states = {rank: rank_files.read_state(folder, rank, host) for rank in range(nproc)}
    crashed = unexpected_exits(codes)
    lost = crashed if named else signalled_alone(states, end) or crashed
    found = lost_ranks(states, {rank: codes[rank] for rank in lost}, log_ended=whole)
    for rank in found:
        delivery.complain(f"rank {rank.rank} on {rank.host} was lost in phase {rank.phase!r}: {rank.why}")
        record.add("lost", asdict(rank))
    if not whole:
        record.close("ranks were lost" if found else cut_short(folder, host, end))


def resumed(log: Path, request: RunRequest, nproc: int, host: str) -> RunLog:
    """Return the run log that rank 0 has written; if there is none, a new one with the request."""
    if log.exists():
        return RunLog.resume(log)
    record = RunLog()
    record.add("asked", asdict(request))
    record.add("participants", asdict(Participants("self", nproc, (host,), request.backend or "gloo", nnodes=1)))
    return record


def lost_ranks(states: Mapping[int, RankState], codes: Mapping[int, int], *, log_ended: bool) -> tuple[LostRank, ...]:
    """Return the ranks that failed by `codes`; otherwise rank 0, if its log has no end and others know why."""
    left = {rank: state for rank, state in states.items() if state.exit_reason and state.exit_code == ExitCode.FAIL}
    reasons = [f"rank {rank} left: {state.exit_reason}" for rank, state in left.items()]
    whys = {
        rank: exit_text(code, states[rank].signal)
        for rank, code in codes.items()
        if code < 0 or states[rank].signal or not states[rank].exit_reason
    }
    if reasons and not whys and not log_ended:
        whys = {0: f"it printed nothing more ({reasons[0]})"}
    return tuple(LostRank(rank, states[rank].host, states[rank].phase, why) for rank, why in whys.items())


def signalled_alone(states: Mapping[int, RankState], end: RanksEnd) -> tuple[int, ...]:
    """Return the rank that exited first, if by a signal to only that rank: this process received none."""
    first = next(iter(end.codes), None)
    if first is None or end.signal:
        return ()
    return (first,) if end.codes[first] in _BY_SIGNAL or states[first].signal else ()


def unexpected_exits(codes: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks that exited neither with a verdict nor by a forwarded signal."""
    verdicts = (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.FAIL)
    return tuple(sorted(rank for rank, code in codes.items() if code not in (*verdicts, *_BY_SIGNAL)))


def exit_text(code: int, received: str) -> str:
    """Return how a rank ended, in words: its exit code, or the signal."""
    names = {number.value: number.name for number in signal.Signals}
    by = received or names.get(-code if code < 0 else code - 128, "")
    if by or code < 0:
        return f"it was ended by {by or f'signal {-code}'}"
    return f"it ended with exit code {code}"


def cut_short(folder: Path, host: str, end: RanksEnd) -> str:
    """Explain why rank 0 did not end its log, if no rank can be blamed."""
    phase = rank_files.read_state(folder, 0, host).phase
    begun = phase not in (rank_files.START, rank_files.IMPORTING)
    where = f"while rank 0 was in phase {phase!r}" if begun else "before rank 0 had imported torch"
    if end.signal:
        return f"ended by {end.signal} {where}"
    if not end.late:
        return f"the ranks ended without a report {where}"
    cold = "; a cold network file system takes minutes: start again, or raise --timeout" if "import" in where else ""
    return f"--timeout ran out {where}{cold}"


def wait_for(
    ranks: "Sequence[subprocess.Popen[bytes]]", folder: Path, log: Path, deadline: float, waiting: Waiting,
    received: Sequence[int],
) -> RanksEnd:  # fmt: skip
    """Wait for `ranks` and forward the `received` signals to them; if one fails, end the others.

    `waiting` is shown until rank 0 has imported torch, and shows its progress by itself; then again after its last
    message. Rank 0 ends the log when the run is over, and a rank that has lost rank 0 writes why it exited. After that,
    a stopped rank would keep the others for another half minute, so the wait is cut short.
    """
    over, passed, codes = False, 0, dict[int, int]()
    while (running := [each for each in ranks if each.poll() is None]) and time.monotonic() < deadline:
        if not over and rank_files.read_state(folder, 0, "").phase not in (rank_files.START, rank_files.IMPORTING):
            waiting.end()
        if not over and _outcome_known(folder, log, len(ranks)):
            over = True
            waiting.begin("making the report")
            deadline = min(deadline, time.monotonic() + _AFTER_REPORT_S)
        told = 0
        if not received and not codes and (codes := _ended_badly(ranks)):
            told = signal.SIGTERM
        if len(received) > passed:
            interrupted = received[passed] == signal.SIGINT and all_started(folder, len(ranks))
            told = signal.SIGINT if interrupted else signal.SIGTERM
            passed += 1
        if told:
            deadline = min(deadline, time.monotonic() + _AFTER_SIGNAL_S)
            for each in running:
                each.send_signal(told)
        time.sleep(0.1)
    name = signal.Signals(received[0]).name if received else ""
    codes = codes or ({} if received else _ended_badly(ranks))
    return RanksEnd(codes, name, late=bool(running) and not codes)


def _ended_badly(ranks: "Sequence[subprocess.Popen[bytes]]") -> dict[int, int]:
    return {rank: each.returncode for rank, each in enumerate(ranks) if each.returncode}


def all_started(folder: Path, nproc: int) -> bool:
    """Return whether all ranks handle SIGINT: a Python that is still starting would print a traceback."""
    return all(rank_files.read_state(folder, rank, "").phase != rank_files.START for rank in range(nproc))


def _outcome_known(folder: Path, log: Path, nproc: int) -> bool:
    """Return whether a rank has written how the run ended."""
    return ends(log) or any(rank_files.read_state(folder, rank, "").exit_reason for rank in range(1, nproc))
