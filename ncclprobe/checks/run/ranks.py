"""Ranks and their nodes: did all join and stay, with equal settings and suitable groups, and is one slow by itself?"""

from collections import Counter
from collections.abc import Iterator
from statistics import median_low
from typing import Any

from ncclprobe.checks import JOB, NODE
from ncclprobe.checks.gpu.driver import meaning_of
from ncclprobe.checks.run.conditions import groups_of_ranks, rungs_of_the_ladder
from ncclprobe.checks.run.rows import ROW
from ncclprobe.checks.sync.settings import MUST_AGREE, MUST_AGREE_ON_A_HOST, UNSET
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.run.samples import (
    FAILED,
    Arrivals,
    Attendance,
    DifferingSetting,
    Ending,
    Expected,
    Groups,
    HeardXids,
    Ladder,
    LostRank,
    Participants,
    RankSettings,
    Rows,
    RunRequest,
)
from ncclprobe.model.errors import OUT_OF_MEMORY, Unlearned
from ncclprobe.model.findings import ONCE, Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold, fold_ranks
from ncclprobe.model.measurement import Band, Conditions, Expectation, Skew, Xids
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import GroupRow, LadderRow
from ncclprobe.model.training import climbed
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import replace
from ncclprobe.nccl.parameters import table


def seen_once(subject: str, message: str, **details: Any) -> Finding:
    """Return a rank or a run that did not go on: whose fault that is takes a second look."""
    return fail(subject, message, action="retest", confidence=ONCE, **details)


FOUR = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl")


@check(
    bad=lambda: [(Arrivals(4, (2, 3), 60.0), FOUR)],
    good=lambda: [(Arrivals(4), FOUR)],
    required=True,
)
def init(arrivals: Arrivals, participants: Participants) -> Iterator[Finding]:
    """Not every rank joined.

    Right: Every rank joined.
    Why: a collective needs all ranks, so if one rank is missing, the job waits for half an hour until it times out. A
    rank whose process still runs, or whose time is not over, is unknown and not missing, because it may be importing
    torch.
    Fix: read the launcher's output for the ranks that the finding names. Check that their node can reach MASTER_ADDR
    and MASTER_PORT, and that every node starts as many ranks as the others expect. If torch is on a slow file system,
    raise --phase-timeout.
    """
    for rank in arrivals.lost:
        yield seen_once(
            f"rank {rank}",
            f"never joined: {arrivals.expected} ranks were expected, but this one did not register",
            evidence=seen("the job's store", f"no first heartbeat in {arrivals.waited_s:.0f} s"),
        )
    if arrivals.missing and not arrivals.lost:
        raise Unlearned(_late(arrivals))
    if participants.fallback and not arrivals.missing:
        raise Unlearned(participants.fallback)


def _late(arrivals: Arrivals) -> str:
    """Say which ranks had not arrived, and why that is not held against them."""
    allowed = (
        f", of the {arrivals.allowed_s:.0f} s that joining may take" if arrivals.waited_s < arrivals.allowed_s else ""
    )
    runs = f"; the process of {fold_ranks(arrivals.running)} is running" if arrivals.running else ""
    late = f"{fold_ranks(arrivals.missing)} had not joined after {arrivals.waited_s:.0f} s{allowed}{runs}"
    return f"{late}. It may still be importing torch; start again, or raise --timeout"


_TORCHS = (
    f"it failed (rank 1: all_reduce first call: {OUT_OF_MEMORY}2.00 GiB were asked for, and of the 79.11 GiB of GPU 1 "
    "1.19 GiB are free; in use are 40.00 GiB by process 4711, 37.90 GiB by this rank)"
)


@applies
def a_rank_left(attendance: Attendance | Absent) -> bool:
    """to runs that a rank left."""
    return isinstance(attendance, Attendance) and bool(attendance.lost)


