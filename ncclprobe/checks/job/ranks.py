"""Ranks of a running job that keep the others waiting, by what they do."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.logs.job.reasons import advice
from ncclprobe.model.causes import ClassName, JobVerdict, RankClass
from ncclprobe.model.findings import Action, Blame, Certainty, Finding, Occurrence, Severity, seen

_LOOKED = Certainty("high", "looked at twice while the job ran")


def standing(name: ClassName, doing: str = "is sleeping (nanosleep)") -> JobState:
    others = RankClass("waiting", (0, 1, 3), ("n1",), doing="is waiting in all_reduce #51 (group 0) for rank 2")
    read = (seen("n1:/proc/4242", "state S, hrtimer_nanosleep"),)
    one = RankClass(name, (2,), ("n1",), ("n1:4242",), doing, read)
    word = {"working": "WORKING", "slow, not stuck": "SLOW", "cannot tell": "CANNOT TELL"}.get(name, "STUCK")
    return JobState((one, others), JobVerdict(word, "3 of 4 ranks are waiting"), "all_reduce #51 (group 0)", (0, 1, 3))


@cause(
    code="rank-crashed",
    bad=lambda: [(standing("dead or gone"),)],
    good=lambda: [(standing("stuck outside"),)],
)
def gone(stand: JobState) -> Iterator[Finding]:
    """The process of a rank of the running job no longer exists.

    Right: Every rank of the job has a running process.
    Why: the others wait in their next collective for a rank that can no longer join, until their group times out.
    Fix: read the end of this rank's log and the kernel log of its node (`journalctl -k`), then restart the job.
    """
    yield from _found(stand, "dead or gone", "unknown", "restart")


@cause(
    code="master-unreachable",
    echoes=("rank-crashed",),
    bad=lambda: [(standing("not arrived", "cannot connect to n1:29500: nobody listens there"),)],
    good=lambda: [(standing("stuck outside"),)],
)
def absent(stand: JobState) -> Iterator[Finding]:
    """A rank has not joined the store in init_process_group.

    Right: All ranks of the job have joined its store.
    Why: init_process_group returns when WORLD_SIZE ranks have connected to MASTER_ADDR:MASTER_PORT. Until then the
    connected ranks wait, by default for half an hour.
    Fix: start the missing rank. If it cannot connect, compare MASTER_ADDR and MASTER_PORT on all ranks, and run `nc -vz
    ADDRESS PORT` on its node to check that it can reach the port.
    """
    yield from _found(stand, "not arrived", "job", "fix-job")


@cause(
    code="timeout-straggler",
    echoes=("rank-crashed", "collective-desync"),
    bad=lambda: [(standing("stuck outside"),)],
    good=lambda: [(standing("working"),)],
)
def outside(stand: JobState) -> Iterator[Finding]:
    """An idle rank has not entered the collective in which the others wait.

    Right: Every rank is in its collectives, or busy with its own work.
    Why: a collective ends only after its last rank has joined. This rank waits for something outside NCCL: a file, a
    lock, a data loader worker, or a person at a debugger.
    Fix: look at the line of the program that the finding names, and follow the advice in the finding.
    """
    yield from _found(stand, "stuck outside", "job", "fix-job")


@cause(
    code="collective-desync",
    bad=lambda: [(standing("desync", "rank 2 called all_gather and ranks 0-1 all_reduce"),)],
    good=lambda: [(standing("stuck outside"),)],
)
def apart(stand: JobState) -> Iterator[Finding]:
    """Ranks of the running job are in different collectives and are waiting for each other.

    Right: All ranks of the job are in the same collectives, according to torch's records.
    Why: every rank of a group must call the same collectives in the same order, with the same sizes and types.
    Fix: make the two lines of the program agree. Common causes are a branch that only some ranks take, or data that
    ends earlier on some ranks.
    """
    yield from _found(stand, "desync", "job", "fix-job")


@cause(
    code="collective-stalled",
    echoes=("rank-crashed", "timeout-straggler", "collective-desync"),
    bad=lambda: [(standing("stuck inside"),)],
    good=lambda: [(standing("stuck outside"),)],
)
def inside(stand: JobState) -> Iterator[Finding]:
    """All ranks are in the same collective, but it does not end.

    Right: No collective hangs with all ranks in it.
    Why: all ranks made the same calls, so the network, a GPU or a rank's communication thread is delaying it.
    Fix: run `ncclprobe doctor` on these nodes to check links and ports, and search the kernel logs for Xid and link
    events.
    """
    yield from _found(stand, "stuck inside", "unknown", "retest")


@cause(
    bad=lambda: [(standing("cannot tell"),)],
    good=lambda: [(standing("working"),)],
)
def untold(stand: JobState) -> Iterator[Finding]:
    """The state of a rank is unknown.

    Right: The state of every rank is known.
    Why: torch has no readable record of the rank, and its process does not show what it is waiting for.
    Fix: run `ncclprobe attach --stacks`, which reads stacks if py-spy is installed (`pip install py-spy`) and ptrace is
    allowed. `ncclprobe attach --prepare` prints lines to add to the program.
    """
    if stand.answer.word == "CANNOT TELL":
        yield from _found(stand, "cannot tell", "unknown", "none", Severity.WARN)


def _found(
    stand: JobState, name: ClassName, blame: Blame, action: Action, severity: Severity = Severity.FAIL
) -> Iterator[Finding]:
    """Yield a finding for each row of ranks of one class. What the answer calls work is not a failure."""
    for each in stand.classes:
        if each.name == name and stand.answer.word in ("STUCK", "CANNOT TELL"):
            fault, remedy = advice(each)
            fault = blame if blame == "unknown" else fault
            to_do: Action = "none" if action == "fix-job" and fault != "job" else action
            yield Finding(
                severity,
                _subject(each),
                each.doing,
                fault,
                to_do,
                _LOOKED,
                each.evidence,
                remedy,
                nodes=each.nodes,
                occurrence=Occurrence(ranks=each.ranks, hosts=each.nodes, peers=stand.waiting, stream=-1),
            )


def _subject(each: RankClass) -> str:
    if not each.ranks:
        return ", ".join(each.processes[:4]) or "another rank"
    return f"rank {each.ranks[0]}" if len(each.ranks) == 1 else f"{len(each.ranks)} ranks"
