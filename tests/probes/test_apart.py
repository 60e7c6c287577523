"""Who comes late, told from rounds made up here: clocks that differ, hosts that stop, links that are slow."""

import pytest

from ncclprobe.model.measurement import Skew
from ncclprobe.probes.arrival_skew import ROUNDS, WAIT_S, Arrival, arrive, rounds, skew
from ncclprobe.probes.clock import CpuClock
from tests.each_row import each_row

TRANSFER_S = 200e-6


def made(ranks: int, count: int, late_s: dict[tuple[int, int], float], clocks_s: dict[int, float]) -> Skew:
    """Rounds in which rank r comes `late_s[r, round]` late, on clocks that are `clocks_s` ahead."""
    by_rank: dict[int, list[Arrival]] = {rank: [] for rank in range(ranks)}
    for number in range(count):
        left = float(number)
        came = [left + WAIT_S + late_s.get((rank, number), 0.0) for rank in range(ranks)]
        over = max(came) + TRANSFER_S
        for rank, at in enumerate(came):
            ahead = clocks_s.get(rank, 0.0)
            by_rank[rank].append(Arrival(left + ahead, at + ahead, over - at))
    found = skew(by_rank)
    assert found is not None
    return found


def test_ranks_that_come_together_have_no_skew_whatever_their_clocks_say() -> None:
    found = made(3, 8, {}, clocks_s={1: 1e6, 2: -7.0})
    assert found.transfer_us == pytest.approx(200, abs=0.01)
    assert found.arrival_us == pytest.approx(0, abs=0.01)
    assert found.late_rounds == (0, 0, 0)


def test_a_late_rank_is_named_and_the_transfer_is_what_the_last_to_come_sees() -> None:
    found = made(3, 8, {(2, number): 30e-3 for number in (1, 4)}, clocks_s={2: 500.0})
    assert found.late_us == pytest.approx((0, 0, 7500), abs=0.1)
    assert found.late_rounds == (0, 0, 2)
    assert found.arrival_us == pytest.approx(7500, abs=0.1)
    assert found.transfer_us == pytest.approx(200, abs=0.1)


def test_a_rank_that_the_barrier_lets_go_late_is_not_itself_late() -> None:
    """Whoever was stopped in the barrier may have kept the others there."""
    on_time = [Arrival(float(number), number + WAIT_S, 0.1) for number in range(4)]
    kept = [*on_time[:3], Arrival(3.05, 3.05 + WAIT_S, 0.05)]
    found = skew({0: on_time, 1: kept})
    assert found is not None
    assert found.late_us == pytest.approx((0, 0), abs=0.01)
    assert found.arrival_us == pytest.approx(50e3 / 4)


def test_a_late_rank_zero_is_named_too() -> None:
    found = made(2, 8, {(0, number): 5e-3 for number in range(8)}, clocks_s={0: 500.0})
    assert found.late_rounds == (8, 0)


def test_a_slow_link_makes_nobody_late() -> None:
    slow = [Arrival(float(number), number + WAIT_S, 0.5) for number in range(4)]
    found = skew({0: slow, 1: slow})
    assert found is not None
    assert found.transfer_us == pytest.approx(5e5)
    assert found.late_us == pytest.approx((0, 0), abs=0.01)


def test_without_rounds_nothing_is_known() -> None:
    assert skew({}) is None
    assert skew({0: [], 1: []}) is None


@each_row(("call_s", "number"), [(1e-4, ROUNDS), (0.05, 4), (0.1, 0), (10.0, 0), (0.0, ROUNDS)])
def test_long_calls_are_not_made_again_for_this(call_s: float, number: int) -> None:
    assert rounds(call_s, budget_s=2.0) == number


class Alone(CpuClock):
    """The real clock, without a group."""

    def barrier(self) -> None:
        """Nobody else is here."""


def test_an_appointment_is_kept_on_the_real_clock() -> None:
    calls: list[float] = []
    found = arrive(lambda: calls.append(Alone.now()), Alone())
    assert found.came_s - found.left_s >= WAIT_S
    assert found.came_s <= calls[0] <= found.came_s + found.inside_s
