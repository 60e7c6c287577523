"""How good paths are: black holes, slow, lossy and distant ones, and healthy networks that only look uneven."""

import random
from typing import Any

import pytest
from fake_paths import Change, fleet

from ncclprobe.checks import path
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.reach import Flood, Gathering
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.localise.reach import SLOW
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Every
from tests.each_row import each_row

UNKNOWN: Every[Interfaces | Absent] = Every({})


def nics(nodes: int, speed_mbps: int | None = None, mtu: int = 1500, virtual: bool = False) -> Every[Any]:
    eth1 = Interface("eth1", 2, frozenset({"up", "running"}), mtu, speed_mbps, virtual=virtual)
    return Every({f"n{rank}": Interfaces((eth1,)) for rank in range(nodes)})


def seen(check: Check, nodes: int, change: Change, *more: Any, **details: Any) -> list[Finding]:
    crowds = (path.UNCROWDED,) if check is path.rate and len(more) < 2 else ()
    return list(check.run(fleet(nodes, change, **details), *more, *crowds))


def out_of(node: int, **changes: Any) -> Change:
    return lambda one, *_: changes if one == node else None


def on_one(source: int, sink: int, **changes: Any) -> Change:
    return lambda one, other, _: changes if (one, other) == (source, sink) else None


def both_ways(node: int, **changes: Any) -> Change:
    return lambda one, other, _: changes if node in (one, other) else None


def holed(one: int, other: int, _: str) -> dict[str, Any] | None:
    """What both ends see where large packets out of node 1 are lost."""
    if one == 1:
        return {"outcome": "stalled-out"}
    return {"outcome": "stalled-back"} if other == 1 else None


@each_row("nodes", [3, 8])
def test_a_black_hole_is_named_with_its_node_and_direction(nodes: int) -> None:
    (finding,) = seen(path.mtu, nodes, holed, nics(nodes, mtu=9000))
    assert (finding.severity.value, finding.nodes, finding.blame) == ("fail", ("n1",), "link")
    assert f"{nodes - 1} of {nodes - 1} paths out of n1 (eth1)" in finding.message
    assert "MTU 9000 on n1" in finding.seen


def test_a_path_that_carries_next_to_nothing_fails_though_its_own_queue_makes_it_look_far() -> None:
    """A full shaper keeps the shortest round trip above what a stream of a second may be judged by."""
    slow = {"rate_gbps": 0.0019, "rtt_s": 7.4e-3, "streams": 2}
    (finding,) = seen(path.rate, 3, out_of(1, **slow), nics(3))
    assert (finding.severity.value, finding.nodes) == ("fail", ("n1",))
    assert "4 MiB did not arrive within 10 s" in finding.message
    assert (
        seen(path.rate, 3, out_of(1, **(slow | {"rate_gbps": 0.02, "streams": 1})), nics(3)) == []
    )  # far: delay says so


@each_row(("passes", "said", "remedy"), [(1280, "in packets of 1280 bytes", "mtu 1280"), (None, "small ones pass", "")])
def test_where_small_packets_pass_the_finding_says_so(passes: int | None, said: str, remedy: str) -> None:
    def change(one: int, other: int, role: str) -> dict[str, Any] | None:
        found = holed(one, other, role)
        return found | {"passes": passes} if found and (one, other) == (1, 0) else found

    (finding,) = seen(path.mtu, 3, change, UNKNOWN)
    assert (finding.nodes, finding.blame) == (("n1",), "link")
    assert remedy in finding.remedy
    assert said in finding.message


def test_a_node_whose_own_firewall_drops_large_packets_is_to_blame() -> None:
    def change(one: int, other: int, role: str) -> dict[str, Any] | None:
        found = holed(one, other, role)
        return found | {"refused": True} if found and one == 1 else found

    (finding,) = seen(path.mtu, 3, change, UNKNOWN)
    assert (finding.nodes, finding.blame, finding.action) == (("n1",), "node", "fix-image")
    assert "nft list ruleset" in finding.remedy


