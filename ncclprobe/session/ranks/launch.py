"""``--nproc N`` of a measuring command: start N ranks on this node, show their report, and end with its code.

Three kinds of processes: this one, which imports no torch, keeps the deadline, passes signals on, and has the last
word; torch's agent (agent.py) in a session of its own; and the ranks, which lead sessions of their own, so ending the
agent's group does not end them. Rank 0 writes the report. If it could not, or if a rank ended badly after it had, the
report is completed here from what the ranks left in the trail.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.errors import UsageError
from ncclprobe.facts.run.asked import Asked
from ncclprobe.facts.run.ranks import Attendance, LostRank, Participants
from ncclprobe.host.run_log import FILE, RunLog, ends
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct, asdict
from ncclprobe.session.measure.look import captures_in, replayed_nodes, write_captures
from ncclprobe.session.measure.publish import Publisher
from ncclprobe.session.measure.recorder import asked, log_path
from ncclprobe.session.measure.survivor import Survivor
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import rank_files

_GRACE_S = 2.0  # after --timeout: the ranks report at the deadline and need a moment to leave
_FAREWELL_S = 4.0  # after rank 0's report, or a rank's last words: the others leave within two
_GOODBYE_S = 12.0  # after a signal: time for rank 0 to learn who is missing and to report


class End(Struct, frozen=True):
    """How the agent ended: its exit code (None: it had to be ended), and the signal that we were sent, if any."""

    code: int | None
    signal: str = ""


def launch(nproc: int, options: Options, question: Question) -> int:
    """Run the command with `options` on `nproc` ranks and return the exit code of the whole.

    Raises UsageError where nothing can be written for the ranks to meet in.
    """
    name = _folder()
    log = log_path(options, name) or Path(name, FILE)
    if options.keep:
        log.unlink(missing_ok=True)  # of an earlier run
    survivor = Survivor(log, (options.command, *options.argv), folder=name, wait_s=_GOODBYE_S)
    try:
        return _run(nproc, options, question, name, log)
    finally:
        survivor.dismiss()


def _run(nproc: int, options: Options, question: Question, name: str, log: Path) -> int:
    """Start torch's agent, wait for it, and publish the report."""
    host = socket.gethostname()
    own = {rank_files.FOLDER: name, rank_files.STARTED: repr(time.time())}
    asked_for = [str(os.getpid()), str(nproc), options.command, *options.argv]
    agent = subprocess.Popen(
        [sys.executable, "-m", "ncclprobe.session.ranks.agent", *asked_for],
        env=os.environ | own | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(_GOODBYE_S))},
        start_new_session=True,
    )
    folder = Path(name)
    end = _attend(agent, folder, log, nproc, time.monotonic() + options.timeout_s + _GRACE_S)
    record = _settle(log, folder, nproc, host, end, asked(options, options.backend or "gloo"))
    if isinstance(record, int):
        return record
    captures = captures_in(folder)
    if options.keep:
        write_captures(options.keep, captures)
    report = diagnose(question, replayed_nodes(captures), run_facts(record))
    return Publisher(options).publish(report)


def _folder() -> str:
    """A folder for what ranks leave behind. The survivor removes it, however this process ends."""
    try:
        return tempfile.mkdtemp(prefix="ncclprobe-")
    except OSError as error:
        raise UsageError(f"--nproc needs a folder for temporary files: {error}; set TMPDIR to one") from None


def _settle(log: Path, folder: Path, nproc: int, host: str, end: End, request: Asked) -> RunLog | int:
    """The run log with what is known of its end; or an exit code, where a rank has said itself what is wrong."""
    codes = rank_files.ends(folder)
    record = RunLog.resume(log) if log.exists() else _unrecorded(request, nproc, host)
    whole = record.end is not None
    if not whole and (own := {ExitCode.USAGE, ExitCode.BROKEN} & {end.code, *codes.values()}):
        return int(min(own))
    known = run_facts(record).get(Attendance)
    named = isinstance(known, Attendance) and known.lost
    lost = () if named else odd(codes)
    found = _lost_ranks(folder, nproc, host, {rank: codes[rank] for rank in lost}, spoke=whole)
    for rank in found:
        _say(f"rank {rank.rank} on {rank.host} was lost in phase {rank.phase!r}: {rank.why}")
        record.add("lost", asdict(rank))
    if not whole:
        record.close("ranks were lost" if found else _cut_short(folder, host, end))
    return record


