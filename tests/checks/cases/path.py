"""What the checks of paths between nodes must object to, and what they must accept."""

import random
from typing import Any

from fake_paths import Change, fleet

from ncclprobe.checks.launch.mesh import HEALTHY
from ncclprobe.checks.path import NICS, UNCROWDED
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.reach import Flood, Gathering
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.localise.reach import SLOW
from ncclprobe.model.snapshot import Absent, Every
from tests.checks.cases import Cases, rows_of
from tests.checks.cases.launch_mesh import flooded


def nics(nodes: int, speed_mbps: int | None = None, mtu: int = 1500, up: bool = True, **more: Any) -> Every[Any]:
    """Return eth1 of each node."""
    flags = frozenset({"up", "running"} if up else {"up"})
    eth1 = Interface("eth1", 2, flags, mtu, speed_mbps, **{"virtual": False, **more})
    return Every({f"n{rank}": Interfaces((eth1,)) for rank in range(nodes)})


def out_of(node: int, **changes: Any) -> Change:
    """Change all paths out of a node."""
    return lambda one, *_: changes if one == node else None


def on_one(source: int, sink: int, **changes: Any) -> Change:
    """Change one direction of one path."""
    return lambda one, other, _: changes if (one, other) == (source, sink) else None


def both_ways(node: int, **changes: Any) -> Change:
    """Change all paths of a node."""
    return lambda one, other, _: changes if node in (one, other) else None


def holed(**first: Any) -> Change:
    """Lose large packets out of node 1; `first` is what its path to node 0 shows besides."""

    def change(one: int, other: int, _: str) -> dict[str, Any] | None:
        if one == 1:
            return {"outcome": "stalled-out"} | (first if other == 0 else {})
        return {"outcome": "stalled-back"} if other == 1 else None

    return change


def _scattered(seed: int) -> Change:
    noise = random.Random(seed)
    return lambda *_: {"rate_gbps": noise.uniform(5, 10)}


def _routed(interface: str, *more: Route, rules: Any = ()) -> Routes:
    return Routes((Route("10.1.0.0/16", interface),), rules, more)


_DEFAULT = Route("0.0.0.0/0", "eth1", "10.1.0.254", table="101")
_RULED = _routed("eth0", _DEFAULT, rules=(Rule(100, "101", "10.1.0.2/32"),))
_BY_ETH1 = _routed("eth1")
_CROWD = Every({"n1": Gathering(2, 1.0, floods=(Flood("10.0.0.99", 7900),))})
_NOTHING = dict.fromkeys(("rate_gbps", "resent", "segments", "rtt_s", "path_mtu"))
_UNTRIED = both_ways(2, outcome="late", rate_gbps=None, rtt_s=None, resent=None)
_NO_PATH = "UNKNOWN: no path between nodes was measured"


def _shaped(one: int, other: int, _: str) -> dict[str, Any] | None:
    return {"rate_gbps": 0.5, "resent": 300 if other == 2 else 0} if one == 1 else None


def _second(routes: Routes) -> Every[Any]:
    """Return the routes of three nodes, of which the second has these."""
    return Every({"n0": _BY_ETH1, "n1": routes, "n2": _BY_ETH1})