def test_large_messages_that_were_only_slow_are_no_black_hole() -> None:
    def change(one: int, other: int, _: str) -> dict[str, Any] | None:
        if one == 1:
            return {"rate_gbps": 0.002, "streams": 2} if other == 0 else {"outcome": "stalled-out"}
        return {"outcome": "stalled-back"} if other == 1 else None

    assert seen(path.mtu, 3, change, UNKNOWN) == []
    (finding,) = seen(path.rate, 3, change, UNKNOWN)
    assert (finding.severity.value, finding.subject) == ("fail", "n1 -> n0")
    assert "4 MiB did not arrive within 10 s" in finding.message


@each_row(("streams", "severity"), [(1, "warn"), (2, "fail")])
def test_a_path_that_no_job_can_use_fails_once_it_was_looked_at_twice(streams: int, severity: str) -> None:
    slow = both_ways(1, rate_gbps=0.001, streams=streams, resent=900)
    found = seen(path.rate, 4, slow, UNKNOWN)
    assert [each.severity.value for each in found] == ([severity] if streams == 2 else [])  # else path.loss says it


@each_row(("rate", "streams", "severity"), [(0.07, 1, "warn"), (0.07, 2, "fail"), (0.9, 2, "warn")])
def test_a_hundredth_of_the_others_rate_fails_at_the_second_look(rate: float, streams: int, severity: str) -> None:
    (finding,) = seen(path.rate, 3, both_ways(1, rate_gbps=rate, streams=streams), UNKNOWN)
    assert finding.severity.value == severity


def test_a_node_that_a_crowd_calls_is_not_failed_for_what_it_carried_meanwhile() -> None:
    crowd = Every({"n1": Gathering(2, 1.0, floods=(Flood("10.0.0.99", 7900),))})
    slow = both_ways(1, rate_gbps=0.02, streams=2)
    (finding,) = seen(path.rate, 3, slow, UNKNOWN, crowd)
    assert (finding.severity.value, finding.action) == ("warn", "retest")
    assert "launch.port" in finding.message
    (other,) = seen(path.rate, 3, both_ways(2, rate_gbps=0.02, streams=2), UNKNOWN, crowd)
    assert (other.severity.value, other.action) == ("fail", "repair")


def routed(interface: str, *more: Route, rules: Any = ()) -> Routes:
    return Routes((Route("10.1.0.0/16", interface),), rules, more)


def test_packets_that_leave_by_another_card_are_named_with_the_cards() -> None:
    nodes, role = fleet(3, lambda *_: None), Every({"n0": routed("eth1"), "n1": routed("eth0"), "n2": routed("eth1")})
    (finding,) = path.route.run(nodes, role, UNKNOWN)
    assert (finding.severity.value, finding.nodes) == ("warn", ("n1",))
    assert "(eth1) to 2 of 2 listeners leave through eth0" in finding.message
    assert "ip rule add from 10.1.0.2" in finding.remedy


def test_a_rule_for_the_source_and_the_default_interface_are_no_detour() -> None:
    own = Route("0.0.0.0/0", "eth1", "10.1.0.254", table="101")
    ruled = routed("eth0", own, rules=(Rule(100, "101", "10.1.0.2/32"),))
    others = {"n0": routed("eth1"), "n2": routed("eth1")}
    assert list(path.route.run(fleet(3, lambda *_: None), Every({**others, "n1": ruled}), UNKNOWN)) == []
    default = fleet(3, lambda *_: None, roles=("default",))
    assert list(path.route.run(default, Every({**others, "n1": routed("eth7")}), UNKNOWN)) == []


