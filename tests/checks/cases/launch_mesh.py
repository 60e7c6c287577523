"""What the checks of who can connect to whom must object to: the node, the direction, the interface, nobody else."""

from collections.abc import Callable

from fake_paths import Change, fleet

from ncclprobe.checks.launch.mesh import (
    ALL_STAYED,
    CALM,
    CROWD,
    HEALTHY,
    MOST_SUSPECTS,
    ONLY_DEFAULT,
    ONLY_NCCL,
    example,
)
from ncclprobe.facts.reach import Flood, Gathering, Paths, Trouble
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_ROLES = ("nccl0", "default")


def fails(when: Callable[[int, int], bool], outcome: str = "filtered", role: str = "nccl0", tries: int = 2) -> Change:
    """Let paths of one role fail for which `when` of their ends is true."""
    return lambda one, other, on: {"outcome": outcome, "tries": tries} if on == role and when(one, other) else None


def _lost(*lost: Trouble) -> Every[Gathering | Absent]:
    return Every({"n0": Gathering(1, 1.0, lost=lost)})


def flooded(paths: Every[Paths], node: str) -> Every[Paths]:
    """Return paths of which strangers flood one node."""
    flood = (Flood("10.0.0.99", 400),)
    return Every({**paths.by_node, node: replace(paths.by_node[node], floods=flood)})


def _of_2(one: int, other: int, _: str) -> dict[str, str] | None:
    return {"outcome": "filtered"} if 2 in (one, other) else None


def _5_to_6(one: int, other: int, _: str) -> dict[str, str]:
    return {"outcome": "refused" if (one, other) == (5, 6) else "late" if 1 in (one, other) else "ok"}


def _deaf() -> Every[Paths]:
    paths = fleet(4, lambda *_: None)
    silent = replace(paths.by_node["n2"], listeners=(), rows=(), unopened={"nccl0": "Cannot assign requested address"})
    return Every({**paths.by_node, "n2": silent})


_DEAD = example(*((a, b, "nccl0", "filtered") for a, b in ((0, 2), (1, 2), (2, 0), (2, 1))))
_ONE_WAY = example((0, 2, "nccl0", "refused"), (1, 2, "nccl0", "refused"))
_ONLY_GLOO = example((0, 2, "gloo0", "filtered"), (1, 2, "gloo0", "filtered"), (2, 0, "gloo0", "ok"))
_STEPS = sorted({each for power in range(8) for each in (1 << power, 256 - (1 << power))})
_NAMED = sorted(range(0, 64, 2), key=str)[:MOST_SUSPECTS]
_ODD_PAIRS = "; ".join(
    [*(f"FAIL fabric: n{n} -> n{n + 1} on n{n} n{n + 1}" for n in _NAMED), "FAIL unknown: n[6-9,44-63]"]
)
_INTO_1, _INTO_2, _INTO_3 = ((lambda _, other, node=node: other == node) for node in (1, 2, 3))
_3_AND_5_TO_6 = fleet(8, fails(lambda *ends: ends[1] == 3 or ends == (5, 6), "refused"), silent=[3])
_FLOODED = [flooded(fleet(3, fails(_INTO_1, how)), "n1") for how in ("filtered", "silent", "reset", "stalled-out")]
_ONCE = [fleet(8, fails(lambda *ends: ends == (5, 2), how, tries=1)) for how in ("filtered", "silent")]
_FLOODS = tuple(Flood(f"10.0.0.{number}", number) for number in range(1, 8))
_mesh = rows_of(paths=HEALTHY, gatherings=ALL_STAYED)

