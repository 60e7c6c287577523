"""Rails of fleets that are not as the others: garbled answers, unlike rails, faults that come and go."""

from collections.abc import Callable, Sequence
from typing import Any

from fake_rails import FakeNodes, names, played, verdicts, wrong

from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.cluster.rails.node import RailsOrder
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.findings import Severity, Status, Verdict
from ncclprobe.model.rails import RailFailure, RailOutcome, RailTest
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from tests.each_row import each_row

BAD = End("n1", 2)
WHERE = "n1 rail 2 (mlx5_2:1)"
TEST = RailTest(message_bytes=1 << 20, messages=64, directions=("out", "in", "both"))

Change = Callable[[dict[str, Any]], None]


class Garbling(FakeNodes):
    """Nodes of which n1 changes what it answers to orders of one kind."""

    def __init__(self, world: World, do: str, change: Change) -> None:
        super().__init__(world)
        self._do, self._change = do, change

    def answer(self, rank: int, order: RailsOrder) -> dict[str, Any]:
        """As the others do, but for n1."""
        said = super().answer(rank, order)
        if rank == 1 and order.do == self._do:
            self._change(said)
        return said


def streams(**changes: Any) -> Change:
    """Return what changes every stream."""

    def change(said: dict[str, Any]) -> None:
        for row in said["rows"]:
            for stream in row["outcome"]["streams"]:
                stream.update(changes)

    return change


@each_row(
    ("do", "change"),
    [
        ("test", streams(seconds=1e-320)),
        ("test", streams(nbytes=10**400)),
        ("test", streams(nbytes=-5)),
        ("test", lambda said: said.update(rows="none")),
        ("test", lambda said: [row.update(patience_s=1e-320) for row in said["rows"]]),
        ("list", lambda said: said.update(rates_gbps=[1e308, 1e308], gpus=[True] * 99)),
        ("list", lambda said: [port.update(queue_pairs=10**12) for port in said["ports"]]),
        ("list", lambda said: [port.update(queue_pairs=-3) for port in said["ports"]]),
    ],
)
def test_a_node_whose_numbers_are_absurd_ends_no_run_and_no_other_is_blamed(do: str, change: Change) -> None:
    world = World(names(4))
    found = verdicts(played(world, Garbling(world, do, change)))
    assert not [nodes for _, _, nodes in wrong(found) if nodes != ("n1",)]
    assert Status.PASS in {verdict.status for verdict in found.values()}


class Changed(World, frozen=True):
    """A fleet of which `change` changes what both ends of a test at `where` see: it gets them, the ends, the test
    and whether the memory is a GPU's.
    """

    change: Any = None
    where: Sequence[End] = (BAD,)

    def outcomes(
        self, one: End, other: End, test: RailTest = TEST, gpu: bool = False
    ) -> tuple[RailOutcome, RailOutcome]:
        """As in any world, but for the change."""
        seen = super().outcomes(one, other, test, gpu)
        return self.change(self, seen, (one, other), test, gpu) if {one, other} & {*self.where} else seen


def by_itself(failure: RailFailure) -> Any:
    """Return what both ends see where BAD fails by itself."""
    told = RailFailure(step="open", kind="peer", text="the other end failed first")
    return lambda seen, ends: tuple(
        RailOutcome(asked=one.asked, failures=(failure if end == BAD else told,))
        for one, end in zip(seen, ends, strict=True)
    )


REFUSED = RailFailure(step="open", kind="refused", text="not supported", call="ibv_reg_dmabuf_mr", errno=95)
_refuse = by_itself(REFUSED)


@each_row("nodes", [2, 4])
def test_memory_of_a_gpu_that_is_refused_is_its_nodes_and_the_port_is_usable(nodes: int) -> None:
    def change(world: World, seen: Any, ends: Any, test: RailTest, gpu: bool) -> Any:
        return _refuse(seen, ends) if gpu else seen

    world = Changed(names(nodes), 4, gpus=True, change=change)
    assert list(wrong(verdicts(played(world)))) == [("rail.gpu", WHERE, ("n1",))]