@check(
    bad=lambda: [(Attendance(2, (LostRank(1, "node7", "all_reduce first call", _TORCHS),)),)],
    good=lambda: [(Attendance(2, (LostRank(1, "node7", "timing", "its heartbeat stopped"),)),)],
    applies=a_rank_left,
)
def out_of_memory(attendance: Attendance) -> Iterator[Finding]:
    """A rank ran out of memory.

    Right: No rank ran out of memory.
    Why: if another process uses a GPU, or several ranks share it, less memory is free than when the run began. In
    addition to the measured buffers, NCCL allocates memory for each peer and algorithm.
    Fix: `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv` shows which processes use a GPU's memory.
    End processes left by earlier jobs, or request smaller messages with -e.
    """
    for lost in attendance.lost:
        if lost.shortage:
            message = f"ran out of memory on {lost.host} in phase {lost.phase!r}: {lost.shortage}"
            yield fail(
                f"rank {lost.rank}",
                message,
                **JOB,
                evidence=seen("the job's store", "why it left"),
                nodes=(lost.host,),
            )


_ALONE = ("allocating", "calibrate", "import torch", "pairs, buffers")
"""Phases in which a rank does not wait for other ranks."""


@check(
    bad=lambda: [(Attendance(4, stalled="all_reduce 1 MiB timing"), Ending("stalled"))],
    good=lambda: [(Attendance(4), Ending())],
    required=True,
    requires="run.init",
)
def rank_lost(attendance: Attendance, ending: Ending) -> Iterator[Finding]:
    """A rank was lost, or the run stalled.

    Right: No rank was lost, and the run did not stall.
    Why: the other ranks see only a collective that does not return, and cannot report which rank caused it.
    Fix: on the node that the finding names, check the kernel log (Xid, out of memory), the launcher's output, and
    whether the process still runs. Then measure again without that node.
    """
    short = any(lost.shortage for lost in attendance.lost)
    for lost in attendance.lost:
        if short and lost.why.startswith(FAILED):
            continue  # for memory, or because that rank left
        yield seen_once(
            f"rank {lost.rank}",
            f"{lost.why}; it was last seen in phase {lost.phase!r} on host {lost.host}",
            evidence=seen("the job's store", "heartbeats (rank, phase)"),
            nodes=(lost.host,),
        )
    if attendance.stalled.startswith(_ALONE):
        raise Unlearned(
            f"no rank finished its own {attendance.stalled!r} in time. Memory, CPUs, GPUs or files of these hosts "
            "are slow, and no data was in transit. Request less (-e, --params), or raise --phase-timeout"
        )
    if attendance.stalled:
        yield seen_once(
            "all ranks",
            f"none of {attendance.ranks} ranks finished phase {attendance.stalled!r}, and no rank is behind the others",
            evidence=seen("the job's store", "heartbeats (rank, phase)"),
            remedy="if the calls are only slow, raise --phase-timeout, or request fewer calls with -n. If even one "
            "call does not end, data does not get through. Check the interface that NCCL or gloo chose, and the path "
            "MTU",
        )
    if ending.why and not attendance.lost and not attendance.stalled:
        raise Unlearned(ending.why)


PUNCTUAL = Skew(8, 4000.0, 100.0, 30.0, (10.0,) * 8, (0,) * 8)
LATECOMER = replace(PUNCTUAL, late_us=(10.0,) * 7 + (5000.0,), late_rounds=(0,) * 7 + (4,))
_FEWEST_TIMES, _LOST_SHARE, _TIMES_OTHERS, _FELLOWS = 3, 0.4, 4.0, 3


def _is_of_all(skew: Skew, participants: Participants) -> bool:
    """Return whether each rank has such a row; a log that was edited may lack some."""
    return len(skew.late_us) == len(skew.late_rounds) == len(participants.hosts) == participants.ranks


def rungs_of(skew: Skew) -> tuple[Rows, Participants]:
    return Rows((replace(ROW, skew=skew),)), Participants("torchrun", 8, ("n0",) * 4 + ("n1",) * 4, "nccl")


