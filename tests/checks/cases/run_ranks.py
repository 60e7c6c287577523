"""What the checks of a run's ranks, their settings and their arrival must object to, and what they must accept."""

from ncclprobe.checks.run.ranks import FOUR, LATECOMER, PUNCTUAL, WHOLE, WITHIN, rungs_of
from ncclprobe.checks.sync.settings import UNSET
from ncclprobe.facts.run.samples import (
    Arrivals,
    Attendance,
    DifferingSetting,
    Ending,
    Groups,
    LostRank,
    Participants,
    RankSettings,
)
from ncclprobe.model.measurement import Disturbance
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_ACROSS = replace(WITHIN, size=16, groups=1, crossing=1, advice=("1 of 1 tensor-parallel groups cross nodes",))
_ALL_LATE = replace(PUNCTUAL, late_us=(5000.0,) * 8, late_rounds=(4,) * 8)
_LATER_OF_TWO = replace(PUNCTUAL, late_us=(10.0, 5000.0), late_rounds=(0, 4))
_LOAD = Disturbance("a load of 24 on n0", 0.2)
_BY_NODE = DifferingSetting("NCCL_PROTO", ((UNSET, (0, 1)), ("LL", (2, 3))))
_TC = DifferingSetting("NCCL_IB_TC", (("0", (0, 2, 3)), ("106", (1,))))
_P2P = DifferingSetting("NCCL_P2P_DISABLE", ((UNSET, (0, 2, 3)), ("1", (1,))))
_CUT = Ending("ranks were lost")


CASES: Cases = {
    "run.init": [
        ("FAIL unknown: rank 3", Arrivals(4, (2, 3), 62.0, 60.0, running=(2,)), FOUR),
    ],
    "run.rank-lost": [
        (
            "FAIL unknown: rank 2 on node7",
            Attendance(4, (LostRank(2, "node7", "all_reduce 1 MiB timing", "its heartbeat stopped"),)),
            Ending("lost"),
        ),
    ],
    "run.groups": [
        ("WARN job: tp groups", Groups((_ACROSS,))),
    ],
    "run.straggler": [
        rungs_of(_ALL_LATE),
        (replace(rungs_of(LATECOMER)[0], disturbances=(_LOAD,)), rungs_of(LATECOMER)[1]),
        (rungs_of(_LATER_OF_TWO)[0], Participants("self", 2, ("n0",) * 2, "gloo")),
    ],
    "run.settings": [
        ("WARN job: NCCL_IB_TC on n0", RankSettings((_TC,)), FOUR, WHOLE),
        ("FAIL job: NCCL_PROTO on n1", RankSettings((_BY_NODE,)), FOUR, _CUT),
        ("FAIL job: NCCL_P2P_DISABLE on n0", RankSettings((_P2P,)), FOUR, _CUT),
        (RankSettings((_BY_NODE,)), FOUR, WHOLE),  # sync.env compares nodes, once they all have been looked at
    ],
}
