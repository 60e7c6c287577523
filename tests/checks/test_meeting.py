"""Whether nodes find rank 0 and tell of one job: what must be named, and what must not be said."""

from typing import Any

import pytest

from ncclprobe.checks.launch import TWO_NODES, meeting, mesh
from ncclprobe.checks.sync import roster
from ncclprobe.checks.sync.roster import missing
from ncclprobe.engine.judge import judge
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.names import Master
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.reach import Flood, Gathering, Proof, Reach, RollCall, Trouble
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

SEEN = Reach("node0", 29500, "ok", "", ("10.0.0.1",), "10.0.0.1", "10.0.0.5", "eth0", 9, 12.4)
FAR = Master("node0", ("10.0.0.1",))
NODE1 = replace(TWO_NODES, rank=8, node_rank=1)
FOUR = replace(TWO_NODES, nnodes=4, world_size=32, names=("gpu01", "gpu02", "gpu03", "gpu04"))
SEAT = RankProcess(0, 2, None, None, (), {}, 0)


@each_row(("waited_s", "allowed_s"), [(55.0, 60.0), (2.0, 2.0)])
def test_a_node_that_did_not_come_in_a_part_of_the_stated_wait_is_not_known_to_be_missing(
    waited_s: float, allowed_s: float
) -> None:
    launches = Every({"n0": TWO_NODES})
    short = Gathering(1, waited_s, allowed_s=allowed_s)
    with pytest.raises(Unlearned, match="did not join, but rank 0 waited no longer"):
        list(roster.node_missing.run(launches, Every({"n0": short})))
    (found,) = roster.node_missing.run(launches, Every({"n0": Gathering(1, 60.0, allowed_s=60.0)}))
    assert found.severity.value == "fail"


def four(*ranks: int, **changes: Any) -> Every[Launch]:
    """Of a job of four nodes, those with these node ranks."""
    return Every({f"gpu0{r + 1}": replace(FOUR, rank=8 * r, node_rank=r, **changes) for r in ranks})


def judged(check: Check, *nodes: dict[type, Any]) -> Verdict:
    snapshots = [Snapshot(f"n{i}", facts) for i, facts in enumerate(nodes)]
    return judge(snapshots, [check], Job())[0]


def reached(outcome: str, **details: Any) -> Finding:
    (finding,) = meeting.master_reach.run(replace(SEEN, outcome=outcome, seen=(outcome,), **details))
    return finding


@each_row(
    ("outcome", "blame"),
    [
        ("refused", "job"),
        ("filtered", "unknown"),
        ("unreachable", "unknown"),
        ("address", "node"),
        ("denied", "image"),
        ("foreign", "job"),
        ("stranger", "job"),
        ("a kind of tomorrow", "unknown"),
    ],
)
def test_how_rank_0_was_missed_says_whose_fault_that_may_be(outcome: str, blame: str) -> None:
    finding = reached(outcome)
    assert (finding.blame, finding.subject) == (blame, "node0:29500")
    assert finding.message.startswith(f"{outcome} from 10.0.0.5 (eth0)")
    assert "9 tries in 12 s" in finding.message
    assert finding.action != "none"


@each_row(
    ("outcome", "seen"),
    [("silent", ("silent",)), ("silent", ("hung-up", "silent")), ("filtered", ("refused", "hung-up", "filtered")),
     ("hung-up", ("silent", "hung-up"))],
)  # fmt: skip
def test_a_port_that_takes_calls_and_does_not_answer_or_hangs_up_is_no_failure(
    outcome: str, seen: tuple[str, ...]
) -> None:
    """A busy rank 0, and one that a crowd calls, look like this to a healthy node."""
    verdict = judged(
        meeting.master_reach, {Launch: NODE1, Master: FAR, Reach: replace(SEEN, outcome=outcome, seen=seen)}
    )
    assert (verdict.status, verdict.required, verdict.findings) == (Status.UNKNOWN, True, ())


def test_what_a_foreign_service_said_is_told() -> None:
    assert "SSH-2.0-OpenSSH_9.2" in reached("foreign", detail="it sent 'SSH-2.0-OpenSSH_9.2'").message