@applies
def arrivals_noted(asked: RunRequest, rows: Rows | Absent) -> bool:
    """if collectives short enough for it were measured with a scheduled start."""
    return "collectives" in asked.what and isinstance(rows, Rows) and any(row.skew for row in rows.measured)


@check(bad=lambda: [rungs_of(LATECOMER)], good=lambda: [rungs_of(PUNCTUAL)], applies=arrivals_noted)
def straggler(rows: Rows, participants: Participants) -> Iterator[Finding]:
    """A rank makes its calls late, because its host is slow and not a link.

    Right: Every rank makes its calls in time.
    Why: the other ranks wait inside the collective, so every rank measures the same long time, and it looks like a slow
    network. After a barrier, each rank computes for four milliseconds and then calls. A rank is reported if only it is
    late, and if it has lost two fifths of its time at least three times. It must also have lost four times as much as
    the others. If there are only two ranks, there are no others to compare with; if the host was busy with other work,
    the result proves nothing. In both cases there is only a note.
    Fix: on the rank's host, look for other processes on its cores, a CPU limit of its container (cpu.max), and ranks
    that are bound to the same cores. Also check whether heat or power limits slow down the CPU.
    """
    skews = [row.skew for row in rows.measured if row.skew and _is_of_all(row.skew, participants)]
    waited_us = sum(skew.rounds * skew.wait_us for skew in skews)
    rounds = sum(skew.rounds for skew in skews)
    lost_us = [sum(skew.rounds * skew.late_us[rank] for skew in skews) for rank in range(participants.ranks)]
    for rank, lost in enumerate(lost_us):
        times = sum(skew.late_rounds[rank] for skew in skews)
        usual = median_low([*lost_us[:rank], *lost_us[rank + 1 :]])
        if times >= _FEWEST_TIMES and lost >= _LOST_SHARE * (lost + waited_us) and lost >= _TIMES_OTHERS * usual:
            yield (note if participants.ranks < _FELLOWS or rows.disturbances else warn)(
                f"rank {rank}",
                f"on host {participants.hosts[rank]} is late in collectives by {lost / rounds / 1e3:.1f} ms on "
                f"average, the other ranks by {usual / rounds / 1e3:.1f} ms",
                blame="node",
                action="retest",
                confidence=Certainty("medium", "measured separately from the transfer"),
                nodes=(participants.hosts[rank],),
                evidence=seen(
                    f"{rounds} rounds over {plural(len(skews), 'row')}",
                    f"late by more than 1 ms in {times} of them; transfers alone took "
                    f"{min(skew.transfer_us for skew in skews):.1f} us and more",
                ),
            )


_MOST_TOLD = 64
"""At most this many Xids of one kind are reported: see host.nvml_server."""


@applies
def nvml_listened(heard: HeardXids | Absent) -> bool:
    """if NVML was listened to while GPUs were measured."""
    return isinstance(heard, HeardXids)


@check(
    bad=lambda: [(HeardXids((Xids("n0"), Xids("n1", ((3, "74"), (3, "74"))))), FOUR)],
    good=lambda: [(HeardXids((Xids("n0"), Xids("n1"))), FOUR)],
    applies=nvml_listened,
)
def xids(heard: HeardXids, participants: Participants) -> Iterator[Finding]:
    """A GPU reported errors while it was measured.

    Right: No GPU reported an error while it was measured.
    Why: when a GPU begins to fail, a link or memory first fails under load, even if the run succeeds. NVML reports an
    Xid to every user, although many users may not read the kernel log (nvml.h, nvmlEventTypeXidCriticalError).
    Fix: look the code up at docs.nvidia.com/deploy/xid-errors. If it is serious, drain the node, reset the GPU
    (`nvidia-smi --gpu-reset -i N`) and measure again. If the error returns, have the GPU repaired.
    """
    deaf = {*participants.hosts} - {each.node for each in heard.nodes}
    for each in heard.nodes:
        for (gpu, code), times in Counter(each.of_gpus).items():
            meaning = meaning_of(Event(0.0, "xid", "", code), fatal=None)
            tell = fail if meaning.grave else warn if meaning.risky else note
            told = f"{plural(times, 'time')}{' or more' if times >= _MOST_TOLD else ''}"
            deaf = set() if tell is not note else deaf
            yield tell(
                f"GPU{gpu}",
                f"Xid {code}: {meaning.words}; reported {told} while it was measured",
                **(NODE if meaning.grave or meaning.risky else {}),
                nodes=(each.node,),
                evidence=seen("NVML's events", f"Xid {code}"),
            )
    if deaf:
        raise Unlearned(f"NVML's events were not read on {fold(deaf)}")