@each_row(("flags", "kind", "found"), [(("up", "running"), "", 1), (("up",), "", 0), (("up", "running"), "bridge", 0)])
def test_routes_that_an_interface_lost_are_no_detour(flags: tuple[str, ...], kind: str, found: int) -> None:
    nodes, role = fleet(3, lambda *_: None), Every({"n0": routed("eth1"), "n1": routed("eth0"), "n2": routed("eth1")})
    nics = Every({"n1": Interfaces((Interface("eth1", 3, frozenset(flags), 1500, kind=kind),))})
    assert len(list(path.route.run(nodes, role, nics))) == found


def test_routes_that_are_not_known_pass_no_path() -> None:
    unknown = Every(dict.fromkeys(("n0", "n1", "n2"), Routes((), Absent("ip: not there"))))
    with pytest.raises(Unlearned):
        list(path.route.run(fleet(3, lambda *_: None), unknown, UNKNOWN))


def test_a_black_hole_between_two_nodes_is_a_direction() -> None:
    (finding,) = seen(path.mtu, 2, holed, UNKNOWN)
    assert (finding.subject, finding.blame) == ("n1 -> n0", "fabric")


def test_a_black_hole_both_ways_is_the_nodes_own() -> None:
    (finding,) = seen(path.mtu, 8, both_ways(3, outcome="stalled-out"), UNKNOWN)
    assert finding.nodes == ("n3",)


def test_paths_that_do_not_connect_have_no_mtu() -> None:
    assert seen(path.mtu, 8, both_ways(3, outcome="filtered"), UNKNOWN) == []


@each_row("nodes", [3, 4, 8])
@each_row("change", [both_ways(1, rate_gbps=0.9), out_of(1, rate_gbps=0.9)])
def test_a_node_at_a_tenth_of_the_others_rate_is_named(nodes: int, change: Change) -> None:
    (finding,) = seen(path.rate, nodes, change, UNKNOWN, steps=(1, 2))
    assert (finding.severity.value, finding.nodes, finding.blame) == ("warn", ("n1",), "link")
    assert "0.9 Gb/s" in finding.message
    assert "others reach 9 Gb/s" in finding.message


def test_of_two_nodes_the_slow_direction_is_named() -> None:
    (finding,) = seen(path.rate, 2, out_of(1, rate_gbps=0.9), UNKNOWN)
    assert (finding.subject, finding.blame) == ("n1 -> n0", "fabric")


def test_two_nodes_that_are_slow_both_ways_are_seen_by_the_speed_of_their_interfaces() -> None:
    (finding,) = seen(path.rate, 2, lambda *_: {"rate_gbps": 0.9}, nics(2, 10_000))
    assert "the interface reports 10 Gb/s" in finding.message
    assert seen(path.rate, 2, lambda *_: {"rate_gbps": 0.9}, nics(2, 10_000, virtual=True)) == []
    assert seen(path.rate, 2, lambda *_: {"rate_gbps": 0.9}, UNKNOWN) == []


def test_one_stream_is_not_expected_to_fill_400_gigabit() -> None:
    assert seen(path.rate, 8, lambda *_: {"rate_gbps": 14.0}, nics(8, 400_000)) == []


def test_a_stream_over_a_long_way_is_not_measured_by_the_interface() -> None:
    assert seen(path.rate, 8, lambda *_: {"rate_gbps": 1.0, "rtt_s": 0.02}, nics(8, 10_000)) == []


@each_row("seed", range(20))
def test_rates_that_scatter_by_two_are_healthy(seed: int) -> None:
    noise = random.Random(seed)
    assert seen(path.rate, 16, lambda *_: {"rate_gbps": noise.uniform(5, 10)}, nics(16, 10_000), steps=(1, 2)) == []


def test_a_slow_path_that_loses_packets_is_told_once() -> None:
    change = out_of(1, rate_gbps=0.5, resent=300)
    assert seen(path.rate, 8, change, UNKNOWN) == []
    (finding,) = seen(path.loss, 8, change, UNKNOWN)
    assert finding.nodes == ("n1",)
    assert "5.17 % of the segments" in finding.message
    assert "carried 0.5 Gb/s" in finding.message


