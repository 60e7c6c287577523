"""What the checks that the links of all nodes are equal must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import DOCKER0, ETH1, having, over
from ncclprobe.checks.sync.addresses import OVER_SOCKETS
from ncclprobe.checks.sync.host import DGXS, H100S
from ncclprobe.checks.sync.links import (
    _ANY,
    _FAST,
    _JUMBO,
    _LIMITED,
    _NO_FABRICS,
    _NODE,
    _ONE_DARK,
    _PLAIN,
    _RAILS,
    _SET,
    _SLOW,
    _THREE_FAST,
    _changed,
    _prefixed,
    _with_mtu,
)
from ncclprobe.facts.infiniband import Fabric, RoceMarks, RoceQos
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_OVER_EFA = Every(dict.fromkeys(("n0", "n1"), over("AWS Libfabric")))


def _second(mtu: int) -> Interfaces:
    """Return a second interface with this MTU."""
    return Interfaces((*_JUMBO.all, replace(ETH1, mtu=mtu)))


_OPEN = _changed(_FAST, pkeys=((0, 0xFFFF),))
_APART = _changed(_FAST, pkeys=((0, 0x8001), (1, 0xFFFF)))
_HIDDEN = Absent("the driver does not show it", "Missing")
_UNSET = RoceQos({name: replace(_SET, slows=()) for name in _NODE.ports})
_OTHER = RoceQos({name: replace(_SET, traffic_class="") for name in _NODE.ports})
_NOTHING = RoceQos({name: RoceMarks(_HIDDEN, _HIDDEN, _HIDDEN) for name in _NODE.ports})


CASES = {
    "sync.network/rate": Cases(
        bad=[
            ("FAIL fabric: nodes", Every({"n0": _FAST, "n1": _SLOW}), _PLAIN, DGXS, H100S),
            ("WARN fabric: n0 on n0", Every({"n0": _FAST, "n1": _SLOW, "n2": _SLOW, "n3": _SLOW}), _PLAIN, DGXS, H100S),
        ],
        good=[(Every({**_THREE_FAST, "n3": _FAST}), _PLAIN, DGXS, H100S)],
    ),
    "sync.network/port-state": Cases(
        bad=[("FAIL link: n1 mlx5_1:1 on n1", Every({"n0": _FAST, "n1": _ONE_DARK}), _PLAIN, DGXS, H100S)],
        good=[
            (Every({**_THREE_FAST, "n3": _FAST}), _PLAIN, DGXS, H100S),
            (Every(dict.fromkeys(("n0", "n1", "n2"), _ONE_DARK)), _PLAIN, DGXS, H100S),
            (Every({**_THREE_FAST, "n3": Fabric()}), _PLAIN, DGXS, H100S),
        ],
    ),
    "sync.network/mtu": Cases(
        bad=[
            ("WARN image: eth0", Every({"n0": _JUMBO, "n1": _with_mtu(1500)}), _PLAIN, _ANY, _NO_FABRICS, OVER_SOCKETS)
        ],
        good=[
            (Every({"n0": _JUMBO, "n1": Interfaces((*_JUMBO.all, DOCKER0))}), _PLAIN, _ANY, _NO_FABRICS, OVER_SOCKETS),
            (Every({"n0": _second(1500), "n1": _second(9000)}), _PLAIN, _ANY, _NO_FABRICS, _OVER_EFA),
        ],
    ),
    "sync.network/pkey": Cases(
        bad=[
            ("FAIL fabric: n2 on n2", Every({"n0": _OPEN, "n1": _OPEN, "n2": _APART}), _PLAIN),
            ("FAIL fabric: nodes", Every({"n0": _OPEN, "n1": _APART}), _PLAIN),
            ("WARN fabric: n2 on n2", Every({"n0": _OPEN, "n1": _OPEN, "n2": _LIMITED}), _PLAIN),
            (
                "FAIL job: NCCL_IB_PKEY on n0 n1",
                Every({"n0": _OPEN, "n1": _OPEN}),
                Every(dict.fromkeys(("n0", "n1"), having(NCCL_IB_PKEY="7"))),
            ),
        ],
        good=[(Every({"n0": _OPEN, "n1": _OPEN}), _PLAIN)],
    ),
    "sync.network/subnet-prefix": Cases(
        bad=[
            (
                "WARN fabric: mlx5_1:1",
                Every({"n0": _RAILS, "n1": _prefixed("fec0:0:0:1", "fec0:0:0:9")}),
                _PLAIN,
                DGXS,
                H100S,
            )
        ],
        good=[(Every({"n0": _FAST}), _PLAIN, DGXS, H100S)],
    ),
    "sync.network/roce-qos": Cases(
        bad=[
            (
                "WARN image: n2 mlx5_0:1, n2 mlx5_1:1 on n2",
                Every({"n0": _NODE, "n1": _NODE, "n2": _UNSET}),
                DGXS,
                H100S,
            ),
            ("WARN image: mlx5_0:1, mlx5_1:1", Every({"n0": _NODE, "n1": _OTHER}), DGXS, H100S),
        ],
        good=[(Every({"n0": _NODE, "n1": _NODE, "n2": _NOTHING}), DGXS, H100S)],
    ),
}
