"""What NCCL wrote of its own search and table is read, and what it did not write is refused in one line."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.expect.topology_text import MOST_BYTES, graph_dump, pattern_lines
from ncclprobe.expect.tuner.search import Graph, Graphs
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

RING = """<graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="30" speedinter="24.5" latencyinter="0.75"
 typeintra="NVL" typeinter="PXB" samechannels="0"><channel><gpu dev="0" rank="0"/><gpu dev="1" rank="1"/></channel>
</graph>"""
TREE = RING.replace('id="0" pattern="4"', 'id="1" pattern="1"')
NVLS = RING.replace('id="0" pattern="4"', 'id="3" pattern="5"').replace('nchannels="2"', 'nchannels="0"')


def dump(*graphs: str) -> str:
    return f'<graphs version="1">{"".join(graphs)}</graphs>'


LOG = """n:1:1 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1
n:1:1 [0] NCCL INFO  0 : GPU/0-3000 GPU/0-d000
n:1:1 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1
n:1:1 [0] NCCL INFO Pattern 5, crossNic 0, nChannels 8, bw 40.000000/60.000000, type NVL/PIX, sameChannels 0
"""


def test_a_dump_is_read_with_its_speeds_types_and_the_networks_latency() -> None:
    found = graph_dump(dump(RING, TREE), "graph.xml")
    assert found.ring == Graph(
        pattern=4,
        channels=2,
        bw_intra=30,
        bw_inter=24.5,
        type_intra="NVL",
        type_inter="PXB",
        same_channels=False,
        latency_inter_us=0.75,
    )
    assert found.tree.pattern == 1


def test_nvls_without_channels_is_no_nvls() -> None:
    assert graph_dump(dump(RING, TREE, NVLS), "graph.xml").nvls is None


@each_row(
    ("text", "why"),
    [
        ("", "no XML"),
        ("<graphs", "no XML"),
        ('<!DOCTYPE graphs [<!ENTITY a "b">]><graphs/>', "document type"),
        (dump(RING), "no tree"),
        (dump(RING.replace('"30"', '"nan"'), TREE), "speedintra is 'nan'"),
        (dump(RING.replace('"30"', '"999999999"'), TREE), "no speed of a link"),
        (dump(RING.replace("NVL", "WIRE"), TREE), "'WIRE' is no kind of path"),
        (dump(RING.replace('nchannels="2"', 'nchannels="4000"'), TREE), "4000 channels"),
        (" " * (MOST_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_dump_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"graph\.xml") as refused:
        graph_dump(text, "graph.xml")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_deep_nesting_ends_in_one_line() -> None:
    with pytest.raises(UsageError):
        graph_dump("<a>" * 100_000, "graph.xml")


def test_pattern_lines_replace_the_search() -> None:
    found = pattern_lines(LOG, "nccl.log")
    assert (found.ring.channels, found.ring.bw_intra, found.ring.type_intra) == (12, 30, "NVL")
    assert found.nvls is not None
    assert (found.nvls.channels, found.nvls.bw_inter) == (8, 60)


def test_lines_of_2_13_say_speed() -> None:
    old = "Pattern 4, crossNic 0, nChannels 4, speed 1.200000/1.200000, type SYS/SYS, sameChannels 0"
    assert pattern_lines(f"h:1:1 [0] NCCL INFO {old}\n", "nccl.log").ring.bw_inter == 1.2


def test_a_log_without_patterns_says_what_to_switch_on() -> None:
    with pytest.raises(UsageError, match="NCCL_DEBUG_SUBSYS=INIT,GRAPH"):
        pattern_lines("nothing\n", "nccl.log")


@given(st.one_of(st.text(max_size=300), st.builds(lambda a, b: LOG[:a] + b + LOG[a:], st.integers(0, 400), st.text())))
def test_no_text_breaks_the_readers(text: str) -> None:
    for read in (graph_dump, pattern_lines):
        assert _refusal(read, text).startswith("file")


def _refusal(read: Callable[[str, str], Graphs], text: str) -> str:
    try:
        read(text, "file")
    except UsageError as error:
        return str(error)
    return "file was read"
