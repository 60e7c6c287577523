"""Culprits planted among healthy nodes are found, they and no others; what cannot be told is not claimed."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.localise.reach import Suspect, blame

Pair = tuple[int, int]
ONE_NODE = ("node", "into", "out of")


def everyone(nodes: int) -> set[Pair]:
    return set(permutations(range(nodes), 2))


def spoilt(kind: str, a: int, b: int, tested: set[Pair]) -> set[Pair]:
    wrong = {
        "node": lambda x, y: a in (x, y), "into": lambda x, y: y == a, "out of": lambda x, y: x == a,
        "pair": lambda x, y: {x, y} == {a, b}, "direction": lambda x, y: (x, y) == (a, b),
    }[kind]  # fmt: skip
    return {pair for pair in tested if wrong(*pair)}


def said(culprits: tuple[Suspect[int], ...]) -> set[tuple[str, tuple[int, ...]]]:
    return {(culprit.kind, culprit.nodes) for culprit in culprits}


def meant(kind: str, a: int, b: int) -> tuple[str, tuple[int, ...]]:
    if kind in ONE_NODE:
        return kind, (a,)
    return kind, tuple(sorted((a, b))) if kind == "pair" else (a, b)


KINDS = st.sampled_from([*ONE_NODE, "pair", "direction"])


@given(st.integers(5, 16), KINDS, KINDS, st.data())
def test_two_culprits_are_found_among_five_or_more(nodes: int, one: str, two: str, data: st.DataObject) -> None:
    a, b, c, d = data.draw(st.permutations(range(nodes)))[:4]
    tested = everyone(nodes)
    bad = spoilt(one, a, b, tested) | spoilt(two, c, d, tested)
    assert said(blame(tested, bad)) == {meant(one, a, b), meant(two, c, d)}


@given(st.integers(2, 10), st.data())
def test_every_bad_pair_is_explained_and_no_good_one_is_called_bad(nodes: int, data: st.DataObject) -> None:
    tested = data.draw(st.sets(st.sampled_from(sorted(everyone(nodes)))))
    bad = data.draw(st.sets(st.sampled_from(sorted(tested)))) if tested else set()
    told = [pair for culprit in blame(tested, bad) for pair in culprit.pairs]
    assert sorted(told) == sorted(bad)


def test_nine_of_ten_pairs_are_everything() -> None:
    bad = everyone(5) - {(0, 1), (1, 0)}
    assert said(blame(everyone(5), bad)) == {("everything", ())} != said(blame(everyone(5), bad - {(0, 2)}))
