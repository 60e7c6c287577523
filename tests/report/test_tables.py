"""Tables of what was measured, at a terminal: rows, pairs, rails, transports and copies. The page's table of rails."""

from typing import Any

from fake_rails import names, played

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.checks.run.traffic import SLOW_COPY
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.measurement import Expectation, Library, Measurement, TimeStats
from ncclprobe.model.pair_results import PairRow, RailWay
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report import pairs, rails, rows, traffic
from ncclprobe.report import text as as_text
from tests.checks.cases.run import _WRONG
from tests.each_row import each_row

from .samples import HEALTHY

ROW = Measurement(
    op="all_reduce", place="in", mode="blocking", backend="gloo", library=Library("gloo", "2.13.0"), dtype="float32",
    redop="sum", nbytes=1 << 20, count=1 << 18, ranks=2, nodes=1, iters=20, batches=5, footprint_bytes=64 << 20,
    time_us=TimeStats(1234.5, stdev=123.45), precision=0.1, issue_us=1.0, slowest_rank=1, algbw_GBps=0.849,
    busbw_GBps=0.849, wrong=0, expectation=Expectation(2.0, 1.5, "GB/s", "user", "because", "me"), status="fail",
)  # fmt: skip


@each_row("width", [80, rows.ROOM_FOR_ALL])
def test_a_measured_row_stands_under_its_header_with_what_was_expected(width: int) -> None:
    *about, head, units = rows.header(ROW, width).splitlines()
    assert " ".join(about) == "gloo 2.13.0, 2 ranks on 1 node, blocking, float32, 20 calls x 5 batches, 64 MiB buffers"
    row = rows.row(ROW, width)
    ends = row.index("0.8490") + 6, row.rindex("0.8490") + 6
    assert ends == (head.index("algbw") + 5, head.index("busbw") + 5)
    assert units[: ends[1]].endswith("(GB/s)")
    assert max(map(len, (row, head, units, *about))) <= width
    more = "" if width == 80 else "1.00 100 "
    assert " ".join(row.split()) == f"all_reduce 1 MiB in 1234.50 10 {more}0.8490 0.8490 2 fail, not 1.5"


def pair(src: int, dst: int, rate: float = 2.0, **changes: Any) -> PairRow:
    row = PairRow(
        src=src, dst=dst, src_end=f"n{src}", dst_end=f"n{dst}", nbytes=4 << 20, latency_nbytes=8, latency_us=12.5,
        GBps=rate, time_us=100.0, min_us=90.0, max_us=110.0, samples_us=(100.0,) * 5)  # fmt: skip
    return replace(row, **changes)


@each_row(
    ("changes", "words"),
    [
        ({"precision": 0.0094}, "1234.50 0.9 0.8490"), ({"precision": 0.0095}, "1234.50 0.95 0.8490"),
        ({"precision": 0.0949}, "1234.50 9.5 0.8490"), ({"precision": 0.0951}, "1234.50 10 0.8490"),
        ({"time_us": TimeStats(9999.99)}, "in 9999.99 10"), ({"time_us": TimeStats(10000.0)}, "in 10000.0 10"),
        ({"time_us": TimeStats(999999.9)}, "in 999999.9 10"), ({"time_us": TimeStats(1e6)}, "in 1000000 10"),
        ({"busbw_GBps": 999.94}, "0.8490 999.9 2"), ({"busbw_GBps": 999.95}, "0.8490 1000 2"),
        ({"busbw_GBps": 1.5}, "0.8490 1.500 2 fail"), ({"status": "pass", "wrong": 3}, "0.8490 2 pass, 3 wrong"),
    ])  # fmt: skip
def test_a_cell_has_the_digits_that_it_needs_and_a_verdict_its_notes(changes: dict[str, Any], words: str) -> None:
    assert words in " ".join(rows.row(replace(ROW, **changes), 80).split())


