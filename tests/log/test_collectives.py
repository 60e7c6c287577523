"""Where ranks parted, from their flight records."""

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import AllEntered, CameLate, Crossed, NotEntered, Parted, caller, judge


def test_the_first_difference_is_named_with_the_few_that_differ() -> None:
    (found,) = judge(recorded({0: "a all_reduce* b?", 1: "a all_reduce* b?", 2: "a broadcast* c?"}))
    assert isinstance(found, Parted)
    assert (found.how, found.other_ranks, found.usual.seq, found.tied) == ("operation", (2,), 2, False)
    assert found.others[0].caller == FlightFrame("step", "train.py", 11)


def test_two_ranks_that_differ_are_a_tie() -> None:
    (found,) = judge(recorded({0: "all_reduce*", 1: "broadcast*"}))
    assert isinstance(found, Parted)
    assert found.tied


def how(usual: str, other: str) -> str:
    (found,) = judge(recorded({0: usual, 1: usual, 2: other}))
    assert isinstance(found, Parted)
    assert found.other_ranks == (2,)
    return found.how


def test_ways_to_differ() -> None:
    assert how("all_reduce:8*", "all_reduce:16*") == "size"
    assert how("all_reduce:8:Half*", "all_reduce:8:Float*") == "type"
    assert how("all_reduce* broadcast?", "broadcast* all_reduce?") == "order"
    assert how("all_reduce* broadcast? gather?", "broadcast* gather?") == "skipped"
    assert how("all_reduce* broadcast?", "barrier* all_reduce? broadcast?") == "additional"


def test_sizes_that_may_differ_are_no_difference() -> None:
    assert judge(recorded({0: "all_to_all:8 a", 1: "all_to_all:16 a"})) == ()
    assert judge(recorded({0: "some_new_operation:8", 1: "some_new_operation:16"})) == ()


def test_a_rank_that_lives_and_did_not_come() -> None:
    (found,) = judge(recorded({0: "a b*", 1: "a b*", 2: "a"}))
    assert isinstance(found, NotEntered)
    assert (found.missing, found.waiting, found.last[0].seq, found.undumped) == ((2,), (0, 1), 1, ())


def test_a_rank_that_never_called_a_collective_did_not_come_either() -> None:
    (found,) = judge(recorded({0: "1=0,1/a*", 1: "0/b", 2: "0/b"}, world=3))
    assert isinstance(found, NotEntered)
    assert (found.missing, found.last[0].call.op) == ((1,), "b")


def test_a_rank_without_a_dump_is_not_judged() -> None:
    (found,) = judge(recorded({0: "a*", 1: "a*", 5: "a?"}, world=8))
    assert isinstance(found, AllEntered)
    assert (found.undumped, found.started, found.scheduled) == ((2, 3, 4, 6, 7), (0, 1), (5,))


def test_gloo_says_only_who_is_behind() -> None:
    (found,) = judge(recorded({0: "a b", 1: "a b", 2: "a"}, backend="gloo"))
    assert isinstance(found, NotEntered)
    assert found.missing == (2,)
    assert judge(recorded({0: "a b", 1: "a b"}, backend="gloo")) == ()


def test_of_gloo_the_last_collective_counts_as_unfinished_where_a_rank_left_no_dump() -> None:
    (found,) = judge(recorded({0: "a b", 1: "a b"}, world=3, backend="gloo"))
    assert isinstance(found, AllEntered)
    assert (found.undumped, found.ended, found.entry.seq) == ((2,), (0, 1), 2)


def test_a_rank_that_waits_in_another_group_is_not_the_one_to_blame() -> None:
    """Ranks 0 and 2 wait for rank 1, which waits with rank 3 in a group of theirs for rank 3 alone."""
    (found,) = judge(recorded({0: "1=0,1/x*", 1: "2=1,3/y*", 2: "0/b", 3: "0/b 2=1,3/y y"}, world=4))
    assert isinstance(found, AllEntered)
    (found,) = judge(recorded({0: "1=0,1/x*", 1: "2=1,3/y*", 3: "0/b 2=1,3/z"}, world=4))
    assert isinstance(found, Parted)
    (found,) = judge(recorded({0: "1=0,1/x*", 1: "2=1,3/y*", 3: "0/b"}, world=4))
    assert isinstance(found, NotEntered)
    assert (found.missing, found.waiting) == ((3,), (1,))


