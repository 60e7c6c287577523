"""Ranks that ended, by their own words, the kernel's, or those of their launcher."""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import (
    FAILED,
    IMAGE,
    JOB,
    RESTART,
    UNPROVEN,
    demoted,
    failed,
    preceding,
    warned,
)
from ncclprobe.logs import messages
from ncclprobe.logs.job_log import ENDINGS, SUMMARY, JobLog, LogEvent
from ncclprobe.logs.lines import has_own_reason, reason_of, says_only_of_others
from ncclprobe.logs.outcome import lived_on
from ncclprobe.logs.rank_ends import rank_ends
from ncclprobe.logs.texts import ERROR, between, form_of_failure, number
from ncclprobe.model.findings import Finding
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import replace

_SRUN, _PADDLE = "srun: error: ", " status failed cmd "
_TASK_ENDED = ("Exited with", "Killed", "Segmentation fault", "Bus error", "Aborted", "Terminated", "Out Of Memory")
_BY_SIGNAL = (": Killed", ": Segmentation fault", ": Bus error", *(f"exit code {code}" for code in (135, 137, 139)))
_STEP_ENDED = ("srun: Job step aborted", "STEP CANCELLED", "JOB CANCELLED", "DUE TO TIME LIMIT", "CANCELLED AT")


def _first_tasks_of_srun(log: JobLog) -> Iterator[LogEvent]:
    """Yield for each log the first task that srun reports as ended, if a signal ended it while the step still ran.

    srun reports the other tasks too, once it has ended them.
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
_BY_NUMBER = re.compile(
    r"\b(?:killed|terminated|ended|exited|died|signal(?:l?ed)?(?: to [a-z]{1,12})?) "
    r"(?:by|with|on|from) signal[: ]{1,2}(\d{1,2})\b"
)
_NEGATIVE = re.compile(r"\b(?:exit|return)[ _]?(?:code|status)(?:: ?| ?= ?| )-(\d{1,2})\b")
"""How Python, and what is written in it, gives the signal that ended a process."""
_IN_WORDS = {"Killed": 9, "Bus error": 7, "Illegal instruction": 4}
_LEFT_OPEN = {_KILLED: ("rank-crashed", "oom"), _BUS: ("shm-too-small", "rank-crashed")}
"""Meanings of a signal that does not show its sender or reason."""
_WORDS = {4: "SIGILL", _KILLED: "SIGKILL", _SEGV: "SIGSEGV", _BUS: "SIGBUS", 8: "SIGFPE"}


def _signal(event: LogEvent) -> int | None:
    """Return the signal of ``exitcode: -9, …`` or of a shell's 137."""
    code = number(between(event.text, "exitcode: "))
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


_SEGFAULT = (
    "Segmentation fault",
    "Fatal Python error",
    "Caught signal 11",
    "Signal: Segmentation fault",
    *(f"*** {name} (" for name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")),
    "Bus error",
    "double free or corruption",
    "free(): invalid",
    "malloc(): ",
    "stack smashing detected",
    "Floating point exception",
    "Illegal instruction",
    *(_OF_A_CHILD := ("is killed by signal: Killed", "died unexpectedly", "exited unexpectedly")),
)
_SAID_BEFORE = 4
_DUMPED = ("Fatal Python error: Aborted",)
_CHILD_ENDED = "a process ended, and its parent's line does not give the reason"
_OF_RAY = ("actor died unexpectedly", "worker died unexpectedly")
"""Which does not know how; the table of messages has it."""


@cause(
    code="rank-crashed",
    signs=(
        "Root Cause (first observed failure)",
        "exited on signal",
        "exits with return code = -",
        "failed (exitcode: -",
        "terminated with signal ",
        "died with <Signals.",
        "killed by signal ",
        " with signal ",
        _PADDLE,
        "Killed",
        _SRUN,
        *_SEGFAULT,
    ),
    echoes=("oom", "gpu-hw-error", "shm-too-small"),
    bad=lambda: ["mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 11 (Segmentation fault)."],
    good=lambda: ["srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Killed"],
)
def killed_by_a_signal(log: JobLog) -> Iterator[Finding]:
    """A rank's process crashed or was killed by a signal before any other rank failed.

    Right: No rank's process crashed or was killed by a signal.
    Why: SIGKILL comes from the out-of-memory killer or a person. SIGSEGV and SIGBUS come from the program: an extension
    built for another torch, a library loaded twice, or a bug in native code. After another rank has failed, torch's
    watchdog ends a rank with SIGABRT, and a launcher with SIGTERM.
    Fix: after SIGKILL, run `dmesg -T | grep -i oom` on that host and check the memory limit of the job's control group.
    After SIGSEGV or a crash, the stack below the line, a core dump or `python -X faulthandler` names the library. After
    SIGBUS, check the free space in /dev/shm.
    """
    for event in log.events:
        summary = _signal(event) if event.level == "ROOT CAUSE" else None
        signal = summary if event.level in SUMMARY else signal_of_launcher(event.text)
        if signal in _WORDS:
            codes = _LEFT_OPEN.get(signal, ())
            ranks = _mpi_rank(event.text)
            yield said(log, event, f"was killed by {_WORDS[signal]}", codes=codes, ranks=ranks, **UNPROVEN)
    for event in _first_tasks_of_srun(log):
        yield said(log, event, f"was killed by a signal: {event.text.rpartition(': ')[2]}", **UNPROVEN)
    yield from _crashed(log)


ENDED_ITSELF = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
    "  rank      : 3 (local_rank: 1)\n  exitcode  : 3 (pid: 77)\n  error_file: <N/A>\n"
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n========\n"
)


