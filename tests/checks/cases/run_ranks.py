"""What the checks of a run's ranks, their settings and their arrival must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.run.ranks import FOUR, LATECOMER, PUNCTUAL, WHOLE, WITHIN, rungs_of
from ncclprobe.checks.run.rows import EIGHT, ROW
from ncclprobe.checks.sync.settings import UNSET
from ncclprobe.facts.run.samples import (
    Arrivals,
    Attendance,
    DifferingSetting,
    Ending,
    Groups,
    HeardXids,
    LostRank,
    Participants,
    RankSettings,
    Rows,
)
from ncclprobe.model.measurement import Disturbance, Skew, Xids
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


CASES: Cases = {
    "run.init": [
        ("FAIL unknown: rank 3", Arrivals(4, (2, 3), 62.0, 60.0, running=(2,)), FOUR),
        ("UNKNOWN: ranks 1-2 had not joined after 2 s, of the 60 s", Arrivals(4, (1, 2), 2.0, 60.0), FOUR),
        ("UNKNOWN: after 99 s; the process of rank 1 is running", Arrivals(4, (1,), 99.0, 60.0, running=(1,)), FOUR),
    ],
    "run.out-of-memory": [
        ("FAIL job: rank 0 on n0", _left(_SHORT, _CLOSED)),
        ("FAIL job: rank 0, rank 1 on n0", _left(_SHORT, _SHORT)),
        ("FAIL job: rank 0 on n0", _left(_SHORT, _SILENT)),
        (_left("it failed (rank 0: reset)", _SILENT),),
    ],
    "run.rank-lost": [
        (
            "FAIL unknown: rank 2 on node7",
            Attendance(4, (LostRank(2, "node7", "all_reduce 1 MiB timing", "its heartbeat stopped"),)),
            Ending("lost"),
        ),
        ("FAIL unknown: rank 1 on n0", _left(_SHORT, _SILENT), Ending("lost")),
        ("FAIL unknown: rank 0, rank 1 on n0", _left("it failed (rank 0: reset)", _SILENT), Ending("lost")),
        # They are slow by themselves, which says nothing of the network.
        *(("UNKNOWN: no data was in transit", Attendance(2, stalled=each), Ending()) for each in _OF_ONE),
        (_left(_SHORT, _CLOSED), Ending("lost")),
        (_left(_SHORT, _SHORT), Ending("lost")),
    ],
    "run.xids": [
        ("FAIL node: GPU0 on n0", *_heard((0, "79"), others=())),
        ("FAIL node: GPU0 on n0", *_heard(*[(0, "79")] * 63)),
        ("FAIL node: GPU0 on n0", *_heard(*[(0, "79")] * 64)),  # or more
        ("WARN node: GPU0 on n0", *_heard((0, "149"))),  # it may have been fatal
        ("UNKNOWN: ", *_heard(others=())),
        ("UNKNOWN: ", *_heard((0, "13"), others=())),
        _heard((0, "13")),
    ],
    "run.groups": [
        ("WARN job: tp groups", Groups((_ACROSS,))),
        # a pipeline over nodes is as meant
        ("WARN job: tp groups", Groups((_ACROSS, replace(WITHIN, kind="pp", crossing=8)))),
    ],
    "run.straggler": [
        ("WARN node: rank 7 on n0", *_rungs(*(replace(_RARELY, rounds=n, transfer_us=30.0 * n) for n in (8, 7, 9)))),
        ("WARN node: rank 6, rank 7 on n0", *_rungs(_late((0.0,) * 6 + (5000.0,) * 2, (0,) * 6 + (4,) * 2))),
        ("NOTE node: rank 0 on a", *_OF_TWO),
        _rungs(_RARELY),
        _rungs(_RARELY, *[PUNCTUAL] * 20),
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
}