def test_a_full_shaper_that_drops_packets_on_one_of_its_paths_is_one_slow_node() -> None:
    def shaped(one: int, other: int, _: str) -> dict[str, Any] | None:
        return {"rate_gbps": 0.5, "resent": 300 if other == 2 else 0} if one == 1 else None

    (finding,) = seen(path.rate, 4, shaped, UNKNOWN)
    assert finding.nodes == ("n1",)
    assert seen(path.loss, 4, shaped, UNKNOWN) == []


def test_a_path_that_stalls_loses_nothing_but_large_packets() -> None:
    assert seen(path.loss, 8, out_of(1, outcome="stalled-out", resent=40, segments=200), UNKNOWN) == []


def test_a_burst_of_two_is_no_loss() -> None:
    assert seen(path.loss, 8, lambda *_: {"resent": 2, "segments": 110}, UNKNOWN) == []


def test_a_path_into_a_lossy_node_that_came_through_by_luck_does_not_hide_the_node() -> None:
    def into_1(one: int, other: int, _: str) -> dict[str, Any] | None:
        return {"resent": 290} if other == 1 and one != 0 else None

    (finding,) = seen(path.loss, 4, into_1, UNKNOWN)
    assert (finding.nodes, finding.blame) == (("n1",), "link")
    assert "2 of 2 paths into n1" in finding.message


def test_a_few_bursts_or_a_bad_moment_on_one_path_are_only_noted() -> None:
    assert [f.severity.value for f in seen(path.loss, 8, on_one(1, 2, resent=170), UNKNOWN)] == ["note"]
    assert [f.severity.value for f in seen(path.rate, 8, on_one(1, 2, rate_gbps=9 * 0.9 * SLOW), UNKNOWN)] == ["note"]


def test_loss_on_one_path_blames_no_node() -> None:
    (finding,) = seen(path.loss, 8, on_one(1, 2, resent=300), UNKNOWN)
    assert (finding.subject, finding.blame) == ("n1 -> n2", "fabric")


@each_row("nodes", [3, 4, 8])
def test_a_distant_node_is_named(nodes: int) -> None:
    (finding,) = seen(path.delay, nodes, both_ways(1, rtt_s=0.024))
    assert finding.nodes == ("n1",)
    assert "round trips of 24 ms" in finding.message
    assert "others are 0.1 ms away" in finding.message


def test_two_nodes_that_are_far_from_each_other_are_seen_without_others() -> None:
    (finding,) = seen(path.delay, 2, lambda *_: {"rtt_s": 0.024})
    assert finding.subject == "n0 <-> n1"


def test_racks_and_buildings_are_healthy() -> None:
    assert seen(path.delay, 8, lambda one, other, _: {"rtt_s": 9e-4} if (one < 4) != (other < 4) else None) == []


def test_what_nobody_measured_does_not_pass() -> None:
    nothing = dict.fromkeys(("rate_gbps", "resent", "segments", "rtt_s", "path_mtu"))
    for check, more in ((path.rate, [UNKNOWN]), (path.loss, [UNKNOWN]), (path.delay, [])):
        with pytest.raises(Unlearned, match="no path between nodes was measured"):
            seen(check, 4, lambda *_: nothing, *more)
    with pytest.raises(Unlearned, match="no path between nodes was measured"):
        seen(path.mtu, 4, lambda *_: {"outcome": "filtered"}, UNKNOWN)


def test_nobody_is_named_for_paths_to_a_node_that_was_never_tried() -> None:
    for check, more in ((path.rate, [UNKNOWN]), (path.loss, [UNKNOWN]), (path.delay, []), (path.mtu, [UNKNOWN])):
        assert seen(check, 4, both_ways(2, outcome="late", rate_gbps=None, rtt_s=None, resent=None), *more) == []
