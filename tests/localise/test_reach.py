"""Culprits planted among healthy nodes are found, they and no others; what cannot be told is not claimed."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.cluster.mesh.plan import steps
from ncclprobe.localise import reach
from ncclprobe.localise.reach import Suspect, blame

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


def test_a_few_segments_sent_again_are_no_loss_and_nine_of_ten_pairs_are_everything() -> None:
    bad = everyone(5) - {(0, 1), (1, 0)}
    assert said(blame(everyone(5), bad)) == {("everything", ())} != said(blame(everyone(5), bad - {(0, 2)}))
    counts = {(0, 1): (4, 150), (1, 2): (30, 90), (2, 3): (9, 1000), (3, 0): (11, 1000)}
    assert reach.lossy(counts) == {(3, 0)}
