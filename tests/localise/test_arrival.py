"""Who has come to the store at which a job's ranks meet: the sentences. All else is kept (meeting.py)."""

from tests.localise.meeting import ASKS, COME, LISTENS, SERVER, SLEEPS, WAITS, call, init, not_stuck, replace


def test_ranks_that_are_past_init_or_only_just_in_it_are_not_called_stuck_there() -> None:
    rows = not_stuck()
    stuck = [name for name, found in rows.items() if found.answer.word == "STUCK" and "init" in found.answer.message]
    assert (stuck, len(rows)) == ([], 9)


def test_a_rank_that_waits_in_init_is_told_with_those_that_have_not_come() -> None:
    no_process = "rank 1 has not connected: no process of it on this node"
    three, other_port = {0: SLEEPS, 1: WAITS, 2: SLEEPS}, {2: {"master_port": 29501}}
    joined = (replace(call(102), peer="10.0.0.5:29501"),) * 2
    held = (replace(LISTENS, pid=0, stranger="4711 (python3)"),)
    rows = [
        (init({0: SLEEPS}, 2, (ASKS,), SERVER), f"rank 0 of 2 has arrived at 10.0.0.5:29500 41 s ago; {no_process}"),
        (init({0: SLEEPS, 1: WAITS}, 2, (ASKS,), SERVER), "rank 1 has not connected: it is waiting for input (poll)"),
        (init({1: WAITS}, 2, (COME,), held), "process 4711 (python3) listens at 10.0.0.5:29500, and is not a rank"),
        (init(three, 3, (ASKS, COME, joined), SERVER, own=other_port),
         "ranks 0-1 of 3 have arrived at 10.0.0.5:29500 50 s ago; rank 2 has joined another store, 10.0.0.5:29501"),
        (init(three, 3, (ASKS, COME), SERVER, own={0: {"world_size": 4}}),
         "in init for 60 s: rank 0 was started with WORLD_SIZE=4, ranks 1-2 with 3; ranks 1-2 are waiting for 3 ranks"),
    ]  # fmt: skip
    assert [(found.answer.word, words in found.answer.message) for found, words in rows] == [("STUCK", True)] * 5
