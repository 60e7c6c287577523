"""What the checks of what a run reached must object to, and what they must accept."""

from ncclprobe.checks.run.pairs import NONE, said
from ncclprobe.checks.run.ranks import ASKED, BY_NODE, JOB_RUNG, NODE_RUNG, ONE, TWO
from ncclprobe.checks.run.rows import EIGHT, ONE_SIZE, ROW
from ncclprobe.checks.run.traffic import BY_SLOT, JUDGED, MANY, SLOW_COPY, rail_traffic
from ncclprobe.facts.run.samples import Copies, Ladder, NicTraffic, Rows, Skipped
from ncclprobe.model.measurement import Band, Expectation, Mismatch
from ncclprobe.model.pair_results import PAIRS, Blamed, Inside, WrongBytes
from ncclprobe.model.traffic import NicBytes, OperationTraffic
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_BAD_NIC = Blamed("n3 rail 1 (mlx5_1)", "rail", ("n3",), 1, "both", 0.1, 0.999, 12, 12, 6, 3, ("n3",))
_SHARED = replace(
    _BAD_NIC, where="n[0-2] with the others", kind="pair", nodes=("n0", "n1", "n2"), rail=None, ratio=0.6, several=True
)
_SLOW_INSIDE = Inside("inside n2", "node", "n2", (16, 17), 0.3, 200.0, 3)
_SHIFTED = Mismatch(4, 1023, 0, "7", "0", "0x07", "0x00")
_LOOSE = Band(
    PAIRS,
    64 << 20,
    64 << 20,
    Expectation(46.0, 0.0, "GB/s", "model", "one NIC of 50 GB/s", "published runs", worst="unjudged", known="1 source"),
)
_GROSS = replace(_LOOSE, expectation=replace(_LOOSE.expectation, gross=46 / 3))
_LAST_SHARE = Mismatch(5, 1023, 3, "7.0", "0.0", "0x40e00000", "0x00000000")
_TAKEN = NicBytes("n1", "eth0", "ethernet", MANY, MANY, 1.0, False)
_MEANT = NicBytes("n1", "mlx5_0:1", "rdma", 0, 0, 0.0, True)
_WRONG = OperationTraffic("all_reduce", MANY, (_MEANT, _TAKEN))
_RIGHT = OperationTraffic("all_reduce", MANY, (NicBytes("n1", "mlx5_0:1", "rdma", MANY, MANY, 1.0, True),))
_HALF_IDLE = {f"mlx5_{n}:1": 0 for n in range(4)}
_RIGHT_COPY = replace(SLOW_COPY, GBps=53.0, min_GBps=52.0, max_GBps=54.0)


CASES: Cases = {
    "run.ladder": [
        (Ladder((ONE, NODE_RUNG, JOB_RUNG)), BY_NODE, TWO, ASKED),
    ],
    "run.pairs": [
        ("FAIL node: n3 rail 1 (mlx5_1) on n3", *said(replace(NONE, kind="rail", culprits=(_BAD_NIC,)))),
        (
            "WARN unknown: all pairs",
            *said(replace(NONE, kind="everything", all_slow=True, level_GBps={"one way": 1.1})),
        ),
        ("FAIL node: inside n2 on n2", *said(replace(NONE, intra_node=(_SLOW_INSIDE,)))),
        ("FAIL unknown: all pairs", *said(replace(NONE, level_GBps={"one way": 14.0}), _GROSS)),
        ("FAIL fabric: all nodes rail 1", *said(replace(NONE, slow_rails={1: 0.4}))),
        ("WARN fabric: all nodes rail 1", *said(replace(NONE, slow_rails={1: 0.6}))),
        ("WARN fabric: n[0-2] with the others", *said(replace(NONE, kind="pair", culprits=(_SHARED,)))),
        ("FAIL unknown: n0 to n1", *said(replace(NONE, wrong=(WrongBytes(0, 4, "n0", "n1", 12, _SHIFTED),)))),
        said(replace(NONE, level_GBps={"one way": 45.0}), _LOOSE),
    ],
    "run.data": [
        (
            "FAIL unknown: all_reduce 1 MiB",
            ONE_SIZE,
            EIGHT,
            Skipped(),
            Rows((replace(ROW, wrong=3, mismatches=(_LAST_SHARE,)),)),
        ),
    ],
    "run.nic-traffic": [
        ("WARN job: n1 eth0 on n1", NicTraffic((_WRONG,))),
        ("WARN unknown: n1 mlx5_3:1 on n1", rail_traffic({"mlx5_3:1": 6 << 20})),
        (NicTraffic((_RIGHT,)),),
        (rail_traffic(_HALF_IDLE),),
        (rail_traffic({"mlx5_3:1": 0}, nodes=("n0",)),),
    ],
    "run.copies": [
        (Copies((_RIGHT_COPY,)), BY_SLOT, JUDGED),
    ],
}
