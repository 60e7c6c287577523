"""Faults of rails, planted in fleets of several sizes: each named with its direction, and no other node blamed.

The fleets answer as :mod:`fake_rails` computes; the search, the retests and the judging are the real ones. What the
checks say of given answers is in `tests.checks.cases.rail`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import planted_rails
from fake_rails import FakeNodes, names, played, verdicts

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.cluster.rails.node import RailsOrder
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.findings import Severity, Status, Verdict
from ncclprobe.model.rails import RailFailure, RailOutcome, RailTest
from ncclprobe.model.values import replace
from tests.each_row import each_row

BAD = End("n1", 2)
WHERE = "n1 rail 2 (mlx5_2:1)"
BETWEEN = "rail.dead n0 rail 2 <-> n1 rail 2 on n0 n1"
MEMLOCK_OF_ALL = f"rail.unusable n[0-5] rail 0-3 on {' '.join(names(6))}"
DEAD, SLOW = f"rail.dead {WHERE} on n1", f"rail.slow {WHERE} on n1"
LINK_LOCAL = {"gid": "fe80" + "0" * 27 + "1", "gid_index": 0}
IB: dict[str, Any] = {"link_layer": "InfiniBand", "gid_type": ""}
TEST = RailTest(message_bytes=1 << 20, messages=64, directions=("out", "in", "both"))


def told(found: Mapping[str, Verdict]) -> list[str]:
    """Return the check, subject and nodes of every finding that is no note, and the checks that are unknown."""
    findings = ((verdict, each) for verdict in found.values() for each in verdict.findings)
    return sorted(
        [
            *(
                " ".join([verdict.id, each.subject, *(["on", *each.nodes] if each.nodes else [])])
                for verdict, each in findings
                if each.severity is not Severity.NOTE
            ),
            *(f"{verdict.id} unknown" for verdict in found.values() if verdict.status is Status.UNKNOWN),
        ]
    )


class Changed(World, frozen=True):
    """A fleet of which `change` changes what both ends of a test at `where` see: it gets that, the ends, the test and
    whether the memory is a GPU's.
    """

    change: Any = None
    where: Sequence[End] = (BAD,)

    def outcomes(
        self, one: End, other: End, test: RailTest = TEST, gpu: bool = False
    ) -> tuple[RailOutcome, RailOutcome]:
        """As in any world, but for the change."""
        seen = super().outcomes(one, other, test, gpu)
        return self.change(seen, (one, other), test, gpu) if {one, other} & {*self.where} else seen


def failing(failure: RailFailure, when: Callable[[RailTest, bool], bool]) -> Any:
    """Return what both ends see where BAD fails by itself."""
    other = RailFailure(step="open", kind="peer", text="the other end failed first")

    def change(seen: Any, ends: Any, test: RailTest, gpu: bool) -> Any:
        told_by = zip(seen, ends, strict=True)
        failed = (RailOutcome(asked=one.asked, failures=(failure if end == BAD else other,)) for one, end in told_by)
        return tuple(failed) if when(test, gpu) else seen

    return change


def nth(number: int) -> Callable[[RailTest, bool], bool]:
    """Return what is true of one test of those that are seen."""
    seeds: list[int] = []

    def when(test: RailTest, _: bool) -> bool:
        seeds.extend([] if test.seed in seeds else [test.seed])
        return seeds.index(test.seed) == number

    return when


def dead_in(number: int, nodes: int = 4) -> Any:
    """Return what both ends see if the way is dead in one test."""
    when, dead = nth(number), World(names(nodes), 4, carries=only(BAD))
    return lambda seen, ends, test, gpu: dead.outcomes(*ends, test) if when(test, gpu) else seen


def _only_one_way(seen: RailOutcome) -> RailOutcome:
    """Fail while data is sent both ways."""
    if all(stream.direction != "both" for stream in seen.streams):
        return seen
    streams = tuple(stream for stream in seen.streams if stream.direction != "both")
    arrivals = tuple(replace(one, arrived_bytes=0) if one.direction == "both" else one for one in seen.arrivals)
    lost = RailFailure(step="write", kind="completion", text="retry exceeded", direction="both", status=12)
    return replace(seen, streams=streams, arrivals=arrivals, failures=(lost,))


def _small_are_lost(seen: Any, *_: Any) -> Any:
    small = RailFailure(step="latency", kind="completion", text="transport retry counter exceeded", status=12)
    return tuple(replace(each, half_round_trip_us=(), failures=(small,)) for each in seen)


def _small_too(seen: Any, *_: Any) -> Any:
    small = RailFailure(step="latency", kind="late", text="no answer came")
    return tuple(replace(each, failures=(small, *each.failures)) for each in seen)


class Nodes(FakeNodes):
    """Nodes of which each has so many of the rails, and n1 changes what it answers to orders of one kind."""

    def __init__(self, world: World, counts: Sequence[int] = (), do: str = "", change: Any = None) -> None:
        super().__init__(world)
        self._counts, self._do, self._change = counts, do, change

    def answer(self, rank: int, order: RailsOrder) -> dict[str, Any]:
        """As the others do, but for that."""
        said = super().answer(rank, order)
        for kind in ("ports", "rates_gbps", "gpus") if order.do == "list" and self._counts else ():
            said[kind] = said[kind][: self._counts[rank]]
        if rank == 1 and order.do == self._do:
            self._change(said)
        return said


def slower(share: float, nodes: int, slow: Sequence[End], rate_gbps: float = 200.0) -> World:
    """Return a fleet in which what touches `slow` ends carries a share, and their ports say that rate."""
    some = frozenset(slow)
    rates = {end: {"rate_gbps": rate_gbps} for end in slow}
    return World(names(nodes), 6, carries=lambda src, dst, _: share if some & {src, dst} else 1.0, addresses=rates)


def of_rails(nodes: int, *rails: int) -> list[End]:
    """Return these rails of all nodes."""
    return [End(node, rail) for node in names(nodes) for rail in rails]


def _slow_gpu(src: End, dst: End, gpu: bool) -> float:
    return 0.3 if gpu and BAD in (src, dst) else 1.0


def _two_faults(src: End, dst: End, gpu: bool) -> float:
    return 0.0 if End("n2", 0) in (src, dst) else 0.4 if BAD in (src, dst) else 1.0


def _uplink(src: End, dst: End, gpu: bool) -> float:
    return 0.4 if src.rail == 1 and (src.node in names(3)) != (dst.node in names(3)) else 1.0


def _slow_among_slower(src: End, dst: End, gpu: bool) -> float:
    return 0.2 if End("n1", 4) in (src, dst) else 0.5 if src.rail == 4 else 1.0


MEMLOCK = RailFailure(step="open", kind="refused", text="Cannot allocate memory", call="ibv_reg_mr_iova2", errno=12)
HANGS = RailFailure(step="open", kind="hangs", text="ibv_open_device did not return in 5 s")
REFUSED = RailFailure(step="open", kind="refused", text="not supported", call="ibv_reg_dmabuf_mr", errno=95)
NO_GID = RailFailure(step="open", kind="missing", text="the GID at index 5 is empty", call="ibv_query_gid")
EVERY_IB = dict.fromkeys(of_rails(8, 0, 1, 2, 3), IB)
OF_TWO_KEYS = {End("n0", 0): {**IB, "pkey": 0x8001}, End("n1", 0): {**IB, "pkey": 0x8002}}
NO_MEMORY = dict.fromkeys(of_rails(6, 0, 1, 2, 3), MEMLOCK)
BOTH_LOCAL = {End(node, 2): LINK_LOCAL for node in names(2)}
SLOW_END, REFUSES = only(End("n1", 1), share=0.4), failing(REFUSED, lambda _, gpu: gpu)
DEAD_BESIDE = only(End("n0", 0), End("n0", 1), End("n2", 1))


def world(nodes: int = 4, rails: int = 4, **changes: Any) -> World:
    """Return a fleet with these changes."""
    return World(names(nodes), rails, **changes)


FAULTS: dict[str, tuple[list[str], World]] = {
    **{f"{nodes} healthy nodes": ([], world(nodes)) for nodes in (2, 3, 4, 20)},
    "dead": ([DEAD], world(carries=only(BAD))),
    "whole node": (["rail.dead n1 on n1"], world(carries=only(*(End("n1", rail) for rail in range(4))))),
    "dead into": ([DEAD], world(carries=only(BAD, out=False))),
    "dead out of": ([DEAD], world(carries=only(BAD, into=False))),
    "link-local GID": ([DEAD], world(carries=only(BAD), addresses={BAD: LINK_LOCAL})),
    "RoCE v1": ([DEAD], world(carries=only(BAD), addresses={BAD: {"gid_type": "IB/RoCE v1"}})),
    "empty GID": ([DEAD], world(carries=only(BAD), addresses={BAD: {"gid": "0" * 32}})),
    "P_Key": ([DEAD], world(carries=only(BAD), addresses={**EVERY_IB, BAD: {**IB, "pkey": 0x8005}})),
    "MTU of a switch": ([DEAD], world(small_only=(BAD,))),
    "memlock": ([f"rail.unusable {WHERE} on n1"], world(local={BAD: MEMLOCK})),
    "memlock of all": (["rail.data unknown", MEMLOCK_OF_ALL], world(6, local=NO_MEMORY)),
    "slow": ([SLOW], world(7, carries=only(BAD, share=0.4))),
    "slow among 20": ([SLOW], world(20, carries=only(BAD, share=0.4))),
    "slow out of": ([f"rail.slow out of {WHERE} on n1"], world(7, carries=only(BAD, share=0.7, into=False))),
    "late": ([SLOW], world(latency_us={BAD: 30.0})),
    "wrong bytes": ([f"rail.data into {WHERE} on n1"], world(wrong={BAD: 8})),
    "wrong bytes of one partner": (["rail.data into n2 rail 0 (mlx5_0:1) on n2"], world(4, 2, wrong={End("n2", 0): 3})),
    "wrong bytes of a rail": (["rail.data rail 1 of all nodes"], world(4, 2, wrong=dict.fromkeys(of_rails(4, 1), 5))),
    "GPUDirect": ([f"rail.gpu {WHERE} on n1"], world(gpus=True, carries=_slow_gpu)),
    "GPUDirect of a rail of all": (["rail.gpu rail 1 of all nodes"],
        world(4, 2, gpus=True, carries=lambda src, dst, gpu: 0.4 if gpu and src.rail == 1 else 1.0)),
    "two": (["rail.dead n2 rail 0 (mlx5_0:1) on n2", SLOW], world(5, carries=_two_faults)),
    "uplinks of one rail": (["rail.slow n[0-2] with the others rail 1"], world(8, carries=_uplink)),
    "a dead rail of all": (["rail.dead all nodes rail 1"], world(carries=lambda src, dst, _: float(src.rail != 1))),
    "between two nodes": ([BETWEEN], world(2, carries=only(BAD))),
    "between two, one GID is wrong": ([DEAD], world(2, carries=only(BAD), addresses={BAD: LINK_LOCAL})),
    "between two, both GIDs are": ([BETWEEN], world(2, carries=only(BAD), addresses=BOTH_LOCAL)),
    "between two, no GID": ([DEAD], world(2, local={BAD: NO_GID})),
    "between two, two partitions": (["rail.data unknown", "rail.dead n0 rail 0 <-> n1 rail 0 on n0 n1"],
        world(2, 1, carries=lambda *_: 0.0, addresses=OF_TWO_KEYS)),
    "between two, slow": (["rail.slow n0 rail 1 (mlx5_1:1) <-> n1 rail 1 (mlx5_1:1)"], world(2, 2, carries=SLOW_END)),
    "a partition, and a dead partner": (["rail.dead n0 on n0", "rail.dead n2 rail 1 (mlx5_1:1) on n2"],
        world(5, 2, carries=DEAD_BESIDE, addresses={**EVERY_IB, End("n2", 1): {**IB, "pkey": 0x8003}})),
    # Rails that are slower on all nodes by their ports' rate are well.
    **{f"{nodes} nodes, slower {rails}": ([], slower(0.5, nodes, of_rails(nodes, *rails)))
        for nodes, rails in ((2, (5,)), (3, (4,)), (4, (4, 5)), (7, (3, 4, 5)))},
    "slower than ports explain": (["rail.slow all nodes rail 4"], slower(0.3, 4, of_rails(4, 4))),
    "slower, and ports do not say so": (["rail.slow all nodes rail 4"], slower(0.5, 4, of_rails(4, 4), 400.0)),
    "one port below its rail, whatever it says": ([SLOW], slower(0.5, 4, [BAD])),
    "slow among slower": (["rail.slow n1 rail 4 (mlx5_4:1) on n1"],
        world(4, 6, carries=_slow_among_slower, addresses={end: {"rate_gbps": 200.0} for end in of_rails(4, 4)})),
    "many slow nodes": ([*(f"rail.slow {node} on {node}" for node in names(3))],
        slower(0.5, 8, of_rails(3, *range(6)), 400.0)),
    "many slow nodes, as their ports say": ([], slower(0.5, 8, of_rails(3, *range(6)))),
    "memory of a GPU is refused": ([f"rail.gpu {WHERE} on n1"], Changed(names(4), 4, gpus=True, change=REFUSES)),
    "between two, memory of a GPU is refused": ([f"rail.gpu {WHERE} on n1"],
        Changed(names(2), 4, gpus=True, change=REFUSES)),
    "once, it hangs": ([f"rail.unusable {WHERE} on n1"], Changed(names(4), 4, change=failing(HANGS, nth(2)))),
    "only test 0": ([f"rail.dead {WHERE} <-> n2 rail 2 (mlx5_2:1)"], Changed(names(4), 4, change=dead_in(0))),
    "only test 3": ([f"rail.dead n0 rail 2 (mlx5_2:1) <-> {WHERE}"], Changed(names(4), 4, change=dead_in(3))),
    "both directions at once": ([DEAD], Changed(names(4), 4, change=lambda seen, *_: tuple(map(_only_one_way, seen)))),
    "small messages": ([DEAD], Changed(names(4), 4, change=_small_are_lost)),
    "small messages too": ([DEAD], Changed(names(4), 4, change=_small_too, carries=only(BAD, into=False))),
}  # fmt: skip


@each_row(("expected", "fleet"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_named_alone(expected: list[str], fleet: World) -> None:
    assert told(verdicts(played(fleet))) == expected


def streams(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Return what changes every stream of an answer."""

    def change(said: dict[str, Any]) -> None:
        for row in said["rows"]:
            for stream in row["outcome"]["streams"]:
                stream.update(changes)

    return change