def test_what_was_seen_before_is_told_but_not_repeated() -> None:
    (finding,) = meeting.master_reach.run(replace(SEEN, outcome="filtered", seen=("refused", "filtered")))
    assert "before that: refused)" in finding.message


def test_an_ipv6_address_and_its_port_can_be_told_apart() -> None:
    assert reached("refused", target="fd00::1", address="fd00::1").subject == "[fd00::1]:29500"


@each_row("outcome", sorted(meeting._LAYERS))
def test_every_layer_has_a_remedy_of_its_own(outcome: str) -> None:
    finding = reached(outcome)
    assert finding.remedy
    assert finding.evidence


OTHERWISE_SAID = replace(SEEN, outcome="resolve"), replace(SEEN, outcome="refused")


@each_row(
    ("facts", "status"),
    [
        ({Launch: TWO_NODES, Master: FAR, Reach: Absent("not measured")}, Status.SKIP),
        ({Launch: NODE1, Master: Master("node0", failure="unknown"), Reach: OTHERWISE_SAID[0]}, Status.SKIP),
        ({Launch: NODE1, Master: Master("node0", ("127.0.1.1",)), Reach: OTHERWISE_SAID[1]}, Status.SKIP),
        ({Launch: NODE1, Master: FAR}, Status.UNKNOWN),
        ({Launch: NODE1, Master: FAR, Reach: SEEN}, Status.PASS),
    ],
    ids=["rank 0 itself", "a name of the check of names", "loopback of its own check", "not said", "got through"],
)
def test_only_a_node_that_should_have_called_is_asked_how_it_reached_rank_0(
    facts: dict[type, Any], status: Status
) -> None:
    verdict = judged(meeting.master_reach, facts)
    assert (verdict.status, verdict.required or status is not Status.UNKNOWN) == (status, True)


def test_two_nodes_with_one_node_rank_are_one_finding_however_many_ranks_they_claim() -> None:
    processes = Ranks({"gpu02": {8: SEAT, 9: SEAT}, "copy": {8: SEAT, 9: SEAT}})
    launches = Every({"gpu02": four(1).by_node["gpu02"], "copy": four(1).by_node["gpu02"]})
    (finding,) = meeting.rank_twice.run(launches, processes)
    assert (finding.subject, finding.nodes) == ("node rank 1", ("gpu02", "copy"))
    assert "rank [8-9]" in finding.message


def test_a_world_size_that_one_node_has_otherwise_names_that_node() -> None:
    launches = Every({**four(0, 1, 2).by_node, **four(3, world_size=24).by_node})
    (finding,) = meeting.world_agree.run(launches)
    assert finding.nodes == ("gpu04",)
    assert "1 of 4 nodes differs (gpu04: 24" in finding.message


