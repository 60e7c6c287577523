"""Who is healthy is not named, who is lost does not stop the others, and what is measured again. The rest is kept."""

from itertools import combinations

from fleets.fleet import NOISES, Fabric, Fleet

from ncclprobe.localise.pairs.causes import Cause
from ncclprobe.localise.pairs.rounds import Participants, plan_retests
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.pairs.suspects import LOST_PARTNERS, localise_slowness
from tests.each_row import each_row, some
from tests.localise.slow_pairs import search


@each_row("noise", NOISES)
@each_row("nodes", [8, 32, 96])
def test_a_healthy_fleet_blames_nobody(nodes: int, noise: str) -> None:
    for seed in range(3):
        fleet = Fleet(Fabric(nodes, per_leaf=8), NOISES[noise], (), seed)
        found = localise_slowness(fleet.rails, fleet.measure)
        assert (found.confirmed, found.kind) == ((), "none")
    shared = Fleet(Fabric(32, per_leaf=8, oversubscription=4.0), NOISES["usual"], (), at_once=32)
    assert localise_slowness(shared.rails, shared.measure).confirmed == ()


def test_what_is_fast_when_measured_again_is_cleared() -> None:
    first = iter([True] * 14)
    found = search("abcdefgh", lambda s, d: 20.0 if "c" in (s.node, d.node) and next(first, False) else 40.0)
    assert (found.confirmed, [str(cause) for cause in found.cleared]) == ((), ["c"])


@each_row(
    ("dead", "partners", "named"),
    [({"b", "e"}, 7, ["b with e", "c"]), ({"e"}, LOST_PARTNERS, ["c", "e"])],
    ids=["a pair takes neither of its ends out", "a node is measured no more after its second partner"],
)
def test_what_is_dead_costs_no_other_its_measurement(dead: set[str], partners: int, named: list[str]) -> None:
    met = set()

    def rate(src: End, dst: End) -> float:
        met.add(frozenset((src.node, dst.node)))
        return 0.0 if dead <= {src.node, dst.node} else 36.0 if "c" in (src.node, dst.node) else 40.0

    found = search("abcdefgh", rate)
    assert sorted(str(suspect.cause) for suspect in found.confirmed) == named
    assert sum("e" in pair for pair in met) == partners
    assert {pair for pair in met if "e" not in pair} == {frozenset(pair) for pair in combinations("abcdfgh", 2)}


def test_retests_plan_two_partners_and_their_control_and_exchange_each_end_of_a_pair() -> None:
    participants = Participants(dict.fromkeys("abcdef", (0,)))
    rounds = plan_retests([Cause("node", ("c",))], participants, 1)
    met = [{one.node, other.node} for meetings in rounds for one, other in meetings]
    partners = {node for pair in met if "c" in pair for node in pair} - {"c"}
    assert len(partners) == 2
    assert sorted(map(sorted, met)) == sorted([*(sorted({"c", partner}) for partner in partners), sorted(partners)])
    assert plan_retests([Cause("node", ("c",))], participants, 2) != rounds
    pair = plan_retests([Cause("pair", ("a", "b"))], participants, 1)
    met = [{one.node, other.node} for meetings in pair for one, other in meetings]
    [third] = {node for pair in met for node in pair} - {"a", "b"}
    assert met == [{"a", "b"}, {"a", third}, {third, "b"}]


def test_no_node_has_two_partners_in_a_round_of_retests_and_who_does_not_answer_has_none() -> None:
    suspects = [Cause("node", (f"n{number}",)) for number in range(5)] + [Cause("pair", ("n7", "n9"))]
    participants = Participants({f"n{number}": range(2) for number in range(20)})
    for meetings in some(plan_retests(suspects, participants, 1)):
        pairs = {(one.node, other.node) for one, other in meetings}
        nodes = [node for pair in pairs for node in pair]
        assert len(set(nodes)) == len(nodes)
    answering = Participants(dict.fromkeys("abde", (0,)))
    assert plan_retests([Cause("node", ("c",)), Cause("pair", ("a", "c"))], answering, 1) == ()
