"""Tables of what was measured, at a terminal: rows, pairs, rails, transports and copies. The page's table of rails."""

from itertools import permutations
from typing import Any

from fake_rails import names, played

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.checks.run.rows import ROW as USUAL
from ncclprobe.checks.run.traffic import SLOW_COPY
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.measurement import Expectation, Library, Measurement, Retest, TimeStats, Transport
from ncclprobe.model.pair_results import Localisation, PairRow, RailWay
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report import pairs, rails, rows, traffic
from ncclprobe.report import text as as_text
from tests.checks.cases.run_rates import _WRONG
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


@each_row(
    ("changes", "words"),
    [
        ({"status": "inconclusive"}, "inconclusive, not 1.5"),
        ({"status": "unjudged", "launch_bound": True, "issue_us": 1200.0}, "unjudged, launch-bound"),
        ({"status": "fail", "wrong": 3}, "fail, not 1.5, 3 wrong"),
        ({"status": "pass"}, "pass"),
        ({"retest": Retest(0.9, 1100.0, None, 5)}, "fail, not 1.5, 0.9 when retested"),
    ],
)
def test_a_row_says_what_its_number_is_worth(changes: dict[str, Any], words: str) -> None:
    assert " ".join(rows.row(replace(ROW, **changes), width=120).split()).endswith(f" {words}")


# Pairs.


def pair(src: int, dst: int, rate: float = 2.0, **changes: Any) -> PairRow:
    row = PairRow(
        src=src, dst=dst, src_end=f"n{src}", dst_end=f"n{dst}", nbytes=4 << 20, latency_nbytes=8, latency_us=12.5,
        GBps=rate, time_us=100.0, min_us=90.0, max_us=110.0, samples_us=(100.0,) * 5,
    )  # fmt: skip
    return replace(row, **changes)


INSIDE = pair(0, 1, src_end="rank 0 on n0", dst_end="rank 1 on n0", inside=True)
MANY = [pair(src, dst, 0.25 if (src, dst) == (3, 7) else 2.0) for src, dst in permutations(range(17), 2)]


def shown(given: list[PairRow], found: Localisation | None = None) -> str:
    return "\n".join(line for block in pairs.blocks(given, found, 200) for line in block)


def test_a_matrix_has_a_line_per_sender_and_a_dash_for_what_was_not_measured() -> None:
    text = shown([pair(0, 1, 1.5), pair(1, 0, 3.0), pair(1, 2), pair(2, 1), pair(0, 1, 9.0, step=1)])
    _, bandwidth = text.split("bandwidth of 4 MiB")
    lines = [line.split() for line in bandwidth.splitlines()[1:5]]
    assert lines == [["from\\to", "0", "1", "2"], ["0", "-", "1.50", "-"], ["1", "3.00", "-", "2.00"],
                     ["2", "-", "2.00", "-"]]  # fmt: skip
    assert "9.00" not in text
    assert "0 is n0, 1 is n1, 2 is n2" in text
    assert "0 is n0, 1 is rank 1 on n0, 2 is n2" in shown([pair(0, 2), pair(2, 0), INSIDE])


def test_beyond_sixteen_ranks_the_slowest_directions_are_listed_instead() -> None:
    lines = shown(MANY).splitlines()
    assert "from\\to" not in "".join(lines)
    assert lines[1].strip() == "n3 to n7: 0.250 GB/s, latency 12.5 us"
    assert len(lines) == 11
    text = shown([*MANY, replace(INSIDE, GBps=9.0)])
    assert "the slowest of 1 direction between 17 ranks, inside nodes, 4 MiB:" in text
    assert shown([]) == ""


# Rails.

BAD = End("n1", 2)


def ways(nodes: int = 4, count: int = 4, **changes: Any) -> tuple[RailWay, ...]:
    seen = played(World(names(nodes), count, **changes))
    return rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])


def grid(given: tuple[RailWay, ...], width: int = 100) -> list[str]:
    return "\n\n".join("\n".join(block) for block in rails.blocks(given, width)).splitlines()


