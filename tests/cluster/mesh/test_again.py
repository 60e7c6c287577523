"""The second look: who gets one, and that the better one counts."""

from ncclprobe.cluster.mesh.plan import Call, NodePlan
from ncclprobe.cluster.mesh.walk import doubtful, merged
from ncclprobe.facts.reach import Path, Paths
from ncclprobe.model.values import replace


def row(to: int, rate: float | None = 10.0, resent: int = 0, outcome: str = "ok") -> Path:
    return Path(to, "nccl0", "eth0", "10.0.0.9", f"10.0.0.{to}", outcome, rate_gbps=rate, resent=resent, segments=1000)


def seen(*rows: Path, me: int = 0) -> Paths:
    return Paths(me, {}, (), rows)


PLANS = {
    me: NodePlan(me, {}, tuple(Call(to, "nccl0", f"10.0.0.{to}", 1) for to in range(4) if to != me)) for me in range(4)
}
HEALTHY = {me: seen(row((me + 1) % 4), row((me + 2) % 4), row((me + 3) % 4, None), me=me) for me in range(4)}


def again(**changed: Path) -> dict[int, list[int]]:
    plans = doubtful(PLANS, HEALTHY | {2: seen(*changed.values(), me=2)})
    return {rank: [call.to for call in plan.calls] for rank, plan in plans.items()}


def test_a_healthy_mesh_is_not_looked_at_twice() -> None:
    assert doubtful(PLANS, HEALTHY) == {}


def test_what_is_slow_or_lost_packets_is_looked_at_again_by_its_sender() -> None:
    assert again(a=row(3, 4.0), b=row(0), c=row(1, None)) == {2: [3]}
    assert again(a=row(3, 10.0, resent=20), b=row(0)) == {2: [3]}
    assert again(a=row(3), b=row(1, None, resent=20)) == {2: [1]}


def test_what_failed_or_lost_next_to_nothing_is_not() -> None:
    assert again(a=row(3, None, resent=20, outcome="stalled-back"), b=row(0), c=row(1, None, resent=4)) == {}


def test_a_path_too_slow_for_any_job_is_looked_at_again_though_all_are_as_slow() -> None:
    slow = {me: seen(row(1 - me, 0.002), me=me) for me in range(2)}
    assert {rank: plan.thorough for rank, plan in doubtful(PLANS, slow).items()} == {0: True, 1: True}


def test_where_large_messages_stall_the_second_look_says_which_packets_pass() -> None:
    lost = [row(to, None, outcome="stalled-out") for to in (0, 1, 3)]
    assert again(**{f"to{each.to}": each for each in lost}) == {2: [0, 1]}
    sized = replace(lost[0], passes=1280, tries=2)
    both = merged(seen(*lost), seen(sized))
    assert [(each.passes, each.tries) for each in both.rows] == [(1280, 3), (None, 1), (None, 1)]


def test_what_stalled_and_was_only_slow_is_slow_and_unknown_where_no_stream_tells() -> None:
    first = seen(row(1, None, outcome="stalled-out"), row(2, None, outcome="stalled-out"))
    both = merged(first, seen(row(1, 0.0), row(2, None)))
    assert [(each.outcome, each.rate_gbps, each.streams) for each in both.rows] == [("ok", 0.0, 2), ("late", None, 2)]


def test_of_two_looks_the_better_one_counts() -> None:
    first = seen(row(1, 1.0, resent=30), row(2, None, resent=30), row(3, 9.0))
    both = merged(first, seen(row(1, 8.0, resent=2), row(2, 7.0, resent=1), row(3, 1.0, outcome="reset")))
    assert [(r.rate_gbps, r.resent, r.streams) for r in both.rows] == [(8.0, 2, 2), (7.0, 1, 2), (9.0, 0, 1)]
