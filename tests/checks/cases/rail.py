"""What the checks of rails must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.checks.rail.rates import _BAD, _FOUR, _NO_FABRIC, _NO_PCI
from ncclprobe.checks.rail.ways import _DEAD, _EMPTY, _SET
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_CROSS = World(carries=lambda src, dst, gpu: float(src.rail == dst.rail))
_V1 = {"gid_type": "IB/RoCE v1"}
_IB: dict[str, Any] = {"link_layer": "InfiniBand", "gid_type": "", "lid": 7}
_IB_ENDS = {End(f"n{node}", rail): _IB for node in range(3) for rail in range(2)}
_GID = World(carries=only(_BAD), addresses={_BAD: _V1})
_PKEY = World(carries=only(_BAD), addresses={**_IB_ENDS, _BAD: {**_IB, "pkey": 0x8001}})
_LARGE = World(small_only=(_BAD,))
_ONE_WAY = World(carries=only(_BAD, out=False))
_REFUSED = World(gpus=True, carries=lambda src, dst, gpu: 0.0 if gpu and _BAD in (src, dst) else 1.0)
_LINK_LOCAL = {"gid": "fe80000000000000" + "0" * 15 + "1", "gid_index": 0}
_TWO = World(nodes=("n0", "n1"), carries=only(_BAD), addresses={_BAD: _LINK_LOCAL})


def _silent() -> Every[Rails]:
    return Every({node: replace(each, silent=("n2",)) for node, each in rails_of(World()).items() if node != "n2"})


CASES = {
    "rail.slow": Cases(
        bad=[
            (
                "WARN link: out of n1 rail 1 (mlx5_1:1) on n1",
                rails_of(World(_FOUR, carries=only(_BAD, share=0.6, into=False))),
                _NO_FABRIC,
                _NO_PCI,
            ),
            (
                "WARN link: n1 rail 1 (mlx5_1:1) on n1",
                rails_of(World(latency_us={_BAD: 40.0})),
                _NO_FABRIC,
                _NO_PCI,
            ),
        ],
        good=[
            (rails_of(World(_FOUR, carries=only(_BAD))), _NO_FABRIC, _NO_PCI),
            (rails_of(World(latency_us={_BAD: 6.0})), _NO_FABRIC, _NO_PCI),
        ],
    ),
    "rail.data": Cases(good=[(rails_of(World(carries=only(_BAD))),)]),
    "rail.gpu": Cases(
        bad=[("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_REFUSED))],
        good=[(rails_of(World(gpus=True, carries=only(_BAD, share=0.5))),)],
    ),
    "rail.unusable": Cases(
        good=[
            (rails_of(World()),),
            (rails_of(_DEAD),),
        ]
    ),
    "rail.dead": Cases(
        bad=[
            ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_GID), _SET),
            ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(replace(_GID, addresses={_BAD: _LINK_LOCAL})), _SET),
            ("FAIL fabric: rails of all nodes", rails_of(_CROSS, cross=True), _SET),
            ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_EMPTY), _SET),
            ("FAIL node: n1 rail 1 (mlx5_1:1) on n1", rails_of(_TWO), _SET),
            ("FAIL link: n1 on n1", rails_of(World(carries=only(_BAD, End("n1", 0)))), _SET),
            ("FAIL fabric: n1 rail 1 (mlx5_1:1) on n1", rails_of(_PKEY), _SET),
            ("FAIL fabric: n1 rail 1 (mlx5_1:1) on n1", rails_of(_LARGE), _SET),
            ("FAIL link: n1 rail 1 (mlx5_1:1) on n1", rails_of(_ONE_WAY), _SET),
        ],
        good=[
            (rails_of(World(addresses=_IB_ENDS)), _SET),
            (rails_of(World(), cross=True), _SET),
            (rails_of(World()), _SET),
        ],
    ),
    "rail.untried": Cases(bad=[("FAIL node: n2 on n2", _silent())], good=[(rails_of(_DEAD),)]),
}