def _unrecorded(request: Asked, nproc: int, host: str) -> RunLog:
    """The log of a run whose rank 0 never came to write one."""
    record = RunLog()
    record.add("asked", asdict(request))
    record.add("participants", asdict(Participants("self", nproc, (host,), request.backend or "gloo", nnodes=1)))
    return record


def _lost_ranks(folder: Path, nproc: int, host: str, codes: Mapping[int, int], *, spoke: bool) -> tuple[LostRank, ...]:
    """Those that ended badly by `codes`; else rank 0, if it never `spoke` and others left with words of their own."""
    traces = {rank: rank_files.trace(folder, rank, host) for rank in range(nproc)}
    words = [f"rank {rank} left: {trace.words}" for rank, trace in traces.items() if trace.words]
    whys = {rank: _how(code) for rank, code in codes.items() if code < 0 or not traces[rank].words}
    if words and not whys and not spoke:
        whys = {0: f"it said nothing more ({words[0]})"}
    return tuple(LostRank(rank, traces[rank].host, traces[rank].phase, why) for rank, why in whys.items())


def odd(codes: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that ended as they should not: neither with a verdict, nor by SIGTERM, which the agent sends to the
    others once one has ended.
    """
    verdicts = (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.FAIL)
    return tuple(sorted(rank for rank, code in codes.items() if code not in (*verdicts, -signal.SIGTERM)))


def _how(code: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    return f"it was ended by {names.get(-code, -code)}" if code < 0 else f"it ended with exit code {code}"


def _cut_short(folder: Path, host: str, end: End) -> str:
    """Why there is no report of rank 0's, where no rank can be blamed for it."""
    where = f"while rank 0 was in phase {rank_files.trace(folder, 0, host).phase!r}"
    if not (folder / rank_files.IMPORTED).exists():
        where = "in import torch, before any rank was started"
    if end.signal:
        return f"ended by {end.signal} {where}"
    if end.code is not None:
        return f"torch's agent {_how(end.code).removeprefix('it ')} {where}"
    cold = "; a cold network file system takes minutes: start again, or raise --timeout" if "import" in where else ""
    return f"--timeout ran out {where}{cold}"


def _say(text: str) -> None:
    try:
        print(f"ncclprobe: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _attend(agent: "subprocess.Popen[bytes]", folder: Path, log: Path, nproc: int, deadline: float) -> End:
    """Wait for `agent`, passing on what is asked of us; nothing that it started survives.

    Rank 0 writes its report when all is over, and a rank that it cannot speak for leaves last words. A rank that is
    stopped then keeps the agent for another half minute.
    """
    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    started: dict[int, object] = {}
    over, passed = False, 0
    try:
        while agent.poll() is None and time.monotonic() < deadline:
            _remember(agent.pid, started)
            if not over and _spoken(folder, log, nproc):
                over = True
                deadline = min(deadline, time.monotonic() + _FAREWELL_S)
            if len(asked) > passed:
                ready = asked[passed] == signal.SIGTERM or _under_way(folder, nproc)
                agent.send_signal(asked[passed] if ready else signal.SIGTERM)
                passed += 1
                deadline = min(deadline, time.monotonic() + _GOODBYE_S)
            time.sleep(0.1)
        return End(agent.poll(), signal.Signals(asked[0]).name if asked else "")
    finally:
        _end(agent, started)
        for number, handler in before.items():
            signal.signal(number, handler)


def _under_way(folder: Path, nproc: int) -> bool:
    """Whether all ranks take SIGINT for what it is: a Python that still starts takes it for a reason to complain."""
    return all(rank_files.trace(folder, rank, "").phase != rank_files.START for rank in range(nproc))


def _spoken(folder: Path, log: Path, nproc: int) -> bool:
    """Whether a rank has said how the run ended."""
    return ends(log) or any(rank_files.trace(folder, rank, "").words for rank in range(1, nproc))


def _remember(pid: int, started: dict[int, object]) -> None:
    """Note the agent's descendants while they can be told from others': once it ends, they are nobody's children."""
    import psutil

    try:
        started.update({process.pid: process for process in psutil.Process(pid).children(recursive=True)})
    except psutil.NoSuchProcess:
        return


def _end(agent: "subprocess.Popen[bytes]", started: dict[int, object]) -> None:
    import psutil

    if agent.poll() is None:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
    for process in started.values():
        assert isinstance(process, psutil.Process)
        try:
            process.kill()  # psutil compares start times, so a reused number is not hit
        except psutil.NoSuchProcess:
            continue
