"""Ranks that ended, as launchers say it: torchrun, srun, mpirun, DeepSpeed; and what they end themselves."""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import FAILED, JOB, NODE, RESTART, UNPROVEN, demoted, failed, warned
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between, number
from ncclprobe.localise.outcome import lived_on
from ncclprobe.localise.rank_ends import rank_ends
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import replace

_SRUN = "srun: error: "
_TASK_ENDED = ("Exited with", "Killed", "Segmentation fault", "Bus error", "Aborted", "Terminated", "Out Of Memory")
_BY_SIGNAL = (": Killed", ": Segmentation fault", ": Bus error", *(f"exit code {code}" for code in (135, 137, 139)))
_STEP_ENDED = ("srun: Job step aborted", "STEP CANCELLED", "JOB CANCELLED", "DUE TO TIME LIMIT", "CANCELLED AT")


def _first_tasks_of_srun(log: JobLog) -> Iterator[LogEvent]:
    """Yield of each log the first task of which srun says that it ended, if a signal did and the step still ran.

    srun says it of the other tasks too, once it has ended them.
    """
    over: set[int] = set()
    for event in log.having(*_TASK_ENDED, *_STEP_ENDED):
        task = _SRUN in event.text or event.text.startswith(("task ", "tasks "))
        if event.stream in over or not (task or any(text in event.text for text in _STEP_ENDED)):
            continue
        over.add(event.stream)
        if event.text.startswith("task ") and event.text.endswith(_BY_SIGNAL):
            yield event


_KILLED, _SEGV, _BUS, _ABORTED, _TERMINATED = 9, 11, 7, 6, 15
_SHELL = re.compile(r"(?:: line \d{1,7}: {1,8}\d{1,10} |^)(Killed|Bus error|Illegal instruction)(?: {4}|$| \(core)")
"""What shells say of a program that a signal ended; of some, other checks read it."""
_PROGRAMS = ("python", "torchrun", "deepspeed", "accelerate", "mpirun", "horovodrun", "./")
"""What a script runs as its job, and not beside it, such as a monitor that it ends by SIGKILL."""
_IN_WORDS = {"Killed": 9, "Bus error": 7, "Illegal instruction": 4}
_WORDS = {4: "SIGILL", _KILLED: "SIGKILL", _SEGV: "SIGSEGV", _BUS: "SIGBUS", 8: "SIGFPE"}


def _signal(event: LogEvent) -> int | None:
    """Return the signal of ``exitcode: -9, …`` or of a shell's 137."""
    code = number(between(event.text, "exitcode: "))
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


@cause(
    code="rank-crashed",
    signs=(
        "Root Cause (first observed failure)",
        "exited on signal",
        "exits with return code = -",
        "failed (exitcode: -",
        "terminated with signal ",
        "died with <Signals.",
        "Killed",
        _SRUN,
    ),
    echoes=("oom", "gpu-hw-error", "shm-too-small"),
    bad=lambda: ["mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 11 (Segmentation fault)."],
    good=lambda: ["srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Killed"],
)
def killed_by_a_signal(log: JobLog) -> Iterator[Finding]:
    """A rank was ended by a signal before any other failed.

    Right: No rank was ended by a signal of its own.
    Why: SIGKILL comes from the out-of-memory killer or a person, SIGSEGV and SIGBUS from the program; SIGABRT is how
    torch's watchdog ends a rank after another failed, SIGTERM how a launcher does.
    Fix: SIGKILL: `dmesg -T | grep -i oom` on that host and the memory of the job's control group; SIGSEGV: a core dump
    or `python -X faulthandler`; SIGBUS: room in /dev/shm.
    """
    for event in log.events:
        signal = _signal(event) if event.level == "ROOT CAUSE" else signal_of_launcher(event.text)
        if signal in _WORDS:
            codes = ("shm-too-small", "rank-crashed") if signal == _BUS else ()
            ranks = _mpi_rank(event.text)
            yield said(log, event, f"was ended by {_WORDS[signal]}", codes=codes, ranks=ranks, **UNPROVEN)
    for event in _first_tasks_of_srun(log):
        yield said(log, event, f"was ended by a signal: {event.text.rpartition(': ')[2]}", **UNPROVEN)


_ENDED_ITSELF = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
    "  rank      : 3 (local_rank: 1)\n  exitcode  : 3 (pid: 77)\n  error_file: <N/A>\n"
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n========\n"
)