@each_row(
    ("do", "change"),
    [
        ("test", streams(seconds=1e-320)), ("test", streams(nbytes=10**400)), ("test", streams(nbytes=-5)),
        ("test", lambda said: said.update(rows="none")),
        ("test", lambda said: [row.update(patience_s=1e-320) for row in said["rows"]]),
        ("list", lambda said: said.update(rates_gbps=[1e308, 1e308], gpus=[True] * 99)),
        ("list", lambda said: [port.update(queue_pairs=10**12) for port in said["ports"]]),
        ("list", lambda said: [port.update(queue_pairs=-3) for port in said["ports"]]),
    ],
)  # fmt: skip
def test_a_node_whose_numbers_are_absurd_ends_no_run_and_no_other_is_blamed(do: str, change: Any) -> None:
    found = verdicts(played(world(4, 2), Nodes(world(4, 2), do=do, change=change)))
    assert not [each for each in told(found) if not each.endswith((" on n1", " unknown"))]
    assert Status.PASS in {verdict.status for verdict in found.values()}


@each_row(
    ("counts", "carries", "expected"),
    [
        *((counts, None, []) for counts in [(4, 4, 3, 3), (1, 4), (4, 3, 3), (2, 4, 1, 4, 4)]),
        # A rail that no other node has is tried with rails of other numbers.
        *((counts, only(End("n0", 3)), ["rail.dead n0 rail 3 (mlx5_3:1) <-> "]) for counts in [(4, 3, 3, 3), (4, 1)]),
        ((4, 4, 3, 3), lambda src, dst, _: float(src.rail == dst.rail), ["rail.dead rails of all nodes"]),
    ],
)
def test_nodes_may_have_different_numbers_of_rails(counts: tuple[int, ...], carries: Any, expected: list[str]) -> None:
    fleet = world(len(counts), max(counts), **({"carries": carries} if carries else {}))
    found = verdicts(played(fleet, Nodes(fleet, counts)))
    assert [each[: len(begins)] for each, begins in zip(told(found), expected, strict=True)] == expected
    if expected and "all nodes" in expected[0]:
        assert "(nodes have 3 to 4 rails)" in found["rail.dead"].findings[0].message


