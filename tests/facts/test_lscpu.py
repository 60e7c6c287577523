"""`lscpu`."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.errors import ParseError
from ncclprobe.facts.lscpu import Lscpu, parse

TEXT = """\
CPU(s):                  48      // as many as there are
  On-line CPU(s) list:   0-47
NUMA node(s):            2
NUMA node0 CPU(s):       0-5,24-29
NUMA node8 CPU(s):
"""


def test_a_node_may_have_no_cpus_and_lines_a_remark() -> None:
    assert parse(TEXT) == Lscpu({0: "0-5,24-29", 8: ""}, "0-47")


def test_lines_of_nodes_alone_are_enough() -> None:
    assert parse("NUMA node1 CPU(s):  32-63") == Lscpu({1: "32-63"})


def test_text_that_is_cut_says_what_is_missing() -> None:
    assert parse("\n".join(TEXT.splitlines()[:4])).incomplete == ("1 NUMA nodes of 2",)


@pytest.mark.parametrize("text", ["", "Architecture: x86_64", "NUMA node0 CPU(s): all", "NUMA node0 CPU(s): 1-2-3"])
def test_what_names_no_node_or_no_cpus_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@given(st.lists(st.sampled_from([*TEXT.splitlines(), "NUMA node(s): x"])).map("\n".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ParseError):
        assert parse(text).numa
