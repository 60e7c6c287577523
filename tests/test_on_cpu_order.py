"""In which order a rank calls CUDA and NCCL when it measures: traced with torch and NCCL on a processor, judged here.

They were recorded on a stand-in of CUDA; no duration in them means anything.
"""

import gzip
import json
from pathlib import Path

import pytest

from tests import cuda_calls as calls
from tests.each_row import each_row, some

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "data" / "on_cpu"
TRACES = sorted(RECORDED.glob("order-*/calls.*.gz"))
NAMES = {
    "all_reduce": "AllReduce",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
}
BARRIER = ["call AllReduce 4096 4096 4 0 2", "kernel"]
BATCH = ["mark 1 idle", "launch graph 1", "mark 2 busy", "synchronise", "elapsed 1 2"]
GRAPH = ["captured 1", "launch graph 1", *BARRIER, *BATCH]


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def mode(path: Path) -> str:
    return path.parent.name.removeprefix("order-")


def rows_of(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(gzip.decompress((path.parent / "report.json.gz").read_bytes()))[
        "measurements"
    ]
    return found


def test_each_way_of_timing_was_traced_on_every_rank() -> None:
    assert [(mode(path), path.suffixes[0]) for path in TRACES] == [
        (each, f".{rank}") for each, ranks in (("blocking", 2), ("graph", 2), ("queued", 4)) for rank in range(ranks)
    ]


@pytest.mark.slow
@each_row("path", TRACES, ids=lambda path: f"{mode(path)}{path.suffixes[0]}")
def test_batches_begin_on_an_idle_device_after_connections_exist_and_graphs_go_before_nccl(path: Path) -> None:
    lines, rows = lines_of(path), rows_of(path)
    assert calls.wrong_order(lines) == []
    assert lines.count("destroy") == 1
    assert lines.index("init") < lines.index("kernel")
    assert sum(line.startswith("captured") for line in lines) == (len(rows) if mode(path) == "graph" else 0)


@pytest.mark.slow
@each_row("path", TRACES, ids=lambda path: f"{mode(path)}{path.suffixes[0]}")
def test_a_batch_holds_the_calls_that_its_row_says_and_nothing_else(path: Path) -> None:
    lines, rows = lines_of(path), rows_of(path)
    waited = len(rows) if mode(path) == "blocking" else 0
    assert calls.waits_between(lines, 5) == waited
    full = [[line for line in batch if line.startswith(("kernel", "launch"))] for _, _, *batch in calls.batches(lines)]
    wanted = {"queued": ["kernel"] * 5, "graph": ["launch graph"], "blocking": [""]}[mode(path)]
    whole = [[line.rstrip("0123456789 ") for line in batch] for batch in full]
    assert whole.count(wanted) == (0 if mode(path) == "blocking" else len(rows))


@pytest.mark.slow
@each_row("path", TRACES, ids=lambda path: f"{mode(path)}{path.suffixes[0]}")
def test_rows_in_place_have_nccls_layout_and_the_others_two_buffers(path: Path) -> None:
    known = calls.layouts(lines_of(path))
    for row in some(rows_of(path)):
        if name := NAMES.get(str(row["op"])):
            shares = int(str(row["ranks"])) if name in ("AllGather", "ReduceScatter") else 1  # as nccl-tests counts
            assert (name, int(str(row["nbytes"])) // shares, row["place"] == "in") in known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["kernel", "synchronise", "mark 1 idle", "kernel", "mark 2 busy", "elapsed 1 2"], "without a barrier"),
        ([*BARRIER, "mark 1 busy", "kernel", "mark 2 busy", "elapsed 1 2"], "before the device is idle"),
        ([*BARRIER, "mark 1 idle", "kernel", "memory 4096", "mark 2 busy", "elapsed 1 2"], "within a timed batch"),
        ([*GRAPH, "destroy", "destroy graph 1"], "the communicator goes before 1 graphs"),
        ([*GRAPH, "destroy"], "is never destroyed"),
    ],
)
def test_a_wrong_order_is_seen(lines: list[str], said: str) -> None:
    assert any(said in each for each in calls.wrong_order(lines))


@pytest.mark.slow
def test_the_right_order_of_a_graph_is_right() -> None:
    assert calls.wrong_order([*GRAPH, "destroy graph 1", "destroy"]) == []


@pytest.mark.slow
def test_buffers_that_overlap_otherwise_than_nccl_says_are_seen() -> None:
    assert calls.layouts(["call AllGather 1256 1000 256 1 2"]) == {("AllGather", 256, True)}
    assert calls.layouts(["call ReduceScatter 1000 1256 256 1 2"]) == {("ReduceScatter", 256, True)}
    for line in ("AllGather 1000 1000 256 1 2", "ReduceScatter 1000 1128 256 1 2", "AllReduce 8 9 4 0 2"):
        with pytest.raises(ValueError, match="overlap"):
            calls.layouts([f"call {line}"])
