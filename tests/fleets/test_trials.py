"""Slow parts are found in simulated fleets and in two recorded clusters."""

from fleets.recorded import CHOSEN, HELD_BACK, recorded_sets
from fleets.trials import BUILDS, CROSSING, ECMP, OVERSUBSCRIBED, Again, Trial, play, replay, tally
from ncclprobe.localise.pairs.suspects import many

KINDS = (
    ("a node", "node", 1), ("two nodes", "node", 2), ("a NIC", "nic", 1), ("a NIC, one way", "direction", 1),
    ("a pair", "pair", 1), ("a dead pair and a node", "dead", 1), ("uplinks", "uplink", 1), ("a leaf", "leaf", 1),
    ("one ECMP link", "link", 1),
)  # fmt: skip
HEALTHY = (
    ("the noise of cluster01", CHOSEN, ""), ("the noise of cluster00", HELD_BACK, ""), ("5 % noise", "loud", ""),
    ("one transfer in five slow", "bimodal", ""), ("ECMP", CHOSEN, ECMP),
    ("leaves cost a tenth", CHOSEN, CROSSING), ("uplinks carry a quarter", CHOSEN, OVERSUBSCRIBED),
    ("a third of another build", CHOSEN, BUILDS),
)  # fmt: skip


def tries(name: str, kind: str, loss: float, seeds: int) -> list[Again]:
    """A recorded set with the fault at each node in turn, with as many seeds."""
    other = {"node": (0,), "nodes": (0, 5), "out": (0,), "pair": (0, 3), "dead": (0, 1, 4)}[kind]
    recorded = recorded_sets()[name]
    found = []
    for number in range(len(recorded.nodes)):
        at = tuple(number + each for each in other)
        one, two = sorted(recorded.nodes[each % len(recorded.nodes)] for each in (at * 2)[:2])
        bad = max(sum(node in pair for pair in recorded.sick()) for node in (one, two))
        alone = not many(bad + 1, len(recorded.nodes) - 1)  # else the node is named, by its recorded pairs and this one
        known = kind not in ("pair", "dead") or (alone and (one, two) in recorded.rates)
        found += [Again(name, kind, loss, at, seed) for seed in range(seeds if known else 0)]
    return found


def test_every_planted_kind_is_counted_and_every_healthy_fleet_blames_no_part() -> None:
    seen = {kind: play(Trial(8, HELD_BACK, kind, 0.2, count=count)) for _, kind, count in KINDS}
    assert {kind: each.planted for kind, each in seen.items()} == {
        "node": 2, "nic": 1, "direction": 1, "pair": 1, "dead": 2, "uplink": 1, "leaf": 1, "link": 1
    }  # fmt: skip
    assert all(each.innocent == () for each in seen.values())
    healthy = [play(Trial(8, noise, fabric=fabric)) for _, noise, fabric in HEALTHY]
    assert [(each.planted, each.innocent) for each in healthy] == [(0, ())] * len(healthy)
    assert tally(seen.values()).planted == 10


def test_a_recorded_set_is_tried_at_every_node_and_never_at_a_pair_that_was_not_recorded() -> None:
    [name, *_] = [name for name in recorded_sets() if name.startswith(CHOSEN)]
    assert {again.at[0] for again in tries(name, "node", 0.1, 2)} == set(range(10))
    assert len(tries("cluster00 sendrecv 8", "dead", 0.1, 1)) == 16  # nodes 8 and 9 never met
    outcome = replay(Again("cluster00 sendrecv 8", "dead", 0.1, (0, 1, 4)))
    assert (outcome.planted, outcome.named, outcome.innocent) == (2, 2, ())
