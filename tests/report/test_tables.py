"""Tables of what was measured, at a terminal: rows, pairs, rails, transports and copies. The page's table of rails."""

from typing import Any

from fake_rails import names, played

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.checks.run.traffic import SLOW_COPY
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.measurement import Expectation, Library, Measurement, TimeStats
from ncclprobe.model.pair_results import Localisation, PairRow, RailWay
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
        GBps=rate, time_us=100.0, min_us=90.0, max_us=110.0, samples_us=(100.0,) * 5,
    )  # fmt: skip
    return replace(row, **changes)


def shown(given: list[PairRow], found: Localisation | None = None) -> str:
    return "\n".join(line for block in pairs.blocks(given, found, 200) for line in block)


# Rails.

BAD = End("n1", 2)


def ways(nodes: int = 4, count: int = 4, **changes: Any) -> tuple[RailWay, ...]:
    seen = played(World(names(nodes), count, **changes))
    return rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])


def grid(given: tuple[RailWay, ...], width: int = 100) -> list[str]:
    return "\n\n".join("\n".join(block) for block in rails.blocks(given, width)).splitlines()


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
