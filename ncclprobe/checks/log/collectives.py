"""Collectives that differ between ranks, or are too late: watchdogs, desync reports, messages of different size."""

from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import JOB, RESTART, blame_no_rank, demoted, has_called
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.rank_ends import rank_ends
from ncclprobe.logs.texts import bar_of, begins_anew, between, number
from ncclprobe.logs.torch_lines import (
    TIMED_OUT,
    Hang,
    Progress,
    TimedOutWork,
    hangs,
    progress,
    ranks_in,
    timed_out_work,
)
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import replace

_WATCHDOG = (TIMED_OUT, "last enqueued", "Last enqueued")
_SAME = (
    "[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
)
_REST = "OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600042 milliseconds before timing out.\n"


def timeout(rank: int, seq: int = 7, op: str = "ALLREDUCE", n: int = 4) -> str:
    """Return a watchdog's line, for examples."""
    return (_SAME + _REST).format(rank=rank, seq=seq, op=op, n=n)


def _hangs(log: JobLog) -> tuple[Hang, ...]:
    works: list[TimedOutWork] = []
    progresses: list[Progress] = []
    for event in log.having(*_WATCHDOG):
        if work := timed_out_work(event.text):
            works.append(replace(work, rank=event.rank if work.rank is None else work.rank))
        if came := progress(event.text):
            progresses.append(replace(came, rank=event.rank if came.rank is None else came.rank))
    return hangs(works, progresses, log.world_size)


def _lines_of(log: JobLog, hang: Hang) -> Iterator[tuple[LogEvent, TimedOutWork]]:
    """Yield the line with each rank's first collective of a hang."""
    seen: set[int] = set()
    for event in log.having(TIMED_OUT):
        work = timed_out_work(event.text)
        rank = None if work is None else event.rank if work.rank is None else work.rank
        if work and work.group == hang.group and rank is not None and rank not in seen:
            seen.add(rank)
            yield event, work


def _different_hangs(log: JobLog) -> Iterator[Finding]:
    """Yield ranks that waited in different collectives when their watchdogs gave up."""
    for hang in _hangs(log):
        difference = hang.differ
        lines = _lines_of(log, hang) if difference else ()
        for event, work in sorted(lines, key=lambda line: line[0].rank not in hang.odd):
            message = f"was waiting in {work.op} {_number(work)}; {difference}"
            codes = () if hang.certain else ("collective-desync", "timeout-straggler")
            found = said(log, event, message, ranks=hang.odd, comm=hang.group, codes=codes, **JOB)
            yield found if hang.odd else blame_no_rank(found)


def _number(work: TimedOutWork) -> str:
    return f"number {work.seq}" if work.seq is not None else f"of {work.nelements or work.shape or '?'} elements"


@cause(
    signs=_WATCHDOG,
    doctor="run.straggler",
    echoes=("rank-crashed", "oom", "gpu-hw-error", "ib-link-error"),
    bad=lambda: [
        timeout(0) + "[Rank 1] Timeout at NCCL work: 9, last enqueued NCCL work: 6, last completed NCCL work: 6.\n"
    ],
    good=lambda: [timeout(0) + timeout(1)],
)
def a_rank_did_not_come(log: JobLog) -> Iterator[Finding]:
    """Some ranks did not join the collective that the others were waiting in.

    Right: No rank waited for a rank that did not join.
    Why: the ranks that time out are those that joined. A rank whose watchdog does not mention this collective is still
    busy with data, a checkpoint or a compilation, or it has exited.
    Fix: read the last lines of the ranks that did not join. If they were only late, raise the timeout of
    init_process_group for that phase, or make all ranks wait until it ends.
    """
    for hang in _hangs(log):
        event, work = next(_lines_of(log, hang))
        absent = tuple(rank for rank in hang.late or hang.silent if not has_called(log, rank, work.seq))
        if hang.differ or not absent:
            continue
        codes = ("timeout-straggler", "rank-crashed", "collective-desync")
        names = ", ".join(map(str, absent[:8]))
        message = f"rank {names} did not reach {work.op} {_number(work)}"
        yield said(log, event, message, ranks=absent, comm=hang.group, codes=codes, **RESTART)


