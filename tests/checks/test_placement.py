"""Nodes that are far from each other are named, with what says so; what nothing tells is unknown."""

import pytest

from ncclprobe.checks.sync.roster import below, placement, told
from ncclprobe.facts.placement import Placement
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Absent, Every


def at(**names: str) -> Placement:
    """A node with these levels; `place` is a path."""
    kinds = {"group": "placement group", "host": "physical host"}
    return Placement(
        tuple(
            PlacementLevel(kinds.get(kind, kind), each, f"told by {kind}")
            for kind, name in names.items()
            for each in (name.split("/") if kind == "place" else [name])
        )
    )


def found(*nodes: Placement | Absent) -> list[Finding]:
    return list(placement.run(Every({f"n{i}": each for i, each in enumerate(nodes)})))


def test_the_outermost_level_in_which_nodes_differ_is_said_once() -> None:
    east, west = at(region="r", zone="a", group="g"), at(region="r", zone="b", group="h")
    (one,) = found(east, east, west)
    assert (one.severity, one.subject, one.nodes) == (Severity.WARN, "n2", ("n2",))
    assert one.message == "not in one zone: 1 of 3 nodes differs (n2: b; the others: a)"
    assert "told by zone" in one.seen
    (two,) = found(east, west)
    assert two.nodes == ("n0", "n1")  # no majority: neither is named before the other
    (three,) = found(at(zone="a", group="g"), at(zone="a", group="g"), at(zone="a", group="h"))
    assert three.message.startswith("not in one placement group")
    assert found(east, east) == []


def test_a_node_is_said_once_at_the_outermost_switch_that_it_has_to_itself() -> None:
    (one,) = found(*(at(place=path) for path in ["b1/s1", "b1/s1", "b2/s1"]))
    assert (one.severity, one.nodes) == (Severity.WARN, ("n2",))
    assert one.message == "is the only node below place b2; the other 2 nodes are below b1"
    both = found(*(at(place=path) for path in ["b1/s1", "b1/s1", "b1/s2", "b2/s1"]))
    assert [(each.severity, each.nodes) for each in both] == [(Severity.WARN, ("n3",)), (Severity.NOTE, ("n2",))]
    assert found(*(at(place=path) for path in ["b1/s1", "b1/s1", "b2/s1", "b2/s1"])) == []


def test_two_nodes_on_their_own_switches_are_a_note() -> None:
    (one,) = placement.run(below("s1", "s2"))
    assert (one.severity, one.nodes) == (Severity.NOTE, ("n0", "n1"))
    assert one.message == "each is the only node below its leaf switch; the job has 2: n0 below s1, n1 below s2"


def test_trees_of_other_depths_are_compared_from_the_switch_above_the_node() -> None:
    assert found(at(place="b1/s1"), at(place="b1/s1"), at(place="s9"), at(place="s9")) == []
    (one,) = found(at(place="b1/s1"), at(place="b1/s1"), at(place="s9"))
    assert one.nodes == ("n2",)


def test_nodes_that_share_a_machine_are_a_note() -> None:
    (one,) = found(at(host="h1"), at(host="h1"), at(host="h2"))
    assert (one.severity, one.subject, one.message) == (Severity.NOTE, "n[0-1]", "share the physical host h1")


def test_what_nothing_tells_of_some_nodes_is_unknown_and_of_all_is_not_asked() -> None:
    with pytest.raises(Unlearned, match="the placement of n1 is unknown; set NCCLPROBE_PLACEMENT"):
        found(at(zone="a"), Placement())
    with pytest.raises(Unlearned, match=r"placement of n\[1-2\] is"):
        found(at(zone="a"), Placement(), Absent("refused"))
    assert len(found(at(zone="a"), at(zone="b"), Placement())) == 1  # what is known to be wrong is said
    assert told.run(Every({"n0": at(zone="a"), "n1": Placement()}))
    assert not told.run(Every({"n0": Placement(), "n1": Absent("refused")}))
    assert not told.run(Every({"n0": at(zone="a")}))
