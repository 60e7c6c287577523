"""NCCL_ALGO and NCCL_PROTO: the grammar, and what it leaves."""

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.nccl.algorithms import ALGORITHMS, FUNCTIONS, PROTOCOLS, Pin, forces_ll128, parse_pin, stranded
from tests.each_row import each_row

NONE = Pin()


def every(*names: str) -> dict[str, set[str]]:
    return {function: set(names) for function in FUNCTIONS}


@each_row(
    ("text", "kept"),
    [
        ("", {}),
        ("ring", every("Ring")),
        ("Ring,,TREE", every("Ring", "Tree")),
        ("allreduce:tree", {"AllReduce": {"Tree"}}),
        ("ring;allreduce:tree", {**every("Ring"), "AllReduce": {"Tree"}}),
        ("broadcast:ring;;allreduce:^ring", {"Broadcast": {"Ring"}, "AllReduce": set(ALGORITHMS) - {"Ring"}}),
        ("^", every(*ALGORITHMS)),
        (":ring", every("Ring")),
    ],
)
def test_the_grammar_is_nccls(text: str, kept: dict[str, set[str]]) -> None:
    assert parse_pin(text, ALGORITHMS).kept == kept


@each_row("text", ["rng", "ring;tree", "allreduc:ring", "ring, tree", "allreduce:ring;tree", ";ring", "::"])
def test_what_nccl_refuses_is_refused(text: str) -> None:
    assert parse_pin(text, ALGORITHMS).error


def test_before_2_24_unknown_names_are_passed_over() -> None:
    pin = parse_pin("rng,tree", ALGORITHMS, (2, 23, 4))
    assert (pin.error, pin.ignored, pin.kept["AllReduce"]) == ("", ("rng",), frozenset({"Tree"}))


@each_row(
    ("algo", "proto", "left"),
    [
        ("", "", ()),
        ("ring", "", ()),
        ("tree", "", ("Broadcast", "Reduce", "AllGather", "ReduceScatter")),
        ("allreduce:tree", "", ()),
        ("allreduce:pat", "", ("AllReduce",)),
        ("allgather:nvls", "allgather:LL", ("AllGather",)),
        ("", "LL128", ()),
        ("allreduce:nvls,ring", "LL", ()),
    ],
)
def test_a_collective_without_any_algorithm_is_told(algo: str, proto: str, left: tuple[str, ...]) -> None:
    assert stranded(parse_pin(algo, ALGORITHMS), parse_pin(proto, PROTOCOLS)) == left


def test_ring_came_back_before_2_24() -> None:
    old = (2, 23, 4)
    assert stranded(parse_pin("tree", ALGORITHMS, old), NONE, version=old) == ()


@each_row(("proto", "left"), [("LL256", FUNCTIONS), ("^LL,LL128,Simple", FUNCTIONS), ("LL", ())])
def test_no_release_calls_without_a_protocol(proto: str, left: tuple[str, ...]) -> None:
    old = (2, 23, 4)
    assert stranded(NONE, parse_pin(proto, PROTOCOLS, old), version=old) == left
    assert stranded(parse_pin("tree", ALGORITHMS, old), parse_pin(proto, PROTOCOLS, old), version=old) == left


def test_what_the_machine_lacks_is_not_left() -> None:
    pin = parse_pin("allreduce:nvls", ALGORITHMS)
    assert stranded(pin, NONE) == ()
    assert stranded(pin, NONE, frozenset({"NVLS"})) == ("AllReduce",)


@each_row(("text", "forced"), [("LL128", True), ("^LL", True), ("^LL128", False), ("Simple", False), ("", False)])
def test_ll128_is_forced_also_by_excluding_others(text: str, forced: bool) -> None:
    assert forces_ll128(parse_pin(text, PROTOCOLS)) is forced


@given(st.text(alphabet="ring,;:^LL128treall ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    pin = parse_pin(text, ALGORITHMS)
    assert not (pin.kept and pin.error)