def test_nodes_with_other_numbers_of_gpus_that_guess_the_number_of_nodes_do_not_disagree() -> None:
    of_eight = detect({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"})
    of_four = detect({"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"})
    assert (of_eight.nnodes, of_four.nnodes) == (2, 4)  # or this tests nothing
    assert list(meeting.world_agree.run(Every({"a": of_eight, "b": of_four}))) == []


def agree(*answers: tuple[str, ...], through: tuple[int, ...] = ()) -> list[Finding]:
    masters = Every({f"n{i}": Master("node0", addresses) for i, addresses in enumerate(answers)})
    return list(meeting.master_agree.run(masters, Every({f"n{i}": SEEN for i in through})))


def test_a_stale_entry_on_one_node_is_named() -> None:
    (finding,) = agree(("10.0.0.1",), ("10.0.0.1",), ("10.9.0.9",))
    assert (finding.severity.value, finding.nodes, finding.subject) == ("fail", ("n2",), "node0")


def test_another_address_over_which_rank_0_was_reached_is_a_warning() -> None:
    (finding,) = agree(("10.0.0.1",), ("10.0.0.1",), ("10.1.0.1",), through=(1, 2))
    assert finding.severity.value == "warn"
    assert "all of them reached rank 0 nevertheless" in finding.message


def test_a_rank_that_did_not_speak_is_named_by_its_local_number() -> None:
    processes = Ranks({"gpu01": {r: replace(SEAT, local_rank=r) for r in range(8) if r != 5}, "gpu02": {8: SEAT}})
    launches = Every({"gpu01": four(0).by_node["gpu01"], "gpu02": replace(NODE1, local_world_size=1)})
    (finding,) = meeting.rank_silent.run(launches, processes, Every({}))
    assert (finding.subject, finding.nodes) == ("gpu01 local rank 5", ("gpu01",))


def test_of_ranks_that_nobody_waited_for_nothing_is_known() -> None:
    snapshots = [
        Snapshot(f"n{i}", {Launch: replace(FOUR, node_rank=i)}, {8 * i: {RankProcess: SEAT}}) for i in range(4)
    ]
    (verdict,) = judge(snapshots, [meeting.rank_silent], Job())
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)
    alone = [replace(each, facts={Launch: replace(FOUR, local_world_size=1)}) for each in snapshots]
    assert judge(alone, [meeting.rank_silent], Job())[0].status is Status.SKIP


def test_ranks_that_were_waited_for_and_did_not_speak_are_told() -> None:
    facts = {Launch: replace(FOUR, node_rank=0), RollCall: RollCall(7)}
    (verdict,) = judge([Snapshot("n0", facts, {0: {RankProcess: SEAT}})], [meeting.rank_silent], Job())
    assert (verdict.status, verdict.findings[0].nodes) == (Status.FAIL, ("n0",))


@each_row(
    ("launches", "nodes"),
    [
        (four(0, 2), ("gpu02", "gpu04")),
        (four(0, 1, 2, 3), ()),
        (four(0, 3, names=()), ("node 1", "node 2")),
        (Every({"gpu01.cluster": replace(FOUR, node_rank=None), "gpu03": FOUR}), ("gpu02", "gpu04")),
        (Every({"a": replace(FOUR, node_rank=None, names=())}), ("?", "?", "?")),
        (Every({**four(0, 1, 2, 3).by_node, "gpu03": replace(FOUR, node_rank=2, nnodes=4096)}), ()),
    ],
    ids=["the scheduler's names", "none", "numbers", "by name", "counted", "one with a world of its own"],
)
def test_missing_nodes_have_their_names_else_their_numbers(launches: Every[Launch], nodes: tuple[str, ...]) -> None:
    assert missing(launches) == nodes


def test_a_node_count_without_end_is_not_believed() -> None:
    assert len(missing(Every({"a": Launch(nnodes=10**9, node_rank=0)}))) < 100_000


def absent(here: Every[Launch], *troubles: Trouble) -> list[Finding]:
    return list(roster.node_missing.run(here, Every({"gpu01": Gathering(3, 60.0, troubles)})))


def test_who_came_half_way_is_told_apart_from_who_never_came() -> None:
    half = Trouble("10.77.0.2", "silent", "stopped within a message of 90210 bytes", 1)
    came, never = sorted(absent(four(0, 2), half), key=lambda finding: finding.nodes)
    assert (never.nodes, came.nodes) == (("gpu04",), ("gpu02",))
    assert "stopped within a message" in came.message
    assert "10.77.0.2" in came.seen


def test_what_strangers_said_is_evidence_for_the_missing() -> None:
    (finding,) = absent(four(0, 1, 2), Trouble("10.77.0.4", "foreign", "it said 'hello'"))
    assert finding.nodes == ("gpu04",)
    assert "10.77.0.4: foreign (it said 'hello')" in finding.seen


def test_a_stranger_among_complete_nodes_is_only_noted() -> None:
    assert [f.severity.value for f in absent(four(0, 1, 2, 3), Trouble("10.0.0.9", "foreign", "hello"))] == ["note"]


def test_a_thousand_missing_nodes_are_one_finding() -> None:
    launches = Every({"n0": Launch("slurm", 0, 2048, 0, 1, 2048, 0, names=tuple(f"n{i}" for i in range(2048)))})
    babble = (Trouble(f"10.0.{i // 256}.{i % 256}", "foreign", "x") for i in range(20))
    (finding,) = roster.node_missing.run(launches, Every({"n0": Gathering(2047, 60.0, tuple(babble))}))
    assert finding.subject == "n[1-2047]"
    assert len(finding.seen) < 500


def test_a_guest_that_did_not_reach_rank_0_does_not_call_the_others_missing() -> None:
    verdict = judged(roster.node_missing, {Launch: replace(FOUR, node_rank=1), Gathering: Absent("not measured")})
    assert verdict.status is Status.SKIP


def test_nodes_that_came_and_were_lost_are_named_by_what_became_of_them() -> None:
    lost = (Trouble("10.0.0.2", "reset", "closed the connection", 1), Trouble("10.0.0.4", "silent", "said nothing", 3))
    findings = list(roster.node_lost.run(four(0, 1, 2, 3), Every({"gpu01": Gathering(3, 1.0, lost=lost)})))
    assert [(f.subject, f.nodes) for f in findings] == [("gpu02", ("gpu02",)), ("gpu04", ("gpu04",))]
    assert "(silent): said nothing" in findings[1].message


def test_a_node_that_says_that_rank_0_was_too_slow_for_it_is_unknown_and_no_dead_one() -> None:
    late = Trouble("10.0.0.2", "late", "left because rank 0 had not answered in time", 1)
    dead = Trouble("10.0.0.4", "reset", "hung up", 3)
    with pytest.raises(Unlearned, match="gpu02 left too late to report it to rank 0:"):
        list(roster.node_lost.run(four(0, 1, 2, 3), Every({"gpu01": Gathering(3, 1.0, lost=(late,))})))
    findings = list(roster.node_lost.run(four(0, 1, 2, 3), Every({"gpu01": Gathering(3, 1.0, lost=(late, dead))})))
    assert [finding.subject for finding in findings] == ["gpu04"]
    flooded = Gathering(3, 1.0, lost=(dead,), floods=(Flood("10.0.0.9", 3000),))
    with pytest.raises(Unlearned, match="gpu04 left too late to report it to rank 0, which was flooded"):
        list(roster.node_lost.run(four(0, 1, 2, 3), Every({"gpu01": flooded})))


def test_a_lost_node_is_not_missing_and_a_missing_one_not_lost() -> None:
    lost = Gathering(3, 1.0, lost=(Trouble("10.0.0.2", "reset", "closed", 1),))
    assert list(roster.node_missing.run(four(0, 1, 2, 3), Every({"gpu01": lost}))) == []
    assert list(roster.node_lost.run(four(0, 1), Every({"gpu01": Gathering(3, 60.0)}))) == []


def test_a_port_that_hangs_up_before_it_greets_is_unknown() -> None:
    with pytest.raises(Unlearned, match="closed the connection before it answered"):
        reached("hung-up")


def test_a_node_that_did_not_come_while_strangers_flooded_the_port_is_unknown() -> None:
    crowd = Gathering(3, 30.0, floods=(Flood("10.0.0.99", 7000),))
    with pytest.raises(Unlearned, match=r"gpu02.*launch\.port"):
        list(roster.node_missing.run(four(0, 2, 3), Every({"gpu01": crowd})))
    assert list(roster.node_missing.run(four(0, 1, 2, 3), Every({"gpu01": crowd}))) == []


def test_a_flood_names_its_addresses_the_busiest_first_and_counts_the_others() -> None:
    floods = tuple(Flood(f"10.0.0.{number}", number) for number in range(1, 8))
    (finding,) = mesh.port_flooded.run(Every({"n0": Gathering(1, 1.0, floods=floods)}), Every({}))
    assert "10.0.0.7 (7), 10.0.0.6 (6)" in finding.message
    assert "and 2 more" in finding.message


def test_nodes_without_a_secret_are_unknown_and_the_run_is_inconclusive() -> None:
    verdict = judged(mesh.unproven, {Proof: Proof("none", proved=False)}, {})
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, True)
    assert judged(mesh.unproven, {}).status is Status.SKIP
    assert judged(mesh.unproven, {Proof: Proof("munge", proved=True)}, {}).status is Status.PASS