_LAGGING = "are the lagging ranks that caused this timeout"
_DESYNCED = ("joined but didn't finish collective", "but didn't join collective")
_BARRIER = "failed to pass monitoredBarrier"


@cause(
    signs=(_LAGGING, *_DESYNCED, _BARRIER),
    doctor="run.straggler",
    echoes=("rank-crashed", "oom", "gpu-hw-error"),
    bad=lambda: [
        "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any "
        "collectives"
    ],
    good=lambda: ["\t - Snapshot of ranks' latest states:"],
)
def torch_names_the_late_ranks(log: JobLog) -> Iterator[Finding]:
    """torch names ranks that did not join a collective or a monitored barrier.

    Right: torch names no rank that was late, had exited or was in another collective.
    Why: with TORCH_NCCL_DESYNC_DEBUG=1 every rank records its collectives in the store, and the report names those that
    did not join. In a monitored barrier rank 0 waits for each rank in turn. These ranks are still busy with data, a
    checkpoint or a compilation, have exited, or took another branch. Only their own logs can show which.
    Fix: read the last lines of the ranks that the finding names.
    """
    for event in log.having(_LAGGING):
        late = ranks_in(between(event.text, "ranks [", "]"))
        message = f"rank {', '.join(map(str, late))} never joined any collective"
        yield said(log, event, message, peers=late, codes=("timeout-straggler",), **RESTART)
    codes = ("timeout-straggler", "rank-crashed", "collective-desync")
    for event in log.having(*_DESYNCED):
        lost = ranks_in(between(event.text, "[", "]"))
        message = f"rank {', '.join(map(str, lost))} did not join the next collective"
        yield said(log, event, message, peers=lost, codes=codes, **RESTART)
    for event in log.having(_BARRIER):
        before = event.text.partition(" failed to pass")[0]
        ranks = ranks_in(before.rpartition("Ranks ")[2] if "Ranks " in before else before.rpartition("Rank ")[2])
        message = f"rank {', '.join(map(str, ranks))} did not reach a barrier"
        yield said(log, event, message, ranks=ranks, codes=codes, **RESTART)


_OF_RECEIVERS = (
    "op.preamble.length <= op.nbytes",
    "data size doesn't match expected size",
    "collective mismatch error",
)
"""For a rank that received more than it expects: it or the sender called another size, and the line cannot show which.
"""

_MISMATCH = (
    "Detected mismatch between collectives on ranks",
    "collective mismatch error",
    "posted incorrect receive info",
    "Mismatched collective detected",
    "Is there a distributed collective mismatch in your code",
    "op.preamble.length <= op.nbytes",
    "symmetric registration check failed",
    "data size doesn't match expected size",
)


_TORCH, _WAITING = "distributed_c10d.py:", "Timed out waiting "


def waited_at(rank: int, call: str) -> str:
    """Return the end of a rank that waited too long in a call, for examples."""
    frame = f'[rank{rank}]:   File "/opt/torch/distributed/distributed_c10d.py", line 9, in {call}'
    error = f"[rank{rank}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] {_WAITING}8000ms for recv operation"
    return f"[rank{rank}]: Traceback (most recent call last):\n{frame}\n{error} to complete\n"


def _different_calls(log: JobLog) -> Iterator[Finding]:
    """Yield ranks that waited too long, by tracebacks that end in different collectives."""
    waits = {event.rank: event for event in log.having(_WAITING) if event.rank is not None and _is_collective(event)}
    calls = Counter(map(_call, waits.values()))
    if len(calls) < 2:
        return
    usual, most = calls.most_common(1)[0]
    all_waited = rank_ends(log, ()).ranks.keys() <= waits.keys()  # else the odd ones may wait for who does not say so
    odd = tuple(rank for rank, event in waits.items() if _call(event) != usual)
    sure = all_waited and len(odd) == 1 and 2 * most > len(waits)
    codes = () if all_waited else ("collective-desync", "timeout-straggler")
    for event in waits.values():
        message = f"ranks waited in different calls: {', '.join(sorted(calls))}"
        found = said(log, event, message, ranks=odd, codes=codes, **JOB)
        yield found if sure else blame_no_rank(found)


def _is_collective(event: LogEvent) -> bool:
    return event.level == "EXCEPTION" and _TORCH in event.place and _call(event) not in _PAIRS


_PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


def _call(event: LogEvent) -> str:
    """Return the function of torch that raised an exception."""
    return event.place.rpartition(" ")[2]


@cause(
    code="collective-desync",
    signs=(*_WATCHDOG, *_MISMATCH, _WAITING),
    bad=lambda: [
        "[rank0]: RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST).Collectives differ in the following aspects: Op"
    ],
    good=lambda: [
        "n1:7:9 [0] net_socket.cc:636 NCCL WARN NET/Socket : peer 10.0.0.2<4> message truncated : receiving 4096 bytes "
        "instead of 2048."
    ],
)
def collectives_do_not_match(log: JobLog) -> Iterator[Finding]:
    """Ranks called different collectives.

    Right: All ranks called the same collectives.
    Why: every rank of a group must call the same collectives in the same order, with the same sizes and types. A branch
    that depends on the rank or its data, an iterator with one batch more, or a model that differs breaks this rule.
    Fix: look for a branch on the rank or its data before the calls that differ. To get their lines, run with
    TORCH_DISTRIBUTED_DEBUG=DETAIL, or with TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1, then run
    `ncclprobe explain` again.
    """
    yield from _different_hangs(log)
    yield from _different_calls(log)
    for event in log.having(*_MISMATCH):
        if demoted(event):
            continue
        other = number(between(event.text, "but Rank "))
        peers = () if other is None else (other,)
        found = said(log, event, "ranks called different collectives", peers=peers, **JOB)
        if any(text in event.text for text in _OF_RECEIVERS):
            message = f"{found.subject} received an unexpected size, so it or the sender used the wrong size"
            found = blame_no_rank(replace(found, message=message))
        yield found


_GAVE_UP = (
    TIMED_OUT,
    "Timeout at NCCL work: ",
    "watchdog got stuck",
    "Some NCCL operations have failed or timed out",
    "NCCL communicator was aborted",
    "To avoid data inconsistency, we are taking the entire process down",
    "ms for recv operation to complete",
    "ms for send operation to complete",
    "detected by watchdog",
    "Received a dump signal",
    "Heartbeat monitor timed out",
    "heartbeat monitor",
)


@cause(
    signs=_GAVE_UP,
    bad=lambda: [timeout(3)],
    good=lambda: ["[rank3]: loss 2"],
)
def waited_in_vain(log: JobLog) -> Iterator[Finding]:
    """A rank waited in a collective until it timed out.

    Right: Every collective in which a rank waited ended.
    Why: the rank that reports a timeout did join. The reason is in the log of the missing rank.
    Fix: find the ranks that do not report the timeout, and compare the collectives that the others name. Flight records
    (TORCH_FR_BUFFER_SIZE=2000) show where each rank was.
    """
    for event in log.having(*_GAVE_UP):
        if event.level != "INFO" and not (_is_of_monitor(event) and _ended_by_monitor(log)):
            if (told := number(between(event.text, _HEARD).strip().removeprefix("rank "))) not in (None, event.rank):
                message = f"rank {told} reports a collective timeout; the ranks that wrote these lines only heard of it"
                remedy = f"get the log of rank {told}, and of the ranks that it waits for"
                yield consequence(log, event, message, ranks=(told,), peers=(told,), remedy=remedy)
                continue
            work = timed_out_work(event.text)
            message = f"waited in {work.op} {_number(work)}" if work else "waited in a collective that did not end"
            yield consequence(log, event, message, comm=work.group if work else "")


_HEARD = "collective timeout from"
_MONITOR = ("Heartbeat monitor timed out", "watchdog got stuck for")
_OTHERS_HANG = (TIMED_OUT, "Timeout at NCCL work: ", "Received a dump signal")