_PROTO = DifferingSetting("NCCL_PROTO", ((UNSET, (0, 2, 3)), ("LL", (1,))))
WHOLE = Ending()


@applies
def settings_told(settings: RankSettings | Absent) -> bool:
    """if the ranks have reported their settings."""
    return isinstance(settings, RankSettings)


@check(
    slows=True,
    bad=lambda: [(RankSettings((_PROTO,)), FOUR, WHOLE)],
    good=lambda: [(RankSettings(()), FOUR, WHOLE)],
    applies=settings_told,
)
def settings(settings: RankSettings, participants: Participants, ending: Ending | Absent) -> Iterator[Finding]:
    """Ranks have different settings for NCCL, torch or gloo.

    Right: All ranks have the same settings.
    Why: each rank chooses algorithm, protocol, buffers and network by its own settings and never compares them with
    those of the others. If they differ, the first call hangs, and no library names the variable.
    Fix: set the variable in one place for all ranks, such as the job script with srun --export or mpirun -x, or do not
    set it at all.
    """
    whole = isinstance(ending, Ending) and not ending.why
    for each in settings.differing:
        odd = ranks_that_differ(each)
        hosts = participants.hosts
        by_host = {(hosts[rank], value) for value, ranks in each.values for rank in ranks}
        blame_hosts = len(by_host) == len({*hosts})  # the ranks of each node agree
        if blame_hosts and whole:
            continue
        within = each.name in MUST_AGREE_ON_A_HOST and not blame_hosts and not whole
        tell = fail if each.name in MUST_AGREE or within else warn
        yield tell(
            each.name,
            in_words(each),
            **JOB,
            evidence=seen("the ranks", "the settings of each rank, reported before the first call"),
            nodes=tuple(dict.fromkeys(hosts[rank] for rank in odd)),
        )


def in_words(each: DifferingSetting) -> str:
    """Return the values with their ranks, the most usual first, and what becomes of ranks that disagree."""
    ordered = sorted(each.values, key=lambda value: -len(value[1]))
    words = ", ".join(
        f"{value if value == UNSET else f'is {value}'} on {fold_ranks(ranks)}" for value, ranks in ordered
    )
    parameter = table().get(each.name)
    return f"{words} ({parameter.hazard})" if parameter and parameter.hazard else words


def ranks_that_differ(each: DifferingSetting) -> tuple[int, ...]:
    """Return the ranks whose value is not the most usual one."""
    usual = max(each.values, key=lambda value: len(value[1]))
    return tuple(sorted(rank for value in each.values if value is not usual for rank in value[1]))


WITHIN = GroupRow(
    kind="tp", op="all_reduce", nbytes=1 << 20, size=8, groups=2, crossing=0, slowest=tuple(range(8)), alone_us=80.0,
    alone_busbw_GBps=23.0,
)  # fmt: skip
_ACROSS = replace(WITHIN, crossing=2, advice=("2 of 2 tensor-parallel groups cross nodes",))