def test_above_sixteen_ranks_the_slowest_directions_stand_in_place_of_a_matrix() -> None:
    few, many = ([pair(0, rank, 20.0 - rank) for rank in range(1, ranks)] for ranks in (16, 17))
    assert next(pairs.blocks(few, None, 200))[0].startswith("one-way latency of 8 B")
    (slowest,) = pairs.blocks(many, None, 200)
    assert slowest[0] == "the slowest of 16 directions between 17 ranks, 4 MiB:"
    assert slowest[1::9] == [
        f"  n0 to n{rank}: {rate} GB/s, latency 12.5 us" for rank, rate in ((16, "4.00"), (7, "13.0"))
    ]


# Rails.


def way(src: str, dst: str, GBps: float | None = 48.0, state: Any = "ok", to: int = 0) -> RailWay:
    return RailWay(src=src, dst=dst, src_rail=0, dst_rail=to, src_end="", dst_end="", tests=1, state=state, GBps=GBps)


def grid(*given: RailWay) -> list[str]:
    return [" ".join(line.split()) for block in rails.blocks(given, 100) for line in block]


def test_a_rail_has_the_state_of_most_of_its_ways_or_its_rates_and_of_many_nodes_the_worst_are_shown() -> None:
    lost = [way("a", "b", None, "late"), way("a", "c", None, "dead"), way("a", "d", None, "dead"), way("d", "b", to=1)]
    told = [*lost, way("b", "a", 36.0), way("b", "c", 40.0), way("c", "b", 48.0), way("c", "d", None, "dead")]
    found = "rails: 8 paths tested, 4 carry data, 1 too slowly to end in time; 1 of them between different rails"
    assert grid(*told) == [found, rails._TITLE, "rail 0", "a DEAD", "b 38.0 / 48.0", "c 48.0 / 40.0", "d DEAD"]
    for sent, received, cell in (
        (36.0, 40.0, "36.0"),
        (35.9, 40.0, "35.9 / 40.0"),
        (None, 40.0, "-"),
        (40.0, None, "-"),
    ):
        assert grid(way("a", "b", sent), way("b", "a", received))[3] == f"a {cell}"
    many = [each for n in range(24) for each in (way(f"n{n}", "m", 50.0 - n), way("m", f"n{n}", 99.0))]
    shown = grid(*many, *[way("n0", "m", None, "dead")] * 2)
    assert [shown[3], *shown[-2:]] == ["n0 DEAD", "n1 49.0 / 99.0", "1 more node is not worse"]


def ways(nodes: int = 4, count: int = 4, **changes: Any) -> tuple[RailWay, ...]:
    seen = played(World(names(nodes), count, **changes))
    return rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])


def test_each_way_has_its_rates_and_the_choices_of_both_ends_and_is_read_back_as_it_was_written() -> None:
    way = next(way for way in ways() if (way.src, way.dst, way.src_rail) == ("n0", "n3", 1))
    assert (way.state, way.GBps, way.alone_GBps, way.both_GBps, way.gpu_GBps) == ("ok", 48.5, 48.5, 48.5, None)
    assert "n0 mlx5_1:1 GID 3 ::ffff:10.1.0.1 (RoCE v2)" in way.src_choices
    assert "n3 mlx5_1:1" in way.dst_choices
    report = replace(HEALTHY, rails=ways(3, 2, carries=only(End("n1", 1))))
    assert as_json.parse(as_json.render(report), "report.json").rails == report.rails


# Transports and copies.


def test_tables_name_the_copy_and_of_several_hosts_which_and_no_nic_steers_the_terminal() -> None:
    hostile = replace(_WRONG, nics=(replace(_WRONG.nics[0], nic="eth\x1b[2J"), *_WRONG.nics[1:]))
    assert "\x1b" not in as_text.render(replace(HEALTHY, nic_traffic=(hostile,), copies=(SLOW_COPY,)))
    several = (SLOW_COPY, replace(SLOW_COPY, node="n7"))
    (one,), (both,) = (traffic.blocks(replace(HEALTHY, copies=each), 80) for each in (several[:1], several))
    assert "host " not in one[0].replace("host to GPU", "")
    assert [line.split()[0] for line in both] == ["host", SLOW_COPY.node, "n7"]