@each_row(("size", "silent", "from_start"), [(5, 3, True), (5, 3, False), (2, 1, False)])
def test_a_node_that_never_answers_or_stops_is_named_and_its_partners_are_not(
    size: int, silent: int, from_start: bool
) -> None:
    fleet = world(size, 2)
    rails = played(fleet, FakeNodes(fleet, silent=(silent,), from_start=from_start))
    assert (f"n{silent}" in rails.by_node) is not from_start
    assert [each for each in told(verdicts(rails)) if "unknown" not in each] == [f"rail.untried n{silent} on n{silent}"]


def test_beside_other_traffic_nothing_is_tried_without_force() -> None:
    busy = FakeNodes(world(3, 2), moved_gbps={"mlx5_1:1": 90.0})
    refused = verdicts(played(world(3, 2), busy))["rail.dead"]
    assert (busy.waves, refused.status) == ([], Status.UNKNOWN)
    assert "mlx5_1:1 of n0 carried 90 Gb/s" in refused.why
    forced = played(world(3, 2), FakeNodes(world(3, 2), moved_gbps={"mlx5_1:1": 90.0}), force=True)
    assert verdicts(forced)["rail.dead"].status is Status.PASS


def test_a_run_without_time_for_a_single_wave_is_unknown() -> None:
    verdict = verdicts(played(world(3, 2), seconds=1.0))["rail.dead"]
    assert verdict.status is Status.UNKNOWN
    assert "the run ran out of time" in verdict.why


