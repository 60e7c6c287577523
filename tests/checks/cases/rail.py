"""What the checks of rails must object to, and what they must accept."""

from collections.abc import Callable
from typing import Any

from ncclprobe.checks.env.fixtures import setting
from ncclprobe.checks.pci.links import FULL, cards, nic
from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.checks.rail.rates import BAD, FOUR, NO_FABRIC, NO_PCI
from ncclprobe.checks.rail.ways import DEAD, EMPTY, SET
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.rails import RailFailure
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_CROSS = World(carries=lambda src, dst, gpu: float(src.rail == dst.rail))
_V1 = {"gid_type": "IB/RoCE v1"}
_IB: dict[str, Any] = {"link_layer": "InfiniBand", "gid_type": "", "lid": 7}
_IB_ENDS = {End(f"n{node}", rail): _IB for node in range(3) for rail in range(2)}
_LIMITED = {**_IB, "pkey": 0x7FFF}
_GID = World(carries=only(BAD), addresses={BAD: _V1})
_PKEY = World(carries=only(BAD), addresses={**_IB_ENDS, BAD: {**_IB, "pkey": 0x8001}})
_LARGE = World(small_only=(BAD,))
_ONE_WAY = World(carries=only(BAD, out=False))
_REFUSED = World(gpus=True, carries=lambda src, dst, gpu: 0.0 if gpu and BAD in (src, dst) else 1.0)
_LINK_LOCAL = {"gid": "fe80000000000000" + "0" * 15 + "1", "gid_index": 0}
_TWO = World(nodes=("n0", "n1"), carries=only(BAD), addresses={BAD: _LINK_LOCAL})


def _silent() -> Every[Rails]:
    return Every({node: replace(each, silent=("n2",)) for node, each in rails_of(World()).items() if node != "n2"})


class _Far(World, frozen=True):
    """Six nodes of which each half gets small messages of the other half late, on one rail."""

    def outcomes(self, one: End, other: End, *more: Any, **options: Any) -> Any:
        """As in any world, but for the delay."""
        seen = super().outcomes(one, other, *more, **options)
        apart = one.rail == 1 and (one.node in _NAMES[:3]) != (other.node in _NAMES[:3])
        return (replace(seen[0], half_round_trip_us=(40.0, 41.0)), seen[1]) if apart else seen


def _changed(change: Callable[[RailRow], RailRow], world: World = World()) -> Every[Rails]:  # noqa: B008 - frozen
    seen = rails_of(world)
    return Every({node: replace(each, rows=tuple(map(change, each.rows))) for node, each in seen.items()})


def _without_address(row: RailRow) -> RailRow:
    """Let one of the two ends not describe itself."""
    return replace(row, outcome=replace(row.outcome, own=None)) if row.leads else row


def _late_ways(row: RailRow) -> RailRow:
    """Tell no error, as soft-RoCE does: what is lost is sent again until the time is up."""
    failures = tuple(replace(each, kind="late", status=0) for each in row.outcome.failures)
    return replace(row, outcome=replace(row.outcome, failures=failures))


def _unacknowledged(row: RailRow) -> RailRow:
    """Do as emulated soft-RoCE: what was written arrived, but was not acknowledged in time."""
    if row.rail or not row.leads:
        return row
    rest = tuple(stream for stream in row.outcome.streams if stream.direction != "out")
    failure = RailFailure(step="write", kind="late", text="15 of 15 RDMA writes are not acknowledged", direction="out")
    return replace(row, outcome=replace(row.outcome, streams=rest, failures=(failure,)))


def _by_setting(index: str) -> Every[Settings | Absent]:
    return Every(dict.fromkeys(_NAMES, setting("NCCL_IB_GID_INDEX", index)))


_NAMES = tuple(f"n{number}" for number in range(6))
_WELL = rails_of(World())
_MORE = replace(_WELL.by_node["n1"], ports=(*_WELL.by_node["n1"].ports, _WELL.by_node["n1"].ports[0]))
_UNMET = RailFailure(step="open", kind="channel", text="failed to connect: No route to host")
_slow = rows_of(rails=rails_of(World(FOUR, carries=only(BAD, share=0.6, into=False))), fabrics=NO_FABRIC, buses=NO_PCI)


def _every(fact: Any) -> Every[Any]:
    return Every(dict.fromkeys(_NAMES, fact))


_CRAWLING = World(carries=lambda *_: 0.2)
_CARDS = cards(nic(0, FULL), nic(1, FULL))
_UNLINKED = Pci({name: replace(each, link=Absent("denied")) for name, each in _CARDS[1].devices.items()})
_END = "n1 rail 1 (mlx5_1:1) on n1"
_PAIR = _NAMES[:2]
_UNADDRESSED = _changed(_without_address, World(_PAIR, carries=only(BAD)))
_LATE_WAYS = _changed(_late_ways, World(_PAIR, carries=only(BAD, out=False)))
_SLOWER = {End(node, 1): {"rate_gbps": 240.0} for node in FOUR}