@cause(
    code="rank-crashed",
    signs=("Root Cause (first observed failure)",),
    echoes=("oom", "gpu-hw-error", "shm-too-small", "collective-desync"),
    bad=lambda: [_ENDED_ITSELF],
    good=lambda: [_ENDED_ITSELF.replace(": 3 (pid", ": 1 (pid")],
)
def exited(log: JobLog) -> Iterator[Finding]:
    """A rank ended itself with an exit code of its own.

    Right: No rank ended itself with an exit code of its own.
    Why: Python ends with 1 after an exception, which it prints; another code is the program's own, of sys.exit or
    os._exit, or of a usage error (2). The launcher then ends the other ranks.
    Fix: look for this exit code in the program and at what the rank printed last.
    """
    ends = rank_ends(log, ())
    silent = set() if ends.unattributed else {each.rank for each in ends.silent}
    for event in log.events:
        code = number(between(event.text, "exitcode: ")) if event.level == "ROOT CAUSE" else None
        if code is None or _signal(event) is not None:
            continue
        if code > 1 or (code == 1 and event.rank in silent):
            without = "" if code > 1 else " and printed no exception, where others did"
            yield said(log, event, f"ended itself with exit code {code}{without}", **JOB)


def signal_of_launcher(text: str) -> int | None:
    """Return the signal that mpirun, DeepSpeed, torch's spawn, torchrun's own log or a shell name."""
    if "exited on signal " in text:
        return number(between(text, "exited on signal "))
    for start in ("exits with return code = -", "failed (exitcode: -"):
        if start in text:
            return number(between(text, start))
    name = between(text, "terminated with signal ", " ").strip(".") or between(text, "died with <Signals.", ":")
    shell = _SHELL.search(text[:512])
    if shell and (shell[0][0] != ":" or any(word in text[shell.end() :] for word in _PROGRAMS)):
        return _IN_WORDS[shell[1]]
    return next((n for n, word in _WORDS.items() if word == name), None)


def _mpi_rank(text: str) -> tuple[int, ...]:
    rank = number(between(text, "process rank "))
    if rank is None and " terminated with signal " in text:  # torch.multiprocessing.spawn numbers them as its ranks
        rank = number(between(text, "ProcessExitedException: process "))
    return () if rank is None else (rank,)


_ENDED = (
    "ChildFailedError",
    "Sending process",
    "closing signal SIGTERM",
    "Received 15 death signal",
    "got signal: 15",
    "SignalException",
    "terminate called after throwing",
    "ProcessExitedException",
    "CalledProcessError",
    "failed (exitcode: ",
    "unexpectedly failed with exitcode=",
    "sigkill_handler] Killing subprocess",
    "Exited with exit code ",
    "*** SIGTERM (@",
)


@cause(
    signs=(*_ENDED, "Root Cause (first observed failure)"),
    echoes=("*",),
    bad=lambda: ["W0102 03:04:05.000000 77 api.py:900] Sending process 78 closing signal SIGTERM"],
    good=lambda: ["[rank1]: loss 2"],
)
def ended_by_the_launcher(log: JobLog) -> Iterator[Finding]:
    """A launcher ended its ranks, or a rank aborted.

    Right: No launcher ended its ranks.
    Why: launchers end all ranks of a host when one has failed; what they say names the victims with the culprit.
    Fix: look at the first failure, torchrun's "Root Cause".
    """
    for event in log.events:
        code = _signal(event)
        summary = event.level in ("ROOT CAUSE", "FAILURE") and code not in _WORDS
        ended = signal_of_launcher(event.text) not in _WORDS and any(text in event.text for text in _ENDED)
        if summary or (not demoted(event) and ended):
            found = consequence(log, event, _how_ended(event.text))
            yield _after_the_first(log, event, found) if event.level == "FAILURE" else found


def _how_ended(text: str) -> str:
    if "terminate called" in text:
        return "a process aborted on an exception of C++"
    return "a rank was ended by SIGTERM" if any(sign in text for sign in _OUTSIDE) else "a launcher saw a rank fail"


_OUTSIDE = ("SIGTERM", "signal: 15", "Received 15 death", "SignalException")
_SCHEDULER = ("DUE TO TIME LIMIT", "DUE TO PREEMPTION", "*** JOB ")


