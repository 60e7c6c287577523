"""`numactl -H`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.errors import ParseError
from ncclprobe.facts.numactl import Numactl, NumactlNode, parse

TEXT = """\
available: 2 nodes (0,8)
node 0 cpus: 0 2
node 0 size: 515192 MB
node 0 free: 506918 MB
node 8 cpus:
node 8 size: 97280 MB
node 8 free: 97000 MB
node distances:
node   0   8\x20
  0:  10  80\x20
  8:  80  10
"""


def test_nodes_may_be_far_apart_in_number_and_without_cpus() -> None:
    assert parse(TEXT) == Numactl((NumactlNode(0, (0, 2), 515192, (10, 80)), NumactlNode(8, (), 97280, (80, 10))))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (10, ("node 8: distances",)),
        (8, ("node 0: distances", "node 8: distances")),
        (5, ("node 8: size", "node 0: distances", "node 8: distances")),
        (3, ("node 0: distances", "1 nodes of 2")),
    ],
)
def test_text_that_is_cut_says_what_is_missing(lines: int, said: tuple[str, ...]) -> None:
    assert parse("\n".join(TEXT.splitlines()[:lines])).incomplete == said


@pytest.mark.parametrize("text", ["", "No NUMA support available", TEXT + TEXT, TEXT.replace("10  80", "10")])
def test_what_names_no_node_or_contradicts_itself_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@given(st.lists(st.sampled_from([*TEXT.splitlines(), "node 1 cpus: x", "9: 1 2 3"])).map("\n".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ParseError):
        assert parse(text).nodes