@cause(
    code="rank-crashed",
    signs=(*_MONITOR, *_OTHERS_HANG),
    echoes=("gpu-hw-error", "oom", "fabric-manager", "gpu-arch-unsupported"),
    bad=lambda: [
        "[rank3]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:1722] [PG ID 0 PG GUID 0(default_pg) Rank 3] Heartbeat monitor "
        "timed out! Process will be terminated after dumping debug info. workMetaList_.size()=0"
    ],
    good=lambda: [
        timeout(0) + "[rank3]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:1722] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
        "Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=2"
    ],
)
def ended_by_its_own_monitor(log: JobLog) -> Iterator[Finding]:
    """A rank exited because its watchdog was stuck.

    Right: No rank was ended by its heartbeat monitor.
    Why: torch's watchdog shares the interpreter and CUDA with the program. A call that blocks either for longer than
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (480 s), such as reading weights or compiling, looks like a hang, and the monitor
    ends the process. If no collective timed out earlier, its peers' network errors are consequences. If the monitors of
    most ranks fire, all wait for the same thing, and none of them is the culprit.
    Fix: find out what that rank did in the minutes before, from the stack below or `py-spy dump`. Make long calls
    release the interpreter's lock, or raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC for that phase.
    """
    for event in log.having(*_MONITOR):
        if event.level != "INFO" and _ended_by_monitor(log):
            still = between(event.text, "stuck for ", " without")
            idle = f" for {still}" if still else ""
            message = f"was killed by its heartbeat monitor, because its watchdog was stuck{idle}"
            yield said(log, event, f"{message}; no collective had timed out", **JOB)


def _is_of_monitor(event: LogEvent) -> bool:
    return any(text in event.text for text in _MONITOR)


def _ended_by_monitor(log: JobLog) -> bool:
    """Return whether monitors ended some ranks of a job in which no collective had timed out: then it is not a hang.

    It is a hang if the monitors of most ranks fire.
    """
    if any(event.level != "INFO" for event in log.having(*_OTHERS_HANG)):
        return False
    ended = {event.rank for event in log.having(*_MONITOR) if event.level != "INFO"}
    return len(ended) == 1 or 2 * len(ended) < max(log.world_size or 0, len(log.ranks))


_LET_WAIT = (TIMED_OUT, "retrieving ncclUniqueId from [", "ms for recv operation to complete", "store based barrier")
_BAR_GOES_ON = (
    "scan: 10%|#    | 100/1000 [20:00<180:00, 0.1it/s]\n{gave_up}scan: 11%|#    | 110/1000 [30:05<170:00, 0.1it/s]\n"
)


@cause(
    code="timeout-straggler",
    signs=_LET_WAIT,
    doctor="run.straggler",
    bad=lambda: [_BAR_GOES_ON.format(gave_up=timeout(1))],
    good=lambda: [_BAR_GOES_ON.format(gave_up="")],
)
def works_on_alone(log: JobLog) -> Iterator[Finding]:
    """A rank keeps working while the others have timed out waiting for it.

    Right: No rank was busy with its own work when others gave up.
    Why: while one rank scans or tokenizes a data set, writes a checkpoint or evaluates, the timeout of the others'
    collective or barrier runs. If its progress bar continues after the others have timed out, that rank was neither
    dead nor stuck.
    Fix: set the timeout of init_process_group (`timedelta(hours=3)`, in trainers `ddp_timeout`) to more than the
    duration of that work. Or do the work before the job and save its result, or distribute it over the ranks.
    """
    for at, stream in enumerate(log.streams):
        gave_up = [e for e in log.having(*_LET_WAIT) if e.stream == at and e.level != "INFO"] if stream.bars else []
        before = [bar for bar in stream.bars if gave_up and bar.line < gave_up[0].line]
        after = [bar for bar in stream.bars if gave_up and bar.line > gave_up[0].line]
        one, other = (bar_of(bars[-1].text) if bars else None for bars in (before, after))
        if one and other and other.goes_on(one) and not _begun_anew(log, at, before[-1].line, after[-1].line):
            event = after[-1]
            who = "a rank" if event.rank is None else f"rank {event.rank}"
            work = f"{other.title or 'a progress bar'}, for {other.elapsed}"
            found = said(
                log, event, f"{who} was still busy with its own work ({work}) when the others timed out", **JOB
            )
            yield blame_no_rank(found) if event.rank is None else found


def _begun_anew(log: JobLog, stream: int, first: int, last: int) -> bool:
    """Return whether the ranks were started again between two lines of a log: what is drawn then is another's."""
    return any(e.stream == stream and first < e.line < last and begins_anew(e.text) for e in log.events)
