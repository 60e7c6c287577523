"""What the checks of which nodes came, and of where they stand, must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.launch import TWO_NODES
from ncclprobe.checks.sync.roster import TWO_OF_THREE, below
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.placement import Placement
from ncclprobe.facts.reach import Flood, Gathering, HostFailure, StartedHosts, Trouble
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_FOUR = replace(TWO_NODES, nnodes=4, world_size=32, names=("gpu01", "gpu02", "gpu03", "gpu04"))


def four(*ranks: int, **changes: Any) -> Every[Any]:
    """Return, of a job of four nodes, those with these node ranks."""
    return Every({f"gpu0{r + 1}": replace(_FOUR, rank=8 * r, node_rank=r, **changes) for r in ranks})


def _waited(*troubles: Trouble, waited_s: float = 60.0, node: str = "gpu01", **more: Any) -> Every[Any]:
    return Every({node: Gathering(3, waited_s, troubles, **more)})


def at(**names: str) -> Placement:
    """Return a node with these levels; `place` is a path."""
    kinds = {"group": "placement group", "host": "physical host"}
    return Placement(
        tuple(
            PlacementLevel(kinds.get(kind, kind), each, f"told by {kind}")
            for kind, name in names.items()
            for each in (name.split("/") if kind == "place" else [name])
        )
    )


def placed(*nodes: Placement | Absent) -> Every[Any]:
    """Return nodes that stand there."""
    return Every({f"n{i}": each for i, each in enumerate(nodes)})


def _below(*paths: str) -> Every[Any]:
    return placed(*(at(place=path) for path in paths))


_BABBLE = Trouble("10.77.0.2", "foreign", "it said 'GET / HTTP/1.1'")
_HALF = Trouble("10.77.0.2", "reset", "closed the connection within a message of 90210 bytes", 1)
_STOPPED = Trouble("10.77.0.2", "silent", "stopped within a message of 90210 bytes", 1)
_MANY = tuple(Trouble(f"10.0.0.{i}", "foreign", "x") for i in range(20))
_RESET, _SILENT = Trouble("10.0.0.2", "reset", "closed", 1), Trouble("10.0.0.4", "silent", "said nothing", 3)
_LATE = Trouble("10.0.0.2", "late", "left because rank 0 had not answered in time", 1)
_FLOOD = (Flood("10.0.0.99", 7000),)
_NAMES = tuple(f"n{i}" for i in range(40))
_40 = Launch("slurm", 0, 40, 0, 1, 40, 0, names=_NAMES)
_OTHERS = f"FAIL unknown: n[1-39] on {' '.join(_NAMES[1:])}"
_SOON = "UNKNOWN: did not join, but rank 0 waited no longer"
_ALL = four(0, 1, 2, 3)
_EAST, _WEST = at(region="r", zone="a", group="g"), at(region="r", zone="b", group="h")
_UNNAMED = replace(_FOUR, node_rank=None, names=())
_HALVES = [replace(_HALF, peer=f"10.0.0.{9 - n}", node_rank=n) for n in (1, 2, 3)]
_UNNAMED_4 = replace(_FOUR, node_rank=None)
_FULL_NAMES = Every(dict.fromkeys(("gpu01.a.b", "gpu03.a.b", "gpu04"), _UNNAMED_4))
_BY_NAME = Every({"gpu01.cluster": replace(_FOUR, node_rank=None), "gpu03": _FOUR})
_OTHER_WORLD = Every({**_ALL.by_node, "gpu03": replace(_FOUR, node_rank=2, nnodes=4096)})

_KINDS: tuple[Any, ...] = ("lost", "absent", "silent", "version", "ssh", "lost")
_FAILED = tuple(HostFailure(f"h{9 - i}", kind, f"h{9 - i} said {kind}") for i, kind in enumerate(_KINDS))
_UNUSED = "; ".join(["WARN unknown: h[4,9] on h9 h4", *(f"WARN unknown: h{n} on h{n}" for n in (8, 7, 6, 5))])
_TWO_AND_ONE = "FAIL unknown: gpu[02-03] on gpu02 gpu03; FAIL unknown: gpu04 on gpu04"
_GONE = replace(_RESET, peer="10.0.0.9", detail="gone", node_rank=None)
CASES: Cases = {
    "sync.nodes/node-missing": [
        (four(0, 2, 3), _waited(came=(1,))),
        ("FAIL unknown: gpu02 on gpu02", _FULL_NAMES, _waited(node="gpu04")),
        ("FAIL unknown: gpu[02-04] on gpu02 gpu03 gpu04", four(0), _waited(*_HALVES)),
        ("UNKNOWN: waited no longer than 55.0 s of 60: the", four(0, 2, 3), _waited(waited_s=55.0, allowed_s=60.0)),
        ("FAIL unknown: gpu02 on gpu02", four(0, 2, 3), _waited(waited_s=59.9, allowed_s=60.0)),
        ("FAIL unknown: n1 on n1", TWO_OF_THREE, Every({"n0": Gathering(2, 60.0, (_BABBLE,))})),
        ("FAIL unknown: n1 on n1", TWO_OF_THREE, Every({"n0": Gathering(2, 60.0, (_HALF,))})),
        (_TWO_AND_ONE, four(0), _waited(replace(_HALF, peer="10.77.0.9", detail="left", node_rank=2), _HALF)),
        # who came half way, and who never came
        ("FAIL unknown: gpu02 on gpu02; FAIL unknown: gpu04 on gpu04", four(0, 2), _waited(_STOPPED)),
        ("FAIL unknown: gpu04 on gpu04", four(0, 1, 2), _waited(_BABBLE)),
        ("FAIL unknown: node [1-2] on node 1 node 2", four(0, 3, names=()), _waited()),
        ("FAIL unknown: gpu[02,04] on gpu02 gpu04", _BY_NAME, _waited(node="gpu01.cluster")),
        ("FAIL unknown: nodes", Every({"a": _UNNAMED}), _waited(node="a")),
        (_OTHERS, Every({"n0": _40}), _waited(*_MANY, node="n0")),
        ("FAIL unknown: node 1 on node 1", Every({"n0": TWO_NODES}), _waited(allowed_s=60.0, node="n0")),
        ("NOTE unknown: MASTER_PORT", _ALL, _waited(_BABBLE)),  # a stranger among complete nodes
        (_SOON, Every({"n0": TWO_NODES}), _waited(waited_s=55.0, allowed_s=60.0, node="n0")),
        (_SOON, Every({"n0": TWO_NODES}), _waited(waited_s=2.0, allowed_s=2.0, node="n0")),
        ("UNKNOWN: gpu02", four(0, 2, 3), _waited(waited_s=30.0, floods=_FLOOD)),
        (_ALL, _waited(waited_s=30.0, floods=_FLOOD)),
        (_ALL, _waited(lost=(_RESET,))),  # it is lost and not missing
        (_OTHER_WORLD, _waited()),
    ],
    "sync.nodes/host-unused": [(_UNUSED, Every({"n0": Absent("?"), "n1": StartedHosts(9, _FAILED)}))],
    "sync.nodes/node-lost": [
        *(("UNKNOWN: gpu02 left too late", _ALL, _waited(lost=(each,), floods=_FLOOD)) for each in (_RESET, _LATE)),
        ("UNKNOWN: 10.0.0.2 left too late", _ALL, _waited(lost=(replace(_LATE, node_rank=None),))),
        ("FAIL unknown: gpu02 on gpu02; FAIL unknown: gpu04 on gpu04", _ALL, _waited(lost=(_RESET, _SILENT))),
        ("FAIL unknown: gpu04 on gpu04", _ALL, _waited(lost=(_LATE, _SILENT))),
        ("UNKNOWN: gpu02 left too late to report it to rank 0:", _ALL, _waited(lost=(_LATE,))),
        ("UNKNOWN: gpu04 left too late to report it to rank 0", _ALL, _waited(lost=(_SILENT,), floods=_FLOOD)),
        ("FAIL unknown: 10.0.0.9,gpu02 on gpu02 10.0.0.9", _ALL, _waited(lost=(_RESET, _GONE))),
        (four(0, 1), _waited()),  # missing
    ],
    "sync.location/placement": [
        ("WARN job: n3 on n3", placed(*[at(zone="a", group="g")] * 3, at(zone="a", group="h"))),
        ("NOTE unknown: n[0-1,3-5] on n0 n1 n3 n4 n5", below("s0", "s1", "s2", "s3", "s4", "s5", "s2")),
        ("NOTE unknown: n[1,3] on n1 n3", placed(at(host="h1"), at(host="h2"), Placement(), at(host="h2"))),
        ("WARN job: n2 on n2", placed(_EAST, _EAST, _WEST)),
        ("WARN job: n[0-1] on n0 n1", placed(_EAST, _WEST)),  # no majority: neither is named before the other
        ("WARN job: n2 on n2", placed(at(zone="a", group="g"), at(zone="a", group="g"), at(zone="a", group="h"))),
        ("WARN job: n2 on n2", _below("b1/s1", "b1/s1", "b2/s1")),
        ("WARN job: n3 on n3; NOTE unknown: n2 on n2", _below("b1/s1", "b1/s1", "b1/s2", "b2/s1")),
        ("NOTE unknown: n[0-1] on n0 n1", below("s1", "s2")), ("WARN job: n2 on n2", _below("b1/s1", "b1/s1", "s9")),
        ("NOTE unknown: n[0-1] on n0 n1", placed(at(host="h1"), at(host="h1"), at(host="h2"))),
        # what is known to be wrong is said
        ("WARN job: n[0-1] on n0 n1", placed(at(zone="a"), at(zone="b"), Placement())),
        ("UNKNOWN: the placement of n1 is unknown; set NCCLPROBE_PLACEMENT", placed(at(zone="a"), Placement())),
        ("UNKNOWN: placement of n[1-2] is", placed(at(zone="a"), Placement(), Absent("refused"))),
        (placed(_EAST, _EAST),), (_below("b1/s1", "b1/s1", "b2/s1", "b2/s1"),),
        (_below("b1/s1", "b1/s1", "s9", "s9"),),  # of other depths, from the switch above the node
    ],
}  # fmt: skip