_OWN_VERDICT = "above, not a crash"
"""What ncclprobe's own ranks leave for torchrun to print (:mod:`ncclprobe.session.ranks.rank_files`)."""


@cause(
    code="rank-crashed",
    signs=("Root Cause (first observed failure)",),
    echoes=("oom", "gpu-hw-error", "shm-too-small", "collective-desync"),
    bad=lambda: [ENDED_ITSELF],
    good=lambda: [ENDED_ITSELF.replace(": 3 (pid", ": 1 (pid")],
)
def exited(log: JobLog) -> Iterator[Finding]:
    """A rank exited with an error code from its program.

    Right: No rank exited with an error code from its program.
    Why: Python exits with 1 after an exception, which it prints. Any other code comes from sys.exit or os._exit in the
    program, or from a usage error (2). The launcher then ends the other ranks.
    Fix: look for this exit code in the program, and read what the rank printed last.
    """
    ends = rank_ends(log, ())
    silent = set() if ends.unattributed else {each.rank for each in ends.silent}
    for event in log.events:
        code = number(between(event.text, "exitcode: ")) if event.level == "ROOT CAUSE" else None
        if code is None or _signal(event) is not None or _OWN_VERDICT in event.text:
            continue
        if code > 1 or (code == 1 and event.rank in silent):
            without = "" if code > 1 else " and printed no exception, unlike others"
            yield said(log, event, f"exited with code {code}{without}", **JOB)


def signal_of_launcher(text: str) -> int | None:
    """Return the signal that a launcher, torch's spawn or a shell names."""
    if _PADDLE in text:
        code = number(text.rpartition(" code ")[2].partition(" ")[0])
        return -code if code is not None and code < 0 else None
    if "exited on signal " in text:
        return number(between(text, "exited on signal "))
    if numbered := _BY_NUMBER.search(text[:512]) or _NEGATIVE.search(text[:512]):
        return int(numbered[1])
    name = between(text, "terminated with signal ", " ").strip(".") or between(text, "died with <Signals.", ":")
    shell = _SHELL.search(text[:512])
    if shell and (shell[0][0] != ":" or any(word in text[shell.end() :] for word in _PROGRAMS)):
        return _IN_WORDS[shell[1]]
    return next((n for n, word in _WORDS.items() if word == name), None)


def _mpi_rank(text: str) -> tuple[int, ...]:
    rank = number(between(text, "process rank ") or between(text, "Container rank "))
    if rank is None and " terminated with signal " in text:  # torch.multiprocessing.spawn numbers them as its ranks
        rank = number(between(text, "ProcessExitedException: process "))
    return () if rank is None else (rank,)