def test_a_dead_rail_stands_out_in_the_grid_and_more_rails_than_fit_go_on_below() -> None:
    lines = grid(ways(carries=only(BAD)))
    assert [line.split() for line in lines if "DEAD" in line] == [["n1", "48.5", "48.5", "DEAD", "48.5"]]
    assert rail_ways([Snapshot("n0", {Rails: Absent("not asked")})]) == ()
    assert grid(()) == []
    lines = grid(ways(2, 12), width=60)
    heads = [line.split() for line in lines if line.strip().startswith("rail ")]
    assert [word for head in heads for word in head if word.isdigit()] == [str(rail) for rail in range(12)]
    assert sum(line.startswith("GB/s sent") for line in lines) == 1
    assert max(len(line) for line in lines if line.startswith(("n0", "n1", " "))) <= 60


def test_each_way_has_its_rates_and_the_choices_of_both_ends_and_is_read_back_as_it_was_written() -> None:
    way = next(way for way in ways() if (way.src, way.dst, way.src_rail) == ("n0", "n3", 1))
    assert (way.state, way.GBps, way.alone_GBps, way.both_GBps, way.gpu_GBps) == ("ok", 48.5, 48.5, 48.5, None)
    assert "n0 mlx5_1:1 GID 3 ::ffff:10.1.0.1 (RoCE v2)" in way.src_choices
    assert "n3 mlx5_1:1" in way.dst_choices
    report = replace(HEALTHY, rails=ways(3, 2, carries=only(End("n1", 1))))
    assert as_json.parse(as_json.render(report), "report.json").rails == report.rails


# Transports and copies.

IB = Transport("IB mlx5_0, mlx5_1", True, "RING", "LL128", 16)
TREE = replace(IB, algorithm="TREE", protocol="LL")
VIA = "IB mlx5_0, mlx5_1, GPUDirect"


@each_row(
    ("transports", "lines"),
    [
        ((IB, IB), [f"transport: {VIA}, RING LL128, 16 channels"]),
        (
            (TREE, IB, IB),
            [
                f"transport: all_reduce 1 KiB: {VIA}, TREE LL, 16 channels",
                f"transport: all_reduce 2 KiB to 4 KiB: {VIA}, RING LL128, 16 channels",
            ],
        ),
        ((Transport(),), []),
    ],
)
def test_rows_of_one_transport_are_one_line_and_one_that_is_not_known_is_not_mentioned(
    transports: tuple[Transport, ...], lines: list[str]
) -> None:
    made = tuple(replace(USUAL, nbytes=1024 << n, transport=each) for n, each in enumerate(transports))
    blocks = traffic.blocks(replace(HEALTHY, measurements=made), 100)
    assert [line for block in blocks for line in block] == lines
    (about,) = rows.header(replace(USUAL, transport=transports[-1]), 200).splitlines()[:1]
    assert about.endswith("over IB mlx5_0, mlx5_1") is bool(lines)


def test_no_gpudirect_is_said_and_unknown_is_not() -> None:
    assert traffic.words(Transport("Socket eth0", False)) == "Socket eth0, no GPUDirect"
    assert traffic.words(Transport("Socket eth0")) == "Socket eth0"


def test_tables_name_the_copy_and_of_several_hosts_which_and_no_nic_steers_the_terminal() -> None:
    hostile = replace(_WRONG, nics=(replace(_WRONG.nics[0], nic="eth\x1b[2J"), *_WRONG.nics[1:]))
    assert "\x1b" not in as_text.render(replace(HEALTHY, nic_traffic=(hostile,), copies=(SLOW_COPY,)))
    several = (SLOW_COPY, replace(SLOW_COPY, node="n7"))
    (one,), (both,) = (traffic.blocks(replace(HEALTHY, copies=each), 80) for each in (several[:1], several))
    assert "host " not in one[0].replace("host to GPU", "")
    assert [line.split()[0] for line in both] == ["host", SLOW_COPY.node, "n7"]