def test_a_port_that_fails_once_is_not_said_to_fail_always() -> None:
    hangs = by_itself(RailFailure(step="open", kind="hangs", text="ibv_open_device did not return in 5 s"))
    numbers: list[int] = []

    def third(world: World, seen: Any, ends: Any, test: RailTest, gpu: bool) -> Any:
        numbers.extend([] if test.seed in numbers else [test.seed])
        return hangs(seen, ends) if numbers.index(test.seed) == 2 else seen

    (finding,) = verdicts(played(Changed(names(4), 4, change=third)))["rail.unusable"].findings
    assert "in 1 of " in finding.message
    assert finding.subject == WHERE


def test_what_all_nodes_lack_is_one_finding() -> None:
    limited = RailFailure(step="open", kind="refused", text="no memory", call="ibv_reg_mr", errno=12)
    every = {End(node, rail): limited for node in names(6) for rail in range(4)}
    (finding,) = verdicts(played(World(names(6), 4, local=every)))["rail.unusable"].findings
    assert (finding.subject, finding.nodes) == ("n[0-5] rail 0-3", names(6))


def test_what_a_rail_of_all_nodes_has_in_common_is_no_nodes_fault() -> None:
    slow = World(names(4), 2, gpus=True, carries=lambda src, dst, gpu: 0.4 if gpu and src.rail == 1 else 1.0)
    assert [*wrong(verdicts(played(slow)))] == [("rail.gpu", "rail 1 of all nodes", ())]
    bad = World(names(4), 2, wrong={End(node, 1): 5 for node in names(4)})
    assert [*wrong(verdicts(played(bad)))] == [("rail.data", "rail 1 of all nodes", ())]


def test_of_two_rails_between_two_nodes_the_later_one_is_noted() -> None:
    (finding,) = verdicts(played(World(names(2), 2, latency_us={End("n1", 1): 40.0})))["rail.slow"].findings
    assert finding.subject == "n0 rail 1 (mlx5_1:1) <-> n1 rail 1 (mlx5_1:1)"


def test_nodes_that_small_messages_reach_late_from_the_others_are_named_together() -> None:
    left = names(3)

    def far(world: World, seen: Any, ends: tuple[End, End], test: RailTest, gpu: bool) -> Any:
        apart = (ends[0].node in left) != (ends[1].node in left)
        return (replace(seen[0], half_round_trip_us=(40.0, 41.0)), seen[1]) if apart else seen

    world = Changed(names(6), 2, change=far, where=[End(node, 1) for node in names(6)])
    (finding,) = verdicts(rails_of(world))["rail.slow"].findings
    assert finding.subject == "n[3-5] rail 1 with all other nodes"


def test_data_of_which_nothing_was_compared_is_unknown() -> None:
    rows = {
        node: replace(each, rows=tuple(replace(row, outcome=replace(row.outcome, arrivals=())) for row in each.rows))
        for node, each in rails_of(World(names(3))).items()
    }
    assert verdicts(Every(rows))["rail.data"].status is Status.UNKNOWN


class Uneven(FakeNodes):
    """Nodes of which each has so many of the rails."""

    def __init__(self, world: World, counts: Sequence[int]) -> None:
        super().__init__(world)
        self._counts = counts

    def answer(self, rank: int, order: RailsOrder) -> dict[str, Any]:
        """As the others do, but for rails that are not there."""
        said = super().answer(rank, order)
        for kind in ("ports", "rates_gbps", "gpus") if order.do == "list" else ():
            said[kind] = said[kind][: self._counts[rank]]
        return said


def uneven(*counts: int, **world: Any) -> dict[str, Verdict]:
    """Return what is said of nodes with so many rails."""
    fleet = World(names(len(counts)), max(counts), **world)
    return verdicts(played(fleet, Uneven(fleet, counts)))


@each_row("counts", [(4, 4, 3, 3), (1, 4), (4, 3, 3), (2, 4, 1, 4, 4)])
def test_nodes_with_different_numbers_of_rails_are_well(counts: tuple[int, ...]) -> None:
    found = uneven(*counts)
    assert not [*wrong(found)]
    assert not [each for each in found.values() if each.status is Status.UNKNOWN]


