"""What the checks of a run must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.run.pairs import NONE, said
from ncclprobe.checks.run.ranks import (
    ASKED,
    BY_NODE,
    FOUR,
    JOB_RUNG,
    LATECOMER,
    NODE_RUNG,
    ONE,
    PUNCTUAL,
    TWO,
    WHOLE,
    WITHIN,
    rungs_of,
)
from ncclprobe.checks.run.rows import BAND, EIGHT, ONE_SIZE, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, JUDGED, MANY, SLOW_COPY, rail_traffic
from ncclprobe.checks.sync.settings import UNSET
from ncclprobe.facts.run.samples import (
    Arrivals,
    Attendance,
    Copies,
    DifferingSetting,
    Ending,
    Expected,
    ExpectedCopies,
    Groups,
    HeardXids,
    Ladder,
    Localised,
    LostRank,
    NicTraffic,
    Participants,
    RankSettings,
    Rows,
    RunRequest,
    Skipped,
)
from ncclprobe.model.measurement import Band, Disturbance, Expectation, Measurement, Mismatch, Skew, Xids
from ncclprobe.model.pair_results import PAIRS, Aside, Blamed, Inside, LostPair, WrongBytes
from ncclprobe.model.traffic import NicBytes, OperationTraffic
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_SHORT = (
    "it failed (rank 0: allocating 2 x 1 GiB: out of memory: 1.00 GiB were asked for, and of the 80 GiB of GPU 0 0 are "
    "free)"
)
_CLOSED, _SILENT = "it failed (rank 1: all_reduce: Connection closed by peer)", "its heartbeat stopped 5 s ago"
_ACROSS = replace(WITHIN, size=16, groups=1, crossing=1, advice=("1 of 1 tensor-parallel groups cross nodes",))
_LOAD = Disturbance("a load of 24 on n0", 0.2)
_BY_NODE = DifferingSetting("NCCL_PROTO", ((UNSET, (0, 1)), ("LL", (2, 3))))
_TC = DifferingSetting("NCCL_IB_TC", (("0", (0, 2, 3)), ("106", (1,))))
_OF_ONE = ("allocating 2 x 4 GiB", "calibrate", "import torch", "pairs, buffers")
_LEVELS = ("P2P_DISABLE", "P2P_LEVEL", "SHM_DISABLE")
_P2PS = [DifferingSetting(f"NCCL_{each}", ((UNSET, (0, 2, 3)), ("1", (1,)))) for each in _LEVELS]
_CUT = Ending("ranks were lost")


def _late(late_us: tuple[float, ...], late_rounds: tuple[int, ...]) -> Skew:
    return replace(PUNCTUAL, late_us=late_us, late_rounds=late_rounds)


_RARELY = _late((0.0,) * 7 + (3000.0,), (0,) * 7 + (1,))


def _rungs(*skews: Skew) -> tuple[Any, ...]:
    return Rows(tuple(replace(ROW, skew=skew) for skew in skews)), EIGHT


_FIRST = Skew(8, 4000.0, 100.0, 5000.0, (5000.0, 100.0), (6, 0))
_OF_TWO = (Rows((replace(ROW, ranks=2, skew=_FIRST),)), Participants("environment", 2, ("a", "b")))


def _left(*why: str) -> Attendance:
    return Attendance(2, tuple(LostRank(rank, "n0", "allocating 2 x 1 GiB", each) for rank, each in enumerate(why)))


def _heard(*first: tuple[int, str], others: tuple[Xids, ...] = (Xids("n1"),)) -> tuple[Any, ...]:
    return HeardXids((Xids("n0", first), *others)), FOUR


_BAD_NIC = Blamed("n3 rail 1 (mlx5_1)", "rail", ("n3",), 1, "both", 0.1, 0.999, 12, 12, 6, 3, ("n3",))
_SHARED = replace(
    _BAD_NIC, where="n[0-2] with the others", kind="pair", nodes=("n0", "n1", "n2"), rail=None, ratio=0.6, several=True
)
_SLOW_INSIDE = Inside("inside n2", "node", "n2", (16, 17), 0.3, 200.0, 3)
_SHIFTED = Mismatch(4, 1023, 0, "7", "0", "0x07", "0x00")
_LOOSE = Band(
    PAIRS, 64 << 20, 64 << 20,
    Expectation(46.0, 0.0, "GB/s", "model", "one NIC of 50 GB/s", "published runs", worst="unjudged", known="1 source"),
)  # fmt: skip
_GROSS = replace(_LOOSE, expectation=replace(_LOOSE.expectation, gross=46 / 3))
_LAST_SHARE = Mismatch(5, 1023, 3, "7.0", "0.0", "0x40e00000", "0x00000000")
_TAKEN = NicBytes("n1", "eth0", "ethernet", MANY, MANY, 1.0, False)
_MEANT = NicBytes("n1", "mlx5_0:1", "rdma", 0, 0, 0.0, True)
_WRONG = OperationTraffic("all_reduce", MANY, (_MEANT, _TAKEN))
_RIGHT = OperationTraffic("all_reduce", MANY, (NicBytes("n1", "mlx5_0:1", "rdma", MANY, MANY, 1.0, True),))
_HALF_IDLE = {f"mlx5_{n}:1": 0 for n in range(4)}
_RIGHT_COPY = replace(SLOW_COPY, GBps=53.0, min_GBps=52.0, max_GBps=54.0)
_FAILED = replace(ROW, expectation=BAND, interval_us=(19.8, 20.2))
_NOISE = replace(ROW, expectation=BAND, interval_us=(15.0, 25.0))
_WEAK = replace(BAND, basis="model", worst="warn", known="off by 60% in the median")
# The bytes take 10 of 20 us, which is 184 GB/s, far above the band; the ranks come 500 us apart.
_LATE = Skew(8, 4000.0, 10.0, 500.0, (0.0,) * 7 + (500.0,), (0,) * 8)
_WIDE = tuple(Mismatch(rank, 9, None, "3.0", "nan", "0x40400000", "0x7fc00000") for rank in range(5))
_JUDGED = RunRequest(what=("pairs",), require_judged=True)
_SLOW_LEVELS = {"one way": 20.0, "both ways at once": 60.0, "inside a node, one way": 300.0}
_NODE = replace(_BAD_NIC, where="n2", kind="node", nodes=("n2",), rail=None, hosts=("n2",))
_RANK = replace(_BAD_NIC, where="rank 3", kind="node", nodes=("rank 3",), rail=None, hosts=("h",))
_SEVERAL = Blamed("several pairs of n3", "node", ("n3",), None, "both", 0.6, 0.999, 24, 24, 8, 4, ("n3",), True)
_BYTES = WrongBytes(0, 4, "n0", "n1 (mlx5_1)", 12, Mismatch(4, 1023, 0, "7", "6", "0x07", "0x06"))
_ASIDE = (Aside(2, "n2 (eth0)", "gone", gone=True),)
_LOST = (LostPair("n0 (eth0)", "n2 (eth0)", "reset"),) * 2
_LINKS = Expectation(420.0, 390.0, "GB/s", "datasheet", "18 NVLinks of 25 GB/s to one peer", "…")
_BETWEEN = replace(SLOW_COPY, kind="d2d", peer="GPU4", GBps=200.0, min_GBps=199.0, max_GBps=201.0)


def _banded(*measured: Measurement) -> tuple[RunRequest, Expected, Rows]:
    return ONE_SIZE, Expected(), Rows(measured)


def _found(*bands: Band, **changes: Any) -> tuple[Any, ...]:
    return said(replace(NONE, **changes), *bands)


_BOTH_WAYS = tuple(replace(_SHARED, direction=each) for each in ("out", "both"))
_OUT_OF_NIC = replace(_BAD_NIC, where="out of n3 rail 1 (eth1)")


def _rows(wrong: int, *mismatches: Any) -> Rows:
    return Rows((replace(ROW, wrong=wrong, mismatches=mismatches),))


_INSIDE = ("rank", "pair")
_DEVICES = ("bnxt_re0", "irdma1", "rdmap1:1", "roceo1", "rxe0", "siw0", "efa_0", "ibp3", "mlx5_1:2", "eth1:1")
_NICS = [replace(_BAD_NIC, where=f"n3 rail 1 ({each})") for each in _DEVICES]
_OTHER_WAYS = [replace(SLOW_COPY, kind="d2h"), replace(SLOW_COPY, kind="bidirectional")]
_NOISY = [replace(SLOW_COPY, device=each, GBps=49.0, min_GBps=45.0, max_GBps=55.0) for each in ("GPU3", "GPU5")]

CASES: Cases = {
    "run.init": [
        ("FAIL unknown: rank 3", Arrivals(4, (2, 3), 62.0, 60.0, running=(2,)), FOUR),
        ("UNKNOWN: ranks 1-2 had not joined after 2 s, of the 60 s", Arrivals(4, (1, 2), 2.0, 60.0), FOUR),
        ("UNKNOWN: after 99 s; the process of rank 1 is running", Arrivals(4, (1,), 99.0, 60.0, running=(1,)), FOUR),
    ],
    "run.out-of-memory": [
        ("FAIL job: rank 0 on n0", _left(_SHORT, _CLOSED)), ("FAIL job: rank 0, rank 1 on n0", _left(_SHORT, _SHORT)),
        ("FAIL job: rank 0 on n0", _left(_SHORT, _SILENT)), (_left("it failed (rank 0: reset)", _SILENT),),
    ],
    "run.rank-lost": [
        ("FAIL unknown: rank 2 on node7",
            Attendance(4, (LostRank(2, "node7", "all_reduce 1 MiB timing", "its heartbeat stopped"),)), Ending("lost")),
        ("FAIL unknown: rank 1 on n0", _left(_SHORT, _SILENT), Ending("lost")),
        ("FAIL unknown: rank 0, rank 1 on n0", _left("it failed (rank 0: reset)", _SILENT), Ending("lost")),
        # They are slow by themselves, which says nothing of the network.
        *(("UNKNOWN: no data was in transit", Attendance(2, stalled=each), Ending()) for each in _OF_ONE),
        (_left(_SHORT, _CLOSED), Ending("lost")), (_left(_SHORT, _SHORT), Ending("lost")),
    ],
    "run.xids": [
        ("FAIL node: GPU0 on n0", *_heard((0, "79"), others=())), ("FAIL node: GPU0 on n0", *_heard(*[(0, "79")] * 63)),
        ("FAIL node: GPU0 on n0", *_heard(*[(0, "79")] * 64)),  # or more
        ("WARN node: GPU0 on n0", *_heard((0, "149"))),  # it may have been fatal
        ("UNKNOWN: ", *_heard(others=())), ("UNKNOWN: ", *_heard((0, "13"), others=())), _heard((0, "13")),
    ],
    "run.groups": [
        ("WARN job: tp groups", Groups((_ACROSS,))),
        # a pipeline over nodes is as meant
        ("WARN job: tp groups", Groups((_ACROSS, replace(WITHIN, kind="pp", crossing=8)))),
    ],
    "run.straggler": [
        ("WARN node: rank 7 on n0", *_rungs(*(replace(_RARELY, rounds=n, transfer_us=30.0 * n) for n in (8, 7, 9)))),
        ("WARN node: rank 6, rank 7 on n0", *_rungs(_late((0.0,) * 6 + (5000.0,) * 2, (0,) * 6 + (4,) * 2))),
        ("NOTE node: rank 0 on a", *_OF_TWO), _rungs(_RARELY), _rungs(_RARELY, *[PUNCTUAL] * 20),
        _rungs(_late((9000.0,) + (0.0,) * 7, (1,) + (0,) * 7)),  # one long pause
        _rungs(_late((5000.0,) * 8, (4,) * 8)),
        (replace(rungs_of(LATECOMER)[0], disturbances=(_LOAD,)), rungs_of(LATECOMER)[1]),
        (rungs_of(_late((10.0, 5000.0), (0, 4)))[0], Participants("self", 2, ("n0",) * 2, "gloo")),
        # A log that was edited does not speak of every rank.
        *(_rungs(replace(LATECOMER, late_us=(9000.0,) + (7,) * left)) for left in (6, 8)),
        *(_rungs(replace(LATECOMER, late_rounds=(9000,) + (7,) * left)) for left in (6, 8)),
        *((rungs_of(LATECOMER)[0], replace(EIGHT, hosts=("n0",) * left)) for left in (7, 9)),
    ],
    "run.settings": [
        ("WARN job: NCCL_IB_TC on n0", RankSettings((_TC,)), FOUR, WHOLE),
        ("FAIL job: NCCL_PROTO on n1", RankSettings((_BY_NODE,)), FOUR, _CUT),
        *((f"FAIL job: {each.name} on n0", RankSettings((each,)), FOUR, _CUT) for each in _P2PS),
        (RankSettings((_BY_NODE,)), FOUR, WHOLE),  # sync.env compares nodes, once they all have been looked at
    ],
    "run.ladder": [(Ladder((ONE, NODE_RUNG, JOB_RUNG)), BY_NODE, TWO, ASKED)],
    "run.bandwidth": [
        ("FAIL unknown: all_reduce 1 MiB", *_banded(_FAILED)),
        ("FAIL unknown: all_reduce 1 MiB", *_banded(_NOISE, _FAILED)),  # beside noise
        ("FAIL unknown: all_reduce 1 MiB", *_banded(replace(_FAILED, skew=_LATE))),  # late ranks are no slow link
        # the transfer is too slow as well
        ("FAIL unknown: all_reduce 1 MiB", *_banded(replace(_FAILED, skew=replace(_LATE, transfer_us=40.0)))),
        (
            "FAIL unknown: all_reduce 1 MiB",
            *_banded(replace(_FAILED, skew=replace(_LATE, arrival_us=1.0, late_us=(0.0,) * 8))),
        ),  # nobody is late
        ("FAIL unknown: all_reduce 1 MiB", *_banded(replace(_FAILED, launch_bound=True, issue_us=18.0))),
        ("WARN unknown: all_reduce 1 MiB", *_banded(replace(ROW, expectation=_WEAK, status="warn", busbw_GBps=10.0))),
        ("UNKNOWN: too noisy to judge: all_reduce 1 MiB, at least 95 expected", *_banded(_NOISE)),
        ("UNKNOWN: median between 15.0 and 25.0 us", *_banded(_NOISE)),
        ("UNKNOWN: too noisy to judge: all_reduce 1 MiB", *_banded(_NOISE, replace(_NOISE, op="broadcast"))),
        ("UNKNOWN: and 1 more rows", *_banded(replace(ROW, busbw_GBps=98.0, expectation=BAND), _NOISE, _NOISE)),
        ("UNKNOWN: too few for an interval", *_banded(replace(_NOISE, interval_us=None))),
    ],
    "run.pairs": [
        ("UNKNOWN: x.toml has no expectation", Localised(NONE), replace(_JUDGED, expect="x.toml"), Expected()),
        ("WARN fabric: n[0-2] with the others", *_found(kind="pair", culprits=_BOTH_WAYS)),
        ("FAIL node: n3 rail 1 (mlx5_1) on n3", *_found(kind="rail", culprits=(_BAD_NIC,))),
        ("FAIL node: out of n3 rail 1 (eth1) on n3", *_found(kind="rail", culprits=(_OUT_OF_NIC,))),
        ("WARN unknown: all pairs", *_found(kind="everything", all_slow=True, level_GBps={"one way": 1.1})),
        ("FAIL node: inside n2 on n2", *_found(intra_node=(_SLOW_INSIDE,))),
        ("WARN node: inside n2 on n2", *_found(intra_node=(replace(_SLOW_INSIDE, ratio=0.7),))),
        ("FAIL node: inside n2, n2 on n2", *_found(kind="node", culprits=(_NODE,), intra_node=(_SLOW_INSIDE,))),
        ("WARN node: several pairs of n3 on n3", *_found(kind="node", culprits=(_SEVERAL,))),
        ("FAIL node: rank 3 on h", *_found(kind="node", culprits=(_RANK,))),  # of a single node
        ("FAIL unknown: all pairs", *_found(_GROSS, level_GBps={"one way": 14.0})),
        ("NOTE unknown: all pairs", *_found(_LOOSE, level_GBps=_SLOW_LEVELS)),
        ("FAIL fabric: all nodes rail 1", *_found(slow_rails={1: 0.4})),
        ("WARN fabric: all nodes rail 1", *_found(slow_rails={1: 0.6})),
        ("WARN fabric: n[0-2] with the others", *_found(kind="pair", culprits=(_SHARED,))),
        *(("FAIL node: inside n2 on n2", *_found(intra_node=(replace(_SLOW_INSIDE, kind=each),))) for each in _INSIDE),
        *((f"FAIL node: {each.where} on n3", *_found(kind="rail", culprits=(each,))) for each in _NICS),
        ("FAIL unknown: n0 to n1", *_found(wrong=(WrongBytes(0, 4, "n0", "n1", 12, _SHIFTED),))),
        ("FAIL unknown: n0 to n1 (mlx5_1)", *_found(nodes=2, wrong=(_BYTES, replace(_BYTES, wrong=9)))),
        ("FAIL unknown: n0 (eth0) to n2 (eth0)", *_found(lost=_LOST, excluded_ranks=_ASIDE)),
        ("UNKNOWN: with two nodes either may be the slow one", Localised(replace(NONE, nodes=2)), _JUDGED, Expected()),
        ("UNKNOWN: ", *_found(complete=False)),
        _found(nodes=2),  # where no verdict must be
        _found(_LOOSE, level_GBps={"one way": 45.0}), _found(replace(_LOOSE, op="sendrecv"), level_GBps=_SLOW_LEVELS),
    ],
    "run.data": [
        ("FAIL unknown: all_reduce 1 MiB", ONE_SIZE, EIGHT, Skipped(), _rows(3, _LAST_SHARE)),
        ("FAIL unknown: all_reduce 1 MiB", ONE_SIZE, EIGHT, Skipped(), _rows(5, *_WIDE)),
    ],
    "run.nic-traffic": [
        ("WARN job: n1 eth0 on n1", NicTraffic((_WRONG,))),
        ("WARN unknown: n1 mlx5_3:1 on n1", rail_traffic({"mlx5_3:1": 6 << 20})),
        (NicTraffic((_RIGHT,)),), (rail_traffic(_HALF_IDLE),), (rail_traffic({"mlx5_3:1": 0}, nodes=("n0",)),),
    ],
    "run.copies": [
        ("FAIL node: GPU3 on n0", Copies((_BETWEEN,)), ExpectedCopies({"n0": {"d2d": _LINKS}}), JUDGED),
        *(("FAIL node: GPU3 on n0", Copies((each,)), BY_SLOT, JUDGED) for each in _OTHER_WAYS),
        (Copies((_RIGHT_COPY,)), BY_SLOT, JUDGED),
        ("UNKNOWN: too noisy to judge: GPU3 45 to 55 GB/s", Copies(tuple(_NOISY)), BY_SLOT, JUDGED),
    ],
}  # fmt: skip