def test_groups_called_in_different_orders_wait_in_a_circle() -> None:
    (found,) = judge(recorded({0: "1=0,1/x* 2=0,1/y?", 1: "2=0,1/y* 1=0,1/x?"}))
    assert isinstance(found, Crossed)
    (found,) = judge(recorded({0: "1=0,1/x*", 1: "2=0,1/y*"}))
    assert isinstance(found, Crossed)
    assert found.ranks == ((0,), (1,))


def test_a_receive_without_its_send() -> None:
    (found,) = judge(recorded({0: "a", 1: "a recv_1<-0*"}))
    assert isinstance(found, NotEntered)
    assert (found.missing, found.waiting) == ((0,), (1,))
    (found,) = judge(recorded({0: "a send_0->1*", 1: "a recv_1<-0*"}))
    assert isinstance(found, AllEntered)


def test_a_pipeline_is_held_up_by_its_first_rank_that_is_in_no_call() -> None:
    (found,) = judge(recorded({0: "a", 1: "a recv_1<-0*", 2: "a recv_2<-1*", 3: "a recv_3<-2*"}))
    assert isinstance(found, NotEntered)
    assert (found.missing, found.waiting) == ((0,), (1,))


def test_a_rank_that_came_later_than_the_timeout_by_its_own_clock() -> None:
    """Rank 1's clock is an hour ahead: only differences of one clock count."""
    late = recorded({0: "a@1 b!@2", 1: "a@3601 b*@3672", 2: "a@1 b!@2"}, timeout_s=60)
    (found,) = judge(late)
    assert isinstance(found, CameLate)
    assert (found.rank, found.late_s, found.waiting) == (1, 70.0, (0, 2))
    assert not isinstance(judge(recorded({0: "a@1 b*@2", 1: "a@3601 b*@3602"}, timeout_s=60))[0], CameLate)


def test_what_all_finished_is_no_failure() -> None:
    (found,) = judge(recorded({0: "all_reduce:8 a", 1: "all_reduce:16 a"}))
    assert isinstance(found, Parted)
    assert found.finished


def test_recorders_that_dropped_their_oldest_entries_are_compared_by_number() -> None:
    a = recorded({0: "a b c*"}, world=2, first=100).dumps
    b = recorded({1: "b c*"}, world=2, first=101).dumps
    records = recorded({0: "a"})
    (found,) = judge(type(records)((*a, *b)))
    assert isinstance(found, AllEntered)


def test_the_caller_is_the_programs_own_frame() -> None:
    torch = FlightFrame("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1)
    library = FlightFrame("reduce", "/v/lib/python3.11/site-packages/deepspeed/comm/comm.py", 2)
    own = FlightFrame("step", "/opt/job/train.py", 3)
    assert caller((torch, library, own)) == own
    assert caller((torch, library)) == library
    assert caller((torch,)) == torch
    elsewhere = FlightFrame("all_reduce", "/opt/site/torch/distributed/distributed_c10d.py", 1)
    assert caller((FlightFrame("wrapper", "/opt/site/typing_extensions.py", 4), elsewhere, own)) == own
    assert caller(()) is None
    run, script = (FlightFrame("<module>", path, 9) for path in ("<frozen runpy>", "/v/bin/train"))
    package = FlightFrame("fit", "/v/lib/python3.11/site-packages/acme/fit.py", 4)
    queue = FlightFrame("get", "/usr/lib/python3.11/queue.py", 5)
    for stack, wanted in (
        ((torch, FlightFrame("step", "/home/u/torch/train.py", 3)), 1),  # a program's own folder of that name
        ((queue, library, package, script), 2),  # an installed program: its package, by its script
        ((queue, package, run), 1),
        ((queue, FlightFrame("f", "<string>", 3)), 1),
    ):
        assert caller(stack) == stack[wanted]