_ENDED = (
    "exits with return code = -",
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
    Why: when one rank fails, launchers end all ranks on its host, and their messages name the victims together with the
    culprit.
    Fix: look at the first failure, which torchrun prints as "Root Cause".
    """
    for event in log.events:
        code = _signal(event)
        summary = event.level in SUMMARY and code not in _WORDS
        ended = signal_of_launcher(event.text) not in _WORDS and any(text in event.text for text in _ENDED)
        ended = ended and not event.text.startswith("    ")  # of a traceback's own source
        if summary or (not demoted(event) and ended and not _says_why(event)):
            found = consequence(log, event, _how_ended(event.text))
            yield _join_to_first_failure(log, event, found) if event.level == "FAILURE" else found


def _says_why(event: LogEvent) -> bool:
    """Return whether the table of messages knows a cause by a line: of a launcher that reaches no host, for example."""
    found = messages.said(event.text, event.level)
    return found is not None and bool(found.codes)


def _how_ended(text: str) -> str:
    if "terminate called" in text:
        return "a process aborted on a C++ exception"
    if (signal := _terminal_signal(text)) is not None:
        return f"a launcher ended its ranks after {_BY_A_PERSON[signal][0]}"
    return (
        "a rank was terminated by SIGTERM" if any(sign in text for sign in _OUTSIDE) else "a launcher saw a rank fail"
    )


_OUTSIDE = ("SIGTERM", "signal: 15", "Received 15 death", "SignalException")
_SCHEDULER = ("*** JOB ", "*** STEP ")
_BY_SLURM = {
    "TIME LIMIT": "it reached its time limit",
    "PREEMPTION": "it was preempted",
    "JOB REQUEUE": "it was requeued",
}
"""What Slurm writes behind ``DUE TO``, in words."""
_OTHER_LIMITS = (
    "PBS: job killed: walltime ",
    "PBS: job killed: cput ",
    "TERM_RUNLIMIT: job killed",
    "TERM_OWNER: job killed",
)
"""How PBS and LSF say that they, or who owns the job, ended it."""
_BY_A_PERSON = {
    1: (
        "SIGHUP",
        "the launcher got SIGHUP, because the terminal or ssh session that started it was closed",
        "start it in tmux or screen, with `setsid`, or as a batch job. `nohup` is not enough, because "
        "torchrun handles SIGHUP itself",
    ),
    2: (
        "SIGINT",
        "the launcher got SIGINT, because someone pressed Ctrl-C",
        "start it again, from its last checkpoint",
    ),
    20: (
        "SIGTSTP",
        "someone pressed Ctrl-Z, which suspends the launcher but not all of its processes",
        "if its ranks still run, type `fg` in the same shell; otherwise start it again",
    ),
}
"""The signals of a terminal: the name, what it means, what to do."""
_ELSEWHERE = "start it again from its last checkpoint, on another machine or one that cannot be reclaimed"
_SUSPENDED = ("]+  Stopped  ", "Forwarding signal 20 ")
"""How a shell, and Open MPI's launcher, say it."""
_SIGNALS = ("got signal: ", "death signal", "KeyboardInterrupt", *_SUSPENDED)
_NOTICES = ("preempt", "Preempt", "nterruption notice", "instance-action: terminate", "TERMINATE_ON_HOST_MAINTENANCE")
_TAKEN_BACK = re.compile(
    r"\b(?:cluster|node|instance|vm|machine|host|pod|server)s?\b.{0,60}?\b(?:is|are|was|were|been|being|got) "
    r"(?:being )?preempted\b|being preempted|preempted TRUE|PreemptScheduled|[Ii]nterruption notice"
    r"|instance-action: terminate|TERMINATE_ON_HOST|\"EventType\": ?\"Preempt",
    re.IGNORECASE,
)
"""How clouds, and those who start jobs there, say that they take a machine back."""


@cause(
    code="ended-from-outside",
    signs=(*_SCHEDULER, "DUE TO ", *_SIGNALS, *_NOTICES, *_OTHER_LIMITS),
    echoes=("*",),
    bad=lambda: [
        "step 7 loss 2\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
    ],
    good=lambda: [
        "[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: no data\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",
    ],
)
def ended_from_outside(log: JobLog) -> Iterator[Finding]:
    """The scheduler or a person ended a job that had not failed.

    Right: No job was ended from outside.
    Why: a job gets SIGTERM and later SIGKILL at its time limit, when a job of higher priority preempts it, after
    `scancel` or `kubectl delete`, or when its node is drained. A hung job also ends this way, so read the last lines of
    its ranks.
    Fix: request a longer `--time`, or restart from a checkpoint. To see who ended the job, run `sacct -j JOB -o
    JobID,State,ExitCode,Elapsed,Timelimit` or `kubectl get events`.
    """
    for event in log.having(*_NOTICES):
        if _TAKEN_BACK.search(event.text[:512]) and not _failed_by_itself(log, event):
            yield said(log, event, "the cloud reclaimed this machine", remedy=_ELSEWHERE, **RESTART)
    if any(rank.init_started > rank.init_complete for rank in log.ranks.values()) or _failed_by_itself(log):
        return
    for event in log.having(*_OTHER_LIMITS):
        yield said(log, event, "the scheduler ended the job, at a limit or on request", **RESTART)
    for event in log.having(*_SCHEDULER, "DUE TO ", *_OUTSIDE, *_SIGNALS):
        signal = _terminal_signal(event.text)
        if signal is not None:
            _, message, remedy = _BY_A_PERSON[signal]
            yield said(log, event, message, remedy=remedy, **RESTART)
        elif why := _BY_SLURM.get(between(event.text, "DUE TO ", " ***").strip()):
            yield said(log, event, f"Slurm ended the job: {why}", **RESTART)
        elif any(sign in event.text for sign in _SCHEDULER):
            if "CANCELLED AT" in event.text and "DUE TO" not in event.text and not _a_task_ended(log, event):
                yield said(log, event, "the job was cancelled", **RESTART)
        elif any(sign in event.text for sign in _OUTSIDE[1:3]):
            yield said(log, event, "the launcher got SIGTERM from outside the job", **RESTART)


def _terminal_signal(text: str) -> int | None:
    """Return the terminal's signal of ``got signal: 1``, ``Received 2 death signal`` or Python's own exception."""
    if text.startswith("KeyboardInterrupt"):
        return 2
    if any(sign in text for sign in _SUSPENDED):
        return 20
    signal = number(between(text, "got signal: ") or between(text, "Received "))
    signal = signal if "got signal: " in text or " death signal" in text else None
    named = next((n for n, (name, *_) in _BY_A_PERSON.items() if text.endswith(f"closing signal {name}")), None)
    return signal if signal in _BY_A_PERSON else named


def _a_task_ended(log: JobLog, event: LogEvent) -> bool:
    """Return whether srun reports before a line that a task ended: Slurm ends the step then."""
    return any(
        other.stream == event.stream and other.line < event.line and "task" in other.text
        for other in log.having(*_TASK_ENDED)
    )


def _failed_by_itself(log: JobLog, before: LogEvent | None = None) -> bool:
    """Return whether a line, of those `before` another in its log, reports a failure that no outer signal explains."""
    ended = (e for e in log.events if e.level in ENDINGS)
    said_so = (e for e in log.having(*FAILED) if e.level != "INFO" and not warned(e))
    return any(
        not any(sign in event.text for sign in (*_OUTSIDE, "ChildFailedError", "KeyboardInterrupt"))
        and (before is None or (event.stream == before.stream and event.line < before.line))
        and not lived_on(log, event)
        for events in (ended, said_so)
        for event in events
    )


def _join_to_first_failure(log: JobLog, event: LogEvent, found: Finding) -> Finding:
    """Return `found` as if it followed torchrun's first observed failure, which the summary lists last."""
    roots = [e.line for e in log.events if e.stream == event.stream and e.level == "ROOT CAUSE" and e.line > event.line]
    occurrence = found.occurrence
    return replace(found, occurrence=replace(occurrence, line=min(roots))) if occurrence and roots else found


_NOT_OWN = (
    "DistBackendError", "DistNetworkError", "DistStoreError", "DistError",
    "NCCL", "nccl", "HCCL", "gloo", "Gloo", "c10d", "c10::", "onnection", "ocket", "imed out", "imeout", "roken pipe",
    "ChildFailedError", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError", "Rendezvous",
    "CUDA error", "CUDA driver", "CUDA failure", "CUDA out", "CUDA runtime", "CUDA unknown", "CUDA GPUs",
    "CUDA-capable", "visible GPU", "CUDA init", "CUDA version", "CUDA call", "cudaGetDeviceCount", "CUBLAS",
    "CUDNN_STATUS", "OutOfMemory", "out of memory", "allocate memory",
    "nable to allocate", "bad_alloc", "KeyboardInterrupt", "SystemExit",
    "SignalException", "SIGTERM", "onitoredBarrier", "between collectives", "ddress already in use", "Name or service",
    "name resolution", "Too many open files", "shared memory", "received signal", "collective operation",
    "torch_shm", "TCPStore", "HashStore", "FileStore", "key-value store", "rendezvous",
    "ncclSystemError", "libnccl", "rror: NVML", "RayTaskError",
    "ActorUnavailable", "EOFError", "Broken", "all workers",
    "NVIDIA driver", "exited with non-zero status", "DEADLINE_EXCEEDED", "UNAVAILABLE: ", "HorovodInternalError",
    "orovod has been shut down", "NIXL_ERR_",
    "root cause", "tack trace", "background process", "reader raises an exception", "queue.Empty", "unexpected pos",
)  # fmt: skip
"""Texts of exceptions that other checks name, or that only say that another process has ended."""
_OF_ELEMENTS = re.compile(r"c10::(?:Half|BFloat16|Float8|complex)")
"""What torch calls the types of a tensor's elements: c10 itself speaks of the network."""
_OF_ACTORS = ("ActorDiedError", "RayActorError", "WorkerCrashedError", "NodeDiedError")
"""What Ray raises in a process that waits for one that has ended (ray.exceptions)."""
_OWN_ALL_THE_SAME = ("expected, but not set", "HTTP", "requests.", "urllib", "huggingface", "Hugging Face")
"""Errors of the program's own environment, or of its own connections to somewhere else."""
_OF_PROGRAMS = (
    "ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "NameError", "AssertionError",
    "NotImplementedError", "ModuleNotFoundError", "ZeroDivisionError", "UnicodeDecodeError",
)  # fmt: skip
"""Types of exceptions that no library of the job uses for a failed peer, network or device."""
_IGNORED = "Exception ignored in"
_LAST_LINES = 60


def _own_exceptions(log: JobLog) -> Iterator[LogEvent]:
    """Yield exceptions that a rank's own program raised, and that ended it."""
    failure = failed(log) or any(event.level == "ROOT CAUSE" for event in log.events)
    for event in log.events:
        if not _is_own(event) or _ignored(log, event):
            continue
        if failure or event.line > log.streams[event.stream].nlines - _LAST_LINES:
            yield event


def _ignored(log: JobLog, event: LogEvent) -> bool:
    """Return whether Python logs shortly before that it ignores the exception: at the end of a process it may."""
    return any(
        other.stream == event.stream and 0 <= event.line - other.line <= _LAST_LINES for other in log.having(_IGNORED)
    )


def _is_own(event: LogEvent) -> bool:
    """Return whether a line is an exception, with its traceback or in torchrun's summary, of the program itself."""
    summary = event.level == "ROOT CAUSE" and event.text.startswith("exitcode: 1, ") and "Error" in event.text
    if (event.level != "EXCEPTION" and not summary) or any(name in event.text for name in _OF_ACTORS):
        return False
    found = messages.said(event.text, event.level)
    if found and (found.codes or found.kind == "consequence" or found.row.level == "FATAL"):
        return "rank-crashed" in found.codes
    if event.text.partition(":")[0].rpartition(".")[2] in _OF_PROGRAMS:
        return True
    words = _OF_ELEMENTS.sub("", event.text)
    raised = event.text.partition(", ")[2] if event.level == "ROOT CAUSE" else ""  # behind the exit code
    foreign = any(text in words for text in _NOT_OWN) or says_only_of_others(raised or event.text)
    return not foreign or any(text in event.text for text in _OWN_ALL_THE_SAME)


@cause(
    code="rank-crashed",
    echoes=("=",),
    signs=("Traceback (most recent call last)", "Root Cause (first observed failure)", _IGNORED),
    bad=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: ValueError: batch 17 holds no tokens\n"
    ],
    good=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system "
        "error\n"
    ],
)
def program_raised(log: JobLog) -> Iterator[Finding]:
    """A rank's own program raised an exception.

    Right: No rank's own program raised an exception.
    Why: if one rank exits, the others wait in a collective that it never joins. Their error messages appear minutes
    later and fill more of the log.
    Fix: correct the fault that the exception names on that rank. The finding ends with the place in the program.
    """
    raised = list(_own_exceptions(log))
    roots = {event.rank for event in log.events if event.level == "ROOT CAUSE" and event.rank is not None}
    first = [event for event in raised if event.rank in roots] or raised
    for event in [event for event in first if event.place or event.rank is not None] or first:
        place = f" at {event.place}" if event.place else ""
        whose = UNPROVEN if any(text in event.text for text in (*_OF_STORAGE, *_OF_MACHINE)) else JOB
        whose = IMAGE if any(text in event.text for text in _NOT_INSTALLED) else whose
        text = event.text.partition(", ")[2] if event.text.startswith("exitcode: ") else event.text
        found = said(log, event, f"the program raised {whole_words(text, 120)}{place}", **whose)
        yield _add_preceding_error(log, event, found)