@each_row("counts", [(4, 3, 3, 3), (4, 3, 3), (4, 1)])
def test_a_rail_that_no_other_node_has_is_tried_with_rails_of_other_numbers(counts: tuple[int, ...]) -> None:
    ((check, subject, _),) = wrong(uneven(*counts, carries=only(End("n0", 3))))
    assert check == "rail.dead"
    assert subject.startswith("n0 rail 3 (mlx5_3:1) <-> ")


def test_different_numbers_of_rails_are_why_rails_of_different_numbers_are_tried() -> None:
    (finding,) = uneven(4, 4, 3, 3, carries=lambda src, dst, gpu: float(src.rail == dst.rail))["rail.dead"].findings
    assert finding.subject == "rails of all nodes"
    assert "(nodes have 3 to 4 rails)" in finding.message


def test_a_port_that_took_part_in_no_test_is_unknown() -> None:
    rails = rails_of(World(names(3)))
    more = replace(rails.by_node["n1"], ports=(*rails.by_node["n1"].ports, rails.by_node["n1"].ports[0]))
    verdict = verdicts(Every({**rails.by_node, "n1": more}))["rail.untried"]
    assert verdict.status is Status.UNKNOWN
    assert "n1 rail 2" in verdict.why


def test_a_node_whose_capture_is_not_there_is_named_as_what_is_missing() -> None:
    rails = {node: each for node, each in rails_of(World(names(4))).items() if node != "n1"}
    found = verdicts(Every(rails))
    assert not [*wrong(found)]
    assert "the results of n1 are unknown" in found["rail.untried"].why


LOST = RailFailure(
    step="write", kind="completion", text="transport retry counter exceeded", direction="both", status=12
)


def _of_both(seen: RailOutcome) -> RailOutcome:
    if all(stream.direction != "both" for stream in seen.streams):
        return seen
    streams = tuple(stream for stream in seen.streams if stream.direction != "both")
    arrivals = tuple(replace(one, arrived_bytes=0) if one.direction == "both" else one for one in seen.arrivals)
    return replace(seen, streams=streams, arrivals=arrivals, failures=(LOST,))


def test_a_rail_that_fails_under_both_directions_alone_has_no_wrong_mtu() -> None:
    world = Changed(names(4), 4, change=lambda w, seen, ends, test, gpu: tuple(map(_of_both, seen)))
    found = verdicts(played(world))
    assert [*wrong(found)] == [("rail.dead", WHERE, ("n1",))]
    assert found["rail.dead"].findings[0].message.startswith("data does not always arrive")


def test_small_messages_that_are_lost_where_large_ones_pass_are_told() -> None:
    small = RailFailure(step="latency", kind="completion", text="transport retry counter exceeded", status=12)

    def change(world: World, seen: Any, ends: Any, test: RailTest, gpu: bool) -> Any:
        return tuple(replace(each, half_round_trip_us=(), failures=(small,)) for each in seen)

    assert [*wrong(verdicts(played(Changed(names(4), 4, change=change))))] == [("rail.dead", WHERE, ("n1",))]


@each_row("which", [0, 3])
def test_a_test_that_failed_is_told_though_later_ones_passed(which: int) -> None:
    numbers: list[int] = []

    def once(world: World, seen: Any, ends: tuple[End, End], test: RailTest, gpu: bool) -> Any:
        numbers.extend([] if test.seed in numbers else [test.seed])
        bad = numbers.index(test.seed) == which
        return World(world.nodes, 4, carries=only(BAD)).outcomes(*ends, test) if bad else seen

    (finding,) = verdicts(played(Changed(names(4), 4, change=once)))["rail.dead"].findings
    assert finding.severity is Severity.WARN
    assert finding.message.startswith("1 of ")
    assert WHERE in finding.subject


def _at(share: float, nodes: int, slow: Sequence[End], rate_gbps: float = 200.0, **world: Any) -> World:
    """Return a fleet in which what touches `slow` ends carries a share, and their ports say that rate."""
    some = frozenset(slow)
    told = {end: {"rate_gbps": rate_gbps} for end in slow}
    return World(
        names(nodes), 6, carries=lambda src, dst, gpu: share if some & {src, dst} else 1.0, addresses=told, **world
    )


def of_rails(nodes: int, *rails: int) -> list[End]:
    """Return these rails of all nodes."""
    return [End(node, rail) for node in names(nodes) for rail in rails]