@check(
    bad=lambda: [(Groups((_ACROSS,)),)],
    good=lambda: [(Groups((WITHIN,)),)],
    applies=groups_of_ranks,
)
def groups(measured: Groups) -> Iterator[Finding]:
    """A tensor-parallel group crosses nodes.

    Right: No tensor-parallel group crosses nodes.
    Why: tensor parallelism sums activations four times per layer and waits for each sum. Between nodes this is several
    times slower than within a node. Unlike in other groups, no computation hides the time.
    Fix: keep tp no larger than the number of GPUs in a node, and number ranks node by node (the default in torchrun,
    and in srun with --distribution=block).
    """
    for row in measured.rows:
        layout = f"{plural(row.groups, 'group')} of {row.size} ranks, {row.crossing} over several hosts"
        evidence = seen(f"{row.kind} groups", f"{layout}; alone {row.alone_us:.1f} us")
        for advised in row.advice:
            yield warn(f"{row.kind} groups", advised, **JOB, evidence=evidence)


ONE = LadderRow(
    rung="rank", ranks=1, groups=16, slowest=(0,), step_bytes=64 << 20, step_us=2000.0, samples_us=(2000.0,) * 9,
    nbytes=1 << 30,
)  # fmt: skip
NODE_RUNG = replace(ONE, rung="node", ranks=8, groups=2, slowest=tuple(range(8)), busbw_GBps=472.0, best_GBps=474.0)
_SLOW = replace(NODE_RUNG, busbw_GBps=210.0, best_GBps=214.0)
JOB_RUNG = replace(
    NODE_RUNG, rung="job", ranks=16, groups=1, slowest=tuple(range(16)), step_us=2300.0, busbw_GBps=370.0
)
_REACHES = Expectation(480.0, 440.0, "GB/s", "published", "8 H100 joined by NVSwitch", "https://github.com/NVIDIA/nccl")
_EIGHT_OF_ONE = Conditions(8, 1, "float32", "sum", "in", "queued", "nccl")
BY_NODE = Expected((Band("all_reduce", 1 << 30, 1 << 30, _REACHES, _EIGHT_OF_ONE),))
TWO = Participants("torchrun", 16, ("n0",) * 8 + ("n1",) * 8, "nccl", nnodes=2)
ASKED = RunRequest(what=("ladder",))


@check(
    bad=lambda: [(Ladder((ONE, _SLOW, JOB_RUNG)), BY_NODE, TWO, ASKED)],
    good=lambda: [(Ladder((ONE, _SLOW, JOB_RUNG)), Expected(), TWO, ASKED)],
    required=True,
    applies=rungs_of_the_ladder,
)
def ladder(
    measured: Ladder,
    expected: Expected,
    participants: Participants,
    asked: RunRequest,
) -> Iterator[Finding]:
    """A node by itself is slower than it should be.

    Right: Every step of the ladder was measured, and no judged node is slower than expected.
    Why: the loss between nodes is known only if each node was also measured by itself. Speed-up and efficiency are
    shown but not judged, because the right values depend on the model that is trained.
    Fix: run `ncclprobe accept` on only the node that the finding names, and check its NVLinks, GPU clocks and PCIe
    links.
    """
    rows = climbed(measured.rows, expected.bands)
    for row in rows:
        if row.expectation and row.status in ("fail", "warn"):
            host = participants.hosts[row.slowest[0]]
            finding = fail if row.status == "fail" else warn
            yield finding(
                host,
                f"its own all_reduce of {size(row.nbytes)} reaches {row.busbw_GBps:.4g} GB/s, at least "
                f"{row.expectation.threshold:.4g} expected ({row.expectation.why})",
                blame="node",
                action="retest",
                confidence=Certainty("medium", f"the slowest of {row.groups} nodes, measured at the same time"),
                evidence=(
                    seen(f"{row.ranks} ranks of one node", f"its fastest batch reached {row.best_GBps:.4g} GB/s"),
                    seen(row.expectation.source, f"expected {row.expectation.value:.4g} {row.expectation.unit}"),
                ),
                nodes=(host,),
            )
    noise = [row for row in rows if row.status == "inconclusive"]
    if noise:
        raise Unlearned(f"too noisy to judge: {noise[0].busbw_GBps:.4g} to {noise[0].best_GBps:.4g} GB/s within a node")