def _second_rail(src: End, dst: End, gpu: bool) -> float:
    return 0.6 if src.rail else 1.0


_UNEVEN = World(
    gpus=True,
    carries=lambda src, dst, gpu: 0.3 + src.rail / 9 + 0.1 * (dst.node > "n1") if gpu and BAD in (src, dst) else 1.0,
)
CASES: Cases = {
    "rail.slow": [
        _slow("WARN fabric: all nodes rail 1", rails=rails_of(World(FOUR, carries=_second_rail))),
        _slow(rails=rails_of(World(FOUR, carries=_second_rail, addresses=_SLOWER))),
        _slow("WARN unknown: all rails", rails=rails_of(_CRAWLING), fabrics=_every(_CARDS[0]), buses=_every(_CARDS[1])),
        _slow(rails=rails_of(_CRAWLING), fabrics=_every(_CARDS[0]), buses=_every(_UNLINKED)),
        _slow(
            "NOTE fabric: n0 rail 1 (mlx5_1:1) <-> n1 rail 1 (mlx5_1:1) on n0 n1",
            rails=rails_of(World(_PAIR, latency_us={BAD: 40.0})),
        ),  # the later of two
        _slow("NOTE fabric: n[3-5] rail 1 with all other nodes", rails=rails_of(_Far(_NAMES))),
        _slow("WARN link: out of n1 rail 1 (mlx5_1:1) on n1"),
        _slow(f"WARN link: {_END}", rails=rails_of(World(latency_us={BAD: 40.0}))),
        _slow(rails=rails_of(World(FOUR, carries=only(BAD)))), _slow(rails=rails_of(World(latency_us={BAD: 6.0}))),
    ],
    "rail.gpu": [(f"FAIL node: {_END}", rails_of(_REFUSED)), (f"WARN node: {_END}", rails_of(_UNEVEN))],
    "rail.unusable": [(rails_of(World()),), (rails_of(DEAD),)],
    "rail.dead": [
        (f"FAIL job: {_END}", rails_of(replace(_GID, addresses={BAD: _LINK_LOCAL})), _by_setting("0")),
        (f"FAIL job: {_END}", rails_of(EMPTY), _by_setting("5")), (f"FAIL node: {_END}", rails_of(_GID), SET),
        (f"FAIL link: {_END}", rails_of(replace(_PKEY, addresses={**_IB_ENDS, BAD: _LIMITED})), SET),
        (f"FAIL fabric: {_END}", rails_of(replace(_PKEY, addresses=dict.fromkeys(_IB_ENDS, _LIMITED))), SET),
        ("FAIL fabric: n0 rail 1 <-> n1 rail 1 on n0 n1", _UNADDRESSED, SET), (rails_of(World(), cross=True), SET),
        ("FAIL link: n0 rail 1 -> n1 rail 1 on n0 n1", _LATE_WAYS, SET), (f"FAIL node: {_END}", rails_of(EMPTY), SET),
        (f"FAIL node: {_END}", rails_of(World(carries=only(BAD), addresses={BAD: {"gid": "zz"}})), SET),
        (f"FAIL node: {_END}", rails_of(replace(_GID, addresses={BAD: _LINK_LOCAL})), SET),
        ("FAIL fabric: rails of all nodes", rails_of(_CROSS, cross=True), SET),
        (f"FAIL node: {_END}", rails_of(_TWO), SET), (f"FAIL fabric: {_END}", rails_of(_PKEY), SET),
        ("FAIL link: n1 on n1", rails_of(World(carries=only(BAD, End("n1", 0)))), SET),
        (f"FAIL fabric: {_END}", rails_of(_LARGE), SET), (f"FAIL link: {_END}", rails_of(_ONE_WAY), SET),
        (rails_of(World(addresses=_IB_ENDS)), SET),
    ],
    "rail.untried": [
        ("UNKNOWN: n0 8 of 99", Every({node: replace(each, planned=99) for node, each in _WELL.items()})),
        ("UNKNOWN: carried data, but not all of it in time: n0 to n1 on rail 0", _changed(_unacknowledged)),
        ("UNKNOWN: No route to host", rails_of(World(_NAMES[:4], local={BAD: _UNMET}))),
        ("UNKNOWN: n1 rail 2", Every({**_WELL.by_node, "n1": _MORE})),
        ("UNKNOWN: the results of n1 are unknown", Every({node: each for node, each in _WELL.items() if node != "n1"})),
        (_LATE_WAYS,), ("FAIL node: n2 on n2", _silent()), (rails_of(DEAD),),
    ],
    "rail.data": [("UNKNOWN: ", _changed(lambda row: replace(row, outcome=replace(row.outcome, arrivals=()))))],
}  # fmt: skip