def test_efa_devices_that_nothing_can_try_are_unknown_and_the_reason_says_what_is_missing() -> None:
    why = "EFA (rdmap0s6) has no reliable connections, so it is not tested"
    found = verdicts(played(world(4, 0), FakeNodes(world(4, 0), why=why)))
    assert found["rail.untried"].status is Status.UNKNOWN
    assert why in found["rail.untried"].why
    assert not [each for each in found.values() if each.status is Status.PASS]


MACHINE, LOST = "dgx-a100", "mlx5_7"
"""A machine with two NICs for storage, and a rail in the middle of the others."""
NAMED_BY = {
    "port DOWN, Polling": {"ib.state", "sync.machine"}, "port DOWN, Disabled": {"ib.state", "sync.machine"},
    "one lane of four": {"ib.rate", "sync.machine"}, "half rate": {"ib.rate"}, "no RDMA device": {"sync.machine"},
    "off the PCI bus": {"sync.machine"}, "off the PCI bus at boot, others renamed": {"sync.machine"},
}  # fmt: skip


@each_row("size", [2, 4])
@each_row("title", planted_rails.PLANTS)
def test_a_rail_that_a_node_lost_is_named_whichever_way_it_was_and_no_other_is(title: str, size: int) -> None:
    found = planted_rails.planted(MACHINE, planted_rails.PLANTS[title], LOST, size)
    assert {told.check for told in found.named} == NAMED_BY[title]
    assert found.others == ()