@cause(
    code="ended-from-outside",
    signs=(*_SCHEDULER, "signal: 15", "Received 15 death"),
    echoes=("*",),
    bad=lambda: [
        "step 7 loss 2\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
    ],
    good=lambda: [
        "[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: no data\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15"
    ],
)
def ended_from_outside(log: JobLog) -> Iterator[Finding]:
    """The scheduler or a person ended the job, which had not failed.

    Right: No job was ended from outside.
    Why: at its time limit, for a job of higher priority, by `scancel`, `kubectl delete` or a node that is drained, a
    job gets SIGTERM and later SIGKILL. One that hangs is ended so as well: what its ranks did last tells.
    Fix: a longer `--time` or a checkpoint to go on from; `sacct -j JOB -o JobID,State,ExitCode,Elapsed,Timelimit`, or
    `kubectl get events`, says who ended it.
    """
    if any(rank.init_started > rank.init_complete for rank in log.ranks.values()) or _failed_by_itself(log):
        return
    for event in log.having(*_SCHEDULER, *_OUTSIDE):
        if any(sign in event.text for sign in _SCHEDULER[:2]):
            why = "time limit" if _SCHEDULER[0] in event.text else "preemption"
            yield said(log, event, f"Slurm ended the job: {why}", **RESTART)
        elif "*** JOB " in event.text and "CANCELLED AT" in event.text and "DUE TO" not in event.text:
            yield said(log, event, "the job was cancelled", **UNPROVEN | {"action": "restart"})
        elif any(sign in event.text for sign in _OUTSIDE[1:3]):
            yield said(log, event, "the launcher was ended from outside by SIGTERM", **RESTART)


_EVICTED = ("The node was low on resource", "pod is evicted successfully")
_PLACED = "Successfully assigned "


@cause(
    code="ended-from-outside",
    signs=(*_EVICTED, _PLACED),
    echoes=("oom",),
    bad=lambda: [
        "3m  Warning  Evicted  pod/w-0  The node was low on resource: ephemeral-storage.\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]:7"
    ],
    good=lambda: ["3m  Warning  Evicted  pod/w-0  The node was low on resource: ephemeral-storage.\nstep 7 loss 2"],
)
def pod_evicted(log: JobLog) -> Iterator[Finding]:
    """Kubernetes evicted a pod: its node was short of memory or of disk.

    Right: No pod of a job that failed was evicted.
    Why: the kubelet ends pods of a node under pressure, those first that use most above what they asked for; the other
    ranks wait for the pod's, or lose their connections.
    Fix: `kubectl describe node` of that node; ask for what the pod needs (ephemeral-storage, memory) in its requests,
    and move caches and checkpoints to a volume.
    """
    placed = {pod: event.text.rpartition(" to ")[2] for event in log.having(_PLACED) if (pod := _pod(event.text))}
    for event in log.having(*_EVICTED) if failed(log) else ():
        pod = _pod(event.text)
        host = event.host or placed.get(pod, "").strip()
        what = between(event.text, "low on resource: ", ". ").rstrip(".")
        message = f"Kubernetes evicted {pod or 'a pod'}" + (f": its node was low on {what}" if what else "")
        found = said(log, event, message, nodes=(host,) if host else (), **NODE)
        yield replace(found, occurrence=found.occurrence and replace(found.occurrence, hosts=found.nodes))


def _pod(text: str) -> str:
    """Return the pod of an event or of a kubelet's line, without its namespace; empty: none is named."""
    name = between(text, "pod/", " ") or between(text, 'pod="', '"') or between(text, _PLACED, " ")
    return name.rpartition("/")[2]


def _failed_by_itself(log: JobLog) -> bool:
    """Return whether a line tells of a failure that no signal from outside explains."""
    ended = (e for e in log.events if e.level in ("EXCEPTION", "ROOT CAUSE", "FAILURE", "FATAL"))
    said_so = (e for e in log.having(*FAILED) if e.level != "INFO" and not warned(e))
    return any(
        not any(sign in event.text for sign in (*_OUTSIDE, "ChildFailedError")) and not lived_on(log, event)
        for events in (ended, said_so)
        for event in events
    )


def _after_the_first(log: JobLog, event: LogEvent, found: Finding) -> Finding:
    """Return `found` as if it stood beneath torchrun's first observed failure, which the summary lists last."""
    roots = [e.line for e in log.events if e.stream == event.stream and e.level == "ROOT CAUSE" and e.line > event.line]
    occurrence = found.occurrence
    return replace(found, occurrence=replace(occurrence, line=min(roots))) if occurrence and roots else found