@cause(
    signs=("Traceback (most recent call last)",),
    bad=lambda: ['Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    main()\n'],
    good=lambda: ['Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: no data\n'],
)
def traceback_is_cut_off(log: JobLog) -> Iterator[Finding]:
    """A log ends in a traceback.

    Right: No log ends before its traceback does.
    Why: the last line of a traceback names the exception. It is lost if the log was cut off, or if several processes
    wrote to it at once.
    Fix: read the end of that process's own log.
    """
    told = {e.stream: e.line for e in log.events if e.level in ENDINGS or form_of_failure(e.text, e.level) >= ERROR}
    for event in log.events:
        late = log.streams[event.stream].nlines - event.line <= 2 * _LAST_LINES
        cut = event.level == "CUT OFF" and event.line > told.get(event.stream, 0)
        if cut and late and not lived_on(log, event):
            yield consequence(log, event, "the log ends before the traceback names its exception")


_OF_STORAGE = (*(f"[Errno {errno}]" for errno in (5, 28, 30, 107, 116, 121)), "Stale file handle",
               "PytorchStreamWriter failed writing", "LocalEntryNotFoundError")  # fmt: skip
"""What a program alone does not bring about: EIO, ENOSPC, EROFS, ENOTCONN, ESTALE and EREMOTEIO of a file system, and
what torch and the hub of models make of a file that is not written, or not to be had."""
_OF_MACHINE = ("CUDA error", "CUDA driver", "CUDA GPUs", "NVML", "NCCL error", "No such device", "no GPU", "No GPU",
               "annot allocate memory", "Connection", "imed out")  # fmt: skip
