"""What a run over rails asks of the fabric: decided before any node connects, and within its budget."""

import fnmatch

import pytest

from ncclprobe.cluster.rails.plan import ALL_ROUNDS, Budget, cross_wave, describe_plan, plan_rails, waves
from ncclprobe.commands import main, rails
from ncclprobe.engine.diagnose import every_check
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.pairs.suspects import round_robin
from tests.each_row import each_row

SIZES = [2, 3, 4, 16, 17, 64, 256, 1024]


@each_row("nodes", SIZES)
def test_a_plan_keeps_to_its_bytes_and_its_pairs_at_once(nodes: int) -> None:
    budget = Budget()
    plan = plan_rails(nodes, 8, 400, budget)
    assert plan.nic_bytes <= budget.nic_bytes
    assert plan.all_pairs or nodes > ALL_ROUNDS
    assert plan.rounds >= min(2, nodes - 1)
    names = {f"n{number}": list(range(8)) for number in range(nodes)}
    first = next(iter(round_robin(names, plan.rounds)))
    made = list(waves(first, plan))
    assert len(made) == plan.waves
    for wave in made:
        assert len({(job.one.node, job.other.node) for job in wave}) <= budget.at_once
        assert {job.together for job in wave} == {8}


@each_row(("nodes", "seconds"), [(4, 60), (64, 60), (1024, 120)])
def test_a_healthy_fleet_takes_about_a_minute(nodes: int, seconds: float) -> None:
    assert plan_rails(nodes, 8, 400, Budget()).seconds < seconds


def test_every_rail_is_tried_alone_before_all_of_a_node_are() -> None:
    plan = plan_rails(4, 3, 100, Budget())
    pairs = next(iter(round_robin({f"n{number}": [0, 1, 2] for number in range(4)})))
    alone = list(waves(pairs, plan, alone=True))
    assert len(alone) == plan.alone == 3
    for rail, wave in enumerate(alone):
        assert {(job.one.rail, job.other.rail, job.together) for job in wave} == {(rail, rail, 1)}


def test_rails_of_different_numbers_meet_where_there_are_several() -> None:
    plan = plan_rails(2, 2, 100, Budget(), cross=True)
    wave = cross_wave({"n0": [0, 1], "n1": [0, 1]}, [("n0", "n1")], plan)
    assert [(job.one, job.other) for job in wave] == [(End("n0", 0), End("n1", 1)), (End("n0", 1), End("n1", 0))]
    assert not cross_wave({"n0": [0], "n1": [0]}, [("n0", "n1")], plan)


def test_full_bisection_lets_all_send_at_once() -> None:
    some, full = plan_rails(1024, 8, 400, Budget()), plan_rails(1024, 8, 400, Budget(at_once=1 << 17))
    assert (some.waves, full.waves) == (32, 1)
    assert full.rounds > some.rounds


def test_a_plan_says_what_it_asks_of_the_fabric() -> None:
    assert describe_plan(plan_rails(64, 8, 400, Budget())).startswith("64 nodes with 8 rails of 400 Gb/s: 8 partners")


def test_one_node_without_others_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rails"]) == 2
    assert "this is only one" in capsys.readouterr().err


def test_whatever_is_judged_by_default_is_a_check() -> None:
    ids = [name for check in every_check() for name in (check.id, check.key)]
    assert [pattern for pattern in rails._SELECT if not fnmatch.filter(ids, pattern)] == []