_BOTH = [Trouble(f"10.1.0.{rank + 1}", "reset", "", rank) for rank in range(2)]
_IDLE = Paths(2, {0: "n0", 1: "n1", 2: "n2"})
_RESET = Trouble("10.1.0.4", "reset", "closed the connection", 3)
_REFUSED_ONCE = fails(lambda *ends: ends == (5, 2), "refused", tries=1)
CASES: Cases = {
    "launch.mesh/tcp-mesh": [
        _mesh("UNKNOWN: rank 0 lost contact with the nodes", paths=fleet(2, fails(_INTO_1)), gatherings=_lost(*_BOTH)),
        _mesh("UNKNOWN: n2 had no node to connect to", paths=Every({**fleet(2, lambda *_: None).by_node, "n2": _IDLE})),
        _mesh("FAIL node: n2 on n2", paths=_DEAD), _mesh("FAIL node: n2 on n2", paths=_ONE_WAY),
        _mesh("WARN fabric: n0 -> n2 on n0 n2", paths=ONLY_NCCL), _mesh("WARN node: n2 on n2", paths=_ONLY_GLOO),
        _mesh("FAIL node: n1 on n1", paths=fleet(64, fails(lambda *ends: 1 in ends))),
        _mesh("FAIL node: n2 on n2", paths=fleet(8, fails(_INTO_2, "refused"))),
        _mesh("FAIL node: n2 on n2", paths=fleet(8, fails(lambda one, _: one == 2))),
        _mesh("FAIL fabric: n2 <-> n5 on n2 n5", paths=fleet(8, fails(lambda *ends: set(ends) == {2, 5}))),
        _mesh("FAIL fabric: n5 -> n2 on n5 n2", paths=fleet(8, _REFUSED_ONCE)),
        _mesh("FAIL fabric: n0 <-> n1 on n0 n1", paths=fleet(2, fails(lambda *_: True))),
        _mesh("FAIL fabric: all nodes", paths=fleet(4, fails(lambda *_: True, "unreachable"))),
        _mesh("FAIL node: n1 on n1; FAIL fabric: n5 -> n6 on n5 n6",
            paths=fleet(8, fails(lambda *ends: 1 in ends or ends == (5, 6)))),
        _mesh("FAIL fabric: n[0-2] on n0 n1 n2", paths=fleet(8, fails(lambda one, other: (one < 3) != (other < 3)))),
        _mesh("FAIL fabric: n3 on n3", paths=fleet(8, fails(_INTO_3, "wrong-peer"))),
        _mesh("FAIL node: n3 on n3", paths=fleet(4, fails(_INTO_3, "silent"), silent=[3])),
        _mesh("FAIL fabric: n5 -> n6 on n5 n6", paths=_3_AND_5_TO_6, gatherings=_lost(_RESET)),
        _mesh("FAIL fabric: n5 -> n6 on n5 n6", paths=fleet(8, _5_to_6)),  # found before the time was over
        _mesh("FAIL node: n2 on n2", paths=fleet(8, _of_2, _ROLES)),
        _mesh("WARN node: n2 on n2", paths=fleet(4, fails(_INTO_2, role="default"), _ROLES)),
        _mesh("FAIL node: n2 on n2", paths=fleet(4, _of_2, ("nccl0", "nccl1"))),
        _mesh("FAIL node: n2 on n2", paths=flooded(fleet(4, fails(lambda *ends: 2 in ends)), "n1")),
        # Up to a number they are named, and then counted.
        _mesh(_ODD_PAIRS, paths=fleet(64, fails(lambda one, other: one % 2 == 0 and other == one + 1))),
        _mesh("FAIL node: n100 on n100; FAIL node: n200 on n200; FAIL node: n7 on n7",
            paths=fleet(256, fails(lambda *ends: bool({7, 100, 200} & {*ends})), steps=_STEPS)),
        *(_mesh("UNKNOWN: 1 of 56 paths gave no answer and were tested only once", paths=each) for each in _ONCE),
        _mesh("UNKNOWN: 14 of 56 paths were not tested", paths=fleet(8, fails(lambda *ends: 1 in ends, "late"))),
        _mesh("UNKNOWN: 6 of 6 paths were not tested", paths=fleet(3, fails(lambda *_: True, "late"))),
        _mesh("UNKNOWN: n2 could listen on none of its interfaces", paths=_deaf()),
        _mesh("UNKNOWN: 2 of 6 paths ended before", paths=fleet(3, fails(_INTO_1, "hung-up"))),
        *(_mesh("UNKNOWN: launch.port", paths=each) for each in _FLOODED),
        _mesh(paths=_DEAD, gatherings=_lost(Trouble("10.0.0.3", "reset", "", 2))), _mesh(paths=ONLY_DEFAULT),
        *(_mesh(paths=fleet(nodes, lambda *_: None, _ROLES)) for nodes in (2, 3, 64)),
        _mesh(paths=fleet(8, fails(_INTO_2), _ROLES)),  # the other check's
        _mesh(paths=fleet(4, fails(lambda one, _: one == 1, "stalled-out"))),  # it does connect
    ],
    "launch.mesh/tcp-mesh-iface": [
        _mesh("FAIL node: n2 on n2", paths=fleet(8, fails(_INTO_2), _ROLES)),
        _mesh("UNKNOWN: 6 of 6 paths were not tested", paths=fleet(3, fails(lambda *_: True, "late"))),
        _mesh(), _mesh(paths=_DEAD), _mesh(paths=fleet(8, _of_2, _ROLES)),
        _mesh(paths=fleet(64, lambda *_: None, _ROLES)),
    ],
    "launch.port/port-flooded": [
        ("WARN unknown: MASTER_PORT", Every({"n0": Gathering(2, 1.0, floods=CROWD)}), HEALTHY),
        ("WARN unknown: MASTER_PORT", Every({"n0": Gathering(1, 1.0, floods=_FLOODS)}), Every({})),  # the busiest first
        (CALM, HEALTHY),
    ],
}  # fmt: skip