@each_row(("nodes", "rails"), [(2, (5,)), (3, (4,)), (4, (4, 5)), (7, (3, 4, 5))])
def test_rails_that_are_slower_on_all_nodes_by_their_ports_rate_are_well(nodes: int, rails: tuple[int, ...]) -> None:
    assert not [*wrong(verdicts(played(_at(0.5, nodes, of_rails(nodes, *rails)))))]


def test_rails_that_are_slower_on_all_nodes_than_their_ports_explain_are_named() -> None:
    every = of_rails(4, 4)
    assert [*wrong(verdicts(played(_at(0.3, 4, every))))] == [("rail.slow", "all nodes rail 4", ())]
    assert [*wrong(verdicts(played(_at(0.5, 4, every, 400.0))))] == [("rail.slow", "all nodes rail 4", ())]


def test_one_port_below_the_rate_of_its_rail_is_named_whatever_it_says() -> None:
    assert [*wrong(verdicts(played(_at(0.5, 4, [BAD]))))] == [("rail.slow", WHERE, ("n1",))]


def test_among_rails_that_are_slower_by_design_a_slow_port_is_named_by_what_is_usual_there() -> None:
    def carries(src: End, dst: End, gpu: bool) -> float:
        return 0.2 if End("n1", 4) in (src, dst) else 0.5 if src.rail == 4 else 1.0

    told = {end: {"rate_gbps": 200.0} for end in of_rails(4, 4)}
    (finding,) = verdicts(played(World(names(4), 6, carries=carries, addresses=told)))["rail.slow"].findings
    assert finding.subject == "n1 rail 4 (mlx5_4:1)"
    assert finding.message == "sends and receives 40 % of the usual 24.2 GB/s"


def test_a_slow_rail_between_two_nodes_is_not_that_of_all_nodes() -> None:
    found = verdicts(played(World(names(2), 2, carries=only(End("n1", 1), share=0.4))))
    assert [where for _, where, _ in wrong(found)] == ["n0 rail 1 (mlx5_1:1) <-> n1 rail 1 (mlx5_1:1)"]


@each_row(("rate", "severity"), [(400.0, Severity.WARN), (200.0, Severity.NOTE)])
def test_of_many_slow_nodes_each_is_a_note_if_its_ports_explain_it(rate: float, severity: Severity) -> None:
    slow = [End(node, rail) for node in names(3) for rail in range(6)]
    found = verdicts(played(_at(0.5, 8, slow, rate)))["rail.slow"].findings
    assert {(each.severity, each.subject) for each in found} == {(severity, node) for node in names(3)}


def test_a_port_of_another_partition_is_named_though_its_other_partner_is_dead() -> None:
    told = {End(node, rail): {"link_layer": "InfiniBand", "gid_type": ""} for node in names(5) for rail in range(2)}
    told[End("n2", 1)] = {**told[End("n2", 1)], "pkey": 0x8003}
    world = World(names(5), 2, carries=only(End("n0", 0), End("n0", 1), End("n2", 1)), addresses=told)
    assert {*wrong(verdicts(played(world)))} == {
        ("rail.dead", "n2 rail 1 (mlx5_1:1)", ("n2",)),
        ("rail.dead", "n0", ("n0",)),
    }


def test_of_two_nodes_with_two_partitions_neither_is_named_alone() -> None:
    keys = {"n0": 0x8001, "n1": 0x8002}
    told = {End(node, 0): {"link_layer": "InfiniBand", "pkey": key} for node, key in keys.items()}
    found = verdicts(played(World(names(2), 1, carries=lambda src, dst, gpu: 0.0, addresses=told)))
    assert [nodes for _, _, nodes in wrong(found)] == [names(2)]


def test_small_messages_that_a_dead_direction_explains_are_not_told_again() -> None:
    small = RailFailure(step="latency", kind="late", text="no answer came")

    def change(world: World, seen: Any, ends: Any, test: RailTest, gpu: bool) -> Any:
        return tuple(replace(each, failures=(small, *each.failures)) for each in seen)

    world = Changed(names(4), 4, change=change, carries=only(BAD, into=False))
    assert [*wrong(verdicts(played(world)))] == [("rail.dead", WHERE, ("n1",))]