_rate = rows_of(paths=HEALTHY, nics=NICS, gatherings=UNCROWDED)
_route = rows_of(paths=fleet(3, lambda *_: None), routes=_second(_routed("eth0")), nics=NICS)
CASES: Cases = {
    "path.mtu": [
        ("FAIL link: n1 on n1", fleet(3, holed()), nics(3, mtu=9000)),
        ("FAIL fabric: n1 -> n0 on n1 n0", fleet(2, holed()), NICS),
        ("FAIL link: n1 on n1", fleet(3, holed(passes=1280)), NICS),
        ("FAIL node: n1 on n1", fleet(3, out_of(1, outcome="stalled-out", refused=True)), NICS),
        ("FAIL link: n3 on n3", fleet(8, both_ways(3, outcome="stalled-out")), NICS),
        (_NO_PATH, fleet(4, lambda *_: {"outcome": "filtered"}), NICS),
        (fleet(3, holed(outcome="ok", rate_gbps=0.002, streams=2)), NICS),  # only slow
        (fleet(8, both_ways(3, outcome="filtered")), NICS), (fleet(4, _UNTRIED), NICS),
    ],
    "path.rate": [
        _rate("WARN fabric: n0 -> n1 on n0 n1", paths=fleet(3, on_one(0, 1, rate_gbps=0.2))),
        _rate("WARN fabric: all nodes", paths=fleet(3, lambda *_: {"rate_gbps": 0.9}), nics=nics(3, 10_000)),
        _rate("WARN link: n1 on n1", paths=fleet(8, both_ways(1, rate_gbps=0.9), steps=(1, 2))),
        _rate("WARN link: n1 on n1", paths=fleet(3, out_of(1, rate_gbps=0.9))),
        _rate("WARN fabric: n1 -> n0 on n1 n0", paths=fleet(2, out_of(1, rate_gbps=0.9))),
        _rate("WARN fabric: n0 <-> n1 on n0 n1", paths=fleet(2, lambda *_: {"rate_gbps": 0.9}), nics=nics(2, 10_000)),
        # A full shaper keeps the shortest round trip above what a stream of a second may be judged by.
        _rate("FAIL link: n1 on n1", paths=fleet(3, out_of(1, rate_gbps=0.0019, rtt_s=7.4e-3, streams=2))),
        _rate("FAIL fabric: n1 -> n0 on n1 n0", paths=fleet(3, holed(outcome="ok", rate_gbps=0.002, streams=2))),
        _rate("FAIL link: n1 on n1", paths=fleet(4, both_ways(1, rate_gbps=0.001, streams=2, resent=900))),
        _rate("WARN link: n1 on n1", paths=fleet(3, both_ways(1, rate_gbps=0.07, streams=1))),
        _rate("FAIL link: n1 on n1", paths=fleet(3, both_ways(1, rate_gbps=0.07, streams=2))),
        _rate("WARN link: n1 on n1", paths=fleet(3, both_ways(1, rate_gbps=0.9, streams=2))),
        _rate("WARN fabric: n1 on n1", paths=fleet(3, both_ways(1, rate_gbps=0.02, streams=2)), gatherings=_CROWD),
        _rate("FAIL link: n2 on n2", paths=fleet(3, both_ways(2, rate_gbps=0.02, streams=2)), gatherings=_CROWD),
        _rate("WARN link: n1 on n1", paths=fleet(4, _shaped)),
        _rate("NOTE fabric: n1 -> n2 on n1 n2", paths=fleet(8, on_one(1, 2, rate_gbps=9 * 0.9 * SLOW))),
        _rate(_NO_PATH, paths=fleet(4, lambda *_: _NOTHING)), _rate(nics=nics(3, 10_000)),
        _rate(paths=fleet(4, both_ways(1, rate_gbps=0.001, streams=1, resent=900))),  # path.loss says it
        _rate(paths=fleet(8, out_of(1, rate_gbps=0.5, resent=300))),  # so it does of this
        _rate(paths=fleet(3, out_of(1, rate_gbps=0.02, rtt_s=7.4e-3))),  # far: path.delay says so
        _rate(paths=fleet(2, lambda *_: {"rate_gbps": 0.9}), nics=nics(2, 10_000, virtual=True)),
        _rate(paths=fleet(2, lambda *_: {"rate_gbps": 0.9})),
        _rate(paths=fleet(8, lambda *_: {"rate_gbps": 14.0}), nics=nics(8, 400_000)),  # one stream fills no 400 Gb/s
        _rate(paths=fleet(8, lambda *_: {"rate_gbps": 1.0, "rtt_s": 0.02}), nics=nics(8, 10_000)),
        *(_rate(paths=fleet(16, _scattered(seed), steps=(1, 2)), nics=nics(16, 10_000)) for seed in range(5)),
        _rate(paths=fleet(4, _UNTRIED)),
        _rate(paths=flooded(fleet(4, both_ways(1, rate_gbps=0.01, rtt_s=0.5)), "n1")),  # by strangers
    ],
    "path.loss": [
        ("WARN fabric: n0 -> n1 on n0 n1", fleet(3, on_one(0, 1, resent=600)), NICS),
        ("WARN link: n1 on n1", fleet(8, out_of(1, rate_gbps=0.5, resent=300)), NICS),
        # One path into a lossy node came through by luck, which does not hide the node.
        ("WARN link: n1 on n1", fleet(4, lambda one, other, _: {"resent": 290} if other == 1 and one else None), NICS),
        ("NOTE fabric: n1 -> n2 on n1 n2", fleet(8, on_one(1, 2, resent=170)), NICS),
        (_NO_PATH, fleet(4, lambda *_: _NOTHING), NICS), (fleet(3, out_of(1, resent=57)), NICS),
        (fleet(3, out_of(1, resent=2, segments=150)), NICS),
        (fleet(8, lambda *_: {"resent": 2, "segments": 110}), NICS),
        (fleet(8, out_of(1, outcome="stalled-out", resent=40, segments=200)), NICS),  # only large packets
        (fleet(4, _shaped), NICS), (fleet(4, _UNTRIED), NICS),
    ],
    "path.delay": [
        ("WARN fabric: n1 on n1", fleet(3, both_ways(1, rtt_s=0.02))),
        ("WARN fabric: n0 <-> n1 on n0 n1", fleet(2, lambda *_: {"rtt_s": 0.024})),
        (_NO_PATH, fleet(4, lambda *_: _NOTHING)),
        # racks and buildings
        (fleet(8, lambda one, other, _: {"rtt_s": 9e-4} if (one < 4) != (other < 4) else None),), (fleet(4, _UNTRIED),),
    ],
    "path.route": [
        _route("WARN image: n1 on n1", routes=Every({"n0": Absent("?"), "n1": _routed("eth0"), "n2": _routed("eth1")})),
        _route("WARN image: n1 on n1"), _route("WARN image: n1 on n1", nics=nics(3)),
        _route("UNKNOWN: no node's routes",
            routes=Every(dict.fromkeys(("n0", "n1", "n2"), Routes((), Absent("ip: not there"))))),
        _route(nics=nics(3, up=False)),  # an interface that lost its routes
        _route(nics=nics(3, kind="bridge")), _route(routes=_second(_RULED)),
        _route(paths=fleet(3, lambda *_: None, roles=("default",)), routes=_second(_routed("eth7"))),
    ],
}  # fmt: skip
