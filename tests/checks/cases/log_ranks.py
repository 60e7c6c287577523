"""Logs of ranks and their calls; what each cause must find, and what it must leave alone."""

from ncclprobe.checks.log.collectives import timeout, waited_at
from ncclprobe.checks.log.flight import NO_LOG, recorded
from ncclprobe.checks.log.known import log_of
from ncclprobe.checks.log.silence import (
    ABORT,
    BEGINS,
    BEHIND,
    DEAD,
    OTHER,
    RAS_ERROR,
    WAITED,
    begun,
    ending,
    example,
    ras_said,
)
from ncclprobe.checks.log.slow import BIND, DESTROYED, ended
from ncclprobe.logs.job_log import Explained, JobLog
from ncclprobe.logs.outcome import ABORTED
from ncclprobe.logs.reader import read
from tests.checks.cases import INFO, WARN, Cases

_CLOSED = "[rank{r}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34217"


def _again(nranks: int) -> tuple[JobLog, Explained]:
    """Return the logs of four ranks that made a communicator, of which three begin another, of so many ranks."""
    text = "n1:{r}:7 [{r}] NCCL INFO ncclCommInitRank comm 0x1 rank {r} nranks {n} cudaDev 0 busId 1 commId {n} - Init "
    lines = {}
    for rank in range(4):
        first = text.format(r=rank, n=4)
        lines[rank] = f"{first}START\n{first}COMPLETE\n" + (text.format(r=rank, n=nranks) + "START") * (rank < 3)
    return read(((f"rank{r}", [line.encode()]) for r, line in lines.items()), (BEGINS,)), Explained()


