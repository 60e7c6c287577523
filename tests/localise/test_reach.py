"""Culprits planted among healthy nodes are found, they and no others; what cannot be told is not claimed."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.plan import steps
from ncclprobe.localise import reach
from ncclprobe.localise.reach import Suspect, blame
from tests.each_row import each_row

Pair = tuple[int, int]
ONE_NODE = ("node", "into", "out of")


def everyone(nodes: int) -> set[Pair]:
    return set(permutations(range(nodes), 2))


def sampled(nodes: int) -> set[Pair]:
    return {(me, (me + step) % nodes) for me in range(nodes) for step in steps(nodes, limit=8)}


def spoilt(kind: str, a: int, b: int, tested: set[Pair]) -> set[Pair]:
    wrong = {
        "node": lambda x, y: a in (x, y),
        "into": lambda x, y: y == a,
        "out of": lambda x, y: x == a,
        "pair": lambda x, y: {x, y} == {a, b},
        "direction": lambda x, y: (x, y) == (a, b),
    }[kind]
    return {pair for pair in tested if wrong(*pair)}


def said(culprits: tuple[Suspect[int], ...]) -> set[tuple[str, tuple[int, ...]]]:
    return {(culprit.kind, culprit.nodes) for culprit in culprits}


def meant(kind: str, a: int, b: int) -> tuple[str, tuple[int, ...]]:
    if kind in ONE_NODE:
        return kind, (a,)
    return kind, tuple(sorted((a, b))) if kind == "pair" else (a, b)


KINDS = st.sampled_from([*ONE_NODE, "pair", "direction"])


@given(st.integers(3, 16), KINDS, st.data())
def test_one_culprit_is_found_among_three_or_more(nodes: int, kind: str, data: st.DataObject) -> None:
    a, b = data.draw(st.permutations(range(nodes)))[:2]
    tested = everyone(nodes)
    bad = spoilt(kind, a, b, tested)
    culprits = blame(tested, bad)
    assert said(culprits) == {meant(kind, a, b)}
    assert set(culprits[0].pairs) == bad


@given(st.integers(5, 16), KINDS, KINDS, st.data())
def test_two_culprits_are_found_among_five_or_more(nodes: int, one: str, two: str, data: st.DataObject) -> None:
    a, b, c, d = data.draw(st.permutations(range(nodes)))[:4]
    tested = everyone(nodes)
    bad = spoilt(one, a, b, tested) | spoilt(two, c, d, tested)
    assert said(blame(tested, bad)) == {meant(one, a, b), meant(two, c, d)}


@given(st.integers(9, 200), st.sampled_from(ONE_NODE), st.data())
def test_a_node_is_found_where_only_some_pairs_were_tested(nodes: int, kind: str, data: st.DataObject) -> None:
    a = data.draw(st.integers(0, nodes - 1))
    tested = sampled(nodes)
    assert said(blame(tested, spoilt(kind, a, a, tested))) == {(kind, (a,))}


@given(st.integers(2, 10), st.data())
def test_every_bad_pair_is_explained_and_no_good_one_is_called_bad(nodes: int, data: st.DataObject) -> None:
    tested = data.draw(st.sets(st.sampled_from(sorted(everyone(nodes)))))
    bad = data.draw(st.sets(st.sampled_from(sorted(tested)))) if tested else set()
    told = [pair for culprit in blame(tested, bad) for pair in culprit.pairs]
    assert sorted(told) == sorted(bad)


def test_nothing_bad_is_nobodys_fault() -> None:
    assert blame(everyone(4), set()) == ()


@each_row(("bad", "kind"), [({(0, 1), (1, 0)}, "pair"), ({(1, 0)}, "direction")])
def test_of_two_nodes_neither_can_be_blamed(bad: set[Pair], kind: str) -> None:
    assert [culprit.kind for culprit in blame(everyone(2), bad)] == [kind]


def test_two_dead_of_four_are_two_nodes_and_their_partners_are_not_suspected() -> None:
    bad = {pair for pair in everyone(4) if set(pair) & {0, 1}}
    assert said(blame(everyone(4), bad)) == {("node", (0,)), ("node", (1,))}


def test_where_nothing_works_nobody_is_singled_out() -> None:
    for nodes in (3, 8):
        assert said(blame(everyone(nodes), everyone(nodes))) == {("everything", ())}
    nearly = everyone(8) - {(0, 1), (2, 3)}
    assert said(blame(everyone(8), nearly)) == {("everything", ())}


def test_two_halves_of_a_fabric_are_a_split_not_many_pairs() -> None:
    bad = {(a, b) for a, b in everyone(8) if (a < 3) != (b < 3)}
    (culprit,) = blame(everyone(8), bad)
    assert (culprit.kind, culprit.nodes, culprit.tests) == ("split", (0, 1, 2), 30)
    beside = bad | spoilt("node", 4, 4, everyone(8))
    assert said(blame(everyone(8), beside)) == {("split", (0, 1, 2)), ("node", (4,))}


def test_a_node_that_fails_mostly_is_still_that_node() -> None:
    bad = spoilt("node", 3, 3, everyone(8)) - {(3, 4), (6, 3)}
    (culprit,) = blame(everyone(8), bad)
    assert (culprit.kind, culprit.nodes, len(culprit.pairs), culprit.tests) == ("node", (3,), 12, 14)


def test_two_streams_in_each_direction_tell_which_end_is_slow() -> None:
    streams = {(me, (me + step) % 8) for me in range(8) for step in (1, 2)}
    assert said(blame(streams, {(3, 4), (3, 5)})) == {("out of", (3,))}
    assert said(blame(streams, {(3, 4), (2, 4)})) == {("into", (4,))}
    assert said(blame(streams, {(3, 4)})) == {("direction", (3, 4))}


def test_of_a_thousand_nodes_the_bad_ones_are_named() -> None:
    tested = sampled(1024)
    bad = {pair for pair in tested if pair[0] % 100 == 7 or pair[1] % 100 == 7}
    assert said(blame(tested, bad)) == {("node", (node,)) for node in range(7, 1024, 100)}


def test_a_few_segments_sent_again_are_no_loss() -> None:
    counts = {(0, 1): (4, 150), (1, 2): (30, 90), (2, 3): (9, 1000), (3, 0): (11, 1000)}
    assert reach.lossy(counts) == {(3, 0)}
