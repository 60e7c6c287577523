"""What the checks of rails must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.checks.rail.rates import BAD, FOUR, NO_FABRIC, NO_PCI
from ncclprobe.checks.rail.ways import DEAD, EMPTY, SET
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_CROSS = World(carries=lambda src, dst, gpu: float(src.rail == dst.rail))
_V1 = {"gid_type": "IB/RoCE v1"}
_IB: dict[str, Any] = {"link_layer": "InfiniBand", "gid_type": "", "lid": 7}
_IB_ENDS = {End(f"n{node}", rail): _IB for node in range(3) for rail in range(2)}
_GID = World(carries=only(BAD), addresses={BAD: _V1})
_PKEY = World(carries=only(BAD), addresses={**_IB_ENDS, BAD: {**_IB, "pkey": 0x8001}})
_LARGE = World(small_only=(BAD,))
_ONE_WAY = World(carries=only(BAD, out=False))
_REFUSED = World(gpus=True, carries=lambda src, dst, gpu: 0.0 if gpu and BAD in (src, dst) else 1.0)
_LINK_LOCAL = {"gid": "fe80000000000000" + "0" * 15 + "1", "gid_index": 0}
_TWO = World(nodes=("n0", "n1"), carries=only(BAD), addresses={BAD: _LINK_LOCAL})


def _silent() -> Every[Rails]:
    return Every({node: replace(each, silent=("n2",)) for node, each in rails_of(World()).items() if node != "n2"})


_slow = rows_of(rails=rails_of(World(FOUR, carries=only(BAD, share=0.6, into=False))), fabrics=NO_FABRIC, buses=NO_PCI)
CASES: Cases = {
    "rail.slow": [
        _slow("WARN link: out of n1 rail 1 (mlx5_1:1) on n1"),
        _slow("WARN link: n1 rail 1 (mlx5_1:1) on n1", rails=rails_of(World(latency_us={BAD: 40.0}))),
        _slow(rails=rails_of(World(FOUR, carries=only(BAD)))),
        _slow(rails=rails_of(World(latency_us={BAD: 6.0}))),
    ],
    "rail.gpu": [
        ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_REFUSED)),
    ],
    "rail.unusable": [
        (rails_of(World()),),
        (rails_of(DEAD),),
    ],
    "rail.dead": [
        ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_GID), SET),
        ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(replace(_GID, addresses={BAD: _LINK_LOCAL})), SET),
        ("FAIL fabric: rails of all nodes", rails_of(_CROSS, cross=True), SET),
        ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(EMPTY), SET),
        ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_TWO), SET),
        ("FAIL link: n1 on n1", rails_of(World(carries=only(BAD, End("n1", 0)))), SET),
        ("FAIL fabric: n1 rail 1 (mlx5_1:1) on n1", rails_of(_PKEY), SET),
        ("FAIL fabric: n1 rail 1 (mlx5_1:1) on n1", rails_of(_LARGE), SET),
        ("FAIL link: n1 rail 1 (mlx5_1:1) on n1", rails_of(_ONE_WAY), SET),
        (rails_of(World(addresses=_IB_ENDS)), SET),
        (rails_of(World(), cross=True), SET),
    ],
    "rail.untried": [
        ("FAIL node: n2 on n2", _silent()),
        (rails_of(DEAD),),
    ],
}