_BAR = (
    "scan: 10%|#    | 100/1000 [20:00<180:00, 0.1it/s]\nRuntimeError: Timed out waiting 1800000ms for recv operation "
    "to complete\nscan: 11%|#    | 110/1000 [30:05<170:00, 0.1it/s]\n"
)
_LOST_PEER = "n{0}:7:9 [0] x.cc:1 NCCL WARN socketProgress: Connection closed by remote peer n9<40211>"
_LOST_ONE = read(((f"r{n}", [_LOST_PEER.format(n).encode()]) for n in (1, 2)), ("losed by remote peer",))
CASES: Cases = {
    "log.rank-silent/rank-did-not-begin": [
        ("FAIL unknown: rank 3 on n1", *_again(4)),
        begun(0),
        begun(0, 1, 3, end="COMPLETE"),
        _again(3),
    ],
    "log.collective-mismatch/one-rank-ended-otherwise": [
        ("FAIL unknown: n1:8 on n1", *ending(ABORT, "done", "done")),
        ending("done", "done", "done"),
        ending(ABORT, "done"),
        # log.finished-beside-an-abort tells of these.
        ending(f"n1:8:8 [0] NCCL INFO comm 0x1 rank 0 nranks 3 - {ABORTED}", "done", "done"),
        # torch up to 2.5 aborts where a job comes to its end.
        ending("done", "done", f"done\nn1:8:8 [0] NCCL INFO comm 0x1 rank 2 nranks 3 - {ABORTED}\ndone"),
        ending(ABORT, "done", "loss 1"),
    ],
    "log.finished-beside-an-abort": [
        ended(DESTROYED, DESTROYED, DESTROYED),
        f"{ended(DESTROYED, DESTROYED, DESTROYED)}\n{ended(ABORTED).replace('nranks 3', 'nranks 1')}",
        f"{ended(ABORTED, ABORTED, ABORTED)}\n"
        + ended(*[DESTROYED] * 4).replace("nranks 3", "nranks 4").replace(":0 [0] NCCL INFO comm 0x1 rank 0", ""),
    ],
    "log.rank-behind/a-rank-did-not-come": [
        (
            "FAIL unknown: rank 0",
            "n1:7:7 [0] NCCL INFO comm 0x5 rank 0 nranks 4 cudaDev 0 busId 7000 commId 0x9 - Init COMPLETE\n"
            + "".join(timeout(rank) for rank in (0, 1, 3)),
        ),
        "".join(timeout(rank) for rank in range(4)),
    ],
    "log.collective-mismatch/collectives-do-not-match": [
        (
            "FAIL job: rank 0, rank 1",
            timeout(0) + timeout(1, op="_ALLGATHER_BASE"),
            (timeout(0) + timeout(1, op="BROADCAST")).replace("[Rank", "[PG ID 0 PG GUID 0(default_pg) Rank"),
            timeout(0, n=1024) + timeout(1, n=512),
            waited_at(0, "all_reduce") + waited_at(1, "barrier"),
        ),
        (
            "FAIL job: rank 0, rank 1, rank 2",
            timeout(0, seq=8) + timeout(1, seq=7) + timeout(2, seq=8),
            waited_at(0, "all_reduce") + waited_at(1, "all_reduce") + waited_at(2, "broadcast"),
        ),
        (
            "FAIL job: n1:7",
            f"{WARN}NET/IB : req 0/1 tag 0 peer 10.0.0.2<4> collective mismatch error, local size 4096 remote size "
            "2048",
        ),
        (
            "FAIL job: rank 1",
            "[rank1]: RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] "
            "op.preamble.length <= op.nbytes. 8 vs 4",
        ),
        timeout(0) + timeout(1),
        timeout(0, op="ALLTOALL", n=4) + timeout(1, op="ALLTOALL", n=8),
        timeout(0, op="SEND", seq=3) + timeout(1, op="RECV", seq=4),
        waited_at(0, "all_reduce") + waited_at(1, "all_reduce"),
        waited_at(0, "send") + waited_at(1, "recv"),
    ],
    "log.rank-behind/torch-names-the-late-ranks": [
        (
            "FAIL unknown: example",
            "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n\t     [3] "
            "finished collective #5, but didn't join collective #6 (count from 1)",
        ),
        (
            "FAIL unknown: rank 0",
            "[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 2000 ms",
            "[rank0]: RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 300000 ms",
        ),
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors",
    ],
    "log.collective-stuck/waited-in-vain": [
        (
            "WARN unknown: rank 3",
            "[rank3]:[E ProcessGroupNCCL.cpp:456] [Rank 3] Some NCCL operations have failed or timed out. Due to the",
        ),
        (
            "WARN unknown: rank 1",
            "[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
            "1800000ms for recv operation to complete",
        ),
    ],
    "log.collective-mismatch/desync": [
        (
            "FAIL job: rank 1",
            recorded({0: "all_reduce all_reduce:8*", 1: "all_reduce all_reduce:4*", 2: "all_reduce all_reduce:8*"}),
        ),
        ("FAIL job: rank 0", recorded({0: "all_reduce:8:Half*", 1: "all_reduce*", 2: "all_reduce*"})),
        ("FAIL job: ranks 0-1", recorded({0: "1=0,1/barrier*", 1: "2=0,1/barrier*"}, world=2)),
        (recorded({0: "all_to_all:8*", 1: "all_to_all:16*"}),),
        (recorded({0: "all_reduce broadcast", 1: "all_reduce"}),),
    ],
    "log.rank-behind/absent-rank": [
        ("FAIL unknown: rank 3", recorded({0: "all_reduce*", 1: "all_reduce*", 2: "all_reduce*"}, world=4)),
        ("FAIL job: rank 1", recorded({0: "all_reduce barrier!", 1: "all_reduce"}, backend="gloo")),
        (recorded({0: "all_reduce*", 1: "all_reduce*"}),),
        (recorded({0: "all_reduce*"}, world=4),),
    ],
    "log.collective-stuck/all-entered": [
        ("WARN unknown: group 0 (default_pg)", recorded({0: "all_reduce*"}, world=4), NO_LOG),
        (recorded({0: "all_reduce", 1: "all_reduce"}), NO_LOG),
        (recorded({0: "all_reduce*", 1: "all_reduce*"}, world=3), NO_LOG),
    ],
    "log.rank-silent/ras-dead-process": [ras_said(BEHIND), ras_said(RAS_ERROR)],
    "log.rank-silent/ras-no-answer": [ras_said(BEHIND), ras_said(DEAD)],
    "log.collective-mismatch/ras-other-operations": [ras_said(BEHIND), ras_said(DEAD)],
    "log.rank-behind/ras-rank-behind": [ras_said(OTHER), ras_said(DEAD)],
    "log.gpu-failed/ras-error": [ras_said(BEHIND)],
    "log.rank-silent/rank-fell-silent": [
        ("FAIL unknown: n9 on n9", _LOST_ONE, Explained(failing=frozenset({(0, 1), (1, 1)}))),
        (_LOST_ONE, Explained(failing=frozenset({(0, 1)}))),
        ("FAIL unknown: rank 2", *example(_CLOSED, _CLOSED, "", _CLOSED)),
        ("FAIL unknown: ranks 2, 3", *example(_CLOSED, _CLOSED, "step 8", size=4)),
        ("FAIL job: rank 1", *example(WAITED, _CLOSED, WAITED)),
        example(_CLOSED, _CLOSED),
        (example(_CLOSED, "")[0], Explained(("oom",), failing=example(_CLOSED, "")[1].failing)),
    ],
    "log.slow-path/sockets-instead-of-rdma": [
        (
            "WARN job: n1:7 on n1",
            f"{INFO}NCCL_IB_HCA set to mlx5_0\n{INFO}NCCL_IB_DISABLE set by environment to 1.\n{INFO}Using network "
            "Socket",
        ),
        f"{INFO}NET/IB : No device found.\n{INFO}NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>\n{INFO}Using network Socket",
        f"{INFO}NCCL_IB_DISABLE set by environment to 1.\n{INFO}Using network Socket",
    ],
    "log.slow-path/gpudirect-off": [
        (
            "WARN image: n1:7 on n1",
            f"{INFO}Using network IB\n{INFO}NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        ),
        f"{INFO}Using network IB\n{INFO}NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'\n{INFO}NET/IB : GPU "
        "Direct RDMA Disabled for HCA 4 'mlx5_bond_0'",
        f"{INFO}Using network Socket\n{INFO}NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
    ],
    "log.nvls/nvls-left-out": [f"{WARN}{BIND} of size 2097152 : CUDA error 2 'out of memory'."],
    "log.networks-differ/link-layers-in-use": [
        f"{INFO}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>"
    ],
    "log.setting-refused": [
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}Error : no algorithm/protocol available for function AllReduce. NCCL_ALGO was set to NVLS.",
        )
    ],
    "log.known-message": [
        (log_of("group_desc must not be None"), Explained()),
        (log_of("Something new went wrong"), Explained()),
        (log_of("NCCL_WORK_FIFO_BYTES=3 is being ignored because it is not a power of 2."), Explained()),
    ],
    "log.rank-behind/works-on-alone": [("FAIL job: example", _BAR)],
}
