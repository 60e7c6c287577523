"""What the checks that the links of all nodes are equal must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import ETH1, having, over
from ncclprobe.checks.sync.addresses import OVER_SOCKETS
from ncclprobe.checks.sync.host import DGXS, H100S
from ncclprobe.checks.sync.links import (
    ANY,
    FAST,
    JUMBO,
    LIMITED,
    NO_FABRICS,
    NODE,
    ONE_DARK,
    RAILS,
    SET,
    SLOW,
    THREE_FAST,
    UNSET,
    changed,
    prefixed,
    with_mtu,
)
from ncclprobe.facts.infiniband import Fabric, RoceMarks, RoceQos
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_OVER_EFA = Every(dict.fromkeys(("n0", "n1"), over("AWS Libfabric")))


def _second(mtu: int) -> Interfaces:
    """Return a second interface with this MTU."""
    return Interfaces((*JUMBO.all, replace(ETH1, mtu=mtu)))


_OPEN = changed(FAST, pkeys=((0, 0xFFFF),))
_APART = changed(FAST, pkeys=((0, 0x8001), (1, 0xFFFF)))
_HIDDEN = Absent("the driver does not show it", "Missing")
_UNSET = RoceQos({name: replace(SET, slows=()) for name in NODE.ports})
_OTHER = RoceQos({name: replace(SET, traffic_class="") for name in NODE.ports})
_NOTHING = RoceQos({name: RoceMarks(_HIDDEN, _HIDDEN, _HIDDEN) for name in NODE.ports})


_HALF_TOLD = RoceQos({name: replace(SET, slows=_HIDDEN, notifies=(0, 3)) for name in NODE.ports})
_ASLEEP = Fabric((FAST.devices[0], *changed(Fabric(FAST.devices[1:]), state="DOWN", physical="Sleep").devices))


_roce_qos = rows_of(marks=Every({"n0": NODE, "n1": NODE, "n2": _UNSET}), machines=DGXS, gpus=H100S)
CASES: Cases = {
    "sync.network/rate": [
        ("FAIL fabric: nodes", Every({"n0": FAST, "n1": SLOW}), UNSET, DGXS, H100S),
        ("WARN fabric: n0 on n0", Every({"n0": FAST, "n1": SLOW, "n2": SLOW, "n3": SLOW}), UNSET, DGXS, H100S),
        (Every({**THREE_FAST, "n3": FAST}), UNSET, DGXS, H100S),
    ],
    "sync.network/port-state": [
        ("WARN link: n[2-3] mlx5_1:1 on n2 n3", Every({**THREE_FAST, "n2": ONE_DARK, "n3": _ASLEEP}), UNSET, DGXS,
            H100S),
        ("FAIL link: n1 mlx5_1:1 on n1", Every({"n0": FAST, "n1": ONE_DARK}), UNSET, DGXS, H100S),
        (Every({**THREE_FAST, "n3": FAST}), UNSET, DGXS, H100S),
        (Every(dict.fromkeys(("n0", "n1", "n2"), ONE_DARK)), UNSET, DGXS, H100S),
        (Every({**THREE_FAST, "n3": Fabric()}), UNSET, DGXS, H100S),
    ],
    "sync.network/mtu": [
        ("WARN image: eth0", Every({"n0": JUMBO, "n1": with_mtu(1500)}), UNSET, ANY, NO_FABRICS, OVER_SOCKETS),
        (Every({"n0": _second(1500), "n1": _second(9000)}), UNSET, ANY, NO_FABRICS, _OVER_EFA),
    ],
    "sync.network/pkey": [
        ("FAIL fabric: n[0-1] on n0 n1", Every({"n0": LIMITED, "n1": LIMITED, "n2": _OPEN}), UNSET),
        (Every({"n0": LIMITED}), UNSET),
        ("FAIL fabric: n2 on n2", Every({"n0": _OPEN, "n1": _OPEN, "n2": _APART}), UNSET),
        ("FAIL fabric: nodes", Every({"n0": _OPEN, "n1": _APART}), UNSET),
        ("WARN fabric: n2 on n2", Every({"n0": _OPEN, "n1": _OPEN, "n2": LIMITED}), UNSET),
        (Every({"n0": _OPEN, "n1": _OPEN}), UNSET),
        # env.hca says of each node that it has no key at this index
        (Every({"n0": _OPEN, "n1": _OPEN}), Every(dict.fromkeys(("n0", "n1"), having(NCCL_IB_PKEY="7")))),
    ],
    "sync.network/subnet-prefix": [
        ("WARN fabric: mlx5_1:1", Every({"n0": RAILS, "n1": prefixed("fec0:0:0:1", "fec0:0:0:9")}), UNSET, DGXS, H100S),
        (Every({"n0": FAST}), UNSET, DGXS, H100S),
    ],
    "sync.network/roce-qos": [
        _roce_qos(
            "WARN image: n2 mlx5_0:1, n2 mlx5_1:1 on n2", marks=Every({"n0": NODE, "n1": NODE, "n2": _HALF_TOLD})),
        _roce_qos(marks=Every({"n0": NODE, "n1": RoceQos({"mlx5_0:1": SET})})),
        _roce_qos("WARN image: n2 mlx5_0:1, n2 mlx5_1:1 on n2"),
        _roce_qos("WARN image: mlx5_0:1, mlx5_1:1", marks=Every({"n0": NODE, "n1": _OTHER})),
        _roce_qos(marks=Every({"n0": NODE, "n1": NODE, "n2": _NOTHING})),
    ],
}  # fmt: skip