"""What an exception speaks of that the machine lacks or another process did: no fault of the program by itself."""
_NOT_INSTALLED = ("No module named ", "cannot open shared object file", "undefined symbol: ", ": fatal error: ")
"""What is missing if the program runs, or does not fit the rest of it."""
_LOST_BEFORE = ("remote process exited or there was a network error", "due to async NCCL error")


def _crashed(log: JobLog) -> Iterator[Finding]:
    """Yield processes that report their own crash, or whose parent does."""
    for event in log.having(*_SEGFAULT):
        summary = event.level in SUMMARY or signal_of_launcher(event.text) is not None
        summary = summary or event.text.startswith(("task ", "tasks "))
        summary = summary or any(text in event.text for text in (*_DUMPED, *_OF_RAY))
        if not summary and not _lost_others_before(log, event):
            of_child = any(text in event.text for text in _OF_A_CHILD)
            found = said(log, event, "the process crashed", **UNPROVEN)
            if of_child:
                found = said(log, event, _CHILD_ENDED, codes=("rank-crashed", "oom"), **UNPROVEN)
            yield _add_preceding_error(log, event, found)


def _add_preceding_error(log: JobLog, event: LogEvent, found: Finding) -> Finding:
    """Return a crash with the preceding line of the same process, if that is an error by its form."""
    writer = (event.stream, event.host, event.pid, event.rank)
    before = [
        other
        for other in preceding(log, event, _SAID_BEFORE)
        if (other.stream, other.host, other.pid, other.rank) == writer
        and _says_more(other.text, other.level, event.text)
        and not (other.level == "OUTER" or other.text.startswith("terminate called") or other.text.endswith(":"))
    ]
    if not before:
        return found
    best = next((other for other in before if has_own_reason(other.text)), before[-1])
    lines = dict.fromkeys((log.evidence(best), log.evidence(before[-1])))
    more = f"{found.message}, just after the line: {whole_words(best.text, 100)}"
    return replace(found, message=more, evidence=(*lines, *found.evidence))


def _says_more(text: str, level: str, later: str) -> bool:
    """Return whether an earlier line explains the end: it gives the reason of `later`, or any if that has none."""
    reason = reason_of(later) if has_own_reason(later) else ""
    return (reason_of(text) == reason and len(text) > len(later)) if reason else form_of_failure(text, level) >= ERROR


def _lost_others_before(log: JobLog, event: LogEvent) -> bool:
    """Return whether the same rank had lost its communicator shortly before it crashed: it did not begin."""
    return any(
        (other.stream, other.rank, other.host) == (event.stream, event.rank, event.host)
        and 0 < event.line - other.line <= _LAST_LINES
        for other in log.having(*_LOST_BEFORE)
    )
